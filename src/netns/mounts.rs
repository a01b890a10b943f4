//! The workload's mount namespace: nothing propagates, and what [`outside`] lists is covered.
//!
//! Every cover is a bind of an empty directory or an empty file of mode 000, from one small tmpfs that is read-only in
//! the end. Covering needs no rights over what is covered, also in a user namespace, where the mounts that were there
//! are locked in place (mount_namespaces(7)); taking a cover away again needs CAP_SYS_ADMIN, which no workload has.
//!
//! What is covered is always the object that was opened and looked at, by its `/proc/self/fd` name, never a path that
//! somebody could exchange in between.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};

use super::{Error, Isolation, failed, outside};

/// Places where the tmpfs may stand while covers are made from it: directories that every image has, of which one
/// that holds nothing to hide is taken.
const STAGES: [&str; 7] = ["/usr", "/sys", "/dev", "/lib", "/opt", "/srv", "/mnt"];

/// The tmpfs holds names and no content: a few pages, and as many names as could be kept below hidden directories.
const TMPFS: &str = "mode=0755,size=256k,nr_inodes=4096";

/// Makes the caller's mount namespace private and covers what must not be seen; see the module.
///
/// Returns what is remarkable: a granted path that stays hidden.
///
/// # Errors
/// Something that should be covered is there and cannot be covered.
pub fn hide(isolation: &Isolation, sockets: &BTreeSet<PathBuf>) -> Result<Vec<String>, Error> {
    make_private()?;
    let keeps = keeps(&isolation.keep)?;
    let mut targets = targets(isolation)?;
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
    let mut cover = Cover::stage(real.iter().map(|(_, path)| path.as_path()))?;
    let mut notes = Vec::new();
    // The outermost first. Opened anew each time: the cover before may have hidden it, or a kept path may have
    // brought it back.
    for (_, path) in &real {
        if let Some(object) = object(path, Links::Refused)? {
            cover.over(&object, &keeps, &mut notes)?;
        }
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
    Cover::stage(std::iter::empty())?.finish()
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

/// Whether a symbolic link in the last place of a path may lead on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Links {
    Followed,
    Refused,
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

/// An opened object (`O_PATH`).
#[derive(Debug)]
struct Object {
    fd: OwnedFd,
    /// Where it is, without links.
    path: PathBuf,
    status: FileStat,
}

impl Object {
    fn by_fd(&self) -> PathBuf {
        by_fd(&self.fd)
    }

    fn kind(&self) -> SFlag {
        SFlag::from_bits_truncate(self.status.st_mode) & SFlag::S_IFMT
    }

    fn is_directory(&self) -> bool {
        self.kind() == SFlag::S_IFDIR
    }
}

fn by_fd(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Opens `path` without touching what it names; `None` where it is not there, or out of the caller's own reach, which
/// is then out of the workload's as well.
fn object(path: &Path, links: Links) -> Result<Option<Object>, Error> {
    let mut flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
    if links == Links::Refused {
        flags |= OFlag::O_NOFOLLOW;
    }
    let fd = match open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ELOOP | Errno::ENAMETOOLONG | Errno::EINVAL) => {
            return Ok(None);
        }
        Err(errno) => return Err(failed(path, "open(O_PATH)")(errno)),
    };
    let status = fstat(&fd).map_err(failed(path, "fstat"))?;
    let real = fs::read_link(by_fd(&fd)).map_err(|source| Error::Hide {
        path: path.to_path_buf(),
        call: "readlink(/proc/self/fd)",
        source,
    })?;
    Ok(Some(Object { fd, path: real, status }))
}

impl Target {
    fn open(&self) -> Result<Option<Object>, Error> {
        let Some(object) = object(&self.path, self.links)? else { return Ok(None) };
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
    let below_tmp = |name: &std::ffi::OsStr| {
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

/// A path that stays visible.
#[derive(Debug)]
struct Keep {
    /// As the policy writes it.
    written: PathBuf,
    object: Object,
}

fn keeps(paths: &[PathBuf]) -> Result<Vec<Keep>, Error> {
    let mut keeps = Vec::new();
    for path in paths {
        if let Some(object) = object(path, Links::Followed)? {
            keeps.push(Keep { written: path.clone(), object });
        }
    }
    Ok(keeps)
}

/// The tmpfs that covers are made from.
struct Cover {
    stage: PathBuf,
    /// Device number of the tmpfs: what lies on it is covered already.
    device: u64,
    directory: Object,
    file: Object,
    /// Number of directories made for kept paths.
    made: usize,
}

impl Cover {
    /// Mounts it where nothing of `hidden` is.
    fn stage<'p>(hidden: impl Iterator<Item = &'p Path> + Clone) -> Result<Self, Error> {
        let free = |stage: &str| {
            object(Path::new(stage), Links::Refused)
                .ok()
                .flatten()
                .filter(Object::is_directory)
                .filter(|_| !hidden.clone().any(|path| path.starts_with(stage)))
        };
        let place = STAGES.into_iter().find_map(free).ok_or_else(|| Error::NoStage(STAGES.join(", ")))?;
        let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
        mount(Some("tmpfs"), &place.by_fd(), Some("tmpfs"), flags, Some(TMPFS))
            .map_err(failed(&place.path, "mount(tmpfs)"))?;
        let stage = place.path;
        make_directory(&stage.join("directory"), 0o555)?;
        make_file(&stage.join("file"), 0o000)?;
        let (directory, file) = (open_made(&stage.join("directory"))?, open_made(&stage.join("file"))?);
        let device = directory.status.st_dev;
        Ok(Self { stage, device, directory, file, made: 0 })
    }

    /// Covers `object`, and lets the kept paths below it show through.
    fn over(&mut self, object: &Object, keeps: &[Keep], notes: &mut Vec<String>) -> Result<(), Error> {
        if object.status.st_dev == self.device {
            return Ok(());
        }
        if object.path == Path::new("/") {
            return Err(Error::HideRoot(object.path.clone()));
        }
        let named = keeps.iter().any(|keep| keep.object.path == object.path);
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
        let below = |path: &Path| path != object.path && path.starts_with(&object.path);
        let bound: Vec<&Keep> = keeps.iter().filter(|keep| below(&keep.object.path)).collect();
        let linked: Vec<&Keep> =
            keeps.iter().filter(|keep| keep.written != keep.object.path && below(&keep.written)).collect();
        if bound.is_empty() && linked.is_empty() {
            return bind(&self.directory, object, MsFlags::empty());
        }

        // A tree that has nothing but what leads to the kept paths.
        let tree = self.stage.join(self.made.to_string());
        self.made += 1;
        make_directory(&tree, 0o755)?;
        let inside = |path: &Path| path.strip_prefix(&object.path).map(|rest| tree.join(rest)).unwrap_or_default();
        for keep in &bound {
            make_place(&tree, &inside(&keep.object.path), keep.object.is_directory())?;
        }
        for keep in linked {
            let place = inside(&keep.written);
            if fs::symlink_metadata(&place).is_err() {
                if let Some(parent) = place.parent() {
                    make_place(&tree, parent, true)?;
                }
                symlink(&keep.object.path, &place).map_err(|source| Error::Hide {
                    path: object.path.clone(),
                    call: "symlink",
                    source,
                })?;
            }
        }
        let root = open_made(&tree)?;
        bind(&root, object, MsFlags::empty())?;
        // The outermost first, so that a kept path inside another is not buried.
        let mut bound = bound;
        bound.sort_by_key(|keep| keep.object.path.components().count());
        for keep in bound {
            // Where a link of another kept path stands in the way, the object is in sight by that one.
            if let Some(place) = self::object(&keep.object.path, Links::Refused)?
                && place.status.st_dev == self.device
            {
                // Recursively: a part of an inherited mount cannot be bound without what is mounted in it, since that
                // could uncover something (mount_namespaces(7)).
                bind(&keep.object, &place, MsFlags::MS_REC)?;
            }
        }
        Ok(())
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

fn bind(what: &Object, over: &Object, flags: MsFlags) -> Result<(), Error> {
    mount(Some(&what.by_fd()), &over.by_fd(), None::<&str>, MsFlags::MS_BIND | flags, None::<&str>)
        .map_err(failed(&over.path, "mount(MS_BIND)"))
}

fn open_made(path: &Path) -> Result<Object, Error> {
    object(path, Links::Refused)?.ok_or_else(|| failed(path, "open(O_PATH)")(Errno::ENOENT))
}

/// Makes `place` below `tree`, and the directories that lead to it, unless they are there.
fn make_place(tree: &Path, place: &Path, directory: bool) -> Result<(), Error> {
    let mut path = tree.to_path_buf();
    let mut names = place.strip_prefix(tree).unwrap_or(place).components().peekable();
    while let Some(name) = names.next() {
        path.push(name);
        if fs::symlink_metadata(&path).is_ok() {
            continue;
        }
        if names.peek().is_some() || directory {
            make_directory(&path, 0o755)?;
        } else {
            make_file(&path, 0o000)?;
        }
    }
    Ok(())
}

/// Makes a directory of exactly this mode.
fn make_directory(path: &Path, mode: u32) -> Result<(), Error> {
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)))
        .map_err(|source| Error::Hide { path: path.to_path_buf(), call: "mkdir", source })
}

/// Makes an empty file of exactly this mode.
fn make_file(path: &Path, mode: u32) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .and_then(|file| file.set_permissions(Permissions::from_mode(mode)))
        .map_err(|source| Error::Hide { path: path.to_path_buf(), call: "creat", source })
}
