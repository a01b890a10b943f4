//! What a request asks for: its path in the one form that is decided on, and its query.
//!
//! The form is RFC 3986's normalisation (§6.2.2): escapes of what needs none are decoded, the others are in upper case,
//! and what should be escaped is. Beyond it, escapes of `:`, `@` and the delimiters are decoded too: most routers
//! compare decoded paths, and a rule about `/v1/keys:delete` must not be dodged by writing `%3A`. What proxies and
//! origins are known to read differently is refused, since a decision about one reading says nothing of the other.

use std::borrow::Cow;

/// Longest path: longer ones are no API's, and each costs its length in every comparison.
pub(super) const MAX_PATH_BYTES: usize = 4096;

/// Longest query: signed URLs and GraphQL documents fit.
pub(super) const MAX_QUERY_BYTES: usize = 16 * 1024;

/// A request target, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target<'a> {
    /// The canonical path.
    pub(super) path: Cow<'a, str>,
    /// The query as sent, without its `?`.
    pub(super) query: &'a str,
    /// The path holds an escaped `/`, which some read as a separator and some as a letter.
    pub(super) encoded_slash: bool,
    /// It is one of several [readings](Target::readings).
    pub(super) ambiguous: bool,
}

/// Why a target cannot be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum TargetError {
    /// `*`, or an authority.
    #[error("expected a path that starts with '/'")]
    Relative,
    /// Too long a path.
    #[error("the path is {0} bytes long; expected at most {MAX_PATH_BYTES}")]
    PathTooLong(usize),
    /// Too long a query.
    #[error("the query is {0} bytes long; expected at most {MAX_QUERY_BYTES}")]
    QueryTooLong(usize),
    /// Plain, and not allowed in a target (RFC 3986 §3.3, §3.4).
    #[error("{0:?} is not allowed in a request target")]
    Character(char),
    /// `\`: a separator to some.
    #[error("it holds a backslash, which some servers read as '/'")]
    Backslash,
    /// `%2`, `%zz`.
    #[error("'%' is not followed by two hexadecimal digits")]
    Escape,
    /// `%00`.
    #[error("it holds the escaped control character %{0:02X}")]
    Control(u8),
    /// `%252e`.
    #[error("it is escaped twice (%25{0:02X}), and a server that decodes twice would read another path")]
    Twice(u8),
    /// `%C0%AF`.
    #[error("its escapes are not UTF-8, and servers differ in what they make of them")]
    Utf8,
    /// `/a/../b`.
    #[error("it holds the dot segment {0:?}")]
    DotSegment(&'static str),
    /// `/a//b`.
    #[error("it holds an empty segment ('//')")]
    DoubleSlash,
    /// `/a;b/c`, `/a%3Bb/c`.
    #[error("it holds ';' (%3B), after which some servers ignore the rest of a segment")]
    Parameters,
    /// `//a`, whatever the endpoint says: RFC 3986 §4.2 has it name a host.
    #[error("it begins with '//', after which some servers read a host")]
    Network,
}

impl TargetError {
    /// Whether the endpoint may give leave for it.
    pub(super) fn is_ambiguous(&self) -> bool {
        matches!(self, Self::DoubleSlash | Self::Parameters)
    }

    /// What the sender can do.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Relative => "send an absolute path",
            Self::PathTooLong(_) | Self::QueryTooLong(_) => "shorten it, or send the data in the body",
            Self::Character(_) => "escape it as '%' and two hexadecimal digits",
            Self::Backslash => "write '/'",
            Self::Escape => "write a literal '%' as %25",
            Self::Control(_) | Self::Twice(_) => "leave it out",
            Self::Utf8 => "escape the bytes of the UTF-8 form",
            Self::DotSegment(_) => "resolve the dot segments before sending",
            Self::DoubleSlash | Self::Network => "write one '/'",
            Self::Parameters => "leave out the segment's parameters",
        }
    }
}

