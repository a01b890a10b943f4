//! `meta/v1` Status, the real server's words.

use serde_json::{Value, json};

/// A refusal: its code and body. `object` is kind and name of what was refused.
pub fn status(code: u16, reason: &str, message: &str, object: Option<(&str, &str)>) -> (u16, Value) {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    if let Some((kind, name)) = object {
        status["details"] = json!({"name": name, "kind": kind});
    }
    (code, status)
}
