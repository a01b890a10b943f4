//! What identity allows: mode bits, and the POSIX ACL (acl(5)) that stands before them.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::WorkloadWrites;
use crate::sys::xattr;

/// `POSIX_ACL_XATTR_VERSION` of <linux/posix_acl_xattr.h>.
const VERSION: u32 = 2;
/// A tag, permissions of two bytes each, and an id of four.
const ENTRY: usize = 8;

/// Tags of <linux/posix_acl.h>.
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Whether `who`, not the owner of what lies at `path`, has all permissions of `want` (as in one digit of a mode). An
/// ACL that cannot be read or understood allows everything.
pub(in crate::policy) fn allows(who: &WorkloadWrites, path: &Path, of: &Metadata, want: u32) -> bool {
    let member = |group: u32| group == who.gid || who.groups.contains(&group);
    let by_mode = || (if member(of.gid()) { of.mode() >> 3 } else { of.mode() }) & want == want;
    // Where there is an ACL, the group's bits are its mask; without any, the kernel asks the mode alone
    // (acl_permission_check in fs/namei.c), which gives a named user what others have.
    if of.mode() & 0o070 == 0 {
        return by_mode();
    }
    match xattr::read(path, c"system.posix_acl_access") {
        Ok(None) => by_mode(),
        Ok(Some(value)) => Acl::parse(&value).is_none_or(|acl| acl.allows(who.uid, of.gid(), member, want)),
        Err(_) => true,
    }
}

struct Entry {
    tag: u16,
    permissions: u32,
    id: u32,
}

struct Acl(Vec<Entry>);

impl Acl {
    /// The value of the attribute, little-endian whatever the machine.
    fn parse(value: &[u8]) -> Option<Self> {
        let (version, entries) = value.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION {
            return None;
        }
        let entry = |bytes: &[u8]| {
            let [t0, t1, p0, p1, id @ ..] = *<&[u8; ENTRY]>::try_from(bytes).ok()?;
            let tag = u16::from_le_bytes([t0, t1]);
            let permissions = u32::from(u16::from_le_bytes([p0, p1]));
            let known = matches!(tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) && permissions <= 0o7;
            known.then(|| Entry { tag, permissions, id: u32::from_le_bytes(id) })
        };
        entries.chunks(ENTRY).map(entry).collect::<Option<Vec<_>>>().map(Self)
    }

    /// acl(5), "Access check algorithm", for someone who is not the owner.
    fn allows(&self, uid: u32, owning_group: u32, member: impl Fn(u32) -> bool, want: u32) -> bool {
        let permissions = |tag| self.0.iter().find(|entry| entry.tag == tag).map(|entry| entry.permissions);
        let mask = permissions(MASK).unwrap_or(0o7);
        if let Some(user) = self.0.iter().find(|entry| entry.tag == USER && entry.id == uid) {
            return user.permissions & mask & want == want;
        }
        let groups = self.0.iter().filter(|entry| match entry.tag {
            GROUP_OBJ => member(owning_group),
            GROUP => member(entry.id),
            _ => false,
        });
        // One entry must give all that is wanted; but whoever is in any of the groups is nobody of the others.
        let mut among = false;
        for group in groups {
            among = true;
            if group.permissions & mask & want == want {
                return true;
            }
        }
        !among && permissions(OTHER).is_none_or(|others| others & want == want)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{OpenOptions, Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

    use super::*;

    const WORKLOAD: u32 = 54_321;

    fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = VERSION.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// Whether the kernel lets `who` open the file for writing, asked by a thread with its file system identity, which
    /// takes the capabilities over files with it (capabilities(7)).
    fn kernel_allows(path: &Path) -> bool {
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| {
                setfsgid(Gid::from_raw(WORKLOAD));
                setfsuid(Uid::from_raw(WORKLOAD));
                OpenOptions::new().append(true).open(path).is_ok()
            });
            opened.join().unwrap()
        })
    }

    #[test]
    fn the_verdict_is_the_kernel_s() {
        const NONE: u32 = u32::MAX;
        let directory = tempfile::tempdir().unwrap();
        set_permissions(directory.path(), Permissions::from_mode(0o755)).unwrap();
        let who = WorkloadWrites { uid: WORKLOAD, gid: WORKLOAD, groups: Vec::new(), landlock_read_write: None };
        let mut allowed = 0;
        let mut asked = 0;
        // Named user or group, the workload's or another's, over every mask and what others may.
        for tag in [USER, GROUP] {
            for id in [WORKLOAD, WORKLOAD + 7] {
                for named in [0, 4, 6] {
                    for mask in [0, 4, 6] {
                        for others in [0, 6] {
                            let path = directory.path().join("file");
                            std::fs::write(&path, "").unwrap();
                            let mut entries = vec![(USER_OBJ, 6, NONE)];
                            entries.extend((tag == USER).then_some((USER, named, id)));
                            entries.push((GROUP_OBJ, 4, NONE));
                            entries.extend((tag == GROUP).then_some((GROUP, named, id)));
                            entries.extend([(MASK, mask, NONE), (OTHER, others, NONE)]);
                            xattr::write(&path, c"system.posix_acl_access", &value(&entries)).unwrap();
                            let verdict = allows(&who, &path, &std::fs::symlink_metadata(&path).unwrap(), 0o2);
                            assert_eq!(verdict, kernel_allows(&path), "{entries:?}");
                            allowed += usize::from(verdict);
                            asked += 1;
                            std::fs::remove_file(&path).unwrap();
                        }
                    }
                }
            }
        }
        assert!(allowed > 0 && allowed < asked, "{allowed} of {asked}");
    }

    #[test]
    fn one_entry_must_give_all_that_is_wanted() {
        let split = Acl::parse(&value(&[(GROUP_OBJ, 1, 0), (GROUP, 2, 5), (MASK, 7, 0), (OTHER, 7, 0)])).unwrap();
        assert!(!split.allows(1, 5, |group| group == 5, 0o3));
        assert!(split.allows(1, 5, |group| group == 5, 0o2));
        assert!(split.allows(1, 5, |_| false, 0o3));
    }

    #[test]
    fn what_is_no_acl_is_not_understood() {
        let good = value(&[(USER, 6, WORKLOAD)]);
        assert!(Acl::parse(&good).is_some());
        assert!(Acl::parse(&[]).is_none());
        assert!(Acl::parse(&good[..good.len() - 1]).is_none());
        assert!(Acl::parse(&value(&[(0x40, 6, 0)])).is_none());
        assert!(Acl::parse(&value(&[(USER, 0x10, 0)])).is_none());
        let mut newer = good;
        newer[0] = 3;
        assert!(Acl::parse(&newer).is_none());
    }
}
