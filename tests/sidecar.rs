//! Promises 23.x: the two supervisors of a sidecar pod, as processes of one network and one process namespace. Each is
//! started as a container runtime does it: from outside, so that it has no parent in there.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::world::{Daemon, Outcome, World, eventually, supervisor};

/// The sandbox's user and group.
const SANDBOX: u32 = 4242;

/// The proxy's group, as contract and driver have it.
const PROXY_GROUP: u32 = 1337;

/// What one side may take to see that the other is gone, and to be gone itself. The promise is a second; a busy machine
/// may need to run both first.
const COUPLED: Duration = Duration::from_secs(3);

/// A pod: namespaces, directories, and no container yet.
struct Pod<'w> {
    world: &'w World,
    /// The namespaces' first process, as a pod's pause container.
    _pause: Daemon,
    /// It again, as the machine sees it.
    first: i32,
    state: PathBuf,
}

impl<'w> Pod<'w> {
    fn new(world: &'w World) -> Self {
        let state = world.directory().join("state");
        fs::create_dir(&state).expect("mkdir");
        chown(&state, Some(0), Some(SANDBOX)).expect("chown");
        fs::set_permissions(&state, fs::Permissions::from_mode(0o2750)).expect("chmod");
        let mut command = world.machine_program("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", "echo ready; exec sleep infinity"]).stdout(Stdio::piped());
        let mut pause = Daemon::spawn(command);
        let mut line = String::new();
        BufReader::new(pause.child().stdout.take().expect("piped")).read_line(&mut line).expect("read");
        let children = format!("/proc/{0}/task/{0}/children", pause.pid());
        let first = fs::read_to_string(children).expect("children").trim().parse().expect("one child");
        Self { world, _pause: pause, first, state }
    }

    fn socket(&self) -> PathBuf {
        self.state.join("control.sock")
    }

    /// A program of one of its containers, as a runtime starts it.
    fn container(&self, user: u32, group: u32, capabilities: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.to_string(), "--pid", "--mount", "--net", "--"]);
        command.args(["setpriv", "--reuid", &user.to_string(), "--regid", &group.to_string(), "--clear-groups"]);
        command.args(["--inh-caps=-all", "--bounding-set", capabilities, "--no-new-privs", program]);
        command.current_dir("/").stdin(Stdio::null()).env_remove("OPENSHELL_LOG_LEVEL");
        command
    }

    fn network_command(&self, policy: &str) -> Command {
        let capabilities = "-all,+sys_ptrace,+dac_read_search";
        let mut command = self.container(0, PROXY_GROUP, capabilities, supervisor().to_str().expect("UTF-8"));
        command.arg("network").arg("--policy").arg(self.world.file("policy.yaml", policy));
        command.arg("--control-socket").arg(self.socket());
        command.args(["--sandbox-uid", &SANDBOX.to_string(), "--sandbox-gid", &SANDBOX.to_string()]);
        command.args(["--admin-bind", "127.0.0.1:9100"]);
        command
    }

    fn network(&self, policy: &str) -> Daemon {
        let daemon = Daemon::spawn(self.network_command(policy));
        eventually("network waits for the workload's supervisor", || self.socket().exists());
        daemon
    }

    /// The workload's supervisor, with a shell script as the workload.
    fn process_command(&self, script: &str) -> Command {
        let mut command = self.container(SANDBOX, SANDBOX, "-all", supervisor().to_str().expect("UTF-8"));
        command.arg("--mode=process").arg("--control-socket").arg(self.socket());
        command.args(["--workdir", "/tmp", "--", "/bin/sh", "-c", script]);
        command
    }

    fn process(&self, script: &str) -> Daemon {
        let mut command = self.process_command(script);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Daemon::spawn(command)
    }

    fn run(&self, script: &str) -> Outcome {
        finished(self.process(script))
    }

    /// Processes of the pod that have this in their command line.
    fn running(&self, words: &str) -> usize {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.first.to_string(),
            "--pid",
            "--mount",
            "--",
            "pgrep",
            "--full",
            "--count",
            words,
        ]);
        let output = command.output().expect("pgrep (package procps)");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
    }
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

