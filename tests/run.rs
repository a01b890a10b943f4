//! Promises 3.x: a command runs confined, as who it should be, and ends as it ends.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use crate::world::{ORDINARY_USER, World};

#[test]
fn the_exit_code_is_the_commands() {
    let world = World::new();
    for code in [0, 1, 42, 124, 125, 126, 127, 255] {
        world.run().shell(&format!("exit {code}")).output().expect(code);
        world.run().by_user().shell(&format!("exit {code}")).output().expect(code);
    }
}

#[test]
fn a_signal_that_ends_it_is_128_and_its_number() {
    let world = World::new();
    for (signal, number) in [("TERM", 15), ("KILL", 9), ("SEGV", 11), ("INT", 2)] {
        world.run().shell(&format!("kill -{signal} $$")).output().expect(128 + number);
    }
}

#[test]
fn a_command_that_is_not_there_is_127_and_one_that_cannot_run_is_126() {
    let world = World::new();
    let plain = world.file("plain", "not a program");
    let unreadable_interpreter = world.file("script", "#!/nonexistent/interpreter\n");
    std::fs::set_permissions(&unreadable_interpreter, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let grant = world.file(
        "grant.yaml",
        format!("version: 1\nfilesystem_policy: {{read_only: [{}]}}\n", world.directory().display()),
    );
    let missing = world.run().command(["/nonexistent/command"]).output().expect(127);
    assert!(missing.stderr.contains("/nonexistent/command"), "{}", missing.stderr);
    let missing = world.run().command(["no-such-command-in-path"]).output().expect(127);
    assert!(missing.stderr.contains("no-such-command-in-path"), "{}", missing.stderr);
    let refused = world.run().policy(&grant).command([&plain]).output().expect(126);
    assert!(refused.stderr.contains("plain"), "{}", refused.stderr);
    let stranded = world.run().policy(&grant).command([&unreadable_interpreter]).output().expect(126);
    assert!(stranded.stderr.contains("interpreter"), "{}", stranded.stderr);
    world.run().command(["/etc"]).output().expect(126);
    // Control.
    world.run().command(["/bin/true"]).output().expect(0);
}

#[test]
fn timeout_is_124_and_takes_a_command_that_ignores_term_along() {
    let world = World::new();
    let outcome = world.run().args(["--timeout", "0.5"]).command(["/bin/sleep", "30"]).output().expect(124);
    assert!(outcome.took < Duration::from_secs(5), "{:?}", outcome.took);
    let stubborn = world
        .run()
        .args(["--timeout", "0.5", "--grace", "0.5"])
        .shell("trap '' TERM; while :; do sleep 1; done")
        .output()
        .expect(124);
    assert!(
        stubborn.took >= Duration::from_millis(900) && stubborn.took < Duration::from_secs(6),
        "{:?}",
        stubborn.took
    );
    // Control: a command that is quicker is not timed out.
    world.run().args(["--timeout", "20"]).command(["/bin/true"]).output().expect(0);
}

#[test]
fn started_by_root_it_is_nobody_with_nothing() {
    let world = World::new();
    let outcome =
        world.run().shell("id -u; id -g; id -G; grep -E '^(Cap|NoNewPrivs|Seccomp:)' /proc/self/status").output();
    let outcome = outcome.expect(0);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines[..3], ["65534", "65534", "65534"], "{}", outcome.stdout);
    for line in &lines[3..] {
        let (name, value) = line.split_once(':').expect("name: value");
        match name {
            "NoNewPrivs" => assert_eq!(value.trim(), "1"),
            "Seccomp" => assert_eq!(value.trim(), "2"),
            _ => assert_eq!(u64::from_str_radix(value.trim(), 16), Ok(0), "{line}"),
        }
    }
}

#[test]
fn started_by_an_ordinary_user_it_keeps_that_users_id_and_has_nothing() {
    let world = World::new();
    let outcome =
        world.run().by_user().shell("id -u; id -g; grep CapEff /proc/self/status; cat /proc/self/uid_map").output();
    let outcome = outcome.expect(0);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    let id = ORDINARY_USER.to_string();
    assert_eq!(lines[..2], [&id, &id], "{}", outcome.stdout);
    assert!(lines[2].ends_with("0000000000000000"), "{}", outcome.stdout);
    // It is in a user namespace of one id.
    assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), [id.as_str(), id.as_str(), "1"]);
}

#[test]
fn the_policy_names_the_identity_by_name_or_number() {
    let world = World::new();
    let numeric = world.file("numeric.yaml", "version: 1\nprocess: {run_as_user: \"1234\", run_as_group: \"2345\"}\n");
    assert_eq!(
        world.run().policy(numeric).shell("id -u; id -g; id -G").output().expect(0).stdout,
        "1234\n2345\n2345\n"
    );
    let nobody = world.file("unknown.yaml", "version: 1\nprocess: {run_as_user: sandbox}\n");
    let outcome = world.run().policy(nobody).command(["/bin/true"]).output();
    let exists =
        std::fs::read_to_string("/etc/passwd").expect("passwd").lines().any(|line| line.starts_with("sandbox:"));
    if !exists {
        let outcome = outcome.expect(125);
        assert!(outcome.stderr.contains("sandbox") && outcome.stderr.contains("/etc/passwd"), "{}", outcome.stderr);
    }
}

