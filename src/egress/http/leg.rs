//! The upstream leg: connections to an origin, in the protocol that it chose.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, sleep};

use super::body::Body;
use crate::egress::limits;
use crate::event::Via;

/// How to send on a connection.
#[derive(Debug)]
pub(in crate::egress) enum Sender {
    /// One request at a time.
    Http1(http1::SendRequest<Body>),
    /// Many at once; and whether the origin takes other protocols on its streams, once its settings have come.
    Http2(http2::SendRequest<Body>, Arc<AtomicBool>),
}

/// A connection that is ready for a request, or will be in a moment.
#[derive(Debug)]
pub(in crate::egress) struct Kept {
    /// How to send on it.
    pub sender: Sender,
    /// The address it leads to; unknown where the upstream proxy resolves.
    pub address: Option<IpAddr>,
    /// The upstream proxy on the way, where there is one.
    pub via: Option<Arc<Via>>,
    /// It ends at that proxy, which takes requests in absolute form.
    pub absolute: bool,
}

impl Kept {
    /// The same connection once more, where it carries many requests.
    pub(super) fn another(&self) -> Option<Self> {
        let sender = self.sender.another()?;
        Some(Self { sender, address: self.address, via: self.via.clone(), absolute: self.absolute })
    }
}

impl Sender {
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender, _) => sender.is_closed(),
        }
    }

    pub(super) fn is_http2(&self) -> bool {
        matches!(self, Self::Http2(..))
    }

    /// The same, once its settings must have come: they are the first that it says (RFC 9113 §3.4).
    pub(super) async fn comes_to_take_protocols(&self) -> bool {
        let deadline = Instant::now() + limits::SETTINGS_TIME;
        while !self.takes_protocols() && Instant::now() < deadline {
            sleep(limits::SETTINGS_LOOK).await;
        }
        self.takes_protocols()
    }

    /// Whether the origin takes a WebSocket inside HTTP/2 (RFC 8441 §3).
    pub(super) fn takes_protocols(&self) -> bool {
        matches!(self, Self::Http2(_, takes) if takes.load(Ordering::Relaxed))
    }

    fn another(&self) -> Option<Self> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(sender, takes) => Some(Self::Http2(sender.clone(), takes.clone())),
        }
    }

    pub(super) async fn send(
        &mut self,
        request: Request<Body>,
    ) -> Result<Response<Incoming>, TrySendError<Request<Body>>> {
        match self {
            Self::Http1(sender) => sender.try_send_request(request).await,
            Self::Http2(sender, _) => sender.try_send_request(request).await,
        }
    }
}

/// Speaks HTTP/1.1 on `stream`.
pub(super) async fn http1(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Sender, hyper::Error> {
    let (sender, connection) = http1::Builder::new()
        .preserve_header_case(true)
        .max_headers(limits::HEAD_FIELDS * 2)
        .max_buf_size(limits::RESPONSE_HEAD_BYTES)
        .handshake(TokioIo::new(stream))
        .await?;
    // Its errors reach whoever waits for the response.
    tokio::spawn(connection.with_upgrades());
    Ok(Sender::Http1(sender))
}

/// Speaks HTTP/2 on `stream`.
pub(super) async fn http2(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Sender, hyper::Error> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .max_frame_size(limits::FRAME_BYTES)
        .max_header_list_size(limits::RESPONSE_HEAD_LIST)
        .max_send_buf_size(limits::STREAM_SEND_BYTES)
        .keep_alive_interval(limits::PING_INTERVAL)
        .keep_alive_timeout(limits::PING_TIME)
        .handshake(TokioIo::new(stream))
        .await?;
    let takes = Arc::new(AtomicBool::new(false));
    let seen = takes.clone();
    tokio::spawn(async move {
        let mut connection = pin!(connection);
        poll_fn(|cx| {
            let ended = connection.as_mut().poll(cx);
            seen.store(connection.is_extended_connect_protocol_enabled(), Ordering::Relaxed);
            ended
        })
        .await
    });
    Ok(Sender::Http2(sender, takes))
}

/// The connections of one tunnel to its origin that are idle, or can take more.
#[derive(Debug, Default)]
pub(super) struct Idle {
    http1: Vec<Kept>,
    http2: Option<Kept>,
}

impl Idle {
    /// One that is open; HTTP/2 if there is one and `http1_only` does not forbid it.
    pub(super) fn take(&mut self, http1_only: bool) -> Option<Kept> {
        if !http1_only && let Some(kept) = &self.http2 {
            if !kept.sender.is_closed() {
                return kept.another();
            }
            self.http2 = None;
        }
        while let Some(kept) = self.http1.pop() {
            if !kept.sender.is_closed() {
                return Some(kept);
            }
        }
        None
    }

    /// Takes out the one that [`Self::take`] would go on lending.
    pub(super) fn forget_http2(&mut self) {
        self.http2 = None;
    }

    /// Keeps one.
    pub(super) fn put(&mut self, kept: Kept) {
        if kept.sender.is_closed() {
            return;
        }
        match kept.sender {
            Sender::Http2(..) => self.http2 = Some(kept),
            Sender::Http1(_) if self.http1.len() < limits::POOL_PER_DESTINATION => self.http1.push(kept),
            Sender::Http1(_) => {}
        }
    }
}
