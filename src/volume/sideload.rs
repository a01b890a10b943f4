//! This executable, laid into a volume from which another image runs it. Whoever looks at the destination finds the
//! whole new file, or what was there before: the copy is made under no name or another one, reaches the disk, and only
//! then takes the name (rename(2) replaces in one step, also a file that is being executed).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, SFlag, fchmod, fstatat};
use nix::sys::statvfs::{FsFlags, fstatvfs};
use nix::unistd::{UnlinkatFlags, fsync, linkat, unlinkat};

/// The running executable, whatever has become of its path: an image `FROM scratch` has nothing else to read.
const OWN_EXECUTABLE: &str = "/proc/self/exe";

/// Everyone may run it, nobody may write it: whoever could would decide what the pod's other containers execute.
const MODE: u32 = 0o555;

/// Missing directories above the destination, which everyone must be able to pass.
const DIRECTORY_MODE: u32 = 0o755;

/// Temporary names tried, in case earlier copies were killed and left theirs: process ids of containers repeat.
const TEMPORARY_NAMES: u32 = 64;

/// A copy that was made.
#[derive(Debug)]
pub struct Copied {
    /// Where it lies.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum SideloadError {
    /// The executable's own file cannot be read.
    #[error("{path}: {error}; the container needs its own /proc", path = OWN_EXECUTABLE)]
    Executable {
        /// What the kernel answered.
        error: io::Error,
    },
    /// There is no name in the path.
    #[error("{}: expected a file or a directory to copy to, such as /opt/openshell/bin/", .0.display())]
    NoName(PathBuf),
    /// Something stands there that a copy must not replace or follow.
    #[error("{} is a {kind}, which is neither followed nor replaced; remove it, or name another destination", path.display())]
    Occupied {
        /// Where.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// What is copied there could not be run.
    #[error("{} is mounted noexec, so nothing could run the copy; mount a volume that allows it, such as an emptyDir", .0.display())]
    NoExec(PathBuf),
    /// Nothing of the path is there: what would be made is a directory of the container's own, which ends with it.
    #[error("nothing of {} is there, so it is no volume; mount the volume there", .0.display())]
    NoVolume(PathBuf),
    /// A step failed.
    #[error("{step} {}: {error}{}", path.display(), remedy(*error, *bytes))]
    Step {
        /// What was being done.
        step: &'static str,
        /// To what.
        path: PathBuf,
        /// What the kernel answered.
        error: Errno,
        /// Bytes of the executable, to say how much room it needs.
        bytes: u64,
    },
}

/// What a person can do about an error that volumes really give.
fn remedy(error: Errno, bytes: u64) -> String {
    match error {
        Errno::ENOSPC | Errno::EDQUOT | Errno::EFBIG => {
            format!("; the copy needs {bytes} bytes beside the one it replaces: raise the volume's size limit")
        }
        Errno::EROFS => "; mount the volume without readOnly in this container".into(),
        Errno::EACCES | Errno::EPERM => {
            "; this user may not write there: give the pod an fsGroup that the container runs with".into()
        }
        Errno::EEXIST | Errno::ENOTDIR => {
            "; something that is no directory stands there: name another destination".into()
        }
        Errno::EBUSY => {
            "; the file is a mount of its own (a subPath?), which nothing can replace: mount a volume at its directory"
                .into()
        }
        _ => String::new(),
    }
}

/// Copies the running executable to `destination`: a file's path, or an existing directory, where the copy keeps the
/// executable's name. Missing directories in a volume are made; the copy has mode 0555 and is on the disk when this returns.
///
/// # Errors
/// [`SideloadError`]; the destination is then what it was.
pub fn copy_to(destination: &Path) -> Result<Copied, SideloadError> {
    let mut executable = File::open(OWN_EXECUTABLE).map_err(|error| SideloadError::Executable { error })?;
    let bytes = executable.metadata().map_err(|error| SideloadError::Executable { error })?.len();
    let target = Target::find(destination, bytes)?;
    target.refuse_occupied()?;
    let (mut copy, temporary) = target.create()?;
    target.fill(&mut executable, &mut copy)?;
    target.publish(copy, temporary)?;
    Ok(Copied { path: target.path(), bytes })
}

/// The directory, held by descriptor so that every step means the same one, and the name in it.
struct Target {
    directory: OwnedFd,
    directory_path: PathBuf,
    name: OsString,
    bytes: u64,
}

impl Target {
    fn find(destination: &Path, bytes: u64) -> Result<Self, SideloadError> {
        // With a slash at its end a link would be followed (path_resolution(7)).
        let named: PathBuf = destination.components().collect();
        let is_directory = match std::fs::symlink_metadata(&named) {
            Ok(meta) if meta.is_symlink() => {
                return Err(SideloadError::Occupied { path: destination.into(), kind: "symbolic link" });
            }
            Ok(meta) => meta.is_dir(),
            // Whatever else is wrong with the path shows when its directory is opened.
            Err(_) => destination.as_os_str().as_encoded_bytes().ends_with(b"/"),
        };
        let (directory, name) = if is_directory {
            (destination, own_name()?)
        } else {
            let name = destination.file_name().ok_or_else(|| SideloadError::NoName(destination.into()))?;
            let parent = destination.parent().filter(|parent| !parent.as_os_str().is_empty());
            (parent.unwrap_or(Path::new(".")), name.to_owned())
        };
        let failed = |step, error| SideloadError::Step { step, path: directory.into(), error, bytes };
        let above = directory.ancestors().skip(1).find(|above| above.exists());
        if !directory.exists() && above == Some(Path::new("/")) {
            return Err(SideloadError::NoVolume(directory.into()));
        }
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(directory)
            .map_err(|error| failed("make the directory", errno(&error)))?;
        let opened = open(directory, OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
            .map_err(|error| failed("open the directory", error))?;
        let mount = fstatvfs(&opened).map_err(|error| failed("look at the file system of", error))?;
        if mount.flags().contains(FsFlags::ST_NOEXEC) {
            return Err(SideloadError::NoExec(directory.into()));
        }
        Ok(Self { directory: opened, directory_path: directory.into(), name, bytes })
    }

    fn path(&self) -> PathBuf {
        self.directory_path.join(&self.name)
    }

    fn failed(&self, step: &'static str, error: Errno) -> SideloadError {
        SideloadError::Step { step, path: self.path(), error, bytes: self.bytes }
    }

    /// An ordinary file is replaced; anything else was put there by somebody for something else.
    fn refuse_occupied(&self) -> Result<(), SideloadError> {
        let found = match fstatat(&self.directory, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(found) => SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT,
            Err(Errno::ENOENT) => return Ok(()),
            Err(error) => return Err(self.failed("look at", error)),
        };
        let kind = match found {
            SFlag::S_IFREG => return Ok(()),
            SFlag::S_IFLNK => "symbolic link",
            SFlag::S_IFDIR => "directory",
            SFlag::S_IFIFO => "named pipe",
            SFlag::S_IFSOCK => "socket",
            _ => "device",
        };
        Err(SideloadError::Occupied { path: self.path(), kind })
    }

    /// A new file beside the destination: without a name where the file system has such files (open(2), O_TMPFILE), so
    /// that whoever is killed half-way leaves nothing at all.
    fn create(&self) -> Result<(File, Temporary<'_>), SideloadError> {
        let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
        let owner_writes = Mode::S_IRUSR | Mode::S_IWUSR;
        match openat(&self.directory, ".", flags | OFlag::O_TMPFILE, owner_writes) {
            Ok(file) => return Ok((file.into(), Temporary { target: self, name: None })),
            // What file systems without them answer.
            Err(Errno::EOPNOTSUPP | Errno::EISDIR | Errno::ENOENT | Errno::EINVAL) => {}
            Err(error) => return Err(self.failed("write", error)),
        }
        let (file, temporary) = self.under_a_temporary_name(|name| {
            openat(&self.directory, name, flags | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW, owner_writes)
        })?;
        Ok((file.into(), temporary))
    }

    /// Runs `act` with names that no other copy uses until one is free.
    fn under_a_temporary_name<T>(
        &self,
        act: impl Fn(&OsStr) -> nix::Result<T>,
    ) -> Result<(T, Temporary<'_>), SideloadError> {
        for attempt in 0..TEMPORARY_NAMES {
            let mut name = OsString::from(".");
            name.push(&self.name);
            name.push(format!(".{}-{attempt}", std::process::id()));
            match act(&name) {
                Ok(done) => return Ok((done, Temporary { target: self, name: Some(name) })),
                Err(Errno::EEXIST) => {}
                Err(error) => return Err(self.failed("write", error)),
            }
        }
        Err(self.failed("find a temporary name beside", Errno::EEXIST))
    }

    fn fill(&self, executable: &mut File, copy: &mut File) -> Result<(), SideloadError> {
        let written = io::copy(executable, copy).map_err(|error| self.failed("write", errno(&error)))?;
        if written != self.bytes {
            return Err(self.failed("write all of", Errno::EIO));
        }
        fchmod(&*copy, Mode::from_bits_truncate(MODE)).map_err(|error| self.failed("set the mode of", error))?;
        copy.sync_all().map_err(|error| self.failed("bring to the disk", errno(&error)))
    }

    fn publish<'t>(&'t self, copy: File, mut temporary: Temporary<'t>) -> Result<(), SideloadError> {
        if temporary.name.is_none() {
            let source = format!("/proc/self/fd/{}", copy.as_raw_fd());
            // A link cannot replace, a rename can.
            ((), temporary) = self.under_a_temporary_name(|name| {
                linkat(AT_FDCWD, source.as_str(), &self.directory, name, AtFlags::AT_SYMLINK_FOLLOW)
            })?;
        }
        // A file that is open for writing cannot be executed (ETXTBSY), so it is closed before it has its name.
        drop(copy);
        if let Some(name) = &temporary.name {
            renameat(&self.directory, name.as_os_str(), &self.directory, self.name.as_os_str())
                .map_err(|error| self.failed("replace", error))?;
        }
        temporary.name = None;
        fsync(&self.directory).map_err(|error| self.failed("bring to the disk the name of", error))
    }
}

/// The name that a copy has until it is published: dropped before, it is removed.
struct Temporary<'t> {
    target: &'t Target,
    name: Option<OsString>,
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            // Best effort: the copy has failed already, and that is what is told.
            let _ = unlinkat(&self.target.directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// The name of the executable's file, from the link that the kernel keeps: argv[0] may be any of its symbolic links.
fn own_name() -> Result<OsString, SideloadError> {
    let path = std::fs::read_link(OWN_EXECUTABLE).map_err(|error| SideloadError::Executable { error })?;
    let name = path.file_name().ok_or_else(|| SideloadError::NoName(path.clone()))?;
    // What proc(5) adds to the name of a file that has been replaced meanwhile.
    let name = name.as_bytes().strip_suffix(b" (deleted)").unwrap_or(name.as_bytes());
    Ok(OsStr::from_bytes(name).to_owned())
}

fn errno(error: &io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}
