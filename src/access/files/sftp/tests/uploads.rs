//! What comes under its name, and when.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use super::super::upload::{APPEND, CREATE, EXCLUSIVE, READ, TRUNCATE, WRITE};
use super::super::wire::request;
use super::{Body, Client, NEW, is_tidy};

const OK: u32 = 0;
const NO_SUCH_FILE: u32 = 2;

#[test]
fn an_upload_that_is_cut_short_leaves_nothing_and_one_that_is_closed_is_there() {
    let directory = tempfile::tempdir().unwrap();
    for closed in [false, true] {
        let path = directory.path().join("file");
        let mut client = Client::start();
        let handle = client.open(&path, NEW);
        assert_eq!(client.write(&handle, 0, b"half"), OK);
        assert!(!path.exists());
        if closed {
            assert_eq!(client.close(&handle), OK);
        }
        client.end().unwrap();
        assert_eq!(fs::read(&path).ok(), closed.then(|| b"half".to_vec()));
        assert!(is_tidy(directory.path()));
    }
}

#[test]
fn what_was_not_written_whole_does_not_come_under_its_name_though_it_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    // No file is as long.
    let write = |client: &mut Client, handle: &[u8]| client.write(handle, u64::MAX - 4, b"half");
    let lengthen = |client: &mut Client, handle: &[u8]| {
        client.status(request::FSETSTAT, Body::default().string(handle).u32(1).u64(u64::MAX))
    };
    let copy = |client: &mut Client, handle: &[u8]| {
        let range = Body::default().string(handle).u64(u64::MAX).u64(1).string(handle).u64(0);
        client.extended("copy-data", range)
    };
    let nothing = |_: &mut Client, _: &[u8]| OK;
    type Step<'a> = (&'a dyn Fn(&mut Client, &[u8]) -> u32, bool);
    let steps: [Step; 4] = [(&write, false), (&lengthen, false), (&copy, false), (&nothing, true)];
    for (step, whole) in steps {
        for old in [None, Some("old content")] {
            for flags in [NEW, WRITE | CREATE, WRITE | CREATE | EXCLUSIVE] {
                if old.is_some() && flags & EXCLUSIVE != 0 {
                    continue;
                }
                let _ = fs::remove_file(&path);
                old.iter().for_each(|old| fs::write(&path, old).unwrap());
                let mut client = Client::start();
                let handle = client.open(&path, flags);
                assert_eq!(client.write(&handle, 0, b"half of the new"), OK);
                assert_eq!(step(&mut client, &handle) == OK, whole);
                assert_eq!(client.close(&handle) == OK, whole, "{flags:x}");
                client.end().unwrap();
                let expected = if whole { Some("half of the new") } else { old };
                assert_eq!(fs::read_to_string(&path).ok().as_deref(), expected, "{flags:x}");
                assert!(is_tidy(directory.path()));
            }
        }
    }
}

#[test]
fn what_was_there_stays_until_the_new_file_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "old content").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o751)).unwrap();
    for (closed, expected) in [(false, "old content"), (true, "new")] {
        let mut client = Client::start();
        let handle = client.open(&path, NEW);
        client.write(&handle, 0, b"new");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old content");
        if closed {
            assert_eq!(client.close(&handle), OK);
        }
        client.end().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), expected);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o751);
        assert!(is_tidy(directory.path()));
    }
}

#[test]
fn scp_writes_over_a_file_without_truncating_it_first() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for (cut, closed, expected) in [
        (true, true, &b"new"[..]),
        // What a client does not write over and does not cut off is still there.
        (false, true, b"newcontent"),
        (true, false, b"oldcontent"),
    ] {
        fs::write(&path, "oldcontent").unwrap();
        let mut client = Client::start();
        let handle = client.open(&path, WRITE | CREATE);
        client.write(&handle, 0, b"new");
        if cut {
            let body = Body::default().string(&handle).u32(1).u64(3);
            assert_eq!(client.status(request::FSETSTAT, body), OK);
        }
        assert_eq!(fs::read(&path).unwrap(), b"oldcontent");
        if closed {
            client.close(&handle);
        }
        client.end().unwrap();
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert!(is_tidy(directory.path()));
    }
}

#[test]
fn gaps_between_writes_show_what_was_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "0123456789").unwrap();
    let mut client = Client::start();
    let handle = client.open(&path, WRITE | CREATE);
    client.write(&handle, 0, b"a");
    client.write(&handle, 4, b"b");
    client.write(&handle, 2, b"c");
    assert_eq!(client.size(&path), Ok(10));
    assert_eq!(client.close(&handle), OK);
    assert_eq!(fs::read_to_string(&path).unwrap(), "a1c3b56789");
}

