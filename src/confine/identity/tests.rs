//! Resolution from account files of the tests' own, and the drop in forked children.

use super::*;
use crate::sys::capability::{Sets, bounded, get, set};
use crate::sys::child;

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1001:,,,:/home/agent:/bin/bash\n\
                      wheel:x:1002:1002::/:/bin/sh\ntoor:x:1003:0::/:/bin/sh\n";
const GROUP: &str = "root:x:0:wheel\nagent:x:1001:\naudio:x:29:agent\nvideo:x:44:agent\nzero:x:0:\n";

struct Etc {
    directory: tempfile::TempDir,
}

impl Etc {
    fn new(passwd: &str, group: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("passwd"), passwd).unwrap();
        std::fs::write(directory.path().join("group"), group).unwrap();
        Self { directory }
    }

    fn resolve(&self, sources: &Sources<'_>, uid: u32) -> Result<Identity, IdentityError> {
        let current = Current { uid, gid: uid, kept: vec![uid, 29] };
        Identity::resolve_in(self.directory.path(), sources, current)
    }
}

fn policy(user: Option<&str>, group: Option<&str>) -> Sources<'static> {
    let process = ProcessIdentity { user: user.map(str::to_owned), group: group.map(str::to_owned) };
    Sources { policy: process, uid: None, gid: None }
}

#[test]
fn names_and_numbers_resolve() {
    let etc = Etc::new(PASSWD, GROUP);
    let named = etc.resolve(&policy(Some("agent"), None), 0).unwrap();
    assert_eq!((named.uid, named.gid, named.groups), (1000, 1001, vec![29, 44]));
    assert_eq!((named.home.as_str(), named.shell.as_deref()), ("/home/agent", Some("/bin/bash")));
    let by_number = etc.resolve(&policy(Some("1000"), Some("audio")), 0).unwrap();
    assert_eq!((by_number.name.as_str(), by_number.gid, by_number.groups), ("agent", 29, vec![44]));
    let stranger = etc.resolve(&policy(Some("7000"), Some("7001")), 0).unwrap();
    assert_eq!((stranger.uid, stranger.gid, stranger.groups), (7000, 7001, Vec::new()));
    assert_eq!((stranger.name.as_str(), stranger.home.as_str()), ("7000", "/sandbox"));
}

