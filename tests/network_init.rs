//! Promises 19.x: what `network-init` lays out, what it needs for that, and what it refuses.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::fence::{CAPABILITIES, PROXY, WORKLOAD, init, network_init, nft, printed, python, take_away};
use crate::world::{Daemon, World, supervisor};

/// The Secret's files, as the init container sees them.
fn secret(world: &World, names: &[&str]) -> PathBuf {
    let directory = world.directory().join("secret");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).expect("mkdir");
    for name in names {
        fs::write(directory.join(name), format!("-----{name}-----\n")).expect("write");
    }
    directory
}

const WHOLE_SECRET: [&str; 3] = ["ca.crt", "tls.crt", "tls.key"];

fn described(path: &Path) -> (u32, u32, u32) {
    let status = fs::symlink_metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    (status.uid(), status.gid(), status.mode() & 0o7777)
}

fn assert_laid_out(world: &World, proxy: u32) {
    let at = |path: &str| described(&world.directory().join(path));
    assert_eq!(at("state"), (proxy, WORKLOAD, 0o2750));
    assert_eq!(at("tls"), (proxy, PROXY, 0o700));
    assert_eq!(at("tls/client"), (proxy, PROXY, 0o700));
    for name in WHOLE_SECRET {
        assert_eq!(at(&format!("tls/client/{name}")), (proxy, PROXY, 0o400));
        let content = fs::read_to_string(world.directory().join("tls/client").join(name)).expect("read");
        assert_eq!(content, format!("-----{name}-----\n"));
    }
    let files = fs::read_dir(world.directory().join("tls")).expect("list").count();
    assert_eq!(files, 1, "something was left behind");
}

#[test]
fn two_capabilities_suffice_and_each_is_needed() {
    for proxy in [PROXY, 0] {
        let world = World::new();
        secret(&world, &WHOLE_SECRET);
        let uid = ["--proxy-uid", &proxy.to_string()];
        for missing in ["net_admin", "chown"] {
            let capabilities = CAPABILITIES.replace(&format!(",+{missing}"), "");
            let output = network_init(&world, &capabilities, &uid).output().expect("setpriv");
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(125), "without {missing}: {told}");
            assert!(told.to_lowercase().contains(missing), "{told}");
            assert_eq!(nft(&world, &["list", "ruleset"]), "", "without {missing} there is a fence");
        }
        // Twice: what was given away is taken back with no more than that.
        for _ in 0..2 {
            init(&world, &uid);
            assert_laid_out(&world, proxy);
        }
    }
}

#[test]
fn a_second_run_repairs_what_it_finds() {
    for proxy in [PROXY, 0] {
        let world = World::new();
        secret(&world, &WHOLE_SECRET);
        let uid = ["--proxy-uid", &proxy.to_string()];
        let at = |path: &str| world.directory().join(path);
        init(&world, &uid);
        let meant = nft(&world, &["list", "ruleset"]);
        let mode = |path: &str, mode| fs::set_permissions(at(path), fs::Permissions::from_mode(mode)).expect("chmod");
        let damages: [(&str, &dyn Fn()); 6] = [
            ("nothing at all", &|| ()),
            ("modes", &|| {
                mode("state", 0o777);
                mode("tls", 0);
                mode("tls/client", 0);
            }),
            ("files", &|| fs::remove_file(at("tls/client/tls.key")).expect("remove")),
            ("an old copy", &|| fs::write(at("tls/client/ca.crt"), "old").expect("write")),
            ("a run that was cut short", &|| {
                fs::rename(at("tls/client"), at("tls/.client.new")).expect("rename");
                fs::write(at("tls/.client.new/stray"), "half").expect("write");
            }),
            ("rules", &|| {
                nft(&world, &["flush", "table", "inet", "openshell_fence"]);
                nft(&world, &["add", "rule", "inet", "openshell_fence", "output", "accept"]);
            }),
        ];
        for (what, damage) in damages {
            damage();
            init(&world, &uid);
            assert_laid_out(&world, proxy);
            assert_eq!(nft(&world, &["list", "ruleset"]), meant, "after {what}");
        }
        // A Secret that is gone leaves no copy; an empty one is none.
        secret(&world, &[]);
        init(&world, &uid);
        assert!(!at("tls/client").exists());
    }
}

