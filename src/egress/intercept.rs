//! A tunnel whose endpoint has request rules: its TLS ends here and begins anew towards the origin, so that each request
//! inside can be judged. The decision stays with the name that was dialled; what the client claims inside must agree
//! with it.

use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;

use super::authorize::{Client, Permit};
use super::denial::{Kind, Refusal};
use super::http::{self, Inside, Scope, Session};
use super::intent::Intent;
use super::learn::Unread;
use super::parent::Leg;
use super::tls::hello::{Hello, Sniff, begins_tls, sniff as sniffed};
use super::tls::upstream::TlsError;
use super::tls::{HTTP1, HTTP2};
use super::tunnel::{Permission, Tunnel};
use super::wire::{Gate, Replay, Transport};
use super::{Proxy, limits, splice};
use crate::event::{Severity, Stage};
use crate::policy::host::Host;

/// First allocation for what a client says first; a ClientHello with post-quantum shares is near two kilobytes.
const SNIFF_BYTES: usize = 2048;

/// An intercepted tunnel, both of its sockets open.
pub(super) struct Interception {
    pub client: Arc<TcpStream>,
    /// Bytes that the client sent ahead.
    pub ahead: Vec<u8>,
    pub upstream: Leg,
    pub permission: Permission,
}

/// What is offered to origins, preferred first.
pub(super) const PROTOCOLS: [&[u8]; 2] = [HTTP2, HTTP1];

/// An origin's end of an intercepted connection.
type Origin = TlsStream<Leg>;

/// What the client speaks inside.
enum Spoken {
    Tls(Hello),
    Http1,
    Http2,
}

impl Interception {
    /// Runs to the end.
    pub(super) async fn run(self, proxy: &Arc<Proxy>, owner: &Arc<Client>) {
        let Self { client, mut ahead, upstream, permission } = self;
        super::dial::keep_alive(upstream.socket());
        let intent = permission.intent.clone();
        let spoken = match sniff(Transport::Socket(client.clone()), &mut ahead, proxy).await {
            Ok(Some(spoken)) => spoken,
            // It left before it said anything.
            Ok(None) => return,
            Err(_) if proxy.learner.is_some() => return learned(proxy, client, ahead, upstream, permission).await,
            Err(refusal) => {
                let refusal = about(refusal, &permission);
                proxy.record_refused(Stage::Request, &permission.owner, &refusal, None);
                // In the clear, since there is nothing else to say it in: curl and people see it.
                if splice::write_all(&client, &refusal.wire(false)).await.is_ok() {
                    super::listener::linger(&client).await;
                }
                return;
            }
        };
        let reached = (permission.address, permission.via.clone());
        match spoken {
            Spoken::Tls(hello) => {
                self::tls(proxy, owner, Replay::new(ahead, Transport::Socket(client)), upstream, permission, hello)
                    .await;
            }
            Spoken::Http1 | Spoken::Http2 => {
                let http2 = matches!(spoken, Spoken::Http2);
                let session = Session::new(proxy, owner, Scope::Tunnel(Box::new(Inside::new(intent, false))));
                session.begin(upstream, http2, reached).await;
                if http2 {
                    http::serve_http2(Arc::new(session), Replay::new(ahead, Transport::Socket(client))).await;
                } else {
                    let gate = Gate::with_held(Transport::Socket(client), ahead, proxy.patience);
                    http::serve_inside(session, gate).await;
                }
            }
        }
    }
}

