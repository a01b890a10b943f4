//! The channel between supervisor and init: one message per datagram of a SOCK_SEQPACKET socket, descriptors beside
//! it (unix(7)). Both ends are this executable, so the encoding has no versions.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, MsgFlags, SockType, getsockopt, sendmsg, sockopt};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::confine::landlock::Enforced;
use crate::contract::exit;
use crate::netns::Namespaces;
use crate::sys::process::adopt;
use crate::sys::rights;

/// Largest message: notes and errors are sentences, and the default socket buffer takes three of these.
const MESSAGE_LIMIT: usize = 64 << 10;

/// Descriptor of the socket in the launched process.
pub const CONTROL_FD: RawFd = 3;

/// What the launched side tells the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The init has been forked; its pidfd comes along. From the `launch` process, which then exits.
    Forked {
        /// Its pid as the sender, and so the supervisor, sees it.
        pid: i32,
    },
    /// Everything is set up; descriptors come along in this order. The init waits for [`Request::Go`].
    Prepared {
        /// The layout of the descriptors; `None` without isolation.
        handover: Option<Layout>,
        /// Whether the last descriptor is the private /proc.
        processes: bool,
    },
    /// The workload runs. The other ends of its streams come along, where they have been made for it
    /// ([`super::standard`]).
    Started {
        /// Its pid as the init sees it.
        pid: i32,
        /// What Landlock enforces on it.
        landlock: Enforced,
        /// What an operator should know.
        notes: Vec<String>,
    },
    /// There will be no workload.
    Failed(Failure),
    /// The workload has been stopped by a signal, and nobody but the supervisor can continue it.
    Stopped,
    /// The workload has ended; the init now ends what it left behind, and then itself.
    Exited(Ending),
    /// About a program that runs beside the workload.
    Guest {
        /// Which, by the number that the supervisor gave it.
        id: u64,
        /// What of it.
        step: GuestStep,
    },
    /// The socket that was asked for; the descriptor comes along, unless there is an error.
    Socket {
        /// Of which request.
        id: u64,
        /// What socket(2) answered.
        error: Option<i32>,
    },
}

/// A step of a guest's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GuestStep {
    /// It runs. The other ends of its streams come along: the master side of its terminal, or those of three pipes.
    Started {
        /// Its pid as the init sees it.
        pid: i32,
    },
    /// It does not, and never will.
    Failed(Failure),
    /// It has ended.
    Ended(Ending),
}

/// Which descriptors a hand-over consists of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// How many listeners come first; the diagnosis socket follows.
    pub listeners: usize,
    /// Whether the packet socket comes next.
    pub packets: bool,
    /// Notes of the hand-over.
    pub notes: Vec<String>,
}

/// What the supervisor asks of the init.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Leave the machine's namespaces for new ones: the first part of setting up, which needs no orders.
    Separate(Namespaces),
    /// The orders are complete and sealed: set the sandbox up.
    SetUp,
    /// The supervisor serves: start the workload.
    Go,
    /// Signal the workload's process group.
    Signal(i32),
    /// Make the workload's process group the terminal's foreground job: only inside is its number known.
    Foreground,
    /// Start a program beside the workload, confined alike. A memfd with the [`super::guest::Task`] comes along.
    Launch {
        /// The supervisor's number for it.
        id: u64,
    },
    /// Signal a guest's process group. One that has ended is no error.
    SignalGuest {
        /// Which.
        id: u64,
        /// What.
        signal: i32,
    },
    /// Make a TCP socket in the workload's network namespace, where it stays whoever uses it.
    Socket {
        /// The supervisor's number for the request.
        id: u64,
        /// For IPv6 rather than IPv4.
        six: bool,
    },
}

/// How the workload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// It exited with this code.
    Code(u8),
    /// This signal ended it.
    Signal(i32),
}

impl Ending {
    /// The exit code that stands for it (design §1).
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => exit::SIGNAL_BASE.wrapping_add(signal as u8),
        }
    }
}

/// Why there is no workload, in a form that travels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Exit code: 125, 126 or 127.
    pub code: u8,
    /// Cause and remedy.
    pub message: String,
    /// Whether it is the private /proc alone that cannot be had.
    pub private_proc: bool,
}

impl Failure {
    /// A failure that ends the supervisor with `code`.
    #[must_use]
    pub fn new(code: u8, message: String) -> Self {
        Self { code, message, private_proc: false }
    }

    /// A set-up that failed.
    pub fn setup(error: impl std::fmt::Display) -> Self {
        Self::new(exit::SETUP, error.to_string())
    }
}

/// What went beside a message did not arrive, or not all of it: unix(7), `MSG_CTRUNC`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "descriptors were lost on their way, for this process may open no more; end something, or raise its limit \
     (RLIMIT_NOFILE)"
)]
pub struct Lost;

/// What came beside a message. The message itself is whole either way: whoever it is about does without, and nobody else.
pub type Descriptors = Result<Vec<OwnedFd>, Lost>;

/// One end.
#[derive(Debug)]
pub struct Control {
    socket: OwnedFd,
}

impl Control {
    /// The end that this process was spawned with.
    ///
    /// # Errors
    /// `EBADF`, or `ENOTSOCK` when descriptor 3 is something else: nobody starts this role by hand.
    pub fn inherited() -> io::Result<Self> {
        let socket = adopt(CONTROL_FD)?;
        match getsockopt(&socket, sockopt::SockType) {
            Ok(SockType::SeqPacket) => Ok(Self { socket }),
            Ok(_) => Err(Errno::EPROTOTYPE.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// [`send`].
    ///
    /// # Errors
    /// As there.
    pub fn send<M: Serialize>(&self, message: &M, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.socket.as_fd(), message, descriptors)
    }

    /// [`receive`].
    ///
    /// # Errors
    /// As there.
    pub fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Descriptors)>> {
        receive(self.socket.as_fd())
    }

    /// Whether the other end is gone.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|count| count > 0)
            && fds[0].revents().is_some_and(|events| events.contains(PollFlags::POLLHUP))
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends one message. Blocks, or answers `WouldBlock` on a non-blocking socket.
///
/// # Errors
/// What sendmsg(2) answered; `EPIPE` when the other end is gone.
pub fn send<M: Serialize>(socket: BorrowedFd<'_>, message: &M, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let bytes = serde_json::to_vec(message)?;
    if bytes.len() > MESSAGE_LIMIT || descriptors.len() > rights::LIMIT {
        return Err(Errno::EMSGSIZE.into());
    }
    let numbers: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&numbers)];
    let ancillary: &[ControlMessage<'_>] = if numbers.is_empty() { &[] } else { &rights };
    let slices = [IoSlice::new(&bytes)];
    sendmsg::<()>(socket.as_raw_fd(), &slices, ancillary, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives one message; `None` when the other end is gone. Where descriptors of it were lost, those that came are closed.
///
/// # Errors
/// What recvmsg(2) answered; `InvalidData` for what is no message.
pub fn receive<M: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(M, Descriptors)>> {
    let mut buffer = vec![0; MESSAGE_LIMIT];
    let received = rights::receive(socket, &mut buffer)?;
    if received.length == 0 {
        return Ok(None);
    }
    if received.cut {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message on the control socket was cut short"));
    }
    let descriptors = if received.lost { Err(Lost) } else { Ok(received.descriptors) };
    Ok(Some((serde_json::from_slice(&buffer[..received.length])?, descriptors)))
}
