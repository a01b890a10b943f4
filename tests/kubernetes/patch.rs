//! The three kinds of patch.

use serde_json::{Map, Value};

/// RFC 7396.
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    for (key, value) in fields {
        let object = as_object(target);
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// Kubernetes' own, with the one list of ours that is merged by a key: conditions, by `type`.
pub fn strategic(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *target = patch.clone();
        return;
    };
    for (key, value) in fields {
        let object = as_object(target);
        match value {
            Value::Null => drop(object.remove(key)),
            Value::Array(items) if key == "conditions" => {
                let entry = object.entry(key).or_insert_with(|| Value::Array(Vec::new()));
                let held = entry.as_array_mut().expect("conditions are a list");
                for item in items {
                    match held.iter_mut().find(|held| held["type"] == item["type"]) {
                        Some(held) => strategic(held, item),
                        None => held.push(item.clone()),
                    }
                }
            }
            _ => strategic(object.entry(key).or_insert(Value::Null), value),
        }
    }
}

fn as_object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    value.as_object_mut().expect("it has just been made one")
}

/// One operation of RFC 6902; nothing when it does not apply.
pub fn operation(target: &mut Value, operation: &Value) -> Option<()> {
    let path = operation["path"].as_str()?;
    let value = &operation["value"];
    match operation["op"].as_str()? {
        "test" => (target.pointer(path)? == value).then_some(()),
        "replace" => {
            *target.pointer_mut(path)? = value.clone();
            Some(())
        }
        "remove" => {
            let (parent, last) = path.rsplit_once('/')?;
            let last = last.replace("~1", "/").replace("~0", "~");
            match target.pointer_mut(parent)? {
                Value::Object(fields) => fields.remove(&last).map(drop),
                Value::Array(items) => {
                    let index: usize = last.parse().ok().filter(|index| *index < items.len())?;
                    items.remove(index);
                    Some(())
                }
                _ => None,
            }
        }
        _ => None,
    }
}
