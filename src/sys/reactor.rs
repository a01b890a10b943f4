//! Descriptors that are no sockets of tokio's own, made awaitable.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers `fd` with the reactor of the current runtime, for reading and writing.
///
/// # Errors
/// What epoll_ctl(2) answered: `EPERM` where the descriptor cannot be waited for.
///
/// # Panics
/// Outside a tokio runtime with I/O enabled.
pub fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open, answers the same number for as long as it lives, and lives as long as the AsyncFd.
    unsafe { AsyncFd::register(fd) }.map_err(io::Error::from)
}
