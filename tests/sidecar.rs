//! Promises 23.x: the two supervisors of a sidecar pod.

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::pod::{PROXY_GROUP, Pod, SANDBOX, child_of};
use crate::world::{Daemon, Outcome, World, eventually, supervisor};

/// What one side may take to see that the other is gone, and to be gone itself. The promise is a second; a busy machine
/// may need to run both first.
const COUPLED: Duration = Duration::from_secs(3);

/// The workload's supervisor with a shell script as the workload.
fn agent(pod: &Pod<'_>, script: &str) -> Daemon {
    let mut command = pod.process_command();
    command.args(["/bin/sh", "-c", script]).stderr(Stdio::piped());
    Daemon::spawn(command)
}

fn finished(mut daemon: Daemon) -> Outcome {
    let started = Instant::now();
    let status = daemon.wait_within(crate::world::PATIENCE).expect("its end");
    let mut outcome =
        Outcome { code: status.code(), stdout: String::new(), stderr: String::new(), took: started.elapsed() };
    daemon.child().stdout.take().expect("piped").read_to_string(&mut outcome.stdout).expect("stdout");
    daemon.child().stderr.take().expect("piped").read_to_string(&mut outcome.stderr).expect("stderr");
    outcome
}

fn signal(pid: i32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).expect("kill");
}

const POLICY: &str = "\
version: 1
filesystem_policy: {include_workdir: true, read_only: [/usr, /lib, /etc]}
network_policies:
  test:
    endpoints: [{host: api.example.com, port: 80, protocol: rest, access: read-only}]
    binaries: [{path: /usr/bin/curl}]
";

/// A page at port 80 of the origin, for GET and POST.
pub fn web(world: &World) -> Daemon {
    let script = world.file("web.py", "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n def do_GET(s):\n  s.send_response(200); s.end_headers(); s.wfile.write(b'reached')\n do_POST = do_GET\nh.ThreadingHTTPServer(('', 80), H).serve_forever()\n");
    let daemon = world.origin_program("python3", &[script.to_str().expect("UTF-8")]);
    eventually("the origin listens", || {
        world.in_machine(|| std::net::TcpStream::connect((crate::world::ORIGIN_V4, 80)).is_ok())
    });
    daemon
}

#[test]
fn the_workload_runs_under_the_policy_of_the_other_container() {
    let world = World::new();
    let _web = web(&world);
    let pod = Pod::new(&world);
    let mut network = pod.network(POLICY);
    let script = "curl -sS http://api.example.com/; curl -sS -d x http://api.example.com/; \
                  python3 -c 'import urllib.request as u; print(u.urlopen(\"http://api.example.com/\").status)' 2>&1 | tail -1; \
                  grep -E '^(NoNewPrivs|Seccomp|CapBnd|Uid|Gid)' /proc/self/status; ls /var/tmp 2>&1; \
                  head -1 $SSL_CERT_FILE; echo $https_proxy; exit 7";
    let outcome = finished(agent(&pod, script)).expect(7);
    let text = &outcome.stdout;
    for expected in [
        // Allowed, denied by method, denied by program.
        "reached",
        "does not allow POST /",
        "403",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "CapBnd:\t0000000000000000",
        "Uid:\t4242\t4242\t4242\t4242",
        "Gid:\t4242\t4242\t4242\t4242",
        "'/var/tmp': Permission denied",
        "-----BEGIN CERTIFICATE-----",
        "http://127.0.0.1:3128",
    ] {
        assert!(text.contains(expected), "{expected}: {outcome:?}");
    }
    // A normal end is one of both.
    assert_eq!(network.wait_within(COUPLED).and_then(|status| status.code()), Some(0));
    assert!(!pod.socket().exists());
}

