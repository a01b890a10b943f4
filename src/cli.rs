//! Flags and environment of each role, in clap's terms. Parsing, help, completions and man pages all come from here.
//!
//! What draws a boundary (policy, identity mode, bind addresses, profiles) has no environment variable: an image can
//! bake environment, it cannot change the argv that a driver sets (design §1). Identity and labels have one.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, ValueEnum, ValueHint};

use crate::access::Place;
use crate::cni::chain::Way;
use crate::cni::config::KUBECONFIG;
use crate::confine::seccomp::Profile;
use crate::contract::{
    CLIENT_TLS_DIRECTORY, CONTROL_SOCKET, PROXY_ID, PROXY_TLS_DIRECTORY, SIDECAR_DIRECTORY, SSH_SOCKET,
    TRUST_DIRECTORY, env,
};
use crate::driver::{SandboxApi, Topology};
use crate::egress::Exemptions;
use crate::event::{Destination, LogLevel};
use crate::kube::access::SERVICE_ACCOUNT_DIRECTORY;
use crate::policy::host::Host;

/// Run a command confined, with its egress policed.
///
/// The command gets a network namespace of its own in which the only way out is the egress proxy at
/// http://127.0.0.1:3128, sees the paths that the policy grants, and has no capability. What the policy allows goes
/// out; everything else is refused at once and explained. Ends with the command's exit code.
#[derive(Debug, Parser)]
#[command(name = "run", after_help = RUN_EXAMPLES)]
pub struct Run {
    /// Let the command reach HOST:PORT, by whatever program; may be repeated. For a quick try: a policy file says more
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "policy")]
    pub allow: Vec<String>,
    /// Allow everything that can be dialled, write down what the command did, and leave the narrowest policy for it here
    #[arg(long, value_name = "FILE", conflicts_with_all = LEARNING_DECIDES, value_hint = ValueHint::FilePath)]
    pub learn: Option<PathBuf>,
    /// How the command runs
    #[command(flatten)]
    pub workload: WorkloadOptions,
    /// Everything that the entrypoint takes as well
    #[command(flatten)]
    pub sandbox: Sandbox,
    /// Set NAME in the command's environment, or pass it through from here when there is no `=`; may be repeated
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    pub environment: Vec<String>,
    /// The command and its arguments
    #[arg(value_name = "CMD", num_args = 1.., required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// What says what is allowed cannot be given where everything is.
#[cfg(feature = "wasm-policy")]
const LEARNING_DECIDES: [&str; 4] = ["policy", "allow", "policy_rules", "policy_wasm"];
/// See above.
#[cfg(not(feature = "wasm-policy"))]
const LEARNING_DECIDES: [&str; 3] = ["policy", "allow", "policy_rules"];

const RUN_EXAMPLES: &str = "\
Examples:
  openshell-supervisor run --allow api.example.com:443 -- curl https://api.example.com/
  openshell-supervisor run --policy policies/examples/github-clone.yaml -- git clone https://github.com/rust-lang/log
  openshell-supervisor run -- bash";

/// Entrypoint of a combined container: launch the workload, and be its only way out.
///
/// The workload follows `--`, or comes from OPENSHELL_MAIN_PROCESS_SPEC. With --fence=elsewhere or none it makes no namespace and
/// takes no privilege: what keeps the workload from going around the proxy is then up to the platform, and what keeps it from the
/// supervisor's secrets is Landlock, without which it does not start.
#[derive(Debug, Parser)]
#[command(name = "network,process")]
pub struct Combined {
    /// How the workload runs
    #[command(flatten)]
    pub workload: WorkloadOptions,
    /// What `run` takes as well
    #[command(flatten)]
    pub sandbox: Sandbox,
    /// Where the platform fences
    #[command(flatten)]
    pub platform: Platform,
    /// The workload and its arguments
    #[arg(value_name = "CMD", last = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// The egress proxy and policy engine alone, for the processes of the namespaces it is started in, or for a workload in another
/// pod.
///
/// SIGHUP reloads the policy; TERM and INT end it.
#[derive(Debug, Parser)]
#[command(name = "network")]
pub struct Network {
    /// Which policy, and what else decides
    #[command(flatten)]
    pub policy: PolicyOptions,
    /// Where to listen: loopback, since whoever can connect is judged by the processes of this machine. Another address takes
    /// --ca-cert, --ca-key, and --attestation-key or --binary-identity=relaxed
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:3128", value_parser = address)]
    pub bind: SocketAddr,
    /// The workload is in another pod, whose `process` names the program of each connection by this key of the sandbox's (32
    /// bytes or more). Programs then come from there alone, and connections that carry no such name are denied wherever the
    /// policy names programs
    #[arg(long, value_name = "FILE", conflicts_with = "control_socket", value_hint = ValueHint::FilePath)]
    pub attestation_key: Option<PathBuf>,
    /// Serve the workload of a sidecar pod: wait for its `process` supervisor on this Unix socket, and end with it.
    /// Beside it is put whom the workload is to trust
    #[arg(long, value_name = "PATH", requires_all = ["sandbox_uid", "sandbox_gid"], value_hint = ValueHint::FilePath)]
    pub control_socket: Option<PathBuf>,
    /// User of the workload, which alone may connect to that socket
    #[arg(long, value_name = "UID", env = env::SANDBOX_UID)]
    pub sandbox_uid: Option<u32>,
    /// Group of the workload, see --sandbox-uid
    #[arg(long, value_name = "GID", env = env::SANDBOX_GID)]
    pub sandbox_gid: Option<u32>,
    /// Through what everything leaves
    #[command(flatten)]
    pub upstream: UpstreamProxy,
    /// Who signs for inspected hosts, and who is believed
    #[command(flatten)]
    pub tls: TlsOptions,
    /// What is recorded, and where
    #[command(flatten)]
    pub records: Records,
}

/// The workload of a pod, launched and confined without any privilege, while `network` is its only way out.
///
/// In a sidecar pod policy and environment come from `network` over the control socket; when either of the two ends, so does
/// the other. With --remote-proxy the proxy is in a pod of its own: the workload's connections are carried there from
/// http://127.0.0.1:3128, the policy's static sections are read here, and either side outlives the other's restart. The
/// workload follows `--`, or comes from OPENSHELL_MAIN_PROCESS_SPEC.
#[derive(Debug, Parser)]
#[command(name = "process")]
pub struct Process {
    /// How the workload runs
    #[command(flatten)]
    pub workload: WorkloadOptions,
    /// Where `network` waits: its --control-socket
    #[arg(long, value_name = "PATH", default_value = CONTROL_SOCKET, conflicts_with = "remote_proxy", value_hint = ValueHint::FilePath)]
    pub control_socket: PathBuf,
    /// How long to wait for it
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = seconds)]
    pub wait: f64,
    /// Who keeps the workload from going around the proxy
    #[arg(long, value_enum, value_name = "WHO", default_value_t = Fence::Pod)]
    pub fence: Fence,
    /// What holds where the proxy is in another pod
    #[command(flatten)]
    pub remote: RemoteProxy,
    /// What is recorded, and where
    #[command(flatten)]
    pub records: Records,
    /// The workload and its arguments
    #[arg(value_name = "CMD", last = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// `process` beside a proxy in another pod.
