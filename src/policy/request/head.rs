//! Judging a request by its head: which endpoints answer for its path, and what they say of it.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::event::redact::redacted;
use crate::policy::decision::Decision;

use super::graphql_http;
use super::message::MessageRules;
use super::near;
use super::pending::Pending;
use super::rules::{Access, BINARY, Inspection, Method, Protocol, Sense, TEXT};
use super::selection::{Outcome, Unclear, ask, forbidden, missing, pass, quoted, refusal, settle};
use super::target::{Target, TargetError};
use super::verdict::{Judgement, Pass, Refusal, RulePart};

/// What a request's head says, as far as the decision reads it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Head<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// Path and query, as sent.
    pub target: &'a str,
    /// `Content-Type`.
    pub content_type: Option<&'a str>,
    /// `Content-Encoding`.
    pub content_encoding: Option<&'a str>,
    /// `Accept`.
    pub accept: Option<&'a str>,
    /// It asks for a WebSocket, by Upgrade (RFC 6455 §4.1) or extended CONNECT (RFC 8441 §4).
    pub websocket: bool,
    /// A body follows.
    pub body_expected: bool,
}

impl Decision {
    /// Whether requests on the connection must be judged: some endpoint that matched has a protocol.
    #[must_use]
    pub fn is_inspected(&self) -> bool {
        self.inspections().next().is_some()
    }

    /// Protocol of the endpoint that requests are judged by first, as the policy spells it.
    #[must_use]
    pub fn protocol(&self) -> Option<&'static str> {
        self.inspections().next().map(|endpoint| endpoint.protocol.as_str())
    }

    /// May this request pass? Where nothing is inspected, every request may.
    #[must_use]
    pub fn judge(&self, head: &Head<'_>) -> Judgement {
        let Some(first) = self.inspections().next() else {
            let policy = self.policy.as_deref().unwrap_or_default().into();
            return Judgement::Pass(Pass { policy, rule: None, audited: None, messages: None });
        };
        match Target::parse(head.target) {
            Ok(target) => self.judge_as(head, &target, first),
            Err(error) if error.is_ambiguous() => self.judge_ambiguous(head, &error, first),
            Err(error) => unreadable_target(head, &error, error.remedy().to_owned(), first),
        }
    }

    /// May this request pass, however its path is read? The readings of a path are few and must all pass.
    fn judge_ambiguous(&self, head: &Head<'_>, error: &TargetError, first: &Arc<Inspection>) -> Judgement {
        let open = self.inspections().find(|endpoint| endpoint.allow_ambiguous_paths);
        let open = match (open, self.inspections().find(|endpoint| endpoint.protocol.has_ambiguous_paths())) {
            // Of its messages none could be judged in all readings.
            (Some(open), _) if !head.websocket => open,
            (None, Some(could)) if !head.websocket => {
                let remedy = format!("{}, or set allow_ambiguous_paths: true on {}", error.remedy(), could.place());
                return unreadable_target(head, error, remedy, first);
            }
            _ => return unreadable_target(head, error, error.remedy().to_owned(), first),
        };
        let readings = match Target::readings(head.target) {
            Ok(readings) => readings,
            Err(error) => return unreadable_target(head, &error, error.remedy().to_owned(), open),
        };
        let mut decided: Option<Judgement> = None;
        for target in &readings {
            match (self.judge_as(head, target, first), &decided) {
                (Judgement::Pass(pass), Some(Judgement::Pass(known)))
                    if pass.audited.is_none() || known.audited.is_some() => {}
                (pass @ Judgement::Pass(_), _) => decided = Some(pass),
                (other, _) => return other,
            }
        }
        decided.unwrap_or_else(|| unreadable_target(head, error, error.remedy().to_owned(), first))
    }

    fn judge_as(&self, head: &Head<'_>, target: &Target<'_>, first: &Arc<Inspection>) -> Judgement {
        let covering = || self.inspections().filter(|endpoint| endpoint.path.matches(&target.path));
        // What no endpoint covers is no endpoint's to audit, unless all of them do.
        let uncovered = || {
            let strictest = self.inspections().find(|endpoint| !endpoint.audit).unwrap_or(first);
            settle(strictest, uncovered(strictest, &asked(head, target)))
        };
        let Some(best) = covering().map(|endpoint| endpoint.path.specificity()).max() else { return uncovered() };
        let selected = covering().filter(move |endpoint| endpoint.path.specificity() == best);
        match selected.clone().next() {
            Some(lead) => Request { head, target, lead }.judge(selected),
            None => uncovered(),
        }
    }

    fn inspections(&self) -> impl Iterator<Item = &Arc<Inspection>> + Clone {
        self.endpoints
            .iter()
            .filter_map(|(entry, index)| entry.endpoints.get(*index))
            .filter_map(|endpoint| endpoint.inspection.as_ref())
    }
}

