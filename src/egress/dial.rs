//! Connecting to the first address that answers: happy eyeballs (RFC 8305) over addresses that all passed the guard.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::Poll;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::limits;

/// Why no address could be connected to.
#[derive(Debug, thiserror::Error)]
#[error("{}", describe(attempts, *timed_out))]
pub(crate) struct DialError {
    /// What each address that failed answered.
    pub attempts: Vec<(SocketAddr, io::Error)>,
    /// Whether time ran out before all had answered.
    pub timed_out: bool,
}

fn describe(attempts: &[(SocketAddr, io::Error)], timed_out: bool) -> String {
    let mut text = String::new();
    for (address, error) in attempts {
        let separator = if text.is_empty() { "" } else { "; " };
        text += &format!("{separator}{address}: {error}");
    }
    if timed_out {
        let separator = if text.is_empty() { "" } else { "; " };
        text += &format!("{separator}no answer within {} s", limits::DIAL_TIME.as_secs());
    }
    text
}

/// Connects to the first of `addresses` that accepts, preferred families alternating, each attempt starting when the
/// one before it has failed or has had [`limits::DIAL_STAGGER`]; says which it was.
///
/// # Errors
/// What each address answered.
pub(crate) async fn dial(addresses: &[IpAddr], port: u16) -> Result<(TcpStream, IpAddr), DialError> {
    let deadline = Instant::now() + limits::DIAL_TIME;
    let mut attempts = Vec::new();
    let reached = match addresses {
        // The common case needs neither timer nor allocation beyond the socket's own.
        [only] => {
            let address = SocketAddr::new(*only, port);
            match timeout_at(deadline, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => Some((stream, *only)),
                Ok(Err(error)) => {
                    attempts.push((address, error));
                    return Err(DialError { attempts, timed_out: false });
                }
                Err(_) => None,
            }
        }
        _ => timeout_at(deadline, race(&interleave(addresses), port, &mut attempts)).await.unwrap_or_default(),
    };
    let Some((stream, address)) = reached else {
        let timed_out = attempts.len() < addresses.len().min(limits::DIAL_ADDRESSES);
        return Err(DialError { attempts, timed_out });
    };
    // Only fails on a socket that is already gone, which the first read will say.
    let _ = stream.set_nodelay(true);
    Ok((stream, address))
}

/// The first address's family, then the other, in turn (RFC 8305 §4).
pub(super) fn interleave(addresses: &[IpAddr]) -> Vec<IpAddr> {
    let six_first = addresses.first().is_some_and(IpAddr::is_ipv6);
    let (mut first, mut second): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().partition(|address| address.is_ipv6() == six_first);
    first.reverse();
    second.reverse();
    let mut mixed = Vec::with_capacity(addresses.len());
    while !(first.is_empty() && second.is_empty()) {
        mixed.extend(first.pop());
        mixed.extend(second.pop());
    }
    mixed.truncate(limits::DIAL_ADDRESSES);
    mixed
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

async fn race(
    addresses: &[IpAddr],
    port: u16,
    failed: &mut Vec<(SocketAddr, io::Error)>,
) -> Option<(TcpStream, IpAddr)> {
    let mut waiting = addresses.iter().map(|&address| SocketAddr::new(address, port));
    let mut running: Vec<(SocketAddr, Attempt)> = Vec::new();
    let mut next = Box::pin(sleep_until(Instant::now()));
    poll_fn(|cx| {
        loop {
            if next.as_mut().poll(cx).is_ready() || running.is_empty() {
                if let Some(address) = waiting.next() {
                    running.push((address, Box::pin(TcpStream::connect(address))));
                    next.as_mut().reset(Instant::now() + limits::DIAL_STAGGER);
                    continue;
                } else if running.is_empty() {
                    return Poll::Ready(None);
                }
            }
            let before = failed.len();
            let mut at = 0;
            while let Some((address, attempt)) = running.get_mut(at) {
                match attempt.as_mut().poll(cx) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Some((stream, address.ip()))),
                    Poll::Ready(Err(error)) => {
                        failed.push((*address, error));
                        drop(running.swap_remove(at));
                    }
                    Poll::Pending => at += 1,
                }
            }
            if failed.len() == before {
                return Poll::Pending;
            }
            next.as_mut().reset(Instant::now());
        }
    })
    .await
}

/// Has the kernel find out when a silent peer is gone.
pub(super) fn keep_alive(stream: &impl AsFd) {
    // These fail only on a socket that is already gone, which the first read will say.
    let _ = setsockopt(stream, sockopt::KeepAlive, &true);
    let _ = setsockopt(stream, sockopt::TcpKeepIdle, &limits::KEEPALIVE_IDLE);
    let _ = setsockopt(stream, sockopt::TcpKeepInterval, &limits::KEEPALIVE_INTERVAL);
    let _ = setsockopt(stream, sockopt::TcpKeepCount, &limits::KEEPALIVE_PROBES);
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn families_alternate() {
        let mixed = interleave(&[ip("::1"), ip("::2"), ip("::3"), ip("127.0.0.1"), ip("127.0.0.2")]);
        assert_eq!(mixed, [ip("::1"), ip("127.0.0.1"), ip("::2"), ip("127.0.0.2"), ip("::3")]);
        assert_eq!(interleave(&vec![ip("127.0.0.1"); 100]).len(), limits::DIAL_ADDRESSES);
    }

    #[tokio::test]
    async fn a_refused_address_costs_no_stagger() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let start = Instant::now();
        let (stream, address) = dial(&[ip("127.0.0.2"), ip("127.0.0.3"), ip("127.0.0.1")], port).await.unwrap();
        assert_eq!(address, ip("127.0.0.1"));
        assert_eq!(stream.peer_addr().unwrap().ip(), ip("127.0.0.1"));
        assert!(start.elapsed() < limits::DIAL_STAGGER);
    }

    #[tokio::test]
    async fn failures_name_every_address() {
        let error = dial(&[ip("127.0.0.2"), ip("127.0.0.3")], 1).await.unwrap_err();
        assert!(!error.timed_out);
        let text = error.to_string();
        assert!(text.contains("127.0.0.2:1: ") && text.contains("127.0.0.3:1: "), "{text}");
    }
}