#[derive(Args, Debug)]
#[command(next_help_heading = "With a proxy in another pod")]
pub struct RemoteProxy {
    /// The proxy is in another pod, at this `http://HOST:PORT`, or where OPENSHELL_PROXY_URL says
    #[arg(long, value_name = "URL", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub remote_proxy: Option<String>,
    /// Policy file, of which the workload's own sections are read here: paths, Landlock, identity. Without one the restrictive
    /// default holds
    #[arg(long, value_name = "FILE", requires = "remote_proxy", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Start although the workload could rewrite that file, for its next start
    #[arg(long, requires = "remote_proxy")]
    pub allow_writable_policy: bool,
    /// Where `trust` has put whom the workload is to trust
    #[arg(long, value_name = "DIR", default_value = TRUST_DIRECTORY, value_hint = ValueHint::DirPath)]
    pub trust_dir: PathBuf,
    /// Tell the proxy which program each connection is of, by this key of the sandbox's (32 bytes or more, the proxy's
    /// --attestation-key). The workload must not be able to read it, which takes Landlock
    #[arg(long, value_name = "FILE", requires = "remote_proxy", value_hint = ValueHint::FilePath)]
    pub attestation_key: Option<PathBuf>,
    /// Whether Landlock lets the workload's TCP connect to the proxy's port alone: servers of its own on other ports are then
    /// out of its reach too
    #[arg(long, value_enum, value_name = "MODE", default_value_t = LandlockNet::Off)]
    pub landlock_net: LandlockNet,
}

/// `--landlock-net`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LandlockNet {
    /// It may connect to any
    Off,
    /// To port 3128 and no other; takes Linux 6.7
    Strict,
}

/// The combined sandbox in the pod's own namespaces.
#[derive(Args, Debug)]
#[command(next_help_heading = "Where the platform fences")]
pub struct Platform {
    /// What keeps the workload from going around the proxy
    #[arg(long, value_enum, value_name = "WHO", default_value_t = CombinedFence::Own)]
    pub fence: CombinedFence,
    /// With another fence than its own: a directory that this user may write, for whom the workload is to trust
    #[arg(long, value_name = "DIR", default_value = TRUST_DIRECTORY, value_hint = ValueHint::DirPath)]
    pub trust_dir: PathBuf,
    /// With another fence than its own: whether Landlock lets the workload's TCP connect to the proxy's port alone
    #[arg(long, value_enum, value_name = "MODE", default_value_t = LandlockNet::Off)]
    pub landlock_net: LandlockNet,
}

/// `--fence` of `network,process`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CombinedFence {
    /// A network namespace without a way out
    Own,
    /// The cluster's network, by a NetworkPolicy: what that lets the proxy reach the workload can reach too
    Elsewhere,
    /// Nobody: the proxy polices those programs that use it
    None,
}

/// What a sandbox is made of, for `run` and the entrypoint alike.
#[derive(Args, Debug)]
pub struct Sandbox {
    /// Which policy, and what else decides
    #[command(flatten)]
    pub policy: PolicyOptions,
    /// How TLS is terminated where the policy inspects it
    #[command(flatten)]
    pub tls: TlsOptions,
    /// Through what everything leaves
    #[command(flatten)]
    pub upstream: UpstreamProxy,
    /// What is recorded, and where
    #[command(flatten)]
    pub records: Records,
}

