//! The gate in front of the HTTP library: it lets one well-formed forward request after another through, byte for
//! byte, and nothing else. Whatever comes next that is not one (a CONNECT, a malformed head, the end) it holds back and
//! reports the stream as ended; the library then finishes what it has, and [`super::listener`] goes on with what is
//! held. So there is one reader of heads, one implementation of CONNECT, and no answer that the library makes up.

use std::future::Future;
use std::io;
use std::os::fd::AsRawFd as _;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use nix::sys::socket::{MsgFlags, recv};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};

use super::chunk::Chunks;
use super::head::{self, Framing, HeadError};
use super::limits::Patience;

/// First allocation of the buffer: most heads fit.
const BUFFER: usize = 2048;

/// What comes next on a connection.
#[derive(Debug)]
pub(super) enum Next {
    /// A CONNECT whose head has this length; it lies at the start of [`Gate::held`].
    Connect(usize),
    /// Another request, which the gate is ready to let through.
    Forward,
    /// A head that must be refused.
    Refuse(HeadError),
    /// The end: the client closed, or said nothing for [`Patience::keep_alive`].
    End,
}

/// What was wrong with a body, for the request that it belonged to.
pub(super) type Fault = Arc<Mutex<Option<String>>>;

#[derive(Debug)]
enum State {
    /// At the start of a head.
    Between,
    /// A head that passed and is being let through, so many bytes of it left, and what follows.
    Head { left: usize, framing: Framing, then: Then },
    /// In a body of known length.
    Length { left: u64, then: Then },
    /// In a chunked body.
    Chunked { chunks: Chunks, then: Then },
    /// What comes next is not for the library; it lies in [`Gate::next`].
    Held,
    /// After a request to speak another protocol: what follows is a tunnel's, or a request if the origin declined.
    Paused {
        /// Whether the client wanted the connection to outlive the answer.
        keep_alive: bool,
    },
    /// A body broke off: nobody can tell where the next request would start.
    Broken,
}

/// What follows a request.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// The next head.
    Between,
    /// See [`State::Paused`].
    Paused { keep_alive: bool },
}

impl From<Then> for State {
    fn from(then: Then) -> Self {
        match then {
            Then::Between => Self::Between,
            Then::Paused { keep_alive } => Self::Paused { keep_alive },
        }
    }
}

/// What a client's bytes come over.
pub(super) enum Transport {
    /// The socket itself, which others may hold as well.
    Socket(Arc<TcpStream>),
    /// TLS that ends here, or anything else that is read through a buffer.
    Layer(Box<dyn Layer>),
}

/// A stream on top of a socket.
pub(super) trait Layer: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Layer for T {}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(socket) => f.debug_tuple("Socket").field(socket).finish(),
            Self::Layer(_) => f.write_str("Layer"),
        }
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Layer(layer) => Pin::new(layer).poll_read(cx, out),
            Self::Socket(socket) => {
                let received = ready!(poll_receive(socket, cx, out.initialize_unfilled()))?;
                out.advance(received);
                Poll::Ready(Ok(()))
            }
        }
    }
}

