//! Everything that must be refused, each with the same input a step away, which is rendered.

use super::{ID, LOCAL, SANDBOX, cluster, config, sandbox};
use crate::driver::{Cluster, DriverConfig, Problem, SandboxSpec, Topology, render};

/// What must be a sandbox's whole description.
const LEAST: &str = "id: 6f1c2a34\nname: demo\nworkspace: default\ncommand: [sh]\n";

fn problems_of_config(text: &str) -> Vec<Problem> {
    match DriverConfig::from_toml(text) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.problems().to_vec(),
    }
}

fn problems_of_sandbox(text: &str) -> Vec<Problem> {
    match SandboxSpec::from_yaml(text) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.problems().to_vec(),
    }
}

fn problems_together(config: &DriverConfig, sandbox: &SandboxSpec, cluster: &Cluster) -> Vec<Problem> {
    match render(config, sandbox, cluster) {
        Ok(_) => Vec::new(),
        Err(errors) => errors.problems().to_vec(),
    }
}

/// One problem of that path, with something to do about it.
#[track_caller]
fn refused(found: &[Problem], path: &str, input: &str) {
    let paths: Vec<&str> = found.iter().map(|problem| problem.path.as_str()).collect();
    assert!(paths.contains(&path), "expected a problem of {path}, found {paths:?} in:\n{input}");
    for problem in found {
        assert!(!problem.expected.is_empty() && !problem.remedy.is_empty(), "{problem}");
    }
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
        ("proxy_pod.dns_peers", "[proxy_pod]\ndns_peers = []".into(), "[proxy_pod]\ndns_peers = [{}]".into()),
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
        (
            "gateway_id",
            format!("workspace_mode = \"managed\"\ngateway_id = \"{}\"", &long[..34]),
            format!("workspace_mode = \"managed\"\ngateway_id = \"{}\"", &long[..33]),
        ),
        ("gateway_id", "workspace_mode = \"managed\"\ngateway_id = \"\"".into(), "gateway_id = \"\"".into()),
        (
            "managed_ssh_ingress.gateway_namespace",
            "workspace_mode = \"managed\"\n[managed_ssh_ingress]\nenabled = true\ngateway_pod_selector = {a = \"b\"}"
                .into(),
            "workspace_mode = \"managed\"\n[managed_ssh_ingress]\nenabled = true\ngateway_namespace = \"n\"\n\
             gateway_pod_selector = {a = \"b\"}"
                .into(),
        ),
        (
            "managed_ssh_ingress.gateway_pod_selector",
            "workspace_mode = \"managed\"\n[managed_ssh_ingress]\nenabled = true\ngateway_namespace = \"n\"".into(),
            "workspace_mode = \"managed\"\n[managed_ssh_ingress]\nenabled = false".into(),
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
            "image_pull_secrets[1]",
            "image_pull_secrets = [\"a\", \"B\"]".into(),
            "image_pull_secrets = [\" a \", \"\"]".into(),
        ),
        ("the document", "topology = ".into(), String::new()),
        ("unknown", "[openshell.drivers.kubernetes]\nunknown = 1".into(), "[openshell.gateway]\nunknown = 1".into()),
    ];
    for (path, wrong, right) in &cases {
        refused(&problems_of_config(wrong), path, wrong);
        let left = problems_of_config(right);
        assert!(left.is_empty(), "{left:?} in:\n{right}");
    }
}

