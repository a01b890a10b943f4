//! `logs`: prints what a running sandbox's main process has said of late, and what it goes on to say.

use super::proxy;
use super::sandbox::{self, Failure};
use crate::access::client;
use crate::cli;

/// Exit code 1 if something was missed.
pub fn run(arguments: cli::Logs) -> u8 {
    let outcome = proxy::runtime().map_err(Failure::setup).and_then(|runtime| {
        let logs = client::logs(&arguments.door.ssh_socket_path, arguments.follow);
        runtime.block_on(logs).map_err(Failure::setup)
    });
    sandbox::report(outcome)
}
