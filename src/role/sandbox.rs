//! The combined sandbox as a recipe: policy, identity, namespaces, proxy, workload, end.

use std::fmt::Display;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use super::proxy;
use super::workload::{self, Surroundings, Workload};
use crate::attribution::{AttributionConfig, Attributor, Transport};
use crate::cli;
use crate::confine::identity::Identity;
use crate::confine::landlock::{self, Grants, LandlockError};
use crate::confine::seccomp::Sockets;
use crate::contract::{PROXY_PORT, PROXY_URL, TRUST_DIRECTORY, exit};
use crate::egress::ParentSettings;
use crate::egress::learn::{self, Learner};
use crate::egress::tls::{Termination, roots};
use crate::event::say;
use crate::event::{Actor, Events, EventsConfig, SandboxIdentity, Severity, admin};
use crate::fence::bypass;
use crate::netns::{Namespaces, Provided};
use crate::policy::writable::WorkloadWrites;
use crate::policy::{self, Policy, Store};
use crate::workload::command::Command;
use crate::workload::environment::Recipe;
use crate::workload::trust::{self, Image, Trust};
use crate::workload::{Orders, launch};

/// What to run and how, whoever asked.
pub struct Plan {
    /// The workload.
    pub workload: Workload,
    /// A policy that came by other means than a file.
    pub built_in_policy: Option<Policy>,
    /// Where to write the policy that is learned; everything is allowed then.
    pub learn: Option<PathBuf>,
    /// Everything else, as given.
    pub options: cli::Sandbox,
}

/// Why there was no workload, and the exit code that says so.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl Failure {
    /// Something in the environment or the files was not as it must be: exit code 125.
    pub fn setup(why: impl Display) -> Self {
        Self { code: exit::SETUP, message: why.to_string() }
    }

    /// Something on the command line was wrong: exit code 2.
    pub fn usage(why: impl Display) -> Self {
        Self { code: exit::USAGE, message: why.to_string() }
    }

    /// The same, told as a role's.
    #[must_use]
    pub fn of(self, role: &str) -> Self {
        Self { message: format!("{role}: {}", self.message), ..self }
    }

    /// With an exit code of its own.
    pub fn with(code: u8, message: String) -> Self {
        Self { code, message }
    }
}

/// Ends a role: its exit code, or the failure told on stderr and its code.
pub fn report(outcome: Result<u8, Failure>) -> u8 {
    outcome.unwrap_or_else(|failure| {
        say!("openshell-supervisor: {}", failure.message);
        failure.code
    })
}

/// Runs a sandbox from start to end; the exit code is the workload's.
///
/// # Errors
/// [`Failure`], before the workload has run.
pub fn run(plan: Plan) -> Result<u8, Failure> {
    let events = open_events(&plan.options.records)?;
    proxy::harden(&events);
    check_privileges()?;
    // On the main thread, whose end is the sandbox's end, and while there is something else to do.
    let namespaces = Namespaces { user: !crate::sys::capability::has_sys_admin(), pid: true, proxy_port: PROXY_PORT };
    let begun = launch::begin(Some(namespaces))?;
    let termination = proxy::termination(&plan.options.tls, plan.options.records.sandbox.as_deref())?;
    let parent = proxy::upstream_proxy(&plan.options.upstream, &termination.upstream)?;
    let store = open_policy(&plan)?;
    let (identity, grants) = {
        let policy = &store.current().policy;
        let identity = workload::identify(&policy.process, &events)?;
        (identity, plan.workload.grants(&policy.filesystem, policy.landlock))
    };
    refuse_writable_policy(&plan.options, &identity, &grants)?;
    refuse_readable_secrets(&plan.options, &identity, &grants)?;
    plan.workload.doubt(&store.current().policy, &workload_writes(&identity, &grants), &events);
    let trust = trust(&plan, &termination, &events);
    let lesson = plan.learn.as_deref().map(Lesson::begin).transpose()?;
    let (orders, environment) = orders(&plan, namespaces, identity, grants, trust)?;
    let admin = plan.options.records.admin_bind.map(admin::bind).transpose().map_err(Failure::setup)?;
    let runtime = proxy::runtime().map_err(Failure::setup)?;
    let learner = lesson.as_ref().map(|lesson| lesson.learner.clone());
    let egress = Egress { store, parent, termination: Arc::new(termination), learner };
    let outcome = runtime.block_on(serve(&plan, (begun, orders), environment, egress, admin, events.clone()));
    events.flush();
    // Whatever still runs on a blocking thread has nobody left to answer to.
    runtime.shutdown_background();
    if let Some(lesson) = lesson {
        lesson.end(&plan.workload.command, plan.built_in_policy.as_ref())?;
    }
    outcome
}

