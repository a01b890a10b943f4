//! Promises 28.x: what `render` prints, and that it runs.

use std::collections::BTreeSet;
use std::fs;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::node::{NAMESPACE, Node};
use crate::origins::{self, Origin};
use crate::podman::{Manifest, Podman, repository, text};
use crate::pods::{AROUND, POLICY, REFUSED};
use crate::world::{World, eventually, supervisor};

/// Topologies whose pods are files of `images/pods` as well; of proxy-pod no CA's key is checked in.
const IN_FILES: [&str; 3] = ["combined", "sidecar", "cni-sidecar"];

/// Topologies.
const ALL: [&str; 4] = ["combined", "sidecar", "cni-sidecar", "proxy-pod"];

pub fn run(arguments: &[&str]) -> Output {
    Command::new(supervisor()).arg("render").args(arguments).output().expect("start")
}

/// What is printed for the inputs of `images/pods`.
fn render(arguments: &[&str]) -> Output {
    let at = |name: &str| repository().join("images/pods").join(name).display().to_string();
    let (config, sandbox) = (at("driver.toml"), at("sandbox.yaml"));
    let mut all = vec!["--config", &config, "--sandbox", &sandbox];
    all.extend(arguments);
    run(&all)
}

#[track_caller]
pub fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// A CA of the tests' own, by openssl, and an attestation key: flags that give them, in files of a directory.
pub fn secrets(directory: &Path) -> Vec<String> {
    let [certificate, key, attestation] =
        ["ca.pem", "ca.key", "key"].map(|name| directory.join(name).display().to_string());
    let subject =
        ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=test"];
    let uses = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"];
    let mut openssl = Command::new("openssl");
    openssl.args(subject).args(uses).args(["-days", "2", "-out", &certificate, "-keyout", &key]);
    let output = openssl.output().expect("openssl, which .ci/run installs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    fs::write(&attestation, "0123456789abcdef".repeat(4)).expect("write");
    ["--proxy-ca-cert", &certificate, "--proxy-ca-key", &key, "--attestation-key", &attestation]
        .map(str::to_owned)
        .into()
}

#[test]
fn the_pods_of_images_are_what_is_rendered() {
    for topology in IN_FILES {
        let path = repository().join(format!("images/pods/{topology}.yaml"));
        let rendered = printed(&render(&["--topology", topology]));
        if std::env::var_os("OPENSHELL_WRITE_RENDERED").is_some() {
            fs::write(&path, &rendered).expect("write");
        }
        let written = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(written, rendered, "{topology}: write it anew with OPENSHELL_WRITE_RENDERED set");
    }
}

#[test]
fn the_same_inputs_give_the_same_bytes_in_either_form() {
    let directory = tempfile::tempdir().expect("a directory");
    let secrets = secrets(directory.path());
    let given: Vec<&str> = secrets.iter().map(String::as_str).chain(["--topology"]).collect();
    for topology in ALL {
        for more in [vec![], vec!["--sandbox-api", "v1beta1"], vec!["--sandbox-api", "v1alpha1", "--stopped"]] {
            let arguments = [given.clone(), vec![topology], more].concat();
            let yaml = || printed(&render(&arguments));
            assert_eq!(yaml(), yaml());
            let documents: Vec<Value> = serde_saphyr::from_multiple(&yaml()).expect("YAML");
            let json = printed(&render(&[arguments.clone(), vec!["-o", "json"]].concat()));
            let list: Value = serde_json::from_str(&json).expect("JSON");
            assert_eq!(documents, *list["items"].as_array().expect("items"), "{topology}");
        }
    }
}

#[test]
fn what_is_wrong_is_told_all_at_once_and_nothing_is_rendered() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name).display().to_string();
    let sandbox = fs::read_to_string(repository().join("images/pods/sandbox.yaml")).expect("a file");
    let wrong = sandbox.replace("name: demo", "name: Demo_1\nno_such_key: 1").replace("id: 6f1c", "id: .6f1c");
    fs::write(at("wrong.yaml"), wrong).expect("write");
    fs::write(at("wrong.toml"), "topology = \"side-car\"\nnamespace = \"A\"\n").expect("write");
    fs::write(at("right.yaml"), sandbox).expect("write");
    fs::write(at("right.toml"), "topology = \"sidecar\"\n").expect("write");
    let refused = run(&["--config", &at("wrong.toml"), "--sandbox", &at("wrong.yaml")]);
    let told = text(&refused.stderr);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{told}");
    for path in [
        "wrong.toml:1:1: topology is",
        "wrong.toml:2:1: namespace is",
        "wrong.yaml:5:1: no_such_key",
        "wrong.yaml:4:1: name is",
        "wrong.yaml:3:1: id is",
    ] {
        assert!(told.contains(path), "{path} is not in:\n{told}");
    }
    // Control.
    printed(&run(&["--config", &at("right.toml"), "--sandbox", &at("right.yaml")]));
    // What is wrong with the flags.
    for (arguments, expected) in [
        (
            vec!["--sandbox", &at("absent.yaml")],
            "absent.yaml: No such file or directory (os error 2); expected the sandbox, YAML",
        ),
        (
            vec!["--sandbox", &at("absent.yaml"), "--config", &at("absent.toml")],
            "absent.toml: No such file or directory (os error 2); expected the driver's configuration, TOML",
        ),
        (vec!["--sandbox", &at("right.yaml"), "--topology", "side-car"], "cni-sidecar"),
        (vec!["--sandbox", &at("right.yaml"), "--namespace-annotations", "uid-range"], "KEY=VALUE"),
        (vec!["--sandbox", &at("right.yaml"), "--proxy-ca-cert", &at("right.toml")], "--proxy-ca-key"),
        (vec![], "--sandbox"),
    ] {
        let output = run(&arguments);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{arguments:?}");
        assert!(text(&output.stderr).contains(expected), "{expected}: {}", text(&output.stderr));
    }
}

