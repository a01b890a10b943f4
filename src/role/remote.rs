//! `process` beside a proxy in another pod: the workload's static policy is read here, its connections are carried to the proxy,
//! and told whose they are.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::sys::prctl;
use tokio::sync::watch;

use super::sandbox::{self, Failure};
use super::workload::{self, Surroundings, Workload};
use super::{process, proxy};
use crate::attest::Key;
use crate::attribution::{AttributionConfig, Attributor, Processes, Supervisors};
use crate::cli::{self, Fence, LandlockNet};
use crate::confine::landlock::{self, LandlockError};
use crate::confine::seccomp::Sockets;
use crate::contract::{PROXY_PORT, PROXY_URL, env};
use crate::egress::Resolver;
use crate::egress::limits::Patience;
use crate::egress::remote::{Remote, RemoteSettings};
use crate::event::{Events, Severity, admin};
use crate::policy::host::Host;
use crate::policy::{self, Policy};
use crate::sys::netlink::{Protocol, Socket};
use crate::workload::{Orders, launch, supervise, trust};

/// Variables that name credentials of the supervisor's for the gateway. The workload has its user.
const CREDENTIALS: [&str; 2] = ["OPENSHELL_TLS_KEY", "OPENSHELL_K8S_SA_TOKEN_FILE"];

/// Runs the workload; the exit code is its own.
///
/// # Errors
/// [`Failure`], before it has run.
pub(super) fn start(arguments: cli::Process, url: &str) -> Result<u8, Failure> {
    let events = sandbox::open_events(&arguments.records)?;
    proxy::harden(&events);
    process::refuse_root()?;
    let remote = &arguments.remote;
    let destination = destination(url)?;
    let policy = match &remote.policy {
        Some(file) => Policy::load(file).map_err(Failure::setup)?,
        None => Policy::restrictive_default(),
    };
    let workload = Workload::of_container(&arguments.command, arguments.workload)?;
    let key = remote.attestation_key.as_deref().map(secret).transpose()?;
    let orders = orders(&workload, &policy, remote, &events)?;
    refuse_writable_policy(remote, &orders)?;
    refuse_readable_secrets(remote, &orders)?;
    let listeners = listen()?;
    let admin = arguments.records.admin_bind.map(admin::bind).transpose().map_err(Failure::setup)?;
    let runtime = proxy::runtime().map_err(Failure::setup)?;
    let plan = Plan { workload, orders, destination, key, listeners, fence: arguments.fence };
    // On the main thread, whose end is the sandbox's end (`launch::prepare`).
    let outcome = runtime.block_on(serve(plan, admin, &events));
    events.flush();
    runtime.shutdown_background();
    outcome
}

/// All that is decided before anything runs.
struct Plan {
    workload: Workload,
    orders: Orders,
    destination: (Host, u16),
    key: Option<Key>,
    listeners: Vec<TcpListener>,
    fence: Fence,
}

/// Where the proxy is: by the flag, or by the environment that the driver gives the container.
fn destination(url: &str) -> Result<(Host, u16), Failure> {
    let given = if url.is_empty() { std::env::var(env::PROXY_URL).unwrap_or_default() } else { url.to_owned() };
    let wrong = |why: &str| {
        Failure::usage(format!(
            "--remote-proxy, or {}: {why}; expected http://HOST:PORT, such as http://proxy.example.svc:3128",
            env::PROXY_URL
        ))
    };
    if given.is_empty() {
        return Err(wrong("neither says where the proxy is"));
    }
    let authority =
        given.strip_prefix("http://").ok_or_else(|| wrong(&format!("{given:?} does not begin with http://")))?;
    cli::destination(authority.trim_end_matches('/')).map_err(|error| wrong(&error))
}

/// The sandbox's key, once it is sure that the workload, which is the same user, will not be able to come by it.
fn secret(file: &Path) -> Result<Key, Failure> {
    let probe = landlock::probe();
    if probe.status == landlock::Status::Not {
        return Err(Failure::setup(LandlockError::Needed { reason: probe.reason.unwrap_or_default() }));
    }
    if prctl::get_dumpable() != Ok(false) {
        return Err(Failure::setup(
            "the supervisor can be traced and dumped by its own user, who could read the attestation key out of it: prctl \
             (PR_SET_DUMPABLE) was refused; allow it in the container's seccomp profile",
        ));
    }
    Key::read(file).map_err(|error| Failure::setup(format!("--attestation-key {error}")))
}

fn orders(workload: &Workload, policy: &Policy, remote: &cli::RemoteProxy, events: &Events) -> Result<Orders, Failure> {
    let identity = workload::identify(&policy.process, events)?;
    let mut grants = workload.grants(&policy.filesystem, policy.landlock);
    grants.needed = remote.attestation_key.is_some();
    grants.connect = (remote.landlock_net == LandlockNet::Strict).then_some(PROXY_PORT);
    let trust = trust_directory(&remote.trust_dir, events);
    let surroundings = Surroundings {
        // The pod's own: its network is fenced by the cluster, its mounts are the container's.
        isolation: None,
        proxy: PROXY_URL.to_owned(),
        environment: trust.as_deref().map(trust::variables).unwrap_or_default(),
        trust,
        // The proxy takes connections, and of datagrams nobody in this pod would know where they go.
        sockets: Sockets::Streams,
    };
    workload.orders(identity, grants, surroundings)
}

