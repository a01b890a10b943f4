//! HTTP between a client and an origin, each request judged by itself: hyper on both legs, HTTP/1.1 and HTTP/2, behind
//! the [gate](super::wire) where the client speaks HTTP/1.1. Forward requests and what comes out of an intercepted
//! tunnel pass through the same [`Session`].

mod answer;
mod body;
mod exchange;
mod fields;
mod judge;
mod leg;
mod pool;
mod serve;
mod upgrade;
mod websocket;

pub(super) use body::Body;
pub(super) use pool::Pool;
pub(super) use serve::{Outcome, serve_forward, serve_http2, serve_inside};

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{self, HeaderMap};
use hyper::{Request, Response, StatusCode, Version};

use super::authorize::{Client, Owner, Passed, Permit};
use super::denial::{Kind, Refusal};
use super::intent::Intent;
use super::intercept::PROTOCOLS;
use super::tls::{HTTP1, HTTP2};
use super::tunnel::Permission;
use super::wire::{Fault, Gate, Interim};
use super::{ParentError, Proxy, Reached, Way, limits};
use crate::event::redact::redacted;
use crate::event::{HttpRequestFacts, Stage, Via};
use crate::policy::request::Pass;
use body::{Hold, Released};
use exchange::{Exchange, Exchanges, Lease, Opened};
use fields::{Next, Wish};
use leg::{Idle, Kept};

/// Where the requests of a connection go.
#[derive(Debug)]
pub(super) enum Scope {
    /// Each names its destination itself, in absolute form.
    Forward,
    /// All go where the tunnel goes that they came through.
    Tunnel(Box<Inside>),
    /// Nowhere: this is what each is answered.
    Refused(Refusal),
}

/// The inside of a tunnel that is inspected.
#[derive(Debug)]
pub(super) struct Inside {
    intent: Intent,
    /// How that is written.
    own: Written,
    /// TLS to the origin.
    secure: bool,
    idle: Mutex<Idle>,
    /// Held while another connection is made, so that the streams of one client share it.
    connecting: tokio::sync::Mutex<()>,
}

