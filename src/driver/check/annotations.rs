//! Annotations and labels that would take from the pod what the rest of it gives: read by runtimes, network plugins and webhooks, each
//! beside the fields that Pod Security and reviewers look at.

use crate::driver::problem::Problems;
use crate::driver::sandbox::SandboxSpec;

/// Beginnings of keys that nobody sets, and why. A key is refused whatever its value: what a value does is each reader's own,
/// and grows.
const REFUSED: &[(&str, &str)] = &[
    ("container.apparmor.security.beta.kubernetes.io/", APP_ARMOR),
    ("container.seccomp.security.alpha.kubernetes.io/", SECCOMP),
    ("seccomp.security.alpha.kubernetes.io/", SECCOMP),
    ("k8s.v1.cni.cncf.io/", NETWORK),
    ("v1.multus-cni.io/", NETWORK),
    ("k8s.ovn.org/", NETWORK),
    ("ovn.kubernetes.io/", NETWORK),
    ("cni.projectcalico.org/", NETWORK),
    ("cni.cilium.io/", NETWORK),
    ("ipam.cilium.io/", NETWORK),
    ("policy.cilium.io/", NETWORK),
    ("networking.gke.io/", NETWORK),
    ("danm.k8s.io/", NETWORK),
    ("sidecar.istio.io/", MESH),
    ("traffic.sidecar.istio.io/", MESH),
    ("inject.istio.io/", MESH),
    ("proxy.istio.io/", MESH),
    ("ambient.istio.io/", MESH),
    ("linkerd.io/", MESH),
    ("config.linkerd.io/", MESH),
    ("consul.hashicorp.com/", MESH),
    ("kuma.io/", MESH),
    ("traffic.kuma.io/", MESH),
    ("openservicemesh.io/", MESH),
    ("appmesh.k8s.aws/", MESH),
    ("azure.workload.identity/", INJECTED),
    ("vault.hashicorp.com/", INJECTED),
    ("io.katacontainers.", RUNTIME),
    ("dev.gvisor.", RUNTIME),
    ("run.oci.", RUNTIME),
    ("io.kubernetes.cri-o.", RUNTIME),
    ("io.kubernetes.cri.", RUNTIME),
    ("io.podman.annotations.", RUNTIME),
    ("io.containers.", RUNTIME),
    ("cdi.k8s.io/", DEVICES),
    ("devices.nri.io/", DEVICES),
    ("devices.noderesource.dev/", DEVICES),
    ("mounts.nri.io/", DEVICES),
    ("ulimits.nri.containerd.io/", DEVICES),
    ("openshift.io/required-scc", SCC),
    ("openshift.io/scc", SCC),
];

const APP_ARMOR: &str = "AppArmor's profile is the configuration's app_armor_profile, and `unconfined` is none";
const SECCOMP: &str = "every pod has the runtime's seccomp profile";
const NETWORK: &str =
    "a network, address or route that the network plugin adds is covered by neither fence nor NetworkPolicy";
const MESH: &str = "a mesh's proxy would carry the workload's traffic around the fence";
const INJECTED: &str = "a webhook would add a container or a credential that nobody here knows of";
const RUNTIME: &str = "the container runtime would do what it says whatever the pod's fields say";
const DEVICES: &str = "devices and mounts that the runtime adds are seen by nobody who judges the pod";
const SCC: &str = "which constraints admit the pod follows from the topology";

/// Labels of that kind: Azure's webhook goes by one. Those of meshes are the driver's to set, whatever the user says.
const REFUSED_LABELS: &[(&str, &str)] = &[("azure.workload.identity/", INJECTED)];

pub(super) fn annotations(sandbox: &SandboxSpec, problems: &Problems) {
    for key in sandbox.labels.keys() {
        if let Some((beginning, reason)) = REFUSED_LABELS.iter().find(|(beginning, _)| key.starts_with(beginning)) {
            let expected = format!("no label that begins with {beginning}: {reason}");
            problems.without(format!("labels.{key}"), expected, "remove it");
        }
    }
    for key in sandbox.platform_config.annotations.keys() {
        if let Some((beginning, reason)) = REFUSED.iter().find(|(beginning, _)| key.starts_with(beginning)) {
            let path = format!("platform_config.annotations.{key}");
            problems.without(path, format!("no annotation that begins with {beginning}: {reason}"), "remove it");
        }
    }
}