/// The refusal of a target that cannot be judged.
fn unreadable_target(head: &Head<'_>, error: &TargetError, remedy: String, by: &Inspection) -> Judgement {
    let (path, _) = head.target.split_once('?').unwrap_or((head.target, ""));
    let asked = format!("{} {}", quoted(head.method), shown(path));
    Judgement::Refuse(Unclear::new(error.to_string(), remedy).refuse(by, &asked))
}

/// Method and path, as a refusal quotes them. The query is left out: it may hold secrets.
fn asked(head: &Head<'_>, target: &Target<'_>) -> String {
    format!("{} {}", quoted(head.method), shown(&target.path))
}

/// A path as sentences show it: without credentials, which a cut would hide from whoever looks for them later.
pub(super) fn shown(path: &str) -> String {
    quoted(&redacted(path))
}

fn uncovered(first: &Inspection, asked: &str) -> Refusal {
    let reason = format!("no endpoint of the destination covers the path; {} covers {}", first.place(), first.path);
    let step = format!(
        "add an endpoint for the same host and port to network_policies.{}.endpoints, with a path that covers it",
        first.policy
    );
    refusal(first, asked, reason, None, vec![step])
}

/// One request, and the first of the endpoints that answer for it.
struct Request<'r> {
    head: &'r Head<'r>,
    target: &'r Target<'r>,
    lead: &'r Arc<Inspection>,
}

