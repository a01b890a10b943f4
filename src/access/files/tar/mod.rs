//! tar streams: into a directory ([`extract`]) and out of one ([`create`]).
//!
//! Formats: ustar and pax (POSIX.1-2017, pax §"Extended Description"), and of GNU's the long names, large numbers and
//! sparse files. What an archive says is a stranger's word, so:
//!
//! - A path never leads out of the directory: none is absolute or has `..`, and the directories on it are opened one by
//!   one without following links ([`tree`]), so neither a link in the archive nor one that somebody puts there meanwhile
//!   is ever passed through.
//! - Files, directories, symbolic and hard links are made; devices, pipes and whatever else are refused, each with a line
//!   in the report. Set-id and sticky bits, owners, access control lists and other attributes do not come either: what
//!   comes in belongs to who brings it, and modes are limited by their umask (umask(2)).
//! - Of who asked for one name, no other is taken ([`Wanted`]).
//! - Each file comes under its name in one step when it is whole. A whole directory does not: when a stream breaks off,
//!   the files that were complete are there and the rest is not, and the caller is told. Uploading again is the remedy.
//! - What is there already is replaced by what comes, one by one: a file or link by a file or link, never a directory by
//!   a file or the reverse. A directory that is there keeps its mode and is filled.
//!
//! Why not the `tar` crate: it reads the long names and extended headers of a member whole into memory, however large
//! the archive says they are; it does not know pax's sparse files and would write their maps as content; and the paths,
//! which are most of the work, would be ours anyway.

mod archive;
mod create;
mod extract;
mod header;
mod map;
mod pax;
mod report;
#[cfg(test)]
mod tests;
mod tree;

use std::io;

pub use create::create;
pub use extract::{Wanted, extract};
pub use report::Placed;

/// Bytes of a block, in which everything in an archive is measured.
const BLOCK: usize = 512;

/// Bytes moved at once.
const CHUNK: usize = 256 << 10;

/// Longest path and longest target of a link that is taken: the kernel's own bound (`PATH_MAX`).
const MAX_PATH: usize = 4096;

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic and hard links.
    pub links: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Members or files that were refused or failed, each reported.
    pub failed: u64,
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { files, directories, links, bytes, failed } = self;
        write!(f, "{files} files with {bytes} bytes, {directories} directories, {links} links")?;
        if *failed > 0 { write!(f, "; {failed} not transferred") } else { Ok(()) }
    }
}

/// Why a transfer ended before its end.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// The directory cannot be used.
    #[error("{}: {error}; expected a directory that this user may enter", path.display())]
    Directory {
        /// Which.
        path: std::path::PathBuf,
        /// What the kernel answered.
        error: nix::errno::Errno,
    },
    /// The stream ends before the archive does.
    #[error(
        "the archive ends before its end mark: the transfer was cut short. What is complete is in place; send it again"
    )]
    Cut,
    /// What came is no archive, or one that cannot be followed further.
    #[error("at byte {position} of the archive: {what}; expected an uncompressed tar archive, ustar, pax or GNU")]
    Malformed {
        /// Where.
        position: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// Reading or writing the stream failed.
    #[error("the archive's stream: {0}")]
    Stream(#[from] io::Error),
}
