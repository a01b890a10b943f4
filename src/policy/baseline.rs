//! The paths without which hardly any program starts, and what holds where no policy is given.

use std::path::{Path, PathBuf};

use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};

use super::Filesystem;

/// Read and executed: system trees, with those of images whose /bin and /lib are no links into /usr.
const READ_ONLY: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/app",
    "/var/log",
    "/proc",
    "/dev/random",
    "/dev/urandom",
];

/// Written as well: scratch space, and the devices that hold nothing.
const READ_WRITE: &[&str] =
    &["/tmp", "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts", "/dev/shm"];

/// Devices whose presence means that the workload was given a GPU.
const GPU_MARKS: &[&str] = &["/dev/nvidiactl", "/dev/dxg"];

/// What CUDA reads; see [`GPU_MARKS`].
const GPU_READ_ONLY: &[&str] = &["/run/nvidia-persistenced", "/usr/lib/wsl"];

/// What CUDA writes, besides the numbered devices. Not /proc, although cuInit() of drivers since 570 names its threads
/// through /proc/PID/task/TID/comm and fails with error 304 where it may not: Landlock knows no pattern for that one
/// file, and a grant of /proc holds for /proc/PID/mem too (see [`refusal`]).
const GPU_READ_WRITE: &[&str] =
    &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/dxg"];

/// Why `path` is never granted for writing, and what to do instead; `None` where it may be.
///
/// /proc/PID/mem (proc_pid_mem(5)) writes into a running program, its code included. Whoever runs as the same user may
/// open it, and Landlock's own restriction of ptrace(2) stops at the domain, which the whole workload shares: any
/// program of it could act as one that the policy allows a destination. /dev and /sys as a whole are every device and
/// switch that the user's identity alone would reach.
pub(super) fn refusal(path: &Path) -> Option<(&'static str, &'static str)> {
    if path == Path::new("/") {
        Some(("the whole file system", "list the directories to be written"))
    } else if path.starts_with("/proc") {
        Some(("programs could be rewritten through /proc/PID/mem", "list it under read_only"))
    } else if path == Path::new("/dev") {
        Some(("every device there is", "list single devices such as /dev/fuse, or /dev/shm"))
    } else if path == Path::new("/sys") {
        Some(("every device and switch of the kernel", "list single paths such as /sys/class/gpio"))
    } else {
        None
    }
}

pub(super) fn default_filesystem() -> Filesystem {
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    Filesystem {
        include_workdir: true,
        read_only: paths(&["/usr", "/lib", "/proc", "/dev/urandom", "/app", "/etc", "/var/log"]),
        read_write: paths(&["/tmp", "/dev/null"]),
    }
}

impl Filesystem {
    /// The paths that Landlock opens for the workload: the policy's own, its working directory where the policy
    /// includes it, and the baseline. The baseline never widens what the policy names: a policy that lists `/tmp` as
    /// read-only keeps it so. Nothing of a proc file system is opened for writing, whatever link or mount of the image
    /// leads there (see [`refusal`]). `include_workdir` of the result is false. Not every path exists in every image.
    #[must_use]
    pub fn with_baseline(&self, workdir: Option<&Path>) -> Filesystem {
        let mut merged = self.clone();
        // Decided here: whoever added it again would open what is refused or listed as read-only.
        merged.include_workdir = false;
        if self.include_workdir
            && let Some(workdir) = workdir
            && refusal(&std::fs::canonicalize(workdir).unwrap_or_else(|_| workdir.to_owned())).is_none()
        {
            add(&mut merged, workdir, true);
        }
        for path in READ_ONLY {
            add(&mut merged, Path::new(path), false);
        }
        for path in READ_WRITE {
            add(&mut merged, Path::new(path), true);
        }
        if GPU_MARKS.iter().any(|mark| Path::new(mark).exists()) {
            add_gpu(&mut merged);
        }
        let (proc, read_write) = merged.read_write.into_iter().partition(|path| in_proc(path));
        merged.read_write = read_write;
        merged.read_only.extend::<Vec<_>>(proc);
        merged
    }
}

/// Whether every policy grants `path`, or the system tree that it is.
pub(super) fn grants(path: &Path) -> bool {
    READ_ONLY.iter().chain(READ_WRITE).any(|granted| path == Path::new(granted))
}

