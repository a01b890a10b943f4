//! Accepting, and what a connection goes through from its first byte to its last.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::authorize::{Client, Owner, record_refused};
use super::denial::{Kind, Refusal};
use super::head::HeadError;
use super::intercept::Interception;
use super::wire::{Gate, Next, Transport};
use super::{Proxy, connect, dial, http, limits, splice};
use crate::event::{Events, Severity, Stage};

/// Has every connection to come carry what each would be given otherwise, at five system calls apiece: an accepted
/// socket starts with the options of the one that listens (tcp(7); `sk_clone` in the kernel).
fn prepare(listener: &std::net::TcpListener) {
    // Neither fails on a TCP socket, and no connection is worse than slower without them.
    let _ = setsockopt(listener, sockopt::TcpNoDelay, &true);
    dial::keep_alive(listener);
}

/// Who serves accepted connections.
pub(super) trait Server: Send + Sync + 'static {
    /// Where what happens is recorded.
    fn events(&self) -> &Events;

    /// Serves one, from its first byte to its last.
    fn serve(self: Arc<Self>, stream: TcpStream, ends: Ends) -> impl Future<Output = ()> + Send;
}

/// Serves clients on `listeners`, and does `beside` meanwhile, until `shutdown` says true or its sender is gone; then accepts no
/// more. Connections that are open end with the runtime.
///
/// # Errors
/// A listener that the runtime cannot take over. Once serving, nothing ends it.
pub(super) async fn serve<S: Server>(
    server: &Arc<S>,
    listeners: Vec<std::net::TcpListener>,
    beside: impl Future<Output = ()> + Send + 'static,
    mut shutdown: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut tasks = JoinSet::new();
    accept_on(server, listeners, &mut tasks)?;
    tasks.spawn(beside);
    // An error means that whoever could ask for the end has ended.
    let _ = shutdown.wait_for(|&ended| ended).await;
    Ok(())
}

/// Accepts on `listeners` by tasks of `tasks`, within the bounds of one proxy.
///
/// # Errors
/// A listener that the runtime cannot take over.
fn accept_on<S: Server>(
    server: &Arc<S>,
    listeners: Vec<std::net::TcpListener>,
    tasks: &mut JoinSet<()>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(limits::CONNECTIONS));
    let exits = Arc::new(Semaphore::new(limits::TURNED_AWAY));
    for listener in listeners {
        listener.set_nonblocking(true)?;
        prepare(&listener);
        let listener = TcpListener::from_std(listener)?;
        tasks.spawn(accept(server.clone(), listener, places.clone(), exits.clone()));
    }
    Ok(())
}

/// Accepts for as long as the task lives: no error ends it.
async fn accept<S: Server>(server: Arc<S>, listener: TcpListener, places: Arc<Semaphore>, exits: Arc<Semaphore>) {
    let mut pause = limits::ACCEPT_PAUSE;
    // Where the listener has an address of its own, so has every connection.
    let local = listener.local_addr().ok().filter(|local| !local.ip().is_unspecified());
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) if concerns_one_connection(&error) => continue,
            Err(error) => {
                // Descriptors or memory are short, and trying at once would only burn the processor. What waits in the
                // backlog is served when connections have ended.
                if pause == limits::ACCEPT_PAUSE {
                    server.events().find(
                        Severity::High,
                        "accept-failed",
                        format!("the proxy cannot accept connections for now: {error}; raise the limit of open files (nofile)"),
                    );
                }
                sleep(pause).await;
                pause = (pause * 2).min(limits::ACCEPT_PAUSE_MOST);
                continue;
            }
        };
        pause = limits::ACCEPT_PAUSE;
        match places.clone().try_acquire_owned() {
            Ok(place) => {
                let server = server.clone();
                tokio::spawn(async move {
                    let _counted = Counted::new(server.events().clone());
                    server.serve(stream, (peer, local)).await;
                    drop::<OwnedSemaphorePermit>(place);
                });
            }
            Err(_) => {
                // When even these run out, the kernel's backlog is where the rest waits.
                let Ok(exit) = exits.clone().acquire_owned().await else { return };
                tokio::spawn(turn_away(server.clone(), stream, exit));
            }
        }
    }
}

/// accept(2): errors that were the new connection's own.
fn concerns_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
            | io::ErrorKind::PermissionDenied
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
    )
}

struct Counted(Events);

impl Counted {
    fn new(events: Events) -> Self {
        events.metrics().open_connections.inc();
        Self(events)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics().open_connections.dec();
    }
}

/// Who is connected, and to which of our addresses if that is known already.
pub(super) type Ends = (SocketAddr, Option<SocketAddr>);

impl Server for Proxy {
    fn events(&self) -> &Events {
        &self.events
    }

    async fn serve(self: Arc<Self>, stream: TcpStream, ends: Ends) {
        // The phases share nothing but sockets: what the first needs is gone while a tunnel rests.
        match Box::pin(requests(&self, stream, ends)).await {
            None => {}
            Some(Opened::Tunnel(tunnel)) => Box::pin(tunnel.run()).await,
            Some(Opened::Interception(interception, client)) => Box::pin(interception.run(&self, &client)).await,
        }
    }
}

/// What a connection has become.
enum Opened {
    Tunnel(Box<super::tunnel::Tunnel>),
    Interception(Box<Interception>, Arc<Client>),
}

