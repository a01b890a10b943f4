//! `proxy-pod`: an agent's pod to which nothing is added, and the proxy in a pod of its own. What keeps the workload from
//! going around it are two NetworkPolicies.
//!
//! The fence, which is the agent's egress policy, comes first and is owned by nobody: garbage collection knows no order
//! among siblings, and a workload that outlived its fence would be free.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use serde_json::{Value, json};

use super::{agent_init, gateway, spiffe};
use crate::contract::{PROXY_CLIENT_TLS, PROXY_PORT, PROXY_TLS_DIRECTORY, TRUST_DIRECTORY, env};
use crate::driver::cluster::{AttestationKey, ProxyCa};
use crate::driver::companion::{self, Owner};
use crate::driver::config::{Affinity, IpFamily, Peer};
use crate::driver::container::{Container, Mount, Security};
use crate::driver::names::{self, ADMIN, ca, container, label, path, volume as names_of};
use crate::driver::object::{Fields, Object, strings};
use crate::driver::plan::Plan;
use crate::driver::pod::Pod;
use crate::driver::{role, volume};

/// Mode of the certificate, which is no secret.
const EVERYBODY_READS: u32 = 0o444;
/// Mode of a secret, which the pod's group reads (fsGroup).
const GROUP_READS: u32 = 0o440;
/// What the proxy reserves: some measured 16 MB, and little of a processor until somebody asks for something.
const RESERVED: [(&str, &str); 2] = [("cpu", "50m"), ("memory", "32Mi")];

pub(super) fn objects(plan: &Plan<'_>) -> Vec<Object> {
    let mut objects = vec![agent_egress(plan)];
    objects.extend(super::policy(plan));
    objects.push(agent_pod(plan).object(plan));
    objects.extend(plan.cluster.proxy_ca.as_ref().map(|ca| ca_secret(plan, ca)));
    objects.extend(plan.cluster.attestation_key.as_ref().map(|key| key_secret(plan, key)));
    objects.extend([service(plan), supervisor_ingress(plan), deployment(plan)]);
    objects
}

fn service_dns(plan: &Plan<'_>) -> String {
    let service = names::companion(names::companion::SERVICE, &plan.sandbox.id);
    format!("{service}.{}.svc.{}", plan.namespace, plan.config.proxy_pod.cluster_domain)
}

fn agent_pod(plan: &Plan<'_>) -> Pod {
    let reader = volume::Reader::Group;
    let proxy = format!("{}:{PROXY_PORT}", service_dns(plan));
    let mut pod = Pod::agent(plan);
    pod.labels = vec![(label::ROLE, label::AGENT.into())];
    pod.volumes.extend([
        volume::empty(names_of::TMP),
        ca_volume(plan, &[ca::CERTIFICATE], EVERYBODY_READS),
        volume::empty(names_of::CA_TRUST),
    ]);
    for optional in [volume::policy(plan), volume::token(plan, reader), volume::client_tls(plan, reader)] {
        pod.volumes.extend(optional);
    }
    pod.init = agent_init(plan);
    pod.volumes.extend(key_volume(plan));
    pod.init.extend([trust(plan), wait(plan, &proxy), verify_policy(plan, &proxy)]);
    let mut flags = vec!["--remote-proxy".into()];
    flags.extend(role::policy_flag(plan));
    flags.push("--fence=elsewhere".into());
    flags.extend(role::landlock_net_flag(plan.config.proxy_pod.landlock_net));
    flags.extend(key_flag(plan));
    let agent = role::agent(plan, Security::none(plan.workload), ADMIN, "process", flags)
        .environment([(env::PROXY_URL, format!("http://{proxy}"))])
        .mounts([Mount::read_only(names_of::CA_TRUST, TRUST_DIRECTORY)])
        .mounts(key_mount(plan))
        .mounts(role::policy_mount(plan));
    // No SPIFFE here, and no CA key: who gives credentials out is the proxy alone.
    pod.containers = vec![gateway(plan, agent, path::AGENT_TLS_DIRECTORY, true)];
    pod.fs_group = Some(plan.workload.gid);
    pod.affinity = affinity(plan);
    pod
}

/// A container of the agent's pod that calls a role once.
fn once(plan: &Plan<'_>, name: &'static str, role_name: &str, flags: impl IntoIterator<Item = String>) -> Container {
    role::supervisor(plan, name, Security::none(plan.runs_as())).command(path::SUPERVISOR, role_name, flags)
}

/// Installs the CA, and the bundle with it, for the workload. Of the agent's image, since whom that trusts is in there.
fn trust(plan: &Plan<'_>) -> Container {
    let certificate = format!("{}/{}", path::CA_DIRECTORY, ca::CERTIFICATE);
    role::of_agent_image(plan, container::TRUST, "trust", [certificate, TRUST_DIRECTORY.to_owned()]).mounts([
        Mount::read_only(names_of::CA_SOURCE, path::CA_DIRECTORY),
        Mount::read_write(names_of::CA_TRUST, TRUST_DIRECTORY),
    ])
}

