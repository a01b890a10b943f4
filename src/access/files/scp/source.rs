//! `scp -f`: files go.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::sys::uio::pread;

use super::{CHUNK, Command, MAX_DEPTH, ScpError, Wire};
use crate::access::files::staged::{self, PREFIX, kind};

/// Sends everything.
pub(super) fn send<R: Read, W: Write>(
    wire: &mut Wire<'_, R, W>,
    command: &Command,
    paths: &[PathBuf],
) -> Result<(), ScpError> {
    if !wire.may_go_on()? {
        return Ok(());
    }
    let mut source = Source { wire, command, chunk: vec![0; CHUNK] };
    for path in paths {
        source.one(path, 0)?;
    }
    Ok(())
}

struct Source<'w, 't, R, W> {
    wire: &'w mut Wire<'t, R, W>,
    command: &'w Command,
    chunk: Vec<u8>,
}

impl<R: Read, W: Write> Source<'_, '_, R, W> {
    fn complain(&mut self, path: &Path, what: &dyn std::fmt::Display) -> Result<(), ScpError> {
        self.wire.complain(path.as_os_str().as_bytes(), what)
    }

    /// Sends what a path names, through links.
    fn one(&mut self, path: &Path, depth: usize) -> Result<(), ScpError> {
        // A pipe must not keep the server waiting for its other end.
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let opened = openat(AT_FDCWD, path, flags, Mode::empty())
            .map(File::from)
            .and_then(|file| fstat(&file).map(|found| (file, found)));
        let (file, found) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.complain(path, &error.desc()),
        };
        let Some(name) = name(path) else {
            return self.complain(path, &"a name with a line end cannot be sent; use sftp");
        };
        match kind(&found) {
            SFlag::S_IFREG => self.file(path, &name, &file, &found),
            SFlag::S_IFDIR if !self.command.recursive => self.complain(path, &"it is a directory; use -r"),
            SFlag::S_IFDIR if depth >= MAX_DEPTH => self.complain(path, &"too many directories deep"),
            SFlag::S_IFDIR => self.directory(path, &name, &found, depth),
            _ => self.complain(path, &"it is no regular file"),
        }
    }

    /// Sends a line, before it the times if they are kept.
    fn announce(&mut self, letter: char, size: u64, name: &[u8], found: &FileStat) -> Result<bool, ScpError> {
        if self.command.preserve {
            let (modified, accessed) = (found.st_mtime.max(0), found.st_atime.max(0));
            self.wire.send(format!("T{modified} 0 {accessed} 0\n").as_bytes())?;
            if !self.wire.may_go_on()? {
                return Ok(false);
            }
        }
        let mut line = format!("{letter}{:04o} {size} ", found.st_mode & 0o7777).into_bytes();
        line.extend_from_slice(name);
        line.push(b'\n');
        self.wire.send(&line)?;
        self.wire.may_go_on()
    }

    fn file(&mut self, path: &Path, name: &[u8], file: &File, found: &FileStat) -> Result<(), ScpError> {
        let size = u64::try_from(found.st_size).unwrap_or(0);
        if !self.announce('C', size, name, found)? {
            return Ok(());
        }
        let mut problem = None;
        let mut at = 0;
        while at < size {
            let want = usize::try_from(size - at).unwrap_or(usize::MAX).min(CHUNK);
            let read = staged::offset(at).and_then(|at| pread(file, &mut self.chunk[..want], at));
            let count = match read {
                Ok(count) if count > 0 => count,
                Err(Errno::EINTR) => continue,
                // The other side counts on as many bytes as were announced.
                read => {
                    let what = read.err().map_or("it became shorter while it was read", Errno::desc);
                    problem.get_or_insert(what);
                    self.chunk[..want].fill(0);
                    want
                }
            };
            self.wire.output.write_all(&self.chunk[..count])?;
            at += count as u64;
        }
        match problem {
            None => {
                self.wire.passed(path, size, 0);
                self.wire.go_on()?;
            }
            Some(what) => self.complain(path, &what)?,
        }
        self.wire.may_go_on().map(|_| ())
    }

    fn directory(&mut self, path: &Path, name: &[u8], found: &FileStat, depth: usize) -> Result<(), ScpError> {
        let entries = match std::fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => return self.complain(path, &staged::from_io(&error).desc()),
        };
        if !self.announce('D', 0, name, found)? {
            return Ok(());
        }
        for entry in entries {
            match entry {
                Ok(entry) if entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) => {}
                Ok(entry) => self.one(&entry.path(), depth + 1)?,
                Err(error) => self.complain(path, &staged::from_io(&error).desc())?,
            }
        }
        self.wire.send(b"E\n")?;
        self.wire.may_go_on().map(|_| ())
    }
}

/// The last name of a path, by which it goes: for `.` and the like that of the directory meant. `None` for one that the
/// protocol's lines cannot hold.
fn name(path: &Path) -> Option<Vec<u8>> {
    let name = match path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/.")) {
        Some(name) => name.to_owned(),
        // The root has no name, and goes by one that is none.
        None => path.canonicalize().ok()?.file_name().map_or_else(|| "root".into(), ToOwned::to_owned),
    };
    (!name.as_bytes().contains(&b'\n')).then(|| name.as_bytes().to_owned())
}
