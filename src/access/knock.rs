//! Who is at the door.
//!
//! The workload may have the supervisor's user and run the same executable. What it cannot have is another place in the
//! tree of processes: everything that it starts has the supervisor among its ancestors, orphans too, for those fall to the
//! sandbox's init, and should that die to the supervisor, which is a subreaper (`PR_SET_CHILD_SUBREAPER`, prctl(2)). What a
//! container runtime puts into the container (`kubectl exec`), and what runs outside, has not.
//!
//! In a sidecar pod the `network` supervisor may come in as well, for the gateway that it speaks to. It has another user, and
//! is known by its process, which the control channel has bound.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use nix::sys::socket::{getsockopt, sockopt};
use nix::unistd::{Uid, geteuid, getpid};
use tokio::net::UnixStream;

use crate::sys::process::Held;

/// Longest line of ancestors that is followed. Any real tree is far below; a workload may grow one as deep as it has
/// processes, and each step is a file to read, in the thread that serves everybody.
const ANCESTORS_LIMIT: usize = 256;

/// How often the line is read anew, when it changed while it was read.
const ATTEMPTS: u32 = 16;

/// Somebody who may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Visitor {
    /// Its process, as the supervisor sees it; 0 for one that it cannot see.
    pub pid: u32,
    /// Its user, as the supervisor sees it.
    pub uid: u32,
}

/// Why somebody may not.
#[derive(Debug, thiserror::Error)]
pub enum Stranger {
    /// The kernel does not say who it is.
    #[error("SO_PEERCRED: {0}")]
    Unknown(#[source] io::Error),
    /// Another user.
    #[error("user {uid} is neither root nor the supervisor's user, {own}")]
    Foreign {
        /// Whose it is.
        uid: u32,
        /// Ours.
        own: u32,
    },
    /// Something of the workload's.
    #[error("process {pid} was started inside the sandbox, and nothing of the sandbox is let in")]
    Inside {
        /// Which.
        pid: u32,
    },
    /// What /proc shows are not the processes by the numbers that they have here.
    #[error(
        "/proc shows another process namespace's processes than the supervisor's own, so that who is the workload's cannot \
         be told; mount one that is the supervisor's (`unshare --mount-proc`), or start it where /proc is"
    )]
    Blind,
    /// It has ended meanwhile, or cannot be looked at.
    #[error("process {pid} cannot be looked at: {source}")]
    Gone {
        /// Which.
        pid: u32,
        /// What /proc answered.
        source: io::Error,
    },
}

impl Stranger {
    /// What it is, apart from who.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "unknown",
            Self::Foreign { .. } => "foreign",
            Self::Inside { .. } => "inside",
            Self::Blind => "blind",
            Self::Gone { .. } => "gone",
        }
    }
}

/// Who connected, if it may come in; `companion` is somebody who may whatever user it is.
///
/// # Errors
/// [`Stranger`].
pub fn who(stream: &UnixStream, companion: Option<&Held>) -> Result<Visitor, Stranger> {
    let credentials = getsockopt(stream, sockopt::PeerCredentials).map_err(|error| Stranger::Unknown(error.into()))?;
    let (uid, own, pid) = (credentials.uid(), geteuid(), credentials.pid());
    // It was alive when it connected, if it is now, and its number nobody else's.
    if let Some(companion) = companion.filter(|companion| companion.pid.cast_signed() == pid)
        && companion.is_alive().unwrap_or(false)
    {
        return Ok(Visitor { pid: companion.pid, uid });
    }
    if uid != own.as_raw() && !Uid::from_raw(uid).is_root() {
        return Err(Stranger::Foreign { uid, own: own.as_raw() });
    }
    if pid == 0 {
        // Of a process namespace beside or above ours. The workload's is ours, or one below it, whose processes are seen.
        return Ok(Visitor { pid: 0, uid });
    }
    if !proc_is_ours() {
        return Err(Stranger::Blind);
    }
    let number = pid.unsigned_abs();
    let gone = |source| Stranger::Gone { pid: number, source };
    // A number may be another's by the time that it is looked at; what is held may not.
    let held = Held::peer(stream.as_fd(), number).map_err(gone)?;
    let line = settled_line(pid).map_err(gone)?;
    if !held.is_alive().map_err(gone)? {
        return Err(gone(io::Error::other("it has ended")));
    }
    if line.contains(&getpid().as_raw()) {
        return Err(Stranger::Inside { pid: number });
    }
    Ok(Visitor { pid: number, uid })
}

