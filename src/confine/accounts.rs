//! `/etc/passwd` and `/etc/group`, read by us: a static executable cannot load name-service modules, and an image is
//! not trusted to hold sane files. passwd(5), group(5).

use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

/// Largest file that is read; a real one of 10,000 accounts stays below.
const FILE_LIMIT: u64 = 1 << 20;

/// Longest line; group lines list members, which is what makes lines long.
const LINE_LIMIT: usize = 8 << 10;

/// Longest single field, beyond any path or name that the kernel accepts for use here.
const FIELD_LIMIT: usize = 1 << 10;

/// Most supplementary groups that setgroups(2) accepts.
const NGROUPS_MAX: usize = 65_536;

/// What is wrong with an account file.
#[derive(Debug, thiserror::Error)]
pub enum AccountsError {
    /// It cannot be opened or read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is no regular file.
    #[error("{path} is not a regular file; it must be one, and no symbolic link")]
    NotRegular {
        /// The file.
        path: PathBuf,
    },
    /// It exceeds a bound.
    #[error("{path} exceeds {limit} bytes {what}; no such file is read")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bound.
        limit: usize,
        /// Of what.
        what: &'static str,
    },
    /// A name stands for two different things.
    #[error("{path} has more than one entry for {name}, which differ; remove all but one")]
    Ambiguous {
        /// The file.
        path: PathBuf,
        /// Name or number looked up.
        name: String,
    },
    /// An entry that was looked up makes no sense.
    #[error("{path}, entry {name}: {problem}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Name or number looked up.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

/// A user of the passwd file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// Number.
    pub uid: u32,
    /// Number of the primary group.
    pub gid: u32,
    /// Home directory, as written.
    pub home: String,
    /// Login shell, as written.
    pub shell: String,
}

/// A group of the group file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Name.
    pub name: String,
    /// Number.
    pub gid: u32,
    /// Names of its further members.
    pub members: Vec<String>,
}

/// Both files, as far as they are there: an image `FROM scratch` has none.
#[derive(Clone, Debug, Default)]
pub struct Accounts {
    passwd_path: PathBuf,
    group_path: PathBuf,
    passwd: String,
    group: String,
}

/// How an entry is named.
#[derive(Clone, Copy, Debug)]
pub enum Key<'k> {
    /// By name.
    Name(&'k str),
    /// By number.
    Id(u32),
}

impl std::fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Name(name) => write!(f, "{name:?}"),
            Key::Id(id) => write!(f, "{id}"),
        }
    }
}

impl Accounts {
    /// Reads the files under `etc`; a missing one is an empty one.
    ///
    /// # Errors
    /// A file is there and cannot be read, is none, or exceeds a bound.
    pub fn read(etc: &Path) -> Result<Self, AccountsError> {
        let (passwd_path, group_path) = (etc.join("passwd"), etc.join("group"));
        let (passwd, group) = (read_bounded(&passwd_path)?, read_bounded(&group_path)?);
        Ok(Self { passwd_path, group_path, passwd, group })
    }

    /// The user of that name or number. Entries that agree in ids are one entry, as several files merged into one
    /// have them; entries that differ are an error, since whoever reads first or last would disagree about them.
    ///
    /// # Errors
    /// The entry makes no sense, or there are two that differ.
    pub fn user(&self, key: Key<'_>) -> Result<Option<User>, AccountsError> {
        let fields = |line: &str| -> Option<[String; 7]> {
            let fields: Vec<&str> = line.split(':').collect();
            <[&str; 7]>::try_from(fields).ok().map(|fields| fields.map(str::to_owned))
        };
        let mut found: Option<User> = None;
        for line in self.passwd.lines().filter(|line| matches(line, key)) {
            let malformed =
                |problem| AccountsError::Malformed { path: self.passwd_path.clone(), name: key.to_string(), problem };
            let [name, _, uid, gid, _, home, shell] =
                fields(line).ok_or_else(|| malformed("expected seven fields separated by colons"))?;
            let uid = id(&uid).ok_or_else(|| malformed("the user id is not a number below 4294967295"))?;
            let gid = id(&gid).ok_or_else(|| malformed("the group id is not a number below 4294967295"))?;
            let user = User { name, uid, gid, home, shell };
            match &found {
                // By number, the first name wins as it does in getpwuid(3): `root` and `toor` share a uid lawfully.
                Some(first) if first.uid != user.uid || first.gid != user.gid => {
                    return Err(AccountsError::Ambiguous { path: self.passwd_path.clone(), name: key.to_string() });
                }
                Some(_) => {}
                None => found = Some(user),
            }
        }
        Ok(found)
    }

