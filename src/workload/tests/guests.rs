//! Programs that are started beside the workload.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::*;
use crate::workload::guest::{Program, Task};
use crate::workload::launcher::{Guest, Launcher};
use crate::workload::standard::Shape;

fn task(script: &str) -> Task {
    Task {
        program: Program::Image(vec![
            vec![c"/no/such/shell".to_owned()],
            vec![c"/bin/sh".into(), c"-c".into(), CString::new(script).unwrap()],
        ]),
        environment: vec![c"PATH=/usr/bin:/bin".to_owned(), c"MARK=guest".to_owned()],
        workdir: None,
        terminal: None,
    }
}

/// Starts `task` on pipes, and gives the other end of its standard output.
async fn start(launcher: &Launcher, task: &Task) -> (Guest, std::fs::File) {
    let mut guest = launcher.launch(task).await.unwrap();
    let output = guest.streams.remove(1);
    (guest, output.into())
}

/// What a script says as a guest.
async fn said(launcher: &Launcher, script: &str) -> String {
    let (mut guest, mut output) = start(launcher, &task(script)).await;
    assert_eq!(guest.wait().await, Ending::Code(0), "{script}");
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    said
}

/// A sandbox whose workload tells about itself, and waits.
async fn inhabited(what: &str) -> (World, Running) {
    let world = World::new(&format!("({what}) > told; touch ready; exec sleep 60")).isolated();
    let running = world.start().await.unwrap();
    assert!(wait_for(|| world.directory.path().join("ready").exists()).await);
    (world, running)
}

/// Both together: the supervisor's loop serves the launcher.
async fn beside<T>(mut running: Running, visit: impl Future<Output = T>) -> T {
    tokio::select! {
        _ = running.wait() => panic!("the workload has ended first"),
        out = visit => out,
    }
}

#[test]
fn a_guest_is_confined_exactly_like_the_workload() {
    const TELL: &str = "id; for n in net mnt pid user ipc uts; do readlink /proc/self/ns/$n; done; \
                        grep -E '^(Cap|NoNewPrivs|Seccomp|Groups|Uid|Gid)' /proc/self/status; ulimit -a; umask; pwd; \
                        ls / /dev; cat /root/.profile 2>&1; ls /root 2>&1; true";
    on_runtime(async {
        let (world, running) = inhabited(TELL).await;
        let launcher = running.launcher();
        let guest = beside(running, said(&launcher, TELL)).await;
        assert!(guest.contains(&format!("uid={UID}")), "{guest}");
        assert!(guest.contains("NoNewPrivs:\t1") && guest.contains("Seccomp:\t2"), "{guest}");
        assert_eq!(guest, world.read("told"));
        // The control: outside it would tell something else.
        let outside = std::process::Command::new("/bin/sh").args(["-c", TELL]).output().unwrap();
        assert_ne!(guest.as_bytes(), outside.stdout);
    });
}

#[test]
fn a_guest_has_its_own_words_environment_and_ending() {
    on_runtime(async {
        let (_world, running) = inhabited("true").await;
        let launcher = running.launcher();
        beside(running, async {
            assert_eq!(said(&launcher, "echo $MARK; echo again > /dev/stdout").await, "guest\nagain\n");
            for (script, ending) in
                [("exit 7", Ending::Code(7)), ("kill -9 $$", Ending::Signal(9)), ("exit 300", Ending::Code(44))]
            {
                let (mut guest, _) = start(&launcher, &task(script)).await;
                assert_eq!(guest.wait().await, ending, "{script}");
            }
            let (mut guest, _) = start(&launcher, &task("sleep 60 & wait")).await;
            guest.handle().signal(Signal::SIGTERM).await;
            assert_eq!(guest.wait().await, Ending::Signal(15));
            let none = Task { program: Program::Image(vec![vec![c"/no/such/program".to_owned()]]), ..task("") };
            let refused = launcher.launch(&none).await.unwrap_err();
            assert_eq!(refused.code, 127, "{refused}");
        })
        .await;
    });
}

#[test]
fn a_guest_s_terminal_is_the_sandbox_s_own() {
    on_runtime(async {
        let (_world, running) = inhabited("true").await;
        let launcher = running.launcher();
        beside(running, async {
            let script = "tty; stty size; stty -a | grep -o -- '-echo '; stat -c %u $(tty); read line; echo got:$line";
            let shape = Shape { rows: 31, columns: 97, modes: vec![(53, 0)], ..Shape::default() };
            let mut guest = launcher.launch(&Task { terminal: Some(shape), ..task(script) }).await.unwrap();
            let mut master = std::fs::File::from(guest.streams.remove(0));
            master.write_all(b"word\n").unwrap();
            assert_eq!(guest.wait().await, Ending::Code(0));
            let (mut shown, mut chunk) = (String::new(), [0; 4096]);
            // EIO is how a terminal ends.
            while let Ok(length @ 1..) = master.read(&mut chunk) {
                shown.push_str(&String::from_utf8_lossy(&chunk[..length]));
            }
            for expected in ["/dev/pts/", "31 97", "-echo ", &UID.to_string(), "got:word"] {
                assert!(shown.contains(expected), "{expected} in {shown}");
            }
        })
        .await;
    });
}

