//! The proxy's side: admitting sessions, and believing what their prefaces state.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ring::hmac;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::key::{Key, Nonces, Side};
use super::session::nonce;
use super::statement::Statement;
use super::window::Window;
use super::wire::{self, ID, PROOF_BYTES};

/// Sessions at once. A sandbox has one `process`; where that was started again, the connection of the one before may not
/// have been missed yet.
const SESSIONS: usize = 8;

/// Why something that began like a message of ours is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Its session is not known here: the proxy was started again.
    #[error("it is of a session that is not open here")]
    UnknownSession,
    /// Its code is wrong.
    #[error("its code is not one that the sandbox's key makes")]
    Forged,
    /// It came before, or so late that it may have.
    #[error("it came before")]
    Replayed,
    /// Genuine, and unreadable.
    #[error("what it states cannot be read: are both supervisors of one version?")]
    Malformed,
}

struct Open {
    id: [u8; ID],
    key: hmac::Key,
    window: Mutex<Window>,
}

/// Admits sessions and judges prefaces.
pub struct Verifier {
    key: Key,
    sessions: Mutex<VecDeque<Arc<Open>>>,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Verifier")
    }
}

/// An open session; dropping it ends it.
#[derive(Debug)]
pub struct Admission<'v> {
    verifier: &'v Verifier,
    id: [u8; ID],
}

impl Drop for Admission<'_> {
    fn drop(&mut self) {
        self.verifier.sessions().retain(|open| open.id != self.id);
    }
}

impl Verifier {
    /// One that has no session yet.
    #[must_use]
    pub fn new(key: Key) -> Self {
        Self { key, sessions: Mutex::default() }
    }

    fn sessions(&self) -> MutexGuard<'_, VecDeque<Arc<Open>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers `hello`, a whole message, on the connection that it came by, and opens a session once the peer has shown
    /// that it holds the key. Nobody else can make it remember anything.
    ///
    /// # Errors
    /// What the connection answered; `PermissionDenied` for a peer without the key.
    pub async fn admit(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        hello: &[u8],
    ) -> io::Result<Admission<'_>> {
        let malformed = || io::Error::from(io::ErrorKind::InvalidData);
        let client = wire::read_hello(hello).ok_or_else(malformed)?;
        let server = nonce().ok_or_else(|| io::Error::other("no random numbers"))?;
        let nonces = Nonces { client, server };
        stream.write_all(&wire::challenge(&server, self.key.proof(Side::Server, &nonces).as_ref())).await?;
        let mut proof = [0; PROOF_BYTES];
        stream.read_exact(&mut proof).await?;
        let code = wire::read_proof(&proof).ok_or_else(malformed)?;
        if !self.key.is_proof(Side::Client, &nonces, code) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (id, key) = self.key.session(&nonces);
        self.remember(Open { id, key, window: Mutex::new(Window::new()) });
        let admission = Admission { verifier: self, id };
        stream.write_all(&wire::opened()).await?;
        Ok(admission)
    }

    fn remember(&self, open: Open) {
        let mut sessions = self.sessions();
        if sessions.len() == SESSIONS {
            sessions.pop_front();
        }
        sessions.push_back(Arc::new(open));
    }

    /// What a whole preface states, if it is genuine and came for the first time.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn believe(&self, preface: &[u8]) -> Result<Statement, Refusal> {
        let preface = wire::read_preface(preface).ok_or(Refusal::Malformed)?;
        let open = self.sessions().iter().find(|open| open.id == preface.session).cloned();
        let open = open.ok_or(Refusal::UnknownSession)?;
        // In a time that tells nothing, and before anything of it is looked at.
        hmac::verify(&open.key, preface.said, preface.code).map_err(|_| Refusal::Forged)?;
        if !open.window.lock().unwrap_or_else(PoisonError::into_inner).take(preface.counter) {
            return Err(Refusal::Replayed);
        }
        Statement::decode(preface.statement).ok_or(Refusal::Malformed)
    }
}
