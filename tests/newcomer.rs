//! Promises 31.x: what somebody meets who has just begun. Each is a way that was taken, led nowhere, and said nothing of where
//! to go.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::world::{ORDINARY_USER, World, eventually, policy_text, supervisor};

/// What names the loopback of the machine, in every piece of advice that does.
const HOST_ALIAS: &str = "host.openshell.internal";

/// The executable, asked for something that takes no world.
fn call(arguments: &[&str]) -> Command {
    let mut command = Command::new(supervisor());
    command.args(arguments).env_remove("OPENSHELL_LOG_LEVEL").stdin(Stdio::null());
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs it, and returns its exit code with all that it said.
#[track_caller]
fn said(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().expect("start");
    (output.status.code(), stdout(&output) + &stderr(&output))
}

/// A directory of the world's, with this mode.
fn directory(world: &World, name: &str, mode: u32) -> PathBuf {
    let path = world.directory().join(name);
    fs::create_dir_all(&path).expect("mkdir");
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("chmod");
    path
}

/// A script that anybody may run.
fn script(path: &Path, text: &str) {
    fs::write(path, text).expect("write");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("chmod");
}

#[test]
fn what_is_never_dialled_is_told_before_anything_runs() {
    let world = World::new();
    let good = format!("{HOST_ALIAS}:80");
    for (host, loopback) in [("localhost", true), ("127.0.0.1", true), ("[::1]", true), ("169.254.169.254", false)] {
        let text = policy_text("/usr/bin/curl", &[&format!("{host}:80"), &good]);
        let policy = world.file("policy.yaml", text);
        let checked = world.role("policy").arg("check").arg(&policy).output().expect(0);
        assert!(checked.stderr.contains("warning: network_policies.test.endpoints[0] allows nothing"), "{checked:?}");
        assert_eq!(checked.stderr.lines().count(), 1, "{checked:?}");
        assert_eq!(checked.stderr.contains(HOST_ALIAS), loopback, "{checked:?}");
        let explain = |file: &Path, host: &str, code| {
            let explain = world.role("policy").arg("explain").arg(file).args(["--host", host, "--port", "80"]);
            explain.output().expect(code).stdout
        };
        let told = explain(&policy, host, 1);
        assert!(told.starts_with("denied: ") && told.contains("next step: "), "{told}");
        assert_eq!(told.contains(HOST_ALIAS), loopback, "{told}");
        // Nobody is told to add what would be added in vain.
        let other = world.policy("other.yaml", "/usr/bin/curl", &["api.example.com:80"]);
        let told = explain(&other, host, 1);
        assert!(!told.contains("add under") && told.contains("never dialled"), "{told}");
        // Control.
        assert!(explain(&policy, HOST_ALIAS, 0).starts_with("allowed"));
        assert!(explain(&other, "other.example.com", 1).contains("add under"));
        let allowed = world.run().arg("--allow").arg(format!("{host}:80")).command(["/bin/true"]).output().expect(2);
        assert!(allowed.stderr.contains("never dials"), "{allowed:?}");
        assert_eq!(allowed.stderr.contains(HOST_ALIAS), loopback, "{allowed:?}");
    }
    // And who runs into it all the same is told as well: at the start, and when it asks.
    let policy = world.policy("policy.yaml", "/usr/bin/curl", &["127.0.0.1:80"]);
    let asked = world.run().policy(policy).shell("curl -sS --noproxy '' http://127.0.0.1/").output();
    let answer: Value = serde_json::from_str(&asked.stdout).unwrap_or_else(|_| panic!("{asked:?}"));
    assert_eq!(answer["error"], "destination_denied");
    assert!(asked.stderr.contains("[policy-doubt]"), "{asked:?}");
    assert!(answer["next_steps"][0].as_str().is_some_and(|step| step.contains(HOST_ALIAS)), "{answer}");
    world.run().args(["--allow", &good]).command(["/bin/true"]).output().expect(0);
}

#[test]
fn a_program_out_of_sight_is_pointed_at_and_let_in() {
    let world = World::new();
    let bin = directory(&world, "home/bin", 0o755);
    let state = directory(&world, "home/state", 0o777);
    let agent = bin.join("my-agent");
    script(&agent, &format!("#!/bin/sh\necho \"hello from $0\"; echo x > {}/made\n", state.display()));
    let covered = world.run().command([&agent]).output().expect(127);
    for part in ["not found", "the sandbox covers it", bin.to_str().expect("text"), "--read", "filesystem_policy"] {
        assert!(covered.stderr.contains(part), "{part}: {covered:?}");
    }
    let mut named = world.run().command(["my-agent"]).build();
    named.env("PATH", format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.display()));
    let (code, told) = said(&mut named);
    assert!(
        code == Some(127) && told.contains(agent.to_str().expect("text")) && told.contains("by that path"),
        "{told}"
    );
    // A link is followed to where it leads.
    let real = directory(&world, "home/share/1.0", 0o755).join("agent");
    fs::rename(&agent, &real).expect("rename");
    symlink(&real, &agent).expect("symlink");
    let covered = world.run().command([&agent]).output().expect(127);
    assert!(covered.stderr.contains("home/share/1.0, where it leads"), "{covered:?}");
    // What is nowhere is not said to be anywhere.
    assert!(!world.run().command(["/nonexistent/agent"]).output().expect(127).stderr.contains("covers"));
    // Let in to read, then to write.
    let home = world.directory().join("home");
    let read = world.run().arg("--read").arg(&home).command([&agent]).output();
    assert!(read.stdout.starts_with("hello from ") && !state.join("made").exists(), "{read:?}");
    world.run().arg("--read").arg(&home).arg("--write").arg(&state).command([&agent]).output().expect(0);
    assert!(state.join("made").exists());
    // Learned with the same grants, the policy has them.
    fs::remove_file(state.join("made")).expect("remove");
    let learned = world.directory().join("learned.yaml");
    let learn = world.run().arg("--learn").arg(&learned).arg("--read").arg(&home).arg("--write").arg(&state);
    learn.command([&agent]).output().expect(0);
    fs::remove_file(state.join("made")).expect("it was made");
    world.run().policy(&learned).command([&agent]).output().expect(0);
    assert!(state.join("made").exists());
    // By the rules that hold for a policy's paths, and not beside one.
    for wrong in [["--write", "/"], ["--write", "/proc"], ["--read", "/nonexistent/place"]] {
        let refused = world.run().args(wrong).command(["/bin/true"]).output().expect(2);
        assert!(refused.stderr.contains(wrong[0]) && refused.stderr.contains(wrong[1]), "{refused:?}");
    }
    let policy = world.policy("policy.yaml", "**", &["api.example.com:80"]);
    for (flag, value, section) in [
        ("--read", "/opt", "filesystem_policy.read_only"),
        ("--write", "/opt", "filesystem_policy.read_write"),
        ("--allow", "a.example.com:443", "network_policies"),
    ] {
        for order in [
            ["--policy", policy.to_str().expect("text"), flag, value],
            [flag, value, "--policy", policy.to_str().expect("text")],
        ] {
            let refused = world.run().args(order).command(["/bin/true"]).output().expect(2);
            assert!(refused.stderr.contains("add it there") && refused.stderr.contains(section), "{refused:?}");
        }
    }
}

