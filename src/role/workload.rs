//! What `process` and the combined sandbox do alike for the workload: who it is, what it sees, how it is started.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::prctl;

use super::sandbox::Failure;
use crate::access::{self, Console, Door, Inside, Place, console};
use crate::cli::WorkloadOptions;
use crate::confine::identity::{self, Identity};
use crate::confine::landlock::{self, Grants};
use crate::confine::limits::Limits;
use crate::confine::seccomp::Sockets;
use crate::contract::{SANDBOX_HOME, env, exit};
use crate::event::{Event, Events, ProcessActivity, ProcessStep, Severity};
use crate::netns::Isolation;
use crate::policy::writable::{WorkloadWrites, Writable, refuse_writable};
use crate::policy::{Compatibility, Filesystem, Policy, ProcessIdentity};
use crate::sys::process::Held;
use crate::workload::command::{self, Command, CommandError};
use crate::workload::environment::{self, Inherit, Recipe, UserVariable};
use crate::workload::launch::{LaunchError, Running};
use crate::workload::launcher::Launcher;
use crate::workload::standard::Standard;
use crate::workload::{Orders, outside, supervise};

/// The workload's home where its own is not granted for writing; every policy grants it.
const FALLBACK_HOME: &str = "/tmp";

/// Scratch space, which a workload in a user namespace has of its own.
const TMP: &str = "/tmp";

/// What to run, and how.
#[derive(Debug)]
pub struct Workload {
    /// Program and arguments.
    pub command: Command,
    /// What passes from this environment into the workload's.
    pub inherit: Inherit,
    /// Variables that the user set.
    pub variables: Vec<UserVariable>,
    /// Where the workload starts, and what `include_workdir` grants.
    pub workdir: Option<PathBuf>,
    /// Everything else, as given.
    pub options: WorkloadOptions,
}

/// Where the workload is to live.
#[derive(Debug)]
pub struct Surroundings {
    /// Namespaces to make; `None` where the pod has them already.
    pub isolation: Option<Isolation>,
    /// URL of the only way out.
    pub proxy: String,
    /// Variables that say whom to trust.
    pub environment: BTreeMap<String, String>,
    /// The directory that they name.
    pub trust: Option<PathBuf>,
    /// Which sockets it may have.
    pub sockets: Sockets,
}

impl Workload {
    /// A container's: what follows `--`, or what the driver has put into the environment.
    ///
    /// # Errors
    /// [`Failure`]: no command, a working directory that is not there, variables that cannot be read.
    pub fn of_container(words: &[OsString], options: WorkloadOptions) -> Result<Self, Failure> {
        let spec = variable(env::MAIN_PROCESS_SPEC);
        let variables = match variable(env::USER_ENVIRONMENT) {
            Some(text) => environment::parse_json(&text).map_err(Failure::usage)?,
            None => Vec::new(),
        };
        let workdir = match &options.workdir {
            Some(given) => Some(existing(given)?),
            // An image that says nothing, or the root, means its workspace (facts §1.3).
            None => match std::env::current_dir() {
                Ok(here) if here != Path::new("/") => Some(here),
                _ => Some(PathBuf::from(SANDBOX_HOME)).filter(|home| home.is_dir()),
            },
        };
        let command = command::resolve(words, spec.as_deref())?;
        Ok(Self { command, inherit: Inherit::AllButOurs, variables, workdir, options })
    }

    /// What the workload may see: the policy's paths, the system's, and its working directory.
    #[must_use]
    pub fn grants(&self, filesystem: &Filesystem, landlock: Compatibility) -> Grants {
        Grants::of(&filesystem.with_baseline(self.workdir.as_deref()), landlock)
    }

    /// Puts it all together: the orders, and what the environment of further programs is made by.
    ///
    /// # Errors
    /// A limit that is none.
    pub fn orders(
        &self,
        mut identity: Identity,
        mut grants: Grants,
        surroundings: Surroundings,
    ) -> Result<(Orders, Recipe), Failure> {
        let mut limits = Limits::default();
        for limit in &self.options.limits {
            limits.set(limit).map_err(Failure::usage)?;
        }
        // A home that the workload cannot write breaks more tools than one that is empty.
        if !grants.read_write.iter().any(|granted| Path::new(&identity.home).starts_with(granted)) {
            identity.home = FALLBACK_HOME.to_owned();
        }
        let private_tmp = surroundings.isolation.as_ref().is_some_and(|isolation| isolation.private_tmp);
        let workdir = Some(self.start_directory(&grants, private_tmp));
        grants.read_only.extend(surroundings.trust);
        let environment = Recipe {
            identity,
            inherit: self.inherit.clone(),
            user: self.variables.clone(),
            proxy: Some(surroundings.proxy),
            trust: surroundings.environment.into_iter().collect(),
        };
        // Without a door nobody attaches, and nothing stands between.
        let standard = match self.options.ssh_socket_path {
            Some(_) => console::standard(self.command.tty),
            None => Standard::Inherited,
        };
        let has_terminal = match standard {
            Standard::Inherited => std::io::stdin().is_terminal(),
            Standard::Pipes { .. } => false,
            Standard::Terminal(_) => true,
        };
        let orders = Orders {
            isolation: surroundings.isolation,
            command: self.command.argv.clone(),
            environment: environment.build(has_terminal, &[]),
            workdir,
            identity: environment.identity.clone(),
            grants,
            seccomp: self.options.seccomp.into(),
            sockets: surroundings.sockets,
            limits,
            grace: self.grace(),
            guests: self.options.ssh_socket_path.is_some(),
            standard,
        };
        Ok((orders, environment))
    }

