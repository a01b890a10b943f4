//! The attempts to get out, and what each comes to.

use std::ffi::OsString;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrStorage, connect, getsockopt, send, sendto,
    setsockopt, socket, sockopt,
};

use super::Doubt;

/// DNS and QUIC: what a filter that is no fence would let through first.
const UDP_PORTS: [u16; 2] = [53, 443];
/// The web, for the same reason.
const TCP_PORTS: [u16; 2] = [80, 443];

/// The first port that needs no privilege to listen at.
const UNPRIVILEGED: u16 = 1024;

/// A refusal takes a fraction of a millisecond; what is still open after this is on its way out.
const PATIENCE: Duration = Duration::from_millis(500);

/// Whereto an attempt goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The address.
    pub address: IpAddr,
    /// Number of the interface, which a link-local IPv6 address means nothing without.
    pub interface: u32,
    /// Name of the interface to leave by, whatever the routes say.
    pub device: Option<OsString>,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.address)?;
        match &self.device {
            Some(device) => write!(f, " through {}", device.to_string_lossy()),
            None => Ok(()),
        }
    }
}

impl Target {
    /// Whether it is an IPv6 address of the link: the reset of a fence does not find a socket that is bound to its
    /// interface as these must be, so TCP to it ends in silence.
    pub(super) fn is_link_local(&self) -> bool {
        matches!(self.address, IpAddr::V6(address) if address.is_unicast_link_local())
    }

    fn at(&self, port: u16) -> SocketAddr {
        match self.address {
            IpAddr::V4(address) => SocketAddr::from((address, port)),
            IpAddr::V6(address) => {
                let scope = if address.is_unicast_link_local() { self.interface } else { 0 };
                SocketAddrV6::new(address, port, 0, scope).into()
            }
        }
    }

    fn family(&self) -> AddressFamily {
        if self.address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
    }

    fn socket(&self, kind: SockType, protocol: Option<SockProtocol>) -> Result<OwnedFd, Errno> {
        let socket = socket(self.family(), kind, SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK, protocol)?;
        if let Some(device) = &self.device {
            setsockopt(&socket, sockopt::BindToDevice, device)?;
        }
        Ok(socket)
    }
}

/// UDP, and ICMP where this user may ping: refused, they are `EPERM` from the call itself. Not so ICMPv6, whose call
/// forgets the error (`icmpv6_push_pending_frames`): there the fence's own answer, "administratively prohibited", has
/// arrived when the call returns, and is `EACCES`.
pub(super) fn datagrams(target: &Target) -> Result<(), Doubt> {
    for port in UDP_PORTS.into_iter().chain(drawn()) {
        let outcome = datagram(target, port);
        if outcome != Err(Errno::EPERM) {
            return Err(not_refused("UDP", target, &outcome, "EPERM"));
        }
    }
    let expected = if target.address.is_ipv4() { Errno::EPERM } else { Errno::EACCES };
    match echo(target) {
        Some(outcome) if outcome != Err(expected) => {
            let expected = if target.address.is_ipv4() { "EPERM" } else { "EACCES" };
            Err(not_refused("ICMP", target, &outcome, expected))
        }
        _ => Ok(()),
    }
}

/// TCP: refused, it is reset at once.
pub(super) fn connections(target: &Target) -> Result<(), Doubt> {
    for port in TCP_PORTS.into_iter().chain(drawn()) {
        let outcome = connection(target, port);
        if outcome != Err(Errno::ECONNREFUSED) {
            return Err(not_refused("TCP", target, &outcome, "ECONNREFUSED"));
        }
    }
    Ok(())
}

/// Two ports of nobody's choosing, a low and a high one: a filter may block the usual ones and no others.
fn drawn() -> [u16; 2] {
    // Its keys are the operating system's randomness.
    let drawn = RandomState::new().build_hasher().finish();
    let (low, high) = (drawn as u16, (drawn >> 16) as u16);
    [1 + low % (UNPRIVILEGED - 1), high.max(UNPRIVILEGED)]
}

/// A datagram that takes no heed of routes: a socket bound to an interface sends through it to anywhere, even where the
/// routes lead nowhere or forbid it (`ip_route_output_key_hash_rcu` takes the destination to be on the link). Refused or
/// impossible, it is no way out.
pub(super) fn unrouted(target: &Target) -> Result<(), Doubt> {
    match datagram(target, UDP_PORTS[0]) {
        Err(_) => Ok(()),
        sent => Err(not_refused("UDP", target, &sent, "EPERM")),
    }
}

fn not_refused(protocol: &'static str, target: &Target, outcome: &Result<(), Errno>, expected: &'static str) -> Doubt {
    let outcome = match outcome {
        Ok(()) => "was let out".to_string(),
        Err(Errno::EINPROGRESS) => "was not answered at once".to_string(),
        Err(errno) => format!("ended in {errno:?}"),
    };
    Doubt::NotRefused { protocol, target: target.clone(), outcome, expected }
}

/// An empty datagram: nothing of anybody's leaves where there is no fence.
fn datagram(target: &Target, port: u16) -> Result<(), Errno> {
    let socket = target.socket(SockType::Datagram, None)?;
    sendto(socket.as_raw_fd(), &[], &SockaddrStorage::from(target.at(port)), MsgFlags::empty()).map(drop)
}

/// An echo request, by a socket that needs no privilege; nothing where the user's group may not have one
/// (`net.ipv4.ping_group_range`).
fn echo(target: &Target) -> Option<Result<(), Errno>> {
    /// RFC 792 and RFC 4443 §4.1: type, code 0, and a checksum, identifier and number that the kernel fills in or
    /// nobody needs.
    const REQUEST: [u8; 8] = [8, 0, 0, 0, 0, 0, 0, 1];
    const REQUEST_V6: [u8; 8] = [128, 0, 0, 0, 0, 0, 0, 1];
    let (protocol, request) = match target.address {
        IpAddr::V4(_) => (SockProtocol::Icmp, REQUEST),
        IpAddr::V6(_) => (SockProtocol::IcmpV6, REQUEST_V6),
    };
    let socket = target.socket(SockType::Datagram, Some(protocol)).ok()?;
    Some(echo_by(&socket, target, &request))
}

fn echo_by(socket: &OwnedFd, target: &Target, request: &[u8]) -> Result<(), Errno> {
    // Only a connected socket is told of errors that come back.
    connect(socket.as_raw_fd(), &SockaddrStorage::from(target.at(0)))?;
    send(socket.as_raw_fd(), request, MsgFlags::empty())?;
    pending(socket)
}

fn connection(target: &Target, port: u16) -> Result<(), Errno> {
    let socket = target.socket(SockType::Stream, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(target.at(port))) {
        Err(Errno::EINPROGRESS) => {}
        ended => return ended,
    }
    let timeout = PollTimeout::try_from(PATIENCE).unwrap_or(PollTimeout::MAX);
    let mut waiting = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut waiting, timeout)? == 0 {
        return Err(Errno::EINPROGRESS);
    }
    pending(&socket)
}

/// The error that has come back for a socket.
fn pending(socket: &OwnedFd) -> Result<(), Errno> {
    match getsockopt(socket, sockopt::SocketError)? {
        0 => Ok(()),
        code => Err(Errno::from_raw(code)),
    }
}
