//! Tests of the whole: inputs as files, objects as they come out.

mod clusters;
mod golden;
mod network_policies;
mod openshift;
mod pod_security;
mod privileges;
mod refusals;
mod rendering;
mod schema;
mod validity;

use super::cluster::{AttestationKey, ProxyCa};
use super::{Cluster, DriverConfig, Object, SandboxApi, SandboxSpec, Topology, names, render};

/// An id as gateways give them.
pub(super) const ID: &str = "6f1c2a34-9b7e-4d0a-8c55-0e6f7a8b9c0d";

/// What a Pod for Podman is rendered from: the images of `images/build`.
pub(super) const LOCAL: &str = r#"
supervisor_image = "localhost/openshell-supervisor"
default_image = "localhost/openshell-sandbox"
supervisor_sideload_method = "init-container"
"#;

/// A combined sandbox that the platform fences.
pub(super) const PLATFORM: &str = r#"
network_enforcement = "platform"
platform_network.egress = [{cidr = "0.0.0.0/0", except = ["10.0.0.0/8", "169.254.0.0/16"], ports = [80, 443]}]
platform_network.controls = ["example.com:443"]
"#;

/// The sandbox of the golden files.
pub(super) const SANDBOX: &str = r#"
id: 6f1c2a34-9b7e-4d0a-8c55-0e6f7a8b9c0d
name: demo
workspace: default
command:
  - sh
  - -c
  - |
    echo "--- allowed"; curl -sS -o /dev/null -w '%{http_code}\n' https://example.com/
    echo "--- denied"; curl -sS http://example.org/
    echo "--- around the proxy"; curl -sS --noproxy '*' http://1.1.1.1/
policy:
  version: 1
  network_policies:
    example:
      endpoints:
        - {host: example.com, port: 443}
      binaries:
        - {path: /usr/bin/curl}
"#;

pub(super) fn config(text: &str) -> DriverConfig {
    DriverConfig::from_toml(text).unwrap_or_else(|errors| panic!("{errors}\nin:\n{text}"))
}

pub(super) fn sandbox(text: &str) -> SandboxSpec {
    SandboxSpec::from_yaml(text).unwrap_or_else(|errors| panic!("{errors}\nin:\n{text}"))
}

/// A cluster in which every topology can be rendered.
pub(super) fn cluster(api: Option<SandboxApi>) -> Cluster {
    let ca = ProxyCa { certificate: "(the certificate)\n".into(), key: "(the key)\n".into() };
    let key = AttestationKey("(the attestation key of this sandbox)".into());
    Cluster { sandbox_api: api, proxy_ca: Some(ca), attestation_key: Some(key), ..Cluster::default() }
}

pub(super) fn rendered(config: &DriverConfig, sandbox: &SandboxSpec, cluster: &Cluster) -> Vec<Object> {
    render(config, sandbox, cluster).unwrap_or_else(|errors| panic!("{errors}"))
}

/// The objects of a topology, with everything else as given.
pub(super) fn of(topology: Topology, settings: &str, sandbox_text: &str, api: Option<SandboxApi>) -> Vec<Object> {
    let config = DriverConfig { topology, ..config(settings) };
    rendered(&config, &sandbox(sandbox_text), &cluster(api))
}

/// The workload's pod among the objects.
pub(super) fn agent_spec(objects: &[Object]) -> &serde_json::Value {
    let agent = objects.iter().find(|object| matches!(object.kind(), "Pod" | "Sandbox")).expect("a pod");
    agent.pod_spec().expect("a specification")
}

/// A container of a pod by its name.
pub(super) fn container<'v>(spec: &'v serde_json::Value, name: &str) -> &'v serde_json::Value {
    containers(spec).find(|container| container["name"] == name).unwrap_or_else(|| panic!("no {name} in {spec:#}"))
}

/// All of a pod's containers, those of Init first.
pub(super) fn containers(spec: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    ["initContainers", "containers"].into_iter().flat_map(|list| spec[list].as_array().into_iter().flatten())
}

/// Whether a container mounts a volume of the sandbox's.
pub(super) fn mounts(container: &serde_json::Value, volume: &str, id: &str) -> bool {
    let name = names::volume_of(volume, id);
    container["volumeMounts"].as_array().into_iter().flatten().any(|mount| mount["name"] == name.as_str())
}
