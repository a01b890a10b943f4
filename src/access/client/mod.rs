//! The other end, for who has no SSH client at hand: commands, shells and forwarded ports through the same door.

mod main_process;
mod progress;
mod transfer;

pub use main_process::{attach, logs};
pub use transfer::{download, upload};

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use nix::sys::signal::Signal;
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::files::shown::Shown;
use super::forward;
use super::place::{Place, PlaceError};
use super::ssh::SshError;
use super::ssh::channel::{Channel, Closed, Refused, Stream};
use super::ssh::connection::{Connection, Opener};
use super::ssh::transport::refusal;
use super::ssh::wire::{Reader, Writer};
use super::stdio::{self, Raw};
use crate::contract::{SANDBOX_USER, exit};
use crate::event::say;
use crate::workload::standard::Shape;

/// What is read of standard input at a time.
const CHUNK: usize = 32 << 10;

/// Ports tried that are the kernel's choice: one that is taken for the other address is rare.
const PORTS_TRIED: usize = 16;

/// Variables that describe the terminal and language, which a server may take over.
const TOLD: [&str; 5] = ["LANG", "LC_ALL", "LC_CTYPE", "COLORTERM", "TZ"];

/// Why a client came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody is at the door.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// The connection ends.
    #[error("{}; the supervisor's log says more", Shown(.0.to_string().as_bytes()))]
    Ssh(#[from] SshError),
    /// The server refuses.
    #[error("refused: {}", Shown(.0.reason.as_bytes()))]
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

impl ClientError {
    /// Whether it is that nobody reads any more what this process writes, as in `logs | head`: who reads has seen enough.
    fn is_unread(&self) -> bool {
        matches!(self, Self::Own { source, .. } if source.kind() == ErrorKind::BrokenPipe)
    }
}

/// What to do about a port that cannot be had, when `port` is the sandbox's.
fn of_port(port: u16, error: &std::io::Error) -> String {
    let why = match error.kind() {
        ErrorKind::PermissionDenied => "ports below 1024 take privilege",
        ErrorKind::AddrInUse => "something listens there already",
        _ => "this machine does not give it",
    };
    format!("{why}: name another port of this side, or 0 for any, as in 0:{port}")
}

fn own(call: &'static str) -> impl FnOnce(std::io::Error) -> ClientError {
    move |source| ClientError::Own { call, source }
}

/// Joins standard input and output to the door, as `ProxyCommand` wants it (ssh_config(5)), until the door closes. What the
/// door says in place of SSH is the error: SSH clients keep it to themselves.
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
    let (mut begun, mut refused) = (false, None);
    loop {
        match from.read(&mut chunk) {
            Ok(0) => return refused.map_or(Ok(()), |refused: SshError| Err(refused.into())),
            Ok(length) => {
                let line = chunk[..length].trim_ascii();
                refused = (!begun && !line.starts_with(b"SSH-")).then(|| refusal(line)).flatten();
                begun = true;
                output.write_all(&chunk[..length]).and_then(|()| output.flush()).map_err(own("standard output"))?;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // Closed before it has read what went there.
            Err(error) => return Err(refused.map_or_else(|| own("the socket")(error), ClientError::from)),
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
    channel.keep_order();
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
    let code = attend(&channel, pass_on(&channel, terminal)).await;
    drop(raw);
    code
}

/// Carries this process's streams, until the channel's end or that of `meanwhile`.
async fn attend(channel: &Arc<Channel>, meanwhile: impl Future<Output = u8>) -> Result<u8, ClientError> {
    let fed = tokio::spawn(feed(channel.clone(), stdio::input()));
    let outcome = tokio::select! {
        outcome = show_all(channel) => outcome,
        code = meanwhile => Ok(code),
    };
    fed.abort();
    match outcome {
        // As a program ends whose reader has gone, which nobody is told of either (signal(7), SIGPIPE).
        Err(error) if error.is_unread() => Ok(exit::SIGNAL_BASE.wrapping_add(Signal::SIGPIPE as i32 as u8)),
        outcome => outcome,
    }
}

/// Shows what comes on both streams, in the order in which it comes, to their end; the exit code that stands for how the
/// channel ended.
async fn show_all(channel: &Channel) -> Result<u8, ClientError> {
    let show = async {
        while let Some((stream, data)) = channel.take_any().await {
            match stream {
                Stream::Data => {
                    let mut output = std::io::stdout().lock();
                    output.write_all(&data).and_then(|()| output.flush()).map_err(own("standard output"))?;
                }
                Stream::Error => std::io::stderr().write_all(&data).map_err(own("standard error"))?,
            }
        }
        Ok::<_, ClientError>(())
    };
    // What cannot be shown is the end of it.
    let ((), code) = tokio::try_join!(show, async { Ok(ended(channel).await) })?;
    code.ok_or(Closed.into())
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
async fn pass_on(channel: &Channel, terminal: bool) -> u8 {
    let Some(mut caught) = Caught::begin() else { return std::future::pending().await };
    loop {
        let Some(signal) = caught.next().await else {
            caught.resize(channel, terminal);
            continue;
        };
        let mut details = Vec::new();
        details.put_string(signal.as_str().trim_start_matches("SIG").as_bytes());
        channel.send_request("signal", false, &details);
    }
}

/// Signals that come to this process instead of ending it.
struct Caught {
    resized: tokio::signal::unix::Signal,
    ending: [(Signal, tokio::signal::unix::Signal); 3],
}

impl Caught {
    fn begin() -> Option<Self> {
        let catch = |number: Signal| Some((number, signal(SignalKind::from_raw(number as i32)).ok()?));
        Some(Self {
            resized: signal(SignalKind::window_change()).ok()?,
            ending: [catch(Signal::SIGINT)?, catch(Signal::SIGTERM)?, catch(Signal::SIGHUP)?],
        })
    }

    /// One that would have ended it; `None` for a new size of the terminal.
    async fn next(&mut self) -> Option<Signal> {
        let [(first, one), (second, two), (third, three)] = &mut self.ending;
        tokio::select! {
            _ = self.resized.recv() => None,
            _ = one.recv() => Some(*first),
            _ = two.recv() => Some(*second),
            _ = three.recv() => Some(*third),
        }
    }

    /// Tells the size of the terminal, if there is one for the other side.
    fn resize(&self, channel: &Channel, terminal: bool) {
        if terminal && let Some(shape) = stdio::shape() {
            channel.send_request("window-change", false, &size_of(&shape));
        }
    }
}

async fn feed(channel: Arc<Channel>, mut input: mpsc::Receiver<Vec<u8>>) {
    while let Some(piece) = input.recv().await {
        if channel.send(Stream::Data, &piece).await.is_err() {
            return;
        }
    }
    channel.eof();
}

/// A size, as `pty-req` and `window-change` have it.
fn size_of(shape: &Shape) -> Vec<u8> {
    let mut details = Vec::new();
    for value in [shape.columns, shape.rows, shape.width, shape.height] {
        details.put_u32(value.into());
    }
    details
}

/// Asks for a terminal like the one that this process has, if it has one.
fn want_terminal(channel: &Channel) -> Result<Option<Raw>, ClientError> {
    let mut details = Vec::new();
    details.put_string(std::env::var_os("TERM").unwrap_or_default().as_encoded_bytes());
    let shape = stdio::shape().unwrap_or_default();
    details.extend(size_of(&shape));
    let mut modes = Vec::new();
    for (opcode, value) in shape.modes {
        modes.push(opcode);
        modes.put_u32(value);
    }
    modes.push(0);
    details.put_string(&modes);
    channel.send_request("pty-req", false, &details);
    Raw::enter().map_err(own("tcsetattr"))
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

/// Listens on this side's loopback, and carries what connects there to `port` inside, until the connection ends, which is
/// an error. `listening` is told where.
///
/// # Errors
/// [`ClientError`].
pub async fn forward(
    place: &Place,
    local: u16,
    port: u16,
    listening: impl FnOnce(&[SocketAddr]),
) -> Result<(), ClientError> {
    let opener = connect(place).await?;
    let (four, six) = listen(local, port).await?;
    let addresses = [Some(&four), six.as_ref()].into_iter().flatten().map(TcpListener::local_addr);
    listening(&addresses.collect::<Result<Vec<_>, _>>().map_err(own("getsockname"))?);
    let mut carried = JoinSet::new();
    loop {
        let also = async {
            match &six {
                Some(six) => six.accept().await,
                None => std::future::pending().await,
            }
        };
        let accepted = tokio::select! {
            accepted = four.accept() => accepted,
            accepted = also => accepted,
            Some(_) = carried.join_next() => continue,
            () = opener.ended() => break,
        };
        let (stream, from) = accepted.map_err(own("accept"))?;
        let mut details = Vec::new();
        details.put_string(b"localhost");
        details.put_u32(port.into());
        details.put_string(from.ip().to_string().as_bytes());
        details.put_u32(from.port().into());
        let Some(channel) = opener.open("direct-tcpip", &details) else { break };
        carried.spawn(through(channel, stream));
    }
    // What has arrived still goes to who waits for it.
    while carried.join_next().await.is_some() {}
    Err(Closed.into())
}

async fn through(channel: Channel, stream: TcpStream) {
    match channel.opened().await {
        Ok(()) => forward::carry(channel, stream).await,
        Err(refused) => say!("openshell-supervisor: forward: {}", Shown(refused.reason.as_bytes())),
    }
}

/// Listens on both addresses that `localhost` may mean, or on the first where this machine has no other. They have the same
/// port: who asks for the second must not meet somebody else there.
async fn listen(local: u16, port: u16) -> Result<(TcpListener, Option<TcpListener>), ClientError> {
    let mut attempts = 0;
    loop {
        let failed = |address| move |source| ClientError::Listen { address, port, source };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, local));
        let four = TcpListener::bind(address).await.map_err(failed(address))?;
        let chosen = four.local_addr().map_err(own("getsockname"))?.port();
        let address = SocketAddr::from((Ipv6Addr::LOCALHOST, chosen));
        attempts += 1;
        match TcpListener::bind(address).await {
            Ok(six) => return Ok((four, Some(six))),
            // A port that the kernel chose for one may be taken for the other.
            Err(error) if error.kind() == ErrorKind::AddrInUse && local == 0 && attempts < PORTS_TRIED => {}
            Err(error) if error.kind() == ErrorKind::AddrInUse => return Err(failed(address)(error)),
            Err(_) => return Ok((four, None)),
        }
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
