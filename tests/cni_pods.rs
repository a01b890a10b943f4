//! Promises 26.x: pods for real whose fence the node's plugin raises, chained into Podman's network.

use std::net::Ipv6Addr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::kubernetes::{Mode, rights};
use crate::node::{NAMESPACE, Node};
use crate::origins::{self, Origin};
use crate::podman::{Manifest, Pod, Podman, text};
use crate::pods::{AROUND, POLICY, REFUSED, remove_the_fence};
use crate::world::World;

/// The pod of `images/pods`, whose agent may run this machine's programs.
fn sandbox() -> Manifest {
    let mut manifest = Manifest::of("cni-sidecar.yaml");
    manifest.policy(POLICY);
    manifest.workload(&["sleep", "1000"]);
    manifest.programs_of_this_machine(Some("agent"));
    manifest
}

/// The same with a proxy that has no capability either: it judges by destination alone.
fn relaxed(mut manifest: Manifest) -> Manifest {
    manifest.metadata()["annotations"]["openshell.ai/proxy-uid"] = "1337".into();
    let command = |manifest: &mut Manifest, container: &str, remove: &str, add: &str| {
        let command = manifest.container(container)["command"].as_array_mut().expect("a list");
        command.retain(|argument| argument != remove);
        command.push(add.into());
    };
    command(&mut manifest, "openshell-verify-fence", "--proxy-uid=0", "--proxy-uid=1337");
    command(&mut manifest, "openshell-supervisor-network", "", "--binary-identity=relaxed");
    let security = &mut manifest.container("openshell-supervisor-network")["securityContext"];
    security["runAsUser"] = 1337.into();
    security["runAsNonRoot"] = true.into();
    security["capabilities"] = json!({"drop": ["ALL"]});
    manifest
}

/// A container that sleeps as this user and group.
fn sleeping(name: &str, user: u32, group: u32) -> Value {
    json!({"name": name, "image": "localhost/openshell-sandbox", "command": ["sleep", "1000"], "securityContext": {
        "runAsUser": user, "runAsGroup": group, "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
    }})
}

/// A pod that sleeps.
fn sleeper(name: &str, annotations: &Value) -> Manifest {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [
            sleeping("main", 1000, 1000), sleeping("proxy", 0, 1337),
        ]},
    });
    Manifest::parse(&pod.to_string())
}

/// As the API server knows it.
fn known(node: &Node, manifest: &Manifest) {
    let mut pod = manifest.pod();
    pod["metadata"]["namespace"] = NAMESPACE.into();
    pod["metadata"]["uid"] = format!("uid-of-{}", pod["metadata"]["name"]).into();
    node.api.put(&pod);
}

fn has_fence(pod: &Pod<'_>, container: &str) -> bool {
    text(&pod.in_its_network(container, "nft", &["list", "tables"]).stdout).contains("inet openshell_fence")
}

#[test]
fn a_pod_is_fenced_by_the_plugin_alone() {
    let world = World::new();
    let _origin = Origin::start_at(&world, Ipv6Addr::UNSPECIFIED, 80, origins::hello());
    let node = Node::in_machine(&world);
    let podman = Podman::with_plugin(&world, &node);
    for (manifest, has_capabilities) in [(relaxed(sandbox()), false), (sandbox(), true)] {
        let mut manifest = manifest;
        manifest.workload(&[
            "sh",
            "-c",
            "curl -sS http://api.example.com/; curl -sS http://other.example.com/; curl -sS --noproxy '*' \
             http://10.99.0.2/; echo end; sleep 1000",
        ]);
        known(&node, &manifest);
        let pod = podman.start(&manifest);
        // Whatever a container has, it concerns no network; without identity by binary no container has any.
        for container in ["openshell-verify-fence", "agent", "openshell-supervisor-network"] {
            let capabilities = pod.inspect(container, ".EffectiveCaps");
            let expected = match container {
                "openshell-supervisor-network" if has_capabilities => "[CAP_DAC_READ_SEARCH CAP_SYS_PTRACE]",
                _ => "[]",
            };
            assert_eq!(capabilities.trim(), expected, "{container}");
        }
        let tried = (0..150).any(|_| {
            std::thread::sleep(Duration::from_millis(200));
            pod.logs("agent").contains("end\n")
        });
        assert!(tried, "{}", pod.everything());
        let told = pod.logs("agent");
        println!("--- {}\n{told}", node.log());
        assert!(told.contains("hello from GET /"), "{told}\n{}", pod.everything());
        assert!(told.contains("policy_denied") && told.contains("Failed to connect"), "{told}");
        assert_eq!(pod.logs("openshell-verify-fence").matches("proven").count(), 1);
        let around = || text(&pod.exec("agent", None, &["/usr/bin/python3", "-c", AROUND]).stdout);
        assert_eq!(around(), REFUSED);
        // Another namespace, another ADD: the pod that is started again is fenced again.
        pod.stop_and_start();
        assert!(has_fence(&pod, "agent"), "{}", pod.everything());
        assert_eq!(around(), REFUSED);
        // Control.
        remove_the_fence(&pod);
        assert_eq!(around(), REFUSED.replace("ECONNREFUSED", "PASSED").replace("EPERM", "PASSED"));
    }
}

