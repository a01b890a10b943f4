//! Files that are shown in the workload's view and nowhere else.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::MsFlags;
use nix::sys::stat::SFlag;

use super::object::{Links, Object, bind, make_place};
use super::{Error, Provided, failed};

/// Kilobytes of a page, the unit in which a tmpfs counts what it holds; the largest that Linux has on machines of ours
/// is 64.
const PAGE: usize = 64;

/// What is provided, and the place without links, as it was before anything was covered.
pub(super) struct Place<'i> {
    provided: &'i Provided,
    directory: PathBuf,
}

impl<'i> Place<'i> {
    /// Finds the place. Its uppermost directory must be there.
    pub(super) fn of(provided: &'i Provided) -> Result<Self, Error> {
        let listed = |source: io::Error| Error::Hide { path: provided.directory.clone(), call: "realpath", source };
        let mut parts = provided.directory.components();
        let top: PathBuf = parts.by_ref().take(2).collect();
        let directory = fs::canonicalize(top).map_err(listed)?.join(parts.as_path());
        Ok(Self { provided, directory })
    }

    /// What a tmpfs needs to hold it.
    pub(super) fn kilobytes(&self) -> usize {
        self.provided.files.iter().map(|file| (file.content.len() >> 10) + PAGE).sum()
    }

    /// Whether it is to be found below `covered`.
    pub(super) fn is_in(&self, covered: &Path) -> bool {
        self.directory.starts_with(covered) && self.directory != covered
    }

    /// Writes the files into `tree`, which is to take the place of `covered`.
    pub(super) fn lay_out(&self, covered: &Path, tree: &Path) -> Result<(), Error> {
        let inside = tree.join(self.directory.strip_prefix(covered).unwrap_or(&self.directory));
        make_place(tree, &inside, true)?;
        for file in &self.provided.files {
            let path = inside.join(&file.name);
            let written = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&path).and_then(|mut to| {
                to.write_all(&file.content)?;
                // The mode above is subject to the umask.
                to.set_permissions(Permissions::from_mode(0o444))
            });
            written.map_err(|source| Error::Hide { path, call: "write", source })?;
        }
        Ok(())
    }

    /// Shows the files in the place of others, once all is covered; makes sure that they can be seen at all.
    pub(super) fn stand_in(&self) -> Result<(), Error> {
        for file in &self.provided.files {
            let path = self.directory.join(&file.name);
            let object =
                Object::open(&path, Links::Refused)?.ok_or_else(|| failed(&path, "open(O_PATH)")(Errno::ENOENT))?;
            for place in &file.in_place_of {
                if let Some(over) = Object::open(place, Links::Followed)?
                    && over.kind() == SFlag::S_IFREG
                {
                    bind(&object, &over, MsFlags::empty())?;
                }
            }
        }
        Ok(())
    }
}
