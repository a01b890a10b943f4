//! The rulesets that keep a workload from going around its proxy, their netlink encoding and their read-back.
//!
//! A fence is raised in one transaction and then read back and compared expression by expression, because a ruleset
//! that was accepted is not yet the ruleset that was meant: a chain without its hook, a dormant table or another's
//! rule before ours would all go unnoticed otherwise.

pub mod bypass;
pub mod combined;
pub mod encode;
pub mod exempt;
pub mod pod;
pub mod proof;
mod raise;
pub mod readback;
mod refusal;

use std::io;

/// Name of the table that every fence lives in.
pub const TABLE: &str = "openshell_fence";

/// Why a fence does not stand.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel's netfilter socket cannot be had.
    #[error(
        "cannot open a NETLINK_NETFILTER socket: {0}; the fence needs a kernel with nf_tables (CONFIG_NF_TABLES), which \
         some container sandboxes (gVisor) do not have: use the proxy-pod topology there"
    )]
    Socket(#[source] io::Error),
    /// The transaction was refused, and nothing of it is in force.
    #[error("the kernel refused the ruleset of table {family} {TABLE}: {source}; {remedy}")]
    Refused {
        /// `inet` or `ip`.
        family: &'static str,
        /// What the kernel answered.
        source: io::Error,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The ruleset that is in force cannot be read.
    #[error("cannot read back table {family} {TABLE}: {source}")]
    Unreadable {
        /// `inet` or `ip`.
        family: &'static str,
        /// What the kernel answered.
        source: io::Error,
    },
    /// The ruleset that is in force is not the one that was sent.
    #[error("table {family} {TABLE} is not what was asked for: {0}; something else changes rulesets here", family = .1)]
    Differs(readback::Difference, &'static str),
}

/// The remedy that goes with what a refused transaction answered.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(nix::libc::EPERM) => "it takes CAP_NET_ADMIN in the user namespace that owns the network namespace",
        Some(nix::libc::EOPNOTSUPP | nix::libc::EAFNOSUPPORT | nix::libc::EPROTONOSUPPORT) => {
            "the kernel lacks nf_tables for this family (CONFIG_NF_TABLES_INET, CONFIG_NF_TABLES_IPV4): use the proxy-pod \
             topology there"
        }
        Some(nix::libc::ENOENT) => {
            "the kernel lacks an expression that the fence uses: connection tracking in pods (CONFIG_NF_CONNTRACK, \
             CONFIG_NFT_CT), reject (CONFIG_NFT_REJECT_INET), limit (CONFIG_NFT_LIMIT) or log (CONFIG_NFT_LOG): load the \
             modules, or use the proxy-pod topology there"
        }
        Some(nix::libc::EEXIST) => "a table of that name is there already",
        _ => "see the kernel log",
    }
}

#[cfg(test)]
pub(crate) mod tests;
