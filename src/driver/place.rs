//! Where in a file a field is: its line and column, by the path that problems give it.

use std::fmt;

use serde_saphyr::granit_parser::{self, Event, Parser};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Deepest nesting looked into. The inputs are some levels deep; what is deeper gets the place of what it is in.
const MAX_DEPTH: usize = 64;

/// A place in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl Place {
    /// The place of a byte.
    pub(super) fn at(text: &str, byte: usize) -> Self {
        let before = text.get(..byte).unwrap_or(text);
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        Self { line: before.matches('\n').count() + 1, column: before[start..].chars().count() + 1 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.line, self.column)
    }
}

/// The places of a document's fields: where their names are.
#[derive(Debug, Default)]
pub struct Places(Field);

/// A field, an entry of a list, or the whole; and what is in it. Entries of lists are called `[0]`.
#[derive(Debug, Default)]
struct Field {
    place: Option<Place>,
    inner: Vec<(String, Self)>,
}

impl Places {
    /// Those of YAML; of what is none, those before the mistake.
    #[must_use]
    pub fn of_yaml(text: &str) -> Self {
        let options = granit_parser::options! {
            emit_comments: false,
            flow_nesting_limit: MAX_DEPTH,
            block_nesting_limit: MAX_DEPTH,
        };
        let mut tree = Tree::default();
        for event in Parser::new_from_str_with_options(text, options) {
            let Ok((event, span)) = event else { break };
            let at = Place { line: span.start.line(), column: span.start.col().saturating_add(1) };
            match event {
                Event::Scalar(text, ..) => tree.leaf(&text, at),
                Event::Alias(_) => tree.leaf("", at),
                Event::SequenceStart(..) => tree.begin(true, at),
                Event::MappingStart(..) => tree.begin(false, at),
                Event::SequenceEnd | Event::MappingEnd => tree.end(),
                _ => {}
            }
        }
        while !tree.open.is_empty() {
            tree.end();
        }
        Self(Field { place: None, ..tree.root })
    }

    /// Those of TOML, below `table`, if the file has the first of its names; of what is no TOML, none.
    #[must_use]
    pub fn of_toml(text: &str, table: &[&str]) -> Self {
        let Ok(document) = DeTable::parse(text) else { return Self::default() };
        let mut root = Field { place: None, inner: fields(text, document.get_ref()) };
        // Where there is none, what is wrong is told of the whole.
        if table.iter().try_fold(&root, |here, name| here.within(name)).is_some() {
            root = table.iter().try_fold(root, |mut here, name| here.take(name)).unwrap_or_default();
        }
        Self(root)
    }

    /// Where the field is, or else what it would be in.
    #[must_use]
    pub fn find(&self, path: &str) -> Option<Place> {
        self.0.find(path)
    }
}

impl Field {
    fn within(&self, name: &str) -> Option<&Self> {
        self.inner.iter().find(|(known, _)| known == name).map(|(_, field)| field)
    }

    fn take(&mut self, name: &str) -> Option<Self> {
        let index = self.inner.iter().position(|(known, _)| known == name)?;
        Some(self.inner.swap_remove(index).1)
    }

    /// Names may hold dots themselves, so the longest that fits is it.
    fn find(&self, path: &str) -> Option<Place> {
        let path = path.strip_prefix('.').unwrap_or(path);
        let rest = |name: &str| {
            path.strip_prefix(name).filter(|rest| rest.is_empty() || rest.starts_with('.') || rest.starts_with('['))
        };
        let fitting = self.inner.iter().filter_map(|(name, field)| Some((name.len(), rest(name)?, field)));
        let found = fitting.max_by_key(|(length, ..)| *length).and_then(|(_, rest, field)| field.find(rest));
        found.or(self.place)
    }
}

fn fields(text: &str, table: &DeTable<'_>) -> Vec<(String, Field)> {
    table.iter().map(|(name, value)| (name.get_ref().to_string(), field(text, name.span().start, value))).collect()
}

fn field(text: &str, byte: usize, value: &Spanned<DeValue<'_>>) -> Field {
    let inner = match value.get_ref() {
        DeValue::Table(table) => fields(text, table),
        DeValue::Array(items) => {
            let item = |(index, item): (usize, &Spanned<DeValue<'_>>)| {
                (format!("[{index}]"), field(text, item.span().start, item))
            };
            items.iter().enumerate().map(item).collect()
        }
        _ => Vec::new(),
    };
    Field { place: Some(Place::at(text, byte)), inner }
}

