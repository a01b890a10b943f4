//! Requests beyond the draft, which OpenSSH's clients use where a server offers them.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::sys::stat::fstat;
use nix::sys::statvfs::{FsFlags, Statvfs, fstatvfs, statvfs};
use nix::unistd::{fsync, linkat};

use super::attributes::Attributes;
use super::opened::Links;
use super::paths::{real_path, set};
use super::session::{Answer, Failed, Session, path};
use super::wire::{Fields, Refusal, reply};
use super::{MAX_DATA, MAX_HANDLES, MAX_PACKET};
use crate::access::files::staged::same;

/// What is offered, with versions.
pub(super) const OFFERED: [(&[u8], &[u8]); 11] = [
    (b"posix-rename@openssh.com", b"1"),
    (b"statvfs@openssh.com", b"2"),
    (b"fstatvfs@openssh.com", b"2"),
    (b"hardlink@openssh.com", b"1"),
    (b"fsync@openssh.com", b"1"),
    (b"lsetstat@openssh.com", b"1"),
    (b"limits@openssh.com", b"1"),
    (b"expand-path@openssh.com", b"1"),
    (b"copy-data", b"1"),
    (b"home-directory", b"1"),
    (b"users-groups-by-id@openssh.com", b"1"),
];

impl<W: Write> Session<'_, W> {
    pub(super) fn extended(&mut self, id: u32, fields: &mut Fields<'_>) -> Result<Answer, Failed> {
        match fields.string()? {
            b"posix-rename@openssh.com" => {
                let (from, to) = (path(fields)?, path(fields)?);
                self.rename_over(from, to)?;
            }
            b"hardlink@openssh.com" => {
                let (from, to) = (path(fields)?, path(fields)?);
                self.publish(from)?;
                let to = self.handles.lead(to, Links::Themselves)?;
                linkat(AT_FDCWD, from, AT_FDCWD, &to, AtFlags::empty())?;
            }
            b"fsync@openssh.com" => {
                let target = self.handles.file(fields.string()?)?;
                // Data that must not be lost must not be lost with the connection either.
                target.publish()?;
                fsync(&target.file)?;
            }
            b"lsetstat@openssh.com" => {
                let (path, wanted) = (path(fields)?, Attributes::read(fields)?);
                let path = self.handles.lead(path, Links::Themselves)?;
                set(&path, &wanted, false)?;
            }
            b"statvfs@openssh.com" => {
                let path = self.handles.lead(path(fields)?, Links::Followed)?;
                return self.file_system(id, &statvfs(&path)?);
            }
            b"fstatvfs@openssh.com" => {
                let handle = fields.string()?;
                let found = match self.handles.file(handle) {
                    Ok(target) => fstatvfs(&target.file)?,
                    Err(_) => fstatvfs(&self.handles.directory(handle)?.fd)?,
                };
                return self.file_system(id, &found);
            }
            b"limits@openssh.com" => {
                self.replies.begin(reply::EXTENDED, id)?;
                for limit in [MAX_PACKET, MAX_DATA, MAX_DATA, MAX_HANDLES] {
                    self.replies.u64(limit as u64);
                }
                return Ok(Answer::Written);
            }
            b"expand-path@openssh.com" => {
                let real = real_path(&self.expand(path(fields)?)?)?;
                return self.name(id, &real);
            }
            b"home-directory" => {
                let user = fields.string()?;
                let home = self.home((!user.is_empty()).then(|| OsStr::from_bytes(user)))?;
                return self.name(id, &home);
            }
            b"copy-data" => self.copy_data(fields)?,
            b"users-groups-by-id@openssh.com" => return self.accounts(id, fields),
            other => return Err(Refusal::unsupported(String::from_utf8_lossy(other)).into()),
        }
        Ok(Answer::Success)
    }

    fn home(&self, user: Option<&OsStr>) -> Result<PathBuf, Refusal> {
        let home = self.names.home(user);
        home.ok_or_else(|| Refusal::failure("no such user, or one without a home directory"))
    }

    /// The home directory for `~` and `~user` at the start.
    fn expand(&self, path: &Path) -> Result<PathBuf, Refusal> {
        let Some(rest) = path.as_os_str().as_bytes().strip_prefix(b"~") else { return Ok(path.to_owned()) };
        let (user, rest) = rest.split_at(rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len()));
        let mut home = self.home((!user.is_empty()).then(|| OsStr::from_bytes(user)))?.into_os_string();
        home.push(OsStr::from_bytes(rest));
        Ok(home.into())
    }

    fn file_system(&mut self, id: u32, found: &Statvfs) -> Result<Answer, Failed> {
        let flags = [(FsFlags::ST_RDONLY, 1), (FsFlags::ST_NOSUID, 2)];
        let flags = flags.into_iter().filter(|(flag, _)| found.flags().contains(*flag)).map(|(_, bit)| bit).sum();
        self.replies.begin(reply::EXTENDED, id)?;
        for value in [
            found.block_size(),
            found.fragment_size(),
            found.blocks(),
            found.blocks_free(),
            found.blocks_available(),
            found.files(),
            found.files_free(),
            found.files_available(),
            found.filesystem_id(),
            flags,
            found.name_max(),
        ] {
            self.replies.u64(value);
        }
        Ok(Answer::Written)
    }

    fn copy_data(&mut self, fields: &mut Fields<'_>) -> Result<(), Failed> {
        let (from, from_offset, length) = (fields.string()?, fields.u64()?, fields.u64()?);
        let (to, to_offset) = (fields.string()?, fields.u64()?);
        let source = self.handles.file(from)?;
        source.settle()?;
        let source = source.file.try_clone().map_err(Refusal::from)?;
        let target = self.handles.file(to)?;
        // The target may be a successor in which nothing is written yet: its first write decides.
        target.write(to_offset, b"")?;
        target.settle()?;
        // draft-ietf-secsh-filexfer-extensions-00 §7: none means up to the end.
        let length = if length == 0 { u64::MAX } else { length };
        let ends = |offset: u64| offset.saturating_add(length);
        if same(&fstat(&source)?, &fstat(&target.file)?)
            && from_offset < ends(to_offset)
            && to_offset < ends(from_offset)
        {
            return Err(Refusal::failure("the ranges overlap in one file").into());
        }
        target.copy_from(&source, from_offset, to_offset, length)?;
        Ok(())
    }

    /// Names for numbers: two lists come, of users and of groups, and two go back.
    fn accounts(&mut self, id: u32, fields: &mut Fields<'_>) -> Result<Answer, Failed> {
        let (users, groups) = (fields.string()?, fields.string()?);
        self.replies.begin(reply::EXTENDED, id)?;
        for (numbers, is_users) in [(users, true), (groups, false)] {
            let at = self.replies.later();
            let mut numbers = Fields(numbers);
            let mut length = 0;
            while let Ok(number) = numbers.u32() {
                let name = if is_users { self.names.user(number) } else { self.names.group(number) };
                let name = name.unwrap_or_default();
                self.replies.string(name.as_bytes());
                length += size_of::<u32>() + name.len();
            }
            self.replies.amend(at, u32::try_from(length).map_err(|_| Errno::EOVERFLOW)?);
        }
        Ok(Answer::Written)
    }
}
