//! The one canonical form of a host, used by matching and by dialling alike (design §3).
//!
//! Every reader of a name has its own idea of it: a browser takes `0x7f.1` for an address, a resolver drops a trailing
//! dot, a C library stops at a NUL. Where two of them disagree about one spelling, a policy can be walked around, so
//! there is a single reading here, and what could be read otherwise is refused. Addresses follow the host parser of the
//! WHATWG URL standard (§3.5, which keeps `inet_aton`'s spellings); names follow UTS #46 and the limits of RFC 1035
//! §2.3.4, with the underscore that service names use.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use idna::AsciiDenyList;

/// Longest name, without its trailing dot: RFC 1035 §2.3.4 counts 255 bytes with length bytes and the root.
pub const MAX_NAME: usize = 253;

/// Longest label: RFC 1035 §2.3.4.
pub const MAX_LABEL: usize = 63;

/// Longest text worth mapping: a name of four-byte characters in every position, so that nobody makes us normalise
/// kilobytes for a name that cannot be valid.
const MAX_INPUT: usize = 4 * MAX_NAME;

/// A host in canonical form: no two spellings of one destination differ, and nothing that a resolver could read
/// otherwise gets through.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A DNS name: lower case, IDNA A-labels, no trailing dot.
    Name(Arc<str>),
    /// An address, from whatever spelling.
    Address(IpAddr),
}

/// Why a text is no host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing there.
    #[error("the host is empty; expected a DNS name or an IP address")]
    Empty,
    /// Longer than any name can be.
    #[error("the host is {0} bytes long; a DNS name has at most {MAX_NAME}")]
    TooLong(usize),
    /// Two dots in a row, or a dot first.
    #[error("the host has an empty label; remove the extra dot")]
    EmptyLabel,
    /// A label longer than DNS carries.
    #[error("a label of the host is {0} bytes long; DNS allows {MAX_LABEL}")]
    LongLabel(usize),
    /// A character that no host has.
    #[error("the host contains {0:?}; expected letters, digits, '-', '_' and '.', without port, path or escapes")]
    Character(char),
    /// UTS #46 refuses it.
    #[error("the host is not a valid internationalised name; write its A-labels (xn--…)")]
    Idna,
    /// Ends in a number and is no IPv4 address, so that readers differ on what it is.
    #[error("the host ends in a number but is not an IPv4 address; expected a name, or an address such as 192.0.2.1")]
    Numeric,
    /// Colons or brackets that make no IPv6 address.
    #[error("the host is not a valid IPv6 address; expected one such as [2001:db8::1], and the port elsewhere")]
    Ipv6,
    /// A URL, or a path behind the host.
    #[error("this is a URL or a path, not a host; write the host alone, such as api.example.com")]
    Url,
    /// A port behind the host.
    #[error("the host is followed by a port; write the host alone, and the port in its own place")]
    Port,
    /// An IPv6 zone, which names an interface of one machine.
    #[error("the host has an IPv6 zone id; remove the '%' and what follows it")]
    Zone,
}

impl Host {
    /// Reads any spelling of a host: DNS name, IPv4 in `inet_aton`'s forms, IPv6 with or without brackets.
    ///
    /// # Errors
    ///
    /// Says what the text has that no host has.
    pub fn parse(text: &str) -> Result<Self, HostError> {
        if text.is_empty() {
            return Err(HostError::Empty);
        }
        if text.len() > MAX_INPUT {
            return Err(HostError::TooLong(text.len()));
        }
        if let Some(rest) = text.strip_prefix('[') {
            return ipv6(rest.strip_suffix(']').ok_or(HostError::Ipv6)?);
        }
        if text.contains('/') {
            return Err(HostError::Url);
        }
        match text.split_once(':') {
            // One colon is no IPv6 address, whatever stands around it.
            Some((_, port)) if !port.contains(':') => return Err(HostError::Port),
            Some(_) => return ipv6(text),
            None => {}
        }
        if text.bytes().all(is_plain) && !has_a_label(text) {
            return name(text);
        }
        if text.is_ascii() && !has_a_label(text) {
            return name(&text.to_ascii_lowercase());
        }
        // The deny list is applied by `name` to what the mapping yields: a full-width '％' becomes '%' only there.
        let mapped =
            idna::domain_to_ascii_cow(text.as_bytes(), AsciiDenyList::EMPTY).map_err(|_| first_foreign(text))?;
        name(&mapped)
    }

