//! `process`: the workload of a sidecar pod, launched and confined without any privilege. Beside a proxy in another pod it is
//! [`super::remote`].

use std::convert::Infallible;
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use nix::unistd::geteuid;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::proxy;
use super::remote;
use super::sandbox::{self, Failure};
use super::workload::{self, Surroundings, Workload};
use crate::cli::{self, Fence};
use crate::confine::seccomp::Sockets;
use crate::contract::exit;
use crate::control::{self, Connected, Incoming, Instruction, LinkError, Outgoing, Report, State};
use crate::egress::tls::roots;
use crate::event::{Events, Severity, admin};
use crate::fence::proof;
use crate::sys::memory;
use crate::workload::environment::Recipe;
use crate::workload::trust::Image;
use crate::workload::{Orders, launch};

/// How long `network` may take to note the end. It has nothing else to do then.
const NOTED_WITHIN: Duration = Duration::from_secs(1);

/// How long the fence may take to stand. It does already, or nobody raises it.
const PROVEN_WITHIN: Duration = Duration::from_secs(2);

/// After the first of these nothing of most starts goes on; after the second nothing of a slow one, whose last threads for
/// calls that block tokio has ended by then.
pub(super) const SETTLED: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(12)];

/// How long the wait for the other container is nothing to tell of.
const QUIET: Duration = Duration::from_secs(3);

/// Runs the workload; the exit code is its own.
pub fn run(arguments: cli::Process) -> u8 {
    sandbox::report(start(arguments))
}

fn start(arguments: cli::Process) -> Result<u8, Failure> {
    if let Some(url) = &arguments.remote.remote_proxy {
        let url = url.clone();
        return remote::start(arguments, &url);
    }
    let events = sandbox::open_events(&arguments.records)?;
    proxy::harden(&events);
    refuse_root()?;
    let workload = Workload::of_container(&arguments.command, arguments.workload)?;
    let admin = arguments.records.admin_bind.map(admin::bind).transpose().map_err(Failure::setup)?;
    let runtime = proxy::runtime().map_err(Failure::setup)?;
    let wait = Duration::from_secs_f64(arguments.wait);
    // On the main thread, whose end is the sandbox's end (`launch::prepare`).
    let outcome = runtime.block_on(serve(&workload, &arguments.control_socket, wait, arguments.fence, admin, &events));
    events.flush();
    runtime.shutdown_background();
    outcome
}

/// The fence tells the workload from the proxy by user and group, and everything here is done without privilege.
pub(super) fn refuse_root() -> Result<(), Failure> {
    if geteuid().is_root() {
        return Err(Failure::setup(
            "process runs as the sandbox's user and needs no privilege: set runAsUser and runAsGroup of the agent \
             container to the sandbox's, or use network,process, which gives root's rights up",
        ));
    }
    Ok(())
}

async fn serve(
    workload: &Workload,
    socket: &Path,
    wait: Duration,
    fence: Fence,
    admin_listener: Option<TcpListener>,
    events: &Events,
) -> Result<u8, Failure> {
    let (readiness, ready) = watch::channel(admin::Readiness::Waiting("the network supervisor is awaited".into()));
    if let Some(listener) = admin_listener {
        tokio::spawn(admin::serve(listener, ready, events.clone()));
    }
    let trusted = Image::read(|name| std::env::var_os(name), roots::system_bundle()).into();
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::setup)?;
    // Until there is a workload nobody could be asked to end.
    let told_to_end = Ok(exit::SIGNAL_BASE + Signal::SIGTERM as u8);
    let Connected { gate, state, network } = tokio::select! {
        connected = control::connect(socket, trusted, wait) => connected.map_err(Failure::setup)?,
        never = tell_of_waiting(socket, events) => match never {},
        _ = terminate.recv() => return told_to_end,
    };
    if fence == Fence::Pod {
        tokio::select! {
            proven = prove_the_fence() => proven?,
            _ = terminate.recv() => return told_to_end,
        }
    }
    let (mut instructions, mut reports) = gate.split();
    let (orders, environment) = orders(workload, &state, events)?;
    let door = workload.open_door(network, &sandbox::workload_writes(&orders.identity, &orders.grants))?;
    let go = Notify::new();
    let mut followed = Box::pin(follow(&mut instructions, &state, &go, events));
    let launched = async {
        let prepared = launch::prepare(orders).await?;
        reports.send(&Report::Prepared { init: prepared.init }).await.map_err(gone)?;
        go.notified().await;
        Ok::<_, Failure>(prepared.go().await)
    };
    // What is dropped with any of these is the workload, which ends at once.
    let running = tokio::select! {
        running = launched => running?,
        lost = &mut followed => return Err(gone(lost)),
        _ = terminate.recv() => return told_to_end,
    };
    let running = match running {
        Ok(running) => running,
        Err(error) => {
            drop(followed);
            report_end(&mut reports, &mut instructions, error.code).await;
            return Err(error.into());
        }
    };
    workload.record_start(&running, events);
    reports.send(&Report::Started { pid: running.pid }).await.map_err(gone)?;
    readiness.send_replace(admin::Readiness::Ready);
    memory::release_pages_of_files_after(&SETTLED);
    let code = tokio::select! {
        code = workload.attend(running, door, environment, events) => code?,
        lost = &mut followed => return Err(gone(lost)),
    };
    drop(followed);
    readiness.send_replace(admin::Readiness::Waiting("the workload has ended".into()));
    workload.record_end(code, events);
    report_end(&mut reports, &mut instructions, code).await;
    Ok(code)
}

