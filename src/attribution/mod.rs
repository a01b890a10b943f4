//! Which program owns a connection (design §5): peer tuple → socket inode → owners among the sandbox's processes →
//! executable, its digest and its ancestors. Command lines never count.

//!
//! Two steps, so that dialling need not wait for the slower one: [`Attributor::first_owner`] finds *one* owner, likeliest
//! processes first; [`Attributor::confirm`] then looks at every process of the sandbox and refuses the connection unless
//! all that hold it run the same program. A process that has not run since it was last read is not read again, so that
//! what sleeps in a sandbox costs about a microsecond.
//!
//! What identity does not prove: code loaded into an allowed program, and a descriptor on its way in a Unix socket's
//! message, which no process holds while it is looked for.

mod diagnosis;
mod error;
mod integrity;
mod process;
mod sandbox;

pub use diagnosis::Transport;
pub use error::AttributionError;
pub use sandbox::Processes;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::stat::stat;

use self::diagnosis::{Diagnosis, Found};
use self::integrity::Integrity;
use self::process::{Fingerprint, Image, Process, Recall};
use self::sandbox::Sandbox;
use crate::event::Actor;
use crate::sys::netlink::Socket;
use crate::sys::procfs::Gone as _;

/// Ancestors that count, nearest first: deeper than any build nests, and a bound on the work.
const ANCESTORS: usize = 64;

/// Owners that are asked first next time: one for each program that usually talks at the same time.
const RECENT: usize = 8;

/// Newest descriptors to try of the process that owned the last connection, which may well take turns with a few: below
/// this, trying is quicker than listing.
const REACH: u32 = 8;

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
    /// so that a process and what it forked off, or is about to replace by another program, are one program.
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
    listener: SocketAddr,
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