#[test]
fn a_ca_and_a_key_that_are_not_given_are_made_and_that_is_said() {
    const KEYS: [&str; 3] = ["openshell-ca.pem", "openshell-ca-key.pem", "key"];
    let made = || render(&["--topology", "proxy-pod"]);
    let (one, other) = (made(), made());
    assert_eq!(text(&one.stderr).matches("rendered again").count(), 2, "{}", text(&one.stderr));
    assert!(text(&one.stderr).contains("has an attestation key of its own"), "{}", text(&one.stderr));
    let secrets = |output: &Output| {
        let documents: Vec<Value> = serde_saphyr::from_multiple(&printed(output)).expect("YAML");
        let data: Vec<Value> = documents.iter().map(|object| object["stringData"].clone()).collect();
        KEYS.map(|key| data.iter().find_map(|data| data[key].as_str()).expect(key).to_owned())
    };
    for (mine, theirs) in secrets(&one).iter().zip(secrets(&other)) {
        assert_ne!(*mine, theirs);
    }
    // They are what the roles take, and the same where they are given.
    let directory = tempfile::tempdir().expect("a directory");
    let files = KEYS.map(|name| directory.path().join(name).display().to_string());
    files.iter().zip(secrets(&one)).for_each(|(file, secret)| fs::write(file, secret).expect("write"));
    let [certificate, key, attestation] = &files;
    let flags = ["--proxy-ca-cert", certificate, "--proxy-ca-key", key, "--attestation-key", attestation];
    let given = render(&[&["--topology", "proxy-pod"], &flags[..]].concat());
    assert_eq!(text(&given.stderr), "");
    assert_eq!(text(&given.stdout), text(&one.stdout));
    // Another one's key is refused here, and not by the proxy later; so is one that anybody could guess.
    let foreign = secrets(&other)[1].clone();
    // The certificate is what the agent's pod sees of them, and a key in its file would be seen there too.
    let both = secrets(&one)[..2].concat();
    for (file, wrong, expected) in [
        (key, foreign.as_str(), "not the key"),
        (attestation, "guess", "32 bytes"),
        (certificate, both.as_str(), "proxy_ca.certificate: expected certificates and nothing else"),
    ] {
        let right = fs::read_to_string(file).expect("a file");
        fs::write(file, wrong).expect("write");
        let refused = render(&[&["--topology", "proxy-pod"], &flags[..]].concat());
        let told = text(&refused.stderr);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{told}");
        assert!(told.contains(expected) && !told.contains("guess"), "{told}");
        fs::write(file, right).expect("write");
    }
    // Of what is not printed nothing is told.
    let refused = render(&["--topology", "proxy-pod", "--stopped"]);
    let told = text(&refused.stderr);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{told}");
    assert!(told.contains("sandbox_api: expected the version") && !told.contains("rendered again"), "{told}");
    printed(&render(&["--topology", "proxy-pod", "--stopped", "--sandbox-api", "v1beta1"]));
}

