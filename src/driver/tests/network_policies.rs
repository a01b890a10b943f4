//! What the rendered NetworkPolicies let through, by a simulator written from their documentation
//! (kubernetes.io/docs/concepts/services-networking/network-policies): policies add up, a pod that none selects is open,
//! an absent or empty list of peers is everybody, ports are the pods' own.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use proptest::prelude::*;
use serde_json::Value;

use super::{LOCAL, PLATFORM, SANDBOX, cluster, config, rendered, sandbox};
use crate::driver::config::Peer;
use crate::driver::{DriverConfig, Object, Topology};

type Labels = BTreeMap<String, String>;

/// A pod in a cluster, or who is outside of it.
#[derive(Clone, Debug, Default)]
struct Pod {
    namespace: String,
    namespace_labels: Labels,
    labels: Labels,
    /// Where ranges of addresses are to find it.
    address: Option<Ipv4Addr>,
}

/// Somebody outside of the cluster.
fn outside(address: [u8; 4]) -> Pod {
    Pod { address: Some(address.into()), ..Pod::default() }
}

fn is_in(range: &Value, address: Ipv4Addr) -> bool {
    let (start, bits) = range.as_str().and_then(|range| range.split_once('/')).expect("a range");
    let start: Ipv4Addr = start.parse().expect("an address");
    let bits: u32 = bits.parse().expect("bits");
    let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
    start.to_bits() & mask == address.to_bits() & mask
}

fn labels(value: &Value) -> Labels {
    let entries = value.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().unwrap_or_default().to_owned())).collect()
}

fn selects(selector: &Value, found: &Labels) -> bool {
    labels(&selector["matchLabels"]).iter().all(|(key, value)| found.get(key) == Some(value))
}

/// Whether a policy's rules of one direction let the two talk; `None` where it says nothing about the pod.
fn says(
    policy: &Value,
    direction: &str,
    list: &str,
    peers: &str,
    own: &Pod,
    other: &Pod,
    port: (&str, u16),
) -> Option<bool> {
    let spec = &policy["spec"];
    let applies = policy["metadata"]["namespace"] == own.namespace.as_str()
        && selects(&spec["podSelector"], &own.labels)
        && spec["policyTypes"].as_array().is_some_and(|types| types.iter().any(|kind| kind == direction));
    if !applies {
        return None;
    }
    let rules = spec[list].as_array().cloned().unwrap_or_default();
    Some(rules.iter().any(|rule| {
        let everybody = Vec::new();
        let listed = rule[peers].as_array().unwrap_or(&everybody);
        let peer = listed.is_empty()
            || listed.iter().any(|peer| {
                if !peer["ipBlock"].is_null() {
                    let (block, address) = (&peer["ipBlock"], other.address);
                    let excepted = |address| {
                        block["except"].as_array().is_some_and(|all| all.iter().any(|part| is_in(part, address)))
                    };
                    return address.is_some_and(|address| is_in(&block["cidr"], address) && !excepted(address));
                }
                let namespace = match &peer["namespaceSelector"] {
                    Value::Null => {
                        policy["metadata"]["namespace"] == other.namespace.as_str() || peer["podSelector"].is_null()
                    }
                    selector => selects(selector, &other.namespace_labels),
                };
                namespace && (peer["podSelector"].is_null() || selects(&peer["podSelector"], &other.labels))
            });
        let ports = rule["ports"].as_array().unwrap_or(&everybody);
        let open = |entry: &Value| entry["protocol"] == port.0 && entry["port"] == port.1;
        peer && (ports.is_empty() || ports.iter().any(open))
    }))
}

/// Whether a connection passes.
fn passes(policies: &[Value], from: &Pod, to: &Pod, port: (&str, u16)) -> bool {
    let verdict = |found: Vec<bool>| found.is_empty() || found.contains(&true);
    let out = policies.iter().filter_map(|policy| says(policy, "Egress", "egress", "to", from, to, port)).collect();
    let into =
        policies.iter().filter_map(|policy| says(policy, "Ingress", "ingress", "from", to, from, port)).collect();
    verdict(out) && verdict(into)
}

fn policies(objects: &[Object]) -> Vec<Value> {
    objects.iter().filter(|object| object.kind() == "NetworkPolicy").map(|object| object.value().clone()).collect()
}

