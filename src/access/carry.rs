//! How files are asked for, as subsystems and command lines of a session, and how that is put to the guest that carries them.

use std::ffi::{CStr, CString, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::files::scp;

/// Subsystem of OpenSSH's clients (draft-ietf-secsh-filexfer-02 §2).
const SFTP: &[u8] = b"sftp";

/// Ours, followed by a space and a directory: a tar stream is unpacked there.
pub const IN: &str = "openshell-upload";

/// Ours, followed by a space and a path: it comes as a tar stream.
pub const OUT: &str = "openshell-download";

/// What is carried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carrying {
    /// Whatever the client asks for, by SFTP.
    Sftp,
    /// What a command line of `scp -O` says.
    Scp(Vec<u8>),
    /// A tar stream, into a directory.
    In(PathBuf),
    /// A path, as a tar stream.
    Out(PathBuf),
}

impl Carrying {
    /// What a subsystem of that name is, if it is one of these.
    #[must_use]
    pub fn of_subsystem(name: &[u8]) -> Option<Self> {
        if name == SFTP {
            return Some(Self::Sftp);
        }
        let space = name.iter().position(|&byte| byte == b' ')?;
        let path = &name[space + 1..];
        if path.is_empty() || path.contains(&0) {
            return None;
        }
        let path = PathBuf::from(OsStr::from_bytes(path));
        match &name[..space] {
            verb if verb == IN.as_bytes() => Some(Self::In(path)),
            verb if verb == OUT.as_bytes() => Some(Self::Out(path)),
            _ => None,
        }
    }

    /// What a command line is, if it is a copy's.
    #[must_use]
    pub fn of_command(line: &[u8]) -> Option<Self> {
        scp::parse(line).map(|_| Self::Scp(line.to_vec()))
    }

    /// The words for the guest; `None` for what holds a NUL byte.
    #[must_use]
    pub fn words(&self) -> Option<Vec<CString>> {
        let (verb, argument): (&CStr, &[u8]) = match self {
            Self::Sftp => (c"sftp", b""),
            Self::Scp(line) => (c"scp", line),
            Self::In(path) => (c"in", path.as_os_str().as_bytes()),
            Self::Out(path) => (c"out", path.as_os_str().as_bytes()),
        };
        Some(vec![verb.to_owned(), CString::new(argument).ok()?])
    }

    /// What such words ask for.
    #[must_use]
    pub fn read(words: &[CString]) -> Option<Self> {
        let [verb, argument] = words else { return None };
        let path = || PathBuf::from(OsStr::from_bytes(argument.as_bytes()));
        match verb.to_bytes() {
            b"sftp" => Some(Self::Sftp),
            b"scp" => Some(Self::Scp(argument.to_bytes().to_vec())),
            b"in" => Some(Self::In(path())),
            b"out" => Some(Self::Out(path())),
            _ => None,
        }
    }
}

impl fmt::Display for Carrying {
    /// For records: by what it is carried, and the path where it is known from the start.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sftp => f.write_str("sftp"),
            Self::Scp(line) => f.write_str(&String::from_utf8_lossy(line)),
            Self::In(path) => write!(f, "{IN} {}", path.display()),
            Self::Out(path) => write!(f, "{OUT} {}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_reaches_the_guest_as_it_is() {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        for (subsystem, carrying) in [
            (&b"sftp"[..], Carrying::Sftp),
            (b"openshell-upload /a b", Carrying::In(path(b"/a b"))),
            (b"openshell-download \xff", Carrying::Out(path(b"\xff"))),
        ] {
            let read = Carrying::of_subsystem(subsystem).unwrap();
            assert_eq!(read, carrying);
            assert_eq!(Carrying::read(&read.words().unwrap()), Some(carrying));
        }
        for other in [&b"sftp "[..], b"", b"openshell-upload", b"openshell-upload ", b"openshell-download a\0b", b"x y"]
        {
            assert_eq!(Carrying::of_subsystem(other), None, "{other:?}");
        }
        let copy = Carrying::of_command(b"scp -r -t /tmp").unwrap();
        assert_eq!(Carrying::read(&copy.words().unwrap()), Some(copy));
        assert_eq!(Carrying::of_command(b"scp a b"), None);
    }
}
