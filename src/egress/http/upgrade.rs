//! When both ends agree to speak another protocol: WebSockets by Upgrade (RFC 6455) and by extended CONNECT (RFC 8441),
//! from either version of HTTP to either, and on endpoints without rules whatever they like.

use std::future::poll_fn;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Session;
use super::body::Body;
use super::exchange::{Lease, Opened};
use super::fields::{self, Wish};
use super::leg::Sender;
use super::websocket;
use crate::egress::denial::{self, Kind};
use crate::egress::splice::Traffic;
use crate::egress::tunnel::{self, Permission};
use crate::egress::{Proxy, limits};
use crate::event::Disposition;
use crate::policy::request::{MessageRules, Refusal};

const ACCEPT: HeaderName = header::SEC_WEBSOCKET_ACCEPT;

/// Who takes part in a change of protocol.
pub(super) struct Parties<'a> {
    /// What the origin was asked for.
    pub wish: &'a Wish,
    /// The key that was made up for it, where the client's protocol knows none.
    pub key: Option<&'a HeaderValue>,
    /// The client's side, where its stream rather than its connection changes.
    pub client: Option<OnUpgrade>,
    /// What the client's messages may be.
    pub messages: Option<Arc<MessageRules>>,
}

/// An agreement on an HTTP/1.1 connection, which takes effect when the response has been written.
#[derive(Debug)]
pub(super) struct Agreed {
    pub upstream: OnUpgrade,
    pub permission: Permission,
    pub messages: Option<Arc<MessageRules>>,
    /// The exchange stays open for as long as this.
    pub opened: Opened,
}

/// What came of the wish.
pub(super) enum Outcome {
    /// This is answered, and then the protocol changes.
    Switched(Response<Body>),
    /// An ordinary response, or the origin's refusal.
    Declined(Response<Incoming>, Lease),
}

/// Puts the wish as the leg's protocol has it: an extended CONNECT becomes an Upgrade where the origin knows no other
/// way. That needs a key, which some clients send in HTTP/2 as well; the one that is made up otherwise comes back.
pub(super) fn for_leg(wish: &Wish, sender: &Sender, request: &mut Request<Body>) -> (Wish, Option<HeaderValue>) {
    let Wish::Protocol(protocol) = wish else { return (wish.clone(), None) };
    if sender.takes_protocols() {
        return (wish.clone(), None);
    }
    *request.method_mut() = Method::GET;
    request.extensions_mut().remove::<hyper::ext::Protocol>();
    let headers = request.headers_mut();
    headers.remove(header::CONTENT_LENGTH);
    let mut made = None;
    if !headers.contains_key(header::SEC_WEBSOCKET_KEY) {
        let key = websocket::new_key();
        headers.insert(header::SEC_WEBSOCKET_KEY, key.clone());
        made = Some(key);
    }
    // A `:protocol` is a token, and so a value.
    let protocol = HeaderValue::from_str(protocol).unwrap_or_else(|_| HeaderValue::from_static("websocket"));
    (Wish::Upgrade(protocol), made)
}

