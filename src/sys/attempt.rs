//! System calls that have no safe wrapper and that `doctor` makes only to see them refused.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use nix::libc;

/// `struct io_uring_params` is 120 bytes (io_uring_setup(2)); zeroes ask for nothing special.
const IO_URING_PARAMS: usize = 120;

/// Creates an io_uring instance of one entry.
///
/// # Errors
/// What io_uring_setup(2) answered.
pub fn io_uring_setup() -> io::Result<OwnedFd> {
    let mut parameters = [0_u64; IO_URING_PARAMS / 8];
    // SAFETY: `parameters` is a live, writable, sufficiently aligned buffer of the structure's size.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us, and nobody else knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Pushes a byte into the input of the terminal on standard input, as if it had been typed (TIOCSTI, ioctl_tty(2)).
///
/// # Errors
/// What ioctl(2) answered: `ENOTTY` where standard input is no terminal and nothing filters the call before.
pub fn push_terminal_input() -> io::Result<()> {
    let byte = b' ';
    // SAFETY: TIOCSTI reads one byte from the pointer, which is valid for the call.
    let result = unsafe { libc::ioctl(libc::STDIN_FILENO, libc::TIOCSTI, &raw const byte) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
