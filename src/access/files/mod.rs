//! Files in and out of the sandbox, for the clients that people have: SFTP ([`sftp`]), the older copy protocol
//! ([`scp`]) and tar streams ([`tar`]).
//!
//! Each is a blocking server on two streams, without threads, for a process of its own that runs *inside* the sandbox as
//! the workload's user, under Landlock and seccomp. That is why none of them has a rule of its own about who may touch
//! what: the kernel judges every path as it would judge the workload's. Nothing of the image is needed, no shell, no `tar`
//! and no `sftp-server`.
//!
//! What a transfer writes comes under its final name only when it is whole ([`staged`]); what is cut short leaves
//! nothing there, nor what could not be written whole. Relative paths start at the working directory.

pub mod scp;
pub mod sftp;
pub(super) mod shown;
mod staged;
pub mod streams;
pub mod tar;
mod times;

/// What was done with one file, for the record.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Passed {
    /// The file or, where there are many in one stream, the directory, as the client named it.
    pub path: String,
    /// Bytes that came out of it.
    pub read: u64,
    /// Bytes that went into it.
    pub written: u64,
    /// Why not all of it was done, where it was not.
    pub failed: Option<String>,
}

impl Passed {
    fn failed(path: &std::path::Path, why: impl ToString) -> Self {
        Self { path: path.to_string_lossy().into_owned(), failed: Some(why.to_string()), ..Self::default() }
    }
}

/// Who is told of each file.
pub type Tell<'t> = &'t mut dyn FnMut(Passed);

/// Names for the owners of files. The room itself knows numbers only: which accounts there are is for others to read.
pub trait Names {
    /// The user of that number.
    fn user(&self, uid: u32) -> Option<String>;
    /// The group of that number.
    fn group(&self, gid: u32) -> Option<String>;
    /// The home directory of the user of that name; of the server's own user where none is given.
    fn home(&self, user: Option<&std::ffi::OsStr>) -> Option<std::path::PathBuf>;
}

/// An image without accounts: numbers stand for themselves, and home is `$HOME`.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoNames;

impl Names for NoNames {
    fn user(&self, _uid: u32) -> Option<String> {
        None
    }

    fn group(&self, _gid: u32) -> Option<String> {
        None
    }

    fn home(&self, user: Option<&std::ffi::OsStr>) -> Option<std::path::PathBuf> {
        if user.is_some() { None } else { std::env::var_os("HOME").map(Into::into) }
    }
}
