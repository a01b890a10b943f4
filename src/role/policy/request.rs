//! `policy explain` about a request: what stage two makes of it.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::cli::Request;
use crate::policy::decision::Decision;
use crate::policy::request::{Head, Judgement, Pass, Refusal, WEBSOCKET_BINARY, WEBSOCKET_TEXT};

/// What became of it.
#[derive(Debug)]
pub(super) struct Answer {
    /// The request, in one line.
    pub(super) asked: String,
    /// Whether its path was made up, since none was given.
    pub(super) assumed: bool,
    pub(super) verdict: Verdict,
}

#[derive(Debug)]
pub(super) enum Verdict {
    /// It passes, by this part of this entry.
    Allowed(String),
    /// It passes, and is told.
    Audited(Refusal),
    Denied(Refusal),
    /// Its body decides, or what a message says, and neither was given.
    Body,
}

impl Request {
    /// Whether the command line describes any.
    pub(super) fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// Asks about it.
    pub(super) fn ask(&self, decision: &Decision) -> Answer {
        let target = self.target(decision);
        let call = self.call();
        if let Some(text) = self.message() {
            let verdict = self.ask_of_message(decision, &target, text);
            let word = if text { WEBSOCKET_TEXT } else { WEBSOCKET_BINARY };
            return Answer { asked: format!("{word} on {target}"), assumed: self.path.is_none(), verdict };
        }
        let method = match (&self.service, &call, &self.method) {
            (Some(_), _, _) | (_, Some(_), _) => "POST",
            (_, _, Some(method)) => method,
            _ => "GET",
        };
        let content_type = match (&self.service, &call) {
            (Some(_), _) => Some("application/grpc"),
            (_, Some(_)) => Some("application/json"),
            _ => None,
        };
        // A POST of which nothing else is known is asked about as JSON, so that its body is what is missing.
        let content_type = content_type.or((method == "POST").then_some("application/json"));
        let head = Head { method, target: &target, content_type, ..Head::default() };
        let judgement = match (decision.judge(&head), &call) {
            (Judgement::Body { then, .. }, Some(call)) => then.judge(call.to_string().as_bytes()),
            (judgement, _) => judgement,
        };
        let asked = match &call {
            Some(call) => format!("{method} {target} {call}"),
            None => format!("{method} {target}"),
        };
        let verdict = of(judgement);
        let assumed = self.path.is_none() && self.service.is_none();
        Answer { asked, assumed, verdict }
    }

    /// Whether messages of a WebSocket are meant, and if so text ones.
    fn message(&self) -> Option<bool> {
        let method = self.method.as_ref()?;
        let is = |word: &str| method.eq_ignore_ascii_case(word);
        (is(WEBSOCKET_TEXT) || is(WEBSOCKET_BINARY)).then(|| is(WEBSOCKET_TEXT))
    }

    /// Opens the WebSocket, and asks about a message on it.
    fn ask_of_message(&self, decision: &Decision, target: &str, text: bool) -> Verdict {
        let messages = match decision.judge(&Head { method: "GET", target, websocket: true, ..Head::default() }) {
            Judgement::Pass(Pass { audited: None, messages: Some(messages), .. }) => messages,
            // Where it does not open, or its messages are not read, that is the answer.
            other => return of(other),
        };
        let judged = match (text, &self.graphql) {
            (true, None) if messages.read_graphql() => return Verdict::Body,
            (true, Some(document)) => {
                let message = json!({ "id": "1", "type": "subscribe", "payload": { "query": document } });
                messages.judge_text(&message.to_string())
            }
            (true, None) => messages.judge_text(""),
            (false, _) => messages.judge_binary(),
        };
        match judged {
            Ok(None) => Verdict::Allowed(format!(
                "the WebSocket opens, and {} passes",
                if text { WEBSOCKET_TEXT } else { WEBSOCKET_BINARY }
            )),
            Ok(Some(refusal)) => Verdict::Audited(*refusal),
            Err(refusal) => Verdict::Denied(*refusal),
        }
    }

