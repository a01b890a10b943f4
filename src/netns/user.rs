//! A user namespace in which the caller keeps its own ids and has every capability (user_namespaces(7)).

use std::fs::OpenOptions;
use std::io::Write;

use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::unistd::{getegid, geteuid};

use super::{Error, obstacle};

/// Creates and enters it. The only ids that exist inside are the caller's effective ones, mapped to themselves, so
/// that files keep their owner's name and nothing can become anyone else.
pub fn enter() -> Result<(), Error> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER).map_err(|errno| Error::Namespace {
        what: "a user namespace",
        obstacle: obstacle::of_user_namespace(errno),
    })?;
    // /proc/self belongs to root while a process is not dumpable (proc(5)), and the maps could not be opened.
    let hidden = prctl::get_dumpable() == Ok(false);
    // A failure shows in the writes below.
    let _ = prctl::set_dumpable(true);
    // A group that was dropped could be a group that a file denies: setgroups has to be given up before gid_map may
    // be written (user_namespaces(7), CVE-2014-8989).
    let written = write("/proc/self/setgroups", "deny")
        .and_then(|()| write("/proc/self/uid_map", &format!("{uid} {uid} 1\n")))
        .and_then(|()| write("/proc/self/gid_map", &format!("{gid} {gid} 1\n")));
    if hidden {
        // Turning it off cannot fail (prctl(2)).
        let _ = prctl::set_dumpable(false);
    }
    written
}

fn write(path: &'static str, content: &str) -> Result<(), Error> {
    OpenOptions::new()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .map_err(|source| Error::Ids { path, obstacle: obstacle::of_id_map(&source) })
}
