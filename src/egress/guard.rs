//! Which addresses may be dialled at all (design §4). Every address is judged on its canonical form: an IPv4 address
//! inside an IPv6 one is the destination, whichever transition mechanism carries it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::policy::decision::Decision;
use crate::policy::host::Host;

/// How far an address may be trusted to be somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// On the public Internet.
    Public,
    /// On a private network: only where a policy names the host exactly or lists the address. Says which kind.
    Internal(&'static str),
    /// Never. Says why.
    Forbidden(&'static str),
}

/// IPv4 ranges that are not public, first match wins: address, prefix length, class.
const IPV4: &[(Ipv4Addr, u32, Class)] = &[
    (Ipv4Addr::new(169, 254, 169, 254), 32, Class::Forbidden("a cloud metadata service")),
    (Ipv4Addr::new(168, 63, 129, 16), 32, Class::Forbidden("a cloud metadata service")),
    (Ipv4Addr::new(100, 100, 100, 200), 32, Class::Forbidden("a cloud metadata service")),
    (Ipv4Addr::new(192, 0, 0, 192), 32, Class::Forbidden("a cloud metadata service")),
    (Ipv4Addr::new(0, 0, 0, 0), 8, Class::Forbidden("unspecified")),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Class::Forbidden("loopback")),
    (Ipv4Addr::new(169, 254, 0, 0), 16, Class::Forbidden("link-local")),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Class::Forbidden("multicast")),
    (Ipv4Addr::new(255, 255, 255, 255), 32, Class::Forbidden("broadcast")),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Class::Forbidden("reserved")),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Class::Internal("private")),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Class::Internal("private")),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Class::Internal("private")),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Class::Internal("carrier-grade NAT")),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Class::Internal("protocol assignments")),
    (Ipv4Addr::new(192, 0, 2, 0), 24, Class::Internal("documentation")),
    (Ipv4Addr::new(198, 51, 100, 0), 24, Class::Internal("documentation")),
    (Ipv4Addr::new(203, 0, 113, 0), 24, Class::Internal("documentation")),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Class::Internal("benchmarking")),
];

/// IPv6 ranges that are not public and embed nothing, first match wins.
const IPV6: &[(Ipv6Addr, u32, Class)] = &[
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128, Class::Forbidden("a cloud metadata service")),
    (Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128, Class::Forbidden("a cloud metadata service")),
    (Ipv6Addr::UNSPECIFIED, 128, Class::Forbidden("unspecified")),
    (Ipv6Addr::LOCALHOST, 128, Class::Forbidden("loopback")),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, Class::Forbidden("link-local")),
    (Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 0), 10, Class::Forbidden("site-local, which RFC 3879 abolished")),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, Class::Forbidden("multicast")),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, Class::Internal("unique local")),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, Class::Internal("documentation")),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, Class::Internal("documentation")),
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3, Class::Public),
    (Ipv6Addr::UNSPECIFIED, 0, Class::Internal("not global unicast")),
];

/// Judges an address.
#[must_use]
pub fn classify(address: IpAddr) -> Class {
    match address {
        IpAddr::V4(address) => classify_v4(address),
        IpAddr::V6(address) => classify_v6(address),
    }
}

fn classify_v4(address: Ipv4Addr) -> Class {
    IPV4.iter()
        .find(|(network, length, _)| (address.to_bits() ^ network.to_bits()) >> (32 - length) == 0)
        .map_or(Class::Public, |&(_, _, class)| class)
}

