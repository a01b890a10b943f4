//! The two streams of a server, which end when the session does.
//!
//! Whoever closes a session ends what it started, by SIGHUP or SIGTERM. Their default would kill the server with half
//! a file beside every upload's final name, and a handler is a place of few allowed calls. So the signals are blocked and
//! read from a descriptor: wherever the server waits for its client it also waits for them, and the wait then fails like a
//! closed connection, after which everything is tidied up as usual.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::stat::{SFlag, fstat};

/// What ends a session: the channel was closed, somebody typed Ctrl-C, the sandbox ends.
const ENDING: [Signal; 3] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM];

/// The signals that end a session, from now on held back for the streams to see.
#[derive(Debug)]
pub struct Ending(SignalFd);

impl Ending {
    /// Holds the signals back in this thread, which has to be the only one.
    ///
    /// # Errors
    /// What sigprocmask(2) or signalfd(2) answered.
    pub fn hold() -> io::Result<Self> {
        let signals: SigSet = ENDING.into_iter().collect();
        signals.thread_block()?;
        Ok(Self(SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?))
    }

    /// A stream whose reads and writes fail with `ConnectionAborted` once such a signal has come. A pipe or a socket
    /// becomes non-blocking with it, for everybody who shares its description.
    ///
    /// # Errors
    /// What fstat(2) or fcntl(2) answered.
    pub fn stream<F: AsFd>(&self, fd: F) -> io::Result<Stream<'_, F>> {
        let kind = SFlag::from_bits_truncate(fstat(&fd)?.st_mode & SFlag::S_IFMT.bits());
        if kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK {
            let flags = OFlag::from_bits_retain(fcntl(&fd, FcntlArg::F_GETFL)?);
            fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        }
        Ok(Stream { ending: self, fd })
    }
}

/// See [`Ending::stream`].
#[derive(Debug)]
pub struct Stream<'e, F> {
    ending: &'e Ending,
    fd: F,
}

impl<F: AsFd> Stream<'_, F> {
    /// Waits at most so long until something can be done with the stream.
    fn wait(&self, events: PollFlags, timeout: PollTimeout) -> io::Result<()> {
        let (own, signals): (BorrowedFd<'_>, BorrowedFd<'_>) = (self.fd.as_fd(), self.ending.0.as_fd());
        loop {
            let mut waited = [PollFd::new(own, events), PollFd::new(signals, PollFlags::POLLIN)];
            match poll(&mut waited, timeout) {
                Ok(_) if waited[1].any().unwrap_or(true) => {
                    return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the session was ended by a signal"));
                }
                Ok(_) => return Ok(()),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl<F: AsFd> Read for Stream<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            // Always, and not only when there is nothing to read: a client that never stops sending must not keep the
            // server from seeing the signal.
            self.wait(PollFlags::POLLIN, PollTimeout::NONE)?;
            match nix::unistd::read(&self.fd, buffer) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                answer => return Ok(answer?),
            }
        }
    }
}

impl<F: AsFd> Write for Stream<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Tried before it is waited for: of a UNIX socket poll(2) says that it takes more only once three quarters of its
        // buffer are free, and a client that sends far ahead may not read before.
        let mut patience = PollTimeout::ZERO;
        loop {
            self.wait(PollFlags::POLLOUT, patience)?;
            match nix::unistd::write(&self.fd, bytes) {
                Err(Errno::EAGAIN) => patience = PollTimeout::NONE,
                Err(Errno::EINTR) => {}
                answer => return Ok(answer?),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
