//! Archives out of a directory.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::dir::{Dir, OwningIter};
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::sys::uio::pread;
use nix::unistd::{Whence, lseek};

use super::header::{Header, Numbers, link_fits, size_fits, split};
use super::map::{MAX_PIECES, Map};
use super::report::Report;
use super::tree::{PathError, Tree, names};
use super::{BLOCK, CHUNK, MAX_PATH, Summary, TarError, pax};
use crate::access::files::staged::{self, kind};

/// Deepest directory: each on the way is held open, and a process has some thousand descriptors.
const MAX_DEPTH: usize = 256;

/// Bytes of paths that are kept for hard links. What is linked beyond comes as a file of its own each time.
const MAX_LINKED: usize = 8 << 20;

/// Why something is not in the archive.
#[derive(Debug, thiserror::Error)]
enum Left {
    #[error("{}", .0.desc())]
    Kernel(Errno),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("not archived: it is no file, directory or symbolic link")]
    Kind,
    #[error("not archived: more than {MAX_DEPTH} directories deep, or a path of more than {MAX_PATH} bytes")]
    Deep,
    #[error("changed while it was read; what is missing is filled with zeros")]
    Changed,
}

/// What ends a file: itself, or everything.
enum Failed {
    File(Left),
    Stream(TarError),
}

impl<L: Into<Left>> From<L> for Failed {
    fn from(left: L) -> Self {
        Self::File(left.into())
    }
}

impl From<Errno> for Left {
    fn from(error: Errno) -> Self {
        Self::Kernel(error)
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Self {
        Self::Stream(error.into())
    }
}

/// Writes an archive of what lies under these paths in a directory, directories with all that is in them; links are not
/// followed. What could not be read is told in `report`, a line each, and counted; sockets, pipes and devices are among
/// that. Unfinished uploads are left out.
///
/// # Errors
/// The directory cannot be used, or the stream fails.
pub fn create(
    output: impl Write,
    directory: &Path,
    paths: &[impl AsRef<OsStr>],
    report: &mut dyn Write,
) -> Result<Summary, TarError> {
    let path = || directory.to_owned();
    let mut tree = Tree::open(directory).map_err(|error| TarError::Directory { path: path(), error })?;
    let mut creation = Creation {
        output: BufWriter::with_capacity(CHUNK, output),
        report: Report::new(report),
        summary: Summary::default(),
        linked: HashMap::new(),
        linked_bytes: 0,
        chunk: vec![0; CHUNK],
    };
    for path in paths {
        let path = path.as_ref().as_bytes();
        match creation.start(&mut tree, path) {
            Err(Failed::Stream(error)) => return Err(error),
            Err(Failed::File(left)) => creation.leave(path, &left),
            Ok(()) => {}
        }
    }
    creation.output.write_all(&[0; 2 * BLOCK])?;
    creation.output.flush()?;
    Ok(creation.summary)
}

struct Creation<'w, W: Write> {
    output: BufWriter<W>,
    report: Report<'w>,
    summary: Summary,
    /// Of files with several names, the first path by which each came.
    linked: HashMap<(u64, u64), Vec<u8>>,
    linked_bytes: usize,
    chunk: Vec<u8>,
}

/// A directory whose entries are being archived.
struct Open {
    fd: File,
    entries: OwningIter,
    /// Length of its path, slash included.
    path: usize,
}

