//! Promises 25.x: the plugin, called as container runtimes call it, with pods' namespaces that are real.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::fence::{allow_ping, answering_origin, attempts, init, nft, take_away};
use crate::kubernetes::{Mode, objects, rights};
use crate::node::{NAMESPACE, Node, PREVIOUS, SANDBOX};
use crate::world::World;

/// What the kernel holds in the pod's namespace, without the counters.
fn ruleset(world: &World) -> String {
    nft(world, &["-s", "list", "ruleset"])
}

fn assert_unfenced(world: &World) {
    assert_eq!(ruleset(world), "", "there is a ruleset");
}

#[test]
fn a_sandbox_is_fenced_as_network_init_fences_it() {
    let (world, node) = (World::new(), Node::new());
    allow_ping(&world);
    answering_origin(&world);
    let pod = world.machine_namespace();
    // The other plugins' result passes byte for byte.
    node.add(&pod).expect(PREVIOUS);
    for (uid, gid) in [(0, 0), (2000, 2000)] {
        for (name, outcome, _) in attempts(&world, uid, gid) {
            assert_ne!(outcome, "SUCCEEDED", "{uid}:{gid} {name}");
        }
    }
    assert!(attempts(&world, 0, 1337).iter().all(|(_, outcome, _)| outcome == "SUCCEEDED"));
    let by_plugin = ruleset(&world);
    assert!(node.log().contains("command=ADD pod=agents/a-0 status=fenced family=inet proxy=0:1337"), "{}", node.log());
    // The same fence as the init container's, and control: without it everybody gets out.
    take_away(&world);
    assert!(attempts(&world, 0, 0).iter().all(|(_, outcome, _)| outcome == "SUCCEEDED"));
    init(&world, &["--proxy-uid", "0"]);
    assert_eq!(ruleset(&world), by_plugin);
}

#[test]
fn other_pods_are_let_be_and_cost_no_question() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    node.api.put(&objects::pod("web", "w-0", "u-2", &SANDBOX));
    node.call("ADD", &pod, "web/w-0").answer().expect(PREVIOUS);
    // What another runtime says, or none at all.
    node.call("ADD", &pod, "web/w-0").with("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=a-0").answer().expect(PREVIOUS);
    node.call("ADD", &pod, "web/w-0").without("CNI_ARGS").answer().expect(PREVIOUS);
    node.call("CHECK", &pod, "web/w-0").answer().expect("");
    assert!(node.api.calls().is_empty(), "{:?}", node.api.calls());
    assert_unfenced(&world);
    // In the sandboxes' namespace the pod's annotations decide.
    for (annotations, calls) in [(&[][..], 1), (&[("openshell.ai/cni", "disabled")], 2)] {
        node.api.put(&objects::pod(NAMESPACE, "plain", "u-3", annotations));
        node.call("ADD", &pod, "agents/plain").answer().expect(PREVIOUS);
        assert_eq!(node.api.calls().len(), calls);
        assert_unfenced(&world);
    }
    // Control, and a plugin that is alone in its chain.
    let alone = json!({"cniVersion": "1.0.0", "name": "n", "type": "openshell-cni", "openshell": node.settings()});
    let answer = node.call("ADD", &pod, "agents/a-0").input(alone.to_string()).answer();
    let result: Value = serde_json::from_str(&answer.output).expect("JSON");
    assert_eq!((answer.code, &result["cniVersion"], &result["ips"]), (0, &json!("1.0.0"), &json!([])));
    assert!(ruleset(&world).contains("openshell_fence"));
}