/// How the workload runs.
#[derive(Args, Debug)]
pub struct WorkloadOptions {
    /// Directory the workload starts in; granted to it where the policy says `include_workdir`
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub workdir: Option<PathBuf>,
    /// End the workload after this many seconds, with exit code 124; 0 is never
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds, hide_default_value = true)]
    pub timeout: f64,
    /// Time between TERM and KILL when the workload is to end
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds)]
    pub grace: f64,
    /// System calls that the workload may make
    #[arg(long, value_enum, value_name = "PROFILE", default_value_t = SeccompProfile::Baseline)]
    pub seccomp: SeccompProfile,
    /// Limit a resource of the workload: `nofile=1024`, `nproc=64`, `as=2147483648`; may be repeated
    #[arg(long = "limit", value_name = "NAME=NUMBER")]
    pub limits: Vec<String>,
    /// Let people in by SSH, on this Unix socket: a path, or `@NAME` for an abstract one. Nothing of the workload's gets in
    #[arg(long, value_name = "PATH|@NAME", env = env::SSH_SOCKET_PATH)]
    pub ssh_socket_path: Option<Place>,
}

/// Which policy decides, and how.
#[derive(Args, Debug)]
pub struct PolicyOptions {
    /// Policy file; without one the workload gets the restrictive default and no network
    #[arg(long, value_name = "FILE", alias = "policy-data", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,
    /// Rego that replaces the built-in decision (package `openshell.egress`, rule `decision`)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy_rules: Option<PathBuf>,
    /// The decision compiled by `opa build -t wasm -e openshell/egress/decision`
    #[cfg(feature = "wasm-policy")]
    #[arg(long, value_name = "FILE", conflicts_with = "policy_rules", value_hint = ValueHint::FilePath)]
    pub policy_wasm: Option<PathBuf>,
    /// What to do when a changed policy file is invalid
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnInvalidPolicy::KeepLast)]
    pub on_invalid_policy: OnInvalidPolicy,
    /// Start although the workload could rewrite its own policy; it is then never reloaded
    #[arg(long)]
    pub allow_writable_policy: bool,
    /// Whether a policy's `binaries` count: `relaxed` judges by destination alone
    #[arg(long, value_enum, value_name = "MODE", default_value_t = BinaryIdentity::Required)]
    pub binary_identity: BinaryIdentity,
}

impl PolicyOptions {
    /// `--policy-wasm`, where this build has it.
    #[must_use]
    pub fn wasm(&self) -> Option<PathBuf> {
        #[cfg(feature = "wasm-policy")]
        return self.policy_wasm.clone();
        #[cfg(not(feature = "wasm-policy"))]
        None
    }
}

/// How TLS is terminated.
#[derive(Args, Debug)]
pub struct TlsOptions {
    /// CA that signs for inspected hosts, in PEM, with the chain above it; without one the sandbox makes its own
    #[arg(long, value_name = "FILE", requires = "ca_key", value_hint = ValueHint::FilePath)]
    pub ca_cert: Option<PathBuf>,
    /// Private key of --ca-cert, in PKCS #8; the workload must not be able to read it
    #[arg(long, value_name = "FILE", requires = "ca_cert", value_hint = ValueHint::FilePath)]
    pub ca_key: Option<PathBuf>,
    /// Trust these certificates, in PEM, for destinations, besides the system's; the workload does too; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub upstream_ca: Vec<PathBuf>,
}

impl TlsOptions {
    /// The files that decide who is believed, which the workload must not be able to write.
    pub fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.ca_cert.iter().chain(&self.ca_key).chain(&self.upstream_ca)
    }
}

/// The corporate proxy, if any. From argv alone, never from HTTPS_PROXY and its kin: an image can bake environment.
#[derive(Args, Debug)]
pub struct UpstreamProxy {
    /// Send everything that leaves through this proxy: `http://HOST:PORT` or `https://HOST:PORT`, and nothing more
    // Read later: clap would quote what cannot be read, and that may hold a password.
    #[arg(long, value_name = "URL")]
    pub upstream_proxy: Option<String>,
    /// Dial these directly: names with all below them, addresses, ranges, each with `:PORT` if need be, or `*`
    #[arg(long, value_name = "LIST", requires = "upstream_proxy")]
    pub upstream_no_proxy: Option<Exemptions>,
    /// File with USER:PASSWORD for the proxy (Basic)
    #[arg(long, value_name = "FILE", requires = "upstream_proxy", value_hint = ValueHint::FilePath)]
    pub upstream_proxy_auth_file: Option<PathBuf>,
    /// Send that password although an http:// proxy is reached in clear
    #[arg(long, alias = "upstream-proxy-auth-allow-insecure", requires = "upstream_proxy_auth_file")]
    pub upstream_proxy_allow_insecure_auth: bool,
    /// Give the proxy names instead of checked addresses: what they lead to is then its to judge
    #[arg(long, alias = "upstream-proxy-connect-by-hostname", requires = "upstream_proxy")]
    pub upstream_proxy_resolve_remotely: bool,
}

