//! Descriptors of ours in tokio's reactor.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::unix::AsyncFd;

/// Registers a descriptor for readiness; its file must be non-blocking to be read by it. Call in a tokio runtime.
///
/// # Errors
///
/// The reactor's epoll refuses it (epoll_ctl(2)).
pub fn register(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: An `OwnedFd` is open for as long as it lives, the `AsyncFd` owns it, and it names one descriptor always.
    unsafe { AsyncFd::register(descriptor) }.map_err(io::Error::from)
}
