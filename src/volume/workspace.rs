//! The first content of a workspace's volume: what the image has in the directory that the volume is about to cover.
//!
//! It is copied once. What has its name in the volume is whole: files grow in a directory of their own and are then linked
//! to their place, which replaces nothing, so that a copy that was killed is simply gone on with, and what somebody else put
//! there stays. The mark that says that all of it is there comes last, when everything is on the disk.

mod copy;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, fsync, syncfs, unlinkat};

/// Its presence says that the volume has its first content.
pub const MARK: &str = ".openshell-workspace-seeded";

/// Directory of files that are being copied.
const STAGING: &str = ".openshell-workspace-seeding";

/// In [`STAGING`]: there was nothing in the volume when its first copy began, so that whatever is there is ours.
const OURS: &str = "ours";

/// What a file system makes by itself (mke2fs(8)).
const LOST_AND_FOUND: &str = "lost+found";

/// Levels of directories: each takes two descriptors while it is copied, and a process has a thousand and some. Paths
/// cannot nest deeper than half of `PATH_MAX` in any case.
const DEPTH: usize = 200;

/// Notes that are told one by one.
const NOTES: usize = 32;

/// What was done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seeded {
    /// Whether an earlier copy had been finished, so that nothing was looked at.
    pub earlier: bool,
    /// Files copied.
    pub files: u64,
    /// Their bytes, holes not counted.
    pub bytes: u64,
    /// Directories and symbolic links made.
    pub others: u64,
    /// What was there already and stays as it is.
    pub kept: u64,
    /// What was left out or could not be kept, as sentences.
    pub notes: Vec<String>,
    /// How many more notes there would be.
    pub more_notes: u64,
}

impl fmt::Display for Seeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.earlier {
            return f.write_str("seeded already, and left alone");
        }
        let Self { files, bytes, others, kept, .. } = self;
        write!(
            f,
            "{files} files of {bytes} bytes and {others} directories and links copied, {kept} kept that were there"
        )
    }
}

impl Seeded {
    fn note(&mut self, note: String) {
        if self.notes.len() < NOTES {
            self.notes.push(note);
        } else {
            self.more_notes += 1;
        }
    }
}

/// Why the volume is not seeded. What was copied so far is whole and stays; another run goes on from there.
#[derive(Debug, thiserror::Error)]
pub enum WorkspaceError {
    /// The source is no directory.
    #[error("{}: expected the image's directory, found something else; name a directory", .0.display())]
    NoDirectory(PathBuf),
    /// One lies in the other.
    #[error("{} lies in {}: the copy would copy itself; mount the volume elsewhere", destination.display(), source_path.display())]
    Nested {
        /// The image's.
        source_path: PathBuf,
        /// The volume.
        destination: PathBuf,
    },
    /// It nests too deep.
    #[error("{}: directories nest deeper than {DEPTH} levels; remove them from the image", .0.display())]
    TooDeep(PathBuf),
    /// A step failed.
    #[error("{step} {}: {source}{}", path.display(), remedy(*source))]
    Step {
        /// What was being done.
        step: &'static str,
        /// To what.
        path: PathBuf,
        /// What the kernel answered.
        source: Errno,
    },
}

/// What a person can do about an error that volumes really give.
fn remedy(error: Errno) -> &'static str {
    match error {
        Errno::ENOSPC | Errno::EDQUOT => {
            "; the volume is full: raise workspace_default_storage_size, or put less into the image"
        }
        Errno::EROFS => "; mount the volume without readOnly in this container",
        Errno::EACCES | Errno::EPERM => "; this user may not: give the pod an fsGroup that the container runs with",
        _ => "",
    }
}

/// Copies what is in `source` into the volume at `destination`, unless that was done before.
///
/// Files, directories, symbolic links, hard links, holes, modes (without set-user-ID and set-group-ID bits, which would mean
/// another user), times and, where the volume has them, user attributes. A source that is not there is an empty one.
///
/// # Errors
/// [`WorkspaceError`].
pub fn seed(source: &Path, destination: &Path) -> Result<Seeded, WorkspaceError> {
    let step = |step, path: &Path| {
        let path = path.to_owned();
        move |source| WorkspaceError::Step { step, path, source }
    };
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let to = open(destination, directory, Mode::empty()).map_err(step("open the volume", destination))?;
    // Another pod's init container may be at it: it is waited for. Where a file system knows no such lock there is one pod.
    let to = match Flock::lock(File::from(to), FlockArg::LockExclusive) {
        Ok(locked) => locked,
        Err((file, _)) => return seed_locked(source, destination, &file.into()),
    };
    let held = to.try_clone().map_err(|error| step("open the volume", destination)(errno(&error)))?;
    seed_locked(source, destination, &held.into())
}

