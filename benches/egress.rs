//! The table of design §13: the direct path, ours, and the rivals that are installed, in turn, on one machine in one
//! run. Origins are nginx in a network namespace; ours runs with identity and policy on, its clients inside the
//! sandbox. Absolute figures wander with the machine, so every row ends in ratios.
//!
//! `cargo bench --bench egress [-- QUICK] [--topology sidecar|proxy-pod]`: with the latter, ours is the proxy of a sidecar pod
//! that stands beside the combined one in the same run, or of a pod of its own, with what attesting and forwarding add; needs
//! root, nginx and iproute2; squid, tinyproxy and bwrap if there.

#[path = "client.rs"]
mod client;
#[path = "inside.rs"]
mod inside;
#[path = "../tests/pod.rs"]
#[allow(dead_code, reason = "the harness serves the tests too, which use more of it")]
mod pod;
#[path = "relay.rs"]
mod relay;
#[path = "../tests/two_pods.rs"]
#[allow(dead_code, reason = "the harness serves the tests too, which use more of it")]
mod two_pods;
#[path = "../tests/world.rs"]
#[allow(dead_code, reason = "the harness serves the tests too, which use more of it")]
mod world;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use world::{Daemon, ORIGIN_V4, World};

const ORIGIN_PORT: u16 = 8080;
/// The same files over TLS, and HTTP/2.
const TLS_PORT: u16 = 8443;
/// The relay without a policy.
const RELAY_PORT: u16 = 3132;
const SQUID_PORT: u16 = 3130;
const TINYPROXY_PORT: u16 = 3131;
/// Idle tunnels that the memory row holds open.
const IDLE_TUNNELS: u64 = 2_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("client") if arguments[1] == "hold" => {
            let _ = std::io::Read::read(&mut std::io::stdin(), &mut [0]);
        }
        Some("client") => client::main(&arguments[1..]),
        Some("relay") => {
            let path = |index: usize| Path::new(&arguments[index]);
            relay::main(arguments[1].parse().expect("an address"), path(2), path(3), path(4));
        }
        _ => {
            let given = |word: &str| arguments.iter().any(|argument| argument == word);
            let bench = Bench::new(given("QUICK"));
            match (given("--topology"), given("sidecar"), given("proxy-pod")) {
                (true, true, _) => bench.run_sidecar(),
                (true, _, true) => bench.run_proxy_pod(),
                _ => bench.run(),
            }
        }
    }
}

/// The stage: origin and rivals up, and where our policy and this executable lie for the sandbox to read.
struct Bench {
    world: World,
    policy: PathBuf,
    client: PathBuf,
    quick: bool,
    rivals: Vec<(&'static str, u16, Daemon)>,
    /// Authorities, in PEM: who signs for intercepted connections, and the origin's.
    authority: Authorities,
    _origin: Daemon,
}

/// Files of certificates and keys.
struct Authorities {
    /// Of intercepted connections, ours and the relay's.
    inside: (PathBuf, PathBuf),
    /// Of the origin.
    origin: PathBuf,
}

/// Makes both, and a certificate for the origin beside them.
fn authorities(world: &World) -> Authorities {
    let signer = |name: &str| {
        let key = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::default();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        parameters.distinguished_name.push(rcgen::DnType::CommonName, name);
        let certificate = parameters.self_signed(&key).expect("a certificate");
        let file = world.file(&format!("{name}.pem"), certificate.pem());
        let secret = world.file(&format!("{name}.key"), key.serialize_pem());
        std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("mode");
        (file, secret, rcgen::Issuer::new(parameters, key))
    };
    let (certificate, key, _) = signer("inside");
    let (origin, _, issuer) = signer("origins");
    let leaf_key = rcgen::KeyPair::generate().expect("a key");
    let leaf = rcgen::CertificateParams::new(vec![ORIGIN_V4.to_string()]).expect("a name");
    let leaf = leaf.signed_by(&leaf_key, &issuer).expect("a certificate");
    world.file("leaf.pem", leaf.pem());
    world.file("leaf.key", leaf_key.serialize_pem());
    Authorities { inside: (certificate, key), origin }
}

/// A row of the table: a figure for each way, and which direction is better.
struct Row {
    name: &'static str,
    unit: &'static str,
    lower_is_better: bool,
    figures: Vec<(&'static str, f64)>,
}

impl Bench {
    fn new(quick: bool) -> Self {
        let world = World::new();
        // Tens of thousands of connections in TIME_WAIT would make the search for a free port the thing measured.
        let no_time_wait = || std::fs::write("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0");
        world.in_machine(no_time_wait).and_then(|()| world.in_origin(no_time_wait)).expect("tcp_max_tw_buckets");
        let authority = authorities(&world);
        let origin = start_nginx(&world);
        let client = world.directory().join("client");
        std::fs::copy(std::env::current_exe().expect("own path"), &client).expect("copy the client");
        let policy = world.file(
            "policy.yaml",
            format!(
                "version: 1\nfilesystem_policy:\n  include_workdir: false\n  read_only: [{}]\nnetwork_policies:\n  bench:\n    \
                 endpoints:\n      - {{host: {ORIGIN_V4}, port: {ORIGIN_PORT}}}\n      - {{host: {ORIGIN_V4}, port: {TLS_PORT}, protocol: rest, \
                 rules: [{{allow: {{method: GET, path: /1k}}}}, {{allow: {{method: GET, path: /big}}}}, {{allow: {{method: POST, path: /sink}}}}]}}\n    binaries:\n      - {{path: {}}}\n",
                world.directory().display(),
                client.display()
            ),
        );
        let rivals = start_rivals(&world);
        Self { world, policy, client, quick, rivals, authority, _origin: origin }
    }

