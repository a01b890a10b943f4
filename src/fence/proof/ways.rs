//! The ways out of a pod, as the kernel's routes and interfaces tell them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteNextHop, RouteType, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

use super::Doubt;
use super::attempt::Target;
use crate::sys::netlink::{Protocol, Socket};

/// `LOOPBACK_IFINDEX`.
const LO: u32 = 1;

/// More routes than this share what was proven for the first ones; a pod has five.
const ROUTES: usize = 64;

/// Addresses that lie outside of every pod: two sinks for stray queries (AS112, RFC 7534 and RFC 7535), which are
/// routed in the whole world and belong to nobody who would mind, and one for documentation (RFC 5737, RFC 3849), which
/// filters of bogus addresses refuse by themselves. So no list of such addresses covers all three.
const OUTSIDE_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(192, 175, 48, 42), Ipv4Addr::new(192, 31, 196, 1), Ipv4Addr::new(198, 51, 100, 1)];
const OUTSIDE_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0x42),
    Ipv6Addr::new(0x2001, 0x4, 0x112, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1),
];

/// What filters that look outwards alone forget: the metadata services of clouds, and one address of each range that is private
/// (RFC 1918, RFC 6598; the one of IPv6 is both, RFC 4193).
const INWARDS_V4: [Ipv4Addr; 5] = [
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(10, 255, 254, 1),
    Ipv4Addr::new(172, 31, 254, 1),
    Ipv4Addr::new(192, 168, 254, 1),
    Ipv4Addr::new(100, 127, 254, 1),
];
const INWARDS_V6: [Ipv6Addr; 1] = [Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)];

/// Which IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl fmt::Display for IpVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl IpVersion {
    fn family(self) -> AddressFamily {
        match self {
            Self::V4 => AddressFamily::Inet,
            Self::V6 => AddressFamily::Inet6,
        }
    }

    fn outside(self) -> Vec<IpAddr> {
        match self {
            Self::V4 => OUTSIDE_V4.map(IpAddr::from).into(),
            Self::V6 => OUTSIDE_V6.map(IpAddr::from).into(),
        }
    }

    fn inwards(self) -> Vec<IpAddr> {
        match self {
            Self::V4 => INWARDS_V4.map(IpAddr::from).into(),
            Self::V6 => INWARDS_V6.map(IpAddr::from).into(),
        }
    }
}

/// Where packets of one IP version can leave.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// Whether there is a default route through something else than loopback.
    pub(super) default: bool,
    /// Gateways, and an address behind each other route.
    pub(super) on_link: Vec<Target>,
    /// Addresses outside that are routed out of the pod.
    pub(super) outside: Vec<Target>,
    /// Addresses of the cluster's or the cloud's own networks that are routed out of the pod.
    pub(super) inwards: Vec<Target>,
    /// One outside through each interface that is up, routes or not. IPv4 alone has this way.
    pub(super) unrouted: Vec<Target>,
}

/// One hop of a route that leads out of the pod.
struct Hop {
    destination: IpAddr,
    prefix: u8,
    interface: u32,
    gateway: Option<IpAddr>,
}

impl Ways {
    /// Asks the kernel, which tells anyone.
    ///
    /// # Errors
    /// [`Doubt::Unreadable`].
    pub(super) fn read(version: IpVersion) -> Result<Self, Doubt> {
        let routes = |source| Doubt::Unreadable { what: "routes", source };
        let mut ways = Self::default();
        let hops = hops(version).map_err(routes)?;
        ways.default = hops.iter().any(|hop| hop.prefix == 0);
        for hop in hops.iter().take(ROUTES) {
            let to = |address| Target { address, interface: hop.interface, device: None };
            let gateway = hop.gateway.map(to).filter(leaves);
            let behind = inhabitants(hop).into_iter().map(to).find(leaves);
            for target in gateway.into_iter().chain(behind) {
                if !ways.on_link.contains(&target) {
                    ways.on_link.push(target);
                }
            }
        }
        let routed = |addresses: Vec<IpAddr>| {
            addresses.into_iter().map(|address| Target { address, interface: 0, device: None }).filter(leaves).collect()
        };
        ways.outside = routed(version.outside());
        ways.inwards = routed(version.inwards());
        if version == IpVersion::V4 {
            ways.unrouted = unrouted().map_err(|source| Doubt::Unreadable { what: "interfaces", source })?;
        }
        Ok(ways)
    }
}