/// Reads on until it is clear what the client speaks; `None` if it says nothing and leaves.
async fn sniff(mut client: Transport, ahead: &mut Vec<u8>, proxy: &Proxy) -> Result<Option<Spoken>, Refusal> {
    let refuse = |what: &str| {
        Refusal::new(Kind::UnsupportedProtocol, format!("the endpoint has request rules, and the client {what}"))
            .advising("speak TLS or HTTP to it, or have the endpoint say `tls: skip` if nothing needs to be inspected")
    };
    let reading = async {
        ahead.reserve(SNIFF_BYTES);
        loop {
            match sniffed(ahead) {
                Sniff::Tls(hello) => return Ok(Some(Spoken::Tls(hello))),
                Sniff::Http1 => return Ok(Some(Spoken::Http1)),
                Sniff::Http2 => return Ok(Some(Spoken::Http2)),
                Sniff::Other(what) => return Err(refuse(&format!("speaks something else: {what}"))),
                Sniff::More => {}
            }
            match client.read_buf(ahead).await {
                Ok(0) | Err(_) if ahead.is_empty() => return Ok(None),
                Ok(0) | Err(_) => return Err(refuse("left in the middle of its first message")),
                Ok(_) => {}
            }
        }
    };
    // Who learns cannot know beforehand which servers speak first.
    let patience = if proxy.learner.is_some() { limits::LEARN_TIME } else { proxy.patience.head };
    let outcome = timeout(patience, reading).await;
    outcome.unwrap_or_else(|_| {
        Err(refuse(if ahead.is_empty() {
            "says nothing, as with protocols in which the server speaks first"
        } else {
            "began its first message and did not end it in time"
        }))
    })
}

/// What is neither TLS nor HTTP passes while a policy is learned, and is written down as such.
async fn learned(proxy: &Arc<Proxy>, client: Arc<TcpStream>, ahead: Vec<u8>, upstream: Leg, permission: Permission) {
    if let Some(learner) = &proxy.learner {
        let why = if ahead.is_empty() || begins_tls(&ahead) { Unread::Unclear } else { Unread::Foreign };
        learner.unread(&permission.owner, &permission.intent, why);
    }
    let tunnel =
        Tunnel { proxy: proxy.clone(), client, upstream, permission, to_upstream: ahead, to_client: Vec::new() };
    tunnel.run().await;
}

/// TLS on both legs, the origin's first: the client is given what the origin chose.
async fn tls(
    proxy: &Arc<Proxy>,
    owner: &Arc<Client>,
    client: Replay<Transport>,
    upstream: Leg,
    permission: Permission,
    hello: Hello,
) {
    let intent = permission.intent.clone();
    let begun = match agrees(&hello, &intent) {
        Ok(()) => reach_tls(proxy, upstream, &permission, &hello).await,
        Err(refusal) => Err(refusal),
    };
    let (scope, alpn, leg) = match begun {
        Ok((leg, chosen)) => {
            (Scope::Tunnel(Box::new(Inside::new(intent.clone(), true))), client_protocol(&hello, chosen), Some(leg))
        }
        Err(refusal) => (Scope::Refused(about(refusal, &permission)), preferred(&hello), None),
    };
    // A certificate for the name that the client expects, so that it reads a refusal rather than a warning. Nothing
    // but the refusal is ever said under a name that is not the tunnel's.
    let name = match (&scope, hello.server_name.as_deref().map(Host::parse)) {
        (Scope::Refused(_), Some(Ok(name))) => name,
        _ => intent.host.clone(),
    };
    let config = match proxy.termination.authority.server_config(&name, alpn) {
        Ok(config) => config,
        Err(error) => {
            proxy.events.find(
                Severity::High,
                "no-certificate",
                format!("no certificate for {name} can be made: {error}"),
            );
            return;
        }
    };
    let stream = match timeout(proxy.patience.head, TlsAcceptor::from(config).accept(client)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return distrusted(proxy, &permission, &error),
        Err(_) => return,
    };
    let session = Session::new(proxy, owner, scope);
    if let Some(leg) = leg {
        let http2 = leg.get_ref().1.alpn_protocol() == Some(HTTP2);
        session.begin(leg, http2, (permission.address, permission.via.clone())).await;
    }
    if alpn == Some(HTTP2) {
        http::serve_http2(Arc::new(session), stream).await;
    } else {
        http::serve_inside(session, Gate::new(Transport::Layer(Box::new(stream)), proxy.patience)).await;
    }
}

/// Whether the client asks inside for the host that it dialled. No name at all is no contradiction: whoever dials an
/// address has none to give, and the certificate is the dialled host's in any case.
fn agrees(hello: &Hello, intent: &Intent) -> Result<(), Refusal> {
    let Some(name) = hello.server_name.as_ref().filter(|_| !hello.is_for(&intent.host)) else { return Ok(()) };
    Err(Refusal::new(
        Kind::AuthorityMismatch,
        format!("the tunnel goes to {intent}, but the TLS inside asks for {name:?} (SNI)"),
    )
    .advising(format!("open a tunnel to {name} for it, if the policy allows that")))
}