    /// The name, where it is one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => Some(name),
            Self::Address(_) => None,
        }
    }
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

impl std::str::FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::parse(text)
    }
}

fn is_plain(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.')
}

/// Whether a label claims to be IDNA's: those are decoded and checked even where every byte is plain.
fn has_a_label(text: &str) -> bool {
    text.split('.').any(|label| label.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("xn--")))
}

/// The more telling error for a text that the mapping refuses.
fn first_foreign(text: &str) -> HostError {
    let foreign = text.chars().find(|c| c.is_ascii() && !is_plain(c.to_ascii_lowercase() as u8));
    foreign.map_or(HostError::Idna, HostError::Character)
}

fn ipv6(text: &str) -> Result<Host, HostError> {
    if text.contains('%') {
        return Err(HostError::Zone);
    }
    let address: Ipv6Addr = text.parse().map_err(|_| HostError::Ipv6)?;
    Ok(Host::Address(address.to_canonical()))
}

/// The last steps, on lower-case ASCII.
fn name(text: &str) -> Result<Host, HostError> {
    if let Some(c) = text.chars().find(|c| !c.is_ascii() || !is_plain(*c as u8)) {
        return Err(HostError::Character(c));
    }
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() {
        return Err(HostError::Empty);
    }
    if text.len() > MAX_NAME {
        return Err(HostError::TooLong(text.len()));
    }
    let mut last = text;
    for label in text.split('.') {
        match label.len() {
            0 => return Err(HostError::EmptyLabel),
            length if length > MAX_LABEL => return Err(HostError::LongLabel(length)),
            _ => last = label,
        }
    }
    if is_number(last) {
        return ipv4(text).map(|address| Host::Address(address.into())).ok_or(HostError::Numeric);
    }
    Ok(Host::Name(text.into()))
}

