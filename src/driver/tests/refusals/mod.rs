//! Everything that must be refused, each with the same input a step away, which is rendered.

mod config;
mod sandbox;
mod together;

use crate::driver::{Cluster, DriverConfig, Problem, SandboxSpec, render};

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
    let errors = SandboxSpec::from_yaml("environment: {A: hunter2, A: [hunter2}").expect_err("no YAML");
    assert!(!errors.to_string().contains("hunter2"), "{errors}");
}
