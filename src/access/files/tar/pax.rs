//! Extended headers: records of a length, a key and a value.

use super::map::{Map, MapError};

/// Largest extended header. Access control lists and attributes of 64 KiB each come in them.
pub(super) const MAX_EXTENDED: u64 = 1 << 20;

/// What extended headers say about the next member.
#[derive(Clone, Debug, Default)]
pub(super) struct Extended {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    /// Seconds and nanoseconds.
    pub modified: Option<(i64, u32)>,
    pub sparse: Sparse,
}

/// What is said about holes, in the three ways that GNU tar has had.
#[derive(Clone, Debug, Default)]
pub(super) struct Sparse {
    pub name: Option<Vec<u8>>,
    pub real_size: Option<u64>,
    /// Version 1.0: the map stands before the data.
    pub map_in_data: bool,
    /// Versions 0.0 and 0.1: the map is here.
    pub map: Option<Map>,
    offset: Option<u64>,
}

/// Why an extended header cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub &'static str);

impl Extended {
    /// Adds what a header says.
    pub fn read(&mut self, mut bytes: &[u8]) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            let (key, value, rest) = record(bytes).ok_or(Malformed("a record of an extended header is none"))?;
            self.take(key, value)?;
            bytes = rest;
        }
        Ok(())
    }

    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Malformed> {
        let number = || decimal(value).ok_or(Malformed("a number in an extended header is none"));
        match key {
            b"path" => self.path = Some(value.to_owned()),
            b"linkpath" => self.link = Some(value.to_owned()),
            b"size" => self.size = Some(number()?),
            b"mtime" => self.modified = time(value),
            b"GNU.sparse.name" => self.sparse.name = Some(value.to_owned()),
            b"GNU.sparse.realsize" | b"GNU.sparse.size" => self.sparse.real_size = Some(number()?),
            b"GNU.sparse.major" => self.sparse.map_in_data = number()? == 1,
            b"GNU.sparse.offset" => self.sparse.offset = Some(number()?),
            b"GNU.sparse.numbytes" => {
                let offset = self.sparse.offset.take().ok_or(Malformed("a hole without an offset"))?;
                self.map().push(offset, number()?)?;
            }
            b"GNU.sparse.map" => {
                let mut numbers = value.split(|byte| *byte == b',').map(decimal);
                while let Some(offset) = numbers.next() {
                    let pair = offset.zip(numbers.next().flatten());
                    let (offset, length) = pair.ok_or(Malformed("a map of holes is none"))?;
                    self.map().push(offset, length)?;
                }
            }
            // Owners, times of access, comments, access control lists, attributes: not taken from a stranger.
            _ => {}
        }
        Ok(())
    }

    fn map(&mut self) -> &mut Map {
        self.sparse.map.get_or_insert_default()
    }
}

impl From<MapError> for Malformed {
    fn from(error: MapError) -> Self {
        Self(error.0)
    }
}

/// The first record: key, value, and what follows.
fn record(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length = usize::try_from(decimal(&bytes[..space])?).ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some((&record[..equals], &record[equals + 1..], rest))
}

/// A number of decimal digits, and nothing else.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(digits).ok()?.parse().ok()
}

/// A time: seconds, perhaps negative, perhaps with a fraction.
fn time(value: &[u8]) -> Option<(i64, u32)> {
    let (negative, value) = value.strip_prefix(b"-").map_or((false, value), |rest| (true, rest));
    let mut parts = value.splitn(2, |byte| *byte == b'.');
    let seconds = i64::try_from(decimal(parts.next()?)?).ok()?;
    let mut nanoseconds = 0;
    if let Some(fraction) = parts.next().filter(|fraction| !fraction.is_empty()) {
        let digits = &fraction[..fraction.len().min(9)];
        let shift = u32::try_from(9 - digits.len()).ok()?;
        nanoseconds = u32::try_from(decimal(digits)? * 10_u64.pow(shift)).ok()?;
    }
    Some(match (negative, nanoseconds) {
        (false, _) => (seconds, nanoseconds),
        (true, 0) => (-seconds, 0),
        // Before 1970 the fraction still counts forward.
        (true, _) => (-seconds - 1, 1_000_000_000 - nanoseconds),
    })
}

/// A time as [`time`] reads it.
pub(super) fn written_time(seconds: i64, nanoseconds: i64) -> String {
    match (seconds, nanoseconds) {
        (seconds, 0) => seconds.to_string(),
        (..0, _) => format!("-{}.{:09}", (seconds + 1).unsigned_abs(), 1_000_000_000 - nanoseconds),
        _ => format!("{seconds}.{nanoseconds:09}"),
    }
}

/// Writes a record.
pub(super) fn write(records: &mut Vec<u8>, key: &str, value: &[u8]) {
    // Space, equals sign and line end; the length counts its own digits.
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while rest + length.to_string().len() != length {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} {key}=").as_bytes());
    records.extend_from_slice(value);
    records.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_as_it_was_written() {
        for (seconds, nanoseconds) in
            [(0, 0), (0, 1), (1_700_000_000, 123_456_789), (-1, 999_999_999), (-7, 0), (-7, 5)]
        {
            let written = written_time(seconds, nanoseconds.into());
            assert_eq!(time(written.as_bytes()), Some((seconds, nanoseconds)), "{written}");
        }
    }
}
