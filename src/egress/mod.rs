//! The egress proxy: adapter (CONNECT, absolute-form HTTP) → intent → attribution → decision → destination plan → dial
//! → relay. Nothing is resolved or dialled before a program has been found and allowed, and what is dialled is an
//! address that was judged, not a name. Behind an upstream proxy, what is dialled is that proxy.

mod attestation;
mod authorize;
mod chunk;
mod connect;
mod denial;
pub(crate) mod dial;
mod forward;
mod guard;
mod head;
mod http;
mod intent;
mod intercept;
pub mod learn;
pub mod limits;
mod listener;
mod parent;
pub mod reach;
pub mod remote;
pub(crate) mod resolve;
mod splice;
pub mod tls;
mod tunnel;
mod wire;

#[cfg(test)]
mod tests;

pub use guard::{GuardError, admit_untold};
pub use parent::{
    AnswerError, Credentials, CredentialsError, ExemptionError, Exemptions, Leg, Parent, ParentError, ParentSettings,
    ProxyUrl, ProxyUrlError, Route,
};
pub use resolve::{ResolveError, Resolver};

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::sync::watch;

use crate::attest::Verifier;
use crate::attribution::Attributor;
use crate::contract::HOST_ALIAS;
use crate::event::{Events, Via};
use crate::policy::Store;
use crate::policy::decision::Decision;
use crate::policy::host::Host;
use authorize::{Owner, Permit};
use denial::{Kind, Refusal};
use intent::Intent;

/// What a proxy works with.
#[derive(Debug)]
pub struct Settings {
    /// The policy in force.
    pub store: Arc<Store>,
    /// Who finds out which program asks; `None` in relaxed mode, where every program is the same.
    pub attributor: Option<Arc<Attributor>>,
    /// Who believes what is attested of connections, where their programs are in another pod.
    pub attestation: Option<Verifier>,
    /// Names to addresses.
    pub resolver: Resolver,
    /// The corporate proxy that everything goes through, where there is one.
    pub parent: Option<ParentSettings>,
    /// Addresses at which the supervisor listens outside the workload's own namespace: never dialled.
    pub own_addresses: Vec<SocketAddr>,
    /// Whether [`HOST_ALIAS`] reaches this host's loopback where a policy names it exactly.
    pub host_alias: bool,
    /// Where what happens is recorded.
    pub events: Events,
    /// Who intercepted connections are shown, and whom origins are verified by.
    pub termination: Arc<tls::Termination>,
    /// Who writes down what passes, which is then everything.
    pub learner: Option<Arc<learn::Learner>>,
    /// How long silent peers are waited for.
    pub patience: limits::Patience,
}

/// The proxy.
#[derive(Debug)]
pub struct Proxy {
    store: Arc<Store>,
    attributor: Option<Arc<Attributor>>,
    attestation: Option<attestation::Attestation>,
    resolver: Arc<Resolver>,
    parent: Option<Parent>,
    own: guard::Own,
    host_alias: bool,
    events: Events,
    patience: limits::Patience,
    learner: Option<Arc<learn::Learner>>,
    termination: Arc<tls::Termination>,
    pool: http::Pool,
    pipes: splice::Pipes,
}

