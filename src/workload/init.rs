//! The sandbox's init: starts the workload and its guests, reaps whatever they leave behind, and lets nothing outlive
//! the workload.
//!
//! Single-threaded, one loop over a few descriptors: a signalfd for SIGCHLD, the control socket, and the pipes that
//! tell when a child has become the workload or a guest. In a PID namespace it is process 1 there, and nothing inside can
//! signal it; elsewhere it is the subreaper that orphans fall to (`PR_SET_CHILD_SUBREAPER`, prctl(2)).

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, pipe2, tcsetpgrp};

use super::Orders;
use super::child::{Confinement, Note, Start, become_workload};
use super::control::{Control, Descriptors, Ending, Failure, GuestStep, Layout, Report, Request};
use super::descendants::Descendants;
use super::guest::{Guests, Own};
use super::standard::Streams;
use super::terminal::Plan;
use crate::confine::capabilities::{self, Duties};
use crate::confine::landlock;
use crate::confine::seccomp::Filter;
use crate::netns::{self, Handover};
use crate::sys::memory;
use crate::sys::process::{self, End, Side};

/// Most that the child writes into its pipe: two notes of a few sentences.
const NOTE_LIMIT: usize = 64 << 10;

/// How long after the workload's start the init gives back what starting took: a short workload does not wait for it.
const SETTLED: Duration = Duration::from_secs(1);

/// How often orphans are looked for where they cannot all be signalled at once.
const SWEEP: Duration = Duration::from_millis(20);

/// Offers what was prepared to the supervisor, waits for its go, and is the sandbox's init until nothing is left. Guests that
/// ask for no program of the image are given to `own`.
///
/// # Errors
/// [`Failure`] before there is a workload; the caller reports it.
pub fn run(control: &Control, orders: Orders, plan: Plan, handover: Option<Handover>, own: Own) -> Result<(), Failure> {
    let own_processes = orders.isolation.as_ref().is_some_and(|isolation| isolation.namespaces.pid);
    let processes = if own_processes { Some(netns::mounts::private_proc().map_err(proc_refused)?) } else { None };
    offer(control, handover, processes).map_err(|error| Failure::setup(format!("control socket: {error}")))?;
    let filter = Filter::compile(orders.seccomp, orders.sockets).map_err(Failure::setup)?;
    match control.receive::<Request>() {
        Ok(Some((Request::Go, _))) => {}
        // The supervisor gave up or is gone, and waits for no report.
        Ok(_) | Err(_) => return Ok(()),
    }
    let signals = SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|error| Failure::setup(format!("signalfd: {error}")))?;
    let (notes, writer) = pipe2(OFlag::O_CLOEXEC).map_err(|error| Failure::setup(format!("pipe: {error}")))?;
    // People may signal the workload, and whom else they have started; the workload, which keeps to itself, not them.
    let enclosed = orders.guests && landlock::enclose_signals().map_err(Failure::setup)?;
    let streams = orders.standard.make(&orders.identity)?;
    let plan = orders.standard.plan(plan);
    let workload = match process::fork().map_err(|error| Failure::setup(format!("fork: {error}")))? {
        Side::Child => {
            drop(notes);
            let mut writer = File::from(writer);
            if let Some(Err(failure)) = streams.as_ref().map(Streams::take_on) {
                let code = failure.code;
                Note::Failed(failure).tell(&mut writer);
                process::exit_now(code);
            }
            let confinement = Confinement { orders: &orders, filter: &filter };
            let start = Start {
                commands: std::slice::from_ref(&orders.command),
                environment: &orders.environment,
                workdir: orders.workdir.as_deref(),
            };
            process::exit_now(become_workload(confinement, start, plan, writer).code)
        }
        Side::Parent(workload) => workload,
    };
    drop(writer);
    // The workload has its own, and the supervisor is to see their end.
    let ours = streams.map(|streams| streams.ours).unwrap_or_default();
    let grace = orders.grace;
    let guests = Guests::new(orders, filter, own, enclosed);
    let failed = |error: Failure| {
        let _ = kill(workload, Signal::SIGKILL);
        error
    };
    shed(if guests.are_taken() { Duties::Launch } else { Duties::Signal }).map_err(failed)?;
    let mut init = Init {
        control,
        signals,
        notes: Some(notes),
        said: Vec::new(),
        ours,
        workload,
        ended: None,
        guests,
        own_processes,
        settles: None,
    };
    init.tend();
    init.clear(grace);
    Ok(())
}