#[test]
fn a_sandbox_is_refused_for_each_of_its_mistakes_and_taken_without_it() {
    let volume = "  volumes:\n    - {name: data, persistent_volume_claim: {claim_name: c, read_only: false}}\n";
    let mounted = |mount: &str| {
        format!("{LEAST}driver_config:\n{volume}  containers:\n    agent:\n      volume_mounts:\n        - {mount}\n")
    };
    let at = |path: &str| mounted(&format!("{{name: data, mount_path: \"{path}\"}}"));
    let mount = "driver_config.containers.agent.volume_mounts[0]";
    let fine = at("/mnt/data");
    let mut cases: Vec<(String, String, String)> = Vec::new();
    for (field, wrong, right) in [
        ("id", "id: \"\"", "id: \"A_b.c\""),
        ("id", "id: \"$(x)\"", "id: x"),
        ("name", "name: Demo", "name: demo"),
        ("name", "name: -d", "name: d-d"),
        ("workspace", "workspace: \"\"", "workspace: w"),
        ("command", "command: []", "command: [\"a b\"]"),
        ("command", "command: [\"\"]", "command: [a, \"\"]"),
    ] {
        let key = wrong.split(':').next().expect("a key");
        let others: String = LEAST
            .lines()
            .filter(|line| !line.starts_with(&format!("{key}:")))
            .map(|line| format!("{line}\n"))
            .collect();
        cases.push((field.into(), format!("{others}{wrong}\n"), format!("{others}{right}\n")));
    }
    for (field, wrong, right) in [
        ("image", "image: \"a b\"", "image: a/b:c"),
        ("tty", "tty: \"yes\"", "tty: true"),
        ("log_level", "log_level: loud", "log_level: debug"),
        ("environment.OPENSHELL_X", "environment: {OPENSHELL_X: a}", "environment: {X_OPENSHELL: a}"),
        ("environment.1X", "environment: {1X: a}", "environment: {X1: a}"),
        ("environment.X", "environment: {X: 1}", "environment: {X: \"1\"}"),
        ("environment.X", "environment: {X: \"\\u0001\"}", "environment: {X: \"a\\nb\"}"),
        ("labels.openshell.ai/sandbox-role", "labels: {openshell.ai/sandbox-role: agent}", "labels: {a/b: agent}"),
        ("labels.a", "labels: {a: \"b c\"}", "labels: {a: \"\"}"),
        ("labels.a b", "labels: {a b: c}", "labels: {a-b: c}"),
        (
            "platform_config.annotations.openshell.io/sandbox-id",
            "platform_config: {annotations: {openshell.io/sandbox-id: x}}",
            "platform_config: {annotations: {example.com/x: x}, unknown: 1, host_users: \"maybe\"}",
        ),
        ("gpu.count", "gpu: {count: 0}", "gpu: {count: 1}"),
        ("gpu.kind", "gpu: {kind: a}", "gpu: {}"),
        ("resources.cpu_limit", "resources: {cpu_limit: \"two\"}", "resources: {cpu_limit: \"2\"}"),
        ("resources.cpu_limit", "resources: {cpu_limit: 2}", "resources: {memory_limit: 1.5Gi}"),
        ("policy.version", "policy: {version: 2}", "policy: {version: 1}"),
        ("driver_config", "driver_config: [1]", "driver_config: {}"),
        ("driver_config.gpu_device_ids", "driver_config: {gpu_device_ids: [a]}", "driver_config: {pod: {}}"),
        ("driver_config.cdi_devices", "driver_config: {cdi_devices: [a]}", "driver_config: {volumes: []}"),
        (
            "driver_config.containers.agent.command",
            "driver_config: {containers: {agent: {command: [a]}}}",
            "driver_config: {containers: {agent: {}}}",
        ),
        ("driver_config.containers.agent.args", "driver_config: {containers: {agent: {args: [a]}}}", ""),
        ("driver_config.containers.proxy", "driver_config: {containers: {proxy: {}}}", ""),
        (
            "driver_config.pod.tolerations[0].operator",
            "driver_config: {pod: {tolerations: [{effect: NoSchedule}]}}",
            "driver_config: {pod: {tolerations: [{operator: Exists}]}}",
        ),
        (
            "driver_config.pod.tolerations[0].taint",
            "driver_config: {pod: {tolerations: [{key: a, taint: b}]}}",
            "driver_config: {pod: {tolerations: [{key: a, effect: NoExecute, tolerationSeconds: 5}]}}",
        ),
        ("driver_config.pod.node_selector.a", "driver_config: {pod: {node_selector: {a: \"b c\"}}}", ""),
        (
            "driver_config.volumes[0].name",
            "driver_config: {volumes: [{name: workspace, persistent_volume_claim: {claim_name: c}}]}",
            "driver_config: {volumes: [{name: data, persistent_volume_claim: {claim_name: a.b}}]}",
        ),
        (
            "driver_config.volumes[1].name",
            "driver_config: {volumes: [{name: d, persistent_volume_claim: {claim_name: c}}, {name: d, \
             persistent_volume_claim: {claim_name: c}}]}",
            "driver_config: {volumes: [{name: d, persistent_volume_claim: {claim_name: c}}, {name: e, \
             persistent_volume_claim: {claim_name: c}}]}",
        ),
        (
            "driver_config.volumes[0].persistent_volume_claim.claim_name",
            "driver_config: {volumes: [{name: d, persistent_volume_claim: {claim_name: A}}]}",
            "",
        ),
        ("unknown", "unknown: 1", ""),
        ("the document", "id: again", ""),
    ] {
        cases.push((field.into(), format!("{LEAST}{wrong}\n"), format!("{LEAST}{right}\n")));
    }
    for path in [
        "/",
        "/sandbox",
        "/opt/openshell",
        "/opt/openshell/x",
        "/opt",
        "/etc",
        "/etc/openshell/policy.yaml",
        "/etc/openshell-tls",
        "/run",
        "/run/openshell",
        "/run/openshell-sidecar/x",
        "/var/run/openshell",
        "/var/run",
        "/run/netns",
        "/var/run/netns/x",
        "/var/run/secrets/openshell",
        "/run/secrets/openshell",
        "/proc/1",
        "/sys",
        "/dev",
        "data",
        "/a/../b",
        "/a//b",
        "/a:b",
        "/a/",
    ] {
        cases.push((format!("{mount}.mount_path"), at(path), fine.clone()));
    }
    for path in ["/sandbox/sub", "/opt/openshell-other", "/tmp", "/etc/app"] {
        cases.push((format!("{mount}.mount_path"), at("/"), at(path)));
    }
    cases.extend([
        (format!("{mount}.name"), mounted("{name: other, mount_path: /d}"), fine.clone()),
        (format!("{mount}.sub_path"), mounted("{name: data, mount_path: /d, sub_path: /x}"), fine.clone()),
        (
            format!("{mount}.sub_path"),
            mounted("{name: data, mount_path: /d, sub_path: a/../b}"),
            mounted("{name: data, mount_path: /d, sub_path: a/b}"),
        ),
        (
            format!("{mount}.read_only"),
            mounted("{name: data, mount_path: /d, read_only: false}").replace("c, read_only: false", "c"),
            mounted("{name: data, mount_path: /d, read_only: false}"),
        ),
        (
            "driver_config.containers.agent.volume_mounts[1].mount_path".into(),
            mounted("{name: data, mount_path: /d}\n        - {name: data, mount_path: /d}"),
            mounted("{name: data, mount_path: /d}\n        - {name: data, mount_path: /e}"),
        ),
    ]);
    for (path, wrong, right) in &cases {
        refused(&problems_of_sandbox(wrong), path, wrong);
        let left = problems_of_sandbox(right);
        assert!(left.is_empty(), "{left:?} in:\n{right}");
    }
}

