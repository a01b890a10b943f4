//! Whether something serves at a destination: one try, for init containers that wait for it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::dial::interleave;
use super::limits::{REACH_CONNECT_TIME, REACH_SETTLE_TIME};
use super::resolve::{ResolveError, Resolver};
use crate::policy::host::Host;

/// Why nothing serves there.
#[derive(Debug, thiserror::Error)]
pub enum Unreachable {
    /// The name leads nowhere.
    #[error(transparent)]
    Name(#[from] ResolveError),
    /// No address serves.
    #[error("{}", .0.iter().map(|(address, why)| format!("{address}: {why}")).collect::<Vec<_>>().join("; "))]
    Addresses(Vec<(SocketAddr, Silence)>),
}

/// What one address did instead of serving.
#[derive(Debug, thiserror::Error)]
pub enum Silence {
    /// It refused, or there is no way to it.
    #[error("{0}")]
    Refused(io::Error),
    /// It never answered.
    #[error("no answer within {} s", REACH_CONNECT_TIME.as_secs())]
    Unanswered,
    /// What stands in front accepted, and what should stand behind is not there.
    #[error("accepted and closed at once")]
    Closed,
    /// The same, told by a reset.
    #[error("accepted and reset at once ({0})")]
    Reset(io::Error),
}

/// Connects to every address of `host` at once and returns the first that accepts and keeps the connection. The name
/// is looked up by a resolver of this try's own: an earlier answer, or an earlier absence, is what the wait is about.
///
/// # Errors
/// What the name servers or all addresses answered.
pub async fn reach(host: &Host, port: u16) -> Result<SocketAddr, Unreachable> {
    let addresses = match host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => Resolver::default().resolve(name).await?,
    };
    reach_any(&addresses, port).await
}

async fn reach_any(addresses: &[IpAddr], port: u16) -> Result<SocketAddr, Unreachable> {
    let mut tries = JoinSet::new();
    for address in interleave(addresses) {
        let address = SocketAddr::new(address, port);
        tries.spawn(async move { (address, serves(address).await) });
    }
    let mut silent = Vec::new();
    // None of the tasks panics or is aborted before the set is dropped.
    while let Some(Ok((address, outcome))) = tries.join_next().await {
        match outcome {
            Ok(()) => return Ok(address),
            Err(why) => silent.push((address, why)),
        }
    }
    silent.sort_by_key(|(address, _)| *address);
    Err(Unreachable::Addresses(silent))
}

/// Whether one address accepts, and still holds the connection, or has spoken, a moment later.
async fn serves(address: SocketAddr) -> Result<(), Silence> {
    let connected = timeout(REACH_CONNECT_TIME, TcpStream::connect(address)).await;
    let mut stream = connected.map_err(|_| Silence::Unanswered)?.map_err(|error| match error.kind() {
        // A reset so quick that connecting has not been seen to succeed.
        io::ErrorKind::ConnectionReset => Silence::Reset(error),
        _ => Silence::Refused(error),
    })?;
    match timeout(REACH_SETTLE_TIME, stream.read(&mut [0; 1])).await {
        Err(_) | Ok(Ok(1..)) => Ok(()),
        Ok(Ok(0)) => Err(Silence::Closed),
        Ok(Err(error)) => Err(Silence::Reset(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use tokio::net::TcpListener;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[tokio::test]
    async fn one_address_that_serves_is_enough_and_silence_is_told_by_address() {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let other: IpAddr = "127.0.0.2".parse().unwrap();
        assert_eq!(reach_any(&[other, HERE], port).await.unwrap().ip(), HERE);
        let error = reach_any(&[other], port).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("127.0.0.2:{port}: Connection refused")), "{error}");
    }

    #[tokio::test]
    async fn who_closes_or_resets_at_once_does_not_serve_and_who_speaks_first_does() {
        let listener = TcpListener::bind((HERE, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (outcome, _) = tokio::join!(serves(address), async { drop(listener.accept().await.unwrap()) });
        assert!(matches!(outcome, Err(Silence::Closed)), "{outcome:?}");
        let (outcome, ()) = tokio::join!(serves(address), async {
            let (stream, _) = listener.accept().await.unwrap();
            nix::sys::socket::setsockopt(
                &stream,
                nix::sys::socket::sockopt::Linger,
                &nix::libc::linger { l_onoff: 1, l_linger: 0 },
            )
            .unwrap();
        });
        assert!(matches!(outcome, Err(Silence::Reset(_))), "{outcome:?}");
        let (outcome, ()) = tokio::join!(serves(address), async {
            let (stream, _) = listener.accept().await.unwrap();
            stream.try_write(b"220 ready\r\n").unwrap();
        });
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}
