//! Requests about files and directories.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::super::upload::{READ, WRITE};
use super::super::wire::{Fields, reply, request};
use super::super::{MAX_DATA, MAX_HANDLES};
use super::{Body, Client, NEW};

const OK: u32 = 0;
const END: u32 = 1;
const NO_SUCH_FILE: u32 = 2;
const FAILURE: u32 = 4;

#[test]
fn offsets_have_64_bits() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("huge");
    let mut client = Client::start();
    let handle = client.open(&path, NEW | READ);
    assert_eq!(client.write(&handle, 5 << 30, b"far"), OK);
    assert_eq!(client.size(&path), Ok((5 << 30) + 3));
    assert_eq!(client.read(&handle, (5 << 30) - 2, 100).unwrap(), b"\0\0far");
    assert_eq!(client.read(&handle, (5 << 30) + 3, 1), Err(END));
    assert!(client.read(&handle, u64::MAX, 1).is_err());
    assert_eq!(client.close(&handle), OK);
    // An upload of which something could not be written is none.
    let other = directory.path().join("other");
    let handle = client.open(&other, NEW | READ);
    assert_ne!(client.write(&handle, u64::MAX - 1, b"xyz"), OK);
    assert_ne!(client.close(&handle), OK);
    assert!(path.exists() && !other.exists());
    client.end().unwrap();
}

#[test]
fn a_read_gives_what_one_packet_holds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, vec![7; 2 * MAX_DATA]).unwrap();
    let mut client = Client::start();
    let handle = client.open(&path, READ);
    assert_eq!(client.read(&handle, 0, u32::MAX).unwrap(), vec![7; MAX_DATA]);
    assert_eq!(client.read(&handle, 0, 0).unwrap(), b"");
}

#[test]
fn names_that_are_no_text_go_both_ways() {
    let directory = tempfile::tempdir().unwrap();
    let name = b"\xff\x01 \xc3\x28";
    let path = directory.path().join(OsStr::from_bytes(name));
    let mut client = Client::start();
    let handle = client.open(&path, NEW);
    client.close(&handle);
    assert_eq!(client.list(directory.path()).0, [name]);
    assert_eq!(client.size(&path), Ok(0));
    assert!(path.exists());
}

#[test]
fn a_large_directory_comes_in_several_replies_each_name_once() {
    let directory = tempfile::tempdir().unwrap();
    let mut expected: Vec<Vec<u8>> = (0..1000).map(|number| format!("{number:0200}").into_bytes()).collect();
    for name in &expected {
        fs::write(directory.path().join(OsStr::from_bytes(name)), "").unwrap();
    }
    expected.sort();
    let (names, replies) = Client::start().list(directory.path());
    assert_eq!(names, expected);
    assert!(replies > 3);
}

#[test]
fn the_target_of_a_link_comes_first_as_openssh_has_it() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    let mut client = Client::start();
    assert_eq!(client.status(request::SYMLINK, Body::default().string("target").path(&link)), OK);
    assert_eq!(fs::read_link(&link).unwrap(), Path::new("target"));
    let (kind, body) = client.ask(request::READLINK, Body::default().path(&link));
    assert_eq!((kind, &body[4..]), (reply::NAME, &Body::default().string("target").string("target").u32(0).0[..]));
}

#[test]
fn rename_replaces_nothing_and_posix_rename_does() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("a"), "a").unwrap();
    fs::write(at("b"), "b").unwrap();
    fs::create_dir(at("d")).unwrap();
    let mut client = Client::start();
    let both = |from: &str, to: &str| Body::default().path(&at(from)).path(&at(to));
    assert_eq!(client.status(request::RENAME, both("a", "b")), FAILURE);
    assert_eq!(client.status(request::RENAME, both("d", "b")), FAILURE);
    assert_eq!(fs::read(at("b")).unwrap(), b"b");
    assert_eq!(client.extended("posix-rename@openssh.com", both("a", "b")), OK);
    assert_eq!(fs::read(at("b")).unwrap(), b"a");
    assert_eq!(client.status(request::RENAME, both("b", "c")), OK);
    assert_eq!(client.status(request::RENAME, both("d", "e")), OK);
    assert_eq!(client.status(request::RENAME, both("none", "f")), NO_SUCH_FILE);
    assert_eq!(client.extended("hardlink@openssh.com", both("c", "g")), OK);
    assert_eq!(client.list(directory.path()).0, [b"c", b"e", b"g"]);
}