/// Sees whether the origin agrees, and if so sees to what follows.
///
/// # Errors
/// It agrees to what nobody asked for, or to something else.
pub(super) fn agree(
    session: &Arc<Session>,
    mut response: Response<Incoming>,
    parties: Parties<'_>,
    lease: Lease,
    permission: &Permission,
) -> Result<Outcome, denial::Refusal> {
    let refuse = |what: &str| {
        let detail = format!("{} {what}", permission.intent);
        Err(denial::Refusal::new(Kind::UpstreamFailed, detail).about(&permission.intent))
    };
    let switched = match parties.wish {
        Wish::Protocol(_) => response.status().is_success(),
        Wish::Upgrade(_) | Wish::Answer => response.status() == StatusCode::SWITCHING_PROTOCOLS,
    };
    if !switched {
        return Ok(Outcome::Declined(response, lease));
    }
    let protocol = response.headers().get(header::UPGRADE).cloned();
    if let Wish::Upgrade(wanted) = parties.wish {
        if !protocol.as_ref().is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(wanted.as_bytes())) {
            return refuse("switched to another protocol than was asked for");
        }
    } else if *parties.wish == Wish::Answer {
        return refuse("switched protocols although nobody asked");
    }
    if parties.messages.is_some() && response.headers().contains_key(header::SEC_WEBSOCKET_EXTENSIONS) {
        return refuse("uses a WebSocket extension that was not offered");
    }
    let upstream = hyper::upgrade::on(&mut response);
    let (mut parts, _) = response.into_parts();
    fields::strip(&mut parts.headers);
    let Lease { opened, kept } = lease;
    if kept.sender.is_http2() {
        session.give_back(&permission.intent, kept);
    }
    let permission = permission.clone();
    let Some(client) = parties.client else {
        // The client's connection itself changes, once the response is written.
        if let Some(protocol) = protocol {
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(header::UPGRADE, protocol);
        }
        session.sign(&mut parts.headers);
        parts.status = StatusCode::SWITCHING_PROTOCOLS;
        *session.upgrade.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Some(Agreed { upstream, permission, messages: parties.messages, opened });
        return Ok(Outcome::Switched(Response::from_parts(parts, Body::empty())));
    };
    if let Some(key) = parties.key {
        if !parts.headers.get(ACCEPT).is_some_and(|accept| websocket::accepts(key, accept)) {
            return refuse("answered a WebSocket's key with something else than its digest");
        }
        parts.headers.remove(ACCEPT);
    }
    parts.status = StatusCode::OK;
    let proxy = session.proxy.clone();
    tokio::spawn(async move {
        if let (Ok(client), Ok(upstream)) = (client.await, upstream.await) {
            relay(&proxy, TokioIo::new(client), TokioIo::new(upstream), permission, parties.messages, &opened).await;
        }
    });
    Ok(Outcome::Switched(Response::from_parts(parts, Body::empty())))
}

/// Moves bytes both ways between a client and an origin that have agreed, until both are done, the policy takes its
/// permission back, or nothing has moved for too long. Each policy generation must allow the request that began it again,
/// whoever else asks.
pub(super) async fn relay(
    proxy: &Proxy,
    client: impl AsyncRead + AsyncWrite + Send + Unpin,
    upstream: impl AsyncRead + AsyncWrite + Send + Unpin,
    permission: Permission,
    messages: Option<Arc<MessageRules>>,
    opened: &Opened,
) {
    let traffic = Traffic::default();
    let mut generations = proxy.store.subscribe();
    generations.mark_changed();
    let relayed = async {
        match messages {
            None => copy(client, upstream, &traffic).await,
            Some(rules) => {
                let record = |disposition, reason: &str| {
                    permission.record_message(proxy, disposition, reason, opened.request());
                };
                let audited = |refusal: &Refusal| record(Disposition::Audited, &refusal.reason);
                let rules = || opened.exchange.messages().unwrap_or_else(|| rules.clone());
                if let Some(verdict) = websocket::relay(client, upstream, rules, &traffic, audited).await {
                    record(Disposition::Denied, verdict.reason());
                }
            }
        }
    };
    let renewed = async {
        while generations.changed().await.is_ok() {
            let generation = *generations.borrow_and_update();
            if !opened.exchange.renew(proxy, generation) {
                return;
            }
        }
        // The store is gone, and with it everything that could change.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = relayed => {}
        () = renewed => {}
        () = poll_fn(|cx| opened.exchange.poll_revoked(cx)) => {}
        () = tunnel::idle(&traffic, None, proxy) => {}
    }
    traffic.count(&proxy.events);
}

/// Both directions, each to its own end.
async fn copy(
    client: impl AsyncRead + AsyncWrite + Send + Unpin,
    upstream: impl AsyncRead + AsyncWrite + Send + Unpin,
    traffic: &Traffic,
) {
    let (from_client, to_client) = tokio::io::split(client);
    let (from_upstream, to_upstream) = tokio::io::split(upstream);
    // How it ends is its users' affair: both are told by their connections.
    let _ = tokio::try_join!(
        direction(from_client, to_upstream, &traffic.sent),
        direction(from_upstream, to_client, &traffic.received)
    );
}

pub(super) async fn direction(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    moved: &std::sync::atomic::AtomicU64,
) -> std::io::Result<()> {
    let mut buffer = vec![0; limits::UPGRADE_BYTES];
    loop {
        match from.read(&mut buffer).await? {
            0 => return to.shutdown().await,
            arrived => {
                to.write_all(&buffer[..arrived]).await?;
                to.flush().await?;
                moved.fetch_add(arrived as u64, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }
}
