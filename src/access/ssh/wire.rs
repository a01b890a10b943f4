//! Data types of the protocol (RFC 4251 §5).

/// Longest name of anything (RFC 4250 §4.6.1).
const NAME_LIMIT: usize = 64;

/// A message that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a malformed message: {0}")]
pub struct Malformed(pub &'static str);

/// Reads a message field by field.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'m>(&'m [u8]);

impl<'m> Reader<'m> {
    /// Over a message or a part of it.
    #[must_use]
    pub fn new(message: &'m [u8]) -> Self {
        Self(message)
    }

    /// The next `count` bytes.
    ///
    /// # Errors
    /// [`Malformed`] at the message's end.
    pub fn bytes(&mut self, count: usize) -> Result<&'m [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(bytes)
    }

    /// `byte`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.bytes(1)?[0])
    }

    /// `boolean`: every value but 0 is true.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn boolean(&mut self) -> Result<bool, Malformed> {
        Ok(self.u8()? != 0)
    }

    /// `uint32`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// `string`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn string(&mut self) -> Result<&'m [u8], Malformed> {
        let length = self.u32()? as usize;
        self.bytes(length)
    }

    /// A `string` that is text.
    ///
    /// # Errors
    /// [`Malformed`]: not UTF-8 either.
    pub fn text(&mut self) -> Result<&'m str, Malformed> {
        std::str::from_utf8(self.string()?).map_err(|_| Malformed("a text is not UTF-8"))
    }

    /// A `string` that names something: a kind of channel, a request.
    ///
    /// # Errors
    /// [`Malformed`]: longer than [`NAME_LIMIT`] too.
    pub fn name(&mut self) -> Result<&'m str, Malformed> {
        self.text().and_then(|name| match name.len() {
            0..=NAME_LIMIT => Ok(name),
            _ => Err(Malformed("a name is longer than 64 characters")),
        })
    }

    /// All that is left.
    #[must_use]
    pub fn rest(self) -> &'m [u8] {
        self.0
    }
}

/// Writes a message field by field.
pub trait Writer {
    /// `uint32`.
    fn put_u32(&mut self, value: u32);
    /// `boolean`.
    fn put_boolean(&mut self, value: bool);
    /// `string`.
    fn put_string(&mut self, value: &[u8]);
    /// `mpint` of a number without a sign, most significant byte first.
    fn put_mpint(&mut self, value: &[u8]);
}

impl Writer for Vec<u8> {
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }

    fn put_boolean(&mut self, value: bool) {
        self.push(u8::from(value));
    }

    fn put_string(&mut self, value: &[u8]) {
        // Nothing that is sent comes near 4 GiB: it is in memory, and bounded where it is read.
        self.put_u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.extend_from_slice(value);
    }

    fn put_mpint(&mut self, value: &[u8]) {
        let value = &value[value.iter().position(|&byte| byte != 0).unwrap_or(value.len())..];
        let positive = value.first().is_some_and(|first| first & 0x80 != 0);
        self.put_u32(u32::try_from(value.len() + usize::from(positive)).unwrap_or(u32::MAX));
        if positive {
            self.push(0);
        }
        self.extend_from_slice(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_the_rfc_shows() {
        let mpint = |value: &[u8]| {
            let mut bytes = Vec::new();
            bytes.put_mpint(value);
            bytes
        };
        // The examples of RFC 4251 §5.
        assert_eq!(mpint(&[]), [0, 0, 0, 0]);
        assert_eq!(mpint(&[0, 0]), [0, 0, 0, 0]);
        assert_eq!(mpint(&[0x80]), [0, 0, 0, 2, 0, 0x80]);
        assert_eq!(mpint(&[0x09, 0xa3]), [0, 0, 0, 2, 0x09, 0xa3]);
    }

    #[test]
    fn what_is_written_is_read_and_what_is_cut_is_refused() {
        let mut message = vec![7];
        message.put_u32(9);
        message.put_string("täxt".as_bytes());
        message.put_boolean(true);
        let read = |message: &[u8]| -> Result<(u8, u32, String, bool), Malformed> {
            let mut reader = Reader::new(message);
            Ok((reader.u8()?, reader.u32()?, reader.text()?.to_owned(), reader.boolean()?))
        };
        assert_eq!(read(&message), Ok((7, 9, "täxt".into(), true)));
        for cut in 0..message.len() {
            assert!(read(&message[..cut]).is_err(), "{cut}");
        }
        message[5..9].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(read(&message).is_err());
    }
}