    fn run(&self) {
        let (latency, seconds, processes) =
            if self.quick { ("500", "1", &[1, 10][..]) } else { ("5000", "5", &[1, 10, 100][..]) };
        let mut rows = [
            self.row("CONNECT to usable, one client, p50", "ms", "p50_ms", &["latency"], &[latency]),
            self.row("CONNECT to usable, one client, p99", "ms", "p99_ms", &["latency"], &[latency]),
            self.row("CONNECT, 8 clients", "/s", "per_second", &["rate"], &["8", seconds]),
            self.row("forward HTTP, 1 kB, 8 connections", "req/s", "per_second", &["requests"], &["8", seconds]),
            self.row("tunnel, one stream", "MB/s", "mb_per_second", &["tunnel"], &[]),
        ];
        rows[0].lower_is_better = true;
        rows[1].lower_is_better = true;
        println!("\n{:<42} {:>10} {:>10} {:>10} {:>10}   ratios of ours", "", "direct", "ours", "squid", "tinyproxy");
        for row in &rows {
            row.print();
        }
        self.inside(seconds);
        println!("\nours, CONNECT p50 by what else the sandbox runs (processes of 100 descriptors):");
        for kind in ["same", "other"] {
            for &count in processes {
                let load = ["owners"];
                let figures = self.ours(&load, &[&count.to_string(), kind, if self.quick { "200" } else { "1000" }]);
                println!(
                    "  {count:>3} of {kind:<5} program: {:>8.4} ms (p99 {:.4})",
                    figures["p50_ms"], figures["p99_ms"]
                );
            }
        }
        self.memory();
        // Last: dozens of namespaces that the kernel takes down in the background slow everything else for a while.
        println!("\n{:<42} {:>10} {:>10} {:>10} {:>10}   ratios of ours", "", "direct", "ours", "bwrap", "");
        self.start_time().print();
    }

    /// The proxy of a sidecar pod against the combined one.
    fn run_sidecar(&self) {
        let (latency, seconds) = if self.quick { ("500", "1") } else { ("5000", "5") };
        println!("\n{:<42} {:>10} {:>10} {:>10} {:>10}   ratios of ours", "sidecar", "direct", "ours", "combined", "");
        for (name, unit, key, load, parameters) in pods_rows(&[latency], &["8", seconds]) {
            let of = |figures: Value| figures[key].as_f64().expect("a figure");
            let figures = vec![
                ("direct", of(self.outside(None, &[load], parameters))),
                ("ours", of(self.in_pod(load, parameters))),
                ("combined", of(self.ours(&[load], parameters))),
            ];
            Row { name, unit, lower_is_better: unit == "ms", figures }.print();
        }
    }

