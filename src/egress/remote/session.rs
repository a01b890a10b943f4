//! The session by which connections are attested: opened as soon as the proxy can be reached, and again whenever it has been
//! started anew.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};

use super::route::Route;
use crate::attest::{self, Key, OpenError, Session};
use crate::egress::{dial, limits};
use crate::event::{Events, Severity};

/// The session in force, if there is one.
#[derive(Debug)]
pub(super) struct Sessions {
    key: Key,
    events: Events,
    current: watch::Sender<Option<Arc<Session>>>,
    /// Somebody has found the session in force to be unknown to the proxy.
    forgotten: Notify,
    /// Why there is none, as it was told.
    trouble: Mutex<Option<String>>,
}

impl Sessions {
    pub(super) fn new(key: Key, events: Events) -> Self {
        Self { key, events, current: watch::Sender::new(None), forgotten: Notify::new(), trouble: Mutex::default() }
    }

    /// The session in force, which is waited for.
    ///
    /// # Errors
    /// Why there is none.
    pub(super) async fn current(&self) -> Result<Arc<Session>, String> {
        // As nearly always: without a place among those who wait, and without a timer.
        if let Some(session) = &*self.current.borrow() {
            return Ok(session.clone());
        }
        let mut sessions = self.current.subscribe();
        let waited = timeout(limits::SESSION_TIME, sessions.wait_for(Option::is_some)).await;
        match waited {
            Ok(Ok(session)) => session.clone().ok_or_else(String::new),
            _ => Err(self
                .trouble
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone()
                .unwrap_or_else(|| "no session with it could be opened in time".to_owned())),
        }
    }

    /// Says that the proxy does not know `session`.
    pub(super) fn forget(&self, session: &Arc<Session>) {
        let is_current = |current: &Option<Arc<Session>>| current.as_ref().is_some_and(|it| Arc::ptr_eq(it, session));
        let forgotten = self.current.send_if_modified(|current| {
            let same = is_current(current);
            if same {
                *current = None;
            }
            same
        });
        if forgotten {
            self.forgotten.notify_one();
        }
    }

    /// Keeps a session open for as long as the task lives.
    pub(super) async fn keep(&self, route: &Route) {
        let mut pause = limits::SESSION_PAUSE;
        loop {
            match self.open(route).await {
                Ok((session, stream)) => {
                    pause = limits::SESSION_PAUSE;
                    self.note(None);
                    self.current.send_replace(Some(Arc::new(session)));
                    tokio::select! {
                        () = ended(stream) => {}
                        () = self.forgotten.notified() => {}
                    }
                    self.current.send_replace(None);
                }
                Err((severity, why)) => {
                    self.note(Some((severity, why)));
                    sleep(pause).await;
                    pause = (pause * 2).min(limits::SESSION_PAUSE_MOST);
                }
            }
        }
    }

    async fn open(&self, route: &Route) -> Result<(Session, TcpStream), (Severity, String)> {
        let mut stream = route.dial().await.map_err(|why| (Severity::Medium, why))?;
        match timeout(limits::SESSION_TIME, attest::open(&mut stream, &self.key)).await {
            Ok(Ok(session)) => {
                dial::keep_alive(&stream);
                Ok((session, stream))
            }
            Ok(Err(error @ OpenError::Io(_))) => Err((Severity::Medium, error.to_string())),
            Ok(Err(error)) => Err((Severity::High, error.to_string())),
            Err(_) => Err((Severity::Medium, "it accepts connections and says nothing".to_owned())),
        }
    }

    /// Remembers why there is no session, and tells of it when that changes.
    fn note(&self, trouble: Option<(Severity, String)>) {
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        match &trouble {
            Some((_, why)) if known.as_ref() == Some(why) => return,
            Some((severity, why)) => {
                let message = format!(
                    "the proxy in the other pod cannot be told whose connections are, so that none is made: {why}; that is \
                     tried again"
                );
                self.events.find(*severity, "attestation-interrupted", message);
            }
            None => self.events.find(
                Severity::Informational,
                "attestation-session",
                "the proxy in the other pod is told from now on whose connections are",
            ),
        }
        *known = trouble.map(|(_, why)| why);
    }
}

/// Waits for the end of a session's connection, on which nothing comes.
async fn ended(mut stream: TcpStream) {
    let mut sink = [0; 64];
    while let Ok(1..) = stream.read(&mut sink).await {}
}