/// Proves that the cluster enforces this pod's NetworkPolicy. Comes once the proxy can be reached: where nothing can, nothing is
/// proven.
fn verify_policy(plan: &Plan<'_>, proxy: &str) -> Container {
    let canaries = plan.config.proxy_pod.canaries.iter().map(|canary| format!("--canary={canary}"));
    let flags = ["--network-policy".to_owned(), timeout(plan), format!("--control={proxy}")];
    once(plan, container::VERIFY_FENCE, "verify-fence", flags.into_iter().chain(canaries))
}

fn wait(plan: &Plan<'_>, proxy: &str) -> Container {
    once(plan, container::WAIT, "wait-for-tcp", [timeout(plan), proxy.to_owned()])
}

fn timeout(plan: &Plan<'_>) -> String {
    format!("--timeout={}", plan.config.proxy_pod.start_timeout_secs)
}

fn deployment(plan: &Plan<'_>) -> Object {
    let reader = volume::Reader::Group;
    let tls = format!("{PROXY_TLS_DIRECTORY}/{PROXY_CLIENT_TLS}");
    // A socket of IPv6 serves IPv4 as well (ipv6(7)).
    let everywhere: IpAddr = match plan.config.proxy_pod.ip_family {
        IpFamily::Ipv4 => Ipv4Addr::UNSPECIFIED.into(),
        IpFamily::Any => Ipv6Addr::UNSPECIFIED.into(),
    };
    let flags = [
        format!("--bind={}", SocketAddr::new(everywhere, PROXY_PORT)),
        format!("--ca-cert={}/{}", path::CA_DIRECTORY, ca::CERTIFICATE),
        format!("--ca-key={}/{}", path::CA_DIRECTORY, ca::KEY),
        // There is no process of the workload's here to identify: the agent's pod does, or nobody.
        key_flag(plan).unwrap_or_else(|| "--binary-identity=relaxed".into()),
    ];
    let mut network = role::network(plan, Security::none(plan.proxy), flags)
        .mounts([Mount::read_only(names_of::CA_SOURCE, path::CA_DIRECTORY)])
        .mounts(key_mount(plan));
    network.ports = vec![("http-proxy", PROXY_PORT)];
    if plan.config.supervisor_requests.is_empty() && plan.config.supervisor_limits.is_empty() {
        network.resources = json!({"requests": Fields::from_pairs(RESERVED).build()});
    }
    let mut pod = Pod { restart_policy: "Always", ..Pod::default() };
    pod.labels = vec![(label::ROLE, label::SUPERVISOR.into())];
    pod.volumes = vec![ca_volume(plan, &[ca::CERTIFICATE, ca::KEY], GROUP_READS)];
    pod.volumes.extend(key_volume(plan));
    for optional in
        [volume::policy(plan), volume::token(plan, reader), volume::client_tls(plan, reader), volume::spiffe(plan)]
    {
        pod.volumes.extend(optional);
    }
    pod.containers = vec![spiffe(plan, gateway(plan, network, &tls, true))];
    pod.fs_group = Some(plan.proxy.gid);
    let spec = Fields::new()
        .with("replicas", i32::from(!plan.cluster.stopped))
        // Two proxies at a time would be two policies at a time.
        .with("strategy", json!({"type": "Recreate"}))
        .with("selector", json!({"matchLabels": role_labels(plan, label::SUPERVISOR)}))
        .with("template", pod.template(plan));
    let metadata = companion::metadata(plan, names::companion::SUPERVISOR, Some(label::SUPERVISOR), Owner::Controller);
    Object::new("apps/v1", "Deployment", metadata, Fields::new().with("spec", spec))
}

/// Without an address of its own: the name leads to the pod, and before it is ready too, so that waiting is all there is.
fn service(plan: &Plan<'_>) -> Object {
    let spec = Fields::new()
        .with("clusterIP", "None")
        .with("publishNotReadyAddresses", true)
        .with("selector", role_labels(plan, label::SUPERVISOR))
        .with(
            "ports",
            json!([{"name": "http-proxy", "port": PROXY_PORT, "targetPort": PROXY_PORT, "protocol": "TCP"}]),
        );
    let metadata = companion::metadata(plan, names::companion::SERVICE, Some(label::SUPERVISOR), Owner::Sandbox);
    Object::new("v1", "Service", metadata, Fields::new().with("spec", spec))
}

fn ca_secret(plan: &Plan<'_>, given: &ProxyCa) -> Object {
    let data = Fields::new().with(ca::CERTIFICATE, given.certificate.as_str()).with(ca::KEY, given.key.as_str());
    let metadata = companion::metadata(plan, names::companion::CA, Some(label::SUPERVISOR), Owner::Sandbox);
    Object::new("v1", "Secret", metadata, Fields::new().with("type", "Opaque").with("stringData", data))
}

