//! Hosts and programs as a policy writes them, and what they match.
//!
//! `*` stays inside a label or a path segment and `**` crosses. In a host, `**` is the whole first label and stands for
//! one label or more, so `**.example.com` is not `example.com`. In a program's path, `**` is a whole segment: at the
//! end it stands for everything below, elsewhere for any number of directories, none included; alone it is every
//! program. Nothing else is special: `?`, brackets and braces, which other matchers give a meaning, are refused beside
//! a wildcard rather than read in one of two ways.

use super::HostPattern;
use super::host::{Host, HostError, MAX_NAME};

/// Longest path of a program or a file: the kernel's PATH_MAX, which counts the NUL.
pub const MAX_PATH: usize = 4096;

/// Labels that a wildcard must leave to its right: `*.com` would be half the internet.
const LITERAL_LABELS: usize = 2;

/// Why a text is no host pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Without a wildcard it must be a host, and is not.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Longer than any name.
    #[error("the pattern is {0} bytes long; a DNS name has at most {MAX_NAME}")]
    TooLong(usize),
    /// `*`, `*.com`.
    #[error("the wildcard covers too much; expected at least two literal labels after it, as in *.example.com")]
    TooWide,
    /// `a.**.example.com`, `x**.example.com`.
    #[error("'**' must be the whole first label, as in **.example.com")]
    DeepElsewhere,
    /// `a.b*.example.com`.
    #[error("a wildcard after the first label must be the whole label '*'; found {0:?}")]
    PartialElsewhere(String),
    /// `*.0.0.1`.
    #[error("wildcards do not apply to IP addresses; expected a range in allowed_ips")]
    Address,
}

/// A host pattern with wildcards, taken apart the way that it is looked up: by the literal labels at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostGlob<'a> {
    /// Starts with `**`: one label or more before the rest.
    pub(super) deep: bool,
    /// Labels between `**` and the suffix: `*`, a literal, or (the first only) text with `*` in it.
    pub(super) labels: Vec<&'a str>,
    /// The literal labels after the last wildcard.
    pub(super) suffix: &'a str,
}

impl HostPattern {
    /// Reads a host or a pattern, in any spelling; the result is canonical.
    ///
    /// # Errors
    ///
    /// Says which rule the text breaks.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        if !text.contains('*') {
            return Ok(Self::Exact(Host::parse(text)?));
        }
        if text.len() > MAX_NAME {
            return Err(PatternError::TooLong(text.len()));
        }
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut labels = Vec::new();
        for (index, label) in text.split('.').enumerate() {
            labels.push(match label {
                "" => return Err(HostError::EmptyLabel.into()),
                "*" => "*".to_owned(),
                "**" if index == 0 => "**".to_owned(),
                _ if label.contains("**") => return Err(PatternError::DeepElsewhere),
                _ if label.contains('*') && index > 0 => return Err(PatternError::PartialElsewhere(label.to_owned())),
                _ if label.contains('*') => partial(label)?,
                _ => literal(label)?,
            });
        }
        let literals = labels.iter().rev().take_while(|label| !label.contains('*')).count();
        if literals < LITERAL_LABELS {
            return Err(PatternError::TooWide);
        }
        // The suffix by itself must be a name: this is where a numeric end, which would be an address, comes out.
        match Host::parse(&labels[labels.len() - literals..].join(".")) {
            Ok(Host::Name(_)) => Ok(Self::Glob(labels.join("."))),
            Ok(Host::Address(_)) | Err(HostError::Numeric) => Err(PatternError::Address),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether `host` is meant. Rego decides; this serves explanations and the search for overlaps, and a test holds
    /// the two to the same answer.
    #[must_use]
    pub fn matches(&self, host: &Host) -> bool {
        match (self, host) {
            (Self::Exact(exact), host) => exact == host,
            (Self::Glob(pattern), Host::Name(name)) => HostGlob::of(pattern).matches(name),
            (Self::Glob(_), Host::Address(_)) => false,
        }
    }

    /// Whether some host is meant by both; errs towards yes for two partial labels.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Exact(host), pattern) | (pattern, Self::Exact(host)) => pattern.matches(host),
            (Self::Glob(one), Self::Glob(two)) => HostGlob::of(one).overlaps(&HostGlob::of(two)),
        }
    }
}

