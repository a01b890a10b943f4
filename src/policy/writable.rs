//! Could the workload rewrite what polices it?
//!
//! It could if it may write the file, or replace it or any directory or link on the way to it. Identity and Landlock
//! guard together, so an act counts only where both would let it pass: mode bits and ownership (an owner can always
//! chmod(2), which Landlock does not cover), sticky directories (unlink(2), `EPERM`), read-only mounts, and the trees
//! that Landlock opens for writing. Where something cannot be told, the answer is that it could.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

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

/// The workload could rewrite a file that polices it.
#[derive(Debug, thiserror::Error)]
pub enum Writable {
    /// It could.
    #[error(
        "the workload (uid {uid}) could rewrite {}: {}{act}; move the file out of its reach, take the right away, or \
         pass --allow-writable-policy, which also stops reloading it", file.display(), culprit.display()
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
    // Landlock's rules sit on the directories that the paths led to when it was set up, links resolved.
    let opened: Option<Vec<PathBuf>> = who
        .landlock_read_write
        .as_ref()
        .map(|paths| paths.iter().map(|path| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone())).collect());
    let judge = Judge { who, opened };
    paths.iter().try_for_each(|path| judge.judge(path))
}

struct Judge<'w> {
    who: &'w WorkloadWrites,
    opened: Option<Vec<PathBuf>>,
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
            if self.replaces(&holder, &entry) && self.landlock_opens(&directory) && !read_only(&directory) {
                let act = " is a directory where it may replace what leads to the file";
                return Err(culprit(&directory, act));
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
            if pending.is_empty() && self.writes(&entry) && !read_only(&path) {
                if self.landlock_opens(&path) {
                    return Err(culprit(&path, " can be written by it"));
                }
                // Landlock judges the path that is used, and this file has another one somewhere.
                if entry.is_file() && entry.nlink() > 1 {
                    return Err(culprit(&path, " has another hard link, through which it may be written"));
                }
            }
            directory = path;
        }
        Ok(())
    }

    /// Whether identity lets it remove or rename `entry` in `holder`, and put something else there.
    fn replaces(&self, holder: &Metadata, entry: &Metadata) -> bool {
        if holder.uid() == self.who.uid {
            return true;
        }
        let class = self.class(holder);
        let sticky = holder.mode() & STICKY != 0 && entry.uid() != self.who.uid;
        class & 0o3 == 0o3 && !sticky
    }

    /// Whether identity lets it write `entry`, perhaps after a chmod.
    fn writes(&self, entry: &Metadata) -> bool {
        entry.uid() == self.who.uid || self.class(entry) & 0o2 != 0
    }

    /// The permission bits that apply to someone who is not the owner.
    fn class(&self, of: &Metadata) -> u32 {
        let member = of.gid() == self.who.gid || self.who.groups.contains(&of.gid());
        if member { (of.mode() >> 3) & 0o7 } else { of.mode() & 0o7 }
    }

    fn landlock_opens(&self, path: &Path) -> bool {
        match &self.opened {
            None => true,
            Some(opened) => opened.iter().any(|tree| path.starts_with(tree)),
        }
    }
}

/// Whether the mount that holds `path` is read-only, to everyone in this mount namespace.
fn read_only(path: &Path) -> bool {
    statvfs(path).is_ok_and(|fs| fs.flags().contains(FsFlags::ST_RDONLY))
}

