//! What `network` and the combined sandbox do alike: open the policy, find out who asks, serve the proxy.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::Backlog;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use super::sandbox::Failure;
use crate::attest::Verifier;
use crate::attribution::{AttributionConfig, Attributor, Processes, Supervisors};
use crate::cli::{BinaryIdentity, OnInvalidPolicy, PolicyOptions, TlsOptions, UpstreamProxy};
use crate::contract::{PROXY_PORT, PROXY_URL};
use crate::egress::learn::Learner;
use crate::egress::limits::{LISTEN_BACKLOG, Patience};
use crate::egress::tls::{Termination, authority::Authority, upstream::Upstream};
use crate::egress::{Credentials, ParentSettings, Proxy, ProxyUrl, Resolver, Settings};
use crate::event::{Events, Severity};
use crate::policy::{OnInvalid, Policy, PolicySource, Sources, Store};
use crate::sys::netlink::{Protocol, Socket};
use crate::workload::trust::Trust;

/// Where names are looked up, the supervisor's own view of them (hosts(5), resolv.conf(5)).
const HOSTS: &str = "/etc/hosts";
const RESOLV_CONF: &str = "/etc/resolv.conf";
const DNS_PORT: u16 = 53;

/// Makes the supervisor itself hard to read: no core, no ptrace by its user's other processes. And roomy: every
/// connection takes two descriptors, so the soft limit goes up to the hard one.
pub fn harden(events: &Events) {
    let raised =
        getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        events.find(
            Severity::Low,
            "descriptor-limit",
            format!("the limit of open descriptors cannot be raised: {error}"),
        );
    }
    let closed = setrlimit(Resource::RLIMIT_CORE, 0, 0).and_then(|()| nix::sys::prctl::set_dumpable(false));
    if let Err(error) = closed {
        events.find(
            Severity::Medium,
            "dumpable",
            format!("the supervisor can be dumped or traced by its user: {error}"),
        );
    }
}

/// Writes whom the workload is to trust into `directory`, which is returned if that can be; if not, that is told with what
/// remedies it, and the workload trusts whom it would anyway.
pub fn show_whom_to_trust(trust: &Trust, directory: &Path, remedy: &str, events: &Events) -> Option<PathBuf> {
    for note in &trust.notes {
        events.find(Severity::Informational, "trust-note", note.clone());
    }
    match trust.write(directory) {
        Ok(()) => Some(directory.to_owned()),
        Err(error) => {
            events.find(
                Severity::Medium,
                "no-trust",
                format!(
                    "the workload cannot be shown the sandbox's CA, so that inspected destinations will not be trusted: {error}; \
                     {remedy}"
                ),
            );
            None
        }
    }
}

/// Listens with room for many who come at once.
pub fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // A second listen(2) changes the backlog alone; the standard library's is 128.
    nix::sys::socket::listen(&listener, Backlog::new(LISTEN_BACKLOG)?)?;
    Ok(listener)
}

/// Where the workload connects. Not every pod has IPv6.
pub fn listen_for_the_workload() -> Result<Vec<TcpListener>, Failure> {
    let four = bind((Ipv4Addr::LOCALHOST, PROXY_PORT).into()).map_err(|error| {
        Failure::setup(format!(
            "{PROXY_URL}, where the workload is to find its proxy: {error}; end the program that has it"
        ))
    })?;
    Ok([Some(four), bind((Ipv6Addr::LOCALHOST, PROXY_PORT).into()).ok()].into_iter().flatten().collect())
}

/// Threads for digests and scans. A workload decides how many of those it causes, so more would be its to spend.
const BLOCKING_THREADS: usize = 8;

/// The runtime of the data path. One thread: a hop between threads costs more than a CONNECT does, and what takes
/// long (digests, scans) goes to the blocking pool.
pub fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()
}

