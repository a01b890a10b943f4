//! The rule that one path fits and no other.

use super::glob::Glob;
use super::target::Target;

/// The `path` of a rule that allows exactly the path that was sent, and whether the endpoint must give leave for escaped
/// slashes; `None` where the path is refused whatever the rules say. In canonical form what patterns give a meaning is
/// escaped: a star that was sent is `%2A`, and no wildcard.
#[must_use]
pub fn literal(path: &str) -> Option<(String, bool)> {
    let target = Target::parse(path).ok()?;
    let pattern = Glob::path(&target.path).ok()?;
    pattern.is_literal().then(|| (target.path.into_owned(), target.encoded_slash))
}
