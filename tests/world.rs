//! The one-machine cluster that black-box tests live in: a *machine* namespace, where supervisors run, and an *origin*
//! namespace, where destinations listen, joined by a veth pair. Nothing else is connected to either, so whatever
//! leaves a sandbox arrives here or nowhere.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Addresses of the origin; private, as test hosts must be, so policies name their hosts exactly.
pub const ORIGIN_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
pub const ORIGIN_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 2);
/// Addresses of the machine.
pub const MACHINE_V4: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
pub const MACHINE_V6: Ipv6Addr = Ipv6Addr::new(0xfd99, 0, 0, 0, 0, 0, 0, 1);

/// Names that the machine's hosts file gives the origin.
pub const ORIGIN_NAMES: [&str; 4] = ["api.example.com", "github.com", "other.example.com", "mail.example.com"];
/// A name with an IPv6 address only.
pub const ORIGIN_NAME_V6: &str = "v6.example.com";

/// Beginning of Python scripts that try ways out: `attempt(NAME, ACT)` prints what an act comes to, and how long it took,
/// as `NAME ERRNO MILLISECONDS`.
pub const ATTEMPT: &str = r#"
import socket, struct, time, errno
def attempt(name, act):
    started = time.monotonic()
    try:
        act(); outcome = "SUCCEEDED"
    except OSError as error:
        outcome = errno.errorcode.get(error.errno, str(error))
    print(name, outcome, int((time.monotonic() - started) * 1000), flush=True)
"#;

/// An ordinary user and group of the tests' own, which exist in no passwd file.
pub const ORDINARY_USER: u32 = 4242;

/// A machine and an origin; removed with everything in them when dropped.
pub struct World {
    machine: String,
    origin: String,
    /// A directory that every user may read, for policies and scripts; under no path that a sandbox may write.
    files: tempfile::TempDir,
}

impl World {
    /// Makes the two namespaces. Needs root: says so and fails otherwise.
    pub fn new() -> Self {
        assert!(nix::unistd::geteuid().is_root(), "these tests make network namespaces: run them as root");
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = format!("osv{}x{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let (machine, origin) = (format!("{id}m"), format!("{id}o"));
        let files = tempfile::Builder::new().prefix("openshell-world-").tempdir_in("/var/tmp").expect("a directory");
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        let world = Self { machine, origin, files };
        for namespace in [&world.machine, &world.origin] {
            ip(&["netns", "add", namespace]);
            ip(&["-n", namespace, "link", "set", "lo", "up"]);
        }
        ip(&[
            "link",
            "add",
            "eth0",
            "netns",
            &world.machine,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            &world.origin,
        ]);
        for (namespace, v4, v6) in
            [(&world.machine, "10.99.0.1/24", "fd99::1/64"), (&world.origin, "10.99.0.2/24", "fd99::2/64")]
        {
            ip(&["-n", namespace, "address", "add", v4, "dev", "eth0"]);
            ip(&["-n", namespace, "-6", "address", "add", v6, "dev", "eth0", "nodad"]);
            ip(&["-n", namespace, "link", "set", "eth0", "up"]);
        }
        let etc = world.etc();
        fs::create_dir_all(&etc).expect("netns etc");
        let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        for name in ORIGIN_NAMES {
            hosts += &format!("{ORIGIN_V4} {name}\n{ORIGIN_V6} {name}\n");
        }
        hosts += &format!("{ORIGIN_V6} {ORIGIN_NAME_V6}\n");
        world.hosts(&hosts);
        fs::write(etc.join("resolv.conf"), "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
            .expect("resolv.conf");
        world
    }

    /// Replaces the machine's hosts file, for supervisors started from now on.
    pub fn hosts(&self, text: &str) {
        fs::write(self.etc().join("hosts"), text).expect("hosts");
    }

    /// Where `ip netns exec` takes the machine's own files of /etc from.
    pub fn etc(&self) -> PathBuf {
        Path::new("/etc/netns").join(&self.machine)
    }

    /// The machine's namespace, by the name that `ip netns` knows.
    pub fn machine(&self) -> &str {
        &self.machine
    }

    /// Writes a file that every user may read, and returns its path.
    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.files.path().join(name);
        fs::write(&path, text).expect("write");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).expect("chmod");
        path
    }

    /// The directory of [`World::file`].
    pub fn directory(&self) -> &Path {
        self.files.path()
    }

