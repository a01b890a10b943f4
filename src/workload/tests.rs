//! The whole way from orders to the end, with real namespaces, as root. `/proc/self/exe` is this test executable,
//! which answers to the hidden role too (`sys::in_tests`).

mod guests;
mod terminal;

use std::ffi::{CStr, CString};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::launch::{LaunchError, Running, prepare};
use super::standard::Standard;
use super::supervise::{self, Options};
use super::{Orders, control::Ending};
use crate::confine::identity::Identity;
use crate::confine::landlock::{Grants, Status};
use crate::confine::limits::Limits;
use crate::confine::seccomp::{Profile, Sockets};
use crate::netns::{Isolation, Namespaces};
use crate::sys::in_tests::SUPERVISE;

const UID: u32 = 54_321;
const GID: u32 = 54_322;

/// Orders of a test.
pub(super) fn orders() -> Orders {
    World::of(&["/bin/true"]).orders
}

/// Where the workload of a test may write, and its orders.
struct World {
    directory: tempfile::TempDir,
    orders: Orders,
}

impl World {
    fn new(script: &str) -> Self {
        Self::of(&["/bin/sh", "-c", script])
    }

    fn of(command: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        chown(directory.path(), Some(UID), Some(GID)).unwrap();
        let paths = |list: &[&str]| list.iter().map(PathBuf::from).collect::<Vec<_>>();
        let orders = Orders {
            isolation: None,
            command: command.iter().map(|word| CString::new(*word).unwrap()).collect(),
            environment: vec![c"PATH=/usr/bin:/bin".to_owned()],
            workdir: Some(directory.path().to_owned()),
            identity: Identity {
                uid: UID,
                gid: GID,
                groups: vec![GID + 1],
                name: "agent".into(),
                home: "/".into(),
                shell: None,
                switch: true,
                notes: Vec::new(),
            },
            grants: Grants {
                read_only: paths(&["/usr", "/bin", "/lib", "/lib64", "/etc", "/proc", "/dev/urandom"]),
                read_write: [vec![directory.path().to_owned()], paths(&["/dev/null"])].concat(),
                hard: true,
                ..Grants::default()
            },
            seccomp: Profile::Baseline,
            sockets: Sockets::All,
            limits: Limits::default(),
            grace: Duration::from_millis(300),
            guests: true,
            standard: Standard::Inherited,
        };
        Self { directory, orders }
    }

    /// In namespaces of its own.
    fn isolated(mut self) -> Self {
        self.orders.isolation = Some(Isolation {
            namespaces: Namespaces { user: false, pid: true, proxy_port: 3128 },
            hide: Vec::new(),
            provided: None,
            keep: std::iter::once(self.directory.path().to_owned())
                .chain(self.orders.grants.read_only.iter().cloned())
                .chain(self.orders.grants.read_write.iter().cloned())
                .collect(),
            private_tmp: false,
        });
        self
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap_or_default()
    }

    async fn start(&self) -> Result<Running, LaunchError> {
        prepare(self.orders.clone()).await?.go().await
    }

    async fn end(&self) -> Result<Ending, LaunchError> {
        Ok(self.start().await?.wait().await.ending)
    }
}

/// Each test on a thread of its own that lives as long as the sandbox (`PR_SET_PDEATHSIG`).
fn on_runtime<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        tokio::time::timeout(Duration::from_secs(30), future).await.expect("a test of launch hangs")
    })
}

async fn wait_for(mut what: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Instant::now() < deadline {
        if what() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    false
}

/// Whether a process runs whose command line holds `mark`.
fn runs(mark: &str) -> bool {
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        std::fs::read(entry.path().join("cmdline"))
            .is_ok_and(|line| !line.is_empty() && String::from_utf8_lossy(&line).replace('\0', " ").contains(mark))
    })
}

#[test]
fn exit_codes_and_signals_come_through() {
    on_runtime(async {
        for isolated in [false, true] {
            for (script, expected) in [
                ("exit 0", Ending::Code(0)),
                ("exit 42", Ending::Code(42)),
                ("kill -KILL $$", Ending::Signal(9)),
                ("kill -SEGV $$", Ending::Signal(11)),
            ] {
                let world = World::new(script);
                let world = if isolated { world.isolated() } else { world };
                assert_eq!(world.end().await.unwrap(), expected, "{script}");
            }
        }
        assert_eq!((Ending::Signal(9).exit_code(), Ending::Code(3).exit_code()), (137, 3));
    });
}

