//! The driver's configuration: what an operator decides for every sandbox.

mod reading;

pub(in crate::driver) use reading::TABLE;

use std::collections::BTreeMap;

use crate::contract::PROXY_ID;

/// How a sandbox is divided into containers and pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Topology {
    /// One container with everything, which needs privileges.
    Combined,
    /// A proxy beside an agent without privilege; an init container raises the fence.
    Sidecar,
    /// The same with a fence that the node's plugin raises.
    CniSidecar,
    /// An agent pod to which nothing is added, and the proxy in a pod of its own.
    ProxyPod,
}

impl Topology {
    /// Every topology, by its name.
    pub const ALL: [(&'static str, Self); 4] = [
        ("combined", Self::Combined),
        ("sidecar", Self::Sidecar),
        ("cni-sidecar", Self::CniSidecar),
        ("proxy-pod", Self::ProxyPod),
    ];

    /// Its name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Combined => "combined",
            Self::Sidecar => "sidecar",
            Self::CniSidecar => "cni-sidecar",
            Self::ProxyPod => "proxy-pod",
        }
    }
}

/// Who keeps the workload of a combined sandbox from going around the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkEnforcement {
    /// A network namespace of the workload's own, which takes privileges.
    Namespace,
    /// The platform, by a NetworkPolicy of the pod: it takes no privilege, and holds programs that ignore the proxy to
    /// addresses and ports instead of to the policy. Never chosen by itself.
    Platform,
}

/// How the executable comes into the agent's container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sideload {
    /// The supervisor's image is mounted as a volume (Kubernetes 1.33 with the feature gate, 1.35 without).
    ImageVolume,
    /// An init container copies it.
    InitContainer,
}

/// Which namespace a workspace's sandboxes are in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkspaceMode {
    /// One for all.
    Shared,
    /// `openshell-GATEWAY-WORKSPACE`, made by the gateway.
    Managed,
    /// One of the operator's, of the workspace's name.
    Operator {
        /// The label by which those namespaces are known.
        label: Option<String>,
        /// Or the file that lists them.
        file: Option<String>,
    },
}

/// Settings of the sidecar topologies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SidecarConfig {
    /// The proxy's uid where it does not identify programs; it is 0 where it does.
    pub proxy_uid: u32,
    /// The proxy's group, which nobody else in the pod has.
    pub proxy_gid: u32,
    /// Whether the proxy identifies programs, which takes root and two capabilities.
    pub binary_aware: bool,
}

/// Whether agent and proxy pod are to share a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Affinity {
    /// It does not matter.
    Disabled,
    /// If it can be had.
    Preferred,
    /// Or the agent's pod is not scheduled.
    Required,
}

/// Whether Landlock, too, keeps the workload's TCP to the proxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LandlockNet {
    /// It does not: the NetworkPolicy alone does.
    #[default]
    Off,
    /// The workload connects to the proxy's port and to no other, its own servers' included. Takes Linux 6.7.
    Strict,
}

/// Where the proxy of a proxy-pod sandbox listens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IpFamily {
    /// At every IPv4 address: every node has them.
    #[default]
    Ipv4,
    /// At every address of either version, which takes a node whose kernel has IPv6.
    Any,
}

/// Whom a NetworkPolicy lets the agent reach: pods by their labels, or a range of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Labels of their namespace.
    pub namespace_selector: BTreeMap<String, String>,
    /// Labels of the pods.
    pub pod_selector: BTreeMap<String, String>,
    /// Instead of labels a range, `ADDRESS/BITS`: for what is no pod of the cluster's network, such as a node's own name server.
    pub cidr: Option<String>,
    /// The pods' own port: policies are judged behind the Service.
    pub port: u16,
}

impl Peer {
    /// Whether it selects nothing in particular. To a NetworkPolicy that is everything, so it gets no rule.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.namespace_selector.is_empty() && self.pod_selector.is_empty() && self.cidr.is_none()
    }
}

/// Settings of the proxy-pod topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyPodConfig {
    /// The proxy's uid and gid.
    pub proxy_uid: u32,
    /// Whether the two pods are to share a node.
    pub affinity: Affinity,
    /// The cluster's DNS.
    pub dns_peers: Vec<Peer>,
    /// The gateway.
    pub gateway_peers: Vec<Peer>,
    /// The cluster's domain, at the end of its Services' names.
    pub cluster_domain: String,
    /// Where the proxy listens.
    pub ip_family: IpFamily,
    /// Seconds that Init waits for the proxy to serve, and as many for the policy to be seen to hold. After them the pod has
    /// failed for good, so they are to cover a node that is made and an image that is pulled.
    pub start_timeout_secs: u32,
    /// What serves and is no peer, HOST:PORT each: before the workload starts it is seen that the policy cuts it off, besides the
    /// API server.
    pub canaries: Vec<String>,
    /// Whether Landlock keeps the workload's TCP as well.
    pub landlock_net: LandlockNet,
}