/// What the README has people put into their `~/.ssh/config`, with this socket.
fn stanza(socket: &Path) -> String {
    let readme = include_str!("../README.md");
    let (_, rest) = readme.split_once("<<END\n").expect("the stanza's beginning");
    let (stanza, _) = rest.split_once("END\n").expect("its end");
    let executable = supervisor().to_str().expect("text");
    assert!(stanza.contains("/run/user/1000/box.sock"), "{stanza}");
    stanza
        .replace("openshell-supervisor", executable)
        .replace("/run/user/1000/box.sock", socket.to_str().expect("text"))
}

#[test]
fn the_ssh_configuration_of_the_readme_outlives_a_restart() {
    let world = World::new();
    let place = tempfile::Builder::new().prefix("openshell-box-").tempdir_in("/var/tmp").expect("a directory");
    let socket = place.path().join("box.sock");
    let (config, known) = (place.path().join("config"), place.path().join("known_hosts"));
    fs::write(&config, stanza(&socket)).expect("write");
    let ssh = |options: &[&str]| {
        let mut ssh = Command::new("ssh");
        ssh.args(options).arg("-F").arg(&config).args(["-o", "BatchMode=yes", "box", "echo there"]);
        said(ssh.stdin(Stdio::null()))
    };
    let remembering = format!("UserKnownHostsFile={}", known.display());
    let remembering = ["-o", &remembering, "-o", "StrictHostKeyChecking=accept-new"];
    for start in 0..2 {
        let mut sandbox = world.run().arg("--ssh-socket-path").arg(&socket).command(["/bin/sleep", "300"]).spawn();
        eventually("the door is there", || socket.exists());
        assert_eq!(ssh(&[]), (Some(0), "there\n".to_owned()), "start {start}");
        // Control: who remembers the key is refused by the next start.
        assert_eq!(ssh(&remembering).0, Some(if start == 0 { 0 } else { 255 }));
        sandbox.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(sandbox.wait_within(crate::world::PATIENCE).is_some());
    }
    let (_, help) = said(&mut call(&["connect", "--help"]));
    assert!(help.contains("StrictHostKeyChecking=no") && help.contains("UserKnownHostsFile=/dev/null"), "{help}");
}