#[test]
fn the_workload_reads_nothing_of_the_proxys_and_reaches_its_socket() {
    let world = World::new();
    secret(&world, &WHOLE_SECRET);
    init(&world, &[]);
    let (state, tls) = (world.directory().join("state"), world.directory().join("tls"));
    let listen = format!(
        "import socket, os\ns = socket.socket(socket.AF_UNIX); s.bind('{0}/control.sock'); os.chmod('{0}/control.sock', 0o660)\n\
         s.listen(); print('up', flush=True)\nwhile True: s.accept()",
        state.display()
    );
    let mut proxy = Daemon::spawn(python(&world, PROXY, PROXY, &listen));
    let mut line = String::new();
    BufReader::new(proxy.child().stdout.take().expect("stdout")).read_line(&mut line).expect("read");
    assert_eq!(described(&state.join("control.sock")), (PROXY, WORKLOAD, 0o660), "the group comes by the setgid bit");
    let script = format!(
        "import socket, os, errno\ndef attempt(name, act):\n  try: act(); print(name, 'SUCCEEDED')\n  except OSError as error: \
         print(name, errno.errorcode[error.errno])\n\
         attempt('socket', lambda: socket.socket(socket.AF_UNIX).connect('{0}/control.sock'))\n\
         attempt('replace', lambda: os.rename('{0}/control.sock', '{0}/other'))\n\
         attempt('plant', lambda: open('{0}/mine', 'w'))\n\
         attempt('list', lambda: os.listdir('{1}'))\n\
         attempt('key', lambda: open('{1}/client/tls.key').read())\n",
        state.display(),
        tls.display()
    );
    let by = |uid, gid| printed(python(&world, uid, gid, &script));
    assert_eq!(by(WORKLOAD, WORKLOAD), "socket SUCCEEDED\nreplace EACCES\nplant EACCES\nlist EACCES\nkey EACCES\n");
    // Neither of the proxy's ids helps alone, and a stranger does not even reach the socket.
    assert_eq!(by(WORKLOAD, PROXY), "socket EACCES\nreplace EACCES\nplant EACCES\nlist EACCES\nkey EACCES\n");
    assert_eq!(by(3000, 3000), "socket EACCES\nreplace EACCES\nplant EACCES\nlist EACCES\nkey EACCES\n");
    // Control: the proxy may do all of it.
    let all = by(PROXY, PROXY);
    assert_eq!(all.matches("SUCCEEDED").count(), 5, "{all}");
}

#[test]
fn a_secret_that_is_optional_and_absent_is_none() {
    let world = World::new();
    let directory = secret(&world, &[]);
    // As the kubelet's atomic writer leaves a volume that it has put nothing into.
    fs::create_dir(directory.join("..2026_11_30_00_00_00.1")).expect("mkdir");
    symlink("..2026_11_30_00_00_00.1", directory.join("..data")).expect("symlink");
    init(&world, &[]);
    assert!(!world.directory().join("tls/client").exists());
    // Control: one file of three, as the same writer lays it out, is a mistake.
    fs::write(directory.join("..data/ca.crt"), "-----ca-----").expect("write");
    symlink("..data/ca.crt", directory.join("ca.crt")).expect("symlink");
    let output = network_init(&world, CAPABILITIES, &[]).output().expect("setpriv");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(125) && told.contains("tls.crt is missing"), "{told}");
}

