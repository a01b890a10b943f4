//! A throw-away child process: what would change the caller for good (namespaces, identity) is tried there instead.

use std::fs::File;
use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::errno::Errno;
use nix::libc;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, pipe};

/// An answer is a line or two of text; more is a fault of the caller.
const ANSWER_LIMIT: u64 = 64 * 1024;

/// First byte of what the child writes: `act` returned, or panicked.
const RETURNED: u8 = b'r';
const PANICKED: u8 = b'p';

/// Runs `act` in a forked child and returns what it returned there. The child ends without unwinding into the caller
/// and without running its destructors or exit handlers.
///
/// Meant for a process with one thread: in the child of a larger one only the calling thread goes on, so `act` must
/// not need a lock that another thread may have held.
///
/// # Errors
/// What pipe(2), fork(2) or waitpid(2) answered, or that the child was ended by a signal or panicked.
pub fn run(act: impl FnOnce() -> Vec<u8>) -> io::Result<Vec<u8>> {
    let (reader, writer) = pipe()?;
    // SAFETY: the child runs `act` and leaves by `_exit`; it never returns into code that other threads of the parent
    // were running. glibc's allocator is usable after fork in the child of a threaded process (it takes its own locks
    // around fork); the requirement on every other lock is passed on to the caller above.
    match unsafe { fork()? } {
        ForkResult::Child => {
            drop(reader);
            let answer = match catch_unwind(AssertUnwindSafe(act)) {
                Ok(bytes) => [&[RETURNED], bytes.as_slice()].concat(),
                Err(panic) => {
                    let text = panic
                        .downcast_ref::<String>()
                        .map(String::as_str)
                        .or_else(|| panic.downcast_ref::<&str>().copied())
                        .unwrap_or("no message");
                    [&[PANICKED], text.as_bytes()].concat()
                }
            };
            // A parent that is gone has no use for the answer.
            let _ = File::from(writer).write_all(&answer);
            // SAFETY: _exit(2) has no preconditions.
            unsafe { libc::_exit(0) }
        }
        ForkResult::Parent { child } => {
            drop(writer);
            let mut answer = Vec::new();
            let read = File::from(reader).take(ANSWER_LIMIT).read_to_end(&mut answer);
            let status = loop {
                match waitpid(child, None) {
                    Err(Errno::EINTR) => {}
                    other => break other?,
                }
            };
            read?;
            match (answer.split_first(), status) {
                (Some((&RETURNED, bytes)), WaitStatus::Exited(_, 0)) => Ok(bytes.to_vec()),
                (Some((&PANICKED, text)), _) => {
                    Err(io::Error::other(format!("the child panicked: {}", String::from_utf8_lossy(text))))
                }
                (_, status) => Err(io::Error::other(format!("the child did not answer: {status:?}"))),
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::{FromRawFd, OwnedFd, RawFd};

    use super::*;

    /// Takes over a descriptor that SCM_RIGHTS brought.
    pub(crate) fn adopt(fd: RawFd) -> OwnedFd {
        // SAFETY: the kernel made this descriptor for the receiver of the message, which calls this once.
        unsafe { OwnedFd::from_raw_fd(fd) }
    }

    #[test]
    fn answers_and_panics_come_back() {
        assert_eq!(run(|| b"hello".to_vec()).unwrap(), b"hello");
        let error = run(|| panic!("on purpose {}", 7)).unwrap_err();
        assert!(error.to_string().contains("on purpose 7"), "{error}");
        let error = run(|| std::process::abort()).unwrap_err();
        assert!(error.to_string().contains("SIGABRT"), "{error}");
    }
}
