//! Bodies on their way, in either direction: streamed frame by frame, trailers included, never gathered.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, Request, Version};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::exchange::{Exchange, Lease};
use super::{Seen, fields};
use crate::egress::limits;

/// A body on its way.
pub(in crate::egress) struct Body {
    inner: Inner,
    /// Counts what has passed.
    progress: Option<Arc<Seen>>,
    /// What must have happened before the first byte is asked for.
    hold: Option<Hold>,
    /// The exchange whose response this is, which a new policy may end.
    exchange: Option<Arc<Exchange>>,
    /// Given back when the body has ended.
    lease: Option<Lease>,
    /// Its end has been seen: of chunks the library says no other way that there are none left.
    ended: bool,
    /// Whether what is left of it when it is dropped is read for a while.
    lingers: bool,
}

enum Inner {
    /// Bytes in hand, then trailers.
    Whole(Option<Bytes>, Option<HeaderMap>),
    Passing(Incoming),
}

/// Why a body broke off.
#[derive(Debug, thiserror::Error)]
pub(in crate::egress) enum BodyError {
    /// The side that sends it failed.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
    /// A new policy no longer allows what is open.
    #[error("the policy no longer allows this request")]
    Revoked,
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("ended", &self.is_end_stream()).finish_non_exhaustive()
    }
}

impl Body {
    fn new(inner: Inner) -> Self {
        Self { inner, progress: None, hold: None, exchange: None, lease: None, ended: false, lingers: false }
    }

    /// A body in hand.
    pub(in crate::egress) fn bytes(bytes: Bytes) -> Self {
        Self::whole(bytes, None)
    }

    /// A body in hand that ends in trailers.
    pub(in crate::egress) fn whole(bytes: Bytes, trailers: Option<HeaderMap>) -> Self {
        Self::new(Inner::Whole((!bytes.is_empty()).then_some(bytes), trailers))
    }

    pub(in crate::egress) fn empty() -> Self {
        Self::new(Inner::Whole(None, None))
    }

    /// A client's request, whose body passes as it comes.
    ///
    /// In HTTP/2 the end of a body that nobody wants is a RST_STREAM (RFC 9113 §8.1), and a client that finds it right
    /// behind the answer may lose that: curl 7.88 does. So it comes a little later.
    pub(super) fn request(request: Request<Incoming>) -> Request<Self> {
        let lingers = request.version() == Version::HTTP_2;
        request.map(|body| {
            let mut body = Self::new(Inner::Passing(body));
            body.lingers = lingers;
            body
        })
    }

    /// Counts what passes.
    pub(super) fn counting(mut self, progress: Arc<Seen>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// A response's body, which holds an upstream connection until it ends.
    pub(super) fn leased(body: Incoming, exchange: Arc<Exchange>, lease: Lease) -> Self {
        let mut body = Self::new(Inner::Passing(body));
        (body.exchange, body.lease) = (Some(exchange), Some(lease));
        body
    }

    /// Waits for `hold` before anything is asked for.
    pub(super) fn held(mut self, hold: Hold) -> Self {
        self.hold = Some(hold);
        self
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let body = self.get_mut();
        if let Some(exchange) = &body.exchange
            && exchange.poll_revoked(cx).is_ready()
        {
            return Poll::Ready(Some(Err(BodyError::Revoked)));
        }
        if let Some(hold) = &mut body.hold {
            if hold.poll(cx).is_pending() {
                return Poll::Pending;
            }
            body.hold = None;
        }
        match &mut body.inner {
            Inner::Whole(bytes, trailers) => Poll::Ready(match bytes.take() {
                Some(bytes) => Some(Ok(Frame::data(bytes))),
                None => trailers.take().map(|trailers| Ok(Frame::trailers(trailers))),
            }),
            Inner::Passing(incoming) => {
                let frame = Pin::new(incoming).poll_frame(cx);
                if let (Poll::Ready(_), Some(progress)) = (&frame, &body.progress) {
                    progress.count();
                }
                body.ended = matches!(frame, Poll::Ready(None));
                frame
                    .map_ok(|mut frame| {
                        if let Some(trailers) = frame.trailers_mut() {
                            fields::strip_trailers(trailers);
                        }
                        frame
                    })
                    .map_err(BodyError::Broken)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Whole(bytes, trailers) => bytes.is_none() && trailers.is_none(),
            Inner::Passing(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Whole(bytes, trailers) => {
                let length = bytes.as_ref().map_or(0, |bytes| bytes.len() as u64);
                let mut hint = SizeHint::with_exact(length);
                // A body with a length has no place for trailers in HTTP/1.1 (RFC 9112 §7.1.2).
                if trailers.is_some() {
                    hint = SizeHint::default();
                    hint.set_lower(length);
                }
                hint
            }
            Inner::Passing(incoming) => incoming.size_hint(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let ended = self.ended || self.is_end_stream();
        if let Some(lease) = self.lease.take() {
            lease.end(ended);
        }
        if self.lingers
            && !ended
            && let Inner::Passing(rest) = std::mem::replace(&mut self.inner, Inner::Whole(None, None))
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(timeout(limits::LINGER_TIME, discard(rest)));
        }
    }
}

/// Reads on, within a bound, what nobody wants; beyond it the client has to wait until it is told.
async fn discard(mut body: Incoming) {
    let mut room = limits::LINGER_BYTES;
    while let Some(Ok(frame)) = body.frame().await {
        match room.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(left) => room = left,
            None => std::future::pending().await,
        }
    }
}

/// Holds a body back until the origin says 100, answers, or has had [`limits::CONTINUE_TIME`]: a client that expects to
/// be asked is asked by whom it means (RFC 9110 §10.1.1).
pub(super) struct Hold {
    released: Arc<Released>,
    timer: Pin<Box<Sleep>>,
}

/// What ends a [`Hold`].
#[derive(Debug, Default)]
pub(super) struct Released {
    done: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Released {
    /// Lets the body go.
    pub(super) fn release(&self) {
        self.done.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take() {
            waker.wake();
        }
    }
}

impl Hold {
    pub(super) fn new(released: Arc<Released>) -> Self {
        Self { released, timer: Box::pin(sleep_until(Instant::now() + limits::CONTINUE_TIME)) }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        *self.released.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(cx.waker().clone());
        if self.released.done.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        self.timer.as_mut().poll(cx)
    }
}
