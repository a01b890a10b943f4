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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Quantity(u128);

impl Quantity {
    /// Parts of the unit, which are as small as the API tells apart.
    const NANO: u128 = 1_000_000_000;
    /// The API's greatest.
    const GREATEST: u128 = i64::MAX as u128;

    /// Reads one, rounded up as the API does. One that is greater than the API's greatest counts as that.
    pub(super) fn parse(text: &str) -> Option<Self> {
        const SUFFIXES: [(&str, u128, u128); 16] = [
            ("", 1, 1),
            ("n", 1, 1_000_000_000),
            ("u", 1, 1_000_000),
            ("m", 1, 1000),
            ("k", 1000, 1),
            ("M", 1_000_000, 1),
            ("G", 1_000_000_000, 1),
            ("T", 1_000_000_000_000, 1),
            ("P", 1_000_000_000_000_000, 1),
            ("E", 1_000_000_000_000_000_000, 1),
            ("Ki", 1 << 10, 1),
            ("Mi", 1 << 20, 1),
            ("Gi", 1 << 30, 1),
            ("Ti", 1 << 40, 1),
            ("Pi", 1 << 50, 1),
            ("Ei", 1 << 60, 1),
        ];
        let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let known = SUFFIXES.iter().find(|(known, ..)| *known == suffix).map(|(_, times, over)| (*times, *over));
        let (times, over) = known.or_else(|| exponent(suffix))?;
        // What is too long to be a number is a great one.
        let number = |digits: &str| if digits.is_empty() { 0 } else { digits.parse().unwrap_or(Self::GREATEST) };
        let (kept, rest) = fraction.split_at(fraction.len().min(9));
        let part = number(&format!("{kept:0<9}")) + u128::from(rest.bytes().any(|digit| digit != b'0'));
        let nano = number(whole).min(Self::GREATEST) * Self::NANO + part;
        Some(Self(nano.saturating_mul(times).div_ceil(over).min(Self::GREATEST * Self::NANO)))
    }

    /// Whether it is more than nothing.
    pub(super) fn is_positive(self) -> bool {
        self.0 > 0
    }

    /// Whether it is no part of a unit.
    pub(super) fn is_whole(self) -> bool {
        self.0.is_multiple_of(Self::NANO)
    }
}

/// What `e3` or `E-3` multiplies by, and what it divides by.
fn exponent(suffix: &str) -> Option<(u128, u128)> {
    let digits = suffix.strip_prefix(['e', 'E'])?;
    let (negative, digits) = match digits.strip_prefix(['+', '-']) {
        Some(rest) => (digits.starts_with('-'), rest),
        None => (false, digits),
    };
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let power = 10_u128.saturating_pow(digits.parse().unwrap_or(u32::MAX));
    Some(if negative { (1, power) } else { (power, 1) })
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

/// A reference of an image, as far as it can be told without asking: no space, no control character, not empty, and no capital
/// letter but in the registry's name, the tag and the digest.
pub(super) fn is_image(text: &str) -> bool {
    let name = text.split('@').next().unwrap_or(text);
    let tag = name.rfind(':').filter(|at| !name[*at..].contains('/'));
    let name = &name[..tag.unwrap_or(name.len())];
    let path = match name.split_once('/') {
        // What looks like no host is a part of the path (distribution's `splitDockerDomain`).
        Some((host, path)) if host.contains(['.', ':']) || host.bytes().any(|byte| byte.is_ascii_uppercase()) => path,
        _ => name,
    };
    !path.is_empty()
        && !path.bytes().any(|byte| byte.is_ascii_uppercase())
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'$')
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
    if Quantity::parse(text).is_none() {
        problems.with(path, text, "a quantity, such as 500m, 2 or 1.5Gi", "write one");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_capital_letters_where_registries_take_them() {
        for image in ["a", "a/b:C", "A.example/b", "A/b", "localhost:5000/a/b:Tag@sha256:AB", "a@sha256:0"] {
            assert!(is_image(image), "{image}");
        }
        for image in ["", "A", "a/B", "r.example/a/B:c", "a b", "a$(B)", "r.example/:c", "A:b"] {
            assert!(!is_image(image), "{image}");
        }
    }

    #[test]
    fn quantities_are_compared_whatever_they_are_written_in() {
        let of = |text: &str| Quantity::parse(text).unwrap_or_else(|| panic!("{text} is one"));
        for (one, other) in [
            ("1", "1000m"),
            ("0.3", "300m"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1k"),
            ("1E3", "1000"),
            ("1e-3", "1m"),
            (".5", "500m"),
            ("1.", "1"),
            ("0", "0.0"),
            ("1E", "1e18"),
            ("99Ei", "99999999999999999999999999999999999999999999999"),
        ] {
            assert_eq!(of(one), of(other), "{one} {other}");
        }
        for (less, more) in
            [("999m", "1"), ("1000M", "1Gi"), ("1n", "2n"), ("0", "0.0000000000001"), ("7.9Ei", "8Ei"), ("1u", "1e400")]
        {
            assert!(of(less) < of(more), "{less} {more}");
        }
        assert!(
            of("2").is_whole() && of("2000m").is_whole() && !of("1.5").is_whole() && !of("1.0000000000001").is_whole()
        );
        assert!(of("1n").is_positive() && !of("0Gi").is_positive());
        for wrong in ["", ".", "1.2.3", "-1", "+1", "1 Gi", "Gi", "1e", "1e+", "1ki", "1K", "two", "1e1.5"] {
            assert_eq!(Quantity::parse(wrong), None, "{wrong}");
        }
    }
}
