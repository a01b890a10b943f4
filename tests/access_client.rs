//! Promises 30.70 to 30.75: what the executable's own clients tell, in which order, and when they end.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::access::{Sandbox, text};
use crate::world::{Daemon, eventually};

/// Listens inside on 127.0.0.1:7020: to whoever sends "end" it ends, to others it resets.
const SERVE: &str = "import socket, struct\ns = socket.socket(); s.setsockopt(1, 2, 1); s.bind((\"127.0.0.1\", 7020)); \
                     s.listen()\nwhile True:\n  c, _ = s.accept(); d = c.recv(9); c.sendall(b\"half\")\n  if d != b\"end\": \
                     __import__(\"time\").sleep(0.5); c.setsockopt(1, 13, struct.pack(\"ii\", 1, 0))\n  c.close()\n";

/// `forward`, and where it listens.
fn forward(sandbox: &Sandbox, ports: &str) -> (Daemon, Vec<SocketAddr>) {
    let mut forward = sandbox.role("forward");
    forward.arg(ports).stderr(Stdio::piped());
    let mut forward = Daemon::spawn(forward);
    let mut said = BufReader::new(forward.child().stderr.take().expect("a pipe"));
    let mut line = String::new();
    said.read_line(&mut line).expect("read");
    let addresses = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    (forward, addresses)
}

#[test]
fn forward_ends_with_the_sandbox() {
    let sandbox = Sandbox::of("exec sleep 300");
    let (mut forward, _) = forward(&sandbox, "0:7019");
    assert!(forward.wait_within(Duration::from_secs(1)).is_none(), "control: until then it does not");
    sandbox.supervisor().signal(Signal::SIGTERM);
    let ended = forward.wait_within(Duration::from_secs(20)).and_then(|status| status.code());
    assert_eq!(ended, Some(125));
}

#[test]
fn a_forward_listens_where_localhost_leads_and_resets_what_was_reset() {
    let sandbox = Sandbox::of("exec sleep 300");
    let mut server = sandbox.ssh();
    server.args(["sandbox@box", &format!("python3 -c '{SERVE}'")]);
    let _server = Daemon::spawn(server);
    let (_forward, addresses) = forward(&sandbox, "0:7020");
    assert!(addresses.iter().any(SocketAddr::is_ipv4) && addresses.iter().any(SocketAddr::is_ipv6), "{addresses:?}");
    assert_eq!(addresses[0].port(), addresses[1].port());
    let ask = |address: &SocketAddr, word: &[u8]| {
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.write_all(word).expect("write");
        let mut answer = Vec::new();
        let ended = stream.read_to_end(&mut answer).map_err(|error| error.kind());
        (answer, ended.map(drop))
    };
    eventually("it answers", || ask(&addresses[0], b"end").0 == b"half");
    for address in &addresses {
        // The control: an end is an end.
        assert_eq!(ask(address, b"end"), (b"half".to_vec(), Ok(())));
        assert_eq!(ask(address, b"cut"), (b"half".to_vec(), Err(std::io::ErrorKind::ConnectionReset)), "{address}");
    }
}

#[test]
fn a_port_that_nobody_listens_on_failed_and_is_not_refused() {
    let sandbox = Sandbox::of("exec sleep 300");
    let (_forward, addresses) = forward(&sandbox, "0:7021");
    let _ = TcpStream::connect(addresses[0]).expect("connect").read(&mut [0; 8]);
    let event = |port: &str| -> Option<serde_json::Value> {
        let events = sandbox.events();
        let line = events.lines().find(|line| line.contains("\"class_uid\":4007") && line.contains(port))?;
        Some(serde_json::from_str(line).expect("an event"))
    };
    eventually("it is recorded", || event("7021").is_some());
    let closed = event("7021").expect("an event");
    assert_eq!((&closed["disposition"], &closed["status"]), (&"Allowed".into(), &"Failure".into()), "{closed}");
    let why = closed["status_detail"].as_str().expect("why");
    assert!(why.contains("127.0.0.1:7021") && why.contains("[::1]:7021"), "both were tried: {why}");
    // The control: what may not be.
    let _ = sandbox.ssh().args(["-W", "10.99.0.2:7022", "sandbox@box"]).output();
    eventually("it is recorded", || event("7022").is_some());
    let refused = event("7022").expect("an event");
    assert_eq!((&refused["disposition"], &refused["status"]), (&"Blocked".into(), &"Failure".into()), "{refused}");
}

