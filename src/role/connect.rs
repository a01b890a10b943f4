//! `connect`: joins standard input and output to the access server's socket, for `ssh -o ProxyCommand`.

use super::sandbox::{self, Failure};
use crate::access::client;
use crate::cli;

/// Exit code 0 once the server has closed the connection.
pub fn run(arguments: cli::Connect) -> u8 {
    sandbox::report(client::join(&arguments.door.ssh_socket_path).map(|()| 0).map_err(Failure::setup))
}
