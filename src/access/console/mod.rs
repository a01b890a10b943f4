//! What stands between the workload's standard streams and the container's, where people may attach: all output goes on to
//! the container's streams, unchanged and at their pace, and into a [`Record`] that anybody reads at their own.
//!
//! The workload's input is the container's, and beside that of one person at a time who is attached. It ends with the
//! container's: a program that is given no input and reads to the end does so with and without access. A terminal stays.

mod record;

pub use record::{Piece, Reader, Record};

use std::convert::Infallible;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::stat::fstat;
use nix::unistd::{getpgrp, tcgetpgrp};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;

use super::descriptor::Descriptor;
use super::ssh::channel::Stream;
use super::stdio::{self, Outlet, Raw, Rest};
use crate::sys::process;
use crate::sys::tty;
use crate::workload::standard::{Shape, Standard};

/// What is read of the workload's output at a time.
const CHUNK: usize = 32 << 10;

/// Once the workload has ended, the container's streams may take nothing for so long before what is left is given up.
const STALLED: Duration = Duration::from_secs(10);

/// How long those who are attached then have to take in its last words, and how it ended.
const FAREWELL: Duration = Duration::from_secs(2);

/// Size of a terminal that nobody has looked at yet: a VT100's, which programs take for granted.
const USUAL: Shape = Shape { rows: 24, columns: 80, width: 0, height: 0, modes: Vec::new() };

/// Which streams the workload is to have, so that there can be a [`Console`]: a terminal where the container has one or its
/// driver wants one (`terminal`), otherwise pipes.
#[must_use]
pub fn standard(terminal: bool) -> Standard {
    let own = stdio::shape().filter(|_| is_foreground());
    match own {
        Some(shape) => Standard::Terminal(shape),
        None if terminal => Standard::Terminal(USUAL),
        None => Standard::Pipes { joined: are_one() },
    }
}

/// Whether the terminal is this process's to take over: the whole of it, in the foreground.
fn is_foreground() -> bool {
    std::io::IsTerminal::is_terminal(&std::io::stdout())
        && tcgetpgrp(std::io::stdin()).is_ok_and(|group| group == getpgrp())
}

/// Whether standard output and error are the same, so that the order of what is written to the one and the other shows.
fn are_one() -> bool {
    let id = |fd| fstat(fd).ok().map(|status| (status.st_dev, status.st_ino));
    let (output, error) = (id(std::io::stdout().as_fd()), id(std::io::stderr().as_fd()));
    output.is_some() && output == error
}

/// The workload's standard streams, and who is at them.
#[derive(Debug)]
pub struct Console {
    record: Arc<Record>,
    /// Where the workload's input goes, until that ends.
    input: Mutex<Option<Arc<Descriptor>>>,
    is_terminal: bool,
    /// Whether somebody who is attached may write.
    taken: AtomicBool,
    /// How many look at the record.
    visitors: watch::Sender<usize>,
}

/// The supervisor's own part: what has been taken of the container's streams.
#[derive(Debug)]
pub struct Hold {
    rests: Vec<Rest>,
    raw: Option<Raw>,
}

impl Console {
    /// Takes the other ends of the workload's streams, as [`crate::workload::launch::Running`] has them, and begins to carry.
    ///
    /// # Errors
    /// No streams; what epoll_ctl(2), dup(2) or tcsetattr(3) answered.
    pub fn open(streams: Vec<OwnedFd>) -> io::Result<(Arc<Self>, Hold)> {
        let mut streams = streams.into_iter().map(Descriptor::new).map(|made| made.map(Arc::new));
        let first = streams.next().ok_or_else(|| io::Error::other("the workload came without its streams"))??;
        let rest = streams.collect::<io::Result<Vec<_>>>()?;
        let is_terminal = rest.is_empty();
        let outputs = if is_terminal { vec![first.clone()] } else { rest };
        let record = Record::of(outputs.len());
        let console = Arc::new(Self {
            record: record.clone(),
            input: Mutex::new(Some(first)),
            is_terminal,
            taken: AtomicBool::new(false),
            visitors: watch::Sender::new(0),
        });
        let (output, error) = (io::stdout().as_fd().try_clone_to_owned()?, io::stderr().as_fd().try_clone_to_owned()?);
        let own = [(Stream::Data, output), (Stream::Error, error)];
        let mut hold = Hold { rests: Vec::new(), raw: None };
        for (port, (stream, own)) in outputs.into_iter().zip(own) {
            let (outlet, rest) = Outlet::new(own);
            hold.rests.push(rest);
            tokio::spawn(carry(port, stream, outlet, is_terminal, record.clone()));
        }
        // In the background a terminal is asked for input in vain, and not stopped for.
        process::ignore(nix::sys::signal::Signal::SIGTTIN);
        process::ignore(nix::sys::signal::Signal::SIGTTOU);
        if is_terminal && is_foreground() {
            hold.raw = Raw::enter()?;
        }
        tokio::spawn(console.clone().feed());
        Ok((console, hold))
    }

