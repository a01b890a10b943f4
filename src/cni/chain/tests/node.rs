//! What nodes do to an installer: full and read-only file systems, foreign owners, leftovers, other installers.

use std::time::Instant;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Uid, setfsuid};

use super::*;

#[test]
fn leftovers_of_the_killed_are_swept_and_only_theirs() {
    let node = Node::with("10-net.conflist", BRIDGE);
    node.write(".openshell-cni-1.tmp", "half");
    node.write(".openshell-cni-77-3.tmp", BRIDGE);
    node.write(".calico.tmp", "theirs");
    let (verdict, changes) = node.install();
    assert!(verdict.is_chained());
    assert_eq!(changes.iter().filter(|(_, action)| *action == Action::Removed).count(), 2);
    assert_eq!(node.names(), [".calico.tmp", "10-net.conflist", "10-net.conflist.openshell-backup"]);
}

#[test]
fn no_runtime_loads_what_is_not_finished() {
    let node = Node::with("10-net.conflist", BRIDGE);
    node.install();
    for name in [".openshell-cni-1.tmp", "10-net.conflist.openshell-backup", ".openshell-directory"] {
        assert!(!survey::is_configuration(std::ffi::OsStr::new(name)), "{name}");
    }
    for name in ["a.conf", ".a.conflist", "a.json", ".conf"] {
        assert!(survey::is_configuration(std::ffi::OsStr::new(name)), "{name}");
    }
}

#[test]
fn one_installer_works_at_a_time() {
    let node = Node::with("10-net.conflist", BRIDGE);
    let directory = Directory::open(node.path()).unwrap().unwrap();
    let lock = directory.lock().unwrap();
    let began = Instant::now();
    assert!(matches!(node.chain(Way::Conflist).install(|_| ()), Err(ChainError::Busy { .. })));
    assert!(began.elapsed() < Duration::from_secs(8));
    // Looking takes no lock, and the other one's end is enough.
    assert!(matches!(node.verify(), Verdict::Absent { .. }));
    drop(lock);
    assert!(node.install().0.is_chained());
}

#[test]
fn a_full_file_system_leaves_everything_as_it_was() {
    in_mounts_of_its_own(|| {
        let node = Node::new();
        let tmpfs = |flags, size: &str| mount(Some("tmpfs"), node.path(), Some("tmpfs"), flags, Some(size)).unwrap();
        tmpfs(MsFlags::empty(), "size=8192");
        node.write("10-net.conflist", BRIDGE);
        let error = node.chain(Way::Conflist).install(|_| ()).unwrap_err().to_string();
        assert!(error.contains("make room") && error.contains(node.path().to_str().unwrap()), "{error}");
        assert_eq!(node.read("10-net.conflist"), BRIDGE);
        assert!(node.names().iter().all(|name| !name.contains("tmp")), "{:?}", node.names());
        // Control: with room it goes.
        tmpfs(MsFlags::MS_REMOUNT, "size=65536");
        assert!(node.install().0.is_chained());
        // And removal is no different.
        let filler = vec![b'x'; 65536];
        let _ = std::fs::write(node.at("filler"), filler);
        let chained = node.read("10-net.conflist");
        assert!(node.chain(Way::Conflist).remove(|_| ()).is_err());
        assert_eq!(node.read("10-net.conflist"), chained);
        std::fs::remove_file(node.at("filler")).unwrap();
        node.remove();
        assert_eq!(node.read("10-net.conflist"), BRIDGE);
    });
}

#[test]
fn a_read_only_file_system_is_said_to_be_one() {
    in_mounts_of_its_own(|| {
        let node = Node::with("10-net.conflist", BRIDGE);
        let none = None::<&str>;
        let bind = |flags| mount(Some(node.path()), node.path(), none, MsFlags::MS_BIND | flags, none).unwrap();
        bind(MsFlags::empty());
        bind(MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
        let error = node.chain(Way::Conflist).install(|_| ()).unwrap_err().to_string();
        assert!(error.contains("without readOnly"), "{error}");
        assert!(matches!(node.verify(), Verdict::Absent { .. }));
        // Control.
        bind(MsFlags::MS_REMOUNT);
        assert!(node.install().0.is_chained());
    });
}

#[test]
fn a_directory_of_somebody_elses_is_said_to_be_one() {
    let node = Node::with("10-net.conflist", BRIDGE);
    // The file system's identity is the thread's own, and takes the capabilities over files with it (credentials(7)).
    std::thread::scope(|scope| {
        scope.spawn(|| {
            setfsuid(Uid::from_raw(4242));
            std::fs::write(node.at("forbidden"), "").expect_err("the thread may still write there");
        });
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::fs::set_permissions(node.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
            setfsuid(Uid::from_raw(4242));
            let error = node.chain(Way::Conflist).install(|_| ()).unwrap_err().to_string();
            assert!(error.contains("owner of the directory"), "{error}");
        });
    });
    assert_eq!(node.read("10-net.conflist"), BRIDGE);
    assert!(node.install().0.is_chained());
}

#[test]
fn the_program_is_needed_while_any_file_names_it() {
    let node = Node::with("10-net.conflist", BRIDGE);
    let naming = || {
        let files = names_plugin(node.path(), PLUGIN_TYPE).unwrap();
        files
            .into_iter()
            .map(|file| file.strip_prefix(node.path()).unwrap().to_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(naming().is_empty());
    node.install();
    node.install_by(&node.chain(Way::DropIn));
    node.write("20-escaped.conflist", r#"{"plugins":[{"type":"openshell\u002dcni"}]}"#);
    node.write("30-half.conflist", r#"{"plugins":[{"type":"openshell-cni""#);
    node.write("40-other.conflist", r#"{"plugins":[{"type":"other","note":"openshell-cni"}]}"#);
    node.write("openshell-cni-kubeconfig", r#"{"type":"openshell-cni"}"#);
    assert_eq!(naming(), ["10-net.conflist", "20-escaped.conflist", "30-half.conflist", "net/openshell-cni.conf"]);
    std::fs::remove_file(node.at("30-half.conflist")).unwrap();
    node.write("20-escaped.conflist", r#"{"plugins":[{"type":"a"},{"type":"openshell\u002dcni"}],"name":"n"}"#);
    node.remove();
    assert!(naming().is_empty(), "{:?}", naming());
    assert_eq!(node.read("20-escaped.conflist"), r#"{"plugins":[{"type":"a"}],"name":"n"}"#);
    assert!(names_plugin(&node.at("missing"), PLUGIN_TYPE).unwrap().is_empty());
}

/// Runs a test in a thread whose mounts nobody else sees.
fn in_mounts_of_its_own(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNS).expect("it takes root to have mounts of one's own");
            mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
            test();
        });
        run.join().unwrap();
    });
}
