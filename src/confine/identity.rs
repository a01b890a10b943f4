//! Who the workload is: resolved once by the supervisor, taken on by the child.

use std::path::Path;

use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Uid, getegid, geteuid, getgroups, getresgid, getresuid, setgroups, setresgid, setresuid};
use serde::{Deserialize, Serialize};

pub use super::accounts::AccountsError;
use super::accounts::{Accounts, Key, User, id};
use super::capabilities;
use crate::contract::{OVERFLOW_ID, SANDBOX_HOME, SANDBOX_USER, env};
use crate::policy::ProcessIdentity;

/// Where account files are read.
const ETC: &str = "/etc";

/// Files the workload makes are its own to write and everyone's to read, whatever mask the supervisor came with.
const UMASK: u32 = 0o022;

/// The workload's identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Real, effective and saved user id.
    pub uid: u32,
    /// Real, effective and saved group id.
    pub gid: u32,
    /// Supplementary groups, sorted; the primary one is not repeated.
    pub groups: Vec<u32>,
    /// Login name, or the number where it has none.
    pub name: String,
    /// Home directory.
    pub home: String,
    /// Login shell, where the passwd file names one.
    pub shell: Option<String>,
    /// Whether the child must take these ids on; `false` where the supervisor has them already and cannot change.
    pub switch: bool,
    /// What an operator should know about how this came to be, as sentences.
    pub notes: Vec<String>,
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// An account file is unusable.
    #[error(transparent)]
    Accounts(#[from] AccountsError),
    /// A user that the passwd file does not have.
    #[error("{field}: no user {name:?} in /etc/passwd; add it to the image, or name a numeric id")]
    UnknownUser {
        /// Who asked.
        field: &'static str,
        /// For whom.
        name: String,
    },
    /// A group that the group file does not have.
    #[error("{field}: no group {name:?} in /etc/group; add it to the image, or name a numeric id")]
    UnknownGroup {
        /// Who asked.
        field: &'static str,
        /// For which.
        name: String,
    },
    /// A numeric user without a group.
    #[error(
        "{field}: user id {uid} is not in /etc/passwd, so it has no primary group; set `process.run_as_group` as well"
    )]
    NoGroup {
        /// Who asked.
        field: &'static str,
        /// The number.
        uid: u32,
    },
    /// Root in any form.
    #[error("{field}: the workload would have {what}, and it never runs as root; name another user and group")]
    Root {
        /// Who asked.
        field: &'static str,
        /// `user id 0`, `group id 0`, `supplementary group 0`.
        what: &'static str,
    },
    /// Half of the driver's pair.
    #[error("{present} is set and {missing} is not; the driver sets both or neither")]
    HalfPair {
        /// The variable that is set.
        present: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// A variable that is no id.
    #[error("{variable}={value:?}: expected a number from 1 to 4294967294")]
    BadId {
        /// The variable.
        variable: &'static str,
        /// What it holds.
        value: String,
    },
    /// An identity that an unprivileged supervisor cannot give.
    #[error(
        "{field}: the supervisor runs as {have} and cannot change to {want}; run it as root, or leave the identity out \
         to keep {have}"
    )]
    CannotSwitch {
        /// Who asked.
        field: &'static str,
        /// Current `uid:gid`.
        have: String,
        /// Wanted `uid:gid`.
        want: String,
    },
}

/// Where an identity can come from, and who asks.
#[derive(Clone, Debug, Default)]
pub struct Sources<'s> {
    /// Section `process` of the policy.
    pub policy: ProcessIdentity,
    /// `OPENSHELL_SANDBOX_UID`, as found in the environment.
    pub uid: Option<&'s str>,
    /// `OPENSHELL_SANDBOX_GID`.
    pub gid: Option<&'s str>,
}

impl Identity {
    /// Resolves the identity against this system's account files and the supervisor's own ids. The driver's pair of
    /// numbers wins over the policy (it knows what the volumes belong to), the policy over the default: as root, the
    /// image's user `sandbox`, else the overflow id; as anyone else, that user.
    ///
    /// # Errors
    /// [`IdentityError`]; root is refused wherever it comes from.
    pub fn resolve(sources: &Sources<'_>) -> Result<Self, IdentityError> {
        let kept = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
        Self::resolve_in(Path::new(ETC), sources, Current { uid: geteuid().as_raw(), gid: getegid().as_raw(), kept })
    }