/// Where the workload finds whom it is to trust; nobody new where `trust` has not run.
fn trust_directory(directory: &Path, events: &Events) -> Option<PathBuf> {
    match trust::missing_from(directory) {
        None => Some(directory.to_owned()),
        Some(missing) => {
            events.find(
                Severity::Medium,
                "no-trust",
                format!(
                    "the workload cannot be shown the sandbox's CA, so that inspected destinations will not be trusted: {} is \
                     not there; an init container with the role `trust` writes it",
                    missing.display()
                ),
            );
            None
        }
    }
}

/// A policy that the workload could rewrite is none, once the container starts again.
fn refuse_writable_policy(remote: &cli::RemoteProxy, orders: &Orders) -> Result<(), Failure> {
    let Some(policy) = remote.policy.as_deref().filter(|_| !remote.allow_writable_policy) else { return Ok(()) };
    let who = sandbox::workload_writes(&orders.identity, &orders.grants);
    policy::writable::refuse_writable(&[policy], &who).map_err(Failure::setup)
}

/// What the workload could read it could use.
fn refuse_readable_secrets(remote: &cli::RemoteProxy, orders: &Orders) -> Result<(), Failure> {
    let named = CREDENTIALS.iter().filter_map(std::env::var_os).map(PathBuf::from).filter(|file| file.exists());
    let files = remote.attestation_key.iter().cloned().chain(named);
    sandbox::refuse_readable(files, &orders.identity, &orders.grants)
}

/// Where the workload connects. Not every pod has IPv6.
fn listen() -> Result<Vec<TcpListener>, Failure> {
    let bind = |address: SocketAddr| proxy::bind(address);
    let four = bind((Ipv4Addr::LOCALHOST, PROXY_PORT).into()).map_err(|error| {
        Failure::setup(format!(
            "{PROXY_URL}, where the workload is to find its proxy: {error}; end the program that has it"
        ))
    })?;
    Ok([Some(four), bind((Ipv6Addr::LOCALHOST, PROXY_PORT).into()).ok()].into_iter().flatten().collect())
}

async fn serve(plan: Plan, admin_listener: Option<TcpListener>, events: &Events) -> Result<u8, Failure> {
    let (readiness, ready) = watch::channel(admin::Readiness::Waiting("the workload is being launched".into()));
    if let Some(listener) = admin_listener {
        tokio::spawn(admin::serve(listener, ready, events.clone()));
    }
    if plan.fence == Fence::Pod {
        process::prove_the_fence().await?;
    }
    let prepared = launch::prepare(plan.orders).await?;
    let attesting = match plan.key {
        Some(key) => Some((key, attributor(prepared.init)?)),
        None => None,
    };
    let settings = RemoteSettings {
        proxy: plan.destination,
        resolver: Resolver::default(),
        attesting,
        events: events.clone(),
        patience: Patience::default(),
    };
    let (_stop, stopped) = watch::channel(false);
    let serving = Remote::new(settings).serve(plan.listeners, stopped);
    let told = events.clone();
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            told.find(
                Severity::Critical,
                "proxy-not-serving",
                format!("the workload's way to its proxy is closed: {error}"),
            );
        }
    });
    let running = prepared.go().await?;
    plan.workload.record_start(&running, events);
    readiness.send_replace(admin::Readiness::Ready);
    let code = tokio::select! {
        code = supervise::run(running, plan.workload.patience()) => code,
        never = process::shrink() => match never {},
    };
    readiness.send_replace(admin::Readiness::Waiting("the workload has ended".into()));
    plan.workload.record_end(code, events);
    Ok(code)
}

/// Who finds out which of the workload's programs owns a connection. As the first process of the container's own PID
/// namespace we see nothing but what we have started; elsewhere only what descends from the workload's init counts.
fn attributor(init: u32) -> Result<Arc<Attributor>, Failure> {
    let own = std::process::id();
    let diagnosis = Socket::open(Protocol::SocketDiagnosis).map_err(|error| {
        Failure::setup(format!(
            "--attestation-key: which program owns a connection cannot be told here: socket diagnosis: {error}; leave the key \
             out, and give the proxy --binary-identity=relaxed"
        ))
    })?;
    let proc = proxy::open_proc().map_err(|error| Failure::setup(format!("/proc: {error}")))?;
    let processes = match own {
        1 => Processes::Others { proc, own_pid: own },
        _ => Processes::Below { proc, root_pid: init },
    };
    let attributor = Attributor::new(AttributionConfig { diagnosis, processes });
    attributor.leave_out(Supervisors { process: own, init });
    Ok(Arc::new(attributor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_named_by_scheme_host_and_port() {
        let host = |name: &str| Host::parse(name).unwrap();
        assert_eq!(destination("http://proxy.svc:3128").unwrap(), (host("proxy.svc"), 3128));
        assert_eq!(destination("http://[::1]:80/").unwrap(), (host("::1"), 80));
        for wrong in ["https://proxy:3128", "proxy:3128", "http://proxy", "http://proxy:0", "http://proxy:1/x"] {
            assert!(destination(wrong).is_err(), "{wrong}");
        }
        // Unset here.
        assert!(destination("").unwrap_err().to_string().contains("neither says"));
    }
}
