//! What the node's plugin costs a pod, against Debian's `portmap` and `bridge` in the same run: whole processes, by wall
//! clock, each called as a container runtime calls it.
//!
//! `cargo bench --bench cni [-- QUICK]`; needs root, iproute2 and containernetworking-plugins.

#[path = "../tests/kubernetes/mod.rs"]
#[allow(dead_code, reason = "the stand-in serves the tests too, which use more of it")]
mod kubernetes;
#[path = "../tests/node.rs"]
#[allow(dead_code, reason = "the harness serves the tests too, which use more of it")]
mod node;
#[path = "../tests/world.rs"]
#[allow(dead_code, reason = "the harness serves the tests too, which use more of it")]
mod world;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use node::Node;
use openshell_supervisor::kube::{Access, Client, Resource};

/// Where Debian has its plugins.
const PLUGINS: &str = "/usr/lib/cni";

/// Pods that are started at the same time.
const AT_ONCE: usize = 50;

/// Namespaces of pods, gone with this.
struct Namespaces(Vec<String>);

impl Namespaces {
    fn new(count: usize) -> Self {
        let names: Vec<String> = (0..count).map(|number| format!("osb{}-{number}", std::process::id())).collect();
        names.iter().for_each(|name| ip(&["netns", "add", name]));
        Self(names)
    }

    fn path(&self, index: usize) -> PathBuf {
        Path::new("/var/run/netns").join(&self.0[index])
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        self.0.iter().for_each(|name| ip(&["netns", "delete", name]));
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status().expect("ip (package iproute2)");
    assert!(status.success(), "ip {arguments:?}");
}

/// Half of the runs were quicker than the first, one was as quick as the second.
fn measured(runs: usize, mut act: impl FnMut(usize)) -> (Duration, Duration) {
    let mut times: Vec<Duration> = (0..runs)
        .map(|run| {
            let begun = Instant::now();
            act(run);
            begun.elapsed()
        })
        .collect();
    times.sort_unstable();
    (times[runs / 2], times[0])
}

fn print(what: &str, (median, best): (Duration, Duration)) {
    println!("{what:<66} {:>8.2} {:>8.2}", median.as_secs_f64() * 1e3, best.as_secs_f64() * 1e3);
}

/// ADD by one of Debian's plugins.
fn rival(plugin: &str, config: &str, netns: &Path, container: usize) {
    let mut command = Command::new(Path::new(PLUGINS).join(plugin));
    command
        .env_clear()
        .env("CNI_COMMAND", "ADD")
        .env("CNI_CONTAINERID", format!("c{container}"))
        .env("CNI_NETNS", netns);
    command.env("CNI_IFNAME", "eth0").env("CNI_PATH", PLUGINS).env("PATH", "/usr/sbin:/usr/bin");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("containernetworking-plugins");
    child.stdin.take().expect("stdin").write_all(config.as_bytes()).expect("write");
    let output = child.wait_with_output().expect("wait");
    assert!(output.status.success(), "{plugin}: {}", String::from_utf8_lossy(&output.stdout));
}

fn main() {
    let runs = if std::env::args().any(|argument| argument == "QUICK") { 50 } else { 400 };
    let node = Node::new();
    let namespaces = Namespaces::new(AT_ONCE.max(runs));
    println!("{:<66} {:>8} {:>8}", "ADD, whole process [ms]", "median", "best");
    let previous = r#""prevResult":{"cniVersion":"1.0.0","interfaces":[],"ips":[]}"#;
    let portmap = format!(r#"{{"cniVersion":"1.0.0","name":"b","type":"portmap",{previous}}}"#);
    print("portmap, a pod without ports", measured(runs, |run| rival("portmap", &portmap, &namespaces.path(run), run)));
    let foreign = |run| node.call("ADD", &namespaces.path(run), "web/w-0").answer().expect(node::PREVIOUS);
    print("ours, a pod of another namespace (mark: 3)", measured(runs, foreign));
    let bridge = r#"{"cniVersion":"1.0.0","name":"b","type":"bridge","bridge":"osbench0","ipam":{}}"#;
    print(
        "bridge, without addresses",
        measured(runs.min(AT_ONCE), |run| rival("bridge", bridge, &namespaces.path(run), run)),
    );
    ip(&["link", "delete", "osbench0"]);
    let sandbox = measured(runs, |run| node.add(&namespaces.path(run)).expect(node::PREVIOUS));
    print("ours, a sandbox, API call included", sandbox);
    let again = measured(runs, |run| node.add(&namespaces.path(run)).expect(node::PREVIOUS));
    print("ours, the same once more, in the place of its fence", again);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = Client::new(Access::from_kubeconfig(&node.path("kubeconfig")).expect("access"));
    let pod = Resource::pod(node::NAMESPACE, "a-0").expect("a name");
    let call = measured(runs, |_| drop(runtime.block_on(client.metadata(&pod)).expect("the pod")));
    print("an API call alone: TCP, TLS and the pod", call);
    let apart = sandbox.0.saturating_sub(call.0);
    println!("{:<66} {:>8.2}", "ours, a sandbox, API call aside (mark: 6)", apart.as_secs_f64() * 1e3);
    drop(namespaces);

    let namespaces = Namespaces::new(AT_ONCE);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for index in 0..AT_ONCE {
            let (node, namespaces) = (&node, &namespaces);
            scope.spawn(move || node.add(&namespaces.path(index)).expect(node::PREVIOUS));
        }
    });
    println!(
        "{:<66} {:>8.0}",
        format!("{AT_ONCE} sandboxes at once, all of them [ms] (mark: 1000)"),
        begun.elapsed().as_secs_f64() * 1e3
    );
}
