//! Reading procfs without an allocation per entry: what attribution does for every descriptor of a process.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd, BorrowedFd, OwnedFd};

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::libc;
use nix::sys::stat::Mode;
use nix::unistd::{Whence, lseek};

/// Offset of `d_off` in `struct linux_dirent64`: the position at which the entry after this one begins.
const RECORD_NEXT: usize = 8;
/// Offset of `d_reclen` in `struct linux_dirent64` (getdents64(2)): inode and offset of eight bytes each come first.
const RECORD_LENGTH: usize = 16;
/// Offset of `d_name`: length of two bytes and type of one come before.
const RECORD_NAME: usize = 19;

/// What errors mean when a process is read.
pub trait Gone {
    /// Whether the process, thread or descriptor that was read is no more.
    fn is_gone(&self) -> bool;
}

impl Gone for io::Error {
    fn is_gone(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
    }
}

/// Gives `each` every entry of the directory `dir` whose name is a number: processes, threads, descriptors. The
/// directory is read from its current position, and `buffer` should hold a few hundred entries of 24 bytes.
///
/// # Errors
/// What getdents64(2) answered; `ENOENT` once the process is gone.
pub fn numbers(dir: BorrowedFd<'_>, buffer: &mut [u8], mut each: impl FnMut(u32)) -> io::Result<()> {
    entries(dir, buffer, |name, _| {
        if let Some(number) = number(name) {
            each(number);
        }
    })
}

/// Gives `each` the name of every entry of `dir` and the position of the one after it.
fn entries(dir: BorrowedFd<'_>, buffer: &mut [u8], mut each: impl FnMut(&[u8], i64)) -> io::Result<()> {
    loop {
        // SAFETY: `dir` is an open descriptor and the kernel writes at most `buffer.len()` bytes into `buffer`, which is
        // borrowed mutably for as long as the call lasts.
        let count = unsafe { libc::syscall(libc::SYS_getdents64, dir.as_raw_fd(), buffer.as_mut_ptr(), buffer.len()) };
        let count = usize::try_from(Errno::result(count)?).unwrap_or(0);
        if count == 0 {
            return Ok(());
        }
        let mut rest = &buffer[..count.min(buffer.len())];
        while rest.len() > RECORD_NAME {
            let length = usize::from(u16::from_ne_bytes([rest[RECORD_LENGTH], rest[RECORD_LENGTH + 1]]));
            if length <= RECORD_NAME || length > rest.len() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "malformed directory entry"));
            }
            let next = rest[RECORD_NEXT..].first_chunk().map_or(0, |next| i64::from_ne_bytes(*next));
            each(&rest[RECORD_NAME..length], next);
            rest = &rest[length..];
        }
    }
}

/// A /proc that is listed over and over: it stays open, and the fifty files that come before its processes are passed
/// over once where they begin is known, since to list those costs several times what a small sandbox's processes do.
#[derive(Debug)]
pub struct ProcessList {
    directory: OwnedFd,
    buffer: Box<[u8]>,
    /// Position of process 1; 0, the beginning, until it has been seen. A position in /proc stands for a number
    /// (`proc_pid_readdir` in the kernel), and no number is lower.
    first: i64,
}

