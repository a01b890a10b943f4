//! What is granted works, what is not is refused, and without the ruleset both work.

use std::fs::{self, File};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::sys::child;

struct Tree {
    root: tempfile::TempDir,
}

impl Tree {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for name in ["ro", "rw", "none"] {
            fs::create_dir(root.path().join(name)).unwrap();
            fs::write(root.path().join(name).join("file"), "x").unwrap();
        }
        Self { root }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn grants(&self) -> Grants {
        Grants { read_only: vec![self.at("ro")], read_write: vec![self.at("rw")], hard: true, ..Grants::default() }
    }
}

/// What `act` answers in a child, confined by `grants` or not at all.
fn confined(grants: Option<&Grants>, act: impl Fn() -> std::io::Result<()>) -> Result<(), i32> {
    let answer = child::run(|| {
        if let Some(grants) = grants {
            let enforced = prepare(grants).unwrap().restrict().unwrap();
            assert_eq!(enforced.status, Status::Fully);
        }
        let code = act().map_or_else(|error| error.raw_os_error().unwrap_or(-1), |()| 0);
        code.to_ne_bytes().to_vec()
    })
    .unwrap();
    match i32::from_ne_bytes(answer.try_into().unwrap()) {
        0 => Ok(()),
        code => Err(code),
    }
}

type Act<'a> = &'a dyn Fn() -> std::io::Result<()>;

