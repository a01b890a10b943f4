//! An open tunnel: bytes both ways until both sides are done, the policy takes its permission back, or nothing has
//! moved for too long.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::authorize::{Owner, Permit};
use super::guard;
use super::intent::Intent;
use super::parent::{self, Leg};
use super::splice::{self, Traffic};
use super::{Proxy, dial, limits};
use crate::event::{Disposition, Event, HttpRequestFacts, NetworkActivity, Stage, Via};

/// Why something ends that was opened where nothing is inspected, and now is.
pub(super) const UNREADABLE: &str =
    "its endpoint has request rules now, and what was opened without them cannot be judged";

/// Two connections that belong together, and why they may.
pub(super) struct Tunnel {
    pub proxy: Arc<Proxy>,
    pub client: Arc<TcpStream>,
    pub upstream: Leg,
    pub permission: Permission,
    /// Bytes that the client sent ahead.
    pub to_upstream: Vec<u8>,
    /// Bytes that the origin sent ahead.
    pub to_client: Vec<u8>,
}

/// A standing permission, which each policy generation must renew.
#[derive(Clone, Debug)]
pub(super) struct Permission {
    pub intent: Intent,
    pub owner: Owner,
    pub permit: Permit,
    /// The address that is connected to; unknown where the upstream proxy resolves.
    pub address: Option<IpAddr>,
    /// The upstream proxy on the way, where there is one.
    pub via: Option<Arc<Via>>,
}

impl Permission {
    /// Asks the policy in force again, if it is another generation.
    ///
    /// # Errors
    /// Why it no longer allows what is open.
    pub(super) fn renew(&mut self, proxy: &Proxy, generation: u64) -> Result<(), String> {
        if generation == self.permit.generation {
            return Ok(());
        }
        let permit =
            proxy.decide(&self.owner, &self.intent).map_err(|refusal| refusal.reason.unwrap_or(refusal.detail))?;
        proxy.admit(&self.intent, self.address.as_slice(), &permit.decision).map_err(|error| error.to_string())?;
        self.permit = permit;
        Ok(())
    }

    /// Returns when a policy generation no longer allows what is open, with the reason.
    pub(super) async fn revoked(&mut self, proxy: &Proxy, generations: &mut watch::Receiver<u64>) -> String {
        let read = self.permit.decision.is_inspected();
        loop {
            let generation = *generations.borrow_and_update();
            if let Err(reason) = self.renew(proxy, generation) {
                return reason;
            }
            if !read && self.permit.decision.is_inspected() {
                return UNREADABLE.to_owned();
            }
            if generations.changed().await.is_err() {
                // The store is gone, and with it everything that could change.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Records that the permission ended.
    pub(super) fn record_revoked(&self, proxy: &Proxy, reason: String) {
        self.record(proxy, Disposition::Denied, Stage::Reload, reason, None);
    }

    /// Records what became of a message on the connection that `request` opened.
    pub(super) fn record_message(
        &self,
        proxy: &Proxy,
        disposition: Disposition,
        reason: &str,
        request: HttpRequestFacts,
    ) {
        self.record(proxy, disposition, Stage::Request, reason.to_owned(), Some(request));
    }

    fn record(
        &self,
        proxy: &Proxy,
        disposition: Disposition,
        stage: Stage,
        reason: String,
        http: Option<HttpRequestFacts>,
    ) {
        proxy.events.emit(Event::Network(NetworkActivity {
            disposition,
            stage,
            host: self.intent.host.to_string(),
            port: self.intent.port,
            address: self.address,
            via: self.via.clone(),
            protocol: "tcp".to_owned(),
            actor: self.owner.actor(),
            policy: self.permit.decision.policy.clone(),
            reason: Some(reason),
            count: 1,
            http,
        }));
    }
}

impl Tunnel {
    /// Runs to the end.
    pub(super) async fn run(self) {
        let Self { proxy, client, mut upstream, permission, to_upstream, to_client } = self;
        if upstream.write_all(&to_upstream).await.is_err()
            || upstream.flush().await.is_err()
            || splice::write_all(&client, &to_client).await.is_err()
        {
            return;
        }
        drop((to_upstream, to_client));
        let traffic = Traffic::default();
        let revoked = match upstream {
            Leg::Tcp(upstream) => {
                let relayed = splice::relay(&client, &upstream, &proxy.pipes, &traffic);
                let revoked = until_over(&proxy, permission, relayed, idle(&traffic, Some(&upstream), &proxy)).await;
                if revoked {
                    splice::reset_on_close(&upstream);
                }
                revoked
            }
            Leg::Tls(mut upstream) => {
                dial::keep_alive(upstream.get_ref().0);
                let relayed = parent::relay(&client, &mut upstream, &traffic);
                let revoked = until_over(&proxy, permission, relayed, idle(&traffic, None, &proxy)).await;
                if revoked {
                    splice::reset_on_close(upstream.get_ref().0);
                }
                revoked
            }
        };
        if revoked {
            splice::reset_on_close(&client);
        }
        traffic.count(&proxy.events);
    }
}

/// Waits for whichever comes first, and answers whether it was the policy that took the permission back.
async fn until_over(
    proxy: &Proxy,
    mut permission: Permission,
    relayed: impl Future<Output = std::io::Result<()>>,
    idle: impl Future<Output = ()>,
) -> bool {
    let mut generations = proxy.store.subscribe();
    tokio::select! {
        // How a tunnel ends is its users' affair: both have been told by the sockets.
        _ = relayed => false,
        reason = permission.revoked(proxy, &mut generations) => {
            permission.record_revoked(proxy, reason);
            true
        }
        () = idle => false,
    }
}

/// Returns when nothing has moved for `patience`, to the precision of that time.
///
/// Also has the kernel look after `upstream`, but not before it would first ask whether the peer is there: most tunnels
/// are shorter, and the kernel counts from the last byte however late it is told (tcp(7), TCP_KEEPIDLE).
pub(super) async fn idle(traffic: &Traffic, upstream: Option<&TcpStream>, proxy: &Proxy) {
    let patience = proxy.patience.tunnel;
    let young = Duration::from_secs(limits::KEEPALIVE_IDLE.into()).min(patience);
    let mut seen = traffic.total();
    tokio::time::sleep(young).await;
    if let Some(upstream) = upstream {
        dial::keep_alive(upstream);
    }
    tokio::time::sleep(patience - young).await;
    while traffic.total() != seen {
        seen = traffic.total();
        tokio::time::sleep(patience).await;
    }
}

impl Proxy {
    /// Judges the addresses of an allowed destination.
    ///
    /// # Errors
    /// The first address that may not be dialled.
    pub(super) fn admit(
        &self,
        intent: &Intent,
        addresses: &[IpAddr],
        decision: &crate::policy::decision::Decision,
    ) -> Result<(), guard::GuardError> {
        if self.is_host_alias(intent, decision) {
            return addresses.iter().try_for_each(|&address| guard::dials_itself(address, intent.port, &self.own));
        }
        // Whoever learns lets everything pass, and writes it down by its name.
        if self.learner.is_some() && addresses.is_empty() {
            return Ok(());
        }
        guard::admit(&intent.host, intent.port, addresses, decision, &self.own)
    }
}