fn classify_v6(address: Ipv6Addr) -> Class {
    let segments = address.segments();
    let v4 = |high: u16, low: u16| classify_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    let last = || v4(segments[6], segments[7]);
    match segments {
        // IPv4-mapped (RFC 4291 §2.5.5.2), and IPv4-translated (RFC 2765).
        [0, 0, 0, 0, 0, 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => last(),
        // IPv4-compatible (RFC 4291 §2.5.5.1); :: and ::1 are in the table and would be 0.0.0.0/8 here.
        [0, 0, 0, 0, 0, 0, _, _] => last(),
        // NAT64, well-known prefix (RFC 6052).
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => last(),
        // NAT64, local use (RFC 8215): where the IPv4 address lies depends on a prefix length that nobody here knows.
        [0x64, 0xff9b, 1, 0, 0, 0, ..] => last().max(Class::Internal("NAT64 for local use")),
        [0x64, 0xff9b, 1, ..] => Class::Forbidden("NAT64 with an IPv4 address that cannot be told"),
        // 6to4 (RFC 3056).
        [0x2002, high, low, ..] => v4(high, low),
        // Teredo (RFC 4380): the server, and the client's address inverted.
        [0x2001, 0, high, low, ..] => v4(high, low).max(v4(!segments[6], !segments[7])),
        // ISATAP (RFC 5214 §6.1): the IPv4 address ends the interface identifier.
        [.., 0 | 0x200, 0x5efe, _, _] => last().max(table_v6(address)),
        _ => table_v6(address),
    }
}

fn table_v6(address: Ipv6Addr) -> Class {
    IPV6.iter()
        .find(|(network, length, _)| {
            (address.to_bits() ^ network.to_bits()).checked_shr(128 - length).unwrap_or(0) == 0
        })
        .map_or(Class::Internal("not global unicast"), |&(_, _, class)| class)
}

/// Why a destination may not be dialled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum GuardError {
    /// An address that no policy can allow.
    #[error("{host} is at {address}, which is {kind}: such addresses are never dialled")]
    Forbidden { host: Host, address: IpAddr, kind: &'static str },
    /// An internal address that this policy does not allow.
    #[error(
        "{host} is at {address}, which is internal ({kind}), and no endpoint names the host exactly or lists the address"
    )]
    Internal { host: Host, address: IpAddr, kind: &'static str },
    /// An address outside the ranges that are all that allows the destination.
    #[error("{host} is at {address}, and what allows it allows only certain addresses, of which this is none")]
    Unlisted { host: Host, address: IpAddr },
    /// No address to judge, where the address is all that allows the destination.
    #[error(
        "{host} has no address that is known here, and what allows it allows only certain addresses; name the host in an \
         endpoint"
    )]
    Unknown { host: Host },
    /// The proxy itself.
    #[error("{address} is the proxy's own address")]
    Own { address: SocketAddr },
}

/// The addresses at which the supervisor itself listens.
#[derive(Clone, Debug, Default)]
pub(super) struct Own(Vec<SocketAddr>);

impl Own {
    pub(super) fn new(addresses: Vec<SocketAddr>) -> Self {
        Self(addresses)
    }

    /// Whether a connection to `target` would come back to the supervisor, by whatever address of this machine.
    fn includes(&self, target: SocketAddr) -> bool {
        let target = SocketAddr::new(target.ip().to_canonical(), target.port());
        self.0.iter().any(|own| {
            own.port() == target.port()
                && (own.ip().to_canonical() == target.ip() || (own.ip().is_unspecified() && is_local(target)))
        })
    }
}

