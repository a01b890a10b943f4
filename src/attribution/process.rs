//! One process of the sandbox, by a descriptor of its directory in procfs: whatever is read through it is read of that
//! process or fails, however its number is used again.

use std::fmt::{self, Write as _};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::sys::uio::pread;
use nix::unistd::read;

use crate::sys::procfs::{Gone as _, numbers, read_link};

/// Buffer for directory entries: some three hundred descriptors a call.
const ENTRIES: usize = 8 * 1024;

/// Longer than any `socket:[N]`; what does not fit is no socket.
const SOCKET_LINK: usize = 64;

/// Longer than the first nine fields of /proc/PID/stat can be: the name in it has at most 64 bytes with its escapes.
const STAT: usize = 256;

/// `PF_KTHREAD`, in the flags of /proc/PID/stat.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Longer than three numbers of 64 bits.
const SCHEDSTAT: usize = 80;

/// Sockets that the memory of one process holds; one with more is read again every time.
const SOCKETS_REMEMBERED: usize = 1024;

/// Threads that the memory of one process holds; one with more is read again every time.
const THREADS_REMEMBERED: usize = 128;

/// Link count of a `task` directory with one thread: its own two and the thread's.
const ONE_THREAD: u64 = 3;

/// A file as identity sees it. Nobody can set `changed` (ctime), so that an unchanged fingerprint is an unchanged file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Fingerprint {
    device: u64,
    inode: u64,
    pub size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Fingerprint {
    pub(super) fn of(stat: &FileStat) -> Self {
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec),
            changed: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Whether it is the same file, changed or not.
    pub(super) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

/// What a process executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image<'b> {
    /// As the link `exe` shows it.
    pub path: &'b [u8],
    pub fingerprint: Fingerprint,
}

/// How often a thread has run. Two equal samples of one that slept at the first mean that it was never scheduled in
/// between (`sched_info_arrive` in the kernel counts before it gets to run), so that it cannot have opened, received or
/// inherited a descriptor; and nobody can open one in it without its running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    run_time: u64,
    timeslices: u64,
}

/// What a sleeping process held.
#[derive(Debug)]
struct Dormant {
    sample: Sample,
    /// Its further threads, sorted. Where there are none, none can come without the first one running.
    threads: Box<[(u32, Sample)]>,
    /// Inodes of its sockets, sorted; `None` where they were not read.
    sockets: Option<Box<[u64]>>,
}

/// What the memory of a process knows about a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recall {
    /// It has slept since it was read, and did not have the socket.
    Lacks,
    /// It has slept since the last look, which did not read its sockets.
    Sleeps,
    /// It must be read.
    Unknown,
}

#[derive(Debug)]
pub(super) struct Process {
    pub pid: u32,
    directory: OwnedFd,
    schedstat: Option<OwnedFd>,
    stat: OnceLock<OwnedFd>,
    /// Descriptor at which it last held a socket that was asked for.
    hint: AtomicU32,
    dormant: Mutex<Option<Dormant>>,
}

impl Process {
    /// Opens process `pid` of the procfs directory `proc`.
    pub(super) fn open(proc: BorrowedFd<'_>, pid: u32) -> io::Result<Self> {
        let name = Name::new(format_args!("{pid}"));
        let directory =
            openat(proc, name.as_str(), OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        // Kernels without scheduler statistics do not have the file; then nothing is remembered.
        let schedstat = read_only(&directory, "schedstat").ok();
        Ok(Self {
            pid,
            directory,
            schedstat,
            stat: OnceLock::new(),
            hint: AtomicU32::new(0),
            dormant: Mutex::new(None),
        })
    }

    /// Whether the process is still there.
    pub(super) fn is_alive(&self) -> bool {
        match &self.schedstat {
            Some(schedstat) => pread(schedstat, &mut [0; SCHEDSTAT], 0).is_ok(),
            None => fstatat(&self.directory, "stat", AtFlags::empty()).is_ok(),
        }
    }

    /// The user it runs as; root for one that hides from others (`PR_SET_DUMPABLE`).
    pub(super) fn uid(&self) -> io::Result<u32> {
        Ok(fstat(&self.directory)?.st_uid)
    }

    /// What it executes now. Path and fingerprint are read one after the other: compare both with what is known, and
    /// read again before learning anything new.
    pub(super) fn image<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Image<'b>> {
        let path = read_link(self.directory.as_fd(), "exe", buffer)?;
        let fingerprint = Fingerprint::of(&fstatat(&self.directory, "exe", AtFlags::empty())?);
        Ok(Image { path, fingerprint })
    }

