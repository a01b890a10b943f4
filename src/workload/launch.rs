//! The supervisor's side of starting the workload.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawn};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::Orders;
use super::control::{CONTROL_FD, Descriptors, Ending, Failure, Layout, Report, Request, receive, send};
use super::descendants;
use super::launcher::{Desk, Launcher};
use super::sealed::Sealed;
use super::stdio;
use super::supervise::Signals;
use super::terminal::{Lent, Plan};
use crate::confine::landlock::Enforced;
use crate::contract::exit;
use crate::netns::{Handover, Namespaces};
use crate::sys::process;
use crate::sys::reactor::watch;

/// The hidden role's name, its only argument.
pub const ROLE: &CStr = c"launch";

/// Descriptor of the orders in the launched process.
pub const ORDERS_FD: RawFd = 4;

/// Descriptors that are duplicated onto 3 and 4 must lie above both.
const SPARE_FD: RawFd = 5;

/// Why there is no workload.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct LaunchError {
    /// Exit code: 125 the set-up failed, 126 not executable, 127 not found.
    pub code: u8,
    /// Cause and remedy.
    pub message: String,
    /// Whether it is the private /proc alone that cannot be had, as under a container runtime that masks parts of its
    /// own: without a PID namespace it would work.
    pub private_proc: bool,
}

impl LaunchError {
    fn setup(what: &str, error: impl std::fmt::Display) -> Self {
        Self { code: exit::SETUP, message: format!("{what}: {error}"), private_proc: false }
    }
}

impl From<Failure> for LaunchError {
    fn from(failure: Failure) -> Self {
        Self { code: failure.code, message: failure.message, private_proc: failure.private_proc }
    }
}

/// How the workload ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// How; the init's own end where the workload's was never heard of.
    pub ending: Ending,
}

/// Something that happened to a running workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    /// A signal stopped it.
    Stopped,
    /// It ended, and nothing of it is left.
    Ended(Outcome),
}

/// A sandbox that is set up and waits for its supervisor to serve. Dropping it ends it.
#[derive(Debug)]
pub struct Prepared {
    /// What was opened inside, to be taken; `None` without isolation.
    pub handover: Option<Handover>,
    /// The directory `/proc` of the workload's PID namespace, to be taken, where it has one of its own.
    pub processes: Option<OwnedFd>,
    /// Pid of the sandbox's init, as the supervisor sees it.
    pub init: u32,
    line: Line,
    init_end: Child,
    signals: Signals,
    lent: Option<Lent>,
}

/// A workload that runs. Dropping it kills the workload and all that it started, at once.
#[derive(Debug)]
pub struct Running {
    /// Pid of the workload, as the sandbox sees it.
    pub pid: u32,
    /// What Landlock enforces on it.
    pub landlock: Enforced,
    /// What an operator should know, as sentences.
    pub notes: Vec<String>,
    /// The other ends of its standard streams, to be taken, where they were made for it: the master side of a terminal, or
    /// those of pipes, as [`super::launcher::Guest`] has them.
    pub streams: Vec<OwnedFd>,
    pub(super) workload: Workload,
    pub(super) signals: Signals,
    pub(super) lent: Option<Lent>,
}

/// The end of what went with its sandbox.
pub(super) const KILLED: Ending = Ending::Signal(Signal::SIGKILL as i32);

/// The workload, as the supervisor's end of the control socket knows it.
#[derive(Debug)]
pub(super) struct Workload {
    line: Arc<Line>,
    desk: Arc<Desk>,
    init_end: Child,
    ending: Option<Ending>,
}

/// The launched process, as long as it waits for its orders. Dropping it ends it.
#[derive(Debug)]
pub struct Begun {
    pid: Pid,
    pidfd: OwnedFd,
    /// Our end of the control socket.
    socket: OwnedFd,
    /// Where the orders will be.
    orders: File,
}

/// Starts the process that will set the sandbox up, in `namespaces` of its own if there are to be some. To execute, to
/// relocate itself and to make those takes some milliseconds and needs no orders, so whoever has other things to do first
/// begins with this.
///
/// Must be called on a thread that lives as long as the supervisor, in practice the main one: the kernel ends the sandbox
/// when the *thread* that started it ends (`PR_SET_PDEATHSIG`, prctl(2)).
///
/// # Errors
/// [`LaunchError`]: no process or descriptor can be had.
pub fn begin(namespaces: Option<Namespaces>) -> Result<Begun, LaunchError> {
    stdio::check().map_err(|error| LaunchError::setup("standard streams", error))?;
    let begun = spawn().map_err(|error| LaunchError::setup("starting the sandbox", error))?;
    if let Some(namespaces) = namespaces {
        // Who is gone already has said why, and is heard when the orders are there.
        let _ = send(begun.socket.as_fd(), &Request::Separate(namespaces), &[]);
    }
    Ok(begun)
}

