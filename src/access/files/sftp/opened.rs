//! What a session has open: files and directories, by handles.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::sys::uio::pread;

use super::MAX_HANDLES;
use super::upload::{self, Target};
use super::wire::Refusal;
use crate::access::files::Passed;
use crate::access::files::staged::{self, Place, Staged, same};

/// Whether a path that ends in a link is about the link or about where it leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Links {
    Followed,
    Themselves,
}

/// Something open.
pub(super) enum Opened {
    File(Target),
    Directory(Directory),
}

/// A directory that is being listed.
pub(super) struct Directory {
    /// For looking at what is in it.
    pub fd: File,
    entries: OwningIter,
}

impl Directory {
    fn open(path: &Path) -> Result<Self, Errno> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = File::from(openat(AT_FDCWD, path, flags, Mode::empty())?);
        let listed = fd.try_clone().map_err(|error| staged::from_io(&error))?;
        Ok(Self { fd, entries: Dir::from_fd(listed.into())?.into_iter() })
    }

    /// The next name.
    pub fn next_name(&mut self) -> Result<Option<OsString>, Errno> {
        let entry = self.entries.next().transpose()?;
        Ok(entry.map(|entry| OsString::from_vec(entry.file_name().to_bytes().to_owned())))
    }
}

/// What is open, by number. A number that is used again has another generation, so that a handle that was closed is
/// never taken for its successor.
#[derive(Default)]
pub(super) struct Handles {
    slots: Vec<(u32, Option<Opened>)>,
    /// What was done with the files that are closed, until somebody is told of it.
    pub passed: Vec<Passed>,
}

/// Bytes of a handle: number and generation.
pub(super) type Handle = [u8; 8];

impl Handles {
    fn add(&mut self, opened: Opened) -> Result<Handle, Refusal> {
        let number = match self.slots.iter().position(|(_, slot)| slot.is_none()) {
            Some(free) => free,
            None if self.slots.len() < MAX_HANDLES => {
                self.slots.push((0, None));
                self.slots.len() - 1
            }
            None => {
                return Err(Refusal::failure(format!("{MAX_HANDLES} handles are open, which is the most; close one")));
            }
        };
        let (generation, slot) = &mut self.slots[number];
        *generation = generation.wrapping_add(1);
        *slot = Some(opened);
        let mut handle = Handle::default();
        handle[..4].copy_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
        handle[4..].copy_from_slice(&generation.to_be_bytes());
        Ok(handle)
    }

    fn slot(&mut self, handle: &[u8]) -> Result<&mut Option<Opened>, Refusal> {
        let unknown = || Refusal::failure("no such handle is open");
        let handle: &Handle = handle.try_into().map_err(|_| unknown())?;
        let (number, generation) = handle.split_at(4);
        let number = number.iter().fold(0, |number, byte| number << 8 | usize::from(*byte));
        match self.slots.get_mut(number) {
            Some((current, slot @ Some(_))) if current.to_be_bytes() == generation => Ok(slot),
            _ => Err(unknown()),
        }
    }

    /// Opens a file.
    pub fn open_file(&mut self, path: &Path, flags: u32, mode: Mode) -> Result<Handle, Refusal> {
        let opened = self.try_open_file(path, flags, mode);
        if let Err(refusal) = &opened {
            self.passed.push(Passed::failed(path, refusal));
        }
        opened
    }

    fn try_open_file(&mut self, path: &Path, flags: u32, mode: Mode) -> Result<Handle, Refusal> {
        let target = match self.unfinished(path, Links::Followed) {
            // Opened again while it is being written: the same file, which is not made twice.
            Some((unfinished, path)) if flags & upload::EXCLUSIVE == 0 => {
                unfinished.settle()?;
                Target::of(upload::open(&path, flags, mode)?, upload::Upload::None)
            }
            Some(_) => return Err(Errno::EEXIST.into()),
            None => upload::open_target(path, flags, mode)?,
        };
        let mut target = target;
        target.passed.path = path.to_string_lossy().into_owned();
        if fstat(&target.file).is_ok_and(|found| staged::kind(&found) == nix::sys::stat::SFlag::S_IFDIR) {
            return Err(Refusal::failure("it is a directory"));
        }
        self.add(Opened::File(target))
    }

    /// Opens a directory.
    pub fn open_directory(&mut self, path: &Path) -> Result<Handle, Refusal> {
        // What is to be listed needs a name before the list begins.
        for target in self.uploads() {
            // One that gets none is not listed.
            let _ = target.staged().map(Staged::temporary);
        }
        self.add(Opened::Directory(Directory::open(path)?))
    }

    /// Closes one; a file that was uploaded comes under its name, if all of it was written.
    pub fn close(&mut self, handle: &[u8]) -> Result<(), Refusal> {
        match self.slot(handle)?.take() {
            Some(Opened::File(mut target)) => {
                let published = target.publish();
                let failure = published.err().or(target.failure());
                let failed = failure.map(|error| error.desc().to_owned());
                self.passed.push(Passed { failed, ..target.passed });
                Ok(published?)
            }
            _ => Ok(()),
        }
    }

