//! `render`, and how it writes.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, ValueEnum, ValueHint};

use crate::driver::{SandboxApi, Topology};

/// Print the Kubernetes objects of a sandbox, ready for `kubectl apply -f -` or `podman kube play -`.
///
/// The same inputs give the same bytes. Everything that is wrong with them is told at once, and nothing is printed then.
#[derive(Debug, Parser)]
#[command(name = "render", after_help = RENDER_EXAMPLES)]
pub struct Render {
    /// The driver's configuration, TOML, or `-` for standard input; its defaults without one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The sandbox, YAML, or `-` for standard input
    #[arg(long, value_name = "FILE", required_unless_present_any = ["schema", "fields", "explain"], value_hint = ValueHint::FilePath)]
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
    /// Print the sandbox stopped, which takes --sandbox-api: a Pod that is there runs
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
    /// Print what each container may do instead, in tables for people, computed from the objects: of all topologies unless
    /// one is named
    #[arg(long, conflicts_with = "output")]
    pub explain: bool,
    /// Print the JSON Schema of an input instead
    #[arg(long, value_name = "INPUT", exclusive = true)]
    pub schema: Option<InputSchema>,
    /// Print what may be in an input instead: each field, what it takes, and what it means
    #[arg(long, value_name = "INPUT", exclusive = true)]
    pub fields: Option<InputSchema>,
}

const RENDER_EXAMPLES: &str = "\
Examples:
  openshell-supervisor render --sandbox sandbox.yaml --topology sidecar | kubectl apply -f -
  openshell-supervisor render --config driver.toml --sandbox sandbox.yaml | podman kube play -
  openshell-supervisor render --explain
  openshell-supervisor render --fields config";

/// `render --output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ObjectFormat {
    /// A document an object
    Yaml,
    /// One List
    Json,
}

/// `render --schema` and `--fields`.
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
