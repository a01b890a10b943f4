//! Every role of an agent sandbox in one executable, and the contract those roles share with the driver that renders
//! pods. Arrows point one way: `main → role → mechanisms → sys`.
#![deny(unsafe_code)]
// They panic when nobody reads; see `event::say`.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod contract;
pub mod driver;
pub mod spelling;

#[cfg(feature = "supervisor")]
pub mod access;
#[cfg(feature = "supervisor")]
pub mod attest;
#[cfg(feature = "supervisor")]
pub mod attribution;
#[cfg(feature = "supervisor")]
pub mod cli;
#[cfg(feature = "supervisor")]
pub mod cni;
#[cfg(feature = "supervisor")]
pub mod confine;
#[cfg(feature = "supervisor")]
pub mod control;
#[cfg(feature = "supervisor")]
pub mod doctor;
#[cfg(feature = "supervisor")]
pub mod egress;
#[cfg(feature = "supervisor")]
pub mod event;
#[cfg(feature = "supervisor")]
pub mod fence;
#[cfg(feature = "supervisor")]
pub mod kube;
#[cfg(feature = "supervisor")]
pub mod netns;
#[cfg(feature = "supervisor")]
pub mod policy;
#[cfg(feature = "supervisor")]
pub mod role;
#[cfg(feature = "supervisor")]
pub mod sys;
#[cfg(feature = "supervisor")]
pub mod volume;
#[cfg(feature = "supervisor")]
pub mod workload;