/// Reads from a socket that others may hold as well.
fn poll_receive(socket: &TcpStream, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
    // What makes a task whose socket never runs dry give way to the others in the end.
    let turn = ready!(tokio::task::coop::poll_proceed(cx));
    loop {
        let mut received = 0;
        let outcome = socket.try_io(Interest::READABLE, || {
            received = recv(socket.as_raw_fd(), room, MsgFlags::empty())?;
            // A read that leaves room has emptied the socket, and what comes after it makes a new event (epoll(7),
            // EPOLLET): the next reader need not try first and be told to wait.
            if (1..room.len()).contains(&received) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
        });
        match outcome {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && received == 0 => {
                ready!(socket.poll_read_ready(cx))?;
            }
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Poll::Ready(Err(error)),
            _ => {
                turn.made_progress();
                return Poll::Ready(Ok(received));
            }
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Layer(layer) => Pin::new(layer).poll_write(cx, bytes),
            Self::Socket(socket) => loop {
                match socket.try_write(bytes) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(socket.poll_write_ready(cx))?,
                    outcome => return Poll::Ready(outcome),
                }
            },
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Layer(layer) => Pin::new(layer).poll_write_vectored(cx, parts),
            Self::Socket(socket) => loop {
                match socket.try_write_vectored(parts) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready!(socket.poll_write_ready(cx))?,
                    outcome => return Poll::Ready(outcome),
                }
            },
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Layer(layer) => layer.is_write_vectored(),
            Self::Socket(_) => true,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Layer(layer) => Pin::new(layer).poll_flush(cx),
            Self::Socket(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Layer(layer) => Pin::new(layer).poll_shutdown(cx),
            Self::Socket(socket) => Poll::Ready(super::splice::end(socket)),
        }
    }
}

/// A stream of which some bytes have been read already: they come first.
#[derive(Debug)]
pub(super) struct Replay<S> {
    ahead: Vec<u8>,
    at: usize,
    stream: S,
}

