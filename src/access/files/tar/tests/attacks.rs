//! Archives that want to be elsewhere. Each has its control: GNU tar, told to trust the archive, lets the same through.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::BLOCK;
use super::super::header::{Header, Numbers};
use super::{Wanted, is_tidy, member, take, take_bytes, take_wanted, with};

/// What GNU tar makes of the same archive with its guards off.
fn trusting(directory: &Path, members: &[Vec<u8>]) {
    let mut tar = Command::new("tar")
        .args(["-xPf", "-", "--keep-directory-symlink", "-C"])
        .arg(directory)
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("tar, which every image that this is built in has");
    let mut bytes = members.concat();
    bytes.resize(bytes.len() + 2 * BLOCK, 0);
    let _ = tar.stdin.take().unwrap().write_all(&bytes);
    tar.wait().unwrap();
}

/// Two directories, `in` and `out`, and a file `out/target`.
fn place() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("in")).unwrap();
    fs::create_dir(directory.path().join("out")).unwrap();
    fs::write(directory.path().join("out/target"), "safe").unwrap();
    directory
}

/// What the archive did outside: whether `out/new` is there, and what `out/target` holds.
fn outside(directory: &Path) -> (bool, String) {
    (directory.join("out/new").exists(), fs::read_to_string(directory.join("out/target")).unwrap())
}

#[test]
fn no_path_leads_out() {
    let directory = place();
    let absolute = directory.path().join("out/new").into_os_string().into_encoded_bytes();
    for (path, reason) in [(&b"../out/new"[..], "`..`"), (b"a/../../out/new", "`..`"), (&absolute, "absolute")] {
        let archive = [member(b'5', b"a", b"", b""), member(b'0', path, b"", b"evil"), member(b'0', b"ok", b"", b"")];
        let (outcome, report) = take(&directory.path().join("in"), &archive);
        let summary = outcome.unwrap();
        assert_eq!((summary.files, summary.failed), (1, 1));
        assert!(report.contains(reason), "{report}");
        assert!(!outside(directory.path()).0);

        let control = place();
        let control_in = control.path().join("in");
        trusting(&control_in, &archive);
        let there = if path == absolute { directory.path() } else { control.path() };
        assert!(outside(there).0, "control");
        fs::remove_file(there.join("out/new")).unwrap();
    }
}

#[test]
fn no_link_of_the_archive_is_passed_through() {
    for archive in [
        [member(b'2', b"l", b"../out", b""), member(b'0', b"l/new", b"", b"evil")],
        [member(b'2', b"l", b"../out", b""), member(b'1', b"l/new", b"l/target", b"")],
        [member(b'2', b"l", b"../out", b""), member(b'2', b"l/new", b"target", b"")],
    ] {
        let directory = place();
        let (outcome, report) = take(&directory.path().join("in"), &archive);
        assert_eq!(outcome.unwrap().failed, 1);
        assert!(report.contains("symbolic link"), "{report}");
        assert!(!outside(directory.path()).0);

        let control = place();
        trusting(&control.path().join("in"), &archive);
        assert!(outside(control.path()).0, "control");
    }
}

#[test]
fn no_directory_of_the_archive_takes_a_link_for_itself() {
    let directory = place();
    symlink("../out", directory.path().join("in/d")).unwrap();
    let archive = [member(b'5', b"d/", b"", b""), member(b'0', b"d/new", b"", b"evil")];
    let (outcome, _) = take(&directory.path().join("in"), &archive);
    assert_eq!(outcome.unwrap().failed, 2);
    assert!(!outside(directory.path()).0);
    trusting(&directory.path().join("in"), &archive);
    assert!(outside(directory.path()).0, "control");
}

#[test]
fn nothing_is_written_through_a_link_under_the_final_name() {
    // A symbolic link and a hard link to a file outside: both are replaced, and the file stays as it is.
    for hard in [false, true] {
        let directory = place();
        let (target, link) = (directory.path().join("out/target"), directory.path().join("in/f"));
        if hard {
            fs::hard_link(&target, &link).unwrap()
        } else {
            symlink(&target, &link).unwrap()
        }
        let (outcome, _) = take(&directory.path().join("in"), &[member(b'0', b"f", b"", b"evil")]);
        assert_eq!(outcome.unwrap().failed, 0);
        assert_eq!(
            (fs::read_to_string(&link).unwrap().as_str(), outside(directory.path()).1.as_str()),
            ("evil", "safe")
        );
        assert!(!link.is_symlink());
        // Control: what opens the name as it is writes into the target.
        fs::remove_file(&link).unwrap();
        symlink(&target, &link).unwrap();
        fs::write(&link, "evil").unwrap();
        assert_eq!(outside(directory.path()).1, "evil", "control");
    }
}

#[test]
fn no_hard_link_reaches_out() {
    let directory = place();
    let absolute = directory.path().join("out/target").into_os_string().into_encoded_bytes();
    for target in [&b"../out/target"[..], &absolute] {
        let archive = [member(b'1', b"h", target, b""), member(b'0', b"ok", b"", b"")];
        let (outcome, report) = take(&directory.path().join("in"), &archive);
        assert_eq!(outcome.unwrap().failed, 1);
        assert!(report.contains("target of the link"), "{report}");
        assert!(!directory.path().join("in/h").exists());
        trusting(&directory.path().join("in"), &archive);
        assert!(directory.path().join("in/h").exists(), "control");
        fs::remove_file(directory.path().join("in/h")).unwrap();
    }
}

