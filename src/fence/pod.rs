//! The ruleset of a pod (design §7): whatever leaves the pod's namespace is the proxy's, or an answer to somebody who
//! came in, or is refused.
//!
//! A packet is judged by its connection rather than by its socket. `meta skuid` alone misses what a closed socket still
//! has queued, and `ct direction reply` alone lets a connection out that was open before the fence when its peer
//! speaks first. So the packet that begins a connection marks it: the proxy's own, going out, and anybody's, coming in;
//! and the mark lets pass all that follows, whichever way it goes.

use netlink_packet_netfilter::nftables::{InetHookNumber, MetaKey};

use super::encode::{self, Chain, Connection, Existing, FILTER, Family, IPV6, NEW, Policy, Rejection, Rule, Ruleset};
use super::exempt::Exempt;
use super::refusal::{self, TCP};
use super::{Error, TABLE, raise};
use crate::contract::Ids;

/// Mark of a connection that may go on. Nothing but the number matters; it spells `oshf`, so that it is no one else's
/// by chance.
pub const MARK: u32 = 0x6f73_6866;

/// `LOOPBACK_IFINDEX`: the kernel gives `lo` this number in every namespace, whatever it is called later.
const LO: u32 = 1;

/// `IPPROTO_ICMPV6`.
const ICMPV6: u8 = 58;

/// Offset of TCP's flags, RFC 9293 §3.1, and those of them that make a beginning.
const TCP_FLAGS: u32 = 13;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Offset of the ICMPv6 type, and the types by which neighbours find each other: multicast listener report and done
/// (RFC 2710; RFC 4861 §7.2.1 needs them for solicited-node addresses), then router solicitation to neighbour
/// advertisement (RFC 4861 §4), and the listener report of version 2 (RFC 3810).
const ICMPV6_TYPE: u32 = 0;
const LISTENER_REPORT: u8 = 131;
const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
const LISTENER_REPORT_V2: u8 = 143;

/// `(uid_t)-1`, which no socket has: a comparison with it holds for every packet that a program's socket sent, and
/// fails for those that the kernel sends by itself (`nft_meta_get_eval_skugid`).
const NOBODY: u32 = u32::MAX;

/// The ruleset that lets `proxy` out.
#[must_use]
pub fn ruleset(family: Family, proxy: Exempt) -> Ruleset {
    let chain = |name, hook, policy, rules| Chain { name, hook, priority: FILTER, policy, rules };
    Ruleset {
        family,
        table: TABLE,
        chains: vec![
            chain("input", InetHookNumber::LocalIn, Policy::Accept, arrivals()),
            chain("output", InetHookNumber::LocalOut, Policy::Drop, departures(family, proxy.ids())),
        ],
    }
}

/// Puts the ruleset in force in the caller's network namespace, in the place of an earlier one, and reads it back.
///
/// # Errors
/// The fence does not stand; what stood before still does.
pub fn raise(proxy: Exempt) -> Result<Family, Error> {
    raise::raise(|family| ruleset(family, proxy), Existing::Replaced)
}

/// Compares what is in force in the caller's network namespace with the ruleset, and changes nothing.
///
/// # Errors
/// The fence does not stand as [`raise`] leaves it.
pub fn verify(proxy: Exempt) -> Result<Family, Error> {
    raise::verify(|family| ruleset(family, proxy))
}

/// Who comes in gets answers: probes, and the services of the pod.
///
/// New to connection tracking is not enough for TCP, which also takes the middle of a connection that it never saw
/// begin for a new one (`nf_conntrack_tcp_loose`).
fn arrivals() -> Vec<Rule> {
    let from_outside = [encode::meta(MetaKey::Iif), encode::differs(&LO.to_ne_bytes())];
    let new = [
        encode::connection(Connection::State),
        encode::masked(&NEW.to_ne_bytes()),
        encode::differs(&0u32.to_ne_bytes()),
    ];
    let tcp = [
        encode::meta(MetaKey::L4Proto),
        encode::equals(&[TCP]),
        encode::transport_header(TCP_FLAGS, 1),
        encode::masked(&[FIN | SYN | RST | ACK]),
        encode::equals(&[SYN]),
    ];
    let other = [encode::meta(MetaKey::L4Proto), encode::differs(&[TCP])];
    let rule = |protocol: &[_]| [from_outside.as_slice(), protocol, &new, &encode::mark_connection(MARK)].concat();
    vec![rule(&tcp), rule(&other)]
}

fn departures(family: Family, proxy: Ids) -> Vec<Rule> {
    let mut proxys_own = vec![
        encode::meta(MetaKey::SocketUserId),
        encode::equals(&proxy.uid.to_ne_bytes()),
        encode::meta(MetaKey::SocketGroupId),
        encode::equals(&proxy.gid.to_ne_bytes()),
    ];
    proxys_own.extend(encode::mark_connection(MARK));
    proxys_own.push(encode::accept());
    let mut rules = vec![
        vec![encode::meta(MetaKey::Oif), encode::equals(&LO.to_ne_bytes()), encode::accept()],
        proxys_own,
        vec![encode::connection(Connection::Mark), encode::equals(&MARK.to_ne_bytes()), encode::accept()],
    ];
    if family == Family::Inet {
        rules.extend(neighbours());
    }
    rules.push(vec![encode::counter()]);
    rules.extend(refusal::rules(family));
    rules
}

/// Without neighbour discovery no IPv6 leaves for long. Connection tracking leaves it alone, so no mark would help. It
/// is the kernel that speaks it: what a program's raw socket makes look like it is refused first.
fn neighbours() -> [Rule; 3] {
    let icmpv6 = [
        encode::meta(MetaKey::Nfproto),
        encode::equals(&[IPV6]),
        encode::meta(MetaKey::L4Proto),
        encode::equals(&[ICMPV6]),
    ];
    let rule = |rest: &[_]| [icmpv6.as_slice(), rest].concat();
    let kind = encode::transport_header(ICMPV6_TYPE, 1);
    [
        rule(&[
            encode::meta(MetaKey::SocketUserId),
            encode::differs(&NOBODY.to_ne_bytes()),
            encode::counter(),
            encode::reject(Rejection::Prohibited),
        ]),
        rule(&[
            kind.clone(),
            encode::at_least(&[LISTENER_REPORT]),
            kind.clone(),
            encode::at_most(&[NEIGHBOUR_ADVERTISEMENT]),
            encode::accept(),
        ]),
        rule(&[kind, encode::equals(&[LISTENER_REPORT_V2]), encode::accept()]),
    ]
}