#[test]
fn every_command_of_every_version_is_answered_as_the_specification_says() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    const ALL: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];
    let call = |command: &str, version: &str| {
        node.call(command, &pod, "agents/a-0;K8S_POD_UID=u-1").input(node.config(version)).answer()
    };
    for (index, version) in ALL.into_iter().enumerate() {
        let listed: Value = serde_json::from_str(&call("VERSION", version).output).expect("JSON");
        assert_eq!(listed, json!({"cniVersion": version, "supportedVersions": ALL}));
        call("ADD", version).expect(PREVIOUS);
        for (command, first) in [("CHECK", 2), ("STATUS", 4), ("GC", 4)] {
            let answer = call(command, version);
            if index < first {
                assert_eq!(answer.error().0, 1, "{command} {version}");
            } else {
                answer.expect("");
            }
        }
        call("DEL", version).expect("");
    }
    for version in ["0.2.0", "2.0.0", ""] {
        let (code, details) = call("ADD", version).error();
        assert!(code == 1 && details.contains("1.1.0"), "{version}: {details}");
    }
    let listed: Value = serde_json::from_str(&call("VERSION", "9.9.9").output).expect("JSON");
    assert_eq!(listed["supportedVersions"], json!(ALL));
}

#[test]
fn add_may_come_again_check_tells_and_del_always_succeeds() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    let call = |command: &str| node.call(command, &pod, "agents/a-0;K8S_POD_UID=u-1");
    assert_eq!(call("CHECK").answer().error().0, 103);
    for _ in 0..2 {
        node.add(&pod).expect(PREVIOUS);
        call("CHECK").answer().expect("");
    }
    let stands = ruleset(&world);
    for damage in [
        &["delete", "table", "inet", "openshell_fence"][..],
        &["insert", "rule", "inet", "openshell_fence", "output", "accept"],
        &["flush", "chain", "inet", "openshell_fence", "output"],
    ] {
        nft(&world, damage);
        let (code, details) = call("CHECK").answer().error();
        assert!(code == 103 && details.contains("openshell_fence"), "{damage:?}: {details}");
        // CHECK changes nothing; ADD repairs.
        assert_eq!(call("CHECK").answer().error().0, 103);
        node.add(&pod).expect(PREVIOUS);
        assert_eq!(ruleset(&world), stands, "{damage:?}");
    }
    // Taking the fence down is the namespace's end, not DEL's: a pod that lives on stays fenced.
    call("DEL").answer().expect("");
    assert_eq!(ruleset(&world), stands);
    call("DEL").answer().expect("");
    call("DEL").without("CNI_NETNS").answer().expect("");
    call("DEL").with("CNI_NETNS", "/var/run/netns/gone").answer().expect("");
    call("DEL").input("").answer().expect("");
    call("DEL").input("garbage").answer().expect("");
    call("DEL").without("CNI_CONTAINERID").with("CNI_IFNAME", "no interface's name").answer().expect("");
    node.api.set_mode(Mode::Down);
    fs::remove_file(node.path("kubeconfig")).expect("remove");
    call("DEL").answer().expect("");
}

