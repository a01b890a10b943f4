//! `health`: asks a role's admin listener, for probes that have no shell.

use std::time::Duration;

use crate::cli;
use crate::event::admin;
use crate::event::say;

/// Exit code 0 when the listener answers 200, 1 otherwise, with the reason on stderr.
pub fn run(arguments: cli::Health) -> u8 {
    let path = if arguments.live { "/livez" } else { "/readyz" };
    match admin::ask(arguments.address, path, Duration::from_secs_f64(arguments.timeout)) {
        Ok((200, _)) => 0,
        Ok((status, body)) => {
            say!("openshell-supervisor: health: {path} of {} answered {status}: {}", arguments.address, body.trim());
            1
        }
        Err(error) => {
            say!(
                "openshell-supervisor: health: {path} of {} did not answer: {error}; is the role up, with --admin-bind {}?",
                arguments.address,
                arguments.address
            );
            1
        }
    }
}