#[test]
fn either_input_is_taken_from_standard_input() {
    let at = |name: &str| repository().join("images/pods").join(name).display().to_string();
    let (config, sandbox) = (at("driver.toml"), at("sandbox.yaml"));
    let piped = |arguments: &[&str], file: &str| {
        let mut command = Command::new(supervisor());
        command.arg("render").args(arguments).stdin(fs::File::open(file).expect("a file"));
        command.output().expect("start")
    };
    let whole = printed(&run(&["--config", &config, "--sandbox", &sandbox]));
    assert_eq!(printed(&piped(&["--config", &config, "--sandbox", "-"], &sandbox)), whole);
    assert_eq!(printed(&piped(&["--config", "-", "--sandbox", &sandbox], &config)), whole);
    let both = piped(&["--config", "-", "--sandbox", "-"], &sandbox);
    assert_eq!((both.status.code(), both.stdout.len()), (Some(2), 0));
    assert!(text(&both.stderr).contains("one of the two"), "{}", text(&both.stderr));
    // Mistakes are told of it as of a file.
    let wrong = piped(&["--sandbox", "-"], &config);
    assert!(text(&wrong.stderr).starts_with("-:") || text(&wrong.stderr).contains(" -:"), "{}", text(&wrong.stderr));
}

#[test]
fn what_the_cluster_says_is_rendered() {
    let openshift = ["--namespace-annotations", "openshift.io/sa.scc.uid-range=1000790000/10000"];
    let groups = ["--namespace-annotations", "openshift.io/sa.scc.supplemental-groups=1000800000/10,2000-2009"];
    let more =
        ["--namespace", "elsewhere", "--sandbox-api", "v1beta1", "--owner-uid", "u-1", "--topology", "proxy-pod"];
    let output = render(&[&openshift[..], &groups, &more].concat());
    let documents: Vec<Value> = serde_saphyr::from_multiple(&printed(&output)).expect("YAML");
    for object in &documents {
        assert_eq!(object["metadata"]["namespace"], "elsewhere", "{}", object["kind"]);
    }
    let sandbox = documents.iter().find(|object| object["kind"] == "Sandbox").expect("a Sandbox");
    let template = &sandbox["spec"]["podTemplate"];
    assert_eq!(template["metadata"]["annotations"]["openshift.io/required-scc"], "nonroot-v2");
    let agent = &template["spec"]["containers"][0]["securityContext"];
    assert_eq!((&agent["runAsUser"], &agent["runAsGroup"]), (&1_000_790_000.into(), &1_000_800_000.into()));
    let deployment = documents.iter().find(|object| object["kind"] == "Deployment").expect("a Deployment");
    assert_eq!(deployment["metadata"]["ownerReferences"][0]["uid"], "u-1");
    // Control.
    let plain = printed(&render(&["--topology", "combined"]));
    assert!(!plain.contains("openshift") && !plain.contains("ownerReferences") && plain.contains("kind: Pod"));
}

