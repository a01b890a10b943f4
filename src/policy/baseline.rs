//! The paths without which hardly any program starts, and what holds where no policy is given.

use std::path::{Path, PathBuf};

use super::{Filesystem, Policy};

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
const READ_WRITE: &[&str] = &["/tmp", "/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts"];

/// Devices whose presence means that the workload was given a GPU.
const GPU_MARKS: &[&str] = &["/dev/nvidiactl", "/dev/dxg"];

/// What CUDA reads; see [`GPU_MARKS`].
const GPU_READ_ONLY: &[&str] = &["/run/nvidia-persistenced", "/usr/lib/wsl"];

/// What CUDA writes, besides the numbered devices: it names its threads through /proc.
const GPU_READ_WRITE: &[&str] =
    &["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset", "/dev/dxg", "/proc"];

pub(super) fn default_filesystem() -> Filesystem {
    let paths = |paths: &[&str]| paths.iter().map(PathBuf::from).collect();
    Filesystem {
        include_workdir: true,
        read_only: paths(&["/usr", "/lib", "/proc", "/dev/urandom", "/app", "/etc", "/var/log"]),
        read_write: paths(&["/tmp", "/dev/null"]),
    }
}

impl Policy {
    /// The paths that Landlock opens for the workload: the policy's own, its working directory where the policy
    /// includes it, and the baseline. The baseline never widens what the policy names: a policy that lists `/tmp` as
    /// read-only keeps it so. Not every path exists in every image.
    #[must_use]
    pub fn filesystem_with_baseline(&self, workdir: Option<&Path>) -> Filesystem {
        let mut merged = self.filesystem.clone();
        if self.filesystem.include_workdir
            && let Some(workdir) = workdir
            && workdir != Path::new("/")
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
        merged
    }
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

fn add_gpu(filesystem: &mut Filesystem) {
    for path in GPU_READ_ONLY {
        add(filesystem, Path::new(path), false);
    }
    // /proc is in the baseline as read-only; the GPU's need comes on top of it, unless the policy itself named it.
    for path in GPU_READ_WRITE.iter().map(PathBuf::from) {
        if !filesystem.read_write.contains(&path) {
            filesystem.read_write.push(path);
        }
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

    #[test]
    fn the_baseline_covers_images_without_merged_usr() {
        let merged = Policy::restrictive_default().filesystem_with_baseline(Some(Path::new("/sandbox")));
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
        let merged = policy.filesystem_with_baseline(Some(Path::new("/tmp")));
        assert!(!merged.read_write.contains(&PathBuf::from("/tmp")));
        assert!(merged.read_write.contains(&PathBuf::from("/etc")));
        assert!(!merged.read_only.contains(&PathBuf::from("/etc")));
    }

    #[test]
    fn the_working_directory_is_granted_only_when_included_and_never_as_the_whole_tree() {
        let mut policy = Policy::restrictive_default();
        let root = policy.filesystem_with_baseline(Some(Path::new("/")));
        assert!(!root.read_write.contains(&PathBuf::from("/")));
        policy.filesystem.include_workdir = false;
        let merged = policy.filesystem_with_baseline(Some(Path::new("/sandbox")));
        assert!(!merged.read_write.contains(&PathBuf::from("/sandbox")));
    }
}
