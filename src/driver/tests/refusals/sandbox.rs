//! Of a sandbox.

use super::{LEAST, problems_of_sandbox, problems_together, refused};
use crate::driver::tests::{LOCAL, agent_spec, cluster, config, container, rendered, sandbox};

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
        (
            "platform_config.annotations.container.apparmor.security.beta.kubernetes.io/agent",
            "platform_config: {annotations: {container.apparmor.security.beta.kubernetes.io/agent: unconfined}}",
            "platform_config: {annotations: {beta.kubernetes.io/agent: unconfined}}",
        ),
        (
            "platform_config.annotations.k8s.v1.cni.cncf.io/networks",
            "platform_config: {annotations: {k8s.v1.cni.cncf.io/networks: other}}",
            "platform_config: {annotations: {example.com/networks: other}}",
        ),
        (
            "platform_config.annotations.networking.gke.io/interfaces",
            "platform_config: {annotations: {networking.gke.io/interfaces: x}}",
            "platform_config: {annotations: {example.com/x: x}}",
        ),
        (
            "platform_config.annotations.openservicemesh.io/sidecar-injection",
            "platform_config: {annotations: {openservicemesh.io/sidecar-injection: x}}",
            "platform_config: {annotations: {example.com/x: x}}",
        ),
        (
            "platform_config.annotations.appmesh.k8s.aws/mesh",
            "platform_config: {annotations: {appmesh.k8s.aws/mesh: x}}",
            "platform_config: {annotations: {example.com/x: x}}",
        ),
        (
            "platform_config.annotations.danm.k8s.io/interfaces",
            "platform_config: {annotations: {danm.k8s.io/interfaces: x}}",
            "platform_config: {annotations: {example.com/x: x}}",
        ),
        (
            "platform_config.annotations.azure.workload.identity/inject-proxy-sidecar",
            "platform_config: {annotations: {azure.workload.identity/inject-proxy-sidecar: x}}",
            "platform_config: {annotations: {example.com/x: x}}",
        ),
        (
            "platform_config.annotations.vault.hashicorp.com/agent-inject",
            "platform_config: {annotations: {vault.hashicorp.com/agent-inject: x}}",
            "platform_config: {annotations: {example.com/x: x}}",
        ),
        (
            "labels.azure.workload.identity/use",
            "labels: {azure.workload.identity/use: \"true\"}",
            "labels: {example.com/use: \"true\"}",
        ),
        (
            "platform_config.annotations.linkerd.io/inject",
            "platform_config: {annotations: {linkerd.io/inject: enabled}}",
            "",
        ),
        (
            "driver_config.volumes[0].name",
            "driver_config: {volumes: [{name: tmp-6f1c2a34-74b969cb, persistent_volume_claim: {claim_name: c}}]}",
            "driver_config: {volumes: [{name: tmp-6f1c2a34, persistent_volume_claim: {claim_name: c}}]}",
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
        "/var",
        "/var/run/openshell-attestation",
        "/var/run/openshell-attestation/x",
        "/run/openshell-attestation",
        "/run/secrets",
        "/var/run/secrets",
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
    for path in ["/sandbox/sub", "/opt/openshell-other", "/tmp", "/etc/app", "/var/lib/app", "/var/running", "/run/app"]
    {
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
fn what_would_not_fit_into_a_variable_is_refused() {
    let most = (128 << 10) - 256 - 3;
    let mut long = sandbox(LEAST);
    long.command = vec!["x".repeat(most)];
    long.environment.insert("A".into(), "$".repeat(most / 6 - 4));
    let objects = rendered(&config(LOCAL), &long, &cluster(None));
    let agent = container(agent_spec(&objects), "agent");
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
