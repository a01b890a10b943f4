//! The socket on which people knock.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::knock::{self, Stranger, Visitor};
use super::place::{Place, PlaceError};
use super::told::Told;
use crate::sys::process::Held;

/// Connections at a time. Each may cost [`super::ssh::connection::CHANNELS_LIMIT`] windows in the worst case, and comes
/// from somebody who may do as they like here anyway.
const CONNECTIONS_LIMIT: usize = 128;

/// After a failure to accept, such as for want of descriptors, the next try waits.
const RETRY: Duration = Duration::from_millis(100);

/// How often in a while a cause is told by itself: who knocks in a loop, and anybody can, is told of once.
const TOLD_SINGLY: u32 = 1;

/// How long a stranger's socket may take to take in the refusal. It is new, and has room for it.
const REFUSAL_TIME: Duration = Duration::from_millis(50);

/// The door, open.
#[derive(Debug)]
pub struct Door {
    place: Place,
    listener: UnixListener,
    places: Arc<Semaphore>,
    companion: Option<Held>,
    told: Told,
}

/// Somebody who has come in.
#[derive(Debug)]
pub struct Admitted {
    /// The connection.
    pub stream: UnixStream,
    /// Who.
    pub visitor: Visitor,
    /// Held for as long as the connection lasts.
    pub place: OwnedSemaphorePermit,
}

/// Somebody who has not, how often since this was last told, and why.
#[derive(Debug)]
pub struct Refusal {
    /// How often.
    pub count: u64,
    /// Why.
    pub reason: String,
    /// Their process, where it is known.
    pub pid: Option<u32>,
}

impl Door {
    /// Opens it. `companion` may come in whatever user it is.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn open(place: &Place, companion: Option<Held>) -> Result<Self, PlaceError> {
        let listener = place.listen()?;
        let listener = UnixListener::from_std(listener).map_err(|source| PlaceError::Call {
            place: place.clone(),
            call: "epoll_ctl",
            source,
        })?;
        let places = Arc::new(Semaphore::new(CONNECTIONS_LIMIT));
        Ok(Self { place: place.clone(), listener, places, companion, told: Told::singly(TOLD_SINGLY) })
    }

    /// Waits for the next who may come in. Nothing that goes wrong with one ends the waiting for others; `refused` hears of
    /// it.
    pub async fn admit(&mut self, mut refused: impl FnMut(Refusal)) -> Admitted {
        loop {
            let (stream, why) = match self.listener.accept().await {
                Err(error) => {
                    self.tell("accept", None, format!("a connection could not be accepted: {error}"), &mut refused);
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Ok((stream, _)) => match knock::who(&stream, self.companion.as_ref()) {
                    Ok(visitor) => match self.places.clone().try_acquire_owned() {
                        Ok(place) => return Admitted { stream, visitor, place },
                        Err(_) => {
                            let why = format!("{CONNECTIONS_LIMIT} connections are open already; close one");
                            (stream, ("limit", Some(visitor.pid), why))
                        }
                    },
                    Err(stranger) => {
                        let pid = match stranger {
                            Stranger::Inside { pid } | Stranger::Gone { pid, .. } => Some(pid),
                            _ => None,
                        };
                        (stream, (stranger.kind(), pid, stranger.to_string()))
                    }
                },
            };
            let (kind, pid, reason) = why;
            dismiss(stream, &reason).await;
            self.tell(kind, pid, reason, &mut refused);
            // Between one stranger and the next, whoever else has something to do.
            tokio::task::yield_now().await;
        }
    }

    fn tell(&mut self, kind: &'static str, pid: Option<u32>, reason: String, refused: &mut impl FnMut(Refusal)) {
        if let Some(count) = self.told.count(kind) {
            refused(Refusal { count, reason, pid });
        }
    }
}

/// Says why, where clients look before the server's identification (RFC 4253 §4.2), and closes.
async fn dismiss(mut stream: UnixStream, reason: &str) {
    let line = format!("openshell-supervisor: not let in: {reason}\r\n");
    let _ = tokio::time::timeout(REFUSAL_TIME, stream.write_all(line.as_bytes())).await;
}

impl Drop for Door {
    fn drop(&mut self) {
        self.place.leave();
    }
}