    /// Opens the executable itself, whatever its path leads to by now.
    pub(super) fn executable(&self) -> io::Result<OwnedFd> {
        read_only(&self.directory, "exe")
    }

    /// The process that it reports its end to; 0 for none within the procfs.
    pub(super) fn parent(&self) -> io::Result<u32> {
        Ok(self.status()?.parent)
    }

    /// Whether it is a thread of the kernel, which has neither an executable nor descriptors, and whose directory is
    /// closed to ordinary users like any of root's.
    pub(super) fn is_kernel_thread(&self) -> bool {
        self.status().is_ok_and(|status| status.flags & KERNEL_THREAD != 0)
    }

    fn status(&self) -> io::Result<Status> {
        let stat = match self.stat.get() {
            Some(stat) => stat,
            None => {
                let opened = read_only(&self.directory, "stat")?;
                self.stat.get_or_init(|| opened)
            }
        };
        Status::read(stat)
    }

    fn sample(&self) -> io::Result<Option<Sample>> {
        self.schedstat.as_ref().map_or(Ok(None), Sample::read)
    }

    /// Samples of all threads but the first, sorted by their numbers; `None` where they cannot be told or are too many.
    fn thread_samples(&self) -> io::Result<Option<Vec<(u32, Sample)>>> {
        let mut threads = self.threads()?;
        threads.retain(|thread| *thread != self.pid);
        if threads.len() > THREADS_REMEMBERED {
            return Ok(None);
        }
        threads.sort_unstable();
        let mut samples = Vec::with_capacity(threads.len());
        for thread in threads {
            let name = Name::new(format_args!("task/{thread}/schedstat"));
            let Some(sample) = Sample::read(&read_only(&self.directory, name.as_str())?)? else { return Ok(None) };
            samples.push((thread, sample));
        }
        Ok(Some(samples))
    }

    /// What is remembered about `inode`.
    pub(super) fn recall(&self, inode: u64) -> io::Result<Recall> {
        let sample = self.sample()?;
        let dormant = self.dormant.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(dormant) = dormant.as_ref().filter(|dormant| sample == Some(dormant.sample)) else {
            return Ok(Recall::Unknown);
        };
        // A thread that ends while it is read has run.
        if !dormant.threads.is_empty()
            && self.thread_samples().ok().flatten().is_none_or(|threads| *threads != *dormant.threads)
        {
            return Ok(Recall::Unknown);
        }
        Ok(match &dormant.sockets {
            Some(sockets) if sockets.binary_search(&inode).is_err() => Recall::Lacks,
            Some(_) => Recall::Unknown,
            None => Recall::Sleeps,
        })
    }

    /// Remembers that it was seen, without its sockets, so that the next look can tell whether it sleeps.
    pub(super) fn note_visit(&self) -> io::Result<()> {
        let sample = self.sample()?;
        let threads = if self.has_threads()? { self.thread_samples().ok().flatten() } else { Some(Vec::new()) };
        let mut dormant = self.dormant.lock().unwrap_or_else(PoisonError::into_inner);
        let still = |dormant: &Dormant| {
            Some(dormant.sample) == sample && threads.as_ref().is_some_and(|threads| **threads == *dormant.threads)
        };
        if !dormant.as_ref().is_some_and(still) {
            *dormant =
                sample.zip(threads).map(|(sample, threads)| Dormant { sample, threads: threads.into(), sockets: None });
        }
        Ok(())
    }

