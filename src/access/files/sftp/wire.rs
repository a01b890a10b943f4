//! Packets: a length of four bytes, a type, and fields.

use std::io::{self, Read, Write};

use nix::errno::Errno;

use super::{MAX_PACKET, SftpError};

/// Bytes of a packet's length.
const LENGTH: usize = size_of::<u32>();

/// Bytes received ahead: two packets, so that what is left of one is moved seldom.
const RECEIVED: usize = 2 * (LENGTH + MAX_PACKET);

/// Replies kept back: as many as fit before the largest.
const KEPT: usize = MAX_PACKET;

/// Packet types of requests.
pub(super) mod request {
    pub const INIT: u8 = 1;
    pub const OPEN: u8 = 3;
    pub const CLOSE: u8 = 4;
    pub const READ: u8 = 5;
    pub const WRITE: u8 = 6;
    pub const LSTAT: u8 = 7;
    pub const FSTAT: u8 = 8;
    pub const SETSTAT: u8 = 9;
    pub const FSETSTAT: u8 = 10;
    pub const OPENDIR: u8 = 11;
    pub const READDIR: u8 = 12;
    pub const REMOVE: u8 = 13;
    pub const MKDIR: u8 = 14;
    pub const RMDIR: u8 = 15;
    pub const REALPATH: u8 = 16;
    pub const STAT: u8 = 17;
    pub const RENAME: u8 = 18;
    pub const READLINK: u8 = 19;
    pub const SYMLINK: u8 = 20;
    pub const EXTENDED: u8 = 200;
}

/// Packet types of replies.
pub(super) mod reply {
    pub const VERSION: u8 = 2;
    pub const STATUS: u8 = 101;
    pub const HANDLE: u8 = 102;
    pub const DATA: u8 = 103;
    pub const NAME: u8 = 104;
    pub const ATTRS: u8 = 105;
    pub const EXTENDED: u8 = 201;
}

/// What a request came to, other than success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    code: u32,
    message: String,
}

impl Refusal {
    /// The end of a file or a directory.
    pub fn end() -> Self {
        Self { code: 1, message: "end of file".to_owned() }
    }

    /// The server's own reason.
    pub fn failure(message: impl Into<String>) -> Self {
        Self { code: 4, message: message.into() }
    }

    /// A request that makes no sense.
    pub fn bad_message(message: impl Into<String>) -> Self {
        Self { code: 5, message: message.into() }
    }

    /// A request that this server does not know.
    pub fn unsupported(what: impl std::fmt::Display) -> Self {
        Self { code: 8, message: format!("{what} is not supported") }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        // The classes in which OpenSSH's server puts errors, and for which clients have their own words.
        let code = match error {
            Errno::ENOENT | Errno::ENOTDIR | Errno::EBADF | Errno::ELOOP => 2,
            Errno::EPERM | Errno::EACCES | Errno::EFAULT => 3,
            Errno::ENAMETOOLONG | Errno::EINVAL => 5,
            Errno::ENOSYS | Errno::EOPNOTSUPP => 8,
            _ => 4,
        };
        Self { code, message: error.desc().to_owned() }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        super::super::staged::from_io(&error).into()
    }
}

/// Requests as they come in.
#[derive(Debug)]
pub(super) struct Requests<R> {
    stream: R,
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl<R: Read> Requests<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, bytes: vec![0; RECEIVED].into(), start: 0, end: 0 }
    }

    /// The next packet, its length left off; `None` where the client has closed between two.
    pub fn next(&mut self) -> Result<Option<&[u8]>, SftpError> {
        loop {
            if let Some(length) = self.length()? {
                let first = self.start + LENGTH;
                if self.end - first >= length {
                    self.start = first + length;
                    return Ok(Some(&self.bytes[first..self.start]));
                }
            }
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            } else if RECEIVED - self.start < LENGTH + MAX_PACKET {
                self.bytes.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            match self.stream.read(&mut self.bytes[self.end..]) {
                Ok(0) if self.start == self.end => return Ok(None),
                Ok(0) => return Err(SftpError::Truncated),
                Ok(count) => self.end += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the next packet can be had without waiting for it.
    pub fn another_is_there(&self) -> bool {
        match self.length() {
            Ok(Some(length)) => self.end - self.start - LENGTH >= length,
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// The length that the packet at the front announces.
    fn length(&self) -> Result<Option<usize>, SftpError> {
        let Some(length) = self.bytes[self.start..self.end].first_chunk() else { return Ok(None) };
        let length = u32::from_be_bytes(*length);
        match usize::try_from(length) {
            Ok(fits @ 1..=MAX_PACKET) => Ok(Some(fits)),
            _ => Err(SftpError::Packet { length }),
        }
    }
}

/// A packet that is too short for what it should hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Short;

impl From<Short> for Refusal {
    fn from(_: Short) -> Self {
        Self::bad_message("the packet is too short for its fields")
    }
}

/// The fields of a packet, taken from its front.
#[derive(Clone, Debug)]
pub(super) struct Fields<'p>(pub &'p [u8]);

impl<'p> Fields<'p> {
    fn take(&mut self, count: usize) -> Result<&'p [u8], Short> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Result<u8, Short> {
        self.take(1).map(|bytes| bytes[0])
    }

    pub fn u32(&mut self) -> Result<u32, Short> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Short)?;
        self.0 = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    pub fn u64(&mut self) -> Result<u64, Short> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(Short)?;
        self.0 = rest;
        Ok(u64::from_be_bytes(*bytes))
    }

    pub fn string(&mut self) -> Result<&'p [u8], Short> {
        let length = usize::try_from(self.u32()?).map_err(|_| Short)?;
        self.take(length)
    }
}

