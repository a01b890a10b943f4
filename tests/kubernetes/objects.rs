//! Objects to put into the stand-in.

use serde_json::{Value, json};

/// A pod with these annotations.
pub fn pod(namespace: &str, name: &str, uid: &str, annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<_, _> =
        annotations.iter().map(|(key, value)| ((*key).to_owned(), (*value).into())).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": annotations},
        "spec": {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000}, "containers": [
            {"name": "agent", "image": "example.com/agent", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
            }},
            {"name": "network", "image": "example.com/supervisor", "securityContext": {
                "runAsUser": 0, "runAsGroup": 1337, "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]},
            }},
        ]},
        "status": {"phase": "Pending"},
    })
}

/// A node with the kubelet's label and condition, and these taints.
pub fn node(name: &str, taints: &[Value]) -> Value {
    let mut node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name, "uid": format!("uid-of-{name}"), "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": "10.42.0.0/24"},
        "status": {"conditions": [{
            "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]},
    });
    if !taints.is_empty() {
        node["spec"]["taints"] = taints.into();
    }
    node
}

/// A taint.
pub fn taint(key: &str, effect: &str) -> Value {
    json!({"key": key, "effect": effect})
}

/// A DaemonSet; on its way out where `deleted` says when it was told to go.
pub fn daemon_set(namespace: &str, name: &str, deleted: Option<&str>) -> Value {
    let mut metadata = json!({"name": name, "namespace": namespace, "uid": format!("uid-of-{name}")});
    if let Some(when) = deleted {
        metadata["deletionTimestamp"] = when.into();
    }
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": metadata})
}
