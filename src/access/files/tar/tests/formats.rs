//! Headers and extended headers.

use std::fs;
use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;

use super::super::header::{Header, Numbers, number, split};
use super::super::map::Map;
use super::super::pax::{self, Extended};
use super::super::{BLOCK, TarError};
use super::{extended, member, take, take_bytes, with};

#[test]
fn numbers_are_octal_or_binary() {
    for (field, expected) in [
        (&b"0000644\0"[..], Some(0o644)),
        (b"   644 \0", Some(0o644)),
        (b"        ", Some(0)),
        (b"\0\0\0", Some(0)),
        (b"77777777777", Some((1 << 33) - 1)),
        (b"\x80\0\0\x02\0\0\0\0", Some(2 << 32)),
        (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Some(-2)),
        (b"\x80\x80\0\0\0\0\0\0\0\0", None),
        (b"0000648\0", None),
        (b"-1\0", None),
        (b"", None),
    ] {
        assert_eq!(number(field), expected, "{field:?}");
    }
}

#[test]
fn a_file_of_more_than_8_gib_keeps_its_size() {
    let numbers = Numbers { size: 9 << 30, ..Numbers::default() };
    assert_eq!(Header::write(b'0', b"f", b"", &numbers).size(), Some(9 << 30));
    // pax overrides a field that is too short, and the data is found by it.
    let directory = tempfile::tempdir().unwrap();
    let mut file = with(&Header::write(b'0', b"f", b"", &Numbers { mode: 0o600, ..Numbers::default() }), b"data");
    file.resize(2 * BLOCK, 0);
    let (outcome, report) =
        take(directory.path(), &[extended(b'x', &[("size", b"4")]), file, member(b'0', b"g", b"", b"")]);
    assert_eq!((outcome.unwrap().files, report.as_str()), (2, ""));
    assert_eq!(fs::read(directory.path().join("f")).unwrap(), b"data");
}

#[test]
fn long_names_and_times_come_from_gnu_and_pax() {
    let directory = tempfile::tempdir().unwrap();
    let long = [b"d/".repeat(60), vec![0xfe; 90]].concat();
    let (outcome, report) = take(
        directory.path(),
        &[
            member(b'L', b"././@LongLink", b"", &[&long[..], b"\0"].concat()),
            member(b'0', b"short", b"", b"gnu"),
            extended(b'g', &[("comment", b"a commit")]),
            extended(b'x', &[("path", b"pax"), ("mtime", b"-1.5"), ("linkpath", &long)]),
            member(b'1', b"short", b"", b""),
            extended(b'x', &[("mtime", b"12.345678901234")]),
            member(b'0', b"timed", b"", b""),
        ],
    );
    assert_eq!((outcome.unwrap().files, report.as_str()), (2, ""));
    assert_eq!(fs::read(directory.path().join("pax")).unwrap(), b"gnu");
    let timed = fs::metadata(directory.path().join("timed")).unwrap();
    assert_eq!((timed.mtime(), timed.mtime_nsec()), (12, 345_678_901));
    assert!(!directory.path().join("short").exists());
}

