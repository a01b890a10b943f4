//! Promises 20.x: `verify-fence` says that a fence holds when it does, and never otherwise.

use std::fs;
use std::net::IpAddr;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::fence::{PROXY, WORKLOAD, allow_ping, ip, nft, program, raise};
use crate::world::{Daemon, World, supervisor};

/// A pod whose default routes lead to the origin, as a pod's do to its node.
fn pod() -> World {
    let world = World::new();
    ip(&world, &["route", "add", "default", "via", "10.99.0.2"]);
    ip(&world, &["-6", "route", "add", "default", "via", "fd99::2"]);
    world
}

fn verify(world: &World, uid: u32, gid: u32, arguments: &[&str]) -> Command {
    let mut command = program(world, uid, gid, "-all");
    command.arg(supervisor()).arg("verify-fence").args(arguments).stdin(Stdio::null());
    command
}

/// Exit code and what was told, of one that gives up soon.
fn told(world: &World) -> (Option<i32>, String) {
    let mut command = verify(world, WORKLOAD, WORKLOAD, &["--timeout", "0.2"]);
    let Output { status, stderr, .. } = command.output().expect("setpriv (package util-linux)");
    (status.code(), String::from_utf8_lossy(&stderr).into_owned())
}

#[track_caller]
fn proven(world: &World) -> String {
    let (code, told) = told(world);
    assert_eq!(code, Some(0), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    told
}

#[track_caller]
fn not_proven(world: &World, reason: &str) {
    let (code, told) = told(world);
    assert_eq!(code, Some(1), "{reason}: {told}");
    assert!(told.contains(reason) && told.lines().count() == 1, "expected {reason:?}: {told}");
}

#[test]
fn a_fence_is_proven_and_its_absence_is_told() {
    let world = pod();
    not_proven(&world, "UDP to 10.99.0.2 was let out, expected EPERM");
    raise(&world);
    let told = proven(&world);
    assert!(told.contains("IPv4: ") && told.contains("IPv6: "), "{told}");
    // One hole is enough, for one address of one protocol, behind whatever kind of route.
    ip(&world, &["nexthop", "add", "id", "1", "via", "10.99.0.2", "dev", "eth0"]);
    ip(&world, &["route", "add", "10.50.0.0/16", "nhid", "1"]);
    let [one, other] = ["10.99.0.3", "10.99.0.4"];
    ip(&world, &["route", "add", "10.60.0.0/16", "nexthop", "via", one, "nexthop", "via", other]);
    ip(&world, &["route", "add", "10.70.0.7/32", "dev", "eth0"]);
    proven(&world);
    for hole in [
        ["ip", "daddr", "10.50.0.1"],
        ["ip", "daddr", other],
        ["ip", "daddr", "10.70.0.7"],
        ["ip6", "daddr", "fe80::/64"],
        ["ip", "daddr", "192.31.196.1"],
        ["ip6", "daddr", "2620:4f:8000::42"],
        ["ip", "daddr", "169.254.169.254"],
        ["ip", "daddr", "192.168.0.0/16"],
        ["ip6", "daddr", "fc00::/7"],
        ["tcp", "dport", "443"],
        ["udp", "dport", "53"],
    ] {
        raise(&world);
        nft(&world, &[&["insert", "rule", "inet", "openshell_fence", "output"], &hole[..], &["accept"]].concat());
        let (code, told) = self::told(&world);
        assert_eq!(code, Some(1), "{hole:?}: {told}");
    }
    raise(&world);
    proven(&world);
}

#[test]
fn what_others_block_is_no_fence() {
    let bogus = "ip daddr { 192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 10.99.0.2 }";
    let bogus_v6 = "ip6 daddr { 2001:db8::/32, fd99::2, fe80::/10 }";
    let udp = "meta l4proto udp drop";
    let tables: [(&str, &[&str], &str); 7] = [
        (
            "bogus addresses and the gateway",
            &[
                &format!("{bogus} meta l4proto tcp reject with tcp reset"),
                &format!("{bogus} drop"),
                &format!("{bogus_v6} meta l4proto tcp reject with tcp reset"),
                &format!("{bogus_v6} drop"),
            ],
            "was let out",
        ),
        (
            "the usual ports alone",
            &[
                "udp dport { 53, 443 } drop",
                "tcp dport { 80, 443 } reject with tcp reset",
                "meta l4proto { icmp, ipv6-icmp } drop",
            ],
            "UDP to",
        ),
        ("UDP alone", &[udp], "TCP to"),
        ("all but the web", &["tcp dport { 80, 443 } accept", "meta l4proto tcp reject with tcp reset", udp], "TCP to"),
        ("all but names", &["meta l4proto tcp reject with tcp reset", "udp dport 53 accept", udp], "UDP to"),
        ("all but pings", &["meta l4proto tcp reject with tcp reset", udp], "ICMP to"),
        (
            "IPv4 alone",
            &["meta nfproto ipv4 meta l4proto tcp reject with tcp reset", "meta nfproto ipv4 drop"],
            "was let out",
        ),
    ];
    for (what, rules, reason) in tables {
        let world = pod();
        if what == "all but pings" {
            allow_ping(&world);
        }
        nft(&world, &["add", "table", "inet", "others"]);
        nft(&world, &["add", "chain", "inet", "others", "output", "{ type filter hook output priority 0; }"]);
        nft(&world, &["add", "rule", "inet", "others", "output", "oif", "lo", "accept"]);
        for rule in rules {
            nft(&world, &["add", "rule", "inet", "others", "output", rule]);
        }
        let (code, told) = told(&world);
        assert_eq!(code, Some(1), "{what}: {told}");
        assert!(told.contains(reason), "{what}: expected {reason:?}: {told}");
        // Control: with a fence beside it, there is proof.
        raise(&world);
        proven(&world);
    }
}

#[test]
fn routes_that_lead_nowhere_are_no_fence() {
    for nowhere in ["blackhole", "prohibit", "unreachable"] {
        let world = pod();
        for (version, gateway) in [("-4", "10.99.0.0/24"), ("-6", "fd99::/64")] {
            ip(&world, &[version, "route", "replace", nowhere, "default"]);
            let _ = world.machine_program("ip").args([version, "route", "del", "default", "dev", "eth0"]).output();
            let _ = world.machine_program("ip").args([version, "route", "del", gateway, "dev", "eth0"]).output();
        }
        ip(&world, &["-6", "route", "flush", "dev", "eth0"]);
        // Not a route is left, and still a socket that is bound to the interface sends.
        not_proven(&world, "through eth0 was let out");
        raise(&world);
        proven(&world);
    }
    let world = pod();
    ip(&world, &["route", "flush", "dev", "eth0"]);
    ip(&world, &["-6", "route", "flush", "dev", "eth0"]);
    not_proven(&world, "through eth0 was let out");
    raise(&world);
    proven(&world);
}

#[test]
fn addresses_that_are_led_elsewhere_prove_nothing() {
    let world = pod();
    raise(&world);
    for sink in ["192.175.48.0/24", "192.31.196.0/24", "198.51.100.0/24"] {
        ip(&world, &["route", "add", "prohibit", sink]);
    }
    not_proven(&world, "IPv4 has a default route, but only 0");
    ip(&world, &["route", "del", "prohibit", "192.31.196.0/24"]);
    not_proven(&world, "but only 1");
    ip(&world, &["route", "del", "prohibit", "198.51.100.0/24"]);
    proven(&world);
}

#[test]
fn a_version_of_ip_without_a_way_out_counts_as_proven() {
    let world = pod();
    world.in_machine(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")).expect("disable IPv6");
    not_proven(&world, "UDP to 10.99.0.2");
    raise(&world);
    assert!(proven(&world).contains("IPv6: no way out"));
    let alone = World::new();
    not_proven(&alone, "UDP to");
    ip(&alone, &["link", "delete", "eth0"]);
    assert!(proven(&alone).contains("IPv4: no way out, IPv6: no way out"));
}

#[test]
fn it_waits_for_the_fence_and_not_for_ever() {
    let world = pod();
    let started = Instant::now();
    let late = verify(&world, WORKLOAD, WORKLOAD, &["--timeout", "1"]).output().expect("start");
    assert_eq!(late.status.code(), Some(1));
    let took = started.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(10), "{took:?}");
    let mut waiting = verify(&world, WORKLOAD, WORKLOAD, &[]).stderr(Stdio::piped()).spawn().expect("start");
    std::thread::sleep(Duration::from_millis(500));
    assert!(waiting.try_wait().expect("wait").is_none(), "it gave up, or believed");
    raise(&world);
    assert!(waiting.wait().expect("wait").success());
    // With a fence that stands it takes no time at all.
    let best = world.in_machine(|| {
        let run = || {
            let started = Instant::now();
            let output = Command::new(supervisor()).arg("verify-fence").output().expect("start");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            started.elapsed()
        };
        (0..10).map(|_| run()).min().expect("ten")
    });
    eprintln!("verify-fence: {best:?} (best of 10)");
    assert!(best < Duration::from_millis(100), "{best:?}");
}

#[test]
fn a_signal_ends_the_proof_even_as_the_first_process_of_a_container() {
    let world = pod();
    let mut command = world.machine_program("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child"]).arg(supervisor());
    command.args(["verify-fence", "--timeout", "30"]).stderr(Stdio::null());
    let mut outer = Daemon::spawn(command);
    let inner = waits_for_term(&outer);
    let sent = Instant::now();
    nix::sys::signal::kill(inner, nix::sys::signal::Signal::SIGTERM).expect("signal");
    let status = outer.wait_within(Duration::from_secs(5)).expect("it still tries");
    assert_eq!(status.code(), Some(128 + 15));
    assert!(sent.elapsed() < Duration::from_secs(1), "{:?}", sent.elapsed());
}

