//! The processes of the sandbox: which there are, and a bounded memory of those that were looked at.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use nix::sys::resource::{Resource, getrlimit};

use super::process::Process;
use crate::sys::procfs::{Gone as _, ProcessList};

/// Buffer for the entries of /proc: some six hundred processes a call.
const ENTRIES: usize = 16 * 1024;

/// Processes remembered at most, each with up to three descriptors of ours.
const REMEMBERED: usize = 1024;

/// Share of the limit on open files that this memory may take: the rest is for connections.
const SHARE_OF_FILES: u64 = 16;

/// Rounds of a walk through children lists before it is given up. Each but the first is for processes that ended while
/// they were read.
const WALKS: usize = 32;

/// Processes assumed before the first list, which is made while the sandbox is small.
const FIRST_LIST: u32 = 16;

/// Looks at each process of a walk: whether it is alive, has threads, and its children.
const WALK_STEP: u32 = 5;

/// Which processes may own the workload's connections.
#[derive(Debug)]
pub enum Processes {
    /// Those of a PID namespace of the sandbox's own: its /proc directory. What else runs on the machine costs nothing.
    /// Its first process is the sandbox's init, which is itself no candidate.
    Dedicated(OwnedFd),
    /// Those that descend from one process.
    Below {
        /// The /proc directory.
        proc: OwnedFd,
        /// The sandbox's init, a subreaper: what its descendants leave behind becomes its child. It is itself no
        /// candidate.
        root_pid: u32,
    },
    /// Every process of this /proc directory.
    All(OwnedFd),
    /// The same but one: the proxy's own, which holds the other ends of all connections and never rests, so that all its
    /// descriptors would be looked through each time.
    Others {
        /// The /proc directory.
        proc: OwnedFd,
        /// The proxy.
        own_pid: u32,
    },
}

/// The two processes of ours in a sidecar pod's agent container. Like the first process of a namespace of the sandbox's
/// own they are where the sandbox begins, and no part of it: nobody's ancestors, and no candidates. The workload can
/// neither trace them nor give them a descriptor (they take none), and the pod's sandbox ends with either.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Supervisors {
    /// The one that launched the workload.
    pub process: u32,
    /// The init that it put above the workload.
    pub init: u32,
}

#[derive(Debug)]
pub(super) struct Sandbox {
    processes: Processes,
    supervisors: OnceLock<Supervisors>,
    known: Mutex<HashMap<u32, Arc<Process>>>,
    remembered: usize,
    /// Kept from one list to the next.
    list: Mutex<Option<ProcessList>>,
    /// How many there were when they were last listed.
    listed: AtomicU32,
}

impl Sandbox {
    pub(super) fn new(processes: Processes) -> Self {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(REMEMBERED as u64, |(soft, _)| soft / SHARE_OF_FILES);
        let remembered = usize::try_from(files).unwrap_or(REMEMBERED).min(REMEMBERED);
        Self {
            processes,
            supervisors: OnceLock::new(),
            known: Mutex::new(HashMap::new()),
            remembered,
            list: Mutex::new(None),
            listed: AtomicU32::new(FIRST_LIST),
        }
    }

