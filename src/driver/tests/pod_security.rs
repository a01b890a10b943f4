//! The standards' evaluator, proven on fixtures of our own, and what it says of rendered pods.

use serde_json::{Value, json};

use super::{LOCAL, PLATFORM, SANDBOX, agent_spec, containers, of};
use crate::driver::pod_security::{Level, level, of_container, of_pod};
use crate::driver::{SandboxApi, Topology};

fn of_whole(spec: &Value) -> Vec<&'static str> {
    of_pod(spec).into_iter().chain(containers(spec).flat_map(|container| of_container(spec, container))).collect()
}

/// The least that passes.
fn passing() -> Value {
    json!({
        "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "image": {"reference": "c"}}],
        "initContainers": [{"name": "i", "securityContext": {
            "allowPrivilegeEscalation": false, "runAsNonRoot": true, "capabilities": {"drop": ["ALL"]},
        }}],
        "containers": [{"name": "c", "securityContext": {
            "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 1000,
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, "seccompProfile": {"type": "Localhost"},
        }}],
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    })
}

#[test]
fn the_evaluator_finds_each_violation_of_the_standard_and_nothing_without_one() {
    assert_eq!(of_whole(&passing()), [""; 0]);
    let container = "/containers/0";
    let context = "/containers/0/securityContext";
    let pod = "/securityContext";
    for (at, field, value, expected) in [
        ("", "hostNetwork", json!(true), "hostNetwork"),
        ("", "hostPID", json!(true), "hostPID"),
        ("", "hostIPC", json!(true), "hostIPC"),
        ("", "volumes", json!([{"name": "a", "hostPath": {"path": "/"}}]), "hostPath"),
        ("", "volumes", json!([{"name": "a", "nfs": {}}]), "volumes"),
        (pod, "sysctls", json!([{"name": "kernel.msgmax", "value": "1"}]), "sysctls"),
        (pod, "seccompProfile", json!({"type": "Unconfined"}), "seccompProfile"),
        (pod, "runAsUser", json!(0), "runAsUser"),
        (pod, "seLinuxOptions", json!({"type": "spc_t"}), "seLinuxOptions.type"),
        (pod, "seLinuxOptions", json!({"user": "u"}), "seLinuxOptions.user"),
        (pod, "windowsOptions", json!({"hostProcess": true}), "hostProcess"),
        (context, "privileged", json!(true), "privileged"),
        (context, "procMount", json!("Unmasked"), "procMount"),
        (context, "appArmorProfile", json!({"type": "Unconfined"}), "appArmorProfile"),
        (context, "allowPrivilegeEscalation", json!(true), "allowPrivilegeEscalation"),
        (context, "allowPrivilegeEscalation", Value::Null, "allowPrivilegeEscalation"),
        (context, "runAsNonRoot", json!(false), "runAsNonRoot"),
        (context, "runAsNonRoot", Value::Null, "runAsNonRoot"),
        (context, "runAsUser", json!(0), "runAsUser"),
        (context, "capabilities", json!({"drop": ["NET_RAW"]}), "capabilities.drop"),
        (context, "capabilities", json!({"drop": ["ALL"], "add": ["CHOWN"]}), "capabilities.add"),
        (context, "capabilities", json!({"drop": ["ALL"], "add": ["SYS_ADMIN"]}), "capabilities.add"),
        (context, "seccompProfile", json!({"type": "Unconfined"}), "seccompProfile"),
        (container, "ports", json!([{"hostPort": 80}]), "hostPort"),
        (container, "readinessProbe", json!({"httpGet": {"host": "example.com"}}), "probe host"),
    ] {
        let mut spec = passing();
        spec.pointer_mut(at).expect("a place")[field] = value;
        let found = of_whole(&spec);
        assert!(found.contains(&expected), "{at}/{field}: {found:?}");
    }
    let mut nobody_says = passing();
    nobody_says["securityContext"] = json!({});
    assert!(of_whole(&nobody_says).contains(&"seccompProfile unset"), "the init container has none");
}

#[test]
fn the_agents_container_of_a_sidecar_is_restricted_and_that_of_combined_says_what_it_takes() {
    for (name, topology) in Topology::ALL {
        for api in [None, Some(SandboxApi::V1Beta1)] {
            let objects = of(topology, LOCAL, SANDBOX, api);
            let spec = agent_spec(&objects);
            assert_eq!(of_pod(spec), [""; 0], "{name}: nothing of a pod's own is in the way");
            let against = |container: &str| of_container(spec, super::container(spec, container));
            match topology {
                Topology::Combined => {
                    assert_eq!(against("agent"), ["capabilities.add", "runAsNonRoot", "runAsUser"], "{name}");
                }
                Topology::Sidecar => {
                    assert_eq!(against("agent"), [""; 0], "{name}");
                    assert_eq!(against("openshell-network-init"), ["capabilities.add", "runAsNonRoot", "runAsUser"]);
                }
                Topology::CniSidecar => {
                    assert_eq!(against("agent"), [""; 0], "{name}");
                    let by_proxy = against("openshell-supervisor-network");
                    assert_eq!(by_proxy, ["capabilities.add", "runAsNonRoot", "runAsUser"]);
                }
                Topology::ProxyPod => {
                    for object in &objects {
                        assert_eq!(object.pod_spec().map(of_whole).unwrap_or_default(), [""; 0], "{}", object.name());
                    }
                }
            }
        }
    }
}

#[test]
fn a_proxy_that_identifies_nobody_leaves_a_cni_sidecar_pod_restricted_as_a_whole() {
    let relaxed = format!("{LOCAL}[sidecar]\nprocess_binary_aware_network_policy = false\n");
    assert_eq!(of_whole(agent_spec(&of(Topology::CniSidecar, &relaxed, SANDBOX, None))), [""; 0]);
    assert_ne!(of_whole(agent_spec(&of(Topology::CniSidecar, LOCAL, SANDBOX, None))), [""; 0]);
}

#[test]
fn what_the_platform_fences_is_restricted_and_the_level_is_told() {
    for api in [None, Some(SandboxApi::V1Beta1)] {
        let platform = of(Topology::Combined, &format!("{LOCAL}{PLATFORM}"), SANDBOX, api);
        assert_eq!(of_whole(agent_spec(&platform)), [""; 0]);
        assert_eq!(level(agent_spec(&platform)), Level::Restricted);
        let combined = of(Topology::Combined, LOCAL, SANDBOX, api);
        assert_eq!(level(agent_spec(&combined)), Level::Privileged);
    }
    let mut spec = passing();
    spec["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["CHOWN"]);
    assert_eq!(level(&spec), Level::Baseline);
    spec["hostPID"] = json!(true);
    assert_eq!(level(&spec), Level::Privileged);
}
