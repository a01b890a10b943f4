//! JSON-RPC 2.0 calls, and the Model Context Protocol's, which are calls with names known in advance and tools as
//! parameters.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::json::{self, Folding, folded};
use super::near;
use super::pending::{Judged, Pending};
use super::rules::{Access, Inspection, Protocol, RpcRule, RpcRules, Sense};
use super::selection::{Outcome, Unclear, ask, forbidden, missing, quoted, refusal};
use super::verdict::{Refusal, RulePart};

/// Most calls of one batch: each is judged by itself.
const MAX_BATCH: usize = 100;

/// Longest name of a tool under `strict_tool_names`, which also keeps it to `A-Z a-z 0-9 _ . -`.
const MAX_TOOL_NAME: usize = 128;

/// The method that calls a tool.
const TOOL_CALL: &str = "tools/call";

/// What a client may send by the protocol's revisions up to 2025-11-25.
const KNOWN: &[&str] = &[
    "completion/complete",
    "initialize",
    "logging/setLevel",
    "notifications/cancelled",
    "notifications/initialized",
    "notifications/progress",
    "notifications/roots/list_changed",
    "notifications/tasks/status",
    "ping",
    "prompts/get",
    "prompts/list",
    "resources/list",
    "resources/read",
    "resources/subscribe",
    "resources/templates/list",
    "resources/unsubscribe",
    "tasks/cancel",
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tools/call",
    "tools/list",
];

/// Members of a message (JSON-RPC 2.0 §4, §5).
const MEMBERS: &[&str] = &["jsonrpc", "id", "method", "params", "result", "error"];

/// A message from the client.
enum Message<'v> {
    Call(Call<'v>),
    /// An answer to a call of the server's.
    Response,
}

pub(super) struct Call<'v> {
    pub(super) method: &'v str,
    pub(super) params: Option<&'v Value>,
    /// Of MCP's `tools/call`.
    pub(super) tool: Option<&'v str>,
}

impl Call<'_> {
    /// Whether a rule is about the tool that is called, if about any.
    pub(super) fn is_for(&self, rule: &RpcRule) -> bool {
        rule.tool.as_ref().is_none_or(|tool| self.tool.is_some_and(|name| tool.matches(name)))
    }
}

/// Judges every message of a body: one denial denies all.
pub(super) fn judge_body(pending: &Pending, body: &[u8]) -> Judged {
    let messages = match json::parse(body, Folding::Everywhere) {
        Ok(Value::Array(items)) if items.is_empty() || items.len() > MAX_BATCH => {
            let reason = format!("the batch holds {} messages; expected 1 to {MAX_BATCH}", items.len());
            return Err(pending.unclear(Unclear::new(reason, "send several batches")));
        }
        Ok(Value::Array(items)) => items,
        Ok(one) => vec![one],
        Err(error) => {
            let remedy = "send one JSON-RPC message, or a list of them";
            return Err(pending.unclear(Unclear::new(format!("the body is not read: {error}"), remedy)));
        }
    };
    judge_messages(pending, &messages).map_err(|refusal| match messages.as_slice() {
        [one] => Box::new(Refusal { id: id(one), ..*refusal }),
        _ => refusal,
    })
}

/// What the answer to a message is known by.
fn id(message: &Value) -> Value {
    message.get("id").filter(|id| id.is_string() || id.is_number()).cloned().unwrap_or_default()
}

fn judge_messages(pending: &Pending, messages: &[Value]) -> Judged {
    let mcp = pending.lead.protocol == Protocol::Mcp;
    let strict = pending.lead.mcp.strict_tool_names;
    let mut first = None;
    for message in messages {
        match read(message, mcp, strict).map_err(|unclear| pending.unclear(unclear))? {
            // What the server asked for, sampling and elicitation, is answered by a request of the client's.
            Message::Response if mcp => {
                first.get_or_insert_with(|| (Arc::clone(&pending.lead), RulePart::Protocol));
            }
            Message::Response => {
                let reason = "a response, where only calls are sent to a server".to_owned();
                let steps = vec!["send calls, or set protocol: mcp for a server that calls back".to_owned()];
                return Err(Box::new(refusal(&pending.lead, "a response", reason, None, steps)));
            }
            Message::Call(call) => {
                let found = judge(pending, &call)?;
                first.get_or_insert(found);
            }
        }
    }
    first.ok_or_else(|| pending.unclear(Unclear::new("there is no message", "send one")))
}

