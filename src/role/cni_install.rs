//! `cni-install`: puts the plugin on a node and keeps it there. The DaemonSet's container, privileged, as root.

use std::net::TcpListener;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::sandbox::{self, Failure};
use crate::cli;
use crate::cni::chain::{Chain, Change, Watch, Way};
use crate::cni::config::SPOKEN;
use crate::cni::credentials::Credentials;
use crate::cni::installation::{Called, Installation, Standing};
use crate::cni::program::{Left, Program};
use crate::cni::readiness::{PATIENCE, Readiness};
use crate::event::say;
use crate::event::{Events, Severity, admin};
use crate::kube::node::Node;
use crate::kube::{Access, Client, Resource};
use crate::sys::memory;

/// After a change of the chain, how long a runtime may take to read its configuration anew (containerd and CRI-O watch the
/// directory). Only then is the node said to be ready.
const RELOAD: Duration = Duration::from_secs(1);

/// How long the label's going is waited for before the chain is repaired all the same.
const BEFORE_A_REPAIR: Duration = Duration::from_secs(1);

/// The next look where nothing was noticed; the token is renewed then, too, which the kubelet does many minutes before the old
/// one expires.
const TICK: Duration = Duration::from_secs(30);

/// The next look while anything is not as it should be, or could not be told.
const AGAIN: Duration = Duration::from_secs(2);

/// Runs until it is told to end; the exit code is 0 then.
pub fn run(arguments: cli::CniInstall) -> u8 {
    sandbox::report(start(&arguments))
}

fn start(arguments: &cli::CniInstall) -> Result<u8, Failure> {
    let events = sandbox::open_events(&arguments.records)?;
    let admin = arguments.records.admin_bind.map(admin::bind).transpose().map_err(Failure::setup)?;
    let access = Access::in_cluster(&arguments.service_account).map_err(Failure::setup)?;
    for namespace in &arguments.sandbox_namespace {
        Resource::pod(namespace, "x").map_err(|error| Failure::usage(format!("--sandbox-namespace: {error}")))?;
    }
    let installation = installation(arguments, &access);
    let client = Client::new(access);
    let mut node = Node::new(client.clone(), &arguments.node_name).map_err(Failure::usage)?;
    if arguments.node_condition {
        node = node.with_condition();
    }
    let readiness = Readiness::of(client.clone(), node, arguments.sandbox_namespace.clone());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup(format!("runtime: {error}")))?;
    let installer = Installer {
        installation: Arc::new(Mutex::new(installation)),
        readiness,
        events: events.clone(),
        untold: None,
        settled: false,
        failure: String::new(),
        told: String::new(),
    };
    let outcome = runtime.block_on(async {
        if arguments.uninstall {
            return installer.uninstall().await;
        }
        installer.keep(arguments, &client, admin).await
    });
    events.flush();
    outcome
}

fn installation(arguments: &cli::CniInstall, access: &Access) -> Installation {
    let way = Way::from(arguments.way);
    let called = (!way.proves_itself()).then_some(&arguments.called_file);
    let mut settings = json!({
        "kubeconfig": arguments.kubeconfig,
        "sandboxNamespaces": arguments.sandbox_namespace,
        "logFile": arguments.log_file,
    });
    if !arguments.runtime_class.is_empty() {
        settings["runtimeClasses"] = json!(arguments.runtime_class);
    }
    if let Some(called) = called {
        settings["calledFile"] = json!(called);
    }
    Installation {
        chain: Chain {
            way,
            directory: arguments.directory(),
            file: arguments.conf_file.clone(),
            settings,
            versions: &SPOKEN,
        },
        program: Program::below(&arguments.bin_dir),
        credentials: Credentials::of(&arguments.service_account, access, &arguments.kubeconfig),
        usual_directories: cli::ChainWay::DIRECTORIES.iter().map(|(_, usual)| usual.into()).collect(),
        called: called.cloned().map(Called::at),
        rehearsed: false,
    }
}

struct Installer {
    /// Its steps block for milliseconds: not on the thread that serves.
    installation: Arc<Mutex<Installation>>,
    readiness: Readiness,
    events: Events,
    /// When the cluster could last not be told that the node is not ready.
    untold: Option<Instant>,
    /// Whether nothing was put right since memory was last given back.
    settled: bool,
    /// What the cluster could last not be told, and why.
    failure: String,
    /// The last status line.
    told: String,
}