    fn proc(&self) -> BorrowedFd<'_> {
        match &self.processes {
            Processes::Dedicated(proc)
            | Processes::Below { proc, .. }
            | Processes::All(proc)
            | Processes::Others { proc, .. } => proc.as_fd(),
        }
    }

    /// Whether `pid` is where the sandbox begins, and is no part of it. The sandbox's init must not even be looked at: it
    /// was forked off by a supervisor that runs as an ordinary user, so that its memory belongs to the user namespace
    /// outside and is closed to all who have no CAP_SYS_PTRACE there (`__ptrace_may_access` in the kernel).
    pub(super) fn is_outside(&self, pid: u32) -> bool {
        pid == 0
            || match &self.processes {
                Processes::Dedicated(_) => pid == 1,
                Processes::Below { root_pid, .. } => *root_pid == pid,
                Processes::Others { own_pid, .. } => {
                    *own_pid == pid
                        || self.supervisors.get().is_some_and(|ours| ours.process == pid || ours.init == pid)
                }
                Processes::All(_) => false,
            }
    }

    /// Whether `pid` is the first process of a namespace that is not known to be the sandbox's own, which may be our own
    /// init.
    pub(super) fn is_first(&self, pid: u32) -> bool {
        pid == 1 && matches!(self.processes, Processes::All(_) | Processes::Others { .. })
    }

    /// Of [`Processes::Others`], those are ours as well. The first word on it is the last.
    pub(super) fn leave_out(&self, supervisors: Supervisors) {
        let _ = self.supervisors.set(supervisors);
    }

    /// Process `pid`; `None` if there is none.
    pub(super) fn process(&self, pid: u32) -> io::Result<Option<Arc<Process>>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).cloned();
        if let Some(process) = known.filter(|process| process.is_alive()) {
            return Ok(Some(process));
        }
        self.open(pid)
    }

    /// As [`process`](Self::process), for a caller that finds out by itself whether a remembered one has ended.
    pub(super) fn remembered(&self, pid: u32) -> Option<Arc<Process>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).cloned()
    }

    /// Opens `pid` anew, and remembers it if there is room.
    pub(super) fn open(&self, pid: u32) -> io::Result<Option<Arc<Process>>> {
        let process = match Process::open(self.proc(), pid) {
            Ok(process) => Arc::new(process),
            Err(error) if error.is_gone() => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < self.remembered || known.contains_key(&pid) {
            known.insert(pid, process.clone());
        }
        Ok(Some(process))
    }

    /// How many looks (see [`Effort`](super::effort::Effort)) the next list will probably take.
    pub(super) fn cost_of_list(&self) -> u32 {
        let each = match &self.processes {
            Processes::Dedicated(_) | Processes::All(_) | Processes::Others { .. } => 1,
            Processes::Below { .. } => WALK_STEP,
        };
        self.listed.load(Ordering::Relaxed).saturating_mul(each).max(1)
    }

    /// Numbers of all candidates, the newest last where numbers have not wrapped.
    pub(super) fn list(&self) -> io::Result<Vec<u32>> {
        let mut pids = match &self.processes {
            Processes::Dedicated(proc) | Processes::All(proc) | Processes::Others { proc, .. } => {
                let mut pids = Vec::with_capacity(128);
                let mut kept = self.list.try_lock();
                match &mut kept {
                    Ok(kept) => {
                        let mut list = match kept.take() {
                            Some(list) => list,
                            None => ProcessList::open(proc.as_fd(), ENTRIES)?,
                        };
                        list.read(|pid| pids.push(pid))?;
                        **kept = Some(list);
                    }
                    // In use by another thread, which may take long over it.
                    Err(_) => ProcessList::open(proc.as_fd(), ENTRIES)?.read(|pid| pids.push(pid))?,
                }
                pids
            }
            Processes::Below { root_pid, .. } => self.descendants(*root_pid)?,
        };
        pids.retain(|pid| !self.is_outside(*pid));
        pids.sort_unstable();
        self.listed.store(u32::try_from(pids.len()).unwrap_or(u32::MAX), Ordering::Relaxed);
        self.forget_ended(&pids);
        Ok(pids)
    }

    /// Walks the children lists (`CONFIG_PROC_CHILDREN`). One that ended before its list was read has handed its
    /// children to `root`, or to a subreaper of the workload's own, so that all are read again after it. What one walk
    /// misses because children end while their parent's list is read, the next one sees; a PID namespace of the sandbox's
    /// own has no such gap.
    fn descendants(&self, root: u32) -> io::Result<Vec<u32>> {
        let mut found = HashSet::new();
        for _ in 0..WALKS {
            let mut vanished = false;
            let mut walked = HashSet::new();
            let mut unread = Vec::new();
            let Some(first) = self.process(root)? else {
                return Err(io::Error::new(io::ErrorKind::NotFound, format!("the sandbox's init, {root}, has ended")));
            };
            first.children(&mut unread)?;
            while let Some(pid) = unread.pop() {
                if !walked.insert(pid) {
                    continue;
                }
                let children = match self.process(pid)? {
                    Some(process) => process.children(&mut unread),
                    None => Err(io::Error::from_raw_os_error(nix::libc::ESRCH)),
                };
                match children {
                    Err(error) if error.is_gone() => vanished = true,
                    other => other?,
                }
            }
            found.extend(walked);
            if !vanished {
                return Ok(found.into_iter().collect());
            }
        }
        Err(io::Error::new(io::ErrorKind::ResourceBusy, "processes end faster than their children can be listed"))
    }

    fn forget_ended(&self, alive: &[u32]) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Ancestors outside the list (the sandbox's init) are opened again when needed.
        if known.len() >= self.remembered {
            known.retain(|pid, _| alive.binary_search(pid).is_ok());
        }
    }
}
