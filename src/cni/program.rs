//! The plugin's program on the node: a copy of this executable, under the name that configurations call.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};

use super::chain::{self, ChainError, PLUGIN_TYPE};
use crate::volume::sideload::{self, SideloadError};

/// Bytes compared at a time.
const CHUNK: usize = 64 * 1024;

/// Says of an executable that it is one of ours, whatever its version. (That this stands here puts it there.)
const SIGNATURE: &[u8] = b"openshell-supervisor installs this as the plugin openshell-cni";

/// How every executable begins (elf(5)).
const ELF: &[u8] = b"\x7fELF";

/// What tells a file that has not been touched since: device, inode, size, mode, and the time that nobody can set (ctime).
type Fingerprint = (u64, u64, u64, u32, i64, i64);

/// Why the program is not there.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The runtime could not run it.
    #[error(
        "{} is mounted noexec, so the container runtime could not run the plugin and would start no pod: mount it with exec on \
         the node, or name the directory of plugins that the runtime has by --bin-dir", .0.display()
    )]
    NoExec(PathBuf),
    /// It could not be copied.
    #[error(transparent)]
    Copy(SideloadError),
}

/// What is left of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// All of it, for these configurations name it.
    Named(Vec<PathBuf>),
    /// What lies at its path is somebody else's.
    Foreign,
}

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
        let Some(found) = fingerprint(&self.path).filter(|_| !self.is_noexec()) else { return false };
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
    /// [`ProgramError`].
    pub fn install(&mut self) -> Result<(), ProgramError> {
        sideload::copy_to(&self.path).map_err(|error| match error {
            SideloadError::NoExec(directory) => ProgramError::NoExec(directory),
            error => ProgramError::Copy(error),
        })?;
        self.known = fingerprint(&self.path);
        Ok(())
    }

    /// Removes it, unless a configuration in one of these directories still calls it: a runtime that does not find a plugin
    /// starts no pod at all. What somebody else has put in its place is let be.
    ///
    /// # Errors
    /// A directory cannot be read; the program stays.
    pub fn remove(&mut self, directories: &BTreeSet<PathBuf>) -> Result<Left, ChainError> {
        let mut naming = Vec::new();
        for directory in directories {
            naming.extend(chain::names_plugin(directory, PLUGIN_TYPE)?);
        }
        if !naming.is_empty() {
            return Ok(Left::Named(naming));
        }
        self.known = None;
        match is_of_ours(&self.path) {
            Ok(false) => return Ok(Left::Foreign),
            // One that is gone already is as good as removed; one that cannot be read is not known to be ours.
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Ok(Left::Foreign),
            _ => {}
        }
        // Best effort: a program that nothing names harms nobody.
        let _ = fs::remove_file(&self.path);
        Ok(Left::Nothing)
    }

    /// Whether nothing can be executed where it lies.
    fn is_noexec(&self) -> bool {
        let directory = self.path.parent().unwrap_or(Path::new("/"));
        statvfs(directory).is_ok_and(|mount| mount.flags().contains(FsFlags::ST_NOEXEC))
    }
}

/// Whether a file is a version of this executable.
fn is_of_ours(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut file = File::open(path)?;
    let mut begin = [0; ELF.len()];
    if file.read_exact(&mut begin).is_err() || begin != ELF {
        return Ok(false);
    }
    let finder = memchr::memmem::Finder::new(SIGNATURE);
    // What may be the beginning of it stays in front of the next piece.
    let (mut piece, mut kept) = (vec![0; CHUNK], 0);
    loop {
        let read = file.read(&mut piece[kept..])?;
        if finder.find(&piece[..kept + read]).is_some() {
            return Ok(true);
        }
        if read == 0 {
            return Ok(false);
        }
        let next = (kept + read).min(SIGNATURE.len() - 1);
        piece.copy_within(kept + read - next..kept + read, 0);
        kept = next;
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
        let directories = BTreeSet::from([configurations]);
        assert_eq!(program.remove(&directories).unwrap(), Left::Named(vec![list.clone()]));
        assert!(program.is_installed());
        fs::remove_file(list).unwrap();
        assert_eq!(program.remove(&directories).unwrap(), Left::Nothing);
        assert!(!program.path().exists());
        // Once more: it is gone already.
        assert_eq!(program.remove(&directories).unwrap(), Left::Nothing);
    }

    #[test]
    fn only_a_version_of_ours_is_taken_away() {
        let directory = tempfile::tempdir().unwrap();
        let mut program = Program::below(directory.path());
        let mut remove = || program.remove(&BTreeSet::new()).unwrap();
        let path = directory.path().join(PLUGIN_TYPE);
        // Another version: what it has in it is somewhere else, and here across two of the pieces that are read.
        for distance in [0, CHUNK - ELF.len() - 7, CHUNK, 3 * CHUNK - 40] {
            fs::write(&path, [ELF, &vec![0; distance], SIGNATURE, b"more"].concat()).unwrap();
            assert_eq!((remove(), path.exists()), (Left::Nothing, false), "{distance}");
        }
        let half = &SIGNATURE[..SIGNATURE.len() - 1];
        for foreign in [
            b"".to_vec(),
            SIGNATURE.to_vec(),
            [ELF, half, &vec![0; 2 * CHUNK]].concat(),
            fs::read("/bin/true").unwrap(),
        ] {
            fs::write(&path, &foreign).unwrap();
            assert_eq!(remove(), Left::Foreign);
            assert_eq!(fs::read(&path).unwrap(), foreign);
        }
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", &path).unwrap();
        assert_eq!((remove(), path.is_symlink()), (Left::Foreign, true));
    }
}
