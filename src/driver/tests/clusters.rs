//! What operators say of their cluster, and what of the objects follows it: how long things take there, where pods may run,
//! what its names and addresses are, what its quotas want.

use serde_json::{Value, json};

use super::rendering::command;
use super::{LOCAL, SANDBOX, agent_spec, container, containers, of};
use crate::driver::{Object, SandboxApi, Topology};

#[test]
fn init_waits_as_long_as_is_said_for_what_may_come_late() {
    let waits = |topology, settings: &str| -> Vec<String> {
        let objects = of(topology, &format!("{LOCAL}{settings}"), SANDBOX, None);
        let all = containers(agent_spec(&objects)).flat_map(command);
        all.filter_map(|word| word.strip_prefix("--timeout=")).map(str::to_owned).collect()
    };
    let (pod, platform) = ("proxy_pod.start_timeout_secs = 7\n", "platform_network.start_timeout_secs = 8\n");
    // The pod never restarts: an init container that gives up is the end of it.
    assert_eq!(agent_spec(&of(Topology::ProxyPod, LOCAL, SANDBOX, None))["restartPolicy"], "Never");
    assert_eq!(waits(Topology::ProxyPod, ""), ["600", "600"]);
    assert_eq!(waits(Topology::ProxyPod, pod), ["7", "7"]);
    assert_eq!(waits(Topology::Combined, super::PLATFORM), ["600"]);
    assert_eq!(waits(Topology::Combined, &format!("{}{platform}", super::PLATFORM)), ["8"]);
    // A fence of the pod's own is there or is not.
    assert!(waits(Topology::Sidecar, &format!("{pod}{platform}")).is_empty());
}

#[test]
fn every_agent_is_asked_whether_it_is_ready_and_nobody_else_is_at_that_address() {
    for (name, topology) in Topology::ALL {
        for objects in [
            of(topology, LOCAL, SANDBOX, None),
            of(Topology::Combined, &format!("{LOCAL}{}", super::PLATFORM), SANDBOX, None),
        ] {
            for spec in objects.iter().filter_map(Object::pod_spec) {
                let mut seen = std::collections::BTreeSet::new();
                for container in spec["containers"].as_array().expect("containers") {
                    let probe = command(&container["readinessProbe"]["exec"]);
                    let address = probe.last().unwrap_or_else(|| panic!("{name}: no probe in {container:#}"));
                    assert_eq!(probe[..2], [command(container)[0], "health"], "{name}");
                    assert!(command(container).contains(&format!("--admin-bind={address}").as_str()), "{name}");
                    assert!(seen.insert((*address).to_owned()), "{name}: {address} twice");
                }
            }
        }
    }
}

#[test]
fn both_pods_may_run_where_the_sandbox_may() {
    let placed = "driver_config: {pod: {node_selector: {disk: fast}, tolerations: [{key: a, operator: Exists}], \
                  priority_class_name: high}}\nplatform_config: {node_selector: {pool: agents}}\n";
    let near = format!("{LOCAL}proxy_pod.affinity = \"required\"\n");
    let objects = of(Topology::ProxyPod, &near, &format!("{SANDBOX}{placed}"), None);
    let specs: Vec<&Value> = objects.iter().filter_map(Object::pod_spec).collect();
    assert_eq!(specs.len(), 2);
    for spec in &specs {
        assert_eq!(spec["nodeSelector"], json!({"disk": "fast", "pool": "agents"}));
        assert_eq!(spec["tolerations"], json!([{"key": "a", "operator": "Exists"}]));
        assert_eq!(spec["priorityClassName"], "high");
    }
    assert!(specs[0]["affinity"]["podAffinity"].is_object() && specs[1]["affinity"].is_null());
    // Control: where nothing is said, either may be anywhere.
    let objects = of(Topology::ProxyPod, LOCAL, SANDBOX, None);
    for spec in objects.iter().filter_map(Object::pod_spec) {
        assert!(spec["nodeSelector"].is_null() && spec["tolerations"].is_null() && spec["affinity"].is_null());
    }
}

#[test]
fn a_clusters_domain_its_name_servers_and_its_ip_version_are_what_the_operator_says() {
    let settings = format!(
        "{LOCAL}[proxy_pod]\ncluster_domain = \"corp.example\"\nip_family = \"any\"\n\
         dns_peers = [{{cidr = \"169.254.20.10/32\", port = 53}}]\n"
    );
    let bound = |objects: &[Object]| {
        let deployment = objects.iter().find(|object| object.kind() == "Deployment").expect("the proxy");
        let network =
            container(deployment.pod_spec().expect("a specification"), "openshell-supervisor-network").clone();
        command(&network).into_iter().find_map(|word| word.strip_prefix("--bind=")).expect("an address").to_owned()
    };
    let objects = of(Topology::ProxyPod, &settings, SANDBOX, None);
    assert_eq!(bound(&objects), "[::]:3128");
    let text = crate::driver::to_yaml(&objects);
    assert!(!text.contains("cluster.local"), "{text}");
    assert_eq!(text.matches(".openshell.svc.corp.example:3128").count(), 3, "{text}");
    let rules = objects[0].value()["spec"]["egress"].as_array().expect("rules").clone();
    assert_eq!(rules.len(), 2, "{rules:?}");
    assert_eq!(rules[1]["to"], json!([{"ipBlock": {"cidr": "169.254.20.10/32"}}]));
    assert_eq!(rules[1]["ports"][0], json!({"protocol": "UDP", "port": 53}));
    // Control.
    let usual = of(Topology::ProxyPod, LOCAL, SANDBOX, None);
    assert_eq!(bound(&usual), "0.0.0.0:3128");
    assert!(crate::driver::to_yaml(&usual).contains(".openshell.svc.cluster.local:3128"));
}

#[test]
fn every_container_but_the_agents_has_the_resources_that_a_quota_wants() {
    let quota = "supervisor_resources = {requests = {cpu = \"50m\"}, limits = {memory = \"64Mi\"}}\n";
    let resources = |topology, settings: &str| -> Vec<(String, Value)> {
        let objects = of(topology, &format!("{settings}{LOCAL}"), SANDBOX, Some(SandboxApi::V1Beta1));
        let all = objects.iter().filter_map(Object::pod_spec).flat_map(containers);
        all.map(|each| (each["name"].as_str().expect("a name").to_owned(), each["resources"].clone())).collect()
    };
    for (name, topology) in Topology::ALL {
        let said = resources(topology, quota);
        assert!(said.len() > 2, "{name}: {said:?}");
        for (container, found) in said {
            let expected = json!({"limits": {"memory": "64Mi"}, "requests": {"cpu": "50m"}});
            assert_eq!(found, if container == "agent" { Value::Null } else { expected }, "{name} {container}");
        }
        // Control: without it nobody has any but who was measured.
        for (container, found) in resources(topology, "") {
            let measured = topology == Topology::ProxyPod && container == "openshell-supervisor-network";
            assert_eq!(found.is_null(), !measured, "{name} {container}");
        }
    }
}
