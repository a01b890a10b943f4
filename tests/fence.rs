//! Promises 18.x: a pod's fence. The machine is the pod here, and the origin everything that is not in it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nftables::schema::{NfListObject, NfObject, Nftables};
use nftables::types::{NfChainPolicy, NfFamily, NfHook};

use crate::world::{ATTEMPT, Daemon, MACHINE_V4, ORIGIN_V4, ORIGIN_V6, World, supervisor};

/// Uid and gid of the proxy, and of the workload.
pub const PROXY: u32 = 1337;
pub const WORKLOAD: u32 = 2000;

/// What the init container gets, and no other capability.
pub const CAPABILITIES: &str = "-all,+net_admin,+chown";

/// `network-init` in the pod's namespace with these capabilities, its directories below the world's.
pub fn network_init(world: &World, capabilities: &str, arguments: &[&str]) -> Command {
    let mut command = world.machine_program("setpriv");
    command.args(["--clear-groups", "--inh-caps=-all", "--bounding-set", capabilities]);
    command.arg(supervisor()).arg("network-init");
    for (flag, directory) in
        [("--sidecar-state-dir", "state"), ("--sidecar-tls-dir", "tls"), ("--client-tls-dir", "secret")]
    {
        if !arguments.contains(&flag) {
            command.arg(flag).arg(world.directory().join(directory));
        }
    }
    for (flag, id) in [("--sandbox-uid", WORKLOAD), ("--sandbox-gid", WORKLOAD)] {
        if !arguments.contains(&flag) {
            command.args([flag, &id.to_string()]);
        }
    }
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Raises the fence, as the init container does.
#[track_caller]
pub fn raise(world: &World) {
    init(world, &[]);
}

/// Runs `network-init` with these flags besides the usual ones, which must succeed.
#[track_caller]
pub fn init(world: &World, arguments: &[&str]) {
    let output = network_init(world, CAPABILITIES, arguments).output().expect("setpriv (package util-linux)");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A program in the pod as these ids, with no capability but those given.
pub fn program(world: &World, uid: u32, gid: u32, capabilities: &str) -> Command {
    let mut command = world.machine_program("setpriv");
    command.args(["--reuid", &uid.to_string(), "--regid", &gid.to_string(), "--clear-groups"]);
    command.args(["--inh-caps=-all", "--bounding-set", capabilities]);
    command
}

/// A Python script in the pod as these ids, which may use raw sockets if it is root.
pub fn python(world: &World, uid: u32, gid: u32, script: &str) -> Command {
    let mut command = program(world, uid, gid, "-all,+net_raw");
    command.args(["/usr/bin/python3", "-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// What a command printed, which must succeed.
#[track_caller]
pub fn printed(mut command: Command) -> String {
    let Output { status, stdout, stderr } = command.output().expect("start");
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout).into_owned(), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{stdout}{stderr}");
    stdout
}

/// `nft` in the pod, by root with everything: the witness, and the hand that takes the fence away for a control.
#[track_caller]
pub fn nft(world: &World, arguments: &[&str]) -> String {
    let mut command = world.machine_program("nft");
    command.args(arguments);
    printed(command)
}

/// `ip` in the pod.
#[track_caller]
pub fn ip(world: &World, arguments: &[&str]) {
    let mut command = world.machine_program("ip");
    command.args(arguments);
    printed(command);
}

/// Takes the fence away, for a control.
pub fn take_away(world: &World) {
    nft(world, &["delete", "table", "inet", "openshell_fence"]);
}

/// Lets every group have ICMP sockets, as container runtimes do.
pub fn allow_ping(world: &World) {
    let range = || fs::write("/proc/sys/net/ipv4/ping_group_range", "0 2147483647");
    world.in_machine(range).expect("ping_group_range");
}

/// Answers every datagram and every connection in the origin.
pub fn answering_origin(world: &World) {
    let listener = world.listen(IpAddr::from([0u16; 8]), 80);
    let socket = world.in_origin(|| UdpSocket::bind("[::]:53").expect("bind"));
    std::thread::spawn(move || {
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    std::thread::spawn(move || listener.incoming().flatten().for_each(|mut stream| drop(stream.write_all(b"hello"))));
}

/// What each way out comes to. Everything waits for an answer, so what is said to succeed has left and come back.
const ATTEMPTS: &str = r#"
def made(*kind):
    s = socket.socket(*kind); s.settimeout(2); return s
def tcp(family, host):
    def act():
        s = made(family, socket.SOCK_STREAM); s.connect((host, 80)); assert s.recv(5) == b"hello"
    return act
def udp(family, host):
    def act():
        s = made(family, socket.SOCK_DGRAM); s.sendto(b"out", (host, 53)); assert s.recv(3) == b"out"
    return act
def checksum(data):
    total = sum(struct.unpack("!%dH" % (len(data) // 2), data)); total = (total >> 16) + (total & 0xffff)
    return ~(total + (total >> 16)) & 0xffff
def echo(family, host, kind):
    def act():
        v4 = family == socket.AF_INET
        s = made(family, kind, socket.IPPROTO_ICMP if v4 else socket.IPPROTO_ICMPV6)
        body = struct.pack("!BBHHH", 8 if v4 else 128, 0, 0, 7, 1)
        if v4: body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
        s.connect((host, 0)); s.send(body); s.recv(128)
    return act
def solicitation():
    s = made(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6); s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
    s.sendto(struct.pack("!BBHI", 135, 0, 0, 0) + socket.inet_pton(socket.AF_INET6, "ORIGIN6"), ("ORIGIN6", 0))
V4, V6 = socket.AF_INET, socket.AF_INET6
attempt("tcp4", tcp(V4, "ORIGIN4")); attempt("tcp6", tcp(V6, "ORIGIN6"))
attempt("udp4", udp(V4, "ORIGIN4")); attempt("udp6", udp(V6, "ORIGIN6"))
attempt("ping4", echo(V4, "ORIGIN4", socket.SOCK_DGRAM)); attempt("ping6", echo(V6, "ORIGIN6", socket.SOCK_DGRAM))
if RAW:
    attempt("raw4", echo(V4, "ORIGIN4", socket.SOCK_RAW)); attempt("raw6", echo(V6, "ORIGIN6", socket.SOCK_RAW))
    attempt("solicitation", solicitation)
"#;

pub fn attempts(world: &World, uid: u32, gid: u32) -> Vec<(String, String, u64)> {
    let script = format!("{ATTEMPT}{ATTEMPTS}")
        .replace("ORIGIN4", &ORIGIN_V4.to_string())
        .replace("ORIGIN6", &ORIGIN_V6.to_string())
        .replace("RAW:", if uid == 0 { "True:" } else { "False:" });
    let text = printed(python(world, uid, gid, &script));
    let lines = text.lines().map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
        [name, outcome, took] => (name.to_owned(), outcome.to_owned(), took.parse().expect("milliseconds")),
        _ => panic!("{line}"),
    });
    lines.collect()
}

#[test]
fn nobody_but_the_proxy_gets_out() {
    for proxy in [PROXY, 0] {
        let world = World::new();
        allow_ping(&world);
        answering_origin(&world);
        let all_succeed = |uid, gid| {
            for (name, outcome, _) in attempts(&world, uid, gid) {
                assert_eq!(outcome, "SUCCEEDED", "{uid}:{gid} {name}");
            }
        };
        init(&world, &["--proxy-uid", &proxy.to_string()]);
        // The workload; root; either of the proxy's ids without the other.
        for (uid, gid) in [(WORKLOAD, WORKLOAD), (0, 0), (0, WORKLOAD), (proxy, WORKLOAD), (WORKLOAD, PROXY)] {
            let attempts = attempts(&world, uid, gid);
            assert_eq!(attempts.len(), if uid == 0 { 9 } else { 6 });
            for (name, outcome, took) in attempts {
                let expected = match &*name {
                    "tcp4" | "tcp6" => "ECONNREFUSED",
                    // The kernel forgets the error of the call; the fence's answer is the error of the next one.
                    "ping6" => "EACCES",
                    _ => "EPERM",
                };
                assert_eq!(outcome, expected, "{uid}:{gid} {name}, proxy {proxy}:{PROXY}");
                assert!(took < 500, "{uid}:{gid} {name} took {took} ms: not at once");
            }
        }
        all_succeed(proxy, PROXY);
        // Control: without the fence, everybody gets out by every way.
        take_away(&world);
        all_succeed(WORKLOAD, WORKLOAD);
        all_succeed(0, 0);
    }
}

#[test]
fn nft_reads_one_table_that_refuses_by_default() {
    let world = World::new();
    raise(&world);
    let text = nft(&world, &["-j", "list", "ruleset"]);
    let held: Nftables = serde_json::from_str(&text).expect("what nft says");
    let objects = || {
        held.objects.iter().filter_map(|object| match object {
            NfObject::ListObject(object) => Some(object),
            NfObject::CmdObject(_) => None,
        })
    };
    let tables: Vec<_> =
        objects().filter_map(|o| if let NfListObject::Table(t) = o { Some(t) } else { None }).collect();
    assert_eq!(tables.len(), 1, "{text}");
    assert_eq!((tables[0].family, &*tables[0].name), (NfFamily::INet, "openshell_fence"));
    let chains: Vec<_> =
        objects().filter_map(|o| if let NfListObject::Chain(c) = o { Some(c) } else { None }).collect();
    let policy = |hook| chains.iter().find(|chain| chain.hook == Some(hook)).and_then(|chain| chain.policy);
    assert_eq!(
        (chains.len(), policy(NfHook::Input), policy(NfHook::Output)),
        (2, Some(NfChainPolicy::Accept), Some(NfChainPolicy::Drop))
    );
    let rules =
        |chain: &str| objects().filter(|o| matches!(o, NfListObject::Rule(rule) if rule.chain == chain)).count();
    assert_eq!((rules("input"), rules("output")), (2, 9), "{text}");
}

/// Sends a megabyte and closes at once, without waiting for anybody to read it.
const MEGABYTE: &str = r#"
import socket, struct
s = socket.create_connection(("ORIGIN4", 9000), timeout=5)
sent = s.send(b"x" * 1048576); s.close(); print(sent, flush=True)
"#;

#[test]
fn a_proxy_that_closes_with_a_megabyte_queued_delivers_it_all() {
    const WHOLE: usize = 1 << 20;
    let world = World::new();
    let buffers = || {
        fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 4194304 4194304")
            .and_then(|()| fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 16384 16384"))
    };
    world.in_machine(buffers).expect("buffers");
    world.in_origin(buffers).expect("buffers");
    let listener = world.listen(ORIGIN_V4, 9000);
    let deliver = || {
        let sent = printed(python(&world, PROXY, PROXY, &MEGABYTE.replace("ORIGIN4", &ORIGIN_V4.to_string())));
        assert_eq!(sent.trim(), WHOLE.to_string(), "not all of it was queued");
        // The sender is gone, and nothing has been read yet.
        let (mut stream, _) = listener.accept().expect("accept");
        stream.set_read_timeout(Some(Duration::from_secs(3))).expect("timeout");
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received);
        received.len()
    };
    raise(&world);
    assert_eq!(deliver(), WHOLE);
    // Control: the obvious rule, which judges the packet by its socket.
    take_away(&world);
    nft(&world, &["add", "table", "inet", "obvious"]);
    nft(&world, &["add", "chain", "inet", "obvious", "output", "{ type filter hook output priority 0; policy drop; }"]);
    nft(&world, &["add", "rule", "inet", "obvious", "output", "meta", "skuid", &PROXY.to_string(), "accept"]);
    assert!(deliver() < WHOLE, "the rule that this test is about is no worse here");
}

#[test]
fn a_connection_that_was_open_before_carries_nothing_out() {
    let world = World::new();
    let listener = world.listen(ORIGIN_V4, 9000);
    let script = format!(
        "import socket\ns = socket.create_connection(('{ORIGIN_V4}', 9000)); print('open', flush=True)\nwhile True:\n  \
         s.recv(64); s.sendall(b'secret')"
    );
    let held = || {
        let mut workload = Daemon::spawn(python(&world, WORKLOAD, WORKLOAD, &script));
        let (stream, _) = listener.accept().expect("accept");
        let mut line = String::new();
        let stdout = workload.child().stdout.take().expect("stdout");
        BufReader::new(stdout).read_line(&mut line).expect("read");
        (workload, stream)
    };
    let answer = |mut stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(1500))).expect("timeout");
        stream.write_all(b"speak").expect("write");
        let mut buffer = [0; 64];
        stream.read(&mut buffer).unwrap_or(0)
    };
    // Control first: the same connection without a fence answers.
    let (_workload, stream) = held();
    assert_eq!(answer(&stream), b"secret".len());
    let (_other, quiet) = held();
    raise(&world);
    // The peer speaks first on both, on the one that has been used and on the one that has not.
    assert_eq!(answer(&stream), 0, "a connection that had been used");
    assert_eq!(answer(&quiet), 0, "a connection that was quiet");
    // Control: the obvious rule lets the answer out.
    take_away(&world);
    let (_third, third) = held();
    nft(&world, &["add", "table", "inet", "obvious"]);
    nft(&world, &["add", "chain", "inet", "obvious", "output", "{ type filter hook output priority 0; policy drop; }"]);
    nft(&world, &["add", "rule", "inet", "obvious", "output", "ct", "direction", "reply", "accept"]);
    assert_eq!(answer(&third), b"secret".len(), "the rule that this test is about is no worse here");
}

#[test]
fn probes_and_services_are_answered_from_outside() {
    let world = World::new();
    raise(&world);
    let server = r#"
import socket, threading
listener = socket.create_server(("::", 8080), family=socket.AF_INET6, dualstack_ipv6=True)
echo = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); echo.bind(("::", 8081))
def answer():
    while True:
        data, peer = echo.recvfrom(64); echo.sendto(data, peer)
threading.Thread(target=answer, daemon=True).start(); print("up", flush=True)
while True:
    client, _ = listener.accept(); client.sendall(b"y" * 1048576); client.close()
"#;
    let mut workload = Daemon::spawn(python(&world, WORKLOAD, WORKLOAD, server));
    let mut line = String::new();
    BufReader::new(workload.child().stdout.take().expect("stdout")).read_line(&mut line).expect("read");
    let pod: [IpAddr; 2] = [MACHINE_V4.into(), "fd99::1".parse().expect("an address")];
    for address in pod {
        let (received, echoed) = world.in_origin(move || {
            let mut stream =
                TcpStream::connect_timeout(&(address, 8080).into(), Duration::from_secs(3)).expect("connect");
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("read");
            let any: IpAddr = if address.is_ipv4() { [0u8; 4].into() } else { [0u16; 8].into() };
            let socket = UdpSocket::bind((any, 0)).expect("bind");
            socket.set_read_timeout(Some(Duration::from_secs(3))).expect("timeout");
            socket.send_to(b"probe", (address, 8081)).expect("send");
            let mut buffer = [0; 16];
            (received.len(), socket.recv(&mut buffer).expect("an echo"))
        });
        assert_eq!((received, echoed), (1 << 20, 5), "{address}");
    }
    // A port where nobody listens is refused at once, not silently; and the pod answers pings.
    let started = Instant::now();
    let refused = world.in_origin(|| TcpStream::connect((MACHINE_V4, 9)).expect_err("nobody listens"));
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    assert!(started.elapsed() < Duration::from_millis(500));
    let mut ping = world.origin_command("/usr/bin/python3");
    let script = format!("{ATTEMPT}{ATTEMPTS}")
        .lines()
        .filter(|line| {
            !line.starts_with("attempt(") && !line.starts_with("if RAW") && !line.starts_with("    attempt(")
        })
        .collect::<Vec<_>>()
        .join("\n")
        + "\nattempt('ping4', echo(V4, '10.99.0.1', socket.SOCK_RAW)); attempt('ping6', echo(V6, 'fd99::1', socket.SOCK_RAW))\n";
    ping.args(["-c", &script]);
    let answers = printed(ping);
    assert_eq!(answers.matches("SUCCEEDED").count(), 2, "{answers}");
}

#[test]
fn ipv6_of_the_proxy_outlives_its_neighbours() {
    let world = World::new();
    answering_origin(&world);
    raise(&world);
    let forget = || {
        ip(&world, &["-6", "neigh", "flush", "dev", "eth0"]);
        let flushed = world.origin_command("ip").args(["-6", "neigh", "flush", "dev", "eth0"]).status().expect("ip");
        assert!(flushed.success());
    };
    let script = format!(
        "import socket\ntry:\n  s = socket.create_connection(('{ORIGIN_V6}', 80), timeout=4); print(s.recv(5).decode())\nexcept \
         OSError as error: print(error)"
    );
    let proxy = || printed(python(&world, PROXY, PROXY, &script)).trim().to_owned();
    assert_eq!(proxy(), "hello");
    forget();
    assert_eq!(proxy(), "hello");
    // Control: without the rules for neighbour discovery, the same proxy does not get through.
    let listing = nft(&world, &["-a", "list", "chain", "inet", "openshell_fence", "output"]);
    for line in listing.lines().filter(|line| line.trim().starts_with("icmpv6 type")) {
        let handle = line.rsplit(' ').next().expect("a handle");
        nft(&world, &["delete", "rule", "inet", "openshell_fence", "output", "handle", handle]);
    }
    forget();
    assert_ne!(proxy(), "hello");
}

#[test]
fn a_pod_without_ipv6_is_fenced_as_well() {
    let world = World::new();
    let _listener: TcpListener = world.listen(ORIGIN_V4, 80);
    world.in_machine(|| fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1")).expect("disable IPv6");
    let script = format!(
        "import socket, errno\ntry: socket.create_connection(('{ORIGIN_V4}', 80), timeout=3); print('SUCCEEDED')\nexcept OSError as \
         error: print(errno.errorcode[error.errno])"
    );
    let by = |id| printed(python(&world, id, id, &script)).trim().to_owned();
    raise(&world);
    assert_eq!((by(WORKLOAD).as_str(), by(PROXY).as_str()), ("ECONNREFUSED", "SUCCEEDED"));
    // Control.
    take_away(&world);
    assert_eq!(by(WORKLOAD), "SUCCEEDED");
}