    /// Carries the container's input, and its end, which is the pipe's.
    async fn feed(self: Arc<Self>) {
        let mut coming = stdio::input();
        while let Some(piece) = coming.recv().await {
            let Some(input) = self.input() else { return };
            if input.write(&piece).await.is_err() {
                // The workload has closed its side.
                return self.close_input();
            }
        }
        if !self.is_terminal {
            self.close_input();
        }
    }

    fn input(&self) -> Option<Arc<Descriptor>> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn close_input(&self) {
        *self.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Whether the workload has a terminal.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Reads the record, as [`Record::read`].
    #[must_use]
    pub fn read(&self, follow: bool) -> Reader {
        self.record.read(follow)
    }

    /// Counts somebody who looks, for [`Console::part`] to wait for.
    #[must_use]
    pub fn visit(self: &Arc<Self>) -> Visit {
        self.visitors.send_modify(|count| *count += 1);
        Visit(self.clone())
    }

    /// The right to write, if nobody who is attached has it.
    ///
    /// # Errors
    /// [`NoPen`].
    pub fn take_pen(self: &Arc<Self>) -> Result<Pen, NoPen> {
        if self.input().is_none() {
            return Err(NoPen::Ended);
        }
        if self.taken.swap(true, Ordering::AcqRel) {
            return Err(NoPen::Taken);
        }
        Ok(Pen(self.clone()))
    }

    /// Follows the container's terminal: a new size of it is the workload's too.
    pub async fn follow_size(&self) -> Infallible {
        if let (true, Ok(mut changed)) = (self.is_terminal, signal(SignalKind::window_change())) {
            while changed.recv().await.is_some() {
                self.take_own_size();
            }
        }
        std::future::pending().await
    }

    fn take_own_size(&self) {
        if let Some(shape) = stdio::shape() {
            self.set_size(&shape);
        }
    }

    fn set_size(&self, shape: &Shape) {
        // A client without a terminal of its own says 0.
        if let (true, Some(terminal)) = (self.is_terminal && shape.rows > 0 && shape.columns > 0, self.input()) {
            // The workload may have left its terminal.
            let _ = tty::set_size((*terminal).as_fd(), &shape.size());
        }
    }

    /// Once the workload has ended: waits until its last words are where they belong, as far as that is taken in. `false`
    /// where the container's streams were given up.
    pub async fn part(&self, hold: Hold) -> bool {
        let Hold { rests, raw } = hold;
        let mut whole = true;
        for rest in rests {
            whole &= rest.drain(STALLED).await;
        }
        drop(raw);
        let mut visitors = self.visitors.subscribe();
        let _ = timeout(FAREWELL, visitors.wait_for(|count| *count == 0)).await;
        whole
    }
}

/// Carries one stream of the workload's output, to its end.
async fn carry(port: Arc<Descriptor>, stream: Stream, outlet: Outlet, is_terminal: bool, record: Arc<Record>) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(length @ 1..) = port.read(&mut chunk).await {
        record.add(stream, &chunk[..length]);
        // Who writes to a pipe that nobody reads is told so, and here by the same means: ours is closed. A terminal that is
        // gone tells by SIGHUP, which is passed on.
        if !outlet.write(chunk[..length].to_vec()).await && !is_terminal {
            break;
        }
    }
    record.end_one();
}

/// Somebody who looks.
#[derive(Debug)]
pub struct Visit(Arc<Console>);

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.visitors.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Why somebody may not write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoPen {
    /// Somebody else does.
    #[error("somebody else is attached and may type; this is to watch")]
    Taken,
    /// Nobody can.
    #[error("the main process is given no input; this is to watch")]
    Ended,
}

/// The right to write.
#[derive(Debug)]
pub struct Pen(Arc<Console>);

impl Pen {
    /// Writes some of `data`, and says how much; all of it counts as written where the workload takes no input any more. May
    /// be cancelled; nothing is lost.
    pub async fn write(&self, data: &[u8]) -> usize {
        let Some(input) = self.0.input() else { return data.len() };
        match input.write_some(data).await {
            Ok(length) => length,
            Err(_) => data.len(),
        }
    }

    /// Gives the workload's terminal, if it has one, the size of somebody's who has just come. It changes in any case, so
    /// that a program which fills the screen draws it anew: what is kept may begin in the midst of one.
    pub fn show_to(&self, shape: &Shape) {
        self.0.set_size(&Shape { rows: shape.rows.saturating_sub(1), ..shape.clone() });
        self.0.set_size(shape);
    }

    /// Gives the workload's terminal, if it has one, this size.
    pub fn set_size(&self, shape: &Shape) {
        self.0.set_size(shape);
    }
}

impl Drop for Pen {
    fn drop(&mut self) {
        self.0.take_own_size();
        self.0.taken.store(false, Ordering::Release);
    }
}
