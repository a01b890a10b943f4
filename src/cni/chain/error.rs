//! Why the chain could not be looked at or changed.

use std::io;
use std::path::PathBuf;

use nix::errno::Errno;

/// A failure of the node rather than a state of the chain, which is a [`Verdict`](super::Verdict).
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// A step failed; what lay there before still does.
    #[error("{step} {}: {error}{}", path.display(), remedy(*error))]
    Step {
        /// What was being done.
        step: &'static str,
        /// To what.
        path: PathBuf,
        /// What the kernel answered.
        error: Errno,
    },
    /// Another installer is at work.
    #[error(
        "{}: another installer has held this directory for {seconds} s; there may be one on a node: remove the other one",
        path.display()
    )]
    Busy {
        /// The directory.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Somebody rewrites the file again and again.
    #[error("{}: rewritten by somebody else {attempts} times while it was being edited; it is left as they wrote it", path.display())]
    Contended {
        /// The file.
        path: PathBuf,
        /// How often it was tried.
        attempts: u32,
    },
}

/// What a person can do about an error that nodes really give.
fn remedy(error: Errno) -> &'static str {
    match error {
        Errno::ENOSPC | Errno::EDQUOT => "; make room on the node's file system",
        Errno::EROFS => "; mount the node's directory without readOnly, or name one that can be written",
        Errno::EACCES | Errno::EPERM => {
            "; the installer has to run as the owner of the directory, which is root, and no security module may forbid it"
        }
        Errno::ENOTDIR | Errno::ELOOP => "; expected a directory of its own there, not a file or a link",
        Errno::EOVERFLOW => "; expected a directory with a handful of configurations, found thousands of files",
        _ => "",
    }
}

/// The number in an error of the standard library.
pub(super) fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