impl std::fmt::Display for HostPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exact(host) => host.fmt(f),
            Self::Glob(pattern) => f.write_str(pattern),
        }
    }
}

impl<'a> HostGlob<'a> {
    /// Takes a canonical pattern apart.
    pub(super) fn of(pattern: &'a str) -> Self {
        let (deep, rest) = match pattern.strip_prefix("**.") {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        match rest.rfind('*') {
            None => Self { deep, labels: Vec::new(), suffix: rest },
            Some(star) => {
                let end = rest[star..].find('.').map_or(rest.len(), |dot| star + dot);
                let labels = rest[..end].split('.').collect();
                Self { deep, labels, suffix: rest.get(end + 1..).unwrap_or_default() }
            }
        }
    }

    /// Labels from the right, the fixed ones.
    fn reversed(&self) -> impl Iterator<Item = &'a str> {
        self.suffix.rsplit('.').chain(self.labels.iter().rev().copied())
    }

    fn fixed(&self) -> usize {
        self.labels.len() + self.suffix.split('.').count()
    }

    fn matches(&self, name: &str) -> bool {
        let count = name.split('.').count();
        let enough = if self.deep { count > self.fixed() } else { count == self.fixed() };
        enough && self.reversed().zip(name.rsplit('.')).all(|(pattern, label)| star_matches(pattern, label))
    }

    fn overlaps(&self, other: &Self) -> bool {
        let lengths = match (self.deep, other.deep) {
            (false, false) => self.fixed() == other.fixed(),
            (true, false) => other.fixed() > self.fixed(),
            (false, true) => self.fixed() > other.fixed(),
            (true, true) => true,
        };
        lengths
            && self.reversed().zip(other.reversed()).all(|(one, two)| match (one.contains('*'), two.contains('*')) {
                (true, true) => true,
                (true, false) => star_matches(one, two),
                (false, true) => star_matches(two, one),
                (false, false) => one == two,
            })
    }
}

fn literal(label: &str) -> Result<String, PatternError> {
    // A label is read as the first of a name, so that a number in it stays a number.
    match Host::parse(&format!("{label}.x"))? {
        Host::Name(name) => Ok(name.strip_suffix(".x").unwrap_or(&name).to_owned()),
        Host::Address(_) => Err(PatternError::Address),
    }
}

fn partial(label: &str) -> Result<String, PatternError> {
    let lower = label.to_ascii_lowercase();
    match lower.chars().find(|c| !matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '*')) {
        Some(c) => Err(HostError::Character(c).into()),
        None => Ok(lower),
    }
}

/// Whether `text` fits `pattern`, in which `*` is any text, none included.
pub(super) fn star_matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let (middle, tail) = match rest.rsplit_once('*') {
        Some((middle, tail)) => (Some(middle), tail),
        None => (None, rest),
    };
    for piece in middle.into_iter().flat_map(|middle| middle.split('*')) {
        match text.find(piece) {
            Some(at) => text = &text[at + piece.len()..],
            None => return false,
        }
    }
    text.ends_with(tail)
}

/// Why a text is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BinaryError {
    /// Relative, or empty.
    #[error("expected an absolute path, or a pattern such as /opt/tools/** or **")]
    Relative,
    /// Longer than any path.
    #[error("the path is {0} bytes long; the kernel allows {MAX_PATH}")]
    TooLong(usize),
    /// `..`, or a control character.
    #[error("the path holds {0:?}; expected it written out")]
    Component(&'static str),
    /// `/opt/a**`.
    #[error("'**' must be a whole segment, as in /opt/**/node")]
    Deep,
    /// `/usr/bin/python[0-9]*`.
    #[error("only '*' and '**' are wildcards; found {0:?} beside one")]
    Special(char),
}