fn proc_refused(error: netns::Error) -> Failure {
    Failure { private_proc: matches!(error, netns::Error::ProcMasked(_)), ..Failure::setup(error) }
}

fn offer(control: &Control, handover: Option<Handover>, processes: Option<OwnedFd>) -> std::io::Result<()> {
    let mut descriptors: Vec<BorrowedFd<'_>> = Vec::new();
    let layout = handover.as_ref().map(|handover| {
        descriptors.extend(handover.listeners.iter().map(AsFd::as_fd));
        descriptors.push(handover.diagnosis.as_fd());
        descriptors.extend(handover.packets.as_ref().map(AsFd::as_fd));
        Layout {
            listeners: handover.listeners.len(),
            packets: handover.packets.is_some(),
            notes: handover.notes.clone(),
        }
    });
    descriptors.extend(processes.as_ref().map(AsFd::as_fd));
    control.send(&Report::Prepared { handover: layout, processes: processes.is_some() }, &descriptors)
}

/// What the init itself gives up once the child is on its way: standard streams, so that closing them is the
/// workload's to do; capabilities that its duties do not need; the means to gain any.
fn shed(duties: Duties) -> Result<(), Failure> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| Failure::setup(format!("/dev/null: {error}; the image must have one")))?;
    let streams = dup2_stdin(&null).and_then(|()| dup2_stdout(&null)).and_then(|()| dup2_stderr(&null));
    streams.map_err(|error| Failure::setup(format!("dup2: {error}")))?;
    chdir("/").map_err(|error| Failure::setup(format!("chdir /: {error}")))?;
    capabilities::keep_only_for(duties).map_err(Failure::setup)?;
    prctl::set_no_new_privs().map_err(|error| Failure::setup(format!("no_new_privs: {error}")))
}

struct Init<'c> {
    control: &'c Control,
    signals: SignalFd,
    /// Open until the child has become the workload, or failed to.
    notes: Option<OwnedFd>,
    said: Vec<u8>,
    /// The other ends of the workload's streams, until the supervisor is given them.
    ours: Vec<OwnedFd>,
    workload: Pid,
    ended: Option<Ending>,
    guests: Guests,
    own_processes: bool,
    /// When memory is to be given back, once the workload runs.
    settles: Option<Instant>,
}

/// What the supervisor said while the init waited.
enum Heard {
    Nothing,
    Request(Request, Descriptors),
    Gone,
}

