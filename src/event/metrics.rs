//! Counters for operators, in Prometheus' text format. No label ever holds a host, a path or a program: what the
//! workload chooses must not decide how many series there are.

mod node;

use std::sync::OnceLock;

pub use node::NodeMetrics;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::{Disposition, Event, Severity, Stage};

/// Upper bounds, in seconds, of the time from a request to its answer: from a cached decision on the same machine to
/// the longest dial that the proxy waits for.
const CONNECT_BUCKETS: [f64; 12] = [0.000_1, 0.000_25, 0.000_5, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Protocols that have a series of their own; all else is `other`.
const PROTOCOLS: [&str; 4] = ["tcp", "udp", "icmp", "icmpv6"];

type Labels<const N: usize> = [(&'static str, &'static str); N];

/// Everything that `/metrics` shows. Mechanisms count by the public fields; what follows from an event is counted when
/// it is emitted.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    connections: [[Counter; Stage::ALL.len()]; 3],
    bypass_attempts: Family<Labels<1>, Counter>,
    findings: Family<Labels<2>, Counter>,
    /// Client connections that are open now.
    pub open_connections: Gauge,
    /// Bytes from the workload to its destinations.
    pub bytes_sent: Counter,
    /// Bytes from destinations to the workload.
    pub bytes_received: Counter,
    /// Seconds from the request to the answer that lets the workload go on.
    pub connect_seconds: Histogram,
    /// Prefaces that were not believed: forged, replayed, or unreadable.
    pub attestations_refused: Counter,
    /// Generation of the policy in force; the first is 1.
    pub policy_generation: Gauge,
    /// Policies that replaced their predecessor.
    pub policy_reloads_loaded: Counter,
    /// Policies that were refused while the last good one stayed.
    pub policy_reloads_refused: Counter,
    /// Events that were dropped because their reader is too slow.
    pub events_dropped: Counter,
    /// Events that could not be written.
    pub event_write_errors: Counter,
    node: OnceLock<NodeMetrics>,
}

impl Metrics {
    pub(super) fn new() -> Self {
        let mut registry = Registry::with_prefix("openshell");
        let connections: Family<Labels<2>, Counter> = Family::default();
        let each = [Disposition::Allowed, Disposition::Denied, Disposition::Audited].map(|disposition| {
            Stage::ALL.map(|stage| {
                connections.get_or_create_owned(&[("disposition", disposition.name()), ("stage", stage.name())])
            })
        });
        let bypass_attempts: Family<Labels<1>, Counter> = Family::default();
        for protocol in PROTOCOLS {
            bypass_attempts.get_or_create_owned(&[("protocol", protocol)]);
        }
        let bytes: Family<Labels<1>, Counter> = Family::default();
        let reloads: Family<Labels<1>, Counter> = Family::default();
        let metrics = Self {
            connections: each,
            bypass_attempts,
            findings: Family::default(),
            open_connections: Gauge::default(),
            bytes_sent: bytes.get_or_create_owned(&[("direction", "sent")]),
            bytes_received: bytes.get_or_create_owned(&[("direction", "received")]),
            connect_seconds: Histogram::new(CONNECT_BUCKETS),
            attestations_refused: Counter::default(),
            policy_generation: Gauge::default(),
            policy_reloads_loaded: reloads.get_or_create_owned(&[("outcome", "loaded")]),
            policy_reloads_refused: reloads.get_or_create_owned(&[("outcome", "refused")]),
            events_dropped: Counter::default(),
            event_write_errors: Counter::default(),
            node: OnceLock::new(),
            registry: Registry::default(),
        };
        registry.register("egress_connections", "Requests for a connection, by outcome and stage", connections);
        registry.register("egress_open_connections", "Client connections open now", metrics.open_connections.clone());
        registry.register_with_unit(
            "egress",
            "Bytes that tunnels relayed, as the workload sees the direction",
            Unit::Bytes,
            bytes,
        );
        registry.register_with_unit(
            "egress_connect",
            "Time from a request to the answer that lets the workload go on",
            Unit::Seconds,
            metrics.connect_seconds.clone(),
        );
        registry.register(
            "bypass_attempts",
            "Packets that tried to go around the proxy, by protocol",
            metrics.bypass_attempts.clone(),
        );
        registry.register(
            "attestations_refused",
            "Connections whose attestation was forged, replayed or unreadable",
            metrics.attestations_refused.clone(),
        );
        registry.register("policy_generation", "Generation of the policy in force", metrics.policy_generation.clone());
        registry.register("policy_reloads", "Policies offered after the first, by outcome", reloads);
        registry.register("findings", "States that someone should know about", metrics.findings.clone());
        registry.register("events_dropped", "Events dropped, their reader being slow", metrics.events_dropped.clone());
        registry.register("event_write_errors", "Events that could not be written", metrics.event_write_errors.clone());
        Self { registry, ..metrics }
    }

