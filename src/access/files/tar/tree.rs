//! Directories below one that is not left.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};

use super::MAX_PATH;
use crate::access::files::staged::open_directory;

/// Why a path is not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PathError {
    #[error("refused: the path is absolute; it must lie in the directory")]
    Absolute,
    #[error("refused: the path has `..`; it must lie in the directory")]
    Parent,
    #[error("refused: the path is longer than {MAX_PATH} bytes or has a zero byte")]
    Unusable,
    #[error("refused: {0:?} on the path is a symbolic link or no directory, and none is passed through")]
    NotDirectory(Box<str>),
    #[error("{}", .0.desc())]
    Kernel(Errno),
}

impl PathError {
    fn not_directory(name: &[u8]) -> Self {
        Self::NotDirectory(String::from_utf8_lossy(name).into())
    }
}

impl From<Errno> for PathError {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

/// The names of a path, from the top; none for the directory itself.
pub(super) fn names(path: &[u8]) -> Result<Vec<&[u8]>, PathError> {
    if path.starts_with(b"/") {
        return Err(PathError::Absolute);
    }
    if path.len() > MAX_PATH || path.contains(&0) {
        return Err(PathError::Unusable);
    }
    let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b".")).collect();
    if names.contains(&&b".."[..]) { Err(PathError::Parent) } else { Ok(names) }
}

/// A directory and everything below.
#[derive(Debug)]
pub(super) struct Tree {
    root: OwnedFd,
    /// The directory that was opened last, for members come in the order of their directories: its names, each with a
    /// slash behind, and itself.
    last: Option<(Vec<u8>, OwnedFd)>,
}

impl Tree {
    /// Opens the top, through links if it lies behind some: it was named by who asked for the transfer.
    pub fn open(path: &Path) -> Result<Self, Errno> {
        Ok(Self { root: open_directory(AT_FDCWD, path.as_os_str())?, last: None })
    }

    /// The directory of that path, names below the top. Each is opened in the one before without following a link, so
    /// nobody who exchanges one meanwhile leads elsewhere; openat2(2) could do it in one call, where there is one.
    pub fn directory(&mut self, names: &[&[u8]], make: bool) -> Result<BorrowedFd<'_>, PathError> {
        let mut wanted = names.join(&b'/');
        wanted.push(b'/');
        if names.is_empty() {
            return Ok(self.root.as_fd());
        }
        if self.last.as_ref().is_none_or(|(last, _)| *last != wanted) {
            self.last = None;
            let mut current: Option<OwnedFd> = None;
            for name in names {
                let from = current.as_ref().map_or(self.root.as_fd(), AsFd::as_fd);
                current = Some(step(from, name, make)?);
            }
            self.last = current.map(|current| (wanted, current));
        }
        Ok(self.last.as_ref().map_or(self.root.as_fd(), |(_, last)| last.as_fd()))
    }

    /// Forgets what was opened, since it may go.
    pub fn forget(&mut self) {
        self.last = None;
    }
}

fn step(from: BorrowedFd<'_>, name: &[u8], make: bool) -> Result<OwnedFd, PathError> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let named = OsStr::from_bytes(name);
    match openat(from, named, flags, Mode::empty()) {
        Err(Errno::ENOENT) if make => {
            match mkdirat(from, named, Mode::from_bits_truncate(0o777)) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(error.into()),
            }
            openat(from, named, flags, Mode::empty()).map_err(|error| refusal(error, name))
        }
        opened => opened.map_err(|error| refusal(error, name)),
    }
}

fn refusal(error: Errno, name: &[u8]) -> PathError {
    match error {
        Errno::ENOTDIR | Errno::ELOOP => PathError::not_directory(name),
        error => PathError::Kernel(error),
    }
}
