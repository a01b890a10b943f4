//! Requests that name a path.
//!
//! There is no root to stay below: the process is confined, and what it may not reach the kernel refuses.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, readlink, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, SFlag, UtimensatFlags, fchmodat, fstatat, mkdirat, utimensat};
use nix::unistd::{UnlinkatFlags, fchownat, linkat, symlinkat, truncate, unlinkat};

use super::attributes::Attributes;
use super::opened::Links;
use super::session::{Answer, Failed, Session, path};
use super::wire::{Fields, Refusal, reply, request};
use crate::access::files::{staged, times};

impl<W: Write> Session<'_, W> {
    pub(super) fn by_path(&mut self, kind: u8, id: u32, fields: &mut Fields<'_>) -> Result<Answer, Failed> {
        match kind {
            request::STAT | request::LSTAT => {
                let (links, flags) = if kind == request::STAT {
                    (Links::Followed, AtFlags::empty())
                } else {
                    (Links::Themselves, AtFlags::AT_SYMLINK_NOFOLLOW)
                };
                let path = self.handles.lead(path(fields)?, links)?;
                let found = fstatat(AT_FDCWD, &path, flags)?;
                return self.attributes(id, &found);
            }
            request::SETSTAT => {
                let (path, wanted) = (path(fields)?, Attributes::read(fields)?);
                let path = self.handles.lead(path, Links::Followed)?;
                set(&path, &wanted, true)?;
            }
            request::REMOVE => self.remove(path(fields)?)?,
            request::MKDIR => {
                let (path, wanted) = (path(fields)?, Attributes::read(fields)?);
                let path = self.handles.lead(path, Links::Themselves)?;
                mkdirat(AT_FDCWD, &path, wanted.mode().unwrap_or(Mode::from_bits_truncate(0o777)))?;
            }
            request::RMDIR => unlinkat(AT_FDCWD, path(fields)?, UnlinkatFlags::RemoveDir)?,
            request::REALPATH => {
                let real = real_path(path(fields)?)?;
                return self.name(id, &real);
            }
            request::RENAME => {
                let (from, to) = (path(fields)?, path(fields)?);
                self.publish(from)?;
                let to = self.handles.lead(to, Links::Themselves)?;
                rename_to_free(from, &to)?;
            }
            request::READLINK => {
                let target = readlink(path(fields)?)?;
                return self.name(id, Path::new(&target));
            }
            request::SYMLINK => {
                // The draft has the link first and its target second. OpenSSH has had them the other way round from the
                // start, and clients follow it.
                let (target, link) = (path(fields)?, path(fields)?);
                let link = self.handles.lead(link, Links::Themselves)?;
                symlinkat(target, AT_FDCWD, &link)?;
            }
            other => return Err(Refusal::unsupported(format_args!("request type {other}")).into()),
        }
        Ok(Answer::Success)
    }

    /// Writes a path as the reply; the draft wants a line and attributes with it, and nobody reads them.
    pub(super) fn name(&mut self, id: u32, path: &Path) -> Result<Answer, Failed> {
        self.replies.begin(reply::NAME, id)?;
        self.replies.u32(1);
        self.replies.string(path.as_os_str().as_bytes());
        self.replies.string(path.as_os_str().as_bytes());
        self.replies.u32(0);
        Ok(Answer::Written)
    }

    fn remove(&mut self, path: &Path) -> Result<(), Refusal> {
        let withdrawn = match self.handles.unfinished(path, Links::Themselves) {
            Some((target, _)) => {
                target.withdraw();
                true
            }
            None => false,
        };
        match unlinkat(AT_FDCWD, path, UnlinkatFlags::NoRemoveDir) {
            // There was nothing under the name but what has been withdrawn.
            Err(Errno::ENOENT) if withdrawn => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Puts an upload under its name, since the client goes on to treat it as a file that is there.
    pub(super) fn publish(&mut self, path: &Path) -> Result<(), Refusal> {
        match self.handles.unfinished(path, Links::Themselves) {
            Some((target, _)) => Ok(target.publish()?),
            None => Ok(()),
        }
    }

    /// Renames, replacing what is there.
    pub(super) fn rename_over(&mut self, from: &Path, to: &Path) -> Result<(), Refusal> {
        self.publish(from)?;
        if let Some((target, _)) = self.handles.unfinished(to, Links::Themselves) {
            target.withdraw();
        }
        Ok(renameat(AT_FDCWD, from, AT_FDCWD, to)?)
    }
}

/// Renames where nothing is replaced (draft §6.5). A second name and the removal of the first is the one way that cannot
/// replace what somebody else made meanwhile; directories and file systems without hard links have to be looked at.
fn rename_to_free(from: &Path, to: &Path) -> Result<(), Errno> {
    let there = fstatat(AT_FDCWD, from, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    if staged::kind(&there) == SFlag::S_IFREG {
        match linkat(AT_FDCWD, from, AT_FDCWD, to, AtFlags::empty()) {
            Ok(()) => {
                return unlinkat(AT_FDCWD, from, UnlinkatFlags::NoRemoveDir).inspect_err(|_| {
                    let _ = unlinkat(AT_FDCWD, to, UnlinkatFlags::NoRemoveDir);
                });
            }
            // Among these are file systems without hard links and files that are not ours (protected_hardlinks).
            Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EXDEV | Errno::EPERM | Errno::EMLINK | Errno::EACCES) => {}
            Err(error) => return Err(error),
        }
    }
    match fstatat(AT_FDCWD, to, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT) => renameat(AT_FDCWD, from, AT_FDCWD, to),
        Ok(_) => Err(Errno::EEXIST),
        Err(error) => Err(error),
    }
}

/// The path without links and dots; its last name need not be there.
pub(super) fn real_path(path: &Path) -> Result<PathBuf, Refusal> {
    let missing = match std::fs::canonicalize(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => error,
        real => return Ok(real?),
    };
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(missing.into()),
    };
    let name: &OsStr = path.file_name().ok_or(Errno::ENOENT)?;
    Ok(std::fs::canonicalize(parent)?.join(name))
}

/// Gives what lies at a path what was named. Without `follow`, of a link itself.
pub(super) fn set(path: &Path, wanted: &Attributes, follow: bool) -> Result<(), Refusal> {
    let (modes, stamps, owners) = if follow {
        (FchmodatFlags::FollowSymlink, UtimensatFlags::FollowSymlink, AtFlags::empty())
    } else {
        (FchmodatFlags::NoFollowSymlink, UtimensatFlags::NoFollowSymlink, AtFlags::AT_SYMLINK_NOFOLLOW)
    };
    if let Some(size) = wanted.size {
        if !follow {
            return Err(Refusal::bad_message("a link has no size to set"));
        }
        truncate(path, staged::offset(size)?)?;
    }
    if let Some(mode) = wanted.mode() {
        fchmodat(AT_FDCWD, path, mode, modes)?;
    }
    if let Some((accessed, modified)) = wanted.times {
        utimensat(AT_FDCWD, path, &times::at(accessed.into()), &times::at(modified.into()), stamps)?;
    }
    if let Some((user, group)) = wanted.ids() {
        fchownat(AT_FDCWD, path, Some(user), Some(group), owners)?;
    }
    Ok(())
}
