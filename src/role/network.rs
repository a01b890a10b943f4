//! `network`: the egress proxy and policy engine alone, by itself or beside the workload of a sidecar pod.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use nix::unistd::{getegid, geteuid};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::proxy;
use super::sandbox::{self, Failure};
use crate::attest::{Key, Verifier};
use crate::attribution::{AttributionConfig, Attributor, Processes, Supervisors};
use crate::cli::{self, BinaryIdentity};
use crate::contract::Ids;
use crate::control::{
    self, Admitted, Agent, Door, Expected, Instruction, LinkError, Report, State, Unwelcome, WorkloadPolicy,
};
use crate::egress::ParentSettings;
use crate::egress::tls::Termination;
use crate::event::say;
use crate::event::{Events, Severity, admin};
use crate::fence::exempt::Exempt;
use crate::policy::writable::WorkloadWrites;
use crate::policy::{self, Policy, Store};
use crate::sys::netlink::{Protocol, Socket};
use crate::sys::{capability, memory};
use crate::workload::trust::{self, Gathered, Trust};

/// How long a sandbox may take to come: its image may still be on the way, and a container that failed is started again
/// after five minutes at the latest (`MaxContainerBackOff` of the kubelet).
const ADMITTED_WITHIN: Duration = Duration::from_secs(600);

/// Serves until TERM or INT, which are exit code 0.
pub fn run(arguments: cli::Network) -> u8 {
    sandbox::report(start(arguments))
}

fn start(arguments: cli::Network) -> Result<u8, Failure> {
    let events = sandbox::open_events(&arguments.records)?;
    proxy::harden(&events);
    refuse_strangers(&arguments)?;
    let key = arguments.attestation_key.as_deref().map(Key::read).transpose();
    let key = key.map_err(|error| Failure::setup(format!("--attestation-key {error}")))?;
    let termination = proxy::termination(&arguments.tls, arguments.records.sandbox.as_deref())?;
    let parent = proxy::upstream_proxy(&arguments.upstream, &termination.upstream)?;
    let store = proxy::open_store(&arguments.policy, Policy::restrictive_default, None)?;
    let sandbox = sandbox_of(&arguments)?;
    let listener = listen(arguments.bind)?;
    let admin = arguments.records.admin_bind.map(admin::bind).transpose().map_err(Failure::setup)?;
    let runtime = proxy::runtime().map_err(Failure::setup)?;
    let attestation = key.map(Verifier::new);
    let egress = Egress { store, parent, termination: Arc::new(termination), listener, attestation };
    let outcome = runtime.block_on(serve(&arguments, egress, sandbox, admin, &events));
    events.flush();
    runtime.shutdown_background();
    outcome
}

fn listen(address: SocketAddr) -> Result<TcpListener, Failure> {
    proxy::bind(address).map_err(|error| {
        Failure::setup(format!(
            "--bind {address}: {error}; choose another address, or end the program that has this one"
        ))
    })
}

/// Beyond loopback whoever can connect is no process of this machine. Then it must be said how the workload's programs are
/// told, if at all, and the workload must have been shown the CA by somebody else.
fn refuse_strangers(arguments: &cli::Network) -> Result<(), Failure> {
    let relaxed = arguments.policy.binary_identity == BinaryIdentity::Relaxed;
    if arguments.attestation_key.is_some() && relaxed {
        return Err(Failure::usage(
            "--attestation-key tells which program asks, and --binary-identity=relaxed says that it does not matter: drop one \
             of the two",
        ));
    }
    let address = arguments.bind;
    if address.ip().is_loopback() {
        return Ok(());
    }
    let missing = if arguments.control_socket.is_some() {
        "a loopback address: the workload of a sidecar pod is in this pod"
    } else if arguments.tls.ca_cert.is_none() {
        "--ca-cert and --ca-key with it: nobody in this pod shows the workload a CA that is made here"
    } else if arguments.attestation_key.is_none() && !relaxed {
        "--attestation-key with it, by which the workload's own pod says which program asks, or --binary-identity=relaxed to \
         judge by destination alone: whoever connects from elsewhere is no process of this machine"
    } else {
        return Ok(());
    };
    Err(Failure::usage(format!("--bind {address}: expected {missing}")))
}

/// What the proxy is made of.
struct Egress {
    store: Arc<Store>,
    parent: Option<ParentSettings>,
    termination: Arc<Termination>,
    listener: TcpListener,
    attestation: Option<Verifier>,
}

/// The sandbox of a sidecar pod.
struct Sandbox {
    socket: PathBuf,
    /// What both containers see and this one alone can write.
    shared: PathBuf,
    corporate: Vec<PathBuf>,
    expected: Expected,
}