impl Request<'_> {
    fn judge<'i>(&self, selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone) -> Judgement {
        let Self { head, target, lead } = self;
        // Loading a policy sees to this; rules of an operator's own could still bring such endpoints together.
        if selected.clone().any(|other| other.protocol != lead.protocol || other.audit != lead.audit) {
            let reason = format!("{} and another endpoint for the path disagree on how to read it", lead.place());
            let step = "give the endpoints one protocol and one enforcement, or paths of their own".to_owned();
            return Judgement::Refuse(refusal(lead, &self.asked(), reason, None, vec![step]));
        }
        if target.encoded_slash && !selected.clone().all(|endpoint| endpoint.allow_encoded_slash) {
            let reason = "the path holds an escaped slash (%2F), which some servers read as '/'";
            let remedy = format!("write '/', or set allow_encoded_slash: true on {}", lead.place());
            return self.unclear(Unclear::new(reason, remedy));
        }
        if target.ambiguous
            && let Some(strict) = selected.clone().find(|endpoint| !endpoint.allow_ambiguous_paths)
        {
            let reason =
                format!("the path can be read in more than one way, and as {} is refused", shown(&target.path));
            let remedy = format!("write it in one way, or set allow_ambiguous_paths: true on {}", strict.place());
            return self.unclear(Unclear::new(reason, remedy));
        }
        // Whoever may make every request of HTTP may also say whatever they like on a WebSocket.
        let anything = lead.protocol == Protocol::Rest && selected.clone().any(|one| one.access == Some(Access::Full));
        if head.websocket && anything {
            return self.by_rules("GET", selected);
        }
        if head.websocket && lead.protocol != Protocol::Websocket {
            let reason = format!("'protocol: {}' of {} has no WebSockets", lead.protocol.as_str(), lead.place());
            let step = format!("set protocol: websocket on {}, or on an endpoint for this path", lead.place());
            return self.deny(reason, step);
        }
        match lead.protocol {
            Protocol::Rest => self.by_rules(head.method, selected),
            Protocol::Websocket if head.websocket => {
                // Extended CONNECT stands for the GET of RFC 6455 (RFC 8441 §5).
                let judgement = self.by_rules("GET", selected.clone());
                let messages = || Arc::new(MessageRules::of(lead, selected.cloned().collect(), target, self.asked()));
                match judgement {
                    Judgement::Pass(pass) => Judgement::Pass(Pass { messages: Some(messages()), ..pass }),
                    other => other,
                }
            }
            // Rules use these two words for messages; as methods of requests they mean nothing.
            Protocol::Websocket if [TEXT, BINARY].iter().any(|word| head.method.eq_ignore_ascii_case(word)) => {
                let reason = format!("{} names a WebSocket's messages and is no method", head.method);
                self.deny(reason, "open a WebSocket, or use a method of HTTP".to_owned())
            }
            Protocol::Websocket => self.by_rules(head.method, selected),
            Protocol::Grpc => self.grpc(selected),
            Protocol::JsonRpc => self.json_rpc(selected),
            Protocol::Mcp => self.mcp(selected),
            Protocol::Graphql => self.graphql(selected),
        }
    }

    fn asked(&self) -> String {
        asked(self.head, self.target)
    }

    fn unclear(&self, unclear: Unclear) -> Judgement {
        Judgement::Refuse(unclear.refuse(self.lead, &self.asked()))
    }

    /// Denies what no rule could allow.
    fn deny(&self, reason: String, step: String) -> Judgement {
        settle(self.lead, refusal(self.lead, &self.asked(), reason, None, vec![step]))
    }

    fn settle(&self, outcome: Outcome<'_>, rule: impl FnOnce() -> Option<Value>) -> Judgement {
        match outcome {
            Outcome::Allowed(by, part) => Judgement::Pass(pass(by, part)),
            Outcome::Forbidden(by, at) => settle(by, forbidden(by, at, &self.asked())),
            Outcome::Missing => settle(self.lead, missing(self.lead, &self.asked(), rule())),
        }
    }

    /// By method, path and query.
    fn by_rules<'i>(&self, method: &str, selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone) -> Judgement {
        let target = self.target;
        let outcome = ask(
            selected.clone(),
            |endpoint| endpoint.deny.requests.find(Sense::Deny, method, target),
            |endpoint| allowed(endpoint, method, target),
        );
        if let Outcome::Missing = outcome
            && let Some(near) = near::request(selected.map(AsRef::as_ref), method, target)
        {
            return settle(self.lead, near.refuse(&self.asked()));
        }
        // A method that no rule could name has none.
        let rule = || {
            Method::is_writable(method)
                .then(|| json!({ "method": method.to_ascii_uppercase(), "path": &*self.target.path }))
        };
        self.settle(outcome, rule)
    }

    fn grpc<'i>(&self, selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone) -> Judgement {
        let Self { head, target, lead } = self;
        let grpc = head
            .content_type
            .is_some_and(|value| value.get(..GRPC.len()).is_some_and(|start| start.eq_ignore_ascii_case(GRPC)));
        if head.method != "POST" || !grpc {
            let reason = format!("'protocol: grpc' of {} lets gRPC calls pass alone", lead.place());
            let step = format!("send POST with content-type {GRPC}, or set protocol: rest for what is no gRPC");
            return self.deny(reason, step);
        }
        let outcome = ask(
            selected,
            |endpoint| endpoint.deny.find_call(Sense::Deny, target),
            |endpoint| match endpoint.access {
                Some(_) => Some(RulePart::Access),
                None => endpoint.allow.find_call(Sense::Allow, target).map(RulePart::Rule),
            },
        );
        let rule = || {
            let (service, method) = target.path.strip_prefix('/')?.split_once('/')?;
            (!method.contains('/')).then(|| json!({ "service": service, "method": method }))
        };
        self.settle(outcome, rule)
    }

    fn json_rpc<'i>(&self, selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone) -> Judgement {
        if self.head.method == "POST" {
            return self.await_json(selected);
        }
        let reason = "JSON-RPC calls are made by POST".to_owned();
        self.deny(reason, "send the call by POST, or set protocol: rest for what is no JSON-RPC".to_owned())
    }

    /// Streamable HTTP: POST carries messages, GET opens the stream of the server's, DELETE ends the session.
    fn mcp<'i>(&self, selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone) -> Judgement {
        let Self { head, lead, .. } = self;
        if matches!(head.method, "GET" | "DELETE") && head.body_expected {
            let reason = format!("{} carries a body, which would not be judged", head.method);
            return self.unclear(Unclear::new(reason, "send messages by POST"));
        }
        match head.method {
            "POST" => self.await_json(selected),
            "GET" if accepts(head.accept, "text/event-stream") => Judgement::Pass(pass(lead, RulePart::Protocol)),
            "DELETE" => {
                let about = |rules: &super::rules::RpcRules| rules.about("DELETE").next().map(|rule| rule.written);
                let outcome = ask(
                    selected,
                    |endpoint| about(&endpoint.deny.rpc),
                    |endpoint| match endpoint.access {
                        Some(Access::Full) => Some(RulePart::Access),
                        _ => about(&endpoint.allow.rpc).map(RulePart::Rule),
                    },
                );
                self.settle(outcome, || Some(json!({ "method": "DELETE" })))
            }
            _ => {
                let reason = "MCP uses POST, DELETE, and GET that accepts text/event-stream".to_owned();
                self.deny(reason, "send one of these, or set protocol: rest for what is no MCP".to_owned())
            }
        }
    }

    fn await_json<'i>(&self, selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone) -> Judgement {
        if let Some(unclear) = unreadable(self.head) {
            return self.unclear(unclear);
        }
        match self.head.content_type.map(media_type) {
            None => {}
            Some(kind) if is_json(&kind) => {}
            Some(kind) => {
                let reason = format!("content-type {:?} is no JSON", quoted(&kind));
                return self.unclear(Unclear::new(reason, "send content-type: application/json"));
            }
        }
        self.await_body(selected, false)
    }

    fn graphql<'i>(&self, selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone) -> Judgement {
        let Self { head, target, .. } = self;
        match head.method {
            "GET" | "HEAD" if head.body_expected => {
                let reason = format!("{} carries a body, which some servers read instead of the query", head.method);
                self.unclear(Unclear::new(reason, "send the operation by POST"))
            }
            "GET" | "HEAD" => {
                let pending = self.pending(selected, false);
                match graphql_http::judge_query(&pending, target) {
                    Ok((by, part)) => Judgement::Pass(pass(&by, part)),
                    Err(refusal) => settle(self.lead, *refusal),
                }
            }
            "POST" => {
                if let Some(unclear) = unreadable(head) {
                    return self.unclear(unclear);
                }
                if let Some(name) = graphql_http::in_query(target) {
                    let reason =
                        format!("POST with {name:?} in its query, which some servers read instead of the body");
                    return self.unclear(Unclear::new(reason, "send the operation in the body alone"));
                }
                match head.content_type.map(media_type).as_deref() {
                    Some("application/json") => self.await_body(selected, false),
                    Some("application/graphql") => self.await_body(selected, true),
                    other => {
                        let reason = format!("content-type {:?} is not read", quoted(other.unwrap_or("")));
                        let remedy = "send content-type: application/json, or application/graphql";
                        self.unclear(Unclear::new(reason, remedy))
                    }
                }
            }
            _ => {
                let reason = "GraphQL operations are sent by GET or POST".to_owned();
                self.deny(reason, "send one of these, or set protocol: rest for what is no GraphQL".to_owned())
            }
        }
    }

    fn await_body<'i>(
        &self,
        selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone,
        bare_document: bool,
    ) -> Judgement {
        let then = self.pending(selected, bare_document);
        Judgement::Body { limit: then.limit(), then }
    }

    fn pending<'i>(&self, selected: impl Iterator<Item = &'i Arc<Inspection>> + Clone, bare_document: bool) -> Pending {
        let endpoints = selected.cloned().collect();
        Pending { endpoints, lead: Arc::clone(self.lead), asked: self.asked(), bare_document }
    }
}

