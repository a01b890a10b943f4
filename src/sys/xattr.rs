//! Extended attributes (xattr(7)), which neither the standard library nor nix reads or sets.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use nix::NixPath;
use nix::errno::Errno;
use nix::libc;

/// Longest value of an attribute: `XATTR_SIZE_MAX` of <linux/limits.h>.
const MAX_VALUE: usize = 65_536;

/// The attribute `name` of what lies at `path`, links not followed; `None` where it has none, or the file system knows
/// no such attribute.
///
/// # Errors
/// What lgetxattr(2) answered.
pub fn read(path: &Path, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; MAX_VALUE];
    let count = path.with_nix_path(|path| {
        // SAFETY: `path` and `name` end with a zero byte, and the kernel writes at most `value.len()` bytes into
        // `value`, which is borrowed mutably for as long as the call lasts.
        unsafe { libc::lgetxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) }
    })?;
    match Errno::result(count) {
        Ok(count) => {
            value.truncate(usize::try_from(count).unwrap_or(0));
            Ok(Some(value))
        }
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Names of the attributes of an open file; none where the file system has no such thing.
///
/// # Errors
/// What flistxattr(2) answered.
pub fn list(file: impl AsFd) -> io::Result<Vec<CString>> {
    let mut names = vec![0u8; MAX_VALUE];
    // SAFETY: the descriptor is open for as long as it is borrowed, and the kernel writes at most `names.len()` bytes into
    // `names`, which is borrowed mutably for as long as the call lasts.
    let count = unsafe { libc::flistxattr(file.as_fd().as_raw_fd(), names.as_mut_ptr().cast(), names.len()) };
    match Errno::result(count) {
        Ok(count) => names.truncate(usize::try_from(count).unwrap_or(0)),
        Err(Errno::EOPNOTSUPP) => names.clear(),
        Err(error) => return Err(error.into()),
    }
    let each = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    Ok(each.filter_map(|name| CString::new(name).ok()).collect())
}

/// The attribute `name` of an open file; `None` where it has none.
///
/// # Errors
/// What fgetxattr(2) answered.
pub fn get(file: impl AsFd, name: &CStr) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0u8; MAX_VALUE];
    // SAFETY: as in `list`, and `name` ends with a zero byte.
    let count =
        unsafe { libc::fgetxattr(file.as_fd().as_raw_fd(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    match Errno::result(count) {
        Ok(count) => {
            value.truncate(usize::try_from(count).unwrap_or(0));
            Ok(Some(value))
        }
        Err(Errno::ENODATA | Errno::EOPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sets the attribute `name` of an open file.
///
/// # Errors
/// What fsetxattr(2) answered; `EOPNOTSUPP` where the file system has no such attributes.
pub fn set(file: impl AsFd, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: the descriptor is open, `name` ends with a zero byte, and the kernel reads `value.len()` bytes of `value`.
    let done =
        unsafe { libc::fsetxattr(file.as_fd().as_raw_fd(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) };
    Errno::result(done)?;
    Ok(())
}

/// Sets the attribute `name` of what lies at `path`, links not followed.
#[cfg(test)]
pub fn write(path: &Path, name: &CStr, value: &[u8]) -> io::Result<()> {
    let done = path.with_nix_path(|path| {
        // SAFETY: `path` and `name` end with a zero byte, and the kernel reads `value.len()` bytes of `value`.
        unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }
    })?;
    Errno::result(done)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_an_open_file_are_listed_read_and_set() {
        let file = tempfile::tempfile().unwrap();
        assert!(list(&file).unwrap().is_empty());
        set(&file, c"trusted.some", b"a\0b").unwrap();
        assert_eq!(list(&file).unwrap(), [c"trusted.some".to_owned()]);
        assert_eq!(get(&file, c"trusted.some").unwrap().as_deref(), Some(b"a\0b".as_slice()));
        assert_eq!(get(&file, c"trusted.none").unwrap(), None);
    }

    #[test]
    fn an_attribute_is_read_whole_and_its_absence_is_no_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(read(file.path(), c"trusted.none").unwrap(), None);
        assert_eq!(read(Path::new("/proc/self"), c"system.posix_acl_access").unwrap(), None);
        write(file.path(), c"trusted.some", b"a\0b").unwrap();
        assert_eq!(read(file.path(), c"trusted.some").unwrap().as_deref(), Some(b"a\0b".as_slice()));
        let absent = read(Path::new("/nonexistent"), c"trusted.some").unwrap_err();
        assert_eq!(absent.raw_os_error(), Some(libc::ENOENT));
    }
}