/// Whether an executable that was never seen may be hashed now, which takes milliseconds a megabyte.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hashing {
    Now,
    Never,
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

    /// Finds one owner of the connection from `client` to `listener`, hashing its executable and its ancestors' where
    /// they are new: that takes milliseconds a megabyte and belongs on a thread that may block.
    ///
    /// # Errors
    /// Why there is none. The connection is to be refused.
    pub fn first_owner(&self, client: SocketAddr, listener: SocketAddr) -> Result<Claim, AttributionError> {
        self.owner_of(client, listener, Hashing::Now)?.ok_or(AttributionError::NoOwner { client })
    }

    /// As [`first_owner`](Self::first_owner) without hashing, in microseconds: `None` where hashing is needed.
    #[must_use]
    pub fn try_first_owner(&self, client: SocketAddr, listener: SocketAddr) -> Option<Result<Claim, AttributionError>> {
        self.owner_of(client, listener, Hashing::Never).transpose()
    }

    fn owner_of(
        &self,
        client: SocketAddr,
        listener: SocketAddr,
        hashing: Hashing,
    ) -> Result<Option<Claim>, AttributionError> {
        let socket = self
            .diagnosis
            .find(Transport::Tcp, client, listener, None)
            .map_err(AttributionError::Diagnosis)?
            .filter(|socket| socket.inode != 0)
            .ok_or(AttributionError::NoSocket { client, listener })?;
        let owner = self.search(&socket)?.ok_or(AttributionError::NoOwner { client })?;
        let process = &owner.process;
        let mut buffer = [0; PATH];
        let Some((executable, image)) = self.executable(process, &mut buffer, hashing)? else { return Ok(None) };
        let image = (image.path.into(), image.fingerprint);
        let Some(ancestors) = self.ancestors(process, &executable, hashing)? else { return Ok(None) };
        let program = Program { executable, ancestors };
        Ok(Some(Claim { program, pid: process.pid, uid: socket.uid, client, listener, socket, owner, image }))
    }

    /// Checks that every process of the sandbox that holds the connection runs the program of `claim`, and that the
    /// connection is still the one that was claimed. Takes microseconds where the sandbox's processes sleep, and some
    /// three microseconds a descriptor of those that run something else.
    ///
    /// # Errors
    /// Who else has it, or what could not be read. The connection is to be refused.
    pub fn confirm(&self, claim: &Claim) -> Result<(), AttributionError> {
        for pid in self.sandbox.list().map_err(AttributionError::Unlisted)? {
            self.confirm_process(claim, pid)?;
        }
        let changed_hands =
            || AttributionError::ChangedHands { program: claim.program.executable.path.to_string(), pid: claim.pid };
        let process = &claim.owner.process;
        let reading = |what| move |error| AttributionError::reading(claim.pid, what, error);
        let at_its_place = match claim.owner.descriptor {
            Some(descriptor) => process.holds_at(descriptor, claim.socket.inode).map_err(reading("a descriptor"))?,
            None => false,
        };
        if !at_its_place && !process.examine(claim.socket.inode).map_err(reading("the descriptors"))? {
            return Err(changed_hands());
        }
        let mut buffer = [0; PATH];
        if !claim.runs(&process.image(&mut buffer).map_err(reading("the executable"))?) {
            return Err(changed_hands());
        }
        let now = self
            .diagnosis
            .find(Transport::Tcp, claim.client, claim.listener, Some(claim.socket.cookie))
            .map_err(AttributionError::Diagnosis)?;
        if now.is_none_or(|now| now.inode != claim.socket.inode) {
            return Err(changed_hands());
        }
        Ok(())
    }

    /// The same for one process. One that ends meanwhile holds nothing.
    fn confirm_process(&self, claim: &Claim, pid: u32) -> Result<(), AttributionError> {
        let inode = claim.socket.inode;
        let reading = |what| move |error| AttributionError::reading(pid, what, error);
        let mut process = self.sandbox.remembered(pid);
        let mut recall = process.as_ref().map(|process| process.recall(inode));
        if recall.as_ref().is_none_or(Result::is_err) {
            // Never seen, or another process has the number by now.
            process = self.sandbox.open(pid).map_err(reading("the directory"))?;
            recall = process.as_ref().map(|process| process.recall(inode));
        }
        let (Some(process), Some(recall)) = (process, recall) else { return Ok(()) };
        let recall = match recall {
            Err(error) if error.is_gone() => return Ok(()),
            recall => recall.map_err(reading("the scheduling statistics"))?,
        };
        if recall == Recall::Lacks || (process.pid == claim.pid && Arc::ptr_eq(&process, &claim.owner.process)) {
            return Ok(());
        }
        if self.agrees(claim, &process) && recall != Recall::Sleeps {
            // It may have the connection or not; if it sleeps on, it is read next time, and not after that.
            return process
                .note_visit()
                .or_else(|error| if error.is_gone() { Ok(()) } else { Err(error) })
                .map_err(reading("the scheduling statistics"));
        }
        let holds = match process.examine(inode) {
            Err(error) if error.is_gone() || process.is_kernel_thread() => return Ok(()),
            holds => holds.map_err(reading("the descriptors"))?,
        };
        if holds && !self.agrees(claim, &process) {
            let second = process.image(&mut [0; PATH]).map_or_else(
                |_| "an executable that cannot be read".to_owned(),
                |image| integrity::name(image.path).into_owned(),
            );
            return Err(AttributionError::Ambiguous {
                first: claim.program.executable.path.to_string(),
                first_pid: claim.pid,
                second,
                second_pid: pid,
            });
        }
        Ok(())
    }

    /// Whether `process` runs the program of `claim`; what cannot be read does not.
    fn agrees(&self, claim: &Claim, process: &Arc<Process>) -> bool {
        process.image(&mut [0; PATH]).is_ok_and(|image| claim.runs(&image))
            && matches!(
                self.ancestors(process, &claim.program.executable, Hashing::Never),
                Ok(Some(ancestors)) if ancestors == claim.program.ancestors
            )
    }

    /// Who sent, or tried to send, from `source` to `destination`, as far as it can still be told: the socket of a
    /// refused connection is often gone. `None` where there is no socket; without a program where nobody holds it.
    #[must_use]
    pub fn actor_of(&self, source: SocketAddr, destination: SocketAddr, transport: Transport) -> Option<Actor> {
        let socket = self.diagnosis.find(transport, source, destination, None).ok().flatten()?;
        let mut actor = Actor { binary: None, pid: None, uid: Some(socket.uid) };
        if socket.inode != 0
            && let Ok(Some(owner)) = self.search(&socket)
        {
            actor.pid = Some(owner.process.pid);
            actor.binary =
                owner.process.image(&mut [0; PATH]).ok().map(|image| integrity::name(image.path).into_owned());
        }
        Some(actor)
    }

    /// Looks for a process that holds `socket`, likeliest first.
    fn search(&self, socket: &Found) -> Result<Option<Owner>, AttributionError> {
        let recent: Vec<_> = self.recent.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        // First where it probably is, at a few microseconds a process…
        for (index, process) in recent.iter().enumerate() {
            match process.guess(socket.inode, if index == 0 { REACH } else { 1 }) {
                Ok(Some(descriptor)) => return Ok(Some(self.found(process.clone(), Some(descriptor)))),
                Err(error) if error.is_gone() => self.forget(process),
                // It is looked at again below, where errors count.
                Ok(None) | Err(_) => {}
            }
        }
        let pids = self.sandbox.list().map_err(AttributionError::Unlisted)?;
        let mut candidates = Vec::with_capacity(pids.len());
        for pid in pids.into_iter().rev() {
            let process = match self.sandbox.process(pid) {
                Ok(None) => continue,
                process => process.map_err(|error| AttributionError::reading(pid, "the directory", error))?,
            };
            candidates.extend(process);
        }
        // …the newest process of the socket's user, whose newest descriptor it is, before all…
        let same_user = |process: &&Arc<Process>| process.uid().is_ok_and(|uid| uid == socket.uid);
        for process in candidates.iter().filter(same_user) {
            if let Ok(Some(descriptor)) = process.guess(socket.inode, 1) {
                return Ok(Some(self.found(process.clone(), Some(descriptor))));
            }
        }
        // …then everywhere, and in the end in the tables that threads have of their own.
        let recent_first = || recent.iter().chain(&candidates);
        let mut unreadable = None;
        for process in recent_first() {
            match process.find(socket.inode) {
                Ok(Some(descriptor)) => return Ok(Some(self.found(process.clone(), Some(descriptor)))),
                Err(error) if !error.is_gone() && !process.is_kernel_thread() => {
                    unreadable = Some(AttributionError::reading(process.pid, "the descriptors", error));
                }
                Ok(None) | Err(_) => {}
            }
        }
        for process in recent_first() {
            if process.has_threads().unwrap_or(false) && process.examine(socket.inode).unwrap_or(false) {
                return Ok(Some(self.found(process.clone(), None)));
            }
        }
        unreadable.map_or(Ok(None), Err)
    }

    fn found(&self, process: Arc<Process>, descriptor: Option<u32>) -> Owner {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if !recent.front().is_some_and(|first| Arc::ptr_eq(first, &process)) {
            recent.retain(|other| !Arc::ptr_eq(other, &process));
            recent.truncate(RECENT - 1);
            recent.push_front(process.clone());
        }
        Owner { process, descriptor }
    }

    fn forget(&self, process: &Arc<Process>) {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).retain(|other| !Arc::ptr_eq(other, process));
    }

    /// What `process` executes.
    fn executable<'b>(
        &self,
        process: &Process,
        buffer: &'b mut [u8],
        hashing: Hashing,
    ) -> Result<Option<(Executable, Image<'b>)>, AttributionError> {
        let reading = |error| AttributionError::reading(process.pid, "the executable", error);
        if hashing == Hashing::Now {
            let mut probe = [0; PATH];
            let image = process.image(&mut probe).map_err(reading)?;
            if self.integrity.recall(&image).is_none() {
                self.integrity.learn(process)?;
            }
        }
        let image = process.image(buffer).map_err(reading)?;
        match self.integrity.recall(&image) {
            Some(executable) => Ok(Some((executable, image))),
            None if hashing == Hashing::Never => Ok(None),
            // It was exchanged in this instant.
            None => Err(AttributionError::Unsettled { pid: process.pid }),
        }
    }

    /// What the parents of `process` execute, up to where the sandbox begins.
    fn ancestors(
        &self,
        process: &Arc<Process>,
        executable: &Executable,
        hashing: Hashing,
    ) -> Result<Option<Arc<[Executable]>>, AttributionError> {
        let mut buffer = [0; PATH];
        let mut unsettled = AttributionError::Unsettled { pid: process.pid };
        for _ in 0..ATTEMPTS {
            match self.chain(process, executable, &mut buffer, hashing) {
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
        hashing: Hashing,
    ) -> Result<Option<Vec<Executable>>, AttributionError> {
        let mut chain: Vec<Executable> = Vec::new();
        let mut depth = 0;
        let mut current = process.clone();
        while depth < ANCESTORS {
            depth += 1;
            let child = current.pid;
            let parent_of = |process: &Process| -> Result<u32, AttributionError> {
                process.parent().map_err(|error: io::Error| AttributionError::reading(child, "the parent", error))
            };
            let parent = parent_of(&current)?;
            if self.sandbox.is_outside(parent) {
                break;
            }
            let next = self
                .sandbox
                .process(parent)
                .map_err(|error| AttributionError::reading(parent, "the directory", error))?
                .ok_or(AttributionError::Unsettled { pid: parent })?;
            // A parent that ended before it was opened may have left its number to another.
            if parent_of(&current)? != parent {
                return Err(AttributionError::Unsettled { pid: parent });
            }
            if self.sandbox.is_first(parent)
                && let Ok(image) = next.image(buffer)
                && self.own.is_some_and(|own| own.is_same_file(&image.fingerprint))
            {
                break;
            }
            let above = match self.executable(&next, buffer, hashing) {
                Ok(Some((above, _))) => above,
                Ok(None) => return Ok(None),
                // Ancestors only ever grant: one that is hidden from us, and those beyond it, grant nothing.
                Err(error) if error.is_forbidden() || next.is_kernel_thread() => break,
                Err(error) => return Err(error),
            };
            if chain.last().unwrap_or(executable) != &above {
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
