//! Everything that must be refused, each with the same input a step away, which is rendered.

mod config;
mod sandbox;
mod together;

use crate::driver::{Cluster, Document, DriverConfig, Problem, SandboxSpec, render};

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
    for (broken, expected) in [
        ("environment: {A: hunter2, B: [hunter2}", "expected YAML; correct what is there"),
        ("id: hunter2\nid: hunter2\n", "sandbox:2:1: the document: expected every field once; keep one"),
    ] {
        let errors = SandboxSpec::from_yaml(broken).expect_err("no YAML");
        assert!(errors.to_string().contains(expected) && !errors.to_string().contains("hunter2"), "{errors}");
        assert_eq!(errors.to_string().contains("once"), broken.contains("id: hunter2\nid"), "{errors}");
    }
}

#[test]
fn one_mistake_is_one_problem_with_its_place_and_what_was_meant() {
    let told = |text: &str| {
        let errors = SandboxSpec::from_yaml(text).expect_err("a mistake");
        errors.in_file(Document::Sandbox, "s.yaml", text).to_string()
    };
    for (field, wrong, expected) in [
        ("command: [sh]", "command: sh", "s.yaml:4:1: command is a string: expected a list; put it in brackets"),
        ("command: [sh]", "command: [1]", "s.yaml:4:11: command[0] is a number: expected a string; put the value"),
        ("id: 6f1c2a34", "id: 7", "s.yaml:1:1: id is a number: expected a string; put the value in quotes"),
        ("", "labells: {}", "s.yaml:5:1: labells: expected a known field; did you mean \"labels\"?"),
        (
            "",
            "nothing_like_it: {}",
            "s.yaml:5:1: nothing_like_it: expected a known field; remove it; known here: id, name",
        ),
        ("", "gpu: {coun: 1}", "s.yaml:5:7: gpu.coun: expected a known field; did you mean \"count\"?"),
        ("command: [sh]", "", "s.yaml: command: expected a program"),
    ] {
        let text = if field.is_empty() { format!("{LEAST}{wrong}\n") } else { LEAST.replace(field, wrong) };
        let told = told(&text);
        assert!(told.starts_with(expected) && told.lines().count() == 1, "{told}\nis not {expected}");
    }
    let text = "[openshell]\n[openshell.driver.kubernetes]\ntopology = \"proxy-pod\"\n";
    let errors = DriverConfig::from_toml(text).expect_err("a mistake").in_file(Document::Config, "d.toml", text);
    let expected = "d.toml:2:12: openshell.driver: expected the table [openshell.drivers.kubernetes] in a gateway's file; did \
                    you mean \"drivers\"?";
    assert_eq!(errors.to_string(), expected);
    for (text, expected) in [
        (
            "proxy_uid = 2000\n",
            "d.toml:1:1: proxy_uid: expected a known field; move it to sidecar.proxy_uid or proxy_pod.proxy_uid",
        ),
        (
            "[proxy_pod]\ndns_peers = [{pod_selector = {a = \"b\"}, port = 0}]\n",
            "d.toml:2:41: proxy_pod.dns_peers[0].port is 0: expected a number from 1 to 65535; choose one in that range",
        ),
    ] {
        let errors = DriverConfig::from_toml(text).expect_err("a mistake").in_file(Document::Config, "d.toml", text);
        assert_eq!(errors.to_string(), expected);
    }
    let two = SandboxSpec::from_yaml(&format!("{LEAST}---\n{LEAST}")).expect_err("two").to_string();
    assert!(two.contains("expected one sandbox; put each into a file of its own"), "{two}");
    let text = "namespac = \"a\"\n[sidecar]\nproxy_uid = 1\n[[platform_network.egress]]\ncidr = 3\nports = [70000]\n";
    let errors = DriverConfig::from_toml(text).expect_err("mistakes").in_file(Document::Config, "d.toml", text);
    let told = errors.to_string();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 4, "{told}");
    for expected in [
        "d.toml:1:1: namespac: expected a known field; did you mean \"namespace\"?",
        "d.toml:3:1: sidecar.proxy_uid is 1: expected a number from 1000",
        "d.toml:5:1: platform_network.egress[0].cidr is a number: expected a string",
        "d.toml:6:10: platform_network.egress[0].ports[0] is 70000: expected a number from 1 to 65535",
    ] {
        assert!(lines.iter().any(|line| line.starts_with(expected)), "{expected} is not in:\n{told}");
    }
}
