//! A schema for people: a line a field.

use std::fmt::Write;

use serde_json::Value;

/// Every field of a schema of this module's, in the order in which they are read: its path, what it takes, what it means.
#[must_use]
pub fn fields(schema: &Value) -> String {
    let mut lines = Vec::new();
    collect(schema, "", &mut lines);
    let width = |column: fn(&Line) -> &String| lines.iter().map(|line| column(line).len()).max().unwrap_or(0);
    let (path, takes) = (width(|line| &line.path), width(|line| &line.takes));
    lines.iter().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{:path$}  {:takes$}  {}", line.path, line.takes, line.meaning);
        text
    })
}

struct Line {
    path: String,
    takes: String,
    meaning: String,
}

fn collect(schema: &Value, above: &str, lines: &mut Vec<Line>) {
    let required: Vec<&Value> = schema["required"].as_array().into_iter().flatten().collect();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        let is_required = required.iter().any(|required| *required == name);
        let takes = format!("{}{}", takes(property), if is_required { ", required" } else { "" });
        let meaning = property["description"].as_str().unwrap_or_default().to_owned();
        lines.push(Line { path: path.clone(), takes, meaning });
        collect(property, &path, lines);
        collect(&property["items"], &format!("{path}[]"), lines);
    }
}

/// What a field may be, in few words.
fn takes(property: &Value) -> String {
    if let Some(words) = property["enum"].as_array() {
        return words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" | ");
    }
    match property["type"].as_str() {
        Some("string") => "text".into(),
        Some("boolean") => "true | false".into(),
        Some("integer") => match (property["minimum"].as_u64(), property["maximum"].as_u64()) {
            (Some(low), Some(high)) => format!("{low}..{high}"),
            _ => "number".into(),
        },
        Some("array") => match property["items"]["type"].as_str() {
            Some("object") => "list of tables".into(),
            _ => format!("list of {}", takes(&property["items"])),
        },
        Some("object") if !property["additionalProperties"].is_object() => "table".into(),
        Some("object") => "map of texts".into(),
        _ => "anything".into(),
    }
}
