//! The workload's namespaces in the combined topology (design §7): a network of nothing but loopback, mounts without
//! the machine's control sockets, processes of its own.
//!
//! [`separate`] runs in the single-threaded `launch` process, which gives up its own namespaces for new ones and opens
//! there what the supervisor needs; [`Separated::isolate`] takes from its sight what the policy does not grant. They are
//! two because the first takes longer and needs no policy. The supervisor never enters: it works through the descriptors
//! of [`Handover`].

mod fresh;
mod keep;
mod loopback;
pub mod mounts;
mod object;
mod obstacle;
pub mod outside;
pub mod probe;
mod provided;
mod user;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use bytes::Bytes;
use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};

pub use obstacle::Obstacle;

use crate::fence::{self, bypass, combined};
use crate::sys::netlink::{Protocol, Socket};

/// Which namespaces to make besides those that every sandbox has, and what the new network is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespaces {
    /// Create a user namespace first, in which the caller's own ids are the only ones: how an ordinary user gets the
    /// rest.
    pub user: bool,
    /// Create a PID namespace for the next child.
    pub pid: bool,
    /// Port of the proxy's listeners on 127.0.0.1 and ::1.
    pub proxy_port: u16,
}

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// Where the workload is to be.
    pub namespaces: Namespaces,
    /// Give the workload a `/tmp` of its own, and a `/var/tmp` where the policy grants it. To be set where the workload
    /// has the id of whoever started it, as through a user namespace: every socket of that user's there could be
    /// connected to. With an id of its own, file permissions tell them apart, and `/tmp` may be shared.
    pub private_tmp: bool,
    /// Paths to cover with something empty, besides what is always covered: what [`outside::named_places`] finds, and
    /// the operator's own.
    pub hide: Vec<PathBuf>,
    /// Files to show the workload in a place that is covered.
    pub provided: Option<Provided>,
    /// What the policy grants, all of it: of the directories in `/`, but for `/dev` and `/proc`, nothing else stays in
    /// sight. A path that is always covered stays so, also where it is named here; those below it show.
    pub keep: Vec<PathBuf>,
}

/// Files that are in the workload's view alone. They lie in memory, on a file system that is read-only for everybody,
/// so that neither the workload, even with the supervisor's own user id, nor another sandbox can change them, and go
/// with the view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provided {
    /// Where: below a directory of `/` that is there and that the policy does not grant whole, such as `/run`.
    pub directory: PathBuf,
    /// Which.
    pub files: Vec<ProvidedFile>,
}

/// One of [`Provided`], readable by all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProvidedFile {
    /// Its name in the directory.
    pub name: String,
    /// What is in it. Orders carry it beside them.
    #[serde(skip)]
    pub content: Bytes,
    /// Files in whose place it stands as well, each where it is there and not hidden.
    pub in_place_of: Vec<PathBuf>,
}

/// Descriptors that were opened inside and work from outside.
#[derive(Debug)]
pub struct Handover {
    /// Listening TCP sockets: 127.0.0.1, and ::1 where the namespace has IPv6.
    pub listeners: Vec<OwnedFd>,
    /// A netlink socket for socket diagnosis.
    pub diagnosis: OwnedFd,
    /// A netlink socket bound to the NFLOG group; `None` where the kernel has no NFLOG, with the reason in `notes`.
    pub packets: Option<OwnedFd>,
    /// What could not be had and does not weaken the boundary, as sentences for an event.
    pub notes: Vec<String>,
}

