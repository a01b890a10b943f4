//! Paths, for people to read.

use std::fmt;

/// A path for a terminal: what would steer it, or is no text, as an escape.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown<'p>(pub &'p [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for letter in chunk.valid().chars() {
                if letter.is_control() { write!(f, "{}", letter.escape_default())? } else { write!(f, "{letter}")? }
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
        assert_eq!(Shown(b"a\xff\xc3b").to_string(), "a\\xff\\xc3b");
    }
}
