//! What a client says first: a ClientHello, an HTTP request, or something else. Nothing is consumed; the bytes are
//! replayed to whoever carries the connection on.
//!
//! The reader is stricter than it needs to be to find a name, because the name is compared with the destination that
//! policy allowed: a hello that two readers could take for two different ones is no hello.

use std::net::IpAddr;

use crate::policy::host::Host;

/// Most bytes from the first one to the end of a ClientHello, record headers included. Real ones have 200 to 2,000
/// bytes, with a post-quantum key share or two 4,000; a resumed session's ticket may add some thousands.
pub const HELLO_BYTES: usize = 64 * 1024;

/// Longest fragment in a record: RFC 8446 §5.1.
const RECORD_BYTES: usize = 1 << 14;

/// Longest method that is still taken for one; the longest registered has 17 letters (RFC 9110 §16.1.2).
const METHOD_BYTES: usize = 24;

/// What an HTTP/2 client sends without having negotiated it: RFC 9113 §3.4.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// TLS 1.2, the lowest version that is served.
const TLS12: u16 = 0x0303;
/// TLS 1.3.
const TLS13: u16 = 0x0304;

/// Content type `handshake` (RFC 8446 §5.1), a record's first byte.
const HANDSHAKE: u8 = 22;
/// Handshake type `client_hello` (RFC 8446 §4).
const CLIENT_HELLO: u8 = 1;

/// Extension types (the IANA registry of TLS ExtensionType values).
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// What the first bytes of a connection are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sniff {
    /// Too few to tell; never for [`HELLO_BYTES`] or more.
    More,
    /// A whole ClientHello that can be served.
    Tls(Hello),
    /// The start of an HTTP/1 request.
    Http1,
    /// The whole preface of HTTP/2 with prior knowledge.
    Http2,
    /// Nothing of these, or a malformed or outdated one; the reason, as a sentence about the client.
    Other(&'static str),
}

/// What a ClientHello offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The name asked for, as [`Host`] writes it. An IP literal, which RFC 6066 §3 forbids and some clients send, is
    /// here in canonical form, so that it can be compared with the destination like any name.
    pub server_name: Option<String>,
    /// Protocols of the ALPN extension (RFC 7301), in the client's order, without GREASE (RFC 8701).
    pub alpn: Vec<Vec<u8>>,
    /// Whether there is an `encrypted_client_hello` extension (RFC 9849). A real one cannot be told from a GREASE one
    /// (§6.2 there), and most browsers send the latter everywhere, so it is no reason to refuse: `server_name` is the
    /// outer name, the certificate is ours and has no ECH key behind it, and so the outer hello is the one in force.
    pub ech: bool,
    /// Versions offered, in the client's order, without GREASE; TLS 1.2 or 1.3 is among them.
    pub versions: Vec<u16>,
}

impl Hello {
    /// Whether `protocol` is offered by ALPN.
    #[must_use]
    pub fn offers(&self, protocol: &[u8]) -> bool {
        self.alpn.iter().any(|offered| offered == protocol)
    }

    /// Whether the name asked for is `host`, or none is asked for: a client does not name an address, and may leave a
    /// name out. Anything else asks one origin's connection for another's (domain fronting).
    #[must_use]
    pub fn is_for(&self, host: &Host) -> bool {
        self.server_name.as_ref().is_none_or(|name| match host {
            Host::Name(expected) => name.as_str() == &**expected,
            Host::Address(expected) => name.parse::<IpAddr>().is_ok_and(|address| address == *expected),
        })
    }
}

/// Whether these are the first bytes of a TLS connection, be it one that can be served or not.
#[must_use]
pub fn begins_tls(bytes: &[u8]) -> bool {
    bytes.first() == Some(&HANDSHAKE)
}

/// Tells what the first bytes of a connection are. All that were received so far are to be passed each time.
#[must_use]
pub fn sniff(bytes: &[u8]) -> Sniff {
    let verdict = match bytes {
        [] => Sniff::More,
        [HANDSHAKE, ..] => match hello(bytes) {
            Ok(hello) => Sniff::Tls(hello),
            Err(Unread::More) => Sniff::More,
            Err(Unread::Bad(reason)) => Sniff::Other(reason),
        },
        [first, ..] if first & 0x80 != 0 => sslv2(bytes),
        _ => plain(bytes),
    };
    match verdict {
        Sniff::More if bytes.len() >= HELLO_BYTES => Sniff::Other("sent a ClientHello of more than 64 KiB"),
        verdict => verdict,
    }
}

