//! Bytes between two sockets, unread: splice(2) through a pipe, so that they never enter this process. A pipe is held
//! only while bytes are in flight; a tunnel at rest is two descriptors and a waiting task.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::libc;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::limits;
use crate::event::Events;

/// A pipe: the end to read, the end to write.
#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// Pipes for bytes in flight.
#[derive(Debug, Default)]
pub(super) struct Pipes(Mutex<Vec<Pipe>>);

impl Pipes {
    fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(pipe);
        }
        let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        // Refused above the user's share of pipe memory (pipe(7), pipe-user-pages-soft): smaller is slower, not wrong.
        let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(limits::PIPE_BYTES as libc::c_int));
        Ok(Pipe { read, write })
    }

    /// Takes back an empty pipe.
    fn put(&self, pipe: Pipe) {
        let mut pipes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if pipes.len() < limits::PIPES_KEPT {
            pipes.push(pipe);
        }
    }
}

/// Bytes that a tunnel has moved.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// From client to upstream.
    pub sent: AtomicU64,
    /// From upstream to client.
    pub received: AtomicU64,
}

impl Traffic {
    pub(super) fn total(&self) -> u64 {
        self.sent.load(Ordering::Relaxed) + self.received.load(Ordering::Relaxed)
    }

    /// Adds it to the metrics, once.
    pub(super) fn count(self, events: &Events) {
        events.metrics().bytes_sent.inc_by(self.sent.into_inner());
        events.metrics().bytes_received.inc_by(self.received.into_inner());
    }
}

/// Moves bytes both ways until both sides have ended their half, or one has failed. Whoever calls closes both sockets
/// afterwards: the second end is passed on by that alone.
///
/// # Errors
/// What the socket that failed said; the other has then been reset as well, so that nobody takes a broken stream for
/// a finished one.
pub(super) async fn relay(
    client: &TcpStream,
    upstream: &TcpStream,
    pipes: &Pipes,
    traffic: &Traffic,
) -> io::Result<()> {
    let ended = AtomicBool::new(false);
    let both = async {
        tokio::try_join!(
            direction(client, upstream, pipes, &traffic.sent, &ended),
            direction(upstream, client, pipes, &traffic.received, &ended)
        )
    };
    let outcome = both.await.map(drop);
    if outcome.is_err() {
        reset_on_close(client);
        reset_on_close(upstream);
    }
    outcome
}

/// Makes closing the socket send a reset (socket(7), SO_LINGER with a timeout of zero).
pub(super) fn reset_on_close(stream: &TcpStream) {
    // Fails only on a socket that is gone already.
    let _ = setsockopt(stream, sockopt::Linger, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// One direction, to its end; `ended` says whether the other has come to its own.
async fn direction(
    from: &TcpStream,
    to: &TcpStream,
    pipes: &Pipes,
    moved: &AtomicU64,
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut turn = 0;
    loop {
        from.readable().await?;
        let pipe = match pipes.take() {
            Ok(pipe) => pipe,
            // Out of descriptors: a buffer does as well, if slower.
            Err(_) => return copy(from, to, moved, ended).await,
        };
        loop {
            match from.try_io(Interest::READABLE, || transfer(from, &pipe.write, limits::PIPE_BYTES)) {
                Ok(0) => {
                    pipes.put(pipe);
                    return end_unless_last(to, ended);
                }
                Ok(arrived) => {
                    drain(&pipe, to, arrived).await?;
                    moved.fetch_add(arrived as u64, Ordering::Relaxed);
                    turn += arrived;
                    if turn >= limits::TUNNEL_TURN_BYTES {
                        turn = 0;
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Nothing is in the pipe: the socket's protocol does not splice (a kernel TLS or MPTCP socket).
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => return copy(from, to, moved, ended).await,
                Err(error) => return Err(error),
            }
        }
        pipes.put(pipe);
    }
}

/// Empties the pipe into the socket.
async fn drain(pipe: &Pipe, to: &TcpStream, mut left: usize) -> io::Result<()> {
    while left > 0 {
        match to.try_io(Interest::WRITABLE, || transfer(&pipe.read, to, left)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(gone) => left -= gone.min(left),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn transfer(from: impl std::os::fd::AsFd, to: impl std::os::fd::AsFd, most: usize) -> io::Result<usize> {
    loop {
        match splice(&from, None, &to, None, most, SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK) {
            Err(Errno::EINTR) => {}
            outcome => return outcome.map_err(Into::into),
        }
    }
}

async fn copy(from: &TcpStream, to: &TcpStream, moved: &AtomicU64, ended: &AtomicBool) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut buffer = vec![0; limits::COPY_BYTES];
        match from.try_read(&mut buffer) {
            Ok(0) => return end_unless_last(to, ended),
            Ok(arrived) => {
                write_all(to, &buffer[..arrived]).await?;
                moved.fetch_add(arrived as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Writes everything, through a shared reference.
pub(super) async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(gone) => bytes = &bytes[gone..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn end_unless_last(to: &TcpStream, ended: &AtomicBool) -> io::Result<()> {
    if ended.swap(true, Ordering::Relaxed) { Ok(()) } else { end(to) }
}

/// Passes the end of a stream on, leaving the other direction open.
pub(super) fn end(to: &TcpStream) -> io::Result<()> {
    match nix::sys::socket::shutdown(std::os::fd::AsRawFd::as_raw_fd(to), nix::sys::socket::Shutdown::Write) {
        // The peer has gone entirely, which the other direction will find out.
        Ok(()) | Err(Errno::ENOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
