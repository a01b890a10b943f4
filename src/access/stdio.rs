//! The standard streams of this very process. They may be files, which cannot be waited for, and terminals and pipes that
//! others share, who would not expect them to stop blocking: so they are read and written by threads of their own.

use std::io::{IsTerminal, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::termios::{self, SetArg, Termios};
use tokio::sync::{mpsc, oneshot};

use crate::sys::tty;
use crate::workload::standard::Shape;
use crate::workload::tty_modes;

/// What is read of standard input at a time.
const CHUNK: usize = 32 << 10;

/// Pieces of standard input that wait to be taken.
const PIECES: usize = 4;

/// A background job that ignores SIGTTIN is answered EIO by its terminal (termios(3), "Job control"), and asks again after
/// this time: it may have been brought to the foreground.
const BACKGROUND: Duration = Duration::from_secs(1);

/// Standard input, piece by piece, until its end.
pub fn input() -> mpsc::Receiver<Vec<u8>> {
    let (pieces, input) = mpsc::channel(PIECES);
    // It may never end; the process does not wait for it.
    std::thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        let mut from = std::io::stdin().lock();
        loop {
            match from.read(&mut chunk) {
                Ok(length @ 1..) => {
                    if pieces.blocking_send(chunk[..length].to_vec()).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) && std::io::stdin().is_terminal() => {
                    std::thread::sleep(BACKGROUND);
                    if pieces.is_closed() {
                        return;
                    }
                }
                Ok(0) | Err(_) => return,
            }
        }
    });
    input
}

/// Standard output or error, written piece by piece.
#[derive(Debug)]
pub struct Outlet {
    pieces: mpsc::Sender<Vec<u8>>,
}

/// What an [`Outlet`] still has to write once it is dropped.
#[derive(Debug)]
pub struct Rest {
    written: Arc<AtomicU64>,
    done: oneshot::Receiver<()>,
}

impl Outlet {
    /// Takes a stream over.
    #[must_use]
    pub fn new(stream: OwnedFd) -> (Self, Rest) {
        // One waits while another is written: whoever writes more waits, as it would without us.
        let (pieces, coming) = mpsc::channel(1);
        let (finished, done) = oneshot::channel();
        let written = Arc::new(AtomicU64::new(0));
        let rest = Rest { written: written.clone(), done };
        std::thread::spawn(move || {
            write_all(stream.into(), coming, &written);
            let _ = finished.send(());
        });
        (Self { pieces }, rest)
    }

    /// Gives it something, once there is room. `false` where the stream takes nothing more.
    pub async fn write(&self, piece: Vec<u8>) -> bool {
        self.pieces.send(piece).await.is_ok()
    }
}

fn write_all(mut stream: std::fs::File, mut coming: mpsc::Receiver<Vec<u8>>, written: &AtomicU64) {
    while let Some(piece) = coming.blocking_recv() {
        let mut left = piece.as_slice();
        while !left.is_empty() {
            match stream.write(left) {
                Ok(length @ 1..) => {
                    written.fetch_add(length as u64, Ordering::Relaxed);
                    left = &left[length..];
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // Somebody who shares the stream has made it non-blocking.
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => wait_for_room(&stream),
                Ok(0) | Err(_) => return,
            }
        }
    }
}

impl Rest {
    /// Waits until all is written, for as long as something is written within `patience`. `false` where something is left.
    pub async fn drain(mut self, patience: Duration) -> bool {
        let mut before = self.written.load(Ordering::Relaxed);
        loop {
            match tokio::time::timeout(patience, &mut self.done).await {
                // A stream that is broken takes nothing, and nobody is there who would.
                Ok(_) => return true,
                Err(_) => match self.written.load(Ordering::Relaxed) {
                    now if now == before => return false,
                    now => before = now,
                },
            }
        }
    }
}

fn wait_for_room(stream: &std::fs::File) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let _ = poll(&mut [PollFd::new(stream.as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
}

/// The terminal on standard input, every key of which is somebody else's until this is dropped.
#[derive(Debug)]
pub struct Raw(Termios);

impl Raw {
    /// Takes it over; `None` where standard input is no terminal.
    ///
    /// # Errors
    /// What tcsetattr(3) answered.
    pub fn enter() -> std::io::Result<Option<Self>> {
        let Some(settings) = settings() else { return Ok(None) };
        let mut raw = settings.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &raw)?;
        Ok(Some(Self(settings)))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

fn settings() -> Option<Termios> {
    std::io::stdin().is_terminal().then(|| termios::tcgetattr(std::io::stdin()).ok()).flatten()
}

/// Size and modes of the terminal on standard input; `None` where that is none.
#[must_use]
pub fn shape() -> Option<Shape> {
    let settings = settings()?;
    let size = tty::size(std::io::stdin().as_fd()).ok()?;
    let modes = tty_modes::of(&settings);
    Some(Shape { rows: size.ws_row, columns: size.ws_col, width: size.ws_xpixel, height: size.ws_ypixel, modes })
}
