//! A corporate proxy between us and everything: what leaves goes through it, in a tunnel (RFC 9110 §9.3.6) or as a
//! request in absolute form (RFC 9112 §3.2.2), and never around it because it is in trouble.
//!
//! A tunnel is asked for by an address that the destination guard has judged, so the guard holds behind the proxy as
//! well. Where only the proxy resolves outside names, the operator gives that up by `--upstream-proxy-resolve-remotely`.

mod answer;
mod credentials;
mod exempt;
mod leg;
mod url;

pub use answer::AnswerError;
pub use credentials::{Credentials, CredentialsError};
pub use exempt::{ExemptionError, Exemptions};
pub use leg::Leg;
pub(super) use leg::relay;
pub use url::{ProxyUrl, ProxyUrlError};

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::header::{self, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::denial::Kind;
use super::dial;
use super::guard::{self, Own};
use super::intent::Intent;
use super::resolve::{ResolveError, Resolver};
use super::tls::HTTP1;
use super::tls::upstream::Upstream;
use crate::event::Via;
use crate::policy::host::Host;

/// What an operator says about the proxy.
#[derive(Debug)]
pub struct ParentSettings {
    /// Where it is.
    pub url: ProxyUrl,
    /// What does not go through it.
    pub exempt: Exemptions,
    /// What it knows us by.
    pub credentials: Option<Credentials>,
    /// Whether it is given names instead of addresses.
    pub resolve_remotely: bool,
    /// Who speaks TLS to it; needed where the URL says https.
    pub tls: Option<Arc<Upstream>>,
}

/// The upstream proxy.
#[derive(Debug)]
pub struct Parent {
    settings: ParentSettings,
    via: Arc<Via>,
    resolver: Arc<Resolver>,
    own: Own,
    patience: Duration,
}

/// Which way a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Dialled from here.
    Direct,
    /// Through the proxy.
    Through,
}

/// Why a destination cannot be reached through the proxy.
#[derive(Debug, thiserror::Error)]
pub enum ParentError {
    /// The proxy's name has no address.
    #[error("the upstream proxy {proxy} cannot be found: {source}")]
    Unresolvable {
        /// The proxy.
        proxy: ProxyUrl,
        /// Why.
        source: ResolveError,
    },
    /// The proxy is this proxy.
    #[error("the upstream proxy {proxy} is at {address}, where this proxy itself listens")]
    Own {
        /// The proxy.
        proxy: ProxyUrl,
        /// Its address.
        address: IpAddr,
    },
    /// No address of the proxy accepted.
    #[error("the upstream proxy {proxy} cannot be connected to: {reason}")]
    Unreachable {
        /// The proxy.
        proxy: ProxyUrl,
        /// What each address answered.
        reason: String,
        /// Whether it was silence.
        timed_out: bool,
    },
    /// No TLS with the proxy.
    #[error("TLS with the upstream proxy {proxy} failed: {reason}")]
    Tls {
        /// The proxy.
        proxy: ProxyUrl,
        /// Why.
        reason: String,
    },
    /// The proxy gave no answer that could be understood.
    #[error("the upstream proxy {proxy} did not open a tunnel to {target}: {source}")]
    Answer {
        /// The proxy.
        proxy: ProxyUrl,
        /// What it was asked for.
        target: String,
        /// What came instead.
        source: AnswerError,
    },
    /// The proxy wants to know who asks.
    #[error("the upstream proxy {proxy} answered 407: {}", wanted(*sent, schemes))]
    Authentication {
        /// The proxy.
        proxy: ProxyUrl,
        /// Whether it was told.
        sent: bool,
        /// The schemes that it offers.
        schemes: Vec<String>,
    },
    /// The proxy refused.
    #[error("the upstream proxy {proxy} answered {status}{} to CONNECT {target}", spaced(phrase))]
    Refused {
        /// The proxy.
        proxy: ProxyUrl,
        /// What it was asked for.
        target: String,
        /// Whether it was asked by an address although the client named a name.
        by_address: bool,
        /// The status it answered.
        status: u16,
        /// Its phrase.
        phrase: String,
    },
    /// There is no address to ask for.
    #[error("there is no address of {target} that the upstream proxy {proxy} could be asked for")]
    NoAddress {
        /// The proxy.
        proxy: ProxyUrl,
        /// The destination.
        target: String,
    },
    /// It took too long.
    #[error("the upstream proxy {proxy} did not answer within {} s", patience.as_secs())]
    TimedOut {
        /// The proxy.
        proxy: ProxyUrl,
        /// How long it had.
        patience: Duration,
    },
}

fn wanted(sent: bool, schemes: &[String]) -> String {
    let what = if sent { "it refuses the credentials it was given" } else { "it wants credentials and none are set" };
    if schemes.is_empty() { what.to_owned() } else { format!("{what} (it offers {})", schemes.join(", ")) }
}

fn spaced(phrase: &str) -> String {
    if phrase.is_empty() { String::new() } else { format!(" {phrase}") }
}

