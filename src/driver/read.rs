//! Reads documents field by field and goes on after a mistake, so that all of a file's mistakes are told at once. (serde
//! stops at the first.) Asked to, it notes what is asked for instead: that is the document's schema.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::problem::Problems;
use super::schema::Shape;
use crate::spelling::nearest;

/// A table of a document, from which known fields are taken; what is left over is unknown.
pub(super) struct Table<'p> {
    path: String,
    entries: Map<String, Value>,
    known: Vec<&'static str>,
    problems: &'p Problems,
    /// Where it is noted what may be in the table, when nothing is read.
    shape: Option<Rc<Shape>>,
}

impl<'p> Table<'p> {
    /// The whole document.
    pub(super) fn root(value: Value, problems: &'p Problems) -> Self {
        Self::at(String::new(), value, problems)
    }

    /// A document that holds nothing, and every table that is asked for: what the reader asks for is noted.
    pub(super) fn described(shape: Rc<Shape>, problems: &'p Problems) -> Self {
        Self { path: String::new(), entries: Map::new(), known: Vec::new(), problems, shape: Some(shape) }
    }

    fn at(path: String, value: Value, problems: &'p Problems) -> Self {
        let entries = match value {
            Value::Object(entries) => entries,
            other => {
                let whole = if path.is_empty() { "the document" } else { &path };
                problems.with(whole, kind(&other), "a table of fields", "write `field: value` lines, or leave it out");
                Map::new()
            }
        };
        Self { path, entries, known: Vec::new(), problems, shape: None }
    }

    /// Notes what a field is, when nothing is read.
    fn note(&self, key: &'static str, schema: impl FnOnce() -> Value) {
        if let Some(shape) = &self.shape {
            shape.note(key, schema());
        }
    }

    /// The path of one of its fields.
    pub(super) fn path(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Where problems go.
    pub(super) fn problems(&self) -> &'p Problems {
        self.problems
    }