#[test]
fn a_guest_may_signal_the_workload_and_not_the_other_way_around() {
    on_runtime(async {
        for isolated in [false, true] {
            let script = "trap 'touch signalled' USR1; while [ ! -e guest ]; do sleep 0.05; done; \
                          kill -0 $(cat guest) 2> refused || touch refused; touch ready; while :; do sleep 0.05; done";
            let world = World::new(script);
            let world = if isolated { world.isolated() } else { world };
            let running = world.start().await.unwrap();
            let (launcher, workload) = (running.launcher(), running.pid);
            // The same user, outside of the sandbox.
            let mut outside = std::process::Command::new("/bin/sleep").arg("86399").uid(UID).gid(GID).spawn().unwrap();
            beside(running, async {
                let (mut guest, _) = start(&launcher, &task("echo $$ > new; mv new guest; exec sleep 60")).await;
                assert!(wait_for(|| world.directory.path().join("ready").exists()).await);
                assert!(world.read("refused").contains("not permitted"), "{}", world.read("refused"));
                said(&launcher, &format!("kill -USR1 {workload}")).await;
                assert!(wait_for(|| world.directory.path().join("signalled").exists()).await);
                let (mut other, _) = start(&launcher, &task(&format!("kill -9 {}", guest.pid))).await;
                assert_eq!((other.wait().await, guest.wait().await), (Ending::Code(0), Ending::Signal(9)));
                if !isolated {
                    let kill = format!("kill -9 {}", outside.id());
                    let (mut other, _) = start(&launcher, &task(&kill)).await;
                    assert_eq!(other.wait().await, Ending::Code(1), "beyond the sandbox nothing is signalled");
                    assert!(outside.try_wait().unwrap().is_none());
                    // The control: without a sandbox this user may.
                    let mut control = std::process::Command::new("/bin/sh");
                    assert!(control.args(["-c", &kill]).uid(UID).gid(GID).status().unwrap().success());
                }
                let _ = outside.kill();
                outside.wait().unwrap();
            })
            .await;
        }
    });
}

/// Set in a process that runs one test alone.
const ALONE: &str = "OPENSHELL_TEST_ALONE";

#[test]
fn a_guest_whose_streams_are_lost_fails_alone_and_ends() {
    // The bound of descriptors is all tests'.
    if std::env::var_os(ALONE).is_none() {
        let mut own = std::process::Command::new(std::env::current_exe().unwrap());
        own.args(["--exact", "workload::tests::guests::a_guest_whose_streams_are_lost_fails_alone_and_ends"]);
        let output = own.env(ALONE, "1").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{told}");
        return;
    }
    on_runtime(async {
        let (_world, running) = inhabited("true").await;
        let launcher = running.launcher();
        beside(running, async {
            let begin = task("exec sleep 86398");
            // To the last descriptor but one, which the task is sent by.
            let (least, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
            let spare = std::fs::File::open("/dev/null").unwrap();
            let next = u64::from(spare.as_raw_fd().unsigned_abs());
            drop(spare);
            setrlimit(Resource::RLIMIT_NOFILE, next + 1, most).unwrap();
            let lost = launcher.launch(&begin).await;
            setrlimit(Resource::RLIMIT_NOFILE, least, most).unwrap();
            let lost = lost.unwrap_err();
            assert!(lost.message.contains("descriptors were lost"), "{lost}");
            let runs = || std::process::Command::new("pgrep").args(["-fx", "sleep 86398"]).status().unwrap().success();
            assert!(wait_for(|| !runs()).await, "it has been ended");
            // The control: the same, with descriptors to be had.
            let (guest, _output) = start(&launcher, &begin).await;
            assert!(wait_for(runs).await);
            guest.handle().signal(Signal::SIGKILL).await;
            assert_eq!(said(&launcher, "echo heard").await, "heard\n");
        })
        .await;
    });
}

#[test]
fn guests_end_with_the_workload() {
    on_runtime(async {
        let world = World::new("sleep 0.5").isolated();
        let mut running = world.start().await.unwrap();
        let launcher = running.launcher();
        let visit = async {
            let (mut guest, _) = start(&launcher, &task("sleep 60")).await;
            guest.wait().await
        };
        let (_, ending) = tokio::join!(running.wait(), visit);
        assert_eq!(ending, Ending::Signal(15));
        assert!(launcher.launch(&task("true")).await.unwrap_err().message.contains("has ended"));
    });
}

#[test]
fn a_socket_is_of_the_workload_s_network() {
    on_runtime(async {
        let (_world, running) = inhabited("true").await;
        let launcher = running.launcher();
        let outside = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let towards = outside.local_addr().unwrap();
        beside(running, async {
            let refused = launcher.socket(towards).await.unwrap().connect(towards).await.unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
            // The control: the same address, from here.
            tokio::net::TcpStream::connect(towards).await.unwrap();
        })
        .await;
    });
}