impl ParentError {
    /// What the client is answered.
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Authentication { .. } => Kind::UpstreamProxyAuth,
            Self::TimedOut { .. }
            | Self::Unreachable { timed_out: true, .. }
            | Self::Unresolvable { source: ResolveError::TimedOut { .. }, .. }
            | Self::Refused { status: 504, .. } => Kind::UpstreamTimeout,
            Self::Refused { .. } => Kind::UpstreamProxyRefused,
            Self::Unresolvable { .. }
            | Self::Own { .. }
            | Self::Unreachable { .. }
            | Self::Tls { .. }
            | Self::Answer { .. }
            | Self::NoAddress { .. } => Kind::UpstreamProxyFailed,
        }
    }

    /// What the reader can do, which is mostly to tell whoever operates the sandbox.
    pub(super) fn next_step(&self) -> String {
        match self {
            Self::Authentication { schemes, .. }
                if !schemes.is_empty() && !schemes.iter().any(|scheme| scheme.eq_ignore_ascii_case("basic")) =>
            {
                "tell the sandbox's operator: the upstream proxy does not offer Basic, the only scheme spoken here"
                    .into()
            }
            Self::Authentication { .. } => {
                "tell the sandbox's operator: the upstream proxy needs valid credentials, from \
                                            --upstream-proxy-auth-file"
                    .into()
            }
            Self::Refused { by_address: true, .. } => {
                "ask for the destination to be allowed on the upstream proxy; if \
                                                       that proxy judges by name, the sandbox's operator can start it \
                                                       with --upstream-proxy-resolve-remotely"
                    .into()
            }
            Self::Refused { .. } => "ask for the destination to be allowed on the upstream proxy".into(),
            _ => "tell the sandbox's operator: what leaves goes through the upstream proxy, and nothing goes around it"
                .into(),
        }
    }
}

impl Parent {
    /// Makes the proxy of `settings`, whose name `resolver` knows; `own` is never dialled, and nothing takes longer than
    /// `patience`.
    pub(super) fn new(settings: ParentSettings, resolver: Arc<Resolver>, own: Own, patience: Duration) -> Self {
        Self { via: Arc::new(settings.url.via()), settings, resolver, own, patience }
    }

    /// Which way `host`, which resolves to `addresses`, is reached.
    #[must_use]
    pub fn route(&self, host: &Host, port: u16, addresses: &[IpAddr]) -> Route {
        if self.settings.exempt.cover(host, port, addresses) { Route::Direct } else { Route::Through }
    }

    /// Whether a name that is unknown here may be known to the proxy.
    #[must_use]
    pub fn resolves_remotely(&self) -> bool {
        self.settings.resolve_remotely
    }

    /// The proxy, as events name it.
    #[must_use]
    pub fn via(&self) -> &Arc<Via> {
        &self.via
    }

    /// What the proxy wants to see in Proxy-Authorization, on the connection to itself and nowhere else.
    #[must_use]
    pub fn authorization(&self) -> Option<HeaderValue> {
        self.settings.credentials.as_ref().map(Credentials::field)
    }

    /// Opens a tunnel to a destination that may be reached, and answers which of `addresses` it leads to; none is known
    /// where the proxy resolves.
    ///
    /// # Errors
    /// What the proxy answered, or why it did not.
    pub async fn tunnel(
        &self,
        host: &Host,
        port: u16,
        addresses: &[IpAddr],
    ) -> Result<(Leg, Option<IpAddr>), ParentError> {
        self.in_time(self.try_targets(host, port, addresses)).await
    }

    /// Connects to the proxy itself, for requests in absolute form: see [`Parent::address`].
    ///
    /// # Errors
    /// Why it cannot be connected to.
    pub async fn connect(&self) -> Result<Leg, ParentError> {
        self.in_time(self.open()).await
    }

    /// Turns a request for `host` into one to the proxy: its target in absolute form (RFC 9112 §3.2.2), and our
    /// credentials in the place of whatever the client sent (RFC 9110 §11.7.2).
    ///
    /// The proxy resolves the name itself, so what the destination guard has judged is not what it dials. Where that
    /// matters, a plain request goes through a [tunnel](Parent::tunnel) instead, like any other.
    ///
    /// # Errors
    /// The target is none, which a parsed request cannot have.
    pub fn address<B>(&self, request: &mut Request<B>, host: &Host, port: u16) -> Result<(), hyper::http::Error> {
        let at = Intent { host: host.clone(), port };
        let shown = at.to_string();
        // A default port is left out, as in the URLs that people write rules about (RFC 9110 §4.2.3).
        let authority = shown.strip_suffix(":80").filter(|_| port == 80).unwrap_or(&shown);
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        *request.uri_mut() = Uri::builder().scheme("http").authority(authority).path_and_query(path).build()?;
        match self.authorization() {
            Some(field) => request.headers_mut().insert(header::PROXY_AUTHORIZATION, field),
            None => request.headers_mut().remove(header::PROXY_AUTHORIZATION),
        };
        Ok(())
    }