/// Adds a path that neither list names.
fn add(filesystem: &mut Filesystem, path: &Path, write: bool) {
    let named = |list: &[PathBuf]| list.iter().any(|known| known == path);
    if named(&filesystem.read_only) || named(&filesystem.read_write) {
        return;
    }
    let list = if write { &mut filesystem.read_write } else { &mut filesystem.read_only };
    list.push(path.to_owned());
}

/// Whether `path` leads into a proc file system; what does not exist is not granted at all.
fn in_proc(path: &Path) -> bool {
    statfs(path).is_ok_and(|of| of.filesystem_type() == PROC_SUPER_MAGIC)
}

fn add_gpu(filesystem: &mut Filesystem) {
    for path in GPU_READ_ONLY {
        add(filesystem, Path::new(path), false);
    }
    for path in GPU_READ_WRITE {
        add(filesystem, Path::new(path), true);
    }
    let Ok(devices) = std::fs::read_dir("/dev") else { return };
    for device in devices.flatten() {
        let name = device.file_name();
        let numbered = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
        if numbered.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
            add(filesystem, &device.path(), true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn the_baseline_covers_images_without_merged_usr() {
        let merged = Policy::restrictive_default().filesystem.with_baseline(Some(Path::new("/sandbox")));
        for path in ["/bin", "/sbin", "/lib64", "/usr", "/etc", "/dev/urandom"] {
            assert!(merged.read_only.contains(&PathBuf::from(path)), "{path}");
        }
        for path in ["/sandbox", "/tmp", "/dev/null", "/dev/pts"] {
            assert!(merged.read_write.contains(&PathBuf::from(path)), "{path}");
        }
    }

    #[test]
    fn the_baseline_never_widens_what_the_policy_names() {
        let mut policy = Policy::restrictive_default();
        policy.filesystem =
            Filesystem { include_workdir: true, read_only: vec!["/tmp".into()], read_write: vec!["/etc".into()] };
        let merged = policy.filesystem.with_baseline(Some(Path::new("/tmp")));
        assert!(!merged.read_write.contains(&PathBuf::from("/tmp")));
        assert!(merged.read_write.contains(&PathBuf::from("/etc")));
        assert!(!merged.read_only.contains(&PathBuf::from("/etc")));
    }

    #[test]
    fn the_working_directory_is_granted_only_when_included_and_never_as_the_whole_tree() {
        let mut policy = Policy::restrictive_default();
        let root = policy.filesystem.with_baseline(Some(Path::new("/")));
        assert!(!root.read_write.contains(&PathBuf::from("/")) && !root.include_workdir);
        for refused in ["/proc", "/proc/self", "/dev", "/sys", "/tmp/..", "/proc/self/root"] {
            let merged = policy.filesystem.with_baseline(Some(Path::new(refused)));
            assert!(!merged.read_write.contains(&PathBuf::from(refused)), "{refused}");
        }
        policy.filesystem.include_workdir = false;
        let merged = policy.filesystem.with_baseline(Some(Path::new("/sandbox")));
        assert!(!merged.read_write.contains(&PathBuf::from("/sandbox")));
    }

    #[test]
    fn a_gpu_opens_its_devices_and_never_proc() {
        let mut merged = Policy::restrictive_default().filesystem.with_baseline(None);
        add_gpu(&mut merged);
        for path in ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg"] {
            assert!(merged.read_write.contains(&PathBuf::from(path)), "{path}");
        }
        assert!(!merged.read_write.iter().any(|path| path.starts_with("/proc")));
        assert!(merged.read_only.contains(&PathBuf::from("/proc")));
    }

    #[test]
    fn a_link_into_proc_opens_nothing_for_writing() {
        let directory = tempfile::tempdir().unwrap();
        let (proc, other) = (directory.path().join("proc"), directory.path().join("other"));
        std::os::unix::fs::symlink("/proc/self/task", &proc).unwrap();
        std::os::unix::fs::symlink("/tmp", &other).unwrap();
        let mut policy = Policy::restrictive_default();
        policy.filesystem.read_write = vec![proc.clone(), other.clone()];
        let merged = policy.filesystem.with_baseline(None);
        assert!(!merged.read_write.contains(&proc) && merged.read_only.contains(&proc));
        assert!(merged.read_write.contains(&other));
    }
}