    /// Reads every descriptor of every thread and says whether the socket is among them. Remembers the answer if the
    /// process slept all the while.
    pub(super) fn examine(&self, inode: u64) -> io::Result<bool> {
        let before = self.sample()?;
        let has_threads = self.has_threads()?;
        let threads_before = if has_threads { self.thread_samples().ok().flatten() } else { Some(Vec::new()) };
        let asleep = self.is_asleep(threads_before.as_deref().unwrap_or(&[]));
        let mut sockets = Vec::new();
        self.sockets_of("fd", &mut sockets)?;
        if has_threads {
            self.each_thread(|directory| self.sockets_of(directory, &mut sockets))?;
        }
        sockets.sort_unstable();
        sockets.dedup();
        let holds = sockets.binary_search(&inode).is_ok();
        // What slept at one moment between two equal samples slept throughout, and until it is scheduled again.
        let after = self.sample()?;
        let threads_after = if has_threads { self.thread_samples().ok().flatten() } else { Some(Vec::new()) };
        let settled =
            asleep && before == after && threads_before == threads_after && sockets.len() <= SOCKETS_REMEMBERED;
        *self.dormant.lock().unwrap_or_else(PoisonError::into_inner) = after
            .zip(threads_after)
            .filter(|_| settled)
            .map(|(sample, threads)| Dormant { sample, threads: threads.into(), sockets: Some(sockets.into()) });
        Ok(holds)
    }

    /// Whether the first thread and all of `threads` sleep, are stopped or have ended.
    fn is_asleep(&self, threads: &[(u32, Sample)]) -> bool {
        let sleeps = |state: u8| matches!(state, b'S' | b'D' | b'I' | b'T' | b't' | b'Z');
        self.status().is_ok_and(|status| sleeps(status.state))
            && threads.iter().all(|(thread, _)| {
                read_only(&self.directory, Name::new(format_args!("task/{thread}/stat")).as_str())
                    .and_then(|stat| Status::read(&stat))
                    .is_ok_and(|status| sleeps(status.state))
            })
    }

    /// The descriptor of the socket, if it is where it is likely to be: where the last one was, or among the `reach`
    /// newest of all.
    pub(super) fn guess(&self, inode: u64, reach: u32) -> io::Result<Option<u32>> {
        let hint = self.hint.load(Ordering::Relaxed);
        if self.holds_at(hint, inode)? {
            return Ok(Some(hint));
        }
        // Since Linux 6.2 the size of the directory is the number of descriptors, and the lowest free number is taken.
        let count = u32::try_from(fstatat(&self.directory, "fd", AtFlags::empty())?.st_size).unwrap_or(0);
        for descriptor in (count.saturating_sub(reach)..count).rev().filter(|descriptor| *descriptor != hint) {
            if self.holds_at(descriptor, inode)? {
                self.hint.store(descriptor, Ordering::Relaxed);
                return Ok(Some(descriptor));
            }
        }
        Ok(None)
    }

    /// Whether descriptor `descriptor` of the first thread is the socket.
    pub(super) fn holds_at(&self, descriptor: u32, inode: u64) -> io::Result<bool> {
        let name = Name::new(format_args!("fd/{descriptor}"));
        Ok(socket(self.directory.as_fd(), name.as_str())? == Some(inode))
    }

    /// Looks for the socket among the descriptors of the first thread, newest first.
    pub(super) fn find(&self, inode: u64) -> io::Result<Option<u32>> {
        let directory = read_only_directory(&self.directory, "fd")?;
        let mut descriptors = Vec::with_capacity(128);
        numbers(directory.as_fd(), &mut [0; ENTRIES], |number| descriptors.push(number))?;
        descriptors.sort_unstable();
        for descriptor in descriptors.into_iter().rev() {
            if socket(directory.as_fd(), Name::new(format_args!("{descriptor}")).as_str())? == Some(inode) {
                self.hint.store(descriptor, Ordering::Relaxed);
                return Ok(Some(descriptor));
            }
        }
        Ok(None)
    }

    /// Whether it has threads besides the first.
    pub(super) fn has_threads(&self) -> io::Result<bool> {
        Ok(fstatat(&self.directory, "task", AtFlags::empty())?.st_nlink > ONE_THREAD)
    }

