//! The one table of roles, and the dispatch that chooses among them before any thread or runtime exists.

mod attach;
mod cni;
mod cni_install;
mod connect;
mod doctor;
mod download;
mod exec;
mod files;
mod forward;
mod health;
mod init_container;
pub mod launch;
mod logs;
mod mark_node_ready;
mod network;
mod network_init;
mod pages;
mod platform;
mod policy;
mod process;
mod proxy;
mod remote;
mod render;
#[cfg(test)]
mod rendered;
mod run;
mod sandbox;
mod sideload;
mod trust;
mod upload;
mod usage;
mod verify_fence;
mod wait_for_tcp;
mod workload;
mod workspace;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};

use crate::cli;
use crate::contract::exit;
use crate::event::say;
use crate::spelling::nearest;

/// A role, or a tool for people: one row of [`TABLE`].
pub struct Role {
    /// What `--mode`, `argv[0]` and the first argument call it.
    pub name: &'static str,
    /// One line for `--list`.
    pub summary: &'static str,
    /// Its flags.
    pub command: fn() -> Command,
    /// What it does: a recipe of its own file. The value is the exit code.
    run: fn(&ArgMatches) -> u8,
}

/// Every role, in the order in which a newcomer meets them.
pub const TABLE: &[Role] = &[
    Role {
        name: "run",
        summary: "run a command confined, with its egress policed",
        command: cli::Run::command,
        run: |matches| with(matches, run::run),
    },
    Role {
        name: DEFAULT,
        summary: "the same as a container's entrypoint (the default)",
        command: cli::Combined::command,
        run: |matches| with(matches, run::combined),
    },
    Role {
        name: "network",
        summary: "the egress proxy and policy engine alone",
        command: cli::Network::command,
        run: |matches| with(matches, network::run),
    },
    Role {
        name: "network-init",
        summary: "raise a sidecar pod's fence and lay out its shared directories",
        command: cli::NetworkInit::command,
        run: |matches| with(matches, network_init::run),
    },
    Role {
        name: "verify-fence",
        summary: "prove that the pod's fence holds, or keep the pod waiting",
        command: cli::VerifyFence::command,
        run: |matches| with(matches, verify_fence::run),
    },
    Role {
        name: "process",
        summary: "the workload of a pod, launched and confined without privilege",
        command: cli::Process::command,
        run: |matches| with(matches, process::run),
    },
    Role {
        name: "connect",
        summary: "join standard input and output to a sandbox's SSH server, for ProxyCommand",
        command: cli::Connect::command,
        run: |matches| with(matches, connect::run),
    },
    Role {
        name: "exec",
        summary: "run a command in a running sandbox",
        command: cli::Exec::command,
        run: |matches| with(matches, exec::run),
    },
    Role {
        name: "attach",
        summary: "attach to a running sandbox's main process",
        command: cli::Attach::command,
        run: |matches| with(matches, attach::run),
    },
    Role {
        name: "logs",
        summary: "print what a running sandbox's main process has said of late",
        command: cli::Logs::command,
        run: |matches| with(matches, logs::run),
    },
    Role {
        name: "upload",
        summary: "copy files and directories into a running sandbox",
        command: cli::Upload::command,
        run: |matches| with(matches, upload::run),
    },
    Role {
        name: "download",
        summary: "copy files and directories out of a running sandbox",
        command: cli::Download::command,
        run: |matches| with(matches, download::run),
    },
    Role {
        name: "forward",
        summary: "make a port of a running sandbox reachable here",
        command: cli::Forward::command,
        run: |matches| with(matches, forward::run),
    },
    Role {
        name: "cni",
        summary: "the node's network plugin: called by the container runtime, not by people",
        command: cli::Cni::command,
        run: |matches| with(matches, cni::run),
    },
    Role {
        name: "cni-install",
        summary: "install the plugin on a node, keep it chained, and mark the node",
        command: cli::CniInstall::command,
        run: |matches| with(matches, cni_install::run),
    },
    Role {
        name: "mark-node-ready",
        summary: "set the node's label that sandboxes are scheduled by, or take it away",
        command: cli::MarkNodeReady::command,
        run: |matches| with(matches, mark_node_ready::run),
    },
    Role {
        name: "doctor",
        summary: "tell what this machine can do, and prove the confinement",
        command: cli::Doctor::command,
        run: |matches| with(matches, doctor::run),
    },
    Role {
        name: "health",
        summary: "ask a role's admin listener, for probes",
        command: cli::Health::command,
        run: |matches| with(matches, health::run),
    },
    Role {
        name: "sideload",
        summary: "copy this executable into a volume, atomically",
        command: cli::Sideload::command,
        run: |matches| with(matches, sideload::run),
    },
    Role {
        name: "trust",
        summary: "install whom a proxy-pod sandbox's workload is to trust",
        command: cli::Trust::command,
        run: |matches| with(matches, trust::run),
    },
    Role {
        name: "workspace",
        summary: "seed a workspace's volume from the image, once",
        command: cli::Workspace::command,
        run: |matches| with(matches, workspace::run),
    },
    Role {
        name: "wait-for-tcp",
        summary: "wait until HOST:PORT accepts connections",
        command: cli::WaitForTcp::command,
        run: |matches| with(matches, wait_for_tcp::run),
    },
    Role {
        name: "policy",
        summary: "check a policy file, or explain what it decides",
        command: cli::Policy::command,
        run: |matches| with(matches, policy::run),
    },
    Role {
        name: "render",
        summary: "print the Kubernetes objects of a sandbox",
        command: cli::Render::command,
        run: |matches| with(matches, render::run),
    },
    Role {
        name: "completions",
        summary: "print a shell's completion script",
        command: cli::Completions::command,
        run: |matches| with(matches, pages::completions),
    },
    Role {
        name: "man",
        summary: "print a manual page",
        command: cli::Man::command,
        run: |matches| with(matches, pages::man),
    },
];