impl<S> Replay<S> {
    pub(super) fn new(ahead: Vec<u8>, stream: S) -> Self {
        Self { ahead, at: 0, stream }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Replay<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let replay = self.get_mut();
        if replay.at < replay.ahead.len() {
            let count = (replay.ahead.len() - replay.at).min(out.remaining());
            out.put_slice(&replay.ahead[replay.at..replay.at + count]);
            replay.at += count;
            if replay.at == replay.ahead.len() {
                (replay.ahead, replay.at) = (Vec::new(), 0);
            }
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut replay.stream).poll_read(cx, out)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Replay<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

/// Interim responses that are to be written before the next byte of anything else.
pub(super) type Interim = Arc<Mutex<Vec<u8>>>;

/// A client connection as the HTTP library sees it.
#[derive(Debug)]
pub(super) struct Gate {
    transport: Transport,
    /// Received and not let through.
    buffer: Vec<u8>,
    /// Where in it the first such byte lies.
    start: usize,
    /// How far [`head::end`] has looked.
    scanned: usize,
    state: State,
    /// What made the gate shut.
    next: Option<Next>,
    /// Runs while bytes are awaited.
    deadline: Option<Pin<Box<Sleep>>>,
    /// What it is for: it is set again only when this changes.
    awaited: Awaited,
    patience: Patience,
    fault: Fault,
    interim: Interim,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Awaited {
    Nothing,
    Request,
    Head,
    Body,
}

impl Gate {
    pub(super) fn new(transport: Transport, patience: Patience) -> Self {
        Self::with_held(transport, Vec::new(), patience)
    }

    fn with_buffer(transport: Transport, patience: Patience, buffer: Vec<u8>) -> Self {
        Self {
            transport,
            buffer,
            start: 0,
            scanned: 0,
            state: State::Between,
            next: None,
            deadline: None,
            awaited: Awaited::Nothing,
            patience,
            fault: Fault::default(),
            interim: Interim::default(),
        }
    }

    /// The same for a client of whom some bytes have been read.
    pub(super) fn with_held(transport: Transport, held: Vec<u8>, patience: Patience) -> Self {
        let buffer = if held.capacity() == 0 { Vec::with_capacity(BUFFER) } else { held };
        Self::with_buffer(transport, patience, buffer)
    }

    /// Where a fault of the body that is passing is left.
    pub(super) fn fault(&self) -> Fault {
        self.fault.clone()
    }

    /// Where interim responses are left.
    pub(super) fn interim(&self) -> Interim {
        self.interim.clone()
    }

    /// The socket, if nothing lies between it and the bytes.
    pub(super) fn socket(&self) -> Option<&Arc<TcpStream>> {
        match &self.transport {
            Transport::Socket(socket) => Some(socket),
            Transport::Layer(_) => None,
        }
    }

    /// Takes back bytes that were let through and not used.
    pub(super) fn unread(&mut self, bytes: &[u8]) {
        self.buffer.splice(..self.start, bytes.iter().copied());
        self.start = 0;
    }

    /// The connection as a stream of bytes, those that are held first.
    pub(super) fn into_stream(mut self) -> Replay<Transport> {
        Replay::new(self.buffer.split_off(self.start), self.transport)
    }

    /// Bytes received and not let through.
    pub(super) fn held(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    /// Drops the first `count` bytes of [`Self::held`].
    pub(super) fn drop_held(&mut self, count: usize) {
        self.start = (self.start + count).min(self.buffer.len());
    }

    /// Opens the gate again after the library is done, if there can be another request on this connection.
    pub(super) fn reopen(&mut self) -> bool {
        let open = matches!(self.state, State::Held | State::Paused { keep_alive: true });
        if open {
            self.state = State::Between;
        }
        open
    }

    /// Looks at what comes next, without letting anything through.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Next> {
        if let Some(next) = self.next.take() {
            return Poll::Ready(next);
        }
        loop {
            // RFC 9112 §2.2: an empty line before a request line is ignored; old clients end a body with one.
            if self.scanned == 0 && self.held().starts_with(b"\r\n") {
                self.start += 2;
            }
            match head::end(&self.buffer[self.start..], &mut self.scanned) {
                Err(error) => return Poll::Ready(Next::Refuse(error)),
                Ok(Some(length)) => {
                    let next = match head::parse(&self.buffer[self.start..self.start + length]) {
                        Err(error) => Next::Refuse(error),
                        Ok(head) if head.method == "CONNECT" => Next::Connect(length),
                        Ok(head) => {
                            let then =
                                if head.upgrade { Then::Paused { keep_alive: head.keep_alive } } else { Then::Between };
                            self.state = State::Head { left: length, framing: head.framing, then };
                            Next::Forward
                        }
                    };
                    self.awaited = Awaited::Nothing;
                    return Poll::Ready(next);
                }
                Ok(None) => {}
            }
            let idle = self.held().is_empty();
            match self.poll_fill(cx) {
                Poll::Ready(Ok(0)) if idle => return Poll::Ready(Next::End),
                Poll::Ready(Ok(0)) => {
                    return Poll::Ready(Next::Refuse(HeadError::Malformed("the request head ends in the middle")));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Next::End),
                Poll::Pending => {
                    let (awaited, time) = if idle {
                        (Awaited::Request, self.patience.keep_alive)
                    } else {
                        (Awaited::Head, self.patience.head)
                    };
                    ready!(self.poll_deadline(cx, awaited, time));
                    return Poll::Ready(if idle { Next::End } else { Next::Refuse(HeadError::TooSlow) });
                }
            }
        }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>, awaited: Awaited, time: std::time::Duration) -> Poll<()> {
        let sleep = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(Instant::now() + time)));
        if self.awaited != awaited {
            self.awaited = awaited;
            sleep.as_mut().reset(Instant::now() + time);
        }
        sleep.as_mut().poll(cx)
    }

    /// Reads more into the buffer.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
        } else if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        let Transport::Socket(socket) = &self.transport else {
            self.buffer.reserve(BUFFER);
            return pin!(tokio::io::AsyncReadExt::read_buf(&mut self.transport, &mut self.buffer)).poll(cx);
        };
        let filled = self.buffer.len();
        self.buffer.resize(filled + BUFFER, 0);
        let received = poll_receive(socket, cx, &mut self.buffer[filled..]);
        self.buffer.truncate(filled + if let Poll::Ready(Ok(received)) = received { received } else { 0 });
        received
    }

    /// Fills `out` with the next bytes of a body, at most `most`, none at the end of the stream.
    fn poll_body(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>, most: usize) -> Poll<io::Result<()>> {
        let most = most.min(out.remaining());
        if !self.held().is_empty() {
            let count = self.held().len().min(most);
            out.put_slice(&self.buffer[self.start..self.start + count]);
            self.drop_held(count);
            return Poll::Ready(Ok(()));
        }
        let mut part = ReadBuf::new(out.initialize_unfilled_to(most));
        match Pin::new(&mut self.transport).poll_read(cx, &mut part) {
            Poll::Ready(outcome) => {
                let count = part.filled().len();
                out.advance(count);
                self.awaited = Awaited::Nothing;
                Poll::Ready(outcome)
            }
            Poll::Pending => {
                ready!(self.poll_deadline(cx, Awaited::Body, self.patience.body));
                self.break_off("nothing came of the request body for too long");
                Poll::Ready(Ok(()))
            }
        }
    }

    fn break_off(&mut self, reason: &str) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        self.state = State::Broken;
    }
}

