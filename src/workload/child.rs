//! The child that becomes the workload: gives up everything in order, then execs.

use std::ffi::{CStr, CString, OsStr};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::unistd::{AccessFlags, access, chdir, execve};
use serde::{Deserialize, Serialize};

use super::Orders;
use super::control::Failure;
use super::terminal::{self, Plan};
use crate::confine::identity;
use crate::confine::landlock::{self, Enforced};
use crate::confine::seccomp::Filter;
use crate::contract::exit;
use crate::sys::process;

/// Longest path that the kernel takes.
const PATH_MAX: usize = 4096;

/// The first descriptor that is no standard stream.
const FIRST_OF_OTHERS: RawFd = 3;

/// What the child tells the init through the pipe that closes on exec.
#[derive(Debug, Serialize, Deserialize)]
pub enum Note {
    /// Confined, about to exec.
    Confined {
        /// What Landlock enforces.
        landlock: Enforced,
        /// What an operator should know.
        notes: Vec<String>,
    },
    /// Will not exec.
    Failed(Failure),
}

impl Note {
    /// Writes it. A reader that is gone is the init, and with it goes everything.
    pub(super) fn tell(&self, pipe: &mut impl Write) {
        let _ = tell(pipe, self);
    }

    /// Takes in what is in the pipe, up to `limit` bytes. Gives the pipe back while there may be more; its end means that
    /// the child has executed its program or died.
    pub(super) fn read_on(pipe: OwnedFd, said: &mut Vec<u8>, limit: usize) -> Option<OwnedFd> {
        let mut pipe = File::from(pipe);
        let mut chunk = [0; 4096];
        match pipe.read(&mut chunk) {
            Ok(length) if length > 0 && said.len() < limit => {
                said.extend_from_slice(&chunk[..length]);
                Some(pipe.into())
            }
            _ => None,
        }
    }

    /// What all that was said comes to: confined and executed, or not.
    pub(super) fn verdict(said: &[u8]) -> Result<(Enforced, Vec<String>), Failure> {
        let mut confined = None;
        for line in said.split(|&byte| byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(Self::Confined { landlock, notes }) => confined = Some((landlock, notes)),
                Ok(Self::Failed(failure)) => return Err(failure),
                Err(_) => {}
            }
        }
        confined.ok_or_else(|| {
            Failure::setup(
                "the process that was to become the workload died while it was being confined; see the kernel's log",
            )
        })
    }
}

/// What is the same for all that an init starts.
#[derive(Clone, Copy, Debug)]
pub struct Confinement<'o> {
    /// Whose identity, grants and limits hold.
    pub orders: &'o Orders,
    /// The system-call filter that they ask for.
    pub filter: &'o Filter,
}

/// What is to run, and in what surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Start<'s> {
    /// Programs with their arguments, the first of which that can be executed is the one.
    pub commands: &'s [Vec<CString>],
    /// The whole environment.
    pub environment: &'s [CString],
    /// Directory to start in.
    pub workdir: Option<&'s Path>,
}

/// Confines the calling process and execs the first of the commands that can be. Comes back only with the reason why none of
/// them, which has then been written to `pipe` too.
///
/// The order matters. Granted paths are opened and limits raised while privilege lasts; the working directory is
/// entered with the workload's own rights; the filter comes last, since it refuses what earlier steps need.
pub fn become_workload(confinement: Confinement<'_>, start: Start<'_>, plan: Plan, mut pipe: impl Write) -> Failure {
    let failure = confine(confinement, start.workdir, plan, &mut pipe).err().unwrap_or_else(|| {
        let mut refused = Failure::new(exit::NOT_FOUND, "the command is empty".to_owned());
        for command in start.commands {
            refused = exec(command, start.environment);
        }
        refused
    });
    // If the init is gone there is nobody to tell.
    Note::Failed(failure.clone()).tell(&mut pipe);
    failure
}

/// Confines the calling process in the same way, and goes on in this executable: `own` is what runs instead of a program, in
/// `workdir`, with the standard streams and `report`. What it returns is the exit code.
///
/// # Errors
/// Why it does not run, which has been written to `pipe` too.
pub fn become_own(
    confinement: Confinement<'_>,
    workdir: Option<&Path>,
    plan: Plan,
    mut pipe: impl Write,
    report: OwnedFd,
    own: impl FnOnce(OwnedFd) -> u8,
) -> Result<u8, Failure> {
    let confined = confine(confinement, workdir, plan, &mut pipe);
    if let Err(failure) = &confined {
        Note::Failed(failure.clone()).tell(&mut pipe);
    }
    confined?;
    drop(pipe);
    // Nothing is executed that would close them.
    process::close_from_but(FIRST_OF_OTHERS, report.as_fd())
        .map_err(|error| Failure::setup(format!("close_range: {error}")))?;
    Ok(own(report))
}