impl<'a> Target<'a> {
    /// Reads a target as it was sent.
    pub(super) fn parse(raw: &'a str) -> Result<Self, TargetError> {
        Self::read(raw, Doubt::Refused)
    }

    /// Every way in which servers are known to read a target with empty segments or parameters (`;`): with all of it as
    /// letters, with slashes merged, without parameters, without both. Whatever is decided must hold for each.
    pub(super) fn readings(raw: &'a str) -> Result<Vec<Self>, TargetError> {
        let literal = Self { ambiguous: true, ..Self::read(raw, Doubt::Letters)? };
        let stripped = without_parameters(&literal.path);
        let others = [merged(&literal.path), merged(&stripped), stripped];
        let mut readings = vec![literal];
        for other in others {
            let (path, encoded_slash) = canonical(&other, Star::Literal, Doubt::Letters)?;
            if readings.iter().all(|known| known.path != path) {
                let path = path.into_owned().into();
                readings.push(Self { path, query: readings[0].query, encoded_slash, ambiguous: true });
            }
        }
        Ok(readings)
    }

    fn read(raw: &'a str, doubt: Doubt) -> Result<Self, TargetError> {
        let (path, query) = raw.split_once('?').unwrap_or((raw, ""));
        if path.len() > MAX_PATH_BYTES {
            return Err(TargetError::PathTooLong(path.len()));
        }
        if query.len() > MAX_QUERY_BYTES {
            return Err(TargetError::QueryTooLong(query.len()));
        }
        if let Some(c) = query.chars().find(|c| !matches!(c, '!'..='~') || *c == '#') {
            return Err(TargetError::Character(c));
        }
        let (path, encoded_slash) = canonical(path, Star::Literal, doubt)?;
        Ok(Self { path, query, encoded_slash, ambiguous: false })
    }

    /// The pairs of the query, decoded, in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        self.pairs_by(&['&'])
    }

    /// Whether servers could differ in what the pairs are.
    pub(super) fn has_semicolons(&self) -> bool {
        self.query.contains(';')
    }

    /// The pairs as servers see them for which `;` separates as well, which HTML 4.01 (appendix B.2.2) asked of them.
    pub(super) fn pairs_by_semicolons(&self) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        self.pairs_by(&['&', ';'])
    }

    fn pairs_by(&self, separators: &'static [char]) -> impl Iterator<Item = (Cow<'a, str>, Cow<'a, str>)> + use<'a> {
        self.query.split(separators).filter(|pair| !pair.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (form_decoded(key), form_decoded(value))
        })
    }
}

/// A path in the spelling that refusals of it use, its empty segments and parameters kept; `None` of one that has none.
pub(crate) fn canonical_path(path: &str) -> Option<String> {
    canonical(path, Star::Literal, Doubt::Letters).ok().map(|(path, _)| path.into_owned())
}

/// The canonical form of a pattern's path.
pub(super) fn pattern(text: &str, doubt: Doubt) -> Result<String, TargetError> {
    canonical(text, Star::Wildcard, doubt).map(|(path, _)| path.into_owned())
}

/// A path with each run of slashes as one.
fn merged(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for c in path.chars() {
        if c != '/' || !out.ends_with('/') {
            out.push(c);
        }
    }
    out
}

/// A canonical path without what follows `;` in its segments (RFC 3986 §3.3), which some look for after decoding.
fn without_parameters(canonical: &str) -> String {
    let segments = canonical.split('/').map(|segment| segment.split("%3B").next().unwrap_or_default());
    segments.collect::<Vec<_>>().join("/")
}

/// What becomes of empty segments and `;`.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Doubt {
    Refused,
    /// They are letters like others.
    Letters,
}

/// What `*` is.
#[derive(Clone, Copy, PartialEq)]
enum Star {
    /// A character of a request, told apart from a pattern's wildcard by its escape.
    Literal,
    /// A wildcard, which stays.
    Wildcard,
}

/// The characters that stand for themselves in a canonical path: RFC 3986's `pchar` without `;` and `*`.
fn plain(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~')
        || matches!(byte, b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'+' | b',' | b'=' | b':' | b'@')
}