/// What the proxy of a sandbox needs.
struct Egress {
    store: Arc<Store>,
    parent: Option<ParentSettings>,
    termination: Arc<Termination>,
    learner: Option<Arc<Learner>>,
}

/// A policy that is being learned, and where it will be written.
struct Lesson {
    learner: Arc<Learner>,
    file: PathBuf,
    /// Made before the workload runs, so that nothing is learned for nothing.
    temporary: PathBuf,
}

impl Lesson {
    fn begin(file: &Path) -> Result<Self, Failure> {
        if file.exists() {
            return Err(Failure::usage(format!(
                "--learn {}: it is there already; move it away, or name another",
                file.display()
            )));
        }
        let name =
            file.file_name().ok_or_else(|| Failure::usage(format!("--learn {}: expected a file", file.display())))?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let temporary = file.with_file_name(hidden);
        std::fs::OpenOptions::new().write(true).create_new(true).open(&temporary).map_err(|error| {
            Failure::setup(format!(
                "--learn {}: {error}; name a file in a directory that can be written",
                file.display()
            ))
        })?;
        Ok(Self { learner: Arc::default(), file: file.to_owned(), temporary })
    }

    fn end(self, command: &Command, granted: Option<&Policy>) -> Result<(), Failure> {
        let program = command.argv.first().map(|word| word.to_string_lossy()).unwrap_or_default();
        let learned = self.learner.policy(&program, granted);
        std::fs::write(&self.temporary, &learned)
            .and_then(|()| std::fs::rename(&self.temporary, &self.file))
            .map_err(|error| Failure::setup(format!("--learn {}: {error}", self.file.display())))?;
        // What was seen is written in any case: it cannot be had again for the asking.
        let valid = Policy::parse(&learned, &self.file.display().to_string());
        valid.map(drop).map_err(|error| {
            Failure::setup(format!(
                "--learn: what was learned is written, and is no policy before it is mended: {error}"
            ))
        })
    }
}

/// The running sandbox: everything that lives between the first namespace and the last process.
async fn serve(
    plan: &Plan,
    (begun, orders): (launch::Begun, Orders),
    environment: Recipe,
    egress: Egress,
    admin_listener: Option<TcpListener>,
    events: Events,
) -> Result<u8, Failure> {
    let (readiness, ready) = watch::channel(admin::Readiness::Waiting("the sandbox is being set up".into()));
    if let Some(listener) = admin_listener {
        tokio::spawn(admin::serve(listener, ready, events.clone()));
    }
    let store = egress.store.clone();
    proxy::warm_up(&store);
    let who = workload_writes(&orders.identity, &orders.grants);
    let mut prepared = prepare(begun, orders, &events).await?;
    let handover = prepared.handover.take().ok_or_else(|| Failure::setup("the sandbox handed nothing over"))?;
    for note in &handover.notes {
        events.find(Severity::Low, "namespace-note", note.clone());
    }
    let processes = proxy::sandbox_processes(prepared.processes.take(), prepared.init).map_err(Failure::setup)?;
    let attributor = proxy::attributor(&plan.options.policy, &events, || {
        Ok(AttributionConfig { diagnosis: handover.diagnosis.into(), processes })
    })?;
    if let Some(packets) = handover.packets {
        tokio::spawn(bypass::report(packets, actor_finder(attributor.clone()), events.clone()));
    }
    let listeners = handover.listeners.into_iter().map(TcpListener::from).collect();
    let serving = proxy::Serving {
        store: store.clone(),
        attributor,
        attestation: None,
        listeners,
        parent: egress.parent,
        termination: egress.termination,
        learner: egress.learner,
        own_addresses: plan.options.records.admin_bind.into_iter().collect(),
        host_alias: true,
    };
    let _serving = proxy::serve(serving, &events);
    let begun_with = store.current();
    if !plan.options.policy.allow_writable_policy {
        tokio::spawn(policy::reload::watch(store, events.clone()));
    }
    let door = plan.workload.open_door(None, &who)?;
    let running = prepared.go().await.map_err(|error| plan.workload.refused(error, &begun_with.policy))?;
    plan.workload.record_start(&running, &events);
    readiness.send_replace(admin::Readiness::Ready);
    let code = plan.workload.attend(running, door, environment, &events).await?;
    readiness.send_replace(admin::Readiness::Waiting("the workload has ended".into()));
    plan.workload.record_end(code, &events);
    Ok(code)
}