/// Opens the policy that the flags name, or the one built in.
pub fn open_store(
    options: &PolicyOptions,
    built_in: impl FnOnce() -> Policy,
    own_rules: Option<&'static str>,
) -> Result<Arc<Store>, Failure> {
    let policy = match &options.policy {
        Some(file) => PolicySource::File(file.clone()),
        None => PolicySource::BuiltIn(Box::new(built_in())),
    };
    Store::open(Sources {
        rules: options.policy_rules.clone(),
        own_rules,
        wasm: options.wasm(),
        require_identity: options.binary_identity == BinaryIdentity::Required,
        on_invalid: match options.on_invalid_policy {
            OnInvalidPolicy::KeepLast => OnInvalid::KeepLast,
            OnInvalidPolicy::DenyAll => OnInvalid::DenyAll,
        },
        ..Sources::new(policy)
    })
    .map_err(Failure::setup)
}

/// Compiles the shipped rules while nobody waits for them; a policy without network entries may never need them.
pub fn warm_up(store: &Arc<Store>) {
    let snapshot = store.current();
    if !snapshot.policy.network.is_empty() {
        tokio::task::spawn_blocking(move || snapshot.prepare());
    }
}

/// The corporate proxy that the flags describe. Anything that does not fit together ends the start: a setting that was
/// meant and does nothing would show only when something has left by the wrong way.
pub fn upstream_proxy(flags: &UpstreamProxy, trust: &Arc<Upstream>) -> Result<Option<ParentSettings>, Failure> {
    let Some(url) = &flags.upstream_proxy else { return Ok(None) };
    let url: ProxyUrl = url.parse().map_err(|error| Failure::usage(format!("--upstream-proxy: {error}")))?;
    let insecure = flags.upstream_proxy_allow_insecure_auth;
    if flags.upstream_proxy_auth_file.is_some() && url.is_plain() && !insecure {
        return Err(Failure::usage(format!(
            "--upstream-proxy-auth-file: {url} is reached in clear, and whoever is on the way could read the password; use an \
             https:// proxy, or accept that by --upstream-proxy-allow-insecure-auth"
        )));
    }
    if insecure && !url.is_plain() {
        return Err(Failure::usage(format!(
            "--upstream-proxy-allow-insecure-auth: {url} is reached by TLS, which needs no such leave; drop the flag"
        )));
    }
    let credentials = flags.upstream_proxy_auth_file.as_deref().map(Credentials::read);
    Ok(Some(ParentSettings {
        url,
        exempt: flags.upstream_no_proxy.clone().unwrap_or_default(),
        credentials: credentials.transpose().map_err(Failure::setup)?,
        resolve_remotely: flags.upstream_proxy_resolve_remotely,
        tls: Some(trust.clone()),
    }))
}

/// Files that decide, which the workload must not be able to write.
pub fn deciding_files(options: &PolicyOptions) -> Vec<PathBuf> {
    options.policy.iter().chain(&options.policy_rules).cloned().chain(options.wasm()).collect()
}

/// Nobody, which is said.
pub fn relaxed(events: &Events) -> Option<Arc<Attributor>> {
    events.find(
        Severity::Medium,
        "identity-relaxed",
        "binary identity is relaxed: whoever can reach the proxy may go where any entry allows",
    );
    None
}

/// Who finds out which program asks; nobody in relaxed mode, which is said, and for which nothing need be there.
pub fn attributor(
    options: &PolicyOptions,
    events: &Events,
    parts: impl FnOnce() -> Result<AttributionConfig, Failure>,
) -> Result<Option<Arc<Attributor>>, Failure> {
    if options.binary_identity == BinaryIdentity::Relaxed {
        return Ok(relaxed(events));
    }
    Ok(Some(Arc::new(Attributor::new(parts()?))))
}

/// The processes of a sandbox: those of its own /proc, or those below its init.
pub fn sandbox_processes(own_proc: Option<OwnedFd>, init: u32) -> std::io::Result<Processes> {
    Ok(match own_proc {
        Some(proc) => Processes::Dedicated(proc),
        None => Processes::Below { proc: open_proc()?, root_pid: init },
    })
}

