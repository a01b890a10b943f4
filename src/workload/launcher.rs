//! The supervisor's side of starting programs beside the workload: what the access server asks of the sandbox's init.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::signal::Signal;
use tokio::net::TcpSocket;
use tokio::sync::{oneshot, watch};

use super::control::{Descriptors, Ending, Failure, GuestStep, Report, Request};
use super::guest::{GUESTS_LIMIT, Task};
use super::launch::{KILLED, LaunchError, Line};

/// Of the descriptors that this process may have, guests take this part at most: the rest is for the proxy, for the door, and
/// for what is forwarded.
const SHARE_OF_DESCRIPTORS: u64 = 2;

/// What a guest costs of them: its three streams, and the connection that it is served on. What some report has room in
/// the other half.
const GUEST_DESCRIPTORS: u64 = 4;

/// Starts guests, and makes sockets in the workload's network. Cheap to clone; outlives the sandbox, and then says so.
#[derive(Clone, Debug)]
pub struct Launcher {
    line: Arc<Line>,
    desk: Arc<Desk>,
}

/// Who waits for what of the init.
#[derive(Debug, Default)]
pub(super) struct Desk {
    next: AtomicU64,
    waiting: Mutex<Waiting>,
    /// How the workload has ended, and with it ends the sandbox.
    ending: watch::Sender<Option<Ending>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// The sandbox is over, and nothing will be answered any more.
    closed: bool,
    starts: HashMap<u64, oneshot::Sender<Result<Started, Failure>>>,
    ends: HashMap<u64, oneshot::Sender<Ending>>,
    sockets: HashMap<u64, oneshot::Sender<io::Result<OwnedFd>>>,
}

impl Waiting {
    /// Enters one more guest, if there may be one.
    fn start(&mut self, id: u64, answer: oneshot::Sender<Result<Started, Failure>>) -> Result<(), Failure> {
        let most = guests_limit();
        if self.starts.len() + self.ends.len() >= most {
            return Err(Failure::setup(format!(
                "{most} programs have been started beside the workload, and run; end one, or, up to {GUESTS_LIMIT}, raise \
                 the supervisor's limit of open files (RLIMIT_NOFILE)"
            )));
        }
        self.starts.insert(id, answer);
        Ok(())
    }
}

/// So many guests at a time; one in any case.
fn guests_limit() -> usize {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    let most = descriptors / SHARE_OF_DESCRIPTORS / GUEST_DESCRIPTORS;
    usize::try_from(most).unwrap_or(usize::MAX).clamp(1, GUESTS_LIMIT)
}

#[derive(Debug)]
struct Started {
    pid: u32,
    streams: Descriptors,
    ended: oneshot::Receiver<Ending>,
}

/// A program that runs beside the workload. Dropping it leaves it running: whoever wants its end signals it.
#[derive(Debug)]
pub struct Guest {
    /// Its pid, as the sandbox sees it.
    pub pid: u32,
    /// The other ends of its streams, to be taken: the master side of its terminal, or those of the pipes that are its
    /// standard input, output and error; of a [`super::guest::Own`] the last is what it reports.
    pub streams: Vec<OwnedFd>,
    ended: Option<oneshot::Receiver<Ending>>,
    ending: Option<Ending>,
    handle: GuestHandle,
}

/// What signals a guest.
#[derive(Clone, Debug)]
pub struct GuestHandle {
    id: u64,
    launcher: Launcher,
}

impl Launcher {
    pub(super) fn new(line: Arc<Line>, desk: Arc<Desk>) -> Self {
        Self { line, desk }
    }

    /// Starts `task`, and returns once it has been executed.
    ///
    /// # Errors
    /// [`LaunchError`], 126 and 127 among them; that the sandbox has ended.
    pub async fn launch(&self, task: &Task) -> Result<Guest, LaunchError> {
        let failed = |error: io::Error| LaunchError::from(Failure::setup(format!("starting a program: {error}")));
        let sealed = task.seal().map_err(failed)?;
        let id = self.desk.next.fetch_add(1, Ordering::Relaxed);
        let (answer, heard) = oneshot::channel();
        self.desk.open(|waiting| waiting.start(id, answer))?;
        if let Err(error) = self.line.send_with(&Request::Launch { id }, &[sealed.as_fd()]).await {
            self.desk.waiting().starts.remove(&id);
            return Err(failed(error));
        }
        let Started { pid, streams, ended } = heard.await.map_err(|_| over())??;
        let handle = GuestHandle { id, launcher: self.clone() };
        match streams {
            Ok(streams) => Ok(Guest { pid, streams, ended: Some(ended), ending: None, handle }),
            Err(lost) => {
                // Nobody could hear it or speak to it.
                handle.signal(Signal::SIGKILL).await;
                Err(failed(io::Error::other(lost)))
            }
        }
    }