    /// A field as it is; null counts as absent, as in Kubernetes.
    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.entries.remove(key).filter(|value| !value.is_null())
    }

    /// A field as it is, whatever it is.
    pub(super) fn raw(&mut self, key: &'static str) -> Option<Value> {
        self.note(key, || json!({}));
        self.take(key)
    }

    /// A string.
    pub(super) fn string(&mut self, key: &'static str) -> Option<String> {
        self.note(key, || json!({"type": "string"}));
        match self.take(key)? {
            Value::String(text) => Some(text),
            other => self.mismatch(key, &other, "a string", "put the value in quotes"),
        }
    }

    /// Says that a document without the field is refused; by whom is the business of who checks what was read.
    pub(super) fn required(&mut self, key: &'static str) -> &mut Self {
        if let Some(shape) = &self.shape {
            shape.require(key);
        }
        self
    }

    /// Whether a field that is not read yet is there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.contains_key(key)
    }

    /// A field that is elsewhere: its place is told instead of a word that is spelt like it.
    pub(super) fn elsewhere(&mut self, key: &str, places: &str) {
        if self.entries.remove(key).is_some() {
            self.problems.without(self.path(key), "a known field", format!("move it to {places}"));
        }
    }

    /// A string, empty where there is none.
    pub(super) fn text(&mut self, key: &'static str) -> String {
        self.string(key).unwrap_or_default()
    }

    /// True or false.
    pub(super) fn boolean(&mut self, key: &'static str) -> Option<bool> {
        self.note(key, || json!({"type": "boolean"}));
        match self.take(key)? {
            Value::Bool(flag) => Some(flag),
            other => self.mismatch(key, &other, "true or false", "write it without quotes"),
        }
    }

    /// A whole number.
    pub(super) fn number(&mut self, key: &'static str) -> Option<i64> {
        self.note(key, || json!({"type": "integer"}));
        self.whole(key)
    }

    fn whole(&mut self, key: &'static str) -> Option<i64> {
        let value = self.take(key)?;
        match value.as_i64() {
            Some(number) => Some(number),
            None => self.mismatch(key, &value, "a whole number", "write it without quotes, unit and fraction"),
        }
    }

    /// A whole number of 32 bits without sign, with its bounds.
    pub(super) fn bounded(&mut self, key: &'static str, low: u32, high: u32) -> Option<u32> {
        self.note(key, || json!({"type": "integer", "minimum": low, "maximum": high}));
        let number = self.whole(key)?;
        let path = self.path(key);
        self.within(path, number, low, high)
    }

    fn within(&self, path: String, number: i64, low: u32, high: u32) -> Option<u32> {
        let found = u32::try_from(number).ok().filter(|number| (low..=high).contains(number));
        if found.is_none() {
            self.problems.with(path, number, format!("a number from {low} to {high}"), "choose one in that range");
        }
        found
    }

    /// One of some words.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        self.note(key, || json!({"enum": choices.iter().map(|(word, _)| *word).collect::<Vec<_>>()}));
        let text = match self.take(key)? {
            Value::String(text) => text,
            other => return self.mismatch(key, &other, "a string", "put the value in quotes"),
        };
        let found = choices.iter().find(|(word, _)| *word == text).map(|(_, choice)| *choice);
        if found.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.problems.with(self.path(key), text, format!("one of {}", words.join(", ")), "choose one of them");
        }
        found
    }

    /// A list of strings; `None` where there is no list.
    pub(super) fn strings(&mut self, key: &'static str) -> Option<Vec<String>> {
        self.note(key, || json!({"type": "array", "items": {"type": "string"}}));
        let path = self.path(key);
        let items = self.list(key)?;
        let strings = items.into_iter().enumerate().filter_map(|(index, item)| match item {
            Value::String(text) => Some(text),
            other => {
                self.problems.with(format!("{path}[{index}]"), kind(&other), "a string", "put the value in quotes");
                None
            }
        });
        Some(strings.collect())
    }

    /// A list of whole numbers within bounds; `None` where there is no list.
    pub(super) fn numbers(&mut self, key: &'static str, low: u32, high: u32) -> Option<Vec<u32>> {
        self.note(key, || json!({"type": "array", "items": {"type": "integer", "minimum": low, "maximum": high}}));
        let path = self.path(key);
        let items = self.list(key)?;
        let numbers = items.into_iter().enumerate().filter_map(|(index, item)| {
            let path = format!("{path}[{index}]");
            if let Some(number) = item.as_i64() {
                return self.within(path, number, low, high);
            }
            self.problems.with(path, kind(&item), "a whole number", "write it without quotes, unit and fraction");
            None
        });
        Some(numbers.collect())
    }

    fn list(&mut self, key: &'static str) -> Option<Vec<Value>> {
        match self.take(key)? {
            Value::Array(items) => Some(items),
            other => self.mismatch(key, &other, "a list", "put it in brackets: [one, two]"),
        }
    }

    /// A map of strings, in the order of its keys. Values are not told: they may be anyone's secrets.
    pub(super) fn string_map(&mut self, key: &'static str) -> BTreeMap<String, String> {
        self.note(key, || json!({"type": "object", "additionalProperties": {"type": "string"}}));
        let path = self.path(key);
        let entries = match self.take(key) {
            Some(value) => Self::at(path.clone(), value, self.problems).entries,
            None => Map::new(),
        };
        let strings = entries.into_iter().filter_map(|(name, value)| match value {
            Value::String(text) => Some((name, text)),
            _ => {
                let remedy = "put the value in quotes";
                self.problems.without(format!("{path}.{name}"), "a string", remedy);
                None
            }
        });
        strings.collect()
    }

    /// A table; an empty one where there is none.
    pub(super) fn table(&mut self, key: &'static str) -> Table<'p> {
        let path = self.path(key);
        self.optional_table(key).unwrap_or_else(|| Self::at(path, Value::Object(Map::new()), self.problems))
    }

    /// A table, if there is one.
    pub(super) fn optional_table(&mut self, key: &'static str) -> Option<Table<'p>> {
        if let Some(shape) = &self.shape {
            return Some(Self { path: self.path(key), ..Self::described(shape.table(key), self.problems) });
        }
        let value = self.take(key)?;
        Some(Self::at(self.path(key), value, self.problems))
    }

    /// A list of tables; `None` where there is no list.
    pub(super) fn tables(&mut self, key: &'static str) -> Option<Vec<Table<'p>>> {
        let path = self.path(key);
        if let Some(shape) = &self.shape {
            return Some(vec![Self { path, ..Self::described(shape.list(key), self.problems) }]);
        }
        let items = self.list(key)?.into_iter().enumerate();
        Some(items.map(|(index, item)| Table::at(format!("{path}[{index}]"), item, self.problems)).collect())
    }

    /// What is left, kept as it is.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.entries
    }

    /// Tells of every field that is left.
    pub(super) fn finish(self) {
        if let Some(shape) = &self.shape {
            shape.close();
        }
        for key in self.entries.keys() {
            let path = self.path(key);
            let remedy = match nearest(key, &self.known) {
                Some(near) => format!("did you mean {near:?}?"),
                None => format!("remove it; known here: {}", self.known.join(", ")),
            };
            self.problems.without(path, "a known field", remedy);
        }
    }

    fn mismatch<T>(&self, key: &str, value: &Value, expected: &str, remedy: &str) -> Option<T> {
        self.problems.with(self.path(key), kind(value), expected, remedy);
        None
    }
}

/// What a value is, told in place of itself: it may be a secret in the wrong place.
fn kind(value: &Value) -> Kind {
    Kind(match value {
        Value::Null => "nothing",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    })
}

/// Told without quotes, since it is no value.
struct Kind(&'static str);

impl std::fmt::Debug for Kind {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(self.0)
    }
}
