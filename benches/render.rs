//! What it costs to render a sandbox in process: reading its description, checking it, its objects, and their YAML; then
//! 10,000 sandboxes one after another. The bars are for a core of one's own, so they are held against processor time.
//!
//! `cargo bench --bench render [-- QUICK]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use openshell_supervisor::driver::{
    AttestationKey, Cluster, DriverConfig, NetworkEnforcement, ProxyCa, SandboxApi, SandboxSpec, Topology, render,
    to_yaml,
};

/// At most this for a sandbox.
const BAR: Duration = Duration::from_millis(1);

/// Sandboxes of a busy gateway's start, and what they may take.
const MANY: usize = 10_000;
const BAR_OF_MANY: Duration = Duration::from_secs(10);

/// With everything that a sandbox of each topology can have.
const CONFIG: &str = "
grpc_endpoint = \"https://gateway.openshell.svc:8080\"
client_tls_secret_name = \"openshell-client-tls\"
proxy_pod.gateway_peers = [{pod_selector = {app = \"gateway\"}, port = 8080}]
provider_spiffe_workload_api_socket_path = \"/spiffe-workload-api/spire-agent.sock\"
https_proxy = \"http://proxy.corp.example:8080\"
image_pull_secrets = [\"registry\"]
host_gateway_ip = \"192.0.2.1\"
platform_network.egress = [{cidr = \"0.0.0.0/0\", except = [\"10.0.0.0/8\"], ports = [80, 443]}]
platform_network.controls = [\"example.com:443\"]
proxy_pod.affinity = \"preferred\"
";

const SANDBOX: &str = "
id: 6f1c2a34-9b7e-4d0a-8c55-0e6f7a8b9c0d
name: demo
workspace: default
command: [python3, -m, agent]
environment: {A: \"1\", B: two, C: \"$(three)\", D: \"four words of text\"}
labels: {team: research, stage: trial}
resources: {cpu_limit: \"2\", memory_limit: 4Gi}
gpu: {count: 1}
driver_config:
  pod: {node_selector: {disk: ssd}, tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]}
  volumes: [{name: data, persistent_volume_claim: {claim_name: data}}]
  containers: {agent: {volume_mounts: [{name: data, mount_path: /mnt/data}]}}
policy:
  version: 1
  network_policies:
    github: {endpoints: [{host: github.com, port: 443}], binaries: [{path: /usr/bin/git}]}
    pypi: {endpoints: [{host: pypi.org, port: 443}, {host: files.pythonhosted.org, port: 443}], binaries: [{path: /usr/bin/python3}]}
";

/// One sandbox, from text to text; the bytes of it, so that nothing is left out.
fn one(config: &DriverConfig, cluster: &Cluster, description: &str) -> usize {
    let sandbox = SandboxSpec::from_yaml(black_box(description)).unwrap_or_else(|errors| panic!("{errors}"));
    let objects = render(config, &sandbox, cluster).unwrap_or_else(|errors| panic!("{errors}"));
    black_box(to_yaml(&objects)).len()
}

fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

fn main() {
    let quick = std::env::args().any(|argument| argument == "QUICK");
    let (runs, many) = if quick { (50, MANY / 20) } else { (1000_u32, MANY) };
    let ca = ProxyCa { certificate: "certificate\n".repeat(12), key: "key\n".repeat(4) };
    let key = AttestationKey("k".repeat(AttestationKey::LEAST));
    let cluster = Cluster {
        sandbox_api: Some(SandboxApi::V1Beta1),
        proxy_ca: Some(ca),
        attestation_key: Some(key),
        ..Cluster::default()
    };
    let base = DriverConfig::from_toml(CONFIG).unwrap_or_else(|errors| panic!("{errors}"));
    let mut configs: Vec<(&str, DriverConfig)> =
        Topology::ALL.map(|(name, topology)| (name, DriverConfig { topology, ..base.clone() })).into();
    let network_enforcement = NetworkEnforcement::Platform;
    let provider_spiffe_workload_api_socket_path = String::new();
    configs.push((
        "platform-enforced",
        DriverConfig { network_enforcement, provider_spiffe_workload_api_socket_path, ..base.clone() },
    ));

    println!("{:<20} {:>8} {:>8} {:>8}   bar {:.1} ms", "a sandbox [ms]", "mean", "best", "bytes", millis(BAR));
    for (name, config) in &configs {
        let (mut bytes, mut best) = (0, Duration::MAX);
        let before = on_processor();
        for _ in 0..runs {
            let begun = Instant::now();
            bytes = one(config, &cluster, SANDBOX);
            best = best.min(begun.elapsed());
        }
        let mean = (on_processor() - before) / runs;
        println!("{name:<20} {:>8.3} {:>8.3} {bytes:>8}   {}", millis(mean), millis(best), verdict(mean <= BAR));
    }

    let descriptions: Vec<String> =
        (0..many).map(|number| SANDBOX.replace("6f1c2a34", &format!("{number:08x}"))).collect();
    let (begun, before) = (Instant::now(), on_processor());
    let mut bytes = 0;
    for (number, description) in descriptions.iter().enumerate() {
        bytes += one(&configs[number % configs.len()].1, &cluster, description);
    }
    let (took, wall) = (on_processor() - before, begun.elapsed());
    let bar = BAR_OF_MANY.mul_f64(many as f64 / MANY as f64);
    println!(
        "{many} sandboxes of all topologies: {:.2} s of a processor, {:.2} s by the clock, {:.0} MB; bar {:.1} s   {}",
        took.as_secs_f64(),
        wall.as_secs_f64(),
        bytes as f64 / 1e6,
        bar.as_secs_f64(),
        verdict(took <= bar)
    );
}

/// How long this thread has run (proc_pid_schedstat, scheduler's statistics in the kernel's documentation).
fn on_processor() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("/proc/thread-self/schedstat");
    let nanoseconds = text.split_whitespace().next().and_then(|word| word.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
