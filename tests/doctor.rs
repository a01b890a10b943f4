//! Promises 13.x: `doctor` tells what the machine can do, and proves it.

use serde_json::Value;

use crate::world::World;

fn report(text: &str) -> Vec<Value> {
    serde_json::from_str::<Value>(text).expect("JSON")["checks"].as_array().expect("checks").clone()
}

#[test]
fn as_root_all_is_well_and_every_way_out_was_tried() {
    let world = World::new();
    let outcome = world.role("doctor").arg("--json").output().expect(0);
    let checks = report(&outcome.stdout);
    for check in &checks {
        assert_eq!(check["status"], "ok", "{check}");
    }
    let attempts =
        checks.iter().filter(|check| check["name"].as_str().is_some_and(|name| name.starts_with("refused"))).count();
    assert!(attempts >= 25, "only {attempts} ways were tried:\n{}", outcome.stdout);
}

#[test]
fn as_an_ordinary_user_it_is_honest() {
    let world = World::new();
    let outcome = world.role("doctor").by_user().arg("--json").output();
    let checks = report(&outcome.stdout);
    let broken: Vec<&Value> = checks.iter().filter(|check| check["status"] == "broken").collect();
    assert_eq!(outcome.code, Some(if broken.is_empty() { 0 } else { 1 }), "{broken:?}");
    for check in &checks {
        if check["status"] != "ok" {
            assert!(check["remedy"].is_string(), "no remedy: {check}");
        }
    }
}

#[test]
fn without_user_namespaces_an_ordinary_user_is_told_why_and_what_to_do() {
    let world = World::new();
    // The limit is this user namespace's own: a child of the tests' that cannot make one.
    let script = format!(
        "import os, ctypes\nlibc = ctypes.CDLL(None)\nassert libc.unshare(0x10000000) == 0\nopen('/proc/self/setgroups', \
         'w').write('deny')\nopen('/proc/self/uid_map', 'w').write('4242 0 1')\nopen('/proc/self/gid_map', 'w').write('4242 0 1')\nopen('/proc/sys/user/max_user_namespaces', \
         'w').write('0')\nos.execv({0:?}, [{0:?}, 'doctor'])",
        crate::world::supervisor().display().to_string()
    );
    let output = world.machine_program("/usr/bin/python3").args(["-c", &script]).output().expect("python3");
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("user.max_user_namespaces"), "{text}");
}

#[test]
fn for_people_it_is_a_line_each() {
    let world = World::new();
    let outcome = world.role("doctor").output().expect(0);
    for word in ["Landlock", "seccomp", "namespaces", "nf_tables", "NFLOG", "sock", "cgroup", "combined", "proxy-pod"] {
        assert!(outcome.stdout.to_lowercase().contains(&word.to_lowercase()), "{word} is missing:\n{}", outcome.stdout);
    }
}
