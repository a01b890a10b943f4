//! What this process keeps resident.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::ptr;
use std::time::Duration;

use bytes::Bytes;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;

/// Enough to read a file and look through it.
const SETTLING_STACK: usize = 64 << 10;

/// A mapping that nobody can change or shorten.
#[derive(Debug)]
struct Mapping {
    start: *mut libc::c_void,
    length: usize,
}

// SAFETY: it is memory that is only read.
unsafe impl Send for Mapping {}

impl AsRef<[u8]> for Mapping {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `length` bytes are mapped from `start` for as long as this lives, and the file's seals keep them as
        // they are.
        unsafe { std::slice::from_raw_parts(self.start.cast(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that was made, and nothing borrows from it any more.
        unsafe { libc::munmap(self.start, self.length) };
    }
}

/// What is in a memfd, without a copy: a page that is mapped costs a tenth of one that is filled.
///
/// # Errors
/// The file is no memfd that is sealed against being written and shortened (memfd_create(2)), or cannot be mapped.
pub fn map_sealed(file: &File) -> io::Result<Bytes> {
    let fixed = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_SHRINK;
    if !SealFlag::from_bits_truncate(fcntl(file, FcntlArg::F_GET_SEALS)?).contains(fixed) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not sealed against being written and shortened",
        ));
    }
    let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
    if length == 0 {
        return Ok(Bytes::new());
    }
    let flags = libc::MAP_PRIVATE | libc::MAP_POPULATE;
    // SAFETY: a new mapping, where the kernel likes.
    let start = unsafe { libc::mmap(ptr::null_mut(), length, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Bytes::from_owner(Mapping { start, length }))
}

/// Unmaps the executable's pages, of code and of constants, that have been touched so far. A start uses much that nothing
/// uses again, and every fault on it has mapped sixteen pages (`fault_around_bytes`): most of what an idle supervisor
/// holds. What goes on being used comes back from the page cache at its next use.
///
/// # Errors
/// `/proc/self/smaps` cannot be read; nothing has changed then.
pub fn release_pages_of_files() -> io::Result<()> {
    let report = fs::read_to_string("/proc/self/smaps")?;
    for (start, length) in unmodified(&report) {
        // SAFETY: the range is a private mapping of a file, may not be written, and has no page that differs from the
        // file's (the relocated constants of a static-pie have, and are left out), so that what is unmapped is mapped
        // again as it was (madvise(2)).
        unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// Has that done after each of `times`, one after the other, by a thread that does nothing else: whoever does it himself goes
/// on, and what he needs to do so comes back, which is half of it where he only waits afterwards. Without the thread
/// nothing is given back, and that is memory and nothing else.
pub fn release_pages_of_files_after(times: &'static [Duration]) {
    let wait = move || {
        for time in times {
            std::thread::sleep(*time);
            let _ = release_pages_of_files();
        }
    };
    let _ = std::thread::Builder::new().name("settle".to_owned()).stack_size(SETTLING_STACK).spawn(wait);
}

/// Ranges of a proc_pid_smaps(5) whose pages are those of a file.
fn unmodified(report: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut lines = report.lines().peekable();
    std::iter::from_fn(move || {
        let range = private_of_file(lines.next()?);
        // A copy may be in memory or swapped out. Where the kernel does not say, there may be some.
        let (mut copies, mut swapped) = (None, None);
        while let Some(line) = lines.next_if(|line| !is_range(line)) {
            copies = line.strip_prefix("Anonymous:").or(copies);
            swapped = line.strip_prefix("Swap:").or(swapped);
        }
        let none = |field: Option<&str>| field.is_some_and(|amount| amount.trim() == "0 kB");
        Some(range.filter(|_| none(copies) && none(swapped)))
    })
    .flatten()
}

/// Whether a mapping's lines begin here: only its range is written without a colon after the first word.
fn is_range(line: &str) -> bool {
    line.split_ascii_whitespace().next().is_some_and(|word| !word.ends_with(':'))
}

/// The range, if it is a private mapping of a file that may not be written.
fn private_of_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    if !matches!(permissions, "r--p" | "r-xp") || inode == "0" {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_of_files() -> u64 {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn what_is_sealed_is_mapped_and_nothing_else() {
        use nix::sys::memfd::{MFdFlags, memfd_create};
        use std::io::Write;
        let make = |text: &[u8], seals: SealFlag| {
            let mut file = File::from(memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap());
            file.write_all(text).unwrap();
            fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
            file
        };
        let (write, shrink) = (SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_SHRINK);
        let long = b"0123456789".repeat(1000);
        let mapped = map_sealed(&make(&long, write | shrink)).unwrap();
        assert_eq!(mapped, long);
        assert_eq!(mapped.slice(9990..), b"0123456789"[..]);
        assert!(map_sealed(&make(b"", write | shrink)).unwrap().is_empty());
        for seals in [SealFlag::empty(), write, shrink] {
            assert!(map_sealed(&make(&long, seals)).unwrap_err().to_string().contains("sealed"));
        }
        assert!(map_sealed(&tempfile::tempfile().unwrap()).is_err());
    }

    #[test]
    fn pages_come_back_when_they_are_used() {
        let before = resident_of_files();
        release_pages_of_files().unwrap();
        let after = resident_of_files();
        assert!(after < before, "{before} kB, then {after} kB");
        assert_eq!("still here".replace("still", "all"), "all here");
    }

    #[test]
    fn only_unmodified_mappings_of_files_are_released() {
        let mapping = |permissions: &str, inode: u64, rest: &str| {
            format!("1000-3000 {permissions} 00001000 fe:00 {inode}   /x\nRss: 8 kB\n{rest}VmFlags: rd\n")
        };
        let clean = "Anonymous:             0 kB\nSwap:                  0 kB\n";
        let released = |report: &str| unmodified(report).collect::<Vec<_>>();
        assert_eq!(released(&mapping("r-xp", 7, clean)), [(0x1000, 0x2000)]);
        assert_eq!(released(&mapping("r--p", 7, clean)), [(0x1000, 0x2000)]);
        for (permissions, inode) in [("rw-p", 7), ("rwxp", 7), ("r-xs", 7), ("r--p", 0)] {
            assert_eq!(released(&mapping(permissions, inode, clean)), []);
        }
        for copies in ["Anonymous: 4 kB\nSwap: 0 kB\n", "Anonymous: 0 kB\nSwap: 4 kB\n", "Swap: 0 kB\n", ""] {
            assert_eq!(released(&mapping("r--p", 7, copies)), []);
        }
        // What is said of one mapping counts for that one alone.
        let both = mapping("r--p", 7, "Anonymous: 4 kB\nSwap: 0 kB\n") + &mapping("r-xp", 7, clean);
        assert_eq!(released(&both), [(0x1000, 0x2000)]);
        assert_eq!(released("nonsense\n\n:\n"), []);
        assert_eq!(released(""), []);
    }
}
