//! `cni-sidecar`: as sidecar, with a fence that the node's plugin raises before anything of the pod runs, so that no
//! container has a capability that concerns the network.

use serde_json::json;

use super::{agent_init, gateway, sidecar};
use crate::contract::{PROXY_CLIENT_TLS, PROXY_TLS_DIRECTORY, SIDECAR_DIRECTORY, annotation, node};
use crate::driver::config::Topology;
use crate::driver::container::Mount;
use crate::driver::names;
use crate::driver::plan::Plan;
use crate::driver::pod::Pod;
use crate::driver::role;

/// The control socket. Nobody prepares the volume for the proxy here, so it makes a directory of its own in it.
const SOCKET: &str = "/run/openshell-sidecar/network/control.sock";

pub(super) fn pod(plan: &Plan<'_>) -> Pod {
    // Nobody copies the gateway's TLS material either: the proxy reads the Secret, by the pod's group.
    let tls = format!("{PROXY_TLS_DIRECTORY}/{PROXY_CLIENT_TLS}");
    let network = gateway(plan, sidecar::network(plan, SOCKET), &tls, true);
    let mut pod = sidecar::pair(plan, sidecar::agent(plan, SOCKET), network);
    // First of all: what the node should have done is proven from where the workload will be, or the pod fails in Init.
    // The mount is not for itself: in Podman the first container's image says who may write to an empty volume.
    let proof = role::verify_fence(plan).mounts([Mount::read_only(names::volume::SIDECAR_STATE, SIDECAR_DIRECTORY)]);
    pod.init = vec![proof];
    pod.init.extend(agent_init(plan));
    // In clusters fsGroup says that as well.
    pod.supplemental_groups = vec![plan.workload.gid];
    pod.annotations = vec![
        (annotation::CNI, "enabled".into()),
        (annotation::ENFORCEMENT_MODE, Topology::CniSidecar.name().into()),
        // Whom the fence lets out: the effective ids of the proxy.
        (annotation::PROXY_UID, plan.proxy.uid.to_string()),
        (annotation::PROXY_GID, plan.proxy.gid.to_string()),
    ];
    // Nodes whose plugin is chained and verified; `cni-install` sets the label.
    let ready = json!({"key": node::READY_LABEL, "operator": "In", "values": [node::READY]});
    pod.affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchExpressions": [ready]}],
    }}});
    pod
}
