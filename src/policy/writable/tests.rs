//! Every refusal has a control: the same tree without what makes it writable.

use std::fs::{OpenOptions, Permissions, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use landlock::{ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, path_beneath_rules};
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

/// Whether the kernel lets a thread, with nothing but `granted` open for writing, write the file at one of `ways`.
fn kernel_writes(ways: &[PathBuf], granted: &Path) -> bool {
    std::thread::scope(|scope| {
        let wrote = scope.spawn(|| {
            let rules = path_beneath_rules([granted], AccessFs::from_write(ABI::V3));
            let ruleset = Ruleset::default().handle_access(AccessFs::from_write(ABI::V3)).unwrap().create().unwrap();
            let status = ruleset.add_rules(rules).unwrap().restrict_self().unwrap();
            assert_eq!(status.ruleset, RulesetStatus::FullyEnforced);
            ways.iter().any(|way| OpenOptions::new().append(true).open(way).is_ok())
        });
        wrote.join().unwrap()
    })
}

#[test]
fn the_verdict_on_bind_mounts_is_the_kernel_s() {
    let tree = Tree::new();
    tree.mode(POLICY, 0o666);
    for directory in ["open", "open/inner", "alone", "sealed"] {
        std::fs::create_dir(tree.at(directory)).unwrap();
    }
    mounting(|| {
        let ways = [POLICY, "open/inner/policy/policy.yaml", "alone/policy.yaml", "sealed/policy.yaml"];
        let ways = ways.map(|way| tree.at(way));
        let agree = |round: &str| {
            let granted = ["etc", "etc/policy", POLICY, "open", "open/inner", "alone", "sealed"];
            for path in granted {
                let verdict = tree.culprit(POLICY, Some(&[path])).is_some();
                assert_eq!(verdict, kernel_writes(&ways, &tree.at(path)), "{round}: {path}");
            }
        };
        agree("no mounts");
        bind(&tree.at("etc/policy"), &tree.at("alone"), false);
        agree("the directory");
        bind(&tree.at("etc"), &tree.at("open/inner"), false);
        agree("the one above");
        bind(&tree.at("etc/policy"), &tree.at("sealed"), true);
        agree("read-only");
    });
}
