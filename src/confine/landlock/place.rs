//! Finding what a granted path means, without being led elsewhere by an earlier workload.
//!
//! Links in a granted path are followed, since `/bin` is one on most machines. One that lies where the workload may
//! write is not: it may have been planted there the last time, to have the place that it points at granted this time.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat2};

/// Links followed on the way to one place; the kernel's own bound (path_resolution(7)).
const LINKS: usize = 40;

/// Opens what `path` names as a place (`O_PATH`). Links inside `writable` are refused.
///
/// # Errors
/// What the calls answered; `PermissionDenied` with the link for one that is refused.
pub(super) fn open(path: &Path, writable: &[PathBuf]) -> io::Result<OwnedFd> {
    match open_without_links(path) {
        Err(Errno::ELOOP) => {}
        opened => return Ok(opened?),
    }
    let resolved = resolve(path, writable)?;
    // No link is left in it. If one appears now, somebody is racing us.
    Ok(open_without_links(&resolved)?)
}

/// Answers `ELOOP` where there is a link on the way, or at its end (openat2(2)).
fn open_without_links(path: &Path) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC).resolve(ResolveFlag::RESOLVE_NO_SYMLINKS);
    openat2(AT_FDCWD, path, how)
}

fn resolve(path: &Path, writable: &[PathBuf]) -> io::Result<PathBuf> {
    let mut here = PathBuf::from("/");
    let mut ahead = components(path);
    let mut links = 0;
    while let Some(component) = ahead.pop() {
        if component == ".." {
            here.pop();
            continue;
        }
        let next = here.join(&component);
        if !next.symlink_metadata()?.file_type().is_symlink() {
            here = next;
            continue;
        }
        if let Some(granted) = writable.iter().find(|granted| here.starts_with(granted)) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "{} is a symbolic link below {}, which the workload may write and so may have made; grant its target \
                     by name",
                    next.display(),
                    granted.display()
                ),
            ));
        }
        links += 1;
        if links > LINKS {
            return Err(Errno::ELOOP.into());
        }
        let target = next.read_link()?;
        if target.is_absolute() {
            here = PathBuf::from("/");
        }
        ahead.extend(components(&target));
    }
    Ok(here)
}

/// The named steps of a path, the first one last.
fn components(path: &Path) -> Vec<OsString> {
    let steps = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    let mut steps: Vec<OsString> = steps.collect();
    steps.reverse();
    steps
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_followed_but_for_those_that_the_workload_may_have_made() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().canonicalize().unwrap().join(name);
        for name in ["secret", "desk", "desk/real", "outer"] {
            fs::create_dir(at(name)).unwrap();
        }
        symlink(at("secret"), at("desk/planted")).unwrap();
        symlink(at("desk"), at("to-desk")).unwrap();
        symlink("../desk/real", at("outer/relative")).unwrap();
        symlink("loop", at("loop")).unwrap();
        let writable = [at("desk")];
        for (path, resolved) in [
            ("desk/real", Ok("desk/real")),
            ("to-desk/real", Ok("desk/real")),
            ("outer/relative", Ok("desk/real")),
            ("outer/../desk", Ok("desk")),
            ("desk/planted", Err(io::ErrorKind::PermissionDenied)),
            ("to-desk/planted", Err(io::ErrorKind::PermissionDenied)),
            ("missing", Err(io::ErrorKind::NotFound)),
        ] {
            let got = resolve(&at(path), &writable).map_err(|error| error.kind());
            assert_eq!(got, resolved.map(at), "{path}");
        }
        assert_eq!(resolve(&at("loop"), &writable).unwrap_err().raw_os_error(), Some(nix::libc::ELOOP));
        assert_eq!(resolve(&at("desk/planted"), &[]).unwrap(), at("secret"), "control");
        assert!(open(&at("desk/planted"), &writable).unwrap_err().to_string().contains("symbolic link below"));
    }
}
