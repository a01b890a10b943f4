//! The node's plugin (design §9; CNI specification 1.1): chained behind a cluster's own network, it raises the pod fence
//! in the namespaces of sandboxes and lets every other pod be.
//!
//! A call is its environment ([`call`]) and a configuration on standard input ([`config`]). Pods outside of the sandboxes'
//! namespaces end there. A sandbox's annotations ([`pod`]) say whom its fence lets out, and a sandbox that cannot be
//! fenced gets no network at all: ADD fails ([`error`]), and the runtime tears the pod down.
//!
//! What has to be on a node for that ([`installation`]) is the program ([`program`]), its credentials ([`credentials`]) and
//! the configuration that calls it ([`chain`]); the cluster is told whether it is ([`readiness`]).

pub mod call;
pub mod chain;
pub mod config;
pub mod credentials;
pub mod error;
pub mod installation;
pub mod log;
pub mod namespace;
pub mod plugin;
pub mod pod;
pub mod program;
pub mod readiness;
