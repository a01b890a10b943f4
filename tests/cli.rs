//! Promises 1.x: choosing a role.

use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use crate::world::supervisor;

fn call(arguments: &[&str]) -> Output {
    Command::new(supervisor()).args(arguments).output().expect("start")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn list_prints_every_role_and_help_names_each() {
    let list = call(&["--list"]);
    assert!(list.status.success());
    let list = String::from_utf8(list.stdout).expect("text");
    let help = String::from_utf8(call(&["--help"]).stdout).expect("text");
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    for expected in ["run", "network,process", "network", "policy", "doctor", "health", "completions", "man"] {
        assert!(names.contains(&expected), "{expected} is not in {names:?}");
    }
    for name in names {
        assert!(help.contains(name), "{name} is not in the help:\n{help}");
    }
}

#[test]
fn version_is_the_packages() {
    let output = call(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("openshell-supervisor {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn an_unknown_role_is_exit_2_with_the_list() {
    for arguments in [&["netwrok"][..], &["--mode=netwrok"], &["--mode="], &["--mode=network", "--mode=run"]] {
        let output = call(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains("network,process"), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn an_unknown_flag_is_exit_2_and_named() {
    let output = call(&["run", "--no-such-flag", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--no-such-flag"), "{}", stderr(&output));
}

#[test]
fn the_programs_name_chooses_a_role_and_must_agree_with_mode() {
    let named =
        |name: &str, arguments: &[&str]| Command::new(supervisor()).arg0(name).args(arguments).output().expect("start");
    let chosen = named("/usr/bin/openshell-policy", &["check", "/nonexistent.yaml"]);
    assert_eq!(chosen.status.code(), Some(1), "{}", stderr(&chosen));
    assert!(stderr(&chosen).contains("/nonexistent.yaml"), "{}", stderr(&chosen));
    let conflict = named("openshell-policy", &["--mode=network"]);
    assert_eq!(conflict.status.code(), Some(2));
    assert!(stderr(&conflict).contains("different roles"), "{}", stderr(&conflict));
    let empty = named("", &[]);
    assert_eq!(empty.status.code(), Some(2));
    assert!(stderr(&empty).contains("argv"), "{}", stderr(&empty));
    // Control: the neutral name chooses none, and the first argument does.
    assert!(named("openshell-sandbox", &["--version"]).status.success());
}

#[test]
fn the_hidden_launch_entry_refuses_whoever_is_not_the_supervisor() {
    let output = call(&["launch"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn completions_and_man_pages_come_from_the_same_definitions() {
    for shell in ["bash", "zsh", "fish"] {
        let output = call(&["completions", shell]);
        assert!(output.status.success());
        let script = String::from_utf8(output.stdout).expect("text");
        assert!(script.contains("binary-identity") && script.contains("doctor"), "{shell}");
    }
    for role in ["run", "policy", "network"] {
        let output = call(&["man", role]);
        assert!(output.status.success());
        let page = String::from_utf8(output.stdout).expect("text");
        assert!(page.contains(".TH"), "{role}: {page}");
    }
    assert!(String::from_utf8_lossy(&call(&["man"]).stdout).contains("doctor"));
    assert_eq!(call(&["man", "nothing"]).status.code(), Some(2));
}
