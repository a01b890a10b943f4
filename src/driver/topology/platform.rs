//! `combined` where the platform enforces the network: one container without any privilege, the proxy in it on loopback,
//! and a NetworkPolicy around the pod.
//!
//! To that policy proxy and workload are one pod, so it lets the workload reach whatever the proxy may: a program that
//! ignores the proxy's variables is held to addresses and ports there, not to what the sandbox's policy says of hosts,
//! programs and requests. That is said in the objects themselves, and the mode is never chosen but by the operator.

use serde_json::{Value, json};

use super::{agent_init, gateway, policy, proxy_pod};
use crate::contract::TRUST_DIRECTORY;
use crate::driver::companion::{self, Owner};
use crate::driver::config::EgressRange;
use crate::driver::container::{Container, Mount, Security};
use crate::driver::names::{self, ADMIN, annotation, container, label, path, volume as names_of};
use crate::driver::object::{Fields, Object};
use crate::driver::plan::Plan;
use crate::driver::pod::Pod;
use crate::driver::{role, volume};

/// What an operator is told by the objects.
const TRADE_OFF: &str = "programs that ignore the proxy are held by this pod's NetworkPolicy alone: to addresses and ports, not to \
                         hosts, programs and requests; proxy and workload are one user";

/// The fence first: what it selects may start any moment.
pub(super) fn objects(plan: &Plan<'_>) -> Vec<Object> {
    let mut objects = vec![egress(plan)];
    objects.extend(policy(plan));
    objects.push(pod(plan).object(plan));
    objects
}

fn pod(plan: &Plan<'_>) -> Pod {
    let reader = volume::Reader::Group;
    let mut pod = Pod::agent(plan);
    pod.annotations = vec![(annotation::TRADE_OFF, TRADE_OFF.into())];
    pod.volumes.extend([volume::empty(names_of::TMP), volume::empty(names_of::CA_TRUST)]);
    // No SPIFFE: whoever is in the pod may connect to that socket, and be given what the proxy is.
    for optional in [volume::policy(plan), volume::token(plan, reader), volume::client_tls(plan, reader)] {
        pod.volumes.extend(optional);
    }
    pod.init = agent_init(plan);
    pod.init.push(verify_policy(plan));
    let mut flags = role::policy_flag(plan);
    flags.extend(role::upstream_flags(plan));
    flags.push("--fence=elsewhere".into());
    flags.extend(role::landlock_net_flag(plan.config.platform_network.landlock_net));
    let agent = role::agent(plan, Security::none(plan.runs_as()), ADMIN, "network,process", flags)
        .mounts([Mount::read_write(names_of::CA_TRUST, TRUST_DIRECTORY)])
        .mounts(role::policy_mount(plan));
    pod.containers = vec![gateway(plan, agent, path::AGENT_TLS_DIRECTORY, true)];
    pod.fs_group = plan.runs_as().map(|ids| ids.gid);
    pod
}

/// Proves that the cluster enforces the policy.
fn verify_policy(plan: &Plan<'_>) -> Container {
    let timeout = format!("--timeout={}", plan.config.platform_network.start_timeout_secs);
    let mut flags = vec!["--network-policy".to_owned(), timeout];
    flags.extend(plan.controls().iter().map(|control| format!("--control={control}")));
    flags.extend(plan.config.platform_network.canaries.iter().map(|canary| format!("--canary={canary}")));
    role::supervisor(plan, container::VERIFY_FENCE, Security::none(plan.runs_as())).command(
        path::SUPERVISOR,
        "verify-fence",
        flags,
    )
}

/// What the pod may reach. As in proxy-pod it belongs to nobody, so that nothing outlives its fence.
fn egress(plan: &Plan<'_>) -> Object {
    let config = &plan.config.platform_network;
    let mut rules: Vec<Value> = Vec::new();
    rules.extend(config.dns_peers.iter().filter_map(|peer| proxy_pod::rule(peer, &["UDP", "TCP"])));
    rules.extend(config.gateway_peers.iter().filter_map(|peer| proxy_pod::rule(peer, &["TCP"])));
    rules.extend(config.egress.iter().map(range));
    let selector = Fields::new().with(label::SANDBOX_ID, plan.sandbox.id.as_str());
    let spec = Fields::new()
        .with("podSelector", json!({"matchLabels": selector.build()}))
        .with("policyTypes", vec!["Egress"])
        .with("egress", rules);
    let mut metadata = companion::metadata(plan, names::companion::EGRESS, None, Owner::Nobody);
    metadata["annotations"][annotation::TRADE_OFF] = TRADE_OFF.into();
    Object::new("networking.k8s.io/v1", "NetworkPolicy", metadata, Fields::new().with("spec", spec))
}

fn range(range: &EgressRange) -> Value {
    let block = Fields::new().with("cidr", range.cidr.as_str()).maybe("except", range.except.clone());
    let ports: Vec<Value> = range.ports.iter().map(|port| json!({"protocol": "TCP", "port": port})).collect();
    json!({"to": [{"ipBlock": block.build()}], "ports": ports})
}
