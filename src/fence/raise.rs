//! Puts a ruleset in force: one transaction, then the read-back that makes it a fact.

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};

use super::encode::{Existing, Family, Ruleset};
use super::readback::{self, Difference};
use super::{Error, remedy};
use crate::sys::netlink::{Protocol, Socket};

/// Puts the ruleset in force in the caller's network namespace and reads it back.
///
/// A kernel without any IPv6 has no `inet` tables; there, and only there, the IPv4 ruleset is the whole of it.
///
/// # Errors
/// The fence does not stand.
pub(super) fn raise(ruleset: impl Fn(Family) -> Ruleset, existing: Existing) -> Result<Family, Error> {
    let stand = |family| {
        let ruleset = ruleset(family);
        match attempt(&ruleset, Existing::Refused) {
            // Only now: whoever throws a table away waits until nobody looks at it any more, some milliseconds
            // (`nft_rcv_nl_event` when the socket is closed), and the first run of a pod has none to throw away.
            Err(Error::Refused { source, .. })
                if existing == Existing::Replaced && source.raw_os_error() == Some(nix::libc::EEXIST) =>
            {
                attempt(&ruleset, Existing::Replaced)
            }
            outcome => outcome,
        }
    };
    match stand(Family::Inet) {
        Err(Error::Refused { source, .. }) if absent(&source) && !kernel_speaks_ipv6() => {
            stand(Family::Ipv4).map(|()| Family::Ipv4)
        }
        outcome => outcome.map(|()| Family::Inet),
    }
}

/// Compares what the kernel holds with the ruleset that [`raise`] would have put in force.
///
/// # Errors
/// They differ, or the kernel cannot be asked.
pub(super) fn verify(ruleset: impl Fn(Family) -> Ruleset) -> Result<Family, Error> {
    let stands = |family| {
        let socket = Socket::open(Protocol::Netfilter).map_err(Error::Socket)?;
        readback::verify(&socket, &ruleset(family)).map(|()| family)
    };
    match stands(Family::Inet) {
        Err(Error::Differs(Difference::TableMissing, _) | Error::Unreadable { .. }) if !kernel_speaks_ipv6() => {
            stands(Family::Ipv4)
        }
        outcome => outcome,
    }
}

/// One attempt, by a socket of its own: acknowledgements of a refused transaction may still be queued on the last one's.
fn attempt(ruleset: &Ruleset, existing: Existing) -> Result<(), Error> {
    let socket = Socket::open(Protocol::Netfilter).map_err(Error::Socket)?;
    apply(&socket, ruleset, existing)
}

/// Sends one ruleset and compares what the kernel holds afterwards.
///
/// # Errors
/// The kernel refused it, or holds something else.
pub(super) fn apply(socket: &Socket, ruleset: &Ruleset, existing: Existing) -> Result<(), Error> {
    let family = ruleset.family.name();
    let transaction = ruleset.transaction(existing);
    socket.exchange(&transaction.bytes, transaction.acknowledgements, |_| {}).map_err(|source| Error::Refused {
        family,
        remedy: remedy(&source),
        source,
    })?;
    readback::verify(socket, ruleset)
}

fn absent(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(nix::libc::EAFNOSUPPORT | nix::libc::EOPNOTSUPP | nix::libc::EPROTONOSUPPORT))
}

/// Whether the kernel can make IPv6 sockets at all: not so with `ipv6.disable=1` or without `CONFIG_IPV6`.
pub(super) fn kernel_speaks_ipv6() -> bool {
    !matches!(socket(AddressFamily::Inet6, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None), Err(Errno::EAFNOSUPPORT))
}
