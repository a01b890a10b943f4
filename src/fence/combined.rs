//! The ruleset of the combined topology (design §7). The namespace holds only loopback, so no packet could leave it in
//! any case; the ruleset turns every attempt into an instant refusal and, rate-limited, into a report.

use netlink_packet_netfilter::nftables::{InetHookNumber, MetaKey};
use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::encode::{self, Chain, Family, Policy, Rejection, Ruleset};
use super::{Error, TABLE, bypass, readback, remedy};
use crate::sys::netlink::{Protocol, Socket};

/// The `filter` priority of nft: after mangling and destination NAT, so that what is judged is where a packet goes.
const FILTER: i32 = 0;

/// `IPPROTO_TCP`.
const TCP: u8 = 6;

/// `NFPROTO_IPV4` and `NFPROTO_IPV6`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;

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
    rules.push(vec![encode::meta(MetaKey::L4Proto), encode::equals(&[TCP]), encode::reject(Rejection::Reset)]);
    rules.push(vec![encode::reject(match family {
        Family::Inet => Rejection::Prohibited,
        Family::Ipv4 => Rejection::ProhibitedIpv4,
    })]);
    let output =
        Chain { name: "output", hook: InetHookNumber::LocalOut, priority: FILTER, policy: Policy::Drop, rules };
    Ruleset { family, table: TABLE, chains: vec![output] }
}

/// Puts the ruleset in force in the caller's network namespace and reads it back.
///
/// A kernel without any IPv6 has no `inet` tables; there, and only there, the IPv4 ruleset is the whole of it.
///
/// # Errors
/// The fence does not stand.
pub fn raise(reports: bool) -> Result<Family, Error> {
    let socket = Socket::open(Protocol::Netfilter).map_err(Error::Socket)?;
    match apply(&socket, &ruleset(Family::Inet, reports)) {
        Err(Error::Refused { source, .. }) if absent(&source) && !kernel_speaks_ipv6() => {
            // Acknowledgements of the refused transaction may still be queued on the first socket.
            let socket = Socket::open(Protocol::Netfilter).map_err(Error::Socket)?;
            apply(&socket, &ruleset(Family::Ipv4, reports)).map(|()| Family::Ipv4)
        }
        outcome => outcome.map(|()| Family::Inet),
    }
}

/// Sends one ruleset and compares what the kernel holds afterwards.
///
/// # Errors
/// The kernel refused it, or holds something else.
pub fn apply(socket: &Socket, ruleset: &Ruleset) -> Result<(), Error> {
    let family = ruleset.family.name();
    let transaction = ruleset.transaction();
    socket.exchange(&transaction.bytes, transaction.acknowledgements, |_| {}).map_err(|source| Error::Refused {
        family,
        remedy: remedy(&source),
        source,
    })?;
    readback::verify(socket, ruleset)
}

fn absent(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EAFNOSUPPORT | nix::libc::EOPNOTSUPP | nix::libc::EPROTONOSUPPORT))
}

/// Whether the kernel can make IPv6 sockets at all: not so with `ipv6.disable=1` or without `CONFIG_IPV6`.
fn kernel_speaks_ipv6() -> bool {
    !matches!(socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None), Err(Errno::EAFNOSUPPORT))
}
