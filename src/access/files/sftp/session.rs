//! Which request is answered where, and the requests on what is open.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::fcntl::AtFlags;
use nix::sys::stat::{Mode, fchmod, fstat, fstatat, futimens};
use nix::unistd::fchown;

use super::attributes::{self, Attributes};
use super::listing::Listing;
use super::opened::{Handle, Handles, read_at};
use super::wire::{Fields, Refusal, Replies, reply, request};
use super::{MAX_DATA, SftpError, extended};
use crate::access::files::{Names, times};

/// The version spoken: the one that clients speak.
const VERSION: u32 = 3;

/// Names in one reply, so that a listing begins to arrive while the rest is looked at.
const MAX_LISTED: usize = 256;

/// Room for one name of a listing: it comes twice, the second time within a line, and no file system has longer ones.
const LISTED_ROOM: usize = 4 << 10;

/// What a request came to, when it did not fail.
pub(super) enum Answer {
    /// SSH_FXP_STATUS, "success".
    Success,
    /// SSH_FXP_HANDLE.
    Handle(Handle),
    /// The reply is written.
    Written,
}

/// Why no answer was written.
pub(super) enum Failed {
    /// The client is told.
    Refused(Refusal),
    /// The client cannot be told.
    Session(SftpError),
}

impl<R: Into<Refusal>> From<R> for Failed {
    fn from(refusal: R) -> Self {
        Self::Refused(refusal.into())
    }
}

impl From<SftpError> for Failed {
    fn from(error: SftpError) -> Self {
        Self::Session(error)
    }
}

/// One client.
pub(super) struct Session<'n, W> {
    pub replies: Replies<W>,
    pub names: &'n dyn Names,
    pub handles: Handles,
    pub listing: Listing<'n>,
    initialised: bool,
}

/// A path as it came.
pub(super) fn path<'p>(fields: &mut Fields<'p>) -> Result<&'p Path, Refusal> {
    let bytes = fields.string()?;
    // draft §6.2: the empty path is the directory that a session starts in.
    Ok(Path::new(OsStr::from_bytes(if bytes.is_empty() { b"." } else { bytes })))
}

impl<'n, W: Write> Session<'n, W> {
    pub fn new(replies: Replies<W>, names: &'n dyn Names) -> Self {
        let (handles, listing) = (Handles::default(), Listing::new(names));
        Self { replies, names, handles, listing, initialised: false }
    }

    /// Answers a packet.
    pub fn take(&mut self, packet: &[u8]) -> Result<(), SftpError> {
        let mut fields = Fields(packet);
        let kind = fields.u8().unwrap_or_default();
        if !self.initialised {
            if kind != request::INIT || fields.u32().is_err() {
                return Err(SftpError::NotInitialised { found: kind });
            }
            self.initialised = true;
            // The version stands where other replies have the identifier.
            self.replies.begin(reply::VERSION, VERSION)?;
            for (name, version) in extended::OFFERED {
                self.replies.string(name);
                self.replies.string(version);
            }
            return self.replies.finish(0);
        }
        let id = fields.u32().map_err(|_| SftpError::NoIdentifier(kind))?;
        match self.answer(kind, id, &mut fields) {
            Ok(Answer::Success) => self.replies.success(id),
            Ok(Answer::Handle(handle)) => {
                self.replies.begin(reply::HANDLE, id)?;
                self.replies.string(&handle);
                self.replies.finish(id)
            }
            Ok(Answer::Written) => self.replies.finish(id),
            Err(Failed::Refused(refusal)) => self.replies.refuse(id, &refusal),
            Err(Failed::Session(error)) => Err(error),
        }
    }

