//! A node that `cni-install` works on: its directories, the service account that a pod would have, and the API server.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::kubernetes::{ApiServer, Record, objects, rights};
use crate::node::NAMESPACE;
use crate::world::{Daemon, World, supervisor};

/// The node's name, and where the API server has it.
pub const NODE: &str = "n1";
pub const NODE_PATH: &str = "/api/v1/nodes/n1";

/// The user of the service account.
pub const USER: &str = "system:serviceaccount:openshell:openshell-cni";

/// A primary configuration in the spelling of a cluster's network, with things that an editor could lose.
pub const PRIMARY: &str = r#"{
  "name": "k8s-pod-network",
  "cniVersion": "1.0.0",
  "plugins": [
    {"type": "bridge", "mtu": 1.5e3, "ipam": {"type": "host-local"},  "note": "ü"},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ],
  "z": 1, "a": [ ]
}
"#;

/// The node.
pub struct Installer {
    /// Its API server.
    pub api: ApiServer,
    directory: tempfile::TempDir,
    /// The network namespace that the node is in, where it is another one.
    machine: Option<PathBuf>,
}

impl Installer {
    /// A node with a primary configuration, a startup taint, and a DaemonSet that is there to stay.
    pub fn new() -> Self {
        Self::with(ApiServer::start(), None)
    }

