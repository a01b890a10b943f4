//! The other end, for who has no SSH client at hand: commands, shells and forwarded ports through the same door.

mod progress;
mod transfer;

pub use transfer::{download, upload};

use std::io::{IsTerminal, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;

use nix::sys::signal::Signal;
use nix::sys::termios::{self, SetArg, Termios};
use tokio::net::{TcpListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::forward;
use super::place::{Place, PlaceError};
use super::ssh::SshError;
use super::ssh::channel::{Channel, Closed, Refused, Stream};
use super::ssh::connection::{Connection, Opener};
use super::ssh::wire::{Reader, Writer};
use crate::contract::{SANDBOX_USER, exit};
use crate::event::say;
use crate::sys::tty;
use crate::workload::tty_modes;

/// What is read of standard input at a time.
const CHUNK: usize = 32 << 10;

/// Pieces of standard input that wait to be sent.
const PIECES: usize = 4;

/// Variables that describe the terminal and language, which a server may take over.
const TOLD: [&str; 5] = ["LANG", "LC_ALL", "LC_CTYPE", "COLORTERM", "TZ"];

/// Why a client came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is at the door.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The connection ends.
    #[error("{0}; the supervisor's log says more")]
    Ssh(#[from] SshError),
    /// The server refuses.
    #[error("refused: {0}")]
    Refused(#[from] Refused),
    /// The connection ended first.
    #[error("the connection has ended; the sandbox may have")]
    Closed(#[from] Closed),
    /// The port on this side cannot be had.
    #[error("cannot listen on {address}: {source}; {}", of_port(*port, source))]
    Listen {
        /// Where.
        address: SocketAddr,
        /// The sandbox's port, for the advice.
        port: u16,
        /// What it answered.
        source: std::io::Error,
    },
    /// Something of this side's.
    #[error("{call}: {source}")]
    Own {
        /// What.
        call: &'static str,
        /// What it answered.
        source: std::io::Error,
    },
}

/// What to do about a port that cannot be had, when `port` is the sandbox's.
fn of_port(port: u16, error: &std::io::Error) -> String {
    let why = match error.kind() {
        std::io::ErrorKind::PermissionDenied => "ports below 1024 take privilege",
        std::io::ErrorKind::AddrInUse => "something listens there already",
        _ => "this machine does not give it",
    };
    format!("{why}: name another port of this side, or 0 for any, as in 0:{port}")
}

fn own(call: &'static str) -> impl FnOnce(std::io::Error) -> ClientError {
    move |source| ClientError::Own { call, source }
}

/// Joins standard input and output to the door, as `ProxyCommand` wants it (ssh_config(5)), until the door closes.
///
/// # Errors
/// [`ClientError`].
pub fn join(place: &Place) -> Result<(), ClientError> {
    let stream = place.connect()?;
    let mut towards = stream.try_clone().map_err(own("dup"))?;
    // Standard input may never end; the process does not wait for it.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut towards);
        let _ = towards.shutdown(std::net::Shutdown::Write);
    });
    let (mut from, mut output) = (stream, std::io::stdout().lock());
    let mut chunk = vec![0; CHUNK];
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => {
                output.write_all(&chunk[..length]).and_then(|()| output.flush()).map_err(own("standard output"))?;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(own("the socket")(error)),
        }
    }
}

async fn connect(place: &Place) -> Result<Opener, ClientError> {
    let stream = place.connect()?;
    stream.set_nonblocking(true).map_err(own("fcntl"))?;
    let stream = UnixStream::from_std(stream).map_err(own("epoll_ctl"))?;
    let (connection, opener) = Connection::connect(stream, SANDBOX_USER).await?;
    tokio::spawn(connection.run());
    Ok(opener)
}

async fn open(opener: &Opener, kind: &str, details: &[u8]) -> Result<Channel, ClientError> {
    let channel = opener.open(kind, details).ok_or(Closed)?;
    channel.opened().await?;
    Ok(channel)
}

/// Runs a command line inside, or a shell, and returns the exit code that stands for its end.
///
/// # Errors
/// [`ClientError`].
pub async fn run(place: &Place, line: Option<&[u8]>, terminal: bool) -> Result<u8, ClientError> {
    let opener = connect(place).await?;
    let channel = Arc::new(open(&opener, "session", &[]).await?);
    for name in TOLD {
        if let Some(value) = std::env::var_os(name) {
            let mut details = Vec::new();
            details.put_string(name.as_bytes());
            details.put_string(value.as_encoded_bytes());
            channel.send_request("env", false, &details);
        }
    }
    let raw = if terminal { want_terminal(&channel)? } else { None };
    match line {
        Some(line) => {
            let mut details = Vec::new();
            details.put_string(line);
            channel.send_request("exec", true, &details);
        }
        None => channel.send_request("shell", true, &[]),
    }
    let code = attend(&channel, terminal).await;
    drop(raw);
    code
}

async fn attend(channel: &Arc<Channel>, terminal: bool) -> Result<u8, ClientError> {
    let input = read_standard_input();
    let fed = tokio::spawn(feed(channel.clone(), input));
    let show = async {
        while let Some(data) = channel.take(Stream::Data).await {
            let mut output = std::io::stdout().lock();
            output.write_all(&data).and_then(|()| output.flush()).map_err(own("standard output"))?;
        }
        Ok::<_, ClientError>(())
    };
    let outcome = tokio::select! {
        (shown, errors, code) = async { tokio::join!(show, show_errors(channel), ended(channel)) } => {
            shown.and(errors).and(code.ok_or(Closed.into()))
        }
        never = pass_on(channel, terminal) => match never {},
    };
    fed.abort();
    outcome
}

async fn show_errors(channel: &Channel) -> Result<(), ClientError> {
    while let Some(data) = channel.take(Stream::Error).await {
        std::io::stderr().write_all(&data).map_err(own("standard error"))?;
    }
    Ok(())
}

/// The exit code that stands for the end, once it is there; `None` where the channel is closed without one.
async fn ended(channel: &Channel) -> Option<u8> {
    let mut code = None;
    while let Some(request) = channel.request().await {
        let mut reader = Reader::new(&request.details);
        match request.name.as_str() {
            "exit-status" => code = reader.u32().ok().map(|code| code as u8),
            "exit-signal" => code = reader.text().ok().and_then(code_of_signal),
            _ => {}
        }
        channel.answer(&request, false);
    }
    code
}

fn code_of_signal(name: &str) -> Option<u8> {
    let signal = Signal::from_str(&format!("SIG{name}")).ok()?;
    Some(exit::SIGNAL_BASE.wrapping_add(signal as i32 as u8))
}

/// Passes on what happens to this process: a new size of the terminal, or without one the signals that would end it.
async fn pass_on(channel: &Channel, terminal: bool) -> std::convert::Infallible {
    let streams = (
        signal(SignalKind::window_change()),
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    );
    let (Ok(mut resized), Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) = streams else {
        return std::future::pending().await;
    };
    loop {
        let name = tokio::select! {
            _ = resized.recv() => {
                if terminal && let Some(size) = size() {
                    channel.send_request("window-change", false, &size);
                }
                continue;
            }
            _ = interrupt.recv() => "INT",
            _ = terminate.recv() => "TERM",
            _ = hangup.recv() => "HUP",
        };
        let mut details = Vec::new();
        details.put_string(name.as_bytes());
        channel.send_request("signal", false, &details);
    }
}

/// Standard input, read by a thread of its own: it may be a file, which cannot be waited for, and may never end.
fn read_standard_input() -> mpsc::Receiver<Vec<u8>> {
    let (pieces, input) = mpsc::channel(PIECES);
    std::thread::spawn(move || {
        let mut chunk = vec![0; CHUNK];
        let mut from = std::io::stdin().lock();
        while let Ok(length @ 1..) = from.read(&mut chunk) {
            if pieces.blocking_send(chunk[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    input
}

async fn feed(channel: Arc<Channel>, mut input: mpsc::Receiver<Vec<u8>>) {
    while let Some(piece) = input.recv().await {
        if channel.send(Stream::Data, &piece).await.is_err() {
            return;
        }
    }
    channel.eof();
}

/// Size of the terminal on standard input, as a window-change has it.
fn size() -> Option<Vec<u8>> {
    let size = tty::size(std::io::stdin().as_fd()).ok()?;
    let mut details = Vec::new();
    for value in [size.ws_col, size.ws_row, size.ws_xpixel, size.ws_ypixel] {
        details.put_u32(value.into());
    }
    Some(details)
}

/// The terminal on standard input, every key of which is the other side's until this is dropped.
struct Raw(Termios);

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

/// Asks for a terminal like the one that this process has, if it has one.
fn want_terminal(channel: &Channel) -> Result<Option<Raw>, ClientError> {
    let mut details = Vec::new();
    details.put_string(std::env::var_os("TERM").unwrap_or_default().as_encoded_bytes());
    details.extend(size().unwrap_or_else(|| vec![0; 16]));
    let settings = std::io::stdin().is_terminal().then(|| termios::tcgetattr(std::io::stdin()).ok()).flatten();
    let mut modes = Vec::new();
    for (opcode, value) in settings.iter().flat_map(tty_modes::of) {
        modes.push(opcode);
        modes.put_u32(value);
    }
    modes.push(0);
    details.put_string(&modes);
    channel.send_request("pty-req", false, &details);
    let Some(settings) = settings else { return Ok(None) };
    let mut raw = settings.clone();
    termios::cfmakeraw(&mut raw);
    termios::tcsetattr(std::io::stdin(), SetArg::TCSADRAIN, &raw).map_err(|errno| own("tcsetattr")(errno.into()))?;
    Ok(Some(Raw(settings)))
}

/// A command line that any shell, and who splits it without one, takes for these very words.
#[must_use]
pub fn quote(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut line = Vec::new();
    for word in words {
        if !line.is_empty() {
            line.push(b' ');
        }
        line.push(b'\'');
        for &byte in word.as_ref() {
            match byte {
                b'\'' => line.extend(b"'\\''"),
                other => line.push(other),
            }
        }
        line.push(b'\'');
    }
    line
}

/// Listens on this side's loopback, and carries what connects there to `port` inside, until it is ended.
///
/// # Errors
/// [`ClientError`].
pub async fn forward(
    place: &Place,
    local: u16,
    port: u16,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), ClientError> {
    let opener = connect(place).await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, local));
    let listener = TcpListener::bind(address).await.map_err(|source| ClientError::Listen { address, port, source })?;
    listening(listener.local_addr().map_err(own("getsockname"))?);
    loop {
        let (stream, from) = listener.accept().await.map_err(own("accept"))?;
        let mut details = Vec::new();
        details.put_string(b"localhost");
        details.put_u32(port.into());
        details.put_string(from.ip().to_string().as_bytes());
        details.put_u32(from.port().into());
        let Some(channel) = opener.open("direct-tcpip", &details) else { return Err(Closed.into()) };
        tokio::spawn(async move {
            match channel.opened().await {
                Ok(()) => forward::carry(channel, stream).await,
                Err(refused) => say!("openshell-supervisor: forward: {refused}"),
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::shell;

    #[test]
    fn quoted_words_are_the_same_to_everybody() {
        let words = ["a", "", "b c", "it's", "$HOME `x` \"y\" \\", "line\nbreak", "*"];
        let line = quote(&words);
        let split = shell::words(&line).unwrap();
        assert!(split.iter().map(|word| word.to_str().unwrap()).eq(words));
        let script = [b"printf '%s\\0' ", &line[..]].concat();
        let shell = std::process::Command::new("/bin/sh")
            .args([std::ffi::OsStr::new("-c"), std::os::unix::ffi::OsStrExt::from_bytes(&script)])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8(shell.stdout).unwrap(), words.map(|word| format!("{word}\0")).concat());
    }
}
