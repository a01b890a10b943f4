//! Things put outside the sandbox, open to every user, for the inside to try: what is refused in there is refused by
//! the sandbox and by nothing else.

use std::fs::{self, Permissions};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::escape::Bait;

/// The bait while it lies out; dropped, it is taken in again.
#[derive(Debug)]
pub struct Laid {
    directory: PathBuf,
    bait: Bait,
    _sockets: [UnixListener; 2],
    _open: TcpListener,
}

/// Bait that could not be laid, or that even the outside cannot take: a proof by it would prove nothing.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}; doctor needs a directory under {parent:?} that it can write")]
pub struct BaitError {
    what: &'static str,
    parent: PathBuf,
    error: io::Error,
}

impl Laid {
    /// Makes a directory under `parent` with a file, sockets and the policy that `policy` writes for an open port, and
    /// takes each from here first: the control of every refusal inside.
    ///
    /// # Errors
    /// Which piece could not be made or used, and what the kernel said.
    pub fn under(parent: &Path, policy: impl FnOnce(u16) -> String) -> Result<Self, BaitError> {
        let error = |what| move |error| BaitError { what, parent: parent.to_owned(), error };
        let name = format!("openshell-doctor-{}", std::process::id());
        let open = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(error("cannot listen on loopback"))?;
        let open_port = open.local_addr().map_err(error("cannot listen on loopback"))?.port();
        let directory = parent.join(&name);
        fs::DirBuilder::new().mode(0o755).create(&directory).map_err(error("cannot make a directory"))?;
        let bait = Bait {
            file: directory.join("file"),
            policy: directory.join("policy.yaml"),
            socket: directory.join("socket"),
            abstract_socket: name,
            open_port,
        };
        let laid = (|| {
            fs::write(&bait.policy, policy(open_port)).map_err(error("cannot write the policy"))?;
            fs::write(&bait.file, "bait").map_err(error("cannot write the file"))?;
            fs::set_permissions(&bait.file, Permissions::from_mode(0o666))
                .map_err(error("cannot open the file to all"))?;
            let abstract_address =
                SocketAddr::from_abstract_name(&bait.abstract_socket).map_err(error("cannot name a socket"))?;
            let listeners = [
                UnixListener::bind(&bait.socket).map_err(error("cannot listen on a unix socket"))?,
                UnixListener::bind_addr(&abstract_address).map_err(error("cannot listen on an abstract socket"))?,
            ];
            fs::set_permissions(&bait.socket, Permissions::from_mode(0o666))
                .map_err(error("cannot open the socket to all"))?;
            fs::read(&bait.file).map_err(error("cannot read the file even from outside"))?;
            UnixStream::connect(&bait.socket).map_err(error("cannot connect to the socket even from outside"))?;
            UnixStream::connect_addr(&abstract_address)
                .map_err(error("cannot connect to the abstract socket even from outside"))?;
            Ok(listeners)
        })();
        match laid {
            Ok(sockets) => Ok(Self { directory, bait, _sockets: sockets, _open: open }),
            Err(failed) => {
                let _ = fs::remove_dir_all(&directory);
                Err(failed)
            }
        }
    }

    /// Where everything lies.
    #[must_use]
    pub fn bait(&self) -> &Bait {
        &self.bait
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
