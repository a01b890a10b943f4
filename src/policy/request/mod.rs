//! Stage two of the decision: may this request pass on a connection that stage one allowed?
//!
//! An endpoint with a `protocol` is inspected: its requests are read, and each must be allowed by the endpoint's
//! `access` or `rules` and by none of its `deny_rules`. Everything is compiled when the policy is loaded
//! ([`Inspection`]), so that a request costs about a microsecond whatever the number of rules. What is decided on is a
//! canonical form of the request; what is forwarded are the bytes that came.

mod glob;
mod graphql;
mod graphql_http;
mod head;
mod index;
mod json;
mod literal;
mod message;
mod near;
mod pending;
mod persisted;
mod read;
mod read_rule;
mod rpc;
mod rules;
mod selection;
mod target;
mod verdict;

pub use head::Head;
pub use literal::{Literal, literal};
pub use message::MessageRules;
pub use pending::Pending;
pub use rules::{BINARY as WEBSOCKET_BINARY, Inspection, Protocol, TEXT as WEBSOCKET_TEXT};
pub(crate) use target::canonical_path;
pub use verdict::{Judgement, Pass, Refusal, RefusalKind, RuleName, RulePart};

/// Whether a rule can name this method.
pub(crate) fn is_writable_method(method: &str) -> bool {
    rules::Method::is_writable(method)
}

pub(super) use read::{FIELDS, Owner, inspection};

#[cfg(test)]
mod tests;
