//! What the person at the other end is told while a transfer runs.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;

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
                writeln!(self.to, "…: more than {MAX_LINES} such; the others are only counted")
            }
            _ => Ok(()),
        };
    }
}

/// Lines about members of a directory, each with whose directory that is before it: `sandbox:/sandbox/notes.md: …`.
pub struct Placed<W> {
    to: W,
    place: Vec<u8>,
    begun: bool,
}

impl<W: Write> Placed<W> {
    /// Lines go on to `to`. `side` says which machine's `directory` is meant.
    pub fn new(to: W, side: &str, directory: &Path) -> Self {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        let shown = Shown(directory.as_os_str().as_encoded_bytes()).to_string();
        let place = format!("{side}{}/", shown.trim_end_matches('/')).into_bytes();
        Self { to, place, begun: false }
    }
}

impl<W: Write> Write for Placed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if !self.begun {
                self.to.write_all(&self.place)?;
            }
            self.to.write_all(line)?;
            self.begun = !line.ends_with(b"\n");
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}
