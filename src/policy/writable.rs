//! Could the workload rewrite what polices it?
//!
//! It could if it may write the file, or replace it or any directory or link on the way to it. Identity and Landlock
//! guard together, so an act counts only where both would let it pass: mode bits, ACLs and ownership (an owner can
//! always chmod(2), which Landlock does not cover), sticky directories (unlink(2), `EPERM`), read-only mounts, and the
//! trees that Landlock opens for writing, at every place where the file is mounted. Where something cannot be told, the
//! answer is that it could.

mod acl;
mod mounts;
mod readable;

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::resolve::steps;
use mounts::{Mounts, Ways};

pub use readable::{Readable, refuse_readable};

/// Links followed before a path counts as a loop: the kernel's own limit (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Mode bit of sticky directories (inode(7)).
const STICKY: u32 = 0o1000;

/// What the workload will be when it runs, without capabilities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkloadWrites {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Paths that Landlock opens for writing; `None` where it is not enforced.
    pub landlock_read_write: Option<Vec<PathBuf>>,
}

impl WorkloadWrites {
    /// Whether owner and mode let it make files in the directory at `path`; where that cannot be told, they do.
    #[must_use]
    pub fn makes_files_in(&self, path: &Path) -> bool {
        /// Write and search, as in one digit of a mode.
        const MAKE: u32 = 0o3;
        let Ok(of) = std::fs::metadata(path) else { return true };
        if of.uid() == self.uid { of.mode() >> 6 & MAKE == MAKE } else { acl::allows(self, path, &of, MAKE) }
    }
}

/// The workload could rewrite a file that polices it.
#[derive(Debug, thiserror::Error)]
pub enum Writable {
    /// It could.
    #[error(
        "the workload (uid {uid}) could rewrite {}: {}{act}; move the file out of its reach, such as into \
         ~/.config/openshell/, take the right away, or pass --allow-writable-policy, which also stops reloading it", file.display(), culprit.display()
    )]
    ByWorkload {
        /// The file that polices the workload.
        file: PathBuf,
        /// The file, directory or link that could be changed.
        culprit: PathBuf,
        /// What could be done with it, as the rest of a sentence.
        act: &'static str,
        /// The workload's user.
        uid: u32,
    },
    /// It cannot be told.
    #[error("whether the workload could rewrite {} cannot be told: {}: {source}", file.display(), at.display())]
    Unknown {
        /// The file that polices the workload.
        file: PathBuf,
        /// Where the search ended.
        at: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Makes sure that none of `paths`, which must exist, can be rewritten by the workload.
///
/// # Errors
///
/// The first that could be, and by what.
pub fn refuse_writable(paths: &[&Path], who: &WorkloadWrites) -> Result<(), Writable> {
    let judge = Judge { who, opened: who.landlock_read_write.as_deref().map(Opened::of), mounts: Mounts::read() };
    paths.iter().try_for_each(|path| judge.judge(path))
}

/// What Landlock opens for writing. Its rules sit on the inodes that the paths led to when it was set up
/// (landlock_add_rule(2)), so a bind mount of a granted directory is granted as well.
pub(super) struct Opened {
    paths: HashSet<PathBuf>,
    /// `st_dev` and `st_ino`.
    inodes: HashSet<(u64, u64)>,
}

impl Opened {
    pub(super) fn of(granted: &[PathBuf]) -> Self {
        let resolved = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let inode = |path: &PathBuf| std::fs::metadata(path).ok().map(|of| (of.dev(), of.ino()));
        Self { paths: granted.iter().map(resolved).collect(), inodes: granted.iter().filter_map(inode).collect() }
    }

    /// Whether `way`, or a directory on it, is granted: Landlock walks up from what is opened, through mount points.
    pub(super) fn covers(&self, way: &Path) -> bool {
        way.ancestors().any(|above| {
            self.paths.contains(above)
                || match std::fs::symlink_metadata(above) {
                    Ok(of) => self.inodes.contains(&(of.dev(), of.ino())),
                    // The way is hidden by another mount, so that nobody can take it; any other failure is ours alone.
                    Err(error) => !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
                }
        })
    }
}

struct Judge<'w> {
    who: &'w WorkloadWrites,
    /// `None` where Landlock is not enforced.
    opened: Option<Opened>,
    /// Consulted only where identity alone would let it pass.
    mounts: io::Result<Mounts>,
}