#[test]
fn the_workload_has_given_up_what_it_must() {
    on_runtime(async {
        for isolated in [false, true] {
            let script = "cat /proc/self/status > status; cat /proc/self/limits > limits; umask > umask; \
                          ls -l /proc/self/fd > fds; pwd > pwd; env > env; cat /proc/self/stat > stat; echo $$ > pid; \
                          ps -o stat= -p 1 > /dev/null; cat /proc/1/environ > init 2> /dev/null";
            let world = World::new(script);
            let world = if isolated { world.isolated() } else { world };
            let running = world.start().await.unwrap();
            assert_eq!(running.landlock.status, Status::Fully);
            let mut running = running;
            running.wait().await;
            let status = world.read("status");
            for (field, value) in [
                ("Uid:", format!("{UID}\t{UID}\t{UID}\t{UID}")),
                ("Gid:", format!("{GID}\t{GID}\t{GID}\t{GID}")),
                ("Groups:", format!("{}", GID + 1)),
                ("CapInh:", "0000000000000000".into()),
                ("CapPrm:", "0000000000000000".into()),
                ("CapEff:", "0000000000000000".into()),
                ("CapBnd:", "0000000000000000".into()),
                ("CapAmb:", "0000000000000000".into()),
                ("NoNewPrivs:", "1".into()),
                ("Seccomp:", "2".into()),
                ("SigBlk:", "0000000000000000".into()),
                ("SigIgn:", "0000000000000000".into()),
            ] {
                let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
                assert_eq!(line.split_once('\t').unwrap().1.trim(), value, "{field} isolated={isolated}");
            }
            let core = world.read("limits").lines().find(|line| line.starts_with("Max core")).unwrap().to_owned();
            assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"]);
            assert_eq!(world.read("umask").trim(), "0022");
            assert_eq!(world.read("pwd").trim(), world.directory.path().to_str().unwrap());
            let fds = world.read("fds");
            assert!(!fds.contains("socket:") && !fds.contains("memfd:"), "leaked: {fds}");
            // The listing has its own open directory besides the three streams.
            assert_eq!(fds.lines().filter(|line| line.contains(" -> ")).count(), 4, "{fds}");
            assert_eq!(world.read("init"), "", "the environment of process 1");
            if isolated {
                assert_eq!(world.read("pid").trim(), "2", "its own PID namespace");
            }
        }
    });
}

#[test]
fn orphans_do_not_outlive_the_workload() {
    on_runtime(async {
        for (isolated, mark) in [(false, "86391"), (true, "86392")] {
            // A daemon in a session of its own, one that ignores TERM, and one that is stopped.
            let script = format!(
                "setsid sh -c 'sleep {mark} & sleep {mark} & wait' & \
                 sh -c 'trap \"\" TERM; while :; do sleep {mark}; done' & \
                 sh -c 'kill -STOP $$; sleep {mark}' & sleep 0.2; echo x > ready; exit 7"
            );
            let world = World::new(&script);
            let world = if isolated { world.isolated() } else { world };
            let mut running = world.start().await.unwrap();
            assert!(wait_for(|| runs(mark)).await, "control: they do run");
            let outcome = running.wait().await;
            assert_eq!(outcome.ending, Ending::Code(7));
            assert!(!runs(mark), "isolated={isolated}: something is left");
        }
    });
}

#[test]
fn a_clean_end_waits_for_no_grace() {
    on_runtime(async {
        let mut world = World::new("sleep 86393 & exit 0").isolated();
        world.orders.grace = Duration::from_secs(20);
        let started = Instant::now();
        world.end().await.unwrap();
        assert!(started.elapsed() < Duration::from_secs(5), "what heeds TERM costs no grace");
    });
}

#[test]
fn what_is_left_is_killed_when_the_supervisor_is_gone() {
    on_runtime(async {
        for (isolated, mark) in [(false, "86394"), (true, "86395")] {
            let script =
                format!("trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep {mark}; sleep {mark}' & sleep {mark}");
            let world = World::new(&script);
            let mut world = if isolated { world.isolated() } else { world };
            world.orders.grace = Duration::from_secs(60);
            let running = world.start().await.unwrap();
            assert!(wait_for(|| runs(mark)).await, "control");
            drop(running);
            assert!(wait_for(|| !runs(mark)).await, "isolated={isolated}: something outlives the supervisor");
        }
    });
}

