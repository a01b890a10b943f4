//! What the workload gives up before its first instruction: identity, capabilities, limits, the file system outside
//! its grants, and the system calls that lead out.
//!
//! All of it happens in the single-threaded child that then becomes the workload (design §6), in the order that
//! [`crate::workload`] calls it; nothing here forks or speaks to the supervisor.

pub mod accounts;
pub mod capabilities;
pub mod identity;
pub mod landlock;
pub mod limits;
pub mod seccomp;
