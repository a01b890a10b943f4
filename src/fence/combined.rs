//! The ruleset of the combined topology (design §7). The namespace holds only loopback, so no packet could leave it in
//! any case; the ruleset turns every attempt into an instant refusal and, rate-limited, into a report.

use netlink_packet_netfilter::nftables::{InetHookNumber, MetaKey};

use super::encode::{self, Chain, Existing, FILTER, Family, IPV4, IPV6, Policy, Ruleset};
use super::{Error, TABLE, bypass, raise, refusal};

/// Offset and meaning of destination addresses: RFC 791 §3.1 and RFC 8200 §3.
const IPV4_DESTINATION: u32 = 16;
const IPV6_DESTINATION: u32 = 24;

/// The ruleset, with or without reports.
///
/// What is accepted is a *destination* on loopback. `oifname lo` would be the shorter rule and let everything out,
/// since the default routes lead through `lo`.
#[must_use]
pub fn ruleset(family: Family, reports: bool) -> Ruleset {
    let first_octet = encode::network_header(IPV4_DESTINATION, 1);
    let mut rules = match family {
        Family::Inet => {
            let loopback: [u8; 16] = std::net::Ipv6Addr::LOCALHOST.octets();
            vec![
                vec![
                    encode::meta(MetaKey::Nfproto),
                    encode::equals(&[IPV4]),
                    first_octet,
                    encode::equals(&[127]),
                    encode::accept(),
                ],
                vec![
                    encode::meta(MetaKey::Nfproto),
                    encode::equals(&[IPV6]),
                    encode::network_header(IPV6_DESTINATION, 16),
                    encode::equals(&loopback),
                    encode::accept(),
                ],
            ]
        }
        Family::Ipv4 => vec![vec![first_octet, encode::equals(&[127]), encode::accept()]],
    };
    let mut notice = vec![encode::counter()];
    if reports {
        // The limit ends this rule only, never the refusal below.
        notice.push(encode::limit(bypass::RATE, bypass::BURST));
        notice.push(encode::log(bypass::GROUP, bypass::PREFIX, bypass::SNAPLEN));
    }
    rules.push(notice);
    rules.extend(refusal::rules(family));
    let output =
        Chain { name: "output", hook: InetHookNumber::LocalOut, priority: FILTER, policy: Policy::Drop, rules };
    Ruleset { family, table: TABLE, chains: vec![output] }
}

/// Puts the ruleset in force in the caller's network namespace and reads it back.
///
/// # Errors
/// The fence does not stand.
pub fn raise(reports: bool) -> Result<Family, Error> {
    raise::raise(|family| ruleset(family, reports), Existing::Refused)
}
