//! The line about a file that clients show as it is: that of `ls -l`.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::SystemTime;

use nix::sys::stat::{FileStat, SFlag};

use crate::access::files::{Names, staged, times};

/// Accounts remembered by number. A directory seldom has files of more.
const MAX_REMEMBERED: usize = 64;

/// Names of accounts, each looked up once.
pub(super) struct Listing<'n> {
    names: &'n dyn Names,
    users: HashMap<u32, String>,
    groups: HashMap<u32, String>,
}

impl<'n> Listing<'n> {
    pub fn new(names: &'n dyn Names) -> Self {
        Self { names, users: HashMap::new(), groups: HashMap::new() }
    }

    /// The line about a file.
    pub fn line(&mut self, name: &OsStr, found: &FileStat) -> Vec<u8> {
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| i64::try_from(since.as_secs()).unwrap_or(0));
        let names = self.names;
        let user = remembered(&mut self.users, found.st_uid, |uid| names.user(uid));
        let group = remembered(&mut self.groups, found.st_gid, |gid| names.group(gid));
        let mut line = format!(
            "{} {:>3} {user:<8} {group:<8} {:>8} {} ",
            mode(found),
            found.st_nlink,
            found.st_size,
            times::listed(found.st_mtime, now)
        )
        .into_bytes();
        line.extend_from_slice(name.as_bytes());
        line
    }
}

fn remembered(known: &mut HashMap<u32, String>, id: u32, find: impl Fn(u32) -> Option<String>) -> String {
    if let Some(name) = known.get(&id) {
        return name.clone();
    }
    let name = find(id).unwrap_or_else(|| id.to_string());
    if known.len() < MAX_REMEMBERED {
        known.insert(id, name.clone());
    }
    name
}

/// Type and permissions, in ten letters.
fn mode(found: &FileStat) -> String {
    let kind = match staged::kind(found) {
        SFlag::S_IFDIR => 'd',
        SFlag::S_IFLNK => 'l',
        SFlag::S_IFCHR => 'c',
        SFlag::S_IFBLK => 'b',
        SFlag::S_IFIFO => 'p',
        SFlag::S_IFSOCK => 's',
        _ => '-',
    };
    let mode = found.st_mode;
    let mut text = String::from(kind);
    // Of owner, group and others: their bits, and the special one that shows in place of their `x`.
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}
