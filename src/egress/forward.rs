//! Absolute-form HTTP: hyper on both legs behind the [gate](super::wire), each request decided afresh, connections
//! kept on both sides. The path goes out byte for byte as it came; the fields that belong to one hop do not.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::client::conn::http1 as client;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::rt::TokioIo;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::authorize::{Client, Owner, Passed, Permit};
use super::denial::{self, Kind, Refusal};
use super::intent::Intent;
use super::parent::Leg;
use super::pool::Kept;
use super::tunnel::{Permission, Tunnel};
use super::wire::{Fault, Gate};
use super::{Proxy, Reached, limits, splice};
use crate::event::{HttpRequestFacts, Stage};

/// What we call ourselves in Via: a pseudonym, since the real name would tell origins about the sandbox (RFC 9110
/// §7.6.3).
const VIA: HeaderValue = HeaderValue::from_static("1.1 openshell");

/// Fields that belong to one hop, besides those that Connection names (RFC 9110 §7.6.1).
const HOP_BY_HOP: [HeaderName; 6] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Fields that Connection may not take away: framing and routing are not the client's to hide from the next hop.
const NOT_NOMINABLE: [HeaderName; 4] = [header::HOST, header::CONTENT_LENGTH, header::CONNECTION, header::VIA];

/// What becomes of the connection.
pub(super) enum Outcome {
    /// It is a tunnel now.
    Open(Box<Tunnel>),
    /// Something else than a forward request comes next.
    Again(Gate),
    /// It ends.
    Close(Arc<TcpStream>),
}

/// What the requests of one client connection share.
struct Session {
    proxy: Arc<Proxy>,
    client: Arc<Client>,
    fault: Fault,
    /// The response that is open, whose permission a new policy may take back.
    open: Mutex<Option<Permission>>,
    /// Both ends have agreed to speak another protocol.
    upgrade: Mutex<Option<(hyper::upgrade::OnUpgrade, Permission)>>,
}

/// Serves forward requests until something else comes.
pub(super) async fn serve(proxy: &Arc<Proxy>, client: &Arc<Client>, gate: Gate) -> Outcome {
    let stream = gate.stream().clone();
    let session = Arc::new(Session {
        proxy: proxy.clone(),
        client: client.clone(),
        fault: gate.fault(),
        open: Mutex::default(),
        upgrade: Mutex::default(),
    });
    let service = service_fn(|request| {
        let session = session.clone();
        async move { Ok::<_, std::convert::Infallible>(session.answer(request).await) }
    });
    let connection = server::Builder::new()
        // A client that has sent all it has to say still wants its answer.
        .half_close(true)
        .preserve_header_case(true)
        .auto_date_header(false)
        .max_headers(limits::HEAD_FIELDS)
        .max_buf_size(limits::HEAD_BYTES * 2)
        .serve_connection(TokioIo::new(gate), service)
        .without_shutdown();
    let parts = tokio::select! {
        parts = connection => parts,
        // With half-close allowed nobody reads while a response is open: a reset is seen here.
        _ = stream.ready(Interest::ERROR) => return Outcome::Close(stream),
        () = session.revoked() => {
            splice::reset_on_close(&stream);
            return Outcome::Close(stream);
        }
    };
    let Ok(parts) = parts else { return Outcome::Close(stream) };
    let mut gate = parts.io.into_inner();
    let upgrade = session.upgrade.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some((upgrade, permission)) = upgrade {
        let Ok(upgraded) = upgrade.await else { return Outcome::Close(stream) };
        let Ok(upstream) = upgraded.downcast::<TokioIo<Leg>>() else { return Outcome::Close(stream) };
        let to_upstream = [&parts.read_buf, gate.held()].concat();
        return Outcome::Open(Box::new(Tunnel {
            proxy: proxy.clone(),
            client: stream,
            upstream: upstream.io.into_inner(),
            permission,
            to_upstream,
            to_client: upstream.read_buf.to_vec(),
        }));
    }
    if gate.reopen() { Outcome::Again(gate) } else { Outcome::Close(stream) }
}

