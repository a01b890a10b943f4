//! The client's leg: HTTP/1.1 behind the gate, HTTP/2 by itself.

use std::future::poll_fn;
use std::sync::{Arc, PoisonError};

use hyper::StatusCode;
use hyper::header::HeaderMap;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::{Scope, Session, judge, upgrade};
use crate::egress::authorize::Client;
use crate::egress::denial::{Kind, Refusal};
use crate::egress::head::HeadError;
use crate::egress::parent::Leg;
use crate::egress::tunnel::Tunnel;
use crate::egress::wire::{Gate, Next};
use crate::egress::{Proxy, limits, splice};
use crate::event::Stage;

/// What becomes of a client's HTTP/1.1 connection.
pub(in crate::egress) enum Outcome {
    /// It is a tunnel now.
    Open(Box<Tunnel>),
    /// Something else than a request of this scope comes next.
    Again(Gate),
    /// It ends.
    Close,
}

/// Serves forward requests until something else comes.
pub(in crate::egress) async fn serve_forward(proxy: &Arc<Proxy>, client: &Arc<Client>, gate: Gate) -> Outcome {
    let session = Session::new(proxy, client, Scope::Forward).behind(&gate);
    serve_http1(Arc::new(session), gate).await
}

/// Serves what comes out of a tunnel as HTTP/1.1, to its end.
pub(in crate::egress) async fn serve_inside(session: Session, mut gate: Gate) {
    let session = Arc::new(session.behind(&gate));
    loop {
        let refusal = match poll_fn(|cx| gate.poll_next(cx)).await {
            Next::End => return part(gate).await,
            Next::Forward => match serve_http1(session.clone(), gate).await {
                Outcome::Open(tunnel) => return tunnel.run().await,
                Outcome::Close => return,
                Outcome::Again(same) => {
                    gate = same;
                    continue;
                }
            },
            Next::Refuse(error) => malformed(&error),
            Next::Connect(_) => {
                Refusal::new(Kind::InvalidRequest, "a CONNECT came through a tunnel; ask the sandbox's proxy itself")
            }
        };
        let mut refusal = refusal;
        judge::complete(&session, &mut refusal, None);
        session.proxy.record_refused(Stage::Request, &session.client.known_owner(), &refusal, None);
        if gate.write_all(&refusal.wire(false)).await.is_ok() {
            part(gate).await;
        }
        return;
    }
}

fn malformed(error: &HeadError) -> Refusal {
    Refusal::new(error.kind(), error.to_string())
}

