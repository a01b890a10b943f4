//! Promises 29.4x: the sandboxes whose fence is a NetworkPolicy, as `render` prints them, played by Podman behind a stand-in for
//! the cluster's network (see [`crate::cluster`]).

use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::json;

use crate::cluster::{API_SERVER, Cluster};
use crate::origins::{self, Origin};
use crate::podman::{ALONE, Manifest, Pod, Podman, repository, text};
use crate::pods::{Heard, POLICY};
use crate::render;
use crate::world::{ORIGIN_V4, ORIGIN_V6, World, eventually};

/// What a pod of each container is called in the tests.
const AGENT: &str = "agent";
const PROXY: &str = "openshell-supervisor-network";

/// Tries what it may and what it may not, and goes on.
const WORKLOAD: [&str; 3] = [
    "sh",
    "-c",
    "curl -sS http://api.example.com/; curl -sS http://other.example.com/; curl -sS --noproxy '*' -m 10 http://10.99.0.2:8080/; \
     grep Cap /proc/self/status; echo end; sleep 1000",
];

/// Ways around the proxy, a line each with what came of it; of datagrams only the other side knows.
const AROUND: &str = r"
import errno, socket
def attempt(name, family, address, port):
    s = socket.socket(family); s.settimeout(5)
    try: s.connect((address, port)); print(name, 'PASSED')
    except OSError as error: print(name, errno.errorcode.get(error.errno, str(error)))
attempt('web', socket.AF_INET, '10.99.0.2', 8080)
attempt('web6', socket.AF_INET6, 'fd99::2', 8080)
attempt('api-server', socket.AF_INET, '10.99.0.2', 6443)
for family, address in ((socket.AF_INET, '10.99.0.2'), (socket.AF_INET6, 'fd99::2')):
    socket.socket(family, socket.SOCK_DGRAM).sendto(b'out', (address, 5353))
";
/// What routers answer who say that it is prohibited (RFC 1812 §5.2.7.1, RFC 4443 §3.1), as connect(2) has it.
const REFUSED: &str = "web EHOSTUNREACH\nweb6 EACCES\napi-server EHOSTUNREACH\n";
const PASSED: &str = "web PASSED\nweb6 PASSED\napi-server PASSED\n";

/// What lies outside: a page that the policy knows, the same on a port that nobody may reach, and the API server.
struct Outside {
    _pages: [Origin; 2],
    _api_server: TcpListener,
    heard: Heard,
}

impl Outside {
    fn new(world: &World) -> Self {
        let page = |port| Origin::start_at(world, Ipv6Addr::UNSPECIFIED, port, origins::hello());
        Self {
            _pages: [page(80), page(8080)],
            _api_server: world.listen(ORIGIN_V4, API_SERVER),
            heard: Heard::new(world),
        }
    }
}

/// What is rendered of the sandbox of `images/pods` with more settings.
fn cluster<'w>(world: &'w World, settings: &str, flags: &[&str]) -> Cluster<'w> {
    let at = |name: &str| std::fs::read_to_string(repository().join("images/pods").join(name)).expect("a file");
    let config = world.file("driver.toml", at("driver.toml") + settings);
    let sandbox = world.file("sandbox.yaml", at("sandbox.yaml"));
    let secrets = render::secrets(world.directory());
    let mut arguments =
        vec!["--config", config.to_str().expect("UTF-8"), "--sandbox", sandbox.to_str().expect("UTF-8")];
    arguments.extend(secrets.iter().map(String::as_str));
    arguments.extend(flags);
    Cluster::new(world, &render::printed(&render::run(&arguments)))
}

fn proxy_pod<'w>(world: &'w World, settings: &str) -> Cluster<'w> {
    cluster(world, settings, &["--topology", "proxy-pod"])
}

/// The agent's pod: its workload, and this machine's programs for what is executed beside that.
fn agent(cluster: &mut Cluster<'_>, workload: &[&str]) -> Manifest {
    let mut manifest = cluster.pod("Pod", ALONE[0]);
    manifest.policy(POLICY).workload(workload).programs_of_this_machine(Some(AGENT));
    manifest
}

