//! `process`'s side.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep};

use super::peer::credentials;
use super::{Instruction, Link, LinkError, Report, State, VERSION};
use crate::sys::process::Held;
use crate::workload::trust::Gathered;

/// Between two tries. The socket appears once `network` can serve, and the workload waits for nothing else.
const RETRY: Duration = Duration::from_millis(20);

/// How long a socket that this user may not come to is tried: its directory may just be changing hands.
const DENIED_PATIENCE: Duration = Duration::from_secs(2);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Nobody was there in time.
    #[error("{}: after {:.1} s: {source}; {remedy}", path.display(), patience.as_secs_f64())]
    Absent {
        /// The socket.
        path: PathBuf,
        /// How long.
        patience: Duration,
        /// The last answer.
        source: io::Error,
        /// What helps.
        remedy: &'static str,
    },
    /// Another user's, or our own, is there.
    #[error(
        "{}: its owner runs as user {uid}, as the workload does; `network` must have a user of its own", path.display()
    )]
    OurOwn {
        /// The socket.
        path: PathBuf,
        /// The user.
        uid: u32,
    },
    /// There will be no sandbox.
    #[error("the `network` supervisor refuses: {0}")]
    Refused(String),
    /// The connection failed.
    #[error(transparent)]
    Link(#[from] LinkError),
}

/// The connection as `process` has it.
pub type Gate = Link<Instruction, Report>;

/// What came of connecting.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub gate: Gate,
    /// What to launch the workload with.
    pub state: State,
    /// The `network` supervisor itself; `None` where the two do not share a process namespace.
    pub network: Option<Held>,
}

/// Connects, says hello, and is told what to launch the workload with. `trusted` is whom the image trusts.
///
/// # Errors
/// [`ConnectError`], at the latest after `patience`.
pub async fn connect(path: &Path, trusted: Gathered, patience: Duration) -> Result<Connected, ConnectError> {
    let hello = Report::Hello { version: VERSION, trusted };
    let begun = Instant::now();
    loop {
        let source = match attempt(path, &hello).await {
            // A door that closes while we come: its owner begins anew, or has somebody else.
            Err(ConnectError::Link(LinkError::Closed)) => io::ErrorKind::ConnectionReset.into(),
            Err(ConnectError::Link(LinkError::Io(error))) => error,
            other => return other,
        };
        // Rights do not come by waiting.
        let denied = source.kind() == io::ErrorKind::PermissionDenied && begun.elapsed() > DENIED_PATIENCE;
        if denied || begun.elapsed() + RETRY > patience {
            let remedy = remedy(&source);
            return Err(ConnectError::Absent {
                path: path.to_owned(),
                patience: begun.elapsed().min(patience),
                source,
                remedy,
            });
        }
        sleep(RETRY).await;
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "this user may not come to it: did `network-init` run, with this container's group as --sandbox-gid?"
        }
        io::ErrorKind::NotFound => {
            "nobody has made it: is the volume of `network` mounted here, is this its --control-socket, and what does the log \
             of its container say? Or wait longer by --wait"
        }
        _ => "nobody answers there: look at the log of the `network` container, or wait longer by --wait",
    }
}

async fn attempt(path: &Path, hello: &Report) -> Result<Connected, ConnectError> {
    let stream = UnixStream::connect(path).await.map_err(LinkError::Io)?;
    let credentials = credentials(&stream).map_err(LinkError::Io)?;
    let (uid, pid) = (credentials.uid(), credentials.pid().unsigned_abs());
    // Whoever has our user may be a workload that outlived its supervisor.
    if uid == geteuid().as_raw() {
        return Err(ConnectError::OurOwn { path: path.to_owned(), uid });
    }
    // Whoever listened is who serves: `network` itself binds its socket. One that is gone is heard of by the connection.
    let network = (pid != 0).then(|| Held::peer(stream.as_fd(), pid).ok()).flatten();
    let mut gate = Gate::over(stream);
    gate.send(hello).await?;
    match gate.receive().await? {
        Instruction::State(state) if state.version == VERSION => Ok(Connected { gate, state: *state, network }),
        Instruction::State(state) => Err(ConnectError::Refused(format!(
            "it speaks version {} of the control channel, and this one {VERSION}",
            state.version
        ))),
        Instruction::Refused { reason } => Err(ConnectError::Refused(reason)),
        Instruction::Go | Instruction::End | Instruction::Noted => {
            Err(LinkError::Malformed("its first message is no state".to_owned()).into())
        }
    }
}
