//! `workspace`: the first content of a workspace's volume, from the image's own directory, once.

use super::init_container;
use super::sandbox::{self, Failure};
use crate::cli;
use crate::event::say;
use crate::volume::workspace;

/// Exit code 0 when the volume has its first content, 125 with the reason otherwise.
pub fn run(arguments: cli::Workspace) -> u8 {
    sandbox::report(seed(&arguments))
}

fn seed(arguments: &cli::Workspace) -> Result<u8, Failure> {
    init_container::ends_when_told("workspace");
    let seeded = workspace::seed(&arguments.source, &arguments.destination)
        .map_err(|error| Failure::setup(format!("workspace: {error}")))?;
    for note in &seeded.notes {
        say!("openshell-supervisor: workspace: {note}");
    }
    if seeded.more_notes > 0 {
        say!("openshell-supervisor: workspace: and {} more of the kind", seeded.more_notes);
    }
    say!("openshell-supervisor: workspace: {}: {seeded}", arguments.destination.display());
    Ok(0)
}