/// What is recorded, and where.
#[derive(Args, Debug)]
pub struct Records {
    /// Security events as OCSF JSON lines: a file to append to, `-` for standard output, or `off`
    #[arg(long, value_name = "FILE|-|off", default_value = "off")]
    pub events: Destination,
    /// What is told on stderr, one line each: warn shows refusals and findings, info what was allowed as well
    #[arg(long, value_name = "LEVEL", default_value_t = LogLevel::Warn, env = env::LOG_LEVEL)]
    pub log_level: LogLevel,
    /// Serve /livez, /readyz and /metrics here; nothing is served without it
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub admin_bind: Option<SocketAddr>,
    /// Name of the sandbox, for events
    #[arg(long, value_name = "NAME", env = env::SANDBOX)]
    pub sandbox: Option<String>,
    /// UUID of the sandbox, for events
    #[arg(long, value_name = "UUID", env = env::SANDBOX_ID)]
    pub sandbox_id: Option<String>,
}

/// `--seccomp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SeccompProfile {
    /// What agents and their tools need, and no more of the kernel than that
    Baseline,
    /// Without memfd, pidfd and personality too: for workloads known to need none
    Strict,
    /// What CUDA needs as well
    Gpu,
}

impl From<SeccompProfile> for Profile {
    fn from(profile: SeccompProfile) -> Self {
        match profile {
            SeccompProfile::Baseline => Self::Baseline,
            SeccompProfile::Strict => Self::Strict,
            SeccompProfile::Gpu => Self::Gpu,
        }
    }
}

/// `--fence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fence {
    /// The pod's own, by network-init or the CNI plugin: proven before the workload starts, or there is none
    Pod,
    /// The cluster, by what cannot be proven from inside, such as a NetworkPolicy
    Elsewhere,
}

/// `--on-invalid-policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnInvalidPolicy {
    /// Refuse it, keep deciding by the last good one
    KeepLast,
    /// Refuse it, and everything else until it is mended
    DenyAll,
}

/// `--binary-identity`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BinaryIdentity {
    /// Every connection is traced to the program that owns it
    Required,
    /// It is not, and every event says so
    Relaxed,
}

/// Check a policy file, or explain what it decides.
#[derive(Debug, Parser)]
#[command(name = "policy", arg_required_else_help = true)]
pub struct Policy {
    /// What to do
    #[command(subcommand)]
    pub action: PolicyAction,
}

/// What `policy` does.
#[derive(Debug, clap::Subcommand)]
pub enum PolicyAction {
    /// Validate a policy file; every problem is told at once, with line and column
    Check {
        /// The policy file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
    /// Tell what a policy decides for one connection, by which entry, or what is missing
    Explain {
        /// The policy file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Destination host
        #[arg(long)]
        host: String,
        /// Destination port
        #[arg(long)]
        port: u16,
        /// Path of the program that connects
        #[arg(long, value_name = "PATH")]
        binary: Option<String>,
        /// Path of a parent of that program, nearest first; may be repeated
        #[arg(long = "ancestor", value_name = "PATH")]
        ancestors: Vec<String>,
        /// Rego that replaces the built-in decision
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        policy_rules: Option<PathBuf>,
        /// A request on that connection
        #[command(flatten)]
        request: Request,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
}

/// A request that `policy explain` is asked about.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "A request on that connection")]
pub struct Request {
    /// Method of an HTTP request, or of the gRPC service given by --service
    #[arg(long, value_name = "METHOD")]
    pub method: Option<String>,
    /// Path of the request, as it is sent
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// A part of its query; may be repeated
    #[arg(long = "query", value_name = "KEY=VALUE")]
    pub query: Vec<String>,
    /// Method of a JSON-RPC or MCP call
    #[arg(long, value_name = "METHOD", conflicts_with_all = ["method", "service"])]
    pub rpc: Option<String>,
    /// Tool of an MCP call
    #[arg(long, value_name = "NAME", conflicts_with_all = ["method", "service"])]
    pub tool: Option<String>,
    /// Service of a gRPC call, package first
    #[arg(long, value_name = "NAME", requires = "method", conflicts_with = "path")]
    pub service: Option<String>,
}

/// Tell what this kernel and user can do, then prove the confinement by trying to get out of it.
///
/// Exit code 1 when anything that should hold does not.
#[derive(Debug, Parser)]
#[command(name = "doctor")]
pub struct Doctor {
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
    /// How `doctor` calls itself as the workload
    #[arg(long, value_name = "BAIT", hide = true)]
    pub from_inside: Option<String>,
}

/// Ask a role's admin listener whether it is ready, for probes: exit 0 or 1.
#[derive(Debug, Parser)]
#[command(name = "health")]
pub struct Health {
    /// Where the role serves: its --admin-bind
    #[arg(value_name = "ADDRESS:PORT", value_parser = address)]
    pub address: SocketAddr,
    /// Ask for life instead of readiness
    #[arg(long)]
    pub live: bool,
    /// How long to wait for the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub timeout: f64,
}

/// Raise the fence of a sandbox's pod, called by the node's container runtime.
///
/// A plugin by the CNI specification, 0.3.0 to 1.1.0: all that it is told comes by CNI_ variables and standard input, and
/// there are no flags. `cni-install` puts it in place.
#[derive(Debug, Parser)]
#[command(name = "cni")]
pub struct Cni {}

/// Install the plugin on a node, keep it chained, and tell the cluster whether the node may run sandboxes.
///
/// For a DaemonSet's privileged container on the host's network. The node's directories are mounted under the paths that they
/// have on the node. What it finds wrong it repairs, with the node's label gone before it begins; the label comes back, with
/// the startup taint taken off, once the chain is verified. Told to end it takes the label away and leaves the plugin in place,
/// unless its DaemonSet is going.
#[derive(Debug, Parser)]
#[command(name = "cni-install")]
pub struct CniInstall {
    /// How the container runtime is made to call the plugin
    #[arg(long, value_name = "WAY", default_value = "conflist")]
    pub way: ChainWay,
    /// The runtime's network configurations; with multus-chain, the directory of its auxiliary chain
    /// [default: /etc/cni/net.d, or /run/multus/cni/net.d/vendor-cni-chain]
    #[arg(long, value_name = "DIR", value_parser = absolute, value_hint = ValueHint::DirPath)]
    pub conf_dir: Option<PathBuf>,
    /// The configuration to chain onto, by its name in the directory, where it is not the first that the runtime can load
    #[arg(long, value_name = "NAME", value_parser = file_name)]
    pub conf_file: Option<OsString>,
    /// The runtime's plugins
    #[arg(long, value_name = "DIR", value_parser = absolute, default_value = "/opt/cni/bin", value_hint = ValueHint::DirPath)]
    pub bin_dir: PathBuf,
    /// Where the plugin is to find its credentials, which are written there; token and CA come beside it
    #[arg(long, value_name = "FILE", value_parser = absolute, default_value = KUBECONFIG, value_hint = ValueHint::FilePath)]
    pub kubeconfig: PathBuf,
    /// Namespace of sandboxes; may be repeated. Pods of others are never looked at
    #[arg(long, value_name = "NAMESPACE", required_unless_present = "uninstall")]
    pub sandbox_namespace: Vec<String>,
    /// Runtime class whose containers the node's own kernel runs; may be repeated. Sandboxes of any other class are refused:
    /// the node's fence holds no virtual machine (Kata) and no user-space kernel (gVisor)
    #[arg(long, value_name = "NAME")]
    pub runtime_class: Vec<String>,
    /// Where the plugin notes what it did
    #[arg(long, value_name = "FILE", value_parser = absolute, default_value = "/var/log/openshell-cni.log", value_hint = ValueHint::FilePath)]
    pub log_file: PathBuf,
    /// What the plugin makes when it is called, on a file system that a start of the node empties: in the ways that older
    /// runtimes pass over in silence the node is ready only once it is there
    #[arg(long, value_name = "FILE", value_parser = absolute, default_value = "/run/openshell-cni/called", value_hint = ValueHint::FilePath)]
    pub called_file: PathBuf,
    /// The node
    #[arg(long, value_name = "NAME", env = env::NODE_NAME)]
    pub node_name: String,
    /// Publish the condition OpenShellCNIReady as well, with reason and heartbeat; takes `patch` on nodes/status
    #[arg(long)]
    pub node_condition: bool,
    /// The DaemonSet that this is a pod of: when that is being deleted, being told to end means to uninstall; takes `get` on it
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = namespaced)]
    pub daemonset: Option<(String, String)>,
    /// Take the label away, the plugin out of the chain and off the node, and end
    #[arg(long)]
    pub uninstall: bool,
    /// Where the service account is mounted
    #[arg(long, value_name = "DIR", default_value = SERVICE_ACCOUNT_DIRECTORY, value_hint = ValueHint::DirPath)]
    pub service_account: PathBuf,
    /// What is recorded, and where
    #[command(flatten)]
    pub records: Records,
}

