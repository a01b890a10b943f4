//! Reports of packets that tried to go around the proxy: NFLOG from the workload's namespace, parsed, aggregated and
//! emitted as [`Stage::Bypass`] events.
//!
//! The subscription is made inside the namespace ([`subscribe`]); its descriptor works from anywhere ([`report`]).

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use netlink_packet_core::{NLM_F_ACK, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_netfilter::nflog::{ConfigCmd, ConfigMode, ConfigNla, PacketNla, ULogMessage};
use netlink_packet_netfilter::{NetfilterHeader, NetfilterMessage, NetfilterMessageInner, NetfilterProtoFamily};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::encode::message_bytes;
use crate::event::{Actor, Disposition, Event, Events, Finding, NetworkActivity, Severity, Stage};
use crate::sys::netlink::{Protocol, Socket};
use crate::sys::reactor;

/// NFLOG group of the fence's reports. The namespace is ours alone, so any number would do; a node's own loggers keep
/// to small ones, and this one does not meet them in a pod either.
pub const GROUP: u16 = 3128;

/// What the ruleset's log expression puts before every report, for whoever reads the ruleset.
pub const PREFIX: &str = "openshell-bypass";

/// Bytes of a packet that are reported: an IPv4 header with all its options (60) or an IPv6 header with some
/// extensions, and the ports behind them.
pub const SNAPLEN: u32 = 128;

/// Reports a second, and in a burst. A workload that tries more than this is reported by the fact, not by the number:
/// counts are the least that happened.
pub const RATE: u64 = 50;
/// See [`RATE`].
pub const BURST: u32 = 200;

/// The same attempt, repeated within this time, makes one more event and not one each.
const WINDOW: Duration = Duration::from_secs(5);

/// Different attempts that are told apart within a window; a port scan has 65,535, and what exceeds this is counted
/// together.
const DISTINCT: usize = 512;

/// The kernel packs at most a page or two of reports into one message (`NFULNL_NLBUFSIZ_DEFAULT`).
const BUFFER: usize = 16 * 1024;

/// Largest number of IPv6 extension headers that are followed to find the transport header.
const EXTENSIONS: usize = 8;

const IPPROTO_ICMP: u8 = 1;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;
const IPPROTO_FRAGMENT: u8 = 44;
const IPPROTO_ICMPV6: u8 = 58;
const IPPROTO_DCCP: u8 = 33;
const IPPROTO_SCTP: u8 = 132;
const IPPROTO_UDPLITE: u8 = 136;

/// A packet that tried to leave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// Source address.
    pub source: IpAddr,
    /// Source port; 0 where the protocol has none.
    pub source_port: u16,
    /// Destination address.
    pub destination: IpAddr,
    /// Destination port; 0 where the protocol has none.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// User id of the socket that sent it, as the namespace's creator sees it; `None` where the packet had no socket.
    pub uid: Option<u32>,
}

/// Opens a socket in the caller's network namespace that receives what the ruleset logs to [`GROUP`].
///
/// # Errors
/// What the kernel answered: `EPROTONOSUPPORT` or `EINVAL` where it has no NFLOG (`CONFIG_NETFILTER_NETLINK_LOG`),
/// `EPERM` without `CAP_NET_ADMIN`.
pub fn subscribe() -> io::Result<OwnedFd> {
    let socket = Socket::open(Protocol::Netfilter)?;
    let header = NetfilterHeader::new(NetfilterProtoFamily::Unspec, 0, GROUP);
    let configuration: Vec<ConfigNla> = vec![
        ConfigCmd::Bind.into(),
        ConfigMode::new_packet(SNAPLEN).into(),
        // Each packet at once: the sooner it is read, the better the chance that its socket still has an owner.
        ConfigNla::QThresh(1),
    ];
    let bytes = message_bytes(header, ULogMessage::Config(configuration), NLM_F_REQUEST | NLM_F_ACK);
    socket.exchange(&bytes, 1, |_| {})?;
    Ok(socket.into())
}

/// Reads reports from `packets` (see [`subscribe`]) until the future is dropped, and emits them as events: the first
/// of its kind at once, repetitions once in a while with their count. `find` is asked for the program behind each new
/// attempt; `None` means that it could not be told.
pub async fn report(packets: OwnedFd, find: impl Fn(&Attempt) -> Option<Actor> + Send, events: Events) {
    read(packets, find, |event| events.emit(event)).await;
}