impl<W: Write> Creation<'_, W> {
    fn leave(&mut self, path: &[u8], left: &Left) {
        self.summary.failed += 1;
        self.report.tell(path, left);
    }

    /// Archives one path and everything below.
    fn start(&mut self, tree: &mut Tree, path: &[u8]) -> Result<(), Failed> {
        let parts = names(path)?;
        let (name, parents) = parts.split_last().map_or((&b"."[..], &[][..]), |(name, parents)| (*name, parents));
        let parent = tree.directory(parents, false)?;
        let mut path = if parts.is_empty() { b".".to_vec() } else { parts.join(&b'/') };
        let mut open: Vec<Open> = self.one(parent, OsStr::from_bytes(name), &mut path)?.into_iter().collect();
        while let Some(current) = open.last_mut() {
            path.truncate(current.path);
            let name = match current.entries.next() {
                None => {
                    open.pop();
                    continue;
                }
                Some(Ok(entry)) => OsString::from_vec(entry.file_name().to_bytes().to_owned()),
                Some(Err(error)) => {
                    self.leave(&path, &error.into());
                    open.pop();
                    continue;
                }
            };
            let bytes = name.as_bytes();
            if matches!(bytes, b"." | b"..") || bytes.starts_with(staged::PREFIX.as_bytes()) {
                continue;
            }
            path.extend_from_slice(bytes);
            let fd = current.fd.try_clone()?;
            let deep = open.len() >= MAX_DEPTH || path.len() > MAX_PATH;
            let next = if deep { Err(Left::Deep.into()) } else { self.one(fd.as_fd(), &name, &mut path) };
            match next {
                Ok(next) => open.extend(next),
                Err(Failed::File(left)) => self.leave(&path, &left),
                Err(stream) => return Err(stream),
            }
        }
        Ok(())
    }

    /// Archives what lies under one name; a directory is opened to be gone through.
    fn one(&mut self, parent: BorrowedFd<'_>, name: &OsStr, path: &mut Vec<u8>) -> Result<Option<Open>, Failed> {
        let found = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW)?;
        match kind(&found) {
            SFlag::S_IFDIR => self.directory(parent, name, path).map(Some),
            SFlag::S_IFREG => self.file(parent, name, path).map(|()| None),
            SFlag::S_IFLNK => {
                let target = readlinkat(parent, name)?;
                self.header(b'2', path, target.as_bytes(), &found, 0, Vec::new())?;
                self.summary.links += 1;
                Ok(None)
            }
            _ => Err(Left::Kind.into()),
        }
    }

    fn directory(&mut self, parent: BorrowedFd<'_>, name: &OsStr, path: &mut Vec<u8>) -> Result<Open, Failed> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let fd = File::from(openat(parent, name, flags, Mode::empty())?);
        let entries = Dir::from_fd(fd.try_clone()?.into())?.into_iter();
        path.push(b'/');
        self.header(b'5', path, b"", &fstat(&fd)?, 0, Vec::new())?;
        self.summary.directories += 1;
        Ok(Open { fd, entries, path: path.len() })
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &OsStr, path: &[u8]) -> Result<(), Failed> {
        // Looked at above, and again through the descriptor: a pipe in its place must not keep us waiting.
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = File::from(openat(parent, name, flags, Mode::empty())?);
        let found = fstat(&file)?;
        if kind(&found) != SFlag::S_IFREG {
            return Err(Left::Kind.into());
        }
        let identity = (found.st_dev, found.st_ino);
        if let Some(first) = self.linked.get(&identity).cloned() {
            self.header(b'1', path, &first, &found, 0, Vec::new())?;
            self.summary.links += 1;
            return Ok(());
        }
        let size = u64::try_from(found.st_size).unwrap_or(0);
        let whole = match pieces(&file, &found, size) {
            Some(map) => self.sparse(&file, path, &found, size, &map)?,
            None => {
                self.header(b'0', path, b"", &found, size, Vec::new())?;
                let whole = self.data(&file, 0, size)?;
                self.pad(size)?;
                whole
            }
        };
        if found.st_nlink > 1 && self.linked_bytes < MAX_LINKED {
            self.linked_bytes += path.len();
            self.linked.insert(identity, path.to_owned());
        }
        self.summary.files += 1;
        self.summary.bytes += size;
        if whole { Ok(()) } else { Err(Left::Changed.into()) }
    }

    /// A file with holes, as pax has them in GNU's version 1.0.
    fn sparse(&mut self, file: &File, path: &[u8], found: &FileStat, size: u64, map: &Map) -> Result<bool, Failed> {
        let mut text = format!("{}\n", map.pieces().len());
        for (offset, length) in map.pieces() {
            text.push_str(&format!("{offset}\n{length}\n"));
        }
        let mut text = text.into_bytes();
        text.resize(text.len().next_multiple_of(BLOCK), 0);
        let mut records = Vec::new();
        pax::write(&mut records, "GNU.sparse.major", b"1");
        pax::write(&mut records, "GNU.sparse.minor", b"0");
        pax::write(&mut records, "GNU.sparse.name", path);
        pax::write(&mut records, "GNU.sparse.realsize", size.to_string().as_bytes());
        // The name for readers who do not know holes, and will see what this is.
        let name = &path[path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1)..];
        let visible = [b"GNUSparseFile.0/", &name[..name.len().min(80)]].concat();
        self.header(b'0', &visible, b"", found, text.len() as u64 + map.data(), records)?;
        self.output.write_all(&text)?;
        let mut whole = true;
        for (offset, length) in map.pieces() {
            whole &= self.data(file, *offset, *length)?;
        }
        self.pad(map.data())?;
        Ok(whole)
    }

    /// Writes a header, with an extended one before it where that has something to say.
    fn header(
        &mut self,
        kind: u8,
        path: &[u8],
        link: &[u8],
        found: &FileStat,
        size: u64,
        mut records: Vec<u8>,
    ) -> Result<(), Failed> {
        let (long_path, long_link) = (split(path).is_none(), !link_fits(link));
        if [(long_path, path), (long_link, link)].iter().any(|(long, text)| *long && str::from_utf8(text).is_err()) {
            pax::write(&mut records, "hdrcharset", b"BINARY");
        }
        if long_path {
            pax::write(&mut records, "path", path);
        }
        if long_link {
            pax::write(&mut records, "linkpath", link);
        }
        if !size_fits(size) {
            pax::write(&mut records, "size", size.to_string().as_bytes());
        }
        // A second name has the time of the first; and the header's own field has whole seconds.
        if kind != b'1' && found.st_mtime_nsec != 0 {
            let modified = pax::written_time(found.st_mtime, found.st_mtime_nsec);
            pax::write(&mut records, "mtime", modified.as_bytes());
        }
        if !records.is_empty() {
            let member = Numbers { mode: 0o644, size: records.len() as u64, ..Numbers::default() };
            self.output.write_all(&Header::write(b'x', b"PaxHeaders/0", b"", &member).0)?;
            let length = records.len() as u64;
            self.output.write_all(&records)?;
            self.pad(length)?;
        }
        let (mode, uid, gid, modified) = (found.st_mode & 0o7777, found.st_uid, found.st_gid, found.st_mtime);
        let member = Numbers { mode, uid, gid, size, modified };
        self.output.write_all(&Header::write(kind, path, link, &member).0)?;
        Ok(())
    }

    /// Writes a piece of a file, and zeros for what is no longer there; says whether it was all there.
    fn data(&mut self, file: &File, mut offset: u64, mut length: u64) -> Result<bool, Failed> {
        let mut whole = true;
        while length > 0 {
            let want = usize::try_from(length).unwrap_or(usize::MAX).min(CHUNK);
            let count = match pread(file, &mut self.chunk[..want], staged::offset(offset)?) {
                Ok(count) if count > 0 => count,
                Err(Errno::EINTR) => continue,
                // The header has promised so many bytes, and the next member must be found behind them.
                Ok(_) | Err(_) => {
                    whole = false;
                    self.chunk[..want].fill(0);
                    want
                }
            };
            self.output.write_all(&self.chunk[..count])?;
            (offset, length) = (offset + count as u64, length - count as u64);
        }
        Ok(whole)
    }

    /// Fills the last block.
    fn pad(&mut self, size: u64) -> Result<(), Failed> {
        let missing = size.next_multiple_of(BLOCK as u64) - size;
        self.output.write_all(&[0; BLOCK][..usize::try_from(missing).unwrap_or(0)])?;
        Ok(())
    }
}

/// Where a file's data lies, if it has holes worth telling.
fn pieces(file: &File, found: &FileStat, size: u64) -> Option<Map> {
    // Blocks are counted in 512 bytes whatever the file system's are.
    if u64::try_from(found.st_blocks).ok()?.saturating_mul(512) >= size {
        return None;
    }
    let seek = |at: u64, whence| lseek(file, staged::offset(at)?, whence).map(|at| u64::try_from(at).unwrap_or(0));
    let (mut map, mut at) = (Map::default(), 0);
    while at < size {
        let start = match seek(at, Whence::SeekData) {
            Ok(start) if start < size => start,
            // Behind the last data (lseek(2)).
            Ok(_) | Err(Errno::ENXIO) => break,
            Err(_) => return None,
        };
        let end = seek(start, Whence::SeekHole).ok()?.min(size);
        // One place stays for the end.
        if map.pieces().len() + 1 >= MAX_PIECES || map.push(start, end - start).is_err() {
            return None;
        }
        at = end;
    }
    if map.data() == size {
        return None;
    }
    if map.end() < size {
        map.push(size, 0).ok()?;
    }
    Some(map)
}
