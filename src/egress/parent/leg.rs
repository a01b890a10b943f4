//! The way to a destination: a socket, or TLS over one where the upstream proxy is reached by https.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::egress::limits;
use crate::egress::splice::{self, Traffic};

/// A connection that carries a destination's bytes.
#[derive(Debug)]
pub enum Leg {
    /// Nothing between the bytes and the socket.
    Tcp(TcpStream),
    /// TLS to the upstream proxy; inside it, the same bytes.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Leg {
    /// The socket at the bottom.
    #[must_use]
    pub fn socket(&self) -> &TcpStream {
        match self {
            Self::Tcp(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        }
    }
}

impl AsyncRead for Leg {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, into),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, into),
        }
    }
}

impl AsyncWrite for Leg {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tcp(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Moves bytes both ways as [`splice::relay`] does, by copying.
///
/// # Errors
/// What the side that failed said; the other has then been reset as well. A TLS stream that ends without close_notify
/// has failed (RFC 8446 §6.1): it may have been cut.
pub(in crate::egress) async fn relay(
    client: &TcpStream,
    upstream: &mut TlsStream<TcpStream>,
    traffic: &Traffic,
) -> io::Result<()> {
    let outcome = {
        let (read, write) = tokio::io::split(&mut *upstream);
        tokio::try_join!(outwards(client, write, &traffic.sent), inwards(read, client, &traffic.received)).map(drop)
    };
    if outcome.is_err() {
        splice::reset_on_close(client);
        splice::reset_on_close(upstream.get_ref().0);
    }
    outcome
}

async fn outwards(client: &TcpStream, mut to: impl AsyncWrite + Unpin, moved: &AtomicU64) -> io::Result<()> {
    loop {
        client.readable().await?;
        let mut buffer = vec![0; limits::PARENT_COPY_BYTES];
        match client.try_read(&mut buffer) {
            Ok(0) => return to.shutdown().await,
            Ok(arrived) => {
                to.write_all(&buffer[..arrived]).await?;
                to.flush().await?;
                moved.fetch_add(arrived as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

async fn inwards(mut from: impl AsyncRead + Unpin, client: &TcpStream, moved: &AtomicU64) -> io::Result<()> {
    let mut buffer = vec![0; limits::PARENT_COPY_BYTES];
    loop {
        match from.read(&mut buffer).await? {
            0 => return splice::end(client),
            arrived => {
                splice::write_all(client, &buffer[..arrived]).await?;
                moved.fetch_add(arrived as u64, Ordering::Relaxed);
            }
        }
    }
}
