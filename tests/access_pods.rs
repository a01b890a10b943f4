//! Promises 30.5x: pods are reached through their container runtime, and images that hold next to nothing.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::access::{expect, text};
use crate::origins::{self, Origin};
use crate::podman::{Manifest, Pod, Podman};
use crate::pods::POLICY;
use crate::world::{Daemon, ORIGIN_V4, World, eventually};

/// The executable in the agents' containers.
const EXECUTABLE: &str = "/opt/openshell/bin/openshell-supervisor";

/// Where pods are let in: the usual place where root may write, and a name for who may write nowhere.
const DOORS: [(&str, &str); 2] = [("combined", "/run/openshell/ssh.sock"), ("sidecar", "@openshell-access")];

/// A pod whose workload sleeps behind a door.
fn behind_a_door(topology: &str, door: &str) -> Manifest {
    let mut manifest = Manifest::of(&format!("{topology}.yaml"));
    manifest.policy(POLICY).workload(&["sleep", "1000"]);
    let variables = manifest.container("agent")["env"].as_array_mut().expect("a list");
    variables.push(json!({"name": "OPENSHELL_SSH_SOCKET_PATH", "value": door}));
    manifest
}

/// A pod's agent, reached as `kubectl exec` would.
struct Reached<'p> {
    podman: &'p Podman<'p>,
    container: String,
}

impl Reached<'_> {
    /// The options and the environment with which OpenSSH's `program` reaches it.
    fn client(&self, program: &str) -> Command {
        let proxy = self.podman.command(["exec", "-i", &self.container, EXECUTABLE, "connect"]);
        let words = [proxy.get_program()].into_iter().chain(proxy.get_args());
        let line: Vec<&str> = words.map(|word| word.to_str().expect("text")).collect();
        let mut client = Command::new(program);
        client.args(["-F", "/dev/null", "-o", &format!("ProxyCommand={}", line.join(" "))]);
        for option in ["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "BatchMode=yes", "LogLevel=ERROR"] {
            client.args(["-o", option]);
        }
        client.envs(proxy.get_envs().filter_map(|(name, value)| Some((name, value?)))).stdin(Stdio::null());
        client
    }

    fn runs(&self, line: &str) -> std::process::Output {
        self.client("ssh").args(["sandbox@pod", line]).output().expect("ssh, which .ci/run installs")
    }
}

/// Waits until its door opens.
#[track_caller]
fn until_it_opens(reached: &Reached<'_>, pod: &Pod<'_>) {
    eventually("the door opens", || {
        assert!(pod.runs("agent"), "{}", pod.everything());
        reached.runs("/bin/true").status.success()
    });
}

#[test]
fn rendered_pods_are_reached_through_their_runtime() {
    let world = World::new();
    let _origin = Origin::start_at(&world, ORIGIN_V4, 80, origins::hello());
    let podman = Podman::new(&world);
    for (topology, door) in DOORS {
        let mut manifest = behind_a_door(topology, door);
        // Debian's programs beside busybox's: bash and Python among them.
        manifest.programs_of_this_machine(Some("agent"));
        let pod = podman.start(&manifest);
        let reached = Reached { podman: &podman, container: format!("{}-agent", pod.name()) };
        until_it_opens(&reached, &pod);
        expect(reached.runs("id -u; grep NoNewPrivs /proc/self/status; exit 7"), 7, "1000\nNoNewPrivs:\t1\n");
        // Confined as the workload: by the proxy, or not at all.
        let fetch = "curl -sS http://api.example.com/; curl -sS --noproxy '*' -m 5 http://10.99.0.2/; echo $?";
        expect(reached.runs(fetch), 0, "hello from GET /\n7\n");
        // Files, by either protocol, with what the image has left out.
        let file = world.file("luggage", "0123456789".repeat(100_000));
        for flag in ["-s", "-O"] {
            let mut up = reached.client("scp");
            up.args([flag, "-q"]).arg(&file).arg("sandbox@pod:/tmp/luggage");
            let up = up.output().expect("scp");
            assert!(up.status.success(), "{topology} {flag}: {}", text(&up.stderr));
            let back = world.directory().join("back");
            let mut down = reached.client("scp");
            down.args([flag, "-q", "sandbox@pod:/tmp/luggage"]).arg(&back);
            let down = down.output().expect("scp");
            assert!(down.status.success(), "{topology} {flag}: {}", text(&down.stderr));
            assert_eq!(fs::read(&back).expect("a file"), fs::read(&file).expect("a file"));
            fs::remove_file(back).expect("remove");
        }
        // A port.
        let mut server = reached.client("ssh");
        server.args(["sandbox@pod", "cd /usr/share && exec busybox httpd -f -p 127.0.0.1:7010"]);
        let _server = Daemon::spawn(server);
        let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
        let mut forward = reached.client("ssh");
        forward.args(["-N", "-L", &format!("{free}:127.0.0.1:7010"), "sandbox@pod"]);
        let _forward = Daemon::spawn(forward);
        eventually("the port is reached", || {
            let mut curl = Command::new("curl");
            curl.args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &format!("http://{free}/")]);
            text(&curl.output().expect("curl").stdout) == "404"
        });
        // From inside, the same program does not get in.
        let knock = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ntry: s.connect(sys.argv[1].replace('@', chr(0))); \
                     print(s.recv(99))\nexcept OSError as e: print(e)";
        let inside = text(&reached.runs(&format!("python3 -c \"{knock}\" {door}")).stdout);
        assert!(!inside.is_empty() && !inside.contains("SSH-2.0-"), "{topology}: {inside}");
        // The control: it does where the runtime has put it into the container.
        let outside = text(&pod.exec("agent", None, &["/usr/bin/python3", "-c", knock, door]).stdout);
        assert!(outside.contains("SSH-2.0-"), "{topology}: {outside}");
    }
}

