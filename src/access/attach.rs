//! Looking at the main process, and typing into it: what people see of its [`Console`], by a session's subsystems.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use nix::sys::signal::Signal;
use std::str::FromStr;
use tokio::time::timeout;

use super::console::{Console, Pen, Piece, Reader};
use super::server::Caller;
use super::session::{conclude, read_size};
use super::ssh::channel::{Channel, Closed, Stream};
use super::ssh::wire;
use crate::contract::exit;
use crate::workload::control::Ending;
use crate::workload::launcher::Launcher;
use crate::workload::standard::Shape;

/// Subsystem: the main process, to look at and to type into (facts §4.10).
pub const MAIN: &str = "openshell-main";

/// Subsystem: what it has said of late.
pub const LOGS: &str = "openshell-logs";

/// The same, and then all that it says until its end.
pub const LOGS_FOLLOWED: &str = "openshell-logs --follow";

/// Request of a session, before its subsystem: whether the main process has a terminal, so that a client knows whether its
/// own should pass on every key.
pub const HAS_TERMINAL: &str = "main-terminal@openshell.ai";

/// Ctrl-P and Ctrl-Q, one after the other, detach: the keys that people know from containers.
const DETACH: [u8; 2] = [0x10, 0x11];

/// Ctrl-P alone is a key too, of every shell's: it is passed on when no other key follows in this time.
const HELD: Duration = Duration::from_millis(500);

/// Most that waits to be read by the main process while the keys that detach are looked for. What is typed beyond is dropped
/// with a bell, as any terminal does it whose program reads nothing (termios(3), IMAXBEL).
const TYPED_AHEAD: usize = 64 << 10;

const BELL: &[u8] = b"\x07";

/// How long a client may take to close its side when all has been said.
const CLOSING: Duration = Duration::from_secs(2);

/// What a session looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looking {
    /// The main process.
    Attached,
    /// Its output alone.
    Logs {
        /// Whether to its end.
        follow: bool,
    },
}

impl Looking {
    /// What a subsystem of that name is, if it is one of these.
    pub(super) fn of_subsystem(name: &[u8]) -> Option<Self> {
        [(MAIN, Self::Attached), (LOGS, Self::Logs { follow: false }), (LOGS_FOLLOWED, Self::Logs { follow: true })]
            .into_iter()
            .find_map(|(known, looking)| (known.as_bytes() == name).then_some(looking))
    }

    /// What it is called.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Attached => MAIN,
            Self::Logs { follow: false } => LOGS,
            Self::Logs { follow: true } => LOGS_FOLLOWED,
        }
    }
}

/// Serves a session that looks at the main process; `terminal` is the client's, if it said that it has one.
pub(super) async fn serve(channel: &Channel, looking: Looking, terminal: Option<&Shape>, caller: &Caller) {
    let console = &caller.inside.console;
    let launcher = &caller.inside.launcher;
    let _visit = console.visit();
    let view = View { channel, cooked: terminal.is_some() && !console.is_terminal() };
    match looking {
        Looking::Attached => attach(&view, console, terminal, launcher).await,
        Looking::Logs { follow } => {
            // There is nothing to type into, and nothing to ask for.
            let ended = tokio::select! {
                shown = view.show(console.read(follow)) => shown.ok(),
                () = refuse_all(channel) => None,
            };
            if let Some(lost) = ended {
                conclude(channel, Ending::Code(if lost { exit::INCOMPLETE } else { 0 }));
            }
        }
    }
    let _ = timeout(CLOSING, channel.closed()).await;
}

async fn attach(view: &View<'_>, console: &Arc<Console>, terminal: Option<&Shape>, launcher: &Launcher) {
    let pen = match console.take_pen() {
        Ok(pen) => Some(pen),
        Err(why) => {
            view.say(&why.to_string()).await;
            None
        }
    };
    if let (Some(pen), Some(shape)) = (&pen, terminal) {
        pen.show_to(shape);
    }
    let watch = async {
        let shown = view.show(console.read(true)).await;
        (shown, launcher.ending().await)
    };
    let ending = tokio::select! {
        (shown, ending) = watch => shown.ok().map(|_| ending),
        () = view.type_in(pen.as_ref(), terminal.is_some()) => {
            view.say("detached; the main process runs on").await;
            Some(Ending::Code(0))
        }
        () = obey(view.channel, pen.as_ref(), launcher) => None,
    };
    if let Some(ending) = ending {
        conclude(view.channel, ending);
    }
}

/// A channel, as what is shown there must look.
struct View<'c> {
    channel: &'c Channel,
    /// Whether lines end as a terminal has them that is nobody's: the client has one, which does nothing by itself now, and
    /// the main process has none, which would do it.
    cooked: bool,
}

