//! Lists are edited, single plugins are stood in for, and both go back.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use super::*;

const SINGLE: &str = "{\n \"name\": \"net\",\n \"cniVersion\": \"0.4.0\",\n \"type\": \"bridge\", \"mtu\": 1.4e3\n}\n";

#[test]
fn a_list_is_chained_once_and_given_back() {
    let node = Node::with("10-net.conflist", BRIDGE);
    assert_eq!(node.verify(), Verdict::Absent { file: node.at("10-net.conflist") });
    let (verdict, changes) = node.install();
    assert_eq!(verdict, node.chained("10-net.conflist"));
    assert_eq!(changes.len(), 2);
    assert_eq!(node.read("10-net.conflist.openshell-backup"), BRIDGE);
    let inode = std::fs::metadata(node.at("10-net.conflist")).unwrap().ino();
    assert_eq!(node.install(), (node.chained("10-net.conflist"), vec![]));
    assert_eq!(std::fs::metadata(node.at("10-net.conflist")).unwrap().ino(), inode);
    let removed = node.remove();
    assert_eq!(
        removed,
        [("10-net.conflist".into(), Action::Unchained), ("10-net.conflist.openshell-backup".into(), Action::Removed)]
    );
    assert_eq!(node.read("10-net.conflist"), BRIDGE);
    assert_eq!(node.names(), ["10-net.conflist"]);
    assert_eq!(node.remove(), []);
}

#[test]
fn what_was_altered_is_repaired_and_the_rest_stays() {
    let node = Node::with("10-net.conflist", BRIDGE);
    node.install();
    let text = node.read("10-net.conflist").replace("sandboxes", "elsewhere").replace("bridge", "ptp");
    node.write("10-net.conflist", &text);
    assert!(matches!(node.verify(), Verdict::Altered { what, .. } if what.contains("openshell")));
    let (verdict, changes) = node.install();
    assert_eq!(verdict, node.chained("10-net.conflist"));
    // There is something of ours in what was altered, so it is nobody's original.
    assert_eq!(changes, [("10-net.conflist".into(), Action::Chained)]);
    assert_eq!(node.read("10-net.conflist.openshell-backup"), BRIDGE);
    // Its owner writes it anew.
    let new = BRIDGE.replace("bridge", "ipvlan");
    node.write("10-net.conflist", &new);
    assert!(matches!(node.verify(), Verdict::Absent { .. }));
    assert!(node.install().0.is_chained());
    assert_eq!(node.read("10-net.conflist.openshell-backup"), new);
    node.remove();
    assert_eq!(node.read("10-net.conflist"), new);
}

#[test]
fn mode_and_owner_are_kept_and_backups_are_roots() {
    let node = Node::with("10-net.conflist", BRIDGE);
    let path = node.at("10-net.conflist");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    chown(&path, Some(1234), Some(2345)).unwrap();
    let attributes = |name: &str| {
        let meta = std::fs::metadata(node.at(name)).unwrap();
        (meta.mode() & 0o7777, meta.uid(), meta.gid())
    };
    node.install();
    assert_eq!(attributes("10-net.conflist"), (0o640, 1234, 2345));
    assert_eq!(attributes("10-net.conflist.openshell-backup"), (0o600, 1234, 2345));
    node.remove();
    assert_eq!(attributes("10-net.conflist"), (0o640, 1234, 2345));
}

