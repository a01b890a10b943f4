//! A request head, read strictly: what two implementations could read differently is refused (RFC 9112 §§2.2, 5, 6,
//! 11.2). No byte of a head goes further before the whole of it has passed here.

use super::denial::Kind;
use super::limits;

/// How the end of a request's body is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// There is none.
    Empty,
    /// So many bytes.
    Length(u64),
    /// Chunks, up to the one of size zero.
    Chunked,
}

/// A head that passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head<'a> {
    /// Method, as sent: methods are case-sensitive.
    pub method: &'a str,
    /// Request target, as sent.
    pub target: &'a str,
    /// Minor version: 0 or 1.
    pub minor: u8,
    /// The Host field.
    pub host: Option<&'a str>,
    /// How the body ends.
    pub framing: Framing,
    /// Whether the client asks to speak another protocol on this connection.
    pub upgrade: bool,
    /// Whether the client expects the connection to outlive the answer.
    pub keep_alive: bool,
}

/// Why a head did not pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeadError {
    /// Longer than [`limits::HEAD_BYTES`].
    #[error("the request head exceeds {} bytes", limits::HEAD_BYTES)]
    TooLarge,
    /// More fields than [`limits::HEAD_FIELDS`].
    #[error("the request head has more than {} fields", limits::HEAD_FIELDS)]
    TooManyFields,
    /// Not complete within [`limits::Patience::head`].
    #[error("the request head was not complete in time; send it at once")]
    TooSlow,
    /// Anything else.
    #[error("{0}")]
    Malformed(&'static str),
}

impl HeadError {
    /// What kind of refusal answers it.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::TooLarge | Self::TooManyFields => Kind::HeadTooLarge,
            Self::TooSlow => Kind::RequestTimeout,
            Self::Malformed(_) => Kind::InvalidRequest,
        }
    }
}

use HeadError::Malformed;

/// Looks for the end of a head in `bytes`, of which `scanned` have been looked at before, and answers its length,
/// empty line included; `None` while more bytes are needed.
///
/// # Errors
/// The head is too large, or holds a line end or control byte that no head may hold.
pub(super) fn end(bytes: &[u8], scanned: &mut usize) -> Result<Option<usize>, HeadError> {
    let mut at = *scanned;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\r' => match bytes.get(at + 1) {
                None => break,
                Some(b'\n') => {
                    at += 2;
                    if bytes[..at].ends_with(b"\r\n\r\n") {
                        *scanned = 0;
                        return if at > limits::HEAD_BYTES { Err(HeadError::TooLarge) } else { Ok(Some(at)) };
                    }
                    if bytes.get(at).is_some_and(|next| matches!(next, b' ' | b'\t')) {
                        return Err(Malformed("a field continues on the next line (obsolete line folding)"));
                    }
                }
                Some(_) => return Err(Malformed("a carriage return stands alone")),
            },
            b'\n' => return Err(Malformed("a line ends in a bare line feed")),
            0..=8 | 11..=31 | 127 => return Err(Malformed("a control byte stands in the request head")),
            _ => at += 1,
        }
        if at > limits::HEAD_BYTES {
            return Err(HeadError::TooLarge);
        }
    }
    *scanned = at;
    Ok(None)
}

/// Reads a whole head, as [`end`] found it.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(bytes: &[u8]) -> Result<Head<'_>, HeadError> {
    let mut lines = Lines { rest: bytes };
    let (method, target, minor) = request_line(lines.next().unwrap_or_default())?;
    let mut head =
        Head { method, target, minor, host: None, framing: Framing::Empty, upgrade: false, keep_alive: minor == 1 };
    let (mut upgrade_named, mut upgrade_nominated) = (false, false);
    for (count, line) in lines.enumerate() {
        if count == limits::HEAD_FIELDS {
            return Err(HeadError::TooManyFields);
        }
        let (name, value) = field(line)?;
        // The fields that matter here differ in length: most fields cost one comparison of lengths.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => {
                if head.host.is_some() {
                    return Err(Malformed("there is more than one Host field"));
                }
                head.host = Some(visible(value).ok_or(Malformed("the Host field is not a host and port"))?);
            }
            7 if name.eq_ignore_ascii_case(b"upgrade") => upgrade_named = true,
            10 if name.eq_ignore_ascii_case(b"connection") => {
                for option in value.split(|&byte| byte == b',').map(<[u8]>::trim_ascii) {
                    if option.eq_ignore_ascii_case(b"close") {
                        head.keep_alive = false;
                    } else if option.eq_ignore_ascii_case(b"keep-alive") {
                        head.keep_alive |= minor == 0;
                    } else if option.eq_ignore_ascii_case(b"upgrade") {
                        upgrade_nominated = true;
                    }
                }
            }
            14 if name.eq_ignore_ascii_case(b"content-length") => {
                if head.framing != Framing::Empty {
                    return Err(Malformed("there is more than one field that says how long the body is"));
                }
                head.framing = Framing::Length(length(value)?);
            }
            17 if name.eq_ignore_ascii_case(b"transfer-encoding") => {
                if head.framing != Framing::Empty {
                    return Err(Malformed("there is more than one field that says how long the body is"));
                }
                if minor == 0 {
                    return Err(Malformed("HTTP/1.0 knows no Transfer-Encoding"));
                }
                if !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(Malformed("a Transfer-Encoding other than \"chunked\" is not supported"));
                }
                head.framing = Framing::Chunked;
            }
            _ => {}
        }
    }
    if minor == 1 && head.host.is_none() {
        return Err(Malformed("HTTP/1.1 needs a Host field"));
    }
    // What the HTTP library cannot read it would answer by itself, and without a body; a fragment it would drop in
    // silence, although RFC 9112 §3.2 knows none in a target.
    let refused = || target.contains('#') || target.parse::<hyper::Uri>().is_err();
    if method != "CONNECT" && !is_plain(target) && refused() {
        return Err(Malformed("the request target is not a URI: bytes such as \", <, > and # must be percent-encoded"));
    }
    head.upgrade = minor == 1 && upgrade_named && upgrade_nominated;
    Ok(head)
}

