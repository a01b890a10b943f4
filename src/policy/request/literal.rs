//! The rules that one path fits and no other.

use super::glob::Glob;
use super::target::Target;

/// What allows exactly the path that was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Literal {
    /// The `path` of each rule that is needed: one for every way in which the path can be read.
    pub paths: Vec<String>,
    /// Whether the endpoint must say `allow_encoded_slash: true`.
    pub encoded_slash: bool,
    /// Whether it must say `allow_ambiguous_paths: true`.
    pub ambiguous: bool,
}

/// What allows exactly the path that was sent; `None` where it is refused whatever the rules say. In canonical form what
/// patterns give a meaning is escaped: a star that was sent is `%2A`, and no wildcard.
#[must_use]
pub fn literal(path: &str) -> Option<Literal> {
    let readings = match Target::parse(path) {
        Ok(target) => vec![target],
        Err(error) if error.is_ambiguous() => Target::readings(path).ok()?,
        Err(_) => return None,
    };
    let is_literal = |target: &Target<'_>| Glob::ambiguous_path(&target.path).is_ok_and(|pattern| pattern.is_literal());
    readings.iter().all(is_literal).then(|| Literal {
        encoded_slash: readings.iter().any(|target| target.encoded_slash),
        ambiguous: readings.iter().any(|target| target.ambiguous),
        paths: readings.into_iter().map(|target| target.path.into_owned()).collect(),
    })
}
