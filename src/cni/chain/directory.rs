//! A configuration directory, held by descriptor so that every step means the same one: what lies in it, and files
//! that appear there whole or not at all.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, Flock, FlockArg, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchown, fsync, unlinkat};

use super::error::{ChainError, errno};

/// Largest configuration that is read; containerd reads no larger one (go-cni, MaxFileSize).
pub(super) const MAX_BYTES: u64 = 2 * 1024 * 1024;

/// Entries of the directory that are looked at. Nodes have a handful.
const MAX_ENTRIES: usize = 4096;

/// Names of files that are not finished. Runtimes load what ends in `.conf`, `.conflist` or `.json` (libcni,
/// ConfFiles), names that begin with a dot included, so it is the end that keeps them off.
const TEMPORARY: (&str, &str) = (".openshell-cni-", ".tmp");

/// How long another installer is waited for: an edit takes milliseconds, and [`super::replace`] waits for a writer of
/// its file at most two seconds.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at something that is waited for.
pub(super) const PAUSE: Duration = Duration::from_millis(5);

/// Permission bits, with setuid, setgid and sticky.
const MODE_BITS: u32 = 0o7777;

/// Whose a file is, and who may do what with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Attributes {
    /// Of files that are all ours: everyone may read them, as the primary's usually are; there is no secret in them.
    pub fn own() -> Self {
        Self { mode: 0o644, uid: Uid::effective().as_raw(), gid: Gid::effective().as_raw() }
    }
}

/// What a name stands for.
#[derive(Debug)]
pub(super) enum Found {
    /// Nothing.
    Absent,
    /// A directory, which runtimes pass over.
    Directory,
    /// A file.
    File(Content),
    /// Something that a runtime may be able to read, and that is not edited here; why not.
    Odd(String),
}

/// A file that was read.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub bytes: Vec<u8>,
    pub attributes: Attributes,
    /// How long ago it was last written; very long where the clock was set back meanwhile.
    pub age: Duration,
}

#[derive(Debug)]
pub(super) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

