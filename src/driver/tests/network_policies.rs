//! What the rendered NetworkPolicies let through, by a simulator written from their documentation
//! (kubernetes.io/docs/concepts/services-networking/network-policies): policies add up, a pod that none selects is open,
//! an absent or empty list of peers is everybody, ports are the pods' own.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::Value;

use super::{LOCAL, SANDBOX, cluster, config, rendered, sandbox};
use crate::driver::config::Peer;
use crate::driver::{DriverConfig, Object, Topology};

type Labels = BTreeMap<String, String>;

/// A pod in a cluster.
#[derive(Clone, Debug, Default)]
struct Pod {
    namespace: String,
    namespace_labels: Labels,
    labels: Labels,
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
            namespace_labels: Labels::new(),
            labels: labels(&own["labels"]),
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
    Peer { namespace_selector: map(namespace), pod_selector: map(pod), port }
}

#[test]
fn an_agent_reaches_its_proxy_dns_and_the_gateway_and_without_the_fence_everybody() {
    let gateway = vec![peer(&[("team", "gw")], &[("app", "gateway")], 8080)];
    let dns = vec![peer(&[("name", "dns")], &[], 5353)];
    let mine = objects(dns.clone(), gateway.clone(), "one");
    let (agent, proxy) = pods(&mine);
    let (neighbour, their_proxy) = pods(&objects(dns, gateway, "two"));
    let resolver = Pod { namespace: "dns".into(), namespace_labels: map(&[("name", "dns")]), ..Pod::default() };
    let server =
        Pod { namespace: "gw".into(), namespace_labels: map(&[("team", "gw")]), labels: map(&[("app", "gateway")]) };
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

proptest! {
    #[test]
    fn an_agent_reaches_nobody_by_accident(
        namespace in "[a-c]", namespace_labels in prop::collection::btree_map("[a-c]", "[a-c]", 0..3),
        labels in prop::collection::btree_map("[a-c]", "[a-c]", 0..3), port in 1_u16..6,
        selected in prop::collection::btree_map("[a-c]", "[a-c]", 0..2),
        spaces in prop::collection::btree_map("[a-c]", "[a-c]", 0..2), open in 1_u16..6,
    ) {
        let peer = Peer { namespace_selector: spaces.clone(), pod_selector: selected.clone(), port: open };
        let mine = objects(vec![peer.clone()], vec![], "one");
        let (agent, _) = pods(&mine);
        let to = Pod { namespace, namespace_labels, labels };
        // A peer without namespaces means the agent's own, and no pod here is in it.
        let meant = !spaces.is_empty()
            && port == open
            && spaces.iter().all(|(key, value)| to.namespace_labels.get(key) == Some(value))
            && selected.iter().all(|(key, value)| to.labels.get(key) == Some(value));
        prop_assert_eq!(passes(&policies(&mine), &agent, &to, ("TCP", port)), meant);
    }
}
