//! What carries files into the sandbox and out of it, in the place of a program of the image: a guest that the sandbox's init
//! forks, confined exactly like the workload. Nobody starts it by name.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, LineWriter, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::sys::prctl;

use crate::access::carry::Carrying;
use crate::access::files::streams::Ending;
use crate::access::files::{Names, Passed, Tell, scp, sftp, tar};
use crate::confine::accounts::{Accounts, Key};
use crate::contract::exit;
use crate::event::say;

/// Before the paths that the other side is told: its own have nothing.
const SIDE: &str = "sandbox:";

/// Does what the words ask for, with the standard streams; the exit code. What is done with each file is told by a line of
/// JSON on `report`, for the supervisor's record.
pub fn run(words: &[CString], environment: &[CString], report: OwnedFd) -> u8 {
    // It is a copy of the init, and `ps` would show it as one.
    let _ = prctl::set_name(c"openshell-files");
    let mut report = LineWriter::new(File::from(report));
    let mut tell = |passed: Passed| {
        // Who is not heard still carries.
        let _ = serde_json::to_writer(&mut report, &passed);
        let _ = report.write_all(b"\n");
    };
    let what = Carrying::read(words).ok_or_else(|| "no such transfer".to_owned());
    match what.and_then(|what| carry(&what, environment, &mut tell)) {
        Ok(true) => 0,
        Ok(false) => exit::INCOMPLETE,
        Err(error) => {
            say!("openshell-supervisor: in the sandbox: {error}");
            exit::INCOMPLETE
        }
    }
}

/// Whether everything went through.
fn carry(what: &Carrying, environment: &[CString], tell: Tell<'_>) -> Result<bool, String> {
    let failed = |error: io::Error| error.to_string();
    let ending = Ending::hold().map_err(failed)?;
    let input = ending.stream(io::stdin()).map_err(failed)?;
    let output = ending.stream(io::stdout()).map_err(failed)?;
    let names = Inside::of(environment);
    match what {
        Carrying::Sftp => sftp::serve(input, output, &names, tell).map(|()| true).map_err(|error| error.to_string()),
        Carrying::Scp(line) => {
            let command = scp::parse(line).ok_or("not the command of a copy")?;
            scp::serve(&command, input, output, &names, tell).map_err(|error| error.to_string())
        }
        Carrying::In(directory) => {
            let directory = names.expand(directory);
            let mut report = tar::Placed::new(io::stderr(), SIDE, &directory);
            let outcome = match std::fs::create_dir_all(&directory) {
                Ok(()) => tar::extract(input, &directory, &tar::Wanted::Everything, &mut report)
                    .map_err(|error| error.to_string()),
                Err(error) => Err(format!("{}: {error}", directory.display())),
            };
            let written = outcome.as_ref().map_or(0, |summary| summary.bytes);
            told(Passed { written, ..passed(&directory, &outcome) }, outcome, tell)
        }
        Carrying::Out(path) => {
            let path = names.expand(path);
            // As a name beside others, so that what arrives has it.
            let (directory, name) = match (path.parent(), path.file_name()) {
                (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), PathBuf::from(name)),
                (Some(parent), Some(name)) => (parent, PathBuf::from(name)),
                _ => (path.as_path(), PathBuf::from(".")),
            };
            let outcome = tar::create(output, directory, &[name], &mut tar::Placed::new(io::stderr(), SIDE, directory))
                .map_err(|error| error.to_string());
            let read = outcome.as_ref().map_or(0, |summary| summary.bytes);
            told(Passed { read, ..passed(&path, &outcome) }, outcome, tell)
        }
    }
}

/// What is recorded of a stream of many files: where they are, and whether some are missing.
fn passed(path: &Path, outcome: &Result<tar::Summary, String>) -> Passed {
    let failed = match outcome {
        Ok(summary) => (summary.failed > 0).then(|| summary.to_string()),
        Err(error) => Some(error.clone()),
    };
    Passed { path: path.to_string_lossy().into_owned(), failed, ..Passed::default() }
}

fn told(passed: Passed, outcome: Result<tar::Summary, String>, tell: Tell<'_>) -> Result<bool, String> {
    tell(passed);
    outcome.map(|summary| summary.failed == 0)
}

/// The sandbox's accounts, as far as there are any.
struct Inside {
    accounts: Accounts,
    home: Option<PathBuf>,
}

impl Inside {
    fn of(environment: &[CString]) -> Self {
        let home = environment.iter().find_map(|variable| variable.as_bytes().strip_prefix(b"HOME="));
        Self {
            // An image's files that make no sense name nobody.
            accounts: Accounts::read(Path::new("/etc")).unwrap_or_default(),
            home: home.map(|home| OsString::from_vec(home.to_vec()).into()),
        }
    }

    /// `~` and what is below it; everything else as it is.
    fn expand(&self, path: &Path) -> PathBuf {
        match (path.strip_prefix("~"), &self.home) {
            (Ok(rest), Some(home)) => home.join(rest),
            _ => path.to_owned(),
        }
    }
}

impl Names for Inside {
    fn user(&self, uid: u32) -> Option<String> {
        self.accounts.user(Key::Id(uid)).ok().flatten().map(|user| user.name)
    }

    fn group(&self, gid: u32) -> Option<String> {
        self.accounts.group(Key::Id(gid)).ok().flatten().map(|group| group.name)
    }

    fn home(&self, user: Option<&OsStr>) -> Option<PathBuf> {
        match user {
            None => self.home.clone(),
            Some(user) => self.accounts.user(Key::Name(user.to_str()?)).ok().flatten().map(|user| user.home.into()),
        }
    }
}
