//! What holds of the inputs only together.

use super::mounts::{meet, meet_in_run};
use crate::contract::Ids;
use crate::driver::cluster::{self, AttestationKey, Cluster};
use crate::driver::config::{AppArmor, NetworkEnforcement, Topology, WorkspaceMode};
use crate::driver::names::{path, scc};
use crate::driver::openshift;
use crate::driver::plan::{Plan, SandboxedRuntime};
use crate::driver::problem::{Document, Problem, Problems};
use crate::driver::resources::Resources;
use crate::driver::shape::{self, LABEL_LENGTH};

/// Checks one sandbox against the configuration and the cluster.
pub(in crate::driver) fn together(plan: &Plan<'_>) -> Vec<Problem> {
    let (config, sandbox, cluster) =
        (Problems::of(Document::Config), Problems::of(Document::Sandbox), Problems::of(Document::Cluster));
    ids(plan, &config);
    of_topology(plan, &config);
    of_platform(plan, &config);
    grants(plan, &sandbox);
    names(plan, &sandbox);
    runtime(plan, &config, &sandbox);
    spiffe(plan, &sandbox);
    if plan.sandbox.gpu.is_some() && plan.cluster.has_gpu == Some(false) {
        let remedy = "add a node with GPUs and their device plugin, or remove the field";
        sandbox.without("gpu", "a node that has nvidia.com/gpu to allocate", remedy);
    }
    Resources::of(plan.sandbox).check(&sandbox);
    of_cluster(plan, plan.cluster, &cluster);
    [config, sandbox, cluster].into_iter().flat_map(Problems::into_found).collect()
}

/// The fence lets out the proxy by its ids, so nobody else may have them.
fn ids(plan: &Plan<'_>, problems: &Problems) {
    let topology = plan.config.topology.name();
    let Ids { uid, gid } = plan.workload;
    let (section, shared) = match plan.config.topology {
        Topology::Combined => return,
        Topology::Sidecar | Topology::CniSidecar => ("sidecar", true),
        Topology::ProxyPod => ("proxy_pod", false),
    };
    if plan.proxy.uid == uid {
        let expected = format!("another uid than the sandbox's in topology {topology}");
        problems.with(format!("{section}.proxy_uid"), uid, expected, "choose another one, or another sandbox_uid");
    }
    if shared && plan.proxy.gid == gid {
        let expected = format!("another group than the sandbox's in topology {topology}");
        problems.with(format!("{section}.proxy_gid"), gid, expected, "choose another one, or another sandbox_gid");
    }
}

/// What the operator may not combine with the topology.
fn of_topology(plan: &Plan<'_>, problems: &Problems) {
    let config = plan.config;
    let topology = config.topology;
    // The workload shares the container with the proxy there, or the pod.
    if let Some((name, _)) = &config.upstream_proxy.secret
        && matches!(topology, Topology::Combined | Topology::ProxyPod)
    {
        let expected = format!("no credential of the corporate proxy in topology {}", topology.name());
        problems.with("proxy_auth_secret_name", name, expected, "use sidecar or cni-sidecar, or remove the Secret");
    }
    if topology == Topology::ProxyPod && plan.gateway().is_some() && config.proxy_pod.gateway_peers.is_empty() {
        let expected = "whom the agent's pod may reach as the gateway that grpc_endpoint names";
        let remedy =
            "name its pods or its range and their port, or [{}] where another NetworkPolicy lets them be reached";
        problems.without("proxy_pod.gateway_peers", expected, remedy);
    }
    let unprivileged = topology == Topology::ProxyPod || plan.is_fenced_by_platform();
    if config.app_armor_profile == Some(AppArmor::Unconfined) && unprivileged {
        let remedy = "remove the field, or choose RuntimeDefault: nothing in these pods needs to be unconfined";
        problems.with("app_armor_profile", "Unconfined", "a profile that Pod Security `restricted` admits", remedy);
    }
}

