//! Links in programs' paths, followed inside the workload's view of the file system.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// Links followed before a path counts as a loop: the kernel's own limit (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// The real path of `path`, as a process whose root directory is `root` would find it; `None` where it leads nowhere.
/// Absolute links start again at `root`, and `..` never leaves it, as after chroot(2).
pub(super) fn within(root: &Path, path: &Path) -> Option<String> {
    let mut pending: VecDeque<OsString> = steps(path);
    let mut real = PathBuf::from("/");
    let mut links = 0;
    while let Some(step) = pending.pop_front() {
        if step == ".." {
            real.pop();
            continue;
        }
        let candidate = real.join(&step);
        let outside = root.join(candidate.strip_prefix("/").ok()?);
        if !std::fs::symlink_metadata(&outside).ok()?.file_type().is_symlink() {
            real = candidate;
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return None;
        }
        let target = std::fs::read_link(&outside).ok()?;
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        for step in steps(&target).into_iter().rev() {
            pending.push_front(step);
        }
    }
    real.into_os_string().into_string().ok()
}

/// The names and `..` of a path, in order, for walks that follow links themselves.
pub(super) fn steps(path: &Path) -> VecDeque<OsString> {
    path.components()
        .filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_inside_the_root() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("usr/bin")).unwrap();
        std::fs::create_dir_all(at("etc/alternatives")).unwrap();
        std::fs::write(at("usr/bin/python3.11"), "").unwrap();
        symlink("usr/bin", at("bin")).unwrap();
        symlink("/etc/alternatives/python3", at("usr/bin/python3")).unwrap();
        symlink("../../../../../usr/bin/python3.11", at("etc/alternatives/python3")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let real = |path: &str| within(root.path(), Path::new(path));
        assert_eq!(real("/bin/python3").as_deref(), Some("/usr/bin/python3.11"));
        assert_eq!(real("/usr/bin/python3.11").as_deref(), Some("/usr/bin/python3.11"));
        assert_eq!(real("/loop"), None);
        assert_eq!(real("/usr/bin/absent"), None);
    }
}