/// The lines of a head without their ends, up to the empty one.
struct Lines<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Lines<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let end = self.rest.iter().position(|&byte| byte == b'\r')?;
        let line = &self.rest[..end];
        self.rest = self.rest.get(end + 2..).unwrap_or_default();
        (!line.is_empty()).then_some(line)
    }
}

fn request_line(line: &[u8]) -> Result<(&str, &str, u8), HeadError> {
    let mut words = line.split(|&byte| byte == b' ');
    let (method, target, version) = match (words.next(), words.next(), words.next(), words.next()) {
        (Some(method), Some(target), Some(version), None) => (method, target, version),
        _ => return Err(Malformed("the request line is not METHOD TARGET HTTP/1.1, separated by single spaces")),
    };
    let method = token(method).ok_or(Malformed("the method is not a token"))?;
    let target = visible(target).ok_or(Malformed("the request target is empty or holds bytes that must be encoded"))?;
    let minor = match version {
        b"HTTP/1.1" => 1,
        b"HTTP/1.0" => 0,
        _ => return Err(Malformed("only HTTP/1.1 and HTTP/1.0 are spoken here")),
    };
    Ok((method, target, minor))
}

/// A field's name, and its value without the white space around it.
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), HeadError> {
    let colon = line.iter().position(|&byte| byte == b':').ok_or(Malformed("a field has no colon"))?;
    let name = &line[..colon];
    if token(name).is_none() {
        return Err(Malformed("a field name is empty or holds something else than letters, digits and hyphens"));
    }
    Ok((name, line[colon + 1..].trim_ascii()))
}

fn length(value: &[u8]) -> Result<u64, HeadError> {
    // `u64::from_str` would take a plus sign.
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(Malformed("the Content-Length is not a number"));
    }
    std::str::from_utf8(value)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or(Malformed("the Content-Length is too large"))
}

/// `token` of RFC 9110 §5.6.2.
pub(super) fn is_token_byte(byte: u8) -> bool {
    TOKEN[usize::from(byte)]
}

/// Looked up rather than compared: every byte of every field name is asked about.
static TOKEN: [bool; 256] = table(b"!#$%&'*+-.^_`|~");

/// What every URI parser takes in a path and a query (RFC 3986 §§2.3, 3.3, 3.4).
static PLAIN: [bool; 256] = table(b"-._~!$&'()*+,;=:@/?%");