/// What the URL standard calls "ends in a number": such a host is an address or nothing.
fn is_number(label: &str) -> bool {
    label.bytes().all(|b| b.is_ascii_digit())
        || label.strip_prefix("0x").is_some_and(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// `inet_aton`'s forms: one to four numbers, each decimal, octal after a `0` or hexadecimal after `0x`, the last one
/// filling the bytes that remain.
fn ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut parts = [0_u64; 4];
    let mut count = 0;
    for part in text.split('.') {
        *parts.get_mut(count)? = number(part)?;
        count += 1;
    }
    let (last, leading) = parts[..count].split_last()?;
    let mut address = *last;
    if address >= 1 << (8 * (5 - count)) {
        return None;
    }
    for (index, part) in leading.iter().enumerate() {
        if *part > 255 {
            return None;
        }
        address |= part << (8 * (3 - index));
    }
    u32::try_from(address).ok().map(Ipv4Addr::from)
}

fn number(text: &str) -> Option<u64> {
    let (digits, radix) = if let Some(hex) = text.strip_prefix("0x") {
        (hex, 16)
    } else if text.len() > 1 && text.starts_with('0') {
        (&text[1..], 8)
    } else {
        (text, 10)
    };
    // `0x` alone is zero to the URL standard; from_str_radix takes a sign, which no digit check lets through.
    if digits.is_empty() {
        return (radix == 16).then_some(0);
    }
    if !digits.bytes().all(|b| (b as char).is_digit(radix)) {
        return None;
    }
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(text: &str) -> String {
        match Host::parse(text) {
            Ok(host) => host.to_string(),
            Err(error) => panic!("{text:?}: {error}"),
        }
    }

    #[test]
    fn names_have_one_form() {
        for (given, canonical) in [
            ("api.example.com", "api.example.com"),
            ("API.Example.COM", "api.example.com"),
            ("api.example.com.", "api.example.com"),
            ("_sip._tcp.example.com", "_sip._tcp.example.com"),
            ("r3---sn-x.example.com", "r3---sn-x.example.com"),
            ("localhost", "localhost"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("api。example．com", "api.example.com"),
            ("ａｐｉ.example.com", "api.example.com"),
        ] {
            assert_eq!(shown(given), canonical, "{given:?}");
            assert!(Host::parse(given).unwrap().name().is_some());
        }
    }

    #[test]
    fn addresses_have_one_form_whatever_the_spelling() {
        for (given, canonical) in [
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1.", "127.0.0.1"),
            ("127.1", "127.0.0.1"),
            ("2130706433", "127.0.0.1"),
            ("0x7f000001", "127.0.0.1"),
            ("0X7F.1", "127.0.0.1"),
            ("017700000001", "127.0.0.1"),
            ("0177.0.0.01", "127.0.0.1"),
            ("0", "0.0.0.0"),
            ("0x", "0.0.0.0"),
            ("169.254.43518", "169.254.169.254"),
            ("１２７.０.０.１", "127.0.0.1"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("[::ffff:169.254.169.254]", "169.254.169.254"),
            ("[::ffff:a9fe:a9fe]", "169.254.169.254"),
            ("[2001:DB8:0:0::1]", "2001:db8::1"),
        ] {
            assert_eq!(shown(given), canonical, "{given:?}");
            assert!(matches!(Host::parse(given), Ok(Host::Address(_))), "{given:?}");
        }
    }

    #[test]
    fn what_readers_differ_on_is_refused() {
        let long_label = format!("{}.example.com", "a".repeat(64));
        let long_name = format!("{}example.com", "a.".repeat(130));
        for (given, error) in [
            ("", HostError::Empty),
            (".", HostError::Empty),
            ("a..b", HostError::EmptyLabel),
            (".example.com", HostError::EmptyLabel),
            ("example.com..", HostError::EmptyLabel),
            ("example.com\0.allowed.example", HostError::Character('\0')),
            ("example.com\r\nx", HostError::Character('\r')),
            ("exa mple.com", HostError::Character(' ')),
            ("user@example.com", HostError::Character('@')),
            ("example%2ecom", HostError::Character('%')),
            ("example％2ecom", HostError::Character('%')),
            ("*.example.com", HostError::Character('*')),
            ("example.com/x", HostError::Url),
            ("example.com\\x", HostError::Character('\\')),
            ("api.example.com:443", HostError::Port),
            ("https://api.example.com/", HostError::Url),
            ("1.2.3.4.5", HostError::Numeric),
            ("256.256.256.256", HostError::Numeric),
            ("08.0.0.1", HostError::Numeric),
            ("4294967296", HostError::Numeric),
            ("1.2.3.0x100", HostError::Numeric),
            ("example.123", HostError::Numeric),
            ("[fe80::1%eth0]", HostError::Zone),
            ("[::1", HostError::Ipv6),
            ("[127.0.0.1]", HostError::Ipv6),
            ("xn--a", HostError::Idna),
            (&long_label, HostError::LongLabel(64)),
            (&long_name, HostError::TooLong(271)),
        ] {
            assert_eq!(Host::parse(given), Err(error), "{given:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_is_idempotent(text in any::<String>()) {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
        }

        #[test]
        fn hostlike_texts_are_idempotent(text in "[a-zA-Z0-9xX._\\-\\[\\]:%ßÜ。０-９\u{200d}]{0,40}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
        }

        #[test]
        fn every_spelling_of_an_address_is_that_address(bits in any::<u32>()) {
            let address = Ipv4Addr::from(bits);
            let [a, b, c, d] = address.octets();
            let tail = (u32::from(b) << 16) | (u32::from(c) << 8) | u32::from(d);
            for spelling in [
                address.to_string(),
                bits.to_string(),
                format!("{bits:#x}"),
                format!("0{bits:o}"),
                format!("{a}.{tail}"),
                format!("{a:#x}.0{b:o}.{c}.{d}"),
                format!("[::ffff:{address}]"),
            ] {
                prop_assert_eq!(Host::parse(&spelling), Ok(Host::Address(address.into())));
            }
        }
    }
}
