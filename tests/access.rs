//! Promises 30.x: people and programs reach into a running sandbox as they are used to, and what is inside does not get
//! in by their door. The client is OpenSSH's own, and the executable's.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::world::{Daemon, ORDINARY_USER, World, eventually, supervisor};

/// A running sandbox with a door.
pub struct Sandbox {
    pub world: World,
    /// Whose the supervisor is.
    pub user: Option<u32>,
    /// Which the workload is granted.
    pub directory: tempfile::TempDir,
    /// Which it may look into.
    porch: tempfile::TempDir,
    script: String,
    supervisor: Option<Daemon>,
}

impl Sandbox {
    /// Of root, with this script as its workload.
    pub fn of(script: &str) -> Self {
        Self::started(script, None)
    }

    pub fn started(script: &str, user: Option<u32>) -> Self {
        let world = World::new();
        let [directory, porch] = ["openshell-luggage-", "openshell-door-"].map(|prefix| {
            let directory = tempfile::Builder::new().prefix(prefix).tempdir_in("/var/tmp").expect("a directory");
            std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("chmod");
            std::os::unix::fs::chown(directory.path(), user, user).expect("chown");
            directory
        });
        let mut sandbox = Self { world, user, directory, porch, script: script.to_owned(), supervisor: None };
        sandbox.start();
        sandbox
    }

    /// Starts its supervisor, the first or the next.
    pub fn start(&mut self) {
        // Whoever was told to end has the door until it has.
        if let Some(mut before) = self.supervisor.take() {
            before.wait_within(crate::world::PATIENCE).expect("the end of the one before");
        }
        // The workload sees the door, so that what keeps it out is the door.
        let policy = self.world.file(
            "door.yaml",
            format!(
                "version: 1\nfilesystem_policy: {{read_only: [{}], read_write: [{}, /tmp]}}\n",
                self.porch.path().display(),
                self.directory.path().display()
            ),
        );
        let run = self.world.run().policy(policy).arg("--ssh-socket-path").arg(self.door());
        let run = run.arg("--events").arg(self.directory.path().join("events"));
        let run = if self.user.is_some() { run.by_user() } else { run };
        let mut command = run.shell(&self.script).build();
        let told = std::fs::File::options().create(true).append(true).open(self.world.directory().join("told"));
        command.stderr(told.expect("a file"));
        self.supervisor = Some(Daemon::spawn(command));
        eventually("the door is there", || std::os::unix::net::UnixStream::connect(self.door()).is_ok());
    }

    /// The supervisor's process.
    pub fn supervisor(&self) -> &Daemon {
        self.supervisor.as_ref().expect("it has been started")
    }

    pub fn door(&self) -> PathBuf {
        self.porch.path().join("door")
    }

    /// OpenSSH's client, without anybody's configuration.
    pub fn ssh(&self) -> Command {
        self.ssh_that_says("ERROR")
    }

    /// The same, telling as much.
    fn ssh_that_says(&self, level: &str) -> Command {
        let mut ssh = Command::new("ssh");
        let proxy = format!("{} connect --ssh-socket-path {}", supervisor().display(), self.door().display());
        ssh.args(["-F", "/dev/null", "-o", &format!("ProxyCommand={proxy}"), "-o", &format!("LogLevel={level}")]);
        ssh.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]);
        ssh.stdin(Stdio::null());
        ssh
    }

    /// Runs a command line by SSH.
    pub fn runs(&self, line: &str) -> Output {
        self.ssh().args(["sandbox@box", line]).output().expect("ssh, which .ci/run installs")
    }

    /// A role of the executable that speaks to the door.
    pub fn role(&self, name: &str) -> Command {
        let mut command = Command::new(supervisor());
        command.arg(name).arg("--ssh-socket-path").arg(self.door()).stdin(Stdio::null());
        command
    }

    pub fn events(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("events")).unwrap_or_default()
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub fn expect(output: Output, code: i32, stdout: &str) {
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(code), stdout), "{}", text(&output.stderr));
}

/// Whether any process runs `sleep SECONDS`.
pub fn sleeps(seconds: &str) -> bool {
    Command::new("pgrep").args(["-fx", &format!("sleep {seconds}")]).output().expect("pgrep").status.success()
}

