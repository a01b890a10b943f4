//! What of the machine is in sight: what is granted, and nothing else. Each test has a machine of its own, as far as
//! mounts make one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use nix::mount::{MsFlags, mount};
use nix::pty::{PtyMaster, grantpt, openpty, posix_openpt, ptsname_r, unlockpt};
use nix::sys::termios::tcgetattr;
use nix::unistd::setsid;

use super::*;

/// `/home`, `/tmp`, `/var/tmp` and `/dev/shm` are empty, and everybody may write there.
fn machine() {
    unshare(CloneFlags::CLONE_NEWNS).unwrap();
    mounts::make_private().unwrap();
    for place in ["/home", "/tmp", "/var/tmp", "/dev/shm"] {
        mount(Some("tmpfs"), place, Some("tmpfs"), MsFlags::empty(), Some("mode=1777")).unwrap();
    }
}

fn open_to_all(path: &str) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

fn directory(path: &str) {
    fs::create_dir_all(path).unwrap();
    open_to_all(path);
}

fn bind_socket(path: &str) -> UnixListener {
    directory(Path::new(path).parent().unwrap().to_str().unwrap());
    // As a service does that starts anew.
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path).unwrap();
    open_to_all(path);
    listener
}

fn names(path: &str) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Prepares a machine, and there runs `look` in a child that was isolated, as root or as an ordinary user with a user
/// namespace, after a program of the machine's has bound `late`.
fn on_machine(user: bool, isolation: &Isolation, prepare: impl Fn(), late: &[&str], look: impl Fn(&Handover)) {
    let late: Vec<String> = late.iter().map(|path| path.to_string()).collect();
    let isolation = if user { as_user(isolation.clone()) } else { isolation.clone() };
    let answer = child::run(|| {
        machine();
        prepare();
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let paths = late.clone();
        let program = std::thread::spawn(move || {
            let _ = there.read(&mut [0]).unwrap();
            let _listeners: Vec<_> = paths.iter().map(|path| bind_socket(path)).collect();
            there.write_all(b"x").unwrap();
            let _ = there.read(&mut [0]);
        });
        let inner = child::run(|| {
            if user {
                become_user();
            }
            let handover = isolate(&isolation).unwrap_or_else(|error| panic!("{error}"));
            here.write_all(b"x").unwrap();
            assert_eq!(here.read(&mut [0]).unwrap(), 1);
            look(&handover);
            Vec::new()
        });
        inner.unwrap_or_else(|error| panic!("user={user}: {error}"));
        // Control: without isolation, the same user connects.
        let control = child::run(|| {
            if user {
                become_user();
            }
            late.iter().for_each(|path| drop(UnixStream::connect(path).unwrap()));
            Vec::new()
        });
        control.unwrap_or_else(|error| panic!("control, user={user}: {error}"));
        drop(here);
        program.join().unwrap();
        Vec::new()
    });
    answer.unwrap_or_else(|error| panic!("{error}"));
}

const LATE: [&str; 4] =
    ["/home/user/late.sock", "/home/user/deep/.cache/late", "/home/user/again.sock", "/tmp/tmux-4321/default"];

fn home() {
    for path in ["/home/user", "/home/user/work", "/home/user/work/mounted", "/home/user/other"] {
        directory(path);
    }
    mount(Some("tmpfs"), "/home/user/work/mounted", Some("tmpfs"), MsFlags::empty(), Some("mode=1777")).unwrap();
    for path in ["/home/user/work/file", "/home/user/work/mounted/file", "/home/user/other/file", "/tmp/file"] {
        fs::write(path, "content").unwrap();
        open_to_all(path);
    }
    fs::write("/home/user/single", "content").unwrap();
    // Bound at the start, and by the same program once more later.
    drop(bind_socket("/home/user/again.sock"));
}

#[test]
fn sockets_that_are_bound_later_are_out_of_reach() {
    let kept = ["/home/user/work/mounted", "/home/user/work", "/home/user/single", "/home/user/granted/socket"];
    let isolation = Isolation { private_tmp: true, keep: keep(&kept.map(Path::new)), ..isolation() };
    for user in [false, true] {
        let prepare = || {
            home();
            // The test's process holds it until the end.
            std::mem::forget(bind_socket("/home/user/granted/socket"));
        };
        on_machine(user, &isolation, prepare, &LATE, |_handover| {
            UnixStream::connect("/home/user/granted/socket").unwrap();
            assert_eq!(fs::read_to_string("/home/user/single").unwrap(), "content");
            for path in LATE {
                let error = UnixStream::connect(path).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::NotFound, "{path}: {error}");
            }
            assert_eq!(names("/home"), ["user"]);
            assert_eq!(names("/home/user"), ["granted", "single", "work"]);
            assert!(fs::metadata("/home/user/other/file").is_err());
            assert!(fs::write("/home/user/new", "").is_err());
            // What is granted is as it was, with what is mounted in it.
            for path in ["/home/user/work/file", "/home/user/work/mounted/file"] {
                assert_eq!(fs::read_to_string(path).unwrap(), "content");
                fs::write(path, "content").unwrap();
            }
            // Sockets of the workload's own work.
            for path in ["/tmp/own", "/home/user/work/own"] {
                let _listener = UnixListener::bind(path).unwrap();
                UnixStream::connect(path).unwrap();
            }
        });
    }
}