#[test]
fn explain_tells_what_each_topology_takes() {
    let all = printed(&run(&["--explain"]));
    for topology in ALL {
        assert!(all.contains(&format!("\n{topology}\n")), "{topology} is not in:\n{all}");
    }
    let levels: Vec<&str> =
        all.lines().find(|line| line.starts_with("Pod Security")).expect("levels").split_whitespace().collect();
    assert_eq!(levels[2..], ["privileged", "privileged", "privileged", "restricted"]);
    // The guide shows it as it is.
    let readme = fs::read_to_string(repository().join("README.md")).expect("README.md");
    let table = all.split("\n\n").next().expect("a table");
    assert!(readme.contains(&format!("```\n{table}\n```\n")), "README.md does not hold this table:\n{table}");
    let one = printed(&run(&["--explain", "--topology", "sidecar"]));
    assert!(one.contains("openshell-network-init (init)") && one.contains("NET_ADMIN"), "{one}");
    assert!(!one.contains("SETPCAP"), "{one}");
    // It is computed from what these inputs give.
    let directory = tempfile::tempdir().expect("a directory");
    let config = directory.path().join("driver.toml");
    let relaxed = "[sidecar]\nprocess_binary_aware_network_policy = false\n";
    fs::write(&config, relaxed).expect("write");
    let relaxed = printed(&run(&["--explain", "--topology", "cni-sidecar", "--config", &config.display().to_string()]));
    assert!(!relaxed.contains("SYS_PTRACE") && relaxed.contains("restricted"), "{relaxed}");
    fs::write(&config, "network_enforcement = \"platform\"\n").expect("write");
    let told = printed(&run(&["--explain", "--config", &config.display().to_string()]));
    let missing = format!("not with this configuration\n{}: platform_network.egress", config.display());
    assert!(told.contains(&missing), "{told}");
}

#[test]
fn schemas_are_printed_for_both_inputs() {
    for (input, field) in [("config", "platform_network"), ("sandbox", "environment")] {
        let schema: Value = serde_json::from_str(&printed(&run(&["--schema", input]))).expect("JSON");
        assert_eq!(schema["type"], "object");
        assert!(schema["properties"][field].is_object(), "{input}: {schema:#}");
        assert_eq!(schema["additionalProperties"], false);
    }
    assert!(!run(&["--schema", "policy"]).status.success());
    // Tables are for people.
    let tables = run(&["--explain", "-o", "json"]);
    assert_eq!((tables.status.code(), tables.stdout.len()), (Some(2), 0), "{}", text(&tables.stderr));
}