/// Why the workload cannot be isolated. Nothing may run in what was made so far.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A namespace cannot be created.
    #[error("cannot create {what}: {obstacle}")]
    Namespace {
        /// Which.
        what: &'static str,
        /// Why, and what helps.
        obstacle: Obstacle,
    },
    /// The caller's ids cannot be mapped into the new user namespace.
    #[error("cannot write {path} in the new user namespace: {obstacle}")]
    Ids {
        /// `/proc/self/setgroups`, `uid_map` or `gid_map`.
        path: &'static str,
        /// Why, and what helps.
        obstacle: Obstacle,
    },
    /// Loopback does not work.
    #[error(
        "cannot {step} in the new network namespace: {source}; it takes a kernel with rtnetlink and CAP_NET_ADMIN there"
    )]
    Loopback {
        /// What was tried.
        step: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The ruleset is not in force.
    #[error(transparent)]
    Fence(#[from] fence::Error),
    /// The proxy cannot be reached from inside.
    #[error("cannot listen on {address} in the new network namespace: {source}")]
    Listener {
        /// Where.
        address: SocketAddr,
        /// What the kernel answered.
        source: io::Error,
    },
    /// Nobody could tell whose connection it is.
    #[error("cannot open a NETLINK_SOCK_DIAG socket: {0}; attribution needs CONFIG_INET_DIAG, CONFIG_INET_TCP_DIAG")]
    Diagnosis(#[source] io::Error),
    /// What has to be hidden cannot be listed.
    #[error(
        "cannot read {path}, which says what has to be hidden from the workload: {source}; / must be readable, /proc mounted"
    )]
    Listing {
        /// The file or directory.
        path: &'static str,
        /// What reading it answered.
        source: io::Error,
    },
    /// More has to be hidden than any sane machine holds.
    #[error("more than {limit} {what} would have to be hidden from the workload; remove stale ones")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// Something that must not be seen cannot be covered.
    #[error(
        "cannot hide {path} from the workload: {call}: {source}; it must be hidden, or not be there",
        path = path.display()
    )]
    Hide {
        /// What.
        path: PathBuf,
        /// The call that failed.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// Covering it would leave nothing.
    #[error("cannot hide {path}: it is or leads to the root directory", path = .0.display())]
    HideRoot(PathBuf),
    /// A caller that asked for one thing and then for another.
    #[error("the namespaces that were made are not those that the orders ask for; this is a defect of the supervisor")]
    OtherNamespaces,
    /// There is no place for the empty file system from which covers are made.
    #[error("cannot mount the tmpfs that hides things: none of {0} is a directory without something to hide in it")]
    NoStage(String),
    /// A private `/proc` cannot be had; the caller may do without a PID namespace.
    #[error(
        "the kernel refuses a private /proc: {0}; parts of the present one are masked or read-only, as container \
         runtimes do, and a user namespace cannot uncover them (procMount: Unmasked, or --security-opt \
         systempaths=unconfined)"
    )]
    ProcMasked(#[source] io::Error),
    /// A private `/proc` cannot be mounted for another reason.
    #[error("cannot mount a private /proc: {call}: {source}")]
    Proc {
        /// The call that failed.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
}

/// What [`separate`] made: the caller has namespaces of its own, and still sees all of the machine's files.
#[derive(Debug)]
pub struct Separated {
    namespaces: Namespaces,
    /// Where programs of the machine serve.
    sockets: BTreeSet<PathBuf>,
    handover: Handover,
}

/// Gives up the caller's namespaces for new ones, and opens in them what the supervisor needs.
///
/// In the new network namespace: loopback alone, default routes through it, the fence in force and read back, ping
/// sockets left closed (`net.ipv4.ping_group_range` of a new namespace is empty), listeners, and the two netlink
/// sockets. In the new mount namespace nothing propagates in or out. A new IPC namespace takes the machine's shared memory
/// and queues out of reach.
///
/// The caller must have one thread (unshare(2) demands it for a user namespace), and /proc mounted. Its working
/// directory still refers to the old view: it must be entered again by path. Descriptors that it holds are untouched.
///
/// # Errors
/// Any: the namespaces are then half made, and the caller must end.
pub fn separate(namespaces: Namespaces) -> Result<Separated, Error> {
    // The list is of this network namespace, so it is read before that is left.
    let sockets = outside::bound_sockets()?;
    if namespaces.user {
        user::enter()?;
    }
    let mut flags = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC;
    if namespaces.pid {
        flags |= CloneFlags::CLONE_NEWPID;
    }
    unshare(flags).map_err(|errno| Error::Namespace {
        what: "network, mount and IPC namespaces",
        obstacle: obstacle::of_namespace(errno, namespaces.user),
    })?;
    mounts::make_private()?;
    let handover = furnish(namespaces.proxy_port)?;
    Ok(Separated { namespaces, sockets, handover })
}

impl Separated {
    /// Leaves nothing in sight but what is kept, without the sockets that were bound in it (see [`mounts`]). It is the
    /// second half of [`separate`], under the same conditions.
    ///
    /// # Errors
    /// Any: the view is then half covered, and the caller must end.
    pub fn isolate(self, isolation: &Isolation) -> Result<Handover, Error> {
        if self.namespaces != isolation.namespaces {
            return Err(Error::OtherNamespaces);
        }
        let mut handover = self.handover;
        handover.notes.extend(mounts::hide(isolation, &self.sockets)?);
        Ok(handover)
    }
}

/// Makes a new network namespace, which the caller is in, what [`separate`] says.
fn furnish(proxy_port: u16) -> Result<Handover, Error> {
    let mut notes = Vec::new();
    loopback::bring_up()?;
    let ipv6 = match loopback::route_ipv6() {
        Ok(()) => true,
        Err(source) => {
            notes.push(format!("the sandbox has no IPv6 ({source}); IPv4 alone is served"));
            false
        }
    };
    let packets = match bypass::subscribe() {
        Ok(packets) => Some(packets),
        Err(source) => {
            notes.push(format!(
                "attempts to go around the proxy are refused but not reported: NFLOG cannot be had ({source}; \
                 CONFIG_NETFILTER_NETLINK_LOG)"
            ));
            None
        }
    };
    let packets = fence_with(packets, &mut notes, combined::raise)?;
    let listeners = loopback::listen(proxy_port, ipv6)?;
    let diagnosis = Socket::open(Protocol::SocketDiagnosis).map_err(Error::Diagnosis)?;
    Ok(Handover { listeners, diagnosis: diagnosis.into(), packets, notes })
}

/// Raises the fence; without its reports where the kernel lacks an expression that only they need.
fn fence_with<F>(
    packets: Option<OwnedFd>,
    notes: &mut Vec<String>,
    raise: impl Fn(bool) -> Result<F, fence::Error>,
) -> Result<Option<OwnedFd>, Error> {
    match raise(packets.is_some()) {
        // nf_tables answers ENOENT for an expression that it does not know.
        Err(fence::Error::Refused { source, .. })
            if packets.is_some() && source.raw_os_error() == Some(Errno::ENOENT as i32) =>
        {
            raise(false)?;
            notes.push(format!(
                "attempts to go around the proxy are refused but not reported: the kernel lacks log or limit \
                 expressions ({source}; CONFIG_NFT_LOG, CONFIG_NFT_LIMIT)"
            ));
            Ok(None)
        }
        outcome => {
            outcome?;
            Ok(packets)
        }
    }
}

fn failed(path: impl Into<PathBuf>, call: &'static str) -> impl FnOnce(Errno) -> Error {
    let path = path.into();
    move |errno| Error::Hide { path, call, source: errno.into() }
}

#[cfg(test)]
mod tests;
