//! The channel between the two supervisors of a sidecar pod (design §8).
//!
//! `network` owns a Unix socket in the shared directory and admits one peer on it: the `process` supervisor, told from
//! everything else in the pod by who it is ([`Expected`]). It is told what it needs to launch the workload, whole and
//! again whenever something of it changes; it tells that the workload has started and how it ended. Either side's end
//! is the other's: a sandbox whose proxy is gone has no business running, and a proxy without a sandbox has none to
//! serve. No credential of any kind has a place in these messages.

mod client;
mod door;
mod frame;
mod link;
mod peer;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use client::{ConnectError, Connected, Gate, connect};
pub use door::{Admitted, Agent, Door, DoorError, Unwelcome};
pub use link::{Incoming, Link, LinkError, Outgoing};
pub use peer::{Expected, Stranger};

use crate::policy::{Compatibility, Filesystem, ProcessIdentity};
use crate::workload::trust::Gathered;

/// Version of the messages, in the first of each side. The two ends may come from different images.
pub const VERSION: u32 = 1;

/// What `process` tells `network`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Report {
    /// Always first.
    Hello {
        /// [`VERSION`] of the sender.
        version: u32,
        /// Whom the workload's image trusts, for the bundle that the sandbox's CA is added to.
        trusted: Gathered,
    },
    /// The sandbox stands, and its first program waits for [`Instruction::Go`].
    Prepared {
        /// Pid of the sandbox's init in the shared process namespace.
        init: u32,
    },
    /// The workload runs.
    Started {
        /// Its pid in the shared process namespace.
        pid: u32,
    },
    /// The workload has ended; nothing follows.
    Exited {
        /// The exit code that stands for it.
        code: u8,
    },
}

/// What `network` tells `process`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Instruction {
    /// In answer to the hello: there will be no sandbox.
    Refused {
        /// Why, and what helps.
        reason: String,
    },
    /// In answer to the hello, and again whenever it has changed: the latest is all that counts.
    State(Box<State>),
    /// In answer to [`Report::Prepared`]: the workload may start, for its processes can be told from its supervisors'.
    Go,
    /// Ask the workload to end: the pod is being stopped.
    End,
    /// The workload's end has been noted, and both sides may go.
    Noted,
}

/// All that `process` needs to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// [`VERSION`] of the sender.
    pub version: u32,
    /// The parts of the policy that concern the workload itself.
    pub policy: WorkloadPolicy,
    /// The proxy's URL, as the workload reaches it.
    pub proxy: String,
    /// Variables of the workload's environment, such as those that name whom to trust.
    pub environment: BTreeMap<String, String>,
    /// Directory that those name, which the workload may read.
    pub trust: Option<PathBuf>,
}

/// The parts of a policy that `process` enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkloadPolicy {
    /// Section `filesystem_policy`.
    pub filesystem: Filesystem,
    /// Section `landlock`.
    pub landlock: Compatibility,
    /// Section `process`.
    pub process: ProcessIdentity,
}

#[cfg(test)]
mod tests;
