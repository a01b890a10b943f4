//! One channel of a connection (RFC 4254 §5), as those have it who read and write it.
//!
//! Its window is granted anew as what came in is *taken*, not as it comes in: a reader that stops costs one window of
//! memory, and no other channel waits for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use tokio::sync::Notify;

use super::connection::Shared;
use super::kex::message;
use super::number;
use super::wire::Writer;

/// What a peer may send on a channel before somebody has taken it.
pub const WINDOW: u32 = 1 << 20;

/// Largest data packet that the peer is asked to send (RFC 4253 §6.1).
pub const PACKET: u32 = 32 << 10;

/// Most of the peer's requests on one channel that wait to be answered: more is no use that anybody makes of it.
const REQUESTS_LIMIT: usize = 128;

/// Most bytes of them: the longest command that a packet can bring, and its environment.
const REQUESTS_BYTES: usize = 512 << 10;

/// Most answers that wait to be looked at. This side asks for a handful at a time.
pub(super) const ANSWERS_LIMIT: usize = 128;

/// Most that is taken at a time, so that what somebody holds and writes slowly is little beside the window.
const TAKEN: usize = 128 << 10;

/// A stream of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Data.
    Data,
    /// Standard error (RFC 4254 §5.2).
    Error,
}

/// The only type of extended data (RFC 4254 §5.2).
pub(super) const EXTENDED_STDERR: u32 = 1;

/// The peer wants something of a channel.
#[derive(Clone, Debug)]
pub struct Request {
    /// What.
    pub name: String,
    /// Whether it wants an answer ([`Channel::answer`]).
    pub wants_answer: bool,
    /// All that follows, by what it is.
    pub details: Bytes,
}

/// Why a channel is not opened (RFC 4254 §5.1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// [`PROHIBITED`] and its kin.
    pub code: u32,
    /// For people.
    pub reason: String,
}

/// It may not be.
pub const PROHIBITED: u32 = 1;
/// It leads nowhere.
pub const CONNECT_FAILED: u32 = 2;
/// There is no such kind of channel.
pub const UNKNOWN_KIND: u32 = 3;
/// There are too many.
pub const SHORTAGE: u32 = 4;

/// The channel, or its connection, is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the channel is closed")]
pub struct Closed;

#[derive(Debug)]
pub(super) struct State {
    pub(super) inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Debug, Default)]
pub(super) struct Inner {
    /// The peer's number, and the largest packet it takes, once there is one.
    pub(super) peer: Option<(u32, u32)>,
    pub(super) refused: Option<Refused>,
    /// What may still be sent.
    pub(super) window: u64,
    /// What the peer may still send.
    pub(super) granted: u32,
    /// What has been taken, and not been granted anew.
    taken: u32,
    data: BytesMut,
    error: BytesMut,
    /// What came in which order, where somebody wants to know: of which stream, and how much.
    turns: Option<VecDeque<(Stream, u32)>>,
    requests: VecDeque<Request>,
    /// Answers to our requests, in order.
    pub(super) answers: VecDeque<bool>,
    pub(super) peer_eof: bool,
    pub(super) peer_closed: bool,
    eof: bool,
    pub(super) closed: bool,
}

impl Inner {
    /// Takes in data. `false` where the peer was not granted as much.
    pub(super) fn receive(&mut self, stream: Stream, data: &[u8]) -> bool {
        let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
        if length > self.granted || self.peer_eof {
            return false;
        }
        self.granted -= length;
        if let Some(turns) = self.turns.as_mut().filter(|_| length > 0) {
            match turns.back_mut() {
                Some((last, so_far)) if *last == stream => *so_far += length,
                _ => turns.push_back((stream, length)),
            }
        }
        match (self.closed, stream) {
            // Nobody will take it.
            (true, _) => {}
            (_, Stream::Data) => self.data.extend_from_slice(data),
            (_, Stream::Error) => self.error.extend_from_slice(data),
        }
        true
    }

    /// Takes in a request. `false` where too much waits already.
    pub(super) fn ask(&mut self, request: Request) -> bool {
        // Nobody will look at it.
        if self.closed {
            return true;
        }
        let waiting: usize = self.requests.iter().map(|request| request.details.len()).sum();
        if self.requests.len() >= REQUESTS_LIMIT || waiting + request.details.len() > REQUESTS_BYTES {
            return false;
        }
        self.requests.push_back(request);
        true
    }
}

impl State {
    pub(super) fn new() -> Self {
        Self { inner: Mutex::new(Inner { granted: WINDOW, ..Inner::default() }), changed: Notify::new() }
    }

    pub(super) fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self) {
        self.changed.notify_waiters();
    }

    /// Waits until `look` finds something.
    async fn until<T>(&self, mut look: impl FnMut(&mut Inner) -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.inner()) {
                return found;
            }
            changed.await;
        }
    }
}

