//! The admin listener: `/livez`, `/readyz` and `/metrics`, and the little client that probes use to ask it.
//!
//! It says nothing that a stranger could use (no host, no path, no program) and takes nothing but GET and HEAD.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, watch};

use super::Events;

/// Connections at once: a kubelet and a scraper use one or two each, and the rest is a mistake or an attack.
const CONNECTIONS: usize = 16;

/// Bytes of a request's head; the smallest that hyper takes.
const HEAD_BYTES: usize = 8 * 1024;

/// How long a client may take over its head, or keep an idle connection.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// Life of one connection, so that slow readers cannot hold every place.
const CONNECTION_TIME: Duration = Duration::from_secs(60);

/// Pause after a failed accept: descriptors run out for longer than an instant.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What [`ask`] reads of an answer: more than `/metrics` ever is.
const ANSWER_BYTES: u64 = 1024 * 1024;

/// Media type of `/metrics` (OpenMetrics 1.0, "Text Format").
const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Whether a role can do its work yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// Not yet, or not now, and why.
    Waiting(String),
    /// Its data path works.
    Ready,
}

/// Opens the listener of the admin address.
///
/// # Errors
/// The address and what bind(2) or listen(2) answered.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener)).map_err(|error| {
        io::Error::new(
            error.kind(),
            format!("cannot listen on the admin address {address}: {error}; give another one, or none"),
        )
    })
}

/// Answers on `listener` for as long as the runtime runs.
///
/// # Errors
/// If the listener cannot be made non-blocking or taken over by the runtime; nothing afterwards.
pub async fn serve(
    listener: TcpListener,
    readiness: watch::Receiver<Readiness>,
    events: Events,
) -> io::Result<Infallible> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            // Nobody closes the semaphore.
            std::future::pending::<()>().await;
            continue;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(_) => {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (readiness, events) = (readiness.clone(), events.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer(request.method(), request.uri().path(), &readiness, &events);
                std::future::ready(Ok::<_, Infallible>(answer))
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            // A client that breaks off, or that is cut off, is nothing to report.
            let _ = tokio::time::timeout(CONNECTION_TIME, connection).await;
            drop(place);
        });
    }
}

fn answer(
    method: &Method,
    path: &str,
    readiness: &watch::Receiver<Readiness>,
    events: &Events,
) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let body = serde_json::json!({"error": "method_not_allowed", "detail": "only GET and HEAD are answered"});
        let mut response = json(StatusCode::METHOD_NOT_ALLOWED, &body);
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    match path {
        "/livez" => json(StatusCode::OK, &serde_json::json!({"status": "live"})),
        "/readyz" => match &*readiness.borrow() {
            Readiness::Ready => json(StatusCode::OK, &serde_json::json!({"status": "ready"})),
            Readiness::Waiting(reason) => {
                json(StatusCode::SERVICE_UNAVAILABLE, &serde_json::json!({"status": "waiting", "reason": reason}))
            }
        },
        "/metrics" => match events.metrics().render() {
            Ok(text) => response(StatusCode::OK, METRICS_TYPE, text.into()),
            Err(error) => json(
                StatusCode::INTERNAL_SERVER_ERROR,
                &serde_json::json!({"error": "metrics", "detail": error.to_string()}),
            ),
        },
        _ => json(
            StatusCode::NOT_FOUND,
            &serde_json::json!({"error": "not_found", "paths": ["/livez", "/readyz", "/metrics"]}),
        ),
    }
}

fn json(status: StatusCode, body: &serde_json::Value) -> Response<Full<Bytes>> {
    response(status, "application/json", format!("{body}\n").into())
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Asks the admin listener at `address` for `path` and gives the status and the body, all within `timeout`.
///
/// # Errors
/// What connecting, writing or reading answered, with the address; `TimedOut` when time is up; `InvalidData` for what
/// is not HTTP.
pub fn ask(address: SocketAddr, path: &str, timeout: Duration) -> io::Result<(u16, String)> {
    exchange(address, path, timeout)
        .map_err(|error| io::Error::new(error.kind(), format!("asking {address} for {path}: {error}")))
}

fn exchange(address: SocketAddr, path: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let deadline = Instant::now() + timeout;
    let left = || match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "no whole answer in time")),
        left => Ok(left),
    };
    let mut stream = TcpStream::connect_timeout(&address, left()?)?;
    stream.set_write_timeout(Some(left()?))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    let mut piece = [0; 4096];
    loop {
        stream.set_read_timeout(Some(left()?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => answer.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if answer.len() as u64 > ANSWER_BYTES {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer without an end"));
        }
    }
    let not_http = || io::Error::new(io::ErrorKind::InvalidData, "what answered does not speak HTTP");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(not_http)?;
    let head = std::str::from_utf8(&answer[..end]).map_err(|_| not_http())?;
    let status = head
        .strip_prefix("HTTP/1.")
        .and_then(|rest| rest.split(' ').nth(1))
        .and_then(|code| code.parse().ok())
        .ok_or_else(not_http)?;
    Ok((status, String::from_utf8_lossy(&answer[end + 4..]).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A listener with one answer that a thread of its own keeps serving.
    fn served(readiness: Readiness) -> (SocketAddr, watch::Sender<Readiness>) {
        let listener = bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, receiver) = watch::channel(readiness);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(serve(listener, receiver, Events::off()))
        });
        (address, sender)
    }

    const PATIENCE: Duration = Duration::from_secs(5);

    #[test]
    fn readiness_says_why_not_and_then_ready() {
        let (address, sender) = served(Readiness::Waiting("the policy is not loaded".into()));
        let (status, body) = ask(address, "/readyz", PATIENCE).unwrap();
        assert_eq!(status, 503);
        assert!(body.contains("the policy is not loaded"), "{body}");
        assert_eq!(ask(address, "/livez", PATIENCE).unwrap().0, 200);
        sender.send(Readiness::Ready).unwrap();
        assert_eq!(ask(address, "/readyz", PATIENCE).unwrap().0, 200);
    }

    #[test]
    fn metrics_are_shown_and_all_else_is_refused() {
        let (address, _sender) = served(Readiness::Ready);
        let (status, body) = ask(address, "/metrics", PATIENCE).unwrap();
        assert_eq!(status, 200);
        assert!(body.contains("openshell_egress_connections_total"), "{body}");
        let (status, body) = ask(address, "/", PATIENCE).unwrap();
        assert_eq!(status, 404);
        assert!(serde_json::from_str::<serde_json::Value>(&body).is_ok(), "{body}");
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"POST /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    }

    #[test]
    fn a_head_that_is_too_large_is_refused() {
        let (address, _sender) = served(Readiness::Ready);
        let mut stream = TcpStream::connect(address).unwrap();
        let head = format!("GET /livez HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "a".repeat(2 * HEAD_BYTES));
        // The server may cut the connection while this is still being written.
        let _ = stream.write_all(head.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }

    #[test]
    fn asking_ends_in_time_when_nobody_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let begin = Instant::now();
        let error = ask(listener.local_addr().unwrap(), "/livez", Duration::from_millis(200)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert!(begin.elapsed() < Duration::from_secs(2));
        let address = listener.local_addr().unwrap();
        drop(listener);
        let error = ask(address, "/livez", PATIENCE).unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }
}
