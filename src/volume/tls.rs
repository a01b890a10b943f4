//! The proxy's copy of the client TLS material, which the gateway knows it by. The Secret's own files are for the init
//! container alone: what is mounted for a whole pod by its group could be read by the workload.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::directory::{self, Held};
use crate::contract::{CLIENT_TLS_FILES, Ids, PROXY_CLIENT_TLS};

/// Where the new copy grows until it is whole.
const UNFINISHED: &str = ".client.new";

/// A chain of certificates has some ten kilobytes; more than this is no PEM file.
const FILE_LIMIT: u64 = 1024 * 1024;

/// Modes of the copy: its owner alone.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o400;

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Some are there and some are not.
    #[error(
        "{}: {missing} is missing: client TLS takes all of ca.crt, tls.crt and tls.key, or an empty or no directory; \
         complete the Secret", directory.display()
    )]
    Incomplete {
        /// Where.
        directory: PathBuf,
        /// The first that is not there.
        missing: &'static str,
    },
    /// It cannot be read.
    #[error("{}: {source}; expected a file that this container's user may read", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the kernel answered.
        source: io::Error,
    },
    /// It is no key and no certificate.
    #[error("{}: expected a PEM file of at most {FILE_LIMIT} bytes, found {found}", path.display())]
    Unfit {
        /// Which.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// The copy cannot be made.
    #[error(transparent)]
    Directory(#[from] directory::Error),
}

/// The three files, whole.
pub struct Material(Vec<(&'static str, Vec<u8>)>);

/// Reads the files that a Secret brought; nothing, when it brought none: no directory, or an empty one, as an optional
/// Secret leaves it. Names that begin with two dots are the kubelet's own (`AtomicWriter`), and it may make them alone.
///
/// # Errors
/// Some are missing, or unfit.
pub fn read(directory: &Path) -> Result<Option<Material>, Error> {
    let unreadable = |path: &Path| {
        let path = path.to_owned();
        |source| Error::Unreadable { path, source }
    };
    match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        entries => {
            let is_the_kubelets = |name: &OsStr| name.as_encoded_bytes().starts_with(b"..");
            let mut entries = entries.map_err(unreadable(directory))?;
            if entries.all(|entry| entry.is_ok_and(|entry| is_the_kubelets(&entry.file_name()))) {
                return Ok(None);
            }
        }
    }
    let mut files = Vec::with_capacity(CLIENT_TLS_FILES.len());
    for name in CLIENT_TLS_FILES {
        let path = directory.join(name);
        // A Secret's files are links into its current version: followed.
        let status = match std::fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Incomplete { directory: directory.to_owned(), missing: name });
            }
            status => status.map_err(unreadable(&path))?,
        };
        if !status.is_file() {
            return Err(Error::Unfit { path, found: "no regular file" });
        }
        let mut content = Vec::new();
        File::open(&path)
            .and_then(|file| file.take(FILE_LIMIT + 1).read_to_end(&mut content))
            .map_err(unreadable(&path))?;
        match content.len() as u64 {
            0 => return Err(Error::Unfit { path, found: "nothing" }),
            length if length > FILE_LIMIT => return Err(Error::Unfit { path, found: "more" }),
            _ => files.push((name, content)),
        }
    }
    Ok(Some(Material(files)))
}

/// Puts the copy into `directory` in the place of an earlier one; without material there is none afterwards.
///
/// # Errors
/// The kernel refused a step; a run that succeeds later leaves nothing of this one.
pub fn lay_out(directory: &Held, material: Option<&Material>, owner: Ids) -> Result<(), Error> {
    directory.remove(UNFINISHED, owner.uid)?;
    if let Some(Material(files)) = material {
        let copy = directory.take_below(UNFINISHED, owner.uid)?;
        for (name, content) in files {
            copy.write(name, content, owner, FILE_MODE)?;
        }
        copy.give(owner, DIRECTORY_MODE)?;
    }
    directory.remove(PROXY_CLIENT_TLS, owner.uid)?;
    if material.is_some() {
        directory.rename(UNFINISHED, PROXY_CLIENT_TLS)?;
    }
    Ok(())
}
