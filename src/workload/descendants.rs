//! What a process has started and not lost, for whoever must leave nothing behind.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::time::Duration;

use nix::libc;
use nix::sys::prctl;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use tokio::time::sleep;

use crate::sys::process;

/// How often what was adopted is looked for, and how many times: what the kernel cannot end by then waits for hardware.
const SWEEP: Duration = Duration::from_millis(10);
const SWEEPS: u32 = 200;

/// The processes below this one.
#[derive(Debug)]
pub(super) struct Descendants {
    /// Its children, whose numbers cannot be reused before it reaps them.
    pub children: Vec<Pid>,
    /// All others, each with its parent.
    below: Vec<(Pid, Pid)>,
}

impl Descendants {
    /// As of now, by the parent that each process names in `/proc/PID/stat` (proc_pid_stat(5)): the shorter way,
    /// `/proc/self/task/TID/children`, is not in every kernel.
    pub fn of_ours() -> Self {
        let mut by_parent: HashMap<Pid, Vec<Pid>> = HashMap::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(parent) = parent_of(pid) {
                by_parent.entry(Pid::from_raw(parent)).or_default().push(Pid::from_raw(pid));
            }
        }
        let children = by_parent.remove(&getpid()).unwrap_or_default();
        let mut below = Vec::new();
        let mut next = children.clone();
        while let Some(parent) = next.pop() {
            for child in by_parent.remove(&parent).unwrap_or_default() {
                next.push(child);
                below.push((child, parent));
            }
        }
        Self { children, below }
    }

    /// All at once, however deep: when one dies its children become ours, and a line of them would outlive us otherwise.
    pub fn kill(&self) {
        for &child in &self.children {
            let _ = kill(child, Signal::SIGKILL);
        }
        self.below.iter().for_each(|&(pid, parent)| kill_child_of(parent, pid));
    }
}

/// Whether orphans below this process become its children: as process 1, or by request (`PR_SET_CHILD_SUBREAPER`, prctl(2)).
pub(super) fn are_adopted() -> bool {
    getpid() == Pid::from_raw(1) || prctl::get_child_subreaper() == Ok(true)
}

/// Kills what a sandbox's init has left because it was killed itself, where that fell to us.
pub(super) async fn end_adopted() {
    if !are_adopted() {
        return;
    }
    for _ in 0..SWEEPS {
        while let Ok(Some(_)) = process::reap() {}
        let found = Descendants::of_ours();
        if found.children.is_empty() {
            return;
        }
        found.kill();
        sleep(SWEEP).await;
    }
}

/// Kills a process that is not our child, if it is still the one that was seen: its number may be another's by now.
fn kill_child_of(parent: Pid, pid: Pid) {
    if let Ok(held) = process::pidfd_open(pid)
        && parent_of(pid.as_raw()) == Some(parent.as_raw())
    {
        let _ = process::pidfd_send_signal(held.as_fd(), Signal::SIGKILL);
    }
}

fn parent_of(pid: libc::pid_t) -> Option<libc::pid_t> {
    parent_in(&std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The fourth field. The second is the program's name in parentheses and may hold any byte, parentheses included.
fn parent_in(stat: &[u8]) -> Option<libc::pid_t> {
    let after_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    std::str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent_in(b"12 (sh) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in(b"12 (a) R 1 (b) S 7 12"), Some(7));
        assert_eq!(parent_in(b"12 (sh) S"), None);
        assert_eq!(parent_in(b""), None);
    }
}
