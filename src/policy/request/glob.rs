//! The one matcher of everything that a request rule compares: paths, queries, parameters, tool names, gRPC services.
//!
//! `*` stays inside a segment and `**`, a whole segment, crosses: at the end it stands for everything below, elsewhere
//! for any number of segments, none included, and alone for everything. Segments are a path's, or the labels of a
//! dotted name; where a value has none, `*` is any text. Nothing else is special, and what other matchers would read as
//! special is refused rather than taken for a letter: a rule that was meant otherwise would never match, and where it
//! denies, let through.

use crate::policy::pattern::star_matches;

use super::target::{self, Doubt};

/// Longest pattern. A path's own bound; longer ones could match nothing.
pub(super) const MAX_PATTERN: usize = target::MAX_PATH_BYTES;

/// Most segments of a pattern: the rules' index is walked by recursion, one level a segment.
pub(super) const MAX_SEGMENTS: usize = 64;

/// What `*` stops at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `/`; a text starts with one.
    Path,
    /// `.`
    Dotted,
    /// Nothing.
    Free,
}

impl Shape {
    fn separator(self) -> char {
        if self == Self::Dotted { '.' } else { '/' }
    }
}

/// A pattern, compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Glob {
    text: String,
    shape: Shape,
    /// Empty for `**` alone, and where nothing separates.
    segments: Vec<Segment>,
}

/// What stands between two separators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Segment {
    /// This text.
    Literal(String),
    /// `*`: one segment that is not empty.
    Any,
    /// Text with `*` in it.
    Partial(String),
    /// `**`
    Deep,
}

/// Why a text is no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GlobError {
    /// Nothing at all.
    #[error("the pattern is empty")]
    Empty,
    /// Longer than anything it could match.
    #[error("the pattern is {0} bytes long; expected at most {MAX_PATTERN}")]
    TooLong(usize),
    /// Too many segments.
    #[error("the pattern has {0} segments; expected at most {MAX_SEGMENTS}")]
    TooDeep(usize),
    /// `a.json`, `*/x`.
    #[error("expected a path that starts with '/', or '**' for every path")]
    Relative,
    /// `/a**`.
    #[error("'**' must be a whole segment, as in /repos/**")]
    Deep,
    /// `/v[12]/x`.
    #[error("only '*' and '**' are wildcards; found {0:?}")]
    Special(char),
    /// A path that no request can have.
    #[error("no request can have this path: {0}")]
    Target(target::TargetError),
}

impl GlobError {
    /// What to do about it.
    pub(super) fn remedy(&self) -> &'static str {
        match self {
            Self::Special('?') => "match the query under 'query:', and write a literal '?' as '*'",
            Self::Special('{') => "list alternatives as separate rules or under 'any:', or write '*' in its place",
            Self::Special(_) => "write '*' in its place, or list the alternatives",
            Self::Deep => "write '**' between separators, or '*' inside a segment",
            Self::Empty | Self::Relative => "write a pattern such as /repos/*/issues or **",
            Self::TooLong(_) | Self::TooDeep(_) => "shorten it with a wildcard",
            Self::Target(_) => "write the path as it is decided on: without dot segments, '//' and bad escapes",
        }
    }
}

impl Glob {
    /// The pattern of every path.
    pub(super) fn every_path() -> Self {
        Self { text: "**".to_owned(), shape: Shape::Path, segments: Vec::new() }
    }

    /// A pattern of paths, in any spelling that a request could have.
    pub(super) fn path(text: &str) -> Result<Self, GlobError> {
        Self::path_with(text, Doubt::Refused)
    }

    /// The same where a path may have empty segments.
    pub(super) fn ambiguous_path(text: &str) -> Result<Self, GlobError> {
        Self::path_with(text, Doubt::Letters)
    }

    fn path_with(text: &str, doubt: Doubt) -> Result<Self, GlobError> {
        Self::check(text)?;
        if text == "**" || text == "/**" {
            return Ok(Self::every_path());
        }
        if !text.starts_with('/') {
            return Err(GlobError::Relative);
        }
        let canonical = target::pattern(text, doubt).map_err(GlobError::Target)?;
        Self::of_segments(canonical, Shape::Path)
    }

    /// A pattern of dotted names.
    pub(super) fn dotted(text: &str) -> Result<Self, GlobError> {
        Self::check(text)?;
        if text == "**" {
            return Ok(Self { text: text.to_owned(), shape: Shape::Dotted, segments: Vec::new() });
        }
        Self::of_segments(text.to_owned(), Shape::Dotted)
    }

    /// A pattern of values without segments.
    pub(super) fn free(text: &str) -> Result<Self, GlobError> {
        Self::check(text)?;
        Ok(Self { text: text.to_owned(), shape: Shape::Free, segments: Vec::new() })
    }

