//! Proves from the inside, and without any privilege, that a pod's fence holds: whatever the kernel would route out of
//! the pod is tried, and has to come back in the way that the fence refuses.
//!
//! What counts is the combination. `EPERM` for UDP is what a dropped or rejected packet of one's own comes to, and
//! nothing that routes or remote hosts do; `ECONNREFUSED` for TCP also comes from far away, but then UDP was sent. One
//! address alone can be somebody else's filter, so several unrelated ones are tried, on ports that such filters
//! commonly leave open.

mod attempt;
pub mod policy;
mod ways;

use std::fmt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use self::ways::Ways;
use super::raise::kernel_speaks_ipv6;

pub use self::attempt::Target;
pub use self::ways::IpVersion;

/// Time between two attempts, doubled each time: a pod's addresses and routes may still be on their way (IPv6
/// addresses are unusable for a second while they are checked for duplicates).
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Where there is a default route, this many addresses outside must be refused.
const OUTSIDE: usize = 2;

/// What was proven: in words, for each IP version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof(Vec<(IpVersion, usize)>);

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (version, tried)) in self.0.iter().enumerate() {
            let comma = if index > 0 { ", " } else { "" };
            match tried {
                0 => write!(f, "{comma}{version}: no way out")?,
                tried => write!(f, "{comma}{version}: {tried} ways out, all refused")?,
            }
        }
        Ok(())
    }
}

/// Why there is no proof.
#[derive(Debug, thiserror::Error)]
pub enum Doubt {
    /// The kernel does not tell its routes or interfaces.
    #[error("cannot read this pod's {what}: {source}")]
    Unreadable {
        /// What was asked for.
        what: &'static str,
        /// What the kernel answered.
        source: std::io::Error,
    },
    /// An attempt did not end as the fence ends it.
    #[error("{protocol} to {target} {outcome}, expected {expected}")]
    NotRefused {
        /// `UDP`, `TCP` or `ICMP`.
        protocol: &'static str,
        /// Whereto.
        target: Target,
        /// What it came to.
        outcome: String,
        /// The error that the fence gives.
        expected: &'static str,
    },
    /// There is a default route, and still too few of the addresses that lie outside are routed there.
    #[error(
        "{version} has a default route, but only {routed} of the addresses to try lie behind it, expected {OUTSIDE}: \
         other routes lead them elsewhere"
    )]
    Elsewhere {
        /// Which IP.
        version: IpVersion,
        /// How many are routed out.
        routed: usize,
    },
}

/// Tries until everything is refused, for at most `limit`.
///
/// # Errors
/// The last attempt's [`Doubt`].
pub fn within(limit: Duration) -> Result<Proof, Doubt> {
    let deadline = Instant::now() + limit;
    let mut pause = FIRST_PAUSE;
    loop {
        let doubt = match once() {
            Ok(proof) => return Ok(proof),
            Err(doubt) => doubt,
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(doubt);
        }
        sleep(pause.min(left));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Tries everything once, and stops at the first that is not refused.
///
/// # Errors
/// [`Doubt`].
fn once() -> Result<Proof, Doubt> {
    let mut versions = vec![IpVersion::V4];
    if kernel_speaks_ipv6() {
        versions.push(IpVersion::V6);
    }
    let proven = versions.into_iter().map(|version| prove(version).map(|tried| (version, tried)));
    proven.collect::<Result<_, _>>().map(Proof)
}

/// Proves one IP version and returns how many ways out were tried.
fn prove(version: IpVersion) -> Result<usize, Doubt> {
    let ways = Ways::read(version)?;
    if ways.default && ways.outside.len() < OUTSIDE {
        return Err(Doubt::Elsewhere { version, routed: ways.outside.len() });
    }
    for target in &ways.on_link {
        attempt::datagrams(target)?;
        if !target.is_link_local() {
            attempt::connections(target)?;
        }
    }
    for target in ways.outside.iter().chain(&ways.inwards) {
        attempt::datagrams(target)?;
        attempt::connections(target)?;
    }
    for target in &ways.unrouted {
        attempt::unrouted(target)?;
    }
    Ok(ways.on_link.len() + ways.outside.len() + ways.inwards.len() + ways.unrouted.len())
}