/// Whether /proc numbers processes as this process's system calls do: it may be of an outer namespace (pid_namespaces(7)),
/// and then the line of ancestors would be somebody else's. Asked anew each time, for it may be mounted over.
fn proc_is_ours() -> bool {
    fs::read_link("/proc/self").is_ok_and(|own| own == Path::new(&getpid().to_string()))
}

/// The process and its ancestors, read until it is the same twice: while one of them dies, what it leaves behind changes
/// its parent, and its number may become another's.
fn settled_line(pid: i32) -> io::Result<Vec<i32>> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let line = match line(pid) {
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => return Err(error),
            line => line.ok(),
        };
        if line.is_some() && line == last {
            return line.ok_or_else(|| io::Error::other("no ancestors"));
        }
        last = line;
    }
    Err(io::Error::other("its ancestors keep changing"))
}

fn line(pid: i32) -> io::Result<Vec<i32>> {
    let mut line = vec![pid];
    let mut current = pid;
    while line.len() < ANCESTORS_LIMIT {
        let status = fs::read_to_string(format!("/proc/{current}/status"))?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).and_then(|pid| pid.trim().parse().ok());
        match parent.ok_or_else(|| io::Error::other("its status names no parent"))? {
            0 => return Ok(line),
            parent => line.push(parent),
        }
        current = *line.last().unwrap_or(&pid);
    }
    Err(io::Error::new(io::ErrorKind::QuotaExceeded, format!("it has more than {ANCESTORS_LIMIT} ancestors")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::process::{Command, Stdio};

    /// What the door thinks of a program that `script` connects to it, which knows the socket as `$1`.
    fn verdict(script: &str) -> Result<Visitor, Stranger> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("door");
        let listener = UnixListener::bind(&path).unwrap();
        let mut child = Command::new("/bin/sh")
            .args(["-c", script, "sh", path.to_str().unwrap()])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let verdict = runtime.block_on(async { who(&UnixStream::from_std(stream).unwrap(), None) });
        drop(child.stdin.take());
        let _ = child.wait();
        verdict
    }

    /// Set in a process that runs one test alone.
    const ALONE: &str = "OPENSHELL_TEST_ALONE";

    #[test]
    fn what_the_supervisor_started_is_refused_and_its_orphans_too() {
        // Who is a subreaper collects all children (`supervise::run`), and here those are other tests' too.
        if std::env::var_os(ALONE).is_none() {
            let mut own = Command::new(std::env::current_exe().unwrap());
            own.args(["--exact", "access::knock::tests::what_the_supervisor_started_is_refused_and_its_orphans_too"]);
            let output = own.env(ALONE, "1").output().unwrap();
            let told = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && told.contains("1 passed"), "{told}");
            return;
        }
        nix::sys::prctl::set_child_subreaper(true).unwrap();
        for script in ["exec nc -U \"$1\"", "nc -U \"$1\"; :", "(setsid nc -U \"$1\" <&0 &) ; sleep 0.2"] {
            let refused = verdict(script).unwrap_err();
            assert!(matches!(refused, Stranger::Inside { .. }), "{script}: {refused}");
        }
    }

    #[test]
    fn a_line_of_ancestors_begins_with_the_process_and_ends_at_the_top() {
        let own = getpid().as_raw();
        let line = settled_line(own).unwrap();
        assert_eq!(line[0], own);
        assert_eq!(line[1], nix::unistd::getppid().as_raw());
        assert!(settled_line(i32::MAX - 1).is_err());
    }
}