/// What the platform enforces is asked for by name, with what it is to let through.
fn of_platform(plan: &Plan<'_>, problems: &Problems) {
    let config = plan.config;
    let (asked, topology) = (config.network_enforcement == NetworkEnforcement::Platform, config.topology);
    if asked && topology != Topology::Combined {
        let expected = format!("namespace in topology {}, which has a fence of its own", topology.name());
        let remedy = "remove the field, or use it with topology combined";
        problems.with("network_enforcement", "platform", expected, remedy);
    }
    if plan.is_fenced_by_platform() && config.platform_network.egress.is_empty() {
        let expected = "at least one range with network_enforcement = \"platform\"";
        let remedy = "name what the proxy may dial, such as {cidr = \"0.0.0.0/0\", except = [\"10.0.0.0/8\"], ports = [443]}; a \
                      NetworkPolicy cannot tell it from the workload, which may dial the same";
        problems.without("platform_network.egress", expected, remedy);
    }
    if plan.is_fenced_by_platform() && plan.controls().is_empty() {
        let expected = "something that the policy allows and that serves, HOST:PORT";
        let remedy =
            "name one, such as \"example.com:443\": where nothing can be reached it is not seen that a policy holds";
        problems.without("platform_network.controls", expected, remedy);
    }
    if plan.is_fenced_by_platform() && plan.spiffe().is_some() {
        let socket = &config.provider_spiffe_workload_api_socket_path;
        let expected = "no socket that the workload could connect to as well as the proxy, with network_enforcement = \"platform\"";
        let remedy = "use proxy-pod, whose proxy is alone with it, or remove the field";
        problems.with("provider_spiffe_workload_api_socket_path", socket, expected, remedy);
    }
    if plan.is_fenced_by_platform() {
        of_openshift(plan, problems);
    }
    let scc = openshift::scc(config);
    if config.openshift.nonroot_scc && scc != scc::NONROOT {
        let expected = format!("false where pods go by {scc}, as in topology {}", topology.name());
        let remedy = "remove the field, or use topology proxy-pod";
        problems.with("openshift.nonroot_scc", true, expected, remedy);
    }
}

/// Ids that `restricted-v2` would refuse.
fn of_openshift(plan: &Plan<'_>, problems: &Problems) {
    let (Some(Ids { uid, gid }), Some((uids, group))) = (plan.runs_as(), cluster::admitted(plan.cluster)) else {
        return;
    };
    let remedy = "remove sandbox_uid and sandbox_gid: the pod has the namespace's ids then";
    if !uids.contains(&uid) {
        let expected = format!("{} to {}, which the namespace has under {}", uids.start(), uids.end(), scc::RESTRICTED);
        problems.with("sandbox_uid", uid, expected, remedy);
    }
    if gid != group {
        let expected = format!("{group}, the one group of volumes that the namespace has under {}", scc::RESTRICTED);
        problems.with("sandbox_gid", gid, expected, remedy);
    }
}

/// What the roles keep from a workload that is their own user, by Landlock alone: a policy that grants it lets none start.
fn grants(plan: &Plan<'_>, problems: &Problems) {
    let proxy_pod = plan.config.topology == Topology::ProxyPod;
    if !proxy_pod && !plan.is_fenced_by_platform() {
        return;
    }
    let secrets = [
        plan.cluster.attestation_key.as_ref().filter(|_| proxy_pod).map(|_| path::ATTESTATION_DIRECTORY),
        plan.gateway().map(|_| path::TOKEN_DIRECTORY),
        plan.client_tls().map(|_| path::AGENT_TLS_DIRECTORY),
    ];
    let section = plan.sandbox.policy.as_ref().and_then(|policy| policy.get("filesystem_policy"));
    for list in ["read_only", "read_write"] {
        let listed = section.and_then(|section| section[list].as_array());
        for (index, granted) in listed.into_iter().flatten().enumerate() {
            let met = |secret: &&str| granted.as_str().is_some_and(|granted| meet_in_run(granted, secret));
            if let Some(secret) = secrets.into_iter().flatten().find(met) {
                let whole = format!("policy.filesystem_policy.{list}[{index}]");
                let expected =
                    format!("a path that is neither at, below nor above {secret}, where the supervisor's secrets are");
                problems.with(whole, granted, expected, "grant what is needed beside it, such as /etc or /usr");
            }
        }
    }
}

fn names(plan: &Plan<'_>, problems: &Problems) {
    for (field, name, whole) in
        [("name", &plan.sandbox.name, &plan.name), ("workspace", &plan.sandbox.workspace, &plan.namespace)]
    {
        if whole.len() > LABEL_LENGTH && shape::is_dns_label(name) {
            let expected = format!("it to make a name of at most {LABEL_LENGTH} characters, not {whole:?}");
            problems.with(field, name, expected, "shorten it, or the other names in that one");
        }
    }
    if matches!(plan.config.workspace_mode, WorkspaceMode::Operator { .. })
        && !plan.cluster.operator_namespaces.contains(&plan.sandbox.workspace)
    {
        let remedy = "choose one of them, or have the operator allow it";
        problems.with("workspace", &plan.sandbox.workspace, "a namespace that the operator allows", remedy);
    }
}

