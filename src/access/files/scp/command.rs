//! Which command lines are a call of scp at this end.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::glob;
use crate::access::files::Names;
use crate::access::quoting::{self, Word};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `-t`: files come to this end.
    Sink,
    /// `-f`: files go from this end.
    Source,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Which way.
    pub role: Role,
    /// Directories too.
    pub recursive: bool,
    /// Times and modes are kept.
    pub preserve: bool,
    /// The target has to be a directory.
    pub into_directory: bool,
    words: Vec<Word>,
}

/// Unquoted, these make a line more than words and patterns.
const SHELL_ONLY: &[u8] = b"$`;&|<>(){\n\0";

/// Recognises the command line that a client sends for `scp -O`: `scp`, options, and what to copy, quoted as for a
/// shell. `None` is anything else, also what only a shell could tell: variables, substitutions, redirections, several
/// commands, alternatives in braces.
pub fn parse(line: &[u8]) -> Option<Command> {
    let mut words = words(line)?.into_iter();
    if words.next()?.iter().map(|(byte, _)| *byte).ne(*b"scp") {
        return None;
    }
    let (mut role, mut recursive, mut preserve, mut into_directory) = (None, false, false, false);
    let mut paths = Vec::new();
    let mut options = true;
    for word in words {
        let text: Vec<u8> = word.iter().map(|(byte, _)| *byte).collect();
        match text.strip_prefix(b"-") {
            Some(b"-") if options => options = false,
            Some(letters) if options && !letters.is_empty() => {
                for letter in letters {
                    match letter {
                        b't' if role.is_none() => role = Some(Role::Sink),
                        b'f' if role.is_none() => role = Some(Role::Source),
                        b'r' => recursive = true,
                        b'p' => preserve = true,
                        b'd' => into_directory = true,
                        b'v' | b'q' => {}
                        _ => return None,
                    }
                }
            }
            _ => {
                options = false;
                paths.push(word);
            }
        }
    }
    let role = role?;
    let counted = if role == Role::Sink { paths.len() == 1 } else { !paths.is_empty() };
    counted.then_some(Command { role, recursive, preserve, into_directory, words: paths })
}

impl Command {
    /// The paths, homes and patterns in them replaced as a shell does.
    pub(super) fn paths(&self, names: &dyn Names) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for word in &self.words {
            let word = at_home(word, names);
            let found = if word.iter().any(|(byte, quoted)| !quoted && b"*?[".contains(byte)) {
                glob::expand(&word)
            } else {
                Vec::new()
            };
            // A pattern that nothing matches stands for itself.
            if found.is_empty() {
                paths.push(OsString::from_vec(word.iter().map(|(byte, _)| *byte).collect()).into());
            }
            paths.extend(found);
        }
        paths
    }
}

/// Replaces `~` and `~user` at the start of a word.
fn at_home(word: &Word, names: &dyn Names) -> Word {
    if word.first() != Some(&(b'~', false)) {
        return word.clone();
    }
    let end = word.iter().position(|(byte, _)| *byte == b'/').unwrap_or(word.len());
    let user: Vec<u8> = word[1..end].iter().map(|(byte, _)| *byte).collect();
    let quoted = word[1..end].iter().any(|(_, quoted)| *quoted);
    match names.home((!user.is_empty()).then(|| OsStr::from_bytes(&user))) {
        Some(home) if !quoted => {
            let home = home.into_os_string().into_vec();
            home.into_iter().map(|byte| (byte, true)).chain(word[end..].iter().copied()).collect()
        }
        _ => word.clone(),
    }
}

/// Splits the line, unless it has something that only a shell can tell.
fn words(line: &[u8]) -> Option<Vec<Word>> {
    let words = quoting::words(line).ok()?;
    let means = |&(byte, quoted): &(u8, bool)| !quoted && SHELL_ONLY.contains(&byte);
    let is_comment = |word: &Word| word.first() == Some(&(b'#', false));
    (!words.iter().any(|word| word.iter().any(means) || is_comment(word))).then_some(words)
}
