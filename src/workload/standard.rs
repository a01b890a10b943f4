//! The standard streams of a program in the sandbox: those that it inherits, or pipes or a terminal made for it, whose other
//! ends the supervisor is given.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::fcntl::OFlag;
use nix::pty::Winsize;
use nix::sys::termios::{self, SetArg};
use nix::unistd::{Gid, Uid, dup2_stderr, dup2_stdin, dup2_stdout, pipe2, setfsgid, setfsuid};
use serde::{Deserialize, Serialize};

use super::control::Failure;
use super::terminal::Plan;
use super::tty_modes;
use crate::confine::identity::Identity;
use crate::sys::tty;

/// Where a program's standard streams lead.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standard {
    /// Where the supervisor's own do.
    Inherited,
    /// To pipes.
    Pipes {
        /// Whether standard output and error are one, so that what is written to the one and the other stays in order.
        joined: bool,
    },
    /// To a new terminal of the sandbox's own, all three.
    Terminal(Shape),
}

/// A terminal to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Height in characters.
    pub rows: u16,
    /// Width in characters.
    pub columns: u16,
    /// Width in pixels, 0 where unknown.
    pub width: u16,
    /// Height in pixels, 0 where unknown.
    pub height: u16,
    /// Modes by the numbers of RFC 4254 §8, as far as they differ from a new terminal's.
    pub modes: Vec<(u8, u32)>,
}

impl Shape {
    /// The size, as the kernel has it.
    #[must_use]
    pub fn size(&self) -> Winsize {
        Winsize { ws_row: self.rows, ws_col: self.columns, ws_xpixel: self.width, ws_ypixel: self.height }
    }
}

/// Both ends of a program's standard streams.
#[derive(Debug)]
pub(super) struct Streams {
    /// The supervisor's: the master side of a terminal, or the pipes' other ends in the order of the streams.
    pub(super) ours: Vec<OwnedFd>,
    theirs: [OwnedFd; 3],
}

impl Standard {
    /// Makes them, as the user of the program's; `None` where there are some.
    pub(super) fn make(&self, identity: &Identity) -> Result<Option<Streams>, Failure> {
        let (made, what) = match self {
            Self::Inherited => return Ok(None),
            Self::Pipes { joined } => (as_the_workload(identity, || pipes(*joined)), "pipes"),
            Self::Terminal(shape) => (as_the_workload(identity, || terminal(shape)), "no terminal (/dev/ptmx)"),
        };
        made.map(Some).map_err(|error| Failure::setup(format!("{what}: {error}")))
    }

    /// How the program stands to the terminal; `inherited` is the supervisor's.
    pub(super) fn plan(&self, inherited: Plan) -> Plan {
        match self {
            Self::Inherited => inherited,
            Self::Pipes { .. } => Plan::Detached,
            Self::Terminal(_) => Plan::Owner,
        }
    }
}

impl Streams {
    /// In the child: makes them its own standard streams.
    pub(super) fn take_on(&self) -> Result<(), Failure> {
        let [input, output, error] = &self.theirs;
        dup2_stdin(input)
            .and_then(|()| dup2_stdout(output))
            .and_then(|()| dup2_stderr(error))
            .map_err(|error| Failure::setup(format!("dup2: {error}")))
    }
}

/// Makes something that is to belong to the workload's user. Whose a new pipe or terminal is follows from the user at that
/// time (`current_fsuid` in the kernel), so nobody needs CAP_CHOWN; and programs open theirs again, as `/dev/stderr`.
fn as_the_workload<T>(identity: &Identity, make: impl FnOnce() -> T) -> T {
    let before = identity.switch.then(|| {
        let gid = setfsgid(Gid::from_raw(identity.gid));
        (setfsuid(Uid::from_raw(identity.uid)), gid)
    });
    let made = make();
    if let Some((uid, gid)) = before {
        setfsuid(uid);
        setfsgid(gid);
    }
    made
}

/// A terminal on the sandbox's own devpts.
fn terminal(shape: &Shape) -> io::Result<Streams> {
    let (master, own) = tty::open_pair()?;
    let mut settings = termios::tcgetattr(&own)?;
    tty_modes::apply(&mut settings, &shape.modes);
    termios::tcsetattr(&own, SetArg::TCSANOW, &settings)?;
    tty::set_size(own.as_fd(), &shape.size())?;
    Ok(Streams { ours: vec![master], theirs: [own.try_clone()?, own.try_clone()?, own] })
}

fn pipes(joined: bool) -> io::Result<Streams> {
    let (input, to_input) = pipe2(OFlag::O_CLOEXEC)?;
    let (from_output, output) = pipe2(OFlag::O_CLOEXEC)?;
    if joined {
        let error = output.try_clone()?;
        return Ok(Streams { ours: vec![to_input, from_output], theirs: [input, output, error] });
    }
    let (from_error, error) = pipe2(OFlag::O_CLOEXEC)?;
    Ok(Streams { ours: vec![to_input, from_output, from_error], theirs: [input, output, error] })
}
