//! What rendered objects are called, and what in them is: containers, volumes, labels, paths. Names that a role reads are
//! in [`crate::contract`].

use std::fmt::Write;

use super::shape::LABEL_LENGTH;

/// Labels of a sandbox's objects. Users cannot set any of this domain.
pub mod label {
    /// Who made the object.
    pub const MANAGED_BY: &str = "openshell.ai/managed-by";
    /// Its value.
    pub const OPENSHELL: &str = "openshell";
    /// The sandbox's id.
    pub const SANDBOX_ID: &str = "openshell.ai/sandbox-id";
    /// The sandbox's name.
    pub const SANDBOX_NAME: &str = "openshell.ai/sandbox-name";
    /// Its workspace.
    pub const WORKSPACE: &str = "openshell.ai/sandbox-workspace";
    /// Its gateway.
    pub const GATEWAY: &str = "openshell.ai/gateway-id";
    /// Which of a proxy-pod sandbox's pods this is: `agent` or `supervisor`.
    pub const ROLE: &str = "openshell.ai/sandbox-role";
    /// The pod in which the workload is.
    pub const AGENT: &str = "agent";
    /// The pod in which the proxy is.
    pub const SUPERVISOR: &str = "supervisor";
}

/// Annotations.
pub mod annotation {
    /// The sandbox's id, for the gateway, which reads it from the live pod.
    pub const SANDBOX_ID: &str = "openshell.io/sandbox-id";
    /// The sandbox's name, whole.
    pub const SANDBOX_NAME: &str = "openshell.ai/sandbox-name";
    /// Its workspace, whole.
    pub const WORKSPACE: &str = "openshell.ai/sandbox-workspace";
    /// The namespace's uids on OpenShift.
    pub const UID_RANGE: &str = "openshift.io/sa.scc.uid-range";
    /// Its groups.
    pub const SUPPLEMENTAL_GROUPS: &str = "openshift.io/sa.scc.supplemental-groups";
    /// The security context constraints that OpenShift is to admit the pod by, and by no others that would fit.
    pub const REQUIRED_SCC: &str = "openshift.io/required-scc";
    /// What a pod that the platform fences gives up, in words.
    pub const TRADE_OFF: &str = "openshell.ai/network-trade-off";
    /// Podman's: keep finished init containers for their logs, and run them again when the pod is started again.
    pub const PODMAN_INIT: &str = "io.podman.annotations.init.container.type";
}

/// What keeps meshes from taking the pod's traffic: their proxies would carry the workload's around the fence, and some
/// run as the fence's uid.
pub mod mesh {
    /// Labels, with their values: Istio's sidecar, its ambient mode, Kuma.
    pub const LABELS: [(&str, &str); 3] = [
        ("istio.io/dataplane-mode", "none"),
        ("kuma.io/sidecar-injection", "disabled"),
        ("sidecar.istio.io/inject", "false"),
    ];
    /// Annotations, with their values: Consul, Linkerd.
    pub const ANNOTATIONS: [(&str, &str); 2] =
        [("consul.hashicorp.com/connect-inject", "false"), ("linkerd.io/inject", "disabled")];
}

/// Security context constraints of OpenShift.
pub mod scc {
    /// Stock: everything.
    pub const PRIVILEGED: &str = "privileged";
    /// Stock: whoever is not root, without capabilities.
    pub const NONROOT: &str = "nonroot-v2";
    /// Stock: the same, with an id of the namespace's range; every service account may use it.
    pub const RESTRICTED: &str = "restricted-v2";
    /// Ours, in images/manifests/openshift: what a sidecar pod asks for.
    pub const SIDECAR: &str = "openshell-sidecar";
    /// Ours: what a pod of cni-sidecar asks for whose proxy tells programs apart.
    pub const CNI_SIDECAR: &str = "openshell-cni-sidecar";
}

