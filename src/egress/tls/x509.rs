//! As much of a certificate (RFC 5280 §4.1) as is told in errors and checked at load. Whether a certificate is to be
//! trusted is decided by rustls alone; nothing here is.

use std::fmt::Write as _;
use std::time::Duration;

use rustls::pki_types::UnixTime;
use time::{Date, Month, OffsetDateTime};

/// Characters of a distinguished name that are shown: it comes from an origin, and a line should stay one.
const NAME_SHOWN: usize = 200;

/// The last second of the year 9999, behind which no date can be written (RFC 5280 §4.1.2.5).
const LATEST: u64 = 253_402_300_799;

/// DER tags (X.690 §8).
const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

/// id-ce-keyUsage and id-ce-basicConstraints (RFC 5280 §4.2.1.3, §4.2.1.9), encoded.
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];

/// Bit 5 of keyUsage, counted from the left.
const KEY_CERT_SIGN: u8 = 0x04;

/// What a certificate says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// Subject, encoded.
    pub(super) subject: Vec<u8>,
    /// Issuer, encoded.
    pub(super) issuer: Vec<u8>,
    /// First second of its validity.
    pub(super) not_before: u64,
    /// Last second of its validity.
    pub(super) not_after: u64,
    /// The public key's bits.
    pub(super) public_key: Vec<u8>,
    /// Whether it may sign certificates: it is a CA, and its key usage, if it has one, allows it.
    pub(super) signs: bool,
}

impl Summary {
    /// Reads a certificate; `None` for anything else.
    pub(super) fn read(certificate: &[u8]) -> Option<Self> {
        let mut outer = Der(Der(certificate).take(SEQUENCE)?);
        let mut fields = Der(outer.take(SEQUENCE)?);
        fields.skip_if(VERSION);
        fields.take(INTEGER)?;
        fields.take(SEQUENCE)?;
        let issuer = fields.take(SEQUENCE)?.to_vec();
        let mut validity = Der(fields.take(SEQUENCE)?);
        let not_before = validity.time()?;
        let not_after = validity.time()?;
        let subject = fields.take(SEQUENCE)?.to_vec();
        let mut key = Der(fields.take(SEQUENCE)?);
        key.take(SEQUENCE)?;
        // The first byte counts unused bits, of which a key has none.
        let public_key = key.take(BIT_STRING)?.get(1..)?.to_vec();
        let mut authority = false;
        let mut usage_allows = true;
        let mut extensions = Der::default();
        while let Some((tag, content)) = fields.any() {
            if tag == EXTENSIONS {
                extensions = Der(Der(content).take(SEQUENCE)?);
            }
        }
        while let Some((_, content)) = extensions.any() {
            let mut extension = Der(content);
            let kind = extension.take(OID)?;
            extension.skip_if(BOOLEAN);
            let value = extension.take(OCTET_STRING)?;
            if kind == BASIC_CONSTRAINTS {
                authority = Der(Der(value).take(SEQUENCE)?).take(BOOLEAN).is_some_and(|is_ca| is_ca != [0]);
            } else if kind == KEY_USAGE {
                usage_allows = Der(value).take(BIT_STRING)?.get(1).is_some_and(|bits| bits & KEY_CERT_SIGN != 0);
            }
        }
        Some(Self { subject, issuer, not_before, not_after, public_key, signs: authority && usage_allows })
    }

    /// Whether it names itself as its issuer.
    pub(super) fn is_self_issued(&self) -> bool {
        self.subject == self.issuer
    }
}

/// A sequence of DER values.
#[derive(Clone, Copy, Default)]
struct Der<'b>(&'b [u8]);

impl<'b> Der<'b> {
    /// The next value, whatever it is.
    fn any(&mut self) -> Option<(u8, &'b [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            // At most three bytes: a certificate of 16 MiB is none.
            0x81..=0x83 => {
                let (length, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (length.iter().fold(0, |value, byte| value << 8 | usize::from(*byte)), rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// The next value, which must have this tag.
    fn take(&mut self, expected: u8) -> Option<&'b [u8]> {
        self.any().filter(|(tag, _)| *tag == expected).map(|(_, content)| content)
    }

    fn skip_if(&mut self, tag: u8) {
        if self.0.first() == Some(&tag) {
            self.any();
        }
    }

    /// Time in UTC (RFC 5280 §4.1.2.5), as seconds of the Unix epoch.
    fn time(&mut self) -> Option<u64> {
        let (tag, content) = self.any()?;
        let text = std::str::from_utf8(content).ok()?.strip_suffix('Z')?;
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let number = |at: usize, length: usize| text.get(at..at + length)?.parse::<u16>().ok();
        let (year, rest) = match (tag, text.len()) {
            // Two digits: 1950 to 2049.
            (UTC_TIME, 12) => (number(0, 2).map(|year| if year < 50 { 2000 + year } else { 1900 + year })?, 2),
            (GENERALIZED_TIME, 14) => (number(0, 4)?, 4),
            _ => return None,
        };
        let [month, day, hour, minute, second] = [0, 2, 4, 6, 8].map(|at| number(rest + at, 2));
        let small = |number: Option<u16>| u8::try_from(number?).ok();
        let month = Month::try_from(small(month)?).ok()?;
        let date = Date::from_calendar_date(year.into(), month, small(day)?).ok()?;
        let moment = date.with_hms(small(hour)?, small(minute)?, small(second)?).ok()?.assume_utc();
        // Validity before the epoch is validity since it.
        Some(u64::try_from(moment.unix_timestamp()).unwrap_or(0))
    }
}

/// A moment for people: `2026-11-30 03:46 UTC`.
pub(super) fn moment(time: UnixTime) -> String {
    let at = OffsetDateTime::UNIX_EPOCH + Duration::from_secs(time.as_secs().min(LATEST));
    let (year, month, day) = at.to_calendar_date();
    let (hour, minute, _) = at.to_hms();
    format!("{year:04}-{:02}-{day:02} {hour:02}:{minute:02} UTC", u8::from(month))
}

/// A distinguished name for people: `CN=Example CA, O=Example`. Only attributes with a known short name show.
pub(super) fn name(encoded: &[u8]) -> String {
    let mut text = String::new();
    let mut sets = Der(encoded);
    while let Some(mut attributes) = sets.take(SET).map(Der) {
        while let Some(mut attribute) = attributes.take(SEQUENCE).map(Der) {
            let (Some(kind), Some((_, value))) = (attribute.take(OID), attribute.any()) else { break };
            // Attribute types of X.520, by the last number of 2.5.4.n.
            let short = match kind {
                [0x55, 0x04, 0x03] => "CN",
                [0x55, 0x04, 0x06] => "C",
                [0x55, 0x04, 0x0a] => "O",
                [0x55, 0x04, 0x0b] => "OU",
                _ => continue,
            };
            let separator = if text.is_empty() { "" } else { ", " };
            let value: String =
                String::from_utf8_lossy(value).chars().map(|c| if c.is_control() { '?' } else { c }).collect();
            let _ = write!(text, "{separator}{short}={value}");
        }
    }
    match text.char_indices().nth(NAME_SHOWN) {
        Some((at, _)) => text[..at].to_owned() + "…",
        None if text.is_empty() => "a name without CN".to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests;
