//! Standing between whoever started the supervisor and the workload: signals go in, the exit code comes out.

use std::future::{pending, poll_fn};
use std::io;
use std::task::Poll;
use std::time::Duration;

use nix::sys::signal::{Signal, raise};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::descendants;
use super::launch::{Happening, Running, Workload};
use crate::contract::exit;
use crate::sys::process;

/// Signals that are the workload's. SIGTSTP is caught only where the workload has no terminal to hear it from.
const FORWARDED: &[Signal] = &[
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
];

/// How patient the supervisor is.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// After this the workload is asked to end; `None` for never.
    pub timeout: Option<Duration>,
    /// Between asking the workload to end (SIGTERM) and killing it.
    pub grace: Duration,
}

/// Handlers that catch what is to be forwarded, from when they are made.
#[derive(Debug)]
pub struct Signals {
    streams: Vec<(Signal, Stream)>,
}

impl Signals {
    /// Installs the handlers; from here on these signals no longer end the supervisor.
    ///
    /// # Errors
    /// What sigaction(2) answered.
    pub fn catch() -> io::Result<Self> {
        let streams = FORWARDED
            .iter()
            .map(|&number| Ok((number, signal(SignalKind::from_raw(number as i32))?)))
            .collect::<io::Result<_>>()?;
        Ok(Self { streams })
    }

    /// The next signal that arrived. May be cancelled; nothing is lost.
    pub async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (number, stream) in &mut self.streams {
                // A stream never ends: its sender lives as long as the runtime.
                if let Poll::Ready(Some(())) = stream.poll_recv(context) {
                    return Poll::Ready(*number);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Waits until somebody wants the supervisor gone.
pub async fn asked_to_end(running: &mut Running) {
    while !matches!(running.signals.next().await, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) {
    }
}

/// Orphans of others. The supervisor of a container is process 1 there, and what is left behind by a program that the
/// runtime starts beside the workload (`kubectl exec`) becomes its child.
#[derive(Debug)]
struct Strangers {
    ended: Option<Stream>,
}

impl Strangers {
    fn adopt() -> Self {
        // Without the handler zombies gather, which costs less than a sandbox that does not start.
        Self { ended: descendants::are_adopted().then(|| signal(SignalKind::child()).ok()).flatten() }
    }

    async fn next(&mut self) {
        match &mut self.ended {
            Some(stream) => drop(stream.recv().await),
            None => pending().await,
        }
    }
}

/// Waits for the workload's end and returns the exit code that stands for it: its own, 128+n, or 124.
///
/// SIGTERM, and the end of the timeout, start the grace after which what still runs is killed. Dropping what runs kills the
/// workload at once.
pub async fn run(running: &mut Running, options: Options) -> u8 {
    let mut timeout = options.timeout.map(|timeout| Instant::now() + timeout);
    let mut strangers = Strangers::adopt();
    let mut last = None;
    let mut timed_out = false;
    loop {
        let mut received = None;
        tokio::select! {
            // Signals in the order of arrival before the end that they may cause.
            biased;
            number = running.signals.next() => received = Some(number),
            happening = running.workload.next() => match happening {
                Happening::Stopped => suspend_with_terminal(running).await,
                Happening::Ended(outcome) => {
                    if let Some(lent) = &running.lent {
                        lent.take_back();
                    }
                    return if timed_out { exit::TIMED_OUT } else { outcome.ending.exit_code() };
                }
            },
            () = strangers.next() => process::reap_all_but(running.workload.init()),
            () = until(timeout) => {
                (timeout, timed_out) = (None, true);
                tell(&running.workload, Signal::SIGTERM).await;
                tell(&running.workload, Signal::SIGCONT).await;
                last = Some(Instant::now() + options.grace);
            }
            () = until(last) => {
                last = None;
                tell(&running.workload, Signal::SIGKILL).await;
            }
        }
        match received {
            // With a terminal, its stop is reported like any other and handled above.
            Some(Signal::SIGTSTP) if running.lent.is_none() => suspend(&running.workload).await,
            Some(number) => {
                tell(&running.workload, number).await;
                if number == Signal::SIGTERM && last.is_none() {
                    last = Some(Instant::now() + options.grace);
                }
            }
            None => {}
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => pending().await,
    }
}

/// An init that cannot be told anything is ending, and that is heard elsewhere.
async fn tell(workload: &Workload, signal: Signal) {
    let _ = workload.signal(signal).await;
}

/// The workload stopped itself, or the terminal did: the supervisor is stopped like any job, and continues it.
async fn suspend_with_terminal(running: &Running) {
    if let Some(lent) = &running.lent {
        if lent.suspend() {
            let _ = running.workload.foreground().await;
        }
        tell(&running.workload, Signal::SIGCONT).await;
    }
}

/// Someone stops the supervisor: the workload has no terminal, or does not hear of it.
async fn suspend(workload: &Workload) {
    tell(workload, Signal::SIGSTOP).await;
    let _ = raise(Signal::SIGSTOP);
    tell(workload, Signal::SIGCONT).await;
}