/// Whether an address is this machine's: the kernel then talks from the address itself. Connecting a datagram socket
/// sends nothing (udp(7)).
fn is_local(target: SocketAddr) -> bool {
    let any: SocketAddr = match target {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    UdpSocket::bind(any)
        .and_then(|socket| socket.connect(target).and_then(|()| socket.local_addr()))
        .is_ok_and(|local| local.ip() == target.ip() || target.ip().is_loopback())
}

/// Judges all addresses of an allowed destination; one that fails fails them all, since a name that answers with one
/// forbidden address among others is an attack or a mistake. None at all is what a name has that only the upstream proxy
/// resolves.
///
/// # Errors
/// The first address that may not be dialled.
pub(super) fn admit(
    host: &Host,
    port: u16,
    addresses: &[IpAddr],
    decision: &Decision,
    own: &Own,
) -> Result<(), GuardError> {
    let endpoints = || decision.endpoints.iter().filter_map(|(policy, index)| policy.endpoints.get(*index));
    // An endpoint without a host matches every name: the address alone decides, public or not.
    let by_range_alone = || endpoints().next().is_some() && endpoints().all(|endpoint| endpoint.host.is_none());
    if addresses.is_empty() && by_range_alone() {
        return Err(GuardError::Unknown { host: host.clone() });
    }
    for &address in addresses {
        let canonical = address.to_canonical();
        let listed = || endpoints().any(|endpoint| endpoint.lists(address) || endpoint.lists(canonical));
        match classify(address) {
            Class::Forbidden(kind) => return Err(GuardError::Forbidden { host: host.clone(), address, kind }),
            Class::Internal(kind) => {
                if !endpoints().any(|endpoint| endpoint.names(host)) && !listed() {
                    return Err(GuardError::Internal { host: host.clone(), address, kind });
                }
            }
            Class::Public => {
                if by_range_alone() && !listed() {
                    return Err(GuardError::Unlisted { host: host.clone(), address });
                }
            }
        }
        dials_itself(address, port, own)?;
    }
    Ok(())
}

/// Refuses the supervisor's own listeners; the check that holds for the host alias too.
///
/// # Errors
/// The address is one of them.
pub(super) fn dials_itself(address: IpAddr, port: u16, own: &Own) -> Result<(), GuardError> {
    let address = SocketAddr::new(address, port);
    if own.includes(address) { Err(GuardError::Own { address }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::policy::decision::Action;
    use crate::policy::{Endpoint, HostPattern, NetworkPolicy};

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn forbidden_addresses_in_every_disguise() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.255.255.254",
            "169.254.169.254",
            "169.254.0.1",
            "168.63.129.16",
            "100.100.100.200",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "192.0.0.192",
            "::",
            "::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "::127.0.0.1",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b::127.0.0.1",
            "64:ff9b:1::169.254.169.254",
            "64:ff9b:1:a9fe:a9:fe00::",
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2002:e000:1::",
            "2001:0:a9fe:a9fe::",
            "2001:0:808:808:0:0:80ff:fffe",
            "2001:db8::5efe:7f00:1",
            "2600::200:5efe:a9fe:a9fe",
        ] {
            assert!(matches!(classify(ip(text)), Class::Forbidden(_)), "{text}: {:?}", classify(ip(text)));
        }
    }

    #[test]
    fn internal_addresses_in_every_disguise() {
        for text in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "192.0.0.1",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "198.18.0.1",
            "198.19.255.255",
            "fc00::1",
            "fdff::1",
            "2001:db8::1",
            "3fff::1",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::8.8.8.8",
            "2002:a00:1::",
            "2001:0:808:808:0:0:f5ff:fffe",
            "4000::1",
            "100::1",
        ] {
            assert!(matches!(classify(ip(text)), Class::Internal(_)), "{text}: {:?}", classify(ip(text)));
        }
    }

    #[test]
    fn public_addresses_stay_public() {
        for text in [
            "1.1.1.1",
            "8.8.8.8",
            "172.32.0.1",
            "172.15.255.255",
            "100.63.255.255",
            "100.128.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "192.0.1.1",
            "168.63.129.17",
            "2606:4700::1111",
            "2a00:1450::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::",
            "2001:0:808:808:0:0:f7f7:f7f7",
            "2001:4860::8888",
        ] {
            assert_eq!(classify(ip(text)), Class::Public, "{text}");
        }
    }

    fn allowing(host: Option<HostPattern>, ranges: &[&str]) -> Decision {
        let endpoint = Endpoint {
            host,
            ports: vec![443],
            allowed_ips: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            tls_skip: false,
            inspection: None,
        };
        let policy = NetworkPolicy { key: "p".to_owned(), endpoints: vec![endpoint], binaries: Vec::new() };
        Decision {
            action: Action::Allow,
            reason: String::new(),
            policy: None,
            endpoints: vec![(Arc::new(policy), 0)],
            next_steps: Vec::new(),
        }
    }

    #[test]
    fn internal_addresses_need_an_exact_name_or_a_listed_range() {
        let host = Host::Name("db.internal".into());
        let own = Own::default();
        let glob = allowing(Some(HostPattern::Glob("*.internal".to_owned())), &[]);
        let exact = allowing(Some(HostPattern::Exact(host.clone())), &[]);
        let listed = allowing(Some(HostPattern::Glob("*.internal".to_owned())), &["10.0.0.0/8"]);
        let private = [ip("10.1.2.3")];
        assert!(matches!(admit(&host, 443, &private, &glob, &own), Err(GuardError::Internal { .. })));
        assert_eq!(admit(&host, 443, &private, &exact, &own), Ok(()));
        assert_eq!(admit(&host, 443, &private, &listed, &own), Ok(()));
        assert_eq!(admit(&host, 443, &[ip("::ffff:10.1.2.3")], &listed, &own), Ok(()));
        assert!(matches!(admit(&host, 443, &[ip("192.168.0.1")], &listed, &own), Err(GuardError::Internal { .. })));
        // One bad answer spoils all; nothing allows a forbidden one.
        assert!(admit(&host, 443, &[ip("8.8.8.8"), ip("10.1.2.3")], &glob, &own).is_err());
        let loopback = allowing(Some(HostPattern::Exact(host.clone())), &["127.0.0.0/8"]);
        assert!(matches!(admit(&host, 443, &[ip("127.0.0.1")], &loopback, &own), Err(GuardError::Forbidden { .. })));
        // An endpoint of ranges alone allows no other address, public ones included.
        let ranges = allowing(None, &["10.0.0.0/8", "9.9.9.0/24"]);
        assert_eq!(admit(&host, 443, &[ip("10.1.2.3"), ip("9.9.9.9")], &ranges, &own), Ok(()));
        assert!(matches!(admit(&host, 443, &[ip("8.8.8.8")], &ranges, &own), Err(GuardError::Unlisted { .. })));
        assert_eq!(admit(&host, 443, &[ip("8.8.8.8")], &glob, &own), Ok(()));
        // Nor a name whose addresses only the upstream proxy knows.
        assert!(matches!(admit(&host, 443, &[], &ranges, &own), Err(GuardError::Unknown { .. })));
        assert_eq!(admit(&host, 443, &[], &glob, &own), Ok(()));
        // An address that the policy writes as the host is named exactly.
        let literal = Host::Address(ip("10.1.2.3"));
        let named = allowing(Some(HostPattern::Exact(literal.clone())), &[]);
        assert_eq!(admit(&literal, 443, &private, &named, &own), Ok(()));
    }

    #[test]
    fn the_proxy_never_dials_itself() {
        let own = Own::new(vec![
            "10.9.8.7:3128".parse().unwrap(),
            "[::]:9090".parse().unwrap(),
            "0.0.0.0:3129".parse().unwrap(),
        ]);
        assert!(dials_itself(ip("10.9.8.7"), 3128, &own).is_err());
        assert!(dials_itself(ip("::ffff:10.9.8.7"), 3128, &own).is_err());
        assert!(dials_itself(ip("10.9.8.7"), 3127, &own).is_ok());
        // Any address of this machine reaches a listener on all of them.
        assert!(dials_itself(ip("127.0.0.1"), 3129, &own).is_err());
        assert!(dials_itself(ip("127.8.8.8"), 9090, &own).is_err());
        assert!(dials_itself(ip("192.0.2.1"), 3129, &own).is_ok());
    }

    proptest::proptest! {
        #[test]
        fn every_embedding_is_at_least_as_forbidden_as_what_it_embeds(bits: u32) {
            let v4 = Ipv4Addr::from_bits(bits);
            let (high, low) = ((bits >> 16) as u16, bits as u16);
            let class = classify(IpAddr::V4(v4));
            for embedding in [
                v4.to_ipv6_mapped(),
                Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2001, 0, 0x808, 0x808, 0, 0, !high, !low),
                Ipv6Addr::new(0x2001, 0, high, low, 0, 0, 0xf7f7, 0xf7f7),
            ] {
                let rank = |class| match class { Class::Public => 0, Class::Internal(_) => 1, Class::Forbidden(_) => 2 };
                proptest::prop_assert!(rank(classify(IpAddr::V6(embedding))) >= rank(class), "{}", embedding);
            }
        }
    }
}
