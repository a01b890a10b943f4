//! Socket diagnosis: the socket of one exact address pair, in the network namespace where the netlink socket was opened
//! (sock_diag(7)). One request, one answer; no table is ever walked.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP, IPPROTO_UDP, TCP_SYN_SENT};
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_packet_sock_diag::{SockDiagMessage, TCP_LISTEN};
use nix::libc;

use crate::sys::netlink::Socket;

/// Any cookie (`INET_DIAG_NOCOOKIE`).
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// A request is 72 bytes; an answer is 88 and the attributes that the kernel adds unasked.
const BUFFER: usize = 2048;

/// Answers to earlier requests that are skipped before giving up: only a request that timed out leaves one behind.
const STALE_ANSWERS: usize = 16;

/// Protocols with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A socket that the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Inode in sockfs; 0 once no process holds it.
    pub inode: u64,
    /// Owner.
    pub uid: u32,
    /// Whether it has asked for a connection that nobody has accepted yet.
    pub is_connecting: bool,
}

/// The way to ask. One request at a time: each is answered within its own system call, in a microsecond or two.
#[derive(Debug)]
pub(super) struct Diagnosis {
    channel: Mutex<Channel>,
}

#[derive(Debug)]
struct Channel {
    socket: Socket,
    sequence: u32,
}

impl Diagnosis {
    pub(super) fn new(socket: Socket) -> Self {
        Self { channel: Mutex::new(Channel { socket, sequence: 0 }) }
    }

    /// The socket with these addresses as it sees them; `None` if there is none.
    pub(super) fn find(
        &self,
        transport: Transport,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> io::Result<Option<Found>> {
        let (local_ip, remote_ip) = (local.ip().to_canonical(), remote.ip().to_canonical());
        let scope = match local {
            SocketAddr::V6(local) => local.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        let mut id = SocketId {
            source_port: local.port(),
            destination_port: remote.port(),
            source_address: local_ip,
            destination_address: remote_ip,
            interface_id: scope,
            cookie: ANY_COOKIE,
        };
        if transport == Transport::Udp {
            // udp_diag takes a packet's view for a single socket, not the socket's (`udp_dump_one` in the kernel).
            std::mem::swap(&mut id.source_port, &mut id.destination_port);
            std::mem::swap(&mut id.source_address, &mut id.destination_address);
        }
        let request = InetRequest {
            // The IPv4 lookup finds IPv6 sockets that speak IPv4 as well.
            family: if local_ip.is_ipv4() && remote_ip.is_ipv4() { AF_INET } else { AF_INET6 },
            protocol: match transport {
                Transport::Tcp => IPPROTO_TCP,
                Transport::Udp => IPPROTO_UDP,
            },
            extensions: ExtensionFlags::empty(),
            states: StateFlags::all(),
            socket_id: id,
        };
        let mut channel = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(answer) = channel.ask(request)? else { return Ok(None) };
        let header = answer.header;
        let answered = &header.socket_id;
        // Where no connection has these addresses, the kernel falls back to a socket that listens at the local one.
        let exact = match transport {
            Transport::Tcp => {
                header.state != TCP_LISTEN
                    && answered.source_port == local.port()
                    && answered.destination_port == remote.port()
                    && same(answered.source_address, local_ip)
                    && same(answered.destination_address, remote_ip)
            }
            // An unconnected socket has neither address.
            Transport::Udp => answered.source_port == local.port(),
        };
        let is_connecting = transport == Transport::Tcp && header.state == TCP_SYN_SENT;
        Ok(exact.then(|| Found { inode: header.inode.into(), uid: header.uid, is_connecting }))
    }
}

fn same(answered: IpAddr, asked: IpAddr) -> bool {
    answered.to_canonical() == asked
}

impl Channel {
    fn ask(&mut self, request: InetRequest) -> io::Result<Option<netlink_packet_sock_diag::inet::InetResponse>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
        message.finalize();
        let mut buffer = [0; BUFFER];
        let length = message.buffer_len();
        message.serialize(&mut buffer[..length]);
        self.socket.send(&buffer[..length])?;
        for _ in 0..STALE_ANSWERS {
            let bytes = self.socket.receive(&mut buffer)?;
            let answer = NetlinkMessage::<SockDiagMessage>::deserialize(bytes)
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            return match answer.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => Ok(Some(*response)),
                NetlinkPayload::Error(error) => match error.to_io() {
                    error if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)) => Ok(None),
                    error => Err(error),
                },
                _ => Err(io::Error::new(io::ErrorKind::InvalidData, "an answer that is no socket")),
            };
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "only answers to earlier requests"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::sys::netlink::Protocol;

    fn diagnosis() -> Diagnosis {
        Diagnosis::new(Socket::open(Protocol::SocketDiagnosis).unwrap())
    }

    fn inode(socket: &impl AsRawFd) -> u64 {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let link = link.to_str().unwrap();
        link.strip_prefix("socket:[").unwrap().strip_suffix(']').unwrap().parse().unwrap()
    }

    #[test]
    fn finds_both_ends_of_a_connection_and_tells_them_apart() {
        let diagnosis = diagnosis();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, peer) = listener.accept().unwrap();
            let at = listener.local_addr().unwrap();
            let found = diagnosis.find(Transport::Tcp, peer, at).unwrap().unwrap();
            assert_eq!(found.inode, inode(&client), "{address}");
            assert_eq!(found.uid, nix::unistd::geteuid().as_raw());
            let other = diagnosis.find(Transport::Tcp, at, peer).unwrap().unwrap();
            assert_eq!(other.inode, inode(&accepted));
            assert!(!found.is_connecting && !other.is_connecting);
        }
    }

    #[test]
    fn an_ipv6_socket_that_speaks_ipv4_is_found_by_its_ipv4_addresses() {
        use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn6, connect, socket};
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = socket(AddressFamily::Inet6, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
        let mapped = format!("[::ffff:127.0.0.1]:{}", listener.local_addr().unwrap().port());
        let mapped: std::net::SocketAddrV6 = mapped.parse().unwrap();
        connect(client.as_raw_fd(), &SockaddrIn6::from(mapped)).unwrap();
        let (_accepted, peer) = listener.accept().unwrap();
        let found = diagnosis().find(Transport::Tcp, peer, listener.local_addr().unwrap()).unwrap().unwrap();
        assert_eq!(found.inode, inode(&client));
    }

    #[test]
    fn a_listener_is_never_taken_for_the_client() {
        let diagnosis = diagnosis();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Nobody connects from the listener's address; the kernel would offer the listener itself.
        let at = listener.local_addr().unwrap();
        assert_eq!(diagnosis.find(Transport::Tcp, at, "127.0.0.1:9".parse().unwrap()).unwrap(), None);
    }

    #[test]
    fn finds_udp_sockets_connected_or_not() {
        let diagnosis = diagnosis();
        let remote = "127.0.0.1:9".parse().unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let local = socket.local_addr().unwrap();
        assert_eq!(diagnosis.find(Transport::Udp, local, remote).unwrap().unwrap().inode, inode(&socket));
        socket.connect(remote).unwrap();
        assert_eq!(diagnosis.find(Transport::Udp, local, remote).unwrap().unwrap().inode, inode(&socket));
        drop(socket);
        assert_eq!(diagnosis.find(Transport::Udp, local, remote).unwrap(), None);
    }
}