/// The processes that nsenter(1) has started: it stays in between.
fn child_of(daemon: &Daemon) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    fs::read_to_string(children).expect("children").trim().parse().expect("one child")
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

fn web(world: &World) -> Daemon {
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
                  grep -E '^(NoNewPrivs|Seccomp|CapBnd|Uid|Gid)' /proc/self/status; cat /root/x /var/tmp/x 2>&1; \
                  head -1 $SSL_CERT_FILE; echo $https_proxy; exit 7";
    let outcome = pod.run(script).expect(7);
    let text = &outcome.stdout;
    for expected in [
        // Allowed, denied by method, denied by program.
        "reached",
        "no rule of network_policies.test",
        "403",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "CapBnd:\t0000000000000000",
        "Uid:\t4242\t4242\t4242\t4242",
        "Gid:\t4242\t4242\t4242\t4242",
        "/var/tmp/x: Permission denied",
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
        let mut process = pod.process("(setsid sleep 7654321 &); sleep 7654321");
        eventually("the workload runs", || pod.running("sleep 7654321") >= 2);
        let begin = Instant::now();
        let (killed, other) =
            if kill_network { (child_of(&network), &mut process) } else { (child_of(&process), &mut network) };
        signal(killed, Signal::SIGKILL);
        assert_eq!(other.wait_within(COUPLED).and_then(|status| status.code()), Some(125));
        while pod.running("sleep 7654321") > 0 {
            assert!(begin.elapsed() < COUPLED, "the workload outlives its supervisors");
        }
        // Both may come again, in any order.
        let mut process = pod.process("echo again");
        std::thread::sleep(Duration::from_millis(100));
        let _network = pod.network(POLICY);
        assert_eq!(process.wait_within(COUPLED).and_then(|status| status.code()), Some(0));
    }
}

#[test]
fn a_proxy_that_is_told_to_end_lets_the_workload_end_first() {
    let world = World::new();
    let _web = web(&world);
    let pod = Pod::new(&world);
    let mut network = pod.network(POLICY);
    let process = pod.process("trap 'curl -sS http://api.example.com/; exit 3' TERM; echo up; sleep 60 & wait");
    eventually("the workload runs", || pod.running("sleep 60") == 1);
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
    let mut process = pod.process("sleep 60");
    eventually("the workload runs", || pod.running("sleep 60") == 1);
    assert!(!pod.socket().exists());
    signal(child_of(&process), Signal::SIGTERM);
    process.wait_within(COUPLED).expect("its end");
    network.wait_within(COUPLED).expect("its end");
    let mut told = String::new();
    network.child().stderr.take().expect("piped").read_to_string(&mut told).expect("stderr");
    assert!(told.contains("only a container's entrypoint"), "{told}");
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
    refused(SANDBOX, PROXY_GROUP, ["4242", "4242"], "a user of its own");
    refused(0, SANDBOX, ["4242", "4242"], "a group of its own");
    refused(0, PROXY_GROUP, ["0", "4242"], "a user of its own");
    refused(0, 0, ["4242", "4242"], "group 0");
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
    assert!(outcome.code == Some(125) && outcome.stderr.contains("`network` container"), "{outcome:?}");
    // Control: with users and groups that differ, both start.
    let _network = pod.network(POLICY);
    pod.run("true").expect(0);
}

#[test]
fn idle_supervisors_are_small() {
    let world = World::new();
    let pod = Pod::new(&world);
    let network = pod.network(POLICY);
    let process = pod.process("sleep 60");
    eventually("the workload runs", || pod.running("sleep 60") == 1);
    let resident = |pid: i32| -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    let (network, process) = (resident(child_of(&network)), resident(child_of(&process)));
    println!("idle: network {network} KiB, process {process} KiB");
    assert!(network <= 10 * 1024 && process <= 4 * 1024, "network {network} KiB, process {process} KiB");
}
