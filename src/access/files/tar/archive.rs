//! Members of an archive, as they come.

use std::io::{self, BufRead, BufReader, Read};

use super::header::Header;
use super::map::Map;
use super::pax::{Extended, MAX_EXTENDED, decimal};
use super::{BLOCK, CHUNK, MAX_PATH, TarError};

/// Largest map of holes that stands before the data: three numbers' worth of digits for each piece.
const MAX_MAP_BLOCKS: usize = 8 << 20 >> 9;

/// What a member is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    Directory,
    SymbolicLink,
    HardLink,
    /// What is not made, and how it is called.
    Refused(&'static str),
}

/// A member; its data is read from the archive.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub path: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: Kind,
    pub mode: u32,
    /// Seconds and nanoseconds; `None` leaves the present.
    pub modified: Option<(i64, u32)>,
    /// Length of the file, holes included.
    pub size: u64,
    /// Where its data lies, if it has holes.
    pub map: Option<Map>,
}

/// An archive that is being read.
pub(super) struct Archive<R> {
    stream: BufReader<R>,
    position: u64,
    /// Bytes of the member's data that were not read yet, and what fills its last block.
    left: u64,
    padding: u64,
}

impl<R: Read> Archive<R> {
    pub fn new(stream: R) -> Self {
        Self { stream: BufReader::with_capacity(CHUNK, stream), position: 0, left: 0, padding: 0 }
    }

    fn malformed(&self, what: &'static str) -> TarError {
        TarError::Malformed { position: self.position, what }
    }

    fn exactly(&mut self, bytes: &mut [u8]) -> Result<(), TarError> {
        self.stream.read_exact(bytes).map_err(cut)?;
        self.position += bytes.len() as u64;
        Ok(())
    }

    /// The next member; what was not read of the last is passed over. `None` at the mark of the end.
    pub fn next(&mut self) -> Result<Option<Member>, TarError> {
        let mut extended = Extended::default();
        let (mut long_path, mut long_link) = (None, None);
        loop {
            self.pass_over()?;
            let mut header = Header([0; BLOCK]);
            self.exactly(&mut header.0)?;
            if header.is_empty() {
                return Ok(None);
            }
            if !header.is_sound() {
                return Err(self.malformed("a header whose checksum is wrong"));
            }
            match header.kind() {
                b'x' => {
                    let bytes = self.small_data(&header)?;
                    extended.read(&bytes).map_err(|malformed| self.malformed(malformed.0))?;
                }
                // What holds for all members changes none of what is taken of one: comments, mostly.
                b'g' => {
                    let bytes = self.small_data(&header)?;
                    let mut global = Extended::default();
                    global.read(&bytes).map_err(|malformed| self.malformed(malformed.0))?;
                    if global.path.is_some() || global.link.is_some() || global.size.is_some() {
                        return Err(self.malformed("a global header that names or measures members"));
                    }
                }
                b'L' => long_path = Some(self.long_name(&header)?),
                b'K' => long_link = Some(self.long_name(&header)?),
                b'V' => self.begin_data(&header, None)?,
                kind => {
                    let path = extended.path.take().or(long_path).unwrap_or_else(|| header.path());
                    let link = extended.link.take().or(long_link).unwrap_or_else(|| header.link());
                    return self.member(kind, &header, extended, path, link).map(Some);
                }
            }
        }
    }

    fn member(
        &mut self,
        kind: u8,
        header: &Header,
        extended: Extended,
        path: Vec<u8>,
        link: Vec<u8>,
    ) -> Result<Member, TarError> {
        let kind = match kind {
            // Before POSIX a slash at the end was what made a directory.
            0 | b'0' if path.ends_with(b"/") => Kind::Directory,
            0 | b'0' | b'7' | b'S' => Kind::File,
            b'1' => Kind::HardLink,
            b'2' => Kind::SymbolicLink,
            b'3' => Kind::Refused("a character device"),
            b'4' => Kind::Refused("a block device"),
            b'5' | b'D' => Kind::Directory,
            b'6' => Kind::Refused("a pipe"),
            b'M' => Kind::Refused("a part of a file that began in another volume"),
            _ => Kind::Refused("of no known type"),
        };
        let mut member = Member {
            path,
            link,
            kind,
            mode: header.mode().unwrap_or(0o644),
            modified: extended.modified.or_else(|| header.modified().map(|seconds| (seconds, 0))),
            size: 0,
            map: None,
        };
        // Links, directories and devices have no data whatever their header says: other readers take it so, and one that
        // did not would see other members than they do.
        if !matches!(header.kind(), b'1'..=b'6') {
            let map = if header.kind() == b'S' { Some(self.older_map(header)?) } else { None };
            self.begin_data(header, extended.size)?;
            member.size = self.left;
            self.sparse(&mut member, header, extended, map)?;
        }
        Ok(member)
    }

