//! How what a client writes comes under its name.

use std::fs::File;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstat, fstatat};
use nix::unistd::{UnlinkatFlags, ftruncate, unlinkat};

use crate::access::files::Passed;
use crate::access::files::staged::{self, Place, Staged, copy, from_io, kind, same, write_all_at};

/// `pflags` of SSH_FXP_OPEN.
pub(in crate::access::files) const READ: u32 = 1;
pub(in crate::access::files) const WRITE: u32 = 2;
pub(in crate::access::files) const APPEND: u32 = 4;
pub(in crate::access::files) const CREATE: u32 = 8;
pub(in crate::access::files) const TRUNCATE: u32 = 16;
pub(in crate::access::files) const EXCLUSIVE: u32 = 32;

/// What stands between a file that is written and its name.
#[derive(Debug)]
pub(in crate::access::files) enum Upload {
    /// Nothing: written in place.
    None,
    /// Written beside it. Of the file that was there before, `below` shines through where nothing was written.
    Staged {
        /// The new file.
        staged: Staged,
        /// What it does not replace.
        below: Option<Below>,
    },
    /// Opened to be created, but there already, and not to be truncated. A client that resumes writes behind what is
    /// there, and OpenSSH's scp writes it anew from the start and truncates in the end: the first write tells.
    Undecided(Place),
    /// Made by this session alone, and seen at once; it goes if its handle is not closed.
    Exclusive(Claim),
}

