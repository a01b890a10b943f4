//! Files that come under their final name only when they are whole.
//!
//! A file is written without a name in the file system where it will lie (open(2), `O_TMPFILE`), and named when it is whole:
//! by linkat(2) where nothing is there, else under a temporary name in the same directory, from which one rename(2) puts it
//! into its place, atomically and within what Landlock grants for that directory. Whatever ends before leaves nothing, be it
//! SIGKILL. Where the file system has no files without names, or somebody asks for a path in the meantime, it lies under the
//! temporary name from then on: [`Staged`] removes that, and only SIGKILL and a crash of the machine leave it behind,
//! recognisable by [`PREFIX`].

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FallocateFlags, OFlag, copy_file_range, fallocate, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat};
use nix::sys::uio::{pread, pwrite};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, ftruncate, linkat, unlinkat};

/// How a temporary name begins: hidden, and telling whose it is. The final name is no part of it, for that may be as
/// long as a name can be.
pub(super) const PREFIX: &str = ".openshell-partial-";

/// By which linkat(2) finds a file without a name; by the descriptor itself it takes a capability.
const OWN_DESCRIPTORS: &str = "/proc/self/fd";

/// Whether that is there.
static CAN_BE_NAMED: OnceLock<bool> = OnceLock::new();

/// Symbolic links followed to the place of a file: as many as the kernel follows (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Attempts at a temporary name. Names hold the process, the time and a counter, so that a second attempt is already
/// somebody's play.
const MAX_ATTEMPTS: usize = 16;

/// Bytes that are moved at once where the kernel cannot copy between two files by itself.
const COPY_CHUNK: usize = 128 << 10;

/// Where a name lies, or would lie: a directory, and what is in it under the name.
#[derive(Debug)]
pub(super) struct Place {
    /// The directory, opened with `O_PATH`.
    pub directory: OwnedFd,
    /// The name in it.
    pub name: OsString,
    /// What is there.
    pub found: Option<FileStat>,
}

impl Place {
    /// The place of what a path names itself, be it a link.
    pub fn of(path: &Path) -> Result<Self, Errno> {
        Self::below(AT_FDCWD, path.as_os_str())
    }

    fn below(from: BorrowedFd<'_>, path: &OsStr) -> Result<Self, Errno> {
        let (parent, name) = split(path)?;
        let directory = open_directory(from, parent)?;
        let found = match fstatat(&directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => Some(found),
            Err(Errno::ENOENT) => None,
            Err(error) => return Err(error),
        };
        Ok(Self { name: name.to_owned(), directory, found })
    }

    /// The place where open(2) with `O_CREAT` would arrive, through symbolic links, dangling ones too.
    pub fn find(path: &Path) -> Result<Self, Errno> {
        let mut place = Self::of(path)?;
        for _ in 0..MAX_LINKS {
            if place.found.as_ref().is_none_or(|found| kind(found) != SFlag::S_IFLNK) {
                return Ok(place);
            }
            let target = readlinkat(&place.directory, place.name.as_os_str())?;
            place = Self::below(place.directory.as_fd(), &target)?;
        }
        Err(Errno::ELOOP)
    }
}

/// Directory and last name of a path; a path that ends otherwise names a directory.
fn split(path: &OsStr) -> Result<(&OsStr, &OsStr), Errno> {
    let bytes = path.as_bytes();
    let (parent, name) = match bytes.iter().rposition(|byte| *byte == b'/') {
        Some(0) => (&b"/"[..], &bytes[1..]),
        Some(slash) => (&bytes[..slash], &bytes[slash + 1..]),
        None => (&b"."[..], bytes),
    };
    match name {
        b"" if bytes.is_empty() => Err(Errno::ENOENT),
        b"" | b"." | b".." => Err(Errno::EISDIR),
        name => Ok((OsStr::from_bytes(parent), OsStr::from_bytes(name))),
    }
}