impl CniInstall {
    /// The directory to chain in.
    #[must_use]
    pub fn directory(&self) -> PathBuf {
        let usual = || ChainWay::DIRECTORIES.iter().find(|(way, _)| *way == self.way).map(|(_, usual)| usual.into());
        self.conf_dir.clone().or_else(usual).unwrap_or_default()
    }
}

/// `--way`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ChainWay {
    /// As the last plugin of the configuration that the runtime uses
    Conflist,
    /// By a file in the directory of multus' auxiliary chain (auxiliaryCNIChainName), as on OpenShift
    MultusChain,
    /// By a file in the directory named after the network: libcni 1.3 and later, and passed over in silence before
    DropIn,
}

impl ChainWay {
    /// Where the files of each way usually lie.
    pub const DIRECTORIES: [(Self, &'static str); 3] = [
        (Self::Conflist, "/etc/cni/net.d"),
        (Self::MultusChain, "/run/multus/cni/net.d/vendor-cni-chain"),
        (Self::DropIn, "/etc/cni/net.d"),
    ];
}

impl From<ChainWay> for Way {
    fn from(way: ChainWay) -> Self {
        match way {
            ChainWay::Conflist => Self::Conflist,
            ChainWay::MultusChain => Self::MultusChain,
            ChainWay::DropIn => Self::DropIn,
        }
    }
}

/// Say that sandboxes may be scheduled on a node, or no longer.
///
/// Sets the label openshell.ai/cni-ready=true and takes the startup taint openshell.ai/cni-not-ready off; `cni-install` does
/// the same by itself. Writes nothing where all is so already.
#[derive(Debug, Parser)]
#[command(name = "mark-node-ready")]
pub struct MarkNodeReady {
    /// Take the label away instead, as in a preStop hook
    #[arg(long)]
    pub remove: bool,
    /// The node
    #[arg(long, value_name = "NAME", env = env::NODE_NAME)]
    pub node_name: String,
    /// Credentials for the API server, where they are not the pod's service account
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub kubeconfig: Option<PathBuf>,
    /// Where the service account is mounted
    #[arg(long, value_name = "DIR", default_value = SERVICE_ACCOUNT_DIRECTORY, value_hint = ValueHint::DirPath)]
    pub service_account: PathBuf,
    /// How long an API server that does not answer is asked again
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0, value_parser = seconds)]
    pub timeout: f64,
}