/// The role of a container that says nothing.
const DEFAULT: &str = "network,process";

/// Names of the executable that choose no role, and beginnings of such.
const NEUTRAL_NAMES: [&str; 2] = ["openshell-supervisor", "openshell-sandbox"];

/// Prefix by which a link may name a role: `openshell-network`.
const NAME_PREFIX: &str = "openshell-";

/// Chooses the role and runs it.
pub fn dispatch(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    end_on_panic();
    let arguments: Vec<OsString> = arguments.collect();
    // The hidden re-execution comes before everything: it is on the path of every start and has no flags.
    if arguments.get(1).is_some_and(|first| first == "launch") && launch::was_spawned() {
        return ExitCode::from(launch::main());
    }
    match choose(&arguments) {
        Ok(Choice::Role(role, rest)) => ExitCode::from(parse_and_run(role, rest)),
        Ok(Choice::List) => print(&list()),
        Ok(Choice::Version) => print(&format!("openshell-supervisor {}\n", env!("CARGO_PKG_VERSION"))),
        Ok(Choice::Help) => print(&format!("{}", program().render_help())),
        Err(wrong) => {
            say!("openshell-supervisor: {wrong}\n\nRoles:\n{}", list());
            ExitCode::from(exit::USAGE)
        }
    }
}