/// A two-byte header with the high bit set, and CLIENT-HELLO of version 2 or, from clients that could speak both, 3
/// (RFC 6101 appendix E).
fn sslv2(bytes: &[u8]) -> Sniff {
    match bytes {
        [_, _, 1, 0 | 2 | 3, ..] => Sniff::Other(
            "sent an SSL 2.0 hello, which no current server takes (RFC 6176); it must speak TLS 1.2 or 1.3",
        ),
        [_] | [_, _] | [_, _, 1] => Sniff::More,
        _ => Sniff::Other(UNKNOWN),
    }
}

const UNKNOWN: &str = "spoke neither TLS nor HTTP";

/// HTTP, or nothing that is known.
fn plain(bytes: &[u8]) -> Sniff {
    if bytes.starts_with(HTTP2_PREFACE) {
        return Sniff::Http2;
    }
    if HTTP2_PREFACE.starts_with(bytes) {
        return Sniff::More;
    }
    // Clients may send empty lines before a request (RFC 9112 §2.2); whether these are taken is the parser's matter.
    let lines = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let rest = &bytes[lines..];
    if lines > METHOD_BYTES {
        return Sniff::Other(UNKNOWN);
    }
    // Every token is a method (RFC 9110 §9.1), and so would be an SSH banner. Letters, '-' and '_' make all that exist.
    let length = rest.iter().take_while(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_')).count();
    let (method, rest) = rest.split_at(length);
    if length > METHOD_BYTES {
        return Sniff::Other(UNKNOWN);
    }
    match rest {
        [] => Sniff::More,
        [b' '] if length > 0 => Sniff::More,
        // Then one of the forms of a target (RFC 9112 §3.2).
        [b' ', target @ ..] if length > 0 => match target {
            [b'/' | b'*', ..] => Sniff::Http1,
            [_, ..] if method.eq_ignore_ascii_case(b"CONNECT") => Sniff::Http1,
            _ if absolute(target) => Sniff::Http1,
            _ if target.len() < ABSOLUTE.len() && ABSOLUTE[..target.len()].eq_ignore_ascii_case(target) => Sniff::More,
            _ => Sniff::Other(UNKNOWN),
        },
        _ => Sniff::Other(UNKNOWN),
    }
}

const ABSOLUTE: &[u8] = b"http";

fn absolute(target: &[u8]) -> bool {
    target.get(..ABSOLUTE.len()).is_some_and(|scheme| scheme.eq_ignore_ascii_case(ABSOLUTE))
}

/// Why there is no hello.
enum Unread {
    /// Not yet.
    More,
    /// Never.
    Bad(&'static str),
}

const MALFORMED: Unread = Unread::Bad("sent a malformed ClientHello");

/// Collects the handshake message from its records (RFC 8446 §5.1) and reads it.
fn hello(bytes: &[u8]) -> Result<Hello, Unread> {
    let mut message = Vec::new();
    let mut rest = bytes;
    loop {
        let (&content, after) = rest.split_first().ok_or(Unread::More)?;
        if content != HANDSHAKE {
            return Err(Unread::Bad("put something else between the parts of its ClientHello"));
        }
        let (&major, after) = after.split_first().ok_or(Unread::More)?;
        // The minor version of a record means nothing (RFC 8446 §5.1, legacy_record_version).
        if major != 3 {
            return Err(Unread::Bad(UNKNOWN));
        }
        let length = match after {
            [_, high, low, ..] => usize::from(u16::from_be_bytes([*high, *low])),
            _ => return Err(Unread::More),
        };
        if length == 0 || length > RECORD_BYTES {
            return Err(Unread::Bad(
                "sent a TLS record that is empty or longer than 2^14 bytes (RFC 8446 section 5.1)",
            ));
        }
        let body = &after[3..];
        let fragment = &body[..length.min(body.len())];
        message.extend_from_slice(fragment);
        if let Some(body) = whole(&message)? {
            return read(body);
        }
        if fragment.len() < length {
            return Err(Unread::More);
        }
        rest = &body[length..];
    }
}

/// The body of the handshake message, once it is all there. What follows it belongs to the next one.
fn whole(message: &[u8]) -> Result<Option<&[u8]>, Unread> {
    let Some((&kind, after)) = message.split_first() else { return Ok(None) };
    if kind != CLIENT_HELLO {
        return Err(Unread::Bad("began a TLS handshake with something else than a ClientHello"));
    }
    let [high, middle, low, body @ ..] = after else { return Ok(None) };
    let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
    if length > HELLO_BYTES {
        return Err(Unread::Bad("sent a ClientHello of more than 64 KiB"));
    }
    Ok(body.get(..length))
}

/// Reads vectors whose length stands before them (RFC 8446 §3.4).
struct Reader<'b>(&'b [u8]);

impl<'b> Reader<'b> {
    fn take(&mut self, length: usize) -> Result<&'b [u8], Unread> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MALFORMED)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Unread> {
        self.take(1)?.first().copied().ok_or(MALFORMED)
    }

    fn number(&mut self) -> Result<u16, Unread> {
        Ok(u16::from(self.byte()?) << 8 | u16::from(self.byte()?))
    }

    fn vector8(&mut self) -> Result<Self, Unread> {
        let length = self.byte()?;
        self.take(length.into()).map(Self)
    }

    fn vector16(&mut self) -> Result<Self, Unread> {
        let length = self.number()?;
        self.take(length.into()).map(Self)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn end(&self) -> Result<(), Unread> {
        if self.is_empty() { Ok(()) } else { Err(MALFORMED) }
    }
}

/// ClientHello: RFC 8446 §4.1.2, and RFC 5246 §7.4.1.2 where it is of TLS 1.2.
fn read(body: &[u8]) -> Result<Hello, Unread> {
    let mut reader = Reader(body);
    let legacy_version = reader.number()?;
    reader.take(32)?;
    if reader.vector8()?.0.len() > 32 {
        return Err(MALFORMED);
    }
    let suites = reader.vector16()?;
    if suites.is_empty() || suites.0.len() % 2 != 0 || reader.vector8()?.is_empty() {
        return Err(MALFORMED);
    }
    let mut hello = Hello { server_name: None, alpn: Vec::new(), ech: false, versions: Vec::new() };
    let mut has_versions = false;
    if !reader.is_empty() {
        let mut extensions = reader.vector16()?;
        let mut seen = std::collections::HashSet::new();
        while !extensions.is_empty() {
            let kind = extensions.number()?;
            let content = extensions.vector16()?;
            // Two of a kind could be read as either (RFC 8446 §4.2).
            if !seen.insert(kind) {
                return Err(Unread::Bad("sent a ClientHello that has one extension twice (RFC 8446 section 4.2)"));
            }
            match kind {
                SERVER_NAME => hello.server_name = Some(server_name(content)?),
                ALPN => hello.alpn = protocols(content)?,
                SUPPORTED_VERSIONS => {
                    hello.versions = versions(content)?;
                    has_versions = true;
                }
                ENCRYPTED_CLIENT_HELLO => hello.ech = true,
                _ => {}
            }
        }
    }
    reader.end()?;
    if !has_versions {
        // Without the extension the field is the highest, of 1.2 at most (RFC 8446 §4.2.1).
        hello.versions = vec![legacy_version.min(TLS12)];
    }
    if hello.versions.iter().any(|version| matches!(*version, TLS12 | TLS13)) {
        Ok(hello)
    } else {
        Err(Unread::Bad("offers no version of TLS above 1.1, which RFC 8996 forbids; it must speak TLS 1.2 or 1.3"))
    }
}

/// RFC 6066 §3: one name of one type.
fn server_name(mut content: Reader<'_>) -> Result<String, Unread> {
    const BAD: Unread = Unread::Bad("asks by SNI for what is no host name");
    let mut list = content.vector16()?;
    content.end()?;
    if list.byte()? != 0 {
        return Err(BAD);
    }
    let name = list.vector16()?;
    if !list.is_empty() {
        return Err(Unread::Bad("asks by SNI for more than one name (RFC 6066 section 3)"));
    }
    // ASCII, with A-labels for anything else; the dot at the end is left out by the same paragraph.
    let name = std::str::from_utf8(name.0).ok().filter(|name| name.is_ascii() && !name.ends_with('.')).ok_or(BAD)?;
    Host::parse(name).map(|host| host.to_string()).map_err(|_| BAD)
}

/// RFC 7301 §3.1: names that are not empty, at least one.
fn protocols(mut content: Reader<'_>) -> Result<Vec<Vec<u8>>, Unread> {
    let mut list = content.vector16()?;
    content.end()?;
    if list.is_empty() {
        return Err(MALFORMED);
    }
    let mut protocols = Vec::new();
    while !list.is_empty() {
        let name = list.vector8()?.0;
        match name {
            [] => return Err(MALFORMED),
            [high, low] if is_grease(u16::from_be_bytes([*high, *low])) => {}
            name => protocols.push(name.to_vec()),
        }
    }
    Ok(protocols)
}

/// RFC 8446 §4.2.1.
fn versions(mut content: Reader<'_>) -> Result<Vec<u16>, Unread> {
    let mut list = content.vector8()?;
    content.end()?;
    let mut versions = Vec::new();
    while !list.is_empty() {
        let version = list.number()?;
        if !is_grease(version) {
            versions.push(version);
        }
    }
    Ok(versions)
}

/// RFC 8701 §2: two equal bytes whose low half is `a`.
fn is_grease(value: u16) -> bool {
    value & 0x0f0f == 0x0a0a && value >> 8 == value & 0xff
}

#[cfg(test)]
mod tests;