    /// Gives up all that is still open: the client has gone.
    pub fn abandon(&mut self) {
        for (_, slot) in std::mem::take(&mut self.slots) {
            if let Some(Opened::File(target)) = slot {
                let failed = Some("the connection ended before it was closed".to_owned());
                self.passed.push(Passed { failed, ..target.passed });
            }
        }
    }

    /// An open file.
    pub fn file(&mut self, handle: &[u8]) -> Result<&mut Target, Refusal> {
        match self.slot(handle)? {
            Some(Opened::File(target)) => Ok(target),
            _ => Err(Refusal::failure("the handle is of a directory")),
        }
    }

    /// An open directory.
    pub fn directory(&mut self, handle: &[u8]) -> Result<&mut Directory, Refusal> {
        match self.slot(handle)? {
            Some(Opened::Directory(directory)) => Ok(directory),
            _ => Err(Refusal::failure("the handle is of a file")),
        }
    }

    /// What the handle stands for, whichever it is.
    pub fn status(&mut self, handle: &[u8]) -> Result<FileStat, Refusal> {
        match self.slot(handle)? {
            Some(Opened::File(target)) => {
                target.settle()?;
                Ok(fstat(&target.file)?)
            }
            Some(Opened::Directory(directory)) => Ok(fstat(&directory.fd)?),
            None => Err(Errno::EBADF.into()),
        }
    }

    fn uploads(&mut self) -> impl Iterator<Item = &mut Target> {
        self.slots.iter_mut().filter_map(|(_, slot)| match slot {
            Some(Opened::File(target)) if target.staged().is_some() => Some(target),
            _ => None,
        })
    }

    /// The upload that a path names, and under which path it lies for now.
    pub fn unfinished(&mut self, path: &Path, links: Links) -> Option<(&mut Target, PathBuf)> {
        // The common case costs nothing: no upload, no look.
        self.uploads().next()?;
        let place = if links == Links::Followed { Place::find(path) } else { Place::of(path) }.ok()?;
        let parent = fstat(&place.directory).ok()?;
        let target = self.uploads().find(|target| {
            target.staged().is_some_and(|staged| {
                let (directory, name) = staged.place();
                name == place.name && fstat(directory).is_ok_and(|directory| same(&directory, &parent))
            })
        })?;
        let path = target.staged().and_then(|staged| Some(sibling(path, &place, staged.temporary().ok()?)))?;
        Some((target, path))
    }

    /// Where a path leads in this session: to an upload that is not finished, or where it says.
    pub fn lead(&mut self, path: &Path, links: Links) -> Result<PathBuf, Refusal> {
        match self.unfinished(path, links) {
            Some((target, path)) => {
                target.settle()?;
                Ok(path)
            }
            None => Ok(path.to_owned()),
        }
    }

    /// How a name in a listed directory is to be shown: an unfinished upload by the name it will have, and that only
    /// once. `None` for what is not shown.
    pub fn shown(&mut self, directory: &FileStat, name: OsString) -> Option<(OsString, OsString)> {
        let here = |target: &Target| -> Option<(OsString, OsString)> {
            let staged = target.staged()?;
            let (place, last) = staged.place();
            let here = fstat(place).is_ok_and(|place| same(&place, directory));
            if here { Some((staged.temporary().ok()?.to_owned(), last.to_owned())) } else { None }
        };
        for target in self.uploads() {
            let Some((temporary, last)) = here(target) else { continue };
            if name == temporary {
                let (place, _) = target.staged()?.place();
                let also = fstatat(place, last.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW).is_ok();
                return if also { None } else { Some((last, temporary)) };
            }
            if name == last {
                return Some((last, temporary));
            }
        }
        Some((name.clone(), name))
    }
}

/// The path of a temporary name beside the last of a path. Where links lead elsewhere, the way through the descriptor
/// of the directory is the only one that surely arrives.
fn sibling(path: &Path, place: &Place, temporary: &std::ffi::OsStr) -> PathBuf {
    if path.file_name() == Some(&place.name) && !path.is_symlink() {
        return path.with_file_name(temporary);
    }
    use std::os::fd::AsRawFd;
    std::fs::read_link(format!("/proc/self/fd/{}", place.directory.as_raw_fd()))
        .map_or_else(|_| path.with_file_name(temporary), |directory| directory.join(temporary))
}

/// Reads at an offset, as much as there is.
pub(super) fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize, Refusal> {
    let offset = staged::offset(offset)?;
    loop {
        match pread(file, buffer, offset) {
            Ok(0) => return Err(Refusal::end()),
            Err(Errno::EINTR) => {}
            read => return Ok(read?),
        }
    }
}