    /// The proxy in a pod of its own: the workload's supervisor attests and carries; only carries; and the same proxy without
    /// it, dialled by the client itself.
    fn run_proxy_pod(&self) {
        let (latency, seconds) = if self.quick { ("500", "1") } else { ("5000", "5") };
        let (certificate, key) = self.authority.inside.clone();
        let pods = two_pods::Pods::new(&self.world, [certificate, key]);
        // The key lies beside the client, so the workload is granted the client alone.
        let policy = std::fs::read_to_string(&self.policy).expect("the policy");
        let directory = format!("read_only: [{}]", self.world.directory().display());
        let policy = policy.replace(&directory, &format!("read_only: [{}]", self.client.display()));
        let origin = format!("{ORIGIN_V4}:{ORIGIN_PORT}");
        let client = |mut command: Command, load: &str, proxy: &str, parameters: &[&str]| {
            command.args(["client", load, proxy, &origin]).args(parameters);
            figures(&command.output().expect("the client"))
        };
        let in_workload = |keyed: bool, load: &str, parameters: &[&str]| {
            let mut command = pods.process(&policy, keyed, &[]);
            command.arg(&self.client);
            client(command, load, "127.0.0.1:3128", parameters)
        };
        println!(
            "\n{:<42} {:>10} {:>10} {:>10} {:>10}   ratios of ours",
            "proxy-pod", "direct", "ours", "forwarded", "proxy"
        );
        for (name, unit, key, load, parameters) in pods_rows(&[latency], &["8", seconds]) {
            let of = |figures: Value| figures[key].as_f64().expect("a figure");
            let direct = of(self.outside(None, &[load], parameters));
            let ours = {
                let _network = pods.network(&policy, true);
                of(in_workload(true, load, parameters))
            };
            let _network = pods.network(&policy, false);
            let forwarded = of(in_workload(false, load, parameters));
            let proxy = format!("{}:3128", two_pods::PROXY_V4);
            let alone = of(client(pods.container(&self.client), load, &proxy, parameters));
            let figures = vec![("direct", direct), ("ours", ours), ("forwarded", forwarded), ("proxy", alone)];
            Row { name, unit, lower_is_better: unit == "ms", figures }.print();
        }
    }

    /// Drives a load as the workload of a sidecar pod.
    fn in_pod(&self, load: &str, parameters: &[&str]) -> Value {
        let pod = pod::Pod::new(&self.world);
        let _network = pod.network(&std::fs::read_to_string(&self.policy).expect("the policy"));
        let mut command = pod.process_command();
        command.arg(&self.client).args(["client", load, "127.0.0.1:3128", &format!("{ORIGIN_V4}:{ORIGIN_PORT}")]);
        figures(&command.args(parameters).output().expect("the client"))
    }

    /// The same load on every way.
    fn row(&self, name: &'static str, unit: &'static str, key: &str, load: &[&str], parameters: &[&str]) -> Row {
        let value = |figures: &Value| figures[key].as_f64().expect("a figure");
        let mut figures = vec![("direct", value(&self.outside(None, load, parameters)))];
        figures.push(("ours", value(&self.ours(load, parameters))));
        for (rival, port, _) in &self.rivals {
            figures.push((rival, value(&self.outside(Some(*port), load, parameters))));
        }
        Row { name, unit, lower_is_better: false, figures }
    }

    /// Drives a load inside our sandbox.
    fn ours(&self, load: &[&str], parameters: &[&str]) -> Value {
        let outcome = self
            .world
            .run()
            .policy(&self.policy)
            .command([self.client.as_os_str(), "client".as_ref()])
            .args(load)
            .args(["127.0.0.1:3128", &format!("{ORIGIN_V4}:{ORIGIN_PORT}")])
            .args(parameters)
            .output()
            .expect(0);
        serde_json::from_str(&outcome.stdout).unwrap_or_else(|_| panic!("no figures: {outcome:?}"))
    }

    /// Drives a load on the machine: direct, or through a rival.
    fn outside(&self, port: Option<u16>, load: &[&str], parameters: &[&str]) -> Value {
        let proxy = port.map_or("-".to_owned(), |port| format!("127.0.0.1:{port}"));
        let output = self
            .world
            .machine_program(&self.client)
            .arg("client")
            .args(load)
            .args([proxy, format!("{ORIGIN_V4}:{ORIGIN_PORT}")])
            .args(parameters)
            .output()
            .expect("the client");
        figures(&output)
    }