#[test]
fn resuming_appending_and_random_access_are_in_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for (flags, offset, expected) in [
        (WRITE | CREATE, 8, "01234567new"),
        (WRITE | APPEND | CREATE, 0, "01234567new"),
        (WRITE, 0, "new34567"),
        (READ | WRITE | CREATE, 0, "new34567"),
    ] {
        fs::write(&path, "01234567").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let mut client = Client::start();
        let handle = client.open(&path, flags);
        assert_eq!(client.write(&handle, offset, b"new"), OK);
        client.end().unwrap();
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), fs::metadata(&path).unwrap().ino()),
            (expected, inode)
        );
    }
}

#[test]
fn an_exclusive_file_is_seen_at_once_and_goes_with_its_session() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lock");
    for closed in [false, true] {
        let (mut client, mut other) = (Client::start(), Client::start());
        let handle = client.open(&path, WRITE | CREATE | EXCLUSIVE);
        assert!(path.exists());
        assert!(other.try_open(&path, WRITE | CREATE | EXCLUSIVE).is_err());
        if closed {
            client.close(&handle);
        }
        client.end().unwrap();
        assert_eq!(path.exists(), closed);
    }
}

#[test]
fn the_session_sees_its_unfinished_file_under_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut client = Client::start();
    let handle = client.open(&path, NEW);
    client.write(&handle, 0, b"four");
    assert_eq!(client.size(&path), Ok(4));
    assert_eq!(Client::start().size(&path), Err(NO_SUCH_FILE));
    assert_eq!(client.list(directory.path()).0, [b"file"]);
    // Its mode set by name, as clients do that keep modes.
    assert_eq!(client.status(request::SETSTAT, Body::default().path(&path).u32(4).u32(0o600)), OK);
    let again = client.open(&path, READ);
    assert_eq!(client.read(&again, 0, 10).unwrap(), b"four");
    assert!(client.try_open(&path, WRITE | CREATE | EXCLUSIVE).is_err());
    assert_eq!(client.close(&handle), OK);
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    client.end().unwrap();
}

#[test]
fn removing_and_renaming_an_unfinished_file_are_what_they_are_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other) = (directory.path().join("file"), directory.path().join("other"));
    let mut client = Client::start();
    let handle = client.open(&path, NEW);
    assert_eq!(client.status(request::REMOVE, Body::default().path(&path)), OK);
    assert_eq!(client.size(&path), Err(NO_SUCH_FILE));
    assert_eq!((client.write(&handle, 0, b"x"), client.close(&handle)), (OK, OK));
    assert!(!path.exists());

    let handle = client.open(&path, NEW);
    assert_eq!(client.status(request::RENAME, Body::default().path(&path).path(&other)), OK);
    assert_eq!((client.write(&handle, 0, b"x"), client.close(&handle)), (OK, OK));
    assert_eq!(fs::read(&other).unwrap(), b"x");
    client.end().unwrap();
    assert!(!path.exists() && is_tidy(directory.path()));
}

#[test]
fn fsync_puts_a_file_under_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    let mut client = Client::start();
    let handle = client.open(&path, NEW);
    client.write(&handle, 0, b"safe");
    assert_eq!(client.extended("fsync@openssh.com", Body::default().string(&handle)), OK);
    client.write(&handle, 4, b" more");
    client.end().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"safe more");
}

#[test]
fn other_names_of_a_file_stay_its_names_and_links_stay_links() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("elsewhere")).unwrap();
    fs::write(at("one"), "old").unwrap();
    fs::hard_link(at("one"), at("two")).unwrap();
    fs::write(at("elsewhere/target"), "old").unwrap();
    symlink("elsewhere/target", at("link")).unwrap();
    symlink("elsewhere/fresh", at("dangling")).unwrap();
    let mut client = Client::start();
    for (name, lands) in [("one", "two"), ("link", "elsewhere/target"), ("dangling", "elsewhere/fresh")] {
        let handle = client.open(&at(name), NEW);
        client.write(&handle, 0, b"new");
        assert_eq!(client.size(&at(lands)), Ok(3), "{name}");
        if name != "one" {
            // The link is still the link.
            assert_ne!(client.size(&at(name)), Ok(3), "{name}");
        }
        assert_eq!(client.close(&handle), OK);
        assert_eq!(fs::read(at(lands)).unwrap(), b"new");
    }
    assert!(at("link").is_symlink() && at("dangling").is_symlink());
    client.end().unwrap();
    assert!(is_tidy(directory.path()) && is_tidy(&at("elsewhere")));
}

#[test]
fn a_file_whose_directory_admits_no_other_is_written_in_place() {
    let mut client = Client::start();
    // A device: nothing may take its place, and nothing is beside it.
    let handle = client.open(std::path::Path::new("/dev/null"), WRITE | CREATE | TRUNCATE);
    assert_eq!((client.write(&handle, 0, b"x"), client.close(&handle)), (OK, OK));
    client.end().unwrap();
    assert!(is_tidy(std::path::Path::new("/dev")));
}
