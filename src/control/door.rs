//! `network`'s side: the socket on which the workload's supervisor is awaited.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::time::timeout;

use super::peer::{Expected, Stranger};
use super::{Instruction, Link, LinkError, Report, VERSION};
use crate::workload::trust::Gathered;

/// Who may connect at all: the owner, and the group of the shared directory, which is the sandbox's.
const MODE: u32 = 0o660;

/// How long a peer that was let in may take to say hello. It has nothing to do before.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// After a failure to accept, such as for want of descriptors, the next try waits.
const RETRY: Duration = Duration::from_millis(100);

/// Why there is no socket to wait at.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Something else is there.
    #[error("{}: there is something that is no socket; name another path, or remove it", .0.display())]
    Occupied(PathBuf),
    /// A call failed.
    #[error("{}: {call}: {source}; `network-init` makes the directory and gives it to this user", path.display())]
    Call {
        /// The socket's path.
        path: PathBuf,
        /// The call.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
}

/// A peer that came to the door and did not get in.
#[derive(Debug, thiserror::Error)]
pub enum Unwelcome {
    /// It is not whom we wait for.
    #[error(transparent)]
    Stranger(#[from] Stranger),
    /// It is, and says nothing that can be understood.
    #[error("the workload's supervisor: {0}")]
    Link(#[from] LinkError),
    /// It is, and says nothing.
    #[error("the workload's supervisor connected and said nothing within {} s", HELLO_TIME.as_secs())]
    Silent,
    /// It speaks another version.
    #[error(
        "the workload's supervisor speaks version {0} of the control channel and this one {VERSION}; give both containers \
         the same version of the supervisor"
    )]
    Version(u32),
}

/// The socket, until the supervisor has come in.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    listener: UnixListener,
    expected: Expected,
}

/// The connection as `network` has it.
pub type Agent = Link<Report, Instruction>;

impl Door {
    /// Listens at `path`, in the place of a socket that a predecessor left behind.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn open(path: &Path, expected: Expected) -> Result<Self, DoorError> {
        let failed = |call| move |source| DoorError::Call { path: path.to_owned(), call, source };
        match fs::symlink_metadata(path) {
            Ok(status) if status.file_type().is_socket() => fs::remove_file(path).map_err(failed("unlink"))?,
            Ok(_) => return Err(DoorError::Occupied(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed("lstat")(error)),
        }
        let listener = UnixListener::bind(path).map_err(failed("bind"))?;
        fs::set_permissions(path, fs::Permissions::from_mode(MODE)).map_err(failed("chmod"))?;
        Ok(Self { path: path.to_owned(), listener, expected })
    }

    /// Waits for the supervisor, and closes the door behind it. Everybody else is told to `unwelcome` and sent away.
    pub async fn admit(self, mut unwelcome: impl FnMut(Unwelcome)) -> (Agent, Gathered) {
        loop {
            let stream = match self.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    unwelcome(LinkError::Io(error).into());
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            if let Err(stranger) = self.expected.check(&stream) {
                unwelcome(stranger.into());
                continue;
            }
            let mut link = Agent::over(stream);
            match timeout(HELLO_TIME, link.receive()).await {
                Ok(Ok(Report::Hello { version: VERSION, trusted })) => return (link, trusted),
                Ok(Ok(Report::Hello { version, .. })) => {
                    let other = Unwelcome::Version(version);
                    // It is told if it listens; if not, it sees the end.
                    let _ = timeout(HELLO_TIME, link.send(&Instruction::Refused { reason: other.to_string() })).await;
                    unwelcome(other);
                }
                Ok(Ok(_)) => unwelcome(LinkError::Malformed("it does not begin with a hello".to_owned()).into()),
                Ok(Err(error)) => unwelcome(error.into()),
                Err(_) => unwelcome(Unwelcome::Silent),
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Whoever comes later finds that nobody waits. A path that is gone already is as good.
        let _ = fs::remove_file(&self.path);
    }
}
