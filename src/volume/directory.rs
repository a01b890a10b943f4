//! Directories that one container prepares and others use.
//!
//! The role that does so is root with CHOWN and nothing else. Without DAC_OVERRIDE it cannot open a directory that it
//! gave away with a narrow mode, and without FOWNER it cannot change that mode, so it takes it back before it does
//! anything; without FSETID it cannot set the setgid bit for a group that is not its own, so the mode comes before the
//! owner. While a directory is held, it is
//! closed to everybody else.

use std::ffi::{CString, OsStr};
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmod, fchmodat, fstat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, getegid, geteuid, unlinkat};

use crate::contract::Ids;

/// Nobody but the holder.
const HELD: Mode = Mode::S_IRWXU;

/// Permission bits, with setuid, setgid and sticky.
const MODE_BITS: u32 = 0o7777;

/// Why a directory is not as it has to be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path that names no directory one could make.
    #[error("{}: expected an absolute path that ends in a name", .0.display())]
    Path(PathBuf),
    /// Something else is there.
    #[error("{}: expected a directory, found a link or a file: somebody else made it; remove it", .0.display())]
    NotDirectory(PathBuf),
    /// Somebody else's.
    #[error(
        "{}: owned by uid {found}, expected {expected}: somebody else made it; remove it, or mount a volume of the pod's \
         own there", path.display()
    )]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Whose it is.
        found: u32,
        /// Whose it may be.
        expected: String,
    },
    /// The kernel refused a step.
    #[error("{}: {call}: {source}; {remedy}", path.display())]
    Call {
        /// Which.
        path: PathBuf,
        /// The system call.
        call: &'static str,
        /// What it answered.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The file system did not keep what it was told.
    #[error("{}: {what} is {found:o}, expected {expected:o}: this file system does not keep owners and modes", path.display())]
    NotKept {
        /// Which.
        path: PathBuf,
        /// `mode`, `uid` or `gid`.
        what: &'static str,
        /// What it is.
        found: u32,
        /// What it should be.
        expected: u32,
    },
}

/// A directory that belongs to this process for now, and to nobody else.
#[derive(Debug)]
pub struct Held {
    path: PathBuf,
    fd: OwnedFd,
}

impl Held {
    /// Makes a directory, or takes it back from `former`, to whom an earlier run may have given it.
    ///
    /// # Errors
    /// It is no directory, or somebody else's, or the kernel refused.
    pub fn take(path: &Path, former: u32) -> Result<Self, Error> {
        let (Some(parent), Some(name), true) = (path.parent(), path.file_name(), path.is_absolute()) else {
            return Err(Error::Path(path.to_owned()));
        };
        let call = |call, errno: Errno| refused(parent.to_owned(), call, errno);
        DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(parent)
            .map_err(|error| call("mkdir", Errno::from_raw(error.raw_os_error().unwrap_or_default())))?;
        let parent_fd = open(parent, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|errno| call("open", errno))?;
        take_at(&parent_fd, name, path.to_owned(), former)
    }

    /// The same for a directory in this one.
    ///
    /// # Errors
    /// See [`Held::take`].
    pub fn take_below(&self, name: &str, former: u32) -> Result<Self, Error> {
        take_at(&self.fd, OsStr::new(name), self.path.join(name), former)
    }

    /// Writes a new file and gives it away.
    ///
    /// # Errors
    /// The kernel refused, the file being there already included.
    pub fn write(&self, name: &str, content: &[u8], owner: Ids, mode: u32) -> Result<(), Error> {
        let call = |call, errno| refused(self.path.join(name), call, errno);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = openat(&self.fd, name, flags, Mode::S_IRUSR).map_err(|errno| call("open", errno))?;
        let mut file = File::from(fd);
        file.write_all(content)
            .map_err(|error| call("write", Errno::from_raw(error.raw_os_error().unwrap_or_default())))?;
        give(&file, &self.path.join(name), owner, mode)
    }