#[test]
fn what_is_granted_whole_and_a_shared_tmp_stay_as_they_are() {
    // The control of the test above: of its mechanism, nothing is in force here.
    let isolation = Isolation { keep: keep(&[Path::new("/home/user")]), ..isolation() };
    for user in [false, true] {
        on_machine(user, &isolation, home, &LATE, |_handover| {
            for path in LATE.into_iter().filter(|path| *path != "/home/user/again.sock") {
                UnixStream::connect(path).unwrap();
            }
            assert_eq!(fs::read_to_string("/tmp/file").unwrap(), "content");
            assert_eq!(fs::read_to_string("/home/user/other/file").unwrap(), "content");
        });
    }
}

#[test]
fn nothing_in_the_root_directory_shows_unless_granted() {
    let granted = ["app", "bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr"];
    for user in [false, true] {
        on_machine(user, &isolation(), home, &[], |handover| {
            for name in names("/").into_iter().filter(|name| !granted.contains(&name.as_str())) {
                let path = format!("/{name}");
                if fs::symlink_metadata(&path).unwrap().is_dir() {
                    let seen = names(&path);
                    let expected: &[&str] = if name == "var" { &["log"] } else { &[] };
                    assert_eq!(seen, expected, "{path}");
                }
            }
            assert_eq!(handover.notes, Vec::<String>::new());
            assert!(File::open("/usr/bin/env").is_ok() && File::open("/etc/passwd").is_ok());
        });
    }
}

#[test]
fn a_root_directory_that_is_granted_is_reported() {
    let isolation = Isolation { keep: vec!["/".into()], ..isolation() };
    on_machine(false, &isolation, home, &[], |handover| {
        assert_eq!(fs::read_to_string("/home/user/other/file").unwrap(), "content");
        assert_eq!(names("/run"), Vec::<String>::new());
        assert!(handover.notes[0].contains("grants / whole"), "{:?}", handover.notes);
    });
}

#[test]
fn scratch_space_is_private_with_the_kept_paths_in_sight() {
    let prepare = || {
        home();
        for path in ["/tmp/a", "/tmp/a/work", "/var/tmp/work", "/tmp/other", "/var/tmp/other"] {
            directory(path);
            fs::write(format!("{path}/file"), "content").unwrap();
        }
        fs::write("/dev/shm/file", "content").unwrap();
        symlink("/home/user/work", "/tmp/link").unwrap();
    };
    let more = ["/tmp/a/work", "/var/tmp/work", "/tmp/link"].map(Path::new);
    let some = Isolation { private_tmp: true, keep: keep(&more), ..isolation() };
    let all = Isolation { keep: [some.keep.clone(), vec!["/var/tmp".into()]].concat(), ..some.clone() };
    for (user, isolation, whole) in
        [(false, &some, false), (true, &some, false), (false, &all, true), (true, &all, true)]
    {
        on_machine(user, isolation, prepare, &[], |_handover| {
            assert_eq!(names("/tmp"), ["a", "link"]);
            assert_eq!(names("/tmp/a"), ["work"]);
            assert_eq!(names("/var"), ["log", "tmp"]);
            assert_eq!(names("/var/tmp"), ["work"]);
            assert_eq!(names("/dev/shm"), Vec::<String>::new());
            for path in ["/tmp/a/work/file", "/var/tmp/work/file", "/tmp/link/file"] {
                assert_eq!(fs::read_to_string(path).unwrap(), "content", "{path}");
            }
            fs::write("/tmp/a/work/new", "").unwrap();
            for path in ["/tmp", "/dev/shm"] {
                assert_eq!(fs::metadata(path).unwrap().mode() & 0o7777, 0o1777);
                fs::write(format!("{path}/new"), "").unwrap();
            }
            assert_eq!(fs::write("/var/tmp/new", "").is_ok(), whole);
        });
    }
}