#[test]
fn not_found_and_not_executable_are_told_apart() {
    on_runtime(async {
        let scratch = tempfile::tempdir_in("/usr/share").unwrap();
        std::fs::set_permissions(scratch.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let file = |name: &str, content: &[u8], mode: u32| {
            let path = scratch.path().join(name);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let plain = file("plain", b"#!/bin/sh\n", 0o644);
        let bare = file("bare", b"echo hello\n", 0o755);
        let orphan = file("orphan", b"#!/no/such/interpreter\n", 0o755);
        let good = file("good", b"#!/bin/sh\nexit 9\n", 0o755);
        let outside = tempfile::tempdir_in("/opt").unwrap();
        std::fs::set_permissions(outside.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let ungranted = outside.path().join("true");
        std::fs::copy("/bin/true", &ungranted).unwrap();
        for (command, code, part) in [
            ("/no/such/program", 127, "not found"),
            ("no-such-program", 127, "not found in PATH=/usr/bin:/bin"),
            ("/etc/passwd/x", 127, "not found"),
            (plain.as_str(), 126, "permission denied"),
            (bare.as_str(), 126, "interpreter line"),
            (orphan.as_str(), 126, "interpreter"),
            ("/usr", 126, "permission denied"),
            (ungranted.to_str().unwrap(), 126, "filesystem_policy"),
        ] {
            let error = World::of(&[command]).start().await.unwrap_err();
            assert_eq!(error.code, code, "{command}: {error}");
            assert!(error.message.contains(part), "{command}: {error}");
        }
        assert_eq!(World::of(&[&good]).end().await.unwrap(), Ending::Code(9), "control");
        assert_eq!(World::of(&["true"]).end().await.unwrap(), Ending::Code(0), "control: PATH");
        let mut ungranted_control = World::of(&[ungranted.to_str().unwrap()]);
        ungranted_control.orders.grants.read_only.push(outside.path().to_owned());
        assert_eq!(ungranted_control.end().await.unwrap(), Ending::Code(0), "control: granted");
    });
}

#[test]
fn set_up_that_fails_says_why_and_ends_with_125() {
    on_runtime(async {
        let mut world = World::new("exit 0");
        world.orders.workdir = Some("/no/such/directory".into());
        let error = world.start().await.unwrap_err();
        assert_eq!(error.code, 125);
        assert!(error.message.contains("/no/such/directory") && error.message.contains("--workdir"), "{error}");

        let mut world = World::new("exit 0");
        let locked = tempfile::tempdir().unwrap();
        std::fs::set_permissions(locked.path(), PermissionsExt::from_mode(0o700)).unwrap();
        world.orders.workdir = Some(locked.path().to_owned());
        let error = world.start().await.unwrap_err();
        assert!(error.message.contains("may not enter"), "{error}");

        let mut world = World::new("exit 0");
        world.orders.command.clear();
        assert_eq!(world.start().await.unwrap_err().code, 127);
    });
}

#[test]
fn landlock_grants_what_lies_under_a_directory_that_only_root_can_search() {
    on_runtime(async {
        let locked = tempfile::tempdir().unwrap();
        let inner = locked.path().join("volume");
        std::fs::create_dir(&inner).unwrap();
        chown(&inner, Some(UID), Some(GID)).unwrap();
        let mut world = World::new("echo yes > made");
        std::fs::set_permissions(locked.path(), PermissionsExt::from_mode(0o711)).unwrap();
        world.orders.workdir = Some(inner.clone());
        assert_eq!(world.end().await.unwrap(), Ending::Code(2), "control: without a grant");
        assert!(!inner.join("made").exists());
        world.orders.grants.read_write.push(inner.clone());
        assert_eq!(world.end().await.unwrap(), Ending::Code(0));
        assert!(inner.join("made").exists());
    });
}

#[test]
fn signals_are_forwarded_to_the_whole_group() {
    on_runtime(async {
        for isolated in [false, true] {
            for (signal, name) in [(Signal::SIGUSR1, "USR1"), (Signal::SIGINT, "INT"), (Signal::SIGWINCH, "WINCH")] {
                let script =
                    format!("trap 'echo {name} > got; exit 5' {name}; echo > ready; while :; do sleep 0.02; done");
                let world = World::new(&script);
                let world = if isolated { world.isolated() } else { world };
                let mut running = world.start().await.unwrap();
                assert!(wait_for(|| world.directory.path().join("ready").exists()).await);
                running.signal(signal).await.unwrap();
                // A shell runs its trap after the `sleep` that the same signal may have ended.
                assert_eq!(running.wait().await.ending, Ending::Code(5), "{name} isolated={isolated}");
                assert_eq!(world.read("got").trim(), name);
            }
        }
    });
}

#[test]
fn a_timeout_asks_then_kills_and_is_124() {
    on_runtime(async {
        let options = Options { timeout: Some(Duration::from_millis(200)), grace: Duration::from_millis(300) };
        let polite = World::new("trap 'echo asked > got; exit 3' TERM; while :; do sleep 0.02; done").isolated();
        let code = supervise::run(&mut polite.start().await.unwrap(), options).await;
        assert_eq!((code, polite.read("got").trim()), (124, "asked"));
        let deaf = World::new("trap '' TERM; while :; do sleep 0.02; done").isolated();
        let started = Instant::now();
        assert_eq!(supervise::run(&mut deaf.start().await.unwrap(), options).await, 124);
        assert!(started.elapsed() >= Duration::from_millis(500));
        let quick = World::new("exit 6").isolated();
        assert_eq!(supervise::run(&mut quick.start().await.unwrap(), options).await, 6, "control");
    });
}

#[test]
fn an_init_that_is_killed_takes_the_workload_along() {
    on_runtime(async {
        for (isolated, mark) in [(false, "86396"), (true, "86397")] {
            let world = World::new(&format!("exec sleep {mark}"));
            let world = if isolated { world.isolated() } else { world };
            let prepared = prepare(world.orders.clone()).await.unwrap();
            let init = Pid::from_raw(i32::try_from(prepared.init).unwrap());
            let mut running = prepared.go().await.unwrap();
            assert!(wait_for(|| runs(mark)).await, "control");
            nix::sys::signal::kill(init, Signal::SIGKILL).unwrap();
            assert_eq!(running.wait().await.ending, Ending::Signal(9));
            assert!(wait_for(|| !runs(mark)).await, "isolated={isolated}");
        }
    });
}

#[test]
fn the_hand_over_works_from_outside() {
    on_runtime(async {
        let world = World::new("exit 0").isolated();
        let mut prepared = prepare(world.orders.clone()).await.unwrap();
        let handover = prepared.handover.take().unwrap();
        assert!(!handover.listeners.is_empty());
        let listener = std::net::TcpListener::from(handover.listeners.into_iter().next().unwrap());
        assert_eq!(listener.local_addr().unwrap().port(), 3128);
        assert!(prepared.processes.is_some());
        let proc = Path::new("/proc").join(prepared.init.to_string());
        // Neither the ids of the init's files nor its memory are the workload's to read.
        assert_eq!(std::fs::read_to_string(proc.join("environ")).unwrap_or_default(), "");
        prepared.go().await.unwrap().wait().await;
    });
}

/// Not a promise, a figure: see the report of the run with `--nocapture`.
#[test]
fn starting_is_quick() {
    on_runtime(async {
        let world = World::of(&["/bin/true"]).isolated();
        let started = Instant::now();
        const ROUNDS: u32 = 10;
        for _ in 0..ROUNDS {
            assert_eq!(world.end().await.unwrap(), Ending::Code(0));
        }
        eprintln!("prepare, go, wait: {:?} each", started.elapsed() / ROUNDS);
    });
}

/// A supervisor in a process of its own: what `SUPERVISE` runs.
pub(crate) fn supervise_orders_in(path: &CStr) -> u8 {
    let orders = serde_json::from_slice(&std::fs::read(path.to_str().unwrap()).unwrap()).unwrap();
    on_runtime(async {
        let options = Options { timeout: None, grace: Duration::from_secs(2) };
        match prepare(orders).await {
            Ok(prepared) => match prepared.go().await {
                Ok(mut running) => supervise::run(&mut running, options).await,
                Err(error) => error.code,
            },
            Err(error) => error.code,
        }
    })
}

#[test]
fn a_supervisor_that_is_killed_leaves_nothing() {
    on_runtime(async {
        for (isolated, mark) in [(false, "86398"), (true, "86399")] {
            let world = World::new(&format!("trap '' TERM HUP; setsid sleep {mark} & sleep {mark}"));
            let world = if isolated { world.isolated() } else { world };
            let orders = world.directory.path().join("orders");
            std::fs::write(&orders, serde_json::to_vec(&world.orders).unwrap()).unwrap();
            let mut supervisor = std::process::Command::new(std::env::current_exe().unwrap())
                .args([SUPERVISE.to_str().unwrap(), orders.to_str().unwrap()])
                .spawn()
                .unwrap();
            assert!(wait_for(|| runs(mark)).await, "control");
            supervisor.kill().unwrap();
            supervisor.wait().unwrap();
            assert!(wait_for(|| !runs(mark)).await, "isolated={isolated}");
        }
    });
}

#[test]
fn a_signal_that_comes_early_reaches_the_workload() {
    on_runtime(async {
        let world = World::new("trap 'echo early > got; exit 4' USR2; echo > ready; while :; do sleep 0.02; done");
        let prepared = prepare(world.orders.clone()).await.unwrap();
        // Every supervisor of this process hears it; only this test sends it.
        nix::sys::signal::kill(Pid::this(), Signal::SIGUSR2).unwrap();
        let mut running = prepared.go().await.unwrap();
        assert!(wait_for(|| world.directory.path().join("ready").exists()).await);
        let options = Options { timeout: None, grace: Duration::from_secs(1) };
        assert_eq!(supervise::run(&mut running, options).await, 4);
        assert_eq!(world.read("got").trim(), "early");
    });
}

#[test]
fn an_ordinary_user_keeps_its_id_in_namespaces_of_its_own() {
    on_runtime(async {
        let world = World::new("cat /proc/self/status > status; echo $$ > pid; sleep 86400 & exit 3").isolated();
        let mut orders = world.orders.clone();
        orders.identity.switch = false;
        orders.identity.groups.clear();
        if let Some(isolation) = &mut orders.isolation {
            isolation.namespaces.user = true;
        }
        let path = world.directory.path().join("orders");
        std::fs::write(&path, serde_json::to_vec(&orders).unwrap()).unwrap();
        let supervisor = std::process::Command::new(std::env::current_exe().unwrap())
            .args([SUPERVISE.to_str().unwrap(), path.to_str().unwrap()])
            .uid(UID)
            .gid(GID)
            .status()
            .unwrap();
        assert_eq!(supervisor.code(), Some(3));
        assert_eq!(world.read("pid").trim(), "2");
        let status = world.read("status");
        for (field, value) in [
            ("Uid:", format!("{UID}\t{UID}\t{UID}\t{UID}")),
            ("CapEff:", "0000000000000000".into()),
            ("CapPrm:", "0000000000000000".into()),
            ("CapBnd:", "0000000000000000".into()),
            ("NoNewPrivs:", "1".into()),
        ] {
            let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
            assert_eq!(line.split_once('\t').unwrap().1.trim(), value, "{field}");
        }
    });
}

#[test]
fn as_process_1_the_supervisor_reaps_strangers() {
    on_runtime(async {
        let world = World::new("echo > ready; sleep 2");
        let orders = world.directory.path().join("orders");
        std::fs::write(&orders, serde_json::to_vec(&world.orders).unwrap()).unwrap();
        // unshare(1), the supervisor as process 1, and a guest that leaves an orphan behind.
        let mut unshare = std::process::Command::new("/usr/bin/unshare")
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(std::env::current_exe().unwrap())
            .args([SUPERVISE.to_str().unwrap(), orders.to_str().unwrap()])
            .spawn()
            .unwrap();
        assert!(wait_for(|| world.directory.path().join("ready").exists()).await);
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let supervisor = std::fs::read_to_string(children).unwrap().trim().to_owned();
        let guest = std::process::Command::new("/usr/bin/nsenter")
            .args(["--target", &supervisor, "--pid", "/bin/sh", "-c", "sleep 0.2 & exit 0"])
            .status()
            .unwrap();
        assert!(guest.success());
        let children = || std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children")).unwrap();
        assert!(wait_for(|| children().split_whitespace().count() == 2).await, "control: the orphan is adopted");
        assert!(wait_for(|| children().split_whitespace().count() == 1).await, "a zombie stays: {}", children());
        assert_eq!(unshare.wait().unwrap().code(), Some(0));
    });
}