/// Reads a program's path or pattern; the result has single slashes and no `.` segments.
pub(super) fn binary(text: &str) -> Result<String, BinaryError> {
    if text.len() >= MAX_PATH {
        return Err(BinaryError::TooLong(text.len()));
    }
    if text.chars().any(char::is_control) {
        return Err(BinaryError::Component("a control character"));
    }
    if text == "**" {
        return Ok(text.to_owned());
    }
    if !text.starts_with('/') {
        return Err(BinaryError::Relative);
    }
    let mut canonical = String::with_capacity(text.len());
    for segment in text.split('/') {
        match segment {
            "" | "." => continue,
            ".." => return Err(BinaryError::Component("..")),
            "**" => {}
            _ if segment.contains("**") => return Err(BinaryError::Deep),
            _ => {}
        }
        canonical.push('/');
        canonical.push_str(segment);
    }
    if canonical.is_empty() {
        return Err(BinaryError::Relative);
    }
    if canonical.contains('*')
        && let Some(special) = canonical.chars().find(|c| matches!(c, '?' | '[' | ']' | '{' | '}' | '\\'))
    {
        return Err(BinaryError::Special(special));
    }
    Ok(canonical)
}

/// How Rego tests a program pattern: the cheap forms by themselves, the rest by a regular expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProgramTest {
    /// One path.
    Exact,
    /// Every program.
    Any,
    /// Everything below a directory; the text ends in a slash.
    Below(String),
    /// An anchored regular expression, in the common subset of RE2 and Rust.
    Regex(String),
}

