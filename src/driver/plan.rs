//! Everything that is decided before anything is rendered: where the sandbox is, who is who in it, how it is run.

use super::cluster::{self, Cluster};
use super::config::{DriverConfig, NetworkEnforcement, Sideload, Topology, WorkspaceMode};
use super::sandbox::SandboxSpec;
use crate::contract::{Ids, SANDBOX_HOME};

/// The inputs, and what follows from them.
pub(super) struct Plan<'a> {
    pub(super) config: &'a DriverConfig,
    pub(super) sandbox: &'a SandboxSpec,
    pub(super) cluster: &'a Cluster,
    /// The objects' namespace.
    pub(super) namespace: String,
    /// The Sandbox's name, and its pod's.
    pub(super) name: String,
    /// Who the workload is.
    pub(super) workload: Ids,
    /// Who the proxy is.
    pub(super) proxy: Ids,
    /// The effective runtime class.
    pub(super) runtime_class: Option<&'a str>,
}

/// Runtimes that keep the workload's kernel, or a part of it, apart from the node's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SandboxedRuntime {
    /// A virtual machine.
    Kata,
    /// A kernel in user space.
    Gvisor,
}

impl<'a> Plan<'a> {
    pub(super) fn new(config: &'a DriverConfig, sandbox: &'a SandboxSpec, cluster: &'a Cluster) -> Self {
        let (workspace, name) = (&sandbox.workspace, &sandbox.name);
        let (namespace, name) = match &config.workspace_mode {
            WorkspaceMode::Shared => (config.namespace.clone(), format!("{workspace}--{name}")),
            WorkspaceMode::Managed => (format!("openshell-{}-{workspace}", config.gateway_id), name.clone()),
            WorkspaceMode::Operator { .. } => (workspace.clone(), name.clone()),
        };
        let proxy = match config.topology {
            Topology::Combined => Ids { uid: 0, gid: 0 },
            Topology::Sidecar | Topology::CniSidecar => {
                let uid = if config.sidecar.binary_aware { 0 } else { config.sidecar.proxy_uid };
                Ids { uid, gid: config.sidecar.proxy_gid }
            }
            Topology::ProxyPod => Ids { uid: config.proxy_pod.proxy_uid, gid: config.proxy_pod.proxy_uid },
        };
        let classes = [
            sandbox.platform_config.runtime_class_name.as_deref(),
            sandbox.driver_config.runtime_class_name.as_deref(),
            Some(config.default_runtime_class_name.as_str()),
        ];
        Self {
            config,
            sandbox,
            cluster,
            namespace,
            name,
            workload: cluster::workload(config, cluster),
            proxy,
            runtime_class: classes.into_iter().flatten().find(|class| !class.is_empty()),
        }
    }

    /// Whether the platform fences the one container that everything is in.
    pub(super) fn is_fenced_by_platform(&self) -> bool {
        self.config.topology == Topology::Combined && self.config.network_enforcement == NetworkEnforcement::Platform
    }

    /// What the platform's fence lets through and what serves, HOST:PORT each: what is named, and what is there anyway.
    pub(super) fn controls(&self) -> Vec<String> {
        let platform = &self.config.platform_network;
        let authority = |url: &str| url.split_once("://").map(|(_, rest)| rest.trim_end_matches('/').to_owned());
        let gateway = self.gateway().filter(|_| platform.gateway_peers.iter().any(|peer| !peer.is_empty()));
        let known = [self.config.upstream_proxy.url.as_deref(), gateway];
        platform.controls.iter().cloned().chain(known.into_iter().flatten().filter_map(authority)).collect()
    }

    /// What the containers without privilege run as; `None` leaves it to the namespace, as `restricted-v2` of OpenShift wants
    /// it: the supervisor takes whom it finds itself to be.
    pub(super) fn runs_as(&self) -> Option<Ids> {
        let said = self.config.sandbox_uid.is_some() || self.config.sandbox_gid.is_some();
        (said || !self.is_fenced_by_platform()).then_some(self.workload)
    }

    /// The runtime by its class's name.
    pub(super) fn sandboxed_runtime(&self) -> Option<SandboxedRuntime> {
        match self.runtime_class? {
            class if class.starts_with("kata") => Some(SandboxedRuntime::Kata),
            class if class.starts_with("gvisor") || class.starts_with("runsc") => Some(SandboxedRuntime::Gvisor),
            _ => None,
        }
    }

    /// How the executable comes into the agent: by image only where the runtime can mount one
    /// (kata-containers#13749, gvisor#14471).
    pub(super) fn sideload(&self) -> Sideload {
        match self.sandboxed_runtime() {
            Some(_) => Sideload::InitContainer,
            None => self.config.supervisor_sideload_method,
        }
    }

    /// Whether the workspace is a claim of its own, which the Sandbox's controller makes.
    pub(super) fn claims_workspace(&self) -> bool {
        let below = format!("{SANDBOX_HOME}/");
        let taken = |path: &str| path.starts_with(&below);
        self.cluster.sandbox_api.is_some()
            && self.sandbox.persistent_workspace
            && !self.sandbox.driver_config.volume_mounts.iter().any(|mount| taken(&mount.mount_path))
    }

    /// The agent's image.
    pub(super) fn agent_image(&self) -> &'a str {
        if self.sandbox.image.is_empty() { &self.config.default_image } else { &self.sandbox.image }
    }

    /// Whether the pod has a user namespace of its own.
    pub(super) fn has_user_namespace(&self) -> Option<bool> {
        match self.sandbox.platform_config.host_users {
            Some(host) => Some(!host),
            None => self.config.enable_user_namespaces.then_some(true),
        }
    }
}

/// What belongs to a gateway; without one there is none of it.
impl<'a> Plan<'a> {
    /// The gateway's URL.
    pub(super) fn gateway(&self) -> Option<&'a str> {
        self.config.grpc_endpoint.as_deref()
    }

    /// The Secret with the client's TLS material for it.
    pub(super) fn client_tls(&self) -> Option<&'a str> {
        self.gateway().map(|_| self.config.client_tls_secret_name.as_str()).filter(|name| !name.is_empty())
    }

    /// Socket of the SPIFFE workload API, and its directory.
    pub(super) fn spiffe(&self) -> Option<(&'a str, &'a str)> {
        let socket = self.config.provider_spiffe_workload_api_socket_path.as_str();
        socket.rsplit_once('/').map(|(directory, _)| (socket, directory)).filter(|(_, directory)| !directory.is_empty())
    }
}
