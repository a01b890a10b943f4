//! Promises 22.x: waiting until something accepts connections.

use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::world::{Daemon, ORIGIN_V4, ORIGIN_V6, Run, World};

fn wait<'w>(world: &'w World, destination: &str, seconds: &str) -> Run<'w> {
    world.role("wait-for-tcp").args([destination, "--timeout", seconds])
}

#[test]
fn what_accepts_ends_the_wait_at_once_by_name_and_by_address() {
    let world = World::new();
    let _listener = world.listen(std::net::Ipv6Addr::UNSPECIFIED, 3128);
    for destination in ["api.example.com:3128", "10.99.0.2:3128", "[fd99::2]:3128", "v6.example.com:3128"] {
        let outcome = wait(&world, destination, "10").output().expect(0);
        assert!(outcome.took < Duration::from_secs(2), "{destination}: {:?}", outcome.took);
        assert!(outcome.stderr.contains(" accepts at "), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    }
    // Without patience, what accepts accepts.
    wait(&world, "10.99.0.2:3128", "0").output().expect(0);
    wait(&world, "10.99.0.2:3129", "0").output().expect(1);
}

#[test]
fn what_refuses_is_tried_until_it_accepts_or_time_is_up() {
    let world = World::new();
    let outcome = wait(&world, "api.example.com:3128", "3").output().expect(1);
    assert!((2.5..5.0).contains(&outcome.took.as_secs_f64()), "{:?}", outcome.took);
    assert!(!outcome.stderr.contains("(try 1)"), "{}", outcome.stderr);
    for expected in ["10.99.0.2:3128: Connection refused", "[fd99::2]:3128: Connection refused"] {
        assert!(outcome.stderr.contains(expected), "{expected:?} is not in: {}", outcome.stderr);
    }
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    // Control: the same wait, and a listener that comes up meanwhile.
    let mut waiting = wait(&world, "api.example.com:3128", "30").spawn();
    std::thread::sleep(Duration::from_millis(700));
    assert!(waiting.child().try_wait().expect("wait").is_none());
    let _listener = world.listen(ORIGIN_V4, 3128);
    let status = waiting.wait_within(Duration::from_secs(5)).expect("it still waits");
    assert!(status.success());
}

#[test]
fn every_address_of_a_name_is_tried() {
    let world = World::new();
    world.hosts(&format!(
        "10.99.0.1 service.example.com\n{ORIGIN_V4} service.example.com\n{ORIGIN_V6} service.example.com\n"
    ));
    let listener = world.listen(ORIGIN_V6, 3128);
    let outcome = wait(&world, "service.example.com:3128", "5").output().expect(0);
    assert!(outcome.stderr.contains("[fd99::2]:3128") && outcome.stderr.contains("(try 1)"), "{}", outcome.stderr);
    // Control: without the one address that serves there is nothing.
    drop(listener);
    wait(&world, "service.example.com:3128", "1").output().expect(1);
}

/// A name server in the machine that knows no name for `absences` questions, and then that every name is the origin.
fn name_server(world: &World, absences: u32) -> Arc<AtomicU32> {
    let socket = world.in_machine(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 53)).expect("bind"));
    let asked = Arc::new(AtomicU32::new(0));
    let counter = asked.clone();
    std::thread::spawn(move || {
        let mut packet = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut packet) {
            let question = packet[12..length].iter().position(|&byte| byte == 0).map_or(length, |end| 12 + end + 5);
            let is_a = packet[question - 3] == 1;
            let known = counter.fetch_add(1, Ordering::Relaxed) >= absences;
            // RFC 1035 §4.1.1: the id, a response with recursion; NXDOMAIN is 3.
            let mut answer = packet[..2].to_vec();
            answer.extend([0x81, if known { 0x80 } else { 0x83 }, 0, 1, 0, u8::from(known && is_a), 0, 0, 0, 0]);
            answer.extend(&packet[12..question]);
            if known && is_a {
                answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0x0e, 0x10, 0, 4]);
                answer.extend(ORIGIN_V4.octets());
            }
            let _ = socket.send_to(&answer, client);
        }
    });
    asked
}