impl Inside {
    /// With nothing connected yet.
    pub(super) fn new(intent: Intent, secure: bool) -> Self {
        let own = Written::of(&intent, secure);
        Self { intent, own, secure, idle: Mutex::default(), connecting: tokio::sync::Mutex::default() }
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A destination in canonical writing, so that most requests that name it need not be read.
#[derive(Debug)]
struct Written {
    whole: String,
    /// Without the port that goes without saying.
    short: String,
}

impl Written {
    fn of(intent: &Intent, secure: bool) -> Self {
        Self { whole: intent.to_string(), short: fields::default_authority(intent, secure) }
    }

    /// Whether this is it. What is not may still mean the same.
    fn is(&self, text: &str) -> bool {
        text == self.short || text == self.whole
    }
}

/// What the requests of one client connection share.
#[derive(Debug)]
pub(super) struct Session {
    proxy: Arc<Proxy>,
    client: Arc<Client>,
    scope: Scope,
    fault: Fault,
    exchanges: Exchanges,
    /// Both ends of an HTTP/1.1 connection have agreed to speak another protocol.
    upgrade: Mutex<Option<upgrade::Agreed>>,
    /// Interim responses on their way to a client that speaks HTTP/1.1.
    interim: Interim,
}

/// A response, and what let it through.
struct Answered {
    response: Response<Body>,
    permission: Permission,
    pass: Pass,
}

impl Session {
    pub(super) fn new(proxy: &Arc<Proxy>, client: &Arc<Client>, scope: Scope) -> Self {
        Self {
            proxy: proxy.clone(),
            client: client.clone(),
            scope,
            fault: Fault::default(),
            exchanges: Exchanges::default(),
            upgrade: Mutex::default(),
            interim: Arc::default(),
        }
    }

    /// For a client whose bytes pass this gate.
    fn behind(mut self, gate: &Gate) -> Self {
        self.fault = gate.fault();
        self.interim = gate.interim();
        self
    }

    /// Has a connection ready before the first request. One that is gone already is made anew by that request, which is
    /// then told what fails.
    pub(super) async fn begin<S>(&self, stream: S, http2: bool, (address, via): (Option<IpAddr>, Option<Arc<Via>>))
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let sender = if http2 { leg::http2(stream).await } else { leg::http1(stream).await };
        if let (Scope::Tunnel(inside), Ok(sender)) = (&self.scope, sender) {
            inside.idle().put(Kept { sender, address, via, absolute: false });
        }
    }

    /// Takes back an upstream connection to `intent` that can carry another request.
    fn give_back(&self, intent: &Intent, kept: Kept) {
        match &self.scope {
            Scope::Forward => self.proxy.pool.put(intent.clone(), kept),
            Scope::Tunnel(inside) => inside.idle().put(kept),
            Scope::Refused(_) => {}
        }
    }

    /// See [`fields::sign`].
    fn sign(&self, headers: &mut HeaderMap) {
        if matches!(self.scope, Scope::Forward) {
            fields::sign(headers);
        }
    }

    fn stage(&self) -> Stage {
        if matches!(self.scope, Scope::Forward) { Stage::Forward } else { Stage::Request }
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
        let (method, target) = (request.method().clone(), request.uri().clone());
        let facts = |status| HttpRequestFacts {
            method: method.to_string(),
            path: redacted(target.path_and_query().map_or("/", |path| path.as_str())),
            secure: self.is_secure(),
            status: Some(status),
        };
        let grpc = exchange::is_grpc(request.headers());
        Ok(match self.clone().exchange(Body::request(request)).await {
            Ok(Answered { response, permission, pass }) => {
                let status = response.status().as_u16();
                self.proxy.record_allowed(
                    self.stage(),
                    &Passed {
                        permission: &permission,
                        audited: pass.audited.as_deref().map(|refusal| refusal.reason.as_str()),
                        http: Some(&|| facts(status)),
                    },
                );
                response
            }
            Err(mut refusal) => {
                let path = target.path_and_query().map_or("/", |path| path.as_str());
                judge::complete(&self, &mut refusal, Some((&method, path)));
                let status = refusal.kind.status();
                self.proxy.record_refused(self.stage(), &self.client.known_owner(), &refusal, Some(facts(status)));
                answer::respond(&refusal, grpc)
            }
        })
    }

    /// One request from its head to the head of its response.
    async fn exchange(self: Arc<Self>, request: Request<Body>) -> Result<Answered, Refusal> {
        let begun = Instant::now();
        let proxy = &self.proxy;
        let intent = judge::destination(&self.scope, &request)?;
        let owner = self.client.owner(proxy.attributor.as_ref()).await.map_err(|refusal| refusal.about(&intent))?;
        let permit = proxy.decide(&owner, &intent)?;
        let wish = Wish::of(&request);
        if let Wish::Protocol(protocol) = &wish
            && !wish.is_websocket()
        {
            let detail = format!("extended CONNECT to {protocol:?} is not passed on, only to \"websocket\"");
            return Err(Refusal::new(Kind::UnsupportedProtocol, detail).about(&intent));
        }
        let (asked, pass, mut request) = judge::request(&self, &intent, &owner, &permit, request, &wish).await?;
        if pass.messages.is_some() {
            // Messages are read as they come: nobody may compress them. Extensions are an offer (RFC 6455 §9.1).
            request.headers_mut().remove(header::SEC_WEBSOCKET_EXTENSIONS);
        }
        // On an inspected endpoint rules know of WebSockets and nothing else; an upgrade may be ignored (RFC 9110 §7.8).
        let wish = if proxy.inspects(&permit) && !wish.is_websocket() { Wish::Answer } else { wish };
        let client_upgrade = matches!(wish, Wish::Protocol(_)).then(|| hyper::upgrade::on(&mut request));
        let awaited = Awaited::prepare(&self, &mut request);
        // A kept connection may be closed by its origin just as we use it: what may be done twice, and is still at
        // hand, is sent again on another (RFC 9110 §9.2.2, RFC 9112 §9.3.1).
        let repeatable = hyper::body::Body::is_end_stream(request.body())
            && request.method().is_idempotent()
            && wish == Wish::Answer;
        let mut copy = repeatable.then(|| copy_of(&request));
        loop {
            // Only the first request of a connection waits for more than the first of these.
            let reach = self.leg(&intent, &owner, &permit, &wish);
            let (reached, confirmed) = tokio::join!(reach, self.client.confirm(&owner, proxy.attributor.as_ref()));
            confirmed.map_err(|refusal| refusal.about(&intent))?;
            let (mut kept, reused) = reached?;
            let (address, via) = (kept.address, kept.via.clone());
            let permission = Permission {
                intent: intent.clone(),
                owner: owner.clone(),
                permit: permit.clone(),
                address,
                via: via.clone(),
            };
            let exchange = Exchange::new(permission.clone(), asked.clone(), pass.messages.clone());
            let opened = Opened::new(self.clone(), exchange);
            // What has changed since the decision, nobody has told it.
            if !opened.exchange.renew(proxy, proxy.store.current().generation) {
                return Err(revoked(&intent));
            }
            let (wish, key) = upgrade::for_leg(&wish, &kept.sender, &mut request);
            fields::rewrite(
                &mut request,
                &Next {
                    intent: &intent,
                    http2: kept.sender.is_http2(),
                    secure: self.is_secure(),
                    wish: &wish,
                    signed: matches!(self.scope, Scope::Forward),
                },
            )?;
            if kept.sender.is_http2() {
                // Its 100 would not be seen.
                awaited.release();
            }
            if let (true, Some(parent)) = (kept.absolute, &proxy.parent) {
                parent.address(&mut request, &intent.host, intent.port).map_err(|error| broken(&intent, &error))?;
            }
            let response = tokio::select! {
                response = awaited.answer(kept.sender.send(request), &proxy.patience) => response,
                () = poll_fn(|cx| opened.exchange.poll_revoked(cx)) => return Err(revoked(&intent)),
            };
            let mut error = match response {
                Waited::Flooded => {
                    let detail = format!("{intent} sent more than {} interim responses", limits::INTERIM_RESPONSES);
                    return Err(Refusal::new(Kind::UpstreamFailed, detail).about(&intent));
                }
                Waited::Came(Ok(response)) => {
                    awaited.release();
                    proxy.events.metrics().connect_seconds.observe(begun.elapsed().as_secs_f64());
                    if let (true, Some(parent)) = (kept.absolute, &proxy.parent) {
                        parent.judge(&response).map_err(|error| by_parent(&intent, &via, &error))?;
                    }
                    let lease = Lease { opened, kept };
                    let parties = upgrade::Parties {
                        wish: &wish,
                        key: key.as_ref(),
                        client: client_upgrade,
                        messages: pass.messages.clone(),
                    };
                    let response = self.pass(response, parties, lease, &permission)?;
                    return Ok(Answered { response, permission, pass });
                }
                Waited::Came(Err(error)) => error,
                Waited::TimedOut => {
                    let detail = format!("{intent} did not answer within {} s", proxy.patience.response.as_secs());
                    return Err(Refusal::new(Kind::UpstreamTimeout, detail).about(&intent));
                }
            };
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
                    copy = Some(copy_of(&repeat));
                    repeat
                }
                _ => {
                    // The first on its connection, or one that may have had its effect.
                    let at = address.map(|address| format!(" at {address}")).unwrap_or_default();
                    let detail = format!("the connection to {intent}{at} failed before an answer came");
                    let refusal = Refusal { via, ..Refusal::new(Kind::UpstreamFailed, detail) }
                        .about(&intent)
                        .because(chain(error.error()));
                    return Err(if reused {
                        refusal.advising("send it again if that does no harm: the origin closed a connection just as it was used again")
                    } else {
                        refusal
                    });
                }
            };
        }
    }

    /// Whether the requests come in TLS.
    fn is_secure(&self) -> bool {
        match &self.scope {
            Scope::Forward => false,
            Scope::Tunnel(inside) => inside.secure,
            // Nothing but a handshake comes to this.
            Scope::Refused(_) => true,
        }
    }

    /// A connection that can carry the request, and whether it was open already.
    async fn leg(&self, intent: &Intent, owner: &Owner, permit: &Permit, wish: &Wish) -> Result<(Kept, bool), Refusal> {
        let found = async |http1_only| match self.kept(intent, permit, wish, http1_only) {
            Some(kept) => Ok((kept, true)),
            None => self.connect(intent, owner, permit, wish, http1_only).await,
        };
        let (kept, reused) = found(matches!(wish, Wish::Upgrade(_))).await?;
        if matches!(wish, Wish::Protocol(_)) && kept.sender.is_http2() && !kept.sender.comes_to_take_protocols().await {
            self.give_back(intent, kept);
            return found(true).await;
        }
        Ok((kept, reused))
    }

    /// A connection to the destination that is open already, at an address that this decision allows.
    fn kept(&self, intent: &Intent, permit: &Permit, wish: &Wish, http1_only: bool) -> Option<Kept> {
        loop {
            let kept = match &self.scope {
                Scope::Forward if *wish == Wish::Answer => self.proxy.pool.take(intent)?,
                Scope::Forward | Scope::Refused(_) => return None,
                Scope::Tunnel(inside) => inside.idle().take(http1_only)?,
            };
            if self.proxy.admit(intent, kept.address.as_slice(), &permit.decision).is_ok() {
                return Some(kept);
            }
            if let (Scope::Tunnel(inside), true) = (&self.scope, kept.sender.is_http2()) {
                inside.idle().forget_http2();
            }
        }
    }

    /// Another one; or one that somebody else has made meanwhile, which is open already.
    async fn connect(
        &self,
        intent: &Intent,
        owner: &Owner,
        permit: &Permit,
        wish: &Wish,
        http1_only: bool,
    ) -> Result<(Kept, bool), Refusal> {
        let Scope::Tunnel(inside) = &self.scope else {
            // What becomes another protocol needs a way of its own.
            let way = if *wish == Wish::Answer { Way::Requests } else { Way::Tunnel };
            let Reached { leg, address, via, absolute } = self.proxy.reach_by(intent, owner, permit, way).await?;
            super::dial::keep_alive(leg.socket());
            let sender = leg::http1(leg).await.map_err(|error| broken(intent, &error))?;
            return Ok((Kept { sender, address, via, absolute }, false));
        };
        let _turn = inside.connecting.lock().await;
        // Whoever held the turn before may have made one that serves us as well.
        if let Some(kept) = self.kept(intent, permit, wish, http1_only) {
            return Ok((kept, true));
        }
        let Reached { leg: stream, address, via, .. } = self.proxy.reach(intent, owner, permit).await?;
        super::dial::keep_alive(stream.socket());
        let sender = if inside.secure {
            let offer = if http1_only { &[HTTP1][..] } else { &PROTOCOLS };
            let (stream, chosen) = self.proxy.secure(intent, stream, offer).await?;
            if chosen == Some(HTTP2) { leg::http2(stream).await } else { leg::http1(stream).await }
        } else {
            leg::http1(stream).await
        };
        let sender = sender.map_err(|error| broken(intent, &error))?;
        let kept = Kept { sender, address, via, absolute: false };
        if let Some(another) = kept.another() {
            inside.idle().put(another);
        }
        Ok((kept, false))
    }

    /// Makes the origin's response ours.
    fn pass(
        self: &Arc<Self>,
        mut response: Response<Incoming>,
        parties: upgrade::Parties<'_>,
        lease: Lease,
        permission: &Permission,
    ) -> Result<Response<Body>, Refusal> {
        fields::frame(response.status(), response.headers_mut()).map_err(|what| {
            let detail = format!("{} answered with a head that {what}", permission.intent);
            Refusal::new(Kind::UpstreamFailed, detail).about(&permission.intent)
        })?;
        let (response, lease) = match upgrade::agree(self, response, parties, lease, permission)? {
            upgrade::Outcome::Switched(response) => return Ok(response),
            upgrade::Outcome::Declined(response, lease) => (response, lease),
        };
        let (mut parts, body) = response.into_parts();
        parts.version = Version::HTTP_11;
        fields::strip(&mut parts.headers);
        self.sign(&mut parts.headers);
        let exchange = lease.opened.exchange.clone();
        Ok(Response::from_parts(parts, Body::leased(body, exchange, lease)))
    }
}