    /// Runs `act` in a thread inside the origin's network namespace and returns what it made, such as a listener.
    pub fn in_origin<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        in_namespace(&self.origin, act)
    }

    /// The same in the machine's.
    pub fn in_machine<T: Send + 'static>(&self, act: impl FnOnce() -> T + Send + 'static) -> T {
        in_namespace(&self.machine, act)
    }

    /// Listens in the origin, on both families when `address` is `::`.
    pub fn listen(&self, address: impl Into<IpAddr>, port: u16) -> TcpListener {
        let address = SocketAddr::new(address.into(), port);
        self.in_origin(move || TcpListener::bind(address).expect("bind in the origin"))
    }

    /// A real program in the origin, killed with the world.
    pub fn origin_program(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Daemon {
        let mut command = self.origin_command(program);
        command.args(arguments);
        Daemon::spawn(command)
    }

    /// The same, for tests that need more of the command.
    pub fn origin_command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.origin]).arg(program);
        command
    }

    /// A program in the machine's namespace, as root and unconfined: the control of many refusals.
    pub fn machine_program(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.machine]).arg(program);
        command
    }

    /// The machine's network namespace, for what must keep this machine's mounts (`ip netns exec` covers /sys).
    pub fn machine_namespace(&self) -> PathBuf {
        Path::new("/run/netns").join(&self.machine)
    }

    /// Lets the origin answer a network behind the machine.
    pub fn route_from_origin(&self, network: &str, via: IpAddr) {
        ip(&["-n", &self.origin, "route", "add", network, "via", &via.to_string()]);
    }

    /// `openshell-supervisor run` on the machine.
    pub fn run(&self) -> Run<'_> {
        Run { world: self, user: None, arguments: vec!["run".into()] }
    }

    /// Any other role of the executable on the machine.
    pub fn role(&self, name: &str) -> Run<'_> {
        Run { world: self, user: None, arguments: vec![name.into()] }
    }

    /// A policy that lets the program at `binary` (a path or glob) reach each `host:port`.
    pub fn policy(&self, name: &str, binary: &str, destinations: &[&str]) -> PathBuf {
        self.file(name, policy_text(binary, destinations))
    }
}

/// The text of [`World::policy`].
pub fn policy_text(binary: &str, destinations: &[&str]) -> String {
    let mut text = "version: 1\nnetwork_policies:\n  test:\n    endpoints:\n".to_owned();
    for destination in destinations {
        let (host, port) = destination.rsplit_once(':').expect("host:port");
        text += &format!("      - {{host: \"{host}\", port: {port}}}\n");
    }
    text + &format!("    binaries:\n      - {{path: \"{binary}\"}}\n")
}

impl Drop for World {
    fn drop(&mut self) {
        for namespace in [&self.machine, &self.origin] {
            // Whatever a failed test left behind must not outlive its world.
            if let Ok(pids) = Command::new("ip").args(["netns", "pids", namespace]).output() {
                for pid in String::from_utf8_lossy(&pids.stdout).split_whitespace().filter_map(|pid| pid.parse().ok()) {
                    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
                }
            }
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
        let _ = fs::remove_dir_all(self.etc());
    }
}

/// A supervisor about to be started.
pub struct Run<'w> {
    world: &'w World,
    user: Option<u32>,
    arguments: Vec<OsString>,
}

impl Run<'_> {
    /// As an ordinary user instead of root.
    pub fn by_user(mut self) -> Self {
        self.user = Some(ORDINARY_USER);
        self
    }

    /// One more argument.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// More arguments.
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// `--policy` with this file.
    pub fn policy(self, file: impl Into<OsString>) -> Self {
        self.arg("--policy").arg(file)
    }

    /// The workload; comes last.
    pub fn command<A: Into<OsString>>(self, command: impl IntoIterator<Item = A>) -> Self {
        self.arg("--").args(command)
    }

    /// A shell script as the workload.
    pub fn shell(self, script: &str) -> Self {
        self.command(["/bin/sh", "-c", script])
    }

    /// The command, for tests that need more of it.
    pub fn build(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.world.machine]);
        if let Some(user) = self.user {
            let id = user.to_string();
            command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--inh-caps=-all"]);
        }
        command.arg(supervisor()).args(&self.arguments).current_dir("/").stdin(Stdio::null());
        command.env_remove("OPENSHELL_LOG_LEVEL");
        command
    }

    /// Starts it and waits for its end; a run that takes longer than [`PATIENCE`] is killed and fails the test.
    pub fn output(&self) -> Outcome {
        self.output_within(PATIENCE)
    }

    /// The same with another limit.
    pub fn output_within(&self, limit: Duration) -> Outcome {
        let mut command = self.build();
        let started = Instant::now();
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("start the supervisor");
        let output = wait_within(child, limit, &format!("{:?}", self.arguments));
        Outcome {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            took: started.elapsed(),
        }
    }

    /// Starts it and leaves it running.
    pub fn spawn(&self) -> Daemon {
        Daemon::spawn(self.build())
    }
}