#[test]
fn what_cannot_be_together_is_refused_and_either_alone_is_not() {
    let least = sandbox(LEAST);
    let with = |text: &str| config(&format!("{LOCAL}{text}"));
    let class = |name: &str| sandbox(&format!("{LEAST}driver_config: {{pod: {{runtime_class_name: {name}}}}}\n"));
    let gpu = sandbox(&format!("{LEAST}gpu: {{}}\n"));
    let spiffe = "provider_spiffe_workload_api_socket_path = \"/spiffe/agent.sock\"\n";
    let mounted = sandbox(&format!(
        "{LEAST}driver_config:\n  volumes: [{{name: d, persistent_volume_claim: {{claim_name: c}}}}]\n  \
         containers: {{agent: {{volume_mounts: [{{name: d, mount_path: /spiffe/x}}]}}}}\n"
    ));
    let long = sandbox(&LEAST.replace("name: demo", &format!("name: {}", "n".repeat(55))));
    let usual = cluster(None);
    let gpus = |has| Cluster { has_gpu: Some(has), ..cluster(None) };
    let allowed = Cluster { operator_namespaces: vec!["default".into()], ..cluster(None) };
    let credential = "https_proxy = \"http://p:80\"\nproxy_auth_secret_name = \"s\"\nproxy_auth_secret_key = \"k\"\n\
                      proxy_auth_allow_insecure = true\n";
    type Case<'a> =
        (&'a str, (DriverConfig, &'a SandboxSpec, &'a Cluster), (DriverConfig, &'a SandboxSpec, &'a Cluster));
    let (kata, gvisor) = (class("kata-qemu"), class("gvisor"));
    let none = Cluster::default();
    let (no_gpu, some_gpu) = (gpus(false), gpus(true));
    let orphan = Cluster { sandbox_uid: Some("u".into()), ..cluster(None) };
    let relaxed = "process_binary_aware_network_policy = false\n";
    let cases: Vec<Case<'_>> = vec![
        (
            "sidecar.proxy_uid",
            (
                with(&format!("topology = \"sidecar\"\nsandbox_uid = 1337\nsandbox_gid = 5\n[sidecar]\n{relaxed}")),
                &least,
                &usual,
            ),
            // Root is not the sandbox's uid, whatever proxy_uid says.
            (with("topology = \"sidecar\"\nsandbox_uid = 1337\nsandbox_gid = 5"), &least, &usual),
        ),
        (
            "sidecar.proxy_gid",
            (with("topology = \"cni-sidecar\"\nsandbox_gid = 1337"), &least, &usual),
            (with("topology = \"combined\"\nsandbox_gid = 1337"), &least, &usual),
        ),
        (
            "proxy_pod.proxy_uid",
            (with("topology = \"proxy-pod\"\nsandbox_uid = 1337"), &least, &usual),
            (with("topology = \"proxy-pod\"\nsandbox_uid = 1337\n[proxy_pod]\nproxy_uid = 1338"), &least, &usual),
        ),
        ("name", (with(""), &long, &usual), (with("workspace_mode = \"managed\""), &long, &usual)),
        (
            "workspace",
            (with("workspace_mode = \"operator\"\noperator_namespace_label = \"l\""), &least, &usual),
            (with("workspace_mode = \"operator\"\noperator_namespace_label = \"l\""), &least, &allowed),
        ),
        ("gpu", (with(""), &gpu, &no_gpu), (with(""), &gpu, &some_gpu)),
        ("gpu", (with(""), &gpu, &no_gpu), (with(""), &least, &no_gpu)),
        (
            "runtime class",
            (with("topology = \"sidecar\""), &gvisor, &usual),
            (with("topology = \"sidecar\""), &kata, &usual),
        ),
        (
            "runtime class",
            (with("topology = \"cni-sidecar\""), &kata, &usual),
            (with("topology = \"proxy-pod\""), &kata, &usual),
        ),
        ("runtime class", (with(""), &gvisor, &usual), (with("topology = \"proxy-pod\""), &gvisor, &usual)),
        (
            "driver_config.containers.agent.volume_mounts[0].mount_path",
            (with(spiffe), &mounted, &usual),
            (with(""), &mounted, &usual),
        ),
        (
            "proxy_ca",
            (with("topology = \"proxy-pod\""), &least, &none),
            (with("topology = \"sidecar\""), &least, &none),
        ),
        ("sandbox_api", (with(""), &least, &orphan), (with(""), &least, &usual)),
        (
            "proxy_auth_secret_name",
            (with(credential), &least, &usual),
            (with(&format!("topology = \"sidecar\"\n{credential}")), &least, &usual),
        ),
        (
            "proxy_auth_secret_name",
            (with(&format!("topology = \"proxy-pod\"\n{credential}")), &least, &usual),
            (with("topology = \"proxy-pod\"\nhttps_proxy = \"http://p:80\"\n"), &least, &usual),
        ),
        (
            "app_armor_profile",
            (with("topology = \"proxy-pod\"\napp_armor_profile = \"Unconfined\""), &least, &usual),
            (with("app_armor_profile = \"Unconfined\""), &least, &usual),
        ),
    ];
    for (path, (config, sandbox, cluster), right) in &cases {
        let found = problems_together(config, sandbox, cluster);
        refused(&found, path, &format!("{config:?}"));
        let left = problems_together(&right.0, right.1, right.2);
        assert!(left.is_empty(), "{path}: {left:?}");
    }
}