    /// Inside TLS: direct, ours, and the relay that judges nothing.
    fn inside(&self, seconds: &str) {
        let (certificate, key) = &self.authority.inside;
        let mut relay = self.world.machine_program(&self.client);
        relay.args(["relay", &format!("127.0.0.1:{RELAY_PORT}")]).args([certificate, key, &self.authority.origin]);
        let _relay = Daemon::spawn(relay);
        world::eventually("the relay answers", || {
            self.world.in_machine(|| std::net::TcpStream::connect(("127.0.0.1", RELAY_PORT)).is_ok())
        });
        let target = format!("{ORIGIN_V4}:{TLS_PORT}");
        let outside = |load: &[&str], proxy: &str, trust: &Path, parameters: &[&str]| {
            let mut command = self.world.machine_program(&self.client);
            command.env("SSL_CERT_FILE", trust).arg("client").args(load).args([proxy, &target]).args(parameters);
            figures(&command.output().expect("the client"))
        };
        let ours = |load: &[&str], parameters: &[&str]| {
            let words = [load, &["127.0.0.1:3128", &target], parameters].concat();
            figures(&self.intercepted(&words).output().expect("the client"))
        };
        println!("\n{:<42} {:>10} {:>10} {:>10} {:>10}   ratios of ours", "inside TLS", "direct", "ours", "relay", "");
        let relay = format!("127.0.0.1:{RELAY_PORT}");
        for (name, unit, key, load, count) in [
            ("requests, 8 connections", "/s", "per_second", "tls-requests", "8"),
            ("request, one connection, p50", "ms", "p50_ms", "tls-requests", "1"),
            ("new connections, 8 clients", "/s", "per_second", "tls-connections", "8"),
            // The same library sends both, in one thread: what differs is the protocol.
            ("HTTP/1.1, 100 connections", "/s", "per_second", "tls-kept", "100"),
            ("HTTP/2, one connection, 100 streams", "/s", "per_second", "tls-streams", "100"),
        ] {
            let of = |figures: Value| figures[key].as_f64().expect("a figure");
            let parameters = [count, seconds];
            let figures = vec![
                ("direct", of(outside(&[load], "-", &self.authority.origin, &parameters))),
                ("ours", of(ours(&[load], &parameters))),
                ("relay", of(outside(&[load], &relay, certificate, &parameters))),
            ];
            Row { name, unit, lower_is_better: unit == "ms", figures }.print();
        }
        let megabytes = if self.quick { "256" } else { "1024" };
        for (name, load) in [("one body, down", "tls-download"), ("one body, up", "tls-upload")] {
            let of = |figures: Value| figures["mb_per_second"].as_f64().expect("a figure");
            let mut command = self.intercepted(&[load, "127.0.0.1:3128", &target, megabytes]);
            command.stdout(Stdio::piped());
            let mut daemon = Daemon::spawn(command);
            let mut peak = 0.0_f64;
            while daemon.wait_within(Duration::from_millis(20)).is_none() {
                peak = peak.max(resident(daemon.pid()));
            }
            let mut printed = String::new();
            daemon.child().stdout.take().expect("piped").read_to_string(&mut printed).expect("figures");
            let ours_took = serde_json::from_str(&printed).unwrap_or_else(|_| panic!("no figures: {printed}"));
            let figures = vec![
                ("direct", of(outside(&[load], "-", &self.authority.origin, &[megabytes]))),
                ("ours", of(ours_took)),
                ("relay", of(outside(&[load], &relay, certificate, &[megabytes]))),
            ];
            Row { name, unit: "MB/s", lower_is_better: false, figures }.print();
            println!("  {megabytes} MB, the supervisor's memory at most {peak:.1} MB");
        }
    }

    /// The client in a sandbox whose proxy looks into TLS.
    fn intercepted(&self, words: &[&str]) -> Command {
        let (certificate, key) = &self.authority.inside;
        let run = self.world.run().policy(&self.policy).args([
            "--ca-cert".as_ref(),
            certificate.as_os_str(),
            "--ca-key".as_ref(),
            key.as_os_str(),
            "--upstream-ca".as_ref(),
            self.authority.origin.as_os_str(),
        ]);
        run.command([self.client.as_os_str(), "client".as_ref()]).args(words).build()
    }