    fn answer(&mut self, kind: u8, id: u32, fields: &mut Fields<'_>) -> Result<Answer, Failed> {
        match kind {
            request::READ => self.read(id, fields),
            request::WRITE => {
                let (handle, offset, data) = (fields.string()?, fields.u64()?, fields.string()?);
                self.handles.file(handle)?.write(offset, data)?;
                Ok(Answer::Success)
            }
            request::OPEN => {
                let (path, flags, wanted) = (path(fields)?, fields.u32()?, Attributes::read(fields)?);
                let mode = wanted.mode().unwrap_or(Mode::from_bits_truncate(0o666));
                Ok(Answer::Handle(self.handles.open_file(path, flags, mode)?))
            }
            request::OPENDIR => Ok(Answer::Handle(self.handles.open_directory(path(fields)?)?)),
            request::CLOSE => {
                self.handles.close(fields.string()?)?;
                Ok(Answer::Success)
            }
            request::FSTAT => {
                let found = self.handles.status(fields.string()?)?;
                self.attributes(id, &found)
            }
            request::FSETSTAT => self.set_on_handle(fields),
            request::READDIR => self.list(id, fields),
            request::EXTENDED => self.extended(id, fields),
            other => self.by_path(other, id, fields),
        }
    }

    fn read(&mut self, id: u32, fields: &mut Fields<'_>) -> Result<Answer, Failed> {
        let (handle, offset, length) = (fields.string()?, fields.u64()?, fields.u32()?);
        let length = usize::try_from(length).map_or(MAX_DATA, |length| length.min(MAX_DATA));
        let target = self.handles.file(handle)?;
        target.settle()?;
        self.replies.begin(reply::DATA, id)?;
        if length == 0 {
            self.replies.string(b"");
        } else {
            self.replies.filled(length, |space| {
                let read = read_at(&target.file, space, offset)?;
                target.passed.read += read as u64;
                Ok::<_, Refusal>(read)
            })?;
        }
        Ok(Answer::Written)
    }

    /// Writes the attributes of a file as the reply.
    pub fn attributes(&mut self, id: u32, found: &nix::sys::stat::FileStat) -> Result<Answer, Failed> {
        self.replies.begin(reply::ATTRS, id)?;
        attributes::write(&mut self.replies, found);
        Ok(Answer::Written)
    }

    fn set_on_handle(&mut self, fields: &mut Fields<'_>) -> Result<Answer, Failed> {
        let (handle, wanted) = (fields.string()?, Attributes::read(fields)?);
        let Ok(target) = self.handles.file(handle) else {
            let directory = &self.handles.directory(handle)?.fd;
            set(directory, &wanted)?;
            return Ok(Answer::Success);
        };
        if let Some(size) = wanted.size {
            target.set_size(size)?;
        }
        set(&target.file, &wanted)?;
        Ok(Answer::Success)
    }

    fn list(&mut self, id: u32, fields: &mut Fields<'_>) -> Result<Answer, Failed> {
        let handle = fields.string()?;
        let own = fstat(&self.handles.directory(handle)?.fd)?;
        self.replies.begin(reply::NAME, id)?;
        let at = self.replies.later();
        let mut count = 0;
        let mut looked_at = 0;
        while looked_at < MAX_LISTED && self.replies.room() > LISTED_ROOM {
            let Some(name) = self.handles.directory(handle)?.next_name()? else { break };
            looked_at += 1;
            let Some((shown, lies)) = self.handles.shown(&own, name) else { continue };
            let directory = &self.handles.directory(handle)?.fd;
            // What went meanwhile is not listed.
            let Ok(found) = fstatat(directory, lies.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else { continue };
            self.replies.string(shown.as_bytes());
            self.replies.string(&self.listing.line(&shown, &found));
            attributes::write(&mut self.replies, &found);
            count += 1;
        }
        if looked_at == 0 {
            return Err(Refusal::end().into());
        }
        self.replies.amend(at, count);
        Ok(Answer::Written)
    }
}

/// Gives an open file what was named: permissions, times, owner, in this order, since giving a file away ends the right
/// to change it.
fn set(file: &std::fs::File, wanted: &Attributes) -> Result<(), nix::errno::Errno> {
    if let Some(mode) = wanted.mode() {
        fchmod(file, mode)?;
    }
    if let Some((accessed, modified)) = wanted.times {
        futimens(file, &times::at(accessed.into()), &times::at(modified.into()))?;
    }
    if let Some((user, group)) = wanted.ids() {
        fchown(file, Some(user), Some(group))?;
    }
    Ok(())
}