/// Gives up everything, up to the standard streams and what closes on exec.
fn confine(
    Confinement { orders, filter }: Confinement<'_>,
    workdir: Option<&Path>,
    plan: Plan,
    pipe: &mut impl Write,
) -> Result<(), Failure> {
    terminal::join(plan)
        .map_err(|error| Failure::setup(format!("cannot give the workload a job of its own: {error}")))?;
    process::default_dispositions();
    orders.limits.apply().map_err(Failure::setup)?;
    let ruleset = landlock::prepare(&orders.grants).map_err(Failure::setup)?;
    let dropped = identity::drop(&orders.identity).map_err(Failure::setup)?;
    // A change of ids clears it (prctl(2)), so it comes after.
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(Failure::setup)?;
    enter(workdir)?;
    prctl::set_no_new_privs().map_err(Failure::setup)?;
    let landlock = ruleset.restrict().map_err(Failure::setup)?;
    process::close_on_exec_from(FIRST_OF_OTHERS).map_err(Failure::setup)?;
    filter.install().map_err(Failure::setup)?;
    let mut notes = Vec::new();
    if !dropped.bounding {
        notes.push(
            "the capability bounding set cannot be emptied by a supervisor without CAP_SETPCAP; no_new_privs keeps the \
             workload from using it"
                .to_owned(),
        );
    }
    tell(pipe, &Note::Confined { landlock, notes })
        .map_err(|error| Failure::setup(format!("the sandbox's init is gone: {error}")))?;
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None).map_err(Failure::setup)
}

fn tell(pipe: &mut impl Write, note: &Note) -> std::io::Result<()> {
    let mut line = serde_json::to_vec(note)?;
    line.push(b'\n');
    pipe.write_all(&line)
}

/// Entered by name, even where it is the directory that we are in already: after mounts have been covered, the one we
/// are in may be one that is no longer to be seen.
fn enter(workdir: Option<&Path>) -> Result<(), Failure> {
    let Some(workdir) = workdir else { return Ok(()) };
    chdir(workdir).map_err(|error| {
        let remedy = match error {
            Errno::ENOENT => "create it, grant it under filesystem_policy, or name another with --workdir",
            Errno::EACCES => {
                "the workload's user may not enter it: let it in by owner or mode, work in another directory (--workdir), \
                 or start the supervisor as its owner"
            }
            _ => "name another with --workdir",
        };
        Failure::setup(format!("working directory {}: {error}; {remedy}", workdir.display()))
    })
}

/// execve(2), with the lookup that execvp(3) makes in the *workload's* `PATH`, but for one thing: a file without an
/// interpreter line is not given to a shell.
fn exec(command: &[CString], environment: &[CString]) -> Failure {
    let Some(program) = command.first() else {
        return Failure::new(exit::NOT_FOUND, "the command is empty".to_owned());
    };
    if program.as_bytes().contains(&b'/') {
        return refusal(program, program, exec_one(program, command, environment));
    }
    let search = environment.iter().find_map(|variable| variable.as_bytes().strip_prefix(b"PATH=")).unwrap_or(b"");
    let mut found: Option<Failure> = None;
    for directory in search.split(|&byte| byte == b':') {
        let Some(candidate) = join(directory, program) else { continue };
        let error = exec_one(&candidate, command, environment);
        match error {
            Errno::ENOENT if !exists(&candidate) => {}
            Errno::ENOTDIR | Errno::ENAMETOOLONG | Errno::ELOOP | Errno::ENODEV | Errno::ESTALE | Errno::ETIMEDOUT => {}
            // A later directory may hold one that we may run.
            Errno::EACCES => drop(found.get_or_insert_with(|| refusal(program, &candidate, error))),
            _ => return refusal(program, &candidate, error),
        }
    }
    found.unwrap_or_else(|| {
        let message = format!(
            "{}: not found in PATH={}; name it by its path, or set PATH with --env",
            program.to_string_lossy(),
            String::from_utf8_lossy(search)
        );
        Failure::new(exit::NOT_FOUND, message)
    })
}

/// An empty element of PATH is the current directory to execvp(3); here it is nothing: what runs must not depend on
/// where the agent happens to be.
fn join(directory: &[u8], program: &CStr) -> Option<CString> {
    if directory.is_empty() || directory.len() + 1 + program.count_bytes() >= PATH_MAX {
        return None;
    }
    let mut path = directory.to_vec();
    path.push(b'/');
    path.extend(program.to_bytes());
    CString::new(path).ok()
}

fn exec_one(path: &CStr, command: &[CString], environment: &[CString]) -> Errno {
    match execve(path, command, environment) {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn exists(path: &CStr) -> bool {
    access(path, AccessFlags::F_OK).is_ok()
}

fn refusal(program: &CStr, path: &CStr, error: Errno) -> Failure {
    let shown = Path::new(OsStr::from_bytes(path.to_bytes())).display();
    let name = program.to_string_lossy();
    let cannot = |why: String| Failure::new(exit::NOT_EXECUTABLE, why);
    match error {
        Errno::ENOENT if exists(path) => cannot(format!(
            "{shown}: its interpreter (the `#!` line of a script, the loader of a program) does not exist in the sandbox"
        )),
        Errno::ENOENT | Errno::ENOTDIR => Failure::new(exit::NOT_FOUND, format!("{name}: not found")),
        Errno::EACCES => cannot(format!(
            "{shown}: permission denied; it or its interpreter is not executable for the workload's user, or no path of \
             filesystem_policy grants it"
        )),
        Errno::ENOEXEC => cannot(format!(
            "{shown}: not a program this machine runs; a script needs an interpreter line, such as `#!/bin/sh`"
        )),
        Errno::ETXTBSY => cannot(format!("{shown}: still open for writing; close it first")),
        Errno::E2BIG => cannot(format!("{shown}: arguments and environment together are too long")),
        other => cannot(format!("{shown}: {other}")),
    }
}
