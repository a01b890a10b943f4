//! What reaching into a sandbox costs, against OpenSSH's sshd in the same run, by the same clients, each in turn; and
//! `podman exec` for one command.
//!
//! `cargo bench --bench access [-- [QUICK] [EXECUTABLE]]`; needs root, iproute2, OpenSSH, what `.ci/run` installs for Python
//! and, for its line, podman.
//! EXECUTABLE is measured in the place of the one that was built.

#[path = "../tests/kubernetes/mod.rs"]
#[allow(dead_code, reason = "the stand-in serves the tests too, which use more of it")]
mod kubernetes;
#[path = "../tests/node.rs"]
#[allow(dead_code, reason = "the harness serves the tests too, which use more of it")]
mod node;
#[path = "../tests/podman.rs"]
#[allow(dead_code, reason = "the harness serves the tests too, which use more of it")]
mod podman;
#[path = "../tests/world.rs"]
#[allow(dead_code, reason = "the harness serves the tests too, which use more of it")]
mod world;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use podman::Podman;
use world::{Daemon, World, eventually};

/// Sessions that are opened at the same time.
const AT_ONCE: usize = 50;

/// Where sshd listens, in the machine of the world.
const PORT: &str = "2222";

/// The language of both servers' commands: a shell that is told one reads a dozen files more than one that is not.
const LANGUAGE: &str = "C.UTF-8";

/// Sends as many zeros as it is told to whoever connects, and prints its port.
const SOURCE: &str = "import socket, sys\ns = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); piece = \
                      bytes(1 << 20)\nwhile True:\n c, _ = s.accept()\n for _ in range(int(sys.argv[1])): c.sendall(piece)\n c.close()\n";

/// Whom the client speaks to.
#[derive(Clone, Copy)]
enum Server {
    Sshd,
    Ours,
}

use Server::{Ours, Sshd};

/// Both servers, and what the client is told to reach them.
struct Scene<'w> {
    world: &'w World,
    directory: tempfile::TempDir,
    executable: PathBuf,
    servers: Vec<Daemon>,
}

impl<'w> Scene<'w> {
    fn new(world: &'w World, executable: PathBuf) -> Self {
        let directory =
            tempfile::Builder::new().prefix("openshell-access-").tempdir_in("/var/tmp").expect("a directory");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(directory.path(), open).expect("chmod");
        let mut scene = Self { world, directory, executable, servers: Vec::new() };
        scene.start_sshd();
        let ours = scene.supervisor(true);
        scene.servers.push(ours);
        eventually("the door is there", || scene.path("door").exists());
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn start_sshd(&mut self) {
        fs::create_dir_all("/run/sshd").expect("sshd's own directory");
        for name in ["host", "user"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(self.path(name));
            assert!(keygen.status().expect("ssh-keygen").success());
        }
        let settings = format!(
            "Port {PORT}\nListenAddress 127.0.0.1\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
             PermitRootLogin prohibit-password\nMaxStartups 200\nMaxSessions 200\nUseDNS no\nSubsystem sftp /usr/lib/openssh/sftp-server\n\
             SetEnv HOME=/nonexistent LANG={LANGUAGE}\n",
            self.path("host").display(),
            self.path("user.pub").display(),
        );
        fs::write(self.path("sshd_config"), settings).expect("write");
        let mut sshd = self.world.machine_program("/usr/sbin/sshd");
        sshd.arg("-D").arg("-f").arg(self.path("sshd_config"));
        self.servers.push(Daemon::spawn(sshd));
        eventually("sshd serves", || self.ssh(Sshd).args(["box", "true"]).status().expect("ssh").success());
    }

    /// A sandbox with a door, or without.
    fn supervisor(&self, door: bool) -> Daemon {
        let policy = self.path("policy.yaml");
        let granted = self.path("granted");
        fs::create_dir_all(&granted).expect("a directory");
        fs::set_permissions(&granted, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).expect("chmod");
        fs::write(&policy, format!("version: 1\nfilesystem_policy: {{read_write: [{}, /tmp]}}\n", granted.display()))
            .expect("write");
        let mut command = self.world.machine_program(&self.executable);
        command.arg("run").arg("--policy").arg(policy);
        if door {
            command.arg("--ssh-socket-path").arg(self.path("door"));
        }
        command.args(["--", "sleep", "100000"]).current_dir("/").stdin(Stdio::null()).stderr(Stdio::null());
        command.env_remove("LC_ALL").env("LANG", LANGUAGE);
        Daemon::spawn(command)
    }

    /// What the client is told of a server.
    fn options(&self, server: Server) -> Vec<String> {
        let mut options: Vec<String> = ["-F", "/dev/null"].map(str::to_owned).to_vec();
        let mut set = |option: String| options.extend(["-o".to_owned(), option]);
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "BatchMode=yes"] {
            set(option.to_owned());
        }
        // The same cipher for both: their own first choices differ.
        set("Ciphers=aes256-gcm@openssh.com".to_owned());
        match server {
            Sshd => {
                set("User=root".to_owned());
                set("HostName=127.0.0.1".to_owned());
                set(format!("Port={PORT}"));
                set(format!("IdentityFile={}", self.path("user").display()));
            }
            Ours => set(format!(
                "ProxyCommand={} connect --ssh-socket-path {}",
                self.executable.display(),
                self.path("door").display()
            )),
        }
        options
    }