impl Proxy {
    /// Makes a proxy that serves nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Arc<Self> {
        let resolver = Arc::new(settings.resolver);
        let own = guard::Own::new(settings.own_addresses);
        let parent =
            settings.parent.map(|parent| Parent::new(parent, resolver.clone(), own.clone(), settings.patience.parent));
        Arc::new(Self {
            store: settings.store,
            attributor: settings.attributor,
            attestation: settings.attestation.map(attestation::Attestation::new),
            resolver,
            parent,
            own,
            host_alias: settings.host_alias,
            events: settings.events,
            patience: settings.patience,
            learner: settings.learner,
            termination: settings.termination,
            pool: http::Pool::default(),
            pipes: splice::Pipes::default(),
        })
    }

    /// Serves clients on `listeners` until `shutdown` says true or its sender is gone, then accepts no more;
    /// connections that are open end with the runtime.
    ///
    /// # Errors
    /// A listener that the runtime cannot take over. Once serving, nothing ends it.
    pub async fn serve(
        self: Arc<Self>,
        listeners: Vec<std::net::TcpListener>,
        shutdown: watch::Receiver<bool>,
    ) -> io::Result<()> {
        listener::serve(&self, listeners, listener::sweep(self.clone()), shutdown).await
    }

    /// Resolves and judges an allowed destination, then dials it, or asks the upstream proxy for a tunnel to it.
    ///
    /// # Errors
    /// The refusal to answer with.
    async fn reach(&self, intent: &Intent, owner: &Owner, permit: &Permit) -> Result<Reached, Refusal> {
        self.reach_by(intent, owner, permit, Way::Tunnel).await
    }

    /// The same, by one way or the other where there is an upstream proxy.
    async fn reach_by(&self, intent: &Intent, owner: &Owner, permit: &Permit, way: Way) -> Result<Reached, Refusal> {
        let reached = self.reach_unnoted(intent, owner, permit, way).await?;
        if let Some(learner) = &self.learner {
            learner.reached(intent);
        }
        Ok(reached)
    }

    async fn reach_unnoted(
        &self,
        intent: &Intent,
        owner: &Owner,
        permit: &Permit,
        way: Way,
    ) -> Result<Reached, Refusal> {
        let refuse = |kind, detail: String| {
            let mut refusal = Refusal::new(kind, detail).about(intent);
            refusal.binary = owner.binary();
            refusal.policy.clone_from(&permit.decision.policy);
            refusal
        };
        // This host's own loopback is nowhere behind the upstream proxy.
        let parent = self.parent.as_ref().filter(|_| !self.is_host_alias(intent, &permit.decision));
        let through =
            |addresses: &[IpAddr]| parent.filter(|it| it.route(&intent.host, intent.port, addresses) == Route::Through);
        let addresses = match self.addresses(intent, permit).await {
            Ok(addresses) => addresses,
            // The name may be known to the upstream proxy alone, and the operator has said that this is enough.
            Err(_) if through(&[]).is_some_and(Parent::resolves_remotely) => Vec::new(),
            Err(error @ ResolveError::TimedOut { .. }) => return Err(refuse(Kind::UpstreamTimeout, error.to_string())),
            Err(error) => {
                let refusal = refuse(Kind::Unresolvable, error.to_string())
                    .advising("check the spelling of the host; the sandbox's proxy resolves names, not the program");
                return Err(match through(&[]) {
                    None => refusal,
                    Some(_) => refusal.advising(
                        "if only the upstream proxy knows outside names, the sandbox's operator can start it with \
                         --upstream-proxy-resolve-remotely",
                    ),
                });
            }
        };
        self.admit(intent, &addresses, &permit.decision)
            .map_err(|error| refuse(Kind::DestinationDenied, error.to_string()).advising(error.next_step()))?;
        if let Some(parent) = through(&addresses) {
            // A request in absolute form names its host, and the upstream proxy resolves that anew: what was judged here
            // would not be what is dialled there, unless the operator has left that to it, or there is nothing to resolve.
            let named = parent.resolves_remotely() || matches!(intent.host, Host::Address(_));
            let absolute = way == Way::Requests && named;
            let reached = match absolute {
                false => parent.tunnel(&intent.host, intent.port, &addresses).await,
                // A name is resolved by the upstream proxy, and an address is what it is.
                true => {
                    let literal = addresses.first().copied().filter(|_| matches!(intent.host, Host::Address(_)));
                    parent.connect().await.map(|leg| (leg, literal))
                }
            };
            let (leg, address) = reached.map_err(|error| {
                let detail = format!("{intent} is allowed but could not be reached: {error}");
                let mut refusal = refuse(error.kind(), detail).advising(error.next_step());
                refusal.via = Some(parent.via().clone());
                refusal
            })?;
            return Ok(Reached { leg, address, via: Some(parent.via().clone()), absolute });
        }
        let (stream, address) = dial::dial(&addresses, intent.port).await.map_err(|error| {
            let kind = if error.timed_out { Kind::UpstreamTimeout } else { Kind::UpstreamUnreachable };
            refuse(kind, format!("{intent} is allowed but could not be connected to: {error}"))
        })?;
        Ok(Reached { leg: Leg::Tcp(stream), address: Some(address), via: None, absolute: false })
    }

    async fn addresses(&self, intent: &Intent, permit: &Permit) -> Result<Vec<IpAddr>, ResolveError> {
        match &intent.host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(_) if self.is_host_alias(intent, &permit.decision) => {
                Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()])
            }
            Host::Name(name) => self.resolver.resolve(name).await,
        }
    }

    /// Whether the destination is the host's own loopback, which only an exact name opens.
    fn is_host_alias(&self, intent: &Intent, decision: &Decision) -> bool {
        self.host_alias
            && matches!(&intent.host, Host::Name(name) if **name == *HOST_ALIAS)
            && (self.learner.is_some()
                || decision
                    .endpoints
                    .iter()
                    .filter_map(|(policy, index)| policy.endpoints.get(*index))
                    .any(|endpoint| endpoint.names(&intent.host)))
    }
}

/// How an upstream proxy may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// It is asked for a tunnel.
    Tunnel,
    /// It is sent requests in absolute form where that is safe: many allow no tunnel to port 80.
    Requests,
}

/// An open way to a destination.
#[derive(Debug)]
struct Reached {
    /// Carries its bytes.
    leg: Leg,
    /// The address it leads to; unknown where the upstream proxy resolves.
    address: Option<IpAddr>,
    /// The upstream proxy on the way, where there is one.
    via: Option<Arc<Via>>,
    /// It ends at that proxy, which takes requests in absolute form.
    absolute: bool,
}
