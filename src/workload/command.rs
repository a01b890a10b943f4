//! Which program is the workload.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;

use serde::Deserialize;

use crate::contract::env::MAIN_PROCESS_SPEC;

/// Version of the driver's specification that this build reads.
const SPEC_VERSION: u64 = 1;

/// Marks a specification in unpadded base64url (RFC 4648 §5, §3.2).
const BASE64_MARK: &str = "base64url:";

/// An environment variable cannot be longer (`MAX_ARG_STRLEN`, execve(2)).
const SPEC_LIMIT: usize = 128 << 10;

/// A program to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Program and arguments, never empty.
    pub argv: Vec<CString>,
    /// Whether the driver wants a terminal for it.
    pub tty: bool,
}

/// No program to run.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Nobody named one.
    #[error("no command: give one after `--`, or set {MAIN_PROCESS_SPEC}")]
    Missing,
    /// The first word is empty.
    #[error("{0}: the program's name is empty")]
    Empty(&'static str),
    /// A word with a NUL byte.
    #[error("{source_name}: word {index} holds a NUL byte, which no argument can")]
    Nul {
        /// Who named it.
        source_name: &'static str,
        /// Which word, from 0.
        index: usize,
    },
    /// The specification cannot be read.
    #[error("{MAIN_PROCESS_SPEC}: {0}; expected {{\"version\":1,\"command\":[…],\"tty\":…}}, or `base64url:` and that")]
    Spec(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    version: u64,
    command: Vec<String>,
    #[serde(default)]
    tty: bool,
}

impl Command {
    /// The words after `--`, for who has no driver.
    ///
    /// # Errors
    /// [`CommandError`].
    pub fn resolve_words(words: &[OsString]) -> Result<Self, CommandError> {
        resolve(words, None)
    }
}

/// The words after `--` where there are any, else the driver's specification. There is no default program: an image
/// need not hold a shell.
///
/// # Errors
/// [`CommandError`].
pub fn resolve(words: &[OsString], spec: Option<&str>) -> Result<Command, CommandError> {
    const WORDS: &str = "command after `--`";
    if !words.is_empty() {
        let words = words.iter().map(|word| word.clone().into_vec());
        return Ok(Command { argv: argv(WORDS, words)?, tty: false });
    }
    let spec = parse(spec.filter(|spec| !spec.is_empty()).ok_or(CommandError::Missing)?)?;
    Ok(Command { argv: argv(MAIN_PROCESS_SPEC, spec.command.into_iter().map(String::into_bytes))?, tty: spec.tty })
}

fn parse(text: &str) -> Result<Spec, CommandError> {
    if text.len() > SPEC_LIMIT {
        return Err(CommandError::Spec(format!("{} bytes long, at most {SPEC_LIMIT} are read", text.len())));
    }
    let decoded;
    let json = match text.strip_prefix(BASE64_MARK) {
        None => text.as_bytes(),
        Some(encoded) => {
            decoded = base64url(encoded)
                .ok_or_else(|| CommandError::Spec("what follows `base64url:` is not unpadded base64url".to_owned()))?;
            &decoded
        }
    };
    let spec: Spec = serde_json::from_slice(json).map_err(|error| CommandError::Spec(error.to_string()))?;
    if spec.version != SPEC_VERSION {
        return Err(CommandError::Spec(format!("version {}; this build reads version {SPEC_VERSION}", spec.version)));
    }
    if spec.command.is_empty() {
        return Err(CommandError::Spec("the command is empty".to_owned()));
    }
    Ok(spec)
}

fn argv(source_name: &'static str, words: impl Iterator<Item = Vec<u8>>) -> Result<Vec<CString>, CommandError> {
    let argv: Vec<CString> = words
        .enumerate()
        .map(|(index, word)| CString::new(word).map_err(|_| CommandError::Nul { source_name, index }))
        .collect::<Result<_, _>>()?;
    match argv.first() {
        Some(program) if !program.is_empty() => Ok(argv),
        _ => Err(CommandError::Empty(source_name)),
    }
}

/// Strict: no padding, no other alphabet, and the bits left over at the end are zero, so that one text has one
/// encoding.
fn base64url(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut pending) = (0_u32, 0_u32);
    for byte in text.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'-' => 62,
            b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        pending += 6;
        if pending >= 8 {
            pending -= 8;
            bytes.push((bits >> pending) as u8);
            bits &= (1 << pending) - 1;
        }
    }
    (pending < 6 && bits == 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<OsString> {
        text.iter().map(OsString::from).collect()
    }

    #[test]
    fn words_win_over_the_specification() {
        let spec = Some(r#"{"version":1,"command":["b"],"tty":true}"#);
        let command = resolve(&words(&["a", ""]), spec).unwrap();
        assert_eq!((command.argv, command.tty), (vec![c"a".into(), c"".into()], false));
        let command = resolve(&[], spec).unwrap();
        assert_eq!((command.argv, command.tty), (vec![c"b".into()], true));
    }

    #[test]
    fn base64url_is_read() {
        // {"version":1,"command":["echo","hi"],"tty":false}
        let spec = "base64url:eyJ2ZXJzaW9uIjoxLCJjb21tYW5kIjpbImVjaG8iLCJoaSJdLCJ0dHkiOmZhbHNlfQ";
        assert_eq!(resolve(&[], Some(spec)).unwrap().argv, [c"echo".to_owned(), c"hi".to_owned()]);
        assert_eq!(base64url("_-8").unwrap(), [0xff, 0xef]);
        for bad in ["_-8=", "+/8", "A", "_-9", "a b"] {
            assert_eq!(base64url(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_run_says_why() {
        for (spec, part) in [
            (None, "no command"),
            (Some(""), "no command"),
            (Some("{"), "EOF"),
            (Some(r#"{"version":2,"command":["a"]}"#), "version 2"),
            (Some(r#"{"version":1,"command":[]}"#), "the command is empty"),
            (Some(r#"{"version":1,"command":[""]}"#), "name is empty"),
            (Some(r#"{"version":1,"command":["a"],"extra":1}"#), "extra"),
            (Some("{\"version\":1,\"command\":[\"a\\u0000\"]}"), "NUL"),
            (Some("base64url:****"), "base64url"),
        ] {
            let message = resolve(&[], spec).unwrap_err().to_string();
            assert!(message.contains(part), "{spec:?}: {message}");
        }
        assert!(matches!(resolve(&words(&["", "a"]), None), Err(CommandError::Empty(_))));
    }
}
