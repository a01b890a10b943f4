//! What is read from packets, and what becomes of it.

use std::sync::{Arc, Mutex};

use super::*;

fn ipv4(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let mut packet = vec![0x46, 0, 0, 0, 0, 0, 0x40, 0, 64, protocol, 0, 0, 127, 0, 0, 1, 203, 0, 113, 7];
    packet.extend([0x94, 4, 0, 0]);
    packet.extend(rest);
    packet
}

#[test]
fn ports_are_read_behind_ipv4_options() {
    let attempt = packet_addresses(&ipv4(IPPROTO_TCP, &[0xc0, 0, 1, 0xbb, 0, 0])).unwrap();
    assert_eq!((attempt.source_port, attempt.destination_port, attempt.protocol), (0xc000, 443, IPPROTO_TCP));
    assert_eq!(attempt.destination, IpAddr::from([203, 0, 113, 7]));
    let icmp = packet_addresses(&ipv4(IPPROTO_ICMP, &[8, 0, 1, 0xbb])).unwrap();
    assert_eq!((icmp.source_port, icmp.destination_port), (0, 0));
}

#[test]
fn later_fragments_have_no_ports() {
    let mut packet = ipv4(IPPROTO_UDP, &[0xc0, 0, 1, 0xbb]);
    packet[7] = 1;
    assert_eq!(packet_addresses(&packet).unwrap().destination_port, 0);
}

#[test]
fn ports_are_read_behind_ipv6_extensions() {
    let mut packet = vec![0x60, 0, 0, 0, 0, 0, 60, 64];
    packet.extend(Ipv6Addr::LOCALHOST.octets());
    packet.extend("2001:db8::7".parse::<Ipv6Addr>().unwrap().octets());
    packet.extend([IPPROTO_FRAGMENT, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend([IPPROTO_UDP, 0, 0, 1, 0, 0, 0, 0]);
    packet.extend([0x10, 0, 0, 53]);
    let attempt = packet_addresses(&packet).unwrap();
    assert_eq!((attempt.protocol, attempt.source_port, attempt.destination_port), (IPPROTO_UDP, 0x1000, 53));
    assert_eq!(attempt.destination.to_string(), "2001:db8::7");
}

#[test]
fn no_prefix_of_a_packet_panics() {
    let mut packets = vec![ipv4(IPPROTO_TCP, &[0; 8]), vec![0x60; 80], vec![0x45; 80], vec![0xff; 80]];
    packets.push([&[0x60, 0, 0, 0, 0, 0, 0, 64][..], &[0; 80]].concat());
    for packet in packets {
        for length in 0..packet.len() {
            let _ = packet_addresses(&packet[..length]);
            let _ = attempts(&packet[..length]);
        }
    }
}

/// Reads reports for `time` and gives the events, those of the end included.
pub(crate) fn collect(packets: OwnedFd, time: Duration) -> Vec<Event> {
    let events = Arc::new(Mutex::new(Vec::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let read = read(packets, |_| None, |event| events.lock().unwrap().push(event));
        let _ = tokio::time::timeout(time, read).await;
    });
    std::mem::take(&mut events.lock().unwrap())
}

fn attempt_to(port: u16) -> Attempt {
    Attempt {
        source: Ipv4Addr::LOCALHOST.into(),
        source_port: 40000,
        destination: Ipv4Addr::new(203, 0, 113, 7).into(),
        destination_port: port,
        protocol: IPPROTO_TCP,
        uid: Some(1000),
    }
}

/// What was emitted, as `port count` or the kind of a finding.
fn emitted(act: impl FnOnce(&mut Tally<&mut dyn FnMut(Event)>)) -> Vec<String> {
    let mut seen = Vec::new();
    let mut emit = |event: Event| {
        seen.push(match event {
            Event::Network(network) => format!("{} {}", network.port, network.count),
            Event::Finding(finding) => finding.kind.to_string(),
            Event::Process(_) | Event::Ssh(_) => panic!("no process is concerned"),
        });
    };
    {
        let mut tally =
            Tally { emit: &mut emit as &mut dyn FnMut(Event), kinds: HashMap::new(), beyond: 0, lost: false };
        act(&mut tally);
    }
    seen
}

#[test]
fn repetitions_are_told_once_a_window_and_at_the_end() {
    let none = |_: &Attempt| None;
    let seen = emitted(|tally| {
        for _ in 0..5 {
            tally.add(&attempt_to(443), &none);
        }
        tally.flush();
        tally.add(&attempt_to(443), &none);
        tally.flush();
        // A window without any ends the memory of it.
        tally.flush();
        tally.add(&attempt_to(443), &none);
        tally.add(&attempt_to(443), &none);
    });
    assert_eq!(seen, ["443 1", "443 4", "443 1", "443 1", "443 1"]);
}

#[test]
fn programs_and_users_are_told_apart() {
    let seen = emitted(|tally| {
        let binary =
            |name: &'static str| move |_: &Attempt| Some(Actor { binary: Some(name.to_string()), ..Actor::default() });
        tally.add(&attempt_to(443), &binary("/usr/bin/curl"));
        tally.add(&attempt_to(443), &binary("/usr/bin/wget"));
        tally.add(&Attempt { uid: Some(7), ..attempt_to(443) }, &binary("/usr/bin/wget"));
    });
    assert_eq!(seen, ["443 1", "443 1", "443 1"]);
}

#[test]
fn a_scan_is_bounded_and_named() {
    let none = |_: &Attempt| None;
    let seen = emitted(|tally| {
        for port in 1..=60000 {
            tally.add(&attempt_to(port), &none);
        }
        assert_eq!(tally.kinds.len(), DISTINCT);
    });
    assert_eq!(seen.len(), DISTINCT + 1);
    assert_eq!(seen.last().unwrap(), "bypass-scan");
}

#[test]
fn loss_is_told_once_a_window() {
    let seen = emitted(|tally| {
        tally.lost();
        tally.lost();
        tally.flush();
        tally.lost();
    });
    assert_eq!(seen, ["bypass-reports-lost", "bypass-reports-lost"]);
}

#[test]
fn an_unknown_program_is_said_to_be_unknown() {
    let kind = Kind {
        destination: Ipv4Addr::new(203, 0, 113, 7).into(),
        port: 443,
        protocol: IPPROTO_TCP,
        uid: None,
        binary: None,
    };
    let reason = |actor: Actor| match event(&kind, actor, 1) {
        Event::Network(network) => network.reason.unwrap(),
        _ => panic!("not a network event"),
    };
    assert!(reason(Actor::default()).contains("could not be found"));
    let known = Actor { binary: Some("/usr/bin/curl".to_string()), ..Actor::default() };
    assert!(!reason(known).contains("could not be found"));
}
