//! Stage one: may this program reach this destination?

use std::sync::Arc;

use super::NetworkPolicy;
use super::host::Host;
use crate::attribution::Program;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Destination, canonical.
    pub host: &'a Host,
    /// Destination port.
    pub port: u16,
    /// Who asks; `None` in relaxed mode, where binaries do not count.
    pub program: Option<&'a Program>,
}

/// Allowed or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The connection may be made.
    Allow,
    /// It may not.
    Deny,
}

/// The answer, shared by every connection that asks the same of one generation.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Allowed or not.
    pub action: Action,
    /// Why, as a sentence that names what is missing.
    pub reason: String,
    /// Entry that allowed it, or that came closest.
    pub policy: Option<String>,
    /// Endpoints that matched: the entry and the index of its endpoint.
    pub endpoints: Vec<(Arc<NetworkPolicy>, usize)>,
    /// What the reader of a denial can do about it, most useful first.
    pub next_steps: Vec<String>,
}

impl Decision {
    /// Whether the connection may be made.
    #[must_use]
    pub fn allows(&self) -> bool {
        self.action == Action::Allow
    }
}
