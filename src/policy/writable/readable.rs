//! Could the workload read a secret of the supervisor's? Judged by the same guards: identity and Landlock together, and
//! where something cannot be told, it could.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::mounts::Mounts;
use super::{Opened, WorkloadWrites, acl};

/// The workload could read a file that is the supervisor's alone.
#[derive(Debug, thiserror::Error)]
pub enum Readable {
    /// It could.
    #[error(
        "the workload (uid {uid}) could read the secret in {}; {}move it out of the paths that the policy grants", file.display(),
        if *shares { "the supervisor is the same user and must read it, so that Landlock alone can keep it: " } else { "give the file to another user with mode 0400, or " }
    )]
    ByWorkload {
        /// The file.
        file: PathBuf,
        /// The workload's user.
        uid: u32,
        /// Whether that is the supervisor's as well.
        shares: bool,
    },
    /// It cannot be told.
    #[error("whether the workload could read the secret in {} cannot be told: {source}", file.display())]
    Unknown {
        /// The file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Makes sure that the workload, which Landlock lets read below `granted` (everywhere where it is `None`), cannot read
/// `file`. That a directory on the way may be closed to it does not count: directories are opened for other reasons.
///
/// # Errors
///
/// It could, or that cannot be told.
pub fn refuse_readable(file: &Path, who: &WorkloadWrites, granted: Option<&[PathBuf]>) -> Result<(), Readable> {
    let judged = || {
        let real = std::fs::canonicalize(file)?;
        let of = std::fs::metadata(&real)?;
        // An owner can always chmod(2).
        if of.uid() != who.uid && !acl::allows(who, &real, &of, 0o4) {
            return Ok(false);
        }
        let Some(granted) = granted else { return Ok(true) };
        // Another hard link may lie in what is granted.
        if of.nlink() > 1 {
            return Ok(true);
        }
        let opened = Opened::of(granted);
        Ok(Mounts::read()?.ways(&real)?.all.iter().any(|way| opened.covers(way)))
    };
    match judged() {
        Ok(false) => Ok(()),
        Ok(true) => Err(Readable::ByWorkload {
            file: file.to_owned(),
            uid: who.uid,
            shares: nix::unistd::geteuid().as_raw() == who.uid,
        }),
        Err(source) => Err(Readable::Unknown { file: file.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    const WORKLOAD: u32 = 54_321;

    fn who() -> WorkloadWrites {
        WorkloadWrites { uid: WORKLOAD, gid: WORKLOAD, groups: vec![WORKLOAD + 1], landlock_read_write: None }
    }

    #[test]
    fn a_secret_is_kept_by_its_mode_or_by_landlock() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        for name in ["granted", "kept"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let granted = vec![at("granted")];
        let reads = |file: &str, granted| refuse_readable(&at(file), &who(), granted).is_err();
        for (mode, owner, group, by_identity) in [
            (0o400, 0, 0, false),
            (0o640, 0, 0, false),
            (0o644, 0, 0, true),
            (0o640, 0, WORKLOAD, true),
            (0o640, 0, WORKLOAD + 1, true),
            (0o000, WORKLOAD, 0, true),
        ] {
            for file in ["granted/secret", "kept/secret"] {
                std::fs::write(at(file), "user:password").unwrap();
                chown(at(file), Some(owner), Some(group)).unwrap();
                std::fs::set_permissions(at(file), Permissions::from_mode(mode)).unwrap();
            }
            assert_eq!(reads("kept/secret", None), by_identity, "{mode:o} {owner} {group}");
            assert_eq!(reads("granted/secret", Some(granted.as_slice())), by_identity, "{mode:o} {owner} {group}");
            assert!(!reads("kept/secret", Some(granted.as_slice())), "{mode:o} {owner} {group}");
        }
        // Links lead to what they lead to.
        symlink(at("kept/secret"), at("granted/link")).unwrap();
        symlink(at("granted/secret"), at("kept/link")).unwrap();
        assert!(!reads("granted/link", Some(granted.as_slice())) && reads("kept/link", Some(granted.as_slice())));
        std::fs::hard_link(at("kept/secret"), at("granted/hard")).unwrap();
        assert!(reads("kept/secret", Some(granted.as_slice())));
        assert!(reads("missing", None));
    }
}