/// [`begin`] and [`Begun::prepare`] in one, under the conditions of both.
///
/// # Errors
/// Those of both.
pub async fn prepare(orders: Orders) -> Result<Prepared, LaunchError> {
    begin(orders.isolation.as_ref().map(|isolation| isolation.namespaces))?.prepare(orders).await
}

impl Begun {
    /// Sets the sandbox up as far as it goes without the workload: view, init, hand-over. From here on the signals
    /// that are forwarded no longer end the supervisor, and none is lost: the one that comes before the workload runs
    /// reaches it later.
    ///
    /// # Errors
    /// [`LaunchError`], with what the launched side said about it.
    pub async fn prepare(self, orders: Orders) -> Result<Prepared, LaunchError> {
        set_up(self, orders).await
    }
}

async fn set_up(begun: Begun, mut orders: Orders) -> Result<Prepared, LaunchError> {
    if orders.workdir.is_none() {
        orders.workdir = Some(std::env::current_dir().map_err(|error| {
            LaunchError::setup("current directory", format!("{error}; change to one that exists, or use --workdir"))
        })?);
    }
    let signals = Signals::catch().map_err(|error| LaunchError::setup("signal handlers", error))?;
    let plan = orders.standard.plan(Plan::here());
    let lent = Lent::of(plan);
    let own_processes = orders.isolation.as_ref().is_some_and(|isolation| isolation.namespaces.pid);
    let Begun { pid, pidfd, socket, orders: file } = begun;
    let joined = || Ok::<_, io::Error>((Line { socket: watch(socket)? }, Child::new(pid, pidfd)?));
    let (line, launched) = seal(file, &Sealed { orders, plan })
        .and_then(|()| joined())
        .map_err(|error| LaunchError::setup("starting the sandbox", error))?;
    let mut launched = Some(launched);
    // Who is gone already has said why.
    let _ = line.send(&Request::SetUp).await;
    // Without a PID namespace the launched process becomes the init itself. With one it forks the init as its sibling
    // and ends, and either may speak first.
    let mut init_end = if own_processes { None } else { launched.take() };
    let mut offer = None;
    let ((layout, has_processes, descriptors), init_end) = loop {
        match (offer.take(), init_end.take()) {
            (Some(offer), Some(init_end)) => break (offer, init_end),
            (had_offer, had_init) => (offer, init_end) = (had_offer, had_init),
        }
        match line.receive::<Report>().await {
            Ok(Some((Report::Forked { pid }, Ok(mut descriptors)))) if launched.is_some() => {
                init_end = descriptors.pop().and_then(|pidfd| Child::new(Pid::from_raw(pid), pidfd).ok());
                match (&init_end, launched.take()) {
                    // It has nothing left to do but to end, which is not waited for: to give back as much memory as
                    // this process has takes a while.
                    (Some(_), Some(launched)) => drop(tokio::spawn(launched.end())),
                    _ => return Err(LaunchError::setup("starting the sandbox", "its init came without a pidfd")),
                }
            }
            Ok(Some((Report::Prepared { handover, processes }, Ok(descriptors)))) => {
                offer = Some((handover, processes, descriptors));
            }
            other => return Err(unexpected(other, launched.or(init_end)).await),
        }
    };
    let (handover, processes) = unpack(layout, has_processes, descriptors)
        .ok_or_else(|| LaunchError::setup("the sandbox's init", "descriptors are missing from its hand-over"))?;
    Ok(Prepared { handover, processes, init: init_end.pid.as_raw().unsigned_abs(), line, init_end, signals, lent })
}

fn unpack(
    layout: Option<Layout>,
    has_processes: bool,
    descriptors: Vec<OwnedFd>,
) -> Option<(Option<Handover>, Option<OwnedFd>)> {
    let mut descriptors = descriptors.into_iter();
    let handover = match layout {
        None => None,
        Some(Layout { listeners, packets, notes }) => Some(Handover {
            listeners: (0..listeners).map(|_| descriptors.next()).collect::<Option<_>>()?,
            diagnosis: descriptors.next()?,
            packets: if packets { Some(descriptors.next()?) } else { None },
            notes,
        }),
    };
    let processes = if has_processes { Some(descriptors.next()?) } else { None };
    Some((handover, processes))
}