fn judge(pending: &Pending, call: &Call<'_>) -> Judged {
    let asked = match call.tool {
        Some(tool) => format!("{} {}", quoted(call.method), quoted(tool)),
        None => quoted(call.method),
    };
    let outcome = ask(
        pending.endpoints.iter(),
        |endpoint| find(&endpoint.deny.rpc, call, Sense::Deny),
        |endpoint| allows(endpoint, call),
    );
    match outcome {
        Outcome::Allowed(by, part) => Ok((Arc::clone(by), part)),
        Outcome::Forbidden(by, rule) => Err(Box::new(forbidden(by, rule, &asked))),
        Outcome::Missing => {
            if let Some(near) = near::call(pending.endpoints.iter().map(AsRef::as_ref), call) {
                return Err(Box::new(near.refuse(&asked)));
            }
            let rule = match call.tool {
                Some(tool) => ("tool", tool),
                None => ("method", call.method),
            };
            let writable = super::glob::Glob::free(rule.1).is_ok_and(|glob| glob.is_literal());
            let rule = writable.then(|| json!({ rule.0: rule.1 }));
            Err(Box::new(missing(&pending.lead, &asked, rule)))
        }
    }
}

fn allows(endpoint: &Inspection, call: &Call<'_>) -> Option<RulePart> {
    if endpoint.access == Some(Access::Full) {
        return Some(RulePart::Access);
    }
    if let Some(rule) = find(&endpoint.allow.rpc, call, Sense::Allow) {
        return Some(RulePart::Rule(rule));
    }
    // Rules that pick tools say which ones; all the other methods pass.
    let picked = || call.method == TOOL_CALL && endpoint.allow.rpc.about(TOOL_CALL).next().is_some();
    let known = endpoint.mcp.allow_all_known_methods && KNOWN.contains(&call.method);
    (known && !picked()).then_some(RulePart::KnownMethods)
}

fn find(rules: &RpcRules, call: &Call<'_>, sense: Sense) -> Option<usize> {
    rules.about(call.method).find(|rule| speaks_of(rule, call, sense)).map(|rule| rule.written)
}

fn speaks_of(rule: &RpcRule, call: &Call<'_>, sense: Sense) -> bool {
    call.is_for(rule)
        && rule.params.iter().all(|(path, matcher)| {
            let values = values_at(call.params, path, sense).unwrap_or_default();
            match sense {
                Sense::Allow => !values.is_empty() && values.iter().all(|value| matcher.matches(value)),
                Sense::Deny => values.iter().any(|value| matcher.matches(value)),
            }
        })
}

/// The single values at `path`; `None` where there is nothing or something else, which an allow rule cannot be held against.
pub(super) fn values_at<'v>(params: Option<&'v Value>, path: &[String], sense: Sense) -> Option<Vec<Cow<'v, str>>> {
    let mut values = Vec::new();
    let whole = params.is_some_and(|params| collect(params, path, sense, &mut values));
    (whole || sense == Sense::Deny).then_some(values)
}

/// Largest whole number that JSON's readers agree on (RFC 8259 §6).
const WHOLE: f64 = 9_007_199_254_740_991.0;

/// A value that is neither text nor made of others, as a matcher reads it: a whole number without its fraction or
/// exponent, since `1`, `1.0` and `1e0` are the same to whoever is called.
fn plain(value: &Value) -> String {
    match value.as_f64() {
        // With nothing added to it, -0 is 0.
        Some(number) if number.fract() == 0.0 && number.abs() <= WHOLE => format!("{:.0}", number + 0.0),
        _ => value.to_string(),
    }
}

