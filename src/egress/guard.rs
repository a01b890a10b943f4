//! Whether the addresses of an allowed destination may be dialled (design §4).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use crate::policy::address::{self, Class, classify};
use crate::policy::decision::Decision;
use crate::policy::host::Host;

/// Why a destination may not be dialled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GuardError {
    /// An address that no policy can allow.
    #[error("{host} is at {address}, which is {kind}: such addresses are never dialled")]
    Forbidden {
        /// As it was asked for.
        host: Host,
        /// What it resolved to.
        address: IpAddr,
        /// Which kind of address that is.
        kind: &'static str,
    },
    /// An internal address that this policy does not allow.
    #[error(
        "{host} is at {address}, which is internal ({kind}), and no endpoint names the host exactly or lists the address"
    )]
    Internal {
        /// As it was asked for.
        host: Host,
        /// What it resolved to.
        address: IpAddr,
        /// Which kind of address that is.
        kind: &'static str,
    },
    /// An address outside the ranges that are all that allows the destination.
    #[error("{host} is at {address}, and what allows it allows only certain addresses, of which this is none")]
    Unlisted {
        /// As it was asked for.
        host: Host,
        /// What it resolved to.
        address: IpAddr,
    },
    /// No address to judge, where the address is all that allows the destination.
    #[error(
        "{host} has no address that is known here, and what allows it allows only certain addresses; name the host in an \
         endpoint"
    )]
    Unknown {
        /// As it was asked for.
        host: Host,
    },
    /// The proxy itself.
    #[error("{address} is the proxy's own address")]
    Own {
        /// Which.
        address: SocketAddr,
    },
}

impl GuardError {
    /// What the reader of the refusal can do about it.
    #[must_use]
    pub fn next_step(&self) -> String {
        match self {
            Self::Forbidden { kind, .. } => address::instead(kind),
            Self::Internal { host, .. } => format!(
                "if {host} is meant to be internal, name it exactly in an endpoint, or list its address in allowed_ips"
            ),
            Self::Unlisted { host, address } => {
                format!("name {host} in an endpoint, or list {address} in the allowed_ips of one")
            }
            Self::Unknown { host } => format!("name {host} in an endpoint"),
            Self::Own { .. } => {
                "nothing is to be had from the proxy itself: name the destination that is meant".to_owned()
            }
        }
    }
}

/// Judges an allowed destination by what its host tells of its address, before anybody is asked; one that tells none passes.
///
/// # Errors
/// It would not be dialled.
pub fn admit_untold(host: &Host, port: u16, decision: &Decision) -> Result<(), GuardError> {
    match address::told_by(host) {
        Some(address) => admit(host, port, &[address], decision, &Own::default()),
        None => Ok(()),
    }
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
}
