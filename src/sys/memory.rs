//! What this process keeps resident.

use std::fs;
use std::io;

use nix::libc;

/// Unmaps the pages of code that have been touched so far. A start runs code that nothing runs again, and every fault on
/// it has mapped sixteen pages (`fault_around_bytes`): most of what an idle supervisor holds. What goes on running comes
/// back from the page cache at its next use.
///
/// # Errors
/// `/proc/self/maps` cannot be read; nothing has changed then.
pub fn release_code() -> io::Result<()> {
    for line in fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((start, length)) = code(line) else { continue };
        // SAFETY: the range is a mapping of a file, private and not writable, so that no page of it differs from the file's
        // (a static-pie has no relocations in its code): what is unmapped is mapped again as it was (madvise(2)).
        unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
    }
    Ok(())
}

/// The range of a line of proc_pid_maps(5), if it is code of a file.
fn code(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    if permissions != "r-xp" || inode == "0" {
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
    fn code_comes_back_when_it_is_used() {
        let before = resident_of_files();
        release_code().unwrap();
        let after = resident_of_files();
        assert!(after < before, "{before} kB, then {after} kB");
        assert_eq!("still here".replace("still", "all"), "all here");
    }

    #[test]
    fn only_code_of_files_is_released() {
        let line = |permissions: &str, inode: u64| format!("1000-3000 {permissions} 00001000 fe:00 {inode}   /x");
        assert_eq!(code(&line("r-xp", 7)), Some((0x1000, 0x2000)));
        for (permissions, inode) in [("r--p", 7), ("rw-p", 7), ("rwxp", 7), ("r-xs", 7), ("r-xp", 0)] {
            assert_eq!(code(&line(permissions, inode)), None);
        }
        assert_eq!(code("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]"), None);
        assert_eq!(code(""), None);
    }
}