/// A name that this session made and has not finished with.
#[derive(Debug)]
pub(in crate::access::files) struct Claim {
    place: Place,
    released: bool,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Place { directory, name, found: Some(own) } = &self.place else { return };
        let now = fstatat(directory, name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        if !self.released && now.is_ok_and(|now| same(&now, own)) {
            // Nobody is left to be told.
            let _ = unlinkat(directory, name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// A file that is being replaced from its start.
#[derive(Debug)]
pub(in crate::access::files) struct Below {
    file: File,
    /// How much of it still counts: its length, until the client cuts it shorter.
    length: u64,
    /// Up to where the new file has been written.
    written: u64,
}

impl Below {
    /// Copies what shines through below an offset, for what is written there next.
    fn fill(&mut self, to: &File, offset: u64) -> Result<(), Errno> {
        let until = offset.min(self.length);
        if until > self.written {
            copy(&self.file, self.written, to, self.written, until - self.written)?;
            self.written = until;
        }
        Ok(())
    }
}

/// A file as a client asked for it: what reads and writes go to, and what becomes of it.
#[derive(Debug)]
pub(in crate::access::files) struct Target {
    pub file: File,
    pub upload: Upload,
    /// For the record.
    pub passed: Passed,
    /// What kept something that the client sent from being in the file. The client closes the handle all the same, as
    /// OpenSSH's does after any failure, and what it closes then is not what it meant to send.
    failed: Option<Errno>,
}

/// Opens a file in place.
pub(in crate::access::files) fn open(path: &Path, flags: u32, mode: Mode) -> Result<File, Errno> {
    Ok(File::from(openat(AT_FDCWD, path, to_kernel(flags), mode)?))
}

/// Opens a file that may be an upload.
pub(in crate::access::files) fn open_target(path: &Path, flags: u32, mode: Mode) -> Result<Target, Errno> {
    let in_place = |file| Ok(Target::of(file, Upload::None));
    if flags & WRITE == 0 || flags & APPEND != 0 || flags & (CREATE | TRUNCATE) == 0 {
        return in_place(open(path, flags, mode)?);
    }
    if flags & CREATE != 0 && flags & EXCLUSIVE != 0 {
        // O_EXCL follows no link at the end, so the place is that of the path itself.
        let file = open(path, flags, mode)?;
        let upload = match Place::find(path) {
            Ok(place) if place.found.is_some_and(|found| fstat(&file).is_ok_and(|own| same(&found, &own))) => {
                Upload::Exclusive(Claim { place, released: false })
            }
            _ => Upload::None,
        };
        return Ok(Target::of(file, upload));
    }
    let place = match Place::find(path) {
        Ok(place) => place,
        // Let open(2) say what is wrong with it.
        Err(_) => return in_place(open(path, flags, mode)?),
    };
    let Some(old) = place.found else {
        if flags & CREATE == 0 {
            return Err(Errno::ENOENT);
        }
        return match Staged::begin(place.directory, place.name, mode) {
            Ok(staged) => staged_target(staged, None),
            Err(Errno::EACCES | Errno::EPERM | Errno::EROFS) => in_place(open(path, flags, mode)?),
            Err(error) => Err(error),
        };
    };
    // Whether it may be written is the old file's to say, though another takes its place.
    let without_truncating = open(path, flags & !(CREATE | TRUNCATE), mode)?;
    if kind(&old) != SFlag::S_IFREG || !fstat(&without_truncating).is_ok_and(|opened| same(&old, &opened)) {
        return in_place(open(path, flags, mode)?);
    }
    if flags & TRUNCATE != 0 {
        return match Staged::succeed(&place, &old)? {
            Some(staged) => staged_target(staged, None),
            None => in_place(open(path, flags, mode)?),
        };
    }
    let upload = if flags & READ == 0 { Upload::Undecided(place) } else { Upload::None };
    Ok(Target::of(without_truncating, upload))
}

fn staged_target(staged: Staged, below: Option<Below>) -> Result<Target, Errno> {
    let file = staged.file().try_clone().map_err(|error| from_io(&error))?;
    Ok(Target::of(file, Upload::Staged { staged, below }))
}

impl Target {
    pub fn of(file: File, upload: Upload) -> Self {
        Self { file, upload, passed: Passed::default(), failed: None }
    }

    /// Remembers what has failed.
    fn note<T>(&mut self, outcome: Result<T, Errno>) -> Result<T, Errno> {
        outcome.inspect_err(|error| self.failed = Some(*error))
    }

    /// Writes at an offset; in append mode the kernel writes at the end whatever it is.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        let written = self.try_write(offset, bytes);
        self.passed.written += if written.is_ok() { bytes.len() as u64 } else { 0 };
        self.note(written)
    }

    fn try_write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.decide(offset)?;
        if let Upload::Staged { staged, below: Some(below) } = &mut self.upload {
            below.fill(staged.file(), offset)?;
            below.written = below.written.max(offset.saturating_add(bytes.len() as u64));
        }
        write_all_at(&self.file, bytes, offset)
    }

    /// Takes the first write as the sign of what the client is doing.
    fn decide(&mut self, offset: u64) -> Result<(), Errno> {
        if !matches!(self.upload, Upload::Undecided(_)) {
            return Ok(());
        }
        let Upload::Undecided(place) = std::mem::replace(&mut self.upload, Upload::None) else { return Ok(()) };
        let Some(old) = place.found.filter(|_| offset == 0) else { return Ok(()) };
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let Ok(below) = openat(&place.directory, place.name.as_os_str(), flags, Mode::empty()) else { return Ok(()) };
        let now = fstat(&below)?;
        if !same(&now, &old) {
            return Ok(());
        }
        if let Some(staged) = Staged::succeed(&place, &now)? {
            let length = u64::try_from(now.st_size).unwrap_or(0);
            *self = staged_target(staged, Some(Below { file: File::from(below), length, written: 0 }))?;
        }
        Ok(())
    }

    /// Cuts or lengthens the file.
    pub fn set_size(&mut self, size: u64) -> Result<(), Errno> {
        if let Upload::Staged { below: Some(below), .. } = &mut self.upload {
            below.length = below.length.min(size);
        }
        if let Upload::Undecided(_) = self.upload {
            self.upload = Upload::None;
        }
        let cut = staged::offset(size).and_then(|size| ftruncate(&self.file, size));
        self.note(cut)
    }

    /// Copies from another file, and says how many bytes there were.
    pub fn copy_from(&mut self, source: &File, from: u64, to: u64, length: u64) -> Result<u64, Errno> {
        let copied = copy(source, from, &self.file, to, length);
        self.passed.written += copied.unwrap_or_default();
        self.note(copied)
    }

    /// Makes the file whole on its own, for somebody who looks at it before it is closed.
    pub fn settle(&mut self) -> Result<(), Errno> {
        if let Upload::Staged { staged, below } = &mut self.upload
            && let Some(mut lower) = below.take()
        {
            let filled = lower.fill(staged.file(), u64::MAX);
            return self.note(filled);
        }
        Ok(())
    }

    /// Puts the file under its name, unless something of it is missing: then there is none, and what was there stays.
    pub fn publish(&mut self) -> Result<(), Errno> {
        let settled = self.settle();
        if let Some(error) = self.failed.filter(|_| !matches!(self.upload, Upload::None)) {
            self.withdraw();
            return Err(error);
        }
        settled?;
        match std::mem::replace(&mut self.upload, Upload::None) {
            Upload::Staged { staged, .. } => staged.put(),
            Upload::Exclusive(mut claim) => {
                claim.released = true;
                Ok(())
            }
            Upload::None | Upload::Undecided(_) => Ok(()),
        }
    }

    /// Gives up the name: what is written from now on is in no directory.
    pub fn withdraw(&mut self) {
        self.upload = Upload::None;
    }

    /// What kept something from being in the file.
    pub fn failure(&self) -> Option<Errno> {
        self.failed
    }

    /// What is staged.
    pub fn staged(&self) -> Option<&Staged> {
        match &self.upload {
            Upload::Staged { staged, .. } => Some(staged),
            _ => None,
        }
    }
}

/// The flags of open(2).
fn to_kernel(flags: u32) -> OFlag {
    // A pipe must not keep the server waiting for its other end; on files the flag means nothing.
    let mut open = OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    open |= match (flags & READ != 0, flags & WRITE != 0) {
        (true, true) => OFlag::O_RDWR,
        (false, true) => OFlag::O_WRONLY,
        _ => OFlag::O_RDONLY,
    };
    for (flag, kernel) in
        [(APPEND, OFlag::O_APPEND), (CREATE, OFlag::O_CREAT), (TRUNCATE, OFlag::O_TRUNC), (EXCLUSIVE, OFlag::O_EXCL)]
    {
        if flags & flag != 0 {
            open |= kernel;
        }
    }
    open
}