#[test]
fn paths_are_readable_writable_or_neither() {
    let tree = Tree::new();
    let (ro, rw, none) = (tree.at("ro/file"), tree.at("rw/file"), tree.at("none/file"));
    let write = |path: &Path| fs::OpenOptions::new().append(true).open(path).map(drop);
    let truncate = |path: &Path| nix::unistd::truncate(path, 0).map_err(Into::into);
    let allowed: &[(&str, Act<'_>)] = &[
        ("read ro", &|| fs::read(&ro).map(drop)),
        ("list ro", &|| fs::read_dir(tree.at("ro")).map(drop)),
        ("write rw", &|| write(&rw)),
        ("create rw", &|| File::create(tree.at("rw/new")).map(drop)),
        ("truncate rw", &|| truncate(&rw)),
        ("rename within rw", &|| fs::rename(&rw, tree.at("rw/other"))),
    ];
    for (name, act) in allowed {
        assert_eq!(confined(Some(&tree.grants()), act), Ok(()), "{name}");
        let _ = fs::rename(tree.at("rw/other"), &rw);
    }
    let refused: &[(&str, Act<'_>)] = &[
        ("write ro", &|| write(&ro)),
        ("truncate ro", &|| truncate(&ro)),
        ("create ro", &|| File::create(tree.at("ro/new")).map(drop)),
        ("read elsewhere", &|| fs::read(&none).map(drop)),
        ("list elsewhere", &|| fs::read_dir(tree.at("none")).map(drop)),
        ("write elsewhere", &|| write(&none)),
        ("read /etc/passwd", &|| fs::read("/etc/passwd").map(drop)),
        ("through a link", &|| fs::read(tree.at("rw/link")).map(drop)),
        ("through /proc", &|| fs::read(format!("/proc/self/root{}", none.display())).map(drop)),
        ("remove elsewhere", &|| fs::remove_file(&none)),
    ];
    std::os::unix::fs::symlink(&none, tree.at("rw/link")).unwrap();
    for (name, act) in refused {
        assert_eq!(confined(Some(&tree.grants()), act), Err(libc::EACCES), "{name}");
    }
    for (name, act) in refused {
        assert_eq!(confined(None, act), Ok(()), "control: {name}");
    }
}

#[test]
fn no_grants_at_all_deny_all() {
    let read = || fs::read("/etc/passwd").map(drop);
    assert_eq!(confined(Some(&Grants { hard: true, ..Grants::default() }), read), Err(libc::EACCES));
    assert_eq!(confined(None, read), Ok(()), "control");
}

#[test]
fn a_granted_file_grants_itself_alone() {
    let tree = Tree::new();
    let grants = Grants {
        read_only: vec![tree.at("none/file")],
        read_write: vec!["/dev/null".into()],
        hard: true,
        ..Grants::default()
    };
    assert_eq!(confined(Some(&grants), || fs::read(tree.at("none/file")).map(drop)), Ok(()));
    assert_eq!(confined(Some(&grants), || fs::write("/dev/null", "x")), Ok(()));
    assert_eq!(confined(Some(&grants), || fs::read(tree.at("ro/file")).map(drop)), Err(libc::EACCES));
}

#[test]
fn missing_paths_are_left_out_and_said() {
    let tree = Tree::new();
    let mut grants = tree.grants();
    grants.read_only.push(tree.at("missing"));
    let ruleset = prepare(&grants).unwrap();
    assert_eq!(ruleset.outcome.skipped.len(), 1);
    assert!(ruleset.outcome.skipped[0].contains("missing"), "{:?}", ruleset.outcome.skipped);
}

#[test]
fn abstract_sockets_and_signals_stay_inside() {
    let name = SocketAddr::from_abstract_name(format!("openshell-test-{}", std::process::id())).unwrap();
    let _listener = UnixListener::bind_addr(&name).unwrap();
    let connect = || UnixStream::connect_addr(&name).map(drop);
    let grants = Grants { hard: true, ..Grants::default() };
    assert_eq!(confined(Some(&grants), connect), Err(libc::EPERM));
    assert_eq!(confined(None, connect), Ok(()), "control");

    let outside = Pid::this();
    let signal = || kill(outside, Signal::SIGWINCH).map_err(Into::into);
    assert_eq!(confined(Some(&grants), signal), Err(libc::EPERM));
    assert_eq!(confined(None, signal), Ok(()), "control");
    // Processes of one sandbox signal each other.
    let among_us = || match crate::sys::process::fork()? {
        crate::sys::process::Side::Child => loop {
            nix::unistd::pause();
        },
        crate::sys::process::Side::Parent(other) => kill(other, Signal::SIGKILL).map_err(Into::into),
    };
    assert_eq!(confined(Some(&grants), among_us), Ok(()));
}

#[test]
fn what_the_kernel_lacks_is_explained() {
    for (answer, status, part) in [
        (Ok(7), Status::Fully, None),
        (Ok(6), Status::Fully, None),
        (Ok(5), Status::Partially, Some("abstract sockets and signals")),
        (Ok(1), Status::Partially, Some("moving files")),
        (Err(Errno::ENOSYS), Status::Not, Some("CONFIG_SECURITY_LANDLOCK")),
        (Err(Errno::EOPNOTSUPP), Status::Not, Some("lsm=")),
        (Err(Errno::EPERM), Status::Not, Some("seccomp")),
        (Err(Errno::EIO), Status::Not, Some("EIO")),
    ] {
        let probe = explain(answer);
        assert_eq!(probe.status, status, "{answer:?}");
        assert_eq!(probe.reason.is_some(), part.is_some());
        assert!(probe.reason.unwrap_or_default().contains(part.unwrap_or_default()), "{answer:?}");
    }
}

#[test]
fn without_landlock_best_effort_goes_on_and_says_so() {
    let absent = || explain(Err(Errno::ENOSYS));
    let ruleset = build(&Grants::default(), absent()).unwrap();
    let enforced = ruleset.restrict().unwrap();
    assert_eq!((enforced.status, enforced.abi), (Status::Not, 0));
    assert!(enforced.reason.is_some());
}

#[test]
fn rulesets_of_older_kernels_are_still_built() {
    // What a kernel of that ABI would be asked for; this one can do it too.
    for abi in 1..=6 {
        let tree = Tree::new();
        let act = || {
            let enforced = build(&tree.grants(), explain(Ok(abi))).unwrap().restrict().unwrap();
            let denied = fs::read(tree.at("none/file")).is_err() && fs::read(tree.at("ro/file")).is_ok();
            vec![u8::from(denied), enforced.abi as u8]
        };
        assert_eq!(child::run(act).unwrap(), [1, abi as u8]);
    }
}

#[test]
fn a_link_that_an_earlier_workload_may_have_planted_grants_nothing() {
    let tree = Tree::new();
    std::os::unix::fs::symlink(tree.at("none"), tree.at("rw/out")).unwrap();
    let planted = |hard| Grants { read_write: vec![tree.at("rw"), tree.at("rw/out")], hard, ..Grants::default() };
    assert!(matches!(prepare(&planted(true)), Err(LandlockError::Path { .. })));
    let ruleset = prepare(&planted(false)).unwrap();
    assert!(ruleset.outcome.skipped[0].contains("symbolic link"), "{:?}", ruleset.outcome.skipped);
    let read = || fs::read(tree.at("none/file")).map(drop);
    assert_eq!(confined(Some(&planted(false)), read), Err(libc::EACCES));
    let named = Grants { read_write: vec![tree.at("none")], ..Grants::default() };
    assert_eq!(confined(Some(&named), read), Ok(()), "control: named itself");
}

#[test]
fn tcp_connects_to_the_one_port_and_to_no_other() {
    use std::net::{TcpListener, TcpStream};
    let listeners = [0, 0].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let [one, other] = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let connect = |to: std::net::SocketAddr| move || TcpStream::connect(to).map(drop);
    let grants = Grants { hard: true, connect: Some(one.port()), ..Grants::default() };
    assert_eq!(confined(Some(&grants), connect(one)), Ok(()));
    assert_eq!(confined(Some(&grants), connect(other)), Err(libc::EACCES));
    let anywhere = Grants { connect: None, ..grants };
    assert_eq!(confined(Some(&anywhere), connect(other)), Ok(()), "control");
}
