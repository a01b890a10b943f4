//! Where the data of a sparse file lies.

use super::header::number;

/// Most pieces of one file: a map of 1 MiB.
pub(super) const MAX_PIECES: usize = 1 << 16;

/// Pieces of data, in the order of the file; all else is holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Map(Vec<(u64, u64)>);

/// Why it is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapError(pub &'static str);

impl Map {
    /// Adds a piece: offset and length.
    pub fn push(&mut self, offset: u64, length: u64) -> Result<(), MapError> {
        if self.0.len() >= MAX_PIECES {
            return Err(MapError("a sparse file of more pieces than are taken"));
        }
        if offset < self.end() || offset.checked_add(length).is_none() {
            return Err(MapError("pieces of a sparse file that overlap"));
        }
        self.0.push((offset, length));
        Ok(())
    }

    /// Adds the pairs of a block of GNU's older form, which end with an empty one.
    pub fn push_pairs(&mut self, pairs: &[u8]) -> Result<(), MapError> {
        for pair in pairs.chunks_exact(24).take_while(|pair| pair[0] != 0) {
            let value = |field| number(field).and_then(|value| u64::try_from(value).ok());
            let (offset, length) =
                value(&pair[..12]).zip(value(&pair[12..])).ok_or(MapError("a map of holes is none"))?;
            self.push(offset, length)?;
        }
        Ok(())
    }

    /// Offset and length of each piece.
    pub fn pieces(&self) -> &[(u64, u64)] {
        &self.0
    }

    /// Where the last piece ends.
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |(offset, length)| offset + length)
    }

    /// Bytes of data.
    pub fn data(&self) -> u64 {
        self.0.iter().map(|(_, length)| length).sum()
    }
}
