//! `render`: the Kubernetes objects of a sandbox, as the driver library makes them.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use ring::rand::{SecureRandom, SystemRandom};

use super::sandbox::{self, Failure};
use crate::cli::{self, InputSchema, ObjectFormat};
use crate::driver::config::WorkspaceMode;
use crate::driver::{
    self, AttestationKey, Cluster, DriverConfig, Errors, NetworkEnforcement, Object, ProxyCa, SandboxSpec, Topology,
};
use crate::egress::tls::authority::{self, Authority};
use crate::event::say;

/// Exit code 0 with the objects on standard output; 2 with everything that is wrong with the inputs.
pub fn run(arguments: cli::Render) -> u8 {
    sandbox::report(text(&arguments).map(|text| {
        super::print(&text);
        0
    }))
}

fn text(arguments: &cli::Render) -> Result<String, Failure> {
    match arguments.schema {
        Some(InputSchema::Config) => return Ok(format!("{:#}\n", driver::schema::of_config())),
        Some(InputSchema::Sandbox) => return Ok(format!("{:#}\n", driver::schema::of_sandbox())),
        None => {}
    }
    let (config, spec) = inputs(arguments)?;
    if arguments.explain {
        return explain(arguments, &config, &spec);
    }
    let mut cluster = cluster(arguments);
    if config.topology == Topology::ProxyPod {
        cluster.proxy_ca = Some(proxy_ca(arguments, &spec)?);
        cluster.attestation_key = Some(attestation_key(arguments)?);
    }
    let objects = driver::render(&config, &spec, &cluster).map_err(Failure::usage)?;
    Ok(match arguments.output {
        ObjectFormat::Yaml => driver::to_yaml(&objects),
        ObjectFormat::Json => driver::to_json(&objects),
    })
}

/// Reads both inputs; what is wrong with either is told at once.
fn inputs(arguments: &cli::Render) -> Result<(DriverConfig, SandboxSpec), Failure> {
    let config = match &arguments.config {
        Some(path) => DriverConfig::from_toml(&read(path)?),
        None => Ok(DriverConfig::default()),
    };
    let spec = match &arguments.sandbox {
        Some(path) => SandboxSpec::from_yaml(&read(path)?),
        None => Ok(any_sandbox()),
    };
    let (mut config, spec) = match (config, spec) {
        (Ok(config), Ok(spec)) => (config, spec),
        (Err(of_config), Err(of_spec)) => return Err(Failure::usage(of_config.and(of_spec))),
        (Err(errors), _) | (_, Err(errors)) => return Err(Failure::usage(errors)),
    };
    if let Some(topology) = arguments.topology {
        config.topology = topology;
    }
    if let Some(namespace) = &arguments.namespace {
        if config.workspace_mode != WorkspaceMode::Shared {
            return Err(Failure::usage(
                "--namespace: the configuration's workspace_mode makes the namespace of the workspace's name; leave the flag \
                 out, or choose workspace_mode = \"shared\"",
            ));
        }
        config.namespace.clone_from(namespace);
    }
    Ok((config, spec))
}

/// What `--explain` explains when it is given none.
fn any_sandbox() -> SandboxSpec {
    let word = || String::from("example");
    SandboxSpec {
        id: word(),
        name: word(),
        workspace: "default".into(),
        command: vec![word()],
        ..SandboxSpec::default()
    }
}

fn cluster(arguments: &cli::Render) -> Cluster {
    Cluster {
        namespace_annotations: arguments.namespace_annotations.iter().cloned().collect(),
        sandbox_api: arguments.sandbox_api.api(),
        sandbox_uid: arguments.owner_uid.clone(),
        operator_namespaces: arguments.operator_namespace.clone(),
        stopped: arguments.stopped,
        ..Cluster::default()
    }
}

/// The CA that is given, or one that is made here.
fn proxy_ca(arguments: &cli::Render, spec: &SandboxSpec) -> Result<ProxyCa, Failure> {
    let (certificate, key) = match (&arguments.proxy_ca_cert, &arguments.proxy_ca_key) {
        (Some(certificate), Some(key)) => {
            // The proxy would refuse them later, where nobody looks.
            Authority::load(certificate, key).map_err(|error| Failure::usage(format!("--proxy-ca-cert: {error}")))?;
            (read(certificate)?, read(key)?)
        }
        _ => {
            say_what_is_made("CA", "--proxy-ca-cert and --proxy-ca-key");
            authority::pair(&spec.name).map_err(Failure::setup)?
        }
    };
    Ok(ProxyCa { certificate, key })
}

/// Bytes of a key that is made here: as many as HMAC-SHA256 has use for (RFC 2104).
const KEY_BYTES: usize = 32;

/// The key by which the two pods know each other: the one that is given, or one that is made here.
fn attestation_key(arguments: &cli::Render) -> Result<AttestationKey, Failure> {
    if let Some(path) = &arguments.attestation_key {
        return Ok(AttestationKey(read(path)?));
    }
    say_what_is_made("attestation key", "--attestation-key");
    let mut bytes = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Failure::setup("the kernel gives no random bytes (getrandom)"))?;
    Ok(AttestationKey(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })))
}

fn say_what_is_made(what: &str, flags: &str) {
    say!(
        "openshell-supervisor: render: the sandbox has a {what} of its own that was made now; rendered again it has another \
         one, so apply what is printed once, or give {flags}"
    );
}

/// The tables of one topology, or of all: what the configuration cannot be rendered to is said in its place.
fn explain(arguments: &cli::Render, config: &DriverConfig, spec: &SandboxSpec) -> Result<String, Failure> {
    let proxy_ca = Some(ProxyCa { certificate: String::new(), key: String::new() });
    let attestation_key = Some(AttestationKey("x".repeat(AttestationKey::LEAST)));
    let cluster = Cluster { proxy_ca, attestation_key, ..cluster(arguments) };
    let mut sets: Vec<(String, Vec<Object>)> = Vec::new();
    let mut refused: Vec<(String, Errors)> = Vec::new();
    for (name, config) in explained(arguments, config) {
        match driver::render(&config, spec, &cluster) {
            Ok(objects) => sets.push((name, objects)),
            Err(errors) => refused.push((name, errors)),
        }
    }
    if sets.is_empty() {
        return Err(Failure::usage(refused.remove(0).1));
    }
    let mut text = driver::comparison(&sets).to_string();
    for (name, objects) in &sets {
        let _ = write!(text, "\n{name}\n{}", driver::privileges(objects));
    }
    for (name, errors) in &refused {
        let _ = write!(text, "\n{name}, not with this configuration\n{errors}\n");
    }
    Ok(text)
}

/// Configurations to explain, by name.
fn explained(arguments: &cli::Render, config: &DriverConfig) -> Vec<(String, DriverConfig)> {
    let platform = |config: &DriverConfig| {
        config.topology == Topology::Combined && config.network_enforcement == NetworkEnforcement::Platform
    };
    let name = |config: &DriverConfig| {
        let topology = config.topology.name();
        if platform(config) { format!("{topology}, platform-enforced") } else { topology.to_owned() }
    };
    if arguments.topology.is_some() {
        return vec![(name(config), config.clone())];
    }
    let plain = DriverConfig { network_enforcement: NetworkEnforcement::Namespace, ..config.clone() };
    let mut all: Vec<DriverConfig> =
        Topology::ALL.into_iter().map(|(_, topology)| DriverConfig { topology, ..plain.clone() }).collect();
    // Never unless it is asked for: what it lets through is the operator's to say.
    all.extend(platform(config).then(|| config.clone()));
    all.into_iter().map(|config| (name(&config), config)).collect()
}

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}
