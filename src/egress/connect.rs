//! CONNECT: the head is read natively, the answer is one write, and then the connection is a tunnel. Nothing waits for
//! the client to speak first, since with SSH or SMTP it is the server that does.

use std::sync::Arc;
use std::time::Instant;

use tokio::net::TcpStream;

use super::authorize::{Client, Passed};
use super::denial::{Kind, Refusal};
use super::head::{self, Framing};
use super::intent::Intent;
use super::parent::Leg;
use super::splice;
use super::tunnel::Permission;
use super::wire::Gate;
use super::{Proxy, Reached};
use crate::event::Stage;

/// The answer that opens a tunnel. Without a Content-Length, which RFC 9110 §9.3.6 forbids here.
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";

/// What becomes of the connection.
pub(super) enum Outcome {
    /// It is a tunnel now, to this.
    Open(Leg, Box<Permission>),
    /// It was refused and may ask again.
    Refused,
    /// It was refused and must end.
    Close,
}

/// Serves the CONNECT whose head is the first `length` bytes that `gate` holds.
pub(super) async fn serve(
    proxy: &Arc<Proxy>,
    client: &Client,
    stream: &TcpStream,
    gate: &mut Gate,
    length: usize,
) -> Outcome {
    let begun = Instant::now();
    let head = gate.held()[..length].to_vec();
    gate.drop_held(length);
    let (outcome, keep_alive) = match head::parse(&head) {
        Ok(head) => (open(proxy, client, &head).await, head.keep_alive),
        // Not possible: the gate has read the same bytes.
        Err(error) => (Err(Refusal::new(Kind::InvalidRequest, error.to_string())), false),
    };
    match outcome {
        Ok((upstream, permission)) => {
            if splice::write_all(stream, ESTABLISHED).await.is_err() {
                return Outcome::Close;
            }
            let metrics = proxy.events.metrics();
            metrics.connect_seconds.observe(begun.elapsed().as_secs_f64());
            proxy.record_allowed(Stage::Connect, &Passed { permission: &permission, audited: None, http: None });
            Outcome::Open(upstream, Box::new(permission))
        }
        Err(refusal) => {
            proxy.record_refused(Stage::Connect, &client.known_owner(), &refusal, None);
            // Bytes sent ahead of the answer were meant for the tunnel: they must not be read as a request.
            let keep_alive = keep_alive && gate.held().is_empty();
            let written = splice::write_all(stream, &refusal.wire(keep_alive)).await;
            if keep_alive && written.is_ok() { Outcome::Refused } else { Outcome::Close }
        }
    }
}

async fn open(proxy: &Arc<Proxy>, client: &Client, head: &head::Head<'_>) -> Result<(Leg, Permission), Refusal> {
    let intent = read(head)?;
    let owner = client.owner(proxy.attributor.as_ref()).await.map_err(|refusal| refusal.about(&intent))?;
    let permit = proxy.decide(&owner, &intent)?;
    let confirmed = client.confirm(&owner, proxy.attributor.as_ref());
    let (reached, confirmed) = tokio::join!(proxy.reach(&intent, &owner, &permit), confirmed);
    // A connection that someone else owns as well must not learn what the destination answered.
    confirmed.map_err(|refusal| refusal.about(&intent))?;
    let Reached { leg, address, via, .. } = reached?;
    Ok((leg, Permission { intent, owner, permit, address, via }))
}

fn read(head: &head::Head<'_>) -> Result<Intent, Refusal> {
    let invalid =
        |detail: String| Refusal::new(Kind::InvalidRequest, detail).advising("send CONNECT HOST:PORT HTTP/1.1");
    let intent = Intent::parse(head.target, None).map_err(|error| invalid(error.to_string()))?;
    // The Host field is not read: it goes no further than here, and Node's `http.request` fills in the proxy's own name.
    if !matches!(head.framing, Framing::Empty | Framing::Length(0)) {
        return Err(invalid("a CONNECT request has no body".to_owned()).about(&intent));
    }
    Ok(intent)
}
