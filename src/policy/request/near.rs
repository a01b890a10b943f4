//! Allow rules that came near: they speak of what was asked, and want something else of its query, its parameters or its
//! name. A suggestion without these conditions would have whoever follows it undo them.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::event::redact::{PLACEHOLDER, is_credential, names_credential};

use super::glob::Glob;
use super::graphql::Called;
use super::rpc::{Call, values_at};
use super::rules::{Inspection, Matcher, Method, Sense};
use super::selection::{QUOTED, allow_rule, flow, quoted, refusal};
use super::target::Target;
use super::verdict::Refusal;

/// Most values that a suggested condition lists.
const MAX_VALUES: usize = 16;

/// A rule that came near.
pub(super) struct Near<'i> {
    by: &'i Inspection,
    rule: usize,
    /// The field of the rule that was not met, and what it says.
    field: &'static str,
    wants: Value,
    /// A rule that would allow what was asked and nothing beside it, where one can be written.
    instead: Option<Value>,
}

impl Near<'_> {
    /// The refusal of what this rule nearly allows.
    pub(super) fn refuse(self, asked: &str) -> Refusal {
        let Self { by, rule, field, wants, instead } = self;
        let place = by.place();
        let reason = format!("{place}.rules[{rule}] allows {asked} only with {field}: {}", quoted(&flow(&wants)));
        let step = match &instead {
            Some(instead) => format!("add under {place}.rules: - {}", allow_rule(instead)),
            None => {
                format!("ask as {place}.rules[{rule}] wants it; no rule can be suggested for the {field} that was sent")
            }
        };
        refusal(by, asked, reason, instead, vec![step])
    }
}

/// The rule that allows a request but for its query.
pub(super) fn request<'i>(
    mut endpoints: impl Iterator<Item = &'i Inspection>,
    method: &str,
    target: &Target<'_>,
) -> Option<Near<'i>> {
    let (by, near) = endpoints.find_map(|by| Some((by, by.allow.requests.near(method, target)?)))?;
    let sent = |key: &str| target.pairs().filter(|(name, _)| name == key).map(|(_, value)| value).collect::<Vec<_>>();
    let query = (!target.has_semicolons())
        .then(|| conditions(near.query.iter().map(|(key, _)| (key.clone(), Some(sent(key))))))
        .flatten()
        .filter(|_| Method::is_writable(method));
    let instead =
        query.map(|query| json!({ "method": method.to_ascii_uppercase(), "path": &*target.path, "query": query }));
    let wants = near.query.iter().map(|(key, matcher)| (key.clone(), written(key, matcher))).collect();
    Some(Near { by, rule: near.written, field: "query", wants: Value::Object(wants), instead })
}

/// The rule that allows a call but for its parameters.
pub(super) fn call<'i>(mut endpoints: impl Iterator<Item = &'i Inspection>, call: &Call<'_>) -> Option<Near<'i>> {
    let (by, near) = endpoints.find_map(|by| {
        let mut rules = by.allow.rpc.about(call.method);
        Some((by, rules.find(|rule| !rule.params.is_empty() && call.is_for(rule))?))
    })?;
    let name = |path: &[String]| path.join(".");
    let sent = near.params.iter().map(|(path, _)| (name(path), values_at(call.params, path, Sense::Allow)));
    let instead = conditions(sent).and_then(|params| {
        let (key, value) = call.tool.map_or(("method", call.method), |tool| ("tool", tool));
        let value = exactly(&[value.into()])?;
        Some(json!({ key: value, "params": params }))
    });
    let wants = near.params.iter().map(|(path, matcher)| (name(path), written(&name(path), matcher))).collect();
    Some(Near { by, rule: near.written, field: "params", wants: Value::Object(wants), instead })
}

/// The rule that allows an operation but for its name.
pub(super) fn operation<'i>(mut endpoints: impl Iterator<Item = &'i Inspection>, called: &Called) -> Option<Near<'i>> {
    let (by, near, wants) = endpoints.find_map(|by| {
        by.allow.graphql.iter().find_map(|rule| {
            let name =
                rule.name.as_ref().filter(|name| !called.name.as_ref().is_some_and(|sent| name.matches(sent)))?;
            let unnamed = super::rules::GraphqlRule { name: None, ..rule.clone() };
            let covers = |field: &Option<String>| {
                unnamed.covers(called.operation, called.name.as_deref(), field.as_deref(), Sense::Allow)
            };
            called.fields.iter().all(covers).then(|| (by, rule.written, Value::from(name.as_str())))
        })
    })?;
    let instead = called.name.as_ref().and_then(|name| exactly(&[name.into()])).map(|name| {
        let mut rule = called.rule();
        rule["operation_name"] = name;
        rule
    });
    Some(Near { by, rule: near, field: "operation_name", wants, instead })
}

/// Conditions that what was sent under each name meets and nothing else does. There are none where nothing came under one of
/// the names, for a rule that leaves a condition out allows more, and where a value is better not written down.
fn conditions<'v>(sent: impl Iterator<Item = (String, Option<Vec<Cow<'v, str>>>)>) -> Option<Map<String, Value>> {
    let mut conditions = Map::new();
    for (name, values) in sent {
        let values = values?;
        let value = exactly(&values).filter(|_| !names_credential(last(&name)))?;
        conditions.insert(name, value);
    }
    (!conditions.is_empty()).then_some(conditions)
}

/// A matcher of these values alone; `None` where a pattern cannot say them, or should not.
fn exactly(values: &[Cow<'_, str>]) -> Option<Value> {
    let distinct: BTreeSet<&str> = values.iter().map(AsRef::as_ref).collect();
    let writable = |value: &&str| {
        value.len() <= QUOTED && !is_credential(value) && Glob::free(value).is_ok_and(|glob| glob.is_literal())
    };
    if distinct.len() > MAX_VALUES || !distinct.iter().all(writable) {
        return None;
    }
    let mut all = distinct.into_iter();
    match (all.next(), all.next()) {
        (Some(one), None) => Some(one.into()),
        (Some(one), Some(two)) => {
            let several: Vec<&str> = [one, two].into_iter().chain(all).collect();
            Some(json!({ "any": several }))
        }
        _ => None,
    }
}

/// The last of a dotted name.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or_default()
}

/// A matcher as a policy writes it; what it says of a credential is the policy's alone.
fn written(name: &str, matcher: &Matcher) -> Value {
    let hidden = names_credential(last(name));
    let shown = |glob: &Glob| match glob.as_str() {
        text if hidden || is_credential(text) => PLACEHOLDER.to_owned(),
        text => text.to_owned(),
    };
    match matcher.0.as_slice() {
        [one] => shown(one).into(),
        several => json!({ "any": several.iter().map(shown).collect::<Vec<_>>() }),
    }
}
