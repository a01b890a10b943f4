//! `network,process` without a fence of its own (design §10): the whole sandbox as one ordinary user in the pod's namespaces, without
//! a capability. What the cluster's NetworkPolicy lets the proxy reach, the workload can reach too: the proxy polices those who
//! use it. The workload has the supervisor's user, so that Landlock is what keeps it from policy, CA key and credentials.

use std::net::TcpListener;
use std::sync::Arc;

use tokio::sync::watch;

use super::sandbox::{self, Failure};
use super::workload::{self, Surroundings, Workload};
use super::{process, proxy};
use crate::cli::{self, BinaryIdentity, CombinedFence, LandlockNet};
use crate::confine::seccomp::Sockets;
use crate::contract::{PROXY_PORT, PROXY_URL};
use crate::egress::ParentSettings;
use crate::egress::tls::{Termination, roots};
use crate::event::{Events, Severity, admin};
use crate::policy::{self, Policy, Store};
use crate::workload::environment::Recipe;
use crate::workload::trust::{self, Image, Trust};
use crate::workload::{Orders, launch};

/// Runs the sandbox; the exit code is the workload's.
///
/// # Errors
/// [`Failure`], before the workload has run.
pub(super) fn start(arguments: cli::Combined) -> Result<u8, Failure> {
    let options = arguments.sandbox;
    let events = sandbox::open_events(&options.records)?;
    proxy::harden(&events);
    process::refuse_root()?;
    sandbox::refuse_exposure()?;
    say_what_fences(arguments.platform.fence, &events);
    let termination = proxy::termination(&options.tls, options.records.sandbox.as_deref())?;
    let parent = proxy::upstream_proxy(&options.upstream, &termination.upstream)?;
    let store = proxy::open_store(&options.policy, Policy::restrictive_default, None)?;
    let workload = Workload::of_container(&arguments.command, arguments.workload)?;
    let (orders, environment) = orders(&workload, &store, &termination, &options, &arguments.platform, &events)?;
    sandbox::refuse_writable_policy(&options, &orders.identity, &orders.grants)?;
    sandbox::refuse_readable_secrets(&options, &orders.identity, &orders.grants)?;
    sandbox::refuse_readable(sandbox::credentials_for_the_gateway(), &orders.identity, &orders.grants)?;
    let listeners = proxy::listen_for_the_workload()?;
    let admin = options.records.admin_bind.map(admin::bind).transpose().map_err(Failure::setup)?;
    let runtime = proxy::runtime().map_err(Failure::setup)?;
    let egress = Egress { store, parent, termination: Arc::new(termination), listeners };
    // On the main thread, whose end is the sandbox's end (`launch::prepare`).
    let outcome = runtime.block_on(serve(&workload, (orders, environment), egress, &options, admin, &events));
    events.flush();
    runtime.shutdown_background();
    outcome
}

fn say_what_fences(fence: CombinedFence, events: &Events) {
    let (severity, what) = match fence {
        CombinedFence::Own => return,
        CombinedFence::Elsewhere => {
            (Severity::Medium, "the cluster's NetworkPolicy, and what that lets the proxy reach it can reach too")
        }
        CombinedFence::None => (Severity::High, "nothing"),
    };
    events.find(
        severity,
        "no-own-fence",
        format!(
            "what keeps the workload from going around the proxy is {what}; the policy holds for programs that use it"
        ),
    );
}

/// What the proxy of the sandbox needs.
struct Egress {
    store: Arc<Store>,
    parent: Option<ParentSettings>,
    termination: Arc<Termination>,
    listeners: Vec<TcpListener>,
}

fn orders(
    workload: &Workload,
    store: &Store,
    termination: &Termination,
    options: &cli::Sandbox,
    platform: &cli::Platform,
    events: &Events,
) -> Result<(Orders, Recipe), Failure> {
    let policy = &store.current().policy;
    let identity = workload::identify(&policy.process, events)?;
    let mut grants = workload.grants(&policy.filesystem, policy.landlock);
    grants.needed = true;
    grants.connect = (platform.landlock_net == LandlockNet::Strict).then_some(PROXY_PORT);
    let image = Image::read(|name| std::env::var_os(name), roots::system_bundle());
    let trusted = Trust::extend(image, termination.authority.certificate_pem(), &options.tls.upstream_ca);
    let remedy = format!(
        "mount a volume that this user may write at {}, or name one by --trust-dir",
        platform.trust_dir.display()
    );
    let directory = proxy::show_whom_to_trust(&trusted, &platform.trust_dir, &remedy, events);
    let surroundings = Surroundings {
        isolation: None,
        proxy: PROXY_URL.to_owned(),
        environment: directory.as_deref().map(trust::variables).unwrap_or_default(),
        trust: directory,
        // Nothing would stop a datagram.
        sockets: Sockets::Streams,
    };
    workload.orders(identity, grants, surroundings)
}

async fn serve(
    workload: &Workload,
    (orders, environment): (Orders, Recipe),
    egress: Egress,
    options: &cli::Sandbox,
    admin_listener: Option<TcpListener>,
    events: &Events,
) -> Result<u8, Failure> {
    let (readiness, ready) = watch::channel(admin::Readiness::Waiting("the sandbox is being set up".into()));
    if let Some(listener) = admin_listener {
        tokio::spawn(admin::serve(listener, ready, events.clone()));
    }
    let store = egress.store.clone();
    proxy::warm_up(&store);
    let who = sandbox::workload_writes(&orders.identity, &orders.grants);
    let prepared = launch::prepare(orders).await?;
    let attributor = match options.policy.binary_identity {
        BinaryIdentity::Relaxed => proxy::relaxed(events),
        BinaryIdentity::Required => Some(proxy::attributor_of_own_workload(prepared.init)?),
    };
    let mut own_addresses: Vec<_> = egress.listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
    own_addresses.extend(options.records.admin_bind);
    let serving = proxy::Serving {
        store: store.clone(),
        attributor,
        attestation: None,
        listeners: egress.listeners,
        parent: egress.parent,
        termination: egress.termination,
        learner: None,
        own_addresses,
        host_alias: false,
    };
    let _serving = proxy::serve(serving, events);
    if !options.policy.allow_writable_policy {
        tokio::spawn(policy::reload::watch(store, events.clone()));
    }
    let door = workload.open_door(None, &who)?;
    let running = prepared.go().await?;
    workload.record_start(&running, events);
    readiness.send_replace(admin::Readiness::Ready);
    let code = workload.attend(running, door, environment, events).await?;
    readiness.send_replace(admin::Readiness::Waiting("the workload has ended".into()));
    workload.record_end(code, events);
    Ok(code)
}
