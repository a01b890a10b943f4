//! A program that somebody starts beside the workload: forked by the sandbox's init, confined by the same steps and
//! orders, with other streams, words and environment. What people reach by SSH is a guest.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, pipe2};
use serde::{Deserialize, Serialize};

use super::Orders;
use super::child::{Confinement, Note, Start, become_own, become_workload};
use super::control::{Descriptors, Ending, Failure, GuestStep};
use super::standard::{Shape, Standard, Streams};
use super::terminal::Plan;
use crate::confine::seccomp::Filter;
use crate::contract::exit;
use crate::sys::process::{self, Side};

/// Largest task: as the orders, of which it is a part ([`super::sealed`]).
const TASK_LIMIT: u64 = 16 << 20;

/// Most guests at a time. Each costs the sandbox's init a descriptor or two while it starts, and the supervisor three.
pub const GUESTS_LIMIT: usize = 512;

/// What this executable does itself in the place of a guest's program, in a process of its own that is confined alike: it
/// takes the words, the environment, and a pipe on which it reports to the supervisor what it does, and returns the exit
/// code. The sandbox's file system need not have the executable.
pub type Own = fn(&[CString], &[CString], OwnedFd) -> u8;

/// What a guest runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Program {
    /// Programs with their arguments, none empty, to be tried in this order: the first that can be executed is it.
    Image(Vec<Vec<CString>>),
    /// [`Own`], with these words.
    Own(Vec<CString>),
}

/// What to start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// What.
    pub program: Program,
    /// The whole environment, from [`super::environment::Environment::build`].
    pub environment: Vec<CString>,
    /// Directory to start in; the workload's where there is none.
    pub workdir: Option<PathBuf>,
    /// A terminal to make for it, for all three standard streams.
    pub terminal: Option<Shape>,
}