#[test]
fn holes_are_read_in_each_of_the_four_forms() {
    let directory = tempfile::tempdir().unwrap();
    let data = b"abcde";
    let name = |name: &'static [u8]| ("GNU.sparse.name", name);
    let mut older = Header::write(b'S', b"older", b"", &Numbers { size: 5, mode: 0o644, ..Numbers::default() });
    for (at, value) in [(386, 4), (398, 3), (410, 4096), (422, 2), (483, 8192)] {
        older.0[at..at + 11].copy_from_slice(format!("{value:011o}").as_bytes());
    }
    older.0[257..265].copy_from_slice(b"ustar  \0");
    older.0[148..156].fill(b' ');
    let sum: u32 = older.0.iter().map(|byte| u32::from(*byte)).sum();
    older.0[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut before = b"2\n4\n3\n4096\n2\n".to_vec();
    before.resize(BLOCK, 0);
    let (outcome, report) = take(
        directory.path(),
        &[
            with(&older, data),
            extended(
                b'x',
                &[
                    ("GNU.sparse.size", b"8192"),
                    ("GNU.sparse.offset", b"4"),
                    ("GNU.sparse.numbytes", b"3"),
                    ("GNU.sparse.offset", b"4096"),
                    ("GNU.sparse.numbytes", b"2"),
                ],
            ),
            member(b'0', b"v00", b"", data),
            extended(b'x', &[("GNU.sparse.size", b"8192"), name(b"v01"), ("GNU.sparse.map", b"4,3,4096,2")]),
            member(b'0', b"x", b"", data),
            extended(
                b'x',
                &[
                    ("GNU.sparse.major", b"1"),
                    ("GNU.sparse.minor", b"0"),
                    name(b"v10"),
                    ("GNU.sparse.realsize", b"8192"),
                ],
            ),
            member(b'0', b"x", b"", &[&before[..], data].concat()),
        ],
    );
    assert_eq!((outcome.unwrap().files, report.as_str()), (4, ""));
    let mut expected = vec![0; 8192];
    expected[4..7].copy_from_slice(b"abc");
    expected[4096..4098].copy_from_slice(b"de");
    for name in ["older", "v00", "v01", "v10"] {
        assert_eq!(fs::read(directory.path().join(name)).unwrap(), expected, "{name}");
    }
}

#[test]
fn what_cannot_be_followed_ends_the_archive_with_its_place() {
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = member(b'0', b"f", b"", b"");
    wrong[0] ^= 1;
    let huge = with(&Header::write(b'L', b"l", b"", &Numbers { size: 1 << 40, ..Numbers::default() }), b"");
    let sparse = extended(b'x', &[("GNU.sparse.size", b"10"), ("GNU.sparse.map", b"4,3,5,1")]);
    let short = extended(b'x', &[("GNU.sparse.size", b"5"), ("GNU.sparse.map", b"4,3")]);
    for (members, expected) in [
        (vec![wrong], "checksum"),
        (vec![huge], "1 MiB"),
        (vec![member(b'x', b"x", b"", b"8 path=a\n")], "record"),
        (vec![member(b'x', b"x", b"", b"99999999999999999999 a=b\n")], "record"),
        (vec![extended(b'x', &[("size", b"-1")]), member(b'0', b"f", b"", b"")], "number"),
        (vec![extended(b'g', &[("path", b"everything")])], "global"),
        (vec![sparse], "overlap"),
        (vec![short, member(b'0', b"f", b"", b"abc")], "map"),
    ] {
        let (outcome, _) = take(directory.path(), &[vec![member(b'0', b"before", b"", b"ok")], members].concat());
        let error = outcome.unwrap_err();
        assert!(matches!(error, TarError::Malformed { position, .. } if position >= 1024), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(fs::read(directory.path().join("before")).unwrap(), b"ok");
    }
}

#[test]
fn links_and_directories_have_no_data_whatever_they_say() {
    // A reader that skipped the size would miss the member which others find here.
    let directory = tempfile::tempdir().unwrap();
    for kind in [b'2', b'5'] {
        let liar = Header::write(kind, b"l", b"t", &Numbers { size: 512, mode: 0o755, ..Numbers::default() });
        let (outcome, _) = take(directory.path(), &[liar.0.to_vec(), member(b'0', b"seen", b"", b"")]);
        assert_eq!(outcome.unwrap().files, 1);
        let _ = fs::remove_file(directory.path().join("l"));
    }
}

proptest! {
    #[test]
    fn a_header_says_what_was_written(
        path in prop::collection::vec(1_u8..=255, 1..=100),
        size in 0..=u64::MAX >> 1,
        modified in any::<i64>(),
        mode in 0_u32..0o10000,
    ) {
        let header = Header::write(b'0', &path, b"", &Numbers { mode, size, modified, uid: 7, gid: u32::MAX });
        prop_assert!(header.is_sound());
        prop_assert_eq!((header.path(), header.size(), header.modified(), header.mode()), (path, Some(size), Some(modified), Some(mode)));
    }

    #[test]
    fn a_path_that_fits_in_two_parts_is_read_from_them(parts in prop::collection::vec("[a-z]{1,80}", 1..5)) {
        let path = parts.join("/").into_bytes();
        if let Some((prefix, name)) = split(&path) {
            prop_assert!(prefix.len() <= 155 && name.len() <= 100 && !name.is_empty());
            prop_assert_eq!(Header::write(b'0', &path, b"", &Numbers::default()).path(), path);
        } else {
            prop_assert!(path.len() > 100);
        }
    }

    #[test]
    fn records_say_what_was_written(values in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..4)) {
        let mut records = Vec::new();
        for value in &values {
            pax::write(&mut records, "path", value);
        }
        let mut read = Extended::default();
        prop_assert_eq!(read.read(&records), Ok(()));
        prop_assert_eq!(read.path.as_ref(), values.last());
    }

    #[test]
    fn records_of_any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        let _ = Extended::default().read(&bytes);
        let _ = Map::default().push_pairs(&bytes);
        let _ = number(&bytes);
    }

    #[test]
    fn an_archive_with_any_bytes_in_it_ends(
        changes in prop::collection::vec((0_usize..4096, any::<u8>()), 0..20),
        length in 0_usize..4096,
        sound in any::<bool>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("inside");
        fs::create_dir(&inside).unwrap();
        let mut bytes = [
            extended(b'x', &[("path", b"a/b"), ("GNU.sparse.size", b"10"), ("GNU.sparse.map", b"0,3")]),
            member(b'0', b"f", b"", b"abc"),
            member(b'5', b"d/", b"", b""),
            member(b'2', b"d/l", b"..", b""),
        ]
        .concat();
        for (at, byte) in changes {
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
        }
        if sound {
            for block in bytes.chunks_exact_mut(BLOCK) {
                block[148..156].fill(b' ');
                let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
            }
        }
        bytes.truncate(length);
        let _ = take_bytes(&inside, &bytes);
        prop_assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
