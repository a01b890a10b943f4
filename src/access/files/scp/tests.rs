//! Command lines and conversations.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use proptest::prelude::*;

use super::glob::{expand, matches};
use super::{Role, ScpError, parse, serve};
use crate::access::files::NoNames;
use crate::access::files::staged::is_tidy;
use crate::access::quoting::Word;

/// A word in which nothing is quoted.
fn word(text: &[u8]) -> Word {
    text.iter().map(|byte| (*byte, false)).collect()
}

/// Runs a command line against what the other side says, and gives what it was told.
fn run(line: &[u8], said: &[u8]) -> (Result<bool, ScpError>, Vec<u8>) {
    let mut output = Vec::new();
    (serve(&parse(line).unwrap(), said, &mut output, &NoNames, &mut |_| ()), output)
}

/// `scp OPTIONS -- 'PATH'`.
fn line(options: &str, path: &Path) -> Vec<u8> {
    [format!("scp {options} -- '").as_bytes(), path.as_os_str().as_bytes(), b"'"].concat()
}

#[test]
fn the_lines_that_clients_send_are_recognised() {
    for (text, expected) in [
        ("scp -t .", Some((Role::Sink, &["."][..]))),
        ("scp -v -r -p -d -t -- -odd", Some((Role::Sink, &["-odd"]))),
        ("scp -rpt 'a b'", Some((Role::Sink, &["a b"]))),
        ("scp -f a\\ b \"c d\"'e' ", Some((Role::Source, &["a b", "c de"]))),
        ("scp -f \"a\\$b\\x\"", Some((Role::Source, &["a$b\\x"]))),
        ("scp -f ''", Some((Role::Source, &[""]))),
        ("scp -f no/such*'*'", Some((Role::Source, &["no/such**"]))),
    ] {
        let command = parse(text.as_bytes());
        let found = command.map(|command| (command.role, command.paths(&NoNames)));
        assert_eq!(found, expected.map(|(role, paths)| (role, paths.iter().map(Into::into).collect())), "{text}");
    }
}