/// The pods of a proxy-pod sandbox, made and not started.
fn pods<'p>(cluster: &mut Cluster<'_>, podman: &'p Podman<'_>, workload: &[&str]) -> [Pod<'p>; 2] {
    let mut proxy = cluster.pod("Deployment", ALONE[1]);
    proxy.policy(POLICY);
    let mut agent = agent(cluster, workload);
    // The cluster's DNS.
    let service = json!({"ip": ALONE[1].addresses()[0], "hostnames": [cluster.service()]});
    agent.spec()["hostAliases"].as_array_mut().expect("a list").push(service);
    [cluster.make(podman, "Pod", ALONE[0], &agent), cluster.make(podman, "Deployment", ALONE[1], &proxy)]
}

#[track_caller]
fn started(pod: &Pod<'_>) {
    let output = pod.begin();
    assert!(output.status.success(), "{}\n{}", text(&output.stderr), pod.everything());
}

/// Waits until the workload has tried, and returns what it said.
#[track_caller]
fn tried(pod: &Pod<'_>) -> String {
    eventually("the workload has tried", || pod.logs(AGENT).contains("end\n") || !pod.runs(AGENT));
    pod.logs(AGENT)
}

/// What curl prints that was executed in the agent's container and goes through the proxy.
fn curl(pod: &Pod<'_>, host: &str) -> String {
    let url = format!("http://{host}/");
    let output = pod.exec(AGENT, None, &["/usr/bin/curl", "-sS", "-m", "20", "-x", "http://127.0.0.1:3128", &url]);
    text(&output.stdout) + &text(&output.stderr)
}

fn around(pod: &Pod<'_>) -> String {
    let output = pod.exec(AGENT, None, &["/usr/bin/python3", "-c", AROUND]);
    text(&output.stdout) + &text(&output.stderr)
}

/// Sees that no container has a capability: as the runtime was told, and as the kernel has it of the first process.
#[track_caller]
fn without_capabilities(pod: &Pod<'_>, containers: &[&str]) {
    for container in containers {
        assert_eq!(pod.inspect(container, ".EffectiveCaps"), "[]", "{container}");
    }
    let status = text(&pod.exec(AGENT, None, &["cat", "/proc/1/status"]).stdout);
    let capabilities: Vec<&str> = status.lines().filter(|line| line.starts_with("Cap")).collect();
    assert_eq!(capabilities.len(), 5, "{status}");
    assert!(capabilities.iter().all(|line| line.ends_with("\t0000000000000000")), "{status}");
    assert!(status.contains("NoNewPrivs:\t1\n"), "{status}");
}

/// Whether somebody who is neither of the pods reaches the proxy.
fn a_stranger_reaches_the_proxy(world: &World) -> bool {
    let proxy = SocketAddr::from((ALONE[1].addresses()[0], 3128));
    world.in_origin(move || TcpStream::connect_timeout(&proxy, Duration::from_secs(5)).is_ok())
}

#[test]
fn a_rendered_proxy_pod_sandbox_runs_behind_its_network_policies_and_nothing_else_holds_it() {
    let world = World::new();
    let outside = Outside::new(&world);
    let podman = Podman::new(&world);
    let mut cluster = proxy_pod(&world, "");
    let [agent, proxy] = pods(&mut cluster, &podman, &WORKLOAD);
    cluster.enforce(&["os-eg-", "os-ing-"]);
    started(&proxy);
    started(&agent);
    let said = tried(&agent);
    assert!(said.contains("hello from GET /"), "{said}\n{}\n{}", agent.everything(), proxy.everything());
    assert!(said.contains("policy_denied") && said.contains("Failed to connect"), "{said}");
    assert_eq!(said.matches("\t0000000000000000\n").count(), 5, "{said}");
    assert!(agent.logs("openshell-verify-fence").contains("is prohibited by"), "{}", agent.everything());
    without_capabilities(
        &agent,
        &[
            "openshell-supervisor-install",
            "openshell-proxy-ca-install",
            "wait-for-proxy",
            "openshell-verify-fence",
            AGENT,
        ],
    );
    assert_eq!(proxy.inspect(PROXY, ".EffectiveCaps"), "[]");
    // Whoever comes into the agent's container is held as well, and is told apart by its program.
    assert_eq!(around(&agent), REFUSED);
    assert_eq!(outside.heard.something(), 0);
    assert!(!a_stranger_reaches_the_proxy(&world));
    assert_eq!(curl(&agent, "api.example.com"), "hello from GET /\n", "{}", proxy.everything());
    let python = "import urllib.request as r\no = r.build_opener(r.ProxyHandler({'http': 'http://127.0.0.1:3128'}))\ntry: \
                  print(o.open('http://api.example.com/').read())\nexcept OSError as e: print(e.read())";
    let denied = text(&agent.exec(AGENT, None, &["/usr/bin/python3", "-c", python]).stdout);
    assert!(denied.contains("policy_denied") && denied.contains("/usr/bin/python3."), "{denied}");

    // The proxy goes and comes back; then the agent does.
    proxy.stop();
    assert!(curl(&agent, "api.example.com").contains("proxy_unavailable"), "{}", agent.everything());
    started(&proxy);
    eventually("the proxy is found again", || curl(&agent, "api.example.com") == "hello from GET /\n");
    agent.stop_and_start();
    eventually("the agent serves again", || curl(&agent, "api.example.com") == "hello from GET /\n");
    assert_eq!(around(&agent), REFUSED);

    // Control: it is the two policies, each for its own, and nothing else.
    cluster.enforce(&["os-eg-"]);
    assert_eq!((around(&agent).as_str(), a_stranger_reaches_the_proxy(&world)), (REFUSED, true));
    assert_eq!(outside.heard.something(), 0);
    cluster.enforce(&["os-ing-"]);
    assert_eq!((around(&agent).as_str(), a_stranger_reaches_the_proxy(&world)), (PASSED, false));
    assert_eq!(outside.heard.something(), 2);
}

