//! Promises 30.4x: whoever means harm at the door, from inside and from outside, and what is killed in the middle of
//! something.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::access::{Sandbox, expect, sleeps, text};
use crate::access_clients::{granted, python};
use crate::world::{Daemon, ORDINARY_USER, World, eventually, supervisor};

/// Attacks of `tests/clients/ssh_attack.py`, and by how much the server's memory may have grown during them, in MiB: so
/// much is granted to whoever is in (64 windows of a MiB), and else only what each connection costs.
const ATTACKS: [(&str, u64); 9] = [
    ("half_open", 24),
    ("garbage", 8),
    ("slow_reader", 24),
    ("stuck", 64 + 40),
    ("new_keys", 8),
    ("openings", 8),
    ("requests", 24),
    ("questions", 8),
    ("breaches", 8),
];

/// Resident memory of a process in MiB.
fn resident(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") / 1024
}

#[test]
fn attacks_on_the_server_end_with_their_connection_and_cost_no_memory() {
    let sandbox = Sandbox::of("exec sleep 300");
    // A session that is there all the time.
    let mut bystander = sandbox.ssh();
    bystander.args(["sandbox@box", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bystander = bystander.spawn().expect("ssh");
    expect(sandbox.runs("true"), 0, "");
    for (attack, more) in ATTACKS {
        let before = resident(sandbox.supervisor().pid());
        let mut attacker = python("ssh_attack.py");
        attacker.arg(sandbox.door()).arg(attack).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut attacker = attacker.spawn().expect("python3, which .ci/run installs");
        let mut said = String::new();
        let mut lines = std::io::BufReader::new(attacker.stdout.take().expect("a pipe"));
        std::io::BufRead::read_line(&mut lines, &mut said).expect("read");
        let grown = resident(sandbox.supervisor().pid()).saturating_sub(before);
        // While it goes on, somebody else is served.
        let served = sandbox.runs("echo served");
        drop(attacker.stdin.take());
        let ended = attacker.wait_with_output().expect("wait");
        assert_eq!(said, "done\n", "{attack}: {}", text(&ended.stderr));
        assert!(grown <= more, "{attack}: {grown} MiB more");
        expect(served, 0, "served\n");
    }
    std::io::Write::write_all(&mut bystander.stdin.take().expect("a pipe"), b"word").expect("write");
    expect(bystander.wait_with_output().expect("wait"), 0, "word");
    // What attacks have left running is ended with them.
    eventually("programs end", || {
        !Command::new("pgrep").args(["-fx", "cat /dev/zero"]).status().expect("pgrep").success()
    });
}

/// Knocks by every way that a program has; prints what each came to.
const ROUTES: &str = r#"
import ctypes, glob, os, socket, sys, threading, time
door, said = sys.argv[1:]
out = open(said, 'a', buffering=1)
def knock(address):
    s = socket.socket(socket.AF_UNIX); s.settimeout(20)
    try:
        s.connect(address); return s.recv(999).decode().strip() or 'closed'
    except OSError as error: return str(error)
def tell(name, address=door): out.write(f'{name}: {knock(address)}\n')
def forked(act):
    if (pid := os.fork()) == 0:
        try: act()
        finally: os._exit(0)
    os.waitpid(pid, 0)
def orphan(act):
    # Twice forked, and the one in between has ended before.
    read, write = os.pipe()
    def between():
        if os.fork() == 0:
            os.setsid(); os.read(read, 1); time.sleep(0.3); act(); os._exit(0)
    forked(between); os.write(write, b'x'); time.sleep(1.5)
def deep(count):
    def below():
        if count: deep(count - 1)
        else: tell('deep')
    forked(below)
def apart():
    libc = ctypes.CDLL(None)
    # CLONE_NEWUSER | CLONE_NEWPID
    if libc.unshare(0x30000000): return out.write('apart: cannot be\n')
    forked(lambda: tell('apart'))
tell('own')
forked(lambda: tell('child'))
forked(lambda: (os.setsid(), tell('session')))
orphan(lambda: tell('orphan'))
thread = threading.Thread(target=lambda: tell('thread')); thread.start(); thread.join()
forked(apart)
for process in glob.glob('/proc/[0-9]*'):
    tell('root of ' + process, process + '/root' + door)
    tell('directory of ' + process, process + '/cwd' + door)
    try: descriptors = os.listdir(process + '/fd')
    except OSError: descriptors = []
    for fd in descriptors:
        path = f'{process}/fd/{fd}'
        try:
            if os.readlink(path).startswith('socket:'): tell('socket ' + path, path)
            if os.path.isdir(path): tell('through ' + path, path + '/' + os.path.relpath(door, '/'))
        except OSError: pass
os.chdir(os.path.dirname(door)); tell('relative', os.path.basename(door))
os.symlink(door, said + '.link'); tell('link', said + '.link')
try: os.link(door, said + '.hard'); tell('hard link', said + '.hard')
except OSError: pass
sys.setrecursionlimit(10000)
deep(400)
out.write('end\n')
"#;

#[test]
fn the_workload_gets_in_by_no_route() {
    let sandbox = Sandbox::started("exec sleep 300", Some(ORDINARY_USER));
    let directory = granted(&sandbox);
    let script = directory.join("routes.py");
    std::fs::write(&script, ROUTES).expect("write");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).expect("chmod");
    let said = directory.join("said");
    let line = format!("python3 {} {} {}", script.display(), sandbox.door().display(), said.display());
    let mut inside = sandbox.ssh();
    let output = inside.args(["sandbox@box", &line]).stderr(Stdio::piped()).output().expect("ssh");
    let told = std::fs::read_to_string(&said).unwrap_or_default();
    assert!(told.ends_with("end\n"), "{told}{}", text(&output.stderr));
    assert!(!told.contains("SSH-2.0-"), "{told}");
    for route in ["own", "child", "session", "orphan", "thread", "deep", "root of /proc/", "relative", "link"] {
        let refused = told.lines().any(|line| line.starts_with(route) && line.contains("not let in"));
        assert!(refused, "{route}: {told}");
    }
    // The control: the same user from outside, and by the same program.
    let id = ORDINARY_USER.to_string();
    let mut outside = Command::new("setpriv");
    outside.args(["--reuid", &id, "--regid", &id, "--clear-groups", "/usr/bin/python3"]).arg(&script);
    let outside_said = directory.join("outside");
    let _ = outside.arg(sandbox.door()).arg(&outside_said).output().expect("setpriv");
    let told = std::fs::read_to_string(&outside_said).expect("read");
    assert!(told.starts_with("own: SSH-2.0-"), "{told}");
    // Somebody with more ancestors than anybody has is not let in either.
    assert!(told.contains("more than 256 ancestors"), "{told}");
}

#[test]
fn an_abstract_door_is_no_way_in_either() {
    let world = World::new();
    let name = format!("openshell-test-{}", std::process::id());
    let directory = tempfile::Builder::new().prefix("openshell-door-").tempdir_in("/var/tmp").expect("a directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
    let path = directory.path().display();
    let policy = world.file("door.yaml", format!("version: 1\nfilesystem_policy: {{read_write: [{path}, /tmp]}}\n"));
    let script = directory.path().join("knock.py");
    let knock = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect('\\0' + sys.argv[1]); \
                 print(s.recv(99))\nexcept OSError as e: print(e)\n";
    std::fs::write(&script, knock).expect("write");
    let run = world.run().by_user().policy(policy).arg("--ssh-socket-path").arg(format!("@{name}"));
    let workload = format!(
        "sleep 1; python3 {0} {name} > {path}/said; mv {path}/said {path}/done; exec sleep 300",
        script.display()
    );
    let _supervisor = run.shell(&workload).spawn();
    let done = directory.path().join("done");
    eventually("it has knocked", || done.exists());
    let said = std::fs::read_to_string(&done).expect("read");
    assert!(said.contains("not let in") || said.contains("Permission") || said.contains("refused"), "{said}");
    assert!(!said.contains("SSH-2.0-"), "{said}");
    // The control: from the machine, by the executable's own client too.
    let mut outside = world.machine_program("/usr/bin/python3");
    let outside = outside.arg(&script).arg(&name).output().expect("python3");
    assert!(text(&outside.stdout).contains("SSH-2.0-"), "{outside:?}");
    let mut exec = world.machine_program(supervisor());
    exec.arg("exec").arg("--ssh-socket-path").arg(format!("@{name}")).args(["--", "echo", "in"]).stdin(Stdio::null());
    expect(exec.output().expect("exec"), 0, "in\n");
}

/// Starts a program for whom there is no Landlock: its three system calls, whose numbers are the same on every machine, do
/// not exist, as on a kernel that was built without.
const WITHOUT_LANDLOCK: &str = r#"
import ctypes, errno, os, struct, sys
# The number; 447 and above pass, 444 and above do not, below they pass.
code = [(0x20, 0, 0, 0), (0x35, 1, 0, 447), (0x35, 1, 0, 444), (6, 0, 0, 0x7fff0000), (6, 0, 0, 0x50000 | errno.ENOSYS)]
code = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
class Program(ctypes.Structure): _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
program = Program(5, ctypes.cast(code, ctypes.c_void_p))
libc = ctypes.CDLL(None, use_errno=True)
# PR_SET_NO_NEW_PRIVS; PR_SET_SECCOMP, SECCOMP_MODE_FILTER
if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.byref(program), 0, 0): sys.exit(os.strerror(ctypes.get_errno()))
os.execvp(sys.argv[1], sys.argv[1:])
"#;

/// Knocks at an abstract door by a child and by an orphan, and writes what each was told.
const KNOCKS: &str = r#"
import os, socket, sys, time
name, said = sys.argv[1:]
def tell(who):
    s = socket.socket(socket.AF_UNIX); s.settimeout(20)
    try: s.connect('\0' + name); word = s.recv(999).decode()
    except OSError as error: word = str(error)
    with open(said + '.' + who + '.part', 'w') as file: file.write(word)
    os.rename(said + '.' + who + '.part', said + '.' + who)
time.sleep(1)
tell('child')
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(0.5); tell('orphan')
    os._exit(0)
os.wait(); time.sleep(300)
"#;

#[test]
fn without_landlock_the_door_alone_keeps_the_workload_out() {
    let id = ORDINARY_USER.to_string();
    for landlock in [true, false] {
        let world = World::new();
        let directory = tempfile::Builder::new().prefix("openshell-door-").tempdir_in("/var/tmp").expect("a directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).expect("chmod");
        let path = directory.path();
        let file = |name: &str, content: String| {
            std::fs::write(path.join(name), content).expect("a file");
            path.join(name)
        };
        let (wrapper, knocks) = (file("wrapper.py", WITHOUT_LANDLOCK.into()), file("knocks.py", KNOCKS.into()));
        let policy = world
            .file("door.yaml", format!("version: 1\nfilesystem_policy: {{read_write: [{}, /tmp]}}\n", path.display()));
        let name = format!("openshell-test-{}-{landlock}", std::process::id());
        let said = path.join("said");
        // In a pod of its own, where the workload shares the network with its supervisor, and sees the name.
        let mut command = world.machine_program("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
        if !landlock {
            command.arg("/usr/bin/python3").arg(&wrapper);
        }
        command.arg(supervisor()).args(["process", "--remote-proxy=http://127.0.0.1:9", "--fence=elsewhere"]);
        command.args(["--ssh-socket-path", &format!("@{name}"), "--workdir"]).arg(path).arg("--policy").arg(policy);
        command.args(["--", "/usr/bin/python3"]).arg(&knocks).arg(&name).arg(&said).stdin(Stdio::null());
        let _supervisor = Daemon::spawn(command);
        for who in ["child", "orphan"] {
            let answer = PathBuf::from(format!("{}.{who}", said.display()));
            eventually("it has knocked", || answer.exists());
            let word = std::fs::read_to_string(&answer).expect("read");
            // Where there is Landlock its scopes end it before, if the kernel has them.
            assert!(word.contains("not let in") || landlock && word.contains("not permitted"), "{who}: {word}");
        }
        // The control: the same program, as the same user, from outside.
        let mut outside = world.machine_program("setpriv");
        outside.args(["--reuid", &id, "--regid", &id, "--clear-groups", "/usr/bin/python3"]).arg(&knocks);
        let _outside = Daemon::spawn({
            outside.arg(&name).arg(path.join("outside")).stdin(Stdio::null());
            outside
        });
        let answer = path.join("outside.child");
        eventually("it has knocked", || answer.exists());
        assert!(std::fs::read_to_string(&answer).expect("read").starts_with("SSH-2.0-"));
    }
}

/// A file that takes a while to be carried. Not a sparse one: its holes would be carried as such.
fn large(sandbox: &Sandbox) -> PathBuf {
    let path = sandbox.world.directory().join("large");
    std::fs::write(&path, "0123456789abcdef".repeat(25 << 20)).expect("a file");
    path
}

/// Whether nothing but what has a name of its own is there.
fn is_tidy(directory: &Path) -> bool {
    let mut entries = std::fs::read_dir(directory).expect("a directory").flatten();
    !entries.any(|entry| entry.file_name().to_string_lossy().starts_with(".openshell-partial-"))
}

/// Processes that have a file of that directory open which has no name yet, or a temporary one.
fn holders(directory: &Path) -> Vec<i32> {
    let unnamed = format!("{}/#", directory.display());
    let temporary = format!("{}/.openshell-partial-", directory.display());
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
    pids.filter(|pid| {
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let mut targets = descriptors.into_iter().filter_map(|fd| std::fs::read_link(fd.path()).ok());
        targets.any(|target| [&unnamed, &temporary].iter().any(|start| target.to_string_lossy().starts_with(*start)))
    })
    .collect()
}

/// The three ways of carrying a file in.
fn carriers(sandbox: &Sandbox, from: &Path, to: &Path) -> Vec<Command> {
    let scp = |flag: &str| {
        let mut scp = Command::new("scp");
        scp.args(crate::access::options(sandbox)).args([flag, "-q"]).arg(from);
        scp.arg(format!("sandbox@box:{}/large", to.display())).stdin(Stdio::null()).stderr(Stdio::null());
        scp
    };
    let mut upload = sandbox.role("upload");
    upload.arg("--into").arg(to).arg(from).stderr(Stdio::null());
    vec![scp("-s"), scp("-O"), upload]
}

#[test]
fn what_is_killed_in_the_middle_of_an_upload_leaves_nothing_under_its_name() {
    let sandbox = Sandbox::of("exec sleep 300");
    let (from, to) = (large(&sandbox), granted(&sandbox));
    let absent = |when: &str| assert!(!to.join("large").exists(), "{when}: half a file");
    for delay in [0, 150] {
        for command in carriers(&sandbox, &from, &to) {
            let what = format!("{command:?} after {delay} ms");
            let mut client = Daemon::spawn(command);
            eventually("it is on its way", || !holders(&to).is_empty());
            std::thread::sleep(Duration::from_millis(delay));
            let guests = holders(&to);
            assert!(!guests.is_empty(), "still on its way");
            client.signal(Signal::SIGKILL);
            client.wait_within(Duration::from_secs(5));
            eventually("it is cleared away", || is_tidy(&to) && holders(&to).is_empty());
            absent(&what);
            eventually("its program ends", || guests.iter().all(|&pid| kill(Pid::from_raw(pid), None).is_err()));
        }
    }
    // The program that carries it dies, and the client hears of it. Nobody is left to clear anything away, and nothing is.
    for command in carriers(&sandbox, &from, &to) {
        let what = format!("{command:?}, its program killed");
        let mut client = Daemon::spawn(command);
        eventually("it is on its way", || !holders(&to).is_empty());
        for pid in holders(&to) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let ended = client.wait_within(Duration::from_secs(20));
        assert!(ended.is_some_and(|status| !status.success()), "{what}: {ended:?}");
        absent(&what);
        assert!(is_tidy(&to), "{what}");
    }
    expect(sandbox.runs("echo served"), 0, "served\n");
    // The control: one that nobody kills arrives.
    std::fs::File::create(&from).and_then(|file| file.set_len(1 << 20)).expect("a file");
    for mut command in carriers(&sandbox, &from, &to) {
        assert!(command.status().expect("a client").success());
        assert_eq!(std::fs::metadata(to.join("large")).expect("a file").len(), 1 << 20);
        std::fs::remove_file(to.join("large")).expect("remove");
    }
}

#[test]
fn a_supervisor_killed_at_any_moment_leaves_no_process_and_its_place_free() {
    const PROGRAMS: [&str; 3] = [
        "sleep 4731",
        "trap '' HUP TERM INT; sleep 4731; sleep 4731",
        "setsid nohup sleep 4731 >/dev/null 2>&1 & sleep 4731",
    ];
    for user in [None, Some(ORDINARY_USER)] {
        let mut sandbox = Sandbox::started("trap '' TERM; sleep 4732; sleep 4732", user);
        let to = granted(&sandbox);
        let from = large(&sandbox);
        for moment in [0, 30, 400] {
            let session = |terminal: &str, line: &str| {
                let mut ssh = sandbox.ssh();
                ssh.args([terminal, "sandbox@box", line]).stdout(Stdio::null()).stderr(Stdio::null());
                Daemon::spawn(ssh)
            };
            let mut clients: Vec<Daemon> =
                PROGRAMS.iter().flat_map(|line| ["-T", "-tt"].map(|terminal| session(terminal, line))).collect();
            clients.extend(carriers(&sandbox, &from, &to).into_iter().take(1).map(Daemon::spawn));
            // The first time while they are being started, later with everything there.
            if moment > 0 {
                eventually("they run", || sleeps("4731") && sleeps("4732") && !holders(&to).is_empty());
            }
            std::thread::sleep(Duration::from_millis(moment));
            sandbox.supervisor().signal(Signal::SIGKILL);
            eventually("nothing is left of the sandbox", || !sleeps("4731") && !sleeps("4732"));
            for client in &mut clients {
                let ended = client.wait_within(Duration::from_secs(20));
                assert!(ended.is_some_and(|status| !status.success()), "{ended:?}");
            }
            assert!(!to.join("large").exists(), "half a file");
            eventually("nobody has it open", || holders(&to).is_empty());
            assert!(is_tidy(&to), "something is left");
            sandbox.start();
            expect(sandbox.runs("echo served"), 0, "served\n");
        }
    }
}