/// A path that means the same to the container runtime, whose working directory is its own.
fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("expected an absolute path, as the node has it".into()) }
}

/// The name of a file in a directory.
fn file_name(text: &str) -> Result<OsString, String> {
    match std::path::Path::new(text).file_name() {
        Some(name) if name == text => Ok(name.to_owned()),
        _ => Err("expected the name of a file in the directory of configurations, without a path".into()),
    }
}

/// A namespace and a name in it.
fn namespaced(text: &str) -> Result<(String, String), String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() && !name.contains('/') => {
            Ok((namespace.to_owned(), name.to_owned()))
        }
        _ => Err("expected NAMESPACE/NAME, such as openshell/openshell-cni".into()),
    }
}

/// Print the Kubernetes objects of a sandbox, ready for `kubectl apply -f -` or `podman kube play -`.
///
/// The same inputs give the same bytes. Everything that is wrong with them is told at once, and nothing is printed then.
#[derive(Debug, Parser)]
#[command(name = "render", after_help = RENDER_EXAMPLES)]
pub struct Render {
    /// The driver's configuration, TOML; its defaults without one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The sandbox, YAML
    #[arg(long, value_name = "FILE", required_unless_present_any = ["schema", "explain"], value_hint = ValueHint::FilePath)]
    pub sandbox: Option<PathBuf>,
    /// Another topology than the configuration's
    #[arg(long, value_name = "TOPOLOGY", value_parser = topology())]
    pub topology: Option<Topology>,
    /// Another namespace than the configuration's, where all sandboxes are in one
    #[arg(long, value_name = "NAME")]
    pub namespace: Option<String>,
    /// An annotation of that namespace, such as OpenShift's ranges of ids; may be repeated
    #[arg(long, alias = "namespace-annotation", value_name = "KEY=VALUE", value_parser = key_value)]
    pub namespace_annotations: Vec<(String, String)>,
    /// A namespace that the operator allows, for `workspace_mode = "operator"`; may be repeated
    #[arg(long, value_name = "NAME")]
    pub operator_namespace: Vec<String>,
    /// Version of the Sandbox resource (agents.x-k8s.io) that the cluster has; a Pod is printed without one
    #[arg(long, value_name = "VERSION", default_value = "none")]
    pub sandbox_api: SandboxApiVersion,
    /// Uid of the Sandbox, once it is created: what is beside it is then its own, and goes with it
    #[arg(long, value_name = "UID")]
    pub owner_uid: Option<String>,
    /// Print the sandbox stopped
    #[arg(long)]
    pub stopped: bool,
    /// CA of a proxy-pod sandbox, in PEM; without one each call makes another
    #[arg(long, value_name = "FILE", requires = "proxy_ca_key", value_hint = ValueHint::FilePath)]
    pub proxy_ca_cert: Option<PathBuf>,
    /// Private key of --proxy-ca-cert, in PKCS #8
    #[arg(long, value_name = "FILE", requires = "proxy_ca_cert", value_hint = ValueHint::FilePath)]
    pub proxy_ca_key: Option<PathBuf>,
    /// Key by which the two pods of a proxy-pod sandbox know each other, at least 32 bytes of text; without one each call
    /// makes another
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub attestation_key: Option<PathBuf>,
    /// How the objects are written
    #[arg(short, long, value_name = "FORMAT", default_value = "yaml")]
    pub output: ObjectFormat,
    /// Print what each container may do instead, computed from the objects: of all topologies unless one is named
    #[arg(long)]
    pub explain: bool,
    /// Print the JSON Schema of an input instead
    #[arg(long, value_name = "INPUT", exclusive = true)]
    pub schema: Option<InputSchema>,
}

const RENDER_EXAMPLES: &str = "\
Examples:
  openshell-supervisor render --sandbox sandbox.yaml --topology sidecar | kubectl apply -f -
  openshell-supervisor render --config driver.toml --sandbox sandbox.yaml | podman kube play -
  openshell-supervisor render --explain";

/// `render --output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectFormat {
    /// A document an object
    Yaml,
    /// One List
    Json,
}

/// `render --schema`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum InputSchema {
    /// The driver's configuration
    Config,
    /// The sandbox
    Sandbox,
}

/// `render --sandbox-api`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SandboxApiVersion {
    /// The current one
    V1beta1,
    /// The one before
    V1alpha1,
    /// The cluster has no such resource
    None,
}

impl SandboxApiVersion {
    /// As the driver knows it.
    #[must_use]
    pub fn api(self) -> Option<SandboxApi> {
        match self {
            Self::V1beta1 => Some(SandboxApi::V1Beta1),
            Self::V1alpha1 => Some(SandboxApi::V1Alpha1),
            Self::None => None,
        }
    }
}

/// A topology by its name.
fn topology() -> impl TypedValueParser<Value = Topology> {
    PossibleValuesParser::new(Topology::ALL.map(|(name, _)| name)).try_map(|given| {
        let found = Topology::ALL.into_iter().find(|(name, _)| *name == given);
        found.map(|(_, topology)| topology).ok_or("expected a topology")
    })
}