/// Letters, digits and `others`.
const fn table(others: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < table.len() {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut at = 0;
    while at < others.len() {
        table[others[at] as usize] = true;
        at += 1;
    }
    table
}

/// Whether a target is in origin form and holds nothing that could be refused.
fn is_plain(target: &str) -> bool {
    target.starts_with('/') && target.bytes().all(|byte| PLAIN[usize::from(byte)])
}

fn token(bytes: &[u8]) -> Option<&str> {
    (!bytes.is_empty() && bytes.iter().all(|&byte| is_token_byte(byte))).then(|| std::str::from_utf8(bytes).ok())?
}

fn visible(bytes: &[u8]) -> Option<&str> {
    (!bytes.is_empty() && bytes.iter().all(u8::is_ascii_graphic)).then(|| std::str::from_utf8(bytes).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Head<'_>, HeadError> {
        let mut scanned = 0;
        match end(text.as_bytes(), &mut scanned)? {
            Some(length) => parse(&text.as_bytes()[..length]),
            None => Err(Malformed("incomplete")),
        }
    }

    #[test]
    fn ordinary_heads_pass() {
        let head = read("CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n\r\n").unwrap();
        assert_eq!((head.method, head.target, head.minor), ("CONNECT", "api.example.com:443", 1));
        assert_eq!((head.host, head.framing, head.keep_alive), (Some("api.example.com:443"), Framing::Empty, true));
        let head =
            read("POST http://a/ HTTP/1.1\r\nhost: a\r\nContent-length:  12 \r\nConnection: x, close\r\n\r\n").unwrap();
        assert_eq!((head.framing, head.keep_alive), (Framing::Length(12), false));
        let head = read("PUT http://a/ HTTP/1.1\r\nHost: a\r\ntransfer-encoding: Chunked\r\n\r\n").unwrap();
        assert_eq!(head.framing, Framing::Chunked);
        let head =
            read("GET http://a/ HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n").unwrap();
        assert!(head.upgrade);
        let head = read("GET http://a/ HTTP/1.0\r\n\r\n").unwrap();
        assert!(!head.keep_alive && head.host.is_none());
        assert!(read("GET http://a/ HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").unwrap().keep_alive);
        // Bytes above ASCII may stand in values (obs-text).
        assert!(read("GET http://a/ HTTP/1.1\r\nHost: a\r\nX: \u{e9}\t b\r\n\r\n").is_ok());
    }

    #[test]
    fn what_could_be_read_two_ways_is_refused() {
        let get = |rest: &str| format!("GET http://a/ HTTP/1.1\r\nHost: a\r\n{rest}\r\n\r\n");
        let bad = [
            get("Content-Length: 1\r\nContent-Length: 1"),
            get("Content-Length: 1\r\nContent-Length: 2"),
            get("Content-Length: 1, 1"),
            get("Content-Length: +1"),
            get("Content-Length: -1"),
            get("Content-Length: 0x1"),
            get("Content-Length: 1 1"),
            get("Content-Length:"),
            get("Content-Length: 18446744073709551616"),
            get("Content-Length: 1\r\nTransfer-Encoding: chunked"),
            get("Transfer-Encoding: chunked\r\nContent-Length: 1"),
            get("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
            get("Transfer-Encoding: gzip, chunked"),
            get("Transfer-Encoding: chunked, identity"),
            get("Transfer-Encoding: xchunked"),
            get("Transfer-Encoding: \x0bchunked"),
            get("Transfer-Encoding : chunked"),
            get("Content-Length : 1"),
            get("X: a\r\n folded"),
            get("X: a\r\n\tfolded"),
            get(" X: a"),
            get("X y: a"),
            get("X\u{e9}: a"),
            get(": a"),
            get("no colon"),
            get("X: a\0b"),
            get("X: a\rb"),
            get("X: a\nY: b"),
            get("Host: a"),
            get("Host: b"),
            "GET http://a/ HTTP/1.1\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.1\r\nHost:\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.1\r\nHost: a b\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.1\nHost: a\n\n".to_owned(),
            "GET http://a/ HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n".to_owned(),
            "GET  http://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/ b HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET\thttp://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/\u{e9} HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/b#c HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/<b> HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "G(T http://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/1.2\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/ HTTP/2.0\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/ http/1.1\r\nHost: a\r\n\r\n".to_owned(),
            "GET http://a/\r\n\r\n".to_owned(),
            " GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(),
        ];
        for text in bad {
            assert!(
                matches!(read(&text), Err(Malformed(reason)) if reason != "incomplete"),
                "{text:?}: {:?}",
                read(&text)
            );
        }
    }

    #[test]
    fn plain_targets_are_uris() {
        let all: String = (0..=127_u8).filter(|&byte| PLAIN[usize::from(byte)]).map(char::from).collect();
        for target in [format!("/{all}"), format!("//{all}"), "/".to_owned(), "/?".to_owned(), format!("/a?{all}{all}")]
        {
            assert!(is_plain(&target) && target.parse::<hyper::Uri>().is_ok(), "{target}");
        }
        assert!(!is_plain("/a#b") && !is_plain("http://a/") && !is_plain("*") && !is_plain("/<") && !is_plain("/é"));
    }

    #[test]
    fn bounds_hold() {
        let fields = "X: y\r\n".repeat(limits::HEAD_FIELDS);
        assert_eq!(read(&format!("GET http://a/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n")), Err(HeadError::TooManyFields));
        let fields = "X: y\r\n".repeat(limits::HEAD_FIELDS - 1);
        assert!(read(&format!("GET http://a/ HTTP/1.1\r\nHost: a\r\n{fields}\r\n")).is_ok());
        let mut scanned = 0;
        assert_eq!(end(&vec![b'a'; limits::HEAD_BYTES + 1], &mut scanned), Err(HeadError::TooLarge));
    }

    #[test]
    fn a_head_is_found_however_it_is_cut() {
        let text = b"GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\nrest";
        let mut scanned = 0;
        for length in 0..text.len() - 4 {
            assert_eq!(end(&text[..length], &mut scanned), Ok(None), "{length}");
        }
        assert_eq!(end(text, &mut scanned), Ok(Some(text.len() - 4)));
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(bytes: Vec<u8>) {
            let mut scanned = 0;
            if let Ok(Some(length)) = end(&bytes, &mut scanned) {
                let _ = parse(&bytes[..length]);
            }
        }
    }
}
