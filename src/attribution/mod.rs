//! Which program owns a connection (design §5): peer tuple → socket inode → owners among the sandbox's processes →
//! executable, its digest and its ancestors. Command lines never count.
//!
//! Two steps, so that dialling need not wait for the slower one: [`Attributor::first_owner`] finds *one* owner, likeliest
//! processes first; [`Attributor::confirm`] then looks at every process of the sandbox and refuses the connection unless
//! all that hold it run the same program. A process that has not run since it was last read is not read again, so that
//! what sleeps in a sandbox costs about a microsecond. Each step has a form that never blocks, with a bound on what it
//! looks at, for the thread that carries data.
//!
//! What identity does not prove:
//! - Code loaded into an allowed program (`LD_PRELOAD`, an interpreter's script, ptrace(2) among its own).
//! - Who started a process. The kernel tells who its parent *is*, and what that one runs *now*. What a process started
//!   before it executed an allowed program is a child of that program ever after, without its part. Only what has not
//!   executed anything itself since it was forked off gives that away (`PF_FORKNOEXEC`: it runs what its parent ran then),
//!   and ends the chain (`Attributor::chain`). Of all else procfs tells no time of execution, and the kernel's own
//!   counters (`self_exec_id`, `parent_exec_id`) are not shown. So ancestors are a convenience for programs that work
//!   through helpers; an entry with `children: false` does not look at them.
//! - A socket that no table holds. One parked in a Unix socket's message (`SCM_RIGHTS`) is held by nobody while it is
//!   looked for, and counting those (`scm_fds` in fdinfo) would mean to read every Unix socket of every process for every
//!   connection, since others can send to one that sleeps. And a thread that is blocked in a system call on the socket
//!   keeps it open after its descriptor was closed, and gets what that one call returns.
//! - Processes that hand a socket to and fro faster than they are looked at one after the other: each is read while
//!   another has it. Forking does not hide anything (see `ROUNDS`); messages between two processes may, for as long as
//!   they hit the instant.
//!
//! None of these needs the allowed program's part, only that whoever is up to it may execute it. A process that connects,
//! parks a copy of the socket and lets an allowed program inherit the other one (by execve(2), its output being a full
//! pipe so that it stands still) has the connection judged as that program's, and takes the copy out again when it is
//! open. To note at accept(2) who holds a connection, and to refuse it where that process runs something else when it is
//! judged, would not mend this, and cost every connection a second search: the allowed program can be executed with the
//! socket *before* that is connected, and the copy that connects be written to and parked within some microseconds, of which
//! a look takes more. No process changes its program meanwhile. (Written in Python, and with git: 18 of 20 connections
//! were taken for git's.) What would help is to see that a copy is parked: unix_diag tells which Unix sockets have something
//! in their queue (`UDIAG_SHOW_RQLEN`), and `scm_fds` in fdinfo, of these alone, whether descriptors are in it. That is one
//! more dump by netlink for each connection, and not done.
//!
//! So identity tells programs apart that do not work against it, and bounds what the others reach by what they could have
//! an allowed program do in any case: each right is best given to few programs, and for narrow destinations.

mod confirm;
mod diagnosis;
mod effort;
mod entry;
mod error;
mod integrity;
mod process;
mod sandbox;
mod search;
mod table;

pub use diagnosis::Transport;
pub use error::AttributionError;
pub use sandbox::{Processes, Supervisors};

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use nix::sys::stat::stat;

use self::diagnosis::{Diagnosis, Found};
use self::effort::Effort;
use self::integrity::Integrity;
use self::process::{Fingerprint, Image, Process};
use self::sandbox::Sandbox;
use self::search::RECENT;
use crate::event::Actor;
use crate::sys::netlink::Socket;

/// Ancestors that count, nearest first: deeper than any build nests, and a bound on the work.
const ANCESTORS: usize = 64;

/// Looks at one of them: its number twice, its state, and its executable.
const ANCESTOR: u32 = 5;

/// Attempts to read a chain of parents that end meanwhile.
const ATTEMPTS: usize = 4;

/// Longest path of an executable.
const PATH: usize = nix::libc::PATH_MAX as usize;

/// An executable as identity sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Executable {
    /// Path in the workload's view of the file system.
    pub path: Arc<str>,
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
}

