//! What renameat2(2) and file leases say about a file that others write too; nix has the one with glibc only, and the
//! other not at all.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The operation of fcntl(2) that chooses the signal for events of a file, which libc does not name
/// (linux/include/uapi/asm-generic/fcntl.h; the same on every architecture built for).
const F_SETSIG: libc::c_int = 10;

/// Lets two names of one directory change places in one step, so that what lay under either is lost to nobody.
///
/// # Errors
/// What renameat2(2) answered: `EINVAL` or `ENOSYS` where the file system or the kernel cannot do it.
pub fn exchange(directory: impl AsFd, one: &CStr, other: &CStr) -> io::Result<()> {
    let directory = directory.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open for as long as it is borrowed, both names end in a NUL and outlive the call, and the
    // kernel only reads them.
    let answer = unsafe {
        libc::syscall(libc::SYS_renameat2, directory, one.as_ptr(), directory, other.as_ptr(), libc::RENAME_EXCHANGE)
    };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether anybody has the file open for writing. `file` is open for reading only, and ours or we have `CAP_LEASE`.
///
/// # Errors
/// What fcntl(2) answered where it cannot be told: `EINVAL` on file systems without leases, `EACCES` for somebody
/// else's file.
pub fn is_being_written(file: impl AsFd) -> io::Result<bool> {
    let fd = file.as_fd().as_raw_fd();
    // A read lease is granted only while nobody writes (fcntl(2), F_SETLEASE). Whoever comes while it is held makes the
    // kernel send a signal, which would be SIGIO, and deadly; SIGURG is ignored unless one asks for it.
    // SAFETY: these operations take an integer and touch no memory of this process; the descriptor is open.
    let answer = unsafe {
        if libc::fcntl(fd, F_SETSIG, libc::SIGURG) == -1 {
            return Err(io::Error::last_os_error());
        }
        libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK)
    };
    if answer == -1 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::EAGAIN) { Ok(true) } else { Err(error) };
    }
    // SAFETY: as above.
    unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) };
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn names_change_places() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::fs::write(at("a"), "1").unwrap();
        std::fs::write(at("b"), "2").unwrap();
        exchange(File::open(directory.path()).unwrap(), c"a", c"b").unwrap();
        assert_eq!((std::fs::read(at("a")).unwrap(), std::fs::read(at("b")).unwrap()), (b"2".to_vec(), b"1".to_vec()));
        assert!(exchange(File::open(directory.path()).unwrap(), c"a", c"missing").is_err());
    }

    #[test]
    fn a_writer_is_seen_while_it_has_the_file_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let writer = File::create(&path).unwrap();
        assert!(is_being_written(File::open(&path).unwrap()).unwrap());
        drop(writer);
        assert!(!is_being_written(File::open(&path).unwrap()).unwrap());
    }
}