#[test]
fn what_would_not_fit_into_a_variable_is_refused() {
    let most = (128 << 10) - 256 - 3;
    let mut long = sandbox(LEAST);
    long.command = vec!["x".repeat(most)];
    long.environment.insert("A".into(), "$".repeat(most / 6 - 4));
    let objects = super::rendered(&config(LOCAL), &long, &cluster(None));
    let agent = super::container(super::agent_spec(&objects), "agent");
    for variable in agent["env"].as_array().expect("variables") {
        let length = variable["name"].as_str().map_or(0, str::len) + 1 + variable["value"].as_str().map_or(0, str::len);
        assert!(length < 128 << 10, "{} has {length} bytes", variable["name"]);
    }
    long.command = vec!["x".repeat(most + 1)];
    long.environment.insert("A".into(), "$".repeat(most / 6 + 1));
    let found = problems_together(&config(LOCAL), &long, &cluster(None));
    refused(&found, "command", "a long word");
    refused(&found, "environment", "a long value");
}

#[test]
fn all_mistakes_are_told_at_once_and_no_secret_with_them() {
    let config =
        "topology = \"x\"\nunknown = 1\nhttps_proxy = \"http://user:hunter2@p.example:8080\"\nsandbox_uid = 0\n";
    let errors = DriverConfig::from_toml(config).expect_err("four mistakes");
    assert_eq!(errors.problems().len(), 4, "{errors}");
    let sandbox = "id: x\nname: X\nworkspace: w\nenvironment: {A: 1, OPENSHELL_B: hunter2, C: \"hunter2\\u0001\"}\n";
    let others = SandboxSpec::from_yaml(sandbox).expect_err("five mistakes");
    assert_eq!(others.problems().len(), 5, "{others}");
    let told = errors.and(others).to_string();
    assert_eq!(told.lines().count(), 9, "{told}");
    assert!(told.contains("config: topology is \"x\": expected one of combined"), "{told}");
    assert!(!told.contains("hunter2"), "{told}");
    for broken in ["https_proxy = \"http://u:hunter2@x:1\n", "a = 1\na = \"hunter2\""] {
        let errors = DriverConfig::from_toml(broken).expect_err("no TOML");
        assert!(!errors.to_string().contains("hunter2"), "{errors}");
    }
    let errors = SandboxSpec::from_yaml("environment: {A: hunter2, A: [hunter2}").expect_err("no YAML");
    assert!(!errors.to_string().contains("hunter2"), "{errors}");
}

#[test]
fn an_input_made_by_hand_is_checked_as_one_that_was_read() {
    let (config, cluster) = (config(LOCAL), cluster(None));
    let mut wrong = sandbox(SANDBOX);
    wrong.labels.insert("openshell.ai/sandbox-id".into(), "another".into());
    refused(&problems_together(&config, &wrong, &cluster), "labels.openshell.ai/sandbox-id", "labels");
    let mut wrong = DriverConfig { topology: Topology::Sidecar, ..config };
    wrong.sidecar.proxy_gid = 0;
    refused(&problems_together(&wrong, &sandbox(SANDBOX), &cluster), "sidecar.proxy_gid", "sidecar");
    assert_eq!(sandbox(SANDBOX).id, ID);
}
