//! Promises 26.40 and on: pods of a container runtime as the kubelet uses it, on a node that our installer has prepared.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use openshell_supervisor::cni::chain::{Chain, Verdict, Way};
use serde_json::json;

use crate::containerd::Containerd;
use crate::cri::PodSandbox;
use crate::fence::answering_origin;
use crate::installer::USER;
use crate::kubernetes::{Mode, objects, rights};
use crate::node::{NAMESPACE, SANDBOX};
use crate::world::{World, eventually};

const SANDBOX_POD: PodSandbox<'_> = PodSandbox { namespace: NAMESPACE, name: "a-0", uid: "u-1" };
const OTHER_POD: PodSandbox<'_> = PodSandbox { namespace: "web", name: "w-0", uid: "u-2" };

/// A TCP connection to the origin.
const CONNECT: &str =
    "import socket; s = socket.create_connection(('10.99.0.2', 80), 3); print(s.recv(5).decode(), end='')";

/// As the API server knows it.
fn known(containerd: &Containerd<'_>, pod: PodSandbox<'_>, annotations: &[(&str, &str)]) {
    containerd.node.api.put(&objects::pod(pod.namespace, pod.name, pod.uid, annotations));
}

/// Whether a program of this user and group reaches the origin from a pod's network.
fn reaches(containerd: &Containerd<'_>, sandbox: &str, ids: (u32, u32)) -> bool {
    let output = containerd.in_network(sandbox, ids, &["/usr/bin/python3", "-c", CONNECT]);
    output.stdout == b"hello"
}

/// What was asked of the API server about pods.
fn asked(containerd: &Containerd<'_>) -> Vec<String> {
    containerd.node.api.calls().into_iter().map(|call| call.path).filter(|path| path.contains("/pods/")).collect()
}

#[test]
fn a_kubelets_runtime_has_sandboxes_fenced_and_other_pods_let_be() {
    let world = World::new();
    answering_origin(&world);
    let containerd = Containerd::with_plugin(&world);
    known(&containerd, SANDBOX_POD, &SANDBOX);
    containerd.node.api.forget();
    let other = containerd.run(OTHER_POD);
    assert_eq!((containerd.ruleset(&other).as_str(), asked(&containerd)), ("", vec![]));
    assert!(reaches(&containerd, &other, (1000, 1000)));
    let sandbox = containerd.run(SANDBOX_POD);
    assert_eq!(asked(&containerd), ["/api/v1/namespaces/agents/pods/a-0"]);
    let ruleset = containerd.ruleset(&sandbox);
    println!("{ruleset}");
    assert!(ruleset.contains("table inet openshell_fence") && ruleset.contains("policy drop"), "{ruleset}");
    // Only the proxy gets out, and control: without the fence everybody does.
    for (ids, passes) in [((0, 1337), true), ((0, 0), false), ((1000, 1337), false), ((1000, 1000), false)] {
        assert_eq!(reaches(&containerd, &sandbox, ids), passes, "{ids:?}");
    }
    let removed = containerd.in_network(&sandbox, (0, 0), &["nft", "delete", "table", "inet", "openshell_fence"]);
    assert!(removed.status.success() && reaches(&containerd, &sandbox, (1000, 1000)));
    // The ends of pods are nobody's business either, and are not held up by ours.
    containerd.node.api.set_mode(Mode::Silent);
    assert_eq!(containerd.addresses(), 2);
    for sandbox in [&sandbox, &other] {
        let begun = Instant::now();
        containerd.end(sandbox);
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }
    assert_eq!((containerd.addresses(), containerd.cri().list().expect("a list")), (0, vec![]));
}