/// Collects the single values at `path`, lists taken apart, and answers whether there is nothing else at it: an allow
/// rule must not pass what it cannot compare. A deny rule looks further, into objects below and at names in any case,
/// since some server might.
fn collect<'v>(value: &'v Value, path: &[String], sense: Sense, out: &mut Vec<Cow<'v, str>>) -> bool {
    let Some((name, rest)) = path.split_first() else {
        match value {
            Value::String(text) => out.push(text.into()),
            Value::Array(items) => {
                return items.iter().fold(!items.is_empty(), |whole, item| collect(item, path, sense, out) && whole);
            }
            Value::Object(object) => {
                if sense == Sense::Deny {
                    for item in object.values() {
                        collect(item, path, sense, out);
                    }
                }
                return false;
            }
            single => out.push(plain(single).into()),
        }
        return true;
    };
    match value {
        Value::Object(object) if sense == Sense::Deny => {
            let wanted = folded(name);
            for (_, item) in object.iter().filter(|(name, _)| folded(name) == wanted) {
                collect(item, rest, sense, out);
            }
            false
        }
        Value::Object(object) => object.get(name).is_some_and(|item| collect(item, rest, sense, out)),
        Value::Array(items) => {
            if sense == Sense::Deny {
                // Parameters by position have no names: each may be the one that is meant.
                for item in items.iter().filter(|item| item.is_object() != rest.is_empty()) {
                    collect(item, rest, sense, out);
                }
            }
            let at = name.parse::<usize>().ok().and_then(|at| items.get(at));
            let numbered = at.map(|item| collect(item, rest, sense, out));
            match (numbered, sense) {
                (Some(whole), Sense::Allow) => whole,
                _ => items.iter().fold(!items.is_empty(), |whole, item| collect(item, path, sense, out) && whole),
            }
        }
        _ => false,
    }
}

fn read(message: &Value, mcp: bool, strict: bool) -> Result<Message<'_>, Unclear> {
    let remedy = "send a JSON-RPC 2.0 message";
    let Value::Object(message) = message else { return Err(Unclear::new("a message is no object", remedy)) };
    if let Some(name) = message.keys().find(|name| misspelt(name)) {
        let reason = format!("{:?} is read as a known member by some servers", quoted(name));
        return Err(Unclear::new(reason, "spell the members as JSON-RPC does, in lower case"));
    }
    if message.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(Unclear::new("the message does not say jsonrpc: \"2.0\"", remedy));
    }
    if !matches!(message.get("id"), None | Some(Value::Null | Value::String(_) | Value::Number(_))) {
        return Err(Unclear::new("id is neither text, a number nor null", remedy));
    }
    let answers = message.contains_key("result") || message.contains_key("error");
    match message.get("method") {
        None if answers => Ok(Message::Response),
        Some(Value::String(method)) if !answers => call(method, message, mcp, strict).map(Message::Call),
        _ => Err(Unclear::new("it is neither a call nor a response", remedy)),
    }
}

fn call<'v>(method: &'v str, message: &'v Map<String, Value>, mcp: bool, strict: bool) -> Result<Call<'v>, Unclear> {
    let params = match message.get("params") {
        None | Some(Value::Null) => None,
        Some(params @ (Value::Object(_) | Value::Array(_))) => Some(params),
        Some(_) => return Err(Unclear::new("params is neither an object nor a list", "send parameters by name")),
    };
    if !mcp || method != TOOL_CALL {
        return Ok(Call { method, params, tool: None });
    }
    let Some(tool) = params.and_then(|params| params.get("name")).and_then(Value::as_str) else {
        return Err(Unclear::new("tools/call names no tool", "send its name as params.name"));
    };
    let strictly_named = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    if strict && (tool.is_empty() || tool.len() > MAX_TOOL_NAME || !tool.bytes().all(strictly_named)) {
        let reason = format!("the tool's name {:?} is none by mcp.strict_tool_names", quoted(tool));
        let remedy = format!("name it by 1 to {MAX_TOOL_NAME} of A-Z a-z 0-9 _ . -");
        return Err(Unclear::new(reason, remedy));
    }
    Ok(Call { method, params, tool: Some(tool) })
}

/// Whether a member is not, but is read by a parser that ignores case as, one of the protocol's.
fn misspelt(name: &str) -> bool {
    !MEMBERS.contains(&name) && MEMBERS.contains(&folded(name).as_str())
}
