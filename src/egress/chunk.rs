//! Where a chunked body ends (RFC 9112 §7.1), watched byte by byte while it passes, and strictly: a reader that is
//! more lenient than its neighbour is how a request gets smuggled.

use super::head::is_token_byte;
use super::limits;

/// Sixteen hexadecimal digits fill 64 bits; fifteen cannot overflow and name more than any body has.
const SIZE_DIGITS: u32 = 15;

/// What went wrong in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct ChunkError(pub &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// In the digits of a size; how many have been read.
    Size(u32),
    /// In an extension.
    Extension,
    /// After the CR of a size line.
    SizeEnd,
    /// In data.
    Data,
    /// After data, before CR.
    DataEnd,
    /// After that CR.
    DataEndFeed,
    /// At the start of a trailer line, or of the last, empty one.
    Line,
    /// In a trailer's name.
    Name,
    /// In a trailer's value.
    Value,
    /// After the CR of a trailer.
    LineEnd,
    /// After the CR of the empty line.
    LastFeed,
}

/// The state of a chunked body.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chunks {
    place: Place,
    size: u64,
    /// Bytes of the size line, or of all trailers.
    line: usize,
    trailers: usize,
}

impl Chunks {
    pub(super) fn new() -> Self {
        Self { place: Place::Size(0), size: 0, line: 0, trailers: 0 }
    }

    /// Takes `bytes`, and answers how many belong to the body and whether it ended with them.
    ///
    /// # Errors
    /// The first violation, and how many bytes before it were fine.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(usize, bool), (usize, ChunkError)> {
        let mut at = 0;
        while at < bytes.len() {
            if self.place == Place::Data {
                let step = usize::try_from(self.size).unwrap_or(usize::MAX).min(bytes.len() - at);
                at += step;
                self.size -= step as u64;
                if self.size == 0 {
                    self.place = Place::DataEnd;
                }
                continue;
            }
            let last = self.step(bytes[at]).map_err(|reason| (at, ChunkError(reason)))?;
            at += 1;
            if last {
                return Ok((at, true));
            }
        }
        Ok((at, false))
    }

    fn step(&mut self, byte: u8) -> Result<bool, &'static str> {
        self.line += 1;
        self.place = match (self.place, byte) {
            (Place::Size(digits), b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                if digits == SIZE_DIGITS {
                    return Err("a chunk's size is too large");
                }
                self.size = self.size * 16 + u64::from((byte as char).to_digit(16).unwrap_or_default());
                Place::Size(digits + 1)
            }
            (Place::Size(1..), b';') => Place::Extension,
            (Place::Size(1..) | Place::Extension, b'\r') => Place::SizeEnd,
            (Place::Size(_), _) => return Err("a chunk's size is not a hexadecimal number on a line of its own"),
            (Place::Extension, b'\t' | b' '..=b'~') => {
                if self.line > limits::CHUNK_LINE_BYTES {
                    return Err("a chunk's extension is too long");
                }
                Place::Extension
            }
            (Place::Extension, _) => return Err("a control byte stands in a chunk's extension"),
            (Place::SizeEnd, b'\n') => {
                self.line = 0;
                if self.size == 0 { Place::Line } else { Place::Data }
            }
            (Place::DataEnd, b'\r') => Place::DataEndFeed,
            (Place::DataEndFeed, b'\n') => {
                self.line = 0;
                Place::Size(0)
            }
            (Place::DataEnd | Place::DataEndFeed, _) => return Err("a chunk is longer than its size says"),
            (Place::Line, b'\r') => Place::LastFeed,
            (Place::Line, byte) if is_token_byte(byte) => {
                self.trailers += 1;
                if self.trailers > limits::HEAD_FIELDS {
                    return Err("there are too many trailers");
                }
                Place::Name
            }
            (Place::Name, b':') => Place::Value,
            (Place::Name, byte) if is_token_byte(byte) => Place::Name,
            (Place::Line | Place::Name, _) => return Err("a trailer's name is not a token"),
            (Place::Value, b'\r') => Place::LineEnd,
            (Place::Value, b'\t' | b' '..=b'~' | 0x80..) => Place::Value,
            (Place::Value, _) => return Err("a control byte stands in a trailer"),
            (Place::LineEnd, b'\n') => Place::Line,
            (Place::LastFeed, b'\n') => return Ok(true),
            (Place::SizeEnd | Place::LineEnd | Place::LastFeed, _) => return Err("a carriage return stands alone"),
            (Place::Data, _) => return Err("data is counted, not read"),
        };
        if self.line > limits::HEAD_BYTES {
            return Err("the trailers are too long");
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(bytes: &[u8]) -> Result<(usize, bool), (usize, ChunkError)> {
        Chunks::new().take(bytes)
    }

    #[test]
    fn bodies_end_where_they_end_however_they_are_cut() {
        let body = b"5;x=\"y\"\r\nhello\r\n0A\r\n0123456789\r\n0\r\nX-Sum: 1\r\nY:\r\n\r\n";
        let text = [body.as_slice(), b"GET"].concat();
        assert_eq!(all(&text), Ok((body.len(), true)));
        let mut chunks = Chunks::new();
        for (at, byte) in body.iter().enumerate() {
            assert_eq!(chunks.take(&[*byte]), Ok((1, at + 1 == body.len())), "{at}");
        }
        assert_eq!(all(b"0\r\n\r\nrest"), Ok((5, true)));
    }

    #[test]
    fn what_could_be_read_two_ways_is_refused() {
        for bad in [
            &b"\r\n"[..],
            b"5\nhello",
            b"5 \r\nhello",
            b" 5\r\nhello",
            b"+5\r\nhello",
            b"0x5\r\nhello",
            b"g\r\n",
            b"-1\r\n",
            b"10000000000000000\r\n",
            b"5\r\nhelloo\r\n",
            b"5\r\nhello\n0\r\n",
            b"5\r\nhello\r0\r\n",
            b"5;a\0\r\n",
            b"5;a\n",
            b"0\r\n\n",
            b"0\r\nX : y\r\n\r\n",
            b"0\r\n X: y\r\n\r\n",
            b"0\r\nX: y\n\r\n",
            b"0\r\nX: y\r\n folded\r\n\r\n",
            b"0\r\nX: y\rz\r\n\r\n",
            b"0\r\nGET / HTTP/1.1\r\n\r\n",
        ] {
            assert!(all(bad).is_err(), "{:?}: {:?}", String::from_utf8_lossy(bad), all(bad));
        }
        assert!(all(&[b"5;".as_slice(), &[b'x'; limits::CHUNK_LINE_BYTES]].concat()).is_err());
        assert!(all(&[b"0\r\n".as_slice(), &b"X: y\r\n".repeat(limits::HEAD_FIELDS + 1)].concat()).is_err());
        assert!(all(&[b"0\r\nX: ".as_slice(), &vec![b'x'; limits::HEAD_BYTES]].concat()).is_err());
    }

    proptest::proptest! {
        #[test]
        fn cutting_changes_nothing(bytes: Vec<u8>, cut: proptest::sample::Index) {
            let whole = all(&bytes);
            let cut = cut.index(bytes.len() + 1);
            let mut chunks = Chunks::new();
            let parts = match chunks.take(&bytes[..cut]) {
                Ok((taken, false)) => match chunks.take(&bytes[cut..]) {
                    Ok((more, end)) => Ok((taken + more, end)),
                    Err((more, error)) => Err((taken + more, error)),
                },
                ended => ended,
            };
            proptest::prop_assert_eq!(whole, parts);
        }
    }
}
