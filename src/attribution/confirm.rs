//! All owners of a connection: every process of the sandbox is looked at, and all that hold it must agree.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::sync::Arc;

use nix::sys::socket::{SockaddrStorage, getpeername};

use super::effort::Effort;
use super::error::AttributionError;
use super::process::{Process, Recall};
use super::{Attributor, Claim, PATH, integrity};
use crate::sys::procfs::Gone as _;

/// Rounds of listing and looking before it is given up. A program can hide from one round by forking a successor and
/// ending, over and over, so that every process on the list has ended when it is looked at; while it does so, every round
/// finds it under a new number. Compilers and shells start processes too, but not within each of so many rounds of a
/// fraction of a millisecond.
const ROUNDS: usize = 32;

/// Looks at a process that was never seen, besides its descriptors.
const OPENING: u32 = 3;

/// What one process has to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It does not hold it, or runs the same program.
    Cleared,
    /// It ended before that could be told.
    Ended,
    /// To tell would take more effort than is allowed.
    Untold,
}

impl Attributor {
    /// Checks that every process of the sandbox that holds the connection runs the program of `claim`, and that
    /// `accepted`, our end of it, is still the connection that was claimed. Takes microseconds where the sandbox's processes sleep, and some
    /// three microseconds a descriptor of those that run something else: on a thread that may block.
    ///
    /// # Errors
    /// Who else has it, or what could not be read. The connection is to be refused.
    pub fn confirm(&self, claim: &Claim, accepted: &impl AsFd) -> Result<(), AttributionError> {
        self.check(claim, accepted.as_fd(), &mut Effort::full_without_hashing())?
            .ok_or(AttributionError::Unsettled { pid: claim.pid })
    }

    /// As [`confirm`](Self::confirm) in a fraction of a millisecond: `None` where it would take longer.
    #[must_use]
    pub fn try_confirm(&self, claim: &Claim, accepted: &impl AsFd) -> Option<Result<(), AttributionError>> {
        self.check(claim, accepted.as_fd(), &mut Effort::inline()).transpose()
    }

    fn check(
        &self,
        claim: &Claim,
        accepted: BorrowedFd<'_>,
        effort: &mut Effort,
    ) -> Result<Option<()>, AttributionError> {
        let mut seen: Vec<u32> = Vec::new();
        let mut rounds = 0;
        let mut some_ended = false;
        loop {
            if !effort.spend(self.sandbox.cost_of_list()) {
                return Ok(None);
            }
            let mut new = self.sandbox.list().map_err(AttributionError::Unlisted)?;
            new.retain(|pid| seen.binary_search(pid).is_err());
            // Where a number wraps while it is listed, a round misses what the one before saw ending.
            if new.is_empty() && !some_ended {
                break;
            }
            rounds += 1;
            if rounds > ROUNDS {
                return Err(AttributionError::Unsettled { pid: new.last().copied().unwrap_or(claim.pid) });
            }
            some_ended = false;
            for pid in &new {
                match self.confirm_process(claim, *pid, effort)? {
                    Standing::Cleared => {}
                    Standing::Ended => some_ended = true,
                    Standing::Untold => return Ok(None),
                }
            }
            seen.append(&mut new);
            seen.sort_unstable();
        }
        Self::confirm_claim(claim, accepted, effort)
    }

    /// Checks that the owner that was claimed still is one. Comes last: what else is assumed of it holds if this does.
    fn confirm_claim(
        claim: &Claim,
        accepted: BorrowedFd<'_>,
        effort: &mut Effort,
    ) -> Result<Option<()>, AttributionError> {
        let changed_hands =
            || AttributionError::ChangedHands { program: claim.program.executable.path.to_string(), pid: claim.pid };
        let process = &claim.owner.process;
        let reading = |what| move |error| AttributionError::reading(claim.pid, what, error);
        let at_its_place = match claim.owner.descriptor {
            Some(descriptor) => process.holds_at(descriptor, claim.socket.inode).map_err(reading("a descriptor"))?,
            None => false,
        };
        if !at_its_place {
            if effort.is_limited() && !effort.spend_if_left(process.cost_of_examination()) {
                return Ok(None);
            }
            if !process.examine(claim.socket.inode).map_err(reading("the descriptors"))? {
                return Err(changed_hands());
            }
        }
        let mut buffer = [0; PATH];
        if !claim.runs(&process.image(&mut buffer).map_err(reading("the executable"))?) {
            return Err(changed_hands());
        }
        // Addresses belong to one connection at a time. Had another had them when its socket was found, ours would have
        // been reset by then, and have no peer any more. The socket itself is the one that was found while somebody
        // holds its inode: those are numbered in turn, four thousand million of them.
        if peer(accepted) != Some(claim.client) {
            return Err(changed_hands());
        }
        Ok(Some(()))
    }

