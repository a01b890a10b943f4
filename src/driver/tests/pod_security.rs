//! The Pod Security Standards (kubernetes.io/docs/concepts/security/pod-security-standards), as written there, applied to
//! rendered pods. `baseline` and `restricted` of Kubernetes 1.34, for Linux.

use serde_json::{Value, json};

use super::{LOCAL, SANDBOX, agent_spec, containers, of};
use crate::driver::{SandboxApi, Topology};

/// Capabilities that `baseline` lets a container add: those that runtimes give by default.
const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
/// Kinds of volumes that `restricted` admits.
const RESTRICTED_VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];
/// Sysctls that `baseline` admits.
const SAFE_SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
];

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn is_one_of(value: &Value, allowed: &[&str]) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| allowed.contains(&text))
}

/// What `baseline` holds against a pod's own fields.
fn baseline_of_pod(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[field] == true {
            found.push(field.to_owned());
        }
    }
    for volume in list(&spec["volumes"]) {
        if !volume["hostPath"].is_null() {
            found.push("hostPath".to_owned());
        }
    }
    for sysctl in list(&spec["securityContext"]["sysctls"]) {
        if !is_one_of(&sysctl["name"], &SAFE_SYSCTLS) {
            found.push("sysctls".to_owned());
        }
    }
    found.extend(baseline_of_context(&spec["securityContext"]));
    found
}

/// What `baseline` holds against a security context, of a pod or a container.
fn baseline_of_context(context: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let windows = &context["windowsOptions"]["hostProcess"];
    let selinux = &context["seLinuxOptions"];
    let types = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
    for (name, held) in [
        ("hostProcess", *windows == true),
        ("appArmorProfile", !is_one_of(&context["appArmorProfile"]["type"], &["RuntimeDefault", "Localhost"])),
        ("seLinuxOptions.type", !is_one_of(&selinux["type"], &types)),
        ("seLinuxOptions.user", !is_one_of(&selinux["user"], &[""])),
        ("seLinuxOptions.role", !is_one_of(&selinux["role"], &[""])),
        ("seccompProfile", !is_one_of(&context["seccompProfile"]["type"], &["RuntimeDefault", "Localhost"])),
    ] {
        if held {
            found.push(name.to_owned());
        }
    }
    found
}

fn baseline_of_container(container: &Value) -> Vec<String> {
    let context = &container["securityContext"];
    let mut found = baseline_of_context(context);
    if context["privileged"] == true {
        found.push("privileged".to_owned());
    }
    if list(&context["capabilities"]["add"]).any(|name| !is_one_of(name, &BASELINE_CAPABILITIES)) {
        found.push("capabilities.add".to_owned());
    }
    if list(&container["ports"]).any(|port| port["hostPort"].as_u64().is_some_and(|port| port != 0)) {
        found.push("hostPort".to_owned());
    }
    if !is_one_of(&context["procMount"], &["Default"]) {
        found.push("procMount".to_owned());
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let hosts = [&container[probe]["httpGet"]["host"], &container[probe]["tcpSocket"]["host"]];
        if hosts.into_iter().any(|host| !is_one_of(host, &["", "127.0.0.1", "::1"])) {
            found.push("probe host".to_owned());
        }
    }
    found
}

/// What `restricted` holds against a pod's own fields.
pub(super) fn of_pod(spec: &Value) -> Vec<String> {
    let mut found = baseline_of_pod(spec);
    for volume in list(&spec["volumes"]) {
        let kind = volume.as_object().and_then(|fields| fields.keys().find(|field| *field != "name"));
        if kind.is_some_and(|kind| !RESTRICTED_VOLUMES.contains(&kind.as_str())) {
            found.push("volumes".to_owned());
        }
    }
    found
}

/// What `restricted` holds against one container of a pod. Only a pod in a user namespace of its own may run as root.
pub(super) fn of_container(spec: &Value, container: &Value) -> Vec<String> {
    let mut found = baseline_of_container(container);
    let (own, pods) = (&container["securityContext"], &spec["securityContext"]);
    let inherited = |field: &str| if own[field].is_null() { pods[field].clone() } else { own[field].clone() };
    let dropped = list(&own["capabilities"]["drop"]).any(|name| name == "ALL");
    let relaxed = spec["hostUsers"] == false;
    for (name, held) in [
        ("allowPrivilegeEscalation", own["allowPrivilegeEscalation"] != false),
        ("runAsNonRoot", !relaxed && inherited("runAsNonRoot") != true),
        ("runAsUser", !relaxed && (own["runAsUser"] == 0 || pods["runAsUser"] == 0)),
        (
            "seccompProfile unset",
            !inherited("seccompProfile")["type"]
                .as_str()
                .is_some_and(|kind| ["RuntimeDefault", "Localhost"].contains(&kind)),
        ),
        ("capabilities.drop", !dropped),
        ("capabilities.add", list(&own["capabilities"]["add"]).any(|name| name != "NET_BIND_SERVICE")),
    ] {
        if held && !found.contains(&name.to_owned()) {
            found.push(name.to_owned());
        }
    }
    found
}

fn of_whole(spec: &Value) -> Vec<String> {
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
        assert!(found.contains(&expected.to_owned()), "{at}/{field}: {found:?}");
    }
    let mut nobody_says = passing();
    nobody_says["securityContext"] = json!({});
    assert!(of_whole(&nobody_says).contains(&"seccompProfile unset".to_owned()), "the init container has none");
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