#[test]
fn a_link_that_comes_and_goes_meanwhile_leads_nowhere() {
    // Somebody in the sandbox exchanges a directory for a link to the outside again and again.
    let directory = place();
    let inside = directory.path().join("in");
    fs::create_dir_all(inside.join("d")).unwrap();
    symlink("../out", inside.join("l")).unwrap();
    let done = AtomicBool::new(false);
    let archive: Vec<Vec<u8>> = (0..400)
        .flat_map(|number| {
            [member(b'0', format!("d/new{number}").as_bytes(), b"", b"evil"), member(b'0', b"x/y", b"", b"")]
        })
        .collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for (from, to) in [("d", "kept"), ("l", "d"), ("d", "l"), ("kept", "d")] {
                    let _ = fs::rename(inside.join(from), inside.join(to));
                }
            }
        });
        take(&inside, &archive).0.unwrap();
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(fs::read_dir(directory.path().join("out")).unwrap().count(), 1);
    // Control: a path that is opened as a whole arrives outside.
    fs::write(inside.join("l/new"), "evil").unwrap();
    assert!(outside(directory.path()).0, "control");
}

#[test]
fn devices_pipes_and_set_id_bits_do_not_come() {
    let directory = place();
    let inside = directory.path().join("in");
    let root = Header::write(b'0', b"suid", b"", &Numbers { mode: 0o6755, ..Numbers::default() });
    let archive = [
        member(b'3', b"null", b"", b""),
        member(b'4', b"disk", b"", b""),
        member(b'6', b"pipe", b"", b""),
        member(b'Z', b"what", b"", b"data"),
        with(&root, b""),
    ];
    let (outcome, report) = take(&inside, &archive);
    let summary = outcome.unwrap();
    assert_eq!((summary.files, summary.failed), (1, 4));
    for what in ["null: refused: it is a character device", "a block device", "pipe: refused", "of no known type"] {
        assert!(report.contains(what), "{report}");
    }
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(fs::metadata(inside.join("suid")).unwrap().permissions().mode() & 0o7777, 0o755);
    let control = place();
    trusting(&control.path().join("in"), &archive[2..3]);
    assert!(control.path().join("in/pipe").exists(), "control");
}

#[test]
fn of_one_name_that_is_wanted_nothing_else_comes() {
    let wanted = Wanted::Named(b"r".to_vec());
    let archive = [
        member(b'5', b"./r/", b"", b""),
        member(b'0', b"r//f", b"", b"good"),
        member(b'0', b"x", b"", b"evil"),
        member(b'0', b"rr", b"", b"evil"),
        member(b'5', b".", b"", b""),
        member(b'1', b"r/taken", b"mine", b""),
        member(b'1', b"mine", b"r/f", b""),
        member(b'2', b"r/link", b"../mine", b""),
    ];
    let directory = place();
    let inside = directory.path().join("in");
    fs::write(inside.join("mine"), "mine").unwrap();
    let (outcome, report) = take_wanted(&inside, &wanted, &archive);
    let summary = outcome.unwrap();
    assert_eq!((summary.files, summary.directories, summary.links, summary.failed), (1, 1, 1, 5), "{report}");
    assert_eq!(fs::read_to_string(inside.join("mine")).unwrap(), "mine");
    assert!(!inside.join("x").exists() && !inside.join("rr").exists() && !inside.join("r/taken").exists());
    for line in ["x: refused: it was not asked for", "r/taken: refused: it is a link to what was not asked for"] {
        assert!(report.contains(line), "{report}");
    }
    // The control: wanted without a name it all comes.
    assert_eq!(take(&inside, &archive).0.unwrap().failed, 0);
    assert_eq!(fs::read_to_string(inside.join("mine")).unwrap(), "good");
}

#[test]
fn an_archive_that_breaks_off_leaves_whole_files_only() {
    let directory = place();
    let inside = directory.path().join("in");
    fs::write(inside.join("second"), "old").unwrap();
    let bytes = [member(b'0', b"first", b"", b"whole"), member(b'0', b"second", b"", &[b'x'; 5000])].concat();
    for length in [0, 100, 512, 1024, 1536, 4000, bytes.len()] {
        let (outcome, _) = take_bytes(&inside, &bytes[..length]);
        assert!(outcome.unwrap_err().to_string().contains("cut short"), "{length}");
        assert_eq!(inside.join("first").exists(), length >= 1024);
        let whole = length == bytes.len();
        assert_eq!(fs::read(inside.join("second")).unwrap().len(), if whole { 5000 } else { 3 });
        assert!(is_tidy(&inside));
    }
    // Control: with the mark of the end the same is a success.
    take(&inside, &[bytes]).0.unwrap();
}

#[test]
fn a_report_is_bounded_and_does_not_steer_the_terminal() {
    let directory = place();
    let archive: Vec<Vec<u8>> = (0..1500).map(|_| member(b'6', b"\x1b[2J\xff", b"", b"")).collect();
    let (outcome, report) = take(&directory.path().join("in"), &archive);
    assert_eq!(outcome.unwrap().failed, 1500);
    assert_eq!(report.lines().count(), 1001);
    assert!(!report.contains('\x1b') && report.starts_with(r"\u{1b}[2J\xff: refused"));
}