    /// Opens the door to the sandbox, where there is to be one; the `network` supervisor of the same pod may come in. `who`
    /// must not be able to put another door in its place.
    ///
    /// # Errors
    /// It cannot be had, or the workload could replace it.
    pub fn open_door(&self, network: Option<Held>, who: &WorkloadWrites) -> Result<Option<Door>, Failure> {
        // What the workload leaves behind must not end up where nobody knows it for the workload's, and ends it, should the
        // sandbox's init be killed.
        prctl::set_child_subreaper(true).map_err(Failure::setup)?;
        let Some(place) = &self.options.ssh_socket_path else { return Ok(None) };
        let door = Door::open(place, network).map_err(Failure::setup)?;
        // Only now is there all of the way that is judged; nobody has come yet, and the workload does not run.
        refuse_replaceable(place, who)?;
        Ok(Some(door))
    }

    /// Stands by the workload until its end, and serves those who come in by the door meanwhile. Returns the exit code.
    ///
    /// # Errors
    /// Its streams cannot be had; it has ended then.
    pub async fn attend(
        &self,
        mut running: Running,
        door: Option<Door>,
        environment: Recipe,
        events: &Events,
    ) -> Result<u8, Failure> {
        let Some(door) = door else { return Ok(supervise::run(&mut running, self.patience()).await) };
        let launcher = running.launcher();
        let (console, hold) = Console::open(std::mem::take(&mut running.streams))
            .map_err(|error| Failure::setup(format!("the workload's standard streams: {error}")))?;
        let receive = receive(door, launcher, console.clone(), environment, events);
        tokio::pin!(receive);
        let code = tokio::select! {
            code = supervise::run(&mut running, self.patience()) => code,
            never = &mut receive => match never {},
            never = console.follow_size() => match never {},
        };
        let whole = tokio::select! {
            whole = console.part(hold) => whole,
            () = supervise::asked_to_end(&mut running) => false,
            never = &mut receive => match never {},
        };
        if !whole {
            events.find(
                Severity::Medium,
                "output-lost",
                "nobody has taken in the last of the workload's output; read what the container writes",
            );
        }
        Ok(code)
    }

    /// Tells what the policy grants and the workload will not have: paths that are not there, and a working directory that its
    /// user may not write.
    pub fn doubt(&self, policy: &Policy, who: &WorkloadWrites, events: &Events) {
        for doubt in policy.doubts() {
            events.find(Severity::Low, "policy-doubt", doubt);
        }
        for path in policy.absent_paths() {
            let path = path.display();
            let what = format!(
                "filesystem_policy grants {path}, which is not there, so it stays closed: make it before the start"
            );
            events.find(Severity::Low, "path-absent", what);
        }
        let granted = |workdir: &&PathBuf| policy.filesystem.with_baseline(Some(workdir)).read_write.contains(workdir);
        if let Some(workdir) = self.workdir.as_ref().filter(granted)
            && !who.makes_files_in(workdir)
        {
            events.find(
                Severity::Low,
                "workdir-not-writable",
                format!(
                    "the working directory {} is granted for writing, and its owner and mode keep the workload's user ({}:{}) \
                     from it: start the supervisor as the directory's owner, let that user write there, or name another by \
                     process.run_as_user in the policy",
                    workdir.display(),
                    who.uid,
                    who.gid
                ),
            );
        }
    }

    /// A launch that failed; where the program was not found, with where it is outside.
    pub fn refused(&self, mut error: LaunchError, policy: &Policy) -> Failure {
        if error.code == exit::NOT_FOUND
            && let Some(program) = self.command.argv.first()
            && let Some(advice) = outside::advice(program, self.workdir.as_deref(), &policy.filesystem)
        {
            error.message = format!("{}; {advice}", error.message);
        }
        error.into()
    }

    /// Where the workload starts: the working directory, unless it was not asked for by name and is not to be seen.
    fn start_directory(&self, grants: &Grants, private_tmp: bool) -> PathBuf {
        // Of what lies in the machine's /tmp, a workload with one of its own sees what is granted by its name.
        let hides =
            |grant: &Path, path: &Path| private_tmp && path.starts_with(TMP) && Path::new(TMP).starts_with(grant);
        let granted = |path: &&PathBuf| {
            let mut grants = grants.read_only.iter().chain(&grants.read_write);
            grants.any(|grant| path.starts_with(grant) && (!hides(grant, path) || path.as_path() == Path::new(TMP)))
        };
        let named = self.options.workdir.is_some();
        self.workdir.as_ref().filter(|path| named || granted(path)).cloned().unwrap_or_else(|| PathBuf::from("/"))
    }