/// A panic is a defect, and whatever it leaves half done must not go on deciding or confining: the process ends, and with
/// it the sandbox.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// What the command line asks for.
enum Choice {
    Role(&'static Role, Vec<OsString>),
    List,
    Version,
    Help,
}

/// A command line that names no role, or two.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
enum ChoiceError {
    #[error("argv is empty: expected at least the program's name in argv[0]")]
    EmptyArgv,
    #[error("--mode needs a role: --mode=network,process")]
    ModeWithoutValue,
    #[error("--mode is given twice: give it once, roles separated by a comma")]
    ModeTwice,
    #[error("no role {0:?}: {advice}expected one of the roles below; a workload follows `--`", advice = did_you_mean(.0))]
    Unknown(String),
    #[error("--mode={mode} and the program's name {name:?} choose different roles: drop one of the two")]
    Conflict { mode: String, name: String },
}

/// The role that was most likely meant, as the beginning of an advice.
fn did_you_mean(name: &str) -> String {
    let known: Vec<&str> = TABLE.iter().map(|role| role.name).collect();
    nearest(name, &known).map(|near| format!("did you mean {near:?}? ")).unwrap_or_default()
}

/// Role = `--mode`, else the name the program was called by, else the first argument, else the default (design §1).
fn choose(arguments: &[OsString]) -> Result<Choice, ChoiceError> {
    let (name, rest) = arguments.split_first().ok_or(ChoiceError::EmptyArgv)?;
    if name.is_empty() {
        return Err(ChoiceError::EmptyArgv);
    }
    let named = by_program_name(name)?;
    let (mode, rest) = take_mode(rest)?;
    if let Some(mode) = mode {
        let role = by_mode(&mode)?;
        return match named {
            Some(other) if other.name != role.name => {
                Err(ChoiceError::Conflict { mode, name: name.to_string_lossy().into_owned() })
            }
            _ => Ok(Choice::Role(role, rest)),
        };
    }
    if let Some(role) = named {
        return Ok(Choice::Role(role, rest));
    }
    match rest.first().and_then(|first| first.to_str()) {
        Some("--list") => Ok(Choice::List),
        Some("--version" | "-V") => Ok(Choice::Version),
        Some("--help" | "-h" | "help") => Ok(Choice::Help),
        Some(first) if find(first).is_some() => {
            let role = find(first).ok_or_else(|| ChoiceError::Unknown(first.into()))?;
            Ok(Choice::Role(role, rest[1..].to_vec()))
        }
        Some(first) if !first.starts_with('-') => Err(ChoiceError::Unknown(first.into())),
        _ => find(DEFAULT).map(|role| Choice::Role(role, rest)).ok_or_else(|| ChoiceError::Unknown(DEFAULT.into())),
    }
}

/// Removes `--mode` from the flags before `--`, and returns its value.
fn take_mode(arguments: &[OsString]) -> Result<(Option<String>, Vec<OsString>), ChoiceError> {
    let mut mode = None;
    let mut rest = Vec::with_capacity(arguments.len());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let value = if argument == "--" {
            rest.push(argument.clone());
            rest.extend(arguments.by_ref().cloned());
            break;
        } else if argument == "--mode" {
            arguments.next().map(|value| value.to_string_lossy().into_owned()).ok_or(ChoiceError::ModeWithoutValue)?
        } else if let Some(value) = argument.to_str().and_then(|text| text.strip_prefix("--mode=")) {
            value.to_owned()
        } else {
            rest.push(argument.clone());
            continue;
        };
        if mode.replace(value).is_some() {
            return Err(ChoiceError::ModeTwice);
        }
    }
    Ok((mode, rest))
}

fn by_mode(mode: &str) -> Result<&'static Role, ChoiceError> {
    let mut names: Vec<&str> = mode.split(',').collect();
    names.sort_unstable();
    if mode.is_empty() {
        return Err(ChoiceError::ModeWithoutValue);
    }
    find(&names.join(",")).ok_or_else(|| ChoiceError::Unknown(mode.into()))
}

fn by_program_name(name: &OsStr) -> Result<Option<&'static Role>, ChoiceError> {
    let base = std::path::Path::new(name).file_name().unwrap_or(name);
    let Some(base) = base.to_str() else { return Ok(None) };
    // With what a release or a build adds to the program's name: `openshell-supervisor-linux-amd64`.
    if NEUTRAL_NAMES.iter().any(|neutral| base.starts_with(neutral)) {
        return Ok(None);
    }
    match base.strip_prefix(NAME_PREFIX) {
        // A link that means a role and misses one must not quietly become the default role.
        Some(role) => find(role).map(Some).ok_or_else(|| ChoiceError::Unknown(base.into())),
        None => Ok(find(base)),
    }
}

fn find(name: &str) -> Option<&'static Role> {
    TABLE.iter().find(|role| role.name == name)
}

/// Parses a role's flags and runs it; wrong usage is told by clap and is exit code 2.
fn parse_and_run(role: &Role, rest: Vec<OsString>) -> u8 {
    let command =
        (role.command)().bin_name(format!("openshell-supervisor {}", role.name)).version(env!("CARGO_PKG_VERSION"));
    let mut command = command.mut_args(usage::unset_where_empty).no_binary_name(true);
    match command.try_get_matches_from_mut(&rest) {
        Ok(matches) => (role.run)(&matches),
        Err(mut wrong) => {
            usage::explain(&mut wrong, &command, &rest);
            // Help and version are errors to clap, of exit code 0.
            let _ = wrong.print();
            u8::try_from(wrong.exit_code()).unwrap_or(exit::USAGE)
        }
    }
}

