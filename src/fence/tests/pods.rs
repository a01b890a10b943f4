//! The pod's ruleset against the kernel and against what `nft` reads there.

use std::time::Duration;

use netlink_packet_core::DefaultNla;
use netlink_packet_netfilter::nftables::Expressions;

use super::*;
use crate::contract::Ids;
use crate::fence::exempt::Exempt;
use crate::fence::pod;

fn proxy(uid: u32, gid: u32) -> Exempt {
    Exempt::new(Ids { uid, gid }, Ids { uid: 2000, gid: 2000 }).unwrap()
}

fn listed() -> Vec<String> {
    let text = nft(&["-n", "list", "ruleset"]);
    text.lines().map(str::trim).filter(|line| !line.is_empty() && *line != "}").map(str::to_owned).collect()
}

#[test]
fn nft_reads_the_ruleset_as_it_was_meant() {
    in_namespace(|_| {
        pod::raise(proxy(0, 1337)).unwrap();
        assert_eq!(
            listed(),
            [
                "table inet openshell_fence {",
                "chain input {",
                "type filter hook input priority 0; policy accept;",
                "iif != \"lo\" tcp flags 0x2 / 0x1,0x2,0x4,0x10 ct state 0x8 ct mark set 0x6f736866",
                "iif != \"lo\" meta l4proto != 6 ct state 0x8 ct mark set 0x6f736866",
                "chain output {",
                "type filter hook output priority 0; policy drop;",
                "oif \"lo\" accept",
                "meta skuid 0 meta skgid 1337 ct mark set 0x6f736866 accept",
                "ct mark 0x6f736866 accept",
                "meta l4proto 58 meta skuid != 4294967295 counter packets 0 bytes 0 reject with icmpx 3",
                "icmpv6 type 131-136 accept",
                "icmpv6 type 143 accept",
                "counter packets 0 bytes 0",
                "meta l4proto 6 reject with tcp reset",
                "reject with icmpx 3",
            ]
        );
    });
}

#[test]
fn without_ipv6_the_ipv4_half_is_the_ruleset() {
    in_namespace(|socket| {
        raise::apply(&socket, &pod::ruleset(Family::Ipv4, proxy(1337, 1338)), Existing::Replaced).unwrap();
        let lines = listed();
        assert_eq!(lines[0], "table ip openshell_fence {");
        assert!(
            lines.contains(&"meta skuid 1337 meta skgid 1338 ct mark set 0x6f736866 accept".to_owned()),
            "{lines:?}"
        );
        assert!(!lines.iter().any(|line| line.contains("icmpv6") || line.contains("icmpx")), "{lines:?}");
    });
}

#[test]
fn a_fence_that_is_there_already_is_replaced_whole() {
    in_namespace(|_| {
        pod::raise(proxy(1337, 1337)).unwrap();
        let meant = listed();
        nft(&["insert", "rule", "inet", TABLE, "output", "accept"]);
        nft(&["add", "chain", "inet", TABLE, "other"]);
        nft(&["add", "table", "inet", "foreign"]);
        assert_ne!(listed(), meant);
        pod::raise(proxy(1337, 1337)).unwrap();
        let now = listed();
        assert_eq!(
            now.iter().filter(|line| !line.contains("foreign")).collect::<Vec<_>>(),
            meant.iter().collect::<Vec<_>>()
        );
        assert!(now.iter().any(|line| line.contains("foreign")), "another's table is not ours to touch: {now:?}");
    });
}

#[test]
fn the_read_back_finds_a_changed_mark_mask_or_id() {
    in_namespace(|socket| {
        let meant = pod::ruleset(Family::Inet, proxy(1337, 1337));
        for (held, expected) in [
            (pod::ruleset(Family::Inet, proxy(1337, 1338)), "rule 2 of chain output"),
            (pod::ruleset(Family::Inet, proxy(1338, 1337)), "rule 2 of chain output"),
        ] {
            raise::apply(&socket, &held, Existing::Replaced).unwrap();
            let error = readback::verify(&socket, &meant).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let mut wider = meant.clone();
        wider.chains[0].rules[0].retain(|expression| !matches!(expression, Expressions::Bitwise(_)));
        raise::apply(&socket, &wider, Existing::Replaced).unwrap();
        let error = readback::verify(&socket, &meant).unwrap_err().to_string();
        assert!(error.contains("rule 1 of chain input"), "{error}");
        // Control.
        raise::apply(&socket, &meant, Existing::Replaced).unwrap();
        readback::verify(&socket, &meant).unwrap();
    });
}

/// A kernel that lacks an expression answers as this one does to a name that no kernel has.
#[test]
fn a_kernel_without_connection_tracking_is_told_by_name() {
    in_namespace(|socket| {
        let mut ruleset = pod::ruleset(Family::Inet, proxy(1337, 1337));
        for rule in ruleset.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
            for expression in rule {
                if matches!(expression, Expressions::Other { expression_type, .. } if expression_type == "ct") {
                    *expression = Expressions::Other {
                        expression_type: "nosuch".to_owned(),
                        attributes: vec![DefaultNla::new(1, vec![0; 4])],
                    };
                }
            }
        }
        let error = raise::apply(&socket, &ruleset, Existing::Replaced).unwrap_err().to_string();
        assert!(error.contains("CONFIG_NF_CONNTRACK") && error.contains("proxy-pod"), "{error}");
        assert_eq!(nft(&["list", "ruleset"]), "");
    });
}

#[test]
fn the_transaction_takes_less_than_a_millisecond() {
    in_namespace(|socket| {
        let ruleset = pod::ruleset(Family::Inet, proxy(1337, 1337));
        let transaction = ruleset.transaction(Existing::Replaced);
        let mut took: Vec<(Duration, Duration)> = (0..20)
            .map(|_| {
                let start = Instant::now();
                socket.exchange(&transaction.bytes, transaction.acknowledgements, |_| {}).unwrap();
                let sent = start.elapsed();
                readback::verify(&socket, &ruleset).unwrap();
                (sent, start.elapsed())
            })
            .collect();
        took.sort();
        // The best of them: the machine of the tests has other things to do.
        let (sent, whole) = took[0];
        eprintln!("{} bytes, transaction {sent:?}, with read-back {whole:?} (best of 20)", transaction.bytes.len());
        eprintln!("median {:?}", took[10]);
        assert!(sent < Duration::from_millis(1), "{sent:?}");
    });
}