/// The sandbox that the flags name, if any: its user and group, by which the fence and the kernel tell it from us.
fn sandbox_of(arguments: &cli::Network) -> Result<Option<Sandbox>, Failure> {
    let (Some(socket), Some(uid), Some(gid)) =
        (arguments.control_socket.clone(), arguments.sandbox_uid, arguments.sandbox_gid)
    else {
        return Ok(None);
    };
    let own = Ids { uid: geteuid().as_raw(), gid: getegid().as_raw() };
    Exempt::new(own, Ids { uid, gid }).map_err(|unfit| {
        Failure::setup(format!("{unfit} (runAsUser and runAsGroup of this container; --sandbox-uid)"))
    })?;
    refuse_blindness(arguments)?;
    if !arguments.policy.allow_writable_policy {
        let who = WorkloadWrites { uid, gid, groups: Vec::new(), landlock_read_write: None };
        let mut files = proxy::deciding_files(&arguments.policy);
        files.extend(arguments.upstream.upstream_proxy_auth_file.clone());
        files.extend(arguments.tls.files().cloned());
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        policy::writable::refuse_writable(&files, &who).map_err(Failure::setup)?;
    }
    let shared =
        socket.parent().filter(|parent| parent.is_absolute()).map(Path::to_owned).ok_or_else(|| {
            Failure::usage(format!("--control-socket {}: expected an absolute path", socket.display()))
        })?;
    refuse_shown(arguments, &shared)?;
    Ok(Some(Sandbox { socket, shared, corporate: arguments.tls.upstream_ca.clone(), expected: Expected { uid, gid } }))
}

/// What decides, and what is secret, where the workload's container sees it too, whatever its mode: the group of what lies
/// there is the workload's, by the directory's setgid bit. A directory is itself wherever else it is mounted.
fn refuse_shown(arguments: &cli::Network, shared: &Path) -> Result<(), Failure> {
    let inode = |path: &Path| path.metadata().ok().map(|of| (of.dev(), of.ino()));
    let Some(seen) = inode(shared) else { return Ok(()) };
    let mut files = proxy::deciding_files(&arguments.policy);
    files.extend(arguments.upstream.upstream_proxy_auth_file.clone());
    files.extend(arguments.tls.ca_key.clone());
    let lies_there = |file: &PathBuf| {
        file.canonicalize().is_ok_and(|file| file.ancestors().skip(1).any(|directory| inode(directory) == Some(seen)))
    };
    match files.iter().find(|file| lies_there(file)) {
        None => Ok(()),
        Some(file) => Err(Failure::setup(format!(
            "{} lies in {}, the directory of --control-socket, which the workload's container reads: mount it elsewhere, into \
             this container alone",
            file.display(),
            shared.display()
        ))),
    }
}

/// Who cannot look at the sandbox's processes would refuse every request of theirs.
fn refuse_blindness(arguments: &cli::Network) -> Result<(), Failure> {
    if arguments.policy.binary_identity == BinaryIdentity::Relaxed {
        return Ok(());
    }
    let missing = capability::missing_for_identity().map_err(|error| Failure::setup(format!("capget: {error}")))?;
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::setup(format!(
        "to tell which program asks, network needs capabilities that it was not given: {}; add them to its container and \
         run it as user 0, or say --binary-identity=relaxed to judge by destination alone",
        missing.join(", ")
    )))
}

/// Who finds out which of this machine's programs asks.
fn attributor(arguments: &cli::Network, events: &Events) -> Result<Option<Arc<Attributor>>, Failure> {
    proxy::attributor(&arguments.policy, events, || {
        let diagnosis = Socket::open(Protocol::SocketDiagnosis)
            .map_err(|error| Failure::setup(format!("socket diagnosis: {error}; the kernel needs CONFIG_INET_DIAG")))?;
        let proc = proxy::open_proc().map_err(|error| Failure::setup(format!("/proc: {error}")))?;
        Ok(AttributionConfig { diagnosis, processes: Processes::Others { proc, own_pid: std::process::id() } })
    })
}

