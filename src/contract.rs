//! Names, paths, ports and numbers that both sides of a pod share: the roles that read them and the driver that
//! renders pods which call those roles. Written once, so that a rendered pod cannot name what no role knows.

/// Port of the egress proxy inside the workload's network namespace, in every topology.
pub const PROXY_PORT: u16 = 3128;

/// What the workload's proxy variables hold in every topology.
pub const PROXY_URL: &str = "http://127.0.0.1:3128";

/// A name a laptop policy may list to reach services on the host's own loopback (design §4).
pub const HOST_ALIAS: &str = "host.openshell.internal";

/// User whose entry in the image's passwd file is the workload's identity when nothing else names one.
pub const SANDBOX_USER: &str = "sandbox";

/// Identity of last resort for a workload started by root: the kernel's overflow id, which owns nothing.
pub const OVERFLOW_ID: u32 = 65534;

/// Where an image may bake its own policy.
pub const IMAGE_POLICY_PATH: &str = "/etc/openshell/policy.yaml";

/// Directory where an unset or root working directory sends the workload.
pub const SANDBOX_HOME: &str = "/sandbox";

/// Where the workload finds whom it is to trust, in its own view of the file system. Nothing of the image's is there:
/// the supervisor's places are reserved.
pub const TRUST_DIRECTORY: &str = "/run/openshell/tls";

/// Directory that the two supervisors of a sidecar pod share: the proxy's, readable for the sandbox's group.
pub const SIDECAR_DIRECTORY: &str = "/run/openshell-sidecar";

/// Socket of the control channel, below [`SIDECAR_DIRECTORY`].
pub const CONTROL_SOCKET: &str = "/run/openshell-sidecar/control.sock";

/// Directory of the proxy's private files, closed to the workload.
pub const PROXY_TLS_DIRECTORY: &str = "/etc/openshell-tls/proxy";

/// Name of the directory in [`PROXY_TLS_DIRECTORY`] that holds the proxy's copy of [`CLIENT_TLS_FILES`].
pub const PROXY_CLIENT_TLS: &str = "client";

/// Where the Secret with the client TLS material is mounted in the init container.
pub const CLIENT_TLS_DIRECTORY: &str = "/etc/openshell-tls/client";

/// What that Secret holds: the gateway's CA, the client's certificate, its key.
pub const CLIENT_TLS_FILES: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

/// Uid and gid of the proxy unless configured. The fence lets out the two together, so neither may be anybody else's.
pub const PROXY_ID: u32 = 1337;

/// Where the access server of a combined container listens unless configured.
pub const SSH_SOCKET: &str = "/run/openshell/ssh.sock";

/// Where it listens in a container whose root is read-only: by a name, since there is no place for a file.
pub const SSH_SOCKET_NAME: &str = "@openshell-sidecar-ssh";

/// Who a container is to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Annotations of a sandbox's pod, by which the driver tells the node's plugin what to do.
pub mod annotation {
    /// `enabled`: the node's plugin raises the fence.
    pub const CNI: &str = "openshell.ai/cni";
    /// The topology, `cni-sidecar`.
    pub const ENFORCEMENT_MODE: &str = "openshell.ai/network-enforcement-mode";
    /// Version of what these annotations mean; 1 where it is missing.
    pub const CNI_CONTRACT: &str = "openshell.ai/cni-contract-version";
    /// Uid of the proxy, whom the fence lets out, in decimal.
    pub const PROXY_UID: &str = "openshell.ai/proxy-uid";
    /// Its gid.
    pub const PROXY_GID: &str = "openshell.ai/proxy-gid";
}

/// What a node says of its plugin: sandboxes of the cni-sidecar topology go where the label is.
pub mod node {
    /// Label of a node on which the plugin is chained and verified.
    pub const READY_LABEL: &str = "openshell.ai/cni-ready";
    /// Its value; every other one, and none, is a no.
    pub const READY: &str = "true";
    /// Taint that a node may register with (kubelet's `--register-with-taints`), and that is taken off once it is ready. It
    /// is never put on: with an effect of NoExecute that would evict what runs already.
    pub const STARTUP_TAINT: &str = "openshell.ai/cni-not-ready";
    /// Type of the condition that says why, for people.
    pub const CONDITION: &str = "OpenShellCNIReady";
}

/// Environment variables that roles read. Identity and endpoints only: what draws a boundary comes from argv, because
/// an image can bake environment but cannot change the argv a driver sets.
pub mod env {
    /// Prefix of everything that is the supervisor's and must not reach the workload.
    pub const PREFIX: &str = "OPENSHELL_";
    /// Set to `1` in every workload, so that a program can tell it is inside.
    pub const INSIDE: &str = "OPENSHELL_SANDBOX";
    /// Name of the sandbox.
    pub const SANDBOX: &str = "OPENSHELL_SANDBOX";
    /// UUID of the sandbox.
    pub const SANDBOX_ID: &str = "OPENSHELL_SANDBOX_ID";
    /// Numeric identity of the workload, set by the driver; comes with [`SANDBOX_GID`] or not at all.
    pub const SANDBOX_UID: &str = "OPENSHELL_SANDBOX_UID";
    /// See [`SANDBOX_UID`].
    pub const SANDBOX_GID: &str = "OPENSHELL_SANDBOX_GID";
    /// JSON map of variables the user asked for in the workload.
    pub const USER_ENVIRONMENT: &str = "OPENSHELL_USER_ENVIRONMENT";
    /// JSON `{version, command, tty}`, or `base64url:` and the same.
    pub const MAIN_PROCESS_SPEC: &str = "OPENSHELL_MAIN_PROCESS_SPEC";
    /// URL of the proxy in a pod of its own: `http://HOST:PORT`.
    pub const PROXY_URL: &str = "OPENSHELL_PROXY_URL";
    /// Address of the API server, as the kubelet gives it to every container; [`API_SERVER_PORT`] comes with it.
    pub const API_SERVER_HOST: &str = "KUBERNETES_SERVICE_HOST";
    /// See [`API_SERVER_HOST`].
    pub const API_SERVER_PORT: &str = "KUBERNETES_SERVICE_PORT";
    /// Where the access server listens: a path, or `@NAME`.
    pub const SSH_SOCKET_PATH: &str = "OPENSHELL_SSH_SOCKET_PATH";
    /// Name of the node, by the downward API (`spec.nodeName`).
    pub const NODE_NAME: &str = "NODE_NAME";
    /// Level of the one-line log on stderr.
    pub const LOG_LEVEL: &str = "OPENSHELL_LOG_LEVEL";
}

/// Exit codes of the supervisor's own making (design §1); the workload's own pass through.
pub mod exit {
    /// Not all that was asked for has been done; what is missing has been said.
    pub const INCOMPLETE: u8 = 1;
    /// Wrong usage.
    pub const USAGE: u8 = 2;
    /// `--timeout` ended the workload.
    pub const TIMED_OUT: u8 = 124;
    /// The supervisor failed before the workload ran.
    pub const SETUP: u8 = 125;
    /// The command was found and cannot be executed.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The command was not found.
    pub const NOT_FOUND: u8 = 127;
    /// Added to a signal's number when that signal ended the workload.
    pub const SIGNAL_BASE: u8 = 128;
}
