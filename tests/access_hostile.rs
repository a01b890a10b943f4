//! Promises 30.6x: what a workload, a client that is let in, or whoever has put themselves in the door's place can do to
//! people and to the sandbox.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::access::{Sandbox, expect, text};
use crate::access_clients::{granted, python};
use crate::world::{Daemon, ORDINARY_USER, Outcome, World, eventually, supervisor};

/// A directory beside others' in `/var/tmp`, of that user and with that mode.
fn place(user: u32, mode: u32) -> tempfile::TempDir {
    let directory = tempfile::Builder::new().prefix("openshell-door-").tempdir_in("/var/tmp").expect("a directory");
    std::os::unix::fs::chown(directory.path(), Some(user), Some(user)).expect("chown");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(mode)).expect("chmod");
    directory
}

/// A connection by that door, where it is opened.
fn greeted(door: &Path) -> Option<UnixStream> {
    let mut stream = UnixStream::connect(door).ok()?;
    stream.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
    let mut greeting = [0; 8];
    stream.read_exact(&mut greeting).ok()?;
    (&greeting == b"SSH-2.0-").then_some(stream)
}

#[test]
fn a_door_that_the_workload_could_put_its_own_in_place_of_is_refused() {
    const REPLACE: &str =
        "import os, socket, sys; os.unlink(sys.argv[1]); socket.socket(socket.AF_UNIX).bind(sys.argv[1])";
    let world = World::new();
    let run = |user: bool, granted: &Path, door: Option<&str>, words: &[&str]| -> Outcome {
        let text = format!("version: 1\nfilesystem_policy: {{read_write: [{}, /dev/null]}}\n", granted.display());
        let run = world.run().policy(world.file("granted.yaml", text));
        let run = door.into_iter().fold(run, |run, door| run.arg("--ssh-socket-path").arg(door));
        let run = if user { run.by_user() } else { run };
        run.command(words.iter().copied()).output()
    };
    // Of the same user in what is granted; of root, where anybody may write; and whatever lies below either.
    let (own, everybodys) = (place(ORDINARY_USER, 0o755), place(0, 0o777));
    for (user, directory) in [(true, own.path()), (false, everybodys.path())] {
        for door in [directory.join("door"), directory.join("below/door")] {
            let refused = run(user, directory, door.to_str(), &["true"]).expect(125);
            for part in ["--ssh-socket-path", "could put its own in its place", &*directory.to_string_lossy(), "@NAME"]
            {
                assert!(refused.stderr.contains(part), "{part}: {}", refused.stderr);
            }
            assert!(!door.exists(), "{}", door.display());
        }
        // The control: it could.
        let socket = directory.join("socket");
        drop(std::os::unix::net::UnixListener::bind(&socket).expect("bind"));
        std::os::unix::fs::chown(&socket, Some(ORDINARY_USER), None).expect("chown");
        run(user, directory, None, &["/usr/bin/python3", "-c", REPLACE, &socket.to_string_lossy()]).expect(0);
    }
    // Where it could not, there is a door: not granted, not writable by its user, or a name.
    let (apart, roots) = (place(ORDINARY_USER, 0o755), place(0, 0o755));
    let name = format!("@openshell-test-{}", std::process::id());
    for (user, granted, door) in [
        (true, own.path(), apart.path().join("door")),
        (true, own.path(), PathBuf::from(&name)),
        (false, roots.path(), roots.path().join("door")),
    ] {
        run(user, granted, door.to_str(), &["true"]).expect(0);
    }
}

/// Somebody else in the door's place: [`python`]'s `ssh_hostile.py`.
struct Hostile {
    directory: tempfile::TempDir,
    _server: Daemon,
}

impl Hostile {
    fn new() -> Self {
        let directory = place(0, 0o755);
        let key = directory.path().join("key");
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&key).stdin(Stdio::null());
        assert!(keygen.status().expect("ssh-keygen, which .ci/run installs").success());
        let mut server = python("ssh_hostile.py");
        server.arg(directory.path().join("door")).arg(key);
        let server = Daemon::spawn(server);
        eventually("it listens", || UnixStream::connect(directory.path().join("door")).is_ok());
        Self { directory, _server: server }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A role that comes to it, with this umask.
    fn role(&self, umask: &str, name: &str, words: &[&str]) -> Output {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(supervisor()).arg(name);
        command.arg("--ssh-socket-path").arg(self.at("door")).args(words);
        command.current_dir(self.at("home")).stdin(Stdio::null()).output().expect("a role")
    }

