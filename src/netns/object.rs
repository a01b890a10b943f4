//! Objects of the file system: opened without being touched, made, and bound over one another.
//!
//! What is covered or shown is always the object that was opened and looked at, by its `/proc/self/fd` name, never a
//! path that somebody could exchange in between.

use std::fs::{self, OpenOptions, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MsFlags, mount};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};

use super::{Error, failed};

/// Whether a symbolic link in the last place of a path may lead on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    Followed,
    Refused,
}

/// An opened object (`O_PATH`).
#[derive(Debug)]
pub struct Object {
    fd: OwnedFd,
    /// Where it is, without links.
    pub path: PathBuf,
    status: FileStat,
}

impl Object {
    /// Opens `path` without touching what it names; `None` where it is not there, or out of the caller's own reach,
    /// which is then out of the workload's as well.
    pub fn open(path: &Path, links: Links) -> Result<Option<Self>, Error> {
        let mut flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        if links == Links::Refused {
            flags |= OFlag::O_NOFOLLOW;
        }
        let fd = match open(path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(
                Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::EINVAL,
            ) => {
                return Ok(None);
            }
            Err(errno) => return Err(failed(path, "open(O_PATH)")(errno)),
        };
        let status = fstat(&fd).map_err(failed(path, "fstat"))?;
        let real = fs::read_link(by_fd(&fd)).map_err(|source| Error::Hide {
            path: path.to_path_buf(),
            call: "readlink(/proc/self/fd)",
            source,
        })?;
        Ok(Some(Self { fd, path: real, status }))
    }

    /// Opens what must be there, since it was just made.
    pub fn open_made(path: &Path) -> Result<Self, Error> {
        Self::open(path, Links::Refused)?.ok_or_else(|| failed(path, "open(O_PATH)")(Errno::ENOENT))
    }

    pub fn by_fd(&self) -> PathBuf {
        by_fd(&self.fd)
    }

    pub fn kind(&self) -> SFlag {
        SFlag::from_bits_truncate(self.status.st_mode) & SFlag::S_IFMT
    }

    pub fn is_directory(&self) -> bool {
        self.kind() == SFlag::S_IFDIR
    }

    /// Number of the file system that it lies on.
    pub fn device(&self) -> u64 {
        self.status.st_dev
    }
}

fn by_fd(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Shows `what` in the place of `over`.
pub fn bind(what: &Object, over: &Object, flags: MsFlags) -> Result<(), Error> {
    mount(Some(&what.by_fd()), &over.by_fd(), None::<&str>, MsFlags::MS_BIND | flags, None::<&str>)
        .map_err(failed(&over.path, "mount(MS_BIND)"))
}

/// Makes `place` below `tree`, and the directories that lead to it, unless they are there.
///
/// # Errors
/// Also where a link is on the way: following it would make things outside of `tree`.
pub fn make_place(tree: &Path, place: &Path, directory: bool) -> Result<(), Error> {
    let mut path = tree.to_path_buf();
    let mut names = place.strip_prefix(tree).unwrap_or(place).components().peekable();
    while let Some(name) = names.next() {
        path.push(name);
        match fs::symlink_metadata(&path) {
            Ok(status) if status.is_symlink() && names.peek().is_some() => {
                return Err(failed(path, "mkdir")(Errno::ELOOP));
            }
            Ok(_) => {}
            Err(_) if names.peek().is_some() || directory => make_directory(&path, 0o755)?,
            Err(_) => make_file(&path, 0o000)?,
        }
    }
    Ok(())
}

/// Makes a directory of exactly this mode.
pub fn make_directory(path: &Path, mode: u32) -> Result<(), Error> {
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(|source| Error::Hide { path: path.to_path_buf(), call: "mkdir", source })
}

/// Makes an empty file of exactly this mode.
pub fn make_file(path: &Path, mode: u32) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|file| file.set_permissions(Permissions::from_mode(mode)))
        .map_err(|source| Error::Hide { path: path.to_path_buf(), call: "creat", source })
}
