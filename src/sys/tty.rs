//! Terminals of our own making (pty(7), ioctl_tty(2)).

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::libc;
use nix::pty::Winsize;

/// Standard input, output and error, without the buffers that [`std::io::stdin`] and its like make for them.
#[must_use]
pub fn standard_streams() -> [BorrowedFd<'static>; 3] {
    // SAFETY: nothing here owns these three, so nothing closes them behind the borrower; where one was closed from the start,
    // the kernel answers EBADF.
    [0, 1, 2].map(|number| unsafe { BorrowedFd::borrow_raw(number) })
}

/// Opens a new terminal of the devpts that `/dev/ptmx` leads to, unlocked: its master side, and its own.
///
/// # Errors
/// `ENOENT` where there is no `/dev/ptmx`; `ENOSPC` when there are too many terminals; before Linux 4.13 `EINVAL`.
pub fn open_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = (OFlag::O_NOCTTY | OFlag::O_CLOEXEC).bits();
    let master = File::options().read(true).write(true).custom_flags(flags).open("/dev/ptmx")?;
    let unlocked: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads one int from the pointer, which is valid for the call.
    Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &raw const unlocked) })?;
    let flags = (OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).bits();
    // SAFETY: TIOCGPTPEER takes flags as a number, and opens the other side without a path: it is the right one in every
    // view of the file system.
    let own = Errno::result(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags) })?;
    // SAFETY: the kernel has just made this descriptor for us, and nobody else owns it.
    Ok((master.into(), unsafe { OwnedFd::from_raw_fd(own) }))
}

/// Sets a terminal's size; programs in its foreground are told by SIGWINCH.
///
/// # Errors
/// `ENOTTY` for what is no terminal.
pub fn set_size(terminal: BorrowedFd<'_>, size: &Winsize) -> io::Result<()> {
    // SAFETY: TIOCSWINSZ reads one `winsize` from the pointer, which is valid for the call.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, std::ptr::from_ref(size)) })?;
    Ok(())
}

/// A terminal's size.
///
/// # Errors
/// `ENOTTY` for what is no terminal.
pub fn size(terminal: BorrowedFd<'_>) -> io::Result<Winsize> {
    let mut size = Winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCGWINSZ fills one `winsize`, which outlives the call.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) })?;
    Ok(size)
}

/// Makes the terminal that of the caller's session, which the caller leads.
///
/// # Errors
/// `EPERM` for who leads no session, or has a terminal already.
pub fn control(terminal: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: TIOCSCTTY takes a number.
    Errno::result(unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSCTTY, 0) })?;
    Ok(())
}