    fn resolve_in(etc: &Path, sources: &Sources<'_>, current: Current) -> Result<Self, IdentityError> {
        let accounts = Accounts::read(etc)?;
        let asked = match (sources.uid, sources.gid) {
            (Some(uid), Some(gid)) => Some(from_driver(&accounts, uid, gid)?),
            (Some(_), None) => {
                return Err(IdentityError::HalfPair { present: env::SANDBOX_UID, missing: env::SANDBOX_GID });
            }
            (None, Some(_)) => {
                return Err(IdentityError::HalfPair { present: env::SANDBOX_GID, missing: env::SANDBOX_UID });
            }
            (None, None) => from_policy(&accounts, &sources.policy, &current)?,
        };
        let (mut identity, field) = match asked {
            Some(asked) => asked,
            None if current.uid == 0 => by_default(&accounts)?,
            None => (keep(&accounts, &current)?, "the supervisor's own identity"),
        };
        if current.uid != 0 && identity.uid != 0 {
            if (identity.uid, identity.gid) != (current.uid, current.gid) {
                return Err(IdentityError::CannotSwitch {
                    field,
                    have: format!("{}:{}", current.uid, current.gid),
                    want: format!("{}:{}", identity.uid, identity.gid),
                });
            }
            identity.switch = false;
            identity.groups = current.kept.iter().copied().filter(|&group| group != identity.gid).collect();
            identity.groups.sort_unstable();
            identity.groups.dedup();
            if !identity.groups.is_empty() {
                let list: Vec<String> = identity.groups.iter().map(u32::to_string).collect();
                identity.notes.push(format!(
                    "the workload keeps the supplementary groups {} of whoever started it: an ordinary user cannot \
                     drop groups",
                    list.join(", ")
                ));
            }
        }
        identity.refuse_root(field)?;
        Ok(identity)
    }

    fn refuse_root(&self, field: &'static str) -> Result<(), IdentityError> {
        let what = if self.uid == 0 {
            "user id 0"
        } else if self.gid == 0 {
            "group id 0"
        } else if self.groups.contains(&0) {
            "supplementary group 0"
        } else {
            return Ok(());
        };
        Err(IdentityError::Root { field, what })
    }

    fn of(user: User, gid: u32, accounts: &Accounts) -> Self {
        Self {
            uid: user.uid,
            gid,
            groups: accounts.groups_of(&user.name, gid),
            name: user.name,
            home: if user.home.is_empty() { SANDBOX_HOME.to_owned() } else { user.home },
            shell: Some(user.shell).filter(|shell| !shell.is_empty()),
            switch: true,
            notes: Vec::new(),
        }
    }

    fn numeric(uid: u32, gid: u32) -> Self {
        Self {
            uid,
            gid,
            groups: Vec::new(),
            name: uid.to_string(),
            home: SANDBOX_HOME.to_owned(),
            shell: None,
            switch: true,
            notes: Vec::new(),
        }
    }
}

/// The supervisor's own ids.
#[derive(Clone, Debug)]
struct Current {
    uid: u32,
    gid: u32,
    kept: Vec<u32>,
}

