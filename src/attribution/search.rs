//! One owner of a socket, likeliest processes first.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};

use super::diagnosis::{Found, Transport};
use super::effort::Effort;
use super::error::AttributionError;
use super::process::Process;
use super::{Attributor, Owner, PATH, integrity};
use crate::event::Actor;
use crate::sys::procfs::Gone as _;

/// Owners that are asked first next time: one for each program that usually talks at the same time.
pub(super) const RECENT: usize = 8;

/// Newest descriptors to try of the process that owned the last connection, which may well take turns with a few: below
/// this, trying is quicker than listing.
const REACH: u32 = 8;

/// Looks that a guess takes besides those at the newest descriptors.
const GUESS: u32 = 2;

/// Looks at a process to open it and to learn its user.
const OPENING: u32 = 3;

impl Attributor {
    /// Who sent, or tried to send, from `source` to `destination`, as far as it can still be told within a few
    /// milliseconds: the socket of a refused connection is often gone. `None` where there is no socket; without a program
    /// where nobody was found to hold it.
    #[must_use]
    pub fn actor_of(&self, source: SocketAddr, destination: SocketAddr, transport: Transport) -> Option<Actor> {
        let socket = self.diagnosis.find(transport, source, destination).ok().flatten()?;
        let mut actor = Actor { binary: None, pid: None, uid: Some(socket.uid) };
        if socket.inode != 0
            && let Ok(Some(owner)) = self.search(&socket, &mut Effort::naming())
        {
            actor.pid = Some(owner.process.pid);
            actor.binary =
                owner.process.image(&mut [0; PATH]).ok().map(|image| integrity::name(image.path).into_owned());
        }
        Some(actor)
    }

    /// Looks for a process that holds `socket`. Where `effort` is limited, `None` does not mean that there is none.
    pub(super) fn search(&self, socket: &Found, effort: &mut Effort) -> Result<Option<Owner>, AttributionError> {
        let recent: Vec<_> = self.recent.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect();
        // First where it probably is, at a few microseconds a process…
        for (index, process) in recent.iter().enumerate() {
            let reach = if index == 0 { REACH } else { 1 };
            if !effort.spend(GUESS + reach) {
                return Ok(None);
            }
            match process.guess(socket.inode, reach) {
                Ok(Some(descriptor)) => return Ok(Some(self.found(process.clone(), Some(descriptor)))),
                Err(error) if error.is_gone() => self.forget(process),
                // It is looked at again below, where errors count.
                Ok(None) | Err(_) => {}
            }
        }
        if !effort.spend(self.sandbox.cost_of_list()) {
            return Ok(None);
        }
        let pids = self.sandbox.list().map_err(AttributionError::Unlisted)?;
        // …the newest process of the socket's user, whose newest descriptor it is, before all…
        let mut candidates = Vec::with_capacity(pids.len());
        for pid in pids.into_iter().rev() {
            if !effort.spend(OPENING) {
                return Ok(None);
            }
            let process = match self.sandbox.process(pid) {
                Ok(None) => continue,
                process => process.map_err(|error| AttributionError::reading(pid, "the directory", error))?,
            };
            let Some(process) = process else { continue };
            if process.uid().is_ok_and(|uid| uid == socket.uid) {
                if !effort.spend(GUESS + 1) {
                    return Ok(None);
                }
                if let Ok(Some(descriptor)) = process.guess(socket.inode, 1) {
                    return Ok(Some(self.found(process, Some(descriptor))));
                }
            }
            candidates.push(process);
        }
        // …then everywhere, and in the end in the tables that threads have of their own.
        let recent_first = || recent.iter().chain(&candidates);
        let mut unreadable = None;
        for process in recent_first() {
            if effort.is_limited() && !effort.spend_if_left(process.cost_of_find()) {
                continue;
            }
            match process.find(socket.inode) {
                Ok(Some(descriptor)) => return Ok(Some(self.found(process.clone(), Some(descriptor)))),
                Err(error) if !error.is_gone() && !process.is_kernel_thread() => {
                    unreadable = Some(AttributionError::reading(process.pid, "the descriptors", error).of(process));
                }
                Ok(None) | Err(_) => {}
            }
        }
        if effort.is_limited() {
            return Ok(None);
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
}