/// Containers.
pub mod container {
    /// The workload's.
    pub const AGENT: &str = "agent";
    /// The proxy's.
    pub const NETWORK: &str = "openshell-supervisor-network";
    /// Raises the fence.
    pub const NETWORK_INIT: &str = "openshell-network-init";
    /// Proves it.
    pub const VERIFY_FENCE: &str = "openshell-verify-fence";
    /// Copies the executable.
    pub const INSTALL: &str = "openshell-supervisor-install";
    /// Installs the CA.
    pub const TRUST: &str = "openshell-proxy-ca-install";
    /// Waits for the proxy's pod.
    pub const WAIT: &str = "wait-for-proxy";
    /// Seeds the workspace.
    pub const WORKSPACE: &str = "workspace-init";
}

/// Volumes, as the rest of the driver speaks of them; in pods [`volume_of`](super::names::volume_of) names them. Users cannot
/// name theirs so.
pub mod volume {
    /// The executable.
    pub const SUPERVISOR: &str = "openshell-supervisor-bin";
    /// What the two supervisors share.
    pub const SIDECAR_STATE: &str = "openshell-sidecar-state";
    /// The proxy's private files.
    pub const SUPERVISOR_TLS: &str = "openshell-supervisor-tls";
    /// The client's TLS material for the gateway.
    pub const CLIENT_TLS: &str = "openshell-client-tls";
    /// The corporate proxy's credential.
    pub const UPSTREAM_AUTH: &str = "openshell-upstream-proxy-auth";
    /// The token for the gateway.
    pub const TOKEN: &str = "openshell-sa-token";
    /// The SPIFFE workload API.
    pub const SPIFFE: &str = "spiffe-workload-api";
    /// The policy.
    pub const POLICY: &str = "policy";
    /// The workspace.
    pub const WORKSPACE: &str = "workspace";
    /// What is written and forgotten.
    pub const TMP: &str = "tmp";
    /// The CA of a proxy-pod sandbox, as its Secret has it.
    pub const CA_SOURCE: &str = "openshell-proxy-pod-ca-source";
    /// The CA and the bundle, as the workload has them.
    pub const CA_TRUST: &str = "openshell-proxy-pod-tls";
    /// The key by which the pods of a proxy-pod sandbox know each other.
    pub const ATTESTATION: &str = "openshell-attestation";
    /// All of them.
    pub const ALL: [&str; 13] = [
        SUPERVISOR,
        SIDECAR_STATE,
        SUPERVISOR_TLS,
        CLIENT_TLS,
        UPSTREAM_AUTH,
        TOKEN,
        SPIFFE,
        POLICY,
        WORKSPACE,
        TMP,
        CA_SOURCE,
        CA_TRUST,
        ATTESTATION,
    ];
}

/// Paths in containers that only the driver needs to know.
pub mod path {
    /// The executable in the supervisor's image.
    pub const SUPERVISOR: &str = "/openshell-supervisor";
    /// The directory with it in the agent's container.
    pub const SIDELOAD_DIRECTORY: &str = "/opt/openshell/bin";
    /// The executable in the agent's container.
    pub const SIDELOADED: &str = "/opt/openshell/bin/openshell-supervisor";
    /// Directory of the policy.
    pub const POLICY_DIRECTORY: &str = "/etc/openshell";
    /// Directory of the corporate proxy's credential. Not in the policy's, which is a read-only mount: nothing can be
    /// mounted in there.
    pub const UPSTREAM_AUTH_DIRECTORY: &str = "/etc/openshell-auth";
    /// The credential's file in it.
    pub const UPSTREAM_AUTH_FILE: &str = "upstream-proxy";
    /// Directory of the token for the gateway.
    pub const TOKEN_DIRECTORY: &str = "/var/run/secrets/openshell";
    /// The volume of the workspace, while it is seeded from the image's.
    pub const WORKSPACE_SEED: &str = "/workspace-pvc";
    /// Where the workload writes what it forgets; policies grant it by default.
    pub const TMP: &str = "/tmp";
    /// Directory of the CA's Secret.
    pub const CA_DIRECTORY: &str = "/var/run/openshell-proxy-ca";
    /// Directory of the attestation key's. In the agent's container nothing but Landlock keeps the workload, which is the same
    /// user, from it: so it is in nothing that policies grant.
    pub const ATTESTATION_DIRECTORY: &str = "/var/run/openshell-attestation";
    /// Directory of the client's TLS material where the workload has the supervisor's user, for the same reason: policies grant
    /// /etc by default.
    pub const AGENT_TLS_DIRECTORY: &str = "/var/run/secrets/openshell-tls";
}