/// How long one supervisor may take in a test before the test has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a run came to.
#[derive(Debug)]
pub struct Outcome {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Outcome {
    /// Fails the test unless the run ended with `code`.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }
}

/// A process that is killed when the test is done with it.
pub struct Daemon {
    child: Child,
}

impl Daemon {
    pub fn spawn(mut command: Command) -> Self {
        Self { child: command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")) }
    }

    /// Its process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// The process, for its pipes.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Sends a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.pid()), signal).expect("signal");
    }

    /// Waits for its end.
    pub fn wait_within(&mut self, limit: Duration) -> Option<std::process::ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.child.try_wait().expect("wait") {
                Some(status) => return Some(status),
                None if Instant::now() > deadline => return None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Builds a release executable as a user would, in `target` or a directory below it, and returns where it lies.
pub fn release(target_directory: Option<&str>, features: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--release", "--quiet", "--message-format=json", "--bin", "openshell-supervisor"])
        .args(features);
    command.current_dir(root).env_remove("RUSTFLAGS");
    // What cargo tells a test of its package is none of another cargo's business, and build scripts that look at it would make
    // all that depends on them anew (ring's does).
    let told = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_", "CARGO_PRIMARY_", "OUT_DIR"];
    for (name, _) in
        std::env::vars_os().filter(|(name, _)| told.iter().any(|of| name.to_string_lossy().starts_with(of)))
    {
        command.env_remove(name);
    }
    if let Some(directory) = target_directory {
        command.arg("--target-dir").arg(root.join("target").join(directory));
    }
    let output = command.output().expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["kind"][0] == "bin")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .expect("an executable")
}

/// The executable under test, where every user can run it: a checkout may lie in a directory that is root's alone. It is the one
/// that is shipped, whatever the tests themselves are built as: `cargo test` builds it now if nobody has.
pub fn supervisor() -> &'static Path {
    static COPY: OnceLock<PathBuf> = OnceLock::new();
    COPY.get_or_init(|| {
        let built =
            if cfg!(debug_assertions) { release(None, &[]) } else { env!("CARGO_BIN_EXE_openshell-supervisor").into() };
        let directory = PathBuf::from(format!("/var/tmp/openshell-supervisor-under-test-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory for the executable");
        let copy = directory.join("openshell-supervisor");
        if fs::hard_link(&built, &copy).is_err() {
            fs::copy(&built, &copy).expect("copy the executable");
        }
        extern "C" fn remove() {
            let _ = fs::remove_dir_all(format!("/var/tmp/openshell-supervisor-under-test-{}", std::process::id()));
        }
        // SAFETY: `remove` neither unwinds nor touches what other exit handlers take down.
        unsafe { nix::libc::atexit(remove) };
        copy
    })
}

/// Runs `act` in a thread of its own that has entered a network namespace by the name `ip netns` gave it.
fn in_namespace<T: Send + 'static>(name: &str, act: impl FnOnce() -> T + Send + 'static) -> T {
    let namespace = fs::File::open(Path::new("/run/netns").join(name)).expect("the namespace");
    std::thread::spawn(move || {
        nix::sched::setns(namespace.as_fd(), nix::sched::CloneFlags::CLONE_NEWNET).expect("enter the namespace");
        act()
    })
    .join()
    .expect("what runs in the namespace")
}

/// Runs `ip`, which must succeed.
#[track_caller]
fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip (package iproute2)");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for a child with pipes, without deadlock and not for ever.
fn wait_within(child: Child, limit: Duration, what: &str) -> Output {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("a pid"));
    let (done, waiting) = std::sync::mpsc::channel::<()>();
    let what = what.to_owned();
    let watchdog = std::thread::spawn(move || {
        let late = waiting.recv_timeout(limit) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if late {
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
        (late, what)
    });
    let output = child.wait_with_output().expect("wait");
    drop(done);
    let (late, what) = watchdog.join().expect("watchdog");
    assert!(
        !late,
        "{what} was still running after {limit:?}\nstdout:\n{}\nstderr:\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Asks `condition` until it holds, for at most [`PATIENCE`].
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Writes all of `text` and ignores a reader that has gone, as origins must.
pub fn say(mut stream: impl Write, text: impl AsRef<[u8]>) {
    let _ = stream.write_all(text.as_ref()).and_then(|()| stream.flush());
}
