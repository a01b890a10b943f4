//! Names for patterns, as a shell finds them (XCU 2.14).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use crate::access::quoting::Word;

/// Most paths for one pattern: more than a command line has ever held.
const MAX_FOUND: usize = 1 << 16;

/// The paths that match, in the order of their bytes; none where nothing does, or too much.
pub(super) fn expand(pattern: &Word) -> Vec<PathBuf> {
    let absolute = pattern.first().is_some_and(|(byte, _)| *byte == b'/');
    let mut found = vec![if absolute { b"/".to_vec() } else { Vec::new() }];
    for part in pattern.split(|(byte, _)| *byte == b'/').filter(|part| !part.is_empty()) {
        let mut next = Vec::new();
        for parent in &found {
            if is_pattern(part) {
                let parent = parent.clone();
                let listed =
                    std::fs::read_dir(if parent.is_empty() { OsStr::new(".") } else { OsStr::from_bytes(&parent) });
                for entry in listed.into_iter().flatten().flatten() {
                    let name = entry.file_name().into_vec();
                    // A dot at the start has to be written.
                    let hidden = name.starts_with(b".") && part.first().is_none_or(|(byte, _)| *byte != b'.');
                    if !hidden && matches(part, &name) {
                        next.push(joined(&parent, &name));
                    }
                    if next.len() > MAX_FOUND {
                        return Vec::new();
                    }
                }
            } else {
                let name: Vec<u8> = part.iter().map(|(byte, _)| *byte).collect();
                let path = joined(parent, &name);
                if std::fs::symlink_metadata(OsStr::from_bytes(&path)).is_ok() {
                    next.push(path);
                }
            }
        }
        found = next;
    }
    found.sort();
    found.into_iter().map(|path| OsString::from_vec(path).into()).collect()
}

fn joined(parent: &[u8], name: &[u8]) -> Vec<u8> {
    let between: &[u8] = if parent.is_empty() || parent.ends_with(b"/") { b"" } else { b"/" };
    [parent, between, name].concat()
}

fn is_pattern(part: &[(u8, bool)]) -> bool {
    part.iter().any(|(byte, quoted)| !quoted && b"*?[".contains(byte))
}

/// Whether a name matches. Of stars only the last is ever taken back, so the work is at most the product of the lengths.
pub(super) fn matches(pattern: &[(u8, bool)], name: &[u8]) -> bool {
    let (mut at, mut taken) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while taken < name.len() {
        let step = match pattern.get(at) {
            Some((b'*', false)) => {
                star = Some((at + 1, taken));
                at += 1;
                continue;
            }
            Some((b'?', false)) => Some((1, letter(&name[taken..]))),
            Some((b'[', false)) => bracket(&pattern[at..], name[taken]),
            Some((byte, _)) => (*byte == name[taken]).then_some((1, 1)),
            None => None,
        };
        match (step, star) {
            (Some((pattern, bytes)), _) => (at, taken) = (at + pattern, taken + bytes),
            (None, Some((after, from))) => {
                star = Some((after, from + 1));
                (at, taken) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[at..].iter().all(|part| *part == (b'*', false))
}

/// Bytes of the letter at the start.
fn letter(name: &[u8]) -> usize {
    1 + name[1..].iter().take_while(|byte| **byte & 0xc0 == 0x80).count().min(3)
}

/// A set in brackets against a byte: how far both go on, if it matches. One that does not end is a plain bracket.
fn bracket(pattern: &[(u8, bool)], byte: u8) -> Option<(usize, usize)> {
    let negated = matches!(pattern.get(1), Some((b'!' | b'^', false)));
    let first = if negated { 2 } else { 1 };
    let mut at = first;
    let mut within = false;
    loop {
        match pattern.get(at) {
            None => return (byte == b'[').then_some((1, 1)),
            Some((b']', false)) if at > first => break,
            Some((low, _)) => {
                let range = pattern.get(at + 1) == Some(&(b'-', false));
                match pattern.get(at + 2).filter(|high| range && **high != (b']', false)) {
                    Some((high, _)) => {
                        within |= (*low..=*high).contains(&byte);
                        at += 3;
                    }
                    None => {
                        within |= *low == byte;
                        at += 1;
                    }
                }
            }
        }
    }
    (within != negated).then_some((at + 1, 1))
}
