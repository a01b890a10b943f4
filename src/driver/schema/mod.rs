//! JSON Schemas of the two inputs, for editors and for whoever writes such files by program. They are what the readers ask
//! for, noted while they run on nothing, and so cannot differ from them.

mod descriptions;
mod listing;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use serde_json::{Map, Value};

use super::config::DriverConfig;
use super::problem::{Document, Problems};
use super::read::Table;
use super::sandbox::SandboxSpec;

pub use listing::fields;

/// The dialect (json-schema.org).
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// The schema of the driver's configuration, as the table `[openshell.drivers.kubernetes]` holds it. What a schema cannot
/// say, such as which fields go together, is checked by [`DriverConfig::from_toml`] alone.
#[must_use]
pub fn of_config() -> Value {
    schema("Configuration of the OpenShell driver for Kubernetes", Document::Config, |table| {
        DriverConfig::read(table);
    })
}

/// The schema of a sandbox's description. The policy in it is one of the roles', which check it.
#[must_use]
pub fn of_sandbox() -> Value {
    schema("Description of an OpenShell sandbox", Document::Sandbox, |table| {
        SandboxSpec::read(table);
    })
}

fn schema(title: &str, document: Document, read: impl FnOnce(Table<'_>)) -> Value {
    // Nothing is read, so what is missing is nobody's problem.
    let problems = Problems::of(document);
    let shape = Rc::new(Shape::default());
    read(Table::described(shape.clone(), &problems));
    let mut schema = Map::new();
    schema.insert("$schema".into(), DIALECT.into());
    schema.insert("title".into(), title.into());
    schema.extend(shape.schema(""));
    Value::Object(schema)
}

/// What the field at a path means, by the longest end of it that there is a line for.
fn description(path: &str) -> Option<&'static str> {
    let fits = |end: &str| path == end || path.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'));
    let fitting = descriptions::DESCRIPTIONS.iter().filter(|(end, _)| fits(end));
    fitting.max_by_key(|(end, _)| end.len()).map(|(_, text)| *text)
}

/// What may be in one table.
#[derive(Debug, Default)]
pub(super) struct Shape {
    fields: RefCell<Vec<(&'static str, Field)>>,
    required: RefCell<Vec<&'static str>>,
    /// Whether fields that nobody asked for are refused.
    closed: Cell<bool>,
}

/// What a field may be.
#[derive(Debug)]
enum Field {
    Scalar(Value),
    Table(Rc<Shape>),
    Tables(Rc<Shape>),
}

impl Shape {
    /// A field and its schema.
    pub(super) fn note(&self, key: &'static str, schema: Value) {
        self.fields.borrow_mut().push((key, Field::Scalar(schema)));
    }

    /// A field that must be there.
    pub(super) fn require(&self, key: &'static str) {
        self.required.borrow_mut().push(key);
    }

    /// A field that is a table.
    pub(super) fn table(&self, key: &'static str) -> Rc<Self> {
        let shape = Rc::new(Self::default());
        self.fields.borrow_mut().push((key, Field::Table(shape.clone())));
        shape
    }

    /// A field that is a list of tables.
    pub(super) fn list(&self, key: &'static str) -> Rc<Self> {
        let shape = Rc::new(Self::default());
        self.fields.borrow_mut().push((key, Field::Tables(shape.clone())));
        shape
    }

    /// There are no other fields.
    pub(super) fn close(&self) {
        self.closed.set(true);
    }

    /// The schema of the table at `path`.
    fn schema(&self, path: &str) -> Map<String, Value> {
        let mut properties = Map::new();
        for (key, field) in self.fields.borrow().iter() {
            let path = if path.is_empty() { (*key).to_owned() } else { format!("{path}.{key}") };
            let mut property = match description(&path) {
                Some(text) => Map::from_iter([("description".to_owned(), text.into())]),
                None => Map::new(),
            };
            match field {
                Field::Scalar(schema) => property.extend(schema.as_object().cloned().unwrap_or_default()),
                Field::Table(shape) => property.extend(shape.schema(&path)),
                Field::Tables(shape) => {
                    property.insert("type".into(), "array".into());
                    property.insert("items".into(), shape.schema(&format!("{path}[]")).into());
                }
            }
            properties.insert((*key).into(), property.into());
        }
        let mut schema = Map::new();
        schema.insert("type".into(), "object".into());
        schema.insert("properties".into(), properties.into());
        let required = self.required.borrow();
        if !required.is_empty() {
            schema.insert("required".into(), required.clone().into());
        }
        if self.closed.get() {
            schema.insert("additionalProperties".into(), false.into());
        }
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(schema: &Value, path: &str, found: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            paths(property, &path, found);
            paths(&property["items"], &format!("{path}[]"), found);
            found.push(path);
        }
    }

    #[test]
    fn every_field_is_described_and_every_description_is_some_fields() {
        let mut found = Vec::new();
        paths(&of_config(), "", &mut found);
        paths(&of_sandbox(), "", &mut found);
        assert!(found.len() > 100, "{found:?}");
        let mut used = Vec::new();
        for path in &found {
            used.push(description(path).unwrap_or_else(|| panic!("{path} has no description")));
        }
        for (end, text) in descriptions::DESCRIPTIONS {
            assert!(used.contains(text), "no field's path ends with {end}");
        }
    }
}
