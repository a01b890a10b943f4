//! Promises 30.16 and following: the main process of a sandbox that can be reached, as people attach to it and read what it
//! has said, and as its container sees it all the same.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nix::pty::{Winsize, openpty};
use nix::sys::signal::Signal;

use crate::world::{Daemon, World, eventually, supervisor};

/// Where a sandbox is, or will be.
struct Place {
    world: World,
    directory: tempfile::TempDir,
    /// Where the door is, which nobody but who made it may write.
    porch: tempfile::TempDir,
    policy: PathBuf,
}

impl Place {
    fn new() -> Self {
        let world = World::new();
        let directory =
            tempfile::Builder::new().prefix("openshell-attach-").tempdir_in("/var/tmp").expect("a directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
        let porch = tempfile::Builder::new().prefix("openshell-door-").tempdir_in("/var/tmp").expect("a directory");
        std::fs::set_permissions(porch.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
        let paths = directory.path().display();
        let policy = world
            .file("main.yaml", format!("version: 1\nfilesystem_policy: {{read_write: [{paths}, /tmp, /dev/null]}}\n"));
        Self { world, directory, porch, policy }
    }

    fn door(&self) -> PathBuf {
        self.porch.path().join("door")
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap_or_default()
    }

    /// A sandbox, not started, that can be reached or not.
    fn sandbox(&self, script: &str, reachable: bool) -> Command {
        let run = self.world.run().policy(&self.policy).arg("--workdir").arg(self.directory.path());
        let run = if reachable { run.arg("--ssh-socket-path").arg(self.door()) } else { run };
        let mut command = run.shell(script).build();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The same, started.
    fn start(&self, mut command: Command) -> Daemon {
        let _ = command.env("TERM", "vt220");
        let daemon = Daemon::spawn(command);
        eventually("the door is there", || self.door().exists());
        daemon
    }

    /// A role that speaks to the door.
    fn role(&self, name: &str) -> Command {
        let mut command = Command::new(supervisor());
        command.arg(name).arg("--ssh-socket-path").arg(self.door());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// OpenSSH's client, attaching.
    fn ssh(&self, options: &[&str]) -> Command {
        let proxy = format!("{} connect --ssh-socket-path {}", supervisor().display(), self.door().display());
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "/dev/null", "-o", &format!("ProxyCommand={proxy}"), "-o", "LogLevel=ERROR"]);
        ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]);
        ssh.args(options).args(["-s", "sandbox@box", "openshell-main"]);
        ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        ssh
    }

    fn logs(&self) -> Output {
        self.role("logs").output().expect("logs")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What is read of a daemon's output so far.
fn gathered(stream: impl Read + Send + 'static) -> Arc<Mutex<Vec<u8>>> {
    let gathered = Arc::new(Mutex::new(Vec::new()));
    let into = gathered.clone();
    let mut stream = stream;
    std::thread::spawn(move || {
        let mut chunk = vec![0; 64 << 10];
        while let Ok(length @ 1..) = stream.read(&mut chunk) {
            into.lock().expect("gathered").extend_from_slice(&chunk[..length]);
        }
    });
    gathered
}

fn so_far(gathered: &Arc<Mutex<Vec<u8>>>) -> String {
    text(&gathered.lock().expect("gathered"))
}

/// A terminal, and a program that has it.
struct Screen {
    keys: File,
    shown: Arc<Mutex<Vec<u8>>>,
    settings: nix::sys::termios::Termios,
    own: std::os::fd::OwnedFd,
    program: Daemon,
}

impl Screen {
    fn of(command: &Command) -> Self {
        let size = Winsize { ws_row: 33, ws_col: 111, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).expect("a terminal");
        let settings = nix::sys::termios::tcgetattr(&pty.slave).expect("tcgetattr");
        let own = || Stdio::from(pty.slave.try_clone().expect("dup"));
        let mut on = Command::new("setsid");
        on.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
        on.env("TERM", "vt220").stdin(own()).stdout(own()).stderr(own());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => on.env(name, value),
                None => on.env_remove(name),
            };
        }
        let program = Daemon::spawn(on);
        let keys = File::from(pty.master);
        let shown = gathered(keys.try_clone().expect("dup"));
        Self { keys, shown, settings, own: pty.slave, program }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("keys");
    }

