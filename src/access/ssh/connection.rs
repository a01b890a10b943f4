//! A connection: authentication, and the channels in it (RFC 4252, RFC 4254).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::net::UnixStream;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::channel::{
    ANSWERS_LIMIT, Channel, EXTENDED_STDERR, PACKET, Refused, Request, SHORTAGE, State, Stream, WINDOW, refusal,
};
use super::kex::{HostKey, Side, message};
use super::transport::{Outgoing, Transport, disconnect};
use super::wire::{Reader, Writer};
use super::{SshError, number};

/// Channels that one connection may have: an editor has a dozen, a browser behind `ssh -D` or `-L` some sixty.
pub const CHANNELS_LIMIT: usize = 128;

/// From the connection to its authentication; it takes milliseconds.
pub const AUTHENTICATION_TIME: Duration = Duration::from_secs(30);

/// A peer that says nothing is asked whether it is there, this often. The kernel tells when a peer on this machine ends;
/// this is for those behind a relay.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// So many questions without an answer, and it is not. People stop their client for a while, to do something else.
const KEEP_ALIVE_LIMIT: u32 = 15;

/// Attempts to authenticate. One is needed.
const ATTEMPTS_LIMIT: u32 = 16;

/// Disconnected for a breach of the protocol (RFC 4253 §11.1).
const PROTOCOL_ERROR: u32 = 2;

/// What all channels of a connection share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) outgoing: Arc<Outgoing>,
    table: Mutex<Table>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct Table {
    channels: HashMap<u32, Arc<State>>,
    next: u32,
    over: bool,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn forget(&self, number: u32) {
        self.table().channels.remove(&number);
    }

    /// Waits until data may be queued.
    pub(super) async fn room(&self) {
        loop {
            let room = self.outgoing.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.outgoing.has_room() || self.table().over {
                return;
            }
            room.await;
        }
    }
}

/// A channel that the peer wants to open: to be confirmed or refused.
#[derive(Debug)]
pub struct Opening {
    /// What kind.
    pub kind: String,
    /// All that follows, by its kind.
    pub details: Bytes,
    /// The channel.
    pub channel: Channel,
}

/// A connection that is authenticated.
#[derive(Debug)]
pub struct Connection {
    transport: Transport,
    shared: Arc<Shared>,
    openings: mpsc::UnboundedSender<Opening>,
    /// The name that the peer gave.
    pub user: String,
}

/// Opens channels of a connection.
#[derive(Clone, Debug)]
pub struct Opener {
    shared: Arc<Shared>,
}

impl Connection {
    /// Serves whoever is at the other end of `stream`. Who that may be has been decided before: every user name and the
    /// method "none" will do.
    ///
    /// # Errors
    /// [`SshError`].
    pub async fn serve(
        stream: UnixStream,
        key: Arc<HostKey>,
    ) -> Result<(Self, mpsc::UnboundedReceiver<Opening>), SshError> {
        let begin = async {
            let mut transport = Transport::begin(stream, Side::Server, Some(key)).await?;
            let user = authenticate(&mut transport).await?;
            Ok::<_, SshError>((transport, user))
        };
        let (transport, user) =
            timeout(AUTHENTICATION_TIME, begin).await.map_err(|_| SshError::TooSlow("authenticate"))??;
        Ok(Self::over(transport, user))
    }

    /// Connects to a server.
    ///
    /// # Errors
    /// [`SshError`].
    pub async fn connect(stream: UnixStream, user: &str) -> Result<(Self, Opener), SshError> {
        let begin = async {
            let mut transport = Transport::begin(stream, Side::Client, None).await?;
            let mut ask = message(number::SERVICE_REQUEST);
            ask.put_string(b"ssh-userauth");
            transport.outgoing.push(ask);
            let mut name = message(number::USERAUTH_REQUEST);
            for word in [user, "ssh-connection", "none"] {
                name.put_string(word.as_bytes());
            }
            transport.outgoing.push(name);
            loop {
                match transport.next().await?[0] {
                    number::SERVICE_ACCEPT | number::USERAUTH_BANNER => {}
                    number::USERAUTH_SUCCESS => return Ok(transport),
                    _ => return Err(SshError::Protocol("the server wants more than a name")),
                }
            }
        };
        let transport =
            timeout(AUTHENTICATION_TIME, begin).await.map_err(|_| SshError::TooSlow("let this side in"))??;
        let (connection, _) = Self::over(transport, user.to_owned());
        let opener = Opener { shared: connection.shared.clone() };
        Ok((connection, opener))
    }

    fn over(transport: Transport, user: String) -> (Self, mpsc::UnboundedReceiver<Opening>) {
        let shared =
            Arc::new(Shared { outgoing: transport.outgoing.clone(), table: Mutex::default(), ended: Notify::new() });
        // Bounded by the channels there may be.
        let (openings, opened) = mpsc::unbounded_channel();
        (Self { transport, shared, openings, user }, opened)
    }

