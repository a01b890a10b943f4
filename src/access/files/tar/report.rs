//! What the person at the other end is told while a transfer runs.

use std::fmt;
use std::io::Write;

use crate::access::files::shown::Shown;

/// Most lines about single members. A hostile archive holds millions, and somebody reads them.
const MAX_LINES: u64 = 1000;

/// Lines about what was not transferred.
pub(super) struct Report<'w> {
    to: &'w mut dyn Write,
    lines: u64,
}

impl<'w> Report<'w> {
    pub fn new(to: &'w mut dyn Write) -> Self {
        Self { to, lines: 0 }
    }

    /// One line. That it cannot be written stops nothing: the transfer's outcome says that something is missing.
    pub fn tell(&mut self, path: &[u8], what: &dyn fmt::Display) {
        self.lines += 1;
        let _ = match self.lines {
            ..=MAX_LINES => writeln!(self.to, "{}: {what}", Shown(path)),
            line if line == MAX_LINES + 1 => {
                writeln!(self.to, "more than {MAX_LINES} such; the others are only counted")
            }
            _ => Ok(()),
        };
    }
}