const GRPC: &str = "application/grpc";

/// What of an endpoint lets a method pass on a path.
pub(super) fn allowed(endpoint: &Inspection, method: &str, target: &Target<'_>) -> Option<RulePart> {
    match endpoint.access {
        Some(access) => access.allows_method(endpoint.protocol, method).then_some(RulePart::Access),
        None => endpoint.allow.requests.find(Sense::Allow, method, target).map(RulePart::Rule),
    }
}

/// Why a body of this head could not be read, if so.
fn unreadable(head: &Head<'_>) -> Option<Unclear> {
    let encoding = head.content_encoding.map(str::trim).filter(|coding| !coding.eq_ignore_ascii_case("identity"));
    if let Some(coding) = encoding {
        let reason = format!("content-encoding {:?} hides what is asked", quoted(coding));
        return Some(Unclear::new(reason, "send the body without a content-encoding"));
    }
    let mut charsets = head.content_type.into_iter().flat_map(charsets);
    charsets.find(|name| !name.eq_ignore_ascii_case("utf-8")).map(|name| {
        let reason = format!("charset {:?} is not read", quoted(name));
        Unclear::new(reason, "send UTF-8")
    })
}

/// A media type without its parameters, in lower case (RFC 9110 §8.3.1).
fn media_type(value: &str) -> String {
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The values of parameters `charset`: readers differ in which of several counts, and in what a `;` inside quotes is (RFC 9110
/// §5.6.6).
fn charsets(value: &str) -> impl Iterator<Item = &str> {
    value.split(';').skip(1).filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        name.trim().trim_matches('"').eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"'))
    })
}

/// JSON, by its own name, by those that JSON-RPC uses, or by a suffix (RFC 6839 §3.1).
fn is_json(kind: &str) -> bool {
    matches!(kind, "application/json" | "application/json-rpc" | "application/jsonrequest") || kind.ends_with("+json")
}

/// Whether `Accept` names a media type (RFC 9110 §12.5.1); a wildcard does not ask for a stream.
fn accepts(accept: Option<&str>, kind: &str) -> bool {
    accept.is_some_and(|accept| accept.split(',').any(|item| media_type(item) == kind))
}
