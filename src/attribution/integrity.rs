//! What an executable is: its path, and the digest of its bytes as they were when that path was first used.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::stat::fstat;
use sha2::{Digest, Sha256};

use super::Executable;
use super::error::AttributionError;
use super::process::{Fingerprint, Image, Process};

/// Largest executable that is hashed: several times the largest agents and runtimes, and a few seconds of work.
const LARGEST: u64 = 1 << 30;

/// Paths whose first use is remembered. A build that runs more programs of its own than this, each of them asking for
/// the network, is not what a sandbox is for. None is forgotten to make room: forgetting a path would let the workload
/// have another file trusted under it.
const EXECUTABLES: usize = 16 * 1024;

/// Bytes hashed at a time.
const PIECE: usize = 64 * 1024;

/// Attempts to read an executable that the process exchanges meanwhile.
const ATTEMPTS: usize = 3;

/// What the kernel adds to the path of a file that was unlinked.
const DELETED: &str = " (deleted)";

#[derive(Debug, Default)]
pub(super) struct Integrity {
    seen: Mutex<HashMap<Arc<str>, Seen>>,
    /// Held while hashing: ten connections of a new program hash it once.
    hashing: Mutex<()>,
}

#[derive(Debug)]
struct Seen {
    fingerprint: Fingerprint,
    sha256: [u8; 32],
}

/// The path as policy sees it. A file that was unlinked, or never had a name, must match no entry that lists a path:
/// what it shows does not start with a slash.
pub(super) fn name(path: &[u8]) -> Cow<'_, str> {
    let path = String::from_utf8_lossy(path);
    match path.strip_suffix(DELETED) {
        None => path,
        Some(rest) => match rest.strip_prefix("/memfd:") {
            Some(label) => Cow::Owned(format!("memfd:{label}")),
            None => Cow::Owned(format!("deleted:{rest}")),
        },
    }
}

impl Integrity {
    /// The executable, if it is as it was when it was hashed.
    pub(super) fn recall(&self, image: &Image<'_>) -> Option<Executable> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let (path, known) = seen.get_key_value(name(image.path).as_ref())?;
        (known.fingerprint == image.fingerprint).then(|| Executable { path: path.clone(), sha256: known.sha256 })
    }

    /// Hashes what `process` executes and remembers it, or refuses what differs from its first use.
    pub(super) fn learn(&self, process: &Process) -> Result<Executable, AttributionError> {
        let unreadable = |error| AttributionError::reading(process.pid, "the executable", error);
        let _alone = self.hashing.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..ATTEMPTS {
            let (mut before, mut after) = ([0; nix::libc::PATH_MAX as usize], [0; nix::libc::PATH_MAX as usize]);
            let image = process.image(&mut before).map_err(unreadable)?;
            if let Some(executable) = self.recall(&image) {
                return Ok(executable);
            }
            let path = name(image.path);
            if image.fingerprint.size > LARGEST {
                let (path, size) = (path.into_owned(), image.fingerprint.size);
                return Err(AttributionError::ExecutableTooLarge { path, size, limit: LARGEST });
            }
            let mut file = File::from(process.executable().map_err(unreadable)?);
            let sha256 = hash(&mut file).map_err(unreadable)?;
            // The file must be the one whose path was read, and not have changed; and the process must still run it.
            let hashed = Fingerprint::of(&fstat(&file).map_err(|error| unreadable(error.into()))?);
            if hashed == image.fingerprint && process.image(&mut after).map_err(unreadable)? == image {
                return self.remember(&path, image.fingerprint, sha256);
            }
        }
        Err(AttributionError::Unsettled { pid: process.pid })
    }

    fn remember(&self, path: &str, fingerprint: Fingerprint, sha256: [u8; 32]) -> Result<Executable, AttributionError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((path, known)) = seen.get_key_value(path) {
            let path = path.clone();
            // What has no path can match none, and one unlinked file may well differ from the next.
            if known.sha256 != sha256 && path.starts_with('/') {
                return Err(AttributionError::ExecutableChanged {
                    path: path.to_string(),
                    before: hexadecimal(&known.sha256),
                    now: hexadecimal(&sha256),
                });
            }
            seen.insert(path.clone(), Seen { fingerprint, sha256 });
            return Ok(Executable { path, sha256 });
        }
        if seen.len() >= EXECUTABLES {
            // What has no path is remembered for speed only.
            seen.retain(|path, _| path.starts_with('/'));
        }
        if seen.len() >= EXECUTABLES {
            return Err(AttributionError::TooManyExecutables { path: path.to_owned(), limit: EXECUTABLES });
        }
        let path: Arc<str> = path.into();
        seen.insert(path.clone(), Seen { fingerprint, sha256 });
        Ok(Executable { path, sha256 })
    }
}

fn hash(file: &mut File) -> std::io::Result<[u8; 32]> {
    let mut digest = Sha256::new();
    let mut piece = vec![0; PIECE];
    let mut left = LARGEST;
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok(digest.finalize().into());
        }
        // It may grow while it is read.
        left = left.checked_sub(count as u64).ok_or(std::io::ErrorKind::FileTooLarge)?;
        digest.update(&piece[..count]);
    }
}

fn hexadecimal(digest: &[u8]) -> String {
    digest.iter().fold(String::with_capacity(2 * digest.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_path_is_forgotten_and_what_has_none_makes_room() {
        let fingerprint = Fingerprint::of(&nix::sys::stat::stat("/proc/self/exe").unwrap());
        let integrity = Integrity::default();
        for number in 0..EXECUTABLES {
            integrity.remember(&format!("memfd:{number}"), fingerprint, [0; 32]).unwrap();
        }
        integrity.remember("/bin/one", fingerprint, [1; 32]).unwrap();
        for number in 1..EXECUTABLES {
            integrity.remember(&format!("/tmp/{number}"), fingerprint, [0; 32]).unwrap();
        }
        let error = integrity.remember("/tmp/more", fingerprint, [0; 32]).unwrap_err();
        assert!(matches!(error, AttributionError::TooManyExecutables { .. }), "{error}");
        let error = integrity.remember("/bin/one", fingerprint, [2; 32]).unwrap_err();
        assert!(matches!(error, AttributionError::ExecutableChanged { .. }), "{error}");
        integrity.remember("/bin/one", fingerprint, [1; 32]).unwrap();
    }
}
