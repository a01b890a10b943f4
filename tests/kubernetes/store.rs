//! Objects by their paths, and what is done to them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::patch;
use super::status::status;

/// What a path leads to.
pub struct Target {
    pub group: &'static str,
    pub plural: &'static str,
    pub namespace: Option<String>,
    pub name: String,
    pub subresource: Option<&'static str>,
}

impl Target {
    pub fn parse(path: &str) -> Option<Self> {
        let (object, subresource) = split(path);
        let parts: Vec<&str> = object.split('/').skip(1).collect();
        let (group, plural, namespace, name) = match parts[..] {
            ["api", "v1", "nodes", name] => ("", "nodes", None, name),
            ["api", "v1", "namespaces", namespace, "pods", name] => ("", "pods", Some(namespace), name),
            ["apis", "apps", "v1", "namespaces", namespace, "daemonsets", name] => {
                ("apps", "daemonsets", Some(namespace), name)
            }
            _ => return None,
        };
        Some(Self { group, plural, namespace: namespace.map(str::to_owned), name: name.to_owned(), subresource })
    }

    fn path(&self) -> String {
        let Self { group, plural, namespace, name, .. } = self;
        let root = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/v1") };
        let namespace = namespace.as_ref().map_or_else(String::new, |namespace| format!("/namespaces/{namespace}"));
        format!("{root}{namespace}/{plural}/{name}")
    }

    /// As rights name it.
    pub fn resource(&self) -> String {
        self.subresource.map_or_else(|| self.plural.to_owned(), |part| format!("{}/{part}", self.plural))
    }

    /// As refusals name it.
    pub fn kind(&self) -> String {
        if self.group.is_empty() { self.plural.to_owned() } else { format!("{}.{}", self.plural, self.group) }
    }
}

/// The object's path, and which part of it is meant.
pub fn split(path: &str) -> (&str, Option<&'static str>) {
    path.strip_suffix("/status").map_or((path, None), |object| (object, Some("status")))
}

pub fn path_of(object: &Value) -> String {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (group, plural) = match object["kind"].as_str() {
        Some("Pod") => ("", "pods"),
        Some("Node") => ("", "nodes"),
        Some("DaemonSet") => ("apps", "daemonsets"),
        kind => panic!("the stand-in holds no {kind:?}"),
    };
    let metadata = &object["metadata"];
    let name = text(&metadata["name"]).expect("an object has a name");
    Target { group, plural, namespace: text(&metadata["namespace"]), name, subresource: None }.path()
}

#[derive(Default)]
pub struct Store {
    objects: BTreeMap<String, Value>,
    version: u64,
}

impl Store {
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.objects.get(path)
    }

    /// Puts it there as a new state; what is as it was stays the state that it is.
    pub fn put(&mut self, path: &str, mut object: Value) -> Value {
        if let Some(before) = self.objects.get(path) {
            object["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"].clone();
            if *before == object {
                return object;
            }
        }
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    pub fn remove(&mut self, path: &str) {
        self.version += 1;
        self.objects.remove(path).expect("there is such an object");
    }

    pub fn read(&self, target: &Target) -> Result<Value, (u16, Value)> {
        self.get(&target.path()).cloned().ok_or_else(|| {
            let message = format!("{} {:?} not found", target.kind(), target.name);
            status(404, "NotFound", &message, Some((target.plural, &target.name)))
        })
    }

    pub fn patch(&mut self, target: &Target, content_type: &str, body: &str) -> Result<Value, (u16, Value)> {
        let before = self.read(target)?;
        let bad = |message: String| status(400, "BadRequest", &message, None);
        let patch: Value = serde_json::from_str(body).map_err(|error| bad(error.to_string()))?;
        let mut after = before.clone();
        match content_type {
            "application/merge-patch+json" => patch::merge(&mut after, &patch),
            "application/strategic-merge-patch+json" => patch::strategic(&mut after, &patch),
            "application/json-patch+json" => {
                let operations = patch.as_array().ok_or_else(|| bad("a JSON patch is a list".to_owned()))?;
                for operation in operations {
                    // What of it does not apply is not told (NewGenericServerResponse in apimachinery's api/errors).
                    patch::operation(&mut after, operation).ok_or_else(|| {
                        let message = "the server rejected our request due to an error in our request";
                        let (code, mut status) = status(422, "Invalid", message, None);
                        status["details"] = json!({});
                        (code, status)
                    })?;
                }
            }
            _ => {
                let message = "the body of the request was in an unknown format - accepted media types include: \
                               application/json-patch+json, application/merge-patch+json, \
                               application/strategic-merge-patch+json";
                return Err(status(415, "UnsupportedMediaType", message, None));
            }
        }
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        if version(&after) != version(&before) {
            let message = format!(
                "Operation cannot be fulfilled on {} {:?}: the object has been modified; please apply your changes to \
                 the latest version and try again",
                target.kind(),
                target.name
            );
            return Err(status(409, "Conflict", &message, Some((target.plural, &target.name))));
        }
        // Neither part can be changed by way of the other.
        let kept = if target.subresource.is_some() { "spec" } else { "status" };
        match before.get(kept) {
            Some(part) => after[kept] = part.clone(),
            None => drop(after.as_object_mut().and_then(|object| object.remove(kept))),
        }
        Ok(self.put(&target.path(), after))
    }
}
