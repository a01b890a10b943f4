//! Kubernetes objects as rendered: their fields in order, so that equal inputs give equal bytes.

use serde_json::{Map, Value};

use super::yaml;

/// An object to create.
#[derive(Clone, Debug, PartialEq)]
pub struct Object(Value);

impl Object {
    /// An object of these parts, spec and the like last.
    pub(super) fn new(api_version: &str, kind: &str, metadata: Value, rest: Fields) -> Self {
        let head = Fields::new().with("apiVersion", api_version).with("kind", kind).with("metadata", metadata);
        Self(head.and(rest).build())
    }

    /// All of it.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// Its kind: `Pod`.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.0["kind"].as_str().unwrap_or_default()
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// The pod specification in it, where there is one: a Pod's own, or its template's.
    #[must_use]
    pub fn pod_spec(&self) -> Option<&Value> {
        self.pod().map(|pod| &pod["spec"])
    }

    /// The metadata of the pod in it, where there is one.
    #[must_use]
    pub fn pod_metadata(&self) -> Option<&Value> {
        self.pod().map(|pod| &pod["metadata"])
    }

    /// The pod in it: itself, or its template.
    fn pod(&self) -> Option<&Value> {
        match self.kind() {
            "Pod" => Some(&self.0),
            "Sandbox" => Some(&self.0["spec"]["podTemplate"]),
            "Deployment" => Some(&self.0["spec"]["template"]),
            _ => None,
        }
    }

    /// The object as a YAML document.
    #[must_use]
    pub fn to_yaml(&self) -> String {
        yaml::write(&self.0)
    }
}

/// Bytes of an object in YAML, about: a pod is some times as large, and most others smaller.
const DOCUMENT: usize = 4096;

/// Objects as one file for `kubectl apply -f -`.
#[must_use]
pub fn to_yaml(objects: &[Object]) -> String {
    let mut text = String::with_capacity(objects.len() * DOCUMENT);
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            text.push_str("---\n");
        }
        yaml::append(&mut text, &object.0);
    }
    text
}

/// Objects as one JSON document: a List.
#[must_use]
pub fn to_json(objects: &[Object]) -> String {
    let items: Vec<Value> = objects.iter().map(|object| object.0.clone()).collect();
    let list = Fields::new().with("apiVersion", "v1").with("kind", "List").with("items", items).build();
    format!("{list:#}\n")
}

/// Fields of an object in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Map<String, Value>);

impl Fields {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// One more; a field of that name is replaced in its place.
    pub(super) fn with(mut self, name: impl Into<String>, value: impl Into<Value>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// One more, unless it would say nothing: null, an empty string, list or map.
    pub(super) fn maybe(self, name: &str, value: impl Into<Value>) -> Self {
        let value = value.into();
        let empty = match &value {
            Value::Null => true,
            Value::String(text) => text.is_empty(),
            Value::Array(items) => items.is_empty(),
            Value::Object(fields) => fields.is_empty(),
            Value::Bool(_) | Value::Number(_) => false,
        };
        if empty { self } else { self.with(name, value) }
    }

    /// Those of another one behind its own.
    pub(super) fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// These, in this order.
    pub(super) fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        pairs.into_iter().fold(Self::new(), |fields, (name, value)| fields.with(name, value))
    }

    pub(super) fn build(self) -> Value {
        Value::Object(self.0)
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Self {
        fields.build()
    }
}

/// A map of strings, in the order of its keys.
pub(super) fn strings<'a>(entries: impl IntoIterator<Item = (&'a String, &'a String)>) -> Value {
    Value::Object(entries.into_iter().map(|(key, value)| (key.clone(), Value::String(value.clone()))).collect())
}
