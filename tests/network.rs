//! Promises 4.x: a network of nothing but loopback, in which every other way is refused at once and reported.

use std::time::Duration;

use crate::origins::{self, Origin};
use crate::world::{ATTEMPT, ORIGIN_V4, ORIGIN_V6, World, eventually};

/// What a direct attempt comes to.
const ATTEMPTS: &str = r#"
def tcp(family, address):
    def act():
        s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(5); s.connect(address)
    return act
def udp(family, address):
    def act():
        s = socket.socket(family, socket.SOCK_DGRAM); s.connect(address); s.send(b"out"); s.settimeout(2); s.recv(1)
    return act
attempt("tcp4", tcp(socket.AF_INET, ("ORIGIN4", 80)))
attempt("tcp6", tcp(socket.AF_INET6, ("ORIGIN6", 80)))
attempt("metadata", tcp(socket.AF_INET, ("169.254.169.254", 80)))
attempt("udp4", udp(socket.AF_INET, ("ORIGIN4", 53)))
attempt("udp6", udp(socket.AF_INET6, ("ORIGIN6", 53)))
attempt("ping", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0))
attempt("sctp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).connect(("ORIGIN4", 80)))
"#;

fn attempts() -> String {
    format!("{ATTEMPT}{ATTEMPTS}").replace("ORIGIN4", &ORIGIN_V4.to_string()).replace("ORIGIN6", &ORIGIN_V6.to_string())
}

#[test]
fn every_way_around_the_proxy_is_refused_at_once() {
    let world = World::new();
    let origin = Origin::start(&world, 80, origins::hello());
    for run in [world.run(), world.run().by_user()] {
        let outcome = run.command(["/usr/bin/python3", "-c", &attempts()]).output().expect(0);
        assert_eq!(outcome.stdout.lines().count(), 9, "{}", outcome.stdout);
        for line in outcome.stdout.lines() {
            let [name, answer, milliseconds] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            assert_ne!(answer, "SUCCEEDED", "{line}");
            assert_ne!(answer, "timed", "{line}: silence is no refusal");
            assert!(milliseconds.parse::<u64>().expect("milliseconds") < 500, "{line}: not at once");
            if name.starts_with("tcp") || name == "metadata" {
                assert_eq!(answer, "ECONNREFUSED", "{line}");
            }
        }
    }
    assert_eq!(origin.arrived(), 0, "something got out");
    // Control: the same program, unconfined, arrives.
    let output = world.machine_program("/usr/bin/python3").args(["-c", &attempts()]).output().expect("python3");
    let output = String::from_utf8_lossy(&output.stdout);
    assert!(output.contains("tcp4 SUCCEEDED") && output.contains("tcp6 SUCCEEDED"), "{output}");
}

#[test]
fn the_namespace_holds_only_loopback_and_the_proxy() {
    let world = World::new();
    let outcome =
        world.run().shell("cat /proc/net/dev | tail -n +3 | cut -d: -f1; cat /proc/net/tcp").output().expect(0);
    let interfaces: Vec<&str> = outcome.stdout.lines().take_while(|line| !line.contains("sl")).map(str::trim).collect();
    assert_eq!(interfaces, ["lo"], "{}", outcome.stdout);
    // 127.0.0.1:3128, listening.
    assert!(outcome.stdout.contains("0100007F:0C38 00000000:0000 0A"), "{}", outcome.stdout);
}

#[test]
fn local_servers_of_the_workload_work() {
    let world = World::new();
    let script = r#"
import socket, threading
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    listener = socket.socket(family, socket.SOCK_STREAM); listener.bind((address, 0)); listener.listen()
    client = socket.create_connection(listener.getsockname()[:2], timeout=5)
    server, _ = listener.accept(); server.sendall(b"served"); print(client.recv(6).decode())
"#;
    let outcome = world.run().command(["/usr/bin/python3", "-c", script]).output().expect(0);
    assert_eq!(outcome.stdout, "served\nserved\n");
}

#[test]
fn a_bypass_attempt_is_reported_with_its_destination_and_user() {
    let world = World::new();
    let script = "import socket\ns = socket.socket(); s.settimeout(2)\ntry: s.connect(('10.99.0.2', 8443))\nexcept OSError: pass\nu = \
                  socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ntry: u.sendto(b'x', ('10.99.0.2', 5353))\nexcept OSError: pass\nimport \
                  time; time.sleep(1.5)";
    let events = world.directory().join("events");
    let outcome =
        world.run().arg("--events").arg(&events).command(["/usr/bin/python3", "-c", script]).output().expect(0);
    let text = std::fs::read_to_string(&events).expect("events");
    for port in [8443, 5353] {
        let event = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"))
            .find(|event| event["dst_endpoint"]["port"] == port)
            .unwrap_or_else(|| panic!("no event for port {port}:\n{text}\n{}", outcome.stderr));
        assert_eq!(event["class_uid"], 4001);
        assert_eq!(event["dst_endpoint"]["ip"], "10.99.0.2", "{event}");
        assert!(event.to_string().contains("65534"), "the user is not named: {event}");
    }
}

#[test]
fn ipv6_disabled_on_the_host_is_no_obstacle() {
    let world = World::new();
    let _origin = Origin::start_at(&world, ORIGIN_V4, 80, origins::hello());
    let off = world.in_machine(|| std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1"));
    off.expect("disable IPv6 in the machine's namespace");
    world.hosts(&format!("{ORIGIN_V4} api.example.com\n"));
    let policy = world.policy("policy.yaml", "/usr/bin/curl", &["api.example.com:80"]);
    let outcome =
        world.run().policy(policy).command(["/usr/bin/curl", "-sS", "http://api.example.com/"]).output().expect(0);
    assert_eq!(outcome.stdout, "hello from GET /\n");
}

#[test]
fn sockets_of_the_host_cannot_be_reached_by_path_or_name() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let world = World::new();
    let path = world.directory().join("service.sock");
    let named = format!("openshell-test-{}", std::process::id());
    let listeners = {
        let path = path.clone();
        let named = named.clone();
        world.in_machine(move || {
            let address = SocketAddr::from_abstract_name(named).expect("a name");
            (UnixListener::bind(path).expect("bind"), UnixListener::bind_addr(&address).expect("bind"))
        })
    };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("chmod");
    let script = format!(
        "import socket\nfor address in ({:?}, '\\0{named}'):\n  s = socket.socket(socket.AF_UNIX)\n  try: s.connect(address); \
         print('connected')\n  except OSError: print('refused')",
        path.display().to_string()
    );
    let grant = world.file(
        "grant.yaml",
        format!("version: 1\nfilesystem_policy: {{read_only: [{}]}}\n", world.directory().display()),
    );
    for run in [world.run(), world.run().by_user()] {
        let outcome = run.policy(&grant).command(["/usr/bin/python3", "-c", &script]).output().expect(0);
        assert_eq!(outcome.stdout, "refused\nrefused\n");
    }
    // Control: outside, both answer.
    let output = world.machine_program("/usr/bin/python3").args(["-c", &script]).output().expect("python3");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "connected\nconnected\n");
    drop(listeners);
}