    /// Waits until the workload has ended, and tells how. Guests have its grace then, and no more.
    pub async fn ending(&self) -> Ending {
        let mut heard = self.desk.ending.subscribe();
        // Its sender lives as long as `self`.
        heard.wait_for(Option::is_some).await.ok().and_then(|ending| *ending).unwrap_or(KILLED)
    }

    /// Signals the workload's process group. One that has ended is no error.
    pub async fn signal_workload(&self, signal: Signal) {
        let _ = self.line.send_with(&Request::Signal(signal as i32), &[]).await;
    }

    /// A TCP socket of the workload's network namespace, for an address of `towards`'s family.
    ///
    /// # Errors
    /// What socket(2) answered; that the sandbox has ended.
    pub async fn socket(&self, towards: SocketAddr) -> io::Result<TcpSocket> {
        let id = self.desk.next.fetch_add(1, Ordering::Relaxed);
        let (answer, heard) = oneshot::channel();
        let enter = |waiting: &mut Waiting| {
            waiting.sockets.insert(id, answer);
            Ok(())
        };
        self.desk.open(enter).map_err(io::Error::other)?;
        if let Err(error) = self.line.send_with(&Request::Socket { id, six: towards.is_ipv6() }, &[]).await {
            self.desk.waiting().sockets.remove(&id);
            return Err(error);
        }
        let socket = heard.await.map_err(|_| io::Error::other(over()))??;
        Ok(TcpSocket::from_std_stream(std::net::TcpStream::from(socket)))
    }
}

impl Guest {
    /// Waits for its end. May be cancelled; nothing is lost. A guest that ended with its sandbox counts as killed.
    pub async fn wait(&mut self) -> Ending {
        if let Some(ended) = &mut self.ended {
            self.ending = ended.await.ok();
            self.ended = None;
        }
        self.ending.unwrap_or(KILLED)
    }

    /// What signals it.
    #[must_use]
    pub fn handle(&self) -> GuestHandle {
        self.handle.clone()
    }
}

impl GuestHandle {
    /// Signals the guest's process group. One that has ended is no error, nor is a sandbox that has.
    pub async fn signal(&self, signal: Signal) {
        let _ = self.launcher.line.send_with(&Request::SignalGuest { id: self.id, signal: signal as i32 }, &[]).await;
    }
}

impl Desk {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, enter: impl FnOnce(&mut Waiting) -> Result<(), Failure>) -> Result<(), Failure> {
        let mut waiting = self.waiting();
        if waiting.closed { Err(over()) } else { enter(&mut waiting) }
    }

    /// Hands out what the init has said. Whoever asked may no longer be interested.
    pub(super) fn hear(&self, report: Report, descriptors: Descriptors) {
        let mut waiting = self.waiting();
        match report {
            Report::Guest { id, step: GuestStep::Started { pid } } => {
                let Some(answer) = waiting.starts.remove(&id) else { return };
                let (end, ended) = oneshot::channel();
                waiting.ends.insert(id, end);
                let _ = answer.send(Ok(Started { pid: pid.unsigned_abs(), streams: descriptors, ended }));
            }
            Report::Guest { id, step: GuestStep::Failed(failure) } => {
                let answer = waiting.starts.remove(&id);
                let _ = answer.map(|answer| answer.send(Err(failure)));
            }
            Report::Guest { id, step: GuestStep::Ended(ending) } => {
                let end = waiting.ends.remove(&id);
                let _ = end.map(|end| end.send(ending));
            }
            Report::Socket { id, error } => {
                let answer = waiting.sockets.remove(&id);
                let made = match (error, descriptors.map(|mut descriptors| descriptors.pop())) {
                    (Some(error), _) => Err(io::Error::from_raw_os_error(error)),
                    (None, Ok(Some(socket))) => Ok(socket),
                    (None, Ok(None)) => Err(io::Error::other("the init sent no socket")),
                    (None, Err(lost)) => Err(io::Error::other(lost)),
                };
                let _ = answer.map(|answer| answer.send(made));
            }
            _ => {}
        }
    }

    /// The workload has ended, so. What was said first counts.
    pub(super) fn announce_end(&self, how: Ending) {
        self.ending.send_if_modified(|ending| ending.is_none().then(|| *ending = Some(how)).is_some());
    }

    /// The sandbox is over: whoever waits is told.
    pub(super) fn close(&self) {
        *self.waiting() = Waiting { closed: true, ..Waiting::default() };
    }
}

fn over() -> Failure {
    Failure::setup("the sandbox has ended")
}