    /// A home with what its owner would not like to lose.
    fn furnish(&self) {
        let _ = std::fs::remove_dir_all(self.at("home"));
        std::fs::create_dir(self.at("home")).expect("a directory");
        std::fs::write(self.at("home/.bashrc"), "mine").expect("a file");
        std::fs::write(self.at("home/private"), "secret").expect("a file");
    }
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
}

#[test]
fn a_download_takes_what_was_asked_for_and_nothing_else() {
    let hostile = Hostile::new();
    hostile.furnish();
    let output = hostile.role("022", "download", &["work/result"]);
    let told = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    let expected = [".bashrc", "private", "result"].map(str::to_owned);
    assert_eq!(names(&hostile.at("home")), BTreeSet::from(expected), "{told}");
    assert_eq!(std::fs::read_to_string(hostile.at("home/.bashrc")).expect("a file"), "mine");
    // What was asked for is there, and no file of this side's has become a part of it.
    assert_eq!(names(&hostile.at("home/result")), BTreeSet::from(["wanted".to_owned()]), "{told}");
    for name in [".bashrc", "Makefile", "result2/x", ".git/", ".git/hooks"] {
        assert!(told.contains(&format!("{name}: refused: it was not asked for")), "{name}: {told}");
    }
    assert!(told.contains("result/taken: refused: it is a link to what was not asked for"), "{told}");
    // The control: who asks for everything gets it, by the same archive.
    hostile.furnish();
    let output = hostile.role("022", "download", &["."]);
    let told = text(&output.stderr);
    assert_eq!(std::fs::read_to_string(hostile.at("home/.bashrc")).expect("a file"), "evil", "{told}");
    assert!(hostile.at("home/Makefile").exists() && !told.contains("not asked for"), "{told}");
}

#[test]
fn what_is_downloaded_has_the_modes_that_the_umask_leaves() {
    let hostile = Hostile::new();
    let mode = |name: &str| {
        let status = std::fs::metadata(hostile.at("home/result").join(name)).expect("a file");
        status.permissions().mode() & 0o7777
    };
    // Sent are 6777; the control is that each umask has its own.
    for (umask, left) in [("077", 0o700), ("022", 0o755), ("000", 0o777)] {
        hostile.furnish();
        hostile.role(umask, "download", &["result"]);
        assert_eq!((mode("wanted"), mode("")), (left, left), "{umask}");
    }
    // What goes in keeps to the umask of the sandbox.
    let sandbox = Sandbox::of("exec sleep 300");
    let (to, from) = (granted(&sandbox), sandbox.world.file("open", "word"));
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o6777)).expect("chmod");
    let own = text(&sandbox.runs("umask").stdout);
    let own = u32::from_str_radix(own.trim(), 8).expect("a umask");
    expect(sandbox.role("upload").arg("--into").arg(&to).arg(&from).output().expect("upload"), 0, "");
    let mode = std::fs::metadata(to.join("open")).expect("a file").permissions().mode() & 0o7777;
    assert_eq!(mode, 0o777 & !own, "{own:o}");
}