    /// The same in the machine, whose API server is there too.
    pub fn in_machine(world: &World) -> Self {
        let listener = world.in_machine(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 6443)).expect("bind"));
        Self::with(ApiServer::start_on(listener), Some(world.machine_namespace()))
    }

    fn with(api: ApiServer, machine: Option<PathBuf>) -> Self {
        let startup = objects::taint("openshell.ai/cni-not-ready", "NoSchedule");
        api.put(&objects::node(NODE, &[startup, objects::taint("team", "NoExecute")]));
        api.put(&objects::daemon_set("openshell", "openshell-cni", None));
        let directory = tempfile::Builder::new().prefix("openshell-node-").tempdir_in("/var/tmp").expect("a directory");
        let node = Self { api, directory, machine };
        for name in ["net.d", "bin", "account"] {
            fs::create_dir(node.path(name)).expect("a directory");
        }
        // As its network has brought them.
        for plugin in ["bridge", "portmap"] {
            fs::write(node.path("bin").join(plugin), "").expect("write");
        }
        node.renew();
        fs::write(node.path("account/ca.crt"), node.api.ca()).expect("write");
        fs::write(node.primary(), PRIMARY).expect("write");
        node
    }

    /// A path of the node's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The primary configuration.
    pub fn primary(&self) -> PathBuf {
        self.path("net.d/10-net.conflist")
    }

    /// A new token for the service account; the kubelet replaces the file.
    pub fn renew(&self) -> String {
        let rights = [
            rights::pods(NAMESPACE),
            rights::nodes(&["get", "patch"]).named(NODE),
            rights::node_status(),
            rights::daemon_sets("openshell"),
        ];
        let token = self.api.token(USER, &rights);
        fs::write(self.path("account/token"), &token).expect("write");
        token
    }

    /// `cni-install` with these flags besides the usual ones.
    pub fn command(&self, flags: &[&str]) -> Command {
        let mut command = match &self.machine {
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", namespace.display())).arg("--").arg(supervisor());
                command
            }
            None => Command::new(supervisor()),
        };
        command.args(["cni-install", "--sandbox-namespace", NAMESPACE]);
        if !flags.contains(&"--daemonset") {
            command.args(["--daemonset", "openshell/openshell-cni"]);
        }
        for (flag, name) in [
            ("--conf-dir", "net.d"),
            ("--bin-dir", "bin"),
            ("--kubeconfig", "net.d/openshell-cni-kubeconfig"),
            ("--log-file", "cni.log"),
            ("--called-file", "run/called"),
            ("--service-account", "account"),
        ] {
            if !flags.contains(&flag) {
                command.arg(flag).arg(self.path(name));
            }
        }
        self.as_pod(&mut command);
        command.args(flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The environment that a pod on this node has.
    pub fn as_pod(&self, command: &mut Command) {
        let address = self.api.address();
        command.env("NODE_NAME", NODE).env("KUBERNETES_SERVICE_HOST", address.ip().to_string());
        command.env("KUBERNETES_SERVICE_PORT", address.port().to_string());
    }

    /// Starts it.
    pub fn start(&self, flags: &[&str]) -> Daemon {
        Daemon::spawn(self.command(flags))
    }

    /// Starts it and waits until it says that the node is ready.
    #[track_caller]
    pub fn started(&self, flags: &[&str]) -> Daemon {
        // A label that is there already says nothing of this one, which begins by taking it away.
        let set = || self.story().iter().filter(|(record, _)| record.body.contains("cni-ready\":\"true")).count();
        let before = set();
        let daemon = self.start(flags);
        let deadline = Instant::now() + Duration::from_secs(20);
        while set() == before {
            assert!(Instant::now() < deadline, "never ready: {:#?}", self.api.calls().last());
            std::thread::sleep(Duration::from_millis(5));
        }
        daemon
    }

    /// The label as the API server has it.
    pub fn label(&self) -> Option<String> {
        let node = self.api.object(NODE_PATH).expect("the node");
        node["metadata"]["labels"]["openshell.ai/cni-ready"].as_str().map(str::to_owned)
    }

    /// Waits for the label.
    #[track_caller]
    pub fn await_label(&self, set: bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while (self.label().as_deref() == Some("true")) != set {
            assert!(Instant::now() < deadline, "the label never became {set}: {:#?}", self.api.calls().last());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The condition, if there is one.
    pub fn condition(&self) -> Option<Value> {
        let node = self.api.object(NODE_PATH).expect("the node");
        let conditions = node["status"]["conditions"].as_array().expect("conditions").clone();
        conditions.into_iter().find(|condition| condition["type"] == "OpenShellCNIReady")
    }

    /// Whether the primary calls the plugin, last of all.
    pub fn is_chained(&self) -> bool {
        chained(&self.primary())
    }

    /// The settings that the plugin is called with.
    pub fn entry(&self) -> Value {
        let list: Value = serde_json::from_str(&fs::read_to_string(self.primary()).expect("read")).expect("JSON");
        list["plugins"].as_array().and_then(|plugins| plugins.last()).expect("a plugin").clone()
    }

    /// Calls the installed program as a runtime would, with the settings that it has been given: exit code and output.
    pub fn call(&self, command: &str, netns: &Path, pod: &str, settings: &Value) -> (Option<i32>, String) {
        let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "openshell-cni", "openshell": settings});
        let mut plugin = Command::new(self.path("bin/openshell-cni"));
        plugin.env_clear().env("CNI_COMMAND", command).env("CNI_CONTAINERID", "c").env("CNI_IFNAME", "eth0");
        plugin
            .env("CNI_NETNS", netns)
            .env("CNI_ARGS", format!("K8S_POD_NAMESPACE={pod}").replacen('/', ";K8S_POD_NAME=", 1));
        let mut child = plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the installed plugin");
        crate::world::say(child.stdin.take().expect("stdin"), config.to_string());
        let output = child.wait_with_output().expect("wait");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What was asked of the API server that changed the node: what, and the label afterwards.
    pub fn story(&self) -> Vec<(Record, bool)> {
        let history = self.api.history().into_iter().filter(|record| record.path.starts_with(NODE_PATH));
        history
            .filter(|record| record.method != "GET")
            .map(|record| {
                let label = record
                    .after
                    .as_ref()
                    .is_some_and(|node| node["metadata"]["labels"]["openshell.ai/cni-ready"] == "true");
                (record, label)
            })
            .collect()
    }
}

/// Whether a configuration is whole and calls the plugin as it should, last of all.
pub fn chained(path: &Path) -> bool {
    let list: Value = match fs::read(path).map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(list)) => list,
        _ => return false,
    };
    let last = list["plugins"].as_array().and_then(|plugins| plugins.last());
    last.is_some_and(|last| {
        last["type"] == "openshell-cni" && last["openshell"]["sandboxNamespaces"] == json!([NAMESPACE])
    })
}
