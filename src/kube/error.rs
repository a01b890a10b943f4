//! What a call can come to instead of an answer.

use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{HeaderMap, RETRY_AFTER};
use serde::Deserialize;

use super::access::AccessError;

/// Characters of a server's own words that an error repeats: enough for the sentence of any refusal.
const MESSAGE_SHOWN: usize = 400;

/// A call that did not give what was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {failure}")]
pub struct ApiError {
    /// Method and URL.
    pub call: String,
    /// What happened.
    pub failure: Failure,
}

impl ApiError {
    /// Whether the same call may well succeed in a moment, with nothing changed on our side.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self.failure,
            Failure::Unreachable(_)
                | Failure::Broken(_)
                | Failure::TimedOut(_)
                | Failure::TooMany { .. }
                | Failure::Server { .. }
        )
    }

    /// Whether the object is not there. What that means is the caller's to say: a pod may just be on its way.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self.failure, Failure::NotFound(_))
    }

    /// How long the server asked to be left alone.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.failure {
            Failure::TooMany { retry_after, .. } | Failure::Server { retry_after, .. } => retry_after,
            _ => None,
        }
    }
}

/// Why.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// What we are to show, or whom to trust, can no longer be read.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// No connection.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
    /// No trust, in one direction or the other.
    #[error("TLS with the API server failed: {0}")]
    Tls(String),
    /// No answer in time.
    #[error("no whole answer within {:.1} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The connection ended before the answer did.
    #[error("the connection ended before the answer did: {0}")]
    Broken(String),
    /// The answer is none that an API server gives.
    #[error("the answer makes no sense: {0}; is this address an API server's?")]
    Malformed(String),
    /// The answer is longer than any object.
    #[error("the answer is longer than {0} bytes, which no object is that a role asks for")]
    TooLarge(usize),
    /// 401.
    #[error("unauthorized (401): {0}; the token or client certificate is unknown or has expired: renew it")]
    Unauthorized(String),
    /// 403.
    #[error("forbidden (403): {0}; grant it by a Role or ClusterRole")]
    Forbidden(String),
    /// 404.
    #[error("not found (404): {0}")]
    NotFound(String),
    /// 409: somebody else was quicker.
    #[error("conflict (409): {0}")]
    Conflict(String),
    /// 422: the object does not allow it; a patch's `test` that failed, or an admission rule.
    #[error("invalid (422): {0}")]
    Invalid(String),
    /// 429.
    #[error("too many requests (429): {message}")]
    TooMany {
        /// What it said.
        message: String,
        /// When to come back.
        retry_after: Option<Duration>,
    },
    /// 5xx.
    #[error("the API server failed ({status}): {message}")]
    Server {
        /// Which.
        status: u16,
        /// What it said.
        message: String,
        /// When to come back.
        retry_after: Option<Duration>,
    },
    /// Any other status that is no success.
    #[error("refused ({status}): {message}")]
    Refused {
        /// Which.
        status: u16,
        /// What it said.
        message: String,
    },
}

/// `meta/v1` Status, in which a server explains itself.
#[derive(Deserialize)]
struct Status {
    #[serde(default)]
    message: String,
}

impl Failure {
    /// What an answer says that is no success.
    pub(super) fn of(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let message = match serde_json::from_slice::<Status>(body) {
            Ok(Status { message }) if !message.is_empty() => message,
            // A load balancer's page, or nothing.
            _ => status.canonical_reason().unwrap_or("no reason given").to_owned(),
        };
        let message = printable(&message);
        // The other form, a date, is one that an API server does not use.
        let seconds = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        let retry_after = seconds.map(Duration::from_secs);
        match status.as_u16() {
            401 => Self::Unauthorized(message),
            403 => Self::Forbidden(message),
            404 => Self::NotFound(message),
            409 => Self::Conflict(message),
            422 => Self::Invalid(message),
            429 => Self::TooMany { message, retry_after },
            status @ 500.. => Self::Server { status, message, retry_after },
            status => Self::Refused { status, message },
        }
    }
}

/// One line that no terminal takes for a command.
fn printable(text: &str) -> String {
    text.chars().take(MESSAGE_SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}