/// What it is called, the error that it comes to, and how it is made.
type Trouble = (&'static str, u64, fn(&Node));

#[test]
fn a_sandbox_that_cannot_be_looked_up_gets_no_network() {
    let world = World::new();
    let pod = world.machine_namespace();
    // Each on a node of its own, at the same time: some take as long as the plugin is patient.
    let broken: [Trouble; 13] = [
        ("down", 11, |node| node.api.set_mode(Mode::Down)),
        ("silent", 11, |node| node.api.set_mode(Mode::Silent)),
        ("stalled", 11, |node| node.api.set_mode(Mode::Stalled)),
        ("closing", 11, |node| node.api.set_mode(Mode::Closing)),
        ("half", 11, |node| node.api.set_mode(Mode::Half)),
        ("failing", 11, |node| node.api.set_mode(Mode::Failing(500))),
        ("too many", 11, |node| node.api.set_mode(Mode::TooMany(Some(1)))),
        ("garbage", 101, |node| node.api.set_mode(Mode::Garbage)),
        ("expired", 101, |node| node.api.expire(&node.token)),
        ("forbidden", 101, |node| node.api.grant("system:serviceaccount:openshell:cni", &[])),
        ("no credentials", 100, |node| fs::remove_file(node.path("kubeconfig")).expect("remove")),
        ("empty credentials", 100, |node| node.credentials("")),
        ("another's authority", 101, |node| {
            let other = crate::kubernetes::ApiServer::start();
            let text = node.api.kubeconfig(&node.token);
            let authority = |text: &str| {
                text.lines().find(|line| line.contains("certificate-authority-data")).expect("a CA").to_owned()
            };
            node.credentials(&text.replace(&authority(&text), &authority(&other.kubeconfig(""))));
        }),
    ];
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (name, expected, damage) in broken {
            let pod = &pod;
            scope.spawn(move || {
                let node = Node::new();
                let intact = node.api.kubeconfig(&node.token);
                damage(&node);
                // Everybody else is served all the same.
                node.call("ADD", pod, "web/w-0").answer().expect(PREVIOUS);
                let (code, details) = node.add(pod).error();
                println!("{name}: {code} {details}");
                assert_eq!(code, expected, "{name}: {details}");
                assert!(node.log().contains("status=error"), "{name}: {}", node.log());
                assert!(!details.contains(&node.token), "{name}: a secret is told");
                // Control: what was asked for was right, and is found once the server is.
                node.api.set_mode(Mode::Healthy);
                let token = node.api.token("again", &[crate::kubernetes::rights::pods(NAMESPACE)]);
                node.credentials(&intact.replace(&node.token, &token));
                node.call("ADD", pod, "agents/absent").with("CNI_NETNS", "/dev/null").answer().error();
                let found = node.call("ADD", pod, "agents/a-0;K8S_POD_UID=u-1").with("CNI_NETNS", "/dev/null").answer();
                assert_eq!(found.error().0, 4, "{name}: it was not found");
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    assert_unfenced(&world);
    let node = Node::new();
    node.add(&pod).expect(PREVIOUS);
    assert!(ruleset(&world).contains("openshell_fence"));
}

#[test]
fn a_server_in_trouble_for_a_moment_is_asked_again() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    for (mode, calls) in [(Mode::Closing, 2), (Mode::Failing(503), 2), (Mode::Half, 1), (Mode::TooMany(Some(1)), 1)] {
        node.api.set_mode_for(mode, calls);
        node.add(&pod).expect(PREVIOUS);
    }
    assert!(ruleset(&world).contains("openshell_fence"));
}

#[test]
fn a_pod_that_the_server_does_not_know_yet_is_waited_for() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/a-0");
    // Not there at first, then one of the same name that is on its way out.
    for before in [None, Some("u-0")] {
        node.api.delete(&path);
        if let Some(uid) = before {
            node.api.put(&objects::pod(NAMESPACE, "a-0", uid, &[]));
        }
        std::thread::scope(|scope| {
            let add = scope.spawn(|| node.add(&pod));
            std::thread::sleep(Duration::from_millis(700));
            node.api.put(&objects::pod(NAMESPACE, "a-0", "u-1", &SANDBOX));
            add.join().expect("ADD").expect(PREVIOUS);
        });
        assert!(ruleset(&world).contains("openshell_fence"), "{before:?}");
        take_away(&world);
    }
    // One that never comes, and one that is not ours, are told apart.
    let (code, details) = node.call("ADD", &pod, "agents/a-0;K8S_POD_UID=u-9").answer().error();
    assert!(code == 101 && details.contains("u-1") && details.contains("u-9"), "{details}");
    node.api.delete(&path);
    let (code, details) = node.add(&pod).error();
    assert!(code == 101 && details.contains("404"), "{details}");
    assert_unfenced(&world);
}

#[test]
fn a_pod_that_asks_in_words_that_mean_nothing_or_could_undo_its_fence_is_refused() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    let refused = |object: &Value, named: &str| {
        node.api.put(object);
        let (code, details) = node.add(&pod).error();
        assert!(code == 102 && details.contains(named), "{named}: {details}");
        assert_unfenced(&world);
    };
    for (name, value) in [
        ("openshell.ai/cni", "yes"),
        ("openshell.ai/network-enforcement-mode", "sidecars"),
        ("openshell.ai/cni-contract-version", "2"),
        ("openshell.ai/proxy-uid", "33"),
        ("openshell.ai/proxy-gid", "0"),
        ("openshell.ai/proxy-gid", ""),
    ] {
        let mut object = objects::pod(NAMESPACE, "a-0", "u-1", &SANDBOX);
        object["metadata"]["annotations"][name] = value.into();
        refused(&object, name);
    }
    let strong = |change: Value| {
        let mut security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        security.as_object_mut().expect("a map").extend(change.as_object().expect("a map").clone());
        security
    };
    for security in [
        strong(json!({"privileged": true})),
        strong(json!({"allowPrivilegeEscalation": true})),
        strong(json!({"runAsGroup": 1337})),
        strong(json!({"runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]}})),
        strong(json!({"capabilities": {}})),
    ] {
        let mut object = objects::pod(NAMESPACE, "a-0", "u-1", &SANDBOX);
        object["spec"]["initContainers"] = json!([{"name": "strong", "securityContext": security}]);
        refused(&object, "strong");
    }
    // Control.
    node.api.put(&objects::pod(NAMESPACE, "a-0", "u-1", &SANDBOX));
    node.add(&pod).expect(PREVIOUS);
    assert!(ruleset(&world).contains("openshell_fence"));
}

#[test]
fn only_a_pods_namespace_is_entered() {
    let (world, node) = (World::new(), Node::new());
    let file = node.path("file");
    fs::write(&file, "").expect("write");
    for (path, code) in [
        (Path::new("/proc/self/ns/net"), 4),
        (Path::new("/proc/self/ns/mnt"), 5),
        (&file, 4),
        (Path::new("/var/run/netns/no-such-namespace"), 3),
    ] {
        let (found, details) = node.add(path).error();
        assert!(found == code && details.contains(path.to_str().expect("UTF-8")), "{found} {details}");
    }
    let own = Command::new("nft").args(["list", "tables"]).output().expect("nft, which .ci/run installs");
    assert!(!String::from_utf8_lossy(&own.stdout).contains("openshell_fence"));
    // Control.
    node.add(&world.machine_namespace()).expect(PREVIOUS);
}

#[test]
fn what_is_no_call_gets_the_right_error() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    let call = || node.call("ADD", &pod, "agents/a-0");
    for name in ["CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
        let (code, details) = call().without(name).answer().error();
        assert!(code == 4 && details.contains(name), "{details}");
    }
    for (name, value) in [("CNI_COMMAND", "MAKE"), ("CNI_IFNAME", "a/b"), ("CNI_ARGS", "x"), ("CNI_CONTAINERID", "..")]
    {
        let (code, details) = call().with(name, value).answer().error();
        assert!(code == 4 && details.contains(name), "{details}");
    }
    for name in ["agents/A-0", "agents/a-0%2f..%2fb", "agents/../../nodes", "agents/"] {
        let (code, _) = node.call("ADD", &pod, name).answer().error();
        assert_eq!(code, 4, "{name}");
    }
    for (input, expected) in [
        ("", 6),
        ("{", 6),
        ("[]", 6),
        ("\u{feff}{}", 6),
        (r#"{"cniVersion":"1.0.0","openshell":[]}"#, 6),
        (r#"{"cniVersion":"1.0.0"}"#, 7),
        ("{}", 1),
    ] {
        assert_eq!(call().input(input).answer().error().0, expected, "{input}");
    }
    assert_eq!(call().input(vec![b' '; 2 << 20]).answer().error().0, 7);
    assert_eq!(call().input([0xff, 0xfe]).answer().error().0, 6);
    assert_unfenced(&world);
    call().answer().expect(PREVIOUS);
}

#[test]
fn nothing_on_the_node_makes_it_wait() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    let pipe = |name: &str| {
        let path = node.path(name);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).expect("mkfifo");
        path
    };
    let mut settings = node.settings();
    settings["logFile"] = json!(pipe("pipe.log"));
    settings["calledFile"] = json!(pipe("pipe.called"));
    let config =
        json!({"cniVersion": "1.0.0", "name": "n", "type": "openshell-cni", "openshell": settings}).to_string();
    let begun = Instant::now();
    assert_eq!(node.call("ADD", &pod, "web/w-0").input(&config).answer().code, 0);
    assert_eq!(node.call("ADD", &pod, "agents/a-0;K8S_POD_UID=u-1").input(&config).answer().code, 0);
    let (code, details) = node.add(&pipe("pipe.netns")).error();
    assert!(code == 4, "{details}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(ruleset(&world).contains("openshell_fence"));
}

#[test]
fn an_answer_about_something_else_is_none() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/a-0");
    let intact = node.api.object(&path).expect("the pod");
    for (field, value) in
        [("/kind", json!("Status")), ("/metadata/name", json!("b-0")), ("/metadata/namespace", json!("web"))]
    {
        node.api.change(&path, |object| *object.pointer_mut(field).expect("a field") = value.clone());
        // Without a uid nothing else would tell.
        let (code, details) = node.call("ADD", &pod, "agents/a-0").answer().error();
        assert!(code == 101 && details.contains("answers with"), "{field}: {details}");
        node.api.change(&path, |object| object.clone_from(&intact));
    }
    assert_unfenced(&world);
    node.call("ADD", &pod, "agents/a-0").answer().expect(PREVIOUS);
    assert!(ruleset(&world).contains("openshell_fence"));
}

#[test]
fn fifty_pods_are_fenced_at_once() {
    const PODS: usize = 50;
    let node = Node::new();
    let names: Vec<String> = (0..PODS).map(|number| format!("osn{}-{number}", std::process::id())).collect();
    let ip = |action: &str, name: &str| {
        let status = Command::new("ip").args(["netns", action, name]).status().expect("ip (package iproute2)");
        assert!(status.success(), "ip netns {action} {name}");
    };
    names.iter().for_each(|name| ip("add", name));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for name in &names {
            let node = &node;
            scope.spawn(move || node.add(&Path::new("/var/run/netns").join(name)).expect(PREVIOUS));
        }
    });
    let took = begun.elapsed();
    println!("{PODS} sandboxes fenced in {took:?}");
    let mut unfenced = Vec::new();
    for name in &names {
        let output = Command::new("ip").args(["netns", "exec", name, "nft", "list", "tables"]).output().expect("nft");
        if !String::from_utf8_lossy(&output.stdout).contains("openshell_fence") {
            unfenced.push(name);
        }
    }
    names.iter().for_each(|name| ip("delete", name));
    assert!(unfenced.is_empty(), "{unfenced:?}");
    // The mark is one second in the bench; here the whole suite may be running.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn status_says_whether_any_pod_could_be_served() {
    let (world, node) = (World::new(), Node::new());
    let pod = world.machine_namespace();
    node.api.grant("system:serviceaccount:openshell:cni", &[rights::pods("default")]);
    let status = |namespaces: &[&str]| {
        let mut config: Value = serde_json::from_str(&node.config("1.1.0")).expect("JSON");
        config["openshell"]["sandboxNamespaces"] = json!(namespaces);
        node.call("STATUS", &pod, "agents/a-0").input(config.to_string()).answer()
    };
    // Any pod may be a sandbox.
    status(&[]).expect("");
    for (mode, told) in [
        (Mode::Down, "cannot be reached"),
        (Mode::Silent, "within 3.0 s"),
        (Mode::Failing(503), "503"),
        (Mode::Garbage, "/api/v1/namespaces/default/pods/"),
    ] {
        node.api.set_mode(mode);
        let begun = Instant::now();
        let (code, details) = status(&[]).error();
        assert!(code == 50 && details.contains(told), "{mode:?}: {code} {details}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{mode:?}: {:?}", begun.elapsed());
        // Others than sandboxes are served all the same, and would be turned away with a node that is not ready.
        status(&[NAMESPACE]).expect("");
        node.call("ADD", &pod, "web/w-0").answer().expect(PREVIOUS);
    }
    node.api.set_mode(Mode::Healthy);
    node.api.grant("system:serviceaccount:openshell:cni", &[]);
    let (code, details) = status(&[]).error();
    assert!(code == 50 && details.contains("forbidden"), "{code} {details}");
    // Control.
    node.api.grant("system:serviceaccount:openshell:cni", &[rights::pods("default")]);
    status(&[]).expect("");
    assert_unfenced(&world);
}
