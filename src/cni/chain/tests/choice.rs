//! Which file is chained onto.

use std::os::unix::fs::symlink;

use super::*;

const OTHER: &str = r#"{"cniVersion":"0.3.1","name":"other","plugins":[{"type":"macvlan"}]}"#;

#[test]
fn nothing_there_is_waited_for() {
    let node = Node::new();
    assert!(matches!(node.verify(), Verdict::NoPrimary { .. }));
    assert_eq!(node.install().1, []);
    let missing = chain(&node.at("missing"), Way::Conflist);
    assert!(matches!(missing.install(|_| panic!("nothing to do")), Ok(Verdict::NoPrimary { .. })));
    assert_eq!(node.names(), Vec::<String>::new());
    node.write("10-net.conflist", BRIDGE);
    assert_eq!(node.install().0, node.chained("10-net.conflist"));
}

#[test]
fn the_first_that_a_runtime_loads_is_chained_onto() {
    let node = Node::with("10-net.conflist", BRIDGE);
    node.write("20-other.conflist", OTHER);
    node.write("00-empty.conflist", "");
    node.write("01-half.conflist", &BRIDGE[..30]);
    node.write("02-foreign.json", r#"{"log-driver": "journald"}"#);
    node.write("03-kubeconfig.conf", "apiVersion: v1\nkind: Config\n");
    node.write("04-list-in-a-conf.conf", BRIDGE);
    node.write("05-backup.conflist.bak", BRIDGE);
    node.write("calico-kubeconfig", "apiVersion: v1\n");
    std::fs::create_dir(node.at("06-directory.conflist")).unwrap();
    let (verdict, changes) = node.install();
    assert_eq!(verdict, node.chained("10-net.conflist"));
    let backup = "10-net.conflist.openshell-backup".to_owned();
    assert_eq!(changes, [(backup, Action::Created), ("10-net.conflist".into(), Action::Chained)]);
    assert_eq!(node.read("20-other.conflist"), OTHER);
    // A hidden file counts for runtimes, and comes first.
    node.write(".hidden.conflist", OTHER);
    assert_eq!(node.verify(), Verdict::Absent { file: node.at(".hidden.conflist") });
}

#[test]
fn with_nothing_else_there_each_that_is_skipped_is_named() {
    let node = Node::with("00-empty.conflist", "");
    node.write("01-kubeconfig.conf", "apiVersion: v1\n");
    let (verdict, changes) = node.install();
    let Verdict::NoPrimary { skipped, .. } = &verdict else { panic!("{verdict}") };
    assert_eq!(skipped.len(), 2);
    assert!(verdict.to_string().contains("00-empty.conflist: it is empty"), "{verdict}");
    assert_eq!(changes, []);
}

#[test]
fn a_file_that_some_runtime_may_load_ends_the_search() {
    for (name, text) in [
        ("00-first.conflist", r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"Type":"a"}]}"#),
        ("00-first.conflist", r#"{"cniVersion":"0.2.0","name":"n","plugins":[{"type":"a"}]}"#),
        ("00-first.conf", r#"{"cniVersion":"1.0.0","name":"multus","type":"multus-shim"}"#),
        ("00-first.json", r#"{"cniVersion":"1.0.0","type":"bridge"}"#),
        ("00-first.json", r#"{"cniVersion":"1.0.0","name":"a","NAME":"b","type":"bridge"}"#),
        ("00-first.json", r#"{"CNIVersion":"1.0.0","name":"a","type":"bridge"}"#),
    ] {
        let node = Node::with(name, text);
        node.write("10-net.conflist", BRIDGE);
        let (verdict, changes) = node.install();
        assert!(matches!(&verdict, Verdict::Unchainable { file, .. } if *file == node.at(name)), "{verdict}");
        assert_eq!(changes, [], "{text}");
        // Control: without it the next one is taken.
        std::fs::remove_file(node.at(name)).unwrap();
        assert_eq!(node.install().0, node.chained("10-net.conflist"));
    }
}

#[test]
fn links_and_what_is_no_file_end_the_search_too() {
    let node = Node::with("10-net.conflist", BRIDGE);
    node.write("target", BRIDGE);
    type Place = fn(&Path);
    let places: [(&str, Place); 3] = [
        ("a link", |path| symlink("target", path).unwrap()),
        ("a link to nowhere", |path| symlink("/nowhere", path).unwrap()),
        ("a pipe", |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRUSR).unwrap()),
    ];
    for (what, make) in places {
        let path = node.at("00-first.conflist");
        make(&path);
        assert!(matches!(node.verify(), Verdict::Unchainable { .. }), "{what}");
        assert_eq!(node.install().1, [], "{what}");
        std::fs::remove_file(path).unwrap();
    }
    node.write("00-first.conflist", vec![b' '; 3 * 1024 * 1024]);
    assert!(why(&node.verify()).contains("larger than"));
    std::fs::remove_file(node.at("00-first.conflist")).unwrap();
    // Control, and the directory itself may be a link.
    let link = node.path().with_extension("link");
    symlink(node.path(), &link).unwrap();
    let verdict = chain(&link, Way::Conflist).install(|_| ());
    std::fs::remove_file(&link).unwrap();
    assert!(verdict.unwrap().is_chained());
}

#[test]
fn a_file_that_is_being_written_is_waited_for() {
    let node = Node::with("20-other.conflist", OTHER);
    node.write_now("10-net.conflist", &BRIDGE[..40]);
    let (verdict, changes) = node.install();
    assert!(why(&verdict).contains("waited for"), "{verdict}");
    assert_eq!(changes, []);
    node.write_now("10-net.conflist", BRIDGE);
    assert_eq!(node.install().0, node.chained("10-net.conflist"));
    // Control: one that stays so is passed over.
    node.write("10-net.conflist", &BRIDGE[..40]);
    assert_eq!(node.install().0, node.chained("20-other.conflist"));
}

#[test]
fn a_named_file_is_chained_onto_and_does_not_count_while_another_comes_first() {
    let node = Node::with("10-net.conflist", BRIDGE);
    node.write("20-other.conflist", OTHER);
    let chain = named(&node, "20-other.conflist");
    let (verdict, _) = node.install_by(&chain);
    let (file, by) = (node.at("20-other.conflist"), node.at("10-net.conflist"));
    assert_eq!(verdict, Verdict::Shadowed { file: file.clone(), by });
    assert_eq!(node.read("10-net.conflist"), BRIDGE);
    std::fs::remove_file(node.at("10-net.conflist")).unwrap();
    assert_eq!(chain.verify().unwrap(), Verdict::Chained { file });
    for (name, told) in
        [("30-missing.conflist", "waiting for"), ("30-missing.yaml", "expected a name that ends in .conflist")]
    {
        let verdict = named(&node, name).verify().unwrap();
        assert!(matches!(verdict, Verdict::NoPrimary { .. }));
        assert!(verdict.to_string().contains(told) && verdict.to_string().contains(name), "{verdict}");
    }
}

#[test]
fn names_may_be_as_long_as_file_systems_allow() {
    for end in [".conflist", ".conf"] {
        for length in [235, 249, 255] {
            let name = "x".repeat(length - end.len()) + end;
            let single = r#"{"cniVersion":"1.0.0","name":"net","type":"bridge"}"#;
            let text = if end == ".conf" { single } else { BRIDGE };
            let node = Node::with(&name, text);
            let (verdict, _) = node.install();
            assert!(verdict.is_chained(), "{length}{end}: {verdict}");
            node.chain(Way::Conflist).remove(|_| ()).unwrap();
            assert_eq!((node.names(), node.read(&name).as_str()), (vec![name.clone()], text), "{length}{end}");
        }
    }
}

#[test]
fn a_list_whose_plugins_lie_in_its_directory_is_not_edited() {
    let text = r#"{"cniVersion":"1.1.0","name":"net"}"#;
    let node = Node::with("10-net.conflist", text);
    assert!(why(&node.verify()).contains("no plugins"));
    std::fs::create_dir(node.at("net")).unwrap();
    node.write("net/10-bridge.conf", r#"{"type":"bridge"}"#);
    let (verdict, changes) = node.install();
    assert!(why(&verdict).contains("drop-in"), "{verdict}");
    assert_eq!(changes, []);
    // Control: the way that it names works.
    assert!(node.install_by(&node.chain(Way::DropIn)).0.is_chained());
}
