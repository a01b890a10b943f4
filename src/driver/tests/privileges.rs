//! The table of `render --explain`.

use super::{LOCAL, SANDBOX, of};
use crate::driver::object::{Fields, Object};
use crate::driver::privileges::Row;
use crate::driver::{Topology, privileges};

fn rows(topology: Topology, settings: &str) -> Vec<Row> {
    privileges(&of(topology, &format!("{LOCAL}{settings}"), SANDBOX, None)).rows
}

#[test]
fn the_table_says_what_seed_001_says_of_each_topology() {
    let added = |topology| -> Vec<(String, Vec<String>)> {
        let with = rows(topology, "").into_iter().filter(|row| !row.capabilities.is_empty());
        with.map(|row| (row.container, row.capabilities)).collect()
    };
    let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let network = || ("openshell-supervisor-network".to_owned(), list(&["SYS_PTRACE", "DAC_READ_SEARCH"]));
    assert_eq!(added(Topology::ProxyPod), []);
    assert_eq!(added(Topology::CniSidecar), [network()]);
    let init = ("openshell-network-init".to_owned(), list(&["NET_ADMIN", "CHOWN"]));
    assert_eq!(added(Topology::Sidecar), [init, network()]);
    assert_eq!(added(Topology::Combined).len(), 1);
    for (_, topology) in Topology::ALL {
        for row in rows(topology, "") {
            assert!(!row.privileged && !row.escalation && row.drops_all, "{row:?}");
            let shares = matches!(topology, Topology::Sidecar | Topology::CniSidecar);
            assert_eq!(row.namespaces, if shares { list(&["pod's processes"]) } else { list(&[]) });
            assert_eq!(row.user == Some(0), !row.non_root, "{row:?}");
        }
    }
}

#[test]
fn the_table_is_computed_from_the_objects_and_takes_silence_for_the_apis_default() {
    let bare = serde_json::json!({"hostNetwork": true, "containers": [{"name": "c"}]});
    let object = Object::new("v1", "Pod", serde_json::json!({"name": "p"}), Fields::new().with("spec", bare));
    let table = privileges(&[object]);
    let row = &table.rows[0];
    assert!(row.escalation && !row.drops_all && !row.non_root && !row.read_only_root && row.user.is_none());
    assert_eq!(row.namespaces, ["host network"]);
    assert!(table.to_string().contains("the runtime's"), "{table}");
}
