//! Whom the pod fence lets out: one uid together with one gid, which nothing but the proxy may have.

use crate::contract::{Ids, OVERFLOW_ID};

/// Ids below this belong to the system (shadow-utils' `UID_MIN`).
const FIRST_ORDINARY: u32 = 1000;

/// `(uid_t)-1` means "no change" to chown(2) and setresuid(2), and is nobody's id.
const NO_ID: u32 = u32::MAX;

/// The proxy's ids, fit to be let out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exempt(Ids);

/// Ids that would let others out as well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// A system account, or no account at all.
    #[error(
        "the proxy's uid is {0}: expected 0 (binary-aware: the proxy is told apart from root by its gid) or \
         {FIRST_ORDINARY} and above, except {OVERFLOW_ID} (as which every unmapped user appears) and {NO_ID}"
    )]
    ProxyUser(u32),
    /// Root's group, or no group at all.
    #[error(
        "the proxy's gid is {0}: expected 1 or above, except {OVERFLOW_ID} (as which every unmapped group appears) and \
         {NO_ID}; 0 is the group of every root process in the pod"
    )]
    ProxyGroup(u32),
    /// A workload that is root, or nobody.
    #[error("the workload's {0} is {1}: expected 1 or above, except {NO_ID}")]
    Workload(&'static str, u32),
    /// The workload would be let out too.
    #[error("proxy and workload have the same {0}, {1}: give the proxy one of its own, which no other container has")]
    Shared(&'static str, u32),
}

impl Exempt {
    /// Checks that these ids let out the proxy and nobody else.
    ///
    /// # Errors
    /// [`Unfit`], which names the id.
    pub fn new(proxy: Ids, workload: Ids) -> Result<Self, Unfit> {
        let exempt = Self::of_proxy(proxy)?;
        for (what, id) in [("uid", workload.uid), ("gid", workload.gid)] {
            if matches!(id, 0 | NO_ID) {
                return Err(Unfit::Workload(what, id));
            }
        }
        if proxy.uid == workload.uid {
            return Err(Unfit::Shared("uid", proxy.uid));
        }
        if proxy.gid == workload.gid {
            return Err(Unfit::Shared("gid", proxy.gid));
        }
        Ok(exempt)
    }

    /// The same where the workload's ids are not known: a node's plugin is told of the proxy alone.
    ///
    /// # Errors
    /// [`Unfit`], which names the id.
    pub fn of_proxy(proxy: Ids) -> Result<Self, Unfit> {
        let system = proxy.uid != 0 && proxy.uid < FIRST_ORDINARY;
        if system || matches!(proxy.uid, OVERFLOW_ID | NO_ID) {
            return Err(Unfit::ProxyUser(proxy.uid));
        }
        if matches!(proxy.gid, 0 | OVERFLOW_ID | NO_ID) {
            return Err(Unfit::ProxyGroup(proxy.gid));
        }
        Ok(Self(proxy))
    }

    /// The ids.
    #[must_use]
    pub fn ids(self) -> Ids {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(proxy: (u32, u32), workload: (u32, u32)) -> Result<Exempt, Unfit> {
        let ids = |(uid, gid)| Ids { uid, gid };
        Exempt::new(ids(proxy), ids(workload))
    }

    #[test]
    fn the_proxy_is_root_with_a_group_of_its_own_or_an_ordinary_user() {
        let workload = (2000, 2000);
        for proxy in [(0, 1337), (1337, 1337), (1000, 1), (u32::MAX - 1, u32::MAX - 1)] {
            assert!(checked(proxy, workload).is_ok(), "{proxy:?}");
        }
        for uid in [1, 999, 65534, u32::MAX] {
            assert_eq!(checked((uid, 1337), workload), Err(Unfit::ProxyUser(uid)));
        }
        for gid in [0, 65534, u32::MAX] {
            assert_eq!(checked((1337, gid), workload), Err(Unfit::ProxyGroup(gid)));
            assert_eq!(checked((0, gid), workload), Err(Unfit::ProxyGroup(gid)));
        }
    }

    #[test]
    fn what_the_workload_has_the_proxy_cannot_have() {
        assert_eq!(checked((2000, 1337), (2000, 2000)), Err(Unfit::Shared("uid", 2000)));
        assert_eq!(checked((1337, 2000), (2000, 2000)), Err(Unfit::Shared("gid", 2000)));
        assert_eq!(checked((0, 1337), (0, 2000)), Err(Unfit::Workload("uid", 0)));
        assert_eq!(checked((1337, 1337), (2000, 0)), Err(Unfit::Workload("gid", 0)));
    }
}
