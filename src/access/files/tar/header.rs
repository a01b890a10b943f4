//! The block that stands before each member.

use super::BLOCK;

/// Where fields lie: offset and length.
mod field {
    pub type Field = (usize, usize);
    pub const NAME: Field = (0, 100);
    pub const MODE: Field = (100, 8);
    pub const UID: Field = (108, 8);
    pub const GID: Field = (116, 8);
    pub const SIZE: Field = (124, 12);
    pub const MTIME: Field = (136, 12);
    pub const CHECKSUM: Field = (148, 8);
    pub const KIND: usize = 156;
    pub const LINK: Field = (157, 100);
    pub const MAGIC: Field = (257, 8);
    pub const PREFIX: Field = (345, 155);
    /// GNU, of sparse files: the map's first four pairs, whether more follow, the file's real length.
    pub const MAP: Field = (386, 96);
    pub const MORE: usize = 482;
    pub const REAL_SIZE: Field = (483, 12);
}

/// Magic and version of POSIX; GNU has spaces and no version, and uses the prefix otherwise.
const USTAR: &[u8; 8] = b"ustar\x0000";

/// Largest number that eleven octal digits hold.
const MAX_OCTAL: u64 = (1 << 33) - 1;

/// A header block.
#[derive(Clone, Debug)]
pub(super) struct Header(pub [u8; BLOCK]);

impl Header {
    fn bytes(&self, (at, length): field::Field) -> &[u8] {
        &self.0[at..at + length]
    }

    /// Bytes up to the first zero.
    fn text(&self, at: field::Field) -> &[u8] {
        let bytes = self.bytes(at);
        &bytes[..bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len())]
    }

    /// Whether it is the mark of the end.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    /// Whether the checksum is right: of the bytes as unsigned ones, or signed, as some have counted.
    pub fn is_sound(&self) -> bool {
        let (at, length) = field::CHECKSUM;
        let counted = |value: fn(u8) -> i64| -> i64 {
            let sum =
                self.0.iter().enumerate().map(|(index, byte)| {
                    if (at..at + length).contains(&index) { i64::from(b' ') } else { value(*byte) }
                });
            sum.sum()
        };
        let stated = number(self.bytes(field::CHECKSUM));
        stated == Some(counted(i64::from)) || stated == Some(counted(|byte| i64::from(byte.cast_signed())))
    }

    /// The type letter.
    pub fn kind(&self) -> u8 {
        self.0[field::KIND]
    }

    /// The path, of both its parts.
    pub fn path(&self) -> Vec<u8> {
        let (name, prefix) = (self.text(field::NAME), self.text(field::PREFIX));
        if self.bytes(field::MAGIC)[..6] == USTAR[..6] && !prefix.is_empty() {
            [prefix, b"/", name].concat()
        } else {
            name.to_owned()
        }
    }

    /// The target of a link.
    pub fn link(&self) -> Vec<u8> {
        self.text(field::LINK).to_owned()
    }

    /// Permission bits; none where the field is unreadable.
    pub fn mode(&self) -> Option<u32> {
        u32::try_from(number(self.bytes(field::MODE))?).ok()
    }

    /// Bytes of data; `None` for what is no length.
    pub fn size(&self) -> Option<u64> {
        u64::try_from(number(self.bytes(field::SIZE))?).ok()
    }

    /// Seconds since 1970.
    pub fn modified(&self) -> Option<i64> {
        number(self.bytes(field::MTIME))
    }

    /// GNU: the length of a sparse file.
    pub fn real_size(&self) -> Option<u64> {
        u64::try_from(number(self.bytes(field::REAL_SIZE))?).ok()
    }

    /// GNU: the pairs of a sparse file's map in this block, and whether a block with more follows.
    pub fn map(&self) -> (&[u8], bool) {
        (self.bytes(field::MAP), self.0[field::MORE] != 0)
    }

    /// A new one; paths and sizes that do not fit are for pax to say.
    pub fn write(kind: u8, path: &[u8], link: &[u8], member: &Numbers) -> Self {
        let mut header = Self([0; BLOCK]);
        let (prefix, name) = split(path).unwrap_or((b"", &path[..path.len().min(field::NAME.1)]));
        header.set(field::NAME, name);
        header.set(field::PREFIX, prefix);
        header.set(field::LINK, &link[..link.len().min(field::LINK.1)]);
        header.set(field::MAGIC, USTAR);
        header.set_number(field::MODE, member.mode.into());
        header.set_number(field::UID, if member.uid < 1 << 21 { member.uid.into() } else { 0 });
        header.set_number(field::GID, if member.gid < 1 << 21 { member.gid.into() } else { 0 });
        header.set_number(field::SIZE, i64::try_from(member.size).unwrap_or(i64::MAX));
        header.set_number(field::MTIME, member.modified);
        header.0[field::KIND] = kind;
        header.set(field::CHECKSUM, b"        ");
        let sum: u32 = header.0.iter().map(|byte| u32::from(*byte)).sum();
        header.set(field::CHECKSUM, format!("{sum:06o}\0 ").as_bytes());
        header
    }

    fn set(&mut self, (at, _): field::Field, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn set_number(&mut self, at: field::Field, value: i64) {
        let digits = at.1 - 1;
        match u64::try_from(value) {
            Ok(small) if small < 1 << (3 * digits) => self.set(at, format!("{small:0digits$o}\0").as_bytes()),
            // GNU's large numbers: two's complement, the first bit set.
            _ => {
                let fill = if value < 0 { 0xff } else { 0 };
                let mut bytes = vec![fill; at.1];
                bytes[at.1 - 8..].copy_from_slice(&value.to_be_bytes());
                bytes[0] |= 0x80;
                self.set(at, &bytes);
            }
        }
    }
}

/// The numbers of a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub modified: i64,
}

/// Whether a size fits into a header's digits.
pub(super) fn size_fits(size: u64) -> bool {
    size <= MAX_OCTAL
}

/// Whether the target of a link fits.
pub(super) fn link_fits(link: &[u8]) -> bool {
    link.len() <= field::LINK.1
}

/// A path in the two parts of a header, split at a slash; `None` where it does not fit.
pub(super) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() <= field::NAME.1 {
        return Some((b"", path));
    }
    // The last slash of a directory's path is part of its name.
    let last = path.len() - 1;
    let first = path.len().checked_sub(field::NAME.1 + 1)?;
    (first.max(1)..last.min(field::PREFIX.1 + 1)).find(|at| path[*at] == b'/').map(|at| (&path[..at], &path[at + 1..]))
}

/// A number: octal digits between spaces and zeros, or binary where the first bit is set.
pub(super) fn number(field: &[u8]) -> Option<i64> {
    let (first, rest) = field.split_first()?;
    if first & 0x80 != 0 {
        // The second bit is the sign, the others are the number's first.
        let start = if first & 0x40 != 0 { i64::from(first.cast_signed()) } else { i64::from(first & 0x3f) };
        return rest.iter().try_fold(start, |value, byte| value.checked_mul(256)?.checked_add(i64::from(*byte)));
    }
    let text = field.split(|byte| *byte == 0).next().unwrap_or_default().trim_ascii();
    if text.iter().any(|digit| !(b'0'..=b'7').contains(digit)) {
        return None;
    }
    text.iter().try_fold(0_i64, |value, digit| value.checked_mul(8)?.checked_add(i64::from(digit - b'0')))
}
