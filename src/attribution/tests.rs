//! Real programs as owners: children of the test, which stands for the sandbox's init.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};

use super::process::Recall;
use super::*;
use crate::sys::netlink::Protocol;
use crate::sys::procfs::Gone as _;

mod evasion;
mod namespace;

/// The loader, as a program that runs others: the trick that makes any file executable.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// A child and its descendants, ended with it.
struct Workload {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Workload {
    fn start(command: &mut Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn().expect("a program to run");
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn bash(script: &str) -> Self {
        Self::start(Command::new("/bin/bash").args(["-c", script]))
    }

    fn python(script: &str) -> Self {
        Self::start(Command::new(python()).args(["-c", script]))
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = killpg(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

/// Where `python3` really is, past links and shims: a shim may start dozens of programs, so that it is asked once.
fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| {
            let ask = ["-c", "import os, sys; print(os.path.realpath(sys.executable))"];
            let output = Command::new("python3").args(ask).output().expect("python3, which these tests need");
            PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
        })
        .clone()
}

fn real(path: &str) -> String {
    std::fs::canonicalize(path).unwrap().to_str().unwrap().to_owned()
}

fn sha256(path: impl AsRef<Path>) -> [u8; 32] {
    Sha256::digest(std::fs::read(path).unwrap()).into()
}

fn attributor(processes: Processes) -> Attributor {
    Attributor::new(AttributionConfig { diagnosis: Socket::open(Protocol::SocketDiagnosis).unwrap(), processes })
}

/// Candidates are the children of the test process, of all tests that run now.
fn below() -> Attributor {
    let proc = OwnedFd::from(std::fs::File::open("/proc").unwrap());
    attributor(Processes::Below { proc, root_pid: std::process::id() })
}

struct Proxy {
    listener: TcpListener,
    at: SocketAddr,
}

impl Proxy {
    fn new() -> Self {
        Self::at("127.0.0.1:0")
    }

    fn at(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        Self { at: listener.local_addr().unwrap(), listener }
    }

    fn port(&self) -> u16 {
        self.at.port()
    }

    fn accept(&self) -> (TcpStream, SocketAddr) {
        self.listener.accept().unwrap()
    }
}

#[test]
fn an_owner_is_named_by_its_executable_and_digest() {
    let proxy = Proxy::new();
    let attributor = below();
    let workload = Workload::bash(&format!("exec 3<>/dev/tcp/127.0.0.1/{}; read", proxy.port()));
    let (stream, client) = proxy.accept();
    // Nothing has been hashed yet.
    assert!(attributor.try_first_owner(client, proxy.at).is_none());
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    assert_eq!(&*claim.program.executable.path, real("/bin/bash"));
    assert_eq!(claim.program.executable.sha256, sha256("/bin/bash"));
    assert_eq!(claim.program.ancestors.len(), 0);
    assert_eq!((claim.pid, claim.uid), (workload.pid(), nix::unistd::geteuid().as_raw()));
    assert_eq!(attributor.try_first_owner(client, proxy.at).unwrap().unwrap().program, claim.program);
    attributor.confirm(&claim, &stream).unwrap();
}

#[test]
fn both_families_and_ipv4_through_ipv6_sockets_have_owners() {
    let attributor = below();
    for (listen, connect) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("127.0.0.1:0", "::ffff:127.0.0.1")] {
        let proxy = Proxy::at(listen);
        let family = if connect.contains(':') { "AF_INET6" } else { "AF_INET" };
        let workload = Workload::python(&format!(
            "import socket\ns = socket.socket(socket.{family})\ns.connect(('{connect}', {}))\ninput()",
            proxy.port()
        ));
        let (stream, client) = proxy.accept();
        let claim = attributor.first_owner(client, proxy.at).unwrap();
        assert_eq!(claim.pid, workload.pid(), "{connect}");
        attributor.confirm(&claim, &stream).unwrap();
    }
}

#[test]
fn ancestors_are_named_nearest_first_and_a_fork_of_the_same_program_is_that_program() {
    let proxy = Proxy::new();
    let attributor = below();
    // Python, started by a subshell of bash, started by sh.
    let python = python();
    let script = format!(
        "import socket; s = socket.create_connection(('127.0.0.1', {})); import time; time.sleep(60)",
        proxy.port()
    );
    let _workload = Workload::start(
        Command::new("/bin/sh")
            .args(["-c", "/bin/bash -c '(\"$0\" -c \"$1\"; true); true' \"$0\" \"$1\"; true"])
            .arg(&python)
            .arg(script),
    );
    let (_stream, client) = proxy.accept();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    assert_eq!(&*claim.program.executable.path, python.to_str().unwrap());
    let paths: Vec<_> = claim.program.ancestors.iter().map(|ancestor| ancestor.path.to_string()).collect();
    assert_eq!(paths, [real("/bin/bash"), real("/bin/sh")]);
}

#[test]
fn what_was_forked_off_before_a_program_was_executed_is_not_its_child() {
    // Bash connects: once forked off by a bash that becomes perl, once started by perl.
    for started in [false, true] {
        let proxy = Proxy::new();
        let attributor = below();
        let connect = format!("read line; exec 3<>/dev/tcp/127.0.0.1/{}; read line", proxy.port());
        let mut workload = Workload::bash(&if started {
            format!("exec /usr/bin/perl -e '$| = 1; print \"runs\\n\"; system(\"/bin/bash\", \"-c\", \"{connect}\")'")
        } else {
            format!("({connect}) <&0 & exec /usr/bin/perl -e '$| = 1; print \"runs\\n\"; sleep 60'")
        });
        assert_eq!(workload.hear(), "runs");
        workload.tell("connect");
        let (stream, client) = proxy.accept();
        let claim = attributor.first_owner(client, proxy.at).unwrap();
        assert_eq!(&*claim.program.executable.path, real("/bin/bash"));
        assert_ne!(claim.pid, workload.pid());
        let paths: Vec<_> = claim.program.ancestors.iter().map(|ancestor| ancestor.path.to_string()).collect();
        let above = if started { vec![real("/usr/bin/perl")] } else { Vec::new() };
        assert_eq!(paths, above);
        attributor.confirm(&claim, &stream).unwrap();
    }
}

#[test]
fn a_connection_inherited_by_another_program_is_ambiguous() {
    let attributor = below();
    for (inherited, agrees) in [(true, false), (false, true)] {
        let proxy = Proxy::new();
        let close = if inherited { "False" } else { "True" };
        let mut workload = Workload::python(&format!(
            "import socket, subprocess\n\
             s = socket.create_connection(('127.0.0.1', {}))\n\
             s.set_inheritable(True)\n\
             p = subprocess.Popen(['/bin/sleep', '60'], close_fds={close})\n\
             print(p.pid, flush=True)\ninput()",
            proxy.port()
        ));
        let (stream, client) = proxy.accept();
        workload.hear();
        let claim = attributor.first_owner(client, proxy.at).unwrap();
        match attributor.confirm(&claim, &stream) {
            Ok(()) => assert!(agrees),
            Err(error @ AttributionError::Ambiguous { .. }) => {
                let text = error.to_string();
                assert!(!agrees, "{text}");
                assert!(text.contains(&real("/bin/sleep")) && text.contains(python().to_str().unwrap()), "{text}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_connection_shared_by_forks_of_one_program_is_not() {
    let proxy = Proxy::new();
    let attributor = below();
    let mut workload = Workload::python(&format!(
        "import os, socket, time\n\
         s = socket.create_connection(('127.0.0.1', {}))\n\
         if os.fork() == 0:\n    print('forked', flush=True); time.sleep(60)\ninput()",
        proxy.port()
    ));
    let (stream, client) = proxy.accept();
    workload.hear();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    // Awake, then remembered as asleep without its sockets, then with them.
    for _ in 0..4 {
        attributor.confirm(&claim, &stream).unwrap();
    }
}

#[test]
fn what_sleeps_is_not_read_again_and_what_wakes_to_take_the_connection_is() {
    // The second taker sleeps in one thread and receives in another.
    for threads in [false, true] {
        let proxy = Proxy::new();
        let attributor = below();
        let name = format!("attribution-{}-{threads}", std::process::id());
        let run = if threads { "threading.Thread(target=body).start()" } else { "body()" };
        let mut taker = Workload::python(&format!(
            "import socket, threading, time\n\
             u = socket.socket(socket.AF_UNIX)\n\
             u.bind('\\0{name}'); u.listen()\n\
             def body():\n    \
                 global fds\n    \
                 c, _ = u.accept()\n    \
                 m, fds, _, _ = socket.recv_fds(c, 10, 1)\n    \
                 print('took', flush=True)\n    \
                 time.sleep(60)\n\
             print('listens', flush=True)\n\
             {run}\n\
             time.sleep(60)"
        ));
        assert_eq!(taker.hear(), "listens");
        // The same Python under the loader is another program.
        let mut giver = Workload::start(Command::new(LOADER).arg(python()).args([
            "-c",
            &format!(
                "import socket\n\
                 s = socket.create_connection(('127.0.0.1', {}))\n\
                 input()\n\
                 u = socket.socket(socket.AF_UNIX)\n\
                 u.connect('\\0{name}')\n\
                 socket.send_fds(u, [b'x'], [s.fileno()])\ninput()",
                proxy.port()
            ),
        ]));
        let (stream, client) = proxy.accept();
        let claim = attributor.first_owner(client, proxy.at).unwrap();
        assert_eq!(claim.pid, giver.pid());
        // It may take the taker a moment to fall asleep.
        let deadline = Instant::now() + Duration::from_secs(10);
        let process = loop {
            attributor.confirm(&claim, &stream).unwrap();
            let process = attributor.sandbox.process(taker.pid()).unwrap().unwrap();
            if process.recall(claim.socket.inode).unwrap() == Recall::Lacks {
                break process;
            }
            assert!(Instant::now() < deadline, "a sleeping process is never remembered");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(process.has_threads().unwrap(), threads);
        giver.tell("give");
        assert_eq!(taker.hear(), "took");
        assert_ne!(process.recall(claim.socket.inode).unwrap(), Recall::Lacks);
        let error = attributor.confirm(&claim, &stream).unwrap_err();
        assert!(
            matches!(error, AttributionError::Ambiguous { second_pid, .. } if second_pid == taker.pid()),
            "{error}"
        );
    }
}

#[test]
fn a_thread_with_descriptors_of_its_own_hides_nothing() {
    // A thread leaves the table of its process, connects, and starts bash with the connection: the process itself
    // never had it.
    let attributor = below();
    for (inherited, agrees) in [(false, true), (true, false)] {
        let proxy = Proxy::new();
        let start = if inherited {
            "subprocess.Popen(['/bin/sleep', '60'], close_fds=False)"
        } else {
            "subprocess.Popen(['/bin/sleep', '60'])"
        };
        let mut workload = Workload::python(&format!(
            "import ctypes, socket, subprocess, threading, time\n\
             def body():\n    \
                 assert ctypes.CDLL(None).unshare(0x400) == 0\n    \
                 s = socket.create_connection(('127.0.0.1', {}))\n    \
                 s.set_inheritable(True)\n    \
                 {start}\n    \
                 print('started', flush=True)\n    \
                 time.sleep(60)\n\
             threading.Thread(target=body, daemon=True).start()\n\
             input()",
            proxy.port()
        ));
        let (stream, client) = proxy.accept();
        assert_eq!(workload.hear(), "started");
        let claim = attributor.first_owner(client, proxy.at).unwrap();
        assert_eq!(claim.pid == workload.pid(), agrees);
        let confirmed = attributor.confirm(&claim, &stream);
        assert_eq!(confirmed.is_ok(), agrees, "{confirmed:?}");
        assert!(agrees || matches!(confirmed, Err(AttributionError::Ambiguous { .. })));
    }
}

/// Runs `tool`, a copy of bash, until it has connected.
fn connects(tool: &Path, proxy: &Proxy) -> (Workload, TcpStream, SocketAddr) {
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{}; read; read", proxy.port());
    let workload = Workload::start(Command::new(tool).args(["-c", &script]));
    let (stream, client) = proxy.accept();
    (workload, stream, client)
}

#[test]
fn an_executable_without_a_name_matches_no_path() {
    let proxy = Proxy::new();
    let attributor = below();
    let directory = tempfile::tempdir().unwrap();
    let tool = directory.path().join("tool");
    std::fs::copy("/bin/bash", &tool).unwrap();
    let (_workload, _stream, client) = connects(&tool, &proxy);
    // The control: while it is there, it has its path.
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    assert_eq!(&*claim.program.executable.path, tool.to_str().unwrap());
    std::fs::remove_file(&tool).unwrap();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    assert_eq!(&*claim.program.executable.path, format!("deleted:{}", tool.display()));

    let _memfd = Workload::python(&format!(
        "import os\n\
         fd = os.memfd_create('curl', 0)\n\
         os.write(fd, open('/bin/bash', 'rb').read())\n\
         os.execv('/proc/self/fd/%d' % fd, ['bash', '-c', 'exec 3<>/dev/tcp/127.0.0.1/{}; read'])",
        proxy.port()
    ));
    let (_stream, client) = proxy.accept();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    assert_eq!(&*claim.program.executable.path, "memfd:curl");
    assert_eq!(claim.program.executable.sha256, sha256("/bin/bash"));
}

#[test]
fn neither_a_script_nor_the_loader_lends_a_name() {
    let proxy = Proxy::new();
    let attributor = below();
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("curl");
    std::fs::write(&script, format!("#!/bin/bash\nexec 3<>/dev/tcp/127.0.0.1/{}; read\n", proxy.port())).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let _workload = Workload::start(Command::new(&script).arg0("/usr/bin/curl"));
    let (_stream, client) = proxy.accept();
    assert_eq!(&*attributor.first_owner(client, proxy.at).unwrap().program.executable.path, real("/bin/bash"));

    let connect = format!("exec 3<>/dev/tcp/127.0.0.1/{}; read", proxy.port());
    let _loaded = Workload::start(Command::new(LOADER).args(["/bin/bash", "-c", &connect]));
    let (_stream, client) = proxy.accept();
    assert_eq!(&*attributor.first_owner(client, proxy.at).unwrap().program.executable.path, real(LOADER));
}

#[test]
fn a_changed_executable_is_refused_and_a_touched_one_is_not() {
    let proxy = Proxy::new();
    let attributor = below();
    let directory = tempfile::tempdir().unwrap();
    let tool = directory.path().join("tool");
    let bash = std::fs::read("/bin/bash").unwrap();
    let install = |bytes: &[u8]| {
        let new = directory.path().join("new");
        std::fs::write(&new, bytes).unwrap();
        std::fs::set_permissions(&new, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::rename(&new, &tool).unwrap();
    };
    let first_owner = || {
        let (_workload, _stream, client) = connects(&tool, &proxy);
        attributor.first_owner(client, proxy.at)
    };
    install(&bash);
    let trusted = first_owner().unwrap();
    // Another file with the same bytes, and later times.
    install(&bash);
    assert_eq!(first_owner().unwrap().program, trusted.program);
    install(&[&bash[..], b"changed"].concat());
    let error = first_owner().unwrap_err();
    assert!(matches!(error, AttributionError::ExecutableChanged { .. }), "{error}");
    assert_eq!(error.binary(), tool.to_str());
    // The one first seen is still good.
    install(&bash);
    assert_eq!(first_owner().unwrap().program, trusted.program);
}

#[test]
fn a_connection_without_an_owner_in_the_sandbox_is_refused() {
    let proxy = Proxy::new();
    let attributor = below();
    // The test process stands for the sandbox's init: it is no candidate.
    let ours = TcpStream::connect(proxy.at).unwrap();
    let (_stream, client) = proxy.accept();
    let error = attributor.first_owner(client, proxy.at).unwrap_err();
    assert!(matches!(error, AttributionError::NoOwner { .. }), "{error}");
    // The control: below our own parent it has an owner.
    let proc = OwnedFd::from(std::fs::File::open("/proc").unwrap());
    let root_pid = std::os::unix::process::parent_id();
    let above = super::tests::attributor(Processes::Below { proc, root_pid });
    let claim = above.first_owner(client, proxy.at).unwrap();
    assert_eq!(claim.pid, std::process::id());
    drop(ours);
    let error = attributor.first_owner(client, proxy.at).unwrap_err();
    assert!(matches!(error, AttributionError::NoSocket { .. }), "{error}");
}

#[test]
fn a_claim_does_not_outlive_its_connection_or_its_program() {
    let proxy = Proxy::new();
    let attributor = below();
    let mut workload =
        Workload::bash(&format!("exec 3<>/dev/tcp/127.0.0.1/{}; read; exec /bin/sleep 60", proxy.port()));
    let (stream, client) = proxy.accept();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    attributor.confirm(&claim, &stream).unwrap();
    workload.tell("go on");
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::fs::read_link(format!("/proc/{}/exe", workload.pid())).unwrap() != Path::new(&real("/bin/sleep")) {
        assert!(Instant::now() < deadline);
    }
    let error = attributor.confirm(&claim, &stream).unwrap_err();
    assert!(matches!(error, AttributionError::ChangedHands { .. }), "{error}");

    let (workload, stream, client) = connects(Path::new("/bin/bash"), &proxy);
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    attributor.confirm(&claim, &stream).unwrap();
    drop(workload);
    assert!(attributor.confirm(&claim, &stream).is_err());
}

#[test]
fn what_went_around_the_proxy_is_named_while_its_socket_lasts() {
    let attributor = below();
    let mut workload = Workload::python(
        "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.bind(('127.0.0.1', 0))\n\
         print(s.getsockname()[1], flush=True)\ninput()\ns.close()\nprint('closed', flush=True)\ninput()",
    );
    let source = SocketAddr::from(([127, 0, 0, 1], workload.hear().parse().unwrap()));
    let destination = "192.0.2.1:53".parse().unwrap();
    // Naming gives up when there is too much to look through, and other tests here start processes by the hundred.
    let deadline = Instant::now() + Duration::from_secs(10);
    let actor = loop {
        let actor = attributor.actor_of(source, destination, Transport::Udp).unwrap();
        if actor.binary.is_some() || Instant::now() > deadline {
            break actor;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(actor.binary.as_deref(), python().to_str());
    assert_eq!(actor.pid, Some(workload.pid()));
    workload.tell("close");
    assert_eq!(workload.hear(), "closed");
    assert_eq!(attributor.actor_of(source, destination, Transport::Udp), None);
}
