//! Copying one thing after the other, each by the descriptors of the directories that it is in: nothing that has been put
//! into the volume, a symbolic link least of all, can lead the copy out of it.

use std::ffi::{CStr, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, UtimensatFlags, fchmod, fstat, fstatat, futimens, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, Whence, linkat, lseek, symlinkat, unlinkat};

use super::{Copier, DEPTH, LOST_AND_FOUND, MARK, STAGING, WorkspaceError, errno, exists, identity, names};
use crate::sys::xattr;

/// Permission bits and the sticky bit. What sets another user or group would set ours instead of the image's.
const KEPT_BITS: u32 = 0o1777;

/// Attributes that belong to users; those of others are for the image's owners, or take privilege (xattr(7)).
const USER_ATTRIBUTES: &[u8] = b"user.";

/// A new file is ours alone until it is whole.
const UNFINISHED: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// One thing of a directory.
#[derive(Clone, Copy)]
struct Entry<'a> {
    /// The directory that it is in.
    from: &'a OwnedFd,
    /// The one that it is to be in.
    to: &'a OwnedFd,
    name: &'a OsStr,
    /// Its path from the top of either.
    path: &'a Path,
}

impl Copier<'_> {
    fn failed(&self, step: &'static str, relative: &Path) -> impl Fn(Errno) -> WorkspaceError + use<> {
        let path = self.destination.join(relative);
        move |source| WorkspaceError::Step { step, path: path.clone(), source }
    }

    /// Copies what is in `from` into `to`, which lies at `relative`.
    pub(super) fn directory(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        relative: &Path,
        depth: usize,
    ) -> Result<(), WorkspaceError> {
        if depth > DEPTH {
            return Err(WorkspaceError::TooDeep(self.source.join(relative)));
        }
        for name in names(from).map_err(self.failed("read the directory", relative))? {
            if depth == 0 && [MARK, STAGING, LOST_AND_FOUND].iter().any(|own| name == *own) {
                continue;
            }
            let path = relative.join(&name);
            let entry = Entry { from, to, name: &name, path: &path };
            // It may be gone by now, or be somebody's whom we may not look at.
            let looked = fstatat(from, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
            let Some(of) = self.read(&path, looked) else { continue };
            match SFlag::from_bits_truncate(of.st_mode) & SFlag::S_IFMT {
                SFlag::S_IFDIR if identity(&of) == self.volume => self.leave_out(&path, "it is the volume itself"),
                SFlag::S_IFDIR => self.subdirectory(&entry, depth)?,
                SFlag::S_IFREG => self.file(&entry, &of)?,
                SFlag::S_IFLNK => self.symbolic_link(&entry, &of)?,
                SFlag::S_IFIFO => self.leave_out(&path, "it is a named pipe"),
                SFlag::S_IFSOCK => self.leave_out(&path, "it is a socket"),
                _ => self.leave_out(&path, "it is a device"),
            }
        }
        Ok(())
    }

    fn leave_out(&mut self, path: &Path, why: &str) {
        self.seeded.note(format!("{} is left out: {why}", self.source.join(path).display()));
    }

    fn keep(&mut self, path: &Path, what: &str) {
        self.seeded.kept += 1;
        self.seeded.note(format!("{} stays as it is: {what}", self.destination.join(path).display()));
    }

    /// What a call on the source has returned; an error leaves the entry out.
    fn read<T>(&mut self, path: &Path, outcome: nix::Result<T>) -> Option<T> {
        outcome.map_err(|error| self.leave_out(path, &format!("{error}"))).ok()
    }

    /// What somebody has closed to us is left as they want it.
    fn keep_closed(&mut self, path: &Path) {
        self.keep(path, "the directory that it would lie in is not to be written");
    }

    fn subdirectory(&mut self, entry: &Entry<'_>, depth: usize) -> Result<(), WorkspaceError> {
        let Entry { from, to, name, path } = *entry;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let Some(below) = self.read(path, openat(from, name, flags, Mode::empty())) else { return Ok(()) };
        let made = match mkdirat(to, name, Mode::S_IRWXU) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(Errno::EACCES) if !self.ours && depth > 0 => {
                self.keep_closed(path);
                return Ok(());
            }
            Err(error) => return Err(self.failed("make the directory", path)(error)),
        };
        let there = match openat(to, name, flags, Mode::empty()) {
            Ok(there) => there,
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                self.keep(path, "it is no directory, as it is in the image");
                return Ok(());
            }
            Err(error) if made => return Err(self.failed("open the directory", path)(error)),
            Err(error) => {
                self.keep(path, &format!("{error}"));
                return Ok(());
            }
        };
        self.seeded.others += u64::from(made);
        self.directory(&below, &there, path, depth + 1)?;
        if made || self.ours {
            let of = fstat(&below).map_err(self.failed("look at the source of", path))?;
            // A volume's directories pass their group on where they have this bit, and stay so.
            let own = fstat(&there).map_err(self.failed("look at", path))?.st_mode & Mode::S_ISGID.bits();
            self.attributes(&below, &there, &of, own, path);
        }
        Ok(())
    }

    /// Gives `to` mode, times and attributes of `from`. A file system that does not keep them is no reason to stop.
    fn attributes(&mut self, from: &OwnedFd, to: &OwnedFd, of: &FileStat, more: u32, path: &Path) {
        let mode = Mode::from_bits_truncate(of.st_mode & KEPT_BITS | more);
        let (accessed, modified) = times(of);
        let xattrs = copy_user_attributes(from, to);
        let outcome = fchmod(to, mode).and_then(|()| futimens(to, &accessed, &modified)).map_err(io::Error::from);
        for (what, outcome) in [("its attributes", xattrs), ("its mode and times", outcome)] {
            if let Err(error) = outcome {
                self.seeded
                    .note(format!("{}: {what} could not be kept: {error}", self.destination.join(path).display()));
            }
        }
    }

    fn symbolic_link(&mut self, entry: &Entry<'_>, of: &FileStat) -> Result<(), WorkspaceError> {
        let Entry { from, to, name, path } = *entry;
        let Some(target) = self.read(path, readlinkat(from, name)) else { return Ok(()) };
        match symlinkat(target.as_os_str(), to, name) {
            Ok(()) => self.seeded.others += 1,
            Err(Errno::EEXIST) => {
                self.seeded.kept += 1;
                return Ok(());
            }
            Err(Errno::EACCES) if !self.ours => {
                self.keep_closed(path);
                return Ok(());
            }
            Err(error) => return Err(self.failed("make the link", path)(error)),
        }
        let (accessed, modified) = times(of);
        // When a link was made is of no use to anyone who could be told.
        let _ = utimensat(to, name, &accessed, &modified, UtimensatFlags::NoFollowSymlink);
        Ok(())
    }

    fn file(&mut self, entry: &Entry<'_>, of: &FileStat) -> Result<(), WorkspaceError> {
        let Entry { from, to, name, path } = *entry;
        let several = (of.st_nlink > 1).then(|| identity(of));
        if fstatat(to, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok() {
            self.seeded.kept += 1;
            // What somebody else put there gets no other name of ours.
            if let (Some(several), true) = (several, self.ours) {
                self.links.entry(several).or_insert_with(|| path.to_owned());
            }
            return Ok(());
        }
        if let Some(first) = several.and_then(|several| self.links.get(&several).cloned())
            && self.link_again(&first, to, name)
        {
            self.seeded.others += 1;
            return Ok(());
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let Some(source) = self.read(path, openat(from, name, flags, Mode::empty())) else { return Ok(()) };
        let mut source = File::from(source);
        self.serial += 1;
        let unfinished = OsString::from(format!("{}", self.serial));
        let failed = self.failed("write", path);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut copy = File::from(openat(self.staging, unfinished.as_os_str(), flags, UNFINISHED).map_err(&failed)?);
        let bytes = fill(&mut source, &mut copy).map_err(|error| failed(errno(&error)))?;
        let (source, copy) = (OwnedFd::from(source), OwnedFd::from(copy));
        self.attributes(&source, &copy, of, 0, path);
        drop((source, copy));
        if self.publish(&unfinished, entry)? {
            self.seeded.files += 1;
            self.seeded.bytes += bytes;
            if let Some(several) = several {
                self.links.insert(several, path.to_owned());
            }
        }
        Ok(())
    }

    /// Gives a file that was copied before another name; where that cannot be had, the file is copied once more.
    fn link_again(&self, first: &Path, to: &OwnedFd, name: &OsStr) -> bool {
        let Some((directory, first)) = self.reach(first) else { return false };
        linkat(&directory, first.as_os_str(), to, name, AtFlags::empty()).is_ok()
    }

    /// The directory of a path in the volume, entered step by step without following anything.
    fn reach(&self, path: &Path) -> Option<(OwnedFd, OsString)> {
        let mut directory = self.root.try_clone().ok()?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        for step in path.parent()?.components() {
            directory = openat(&directory, step.as_os_str(), flags, Mode::empty()).ok()?;
        }
        Some((directory, path.file_name()?.to_owned()))
    }

    /// Puts a whole file in its place, which nobody has taken meanwhile, and says whether it is there now.
    fn publish(&mut self, unfinished: &OsStr, entry: &Entry<'_>) -> Result<bool, WorkspaceError> {
        let Entry { to, name, path, .. } = *entry;
        let placed = match linkat(self.staging, unfinished, to, name, AtFlags::empty()) {
            Ok(()) => true,
            Err(Errno::EEXIST) => {
                self.seeded.kept += 1;
                false
            }
            // File systems without hard links. Nobody else is there to take the name in between.
            Err(Errno::EPERM | Errno::EOPNOTSUPP | Errno::EMLINK) if !exists(to, name) => {
                renameat(self.staging, unfinished, to, name).map_err(self.failed("put in its place", path))?;
                return Ok(true);
            }
            Err(Errno::EACCES) if !self.ours => {
                self.keep_closed(path);
                false
            }
            Err(error) => return Err(self.failed("put in its place", path)(error)),
        };
        unlinkat(self.staging, unfinished, UnlinkatFlags::NoRemoveDir)
            .map_err(self.failed("remove the temporary name of", path))?;
        Ok(placed)
    }
}

fn times(of: &FileStat) -> (TimeSpec, TimeSpec) {
    (TimeSpec::new(of.st_atime, of.st_atime_nsec), TimeSpec::new(of.st_mtime, of.st_mtime_nsec))
}

/// Copies the data of a file and leaves its holes (lseek(2), `SEEK_DATA`); returns the bytes that were data.
fn fill(source: &mut File, copy: &mut File) -> io::Result<u64> {
    let length = source.metadata()?.len();
    let (mut at, mut copied) = (0, 0);
    while at < length {
        let begin = match lseek(&*source, offset(at)?, Whence::SeekData) {
            Ok(begin) => u64::try_from(begin).unwrap_or(at),
            // Nothing but a hole is left.
            Err(Errno::ENXIO) => break,
            // The file system does not say.
            Err(_) => at,
        };
        let end = match lseek(&*source, offset(begin)?, Whence::SeekHole) {
            Ok(end) => u64::try_from(end).unwrap_or(length),
            Err(_) => length,
        };
        source.seek(SeekFrom::Start(begin))?;
        copy.seek(SeekFrom::Start(begin))?;
        let written = io::copy(&mut (&*source).take(end.saturating_sub(begin)), copy)?;
        copied += written;
        // It has become shorter meanwhile.
        if written == 0 {
            break;
        }
        at = begin + written;
    }
    copy.set_len(length)?;
    Ok(copied)
}

fn offset(at: u64) -> io::Result<i64> {
    i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))
}

fn copy_user_attributes(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    for name in xattr::list(from)? {
        if name.to_bytes().starts_with(USER_ATTRIBUTES)
            && let Some(value) = xattr::get(from, &name)?
        {
            set_where_possible(to, &name, &value)?;
        }
    }
    Ok(())
}

/// A volume without such attributes has none, and nothing is lost that a program could rely on.
fn set_where_possible(to: &OwnedFd, name: &CStr, value: &[u8]) -> io::Result<()> {
    match xattr::set(to, name, value) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => Ok(()),
        outcome => outcome,
    }
}
