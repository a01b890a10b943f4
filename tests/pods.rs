//! Promises 24.x: pods for real, from images that are built here and the manifests of `images/pods`.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, TcpListener, UdpSocket};
use std::time::Duration;

use serde_json::json;

use crate::origins::{self, Origin};
use crate::podman::{Manifest, Pod, Podman, text};
use crate::world::{ORIGIN_V4, ORIGIN_V6, World, eventually};

/// A pod whose agent runs what an init container has laid into its volume.
const SIDELOADED: &str = r"
apiVersion: v1
kind: Pod
metadata: {name: sideloaded, annotations: {io.podman.annotations.init.container.type: always}}
spec:
  restartPolicy: Never
  volumes: [{name: bin, emptyDir: {}}]
  initContainers:
    - name: install
      image: localhost/openshell-supervisor
      command: [/openshell-sideload, /opt/openshell/bin/]
      securityContext: &unprivileged
        {runAsUser: 1000, runAsGroup: 1000, runAsNonRoot: true, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true,
         capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
      volumeMounts: [{name: bin, mountPath: /opt/openshell/bin}]
    - name: wait
      image: localhost/openshell-supervisor
      command: [/openshell-supervisor, wait-for-tcp, 'api.example.com:3128', --timeout, '20']
      securityContext: *unprivileged
  containers:
    - name: agent
      image: localhost/openshell-sandbox
      command: [/opt/openshell/bin/openshell-supervisor, --version]
      securityContext: *unprivileged
      volumeMounts: [{name: bin, mountPath: /opt/openshell/bin, readOnly: true}]
";

#[test]
fn the_supervisor_image_holds_one_executable_and_links_that_choose_roles() {
    let world = World::new();
    let podman = Podman::new(&world);
    let run = |arguments: &[&str]| {
        let mut all = vec!["run", "--rm", "--read-only", "--user=4242:4242", "--cap-drop=all"];
        all.extend(["--security-opt=no-new-privileges", "--network=none"]);
        all.extend(arguments);
        podman.output(all)
    };
    let listed = run(&["localhost/openshell-supervisor", "--list"]);
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    for role in ["sideload", "wait-for-tcp", "health", "network"] {
        assert!(text(&listed.stdout).contains(role), "{role}: {}", text(&listed.stdout));
        let entry = format!("--entrypoint=/openshell-{role}");
        let help = run(&[&entry, "localhost/openshell-supervisor", "--help"]);
        assert!(text(&help.stdout).contains(&format!("Usage: openshell-supervisor {role}")), "{}", text(&help.stdout));
    }
    // Control: nothing else is there to be run.
    for absent in ["/bin/sh", "/usr/bin/env"] {
        let entry = format!("--entrypoint={absent}");
        assert!(!run(&[&entry, "localhost/openshell-supervisor"]).status.success(), "{absent}");
        assert!(run(&[&entry, "localhost/openshell-sandbox"]).status.success(), "{absent}");
    }
    // The agents' image can do what agents do.
    let curl = run(&["localhost/openshell-sandbox", "curl", "--version"]);
    assert!(text(&curl.stdout).contains("https"), "{}", text(&curl.stderr));
}

#[test]
fn init_containers_sideload_and_wait_without_a_privilege() {
    let world = World::new();
    let _service = world.listen(ORIGIN_V4, 3128);
    let podman = Podman::new(&world);
    let mut manifest = Manifest::parse(SIDELOADED);
    let pod = podman.start(&manifest);
    assert_eq!(pod.end_of("agent", Duration::from_secs(20)).0, 0, "{}", pod.everything());
    assert!(pod.logs("agent").starts_with("openshell-supervisor "), "{}", pod.everything());
    assert!(pod.logs("install").contains(" to /opt/openshell/bin/openshell-supervisor"), "{}", pod.everything());
    assert!(pod.logs("wait").contains("api.example.com:3128 accepts at 10.99.0.2:3128"), "{}", pod.everything());
    drop(pod);
    // Control: a volume that cannot be written keeps the agent from starting, and the init container says why.
    manifest.container("install")["volumeMounts"][0]["readOnly"] = json!(true);
    let (pod, _) = podman.play(&manifest);
    assert!(pod.logs("install").contains("without readOnly"), "{}", pod.everything());
    assert_eq!(pod.logs("agent"), "");
}

/// Lets curl reach one name.
pub const POLICY: &str = "version: 1\nnetwork_policies:\n  test:\n    endpoints:\n      - {host: api.example.com, port: 80}\n    \
                      binaries:\n      - {path: /usr/bin/curl}\n";

/// The sidecar pod with a policy of the tests' own. Its agent sleeps, and what the tests run in it has more freedom than
/// the workload has: neither Landlock nor seccomp nor an environment of the supervisor's.
fn fenced() -> Manifest {
    let mut manifest = Manifest::of("sidecar.yaml");
    manifest.policy(POLICY);
    manifest.container("agent")["command"] = json!(["sleep", "1000"]);
    let network = manifest.container("openshell-supervisor-network")["command"].as_array_mut().expect("a list");
    // The other end of the control channel is what sleeps.
    network.retain(|argument| {
        argument
            .as_str()
            .is_none_or(|argument| !argument.starts_with("--control-socket") && !argument.starts_with("--sandbox-"))
    });
    manifest.programs_of_this_machine(Some("agent"));
    manifest
}

/// What the end of one container may take to end the other. The promise is a second; Podman takes another to tell.
const COUPLED: Duration = Duration::from_secs(3);

/// Waits until the proxy of a pod serves.
fn until_it_serves(pod: &Pod<'_>) {
    let wait = ["/openshell-supervisor", "wait-for-tcp", "127.0.0.1:3128", "--timeout", "20"];
    let output = pod.exec("openshell-supervisor-network", None, &wait);
    assert!(output.status.success(), "{}\n{}", text(&output.stderr), pod.everything());
}

/// The act that removes the mechanism, for controls: nobody in the pod could.
pub fn remove_the_fence(pod: &Pod<'_>) {
    let output = pod.in_its_network("agent", "nft", &["delete", "table", "inet", "openshell_fence"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// Every way around the proxy that a program has; a line each, with what the kernel said.
pub const AROUND: &str = r"
import errno, os, socket, struct, sys
def attempt(name, act):
    try:
        act()
        print(name, 'PASSED')
    except OSError as error:
        print(name, errno.errorcode.get(error.errno, str(error)))
def tcp(family, address):
    s = socket.socket(family); s.settimeout(3); s.connect((address, 80))
def udp(family, address):
    s = socket.socket(family, socket.SOCK_DGRAM); s.sendto(b'out', (address, 5353))
def checksum(data):
    total = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff
def echo(family, kind):
    six = family == socket.AF_INET6
    s = socket.socket(family, kind, socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP)
    head = lambda sum: struct.pack('!BBHHH', 128 if six else 8, 0, sum, 7, 1)
    s.settimeout(3); s.connect(('fd99::2' if six else '10.99.0.2', 0))
    s.send(head(0 if six else checksum(head(0)))); s.recv(100)
def raw():
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 253); s.sendto(b'out', ('10.99.0.2', 0))
def raw6():
    s = socket.socket(socket.AF_INET6, socket.SOCK_RAW, 253); s.sendto(b'out', ('fd99::2', 0))
def header():
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    udp = struct.pack('!HHHH', 4000, 5353, 11, 0) + b'out'
    own = socket.inet_aton(os.environ.get('OWN', '10.88.77.2'))
    s.sendto(struct.pack('!BBHHHBBH4s4s', 69, 0, 20 + len(udp), 1, 0, 64, 17, 0, own, socket.inet_aton('10.99.0.2')) + udp, ('10.99.0.2', 0))
attempt('tcp', lambda: tcp(socket.AF_INET, '10.99.0.2'))
attempt('tcp6', lambda: tcp(socket.AF_INET6, 'fd99::2'))
attempt('udp', lambda: udp(socket.AF_INET, '10.99.0.2'))
attempt('udp6', lambda: udp(socket.AF_INET6, 'fd99::2'))
attempt('gateway', lambda: udp(socket.AF_INET, '10.88.77.1'))
if len(sys.argv) > 1:
    attempt('ping', lambda: echo(socket.AF_INET, socket.SOCK_DGRAM))
    attempt('ping6', lambda: echo(socket.AF_INET6, socket.SOCK_DGRAM))
    attempt('icmp', lambda: echo(socket.AF_INET, socket.SOCK_RAW))
    attempt('icmp6', lambda: echo(socket.AF_INET6, socket.SOCK_RAW))
    attempt('raw', raw)
    attempt('raw6', raw6)
    attempt('header', header)
";

/// What every way answers when the fence holds.
pub const REFUSED: &str = "tcp ECONNREFUSED\ntcp6 ECONNREFUSED\nudp EPERM\nudp6 EPERM\ngateway EPERM\n";
/// Of ping sockets in IPv6 the call itself forgets it; the fence's answer is the error of the next call.
const REFUSED_RAW: &str = "ping EPERM\nping6 EACCES\nicmp EPERM\nicmp6 EPERM\nraw EPERM\nraw6 EPERM\nheader EPERM\n";

/// What arrives at the origin by UDP.
pub struct Heard(Vec<UdpSocket>);

impl Heard {
    /// Listens at the origin.
    pub fn new(world: &World) -> Self {
        let bind = |address: std::net::IpAddr| {
            let socket = world.in_origin(move || UdpSocket::bind((address, 5353)).expect("bind"));
            socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
            socket
        };
        Self(vec![bind(ORIGIN_V4.into()), bind(ORIGIN_V6.into())])
    }

    /// How many of the sockets have heard something, which is then forgotten.
    pub fn something(&self) -> usize {
        self.0.iter().filter(|socket| (0..).take_while(|_| socket.recv(&mut [0; 16]).is_ok()).count() > 0).count()
    }
}

#[test]
fn behind_the_fence_the_proxy_is_the_only_way_out() {
    let world = World::new();
    let _origin = Origin::start_at(&world, Ipv6Addr::UNSPECIFIED, 80, origins::hello());
    let heard = Heard::new(&world);
    let podman = Podman::new(&world);
    let mut manifest = fenced();
    manifest.intruder(
        "intruder",
        &json!({"runAsUser": 0, "runAsGroup": 0, "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"], "add": ["NET_RAW"]}}),
    );
    let pod = podman.start(&manifest);
    until_it_serves(&pod);
    let curl = |container, arguments: &[&str]| {
        let mut all = vec!["/usr/bin/curl", "-sS", "-m", "10"];
        all.extend(arguments);
        let output = pod.exec(container, None, &all);
        text(&output.stdout) + &text(&output.stderr)
    };
    // Through the proxy: by the policy.
    let proxied = |container, host: &str| curl(container, &["-x", "http://127.0.0.1:3128", &format!("http://{host}/")]);
    assert_eq!(proxied("agent", "api.example.com"), "hello from GET /\n", "{}", pod.everything());
    let denied = proxied("agent", "other.example.com");
    assert!(denied.contains("policy_denied") && denied.contains("/usr/bin/curl"), "{denied}");
    // Around it: nothing, for the workload's user, for root, and for root with raw sockets.
    let around = |container, user, raw: &[&str]| {
        let mut all = vec!["/usr/bin/python3", "-c", AROUND];
        all.extend(raw);
        let output = pod.exec(container, user, &all);
        text(&output.stdout) + &text(&output.stderr)
    };
    assert_eq!(around("agent", None, &[]), REFUSED);
    // Root without the proxy's group, and the proxy's group without root.
    assert_eq!(around("intruder", Some("0:0"), &["raw"]), format!("{REFUSED}{REFUSED_RAW}"));
    assert_eq!(around("intruder", Some("0:1000"), &[]), REFUSED);
    assert_eq!(around("intruder", Some("1000:1337"), &[]), REFUSED);
    assert_eq!(heard.something(), 0);
    assert!(curl("agent", &["--noproxy", "*", "http://10.99.0.2/"]).contains("Failed to connect"));
    // Control: without the fence all of it arrives.
    remove_the_fence(&pod);
    assert_eq!(curl("agent", &["--noproxy", "*", "http://10.99.0.2/"]), "hello from GET /\n");
    let passed = |refused: &str| {
        ["ECONNREFUSED", "EPERM", "EACCES"].iter().fold(refused.to_owned(), |text, error| text.replace(error, "PASSED"))
    };
    assert_eq!(around("agent", None, &[]), passed(REFUSED));
    assert_eq!(around("intruder", Some("0:0"), &["raw"]), passed(&format!("{REFUSED}{REFUSED_RAW}")));
    assert_eq!(heard.something(), 2);
}

#[test]
fn a_program_is_told_apart_in_whatever_container_it_runs() {
    let world = World::new();
    let _origin = Origin::start_at(&world, ORIGIN_V4, 80, origins::hello());
    let podman = Podman::new(&world);
    let mut manifest = fenced();
    let unprivileged = manifest.container("agent")["securityContext"].clone();
    manifest.intruder("other", &unprivileged);
    let pod = podman.start(&manifest);
    until_it_serves(&pod);
    let python = "import urllib.request as r\no = r.build_opener(r.ProxyHandler({'http': 'http://127.0.0.1:3128'}))\ntry: \
                  print(o.open('http://api.example.com/').read())\nexcept OSError as e: print(e.read())";
    for container in ["agent", "other"] {
        let output = pod.exec(container, None, &["/usr/bin/python3", "-c", python]);
        let answer = text(&output.stdout);
        assert!(answer.contains("policy_denied") && answer.contains("/usr/bin/python3."), "{container}: {answer}");
        // Control: the program that the policy names, from the same container.
        let curl = ["/usr/bin/curl", "-sS", "-x", "http://127.0.0.1:3128", "http://api.example.com/"];
        let output = pod.exec(container, None, &curl);
        assert_eq!(text(&output.stdout), "hello from GET /\n", "{container}: {}", text(&output.stderr));
    }
}

#[test]
fn a_setuid_program_gets_no_further_than_its_caller() {
    let world = World::new();
    let _origin = Origin::start_at(&world, Ipv6Addr::UNSPECIFIED, 80, origins::hello());
    let podman = Podman::new(&world);
    podman.image_with("localhost/setuid", "/usr/bin/python3", "/opt/python", 0o4755);
    let mut manifest = fenced();
    manifest.container("agent")["image"] = json!("localhost/setuid");
    manifest.intruder(
        "loose",
        &json!({"runAsUser": 1000, "runAsGroup": 1000, "allowPrivilegeEscalation": true,
                                       "capabilities": {"drop": ["ALL"]}}),
    );
    manifest.container("loose")["image"] = json!("localhost/setuid");
    let pod = podman.start(&manifest);
    let run = |container, script: &str| {
        let output = pod.exec(container, None, &["/usr/bin/env", "PYTHONHOME=/usr", "/opt/python", "-c", script]);
        text(&output.stdout) + &text(&output.stderr)
    };
    let who = "import os; print(os.geteuid(), os.getegid())";
    // The agent may gain no privilege; a container that may becomes root, and root alone is not let out.
    assert_eq!(run("agent", who), "1000 1000\n");
    assert_eq!(run("loose", who), "0 1000\n");
    assert_eq!(run("agent", AROUND), REFUSED);
    assert_eq!(run("loose", AROUND), REFUSED);
    // Control.
    remove_the_fence(&pod);
    assert_eq!(run("loose", AROUND), REFUSED.replace("ECONNREFUSED", "PASSED").replace("EPERM", "PASSED"));
}

/// Connects, leaves a mark, and answers when spoken to.
const HOLDER: &str = "import socket\ns = socket.create_connection(('10.99.0.2', 7000)); s.recv(1)\ntry: s.sendall(b'secret')\nexcept \
                      OSError: pass\nimport time; time.sleep(1000)";

/// Has a program in the pod open a connection to the origin, does `meanwhile`, lets the origin speak, and returns what
/// it hears within two seconds.
fn heard_on_a_held_connection(pod: &Pod<'_>, listener: &TcpListener, meanwhile: impl FnOnce()) -> String {
    let output = pod.exec_in_background("agent", &["/usr/bin/python3", "-c", HOLDER]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let (mut stream, _) = listener.accept().expect("accept");
    meanwhile();
    stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    stream.write_all(b"x").expect("write");
    let mut heard = [0; 16];
    let length = stream.read(&mut heard).unwrap_or_default();
    text(&heard[..length])
}

#[test]
fn a_connection_held_across_the_fence_carries_nothing_out() {
    let world = World::new();
    let listener = world.listen(ORIGIN_V4, 7000);
    let podman = Podman::new(&world);
    let pod = podman.start(&fenced());
    remove_the_fence(&pod);
    // Control first: what is held is held by a program that answers.
    assert_eq!(heard_on_a_held_connection(&pod, &listener, || ()), "secret");
    let heard = heard_on_a_held_connection(&pod, &listener, || {
        // The init container again, as after a restart of the node: it repairs what is gone.
        let output = pod.start_again("openshell-network-init");
        assert!(output.status.success(), "{}{}", text(&output.stderr), pod.everything());
    });
    assert_eq!(heard, "");
}

#[test]
fn a_pod_whose_fence_is_missing_never_starts_its_agent() {
    let world = World::new();
    let _origin = Origin::start_at(&world, Ipv6Addr::UNSPECIFIED, 80, origins::hello());
    let podman = Podman::new(&world);
    let mut manifest = fenced();
    manifest.container("openshell-verify-fence")["command"].as_array_mut().expect("a list").push(json!("--timeout=2"));
    manifest.container("agent")["command"] = json!(["echo", "started"]);
    let mut unfenced = manifest.clone();
    unfenced.spec()["initContainers"].as_array_mut().expect("a list").remove(0);
    let (pod, _) = podman.play(&unfenced);
    assert!(pod.logs("openshell-verify-fence").contains("not proven within 2 s"), "{}", pod.everything());
    assert_eq!(pod.logs("agent"), "");
    drop(pod);
    // Control: with it the agent starts.
    let pod = podman.start(&manifest);
    pod.end_of("agent", Duration::from_secs(20));
    assert_eq!(pod.logs("agent"), "started\n", "{}", pod.everything());
}

#[test]
fn a_pod_that_is_restarted_is_fenced_again_and_serves() {
    let world = World::new();
    let _origin = Origin::start_at(&world, Ipv6Addr::UNSPECIFIED, 80, origins::hello());
    let podman = Podman::new(&world);
    let pod = podman.start(&fenced());
    for turn in 0..2 {
        until_it_serves(&pod);
        let around = pod.exec("agent", None, &["/usr/bin/python3", "-c", AROUND]);
        assert_eq!(text(&around.stdout), REFUSED, "turn {turn}: {}", text(&around.stderr));
        let curl = ["/usr/bin/curl", "-sS", "-x", "http://127.0.0.1:3128", "http://api.example.com/"];
        let output = pod.exec("agent", None, &curl);
        assert_eq!(text(&output.stdout), "hello from GET /\n", "turn {turn}: {}", text(&output.stderr));
        pod.stop_and_start();
    }
    // Control: what the restart brought back is what keeps it inside.
    remove_the_fence(&pod);
    let around = pod.exec("agent", None, &["/usr/bin/python3", "-c", AROUND]);
    assert_eq!(text(&around.stdout), REFUSED.replace("ECONNREFUSED", "PASSED").replace("EPERM", "PASSED"));
}

/// Tries to reach into the proxy by /proc, signals and ptrace; a line each.
const INTO_THE_PROXY: &str = r"
import ctypes, errno, os
target = next(p for p in os.listdir('/proc') if p.isdigit() and b'--mode=network\0' in open(f'/proc/{p}/cmdline', 'rb').read())
def attempt(name, act):
    try:
        act()
        print(name, 'PASSED')
    except OSError as error:
        print(name, errno.errorcode[error.errno])
def attach():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, int(target), None, None) != 0: raise OSError(ctypes.get_errno(), '')
    os.waitpid(int(target), 0); libc.ptrace(17, int(target), None, None)
attempt('environ', lambda: open(f'/proc/{target}/environ').read())
attempt('memory', lambda: open(f'/proc/{target}/mem', 'rb').close())
attempt('maps', lambda: open(f'/proc/{target}/maps').read())
attempt('exe', lambda: os.readlink(f'/proc/{target}/exe'))
attempt('key', lambda: open(f'/proc/{target}/root/etc/openshell-tls/proxy/client/tls.key').read())
attempt('policy', lambda: open(f'/proc/{target}/root/etc/openshell/policy.yaml').read())
attempt('files', lambda: os.listdir(f'/proc/{target}/fd'))
attempt('ptrace', attach)
attempt('signal', lambda: os.kill(int(target), 0))
";

#[test]
fn the_workload_sees_the_proxys_process_and_nothing_of_it() {
    let world = World::new();
    let podman = Podman::new(&world);
    let mut manifest = fenced();
    manifest.client_tls(&json!({"ca.crt": "the CA", "tls.crt": "a certificate", "tls.key": "a key"}));
    manifest.intruder(
        "allowed",
        &json!({"runAsUser": 0, "runAsGroup": 0, "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH", "KILL"]}}),
    );
    let pod = podman.start(&manifest);
    until_it_serves(&pod);
    let attempts = |container| {
        let output = pod.exec(container, None, &["/usr/bin/python3", "-c", INTO_THE_PROXY]);
        text(&output.stdout) + &text(&output.stderr)
    };
    let refused = attempts("agent");
    assert_eq!(refused.lines().count(), 9, "{refused}");
    assert!(!refused.contains("PASSED") && refused.contains("ptrace EPERM\nsignal EPERM"), "{refused}");
    // The proxy's volumes are not the agent's.
    for path in ["/etc/openshell-tls", "/etc/openshell"] {
        assert!(!pod.exec("agent", None, &["ls", path]).status.success(), "{path}");
    }
    // Control: a container with the capabilities that the agent must not have.
    let passed = attempts("allowed");
    assert_eq!(passed.matches("PASSED").count(), 9, "{passed}");
}

