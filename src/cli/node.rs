//! What a node runs: `cni`, `cni-install`, `mark-node-ready`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, ValueEnum, ValueHint};

use super::{Records, seconds};
use crate::cni::chain::Way;
use crate::cni::config::KUBECONFIG;
use crate::contract::env;
use crate::kube::access::SERVICE_ACCOUNT_DIRECTORY;

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
