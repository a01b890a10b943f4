//! Whole trees, out and in again.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use proptest::prelude::*;

use super::super::{Wanted, create, extract};
use super::{archive, is_tidy, member, take, take_bytes};

/// Everything below a directory: type and mode, time, and content or target.
fn everything(top: &Path) -> BTreeMap<Vec<u8>, (u32, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut directories = vec![top.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(top).unwrap().as_os_str().as_bytes().to_vec();
            let about = fs::symlink_metadata(&path).unwrap();
            let content = if about.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if about.is_dir() {
                directories.push(path);
                Vec::new()
            } else {
                fs::read(&path).unwrap()
            };
            found.insert(name, (about.mode(), about.mtime(), content));
        }
    }
    found
}

#[test]
fn a_tree_comes_back_as_it_was() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let at = |name: &[u8]| from.path().join(OsStr::from_bytes(name));
    let deep = [b"deep/".repeat(50), b"\xff\xfe name".to_vec()].concat();
    fs::create_dir_all(at(&deep).parent().unwrap()).unwrap();
    fs::write(at(&deep), "deep").unwrap();
    fs::write(at(b"run"), "#!").unwrap();
    fs::set_permissions(at(b"run"), PermissionsExt::from_mode(0o751)).unwrap();
    fs::write(at(b"empty"), "").unwrap();
    symlink("x".repeat(300), at(b"long-link")).unwrap();
    symlink("/etc/passwd", at(b"out")).unwrap();
    fs::hard_link(at(b"run"), at(b"walk")).unwrap();
    fs::create_dir(at(b"read-only")).unwrap();
    fs::write(at(b"read-only/f"), "x").unwrap();
    fs::set_permissions(at(b"read-only"), PermissionsExt::from_mode(0o555)).unwrap();
    // In the past: what is made while the test runs does not have these times by chance.
    for (past, name) in (1_000_000_000..).zip(everything(from.path()).into_keys()) {
        let (time, path) = (TimeSpec::new(past, 0), at(&name));
        utimensat(AT_FDCWD, &path, &time, &time, UtimensatFlags::NoFollowSymlink).unwrap();
    }
    let (bytes, summary, report) = archive(from.path());
    assert_eq!((summary.failed, report.as_str()), (0, ""));
    let (outcome, report) = take_bytes(to.path(), &bytes);
    assert_eq!((outcome.unwrap(), report.as_str()), (summary, ""));
    assert_eq!(everything(to.path()), everything(from.path()));
    assert_eq!(fs::metadata(to.path().join("run")).unwrap().ino(), fs::metadata(to.path().join("walk")).unwrap().ino());
    // Once more, over what is there; into the read-only directory only root could.
    fs::set_permissions(to.path().join("read-only"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::remove_dir_all(to.path().join("read-only")).unwrap();
    let (outcome, report) = take_bytes(to.path(), &bytes);
    assert_eq!((outcome.unwrap(), report.as_str()), (summary, ""));
    // The directories that were there are their owner's: their times are those of what has now been done in them.
    let settled = |tree: &Path| {
        let mut tree = everything(tree);
        tree.retain(|name, _| !name.starts_with(b"deep") || name.ends_with(b"name"));
        tree
    };
    assert_eq!(settled(to.path()), settled(from.path()));
    assert_eq!(everything(to.path()).len(), everything(from.path()).len());
    assert!(is_tidy(to.path()));
}

#[test]
fn holes_stay_holes_both_ways() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let file = fs::File::create(from.path().join("sparse")).unwrap();
    file.write_all_at(b"middle", 3 << 20).unwrap();
    file.set_len(64 << 20).unwrap();
    let (bytes, summary, _) = archive(from.path());
    assert_eq!(summary.bytes, 64 << 20);
    assert!(bytes.len() < 100_000, "{}", bytes.len());
    take_bytes(to.path(), &bytes).0.unwrap();
    let taken = fs::metadata(to.path().join("sparse")).unwrap();
    assert!(taken.len() == 64 << 20 && taken.blocks() * 512 < 100_000);
    assert_eq!(fs::read(to.path().join("sparse")).unwrap(), fs::read(from.path().join("sparse")).unwrap());
}

