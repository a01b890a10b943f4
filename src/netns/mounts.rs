//! The workload's mount namespace: nothing propagates, and it is made of what the policy grants.
//!
//! Whatever lies in `/` is covered unless it is granted whole, with the granted paths in it in sight: a socket that is
//! bound tomorrow is as far out of reach as one of today. What is granted whole, and `/dev`, have what [`outside`]
//! lists covered. Scratch space, shared memory and terminals are the workload's own ([`fresh`]).
//!
//! Every cover is a bind of an empty directory or an empty file of mode 000, from one small tmpfs that is read-only in
//! the end. Covering needs no rights over what is covered, also in a user namespace, where the mounts that were there
//! are locked in place (mount_namespaces(7)); taking a cover away again needs CAP_SYS_ADMIN, which no workload has.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{Mode, SFlag};

use super::keep::Keeps;
use super::object::{Links, Object, bind, make_directory, make_file};
use super::{Error, Isolation, failed, fresh, outside, provided};

/// Places where the tmpfs may stand while covers are made from it: directories that every image has, of which one
/// that holds nothing to hide is taken.
const STAGES: [&str; 7] = ["/usr", "/sys", "/dev", "/lib", "/opt", "/srv", "/mnt"];

/// A system has some twenty. Each is a mount, and a namespace may hold 100,000 (`fs.mount-max`).
const ROOT_LIMIT: usize = 1024;

/// Kilobytes of the tmpfs, which holds names and no content but what is provided: a few pages.
const TMPFS_SIZE: usize = 256;

/// As many names as could be kept below hidden directories.
const TMPFS_NAMES: usize = 4096;

/// Covers what must not be seen in the caller's mount namespace, which is private already; see the module.
///
/// Returns what is remarkable: a granted path that stays hidden.
///
/// # Errors
/// Something that should be covered is there and cannot be covered.
pub fn hide(isolation: &Isolation, sockets: &BTreeSet<PathBuf>) -> Result<Vec<String>, Error> {
    hide_with(isolation, sockets, fresh::mount_devpts)
}

/// The same where `mount_terminals` mounts a devpts.
pub(super) fn hide_with(
    isolation: &Isolation,
    sockets: &BTreeSet<PathBuf>,
    mount_terminals: impl FnOnce(&Object) -> Result<(), Errno>,
) -> Result<Vec<String>, Error> {
    let mut keeps = Keeps::open(&isolation.keep)?;
    let mut targets = targets(isolation)?;
    targets.extend(ungranted(&keeps)?);
    targets.extend(sockets.iter().cloned().chain(outside::mount_points()?).map(|path| Target {
        path,
        links: Links::Refused,
        kind: Kind::Socket,
    }));
    // Found while nothing is covered yet, the stage included: a path may lead through links to anywhere.
    let mut real = BTreeSet::new();
    for target in &targets {
        if let Some(object) = target.open()? {
            real.insert((object.path.components().count(), object.path));
        }
    }
    let fresh = fresh::replace(isolation, &mut keeps, mount_terminals)?;
    let refused = fresh.refused.iter().map(|(path, _)| path);
    let hidden = real.iter().map(|(_, path)| path).chain(refused).map(PathBuf::as_path);
    let provided = isolation.provided.as_ref().map(provided::Place::of).transpose()?;
    let mut cover = Cover::stage(hidden, provided)?;
    cover.devices.extend(fresh.devices);
    let mut notes = Vec::new();
    if keeps.name(Path::new("/")) {
        notes.push(
            "the policy grants / whole, so nothing in it is hidden but what is known to be dangerous; sockets that \
             programs of this machine bind from now on are in the workload's reach"
                .to_string(),
        );
    }
    if let Some((path, note)) = fresh.refused {
        bind(&cover.directory, &Object::open_made(&path)?, MsFlags::empty())?;
        notes.push(note);
    }
    // The outermost first. Opened anew each time: the cover before may have hidden it, or a kept path may have
    // brought it back.
    for (_, path) in &real {
        if let Some(object) = Object::open(path, Links::Refused)? {
            cover.over(&object, &keeps, &mut notes)?;
        }
    }
    if let Some(provided) = &cover.provided {
        provided.stand_in()?;
    }
    cover.finish()?;
    Ok(notes)
}

