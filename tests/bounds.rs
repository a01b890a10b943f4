//! Promises 7.x: what happens at the edges: many at once, too many, too slow, too quiet, gone.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::origins::{self, Origin};
use crate::world::{Daemon, World, eventually, policy_text};

struct Stage {
    world: World,
    proxy: Daemon,
}

impl Stage {
    fn new(prepare: impl FnOnce(&mut std::process::Command)) -> Self {
        let world = World::new();
        let destinations = ["api.example.com:7", "api.example.com:80", "other.example.com:80", "203.0.113.9:80"];
        let policy = world.file("policy.yaml", policy_text("**", &destinations));
        let mut command = world.role("network").args(["--binary-identity", "relaxed"]).policy(policy).build();
        prepare(&mut command);
        let proxy = Daemon::spawn(command);
        eventually("the proxy listens", || world.in_machine(|| TcpStream::connect("127.0.0.1:3128").is_ok()));
        Self { world, proxy }
    }

    fn connect(&self) -> TcpStream {
        let stream = self.world.in_machine(|| TcpStream::connect("127.0.0.1:3128").expect("connect"));
        stream.set_read_timeout(Some(Duration::from_secs(40))).expect("timeout");
        stream
    }

    fn ask(&self, target: &str) -> TcpStream {
        let mut stream = self.connect();
        write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").expect("ask");
        stream
    }
}

/// The status line of the answer, read byte by byte so that nothing behind the head is taken.
fn status(stream: &mut TcpStream) -> u16 {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => break,
        }
    }
    String::from_utf8_lossy(&head).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn five_hundred_connections_at_once_are_served() {
    let stage = Stage::new(|_| {});
    let origin = Origin::start(&stage.world, 7, origins::echo);
    let mut streams: Vec<TcpStream> = (0..500).map(|_| stage.ask("api.example.com:7")).collect();
    for stream in &mut streams {
        assert_eq!(status(stream), 200);
    }
    for (index, stream) in streams.iter_mut().enumerate() {
        write!(stream, "{index:04}").expect("send");
    }
    for (index, stream) in streams.iter_mut().enumerate() {
        let mut back = [0; 4];
        stream.read_exact(&mut back).expect("echo");
        assert_eq!(back, *format!("{index:04}").as_bytes());
    }
    assert_eq!(origin.arrived(), 500);
}

#[test]
fn running_out_of_descriptors_is_survived() {
    let stage = Stage::new(|command| {
        // The supervisor raises its soft limit, so the hard one is lowered.
        use std::os::unix::process::CommandExt;
        // SAFETY: setrlimit is a system call and nothing else.
        unsafe {
            command.pre_exec(|| {
                nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 64, 64).map_err(Into::into)
            });
        }
    });
    let _origin = Origin::start(&stage.world, 7, origins::echo);
    let hoard: Vec<TcpStream> = (0..150).map(|_| stage.ask("api.example.com:7")).collect();
    std::thread::sleep(Duration::from_millis(500));
    drop(hoard);
    let mut recovered = false;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !recovered && Instant::now() < deadline {
        recovered = status(&mut stage.ask("api.example.com:7")) == 200;
    }
    assert!(recovered, "the proxy never served again");
}

#[test]
fn an_upstream_that_stalls_keeps_its_tunnel_and_disturbs_nobody() {
    let stage = Stage::new(|_| {});
    let _stall = Origin::start(&stage.world, 80, origins::stall);
    let _echo = Origin::start(&stage.world, 7, origins::echo);
    let mut stalled: Vec<TcpStream> = (0..50).map(|_| stage.ask("api.example.com:80")).collect();
    for stream in &mut stalled {
        assert_eq!(status(stream), 200);
        let _ = stream.write_all(&[b'x'; 4096]);
    }
    let started = Instant::now();
    assert_eq!(status(&mut stage.ask("api.example.com:7")), 200);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[test]
fn an_upstream_that_resets_is_an_end_and_not_a_hang() {
    let stage = Stage::new(|_| {});
    let _origin = Origin::start(&stage.world, 80, origins::reset);
    let mut stream = stage.ask("api.example.com:80");
    assert_eq!(status(&mut stream), 200);
    stream.write_all(b"hello").expect("send");
    let started = Instant::now();
    let ended = stream.read(&mut [0; 16]);
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(5));
    // By forward request the reset is answered.
    let mut stream = stage.connect();
    stream.write_all(b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n\r\n").expect("send");
    assert_eq!(status(&mut stream), 502);
}

#[test]
fn an_upstream_that_trickles_arrives_as_it_comes() {
    let stage = Stage::new(|_| {});
    let _origin = Origin::start(
        &stage.world,
        80,
        origins::trickle(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n",
            Duration::from_millis(20),
        ),
    );
    let mut stream = stage.connect();
    // Version 1.0, so that no chunk framing stands between the bytes.
    stream.write_all(b"GET http://api.example.com/ HTTP/1.0\r\nHost: api.example.com\r\n\r\n").expect("send");
    assert_eq!(status(&mut stream), 200);
    let started = Instant::now();
    let mut text = String::new();
    let mut reads = 0;
    let mut buffer = [0; 64];
    while !text.contains("data: 1\n\n") {
        let length = stream.read(&mut buffer).expect("read");
        assert!(length > 0, "{text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..length]));
        reads += 1;
    }
    assert!(
        reads > 2 && started.elapsed() < Duration::from_secs(5),
        "{reads} reads in {:?}: it was gathered",
        started.elapsed()
    );
}

#[test]
fn a_slow_head_is_answered_and_closed() {
    let stage = Stage::new(|_| {});
    let mut stream = stage.connect();
    stream.write_all(b"GET http://api.example.com/ HTTP/1.1\r\nHost: ").expect("send");
    let started = Instant::now();
    let answer = status(&mut stream);
    assert!(answer == 408 || answer == 400, "{answer}");
    assert!(started.elapsed() < Duration::from_secs(35), "{:?}", started.elapsed());
}

#[test]
fn a_destination_that_swallows_packets_is_504() {
    let stage = Stage::new(|_| {});
    // A neighbour that is there for ARP and drops what it gets: the origin, which routes nothing. (A new namespace takes
    // this over from the machine.)
    stage.world.in_origin(|| fs::write("/proc/sys/net/ipv4/ip_forward", "0")).expect("ip_forward");
    let output = stage
        .world
        .machine_program("ip")
        .args(["route", "add", "203.0.113.9/32", "via", "10.99.0.2"])
        .output()
        .expect("ip route");
    assert!(output.status.success());
    let started = Instant::now();
    let answer = status(&mut stage.ask("203.0.113.9:80"));
    assert_eq!(answer, 504);
    assert!(started.elapsed() < Duration::from_secs(35), "{:?}", started.elapsed());
}

#[test]
fn term_ends_the_network_role_with_0() {
    let mut stage = Stage::new(|_| {});
    stage.proxy.signal(nix::sys::signal::Signal::SIGTERM);
    let status = stage.proxy.wait_within(Duration::from_secs(10)).expect("an end");
    assert_eq!(status.code(), Some(0));
}

#[test]
fn a_listener_that_cannot_be_had_is_125() {
    let stage = Stage::new(|_| {});
    let outcome = stage.world.role("network").output().expect(125);
    assert!(outcome.stderr.contains("127.0.0.1:3128"), "{}", outcome.stderr);
}
