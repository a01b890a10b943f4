//! Promises 10.x: signals, orphans, terminals, and the end of everything at the end.

use std::io::{BufRead, BufReader, Read};
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::world::{Daemon, PATIENCE, World, eventually};

/// Starts a shell script in a sandbox and waits for its first line, so that its traps are set.
fn started(world: &World, script: &str) -> (Daemon, BufReader<std::process::ChildStdout>) {
    let mut command = world.run().args(["--grace", "1"]).shell(script).build();
    command.stdout(Stdio::piped());
    let mut daemon = Daemon::spawn(command);
    let mut output = BufReader::new(daemon.child().stdout.take().expect("piped"));
    let mut line = String::new();
    output.read_line(&mut line).expect("the first line");
    assert_eq!(line, "ready\n");
    (daemon, output)
}

#[test]
fn signals_reach_the_command() {
    let world = World::new();
    for (name, signal) in [
        ("TERM", Signal::SIGTERM),
        ("INT", Signal::SIGINT),
        ("HUP", Signal::SIGHUP),
        ("QUIT", Signal::SIGQUIT),
        ("USR1", Signal::SIGUSR1),
        ("USR2", Signal::SIGUSR2),
        ("WINCH", Signal::SIGWINCH),
    ] {
        let script = format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let (mut daemon, mut output) = started(&world, &script);
        daemon.signal(signal);
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("read");
        assert_eq!(rest, format!("got {name}\n"));
        let status = daemon.wait_within(PATIENCE).expect("an end");
        assert_eq!(status.code(), Some(7), "{name}");
    }
}

#[test]
fn term_becomes_kill_after_the_grace() {
    let world = World::new();
    let (mut daemon, _output) = started(&world, "trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let begun = std::time::Instant::now();
    daemon.signal(Signal::SIGTERM);
    let status = daemon.wait_within(PATIENCE).expect("an end");
    assert_eq!(status.code(), Some(128 + 9));
    assert!(begun.elapsed() >= Duration::from_millis(900), "before the grace: {:?}", begun.elapsed());
    // Control: a command that does not ignore TERM ends at once, by it.
    let (mut daemon, _output) = started(&world, "echo ready; exec sleep 60");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait_within(PATIENCE).expect("an end").code(), Some(128 + 15));
}

#[test]
fn orphans_are_reaped_while_it_runs_and_none_is_left_behind() {
    let world = World::new();
    // Fifty orphans that end, then a look for zombies among all that the sandbox can see.
    let script = "i=0; while [ $i -lt 50 ]; do (sleep 0.01 &) ; i=$((i+1)); done; sleep 0.6; grep -l 'State:.Z' /proc/[0-9]*/status \
                  2>/dev/null | wc -l";
    assert_eq!(world.run().shell(script).output().expect(0).stdout.trim(), "0");
    // A daemon that outlives the command is ended with it.
    let mark = format!("7{:06}", std::process::id());
    world
        .run()
        .args(["--grace", "1"])
        .shell(&format!("setsid sleep {mark} >/dev/null 2>&1 & exit 0"))
        .output()
        .expect(0);
    eventually("nothing is left behind", || {
        let output =
            std::process::Command::new("pgrep").args(["-f", &format!("sleep {mark}")]).output().expect("pgrep");
        output.stdout.is_empty()
    });
}

/// Python that runs a program on a terminal of its own; steps `type` to it and wait `until` it has said something.
const TERMINAL: &str = r#"
import os, pty, sys, time, select, signal
signal.alarm(100)
argv = sys.argv[1:]
pid, fd = pty.fork()
if pid == 0:
    os.execv(argv[0], argv)
seen = b""
def until(text, limit=30):
    global seen
    end = time.time() + limit
    while text not in seen:
        if time.time() > end:
            sys.exit("never saw %r in %r" % (text, seen))
        if select.select([fd], [], [], 0.1)[0]:
            try: seen += os.read(fd, 4096)
            except OSError: break
    seen = seen.split(text, 1)[1] if text in seen else b""
def type(text): os.write(fd, text.encode())
"#;

/// Runs a command on a terminal through `steps`; it must end with 5.
fn on_a_terminal(command: &[&std::ffi::OsStr], steps: &str) {
    let script =
        format!("{TERMINAL}{steps}\n_, status = os.waitpid(pid, 0)\nsys.exit(os.waitstatus_to_exitcode(status))");
    let output = std::process::Command::new("/usr/bin/python3")
        .args(["-c", &script])
        .args(command)
        .env("PS1", "$ ")
        .current_dir("/")
        .output()
        .expect("python3");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(5), "{said}");
}

#[test]
fn a_shell_on_a_terminal_has_job_control_and_control_c_reaches_the_program() {
    let world = World::new();
    let built = world.run().command(["/bin/bash", "--norc", "-i"]).build();
    let ip: &std::ffi::OsStr = "/usr/sbin/ip".as_ref();
    let command: Vec<&std::ffi::OsStr> = std::iter::once(ip).chain(built.get_args()).collect();
    on_a_terminal(
        &command,
        r#"
type("echo rea''dy\n"); until(b"ready\r\n")
type("sleep 300\n"); time.sleep(0.5); type("\x03"); time.sleep(0.2)
type("echo interrupted $?\n"); until(b"interrupted 130")
type("sleep 300\n"); time.sleep(0.5); type("\x1a"); until(b"Stopped")
type("kill -KILL %1; sleep 0.5; echo after''wards\n"); until(b"afterwards\r\n")
type("exit 5\n"); time.sleep(0.2); type("exit 5\n")
"#,
    );
}

#[test]
fn the_shell_outside_keeps_its_terminal_and_its_jobs() {
    let supervisor = crate::world::supervisor().display();
    let steps = format!(
        r#"
S = "{supervisor} run -- "
type("echo rea''dy\n"); until(b"ready\r\n")
type(S + "sleep 0.5 &\n"); time.sleep(3)
type("echo still h''ere\n"); until(b"still here\r\n")
type(S + "cat &\n"); time.sleep(3)
type("jobs\n"); until(b"Stopped")
type("fg\n"); time.sleep(2)
type("to the c''at\n"); until(b"to the c''at\r\nto the c''at\r\n")
type("\x1a"); until(b"Stopped")
type("fg\n"); time.sleep(2)
type("again\n"); until(b"again\r\nagain\r\n")
type("\x04"); time.sleep(2)
type("echo done $?\n"); until(b"done 0\r\n")
type("exit 5\n")
"#
    );
    on_a_terminal(&["/bin/bash".as_ref(), "--norc".as_ref(), "-i".as_ref()], &steps);
}

#[test]
fn an_end_is_an_end_although_nobody_reads_the_output() {
    let world = World::new();
    let mut command = world.run().shell("trap '' PIPE; sleep 0.3; echo into the void; exit 3").build();
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut daemon = Daemon::spawn(command);
    drop(daemon.child().stdout.take());
    drop(daemon.child().stderr.take());
    assert_eq!(daemon.wait_within(PATIENCE).expect("an end").code(), Some(3));
}
