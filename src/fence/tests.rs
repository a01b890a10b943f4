//! The ruleset against the kernel and against what `nft` reads there.

use std::process::Command;
use std::time::Instant;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST};
use netlink_packet_netfilter::nftables::{NfTablesMessage, TableAttribute, TableMessage};
use netlink_packet_netfilter::none::ControlMessage;
use netlink_packet_netfilter::{NetfilterHeader, NetfilterProtoFamily};
use nix::sched::{CloneFlags, unshare};

use super::encode::{Existing, Family, Policy, Ruleset, counter, message_bytes};
use super::*;
use crate::sys::child;
use crate::sys::netlink::{Protocol, Socket};

mod pods;

/// Takes the fence away, as controls need it.
pub(crate) fn remove(socket: &Socket) {
    let control =
        |message| message_bytes(NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, 10), message, NLM_F_REQUEST);
    let table = TableMessage { attributes: vec![TableAttribute::Name(TABLE.to_string())] };
    let delete = message_bytes(
        NetfilterHeader::new(NetfilterProtoFamily::Inet, 0, 0),
        NfTablesMessage::DeleteTable(table),
        NLM_F_REQUEST | NLM_F_ACK,
    );
    let bytes = [control(ControlMessage::BatchBegin), delete, control(ControlMessage::BatchEnd)].concat();
    socket.exchange(&bytes, 1, |_| {}).unwrap();
}