impl Session {
    /// Returns when a new policy no longer allows the response that is open.
    async fn revoked(&self) {
        let mut generations = self.proxy.store.subscribe();
        while generations.changed().await.is_ok() {
            let generation = *generations.borrow_and_update();
            let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(permission) = open.as_mut()
                && let Err(reason) = permission.renew(&self.proxy, generation)
            {
                permission.record_revoked(&self.proxy, reason);
                return;
            }
        }
        std::future::pending().await
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let facts =
            |status| HttpRequestFacts { method: method.to_string(), path: uri.path().to_owned(), status: Some(status) };
        match self.clone().forward(request).await {
            Ok((response, permission)) => {
                let status = response.status().as_u16();
                self.proxy.record_allowed(
                    Stage::Forward,
                    &Passed {
                        intent: &permission.intent,
                        owner: &permission.owner,
                        permit: &permission.permit,
                        address: permission.address,
                        via: permission.via.as_ref(),
                        http: Some(&|| facts(status)),
                    },
                );
                response
            }
            Err(refusal) => {
                let http = facts(refusal.kind.status());
                self.proxy.record_refused(Stage::Forward, &self.client.known_owner(), &refusal, Some(http));
                respond(&refusal)
            }
        }
    }

    async fn forward(self: Arc<Self>, mut request: Request<Incoming>) -> Result<(Response<Body>, Permission), Refusal> {
        let begun = Instant::now();
        let proxy = &self.proxy;
        let intent = read(&request)?;
        let owner = self.client.owner(proxy.attributor.as_ref()).await.map_err(|refusal| refusal.about(&intent))?;
        let permit = proxy.decide(&owner, &intent)?;
        let upgrade = rewrite(&mut request, &intent)?;
        let (parts, body) = request.into_parts();
        // A kept connection may be closed by its origin just as we use it: what is safe to send twice, and still at
        // hand, is sent again on another (RFC 9110 §9.2.2, RFC 9112 §9.3.1).
        let repeatable = body.is_end_stream() && parts.method.is_safe() && !upgrade;
        let parts = Parts(parts);
        let mut copy = repeatable.then(|| parts.again());
        let progress = Arc::new(AtomicU64::new(0));
        let body = Body::counted(body, progress.clone());
        let mut request = Request::from_parts(parts.0, body);

        loop {
            let kept = if upgrade { None } else { self.kept(&intent, &permit) };
            let reused = kept.is_some();
            let reach = async {
                match kept {
                    Some(kept) => Ok(kept),
                    None => self.connect(&intent, &owner, &permit).await,
                }
            };
            // Only the first request of a connection waits for more than the first of these.
            let (reached, confirmed) = tokio::join!(reach, self.client.confirm(&owner, proxy));
            confirmed.map_err(|refusal| refusal.about(&intent))?;
            let Kept { mut sender, address, via } = reached?;
            let permission = Permission {
                intent: intent.clone(),
                owner: owner.clone(),
                permit: permit.clone(),
                address,
                via: via.clone(),
            };
            *self.open.lock().unwrap_or_else(PoisonError::into_inner) = Some(permission.clone());
            let mut error = match wait(sender.try_send_request(request), &progress, proxy.patience.response).await {
                Some(Ok(response)) => {
                    proxy.events.metrics().connect_seconds.observe(begun.elapsed().as_secs_f64());
                    let lease = Lease { session: self.clone(), kept: Some(Kept { sender, address, via }), intent };
                    return Ok((self.pass(response, upgrade, lease, &permission)?, permission));
                }
                Some(Err(error)) => error,
                None => {
                    self.close_open();
                    let detail = format!("{intent} did not answer within {} s", proxy.patience.response.as_secs());
                    return Err(Refusal::new(Kind::UpstreamTimeout, detail).about(&intent));
                }
            };
            self.close_open();
            if let Some(fault) = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Err(Refusal::new(Kind::InvalidRequest, fault).about(&intent));
            }
            request = match (error.take_message(), copy.take()) {
                // Never sent.
                (Some(unsent), repeat) if reused => {
                    copy = repeat;
                    unsent
                }
                (None, Some(repeat)) if reused && !error.error().is_parse() => {
                    copy = Some(repeat.again());
                    Request::from_parts(repeat.0, Body::empty())
                }
                _ => {
                    let at = address.map(|address| format!(" at {address}")).unwrap_or_default();
                    let detail = format!("the connection to {intent}{at} failed before an answer came");
                    return Err(Refusal { via, ..Refusal::new(Kind::UpstreamFailed, detail) }
                        .about(&intent)
                        .because(chain(error.error())));
                }
            };
        }
    }

    fn close_open(&self) {
        *self.open.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// A connection to the destination that is open already, at an address that this decision allows.
    fn kept(&self, intent: &Intent, permit: &Permit) -> Option<Kept> {
        let kept = self.proxy.pool.take(intent)?;
        self.proxy.admit(intent, kept.address.as_slice(), &permit.decision).is_ok().then_some(kept)
    }

    async fn connect(&self, intent: &Intent, owner: &Owner, permit: &Permit) -> Result<Kept, Refusal> {
        let Reached { leg, address, via } = self.proxy.reach(intent, owner, permit).await?;
        super::dial::keep_alive(leg.socket());
        let (sender, connection) = client::Builder::new()
            .preserve_header_case(true)
            .max_headers(limits::HEAD_FIELDS * 2)
            .max_buf_size(limits::RESPONSE_HEAD_BYTES)
            .handshake(TokioIo::new(leg))
            .await
            .map_err(|error| Refusal::new(Kind::UpstreamFailed, error.to_string()).about(intent))?;
        // Its errors reach whoever waits for the response.
        tokio::spawn(connection.with_upgrades());
        Ok(Kept { sender, address, via })
    }

    /// Makes the origin's response ours.
    fn pass(
        &self,
        mut response: Response<Incoming>,
        upgrade: bool,
        lease: Lease,
        permission: &Permission,
    ) -> Result<Response<Body>, Refusal> {
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let protocol = response.headers().get(header::UPGRADE).cloned();
            let Some(protocol) = protocol.filter(|_| upgrade) else {
                let detail = format!("{} switched protocols although nobody asked", permission.intent);
                return Err(Refusal::new(Kind::UpstreamFailed, detail).about(&permission.intent));
            };
            let ready = hyper::upgrade::on(&mut response);
            *self.upgrade.lock().unwrap_or_else(PoisonError::into_inner) = Some((ready, permission.clone()));
            let (mut parts, _) = response.into_parts();
            strip(&mut parts.headers);
            parts.headers.append(header::VIA, VIA);
            parts.headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(header::UPGRADE, protocol);
            return Ok(Response::from_parts(parts, Body::empty()));
        }
        let (mut parts, body) = response.into_parts();
        parts.version = Version::HTTP_11;
        strip(&mut parts.headers);
        parts.headers.append(header::VIA, VIA);
        Ok(Response::from_parts(parts, Body { inner: Inner::Passing(body), progress: None, lease: Some(lease) }))
    }
}

