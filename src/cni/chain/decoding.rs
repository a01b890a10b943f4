//! What container runtimes make of JSON. They are written in Go, whose encoding/json takes less than the grammar allows and
//! finds keys that are not written as they are asked for; and libcni refuses a file in which some keys of a plugin are
//! something else than it expects.

use serde_json::value::RawValue;

use super::document::Object;

/// How deep arrays and objects may lie in each other (encoding/json, maxNestingDepth).
const DEPTH: usize = 10_000;

/// What libcni decodes a plugin into (types.PluginConf, once types.NetConf), the same from 0.4 to 1.3.
pub(super) const PLUGIN: Shape = Shape::Fields(&[
    ("cniVersion", Shape::Text),
    ("name", Shape::Text),
    ("type", Shape::Text),
    ("capabilities", Shape::Members(&Shape::Truth)),
    ("ipam", Shape::Fields(&[("type", Shape::Text)])),
    (
        "dns",
        Shape::Fields(&[
            ("nameservers", Shape::Elements(&Shape::Text)),
            ("domain", Shape::Text),
            ("search", Shape::Elements(&Shape::Text)),
            ("options", Shape::Elements(&Shape::Text)),
        ]),
    ),
    ("prevResult", Shape::Members(&Shape::Any)),
]);

/// A type of Go. `null` fits all of them, and changes nothing.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Whatever there is.
    Any,
    /// A string.
    Text,
    /// True or false.
    Truth,
    /// An object of whatever keys, with such values.
    Members(&'static Shape),
    /// An array of such values.
    Elements(&'static Shape),
    /// An object of which these keys count, in whatever case they are written.
    Fields(&'static [(&'static str, Shape)]),
}

impl Shape {
    /// Which key of a value is none of this shape, and what is expected there.
    pub fn misfit(self, raw: &str) -> Option<String> {
        let within = |key: &str, inner: String| {
            if inner.starts_with(' ') { format!("{key}{inner}") } else { format!("{key}.{inner}") }
        };
        if raw == "null" {
            return None;
        }
        let expected = match self {
            Self::Any => return None,
            Self::Text if raw.starts_with('"') => return None,
            Self::Text => "a string",
            Self::Truth if matches!(raw, "true" | "false") => return None,
            Self::Truth => "true or false",
            Self::Elements(shape) => match serde_json::from_str::<Vec<&RawValue>>(raw) {
                Ok(elements) => return elements.iter().find_map(|element| shape.misfit(element.get())),
                Err(_) => "an array",
            },
            Self::Members(shape) => match Object::read(raw) {
                Ok(object) => {
                    return object.0.iter().find_map(|(key, raw)| Some(within(key, shape.misfit(raw)?)));
                }
                Err(_) => "an object",
            },
            Self::Fields(fields) => match Object::read(raw) {
                Ok(object) => {
                    return object.0.iter().find_map(|(key, raw)| {
                        let (_, shape) = fields.iter().find(|(name, _)| is_key(key, name))?;
                        Some(within(key, shape.misfit(raw)?))
                    });
                }
                Err(_) => "an object",
            },
        };
        Some(format!(" is not {expected}"))
    }
}

/// Whether a key is taken for a field of this name: in any case, with the two letters outside of ASCII that fold into it
/// (encoding/json, foldName).
pub(super) fn is_key(key: &str, name: &str) -> bool {
    let fold = |character| match character {
        'ſ' => 's',
        '\u{212a}' => 'k',
        character => character.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(name.chars().map(fold))
}

/// Why a text that is JSON cannot be decoded: it lies too deep, or has a number that no float64 is.
pub(super) fn refusal(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => at = end_of_string(bytes, at + 1),
            b'{' | b'[' => {
                depth += 1;
                if depth > DEPTH {
                    return Some(format!("it is nested deeper than the {DEPTH} levels that runtimes read"));
                }
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'-' | b'0'..=b'9' => {
                let length = bytes[at..].iter().take_while(|byte| b"+-.eE0123456789".contains(byte)).count();
                let number = &text[at..at + length];
                if number.parse::<f64>().is_ok_and(f64::is_infinite) {
                    let number: String = number.chars().take(32).collect();
                    return Some(format!("its number {number} is larger than any that runtimes read"));
                }
                at += length - 1;
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// Where a string ends that begins before `at`.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => break,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_depth_have_bounds() {
        for (text, refused) in [
            ("1e308", false),
            ("-1e999", true),
            (r#"{"a":[0.1,{"b":1e400}]}"#, true),
            (r#"{"a":"1e999","b\"":"-1e999\\","c":1e-999}"#, false),
            (r#""\\",1e999"#, true),
        ] {
            assert_eq!(refusal(text).is_some(), refused, "{text}");
        }
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(refusal(&nested(DEPTH)), None);
        assert!(refusal(&nested(DEPTH + 1)).is_some());
        assert_eq!(refusal(&format!("[{}]", vec!["[[[]]]"; DEPTH].join(","))), None);
    }

    #[test]
    fn keys_are_found_in_any_case() {
        for key in ["capabilities", "CAPABILITIES", "Capabilitieſ"] {
            assert!(is_key(key, "capabilities"), "{key}");
        }
        assert!(is_key("\u{212a}ey", "key") && !is_key("keys", "key") && !is_key("ke", "key"));
    }

    #[test]
    fn what_a_plugin_has_to_be_like_is_told_by_its_keys() {
        for (raw, why) in [
            (r#"{"type":"a","ipam":{"type":"b","x":7},"dns":{"search":["a"],"domain":null},"other":7}"#, None),
            (r#"{"type":null,"capabilities":{"a":true},"prevResult":{"a":[]}}"#, None),
            (r#"{"TYPE":7}"#, Some("TYPE is not a string")),
            (r#"{"capabilities":{"a":1}}"#, Some("capabilities.a is not true or false")),
            (r#"{"dnſ":{"Search":"a"}}"#, Some("dnſ.Search is not an array")),
            (r#"{"dns":{"options":["a",1]}}"#, Some("dns.options is not a string")),
            (r#"{"ipam":[]}"#, Some("ipam is not an object")),
            ("[]", Some(" is not an object")),
        ] {
            assert_eq!(PLUGIN.misfit(raw).as_deref(), why, "{raw}");
        }
    }
}
