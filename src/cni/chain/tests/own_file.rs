//! The two ways with a file of our own.

use super::*;

fn multus(node: &Node) -> Chain {
    chain(&node.at("vendor-cni-chain"), Way::MultusChain)
}

#[test]
fn multus_directory_is_made_filled_repaired_and_cleared() {
    let node = Node::new();
    // Where multus has not come up yet there is nothing to make it in.
    let early = chain(&node.at("run/net.d/vendor-cni-chain"), Way::MultusChain);
    assert!(matches!(early.install(|_| panic!("nothing to do")).unwrap(), Verdict::NoPrimary { .. }));
    let chain = multus(&node);
    let file = "vendor-cni-chain/openshell-cni.conf";
    let (verdict, changes) = node.install_by(&chain);
    assert_eq!(verdict, node.chained(file));
    assert_eq!(changes, [("vendor-cni-chain".into(), Action::Created), (file.into(), Action::Created)]);
    let text: Value = serde_json::from_str(&node.read(file)).unwrap();
    assert_eq!(text["name"], "openshell-cni");
    assert_eq!(text["type"], "openshell-cni");
    assert_eq!(text["cniVersion"], "0.3.1");
    assert_eq!(text["openshell"], chain.settings);
    assert_eq!(node.install_by(&chain), (verdict, vec![]));
    for broken in ["", "{", r#"{"type":"openshell-cni"}"#] {
        node.write(file, broken);
        assert!(matches!(chain.verify().unwrap(), Verdict::Altered { .. }));
        assert!(node.install_by(&chain).0.is_chained());
    }
    std::fs::remove_file(node.at(file)).unwrap();
    assert!(matches!(chain.verify().unwrap(), Verdict::Absent { .. }));
    assert!(node.install_by(&chain).0.is_chained());
    assert!(!chain.way.proves_itself());
    node.remove_by(&chain);
    assert_eq!(node.names(), Vec::<String>::new());
    // A directory of somebody's stays, with what is theirs.
    std::fs::create_dir(node.at("vendor-cni-chain")).unwrap();
    node.write("vendor-cni-chain/istio-cni.conf", r#"{"type":"istio-cni"}"#);
    node.install_by(&chain);
    node.remove_by(&chain);
    std::fs::remove_file(node.at("vendor-cni-chain/istio-cni.conf")).unwrap();
    node.install_by(&chain);
    node.remove_by(&chain);
    assert_eq!(node.names(), ["vendor-cni-chain"]);
}

#[test]
fn the_drop_in_directory_is_that_of_the_network_in_use() {
    let node = Node::with("10-net.conflist", BRIDGE);
    let chain = node.chain(Way::DropIn);
    assert_eq!(chain.verify().unwrap(), Verdict::Absent { file: node.at("net/openshell-cni.conf") });
    let (verdict, changes) = node.install_by(&chain);
    assert_eq!(verdict, node.chained("net/openshell-cni.conf"));
    assert_eq!(changes, [("net".into(), Action::Created), ("net/openshell-cni.conf".into(), Action::Created)]);
    assert_eq!(node.read("10-net.conflist"), BRIDGE);
    // The network gets another name.
    node.write("10-net.conflist", BRIDGE.replace("\"net\"", "\"other\""));
    assert!(matches!(chain.verify().unwrap(), Verdict::Absent { .. }));
    assert_eq!(node.install_by(&chain).0, node.chained("other/openshell-cni.conf"));
    assert_eq!(node.names(), ["10-net.conflist", "other"]);
    node.remove_by(&chain);
    assert_eq!(node.names(), ["10-net.conflist"]);
    // What is asked of it by a chain of the other way is the same.
    node.install_by(&chain);
    node.remove();
    assert_eq!(node.names(), ["10-net.conflist"]);
}

#[test]
fn nothing_is_dropped_where_it_would_not_be_looked_at() {
    for (name, text) in [
        ("10-net.conflist", BRIDGE.replace("\"plugins\"", "\"loadOnlyInlinedPlugins\":true,\"plugins\"")),
        ("10-net.conflist", BRIDGE.replace("\"net\"", "\"../net\"")),
        ("10-net.conf", r#"{"cniVersion":"1.0.0","name":"net","type":"bridge"}"#.into()),
    ] {
        let node = Node::with(name, &text);
        let (verdict, changes) = node.install_by(&node.chain(Way::DropIn));
        assert!(matches!(verdict, Verdict::Unchainable { .. }), "{verdict}");
        assert_eq!(changes, []);
        assert_eq!(node.names(), [name]);
    }
    // Control: what says so and means it.
    let node =
        Node::with("10-net.conflist", &BRIDGE.replace("\"plugins\"", "\"loadOnlyInlinedPlugins\":false,\"plugins\""));
    assert!(node.install_by(&node.chain(Way::DropIn)).0.is_chained());
}
