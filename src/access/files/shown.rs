//! Paths, for people to read.

use std::fmt;

use crate::event::misleads;

/// A path for a terminal: what would steer it, reorder or hide what is read, or is no text, as an escape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'p>(pub &'p [u8]);

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

#[cfg(test)]
mod tests {
    use super::*;

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
