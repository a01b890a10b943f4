//! `sideload`: this executable, copied into a volume from which another image runs it.

use nix::sys::signal::Signal;

use super::init_container;
use super::sandbox::{self, Failure};
use crate::cli;
use crate::event::say;
use crate::sys::process;
use crate::volume::sideload;

/// Exit code 0 when the copy is there, 125 with the reason otherwise.
pub fn run(arguments: cli::Sideload) -> u8 {
    sandbox::report(copy(&arguments))
}

fn copy(arguments: &cli::Sideload) -> Result<u8, Failure> {
    init_container::ends_when_told("sideload");
    // A limit on the size of files is an error that can be told, and not a signal.
    process::ignore(Signal::SIGXFSZ);
    let copied =
        sideload::copy_to(&arguments.destination).map_err(|error| Failure::setup(format!("sideload: {error}")))?;
    say!("openshell-supervisor: sideload: copied {} bytes to {}", copied.bytes, copied.path.display());
    Ok(0)
}
