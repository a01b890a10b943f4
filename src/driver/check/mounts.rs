//! Where a user may mount what: never where the supervisor, the kernel or the workspace is.

use std::collections::BTreeSet;

use crate::contract::{SANDBOX_HOME, SIDECAR_DIRECTORY};
use crate::driver::names::path;
use crate::driver::problem::Problems;
use crate::driver::sandbox::SandboxSpec;
use crate::driver::shape;

/// What the supervisor and the container runtime have for themselves. A mount at, below or above one is refused.
const RESERVED: [&str; 15] = [
    "/opt/openshell",
    "/etc/openshell",
    path::UPSTREAM_AUTH_DIRECTORY,
    "/etc/openshell-tls",
    "/run/openshell",
    SIDECAR_DIRECTORY,
    "/run/netns",
    "/run/secrets/openshell",
    "/run/secrets/openshell-tls",
    "/run/openshell-attestation",
    "/run/openshell-proxy-ca",
    path::WORKSPACE_SEED,
    "/proc",
    "/sys",
    "/dev",
];

/// Checks the mounts by themselves; whether one meets the SPIFFE socket depends on the configuration.
pub(super) fn mounts(sandbox: &SandboxSpec, problems: &Problems) {
    let config = &sandbox.driver_config;
    let mut seen = BTreeSet::new();
    for (index, mount) in config.volume_mounts.iter().enumerate() {
        let field = |name: &str| format!("driver_config.containers.agent.volume_mounts[{index}].{name}");
        match config.volumes.iter().find(|volume| volume.name == mount.name) {
            None => {
                let remedy = "declare it under driver_config.volumes, or correct the name";
                problems.with(field("name"), &mount.name, "a declared volume", remedy);
            }
            Some(volume) if volume.read_only && !mount.read_only => {
                let remedy = "set persistent_volume_claim.read_only to false too, or this to true";
                problems.with(field("read_only"), false, "true: its volume is read-only", remedy);
            }
            Some(_) => {}
        }
        let target = &mount.mount_path;
        if !shape::is_plain_path(target) {
            let expected = "an absolute path without `.`, `..`, `:`, and empty parts";
            problems.with(field("mount_path"), target, expected, "write the path out");
        } else if let Some(taken) = reserved(target) {
            let expected = format!("a path that is neither at, below nor above {taken}");
            problems.with(field("mount_path"), target, expected, "choose another path, such as /mnt/data");
        } else if is_at_or_above(target, SANDBOX_HOME) {
            let expected = format!("a path other than {SANDBOX_HOME} and what it is in");
            let remedy = format!("mount below it, such as at {SANDBOX_HOME}/data");
            problems.with(field("mount_path"), target, expected, remedy);
        }
        if !seen.insert(target) {
            problems.with(field("mount_path"), target, "a path mounted once", "choose another path for one of the two");
        }
        if let Some(below) = &mount.sub_path
            && (below.starts_with('/') || below.split('/').any(|part| part == "..") || below.contains('\0'))
        {
            let remedy = "name a directory of the volume";
            problems.with(field("sub_path"), below, "a relative path without `..`", remedy);
        }
    }
}

/// What a path meets of what the supervisor and the container runtime have for themselves.
pub(super) fn reserved(path: &str) -> Option<&'static str> {
    RESERVED.into_iter().find(|reserved| meet(path, reserved))
}

/// Whether one of two paths is the other, or in it, by either name of what is in `/run`: `/var/run` is the same directory in
/// most images, and what is mounted at `/var` is above it there.
pub(super) fn meet(one: &str, other: &str) -> bool {
    let long = |path: &str| match is_at_or_above(RUN, path) {
        true => format!("/var{path}"),
        false => path.to_owned(),
    };
    let (one_long, other_long) = (long(one), long(other));
    let met = is_at_or_above(&one_long, &other_long) || is_at_or_above(&other_long, &one_long);
    met || meet_in_run(one, other)
}

/// The same where `/var/run` is a link, as in most images: what is at `/var` is then not above what is in `/run`.
pub(super) fn meet_in_run(one: &str, other: &str) -> bool {
    let below_var = |path: &str| path.strip_prefix("/var").filter(|rest| is_at_or_above(RUN, rest)).map(str::to_owned);
    let short = |path: &str| below_var(path).unwrap_or_else(|| path.to_owned());
    let (one, other) = (short(one), short(other));
    is_at_or_above(&one, &other) || is_at_or_above(&other, &one)
}

/// The directory that has two names.
const RUN: &str = "/run";

pub(super) fn is_at_or_above(one: &str, other: &str) -> bool {
    let parts =
        |path: &str| -> Vec<String> { path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect() };
    parts(other).starts_with(&parts(one))
}