/// Cuts the caller's mount namespace off from the one that it was copied from.
pub(super) fn make_private() -> Result<(), Error> {
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
        .map_err(failed("/", "mount(MS_REC | MS_PRIVATE)"))
}

/// Whether something can be covered in the caller's mount namespace, a new one.
pub(super) fn try_cover() -> Result<(), Error> {
    make_private()?;
    Cover::stage(std::iter::empty(), None)?.finish()
}

/// Mounts a fresh procfs over `/proc`, which shows the caller's PID namespace alone, and opens it. To be called by the
/// first process of a new PID namespace, in a mount namespace of its own.
///
/// # Errors
/// [`Error::ProcMasked`] where the kernel refuses because the present one is partly covered (`mount_too_revealing`):
/// the caller may go on without a PID namespace; [`Error::Proc`] for anything else.
pub fn private_proc() -> Result<OwnedFd, Error> {
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("proc"), "/proc", Some("proc"), flags, None::<&str>).map_err(|errno| match errno {
        Errno::EPERM => Error::ProcMasked(errno.into()),
        errno => Error::Proc { call: "mount", source: errno.into() },
    })?;
    open("/proc", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())
        .map_err(|errno| Error::Proc { call: "open", source: errno.into() })
}

/// What a path must be to be covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Any,
    Directory,
    Socket,
}

#[derive(Clone, Debug)]
struct Target {
    path: PathBuf,
    links: Links,
    kind: Kind,
}

impl Target {
    fn open(&self) -> Result<Option<Object>, Error> {
        // Most mount points are none, and a look costs a quarter of what opening does.
        if self.kind == Kind::Socket
            && fs::symlink_metadata(&self.path).is_ok_and(|status| !status.file_type().is_socket())
        {
            return Ok(None);
        }
        let Some(object) = Object::open(&self.path, self.links)? else { return Ok(None) };
        let fits = match self.kind {
            Kind::Any => object.kind() != SFlag::S_IFLNK,
            Kind::Directory => object.is_directory(),
            Kind::Socket => object.kind() == SFlag::S_IFSOCK,
        };
        Ok(fits.then_some(object))
    }
}

/// Everything to cover except the sockets of the list.
fn targets(isolation: &Isolation) -> Result<Vec<Target>, Error> {
    let mut targets: Vec<Target> = outside::DIRECTORIES
        .iter()
        .map(|path| Target { path: path.into(), links: Links::Followed, kind: Kind::Directory })
        .collect();
    let below_tmp = |name: &OsStr| {
        let path = Path::new(outside::TMP).join(name);
        Target { path, links: Links::Refused, kind: Kind::Directory }
    };
    targets.extend(outside::TMP_DIRECTORIES.iter().map(|name| below_tmp(name.as_ref())));
    let mut agents = 0;
    for entry in fs::read_dir(outside::TMP).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let agent = outside::TMP_PREFIXES.iter().any(|prefix| name.as_encoded_bytes().starts_with(prefix.as_bytes()));
        if agent {
            agents += 1;
            if agents > outside::TMP_LIMIT {
                return Err(Error::TooMany { what: "agents' directories in /tmp", limit: outside::TMP_LIMIT });
            }
            targets.push(below_tmp(&name));
        }
    }
    targets.extend(isolation.hide.iter().map(|path| Target {
        path: path.clone(),
        links: Links::Followed,
        kind: Kind::Any,
    }));
    Ok(targets)
}

/// The directories in `/` that the policy does not grant whole. `/dev` and `/proc` are no store of anything and belong
/// to the kernel; what of them is dangerous is dealt with piece by piece.
fn ungranted(keeps: &Keeps) -> Result<Vec<Target>, Error> {
    const ROOT: &str = "/";
    const KERNEL: [&str; 2] = ["/dev", "/proc"];
    let listing = |source: io::Error| Error::Listing { path: ROOT, source };
    let mut targets = Vec::new();
    for entry in fs::read_dir(ROOT).map_err(listing)? {
        let entry = entry.map_err(listing)?;
        let path = entry.path();
        let kernel = KERNEL.iter().any(|kernel| path == Path::new(kernel));
        // A link leads into another of them.
        if entry.file_type().map_err(listing)?.is_dir() && !kernel && !keeps.contain(&path) {
            if targets.len() == ROOT_LIMIT {
                return Err(Error::TooMany { what: "directories in /", limit: ROOT_LIMIT });
            }
            targets.push(Target { path, links: Links::Refused, kind: Kind::Directory });
        }
    }
    Ok(targets)
}

