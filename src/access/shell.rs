//! Which program a command line is given to.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;

use super::quoting::{self, Unsplit, Word};

/// What is looked for where neither the user's entry nor the environment names a shell that runs: by name, in the
/// workload's `PATH`.
const USUAL: [&str; 2] = ["bash", "sh"];

/// Login shells that are none: they say no, and are meant for those who log in by password.
const REFUSALS: [&str; 4] = ["nologin", "false", "true", "sync"];

/// Words that only a shell gives a meaning, or changes.
const SHELL_ONLY: &[u8] = b"|&;<>()$`*?[]#{}!\n";

/// A command line that cannot do without a shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoShell {
    /// It has something that only a shell understands.
    #[error("the sandbox has no shell, and the command needs one for {0:?}; quote it, or put a shell into the image")]
    Needed(char),
    /// A quote is not closed.
    #[error("a quote in the command is not closed")]
    Unclosed,
    /// Nothing is left.
    #[error("the command is empty")]
    Empty,
    /// A NUL byte.
    #[error("the command holds a NUL byte, which no argument can")]
    Nul,
}

/// Shells to try, the likeliest first: the user's, `$SHELL`, and the usual ones.
pub fn candidates(of_user: Option<&str>, from_environment: Option<&OsStr>) -> Vec<CString> {
    let named = of_user.map(OsStr::new).into_iter().chain(from_environment);
    let mut shells: Vec<CString> = Vec::new();
    for shell in named.chain(USUAL.iter().map(OsStr::new)) {
        let name = shell.as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
        let is_none = name.is_empty() || REFUSALS.iter().any(|refusal| refusal.as_bytes() == name);
        if let Ok(shell) = CString::new(shell.as_bytes())
            && !is_none
            && !shells.contains(&shell)
        {
            shells.push(shell);
        }
    }
    shells
}

/// What to try for a login: each shell, as a login shell.
pub fn login(shells: &[CString]) -> Vec<Vec<CString>> {
    shells.iter().map(|shell| vec![shell.clone(), c"-l".to_owned()]).collect()
}

/// What to try for a command line: each shell with it, and, should the image have none, its own words.
///
/// # Errors
/// [`NoShell::Nul`]. What else is wrong with the words is told by [`words`] when it comes to that.
pub fn command(shells: &[CString], line: &[u8]) -> Result<Vec<Vec<CString>>, NoShell> {
    let whole = CString::new(line).map_err(|_| NoShell::Nul)?;
    let mut commands: Vec<Vec<CString>> =
        shells.iter().map(|shell| vec![shell.clone(), c"-c".to_owned(), whole.clone()]).collect();
    commands.extend(words(line).ok());
    Ok(commands)
}

/// The words of a command line that needs no shell.
///
/// # Errors
/// [`NoShell`].
pub fn words(line: &[u8]) -> Result<Vec<CString>, NoShell> {
    let words = quoting::words(line).map_err(|why| match why {
        Unsplit::Unclosed => NoShell::Unclosed,
        Unsplit::Expansion(byte) => NoShell::Needed(byte.into()),
    })?;
    for (index, word) in words.iter().enumerate() {
        let special = word.iter().enumerate().find(|(at, (byte, quoted))| {
            // `~` begins a home, and NAME=VALUE comes before a command.
            let means = SHELL_ONLY.contains(byte) || (*byte == b'~' && *at == 0) || (*byte == b'=' && index == 0);
            means && !quoted
        });
        if let Some((_, (byte, _))) = special {
            return Err(NoShell::Needed((*byte).into()));
        }
    }
    if words.first().is_none_or(Vec::is_empty) {
        return Err(NoShell::Empty);
    }
    let text = |word: Word| CString::new(word.into_iter().map(|(byte, _)| byte).collect::<Vec<u8>>());
    words.into_iter().map(|word| text(word).map_err(|_| NoShell::Nul)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Result<Vec<String>, NoShell> {
        Ok(words(line.as_bytes())?.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn words_are_split_as_a_shell_would() {
        for line in [
            "a b  c",
            "  a\tb ",
            r#"a 'b c' "d e" f\ g"#,
            r#"a ''"" 'x'"y"z"#,
            r#"a "\$ \" \\ \n" '\n'"#,
            "a \\\n b",
            "a b=c d~e",
        ] {
            let script = format!("for word in {line}; do printf '%s\\n' \"$word\"; done");
            let shell = std::process::Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
            let expected: Vec<String> = String::from_utf8(shell.stdout).unwrap().lines().map(str::to_owned).collect();
            assert_eq!(split(line).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn what_needs_a_shell_is_refused() {
        for (line, why) in [
            ("a | b", NoShell::Needed('|')),
            ("a $b", NoShell::Needed('$')),
            ("a \"$b\"", NoShell::Needed('$')),
            ("a; b", NoShell::Needed(';')),
            ("a *", NoShell::Needed('*')),
            ("~/a", NoShell::Needed('~')),
            ("A=b c", NoShell::Needed('=')),
            ("a 'b", NoShell::Unclosed),
            ("a \"b", NoShell::Unclosed),
            ("a \\", NoShell::Unclosed),
            ("", NoShell::Empty),
            ("  ", NoShell::Empty),
            ("''", NoShell::Empty),
        ] {
            assert_eq!(split(line).unwrap_err(), why, "{line}");
        }
    }

    #[test]
    fn shells_are_tried_once_each_and_refusals_are_none() {
        let shells = candidates(Some("/usr/sbin/nologin"), Some(OsStr::new("/bin/bash")));
        assert_eq!(shells, [c"/bin/bash".to_owned(), c"bash".into(), c"sh".into()]);
        let commands = command(&shells, b"a b | c").unwrap();
        assert_eq!(commands.len(), 3, "without a shell it means nothing");
        assert_eq!(command(&[], b"a b").unwrap(), [[c"a".to_owned(), c"b".into()]]);
    }
}