fn in_namespace(act: impl FnOnce(Socket)) {
    child::run(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        act(Socket::open(Protocol::Netfilter).unwrap());
        Vec::new()
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

fn nft(arguments: &[&str]) -> String {
    let output = Command::new("nft").args(arguments).output().expect("the nftables package is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn nft_reads_the_ruleset_as_it_was_meant() {
    in_namespace(|_| {
        combined::raise(true).unwrap();
        let text = nft(&["-n", "list", "ruleset"]);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "}").collect();
        assert_eq!(
            lines,
            [
                "table inet openshell_fence {",
                "chain output {",
                "type filter hook output priority 0; policy drop;",
                "ip daddr 127.0.0.0/8 accept",
                "ip6 daddr ::1 accept",
                "counter packets 0 bytes 0 limit rate 50/second burst 200 packets log prefix \"openshell-bypass\" group \
                 3128 snaplen 128",
                "meta l4proto 6 reject with tcp reset",
                "reject with icmpx 3",
            ],
            "{text}"
        );
    });
}

#[test]
fn nft_reads_the_ipv4_ruleset_as_it_was_meant() {
    in_namespace(|socket| {
        raise::apply(&socket, &combined::ruleset(Family::Ipv4, false), Existing::Refused).unwrap();
        let text = nft(&["list", "ruleset"]);
        assert!(text.contains("table ip openshell_fence"), "{text}");
        assert!(text.contains("reject with icmp") && text.contains("admin-prohibited"), "{text}");
        assert!(!text.contains("log"), "{text}");
    });
}

#[test]
fn json_of_nft_has_one_base_chain_with_policy_drop() {
    in_namespace(|_| {
        combined::raise(true).unwrap();
        let json: serde_json::Value = serde_json::from_str(&nft(&["-j", "list", "ruleset"])).unwrap();
        let objects = json["nftables"].as_array().unwrap();
        let chains: Vec<_> = objects.iter().filter_map(|object| object.get("chain")).collect();
        assert_eq!(chains.len(), 1);
        assert_eq!(
            (&chains[0]["hook"], &chains[0]["policy"], &chains[0]["type"], &chains[0]["prio"]),
            (&"output".into(), &"drop".into(), &"filter".into(), &0.into())
        );
        assert_eq!(objects.iter().filter(|object| object.get("rule").is_some()).count(), 5);
    });
}

/// Changes the ruleset with `nft` and expects the read-back to say `expected`.
fn differs(change: &[&str], expected: &str) {
    in_namespace(|socket| {
        let ruleset = combined::ruleset(Family::Inet, true);
        raise::apply(&socket, &ruleset, Existing::Refused).unwrap();
        readback::verify(&socket, &ruleset).unwrap();
        nft(change);
        let error = readback::verify(&socket, &ruleset).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    });
}

#[test]
fn the_read_back_finds_every_change() {
    differs(&["delete", "table", "inet", TABLE], "the table is missing");
    differs(&["add", "table", "inet", TABLE, "{ flags dormant; }"], "the table is dormant");
    differs(&["flush", "table", "inet", TABLE], "has 0 rules, expected 5");
    differs(&["add", "chain", "inet", TABLE, "other"], "chain other was not asked for");
    differs(&["add", "chain", "inet", TABLE, "output", "{ policy accept; }"], "policy is 1, expected 0");
    differs(&["insert", "rule", "inet", TABLE, "output", "accept"], "rule 1 of chain output reads [immediate(");
    differs(&["add", "rule", "inet", TABLE, "output", "accept"], "has 6 rules, expected 5");
    differs(
        &["replace", "rule", "inet", TABLE, "output", "handle", "2", "ip", "daddr", "126.0.0.0/7", "accept"],
        "rule 1",
    );
    differs(&["replace", "rule", "inet", TABLE, "output", "handle", "5", "reject"], "rule 4");
}

#[test]
fn the_read_back_compares_hook_and_priority() {
    in_namespace(|socket| {
        let meant = combined::ruleset(Family::Inet, true);
        let mut other = meant.clone();
        other.chains[0].priority = -10;
        raise::apply(&socket, &other, Existing::Refused).unwrap();
        let error = readback::verify(&socket, &meant).unwrap_err().to_string();
        assert!(error.contains("priority is -10, expected 0"), "{error}");
    });
    in_namespace(|socket| {
        let meant = combined::ruleset(Family::Inet, true);
        let mut other = meant.clone();
        other.chains[0].hook = netlink_packet_netfilter::nftables::InetHookNumber::LocalIn;
        raise::apply(&socket, &other, Existing::Refused).unwrap();
        let error = readback::verify(&socket, &meant).unwrap_err().to_string();
        assert!(error.contains("hook is 1, expected 3"), "{error}");
    });
}

#[test]
fn a_table_that_is_there_already_is_not_touched() {
    in_namespace(|socket| {
        nft(&["add", "table", "inet", TABLE]);
        let error =
            raise::apply(&socket, &combined::ruleset(Family::Inet, true), Existing::Refused).unwrap_err().to_string();
        assert!(error.contains("there already"), "{error}");
        assert!(!nft(&["list", "ruleset"]).contains("chain"));
    });
}

#[test]
fn a_refused_transaction_leaves_nothing() {
    in_namespace(|socket| {
        let mut bad: Ruleset = combined::ruleset(Family::Inet, false);
        bad.chains[0].policy = Policy::Accept;
        // A reject in the prerouting hook with a code that does not exist.
        bad.chains[0].rules.push(vec![counter(), encode::equals(&[0; 64])]);
        raise::apply(&socket, &bad, Existing::Refused).unwrap_err();
        assert_eq!(nft(&["list", "ruleset"]), "");
    });
}

#[test]
fn raising_without_rights_says_what_is_missing() {
    let answer = child::run(|| {
        nix::unistd::setresuid(4321.into(), 4321.into(), 4321.into()).unwrap();
        combined::raise(false).unwrap_err().to_string().into_bytes()
    });
    let error = String::from_utf8(answer.unwrap()).unwrap();
    assert!(error.contains("CAP_NET_ADMIN"), "{error}");
}

#[test]
fn raising_is_quick() {
    in_namespace(|socket| {
        let ruleset = combined::ruleset(Family::Inet, true);
        let transaction = ruleset.transaction(Existing::Refused);
        let start = Instant::now();
        socket.exchange(&transaction.bytes, transaction.acknowledgements, |_| {}).unwrap();
        let sent = start.elapsed();
        readback::verify(&socket, &ruleset).unwrap();
        // Some tens of milliseconds would be a synchronous grace period of the kernel; this is well below.
        assert!(sent.as_millis() < 50, "{sent:?}");
        eprintln!("{} bytes, transaction {sent:?}, with read-back {:?}", transaction.bytes.len(), start.elapsed());
    });
}