/// The tmpfs that covers are made from.
struct Cover<'i> {
    stage: PathBuf,
    /// Files to be found below what is covered.
    provided: Option<provided::Place<'i>>,
    /// Numbers of the tmpfs, first, and of other file systems that have nothing of the machine's: what lies on them
    /// is as good as covered.
    devices: Vec<u64>,
    directory: Object,
    file: Object,
    /// Number of directories made for kept paths.
    made: usize,
}

impl<'i> Cover<'i> {
    /// Mounts it where nothing of `hidden` is.
    fn stage<'p>(
        hidden: impl Iterator<Item = &'p Path> + Clone,
        provided: Option<provided::Place<'i>>,
    ) -> Result<Self, Error> {
        let free = |stage: &str| {
            Object::open(Path::new(stage), Links::Refused)
                .ok()
                .flatten()
                .filter(Object::is_directory)
                .filter(|_| !hidden.clone().any(|path| path.starts_with(stage)))
        };
        let place = STAGES.into_iter().find_map(free).ok_or_else(|| Error::NoStage(STAGES.join(", ")))?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        let size = TMPFS_SIZE + provided.as_ref().map_or(0, provided::Place::kilobytes);
        let options = format!("mode=0755,size={size}k,nr_inodes={TMPFS_NAMES}");
        mount(Some("tmpfs"), &place.by_fd(), Some("tmpfs"), flags, Some(options.as_str()))
            .map_err(failed(&place.path, "mount(tmpfs)"))?;
        let stage = place.path;
        make_directory(&stage.join("directory"), 0o555)?;
        make_file(&stage.join("file"), 0o000)?;
        let (directory, file) = (Object::open_made(&stage.join("directory"))?, Object::open_made(&stage.join("file"))?);
        let devices = vec![directory.device()];
        Ok(Self { stage, provided, devices, directory, file, made: 0 })
    }

    /// Covers `object`, and lets the kept paths below it show through.
    fn over(&mut self, object: &Object, keeps: &Keeps, notes: &mut Vec<String>) -> Result<(), Error> {
        if self.devices.contains(&object.device()) {
            return Ok(());
        }
        if object.path == Path::new("/") {
            return Err(Error::HideRoot(object.path.clone()));
        }
        let named = keeps.name(&object.path);
        if !object.is_directory() {
            // A file or socket that the policy names is granted; that is a decision about this one.
            return if named { Ok(()) } else { bind(&self.file, object, MsFlags::empty()) };
        }
        if named {
            notes.push(format!(
                "{} stays hidden although the policy grants it, since sockets in it would be in reach; grant the \
                 paths below it that are needed",
                object.path.display()
            ));
        }
        let provided = self.provided.as_ref().filter(|provided| provided.is_in(&object.path));
        if !keeps.any_in(&object.path) && provided.is_none() {
            return bind(&self.directory, object, MsFlags::empty());
        }
        // A tree that has nothing but what leads to the kept paths.
        let tree = self.stage.join(self.made.to_string());
        self.made += 1;
        make_directory(&tree, 0o755)?;
        keeps.lay_out(&object.path, &tree)?;
        if let Some(provided) = provided {
            provided.lay_out(&object.path, &tree)?;
        }
        let root = Object::open_made(&tree)?;
        bind(&root, object, MsFlags::empty())?;
        keeps.show_in(&object.path, root.device())
    }

    /// Makes the tmpfs read-only wherever it shows, and takes it off its stage.
    fn finish(self) -> Result<(), Error> {
        let flags =
            MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(None::<&str>, &self.stage, None::<&str>, flags, None::<&str>)
            .map_err(failed(&self.stage, "mount(MS_REMOUNT | MS_RDONLY)"))?;
        umount2(&self.stage, MntFlags::MNT_DETACH).map_err(failed(&self.stage, "umount2(MNT_DETACH)"))
    }
}