    fn check(text: &str) -> Result<(), GlobError> {
        if text.is_empty() {
            return Err(GlobError::Empty);
        }
        if text.len() > MAX_PATTERN {
            return Err(GlobError::TooLong(text.len()));
        }
        match text.chars().find(|c| matches!(c, '?' | '[' | ']' | '{' | '}' | '\\')) {
            Some(special) => Err(GlobError::Special(special)),
            None => Ok(()),
        }
    }

    fn of_segments(text: String, shape: Shape) -> Result<Self, GlobError> {
        let body = text.strip_prefix('/').unwrap_or(&text);
        let count = body.split(shape.separator()).count();
        if count > MAX_SEGMENTS {
            return Err(GlobError::TooDeep(count));
        }
        let segments = body
            .split(shape.separator())
            .map(|segment| match segment {
                "*" => Ok(Segment::Any),
                "**" => Ok(Segment::Deep),
                _ if segment.contains("**") => Err(GlobError::Deep),
                _ if segment.contains('*') => Ok(Segment::Partial(segment.to_owned())),
                _ => Ok(Segment::Literal(segment.to_owned())),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { text, shape, segments })
    }

    /// The pattern, canonical.
    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it stands for one text alone.
    pub(super) fn is_literal(&self) -> bool {
        !self.text.contains('*')
    }

    /// Whether it stands for every text.
    pub(super) fn is_everything(&self) -> bool {
        self.text == "**" || self.shape == Shape::Free && self.text == "*"
    }

    /// Its segments; none for a pattern of everything.
    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// How much of it is no wildcard: of two patterns that match, the one that says more is meant.
    pub(super) fn specificity(&self) -> usize {
        self.text.bytes().filter(|b| *b != b'*').count()
    }

    /// Whether `text` fits.
    pub(super) fn matches(&self, text: &str) -> bool {
        if self.is_everything() {
            return true;
        }
        match self.shape {
            Shape::Free => star_matches(&self.text, text),
            _ if self.is_literal() => self.text == text,
            Shape::Path => text.strip_prefix('/').is_some_and(|rest| self.walk(rest)),
            Shape::Dotted => self.walk(text),
        }
    }

    /// Matches segment by segment. After a mismatch the last `**` takes one segment more, and an earlier one never
    /// needs to: what it could reach, the later one reaches too. So the cost is the product of both lengths at worst.
    fn walk(&self, text: &str) -> bool {
        let separator = self.shape.separator();
        let next = |rest: &mut Option<usize>| -> Option<&str> {
            let start = (*rest)?;
            let tail = &text[start..];
            match tail.find(separator) {
                Some(at) => {
                    *rest = Some(start + at + 1);
                    Some(&tail[..at])
                }
                None => {
                    *rest = None;
                    Some(tail)
                }
            }
        };
        // Where the text goes on (`None` after its last segment), and where to resume after the last `**`.
        let mut rest = Some(0);
        let mut at = 0;
        let mut resume: Option<(usize, Option<usize>)> = None;
        loop {
            match self.segments.get(at) {
                Some(Segment::Deep) if at + 1 == self.segments.len() && rest.is_some() => return true,
                Some(Segment::Deep) if at + 1 == self.segments.len() => {}
                Some(Segment::Deep) => {
                    at += 1;
                    resume = Some((at, rest));
                    continue;
                }
                Some(expected) => {
                    if let Some(segment) = next(&mut rest)
                        && expected.matches(segment)
                    {
                        at += 1;
                        continue;
                    }
                }
                None if rest.is_none() => return true,
                None => {}
            }
            let Some((after, mut from)) = resume else { return false };
            if next(&mut from).is_none() {
                return false;
            }
            resume = Some((after, from));
            (at, rest) = (after, from);
        }
    }

    /// Whether some text fits both: errs towards yes. Two literals are told apart by themselves, a literal and a
    /// pattern by the pattern, and two patterns by the literal text at their beginnings and ends.
    pub(super) fn may_overlap(&self, other: &Self) -> bool {
        match (self.is_literal(), other.is_literal()) {
            (true, _) => other.matches(&self.text),
            (_, true) => self.matches(&other.text),
            _ => {
                let head = |text: &str| text.find('*').unwrap_or(text.len());
                let tail = |text: &str| text.rfind('*').map_or(0, |at| text.len() - at - 1);
                let heads = head(&self.text).min(head(&other.text));
                let tails = tail(&self.text).min(tail(&other.text));
                self.text.as_bytes()[..heads] == other.text.as_bytes()[..heads]
                    && self.text.as_bytes()[self.text.len() - tails..]
                        == other.text.as_bytes()[other.text.len() - tails..]
            }
        }
    }
}

impl std::fmt::Display for Glob {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Segment {
    /// Whether one segment fits; `**` is for the walk.
    pub(super) fn matches(&self, segment: &str) -> bool {
        match self {
            Self::Literal(literal) => literal == segment,
            Self::Any => !segment.is_empty(),
            Self::Partial(pattern) => star_matches(pattern, segment),
            Self::Deep => true,
        }
    }
}