#[test]
fn an_image_with_one_static_program_is_reached_and_needs_no_more() {
    let world = World::new();
    let podman = Podman::new(&world);
    let context = podman.path("bare");
    let (programs, temporary) = (context.join("rootfs/usr/bin"), context.join("rootfs/tmp"));
    for directory in [&programs, &temporary] {
        fs::create_dir_all(directory).expect("a directory");
    }
    fs::set_permissions(&temporary, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).expect("chmod");
    // One program under two names: by each it does one thing.
    let busybox = ["/usr/bin/busybox", "/bin/busybox"].into_iter().find(|path| fs::metadata(path).is_ok());
    fs::copy(busybox.expect("busybox-static, which .ci/run installs"), programs.join("sleep")).expect("copy");
    fs::hard_link(programs.join("sleep"), programs.join("cat")).expect("link");
    fs::write(context.join("Containerfile"), "FROM scratch\nCOPY rootfs/ /\nENV PATH=/usr/bin\n").expect("write");
    podman.expect(["build", "--quiet", "--network", "none", "--tag", "localhost/bare", &context.display().to_string()]);
    for (topology, door) in DOORS {
        let mut manifest = behind_a_door(topology, door);
        manifest.workload(&["/usr/bin/sleep", "1000"]);
        manifest.container("agent")["image"] = json!("localhost/bare");
        let pod = podman.start(&manifest);
        let reached = Reached { podman: &podman, container: format!("{}-agent", pod.name()) };
        eventually("the door opens", || {
            assert!(pod.runs("agent"), "{}", pod.everything());
            reached.runs("sleep 0").status.success()
        });
        // Words are split without a shell, and what needs one says so.
        expect(reached.runs("cat '/proc/self/comm' \"/proc/self/comm\""), 0, "cat\ncat\n");
        let needs = reached.runs("cat /etc/passwd | cat");
        assert!(!needs.status.success() && text(&needs.stderr).contains("no shell"), "{needs:?}");
        let shell = reached.client("ssh").arg("sandbox@pod").output().expect("ssh");
        assert!(!shell.status.success() && text(&shell.stderr).contains("give a command"), "{shell:?}");
        // No tar, no scp, no sftp-server, and files go in and out all the same.
        let file = world.file("luggage", "0123456789".repeat(100_000));
        for flag in ["-s", "-O"] {
            let mut up = reached.client("scp");
            up.args([flag, "-q"]).arg(&file).arg("sandbox@pod:/tmp/luggage");
            let up = up.output().expect("scp");
            assert!(up.status.success(), "{topology} {flag}: {}", text(&up.stderr));
            assert_eq!(reached.runs("cat /tmp/luggage").stdout, fs::read(&file).expect("a file"));
        }
    }
}

