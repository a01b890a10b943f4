//! The small files of a process's directory in procfs: their names, and what is in them.

use std::fmt::{self, Write as _};
use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::sys::uio::pread;
use nix::unistd::read;

/// Longer than the first nine fields of /proc/PID/stat can be: the name in it has at most 64 bytes with its escapes.
const STAT: usize = 256;

/// `PF_KTHREAD`, in the flags of /proc/PID/stat.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// `PF_FORKNOEXEC`, in the same place: set by fork(2), cleared by execve(2) (include/linux/sched.h, `begin_new_exec`).
const FORKED_ONLY: u64 = 0x40;

/// What is read of a `stat` (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug)]
pub(super) struct Status {
    /// As one letter.
    pub state: u8,
    pub parent: u32,
    flags: u64,
}

impl Status {
    pub(super) fn read(stat: &OwnedFd) -> io::Result<Self> {
        let mut buffer = [0; STAT];
        let count = pread(stat, &mut buffer, 0)?;
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "malformed stat");
        // The name may hold spaces and parentheses of its own: the last one ends it, since what follows are letters and
        // numbers only.
        let end = buffer[..count].iter().rposition(|byte| *byte == b')').ok_or_else(malformed)?;
        let mut fields = buffer[end + 1..count].split(|byte| *byte == b' ').filter(|field| !field.is_empty());
        let state = fields.next().and_then(|field| field.first().copied()).ok_or_else(malformed)?;
        let parent = fields.next().and_then(decimal).ok_or_else(malformed)?;
        // Group, session, terminal and its foreground group come between.
        let flags = fields.nth(4).and_then(decimal).ok_or_else(malformed)?;
        Ok(Self { state, parent: u32::try_from(parent).map_err(|_| malformed())?, flags })
    }

    pub(super) fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// Whether it has executed nothing since it was forked, and so still runs what its parent ran at that time.
    pub(super) fn is_forked_only(&self) -> bool {
        self.flags & FORKED_ONLY != 0
    }
}

pub(super) fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

pub(super) fn read_only(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty())?)
}

pub(super) fn read_only_directory(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Appends all of a small procfs file to `into`. Nothing less than an empty read ends one.
pub(super) fn read_all(file: &OwnedFd, into: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; 4096];
    loop {
        match read(file, &mut piece)? {
            0 => return Ok(()),
            count => into.extend_from_slice(&piece[..count]),
        }
    }
}

/// A short name on the stack: these are made once a descriptor.
pub(super) struct Name {
    bytes: [u8; 40],
    length: usize,
}

impl Name {
    /// `text`, which must fit: the longest is `task/4294967295/children`.
    pub(super) fn new(text: fmt::Arguments<'_>) -> Self {
        let mut name = Self { bytes: [0; 40], length: 0 };
        // Writing fails only where the text does not fit, and leaves a name that no directory has.
        if name.write_fmt(text).is_err() {
            name.length = 0;
        }
        name
    }

    pub(super) fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..self.length]).unwrap_or("")
    }
}

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.bytes.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