impl Init<'_> {
    /// Until the workload has ended, or must.
    fn tend(&mut self) {
        loop {
            let timeout = self.settle();
            let heard = self.wait(timeout);
            self.reap();
            self.tell_of_guests();
            if self.notes.is_none()
                && let Some(ending) = self.ended
            {
                self.report(&Report::Exited(ending));
                return;
            }
            match heard {
                Heard::Nothing => {}
                Heard::Request(request, descriptors) => self.serve(request, descriptors),
                Heard::Gone => return,
            }
        }
    }

    /// Gives back what only the start needed, once it is time, and says how long that is yet. What is not given back is
    /// memory, and nothing else.
    fn settle(&mut self) -> PollTimeout {
        let Some(settles) = self.settles else { return PollTimeout::NONE };
        match settles.checked_duration_since(Instant::now()) {
            Some(left) => PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX),
            None => {
                self.settles = None;
                let _ = memory::release_pages_of_files();
                PollTimeout::NONE
            }
        }
    }

    fn serve(&mut self, request: Request, descriptors: Descriptors) {
        match request {
            Request::Separate(_) | Request::SetUp | Request::Go => {}
            Request::Signal(number) => self.forward(number),
            Request::Foreground => self.foreground(),
            Request::Launch { id } => {
                let launched = match self.ended {
                    None => self.guests.launch(id, descriptors),
                    Some(_) => Err(Failure::setup("the workload has ended, and with it ends the sandbox")),
                };
                if let Err(failure) = launched {
                    self.report(&Report::Guest { id, step: GuestStep::Failed(failure) });
                }
            }
            Request::SignalGuest { id, signal } => self.guests.signal(id, signal),
            Request::Socket { id, six } => self.make_socket(id, six),
        }
    }

    fn make_socket(&self, id: u64, six: bool) {
        let family = if six { AddressFamily::Inet6 } else { AddressFamily::Inet };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let made = socket(family, SockType::Stream, flags, None);
        let error = made.as_ref().err().map(|errno| *errno as i32);
        let descriptor = made.as_ref().ok().map(AsFd::as_fd);
        if let Err(failed) = self.control.send(&Report::Socket { id, error }, descriptor.as_slice()) {
            // As below, where the descriptor could not go along.
            self.report(&Report::Socket { id, error: failed.raw_os_error().or(Some(Errno::EIO as i32)) });
        }
    }

    fn tell_of_guests(&mut self) {
        for (id, step, descriptors) in self.guests.news() {
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            let told = self.control.send(&Report::Guest { id, step }, &descriptors);
            // There is a bound to the descriptors that are on their way (unix(7), `ETOOMANYREFS`). Without its streams a
            // guest is none, and whoever waits for it is to hear so.
            if let Err(error) = told
                && !descriptors.is_empty()
            {
                self.guests.signal(id, Signal::SIGKILL as i32);
                let failure = Failure::setup(format!("handing its streams over: {error}"));
                self.report(&Report::Guest { id, step: GuestStep::Failed(failure) });
            }
        }
    }

    /// Waits for something to happen, and takes in what the supervisor and the child say.
    fn wait(&mut self, timeout: PollTimeout) -> Heard {
        let readable = |fds: &[PollFd<'_>], index: usize| {
            fds.get(index).and_then(PollFd::revents).is_some_and(|events| !events.is_empty())
        };
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.control.as_fd(), PollFlags::POLLIN),
        ];
        let own = fds.len();
        fds.extend(self.notes.iter().map(|notes| PollFd::new(notes.as_fd(), PollFlags::POLLIN)));
        let guests = fds.len();
        fds.extend(self.guests.notes().map(|notes| PollFd::new(notes, PollFlags::POLLIN)));
        // Who cannot listen cannot know whether the supervisor is still there. (Signals are blocked, so EINTR is none.)
        if poll(&mut fds, timeout).is_err() {
            return Heard::Gone;
        }
        let (child, supervisor) = (guests > own && readable(&fds, own), readable(&fds, 1));
        let noted: Vec<bool> = (guests..fds.len()).map(|index| readable(&fds, index)).collect();
        while let Ok(Some(_)) = self.signals.read_signal() {}
        self.guests.listen(&noted, NOTE_LIMIT);
        if child {
            self.listen();
        }
        if !supervisor {
            return Heard::Nothing;
        }
        match self.control.receive::<Request>() {
            Ok(Some((request, descriptors))) => Heard::Request(request, descriptors),
            Ok(None) | Err(_) => Heard::Gone,
        }
    }

    /// Reads from the child's pipe.
    fn listen(&mut self) {
        let Some(notes) = self.notes.take() else { return };
        self.notes = Note::read_on(notes, &mut self.said, NOTE_LIMIT);
        if self.notes.is_none() {
            self.announce();
        }
    }

    fn announce(&mut self) {
        match Note::verdict(&self.said) {
            Ok((landlock, notes)) => {
                let ours = std::mem::take(&mut self.ours);
                let ours: Vec<BorrowedFd<'_>> = ours.iter().map(AsFd::as_fd).collect();
                let _ = self.control.send(&Report::Started { pid: self.workload.as_raw(), landlock, notes }, &ours);
            }
            Err(failure) => self.report(&Report::Failed(failure)),
        }
        self.settles = Some(Instant::now() + SETTLED);
    }

    /// A supervisor that is gone is noticed by the next poll.
    fn report(&self, report: &Report) {
        let _ = self.control.send(report, &[]);
    }

    /// Takes in the end of every child, and the stop of the workload. Returns whether there are children left.
    fn reap(&mut self) -> bool {
        loop {
            match process::reap() {
                Ok(Some((pid, end))) => {
                    let ending = match end {
                        End::Exited(code) => Ending::Code(code),
                        End::Signaled(signal) => Ending::Signal(signal),
                    };
                    if pid == self.workload {
                        self.ended = Some(ending);
                    } else {
                        self.guests.ended(pid, ending);
                    }
                }
                Ok(None) => break,
                // ECHILD, the only error without flags that are wrong.
                Err(_) => return false,
            }
        }
        if self.ended.is_none() {
            let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG;
            if let Ok(WaitStatus::Stopped(..)) = waitid(Id::Pid(self.workload), flags) {
                self.report(&Report::Stopped);
            }
        }
        true
    }

    /// To the workload's process group; to the workload alone once it has left that group.
    fn forward(&self, number: i32) {
        let Ok(signal) = Signal::try_from(number) else { return };
        if self.ended.is_some() {
            return;
        }
        let group = Pid::from_raw(-self.workload.as_raw());
        if kill(group, signal) == Err(Errno::ESRCH) {
            let _ = kill(self.workload, signal);
        }
    }

    /// Makes the workload the terminal's foreground job. The init has closed its standard streams, and `/dev/tty` is
    /// its session's terminal (tty(4)); SIGTTOU is blocked here. A terminal that is gone ends its job by other signs.
    fn foreground(&self) {
        if let Ok(terminal) = File::options().read(true).write(true).open("/dev/tty") {
            let _ = tcsetpgrp(terminal, self.workload);
        }
    }

    /// Ends all that is left: TERM, and KILL after `grace` or when the supervisor is gone.
    fn clear(&mut self, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut abandoned = self.ended.is_none();
        let mut asked: Vec<Pid> = Vec::new();
        while self.reap() {
            self.tell_of_guests();
            let now = Instant::now();
            let force = abandoned || now >= deadline;
            self.end_all(force, &mut asked);
            let next = match (self.own_processes, force) {
                // One signal has reached everything.
                (true, false) => deadline - now,
                _ => SWEEP,
            };
            let timeout = PollTimeout::try_from(next + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
            match self.wait_in_clear(timeout, abandoned) {
                Heard::Nothing => {}
                Heard::Request(request, descriptors) => self.serve(request, descriptors),
                Heard::Gone => abandoned = true,
            }
        }
        self.tell_of_guests();
    }

    /// A socket whose other end is gone is always readable and would make the loop spin.
    fn wait_in_clear(&mut self, timeout: PollTimeout, abandoned: bool) -> Heard {
        if !abandoned {
            return self.wait(timeout);
        }
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if poll(&mut fds, timeout).is_err() {
            std::thread::sleep(SWEEP);
        }
        while let Ok(Some(_)) = self.signals.read_signal() {}
        Heard::Nothing
    }

    fn end_all(&self, force: bool, asked: &mut Vec<Pid>) {
        if self.own_processes {
            // All processes of the namespace but ourselves (kill(2)).
            let all = Pid::from_raw(-1);
            if force {
                let _ = kill(all, Signal::SIGKILL);
            } else if asked.is_empty() {
                let _ = kill(all, Signal::SIGTERM);
                let _ = kill(all, Signal::SIGCONT);
                asked.push(all);
            }
            return;
        }
        // Asked are only our own children, whose numbers cannot be reused before we reap them: when one dies, its children
        // become ours, and the next sweep meets them. By force all go at once, however deep: a line of them would outlive
        // us otherwise.
        let found = Descendants::of_ours();
        if force {
            return found.kill();
        }
        for child in found.children {
            if !asked.contains(&child) {
                let _ = kill(child, Signal::SIGTERM);
                let _ = kill(child, Signal::SIGCONT);
                asked.push(child);
            }
        }
    }
}