/// Every hop that leads out, of all tables: which of them counts is for rules to say, which can change.
fn hops(version: IpVersion) -> io::Result<Vec<Hop>> {
    let mut hops = Vec::new();
    let mut request = RouteMessage::default();
    request.header.address_family = version.family();
    for route in ask(request, NLM_F_DUMP)? {
        // What is local, broadcast or multicast, or leads nowhere, is no route out.
        if route.header.kind != RouteType::Unicast || route.header.address_family != version.family() {
            continue;
        }
        let destination = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::Destination(address) => ip(address),
            _ => None,
        });
        let unspecified = match version {
            IpVersion::V4 => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpVersion::V6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        let destination = destination.unwrap_or(unspecified);
        if destination.is_multicast() {
            continue;
        }
        let prefix = route.header.destination_prefix_length;
        let mut add = |interface, attributes: &[RouteAttribute]| {
            let gateway =
                attributes.iter().find_map(gateway).filter(|address| address.is_ipv4() == destination.is_ipv4());
            hops.push(Hop { destination, prefix, interface, gateway });
        };
        let several = route.attributes.iter().find_map(|attribute| match attribute {
            RouteAttribute::MultiPath(several) => Some(several),
            _ => None,
        });
        match several {
            Some(several) => {
                several
                    .iter()
                    .for_each(|RouteNextHop { interface_index, attributes, .. }| add(*interface_index, attributes));
            }
            None => {
                let interface = route.attributes.iter().find_map(|attribute| match attribute {
                    RouteAttribute::Oif(interface) => Some(*interface),
                    _ => None,
                });
                // A route by next-hop object may not name its interface: it is taken to lead out.
                add(interface.unwrap_or(0), &route.attributes);
            }
        }
    }
    hops.retain(|hop| hop.interface != LO);
    Ok(hops)
}

fn ip(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some((*address).into()),
        RouteAddress::Inet6(address) => Some((*address).into()),
        _ => None,
    }
}

fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(address) => ip(address),
        RouteAttribute::Via(RouteVia::Inet(address)) => Some((*address).into()),
        RouteAttribute::Via(RouteVia::Inet6(address)) => Some((*address).into()),
        _ => None,
    }
}

/// Addresses that a route leads to, to choose one from that is not the pod's own: the first ones after the network's,
/// or the one that it is for. A default route has none in particular.
fn inhabitants(hop: &Hop) -> Vec<IpAddr> {
    const TRIED: u128 = 4;
    let width: u8 = if hop.destination.is_ipv4() { 32 } else { 128 };
    let after = |offset: u128| match hop.destination {
        IpAddr::V4(address) => {
            IpAddr::from(Ipv4Addr::from(u32::from(address).wrapping_add(u32::try_from(offset).unwrap_or(0))))
        }
        IpAddr::V6(address) => IpAddr::from(Ipv6Addr::from(u128::from(address).wrapping_add(offset))),
    };
    match width.saturating_sub(hop.prefix) {
        0 => vec![hop.destination],
        1 => vec![after(0), after(1)],
        _ if hop.prefix == 0 => Vec::new(),
        _ => (1..=TRIED).filter(|offset| *offset < 3 || width - hop.prefix > 2).map(after).collect(),
    }
}

/// Whether the kernel routes an address out of the pod, by the rules that are in force.
fn leaves(target: &Target) -> bool {
    let address = target.address;
    let mut request = RouteMessage::default();
    request.header.address_family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    request.header.destination_prefix_length = if address.is_ipv4() { 32 } else { 128 };
    request.attributes.push(RouteAttribute::Destination(address.into()));
    if target.is_link_local() {
        request.attributes.push(RouteAttribute::Oif(target.interface));
    }
    // An error is the answer that there is no way: unreachable, prohibited, a black hole.
    let Ok(answers) = ask(request, 0) else { return false };
    answers.first().is_some_and(|route| {
        let through_loopback = route
            .attributes
            .iter()
            .any(|attribute| matches!(attribute, RouteAttribute::Oif(interface) if *interface == LO));
        route.header.kind == RouteType::Unicast && !through_loopback
    })
}

/// Sends one `RTM_GETROUTE` and returns the routes that the kernel tells.
fn ask(request: RouteMessage, flags: u16) -> io::Result<Vec<RouteMessage>> {
    let mut message = NetlinkMessage::from(RouteNetlinkMessage::GetRoute(request));
    message.header.flags = NLM_F_REQUEST | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    let mut routes = Vec::new();
    let mut problem = None;
    Socket::open(Protocol::Route)?.exchange(&bytes, 0, |answer| {
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(answer) {
            Ok(NetlinkMessage {
                payload: NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)), ..
            }) => {
                routes.push(route);
            }
            Ok(_) => {}
            Err(error) => problem = Some(error),
        }
    })?;
    match problem {
        Some(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error.to_string())),
        None => Ok(routes),
    }
}

/// An address outside through every interface that is up.
fn unrouted() -> io::Result<Vec<Target>> {
    let up: BTreeSet<OsString> = getifaddrs()?
        .filter(|interface| {
            interface.flags.contains(InterfaceFlags::IFF_UP) && !interface.flags.contains(InterfaceFlags::IFF_LOOPBACK)
        })
        .map(|interface| interface.interface_name.into())
        .collect();
    let [address, ..] = OUTSIDE_V4;
    let target = |device| Target { address: address.into(), interface: 0, device: Some(device) };
    Ok(up.into_iter().map(target).collect())
}