#[test]
fn what_a_shell_has_to_see_is_left_to_one() {
    for text in [
        "",
        "scp",
        "scp -t",
        "scp -f",
        "scp a b",
        "scp -t a b",
        "scp -t -f a",
        "scp -x -t a",
        "scpx -t a",
        "/bin/scp -t a",
        "scp -t $HOME",
        "scp -t \"$HOME\"",
        "scp -f `id`",
        "scp -t a; id",
        "scp -t a & id",
        "scp -t a | id",
        "scp -t a > b",
        "scp -t 'a",
        "scp -t \"a",
        "scp -t a\\",
        "scp -f {a,b}",
        "scp -t a\nid",
        "scp -t (a)",
        "scp -t a #b",
        "A=b scp -t a",
        "scp -t a\0b",
    ] {
        assert_eq!(parse(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn patterns_match_as_in_a_shell() {
    for (pattern, name, expected) in [
        ("*", "", true),
        ("a*c", "abbc", true),
        ("a*c", "abb", false),
        ("*a*b*", "xxaxxbxx", true),
        ("?", "ü", true),
        ("??", "ü", false),
        ("[a-c]x", "bx", true),
        ("[!a-c]x", "bx", false),
        ("[]]", "]", true),
        ("[a", "[a", true),
        ("[a-]", "-", true),
        ("a", "a", true),
        ("a", "ab", false),
    ] {
        assert_eq!(matches(&word(pattern.as_bytes()), name.as_bytes()), expected, "{pattern} {name}");
    }
    assert!(!matches(&[(b'*', true)], b"a") && matches(&[(b'*', true)], b"*"));
    // Many stars are no more work than their product with the name.
    assert!(!matches(&word(&b"*a".repeat(1000)), &[b'a'; 900]));

    let directory = tempfile::tempdir().unwrap();
    for name in ["b/x1", "a/x1", "a/x2", ".h/x1", "a/.x1"] {
        fs::create_dir_all(directory.path().join(name).parent().unwrap()).unwrap();
        fs::write(directory.path().join(name), "").unwrap();
    }
    let pattern = word(directory.path().join("*/x[12]").as_os_str().as_bytes());
    let found: Vec<_> = ["a/x1", "a/x2", "b/x1"].iter().map(|name| directory.path().join(name)).collect();
    assert_eq!(expand(&pattern), found);
}

#[test]
fn a_file_comes_with_its_mode_and_times_when_it_is_whole() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for said in [
        &b"T2000 0 1000 0\nC0751 5 name\nhel"[..],
        b"T2000 0 1000 0\nC0751 5 name\nhello",
        b"C0644 5 name\nhello\x01no\n",
    ] {
        fs::write(&path, "old").unwrap();
        let (outcome, _) = run(&line("-p -t", &path), said);
        assert!(!outcome.unwrap_or(false));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert!(is_tidy(directory.path()));
    }
    let (outcome, told) = run(&line("-p -t", &path), b"T2000 0 1000 0\nC0751 5 name\nhello\0");
    assert!(outcome.unwrap());
    assert_eq!(told, [0; 4]);
    let found = fs::metadata(&path).unwrap();
    assert_eq!((found.mode() & 0o7777, found.atime(), found.mtime()), (0o751, 1000, 2000));
    assert_eq!(fs::read(&path).unwrap(), b"hello");
}

#[test]
fn a_tree_comes_and_what_fails_is_told() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("taken"), "").unwrap();
    let said = b"D0700 0 d\nC0644 1 f\nx\0D0755 0 e\nE\nE\nD0755 0 taken\nC0644 0 g\n\0";
    let (outcome, told) = run(&line("-r -t", directory.path()), said);
    assert!(!outcome.unwrap());
    assert_eq!(fs::read(directory.path().join("d/f")).unwrap(), b"x");
    assert!(directory.path().join("d/e").is_dir() && directory.path().join("g").exists());
    assert!(String::from_utf8_lossy(&told).contains("taken: File exists"), "{told:?}");
    let file = directory.path().join("d/f");
    assert!(!run(&line("-d -t", &file), b"").0.unwrap());
}

#[test]
fn no_name_leads_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let inside = directory.path().join("in");
    fs::create_dir(&inside).unwrap();
    for name in ["../new", "..", ".", "", "a/b"] {
        let said = [b"C0644 1 ", name.as_bytes(), b"\nx\0"].concat();
        assert!(matches!(run(&line("-t", &inside), &said).0, Err(ScpError::Protocol(_))), "{name}");
    }
    for said in [
        "D0755 0 d\n",
        "E\n",
        "X\n",
        "C0644 f\n",
        "C0644 -1 f\n",
        "C9999 1 f\n",
        "T1\n",
        "C0644 99999999999999999999 f\n",
        "\n",
    ] {
        assert!(run(&line("-t", &inside), said.as_bytes()).0.is_err(), "{said}");
    }
    assert!(run(&line("-r -t", &inside), b"D0755 0 d\n").0.is_err());
    assert!(run(&line("-t", &inside), &[b'C'; 10_000]).0.is_err());
    assert!(matches!(run(&line("-t", &inside), b"\x02enough\n").0, Err(ScpError::GivenUp(why)) if why == "enough"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    // Control: a name that leads nowhere.
    assert!(run(&line("-t", &inside), b"C0644 1 new\nx\0").0.unwrap() && inside.join("new").exists());
}

#[test]
fn files_go_through_links_and_patterns_and_what_is_none_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::create_dir(at("d")).unwrap();
    fs::set_permissions(at("d"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(at("d/f"), "hello").unwrap();
    fs::set_permissions(at("d/f"), PermissionsExt::from_mode(0o640)).unwrap();
    symlink("d/f", at("link")).unwrap();
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let sent = |line: &[u8]| {
        let (outcome, told) = run(line, &[0; 20]);
        (outcome.unwrap(), String::from_utf8(told).unwrap())
    };
    assert_eq!(sent(&line("-f", &at("link"))), (true, "C0640 5 link\nhello\0".to_owned()));
    assert_eq!(sent(&line("-r -f", &at("d"))), (true, "D0755 0 d\nC0640 5 f\nhello\0E\n".to_owned()));
    assert_eq!(sent(&line("-r -f", &at("d/."))), (true, "D0755 0 d\nC0640 5 f\nhello\0E\n".to_owned()));
    let pattern = [b"scp -f ", directory.path().as_os_str().as_bytes(), b"/l*"].concat();
    assert_eq!(sent(&pattern), (true, "C0640 5 link\nhello\0".to_owned()));
    for (name, reason) in [("none", "No such file"), ("pipe", "no regular file"), ("d", "use -r")] {
        let (whole, told) = sent(&line("-f", &at(name)));
        assert!(!whole && told.contains(reason), "{told}");
    }
    // The other side does not want one, or breaks off.
    assert!(!run(&line("-f", &at("link")), b"\0\x01no\n").0.unwrap());
    assert!(run(&line("-f", &at("link")), b"\0").0.is_err());
}

proptest! {
    #[test]
    fn any_line_is_recognised_or_not(line in prop::collection::vec(any::<u8>(), 0..60)) {
        let _ = parse(&line);
        let _ = parse(&[b"scp -t ", &line[..]].concat());
    }

    #[test]
    fn a_quoted_path_is_itself(path in prop::collection::vec((1_u8..=255).prop_filter("quote", |byte| *byte != b'\''), 0..40)) {
        let paths = parse(&[b"scp -t -- '", &path[..], b"'"].concat()).unwrap().paths(&NoNames);
        prop_assert_eq!(paths[0].as_os_str().as_bytes(), &path);
    }

    #[test]
    fn any_words_of_the_other_side_end(said in prop::collection::vec(prop::sample::select(vec![
        &b"C0644 3 f\n"[..], b"abc", b"\0", b"D0755 0 d\n", b"E\n", b"T1 0 1 0\n", b"\x01why\n", b"\n", b"C", b" ", b"\xff",
    ]), 0..30)) {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("in");
        fs::create_dir(&inside).unwrap();
        let _ = run(&line("-r -t", &inside), &said.concat());
        let _ = run(&line("-r -f", &inside), &said.concat());
        prop_assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        prop_assert!(is_tidy(&inside));
    }
}