async fn serve(
    arguments: &cli::Network,
    egress: Egress,
    sandbox: Option<Sandbox>,
    admin_listener: Option<TcpListener>,
    events: &Events,
) -> Result<u8, Failure> {
    let attributor = if egress.attestation.is_some() { None } else { attributor(arguments, events)? };
    // Of port 0, the one that the kernel chose.
    let bound = egress.listener.local_addr().map_err(|error| Failure::setup(format!("--bind: {error}")))?;
    let mut own = vec![bound];
    own.extend(arguments.records.admin_bind);
    let Egress { store, parent, termination, listener, attestation } = egress;
    proxy::warm_up(&store);
    let serving = proxy::Serving {
        store: store.clone(),
        attributor: attributor.clone(),
        attestation,
        listeners: vec![listener],
        parent,
        termination: termination.clone(),
        learner: None,
        own_addresses: own,
        host_alias: false,
    };
    let _serving = proxy::serve(serving, events);
    if !arguments.policy.allow_writable_policy {
        tokio::spawn(policy::reload::watch(store.clone(), events.clone()));
    }
    let door = sandbox.as_ref().map(|sandbox| Door::open(&sandbox.socket, sandbox.expected));
    let door = door.transpose().map_err(Failure::setup)?;
    let (_readiness, ready) = watch::channel(admin::Readiness::Ready);
    if let Some(listener) = admin_listener {
        tokio::spawn(admin::serve(listener, ready, events.clone()));
    }
    // One, from here to the end: what arrives while nobody listens would be lost.
    let told = until_told_to_end(&store, events);
    tokio::pin!(told);
    let Some((sandbox, door)) = sandbox.zip(door) else {
        return told.await.map(|()| 0).map_err(|error| Failure::setup(format!("signal handlers: {error}")));
    };
    say!(
        "openshell-supervisor: network: waits for the workload's supervisor, {}, at {}",
        sandbox.expected,
        sandbox.socket.display()
    );
    let unwelcome = |other: &Unwelcome, count: u64| {
        let times = if count > 1 { format!(" ({count} times)") } else { String::new() };
        events.find(Severity::Medium, "control-refused", format!("{other}{times}"));
    };
    let Admitted { agent, pid, trusted } = tokio::select! {
        came = timeout(ADMITTED_WITHIN, door.admit(unwelcome)) => came.map_err(|_| {
            Failure::setup(format!(
                "no workload came to {} within {} s; look at the agent container's log",
                sandbox.socket.display(),
                ADMITTED_WITHIN.as_secs()
            ))
        })?,
        _ = &mut told => return Ok(0),
    };
    let state = state(&sandbox, trusted, &store, &termination, bound, events);
    let leave_out = |init| {
        if let Some(attributor) = &attributor {
            attributor.leave_out(Supervisors { process: pid, init });
        }
    };
    accompany(agent, state, &store, leave_out, told, events).await
}

/// What the workload is launched with; the files that it is to trust are written on the way.
fn state(
    sandbox: &Sandbox,
    gathered: Gathered,
    store: &Store,
    termination: &Termination,
    proxy: SocketAddr,
    events: &Events,
) -> State {
    let trusted = Trust::extend(gathered, termination.authority.certificate_pem(), &sandbox.corporate);
    let remedy = "network-init makes the directory and gives it to this user";
    let directory = proxy::show_whom_to_trust(&trusted, &sandbox.shared, remedy, events);
    State {
        version: control::VERSION,
        policy: of_the_workload(store),
        proxy: format!("http://{proxy}"),
        environment: directory.as_deref().map(trust::variables).unwrap_or_default(),
        trust: directory,
    }
}

fn of_the_workload(store: &Store) -> WorkloadPolicy {
    let policy = &store.current().policy;
    WorkloadPolicy { filesystem: policy.filesystem.clone(), landlock: policy.landlock, process: policy.process.clone() }
}

/// Lives with the workload's supervisor: tells it what it needs and what has changed of it, and ends with it.
async fn accompany(
    agent: Agent,
    mut state: State,
    store: &Store,
    leave_out: impl Fn(u32),
    mut told: Pin<&mut impl Future<Output = std::io::Result<()>>>,
    events: &Events,
) -> Result<u8, Failure> {
    let gone = |error: LinkError| {
        Failure::setup(format!(
            "{error}, and with it the sandbox that this proxy serves; look at the agent container's log"
        ))
    };
    let (mut reports, mut instructions) = agent.split();
    let mut generations = store.subscribe();
    // Of the generation that what follows is compared with.
    state.policy = of_the_workload(store);
    instructions.send(&Instruction::State(Box::new(state.clone()))).await.map_err(gone)?;
    match reports.receive().await.map_err(gone)? {
        Report::Prepared { init } => leave_out(init),
        _ => return Err(gone(LinkError::Malformed("it does not begin with a prepared sandbox".to_owned()))),
    }
    instructions.send(&Instruction::Go).await.map_err(gone)?;
    let ended = async {
        loop {
            match reports.receive().await? {
                Report::Started { pid } => {
                    events.find(
                        Severity::Informational,
                        "workload-started",
                        format!("the workload runs as process {pid}"),
                    );
                    // What is not given back is memory, and nothing else.
                    let _ = memory::release_pages_of_files();
                }
                Report::Exited { code } => return Ok(code),
                Report::Hello { .. } | Report::Prepared { .. } => {
                    return Err(LinkError::Malformed("it begins a second time".to_owned()));
                }
            }
        }
    };
    tokio::pin!(ended);
    let mut ending = false;
    let code = loop {
        tokio::select! {
            outcome = &mut ended => break outcome.map_err(gone)?,
            // The workload may still need its proxy to come to a good end, and has its grace; then it is ended for it.
            _ = &mut told, if !ending => {
                ending = true;
                instructions.send(&Instruction::End).await.map_err(gone)?;
            }
            Ok(()) = generations.changed() => {
                let policy = of_the_workload(store);
                if policy != state.policy {
                    state.policy = policy;
                    instructions.send(&Instruction::State(Box::new(state.clone()))).await.map_err(gone)?;
                }
            }
        }
    };
    // It may have gone without waiting.
    let _ = instructions.send(&Instruction::Noted).await;
    events.find(Severity::Informational, "workload-ended", format!("the workload has ended with exit code {code}"));
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
