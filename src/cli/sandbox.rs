//! What runs a sandbox, whole or in parts: `run`, `network,process`, `network` and `process`, and the flags that they share.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, ValueEnum, ValueHint};

use super::{address, seconds};
use crate::access::Place;
use crate::confine::seccomp::Profile;
use crate::contract::{CONTROL_SOCKET, TRUST_DIRECTORY, env};
use crate::egress::Exemptions;
use crate::event::{Destination, LogLevel};

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
    /// Let the command read and execute what is below DIR, which else it does not see: its own place in your home, for
    /// example; may be repeated. For a quick try, as --allow is
    #[arg(long, value_name = "DIR", conflicts_with = "policy", value_hint = ValueHint::AnyPath)]
    pub read: Vec<PathBuf>,
    /// The same, and let it write there: where it keeps its state, for example; may be repeated
    #[arg(long, value_name = "DIR", conflicts_with = "policy", value_hint = ValueHint::AnyPath)]
    pub write: Vec<PathBuf>,
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
  openshell-supervisor run --read ~/.local --write ~/.agent --allow api.example.com:443 -- ~/.local/bin/my-agent
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
