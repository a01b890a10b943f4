//! Who is at the other end of the socket.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{UnixCredentials, getsockopt, sockopt};
use tokio::net::UnixStream;

use crate::sys::process::Held;

/// Who may come in: the `process` supervisor, and nothing that it started.
///
/// The workload has the supervisor's user and group, and may run the same executable. What it cannot have is the place
/// in the tree of processes: a container's entrypoint is started by the container runtime, outside of the pod's process
/// namespace, and so has no parent in it (its parent is 0, proc_pid_status(5)). Whatever a workload starts has a parent,
/// and when that dies, a subreaper or process 1 takes its place (PR_SET_CHILD_SUBREAPER, prctl(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// User of the sandbox.
    pub uid: u32,
    /// Group of the sandbox.
    pub gid: u32,
}

/// Why a peer is not let in.
#[derive(Debug, thiserror::Error)]
pub enum Stranger {
    /// The kernel does not say who it is.
    #[error("SO_PEERCRED of a control connection: {0}")]
    Unknown(#[source] io::Error),
    /// Someone else.
    #[error(
        "a control connection comes from user {uid}, group {gid}, and the sandbox is {expected}; start the agent \
         container as that user and group"
    )]
    Foreign {
        /// Whose it is.
        uid: u32,
        /// Whose it is.
        gid: u32,
        /// Whose it should be.
        expected: Expected,
    },
    /// A process of another process namespace, where nothing could be told apart.
    #[error(
        "a control connection comes from a process that cannot be seen from here; the pod must say \
         `shareProcessNamespace: true`"
    )]
    Invisible,
    /// It has ended meanwhile, or cannot be looked at.
    #[error("the process {pid} of a control connection cannot be looked at: {source}")]
    Gone {
        /// Which.
        pid: u32,
        /// What /proc answered.
        source: io::Error,
    },
    /// A part of a workload.
    #[error(
        "a control connection comes from process {pid}, which process {parent} started; only a container's entrypoint is \
         let in, so `process` must be what the agent container runs, without a wrapper"
    )]
    Started {
        /// Which.
        pid: u32,
        /// By whom.
        parent: u32,
    },
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl Expected {
    /// The supervisor's pid, if this connection is its.
    pub(super) fn check(self, stream: &UnixStream) -> Result<u32, Stranger> {
        let credentials = credentials(stream).map_err(Stranger::Unknown)?;
        let (uid, gid) = (credentials.uid(), credentials.gid());
        if (uid, gid) != (self.uid, self.gid) {
            return Err(Stranger::Foreign { uid, gid, expected: self });
        }
        let pid = u32::try_from(credentials.pid()).ok().filter(|&pid| pid != 0).ok_or(Stranger::Invisible)?;
        match parent(stream, pid).map_err(|source| Stranger::Gone { pid, source })? {
            0 => Ok(pid),
            parent => Err(Stranger::Started { pid, parent }),
        }
    }
}

/// Who connected, or who listens, as the kernel noted it then (unix(7)).
pub(super) fn credentials(stream: &UnixStream) -> io::Result<UnixCredentials> {
    Ok(getsockopt(stream, sockopt::PeerCredentials)?)
}

/// The parent of the process that connected, 0 where it has none in this process namespace.
///
/// A process that is just ending has parent 0 as well (`proc_pid_status`), and its number may soon be another's. So it
/// is held by a pidfd, and what was read counts only if it was alive afterwards.
fn parent(stream: &UnixStream, pid: u32) -> io::Result<u32> {
    let held = Held::peer(stream.as_fd(), pid)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    if !held.is_alive()? {
        return Err(io::Error::other("it has ended"));
    }
    parent_in(&status).ok_or_else(|| io::Error::other("its status names no parent"))
}

fn parent_in(status: &str) -> Option<u32> {
    status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
}