/// The head of a request that may have to be sent twice.
struct Parts(hyper::http::request::Parts);

impl Parts {
    fn again(&self) -> Self {
        let mut parts = Request::new(()).into_parts().0;
        parts.method = self.0.method.clone();
        parts.uri = self.0.uri.clone();
        parts.version = self.0.version;
        parts.headers = self.0.headers.clone();
        parts.extensions = self.0.extensions.clone();
        Self(parts)
    }
}

/// Waits for a response for as long as there is progress within `patience`.
async fn wait<T>(response: impl Future<Output = T>, progress: &AtomicU64, patience: Duration) -> Option<T> {
    let mut response = std::pin::pin!(response);
    let mut seen = u64::MAX;
    loop {
        let now = progress.load(Ordering::Relaxed);
        if now == seen {
            return None;
        }
        seen = now;
        if let Ok(outcome) = tokio::time::timeout(patience, response.as_mut()).await {
            return Some(outcome);
        }
    }
}

/// Reads where a request wants to go.
fn read(request: &Request<Incoming>) -> Result<Intent, Refusal> {
    let uri = request.uri();
    let invalid = |detail: String| {
        Refusal::new(Kind::InvalidRequest, detail)
            .advising("send an absolute http:// target with the same host in the Host field, or CONNECT HOST:PORT")
    };
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(invalid(format!(
            "{} {uri} names no host in its target; this is the sandbox's HTTP proxy, not a web server",
            request.method()
        )));
    };
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Refusal::new(
            Kind::UnsupportedScheme,
            format!("the target's scheme is {scheme}, and only http can be forwarded"),
        )
        .advising(format!(
            "open a tunnel instead: CONNECT {authority}, with the port, then speak {scheme} through it"
        )));
    }
    let intent = Intent::parse(authority.as_str(), Some(80)).map_err(|error| invalid(error.to_string()))?;
    if let Some(host) = request.headers().get(header::HOST) {
        // Identical bytes need no second reading.
        if host.as_bytes() != authority.as_str().as_bytes() {
            let host = String::from_utf8_lossy(host.as_bytes());
            let named = Intent::parse(&host, Some(80)).map_err(|error| invalid(error.to_string()))?;
            if named != intent {
                return Err(invalid(format!("the target is {intent} but the Host field says {named}")).about(&intent));
            }
        }
    }
    Ok(intent)
}