#[test]
fn a_name_that_is_not_there_yet_is_looked_up_anew() {
    let world = World::new();
    let _listener = world.listen(ORIGIN_V4, 3128);
    let absent = wait(&world, "late.example.com:3128", "0.8").output().expect(1);
    assert!(absent.stderr.contains("late.example.com"), "{}", absent.stderr);
    let asked = name_server(&world, 3);
    let outcome = wait(&world, "late.example.com:3128", "30").output().expect(0);
    assert!(outcome.stderr.contains("10.99.0.2:3128"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("(try 1)"), "{}", outcome.stderr);
    let before = asked.load(Ordering::Relaxed);
    assert!(before > 3, "{before}");
    // A name whose record is remembered for an hour, and where nothing serves, is asked for again with each try.
    wait(&world, "late.example.com:3129", "1.2").output().expect(1);
    let asked = asked.load(Ordering::Relaxed) - before;
    assert!(asked >= 4, "{asked} questions in three tries");
}

#[test]
fn a_peer_that_accepts_and_closes_or_never_answers_does_not_serve() {
    let world = World::new();
    let listener = world.listen(ORIGIN_V4, 3128);
    let closing = listener.try_clone().expect("clone");
    let stop = Arc::new(AtomicU32::new(0));
    let stopped = stop.clone();
    let closer = std::thread::spawn(move || {
        while let Ok((stream, _)) = closing.accept() {
            if stopped.load(Ordering::Relaxed) == 1 {
                return;
            }
            // Unread bytes make it a reset, none make it an orderly end; both are refusals here.
            drop(stream);
        }
    });
    let outcome = wait(&world, "10.99.0.2:3128", "1").output().expect(1);
    assert!(outcome.stderr.contains("accepted and closed at once"), "{}", outcome.stderr);
    // Control: the same listener, which now holds what it accepts.
    stop.store(1, Ordering::Relaxed);
    wait(&world, "10.99.0.2:3128", "5").output().expect(0);
    closer.join().expect("the closer");
    // A destination that drops every packet is waited for as well, and said to be silent.
    let rules = "table ip silent { chain input { type filter hook input priority filter; tcp dport 4000 drop; }; }";
    let status = world.origin_command("nft").arg(rules).status().expect("nft, which .ci/run installs");
    assert!(status.success());
    let _silent: TcpListener = world.listen(IpAddr::V4(ORIGIN_V4), 4000);
    let outcome = wait(&world, "10.99.0.2:4000", "6").output().expect(1);
    assert!(outcome.stderr.contains("no answer within 5 s"), "{}", outcome.stderr);
    assert!((5.5..8.0).contains(&outcome.took.as_secs_f64()), "{:?}", outcome.took);
}

#[test]
fn a_signal_ends_it_even_as_the_first_process_of_a_container() {
    let world = World::new();
    let mut command = world.machine_program("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(crate::world::supervisor());
    command.args(["wait-for-tcp", "10.99.0.2:3128"]).stderr(Stdio::null());
    let mut outer = Daemon::spawn(command);
    let children = format!("/proc/{0}/task/{0}/children", outer.pid());
    let mut inner = None;
    crate::world::eventually("the wait begins", || {
        inner = std::fs::read_to_string(&children).unwrap_or_default().trim().parse().ok();
        inner.is_some_and(|pid: i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            // proc(5): the signals that it catches, TERM (15) among them.
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim();
            u64::from_str_radix(caught, 16).is_ok_and(|mask| mask & (1 << 14) != 0)
        })
    });
    let sent = Instant::now();
    let inner = nix::unistd::Pid::from_raw(inner.expect("a child"));
    nix::sys::signal::kill(inner, Signal::SIGTERM).expect("signal");
    let status = outer.wait_within(Duration::from_secs(5)).expect("it still waits");
    assert_eq!(status.code(), Some(128 + 15));
    assert!(sent.elapsed() < Duration::from_millis(500), "{:?}", sent.elapsed());
}

#[test]
fn what_is_no_destination_is_wrong_usage() {
    let world = World::new();
    for wrong in ["api.example.com", "api.example.com:0", "api.example.com:http", ":3128", "http://a:3128", "fd99::2:"]
    {
        let outcome = wait(&world, wrong, "1").output().expect(2);
        assert!(outcome.stderr.contains("HOST:PORT"), "{wrong}: {}", outcome.stderr);
    }
}
