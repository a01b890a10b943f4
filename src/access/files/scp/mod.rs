//! The older copy protocol of `scp -O`, in which the client runs `scp -t PATH` or `scp -f PATH` at the other end.
//!
//! ```text
//! command  is this command line such a call, and of what
//! glob     names for the patterns in it, which a shell would have found
//! sink     `-t`: files come
//! source   `-f`: files go
//! ```
//!
//! One side sends lines, `C` before a file, `D` and `E` around a directory, `T` with times, and waits each time for a
//! byte: 0, or 1 or 2 and a line that says what is wrong, after which 2 ends it all.

mod command;
mod glob;
mod sink;
mod source;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub use command::{Command, Role, parse};

use super::shown::Shown;
use super::{Names, Passed, Tell};

/// Longest line: a path's last name, its size and its mode.
const MAX_LINE: usize = 4096;

/// Deepest directory.
const MAX_DEPTH: usize = 256;

/// Bytes moved at once.
const CHUNK: usize = 128 << 10;

/// Why a copy ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum ScpError {
    /// The other side does not speak the protocol.
    #[error("scp: {0}; expected the protocol of `scp -O`")]
    Protocol(&'static str),
    /// The other side ended it, for this reason.
    #[error("scp: the other side gave up: {0}")]
    GivenUp(String),
    /// The stream ended inside a transfer, or failed.
    #[error("scp: {0}")]
    Stream(#[from] io::Error),
}

/// Serves one copy; whether everything went through is the answer, which is the exit code's to say.
///
/// # Errors
/// The stream ended or failed, or what came is not the protocol. A file that was not complete is not there.
pub fn serve(
    command: &Command,
    input: impl Read,
    output: impl Write,
    names: &dyn Names,
    tell: Tell<'_>,
) -> Result<bool, ScpError> {
    let mut wire = Wire { input: BufReader::with_capacity(CHUNK, input), output, failed: false, tell };
    let paths = command.paths(names);
    match command.role {
        Role::Sink => sink::receive(&mut wire, command, &paths)?,
        Role::Source => source::send(&mut wire, command, &paths)?,
    }
    Ok(!wire.failed)
}

/// The two directions.
struct Wire<'t, R, W> {
    input: BufReader<R>,
    output: W,
    failed: bool,
    tell: Tell<'t>,
}

impl<R: Read, W: Write> Wire<'_, R, W> {
    /// Says that it may go on.
    fn go_on(&mut self) -> Result<(), ScpError> {
        self.send(&[0])
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ScpError> {
        self.output.write_all(bytes)?;
        Ok(self.output.flush()?)
    }

    /// Tells what is wrong with one file.
    fn complain(&mut self, path: &[u8], what: &dyn Display) -> Result<(), ScpError> {
        self.failed = true;
        (self.tell)(Passed::failed(Path::new(OsStr::from_bytes(path)), what));
        self.send(format!("\u{1}scp: {}: {what}\n", Shown(path)).as_bytes())
    }

    /// For the record: a file went through.
    fn passed(&mut self, path: &Path, read: u64, written: u64) {
        (self.tell)(Passed { path: path.to_string_lossy().into_owned(), read, written, failed: None });
    }

    /// Waits for the other side's word; `false` where it does not want this one.
    fn may_go_on(&mut self) -> Result<bool, ScpError> {
        let mut answer = [0];
        self.input.read_exact(&mut answer)?;
        match answer[0] {
            0 => Ok(true),
            1 => {
                self.failed = true;
                self.line()?;
                Ok(false)
            }
            2 => Err(ScpError::GivenUp(Shown(&self.line()?.unwrap_or_default()).to_string())),
            _ => Err(ScpError::Protocol("an answer that is none")),
        }
    }

    /// The next line without its end; `None` where the other side has finished.
    fn line(&mut self) -> Result<Option<Vec<u8>>, ScpError> {
        let mut line = Vec::new();
        (&mut self.input).take(MAX_LINE as u64).read_until(b'\n', &mut line)?;
        match line.pop() {
            None => Ok(None),
            Some(b'\n') => Ok(Some(line)),
            Some(_) if line.len() + 1 < MAX_LINE => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            Some(_) => Err(ScpError::Protocol("a line that does not end")),
        }
    }
}