    /// The map that follows a header of GNU's older form.
    fn older_map(&mut self, header: &Header) -> Result<Map, TarError> {
        let mut map = Map::default();
        let (pairs, mut more) = header.map();
        map.push_pairs(pairs).map_err(|error| self.malformed(error.0))?;
        while more {
            let mut block = [0; BLOCK];
            self.exactly(&mut block)?;
            map.push_pairs(&block[..504]).map_err(|error| self.malformed(error.0))?;
            more = block[504] != 0;
        }
        Ok(map)
    }

    /// Finds out whether a file has holes, and where.
    fn sparse(
        &mut self,
        member: &mut Member,
        header: &Header,
        extended: Extended,
        map: Option<Map>,
    ) -> Result<(), TarError> {
        let sparse = extended.sparse;
        let (map, real) = if let Some(map) = map {
            (map, header.real_size())
        } else if sparse.map_in_data {
            (self.map_in_data()?, sparse.real_size)
        } else if let Some(map) = sparse.map {
            (map, sparse.real_size)
        } else {
            return Ok(());
        };
        let real = real.ok_or_else(|| self.malformed("a sparse file without a length"))?;
        if map.end() > real || map.data() != self.left {
            return Err(self.malformed("a sparse file whose map does not fit its data"));
        }
        if let Some(name) = sparse.name {
            member.path = name;
        }
        member.size = real;
        member.map = Some(map);
        Ok(())
    }

    /// The map at the start of the data: decimal numbers in lines, how many pairs, and the pairs.
    fn map_in_data(&mut self) -> Result<Map, TarError> {
        let malformed = "a map of holes is none";
        let mut map = Map::default();
        let (mut line, mut offset) = (Vec::new(), None);
        let mut pairs = None;
        for _ in 0..MAX_MAP_BLOCKS {
            let mut block = [0; BLOCK];
            if self.left < BLOCK as u64 {
                return Err(self.malformed(malformed));
            }
            self.exactly(&mut block)?;
            self.left -= BLOCK as u64;
            for byte in block {
                if byte != b'\n' {
                    if line.len() >= 20 {
                        return Err(self.malformed(malformed));
                    }
                    line.push(byte);
                    continue;
                }
                let value = decimal(&line).ok_or_else(|| self.malformed(malformed))?;
                line.clear();
                match (pairs, offset.take()) {
                    (None, _) => pairs = Some(value),
                    (Some(_), None) => offset = Some(value),
                    (Some(_), Some(offset)) => map.push(offset, value).map_err(|error| self.malformed(error.0))?,
                }
                if pairs == Some(map.pieces().len() as u64) && offset.is_none() {
                    return Ok(map);
                }
            }
        }
        Err(self.malformed("a sparse file of more pieces than are taken"))
    }

    fn begin_data(&mut self, header: &Header, size: Option<u64>) -> Result<(), TarError> {
        let size = size.or_else(|| header.size()).filter(|size| *size <= i64::MAX as u64);
        self.left = size.ok_or_else(|| self.malformed("a member whose length is none"))?;
        self.padding = self.left.next_multiple_of(BLOCK as u64) - self.left;
        Ok(())
    }

    /// Data that is about the next member.
    fn small_data(&mut self, header: &Header) -> Result<Vec<u8>, TarError> {
        self.begin_data(header, None)?;
        if self.left > MAX_EXTENDED {
            return Err(self.malformed("an extended header of more than 1 MiB"));
        }
        let mut bytes = vec![0; usize::try_from(self.left).unwrap_or_default()];
        self.exactly(&mut bytes)?;
        self.left = 0;
        Ok(bytes)
    }

    fn long_name(&mut self, header: &Header) -> Result<Vec<u8>, TarError> {
        let mut name = self.small_data(header)?;
        name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
        // Only what will be refused is longer, and it needs no more to be refused by.
        name.truncate(MAX_PATH + 1);
        Ok(name)
    }

    /// Some of the member's data, at most `limit` bytes; empty at its end. [`Self::taken`] says how much was used.
    pub fn data(&mut self, limit: u64) -> Result<&[u8], TarError> {
        let limit = usize::try_from(limit.min(self.left)).unwrap_or(usize::MAX);
        if limit == 0 {
            return Ok(&[]);
        }
        let bytes = loop {
            match self.stream.fill_buf() {
                Ok([]) => return Err(TarError::Cut),
                Ok(_) => break self.stream.buffer(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        };
        Ok(&bytes[..bytes.len().min(limit)])
    }

    /// See [`Self::data`].
    pub fn taken(&mut self, count: usize) {
        self.stream.consume(count);
        self.left -= count as u64;
        self.position += count as u64;
    }

    /// Passes over the rest of the member.
    fn pass_over(&mut self) -> Result<(), TarError> {
        self.left += std::mem::take(&mut self.padding);
        while self.left > 0 {
            let count = self.data(u64::MAX)?.len();
            self.taken(count);
        }
        Ok(())
    }

    /// Reads whatever follows the end, so that the sender can finish.
    pub fn drain(&mut self) -> Result<(), TarError> {
        io::copy(&mut self.stream, &mut io::sink())?;
        Ok(())
    }
}

fn cut(error: io::Error) -> TarError {
    if error.kind() == io::ErrorKind::UnexpectedEof { TarError::Cut } else { error.into() }
}