impl Installer {
    async fn keep(
        mut self,
        arguments: &cli::CniInstall,
        client: &Client,
        admin_listener: Option<TcpListener>,
    ) -> Result<u8, Failure> {
        let (ready, readyz) = watch::channel(admin::Readiness::Waiting("the chain is not verified yet".into()));
        if let Some(listener) = admin_listener {
            tokio::spawn(admin::serve(listener, readyz, self.events.clone()));
        }
        let mut told = pin!(told_to_end()?);
        let is_known = self.look_for_daemon_set(arguments, client).await?;
        let chain = self.installation.lock().unwrap_or_else(PoisonError::into_inner).chain.clone();
        let mut changes = Watch::new(&chain).map_err(|error| Failure::setup(format!("inotify: {error}")))?;
        // A label of an earlier life, of before a crash or a start of the node, says nothing about now.
        self.withdraw().await;
        loop {
            let standing = tokio::select! {
                standing = self.bring_about(&ready) => standing,
                () = &mut told => break,
            };
            let complete = self.announce(&standing, &ready).await;
            if complete && standing.is_verified() && !std::mem::replace(&mut self.settled, true) {
                // What is not given back is memory, and nothing else.
                let _ = memory::release_pages_of_files();
            }
            let tick = if complete && standing.is_verified() { TICK } else { AGAIN };
            tokio::select! {
                () = changes.changed(tick) => {}
                () = &mut told => break,
            }
        }
        ready.send_replace(admin::Readiness::Waiting("the installer is told to end".into()));
        // From here on nobody watches the chain. It stays, so that what is started before the label is gone is fenced.
        if going_for_good(arguments, is_known, client, &self.events).await {
            return self.uninstall().await;
        }
        self.untold = None;
        self.withdraw().await;
        self.tell("ends; the plugin stays in place");
        Ok(0)
    }

