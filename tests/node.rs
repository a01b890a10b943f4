//! A node as the plugin sees it: an API server, credentials for it, and calls as a container runtime makes them.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::kubernetes::{ApiServer, objects, rights};
use crate::world::{World, supervisor};

/// The namespace of sandboxes.
pub const NAMESPACE: &str = "agents";

/// The annotations of a sandbox whose proxy is 0:1337.
pub const SANDBOX: [(&str, &str); 4] = [
    ("openshell.ai/cni", "enabled"),
    ("openshell.ai/network-enforcement-mode", "cni-sidecar"),
    ("openshell.ai/proxy-uid", "0"),
    ("openshell.ai/proxy-gid", "1337"),
];

/// What the plugin before ours came to, spelled as no JSON library would.
pub const PREVIOUS: &str = r#"{"cniVersion":"1.0.0",  "interfaces":[{"name":"eth0","sandbox":"/x","mtu":1.5e3}], "ips" : [],
    "unknown":{"kept":[1,2.50,"ü"]}}"#;

/// The node.
pub struct Node {
    /// Its API server.
    pub api: ApiServer,
    /// The plugin's token.
    pub token: String,
    directory: tempfile::TempDir,
}

/// How a call ended.
#[derive(Debug)]
pub struct Answer {
    /// The exit code.
    pub code: i32,
    /// Standard output, byte for byte.
    pub output: String,
}

impl Answer {
    /// Code and text of an error, which must be one by the specification.
    #[track_caller]
    pub fn error(&self) -> (u64, String) {
        let error: Value = serde_json::from_str(&self.output).unwrap_or_else(|error| panic!("{error}: {self:?}"));
        let text = |key: &str| error[key].as_str().unwrap_or_else(|| panic!("{key}: {self:?}")).to_owned();
        assert!(self.code == 1 && !text("cniVersion").is_empty() && !text("msg").is_empty(), "{self:?}");
        (error["code"].as_u64().expect("a code"), text("details"))
    }

    /// That there was none.
    #[track_caller]
    pub fn expect(&self, output: &str) {
        assert_eq!((self.code, self.output.trim_end()), (0, output));
    }
}

impl Node {
    /// A node with a sandbox `a-0`, uid `u-1`.
    pub fn new() -> Self {
        Self::with(ApiServer::start())
    }

    /// The same with an API server in the machine, for what runs there.
    pub fn in_machine(world: &World) -> Self {
        Self::with(ApiServer::start_on(
            world.in_machine(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 6443)).expect("bind")),
        ))
    }

    fn with(api: ApiServer) -> Self {
        let token = api.token("system:serviceaccount:openshell:cni", &[rights::pods(NAMESPACE)]);
        let directory = tempfile::Builder::new().prefix("openshell-node-").tempdir_in("/var/tmp").expect("a directory");
        let node = Self { api, token, directory };
        node.credentials(&node.api.kubeconfig(&node.token));
        node.api.put(&objects::pod(NAMESPACE, "a-0", "u-1", &SANDBOX));
        node
    }

    /// A path of the node's.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Replaces the kubeconfig.
    pub fn credentials(&self, text: &str) {
        fs::write(self.path("kubeconfig"), text).expect("write");
    }

    /// The configuration that the plugin gets.
    pub fn config(&self, version: &str) -> String {
        format!(
            r#"{{"cniVersion":"{version}","name":"pods","type":"openshell-cni","prevResult":{PREVIOUS},"openshell":{}}}"#,
            self.settings()
        )
    }

    /// The key `openshell` of it.
    pub fn settings(&self) -> Value {
        json!({
            "kubeconfig": self.path("kubeconfig"), "sandboxNamespaces": [NAMESPACE], "logFile": self.path("cni.log"),
        })
    }

    /// What the plugin noted.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("cni.log")).unwrap_or_default()
    }

    /// A call with this configuration, for a pod that has the namespace `netns`.
    pub fn call(&self, command: &str, netns: &Path, pod: &str) -> Call {
        let arguments = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={pod}");
        let arguments = arguments.replacen('/', ";K8S_POD_NAME=", 1);
        let mut plugin = Command::new(supervisor());
        // As the runtime does: nothing else is in the environment.
        std::os::unix::process::CommandExt::arg0(&mut plugin, "/opt/cni/bin/openshell-cni");
        plugin.env_clear();
        for (name, value) in [
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", "c0ffee"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_NETNS", netns.to_str().expect("UTF-8")),
            ("CNI_ARGS", &arguments),
            ("CNI_PATH", "/opt/cni/bin"),
        ] {
            plugin.env(name, value);
        }
        Call { plugin, input: self.config("1.0.0").into_bytes() }
    }

    /// ADD of the sandbox.
    pub fn add(&self, netns: &Path) -> Answer {
        self.call("ADD", netns, "agents/a-0;K8S_POD_UID=u-1").answer()
    }
}

/// A call to be made.
pub struct Call {
    plugin: Command,
    input: Vec<u8>,
}

impl Call {
    /// With another input.
    pub fn input(mut self, input: impl AsRef<[u8]>) -> Self {
        self.input = input.as_ref().to_vec();
        self
    }

    /// With a variable changed.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.plugin.env(name, value);
        self
    }

    /// Without a variable.
    pub fn without(mut self, name: &str) -> Self {
        self.plugin.env_remove(name);
        self
    }

    /// Makes it.
    #[track_caller]
    pub fn answer(mut self) -> Answer {
        self.plugin.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.plugin.spawn().expect("start");
        // One that does not read to the end has said why.
        let _ = child.stdin.take().expect("stdin").write_all(&self.input);
        let output = child.wait_with_output().expect("wait");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(stderr.is_empty(), "runtimes read standard output alone: {stderr}");
        Answer { code: output.status.code().expect("a code"), output: String::from_utf8(output.stdout).expect("UTF-8") }
    }
}
