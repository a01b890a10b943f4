//! One process of the sandbox, by a descriptor of its directory in procfs: whatever is read through it is read of that
//! process or fails, however its number is used again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};
use nix::sys::uio::pread;

use super::entry::{Name, Status, decimal, read_all, read_only, read_only_directory};
use super::table::{Table, socket_at};
use crate::sys::procfs::{Gone as _, numbers, read_link};

/// Buffer for directory entries: some three hundred threads a call.
const ENTRIES: usize = 8 * 1024;

/// Longer than the name of a process (`TASK_COMM_LEN`), and than those that the kernel gives its own threads.
const COMMAND: usize = 64;

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
/// inherited a descriptor. That nobody else can open one in its table rests on the workload's system call filter, which
/// refuses a process that shares its table with another (clone(2): `CLONE_FILES` without `CLONE_THREAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    run_time: u64,
    timeslices: u64,
}

/// What a sleeping process held.
#[derive(Debug)]
struct Dormant {
    sample: Sample,
    /// Its further threads, sorted, which do share its table. Where there are none, none can come without the first one
    /// running; and no other process shares it (see [`Sample`]).
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
    /// Whether its parent is known to be where the sandbox begins.
    at_top: AtomicBool,
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
            at_top: AtomicBool::new(false),
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

    /// The process that it reports its end to, 0 for none within the procfs; and whether it still runs what that one ran
    /// when it was forked.
    pub(super) fn parent(&self) -> io::Result<(u32, bool)> {
        self.status().map(|status| (status.parent, status.is_forked_only()))
    }

    /// Whether [`note_at_top`](Self::note_at_top) was said.
    pub(super) fn is_at_top(&self) -> bool {
        self.at_top.load(Ordering::Relaxed)
    }

    /// Remembers that its parent is where the sandbox begins. That does not change: a process gets another parent only
    /// when the one it has ends, and with the sandbox's init the sandbox does, while what comes from outside of a
    /// namespace is left to its own namespace's init, which is outside as well (`find_new_reaper` in the kernel).
    pub(super) fn note_at_top(&self) {
        self.at_top.store(true, Ordering::Relaxed);
    }

    /// Whether it has ended, reaped or not.
    pub(super) fn has_ended(&self) -> bool {
        self.status().is_ok_and(|status| matches!(status.state, b'Z' | b'X')) || !self.is_alive()
    }

    /// What it calls itself, quoted; for messages, and nothing else.
    pub(super) fn label(&self) -> String {
        let mut buffer = [0; COMMAND];
        let name = read_only(&self.directory, "comm").and_then(|file| Ok(pread(&file, &mut buffer, 0)?));
        name.map_or_else(
            |_| String::new(),
            |count| format!(" ({:?})", String::from_utf8_lossy(buffer[..count].trim_ascii_end())),
        )
    }

    /// Whether it is a thread of the kernel, which has neither an executable nor descriptors, and whose directory is
    /// closed to ordinary users like any of root's.
    pub(super) fn is_kernel_thread(&self) -> bool {
        self.status().is_ok_and(|status| status.is_kernel_thread())
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
        // A directory of very many threads is not even listed.
        if self.task_links()? > ONE_THREAD + THREADS_REMEMBERED as u64 {
            return Ok(None);
        }
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

    /// How many looks [`recall`](Self::recall) takes: one, unless there are threads to sample as well.
    pub(super) fn cost_of_recall(&self) -> u32 {
        let dormant = self.dormant.lock().unwrap_or_else(PoisonError::into_inner);
        if dormant.as_ref().is_none_or(|dormant| dormant.threads.is_empty()) {
            return 1;
        }
        drop(dormant);
        self.cost_of_samples()
    }

    /// How many looks [`note_visit`](Self::note_visit) takes: more where there are threads.
    pub(super) fn cost_of_samples(&self) -> u32 {
        let threads = self.task_links().map_or(0, |links| links.saturating_sub(ONE_THREAD));
        2 + 3 * u32::try_from(threads.min(THREADS_REMEMBERED as u64)).unwrap_or(0)
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
        self.sockets_of(None, &mut sockets)?;
        if has_threads {
            // Threads may have tables of their own (`unshare(CLONE_FILES)` needs no privilege).
            for thread in self.threads()?.into_iter().filter(|thread| *thread != self.pid) {
                self.sockets_of(Some(thread), &mut sockets)?;
            }
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
        // The lowest free number is taken, so that the newest descriptor of all is often the last.
        let count = self.descriptors()?;
        for descriptor in (count.saturating_sub(reach)..count).rev().filter(|descriptor| *descriptor != hint) {
            if self.holds_at(descriptor, inode)? {
                self.hint.store(descriptor, Ordering::Relaxed);
                return Ok(Some(descriptor));
            }
        }
        Ok(None)
    }

    /// How many descriptors the first thread has; 0 before Linux 6.2, which does not tell.
    fn descriptors(&self) -> io::Result<u32> {
        Ok(u32::try_from(fstatat(&self.directory, "fd", AtFlags::empty())?.st_size).unwrap_or(0))
    }

    /// How many looks (see [`Effort`](super::effort::Effort)) [`find`](Self::find) takes; `None` where the kernel does
    /// not tell.
    pub(super) fn cost_of_find(&self) -> Option<u32> {
        self.descriptors().ok().filter(|count| *count > 0).map(|count| count.saturating_add(2))
    }

    /// The same for [`examine`](Self::examine), which reads a table a thread.
    pub(super) fn cost_of_examination(&self) -> Option<u32> {
        let tasks = self.task_links().ok()?.saturating_sub(ONE_THREAD - 1);
        let tables = u32::try_from(tasks).unwrap_or(u32::MAX);
        // Besides the tables, every thread is sampled twice.
        self.cost_of_find().map(|table| table.saturating_add(8).saturating_mul(tables))
    }

    /// Whether descriptor `descriptor` of the first thread is the socket.
    pub(super) fn holds_at(&self, descriptor: u32, inode: u64) -> io::Result<bool> {
        Ok(socket_at(&self.directory, descriptor)? == Some(inode))
    }

    /// Looks for the socket among the descriptors of the first thread, newest first.
    pub(super) fn find(&self, inode: u64) -> io::Result<Option<u32>> {
        let table = Table::open(&self.directory, None)?;
        let mut descriptors = table.descriptors()?;
        descriptors.sort_unstable();
        for descriptor in descriptors.into_iter().rev() {
            if table.socket(descriptor)? == Some(inode) {
                self.hint.store(descriptor, Ordering::Relaxed);
                return Ok(Some(descriptor));
            }
        }
        Ok(None)
    }

    /// Whether it has threads besides the first.
    pub(super) fn has_threads(&self) -> io::Result<bool> {
        Ok(self.task_links()? > ONE_THREAD)
    }

    fn task_links(&self) -> io::Result<u64> {
        Ok(fstatat(&self.directory, "task", AtFlags::empty())?.st_nlink)
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

    /// Adds the sockets of a table to `into`; one of a thread that has ended has none.
    fn sockets_of(&self, thread: Option<u32>, into: &mut Vec<u64>) -> io::Result<()> {
        let table = match Table::open(&self.directory, thread) {
            Err(error) if error.is_gone() => return Ok(()),
            table => table?,
        };
        let descriptors = match table.descriptors() {
            Err(error) if error.is_gone() => return Ok(()),
            descriptors => descriptors?,
        };
        for descriptor in descriptors {
            into.extend(table.socket(descriptor)?);
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
