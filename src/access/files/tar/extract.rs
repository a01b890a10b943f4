//! Archives into a directory.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, UtimensatFlags, fchmod, fstat, fstatat, futimens, mkdirat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, ftruncate, linkat, symlinkat, unlinkat};

use super::archive::{Archive, Kind, Member};
use super::report::Report;
use super::tree::{PathError, Tree, names};
use super::{Summary, TarError};
use crate::access::files::staged::{self, Staged, from_io, kind, under_temporary_name, write_all_at};
use crate::access::files::times;

/// What of a mode is taken: nothing that would run with another's rights.
const PERMISSIONS: u32 = 0o777;

/// Why a member is not there.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("refused: it is {0}; files, directories and links are made")]
    Kind(&'static str),
    #[error("{}", .0.desc())]
    Kernel(Errno),
    #[error("a directory is there; nothing else takes its place")]
    DirectoryThere,
    #[error("something else than a directory is there; none takes its place")]
    OtherThere,
    #[error("refused: it was not asked for")]
    Unwanted,
    #[error("refused: it is a link to what was not asked for")]
    TargetUnwanted,
    #[error("a link without a target")]
    NoTarget,
    #[error("the target of the link: {0}")]
    Target(PathError),
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

/// What ends a member: itself, or everything.
enum Failed {
    Member(Refusal),
    Archive(TarError),
}

impl<R: Into<Refusal>> From<R> for Failed {
    fn from(refusal: R) -> Self {
        Self::Member(refusal.into())
    }
}

impl From<TarError> for Failed {
    fn from(error: TarError) -> Self {
        Self::Archive(error)
    }
}

/// What of an archive is taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All that lies in the directory.
    Everything,
    /// What has this name in the directory, and what is in it.
    Named(Vec<u8>),
}

impl Wanted {
    fn has(&self, names: &[&[u8]]) -> bool {
        match self {
            Self::Everything => true,
            Self::Named(name) => names.first() == Some(&name.as_slice()),
        }
    }
}

/// A directory that was made, and what it will be when everything is in it.
struct Made {
    names: Vec<Vec<u8>>,
    mode: u32,
    modified: Option<(i64, u32)>,
}

/// Takes what is `wanted` of an archive into a directory that is there, and reads the stream to its end. What could not be
/// made, or is not wanted, is told in `report`, a line each, and counted in the summary.
///
/// # Errors
/// The directory cannot be used, the stream fails, breaks off or is no archive. What was complete then is in place.
pub fn extract(
    input: impl Read,
    directory: &Path,
    wanted: &Wanted,
    report: &mut dyn Write,
) -> Result<Summary, TarError> {
    let path = || directory.to_owned();
    let tree = Tree::open(directory).map_err(|error| TarError::Directory { path: path(), error })?;
    let mut extraction =
        Extraction { tree, wanted, report: Report::new(report), summary: Summary::default(), unfinished: Vec::new() };
    let mut archive = Archive::new(input);
    let outcome = extraction.all(&mut archive);
    extraction.finish_directories(&[]);
    outcome?;
    archive.drain()?;
    Ok(extraction.summary)
}

struct Extraction<'w> {
    tree: Tree,
    wanted: &'w Wanted,
    report: Report<'w>,
    summary: Summary,
    /// Directories that were made and may still be filled, each below the one before it.
    unfinished: Vec<Made>,
}