#[test]
fn the_environment_is_cleared_and_rebuilt() {
    let world = World::new();
    let mut command = world
        .run()
        .args(["--env", "GIVEN=yes", "--env", "PASSED", "--env", "OVERRIDDEN=new"])
        .command(["/usr/bin/env"])
        .build();
    command
        .env("SECRET_TOKEN", "leak")
        .env("PASSED", "through")
        .env("OVERRIDDEN", "old")
        .env("OPENSHELL_SANDBOX_ID", "leak")
        .env("LD_PRELOAD", "/leak.so");
    let output = command.output().expect("run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!text.contains("leak"), "{text}");
    let proxy = "http://127.0.0.1:3128";
    for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "grpc_proxy"] {
        assert!(text.lines().any(|line| line == format!("{name}={proxy}")), "{name} is missing:\n{text}");
    }
    for line in ["NODE_USE_ENV_PROXY=1", "OPENSHELL_SANDBOX=1", "GIVEN=yes", "PASSED=through", "OVERRIDDEN=new"] {
        assert!(text.lines().any(|other| other == line), "{line} is missing:\n{text}");
    }
    for name in ["PATH=", "HOME=", "USER=", "NO_PROXY=", "no_proxy="] {
        assert!(text.lines().any(|line| line.starts_with(name)), "{name} is missing:\n{text}");
    }
}

#[test]
fn as_entrypoint_the_images_variables_stay_and_the_supervisors_go() {
    let world = World::new();
    let mut command = world.role("--mode=network,process").command(["/usr/bin/env"]).build();
    command
        .env("IMAGE_VARIABLE", "stays")
        .env("OPENSHELL_SANDBOX_ID", "leak")
        .env("OPENSHELL_ENDPOINT", "leak")
        .env("OPENSHELL_USER_ENVIRONMENT", r#"{"FROM_USER":"yes"}"#);
    let output = command.output().expect("run");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("IMAGE_VARIABLE=stays") && text.contains("FROM_USER=yes"), "{text}");
    assert!(!text.contains("leak") && !text.contains("OPENSHELL_USER_ENVIRONMENT"), "{text}");
}

#[test]
fn the_entrypoint_takes_its_workload_from_the_main_process_spec() {
    let world = World::new();
    let run = |spec: &str| {
        let mut command = world.role("--mode=network,process").build();
        command.env("OPENSHELL_MAIN_PROCESS_SPEC", spec).output().expect("run")
    };
    let output = run(r#"{"version":1,"command":["/bin/echo","from","spec"],"tty":false}"#);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "from spec\n", "{}", String::from_utf8_lossy(&output.stderr));
    // base64url of {"version":1,"command":["/bin/echo","coded"],"tty":false}
    let output = run("base64url:eyJ2ZXJzaW9uIjoxLCJjb21tYW5kIjpbIi9iaW4vZWNobyIsImNvZGVkIl0sInR0eSI6ZmFsc2V9");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "coded\n", "{}", String::from_utf8_lossy(&output.stderr));
    for wrong in [
        r#"{"version":2,"command":["/bin/true"],"tty":false}"#,
        r#"{"version":1,"command":[],"tty":false}"#,
        "{",
        "base64url:!",
    ] {
        let output = run(wrong);
        assert_eq!(output.status.code(), Some(125), "{wrong}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stderr).contains("OPENSHELL_MAIN_PROCESS_SPEC"), "{wrong}");
    }
}

#[test]
fn no_workload_at_all_is_127() {
    let world = World::new();
    let outcome = world.role("--mode=network,process").output().expect(127);
    assert!(outcome.stderr.contains("OPENSHELL_MAIN_PROCESS_SPEC"), "{}", outcome.stderr);
}

#[test]
fn bad_set_up_is_125_and_says_what_and_why() {
    let world = World::new();
    let invalid =
        world.file("invalid.yaml", "version: 1\nnetwork_policies: {a: {endpoints: [{host: \"*\", port: 0}]}}\n");
    let cases: [(&[&str], &str); 3] = [
        (&["--policy", "/nonexistent/policy.yaml"], "/nonexistent/policy.yaml"),
        (&["--policy", invalid.to_str().expect("a path")], "invalid.yaml:2"),
        (&["--workdir", "/nonexistent/workdir"], "/nonexistent/workdir"),
    ];
    for (arguments, named) in cases {
        let outcome = world.run().args(arguments.to_vec()).command(["/bin/echo", "it ran"]).output().expect(125);
        assert!(outcome.stderr.contains(named), "{named} is not named: {}", outcome.stderr);
        assert!(!outcome.stdout.contains("it ran"), "the workload ran all the same");
    }
}

#[test]
fn the_working_directory_is_granted_and_started_in() {
    let world = World::new();
    let workdir = world.directory().join("work");
    std::fs::create_dir(&workdir).expect("mkdir");
    std::fs::set_permissions(&workdir, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let outcome = world.run().arg("--workdir").arg(&workdir).shell("pwd; echo written > made-here").output().expect(0);
    assert_eq!(outcome.stdout.trim(), workdir.to_str().expect("a path"));
    assert_eq!(std::fs::read_to_string(workdir.join("made-here")).expect("the file"), "written\n");
    // Control: without the grant, the same directory is closed although its mode is open.
    let closed = world.run().shell(&format!("echo written > {}/not-here", workdir.display())).output();
    assert_ne!(closed.code, Some(0));
    assert!(!workdir.join("not-here").exists());
}

#[test]
fn standard_input_and_output_are_the_commands_own() {
    use std::io::Write;
    let world = World::new();
    let mut command = world.run().command(["/bin/cat"]).build();
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("start");
    child.stdin.take().expect("piped").write_all(b"through\n").expect("write");
    let output = child.wait_with_output().expect("wait");
    assert_eq!(output.stdout, b"through\n");
    assert!(output.status.success());
}