    /// Looks at one process. One that ends meanwhile holds nothing, but may have left what it held to another.
    fn confirm_process(&self, claim: &Claim, pid: u32, effort: &mut Effort) -> Result<Standing, AttributionError> {
        // The number is the owner's for as long as that lives, which `confirm_claim` sees to.
        if pid == claim.pid {
            return Ok(Standing::Cleared);
        }
        let inode = claim.socket.inode;
        let reading = |what| move |error| AttributionError::reading(pid, what, error);
        let mut process = self.sandbox.remembered(pid);
        let cost = process.as_ref().map_or(OPENING, |process| process.cost_of_recall());
        if !effort.spend(cost) {
            return Ok(Standing::Untold);
        }
        let mut recall = process.as_ref().map(|process| process.recall(inode));
        if recall.as_ref().is_none_or(Result::is_err) {
            // Never seen, or another process has the number by now.
            process = self.sandbox.open(pid).map_err(reading("the directory"))?;
            recall = process.as_ref().map(|process| process.recall(inode));
        }
        let (Some(process), Some(recall)) = (process, recall) else { return Ok(Standing::Ended) };
        let recall = match recall {
            Err(error) if error.is_gone() => return Ok(Standing::Ended),
            recall => recall.map_err(reading("the scheduling statistics"))?,
        };
        if recall == Recall::Lacks {
            return Ok(Standing::Cleared);
        }
        let agrees = self.agrees(claim, &process, effort);
        if effort.is_exhausted() {
            return Ok(Standing::Untold);
        }
        if agrees && recall != Recall::Sleeps {
            if !effort.spend(process.cost_of_samples()) {
                return Ok(Standing::Untold);
            }
            // It may have the connection or not; if it sleeps on, it is read next time, and not after that.
            return match process.note_visit() {
                Ok(()) => Ok(Standing::Cleared),
                Err(error) if error.is_gone() => Ok(Standing::Ended),
                Err(error) => Err(reading("the scheduling statistics")(error)),
            };
        }
        if effort.is_limited() && !effort.spend_if_left(process.cost_of_examination()) {
            return Ok(Standing::Untold);
        }
        let holds = match process.examine(inode) {
            Err(error) if error.is_gone() => return Ok(Standing::Ended),
            Err(_) if process.is_kernel_thread() => return Ok(Standing::Cleared),
            holds => holds.map_err(|error| reading("the descriptors")(error).of(&process))?,
        };
        if !holds {
            return Ok(if process.has_ended() { Standing::Ended } else { Standing::Cleared });
        }
        let agrees = self.agrees(claim, &process, effort);
        if effort.is_exhausted() {
            return Ok(Standing::Untold);
        }
        if !agrees {
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
        Ok(Standing::Cleared)
    }

    /// Whether `process` runs the program of `claim`; what cannot be read does not.
    fn agrees(&self, claim: &Claim, process: &Arc<Process>, effort: &mut Effort) -> bool {
        process.image(&mut [0; PATH]).is_ok_and(|image| claim.runs(&image))
            && matches!(
                self.ancestors(process, &claim.program.executable, effort),
                Ok(Some(ancestors)) if ancestors == claim.program.ancestors
            )
    }
}

/// Whom an accepted socket is connected to; `None` once it is not any more (getpeername(2), ENOTCONN).
fn peer(accepted: BorrowedFd<'_>) -> Option<SocketAddr> {
    let address = getpeername::<SockaddrStorage>(accepted.as_raw_fd()).ok()?;
    let six = address.as_sockaddr_in6().map(|address| SocketAddr::V6((*address).into()));
    six.or_else(|| address.as_sockaddr_in().map(|address| SocketAddr::V4((*address).into())))
}
