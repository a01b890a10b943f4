//! Access to a running sandbox for people and programs: an SSH server on a Unix socket (design §6).
//!
//! Whoever gets past the [`door`] is served by [`server`]: commands, shells and terminals ([`session`]), the main process
//! ([`attach`], for which the [`console`] stands between it and the container), and connections to what listens inside
//! ([`forward`]). Every program is started by the sandbox's init as a guest
//! ([`crate::workload::guest`]), and so is confined exactly like the workload. [`client`] is the other end, for who
//! has no SSH client at hand; [`ssh`] is the protocol, for both.

pub mod attach;
pub mod carry;
pub mod client;
pub mod console;
mod descriptor;
mod door;
pub mod files;
mod forward;
mod knock;
mod quoting;
mod server;
mod session;
mod shell;
pub mod ssh;
mod stdio;
mod told;

mod place;

pub use console::Console;
pub use door::Door;
pub use place::{Place, PlaceError};
pub use server::{Inside, serve};
pub use shell::candidates as shells;
