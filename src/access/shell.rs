//! Which program a command line is given to.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;

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

/// Splits a command line by the quoting of POSIX (XCU 2.2), without anything that only a shell does.
///
/// # Errors
/// [`NoShell`].
pub fn words(line: &[u8]) -> Result<Vec<CString>, NoShell> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let mut word: Option<Vec<u8>> = None;
    let mut bytes = line.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        match byte {
            b' ' | b'\t' => words.extend(word.take()),
            b'\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next().ok_or(NoShell::Unclosed)? {
                        b'\'' => break,
                        other => word.push(other),
                    }
                }
            }
            b'"' => {
                let word = word.get_or_insert_default();
                loop {
                    match bytes.next().ok_or(NoShell::Unclosed)? {
                        b'"' => break,
                        needed @ (b'$' | b'`') => return Err(NoShell::Needed(needed.into())),
                        b'\\' => match bytes.next().ok_or(NoShell::Unclosed)? {
                            b'\n' => {}
                            escaped @ (b'"' | b'\\' | b'$' | b'`') => word.push(escaped),
                            other => word.extend([b'\\', other]),
                        },
                        other => word.push(other),
                    }
                }
            }
            b'\\' => match bytes.next().ok_or(NoShell::Unclosed)? {
                b'\n' => {}
                escaped => word.get_or_insert_default().push(escaped),
            },
            needed if SHELL_ONLY.contains(&needed) => return Err(NoShell::Needed(needed.into())),
            b'~' if word.is_none() => return Err(NoShell::Needed('~')),
            // NAME=VALUE before a command.
            b'=' if words.is_empty() => return Err(NoShell::Needed('=')),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    match words.first() {
        None => Err(NoShell::Empty),
        Some(first) if first.is_empty() => Err(NoShell::Empty),
        Some(_) => words.into_iter().map(|word| CString::new(word).map_err(|_| NoShell::Nul)).collect(),
    }
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