#[test]
fn who_is_turned_away_at_the_door_reads_why() {
    let sandbox = Sandbox::of("exec sleep 300");
    let all: Vec<_> = (0..128).map(|_| UnixStream::connect(sandbox.door()).expect("connect")).collect();
    let mut last = &all[127];
    last.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    last.read_exact(&mut [0; 8]).expect("they have come in");
    let why = "128 connections are open already; close one";
    for _ in 0..20 {
        let exec = sandbox.role("exec").args(["--", "echo", "in"]).output().expect("exec");
        let told = text(&exec.stderr);
        assert!(exec.status.code() == Some(125) && told.contains(why) && !told.contains("roken pipe"), "{told}");
    }
    let ssh = sandbox.runs("echo in");
    assert!(ssh.status.code() == Some(255) && text(&ssh.stderr).contains(why), "{}", text(&ssh.stderr));
    // The control.
    drop(all);
    eventually("there is room again", || sandbox.runs("echo in").stdout == b"in\n");
    let exec = sandbox.role("exec").args(["--", "echo", "in"]).output().expect("exec");
    assert!(exec.stdout == b"in\n" && exec.stderr.is_empty(), "{}", text(&exec.stderr));
}

#[test]
fn output_and_errors_are_shown_in_the_order_in_which_they_came() {
    let script = "for n in 1 2 3 4 5 6 7 8 9; do echo $n; sleep 0.05; echo $n >&2; sleep 0.05; done; exec sleep 300";
    let sandbox = Sandbox::of(script);
    let in_order = |words: &[&str]| -> String {
        let both = tempfile::tempfile().expect("a file");
        let mut client = sandbox.role(words[0]);
        client.args(&words[1..]).stdout(both.try_clone().expect("dup")).stderr(both.try_clone().expect("dup"));
        assert!(client.status().expect("a client").success());
        let mut told = String::new();
        std::io::Seek::rewind(&mut &both).expect("rewind");
        (&both).read_to_string(&mut told).expect("read");
        told.lines().filter(|line| line.len() == 1).collect()
    };
    eventually("it has said all", || in_order(&["logs"]).len() == 18);
    assert_eq!(in_order(&["logs"]), "112233445566778899");
    let line = script.replace("; exec sleep 300", "");
    assert_eq!(in_order(&["exec", "--", "sh", "-c", &line]), "112233445566778899");
}

#[test]
fn exec_whose_reader_has_gone_says_nothing_and_ends_as_a_program_would() {
    let sandbox = Sandbox::of("exec sleep 300");
    let mut exec = sandbox.role("exec");
    exec.args(["--", "yes"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut exec = Daemon::spawn(exec);
    let mut first = String::new();
    let mut output = BufReader::new(exec.child().stdout.take().expect("a pipe"));
    output.read_line(&mut first).expect("read");
    drop(output);
    let code = exec.wait_within(Duration::from_secs(20)).and_then(|status| status.code());
    let mut told = String::new();
    exec.child().stderr.take().expect("a pipe").read_to_string(&mut told).expect("read");
    assert_eq!((first.as_str(), code, told.as_str()), ("y\n", Some(141), ""));
    // The control: one that is read to its end.
    let exec = sandbox.role("exec").args(["--", "sh", "-c", "yes | head -1"]).output().expect("exec");
    assert!(exec.status.success() && exec.stdout == b"y\n", "{exec:?}");
}