/// The identity of a connection's owner; two that are equal are the same to policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// What the process runs.
    pub executable: Executable,
    /// What its parents run, nearest first, up to the sandbox's first process. A run of the same executable counts once,
    /// so that a process and what it forked off, or is about to replace by another program, are one program. What was
    /// forked off before its parent became another program is none of that one's.
    pub ancestors: Arc<[Executable]>,
}

/// What [`Attributor::new`] needs.
#[derive(Debug)]
pub struct AttributionConfig {
    /// A socket-diagnosis socket that was opened in the workload's network namespace.
    pub diagnosis: Socket,
    /// The processes that may own connections.
    pub processes: Processes,
}

/// Finds the programs behind connections. Shared by every thread of the proxy.
#[derive(Debug)]
pub struct Attributor {
    diagnosis: Diagnosis,
    sandbox: Sandbox,
    integrity: Integrity,
    recent: Mutex<VecDeque<Arc<Process>>>,
    /// Our own executable: the sandbox's init runs it, and is nobody's ancestor.
    own: Option<Fingerprint>,
}

/// One owner of a connection, to be judged at once and confirmed before anything is let through.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What the owner runs.
    pub program: Program,
    /// Its process, as the sandbox's /proc numbers it.
    pub pid: u32,
    /// User that opened the socket.
    pub uid: u32,
    client: SocketAddr,
    socket: Found,
    owner: Owner,
    image: (Box<[u8]>, Fingerprint),
}

impl Claim {
    /// The owner as events name it.
    #[must_use]
    pub fn actor(&self) -> Actor {
        Actor { binary: Some(self.program.executable.path.to_string()), pid: Some(self.pid), uid: Some(self.uid) }
    }
}

/// Where a socket was found.
#[derive(Clone, Debug)]
struct Owner {
    process: Arc<Process>,
    /// Number in the first thread's table; `None` where another thread has it in a table of its own.
    descriptor: Option<u32>,
}

impl Attributor {
    /// An attributor that knows nothing yet.
    #[must_use]
    pub fn new(config: AttributionConfig) -> Self {
        Self {
            diagnosis: Diagnosis::new(config.diagnosis),
            sandbox: Sandbox::new(config.processes),
            integrity: Integrity::default(),
            recent: Mutex::new(VecDeque::with_capacity(RECENT)),
            own: stat("/proc/self/exe").ok().map(|stat| Fingerprint::of(&stat)),
        }
    }

    /// Tells which of [`Processes::Others`] are the workload's supervisors, before the workload starts.
    pub fn leave_out(&self, supervisors: Supervisors) {
        self.sandbox.leave_out(supervisors);
    }

    /// Finds one owner of the connection from `client` to `listener`, hashing its executable and its ancestors' where
    /// they are new: that takes milliseconds a megabyte and belongs on a thread that may block.
    ///
    /// # Errors
    /// Why there is none. The connection is to be refused.
    pub fn first_owner(&self, client: SocketAddr, listener: SocketAddr) -> Result<Claim, AttributionError> {
        self.owner_of(client, listener, &mut Effort::full())?.ok_or(AttributionError::NoOwner { client })
    }

    /// As [`first_owner`](Self::first_owner) without hashing and in a fraction of a millisecond, whatever the workload
    /// does: `None` where it would take longer.
    #[must_use]
    pub fn try_first_owner(&self, client: SocketAddr, listener: SocketAddr) -> Option<Result<Claim, AttributionError>> {
        self.owner_of(client, listener, &mut Effort::inline()).transpose()
    }

    fn owner_of(
        &self,
        client: SocketAddr,
        listener: SocketAddr,
        effort: &mut Effort,
    ) -> Result<Option<Claim>, AttributionError> {
        let socket = self
            .diagnosis
            .find(Transport::Tcp, client, listener)
            .map_err(AttributionError::Diagnosis)?
            // One that is still connecting is not what we accepted, but means to take its place.
            .filter(|socket| socket.inode != 0 && !socket.is_connecting)
            .ok_or(AttributionError::NoSocket { client, listener })?;
        let Some(owner) = self.search(&socket, effort)? else { return Ok(None) };
        let process = &owner.process;
        let mut buffer = [0; PATH];
        let Some((executable, image)) = self.executable(process, &mut buffer, effort)? else { return Ok(None) };
        let image = (image.path.into(), image.fingerprint);
        let Some(ancestors) = self.ancestors(process, &executable, effort)? else { return Ok(None) };
        let program = Program { executable, ancestors };
        Ok(Some(Claim { program, pid: process.pid, uid: socket.uid, client, socket, owner, image }))
    }