/// What Debian takes to be no system without, as files: its essential packages and what these depend on, as they are installed
/// on this machine.
fn debian() -> BTreeSet<PathBuf> {
    let query = |arguments: &[&str]| {
        let output = Command::new("dpkg-query").args(arguments).output().expect("dpkg-query: these tests need Debian");
        text(&output.stdout)
    };
    let known = query(&["-W", "-f", "${Package}\t${Essential}\t${Pre-Depends}, ${Depends}\n"]);
    let packages: HashMap<&str, (bool, &str)> = known
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(name, rest)| Some((name, rest.split_once('\t').map(|(flag, needs)| (flag == "yes", needs))?)))
        .collect();
    let mut ahead: Vec<&str> =
        packages.iter().filter(|(_, (essential, _))| *essential).map(|(&name, _)| name).collect();
    let mut wanted = BTreeSet::new();
    while let Some(package) = ahead.pop() {
        let Some((_, needs)) = packages.get(package) else { continue };
        if wanted.insert(package) {
            let names = needs.split([',', '|']).filter_map(|need| need.trim().split([' ', ':']).next());
            ahead.extend(names.filter(|name| !name.is_empty()));
        }
    }
    let mut arguments = vec!["-L"];
    arguments.extend(&wanted);
    let is_read_by_people = |path: &Path| {
        ["doc", "man", "locale", "info"].iter().any(|of| path.starts_with(Path::new("/usr/share").join(of)))
    };
    let mut files: BTreeSet<PathBuf> = query(&arguments)
        .lines()
        .map(PathBuf::from)
        // `/bin` and its like are links, which no archive may pass through.
        .filter_map(|path| Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?)))
        .filter(|path| path.symlink_metadata().is_ok() && !is_read_by_people(path))
        .collect();
    files.extend(["/etc/passwd", "/etc/group"].map(PathBuf::from));
    files
}

#[test]
fn a_debian_image_is_reached_with_all_that_is_its_own() {
    let world = World::new();
    let _origin = Origin::start_at(&world, ORIGIN_V4, 80, origins::hello());
    let podman = Podman::new(&world);
    let (list, archive) = (podman.path("debian.list"), podman.path("debian.tar"));
    let files = debian();
    let lines: Vec<&str> = files.iter().map(|path| path.to_str().expect("text").trim_start_matches('/')).collect();
    fs::write(&list, lines.join("\n")).expect("write");
    let mut tar = Command::new("tar");
    tar.args(["-C", "/", "--no-recursion", "-cf"]).arg(&archive).arg("-T").arg(&list);
    assert!(tar.status().expect("tar").success());
    podman.expect(["import", "--quiet", &archive.display().to_string(), "localhost/debian"]);
    let version = fs::read_to_string("/etc/debian_version").expect("Debian");
    for (topology, door) in DOORS {
        let mut manifest = behind_a_door(topology, door);
        manifest.policy(&POLICY.replace("curl", "bash")).container("agent")["image"] = json!("localhost/debian");
        let pod = podman.start(&manifest);
        let reached = Reached { podman: &podman, container: format!("{}-agent", pod.name()) };
        until_it_opens(&reached, &pod);
        // Its shell is bash, and a shell that is asked for alone is one too.
        expect(
            reached.runs("cat /etc/debian_version; words=(a b); echo ${#words[@]} ${BASH_VERSION%%.*}"),
            0,
            &format!("{version}2 5\n"),
        );
        let mut login = reached.client("ssh");
        login.args(["-tt", "sandbox@pod"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut login = Daemon::spawn(login);
        let mut keys = login.child().stdin.take().expect("a pipe");
        std::io::Write::write_all(&mut keys, b"tty; shopt -q login_shell && echo $((6 * 7)); exit 3\n").expect("write");
        let mut shown = String::new();
        let mut screen = login.child().stdout.take().expect("a pipe");
        std::io::Read::read_to_string(&mut screen, &mut shown).expect("read");
        assert!(shown.contains("/dev/pts/") && shown.contains("42"), "{topology}: {shown}");
        assert_eq!(login.child().wait().expect("ssh").code(), Some(3), "{topology}");
        // Its own tar and Perl, in a pipe, and files that they made.
        let packed = "cd /tmp && perl -e 'print \"x\" x 3000000' >packed && tar -cz packed | tar -tz; wc -c <packed";
        expect(reached.runs(packed), 0, "packed\n3000000\n");
        for flag in ["-s", "-O"] {
            let back = world.directory().join("back");
            let mut down = reached.client("scp");
            down.args([flag, "-q", "sandbox@pod:/tmp/packed"]).arg(&back);
            let down = down.output().expect("scp");
            assert!(down.status.success(), "{topology} {flag}: {}", text(&down.stderr));
            assert_eq!(fs::read(&back).expect("a file"), "x".repeat(3_000_000).as_bytes());
        }
        // Confined as the workload: what asks past the proxy is refused at once.
        let past = "exec 3<>/dev/tcp/10.99.0.2/80";
        assert!(!reached.runs(past).status.success(), "{topology}");
        let by_proxy = "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://api.example.com/ HTTP/1.0\\r\\n\\r\\n' >&3; \
                        mapfile -t lines <&3; echo ${lines[-1]}";
        expect(reached.runs(by_proxy), 0, "hello from GET /\n");
    }
}
