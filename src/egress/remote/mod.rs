//! The workload's end of a proxy that is in another pod: where the workload connects, at the same address as in every other
//! topology, and from where each connection goes on to the proxy. So the workload needs no name server and no route of its
//! own; and where a key is given, this is where its connections are told whose they are.
//!
//! Nothing is decided here, and nothing of a request is read. A proxy that is gone costs the workload its connections, which
//! are refused with an answer as any failure is, and nothing else: the next one finds it when it is back.

mod route;
mod session;

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use self::route::Route;
use self::session::Sessions;
use super::authorize::{Client, Owner, record_refused};
use super::denial::{Kind, Refusal};
use super::listener::{Ends, Server};
use super::splice::{self, Traffic};
use super::{Resolver, dial, limits, listener};
use crate::attest::{BEGIN, Key, Statement, UNKNOWN_SESSION};
use crate::attribution::Attributor;
use crate::event::{Events, Stage};
use crate::policy::host::Host;

/// What the workload's end needs.
#[derive(Debug)]
pub struct RemoteSettings {
    /// Where the proxy is.
    pub proxy: (Host, u16),
    /// Names to addresses.
    pub resolver: Resolver,
    /// The sandbox's key, and who finds out whose a connection is; without them nothing is attested.
    pub attesting: Option<(Key, Arc<Attributor>)>,
    /// Where what happens is recorded.
    pub events: Events,
    /// How long silent peers are waited for.
    pub patience: limits::Patience,
}

/// The workload's end.
#[derive(Debug)]
pub struct Remote {
    route: Route,
    attesting: Option<Attesting>,
    events: Events,
    patience: limits::Patience,
    pipes: splice::Pipes,
}

#[derive(Debug)]
struct Attesting {
    sessions: Sessions,
    attributor: Arc<Attributor>,
}

/// How a connection to the proxy went on.
enum First {
    /// The proxy has said something, and the client was told.
    Answered,
    /// The proxy does not know the session.
    UnknownSession,
    /// It closed the connection without a word.
    Silence,
    /// The client, or the connection to it, is gone.
    Over,
}

impl Remote {
    /// One that serves nothing yet.
    #[must_use]
    pub fn new(settings: RemoteSettings) -> Arc<Self> {
        let attesting = settings
            .attesting
            .map(|(key, attributor)| Attesting { sessions: Sessions::new(key, settings.events.clone()), attributor });
        Arc::new(Self {
            route: Route::new(settings.proxy, settings.resolver),
            attesting,
            events: settings.events,
            patience: settings.patience,
            pipes: splice::Pipes::default(),
        })
    }

    /// Serves the workload on `listeners` until `shutdown` says true or its sender is gone.
    ///
    /// # Errors
    /// A listener that the runtime cannot take over. Once serving, nothing ends it.
    pub async fn serve(
        self: Arc<Self>,
        listeners: Vec<std::net::TcpListener>,
        shutdown: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let remote = self.clone();
        let keeping = async move {
            if let Some(attesting) = &remote.attesting {
                attesting.sessions.keep(&remote.route).await;
            }
        };
        listener::serve(&self, listeners, keeping, shutdown).await
    }

    /// Passes a connection on as it is.
    async fn pass(&self, client: &TcpStream) {
        match self.route.dial().await {
            Ok(upstream) => self.relay(client, &upstream).await,
            Err(why) => self.unavailable(client, why).await,
        }
    }

    async fn relay(&self, client: &TcpStream, upstream: &TcpStream) {
        dial::keep_alive(upstream);
        let traffic = Traffic::default();
        // How it ends is both sides' affair; both have been told by the sockets.
        let _ = splice::relay(client, upstream, &self.pipes, &traffic).await;
        traffic.count(&self.events);
    }

    async fn unavailable(&self, client: &TcpStream, why: String) {
        let refusal = unavailable(why);
        listener::refuse_unread(&self.events, client, &refusal).await;
    }

    /// Passes a connection on with a statement of whose it is before everything else.
    async fn attest(&self, attesting: &Attesting, client: Arc<TcpStream>, (peer, local): Ends) {
        let Some(local) = local.or_else(|| client.local_addr().ok()) else { return };
        // Who has opened a connection may be about to hand it on: whose it is counts when it is used.
        let stated = async {
            let ahead = read_first(&client, self.patience.keep_alive).await.ok_or(None)?;
            Ok((ahead, state(attesting, &client, peer, local).await))
        };
        let dialled = async { self.route.dial().await.map_err(Some) };
        // Dialled first: the proxy's node answers while the owner is looked for, which takes this thread.
        let (upstream, (mut ahead, statement)) = match tokio::try_join!(biased; dialled, stated) {
            Ok(both) => both,
            Err(None) => return,
            Err(Some(why)) => return self.unavailable(&client, why).await,
        };
        let mut upstream = Some(upstream);
        for _ in 0..limits::SESSIONS_TRIED {
            let session = match attesting.sessions.current().await {
                Ok(session) => session,
                Err(why) => return self.refuse(&client, why).await,
            };
            let dialled = match upstream.take() {
                Some(upstream) => Ok(upstream),
                None => self.route.dial().await,
            };
            let upstream = match dialled {
                Ok(upstream) => upstream,
                Err(why) => return self.refuse(&client, why).await,
            };
            let mut first = session.preface(&statement);
            first.extend_from_slice(&ahead);
            // What was wrong with it the answer says, or that there is none.
            let _ = splice::write_all(&upstream, &first).await;
            drop(first);
            match self.first_answer(&client, &upstream, &mut ahead).await {
                First::Answered => return self.relay(&client, &upstream).await,
                First::Over => return,
                First::Silence => {
                    let why = "it closed the connection without an answer; its log says why".to_owned();
                    return self.refuse(&client, why).await;
                }
                First::UnknownSession => attesting.sessions.forget(&session),
            }
        }
        self.refuse(&client, "it opens sessions and does not know them afterwards".to_owned()).await;
    }