#[test]
fn what_is_wrong_ends_the_start_and_is_named() {
    let world = World::new();
    let at = |path: &str| world.directory().join(path).display().to_string();
    let workload = WORKLOAD.to_string();
    fs::create_dir(at("real")).expect("mkdir");
    symlink(at("real"), at("link")).expect("symlink");
    fs::write(at("file"), "").expect("write");
    fs::create_dir(at("foreign")).expect("mkdir");
    std::os::unix::fs::chown(at("foreign"), Some(4321), Some(0)).expect("chown");
    fs::create_dir_all(at("nested/client/deep")).expect("mkdir");
    let (link, file, foreign, nested) = (at("link"), at("file"), at("foreign"), at("nested"));
    let below = at("state/tls");
    let cases: [(&[&str], i32, &str); 18] = [
        (&["--proxy-uid", &workload], 2, "same uid, 2000"),
        (&["--proxy-gid", &workload], 2, "same gid, 2000"),
        (&["--proxy-gid", "0"], 2, "gid is 0"),
        (&["--proxy-uid", "0", "--proxy-gid", "0"], 2, "gid is 0"),
        (&["--proxy-uid", "999"], 2, "uid is 999"),
        (&["--proxy-uid", "65534"], 2, "uid is 65534"),
        (&["--proxy-uid", "4294967295"], 2, "uid is 4294967295"),
        (&["--proxy-uid", "4294967296"], 2, "4294967296"),
        (&["--proxy-uid", "-1"], 2, "-1"),
        (&["--proxy-uid", "proxy"], 2, "proxy"),
        (&["--sandbox-uid", "0"], 2, "workload's uid is 0"),
        (&["--sidecar-state-dir", &link], 125, "found a link"),
        (&["--sidecar-tls-dir", &link], 125, "found a link"),
        (&["--sidecar-tls-dir", &file], 125, "found a link or a file"),
        (&["--sidecar-state-dir", &foreign], 125, "owned by uid 4321"),
        (&["--sidecar-state-dir", "relative"], 125, "absolute"),
        (&["--sidecar-tls-dir", &below], 2, "neither holds the other"),
        (&["--sidecar-tls-dir", &nested], 125, "client"),
    ];
    let refused = |arguments: &[&str], code: i32, reason: &str| {
        let output = network_init(&world, CAPABILITIES, arguments).output().expect("setpriv");
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(told.contains(reason) && (code == 2 || told.contains(": network-init: ")), "{arguments:?}: {told}");
        assert_eq!(nft(&world, &["list", "ruleset"]), "", "{arguments:?} raised a fence");
    };
    for (arguments, code, reason) in cases {
        refused(arguments, code, reason);
    }
    for missing in WHOLE_SECRET {
        secret(&world, &WHOLE_SECRET.iter().copied().filter(|name| *name != missing).collect::<Vec<_>>());
        refused(&[], 125, &format!("{missing} is missing"));
    }
    let directory = secret(&world, &WHOLE_SECRET);
    fs::write(directory.join("tls.key"), "").expect("write");
    refused(&[], 125, "tls.key: expected a PEM file");
    assert_eq!(fs::read_dir(at("real")).expect("list").count(), 0, "something was put where a link leads");
    // Control: with nothing wrong it starts.
    secret(&world, &WHOLE_SECRET);
    init(&world, &[]);
    assert_laid_out(&world, PROXY);
}

#[test]
fn network_init_is_done_in_milliseconds() {
    let world = World::new();
    secret(&world, &WHOLE_SECRET);
    init(&world, &[]);
    let path = |name: &str| world.directory().join(name).display().to_string();
    let flags = [
        ("--sandbox-uid", WORKLOAD.to_string()),
        ("--sandbox-gid", WORKLOAD.to_string()),
        ("--sidecar-state-dir", path("state")),
        ("--sidecar-tls-dir", path("tls")),
        ("--client-tls-dir", path("secret")),
    ];
    let init: Vec<String> = std::iter::once("network-init".to_owned())
        .chain(flags.map(|(flag, value)| format!("{flag}={value}")))
        .collect();
    let start = best(&world, &["--version".to_owned()], || ());
    // The first run of a pod finds no table: to throw one away, the kernel waits until nobody looks at it any more.
    let (first, again) = (best(&world, &init, || take_away(&world)), best(&world, &init, || ()));
    eprintln!("network-init, work and wall: first run {first:?}, repeated {again:?}; the program's start {start:?}");
    assert!(first.0.saturating_sub(start.0) < Duration::from_millis(5), "{first:?}, start {start:?}");
}

/// The least work (time on a processor) and the least wall time of twenty runs in the pod. The machine of the tests has
/// other things to do, so that only the former says something for certain.
fn best(world: &World, arguments: &[String], before: impl Fn()) -> (Duration, Duration) {
    let run = || {
        before();
        let arguments = arguments.to_vec();
        world.in_machine(move || {
            let started = Instant::now();
            let child = Command::new(supervisor())
                .args(&arguments)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("start");
            let work = work_of(child);
            (work, started.elapsed())
        })
    };
    let runs: Vec<_> = (0..20).map(|_| run()).collect();
    let least = |pick: fn(&(Duration, Duration)) -> Duration| runs.iter().map(pick).min().expect("twenty");
    (least(|run| run.0), least(|run| run.1))
}

/// Waits for a child that must end well, and returns how long it was on a processor.
fn work_of(child: Child) -> Duration {
    let pid = i32::try_from(child.id()).expect("a pid");
    let mut status = 0;
    // SAFETY: all zero is a valid rusage.
    let mut usage: nix::libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both places outlive the call, and the child is ours and reaped by nobody else.
    assert_eq!(unsafe { nix::libc::wait4(pid, &raw mut status, 0, &raw mut usage) }, pid);
    assert_eq!(status, 0, "network-init failed");
    let time = |time: nix::libc::timeval| {
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_usec).expect("microseconds") * 1000)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