impl ProgramTest {
    /// For a canonical pattern.
    pub(super) fn of(pattern: &str) -> Self {
        if pattern == "**" || pattern == "/**" {
            return Self::Any;
        }
        if !pattern.contains('*') {
            return Self::Exact;
        }
        if let Some(directory) = pattern.strip_suffix("**")
            && !directory.contains('*')
        {
            return Self::Below(directory.to_owned());
        }
        let mut regex = String::from("^");
        let segments: Vec<&str> = pattern.split('/').skip(1).collect();
        for (index, segment) in segments.iter().enumerate() {
            let last = index + 1 == segments.len();
            match *segment {
                "**" if last => regex.push_str("/.+"),
                "**" => regex.push_str("(?:/[^/]+)*"),
                "*" => regex.push_str("/[^/]+"),
                _ => {
                    regex.push('/');
                    for c in segment.chars() {
                        match c {
                            '*' => regex.push_str("[^/]*"),
                            c if c.is_ascii_punctuation() => regex.extend(['\\', c]),
                            c => regex.push(c),
                        }
                    }
                }
            }
        }
        regex.push('$');
        Self::Regex(regex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(text: &str) -> Host {
        Host::parse(text).unwrap()
    }

    #[test]
    fn host_patterns_are_canonical() {
        for (given, canonical) in [
            ("API.Example.com.", "api.example.com"),
            ("*.Example.com.", "*.example.com"),
            ("**.bücher.example", "**.xn--bcher-kva.example"),
            ("*-API.example.com", "*-api.example.com"),
            ("7.*.example.com", "7.*.example.com"),
            ("*.*.example.com", "*.*.example.com"),
        ] {
            assert_eq!(HostPattern::parse(given).unwrap().to_string(), canonical);
        }
    }

    #[test]
    fn host_patterns_that_cover_too_much_or_mean_two_things_are_refused() {
        for (given, error) in [
            ("*", PatternError::TooWide),
            ("**", PatternError::TooWide),
            ("*.com", PatternError::TooWide),
            ("**.com", PatternError::TooWide),
            ("api*.com", PatternError::TooWide),
            ("example.*", PatternError::TooWide),
            ("*.*.com", PatternError::TooWide),
            ("*.*", PatternError::TooWide),
            ("a.**.example.com", PatternError::DeepElsewhere),
            ("a**.example.com", PatternError::DeepElsewhere),
            ("***.example.com", PatternError::DeepElsewhere),
            ("a.b*.example.com", PatternError::PartialElsewhere("b*".to_owned())),
            ("*.0.0.1", PatternError::Address),
            ("*.1.2.3.4", PatternError::Address),
            ("*.example.0x1", PatternError::Address),
            ("*..example.com", HostError::EmptyLabel.into()),
            ("{a,b}*.example.com", HostError::Character('{').into()),
            ("*.ex?mple.com", HostError::Character('?').into()),
        ] {
            assert_eq!(HostPattern::parse(given), Err(error), "{given}");
        }
    }

    #[test]
    fn one_star_is_one_label_and_two_are_one_or_more() {
        for (pattern, yes, no) in [
            ("*.example.com", &["a.example.com"][..], &["example.com", "a.b.example.com", "aexample.com"][..]),
            ("**.example.com", &["a.example.com", "a.b.example.com"], &["example.com", "badexample.com"]),
            (
                "*-api.example.com",
                &["x-api.example.com", "-api.example.com"],
                &["x-apis.example.com", "a.x-api.example.com"],
            ),
            ("a*b*c.example.com", &["abc.example.com", "axbxc.example.com"], &["ab.example.com", "acb.example.com"]),
            ("a.*.example.com", &["a.x.example.com"], &["b.x.example.com", "a.example.com"]),
            ("**.a.*.example.com", &["z.a.x.example.com", "y.z.a.x.example.com"], &["a.x.example.com"]),
        ] {
            let parsed = HostPattern::parse(pattern).unwrap();
            for name in yes {
                assert!(parsed.matches(&host(name)), "{pattern} {name}");
            }
            for name in no {
                assert!(!parsed.matches(&host(name)), "{pattern} {name}");
            }
            assert!(!parsed.matches(&host("127.0.0.1")));
        }
    }

    #[test]
    fn overlaps_are_found() {
        for (one, two, expected) in [
            ("a.example.com", "a.example.com", true),
            ("a.example.com", "*.example.com", true),
            ("a.b.example.com", "*.example.com", false),
            ("*.example.com", "**.example.com", true),
            ("*.example.com", "*.b.example.com", false),
            ("**.example.com", "*.b.example.com", true),
            ("**.b.example.com", "*.example.com", false),
            ("a-*.example.com", "*-b.example.com", true),
            ("a.*.example.com", "*.b.example.com", true),
            ("a.*.example.com", "c.b.example.com", false),
            ("*.example.org", "*.example.com", false),
        ] {
            let (one, two) = (HostPattern::parse(one).unwrap(), HostPattern::parse(two).unwrap());
            assert_eq!(one.overlaps(&two), expected, "{one} {two}");
            assert_eq!(two.overlaps(&one), expected, "{two} {one}");
        }
    }

    #[test]
    fn programs_are_canonical_paths_or_patterns() {
        for (given, canonical) in [
            ("/usr/bin/curl", "/usr/bin/curl"),
            ("/usr//bin/./curl", "/usr/bin/curl"),
            ("/usr/bin/[", "/usr/bin/["),
            ("**", "**"),
            ("/opt/**", "/opt/**"),
        ] {
            assert_eq!(binary(given).unwrap(), canonical);
        }
        for (given, error) in [
            ("", BinaryError::Relative),
            ("/", BinaryError::Relative),
            ("curl", BinaryError::Relative),
            ("*", BinaryError::Relative),
            ("/usr/../bin/curl", BinaryError::Component("..")),
            ("/usr/bin/curl\n", BinaryError::Component("a control character")),
            ("/opt/a**", BinaryError::Deep),
            ("/usr/bin/python[23]*", BinaryError::Special('[')),
        ] {
            assert_eq!(binary(given), Err(error), "{given}");
        }
        assert_eq!(binary(&format!("/{}", "a".repeat(5000))), Err(BinaryError::TooLong(5001)));
    }
}
