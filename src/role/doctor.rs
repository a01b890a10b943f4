//! `doctor`: asks the kernel, then launches itself as the workload and tries to get out.

use std::path::Path;
use std::process::{Command, Stdio};

use super::sandbox::Failure;
use crate::cli;
use crate::contract::HOST_ALIAS;
use crate::doctor::bait::Laid;
use crate::doctor::escape::{self, Attempt, Bait};
use crate::doctor::{Check, Status, probe};
use crate::event::show;

/// The argument by which the executable, as the workload, knows what it is there for.
const INSIDE: &str = "--from-inside";

/// Where bait is laid: a directory that survives in the sandbox's view, is open to all, and is granted to none. `/tmp` is
/// granted by every policy.
const BAIT_PARENT: &str = "/var/tmp";

/// Tells, and proves; exit code 1 when anything that should hold does not.
pub fn run(arguments: cli::Doctor) -> u8 {
    if let Some(bait) = &arguments.from_inside {
        return from_inside(bait);
    }
    let mut checks = probe::kernel(crate::sys::capability::has_sys_admin());
    match prove() {
        Ok(attempts) => checks.extend(attempts.into_iter().map(judge)),
        Err(failure) => {
            checks.push(Check::failed(
                "a sandbox",
                Status::Broken,
                failure.to_string(),
                Some("mend what this says, and what is broken above".to_owned()),
            ));
        }
    }
    let broken = checks.iter().any(|check| check.status == Status::Broken);
    if arguments.json {
        show!("{}", serde_json::json!({ "ok": !broken, "checks": checks }));
    } else {
        checks.iter().for_each(print);
    }
    u8::from(broken)
}

/// As the workload: tries everything and says what became of it.
fn from_inside(bait: &str) -> u8 {
    let Ok(bait) = serde_json::from_str::<Bait>(bait) else { return crate::contract::exit::USAGE };
    match serde_json::to_string(&escape::attempt_all(&bait)) {
        Ok(attempts) => {
            show!("{attempts}");
            0
        }
        Err(_) => 1,
    }
}

/// Lays the bait and runs this executable in a sandbox of the usual kind.
fn prove() -> Result<Vec<Attempt>, Failure> {
    let own = std::env::current_exe().map_err(|error| Failure::setup(format!("this executable: {error}")))?;
    let policy = |port: u16| {
        let own = quoted(&own);
        format!(
            "version: 1\nfilesystem_policy: {{include_workdir: false, read_only: [{own}]}}\nnetwork_policies: {{doctor: \
             {{endpoints: [{{host: {HOST_ALIAS}, port: {port}}}], binaries: [{{path: {own}}}]}}}}\n"
        )
    };
    let laid = Laid::under(Path::new(BAIT_PARENT), policy).map_err(Failure::setup)?;
    let bait = serde_json::to_string(laid.bait()).map_err(Failure::setup)?;
    let output = Command::new("/proc/self/exe")
        .args(["run", "--log-level", "error", "--policy"])
        .arg(&laid.bait().policy)
        .arg("--")
        .arg(&own)
        .args(["doctor", INSIDE])
        .arg(bait)
        // Wherever doctor was called is no part of the proof, and may be a directory that no sandbox can show.
        .current_dir("/")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::setup(format!("starting a sandbox: {error}")))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        Failure::setup(format!("a sandbox cannot be made ({}): {}", output.status, said.trim()))
    })
}

/// A path as a YAML string (JSON's are YAML's).
fn quoted(path: &Path) -> String {
    serde_json::Value::from(path.to_string_lossy().into_owned()).to_string()
}

fn judge(attempt: Attempt) -> Check {
    if attempt.held {
        Check::ok(attempt.promise, attempt.answer)
    } else {
        let remedy =
            "this sandbox does not do what it promises: do not rely on it, and report what `doctor --json` says";
        Check::failed(attempt.promise, Status::Broken, attempt.answer, Some(remedy.to_owned()))
    }
}

fn print(check: &Check) {
    let mark = match check.status {
        Status::Ok => "ok     ",
        Status::Missing => "missing",
        Status::Broken => "BROKEN ",
    };
    show!("{mark}  {}: {}", check.name, check.detail);
    if let Some(remedy) = &check.remedy {
        show!("         → {remedy}");
    }
}
