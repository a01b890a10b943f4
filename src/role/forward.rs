//! `forward`: makes a port that something listens on inside a running sandbox reachable here.

use super::proxy;
use super::sandbox::{self, Failure};
use crate::access::client;
use crate::cli;
use crate::event::say;

/// Ends when it is told to, or the sandbox ends.
pub fn run(arguments: cli::Forward) -> u8 {
    let (local, port) = arguments.ports;
    let outcome = proxy::runtime().map_err(Failure::setup).and_then(|runtime| {
        let forward = client::forward(&arguments.door.ssh_socket_path, local, port, |addresses| {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            say!("openshell-supervisor: forward: port {port} of the sandbox is {} here", addresses.join(" and "));
        });
        runtime.block_on(forward).map(|()| 0).map_err(Failure::setup)
    });
    sandbox::report(outcome)
}
