//! Paths and what strangers say, for people to read.

use std::fmt;
use std::io::{self, Write};

use crate::event::misleads;

/// Most bytes of a line that are waited for. A longer one is shown in parts.
const LINE_LIMIT: usize = 8 << 10;

/// A path, or other words of a stranger's, for a terminal: what would steer it, reorder or hide what is read, or is no text,
/// as an escape.
#[derive(Clone, Copy, Debug)]
pub(in crate::access) struct Shown<'p>(pub &'p [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                if misleads(letter) { write!(f, "{}", letter.escape_default())? } else { write!(f, "{letter}")? }
            }
            write!(f, "{}", chunk.invalid().escape_ascii())?;
        }
        Ok(())
    }
}

/// A stranger's lines, which come in pieces: each is shown as [`Shown`] shows it once it is there.
#[derive(Debug, Default)]
pub(in crate::access) struct Lines {
    begun: Vec<u8>,
}

impl Lines {
    /// Some more of them.
    pub(in crate::access) fn show(&mut self, piece: &[u8], to: &mut impl Write) -> io::Result<()> {
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            self.begun.extend_from_slice(part);
            if part.ends_with(b"\n") || self.begun.len() >= LINE_LIMIT {
                self.end(to)?;
            }
        }
        Ok(())
    }

    /// What has been said of a line, if anything.
    pub(in crate::access) fn end(&mut self, to: &mut impl Write) -> io::Result<()> {
        let line = std::mem::take(&mut self.begun);
        if line.is_empty() {
            return Ok(());
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        // Some end lines as terminals do.
        writeln!(to, "{}", Shown(text.strip_suffix(b"\r").unwrap_or(text)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_shown_one_by_one_however_they_come() {
        let mut lines = Lines::default();
        let mut shown = Vec::new();
        for piece in [&b"one\r\n\x1b]0;"[..], b"own", b"ed\x07\n\xc3", b"\xa4 \r \xe2\x80\xaegnp", b""] {
            lines.show(piece, &mut shown).unwrap();
        }
        assert_eq!(String::from_utf8(shown.clone()).unwrap(), "one\n\\u{1b}]0;owned\\u{7}\n");
        lines.end(&mut shown).unwrap();
        lines.end(&mut shown).unwrap();
        assert!(String::from_utf8(shown).unwrap().ends_with("\u{e4} \\r \\u{202e}gnp\n"));
        let mut endless = Vec::new();
        lines.show(&[b'x'; 3 * LINE_LIMIT], &mut endless).unwrap();
        assert_eq!(endless.len(), 3 * LINE_LIMIT + 1, "what never ends is not kept for ever");
    }

    #[test]
    fn what_would_steer_a_terminal_is_escaped() {
        assert_eq!(Shown("früh/\x1b[2J\n".as_bytes()).to_string(), "früh/\\u{1b}[2J\\n");
        for hidden in "\u{ad}\u{200b}\u{200f}\u{202a}\u{202e}\u{2060}\u{2064}\u{2066}\u{2069}\u{feff}".chars() {
            let shown = Shown(format!("a{hidden}gpj.exe").as_bytes()).to_string();
            assert_eq!(shown, format!("a{}gpj.exe", hidden.escape_unicode()));
        }
        // Letters of every script stay themselves.
        let names = "früh 日本 עברית";
        assert_eq!(Shown(names.as_bytes()).to_string(), names);
        assert_eq!(Shown(b"a\xff\xc3b").to_string(), "a\\xff\\xc3b");
    }
}