    /// Whether the DaemonSet that is named is there. One that is not would be taken for one that has gone, at every end of
    /// this.
    async fn look_for_daemon_set(&self, arguments: &cli::CniInstall, client: &Client) -> Result<bool, Failure> {
        let Some((namespace, name)) = &arguments.daemonset else { return Ok(false) };
        let unfit = |error: &dyn std::fmt::Display| Failure::usage(format!("--daemonset {namespace}/{name}: {error}"));
        let resource = Resource::daemon_set(namespace, name).map_err(|error| unfit(&error))?;
        match client.metadata(&resource).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_not_found() => {
                Err(unfit(&"there is none; name the DaemonSet that this is a pod of, or leave the flag away"))
            }
            // Not to be told now, and so not at the end.
            Err(_) => Ok(false),
        }
    }

    /// Looks, and puts right what is not as it should be, with the label gone before anything is touched.
    async fn bring_about(&mut self, ready: &watch::Sender<admin::Readiness>) -> Standing {
        let mut standing = self.blocking(Installation::verify).await;
        self.events.metrics().node().found(standing.is_verified());
        if let Standing::Deficient { message, repairable, .. } = &standing {
            ready.send_replace(admin::Readiness::Waiting(message.clone()));
            let repairable = *repairable;
            if repairable {
                // An API server that does not answer must not keep a repair waiting.
                let _ = timeout(BEFORE_A_REPAIR, self.withdraw()).await;
            } else {
                self.withdraw().await;
            }
            if repairable {
                self.settled = false;
                let events = self.events.clone();
                standing =
                    self.blocking(move |installation| installation.repair(|change| tell_of(&change, &events))).await;
                if standing.is_verified() {
                    sleep(RELOAD).await;
                    standing = self.blocking(Installation::verify).await;
                }
            }
        }
        if standing.is_verified()
            && !self.readiness.says(true)
            && let Err(deficient) = self.readiness.look_up().await
        {
            return deficient;
        }
        standing
    }

    /// Tells the cluster, the probes and the log. Whether everybody has been told.
    async fn announce(&mut self, standing: &Standing, ready: &watch::Sender<admin::Readiness>) -> bool {
        // Asking the cluster takes time, in which others write.
        let now = if standing.is_verified() { self.blocking(Installation::verify).await } else { standing.clone() };
        self.events.metrics().node().found(now.is_verified());
        let (standing, is_as_it_was) = (&now, now.is_verified() == standing.is_verified());
        let outcome = match standing {
            Standing::Verified { file } => {
                ready.send_replace(admin::Readiness::Ready);
                let granted = self.readiness.grant().await;
                if granted.is_ok() {
                    self.tell(format!("the node is ready: the plugin is called by {}", file.display()));
                }
                granted
            }
            Standing::Deficient { message, .. } => {
                ready.send_replace(admin::Readiness::Waiting(message.clone()));
                self.tell(format!("the node is not ready: {message}"));
                self.readiness.withdraw().await
            }
        };
        self.events.metrics().node().labelled(self.readiness.says(true));
        let published = self.readiness.publish(standing).await;
        let failure = outcome.and(published).err().map(|error| error.to_string()).unwrap_or_default();
        // Tried again and again, told once.
        if !failure.is_empty() && failure != self.failure {
            self.events.find(Severity::Medium, "cni-node", format!("the cluster could not be told: {failure}"));
        }
        self.failure = failure;
        self.failure.is_empty() && is_as_it_was
    }

    async fn withdraw(&mut self) {
        // What was tried a moment ago is not waited for again: a repair comes after it.
        if self.untold.is_some_and(|at| at.elapsed() < PATIENCE) {
            return;
        }
        let outcome = self.readiness.withdraw().await;
        self.untold = outcome.is_err().then(Instant::now);
        self.events.metrics().node().labelled(self.readiness.says(true));
        match outcome {
            Ok(true) => self.events.find(Severity::Informational, "cni-node", "the node's label is taken away"),
            Ok(false) => {}
            Err(error) => {
                let failure = format!("the node's label could not be taken away, and may say what is not so: {error}");
                if failure != self.failure {
                    self.events.find(Severity::High, "cni-node", failure.clone());
                    self.failure = failure;
                }
            }
        }
    }

    /// With the label first: where that cannot be taken away, sandboxes go on coming, and go on being fenced.
    async fn uninstall(mut self) -> Result<u8, Failure> {
        self.readiness.withdraw().await.map_err(|error| {
            Failure::setup(format!("the plugin stays in place, for the node's label could not be taken away: {error}"))
        })?;
        let events = self.events.clone();
        let left = self
            .blocking(move |installation| installation.remove(|change| tell_of(&change, &events)))
            .await
            .map_err(Failure::setup)?;
        match left {
            Left::Nothing => self.tell("the plugin is removed"),
            Left::Named(naming) => {
                let naming: Vec<_> = naming.iter().map(|path| path.display().to_string()).collect();
                self.tell(format!("the plugin's program stays, for it is named by {}", naming.join(", ")));
            }
            Left::Foreign => {
                let path = self.blocking(|installation| installation.program.path().to_owned()).await;
                self.tell(format!("the plugin is not chained any longer; {} is not ours, and stays", path.display()));
            }
        }
        Ok(0)
    }

    /// A line on stderr when there is something new to say.
    fn tell(&mut self, status: impl ToString) {
        // A name in it may be anybody's.
        let status: String = status.to_string().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        if status != self.told {
            say!("openshell-supervisor: cni-install: {status}");
            self.told = status;
        }
    }

    async fn blocking<T: Send + 'static>(&self, act: impl FnOnce(&mut Installation) -> T + Send + 'static) -> T {
        let installation = self.installation.clone();
        let done =
            tokio::task::spawn_blocking(move || act(&mut installation.lock().unwrap_or_else(PoisonError::into_inner)));
        // A panic has ended the process.
        match done.await {
            Ok(done) => done,
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

fn tell_of(change: &Change, events: &Events) {
    say!("openshell-supervisor: cni-install: {change}");
    events.metrics().node().changed(change.action.name());
    events.find(Severity::Informational, "cni-chain", change.to_string());
}

/// Whether the DaemonSet itself is going, and not only this pod of it. What cannot be told is no.
async fn going_for_good(arguments: &cli::CniInstall, is_known: bool, client: &Client, events: &Events) -> bool {
    let Some((namespace, name)) = &arguments.daemonset else { return false };
    let Ok(resource) = Resource::daemon_set(namespace, name) else { return false };
    match client.metadata(&resource).await {
        Ok(object) => object.metadata.deletion_timestamp.is_some(),
        // One that was never there has not gone.
        Err(error) if error.is_not_found() => is_known,
        Err(error) => {
            events.find(
                Severity::Medium,
                "cni-node",
                format!("whether the DaemonSet is going cannot be told, so the plugin stays: {error}"),
            );
            false
        }
    }
}

fn told_to_end() -> Result<impl Future<Output = ()>, Failure> {
    let handler = |kind| signal(kind).map_err(|error| Failure::setup(format!("signal handlers: {error}")));
    let (mut terminate, mut interrupt) = (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