#[test]
fn sockets_that_the_host_binds_later_cannot_be_reached_either() {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::process::Stdio;
    let world = World::new();
    for (name, run) in [("root", world.run()), ("user", world.run().by_user())] {
        let mut paths = vec![world.directory().join(format!("late-{name}.sock"))];
        if name == "user" {
            // The workload has the id of whoever serves in /tmp.
            paths.push(format!("/tmp/openshell-late-{}.sock", std::process::id()).into());
        }
        let script = format!(
            "import socket\nprint('ready', flush=True); input()\nfor path in {paths:?}:\n  s = socket.socket(socket.AF_UNIX)\n  try: \
             s.connect(path); print('connected')\n  except OSError: print('refused')"
        );
        let mut command = run.command(["/usr/bin/python3", "-c", &script]).build();
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = crate::world::Daemon::spawn(command);
        let mut output = BufReader::new(child.child().stdout.take().expect("piped"));
        let mut line = String::new();
        output.read_line(&mut line).expect("ready");
        let listeners: Vec<UnixListener> = paths
            .iter()
            .map(|path| {
                let listener = UnixListener::bind(path).expect("bind");
                std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).expect("chmod");
                // Control: from outside it can be connected to.
                std::os::unix::net::UnixStream::connect(path).expect("connect from outside");
                listener
            })
            .collect();
        child.child().stdin.take().expect("piped").write_all(b"go\n").expect("go");
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("read");
        paths.iter().for_each(|path| drop(std::fs::remove_file(path)));
        assert_eq!(rest, "refused\n".repeat(listeners.len()), "as {name}");
    }
}

#[test]
fn when_the_proxy_is_killed_the_workload_ends() {
    let world = World::new();
    let mark = world.directory().join("alive");
    for user in [false, true] {
        std::fs::write(&mark, "").expect("mark");
        std::fs::set_permissions(&mark, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("chmod");
        let grant =
            world.file("grant.yaml", format!("version: 1\nfilesystem_policy: {{read_write: [{}]}}\n", mark.display()));
        let script = format!(
            "trap '' TERM INT HUP; (while :; do echo x >> {0}; sleep 0.1; done) & while :; do sleep 1; done",
            mark.display()
        );
        let run = world.run().policy(&grant);
        let run = if user { run.by_user() } else { run };
        let supervisor = run.shell(&script).spawn();
        let length = || std::fs::metadata(&mark).expect("mark").len();
        eventually("the workload writes", || length() > 2);
        supervisor.signal(nix::sys::signal::Signal::SIGKILL);
        std::thread::sleep(Duration::from_millis(500));
        let before = length();
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(length(), before, "the workload outlived its supervisor (as a user: {user})");
    }
}