fn revoked(intent: &Intent) -> Refusal {
    let detail = format!("a new policy no longer allows what was asked of {intent}");
    Refusal::new(Kind::PolicyDenied, detail).about(intent)
}

fn by_parent(intent: &Intent, via: &Option<Arc<Via>>, error: &ParentError) -> Refusal {
    let detail = format!("{intent} is allowed but could not be reached: {error}");
    Refusal { via: via.clone(), ..Refusal::new(error.kind(), detail) }.about(intent).advising(error.next_step())
}

fn broken(intent: &Intent, error: &dyn std::error::Error) -> Refusal {
    Refusal::new(Kind::UpstreamFailed, format!("the connection to {intent} failed")).about(intent).because(chain(error))
}

/// A request without a body, once more.
fn copy_of(request: &Request<Body>) -> Request<Body> {
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    *copy.extensions_mut() = request.extensions().clone();
    copy
}

/// What is awaited from an origin besides its answer: leave to send the body, interim responses, progress.
struct Awaited {
    seen: Arc<Seen>,
    released: Option<Arc<Released>>,
}

/// What the two legs tell about an exchange while its response is awaited.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Parts of the body that have passed.
    progress: AtomicU64,
    /// An interim response has come, which whoever serves the client should look at.
    interim: tokio::sync::Notify,
    /// How many have.
    interims: AtomicU64,
}

