//! What computes stage one's answer: the Rego in `policies/`, an operator's in its place, or either one compiled to
//! WebAssembly. All are asked the same question and held to the same shape of answer.

mod rego;
#[cfg(feature = "wasm-policy")]
mod wasm;

use serde::{Deserialize, Serialize};

pub(super) use rego::RegoEngine;
#[cfg(feature = "wasm-policy")]
pub(super) use wasm::WasmEngine;

use super::decision::{Action, Question};

/// The Rego that decides where the operator gives none.
const SHIPPED_RULES: &str = include_str!("../../../policies/egress.rego");

/// Longest reason taken from an engine: it goes into a header and a log line.
const MAX_REASON: usize = 1024;

/// `input`, by its documented shape.
#[derive(Debug, Serialize)]
struct Input<'q> {
    network: Network<'q>,
    #[serde(skip_serializing_if = "Option::is_none")]
    process: Option<Process<'q>>,
}

#[derive(Debug, Serialize)]
struct Network<'q> {
    host: std::borrow::Cow<'q, str>,
    port: u16,
}

#[derive(Debug, Serialize)]
struct Process<'q> {
    path: &'q str,
    sha256: String,
    ancestors: Vec<&'q str>,
}

impl<'q> Input<'q> {
    fn of(question: Question<'q>) -> Self {
        let host = match question.host {
            super::host::Host::Name(name) => std::borrow::Cow::Borrowed(&**name),
            super::host::Host::Address(address) => std::borrow::Cow::Owned(address.to_string()),
        };
        Self {
            network: Network { host, port: question.port },
            process: question.program.map(|program| Process {
                path: &program.executable.path,
                sha256: hex(&program.executable.sha256),
                ancestors: program.ancestors.iter().map(|ancestor| &*ancestor.path).collect(),
            }),
        }
    }
}

fn hex(bytes: &[u8; 32]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(64);
    for byte in bytes {
        text.push(DIGITS[usize::from(byte >> 4)] as char);
        text.push(DIGITS[usize::from(byte & 15)] as char);
    }
    text
}

/// `result`, by its documented shape.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(super) struct Verdict {
    #[serde(deserialize_with = "action")]
    pub(super) action: Action,
    pub(super) reason: String,
    #[serde(default)]
    pub(super) policy: Option<String>,
    #[serde(default)]
    pub(super) endpoints: Vec<EndpointRef>,
}

/// An endpoint, by the entry that holds it and its place there.
#[derive(Debug, Deserialize, PartialEq, Eq)]
pub(super) struct EndpointRef {
    pub(super) policy: String,
    pub(super) index: usize,
}

fn action<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Action, D::Error> {
    match &*std::borrow::Cow::<str>::deserialize(deserializer)? {
        "allow" => Ok(Action::Allow),
        "deny" => Ok(Action::Deny),
        other => Err(serde::de::Error::unknown_variant(other, &["allow", "deny"])),
    }
}

/// Why there is no answer; whoever asked is refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum EngineError {
    /// Evaluation failed: a limit, a conflict between rules, a trap.
    #[error("the policy engine failed: {0}")]
    Evaluation(String),
    /// The answer is not of the documented shape.
    #[error("the policy engine answered with something else than {{action, reason, policy, endpoints}}: {0}")]
    Shape(String),
}

/// One generation's engine.
#[derive(Debug)]
pub(super) enum Engine {
    /// Rego, compiled for regorus' virtual machine.
    Rego(Box<RegoEngine>),
    /// A module that `opa build -t wasm` made.
    #[cfg(feature = "wasm-policy")]
    Wasm(Box<WasmEngine>),
}

impl Engine {
    /// Does now what the first question would have to wait for.
    pub(super) fn prepare(&self) -> Result<(), EngineError> {
        match self {
            Self::Rego(engine) => engine.prepare(),
            #[cfg(feature = "wasm-policy")]
            Self::Wasm(_) => Ok(()),
        }
    }

    pub(super) fn decide(&self, question: Question<'_>) -> Result<Verdict, EngineError> {
        let mut verdict = match self {
            Self::Rego(engine) => engine.decide(question)?,
            #[cfg(feature = "wasm-policy")]
            Self::Wasm(engine) => engine.decide(question)?,
        };
        if verdict.reason.len() > MAX_REASON {
            let end = (0..=MAX_REASON).rev().find(|at| verdict.reason.is_char_boundary(*at)).unwrap_or(0);
            verdict.reason.truncate(end);
        }
        Ok(verdict)
    }
}