fn key_secret(plan: &Plan<'_>, AttestationKey(key): &AttestationKey) -> Object {
    let data = Fields::new().with(names::ATTESTATION_KEY, key.as_str());
    let metadata = companion::metadata(plan, names::companion::ATTESTATION, None, Owner::Sandbox);
    Object::new("v1", "Secret", metadata, Fields::new().with("type", "Opaque").with("stringData", data))
}

fn key_volume(plan: &Plan<'_>) -> Option<Value> {
    let name = names::companion(names::companion::ATTESTATION, &plan.sandbox.id);
    let secret = json!({"secretName": name, "defaultMode": GROUP_READS});
    plan.cluster.attestation_key.as_ref().map(|_| json!({"name": names_of::ATTESTATION, "secret": secret}))
}

fn key_mount(plan: &Plan<'_>) -> Option<Mount> {
    let mount = || Mount::read_only(names_of::ATTESTATION, path::ATTESTATION_DIRECTORY);
    plan.cluster.attestation_key.as_ref().map(|_| mount())
}

fn key_flag(plan: &Plan<'_>) -> Option<String> {
    let file = || format!("--attestation-key={}/{}", path::ATTESTATION_DIRECTORY, names::ATTESTATION_KEY);
    plan.cluster.attestation_key.as_ref().map(|_| file())
}

fn ca_volume(plan: &Plan<'_>, keys: &[&str], mode: u32) -> Value {
    let items: Vec<Value> = keys.iter().map(|key| json!({"key": key, "path": key})).collect();
    let name = names::companion(names::companion::CA, &plan.sandbox.id);
    json!({"name": names_of::CA_SOURCE, "secret": {"secretName": name, "defaultMode": mode, "items": items}})
}

/// The fence: the proxy, DNS and the gateway, and nothing else.
fn agent_egress(plan: &Plan<'_>) -> Object {
    let config = &plan.config.proxy_pod;
    let proxy = json!({
        "to": [{"podSelector": {"matchLabels": role_labels(plan, label::SUPERVISOR)}}],
        "ports": [{"protocol": "TCP", "port": PROXY_PORT}],
    });
    let mut rules = vec![proxy];
    rules.extend(config.dns_peers.iter().filter_map(|peer| rule(peer, &["UDP", "TCP"])));
    rules.extend(config.gateway_peers.iter().filter_map(|peer| rule(peer, &["TCP"])));
    let spec = Fields::new()
        .with("podSelector", json!({"matchLabels": role_labels(plan, label::AGENT)}))
        .with("policyTypes", vec!["Egress"])
        .with("egress", rules);
    let metadata = companion::metadata(plan, names::companion::EGRESS, Some(label::AGENT), Owner::Nobody);
    Object::new("networking.k8s.io/v1", "NetworkPolicy", metadata, Fields::new().with("spec", spec))
}

/// An empty peer would select everything, so it is no rule.
pub(super) fn rule(peer: &Peer, protocols: &[&str]) -> Option<Value> {
    let selector = |labels| Fields::new().maybe("matchLabels", strings(labels)).build();
    let mut to = Fields::new();
    if let Some(cidr) = &peer.cidr {
        to = to.with("ipBlock", json!({"cidr": cidr}));
    }
    if !peer.namespace_selector.is_empty() {
        to = to.with("namespaceSelector", selector(&peer.namespace_selector));
    }
    if !peer.pod_selector.is_empty() {
        to = to.with("podSelector", selector(&peer.pod_selector));
    }
    let ports: Vec<Value> = protocols.iter().map(|protocol| json!({"protocol": protocol, "port": peer.port})).collect();
    (!peer.is_empty()).then(|| json!({"to": [to.build()], "ports": ports}))
}

fn supervisor_ingress(plan: &Plan<'_>) -> Object {
    let agent = json!({
        "from": [{"podSelector": {"matchLabels": role_labels(plan, label::AGENT)}}],
        "ports": [{"protocol": "TCP", "port": PROXY_PORT}],
    });
    let spec = Fields::new()
        .with("podSelector", json!({"matchLabels": role_labels(plan, label::SUPERVISOR)}))
        .with("policyTypes", vec!["Ingress"])
        .with("ingress", vec![agent]);
    let metadata = companion::metadata(plan, names::companion::INGRESS, Some(label::SUPERVISOR), Owner::Sandbox);
    Object::new("networking.k8s.io/v1", "NetworkPolicy", metadata, Fields::new().with("spec", spec))
}

fn affinity(plan: &Plan<'_>) -> Value {
    let term = json!({
        "labelSelector": {"matchLabels": role_labels(plan, label::SUPERVISOR)},
        "topologyKey": "kubernetes.io/hostname",
    });
    match plan.config.proxy_pod.affinity {
        Affinity::Disabled => Value::Null,
        Affinity::Preferred => json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 100, "podAffinityTerm": term},
        ]}}),
        Affinity::Required => json!({"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}),
    }
}

fn role_labels(plan: &Plan<'_>, role: &str) -> Value {
    Fields::new().with(label::SANDBOX_ID, plan.sandbox.id.as_str()).with(label::ROLE, role).build()
}