/// What bash would offer after these words, the last of which is begun.
fn completed(words: &[&str]) -> Vec<String> {
    let script = stdout(&call(&["completions", "bash"]).output().expect("start"));
    let count = words.len() - 1;
    let listed: String = words.iter().map(|word| format!("'{word}' ")).collect();
    let ask = format!(
        "{script}\nCOMP_WORDS=({listed})\nCOMP_CWORD={count}\nfunction=$(complete -p openshell-supervisor)\nfunction=${{function#*-F \
         }}\nfunction=${{function%% *}}\n$function openshell-supervisor \"${{COMP_WORDS[$COMP_CWORD]}}\" \
         \"${{COMP_WORDS[$COMP_CWORD-1]}}\"\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    );
    let output = Command::new("bash").args(["--norc", "-c", &ask]).stdin(Stdio::null()).output().expect("bash");
    stdout(&output).lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_behind_every_role() {
    let program = "openshell-supervisor";
    for (words, expected) in [
        (&[program, "ru"][..], "run"),
        (&[program, "run", "--"], "--allow"),
        (&[program, "run", "--allow", "x:1", "--pol"], "--policy"),
        (&[program, "policy", ""], "check"),
        (&[program, "policy", "explain", "--an"], "--ancestor"),
        (&[program, "render", "--topology", ""], "sidecar"),
        (&[program, "network-init", "--"], "--help"),
        (&[program, "wait-for-tcp", "--"], "--timeout"),
        (&[program, "network,process", "--fe"], "--fence"),
        (&[program, "completions", ""], "bash"),
    ] {
        let offered = completed(words);
        assert!(offered.iter().any(|word| word == expected), "{words:?}: {offered:?}");
    }
    // Control: only what has begun like that is offered.
    assert!(!completed(&[program, "run", "--pol"]).iter().any(|word| word == "--allow"));
}

#[test]
fn doctor_and_run_do_not_mind_where_they_are_called() {
    let world = World::new();
    let place = tempfile::Builder::new().prefix("openshell-cwd-").tempdir_in("/tmp").expect("a directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    chown(place.path(), Some(ORDINARY_USER), Some(ORDINARY_USER)).expect("chown");
    let (_, told) = said(world.role("doctor").by_user().build().current_dir(place.path()));
    assert!(!told.contains("a sandbox cannot be made") && told.contains("refused"), "{told}");
    // A directory that no grant shows is none to start in; one that is granted by its name is.
    for (text, expected) in
        [("include_workdir: false", "/\n"), ("include_workdir: true", &format!("{}\n", place.path().display()))]
    {
        let policy = world.file("policy.yaml", format!("version: 1\nfilesystem_policy: {{{text}}}\n"));
        let run = world.run().by_user().policy(policy).command(["/bin/pwd"]);
        let output = run.build().current_dir(place.path()).output().expect("start");
        assert_eq!(
            (output.status.code(), stdout(&output).as_str()),
            (Some(0), expected),
            "{text}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn grants_that_come_to_nothing_are_told() {
    let world = World::new();
    let work = directory(&world, "work", 0o755);
    let run = || world.run().arg("--workdir").arg(&work).shell("touch made");
    let told = run().output();
    assert!(told.stderr.contains("[workdir-not-writable]") && told.stderr.contains("65534"), "{told:?}");
    assert_ne!(told.code, Some(0));
    // Control: one that is its user's to write.
    fs::set_permissions(&work, fs::Permissions::from_mode(0o777)).expect("chmod");
    assert_eq!(run().output().expect(0).stderr, "");
    // One that it cannot even enter.
    fs::set_permissions(&work, fs::Permissions::from_mode(0o700)).expect("chmod");
    let closed = run().output().expect(125);
    assert!(closed.stderr.contains("may not enter it: ") && closed.stderr.contains("--workdir"), "{closed:?}");
    // Paths that are not there; those of the baseline are in no image all together.
    let policy =
        |paths: &str| world.file("paths.yaml", format!("version: 1\nfilesystem_policy: {{read_only: [{paths}]}}\n"));
    for (paths, absent) in [("/app, /lib32, /nonexistent/data", true), ("/app, /lib32, /usr", false)] {
        let policy = policy(paths);
        let checked = world.role("policy").arg("check").arg(&policy).output().expect(0);
        assert_eq!(checked.stderr.contains("/nonexistent/data is not on this machine"), absent, "{checked:?}");
        assert!(!checked.stderr.contains("/app"), "{checked:?}");
        let ran = world.run().policy(&policy).command(["/bin/true"]).output().expect(0);
        assert_eq!(ran.stderr.contains("[path-absent]"), absent, "{ran:?}");
    }
}

#[test]
fn explain_asks_what_was_meant_and_says_for_whom() {
    let world = World::new();
    let policy = world.file(
        "policy.yaml",
        "version: 1
network_policies:
  tools:
    endpoints: [{host: mcp.example.com, port: 443, path: /mcp, protocol: mcp, rules: [{allow: {tool: search}}]}]
    binaries: [{path: /usr/bin/git}]
  open:
    endpoints: [{host: open.example.com, port: 443}]
    binaries: [{path: '**'}]
  two:
    endpoints:
      - {host: two.example.com, port: 443, path: /a, protocol: mcp, rules: [{allow: {tool: search}}]}
      - {host: two.example.com, port: 443, path: /b, protocol: mcp, rules: [{allow: {tool: search}}]}
    binaries: [{path: '**'}]
",
    );
    let explain = |host: &str, more: &[&str], code: i32| {
        let explain = world.role("policy").arg("explain").arg(&policy).args(["--host", host, "--port", "443"]);
        let outcome = explain.args(more.to_vec()).output().expect(code);
        outcome.stdout + &outcome.stderr
    };
    // The endpoint's only path; where there are two, which one was assumed.
    assert!(explain("mcp.example.com", &["--tool", "search"], 0).contains("request: POST /mcp "));
    assert!(explain("mcp.example.com", &["--tool", "delete"], 1).contains("{tool: delete}"));
    assert!(explain("two.example.com", &["--tool", "search"], 1).contains("ask with --path"));
    assert!(explain("two.example.com", &["--tool", "search", "--path", "/b"], 0).contains("request allowed"));
    // For whom.
    assert!(explain("mcp.example.com", &[], 0).starts_with("allowed for /usr/bin/git only: "));
    assert!(explain("open.example.com", &[], 0).starts_with("allowed: "));
    assert!(explain("mcp.example.com", &["--binary", "/usr/bin/git"], 0).starts_with("allowed: "));
    for flags in [&["--binary", "git"][..], &["--binary", "/usr/bin/git", "--ancestor", "git"]] {
        let told = explain("mcp.example.com", flags, 2);
        assert!(told.contains("absolute path") && told.contains("bin/git"), "{told}");
    }
}

#[test]
fn an_empty_variable_is_none_and_a_wrong_one_is_named() {
    let world = World::new();
    let run = |role: &str, variables: &[(&str, &str)], flags: &[&str]| {
        let command = world.role(role).args(flags.to_vec()).command(["/bin/echo", "it ran"]);
        said(command.build().envs(variables.iter().copied()))
    };
    for variable in [
        "OPENSHELL_LOG_LEVEL",
        "OPENSHELL_SSH_SOCKET_PATH",
        "OPENSHELL_SANDBOX",
        "OPENSHELL_SANDBOX_ID",
        "OPENSHELL_SANDBOX_UID",
        "OPENSHELL_SANDBOX_GID",
        "OPENSHELL_USER_ENVIRONMENT",
        "OPENSHELL_MAIN_PROCESS_SPEC",
    ] {
        for role in ["run", "network,process"] {
            let (code, told) = run(role, &[(variable, "")], &[]);
            assert!(code == Some(0) && told.contains("it ran"), "{variable} {role}: {told}");
        }
    }
    let loud = [("OPENSHELL_LOG_LEVEL", "loud")];
    let (code, told) = run("run", &loud, &[]);
    assert!(code == Some(2) && told.contains("OPENSHELL_LOG_LEVEL") && told.contains("loud"), "{told}");
    // Control: what was typed is blamed on what was typed.
    let (code, told) = run("run", &loud, &["--log-level=louder"]);
    assert!(code == Some(2) && !told.contains("OPENSHELL_LOG_LEVEL") && told.contains("louder"), "{told}");
    assert_eq!(run("run", &loud, &["--log-level", "info"]).0, Some(0));
}

#[test]
fn the_program_goes_by_the_names_of_its_releases() {
    for name in ["openshell-supervisor-linux-amd64", "./openshell-supervisor-0.1", "openshell-supervisor.new"] {
        let output = call(&["policy", "check", "/nonexistent.yaml"]).arg0(name).output().expect("start");
        assert!(
            output.status.code() == Some(1) && stderr(&output).contains("/nonexistent.yaml"),
            "{}",
            stderr(&output)
        );
    }
    // Control: a link that means a role and misses it.
    assert_eq!(call(&["--version"]).arg0("openshell-netwrok").output().expect("start").status.code(), Some(2));
    for (meant, given) in [("\"run\"", "rum"), ("\"network\"", "netwrok"), ("\"doctor\"", "docter")] {
        let (code, told) = said(&mut call(&[given]));
        assert!(code == Some(2) && told.contains(&format!("did you mean {meant}?")), "{told}");
    }
    assert!(!said(&mut call(&["something-else"])).1.contains("did you mean"));
}

#[test]
fn what_was_never_reached_is_not_learned() {
    let world = World::new();
    let _origin = crate::origins::Origin::start(&world, 80, crate::origins::hello());
    let learned = world.directory().join("learned.yaml");
    let learn = |script: &str| world.run().arg("--learn").arg(&learned).shell(script).output();
    learn(
        "curl -sS http://api.example.com/there; curl -sS http://api.exmaple.com/misspelt; curl -sS http://api.example.com:81/closed",
    );
    let text = fs::read_to_string(&learned).expect("a policy");
    let read: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    assert!(read.iter().any(|line| line.contains("/there")), "{text}");
    for gone in ["exmaple", "81", "misspelt", "closed"] {
        assert!(!read.iter().any(|line| line.contains(gone)), "{gone}\n{text}");
    }
    assert!(
        text.contains("# Left out, since no connection to it could be made:") && text.contains("exmaple"),
        "{text}"
    );
    world.role("policy").arg("check").arg(&learned).output().expect(0);
    // And where nothing was, nothing goes out.
    fs::remove_file(&learned).expect("remove");
    learn("curl -sS http://api.exmaple.com/");
    let text = fs::read_to_string(&learned).expect("a policy");
    assert!(text.contains("network_policies: {}") && text.contains("exmaple"), "{text}");
    world.role("policy").arg("check").arg(&learned).output().expect(0);
}

#[test]
fn a_volume_that_is_not_mounted_is_missed() {
    let path = format!("/openshell-nowhere-{}", std::process::id());
    let (code, told) = said(call(&["sideload"]).arg(format!("{path}/bin/openshell-supervisor")));
    assert!(code == Some(125) && told.contains("mount the volume there"), "{told}");
    assert!(!Path::new(&path).exists());
    let world = World::new();
    // Control: with the volume there, what is missing in it is made.
    let volume = directory(&world, "volume", 0o755);
    let copy = volume.join("bin/openshell-supervisor");
    assert_eq!(said(call(&["sideload"]).arg(&copy)).0, Some(0));
    assert!(copy.exists());
}

#[test]
fn who_reaches_in_is_told_what_is_in_the_way() {
    let world = World::new();
    let place = tempfile::Builder::new().prefix("openshell-door-").tempdir_in("/var/tmp").expect("a directory");
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    let socket = place.path().join("box.sock");
    let door = socket.to_str().expect("text").to_owned();
    for role in [&["exec", "--", "true"][..], &["connect"], &["upload", "/etc/hostname"], &["forward", "8000"]] {
        let mut command = call(&role[..1]);
        command.arg("--ssh-socket-path").arg(&door).args(&role[1..]);
        let (code, told) = said(&mut command);
        assert!(
            code == Some(125) && told.contains("no sandbox listens there; start one with --ssh-socket-path"),
            "{told}"
        );
    }
    let _sandbox = world.run().arg("--ssh-socket-path").arg(&socket).command(["/bin/sleep", "300"]).spawn();
    eventually("the door is there", || socket.exists());
    let role = |name: &str, arguments: &[&str]| {
        let mut command = call(&[name, "--ssh-socket-path", &door]);
        command.args(arguments);
        command
    };
    let (code, told) = said(role("exec", &["true"]).uid(ORDINARY_USER));
    assert!(code == Some(125) && told.contains("it belongs to uid 0"), "{told}");
    // With and without dashes, as `run` takes it.
    for words in [&["echo", "-n", "in"][..], &["--", "echo", "-n", "in"]] {
        assert_eq!(said(&mut role("exec", words)), (Some(0), "in".to_owned()));
    }
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let port = taken.local_addr().expect("an address").port();
    let (code, told) = said(&mut role("forward", &[&format!("{port}:8000")]));
    for part in [&format!("127.0.0.1:{port}"), "something listens there already", "0:8000"] {
        assert!(code == Some(125) && told.contains(part), "{part}: {told}");
    }
    // Paths are whole, and whose they are.
    let here = place.path().join("here");
    let (code, told) = said(&mut role("download", &["--into", here.to_str().expect("text"), "/etc/shadow"]));
    assert!(code == Some(1) && told.contains("sandbox:/etc/shadow: "), "{told}");
    let (code, told) = said(&mut role("upload", &["--into", "/etc", "/etc/hostname"]));
    assert!(code == Some(1) && told.contains("sandbox:/etc/hostname: "), "{told}");
    // Control: where the workload may write, it arrives.
    assert_eq!(said(&mut role("upload", &["--into", "/tmp/openshell-newcomer", "/etc/hostname"])).0, Some(0));
    assert_eq!(said(&mut role("exec", &["rm", "-r", "/tmp/openshell-newcomer"])).0, Some(0));
}

#[test]
fn what_is_wrong_in_a_policy_is_told_with_what_is_right() {
    let world = World::new();
    let entry = |text: &str| format!("version: 1\nnetwork_policies:\n  a:\n    {text}\n");
    for (text, expected) in [
        ("version: 2\n".to_owned(), "expected 1, found 2; write 1: this build knows no other"),
        ("version: '1'\n".to_owned(), "without quotes"),
        (
            entry("endpoints: [{host: a.example.com, port: 99999}]"),
            "expected a number from 1 to 65535, found 99999; write a number of that range",
        ),
        (entry("binaries: [/usr/bin/curl]"), "write {path: /usr/bin/curl}"),
        (entry("endpoints: [{host: 10.0.0.0/8, port: 443}]"), "'allowed_ips'"),
    ] {
        let file = world.file("wrong.yaml", &text);
        let told = world.role("policy").arg("check").arg(&file).output().expect(1);
        assert!(told.stderr.contains(expected), "{text}: {}", told.stderr);
        assert_eq!(told.stderr.lines().count(), 1, "{}", told.stderr);
    }
    // A file that the command could rewrite is pointed to a place where it cannot.
    let work = directory(&world, "work", 0o777);
    fs::write(work.join("policy.yaml"), "version: 1\nfilesystem_policy: {include_workdir: true}\n").expect("write");
    let run = world.run().arg("--workdir").arg(&work).policy(work.join("policy.yaml")).command(["/bin/true"]);
    assert!(run.output().expect(125).stderr.contains("~/.config/openshell/"));
    // Several at once, and what comes from a pipe.
    let good = world.policy("good.yaml", "/usr/bin/curl", &["api.example.com:443"]);
    let bad = world.file("bad.yaml", "version: 3\n");
    let both = world.role("policy").arg("check").args([&good, &bad]).output().expect(1);
    assert!(both.stdout.contains("good.yaml: valid") && both.stderr.contains("bad.yaml:1:10"), "{both:?}");
    for (file, code, part) in [(&good, 0, "standard input: valid"), (&bad, 1, "standard input:1:10: ")] {
        let mut piped = call(&["policy", "check", "-"]);
        let (was, told) = said(piped.stdin(fs::File::open(file).expect("open")));
        assert!(was == Some(code) && told.contains(part), "{told}");
    }
}

#[test]
fn every_page_that_a_manual_page_names_is_there() {
    let page = |name: &str| said(&mut call(&["man", name]));
    let (_, policy) = page("policy");
    for name in ["policy-check", "policy-explain"] {
        assert!(policy.replace('\\', "").contains(name), "{policy}");
        let (code, text) = page(name);
        assert!(code == Some(0) && text.contains(".TH") && text.contains("FILE"), "{text}");
    }
    for nothing in ["policy-nothing", "policy-", "nothing-check"] {
        assert_eq!(page(nothing).0, Some(2), "{nothing}");
    }
}
