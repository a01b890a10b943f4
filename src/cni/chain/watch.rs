//! Noticing at once that somebody changed the configurations, and now and then in any case.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use super::survey::is_configuration;
use super::{Chain, Verdict, Way};
use crate::sys::reactor;

/// How long a change that inotify(7) did not see can go unnoticed: a network file system, a directory that was
/// replaced.
const TICK: Duration = Duration::from_secs(30);

/// The same while the plugin is not chained and the node waits for it: what was half-written may be whole by then, or
/// old enough to be passed over.
const EAGER_TICK: Duration = Duration::from_secs(2);

/// Quiet time after which a change counts as complete. Until then the node is as it is, so it is short.
const SETTLE: Duration = Duration::from_millis(50);

/// Longest that a directory which never rests is waited for.
const SETTLE_AT_MOST: Duration = Duration::from_millis(500);

/// Directories of networks that are watched in [`Way::DropIn`]; nodes have one or two.
const MAX_BELOW: usize = 64;

/// A watch over the directory of a [`Chain`].
#[derive(Debug)]
pub struct Watch {
    inotify: Inotify,
    /// A duplicate of its descriptor, in the reactor.
    readiness: AsyncFd<OwnedFd>,
    directory: PathBuf,
    below: bool,
    /// The watch over the directory above, whose other entries are nobody's concern.
    above: Option<WatchDescriptor>,
}

impl Watch {
    /// Watches from now on. The directory need not be there yet.
    ///
    /// # Errors
    /// The kernel has no inotify instance left to give (`fs.inotify.max_user_instances`).
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn new(chain: &Chain) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let readiness = reactor::watch(inotify.as_fd().try_clone_to_owned()?)?;
        let (directory, below) = (chain.directory.clone(), chain.way == Way::DropIn);
        let mut watch = Self { inotify, readiness, directory, below, above: None };
        watch.arm();
        Ok(watch)
    }

    /// Waits until something changed that may matter and came to rest, or half a minute has passed, or two seconds
    /// where the plugin was not chained at `last`. Changes since the last call count, one's own too.
    pub async fn changed(&mut self, last: &Verdict) {
        self.arm();
        let tick = if last.is_chained() { TICK } else { EAGER_TICK };
        if timeout_at(Instant::now() + tick, self.relevant()).await.is_err() {
            return;
        }
        let latest = Instant::now() + SETTLE_AT_MOST;
        while timeout_at(latest.min(Instant::now() + SETTLE), self.relevant()).await.is_ok() {
            if Instant::now() >= latest {
                break;
            }
        }
        // What came into a directory before it was watched itself is seen by the look that follows.
        self.arm();
    }

    /// Adding a watch again is harmless. One on a directory that is gone, or that the kernel has no room for, comes
    /// back at the next call, and until then the tick does its work.
    fn arm(&mut self) {
        let mask = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        let _ = self.inotify.add_watch(&self.directory, mask);
        if self.below {
            let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
            let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            for entry in directories.take(MAX_BELOW) {
                let _ = self.inotify.add_watch(&entry.path(), mask);
            }
        }
        let above = match self.directory.parent() {
            Some(above) if above.as_os_str().is_empty() => Path::new("."),
            Some(above) => above,
            None => return,
        };
        let mask = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR;
        self.above = self.inotify.add_watch(above, mask).ok();
    }

    async fn relevant(&self) {
        loop {
            let Ok(mut guard) = self.readiness.readable().await else {
                // The reactor is shutting down, and with it the task.
                return std::future::pending().await;
            };
            match self.inotify.read_events() {
                Ok(events) => {
                    if events.iter().any(|event| self.matters(event)) {
                        return;
                    }
                }
                Err(Errno::EAGAIN) => guard.clear_ready(),
                Err(_) => return,
            }
        }
    }

    fn matters(&self, event: &InotifyEvent) -> bool {
        // An event without a name is about a directory itself, or an overflow of the queue.
        let Some(name) = event.name.as_deref() else { return true };
        if self.above == Some(event.wd) {
            return self.directory.file_name() == Some(name);
        }
        is_configuration(name) || self.below && event.mask.contains(AddWatchFlags::IN_ISDIR)
    }
}