/// Replies, which leave together.
#[derive(Debug)]
pub(super) struct Replies<W> {
    stream: W,
    bytes: Box<[u8]>,
    /// Where the reply in the making starts.
    start: usize,
    end: usize,
    /// The reply in the making did not fit.
    full: bool,
}

impl<W: Write> Replies<W> {
    pub fn new(stream: W) -> Self {
        Self { stream, bytes: vec![0; KEPT + LENGTH + MAX_PACKET].into(), start: 0, end: 0, full: false }
    }

    /// Begins a reply; there is room for the largest.
    pub fn begin(&mut self, kind: u8, id: u32) -> Result<(), SftpError> {
        if self.end > KEPT {
            self.flush()?;
        }
        (self.start, self.full) = (self.end, false);
        self.end += LENGTH;
        self.put(&[kind]);
        self.u32(id);
        Ok(())
    }

    /// Ends the reply.
    pub fn finish(&mut self, id: u32) -> Result<(), SftpError> {
        if self.full {
            return self.refuse(id, &Refusal::failure("the answer exceeds the largest packet"));
        }
        let length = u32::try_from(self.end - self.start - LENGTH).unwrap_or(u32::MAX);
        self.bytes[self.start..self.start + LENGTH].copy_from_slice(&length.to_be_bytes());
        self.start = self.end;
        Ok(())
    }

    /// Forgets the reply in the making.
    fn abandon(&mut self) {
        self.end = self.start;
    }

    /// A status instead of whatever reply is in the making.
    fn status(&mut self, id: u32, code: u32, message: &str) -> Result<(), SftpError> {
        self.abandon();
        self.begin(reply::STATUS, id)?;
        self.u32(code);
        self.string(message.as_bytes());
        self.string(b"en");
        self.finish(id)
    }

    /// Says that a request failed.
    pub fn refuse(&mut self, id: u32, refusal: &Refusal) -> Result<(), SftpError> {
        self.status(id, refusal.code, &refusal.message)
    }

    /// Says that a request succeeded.
    pub fn success(&mut self, id: u32) -> Result<(), SftpError> {
        self.status(id, 0, "success")
    }

    fn put(&mut self, bytes: &[u8]) {
        let limit = self.start + LENGTH + MAX_PACKET;
        match self.bytes[..limit].get_mut(self.end..self.end + bytes.len()) {
            Some(space) => {
                space.copy_from_slice(bytes);
                self.end += bytes.len();
            }
            None => self.full = true,
        }
    }

    pub fn u32(&mut self, value: u32) {
        self.put(&value.to_be_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.put(&value.to_be_bytes());
    }

    pub fn string(&mut self, bytes: &[u8]) {
        // What exceeds 32 bits exceeds the packet too, and is not written.
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.put(bytes);
    }

    /// A string of at most `length` bytes that `fill` writes where it will lie, and of which it says how long it became.
    pub fn filled<E>(&mut self, length: usize, fill: impl FnOnce(&mut [u8]) -> Result<usize, E>) -> Result<(), E> {
        let (at, limit) = (self.end + LENGTH, self.start + LENGTH + MAX_PACKET);
        let Some(space) = self.bytes[..limit].get_mut(at..at + length) else {
            self.full = true;
            return Ok(());
        };
        let count = fill(space)?;
        self.u32(u32::try_from(count).unwrap_or(u32::MAX));
        self.end += count;
        Ok(())
    }

    /// Bytes that the reply in the making still has room for.
    pub fn room(&self) -> usize {
        (self.start + LENGTH + MAX_PACKET).saturating_sub(self.end)
    }

    /// A number that is known only later: where it lies, for [`Self::amend`].
    pub fn later(&mut self) -> usize {
        self.u32(0);
        self.end - size_of::<u32>()
    }

    /// Writes a number at its place.
    pub fn amend(&mut self, at: usize, value: u32) {
        self.bytes[at..at + size_of::<u32>()].copy_from_slice(&value.to_be_bytes());
    }

    /// Sends what is finished.
    pub fn flush(&mut self) -> Result<(), SftpError> {
        if self.end > 0 {
            self.stream.write_all(&self.bytes[..self.end])?;
            self.stream.flush()?;
            (self.start, self.end) = (0, 0);
        }
        Ok(())
    }
}