/// The canonical form of a path, and whether it holds an escaped slash. A path that is canonical already costs one pass
/// and no allocation.
fn canonical(path: &str, star: Star, doubt: Doubt) -> Result<(Cow<'_, str>, bool), TargetError> {
    if !path.starts_with('/') {
        return Err(TargetError::Relative);
    }
    let stays = |byte: u8| plain(byte) || byte == b'/' || byte == b'*' && star == Star::Wildcard;
    let canonical = match path.bytes().position(|byte| !stays(byte)) {
        None => Cow::Borrowed(path),
        Some(first) => Cow::Owned(rewritten(path, first, star, doubt)?),
    };
    if let Cow::Owned(rewritten) = &canonical {
        refuse_twice(rewritten)?;
    }
    let encoded_slash = matches!(&canonical, Cow::Owned(rewritten) if rewritten.contains("%2F"));
    refuse_segments(&canonical, encoded_slash, doubt)?;
    Ok((canonical, encoded_slash))
}

/// Rewrites what does not stand for itself; the text before `first` does.
fn rewritten(path: &str, first: usize, star: Star, doubt: Doubt) -> Result<String, TargetError> {
    let mut out = String::with_capacity(path.len() + 8);
    out.push_str(&path[..first]);
    // What the escapes say, to be held against UTF-8 (RFC 3986 §2.5).
    let mut beyond_ascii = Vec::new();
    let mut rest = path[first..].chars();
    while let Some(c) = rest.next() {
        let byte = match c {
            '%' => {
                let digits = (rest.next().and_then(hex), rest.next().and_then(hex));
                let (Some(high), Some(low)) = digits else { return Err(TargetError::Escape) };
                let byte = high << 4 | low;
                match byte {
                    0..0x20 | 0x7f => return Err(TargetError::Control(byte)),
                    b'\\' => return Err(TargetError::Backslash),
                    b';' if doubt == Doubt::Refused => return Err(TargetError::Parameters),
                    _ => {}
                }
                if byte >= 0x80 {
                    beyond_ascii.push(byte);
                } else {
                    refuse_broken(&mut beyond_ascii)?;
                }
                byte
            }
            '/' => {
                refuse_broken(&mut beyond_ascii)?;
                out.push('/');
                continue;
            }
            '*' if star == Star::Wildcard => {
                refuse_broken(&mut beyond_ascii)?;
                out.push('*');
                continue;
            }
            '\\' => return Err(TargetError::Backslash),
            ';' if doubt == Doubt::Refused => return Err(TargetError::Parameters),
            '!'..='~' if c != '#' => {
                refuse_broken(&mut beyond_ascii)?;
                u8::try_from(c).map_err(|_| TargetError::Character(c))?
            }
            _ => return Err(TargetError::Character(c)),
        };
        if plain(byte) {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(char::from(DIGITS[usize::from(byte >> 4)]));
            out.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
    }
    refuse_broken(&mut beyond_ascii)?;
    Ok(out)
}

const DIGITS: &[u8; 16] = b"0123456789ABCDEF";

fn hex(c: char) -> Option<u8> {
    c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

/// Refuses a `%25` before two digits: whoever decodes twice reads something else.
fn refuse_twice(canonical: &str) -> Result<(), TargetError> {
    for (at, _) in canonical.match_indices("%25") {
        let mut digits = canonical[at + 3..].chars().map(hex);
        if let (Some(Some(high)), Some(Some(low))) = (digits.next(), digits.next()) {
            return Err(TargetError::Twice(high << 4 | low));
        }
    }
    Ok(())
}

/// Refuses a finished run of escaped bytes beyond ASCII that is not UTF-8; overlong forms of `/` and `.` are of them.
fn refuse_broken(run: &mut Vec<u8>) -> Result<(), TargetError> {
    if run.is_empty() {
        return Ok(());
    }
    let valid = std::str::from_utf8(run).is_ok();
    run.clear();
    if valid { Ok(()) } else { Err(TargetError::Utf8) }
}

/// Refuses empty segments and dot segments (RFC 3986 §5.2.4), whichever way an escaped slash is read.
fn refuse_segments(path: &str, encoded_slash: bool, doubt: Doubt) -> Result<(), TargetError> {
    let read_apart: Cow<'_, str> = if encoded_slash { path.replace("%2F", "/").into() } else { path.into() };
    if doubt == Doubt::Letters && read_apart.starts_with("//") {
        return Err(TargetError::Network);
    }
    let mut segments = read_apart[1..].split('/').peekable();
    while let Some(segment) = segments.next() {
        match segment {
            "" if doubt == Doubt::Refused && segments.peek().is_some() => return Err(TargetError::DoubleSlash),
            "." => return Err(TargetError::DotSegment(".")),
            ".." => return Err(TargetError::DotSegment("..")),
            // A server that strips parameters after decoding would be left with a dot segment.
            _ if segment.starts_with('.') => match segment.split_once("%3B") {
                Some((".", _)) => return Err(TargetError::DotSegment(".")),
                Some(("..", _)) => return Err(TargetError::DotSegment("..")),
                _ => {}
            },
            _ => {}
        }
    }
    Ok(())
}

/// Decodes a part of a query the way that forms are (WHATWG URL §5.1): `+` is a space, and an escape that is none stays
/// as it is.
fn form_decoded(text: &str) -> Cow<'_, str> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return Cow::Borrowed(text);
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let mut ahead = rest.clone();
                let mut digit = || ahead.next().and_then(|byte| hex(char::from(byte)));
                match (digit(), digit()) {
                    (Some(high), Some(low)) => {
                        rest = ahead;
                        high << 4 | low
                    }
                    _ => byte,
                }
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(raw: &str) -> String {
        Target::parse(raw).unwrap().path.into_owned()
    }

    #[test]
    fn equivalent_spellings_have_one_form() {
        for (raw, canonical) in [
            ("/", "/"),
            ("/repos/octo/cat", "/repos/octo/cat"),
            ("/repos/", "/repos/"),
            ("/%72epos", "/repos"),
            ("/a%7eb", "/a~b"),
            ("/v1/keys%3adelete", "/v1/keys:delete"),
            ("/%40scope%2fname", "/@scope%2Fname"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/a b".replace(' ', "%20").as_str(), "/a%20b"),
            ("/{id}|x", "/%7Bid%7D%7Cx"),
            ("/a*b", "/a%2Ab"),
            ("/a%2ab", "/a%2Ab"),
            ("/100%25", "/100%25"),
            ("/100%25a", "/100%25a"),
            ("/a.b/..c/.../.d", "/a.b/..c/.../.d"),
        ] {
            assert_eq!(path(raw), canonical, "{raw}");
        }
        assert!(matches!(Target::parse("/repos/octo?x=%2e").unwrap().path, Cow::Borrowed(_)));
    }

    #[test]
    fn what_could_be_read_differently_is_refused() {
        for (raw, error) in [
            ("", TargetError::Relative),
            ("*", TargetError::Relative),
            ("?a=b", TargetError::Relative),
            ("/a/../b", TargetError::DotSegment("..")),
            ("/a/..", TargetError::DotSegment("..")),
            ("/./a", TargetError::DotSegment(".")),
            ("/a/%2e%2E/b", TargetError::DotSegment("..")),
            ("/a/.%2e/b", TargetError::DotSegment("..")),
            ("/a/..%2fb", TargetError::DotSegment("..")),
            ("/a/..%3bx/b", TargetError::Parameters),
            ("/a/..;x/b", TargetError::Parameters),
            ("/admin;x/b", TargetError::Parameters),
            ("/admin%3Bx", TargetError::Parameters),
            ("//a", TargetError::DoubleSlash),
            ("/a//b", TargetError::DoubleSlash),
            ("/a%2f/b", TargetError::DoubleSlash),
            ("/a/%2Fb", TargetError::DoubleSlash),
            ("/a\\b", TargetError::Backslash),
            ("/a%5cb", TargetError::Backslash),
            ("/a%00", TargetError::Control(0)),
            ("/a%0d%0a", TargetError::Control(13)),
            ("/a%7F", TargetError::Control(127)),
            ("/a%", TargetError::Escape),
            ("/a%2", TargetError::Escape),
            ("/a%zz", TargetError::Escape),
            ("/a%+1", TargetError::Escape),
            ("/%252e%252e/b", TargetError::Twice(b'.')),
            ("/a%252Fb", TargetError::Twice(b'/')),
            ("/a%25%32e", TargetError::Twice(b'.')),
            ("/%2573ecret", TargetError::Twice(b's')),
            ("/%c0%af", TargetError::Utf8),
            ("/%c0%ae%c0%ae/", TargetError::Utf8),
            ("/%e9", TargetError::Utf8),
            ("/%c3/%a9", TargetError::Utf8),
            ("/a b", TargetError::Character(' ')),
            ("/a\tb", TargetError::Character('\t')),
            ("/é", TargetError::Character('é')),
            ("/a#b", TargetError::Character('#')),
            ("/a?b=#", TargetError::Character('#')),
            ("/a?b=é", TargetError::Character('é')),
            ("/a?b= ", TargetError::Character(' ')),
        ] {
            assert_eq!(Target::parse(raw), Err(error), "{raw}");
        }
        let at = |length: usize| format!("/{}", "a".repeat(length - 1));
        assert!(Target::parse(&at(MAX_PATH_BYTES)).is_ok());
        assert_eq!(Target::parse(&at(MAX_PATH_BYTES + 1)), Err(TargetError::PathTooLong(MAX_PATH_BYTES + 1)));
        let query = |length: usize| format!("/?{}", "a".repeat(length));
        assert!(Target::parse(&query(MAX_QUERY_BYTES)).is_ok());
        assert!(Target::parse(&query(MAX_QUERY_BYTES + 1)).is_err());
    }

    #[test]
    fn an_escaped_slash_is_told() {
        assert!(Target::parse("/a%2fb").unwrap().encoded_slash);
        assert!(!Target::parse("/a/b?c=%2f").unwrap().encoded_slash);
    }

    #[test]
    fn queries_are_decoded_pair_by_pair() {
        let target = Target::parse("/?a=1&b=x%20y+z&a=%41&&c&=d&e=%zz%4&f=1=2&g=a;h=b&%61=%ff").unwrap();
        let pairs: Vec<(String, String)> =
            target.pairs().map(|(key, value)| (key.into_owned(), value.into_owned())).collect();
        let expected = [
            ("a", "1"),
            ("b", "x y z"),
            ("a", "A"),
            ("c", ""),
            ("", "d"),
            ("e", "%zz%4"),
            ("f", "1=2"),
            ("g", "a;h=b"),
            ("a", "\u{fffd}"),
        ];
        assert_eq!(pairs, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(Target::parse("/").unwrap().pairs().count(), 0);
    }

    #[test]
    fn patterns_keep_their_wildcards() {
        assert_eq!(pattern("/%72epos/*/x%2ay/**", Doubt::Refused).unwrap(), "/repos/*/x%2Ay/**");
        assert_eq!(pattern("/a/../b", Doubt::Refused), Err(TargetError::DotSegment("..")));
    }

    proptest! {
        #[test]
        fn nothing_panics_and_the_form_is_final(raw in "(/[a-c%0-9A-F.;\\\\é *#:@?+&=~-]{0,8}){0,5}") {
            if let Ok(target) = Target::parse(&raw) {
                let again = Target::parse(&target.path).unwrap();
                prop_assert_eq!(&again.path, &target.path);
                prop_assert!(matches!(again.path, Cow::Borrowed(_)) || target.path.contains('%'));
                let _ = target.pairs().count();
            }
        }

        #[test]
        fn any_text_is_read_without_a_panic(raw in "\\PC{0,40}") {
            let _ = Target::parse(&raw);
        }
    }
}