    /// `run -- /bin/true`, whole, against bwrap and against nothing.
    fn start_time(&self) -> Row {
        let time = |make: &dyn Fn() -> Command| {
            let mut taken: Vec<f64> = (0..if self.quick { 11 } else { 51 })
                .map(|_| {
                    let started = Instant::now();
                    assert!(make().stdout(Stdio::null()).status().expect("start").success());
                    started.elapsed().as_secs_f64() * 1e3
                })
                .collect();
            taken.sort_by(f64::total_cmp);
            taken[taken.len() / 2]
        };
        let ours = || {
            let mut command = Command::new(world::supervisor());
            // Whose directory it is started in is no part of it.
            command.args(["run", "--", "/bin/true"]).current_dir("/");
            command
        };
        let mut figures = vec![("direct", time(&|| Command::new("/bin/true"))), ("ours", time(&ours))];
        if installed("bwrap") {
            let bwrap = || {
                let mut command = Command::new("bwrap");
                command.args(["--unshare-net", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "/bin/true"]);
                command
            };
            figures.push(("bwrap", time(&bwrap)));
        }
        Row { name: "run -- /bin/true, wall", unit: "ms", lower_is_better: true, figures }
    }

    /// Resident memory at rest, under load, and with idle tunnels.
    fn memory(&self) {
        let target = format!("{ORIGIN_V4}:{ORIGIN_PORT}");
        let run = |load: &[&str]| {
            let mut command = self
                .world
                .run()
                .policy(&self.policy)
                .command([self.client.as_os_str(), "client".as_ref()])
                .args(load)
                .build();
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
            Daemon::spawn(command)
        };
        let seconds = if self.quick { "1" } else { "5" };
        let mut under_load = run(&["requests", "127.0.0.1:3128", &target, "8", seconds]);
        let mut peak = 0.0_f64;
        while under_load.wait_within(Duration::from_millis(100)).is_none() {
            peak = peak.max(resident(under_load.pid()));
        }
        let count = IDLE_TUNNELS.to_string();
        let open = |tunnels: &str| {
            let mut daemon = run(&["idle", "127.0.0.1:3128", &target, tunnels]);
            let stdout = daemon.child().stdout.take().expect("piped");
            let mut line = String::new();
            BufReader::new(stdout).read_line(&mut line).expect("ready");
            assert!(line.contains("open"), "{line:?}");
            std::thread::sleep(Duration::from_millis(300));
            let resident = resident(daemon.pid());
            drop(daemon.child().stdin.take());
            daemon.wait_within(world::PATIENCE);
            resident
        };
        let (one, many) = (open("1"), open(&count));
        println!("\nours, resident memory of the supervisor:");
        println!("  forward load, 8 connections: {peak:.1} MB");
        println!("  1 idle tunnel: {one:.1} MB; {IDLE_TUNNELS}: {many:.1} MB; each costs {:.1} kB", {
            (many - one) * 1e3 / (IDLE_TUNNELS - 1) as f64
        });
    }
}

impl Row {
    fn print(&self) {
        let figure = |name: &str| self.figures.iter().find(|(other, _)| *other == name).map(|(_, value)| *value);
        let ours = figure("ours").expect("ours is measured");
        let cell = |name| figure(name).map_or("-".into(), |value| format!("{value:.3}"));
        let named = |index: usize, otherwise: &'static str| self.figures.get(index).map_or(otherwise, |(name, _)| name);
        let (third, fourth) = (named(2, "squid"), named(3, "tinyproxy"));
        print!(
            "{:<42} {:>10} {:>10} {:>10} {:>10} ",
            format!("{} [{}]", self.name, self.unit),
            cell("direct"),
            cell("ours"),
            cell(third),
            cell(fourth)
        );
        for (name, value) in self.figures.iter().filter(|(name, _)| *name != "ours") {
            let ratio = if self.lower_is_better { value / ours } else { ours / value };
            print!("  {ratio:.2}× {name}");
        }
        println!();
    }
}

/// What is measured of pods: name and unit of a row, the figure's key, the load and its parameters.
fn pods_rows<'a>(
    latency: &'a [&'a str; 1],
    rate: &'a [&'a str; 2],
) -> [(&'static str, &'static str, &'static str, &'static str, &'a [&'a str]); 4] {
    [
        ("CONNECT to usable, one client, p50", "ms", "p50_ms", "latency", latency),
        ("CONNECT, 8 clients", "/s", "per_second", "rate", rate),
        ("forward HTTP, 1 kB, 8 connections", "req/s", "per_second", "requests", rate),
        ("tunnel, one stream", "MB/s", "mb_per_second", "tunnel", &[]),
    ]
}