#[test]
fn either_side_s_end_is_the_other_s_and_the_workload_s() {
    let world = World::new();
    let pod = Pod::new(&world);
    for kill_network in [true, false] {
        let mut network = pod.network(POLICY);
        let mut process = agent(&pod, "(setsid sleep 7654321 &); sleep 7654321");
        eventually("the workload runs", || pod.running("^sleep 7654321") >= 2);
        let begin = Instant::now();
        let (killed, other) =
            if kill_network { (child_of(&network), &mut process) } else { (child_of(&process), &mut network) };
        signal(killed, Signal::SIGKILL);
        assert_eq!(other.wait_within(COUPLED).and_then(|status| status.code()), Some(125));
        while pod.running("^sleep 7654321") > 0 {
            assert!(begin.elapsed() < COUPLED, "the workload outlives its supervisors");
        }
        // Both may come again, in any order.
        let mut process = agent(&pod, "echo again");
        std::thread::sleep(Duration::from_millis(100));
        let _network = Daemon::spawn(pod.network_command(POLICY));
        assert_eq!(process.wait_within(COUPLED).and_then(|status| status.code()), Some(0));
    }
}

#[test]
fn an_init_that_is_killed_leaves_nothing_of_the_workload() {
    let world = World::new();
    let pod = Pod::new(&world);
    for door in [true, false] {
        let mut network = pod.network(POLICY);
        let mut command = pod.process_command();
        // Whoever is let in may be at the workload's output, which is waited for; here somebody writes on and on.
        let script = "(setsid sh -c 'while :; do echo on; sleep 0.1; done' 7654323 &); exec sleep 7654323";
        if door {
            command = pod.container(SANDBOX, SANDBOX, "-all", supervisor().to_str().expect("UTF-8"));
            command.arg("--mode=process").arg("--control-socket").arg(pod.socket());
            command.args(["--workdir", "/tmp", "--ssh-socket-path", "@door-of-the-test", "--"]);
        }
        command.args(["/bin/sh", "-c", script]).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = Daemon::spawn(command);
        eventually("both run", || pod.running("7654323") >= 2);
        let supervisor = child_of(&process);
        let children = fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).expect("children");
        let init = children.trim().parse().expect("one child");
        let begin = Instant::now();
        signal(init, Signal::SIGKILL);
        assert_eq!(process.wait_within(COUPLED).and_then(|status| status.code()), Some(137), "door: {door}");
        assert_eq!(network.wait_within(COUPLED).and_then(|status| status.code()), Some(0), "door: {door}");
        while pod.running("7654323") > 0 {
            assert!(begin.elapsed() < COUPLED, "door: {door}: the workload outlives its sandbox");
        }
    }
    // Control: the init alone, without a supervisor that adopts what it leaves, would leave it.
    let orphan = "(setsid sleep 7654324 &); sleep 0.3; kill -9 $$";
    let mut alone = pod.container(SANDBOX, SANDBOX, "-all", "/bin/sh");
    alone.args(["-c", orphan]);
    let mut alone = Daemon::spawn(alone);
    alone.wait_within(COUPLED).expect("its end");
    assert_eq!(pod.running("^sleep 7654324"), 1);
}

#[test]
fn a_workload_that_cannot_be_started_is_told_to_the_proxy() {
    let world = World::new();
    let pod = Pod::new(&world);
    for (program, code) in [("/nowhere/at/all", 127), ("/etc/passwd", 126)] {
        let mut network = pod.network(POLICY);
        let mut command = pod.process_command();
        command.arg(program).stderr(Stdio::piped());
        assert_eq!(finished(Daemon::spawn(command)).code, Some(code), "{program}");
        assert_eq!(network.wait_within(COUPLED).and_then(|status| status.code()), Some(0), "{program}");
    }
}

#[test]
fn the_workload_is_told_the_port_that_the_kernel_chose() {
    let world = World::new();
    let _web = web(&world);
    let pod = Pod::new(&world);
    let mut command = pod.network_command(POLICY);
    command.args(["--bind", "127.0.0.1:0"]);
    let _network = Daemon::spawn(command);
    eventually("network waits for the workload's supervisor", || pod.socket().exists());
    let outcome = finished(agent(&pod, "curl -sS http://api.example.com/")).expect(0);
    assert_eq!(outcome.stdout, "reached");
}