impl Seen {
    /// Another part has passed.
    fn count(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }
}

/// How waiting for a response ended.
enum Waited<T> {
    Came(T),
    TimedOut,
    /// The origin says that it will answer, over and over.
    Flooded,
}

impl Awaited {
    fn prepare(session: &Arc<Session>, request: &mut Request<Body>) -> Self {
        let seen = Arc::<Seen>::default();
        // RFC 9110 §15.2: a client of HTTP/1.0 would take it for the answer.
        let serves_http1 = request.version() == Version::HTTP_11;
        let expects = request
            .headers()
            .get(header::EXPECT)
            .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
        let released = expects.then(Arc::<Released>::default);
        let mut body = std::mem::replace(request.body_mut(), Body::empty()).counting(seen.clone());
        if let Some(released) = &released {
            body = body.held(Hold::new(released.clone()));
        }
        *request.body_mut() = body;
        let (released_too, queue, told) = (released.clone(), session.interim.clone(), seen.clone());
        // HTTP/2 origins do not call this, and there is no way to pass an interim response on in HTTP/2 yet.
        hyper::ext::on_informational(request, move |response| {
            if response.status() == StatusCode::CONTINUE {
                if let Some(released) = &released_too {
                    released.release();
                }
            } else if serves_http1 {
                serve::queue_interim(&queue, response.status(), response.headers());
            }
            told.interims.fetch_add(1, Ordering::Relaxed);
            told.interim.notify_one();
        });
        Self { seen, released }
    }

    fn release(&self) {
        if let Some(released) = &self.released {
            released.release();
        }
    }

    /// Waits for a response for as long as there is progress within the patience for one.
    async fn answer<T>(&self, response: impl Future<Output = T>, patience: &limits::Patience) -> Waited<T> {
        let mut response = std::pin::pin!(response);
        let mut seen = u64::MAX;
        loop {
            let now = self.seen.progress.load(Ordering::Relaxed);
            if now == seen {
                return Waited::TimedOut;
            }
            seen = now;
            let deadline = tokio::time::sleep(patience.response);
            tokio::pin!(deadline);
            loop {
                tokio::select! {
                    biased;
                    outcome = response.as_mut() => return Waited::Came(outcome),
                    // The service and the connection share a task: being woken is enough, see `Gate::poll_flush`.
                    () = self.seen.interim.notified() => {
                        if self.seen.interims.load(Ordering::Relaxed) > limits::INTERIM_RESPONSES {
                            return Waited::Flooded;
                        }
                    }
                    () = &mut deadline => break,
                }
            }
        }
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += ": ";
        text += &cause.to_string();
        source = cause.source();
    }
    text
}