#[test]
fn a_kubelets_runtime_starts_no_sandbox_that_cannot_be_fenced_and_says_why() {
    let world = World::new();
    let containerd = Containerd::with_plugin(&world);
    let api = &containerd.node.api;
    known(&containerd, SANDBOX_POD, &SANDBOX);
    let whole = || {
        api.set_mode(Mode::Healthy);
        api.grant(USER, &[rights::pods(NAMESPACE)]);
        known(&containerd, SANDBOX_POD, &SANDBOX);
    };
    let without_gid: Vec<_> = SANDBOX.into_iter().filter(|(key, _)| !key.ends_with("proxy-gid")).collect();
    let broken: [(&dyn Fn(), &str); 6] = [
        (&|| api.set_mode(Mode::Down), "cannot be reached"),
        (&|| api.grant(USER, &[]), "forbidden"),
        (&|| api.set_mode(Mode::Garbage), "the pod cannot be looked up"),
        // An earlier pod of the same name: only a runtime that tells the uid has that found out.
        (&|| known(&containerd, PodSandbox { uid: "u-0", ..SANDBOX_POD }, &SANDBOX), "u-0"),
        (&|| known(&containerd, SANDBOX_POD, &without_gid), "openshell.ai/proxy-gid"),
        (&|| api.delete("/api/v1/namespaces/agents/pods/a-0"), "not found"),
    ];
    for (damage, told) in broken {
        damage();
        let begun = Instant::now();
        let refusal = containerd.cri().run(SANDBOX_POD).expect_err("it cannot be fenced");
        println!("{:?}: {refusal}", begun.elapsed());
        assert!(refusal.message.contains("failed to setup network for sandbox"), "{refusal}");
        assert!(refusal.message.contains(told), "{told}: {refusal}");
        // Within half of the two minutes that the kubelet allows, and nothing of it is left.
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
        assert_eq!((containerd.addresses(), containerd.cri().list().expect("a list")), (0, vec![]), "{told}");
        containerd.end(&containerd.run(OTHER_POD));
        whole();
    }
    // Control.
    let sandbox = containerd.run(SANDBOX_POD);
    assert!(containerd.ruleset(&sandbox).contains("openshell_fence"));
}

#[test]
fn a_runtime_that_is_killed_comes_back_to_sandboxes_that_are_fenced() {
    let world = World::new();
    answering_origin(&world);
    let mut containerd = Containerd::with_plugin(&world);
    known(&containerd, SANDBOX_POD, &SANDBOX);
    let sandbox = containerd.run(SANDBOX_POD);
    let before = containerd.ruleset(&sandbox);
    containerd.kill();
    containerd.start();
    assert_eq!(containerd.cri().list().expect("a list"), [(sandbox.clone(), true)]);
    assert_eq!(containerd.ruleset(&sandbox), before);
    assert!(!reaches(&containerd, &sandbox, (1000, 1000)) && reaches(&containerd, &sandbox, (0, 1337)));
    // Killed in the middle of a start: what is tried again is fenced.
    let next = PodSandbox { name: "b-0", uid: "u-3", ..SANDBOX_POD };
    known(&containerd, next, &SANDBOX);
    containerd.node.api.set_mode(Mode::Slow(Duration::from_secs(3)));
    std::thread::scope(|scope| {
        let runtime = containerd.cri();
        let started = scope.spawn(move || runtime.run(next));
        eventually("the plugin asks", || asked(&containerd).iter().any(|path| path.ends_with("/b-0")));
        let pid = containerd.pid();
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).expect("kill");
        assert!(started.join().expect("the call").is_err());
    });
    containerd.kill();
    containerd.node.api.set_mode(Mode::Healthy);
    containerd.start();
    // What is half made the kubelet has taken away, and starts another.
    let left = containerd.cri().list().expect("a list");
    left.iter().filter(|(_, ready)| !ready).for_each(|(half, _)| containerd.end(half));
    let again = containerd.run(next);
    assert!(containerd.ruleset(&again).contains("openshell_fence"));
    containerd.end(&sandbox);
    containerd.end(&again);
    // And a pod that is started again has another network, with its own fence.
    let again = containerd.run(SANDBOX_POD);
    assert_eq!(containerd.ruleset(&again), before);
}