#[test]
fn a_sandbox_that_the_node_cannot_fence_does_not_start_and_others_do() {
    let world = World::new();
    let node = Node::in_machine(&world);
    let podman = Podman::with_plugin(&world, &node);
    let manifest = sandbox();
    known(&node, &manifest);
    let user = "system:serviceaccount:openshell:cni";
    let broken: [(&str, &dyn Fn()); 2] = [
        ("forbidden", &|| node.api.grant(user, &[])),
        ("garbage", &|| {
            node.api.grant(user, &[rights::pods(NAMESPACE)]);
            node.api.set_mode(Mode::Garbage);
        }),
    ];
    for (name, damage) in broken {
        damage();
        let (pod, output) = podman.play(&manifest);
        let told = text(&output.stderr);
        assert!(!output.status.success() && told.contains("the pod cannot be looked up"), "{name}: {told}");
        assert!(!pod.runs("agent") && !pod.runs("openshell-verify-fence"), "{name}");
        drop(pod);
        let web = podman.start(&sleeper("web-0", &json!({})));
        assert!(web.runs("main") && !has_fence(&web, "main"), "{name}");
    }
    // Control.
    node.api.set_mode(Mode::Healthy);
    let pod = podman.start(&manifest);
    assert!(has_fence(&pod, "agent"));
}

#[test]
fn on_a_node_without_the_plugin_the_pod_never_starts_its_agent() {
    let world = World::new();
    let podman = Podman::new(&world);
    let mut manifest = sandbox();
    let verify = manifest.container("openshell-verify-fence")["command"].as_array_mut().expect("a list");
    verify.push("--timeout=1".into());
    let (pod, output) = podman.play(&manifest);
    assert!(!output.status.success());
    assert!(pod.logs("openshell-verify-fence").contains("not proven"), "{}", pod.everything());
    assert!(!pod.runs("agent") && !pod.runs("openshell-supervisor-network"));
    drop(pod);
    // Control, on a node that has it.
    let world = World::new();
    let node = Node::in_machine(&world);
    let podman = Podman::with_plugin(&world, &node);
    known(&node, &manifest);
    assert!(podman.start(&manifest).runs("agent"));
}

#[test]
fn twenty_pods_come_and_go_at_once() {
    const EACH: usize = 10;
    let world = World::new();
    let node = Node::in_machine(&world);
    let podman = Podman::with_plugin(&world, &node);
    let annotations = json!(crate::node::SANDBOX.into_iter().collect::<std::collections::BTreeMap<_, _>>());
    let sandboxes = (0..EACH).map(|number| sleeper(&format!("sandbox-{number}"), &annotations));
    let others = (0..EACH).map(|number| sleeper(&format!("web-{number}"), &annotations));
    let manifests: Vec<Manifest> = sandboxes.chain(others).collect();
    manifests.iter().take(EACH).for_each(|manifest| known(&node, manifest));
    std::thread::scope(|scope| {
        for (index, manifest) in manifests.iter().enumerate() {
            let podman = &podman;
            scope.spawn(move || {
                let pod = podman.start(manifest);
                assert_eq!(has_fence(&pod, "main"), index < EACH, "{index}");
                std::thread::sleep(Duration::from_millis(100));
            });
        }
    });
    // Other namespaces' pods are not looked up, and nothing is left of either.
    assert_eq!(node.api.calls().len(), EACH);
    // (Podman 4.3 sometimes gives up on one of many that are removed at once.)
    podman.expect(["pod", "rm", "--all", "--force", "--time", "0"]);
    assert_eq!(podman.expect(["pod", "ps", "--quiet"]), "");
    let addresses = std::fs::read_dir(podman.path("addresses/pods")).expect("addresses");
    let taken = addresses.flatten().filter(|entry| entry.file_name().to_string_lossy().contains('.')).count();
    assert!(taken <= 2, "{taken} addresses are not given back");
}
