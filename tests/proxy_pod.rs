//! Promises 29.x: a proxy in a pod of its own.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nix::sys::signal::Signal;
use openshell_supervisor::attest::{Attested, Key, Session, Statement, open};
use openshell_supervisor::attribution::{Executable, Program};

use crate::pod::child_of;
use crate::sidecar::{IDLE_PROCESS, resident, web};
use crate::trust::operators_ca;
use crate::two_pods::{PROXY_V4, PROXY_V6, Pods, SANDBOX, container, finished};
use crate::world::{Daemon, Outcome, PATIENCE, World, eventually, supervisor};

/// curl may reach the page, and no other program.
const POLICY: &str = "\
version: 1
filesystem_policy: {include_workdir: true, read_only: [/usr, /lib, /etc]}
network_policies:
  test:
    endpoints: [{host: api.example.com, port: 80}]
    binaries: [{path: /usr/bin/curl}]
";

/// A script as the workload, under [`POLICY`], run to its end.
fn run(pods: &Pods<'_>, keyed: bool, flags: &[&str], script: &str) -> Outcome {
    let mut command = pods.process(POLICY, keyed, flags);
    command.args(["/bin/sh", "-c", script]);
    finished(Daemon::spawn(command))
}

/// Ends a daemon and returns what it told.
fn told(mut daemon: Daemon) -> String {
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    let child = fs::read_to_string(children).unwrap_or_default().trim().parse().unwrap_or(daemon.pid());
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child), Signal::SIGTERM).expect("kill");
    daemon.wait_within(PATIENCE).expect("its end");
    let mut text = String::new();
    daemon.child().stderr.take().expect("piped").read_to_string(&mut text).expect("stderr");
    text
}

/// Lines of a daemon's output, as they come.
fn lines(daemon: &mut Daemon) -> Receiver<String> {
    let output = daemon.child().stdout.take().expect("piped");
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

/// Waits for a line that says this.
#[track_caller]
fn until(lines: &Receiver<String>, words: &str) -> String {
    let mut heard = Vec::new();
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(20)) {
        if line.contains(words) {
            return line;
        }
        heard.push(line);
    }
    panic!("never heard {words:?}: {heard:?}");
}

const CURL: &str = "curl -sS -o /dev/null -w '%{http_code}\\n' http://api.example.com/";

#[test]
fn two_pods_are_one_sandbox() {
    let world = World::new();
    let _web = web(&world);
    let pods = Pods::new(&world, operators_ca(&world).0);
    let network = pods.network(POLICY, true);
    let script = "curl -sS http://api.example.com/; echo; curl -sS http://other.example.com/; \
                  python3 -c 'import urllib.request as u; print(u.urlopen(\"http://api.example.com/\").status)' 2>&1 | tail -1; \
                  python3 -c 'import urllib.request as u, urllib.error as e\ntry: u.urlopen(\"http://api.example.com/\")\n\
                  except e.HTTPError as x: print(x.read().decode())'; \
                  grep -E '^(NoNewPrivs|Seccomp|Cap|Uid|Gid)' /proc/self/status; ls /var/tmp 2>&1; \
                  python3 -c 'import socket as s\nfor k in (s.SOCK_DGRAM, s.SOCK_RAW):\n  try: s.socket(s.AF_INET, k)\n  \
                  except OSError as x: print(\"errno\", x.errno)'; echo $https_proxy; exit 7";
    let outcome = run(&pods, true, &[], script).expect(7);
    let text = &outcome.stdout;
    for expected in [
        "reached",
        // Denied by destination, readable; denied by program, named with what started it.
        "no policy entry allows other.example.com:80",
        "HTTP Error 403",
        "may not reach api.example.com:80: entry test allows /usr/bin/curl",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "Uid:\t4242\t4242\t4242\t4242",
        "'/var/tmp': Permission denied",
        "errno 1\nerrno 1\n",
        "http://127.0.0.1:3128",
    ] {
        assert!(text.contains(expected), "{expected}: {outcome:?}");
    }
    let told = told(network);
    assert!(told.contains("python3") && told.contains("/usr/bin/"), "{told}");
    // Control: in a sandbox that attests nothing and asks for nothing programs are all the same.
    let _network = pods.network(POLICY, false);
    let script = "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://api.example.com/\").status)'";
    assert_eq!(run(&pods, false, &[], script).expect(0).stdout, "200\n");
}

