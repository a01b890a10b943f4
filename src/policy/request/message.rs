//! Messages that a client sends on a WebSocket: judged by the rules `WEBSOCKET_TEXT` and `WEBSOCKET_BINARY` for the path
//! that the socket was opened on, or, where the endpoint's rules speak of GraphQL operations, one by one.

use std::sync::Arc;

use serde_json::{Value, json};

use super::graphql::{self, Wanted};
use super::head::{allowed, shown};
use super::json::{self, Folding};
use super::near;
use super::rules::{BINARY, Inspection, Sense, TEXT};
use super::selection::{Outcome, Unclear, ask, forbidden, missing, quoted};
use super::target::Target;
use super::verdict::{Refusal, RefusalKind};

/// Types of message that open an operation: of graphql-transport-ws, and of its predecessor.
const OPENING: &[&str] = &["subscribe", "start"];

/// Types of message that ask the origin for no data: of both protocols.
const CONTROL: &[&str] = &["connection_init", "connection_terminate", "ping", "pong", "complete", "stop"];

/// What messages a client may send on a WebSocket.
#[derive(Debug)]
pub struct MessageRules {
    /// The endpoints that let the socket open, and the first of them.
    endpoints: Vec<Arc<Inspection>>,
    lead: Arc<Inspection>,
    /// How refusals name the socket: the request that opened it.
    opened_by: String,
    graphql: bool,
    text: Result<(), Box<Refusal>>,
    binary: Result<(), Box<Refusal>>,
    /// A deny rule speaks of text messages, whatever is in them.
    denied: bool,
}

/// Passes; or passes although this refusal holds, under `enforcement: audit`; or is refused.
type Judged = Result<Option<Box<Refusal>>, Box<Refusal>>;

impl MessageRules {
    /// For a socket opened on `target`.
    pub(super) fn of(
        lead: &Arc<Inspection>,
        endpoints: Vec<Arc<Inspection>>,
        target: &Target<'_>,
        opened_by: String,
    ) -> Self {
        let graphql = endpoints.iter().any(|endpoint| endpoint.speaks_graphql_messages());
        let judge = |method: &str| {
            let outcome = ask(
                endpoints.iter(),
                |endpoint| endpoint.deny.requests.find(Sense::Deny, method, target),
                |endpoint| allowed(endpoint, method, target),
            );
            let asked = format!("{method} on {}", shown(&target.path));
            match outcome {
                Outcome::Allowed(..) => Ok(()),
                Outcome::Forbidden(by, rule) => Err(Box::new(forbidden(by, rule, &asked))),
                Outcome::Missing => {
                    let inspections = endpoints.iter().map(AsRef::as_ref);
                    if let Some(near) = near::request(inspections, method, target) {
                        return Err(Box::new(near.refuse(&asked)));
                    }
                    let rule = json!({ "method": method, "path": &*target.path });
                    Err(Box::new(missing(lead, &asked, Some(rule))))
                }
            }
        };
        let (text, binary) = (judge(TEXT), judge(BINARY));
        let denied = endpoints.iter().any(|endpoint| endpoint.deny.requests.find(Sense::Deny, TEXT, target).is_some());
        Self { endpoints, lead: Arc::clone(lead), opened_by, graphql, text, binary, denied }
    }

    /// Whether every message passes, so that none needs to be read.
    #[must_use]
    pub fn pass_everything(&self) -> bool {
        !self.graphql && self.text.is_ok() && self.binary.is_ok()
    }

    /// Whether text messages are read as GraphQL operations.
    #[must_use]
    pub fn read_graphql(&self) -> bool {
        self.graphql
    }

    /// May this text message pass? `Ok(Some(…))` is one that only `enforcement: audit` lets through.
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn judge_text(&self, message: &str) -> Judged {
        if self.graphql && !self.denied {
            return self.settle(self.judge_graphql(message));
        }
        self.settle(self.text.clone())
    }

    /// May this binary message pass? As [`Self::judge_text`].
    ///
    /// # Errors
    ///
    /// Why it may not.
    pub fn judge_binary(&self) -> Judged {
        if !self.graphql {
            return self.settle(self.binary.clone());
        }
        let reason = "a binary message, and GraphQL over WebSocket is text".to_owned();
        self.settle(self.unclear(reason, "send text messages"))
    }

    fn settle(&self, judged: Result<(), Box<Refusal>>) -> Judged {
        match judged {
            Ok(()) => Ok(None),
            Err(refusal) if self.lead.audit && refusal.kind == RefusalKind::Denied => Ok(Some(refusal)),
            Err(refusal) => Err(refusal),
        }
    }

    fn unclear<T>(&self, reason: impl Into<String>, remedy: &str) -> Result<T, Box<Refusal>> {
        self.refuse(Unclear::new(reason, remedy))
    }

    fn refuse<T>(&self, unclear: Unclear) -> Result<T, Box<Refusal>> {
        Err(Box::new(unclear.refuse(&self.lead, &format!("a message on {}", self.opened_by))))
    }

    fn judge_graphql(&self, message: &str) -> Result<(), Box<Refusal>> {
        let remedy = "speak graphql-transport-ws";
        let message = match json::parse(message.as_bytes(), Folding::Payload) {
            Ok(Value::Object(message)) => message,
            Ok(_) => return self.unclear("the message is no JSON object", remedy),
            Err(error) => return self.unclear(format!("the message is not read: {error}"), remedy),
        };
        let kind = message.get("type").and_then(Value::as_str).unwrap_or_default();
        if CONTROL.contains(&kind) {
            return Ok(());
        }
        if !OPENING.contains(&kind) {
            let reason = format!("the message's type {:?} is not known", quoted(kind));
            return self.unclear(reason, remedy);
        }
        if message.get("id").and_then(Value::as_str).is_none_or(str::is_empty) {
            return self.unclear(format!("{kind:?} without an id"), "give the operation an id");
        }
        let Some(Value::Object(payload)) = message.get("payload") else {
            return self.unclear(format!("{kind:?} without an object as payload"), "send the operation as payload");
        };
        let called = match Wanted::of_object(payload).and_then(|wanted| wanted.resolve(&self.endpoints)) {
            Ok(called) => called,
            Err(unclear) => return self.refuse(unclear),
        };
        match graphql::judge(&self.endpoints, &called) {
            Outcome::Allowed(..) => Ok(()),
            Outcome::Forbidden(by, rule) => Err(Box::new(forbidden(by, rule, &called.to_string()))),
            Outcome::Missing => Err(Box::new(called.missing(&self.lead, &self.endpoints))),
        }
    }
}
