//! Archives made here, by hand and by [`create`](super::create), taken in again.

mod attacks;
mod formats;
mod trees;

use std::path::Path;

use super::header::{Header, Numbers};
pub(super) use crate::access::files::staged::is_tidy;

use super::{BLOCK, Summary, TarError, Wanted, create, extract, pax};

/// A member with its data, padded.
pub(super) fn member(kind: u8, path: &[u8], link: &[u8], data: &[u8]) -> Vec<u8> {
    let numbers = Numbers { mode: 0o644, size: data.len() as u64, modified: 1_000_000, ..Numbers::default() };
    with(&Header::write(kind, path, link, &numbers), data)
}

/// A header with data behind it.
pub(super) fn with(header: &Header, data: &[u8]) -> Vec<u8> {
    let mut bytes = header.0.to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
    bytes
}

/// An extended header of these records.
pub(super) fn extended(kind: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (key, value) in records {
        pax::write(&mut bytes, key, value);
    }
    member(kind, b"PaxHeaders/0", b"", &bytes)
}

/// Takes in these members and the end, and gives what was reported.
pub(super) fn take(directory: &Path, members: &[Vec<u8>]) -> (Result<Summary, TarError>, String) {
    take_wanted(directory, &Wanted::Everything, members)
}

/// Only what is wanted of them.
pub(super) fn take_wanted(
    directory: &Path,
    wanted: &Wanted,
    members: &[Vec<u8>],
) -> (Result<Summary, TarError>, String) {
    let mut bytes = members.concat();
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    let mut report = Vec::new();
    let outcome = extract(&*bytes, directory, wanted, &mut report);
    (outcome, String::from_utf8(report).unwrap())
}

/// The same of a stream as it is.
pub(super) fn take_bytes(directory: &Path, bytes: &[u8]) -> (Result<Summary, TarError>, String) {
    let mut report = Vec::new();
    let outcome = extract(bytes, directory, &Wanted::Everything, &mut report);
    (outcome, String::from_utf8(report).unwrap())
}

/// The archive of a directory, and what was reported.
pub(super) fn archive(directory: &Path) -> (Vec<u8>, Summary, String) {
    let (mut bytes, mut report) = (Vec::new(), Vec::new());
    let summary = create(&mut bytes, directory, &["."], &mut report).unwrap();
    (bytes, summary, String::from_utf8(report).unwrap())
}
