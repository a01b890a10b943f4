//! `process`'s side: opening a session, and stating.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::key::{Key, Nonces, Side};
use super::statement::Statement;
use super::wire::{self, CHALLENGE_BYTES, ID, NONCE, OPENED_BYTES};

/// Why there is no session.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The connection broke off.
    #[error("the proxy broke off while a session was being opened: {0}")]
    Io(#[from] io::Error),
    /// It speaks something else.
    #[error(
        "the proxy does not answer as one that takes attestations: was it started with --attestation-key, and is it of \
         this version?"
    )]
    Stranger,
    /// It has another key.
    #[error("the proxy holds another attestation key than this pod: mount the same Secret in both")]
    OtherKey,
    /// The kernel gives no random numbers.
    #[error("no random numbers (getrandom(2))")]
    Random,
}

/// A session with a proxy.
pub struct Session {
    id: [u8; ID],
    key: hmac::Key,
    counter: AtomicU64,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Session")
    }
}

/// Opens a session over a connection of its own, which is to stay open for as long as the session is used.
///
/// # Errors
/// [`OpenError`].
pub async fn open(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), key: &Key) -> Result<Session, OpenError> {
    let client = nonce().ok_or(OpenError::Random)?;
    stream.write_all(&wire::hello(&client)).await?;
    let mut challenge = [0; CHALLENGE_BYTES];
    exactly(stream, &mut challenge).await?;
    let (server, code) = wire::read_challenge(&challenge).ok_or(OpenError::Stranger)?;
    let nonces = Nonces { client, server };
    if !key.is_proof(Side::Server, &nonces, code) {
        return Err(OpenError::OtherKey);
    }
    stream.write_all(&wire::proof(key.proof(Side::Client, &nonces).as_ref())).await?;
    let mut opened = [0; OPENED_BYTES];
    exactly(stream, &mut opened).await?;
    if !wire::is_opened(&opened) {
        return Err(OpenError::Stranger);
    }
    let (id, key) = key.session(&nonces);
    Ok(Session { id, key, counter: AtomicU64::new(0) })
}

/// Reads all of a message, but stops at what begins like none of ours: HTTP waits for more, and so would we.
async fn exactly(stream: &mut (impl AsyncRead + Unpin), into: &mut [u8]) -> Result<(), OpenError> {
    let mut filled = 0;
    while filled < into.len() {
        match stream.read(&mut into[filled..]).await? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            count => filled += count,
        }
        let known = filled.min(wire::BEGIN.len());
        if into[..known] != wire::BEGIN[..known] {
            return Err(OpenError::Stranger);
        }
    }
    Ok(())
}

pub(super) fn nonce() -> Option<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    SystemRandom::new().fill(&mut nonce).ok().map(|()| nonce)
}

impl Session {
    /// The preface of one connection. Never the same twice.
    #[must_use]
    pub fn preface(&self, statement: &Statement) -> Vec<u8> {
        let counter = self.counter.fetch_add(1, Ordering::Relaxed) + 1;
        let mut bytes = wire::preface(&self.id, counter, &statement.encode());
        let code = hmac::sign(&self.key, &bytes);
        bytes.extend_from_slice(code.as_ref());
        bytes
    }
}
