//! Every way in: one directory of a file system can be mounted at several places (mount(2), `MS_BIND`), and what is
//! read-only, or out of Landlock's grants, at one of them may be neither at another.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

/// The mounts of the calling thread's namespace, which need not be the process's.
const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// One line of mountinfo (proc_pid_mountinfo(5)).
struct Mount {
    id: u64,
    /// `major:minor`. Not `st_dev`: btrfs gives each subvolume one of its own.
    device: Vec<u8>,
    /// What of the file system is mounted.
    root: PathBuf,
    /// Where.
    point: PathBuf,
    /// The mount's own flag or the file system's.
    read_only: bool,
}

pub(super) struct Mounts(Vec<Mount>);

/// Where a file or directory can be reached.
pub(super) struct Ways {
    /// Its paths on mounts that are not read-only. A mount that another one covers still counts.
    pub(super) writable: Vec<PathBuf>,
    /// Its paths on all mounts.
    pub(super) all: Vec<PathBuf>,
    /// Whether anything of its file system is mounted for writing.
    pub(super) file_system: bool,
}

impl Mounts {
    pub(super) fn read() -> io::Result<Self> {
        Self::parse(&std::fs::read(MOUNTINFO)?)
    }

    fn parse(text: &[u8]) -> io::Result<Self> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        let mounts = lines.map(|line| Mount::parse(line).ok_or_else(|| invalid("holds a line that is not understood")));
        mounts.collect::<io::Result<_>>().map(Self)
    }

    /// The ways to what lies at `path`, an absolute path without links.
    pub(super) fn ways(&self, path: &Path) -> io::Result<Ways> {
        let id = mount_id(path)?;
        // Missing where the root directory was changed to one that is no mount point (chroot(2)).
        let own = self.0.iter().find(|mount| mount.id == id).ok_or_else(|| invalid("lacks the mount that holds it"))?;
        let below = path.strip_prefix(&own.point).map_err(|_| invalid("shows its mount elsewhere than above it"))?;
        let inside = joined(&own.root, below);
        let mut ways = Ways { writable: Vec::new(), all: Vec::new(), file_system: false };
        for mount in self.0.iter().filter(|mount| mount.device == own.device) {
            ways.file_system |= !mount.read_only;
            if let Ok(below) = inside.strip_prefix(&mount.root) {
                let way = joined(&mount.point, below);
                ways.writable.extend((!mount.read_only).then(|| way.clone()));
                ways.all.push(way);
            }
        }
        Ok(ways)
    }
}

impl Mount {
    /// `36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/vda rw,errors=continue`
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = fields.nth(1)?.to_vec();
        let root = unescaped(fields.next()?);
        let point = unescaped(fields.next()?);
        let flags = fields.next()?;
        // Optional fields end with a dash; type and source stand before the file system's options.
        let options = fields.skip_while(|field| *field != b"-").nth(3)?;
        let read_only = |options: &[u8]| options.split(|byte| *byte == b',').any(|option| option == b"ro");
        Some(Self { id, device, root, point, read_only: read_only(flags) || read_only(options) })
    }
}

/// The mount that holds `path`. Asked of the kernel: the longest mount point above a path may be one that is covered.
fn mount_id(path: &Path) -> io::Result<u64> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_PATH | libc::O_NOFOLLOW).open(path)?;
    let info = std::fs::read_to_string(format!("/proc/thread-self/fdinfo/{}", file.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
    id.ok_or_else(|| invalid("cannot be searched: its fdinfo holds no mnt_id"))
}

/// Both paths in one, without a slash at the end where `below` is empty.
fn joined(above: &Path, below: &Path) -> PathBuf {
    above.join(below).components().collect()
}

/// Undoes the octal escapes (`\040`) of blanks and backslashes.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        rest = after;
        let mut byte = *first;
        if let (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) = (*first, after) {
            byte = (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0');
            rest = after;
        }
        bytes.push(byte);
    }
    OsString::from_vec(bytes).into()
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{MOUNTINFO} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_with_and_without_optional_fields() {
        let text = b"36 35 98:0 /a\\040b /c\\134d ro,noatime master:1 shared:2 - ext4 /dev/vda rw\n\
            37 36 98:0 / /e rw - ext4 /dev/vda rw,ro_like\n38 36 0:5 / /f rw - tmpfs  ro\n";
        let mounts = Mounts::parse(text).unwrap().0;
        assert_eq!(mounts.iter().map(|mount| mount.id).collect::<Vec<_>>(), [36, 37, 38]);
        assert_eq!((mounts[0].root.as_path(), mounts[0].point.as_path()), (Path::new("/a b"), Path::new("/c\\d")));
        assert_eq!(mounts.iter().map(|mount| mount.read_only).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(mounts[0].device, b"98:0");
        for wrong in ["36", "x 35 98:0 / / rw - ext4 a rw", "36 35 98:0 / / rw ext4 a rw"] {
            assert!(Mounts::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_kernel_s_own_list_holds_our_root() {
        let ways = Mounts::read().unwrap().ways(Path::new("/")).unwrap();
        assert!(ways.file_system);
        assert!(ways.writable.contains(&PathBuf::from("/")));
    }
}
