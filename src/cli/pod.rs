//! What a pod runs around its sandbox, once each: `network-init`, `verify-fence`, `sideload`, `trust`, `workspace`, `wait-for-tcp`.

use std::path::PathBuf;

use clap::{Args, Parser, ValueHint};

use super::{destination, seconds};
use crate::contract::{CLIENT_TLS_DIRECTORY, PROXY_ID, PROXY_TLS_DIRECTORY, SIDECAR_DIRECTORY, env};
use crate::policy::host::Host;

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
