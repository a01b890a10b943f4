//! Proves that the cluster's network keeps this pod from where its NetworkPolicy does not let it, before anything of the
//! image's runs. NetworkPolicies are enforced by a plugin that may not know them, and some moments after the pod has its
//! network: whoever relies on one has to see it hold.
//!
//! Two sides make a proof. *Canaries* serve, and the policy does not list them: they must not be reached. *Controls* serve
//! and are listed: they must be, since where nothing can be reached nothing is proven about a policy. A canary counts as cut
//! off when it stays silent, as for policies that drop, or when somebody else than it answers that it is prohibited, as for
//! those that reject. A reset counts as having been reached: no listener is what most resets mean.

use std::fmt;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, SockaddrStorage, connect, getsockopt, recvmsg,
    setsockopt, socket, sockopt,
};

use super::{FIRST_PAUSE, LONGEST_PAUSE};
use crate::policy::host::Host;

/// How long a canary may stay silent: three requests to connect have gone out by then, at 0, 1 and 3 s (tcp(7)), and a
/// network that lets them pass loses all three seldom.
const SILENCE: Duration = Duration::from_millis(3500);

/// How long a control may take.
const CONTROL_PATIENCE: Duration = Duration::from_secs(5);

/// Addresses of one name that are tried.
const ADDRESSES: usize = 8;

/// "Destination unreachable" of ICMP (RFC 792) and ICMPv6 (RFC 4443 §3.1), and the codes by which filters refuse: port
/// unreachable, network, host and communication prohibited; prohibited, port unreachable, policy failed, reject route.
const UNREACHABLE: u8 = 3;
const PROHIBITED: [u8; 4] = [3, 9, 10, 13];
/// See above.
const UNREACHABLE_V6: u8 = 1;
const PROHIBITED_V6: [u8; 4] = [1, 4, 5, 6];

/// Somewhere to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name or address.
    pub host: Host,
    /// Port.
    pub port: u16,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::Address(address) => write!(f, "{}", SocketAddr::new(*address, self.port)),
        }
    }
}

/// What to prove, and how names become addresses.
pub struct Plan<'a> {
    /// What must not be reached.
    pub canaries: &'a [Place],
    /// What must be.
    pub controls: &'a [Place],
    /// Looks a name up; the error is for people.
    pub resolve: &'a dyn Fn(&str) -> Result<Vec<IpAddr>, String>,
}

/// What was proven.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyProof {
    cut_off: Vec<String>,
    reached: Vec<String>,
}

impl fmt::Display for PolicyProof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cut off, while {} can be reached", self.cut_off.join(", "), self.reached.join(", "))
    }
}

/// Why there is no proof.
#[derive(Debug, thiserror::Error)]
pub enum PolicyDoubt {
    /// Nothing to try.
    #[error(
        "there is nothing that the policy must cut off: KUBERNETES_SERVICE_HOST is not set or is allowed; name something \
         that serves and is not listed by --canary HOST:PORT"
    )]
    NoCanary,
    /// Nothing to compare with.
    #[error(
        "where nothing can be reached nothing is proven: name what the policy allows, such as the proxy, by --control \
         HOST:PORT"
    )]
    NoControl,
    /// A name leads nowhere.
    #[error("{place}: {why}")]
    Unresolved {
        /// Which.
        place: Place,
        /// What the name servers said.
        why: String,
    },
    /// What is allowed cannot be reached.
    #[error("{place}, which the policy allows, {outcome}: as long as it cannot be reached nothing is proven")]
    Unreachable {
        /// Which.
        place: Place,
        /// What it came to.
        outcome: Outcome,
    },
    /// What is not allowed can be.
    #[error("{place} at {address} {outcome}: no NetworkPolicy keeps this pod from it; {}", .outcome.remedy())]
    NotCutOff {
        /// Which.
        place: Place,
        /// Its address.
        address: SocketAddr,
        /// What it came to.
        outcome: Outcome,
    },
}

/// What became of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was accepted.
    Accepted,
    /// It was reset, by whoever is there.
    Reset,
    /// Somebody on the way prohibits it.
    Prohibited(IpAddr),
    /// Nobody said anything.
    Silent,
    /// It did not get as far.
    Failed(Errno),
}

impl Outcome {
    fn is_cut_off(&self) -> bool {
        matches!(self, Self::Prohibited(_) | Self::Silent)
    }

