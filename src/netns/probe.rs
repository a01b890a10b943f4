//! What of the combined topology can be had here, as this user: each thing is tried in a child process, which is the
//! only honest answer, since any of a dozen settings, modules and filters can be in the way.

use nix::sched::{CloneFlags, unshare};

use super::obstacle::{self, Obstacle};
use super::{Error, mounts, user};
use crate::fence::{bypass, combined};
use crate::sys::child;
use crate::sys::netlink::{Protocol, Socket};

/// Whether something can be had, and if not, why.
pub type Outcome = Result<(), Obstacle>;

/// What was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A user namespace, with the caller's ids mapped.
    pub user_namespace: Outcome,
    /// A network namespace.
    pub network_namespace: Outcome,
    /// A mount namespace in which something can be covered.
    pub mount_namespace: Outcome,
    /// A PID namespace and a private `/proc` in it.
    pub pid_namespace: Outcome,
    /// The fence, raised and read back.
    pub fence: Outcome,
    /// Reports of bypass attempts (NFLOG).
    pub reports: Outcome,
    /// Socket diagnosis, which attribution lives on.
    pub socket_diagnosis: Outcome,
}

/// Tries everything, `through_user_namespace` or with the caller's own privileges.
///
/// Forks, so the caller should have no other thread yet (see [`child::run`]).
#[must_use]
pub fn probe(through_user_namespace: bool) -> Capabilities {
    let enter = move |namespaces: CloneFlags| -> Outcome {
        if through_user_namespace {
            user::enter().map_err(obstacle_of)?;
        }
        unshare(namespaces).map_err(|errno| obstacle::of_namespace(errno, through_user_namespace))
    };
    let network = move || enter(CloneFlags::CLONE_NEWNET);
    Capabilities {
        user_namespace: attempt(|| user::enter().map_err(obstacle_of)),
        network_namespace: attempt(network),
        mount_namespace: attempt(move || {
            enter(CloneFlags::CLONE_NEWNS)?;
            mounts::try_cover().map_err(obstacle_of)
        }),
        pid_namespace: attempt(move || {
            enter(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID)?;
            mounts::make_private().map_err(obstacle_of)?;
            // The caller of unshare stays outside; its first child is the new namespace's first process.
            attempt(|| mounts::private_proc().map(drop).map_err(obstacle_of))
        }),
        fence: attempt(move || {
            network()?;
            combined::raise(false).map(drop).map_err(|error| obstacle_of(error.into()))
        }),
        reports: attempt(move || {
            network()?;
            bypass::subscribe().map(drop).map_err(|error| {
                Obstacle::new(
                    format!("the kernel has no NFLOG: {error}"),
                    "load nfnetlink_log (CONFIG_NETFILTER_NETLINK_LOG); without it attempts to go around the proxy are \
                     refused but not reported",
                )
            })
        }),
        socket_diagnosis: attempt(|| Socket::open(Protocol::SocketDiagnosis).map(drop).map_err(|error| obstacle_of(Error::Diagnosis(error)))),
    }
}

fn obstacle_of(error: Error) -> Obstacle {
    match error {
        Error::Namespace { obstacle, .. } | Error::Ids { obstacle, .. } => obstacle,
        Error::ProcMasked(_) => Obstacle::new(
            error.to_string(),
            "without it the workload shares this PID namespace, where processes of the same user are in its sight",
        ),
        Error::Fence(_) => Obstacle::new(error.to_string(), "use the proxy-pod topology, which needs no ruleset"),
        error => Obstacle::new(error.to_string(), "see the cause"),
    }
}

/// Between cause and remedy in a child's answer; neither holds one.
const SEPARATOR: u8 = 0;

/// Tries `act` in a child of its own.
fn attempt(act: impl FnOnce() -> Outcome) -> Outcome {
    let answer = child::run(|| match act() {
        Ok(()) => Vec::new(),
        Err(Obstacle { cause, remedy }) => [cause.as_bytes(), &[SEPARATOR], remedy.as_bytes()].concat(),
    });
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match answer {
        Ok(answer) if answer.is_empty() => Ok(()),
        Ok(answer) => {
            let mut parts = answer.splitn(2, |byte| *byte == SEPARATOR);
            Err(Obstacle::new(text(parts.next().unwrap_or_default()), text(parts.next().unwrap_or_default())))
        }
        Err(error) => Err(Obstacle::new(
            format!("the child process that tried it failed: {error}"),
            "a seccomp filter that kills is the likeliest reason: use a profile that allows unshare and mount",
        )),
    }
}
