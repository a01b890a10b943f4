//! What is to be seen of a node's installation: whether sandboxes that are started now are fenced, since when that is not
//! known, and how often somebody had to be corrected.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Series of `cni-install`.
#[derive(Debug)]
pub struct NodeMetrics {
    registry: Registry,
    verified: Gauge,
    last_verified: Gauge,
    ready: Gauge,
    repairs: Counter,
    changes: Family<[(&'static str, &'static str); 1], Counter>,
}

impl NodeMetrics {
    pub(super) fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("openshell_cni"),
            verified: Gauge::default(),
            last_verified: Gauge::default(),
            ready: Gauge::default(),
            repairs: Counter::default(),
            changes: Family::default(),
        };
        let registry = &mut metrics.registry;
        registry.register(
            "chain_verified",
            "Whether the runtime calls the plugin, and all that it needs is there (1), or not (0)",
            metrics.verified.clone(),
        );
        registry.register_with_unit(
            "chain_last_verified_timestamp",
            "When that was last seen to be so, since the epoch; 0: never yet",
            Unit::Seconds,
            metrics.last_verified.clone(),
        );
        registry.register(
            "node_ready",
            "Whether the label by which sandboxes are scheduled is known to be set (1), or not (0)",
            metrics.ready.clone(),
        );
        registry.register(
            "repairs",
            "Times that the installation was found different from what it had been verified to be",
            metrics.repairs.clone(),
        );
        registry.register("chain_changes", "Files that were changed on the node, by action", metrics.changes.clone());
        metrics
    }

    /// How the installation was found just now.
    pub fn found(&self, verified: bool) {
        let was_verified = self.verified.set(i64::from(verified)) == 1;
        if verified {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.last_verified.set(i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        } else if was_verified {
            self.repairs.inc();
        }
    }

    /// Whether the node's label is known to be set.
    pub fn labelled(&self, ready: bool) {
        self.ready.set(i64::from(ready));
    }

    /// A file was changed.
    pub fn changed(&self, action: &'static str) {
        self.changes.get_or_create_owned(&[("action", action)]).inc();
    }

    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }
}