/// A key and a value.
fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as openshift.io/sa.scc.uid-range=1000790000/10000".into()),
    }
}

/// Copy this executable into a volume, so that another image can run it.
///
/// The destination is replaced in one step: whoever looks finds the whole new file, or what was there before. The copy
/// has mode 0555. Needs no privilege, no shell and no writable root; links and special files are refused.
#[derive(Debug, Parser)]
#[command(name = "sideload")]
pub struct Sideload {
    /// The file to write, or an existing directory, where the copy keeps the executable's name
    #[arg(value_name = "DEST", value_hint = ValueHint::AnyPath)]
    pub destination: PathBuf,
}

/// Wait until HOST:PORT accepts connections, and keeps them: exit 0, or 1 when time is up.
///
/// The name is resolved anew for each try, and every address is tried. A peer that accepts and closes at once, as the
/// front of a service that is not there, has not accepted.
#[derive(Debug, Parser)]
#[command(name = "wait-for-tcp")]
pub struct WaitForTcp {
    /// What to connect to: a name or an address, and a port
    #[arg(value_name = "HOST:PORT", value_parser = destination)]
    pub destination: (Host, u16),
    /// How long to try
    #[arg(long, value_name = "SECONDS", default_value_t = 180.0, value_parser = seconds)]
    pub timeout: f64,
}

/// The door of a running sandbox.
#[derive(Args, Debug)]
pub struct AccessDoor {
    /// The sandbox's --ssh-socket-path: a path, or `@NAME` for an abstract socket
    #[arg(long, value_name = "PATH|@NAME", env = env::SSH_SOCKET_PATH, default_value = SSH_SOCKET)]
    pub ssh_socket_path: Place,
}

/// Join standard input and output to a sandbox's access server, for an SSH client's ProxyCommand.
///
/// Nothing is asked and nothing printed: what comes out is SSH. Whoever runs inside the sandbox is not let in.
#[derive(Debug, Parser)]
#[command(name = "connect", after_help = CONNECT_EXAMPLES)]
pub struct Connect {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
}

const CONNECT_EXAMPLES: &str = "\
Examples:
  ssh -o ProxyCommand='openshell-supervisor connect --ssh-socket-path /run/user/1000/box.sock' sandbox@box
  ssh -o ProxyCommand='kubectl exec -i POD -- openshell-supervisor connect' sandbox@POD";

/// Run a command in a running sandbox, confined as its workload is.
///
/// Words stay as they are given, whatever the sandbox's shell. Without a command it is a login shell. Ends with the
/// command's exit code, or 128 and the number of the signal that ended it.
#[derive(Debug, Parser)]
#[command(name = "exec")]
pub struct Exec {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", last = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Copy files and directories into a running sandbox, with the rights of its workload.
///
/// Each arrives under its own name; a file takes its place when it is whole. Links are copied as links; what is no file,
/// directory or link is left out and told. Exit code 1 if anything was left out.
#[derive(Debug, Parser)]
#[command(name = "upload")]
pub struct Upload {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// The sandbox's directory to put them in, made if it is not there; the workload's own unless named
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub into: PathBuf,
    /// What to copy
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
}

/// Copy files and directories out of a running sandbox, with the rights of its workload.
///
/// Each arrives under its own name; a file takes its place when it is whole, and nothing of an archive leads out of the
/// directory. Exit code 1 if anything was left out.
#[derive(Debug, Parser)]
#[command(name = "download")]
pub struct Download {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// The directory to put them in, made if it is not there; the current one unless named
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub into: PathBuf,
    /// What to copy, as the sandbox names it
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Make a port of a running sandbox reachable on this side's loopback.
///
/// Only what listens on the sandbox's own loopback can be reached. Ends when the sandbox ends.
#[derive(Debug, Parser)]
#[command(name = "forward")]
pub struct Forward {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// The port here, and the one in the sandbox; 0 here is any that is free, and PORT alone is the same on both sides
    #[arg(value_name = "[LOCAL:]PORT", value_parser = two_ports)]
    pub ports: (u16, u16),
}

/// The port on this side, and the one inside.
fn two_ports(text: &str) -> Result<(u16, u16), String> {
    let (local, port) = text.split_once(':').unwrap_or((text, text));
    match (local.parse(), port.parse()) {
        (Ok(local), Ok(port)) if port != 0 => Ok((local, port)),
        _ => Err("expected PORT or LOCAL:PORT, such as 8080 or 18080:8080".into()),
    }
}

/// Print a shell's completion script.
#[derive(Debug, Parser)]
#[command(name = "completions")]
pub struct Completions {
    /// Which shell
    pub shell: clap_complete::Shell,
}

/// Print the manual page of the program, or of one role.
#[derive(Debug, Parser)]
#[command(name = "man")]
pub struct Man {
    /// A role's name; without one, the program's own page
    pub role: Option<String>,
}

/// An address and a port, numbers both.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an address and a port, in numbers, such as 127.0.0.1:9090 or [::1]:9090".into())
}

/// A host, in any spelling, and a port.
///
/// # Errors
/// What was expected.
pub fn destination(text: &str) -> Result<(Host, u16), String> {
    let expected = "expected HOST:PORT, such as proxy.example.com:3128 or [::1]:3128";
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("there is no port; {expected}"))?;
    let port = port.parse().ok().filter(|&port| port != 0).ok_or_else(|| format!("{port:?} is no port; {expected}"))?;
    let host = Host::parse(host).map_err(|error| format!("{error}; {expected}"))?;
    Ok((host, port))
}

