//! Typed reading of the YAML tree: every mismatch is noted at its place and reading goes on.

use super::problem::{MAX_PROBLEMS, Problem};
use super::yaml::{Key, Node, Place, Value};
use crate::spelling::nearest;

/// Collects what is wrong while the tree is read.
#[derive(Default)]
pub(super) struct Reader {
    problems: Vec<Problem>,
}

/// A mapping whose keys have been checked.
#[derive(Clone, Copy)]
pub(super) struct Fields<'n> {
    pub(super) place: Place,
    entries: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    pub(super) fn get(&self, key: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(known, _)| known.text == key).map(|(_, node)| node)
    }

    pub(super) fn entry(&self, key: &str) -> Option<&'n (Key, Node)> {
        self.entries.iter().find(|(known, _)| known.text == key)
    }
}

impl Reader {
    pub(super) fn note(&mut self, place: Place, field: &str, message: impl Into<String>, remedy: impl Into<String>) {
        if self.problems.len() < MAX_PROBLEMS {
            self.problems.push(place.problem(field, message, remedy));
        }
    }

    /// What was noted, in the order of the file.
    pub(super) fn finish(mut self) -> Vec<Problem> {
        self.problems.sort_by_key(|problem| (problem.line, problem.column));
        self.problems
    }

    /// A mapping with none but `known` keys.
    pub(super) fn fields<'n>(&mut self, node: &'n Node, field: &str, known: &[&str]) -> Option<Fields<'n>> {
        let entries = self.entries(node, field)?;
        for (key, _) in entries {
            if !known.contains(&key.text.as_str()) {
                let path = join(field, &key.text);
                let remedy = match nearest(&key.text, known) {
                    Some(near) => format!("did you mean {near:?}?"),
                    None => format!("remove it; known here: {}", known.join(", ")),
                };
                self.note(key.place, &path, "unknown key", remedy);
            }
        }
        Some(Fields { place: node.place, entries })
    }

    /// A mapping of any keys.
    pub(super) fn entries<'n>(&mut self, node: &'n Node, field: &str) -> Option<&'n [(Key, Node)]> {
        match &node.value {
            Value::Mapping(entries) => Some(entries),
            other => {
                let message = format!("expected a mapping, found {}", other.kind());
                self.note(node.place, field, message, "write 'key: value' lines under it, or {}");
                None
            }
        }
    }

    /// A list; nothing at all is an empty one.
    pub(super) fn list<'n>(&mut self, node: &'n Node, field: &str) -> &'n [Node] {
        match &node.value {
            Value::Sequence(items) => items,
            value if value.is_null() => &[],
            other => {
                let message = format!("expected a list, found {}", other.kind());
                self.note(node.place, field, message, "write '- value' lines under it, or []");
                &[]
            }
        }
    }

    /// Text, quoted or plain.
    pub(super) fn text<'n>(&mut self, node: &'n Node, field: &str) -> Option<&'n str> {
        match &node.value {
            Value::Scalar { text, .. } if !node.value.is_null() => Some(text),
            other => {
                self.note(node.place, field, format!("expected text, found {}", other.kind()), "write one value");
                None
            }
        }
    }

    pub(super) fn boolean(&mut self, node: &Node, field: &str) -> Option<bool> {
        if let Value::Scalar { text, plain: true } = &node.value {
            match text.as_str() {
                "true" | "True" | "TRUE" => return Some(true),
                "false" | "False" | "FALSE" => return Some(false),
                _ => {}
            }
        }
        self.note(node.place, field, format!("expected true or false, found {}", shown(node)), "write true or false");
        None
    }

    /// A whole number in `range`.
    pub(super) fn integer(&mut self, node: &Node, field: &str, range: std::ops::RangeInclusive<u32>) -> Option<u32> {
        if let Value::Scalar { text, plain: true } = &node.value
            && text.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = text.parse()
            && range.contains(&number)
        {
            return Some(number);
        }
        let (low, high) = range.into_inner();
        let expected = if low == high { low.to_string() } else { format!("a number from {low} to {high}") };
        let (found, remedy) = match &node.value {
            Value::Scalar { text, plain } if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) => {
                // Quotes are what is wrong only where they are there.
                let found = if *plain { text.clone() } else { format!("the text {}", shown(node)) };
                let remedy = match (plain, low == high) {
                    (false, _) => "write the digits, without quotes".to_owned(),
                    (true, true) => format!("write {low}: this build knows no other"),
                    (true, false) => "write a number of that range".to_owned(),
                };
                (found, remedy)
            }
            _ => (shown(node), "write the digits, without quotes".to_owned()),
        };
        self.note(node.place, field, format!("expected {expected}, found {found}"), remedy);
        None
    }

    /// One of a few words.
    pub(super) fn word<T: Copy>(&mut self, node: &Node, field: &str, words: &[(&str, T)]) -> Option<T> {
        let known = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(" or ");
        if let Value::Scalar { text, .. } = &node.value
            && let Some((_, value)) = words.iter().find(|(word, _)| word == text)
        {
            return Some(*value);
        }
        self.note(node.place, field, format!("expected {known}, found {}", shown(node)), "write one of these words");
        None
    }
}

/// A value as an error quotes it, cut where it is long.
pub(super) fn shown(node: &Node) -> String {
    /// Enough to recognise a value by.
    const SHOWN: usize = 60;
    match &node.value {
        Value::Scalar { text, .. } if !node.value.is_null() => {
            let mut cut: String = text.chars().take(SHOWN).collect();
            if cut.len() < text.len() {
                cut.push('…');
            }
            format!("{cut:?}")
        }
        other => other.kind().to_owned(),
    }
}

pub(super) fn join(field: &str, key: &str) -> String {
    if field.is_empty() { key.to_owned() } else { format!("{field}.{key}") }
}