impl Extraction<'_> {
    fn all<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<(), TarError> {
        while let Some(member) = archive.next()? {
            match self.member(archive, &member) {
                Ok(()) => {}
                Err(Failed::Archive(error)) => return Err(error),
                Err(Failed::Member(refusal)) => {
                    self.summary.failed += 1;
                    self.report.tell(&member.path, &refusal);
                }
            }
        }
        Ok(())
    }

    fn member<R: Read>(&mut self, archive: &mut Archive<R>, member: &Member) -> Result<(), Failed> {
        if let Kind::Refused(what) = member.kind {
            return Err(Refusal::Kind(what).into());
        }
        let names = names(&member.path)?;
        if !self.wanted.has(&names) {
            return Err(Refusal::Unwanted.into());
        }
        self.finish_directories(&names);
        let Some((name, parents)) = names.split_last() else {
            // `.`: the directory itself, which is as whoever made it wanted it.
            if member.kind != Kind::Directory {
                return Err(Refusal::DirectoryThere.into());
            }
            self.summary.directories += 1;
            return Ok(());
        };
        let name = OsStr::from_bytes(name);
        match member.kind {
            Kind::Directory => {
                if self.directory(name, parents, member.mode)? {
                    let names = names.iter().map(|name| name.to_vec()).collect();
                    self.unfinished.push(Made { names, mode: member.mode, modified: member.modified });
                }
                self.summary.directories += 1;
            }
            Kind::File => {
                let parent = self.tree.directory(parents, true)?;
                file(archive, member, parent, name)?;
                self.summary.files += 1;
                self.summary.bytes += member.size;
            }
            Kind::SymbolicLink | Kind::HardLink => {
                self.link(member, name, parents)?;
                self.summary.links += 1;
            }
            Kind::Refused(_) => {}
        }
        Ok(())
    }

    /// Makes a directory and says whether it is new. Until it is finished its maker may do everything in it.
    fn directory(&mut self, name: &OsStr, parents: &[&[u8]], mode: u32) -> Result<bool, Refusal> {
        let parent = self.tree.directory(parents, true)?;
        match mkdirat(parent, name, Mode::from_bits_truncate(mode & PERMISSIONS) | Mode::S_IRWXU) {
            Ok(()) => Ok(true),
            Err(Errno::EEXIST) => match found(parent, name)? {
                Some(there) if kind(&there) == SFlag::S_IFDIR => Ok(false),
                _ => Err(Refusal::OtherThere),
            },
            Err(error) => Err(error.into()),
        }
    }

    fn link(&mut self, member: &Member, name: &OsStr, parents: &[&[u8]]) -> Result<(), Refusal> {
        if member.link.is_empty() {
            return Err(Refusal::NoTarget);
        }
        if member.kind == Kind::SymbolicLink {
            // Wherever it points: nothing here follows it.
            let target = OsStr::from_bytes(&member.link);
            let parent = self.tree.directory(parents, true)?;
            replace(parent, name, |name| symlinkat(target, parent, name))?;
            if let Some(modified) = member.modified {
                let (accessed, modified) = (times::UNCHANGED, time(modified));
                utimensat(parent, name, &accessed, &modified, UtimensatFlags::NoFollowSymlink)?;
            }
            return Ok(());
        }
        let target = names(&member.link).map_err(Refusal::Target)?;
        // A file of this side's would go wherever what came goes.
        if !self.wanted.has(&target) {
            return Err(Refusal::TargetUnwanted);
        }
        let (last, above) = target.split_last().ok_or(Refusal::NoTarget)?;
        let above = self.tree.directory(above, false).map_err(Refusal::Target)?;
        let above = above.try_clone_to_owned().map_err(|error| from_io(&error))?;
        let parent = self.tree.directory(parents, true)?;
        replace(parent, name, |name| {
            // Without AT_SYMLINK_FOLLOW: a link as the target gets a second name itself.
            linkat(&above, OsStr::from_bytes(last), parent, name, AtFlags::empty())
        })
    }

    /// Gives the directories that are not above these names what they are to be. The times come last of all that
    /// happens in them, and so does a mode that lets nothing more happen.
    fn finish_directories(&mut self, names: &[&[u8]]) {
        while let Some(made) = self.unfinished.pop_if(|made| !names.starts_with(&slices(&made.names))) {
            if let Err(refusal) = self.finish(&made) {
                self.summary.failed += 1;
                self.report.tell(&made.names.join(&b'/'), &refusal);
            }
        }
    }

    fn finish(&mut self, made: &Made) -> Result<(), Refusal> {
        let names = slices(&made.names);
        let Some((name, parents)) = names.split_last() else { return Ok(()) };
        self.tree.forget();
        let parent = self.tree.directory(parents, false)?;
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = openat(parent, OsStr::from_bytes(name), flags, Mode::empty())?;
        if let Some(modified) = made.modified {
            futimens(&directory, &times::UNCHANGED, &time(modified))?;
        }
        // It was made with all that it is to have but for what the umask takes away, and with its owner's rights.
        let present = fstat(&directory)?.st_mode & !SFlag::S_IFMT.bits();
        let mode = present & (made.mode | !PERMISSIONS);
        if mode != present {
            fchmod(&directory, Mode::from_bits_truncate(mode))?;
        }
        Ok(())
    }
}

fn slices(names: &[Vec<u8>]) -> Vec<&[u8]> {
    names.iter().map(Vec::as_slice).collect()
}

fn time((seconds, nanoseconds): (i64, u32)) -> TimeSpec {
    TimeSpec::new(seconds, nanoseconds.into())
}

/// What lies under a name.
fn found(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Option<FileStat>, Errno> {
    match fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Ok(found) => Ok(Some(found)),
        Err(Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Makes a regular file of a member's data.
fn file<R: Read>(
    archive: &mut Archive<R>,
    member: &Member,
    parent: BorrowedFd<'_>,
    name: &OsStr,
) -> Result<(), Failed> {
    // Before anything is written, though the rename would refuse it too.
    if found(parent, name)?.is_some_and(|there| kind(&there) == SFlag::S_IFDIR) {
        return Err(Refusal::DirectoryThere.into());
    }
    let directory = parent.try_clone_to_owned().map_err(|error| from_io(&error))?;
    // With the umask taken off by open(2), or whatever stands in its place in that directory (acl(5), default lists). A mode
    // without the right to write does not concern the descriptor that made the file.
    let staged = Staged::begin(directory, name.to_owned(), Mode::from_bits_truncate(member.mode & PERMISSIONS))?;
    let whole = [(0, member.size)];
    let pieces = match &member.map {
        Some(map) => {
            ftruncate(staged.file(), staged::offset(member.size)?)?;
            map.pieces()
        }
        None => &whole,
    };
    for (mut offset, mut length) in pieces.iter().copied() {
        while length > 0 {
            let bytes = archive.data(length)?;
            let count = bytes.len();
            write_all_at(staged.file(), bytes, offset)?;
            archive.taken(count);
            (offset, length) = (offset + count as u64, length - count as u64);
        }
    }
    if let Some(modified) = member.modified {
        futimens(staged.file(), &times::UNCHANGED, &time(modified))?;
    }
    staged.put()?;
    Ok(())
}

/// Makes something under a name, in place of what is there if that is no directory.
fn replace(directory: BorrowedFd<'_>, name: &OsStr, make: impl Fn(&OsStr) -> Result<(), Errno>) -> Result<(), Refusal> {
    match make(name) {
        Err(Errno::EEXIST) => {}
        made => return Ok(made?),
    }
    if found(directory, name)?.is_some_and(|there| kind(&there) == SFlag::S_IFDIR) {
        return Err(Refusal::DirectoryThere);
    }
    let (temporary, ()) = under_temporary_name(make)?;
    let renamed = renameat(directory, temporary.as_os_str(), directory.as_fd(), name);
    // Also after a success: the rename of one name of a file onto another of the same does nothing, and leaves both.
    match unlinkat(directory, temporary.as_os_str(), UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(renamed?),
        Err(error) => Err(error.into()),
    }
}