/// A number of seconds, fractions allowed.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if Duration::try_from_secs_f64(value).is_ok() => Ok(value),
        _ => Err("expected a number of seconds, such as 30 or 0.5".into()),
    }
}

/// Raise the fence of a sidecar pod and lay out the directories that its containers share.
///
/// Runs as root with NET_ADMIN and CHOWN and nothing else, in the pod's network namespace, before anything of
/// the image's. Run again, it repairs. Exit code 0 only when all of it stands.
#[derive(Debug, Parser)]
#[command(name = "network-init")]
pub struct NetworkInit {
    /// Whom the fence lets out
    #[command(flatten)]
    pub proxy: ProxyIds,
    /// The workload's uid, which must not be the proxy's
    #[arg(long, value_name = "UID", env = env::SANDBOX_UID)]
    pub sandbox_uid: u32,
    /// The workload's gid, which must not be the proxy's; the shared directory gets it
    #[arg(long, value_name = "GID", env = env::SANDBOX_GID)]
    pub sandbox_gid: u32,
    /// Directory of the control socket
    #[arg(long, value_name = "DIR", default_value = SIDECAR_DIRECTORY, value_hint = ValueHint::DirPath)]
    pub sidecar_state_dir: PathBuf,
    /// Directory of the proxy's private files
    #[arg(long, value_name = "DIR", default_value = PROXY_TLS_DIRECTORY, value_hint = ValueHint::DirPath)]
    pub sidecar_tls_dir: PathBuf,
    /// Directory with ca.crt, tls.crt and tls.key to copy for the proxy; may be empty or absent
    #[arg(long, value_name = "DIR", default_value = CLIENT_TLS_DIRECTORY, value_hint = ValueHint::DirPath)]
    pub client_tls_dir: PathBuf,
}

/// Who the proxy is to the fence. From argv alone: whoever could set them could let itself out.
#[derive(Args, Debug)]
pub struct ProxyIds {
    /// The proxy's uid: 0 where it identifies programs, an ordinary one of its own otherwise
    #[arg(long, value_name = "UID", default_value_t = PROXY_ID)]
    pub proxy_uid: u32,
    /// The proxy's gid, which nobody else in the pod has; never 0
    #[arg(long, value_name = "GID", default_value_t = PROXY_ID)]
    pub proxy_gid: u32,
}

/// Prove that the pod's fence, or its NetworkPolicy, holds, by trying to get out of it.
///
/// Needs no privilege, and runs as the workload's uid and gid. Exit code 0 only on proof; otherwise 1, and the reason.
#[derive(Debug, Parser)]
#[command(name = "verify-fence")]
pub struct VerifyFence {
    /// How long to try again
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub timeout: f64,
    /// Whom the fence lets out, and who therefore proves nothing
    #[command(flatten)]
    pub proxy: ProxyIds,
    /// Prove instead that the cluster's NetworkPolicies hold this pod: what they do not list cannot be reached, while what they
    /// list can
    #[arg(long)]
    pub network_policy: bool,
    /// What the policy must cut off, besides the API server, and what serves, so that silence means something; may be repeated
    #[arg(long, value_name = "HOST:PORT", value_parser = destination, requires = "network_policy")]
    pub canary: Vec<(Host, u16)>,
    /// What the policy allows, such as the proxy, and what therefore must be reached; may be repeated
    #[arg(long, value_name = "HOST:PORT", value_parser = destination, requires = "network_policy")]
    pub control: Vec<(Host, u16)>,
    /// The policy allows the API server (KUBERNETES_SERVICE_HOST), so it is no canary
    #[arg(long, requires = "network_policy")]
    pub api_server_allowed: bool,
}

/// Install whom the workload of a proxy-pod sandbox is to trust, in a volume that it sees read-only.
///
/// Two files: the sandbox's CA, and a bundle of it and everybody whom this image trusts, by its system's roots and by the
/// variables that name others (SSL_CERT_FILE and its kin). So it runs in the workload's image. Each file is replaced in one
/// step; run again, it repairs.
#[derive(Debug, Parser)]
#[command(name = "trust")]
pub struct Trust {
    /// The sandbox's CA, in PEM; never its key
    #[arg(value_name = "CERT", value_hint = ValueHint::FilePath)]
    pub certificate: PathBuf,
    /// The volume's directory
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub directory: PathBuf,
    /// Trust these certificates as well, in PEM: those that the proxy is given by the same flag; may be repeated
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub upstream_ca: Vec<PathBuf>,
}

/// Copy what the image has in a directory into the volume that will cover it, once.
///
/// What is in the volume already is never replaced. A copy that was ended half-way is gone on with by the next run, and is
/// never taken for a whole one. Special files are left out, symbolic links are copied and not followed.
#[derive(Debug, Parser)]
#[command(name = "workspace")]
pub struct Workspace {
    /// The image's directory
    #[arg(value_name = "SRC", value_hint = ValueHint::DirPath)]
    pub source: PathBuf,
    /// Where the volume is mounted meanwhile
    #[arg(value_name = "DEST", value_hint = ValueHint::DirPath)]
    pub destination: PathBuf,
}