/// What a client printed.
fn figures(output: &std::process::Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("no figures: {}", String::from_utf8_lossy(&output.stderr)))
}

/// VmRSS of a process in MB.
fn resident(pid: i32) -> f64 {
    std::fs::read_to_string(format!("/proc/{pid}/status"))
        .ok()
        .and_then(|status| {
            let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
            line.split_whitespace().nth(1)?.parse::<f64>().ok()
        })
        .map_or(0.0, |kilobytes| kilobytes / 1e3)
}

fn installed(program: &str) -> bool {
    ["/usr/bin", "/usr/sbin", "/usr/local/bin"].iter().any(|directory| Path::new(directory).join(program).exists())
}

fn start_nginx(world: &World) -> Daemon {
    let root = world.directory();
    world.file("1k", vec![b'x'; 1024]);
    std::fs::File::create(root.join("big")).and_then(|file| file.set_len(2 << 30)).expect("the big file");
    let configuration = world.file(
        "nginx.conf",
        format!(
            "daemon off; worker_processes 1; pid {0}/nginx.pid; error_log stderr crit; user root;\nevents {{ worker_connections 8192; \
             }}\nhttp {{ access_log off; sendfile on; tcp_nodelay on; keepalive_requests 100000000; server {{ listen {ORIGIN_PORT} \
             backlog=4096; root {0}; }} \
             server {{ listen {TLS_PORT} ssl http2 backlog=4096; ssl_certificate {0}/leaf.pem; ssl_certificate_key {0}/leaf.key; \
             root {0}; location = /sink {{ client_max_body_size 0; return 200; }} }} }}\n",
            root.display()
        ),
    );
    let daemon = world.origin_program("nginx", &["-c", configuration.to_str().expect("a path")]);
    world::eventually("nginx answers", || {
        world.in_machine(|| std::net::TcpStream::connect((ORIGIN_V4, ORIGIN_PORT)).is_ok())
    });
    daemon
}

fn start_rivals(world: &World) -> Vec<(&'static str, u16, Daemon)> {
    let mut rivals = Vec::new();
    let directory = world.directory().display();
    if installed("squid") {
        let configuration = world.file(
            "squid.conf",
            format!(
                "http_port 127.0.0.1:{SQUID_PORT}\nhttp_access allow all\ncache deny all\naccess_log none\ncache_log /dev/null\n\
                 pid_filename none\nshutdown_lifetime 0 seconds\ncoredump_dir {directory}\n"
            ),
        );
        let mut command = world.machine_program("squid");
        command.args(["-N", "-f"]).arg(configuration).stdout(Stdio::null()).stderr(Stdio::null());
        rivals.push(("squid", SQUID_PORT, Daemon::spawn(command)));
    }
    if installed("tinyproxy") {
        let configuration = world.file(
            "tinyproxy.conf",
            format!("Port {TINYPROXY_PORT}\nListen 127.0.0.1\nTimeout 600\nMaxClients 4000\nLogLevel Critical\nPidFile \"{directory}/tinyproxy.pid\"\n"),
        );
        let mut command = world.machine_program("tinyproxy");
        command.args(["-d", "-c"]).arg(configuration).stdout(Stdio::null());
        rivals.push(("tinyproxy", TINYPROXY_PORT, Daemon::spawn(command)));
    }
    for &(name, port, _) in &rivals {
        world::eventually(&format!("{name} answers"), || {
            world.in_machine(move || std::net::TcpStream::connect(("127.0.0.1", port)).is_ok())
        });
    }
    rivals
}
