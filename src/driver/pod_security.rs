//! The Pod Security Standards (kubernetes.io/docs/concepts/security/pod-security-standards), as written there, applied to
//! rendered pods: `baseline` and `restricted` of Kubernetes 1.34, for Linux.

use std::fmt;

use serde_json::Value;

/// The strictest level that admits a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Everything.
    Privileged,
    /// What has no known way out of a container.
    Baseline,
    /// What keeps to the present best practice.
    Restricted,
}

impl fmt::Display for Level {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        })
    }
}

/// The level of a pod's specification.
#[must_use]
pub fn level(spec: &Value) -> Level {
    let mut containers = containers(spec);
    if of_pod(spec).is_empty() && containers.all(|container| of_container(spec, container).is_empty()) {
        return Level::Restricted;
    }
    let mut containers = self::containers(spec);
    if baseline_of_pod(spec).is_empty() && containers.all(|container| baseline_of_container(container).is_empty()) {
        return Level::Baseline;
    }
    Level::Privileged
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers", "ephemeralContainers"].into_iter().flat_map(|name| list(&spec[name]))
}

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
const SAFE_SYSCTLS: [&str; 12] = [
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
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
];

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn is_one_of(value: &Value, allowed: &[&str]) -> bool {
    value.is_null() || value.as_str().is_some_and(|text| allowed.contains(&text))
}

/// What `baseline` holds against a pod's own fields.
fn baseline_of_pod(spec: &Value) -> Vec<&'static str> {
    let mut found = Vec::new();
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        if spec[field] == true {
            found.push(field);
        }
    }
    for volume in list(&spec["volumes"]) {
        if !volume["hostPath"].is_null() {
            found.push("hostPath");
        }
    }
    for sysctl in list(&spec["securityContext"]["sysctls"]) {
        if !is_one_of(&sysctl["name"], &SAFE_SYSCTLS) {
            found.push("sysctls");
        }
    }
    found.extend(baseline_of_context(&spec["securityContext"]));
    found
}

/// What `baseline` holds against a security context, of a pod or a container.
fn baseline_of_context(context: &Value) -> Vec<&'static str> {
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
            found.push(name);
        }
    }
    found
}

fn baseline_of_container(container: &Value) -> Vec<&'static str> {
    let context = &container["securityContext"];
    let mut found = baseline_of_context(context);
    if context["privileged"] == true {
        found.push("privileged");
    }
    if list(&context["capabilities"]["add"]).any(|name| !is_one_of(name, &BASELINE_CAPABILITIES)) {
        found.push("capabilities.add");
    }
    if list(&container["ports"]).any(|port| port["hostPort"].as_u64().is_some_and(|port| port != 0)) {
        found.push("hostPort");
    }
    if !is_one_of(&context["procMount"], &["Default"]) {
        found.push("procMount");
    }
    for probe in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let hosts = [&container[probe]["httpGet"]["host"], &container[probe]["tcpSocket"]["host"]];
        if hosts.into_iter().any(|host| !is_one_of(host, &["", "127.0.0.1", "::1"])) {
            found.push("probe host");
        }
    }
    found
}

/// What `restricted` holds against a pod's own fields.
#[must_use]
pub fn of_pod(spec: &Value) -> Vec<&'static str> {
    let mut found = baseline_of_pod(spec);
    for volume in list(&spec["volumes"]) {
        let kind = volume.as_object().and_then(|fields| fields.keys().find(|field| *field != "name"));
        if kind.is_some_and(|kind| !RESTRICTED_VOLUMES.contains(&kind.as_str())) {
            found.push("volumes");
        }
    }
    found
}

/// What `restricted` holds against one container of a pod. Only a pod in a user namespace of its own may run as root.
#[must_use]
pub fn of_container(spec: &Value, container: &Value) -> Vec<&'static str> {
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
        if held && !found.contains(&name) {
            found.push(name);
        }
    }
    found
}
