//! Which addresses may be dialled at all (design §4), told without asking anybody. Every address is judged on its canonical
//! form: an IPv4 address inside an IPv6 one is the destination, whichever transition mechanism carries it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::host::Host;
use crate::contract::HOST_ALIAS;

/// The kind of addresses that are this machine's own.
const LOOPBACK: &str = "loopback";

/// The name of loopback, and the end of every name below it (RFC 6761 §6.3).
const LOCALHOST: &str = "localhost";
/// See [`LOCALHOST`].
const BELOW_LOCALHOST: &str = ".localhost";

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
    (Ipv4Addr::new(127, 0, 0, 0), 8, Class::Forbidden(LOOPBACK)),
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
    (Ipv6Addr::LOCALHOST, 128, Class::Forbidden(LOOPBACK)),
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
        [0, 0, 0, 0, 0, 0, high, low] if (high, low) > (0, 1) => last(),
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

/// The address of a host, where the host itself tells it: one that is written as an address, and the names that are bound to
/// loopback whoever is asked (RFC 6761 §6.3).
#[must_use]
pub fn told_by(host: &Host) -> Option<IpAddr> {
    match host {
        Host::Address(address) => Some(*address),
        Host::Name(name) if **name == *LOCALHOST || name.ends_with(BELOW_LOCALHOST) => Some(Ipv4Addr::LOCALHOST.into()),
        Host::Name(_) => None,
    }
}

/// What kind of address `host` has that no policy can open, where it can be told without resolving it.
#[must_use]
pub fn never_dialled(host: &Host) -> Option<&'static str> {
    match classify(told_by(host)?) {
        Class::Forbidden(kind) => Some(kind),
        Class::Internal(_) | Class::Public => None,
    }
}

/// What to do about a destination that is never dialled, by the kind that [`Class::Forbidden`] names.
#[must_use]
pub fn instead(kind: &str) -> String {
    if kind == LOOPBACK {
        format!(
            "what listens on loopback inside the sandbox is reached without the proxy and needs no policy; for what listens on \
             the loopback of the machine that `run` is called on, name {HOST_ALIAS} and its port instead"
        )
    } else {
        "no policy can open it; leave it out, and name what the program really needs".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn some_hosts_tell_their_address() {
        for (host, expected) in [
            ("localhost", Some(LOOPBACK)),
            ("LOCALHOST.", Some(LOOPBACK)),
            ("a.localhost", Some(LOOPBACK)),
            ("127.1", Some(LOOPBACK)),
            ("[::1]", Some(LOOPBACK)),
            ("[::]", Some("unspecified")),
            ("169.254.169.254", Some("a cloud metadata service")),
            ("10.0.0.1", None),
            ("localhost.example.com", None),
            ("notlocalhost", None),
            (HOST_ALIAS, None),
        ] {
            assert_eq!(never_dialled(&Host::parse(host).unwrap()), expected, "{host}");
        }
        assert!(instead(LOOPBACK).contains(HOST_ALIAS) && !instead("multicast").contains(HOST_ALIAS));
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