/// Serves requests until the connection ends or becomes a tunnel.
async fn requests(proxy: &Arc<Proxy>, stream: TcpStream, (peer, local): Ends) -> Option<Opened> {
    let local = local.or_else(|| stream.local_addr().ok())?;
    let socket = Arc::new(stream);
    let (client, held) = match &proxy.attestation {
        None => (Client::new(socket.clone(), peer, local), Vec::new()),
        Some(attestation) => {
            let (owner, held) = attestation.owner_of(&socket, proxy).await?;
            (Client::told(socket.clone(), peer, local, owner), held)
        }
    };
    let client = Arc::new(client);
    let mut gate = Gate::with_held(Transport::Socket(socket.clone()), held, proxy.patience);
    loop {
        match poll_fn(|cx| gate.poll_next(cx)).await {
            Next::End => return None,
            Next::Refuse(error) => {
                let refusal = malformed(&error);
                proxy.record_refused(Stage::Parse, &client.known_owner(), &refusal, None);
                answer_and_close(&socket, &refusal).await;
                return None;
            }
            Next::Connect(length) => match connect::serve(proxy, &client, &socket, &mut gate, length).await {
                connect::Outcome::Open(upstream, permission) if proxy.inspects(&permission.permit) => {
                    let ahead = gate.held().to_vec();
                    let interception = Interception { client: socket, ahead, upstream, permission: *permission };
                    return Some(Opened::Interception(Box::new(interception), client));
                }
                connect::Outcome::Open(upstream, permission) => {
                    return Some(Opened::Tunnel(Box::new(super::tunnel::Tunnel {
                        proxy: proxy.clone(),
                        client: socket,
                        upstream,
                        permission: *permission,
                        to_upstream: gate.held().to_vec(),
                        to_client: Vec::new(),
                    })));
                }
                connect::Outcome::Refused => {}
                connect::Outcome::Close => {
                    linger(&socket).await;
                    return None;
                }
            },
            Next::Forward => match http::serve_forward(proxy, &client, gate).await {
                http::Outcome::Open(tunnel) => return Some(Opened::Tunnel(tunnel)),
                http::Outcome::Again(same) => gate = same,
                http::Outcome::Close => {
                    linger(&socket).await;
                    return None;
                }
            },
        }
    }
}

fn malformed(error: &HeadError) -> Refusal {
    Refusal::new(error.kind(), error.to_string()).advising(format!(
        "this is an HTTP proxy: send CONNECT HOST:PORT, or an absolute http:// target; for other protocols open a \
         tunnel first (proxy address: {})",
        crate::contract::PROXY_URL
    ))
}

/// Tells a client that the proxy is full.
async fn turn_away(server: Arc<impl Server>, stream: TcpStream, _exit: OwnedSemaphorePermit) {
    let refusal = Refusal::new(
        Kind::TooManyConnections,
        format!("the sandbox has {} connections through its proxy open, which is the most", limits::CONNECTIONS),
    )
    .advising("close connections that are no longer needed, then try again");
    refuse_unread(server.events(), &stream, &refusal).await;
}

/// Refuses a client whose request nobody has read.
pub(super) async fn refuse_unread(events: &Events, stream: &TcpStream, refusal: &Refusal) {
    record_refused(events, Stage::Parse, &Owner::Anyone, refusal, None);
    // The client may still be writing its request, and some read no answer before they have finished.
    let mut head = [0; 1024];
    let _ = timeout(limits::TURN_AWAY_TIME, async {
        stream.readable().await?;
        stream.try_read(&mut head)
    })
    .await;
    answer_and_close(stream, refusal).await;
}

pub(super) async fn answer_and_close(stream: &TcpStream, refusal: &Refusal) {
    let answer = refusal.wire(false);
    if timeout(limits::LINGER_TIME, splice::write_all(stream, &answer)).await.is_ok_and(|written| written.is_ok()) {
        linger(stream).await;
    }
}

/// Ends our half and reads on for a moment: see [`limits::LINGER_TIME`].
pub(super) async fn linger(stream: &TcpStream) {
    let deadline = Instant::now() + limits::LINGER_TIME;
    let mut left = limits::LINGER_BYTES;
    let mut sink = vec![0; 4096];
    if splice::end(stream).is_err() {
        return;
    }
    while left > 0 {
        match timeout_at(deadline, stream.readable()).await {
            Ok(Ok(())) => match stream.try_read(&mut sink) {
                Ok(0) => return,
                Ok(count) => left = left.saturating_sub(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            },
            _ => return,
        }
    }
}

/// Closes idle upstream connections in time.
pub(super) async fn sweep(proxy: Arc<Proxy>) {
    let mut tick = tokio::time::interval(limits::POOL_SWEEP);
    loop {
        tick.tick().await;
        proxy.pool.sweep();
    }
}

#[cfg(test)]
mod tests {
    use std::net;

    use nix::sys::socket::getsockopt;

    use super::*;

    #[test]
    fn accepted_connections_have_the_options_of_their_listener() {
        for prepared in [true, false] {
            let listener = net::TcpListener::bind("127.0.0.1:0").unwrap();
            if prepared {
                prepare(&listener);
            }
            let _client = net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(getsockopt(&accepted, sockopt::TcpNoDelay).unwrap(), prepared);
            assert_eq!(getsockopt(&accepted, sockopt::KeepAlive).unwrap(), prepared);
            assert_eq!(getsockopt(&accepted, sockopt::TcpKeepIdle).unwrap() == limits::KEEPALIVE_IDLE, prepared);
            assert_eq!(
                getsockopt(&accepted, sockopt::TcpKeepInterval).unwrap() == limits::KEEPALIVE_INTERVAL,
                prepared
            );
            assert_eq!(getsockopt(&accepted, sockopt::TcpKeepCount).unwrap() == limits::KEEPALIVE_PROBES, prepared);
        }
    }
}