/// Namespaces and init; without a PID namespace where the kernel refuses a private /proc.
async fn prepare(begun: launch::Begun, mut orders: Orders, events: &Events) -> Result<launch::Prepared, Failure> {
    match begun.prepare(orders.clone()).await {
        Err(refused) if refused.private_proc => {
            events.find(
                Severity::Medium,
                "no-pid-namespace",
                format!("{refused}; the workload shares this PID namespace and sees its processes"),
            );
            if let Some(isolation) = &mut orders.isolation {
                isolation.namespaces.pid = false;
            }
            Ok(launch::prepare(orders).await?)
        }
        other => Ok(other?),
    }
}

/// Names the program behind a packet that tried to go around the proxy, where its socket can still be found.
fn actor_finder(attributor: Option<Arc<Attributor>>) -> impl Fn(&bypass::Attempt) -> Option<Actor> + Send {
    move |attempt| {
        let transport = match i32::from(attempt.protocol) {
            nix::libc::IPPROTO_TCP => Transport::Tcp,
            nix::libc::IPPROTO_UDP => Transport::Udp,
            _ => return None,
        };
        let source = SocketAddr::new(attempt.source, attempt.source_port);
        let destination = SocketAddr::new(attempt.destination, attempt.destination_port);
        attributor.as_ref()?.actor_of(source, destination, transport)
    }
}

/// Opens where events go.
pub fn open_events(records: &cli::Records) -> Result<Events, Failure> {
    Events::new(EventsConfig {
        ocsf: records.events.clone(),
        log_level: records.log_level,
        sandbox: SandboxIdentity { name: records.sandbox.clone(), id: records.sandbox_id.clone() },
    })
    .map_err(Failure::setup)
}

fn open_policy(plan: &Plan) -> Result<Arc<Store>, Failure> {
    let built_in = || {
        let given = plan.built_in_policy.clone().unwrap_or_else(Policy::restrictive_default);
        if plan.learn.is_some() { learn::everything(given) } else { given }
    };
    proxy::open_store(&plan.options.policy, built_in, plan.learn.as_ref().map(|_| learn::RULES))
}

/// Root with a part of what it takes would set up half a sandbox, and fail at a place that explains nothing.
fn check_privileges() -> Result<(), Failure> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    match crate::sys::capability::missing_as_root() {
        Ok(missing) if missing.is_empty() => Ok(()),
        Ok(missing) => Err(Failure::setup(format!(
            "as root the supervisor needs capabilities that it was not given: {}; add them to the container, or start it \
             as an ordinary user where user namespaces are allowed",
            missing.join(", ")
        ))),
        Err(error) => Err(Failure::setup(format!("capget: {error}"))),
    }
}

/// A policy that the workload could rewrite is no policy (design §3).
pub fn refuse_writable_policy(options: &cli::Sandbox, identity: &Identity, grants: &Grants) -> Result<(), Failure> {
    if options.policy.allow_writable_policy {
        return Ok(());
    }
    let who = workload_writes(identity, grants);
    let mut files = proxy::deciding_files(&options.policy);
    files.extend(options.upstream.upstream_proxy_auth_file.clone());
    files.extend(options.tls.files().cloned());
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    policy::writable::refuse_writable(&files, &who).map_err(Failure::setup)
}

/// Variables that name credentials of the supervisor's for the gateway.
const CREDENTIALS: [&str; 2] = ["OPENSHELL_TLS_KEY", "OPENSHELL_K8S_SA_TOKEN_FILE"];