    #[track_caller]
    fn expect(&self, text: &str) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !so_far(&self.shown).contains(text) {
            assert!(Instant::now() < deadline, "{text:?} does not come: {:?}", so_far(&self.shown));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn forget(&self) {
        self.shown.lock().expect("shown").clear();
    }

    /// Waits for the program's end, after which the terminal must be as it was.
    #[track_caller]
    fn end(mut self) -> Option<i32> {
        let code = self.program.wait_within(Duration::from_secs(20)).and_then(|status| status.code());
        let after = nix::sys::termios::tcgetattr(&self.own).expect("tcgetattr");
        assert_eq!(
            (after.local_flags, after.input_flags, after.output_flags),
            (self.settings.local_flags, self.settings.input_flags, self.settings.output_flags),
            "the terminal is restored"
        );
        code
    }
}

#[test]
fn the_container_sees_the_same_output_with_and_without_access() {
    let place = Place::new();
    let script = "head -c 3000000 /dev/urandom | tee data; echo err >&2; cat; test -t 0 || echo no terminal; exit 7";
    for reachable in [false, true] {
        let output = place.sandbox(script, reachable).output().expect("run");
        let data = std::fs::read(place.at("data")).expect("data");
        assert_eq!(output.status.code(), Some(7));
        assert!(output.stdout == [&data[..], b"no terminal\n"].concat(), "{} bytes", output.stdout.len());
        assert!(text(&output.stderr).ends_with("err\n"), "{}", text(&output.stderr));
        // What is one file for both is written in order.
        let both = File::create(place.at("both")).expect("a file");
        let script = "for n in 1 2 3 4 5 6 7 8 9; do echo $n; echo $n >&2; done";
        let mut command = place.sandbox(script, reachable);
        command.stdout(both.try_clone().expect("dup")).stderr(both);
        assert!(command.status().expect("run").success());
        let lines: String = place.read("both").lines().filter(|line| line.len() == 1).collect();
        assert_eq!(lines, "112233445566778899");
        // Input goes in, up to its end.
        let mut command = place.sandbox("cat; echo end", reachable);
        let mut child = command.stdin(Stdio::piped()).spawn().expect("run");
        child.stdin.take().expect("a pipe").write_all(b"some words\n").expect("write");
        assert_eq!(text(&child.wait_with_output().expect("wait").stdout), "some words\nend\n");
        // Who reads no more ends who writes.
        let mut command = place.sandbox("trap 'exit 9' PIPE; while :; do echo line || exit 9; done", reachable);
        let mut child = Daemon::spawn({
            command.stderr(Stdio::null());
            command
        });
        let mut first = [0; 4];
        child.child().stdout.take().expect("a pipe").read_exact(&mut first).expect("a line");
        assert_eq!(child.wait_within(Duration::from_secs(20)).and_then(|status| status.code()), Some(9));
    }
}

#[test]
fn without_access_nothing_stands_between() {
    let place = Place::new();
    for (reachable, same) in [(false, true), (true, false)] {
        let file = File::create(place.at("own")).expect("a file");
        let mut command = place.sandbox("exec 3>&1; stat -L -c %i /proc/self/fd/3 > told", reachable);
        command.stdout(file.try_clone().expect("dup"));
        assert!(command.status().expect("run").success());
        let inode = file.metadata().expect("stat").ino().to_string();
        assert_eq!(place.read("told").trim() == inode, same, "reachable: {reachable}");
    }
}

#[test]
fn logs_print_what_was_said_of_late_and_follow() {
    let place = Place::new();
    let script =
        "echo one; sleep 0.1; echo two >&2; touch said; while [ ! -e go ]; do sleep 0.05; done; echo three; exit 5";
    let mut sandbox = place.start(place.sandbox(script, true));
    eventually("it has spoken", || place.at("said").exists());
    eventually("both are there", || text(&place.logs().stderr).contains("two"));
    let logs = place.logs();
    assert_eq!((logs.status.code(), text(&logs.stdout), text(&logs.stderr)), (Some(0), "one\n".into(), "two\n".into()));
    let mut followed = place.role("logs");
    let mut followed = followed.arg("-f").spawn().expect("logs");
    let seen = gathered(followed.stdout.take().expect("a pipe"));
    eventually("the beginning comes", || so_far(&seen) == "one\n");
    std::thread::sleep(Duration::from_millis(300));
    assert!(followed.try_wait().expect("wait").is_none(), "control: it waits");
    std::fs::write(place.at("go"), "").expect("go");
    assert_eq!(followed.wait().expect("wait").code(), Some(0));
    eventually("the end comes", || so_far(&seen) == "one\nthree\n");
    assert_eq!(sandbox.wait_within(Duration::from_secs(10)).and_then(|status| status.code()), Some(5));
    let gone = place.logs();
    assert_eq!(gone.status.code(), Some(125));
}

#[test]
fn logs_keep_the_newest_and_no_more() {
    let place = Place::new();
    let mut command = place.sandbox("seq 1 1000000; touch said; sleep 300", true);
    command.stdout(Stdio::null());
    let _sandbox = place.start(command);
    eventually("it has spoken", || place.at("said").exists());
    eventually("the last is there", || text(&place.logs().stdout).ends_with("\n1000000\n"));
    assert_eq!(place.logs().stdout.len(), 1 << 20);
    // Who has seen enough may go.
    let mut logs = place.role("logs").spawn().expect("logs");
    drop(logs.stdout.take());
    assert_eq!(logs.wait().expect("wait").code(), Some(0));
}

#[test]
fn who_attaches_hears_the_past_the_present_and_how_it_ends() {
    for (ending, code) in [("exit 7", 7), ("kill -TERM $$", 143)] {
        let place = Place::new();
        let script = format!("echo past; touch said; read -r line; echo present $line; echo err >&2; {ending}");
        let mut command = place.sandbox(&script, true);
        command.stdin(Stdio::piped());
        let mut sandbox = place.start(command);
        let mut input = sandbox.child().stdin.take().expect("a pipe");
        eventually("it has spoken", || place.at("said").exists());
        let attached = place.role("attach").spawn().expect("attach");
        let by_ssh = place.ssh(&[]).spawn().expect("ssh, which .ci/run installs");
        std::thread::sleep(Duration::from_secs(1));
        writeln!(input, "words").expect("write");
        let attached = attached.wait_with_output().expect("wait");
        assert_eq!((attached.status.code(), text(&attached.stdout)), (Some(code), "past\npresent words\n".into()));
        assert!(text(&attached.stderr).contains("err\n"), "{}", text(&attached.stderr));
        let by_ssh = by_ssh.wait_with_output().expect("wait");
        // This client answers a signal with 255.
        let expected = if code < 128 { code } else { 255 };
        assert_eq!((by_ssh.status.code(), text(&by_ssh.stdout)), (Some(expected), "past\npresent words\n".into()));
        assert_eq!(sandbox.wait_within(Duration::from_secs(10)).and_then(|status| status.code()), Some(code));
    }
}

#[test]
fn one_types_and_the_others_watch() {
    let place = Place::new();
    let mut command = place.sandbox("while read -r line; do echo got $line; done", true);
    command.stdin(Stdio::piped());
    let mut sandbox = place.start(command);
    let mut own_input = sandbox.child().stdin.take().expect("a pipe");
    let attach = || {
        let mut attach = place.role("attach");
        attach.stdin(Stdio::piped());
        let mut daemon = Daemon::spawn(attach);
        let shown = gathered(daemon.child().stdout.take().expect("a pipe"));
        let told = gathered(daemon.child().stderr.take().expect("a pipe"));
        let input = daemon.child().stdin.take().expect("a pipe");
        eventually("it is attached", || so_far(&told).contains("attached"));
        std::thread::sleep(Duration::from_millis(500));
        (daemon, input, shown, told)
    };
    let (mut first, mut first_input, first_shown, first_told) = attach();
    let (_second, mut second_input, second_shown, second_told) = attach();
    assert!(so_far(&second_told).contains("somebody else is attached"), "{}", so_far(&second_told));
    assert!(!so_far(&first_told).contains("somebody else"));
    writeln!(second_input, "unheard").expect("write");
    writeln!(first_input, "one").expect("write");
    eventually("both see it", || so_far(&first_shown).contains("got one") && so_far(&second_shown).contains("got one"));
    // The container's own input is its own all the time.
    writeln!(own_input, "own").expect("write");
    eventually("both see it", || so_far(&first_shown).contains("got own") && so_far(&second_shown).contains("got own"));
    assert!(!so_far(&first_shown).contains("unheard"));
    // The end of what one types is not the end of the input, and whoever comes after may type.
    drop(first_input);
    first.signal(Signal::SIGINT);
    assert_eq!(first.wait_within(Duration::from_secs(5)).and_then(|status| status.code()), Some(0), "it detached");
    assert!(so_far(&first_told).contains("the main process runs on"), "{}", so_far(&first_told));
    let (_third, mut third_input, third_shown, third_told) = attach();
    assert!(!so_far(&third_told).contains("somebody else"), "{}", so_far(&third_told));
    writeln!(third_input, "three").expect("write");
    eventually("it is heard", || so_far(&third_shown).contains("got three"));
    drop(own_input);
    assert_eq!(sandbox.wait_within(Duration::from_secs(10)).and_then(|status| status.code()), Some(0));
}

#[test]
fn a_main_process_on_a_terminal_is_attached_to_and_left() {
    const SCRIPT: &str = "test -t 0 && test -t 1 && test -t 2 && echo all; tty; stty size; trap 'stty size' WINCH; \
                          trap 'echo interrupted' INT; while :; do read -r line && echo got:$line; \
                          [ \"$line\" = end ] && exit 9; done";
    let place = Place::new();
    let mut container = Screen::of(&place.sandbox(SCRIPT, true));
    eventually("the door is there", || place.door().exists());
    container.expect("all");
    container.expect("33 111");
    container.press("here\r");
    container.expect("got:here");
    container.press("\x03");
    container.expect("interrupted");
    // Somebody else attaches, with a terminal of another size, sees what was, types, and leaves.
    let attach = place.role("attach");
    let mut visitor = Screen::of(&attach);
    visitor.expect("Ctrl-P Ctrl-Q");
    visitor.expect("got:here");
    visitor.press("there\r");
    visitor.expect("got:there");
    container.expect("got:there");
    container.forget();
    // One Ctrl-P is a key as others are.
    visitor.press("\x16\x10x\r");
    visitor.expect("got:\x10x");
    let larger = Winsize { ws_row: 44, ws_col: 122, ws_xpixel: 0, ws_ypixel: 0 };
    set_size(&visitor, &larger);
    visitor.expect("44 122");
    visitor.press("\x10");
    std::thread::sleep(Duration::from_millis(50));
    visitor.press("\x11");
    visitor.expect("detached");
    assert_eq!(visitor.end(), Some(0));
    // The container's terminal has its own size again.
    container.expect("33 111");
    // By ssh -t too; this one stays to the end.
    let mut by_ssh = Screen::of(&place.ssh(&["-tt"]));
    by_ssh.expect("got:there");
    by_ssh.press("end\r");
    by_ssh.expect("got:end");
    assert_eq!(by_ssh.end(), Some(9));
    assert_eq!(container.end(), Some(9));
}

/// Gives a screen another size, as its window's would.
fn set_size(screen: &Screen, size: &Winsize) {
    let mut stty = Command::new("stty");
    stty.args(["rows", &size.ws_row.to_string(), "cols", &size.ws_col.to_string()]);
    stty.stdin(Stdio::from(screen.own.try_clone().expect("dup")));
    assert!(stty.status().expect("stty").success());
}

#[test]
fn a_driver_may_ask_for_a_terminal_that_its_container_has_not() {
    let place = Place::new();
    let mut command = place.world.role("network,process").policy(&place.policy).build();
    command.arg("--ssh-socket-path").arg(place.door());
    let spec =
        r#"{"version":1,"command":["/bin/sh","-c","tty; stty size; read -r line; echo got:$line; exit 3"],"tty":true}"#;
    command.env("OPENSHELL_MAIN_PROCESS_SPEC", spec);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut sandbox = place.start(command);
    let shown = gathered(sandbox.child().stdout.take().expect("a pipe"));
    eventually("it has a terminal", || so_far(&shown).contains("/dev/pts/") && so_far(&shown).contains("24 80"));
    let mut attach = place.role("attach");
    let mut attach = attach.stdin(Stdio::piped()).spawn().expect("attach");
    std::thread::sleep(Duration::from_millis(500));
    attach.stdin.take().expect("a pipe").write_all(b"word\r").expect("write");
    assert_eq!(attach.wait_with_output().expect("wait").status.code(), Some(3));
    assert_eq!(sandbox.wait_within(Duration::from_secs(10)).and_then(|status| status.code()), Some(3));
    eventually("it was heard", || so_far(&shown).contains("got:word"));
}

#[test]
fn who_stops_reading_holds_nobody_up_and_is_told_what_they_missed() {
    let place = Place::new();
    let script = "while [ ! -e go ]; do sleep 0.05; done; head -c 60000000 /dev/zero | tr '\\0' x; touch said; \
                  while [ ! -e end ]; do sleep 0.05; done; echo last";
    let mut command = place.sandbox(script, true);
    command.stdout(File::create(place.at("output")).expect("a file"));
    let mut sandbox = place.start(command);
    // One that follows and takes in nothing, for a while.
    let mut stopped = place.role("logs");
    let mut stopped = stopped.arg("--follow").spawn().expect("logs");
    std::thread::sleep(Duration::from_millis(500));
    let before = resident(sandbox.pid());
    std::fs::write(place.at("go"), "").expect("go");
    eventually("the workload is not held up", || place.at("said").exists());
    let grown = resident(sandbox.pid()).saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more");
    std::fs::write(place.at("end"), "").expect("end");
    let output = {
        let mut output = stopped.stdout.take().expect("a pipe");
        let errors = gathered(stopped.stderr.take().expect("a pipe"));
        let mut all = Vec::new();
        output.read_to_end(&mut all).expect("read");
        let code = stopped.wait().expect("wait").code();
        eventually("it is told", || so_far(&errors).contains("bytes of output are missing"));
        assert_eq!(code, Some(1));
        all
    };
    assert!(output.ends_with(b"xlast\n") && output.len() < 60_000_000, "{} bytes", output.len());
    assert!(sandbox.wait_within(Duration::from_secs(10)).is_some_and(|status| status.success()));
    assert_eq!(std::fs::metadata(place.at("output")).expect("stat").len(), 60_000_005, "the container has it all");
}

/// Resident memory of a process, in bytes.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

#[test]
fn a_container_that_takes_in_nothing_holds_the_workload_back() {
    let place = Place::new();
    for reachable in [false, true] {
        let _ = std::fs::remove_file(place.at("written"));
        let script = "head -c 20000000 /dev/zero | (dd bs=1000 status=none; touch written)";
        let mut sandbox = Daemon::spawn(place.sandbox(script, reachable));
        let mut output = sandbox.child().stdout.take().expect("a pipe");
        std::thread::sleep(Duration::from_secs(1));
        assert!(!place.at("written").exists(), "it is held back");
        let mut all = Vec::new();
        output.read_to_end(&mut all).expect("read");
        assert_eq!(all.len(), 20_000_000);
        assert!(place.at("written").exists());
        assert!(sandbox.wait_within(Duration::from_secs(10)).is_some_and(|status| status.success()));
    }
}

#[test]
fn people_signal_the_workload_and_the_workload_does_not_signal_them() {
    let place = Place::new();
    let script = "trap 'echo heard' USR1; echo $$ > main; while [ ! -e session ]; do sleep 0.05; done; \
                  kill -0 $(cat session) 2> refused || echo refused >> refused; while :; do sleep 0.05; done";
    let mut sandbox = place.start(place.sandbox(script, true));
    let shown = gathered(sandbox.child().stdout.take().expect("a pipe"));
    let mut session = place.role("exec");
    session.args(["--", "sh", "-c", "echo $$ > new; mv new session; exec sleep 4720"]);
    let _session = Daemon::spawn(session);
    eventually("the workload has tried", || place.read("refused").contains("refused"));
    assert!(place.read("refused").contains("not permitted"), "{}", place.read("refused"));
    let kill = |line: &str| place.role("exec").args(["--", "sh", "-c", line]).status().expect("exec").code();
    assert_eq!(kill("kill -USR1 $(cat main)"), Some(0));
    eventually("it is heard", || so_far(&shown).contains("heard"));
    assert_eq!(kill("kill -0 $(cat session)"), Some(0), "control: the session is there, and people may");
}

/// Plays `network` on the control socket, and knocks at the access server's door: as itself, and by a child.
const COMPANION: &str = r#"
import json, os, socket, sys
control, door = sys.argv[1], '\0' + sys.argv[2]
def frame(message): return len(b := json.dumps(message).encode()).to_bytes(4, 'big') + b
def receive(s):
    head = s.recv(4, socket.MSG_WAITALL)
    return json.loads(s.recv(int.from_bytes(head, 'big'), socket.MSG_WAITALL)) if head else {'type': 'gone'}
def knock():
    s = socket.socket(socket.AF_UNIX); s.connect(door); return s.recv(999).decode().strip()
listener = socket.socket(socket.AF_UNIX); listener.bind(control); os.chmod(control, 0o660); listener.listen()
peer, _ = listener.accept()
policy = {'filesystem': {'include_workdir': True, 'read_only': ['/usr', '/lib', '/etc'], 'read_write': ['/tmp']},
          'landlock': 'BestEffort', 'process': {'user': None, 'group': None}}
while True:
    said = receive(peer)
    if said['type'] == 'hello':
        peer.sendall(frame({'type': 'state', 'version': 1, 'policy': policy, 'proxy': 'http://127.0.0.1:3128',
                            'environment': {}, 'trust': None}))
    if said['type'] == 'prepared': peer.sendall(frame({'type': 'go'}))
    if said['type'] == 'started':
        print('itself:', knock(), flush=True)
        if os.fork() == 0:
            print('child:', knock(), flush=True); os._exit(0)
        os.wait()
    if said['type'] == 'exited': peer.sendall(frame({'type': 'noted'}))
    if said['type'] == 'gone': break
"#;

#[test]
fn in_a_sidecar_pod_the_network_supervisor_may_come_in_and_the_workload_may_not() {
    use crate::pod::{PROXY_GROUP, Pod, SANDBOX};
    const KNOCK: &str = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect('\\0' + sys.argv[1]); \
                         print('workload:', s.recv(999).decode(), flush=True)\nexcept OSError as e: print('workload:', e, \
                         flush=True)\nimport time; time.sleep(30)";
    let world = World::new();
    let pod = Pod::new(&world);
    let door = format!("openshell-test-{}", std::process::id());
    let script = world.file("companion.py", COMPANION);
    // Another user than the sandbox's and not root, who may come in anyway.
    let id = PROXY_GROUP.to_string();
    let mut companion = Command::new("chown");
    companion.arg(format!("{id}:{SANDBOX}")).arg(pod.socket().parent().expect("a directory"));
    assert!(companion.status().expect("chown").success());
    let mut companion = pod.container(PROXY_GROUP, SANDBOX, "-all", "/usr/bin/python3");
    companion.arg(script).arg(pod.socket()).arg(&door).stdout(Stdio::piped());
    let mut companion = Daemon::spawn(companion);
    let knocked = gathered(companion.child().stdout.take().expect("a pipe"));
    eventually("it waits", || pod.socket().exists());
    let process = |arguments: &[&str], workload: &[&str]| {
        let mut process = pod.container(SANDBOX, SANDBOX, "-all", supervisor().to_str().expect("UTF-8"));
        process.arg("--mode=process").arg("--control-socket").arg(pod.socket()).args(arguments);
        process.args(["--fence=elsewhere", "--workdir", "/tmp", "--"]).args(workload).stdout(Stdio::piped());
        Daemon::spawn(process)
    };
    let place = format!("@{door}");
    let mut process = process(&["--ssh-socket-path", &place], &["/usr/bin/python3", "-c", KNOCK, &door]);
    let said = gathered(process.child().stdout.take().expect("a pipe"));
    // Each in a line, which may come in pieces.
    let lines = |heard: &str| heard.matches('\n').count();
    eventually("all have knocked", || lines(&so_far(&knocked)) == 2 && lines(&so_far(&said)) == 1);
    let knocked = so_far(&knocked);
    assert!(knocked.contains("itself: SSH-2.0-"), "{knocked}");
    // Neither its user nor its descent lets anybody in.
    assert!(knocked.contains("child: openshell-supervisor: not let in"), "{knocked}");
    let said = so_far(&said);
    assert!(said.contains("not permitted") || said.contains("not let in"), "{said}");
    // The control: the workload's user, from a container's entrypoint.
    let mut outside = pod.container(SANDBOX, SANDBOX, "-all", "/usr/bin/python3");
    let outside = outside.args(["-c", &KNOCK.replace("import time; time.sleep(30)", ""), &door]).output();
    let outside = outside.expect("/usr/bin/python3");
    assert!(text(&outside.stdout).contains("workload: SSH-2.0-"), "{outside:?}");
}
