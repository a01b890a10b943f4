//! Stage two of the decision: may this request pass on a connection that stage one allowed?
//!
//! An endpoint with a `protocol` is inspected: its requests are read, and each must be allowed by the endpoint's
//! `access` or `rules` and by none of its `deny_rules`. Everything is compiled when the policy is loaded
//! ([`Inspection`]), so that a request costs about a microsecond whatever the number of rules. What is decided on is a
//! canonical form of the request; what is forwarded are the bytes that came.

mod verdict;

pub use verdict::{Judgement, MessageRules, Pass, Pending, Refusal, RefusalKind, RuleName, RulePart};

use super::decision::Decision;

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
        false
    }

    /// May this request pass?
    #[must_use]
    pub fn judge(&self, head: &Head<'_>) -> Judgement {
        Judgement::Refuse(Refusal {
            kind: RefusalKind::Denied,
            policy: self.policy.as_deref().unwrap_or_default().into(),
            rule: head.method.to_owned(),
            detail: "requests are not judged by this build yet".to_owned(),
            reason: "requests are not judged by this build yet".to_owned(),
            protocol: "rest",
            rule_missing: None,
            next_steps: Vec::new(),
        })
    }
}
