//! What tests need of unsafe code.
//!
//! First, it lets the unit-test executable be its own `launch` process, as the product's executable is: what is run again is
//! `/proc/self/exe`, and in a unit test that is the test harness. An entry in `.init_array` runs before `main`, sees
//! the arguments of the hidden role, and never lets the harness start.

use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::os::raw::{c_char, c_int};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use nix::errno::Errno;
use nix::libc;

/// Makes this executable a supervisor and nothing else: with it comes the path of its orders.
pub(crate) const SUPERVISE: &CStr = c"supervise-in-tests";

extern "C" fn launch_before_main(argc: c_int, argv: *const *const c_char, _environment: *const *const c_char) {
    if argc < 2 || argv.is_null() {
        return;
    }
    // SAFETY: the C library passes `argc` valid strings, two or more.
    let argument = |index: usize| unsafe { CStr::from_ptr(*argv.add(index)) };
    if argc == 2 && argument(1) == crate::workload::launch::ROLE && crate::role::launch::was_spawned() {
        super::process::exit_now(crate::role::launch::main());
    }
    if argc == 3 && argument(1) == SUPERVISE {
        super::process::exit_now(crate::workload::tests::supervise_orders_in(argument(2)));
    }
}

#[used]
// SAFETY: `.init_array` holds pointers to functions of this signature, which glibc calls with main's arguments.
#[unsafe(link_section = ".init_array")]
static LAUNCH_BEFORE_MAIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = launch_before_main;

/// Makes a system call with plain numbers. For calls that are refused, or whose pointers are null or wrong on purpose;
/// in a forked child, so that whatever happens happens there.
pub(crate) fn call(number: libc::c_long, arguments: [usize; 6]) -> Result<libc::c_long, Errno> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: null and bogus pointers make the kernel answer EFAULT; no test passes one to memory of ours that the
    // kernel would write beyond its size.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, e, f) })
}

/// Runs `command` as the leader of a session of its own on `terminal`.
pub(crate) fn spawn_on(terminal: &OwnedFd, mut command: Command) -> std::io::Result<Child> {
    command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal.try_clone()?);
    let take_it = || {
        nix::unistd::setsid()?;
        // SAFETY: TIOCSCTTY takes a number.
        Errno::result(unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) })?;
        Ok(())
    };
    // SAFETY: two system calls and no allocation between fork and exec.
    unsafe { command.pre_exec(take_it) }.spawn()
}