impl AsyncRead for Gate {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let gate = self.get_mut();
        let before = out.filled().len();
        loop {
            match &mut gate.state {
                State::Held | State::Paused { .. } | State::Broken => return Poll::Ready(Ok(())),
                State::Between => match ready!(gate.poll_next(cx)) {
                    Next::Forward => {}
                    other => {
                        gate.next = Some(other);
                        gate.state = State::Held;
                    }
                },
                State::Head { left, framing, then } => {
                    let count = (*left).min(out.remaining());
                    *left -= count;
                    if *left == 0 {
                        gate.state = match *framing {
                            Framing::Empty | Framing::Length(0) => (*then).into(),
                            Framing::Length(left) => State::Length { left, then: *then },
                            Framing::Chunked => State::Chunked { chunks: Chunks::new(), then: *then },
                        };
                    }
                    out.put_slice(&gate.buffer[gate.start..gate.start + count]);
                    gate.drop_held(count);
                    return Poll::Ready(Ok(()));
                }
                State::Length { left, then } => {
                    let (left, then) = (*left, *then);
                    ready!(gate.poll_body(cx, out, usize::try_from(left).unwrap_or(usize::MAX)))?;
                    let left = left - (out.filled().len() - before) as u64;
                    if out.filled().len() == before {
                        gate.break_off("the request body ends before its Content-Length");
                    } else {
                        gate.state = if left == 0 { then.into() } else { State::Length { left, then } };
                    }
                    return Poll::Ready(Ok(()));
                }
                State::Chunked { chunks, then } => {
                    let (mut chunks, then) = (*chunks, *then);
                    ready!(gate.poll_body(cx, out, usize::MAX))?;
                    let arrived = &out.filled()[before..];
                    if arrived.is_empty() {
                        gate.break_off("the request body ends before its last chunk");
                        return Poll::Ready(Ok(()));
                    }
                    match chunks.take(arrived) {
                        Ok((_, false)) => gate.state = State::Chunked { chunks, then },
                        Ok((count, true)) => {
                            // What follows the body is the next request's.
                            gate.buffer.splice(..gate.start, arrived[count..].iter().copied());
                            gate.start = 0;
                            out.set_filled(before + count);
                            gate.state = then.into();
                        }
                        Err((count, error)) => {
                            out.set_filled(before + count);
                            gate.break_off(error.0);
                        }
                    }
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl Gate {
    /// Writes the interim responses that wait.
    fn poll_interim(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut waiting = self.interim.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let gone = ready!(Pin::new(&mut self.transport).poll_write(cx, &waiting))?;
            if gone == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            waiting.drain(..gone);
        }
    }
}

impl AsyncWrite for Gate {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let gate = self.get_mut();
        ready!(gate.poll_interim(cx))?;
        Pin::new(&mut gate.transport).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let gate = self.get_mut();
        ready!(gate.poll_interim(cx))?;
        Pin::new(&mut gate.transport).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let gate = self.get_mut();
        ready!(gate.poll_interim(cx))?;
        Pin::new(&mut gate.transport).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection outlives the library's use of it; its end is the listener's to make.
        Poll::Ready(Ok(()))
    }
}
