//! The plugin's program on the node: a copy of this executable, under the name that configurations call.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::chain::{self, ChainError, PLUGIN_TYPE};
use crate::volume::sideload::{self, SideloadError};

/// Bytes compared at a time.
const CHUNK: usize = 64 * 1024;

/// What tells a file that has not been touched since: device, inode, size, mode, and the time that nobody can set (ctime).
type Fingerprint = (u64, u64, u64, u32, i64, i64);

/// The program.
#[derive(Debug)]
pub struct Program {
    path: PathBuf,
    /// As it was when it was last known to be right.
    known: Option<Fingerprint>,
}

impl Program {
    /// In this directory of the node's plugins.
    #[must_use]
    pub fn below(directory: &Path) -> Self {
        Self { path: directory.join(PLUGIN_TYPE), known: None }
    }

    /// Where it lies.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is there, whole, executable and of this version. One that was looked at before and has not been touched
    /// since is not read again.
    pub fn is_installed(&mut self) -> bool {
        let Some(found) = fingerprint(&self.path) else { return false };
        if self.known == Some(found) {
            return true;
        }
        let right = found.3 & 0o111 == 0o111 && is_this_executable(&self.path).unwrap_or(false);
        self.known = right.then_some(found);
        right
    }

    /// Puts it there, in the place of another version, which may be running.
    ///
    /// # Errors
    /// [`SideloadError`].
    pub fn install(&mut self) -> Result<(), SideloadError> {
        sideload::copy_to(&self.path)?;
        self.known = fingerprint(&self.path);
        Ok(())
    }

    /// Removes it, unless a configuration in one of these directories still calls it: a runtime that does not find a plugin
    /// starts no pod at all. What does is returned.
    ///
    /// # Errors
    /// A directory cannot be read; the program stays.
    pub fn remove(&mut self, directories: &BTreeSet<PathBuf>) -> Result<Vec<PathBuf>, ChainError> {
        let mut naming = Vec::new();
        for directory in directories {
            naming.extend(chain::names_plugin(directory, PLUGIN_TYPE)?);
        }
        if naming.is_empty() {
            self.known = None;
            // One that is gone already is as good.
            let _ = fs::remove_file(&self.path);
        }
        Ok(naming)
    }
}

fn fingerprint(path: &Path) -> Option<Fingerprint> {
    let status = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((status.dev(), status.ino(), status.len(), status.mode(), status.ctime(), status.ctime_nsec()))
}

fn is_this_executable(path: &Path) -> io::Result<bool> {
    let (mut own, mut other) = (File::open("/proc/self/exe")?, File::open(path)?);
    if own.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut ours, mut theirs) = (vec![0; CHUNK], vec![0; CHUNK]);
    loop {
        let length = own.read(&mut ours)?;
        if length == 0 {
            return Ok(true);
        }
        other.read_exact(&mut theirs[..length])?;
        if ours[..length] != theirs[..length] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_was_put_there_is_known_and_what_was_done_to_it_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let mut program = Program::below(directory.path());
        assert!(!program.is_installed());
        program.install().unwrap();
        assert!(program.is_installed() && Program::below(directory.path()).is_installed());
        let path = program.path().to_owned();
        let damages: [&dyn Fn(); 4] = [
            &|| fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap(),
            &|| fs::write(&path, "#!/bin/true").unwrap(),
            &|| fs::remove_file(&path).unwrap(),
            &|| {
                fs::remove_file(&path).unwrap();
                std::os::unix::fs::symlink("/bin/true", &path).unwrap();
            },
        ];
        for (index, damage) in damages.iter().enumerate() {
            damage();
            assert!(!program.is_installed(), "damage {index}");
            if index == 3 {
                // What somebody has put there on purpose is not replaced.
                assert!(program.install().is_err());
            } else {
                program.install().unwrap();
                assert!(program.is_installed(), "damage {index}");
            }
        }
    }

    #[test]
    fn it_stays_while_a_configuration_names_it() {
        let directory = tempfile::tempdir().unwrap();
        let (bin, configurations) = (directory.path().join("bin"), directory.path().join("net.d"));
        fs::create_dir(&configurations).unwrap();
        let mut program = Program::below(&bin);
        program.install().unwrap();
        let list = configurations.join("10-a.conflist");
        fs::write(&list, r#"{"plugins":[{"type":"openshell-cni"}]}"#).unwrap();
        assert_eq!(program.remove(&BTreeSet::from([configurations.clone()])).unwrap(), std::slice::from_ref(&list));
        assert!(program.is_installed());
        fs::remove_file(list).unwrap();
        assert!(program.remove(&BTreeSet::from([configurations.clone()])).unwrap().is_empty());
        assert!(!program.is_installed());
    }
}
