//! What is no SFTP, or should not be.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::super::attributes::Attributes;
use super::super::wire::{Fields, request};
use super::super::{MAX_PACKET, SftpError, serve};
use super::{Body, packet};
use crate::access::files::NoNames;

fn serve_bytes(bytes: &[u8]) -> (Result<(), SftpError>, Vec<u8>) {
    let mut output = Vec::new();
    (serve(bytes, &mut output, &NoNames, &mut |_| ()), output)
}

fn init() -> Vec<u8> {
    packet(request::INIT, &Body::default().u32(3).0)
}

#[test]
fn what_cannot_be_a_packet_ends_the_session_with_a_reason() {
    let (outcome, output) = serve_bytes(b"GET / HTTP/1.1\r\n\r\n");
    assert!(matches!(outcome, Err(SftpError::Packet { length: 0x4745_5420 })));
    assert!(output.is_empty());
    for (length, fits) in [(0, false), (MAX_PACKET, true), (MAX_PACKET + 1, false)] {
        let mut bytes = [init(), u32::try_from(length).unwrap().to_be_bytes().to_vec()].concat();
        bytes.resize(bytes.len() + length, request::STAT);
        assert_eq!(matches!(serve_bytes(&bytes).0, Err(SftpError::Packet { .. })), !fits, "{length}");
    }
    assert!(matches!(serve_bytes(&init()[..6]).0, Err(SftpError::Truncated)));
    assert!(serve_bytes(&init()).0.is_ok() && serve_bytes(b"").0.is_ok());
    let early = packet(request::STAT, &Body::default().u32(1).string("/").0);
    assert!(matches!(serve_bytes(&early).0, Err(SftpError::NotInitialised { found: request::STAT })));
    let short = [init(), packet(request::STAT, b"\0")].concat();
    assert!(matches!(serve_bytes(&short).0, Err(SftpError::NoIdentifier(request::STAT))));
}

#[test]
fn requests_that_are_unknown_or_too_short_are_answered_and_the_session_goes_on() {
    let requests = [
        packet(99, &Body::default().u32(1).0),
        packet(request::OPEN, &Body::default().u32(2).u32(u32::MAX).0),
        packet(request::WRITE, &Body::default().u32(3).string("x").0),
        packet(request::EXTENDED, &Body::default().u32(4).string("vendor@example.com").0),
        packet(request::STAT, &Body::default().u32(5).string("a\0b").0),
        packet(request::STAT, &Body::default().u32(6).string("/").0),
    ];
    let (outcome, output) = serve_bytes(&[init(), requests.concat()].concat());
    outcome.unwrap();
    let mut replies = Vec::new();
    let mut rest = &output[..];
    while let Ok(reply) = Fields(rest).string() {
        rest = &rest[4 + reply.len()..];
        replies.push((reply[0], reply.get(8).copied()));
    }
    let bad = (101, Some(5));
    assert_eq!(replies[1..6], [(101, Some(8)), bad, bad, (101, Some(8)), bad]);
    assert_eq!(replies[6].0, 105);
}

/// Paths that a request of the generator may name; everything stays below the directory.
fn paths(directory: &Path) -> Vec<PathBuf> {
    ["a", "b", "d", "d/c", "l", "none/x"].iter().map(|name| directory.join(name)).collect()
}

/// A request with fields as the draft has them, whatever is in them.
fn one(kind: u8, path: &Path, other: &Path, handle: &[u8], numbers: (u32, u64), attributes: &[u8]) -> Body {
    let (small, large) = numbers;
    let mut body = match kind {
        request::OPEN => Body::default().path(path).u32(small),
        request::CLOSE | request::FSTAT | request::FSETSTAT | request::READDIR => Body::default().string(handle),
        request::READ => Body::default().string(handle).u64(large).u32(small),
        request::WRITE => Body::default().string(handle).u64(large).string(attributes),
        request::RENAME | request::SYMLINK => Body::default().path(path).path(other),
        request::EXTENDED => match small % 7 {
            0 => Body::default().string("posix-rename@openssh.com").path(path).path(other),
            1 => Body::default().string("hardlink@openssh.com").path(path).path(other),
            2 => Body::default().string("copy-data").string(handle).u64(large % 100).u64(1).string(handle).u64(large),
            3 => Body::default().string("fsync@openssh.com").string(handle),
            4 => Body::default().string("users-groups-by-id@openssh.com").string(attributes).string(attributes),
            5 => Body::default().string("statvfs@openssh.com").path(path),
            _ => Body::default().string("lsetstat@openssh.com").path(path),
        },
        _ => Body::default().path(path),
    };
    body.0.extend_from_slice(attributes);
    body
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn attributes_of_any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Attributes::read(&mut Fields(&bytes));
    }

    #[test]
    fn a_stream_of_any_bytes_ends_with_an_answer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = serve_bytes(&bytes);
        // After the greeting only with a length that is none, lest a path come of it.
        let mut after = init();
        after.extend_from_slice(&[0xff]);
        after.extend_from_slice(&bytes);
        prop_assert!(serve_bytes(&after).0.is_err());
    }

    #[test]
    fn any_requests_each_get_one_answer_and_nothing_temporary_stays(
        requests in prop::collection::vec(
            (3_u8..=21, 0..6_usize, 0..6_usize, 0..6_u8, any::<u32>(), any::<u16>(),
             prop::collection::vec(any::<u8>(), 0..40), any::<Option<u8>>()),
            1..40,
        ),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let paths = paths(directory.path());
        std::fs::create_dir(&paths[2]).unwrap();
        std::os::unix::fs::symlink("a", &paths[4]).unwrap();
        let mut bytes = init();
        let count = requests.len();
        for (id, (kind, path, other, handle, small, large, attributes, cut)) in requests.into_iter().enumerate() {
            let kind = if kind == 21 { request::EXTENDED } else { kind };
            let handle = [0, 0, 0, handle, 0, 0, 0, 1];
            let numbers = (small & 0x3f, large.into());
            let mut body = one(kind, &paths[path], &paths[other], &handle, numbers, &attributes).0;
            // Cut off within the first string at most, so that what is left is no other path.
            if let Some(cut) = cut {
                body.truncate(usize::from(cut).min(body.len()));
            }
            bytes.extend(packet(kind, &[&u32::try_from(id).unwrap().to_be_bytes()[..], &body].concat()));
        }
        let (outcome, output) = serve_bytes(&bytes);
        prop_assert!(outcome.is_ok());
        let (mut rest, mut replies) = (&output[..], 0);
        while let Ok(reply) = Fields(rest).string() {
            rest = &rest[4 + reply.len()..];
            replies += 1;
        }
        prop_assert_eq!((replies, rest.len()), (count + 1, 0));
        prop_assert!(super::is_tidy(directory.path()));
    }
}
