//! The way to the proxy's pod, which may be gone and come back at another address at any time.

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;

use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::yield_now;
use tokio::time::{Instant, timeout};

use crate::egress::{Resolver, dial, limits};
use crate::policy::host::Host;

/// Where the proxy is, and where it last was.
#[derive(Debug)]
pub(super) struct Route {
    host: Host,
    port: u16,
    resolver: Resolver,
    last: std::sync::Mutex<Option<IpAddr>>,
    looked_up: Mutex<Option<LookUp>>,
}

#[derive(Debug)]
struct LookUp {
    at: Instant,
    outcome: Result<Vec<IpAddr>, String>,
}

impl Route {
    pub(super) fn new((host, port): (Host, u16), resolver: Resolver) -> Self {
        Self { host, port, resolver, last: std::sync::Mutex::default(), looked_up: Mutex::default() }
    }

    /// Connects to it.
    ///
    /// # Errors
    /// What name servers or addresses answered.
    pub(super) async fn dial(&self) -> Result<TcpStream, String> {
        let last = *self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(last) = last {
            let mut connecting = pin!(TcpStream::connect(SocketAddr::new(last, self.port)));
            // On one node the handshake is over when connect(2) returns: one look at the events, before a timer is set, which
            // would wake the thread only to wait for a shorter time.
            let connected = tokio::select! {
                biased;
                connected = &mut connecting => Ok(connected),
                () = yield_now() => timeout(limits::REMOTE_STALE_TIME, connecting).await,
            };
            if let Ok(Ok(stream)) = connected {
                // Fails only on a socket that is already gone, which the first read will say.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
        }
        let addresses = self.look_up().await?;
        let (stream, address) = dial::dial(&addresses, self.port).await.map_err(|error| error.to_string())?;
        *self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(address);
        Ok(stream)
    }

    /// The proxy's addresses; looked up by one at a time, and not too often.
    async fn look_up(&self) -> Result<Vec<IpAddr>, String> {
        let name = match &self.host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        let mut looked_up = self.looked_up.lock().await;
        if let Some(recent) = looked_up.as_ref().filter(|last| last.at.elapsed() < limits::REMOTE_RESOLVE_PAUSE) {
            return recent.outcome.clone();
        }
        // What was known is what has just proved wrong.
        self.resolver.forget();
        let outcome = self.resolver.resolve(name).await.map_err(|error| error.to_string());
        *looked_up = Some(LookUp { at: Instant::now(), outcome: outcome.clone() });
        outcome
    }
}
