//! The network of a new namespace: `lo`, default routes through it, and the proxy's listeners.
//!
//! The routes exist so that a packet for anywhere comes as far as the fence, which refuses and reports it. Without
//! them the refusal would be `ENETUNREACH`, and silent.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily as SocketFamily, Backlog, SockFlag, SockType, SockaddrStorage, bind, listen as start_listening,
    setsockopt, socket, sockopt,
};

use super::Error;
use crate::egress::limits::LISTEN_BACKLOG;
use crate::sys::netlink::{Protocol, Socket};

/// `LOOPBACK_IFINDEX`: the kernel gives `lo` this number in every namespace.
const LO: u32 = 1;

/// Brings `lo` up, which gives it 127.0.0.1/8 and ::1, and sends IPv4 through it.
///
/// The source address is preferred explicitly: otherwise the kernel finds none of global scope, takes 0.0.0.0, and a
/// reset to that address reaches nobody, so that a TCP connection would hang.
pub fn bring_up() -> Result<(), Error> {
    let mut up = LinkMessage::default();
    up.header.index = LO;
    up.header.flags = LinkFlags::Up;
    up.header.change_mask = LinkFlags::Up;
    request(RouteNetlinkMessage::SetLink(up), 0).map_err(|source| Error::Loopback { step: "bring up lo", source })?;
    let route = default_route(AddressFamily::Inet, RouteType::Unicast, IpAddr::V4(Ipv4Addr::LOCALHOST));
    request(route, NLM_F_CREATE | NLM_F_EXCL)
        .map_err(|source| Error::Loopback { step: "add the IPv4 default route through lo", source })
}

/// Sends IPv6 through `lo`. The route is of type `local`, since the kernel makes any other through a loopback device
/// a route that rejects before the fence sees the packet (`fib6_is_reject`).
///
/// # Errors
/// What the kernel answered; where it has no IPv6 here, that is no obstacle.
pub fn route_ipv6() -> io::Result<()> {
    let route = default_route(AddressFamily::Inet6, RouteType::Local, IpAddr::V6(Ipv6Addr::LOCALHOST));
    request(route, NLM_F_CREATE | NLM_F_EXCL)
}

fn default_route(family: AddressFamily, kind: RouteType, source: IpAddr) -> RouteNetlinkMessage {
    let mut route = RouteMessage::default();
    route.header = RouteHeader {
        address_family: family,
        table: RouteHeader::RT_TABLE_MAIN,
        protocol: RouteProtocol::Static,
        scope: RouteScope::Universe,
        kind,
        ..Default::default()
    };
    route.attributes = vec![RouteAttribute::Oif(LO), RouteAttribute::PrefSource(source.into())];
    RouteNetlinkMessage::NewRoute(route)
}

fn request(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut message = NetlinkMessage::from(message);
    message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    Socket::open(Protocol::Route)?.exchange(&bytes, 1, |_| {})
}

/// Listens on `port` of 127.0.0.1, and of ::1 where there is IPv6.
pub fn listen(port: u16, ipv6: bool) -> Result<Vec<OwnedFd>, Error> {
    let mut addresses = vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))];
    if ipv6 {
        addresses.push(SocketAddr::from((Ipv6Addr::LOCALHOST, port)));
    }
    addresses
        .into_iter()
        .map(|address| listener(address).map_err(|errno| Error::Listener { address, source: errno.into() }))
        .collect()
}

fn listener(address: SocketAddr) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { SocketFamily::Inet } else { SocketFamily::Inet6 };
    let listener = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, None)?;
    if address.is_ipv6() {
        setsockopt(&listener, sockopt::Ipv6V6Only, &true)?;
    }
    bind(listener.as_raw_fd(), &SockaddrStorage::from(address))?;
    start_listening(&listener, Backlog::new(LISTEN_BACKLOG)?)?;
    Ok(listener)
}