async fn read(packets: OwnedFd, find: impl Fn(&Attempt) -> Option<Actor>, emit: impl FnMut(Event)) {
    let mut tally = Tally { emit, kinds: HashMap::new(), beyond: 0, lost: false };
    let packets = match reactor::watch(packets) {
        Ok(packets) => packets,
        Err(error) => return tally.ended(&error),
    };
    let mut window = interval_at(Instant::now() + WINDOW, WINDOW);
    window.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut buffer = vec![0; BUFFER];
    loop {
        tokio::select! {
            _ = window.tick() => tally.flush(),
            ready = packets.readable() => {
                let mut ready = match ready {
                    Ok(ready) => ready,
                    Err(error) => return tally.ended(&error),
                };
                match ready.try_io(|fd| Ok(recv(fd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT)?)) {
                    Ok(Ok(length)) => {
                        for attempt in attempts(&buffer[..length]) {
                            tally.add(&attempt, &find);
                        }
                    }
                    // netlink(7): the kernel dropped messages because the socket's buffer was full. It reads on.
                    Ok(Err(error)) if error.raw_os_error() == Some(Errno::ENOBUFS as i32) => tally.lost(),
                    Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(Err(error)) => return tally.ended(&error),
                    Err(_would_block) => {}
                }
            }
        }
    }
}

/// What makes two attempts the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind {
    destination: IpAddr,
    port: u16,
    protocol: u8,
    uid: Option<u32>,
    binary: Option<String>,
}

#[derive(Debug)]
struct Repeated {
    actor: Actor,
    /// Since the last event.
    count: u64,
}

struct Tally<E: FnMut(Event)> {
    emit: E,
    kinds: HashMap<Kind, Repeated>,
    /// Attempts that found [`DISTINCT`] others before them.
    beyond: u64,
    /// Whether the loss of reports was told within this window.
    lost: bool,
}

impl<E: FnMut(Event)> Tally<E> {
    fn add(&mut self, attempt: &Attempt, find: &impl Fn(&Attempt) -> Option<Actor>) {
        let mut actor = find(attempt).unwrap_or_default();
        actor.uid = actor.uid.or(attempt.uid);
        let kind = Kind {
            destination: attempt.destination,
            port: attempt.destination_port,
            protocol: attempt.protocol,
            uid: actor.uid,
            binary: actor.binary.clone(),
        };
        if let Some(repeated) = self.kinds.get_mut(&kind) {
            repeated.count += 1;
        } else if self.kinds.len() < DISTINCT {
            (self.emit)(event(&kind, actor.clone(), 1));
            self.kinds.insert(kind, Repeated { actor, count: 0 });
        } else {
            self.beyond += 1;
        }
    }

    fn flush(&mut self) {
        self.lost = false;
        self.kinds.retain(|kind, repeated| {
            let count = std::mem::take(&mut repeated.count);
            if count > 0 {
                (self.emit)(event(kind, repeated.actor.clone(), count));
            }
            count > 0
        });
        let beyond = std::mem::take(&mut self.beyond);
        if beyond > 0 {
            (self.emit)(Event::Finding(Finding {
                severity: Severity::High,
                kind: "bypass-scan",
                message: format!(
                    "at least {beyond} more attempts to go around the proxy, to more than {DISTINCT} different \
                     destinations within {} s: this looks like a scan; every one was refused",
                    WINDOW.as_secs()
                ),
            }));
        }
    }

    fn lost(&mut self) {
        if !std::mem::replace(&mut self.lost, true) {
            (self.emit)(Event::Finding(Finding {
                severity: Severity::Medium,
                kind: "bypass-reports-lost",
                message: "the kernel dropped reports of attempts to go around the proxy because they came faster than \
                          they were read; how many is unknown; every one was refused"
                    .to_string(),
            }));
        }
    }

    fn ended(&mut self, error: &io::Error) {
        (self.emit)(Event::Finding(Finding {
            severity: Severity::Medium,
            kind: "bypass-reports-ended",
            message: format!(
                "attempts to go around the proxy can no longer be reported: {error}; they are still refused"
            ),
        }));
    }
}

impl<E: FnMut(Event)> Drop for Tally<E> {
    /// What was counted and not yet told must not go with the sandbox.
    fn drop(&mut self) {
        self.flush();
    }
}

fn event(kind: &Kind, actor: Actor, count: u64) -> Event {
    let mut reason = "tried to go around the proxy; refused by the fence".to_string();
    if actor.binary.is_none() {
        reason.push_str("; the program could not be found, since its socket was gone after the refusal");
    }
    Event::Network(NetworkActivity {
        disposition: Disposition::Denied,
        stage: Stage::Bypass,
        host: kind.destination.to_string(),
        port: kind.port,
        address: Some(kind.destination),
        via: None,
        protocol: protocol_name(kind.protocol),
        actor,
        policy: None,
        reason: Some(reason),
        count,
        http: None,
    })
}

