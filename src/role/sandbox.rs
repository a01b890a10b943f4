//! The combined sandbox as a recipe: policy, identity, namespaces, proxy, workload, end.

use std::fmt::Display;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::attribution::Attributor;
use crate::cli;
use crate::confine::identity::{self, Identity};
use crate::confine::landlock::{self, Grants};
use crate::confine::limits::Limits;
use crate::contract::{PROXY_PORT, PROXY_URL, env, exit};
use crate::event::{Event, Events, EventsConfig, ProcessActivity, ProcessStep, SandboxIdentity, Severity, admin};
use crate::policy::{self, Policy, store::Store};
use crate::workload::command::Command;
use crate::workload::environment::{Environment, Inherit, UserVariable};
use crate::workload::{Orders, launch, supervise};

/// What to run and how, whoever asked.
pub struct Plan {
    /// Program and arguments.
    pub command: Command,
    /// What passes from this environment into the workload's.
    pub inherit: Inherit,
    /// Variables that the user set.
    pub variables: Vec<UserVariable>,
    /// Where the workload starts, and what `include_workdir` grants.
    pub workdir: Option<PathBuf>,
    /// A policy that came by other means than a file.
    pub built_in_policy: Option<Policy>,
    /// Everything else, as given.
    pub options: cli::Sandbox,
}

/// Why there was no workload, and the exit code that says so.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Something in the environment or the files was not as it must be: exit code 125.
    pub fn setup(why: impl Display) -> Self {
        Self { code: exit::SETUP, message: why.to_string() }
    }

    /// Something on the command line was wrong: exit code 2.
    pub fn usage(why: impl Display) -> Self {
        Self { code: exit::USAGE, message: why.to_string() }
    }
}

/// Ends a role: its exit code, or the failure told on stderr and its code.
pub fn report(outcome: Result<u8, Failure>) -> u8 {
    outcome.unwrap_or_else(|failure| {
        eprintln!("openshell-supervisor: {}", failure.message);
        failure.code
    })
}
