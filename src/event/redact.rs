//! Request targets as events may show them: whatever looks like a credential is a placeholder. Logs are read by more
//! people than requests are.

use std::borrow::Cow;

/// Stands where a credential was.
pub(crate) const PLACEHOLDER: &str = "[CREDENTIAL]";

/// Longest target that events show; the rest says nothing to a reader.
const SHOWN: usize = 1024;

/// Names of query parameters whose values are credentials, by any part of the name, in lower case.
const NAMES: &[&str] = &[
    "token",
    "secret",
    "password",
    "passwd",
    "pwd",
    "passphrase",
    "apikey",
    "api_key",
    "api-key",
    "access_key",
    "accesskey",
    "credential",
    "signature",
    "auth",
    "session",
    "jwt",
    "code",
    "private",
];

/// Such names as stand alone: parts of other words otherwise.
const WHOLE_NAMES: &[&str] = &["key", "sig", "pass", "sid", "state", "nonce"];

/// How tokens of known kinds begin: GitHub, GitLab, OpenAI and Anthropic, Slack, AWS, Google, npm, PyPI, Stripe, JSON Web
/// Tokens, Hugging Face.
const PREFIXES: &[&str] = &[
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "sk-",
    "sk_",
    "pk_",
    "rk_",
    "xoxa-",
    "xoxb-",
    "xoxp-",
    "xoxs-",
    "xapp-",
    "AKIA",
    "ASIA",
    "AIza",
    "ya29.",
    "npm_",
    "pypi-",
    "eyJ",
    "hf_",
    "bot",
];

/// Shortest text that a prefix makes a token.
const PREFIXED: usize = 16;

/// Length from which a mixture of letters and digits is more likely a key than a name. Digests of SHA-1 (40 hexadecimal
/// digits) name commits and blobs, and stay readable.
const RANDOM: usize = 32;

/// A path and query with placeholders for what looks like a credential.
#[must_use]
pub fn redacted(target: &str) -> String {
    let (path, query) = match target.split_once('?') {
        Some((path, query)) => (path, Some(query)),
        None => (target, None),
    };
    let mut shown: String = path.split('/').map(segment).collect::<Vec<_>>().join("/");
    if let Some(query) = query {
        shown.push('?');
        // Some servers take `;` for a separator too.
        for part in query.split_inclusive(['&', ';']) {
            let (pair, separator) = match part.strip_suffix(['&', ';']) {
                Some(pair) => part.split_at(pair.len()),
                None => (part, ""),
            };
            shown.push_str(&parameter(pair));
            shown.push_str(separator);
        }
    }
    if shown.len() > SHOWN {
        let end = (0..=SHOWN).rev().find(|&at| shown.is_char_boundary(at)).unwrap_or_default();
        shown.truncate(end);
        shown.push('…');
    }
    shown
}

/// What of a path is not to be read in sentences about it either, in each spelling that they may use: the given ones, and these
/// with escapes undone.
pub(crate) fn credentials_in<'p>(spellings: impl Iterator<Item = &'p str>) -> Vec<String> {
    let of_segment = |segment: &str| [segment.to_owned(), unescaped(segment)];
    let mut found: Vec<String> = spellings
        .flat_map(|path| path.split('/'))
        .filter(|segment| holds_credential(segment))
        .flat_map(of_segment)
        .collect();
    // Of a reading without its parameters the token alone is left.
    let pieces = found.iter().flat_map(|text| pieces(text).filter(|piece| looks_secret(piece)).map(str::to_owned));
    let pieces: Vec<String> = pieces.collect();
    found.extend(pieces);
    // The longest first: what is part of another is gone with it.
    found.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
    found.dedup();
    found
}

fn segment(text: &str) -> &str {
    if holds_credential(text) { PLACEHOLDER } else { text }
}

/// Whether a segment of a path looks like a credential, or has a parameter (RFC 3986 §3.3) that is one by its name.
pub(crate) fn holds_credential(segment: &str) -> bool {
    let named = |parameter: &str| {
        parameter.split_once('=').is_some_and(|(name, value)| !value.is_empty() && names_credential(name))
    };
    is_credential(segment) || unescaped(segment).split(';').skip(1).any(named)
}

fn parameter(pair: &str) -> Cow<'_, str> {
    let Some((name, value)) = pair.split_once('=') else { return segment(pair).into() };
    if !value.is_empty() && (names_credential(name) || is_credential(value)) {
        return format!("{name}={PLACEHOLDER}").into();
    }
    pair.into()
}