    fn ssh(&self, server: Server) -> Command {
        let mut ssh = self.world.machine_program("ssh");
        ssh.args(self.options(server)).stdin(Stdio::null());
        ssh
    }

    /// A connection that others share, and what makes them share it.
    fn shared(&self, server: Server) -> (Daemon, PathBuf) {
        let control = self.path(if matches!(server, Ours) { "ours" } else { "sshd" });
        let mut master = self.ssh(server);
        master.arg("-S").arg(&control).args(["-M", "-N", "box"]);
        let master = Daemon::spawn(master);
        eventually("the connection is shared", || control.exists());
        (master, control)
    }
}

/// Resident memory of a process, in KiB.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[track_caller]
fn succeed(mut command: Command) -> Duration {
    let begun = Instant::now();
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
    begun.elapsed()
}

/// Half of the runs were quicker than the first, one was as quick as the second.
#[derive(Clone, Copy)]
struct Taken {
    median: Duration,
    best: Duration,
}

impl Taken {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self { median: times[times.len() / 2], best: times[0] }
    }

    fn milliseconds(self) -> [f64; 2] {
        [self.median, self.best].map(|time| time.as_secs_f64() * 1e3)
    }

    /// So many megabytes in that time, a second.
    fn rate(self, megabytes: u64) -> [f64; 2] {
        [self.median, self.best].map(|time| megabytes as f64 / time.as_secs_f64())
    }
}

/// Does both in turn, so that what the machine does meanwhile falls on both.
fn in_turn(runs: usize, act: impl Fn(Server) -> Duration) -> (Taken, Taken) {
    let (mut sshd, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        sshd.push(act(Sshd));
        ours.push(act(Ours));
    }
    (Taken::of(sshd), Taken::of(ours))
}

fn print(what: &str, sshd: Option<[f64; 2]>, ours: Option<[f64; 2]>, mark: &str) {
    let shown = |figures: Option<[f64; 2]>| {
        figures.map_or_else(|| " ".repeat(19), |[median, best]| format!("{median:>9.1} {best:>9.1}"))
    };
    println!("{what:<50} {} {}   {mark}", shown(sshd), shown(ours));
}

/// By a client that stays: what the server takes, and no start of a client.
fn latency(scene: &Scene<'_>, runs: usize) {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut client = scene.world.machine_program("/usr/bin/python3");
    client.env("PYTHONPATH", project.join("target/tools/python")).arg(project.join("tests/clients/ssh_latency.py"));
    client.arg(scene.path("door")).args(["127.0.0.1", PORT]).arg(scene.path("user")).arg(runs.to_string());
    let output = client.output().expect("python3");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    let mut figures = text.lines().map(|line| {
        let mut of = line.split(' ').map(|figure| figure.parse().expect("a figure"));
        [of.next().expect("a median"), of.next().expect("a best")]
    });
    let what = "/bin/true on an open connection, by paramiko [ms]";
    print(what, figures.next(), figures.next(), "10, and no more than sshd's");
}

fn commands(scene: &Scene<'_>, runs: usize) {
    let masters = [scene.shared(Sshd), scene.shared(Ours)];
    let (sshd, ours) = in_turn(runs, |server| {
        let mut ssh = scene.ssh(server);
        ssh.arg("-S").arg(&masters[usize::from(matches!(server, Ours))].1).args(["box", "/bin/true"]);
        succeed(ssh)
    });
    print("the same by `ssh`, which starts each time [ms]", Some(sshd.milliseconds()), Some(ours.milliseconds()), "");
    let (sshd, ours) = in_turn(runs / 4, |server| {
        let mut ssh = scene.ssh(server);
        ssh.args(["box", "/bin/true"]);
        succeed(ssh)
    });
    print("/bin/true on a connection of its own [ms]", Some(sshd.milliseconds()), Some(ours.milliseconds()), "");
    let (sshd, ours) = in_turn(3, |server| {
        let begun = Instant::now();
        let mut clients: Vec<Daemon> = (0..AT_ONCE)
            .map(|_| {
                let mut ssh = scene.ssh(server);
                ssh.args(["box", "/bin/true"]);
                Daemon::spawn(ssh)
            })
            .collect();
        for client in &mut clients {
            assert!(client.wait_within(Duration::from_secs(120)).is_some_and(|status| status.success()));
        }
        begun.elapsed()
    });
    print(
        &format!("{AT_ONCE} of them at once, all of them [ms]"),
        Some(sshd.milliseconds()),
        Some(ours.milliseconds()),
        "",
    );
}