impl ProcessList {
    /// Opens the directory anew, so that its position is nobody else's, to be read through a buffer of `size` bytes.
    ///
    /// # Errors
    /// What openat(2) answered.
    pub fn open(proc: BorrowedFd<'_>, size: usize) -> io::Result<Self> {
        let directory = openat(proc, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
        Ok(Self { directory, buffer: vec![0; size].into(), first: 0 })
    }

    /// Gives `each` every process that there is.
    ///
    /// # Errors
    /// What getdents64(2) or lseek(2) answered.
    pub fn read(&mut self, mut each: impl FnMut(u32)) -> io::Result<()> {
        lseek(&self.directory, self.first, Whence::SeekSet)?;
        let (mut position, mut first) = (self.first, self.first);
        entries(self.directory.as_fd(), &mut self.buffer, |name, next| {
            if let Some(number) = number(name) {
                if number == 1 {
                    first = position;
                }
                each(number);
            }
            position = next;
        })?;
        self.first = first;
        Ok(())
    }
}

/// The number that `name`, ended by a zero byte, spells.
fn number(name: &[u8]) -> Option<u32> {
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    if end == 0 {
        return None;
    }
    name[..end].iter().try_fold(0u32, |sum, byte| {
        let digit = byte.is_ascii_digit().then(|| u32::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    })
}

/// Reads the symbolic link `name` of the directory `dir` into `buffer`.
///
/// # Errors
/// What readlinkat(2) answered; `ENAMETOOLONG` when `buffer` may not have held it all.
pub fn read_link<'b>(dir: BorrowedFd<'_>, name: &str, buffer: &'b mut [u8]) -> io::Result<&'b [u8]> {
    let count = name.with_nix_path(|name| {
        // SAFETY: `dir` is an open descriptor, `name` ends with a zero byte, and the kernel writes at most
        // `buffer.len()` bytes into `buffer`, which is borrowed mutably for as long as the call lasts.
        unsafe { libc::readlinkat(dir.as_raw_fd(), name.as_ptr(), buffer.as_mut_ptr().cast(), buffer.len()) }
    })?;
    let count = usize::try_from(Errno::result(count)?).unwrap_or(0);
    if count >= buffer.len() {
        return Err(Errno::ENAMETOOLONG.into());
    }
    Ok(&buffer[..count])
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn lists_our_own_descriptors_and_process() {
        let file = std::fs::File::open("/proc/self/fd").unwrap();
        let mut seen = Vec::new();
        // A buffer that holds one or two entries, so that several calls are needed.
        numbers(file.as_fd(), &mut [0; 64], |number| seen.push(number)).unwrap();
        for expected in [0, 1, 2, u32::try_from(file.as_raw_fd()).unwrap()] {
            assert!(seen.contains(&expected), "{expected} in {seen:?}");
        }
        let proc = std::fs::File::open("/proc").unwrap();
        let mut seen = Vec::new();
        numbers(proc.as_fd(), &mut [0; 8192], |number| seen.push(number)).unwrap();
        assert!(seen.contains(&std::process::id()));
    }

    #[test]
    fn a_list_of_processes_that_is_read_again_passes_over_nothing_but_files() {
        let proc = std::fs::File::open("/proc").unwrap();
        let mut list = ProcessList::open(proc.as_fd(), 8192).unwrap();
        let read = |list: &mut ProcessList| {
            let mut seen = Vec::new();
            list.read(|number| seen.push(number)).unwrap();
            seen
        };
        assert_eq!(list.first, 0);
        assert!(read(&mut list).contains(&1));
        assert_ne!(list.first, 0);
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        for _ in 0..2 {
            let seen = read(&mut list);
            for expected in [1, std::process::id(), child.id()] {
                assert!(seen.contains(&expected), "{expected} in {seen:?}");
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!read(&mut list).contains(&child.id()));
        // The control: from the beginning there is more than numbers.
        let names = |list: &mut ProcessList, from: i64| {
            lseek(&list.directory, from, Whence::SeekSet).unwrap();
            let mut files = 0;
            entries(list.directory.as_fd(), &mut list.buffer, |name, _| files += usize::from(number(name).is_none()))
                .unwrap();
            files
        };
        let first = list.first;
        assert_eq!(names(&mut list, first), 0);
        assert!(names(&mut list, 0) > 10);
    }

    #[test]
    fn reads_a_link_whole_or_not_at_all() {
        let directory = std::fs::File::open("/proc/self").unwrap();
        let mut buffer = [0; 4096];
        let link = read_link(directory.as_fd(), "exe", &mut buffer).unwrap();
        assert_eq!(link, std::fs::read_link("/proc/self/exe").unwrap().as_os_str().as_encoded_bytes());
        assert_eq!(
            read_link(directory.as_fd(), "exe", &mut [0; 4]).unwrap_err().raw_os_error(),
            Some(libc::ENAMETOOLONG)
        );
        assert_eq!(read_link(directory.as_fd(), "none", &mut buffer).unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }

    #[test]
    fn only_numbers_are_numbers() {
        assert_eq!(number(b"12\0\0"), Some(12));
        assert_eq!(number(b"1a\0"), None);
        assert_eq!(number(b"\0"), None);
        assert_eq!(number(b"99999999999\0"), None);
    }
}