/// A tree that grows by a parser's events.
#[derive(Default)]
struct Tree {
    root: Field,
    open: Vec<Open>,
}

/// A list or map that is still being read.
struct Open {
    /// Its name in what it is in; `None` where it is a key itself.
    name: Option<String>,
    is_list: bool,
    /// The key whose value comes next.
    key: Option<(String, Place)>,
    field: Field,
}

impl Tree {
    /// Name and place of the value that comes; `None` where it is a key.
    fn next(&mut self, at: Place) -> Option<(String, Place)> {
        match self.open.last_mut() {
            None => Some((String::new(), at)),
            Some(open) if open.is_list => Some((format!("[{}]", open.field.inner.len()), at)),
            Some(open) => open.key.take(),
        }
    }

    fn leaf(&mut self, text: &str, at: Place) {
        match (self.next(at), self.open.last_mut()) {
            (Some((name, place)), _) => self.put(name, Field { place: Some(place), inner: Vec::new() }),
            (None, Some(open)) => open.key = Some((text.to_owned(), at)),
            (None, None) => {}
        }
    }

    fn begin(&mut self, is_list: bool, at: Place) {
        let (name, place) = self.next(at).map_or((None, at), |(name, place)| (Some(name), place));
        self.open.push(Open { name, is_list, key: None, field: Field { place: Some(place), inner: Vec::new() } });
    }

    fn end(&mut self) {
        let Some(Open { name, field, .. }) = self.open.pop() else { return };
        match (name, self.open.last_mut()) {
            (Some(name), _) => self.put(name, field),
            (None, Some(open)) => open.key = field.place.map(|place| (String::new(), place)),
            (None, None) => {}
        }
    }

    fn put(&mut self, name: String, field: Field) {
        match self.open.last_mut() {
            Some(open) => open.field.inner.push((name, field)),
            None => self.root = field,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(places: &Places, path: &str) -> String {
        places.find(path).map_or_else(|| "nowhere".into(), |place| place.to_string())
    }

    #[test]
    fn a_field_of_yaml_is_where_its_name_is() {
        let text = "id: x\nlabels:\n  a.b/c: d\n  a: é\nlist:\n  - {é: 1, z: [1, 2]}\n  - w\n? [k]\n: v\nlast: 1\n";
        let places = Places::of_yaml(text);
        for (path, place) in [
            ("id", "1:1"),
            ("labels.a.b/c", "3:3"),
            ("labels.a", "4:3"),
            ("list[0].z", "6:12"),
            ("list[0].z[1]", "6:19"),
            ("list[1]", "7:5"),
            ("last", "10:1"),
            // What is not there is told of what it would be in.
            ("list[0].none", "6:5"),
            ("labels.none.at.all", "2:1"),
            ("none", "nowhere"),
        ] {
            assert_eq!(found(&places, path), place, "{path}");
        }
        let _ = Places::of_yaml("a: [1, {b: ");
        let _ = Places::of_yaml(&"[".repeat(100_000));
    }

    #[test]
    fn a_field_of_toml_is_where_its_name_is() {
        let text = "a = 1\nb.c = [{d = 1}, {d = 2}]\n[e]\nf = \"é\"\n[[g]]\n[[g]]\nh = 1\n";
        let places = Places::of_toml(text, &["openshell"]);
        for (path, place) in [
            ("a", "1:1"),
            ("b.c", "2:3"),
            ("b.c[1].d", "2:18"),
            ("e.f", "4:1"),
            ("g[1].h", "7:1"),
            ("e.none", "3:2"),
            ("none", "nowhere"),
        ] {
            assert_eq!(found(&places, path), place, "{path}");
        }
        let gateway = "[openshell.drivers.kubernetes]\nnamespace = 1\n";
        let places = Places::of_toml(gateway, &["openshell", "drivers", "kubernetes"]);
        assert_eq!(found(&places, "namespace"), "2:1");
        assert_eq!(found(&Places::of_toml("a = ", &[]), "a"), "nowhere");
    }
}