    /// Whether the pod's own network leads nowhere near: no route, no such family, no address of its own in it.
    fn has_no_way(&self) -> bool {
        matches!(self, Self::Failed(Errno::ENETUNREACH | Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Accepted => "does the cluster's network plugin enforce NetworkPolicies, and is this pod's there?",
            Self::Reset => "or name a --canary that serves: one that nobody listens at proves nothing",
            Self::Prohibited(_) | Self::Silent | Self::Failed(_) => {
                "the pod's own network has no way there, whatever the policy: name another --canary"
            }
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted => f.write_str("accepted a connection"),
            Self::Reset => f.write_str("answered by a reset"),
            Self::Prohibited(by) => write!(f, "is prohibited by {by}"),
            Self::Silent => f.write_str("stays silent"),
            Self::Failed(errno) => write!(f, "cannot be tried ({errno})"),
        }
    }
}

/// Tries until the policy is seen to hold, for at most `limit`.
///
/// # Errors
/// The last attempt's [`PolicyDoubt`].
pub fn within(limit: Duration, plan: &Plan<'_>) -> Result<PolicyProof, PolicyDoubt> {
    if plan.canaries.is_empty() {
        return Err(PolicyDoubt::NoCanary);
    }
    if plan.controls.is_empty() {
        return Err(PolicyDoubt::NoControl);
    }
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        let doubt = match once(plan) {
            Ok(proof) => return Ok(proof),
            Err(doubt) => doubt,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(doubt);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn once(plan: &Plan<'_>) -> Result<PolicyProof, PolicyDoubt> {
    let mut reached = Vec::new();
    for place in plan.controls {
        reached.push(control(plan, place)?);
    }
    let mut waiting = Vec::new();
    for place in plan.canaries {
        let attempts = addresses(plan, place)?.into_iter().map(|address| (address, Attempt::begin(address)));
        waiting.push((place, attempts.collect::<Vec<_>>()));
    }
    let deadline = Instant::now() + SILENCE;
    let mut cut_off = Vec::new();
    for (place, attempts) in waiting {
        let outcomes: Vec<_> =
            attempts.into_iter().map(|(address, attempt)| (address, attempt.until(deadline))).collect();
        // A name's addresses of a family that the pod has no way out by say nothing either way; one of them has to.
        let proves = outcomes.iter().any(|(_, outcome)| outcome.is_cut_off());
        for (address, outcome) in outcomes {
            if !(outcome.is_cut_off() || proves && outcome.has_no_way()) {
                return Err(PolicyDoubt::NotCutOff { place: place.clone(), address, outcome });
            }
            cut_off.push(format!("{place} ({address} {outcome})"));
        }
    }
    // The network may have gone away meanwhile, and with it the canaries.
    for place in plan.controls {
        control(plan, place)?;
    }
    Ok(PolicyProof { cut_off, reached })
}

fn addresses(plan: &Plan<'_>, place: &Place) -> Result<Vec<SocketAddr>, PolicyDoubt> {
    let addresses = match &place.host {
        Host::Address(address) => vec![*address],
        Host::Name(name) => {
            (plan.resolve)(name).map_err(|why| PolicyDoubt::Unresolved { place: place.clone(), why })?
        }
    };
    Ok(addresses.into_iter().take(ADDRESSES).map(|address| SocketAddr::new(address, place.port)).collect())
}

/// Reaches one address of `place`, and says which.
fn control(plan: &Plan<'_>, place: &Place) -> Result<String, PolicyDoubt> {
    let mut outcome = Outcome::Silent;
    for address in addresses(plan, place)? {
        outcome = Attempt::begin(address).until(Instant::now() + CONTROL_PATIENCE);
        if outcome == Outcome::Accepted {
            return Ok(format!("{place} ({address})"));
        }
    }
    Err(PolicyDoubt::Unreachable { place: place.clone(), outcome })
}

/// A connection on its way.
struct Attempt {
    target: SocketAddr,
    socket: Result<OwnedFd, Errno>,
}

impl Attempt {
    fn begin(target: SocketAddr) -> Self {
        let begun = || {
            let family = if target.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(family, SockType::Stream, flags, None)?;
            // Keeps for us who answered, not only what (ip(7), IP_RECVERR).
            match target {
                SocketAddr::V4(_) => setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?,
                SocketAddr::V6(_) => setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?,
            }
            match connect(socket.as_raw_fd(), &SockaddrStorage::from(target)) {
                // What has failed already says so when it is asked.
                Ok(()) | Err(Errno::EINPROGRESS | Errno::ECONNREFUSED) => Ok(socket),
                Err(error) => Err(error),
            }
        };
        Self { target, socket: begun() }
    }

    fn until(self, deadline: Instant) -> Outcome {
        let socket = match self.socket {
            Ok(socket) => socket,
            Err(errno) => return Outcome::Failed(errno),
        };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            let mut waiting = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
            match poll(&mut waiting, timeout) {
                Ok(0) if left.is_zero() => return Outcome::Silent,
                Ok(0) | Err(Errno::EINTR) => {}
                Err(errno) => return Outcome::Failed(errno),
                Ok(_) => break,
            }
        }
        let told = who_answered(&socket);
        match (getsockopt(&socket, sockopt::SocketError), told) {
            (Ok(0), None) => Outcome::Accepted,
            // A firewall of its own is a way of having been reached.
            (_, Some(Told { by, prohibited: true })) if by != self.target.ip() => Outcome::Prohibited(by),
            (_, Some(_)) | (Ok(libc::ECONNREFUSED | libc::ECONNRESET), None) => Outcome::Reset,
            (Ok(libc::ETIMEDOUT), None) => Outcome::Silent,
            (Ok(code), None) => Outcome::Failed(Errno::from_raw(code)),
            (Err(errno), None) => Outcome::Failed(errno),
        }
    }
}

/// An answer that is no connection's own.
struct Told {
    by: IpAddr,
    prohibited: bool,
}

/// The ICMP message that ended a connection, where one did.
fn who_answered(socket: &OwnedFd) -> Option<Told> {
    let mut payload = [0; 256];
    let mut parts = [IoSliceMut::new(&mut payload)];
    let mut control = nix::cmsg_space!(libc::sock_extended_err, libc::sockaddr_in6);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<SockaddrStorage>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags).ok()?;
    message.cmsgs().ok()?.find_map(|message| match message {
        ControlMessageOwned::Ipv4RecvErr(error, Some(from)) if error.ee_origin == libc::SO_EE_ORIGIN_ICMP => {
            Some(Told {
                by: std::net::Ipv4Addr::from(u32::from_be(from.sin_addr.s_addr)).into(),
                prohibited: error.ee_type == UNREACHABLE && PROHIBITED.contains(&error.ee_code),
            })
        }
        ControlMessageOwned::Ipv6RecvErr(error, Some(from)) if error.ee_origin == libc::SO_EE_ORIGIN_ICMP6 => {
            Some(Told {
                by: std::net::Ipv6Addr::from(from.sin6_addr.s6_addr).into(),
                prohibited: error.ee_type == UNREACHABLE_V6 && PROHIBITED_V6.contains(&error.ee_code),
            })
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn place(host: &str, port: u16) -> Place {
        Place { host: Host::parse(host).unwrap(), port }
    }

    fn proof(canaries: &[Place], controls: &[Place]) -> Result<PolicyProof, PolicyDoubt> {
        let resolve = |name: &str| Err(format!("{name} is not known"));
        within(Duration::ZERO, &Plan { canaries, controls, resolve: &resolve })
    }

    #[test]
    fn nothing_is_proven_by_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let served = place("127.0.0.1", listener.local_addr().unwrap().port());
        let nobody = place("127.0.0.1", 1);
        assert!(matches!(proof(&[], std::slice::from_ref(&served)), Err(PolicyDoubt::NoCanary)));
        assert!(matches!(proof(std::slice::from_ref(&served), &[]), Err(PolicyDoubt::NoControl)));
        let doubt = proof(std::slice::from_ref(&served), std::slice::from_ref(&served)).unwrap_err().to_string();
        assert!(doubt.contains("accepted a connection: no NetworkPolicy keeps this pod from it"), "{doubt}");
        let doubt = proof(std::slice::from_ref(&nobody), std::slice::from_ref(&served)).unwrap_err().to_string();
        assert!(doubt.contains("answered by a reset"), "{doubt}");
        let doubt = proof(std::slice::from_ref(&served), &[nobody]).unwrap_err().to_string();
        assert!(doubt.contains("as long as it cannot be reached nothing is proven"), "{doubt}");
        let doubt = proof(&[place("canary.example", 1)], &[served]).unwrap_err().to_string();
        assert_eq!(doubt, "canary.example:1: canary.example is not known");
    }
}