fn files(scene: &Scene<'_>, megabytes: u64, runs: usize) {
    let (here, there) = (scene.path("file"), scene.path("granted"));
    let piece: Vec<u8> = (0..1 << 20).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    let mut file = fs::File::create(&here).expect("a file");
    for _ in 0..megabytes {
        std::io::Write::write_all(&mut file, &piece).expect("write");
    }
    drop(file);
    for (flag, protocol) in [("-s", "SFTP"), ("-O", "rcp")] {
        let scp = |server: Server, from: &str, to: &str| {
            let mut scp = scene.world.machine_program("scp");
            scp.args(scene.options(server)).args([flag, "-q", from, to]).stdin(Stdio::null());
            succeed(scp)
        };
        let name = |server| there.join(if matches!(server, Ours) { "ours" } else { "sshd" });
        let (sshd, ours) = in_turn(runs, |server| {
            // A new file each time, as most uploads make.
            let _ = fs::remove_file(name(server));
            scp(server, &here.display().to_string(), &format!("box:{}", name(server).display()))
        });
        print(
            &format!("upload by scp {flag} ({protocol}) [MB/s]"),
            Some(sshd.rate(megabytes)),
            Some(ours.rate(megabytes)),
            "0.8 of sshd's",
        );
        let back = scene.path("back");
        let (sshd, ours) = in_turn(runs, |server| {
            let _ = fs::remove_file(&back);
            scp(server, &format!("box:{}", name(server).display()), &back.display().to_string())
        });
        print(
            &format!("download by scp {flag} ({protocol}) [MB/s]"),
            Some(sshd.rate(megabytes)),
            Some(ours.rate(megabytes)),
            "0.8 of sshd's",
        );
    }
}

fn forwards(scene: &Scene<'_>, megabytes: u64, runs: usize) {
    let sources = [Sshd, Ours].map(|server| {
        let mut source = scene.ssh(server);
        source.args(["box", &format!("exec /usr/bin/python3 -c \"{SOURCE}\" {megabytes}")]).stdout(Stdio::piped());
        let mut source = Daemon::spawn(source);
        let mut port = String::new();
        BufReader::new(source.child().stdout.take().expect("a pipe")).read_line(&mut port).expect("read");
        (source, port.trim().to_owned())
    });
    let (sshd, ours) = in_turn(runs, |server| {
        let mut ssh = scene.ssh(server);
        ssh.args(["-W", &format!("127.0.0.1:{}", sources[usize::from(matches!(server, Ours))].1), "box"]);
        ssh.stdout(Stdio::null());
        succeed(ssh)
    });
    print(
        "a forward, towards the client [MB/s]",
        Some(sshd.rate(megabytes)),
        Some(ours.rate(megabytes)),
        "0.8 of sshd's",
    );
}

fn memory(scene: &Scene<'_>) {
    let idle = |door: bool| {
        let supervisor = scene.supervisor(door);
        std::thread::sleep(Duration::from_secs(2));
        resident(supervisor.pid())
    };
    // The bench's own sandbox has the door's place.
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        without.push(idle(false));
        with.push(idle(true));
    }
    with.sort_unstable();
    without.sort_unstable();
    let more = with[1] as f64 - without[1] as f64;
    let more = more / 1024.0;
    print("an idle server, in its supervisor's memory [MB]", None, Some([more, more]), "3");
}

fn by_podman(world: &World, runs: usize) {
    if Command::new("podman").arg("--version").stdout(Stdio::null()).status().is_err() {
        return;
    }
    let podman = Podman::new(world);
    let start =
        ["run", "--detach", "--name", "box", "--network", "none", "localhost/openshell-sandbox", "sleep", "1000"];
    podman.expect(start);
    let times = (0..runs).map(|_| succeed(podman.command(["exec", "box", "/bin/true"]))).collect();
    print("the same by `podman exec`, in sshd's place [ms]", Some(Taken::of(times).milliseconds()), None, "");
    podman.expect(["rm", "--force", "--time", "0", "box"]);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let quick = words.iter().any(|word| word == "QUICK");
    let executable = words.iter().find(|word| Path::new(word).is_absolute());
    let executable = executable.map_or_else(|| world::supervisor().to_owned(), PathBuf::from);
    let (runs, megabytes) = if quick { (20, 256) } else { (200, 1024) };
    let world = World::new();
    let mut scene = Scene::new(&world, executable);
    println!("{:<50} {:>9} {:>9} {:>9} {:>9}   mark", "median and best", "sshd", "", "ours", "");
    latency(&scene, 10 * runs);
    commands(&scene, runs);
    by_podman(&world, runs / 4);
    forwards(&scene, megabytes, 3);
    files(&scene, megabytes, 3);
    // The last: the door is another supervisor's then.
    drop(scene.servers.pop());
    memory(&scene);
}
