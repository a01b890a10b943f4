//! `exec`: runs a command, or a shell, in a running sandbox.

use std::os::unix::ffi::OsStrExt;

use super::proxy;
use super::sandbox::{self, Failure};
use crate::access::client;
use crate::cli;

/// The exit code is the command's.
pub fn run(arguments: cli::Exec) -> u8 {
    let words: Vec<&[u8]> = arguments.command.iter().map(|word| word.as_bytes()).collect();
    let line = (!words.is_empty()).then(|| client::quote(&words));
    let outcome = proxy::runtime().map_err(Failure::setup).and_then(|runtime| {
        let run = client::run(&arguments.door.ssh_socket_path, line.as_deref(), arguments.tty);
        let outcome = runtime.block_on(run).map_err(Failure::setup);
        // A thread may still wait for standard input.
        runtime.shutdown_background();
        outcome
    });
    sandbox::report(outcome)
}
