//! The workload's namespaces in the combined topology (design §7): a network of nothing but loopback, mounts without
//! the machine's control sockets, processes of its own.
//!
//! [`isolate`] runs in the single-threaded `launch` process, which gives up its own namespaces for new ones and opens
//! there what the supervisor needs. The supervisor never enters: it works through the descriptors of [`Handover`].

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// What to make.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Isolation {
    /// Create a user namespace first, in which the caller's own ids are the only ones: how an ordinary user gets the
    /// rest.
    pub user_namespace: bool,
    /// Create a PID namespace for the next child.
    pub pid_namespace: bool,
    /// Port of the proxy's listeners on 127.0.0.1 and ::1.
    pub proxy_port: u16,
    /// Paths to cover with something empty, besides the built-in list.
    pub hide: Vec<PathBuf>,
    /// Paths that stay visible although they lie under a hidden one, because the policy grants them.
    pub keep: Vec<PathBuf>,
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
