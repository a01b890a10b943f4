//! What is answered: a request passes, waits for its body, or is refused with all that its sender can do about it.

use std::fmt;
use std::sync::Arc;

use super::message::MessageRules;
use super::pending::Pending;

/// The answer to a request's head, or to its body.
#[derive(Debug)]
pub enum Judgement {
    /// It passes.
    Pass(Pass),
    /// The body decides: read at most `limit` bytes of it, then ask `then`. Nothing goes to the origin before.
    Body {
        /// Most bytes of body that are read.
        limit: usize,
        /// Who judges them.
        then: Pending,
    },
    /// It does not pass.
    Refuse(Refusal),
}

/// A request that passes.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Entry that allows it.
    pub policy: Arc<str>,
    /// What in that entry allows it; `None` where the connection is not inspected, or only `audit` let it through.
    pub rule: Option<RuleName>,
    /// Why it would have been refused, had the endpoint not said `enforcement: audit`.
    pub audited: Option<Box<Refusal>>,
    /// What messages the client may send, where a WebSocket was asked for.
    pub messages: Option<Arc<MessageRules>>,
}

/// The part of an entry that decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleName {
    /// Index of the endpoint in its entry.
    pub endpoint: usize,
    /// What of the endpoint.
    pub part: RulePart,
}

/// What of an endpoint decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulePart {
    /// `access`.
    Access,
    /// One of `rules`.
    Rule(usize),
    /// `mcp.allow_all_known_mcp_methods`.
    KnownMethods,
    /// The protocol itself: what needs no rule.
    Protocol,
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "endpoints[{}]", self.endpoint)?;
        match self.part {
            RulePart::Access => f.write_str(".access"),
            RulePart::Rule(index) => write!(f, ".rules[{index}]"),
            RulePart::KnownMethods => f.write_str(".mcp.allow_all_known_mcp_methods"),
            RulePart::Protocol => f.write_str(".protocol"),
        }
    }
}

/// What kind of refusal, and so which status it is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// The policy does not allow it: 403.
    Denied,
    /// It cannot be judged, or could be read in two ways: 400, under `enforcement: audit` as well.
    Malformed,
    /// Its body is larger than what is judged: 413.
    TooLarge,
}

impl RefusalKind {
    /// HTTP status (RFC 9110 §15.5).
    #[must_use]
    pub fn status(self) -> u16 {
        match self {
            Self::Denied => 403,
            Self::Malformed => 400,
            Self::TooLarge => 413,
        }
    }
}

/// Why a request does not pass.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// What kind.
    pub kind: RefusalKind,
    /// Entry that refused it, or came closest.
    pub policy: Arc<str>,
    /// What was asked, as in `POST /repos/x`.
    pub rule: String,
    /// What happened, as a sentence.
    pub detail: String,
    /// Why, in the words of what decided.
    pub reason: String,
    /// Id of the JSON-RPC call that was refused; null where there is none, or not one (JSON-RPC 2.0 §5).
    pub id: serde_json::Value,
    /// Protocol of the endpoint, as the policy spells it.
    pub protocol: &'static str,
    /// The rule that would allow it, and where it belongs: `{"place": …, "rule": {"allow": …}}`.
    pub rule_missing: Option<serde_json::Value>,
    /// What the sender can do, most useful first.
    pub next_steps: Vec<String>,
}