#[test]
fn handles_are_bounded_and_a_closed_one_is_not_its_successor() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "x").unwrap();
    let mut client = Client::start();
    let handles: Vec<_> = (0..MAX_HANDLES).map(|_| client.open(&path, READ)).collect();
    assert_eq!(client.try_open(&path, READ), Err(FAILURE));
    assert_eq!(client.close(&handles[7]), OK);
    let successor = client.open(&path, READ);
    assert_eq!(client.read(&handles[7], 0, 1), Err(FAILURE));
    assert_eq!(client.read(&successor, 0, 1).unwrap(), b"x");
    assert_eq!(client.close(&handles[7]), FAILURE);
    assert_eq!(client.close(b"nonsense"), FAILURE);
    assert_eq!(client.close(b""), FAILURE);
}

#[test]
fn attributes_are_set_by_name_and_by_handle() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "0123456789").unwrap();
    let mut client = Client::start();
    let all = |body: Body, mode: u32| body.u32(1 | 4 | 8).u64(5).u32(0o100_000 | mode).u32(1000).u32(2000);
    assert_eq!(client.status(request::SETSTAT, all(Body::default().path(&path), 0o640)), OK);
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.len(), found.mode(), found.atime(), found.mtime()), (5, 0o100_640, 1000, 2000));
    let handle = client.open(&path, WRITE);
    assert_eq!(client.status(request::FSETSTAT, all(Body::default().string(&handle), 0o400)), OK);
    assert_eq!(fs::metadata(&path).unwrap().mode(), 0o100_400);
    // Of the link itself.
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("file", &link).unwrap();
    let body = Body::default().path(&link).u32(8).u32(5).u32(6);
    assert_eq!(client.extended("lsetstat@openssh.com", body), OK);
    assert_eq!((fs::symlink_metadata(&link).unwrap().mtime(), fs::metadata(&link).unwrap().mtime()), (6, 2000));
}

#[test]
fn data_is_copied_between_handles_and_never_onto_itself() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("from"), "0123456789").unwrap();
    let mut client = Client::start();
    let (from, to) = (client.open(&at("from"), READ | WRITE), client.open(&at("to"), NEW));
    let ask = |from: &[u8], offset, length, to: &[u8], at| {
        Body::default().string(from).u64(offset).u64(length).string(to).u64(at)
    };
    assert_eq!(client.extended("copy-data", ask(&from, 2, 0, &to, 1)), OK);
    assert_eq!(client.extended("copy-data", ask(&from, 0, 5, &from, 3)), FAILURE);
    assert_eq!(client.extended("copy-data", ask(&from, 0, 3, &from, 20)), OK);
    client.close(&to);
    assert_eq!(fs::read(at("to")).unwrap(), b"\x0023456789");
    assert_eq!(fs::read(at("from")).unwrap(), [&b"0123456789"[..], &[0; 10], b"012"].concat());
}

#[test]
fn the_last_name_of_a_real_path_need_not_be_there() {
    let directory = tempfile::tempdir().unwrap();
    let top = directory.path().canonicalize().unwrap();
    let mut client = Client::start();
    let mut real = |path: &Path| match client.ask(request::REALPATH, Body::default().path(path)) {
        (reply::NAME, body) => Some(Fields(&body[4..]).string().unwrap().to_vec()),
        _ => None,
    };
    assert_eq!(real(&top.join("./x/..")), None);
    assert_eq!(real(&top.join("../..").join("tmp")), Some(b"/tmp".to_vec()));
    assert_eq!(real(&top.join("./new")), Some(top.join("new").as_os_str().as_bytes().to_vec()));
    assert_eq!(real(&top.join("no/new")), None);
    assert_eq!(real(Path::new("")).map(|path| path[0]), Some(b'/'));
}