#[test]
fn what_a_server_says_steers_no_terminal() {
    let hostile = Hostile::new();
    hostile.furnish();
    let harmless = |what: &str, told: &str| {
        assert!(!told.contains('\x1b') && !told.contains('\u{202e}'), "{what}: {told:?}");
        assert!(told.contains("\\u{1b}]0;owned\\u{7}\\u{202e}"), "{what}: {told:?}");
    };
    for (role, words) in [("download", ["result"]), ("upload", ["private"])] {
        let told = text(&hostile.role("022", role, &words).stderr);
        harmless(role, &told);
        assert!(told.contains("a word\n") && told.contains("and half a line\n"), "{told:?}");
    }
    // The control: a program's own output is that, as it is.
    let output = hostile.role("022", "exec", &["--", "any"]);
    assert!(text(&output.stdout).contains("said \x1b]0;owned\x07"), "{output:?}");
    // Why a port or a session is refused.
    let mut forward = Command::new(supervisor());
    forward.arg("forward").arg("--ssh-socket-path").arg(hostile.at("door")).arg("0:7001");
    let mut forward = Daemon::spawn({
        forward.stdin(Stdio::null()).stderr(Stdio::piped());
        forward
    });
    let mut said = std::io::BufReader::new(forward.child().stderr.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("read");
    let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).expect("an address");
    drop(std::net::TcpStream::connect(address).expect("connect"));
    line.clear();
    std::io::BufRead::read_line(&mut said, &mut line).expect("read");
    harmless("forward", &line);
    std::fs::write(hostile.at("door.refuses"), "").expect("a file");
    for (role, words) in [("download", &["result"][..]), ("upload", &["private"]), ("exec", &["--", "any"])] {
        let output = hostile.role("022", role, words);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        harmless(role, &text(&output.stderr));
    }
}

#[test]
fn a_door_that_sees_the_processes_of_another_namespace_lets_nobody_in_whom_it_cannot_tell() {
    const KNOCK: &str =
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nprint(s.recv(999))";
    let world = World::new();
    let door_of = |directory: &tempfile::TempDir| directory.path().join("door");
    for (unshare, reason) in [
        (&["--pid", "--fork", "--kill-child"][..], "another process namespace's"),
        // The control: with a /proc of its own it tells who it is.
        (&["--pid", "--fork", "--kill-child", "--mount-proc"], "was started inside the sandbox"),
    ] {
        // The workload is of the same user, and whether it may come in is for /proc to say.
        let (directory, said) = (place(ORDINARY_USER, 0o755), place(ORDINARY_USER, 0o755));
        let policy = format!(
            "version: 1\nfilesystem_policy: {{read_only: [{}], read_write: [{}, /dev/null]}}\n",
            directory.path().display(),
            said.path().display()
        );
        let run = world.run().by_user().policy(world.file("said.yaml", policy));
        let run = run.arg("--ssh-socket-path").arg(door_of(&directory));
        let script = format!(
            "cd {}; sleep 1; /usr/bin/python3 -c '{KNOCK}' {} > new 2>&1; mv new said; exec sleep 300",
            said.path().display(),
            door_of(&directory).display()
        );
        let run = run.shell(&script).build();
        let mut command = Command::new("unshare");
        command.args(unshare).arg(run.get_program()).args(run.get_args()).current_dir("/").stdin(Stdio::null());
        let _supervisor = Daemon::spawn(command);
        // Who is outside of its namespace is not the workload's, and is let in.
        eventually("people are let in", || greeted(&door_of(&directory)).is_some());
        eventually("it has knocked", || said.path().join("said").exists());
        let told = std::fs::read_to_string(said.path().join("said")).expect("read");
        assert!(told.contains("not let in") && told.contains(reason), "{unshare:?}: {told}");
    }
}

