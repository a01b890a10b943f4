//! What the sandbox may do: the policy file, its validation, and the two-stage decision of design §3.
//!
//! A file is read into [`schema`] types, validated with every problem reported at its line and column, and normalised
//! into a [`Policy`]. A [`Snapshot`] is one generation of it, with the Rego engine that decides and the cache of what
//! it decided; the [`Store`] swaps generations whole.

mod advice;
mod baseline;
mod document;
mod doubt;
mod engine;
mod network;
mod overlap;
mod pattern;
mod problem;
mod reader;
mod resolve;
mod schema;
mod snapshot;
mod store;
mod yaml;

pub mod address;
pub mod decision;
pub mod host;
pub mod reload;
pub mod request;
pub mod writable;

pub use pattern::PatternError;
pub use problem::{LoadError, Problem};
pub use snapshot::Snapshot;
pub use store::{OnInvalid, PolicySource, ReloadOutcome, Sources, Store};

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A validated policy, in the form that every mechanism reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Paths the workload may see.
    pub filesystem: Filesystem,
    /// What to do where Landlock cannot enforce them.
    pub landlock: Compatibility,
    /// Who the workload is; `None` leaves it to the driver, the image and the defaults.
    pub process: ProcessIdentity,
    /// Entries of `network_policies`, in the order of their keys.
    pub network: Vec<Arc<NetworkPolicy>>,
}

/// Section `filesystem_policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filesystem {
    /// Whether the working directory is added to `read_write`.
    pub include_workdir: bool,
    /// Paths to read and execute.
    pub read_only: Vec<PathBuf>,
    /// Paths to write as well.
    pub read_write: Vec<PathBuf>,
}

/// Section `landlock`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compatibility {
    /// Enforce what the kernel can, and say loudly what it cannot.
    #[default]
    BestEffort,
    /// Refuse to start unless everything can be enforced.
    HardRequirement,
}

/// Section `process`: names or numbers, as written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// `run_as_user`.
    pub user: Option<String>,
    /// `run_as_group`.
    pub group: Option<String>,
}

/// One entry of `network_policies`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkPolicy {
    /// Key in the file; the name that denials and events give.
    pub key: String,
    /// Destinations.
    pub endpoints: Vec<Endpoint>,
    /// Programs that may reach them.
    pub binaries: Vec<Binary>,
}

/// A program that an entry names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Binary {
    /// An exact path or a glob.
    pub path: String,
    /// Whether it lends its right to what is below it: the entry then matches as an ancestor too. Otherwise it matches
    /// the connecting program alone.
    pub children: bool,
}

impl Binary {
    /// Every program there is.
    #[must_use]
    pub fn any() -> Self {
        Self { path: "**".to_owned(), children: true }
    }
}

impl std::fmt::Display for Binary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.path, if self.children { "" } else { " alone" })
    }
}

/// A destination that an entry allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Host, or `None` where `allowed_ips` alone selects: then every address must lie in one of the ranges, public or
    /// not, and the destination guard is who checks it.
    pub host: Option<HostPattern>,
    /// Ports, sorted, never empty.
    pub ports: Vec<u16>,
    /// Address ranges that this endpoint may resolve to although they are private.
    pub allowed_ips: Vec<IpNet>,
    /// `tls: skip`: never intercept.
    pub tls_skip: bool,
    /// How requests are judged; `None` where they are not read.
    pub inspection: Option<Arc<request::Inspection>>,
}

/// A host as a policy writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// One host, canonical.
    Exact(host::Host),
    /// A glob over labels: `*` inside a label, `**` across.
    Glob(String),
}

impl Endpoint {
    /// Whether the file names this host exactly, which lets it resolve to private addresses (design §4).
    #[must_use]
    pub fn names(&self, host: &host::Host) -> bool {
        matches!(&self.host, Some(HostPattern::Exact(exact)) if exact == host)
    }

    /// Whether `address` lies in one of the ranges that the endpoint lists.
    #[must_use]
    pub fn lists(&self, address: IpAddr) -> bool {
        self.allowed_ips.iter().any(|range| range.contains(&address))
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let list = |items: Vec<String>| items.join(",");
        match &self.host {
            Some(host) => write!(f, "{host}")?,
            None => write!(f, "addresses in {}", list(self.allowed_ips.iter().map(ToString::to_string).collect()))?,
        }
        write!(f, ":{}", list(self.ports.iter().map(ToString::to_string).collect()))?;
        match &self.inspection {
            Some(inspection) => write!(f, " ({inspection})"),
            None => Ok(()),
        }
    }
}