/// Who does not hear of it sees it by the connection's end.
async fn report_end(reports: &mut Outgoing<Report>, instructions: &mut Incoming<Instruction>, code: u8) {
    if reports.send(&Report::Exited { code }).await.is_ok() {
        let _ = timeout(NOTED_WITHIN, noted(instructions)).await;
    }
}

/// Init containers have proven it already. Containers that are started again without them, as by `podman pod restart`,
/// may be in a namespace that nobody has fenced.
pub(super) async fn prove_the_fence() -> Result<(), Failure> {
    // Sockets and a poll of half a second at most each: not for the thread that serves.
    let proof = tokio::task::spawn_blocking(|| proof::within(PROVEN_WITHIN)).await.map_err(Failure::setup)?;
    proof.map(drop).map_err(|doubt| {
        Failure::setup(format!(
            "the workload does not start, for it could go around the proxy: {doubt}; have network-init or the CNI plugin \
             raise the pod's fence, or say --fence=elsewhere where the cluster's network does that"
        ))
    })
}

/// Says that it waits, once that takes longer than a container's start.
async fn tell_of_waiting(socket: &Path, events: &Events) -> Infallible {
    tokio::time::sleep(QUIET).await;
    events.find(
        Severity::Medium,
        "control-awaited",
        format!("nobody answers at {} yet; the log of the `network` container says why", socket.display()),
    );
    std::future::pending().await
}

fn orders(workload: &Workload, state: &State, events: &Events) -> Result<(Orders, Recipe), Failure> {
    let identity = workload::identify(&state.policy.process, events)?;
    let grants = workload.grants(&state.policy.filesystem, state.policy.landlock);
    let surroundings = Surroundings {
        // The pod's own: its network is fenced, its mounts are the container's.
        isolation: None,
        proxy: state.proxy.clone(),
        environment: state.environment.clone(),
        trust: state.trust.clone(),
        sockets: Sockets::All,
    };
    workload.orders(identity, grants, surroundings)
}

/// Does what `network` says while the workload runs; returns when it says nothing more.
async fn follow(instructions: &mut Incoming<Instruction>, begun: &State, go: &Notify, events: &Events) -> LinkError {
    loop {
        match instructions.receive().await {
            Ok(Instruction::Go) => go.notify_one(),
            // As if the container's runtime had asked: the workload has its grace.
            Ok(Instruction::End) => {
                let _ = raise(Signal::SIGTERM);
            }
            Ok(Instruction::State(state)) if state.policy != begun.policy => events.find(
                Severity::Informational,
                "policy-static",
                "the changed policy grants other paths or another identity: that takes effect when the sandbox starts \
                 again",
            ),
            Ok(_) => {}
            Err(error) => return error,
        }
    }
}

async fn noted(instructions: &mut Incoming<Instruction>) -> Result<(), LinkError> {
    while instructions.receive().await? != Instruction::Noted {}
    Ok(())
}

fn gone(error: LinkError) -> Failure {
    Failure::setup(format!(
        "{error}, and a workload does not run without the proxy that polices it: it has been ended; look at the log of \
         the `network` container"
    ))
}
