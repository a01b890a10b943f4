//! Starting the workload confined, being its init, and ending when it ends (design §6).
//!
//! The supervisor calls [`launch::prepare`], which runs this executable again in its hidden `launch` role. That
//! process makes the namespaces and turns into the sandbox's init ([`init`]); the init forks the child
//! ([`child`]) that confines itself and becomes the workload. Supervisor and init talk over one socket
//! ([`control`]), and either one's end is the other's. Programs that people start later beside the workload ([`guest`],
//! [`launcher`]) are forked by the same init and confined by the same steps.

pub mod child;
pub mod command;
pub mod control;
mod descendants;
pub mod environment;
pub mod guest;
pub mod init;
pub mod launch;
pub mod launcher;
pub mod outside;
pub mod sealed;
pub mod standard;
pub mod stdio;
pub mod supervise;
pub mod terminal;
pub mod trust;
pub mod tty_modes;

use std::ffi::CString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::confine::identity::Identity;
use crate::confine::landlock::Grants;
use crate::confine::limits::Limits;
use crate::confine::seccomp::{Profile, Sockets};
use crate::netns::Isolation;

/// All that the launched side needs to know. Travels in a sealed memfd, so that no command line or environment shows
/// it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Namespaces to make; `None` where the pod already has them (the `process` role).
    pub isolation: Option<Isolation>,
    /// Program and arguments, never empty. A program without a slash is looked up in the `PATH` of `environment`.
    pub command: Vec<CString>,
    /// The workload's whole environment, from [`environment::Environment::build`].
    pub environment: Vec<CString>,
    /// Directory to start in; `None` keeps the supervisor's.
    pub workdir: Option<PathBuf>,
    /// Who the workload is.
    pub identity: Identity,
    /// What it may see of the file system.
    pub grants: Grants,
    /// Which system calls it loses.
    pub seccomp: Profile,
    /// Which sockets it may have.
    pub sockets: Sockets,
    /// Its resource limits.
    pub limits: Limits,
    /// Between TERM and KILL for what is left in the sandbox once the workload has ended.
    pub grace: Duration,
    /// Whether more programs will be started beside the workload ([`launcher`]): its init keeps what that takes.
    pub guests: bool,
    /// Where the workload's standard streams lead.
    pub standard: standard::Standard,
}

#[cfg(test)]
pub(crate) mod tests;