/// The child, once TERM is caught there or held for somebody who waits for it (proc(5)).
fn waits_for_term(outer: &Daemon) -> nix::unistd::Pid {
    let children = format!("/proc/{0}/task/{0}/children", outer.pid());
    let mut inner = None;
    crate::world::eventually("it minds signals", || {
        inner = std::fs::read_to_string(&children).unwrap_or_default().trim().parse().ok();
        inner.is_some_and(|pid: i32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            status
                .lines()
                .filter_map(|line| line.strip_prefix("SigCgt:").or(line.strip_prefix("SigBlk:")))
                .any(|mask| u64::from_str_radix(mask.trim(), 16).is_ok_and(|mask| mask & (1 << 14) != 0))
        })
    });
    nix::unistd::Pid::from_raw(inner.expect("a child"))
}

#[test]
fn it_refuses_to_run_as_the_proxy() {
    let world = pod();
    raise(&world);
    for (uid, gid) in [(PROXY, PROXY), (PROXY, WORKLOAD), (WORKLOAD, PROXY)] {
        let output = verify(&world, uid, gid, &["--timeout", "0.2"]).output().expect("start");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("run it as the workload's uid and gid"), "{told}");
    }
    let root = verify(&world, 0, WORKLOAD, &["--proxy-uid", "0"]).output().expect("start");
    assert_eq!(root.status.code(), Some(2));
    // Control: as anybody else, it proves the same fence; and the proxy's way out is none of its business.
    proven(&world);
    let address = IpAddr::from([10, 99, 0, 2]);
    let listener = world.listen(address, 80);
    let mut proxy = program(&world, PROXY, PROXY, "-all");
    proxy.args(["/usr/bin/python3", "-c", "import socket; socket.create_connection(('10.99.0.2', 80), timeout=3)"]);
    assert!(proxy.status().expect("python3").success());
    drop(listener);
}