    /// Serves the connection until it ends. All channels are closed then.
    ///
    /// # Errors
    /// How it ended, unless the peer just left.
    pub async fn run(mut self) -> Result<(), SshError> {
        let end = self.exchange().await;
        match &end {
            SshError::Gone | SshError::Disconnected(_) | SshError::Io(_) => {}
            other => self.shared.outgoing.push(disconnect(PROTOCOL_ERROR, &other.to_string())),
        }
        self.shared.end();
        // What is still to be written is memory, and the connection's place is not given to another before.
        self.transport.farewell().await;
        match end {
            SshError::Gone | SshError::Disconnected(_) => Ok(()),
            other => Err(other),
        }
    }

    async fn exchange(&mut self) -> SshError {
        let mut unanswered = 0;
        loop {
            match timeout(KEEP_ALIVE, self.transport.next()).await {
                Ok(Ok(received)) => {
                    unanswered = 0;
                    if let Err(error) = self.receive(&received) {
                        return error;
                    }
                }
                Ok(Err(error)) => return error,
                Err(_) if unanswered == KEEP_ALIVE_LIMIT => return SshError::TooSlow("answer"),
                Err(_) => {
                    unanswered += 1;
                    let mut question = message(number::GLOBAL_REQUEST);
                    question.put_string(b"keepalive@openssh.com");
                    question.put_boolean(true);
                    self.shared.outgoing.push(question);
                }
            }
        }
    }

    fn receive(&self, received: &[u8]) -> Result<(), SshError> {
        let mut reader = Reader::new(&received[1..]);
        match received[0] {
            number::GLOBAL_REQUEST => {
                let _name = reader.string()?;
                // Nothing listens outside for anybody, and nothing else is global.
                if reader.boolean()? {
                    self.shared.outgoing.push(message(number::REQUEST_FAILURE));
                }
                Ok(())
            }
            number::REQUEST_SUCCESS | number::REQUEST_FAILURE => Ok(()),
            number::CHANNEL_OPEN => self.open(reader),
            kind @ number::CHANNEL_OPEN_CONFIRMATION..=number::CHANNEL_FAILURE => {
                let number = reader.u32()?;
                let state = self.shared.table().channels.get(&number).cloned();
                let state = state.ok_or(SshError::Protocol("a message for a channel that there is not"))?;
                self.receive_on(number, &state, kind, reader)?;
                state.tell();
                Ok(())
            }
            _ => {
                let mut unknown = message(number::UNIMPLEMENTED);
                // Which packet it was is of no use to anybody.
                unknown.put_u32(0);
                self.shared.outgoing.push(unknown);
                Ok(())
            }
        }
    }

    fn open(&self, mut reader: Reader<'_>) -> Result<(), SshError> {
        let kind = reader.name()?.to_owned();
        let (peer, window, packet) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let refuse = |reason: &str| {
            let refused = Refused { code: SHORTAGE, reason: reason.to_owned() };
            self.shared.outgoing.push(refusal(peer, &refused));
            Ok(())
        };
        let Some((number, state)) = self.shared.enter() else {
            return refuse(&format!("{CHANNELS_LIMIT} channels are open on this connection; close one"));
        };
        {
            let mut inner = state.inner();
            inner.peer = Some((peer, packet.clamp(1, PACKET)));
            inner.window = window.into();
        }
        let channel = Channel { number, shared: self.shared.clone(), state };
        // Nobody takes them any more when the connection ends.
        let _ = self.openings.send(Opening { kind, details: Bytes::copy_from_slice(reader.rest()), channel });
        Ok(())
    }