#[test]
fn twenty_pods_of_a_kubelets_runtime_at_once() {
    const EACH: usize = 10;
    let world = World::new();
    let containerd = Containerd::with_plugin(&world);
    let names: Vec<(String, String)> =
        (0..2 * EACH).map(|number| (format!("p-{number}"), format!("u-{number}"))).collect();
    let pods = names.iter().enumerate().map(|(index, (name, uid))| {
        let namespace = if index < EACH { NAMESPACE } else { "web" };
        PodSandbox { namespace, name, uid }
    });
    let pods: Vec<PodSandbox<'_>> = pods.collect();
    pods.iter().take(EACH).for_each(|pod| known(&containerd, *pod, &SANDBOX));
    containerd.node.api.forget();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (index, pod) in pods.iter().enumerate() {
            let containerd = &containerd;
            scope.spawn(move || {
                let sandbox = containerd.run(*pod);
                assert_eq!(containerd.ruleset(&sandbox).contains("openshell_fence"), index < EACH, "{pod:?}");
                containerd.end(&sandbox);
            });
        }
    });
    println!("{} pods came and went in {:?}", pods.len(), begun.elapsed());
    // The pods of other namespaces were not looked up.
    assert_eq!((asked(&containerd).len(), containerd.addresses()), (EACH, 0));
}

#[test]
fn the_runtime_follows_what_the_installer_does_to_its_configuration() {
    let world = World::new();
    let containerd = Containerd::new(&world);
    known(&containerd, SANDBOX_POD, &SANDBOX);
    let network_comes = || eventually("pods get a network", || containerd.cri().network().expect("a status").is_ok());
    network_comes();
    // Control: nobody has installed anything.
    let sandbox = containerd.run(SANDBOX_POD);
    assert_eq!(containerd.ruleset(&sandbox), "");
    containerd.end(&sandbox);
    let daemon = containerd.node.started(&[]);
    let is_fenced = || {
        network_comes();
        let sandbox = containerd.run(SANDBOX_POD);
        let ruleset = containerd.ruleset(&sandbox);
        containerd.end(&sandbox);
        ruleset.contains("openshell_fence")
    };
    assert!(is_fenced());
    // Its owner starts again, and writes what it always writes.
    let new = containerd.node.path("net.d/10-net.new");
    fs::write(&new, containerd.primary()).expect("write");
    fs::rename(new, containerd.node.primary()).expect("rename");
    eventually("the chain is repaired", || containerd.node.is_chained());
    containerd.node.await_label(true);
    assert!(is_fenced());
    // Another network takes its place, as one plugin without a list.
    let single = containerd.primary().replace("\"pods\"", "\"next\"");
    let mut single: serde_json::Value = serde_json::from_str(&single).expect("JSON");
    let mut plugin = single["plugins"][0].take();
    plugin["name"] = json!("next");
    plugin["cniVersion"] = json!("0.4.0");
    fs::write(containerd.node.path("net.d/05-next.conf"), plugin.to_string()).expect("write");
    let copy = containerd.node.path("net.d/05-next-openshell.conflist");
    eventually("the other one is chained", || crate::installer::chained(&copy));
    containerd.node.await_label(true);
    assert!(is_fenced());
    fs::remove_file(containerd.node.path("net.d/05-next.conf")).expect("remove");
    eventually("its copy goes", || !copy.exists());
    containerd.node.await_label(true);
    assert!(is_fenced());
    drop(daemon);
    // Uninstalled, sandboxes are as they were; and nothing that the runtime reads names what is gone.
    let output = containerd.node.command(&["--uninstall"]).output().expect("start");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!Path::new(&containerd.node.path("bin/openshell-cni")).exists());
    assert!(!is_fenced());
}

