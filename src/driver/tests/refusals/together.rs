//! Of inputs that are sound by themselves.

use super::{LEAST, problems_together, refused};
use crate::driver::tests::{ID, LOCAL, PLATFORM, SANDBOX, cluster, config, sandbox};
use crate::driver::{AttestationKey, Cluster, DriverConfig, ProxyCa, SandboxApi, SandboxSpec, Topology};

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
    let (kata, gvisor, other) = (class("kata-qemu"), class("gvisor"), class("other"));
    let none = Cluster::default();
    let (no_gpu, some_gpu) = (gpus(false), gpus(true));
    let short = Cluster { attestation_key: Some(AttestationKey("k".repeat(31))), ..cluster(None) };
    let [spaces, control] = [" ".repeat(64), "k\u{1}".repeat(40)]
        .map(|key| Cluster { attestation_key: Some(AttestationKey(key)), ..cluster(None) });
    let granting = |path: &str| {
        sandbox(&format!(
            "{LEAST}policy: {{version: 1, filesystem_policy: {{read_only: [/usr], read_write: [/tmp, {path}]}}}}\n"
        ))
    };
    let [root, run, token, tls, var] =
        ["/", "/var/run", "/run/secrets/openshell/token", "/run/secrets/openshell-tls", "/var"].map(granting);
    let grant = "policy.filesystem_policy.read_write[1]";
    let tokens = "grpc_endpoint = \"https://g:1\"\nclient_tls_secret_name = \"c\"\nproxy_pod.gateway_peers = [{}]\n";
    let range = |groups: &str| {
        let mut openshift = cluster(None);
        for (name, block) in [("uid-range", "1000790000/10000"), ("supplemental-groups", groups)] {
            openshift.namespace_annotations.insert(format!("openshift.io/sa.scc.{name}"), block.into());
        }
        openshift
    };
    let (one_group, other_group) = (range("1000790000/10000"), range("1000800000/10000"));
    let with_key = |certificate: &str| {
        let ca = ProxyCa { certificate: certificate.into(), key: "(the key)".into() };
        Cluster { proxy_ca: Some(ca), ..cluster(None) }
    };
    let pem = |label: &str| format!("-----BEGIN {label}-----\nMA==\n-----END {label}-----\n");
    let (leaked, chain) = (
        with_key(&[pem("CERTIFICATE"), pem("EC PRIVATE KEY")].concat()),
        with_key(&[pem("CERTIFICATE"), pem("CERTIFICATE")].concat()),
    );
    let stopped = Cluster { stopped: true, ..cluster(None) };
    let suspended = Cluster { stopped: true, ..cluster(Some(SandboxApi::V1Beta1)) };
    let orphan = Cluster { sandbox_uid: Some("u".into()), ..cluster(None) };
    let controls = "platform_network.controls = [\"example.com:443\"]";
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
            "driver_config.pod.runtime_class_name",
            (with("topology = \"sidecar\""), &gvisor, &usual),
            (with("topology = \"sidecar\""), &least, &usual),
        ),
        // What a class is cannot be told by its name: the operator says so.
        (
            "driver_config.pod.runtime_class_name",
            (with("topology = \"sidecar\""), &kata, &usual),
            (with("topology = \"sidecar\"\nruntime_classes = [\"kata-qemu\"]"), &kata, &usual),
        ),
        (
            "driver_config.pod.runtime_class_name",
            (with("topology = \"cni-sidecar\"\nruntime_classes = [\"kata-qemu\"]"), &other, &usual),
            (with("topology = \"cni-sidecar\"\nruntime_classes = [\"other\"]"), &other, &usual),
        ),
        (
            "driver_config.pod.runtime_class_name",
            (with("topology = \"sidecar\""), &other, &usual),
            (with("topology = \"sidecar\"\ndefault_runtime_class_name = \"other\""), &other, &usual),
        ),
        (
            "driver_config.pod.runtime_class_name",
            (with("topology = \"sidecar\"\nruntime_classes = [\"gvisor\"]"), &gvisor, &usual),
            (with("topology = \"combined\""), &other, &usual),
        ),
        (
            "default_runtime_class_name",
            (with("topology = \"sidecar\"\ndefault_runtime_class_name = \"kata\""), &least, &usual),
            (
                with("topology = \"sidecar\"\ndefault_runtime_class_name = \"kata\"\nruntime_classes = [\"kata\"]"),
                &least,
                &usual,
            ),
        ),
        (
            "driver_config.pod.runtime_class_name",
            (with("topology = \"cni-sidecar\""), &kata, &usual),
            (with("topology = \"proxy-pod\""), &kata, &usual),
        ),
        (
            "driver_config.pod.runtime_class_name",
            (with(""), &gvisor, &usual),
            (with("topology = \"proxy-pod\""), &gvisor, &usual),
        ),
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
        (
            "attestation_key",
            (with("topology = \"proxy-pod\""), &least, &short),
            (with("topology = \"proxy-pod\""), &least, &usual),
        ),
        (
            "proxy_ca.certificate",
            (with("topology = \"proxy-pod\""), &least, &leaked),
            (with("topology = \"proxy-pod\""), &least, &chain),
        ),
        ("attestation_key", (with("topology = \"proxy-pod\""), &least, &spaces), (with(""), &least, &usual)),
        ("attestation_key", (with("topology = \"proxy-pod\""), &least, &control), (with(""), &least, &usual)),
        ("sandbox_api", (with(""), &least, &orphan), (with(""), &least, &usual)),
        // Without a Sandbox nothing could say that its pod is not to run.
        ("sandbox_api", (with(""), &least, &stopped), (with(""), &least, &suspended)),
        (
            "sandbox_api",
            (with("topology = \"proxy-pod\""), &least, &stopped),
            (with("topology = \"proxy-pod\""), &least, &suspended),
        ),
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
        // What lets no workload start: the supervisor, its own user, would refuse to.
        (grant, (with("topology = \"proxy-pod\""), &root, &usual), (with("topology = \"sidecar\""), &root, &usual)),
        (grant, (with("topology = \"proxy-pod\""), &run, &usual), (with("topology = \"proxy-pod\""), &var, &usual)),
        (
            grant,
            (with(&format!("topology = \"proxy-pod\"\n{tokens}")), &token, &usual),
            (with("topology = \"proxy-pod\""), &token, &usual),
        ),
        (grant, (with(&format!("{tokens}{PLATFORM}")), &tls, &usual), (with(PLATFORM), &tls, &usual)),
        (grant, (with(&format!("{tokens}{PLATFORM}")), &root, &usual), (with(tokens), &root, &usual)),
        // What restricted-v2 would refuse.
        (
            "sandbox_uid",
            (with(&format!("sandbox_uid = 2000\n{PLATFORM}")), &least, &one_group),
            (with(&format!("sandbox_uid = 2000\n{PLATFORM}")), &least, &usual),
        ),
        (
            "sandbox_gid",
            (with(&format!("sandbox_uid = 1000790001\n{PLATFORM}")), &least, &one_group),
            (with(&format!("sandbox_uid = 1000790001\nsandbox_gid = 1000790000\n{PLATFORM}")), &least, &one_group),
        ),
        (
            "sandbox_gid",
            (with(&format!("sandbox_gid = 1000790000\n{PLATFORM}")), &least, &other_group),
            (with(PLATFORM), &least, &other_group),
        ),
        (
            "sandbox_uid",
            (with(&format!("sandbox_uid = 2000\n{PLATFORM}")), &least, &one_group),
            (with("topology = \"proxy-pod\"\nsandbox_uid = 2000"), &least, &one_group),
        ),
        // The fence would have no rule for it.
        (
            "proxy_pod.gateway_peers",
            (with("topology = \"proxy-pod\"\ngrpc_endpoint = \"https://g:1\""), &least, &usual),
            (with("topology = \"sidecar\"\ngrpc_endpoint = \"https://g:1\""), &least, &usual),
        ),
        (
            "proxy_pod.gateway_peers",
            (with("topology = \"proxy-pod\"\ngrpc_endpoint = \"https://g:1\""), &least, &usual),
            (
                with("topology = \"proxy-pod\"\ngrpc_endpoint = \"https://g:1\"\nproxy_pod.gateway_peers = [{}]"),
                &least,
                &usual,
            ),
        ),
        (
            "network_enforcement",
            (with(&format!("topology = \"sidecar\"\n{PLATFORM}")), &least, &usual),
            (with(PLATFORM), &least, &usual),
        ),
        (
            "provider_spiffe_workload_api_socket_path",
            (with(&format!("{spiffe}{PLATFORM}")), &least, &usual),
            (with(spiffe), &least, &usual),
        ),
        (
            "platform_network.egress",
            (with("network_enforcement = \"platform\""), &least, &usual),
            (with(PLATFORM), &least, &usual),
        ),
        (
            "platform_network.controls",
            (with(&PLATFORM.replace(controls, "")), &least, &usual),
            // The corporate proxy is one.
            (with(&PLATFORM.replace(controls, "https_proxy = \"http://p:80\"")), &least, &usual),
        ),
        ("driver_config.pod.runtime_class_name", (with(PLATFORM), &gvisor, &usual), (with(PLATFORM), &kata, &usual)),
        (
            "app_armor_profile",
            (with(&format!("app_armor_profile = \"Unconfined\"\n{PLATFORM}")), &least, &usual),
            (with(&format!("app_armor_profile = \"RuntimeDefault\"\n{PLATFORM}")), &least, &usual),
        ),
        (
            "openshift.nonroot_scc",
            (with("topology = \"sidecar\"\nopenshift.nonroot_scc = true"), &least, &usual),
            (
                with(&format!("topology = \"cni-sidecar\"\nopenshift.nonroot_scc = true\n[sidecar]\n{relaxed}")),
                &least,
                &usual,
            ),
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
fn resources_that_no_node_could_give_are_refused_whoever_says_them() {
    let agent = "driver_config.containers.agent.resources";
    let said = |requests: &str, limits: &str| {
        format!(
            "driver_config: {{containers: {{agent: {{resources: {{requests: {{{requests}}}, limits: {{{limits}}}}}}}}}}}"
        )
    };
    for (path, wrong, right) in [
        (
            "resources.cpu_request".to_owned(),
            "resources: {cpu_request: \"2\", cpu_limit: \"1\"}".to_owned(),
            "resources: {cpu_request: \"1\", cpu_limit: 1000m}".to_owned(),
        ),
        (format!("{agent}.requests.memory"), said("memory: 2Gi", "memory: 2G"), said("memory: 2G", "memory: 2Gi")),
        // Each is sound by itself.
        (
            format!("{agent}.requests.memory"),
            format!("{}\nplatform_config: {{resources_raw: {{limits: {{memory: 1Gi}}}}}}", said("memory: 2Gi", "")),
            format!("{}\nplatform_config: {{resources_raw: {{limits: {{memory: 2Gi}}}}}}", said("memory: 2Gi", "")),
        ),
        (
            format!("{agent}.requests.nvidia.com/gpu"),
            format!("{}\ngpu: {{count: 2}}", said("nvidia.com/gpu: \"1\"", "")),
            format!("{}\ngpu: {{count: 2}}", said("nvidia.com/gpu: \"2\"", "")),
        ),
        (
            format!("{agent}.limits.nvidia.com/gpu"),
            said("", "nvidia.com/gpu: \"0.5\""),
            said("", "nvidia.com/gpu: \"2.0\""),
        ),
        (format!("{agent}.requests.a.b/c"), said("a.b/c: \"1\"", ""), said("a.b/c: \"1\"", "a.b/c: \"1\"")),
        (
            format!("{agent}.requests.hugepages-2Mi"),
            said("hugepages-2Mi: 4Mi", "hugepages-2Mi: 8Mi, memory: 1Gi"),
            said("hugepages-2Mi: 4Mi", "hugepages-2Mi: 4Mi, memory: 1Gi"),
        ),
        (format!("{agent}.limits.foo"), said("", "foo: \"1\""), said("", "example.com/foo: \"1\"")),
        (
            format!("{agent}.limits.requests.nvidia.com/gpu"),
            said("", "requests.nvidia.com/gpu: \"1\""),
            said("", "ephemeral-storage: 1Gi"),
        ),
    ] {
        let found = |text: &str| match SandboxSpec::from_yaml(&format!("{LEAST}{text}\n")) {
            Ok(sandbox) => problems_together(&config(LOCAL), &sandbox, &cluster(None)),
            Err(errors) => errors.problems().to_vec(),
        };
        refused(&found(&wrong), &path, &wrong);
        let left = found(&right);
        assert!(left.is_empty(), "{left:?} in:\n{right}");
    }
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
