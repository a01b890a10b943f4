//! `process` beside a proxy in another pod: the workload's static policy is read here, its connections are carried to the proxy,
//! and told whose they are.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use tokio::sync::watch;

use super::sandbox::{self, Failure};
use super::workload::{self, Surroundings, Workload};
use super::{process, proxy};
use crate::attest::Key;
use crate::cli::{self, Fence, LandlockNet};
use crate::confine::seccomp::Sockets;
use crate::contract::{PROXY_PORT, PROXY_URL, env};
use crate::egress::Resolver;
use crate::egress::limits::Patience;
use crate::egress::remote::{Remote, RemoteSettings};
use crate::event::{Events, Severity, admin};
use crate::policy::host::Host;
use crate::policy::{self, Policy};
use crate::sys::memory;
use crate::workload::environment::Recipe;
use crate::workload::{Orders, launch, trust};

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
    let (orders, environment) = orders(&workload, &policy, remote, &events)?;
    refuse_writable_policy(remote, &orders)?;
    refuse_readable_secrets(remote, &orders)?;
    let listeners = proxy::listen_for_the_workload()?;
    let admin = arguments.records.admin_bind.map(admin::bind).transpose().map_err(Failure::setup)?;
    let runtime = proxy::runtime().map_err(Failure::setup)?;
    let plan = Plan { workload, orders, environment, destination, key, listeners, fence: arguments.fence };
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
    environment: Recipe,
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
    sandbox::refuse_exposure()?;
    Key::read(file).map_err(|error| Failure::setup(format!("--attestation-key {error}")))
}

fn orders(
    workload: &Workload,
    policy: &Policy,
    remote: &cli::RemoteProxy,
    events: &Events,
) -> Result<(Orders, Recipe), Failure> {
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
    let files = remote.attestation_key.iter().cloned().chain(sandbox::credentials_for_the_gateway());
    sandbox::refuse_readable(files, &orders.identity, &orders.grants)
}

async fn serve(plan: Plan, admin_listener: Option<TcpListener>, events: &Events) -> Result<u8, Failure> {
    let (readiness, ready) = watch::channel(admin::Readiness::Waiting("the workload is being launched".into()));
    if let Some(listener) = admin_listener {
        tokio::spawn(admin::serve(listener, ready, events.clone()));
    }
    if plan.fence == Fence::Pod {
        process::prove_the_fence().await?;
    }
    let who = sandbox::workload_writes(&plan.orders.identity, &plan.orders.grants);
    let prepared = launch::prepare(plan.orders).await?;
    let attesting = match plan.key {
        Some(key) => Some((key, proxy::attributor_of_own_workload(prepared.init)?)),
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
    let door = plan.workload.open_door(None, &who)?;
    let running = prepared.go().await?;
    plan.workload.record_start(&running, events);
    readiness.send_replace(admin::Readiness::Ready);
    memory::release_pages_of_files_after(&process::SETTLED);
    let code = plan.workload.attend(running, door, plan.environment, events).await?;
    readiness.send_replace(admin::Readiness::Waiting("the workload has ended".into()));
    plan.workload.record_end(code, events);
    Ok(code)
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