    /// The group of that name or number.
    ///
    /// # Errors
    /// The entry makes no sense, or there are two that differ.
    pub fn group(&self, key: Key<'_>) -> Result<Option<Group>, AccountsError> {
        let mut found: Option<Group> = None;
        for line in self.group.lines().filter(|line| matches(line, key)) {
            let group = parse_group(line).ok_or_else(|| AccountsError::Malformed {
                path: self.group_path.clone(),
                name: key.to_string(),
                problem: "expected NAME:PASSWORD:GID:MEMBERS with a group id below 4294967295",
            })?;
            match &found {
                Some(first) if first.gid != group.gid => {
                    return Err(AccountsError::Ambiguous { path: self.group_path.clone(), name: key.to_string() });
                }
                Some(_) => {}
                None => found = Some(group),
            }
        }
        Ok(found)
    }

    /// Groups that list `user` as a member, `primary` left out, sorted. Lines that make no sense name no one.
    pub fn groups_of(&self, user: &str, primary: u32) -> Vec<u32> {
        let mut groups: Vec<u32> = self
            .group
            .lines()
            .filter_map(parse_group)
            .filter(|group| group.gid != primary && group.members.iter().any(|member| member == user))
            .map(|group| group.gid)
            .take(NGROUPS_MAX)
            .collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

/// Whether the entry of `line` answers to `key`. The number of a user and of a group are both the third field.
fn matches(line: &str, key: Key<'_>) -> bool {
    let mut fields = line.split(':');
    match key {
        Key::Name(name) => fields.next() == Some(name),
        Key::Id(number) => fields.nth(2).and_then(id) == Some(number),
    }
}

fn parse_group(line: &str) -> Option<Group> {
    let fields: Vec<&str> = line.split(':').collect();
    let [name, _, gid, members] = fields[..] else { return None };
    Some(Group {
        name: name.to_owned(),
        gid: id(gid)?,
        members: members.split(',').map(str::trim).filter(|member| !member.is_empty()).map(str::to_owned).collect(),
    })
}

/// A user or group id. 4294967295 is -1, "no change" to setresuid(2), and never an id. No sign, no space, no other
/// base: what one reader takes for a number and another for a name is an ambiguity.
pub(super) fn id(text: &str) -> Option<u32> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok().filter(|&id| id != u32::MAX)
}

fn read_bounded(path: &Path) -> Result<String, AccountsError> {
    let unreadable = |source| AccountsError::Unreadable { path: path.to_owned(), source };
    // O_NONBLOCK: a FIFO in the file's place must not hang the start; it is refused below.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let mut file = match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(String::new()),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
            return Err(AccountsError::NotRegular { path: path.to_owned() });
        }
        Err(error) => return Err(unreadable(error)),
    };
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(AccountsError::NotRegular { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.by_ref().take(FILE_LIMIT + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    let too_large = |limit, what| AccountsError::TooLarge { path: path.to_owned(), limit, what };
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(too_large(FILE_LIMIT as usize, "in all"));
    }
    // Names in old encodings do not make the other entries unreadable.
    let text = String::from_utf8_lossy(&bytes).into_owned();
    for line in text.lines() {
        if line.len() > LINE_LIMIT {
            return Err(too_large(LINE_LIMIT, "in one line"));
        }
        if line.split(':').take(3).any(|field| field.len() > FIELD_LIMIT) {
            return Err(too_large(FIELD_LIMIT, "in one field"));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts(passwd: &str, group: &str) -> Accounts {
        let etc = tempfile::tempdir().unwrap();
        std::fs::write(etc.path().join("passwd"), passwd).unwrap();
        std::fs::write(etc.path().join("group"), group).unwrap();
        Accounts::read(etc.path()).unwrap()
    }

    #[test]
    fn ids_are_plain_decimal_numbers() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1000", Some(1000)),
            ("4294967294", Some(4_294_967_294)),
            ("4294967295", None),
            ("4294967296", None),
            ("-1", None),
            ("+1", None),
            (" 1", None),
            ("0x10", None),
            ("", None),
            ("1a", None),
        ] {
            assert_eq!(id(text), expected, "{text:?}");
        }
    }

    #[test]
    fn entries_are_found_by_name_and_number() {
        let accounts = accounts(
            "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1001:,,,:/home/agent:/bin/bash\n",
            "root:x:0:\nagent:x:1001:\naudio:x:29:agent,other\nvideo:x:44:other, agent\n",
        );
        let user = accounts.user(Key::Name("agent")).unwrap().unwrap();
        assert_eq!((user.uid, user.gid, user.home.as_str()), (1000, 1001, "/home/agent"));
        assert_eq!(accounts.user(Key::Id(1000)).unwrap().unwrap().name, "agent");
        assert_eq!(accounts.group(Key::Name("audio")).unwrap().unwrap().gid, 29);
        assert_eq!(accounts.groups_of("agent", 1001), [29, 44]);
        assert_eq!(accounts.user(Key::Name("nobody")).unwrap(), None);
    }

    #[test]
    fn a_duplicate_that_differs_is_ambiguous_and_one_that_agrees_is_not() {
        let differs = accounts("a:x:1000:1000::/:/s\na:x:0:0::/:/s\n", "g:x:5:\ng:x:6:\n");
        assert!(matches!(differs.user(Key::Name("a")), Err(AccountsError::Ambiguous { .. })));
        assert!(matches!(differs.group(Key::Name("g")), Err(AccountsError::Ambiguous { .. })));
        let agrees = accounts("a:x:1000:1000::/:/s\na:x:1000:1000::/:/t\n", "");
        assert_eq!(agrees.user(Key::Name("a")).unwrap().unwrap().shell, "/s");
    }

    #[test]
    fn a_malformed_entry_is_an_error_only_for_who_asks_for_it() {
        let accounts = accounts("broken:x:12\nok:x:1000:1000::/:/s\nneg:x:-1:5::/:/s\n", "");
        assert!(accounts.user(Key::Name("ok")).unwrap().is_some());
        assert!(matches!(accounts.user(Key::Name("broken")), Err(AccountsError::Malformed { .. })));
        assert!(matches!(accounts.user(Key::Name("neg")), Err(AccountsError::Malformed { .. })));
    }

    #[test]
    fn links_fifos_and_oversized_files_are_refused() {
        let etc = tempfile::tempdir().unwrap();
        let passwd = etc.path().join("passwd");
        assert!(Accounts::read(etc.path()).is_ok(), "control: no files at all");

        std::os::unix::fs::symlink("/etc/passwd", &passwd).unwrap();
        assert!(matches!(Accounts::read(etc.path()), Err(AccountsError::NotRegular { .. })));
        std::fs::remove_file(&passwd).unwrap();

        nix::unistd::mkfifo(&passwd, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(matches!(Accounts::read(etc.path()), Err(AccountsError::NotRegular { .. })));
        std::fs::remove_file(&passwd).unwrap();

        std::fs::write(&passwd, "a:x:1:1::/:/s\n".repeat(1 << 17)).unwrap();
        assert!(matches!(Accounts::read(etc.path()), Err(AccountsError::TooLarge { .. })));
        std::fs::write(&passwd, "a".repeat(LINE_LIMIT + 1)).unwrap();
        assert!(matches!(Accounts::read(etc.path()), Err(AccountsError::TooLarge { .. })));
    }
}
