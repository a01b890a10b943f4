//! The server behind the door: connections, and what their channels are for.

use std::ffi::CString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::UnixStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use super::console::Console;
use super::door::{Admitted, Door, Refusal};
use super::forward::{self, Destination};
use super::knock::Visitor;
use super::session;
use super::ssh::SshError;
use super::ssh::channel::{CONNECT_FAILED, Refused, UNKNOWN_KIND};
use super::ssh::connection::{Connection, Opening};
use super::ssh::kex::HostKey;
use super::told::Told;
use crate::event::{Actor, Event, Events, SshActivity, SshOutcome, SshStep};
use crate::workload::environment::Recipe;
use crate::workload::launcher::Launcher;

/// How often in a while each kind of thing that is refused, or comes to nothing, is recorded by itself: an operator wants to
/// know what was tried, and a client that is let in may try in a loop.
const REFUSED_SINGLY: u32 = 20;

/// What programs are started with, and by whom.
#[derive(Debug)]
pub struct Inside {
    /// Starts them.
    pub launcher: Launcher,
    /// The main process, as people may see it.
    pub console: Arc<Console>,
    /// Their environment.
    pub environment: Recipe,
    /// Shells to try, see [`super::shell::candidates`].
    pub shells: Vec<CString>,
    /// Where they start; the workload's directory where there is none.
    pub workdir: Option<PathBuf>,
    /// Where to tell of it all.
    pub events: Events,
}

/// Somebody who is connected, for events.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    visitor: Visitor,
    pub(super) inside: Arc<Inside>,
    /// What was refused of late, to them all.
    refused: Arc<Mutex<Told>>,
}

impl Caller {
    /// Records something that was asked for. Beyond a rate what was refused or failed is counted, by kind; not so the end
    /// of what began, for there is one of each.
    pub(super) fn record(&self, step: SshStep, outcome: SshOutcome) {
        let counted = match (&outcome, &step) {
            (SshOutcome::Done, _)
            | (SshOutcome::Failed(_), SshStep::Ran { .. } | SshStep::Carried { .. } | SshStep::Closed) => Some(1),
            _ => self.refused.lock().unwrap_or_else(PoisonError::into_inner).count(kind(&step)),
        };
        let Some(count) = counted else { return };
        let actor =
            Actor { binary: None, pid: Some(self.visitor.pid).filter(|&pid| pid != 0), uid: Some(self.visitor.uid) };
        self.inside.events.emit(Event::Ssh(SshActivity { step, outcome, actor, count }));
    }
}

/// What is counted together.
fn kind(step: &SshStep) -> &'static str {
    match step {
        SshStep::Opened | SshStep::Closed => "connection",
        SshStep::Ran { .. } => "program",
        SshStep::Carried { .. } => "files",
        SshStep::Passed { .. } => "file",
        SshStep::Forwarded { .. } => "forward",
        SshStep::Asked(_) => "other",
    }
}

/// Serves whoever may come in, until it is dropped, and with it all connections.
///
/// # Errors
/// There is no host key: nobody can be served.
pub async fn serve(mut door: Door, inside: Inside) -> Result<(), SshError> {
    let inside = Arc::new(inside);
    let key = Arc::new(HostKey::generate()?);
    let mut connections = JoinSet::new();
    let events = inside.events.clone();
    let refused = Arc::new(Mutex::new(Told::singly(REFUSED_SINGLY)));
    loop {
        tokio::select! {
            admitted = door.admit(|refusal| record_refusal(&events, refusal)) => {
                let Admitted { stream, visitor, place } = admitted;
                let caller = Caller { visitor, inside: inside.clone(), refused: refused.clone() };
                connections.spawn(connection(stream, place, key.clone(), caller));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn record_refusal(events: &Events, refusal: Refusal) {
    let actor = Actor { binary: None, pid: refusal.pid, uid: None };
    let outcome = SshOutcome::Refused(refusal.reason);
    events.emit(Event::Ssh(SshActivity { step: SshStep::Opened, outcome, actor, count: refusal.count }));
}

/// `_place` is held for as long as it lasts.
async fn connection(stream: UnixStream, _place: OwnedSemaphorePermit, key: Arc<HostKey>, caller: Caller) {
    let (connection, mut openings) = match Connection::serve(stream, key).await {
        Ok(served) => served,
        // Somebody who only looked.
        Err(SshError::Gone | SshError::Io(_)) => return,
        Err(error) => return caller.record(SshStep::Opened, SshOutcome::Refused(error.to_string())),
    };
    caller.record(SshStep::Opened, SshOutcome::Done);
    let mut channels = JoinSet::new();
    let accept = async {
        loop {
            tokio::select! {
                opening = openings.recv() => match opening {
                    Some(opening) => drop(channels.spawn(channel(opening, caller.clone()))),
                    None => std::future::pending().await,
                },
                Some(_) = channels.join_next() => {}
            }
        }
    };
    let ended = tokio::select! {
        ended = connection.run() => ended,
        () = accept => Ok(()),
    };
    let outcome = ended.map_or_else(|error| SshOutcome::Failed(error.to_string()), |()| SshOutcome::Done);
    caller.record(SshStep::Closed, outcome);
    // All channels are closed now. Each ends what it has started.
    while channels.join_next().await.is_some() {}
}

async fn channel(opening: Opening, caller: Caller) {
    let Opening { kind, details, channel } = opening;
    match kind.as_str() {
        "session" => {
            channel.confirm();
            session::serve(channel, caller).await;
        }
        "direct-tcpip" => {
            let Ok(destination) = Destination::read(&details) else {
                return channel.refuse(&Refused { code: UNKNOWN_KIND, reason: "a malformed destination".into() });
            };
            let step = SshStep::Forwarded { host: destination.host.clone(), port: destination.port };
            match forward::connect(&destination, &caller.inside.launcher).await {
                Ok(stream) => {
                    caller.record(step, SshOutcome::Done);
                    channel.confirm();
                    forward::carry(channel, stream).await;
                }
                Err(refused) => {
                    channel.refuse(&refused);
                    let Refused { code, reason } = refused;
                    // Nothing kept it from where nobody listens.
                    let failed = code == CONNECT_FAILED;
                    let outcome = if failed { SshOutcome::Failed(reason) } else { SshOutcome::Refused(reason) };
                    caller.record(step, outcome);
                }
            }
        }
        _ => {
            let reason = format!("there are no channels of the kind {kind:?} here");
            channel.refuse(&Refused { code: UNKNOWN_KIND, reason: reason.clone() });
            caller.record(SshStep::Asked(kind), SshOutcome::Refused(reason));
        }
    }
}