/// A channel. Dropping it closes it.
#[derive(Debug)]
pub struct Channel {
    pub(super) number: u32,
    pub(super) shared: Arc<Shared>,
    pub(super) state: Arc<State>,
}

impl Channel {
    /// Agrees to a channel that the peer opens.
    pub fn confirm(&self) {
        let Some((peer, _)) = self.state.inner().peer else { return };
        let mut confirmation = message(number::CHANNEL_OPEN_CONFIRMATION);
        confirmation.put_u32(peer);
        confirmation.put_u32(self.number);
        confirmation.put_u32(WINDOW);
        confirmation.put_u32(PACKET);
        self.shared.outgoing.push(confirmation);
    }

    /// Refuses a channel that the peer opens, and that has not been confirmed.
    pub fn refuse(self, refused: &Refused) {
        {
            let mut inner = self.state.inner();
            let Some((peer, _)) = inner.peer else { return };
            // There is nothing to close.
            (inner.closed, inner.peer_closed) = (true, true);
            self.shared.outgoing.push(refusal(peer, refused));
        }
        self.shared.forget(self.number);
    }

    /// For one that this side opens: waits until the peer agrees.
    ///
    /// # Errors
    /// [`Refused`].
    pub async fn opened(&self) -> Result<(), Refused> {
        self.state
            .until(|inner| match (&inner.refused, inner.peer, inner.peer_closed) {
                (Some(refused), ..) => Some(Err(refused.clone())),
                (_, Some(_), _) => Some(Ok(())),
                (.., true) => Some(Err(Refused { code: CONNECT_FAILED, reason: "the connection has ended".into() })),
                _ => None,
            })
            .await
    }

    /// The peer's next request; `None` once the channel is closed. May be cancelled; nothing is lost.
    pub async fn request(&self) -> Option<Request> {
        self.state
            .until(|inner| match inner.requests.pop_front() {
                Some(request) => Some(Some(request)),
                None => inner.peer_closed.then_some(None),
            })
            .await
    }

    /// Answers a request, if it wants that.
    pub fn answer(&self, request: &Request, done: bool) {
        if request.wants_answer {
            self.send_short(if done { number::CHANNEL_SUCCESS } else { number::CHANNEL_FAILURE });
        }
    }

    /// Takes what has come in on a stream; `None` at its end. May be cancelled; nothing is lost.
    pub async fn take(&self, stream: Stream) -> Option<BytesMut> {
        let taken = self
            .state
            .until(|inner| {
                let buffer = match stream {
                    Stream::Data => &mut inner.data,
                    Stream::Error => &mut inner.error,
                };
                match buffer.is_empty() {
                    false => Some(Some(buffer.split_to(buffer.len().min(TAKEN)))),
                    true => (inner.peer_eof || inner.peer_closed).then_some(None),
                }
            })
            .await?;
        // No longer than a window.
        self.grant(taken.len() as u32);
        Some(taken)
    }

    /// From now on it is known in which order the two streams came, for [`Channel::take_any`], and that alone takes from
    /// them. To be called before the peer has anything to send.
    pub fn keep_order(&self) {
        self.state.inner().turns = Some(VecDeque::new());
    }

    /// Takes what has come in first, on whichever stream; `None` at the end of both. May be cancelled; nothing is lost.
    pub async fn take_any(&self) -> Option<(Stream, BytesMut)> {
        let (stream, taken) = self
            .state
            .until(|inner| {
                let Some(turns) = inner.turns.as_mut() else { return Some(None) };
                let Some((stream, length)) = turns.front_mut() else {
                    return (inner.peer_eof || inner.peer_closed).then_some(None);
                };
                let (stream, most) = (*stream, (*length).min(TAKEN as u32));
                *length -= most;
                if *length == 0 {
                    turns.pop_front();
                }
                let buffer = match stream {
                    Stream::Data => &mut inner.data,
                    Stream::Error => &mut inner.error,
                };
                Some(Some((stream, buffer.split_to(buffer.len().min(most as usize)))))
            })
            .await?;
        self.grant(taken.len() as u32);
        Some((stream, taken))
    }

    fn grant(&self, taken: u32) {
        let mut inner = self.state.inner();
        inner.taken += taken;
        // In halves, so that few packets say it.
        if inner.taken < WINDOW / 2 || inner.peer_eof || inner.peer_closed || inner.closed {
            return;
        }
        let Some((peer, _)) = inner.peer else { return };
        let more = std::mem::take(&mut inner.taken);
        inner.granted += more;
        let mut adjustment = message(number::CHANNEL_WINDOW_ADJUST);
        adjustment.put_u32(peer);
        adjustment.put_u32(more);
        self.shared.outgoing.push(adjustment);
    }

