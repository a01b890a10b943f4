//! Where the access server listens.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Who may connect to a socket that is a file: its owner. Whoever else could is asked for at the door all the same.
const SOCKET_MODE: u32 = 0o600;

/// The socket's directory, where we make it.
const DIRECTORY_MODE: u32 = 0o700;

/// Longest address (`sun_path`, unix(7)), with the byte that marks an abstract one or ends a path.
const ADDRESS_LIMIT: usize = 107;

/// A Unix socket's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file.
    Path(PathBuf),
    /// A name in the network namespace's abstract space, for who may write nowhere.
    Abstract(String),
}

/// A place that is none, or cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Not an address.
    #[error("{0:?}: expected an absolute path, or @NAME, of at most {ADDRESS_LIMIT} bytes")]
    Malformed(String),
    /// Something else is there.
    #[error("{}: there is something that is no socket; name another path, or remove it", .0.display())]
    Occupied(PathBuf),
    /// Somebody listens there.
    #[error("{0}: another supervisor listens there; name another place with --ssh-socket-path")]
    Taken(Place),
    /// Nobody listens.
    #[error("{0}: no sandbox listens there; start one with --ssh-socket-path {0}, or name the socket of one that runs")]
    Nobody(Place),
    /// Somebody else's.
    #[error("{place}: permission denied: it belongs to uid {owner}, who alone may connect; call this as that user")]
    Others {
        /// Where.
        place: Place,
        /// Whose it is, or whose the directory is that keeps it from sight.
        owner: u32,
    },
    /// A call failed.
    #[error(
        "{place}: {call}: {source}; --ssh-socket-path names where people are let in: a place that the supervisor may write, or @NAME"
    )]
    Call {
        /// Where.
        place: Place,
        /// The call.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let malformed = || PlaceError::Malformed(text.to_owned());
        if text.len() > ADDRESS_LIMIT || text.contains('\0') {
            return Err(malformed());
        }
        match text.strip_prefix('@') {
            Some("") => Err(malformed()),
            Some(name) => Ok(Self::Abstract(name.to_owned())),
            None if Path::new(text).is_absolute() => Ok(Self::Path(text.into())),
            None => Err(malformed()),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Abstract(name) => write!(f, "@{name}"),
        }
    }
}

impl Place {
    fn address(&self) -> io::Result<SocketAddr> {
        match self {
            Self::Path(path) => SocketAddr::from_pathname(path),
            Self::Abstract(name) => SocketAddr::from_abstract_name(name),
        }
    }

    /// Connects to whoever listens.
    ///
    /// # Errors
    /// [`PlaceError`]: nobody does, or it is not ours to connect to.
    pub fn connect(&self) -> Result<UnixStream, PlaceError> {
        let address = self.address().map_err(|source| self.failed("address", source))?;
        UnixStream::connect_addr(&address).map_err(|source| match (source.kind(), self.owner()) {
            (io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused, _) => PlaceError::Nobody(self.clone()),
            (io::ErrorKind::PermissionDenied, Some(owner)) => PlaceError::Others { place: self.clone(), owner },
            _ => self.failed("connect", source),
        })
    }

    /// Whose the socket is, or the first directory above it that can be looked at.
    fn owner(&self) -> Option<u32> {
        let Self::Path(path) = self else { return None };
        path.ancestors().find_map(|path| fs::symlink_metadata(path).ok()).map(|of| of.uid())
    }

    /// Listens, in the place of a socket that a predecessor left behind.
    ///
    /// # Errors
    /// [`PlaceError`].
    pub fn listen(&self) -> Result<UnixListener, PlaceError> {
        if let Self::Path(path) = self {
            self.clear(path)?;
        }
        let address = self.address().map_err(|source| self.failed("address", source))?;
        let listener = UnixListener::bind_addr(&address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => PlaceError::Taken(self.clone()),
            _ => self.failed("bind", source),
        })?;
        if let Self::Path(path) = self {
            fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))
                .map_err(|source| self.failed("chmod", source))?;
        }
        listener.set_nonblocking(true).map_err(|source| self.failed("fcntl", source))?;
        Ok(listener)
    }

    fn clear(&self, path: &Path) -> Result<(), PlaceError> {
        let directory = path.parent().unwrap_or(Path::new("/"));
        if !directory.is_dir() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(DIRECTORY_MODE)
                .create(directory)
                .map_err(|source| self.failed("mkdir of its directory", source))?;
        }
        match fs::symlink_metadata(path) {
            Ok(status) if status.file_type().is_socket() => {
                if self.connect().is_ok() {
                    return Err(PlaceError::Taken(self.clone()));
                }
                fs::remove_file(path).map_err(|source| self.failed("unlink", source))
            }
            Ok(_) => Err(PlaceError::Occupied(path.to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(self.failed("lstat", source)),
        }
    }

    /// Takes away what [`Place::listen`] has put there.
    pub fn leave(&self) {
        if let Self::Path(path) = self {
            let _ = fs::remove_file(path);
        }
    }

    fn failed(&self, call: &'static str, source: io::Error) -> PlaceError {
        PlaceError::Call { place: self.clone(), call, source }
    }
}

impl From<Place> for OsString {
    fn from(place: Place) -> Self {
        place.to_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read() {
        assert_eq!("/run/x.sock".parse::<Place>().unwrap(), Place::Path("/run/x.sock".into()));
        assert_eq!("@x".parse::<Place>().unwrap(), Place::Abstract("x".into()));
        for bad in ["", "@", "x.sock", "./x", "@a\0b", &format!("/{}", "a".repeat(ADDRESS_LIMIT))] {
            assert!(bad.parse::<Place>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_socket_left_behind_is_replaced_and_nothing_else_is() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::Path(directory.path().join("below/s"));
        let first = place.listen().unwrap();
        assert!(matches!(place.listen().unwrap_err(), PlaceError::Taken(_)));
        drop(first);
        let second = place.listen().unwrap();
        let mode = fs::metadata(directory.path().join("below/s")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOCKET_MODE);
        drop(second);
        place.leave();
        fs::write(directory.path().join("below/s"), "").unwrap();
        assert!(matches!(place.listen().unwrap_err(), PlaceError::Occupied(_)));
        let name = Place::Abstract(format!("openshell-test-{}", std::process::id()));
        let _held = name.listen().unwrap();
        assert!(matches!(name.listen().unwrap_err(), PlaceError::Taken(_)));
    }
}