/// Keys of the CA's Secret.
pub mod ca {
    /// The certificate.
    pub const CERTIFICATE: &str = "openshell-ca.pem";
    /// Its key, which the agent's pod never sees.
    pub const KEY: &str = "openshell-ca-key.pem";
}

/// Key of the attestation key's Secret, and name of its file.
pub const ATTESTATION_KEY: &str = "key";

/// Environment variables that no role reads yet; those that one reads are in [`crate::contract::env`].
pub mod env {
    /// URL of the gateway.
    pub const ENDPOINT: &str = "OPENSHELL_ENDPOINT";
    /// File with the token for it.
    pub const TOKEN_FILE: &str = "OPENSHELL_K8S_SA_TOKEN_FILE";
    /// The gateway's CA, the client's certificate, its key: in the order of [`crate::contract::CLIENT_TLS_FILES`].
    pub const TLS: [&str; 3] = ["OPENSHELL_TLS_CA", "OPENSHELL_TLS_CERT", "OPENSHELL_TLS_KEY"];
    /// Socket of the SPIFFE workload API.
    pub const SPIFFE_SOCKET: &str = "OPENSHELL_PROVIDER_SPIFFE_WORKLOAD_API_SOCKET";
}

/// Where a role answers probes, on loopback.
pub const ADMIN: &str = "127.0.0.1:9090";
/// Where the agent's supervisor does beside a proxy, whose loopback it shares.
pub const AGENT_ADMIN: &str = "127.0.0.1:9091";
/// Audience of the token for the gateway.
pub const AUDIENCE: &str = "openshell-gateway";
/// The resource of a GPU.
pub const GPU: &str = "nvidia.com/gpu";
/// The driver of SPIFFE's volumes.
pub const SPIFFE_CSI: &str = "csi.spiffe.io";
/// Names of the host for whoever runs in a pod, besides [`crate::contract::HOST_ALIAS`].
pub const DOCKER_HOST: &str = "host.docker.internal";

/// What companions of a sandbox are called: by its id, which outlives its name, so that a sandbox of the same name never
/// meets what another one left.
pub mod companion {
    /// ConfigMap of the policy.
    pub const POLICY: &str = "os-pol";
    /// NetworkPolicy of the agent's egress.
    pub const EGRESS: &str = "os-eg";
    /// NetworkPolicy of the proxy's ingress.
    pub const INGRESS: &str = "os-ing";
    /// Deployment of the proxy.
    pub const SUPERVISOR: &str = "os-sup";
    /// Its Service.
    pub const SERVICE: &str = "os-svc";
    /// Secret of the CA.
    pub const CA: &str = "os-ca";
    /// Role and RoleBinding by which the pods may use `nonroot-v2`: one pair for all sandboxes of a namespace.
    pub const NONROOT_GRANT: &str = "openshell-nonroot-v2";
    /// Secret of the attestation key.
    pub const ATTESTATION: &str = "os-att";
}

/// What a volume of the driver's is called in a sandbox's pods: Podman makes volumes of the whole machine of what Kubernetes
/// keeps to the pod, by these names, so two sandboxes must not have one in common.
#[must_use]
pub fn volume_of(name: &str, id: &str) -> String {
    companion(name, id)
}

/// PREFIX-ID-HASH, a DNS label whatever the id is; the hash keeps ids apart that are alike without their odd letters.
#[must_use]
pub fn companion(prefix: &str, id: &str) -> String {
    let mut name = String::from(prefix);
    let room = LABEL_LENGTH - HASH_LENGTH - 1;
    for part in id.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|part| !part.is_empty()) {
        name.push('-');
        name.push_str(&part.to_ascii_lowercase());
    }
    name.truncate(room);
    name.truncate(name.trim_end_matches('-').len());
    let _ = write!(name, "-{:0HASH_LENGTH$x}", hash(id));
    name
}

/// Hexadecimal digits of [`hash`].
const HASH_LENGTH: usize = 8;

/// The low half of FNV-1a: tells names apart, guards nothing.
fn hash(text: &str) -> u32 {
    let full = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    full as u32
}
