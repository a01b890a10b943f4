//! Could the workload rewrite what polices it?
//!
//! It could if it may write the file, or replace it or any directory or link on the way to it. Identity and Landlock
//! guard together, so an act counts only where both would let it pass: mode bits, ACLs and ownership (an owner can
//! always chmod(2), which Landlock does not cover), sticky directories (unlink(2), `EPERM`), read-only mounts, and the
//! trees that Landlock opens for writing, at every place where the file is mounted. Where something cannot be told, the
//! answer is that it could.

mod acl;
mod mounts;

use std::collections::{HashSet, VecDeque};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use mounts::{Mounts, Ways};

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
    let judge = Judge { who, opened: who.landlock_read_write.as_deref().map(Opened::of), mounts: Mounts::read() };
    paths.iter().try_for_each(|path| judge.judge(path))
}

/// What Landlock opens for writing. Its rules sit on the inodes that the paths led to when it was set up
/// (landlock_add_rule(2)), so a bind mount of a granted directory is granted as well.
struct Opened {
    paths: HashSet<PathBuf>,
    /// `st_dev` and `st_ino`.
    inodes: HashSet<(u64, u64)>,
}

impl Opened {
    fn of(granted: &[PathBuf]) -> Self {
        let resolved = |path: &PathBuf| std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        let inode = |path: &PathBuf| std::fs::metadata(path).ok().map(|of| (of.dev(), of.ino()));
        Self { paths: granted.iter().map(resolved).collect(), inodes: granted.iter().filter_map(inode).collect() }
    }

    /// Whether `way`, or a directory on it, is granted: Landlock walks up from what is opened, through mount points.
    fn covers(&self, way: &Path) -> bool {
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

    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    use super::*;
    use crate::sys::xattr;

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

    /// Runs `test` in a mount namespace of its own.
    fn mounting(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| {
            let tested = scope.spawn(|| {
                unshare(CloneFlags::CLONE_NEWNS).unwrap();
                let private = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
                mount(None::<&str>, "/", None::<&str>, private, None::<&str>).unwrap();
                test();
            });
            tested.join().unwrap();
        });
    }

    fn bind(from: &Path, at: &Path, read_only: bool) {
        mount(Some(from), at, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        if read_only {
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            mount(None::<&str>, at, None::<&str>, flags, None::<&str>).unwrap();
        }
    }

    #[test]
    fn a_bind_mount_of_a_directory_on_the_way_is_another_way_in() {
        let tree = Tree::new();
        tree.mode(POLICY, 0o666);
        for directory in ["open", "open/inner", "alone"] {
            std::fs::create_dir(tree.at(directory)).unwrap();
        }
        let refused = Some(tree.at(POLICY));
        mounting(|| {
            for granted in ["open", "open/inner", "alone"] {
                assert_eq!(tree.culprit(POLICY, Some(&[granted])), None, "{granted}");
            }
            bind(&tree.at("etc/policy"), &tree.at("alone"), false);
            assert_eq!(tree.culprit(POLICY, Some(&["alone"])), refused);
            // Landlock's rule sits on the inode, wherever it was found.
            assert_eq!(tree.culprit("alone/policy.yaml", Some(&["etc/policy"])), Some(tree.at("alone/policy.yaml")));
            assert_eq!(tree.culprit("alone/policy.yaml", Some(&["etc"])), Some(tree.at("alone/policy.yaml")));
            assert_eq!(tree.culprit(POLICY, Some(&["open"])), None);
            bind(&tree.at("etc"), &tree.at("open/inner"), false);
            assert_eq!(tree.culprit(POLICY, Some(&["open"])), refused);
            assert_eq!(tree.culprit(POLICY, Some(&["open/inner"])), refused);
        });
        assert_eq!(tree.culprit(POLICY, Some(&["open"])), None);
    }

    #[test]
    fn a_bind_mount_of_the_file_is_another_way_in() {
        let tree = Tree::new();
        tree.mode(POLICY, 0o666);
        std::fs::create_dir(tree.at("open")).unwrap();
        tree.file("open/copy");
        mounting(|| {
            assert_eq!(tree.culprit(POLICY, Some(&["open"])), None);
            bind(&tree.at(POLICY), &tree.at("open/copy"), false);
            assert_eq!(tree.culprit(POLICY, Some(&["open"])), Some(tree.at(POLICY)));
            assert_eq!(tree.culprit(POLICY, Some(&["open/copy"])), Some(tree.at(POLICY)));
        });
    }

    #[test]
    fn a_read_only_mount_protects_only_where_no_other_is_writable() {
        let tree = Tree::new();
        tree.mode(POLICY, 0o666);
        let sealed = "sealed/policy.yaml";
        std::fs::create_dir(tree.at("sealed")).unwrap();
        mounting(|| {
            bind(&tree.at("etc/policy"), &tree.at("sealed"), true);
            assert_eq!(tree.culprit(sealed, Some(&["sealed"])), Some(tree.at(sealed)));
            assert_eq!(tree.culprit(sealed, None), Some(tree.at(sealed)));
            assert_eq!(tree.culprit(sealed, Some(&["home"])), None);
        });
        mounting(|| {
            let at = tree.at("etc/policy");
            mount(Some("none"), &at, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
            tree.file(POLICY);
            tree.mode(POLICY, 0o666);
            assert_eq!(tree.culprit(POLICY, None), Some(tree.at(POLICY)));
            let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
            mount(None::<&str>, &at, None::<&str>, flags, None::<&str>).unwrap();
            assert_eq!(tree.culprit(POLICY, None), None);
        });
    }

    #[test]
    fn an_acl_counts_for_the_file_and_every_directory() {
        // Owner, the named user, owning group, mask, others.
        let entries = |id: u32| {
            let entries = [(1u16, 7u16, u32::MAX), (2, 7, id), (4, 5, u32::MAX), (16, 7, u32::MAX), (32, 5, u32::MAX)];
            let bytes = |(tag, may, id): (u16, u16, u32)| {
                [tag.to_le_bytes(), may.to_le_bytes()].concat().into_iter().chain(id.to_le_bytes())
            };
            2u32.to_le_bytes().into_iter().chain(entries.into_iter().flat_map(bytes)).collect::<Vec<u8>>()
        };
        for place in [POLICY, "etc/policy", "etc"] {
            let tree = Tree::new();
            let set = |id| xattr::write(&tree.at(place), c"system.posix_acl_access", &entries(id)).unwrap();
            set(WORKLOAD + 9);
            assert_eq!(tree.culprit(POLICY, None), None, "{place}");
            set(WORKLOAD);
            assert_eq!(tree.culprit(POLICY, None), Some(tree.at(place)), "{place}");
            assert_eq!(tree.culprit(POLICY, Some(&["home"])), None, "{place}");
        }
    }

    #[test]
    fn what_does_not_exist_cannot_be_told() {
        let who = WorkloadWrites { uid: 1, gid: 1, groups: Vec::new(), landlock_read_write: None };
        let error = refuse_writable(&[Path::new("/nonexistent/policy.yaml")], &who).unwrap_err();
        assert!(matches!(error, Writable::Unknown { .. }));
        assert!(error.to_string().contains("/nonexistent"));
    }
}
