//! `network`'s side: the socket on which the workload's supervisor is awaited.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{Instant, timeout};

use super::peer::{Expected, Stranger};
use super::{Instruction, Link, LinkError, Report, VERSION};
use crate::workload::trust::Gathered;

/// Who may connect at all: the owner, and the group of the shared directory, which is the sandbox's.
const MODE: u32 = 0o660;

/// The directory, where we make it: as `network-init` would.
const MADE_MODE: u32 = 0o2750;

/// What nobody but us may do in the directory: the group may not write, and others may do nothing.
const OTHERS: u32 = 0o027;

/// How long a peer that was let in may take to say hello. It has nothing to do before.
const HELLO_TIME: Duration = Duration::from_secs(5);

/// The same cause is told once in this time, with how often it came: whoever connects in a loop fills no log.
const TOLD_EVERY: Duration = Duration::from_secs(10);

/// How long a stranger's socket may take to take in the refusal. It is new, and has room for it.
const REFUSAL_TIME: Duration = Duration::from_millis(50);

/// After a failure to accept, such as for want of descriptors, the next try waits.
const RETRY: Duration = Duration::from_millis(100);

/// Why there is no socket to wait at.
#[derive(Debug, thiserror::Error)]
pub enum DoorError {
    /// Something else is there.
    #[error("{}: there is something that is no socket; name another path, or remove it", .0.display())]
    Occupied(PathBuf),
    /// The directory is not as `network-init` leaves it, so that others could put something in the socket's place, or
    /// not come to it.
    #[error(
        "{}: it belongs to {found_uid}:{found_gid} and has mode {mode:o}, expected {uid}:{gid} and 2750; did `network-init` run, \
         with these ids, and is its volume mounted here? Without network-init, name a directory in a volume of the \
         sandbox's group (fsGroup) that is not there yet", path.display()
    )]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        found_uid: u32,
        /// Its group.
        found_gid: u32,
        /// Its permissions.
        mode: u32,
        /// Ours.
        uid: u32,
        /// The sandbox's.
        gid: u32,
    },
    /// A call failed.
    #[error("{}: {call}: {source}; the volume that `network-init` prepared must be mounted here, and writable", path.display())]
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

/// The supervisor that has come in.
#[derive(Debug)]
pub struct Admitted {
    /// The connection to it.
    pub agent: Agent,
    /// Its pid in the shared process namespace.
    pub pid: u32,
    /// Whom its image trusts.
    pub trusted: Gathered,
}

impl Door {
    /// Listens at `path`, in the place of a socket that a predecessor left behind.
    ///
    /// # Errors
    /// [`DoorError`].
    pub fn open(path: &Path, expected: Expected) -> Result<Self, DoorError> {
        let failed = |call| move |source| DoorError::Call { path: path.to_owned(), call, source };
        let directory = path.parent().unwrap_or(Path::new("/"));
        make(directory, expected).map_err(failed("mkdir of its directory"))?;
        let status = fs::metadata(directory).map_err(failed("stat of its directory"))?;
        let (uid, mode) = (geteuid().as_raw(), status.mode() & 0o7777);
        if (status.uid(), status.gid()) != (uid, expected.gid) || mode & OTHERS != 0 {
            return Err(DoorError::Directory {
                path: directory.to_owned(),
                found_uid: status.uid(),
                found_gid: status.gid(),
                mode,
                uid,
                gid: expected.gid,
            });
        }
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

    /// Waits for the supervisor, and closes the door behind it. Everybody else is told why not, and sent away; `unwelcome`
    /// hears of each cause, and how often it has come since it was last told.
    pub async fn admit(self, mut unwelcome: impl FnMut(&Unwelcome, u64)) -> Admitted {
        let mut told: HashMap<&'static str, (Option<Instant>, u64)> = HashMap::new();
        loop {
            let other = match self.listener.accept().await {
                Ok((stream, _)) => match self.hear(stream).await {
                    Ok(admitted) => return admitted,
                    Err(other) => other,
                },
                Err(error) => {
                    tokio::time::sleep(RETRY).await;
                    LinkError::Io(error).into()
                }
            };
            let (last, untold) = told.entry(other.kind()).or_default();
            *untold += 1;
            if last.is_none_or(|last| last.elapsed() >= TOLD_EVERY) {
                unwelcome(&other, *untold);
                (*last, *untold) = (Some(Instant::now()), 0);
            }
        }
    }

    async fn hear(&self, stream: UnixStream) -> Result<Admitted, Unwelcome> {
        let known = self.expected.check(&stream);
        let mut agent = Agent::over(stream);
        let other = match known {
            Err(stranger) => Unwelcome::Stranger(stranger),
            Ok(pid) => match timeout(HELLO_TIME, agent.receive()).await {
                Ok(Ok(Report::Hello { version: VERSION, trusted })) => return Ok(Admitted { agent, pid, trusted }),
                Ok(Ok(Report::Hello { version, .. })) => Unwelcome::Version(version),
                Ok(Ok(_)) => LinkError::Malformed("it does not begin with a hello".to_owned()).into(),
                Ok(Err(error)) => error.into(),
                Err(_) => Unwelcome::Silent,
            },
        };
        // It is told if it listens; if not, it sees the end.
        let _ = timeout(REFUSAL_TIME, agent.send(&Instruction::Refused { reason: other.to_string() })).await;
        Err(other)
    }
}

/// Makes the directory where no `network-init` has: one of our own within a volume that everybody in the pod may write,
/// as the kubelet leaves it. The sandbox's group comes from the volume (`fsGroup`), whose setgid bit hands it on, or from
/// our being in that group; what did not come is found by the check that follows.
fn make(directory: &Path, expected: Expected) -> io::Result<()> {
    match fs::DirBuilder::new().mode(MADE_MODE & 0o777).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        made => made?,
    }
    if fs::metadata(directory)?.gid() != expected.gid {
        let _ = std::os::unix::fs::chown(directory, None, Some(expected.gid));
    }
    // The umask may have taken something, and chown(2) the setgid bit.
    fs::set_permissions(directory, fs::Permissions::from_mode(MADE_MODE))
}

impl Unwelcome {
    /// What it is, apart from who.
    fn kind(&self) -> &'static str {
        match self {
            Self::Stranger(Stranger::Unknown(_)) => "unknown",
            Self::Stranger(Stranger::Foreign { .. }) => "foreign",
            Self::Stranger(Stranger::Invisible) => "invisible",
            Self::Stranger(Stranger::Gone { .. }) => "gone",
            Self::Stranger(Stranger::Started { .. }) => "started",
            Self::Link(_) => "link",
            Self::Silent => "silent",
            Self::Version(_) => "version",
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // Whoever comes later finds that nobody waits. A path that is gone already is as good.
        let _ = fs::remove_file(&self.path);
    }
}
