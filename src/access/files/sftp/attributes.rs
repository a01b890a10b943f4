//! Attributes of files (draft-ietf-secsh-filexfer-02 §5).

use std::io::Write;

use nix::sys::stat::{FileStat, Mode};
use nix::unistd::{Gid, Uid};

use super::wire::{Fields, Replies, Short};

const SIZE: u32 = 1;
const OWNER: u32 = 2;
const PERMISSIONS: u32 = 4;
const TIMES: u32 = 8;
const EXTENDED: u32 = 1 << 31;

/// What a client wants a file to be, each part where it named it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    pub size: Option<u64>,
    pub owner: Option<(u32, u32)>,
    pub permissions: Option<u32>,
    /// Of access and of modification, in seconds.
    pub times: Option<(u32, u32)>,
}

impl Attributes {
    pub fn read(fields: &mut Fields<'_>) -> Result<Self, Short> {
        let flags = fields.u32()?;
        let mut read = Self::default();
        if flags & SIZE != 0 {
            read.size = Some(fields.u64()?);
        }
        if flags & OWNER != 0 {
            read.owner = Some((fields.u32()?, fields.u32()?));
        }
        if flags & PERMISSIONS != 0 {
            read.permissions = Some(fields.u32()?);
        }
        if flags & TIMES != 0 {
            read.times = Some((fields.u32()?, fields.u32()?));
        }
        if flags & EXTENDED != 0 {
            // None is known; each takes its eight bytes at least, so a count alone costs nothing.
            for _ in 0..fields.u32()? {
                fields.string()?;
                fields.string()?;
            }
        }
        Ok(read)
    }

    /// The mode, in the bits that chmod(2) takes.
    pub fn mode(&self) -> Option<Mode> {
        self.permissions.map(Mode::from_bits_truncate)
    }

    /// Owner and group.
    pub fn ids(&self) -> Option<(Uid, Gid)> {
        self.owner.map(|(user, group)| (Uid::from_raw(user), Gid::from_raw(group)))
    }
}

/// Writes what a file is.
pub(super) fn write<W: Write>(replies: &mut Replies<W>, found: &FileStat) {
    replies.u32(SIZE | OWNER | PERMISSIONS | TIMES);
    replies.u64(u64::try_from(found.st_size).unwrap_or(0));
    replies.u32(found.st_uid);
    replies.u32(found.st_gid);
    replies.u32(found.st_mode);
    replies.u32(seconds(found.st_atime));
    replies.u32(seconds(found.st_mtime));
}

/// A time in the 32 bits that version 3 has, without a sign: before 1970 and after 2106 the nearest.
fn seconds(time: i64) -> u32 {
    u32::try_from(time.max(0)).unwrap_or(u32::MAX)
}
