//! The endpoints that answer for one request, and what they say together.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::policy::advice;

use super::rules::Inspection;
use super::verdict::{Judgement, Pass, Refusal, RefusalKind, RuleName, RulePart};

/// Longest part of a request that a refusal quotes. Enough to recognise it by; the rest is the sender's to fill.
pub(super) const QUOTED: usize = 200;

/// What the endpoints say of a request.
#[derive(Debug)]
pub(super) enum Outcome<'i> {
    /// This part of this endpoint allows it.
    Allowed(&'i Arc<Inspection>, RulePart),
    /// This deny rule forbids it, whatever else allows it.
    Forbidden(&'i Arc<Inspection>, usize),
    /// Nothing allows it.
    Missing,
}

/// Asks every endpoint: one that forbids decides, else one that allows is enough.
pub(super) fn ask<'i>(
    endpoints: impl Iterator<Item = &'i Arc<Inspection>> + Clone,
    forbids: impl Fn(&Inspection) -> Option<usize>,
    allows: impl Fn(&Inspection) -> Option<RulePart>,
) -> Outcome<'i> {
    for endpoint in endpoints.clone() {
        if let Some(rule) = forbids(endpoint) {
            return Outcome::Forbidden(endpoint, rule);
        }
    }
    for endpoint in endpoints {
        if let Some(part) = allows(endpoint) {
            return Outcome::Allowed(endpoint, part);
        }
    }
    Outcome::Missing
}

/// Why a request cannot be judged, and what its sender can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Unclear {
    pub(super) kind: RefusalKind,
    pub(super) reason: String,
    pub(super) remedy: String,
}

impl Unclear {
    pub(super) fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { kind: RefusalKind::Malformed, reason: reason.into(), remedy: remedy.into() }
    }

    /// The refusal, by an endpoint, of what was asked.
    pub(super) fn refuse(self, by: &Inspection, asked: &str) -> Refusal {
        let detail = match self.kind {
            RefusalKind::TooLarge => format!("{asked} is too large to be judged"),
            _ => format!("{asked} cannot be judged"),
        };
        Refusal {
            kind: self.kind,
            policy: Arc::clone(&by.policy),
            rule: asked.to_owned(),
            id: Value::Null,
            detail,
            reason: self.reason,
            protocol: by.protocol.as_str(),
            rule_missing: None,
            next_steps: vec![self.remedy],
        }
    }
}

/// A request that passes by this part of this endpoint.
pub(super) fn pass(by: &Inspection, part: RulePart) -> Pass {
    Pass {
        policy: Arc::clone(&by.policy),
        rule: Some(RuleName { endpoint: by.endpoint, part }),
        audited: None,
        messages: None,
    }
}

/// The refusal of what a deny rule forbids.
pub(super) fn forbidden(by: &Inspection, rule: usize, asked: &str) -> Refusal {
    let place = format!("{}.deny_rules[{rule}]", by.place());
    let step = format!("no other rule overrides {place}: ask whoever maintains the policy to narrow it");
    refusal(by, asked, format!("{place} forbids {asked}"), None, vec![step])
}

/// The refusal of what nothing allows; `rule` would allow it.
pub(super) fn missing(by: &Inspection, asked: &str, rule: Option<Value>) -> Refusal {
    let place = by.place();
    let (reason, step) = match by.access {
        Some(access) => (
            format!("access: {} of {place} does not allow {asked}", access.as_str()),
            format!("in {place}, replace access by rules that list what may pass, and among them: -"),
        ),
        None => (format!("no rule of {place} allows {asked}"), format!("add under {place}.rules: -")),
    };
    let steps = rule.iter().map(|rule| format!("{step} {}", allow_rule(rule))).collect();
    refusal(by, asked, reason, rule, steps)
}

/// A refusal by what an endpoint is, rather than by its rules.
pub(super) fn refusal(
    by: &Inspection,
    asked: &str,
    reason: String,
    rule: Option<Value>,
    next_steps: Vec<String>,
) -> Refusal {
    Refusal {
        kind: RefusalKind::Denied,
        policy: Arc::clone(&by.policy),
        rule: asked.to_owned(),
        id: Value::Null,
        detail: format!("{asked} is not permitted by policy {}", by.policy),
        reason,
        protocol: by.protocol.as_str(),
        rule_missing: rule.map(|rule| {
            let allow = Value::Object(Map::from_iter([("allow".to_owned(), rule)]));
            let place = format!("{}.rules", by.place()).into();
            Value::Object(Map::from_iter([("place".to_owned(), place), ("rule".to_owned(), allow)]))
        }),
        next_steps,
    }
}

/// What becomes of a refusal: under `enforcement: audit` what breaks a rule passes, and is told; what cannot be judged
/// does not.
pub(super) fn settle(by: &Inspection, refusal: Refusal) -> Judgement {
    if by.audit && refusal.kind == RefusalKind::Denied {
        let policy = Arc::clone(&by.policy);
        return Judgement::Pass(Pass { policy, rule: None, audited: Some(Box::new(refusal)), messages: None });
    }
    Judgement::Refuse(refusal)
}

/// A part of a request as it is quoted: printable, on one line, and cut where it is long.
pub(super) fn quoted(text: &str) -> String {
    if text.len() <= QUOTED && text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len().min(QUOTED));
    for c in text.chars() {
        if out.len() >= QUOTED {
            out.push('…');
            break;
        }
        if crate::event::misleads(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

/// An item of `rules`, as YAML writes it in one line.
pub(super) fn allow_rule(rule: &Value) -> String {
    let mut out = "{allow: ".to_owned();
    write_flow(&mut out, rule);
    out.push('}');
    out
}

/// A value as YAML writes it in one line.
pub(super) fn flow(value: &Value) -> String {
    let mut out = String::new();
    write_flow(&mut out, value);
    out
}

fn write_flow(out: &mut String, value: &Value) {
    match value {
        Value::Object(entries) => {
            out.push('{');
            for (at, (key, value)) in entries.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                out.push_str(&advice::scalar(key));
                out.push_str(": ");
                write_flow(out, value);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { ", " });
                write_flow(out, item);
            }
            out.push(']');
        }
        Value::String(text) => out.push_str(&advice::scalar(text)),
        other => out.push_str(&other.to_string()),
    }
}