#[test]
fn what_is_there_is_replaced_by_its_like_alone() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::set_permissions(at("d"), PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(at("f"), "old").unwrap();
    fs::write(at("g"), "old").unwrap();
    let (outcome, report) = take(
        directory.path(),
        &[
            member(b'5', b"d", b"", b""),
            member(b'0', b"d/new", b"", b"new"),
            member(b'0', b"d", b"", b"file"),
            member(b'2', b"d", b"target", b""),
            member(b'5', b"f", b"", b""),
            member(b'0', b"f/x", b"", b""),
            member(b'2', b"f", b"target", b""),
            member(b'1', b"g", b"d/new", b""),
            member(b'1', b"g", b"g", b""),
            member(b'0', b".", b"", b""),
        ],
    );
    let summary = outcome.unwrap();
    assert_eq!((summary.files, summary.directories, summary.links, summary.failed), (1, 1, 3, 5), "{report}");
    // A directory that is there keeps its mode.
    assert_eq!(fs::metadata(at("d")).unwrap().mode() & 0o777, 0o700);
    assert_eq!(
        (fs::read_link(at("f")).unwrap().as_path(), fs::read(at("g")).unwrap()),
        (Path::new("target"), b"new".to_vec())
    );
    assert!(is_tidy(directory.path()));
}

#[test]
fn what_cannot_be_archived_is_told_and_the_rest_is_there() {
    let directory = tempfile::tempdir().unwrap();
    nix::unistd::mkfifo(&directory.path().join("pipe"), Mode::S_IRWXU).unwrap();
    fs::write(directory.path().join("file"), "x").unwrap();
    fs::write(directory.path().join(format!("{}x", crate::access::files::staged::PREFIX)), "half").unwrap();
    let (bytes, summary, report) = archive(directory.path());
    assert_eq!((summary.files, summary.failed), (1, 1));
    assert!(report.starts_with("./pipe: not archived"), "{report}");
    let to = tempfile::tempdir().unwrap();
    assert_eq!(take_bytes(to.path(), &bytes).0.unwrap().files, 1);
    let mut report = Vec::new();
    let paths = ["file", "/etc/passwd", "../x", "none", "file/x"];
    let summary = create(std::io::sink(), directory.path(), &paths, &mut report).unwrap();
    assert_eq!((summary.files, summary.failed), (1, 4), "{}", String::from_utf8_lossy(&report));
    assert!(extract(&b""[..], Path::new("/none"), &Wanted::Everything, &mut report).is_err());
}

#[test]
fn directories_deeper_than_is_taken_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let deepest = "d/".repeat(300);
    fs::create_dir_all(directory.path().join(&deepest)).unwrap();
    let (_, summary, report) = archive(directory.path());
    assert_eq!((summary.directories, summary.failed), (256, 1));
    assert!(report.contains("directories deep"), "{report}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_names_and_contents_come_back(
        files in prop::collection::btree_map(
            prop::collection::vec(prop::collection::vec((1_u8..=255).prop_filter("slash", |byte| *byte != b'/'), 1..120), 1..4),
            prop::collection::vec(any::<u8>(), 0..2000),
            1..8,
        ),
    ) {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (names, content) in &files {
            let path = from.path().join(OsStr::from_bytes(&names.join(&b'/')));
            let dots = names.iter().any(|name| matches!(&name[..], b"." | b".."));
            // Some are the directory of another.
            if !dots && fs::create_dir_all(path.parent().unwrap()).is_ok() {
                let _ = fs::write(path, content);
            }
        }
        let (bytes, summary, _) = archive(from.path());
        prop_assert_eq!(take_bytes(to.path(), &bytes).0.unwrap(), summary);
        prop_assert_eq!(everything(to.path()), everything(from.path()));
    }
}