    /// Sends data as the peer's window allows it.
    ///
    /// # Errors
    /// [`Closed`].
    pub async fn send(&self, stream: Stream, mut data: &[u8]) -> Result<(), Closed> {
        while !data.is_empty() {
            // First the window, for which many may wait, then room for one packet each.
            let sendable = |inner: &mut Inner| {
                let (peer, most) = inner.peer?;
                if inner.closed || inner.peer_closed || inner.eof {
                    return Some(Err(Closed));
                }
                let chunk = inner.window.min(u64::from(most)).min(data.len() as u64);
                (chunk > 0).then_some(Ok((peer, chunk)))
            };
            self.state.until(sendable).await?;
            self.shared.room().await;
            let (peer, chunk) = {
                let mut inner = self.state.inner();
                let Some(sent) = sendable(&mut inner) else { continue };
                let (peer, chunk) = sent?;
                inner.window -= chunk;
                (peer, chunk as usize)
            };
            let (now, later) = data.split_at(chunk);
            let mut packet = message(match stream {
                Stream::Data => number::CHANNEL_DATA,
                Stream::Error => number::CHANNEL_EXTENDED_DATA,
            });
            // With what is sealed around it.
            packet.reserve(now.len() + 64);
            packet.put_u32(peer);
            if stream == Stream::Error {
                packet.put_u32(EXTENDED_STDERR);
            }
            packet.put_string(now);
            self.shared.outgoing.push(packet);
            data = later;
        }
        Ok(())
    }

    /// Says that no more data comes.
    pub fn eof(&self) {
        let mut inner = self.state.inner();
        if !inner.eof && !inner.closed {
            inner.eof = true;
            drop(inner);
            self.send_short(number::CHANNEL_EOF);
        }
    }

    /// Says that a program has exited.
    pub fn exit_status(&self, code: u32) {
        let mut details = Vec::new();
        details.put_u32(code);
        self.send_request("exit-status", false, &details);
    }

    /// Says that a signal has ended a program, by the signal's name without SIG.
    pub fn exit_signal(&self, name: &str) {
        let mut details = Vec::new();
        details.put_string(name.as_bytes());
        details.put_boolean(false);
        details.put_string(b"");
        details.put_string(b"");
        self.send_request("exit-signal", false, &details);
    }

    /// Asks something of the peer.
    pub fn send_request(&self, name: &str, wants_answer: bool, details: &[u8]) {
        let inner = self.state.inner();
        let Some((peer, _)) = inner.peer.filter(|_| !inner.closed) else { return };
        let mut request = message(number::CHANNEL_REQUEST);
        request.put_u32(peer);
        request.put_string(name.as_bytes());
        request.put_boolean(wants_answer);
        request.extend_from_slice(details);
        self.shared.outgoing.push(request);
    }

    /// The answer to the oldest request of ours that wanted one; `None` once the channel is closed.
    pub async fn answered(&self) -> Option<bool> {
        self.state
            .until(|inner| match inner.answers.pop_front() {
                Some(answer) => Some(Some(answer)),
                None => inner.peer_closed.then_some(None),
            })
            .await
    }

    /// Waits until the peer has closed the channel.
    pub async fn closed(&self) {
        self.state.until(|inner| inner.peer_closed.then_some(())).await;
    }

    /// Whether the peer has said that it sends no more: what is closed without that has broken off.
    pub fn is_whole(&self) -> bool {
        self.state.inner().peer_eof
    }

    /// Closes it. What has been sent still goes.
    pub fn close(&self) {
        let mut inner = self.state.inner();
        if inner.closed {
            return;
        }
        inner.closed = true;
        let (peer, over) = (inner.peer, inner.peer_closed);
        if let Some((peer, _)) = peer {
            let mut goodbye = message(number::CHANNEL_CLOSE);
            goodbye.put_u32(peer);
            self.shared.outgoing.push(goodbye);
        }
        drop(inner);
        if over {
            self.shared.forget(self.number);
        }
    }

    fn send_short(&self, kind: u8) {
        let Some((peer, _)) = self.state.inner().peer else { return };
        let mut short = message(kind);
        short.put_u32(peer);
        self.shared.outgoing.push(short);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.close();
    }
}

/// CHANNEL_OPEN_FAILURE.
pub(super) fn refusal(peer: u32, refused: &Refused) -> Vec<u8> {
    let mut refusal = message(number::CHANNEL_OPEN_FAILURE);
    refusal.put_u32(peer);
    refusal.put_u32(refused.code);
    refusal.put_string(refused.reason.as_bytes());
    refusal.put_string(b"");
    refusal
}