impl Judge<'_> {
    fn judge(&self, file: &Path) -> Result<(), Writable> {
        let unknown = |at: &Path, source| Writable::Unknown { file: file.to_owned(), at: at.to_owned(), source };
        let culprit = |at: &Path, act| Writable::ByWorkload {
            file: file.to_owned(),
            culprit: at.to_owned(),
            act,
            uid: self.who.uid,
        };
        let absolute = std::path::absolute(file).map_err(|error| unknown(file, error))?;
        let mut pending = steps(&absolute);
        let mut directory = PathBuf::from("/");
        let mut links = 0;
        while let Some(step) = pending.pop_front() {
            if step == ".." {
                directory.pop();
                continue;
            }
            let path = directory.join(&step);
            let holder = std::fs::symlink_metadata(&directory).map_err(|error| unknown(&directory, error))?;
            let entry = std::fs::symlink_metadata(&path).map_err(|error| unknown(&path, error))?;
            if self.replaces(&directory, &holder, &entry) {
                let ways = self.ways(&directory).map_err(|error| unknown(&directory, error))?;
                if self.takes(&ways) {
                    let act = " is a directory where it may replace what leads to the file";
                    return Err(culprit(&directory, act));
                }
            }
            if entry.file_type().is_symlink() {
                links += 1;
                if links > MAX_LINKS {
                    return Err(unknown(&path, io::Error::other("too many levels of symbolic links")));
                }
                let target = std::fs::read_link(&path).map_err(|error| unknown(&path, error))?;
                if target.is_absolute() {
                    directory = PathBuf::from("/");
                }
                for step in steps(&target).into_iter().rev() {
                    pending.push_front(step);
                }
                continue;
            }
            if pending.is_empty() && self.writes(&path, &entry) {
                let ways = self.ways(&path).map_err(|error| unknown(&path, error))?;
                if self.takes(&ways) {
                    return Err(culprit(&path, " can be written by it"));
                }
                // Landlock and mounts judge the path that is used, and this file has another one somewhere.
                if entry.is_file() && entry.nlink() > 1 && ways.file_system {
                    return Err(culprit(&path, " has another hard link, through which it may be written"));
                }
            }
            directory = path;
        }
        Ok(())
    }

    /// Whether identity lets it remove or rename `entry` in `holder`, which lies at `directory`, and put something else
    /// there.
    fn replaces(&self, directory: &Path, holder: &Metadata, entry: &Metadata) -> bool {
        if holder.uid() == self.who.uid {
            return true;
        }
        let sticky = holder.mode() & STICKY != 0 && entry.uid() != self.who.uid;
        !sticky && acl::allows(self.who, directory, holder, 0o3)
    }

    /// Whether identity lets it write `entry`, which lies at `path`, perhaps after a chmod.
    fn writes(&self, path: &Path, entry: &Metadata) -> bool {
        entry.uid() == self.who.uid || acl::allows(self.who, path, entry, 0o2)
    }

    fn ways(&self, path: &Path) -> io::Result<Ways> {
        match &self.mounts {
            Ok(mounts) => mounts.ways(path),
            Err(error) => Err(io::Error::new(error.kind(), format!("its mounts cannot be read: {error}"))),
        }
    }

    /// Whether mounts and Landlock leave it one of the ways.
    fn takes(&self, ways: &Ways) -> bool {
        match &self.opened {
            None => !ways.writable.is_empty(),
            Some(opened) => ways.writable.iter().any(|way| opened.covers(way)),
        }
    }
}

#[cfg(test)]
mod tests;
