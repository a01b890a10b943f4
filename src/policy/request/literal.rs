//! The rule that one path fits and no other.

use super::glob::Glob;
use super::target::Target;

/// Bytes that patterns and URIs give a meaning, or that stand in no path as they are.
const NOT_LITERAL: [char; 14] = ['*', '?', '[', ']', '{', '}', '\\', '"', '<', '>', '^', '`', '|', ';'];

/// The `path` of a rule that allows exactly the path that was sent, and whether the endpoint must give leave for escaped
/// slashes; `None` where no rule can: the path is refused by itself, or only a wildcard fits it, and more with it.
#[must_use]
pub fn literal(path: &str) -> Option<(String, bool)> {
    let target = Target::parse(path).ok()?;
    if target.path.contains(NOT_LITERAL) {
        return None;
    }
    let pattern = Glob::path(&target.path).ok()?;
    pattern.matches(&target.path).then(|| (target.path.clone().into_owned(), target.encoded_slash))
}