#[test]
fn a_policy_with_a_mistake_is_refused_before_anything_is_rendered() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("sandbox.yaml").display().to_string();
    let sandbox = fs::read_to_string(repository().join("images/pods/sandbox.yaml")).expect("a file");
    let right = "- {host: example.com, port: 443}";
    let line = sandbox.lines().position(|line| line.contains(right)).expect("an endpoint") + 1;
    let refused = |sandbox: &str, arguments: &[&str]| {
        fs::write(&file, sandbox).expect("write");
        let output = run(&[&["--sandbox", &file], arguments].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    for (wrong, column, expected) in [
        ("- {hst: example.com, port: 443}", 12, "hst: unknown key; did you mean \"host\"?"),
        ("- {host: example.com, port: 0}", 31, "port: "),
        ("- {host: '*', port: 443}", 12, "host: "),
    ] {
        let told = refused(&sandbox.replace(right, wrong), &[]);
        let place = format!("{file}:{line}:{column}: policy.network_policies.example.endpoints[0].{expected}");
        assert!(told.contains(&place), "{place} is not in:\n{told}");
        // What it takes is not told of such a sandbox either.
        assert_eq!(told, refused(&sandbox.replace(right, wrong), &["--explain"]));
    }
    // With whatever else is wrong, and each mistake once.
    let wrong = sandbox.replace("host: example.com", "hst: example.com").replace("version: 1", "version: 3");
    let told = refused(&wrong.replace("name: demo", "name: Demo"), &[]);
    for expected in [": name is \"Demo\"", ": policy.version", "did you mean \"host\"?"] {
        assert_eq!(told.matches(expected).count(), 1, "{expected}: {told}");
    }
    // Control.
    fs::write(&file, &sandbox).expect("write");
    printed(&run(&["--sandbox", &file]));
}

#[test]
fn every_field_of_both_inputs_is_listed_with_what_it_takes_and_means() {
    for (input, expected) in [
        (
            "config",
            vec!["topology ", "combined | sidecar | cni-sidecar | proxy-pod", "sidecar.proxy_uid ", "1000..4294967294"],
        ),
        ("sandbox", vec!["command ", "list of text, required", "driver_config.volumes[].name ", "environment "]),
    ] {
        let listed = printed(&run(&["--fields", input]));
        for expected in expected {
            assert!(listed.contains(expected), "{expected} is not in:\n{listed}");
        }
        let schema: Value = serde_json::from_str(&printed(&run(&["--schema", input]))).expect("JSON");
        for (field, schema) in schema["properties"].as_object().expect("fields") {
            let line = listed.lines().find(|line| line.split_whitespace().next() == Some(field)).expect(field);
            assert!(line.ends_with(schema["description"].as_str().expect("a description")), "{line}");
        }
    }
    // Control.
    assert!(!run(&["--fields", "policy"]).status.success());
}

#[test]
fn what_would_open_the_fence_from_beside_it_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let [config, file] = ["driver.toml", "sandbox.yaml"].map(|name| directory.path().join(name).display().to_string());
    let sandbox = fs::read_to_string(repository().join("images/pods/sandbox.yaml")).expect("a file");
    let output = |more: &str, settings: &str| {
        fs::write(&file, format!("{sandbox}{more}\n")).expect("write");
        fs::write(&config, settings).expect("write");
        run(&["--sandbox", &file, "--config", &config, "--topology", "sidecar"])
    };
    let annotation = |key: &str| format!("platform_config: {{annotations: {{{key}: unconfined}}}}");
    let mount = |path: &str| {
        format!(
            "driver_config:\n  volumes: [{{name: d, persistent_volume_claim: {{claim_name: c, read_only: false}}}}]\n  \
             containers: {{agent: {{volume_mounts: [{{name: d, mount_path: {path}, read_only: false}}]}}}}"
        )
    };
    let class = "driver_config: {pod: {runtime_class_name: kata}}".to_owned();
    for (wrong, right, settings) in [
        (annotation("container.apparmor.security.beta.kubernetes.io/agent"), annotation("example.com/agent"), ""),
        (annotation("k8s.v1.cni.cncf.io/networks"), annotation("example.com/networks"), ""),
        (mount("/var"), mount("/var/lib/app"), ""),
        (mount("/var/run"), mount("/var/running"), ""),
        (class.clone(), class, "runtime_classes = [\"kata\"]\n"),
    ] {
        let refused = output(&wrong, "");
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{wrong}");
        let told = text(&refused.stderr);
        assert!(told.contains(&format!("{file}:")) && told.lines().count() == 1, "{told}");
        // Control.
        printed(&output(&right, settings));
    }
}

/// The pod of a sidecar sandbox with another id and name.
fn sandbox_of(id: &str, name: &str) -> String {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("sandbox.yaml").display().to_string();
    let sandbox = fs::read_to_string(repository().join("images/pods/sandbox.yaml")).expect("a file");
    let first = sandbox.lines().find(|line| line.starts_with("id: ")).expect("an id");
    let other = sandbox.replace(first, &format!("id: {id}")).replace("name: demo", &format!("name: {name}"));
    fs::write(&file, other).expect("write");
    let config = repository().join("images/pods/driver.toml").display().to_string();
    printed(&run(&["--config", &config, "--sandbox", &file, "--topology", "sidecar"]))
}

#[test]
fn two_sandboxes_of_one_machine_share_no_volume() {
    let world = World::new();
    let podman = Podman::new(&world);
    let play = |id: &str, name: &str| {
        let mut manifest = Manifest::parse(&sandbox_of(id, name));
        manifest.workload(&[
            "sh",
            "-c",
            "ls /tmp /sandbox; echo mine >/tmp/of-one; echo mine >/sandbox/of-one; echo end; sleep 1000",
        ]);
        let pod = podman.start(&manifest);
        eventually("the workload has looked", || pod.logs("agent").contains("end\n") || !pod.runs("agent"));
        (pod.logs("agent"), pod)
    };
    let (first, _one) = play("11111111-9b7e-4d0a-8c55-0e6f7a8b9c0d", "one");
    assert!(first.contains("end") && !first.contains("of-one"), "{first}");
    let (other, _other) = play("22222222-9b7e-4d0a-8c55-0e6f7a8b9c0d", "other");
    assert!(other.contains("end") && !other.contains("of-one"), "{other}");
    // Control: volumes are the machine's by their names, and the id is what keeps them apart.
    let (same, _same) = play("11111111-9b7e-4d0a-8c55-0e6f7a8b9c0d", "same");
    assert_eq!(same.matches("of-one").count(), 2, "{same}");
}

