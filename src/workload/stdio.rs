//! Standard streams that would lead out.
//!
//! The workload inherits the supervisor's standard streams, and a socket stays in the network namespace that it was
//! made in: on one of the machine's, `connect` reaches the machine's network from inside, past fence and proxy.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockType, SockaddrLike, SockaddrStorage, getpeername, getsockname, getsockopt, sockopt,
};
use nix::sys::stat::{SFlag, fstat};

/// A stream that the workload must not have.
#[derive(Debug, thiserror::Error)]
#[error(
    "{stream} is a network socket, or a unix socket that is not connected: it belongs to the machine's network and would \
     be a way around the proxy; put a pipe between, as in `cat | openshell-supervisor run … | cat`"
)]
pub struct LeadsOut {
    stream: &'static str,
}

/// Refuses standard streams that are sockets, but for connected unix streams: those talk to the one peer that whoever
/// started the supervisor chose, and cannot be connected anew (connect(2), EISCONN).
///
/// # Errors
/// Which one.
pub fn check() -> Result<(), LeadsOut> {
    let (input, output, error) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
    let streams: [(&'static str, BorrowedFd<'_>); 3] =
        [("standard input", input.as_fd()), ("standard output", output.as_fd()), ("standard error", error.as_fd())];
    match streams.into_iter().find(|(_, fd)| leads_out(*fd)) {
        Some((stream, _)) => Err(LeadsOut { stream }),
        None => Ok(()),
    }
}

fn leads_out(fd: BorrowedFd<'_>) -> bool {
    match fstat(fd) {
        Ok(status) if SFlag::from_bits_truncate(status.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFSOCK => {
            !is_connected_unix_stream(fd)
        }
        // A closed stream leads nowhere.
        Ok(_) | Err(Errno::EBADF) => false,
        Err(_) => true,
    }
}

fn is_connected_unix_stream(fd: BorrowedFd<'_>) -> bool {
    let family = getsockname::<SockaddrStorage>(fd.as_raw_fd()).ok().and_then(|address| address.family());
    let kind = getsockopt(&fd, sockopt::SockType);
    family == Some(AddressFamily::Unix)
        && matches!(kind, Ok(SockType::Stream | SockType::SeqPacket))
        && getpeername::<SockaddrStorage>(fd.as_raw_fd()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::{UnixDatagram, UnixStream};

    #[test]
    fn sockets_lead_out_unless_they_are_connected_unix_streams() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let connected = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert!(leads_out(listener.as_fd()) && leads_out(connected.as_fd()));
        assert!(leads_out(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()));
        assert!(leads_out(UnixDatagram::unbound().unwrap().as_fd()));
        let (one, _two) = UnixStream::pair().unwrap();
        assert!(!leads_out(one.as_fd()));
        assert!(!leads_out(std::fs::File::open("/dev/null").unwrap().as_fd()));
        assert!(!leads_out(nix::unistd::pipe().unwrap().0.as_fd()));
    }
}