/// What to say when the launched side did not do its part. It is gone or about to be.
async fn unexpected(heard: io::Result<Option<(Report, Descriptors)>>, child: Option<Child>) -> LaunchError {
    let error = match heard {
        Ok(Some((Report::Failed(failure), _))) => failure.into(),
        // Its init does not know, and ends as it sees the other end of its socket close.
        Ok(Some((_, Err(lost)))) => return LaunchError::setup("starting the sandbox", lost),
        Ok(Some(_)) => LaunchError::setup("starting the sandbox", "its init spoke out of turn"),
        Ok(None) => {
            let end = match child {
                Some(child) => child.end().await.ok(),
                None => None,
            };
            let end = match end {
                Some(Ending::Code(code)) => format!("with exit code {code}"),
                Some(Ending::Signal(signal)) => format!("by signal {signal}"),
                None => "for a reason unknown".to_owned(),
            };
            return LaunchError::setup("starting the sandbox", format!("its process ended {end} without a word"));
        }
        Err(error) => LaunchError::setup("starting the sandbox", error),
    };
    // It has said its last word; the zombie is collected so that a long-lived caller has none.
    if let Some(child) = child {
        let _ = child.end().await;
    }
    error
}

impl Prepared {
    /// Starts the workload. The supervisor must be serving what it took from the hand-over.
    ///
    /// # Errors
    /// [`LaunchError`], 126 and 127 among them.
    pub async fn go(self) -> Result<Running, LaunchError> {
        let Self { line, init_end, signals, lent, .. } = self;
        line.send(&Request::Go).await.map_err(|error| LaunchError::setup("the sandbox's init", error))?;
        match line.receive::<Report>().await {
            Ok(Some((Report::Started { pid, landlock, notes }, Ok(streams)))) => {
                let workload = Workload { line: Arc::new(line), desk: Arc::default(), init_end, ending: None };
                Ok(Running { pid: pid.unsigned_abs(), landlock, notes, streams, workload, signals, lent })
            }
            other => {
                let error = unexpected(other, Some(init_end)).await;
                if let Some(lent) = lent {
                    lent.take_back();
                }
                Err(error)
            }
        }
    }
}

impl Running {
    /// What starts programs beside the workload, where the orders said that there will be some. It is served for as long
    /// as [`Running::wait`] or the supervisor's loop is polled.
    #[must_use]
    pub fn launcher(&self) -> Launcher {
        Launcher::new(self.workload.line.clone(), self.workload.desk.clone())
    }

    /// Signals the workload's process group. A workload that has ended is no error.
    ///
    /// # Errors
    /// What the control socket answered.
    pub async fn signal(&self, signal: Signal) -> io::Result<()> {
        self.workload.signal(signal).await
    }

    /// Waits until the workload has ended and nothing of it is left.
    pub async fn wait(&mut self) -> Outcome {
        loop {
            if let Happening::Ended(outcome) = self.workload.next().await {
                return outcome;
            }
        }
    }
}

impl Workload {
    pub(super) fn init(&self) -> Pid {
        self.init_end.pid
    }

    pub(super) async fn signal(&self, signal: Signal) -> io::Result<()> {
        if self.ending.is_some() {
            return Ok(());
        }
        match self.line.send(&Request::Signal(signal as i32)).await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => other,
        }
    }

    /// Gives the workload the terminal's foreground.
    pub(super) async fn foreground(&self) -> io::Result<()> {
        self.line.send(&Request::Foreground).await
    }

    /// The next thing that happens. May be cancelled; nothing is lost.
    pub(super) async fn next(&mut self) -> Happening {
        loop {
            // The init outlives the workload until nothing is left, and tells of the guests until then.
            let heard = tokio::select! {
                biased;
                heard = self.line.receive::<Report>() => heard,
                _ = self.init_end.wait(), if self.ending.is_some() => break,
            };
            match heard {
                Ok(Some((Report::Stopped, _))) => return Happening::Stopped,
                Ok(Some((Report::Exited(ending), _))) => {
                    self.ending = Some(ending);
                    self.desk.announce_end(ending);
                }
                Ok(Some((report, descriptors))) => self.desk.hear(report, descriptors),
                // The init is gone, perhaps before it could say how the workload ended: killed itself, with all it kept.
                Ok(None) | Err(_) => break,
            }
        }
        self.desk.close();
        let init = self.init_end.wait().await;
        if let Ok(Ending::Signal(_)) = init {
            // It has seen to nothing: with a PID namespace the kernel has, otherwise what the workload had put aside runs on.
            descendants::end_adopted().await;
        }
        let ending = self.ending.or(init.ok()).unwrap_or(KILLED);
        self.ending = Some(ending);
        self.desk.announce_end(ending);
        Happening::Ended(Outcome { ending })
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        self.desk.announce_end(KILLED);
        self.desk.close();
    }
}

