//! `trust`: whom the workload of a proxy-pod sandbox is to trust, in the volume that it sees: the sandbox's CA, and with it
//! everybody whom the workload's image trusts.

use std::path::Path;

use super::sandbox::{self, Failure};
use crate::cli;
use crate::egress::tls::roots;
use crate::event::say;
use crate::workload::trust::{Image, Trust, authority};

/// Exit code 0 when both files are there, 125 with the reason otherwise.
pub fn run(arguments: cli::Trust) -> u8 {
    sandbox::report(install(&arguments))
}

fn install(arguments: &cli::Trust) -> Result<u8, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::setup(format!("trust: {error}"));
    let authority = authority(&arguments.certificate).map_err(|error| failed(&error))?;
    for file in &arguments.upstream_ca {
        roots::certificates(file).map_err(|error| failed(&format!("--upstream-ca: {error}")))?;
    }
    let image = Image::read(|name| std::env::var_os(name), roots::system_bundle());
    let trust = Trust::extend(image, &authority, &arguments.upstream_ca);
    for note in &trust.notes {
        say!("openshell-supervisor: trust: {note}");
    }
    trust.write(&arguments.directory).map_err(|error| failed(&explained(&error, &arguments.directory)))?;
    say!("openshell-supervisor: trust: installed in {}", arguments.directory.display());
    Ok(0)
}

/// What a person can do about an error that volumes really give.
fn explained(error: &std::io::Error, directory: &Path) -> String {
    let remedy = match error.kind() {
        std::io::ErrorKind::NotFound => "mount the volume there",
        std::io::ErrorKind::ReadOnlyFilesystem => "mount the volume without readOnly in this container",
        std::io::ErrorKind::PermissionDenied => "give the pod an fsGroup that this container runs with",
        std::io::ErrorKind::StorageFull => "raise the volume's size limit",
        _ => "it must be a directory that this user may write",
    };
    format!("{error}; {remedy} ({})", directory.display())
}