type Found = (Identity, &'static str);

fn from_driver(accounts: &Accounts, uid: &str, gid: &str) -> Result<Found, IdentityError> {
    let parse = |variable, text: &str| {
        id(text).filter(|&id| id != 0).ok_or_else(|| IdentityError::BadId { variable, value: text.to_owned() })
    };
    let (uid, gid) = (parse(env::SANDBOX_UID, uid)?, parse(env::SANDBOX_GID, gid)?);
    // The name makes prompts and tools right; groups of the image's making are not the driver's.
    let mut identity = Identity::numeric(uid, gid);
    if let Some(user) = accounts.user(Key::Id(uid))? {
        identity = Identity { groups: Vec::new(), ..Identity::of(user, gid, accounts) };
    }
    Ok((identity, env::SANDBOX_UID))
}

fn from_policy(
    accounts: &Accounts,
    policy: &ProcessIdentity,
    current: &Current,
) -> Result<Option<Found>, IdentityError> {
    const USER: &str = "policy field process.run_as_user";
    const GROUP: &str = "policy field process.run_as_group";
    if policy.user.is_none() && policy.group.is_none() {
        return Ok(None);
    }
    let group = match policy.group.as_deref() {
        None => None,
        Some(text) => Some(match id(text) {
            Some(gid) => gid,
            None => {
                accounts
                    .group(Key::Name(text))?
                    .ok_or_else(|| IdentityError::UnknownGroup { field: GROUP, name: text.to_owned() })?
                    .gid
            }
        }),
    };
    let (mut identity, field) = match policy.user.as_deref() {
        None if current.uid == 0 => by_default(accounts)?,
        None => (keep(accounts, current)?, GROUP),
        Some(text) => {
            let key = id(text).map_or(Key::Name(text), Key::Id);
            let identity = match (accounts.user(key)?, key, group) {
                (Some(user), _, _) => {
                    let gid = group.unwrap_or(user.gid);
                    Identity::of(user, gid, accounts)
                }
                (None, Key::Id(uid), Some(gid)) => Identity::numeric(uid, gid),
                (None, Key::Id(0), None) => return Err(IdentityError::Root { field: USER, what: "user id 0" }),
                (None, Key::Id(uid), None) => return Err(IdentityError::NoGroup { field: USER, uid }),
                (None, Key::Name(_), _) => {
                    return Err(IdentityError::UnknownUser { field: USER, name: text.to_owned() });
                }
            };
            (identity, USER)
        }
    };
    if let Some(gid) = group {
        identity.gid = gid;
        identity.groups.retain(|&other| other != gid);
    }
    Ok(Some((identity, field)))
}

fn by_default(accounts: &Accounts) -> Result<Found, IdentityError> {
    if let Some(user) = accounts.user(Key::Name(SANDBOX_USER))? {
        let gid = user.gid;
        return Ok((Identity::of(user, gid, accounts), "the image's user `sandbox`"));
    }
    let mut identity = Identity::numeric(OVERFLOW_ID, OVERFLOW_ID);
    if let Some(user) = accounts.user(Key::Id(OVERFLOW_ID))? {
        identity.name = user.name;
    }
    identity.notes.push(format!(
        "no policy or driver names a user and /etc/passwd has no `{SANDBOX_USER}`: the workload runs as {OVERFLOW_ID}, \
         which owns no files; set `process.run_as_user` to choose"
    ));
    Ok((identity, "the default identity"))
}

fn keep(accounts: &Accounts, current: &Current) -> Result<Identity, IdentityError> {
    // Accounts from a directory service are in no file: the ids are enough then.
    Ok(match accounts.user(Key::Id(current.uid))? {
        Some(user) => Identity::of(user, current.gid, accounts),
        None => Identity::numeric(current.uid, current.gid),
    })
}

/// A step of the drop that failed.
#[derive(Debug, thiserror::Error)]
pub enum DropError {
    /// A call failed.
    #[error("{call}: {source}; {remedy}")]
    Call {
        /// The call.
        call: &'static str,
        /// What it answered.
        source: nix::Error,
        /// What to do.
        remedy: &'static str,
    },
    /// The kernel says otherwise than what was asked.
    #[error("after the identity drop the process still has {what}; the workload was not started")]
    Left {
        /// What is left.
        what: String,
    },
    /// Capabilities could not be given up.
    #[error(transparent)]
    Capabilities(#[from] capabilities::CapabilityError),
}

/// What the drop achieved beyond what it must.
pub use super::capabilities::Dropped;

/// Takes `identity` on for good, in the calling thread: groups, ids, no capability in any set, umask; each read back
/// from the kernel.
///
/// # Errors
/// [`DropError`]: the caller must not go on.
pub fn drop(identity: &Identity) -> Result<Dropped, DropError> {
    let (uid, gid) = (Uid::from_raw(identity.uid), Gid::from_raw(identity.gid));
    let call = |call, remedy| move |source| DropError::Call { call, source, remedy };
    if identity.switch {
        let groups: Vec<Gid> = identity.groups.iter().copied().map(Gid::from_raw).collect();
        setgroups(&groups).map_err(call("setgroups", "give the supervisor CAP_SETGID"))?;
        setresgid(gid, gid, gid).map_err(call("setresgid", "give the supervisor CAP_SETGID"))?;
    }
    let dropped = capabilities::prepare_drop()?;
    if identity.switch {
        setresuid(uid, uid, uid).map_err(call("setresuid", "give the supervisor CAP_SETUID"))?;
    }
    capabilities::finish_drop(&dropped)?;
    umask(Mode::from_bits_truncate(UMASK));
    verify(identity, uid, gid)?;
    Ok(dropped)
}

fn verify(identity: &Identity, uid: Uid, gid: Gid) -> Result<(), DropError> {
    let left = |what: String| Err(DropError::Left { what });
    let call = |call| move |source| DropError::Call { call, source, remedy: "report this kernel" };
    let users = getresuid().map_err(call("getresuid"))?;
    if [users.real, users.effective, users.saved] != [uid; 3] {
        return left(format!("user ids {}, {}, {}", users.real, users.effective, users.saved));
    }
    let groups = getresgid().map_err(call("getresgid"))?;
    if [groups.real, groups.effective, groups.saved] != [gid; 3] {
        return left(format!("group ids {}, {}, {}", groups.real, groups.effective, groups.saved));
    }
    if identity.switch {
        let mut supplementary: Vec<u32> =
            getgroups().map_err(call("getgroups"))?.into_iter().map(Gid::as_raw).collect();
        supplementary.sort_unstable();
        if supplementary != identity.groups {
            return left(format!("supplementary groups {supplementary:?}"));
        }
    }
    let root = Uid::from_raw(0);
    if setresuid(root, root, root).is_ok() {
        return left("the means to become root: setresuid(0, 0, 0) succeeded".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
