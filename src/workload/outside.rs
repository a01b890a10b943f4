//! A program that is not found inside, looked for where the supervisor is: what a sandbox covers is not gone.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::policy::Filesystem;

/// Granted by every policy, and yet a workload may have one of its own, in which nothing of the machine's is.
const TMP: &str = "/tmp";

/// What to do about `program`, which was started in `workdir` under a policy with these paths and not found; nothing where it is
/// not here either.
#[must_use]
pub fn advice(program: &CStr, workdir: Option<&Path>, filesystem: &Filesystem) -> Option<String> {
    let program = Path::new(OsStr::from_bytes(program.to_bytes()));
    let by_path = program.components().count() > 1;
    let here: PathBuf = if by_path {
        workdir.unwrap_or(Path::new("/")).join(program).components().collect()
    } else {
        let search = std::env::var_os("PATH")?;
        let mut candidates = std::env::split_paths(&search).map(|directory| directory.join(program));
        candidates.find(|candidate| candidate.is_absolute() && candidate.is_file())?
    };
    let real = here.canonicalize().ok().filter(|real| real.is_file())?;
    let granted = filesystem.with_baseline(workdir);
    let covered = |path: &Path| {
        let mut grants = granted.read_only.iter().chain(&granted.read_write);
        !grants.any(|grant| path.starts_with(grant) && grant != Path::new(TMP))
    };
    // Where it is a link, what it leads to has to be seen as well.
    let mut closed: Vec<&Path> =
        [&here, &real].into_iter().filter(|path| covered(path)).filter_map(|path| path.parent()).collect();
    closed.dedup();
    let Some((first, more)) = closed.split_first() else {
        return (!by_path).then(|| format!("here it is {}: name it by that path", here.display()));
    };
    let others: String = more.iter().map(|directory| format!(" and {}, where it leads", directory.display())).collect();
    let name = if by_path { "" } else { ", and name it by that path" };
    Some(format!(
        "here {} exists, and the sandbox covers it: grant {}{others} by `run --read` or under \
         filesystem_policy.read_only{name}",
        here.display(),
        first.display()
    ))
}
