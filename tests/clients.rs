//! Real clients against real origins: the programs that `.ci/run` installs, the origins of `tests/origins/` with
//! certificates of a test's own authority, and policies that look into what passes between them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, fs};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::world::{Daemon, ORIGIN_NAMES, Outcome, World};

/// The interpreters and programs that policies name.
pub const CURL: &str = "/usr/bin/curl";
pub const PYTHON: &str = "/usr/bin/python3*";

/// How long a client may take: a gigabyte through a Python origin on a busy machine, with room.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// A directory that every user may read, with `python` and `node_modules` as `.ci/run` installed them, the programs of
/// `tests/clients` and `tests/origins`, and a cargo. A checkout may lie where only root can look.
pub fn toolbox() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    fn place() -> PathBuf {
        PathBuf::from(format!("/var/tmp/openshell-toolbox-under-test-{}", std::process::id()))
    }
    COPY.get_or_init(|| {
        let (checkout, directory) = (Path::new(env!("CARGO_MANIFEST_DIR")), place());
        fs::create_dir_all(&directory).expect("a directory for the tools");
        for (from, to) in [
            (checkout.join("target/tools/python"), "python"),
            (checkout.join("target/tools/node_modules"), "node_modules"),
            (checkout.join("tests/clients"), "clients"),
            (checkout.join("tests/origins"), "origins"),
            (PathBuf::from(env!("CARGO")), "cargo"),
        ] {
            assert!(from.exists(), "{} is missing: .ci/run says how to get it", from.display());
            let copy = |how: &[&str]| {
                let mut command = Command::new("cp");
                command.args(how).arg("-T").arg(&from).arg(directory.join(to)).stderr(Stdio::null());
                command.status().is_ok_and(|status| status.success())
            };
            // Links cost nothing, and cannot lead to another file system.
            assert!(copy(&["-al"]) || copy(&["-a"]), "cannot copy {}", from.display());
        }
        extern "C" fn remove() {
            let _ = fs::remove_dir_all(place());
        }
        // SAFETY: `remove` neither unwinds nor touches what other exit handlers take down.
        unsafe { nix::libc::atexit(remove) };
        directory
    })
}

/// The Node of the toolbox.
pub fn node() -> String {
    toolbox().join("node_modules/node/bin/node").display().to_string()
}

/// The cargo of the toolbox.
pub fn cargo() -> String {
    toolbox().join("cargo").display().to_string()
}

/// Where this machine's git keeps the programs that speak HTTP, as a pattern.
pub fn git() -> String {
    let output = Command::new("git").arg("--exec-path").output().expect("git");
    format!("{}/**", String::from_utf8_lossy(&output.stdout).trim())
}

/// A certificate and its key, as files that an origin can be given.
pub struct Identity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Origins that a supervisor trusts, by `--upstream-ca`, and policies about them.
pub struct Site<'w> {
    world: &'w World,
    issuer: Issuer<'static, KeyPair>,
    /// The authority's own certificate.
    authority: PathBuf,
    identity: Identity,
}

impl<'w> Site<'w> {
    /// Makes the authority, and one identity with all of the origin's names.
    pub fn new(world: &'w World) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, "Authority of the tests");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let authority = world.file("authority.pem", certificate.pem());
        let issuer = Issuer::new(params, key);
        let identity = issue(world, Some(&issuer), "origin", &ORIGIN_NAMES, |_| {});
        Self { world, issuer, authority, identity }
    }

    /// Another identity of the same authority, with `edit` made to its certificate before it is signed.
    pub fn identity(&self, file: &str, names: &[&str], edit: impl FnOnce(&mut CertificateParams)) -> Identity {
        issue(self.world, Some(&self.issuer), file, names, edit)
    }

    /// An identity that nobody vouches for.
    pub fn self_signed(&self, file: &str, names: &[&str]) -> Identity {
        issue(self.world, None, file, names, |_| {})
    }

    /// Starts `tests/origins/PROGRAM` on `port` of the origin, and returns once it listens.
    pub fn origin(&self, program: &str, port: u16, more: &[&str]) -> Daemon {
        self.origin_as(&self.identity, program, port, more)
    }