fn map(entries: &[(&str, &str)]) -> Labels {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The two pods of a rendered sandbox.
fn pods(objects: &[Object]) -> (Pod, Pod) {
    let pod = |kind: &str| {
        let object = objects.iter().find(|object| object.kind() == kind).expect(kind).value();
        let own = if kind == "Pod" { &object["metadata"] } else { &object["spec"]["template"]["metadata"] };
        Pod {
            namespace: object["metadata"]["namespace"].as_str().expect("a namespace").to_owned(),
            labels: labels(&own["labels"]),
            ..Pod::default()
        }
    };
    (pod("Pod"), pod("Deployment"))
}

fn objects(dns: Vec<Peer>, gateway: Vec<Peer>, id: &str) -> Vec<Object> {
    let mut config = DriverConfig { topology: Topology::ProxyPod, ..config(LOCAL) };
    config.proxy_pod.dns_peers = dns;
    config.proxy_pod.gateway_peers = gateway;
    let mut sandbox = sandbox(SANDBOX);
    sandbox.id = id.to_owned();
    rendered(&config, &sandbox, &cluster(None))
}

fn peer(namespace: &[(&str, &str)], pod: &[(&str, &str)], port: u16) -> Peer {
    Peer { namespace_selector: map(namespace), pod_selector: map(pod), cidr: None, port }
}

#[test]
fn an_agent_reaches_its_proxy_dns_and_the_gateway_and_without_the_fence_everybody() {
    let gateway = vec![peer(&[("team", "gw")], &[("app", "gateway")], 8080)];
    let dns = vec![peer(&[("name", "dns")], &[], 5353)];
    let mine = objects(dns.clone(), gateway.clone(), "one");
    let (agent, proxy) = pods(&mine);
    let (neighbour, their_proxy) = pods(&objects(dns, gateway, "two"));
    let resolver = Pod { namespace: "dns".into(), namespace_labels: map(&[("name", "dns")]), ..Pod::default() };
    let server = Pod {
        namespace: "gw".into(),
        namespace_labels: map(&[("team", "gw")]),
        labels: map(&[("app", "gateway")]),
        ..Pod::default()
    };
    let impostor = Pod { labels: map(&[("app", "gateway")]), ..resolver.clone() };
    let all = policies(&mine);
    for (to, port, expected) in [
        (&proxy, ("TCP", 3128), true),
        (&proxy, ("TCP", 9090), false),
        (&proxy, ("UDP", 3128), false),
        (&their_proxy, ("TCP", 3128), false),
        (&neighbour, ("TCP", 3128), false),
        (&resolver, ("UDP", 5353), true),
        (&resolver, ("TCP", 5353), true),
        (&resolver, ("TCP", 443), false),
        (&server, ("TCP", 8080), true),
        (&server, ("UDP", 8080), false),
        (&impostor, ("TCP", 8080), false),
    ] {
        assert_eq!(passes(&all, &agent, to, port), expected, "{to:?} {port:?}");
        // The control: it is the fence that refuses.
        assert!(passes(&all[1..], &agent, to, port) || to.labels == proxy.labels);
    }
    assert!(!passes(&all, &neighbour, &proxy, ("TCP", 3128)), "nobody else reaches the proxy");
    assert!(passes(&all[..1], &neighbour, &proxy, ("TCP", 3128)));
}

#[test]
fn the_simulator_takes_an_empty_peer_for_everybody_and_none_is_rendered() {
    let mine = objects(vec![Peer::default()], vec![Peer::default()], "one");
    let (agent, _) = pods(&mine);
    let anybody = Pod { namespace: "far".into(), ..Pod::default() };
    let mut all = policies(&mine);
    assert!(!passes(&all, &agent, &anybody, ("TCP", 443)));
    all[0]["spec"]["egress"].as_array_mut().expect("rules").push(serde_json::json!({"to": [{}]}));
    assert!(passes(&all, &agent, &anybody, ("TCP", 443)), "a policy with an empty peer would be open");
}

#[test]
fn what_the_platform_fences_reaches_what_the_operator_has_named_and_nothing_else() {
    let config = config(&format!("{LOCAL}{PLATFORM}"));
    let objects = rendered(&config, &sandbox(SANDBOX), &cluster(None));
    let all = policies(&objects);
    assert_eq!(objects[0].kind(), "NetworkPolicy", "before anything that can start");
    let metadata = &objects.last().expect("a pod").value()["metadata"];
    let agent = Pod { namespace: "openshell".into(), labels: labels(&metadata["labels"]), ..Pod::default() };
    let neighbour = Pod { namespace: "openshell".into(), address: Some([10, 1, 2, 3].into()), ..Pod::default() };
    let resolver = Pod {
        namespace: "kube-system".into(),
        namespace_labels: map(&[("kubernetes.io/metadata.name", "kube-system")]),
        labels: map(&[("k8s-app", "kube-dns")]),
        ..Pod::default()
    };
    for (to, port, expected) in [
        (outside([1, 1, 1, 1]), ("TCP", 443), true),
        (outside([1, 1, 1, 1]), ("TCP", 80), true),
        (outside([1, 1, 1, 1]), ("TCP", 22), false),
        (outside([1, 1, 1, 1]), ("UDP", 443), false),
        (outside([169, 254, 169, 254]), ("TCP", 80), false),
        (neighbour, ("TCP", 443), false),
        (resolver.clone(), ("UDP", 53), true),
        (resolver, ("TCP", 443), false),
    ] {
        assert_eq!(passes(&all, &agent, &to, port), expected, "{to:?} {port:?}");
        // The control: it is the fence that refuses.
        assert!(passes(&[], &agent, &to, port));
    }
    // What the operator is told, where they look.
    for object in [&objects[0], objects.last().expect("a pod")] {
        let told = object.value()["metadata"]["annotations"]["openshell.ai/network-trade-off"].as_str().expect("words");
        assert!(told.contains("NetworkPolicy alone"), "{told}");
    }
}

proptest! {
    #[test]
    fn an_agent_reaches_nobody_by_accident(
        namespace in "[a-c]", namespace_labels in prop::collection::btree_map("[a-c]", "[a-c]", 0..3),
        labels in prop::collection::btree_map("[a-c]", "[a-c]", 0..3), port in 1_u16..6,
        selected in prop::collection::btree_map("[a-c]", "[a-c]", 0..2),
        spaces in prop::collection::btree_map("[a-c]", "[a-c]", 0..2), open in 1_u16..6,
    ) {
        let peer = Peer { namespace_selector: spaces.clone(), pod_selector: selected.clone(), cidr: None, port: open };
        let mine = objects(vec![peer.clone()], vec![], "one");
        let (agent, _) = pods(&mine);
        let to = Pod { namespace, namespace_labels, labels, address: None };
        // A peer without namespaces means the agent's own, and no pod here is in it.
        let meant = !spaces.is_empty()
            && port == open
            && spaces.iter().all(|(key, value)| to.namespace_labels.get(key) == Some(value))
            && selected.iter().all(|(key, value)| to.labels.get(key) == Some(value));
        prop_assert_eq!(passes(&policies(&mine), &agent, &to, ("TCP", port)), meant);
    }
}