    /// Removes a directory in this one with the files in it, where there is one.
    ///
    /// # Errors
    /// It is no directory or somebody else's, or holds directories, which no run of this made.
    pub fn remove(&self, name: &str, former: u32) -> Result<(), Error> {
        let call = |path, call| move |errno| refused(path, call, errno);
        let path = self.path.join(name);
        match nix::sys::stat::fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(()),
            found => found.map_err(call(path.clone(), "stat"))?,
        };
        let below = self.take_below(name, former)?;
        for file in below.files()? {
            unlinkat(&below.fd, file.as_c_str(), UnlinkatFlags::NoRemoveDir)
                .map_err(call(path.join(OsStr::from_bytes(file.to_bytes())), "unlink"))?;
        }
        unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir).map_err(call(path, "rmdir"))
    }

    /// Renames what is in this directory.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        renameat(&self.fd, from, &self.fd, to).map_err(|errno| refused(self.path.join(to), "rename", errno))
    }

    /// Gives the directory away.
    ///
    /// # Errors
    /// The kernel refused, or the file system did not keep it.
    pub fn give(self, owner: Ids, mode: u32) -> Result<(), Error> {
        give(&self.fd, &self.path, owner, mode)
    }

    fn files(&self) -> Result<Vec<CString>, Error> {
        let call = |errno| refused(self.path.clone(), "readdir", errno);
        let mut listing = self.fd.try_clone().map_err(|_| Errno::EMFILE).and_then(Dir::from_fd).map_err(call)?;
        let mut names = Vec::new();
        for entry in listing.iter() {
            let entry = entry.map_err(call)?;
            if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
                names.push(entry.file_name().to_owned());
            }
        }
        Ok(names)
    }
}

fn take_at(parent: &impl AsFd, name: &OsStr, path: PathBuf, former: u32) -> Result<Held, Error> {
    let call = |call, errno| refused(path.clone(), call, errno);
    match mkdirat(parent, name, HELD) {
        Err(Errno::EEXIST) => {}
        made => made.map_err(|errno| call("mkdir", errno))?,
    }
    // A descriptor of this kind needs no permission on the directory itself, which may be somebody's 0700.
    let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let found = match openat(parent, name, flags, Mode::empty()) {
        Err(Errno::ENOTDIR | Errno::ELOOP) => return Err(Error::NotDirectory(path)),
        found => found.map_err(|errno| call("open", errno))?,
    };
    let (own, own_group) = (geteuid(), getegid());
    let uid = fstat(&found).map_err(|errno| call("stat", errno))?.st_uid;
    if uid != own.as_raw() && uid != former {
        let expected = if former == own.as_raw() { former.to_string() } else { format!("{own} or {former}") };
        return Err(Error::Foreign { path, found: uid, expected });
    }
    fchownat(&found, "", Some(own), Some(own_group), AtFlags::AT_EMPTY_PATH).map_err(|errno| call("chown", errno))?;
    // By name, since a descriptor of this kind cannot change modes; nobody else can have changed the name meanwhile who
    // is not the owner of what is above it.
    fchmodat(parent, name, HELD, FchmodatFlags::FollowSymlink).map_err(|errno| call("chmod", errno))?;
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let fd = openat(&found, ".", flags, Mode::empty()).map_err(|errno| call("open", errno))?;
    Ok(Held { path, fd })
}

fn give(fd: &impl AsFd, path: &Path, owner: Ids, mode: u32) -> Result<(), Error> {
    let call = |call, errno| refused(path.to_owned(), call, errno);
    fchmod(fd, Mode::from_bits_truncate(mode)).map_err(|errno| call("chmod", errno))?;
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    fchown(fd, Some(uid), Some(gid)).map_err(|errno| call("chown", errno))?;
    let kept = fstat(fd).map_err(|errno| call("stat", errno))?;
    let checks =
        [("mode", kept.st_mode & MODE_BITS, mode), ("uid", kept.st_uid, owner.uid), ("gid", kept.st_gid, owner.gid)];
    match checks.into_iter().find(|(_, found, expected)| found != expected) {
        Some((what, found, expected)) => Err(Error::NotKept { path: path.to_owned(), what, found, expected }),
        None => Ok(()),
    }
}

fn refused(path: PathBuf, call: &'static str, errno: Errno) -> Error {
    let remedy = match errno {
        Errno::EPERM | Errno::EACCES => "it takes root with the capability CHOWN",
        Errno::EROFS => "mount the volume writable",
        Errno::ENOSPC | Errno::EDQUOT => "the volume is full",
        _ => "it must be a volume of the pod's own, or what an earlier run left there",
    };
    Error::Call { path, call, source: errno.into(), remedy }
}