impl View<'_> {
    /// Shows all that is read. Whether something was lost.
    async fn show(&self, mut reader: Reader) -> Result<bool, Closed> {
        let mut lost = false;
        loop {
            match reader.next().await {
                Piece::Data(stream, data) if self.cooked => self.channel.send(stream, &with_returns(&data)).await?,
                Piece::Data(stream, data) => self.channel.send(stream, &data).await?,
                Piece::Lost(count) => {
                    lost = true;
                    self.say(&format!("{count} bytes of output are missing here, which were not read in time")).await;
                }
                Piece::End => return Ok(lost),
            }
        }
    }

    /// Says something of ours, on a line of its own.
    async fn say(&self, what: &str) {
        let line = format!("\r\nopenshell-supervisor: {what}\r\n");
        let _ = self.channel.send(Stream::Error, line.as_bytes()).await;
    }

    /// Passes on what is typed; returns when the client wants to detach. Its end of input ends nothing else.
    async fn type_in(&self, pen: Option<&Pen>, has_keys: bool) {
        let mut keys = Keys::default();
        let mut ahead = BytesMut::new();
        loop {
            // Who has no keys to detach by can wait until there is room.
            let takes = has_keys || ahead.is_empty();
            let write = async {
                match pen {
                    Some(pen) => pen.write(&ahead).await,
                    None => ahead.len(),
                }
            };
            tokio::select! {
                written = write, if !ahead.is_empty() => ahead.advance(written),
                data = self.channel.take(Stream::Data), if takes => {
                    let Some(data) = data else { break };
                    let mut typed = data;
                    if has_keys {
                        match keys.take(&typed) {
                            Some(passed) => typed = passed,
                            None => return,
                        }
                    }
                    if self.cooked {
                        typed.iter_mut().filter(|byte| **byte == b'\r').for_each(|byte| *byte = b'\n');
                    }
                    if has_keys && ahead.len() + typed.len() > TYPED_AHEAD {
                        let _ = self.channel.send(Stream::Data, BELL).await;
                    } else {
                        ahead.extend_from_slice(&typed);
                    }
                }
                () = tokio::time::sleep(HELD), if keys.held => {
                    keys.held = false;
                    ahead.extend_from_slice(&DETACH[..1]);
                }
            }
        }
        while let (Some(pen), false) = (pen, ahead.is_empty()) {
            ahead.advance(pen.write(&ahead).await);
        }
        pending().await
    }
}

/// Looks for the keys that detach.
#[derive(Debug, Default)]
struct Keys {
    /// Whether the first of them was the last key.
    held: bool,
}

impl Keys {
    /// What of `typed` is to be passed on; `None` once both have been typed.
    fn take(&mut self, typed: &[u8]) -> Option<BytesMut> {
        let mut passed = BytesMut::with_capacity(typed.len() + 1);
        for &byte in typed {
            if self.held && byte == DETACH[1] {
                return None;
            }
            if self.held {
                passed.extend_from_slice(&DETACH[..1]);
            }
            self.held = byte == DETACH[0];
            if !self.held {
                passed.extend_from_slice(&[byte]);
            }
        }
        Some(passed)
    }
}

fn with_returns(data: &[u8]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(data.len() + data.len() / 16);
    for &byte in data {
        if byte == b'\n' {
            lines.push(b'\r');
        }
        lines.push(byte);
    }
    lines
}

/// Does what somebody who is attached asks for, if it is theirs to ask; returns when the channel is closed.
async fn obey(channel: &Channel, pen: Option<&Pen>, launcher: &Launcher) {
    while let Some(request) = channel.request().await {
        let mut reader = wire::Reader::new(&request.details);
        let done = match (request.name.as_str(), pen) {
            ("window-change", Some(pen)) => read_size(&mut reader).map(|shape| pen.set_size(&shape)).is_ok(),
            ("signal", Some(_)) => {
                match reader.text().ok().and_then(|name| Signal::from_str(&format!("SIG{name}")).ok()) {
                    Some(signal) => {
                        launcher.signal_workload(signal).await;
                        true
                    }
                    None => false,
                }
            }
            _ => false,
        };
        channel.answer(&request, done);
    }
}

async fn refuse_all(channel: &Channel) {
    while let Some(request) = channel.request().await {
        channel.answer(&request, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_that_detach_are_found_across_pieces_and_nothing_else_is_kept_back() {
        let passed = |pieces: &[&[u8]]| {
            let mut keys = Keys::default();
            let mut all = Vec::new();
            for piece in pieces {
                all.extend(keys.take(piece)?);
            }
            Some((all, keys.held))
        };
        assert_eq!(passed(&[b"ab\x10\x11c"]), None);
        assert_eq!(passed(&[b"ab\x10", b"\x11"]), None);
        assert_eq!(passed(&[b"\x10\x10\x11"]), None);
        assert_eq!(passed(&[b"a\x10", b"b"]), Some((b"a\x10b".to_vec(), false)));
        assert_eq!(passed(&[b"\x11\x10\x10"]), Some((b"\x11\x10".to_vec(), true)));
    }

    #[test]
    fn subsystems_are_known_by_their_whole_names() {
        for looking in [Looking::Attached, Looking::Logs { follow: false }, Looking::Logs { follow: true }] {
            assert_eq!(Looking::of_subsystem(looking.name().as_bytes()), Some(looking));
        }
        assert_eq!(Looking::of_subsystem(b"openshell-mai"), None);
    }
}
