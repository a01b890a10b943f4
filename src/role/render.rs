//! `render`: the Kubernetes objects of a sandbox, as the driver library makes them.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom, SystemRandom};

use super::sandbox::{self, Failure};
use crate::cli::{self, InputSchema, ObjectFormat};
use crate::driver::config::WorkspaceMode;
use crate::driver::{
    self, AttestationKey, Cluster, Document, DriverConfig, Errors, NetworkEnforcement, Object, Places, ProxyCa,
    SandboxSpec, Topology,
};
use crate::egress::tls::authority::{self, Authority};
use crate::event::say;
use crate::policy::{LoadError, Policy};

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
    match arguments.fields {
        Some(InputSchema::Config) => return Ok(driver::schema::fields(&driver::schema::of_config())),
        Some(InputSchema::Sandbox) => return Ok(driver::schema::fields(&driver::schema::of_sandbox())),
        None => {}
    }
    let sources = Sources::read(arguments)?;
    let (config, spec) = inputs(arguments, &sources)?;
    if arguments.explain {
        return explain(arguments, &sources, &config, &spec);
    }
    let mut cluster = cluster(arguments);
    let mut made = Vec::new();
    if config.topology == Topology::ProxyPod {
        cluster.proxy_ca = Some(proxy_ca(arguments, &spec, &mut made)?);
        cluster.attestation_key = Some(attestation_key(arguments, &mut made)?);
    }
    let objects = driver::render(&config, &spec, &cluster).map_err(|errors| Failure::usage(sources.placed(errors)))?;
    made.iter().for_each(say_what_is_made);
    Ok(match arguments.output {
        ObjectFormat::Yaml => driver::to_yaml(&objects),
        ObjectFormat::Json => driver::to_json(&objects),
    })
}

/// A file of the command line, and what is in it.
struct Source {
    name: String,
    text: String,
}

/// The files of both inputs.
struct Sources {
    config: Option<Source>,
    sandbox: Option<Source>,
}

impl Sources {
    /// Reads both; that either cannot be read is told at once.
    fn read(arguments: &cli::Render) -> Result<Self, Failure> {
        let standard = |path: &Option<PathBuf>| path.as_deref().is_some_and(is_standard_input);
        if standard(&arguments.config) && standard(&arguments.sandbox) {
            return Err(Failure::usage(
                "--config - and --sandbox -: standard input holds one of the two; put the other into a file",
            ));
        }
        let source = |path: &Option<PathBuf>, expected: &str| {
            let read = |path: &PathBuf| Ok(Source { name: path.display().to_string(), text: read(path, expected)? });
            path.as_ref().map(read).transpose()
        };
        let config =
            source(&arguments.config, "the driver's configuration, TOML: `render --fields config` lists what is in it");
        let sandbox = source(&arguments.sandbox, "the sandbox, YAML: `render --fields sandbox` lists what is in it");
        match (config, sandbox) {
            (Ok(config), Ok(sandbox)) => Ok(Self { config, sandbox }),
            (Err(one), Err(other)) => Err(Failure::usage(format!("{one}\n{other}"))),
            (Err(failure), _) | (_, Err(failure)) => Err(failure),
        }
    }

    /// Problems with their files, lines and columns.
    fn placed(&self, errors: Errors) -> Errors {
        let both = [(Document::Config, &self.config), (Document::Sandbox, &self.sandbox)];
        both.into_iter().fold(errors, |errors, (document, source)| match source {
            Some(Source { name, text }) => errors.in_file(document, name, text),
            None => errors,
        })
    }

    /// What `policy check` would say of the sandbox's policy, at its places in the description. The driver library has no
    /// policy engine and looks no further than the version, of which `known` may tell already.
    fn check_policy(&self, known: Option<&Errors>) -> Result<(), LoadError> {
        let Some(Source { name, text }) = &self.sandbox else { return Ok(()) };
        let Some(Err(mut error)) = driver::policy_in(text).map(|policy| Policy::parse(&policy, name)) else {
            return Ok(());
        };
        let places = Places::of_yaml(text);
        for problem in &mut error.problems {
            problem.field =
                if problem.field.is_empty() { "policy".into() } else { format!("policy.{}", problem.field) };
            let at = places.find(&problem.field).map_or((0, 0), |place| (place.line, place.column));
            (problem.line, problem.column) = (u32::try_from(at.0).unwrap_or(0), u32::try_from(at.1).unwrap_or(0));
        }
        let told: Vec<&str> =
            known.into_iter().flat_map(Errors::problems).map(|problem| problem.path.as_str()).collect();
        error.problems.retain(|problem| !told.contains(&problem.field.as_str()));
        if error.problems.is_empty() { Ok(()) } else { Err(error) }
    }
}

