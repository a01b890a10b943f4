//! Whose the terminal is. A workload that was given it is a job of its own in the supervisor's session, so that
//! Ctrl-C and Ctrl-Z reach it and not the supervisor (tcsetpgrp(3), and "Job Control" in the glibc manual); a workload
//! that was not is in a session of its own, where it cannot be a terminal's foreground job at all.

use std::cell::Cell;
use std::io::{IsTerminal, stdin, stdout};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::sys::signal::{Signal, raise};
use nix::unistd::{Pid, getpgrp, getppid, getsid, tcgetpgrp, tcsetpgrp};
use serde::{Deserialize, Serialize};

use crate::sys::{process, tty};

/// How the workload stands to the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Plan {
    /// A session of its own.
    Detached,
    /// A process group of its own in the supervisor's session; in the foreground when the supervisor is.
    Attached {
        /// Whether it takes the foreground at once.
        foreground: bool,
    },
    /// A session of its own, whose terminal is standard input: one that nobody else has.
    Owner,
}

impl Plan {
    /// Hands the terminal over where standard input *and* output are it. With only one of them, as in a pipeline, the
    /// other jobs of the pipeline need it too, and a workload in a session of its own can still read what it was
    /// given as its input.
    #[must_use]
    pub fn here() -> Self {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            return Self::Detached;
        }
        match tcgetpgrp(stdin()) {
            Ok(group) => Self::Attached { foreground: group == getpgrp() },
            // A terminal that is not ours to control.
            Err(_) => Self::Detached,
        }
    }
}

/// The supervisor's side of a terminal that the workload shares.
#[derive(Debug)]
pub struct Lent {
    /// Whether the workload has the foreground, by our hand: what was not lent is not taken back, since then it is
    /// the shell's or another job's.
    lent: Cell<bool>,
}

impl Lent {
    /// Prepares for `plan`; `None` where the supervisor keeps out of it.
    #[must_use]
    pub fn of(plan: Plan) -> Option<Self> {
        match plan {
            Plan::Detached | Plan::Owner => None,
            Plan::Attached { foreground } => {
                // A process in the background that sets the foreground group, or writes under `stty tostop`, is
                // stopped unless it ignores this. The child gets the default back.
                process::ignore(Signal::SIGTTOU);
                Some(Self { lent: Cell::new(foreground) })
            }
        }
    }

    /// The workload has stopped: takes the terminal back and stops the supervisor as the shell expects of a job.
    /// Returns once continued, with whether the shell then gave the supervisor the foreground, which the workload is
    /// to have in its turn.
    #[must_use]
    pub fn suspend(&self) -> bool {
        self.take_back();
        if someone_can_continue() {
            let _ = raise(Signal::SIGSTOP);
        }
        let foreground = tcgetpgrp(stdin()) == Ok(getpgrp());
        self.lent.set(foreground);
        foreground
    }

    /// Takes the terminal back where the workload has it. Nobody can be told if it fails: then the terminal is gone.
    pub fn take_back(&self) {
        if self.lent.replace(false) {
            let _ = tcsetpgrp(stdin(), getpgrp());
        }
    }
}

/// Whether a job-control shell stands behind us: a parent in our session. A session leader, such as the entrypoint of
/// a container with a terminal, would stay stopped for ever.
fn someone_can_continue() -> bool {
    let parent = getppid();
    parent != Pid::from_raw(0) && getsid(Some(parent)).is_ok_and(|session| Ok(session) == getsid(None))
}

/// In the child: joins the session and group of `plan`. SIGTTOU must be blocked or ignored.
///
/// # Errors
/// What setsid(2), setpgid(2), tcsetpgrp(3) or TIOCSCTTY answered.
pub fn join(plan: Plan) -> nix::Result<()> {
    match plan {
        Plan::Detached => nix::unistd::setsid().map(drop),
        Plan::Owner => {
            nix::unistd::setsid()?;
            tty::control(stdin().as_fd()).map_err(|error| Errno::try_from(error).unwrap_or(Errno::UnknownErrno))
        }
        Plan::Attached { foreground } => {
            let own = Pid::from_raw(0);
            nix::unistd::setpgid(own, own)?;
            if foreground { tcsetpgrp(stdin(), nix::unistd::getpid()) } else { Ok(()) }
        }
    }
}
