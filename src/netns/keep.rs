//! What the policy grants, which stays visible below what is covered.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use nix::mount::MsFlags;

use super::Error;
use super::object::{Links, Object, bind, make_place};

/// As many links as the kernel follows in one path (path_resolution(7)).
const LINK_LIMIT: usize = 40;

/// The kept paths, opened while everything is still in sight.
#[derive(Debug)]
pub struct Keeps(Vec<Keep>);

#[derive(Debug)]
struct Keep {
    object: Object,
    /// What leads to it from the path as the policy writes it.
    links: Vec<Link>,
}

/// A symbolic link.
#[derive(Debug, PartialEq, Eq)]
struct Link {
    /// Where it is, without links.
    place: PathBuf,
    target: PathBuf,
}

impl Keeps {
    /// Opens those that are there.
    pub fn open(paths: &[PathBuf]) -> Result<Self, Error> {
        let mut keeps = Vec::new();
        for path in paths {
            if let Some(object) = Object::open(path, Links::Followed)? {
                let links = if *path == object.path { Vec::new() } else { links(path) };
                keeps.push(Keep { object, links });
            }
        }
        // The outermost first, so that a kept path inside another is not buried.
        keeps.sort_by_key(|keep| keep.object.path.components().count());
        Ok(Self(keeps))
    }

    /// Whether exactly this path is kept.
    pub fn name(&self, path: &Path) -> bool {
        self.0.iter().any(|keep| keep.object.path == path)
    }

    /// Whether this path is kept with all that is in it.
    pub fn contain(&self, path: &Path) -> bool {
        self.0.iter().any(|keep| path.starts_with(&keep.object.path))
    }

    /// Opens `path` again, where it is kept: something was mounted there.
    pub fn renew(&mut self, path: &Path) -> Result<(), Error> {
        for keep in self.0.iter_mut().filter(|keep| keep.object.path == path) {
            keep.object = Object::open_made(path)?;
        }
        Ok(())
    }

    /// Whether anything in `covered` has to show.
    pub fn any_in(&self, covered: &Path) -> bool {
        let links = |keep: &Keep| keep.links.iter().any(|link| below(&link.place, covered));
        self.0.iter().any(|keep| below(&keep.object.path, covered) || links(keep))
    }

    /// Makes in `tree`, which is to take the place of `covered`, what leads to the kept paths: empty directories that
    /// anyone may pass, and the links as they are.
    pub fn lay_out(&self, covered: &Path, tree: &Path) -> Result<(), Error> {
        let inside = |path: &Path| path.strip_prefix(covered).map(|rest| tree.join(rest)).unwrap_or_default();
        for keep in self.0.iter().filter(|keep| below(&keep.object.path, covered)) {
            make_place(tree, &inside(&keep.object.path), keep.object.is_directory())?;
        }
        for link in self.0.iter().flat_map(|keep| &keep.links).filter(|link| below(&link.place, covered)) {
            let place = inside(&link.place);
            if let Some(parent) = place.parent() {
                make_place(tree, parent, true)?;
            }
            if fs::symlink_metadata(&place).is_err() {
                symlink(&link.target, &place).map_err(|source| Error::Hide {
                    path: link.place.clone(),
                    call: "symlink",
                    source,
                })?;
            }
        }
        Ok(())
    }

    /// Binds the kept paths to their places in `covered`, which a tree on the file system `device` now covers.
    pub fn show_in(&self, covered: &Path, device: u64) -> Result<(), Error> {
        for keep in self.0.iter().filter(|keep| below(&keep.object.path, covered)) {
            // What is not of the tree any more came into sight with another kept path.
            if let Some(place) = Object::open(&keep.object.path, Links::Refused)?
                && place.device() == device
            {
                // Recursively: a part of an inherited mount cannot be bound without what is mounted in it, since that
                // could uncover something (mount_namespaces(7)).
                bind(&keep.object, &place, MsFlags::MS_REC)?;
            }
        }
        Ok(())
    }
}

fn below(path: &Path, above: &Path) -> bool {
    path != above && path.starts_with(above)
}

/// The symbolic links that a path leads through, in their order.
fn links(written: &Path) -> Vec<Link> {
    let names = |path: &Path| -> Vec<OsString> {
        path.components()
            .rev()
            .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
            .map(|part| part.as_os_str().to_os_string())
            .collect()
    };
    let mut links = Vec::new();
    let mut real = PathBuf::from("/");
    // What is still to be walked, the next name last.
    let mut ahead = names(written);
    while let Some(name) = ahead.pop() {
        if name == ".." {
            real.pop();
            continue;
        }
        let place = real.join(&name);
        match fs::read_link(&place) {
            Ok(_) if links.len() == LINK_LIMIT => break,
            Ok(target) => {
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                ahead.extend(names(&target));
                links.push(Link { place, target });
            }
            Err(_) => real = place,
        }
    }
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_where_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        symlink("../a", root.join("a/up")).unwrap();
        symlink(root.join("a/up/b"), root.join("far")).unwrap();
        symlink("loop", root.join("loop")).unwrap();
        let link = |place: &str, target: PathBuf| Link { place: root.join(place), target };
        let expected = [link("far", root.join("a/up/b")), link("a/up", "../a".into())];
        assert_eq!(links(&root.join("a/../far")), expected);
        assert_eq!(links(&root.join("a/b")), []);
        assert_eq!(links(&root.join("loop")).len(), LINK_LIMIT);
    }
}
