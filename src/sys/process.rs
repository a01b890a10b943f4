//! Process primitives that the standard library and nix leave out or mark unsafe.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use nix::unistd::{ForkResult, Pid};

/// What a fork returned.
#[derive(Debug)]
pub enum Side {
    /// In the caller: the child.
    Parent(Pid),
    /// In the child.
    Child,
}

/// fork(2). The child has the one thread that called. It may allocate, because glibc repairs its allocator in a forked
/// child, but a lock that another thread held stays locked for ever: product code calls this while single-threaded
/// (the `launch` process), tests while they touch no lock of the standard library in the child.
///
/// # Errors
/// What fork(2) answered; `EAGAIN` at a limit of processes.
pub fn fork() -> io::Result<Side> {
    // SAFETY: the contract above is what `fork` demands of its callers; memory of the child is a private copy.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { child } => Ok(Side::Parent(child)),
        ForkResult::Child => Ok(Side::Child),
    }
}

/// Forks a *sibling*: a child of the caller's parent, which is told of its end as it is of the caller's own
/// (`CLONE_PARENT`, clone(2)). After `unshare(CLONE_NEWPID)` the sibling is the init of the new PID namespace. The
/// caller is given a pidfd beside the pid. For a single-threaded caller that then exits.
///
/// # Errors
/// What clone(2) answered; `EINVAL` when the caller is itself the init of a PID namespace.
pub fn fork_sibling() -> io::Result<(Side, Option<OwnedFd>)> {
    let mut pidfd: RawFd = -1;
    let flags = (libc::CLONE_PARENT | libc::CLONE_PIDFD) as libc::c_ulong;
    // SAFETY: without CLONE_VM and with a null stack, clone behaves as fork does: the child continues here on a
    // private copy of this stack. `pidfd` outlives the call; the two arguments whose order differs by architecture
    // are null.
    let pid = unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, &raw mut pidfd, 0_usize, 0_usize) };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok((Side::Child, None)),
        pid => {
            // SAFETY: the kernel has just opened this descriptor for us and nothing else owns it.
            let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
            Ok((Side::Parent(Pid::from_raw(pid as libc::pid_t)), Some(pidfd)))
        }
    }
}

/// Ends the calling process at once, without destructors or exit handlers: how a forked child leaves.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: _exit has no preconditions.
    unsafe { libc::_exit(i32::from(code)) }
}

/// pidfd_open(2): a descriptor that is readable once the process has ended, and that never names another one.
///
/// # Errors
/// `ESRCH` when there is no such process.
pub fn pidfd_open(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed. The returned descriptor is new and close-on-exec.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above, we are the only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// The process that connected a Unix socket, or listened on it, as a pidfd: unlike the number of SO_PEERCRED it names no
/// other process once that one has ended (`SO_PEERPIDFD`, Linux 6.5).
///
/// # Errors
/// `ENOPROTOOPT` on older kernels; `ESRCH`, `EINVAL` or `ENODATA` when the process is gone.
fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// asm-generic/socket.h.
    const SO_PEERPIDFD: libc::c_int = 77;
    let mut fd: RawFd = -1;
    let mut length = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the option's value is one int, which `fd` has room for, and both outlive the call.
    let answer = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, (&raw mut fd).cast(), &raw mut length)
    };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, close-on-exec, and we are its only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// A process at the other end of a Unix socket. Its number is nobody else's for as long as [`Held::is_alive`] says so.
#[derive(Debug)]
pub struct Held {
    /// Its number, as this process sees it.
    pub pid: u32,
    pidfd: OwnedFd,
}

impl Held {
    /// Who connected, or listens, by the number that SO_PEERCRED gave for it.
    ///
    /// # Errors
    /// As [`peer_pidfd`] and [`pidfd_open`].
    pub fn peer(socket: BorrowedFd<'_>, pid: u32) -> io::Result<Self> {
        let pidfd = match peer_pidfd(socket) {
            // Before Linux 6.5 there is the number alone.
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                pidfd_open(Pid::from_raw(pid.cast_signed()))
            }
            held => held,
        }?;
        Ok(Self { pid, pidfd })
    }

    /// Whether it has not ended yet.
    ///
    /// # Errors
    /// What poll(2) answered.
    pub fn is_alive(&self) -> io::Result<bool> {
        let mut waiting = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        Ok(poll(&mut waiting, PollTimeout::ZERO)? == 0)
    }
}