/// Whether what goes by this name is a credential, whatever it looks like.
pub(crate) fn names_credential(name: &str) -> bool {
    let name = unescaped(name).to_ascii_lowercase();
    WHOLE_NAMES.contains(&name.as_str()) || NAMES.iter().any(|part| name.contains(part))
}

/// Escaped letters as the letters that they are (RFC 3986 §2.1): `%74oken` is read as `token` by whoever takes it.
fn unescaped(text: &str) -> String {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|&byte| char::from(byte).to_digit(16));
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.extend(u8::try_from(high << 4 | low));
                at += 3;
            }
            _ => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// Whether a segment of a path, or a value, looks like a credential or has one in it, however it is escaped.
pub(crate) fn is_credential(text: &str) -> bool {
    looks_secret(text) || pieces(&unescaped(text)).any(looks_secret)
}

/// What stands between the marks that part a segment's words.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    text.split([';', ' ', '=', ',', '/', '&'])
}

fn looks_secret(text: &str) -> bool {
    if text.len() >= PREFIXED && PREFIXES.iter().any(|prefix| text.starts_with(prefix)) {
        return true;
    }
    if text.contains("%40") || text.contains('@') {
        // user:password@host, in a target that is an address itself.
        return text.contains(':') || text.to_ascii_lowercase().contains("%3a");
    }
    let of = |test: fn(&u8) -> bool| text.bytes().filter(test).count();
    let (digits, upper, lower) = (of(u8::is_ascii_digit), of(u8::is_ascii_uppercase), of(u8::is_ascii_lowercase));
    let marks = text.len() - digits - upper - lower;
    let uuid = text.len() == 36 && marks == 4;
    text.len() >= RANDOM && !uuid && upper > 0 && lower > 0 && digits > 1 && marks * 8 < text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_become_placeholders_and_names_stay() {
        for (given, shown) in [
            ("/repos/octo/hello/git/blobs/6dcb09b5b57875f334f61aebed695e2e4193db5e", None),
            ("/v1/messages?page=2&per_page=100", None),
            ("/objects/550e8400-e29b-41d4-a716-446655440000", None),
            ("/simple/requests/", None),
            ("/a?empty=&token=", None),
            ("/a?access_token=abc&x=1", Some("/a?access_token=[CREDENTIAL]&x=1")),
            (
                "/a?X-Amz-Signature=ff00&X-Amz-Credential=AKIA",
                Some("/a?X-Amz-Signature=[CREDENTIAL]&X-Amz-Credential=[CREDENTIAL]"),
            ),
            ("/a?a=1;token=abcdef&b;sig=x;c", Some("/a?a=1;token=[CREDENTIAL]&b;sig=[CREDENTIAL];c")),
            ("/a?key=1", Some("/a?key=[CREDENTIAL]")),
            ("/a?%74oken=1", Some("/a?%74oken=[CREDENTIAL]")),
            ("/a?%7=1&%=2&x%4", None),
            ("/a?keyword=1", None),
            ("/bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/send", Some("/[CREDENTIAL]/send")),
            (
                "/services/T00000000/B00000000/aB3dE5fG7hI9jK1lM3nO5pQ7rS9tU1vW",
                Some("/services/T00000000/B00000000/[CREDENTIAL]"),
            ),
            ("/x/ghp_0123456789abcdefghijABCDEFGHIJ012345", Some("/x/[CREDENTIAL]")),
            ("/x/%67hp_0123456789abcdefghijABCDEFGHIJ012345", Some("/x/[CREDENTIAL]")),
            ("/x/a%20ghp_0123456789abcdefghijABCDEFGHIJ012345;v=1", Some("/x/[CREDENTIAL]")),
            ("/x/v=1;w=2,3/a%20b", None),
            ("/x%2Fsk-abcdefghijklmnop/y", Some("/[CREDENTIAL]/y")),
            ("/a;token=x/b;v=1", Some("/[CREDENTIAL]/b;v=1")),
            ("/a%3BjSessionId=x/b", Some("/[CREDENTIAL]/b")),
            ("/key=1/a;key=", None),
            ("/a?u=https%3A%2F%2Fuser%3Apass%40host", Some("/a?u=[CREDENTIAL]")),
        ] {
            assert_eq!(redacted(given), shown.unwrap_or(given), "{given}");
        }
        assert!(redacted(&"/ab".repeat(1000)).len() <= SHOWN + 3);
    }

    proptest::proptest! {
        #[test]
        fn nothing_panics(target: String) {
            let _ = redacted(&target);
        }
    }
}
