//! The Kubernetes API, as much of it as the roles on a node ask for: who and where it is ([`access`]), one call over
//! one connection ([`client`]), what is called ([`resource`]) and what answers ([`object`]).
//!
//! A call that cannot prove whom it speaks to is not made: TLS 1.2 or 1.3, the cluster's own CA and no other, names and
//! addresses verified. Everything of a kubeconfig that would have us do otherwise, run a program, or be somebody else is
//! refused rather than passed over.

pub mod access;
pub mod client;
pub mod error;
pub mod node;
pub mod object;
pub mod resource;
pub mod retry;

mod connection;
mod kubeconfig;
mod material;
mod server;

#[cfg(test)]
pub(crate) mod tests;

pub use access::{Access, AccessError};
pub use client::{Client, Patch};
pub use error::{ApiError, Failure};
pub use resource::{NameError, Resource};
pub use retry::within;