#[test]
fn rendered_pods_run() {
    let world = World::new();
    let _origin = Origin::start_at(&world, Ipv6Addr::UNSPECIFIED, 80, origins::hello());
    let node = Node::in_machine(&world);
    let podman = Podman::with_plugin(&world, &node);
    for topology in IN_FILES {
        let mut manifest = Manifest::of(&format!("{topology}.yaml"));
        manifest.policy(POLICY).workload(&[
            "sh",
            "-c",
            "curl -sS http://api.example.com/; curl -sS http://other.example.com/; curl -sS --noproxy '*' http://10.99.0.2/; \
             echo end; sleep 1000",
        ]);
        // Podman has no namespaces: what it is told of one is the plugin's business.
        let mut known = manifest.pod();
        known["metadata"]["namespace"] = NAMESPACE.into();
        known["metadata"]["uid"] = format!("uid-of-{topology}").into();
        node.api.put(&known);
        manifest.programs_of_this_machine(Some("agent"));
        let pod = podman.start(&manifest);
        eventually("the workload has tried", || pod.logs("agent").contains("end\n") || !pod.runs("agent"));
        let told = pod.logs("agent");
        println!("--- {topology}\n{told}");
        assert!(told.contains("hello from GET /"), "{topology}: {}", pod.everything());
        assert!(told.contains("policy_denied") && told.contains("Failed to connect"), "{topology}: {told}");
        // Whoever comes into the agent's container: the proxy's own in a combined one, which is why that takes privileges.
        let around = text(&pod.exec("agent", None, &["/usr/bin/python3", "-c", AROUND]).stdout);
        let passed = REFUSED.replace("ECONNREFUSED", "PASSED").replace("EPERM", "PASSED");
        assert_eq!(around, if topology == "combined" { passed } else { REFUSED.into() }, "{topology}");
        // Each supervisor answers its own probe, and not another's.
        for container in manifest.pod()["spec"]["containers"].as_array().expect("containers") {
            let probe: Vec<String> =
                serde_json::from_value(container["readinessProbe"]["exec"]["command"].clone()).expect("a probe");
            let name = container["name"].as_str().expect("a name");
            let probe: Vec<&str> = probe.iter().map(String::as_str).collect();
            let ready = || pod.exec(name, None, &probe);
            assert!(ready().status.success(), "{topology} {name}: {}", text(&ready().stderr));
            let nobodys = pod.exec(name, None, &[probe[0], "health", "127.0.0.1:9099"]);
            assert!(!nobodys.status.success(), "control: {topology} {name}");
        }
        let capabilities = pod.inspect("agent", ".EffectiveCaps");
        assert_eq!(capabilities == "[]", topology != "combined", "{topology}: {capabilities}");
    }
}

#[test]
fn the_library_alone_has_no_runtime_no_proxy_and_no_policy_engine() {
    let tree = |features: &[&str]| -> BTreeSet<String> {
        let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut command = Command::new(env!("CARGO"));
        command.args(["tree", "--offline", "--prefix", "none", "--edges", "normal", "--manifest-path"]).arg(manifest);
        let output = command.args(features).output().expect("cargo");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    let (library, all) = (tree(&["--no-default-features"]), tree(&[]));
    println!("the library alone: {library:?}");
    for name in [
        "tokio",
        "hyper",
        "rustls",
        "rcgen",
        "ring",
        "regorus",
        "opa-wasm",
        "landlock",
        "seccompiler",
        "clap",
        "nix",
        "libc",
    ] {
        assert!(!library.contains(name), "{name} is in the library's tree");
        assert!(all.contains(name), "control: {name}");
    }
}
