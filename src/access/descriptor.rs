//! Pipes and terminals, read and written without blocking.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::sys::reactor::watch;

/// A pipe's end, or a terminal's master side.
#[derive(Debug)]
pub struct Descriptor(AsyncFd<OwnedFd>);

impl Descriptor {
    /// Takes it over. Its open file must be nobody else's, for it stops blocking.
    ///
    /// # Errors
    /// What fcntl(2) or epoll_ctl(2) answered.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let flags = OFlag::from_bits_truncate(fcntl(&fd, FcntlArg::F_GETFL)?);
        fcntl(&fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
        Ok(Self(watch(fd)?))
    }

    /// Reads something; 0 at the end, which for a terminal's master side is EIO: nobody has its other side open.
    ///
    /// # Errors
    /// What read(2) answered.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.0.async_io(Interest::READABLE, |fd| Ok(nix::unistd::read(fd, &mut *buffer)?)).await;
        match read {
            Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => Ok(0),
            other => other,
        }
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// What write(2) answered.
    pub async fn write(&self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            data = &data[self.write_some(data).await?..];
        }
        Ok(())
    }

    /// Writes some of it, and says how much. May be cancelled; nothing is lost.
    ///
    /// # Errors
    /// What write(2) answered.
    pub async fn write_some(&self, data: &[u8]) -> io::Result<usize> {
        self.0.async_io(Interest::WRITABLE, |fd| Ok(nix::unistd::write(fd, data)?)).await
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}