#[test]
fn who_dials_the_proxy_itself_is_nobody_in_particular() {
    let world = World::new();
    let _web = web(&world);
    let pods = Pods::new(&world, operators_ca(&world).0);
    let network = pods.network(POLICY, true);
    let script = format!("curl -sS -x http://{PROXY_V4}:3128 http://api.example.com/; {CURL}");
    let outcome = run(&pods, true, &[], &script).expect(0);
    assert!(outcome.stdout.contains("carries no attestation"), "{outcome:?}");
    assert!(outcome.stdout.contains("connect through http://127.0.0.1:3128"), "{outcome:?}");
    // Control: the same program the other way.
    assert!(outcome.stdout.ends_with("200\n"), "{outcome:?}");
    assert!(told(network).contains("carries no attestation"));
}

/// A session as `process` opens one, by the library, and the connection that it lives by.
fn session(key: &Key) -> (Session, TcpStream) {
    let stream = TcpStream::connect((PROXY_V4, 3128)).expect("connect");
    stream.set_nonblocking(true).expect("non-blocking");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (session, stream) = runtime.block_on(async {
        let mut stream = tokio::net::TcpStream::from_std(stream).expect("a stream");
        let session = open(&mut stream, key).await.expect("a session");
        (session, stream.into_std().expect("a stream"))
    });
    (session, stream)
}

/// What the proxy answers to these bytes.
fn answer(bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(SocketAddr::from((PROXY_V4, 3128))).expect("connect");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
    let _ = stream.write_all(bytes);
    let mut answer = [0; 4096];
    // Closed and reset are both no answer.
    let count = stream.read(&mut answer).unwrap_or(0);
    String::from_utf8_lossy(&answer[..count]).into_owned()
}

#[test]
fn a_forged_or_replayed_statement_is_refused_and_the_genuine_one_passes() {
    let world = World::new();
    let _web = web(&world);
    let pods = Pods::new(&world, operators_ca(&world).0);
    let network = pods.network(POLICY, true);
    let key = Key::read(&pods.key).expect("the key");
    let (genuine, forged) = world.in_machine(move || {
        let (session, _keep) = session(&key);
        let executable = Executable { path: "/usr/bin/curl".into(), sha256: [1; 32] };
        let attested = Attested { program: Program { executable, ancestors: Arc::from([]) }, pid: 7, uid: SANDBOX };
        let request = b"CONNECT api.example.com:80 HTTP/1.1\r\nHost: api.example.com:80\r\n\r\n";
        let message = || [session.preface(&Statement::Program(attested.clone())), request.to_vec()].concat();
        let mut forged = Vec::new();
        // One bit of the program's path, one of the code.
        let length = message().len();
        for at in [90, length - request.len() - 1] {
            let mut bytes = message();
            bytes[at] ^= 1;
            forged.push(answer(&bytes));
        }
        let once = message();
        let genuine = answer(&once);
        forged.push(answer(&once));
        (genuine, forged)
    });
    assert!(genuine.starts_with("HTTP/1.1 200 "), "{genuine:?}");
    assert_eq!(forged, ["", "", ""]);
    let metrics = world.in_machine(|| {
        let mut stream = TcpStream::connect(("127.0.0.1", 9090)).expect("the admin listener");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("write");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("read");
        text
    });
    assert!(metrics.contains("openshell_attestations_refused_total 3"), "{metrics}");
    assert!(told(network).contains("attestation-refused"));
}