/// Who finds out which of the workload's programs owns a connection. As the first process of the container's own PID
/// namespace we see nothing but what we have started; elsewhere only what descends from the workload's init counts.
pub fn attributor_of_own_workload(init: u32) -> Result<Arc<Attributor>, Failure> {
    let own = std::process::id();
    let diagnosis = Socket::open(Protocol::SocketDiagnosis).map_err(|error| {
        Failure::setup(format!(
            "which program owns a connection cannot be told here: socket diagnosis: {error}; leave --attestation-key out and \
             give the proxy --binary-identity=relaxed"
        ))
    })?;
    let proc = open_proc().map_err(|error| Failure::setup(format!("/proc: {error}")))?;
    let processes = match own {
        1 => Processes::Others { proc, own_pid: own },
        _ => Processes::Below { proc, root_pid: init },
    };
    let attributor = Attributor::new(AttributionConfig { diagnosis, processes });
    attributor.leave_out(Supervisors { process: own, init });
    Ok(Arc::new(attributor))
}

/// The machine's /proc.
pub fn open_proc() -> std::io::Result<OwnedFd> {
    std::fs::File::open("/proc").map(Into::into)
}

/// The sandbox's CA, the operator's or one of its own, and whom origins are verified by. A generated CA takes a tenth of a
/// millisecond, so it is always there: a policy that inspects nothing may be replaced by one that does, and the
/// workload's trust is set once, at its start. The system's roots are read when they are first needed.
pub fn termination(options: &TlsOptions, sandbox: Option<&str>) -> Result<Termination, Failure> {
    let authority = match (&options.ca_cert, &options.ca_key) {
        (Some(certificate), Some(key)) => Authority::load(certificate, key),
        _ => Authority::generate(sandbox),
    };
    let authority = authority.map_err(|error| Failure::setup(format!("the sandbox's CA: {error}")))?;
    let upstream =
        Upstream::new(&options.upstream_ca).map_err(|error| Failure::setup(format!("--upstream-ca {error}")))?;
    Ok(Termination { authority: Arc::new(authority), upstream: Arc::new(upstream) })
}

/// What a proxy serves with, besides what every proxy does alike.
pub struct Serving {
    /// The policy.
    pub store: Arc<Store>,
    /// Who finds out which program asks.
    pub attributor: Option<Arc<Attributor>>,
    /// Who believes what is attested of connections from another pod.
    pub attestation: Option<Verifier>,
    /// Where clients connect.
    pub listeners: Vec<TcpListener>,
    /// The corporate proxy.
    pub parent: Option<ParentSettings>,
    /// Whom clients and origins are to trust, and to be trusted by.
    pub termination: Arc<Termination>,
    /// Who writes down what passes.
    pub learner: Option<Arc<Learner>>,
    /// Our own addresses, which are never dialled.
    pub own_addresses: Vec<SocketAddr>,
    /// Whether this host's loopback can be reached by its alias.
    pub host_alias: bool,
}

/// Serves the proxy until the returned sender is dropped.
pub fn serve(serving: Serving, events: &Events) -> watch::Sender<bool> {
    let proxy = Proxy::new(Settings {
        store: serving.store,
        attributor: serving.attributor,
        attestation: serving.attestation,
        resolver: Resolver::new(HOSTS, RESOLV_CONF, DNS_PORT),
        parent: serving.parent,
        own_addresses: serving.own_addresses,
        host_alias: serving.host_alias,
        events: events.clone(),
        termination: serving.termination,
        learner: serving.learner,
        patience: Patience::default(),
    });
    let (stop, stopped) = watch::channel(false);
    let events = events.clone();
    tokio::spawn(async move {
        if let Err(error) = proxy.serve(serving.listeners, stopped).await {
            events.find(Severity::Critical, "proxy-not-serving", format!("the egress proxy cannot serve: {error}"));
        }
    });
    stop
}