impl Task {
    /// The task in memory that can no longer be changed, to be sent to the init.
    ///
    /// # Errors
    /// What memfd_create(2) answered; a task that exceeds what may travel.
    pub fn seal(&self) -> io::Result<OwnedFd> {
        let bytes = serde_json::to_vec(self)?;
        if bytes.len() as u64 > TASK_LIMIT {
            return Err(io::Error::other(format!("arguments and environment exceed {TASK_LIMIT} bytes")));
        }
        let mut file = File::from(memfd_create(c"task", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        file.write_all(&bytes)?;
        file.rewind()?;
        let seals = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(file.into())
    }

    fn read(from: OwnedFd) -> io::Result<Self> {
        let file = File::from(from);
        let length = file.metadata()?.len().min(TASK_LIMIT);
        let mut bytes = Vec::with_capacity(length as usize);
        file.take(length).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    }
}

/// A guest, as the init has it.
#[derive(Debug)]
struct Guest {
    id: u64,
    pid: Pid,
    /// Open until it has been executed, or failed to.
    notes: Option<OwnedFd>,
    said: Vec<u8>,
    /// The other ends of its streams, until the supervisor is given them.
    ours: Vec<OwnedFd>,
    /// Whether the supervisor knows it as started.
    started: bool,
    ended: Option<Ending>,
}

/// Something for the supervisor to hear, with the descriptors that go along.
pub(super) type Told = (u64, GuestStep, Vec<OwnedFd>);

/// All guests of an init.
#[derive(Debug)]
pub(super) struct Guests {
    /// What confines them; `None` where the sandbox takes none.
    orders: Option<Orders>,
    filter: Filter,
    own: Own,
    all: Vec<Guest>,
}

impl Guests {
    /// `enclosed` says whether the init, and with it they all, are in a domain that signals do not leave.
    pub(super) fn new(mut orders: Orders, filter: Filter, own: Own, enclosed: bool) -> Self {
        orders.grants.signals_enclosed = enclosed;
        // The certificates have been put where they belong.
        let orders = orders.guests.then_some(Orders { isolation: None, ..orders });
        Self { orders, filter, own, all: Vec::new() }
    }

    pub(super) fn are_taken(&self) -> bool {
        self.orders.is_some()
    }

    /// Forks one. Comes back in the init alone.
    pub(super) fn launch(&mut self, id: u64, descriptors: Descriptors) -> Result<(), Failure> {
        let setup = |what: &'static str| move |error: io::Error| Failure::setup(format!("{what}: {error}"));
        let orders = self.orders.as_ref().ok_or_else(|| Failure::setup("this sandbox takes no more programs"))?;
        if self.all.len() >= GUESTS_LIMIT {
            return Err(Failure::setup(format!(
                "{GUESTS_LIMIT} programs have been started beside the workload, and run; end one"
            )));
        }
        let mut descriptors = descriptors.map_err(Failure::setup)?.into_iter();
        let task = descriptors.next().ok_or_else(|| Failure::setup("a task came without its descriptor"))?;
        let task = Task::read(task).map_err(setup("the task"))?;
        let standard = task.terminal.clone().map_or(Standard::Pipes { joined: false }, Standard::Terminal);
        let mut streams =
            standard.make(&orders.identity)?.ok_or_else(|| Failure::setup("a guest inherits no streams"))?;
        let pipe = || pipe2(OFlag::O_CLOEXEC).map_err(|error| Failure::setup(format!("pipe: {error}")));
        let (notes, writer) = pipe()?;
        let (reported, report) = match &task.program {
            Program::Own(_) => Some(pipe()?),
            Program::Image(_) => None,
        }
        .unzip();
        let pid = match process::fork().map_err(setup("fork"))? {
            Side::Child => {
                let confinement = Confinement { orders, filter: &self.filter };
                process::exit_now(run(confinement, &task, &streams, writer, report, self.own))
            }
            Side::Parent(pid) => pid,
        };
        let mut ours = std::mem::take(&mut streams.ours);
        ours.extend(reported);
        self.all.push(Guest { id, pid, notes: Some(notes), said: Vec::new(), ours, started: false, ended: None });
        Ok(())
    }

    /// Pipes to wait for; [`Guests::listen`] takes their indices.
    pub(super) fn notes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().filter_map(|guest| guest.notes.as_ref()).map(AsFd::as_fd)
    }

    /// Reads from the pipes at `ready`, which count as [`Guests::notes`] gave them.
    pub(super) fn listen(&mut self, ready: &[bool], note_limit: usize) {
        let waiting = self.all.iter_mut().filter(|guest| guest.notes.is_some());
        for guest in waiting.zip(ready).filter_map(|(guest, &ready)| ready.then_some(guest)) {
            guest.notes = guest.notes.take().and_then(|notes| Note::read_on(notes, &mut guest.said, note_limit));
        }
    }

    /// Notes the end of a child, if it is a guest.
    pub(super) fn ended(&mut self, pid: Pid, ending: Ending) {
        if let Some(guest) = self.all.iter_mut().find(|guest| guest.pid == pid && guest.ended.is_none()) {
            guest.ended = Some(ending);
        }
    }

    /// What the supervisor has not heard yet. Guests that are over are forgotten with it.
    pub(super) fn news(&mut self) -> Vec<Told> {
        let mut told = Vec::new();
        self.all.retain_mut(|guest| {
            if guest.notes.is_some() {
                return true;
            }
            if !guest.started {
                guest.started = true;
                if let Err(failure) = Note::verdict(&guest.said) {
                    told.push((guest.id, GuestStep::Failed(failure), Vec::new()));
                    // It ends by itself, and is reaped as any orphan is.
                    return false;
                }
                guest.said = Vec::new();
                told.push((guest.id, GuestStep::Started { pid: guest.pid.as_raw() }, std::mem::take(&mut guest.ours)));
            }
            if let Some(ending) = guest.ended {
                told.push((guest.id, GuestStep::Ended(ending), Vec::new()));
            }
            guest.ended.is_none()
        });
        told
    }

    /// To a guest's process group; to the guest alone once it has left that group.
    pub(super) fn signal(&self, id: u64, number: i32) {
        let Ok(signal) = Signal::try_from(number) else { return };
        let Some(guest) = self.all.iter().find(|guest| guest.id == id && guest.ended.is_none()) else { return };
        if kill(Pid::from_raw(-guest.pid.as_raw()), signal) == Err(Errno::ESRCH) {
            let _ = kill(guest.pid, signal);
        }
    }
}

/// In the child. The exit code is read by nobody: the note in `writer` is.
fn run(
    confinement: Confinement<'_>,
    task: &Task,
    streams: &Streams,
    writer: OwnedFd,
    report: Option<OwnedFd>,
    own: Own,
) -> u8 {
    let mut writer = File::from(writer);
    if let Err(failure) = streams.take_on() {
        let code = failure.code;
        Note::Failed(failure).tell(&mut writer);
        return code;
    }
    let plan = if task.terminal.is_some() { Plan::Owner } else { Plan::Detached };
    let environment = task.environment.as_slice();
    // Nothing is copied between fork and exec: each page that is written to is copied first.
    let workdir = task.workdir.as_deref().or(confinement.orders.workdir.as_deref());
    match (&task.program, report) {
        (Program::Image(commands), _) => {
            become_workload(confinement, Start { commands, environment, workdir }, plan, writer).code
        }
        (Program::Own(words), Some(report)) => {
            become_own(confinement, workdir, plan, writer, report, |report| own(words, environment, report))
                .unwrap_or_else(|failure| failure.code)
        }
        // It is made where there is such a program.
        (Program::Own(_), None) => exit::SETUP,
    }
}