#[test]
fn a_proxy_that_comes_back_is_used_again_and_the_workload_lives_on() {
    let world = World::new();
    let _web = web(&world);
    let pods = Pods::new(&world, operators_ca(&world).0);
    for keyed in [true, false] {
        let network = pods.network(POLICY, keyed);
        let mut command = pods.process(POLICY, keyed, &[]);
        command.args(["/bin/sh", "-c", &format!("while :; do {CURL}; sleep 0.05; done")]).stderr(Stdio::null());
        let mut process = Daemon::spawn(command);
        let lines = lines(&mut process);
        until(&lines, "200");
        drop(network);
        until(&lines, "502");
        let network = pods.network(POLICY, keyed);
        until(&lines, "200");
        // Once more, at once: between two requests nobody sees it go.
        drop(network);
        let _network = pods.network(POLICY, keyed);
        until(&lines, "200");
        assert!(process.wait_within(Duration::ZERO).is_none());
        pods.kill(process);
    }
    // What is told meanwhile can be acted upon.
    let outcome = run(&pods, true, &[], "curl -sS http://api.example.com/");
    assert!(outcome.stdout.contains("proxy_unavailable") && outcome.stdout.contains("try again"), "{outcome:?}");
}

/// Tries every way to the supervisor's secrets, and prints what each comes to.
const THIEF: &str = r#"
import ctypes, os, sys
def attempt(name, act):
    try: act(); print(name, "SUCCEEDED")
    except OSError as error: print(name, "refused", error.errno)
libc = ctypes.CDLL(None, use_errno=True)
def call(value):
    if value == -1: raise OSError(ctypes.get_errno(), "")
def whole(path):
    with open(path, "rb") as file: file.read(1)
key, pid = sys.argv[1], sys.argv[2]
attempt("key", lambda: whole(key))
attempt("root", lambda: whole(f"/proc/self/root{key}"))
attempt("its-root", lambda: whole(f"/proc/{pid}/root{key}"))
attempt("mem", lambda: whole(f"/proc/{pid}/mem"))
attempt("maps", lambda: whole(f"/proc/{pid}/maps"))
attempt("environ", lambda: whole(f"/proc/{pid}/environ"))
attempt("fd", lambda: os.listdir(f"/proc/{pid}/fd"))
attempt("ptrace", lambda: call(libc.ptrace(16, int(pid), None, None)))
attempt("vm", lambda: call(libc.process_vm_readv(int(pid), None, 0, None, 0, 0)))
"#;

#[test]
fn the_key_stays_the_supervisors() {
    let world = World::new();
    let pods = Pods::new(&world, operators_ca(&world).0);
    let script = format!("python3 -c '{}' {} 1", THIEF.replace('\'', "\""), pods.key.display());
    let outcome = run(&pods, true, &[], &script).expect(0);
    assert_eq!(outcome.stdout.lines().count(), 9, "{outcome:?}");
    assert!(!outcome.stdout.contains("SUCCEEDED"), "{outcome:?}");
    // Control: the same user, without the confinement and against a process that does not hide, gets all of it.
    let mut command = pods.container("/bin/sh");
    command
        .args(["-c", &format!("sleep 60 & {}", script.replace(" 1", " $!"))])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let outcome = finished(Daemon::spawn(command));
    for taken in ["key", "root", "its-root", "maps", "environ", "fd"] {
        assert!(outcome.stdout.contains(&format!("{taken} SUCCEEDED")), "{taken}: {outcome:?}");
    }
}