/// The control socket, asynchronous.
#[derive(Debug)]
pub(super) struct Line {
    socket: AsyncFd<OwnedFd>,
}

impl Line {
    async fn send(&self, request: &Request) -> io::Result<()> {
        self.send_with(request, &[]).await
    }

    pub(super) async fn send_with(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.socket.async_io(Interest::WRITABLE, |socket| send(socket.as_fd(), request, descriptors)).await
    }

    async fn receive<M: DeserializeOwned>(&self) -> io::Result<Option<(M, Descriptors)>> {
        self.socket.async_io(Interest::READABLE, |socket| receive(socket.as_fd())).await
    }
}

/// A child of ours by its pidfd, which is readable once it has ended (pidfd_open(2)).
#[derive(Debug)]
struct Child {
    pid: Pid,
    pidfd: AsyncFd<OwnedFd>,
    ended: Option<Ending>,
}

impl Child {
    fn new(pid: Pid, pidfd: OwnedFd) -> io::Result<Self> {
        Ok(Self { pid, pidfd: watch(pidfd)?, ended: None })
    }

    async fn end(mut self) -> io::Result<Ending> {
        self.wait().await
    }

    async fn wait(&mut self) -> io::Result<Ending> {
        if let Some(ended) = self.ended {
            return Ok(ended);
        }
        let ended = self.pidfd.async_io(Interest::READABLE, reap).await?;
        self.ended = Some(ended);
        Ok(ended)
    }
}

fn reap(pidfd: &OwnedFd) -> io::Result<Ending> {
    match waitid(Id::PIDFd(pidfd.as_fd()), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG)? {
        WaitStatus::Exited(_, code) => Ok(Ending::Code(code as u8)),
        WaitStatus::Signaled(_, signal, _) => Ok(Ending::Signal(signal as i32)),
        _ => Err(io::ErrorKind::WouldBlock.into()),
    }
}

fn spawn() -> io::Result<Begun> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    set_nonblocking(ours.as_fd())?;
    let orders = memfd_create(c"orders", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let (theirs, inherited) = (above_protocol(theirs.as_fd())?, above_protocol(orders.as_fd())?);
    let mut actions = PosixSpawnFileActions::init()?;
    actions.add_dup2(theirs.as_raw_fd(), CONTROL_FD)?;
    actions.add_dup2(inherited.as_raw_fd(), ORDERS_FD)?;
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(PosixSpawnFlags::POSIX_SPAWN_SETSIGMASK | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF)?;
    // Nothing from the terminal or a careless `kill` disturbs the set-up; the workload gets its signals back.
    attributes.set_sigmask(&SigSet::all())?;
    attributes.set_sigdefault(&SigSet::all())?;
    // Before any change of namespace /proc may be mounted from anywhere, but this process it always names rightly.
    let name = CString::new("openshell-supervisor").unwrap_or_default();
    let arguments = [name.as_c_str(), ROLE];
    let environment: [&CStr; 0] = [];
    let pid = posix_spawn("/proc/self/exe", &actions, &attributes, &arguments, &environment)?;
    Ok(Begun { pid, pidfd: process::pidfd_open(pid)?, socket: ours, orders: File::from(orders) })
}

/// Writes the orders, which nobody can change any more then (memfd_create(2)).
fn seal(mut file: File, sealed: &Sealed) -> io::Result<()> {
    sealed.write(&mut file)?;
    let seals = SealFlag::F_SEAL_SEAL | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_WRITE;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(())
}

fn above_protocol(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let number = fcntl(fd, FcntlArg::F_DUPFD_CLOEXEC(SPARE_FD))?;
    process::adopt(number)
}

fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_truncate(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}