/// Ends our half, in TLS too, and reads on for a moment: see [`limits::LINGER_TIME`].
async fn part(gate: Gate) {
    let mut stream = gate.into_stream();
    let parting = async {
        stream.shutdown().await?;
        let mut rest = (&mut stream).take(limits::LINGER_BYTES as u64);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _ = timeout(limits::LINGER_TIME, parting).await;
}

/// Serves HTTP/1.1 until something else comes than a request of the session's scope.
async fn serve_http1(session: Arc<Session>, gate: Gate) -> Outcome {
    let proxy = session.proxy.clone();
    let socket = gate.socket().cloned();
    let service = service_fn(|request| session.clone().answer(request));
    let connection = http1::Builder::new()
        // A client that has sent all it has to say still wants its answer.
        .half_close(true)
        .preserve_header_case(true)
        .auto_date_header(false)
        .max_headers(limits::HEAD_FIELDS)
        .max_buf_size(limits::HEAD_BYTES * 2)
        .serve_connection(TokioIo::new(gate), service)
        .without_shutdown();
    let broken = async {
        match &socket {
            // With half-close allowed nobody reads while a response is open: a reset is seen here.
            Some(socket) => drop(socket.ready(tokio::io::Interest::ERROR).await),
            None => std::future::pending().await,
        }
    };
    let parts = tokio::select! {
        parts = connection => parts,
        () = broken => return Outcome::Close,
        () = revoked(&session) => {
            if let Some(socket) = &socket {
                splice::reset_on_close(socket);
            }
            return Outcome::Close;
        }
    };
    let Ok(parts) = parts else { return Outcome::Close };
    let mut gate = parts.io.into_inner();
    let agreed = session.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(agreed) = agreed else {
        if gate.reopen() {
            return Outcome::Again(gate);
        }
        // Of the connection that a tunnel came by, the listener takes leave (RFC 9112 §9.6).
        if !matches!(session.scope, Scope::Forward) {
            part(gate).await;
        }
        return Outcome::Close;
    };
    let Ok(upstream) = agreed.upstream.await else { return Outcome::Close };
    gate.unread(&parts.read_buf);
    // Of a tunnel each generation is asked where it leads, and not what was asked there.
    let inspected = agreed.permission.permit.decision.is_inspected();
    let upstream = match (socket, inspected) {
        (Some(client), false) => match upstream.downcast::<TokioIo<Leg>>() {
            Ok(parts) => {
                return Outcome::Open(Box::new(Tunnel {
                    proxy,
                    client,
                    upstream: parts.io.into_inner(),
                    permission: agreed.permission,
                    to_upstream: gate.held().to_vec(),
                    to_client: parts.read_buf.to_vec(),
                }));
            }
            Err(upstream) => upstream,
        },
        _ => upstream,
    };
    upgrade::relay(
        &proxy,
        gate.into_stream(),
        TokioIo::new(upstream),
        agreed.permission,
        agreed.messages,
        &agreed.opened,
    )
    .await;
    Outcome::Close
}

/// Returns when a new policy has ended an exchange: on a connection that carries one at a time, that is its end.
async fn revoked(session: &Session) {
    let mut generations = session.proxy.store.subscribe();
    while generations.changed().await.is_ok() {
        let generation = *generations.borrow_and_update();
        if !session.exchanges.renew(&session.proxy, generation) {
            return;
        }
    }
    std::future::pending().await
}

/// Serves HTTP/2 to the connection's end.
pub(in crate::egress) async fn serve_http2(
    session: Arc<Session>,
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) {
    let service = service_fn(|request| session.clone().answer(request));
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .enable_connect_protocol()
        .max_concurrent_streams(limits::STREAMS)
        .max_pending_accept_reset_streams(limits::RESET_STREAMS)
        .max_local_error_reset_streams(limits::ERROR_STREAMS)
        .initial_stream_window_size(limits::STREAM_WINDOW)
        .initial_connection_window_size(limits::CONNECTION_WINDOW)
        .max_frame_size(limits::FRAME_BYTES)
        .max_header_list_size(limits::HEAD_LIST)
        .max_send_buf_size(limits::STREAM_SEND_BYTES)
        .keep_alive_interval(limits::PING_INTERVAL)
        .keep_alive_timeout(limits::PING_TIME)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    let mut generations = session.proxy.store.subscribe();
    let idle = idle(&session);
    tokio::pin!(idle);
    let mut ending = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    record_broken(&session, &error);
                }
                return;
            }
            changed = generations.changed() => {
                if changed.is_err() {
                    return;
                }
                let generation = *generations.borrow_and_update();
                // Each exchange that ended has its own stream reset; the others go on.
                session.exchanges.renew(&session.proxy, generation);
            }
            () = &mut idle, if !ending => {
                ending = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Records that the HTTP library has ended a connection for what its client did: a flood, or what is no HTTP/2. How a
/// connection ends otherwise is its client's affair. What costs a single stream alone (a malformed head, RFC 9113
/// §8.1.1) the library answers with RST_STREAM and tells nobody, until there are [`limits::ERROR_STREAMS`] of them.
fn record_broken(session: &Session, error: &hyper::Error) {
    let Some(error) = std::error::Error::source(error).and_then(|error| error.downcast_ref::<h2::Error>()) else {
        return;
    };
    let (true, true, Some(reason)) = (error.is_go_away(), error.is_library(), error.reason()) else { return };
    let detail = format!("the client's HTTP/2 connection was ended: {reason} ({reason:?}, RFC 9113 §7)");
    let mut refusal = Refusal::new(Kind::InvalidRequest, detail);
    judge::complete(session, &mut refusal, None);
    session.proxy.record_refused(Stage::Request, &session.client.known_owner(), &refusal, None);
}

/// Returns when no exchange has been open for the patience that a tunnel has.
async fn idle(session: &Session) {
    loop {
        tokio::time::sleep(session.proxy.patience.tunnel).await;
        if !session.exchanges.any() {
            return;
        }
    }
}

/// Has an interim response (RFC 9110 §15.2) written before the final one, as long as there is room.
pub(super) fn queue_interim(queue: &std::sync::Mutex<Vec<u8>>, status: StatusCode, headers: &HeaderMap) {
    let mut head =
        format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or_default()).into_bytes();
    for (name, value) in headers {
        head.extend_from_slice(name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(value.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    let mut queue = queue.lock().unwrap_or_else(PoisonError::into_inner);
    if queue.len() + head.len() <= limits::INTERIM_BYTES {
        queue.extend(head);
    }
}
