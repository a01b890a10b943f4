//! Upstream connections that wait for another request to the same destination. Each remembers the address it was
//! dialled at, which must pass the guard again before it is used for another decision.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use hyper::client::conn::http1::SendRequest;

use super::forward::Body;
use super::intent::Intent;
use super::limits;
use crate::event::Via;

/// A connection that is ready for a request, or will be in a moment.
#[derive(Debug)]
pub(super) struct Kept {
    /// How to send on it.
    pub sender: SendRequest<Body>,
    /// The address it leads to; unknown where the upstream proxy resolves.
    pub address: Option<IpAddr>,
    /// The upstream proxy on the way, where there is one.
    pub via: Option<Arc<Via>>,
}

#[derive(Debug, Default)]
struct Idle {
    by_destination: HashMap<Intent, Vec<(Kept, Instant)>>,
    total: usize,
}

/// Idle upstream connections.
#[derive(Debug, Default)]
pub(super) struct Pool(Mutex<Idle>);

impl Pool {
    /// The connection to `intent` that was used last and is still open.
    pub(super) fn take(&self, intent: &Intent) -> Option<Kept> {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let (kept, since) = idle.by_destination.get_mut(intent)?.pop()?;
            idle.total -= 1;
            if !kept.sender.is_closed() && since.elapsed() < limits::POOL_IDLE {
                return Some(kept);
            }
        }
    }

    /// Keeps a connection, if there is room.
    pub(super) fn put(&self, intent: Intent, kept: Kept) {
        if kept.sender.is_closed() {
            return;
        }
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.total >= limits::POOL_TOTAL {
            return;
        }
        let list = idle.by_destination.entry(intent).or_default();
        if list.len() < limits::POOL_PER_DESTINATION {
            list.push((kept, Instant::now()));
            idle.total += 1;
        }
    }

    /// Closes what has waited too long or was closed by its origin.
    pub(super) fn sweep(&self) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        idle.by_destination.retain(|_, list| {
            list.retain(|(kept, since)| !kept.sender.is_closed() && since.elapsed() < limits::POOL_IDLE);
            !list.is_empty()
        });
        idle.total = idle.by_destination.values().map(Vec::len).sum();
    }
}
