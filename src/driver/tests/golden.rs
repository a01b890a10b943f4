//! Rendered objects as documents: tests/rendered holds what every topology and option looks like. To write them anew, set
//! OPENSHELL_WRITE_RENDERED and read the difference.

use std::path::Path;

use super::{LOCAL, PLATFORM, SANDBOX, of, rendered};
use crate::driver::{Object, SandboxApi, Topology, comparison, names, privileges, to_yaml};

fn compare(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rendered").join(name);
    if std::env::var_os("OPENSHELL_WRITE_RENDERED").is_some() {
        std::fs::write(&path, text).expect("the file can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(written, text, "{name} is not what is rendered now: see this module's documentation");
}

/// Settings that a golden file shows, and those without which they are refused.
const GATEWAY: &str = "grpc_endpoint = \"https://gateway.openshell.svc:8080\"\n\
                       proxy_pod.gateway_peers = [{namespace_selector = {\"kubernetes.io/metadata.name\" = \"openshell\"}, \
                       pod_selector = {app = \"gateway\"}, port = 8080}]\n";
const TLS: &str = "client_tls_secret_name = \"openshell-client-tls\"\n";
const SPIFFE: &str = "provider_spiffe_workload_api_socket_path = \"/spiffe-workload-api/spire-agent.sock\"\n";
const PARENT: &str = "https_proxy = \"http://proxy.corp.example:8080\"\nno_proxy = \"internal.example,10.0.0.0/8\"\n";
const SECRET: &str = "proxy_auth_secret_name = \"corp-proxy\"\nproxy_auth_secret_key = \"credential\"\n\
                      proxy_auth_allow_insecure = true\n";

const IMAGES: &str = "supervisor_image = \"registry.example.com/openshell-supervisor:1\"\n\
                      default_image = \"registry.example.com/sandbox:1\"\n";

#[test]
fn a_pod_of_every_topology_is_what_its_document_says() {
    for (name, topology) in Topology::ALL {
        let objects = of(topology, LOCAL, SANDBOX, None);
        compare(&format!("{name}.yaml"), &to_yaml(&objects));
        compare(&format!("{name}.privileges.txt"), &privileges(&objects).to_string());
    }
    compare("platform.yaml", &to_yaml(&platform()));
}

fn platform() -> Vec<Object> {
    of(Topology::Combined, &format!("{LOCAL}{PLATFORM}"), SANDBOX, None)
}

#[test]
fn what_the_topologies_take_is_what_its_table_says() {
    let mut sets: Vec<(String, Vec<Object>)> =
        Topology::ALL.map(|(name, topology)| (name.to_owned(), of(topology, LOCAL, SANDBOX, None))).into();
    sets.push(("platform-enforced".into(), platform()));
    compare("comparison.txt", &comparison(&sets).to_string());
}

#[test]
fn a_sandbox_resource_of_every_topology_with_every_option_is_what_its_document_says() {
    for (name, topology) in Topology::ALL {
        let secret = if matches!(topology, Topology::Sidecar | Topology::CniSidecar) { SECRET } else { "" };
        let options: [(&str, String, &str); 7] = [
            ("tls", format!("{GATEWAY}{TLS}"), ""),
            ("spiffe", format!("{GATEWAY}{SPIFFE}"), ""),
            ("corporate-proxy", format!("{PARENT}{secret}"), ""),
            ("gpu", String::new(), "gpu: {count: 2}\n"),
            ("user-namespaces", "enable_user_namespaces = true\n".into(), ""),
            ("workspace", "workspace_storage_class = \"fast\"\n".into(), ""),
            ("sideload", "supervisor_sideload_method = \"init-container\"\n".into(), "persistent_workspace: false\n"),
        ];
        for (option, settings, more) in options {
            let objects =
                of(topology, &format!("{IMAGES}{settings}"), &format!("{SANDBOX}{more}"), Some(SandboxApi::V1Beta1));
            compare(&format!("{name}.{option}.yaml"), &to_yaml(&objects));
        }
    }
}

#[test]
fn what_clusters_differ_in_is_what_its_document_says() {
    let near = "proxy_pod.affinity = \"required\"\nproxy_pod.ip_family = \"any\"\ndefault_runtime_class_name = \"kata-qemu\"\n";
    let pool = "platform_config: {node_selector: {pool: agents}}\n";
    compare(
        "proxy-pod.affinity.yaml",
        &to_yaml(&of(Topology::ProxyPod, &format!("{IMAGES}{near}"), &format!("{SANDBOX}{pool}"), None)),
    );
    let older = of(Topology::Sidecar, IMAGES, SANDBOX, Some(SandboxApi::V1Alpha1));
    compare("sidecar.v1alpha1.yaml", &to_yaml(&older));
    let mut cluster = super::cluster(None);
    cluster.namespace_annotations.insert(names::annotation::UID_RANGE.into(), "1000790000/10000".into());
    let granted = super::config(&format!("{IMAGES}topology = \"proxy-pod\"\nopenshift.nonroot_scc = true\n"));
    compare("proxy-pod.openshift.yaml", &to_yaml(&rendered(&granted, &super::sandbox(SANDBOX), &cluster)));
}

#[test]
fn what_is_rendered_once_is_rendered_again_to_the_byte() {
    for (_, topology) in Topology::ALL {
        let config = crate::driver::DriverConfig { topology, ..super::config(LOCAL) };
        let (sandbox, cluster) = (super::sandbox(SANDBOX), super::cluster(Some(SandboxApi::V1Alpha1)));
        let once = to_yaml(&rendered(&config, &sandbox, &cluster));
        assert_eq!(once, to_yaml(&rendered(&config, &sandbox, &cluster)));
    }
}
