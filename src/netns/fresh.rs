//! Places that are empty and the workload's own: scratch space, shared memory, terminals.

use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MsFlags, mount};

use super::keep::Keeps;
use super::object::{Links, Object, bind};
use super::{Error, Isolation, failed};

/// Scratch space for all.
const TMP: &str = "/tmp";
/// The other one. Only where the policy grants it; otherwise it is covered with `/var`.
const VAR_TMP: &str = "/var/tmp";
const SHARED_MEMORY: &str = "/dev/shm";
const TERMINALS: &str = "/dev/pts";
const NEW_TERMINAL: &str = "/dev/ptmx";

/// In memory, so a workload may fill a quarter of that (a container's own limit counts it as well), with as many
/// names as a large checkout or build leaves there. Sticky, as tmp is everywhere.
const SCRATCH: &str = "mode=1777,size=25%,nr_inodes=512k";

/// An instance of its own, as every mount of devpts is since Linux 4.7; older kernels must be told. Without `ptmxmode`
/// nobody but root could open a terminal, and 0620 keeps other users from reading one (mount(8), devpts).
const DEVPTS: &str = "newinstance,ptmxmode=0666,mode=620";

/// What was mounted.
#[derive(Debug, Default)]
pub struct Fresh {
    /// Numbers of the file systems: what lies on them has nothing of the machine's.
    pub devices: Vec<u64>,
    /// What could not be replaced and has to be covered, with why.
    pub refused: Option<(PathBuf, String)>,
}

/// Mounts them, with the kept paths in them in sight.
///
/// # Errors
/// One that is there cannot be replaced.
pub fn replace(
    isolation: &Isolation,
    keeps: &mut Keeps,
    mount_terminals: impl FnOnce(&Object) -> Result<(), Errno>,
) -> Result<Fresh, Error> {
    let mut fresh = Fresh::default();
    fresh.scratch(SHARED_MEMORY, keeps)?;
    if isolation.private_tmp {
        fresh.scratch(TMP, keeps)?;
        if keeps.contain(Path::new(VAR_TMP)) {
            fresh.scratch(VAR_TMP, keeps)?;
        }
    }
    fresh.terminals(keeps, mount_terminals)?;
    Ok(fresh)
}

/// Mounts a new devpts over a directory.
pub fn mount_devpts(over: &Object) -> Result<(), Errno> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("devpts"), &over.by_fd(), Some("devpts"), flags, Some(DEVPTS))
}

impl Fresh {
    fn scratch(&mut self, path: &str, keeps: &mut Keeps) -> Result<(), Error> {
        let Some(old) = directory(path)? else { return Ok(()) };
        if self.devices.contains(&old.device()) {
            // One is a link to the other.
            return Ok(());
        }
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
        mount(Some("tmpfs"), &old.by_fd(), Some("tmpfs"), flags, Some(SCRATCH))
            .map_err(failed(&old.path, "mount(tmpfs)"))?;
        let device = replaced(&old)?.device();
        keeps.renew(&old.path)?;
        keeps.lay_out(&old.path, &old.path)?;
        keeps.show_in(&old.path, device)?;
        self.devices.push(device);
        Ok(())
    }

    /// Terminals of the same user could be read and written by their names in the machine's devpts. The one that the
    /// workload was handed goes on by its descriptors and `/dev/tty`, though no longer by a name (ttyname(3) fails).
    fn terminals(
        &mut self,
        keeps: &mut Keeps,
        mount_over: impl FnOnce(&Object) -> Result<(), Errno>,
    ) -> Result<(), Error> {
        let Some(old) = directory(TERMINALS)? else { return Ok(()) };
        if let Err(errno) = mount_over(&old) {
            let note = format!(
                "the workload cannot open terminals, since {} is hidden: no devpts of its own can be mounted: {errno} \
                 (CONFIG_UNIX98_PTYS)",
                old.path.display()
            );
            self.refused = Some((old.path, note));
            return Ok(());
        }
        let new = replaced(&old)?;
        keeps.renew(&old.path)?;
        self.devices.push(new.device());
        // Often a link to pts/ptmx. The device node finds the devpts that lies beside it (since Linux 4.7); a bind of
        // the machine's own pts/ptmx does not.
        if let Some(master) = Object::open(Path::new(NEW_TERMINAL), Links::Followed)?
            && master.device() != new.device()
        {
            bind(&Object::open_made(&old.path.join("ptmx"))?, &master, MsFlags::empty())?;
            keeps.renew(&master.path)?;
        }
        Ok(())
    }
}

fn directory(path: &str) -> Result<Option<Object>, Error> {
    Ok(Object::open(Path::new(path), Links::Followed)?.filter(Object::is_directory))
}

/// What is now where `old` was.
fn replaced(old: &Object) -> Result<Object, Error> {
    let new = Object::open_made(&old.path)?;
    if new.device() == old.device() {
        return Err(failed(&old.path, "mount: not in effect")(Errno::EBUSY));
    }
    Ok(new)
}