#[test]
fn where_descriptors_run_out_one_program_fails_and_the_door_stays_open() {
    const LIMIT: &str = "--nofile=96:96";
    let world = World::new();
    let (directory, said) = (place(0, 0o755), place(0, 0o777));
    let policy = format!("version: 1\nfilesystem_policy: {{read_write: [{}, /dev/null]}}\n", said.path().display());
    let door = directory.path().join("door");
    let run = world.run().policy(world.file("few.yaml", policy)).arg("--ssh-socket-path").arg(&door);
    let run = run.command(["sleep", "300"]).build();
    let mut command = Command::new("prlimit");
    command.arg(LIMIT).arg(run.get_program()).args(run.get_args()).current_dir("/").stdin(Stdio::null());
    let _supervisor = Daemon::spawn(command);
    eventually("the door is there", || greeted(&door).is_some());
    let control = directory.path().join("control");
    let ssh = |words: &[&str]| {
        let mut ssh = Command::new("ssh");
        let proxy = format!("ProxyCommand={} connect --ssh-socket-path {}", supervisor().display(), door.display());
        ssh.args(["-F", "/dev/null", "-o", &proxy, "-o", "LogLevel=ERROR", "-o", "StrictHostKeyChecking=no"]);
        ssh.args(["-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-S"]).arg(&control).args(words);
        ssh.stdin(Stdio::null());
        ssh
    };
    let _master = Daemon::spawn(ssh(&["-M", "-N", "sandbox@box"]));
    eventually("a connection is there", || control.exists());
    let runs = || ssh(&["sandbox@box", "echo served"]).output().expect("ssh, which .ci/run installs");
    expect(runs(), 0, "served\n");
    let mut lost = 0;
    for left in 0..6 {
        // Connections to the last descriptor, and so many fewer.
        let mut others: Vec<UnixStream> = std::iter::from_fn(|| greeted(&door)).take(128).collect();
        assert!(others.len() > 10 && others.len() < 96, "{}", others.len());
        others.truncate(others.len() - left);
        std::thread::sleep(Duration::from_millis(400));
        let output = runs();
        let told = text(&output.stderr);
        assert!(
            output.status.success() || told.contains("openshell-supervisor: starting a program: "),
            "{left}: {told}"
        );
        lost += usize::from(told.contains("descriptors were lost"));
        drop(others);
        // The control, and the promise: with descriptors to be had it is as before, by this connection and a new one.
        eventually("there are some again", || greeted(&door).is_some());
        expect(runs(), 0, "served\n");
    }
    assert!(lost > 0, "they ran out just while a program was handed over");
    let mut exec = Command::new(supervisor());
    exec.arg("exec").arg("--ssh-socket-path").arg(&door).args(["--", "echo", "new"]).stdin(Stdio::null());
    expect(exec.output().expect("exec"), 0, "new\n");
    // More programs than there are descriptors for are refused by number, and leave some for the door.
    let mut many: Vec<Daemon> = (0..16)
        .map(|_| {
            let mut many = ssh(&["sandbox@box", "exec sleep 4741"]);
            many.stderr(Stdio::piped());
            Daemon::spawn(many)
        })
        .collect();
    std::thread::sleep(Duration::from_secs(3));
    let mut refused = String::new();
    for one in &mut many {
        if one.wait_within(Duration::ZERO).is_some() {
            let _ = one.child().stderr.take().expect("a pipe").read_to_string(&mut refused);
        }
    }
    assert!(refused.contains("12 programs have been started beside the workload"), "{refused}");
}

#[test]
fn a_client_that_is_refused_in_a_loop_fills_no_log() {
    let sandbox = Sandbox::of("exec sleep 300");
    let mut forward = sandbox.role("forward");
    forward.arg("0:7009").stderr(Stdio::piped());
    let mut forward = Daemon::spawn(forward);
    let mut said = std::io::BufReader::new(forward.child().stderr.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).expect("read");
    let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).expect("an address").to_owned();
    // One after the other: each is refused, since nobody listens there.
    let mut refused = || {
        let mut stream = std::net::TcpStream::connect(&address).expect("connect");
        let _ = stream.write_all(b"word");
        let _ = stream.read(&mut [0; 8]);
        line.clear();
        std::io::BufRead::read_line(&mut said, &mut line).expect("read");
        assert!(line.contains("refused"), "{line}");
    };
    let recorded = || -> Vec<serde_json::Value> {
        let events = sandbox.events();
        let lines = events.lines().filter(|line| line.contains("localhost") && line.contains("7009"));
        lines.map(|line| serde_json::from_str(line).expect("an event")).collect()
    };
    (0..5).for_each(|_| refused());
    // The control: a few are recorded each.
    eventually("they are recorded", || recorded().len() == 5);
    (0..95).for_each(|_| refused());
    std::thread::sleep(Duration::from_secs(11));
    assert_eq!(recorded().len(), 20);
    refused();
    eventually("the others are told", || recorded().len() == 21);
    let last = recorded().pop().expect("an event");
    assert_eq!(last["count"], 81, "{last}");
}