/// Opens a directory as a place to name files in; no right to list it is needed.
pub(super) fn open_directory(from: BorrowedFd<'_>, path: &OsStr) -> Result<OwnedFd, Errno> {
    openat(from, path, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
}

/// The type of a file.
pub(super) fn kind(found: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(found.st_mode & SFlag::S_IFMT.bits())
}

/// Whether two descriptions are of one file.
pub(super) fn same(one: &FileStat, other: &FileStat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// A file on its way to a place.
#[derive(Debug)]
pub(super) struct Staged {
    directory: OwnedFd,
    name: OsString,
    /// The name under which it lies for now, where it has one.
    temporary: OnceCell<OsString>,
    file: File,
    in_place: bool,
}

impl Staged {
    /// Begins a new file. `mode` is limited by the umask, as in open(2).
    pub fn begin(directory: OwnedFd, name: OsString, mode: Mode) -> Result<Self, Errno> {
        // What is wrong with the directory, the other way tells.
        let flags = OFlag::O_RDWR | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
        if *CAN_BE_NAMED.get_or_init(|| Path::new(OWN_DESCRIPTORS).is_dir())
            && let Ok(fd) = openat(&directory, ".", flags, mode)
        {
            return Ok(Self { directory, name, temporary: OnceCell::new(), file: File::from(fd), in_place: false });
        }
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let (temporary, fd) = under_temporary_name(|temporary| openat(&directory, temporary, flags, mode))?;
        Ok(Self { directory, name, temporary: temporary.into(), file: File::from(fd), in_place: false })
    }

    /// Begins the successor of a file that is there, with its mode and owner (extended attributes, and with them access
    /// control lists, stay behind); `None` where it cannot be replaced without
    /// somebody noticing: other names of the same file would part from it, its owner cannot be kept, or nothing may be
    /// made in its directory.
    pub fn succeed(place: &Place, old: &FileStat) -> Result<Option<Self>, Errno> {
        if kind(old) != SFlag::S_IFREG || old.st_nlink != 1 {
            return Ok(None);
        }
        let directory = place.directory.try_clone().map_err(|error| from_io(&error))?;
        let staged = match Self::begin(directory, place.name.clone(), Mode::S_IRUSR | Mode::S_IWUSR) {
            Err(Errno::EACCES | Errno::EPERM | Errno::EROFS) => return Ok(None),
            staged => staged?,
        };
        let new = fstat(&staged.file)?;
        let owner = (new.st_uid != old.st_uid).then_some(Uid::from_raw(old.st_uid));
        let group = (new.st_gid != old.st_gid).then_some(Gid::from_raw(old.st_gid));
        let kept = (owner.is_none() && group.is_none() || fchown(&staged.file, owner, group).is_ok())
            && fchmod(&staged.file, Mode::from_bits_truncate(old.st_mode)).is_ok();
        Ok(kept.then_some(staged))
    }

    /// What is written so far.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The directory and the name under which it will lie.
    pub fn place(&self) -> (BorrowedFd<'_>, &OsStr) {
        (self.directory.as_fd(), &self.name)
    }

    /// The name under which it lies, from now on in any case.
    pub fn temporary(&self) -> Result<&OsStr, Errno> {
        if self.temporary.get().is_none() {
            let (name, ()) = under_temporary_name(|name| self.link(name))?;
            let _ = self.temporary.set(name);
        }
        self.temporary.get().map(OsString::as_os_str).ok_or(Errno::ENOENT)
    }

    /// Gives it a name that nothing else has.
    fn link(&self, name: &OsStr) -> Result<(), Errno> {
        let own = format!("{OWN_DESCRIPTORS}/{}", self.file.as_raw_fd());
        linkat(AT_FDCWD, own.as_str(), &self.directory, name, AtFlags::AT_SYMLINK_FOLLOW)
    }

    fn rename(&self) -> Result<(), Errno> {
        renameat(&self.directory, self.temporary()?, &self.directory, self.name.as_os_str())
    }

    /// Puts the file in its place.
    pub fn put(mut self) -> Result<(), Errno> {
        if self.temporary.get().is_none() && self.link(&self.name).is_ok() {
            self.in_place = true;
            return Ok(());
        }
        match self.rename() {
            Ok(()) => {
                self.in_place = true;
                Ok(())
            }
            // A file that is itself a mount point, or one that may be written but not replaced. What is complete is then
            // written over it: no longer in one step, but the client is no longer needed for it.
            Err(refusal @ (Errno::EBUSY | Errno::EXDEV | Errno::EACCES | Errno::EPERM)) => {
                self.write_over().map_err(|error| match error {
                    Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => error,
                    _ => refusal,
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Writes the content over what is in the place, where there is room for it.
    fn write_over(&self) -> Result<(), Errno> {
        // Whoever put a FIFO there is not waited for (fifo(7)), and no device is written to.
        let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let over = File::from(openat(&self.directory, self.name.as_os_str(), flags, Mode::empty())?);
        if kind(&fstat(&over)?) != SFlag::S_IFREG {
            return Err(Errno::EPERM);
        }
        let size = fstat(&self.file)?.st_size;
        if size > 0 {
            match fallocate(&over, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, size) {
                // File systems that cannot promise room are tried.
                Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {}
                Err(error) => return Err(error),
            }
        }
        copy(&self.file, 0, &over, 0, u64::try_from(size).unwrap_or(0))?;
        ftruncate(&over, size)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.get().filter(|_| !self.in_place) {
            // Nobody is left to be told, and the name says what it is.
            let _ = unlinkat(&self.directory, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Makes something under a temporary name that nothing else has; `make` answers `EEXIST` where something has.
pub(super) fn under_temporary_name<T>(make: impl Fn(&OsStr) -> Result<T, Errno>) -> Result<(OsString, T), Errno> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    for _ in 0..MAX_ATTEMPTS {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos());
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = OsString::from_vec(format!("{PREFIX}{:x}-{now:x}-{count:x}", std::process::id()).into_bytes());
        match make(&name) {
            Err(Errno::EEXIST) => {}
            made => return made.map(|made| (name, made)),
        }
    }
    Err(Errno::EEXIST)
}

/// Copies bytes between two files and says how many there were; fewer than asked for where the source ends.
pub(super) fn copy(
    from: &impl AsFd,
    mut from_offset: u64,
    to: &impl AsFd,
    mut to_offset: u64,
    length: u64,
) -> Result<u64, Errno> {
    let mut done = 0;
    let mut by_kernel = true;
    let mut chunk = Vec::new();
    while done < length {
        let want = usize::try_from(length - done).unwrap_or(usize::MAX).min(1 << 30);
        let (mut read_at, mut write_at) = (offset(from_offset)?, offset(to_offset)?);
        let moved = if by_kernel {
            match copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), want) {
                // File systems and kernels that cannot, and ranges of one file that overlap; 0 also from files of /proc.
                Err(Errno::EXDEV | Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EPERM) | Ok(0) => {
                    by_kernel = false;
                    continue;
                }
                moved => moved?,
            }
        } else {
            chunk.resize(COPY_CHUNK, 0);
            let count = pread(from, &mut chunk[..want.min(COPY_CHUNK)], read_at)?;
            if count == 0 {
                break;
            }
            write_all_at(to, &chunk[..count], to_offset)?;
            count
        };
        let moved = moved as u64;
        (done, from_offset, to_offset) = (done + moved, from_offset + moved, to_offset + moved);
    }
    Ok(done)
}

/// Writes everything at an offset.
pub(super) fn write_all_at(file: &impl AsFd, mut bytes: &[u8], mut at: u64) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match pwrite(file, bytes, offset(at)?) {
            Ok(0) => return Err(Errno::EIO),
            Ok(count) => (bytes, at) = (&bytes[count..], at + count as u64),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// An offset as the kernel takes it.
pub(super) fn offset(value: u64) -> Result<i64, Errno> {
    i64::try_from(value).map_err(|_| Errno::EINVAL)
}

/// The number of an error of the standard library.
pub(super) fn from_io(error: &std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

#[cfg(test)]
/// Nothing temporary lies in a directory.
pub(super) fn is_tidy(directory: &Path) -> bool {
    std::fs::read_dir(directory)
        .unwrap()
        .all(|entry| !entry.unwrap().file_name().as_bytes().starts_with(PREFIX.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Uploads so much over a mount point, as kubelets make of single files.
    fn over(target: &Path, bytes: usize) -> Result<(), Errno> {
        let place = Place::find(target)?;
        let mut staged = Staged::begin(place.directory, place.name, Mode::from_bits_truncate(0o600))?;
        staged.file.write_all(&vec![b'n'; bytes]).map_err(|error| from_io(&error))?;
        staged.put()
    }

    #[test]
    fn what_cannot_be_replaced_is_written_over_where_there_is_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let test = || {
            unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).expect("a mount namespace (the tests run as root)");
            let nothing = None::<&str>;
            mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
            fs::create_dir(path("small")).unwrap();
            mount(nothing, &path("small"), Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
            fs::write(path("small/file"), [b'o'; 4096]).unwrap();
            nix::unistd::mkfifo(&path("small/fifo"), Mode::from_bits_truncate(0o600)).unwrap();
            for name in ["file", "fifo"] {
                fs::write(path(name), "").unwrap();
                let source = path("small").join(name);
                mount(Some(&source), &path(name), nothing, MsFlags::MS_BIND, nothing).unwrap();
            }
            assert_eq!(over(&path("file"), 256 << 10), Err(Errno::ENOSPC));
            assert_eq!(fs::read(path("file")).unwrap(), [b'o'; 4096]);
            assert_eq!(over(&path("fifo"), 1), Err(Errno::EBUSY));
            // Control: what has room is written, and what was longer ends where it ends.
            for bytes in [8192, 10, 0] {
                assert_eq!(over(&path("file"), bytes), Ok(()));
                assert_eq!(fs::read(path("file")).unwrap(), vec![b'n'; bytes]);
            }
            assert!(is_tidy(directory.path()));
        };
        std::thread::scope(|scope| scope.spawn(test).join().unwrap());
    }
}
