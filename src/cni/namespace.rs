//! The container's network namespace: entered for good, by a process that does nothing else afterwards.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::libc::O_NONBLOCK;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::statfs::{FsType, fstatfs};

use super::error::{CniError, FENCE, INVALID_ENVIRONMENT, IO_FAILURE, UNKNOWN_CONTAINER};
use crate::contract::{Ids, PROXY_ID};
use crate::fence::exempt::Exempt;
use crate::fence::pod;

/// `NSFS_MAGIC`: what is no namespace is not taken for one, whatever has been put at its path.
const NSFS: FsType = FsType(0x6e73_6673);

/// Moves this thread into the network namespace at `path`.
///
/// # Errors
/// There is none, or it is the node's own: a ruleset there would cut off the node.
pub fn enter(path: &Path) -> Result<(), CniError> {
    let failed = |code, details: String| {
        CniError::new(code, "network namespace", format!("CNI_NETNS={}: {details}", path.display()))
    };
    let opened = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path);
    let namespace = opened.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(UNKNOWN_CONTAINER, error.to_string()),
        _ => failed(IO_FAILURE, error.to_string()),
    })?;
    let kind = fstatfs(&namespace).map_err(|errno| failed(IO_FAILURE, format!("fstatfs: {errno}")))?;
    if kind.filesystem_type() != NSFS {
        return Err(failed(INVALID_ENVIRONMENT, "it is no namespace".to_owned()));
    }
    let identity = |path: &Path| path.metadata().map(|status| (status.dev(), status.ino()));
    let given = namespace.metadata().map_err(|error| failed(IO_FAILURE, error.to_string()))?;
    // A runtime calls its plugins in the node's namespace. Where it does not, process 1's is the node's; who may not look at
    // that one is not the node's root.
    let own = identity(Path::new("/proc/self/ns/net"))
        .map_err(|error| failed(IO_FAILURE, format!("/proc/self/ns/net: {error}")))?;
    let first = identity(Path::new("/proc/1/ns/net")).ok();
    if [Some(own), first].contains(&Some((given.dev(), given.ino()))) {
        return Err(failed(
            INVALID_ENVIRONMENT,
            "it is the node's own, and a pod's fence there would cut the node off".to_owned(),
        ));
    }
    setns(&namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| {
        failed(IO_FAILURE, format!("setns: {errno}; expected a network namespace, and to be root on the node"))
    })
}

/// Puts a fence up in a namespace that is made for it and gone afterwards: what this kernel cannot do for a sandbox is known
/// before there is one.
///
/// # Errors
/// The fence does not stand, with what helps.
pub fn rehearse() -> Result<(), CniError> {
    // Anybody's ids will do.
    let proxy = Exempt::of_proxy(Ids { uid: PROXY_ID, gid: PROXY_ID })
        .map_err(|error| CniError::new(FENCE, "no fence", error))?;
    // A thread of its own, whose namespace ends with it.
    let raised = std::thread::scope(|scope| {
        let rehearsal = scope.spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).map_err(|errno| {
                CniError::new(
                    IO_FAILURE,
                    "network namespace",
                    format!(
                        "unshare: {errno}; the container needs SYS_ADMIN and NET_ADMIN, as a privileged one has them"
                    ),
                )
            })?;
            pod::raise(proxy).map_err(|error| CniError::new(FENCE, "no fence", error))
        });
        rehearsal.join()
    });
    match raised {
        Ok(raised) => raised.map(drop),
        Err(_) => Err(CniError::new(IO_FAILURE, "network namespace", "the thread that was to make one has ended")),
    }
}
