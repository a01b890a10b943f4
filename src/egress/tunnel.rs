//! An open tunnel: bytes both ways until both sides are done, the policy takes its permission back, or nothing has
//! moved for too long.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;

use super::authorize::{Owner, Permit};
use super::guard;
use super::intent::Intent;
use super::splice::{self, Traffic};
use super::{Proxy, dial, limits};
use crate::event::{Disposition, Event, NetworkActivity, Stage};

/// Two sockets that belong together, and why they may.
pub(super) struct Tunnel {
    pub proxy: Arc<Proxy>,
    pub client: Arc<TcpStream>,
    pub upstream: TcpStream,
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
    /// The address that is connected to.
    pub address: IpAddr,
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
        proxy.admit(&self.intent, &[self.address], &permit.decision).map_err(|error| error.to_string())?;
        self.permit = permit;
        Ok(())
    }

    /// Returns when a policy generation no longer allows what is open, with the reason.
    async fn revoked(&mut self, proxy: &Proxy, generations: &mut watch::Receiver<u64>) -> String {
        loop {
            let generation = *generations.borrow_and_update();
            if let Err(reason) = self.renew(proxy, generation) {
                return reason;
            }
            if generations.changed().await.is_err() {
                // The store is gone, and with it everything that could change.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Records that the permission ended.
    pub(super) fn record_revoked(&self, proxy: &Proxy, reason: String) {
        proxy.events.emit(Event::Network(NetworkActivity {
            disposition: Disposition::Denied,
            stage: Stage::Reload,
            host: self.intent.host.to_string(),
            port: self.intent.port,
            address: Some(self.address),
            protocol: "tcp".to_owned(),
            actor: self.owner.actor(),
            policy: self.permit.decision.policy.clone(),
            reason: Some(reason),
            count: 1,
            http: None,
        }));
    }
}

impl Tunnel {
    /// Runs to the end.
    pub(super) async fn run(self) {
        let Self { proxy, client, upstream, mut permission, to_upstream, to_client } = self;
        let traffic = Traffic::default();
        if splice::write_all(&upstream, &to_upstream).await.is_err()
            || splice::write_all(&client, &to_client).await.is_err()
        {
            return;
        }
        drop((to_upstream, to_client));
        let mut generations = proxy.store.subscribe();
        tokio::select! {
            // How a tunnel ends is its users' affair: both have been told by the sockets.
            _ = splice::relay(&client, &upstream, &proxy.pipes, &traffic) => {}
            reason = permission.revoked(&proxy, &mut generations) => {
                permission.record_revoked(&proxy, reason);
                splice::reset_on_close(&client);
                splice::reset_on_close(&upstream);
            }
            () = idle(&traffic, &upstream, proxy.patience.tunnel) => {}
        }
        let metrics = proxy.events.metrics();
        metrics.bytes_sent.inc_by(traffic.sent.into_inner());
        metrics.bytes_received.inc_by(traffic.received.into_inner());
    }
}

/// Returns when nothing has moved for `patience`, to the precision of that time.
///
/// Also has the kernel look after `upstream`, but not before it would first ask whether the peer is there: most tunnels
/// are shorter, and the kernel counts from the last byte however late it is told (tcp(7), TCP_KEEPIDLE).
async fn idle(traffic: &Traffic, upstream: &TcpStream, patience: Duration) {
    let young = Duration::from_secs(limits::KEEPALIVE_IDLE.into()).min(patience);
    let mut seen = traffic.total();
    tokio::time::sleep(young).await;
    dial::keep_alive(upstream);
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
        guard::admit(&intent.host, intent.port, addresses, decision, &self.own)
    }
}
