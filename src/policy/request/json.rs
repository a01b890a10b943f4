//! JSON that can be read in one way only.
//!
//! RFC 8259 §4 leaves open what a name that is given twice means, and parsers differ; some (Go's among them) also take
//! `Method` for `method`. What is judged must be what the origin acts on, so both are refused here.

use std::collections::HashSet;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// How deep names that differ only in case are refused too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Folding {
    /// In the outermost object, or those of an outermost list: what lies below is not judged.
    Envelope,
    /// In the outermost object and the one below, an operation in its message.
    Payload,
    /// Everywhere.
    Everywhere,
}

/// Reads a text whole.
///
/// # Errors
///
/// Says what is wrong, and where.
pub(super) fn parse(text: &[u8], folding: Folding) -> Result<Value, String> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let levels = match folding {
        Folding::Envelope => 1,
        Folding::Payload => 2,
        Folding::Everywhere => usize::MAX,
    };
    let value = Strict { levels }.deserialize(&mut reader).map_err(|error| error.to_string())?;
    reader.end().map_err(|error| error.to_string())?;
    Ok(value)
}

/// A name as the most lenient parser compares it: without case, and with the two letters beyond ASCII whose simple
/// folding is an ASCII letter (U+017F and U+212A).
pub(super) fn folded(name: &str) -> String {
    name.chars()
        .map(|c| match c {
            '\u{17f}' => 's',
            '\u{212a}' => 'k',
            c => c.to_ascii_lowercase(),
        })
        .collect()
}

/// Reads one value; `levels` objects from here on are compared without case.
#[derive(Clone, Copy)]
struct Strict {
    levels: usize,
}

impl<'de> DeserializeSeed<'de> for Strict {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Strict {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        let mut seen = HashSet::new();
        let below = Self { levels: self.levels.saturating_sub(1) };
        while let Some(name) = entries.next_key::<String>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format_args!("the name {name:?} is given twice")));
            }
            if self.levels > 0 && !seen.insert(folded(&name)) {
                return Err(A::Error::custom(format_args!("the name {name:?} is given twice, in different case")));
            }
            object.insert(name, entries.next_value_seed(below)?);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_one_reading_is_read() {
        let text = r#" {"a": [1, -2, 1.5, true, null, "x\u00e9"], "b": {"A": 1, "c": {}}} "#;
        let expected: Value = serde_json::from_str(text).unwrap();
        assert_eq!(parse(text.as_bytes(), Folding::Everywhere).unwrap(), expected);
    }

    #[test]
    fn names_given_twice_are_refused() {
        assert!(parse(br#"{"x": {"y": {"a": 1, "A": 2}}}"#, Folding::Payload).is_ok());
        assert!(parse(br#"{"x": {"a": 1, "A": 2}}"#, Folding::Payload).is_err());
        for (text, everywhere, envelope) in [
            (r#"{"a": 1, "a": 2}"#, false, false),
            (r#"{"a": 1, "\u0061": 2}"#, false, false),
            (r#"{"x": {"a": 1, "a": 2}}"#, false, false),
            (r#"[{"a": 1}, {"a": 2, "a": 3}]"#, false, false),
            (r#"{"method": 1, "Method": 2}"#, false, false),
            (r#"{"params": 1, "param\u017f": 2}"#, false, false),
            (r#"{"x": {"a": 1, "A": 2}}"#, false, true),
            (r#"[{"a": 1}, {"A": 2}]"#, true, true),
        ] {
            assert_eq!(parse(text.as_bytes(), Folding::Everywhere).is_ok(), everywhere, "{text}");
            assert_eq!(parse(text.as_bytes(), Folding::Envelope).is_ok(), envelope, "{text}");
        }
    }

    #[test]
    fn what_is_no_json_is_refused() {
        let deep = "[".repeat(100_000);
        for text in ["", "{", "{} {}", "{'a': 1}", "[1,]", "NaN", "\u{feff}{}", "{\"a\": \"\\ud800\"}", &deep] {
            assert!(parse(text.as_bytes(), Folding::Everywhere).is_err(), "{text:.20}");
        }
        assert!(parse(b"\"\xff\"", Folding::Everywhere).is_err());
    }
}