/// pidfd_send_signal(2).
///
/// # Errors
/// `ESRCH` when the process has been reaped, `EPERM` when it may not be signalled.
pub fn pidfd_send_signal(pidfd: BorrowedFd<'_>, signal: Signal) -> io::Result<()> {
    // SAFETY: a null siginfo is allowed and means what kill(2) would send.
    let answer =
        unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal as libc::c_int, 0_usize, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Takes ownership of an inherited descriptor whose number is part of a protocol, as `launch` does of 3 and 4, after
/// checking that it is open. Sets close-on-exec.
///
/// # Errors
/// `EBADF` when it is not open.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl on a number that may or may not be a descriptor only reads or sets a flag of it.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and by the protocol of the caller nobody else in this process owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Marks every descriptor from `first` on as close-on-exec (close_range(2)), for whoever execs next.
///
/// # Errors
/// `ENOSYS` before Linux 5.9, `EINVAL` before 5.11.
pub fn close_on_exec_from(first: RawFd) -> io::Result<()> {
    // SAFETY: no memory is passed; descriptors stay open, only their flag changes.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Closes every descriptor from `first` on. Only for a process that has just started and owns none of them yet.
///
/// # Errors
/// As [`close_on_exec_from`].
pub fn close_from(first: RawFd) -> io::Result<()> {
    // SAFETY: by the contract above no owner of such a descriptor exists in this process.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The same, but for one of them, which is `kept`.
///
/// # Errors
/// As [`close_on_exec_from`].
pub fn close_from_but(first: RawFd, kept: BorrowedFd<'_>) -> io::Result<()> {
    let kept = kept.as_raw_fd();
    if kept > first {
        // SAFETY: by the contract above no owner of such a descriptor exists in this process.
        let answer = unsafe { libc::syscall(libc::SYS_close_range, first, kept - 1, 0) };
        if answer < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    close_from(first.max(kept + 1))
}

/// Gives every signal its default disposition, which execve(2) keeps, whereas it keeps an ignored one ignored: the
/// Rust runtime ignores SIGPIPE, a supervisor started by `nohup` SIGHUP, and posix_spawn(3) leaves the two signals that
/// the C library keeps for itself ignored, which sigaction(3) refuses to touch.
pub fn default_dispositions() {
    /// `struct sigaction` as the kernel has it on every 64-bit machine: handler, flags, restorer, mask of 64 signals.
    /// All zero is SIG_DFL.
    const DEFAULT: [u64; 4] = [0; 4];
    const MASK_BYTES: usize = 8;
    for signal in 1..=64 {
        // SAFETY: the kernel reads 32 bytes of DEFAULT and writes nothing; SIG_DFL installs no handler. KILL and STOP
        // answer EINVAL and are always at their default.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, DEFAULT.as_ptr(), 0_usize, MASK_BYTES) };
    }
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It exited with this code.
    Exited(u8),
    /// This signal ended it; a plain number, since realtime signals have no names.
    Signaled(i32),
}

/// Collects one child that has ended, if there is one (waitpid(2)).
///
/// # Errors
/// `ECHILD` when there are no children at all.
pub fn reap() -> io::Result<Option<(Pid, End)>> {
    let mut status = 0;
    // SAFETY: `status` outlives the call, which writes an int to it.
    match unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) } {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(None),
        pid => {
            let end = if libc::WIFSIGNALED(status) {
                End::Signaled(libc::WTERMSIG(status))
            } else {
                End::Exited(libc::WEXITSTATUS(status) as u8)
            };
            Ok(Some((Pid::from_raw(pid), end)))
        }
    }
}

/// Collects children that have ended, until it meets `but` or there are none left that have.
pub fn reap_all_but(but: Pid) {
    loop {
        // SAFETY: zero is a valid siginfo_t, which waitid fills.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` outlives the call. A child is only looked at (WNOWAIT).
        if unsafe { libc::waitid(libc::P_ALL, 0, &raw mut info, flags) } != 0 {
            return;
        }
        // SAFETY: waitid has filled the fields of a SIGCHLD, or left the zero that means "none".
        let pid = unsafe { info.si_pid() };
        if pid == 0 || pid == but.as_raw() {
            return;
        }
        // SAFETY: a null status is allowed.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
    }
}

/// The Landlock ABI of the running kernel (landlock_create_ruleset(2) with `LANDLOCK_CREATE_RULESET_VERSION`).
///
/// # Errors
/// `ENOSYS`: not built in; `EOPNOTSUPP`: built in and not enabled at boot; `EPERM`: refused by an outer filter.
pub fn landlock_abi() -> Result<u32, Errno> {
    const LANDLOCK_CREATE_RULESET_VERSION: u32 = 1;
    // SAFETY: with a null attribute of size zero the call only returns a number.
    let abi =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, 0_usize, 0_usize, LANDLOCK_CREATE_RULESET_VERSION) };
    u32::try_from(abi).map_err(|_| Errno::last())
}

/// Ignores a signal, in the whole process.
pub fn ignore(signal: Signal) {
    let action = SigAction::new(SigHandler::SigIgn, SaFlags::empty(), SigSet::empty());
    // SAFETY: SIG_IGN installs no handler. Only KILL and STOP can answer an error, and nobody passes those.
    let _ = unsafe { sigaction(signal, &action) };
}