/// Held by the one installer that may write; the kernel lets go of it with the process, however that ends.
pub(super) struct Lock(#[expect(dead_code, reason = "it is held, not read")] Flock<OwnedFd>);

impl Directory {
    /// The directory at `path`, unless nothing is there.
    pub fn open(path: &Path) -> Result<Option<Self>, ChainError> {
        match open(path, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path: path.into() })),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(ChainError::Step { step: "open the directory", path: path.into(), error }),
        }
    }

    /// A directory in this one, unless nothing is there; a link is not followed.
    pub fn below(&self, name: &OsStr) -> Result<Option<Self>, ChainError> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Some(Self { fd, path: self.path.join(name) })),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(self.failed("open the directory", name, error)),
        }
    }

    /// Makes a directory in this one; whether it was not there before.
    pub fn make(&self, name: &OsStr) -> Result<bool, ChainError> {
        match mkdirat(&self.fd, name, Mode::from_bits_truncate(0o755)) {
            Ok(()) => self.sync().map(|()| true),
            Err(Errno::EEXIST) => Ok(false),
            Err(error) => Err(self.failed("make the directory", name, error)),
        }
    }

    /// Removes a directory in this one if nothing is in it; whether it did.
    pub fn remove_empty(&self, name: &OsStr) -> Result<bool, ChainError> {
        match unlinkat(&self.fd, name, UnlinkatFlags::RemoveDir) {
            Ok(()) => self.sync().map(|()| true),
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOENT | Errno::EBUSY) => Ok(false),
            Err(error) => Err(self.failed("remove the directory", name, error)),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn at(&self, name: &OsStr) -> PathBuf {
        self.path.join(name)
    }

    pub fn failed(&self, step: &'static str, name: &OsStr, error: Errno) -> ChainError {
        ChainError::Step { step, path: self.at(name), error }
    }

    /// What is in it, in the order of bytes, as runtimes sort it.
    pub fn names(&self) -> Result<Vec<OsString>, ChainError> {
        let failed = |error| ChainError::Step { step: "list", path: self.path.clone(), error };
        // A listing of its own: descriptors that are duplicates share their position.
        let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let mut listing = Dir::openat(&self.fd, ".", flags, Mode::empty()).map_err(failed)?;
        let mut names = Vec::new();
        for entry in listing.iter() {
            let name = entry.map_err(failed)?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
            if names.len() > MAX_ENTRIES {
                return Err(failed(Errno::EOVERFLOW));
            }
        }
        names.sort();
        Ok(names)
    }

    /// What lies under a name. Links are not followed: this process may see another file system than the runtime does,
    /// and a rename would replace the link.
    pub fn read(&self, name: &OsStr) -> Result<Found, ChainError> {
        let kind = match fstatat(&self.fd, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT,
            Err(Errno::ENOENT) => return Ok(Found::Absent),
            Err(error) => return Err(self.failed("look at", name, error)),
        };
        match kind {
            SFlag::S_IFREG => {}
            SFlag::S_IFDIR => return Ok(Found::Directory),
            SFlag::S_IFLNK => {
                return Ok(Found::Odd(
                    "a symbolic link, which is not followed: name the directory that holds the file".into(),
                ));
            }
            _ => return Ok(Found::Odd("neither a file nor a link".into())),
        }
        // Whatever took the place of the file meanwhile must neither be followed nor block.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::ENOENT) => return Ok(Found::Absent),
            Err(error) => return Err(self.failed("open", name, error)),
        };
        self.content(name, &file)
    }

    /// What an open file holds.
    pub fn content(&self, name: &OsStr, file: &File) -> Result<Found, ChainError> {
        let failed = |error: std::io::Error| self.failed("read", name, errno(&error));
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Ok(Found::Odd("neither a file nor a link".into()));
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > MAX_BYTES {
            return Ok(Found::Odd(format!("larger than {MAX_BYTES} bytes")));
        }
        let attributes = Attributes { mode: meta.mode() & MODE_BITS, uid: meta.uid(), gid: meta.gid() };
        let age = meta.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or(Duration::MAX);
        Ok(Found::File(Content { bytes, attributes, age }))
    }

    /// Opens a file that the caller put there, to read it.
    pub fn open_file(&self, name: &OsStr) -> Result<File, ChainError> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        openat(&self.fd, name, flags, Mode::empty()).map(File::from).map_err(|error| self.failed("open", name, error))
    }

    /// Waits until no other installer of ours writes here.
    pub fn lock(&self) -> Result<Lock, ChainError> {
        let failed = |error| ChainError::Step { step: "lock", path: self.path.clone(), error };
        let mut fd = openat(&self.fd, ".", OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)?;
        let latest = Instant::now() + LOCK_PATIENCE;
        loop {
            fd = match Flock::lock(fd, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => return Ok(Lock(lock)),
                Err((fd, Errno::EWOULDBLOCK)) => fd,
                Err((_, error)) => return Err(failed(error)),
            };
            if Instant::now() >= latest {
                return Err(ChainError::Busy { path: self.path.clone(), seconds: LOCK_PATIENCE.as_secs() });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Removes what installers left that were killed, and says what. Whoever holds the lock is the only one that has
    /// unfinished files, and has none yet.
    pub fn sweep(&self, _lock: &Lock) -> Result<Vec<OsString>, ChainError> {
        let mut swept = Vec::new();
        for name in self.names()? {
            let bytes = name.as_bytes();
            if bytes.starts_with(TEMPORARY.0.as_bytes()) && bytes.ends_with(TEMPORARY.1.as_bytes()) {
                self.unlink(&name)?;
                swept.push(name);
            }
        }
        Ok(swept)
    }

    /// Removes a file; whether there was one.
    pub fn unlink(&self, name: &OsStr) -> Result<bool, ChainError> {
        match unlinkat(&self.fd, name, UnlinkatFlags::NoRemoveDir) {
            Ok(()) => self.sync().map(|()| true),
            Err(Errno::ENOENT) => Ok(false),
            Err(error) => Err(self.failed("remove", name, error)),
        }
    }

    /// A file under a name that no runtime loads, complete and on the disk.
    pub fn prepare(&self, bytes: &[u8], attributes: Attributes) -> Result<Prepared<'_>, ChainError> {
        let name = OsString::from(format!("{}{}{}", TEMPORARY.0, std::process::id(), TEMPORARY.1));
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let owner_writes = Mode::S_IRUSR | Mode::S_IWUSR;
        let fd = openat(&self.fd, name.as_os_str(), flags, owner_writes)
            .map_err(|error| self.failed("write", &name, error))?;
        let mut file = File::from(fd);
        let prepared = Prepared { directory: self, name };
        let failed = |step, error| self.failed(step, &prepared.name, error);
        file.write_all(bytes).map_err(|error| failed("write", errno(&error)))?;
        let own = Attributes::own();
        if (attributes.uid, attributes.gid) != (own.uid, own.gid) {
            let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            fchown(&file, Some(uid), Some(gid)).map_err(|error| failed("set the owner of", error))?;
        }
        fchmod(&file, Mode::from_bits_truncate(attributes.mode)).map_err(|error| failed("set the mode of", error))?;
        file.sync_all().map_err(|error| failed("bring to the disk", errno(&error)))?;
        drop(file);
        match self.read(&prepared.name)? {
            Found::File(content) if content.bytes == bytes => Ok(prepared),
            _ => Err(failed("read back", Errno::EIO)),
        }
    }

    /// Puts a file that is all ours under its name, in one step.
    pub fn publish(&self, name: &OsStr, bytes: &[u8], attributes: Attributes) -> Result<(), ChainError> {
        let mut prepared = self.prepare(bytes, attributes)?;
        renameat(&self.fd, prepared.name.as_os_str(), &self.fd, name)
            .map_err(|error| self.failed("replace", name, error))?;
        prepared.name.clear();
        self.sync()
    }

    /// Makes the names durable.
    pub fn sync(&self) -> Result<(), ChainError> {
        fsync(&self.fd).map_err(|error| ChainError::Step { step: "bring to the disk", path: self.path.clone(), error })
    }
}

/// A complete file that has no name of its own yet; dropped, it is removed.
pub(super) struct Prepared<'d> {
    directory: &'d Directory,
    name: OsString,
}

impl Prepared<'_> {
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// Changes places with `name`, so that this is then what lay there; whether the file system can do that.
    pub fn exchange(&self, name: &OsStr) -> Result<bool, Errno> {
        let c_string = |name: &OsStr| CString::new(name.as_bytes()).map_err(|_| Errno::EINVAL);
        match crate::sys::file::exchange(&self.directory.fd, &c_string(&self.name)?, &c_string(name)?) {
            Ok(()) => Ok(true),
            Err(error) => match errno(&error) {
                Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP => Ok(false),
                error => Err(error),
            },
        }
    }

    /// Takes the place of `name`.
    pub fn rename(mut self, name: &OsStr) -> Result<(), ChainError> {
        renameat(&self.directory.fd, self.name.as_os_str(), &self.directory.fd, name)
            .map_err(|error| self.directory.failed("replace", name, error))?;
        self.name.clear();
        Ok(())
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // Best effort: the next installer sweeps.
            let _ = unlinkat(&self.directory.fd, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}
