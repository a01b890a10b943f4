//! The egress proxy: adapter (CONNECT, absolute-form HTTP) → intent → attribution → decision → destination plan → dial
//! → relay. Nothing is resolved or dialled before a program has been found and allowed, and what is dialled is an
//! address that was judged, not a name.

mod authorize;
mod chunk;
mod connect;
mod denial;
mod dial;
mod forward;
mod guard;
mod head;
mod intent;
pub mod limits;
mod listener;
mod pool;
mod resolve;
mod splice;
mod tunnel;
mod wire;

#[cfg(test)]
mod tests;

pub use guard::{Class, classify};
pub use resolve::{ResolveError, Resolver};

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

use crate::attribution::Attributor;
use crate::contract::HOST_ALIAS;
use crate::event::Events;
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
    /// Names to addresses.
    pub resolver: Resolver,
    /// Addresses at which the supervisor listens outside the workload's own namespace: never dialled.
    pub own_addresses: Vec<SocketAddr>,
    /// Whether [`HOST_ALIAS`] reaches this host's loopback where a policy names it exactly.
    pub host_alias: bool,
    /// Where what happens is recorded.
    pub events: Events,
    /// How long silent peers are waited for.
    pub patience: limits::Patience,
}

/// The proxy.
#[derive(Debug)]
pub struct Proxy {
    store: Arc<Store>,
    attributor: Option<Arc<Attributor>>,
    resolver: Resolver,
    own: guard::Own,
    host_alias: bool,
    events: Events,
    patience: limits::Patience,
    pool: pool::Pool,
    pipes: splice::Pipes,
}

impl Proxy {
    /// Makes a proxy that serves nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            store: settings.store,
            attributor: settings.attributor,
            resolver: settings.resolver,
            own: guard::Own::new(settings.own_addresses),
            host_alias: settings.host_alias,
            events: settings.events,
            patience: settings.patience,
            pool: pool::Pool::default(),
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
        mut shutdown: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let places = Arc::new(Semaphore::new(limits::CONNECTIONS));
        let exits = Arc::new(Semaphore::new(limits::TURNED_AWAY));
        let mut tasks = tokio::task::JoinSet::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            listener::prepare(&listener);
            let listener = TcpListener::from_std(listener)?;
            tasks.spawn(listener::accept(self.clone(), listener, places.clone(), exits.clone()));
        }
        tasks.spawn(listener::sweep(self.clone()));
        // An error means that whoever could ask for the end has ended.
        let _ = shutdown.wait_for(|&ended| ended).await;
        Ok(())
    }

    /// Resolves, judges and dials an allowed destination.
    ///
    /// # Errors
    /// The refusal to answer with.
    async fn reach(&self, intent: &Intent, owner: &Owner, permit: &Permit) -> Result<(TcpStream, IpAddr), Refusal> {
        let refuse = |kind, detail: String| {
            let mut refusal = Refusal::new(kind, detail).about(intent);
            refusal.binary = owner.binary();
            refusal.policy.clone_from(&permit.decision.policy);
            refusal
        };
        let addresses = self.addresses(intent, permit).await.map_err(|error| match error {
            ResolveError::TimedOut { .. } => refuse(Kind::UpstreamTimeout, error.to_string()),
            _ => refuse(Kind::Unresolvable, error.to_string())
                .advising("check the spelling of the host; the sandbox's proxy resolves names, not the program"),
        })?;
        self.admit(intent, &addresses, &permit.decision).map_err(|error| {
            let internal = matches!(error, guard::GuardError::Internal { .. });
            let refusal = refuse(Kind::DestinationDenied, error.to_string());
            if internal {
                refusal.advising(format!(
                    "if {} is meant to be internal, name it exactly in an endpoint, or list its address in allowed_ips",
                    intent.host
                ))
            } else {
                refusal
            }
        })?;
        dial::dial(&addresses, intent.port).await.map_err(|error| {
            let kind = if error.timed_out { Kind::UpstreamTimeout } else { Kind::UpstreamUnreachable };
            refuse(kind, format!("{intent} is allowed but could not be connected to: {error}"))
        })
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
            && decision
                .endpoints
                .iter()
                .filter_map(|(policy, index)| policy.endpoints.get(*index))
                .any(|endpoint| endpoint.names(&intent.host))
    }
}
