//! The one canonical form of a host, used by matching and by dialling alike (design §3).

use std::net::IpAddr;
use std::sync::Arc;

/// A host in canonical form: no two spellings of one destination differ, and nothing that a resolver could read
/// otherwise gets through.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A DNS name: lower case, IDNA A-labels, no trailing dot.
    Name(Arc<str>),
    /// An address, from whatever spelling.
    Address(IpAddr),
}

impl std::fmt::Display for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}