#[test]
fn an_agent_whose_network_policy_nobody_enforces_never_starts() {
    let world = World::new();
    let _outside = Outside::new(&world);
    let podman = Podman::new(&world);
    let mut cluster = proxy_pod(&world, "");
    let verify = cluster.object("Pod", "")["spec"]["initContainers"].as_array_mut().expect("a list");
    let verify = verify.iter_mut().find(|container| container["name"] == "openshell-verify-fence").expect("the proof");
    let words = verify["command"].as_array_mut().expect("a list");
    *words.iter_mut().find(|word| **word == "--timeout=600").expect("how long it waits") = "--timeout=1".into();
    let [agent, proxy] = pods(&mut cluster, &podman, &WORKLOAD);
    started(&proxy);
    assert!(!agent.begin().status.success());
    assert!(
        agent.logs("openshell-verify-fence").contains("no NetworkPolicy keeps this pod from it"),
        "{}",
        agent.everything()
    );
    assert_eq!(agent.logs(AGENT), "");
    // Control.
    cluster.enforce(&["os-eg-", "os-ing-"]);
    started(&agent);
    assert!(tried(&agent).contains("hello from GET /"), "{}", agent.everything());
}

#[test]
fn a_rendered_platform_sandbox_is_one_pod_without_a_capability_behind_its_network_policy() {
    let world = World::new();
    let outside = Outside::new(&world);
    let podman = Podman::new(&world);
    let settings = format!(
        "sandbox_uid = 1000\nnetwork_enforcement = \"platform\"\nplatform_network.controls = [\"api.example.com:80\"]\n\
         platform_network.egress = [{{cidr = \"{ORIGIN_V4}/32\", ports = [80]}}, {{cidr = \"{ORIGIN_V6}/128\", ports = [80]}}]\n"
    );
    let mut cluster = cluster(&world, &settings, &[]);
    let manifest = agent(&mut cluster, &WORKLOAD);
    let pod = cluster.make(&podman, "Pod", ALONE[0], &manifest);
    cluster.enforce(&["os-eg-"]);
    started(&pod);
    let said = tried(&pod);
    assert!(said.contains("hello from GET /"), "{said}\n{}", pod.everything());
    assert!(said.contains("policy_denied") && said.contains("Failed to connect"), "{said}");
    without_capabilities(&pod, &["openshell-supervisor-install", "openshell-verify-fence", AGENT]);
    assert_eq!(around(&pod), REFUSED);
    pod.stop_and_start();
    eventually("it serves again", || curl(&pod, "api.example.com") == "hello from GET /\n");
    assert_eq!(around(&pod), REFUSED);
    assert_eq!(outside.heard.something(), 0);
    // What it gives up, as the objects say: what the policy allows is reached without the proxy.
    let direct = pod.exec(AGENT, None, &["/usr/bin/curl", "-sS", "--noproxy", "*", "http://other.example.com/"]);
    assert_eq!(text(&direct.stdout), "hello from GET /\n", "{}", text(&direct.stderr));
    // Control.
    cluster.enforce(&[]);
    assert_eq!(around(&pod), PASSED);
    assert_eq!(outside.heard.something(), 2);
}

