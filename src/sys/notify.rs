//! Changes in directories (inotify(7)), as somebody wants to hear of them who then looks for himself: one notice for all that
//! belongs together.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, timeout_at};

use super::reactor;

/// When a change counts as complete.
#[derive(Clone, Copy, Debug)]
pub struct Settling {
    /// After so long without another one.
    pub quiet: Duration,
    /// After so long in any case: a directory may never rest.
    pub at_most: Duration,
}

/// Directories that are watched.
#[derive(Debug)]
pub struct Directories {
    inotify: Inotify,
    /// A duplicate of its descriptor, in the reactor.
    readiness: AsyncFd<OwnedFd>,
}

impl Directories {
    /// None so far.
    ///
    /// # Errors
    /// The kernel has no inotify instance left to give (`fs.inotify.max_user_instances`).
    ///
    /// # Panics
    /// Outside a tokio runtime with I/O enabled.
    pub fn none() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let readiness = reactor::watch(inotify.as_fd().try_clone_to_owned()?)?;
        Ok(Self { inotify, readiness })
    }

    /// Watches the entries of a directory, and the directory itself, for whatever makes one look different. Doing it again is
    /// harmless; `None` where there is no such directory or the kernel has no room.
    pub fn watch(&self, directory: &Path) -> Option<WatchDescriptor> {
        let changes = AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        self.add(directory, changes)
    }

    /// Watches a directory for entries that appear, and nothing else.
    pub fn watch_appearances(&self, directory: &Path) -> Option<WatchDescriptor> {
        self.add(directory, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_ONLYDIR)
    }

    fn add(&self, directory: &Path, changes: AddWatchFlags) -> Option<WatchDescriptor> {
        self.inotify.add_watch(directory, changes).ok()
    }

    /// Waits until something that `matters` has changed and come to rest, or until `tick`. An event without a name, which is
    /// about a directory itself or an overflow of the queue, matters always.
    pub async fn changed(&self, tick: Instant, settling: Settling, matters: impl Fn(&InotifyEvent) -> bool) {
        if timeout_at(tick, self.event(&matters)).await.is_err() {
            return;
        }
        let latest = Instant::now() + settling.at_most;
        while timeout_at(latest.min(Instant::now() + settling.quiet), self.event(&matters)).await.is_ok() {
            if Instant::now() >= latest {
                break;
            }
        }
    }

    async fn event(&self, matters: impl Fn(&InotifyEvent) -> bool) {
        loop {
            let Ok(mut guard) = self.readiness.readable().await else {
                // The reactor is shutting down, and with it the task.
                return std::future::pending().await;
            };
            match self.inotify.read_events() {
                Ok(events) => {
                    if events.iter().any(|event| event.name.is_none() || matters(event)) {
                        return;
                    }
                }
                Err(Errno::EAGAIN) => guard.clear_ready(),
                Err(_) => return,
            }
        }
    }
}
