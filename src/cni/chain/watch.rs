//! Noticing at once that somebody changed the configurations, and now and then in any case.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InotifyEvent, WatchDescriptor};
use tokio::time::Instant;

use super::survey::is_configuration;
use super::{Chain, Way};
use crate::sys::notify::{Directories, Settling};

/// Until a change counts as complete the node is as it is, so that is soon.
const SETTLING: Settling = Settling { quiet: Duration::from_millis(50), at_most: Duration::from_millis(500) };

/// Directories of networks that are watched in [`Way::DropIn`]; nodes have one or two.
const MAX_BELOW: usize = 64;

/// A watch over the directory of a [`Chain`].
#[derive(Debug)]
pub struct Watch {
    directories: Directories,
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
        let (directory, below) = (chain.directory.clone(), chain.way == Way::DropIn);
        let mut watch = Self { directories: Directories::none()?, directory, below, above: None };
        watch.arm();
        Ok(watch)
    }

    /// Waits until something changed that may matter and came to rest, or for `tick`: what inotify(7) does not see, on a network
    /// file system or in a directory that was replaced, is found by looking. Changes since the last call count, one's own too.
    pub async fn changed(&mut self, tick: Duration) {
        self.arm();
        self.directories.changed(Instant::now() + tick, SETTLING, |event| self.matters(event)).await;
        // What came into a directory before it was watched itself is seen by the look that follows.
        self.arm();
    }

    /// Adding a watch again is harmless. One on a directory that is gone, or that the kernel has no room for, comes
    /// back at the next call, and until then the tick does its work.
    fn arm(&mut self) {
        self.directories.watch(&self.directory);
        if self.below {
            let entries = std::fs::read_dir(&self.directory).into_iter().flatten().flatten();
            let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            for entry in directories.take(MAX_BELOW) {
                self.directories.watch(&entry.path());
            }
        }
        let above = match self.directory.parent() {
            Some(above) if above.as_os_str().is_empty() => Path::new("."),
            Some(above) => above,
            None => return,
        };
        self.above = self.directories.watch_appearances(above);
    }

    fn matters(&self, event: &InotifyEvent) -> bool {
        let Some(name) = event.name.as_deref() else { return true };
        if self.above == Some(event.wd) {
            return self.directory.file_name() == Some(name);
        }
        is_configuration(name) || self.below && event.mask.contains(AddWatchFlags::IN_ISDIR)
    }
}