/// What a list is that has these plugins and, before them, these members.
fn list(members: &str, plugins: &str) -> String {
    format!(r#"{{"cniVersion":"0.4.0","name":"n",{members}"plugins":[{plugins}]}}"#)
}

#[test]
fn configurations_are_taken_as_the_runtime_takes_them() {
    const BRIDGE: &str = r#"{"type":"bridge"}"#;
    let world = World::new();
    let containerd = Containerd::new(&world);
    let configurations = containerd.node.path("net.d");
    fs::remove_file(containerd.node.primary()).expect("remove");
    let nested = |levels: usize| list(&format!(r#""x":{}{},"#, "[".repeat(levels), "]".repeat(levels)), BRIDGE);
    let cases: [(&str, String, bool); 29] = [
        ("conflist", list("", BRIDGE), true),
        ("conflist", list(r#""x":1e308,"#, BRIDGE), true),
        ("conflist", list(r#""x":[{"y":1e999}],"#, BRIDGE), false),
        ("conflist", list("", r#"{"type":"bridge","x":-1e400}"#), false),
        ("conflist", nested(9_999), true),
        ("conflist", nested(10_000), false),
        ("conflist", list("", r#"{"Type":"bridge"}"#), true),
        ("conflist", list("", r#"{"type":"bridge","IPAM":7}"#), false),
        ("conflist", list("", r#"{"type":"bridge","ipam":{"TYPE":7}}"#), false),
        ("conflist", list("", r#"{"type":"bridge","ipam":{"x":7},"other":7}"#), true),
        ("conflist", list("", r#"{"type":"bridge","capabilities":{"a":"true"}}"#), false),
        ("conflist", list("", r#"{"type":"bridge","capabilitieſ":{"a":1}}"#), false),
        ("conflist", list("", r#"{"type":"bridge","dns":{"nameservers":"x"}}"#), false),
        ("conflist", list("", r#"{"type":"bridge","dns":null,"prevResult":null}"#), true),
        ("conflist", list("", r#"{"type":"bridge","prevResult":[]}"#), false),
        ("conflist", list("", r#"{"type":"a","type":"bridge"}"#), true),
        ("conflist", list("", r#"{"type":7}"#), false),
        ("conflist", list("", "null"), false),
        ("conflist", list(r#""disableCheck":true,"#, BRIDGE), true),
        ("conflist", list(r#""disableCheck":1,"#, BRIDGE), false),
        ("conflist", list(r#""disableCheck":null,"#, BRIDGE), false),
        ("conflist", list("", BRIDGE).replace(r#""n""#, r#""\ud800""#), true),
        ("conflist", list("", BRIDGE).replace("name", "Name"), false),
        ("conflist", list("", BRIDGE).replace(r#""0.4.0""#, "null"), false),
        ("conflist", list(r#""plugins":[],"#, BRIDGE), true),
        ("conf", r#"{"cniVersion":"0.4.0","name":"n","type":"bridge"}"#.into(), true),
        ("conf", r#"{"cniVersion":"0.4.0","name":"n","type":"bridge","x":1e999}"#.into(), false),
        ("conf", r#"{"cniVersion":"0.4.0","name":"n","NAME":"m","type":"bridge"}"#.into(), true),
        ("conf", r#"{"cniVersion":"0.4.0","name":"n","type":"bridge","Dns":[]}"#.into(), false),
    ];
    let is_loaded = |expected: bool| containerd.cri().network().expect("a status").is_ok() == expected;
    for (end, text, loads) in cases {
        let shown: String = text.chars().take(120).collect();
        // From the other state, so that what is seen is what this file brought about.
        let sound = configurations.join("90-sound.conflist");
        if !loads {
            fs::write(&sound, list("", BRIDGE)).expect("write");
        }
        eventually("the state before", || is_loaded(!loads));
        let file = configurations.join(format!("10-case.{end}"));
        let new = configurations.join("new");
        fs::write(&new, &text).expect("write");
        // Nobody is taken to be writing it still.
        let before = SystemTime::now() - Duration::from_secs(60);
        fs::File::options().write(true).open(&new).expect("open").set_modified(before).expect("its time");
        fs::rename(&new, &file).expect("rename");
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_loaded(loads) {
            assert!(Instant::now() < deadline, "the runtime does not take it as it is thought to: {shown}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = fs::remove_file(&sound);
        let chain = Chain {
            way: Way::Conflist,
            directory: configurations.clone(),
            file: None,
            settings: json!({}),
            versions: &["0.4.0"],
        };
        let verdict = chain.install(|_| ()).expect("a verdict");
        println!("{loads:<5} {verdict}");
        match verdict {
            // What is chained onto is loaded with the plugin, too.
            Verdict::Chained { .. } => {
                assert!(loads, "{shown}");
                std::thread::sleep(Duration::from_millis(200));
                assert!(is_loaded(true), "{shown}");
            }
            // What is passed over is what the runtime does not load, and nothing else is.
            Verdict::NoPrimary { .. } => assert!(!loads, "{shown}"),
            Verdict::Unchainable { .. } => assert!(loads, "{shown}"),
            verdict => panic!("{shown}: {verdict}"),
        }
        chain.remove(|_| ()).expect("removed");
        fs::remove_file(&file).expect("remove");
        eventually("nothing is there", || is_loaded(false));
    }
}