fn protocol_name(protocol: u8) -> String {
    match protocol {
        IPPROTO_TCP => "tcp".to_string(),
        IPPROTO_UDP => "udp".to_string(),
        IPPROTO_ICMP => "icmp".to_string(),
        IPPROTO_ICMPV6 => "icmpv6".to_string(),
        number => number.to_string(),
    }
}

/// The attempts in one datagram of the NFLOG socket. What cannot be read is left out: it was refused all the same.
fn attempts(mut datagram: &[u8]) -> Vec<Attempt> {
    let mut found = Vec::new();
    while let Some(length) = datagram.first_chunk().map(|length| u32::from_ne_bytes(*length) as usize) {
        let Some(message) = datagram.get(..length).filter(|_| length > 0) else { break };
        datagram = datagram.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        let Ok(message) = NetlinkMessage::<NetfilterMessage>::deserialize(message) else { continue };
        if let NetlinkPayload::InnerMessage(NetfilterMessage {
            inner: NetfilterMessageInner::ULog(ULogMessage::Packet(attributes)),
            ..
        }) = message.payload
        {
            found.extend(attempt(&attributes));
        }
    }
    found
}

fn attempt(attributes: &[PacketNla]) -> Option<Attempt> {
    let uid = attributes.iter().find_map(|a| match a {
        PacketNla::Uid(uid) => Some(*uid),
        _ => None,
    });
    let packet = attributes.iter().find_map(|a| match a {
        PacketNla::Payload(bytes) => Some(bytes.as_slice()),
        _ => None,
    })?;
    packet_addresses(packet).map(|attempt| Attempt { uid, ..attempt })
}

/// Reads RFC 791 or RFC 8200 headers and the ports behind them.
fn packet_addresses(packet: &[u8]) -> Option<Attempt> {
    let (source, destination, protocol, transport): (IpAddr, IpAddr, u8, &[u8]) = match packet.first()? >> 4 {
        4 => {
            let length = usize::from(packet[0] & 0x0f) * 4;
            let source: [u8; 4] = *packet.get(12..)?.first_chunk()?;
            let destination: [u8; 4] = *packet.get(16..)?.first_chunk()?;
            let offset = u16::from_be_bytes(*packet.get(6..)?.first_chunk()?) & 0x1fff;
            // Only the first fragment has a transport header.
            let transport = if offset == 0 { packet.get(length..).unwrap_or(&[]) } else { &[] };
            (Ipv4Addr::from(source).into(), Ipv4Addr::from(destination).into(), *packet.get(9)?, transport)
        }
        6 => {
            let source: [u8; 16] = *packet.get(8..)?.first_chunk()?;
            let destination: [u8; 16] = *packet.get(24..)?.first_chunk()?;
            let (protocol, transport) = behind_extensions(*packet.get(6)?, packet.get(40..).unwrap_or(&[]));
            (Ipv6Addr::from(source).into(), Ipv6Addr::from(destination).into(), protocol, transport)
        }
        _ => return None,
    };
    let has_ports = matches!(protocol, IPPROTO_TCP | IPPROTO_UDP | IPPROTO_DCCP | IPPROTO_SCTP | IPPROTO_UDPLITE);
    let port = |offset: usize| {
        let bytes = transport.get(offset..).filter(|_| has_ports).and_then(<[u8]>::first_chunk);
        bytes.map_or(0, |bytes| u16::from_be_bytes(*bytes))
    };
    Some(Attempt { source, source_port: port(0), destination, destination_port: port(2), protocol, uid: None })
}

/// Follows IPv6 extension headers (RFC 8200 §4) to the first that is none.
fn behind_extensions(mut next: u8, mut rest: &[u8]) -> (u8, &[u8]) {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const DESTINATION: u8 = 60;
    for _ in 0..EXTENSIONS {
        let length = match (next, rest) {
            (HOP_BY_HOP | ROUTING | DESTINATION, [_, units, ..]) => (usize::from(*units) + 1) * 8,
            (IPPROTO_FRAGMENT, [following, _, high, low, ..]) => {
                if u16::from_be_bytes([*high, *low]) >> 3 != 0 {
                    return (*following, &[]);
                }
                8
            }
            _ => return (next, rest),
        };
        next = rest[0];
        rest = rest.get(length..).unwrap_or(&[]);
    }
    (next, &[])
}

#[cfg(test)]
pub(crate) mod tests;