    /// Gives `each` the name of every further thread's descriptor directory: threads may have tables of their own
    /// (`unshare(CLONE_FILES)` needs no privilege).
    fn each_thread(&self, mut each: impl FnMut(&str) -> io::Result<()>) -> io::Result<()> {
        for thread in self.threads()? {
            if thread != self.pid {
                match each(Name::new(format_args!("task/{thread}/fd")).as_str()) {
                    Err(error) if !error.is_gone() => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn threads(&self) -> io::Result<Vec<u32>> {
        let directory = read_only_directory(&self.directory, "task")?;
        let mut threads = Vec::new();
        numbers(directory.as_fd(), &mut [0; ENTRIES], |thread| threads.push(thread))?;
        Ok(threads)
    }

    /// Adds its children to `into`, those of every thread.
    pub(super) fn children(&self, into: &mut Vec<u32>) -> io::Result<()> {
        let threads = if self.has_threads()? { self.threads()? } else { vec![self.pid] };
        let mut text = Vec::new();
        for thread in threads {
            let name = Name::new(format_args!("task/{thread}/children"));
            match read_only(&self.directory, name.as_str()).and_then(|file| read_all(&file, &mut text)) {
                Err(error) if thread == self.pid || !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        into.extend(text.split(|byte| *byte == b' ').filter_map(decimal).filter_map(|pid| u32::try_from(pid).ok()));
        Ok(())
    }

    fn sockets_of(&self, table: &str, into: &mut Vec<u64>) -> io::Result<()> {
        let directory = match read_only_directory(&self.directory, table) {
            Ok(directory) => directory,
            // Ended: it holds nothing any more.
            Err(error) if error.is_gone() => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut descriptors = Vec::with_capacity(128);
        match numbers(directory.as_fd(), &mut [0; ENTRIES], |number| descriptors.push(number)) {
            Err(error) if !error.is_gone() => return Err(error),
            _ => {}
        }
        for descriptor in descriptors {
            into.extend(socket(directory.as_fd(), Name::new(format_args!("{descriptor}")).as_str())?);
        }
        Ok(())
    }
}

impl Sample {
    /// Reads a `schedstat`; `None` where the kernel keeps no statistics.
    fn read(schedstat: &OwnedFd) -> io::Result<Option<Self>> {
        let mut buffer = [0; SCHEDSTAT];
        let count = pread(schedstat, &mut buffer, 0)?;
        let mut fields = buffer[..count].split(|byte| byte.is_ascii_whitespace()).map(decimal);
        let (run_time, timeslices) = (fields.next().flatten(), fields.nth(1).flatten());
        // What never had a time slice could not be here: statistics are switched off.
        Ok(run_time
            .zip(timeslices)
            .filter(|(_, timeslices)| *timeslices > 0)
            .map(|(run_time, timeslices)| Self { run_time, timeslices }))
    }
}

/// What is read of a `stat` (proc_pid_stat(5)).
#[derive(Clone, Copy, Debug)]
struct Status {
    state: u8,
    parent: u32,
    flags: u64,
}

impl Status {
    fn read(stat: &OwnedFd) -> io::Result<Self> {
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
}

/// Inode of the socket that the descriptor link `name` leads to; `None` for all else, and for what is closed by now.
fn socket(directory: BorrowedFd<'_>, name: &str) -> io::Result<Option<u64>> {
    let mut buffer = [0; SOCKET_LINK];
    match read_link(directory, name, &mut buffer) {
        // A path starts with a slash, so that no file can pass for a socket.
        Ok(link) => Ok(link.strip_prefix(b"socket:[").and_then(|rest| rest.strip_suffix(b"]")).and_then(decimal)),
        Err(error) if error.is_gone() || error.raw_os_error() == Some(nix::libc::ENAMETOOLONG) => Ok(None),
        Err(error) => Err(error),
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn read_only(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty())?)
}

fn read_only_directory(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    Ok(openat(directory, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Appends all of a small procfs file to `into`. Nothing less than an empty read ends one.
fn read_all(file: &OwnedFd, into: &mut Vec<u8>) -> io::Result<()> {
    let mut piece = [0; 4096];
    loop {
        match read(file, &mut piece)? {
            0 => return Ok(()),
            count => into.extend_from_slice(&piece[..count]),
        }
    }
}

/// A short name on the stack: these are made once a descriptor.
struct Name {
    bytes: [u8; 40],
    length: usize,
}

impl Name {
    /// `text`, which must fit: the longest is `task/4294967295/children`.
    fn new(text: fmt::Arguments<'_>) -> Self {
        let mut name = Self { bytes: [0; 40], length: 0 };
        // Writing fails only where the text does not fit, and leaves a name that no directory has.
        if name.write_fmt(text).is_err() {
            name.length = 0;
        }
        name
    }

    fn as_str(&self) -> &str {
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
