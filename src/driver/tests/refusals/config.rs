//! Of the configuration.

use super::{problems_of_config, refused};

/// A range of the platform's, with one exception at most.
fn range(cidr: &str, except: &str, ports: &str) -> String {
    let except = if except.is_empty() { String::new() } else { format!("{except:?}") };
    format!("platform_network.egress = [{{cidr = {cidr:?}, except = [{except}], ports = {ports}}}]")
}

#[test]
fn a_configuration_is_refused_for_each_of_its_mistakes_and_taken_without_it() {
    let long = "x".repeat(64);
    let proxied = "https_proxy = \"http://p.example:8080\"\n";
    let secret = "proxy_auth_secret_name = \"s\"\nproxy_auth_secret_key = \"k\"\n";
    let insecure = "proxy_auth_allow_insecure = true\n";
    // Where the mistake is, the mistake, and what is right.
    let cases: Vec<(&str, String, String)> = vec![
        ("supervisor_topology", "supervisor_topology = \"sidecar\"".into(), "topology = \"sidecar\"".into()),
        ("proxy_uid", "proxy_uid = 2000".into(), "[sidecar]\nproxy_uid = 2000".into()),
        ("process_enforcement", "process_enforcement = \"full\"".into(), String::new()),
        ("sidecar.binary_identity", "[sidecar]\nbinary_identity = \"relaxed\"".into(), "[sidecar]\n".into()),
        ("warm_pooling.profiles", "[warm_pooling]\nprofiles = []".into(), "[warm_pooling]\nenabled = false".into()),
        ("warm_pooling.enabled", "[warm_pooling]\nenabled = true".into(), "[warm_pooling]\n".into()),
        ("topology", "topology = \"side-car\"".into(), "topology = \"cni-sidecar\"".into()),
        ("topology", "topology = 3".into(), "topology = \"proxy-pod\"".into()),
        ("supervisor_sideload_method", "supervisor_sideload_method = \"x\"".into(), String::new()),
        ("image_pull_policy", "image_pull_policy = \"always\"".into(), "image_pull_policy = \"Always\"".into()),
        ("supervisor_image", "supervisor_image = \"\"".into(), "supervisor_image = \"a/b:c\"".into()),
        ("namespace", "namespace = \"Open\"".into(), "namespace = \"open\"".into()),
        ("namespace", format!("namespace = \"{long}\""), format!("namespace = \"{}\"", &long[1..])),
        ("service_account_name", "service_account_name = \"a_b\"".into(), "service_account_name = \"a.b\"".into()),
        ("sidecar.proxy_uid", "[sidecar]\nproxy_uid = 999".into(), "[sidecar]\nproxy_uid = 1000".into()),
        ("sidecar.proxy_uid", "[sidecar]\nproxy_uid = 4294967295".into(), "[sidecar]\nproxy_uid = 4294967294".into()),
        ("sidecar.proxy_gid", "[sidecar]\nproxy_gid = 0".into(), "[sidecar]\nproxy_gid = 1001".into()),
        ("proxy_pod.proxy_uid", "[proxy_pod]\nproxy_uid = -1".into(), "[proxy_pod]\nproxy_uid = 1001".into()),
        ("proxy_pod.affinity", "[proxy_pod]\naffinity = \"yes\"".into(), "[proxy_pod]\naffinity = \"required\"".into()),
        ("ssh_socket_path", "ssh_socket_path = \"door\"".into(), "ssh_socket_path = \"@door\"".into()),
        ("ssh_socket_path", "ssh_socket_path = \"/a b\"".into(), "ssh_socket_path = \"\"".into()),
        ("ssh_socket_path", format!("ssh_socket_path = \"@{long}{long}\""), format!("ssh_socket_path = \"@{long}\"")),
        (
            "proxy_pod.landlock_net",
            "[proxy_pod]\nlandlock_net = true".into(),
            "[proxy_pod]\nlandlock_net = \"strict\"".into(),
        ),
        (
            "platform_network.landlock_net",
            "platform_network.landlock_net = \"on\"".into(),
            "platform_network.landlock_net = \"off\"".into(),
        ),
        ("proxy_pod.dns_peers", "[proxy_pod]\ndns_peers = []".into(), "[proxy_pod]\ndns_peers = [{}]".into()),
        (
            "proxy_pod.canaries[1]",
            "[proxy_pod]\ncanaries = [\"a:1\", \"b\"]".into(),
            "[proxy_pod]\ncanaries = [\"a:1\", \"[::1]:2\"]".into(),
        ),
        (
            "proxy_pod.dns_peers[0].cidr",
            "[proxy_pod]\ndns_peers = [{cidr = \"169.254.20.10\", port = 53}]".into(),
            "[proxy_pod]\ndns_peers = [{cidr = \"169.254.20.10/32\", port = 53}]".into(),
        ),
        (
            "platform_network.gateway_peers[0].cidr",
            "platform_network.gateway_peers = [{cidr = \"fd00::/8\", pod_selector = {a = \"b\"}, port = 1}]".into(),
            "platform_network.gateway_peers = [{cidr = \"fd00::/8\", port = 1}, {pod_selector = {a = \"b\"}, port = 1}]"
                .into(),
        ),
        (
            "proxy_pod.cluster_domain",
            "[proxy_pod]\ncluster_domain = \"a b\"".into(),
            "[proxy_pod]\ncluster_domain = \"k8s.corp.example\"".into(),
        ),
        ("proxy_pod.ip_family", "[proxy_pod]\nip_family = \"ipv6\"".into(), "[proxy_pod]\nip_family = \"any\"".into()),
        (
            "proxy_pod.start_timeout_secs",
            "[proxy_pod]\nstart_timeout_secs = 0".into(),
            "[proxy_pod]\nstart_timeout_secs = 86400".into(),
        ),
        (
            "platform_network.start_timeout_secs",
            "platform_network.start_timeout_secs = 86401".into(),
            "platform_network.start_timeout_secs = 1".into(),
        ),
        ("proxy_pod.gateway_peers", "[proxy_pod]\ngateway_peers = []".into(), "[proxy_pod]\n".into()),
        (
            "proxy_pod.dns_peers[0].port",
            "[proxy_pod]\ndns_peers = [{pod_selector = {a = \"b\"}}]".into(),
            "[proxy_pod]\ndns_peers = [{pod_selector = {a = \"b\"}, port = 5353}]".into(),
        ),
        (
            "proxy_pod.dns_peers[0].pod_selector.a",
            "[proxy_pod]\ndns_peers = [{pod_selector = {a = \"b!\"}, port = 53}]".into(),
            "[proxy_pod]\ndns_peers = [{pod_selector = {a = \"b\"}, port = 53}]".into(),
        ),
        ("network_enforcement", "network_enforcement = \"auto\"".into(), "network_enforcement = \"namespace\"".into()),
        ("platform_network.dns_peers", "platform_network.dns_peers = []".into(), String::new()),
        ("openshift.scc", "openshift.scc = \"privileged\"".into(), "openshift.nonroot_scc = false".into()),
        ("platform_network.egress[0].cidr", range("10.0.0.0", "", "[1]"), range("10.0.0.0/8", "", "[1]")),
        ("platform_network.egress[0].cidr", range("10.0.0.0/33", "", "[1]"), range("::/33", "", "[1]")),
        ("platform_network.egress[0].cidr", range("10.0.0.0/+8", "", "[1]"), range("0.0.0.0/0", "", "[1]")),
        (
            "platform_network.egress[0].except[0]",
            range("10.0.0.0/8", "11.0.0.0/16", "[1]"),
            range("10.0.0.0/8", "10.1.0.0/16", "[1]"),
        ),
        (
            "platform_network.egress[0].except[0]",
            range("10.0.0.0/8", "10.0.0.0/8", "[1]"),
            range("10.0.0.0/8", "10.0.0.0/9", "[1]"),
        ),
        (
            "platform_network.egress[0].except[0]",
            range("0.0.0.0/0", "fd00::/8", "[1]"),
            range("::/0", "fd00::/8", "[1]"),
        ),
        ("platform_network.egress[0].ports", range("::/0", "", "[]"), range("::/0", "", "[65535]")),
        ("platform_network.egress[0].ports[0]", range("::/0", "", "[65536]"), range("::/0", "", "[1]")),
        ("sandbox_uid", "sandbox_uid = 0".into(), "sandbox_uid = 1".into()),
        ("sandbox_gid", "sandbox_gid = 4294967295".into(), "sandbox_gid = 4294967294".into()),
        (
            "app_armor_profile",
            "app_armor_profile = \"Localhost/\"".into(),
            "app_armor_profile = \"Localhost/p\"".into(),
        ),
        ("app_armor_profile", "app_armor_profile = \"none\"".into(), "app_armor_profile = \"\"".into()),
        ("host_gateway_ip", "host_gateway_ip = \"host\"".into(), "host_gateway_ip = \"fd00::1\"".into()),
        ("grpc_endpoint", "grpc_endpoint = \"gateway:8080\"".into(), "grpc_endpoint = \"http://gateway:8080\"".into()),
        ("https_proxy", "https_proxy = \"\"".into(), proxied.into()),
        ("https_proxy", "https_proxy = \"https://p.example:8080\"".into(), proxied.into()),
        ("https_proxy", "https_proxy = \"http://p.example\"".into(), proxied.into()),
        ("https_proxy", "https_proxy = \"http://p.example:0\"".into(), proxied.into()),
        ("https_proxy", "https_proxy = \"http://p.example:80/x\"".into(), proxied.into()),
        ("https_proxy", "https_proxy = \"http://p.example:80?x\"".into(), proxied.into()),
        ("https_proxy", "https_proxy = \"http://p.example:80#x\"".into(), proxied.into()),
        ("no_proxy", "no_proxy = \"a\"".into(), format!("{proxied}no_proxy = \"a\"")),
        ("no_proxy", format!("{proxied}no_proxy = \"\""), format!("{proxied}no_proxy = \"*\"")),
        ("no_proxy", format!("{proxied}no_proxy = \"$(X)\""), proxied.into()),
        ("proxy_connect_by_hostname", "proxy_connect_by_hostname = true".into(), proxied.into()),
        ("proxy_auth_secret_key", format!("{proxied}proxy_auth_secret_name = \"s\""), proxied.into()),
        ("proxy_auth_secret_name", format!("{proxied}proxy_auth_secret_key = \"k\""), proxied.into()),
        ("proxy_auth_secret_name", format!("{secret}{insecure}"), format!("{proxied}{secret}{insecure}")),
        ("proxy_auth_allow_insecure", format!("{proxied}{secret}"), format!("{proxied}{secret}{insecure}")),
        (
            "proxy_auth_allow_insecure",
            format!("{proxied}{insecure}"),
            format!("{proxied}proxy_auth_allow_insecure = false"),
        ),
        (
            "proxy_auth_secret_name",
            format!("{proxied}{insecure}proxy_auth_secret_name = \"S\"\nproxy_auth_secret_key = \"k\""),
            format!("{proxied}{secret}{insecure}"),
        ),
        (
            "proxy_auth_secret_key",
            format!("{proxied}{insecure}proxy_auth_secret_name = \"s\"\nproxy_auth_secret_key = \"..\""),
            format!(
                "{proxied}{insecure}proxy_auth_secret_name = \"s\"\nproxy_auth_secret_key = \"{}\"",
                "k".repeat(253)
            ),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/agent.sock\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/spiffe/agent.sock\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"spiffe/agent.sock\"".into(),
            "provider_spiffe_workload_api_socket_path = \"\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/spi ffe/agent.sock\"".into(),
            String::new(),
        ),
        // Where these pods mount something of their own, by either name of /run, there is no room for a second mount.
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/var/run/secrets/openshell/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/var/run/secrets/spiffe/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/etc/openshell/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/etc/spiffe/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/run/openshell-sidecar/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/run/spire/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/var/run/openshell-proxy-ca/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/var/run/spire/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/opt/openshell/bin/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/opt/spire/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/sandbox/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/sandboxes/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/sandbox/below/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/spire/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/etc/openshell-tls/client/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/spire/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/run/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/run/spire/sockets/s\"".into(),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            "provider_spiffe_workload_api_socket_path = \"/tmp/s\"".into(),
            "provider_spiffe_workload_api_socket_path = \"/tmp/spire-agent/public/s\"".into(),
        ),
        (
            "gateway_id",
            format!("workspace_mode = \"managed\"\ngateway_id = \"{}\"", &long[..34]),
            format!("workspace_mode = \"managed\"\ngateway_id = \"{}\"", &long[..33]),
        ),
        ("gateway_id", "workspace_mode = \"managed\"\ngateway_id = \"\"".into(), "gateway_id = \"\"".into()),
        (
            // Nothing that is rendered would let anybody in.
            "managed_ssh_ingress.enabled",
            "workspace_mode = \"managed\"\n[managed_ssh_ingress]\nenabled = true\ngateway_namespace = \"n\"\n\
             gateway_pod_selector = {a = \"b\"}"
                .into(),
            "workspace_mode = \"managed\"\n[managed_ssh_ingress]\nenabled = false\ngateway_namespace = \"n\"\n\
             gateway_pod_selector = {a = \"b\"}"
                .into(),
        ),
        (
            "operator_namespace_label",
            "workspace_mode = \"operator\"".into(),
            "workspace_mode = \"operator\"\noperator_namespace_file = \"/f\"".into(),
        ),
        (
            "operator_namespace_label",
            "workspace_mode = \"operator\"\noperator_namespace_file = \"/f\"\noperator_namespace_label = \"l\"".into(),
            "workspace_mode = \"operator\"\noperator_namespace_label = \"l\"".into(),
        ),
        (
            "workspace_default_storage_size",
            "workspace_default_storage_size = \"2 Gi\"".into(),
            "workspace_default_storage_size = \"\"".into(),
        ),
        (
            "supervisor_resources.requests.cpu",
            "[supervisor_resources]\nrequests = {cpu = \"2\"}\nlimits = {cpu = \"1\"}".into(),
            "[supervisor_resources]\nrequests = {cpu = \"1\"}\nlimits = {cpu = \"1000m\"}".into(),
        ),
        (
            "supervisor_resources.limits.foo",
            "[supervisor_resources]\nlimits = {foo = \"1\"}".into(),
            "[supervisor_resources]\nlimits = {memory = \"64Mi\"}".into(),
        ),
        (
            "workspace_default_storage_size",
            "workspace_default_storage_size = \"0Gi\"".into(),
            "workspace_default_storage_size = \"1\"".into(),
        ),
        (
            "image_pull_secrets[1]",
            "image_pull_secrets = [\"a\", \"B\"]".into(),
            "image_pull_secrets = [\" a \", \"\"]".into(),
        ),
        ("the document", "topology = ".into(), String::new()),
        (
            "unknown",
            "[openshell.drivers.kubernetes]\nunknown = 1".into(),
            "[openshell.gateway]\nunknown = 1\n[openshell.drivers.kubernetes]".into(),
        ),
        // What is not found is not the defaults, which take most.
        (
            "openshell.drivers.kubernets",
            "[openshell.drivers.kubernets]\ntopology = \"proxy-pod\"".into(),
            "[openshell.drivers.kubernetes]\ntopology = \"proxy-pod\"".into(),
        ),
        (
            "openshell.driver",
            "[openshell.driver.kubernetes]\ntopology = \"proxy-pod\"".into(),
            "[openshell.drivers.kubernetes]\ntopology = \"proxy-pod\"".into(),
        ),
        ("openshell.drivers", "[openshell.drivers.podman]".into(), "[openshell.drivers.kubernetes]".into()),
        ("openshell", "[openshell.gateway]".into(), String::new()),
        (
            "topology",
            "topology = \"sidecar\"\n[openshell.drivers.kubernetes]".into(),
            "other = 1\n[openshell.drivers.kubernetes]\ntopology = \"sidecar\"".into(),
        ),
    ];
    for (path, wrong, right) in &cases {
        refused(&problems_of_config(wrong), path, wrong);
        let left = problems_of_config(right);
        assert!(left.is_empty(), "{left:?} in:\n{right}");
    }
}