/// Makes the client's request ours, and answers whether it asks for another protocol.
fn rewrite(request: &mut Request<Incoming>, intent: &Intent) -> Result<bool, Refusal> {
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    let target = path.parse::<Uri>().map_err(|error| {
        Refusal::new(Kind::InvalidRequest, format!("the target's path cannot be forwarded: {error}")).about(intent)
    })?;
    let upgrade = protocol(request.headers());
    let trailers = wants_trailers(request.headers());
    let host = request.uri().authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    let headers = request.headers_mut();
    strip(headers);
    // Credentials for this proxy, which asks for none.
    headers.remove(header::PROXY_AUTHORIZATION);
    if let (Some(host), false) = (host, headers.contains_key(header::HOST)) {
        headers.insert(header::HOST, host);
    }
    headers.append(header::VIA, VIA);
    if let Some(protocol) = &upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, protocol.clone());
    } else if trailers {
        headers.insert(header::CONNECTION, HeaderValue::from_static("te"));
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    *request.uri_mut() = target;
    *request.version_mut() = Version::HTTP_11;
    Ok(upgrade.is_some())
}

/// The protocol asked for, if Connection says so too.
fn protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(header::UPGRADE)?;
    options(headers, header::CONNECTION).any(|option| option.eq_ignore_ascii_case("upgrade")).then(|| protocol.clone())
}

fn wants_trailers(headers: &HeaderMap) -> bool {
    headers.contains_key(header::TE)
        && options(headers, header::TE).any(|coding| coding.eq_ignore_ascii_case("trailers"))
}

fn options(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|list| list.split(',').map(str::trim))
}

/// Takes out what belongs to one hop.
fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(header::CONNECTION) {
        let nominated: Vec<HeaderName> = options(headers, header::CONNECTION)
            .filter_map(|option| HeaderName::from_bytes(option.as_bytes()).ok())
            .filter(|name| !NOT_NOMINABLE.contains(name))
            .collect();
        for name in nominated {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn respond(refusal: &Refusal) -> Response<Body> {
    let mut response = Response::new(Body::bytes(refusal.body().into()));
    // The statuses of `Kind` are all valid.
    *response.status_mut() = StatusCode::from_u16(refusal.kind.status()).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(denial::CONTENT_TYPE));
    if let Ok(policy) = HeaderValue::from_str(&refusal.policy_field()) {
        headers.insert(HeaderName::from_static("x-openshell-policy"), policy);
    }
    response
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += ": ";
        text += &cause.to_string();
        source = cause.source();
    }
    text
}

/// A body on its way, in either direction.
pub(super) struct Body {
    inner: Inner,
    /// Counts what has passed.
    progress: Option<Arc<AtomicU64>>,
    /// Given back when the body has ended.
    lease: Option<Lease>,
}

enum Inner {
    Bytes(Option<Bytes>),
    Passing(Incoming),
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").field("ended", &self.is_end_stream()).finish_non_exhaustive()
    }
}

impl Body {
    fn bytes(bytes: Bytes) -> Self {
        Self { inner: Inner::Bytes(Some(bytes)), progress: None, lease: None }
    }

    fn empty() -> Self {
        Self { inner: Inner::Bytes(None), progress: None, lease: None }
    }

    fn counted(body: Incoming, progress: Arc<AtomicU64>) -> Self {
        Self { inner: Inner::Passing(body), progress: Some(progress), lease: None }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let body = self.get_mut();
        match &mut body.inner {
            Inner::Bytes(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Inner::Passing(incoming) => {
                let frame = Pin::new(incoming).poll_frame(cx);
                if let (Poll::Ready(_), Some(progress)) = (&frame, &body.progress) {
                    progress.fetch_add(1, Ordering::Relaxed);
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Inner::Bytes(bytes) => bytes.is_none(),
            Inner::Passing(incoming) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Inner::Bytes(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Inner::Passing(incoming) => incoming.size_hint(),
        }
    }
}

impl Drop for Body {
    fn drop(&mut self) {
        let ended = self.is_end_stream();
        if let Some(mut lease) = self.lease.take() {
            lease.session.close_open();
            if let (true, Some(kept)) = (ended, lease.kept.take()) {
                lease.session.proxy.pool.put(lease.intent.clone(), kept);
            }
        }
    }
}

/// An upstream connection while its response is open.
struct Lease {
    session: Arc<Session>,
    kept: Option<Kept>,
    intent: Intent,
}