    /// What `process` executes.
    fn executable<'b>(
        &self,
        process: &Process,
        buffer: &'b mut [u8],
        effort: &mut Effort,
    ) -> Result<Option<(Executable, Image<'b>)>, AttributionError> {
        let reading = |error| AttributionError::reading(process.pid, "the executable", error);
        if effort.hashes {
            let mut probe = [0; PATH];
            let image = process.image(&mut probe).map_err(reading)?;
            if self.integrity.recall(&image).is_none() {
                self.integrity.learn(process)?;
            }
        }
        let image = process.image(buffer).map_err(reading)?;
        match self.integrity.recall(&image) {
            Some(executable) => Ok(Some((executable, image))),
            None if !effort.hashes => Ok(None),
            // It was exchanged in this instant.
            None => Err(AttributionError::Unsettled { pid: process.pid }),
        }
    }

    /// What the parents of `process` execute, up to where the sandbox begins.
    fn ancestors(
        &self,
        process: &Arc<Process>,
        executable: &Executable,
        effort: &mut Effort,
    ) -> Result<Option<Arc<[Executable]>>, AttributionError> {
        let mut buffer = [0; PATH];
        let mut unsettled = AttributionError::Unsettled { pid: process.pid };
        for _ in 0..ATTEMPTS {
            match self.chain(process, executable, &mut buffer, effort) {
                Err(error @ AttributionError::Unsettled { .. }) => unsettled = error,
                chain => return Ok(chain?.map(Arc::from)),
            }
        }
        Err(unsettled)
    }

    fn chain(
        &self,
        process: &Arc<Process>,
        executable: &Executable,
        buffer: &mut [u8],
        effort: &mut Effort,
    ) -> Result<Option<Vec<Executable>>, AttributionError> {
        let mut chain: Vec<Executable> = Vec::new();
        let mut depth = 0;
        let mut current = process.clone();
        while depth < ANCESTORS && !current.is_at_top() {
            depth += 1;
            if !effort.spend(ANCESTOR) {
                return Ok(None);
            }
            let child = current.pid;
            let parent_of = |process: &Process| -> Result<(u32, bool), AttributionError> {
                process.parent().map_err(|error: io::Error| AttributionError::reading(child, "the parent", error))
            };
            let (parent, _) = parent_of(&current)?;
            if self.sandbox.is_outside(parent) {
                current.note_at_top();
                break;
            }
            let next = self
                .sandbox
                .process(parent)
                .map_err(|error| AttributionError::reading(parent, "the directory", error))?
                .ok_or(AttributionError::Unsettled { pid: parent })?;
            // A parent that ended before it was opened may have left its number to another.
            let (still, is_forked_only) = parent_of(&current)?;
            if still != parent {
                return Err(AttributionError::Unsettled { pid: parent });
            }
            if self.sandbox.is_first(parent)
                && let Ok(image) = next.image(buffer)
                && self.own.is_some_and(|own| own.is_same_file(&image.fingerprint))
            {
                break;
            }
            let above = match self.executable(&next, buffer, effort) {
                Ok(Some((above, _))) => above,
                Ok(None) => return Ok(None),
                // Ancestors only ever grant: one that is hidden from us, and those beyond it, grant nothing.
                Err(error) if error.is_forbidden() || next.is_kernel_thread() => break,
                Err(error) => return Err(error),
            };
            if chain.last().unwrap_or(executable) != &above {
                // It runs what its parent ran when it was forked, and that was something else: the program that the parent
                // runs now did not start it (or it was left to a parent that never did).
                if is_forked_only {
                    break;
                }
                chain.push(above);
            }
            current = next;
        }
        Ok(Some(chain))
    }
}

impl Claim {
    /// Whether `image` is what the claim was made for.
    fn runs(&self, image: &Image<'_>) -> bool {
        *self.image.0 == *image.path && self.image.1 == image.fingerprint
    }
}

#[cfg(test)]
mod tests;
