//! `upload`: copies files and directories into a running sandbox.

use super::proxy;
use super::sandbox::{self, Failure};
use crate::access::client;
use crate::cli;

/// Exit code 1 if anything was left out, each told on standard error.
pub fn run(arguments: cli::Upload) -> u8 {
    let outcome = proxy::runtime().map_err(Failure::setup).and_then(|runtime| {
        let transfer = client::upload(&arguments.door.ssh_socket_path, &arguments.paths, &arguments.into);
        runtime.block_on(transfer).map_err(Failure::setup)
    });
    sandbox::report(outcome)
}
