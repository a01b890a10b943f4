//! What this machine can do for a sandbox, and the proof that a sandbox on it holds.
//!
//! Two halves: [`probe`] asks the kernel for each thing that a topology needs, and [`escape`] runs as the workload of a
//! real sandbox and tries to get out of it. [`bait`] is what the second finds outside.

pub mod bait;
pub mod escape;
pub mod probe;

use serde::{Deserialize, Serialize};

/// One line of the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it stands.
    pub status: Status,
    /// What was seen.
    pub detail: String,
    /// What to do about it, where something can be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is there, or it holds.
    Ok,
    /// It is not there, and the sandbox does without, weaker or blinder; said, not hidden.
    Missing,
    /// It should hold and does not, or a sandbox cannot be made.
    Broken,
}

impl Check {
    /// A check that came out well.
    #[must_use]
    pub fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), status: Status::Ok, detail: detail.into(), remedy: None }
    }

    /// A check that did not.
    #[must_use]
    pub fn failed(
        name: impl Into<String>,
        status: Status,
        detail: impl Into<String>,
        remedy: impl Into<Option<String>>,
    ) -> Self {
        Self { name: name.into(), status, detail: detail.into(), remedy: remedy.into() }
    }
}