/// Files with credentials for the gateway. Where the workload has the supervisor's user, Landlock alone keeps it from them.
pub fn credentials_for_the_gateway() -> impl Iterator<Item = PathBuf> {
    CREDENTIALS.iter().filter_map(std::env::var_os).map(PathBuf::from).filter(|file| file.exists())
}

/// Makes sure that the workload, which will be the same user, cannot come by what the supervisor knows.
pub fn refuse_exposure() -> Result<(), Failure> {
    let probe = landlock::probe();
    if probe.status == landlock::Status::Not {
        return Err(Failure::setup(LandlockError::Needed { reason: probe.reason.unwrap_or_default() }));
    }
    if nix::sys::prctl::get_dumpable() != Ok(false) {
        return Err(Failure::setup(
            "the supervisor can be traced and dumped by its own user, who could read its secrets out of it: prctl \
             (PR_SET_DUMPABLE) was refused; allow it in the container's seccomp profile",
        ));
    }
    Ok(())
}

/// What the workload will be able to write.
pub fn workload_writes(identity: &Identity, grants: &Grants) -> WorkloadWrites {
    let enforced = landlock::probe().status != landlock::Status::Not;
    WorkloadWrites {
        uid: identity.uid,
        gid: identity.gid,
        groups: identity.groups.clone(),
        landlock_read_write: enforced.then(|| grants.read_write.clone()),
    }
}

/// A password that the workload could read is its own to use, and a key to sign with makes it any host (design §3).
pub fn refuse_readable_secrets(options: &cli::Sandbox, identity: &Identity, grants: &Grants) -> Result<(), Failure> {
    let secrets = options.upstream.upstream_proxy_auth_file.iter().chain(&options.tls.ca_key);
    refuse_readable(secrets.cloned(), identity, grants)
}

/// None of `secrets` may be within the workload's reach.
pub fn refuse_readable(
    secrets: impl IntoIterator<Item = PathBuf>,
    identity: &Identity,
    grants: &Grants,
) -> Result<(), Failure> {
    let who = workload_writes(identity, grants);
    let granted: Vec<PathBuf> = grants.read_only.iter().chain(&grants.read_write).cloned().collect();
    let enforced = who.landlock_read_write.is_some();
    for file in secrets {
        policy::writable::refuse_readable(&file, &who, enforced.then_some(granted.as_slice()))
            .map_err(Failure::setup)?;
    }
    Ok(())
}

/// Whom the workload is to trust; nobody new where there is no place to tell it.
fn trust(plan: &Plan, termination: &Termination, events: &Events) -> Option<Provided> {
    let place: PathBuf = Path::new(TRUST_DIRECTORY).components().take(2).collect();
    // An image may be nothing but one executable.
    if let Err(error) = std::fs::create_dir_all(&place) {
        events.find(
            Severity::Medium,
            "no-trust",
            format!(
                "the workload cannot be shown the sandbox's CA, so that inspected destinations will not be trusted: \
                 {}: {error}; make the directory in the image",
                place.display()
            ),
        );
        return None;
    }
    let image = Image::read(|name| std::env::var_os(name), roots::system_bundle());
    let trust = Trust::extend(image, termination.authority.certificate_pem(), &plan.options.tls.upstream_ca);
    for note in &trust.notes {
        events.find(Severity::Informational, "trust-note", note.clone());
    }
    Some(trust.provided())
}

fn orders(
    plan: &Plan,
    namespaces: Namespaces,
    identity: Identity,
    grants: Grants,
    trust: Option<Provided>,
) -> Result<(Orders, Recipe), Failure> {
    let directory = trust.as_ref().map(|trust| trust.directory.clone());
    let isolation = crate::netns::Isolation {
        namespaces,
        hide: crate::netns::outside::named_places(|name| std::env::var_os(name)),
        provided: trust,
        // Without what is provided: outside there is nothing of the kind.
        keep: grants.read_only.iter().chain(&grants.read_write).cloned().collect(),
        // The workload has the id of whoever serves on a socket there, and file modes keep them apart no more.
        private_tmp: namespaces.user,
    };
    let surroundings = Surroundings {
        isolation: Some(isolation),
        proxy: PROXY_URL.to_owned(),
        environment: directory.as_deref().map(trust::variables).unwrap_or_default(),
        trust: directory,
        sockets: Sockets::All,
    };
    plan.workload.orders(identity, grants, surroundings)
}
