//! What a connection from another pod says first: whose it is, by the supervisor there, or nothing of the kind.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

use super::authorize::Owner;
use super::wire::Transport;
use super::{Proxy, dial, limits, listener, splice};
use crate::attest::{Begun, Refusal, Statement, UNKNOWN_SESSION, Verifier, begun};
use crate::contract::PROXY_URL;
use crate::event::{Events, Severity};

/// Who believes, and how much of what is not believed was told.
#[derive(Debug)]
pub(super) struct Attestation {
    verifier: Verifier,
    told: Mutex<Told>,
    direct: Arc<str>,
}

#[derive(Debug, Default)]
struct Told {
    last: Option<Instant>,
    /// Not told yet.
    since: u64,
}

impl Attestation {
    pub(super) fn new(verifier: Verifier) -> Self {
        let direct = format!(
            "the connection carries no attestation: it was made to the proxy's own address, past the supervisor at {PROXY_URL} \
             that would have named its program"
        );
        Self { verifier, told: Mutex::default(), direct: direct.into() }
    }

    /// The owner of a new connection, and what was read of it beyond; `None` once it is over: it was a session, or nothing
    /// that could be believed.
    pub(super) async fn owner_of(&self, socket: &Arc<TcpStream>, proxy: &Proxy) -> Option<(Owner, Vec<u8>)> {
        let mut bytes = Vec::new();
        // Like a head: silence may last before its first byte, and all of it comes within one time from there on, however
        // little at once.
        let mut until = Instant::now() + proxy.patience.keep_alive;
        let mut begun_yet = false;
        loop {
            match begun(&bytes) {
                Begun::Other => return Some((Owner::Unattributed(self.direct.clone()), bytes)),
                Begun::Short(whole) => {
                    read_more(socket, &mut bytes, whole.max(limits::HEAD_BYTES), until).await?;
                    if !begun_yet {
                        (begun_yet, until) = (true, Instant::now() + proxy.patience.head);
                    }
                }
                Begun::Hello(length) => {
                    self.hold_session(socket, bytes.get(..length)?, proxy).await;
                    return None;
                }
                Begun::Preface(length) => {
                    let rest = bytes.split_off(length);
                    return match self.verifier.believe(&bytes) {
                        Ok(Statement::Program(attested)) => Some((Owner::Attested(Arc::new(attested)), rest)),
                        Ok(Statement::Unidentified(reason)) => Some((Owner::Unattributed(reason.into()), rest)),
                        Err(Refusal::UnknownSession) => {
                            if splice::write_all(socket, &UNKNOWN_SESSION).await.is_ok() {
                                listener::linger(socket).await;
                            }
                            None
                        }
                        Err(refusal) => {
                            self.report(&proxy.events, &refusal.to_string());
                            None
                        }
                    };
                }
                Begun::Malformed => {
                    self.report(&proxy.events, &Refusal::Malformed.to_string());
                    return None;
                }
            }
        }
    }

    /// Opens a session, and keeps it for as long as the connection stands.
    async fn hold_session(&self, socket: &Arc<TcpStream>, hello: &[u8], proxy: &Proxy) {
        let mut stream = Transport::Socket(socket.clone());
        let admission = match timeout(limits::SESSION_TIME, self.verifier.admit(&mut stream, hello)).await {
            Ok(Ok(admission)) => admission,
            Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.report(&proxy.events, "whoever wants to open a session does not hold the sandbox's key");
                return;
            }
            Ok(Err(_)) | Err(_) => return,
        };
        proxy.events.find(
            Severity::Informational,
            "attestation-session",
            "the supervisor beside the workload attests from now on whose connections are",
        );
        dial::keep_alive(socket);
        // Nothing comes but the end.
        let _ = read_to_end(&mut stream).await;
        drop(admission);
    }

    /// Counts what is not believed, and tells of it now and then: who does such things can do them often.
    fn report(&self, events: &Events, why: &str) {
        events.metrics().attestations_refused.inc();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.since += 1;
        if told.last.is_some_and(|last| last.elapsed() < limits::ATTESTATION_REPORT) {
            return;
        }
        let times =
            if told.since > 1 { format!(" ({} times since the last event)", told.since) } else { String::new() };
        (told.last, told.since) = (Some(Instant::now()), 0);
        drop(told);
        events.find(
            Severity::High,
            "attestation-refused",
            format!(
                "a connection was closed for what it attested: {why}{times}; somebody in the agent's pod, or between the pods, \
                 tries to pass for another program"
            ),
        );
    }
}

/// Reads more of what a client sends, up to `most` in all; `None` when nothing comes until then, or it is gone.
async fn read_more(socket: &TcpStream, bytes: &mut Vec<u8>, most: usize, until: Instant) -> Option<()> {
    let wait = async {
        loop {
            socket.readable().await?;
            let before = bytes.len();
            let mut piece = [0; 2048];
            let room = most.saturating_sub(before).clamp(1, piece.len());
            match socket.try_read(&mut piece[..room]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    bytes.extend_from_slice(&piece[..count]);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    };
    timeout_at(until, wait).await.ok()?.ok()
}

/// Waits for the end of a stream on which nothing more should come.
async fn read_to_end(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> io::Result<()> {
    let mut sink = [0; 64];
    loop {
        let mut into = ReadBuf::new(&mut sink);
        std::future::poll_fn(|cx| std::pin::Pin::new(&mut *stream).poll_read(cx, &mut into)).await?;
        if into.filled().is_empty() {
            return Ok(());
        }
    }
}
