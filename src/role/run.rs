//! `run`, for a person, and `network,process`, the entrypoint of a combined container: the same sandbox, asked for in
//! two ways.

use std::path::{Component, Path, PathBuf};

use super::platform;
use super::sandbox::{self, Failure, Plan};
use super::workload::{self, Workload};
use crate::cli;
use crate::event::say;
use crate::policy::{self, address, host::Host};
use crate::workload::command::Command;
use crate::workload::environment::{self, Inherit, UserVariable};

/// Runs a command for a person; the exit code is the command's.
pub fn run(arguments: cli::Run) -> u8 {
    sandbox::report(plan_for_person(arguments).and_then(sandbox::run))
}

/// Runs a container's workload; the exit code is the workload's.
pub fn combined(arguments: cli::Combined) -> u8 {
    if arguments.platform.fence != cli::CombinedFence::Own {
        return sandbox::report(platform::start(arguments));
    }
    sandbox::report(plan_for_container(arguments).and_then(sandbox::run))
}

fn plan_for_person(arguments: cli::Run) -> Result<Plan, Failure> {
    let variables = assignments(&arguments.environment)?;
    let policy = quick_policy(&arguments)?;
    let workdir = match &arguments.workload.workdir {
        Some(given) => Some(workload::existing(given)?),
        None => current_directory()?,
    };
    let workload = Workload {
        command: Command::resolve_words(&arguments.command)?,
        inherit: Inherit::Session,
        variables,
        workdir,
        options: arguments.workload,
    };
    Ok(Plan { workload, built_in_policy: policy, learn: arguments.learn, options: arguments.sandbox })
}

fn plan_for_container(arguments: cli::Combined) -> Result<Plan, Failure> {
    let workload = Workload::of_container(&arguments.command, arguments.workload)?;
    Ok(Plan { workload, built_in_policy: None, learn: None, options: arguments.sandbox })
}

/// `--env` assignments; one that only passes through, and is not set here, is no variable.
fn assignments(texts: &[String]) -> Result<Vec<UserVariable>, Failure> {
    let parsed = texts.iter().map(|text| environment::parse_assignment(text.as_ref()).map_err(Failure::usage));
    Ok(parsed.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// What `--allow`, `--read` and `--write` say, if anything.
fn quick_policy(arguments: &cli::Run) -> Result<Option<policy::Policy>, Failure> {
    if arguments.allow.is_empty() && arguments.read.is_empty() && arguments.write.is_empty() {
        return Ok(None);
    }
    let mut policy = policy::Policy::allowing(&parse_destinations(&arguments.allow)?);
    for (flag, paths, write) in [("--read", &arguments.read, false), ("--write", &arguments.write, true)] {
        for path in paths {
            let wrong = |why: String| Failure::usage(format!("{flag} {}: {why}", path.display()));
            // By the name that it was given, which the command will use; `..` has no meaning in a policy.
            let real = path.canonicalize().map_err(|error| wrong(format!("{error}; name what is there")))?;
            let named = std::path::absolute(path).map_err(|error| wrong(error.to_string()))?;
            let up = named.components().any(|step| step == Component::ParentDir);
            policy.filesystem.grant(if up { &real } else { &named }, write).map_err(wrong)?;
        }
    }
    Ok(Some(policy))
}

/// `--allow HOST:PORT`.
fn parse_destinations(texts: &[String]) -> Result<Vec<(Host, u16)>, Failure> {
    texts
        .iter()
        .map(|text| {
            let wrong = |why: String| {
                Failure::usage(format!("--allow {text}: {why}; expected HOST:PORT, such as api.example.com:443"))
            };
            let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("there is no port".into()))?;
            let port =
                port.parse().ok().filter(|&port| port != 0).ok_or_else(|| wrong(format!("{port:?} is no port")))?;
            let host = Host::parse(host).map_err(|error| wrong(error.to_string()))?;
            match address::never_dialled(&host) {
                Some(kind) => Err(Failure::usage(format!(
                    "--allow {text}: the proxy never dials {host} ({kind}); {}",
                    address::instead(kind)
                ))),
                None => Ok((host, port)),
            }
        })
        .collect()
}

/// Where `run` was called. The root and whatever holds a person's whole home are started in and not granted: who wants
/// the sandbox to write all of that says so by `--workdir`.
fn current_directory() -> Result<Option<PathBuf>, Failure> {
    let here = std::env::current_dir().map_err(|error| {
        Failure::setup(format!("current directory: {error}; change to one that exists, or use --workdir"))
    })?;
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let holds_home = home.is_some_and(|home| home.starts_with(&here));
    if holds_home && here != Path::new("/") {
        say!(
            "openshell-supervisor: {here} holds your home directory, so the command may not use it; work in a directory \
             below, or say `--workdir {here}`",
            here = here.display()
        );
        return Ok(None);
    }
    Ok(Some(here).filter(|here| here != Path::new("/")))
}
