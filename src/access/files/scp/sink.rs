//! `scp -t`: files come.

use std::ffi::OsStr;
use std::io::{BufRead, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{FchmodatFlags, Mode, UtimensatFlags, fchmod, fchmodat, futimens, mkdirat, utimensat};

use super::{Command, MAX_DEPTH, ScpError, Wire};
use crate::access::files::sftp::upload::{self, open_target};
use crate::access::files::{Passed, times};

/// A directory that is being filled, and what it is to be in the end.
struct Directory {
    path: PathBuf,
    mode: Option<Mode>,
    times: Option<Times>,
}

/// Of access and of modification.
type Times = (i64, i64);

/// What a `C` or a `D` line announces.
struct Announced<'l> {
    mode: Mode,
    size: u64,
    name: &'l OsStr,
}

/// Receives until the other side has finished.
pub(super) fn receive<R: Read, W: Write>(
    wire: &mut Wire<'_, R, W>,
    command: &Command,
    paths: &[PathBuf],
) -> Result<(), ScpError> {
    let target = match paths {
        [target] => target,
        _ => return wire.complain(b"", &"a target that matches several names"),
    };
    if command.into_directory && !target.is_dir() {
        return wire
            .complain(target.as_os_str().as_bytes(), &"it is no directory, and several files were to go into it");
    }
    wire.go_on()?;
    let mut directories: Vec<Directory> = Vec::new();
    let mut times = None;
    while let Some(line) = wire.line()? {
        let (kind, rest) = line.split_first().ok_or(ScpError::Protocol("an empty line"))?;
        let target = directories.last().map_or(target.as_path(), |directory| &directory.path);
        match kind {
            1 => wire.failed = true,
            2 => return Err(ScpError::GivenUp(crate::access::files::shown::Shown(rest).to_string())),
            b'T' => {
                times = Some(read_times(rest).ok_or(ScpError::Protocol("a `T` line without two times"))?);
                wire.go_on()?;
            }
            b'C' => {
                let announced = announced(rest)?;
                let path = within(target, announced.name);
                file(wire, &path, &announced, command.preserve, times.take())?;
            }
            b'D' if !command.recursive => return Err(ScpError::Protocol("a directory without -r")),
            b'D' if directories.len() >= MAX_DEPTH => return Err(ScpError::Protocol("directories too deep")),
            b'D' => {
                let announced = announced(rest)?;
                let path = within(target, announced.name);
                match directory(&path, announced.mode) {
                    Ok(()) => {
                        let mode = command.preserve.then_some(announced.mode);
                        directories.push(Directory { path, mode, times: times.take() });
                        wire.go_on()?;
                    }
                    Err(error) => wire.complain(path.as_os_str().as_bytes(), &error.desc())?,
                }
            }
            b'E' => {
                let done = directories.pop().ok_or(ScpError::Protocol("an `E` line without a directory"))?;
                match finish(&done) {
                    Ok(()) => wire.go_on()?,
                    Err(error) => wire.complain(done.path.as_os_str().as_bytes(), &error.desc())?,
                }
            }
            _ => return Err(ScpError::Protocol("a line of no known kind")),
        }
    }
    if directories.is_empty() { Ok(()) } else { Err(ScpError::Protocol("the end inside a directory")) }
}

/// The path of a name: in the target if that is a directory, else the target itself.
fn within(target: &Path, name: &OsStr) -> PathBuf {
    if target.is_dir() { target.join(name) } else { target.to_owned() }
}

/// `MODE SIZE NAME`. A name is one name: it leads nowhere else.
fn announced(line: &[u8]) -> Result<Announced<'_>, ScpError> {
    let malformed = ScpError::Protocol("a line without mode, size and name");
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let (Some(mode), Some(size), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(malformed);
    };
    let mode = str::from_utf8(mode).ok().and_then(|mode| u32::from_str_radix(mode, 8).ok());
    let size = str::from_utf8(size).ok().and_then(|size| size.parse().ok()).filter(|size| *size <= i64::MAX as u64);
    let (Some(mode), Some(size)) = (mode, size) else { return Err(malformed) };
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(ScpError::Protocol("a name that leads elsewhere"));
    }
    Ok(Announced { mode: Mode::from_bits_truncate(mode), size, name: OsStr::from_bytes(name) })
}

/// `MTIME 0 ATIME 0`.
fn read_times(line: &[u8]) -> Option<Times> {
    let mut parts = str::from_utf8(line).ok()?.split(' ');
    let (modified, _) = (parts.next()?.parse().ok()?, parts.next()?);
    Some((parts.next()?.parse().ok()?, modified))
}

fn file<R: Read, W: Write>(
    wire: &mut Wire<'_, R, W>,
    path: &Path,
    announced: &Announced<'_>,
    preserve: bool,
    times: Option<Times>,
) -> Result<(), ScpError> {
    let name = path.as_os_str().as_bytes();
    // Without -p as everywhere: set-id bits are nobody's wish, and the umask takes its part.
    let mode = if preserve { announced.mode } else { announced.mode & Mode::from_bits_truncate(0o777) };
    let flags = upload::WRITE | upload::CREATE | upload::TRUNCATE;
    let mut target = match open_target(path, flags, mode) {
        Ok(target) => target,
        // The other side then leaves the data out.
        Err(error) => return wire.complain(name, &error.desc()),
    };
    wire.go_on()?;
    let mut outcome = Ok(());
    let mut at = 0;
    while at < announced.size {
        let bytes = wire.input.fill_buf()?;
        if bytes.is_empty() {
            (wire.tell)(Passed::failed(path, "the connection ended before it was whole"));
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        let count = bytes.len().min(usize::try_from(announced.size - at).unwrap_or(usize::MAX));
        // The rest has to be read in any case.
        if outcome.is_ok() {
            outcome = target.write(at, &bytes[..count]);
        }
        wire.input.consume(count);
        at += count as u64;
    }
    if !wire.may_go_on()? {
        // It could not read the file: what came is not it.
        target.withdraw();
        (wire.tell)(Passed::failed(path, "the client could not read it"));
        return wire.go_on();
    }
    let outcome = outcome.and_then(|()| {
        if preserve {
            fchmod(&target.file, mode)?;
        }
        if let Some((accessed, modified)) = times {
            futimens(&target.file, &times::at(accessed), &times::at(modified))?;
        }
        target.publish()
    });
    match outcome {
        Ok(()) => {
            wire.passed(path, 0, announced.size);
            wire.go_on()
        }
        Err(error) => wire.complain(name, &error.desc()),
    }
}

/// Makes a directory, in which this user may do everything until it is finished.
fn directory(path: &Path, mode: Mode) -> Result<(), Errno> {
    match mkdirat(AT_FDCWD, path, mode | Mode::S_IRWXU) {
        Err(Errno::EEXIST) if path.is_dir() => Ok(()),
        made => made,
    }
}

fn finish(directory: &Directory) -> Result<(), Errno> {
    if let Some((accessed, modified)) = directory.times {
        let (accessed, modified) = (times::at(accessed), times::at(modified));
        utimensat(AT_FDCWD, &directory.path, &accessed, &modified, UtimensatFlags::FollowSymlink)?;
    }
    if let Some(mode) = directory.mode {
        fchmodat(AT_FDCWD, &directory.path, mode, FchmodatFlags::FollowSymlink)?;
    }
    Ok(())
}