/// Addresses that a NetworkPolicy lets a pod reach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EgressRange {
    /// The range: `ADDRESS/BITS`.
    pub cidr: String,
    /// Ranges within it that stay closed.
    pub except: Vec<String>,
    /// TCP ports there.
    pub ports: Vec<u16>,
}

/// Settings of [`NetworkEnforcement::Platform`]: what the pod may reach, the proxy in it and whoever ignores the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlatformNetworkConfig {
    /// The cluster's DNS.
    pub dns_peers: Vec<Peer>,
    /// The gateway.
    pub gateway_peers: Vec<Peer>,
    /// Everything else; there is no default that would be right.
    pub egress: Vec<EgressRange>,
    /// What serves and the policy cuts off, HOST:PORT each: seen to be cut off before the workload starts, besides the API
    /// server.
    pub canaries: Vec<String>,
    /// What serves and the policy allows, HOST:PORT each, by which that is told from a network that is down. The corporate
    /// proxy and the gateway are such by themselves.
    pub controls: Vec<String>,
    /// Seconds that Init waits for the policy to be seen to hold; after them the pod has failed for good.
    pub start_timeout_secs: u32,
    /// Whether Landlock keeps the workload's TCP as well.
    pub landlock_net: LandlockNet,
}

/// Settings for OpenShift.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenShiftConfig {
    /// Whether a Role and a RoleBinding are rendered by which the pods' service account may use the stock SCC nonroot-v2.
    pub nonroot_scc: bool,
}

/// The corporate proxy, through which everything leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpstreamProxyConfig {
    /// `http://HOST:PORT`.
    pub url: Option<String>,
    /// What is dialled directly.
    pub no_proxy: Option<String>,
    /// Secret with the credential, and the key in it.
    pub secret: Option<(String, String)>,
    /// Whether the credential may pass in clear.
    pub allow_insecure: bool,
    /// Whether it is given names instead of checked addresses.
    pub by_hostname: bool,
}

/// An AppArmor profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppArmor {
    /// The runtime's.
    RuntimeDefault,
    /// None.
    Unconfined,
    /// One of the node's, by name.
    Localhost(String),
}

/// The whole configuration. [`from_toml`](Self::from_toml) reads one; [`Default`] is what an empty file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverConfig {
    /// Which namespace sandboxes are in.
    pub workspace_mode: WorkspaceMode,
    /// Name of the gateway that the sandboxes belong to.
    pub gateway_id: String,
    /// The shared namespace.
    pub namespace: String,
    /// Service account of the pods; no token of it is mounted unless there is a gateway.
    pub service_account_name: String,
    /// The agent's image where a sandbox names none.
    pub default_image: String,
    /// When the agent's image is pulled; empty: the cluster's default.
    pub image_pull_policy: String,
    /// When the supervisor's image is pulled.
    pub supervisor_image_pull_policy: String,
    /// Secrets with the registries' credentials.
    pub image_pull_secrets: Vec<String>,
    /// The supervisor's image.
    pub supervisor_image: String,
    /// What each container but the agent's reserves, by resource; without any the proxy of a proxy-pod sandbox reserves what it
    /// was measured to take, and the others nothing.
    pub supervisor_requests: BTreeMap<String, String>,
    /// What each of them gets at the most.
    pub supervisor_limits: BTreeMap<String, String>,
    /// How the executable comes into the agent's container.
    pub supervisor_sideload_method: Sideload,
    /// How a sandbox is divided.
    pub topology: Topology,
    /// Who fences a combined sandbox.
    pub network_enforcement: NetworkEnforcement,
    /// Of sidecar and cni-sidecar.
    pub sidecar: SidecarConfig,
    /// Of proxy-pod.
    pub proxy_pod: ProxyPodConfig,
    /// Of combined sandboxes that the platform fences.
    pub platform_network: PlatformNetworkConfig,
    /// Of OpenShift.
    pub openshift: OpenShiftConfig,
    /// The corporate proxy.
    pub upstream_proxy: UpstreamProxyConfig,
    /// URL of the gateway; without one nothing of a gateway's is rendered.
    pub grpc_endpoint: Option<String>,
    /// Where people are let in by SSH: a path, or `@NAME` for an abstract socket; empty: nowhere. Containers with a read-only
    /// root have no place for a file, and [`SSH_SOCKET_NAME`](crate::contract::SSH_SOCKET_NAME) instead of any path.
    pub ssh_socket_path: String,
    /// Secret with the client's TLS material for the gateway; empty: none.
    pub client_tls_secret_name: String,
    /// Address of the host for `host.openshell.internal`; empty: none.
    pub host_gateway_ip: String,
    /// Whether pods have a user namespace of their own.
    pub enable_user_namespaces: bool,
    /// The containers' AppArmor profile.
    pub app_armor_profile: Option<AppArmor>,
    /// Size of a sandbox's volume.
    pub workspace_default_storage_size: String,
    /// Its storage class; empty: the cluster's default.
    pub workspace_storage_class: String,
    /// The runtime class where a sandbox names none; empty: the cluster's default.
    pub default_runtime_class_name: String,
    /// Runtime classes in whose pods a fence of the pod's network was seen to hold; sandboxes of sidecar and cni-sidecar may
    /// name no others.
    pub runtime_classes: Vec<String>,
    /// Lifetime of the token for the gateway, in seconds.
    pub sa_token_ttl_secs: i64,
    /// Socket of the SPIFFE workload API; empty: none.
    pub provider_spiffe_workload_api_socket_path: String,
    /// The workload's uid; `None`: the namespace's, or 1000.
    pub sandbox_uid: Option<u32>,
    /// The workload's gid.
    pub sandbox_gid: Option<u32>,
}