#[test]
fn what_the_workload_s_container_sees_decides_nothing_and_is_no_secret() {
    let world = World::new();
    let pod = Pod::new(&world);
    let (shown, own) = (pod.socket().with_file_name("shown"), world.file("own", "user:password\n"));
    fs::write(&shown, POLICY).expect("write");
    let given = |arguments: &[&str]| {
        let mut command =
            pod.container(0, PROXY_GROUP, "-all,+sys_ptrace,+dac_read_search", supervisor().to_str().expect("UTF-8"));
        command.args(["network", "--control-socket"]).arg(pod.socket()).args(arguments);
        command.args(["--sandbox-uid", &SANDBOX.to_string(), "--sandbox-gid", &SANDBOX.to_string()]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Daemon::spawn(command)
    };
    let policy = world.file("policy.yaml", POLICY).display().to_string();
    let upstream = ["--upstream-proxy", "http://10.99.0.2:3128", "--upstream-proxy-auth-allow-insecure"];
    let (shown, own) = (shown.display().to_string(), own.display().to_string());
    let credentials = |file| [&["--policy", &policy][..], &upstream, &["--upstream-proxy-auth-file", file]].concat();
    // The same volume, mounted once more.
    let again = world.directory().join("again");
    fs::create_dir(&again).expect("a directory");
    let shared = pod.socket().parent().expect("a directory").to_owned();
    let mut mount = pod.container(0, 0, "-all,+sys_admin", "mount");
    assert!(mount.arg("--bind").args([&shared, &again]).status().expect("mount").success());
    let elsewhere = again.join("shown").display().to_string();
    for (arguments, content) in [
        (vec!["--policy", &shown], POLICY),
        (vec!["--policy", &elsewhere], POLICY),
        (credentials(&shown), "user:password\n"),
    ] {
        fs::write(&shown, content).expect("write");
        let outcome = finished(given(&arguments));
        assert!(outcome.code == Some(125) && outcome.stderr.contains("into this container alone"), "{outcome:?}");
    }
    // Control: from elsewhere both are taken.
    let _network = given(&credentials(&own));
    eventually("network waits for the workload's supervisor", || pod.socket().exists());
    finished(agent(&pod, "true")).expect(0);
}

#[test]
fn a_proxy_that_is_told_to_end_lets_the_workload_end_first() {
    let world = World::new();
    let _web = web(&world);
    let pod = Pod::new(&world);
    let mut network = pod.network(POLICY);
    let process = agent(&pod, "trap 'curl -sS http://api.example.com/; exit 3' TERM; echo up; sleep 60 & wait");
    eventually("the workload runs", || pod.running("^sleep 60") == 1);
    signal(child_of(&network), Signal::SIGTERM);
    let outcome = finished(process);
    assert!(outcome.code == Some(3) && outcome.stdout.contains("reached"), "{outcome:?}");
    assert_eq!(network.wait_within(COUPLED).and_then(|status| status.code()), Some(0));
}

#[test]
fn nobody_but_a_container_s_entrypoint_gets_the_control_channel() {
    let world = World::new();
    let pod = Pod::new(&world);
    let mut command = pod.network_command(POLICY);
    command.stderr(Stdio::piped());
    let mut network = Daemon::spawn(command);
    eventually("network waits", || pod.socket().exists());
    // What a workload that outlived its supervisor could do: the same user, the same executable, and a parent.
    let ours = format!(
        "{} --mode=process --wait 0.3 --control-socket {} -- /bin/echo launched",
        supervisor().display(),
        pod.socket().display()
    );
    let mut workload = pod.container(SANDBOX, SANDBOX, "-all", "/bin/sh");
    workload.args(["-c", &format!("{ours}; exit $?")]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finished(Daemon::spawn(workload));
    assert!(outcome.code == Some(125) && !outcome.stdout.contains("launched"), "{outcome:?}");
    // Another user of the pod does not reach the socket.
    let mut other = pod.container(SANDBOX + 1, SANDBOX + 1, "-all", supervisor().to_str().expect("UTF-8"));
    other.args(["--mode=process", "--wait", "0.3", "--control-socket"]).arg(pod.socket()).args(["--", "/bin/true"]);
    other.stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finished(Daemon::spawn(other));
    assert!(outcome.code == Some(125) && outcome.stderr.contains("Permission denied"), "{outcome:?}");
    // Control: an entrypoint is let in, and the door closes behind it.
    let mut process = agent(&pod, "sleep 60");
    eventually("the workload runs", || pod.running("^sleep 60") == 1);
    assert!(!pod.socket().exists());
    signal(child_of(&process), Signal::SIGTERM);
    process.wait_within(COUPLED).expect("its end");
    network.wait_within(COUPLED).expect("its end");
    let mut told = String::new();
    network.child().stderr.take().expect("piped").read_to_string(&mut told).expect("stderr");
    assert!(told.contains("only a container's entrypoint"), "{told}");
}

/// Connects by a child that is gone when it is looked at, and says hello itself; as often as it can for a while.
const GHOSTS: &str = r#"
import json, os, signal, socket, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
hello = json.dumps({"type": "hello", "version": 1, "trusted": {"everybody": "", "added": "", "notes": []}}).encode()
tries, until = 0, time.time() + 4
while time.time() < until:
    tries += 1
    s = socket.socket(socket.AF_UNIX); s.settimeout(2)
    if os.fork() == 0:
        s.connect(sys.argv[1]); os._exit(0)
    try:
        s.sendall(len(hello).to_bytes(4, 'big') + hello)
        answer = s.recv(4096)
    except OSError: continue
    if b'state' in answer: print('ADMITTED', tries)
print('tried', tries > 100)
"#;

#[test]
fn a_process_that_is_gone_is_no_entrypoint() {
    let world = World::new();
    let pod = Pod::new(&world);
    let _network = pod.network(POLICY);
    let mut ghosts = pod.container(SANDBOX, SANDBOX, "-all", "/bin/sh");
    let script = world.file("ghosts.py", GHOSTS);
    ghosts.args(["-c", &format!("python3 {} {}; true", script.display(), pod.socket().display())]);
    ghosts.stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finished(Daemon::spawn(ghosts));
    assert_eq!(outcome.stdout, "tried True\n", "{outcome:?}");
    // Control: the door is open, and the entrypoint gets in.
    finished(agent(&pod, "true")).expect(0);
}

#[test]
fn a_long_line_of_processes_ends_with_its_supervisors() {
    let world = World::new();
    let pod = Pod::new(&world);
    let network = pod.network(POLICY);
    // Each executes anew: of memory that is shared through 300 forks the kernel takes 2 s to be rid, whoever ends them.
    let deep = "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nleft = int(sys.argv[1])\nif left: \
                os.posix_spawn(\"/usr/bin/python3\", [\"python3\", \"-c\", sys.orig_argv[2], str(left - 1)], os.environ)\n\
                time.sleep(7654322)";
    let mut process = agent(&pod, &format!("exec python3 -c '{deep}' 300"));
    eventually("the line stands", || pod.running("7654322") >= 300);
    signal(child_of(&network), Signal::SIGKILL);
    assert_eq!(process.wait_within(COUPLED).and_then(|status| status.code()), Some(125));
    let begin = Instant::now();
    while pod.running("^python3 -c.*7654322") > 0 {
        assert!(begin.elapsed() < COUPLED, "{} of it are left", pod.running("^python3 -c.*7654322"));
    }
}

#[test]
fn what_would_blur_the_two_ends_the_start() {
    let world = World::new();
    let pod = Pod::new(&world);
    let refused = |user: u32, group: u32, sandbox: [&str; 2], words: &str| {
        let mut command =
            pod.container(user, group, "-all,+sys_ptrace,+dac_read_search", supervisor().to_str().expect("UTF-8"));
        command.args(["network", "--control-socket"]).arg(pod.socket());
        command.args(["--sandbox-uid", sandbox[0], "--sandbox-gid", sandbox[1]]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let outcome = finished(Daemon::spawn(command));
        assert!(outcome.code == Some(125) && outcome.stderr.contains(words), "{words}: {outcome:?}");
    };
    refused(SANDBOX, PROXY_GROUP, ["4242", "4242"], "the same uid");
    refused(0, SANDBOX, ["4242", "4242"], "the same gid");
    refused(0, PROXY_GROUP, ["0", "4242"], "the workload's uid is 0");
    refused(0, 0, ["4242", "4242"], "the proxy's gid is 0");
    // The workload's supervisor has no privilege to give up.
    let mut root = pod.container(0, 0, "-all", supervisor().to_str().expect("UTF-8"));
    root.args(["process", "--wait", "0.1", "--", "/bin/true"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finished(Daemon::spawn(root));
    assert!(outcome.code == Some(125) && outcome.stderr.contains("runAsUser"), "{outcome:?}");
    // Nobody answers: it ends in time and says where to look.
    let mut alone = pod.container(SANDBOX, SANDBOX, "-all", supervisor().to_str().expect("UTF-8"));
    alone.args(["process", "--wait", "0.2", "--control-socket"]).arg(pod.socket()).args(["--", "/bin/true"]);
    alone.stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finished(Daemon::spawn(alone));
    assert!(outcome.code == Some(125) && outcome.stderr.contains("is this its --control-socket"), "{outcome:?}");
    // Control: with users and groups that differ, both start.
    let _network = pod.network(POLICY);
    finished(agent(&pod, "true")).expect(0);
}

#[test]
fn without_a_fence_there_is_no_workload() {
    let world = World::new();
    let pod = Pod::new(&world);
    pod.unfence();
    let _network = pod.network(POLICY);
    let outcome = finished(agent(&pod, "echo launched"));
    assert!(outcome.code == Some(125) && outcome.stderr.contains("go around the proxy"), "{outcome:?}");
    assert!(!outcome.stdout.contains("launched"), "{outcome:?}");
    // Control: the operator's word that somebody else sees to it, and a fence.
    let _network = pod.network(POLICY);
    let mut command = pod.container(SANDBOX, SANDBOX, "-all", supervisor().to_str().expect("UTF-8"));
    command.args(["process", "--fence=elsewhere", "--control-socket"]).arg(pod.socket());
    command.args(["--", "/bin/echo", "launched"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    assert!(finished(Daemon::spawn(command)).expect(0).stdout.contains("launched"));
    assert!(pod.init().status().expect("network-init").success());
    let _network = pod.network(POLICY);
    finished(agent(&pod, "true")).expect(0);
}

/// What `process` may take when nothing happens, in KiB.
pub const IDLE_PROCESS: u64 = 4 * 1024;

/// Resident memory of a process, in KiB.
pub fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn idle_supervisors_are_small() {
    let world = World::new();
    let pod = Pod::new(&world);
    let network = pod.network(POLICY);
    let process = agent(&pod, "sleep 60");
    eventually("the workload runs", || pod.running("^sleep 60") == 1);
    let (network, process) = (child_of(&network), child_of(&process));
    let are_small = || {
        let (network, process) = (resident(network), resident(process));
        println!("idle: network {network} KiB, process {process} KiB");
        network <= 10 * 1024 && process <= IDLE_PROCESS
    };
    // Idle is what they are some seconds after the start, and stay.
    eventually("the supervisors are small", are_small);
    std::thread::sleep(Duration::from_secs(1));
    assert!(are_small());
}