/// What client and proxy both speak.
fn offer(hello: &Hello) -> Vec<&'static [u8]> {
    PROTOCOLS.into_iter().filter(|protocol| hello.offers(protocol)).collect()
}

/// What a client is answered in of whom nothing but a refusal is heard.
fn preferred(hello: &Hello) -> Option<&'static [u8]> {
    let offered = offer(hello);
    if offered.contains(&HTTP1) { Some(HTTP1) } else { offered.first().copied() }
}

/// What the client is given: what the origin chose, where the client offers it.
fn client_protocol(hello: &Hello, chosen: Option<&'static [u8]>) -> Option<&'static [u8]> {
    match chosen {
        Some(protocol) if offer(hello).contains(&protocol) => Some(protocol),
        // The origin cannot what the client can: the one is translated into the other.
        _ => preferred(hello),
    }
}

/// TLS with the origin, in what the client speaks as well; where the two have nothing in common, in what the proxy
/// can translate.
async fn reach_tls(
    proxy: &Arc<Proxy>,
    upstream: Leg,
    permission: &Permission,
    hello: &Hello,
) -> Result<(Origin, Option<&'static [u8]>), Refusal> {
    let intent = &permission.intent;
    match proxy.handshake(intent, upstream, &offer(hello)).await {
        Err(TlsError::NoApplicationProtocol) => {
            let again = proxy.reach(intent, &permission.owner, &permission.permit).await?;
            proxy.secure(intent, again.leg, &PROTOCOLS).await
        }
        Err(error) => Err(untrusted(intent, &error)),
        Ok(reached) => Ok(reached),
    }
}

fn untrusted(intent: &Intent, error: &TlsError) -> Refusal {
    Refusal::new(Kind::UpstreamTls, format!("{intent} is allowed, but its TLS cannot be trusted: {error}"))
        .about(intent)
}

/// A refusal with what is known of the tunnel that it ends.
fn about(mut refusal: Refusal, permission: &Permission) -> Refusal {
    refusal.binary = permission.owner.binary();
    refusal.policy.clone_from(&permission.permit.decision.policy);
    refusal.about(&permission.intent)
}

/// The client ended the handshake. Mostly it does not know the sandbox's authority, and it cannot be told.
fn distrusted(proxy: &Proxy, permission: &Permission, error: &std::io::Error) {
    if let Some(learner) = &proxy.learner {
        learner.distrusted(&permission.owner, &permission.intent);
    }
    let who = permission.owner.binary().unwrap_or_else(|| "a program".to_owned());
    proxy.events.find(
        Severity::Low,
        "client-tls-failed",
        format!(
            "{who} did not accept the sandbox's certificate for {}: {error}; have it use the CA bundle that SSL_CERT_FILE \
             names, or give the endpoint `tls: skip`, which forgoes its request rules",
            permission.intent
        ),
    );
}

impl Proxy {
    /// Whether requests inside a tunnel are read.
    pub(super) fn inspects(&self, permit: &Permit) -> bool {
        self.learner.is_some() || permit.decision.is_inspected()
    }

    /// TLS with an origin, offering these protocols.
    async fn handshake(
        &self,
        intent: &Intent,
        stream: Leg,
        offer: &[&'static [u8]],
    ) -> Result<(Origin, Option<&'static [u8]>), TlsError> {
        let (leg, chosen) = self.termination.upstream.handshake(stream, &intent.host, offer).await?;
        Ok((leg, PROTOCOLS.into_iter().find(|protocol| chosen.as_deref() == Some(protocol))))
    }

    /// The same, with the refusal to answer with.
    pub(super) async fn secure(
        &self,
        intent: &Intent,
        stream: Leg,
        offer: &[&'static [u8]],
    ) -> Result<(Origin, Option<&'static [u8]>), Refusal> {
        self.handshake(intent, stream, offer).await.map_err(|error| untrusted(intent, &error))
    }
}