impl Default for DriverConfig {
    fn default() -> Self {
        let peer = |name: &str| Peer {
            namespace_selector: [("kubernetes.io/metadata.name".into(), "kube-system".into())].into(),
            pod_selector: [("k8s-app".into(), name.into())].into(),
            cidr: None,
            port: DNS_PORT,
        };
        let dns_peers = || vec![peer("kube-dns"), peer("coredns")];
        Self {
            workspace_mode: WorkspaceMode::Shared,
            gateway_id: "openshell".into(),
            namespace: "openshell".into(),
            service_account_name: "default".into(),
            default_image: "ghcr.io/nvidia/openshell-community/sandboxes/base:latest".into(),
            image_pull_policy: String::new(),
            supervisor_image_pull_policy: String::new(),
            image_pull_secrets: Vec::new(),
            supervisor_image: concat!("openshell-supervisor:", env!("CARGO_PKG_VERSION")).into(),
            supervisor_requests: BTreeMap::new(),
            supervisor_limits: BTreeMap::new(),
            supervisor_sideload_method: Sideload::ImageVolume,
            topology: Topology::Combined,
            network_enforcement: NetworkEnforcement::Namespace,
            sidecar: SidecarConfig { proxy_uid: PROXY_ID, proxy_gid: PROXY_ID, binary_aware: true },
            proxy_pod: ProxyPodConfig {
                proxy_uid: PROXY_ID,
                affinity: Affinity::Disabled,
                dns_peers: dns_peers(),
                gateway_peers: Vec::new(),
                cluster_domain: CLUSTER_DOMAIN.into(),
                ip_family: IpFamily::Ipv4,
                start_timeout_secs: START_TIMEOUT,
                canaries: Vec::new(),
                landlock_net: LandlockNet::Off,
            },
            platform_network: PlatformNetworkConfig {
                dns_peers: dns_peers(),
                gateway_peers: Vec::new(),
                egress: Vec::new(),
                canaries: Vec::new(),
                controls: Vec::new(),
                start_timeout_secs: START_TIMEOUT,
                landlock_net: LandlockNet::Off,
            },
            openshift: OpenShiftConfig::default(),
            upstream_proxy: UpstreamProxyConfig::default(),
            grpc_endpoint: None,
            ssh_socket_path: crate::contract::SSH_SOCKET.into(),
            client_tls_secret_name: String::new(),
            host_gateway_ip: String::new(),
            enable_user_namespaces: false,
            app_armor_profile: None,
            workspace_default_storage_size: DEFAULT_STORAGE.into(),
            workspace_storage_class: String::new(),
            default_runtime_class_name: String::new(),
            runtime_classes: Vec::new(),
            sa_token_ttl_secs: TOKEN_TTL,
            provider_spiffe_workload_api_socket_path: String::new(),
            sandbox_uid: None,
            sandbox_gid: None,
        }
    }
}

/// Size of a sandbox's volume unless configured.
const DEFAULT_STORAGE: &str = "2Gi";
/// Lifetime of a token unless configured.
const TOKEN_TTL: i64 = 3600;
/// What Kubernetes takes as a token's lifetime at the least, and what a leaked one is worth at the most.
const TOKEN_TTL_BOUNDS: (i64, i64) = (600, 86_400);
/// The domain of most clusters (kubeadm's default).
const CLUSTER_DOMAIN: &str = "cluster.local";
/// What a node that an autoscaler makes takes, with a large image to pull.
const START_TIMEOUT: u32 = 600;
/// What one may wait at the most, in seconds: a day is for ever.
pub(super) const LONGEST_START: u32 = 86_400;
/// DNS (RFC 1035).
const DNS_PORT: u16 = 53;
/// The least id of a proxy: below are the system's users.
pub(super) const LEAST_PROXY_ID: u32 = 1000;
/// The greatest id; the one above means nobody to chown(2) and setuid(2).
pub(super) const GREATEST_ID: u32 = u32::MAX - 1;
impl DriverConfig {
    /// Lifetime of a token within what Kubernetes takes.
    #[must_use]
    pub fn token_ttl(&self) -> i64 {
        let asked = if self.sa_token_ttl_secs <= 0 { TOKEN_TTL } else { self.sa_token_ttl_secs };
        asked.clamp(TOKEN_TTL_BOUNDS.0, TOKEN_TTL_BOUNDS.1)
    }
}