/// Both inputs; what is wrong with either, and with the policy, is told at once.
fn inputs(arguments: &cli::Render, sources: &Sources) -> Result<(DriverConfig, SandboxSpec), Failure> {
    let config = match &sources.config {
        Some(source) => DriverConfig::from_toml(&source.text).map_err(|errors| sources.placed(errors)),
        None => Ok(DriverConfig::default()),
    };
    let spec = match &sources.sandbox {
        Some(source) => SandboxSpec::from_yaml(&source.text).map_err(|errors| sources.placed(errors)),
        None => Ok(any_sandbox()),
    };
    let policy = sources.check_policy(spec.as_ref().err());
    let told = [config.as_ref().err(), spec.as_ref().err()].into_iter().flatten().map(Errors::to_string);
    let told: Vec<String> = told.chain(policy.err().map(|error| error.to_string())).collect();
    let (Ok(mut config), Ok(spec), true) = (config, spec, told.is_empty()) else {
        return Err(Failure::usage(told.join("\n")));
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
fn proxy_ca(arguments: &cli::Render, spec: &SandboxSpec, made: &mut Vec<Made>) -> Result<ProxyCa, Failure> {
    let (certificate, key) = match (&arguments.proxy_ca_cert, &arguments.proxy_ca_key) {
        (Some(certificate), Some(key)) => {
            // The proxy would refuse them later, where nobody looks.
            Authority::load(certificate, key).map_err(|error| Failure::usage(format!("--proxy-ca-cert: {error}")))?;
            (read(certificate, "a certificate, PEM")?, read(key, "its key, PEM")?)
        }
        _ => {
            made.push(Made { what: "a CA", flags: "--proxy-ca-cert and --proxy-ca-key" });
            authority::pair(&spec.name).map_err(Failure::setup)?
        }
    };
    Ok(ProxyCa { certificate, key })
}

/// Bytes of a key that is made here: as many as HMAC-SHA256 has use for (RFC 2104).
const KEY_BYTES: usize = 32;

/// The key by which the two pods know each other: the one that is given, or one that is made here.
fn attestation_key(arguments: &cli::Render, made: &mut Vec<Made>) -> Result<AttestationKey, Failure> {
    if let Some(path) = &arguments.attestation_key {
        return Ok(AttestationKey(read(path, "a key of at least 32 bytes of text")?));
    }
    made.push(Made { what: "an attestation key", flags: "--attestation-key" });
    let mut bytes = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Failure::setup("the kernel gives no random bytes (getrandom)"))?;
    Ok(AttestationKey(bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })))
}

/// A secret that was not given.
struct Made {
    what: &'static str,
    flags: &'static str,
}

fn say_what_is_made(Made { what, flags }: &Made) {
    say!(
        "openshell-supervisor: render: the sandbox has {what} of its own that was made now; rendered again it has another \
         one, so apply what is printed once, or give {flags}"
    );
}

/// The tables of one topology, or of all: what the configuration cannot be rendered to is said in its place.
fn explain(
    arguments: &cli::Render,
    sources: &Sources,
    config: &DriverConfig,
    spec: &SandboxSpec,
) -> Result<String, Failure> {
    let proxy_ca = Some(ProxyCa { certificate: String::new(), key: String::new() });
    let attestation_key = Some(AttestationKey("x".repeat(AttestationKey::LEAST)));
    let cluster = Cluster { proxy_ca, attestation_key, ..cluster(arguments) };
    let mut sets: Vec<(String, Vec<Object>)> = Vec::new();
    let mut refused: Vec<(String, Errors)> = Vec::new();
    for (name, config) in explained(arguments, config) {
        match driver::render(&config, spec, &cluster) {
            Ok(objects) => sets.push((name, objects)),
            Err(errors) => refused.push((name, sources.placed(errors))),
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

/// The text of a file that is to hold what is `expected`.
fn read(path: &Path, expected: &str) -> Result<String, Failure> {
    let failed = |error| Failure::usage(format!("{}: {error}; expected {expected}", path.display()));
    if is_standard_input(path) {
        return io::read_to_string(io::stdin()).map_err(failed);
    }
    fs::read_to_string(path).map_err(failed)
}

fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}