#[test]
fn what_would_give_the_key_away_ends_the_start() {
    let world = World::new();
    let pods = Pods::new(&world, operators_ca(&world).0);
    let refused = |policy: &str, flags: &[&str], words: &str, code: i32| {
        let mut command = pods.process(policy, !flags.contains(&"--attestation-key"), flags);
        command.arg("/bin/true");
        let outcome = finished(Daemon::spawn(command));
        assert!(outcome.code == Some(code) && outcome.stderr.contains(words), "{words}: {outcome:?}");
    };
    let granted =
        POLICY.replace("/usr, /lib", &format!("{}, /usr, /lib", pods.key.parent().expect("a directory").display()));
    refused(&granted, &[], "the supervisor is the same user", 125);
    let short = world.file("short", [1; 31]);
    refused(POLICY, &["--attestation-key", short.to_str().expect("UTF-8")], "31 bytes, expected 32", 125);
    refused(POLICY, &["--attestation-key", "/nonexistent"], "mount the sandbox's attestation key", 125);
    // Its policy lies where it may write.
    let desk = world.directory().join("desk");
    fs::create_dir(&desk).expect("mkdir");
    fs::write(desk.join("policy.yaml"), POLICY).expect("write");
    chown(&desk, Some(SANDBOX), Some(SANDBOX)).expect("chown");
    let mut command = pods.container(supervisor());
    command.args(["process", "--remote-proxy", "--fence=elsewhere", "--workdir"]).arg(&desk);
    command.arg("--policy").arg(desk.join("policy.yaml")).args(["--", "/bin/true"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = finished(Daemon::spawn(command));
    assert!(outcome.code == Some(125) && outcome.stderr.contains("could rewrite"), "{outcome:?}");
    // Control: where nothing is given away, it starts.
    let mut command = pods.process(POLICY, true, &[]);
    command.args(["/bin/echo", "launched"]);
    assert!(finished(Daemon::spawn(command)).expect(0).stdout.contains("launched"));
}

#[test]
fn strangers_are_served_only_where_it_is_said_who_they_may_be() {
    let world = World::new();
    let pods = Pods::new(&world, operators_ca(&world).0);
    let refused = |mut command: Command, words: &str| {
        let outcome = finished(Daemon::spawn({
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            command
        }));
        assert!(outcome.code == Some(2) && outcome.stderr.contains(words), "{words}: {outcome:?}");
    };
    refused(pods.network_command(&[]), "--attestation-key with it");
    refused(pods.network_command(&["--attestation-key", "x", "--binary-identity=relaxed"]), "drop one of the two");
    let mut bare = world.machine_program(supervisor());
    bare.args(["network", "--bind", "0.0.0.0:3128", "--binary-identity=relaxed"]);
    refused(bare, "--ca-cert and --ca-key with it");
    let mut nowhere = pods.container(supervisor());
    nowhere.env_remove("OPENSHELL_PROXY_URL").args(["process", "--remote-proxy", "--", "/bin/true"]);
    refused(nowhere, "neither says where the proxy is");
    // Control: with either of the two it serves.
    drop(pods.network(POLICY, true));
    drop(pods.network(POLICY, false));
}

#[test]
fn a_proxy_at_every_address_serves_agents_of_either_ip_version() {
    let world = World::new();
    let _web = web(&world);
    let mut pods = Pods::new(&world, operators_ca(&world).0);
    let codes = |pods: &Pods<'_>| {
        let _network = pods.network(POLICY, true);
        [format!("http://{PROXY_V4}:3128"), format!("http://[{PROXY_V6}]:3128")].map(|url| {
            let mut command = pods.process(POLICY, true, &[]);
            command.env("OPENSHELL_PROXY_URL", url).args(["/bin/sh", "-c", CURL]);
            finished(Daemon::spawn(command)).stdout
        })
    };
    pods.bind = "[::]:3128";
    assert_eq!(codes(&pods), ["200\n", "200\n"]);
    // Control: IPv4's wildcard is nothing to IPv6.
    pods.bind = "0.0.0.0:3128";
    assert_eq!(codes(&pods), ["200\n", "502\n"]);
}

#[test]
fn strict_landlock_leaves_the_workload_the_proxys_port_alone() {
    let world = World::new();
    let _web = web(&world);
    let pods = Pods::new(&world, operators_ca(&world).0);
    let _network = pods.network(POLICY, true);
    let script = format!(
        "python3 -m http.server 8000 >/dev/null 2>&1 & {CURL}; python3 -c 'import socket, time\ntime.sleep(1)\n\
         try: socket.create_connection((\"127.0.0.1\", 8000)); print(\"connected\")\nexcept OSError as x: print(\"errno\", x.errno)'; \
         kill $!"
    );
    assert_eq!(run(&pods, true, &["--landlock-net=strict"], &script).stdout, "200\nerrno 13\n");
    // Control: without it the workload's own servers are within its reach.
    assert_eq!(run(&pods, true, &[], &script).stdout, "200\nconnected\n");
}

#[test]
fn whom_to_trust_is_installed_without_privilege_and_reaches_the_workload() {
    let world = World::new();
    let pods = Pods::new(&world, operators_ca(&world).0);
    let volume = world.directory().join("tls");
    fs::create_dir(&volume).expect("mkdir");
    let trust = |certificate: &PathBuf| {
        let mut command = pods.container(supervisor());
        command.arg("trust").arg(certificate).arg(&volume).stdout(Stdio::piped()).stderr(Stdio::piped());
        finished(Daemon::spawn(command))
    };
    // A volume of somebody else's is told; so is a file that is no certificate.
    let outcome = trust(&pods.ca[0]);
    assert!(outcome.code == Some(125) && outcome.stderr.contains("fsGroup"), "{outcome:?}");
    chown(&volume, Some(SANDBOX), Some(SANDBOX)).expect("chown");
    let outcome = trust(&world.file("no.pem", "nothing"));
    assert!(outcome.code == Some(125) && outcome.stderr.contains("no certificate in it"), "{outcome:?}");
    for _ in 0..2 {
        trust(&pods.ca[0]).expect(0);
    }
    let pem = fs::read_to_string(&pods.ca[0]).expect("the CA");
    for file in ["ca.pem", "bundle.pem"] {
        assert!(fs::read_to_string(volume.join(file)).expect(file).starts_with(pem.trim_end()), "{file}");
    }
    let mut command = pods.process(POLICY, false, &["--trust-dir", volume.to_str().expect("UTF-8")]);
    command.args(["/bin/sh", "-c", "head -1 $SSL_CERT_FILE; echo $NODE_EXTRA_CA_CERTS; echo x >> $SSL_CERT_FILE"]);
    let outcome = finished(Daemon::spawn(command));
    assert!(outcome.stdout.starts_with("-----BEGIN CERTIFICATE-----"), "{outcome:?}");
    assert!(outcome.stdout.contains("tls/ca.pem") && outcome.stderr.contains("Permission denied"), "{outcome:?}");
    // Control: without the directory the workload is told nothing, and the operator is.
    let outcome = run(&pods, false, &["--trust-dir", "/nonexistent"], "echo \"[$SSL_CERT_FILE]\"");
    assert!(outcome.stdout.contains("[]") && outcome.stderr.contains("the role `trust` writes it"), "{outcome:?}");
}

#[test]
fn a_workspace_is_seeded_once_and_whole() {
    let world = World::new();
    let pods = Pods::new(&world, operators_ca(&world).0);
    let [image, volume] = ["image", "volume"].map(|name| world.directory().join(name));
    fs::create_dir_all(image.join("src")).expect("mkdir");
    fs::write(image.join("src/main.py"), "print()").expect("write");
    fs::write(image.join("secret"), "x").expect("write");
    fs::set_permissions(image.join("secret"), fs::Permissions::from_mode(0o600)).expect("chmod");
    fs::create_dir(&volume).expect("mkdir");
    let seed = || {
        let mut command = pods.container(supervisor());
        command.arg("workspace").args([&image, &volume]).stdout(Stdio::piped()).stderr(Stdio::piped());
        finished(Daemon::spawn(command))
    };
    let outcome = seed();
    assert!(outcome.code == Some(125) && outcome.stderr.contains("fsGroup"), "{outcome:?}");
    chown(&volume, Some(SANDBOX), Some(SANDBOX)).expect("chown");
    // As a copy that was killed leaves it.
    fs::create_dir(volume.join(".openshell-workspace-seeding")).expect("mkdir");
    fs::write(volume.join(".openshell-workspace-seeding/1"), "pri").expect("write");
    for left in [".openshell-workspace-seeding", ".openshell-workspace-seeding/1"] {
        chown(volume.join(left), Some(SANDBOX), Some(SANDBOX)).expect("chown");
    }
    let outcome = seed().expect(0);
    // What this user may not read in the image is told.
    assert!(outcome.stderr.contains("image/secret is left out"), "{outcome:?}");
    assert_eq!(fs::read_to_string(volume.join("src/main.py")).expect("the file"), "print()");
    fs::write(volume.join("src/main.py"), "mine").expect("write");
    fs::write(image.join("later"), "x").expect("write");
    assert!(seed().expect(0).stderr.contains("seeded already"));
    assert_eq!(fs::read_to_string(volume.join("src/main.py")).expect("the file"), "mine");
    assert!(!volume.join("later").exists());
}

#[test]
fn an_idle_forwarder_is_as_small_as_a_sidecars() {
    let world = World::new();
    let pods = Pods::new(&world, operators_ca(&world).0);
    let _network = pods.network(POLICY, true);
    // One connection has gone through it: to an origin that is not there, or on behalf of nobody in particular.
    for (keyed, answer) in [(true, "502"), (false, "403")] {
        let mut command = pods.process(POLICY, keyed, &[]);
        command.args(["/bin/sh", "-c", &format!("{CURL}; exec sleep 60")]);
        let mut process = Daemon::spawn(command);
        until(&lines(&mut process), answer);
        let supervisor = child_of(&process);
        eventually("the forwarder is small", || resident(supervisor) <= IDLE_PROCESS);
        std::thread::sleep(Duration::from_secs(1));
        assert!(resident(supervisor) <= IDLE_PROCESS, "{} KiB", resident(supervisor));
        println!("idle, keyed {keyed}: {} KiB", resident(supervisor));
        pods.kill(process);
    }
}

#[test]
fn where_the_platform_fences_one_user_is_the_whole_sandbox() {
    let world = World::new();
    let _web = web(&world);
    let [_, key] = operators_ca(&world).0;
    chown(&key, Some(0), Some(SANDBOX)).expect("chown");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o440)).expect("chmod");
    let certificate = key.with_file_name("ca.pem");
    let trusted = world.directory().join("tls");
    fs::create_dir(&trusted).expect("mkdir");
    chown(&trusted, Some(SANDBOX), Some(SANDBOX)).expect("chown");
    let run = |policy: &str, flags: &[&str], script: &str| {
        let mut command = container(world.machine(), supervisor());
        command.args(["--mode=network,process", "--workdir=/tmp", "--policy"]).arg(world.file("policy.yaml", policy));
        command.arg("--trust-dir").arg(&trusted).arg("--ca-cert").arg(&certificate).arg("--ca-key").arg(&key);
        command.args(flags).args(["--", "/bin/sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::piped());
        finished(Daemon::spawn(command))
    };
    let script = format!(
        "{CURL}; python3 -c 'import urllib.request as u; u.urlopen(\"http://api.example.com/\")' 2>&1 | tail -1; \
         head -1 $SSL_CERT_FILE; cat {} 2>&1; cat /proc/1/environ 2>&1; grep CapEff /proc/self/status; \
         python3 -c 'import socket as s\ntry: s.socket(s.AF_INET, s.SOCK_DGRAM)\nexcept OSError as x: print(\"errno\", x.errno)'; \
         {} --noproxy '*'",
        key.display(),
        CURL
    );
    let outcome = run(POLICY, &["--fence=elsewhere"], &script).expect(0);
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!((lines[0], lines[2]), ("200", "-----BEGIN CERTIFICATE-----"), "{outcome:?}");
    assert!(lines[1].contains("HTTP Error 403"), "{outcome:?}");
    assert!(lines[3].contains("Permission denied") && lines[4].contains("Permission denied"), "{outcome:?}");
    assert_eq!(&lines[5..7], ["CapEff:\t0000000000000000", "errno 1"], "{outcome:?}");
    // What it trades: around the proxy it is the platform's to stop the workload. It is told, and Landlock can do it for TCP.
    assert_eq!(lines[7], "200", "{outcome:?}");
    assert!(outcome.stderr.contains("no-own-fence") || outcome.stderr.contains("NetworkPolicy"), "{outcome:?}");
    let strict = run(POLICY, &["--fence=elsewhere", "--landlock-net=strict"], &format!("{CURL}; {CURL} --noproxy '*'"));
    assert_eq!(strict.stdout, "200\n000\n", "{strict:?}");
    // A policy that grants the CA's key is refused.
    let granted = POLICY.replace("/usr, /lib", &format!("{}, /usr, /lib", key.display()));
    let outcome = run(&granted, &["--fence=none"], "echo launched");
    assert!(outcome.code == Some(125) && outcome.stderr.contains("could read the secret"), "{outcome:?}");
    assert!(run(POLICY, &["--fence=none"], "echo launched").expect(0).stdout.contains("launched"), "control");
}
