//! A netlink socket: send one message or one transaction, read what the kernel answers. Encoding belongs to callers.
//!
//! The socket speaks for the network namespace it was opened in, wherever its descriptor travels afterwards
//! (netlink(7)), which is how the supervisor asks about a namespace that it never enters.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, sendto, setsockopt, socket,
    sockopt,
};
use nix::sys::time::TimeVal;

/// Larger than the largest answer the kernel makes in one piece (`NLMSG_GOODSIZE` is at most 8 KiB, dumps use up to
/// 32 KiB when the reader's buffer allows it: `netlink_dump` in the kernel).
const ANSWER_BUFFER: usize = 32 * 1024;

/// The kernel answers netlink requests at once; longer than this means that it never will.
const ANSWER_SECONDS: i64 = 5;

/// `struct nlmsghdr`: length, type, flags, sequence, port.
const HEADER: usize = 16;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const NLM_F_MULTI: u16 = 2;

/// Netlink protocols that the product speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Links, addresses, routes.
    Route,
    /// nf_tables and NFLOG.
    Netfilter,
    /// Socket diagnosis.
    SocketDiagnosis,
}

/// An open netlink socket.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// Opens and binds a socket in the caller's network namespace.
    ///
    /// # Errors
    /// What socket(2), bind(2) or setsockopt(2) answered; `EPROTONOSUPPORT` where the kernel has no such protocol.
    pub fn open(protocol: Protocol) -> io::Result<Self> {
        let number = match protocol {
            Protocol::Route => SockProtocol::NetlinkRoute,
            Protocol::Netfilter => SockProtocol::NetlinkNetFilter,
            Protocol::SocketDiagnosis => SockProtocol::NetlinkSockDiag,
        };
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, number)?;
        bind(fd.as_raw_fd(), &NetlinkAddr::new(0, 0))?;
        setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::new(ANSWER_SECONDS, 0))?;
        Ok(Self { fd })
    }

    /// Sends `bytes`, one or more whole netlink messages, without waiting for an answer.
    ///
    /// # Errors
    /// What sendto(2) answered.
    pub fn send(&self, bytes: &[u8]) -> io::Result<()> {
        sendto(self.fd.as_raw_fd(), bytes, &NetlinkAddr::new(0, 0), MsgFlags::empty())?;
        Ok(())
    }

    /// Reads one datagram: one or more whole messages.
    ///
    /// # Errors
    /// What recv(2) answered; `WouldBlock` when the kernel said nothing in time.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let length = recv(self.fd.as_raw_fd(), buffer, MsgFlags::empty())?;
        Ok(&buffer[..length])
    }

    /// Sends `bytes` and gives every answering message, header included, to `each`, until the kernel has acknowledged
    /// `acknowledgements` messages, ended a dump, or reported an error.
    ///
    /// # Errors
    /// The first error that the kernel reported, or what the socket calls answered.
    pub fn exchange(&self, bytes: &[u8], acknowledgements: usize, mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(bytes)?;
        let mut buffer = vec![0; ANSWER_BUFFER];
        let mut outstanding = acknowledgements;
        loop {
            let mut rest = self.receive(&mut buffer)?;
            let mut single = false;
            while rest.len() >= HEADER {
                let length = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
                if length < HEADER || length > rest.len() {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "truncated netlink answer"));
                }
                let (message, after) = (&rest[..length], &rest[length.next_multiple_of(4).min(rest.len())..]);
                rest = after;
                let kind = u16::from_ne_bytes([message[4], message[5]]);
                let flags = u16::from_ne_bytes([message[6], message[7]]);
                match kind {
                    NLMSG_ERROR => {
                        let code = message.get(HEADER..HEADER + 4).map_or(-nix::libc::EBADMSG, |code| {
                            i32::from_ne_bytes([code[0], code[1], code[2], code[3]])
                        });
                        if code != 0 {
                            return Err(io::Error::from_raw_os_error(-code));
                        }
                        outstanding = outstanding.saturating_sub(1);
                    }
                    NLMSG_DONE => return Ok(()),
                    _ => {
                        single |= flags & NLM_F_MULTI == 0;
                        each(message);
                    }
                }
            }
            if outstanding == 0 && (acknowledgements > 0 || single) {
                return Ok(());
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

impl From<OwnedFd> for Socket {
    /// A socket that was opened elsewhere and handed over.
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.fd
    }
}
