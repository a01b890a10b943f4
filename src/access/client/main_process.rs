//! The main process: to attach to, and what it has said.

use std::io::IsTerminal;
use std::sync::Arc;

use nix::sys::signal::Signal;

use super::{Caught, ClientError, attend, connect, open, show_all, want_terminal};
use crate::access::attach::{HAS_TERMINAL, LOGS, LOGS_FOLLOWED, MAIN};
use crate::access::place::Place;
use crate::access::ssh::channel::{Channel, Closed, Refused, UNKNOWN_KIND};
use crate::access::ssh::wire::Writer;
use crate::contract::exit;
use crate::event::say;

/// Joins this process's streams to the main process's until its end, which the exit code stands for, or until this side
/// detaches, which is 0; a signal that would end this process ends no more than this.
///
/// # Errors
/// [`ClientError`].
pub async fn attach(place: &Place) -> Result<u8, ClientError> {
    let opener = connect(place).await?;
    let channel = Arc::new(open(&opener, "session", &[]).await?);
    channel.keep_order();
    channel.send_request(HAS_TERMINAL, true, &[]);
    let has_terminal = channel.answered().await.ok_or(Closed)?;
    let keys = has_terminal && std::io::stdin().is_terminal();
    // While lines still end as they should.
    say!("openshell-supervisor: attached; {} detaches", if keys { "Ctrl-P Ctrl-Q" } else { "Ctrl-C" });
    let raw = if has_terminal { want_terminal(&channel)? } else { None };
    subsystem(&channel, MAIN).await?;
    let code = attend(&channel, until_told(&channel, has_terminal, keys)).await;
    drop(raw);
    code
}

/// Prints what the main process has said of late, and all that it says until its end if it is to `follow`.
///
/// # Errors
/// [`ClientError`].
pub async fn logs(place: &Place, follow: bool) -> Result<u8, ClientError> {
    let opener = connect(place).await?;
    let channel = open(&opener, "session", &[]).await?;
    channel.keep_order();
    subsystem(&channel, if follow { LOGS_FOLLOWED } else { LOGS }).await?;
    match show_all(&channel).await {
        // There was nothing to interrupt.
        Err(error) if error.is_unread() => Ok(0),
        other => other,
    }
}

async fn subsystem(channel: &Channel, name: &str) -> Result<(), ClientError> {
    let mut details = Vec::new();
    details.put_string(name.as_bytes());
    channel.send_request("subsystem", true, &details);
    match channel.answered().await {
        Some(true) => Ok(()),
        Some(false) => {
            Err(Refused { code: UNKNOWN_KIND, reason: format!("there is no subsystem {name} there") }.into())
        }
        None => Err(Closed.into()),
    }
}

/// Until a signal would end this process. Only this side ends: the main process is not its child. Ctrl-C is how one
/// detaches where no `keys` do.
async fn until_told(channel: &Channel, terminal: bool, keys: bool) -> u8 {
    let Some(mut caught) = Caught::begin() else { return std::future::pending().await };
    loop {
        match caught.next().await {
            Some(Signal::SIGINT) if !keys => {
                say!("\nopenshell-supervisor: detached; the main process runs on");
                return 0;
            }
            Some(signal) => return exit::SIGNAL_BASE.wrapping_add(signal as i32 as u8),
            None => caught.resize(channel, terminal),
        }
    }
}