/// OpenSSH's client for a container: what `podman exec` starts there joins it to the door.
fn ssh(program: &str, pod: &Pod<'_>) -> Command {
    let connect = pod.exec_interactively(AGENT, &["/opt/openshell/bin/openshell-supervisor", "connect"]);
    let words = [connect.get_program()].into_iter().chain(connect.get_args());
    let words: Vec<&str> = words.map(|word| word.to_str().expect("UTF-8")).collect();
    let mut command = Command::new(program);
    command.envs(connect.get_envs().filter_map(|(name, value)| value.map(|value| (name, value))));
    command.args(["-F", "/dev/null", "-o", &format!("ProxyCommand={}", words.join(" ")), "-o", "LogLevel=ERROR"]);
    command.args(["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes"]);
    command.stdin(Stdio::null());
    command
}

#[track_caller]
fn expect(output: Output, stdout: &str) {
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(0), stdout), "{}", text(&output.stderr));
}

#[test]
fn ssh_scp_and_forwards_reach_a_proxy_pods_agent_by_podman_exec() {
    let world = World::new();
    let _outside = Outside::new(&world);
    let podman = Podman::new(&world);
    let mut cluster = proxy_pod(&world, "");
    let serves = [
        "sh",
        "-c",
        "echo page >/sandbox/index.html; busybox httpd -f -p 127.0.0.1:8000 -h /sandbox & sleep 1; echo end; sleep 1000",
    ];
    let [agent, proxy] = pods(&mut cluster, &podman, &serves);
    cluster.enforce(&["os-eg-", "os-ing-"]);
    started(&proxy);
    started(&agent);
    tried(&agent);
    // A command: confined as the workload, and told of the proxy like it.
    let line = "id -u; grep -c 'Cap.*0000000000000000' /proc/self/status; curl -sS http://api.example.com/; \
                curl -sS http://other.example.com/ | grep -o policy_denied; touch /etc/x 2>/dev/null || echo refused";
    let output = ssh("ssh", &agent).args(["sandbox@demo", line]).output().expect("ssh, which .ci/run installs");
    expect(output, "1000\n5\nhello from GET /\npolicy_denied\nrefused\n");
    // Files, by SFTP and by the older protocol.
    for (flags, name) in [(&[][..], "sftp"), (&["-O"][..], "scp")] {
        let file = world.file(name, name);
        let output = ssh("scp", &agent).args(flags).arg(&file).arg(format!("sandbox@demo:/sandbox/{name}.md")).output();
        expect(output.expect("scp, which .ci/run installs"), "");
        let back = world.directory().join(format!("{name}.back"));
        let output = ssh("scp", &agent).args(flags).arg(format!("sandbox@demo:/sandbox/{name}.md")).arg(&back).output();
        expect(output.expect("scp"), "");
        assert_eq!(std::fs::read_to_string(back).expect("the file"), name);
    }
    assert_eq!(text(&agent.exec(AGENT, None, &["cat", "/sandbox/sftp.md"]).stdout), "sftp");
    // A port of the sandbox's own loopback.
    let within = "curl -sS --noproxy '*' http://127.0.0.1:8000/";
    let output = ssh("ssh", &agent).args(["sandbox@demo", within]).output().expect("ssh");
    assert_eq!(text(&output.stdout), "page\n", "{}\n{}", text(&output.stderr), agent.everything());
    let port = TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("an address").port();
    let forward = format!("127.0.0.1:{port}:127.0.0.1:8000");
    let mut forwarding = ssh("ssh", &agent);
    forwarding.args(["-N", "-o", "ExitOnForwardFailure=yes", "-L", &forward, "sandbox@demo"]);
    let _forwarding = crate::world::Daemon::spawn(forwarding);
    let url = format!("http://127.0.0.1:{port}/");
    let page = || Command::new("curl").args(["-sS", "-m", "5", "--noproxy", "*", &url]).output().expect("curl");
    eventually("the page is forwarded", || text(&page().stdout) == "page\n");
    // Control: in a sandbox without a door the same is refused, and says what is missing.
    drop((agent, proxy));
    let mut cluster = proxy_pod(&world, "ssh_socket_path = \"\"\n");
    let [agent, proxy] = pods(&mut cluster, &podman, &serves);
    started(&proxy);
    started(&agent);
    tried(&agent);
    // Podman may lose what a command says that ends at once.
    eventually("it says what is missing", || {
        let output = ssh("ssh", &agent).args(["sandbox@demo", "id -u"]).output().expect("ssh");
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        text(&output.stderr).contains("ssh.sock")
    });
}