#[test]
fn links_on_the_way_are_as_they_were() {
    let prepare = || {
        home();
        directory("/home/user/real/deep");
        fs::write("/home/user/real/deep/file", "content").unwrap();
        symlink("user/real", "/home/link").unwrap();
    };
    let kept = ["/home/link/deep", "/home/link", "/home/gone"].map(Path::new);
    let isolation = Isolation { keep: keep(&kept[..]), ..isolation() };
    for user in [false, true] {
        on_machine(user, &isolation, prepare, &[], |_handover| {
            assert_eq!(fs::read_link("/home/link").unwrap(), Path::new("user/real"));
            assert_eq!(fs::read_to_string("/home/link/deep/file").unwrap(), "content");
            assert_eq!(names("/home/user"), ["real"]);
        });
    }
}

fn open_both(path: &str) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

#[test]
fn terminals_of_the_machine_are_out_of_sight_and_the_own_one_works() {
    for user in [false, true] {
        let answer = child::run(|| {
            let pty = openpty(None, None).unwrap();
            let name = fs::read_link(format!("/proc/self/fd/{}", pty.slave.as_raw_fd())).unwrap();
            let name = name.to_str().unwrap();
            open_to_all(name);
            if user {
                become_user();
            }
            setsid().unwrap();
            // Control: the machine's terminal can be opened; and the first one becomes the session's.
            let own = open_both(name).unwrap();
            tcgetattr(open_both("/dev/tty").unwrap()).unwrap();
            let isolation = if user { as_user(isolation()) } else { isolation() };
            isolate(&isolation).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(names("/dev/pts"), ["ptmx"]);
            assert_eq!(open_both(name).unwrap_err().kind(), ErrorKind::NotFound);
            // By descriptor and as the controlling terminal it goes on.
            assert!(io::IsTerminal::is_terminal(&own));
            tcgetattr(&own).unwrap();
            tcgetattr(open_both("/dev/tty").unwrap()).unwrap();
            // New ones can be had.
            let master: PtyMaster = posix_openpt(nix::fcntl::OFlag::O_RDWR | nix::fcntl::OFlag::O_NOCTTY).unwrap();
            grantpt(&master).unwrap();
            unlockpt(&master).unwrap();
            assert_eq!(ptsname_r(&master).unwrap(), "/dev/pts/0");
            let mut slave = open_both("/dev/pts/0").unwrap();
            slave.write_all(b"x").unwrap();
            assert_eq!((&master).read(&mut [0]).unwrap(), 1);
            // Closing the session's terminal would end this process (SIGHUP) before it has answered.
            std::mem::forget(pty);
            Vec::new()
        });
        answer.unwrap_or_else(|error| panic!("user={user}: {error}"));
    }
}

#[test]
fn without_a_devpts_terminals_are_hidden() {
    let answer = child::run(|| {
        let pty = openpty(None, None).unwrap();
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let notes = mounts::hide_with(&isolation(), &Default::default(), |_| Err(Errno::EPERM)).unwrap();
        assert!(notes.len() == 1 && notes[0].contains("/dev/pts is hidden"), "{notes:?}");
        assert_eq!(names("/dev/pts"), Vec::<String>::new());
        assert!(io::IsTerminal::is_terminal(&pty.slave));
        Vec::new()
    });
    answer.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn what_is_provided_is_seen_in_its_places_and_read_only() {
    let file = |name: &str, in_place_of: &[&str]| ProvidedFile {
        name: name.to_owned(),
        content: format!("the text of {name}").into(),
        in_place_of: in_place_of.iter().map(PathBuf::from).collect(),
    };
    let provided = Provided {
        directory: "/home/none/here".into(),
        files: vec![file("one", &[]), file("two", &["/home/user/single", "/home/user/link", "/home/none", "/nowhere"])],
    };
    let prepare = || {
        home();
        symlink("work/file", "/home/user/link").unwrap();
    };
    let kept = keep(&["/home/user/single", "/home/user/link", "/home/user/work"].map(Path::new));
    let with = Isolation { private_tmp: true, keep: kept, provided: Some(provided), ..isolation() };
    let without = Isolation { provided: None, ..with.clone() };
    for user in [false, true] {
        on_machine(user, &with, prepare, &[], |_handover| {
            assert_eq!(names("/home/none/here"), ["one", "two"]);
            let two = "the text of two";
            for path in ["/home/none/here/two", "/home/user/single", "/home/user/link", "/home/user/work/file"] {
                assert_eq!(fs::read_to_string(path).unwrap(), two, "{path}");
                let error = fs::OpenOptions::new().write(true).open(path).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{path}");
            }
            let error = fs::remove_file("/home/none/here/one").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem);
        });
        // The control: the same files are the machine's own.
        on_machine(user, &without, prepare, &[], |_handover| {
            assert!(fs::metadata("/home/none").is_err());
            for path in ["/home/user/single", "/home/user/link"] {
                assert_eq!(fs::read_to_string(path).unwrap(), "content", "{path}");
            }
        });
    }
}