#[test]
fn a_command_ends_over_ssh_as_it_ends() {
    let sandbox = Sandbox::of("exec sleep 300");
    for code in [0, 1, 42, 255] {
        expect(sandbox.runs(&format!("exit {code}")), code, "");
    }
    let both = sandbox.runs("echo out; echo err >&2");
    assert_eq!(text(&both.stderr), "err\n");
    expect(both, 0, "out\n");
    // A signal is told as a signal, which this client answers with 255.
    expect(sandbox.runs("kill -9 $$"), 255, "");
    expect(sandbox.runs("no-such-command-anywhere"), 127, "");
}

#[test]
fn data_goes_in_and_out_whole_and_in_order() {
    let sandbox = Sandbox::of("exec sleep 300");
    let data: Vec<u8> = (0..8_000_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut ssh = sandbox.ssh();
    ssh.args(["sandbox@box", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = ssh.spawn().expect("ssh");
    let mut input = child.stdin.take().expect("a pipe");
    let sent = data.clone();
    let writer = std::thread::spawn(move || input.write_all(&sent).expect("write"));
    let output = child.wait_with_output().expect("wait");
    writer.join().expect("the writer");
    assert!(output.status.success() && output.stdout == data, "{} bytes of {}", output.stdout.len(), data.len());
    // The end of the input is seen, and what is written last before the end arrives.
    expect(
        sandbox.runs("cat; head -c 300000 /dev/zero | tr '\\0' x; echo end"),
        0,
        &format!("{}end\n", "x".repeat(300_000)),
    );
}

#[test]
fn what_runs_by_ssh_is_confined_exactly_like_the_workload() {
    const TELL: &str = "id; for n in net mnt pid user ipc uts; do readlink /proc/self/ns/$n; done; grep -E \
                        '^(Cap|NoNewPrivs|Seccomp)' /proc/self/status; pwd; echo $HTTPS_PROXY $HOME $PATH; ls / 2>&1";
    for user in [None, Some(ORDINARY_USER)] {
        let sandbox = Sandbox::started("exec sleep 300", user);
        let own = Sandbox::started(&format!("({TELL}) > /tmp/told; exec sleep 300"), user);
        let inside = text(&sandbox.runs(TELL).stdout);
        let workload = text(&own.runs(&format!("cat /tmp/told; ({TELL}) | cmp - /tmp/told && echo same")).stdout);
        assert!(workload.ends_with("same\n"), "{workload}");
        assert!(inside.contains("NoNewPrivs:\t1") && inside.contains("http://127.0.0.1:3128"), "{inside}");
        // The control: outside it would tell something else.
        let outside = sandbox.world.machine_program("/bin/sh").args(["-c", TELL]).output().expect("sh");
        assert!(!text(&outside.stdout).contains("NoNewPrivs:\t1"));
    }
}

#[test]
fn a_terminal_has_its_size_its_modes_and_its_keys() {
    let sandbox = Sandbox::of("exec sleep 300");
    let mut line = vec!["ssh".to_owned()];
    let ssh = sandbox.ssh();
    line.extend(ssh.get_args().map(|word| format!("'{}'", word.to_str().expect("text"))));
    let line =
        format!("stty rows 31 cols 97 -ixon; {} -t sandbox@box 'tty; stty size; stty -a; echo $TERM'", line.join(" "));
    let shown = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("TERM", "vt220")
        .stdin(Stdio::null())
        .output()
        .expect("script, of util-linux");
    let shown = text(&shown.stdout);
    for expected in ["/dev/pts/", "31 97", "-ixon", "vt220"] {
        assert!(shown.contains(expected), "{expected} in {shown}");
    }
    // Ctrl-C reaches what runs, and nothing after it runs.
    let mut ssh = sandbox.ssh();
    ssh.args(["-tt", "sandbox@box", "echo ready; sleep 4711; echo after"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = ssh.spawn().expect("ssh");
    eventually("it sleeps", || sleeps("4711"));
    child.stdin.as_mut().expect("a pipe").write_all(b"\x03").expect("write");
    let output = child.wait_with_output().expect("wait");
    assert!(!text(&output.stdout).contains("after"), "{}", text(&output.stdout));
    assert!(!sleeps("4711"));
}

#[test]
fn only_named_variables_come_in() {
    let sandbox = Sandbox::of("exec sleep 300");
    let set = "LC_WORD=yes GIT_PROTOCOL=version=2 LD_PRELOAD=/x PATH=/x HTTPS_PROXY=http://x";
    let output = sandbox
        .ssh()
        .args(["-o", &format!("SetEnv={set}"), "sandbox@box"])
        .arg("echo $LC_WORD $GIT_PROTOCOL ${LD_PRELOAD:-unset} $HTTPS_PROXY")
        .output()
        .expect("ssh");
    expect(output, 0, "yes version=2 unset http://127.0.0.1:3128\n");
}

#[test]
fn a_background_child_does_not_hold_the_end_up() {
    let sandbox = Sandbox::of("exec sleep 300");
    let started = Instant::now();
    expect(sandbox.runs("sleep 4712 & echo done"), 0, "done\n");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(sleeps("4712"), "control: it runs on");
}

#[test]
fn a_client_that_goes_takes_along_what_it_started() {
    let sandbox = Sandbox::of("exec sleep 300");
    for line in ["sleep 4713", "trap '' HUP TERM; sleep 4713; sleep 4713"] {
        let mut ssh = sandbox.ssh();
        ssh.args(["sandbox@box", line]);
        let mut client = Daemon::spawn(ssh);
        eventually("it sleeps", || sleeps("4713"));
        std::thread::sleep(Duration::from_millis(200));
        assert!(sleeps("4713"), "control: it goes on while the client is there");
        client.signal(nix::sys::signal::Signal::SIGKILL);
        client.wait_within(Duration::from_secs(5));
        eventually("it ends", || !sleeps("4713"));
    }
}

#[test]
fn many_channels_share_a_connection_and_none_waits_for_another() {
    let sandbox = Sandbox::of("exec sleep 300");
    let control = sandbox.directory.path().join("control");
    let shared = |line: &str| {
        let mut ssh = sandbox.ssh();
        ssh.arg("-S").arg(&control).args(["sandbox@box", line]);
        ssh
    };
    let mut master = sandbox.ssh();
    master.arg("-S").arg(&control).args(["-M", "-N", "sandbox@box"]);
    let _master = Daemon::spawn(master);
    eventually("the connection is shared", || control.exists());
    // One that takes in nothing of all that it is sent.
    let mut stuck = shared("exec sleep 4714");
    stuck.stdin(std::fs::File::open("/dev/zero").expect("/dev/zero"));
    let _stuck = Daemon::spawn(stuck);
    eventually("it sleeps", || sleeps("4714"));
    std::thread::sleep(Duration::from_secs(1));
    let started = Instant::now();
    let others: Vec<_> =
        (0..20).map(|number| shared(&format!("echo {number}")).stdout(Stdio::piped()).spawn().expect("ssh")).collect();
    for (number, other) in others.into_iter().enumerate() {
        expect(other.wait_with_output().expect("wait"), 0, &format!("{number}\n"));
    }
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

#[test]
fn ports_of_the_sandbox_are_reached_and_nothing_else_is() {
    const SERVE: &str = "import socket\nfor family, host in ((socket.AF_INET, '127.0.0.1'), (socket.AF_INET6, '::1')):\n  \
                         if __import__('os').fork(): continue\n  s = socket.socket(family); s.bind((host, 7001)); \
                         s.listen()\n  while True:\n    c, _ = s.accept(); d = b''\n    while (p := c.recv(999)): d += \
                         p\n    c.sendall(b'got ' + d); c.close()\n";
    let sandbox = Sandbox::of("exec sleep 300");
    let mut server = sandbox.ssh();
    server.args(["sandbox@box", &format!("python3 -c \"{SERVE}\"; sleep 300")]);
    let _server = Daemon::spawn(server);
    let ask = |destination: &str| {
        let mut ssh = sandbox.ssh_that_says("INFO");
        ssh.args(["-W", destination, "sandbox@box"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = ssh.spawn().expect("ssh");
        let _ = child.stdin.take().expect("a pipe").write_all(b"word");
        child.wait_with_output().expect("wait")
    };
    eventually("it listens", || ask("127.0.0.1:7001").status.success());
    // Each side's end is its own: the server answers only after the client's.
    for destination in ["127.0.0.1:7001", "localhost:7001", "[::1]:7001"] {
        expect(ask(destination), 0, "got word");
    }
    let unheard = ask("127.0.0.1:7002");
    assert!(text(&unheard.stderr).contains("Connection refused"), "{}", text(&unheard.stderr));
    let listener = sandbox.world.listen(std::net::Ipv4Addr::UNSPECIFIED, 7003);
    let elsewhere = ask("10.99.0.2:7003");
    let why = text(&elsewhere.stderr);
    assert!(!elsewhere.status.success() && why.contains("prohibited") && why.contains("loopback"), "{why}");
    // The control: the supervisor's machine reaches it.
    let reached = sandbox.world.in_machine(|| std::net::TcpStream::connect(("10.99.0.2", 7003)));
    assert!(reached.is_ok());
    drop(listener);
}

#[test]
fn nothing_of_the_sandbox_gets_in_by_the_door() {
    const KNOCK: &str = "import os, socket, sys, time\ndef knock():\n    s = socket.socket(socket.AF_UNIX)\n    try:\n        \
                         s.connect(sys.argv[1]); return s.recv(999).decode()\n    except OSError as e: return str(e)\n\
                         def tell(name):\n    word = knock(); open(sys.argv[2] + '.' + name, 'w').write(word)\n\
                         tell('child')\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        \
                         time.sleep(0.5); tell('orphan')\n    os._exit(0)\nos.wait(); time.sleep(300)\n";
    let sandbox = Sandbox::started("exec sleep 300", Some(ORDINARY_USER));
    let script = sandbox.directory.path().join("knock.py");
    std::fs::write(&script, KNOCK).expect("write");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    let said = sandbox.directory.path().join("said");
    let mut inside = sandbox.ssh();
    inside.arg("sandbox@box").arg(format!(
        "python3 {} {} {}",
        script.display(),
        sandbox.door().display(),
        said.display()
    ));
    let _inside = Daemon::spawn(inside);
    for name in ["child", "orphan"] {
        let path = PathBuf::from(format!("{}.{name}", said.display()));
        eventually("it has knocked", || std::fs::read_to_string(&path).is_ok_and(|word| !word.is_empty()));
        let word = std::fs::read_to_string(&path).expect("read");
        assert!(word.contains("not let in") && word.contains("started inside the sandbox"), "{name}: {word}");
    }
    eventually("it is recorded", || sandbox.events().contains("started inside the sandbox"));
    // The control: the same user from outside.
    let id = sandbox.user.expect("a user").to_string();
    let mut outside = Command::new("setpriv");
    outside.args(["--reuid", &id, "--regid", &id, "--clear-groups", "/usr/bin/python3", "-c"]);
    outside.arg("import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(999))");
    let outside = outside.arg(sandbox.door()).output().expect("setpriv");
    assert!(text(&outside.stdout).contains("SSH-2.0-"), "{outside:?}");
}

#[test]
fn without_an_ssh_client_the_executable_is_one() {
    let sandbox = Sandbox::of("exec /usr/bin/python3 -m http.server --bind 127.0.0.1 7004 --directory /usr/share/doc");
    let words = ["printf", "%s|", "a b", "it's", "$HOME", ""];
    expect(sandbox.role("exec").arg("--").args(words).output().expect("exec"), 0, "a b|it's|$HOME||");
    expect(sandbox.role("exec").args(["--", "sh", "-c", "exit 7"]).output().expect("exec"), 7, "");
    expect(sandbox.role("exec").args(["--", "sh", "-c", "kill -TERM $$"]).output().expect("exec"), 143, "");
    let mut cat = sandbox.role("exec");
    cat.args(["--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut cat = cat.spawn().expect("exec");
    cat.stdin.take().expect("a pipe").write_all(b"word").expect("write");
    expect(cat.wait_with_output().expect("wait"), 0, "word");
    expect(sandbox.role("exec").args(["-t", "--", "test", "-t", "1"]).output().expect("exec"), 0, "");
    expect(sandbox.role("exec").args(["--", "test", "-t", "1"]).output().expect("exec"), 1, "");
    // A port, of any number on this side.
    let mut forward = sandbox.role("forward");
    forward.arg("0:7004").stderr(Stdio::piped());
    let mut forward = Daemon::spawn(forward);
    let mut line = String::new();
    BufReader::new(forward.child().stderr.take().expect("a pipe")).read_line(&mut line).expect("read");
    let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).expect("an address");
    eventually("it is answered", || {
        let answer = Command::new("curl").args(["-sS", "-o", "/dev/null", "-w", "%{http_code}"]).arg(address).output();
        answer.expect("curl").stdout == b"200"
    });
    let none =
        Command::new(supervisor()).args(["exec", "--ssh-socket-path", "/var/tmp/no-such-door", "--", "true"]).output();
    let none = none.expect("exec");
    assert!(none.status.code() == Some(125) && text(&none.stderr).contains("/var/tmp/no-such-door"), "{none:?}");
}

#[test]
fn nonsense_on_the_socket_harms_nobody() {
    let sandbox = Sandbox::of("exec sleep 300");
    let knock = |bytes: &[u8]| {
        let mut stream = std::os::unix::net::UnixStream::connect(sandbox.door()).expect("connect");
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
    };
    let mut huge = b"SSH-2.0-x\r\n".to_vec();
    huge.extend(u32::MAX.to_be_bytes());
    huge.extend([0xff; 5000]);
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"SSH-1.0-x\r\n", b"", &[b'x'; 4000], &[0; 64], &huge] {
        knock(bytes);
    }
    // So many that come and say nothing hold up nobody else.
    let silent: Vec<_> =
        (0..50).map(|_| std::os::unix::net::UnixStream::connect(sandbox.door()).expect("connect")).collect();
    expect(sandbox.runs("echo still here"), 0, "still here\n");
    drop(silent);
}

#[test]
fn who_came_in_and_for_what_is_recorded() {
    let sandbox = Sandbox::of("exec sleep 300");
    sandbox.runs("/bin/echo secret-argument");
    let _ = sandbox.ssh().args(["-W", "10.99.0.2:80", "sandbox@box"]).output();
    for part in ["\"class_uid\":4007", "SSH Activity", "ssh /bin/echo", "10.99.0.2", "only the sandbox's own loopback"]
    {
        eventually(part, || sandbox.events().contains(part));
    }
    assert!(!sandbox.events().contains("secret-argument"));
}

/// A directory of this side's, beside the sandbox's door: what there is to send, and where to put what comes.
pub fn luggage(sandbox: &Sandbox) -> (PathBuf, PathBuf) {
    let base = sandbox.world.directory();
    let (here, back) = (base.join("luggage"), base.join("back"));
    std::fs::create_dir_all(here.join("inner")).expect("a directory");
    std::fs::create_dir_all(&back).expect("a directory");
    std::fs::write(here.join("program"), "#!/bin/sh\necho works\n").expect("a file");
    std::fs::set_permissions(here.join("program"), std::fs::Permissions::from_mode(0o755)).expect("chmod");
    std::fs::write(here.join("inner/large"), "0123456789abcdef".repeat(200_000)).expect("a file");
    std::os::unix::fs::symlink("inner/large", here.join("link")).expect("a link");
    (here, back)
}

/// Whether two trees are the same, links and modes among it.
#[track_caller]
pub fn assert_same(one: &std::path::Path, other: &std::path::Path) {
    let list = |root: &std::path::Path| {
        let listed = Command::new("find").args([".", "-printf", "%p %y %m %s %l\\n"]).current_dir(root).output();
        let mut lines: Vec<String> = text(&listed.expect("find").stdout).lines().map(str::to_owned).collect();
        // Sizes of directories are the file system's affair.
        lines.iter_mut().filter(|line| line.contains(" d ")).for_each(|line| {
            line.truncate(line.rfind(char::is_numeric).and_then(|at| line[..at].rfind(' ')).unwrap_or(line.len()));
        });
        lines.sort();
        lines
    };
    assert_eq!(list(one), list(other));
    let differ = Command::new("diff").arg("-r").arg(one).arg(other).output().expect("diff");
    assert!(differ.status.success(), "{}", text(&differ.stdout));
}

/// The options that stand for `ssh` of another client of OpenSSH's.
pub fn options(sandbox: &Sandbox) -> Vec<String> {
    let ssh = sandbox.ssh();
    let arguments: Vec<String> = ssh.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
    arguments
}

#[test]
fn files_go_in_and_out_by_the_clients_that_people_have() {
    let sandbox = Sandbox::of("exec sleep 300");
    let (here, back) = luggage(&sandbox);
    let granted = sandbox.directory.path().join("granted");
    std::fs::create_dir(&granted).expect("a directory");
    let (uid, gid) = text(&sandbox.runs("id -u; id -g").stdout)
        .lines()
        .map(|id| id.parse::<u32>().expect("an id"))
        .fold((None, None), |(first, _), id| if first.is_none() { (Some(id), None) } else { (first, Some(id)) });
    std::os::unix::fs::chown(&granted, uid, gid).expect("chown");
    for (index, program) in [("sftp", ""), ("scp", "-s"), ("scp", "-O")].into_iter().enumerate() {
        let place = granted.join(index.to_string());
        let came = back.join(index.to_string());
        let carry = |from: &str, to: &str| {
            let mut client = Command::new(program.0);
            client.args(options(&sandbox)).stdin(Stdio::null());
            client.args(Some(program.1).filter(|flag| !flag.is_empty())).args(["-r", "-p", "-q"]).args([from, to]);
            client.output().expect("OpenSSH's clients, which .ci/run installs")
        };
        if program.0 == "sftp" {
            let batch = sandbox.world.file(
                "batch",
                format!(
                    "put -pR {} {}\nget -pR {} {}\n",
                    here.display(),
                    place.display(),
                    place.display(),
                    came.display()
                ),
            );
            let mut sftp = Command::new("sftp");
            sftp.args(options(&sandbox)).arg("-b").arg(batch).arg("sandbox@box").stdin(Stdio::null());
            let done = sftp.output().expect("sftp");
            assert!(done.status.success(), "{}", text(&done.stderr));
        } else {
            let there = format!("sandbox@box:{}", place.display());
            for (from, to) in [(here.to_string_lossy(), there.clone().into()), (there.into(), came.to_string_lossy())] {
                let done = carry(&from, &to);
                assert!(done.status.success(), "{program:?} {from} {to}: {}", text(&done.stderr));
            }
        }
        // scp follows links, and what is behind them arrived; sftp leaves them out.
        if program.0 == "scp" {
            assert_eq!(
                std::fs::read(came.join("link")).expect("a copy"),
                std::fs::read(here.join("link")).expect("it")
            );
        }
        let large = |root: &std::path::Path| std::fs::read(root.join("inner/large")).expect("a file");
        assert_eq!(large(&came), large(&here));
        assert_eq!(
            std::fs::read(came.join("program")).expect("a copy"),
            std::fs::read(here.join("program")).expect("it")
        );
        expect(sandbox.runs(&format!("{}/program", place.display())), 0, "works\n");
    }
    // Every path is judged as the workload's: the controls are above.
    let outside = Command::new("scp")
        .args(options(&sandbox))
        .arg(here.join("program"))
        .arg("sandbox@box:/etc/openshell-was-here")
        .output()
        .expect("scp");
    assert!(!outside.status.success() && !std::path::Path::new("/etc/openshell-was-here").exists(), "{outside:?}");
}

#[test]
fn upload_and_download_carry_whole_trees_and_need_nothing_of_the_image() {
    let sandbox = Sandbox::of("exec sleep 300");
    let (here, back) = luggage(&sandbox);
    let up = sandbox.role("upload").args(["--into", "/tmp/openshell-uploaded"]).arg(&here).output().expect("upload");
    expect(up, 0, "");
    expect(sandbox.runs("/tmp/openshell-uploaded/luggage/program"), 0, "works\n");
    let down = sandbox.role("download").arg("--into").arg(&back).arg("/tmp/openshell-uploaded/luggage").output();
    expect(down.expect("download"), 0, "");
    assert_same(&here, &back.join("luggage"));
    // What the workload may not do, nobody does by this way: the control is above.
    let refused =
        sandbox.role("upload").args(["--into", "/etc/openshell-uploaded"]).arg(&here).output().expect("upload");
    assert!(
        refused.status.code() == Some(1) && text(&refused.stderr).contains("/etc/openshell-uploaded"),
        "{refused:?}"
    );
    let missing = sandbox.role("download").arg("--into").arg(&back).arg("/tmp/not-there").output().expect("download");
    assert!(missing.status.code() == Some(1) && text(&missing.stderr).contains("not-there"), "{missing:?}");
    let events = sandbox.events();
    assert!(events.contains("openshell-upload /tmp/openshell-uploaded"), "{events}");
    expect(sandbox.runs("rm -r /tmp/openshell-uploaded"), 0, "");
}
