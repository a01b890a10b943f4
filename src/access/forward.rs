//! Connections to what listens inside (`ssh -L`): to loopback of the workload's network, and nowhere else, for anything
//! else would be a way around the proxy.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::ssh::channel::{CONNECT_FAILED, Channel, PROHIBITED, Refused, Stream};
use super::ssh::wire::{Malformed, Reader};
use crate::workload::launcher::Launcher;

/// How long a connection over loopback may take.
const CONNECT_TIME: Duration = Duration::from_secs(10);

/// How long what came before the client closed may take to go in.
const LINGER: Duration = Duration::from_secs(5);

/// What is read at a time.
const CHUNK: usize = 32 << 10;

/// Where a client wants to be connected to (RFC 4254 §7.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    /// As the client spells it.
    pub host: String,
    /// The port.
    pub port: u32,
}

impl Destination {
    /// Reads it from what comes with `direct-tcpip`.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn read(details: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new(details);
        Ok(Self { host: reader.text()?.to_owned(), port: reader.u32()? })
    }

    /// The addresses to try, in order.
    fn addresses(&self) -> Result<Vec<SocketAddr>, Refused> {
        let refused = |reason: String| Refused { code: PROHIBITED, reason };
        let port = u16::try_from(self.port).ok().filter(|&port| port != 0);
        let port = port.ok_or_else(|| refused(format!("{} is no port", self.port)))?;
        let own = |address: &IpAddr| address.is_loopback();
        let addresses: Vec<IpAddr> = match self.host.parse::<IpAddr>() {
            Ok(address) => vec![address.to_canonical()],
            Err(_) if self.host.eq_ignore_ascii_case("localhost") => {
                vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]
            }
            Err(_) => Vec::new(),
        };
        if addresses.is_empty() || !addresses.iter().all(own) {
            return Err(refused(
                "only the sandbox's own loopback (localhost, 127.0.0.1, ::1) can be connected to; everything else leaves \
                 through its proxy"
                    .to_owned(),
            ));
        }
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }
}

/// Connects to it, inside.
///
/// # Errors
/// [`Refused`].
pub async fn connect(destination: &Destination, launcher: &Launcher) -> Result<TcpStream, Refused> {
    let mut failed = Vec::new();
    for address in destination.addresses()? {
        let connect = async { launcher.socket(address).await?.connect(address).await };
        match timeout(CONNECT_TIME, connect).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed.push(format!("{address} in the sandbox: {error}")),
            Err(_) => failed.push(format!("{address} in the sandbox: no answer")),
        }
    }
    Err(Refused { code: CONNECT_FAILED, reason: failed.join("; ") })
}

/// Carries both directions until both have ended, or one has failed. What breaks off on one side is reset on the other: it
/// must not look like its end.
pub async fn carry(channel: Channel, stream: TcpStream) {
    // What is carried may be a dialogue of short lines.
    let _ = stream.set_nodelay(true);
    let (mut from, mut to) = stream.into_split();
    let outward = async {
        let mut chunk = vec![0; CHUNK];
        loop {
            match from.read(&mut chunk).await {
                Ok(0) => break channel.eof(),
                Ok(length) => {
                    if channel.send(Stream::Data, &chunk[..length]).await.is_err() {
                        break;
                    }
                }
                // Reset.
                Err(_) => break channel.close(),
            }
        }
    };
    let inward = async {
        while let Some(data) = channel.take(Stream::Data).await {
            if to.write_all(&data).await.is_err() {
                return;
            }
        }
        if channel.is_whole() {
            let _ = to.shutdown().await;
        }
    };
    let outward = async {
        tokio::select! {
            () = outward => {}
            () = channel.closed() => {}
        }
    };
    let overdue = async {
        channel.closed().await;
        tokio::time::sleep(LINGER).await;
    };
    tokio::select! {
        _ = async { tokio::join!(outward, inward) } => {}
        () = overdue => {}
    }
    if !channel.is_whole() {
        // With nothing left to wait for, closing it resets it (socket(7), SO_LINGER), if no end is sent before.
        let _ = to.as_ref().set_zero_linger();
        to.forget();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(host: &str, port: u32) -> Result<Vec<SocketAddr>, Refused> {
        Destination { host: host.into(), port }.addresses()
    }

    #[test]
    fn loopback_is_reached_and_nothing_else() {
        for (host, expected) in [
            ("127.0.0.1", &["127.0.0.1:80"][..]),
            ("127.9.9.9", &["127.9.9.9:80"]),
            ("::1", &["[::1]:80"]),
            ("::ffff:127.0.0.1", &["127.0.0.1:80"]),
            ("localhost", &["127.0.0.1:80", "[::1]:80"]),
            ("LOCALHOST", &["127.0.0.1:80", "[::1]:80"]),
        ] {
            let expected: Vec<SocketAddr> = expected.iter().map(|address| address.parse().unwrap()).collect();
            assert_eq!(addresses(host, 80).unwrap(), expected, "{host}");
        }
        for host in ["", "0.0.0.0", "::", "10.0.0.1", "169.254.169.254", "example.com", "::ffff:8.8.8.8", "localhost.x"]
        {
            assert_eq!(addresses(host, 80).unwrap_err().code, PROHIBITED, "{host}");
        }
        for port in [0, 65_536, u32::MAX] {
            assert!(addresses("127.0.0.1", port).is_err(), "{port}");
        }
    }
}