    fn target(&self, decision: &Decision) -> String {
        let mut target = match (&self.service, &self.path) {
            (Some(service), _) => format!("/{service}/{}", self.method.as_deref().unwrap_or_default()),
            (None, Some(path)) => path.clone(),
            (None, None) => self.only_path(decision).unwrap_or_else(|| "/".to_owned()),
        };
        for pair in &self.query {
            target.push(if target.contains('?') { '&' } else { '?' });
            match pair.split_once('=') {
                Some((key, value)) => {
                    escape(&mut target, key);
                    target.push('=');
                    escape(&mut target, value);
                }
                None => escape(&mut target, pair),
            }
        }
        target
    }

    /// Where calls and messages go, unless the command line says so: to the one path that the endpoints answer for.
    fn only_path(&self, decision: &Decision) -> Option<String> {
        if self.call().is_none() && self.message().is_none() {
            return None;
        }
        let endpoints = decision.endpoints.iter().filter_map(|(entry, index)| entry.endpoints.get(*index));
        let mut paths = endpoints.filter_map(|endpoint| endpoint.inspection.as_ref()?.only_path());
        let first = paths.next()?;
        paths.all(|other| other == first).then(|| first.to_owned())
    }

    /// The body of a call, or of an operation.
    fn call(&self) -> Option<Value> {
        if let Some(document) = &self.graphql {
            return Some(json!({ "query": document }));
        }
        let method = match (&self.rpc, &self.tool) {
            (None, None) => return None,
            (Some(method), _) => method,
            (None, Some(_)) => "tools/call",
        };
        let mut call = json!({ "jsonrpc": "2.0", "id": 1, "method": method });
        if let Some(tool) = &self.tool {
            call["params"] = json!({ "name": tool });
        }
        Some(call)
    }
}

/// What a judgement comes to.
fn of(judgement: Judgement) -> Verdict {
    match judgement {
        Judgement::Pass(pass) => match (pass.audited, pass.rule) {
            (Some(refusal), _) => Verdict::Audited(*refusal),
            (None, Some(rule)) => Verdict::Allowed(format!("network_policies.{}.{rule}", pass.policy)),
            (None, None) => Verdict::Allowed("no endpoint reads requests".to_owned()),
        },
        Judgement::Body { .. } => Verdict::Body,
        Judgement::Refuse(refusal) => Verdict::Denied(refusal),
    }
}

/// Escapes what does not stand for itself in a query (RFC 3986 §2.3).
fn escape(out: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
}

impl Answer {
    /// Whether the request would pass.
    pub(super) fn passes(&self) -> bool {
        matches!(self.verdict, Verdict::Allowed(_) | Verdict::Audited(_))
    }

    /// Whether nobody can say before more is given.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.verdict, Verdict::Body)
    }

    /// Lines for a reader.
    pub(super) fn in_words(&self) -> Vec<String> {
        let mut lines = vec![format!("request: {}", self.asked)];
        let refusal = match &self.verdict {
            Verdict::Allowed(by) => {
                lines.push(format!("request allowed: {by}"));
                return lines;
            }
            Verdict::Body => {
                lines.push("request undecided: its body decides; give --rpc, --tool or --graphql".to_owned());
                return lines;
            }
            Verdict::Audited(refusal) => {
                lines.push(format!("request allowed by enforcement: audit, else denied: {}", refusal.reason));
                refusal
            }
            Verdict::Denied(refusal) => {
                lines.push(format!("request denied ({}): {}", refusal.kind.status(), refusal.reason));
                refusal
            }
        };
        lines.extend(refusal.next_steps.iter().map(|step| format!("next step: {step}")));
        if self.assumed {
            lines.push("no path was given, and this one was assumed: ask with --path about another".to_owned());
        }
        lines
    }

    /// The same for a program.
    pub(super) fn in_json(&self) -> Value {
        let refused = |action: &str, refusal: &Refusal| {
            json!({
                "request": self.asked,
                "action": action,
                "status": refusal.kind.status(),
                "policy": *refusal.policy,
                "rule": refusal.rule,
                "reason": refusal.reason,
                "rule_missing": refusal.rule_missing,
                "next_steps": refusal.next_steps,
            })
        };
        match &self.verdict {
            Verdict::Allowed(by) => json!({ "request": self.asked, "action": "allow", "by": by }),
            Verdict::Body => json!({ "request": self.asked, "action": "undecided", "reason": "its body decides" }),
            Verdict::Audited(refusal) => refused("audit", refusal),
            Verdict::Denied(refusal) => refused("deny", refusal),
        }
    }
}