    /// The answer to a request in absolute form, where it is about us and not the client's to see: a 407 would have the
    /// client ask its user for a password, and send it here.
    ///
    /// # Errors
    /// The proxy did not take our credentials.
    pub fn judge<B>(&self, response: &Response<B>) -> Result<(), ParentError> {
        if response.status() != StatusCode::PROXY_AUTHENTICATION_REQUIRED {
            return Ok(());
        }
        let offered = response.headers().get_all(header::PROXY_AUTHENTICATE).into_iter();
        let schemes = offered.filter_map(|value| Some(value.to_str().ok()?.split([' ', ',']).next()?.to_owned()));
        Err(ParentError::Authentication {
            proxy: self.settings.url.clone(),
            sent: self.settings.credentials.is_some(),
            schemes: schemes.collect(),
        })
    }

    async fn in_time<T>(&self, act: impl Future<Output = Result<T, ParentError>>) -> Result<T, ParentError> {
        let late = |_| ParentError::TimedOut { proxy: self.settings.url.clone(), patience: self.patience };
        timeout(self.patience, act).await.map_err(late)?
    }

    async fn try_targets(
        &self,
        host: &Host,
        port: u16,
        addresses: &[IpAddr],
    ) -> Result<(Leg, Option<IpAddr>), ParentError> {
        if self.settings.resolve_remotely && matches!(host, Host::Name(_)) {
            let leg = self.ask(&Intent { host: host.clone(), port }, false).await?;
            return Ok((leg, None));
        }
        let mut outcome = Err(ParentError::NoAddress {
            proxy: self.settings.url.clone(),
            target: Intent { host: host.clone(), port }.to_string(),
        });
        for address in dial::interleave(addresses) {
            let target = Intent { host: Host::Address(address), port };
            outcome = self.ask(&target, matches!(host, Host::Name(_))).await.map(|leg| (leg, Some(address)));
            // Only what the proxy could not reach is worth another address: it may lack a family, or the address be down.
            if !matches!(outcome, Err(ParentError::Refused { status: 500.., .. })) {
                break;
            }
        }
        outcome
    }

    /// Asks for one tunnel, on a connection of its own.
    async fn ask(&self, target: &Intent, by_address: bool) -> Result<Leg, ParentError> {
        let proxy = || self.settings.url.clone();
        let mut leg = self.open().await?;
        let failed = |source| ParentError::Answer { proxy: proxy(), target: target.to_string(), source };
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
        if let Some(field) = self.authorization() {
            request.extend_from_slice(b"Proxy-Authorization: ");
            request.extend_from_slice(field.as_bytes());
            request.extend_from_slice(b"\r\n");
        }
        request.extend_from_slice(b"\r\n");
        leg.write_all(&request).await.map_err(|error| failed(error.into()))?;
        leg.flush().await.map_err(|error| failed(error.into()))?;
        let answer = answer::read(&mut leg).await.map_err(failed)?;
        match answer.status {
            // Any of them opens the tunnel, whatever length its head claims (RFC 9110 §9.3.6).
            200..300 => Ok(leg),
            407 => Err(ParentError::Authentication {
                proxy: proxy(),
                sent: self.settings.credentials.is_some(),
                schemes: answer.schemes,
            }),
            status => Err(ParentError::Refused {
                proxy: proxy(),
                target: target.to_string(),
                by_address,
                status,
                phrase: answer.phrase,
            }),
        }
    }

    /// Connects to the proxy. Its address is the operator's choice and may be private; ours it may not be.
    async fn open(&self) -> Result<Leg, ParentError> {
        let url = &self.settings.url;
        let Intent { host, port } = &url.at;
        let addresses = match host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => self
                .resolver
                .resolve(name)
                .await
                .map_err(|source| ParentError::Unresolvable { proxy: url.clone(), source })?,
        };
        for &address in &addresses {
            guard::dials_itself(address, *port, &self.own)
                .map_err(|_| ParentError::Own { proxy: url.clone(), address })?;
        }
        let (stream, _) = dial::dial(&addresses, *port).await.map_err(|error| ParentError::Unreachable {
            proxy: url.clone(),
            reason: error.to_string(),
            timed_out: error.timed_out,
        })?;
        dial::keep_alive(&stream);
        if !url.tls {
            return Ok(Leg::Tcp(stream));
        }
        let failed = |reason| ParentError::Tls { proxy: url.clone(), reason };
        let tls = self.settings.tls.as_ref().ok_or_else(|| failed("nobody here speaks TLS".to_owned()))?;
        // CONNECT and absolute-form requests are written in HTTP/1.1 here.
        let shaken = tls.handshake(stream, host, &[HTTP1]).await;
        Ok(Leg::Tls(Box::new(shaken.map_err(|error| failed(error.to_string()))?.0)))
    }
}
