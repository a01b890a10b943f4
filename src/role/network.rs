//! `network`: the egress proxy and policy engine alone.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use nix::sys::socket::Backlog;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::proxy;
use super::sandbox::{self, Failure};
use crate::attribution::Processes;
use crate::cli;
use crate::egress::ParentSettings;
use crate::egress::limits::LISTEN_BACKLOG;
use crate::egress::tls::Termination;
use crate::event::{Events, admin};
use crate::policy::{self, Policy, Store};
use crate::sys::netlink::{Protocol, Socket};

/// Serves until TERM or INT, which are exit code 0.
pub fn run(arguments: cli::Network) -> u8 {
    sandbox::report(start(arguments))
}

fn start(arguments: cli::Network) -> Result<u8, Failure> {
    let events = sandbox::open_events(&arguments.records)?;
    proxy::harden(&events);
    let termination = proxy::termination(&arguments.tls, arguments.records.sandbox.as_deref())?;
    let parent = proxy::upstream_proxy(&arguments.upstream, &termination.upstream)?;
    let store = proxy::open_store(&arguments.policy, Policy::restrictive_default, None)?;
    let listener = listen(arguments.bind)?;
    let admin = arguments.records.admin_bind.map(admin::bind).transpose().map_err(Failure::setup)?;
    let runtime = proxy::runtime().map_err(Failure::setup)?;
    let outcome = runtime.block_on(serve(&arguments, store, parent, termination, listener, admin, &events));
    events.flush();
    runtime.shutdown_background();
    outcome
}

fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    if !address.ip().is_loopback() {
        return Err(Failure::usage(format!(
            "--bind {address}: expected a loopback address: whoever else could connect is no process of this machine, and \
             nobody could tell which program asks"
        )));
    }
    let bound = TcpListener::bind(address).and_then(|listener| {
        // A second listen(2) changes the backlog alone; the standard library's is 128.
        nix::sys::socket::listen(&listener, Backlog::new(LISTEN_BACKLOG)?)?;
        Ok(listener)
    });
    bound.map_err(|error| {
        Failure::setup(format!(
            "--bind {address}: {error}; choose another address, or end the program that has this one"
        ))
    })
}

async fn serve(
    arguments: &cli::Network,
    store: Arc<Store>,
    parent: Option<ParentSettings>,
    termination: Termination,
    listener: TcpListener,
    admin_listener: Option<TcpListener>,
    events: &Events,
) -> Result<u8, Failure> {
    let diagnosis = Socket::open(Protocol::SocketDiagnosis)
        .map_err(|error| Failure::setup(format!("socket diagnosis: {error}; the kernel needs CONFIG_INET_DIAG")))?;
    let processes = Processes::All(proxy::open_proc().map_err(|error| Failure::setup(format!("/proc: {error}")))?);
    let attributor = proxy::attributor(&arguments.policy, diagnosis, processes, events);
    let mut own = vec![arguments.bind];
    own.extend(arguments.records.admin_bind);
    proxy::warm_up(&store);
    let serving = proxy::Serving {
        store: store.clone(),
        attributor,
        listeners: vec![listener],
        parent,
        termination: Arc::new(termination),
        learner: None,
        own_addresses: own,
        host_alias: false,
    };
    let _serving = proxy::serve(serving, events);
    let (_readiness, ready) = watch::channel(admin::Readiness::Ready);
    if let Some(listener) = admin_listener {
        tokio::spawn(admin::serve(listener, ready, events.clone()));
    }
    if !arguments.policy.allow_writable_policy {
        tokio::spawn(policy::reload::watch(store.clone(), events.clone()));
    }
    until_told_to_end(&store, events).await.map_err(|error| Failure::setup(format!("signal handlers: {error}")))?;
    Ok(0)
}

/// HUP reloads; TERM and INT end.
async fn until_told_to_end(store: &Store, events: &Events) -> std::io::Result<()> {
    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => {
                // What became of it is an event already.
                let _ = policy::reload::apply(store, events);
            }
        }
    }
}