/// Hands a role its own type of arguments.
fn with<T: FromArgMatches>(matches: &ArgMatches, role: fn(T) -> u8) -> u8 {
    match T::from_arg_matches(matches) {
        Ok(arguments) => role(arguments),
        Err(wrong) => {
            let _ = wrong.print();
            exit::USAGE
        }
    }
}

/// The whole program as clap sees it, for help, completions and man pages.
fn program() -> Command {
    TABLE.iter().fold(
        Command::new("openshell-supervisor")
            .about(
                "Runs an agent's workload confined and polices its egress: every role of a sandbox in one executable",
            )
            .version(env!("CARGO_PKG_VERSION"))
            .subcommand_value_name("ROLE")
            .subcommand_help_heading("Roles")
            .arg(clap::arg!(--mode <ROLE> "Choose the role, whatever the first argument is"))
            .arg(clap::arg!(--list "List the roles, one a line"))
            .disable_help_subcommand(true),
        |program, role| program.subcommand((role.command)().name(role.name).about(role.summary)),
    )
}

/// `--list`: a role a line, its name first.
fn list() -> String {
    TABLE.iter().map(|role| format!("{:<16} {}\n", role.name, role.summary)).collect()
}

/// Writes to standard output; a reader that has gone is no failure.
fn print(text: &str) -> ExitCode {
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(arguments: &[&str]) -> Result<(&'static str, Vec<OsString>), ChoiceError> {
        let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
        match choose(&arguments)? {
            Choice::Role(role, rest) => Ok((role.name, rest)),
            Choice::List | Choice::Version | Choice::Help => panic!("{arguments:?} choose no role"),
        }
    }

    #[test]
    fn mode_comes_first_then_the_name_then_the_first_argument_then_the_default() {
        let role = |arguments: &[&str]| chosen(arguments).map(|(name, _)| name);
        assert_eq!(role(&["openshell-supervisor", "--mode=network"]), Ok("network"));
        assert_eq!(role(&["/opt/openshell/bin/openshell-sandbox", "--mode", "process,network"]), Ok(DEFAULT));
        assert_eq!(role(&["/usr/bin/openshell-network"]), Ok("network"));
        assert_eq!(role(&["health", "run"]), Ok("health"));
        assert_eq!(role(&["supervisor", "policy", "check"]), Ok("policy"));
        assert_eq!(role(&["openshell-supervisor", "--", "run"]), Ok(DEFAULT));
        assert_eq!(role(&["openshell-supervisor"]), Ok(DEFAULT));
    }

    #[test]
    fn the_rest_reaches_the_role_and_mode_after_the_dashes_is_the_workloads() {
        let (name, rest) = chosen(&["x", "--mode=network", "--bind", "b", "--", "--mode=y"]).expect("a role");
        assert_eq!(name, "network");
        assert_eq!(rest, ["--bind", "b", "--", "--mode=y"]);
    }

    #[test]
    fn what_names_no_role_or_two_is_refused() {
        let wrong = |arguments: &[&str]| chosen(arguments).expect_err("no role");
        assert_eq!(wrong(&["x", "launch"]), ChoiceError::Unknown("launch".into()));
        assert_eq!(wrong(&[]), ChoiceError::EmptyArgv);
        assert_eq!(wrong(&[""]), ChoiceError::EmptyArgv);
        assert_eq!(wrong(&["x", "--mode"]), ChoiceError::ModeWithoutValue);
        assert_eq!(wrong(&["x", "--mode="]), ChoiceError::ModeWithoutValue);
        assert_eq!(wrong(&["x", "--mode=network", "--mode=run"]), ChoiceError::ModeTwice);
        assert_eq!(wrong(&["x", "--mode=netwrok"]), ChoiceError::Unknown("netwrok".into()));
        assert_eq!(wrong(&["x", "netwrok"]), ChoiceError::Unknown("netwrok".into()));
        assert_eq!(wrong(&["openshell-netwrok"]), ChoiceError::Unknown("openshell-netwrok".into()));
        assert!(matches!(wrong(&["openshell-health", "--mode=network"]), ChoiceError::Conflict { .. }));
    }

    #[test]
    fn every_role_has_a_well_formed_command() {
        program().debug_assert();
        for role in TABLE {
            (role.command)().debug_assert();
        }
    }
}
