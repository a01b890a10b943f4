//! `attach`: joins standard input and output to a running sandbox's main process.

use super::proxy;
use super::sandbox::{self, Failure};
use crate::access::client;
use crate::cli;

/// The exit code is the main process's, or 0 once detached.
pub fn run(arguments: cli::Attach) -> u8 {
    let outcome = proxy::runtime().map_err(Failure::setup).and_then(|runtime| {
        let outcome = runtime.block_on(client::attach(&arguments.door.ssh_socket_path)).map_err(Failure::setup);
        // A thread may still wait for standard input.
        runtime.shutdown_background();
        outcome
    });
    sandbox::report(outcome)
}
