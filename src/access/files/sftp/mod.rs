//! SFTP, version 3 (draft-ietf-secsh-filexfer-02), with the extensions that OpenSSH's clients use
//! (PROTOCOL §4 of OpenSSH).
//!
//! ```text
//! wire      packets, the fields in them, the replies
//! session   which request is answered where
//! opened    files that are open: reading, writing, closing
//! upload    how what is written comes under its name
//! paths     requests that name a path
//! extended  the extensions
//! ```
//!
//! Requests are answered one after the other in their order, which the draft asks for where they touch one file; a
//! client that sends many ahead loses nothing by it, for replies leave together whenever no request is waiting.
//!
//! The protocol has no word for "the upload is complete" but the closing of the handle. So a file that a client creates
//! or writes from its start appears under its name when the handle is closed (or by fsync@openssh.com), and what was cut
//! short never does. Nor does one of which something could not be written, for OpenSSH's client closes its handle all the same;
//! but what that client closes after Ctrl-C in `put` cannot be told from what is whole, since it sends nothing else. In the session itself the name stands for the unfinished file from the beginning, so that a client
//! which looks at it, sets its mode or opens it again finds what it wrote. Not held back are files opened for appending,
//! for writing without creating (random access, as sshfs does), with `EXCL` (a lock must be seen at once; it is removed
//! if the session ends before its handle is closed), and those that [`Staged::succeed`](super::staged::Staged::succeed)
//! names.

mod attributes;
mod extended;
mod listing;
mod opened;
mod paths;
mod session;
#[cfg(test)]
mod tests;
pub(super) mod upload;
mod wire;

use std::io::{self, Read, Write};

use super::{Names, Tell};

/// Largest packet, its length aside: OpenSSH's bound, which its clients rely on (`SFTP_MAX_MSG_LENGTH`).
const MAX_PACKET: usize = 256 << 10;

/// Most bytes of a file in one packet: what OpenSSH leaves when everything else in it has room.
const MAX_DATA: usize = MAX_PACKET - 1024;

/// Open handles of one session. Each holds at most four descriptors, of 1024 that a process usually has.
const MAX_HANDLES: usize = 200;

/// Why a session ended otherwise than by the client's closing it between two requests.
#[derive(Debug, thiserror::Error)]
pub enum SftpError {
    /// A packet that cannot be one.
    #[error(
        "sftp: a packet of {length} bytes, expected 1 to {MAX_PACKET}: not an SFTP client, or its output is mixed with another's"
    )]
    Packet {
        /// The length it announced.
        length: u32,
    },
    /// The stream ended inside a packet.
    #[error("sftp: the connection ended inside a packet")]
    Truncated,
    /// The first packet was another.
    #[error("sftp: the first packet is of type {found}, expected SSH_FXP_INIT (1) with a version")]
    NotInitialised {
        /// Its type.
        found: u8,
    },
    /// A request without an identifier, to which no answer is possible.
    #[error("sftp: a packet of type {0} is too short for a request identifier")]
    NoIdentifier(u8),
    /// Reading or writing failed.
    #[error("sftp: {0}")]
    Stream(#[from] io::Error),
}

/// Serves one session until the client closes it, and tells of each file that was opened. It takes about 1.1 MiB for packets, 32 KiB for each open directory, and
/// at most 800 descriptors.
///
/// # Errors
/// What is no SFTP, or the stream failed. Uploads that were not closed are gone in any case.
pub fn serve(input: impl Read, output: impl Write, names: &dyn Names, tell: Tell<'_>) -> Result<(), SftpError> {
    let mut session = session::Session::new(wire::Replies::new(output), names);
    let served = answer_all(input, &mut session, tell);
    session.handles.abandon();
    session.handles.passed.drain(..).for_each(tell);
    served
}

fn answer_all<W: Write>(
    input: impl Read,
    session: &mut session::Session<'_, W>,
    tell: Tell<'_>,
) -> Result<(), SftpError> {
    let mut requests = wire::Requests::new(input);
    while let Some(packet) = requests.next()? {
        session.take(packet)?;
        session.handles.passed.drain(..).for_each(&mut *tell);
        if !requests.another_is_there() {
            session.replies.flush()?;
        }
    }
    session.replies.flush()?;
    Ok(())
}