    fn grace(&self) -> Duration {
        Duration::from_secs_f64(self.options.grace)
    }

    /// How patient to be with it.
    fn patience(&self) -> supervise::Options {
        supervise::Options {
            timeout: (self.options.timeout > 0.0).then(|| Duration::from_secs_f64(self.options.timeout)),
            grace: self.grace(),
        }
    }

    /// Records that it runs, and what of its confinement is not in force.
    pub fn record_start(&self, running: &Running, events: &Events) {
        report_landlock(&running.landlock, events);
        for note in &running.notes {
            events.find(Severity::Informational, "launch-note", note.clone());
        }
        events.emit(self.step(ProcessStep::Launched, Some(running.pid)));
    }

    /// Records how it ended.
    pub fn record_end(&self, code: u8, events: &Events) {
        events.emit(self.step(ProcessStep::Exited(code), None));
    }

    fn step(&self, activity: ProcessStep, pid: Option<u32>) -> Event {
        let command = self.command.argv.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        Event::Process(ProcessActivity { activity, command, pid })
    }
}

/// Whoever could put another socket at the door's place would receive those who mean the sandbox, and speak to their
/// terminals and into their files.
fn refuse_replaceable(place: &Place, who: &WorkloadWrites) -> Result<(), Failure> {
    let Place::Path(path) = place else { return Ok(()) };
    refuse_writable(&[path], who).map_err(|error| {
        let why = match error {
            Writable::ByWorkload { culprit, act, uid, .. } => {
                format!("the workload (uid {uid}) could put its own in its place: {}{act}", culprit.display())
            }
            Writable::Unknown { at, source, .. } => {
                format!(
                    "whether the workload could put its own in its place cannot be told: {}: {source}",
                    at.display()
                )
            }
        };
        Failure::setup(format!(
            "--ssh-socket-path {place}: {why}; name a place in a directory that the policy does not let the workload \
             write, or @NAME"
        ))
    })
}

/// Serves those who come in by the door, until the future is dropped. Says why where it cannot.
async fn receive(
    door: Door,
    launcher: Launcher,
    console: Arc<Console>,
    environment: Recipe,
    events: &Events,
) -> Infallible {
    let shell = std::env::var_os("SHELL");
    let shells = access::shells(environment.identity.shell.as_deref(), shell.as_deref());
    let inside = Inside { launcher, console, environment, shells, workdir: None, events: events.clone() };
    if let Err(error) = access::serve(door, inside).await {
        events.find(Severity::High, "no-access", format!("nobody can be let in by SSH: {error}"));
    }
    std::future::pending().await
}

/// Who the workload is: the driver's numbers, the policy's names, or what is left.
pub fn identify(policy: &ProcessIdentity, events: &Events) -> Result<Identity, Failure> {
    let (uid, gid) = (variable(env::SANDBOX_UID), variable(env::SANDBOX_GID));
    let sources = identity::Sources { policy: policy.clone(), uid: uid.as_deref(), gid: gid.as_deref() };
    let identity = Identity::resolve(&sources).map_err(Failure::setup)?;
    for note in &identity.notes {
        events.find(Severity::Informational, "identity-note", note.clone());
    }
    Ok(identity)
}

/// A variable of the environment; one that holds nothing is not set.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// A working directory that was asked for by name must be there.
pub fn existing(directory: &Path) -> Result<PathBuf, Failure> {
    match std::fs::canonicalize(directory) {
        Ok(path) if path.is_dir() => Ok(path),
        Ok(path) => Err(Failure::setup(format!("--workdir {}: it is no directory; name one", path.display()))),
        Err(error) => Err(Failure::setup(format!(
            "--workdir {}: {error}; make the directory, or name another",
            directory.display()
        ))),
    }
}

/// What is not in force is said, loudly.
fn report_landlock(enforced: &landlock::Enforced, events: &Events) {
    let severity = match enforced.status {
        landlock::Status::Fully => return,
        landlock::Status::Partially => Severity::Medium,
        landlock::Status::Not => Severity::High,
    };
    let reason = enforced.reason.clone().unwrap_or_else(|| "the kernel did not say why".into());
    events.find(severity, "landlock-not-enforced", format!("the policy's paths are not wholly enforced: {reason}"));
}

impl From<LaunchError> for Failure {
    fn from(error: LaunchError) -> Self {
        Self::with(error.code, error.message)
    }
}

impl From<CommandError> for Failure {
    /// Nothing to run is "not found", a specification that cannot be read is set-up.
    fn from(error: CommandError) -> Self {
        let code = match error {
            CommandError::Missing => exit::NOT_FOUND,
            _ => exit::SETUP,
        };
        Self::with(code, error.to_string())
    }
}