    fn receive_on(&self, number: u32, state: &State, kind: u8, mut reader: Reader<'_>) -> Result<(), SshError> {
        let mut inner = state.inner();
        match kind {
            number::CHANNEL_OPEN_CONFIRMATION if inner.peer.is_none() => {
                let (peer, window, packet) = (reader.u32()?, reader.u32()?, reader.u32()?);
                inner.peer = Some((peer, packet.clamp(1, PACKET)));
                inner.window = window.into();
            }
            number::CHANNEL_OPEN_FAILURE if inner.peer.is_none() => {
                let code = reader.u32()?;
                let reason = String::from_utf8_lossy(reader.string()?).into_owned();
                inner.refused = Some(Refused { code, reason });
                (inner.closed, inner.peer_closed) = (true, true);
                drop(inner);
                self.shared.forget(number);
            }
            _ if inner.peer.is_none() || inner.peer_closed => {
                return Err(SshError::Protocol("a message for a channel that is not open"));
            }
            number::CHANNEL_WINDOW_ADJUST => {
                // The RFC's limit is 2^32 - 1; more is kept, and does no harm.
                inner.window = inner.window.saturating_add(reader.u32()?.into()).min(u32::MAX.into());
            }
            number::CHANNEL_DATA | number::CHANNEL_EXTENDED_DATA => {
                let stream = if kind == number::CHANNEL_DATA {
                    Stream::Data
                } else if reader.u32()? == EXTENDED_STDERR {
                    Stream::Error
                } else {
                    return Err(SshError::Protocol("extended data of an unknown type"));
                };
                if !inner.receive(stream, reader.string()?) {
                    return Err(SshError::Protocol("more data than was granted"));
                }
            }
            number::CHANNEL_EOF => inner.peer_eof = true,
            number::CHANNEL_CLOSE => {
                inner.peer_closed = true;
                let over = inner.closed;
                drop(inner);
                if over {
                    self.shared.forget(number);
                }
            }
            number::CHANNEL_REQUEST => {
                let name = reader.name()?.to_owned();
                let wants_answer = reader.boolean()?;
                let details = Bytes::copy_from_slice(reader.rest());
                if !inner.ask(Request { name, wants_answer, details }) {
                    return Err(SshError::Protocol("more requests than can be answered"));
                }
            }
            number::CHANNEL_SUCCESS | number::CHANNEL_FAILURE => {
                if inner.answers.len() >= ANSWERS_LIMIT {
                    return Err(SshError::Protocol("answers that nobody asked for"));
                }
                inner.answers.push_back(kind == number::CHANNEL_SUCCESS);
            }
            _ => return Err(SshError::Protocol("a message that has no place here")),
        }
        Ok(())
    }
}

impl Shared {
    /// Closes all channels, for there is no peer any more.
    fn end(&self) {
        let channels = {
            let mut table = self.table();
            table.over = true;
            std::mem::take(&mut table.channels)
        };
        for state in channels.into_values() {
            {
                let mut inner = state.inner();
                // It may have broken off: nobody has said that this is all.
                inner.peer_closed = true;
            }
            state.tell();
        }
        self.outgoing.room.notify_waiters();
        self.ended.notify_waiters();
    }

    /// A place for one more channel.
    fn enter(&self) -> Option<(u32, Arc<State>)> {
        let mut table = self.table();
        if table.over || table.channels.len() >= CHANNELS_LIMIT {
            return None;
        }
        let mut number = table.next;
        while table.channels.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        table.next = number.wrapping_add(1);
        let state = Arc::new(State::new());
        table.channels.insert(number, state.clone());
        Some((number, state))
    }
}

impl Opener {
    /// Opens a channel; whether the peer agrees, [`Channel::opened`] tells.
    #[must_use]
    pub fn open(&self, kind: &str, details: &[u8]) -> Option<Channel> {
        let (number, state) = self.shared.enter()?;
        let mut opening = message(number::CHANNEL_OPEN);
        opening.put_string(kind.as_bytes());
        for value in [number, WINDOW, PACKET] {
            opening.put_u32(value);
        }
        opening.extend_from_slice(details);
        self.shared.outgoing.push(opening);
        Some(Channel { number, shared: self.shared.clone(), state })
    }

    /// Waits until the connection has ended.
    pub async fn ended(&self) {
        let ended = self.shared.ended.notified();
        tokio::pin!(ended);
        ended.as_mut().enable();
        if !self.shared.table().over {
            ended.await;
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end();
    }
}

/// Lets the peer in by whatever name, and returns that.
async fn authenticate(transport: &mut Transport) -> Result<String, SshError> {
    for _ in 0..ATTEMPTS_LIMIT {
        let received = transport.next().await?;
        let mut reader = Reader::new(&received[1..]);
        match received[0] {
            number::SERVICE_REQUEST if reader.string()? == b"ssh-userauth" => {
                let mut accepted = message(number::SERVICE_ACCEPT);
                accepted.put_string(b"ssh-userauth");
                transport.outgoing.push(accepted);
            }
            number::USERAUTH_REQUEST => {
                let (user, service, method) = (reader.text()?, reader.string()?, reader.string()?);
                if service != b"ssh-connection" {
                    return Err(SshError::Protocol("a service that there is not"));
                }
                if method == b"none" {
                    transport.outgoing.push(message(number::USERAUTH_SUCCESS));
                    return Ok(user.to_owned());
                }
                let mut failure = message(number::USERAUTH_FAILURE);
                failure.put_string(b"none");
                failure.put_boolean(false);
                transport.outgoing.push(failure);
            }
            _ => return Err(SshError::Protocol("a message before authentication")),
        }
    }
    Err(SshError::Protocol("too many attempts to authenticate"))
}

#[cfg(test)]
mod tests;