fn seed_locked(source: &Path, destination: &Path, to: &OwnedFd) -> Result<Seeded, WorkspaceError> {
    let step = |step, path: &Path| {
        let path = path.to_owned();
        move |source| WorkspaceError::Step { step, path, source }
    };
    if exists(to, MARK) {
        return Ok(Seeded { earlier: true, ..Seeded::default() });
    }
    let volume = identity(&fstat(to).map_err(step("look at", destination))?);
    let staging = take_staging(destination, to)?;
    let ours = declare_ours(destination, to, &staging)?;
    let mut copier = Copier {
        source,
        destination,
        staging: &staging,
        root: to,
        ours,
        volume,
        links: HashMap::new(),
        serial: 0,
        seeded: Seeded::default(),
    };
    let directory = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match open(source, directory, Mode::empty()) {
        Ok(from) => {
            refuse_nested(source, destination, &from)?;
            copier.directory(&from, to, Path::new(""), 0)?;
        }
        Err(Errno::ENOENT) => {
            copier.seeded.note(format!("{} is not in the image: the workspace begins empty", source.display()))
        }
        Err(Errno::ENOTDIR) => return Err(WorkspaceError::NoDirectory(source.to_owned())),
        Err(error) => return Err(step("open", source)(error)),
    }
    let seeded = copier.seeded;
    // All of it is on the disk before the mark is.
    syncfs(to).map_err(step("bring to the disk", destination))?;
    mark(destination, to)?;
    clear_staging(destination, to, &staging)?;
    Ok(seeded)
}

fn exists(directory: &OwnedFd, name: impl AsRef<OsStr>) -> bool {
    fstatat(directory, name.as_ref(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
}

/// Device and inode.
fn identity(of: &FileStat) -> (u64, u64) {
    (of.st_dev, of.st_ino)
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

/// A volume inside of what is copied would grow for ever.
fn refuse_nested(source: &Path, destination: &Path, from: &OwnedFd) -> Result<(), WorkspaceError> {
    let Ok(top) = fstat(from) else { return Ok(()) };
    let real = std::fs::canonicalize(destination).unwrap_or_else(|_| destination.to_owned());
    let inside =
        real.ancestors().any(|above| nix::sys::stat::stat(above).is_ok_and(|of| identity(&of) == identity(&top)));
    if inside {
        return Err(WorkspaceError::Nested { source_path: source.to_owned(), destination: destination.to_owned() });
    }
    Ok(())
}

/// The directory of unfinished files, emptied of what a killed copy left.
fn take_staging(destination: &Path, to: &OwnedFd) -> Result<OwnedFd, WorkspaceError> {
    let path = destination.join(STAGING);
    let step = |step| {
        let path = path.clone();
        move |source| WorkspaceError::Step { step, path, source }
    };
    match mkdirat(to, STAGING, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(error) => return Err(step("make the directory")(error)),
    }
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let staging = openat(to, STAGING, flags, Mode::empty()).map_err(step("open the directory"))?;
    for name in names(&staging).map_err(step("read the directory"))? {
        if name != OURS {
            unlinkat(&staging, name.as_os_str(), UnlinkatFlags::NoRemoveDir).map_err(step("empty the directory"))?;
        }
    }
    Ok(staging)
}

/// Whether the volume was empty when its first copy began; remembered for the copies that go on with it.
fn declare_ours(destination: &Path, to: &OwnedFd, staging: &OwnedFd) -> Result<bool, WorkspaceError> {
    if exists(staging, OURS) {
        return Ok(true);
    }
    let step = |step| move |source| WorkspaceError::Step { step, path: destination.to_owned(), source };
    let found = names(to).map_err(step("read the directory"))?;
    let empty = found.iter().all(|name| name == STAGING || name == LOST_AND_FOUND);
    if empty {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_CLOEXEC;
        openat(staging, OURS, flags, Mode::S_IRUSR).map_err(step("write in"))?;
    }
    Ok(empty)
}

fn mark(destination: &Path, to: &OwnedFd) -> Result<(), WorkspaceError> {
    let step = |step| move |source| WorkspaceError::Step { step, path: destination.join(MARK), source };
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mode = Mode::S_IRUSR | Mode::S_IRGRP | Mode::S_IROTH;
    let mut file = File::from(openat(to, MARK, flags, mode).map_err(step("write"))?);
    file.write_all(
        b"The workspace has its first content. Remove this file to have it copied again where it is missing.\n",
    )
    .and_then(|()| file.sync_all())
    .map_err(|error| step("write")(errno(&error)))?;
    fsync(to).map_err(step("bring to the disk the name of"))
}

fn clear_staging(destination: &Path, to: &OwnedFd, staging: &OwnedFd) -> Result<(), WorkspaceError> {
    let step = |source| WorkspaceError::Step { step: "remove", path: destination.join(STAGING), source };
    for name in names(staging).map_err(step)? {
        unlinkat(staging, name.as_os_str(), UnlinkatFlags::NoRemoveDir).map_err(step)?;
    }
    unlinkat(to, STAGING, UnlinkatFlags::RemoveDir).map_err(step)
}

/// What is in a directory, read from its beginning.
fn names(directory: &OwnedFd) -> nix::Result<Vec<std::ffi::OsString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut listing = Dir::from_fd(openat(directory, ".", flags, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in listing.iter() {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name != "." && name != ".." {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// One copy on its way.
struct Copier<'a> {
    source: &'a Path,
    destination: &'a Path,
    staging: &'a OwnedFd,
    root: &'a OwnedFd,
    /// See [`OURS`].
    ours: bool,
    volume: (u64, u64),
    /// Where files with several names were put, by device and inode of the source.
    links: HashMap<(u64, u64), PathBuf>,
    serial: u64,
    seeded: Seeded,
}

#[cfg(test)]
mod tests;
