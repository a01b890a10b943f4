//! A table of descriptors as procfs shows it: by its links, or, where those are closed to us, by `fdinfo`.
//!
//! A process of the sandbox that hides (`PR_SET_DUMPABLE`) shall not stop everyone's connections. Its `fd` directory
//! belongs to user 0 of its user namespace, or to root where that namespace has none (`task_dump_owner` in the kernel),
//! and is searchable for its owner only. `fdinfo` asks for ptrace access alone (`proc_fdinfo_permission`), which whoever
//! made the user namespace has over everything that was executed in it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;

use nix::libc;
use nix::sys::uio::pread;

use super::entry::{Name, decimal, read_only, read_only_directory};
use crate::sys::procfs::{Gone as _, numbers, read_link};

/// Buffer for directory entries: some three hundred descriptors a call.
const ENTRIES: usize = 8 * 1024;

/// Longer than any `socket:[N]`; what does not fit is no socket.
const SOCKET_LINK: usize = 64;

/// Longer than the four lines with which every `fdinfo` begins.
const INFORMATION: usize = 256;

/// A table that is open for reading.
#[derive(Debug)]
pub(super) struct Table {
    directory: OwnedFd,
    /// Whether it is an `fdinfo` directory.
    hidden: bool,
}

impl Table {
    /// The table of `thread`, or of the first thread, of the process whose directory is `process`.
    pub(super) fn open(process: &OwnedFd, thread: Option<u32>) -> io::Result<Self> {
        let open = |directory: &str| {
            let name = match thread {
                None => Name::new(format_args!("{directory}")),
                Some(thread) => Name::new(format_args!("task/{thread}/{directory}")),
            };
            read_only_directory(process, name.as_str())
        };
        match open("fd") {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Ok(Self { directory: open("fdinfo")?, hidden: true })
            }
            directory => Ok(Self { directory: directory?, hidden: false }),
        }
    }

    /// Its descriptors, in no order.
    pub(super) fn descriptors(&self) -> io::Result<Vec<u32>> {
        let mut descriptors = Vec::with_capacity(128);
        numbers(self.directory.as_fd(), &mut [0; ENTRIES], |number| descriptors.push(number))?;
        Ok(descriptors)
    }

    /// Inode of the socket at `descriptor`; `None` for all else, and for what is closed by now.
    pub(super) fn socket(&self, descriptor: u32) -> io::Result<Option<u64>> {
        let name = Name::new(format_args!("{descriptor}"));
        if self.hidden {
            described(&self.directory, name.as_str())
        } else {
            linked(self.directory.as_fd(), name.as_str())
        }
    }
}

/// Inode of the socket at `descriptor` of the first thread of the process whose directory is `process`; as
/// [`Table::socket`].
pub(super) fn socket_at(process: &OwnedFd, descriptor: u32) -> io::Result<Option<u64>> {
    match linked(process.as_fd(), Name::new(format_args!("fd/{descriptor}")).as_str()) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            described(process, Name::new(format_args!("fdinfo/{descriptor}")).as_str())
        }
        socket => socket,
    }
}

fn linked(directory: BorrowedFd<'_>, name: &str) -> io::Result<Option<u64>> {
    let mut buffer = [0; SOCKET_LINK];
    match read_link(directory, name, &mut buffer) {
        // A path starts with a slash, so that no file can pass for a socket.
        Ok(link) => Ok(link.strip_prefix(b"socket:[").and_then(|rest| rest.strip_suffix(b"]")).and_then(decimal)),
        Err(error) if error.is_gone() || error.raw_os_error() == Some(libc::ENAMETOOLONG) => Ok(None),
        Err(error) => Err(error),
    }
}

fn described(directory: &OwnedFd, name: &str) -> io::Result<Option<u64>> {
    let mut buffer = [0; INFORMATION];
    let information = match read_only(directory, name).and_then(|file| Ok(pread(&file, &mut buffer, 0)?)) {
        Ok(count) => &buffer[..count],
        Err(error) if error.is_gone() => return Ok(None),
        Err(error) => return Err(error),
    };
    // Before Linux 5.14 there is no `ino`, and what hides stays hidden.
    let (Some(mount), Some(inode), Some(sockets)) =
        (field(information, b"mnt_id:"), field(information, b"ino:"), sockets_mount())
    else {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    };
    Ok((mount == sockets).then_some(inode))
}

/// The value of a line of an `fdinfo` (proc_pid_fdinfo(5)).
fn field(information: &[u8], label: &[u8]) -> Option<u64> {
    information.split(|byte| *byte == b'\n').find_map(|line| decimal(line.strip_prefix(label)?.trim_ascii()))
}

/// Number of the one mount that all sockets are on, which tells their inodes from those of files.
fn sockets_mount() -> Option<u64> {
    static MOUNT: OnceLock<Option<u64>> = OnceLock::new();
    *MOUNT.get_or_init(|| {
        let socket = UnixDatagram::unbound().ok()?;
        let information = std::fs::read(format!("/proc/self/fdinfo/{}", socket.as_raw_fd())).ok()?;
        field(&information, b"mnt_id:")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_views_of_a_table_show_the_same_sockets_and_nothing_else() {
        let socket = UnixDatagram::unbound().unwrap();
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let process = OwnedFd::from(std::fs::File::open("/proc/self").unwrap());
        let links = Table::open(&process, None).unwrap();
        let information = Table { directory: read_only_directory(&process, "fdinfo").unwrap(), hidden: true };
        assert!(!links.hidden);
        let at = |fd: &dyn AsRawFd| u32::try_from(fd.as_raw_fd()).unwrap();
        let inode = links.socket(at(&socket)).unwrap();
        assert!(inode.is_some());
        assert_eq!(information.socket(at(&socket)).unwrap(), inode);
        assert!(information.descriptors().unwrap().contains(&at(&socket)));
        for table in [&links, &information] {
            assert_eq!(table.socket(at(&file)).unwrap(), None);
            assert_eq!(table.socket(99_999).unwrap(), None);
        }
    }
}