/// What a workload of the sidecar pod finds.
const INSIDE: &str = "grep -E '^(NoNewPrivs|CapEff|CapBnd|Seccomp_filters):' /proc/self/status
env | grep OPENSHELL_
ls /opt/openshell/bin 2>&1
ls /run/openshell-sidecar 2>&1
touch /sandbox/file /tmp/file && echo written
echo allowed; curl -sS http://api.example.com/ 2>&1
echo denied; curl -sS http://other.example.com/ 2>&1
echo around; curl -sS --noproxy '*' http://10.99.0.2/ 2>&1
exit 7";

#[test]
fn the_workload_of_a_sidecar_pod_is_confined_and_its_end_is_the_pods() {
    let world = World::new();
    let _origin = Origin::start_at(&world, Ipv6Addr::UNSPECIFIED, 80, origins::hello());
    let podman = Podman::new(&world);
    let mut manifest = Manifest::of("sidecar.yaml");
    manifest.policy(POLICY).workload(&["sh", "-c", INSIDE]);
    let pod = podman.start(&manifest);
    let (code, _) = pod.end_of("agent", Duration::from_secs(30));
    let said = pod.logs("agent");
    assert_eq!(code, 7, "{}", pod.everything());
    assert_eq!(pod.end_of("openshell-supervisor-network", Duration::from_secs(5)).0, 0, "{}", pod.everything());
    let none = "0000000000000000";
    for expected in [
        format!("CapEff:\t{none}\nCapBnd:\t{none}\nNoNewPrivs:\t1\nSeccomp_filters:\t").as_str(),
        "OPENSHELL_SANDBOX=1\n",
        "ls: can't open '/opt/openshell/bin': Permission denied\n",
        // Whom to trust, and no door: that is closed behind the supervisor.
        "\nbundle.pem\nca.pem\n",
        "written\nallowed\nhello from GET /\ndenied\n{\"error\":\"policy_denied\"",
        "around\ncurl: (7) Failed to connect",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in:\n{}", pod.everything());
    }
    assert_eq!(said.matches("OPENSHELL_").count(), 1, "{said}");
    let filters = |text: &str| -> u32 {
        let count = text.split("Seccomp_filters:").nth(1).and_then(|rest| rest.split_whitespace().next());
        count.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("no count of filters: {text}"))
    };
    drop(pod);
    // Control: the same container without the supervisor sees what the runtime alone takes away.
    manifest.container("agent")["command"] = json!(["sh", "-c", INSIDE]);
    let pod = podman.start(&manifest);
    pod.end_of("agent", Duration::from_secs(30));
    let free = pod.logs("agent");
    assert!(free.contains("\nopenshell-supervisor\n") && free.contains("OPENSHELL_SANDBOX_UID=1000"), "{free}");
    assert!(filters(&said) > filters(&free), "{said}\n{free}");
}

#[test]
fn a_sidecar_pod_ends_within_moments_of_either_of_its_containers() {
    const PAIR: [&str; 2] = ["agent", "openshell-supervisor-network"];
    let world = World::new();
    let podman = Podman::new(&world);
    let mut manifest = Manifest::of("sidecar.yaml");
    manifest.policy(POLICY).workload(&["sh", "-c", "echo ready; sleep 1000"]);
    for (victim, other) in [(0, 1), (1, 0)] {
        let pod = podman.start(&manifest);
        eventually("the workload runs", || pod.logs("agent").contains("ready\n"));
        // Control: nobody is killed, and both go on.
        std::thread::sleep(Duration::from_secs(2));
        assert!(PAIR.iter().all(|container| pod.runs(container)), "{}", pod.everything());
        pod.kill(PAIR[victim]);
        let (code, took) = pod.end_of(PAIR[other], Duration::from_secs(10));
        assert_ne!(code, 0, "{}", pod.everything());
        assert!(took < COUPLED, "{} ended {took:?} after {}", PAIR[other], PAIR[victim]);
    }
}