    /// The same with another certificate.
    pub fn origin_as(&self, identity: &Identity, program: &str, port: u16, more: &[&str]) -> Daemon {
        self.origin_at(&format!("[::]:{port}"), Some(identity), program, more)
    }

    /// The same at one address, without TLS where there is no identity.
    pub fn origin_at(&self, bind: &str, identity: Option<&Identity>, program: &str, more: &[&str]) -> Daemon {
        let mut command = self.world.origin_command("/usr/bin/python3");
        command.arg(toolbox().join("origins").join(program)).args(["--bind", bind]).args(more);
        if let Some(identity) = identity {
            command.arg("--cert").arg(&identity.certificate).arg("--key").arg(&identity.key);
        }
        command.env("PYTHONPATH", toolbox().join("python")).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut daemon = Daemon::spawn(command);
        let mut line = String::new();
        let stdout = daemon.child().stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("read");
        assert!(line.starts_with("ready"), "{program} did not start: {line:?}");
        daemon
    }

    /// Runs a shell script as the workload under a policy.
    pub fn run(&self, policy: &Policy, script: &str) -> Outcome {
        self.sandbox(policy).shell(script).output_within(PATIENCE)
    }

    /// The sandbox of [`Site::run`], without its command.
    pub fn sandbox(&self, policy: &Policy) -> crate::world::Run<'w> {
        self.equipped().policy(self.world.file("policy.yaml", policy.text()))
    }

    /// A sandbox with what clients need, and no policy yet.
    pub fn equipped(&self) -> crate::world::Run<'w> {
        let toolbox = toolbox();
        let variable = |name: &str, value: String| ["--env".to_owned(), format!("{name}={value}")];
        self.world
            .run()
            .arg("--upstream-ca")
            .arg(&self.authority)
            .args(variable("CLIENTS", toolbox.join("clients").display().to_string()))
            .args(variable("PYTHONPATH", toolbox.join("python").display().to_string()))
            .args(variable("PYTHON", "/usr/bin/python3".to_owned()))
            .args(variable("NODE", node()))
            .args(variable("NPM", toolbox.join("node_modules/npm/bin/npm-cli.js").display().to_string()))
            .args(variable("CARGO", cargo()))
    }
}

/// Makes an identity, by `issuer` or by itself.
fn issue(
    world: &World,
    issuer: Option<&Issuer<'static, KeyPair>>,
    file: &str,
    names: &[&str],
    edit: impl FnOnce(&mut CertificateParams),
) -> Identity {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("parameters");
    params.distinguished_name.push(DnType::CommonName, file);
    params.use_authority_key_identifier_extension = issuer.is_some();
    edit(&mut params);
    let key = KeyPair::generate().expect("a key");
    let certificate = match issuer {
        Some(issuer) => params.signed_by(&key, issuer),
        None => params.self_signed(&key),
    };
    Identity {
        certificate: world.file(&format!("{file}.pem"), certificate.expect("a certificate").pem()),
        key: world.file(&format!("{file}.key"), key.serialize_pem()),
    }
}

/// A policy of one entry, `test`.
pub struct Policy {
    programs: Vec<String>,
    endpoints: String,
}

impl Policy {
    /// Lets each program reach `endpoints`, YAML items in flow style.
    pub fn new(programs: &[&str], endpoints: &[&str]) -> Self {
        Self {
            programs: programs.iter().map(|&program| program.to_owned()).collect(),
            endpoints: endpoints.iter().map(|endpoint| format!("      - {endpoint}\n")).collect(),
        }
    }

    /// The control of most tests: the same programs, the same host, inspected, and everything allowed.
    pub fn full(programs: &[&str], host: &str, port: u16, protocol: &str) -> Self {
        Self::new(programs, &[&format!("{{host: {host}, port: {port}, protocol: {protocol}, access: full}}")])
    }

    fn text(&self) -> String {
        let binaries: String =
            self.programs.iter().map(|program| format!("      - {{path: \"{program}\"}}\n")).collect();
        format!(
            "version: 1\nfilesystem_policy: {{include_workdir: false, read_only: [{}]}}\n\
             network_policies:\n  test:\n    endpoints:\n{}    binaries:\n{binaries}",
            toolbox().display(),
            self.endpoints,
        )
    }
}
