//! One connection between the two, once both know each other.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use super::frame;

/// Why the link is of no use any more.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other supervisor is gone, or has ended the connection.
    #[error("the other supervisor is gone")]
    Closed,
    /// It speaks, but not this protocol.
    #[error("the other supervisor cannot be understood: {0}; give both containers the same version of the supervisor")]
    Malformed(String),
    /// The socket failed.
    #[error("control connection: {0}")]
    Io(#[from] io::Error),
}

impl LinkError {
    fn of(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::InvalidData => Self::Malformed(error.to_string()),
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Io(error),
        }
    }
}

/// A connection over which `Received` comes in and `Sent` goes out.
#[derive(Debug)]
pub struct Link<Received, Sent> {
    incoming: Incoming<Received>,
    outgoing: Outgoing<Sent>,
}

/// The half that is listened to.
#[derive(Debug)]
pub struct Incoming<Received> {
    half: OwnedReadHalf,
    messages: std::marker::PhantomData<Received>,
}

/// The half that is spoken into.
#[derive(Debug)]
pub struct Outgoing<Sent> {
    half: OwnedWriteHalf,
    messages: std::marker::PhantomData<Sent>,
}

impl<Received: DeserializeOwned, Sent: Serialize> Link<Received, Sent> {
    pub(super) fn over(stream: UnixStream) -> Self {
        let (read, write) = stream.into_split();
        Self {
            incoming: Incoming { half: read, messages: std::marker::PhantomData },
            outgoing: Outgoing { half: write, messages: std::marker::PhantomData },
        }
    }

    /// [`Incoming::receive`].
    ///
    /// # Errors
    /// As there.
    pub async fn receive(&mut self) -> Result<Received, LinkError> {
        self.incoming.receive().await
    }

    /// [`Outgoing::send`].
    ///
    /// # Errors
    /// As there.
    pub async fn send(&mut self, message: &Sent) -> Result<(), LinkError> {
        self.outgoing.send(message).await
    }

    /// Both halves, for those who listen and speak at the same time.
    #[must_use]
    pub fn split(self) -> (Incoming<Received>, Outgoing<Sent>) {
        (self.incoming, self.outgoing)
    }
}

impl<Received: DeserializeOwned> Incoming<Received> {
    /// The next message. Must not be cancelled half-way if another is to follow: half a frame would be lost.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn receive(&mut self) -> Result<Received, LinkError> {
        frame::read(&mut self.half).await.map_err(LinkError::of)?.ok_or(LinkError::Closed)
    }
}

impl<Sent: Serialize> Outgoing<Sent> {
    /// Sends a message.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn send(&mut self, message: &Sent) -> Result<(), LinkError> {
        frame::write(&mut self.half, message).await.map_err(LinkError::of)
    }
}