#[test]
fn the_driver_s_numbers_win_and_come_in_pairs() {
    let etc = Etc::new(PASSWD, GROUP);
    let both = Sources { uid: Some("1000"), gid: Some("2000"), ..policy(Some("wheel"), None) };
    let identity = etc.resolve(&both, 0).unwrap();
    assert_eq!((identity.uid, identity.gid, identity.groups, identity.name), (1000, 2000, Vec::new(), "agent".into()));
    for (uid, gid, part) in [
        (Some("1"), None, "OPENSHELL_SANDBOX_GID is not"),
        (None, Some("1"), "OPENSHELL_SANDBOX_UID is not"),
        (Some("0"), Some("1"), "OPENSHELL_SANDBOX_UID=\"0\""),
        (Some("1"), Some("x"), "OPENSHELL_SANDBOX_GID=\"x\""),
        (Some("4294967295"), Some("1"), "4294967294"),
    ] {
        let message = etc.resolve(&Sources { uid, gid, ..Sources::default() }, 0).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn root_is_refused_in_every_form() {
    let etc = Etc::new(PASSWD, GROUP);
    for (user, group, what) in [
        (Some("root"), None, "user id 0"),
        (Some("0"), None, "user id 0"),
        (Some("0"), Some("1"), "user id 0"),
        (Some("toor"), None, "group id 0"),
        (Some("agent"), Some("zero"), "group id 0"),
        (Some("agent"), Some("0"), "group id 0"),
        (Some("wheel"), None, "supplementary group 0"),
    ] {
        let message = etc.resolve(&policy(user, group), 0).unwrap_err().to_string();
        assert!(message.contains(what), "{user:?} {group:?}: {message}");
    }
    assert!(etc.resolve(&policy(Some("agent"), None), 0).is_ok(), "control");
    // Kept ones too: what cannot be dropped cannot be accepted.
    let kept = |kept: &[u32]| {
        let current = Current { uid: 1234, gid: 1234, kept: kept.to_vec() };
        Identity::resolve_in(etc.directory.path(), &Sources::default(), current)
    };
    assert!(kept(&[0]).unwrap_err().to_string().contains("supplementary group 0"));
    assert!(kept(&[7]).is_ok(), "control");
}

#[test]
fn unknown_names_say_where_they_were_looked_for() {
    let etc = Etc::new(PASSWD, GROUP);
    let unknown = |user, group| etc.resolve(&policy(user, group), 0).unwrap_err().to_string();
    assert!(unknown(Some("ghost"), None).contains("no user \"ghost\" in /etc/passwd"));
    assert!(unknown(Some("agent"), Some("ghosts")).contains("no group \"ghosts\" in /etc/group"));
    assert!(unknown(Some("7000"), None).contains("run_as_group"));
}

#[test]
fn the_default_is_the_image_s_sandbox_user_or_nobody() {
    let without = Etc::new(PASSWD, GROUP).resolve(&Sources::default(), 0).unwrap();
    assert_eq!((without.uid, without.gid, without.notes.len()), (OVERFLOW_ID, OVERFLOW_ID, 1));
    let passwd = format!("{PASSWD}sandbox:x:998:998::/sandbox:/bin/bash\n");
    let with = Etc::new(&passwd, GROUP).resolve(&Sources::default(), 0).unwrap();
    assert_eq!((with.uid, with.gid, with.name.as_str(), with.notes.len()), (998, 998, "sandbox", 0));
    let group_alone = Etc::new(&passwd, GROUP).resolve(&policy(None, Some("audio")), 0).unwrap();
    assert_eq!((group_alone.uid, group_alone.gid), (998, 29));
}

#[test]
fn an_ordinary_user_keeps_its_ids_and_cannot_have_others() {
    let etc = Etc::new("me:x:1234:1234::/home/me:/bin/zsh\n", "");
    let kept = etc.resolve(&Sources::default(), 1234).unwrap();
    assert_eq!((kept.uid, kept.gid, kept.switch, kept.groups), (1234, 1234, false, vec![29]));
    assert!(kept.notes[0].contains("29"), "{:?}", kept.notes);
    assert!(etc.resolve(&policy(Some("me"), None), 1234).is_ok(), "one's own name is no change");
    let other = etc.resolve(&policy(Some("7000"), Some("7000")), 1234).unwrap_err().to_string();
    assert!(other.contains("1234:1234") && other.contains("7000:7000"), "{other}");
}

fn target() -> Identity {
    Identity { groups: vec![29, 44], ..Identity::numeric(54_321, 54_322) }
}

#[test]
fn the_drop_leaves_nothing() {
    let seen = child::run(|| {
        let dropped = drop(&target()).unwrap();
        let sets = get().unwrap();
        let bounding = (0..64).filter(|&capability| bounded(capability).unwrap_or(false)).count();
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let ambient = status.lines().find(|line| line.starts_with("CapAmb:")).unwrap().to_owned();
        let groups = status.lines().find(|line| line.starts_with("Groups:")).unwrap().to_owned();
        let back = setgroups(&[Gid::from_raw(0)]).is_ok()
            || setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0)).is_ok();
        format!("{dropped:?} {} {bounding} {ambient} {groups} {back}", sets == Sets::default()).into_bytes()
    })
    .unwrap();
    assert_eq!(
        String::from_utf8(seen).unwrap(),
        "Dropped { bounding: true, securebits: true } true 0 CapAmb:\t0000000000000000 Groups:\t29 44  false"
    );
    let control = child::run(|| vec![u8::from(get().unwrap() != Sets::default())]).unwrap();
    assert_eq!(control, [1], "control: before the drop there is something to lose");
}

#[test]
fn a_supervisor_that_lacks_a_capability_is_told_which() {
    const CAP_SETGID: u8 = 6;
    const CAP_SETUID: u8 = 7;
    const CAP_SETPCAP: u8 = 8;
    for (capability, part) in [(CAP_SETGID, "CAP_SETGID"), (CAP_SETUID, "CAP_SETUID"), (CAP_SETPCAP, "SETPCAP")] {
        let message = child::run(|| {
            let held = get().unwrap();
            let without = held.effective & !(1 << capability);
            set(Sets { effective: without, permitted: without, inheritable: 0 }).unwrap();
            drop(&target()).unwrap_err().to_string().into_bytes()
        })
        .unwrap();
        let message = String::from_utf8(message).unwrap();
        assert!(message.contains(part), "{part}: {message}");
    }
}

#[test]
fn an_unprivileged_supervisor_s_own_ids_are_verified() {
    let outcome = child::run(|| {
        drop(&target()).unwrap();
        // As a pod's non-root container starts: no capability, nothing to switch.
        let own = Identity { switch: false, ..target() };
        let again = drop(&own).is_ok();
        let wrong = drop(&Identity { uid: 7, ..own }).unwrap_err().to_string();
        format!("{again} {wrong}").into_bytes()
    })
    .unwrap();
    let outcome = String::from_utf8(outcome).unwrap();
    assert!(outcome.starts_with("true ") && outcome.contains("user ids 54321"), "{outcome}");
}