#[test]
fn a_single_plugin_is_stood_in_for() {
    for (original, copy) in [("10-net.conf", "10-net-openshell.conflist"), ("10-net.json", "10-net-openshell.conflist")]
    {
        let node = Node::with(original, SINGLE);
        assert_eq!(node.verify(), Verdict::Absent { file: node.at(copy) });
        let (verdict, changes) = node.install();
        assert_eq!(verdict, node.chained(copy));
        assert_eq!(changes, [(copy.to_owned(), Action::Created)]);
        assert_eq!(node.names(), [copy, original], "runtimes sort it first");
        assert_eq!(node.read(original), SINGLE);
        let list: Value = serde_json::from_str(&node.read(copy)).unwrap();
        assert_eq!((&list["name"], &list["cniVersion"]), (&json!("net"), &json!("0.4.0")));
        assert_eq!(list["plugins"][0], serde_json::from_str::<Value>(SINGLE).unwrap());
        assert_eq!(list["plugins"][1]["type"], PLUGIN_TYPE);
        assert!(node.read(copy).contains(SINGLE.trim()));
        // The owner's rewriting does not undo it, and is followed.
        node.write(original, SINGLE.replace("1.4e3", "9000"));
        assert!(matches!(node.verify(), Verdict::Altered { .. }));
        assert!(node.install().0.is_chained());
        assert!(node.read(copy).contains("9000"));
        // A loss of power that emptied the copy.
        node.write(copy, "");
        assert_eq!(node.verify(), Verdict::Absent { file: node.at(copy) });
        assert!(node.install().0.is_chained());
        assert_eq!(node.remove(), [(copy.to_owned(), Action::Removed)]);
        assert_eq!(node.names(), [original]);
    }
}

#[test]
fn a_copy_goes_with_its_original_and_when_another_file_comes_first() {
    let node = Node::with("10-net.conf", SINGLE);
    node.install();
    std::fs::remove_file(node.at("10-net.conf")).unwrap();
    assert!(matches!(node.verify(), Verdict::NoPrimary { .. }));
    assert_eq!(node.install().1, [("10-net-openshell.conflist".into(), Action::Removed)]);
    node.write("10-net.conf", SINGLE);
    node.install();
    // The owner goes over to a list, which the copy still comes before.
    node.write("10-net.conflist", BRIDGE);
    std::fs::remove_file(node.at("10-net.conf")).unwrap();
    assert_eq!(node.verify(), Verdict::Absent { file: node.at("10-net.conflist") });
    let (verdict, _) = node.install();
    assert_eq!(verdict, node.chained("10-net.conflist"));
    assert_eq!(node.names(), ["10-net.conflist", "10-net.conflist.openshell-backup"]);
}

#[test]
fn somebody_elses_file_under_the_name_of_a_copy_is_theirs() {
    let node = Node::with("10-net.conf", SINGLE);
    node.write("10-net-openshell.conflist", BRIDGE);
    let (verdict, _) = node.install();
    // It is a list like any other, and the first.
    assert_eq!(verdict, node.chained("10-net-openshell.conflist"));
    node.remove();
    assert_eq!(node.read("10-net-openshell.conflist"), BRIDGE);
    assert_eq!(node.read("10-net.conf"), SINGLE);
}

#[test]
fn removal_takes_ours_out_of_every_list_and_nothing_else() {
    let node = Node::with("10-net.conflist", BRIDGE);
    node.install();
    node.write("05-new.conflist", BRIDGE.replace("bridge", "cilium-cni"));
    node.install();
    // Somebody chains after us.
    let text = node.read("10-net.conflist").replace("]}", r#" , {"type":"late"}]}"#);
    node.write("10-net.conflist", &text);
    node.remove();
    assert_eq!(node.read("10-net.conflist"), BRIDGE.replace("]}", r#" , {"type":"late"}]}"#));
    assert_eq!(node.read("05-new.conflist"), BRIDGE.replace("bridge", "cilium-cni"));
    assert_eq!(node.names(), ["05-new.conflist", "10-net.conflist"]);
}

#[test]
fn a_list_that_would_be_empty_without_ours_is_left() {
    let text = r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"openshell-cni"}]}"#;
    let node = Node::with("10-net.conflist", text);
    assert!(why(&node.install().0).contains("only plugin"));
    assert_eq!(node.remove(), []);
    assert_eq!(node.read("10-net.conflist"), text);
    assert_eq!(names_plugin(node.path(), PLUGIN_TYPE).unwrap(), [node.at("10-net.conflist")]);
}

#[test]
fn looking_is_cheap() {
    let node = Node::with("10-net.conflist", BRIDGE);
    node.install();
    // The best of many: what else this machine does is not the question.
    let look = || {
        let began = std::time::Instant::now();
        assert!(node.verify().is_chained());
        began.elapsed()
    };
    let best = (0..200).map(|_| look()).min().unwrap();
    println!("a look takes {best:?}");
    assert!(best < Duration::from_millis(2), "{best:?}");
}