    /// Refuses a client of whose request something has been read.
    async fn refuse(&self, client: &TcpStream, why: String) {
        let refusal = unavailable(why);
        record_refused(&self.events, Stage::Dial, &Owner::Anyone, &refusal, None);
        listener::answer_and_close(client, &refusal).await;
    }

    /// Waits for the proxy to say something, and carries what the client sends meanwhile. All of that is kept in `ahead`, as
    /// long as it is not too much, to be sent again.
    async fn first_answer(&self, client: &TcpStream, upstream: &TcpStream, ahead: &mut Vec<u8>) -> First {
        let mut answer = Vec::new();
        let (mut client_speaks, mut repeatable) = (true, true);
        loop {
            tokio::select! {
                biased;
                ready = upstream.readable() => {
                    match ready.and_then(|()| read(upstream, &mut answer)) {
                        Ok(None) => continue,
                        Ok(Some(0)) | Err(_) => return First::Silence,
                        Ok(Some(_)) => {}
                    }
                    let known = answer.len().min(BEGIN.len());
                    if answer[..known] != BEGIN[..known] {
                        let told = splice::write_all(client, &answer).await;
                        return if told.is_ok() { First::Answered } else { First::Over };
                    }
                    if answer.len() < UNKNOWN_SESSION.len() {
                        continue;
                    }
                    return if answer != UNKNOWN_SESSION {
                        First::Silence
                    } else if repeatable {
                        First::UnknownSession
                    } else {
                        splice::reset_on_close(client);
                        First::Over
                    };
                }
                ready = client.readable(), if client_speaks => {
                    let mut more = Vec::new();
                    match ready.and_then(|()| read(client, &mut more)) {
                        Ok(None) => continue,
                        Ok(Some(0)) => {
                            client_speaks = false;
                            let _ = splice::end(upstream);
                        }
                        Ok(Some(_)) => {
                            repeatable &= ahead.len() + more.len() <= limits::RETAINED_BYTES;
                            if repeatable {
                                ahead.extend_from_slice(&more);
                            }
                            // See above.
                            client_speaks = splice::write_all(upstream, &more).await.is_ok();
                        }
                        Err(_) => return First::Over,
                    }
                }
            }
        }
    }
}

impl Server for Remote {
    fn events(&self) -> &Events {
        &self.events
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, ends: Ends) {
        match &self.attesting {
            None => self.pass(&stream).await,
            Some(attesting) => Box::pin(self.attest(attesting, Arc::new(stream), ends)).await,
        }
    }
}

fn unavailable(why: String) -> Refusal {
    Refusal::new(Kind::ProxyUnavailable, "the sandbox's proxy, which is in a pod of its own, cannot be used now")
        .because(why)
        .advising("try again in some seconds: the connection is made anew each time")
}

/// Who owns the connection, checked to be the only one.
async fn state(
    attesting: &Attesting,
    client: &Arc<TcpStream>,
    peer: std::net::SocketAddr,
    local: std::net::SocketAddr,
) -> Statement {
    let seen = Client::new(client.clone(), peer, local);
    let attributor = Some(&attesting.attributor);
    let found = async {
        let owner = seen.owner(attributor).await?;
        seen.confirm(&owner, attributor).await?;
        Ok::<_, Refusal>(owner)
    };
    match found.await {
        Ok(owner) => owner.stated(),
        Err(refusal) => Statement::Unidentified(refusal.explained()),
    }
}

/// The first bytes that a client sends; `None` if it sends none in time.
async fn read_first(client: &TcpStream, patience: std::time::Duration) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let wait = async {
        loop {
            client.readable().await?;
            if let Some(count) = read(client, &mut bytes)? {
                return Ok::<_, io::Error>(count);
            }
        }
    };
    match timeout(patience, wait).await {
        Ok(Ok(1..)) => Some(bytes),
        _ => None,
    }
}

/// Adds what has come to `into`; `None` if nothing has after all, 0 at the end.
fn read(from: &TcpStream, into: &mut Vec<u8>) -> io::Result<Option<usize>> {
    into.reserve(limits::AHEAD_BYTES);
    match from.try_read_buf(into) {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}
