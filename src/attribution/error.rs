//! Why a connection has no owner that policy could judge. Every one of these refuses the connection.

use std::io;
use std::net::SocketAddr;

use super::process::Process;
use crate::sys::procfs::Gone as _;

/// Why [`Attributor`](super::Attributor) could not name one program.
#[derive(Debug, thiserror::Error)]
pub enum AttributionError {
    /// The kernel was asked and did not answer as it should.
    #[error("socket diagnosis failed: {0}; `doctor` shows whether this kernel has tcp_diag")]
    Diagnosis(#[source] io::Error),
    /// No socket has the connection's addresses.
    #[error(
        "no socket in the workload's network namespace connects {client} to {listener}: the client closed it already, or \
         it connects from outside the sandbox"
    )]
    NoSocket {
        /// Address of the client.
        client: SocketAddr,
        /// Address it connected to.
        listener: SocketAddr,
    },
    /// The socket is there, and no process of the sandbox has it.
    #[error(
        "no process of the sandbox holds the socket of {client}: its owner ended, passed it on in a message, or runs \
         outside the sandbox's processes"
    )]
    NoOwner {
        /// Address of the client.
        client: SocketAddr,
    },
    /// Two programs hold the socket.
    #[error(
        "the connection belongs to two programs, {first} (pid {first_pid}) and {second} (pid {second_pid}): a program \
         that opens connections must not leave them open to the ones it starts (close-on-exec)"
    )]
    Ambiguous {
        /// The program found first.
        first: String,
        /// Its process.
        first_pid: u32,
        /// The one that differs.
        second: String,
        /// Its process.
        second_pid: u32,
    },
    /// The owner went on, or the socket was closed, while it was looked at.
    #[error("the connection changed hands while its owner was being confirmed ({program}, pid {pid}): try again")]
    ChangedHands {
        /// The program that owned it.
        program: String,
        /// Its process.
        pid: u32,
    },
    /// Processes came and went faster than they could be read.
    #[error("the sandbox's processes came and went too fast to be read (pid {pid}): try again")]
    Unsettled {
        /// The last process that vanished.
        pid: u32,
    },
    /// An executable's bytes differ from those first seen at its path.
    #[error(
        "executable changed: {path} had SHA-256 {before} when it was first used and has {now}; restart the sandbox to \
         trust the new one"
    )]
    ExecutableChanged {
        /// Its path.
        path: String,
        /// Digest first seen, in hexadecimal.
        before: String,
        /// Digest found now.
        now: String,
    },
    /// An executable that is too large to be hashed.
    #[error("{path} is {size} bytes large; executables above {limit} are not hashed, and have no identity")]
    ExecutableTooLarge {
        /// Its path.
        path: String,
        /// Its size in bytes.
        size: u64,
        /// The bound.
        limit: u64,
    },
    /// More executables than are remembered.
    #[error(
        "{path} has no identity: {limit} other paths were executed by what asked for the network since the sandbox \
         started, and none of their digests is ever forgotten, or it could be exchanged unseen; restart the sandbox, and \
         look for what makes so many executables"
    )]
    TooManyExecutables {
        /// Its path.
        path: String,
        /// The bound.
        limit: usize,
    },
    /// A process could not be looked at.
    #[error(
        "cannot read {what} of process {pid}{label}: {source}; it may own the connection. Attribution needs to run as the \
         workload's user or with CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, and an ordinary user cannot look into a process \
         that hides (prctl PR_SET_DUMPABLE) or was not started by exec in the sandbox: end it"
    )]
    Unreadable {
        /// The process.
        pid: u32,
        /// What it calls itself, quoted and in parentheses; empty where that is not known.
        label: String,
        /// What of it.
        what: &'static str,
        /// What the kernel answered.
        #[source]
        source: io::Error,
    },
    /// The list of processes could not be read.
    #[error("cannot list the sandbox's processes: {0}; /proc must be mounted without hidepid for the supervisor")]
    Unlisted(#[source] io::Error),
}

impl AttributionError {
    /// The program that the refusal is about, where there is one, for events and denials.
    #[must_use]
    pub fn binary(&self) -> Option<&str> {
        match self {
            Self::Ambiguous { first: program, .. }
            | Self::ChangedHands { program, .. }
            | Self::ExecutableChanged { path: program, .. }
            | Self::ExecutableTooLarge { path: program, .. }
            | Self::TooManyExecutables { path: program, .. } => Some(program),
            _ => None,
        }
    }

    /// Whether a process may not be looked at: one of another user, or one that hides (`PR_SET_DUMPABLE`).
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Unreadable { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// `error` as reading `what` of `pid` gave it.
    pub(super) fn reading(pid: u32, what: &'static str, error: io::Error) -> Self {
        if error.is_gone() {
            Self::Unsettled { pid }
        } else {
            Self::Unreadable { pid, label: String::new(), what, source: error }
        }
    }

    /// The same with the name of the process.
    pub(super) fn of(mut self, process: &Process) -> Self {
        if let Self::Unreadable { label, .. } = &mut self {
            *label = process.label();
        }
        self
    }
}
