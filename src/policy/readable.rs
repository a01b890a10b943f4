//! Could the workload read a secret of the supervisor's?
//!
//! It could if identity lets it open the file (mode bits, ACLs, ownership) and pass the directories above, and Landlock
//! opens the file or a tree that it lies in. The last is asked of every directory on the way to the file by its inode,
//! since a bind mount of a granted directory is granted as well. A file with another hard link may be reached through
//! directories that nobody knows here, so these protect it no more. Where something cannot be told, it could.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::writable::{Opened, WorkloadWrites, allows};

/// The workload could read what it must not.
#[derive(Debug, thiserror::Error)]
pub enum Readable {
    /// It could.
    #[error(
        "the workload (uid {uid}) could read {}, and sign for any host with it; take the right away (chmod 0400, another \
         owner), or move the file out of the paths that the policy grants", file.display()
    )]
    ByWorkload {
        /// The secret's file.
        file: PathBuf,
        /// The workload's user.
        uid: u32,
    },
    /// It cannot be told.
    #[error("whether the workload could read {} cannot be told: {source}", file.display())]
    Unknown {
        /// The secret's file.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Makes sure that `file` cannot be read by the workload, for which Landlock opens `granted`; `None` where it is not
/// enforced.
///
/// # Errors
/// [`Readable`].
pub fn refuse_readable(file: &Path, who: &WorkloadWrites, granted: Option<&[PathBuf]>) -> Result<(), Readable> {
    let unknown = |source| Readable::Unknown { file: file.to_owned(), source };
    let real = std::fs::canonicalize(file).map_err(unknown)?;
    let status = std::fs::metadata(&real).map_err(unknown)?;
    // An owner can give the right back to itself, which Landlock does not cover (chmod(2)).
    let opens = status.uid() == who.uid || allows(who, &real, &status, 0o4);
    let linked = status.nlink() > 1;
    let mut passes = true;
    for directory in real.ancestors().skip(1) {
        let status = std::fs::metadata(directory).map_err(unknown)?;
        passes &= status.uid() == who.uid || allows(who, directory, &status, 0o1);
    }
    let granted = granted.is_none_or(|granted| Opened::of(granted).covers(&real));
    if opens && (linked || passes && granted) {
        return Err(Readable::ByWorkload { file: file.to_owned(), uid: who.uid });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const WORKLOAD: u32 = 54_321;

    #[test]
    fn identity_directories_and_landlock_each_protect_a_secret() {
        let directory = tempfile::tempdir().unwrap();
        let outer = directory.path().join("outer");
        fs::create_dir(&outer).unwrap();
        let secret = outer.join("key.pem");
        fs::write(&secret, "secret").unwrap();
        let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
        mode(directory.path(), 0o755);
        let who = |uid| WorkloadWrites { uid, gid: WORKLOAD, groups: vec![], landlock_read_write: None };
        let refused = |uid, granted: Option<&[PathBuf]>| refuse_readable(&secret, &who(uid), granted).is_err();
        let owner = fs::metadata(&secret).unwrap().uid();
        // The control: nothing protects it.
        mode(&outer, 0o755);
        mode(&secret, 0o644);
        assert!(refused(WORKLOAD, None));
        mode(&secret, 0o400);
        assert!(!refused(WORKLOAD, None) && refused(owner, None));
        mode(&secret, 0o644);
        mode(&outer, 0o700);
        assert!(!refused(WORKLOAD, None));
        mode(&outer, 0o755);
        let granted = |path: &Path| refused(WORKLOAD, Some(&[path.to_owned()]));
        assert!(granted(directory.path()) && granted(&outer) && granted(&secret));
        assert!(!granted(Path::new("/usr")) && !refused(WORKLOAD, Some(&[])));
        // Another name for it, past directory and Landlock.
        mode(&outer, 0o700);
        fs::hard_link(&secret, directory.path().join("other")).unwrap();
        assert!(refused(WORKLOAD, Some(&[])));
        assert!(matches!(refuse_readable(&outer.join("missing"), &who(WORKLOAD), None), Err(Readable::Unknown { .. })));
    }
}