/// A fence of the pod's namespace binds what passes the node's IP layer there. gVisor has its own, without nf_tables; and
/// what a virtual machine sends is taken off the link before the node's plugin could refuse it. What a class is cannot be told
/// by its name, so where the pod's network is the fence, sandboxes may name those alone that the operator does.
fn runtime(plan: &Plan<'_>, config: &Problems, sandbox: &Problems) {
    let (topology, runtime) = (plan.config.topology, plan.sandboxed_runtime());
    let expected = match (topology, runtime) {
        // What keeps the workload from the proxy's files there, and gVisor has none.
        (_, Some(SandboxedRuntime::Gvisor)) if plan.is_fenced_by_platform() => "a runtime with Landlock",
        (Topology::Combined | Topology::Sidecar | Topology::CniSidecar, Some(SandboxedRuntime::Gvisor)) => {
            "a runtime with nf_tables"
        }
        (Topology::CniSidecar, Some(SandboxedRuntime::Kata)) => "a runtime whose packets the node's fence sees",
        (Topology::Sidecar | Topology::CniSidecar, _) if !is_known(plan) => "a class that runtime_classes names",
        _ => return,
    };
    let expected = format!("{expected} in topology {}", topology.name());
    let named = |class: &Option<String>| class.as_ref().is_some_and(|class| !class.is_empty());
    let (problems, path) = if named(&plan.sandbox.platform_config.runtime_class_name) {
        (sandbox, "platform_config.runtime_class_name")
    } else if named(&plan.sandbox.driver_config.runtime_class_name) {
        (sandbox, "driver_config.pod.runtime_class_name")
    } else {
        (config, "default_runtime_class_name")
    };
    let remedy = match (topology, runtime) {
        (_, Some(SandboxedRuntime::Gvisor)) | (Topology::CniSidecar, Some(_)) => {
            "use topology proxy-pod with it, or another class"
        }
        _ => {
            "use topology proxy-pod with it, or another class; or have the operator see that verify-fence passes with it, and \
             name it in runtime_classes"
        }
    };
    problems.with(path, plan.runtime_class.unwrap_or_default(), expected, remedy);
}

/// Whether the operator named the class: as one that was tried, or as the default, unless that one has a kernel of its own.
fn is_known(plan: &Plan<'_>) -> bool {
    let Some(class) = plan.runtime_class else { return true };
    let is_default = class == plan.config.default_runtime_class_name && plan.sandboxed_runtime().is_none();
    is_default || plan.config.runtime_classes.iter().any(|known| known == class)
}

fn spiffe(plan: &Plan<'_>, problems: &Problems) {
    let socket = &plan.config.provider_spiffe_workload_api_socket_path;
    let Some((directory, _)) = socket.rsplit_once('/').filter(|(directory, _)| !directory.is_empty()) else { return };
    for (index, mount) in plan.sandbox.driver_config.volume_mounts.iter().enumerate() {
        if meet(&mount.mount_path, directory) {
            let path = format!("driver_config.containers.agent.volume_mounts[{index}].mount_path");
            let expected = format!("a path that is neither at, below nor above {directory}");
            problems.with(path, &mount.mount_path, expected, "choose another path: the SPIFFE socket is there");
        }
    }
}

fn of_cluster(plan: &Plan<'_>, cluster: &Cluster, problems: &Problems) {
    if plan.config.topology == Topology::ProxyPod && cluster.proxy_ca.is_none() {
        let remedy = "make a certificate and its key for this sandbox alone";
        problems.without("proxy_ca", "a CA for topology proxy-pod", remedy);
    }
    if let Some(ca) = &cluster.proxy_ca
        && pem_labels(&ca.certificate).any(|label| label != CERTIFICATE)
    {
        let expected = "certificates and nothing else: the agent's pod mounts it, for everybody there to read";
        problems.without("proxy_ca.certificate", expected, "take the key out of it: it is given apart");
    }
    if let Some(key) = &cluster.attestation_key
        && key.0.len() < AttestationKey::LEAST
    {
        let expected = format!("{} bytes at least, not {}", AttestationKey::LEAST, key.0.len());
        problems.without("attestation_key", expected, "make a random one for this sandbox alone");
    } else if let Some(key) = &cluster.attestation_key
        && (key.0.bytes().filter(u8::is_ascii_graphic).count() < AttestationKey::LEAST
            || key.0.trim_end().contains(|letter: char| letter.is_control()))
    {
        let expected = format!("{} printable letters at least, and no control characters", AttestationKey::LEAST);
        problems.without(
            "attestation_key",
            expected,
            "make a random one for this sandbox alone, such as 32 bytes in hexadecimal",
        );
    }
    if cluster.sandbox_uid.is_some() && cluster.sandbox_api.is_none() {
        problems.without("sandbox_api", "the version of the Sandbox whose uid is given", "give it too");
    }
    if cluster.stopped && cluster.sandbox_api.is_none() {
        let remedy = "give it too, or delete the Pod: one that is there is running";
        problems.without("sandbox_api", "the version of the Sandbox that is to be stopped", remedy);
    }
}

/// What PEM calls a certificate (RFC 7468 section 5).
const CERTIFICATE: &str = "CERTIFICATE";

/// What each block of a PEM text says that it is (RFC 7468).
fn pem_labels(text: &str) -> impl Iterator<Item = &str> {
    text.split("-----BEGIN ").skip(1).map(|rest| rest.split("-----").next().unwrap_or_default())
}
