//! What names, quantities and paths look like to the Kubernetes API, and the checks that tell what is wrong with one.

use super::problem::Problems;

/// Most characters of a DNS label (RFC 1035), of a label's value and of the name part of its key.
pub(super) const LABEL_LENGTH: usize = 63;
/// Most characters of a DNS-1123 subdomain.
const SUBDOMAIN_LENGTH: usize = 253;

/// A DNS label as Kubernetes takes it (RFC 1123, lower case).
pub(super) fn is_dns_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= LABEL_LENGTH && text.bytes().all(inner) && ends_are(text, |byte| byte != b'-')
}

/// Dots between DNS labels: the name of a Secret or a claim.
pub(super) fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_LENGTH && !text.is_empty() && text.split('.').all(is_dns_label)
}

/// A label's value: may be empty.
pub(super) fn is_label_value(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    text.is_empty()
        || (text.len() <= LABEL_LENGTH
            && text.bytes().all(inner)
            && ends_are(text, |byte| byte.is_ascii_alphanumeric()))
}

/// A key of a label or an annotation: `name`, or `domain/name`.
pub(super) fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_subdomain(domain) && !name.is_empty() && is_label_value(name),
        None => !text.is_empty() && is_label_value(text),
    }
}

/// Whether a key of a label or an annotation is the supervisor's own, which no user may set.
pub(super) fn is_ours(key: &str) -> bool {
    const DOMAINS: [&str; 2] = ["openshell.ai", "openshell.io"];
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    DOMAINS.iter().any(|ours| domain == *ours || domain.strip_suffix(ours).is_some_and(|rest| rest.ends_with('.')))
}

/// A quantity of the Kubernetes API, zero or more: `500m`, `2`, `1.5Gi`, `1e3`.
pub(super) fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 16] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let decimal = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    let exponent = suffix.strip_prefix(['e', 'E']).is_some_and(|digits| {
        let digits = digits.strip_prefix(['+', '-']).unwrap_or(digits);
        !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
    });
    decimal && (SUFFIXES.contains(&suffix) || exponent)
}

/// A name of an environment variable that every shell can read.
pub(super) fn is_variable(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with(|letter: char| letter.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// An absolute path without `.`, `..`, empty parts, control characters and the colon that Kubernetes refuses.
pub(super) fn is_plain_path(text: &str) -> bool {
    text.strip_prefix('/').is_some_and(|rest| {
        rest.is_empty() || rest.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
    }) && !text.contains(|letter: char| letter.is_control() || letter == ':')
}

/// A reference of an image, as far as it can be told without asking: no space, no control character, not empty.
pub(super) fn is_image(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'$')
}

fn ends_are(text: &str, allowed: impl Fn(u8) -> bool) -> bool {
    matches!((text.bytes().next(), text.bytes().last()), (Some(first), Some(last)) if allowed(first) && allowed(last))
}

/// Tells of a string that is no DNS label.
pub(super) fn dns_label(problems: &Problems, path: &str, text: &str) {
    if !is_dns_label(text) {
        problems.with(path, text, "a DNS label: at most 63 of a-z, 0-9 and -, not at its ends", "choose such a name");
    }
}

/// Tells of a string that is no DNS-1123 subdomain.
pub(super) fn subdomain(problems: &Problems, path: &str, text: &str) {
    if !is_subdomain(text) {
        problems.with(
            path,
            text,
            "the name of an object: DNS labels with dots between, at most 253 characters",
            "give the name as `kubectl get` prints it",
        );
    }
}

/// Tells of a string that is no quantity.
pub(super) fn quantity(problems: &Problems, path: &str, text: &str) {
    if !is_quantity(text) {
        problems.with(path, text, "a quantity, such as 500m, 2 or 1.5Gi", "write one");
    }
}