    /// What the installer of the node's plugin shows besides. Who does not ask for it shows no such series.
    pub fn node(&self) -> &NodeMetrics {
        self.node.get_or_init(NodeMetrics::new)
    }

    /// Counts a request that was judged.
    pub(super) fn count_connection(&self, disposition: Disposition, stage: Stage, times: u64) {
        let row = match disposition {
            Disposition::Allowed => 0,
            Disposition::Denied => 1,
            Disposition::Audited => 2,
        };
        self.connections[row][stage as usize].inc_by(times);
    }

    /// Counts what follows from `event`, connections aside.
    pub(super) fn count_rest(&self, event: &Event) {
        match event {
            Event::Network(activity) if activity.stage == Stage::Bypass => {
                let protocol = PROTOCOLS.into_iter().find(|known| *known == activity.protocol).unwrap_or("other");
                self.bypass_attempts.get_or_create(&[("protocol", protocol)]).inc_by(activity.count.max(1));
            }
            Event::Finding(finding) => {
                self.findings.get_or_create(&[("kind", finding.kind), ("severity", finding.severity.name())]).inc();
            }
            Event::Network(_) | Event::Process(_) | Event::Ssh(_) => {}
        }
    }

    /// The exposition in OpenMetrics text.
    ///
    /// # Errors
    /// Only what formatting into a string can report.
    pub fn render(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::with_capacity(4096);
        encode_registry(&mut text, &self.registry)?;
        if let Some(node) = self.node.get() {
            encode_registry(&mut text, node.registry())?;
        }
        encode_eof(&mut text)?;
        Ok(text)
    }
}

impl Severity {
    /// OCSF's caption, in lower case.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Informational => "informational",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
            Self::Critical => "critical",
        }
    }
}

impl Disposition {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Audited => "audited",
        }
    }
}

impl Stage {
    /// In the order of their declaration, so that a stage is its own index.
    pub(super) const ALL: [Self; 10] = [
        Self::Connect,
        Self::Forward,
        Self::Request,
        Self::Tls,
        Self::Parse,
        Self::Attribution,
        Self::Destination,
        Self::Dial,
        Self::Bypass,
        Self::Reload,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Forward => "forward",
            Self::Request => "request",
            Self::Tls => "tls",
            Self::Parse => "parse",
            Self::Attribution => "attribution",
            Self::Destination => "destination",
            Self::Dial => "dial",
            Self::Bypass => "bypass",
            Self::Reload => "reload",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_is_its_own_index() {
        for (index, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, index);
        }
    }

    #[test]
    fn every_series_is_named_as_documented_and_there_from_the_start() {
        let metrics = Metrics::new();
        metrics.count_connection(Disposition::Denied, Stage::Connect, 3);
        metrics.connect_seconds.observe(0.002);
        metrics.bytes_sent.inc_by(10);
        let text = metrics.render().unwrap();
        for line in [
            "openshell_egress_connections_total{disposition=\"denied\",stage=\"connect\"} 3",
            "openshell_egress_connections_total{disposition=\"allowed\",stage=\"forward\"} 0",
            "openshell_egress_open_connections 0",
            "openshell_egress_bytes_total{direction=\"sent\"} 10",
            "openshell_egress_connect_seconds_count 1",
            "openshell_bypass_attempts_total{protocol=\"udp\"} 0",
            "openshell_policy_generation 0",
            "openshell_policy_reloads_total{outcome=\"refused\"} 0",
            "openshell_events_dropped_total 0",
            "openshell_event_write_errors_total 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is missing from\n{text}");
        }
    }
}