fn steps(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const WORKLOAD: u32 = 54_321;

    /// A tree that only root may change, in a directory that the workload can reach.
    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new() -> Self {
            let tree = Self(tempfile::tempdir().unwrap());
            tree.mode("", 0o755);
            std::fs::create_dir_all(tree.at("etc/policy")).unwrap();
            tree.mode("etc", 0o755);
            tree.mode("etc/policy", 0o755);
            tree.file("etc/policy/policy.yaml");
            tree
        }

        fn at(&self, path: &str) -> PathBuf {
            if path.is_empty() { self.0.path().to_owned() } else { self.0.path().join(path) }
        }

        fn file(&self, path: &str) {
            std::fs::write(self.at(path), "version: 1\n").unwrap();
            self.mode(path, 0o644);
        }

        fn mode(&self, path: &str, mode: u32) {
            set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
        }

        fn own(&self, path: &str) {
            chown(self.at(path), Some(WORKLOAD), Some(WORKLOAD)).unwrap();
        }

        fn culprit(&self, path: &str, opened: Option<&[&str]>) -> Option<PathBuf> {
            let who = WorkloadWrites {
                uid: WORKLOAD,
                gid: WORKLOAD,
                groups: vec![WORKLOAD + 1],
                landlock_read_write: opened.map(|paths| paths.iter().map(|path| self.at(path)).collect()),
            };
            match refuse_writable(&[&self.at(path)], &who) {
                Ok(()) => None,
                Err(Writable::ByWorkload { culprit, .. }) => Some(culprit),
                Err(error) => panic!("{error}"),
            }
        }
    }

    const POLICY: &str = "etc/policy/policy.yaml";

    #[test]
    fn a_file_of_root_s_is_safe_without_landlock() {
        assert_eq!(Tree::new().culprit(POLICY, None), None);
    }

    #[test]
    fn a_writable_file_is_refused_unless_landlock_keeps_it() {
        let tree = Tree::new();
        tree.mode(POLICY, 0o666);
        assert_eq!(tree.culprit(POLICY, None), Some(tree.at(POLICY)));
        assert_eq!(tree.culprit(POLICY, Some(&[""])), Some(tree.at(POLICY)));
        assert_eq!(tree.culprit(POLICY, Some(&[POLICY])), Some(tree.at(POLICY)));
        assert_eq!(tree.culprit(POLICY, Some(&["home"])), None);
    }

    #[test]
    fn an_owner_can_chmod() {
        let tree = Tree::new();
        tree.mode(POLICY, 0o400);
        tree.own(POLICY);
        assert_eq!(tree.culprit(POLICY, None), Some(tree.at(POLICY)));
        assert_eq!(tree.culprit(POLICY, Some(&["home"])), None);
    }

    #[test]
    fn any_directory_on_the_way_counts() {
        for directory in ["", "etc", "etc/policy"] {
            let tree = Tree::new();
            tree.mode(directory, 0o777);
            assert_eq!(tree.culprit(POLICY, None), Some(tree.at(directory)), "{directory:?}");
            let tree = Tree::new();
            tree.own(directory);
            // It may rename its own directory in the sticky one above, and its own is found first elsewhere.
            let culprit = if directory.is_empty() { std::env::temp_dir() } else { tree.at(directory) };
            assert_eq!(tree.culprit(POLICY, None), Some(culprit), "{directory:?}");
        }
    }

    #[test]
    fn a_sticky_directory_protects_what_others_own() {
        let tree = Tree::new();
        tree.mode("etc/policy", 0o1777);
        assert_eq!(tree.culprit(POLICY, None), None);
        tree.own(POLICY);
        assert_eq!(tree.culprit(POLICY, None), Some(tree.at("etc/policy")));
    }

    #[test]
    fn group_bits_apply_to_members_alone() {
        let tree = Tree::new();
        tree.mode(POLICY, 0o664);
        assert_eq!(tree.culprit(POLICY, None), None);
        chown(tree.at(POLICY), None, Some(WORKLOAD + 1)).unwrap();
        assert_eq!(tree.culprit(POLICY, None), Some(tree.at(POLICY)));
        // A member is judged by the group's bits even where others may more.
        tree.mode(POLICY, 0o606);
        assert_eq!(tree.culprit(POLICY, None), None);
    }

    #[test]
    fn the_directory_of_every_link_counts() {
        let tree = Tree::new();
        std::fs::create_dir(tree.at("links")).unwrap();
        tree.mode("links", 0o755);
        symlink(tree.at(POLICY), tree.at("links/policy.yaml")).unwrap();
        assert_eq!(tree.culprit("links/policy.yaml", None), None);
        tree.mode("links", 0o777);
        assert_eq!(tree.culprit("links/policy.yaml", None), Some(tree.at("links")));
        tree.mode("links", 0o755);
        tree.mode("etc/policy", 0o777);
        assert_eq!(tree.culprit("links/policy.yaml", None), Some(tree.at("etc/policy")));
    }

    #[test]
    fn a_config_map_volume_is_followed_to_its_data() {
        let tree = Tree::new();
        std::fs::create_dir(tree.at("etc/policy/..2026")).unwrap();
        tree.mode("etc/policy/..2026", 0o755);
        tree.file("etc/policy/..2026/p.yaml");
        symlink("..2026", tree.at("etc/policy/..data")).unwrap();
        symlink("..data/p.yaml", tree.at("etc/policy/p.yaml")).unwrap();
        assert_eq!(tree.culprit("etc/policy/p.yaml", None), None);
        tree.own("etc/policy/..2026");
        assert_eq!(tree.culprit("etc/policy/p.yaml", None), Some(tree.at("etc/policy/..2026")));
    }

    #[test]
    fn landlock_is_asked_about_the_real_path() {
        let tree = Tree::new();
        tree.mode(POLICY, 0o666);
        symlink(tree.at("etc"), tree.at("alias")).unwrap();
        assert_eq!(tree.culprit(POLICY, Some(&["alias"])), Some(tree.at(POLICY)));
    }

    #[test]
    fn a_second_hard_link_is_another_way_in() {
        let tree = Tree::new();
        tree.mode(POLICY, 0o666);
        assert_eq!(tree.culprit(POLICY, Some(&["home"])), None);
        std::fs::hard_link(tree.at(POLICY), tree.at("other")).unwrap();
        assert_eq!(tree.culprit(POLICY, Some(&["home"])), Some(tree.at(POLICY)));
    }

    #[test]
    fn what_does_not_exist_cannot_be_told() {
        let who = WorkloadWrites { uid: 1, gid: 1, groups: Vec::new(), landlock_read_write: None };
        let error = refuse_writable(&[Path::new("/nonexistent/policy.yaml")], &who).unwrap_err();
        assert!(matches!(error, Writable::Unknown { .. }));
        assert!(error.to_string().contains("/nonexistent"));
    }
}
