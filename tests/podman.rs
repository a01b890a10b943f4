//! Pods for real: Podman with settings, storage and a network of the test's own, in the machine of a [`World`], so that
//! what leaves a pod arrives at the origin or nowhere, and nothing of this machine's Podman is touched.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::node::{NAMESPACE, Node};
use crate::world::{MACHINE_V4, MACHINE_V6, ORIGIN_NAMES, ORIGIN_V4, World, supervisor};

/// The pods' network behind the machine; the origin has routes back, so nothing is translated.
const NETWORK_V4: &str = "10.88.77.0/24";
const NETWORK_V6: &str = "fd88:77::/64";
/// The name of that network.
const NETWORK: &str = "pods";

/// A network of one pod, whose addresses are known before it starts. What leaves such a pod is routed by the machine, so
/// that rules there judge it as a cluster's network does.
#[derive(Clone, Copy, Debug)]
pub struct Alone {
    name: &'static str,
    bridge: &'static str,
    v4: (&'static str, &'static str),
    v6: (&'static str, &'static str),
}

/// Two such networks.
pub const ALONE: [Alone; 2] = [
    Alone { name: "one", bridge: "one0", v4: ("10.88.78.0/24", "10.88.78.2"), v6: ("fd88:78::/64", "fd88:78::2") },
    Alone { name: "two", bridge: "two0", v4: ("10.88.79.0/24", "10.88.79.2"), v6: ("fd88:79::/64", "fd88:79::2") },
];

impl Alone {
    /// The addresses of the pod, IPv4 first.
    pub fn addresses(&self) -> [IpAddr; 2] {
        [self.v4.1, self.v6.1].map(|address| address.parse().expect("an address"))
    }
}

/// Podman, with the images of `images/build`.
pub struct Podman<'w> {
    world: &'w World,
    directory: tempfile::TempDir,
}

impl<'w> Podman<'w> {
    /// Writes the settings and builds the images from the executable under test.
    pub fn new(world: &'w World) -> Self {
        Self::chained(world, None)
    }

    /// The same with the plugin chained behind the pods' network, with these settings. Podman
    /// tells the pod's name, and no namespace: what is called as the plugin says `web` of pods whose names begin so,
    /// [`NAMESPACE`] of others, and calls the real one.
    pub fn with_plugin(world: &'w World, node: &Node) -> Self {
        Self::chained(world, Some(node))
    }

    fn chained(world: &'w World, node: Option<&Node>) -> Self {
        let directory =
            tempfile::Builder::new().prefix("openshell-podman-").tempdir_in("/var/tmp").expect("a directory");
        let podman = Self { world, directory };
        let path = |name: &str| podman.directory.path().join(name).display().to_string();
        fs::create_dir(path("networks")).expect("a directory");
        // Ping sockets for everybody, as Kubernetes' container runtimes have it; runc and limits below the hard ones: crun refuses hybrid cgroups, and raising a limit needs SYS_RESOURCE.
        podman.write(
            "containers.conf",
            &format!(
                "[containers]\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n\
                 default_sysctls = [\"net.ipv4.ping_group_range=0 2147483647\"]\n\
                 [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nlock_type = \"file\"\n\
                 tmp_dir = {:?}\n\
                 [network]\nnetwork_backend = \"cni\"\nnetwork_config_dir = {:?}\ncni_plugin_dirs = [{:?}, \"/usr/lib/cni\"]\n",
                path("tmp"),
                path("networks"),
                path("plugins"),
            ),
        );
        podman.write(
            "storage.conf",
            &format!(
                "[storage]\ndriver = \"overlay\"\ngraphroot = {:?}\nrunroot = {:?}\n",
                path("storage"),
                path("run")
            ),
        );
        let mut network = json!({"cniVersion": "0.4.0", "name": NETWORK, "plugins": [{
            "type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
            "ipam": {
                "type": "host-local",
                "dataDir": path("addresses"),
                "ranges": [[{"subnet": NETWORK_V4}], [{"subnet": NETWORK_V6}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
            },
        }]});
        if let Some(node) = node {
            let plugins = network["plugins"].as_array_mut().expect("a list");
            plugins.push(json!({"type": "openshell-cni", "openshell": node.settings()}));
            fs::create_dir_all(path("plugins/real")).expect("a directory");
            std::os::unix::fs::symlink(supervisor(), path("plugins/real/openshell-cni")).expect("a link");
            let shim = format!(
                "#!/bin/sh\ncase $CNI_ARGS in *K8S_POD_NAME=web*) in=web ;; *) in={NAMESPACE} ;; esac\n\
                 export CNI_ARGS=\"$CNI_ARGS;K8S_POD_NAMESPACE=$in\"\nexec {}\n",
                path("plugins/real/openshell-cni")
            );
            podman.write("plugins/openshell-cni", &shim);
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(path("plugins/openshell-cni"), mode).expect("chmod");
        }
        podman.write("networks/pods.conflist", &network.to_string());
        for Alone { name, bridge, v4, v6 } in ALONE {
            let range = |(subnet, address)| json!([{"subnet": subnet, "rangeStart": address, "rangeEnd": address}]);
            let mut alone = network.clone();
            alone["name"] = name.into();
            alone["plugins"] = json!([alone["plugins"][0]]);
            alone["plugins"][0]["bridge"] = bridge.into();
            alone["plugins"][0]["ipam"]["ranges"] = json!([range(v4), range(v6)]);
            podman.write(&format!("networks/{name}.conflist"), &alone.to_string());
            world.route_from_origin(v4.0, MACHINE_V4.into());
            world.route_from_origin(v6.0, MACHINE_V6.into());
        }
        world.route_from_origin(NETWORK_V4, MACHINE_V4.into());
        world.route_from_origin(NETWORK_V6, MACHINE_V6.into());
        // By somebody whose files are private: what is built is for every user all the same.
        let mut build = podman.in_machine(Path::new("sh"));
        build.args(["-c", "umask 077; exec \"$@\"", "sh"]).arg(repository().join("images/build")).arg(supervisor());
        let output = build.output().expect("start");
        assert!(output.status.success(), "images/build: {}", text(&output.stderr));
        podman
    }

    /// A path of the settings.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.directory.path().join(name), content).expect("write");
    }

    /// A program in the machine that sees these settings.
    fn in_machine(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.world.machine_namespace().display())).arg("--").arg(program);
        command.env("CONTAINERS_CONF", self.directory.path().join("containers.conf"));
        command.env("CONTAINERS_STORAGE_CONF", self.directory.path().join("storage.conf"));
        command
    }

    /// `podman`, for whatever has no method here.
    pub fn command<A: AsRef<str>>(&self, arguments: impl IntoIterator<Item = A>) -> Command {
        let mut command = self.in_machine(Path::new("podman"));
        for argument in arguments {
            command.arg(argument.as_ref());
        }
        command
    }

    /// Runs it.
    pub fn output<A: AsRef<str>>(&self, arguments: impl IntoIterator<Item = A>) -> Output {
        self.command(arguments).output().expect("podman, which .ci/run installs")
    }

    /// Runs it, and fails the test where it fails.
    #[track_caller]
    pub fn expect<A: AsRef<str>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let command = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect::<Vec<_>>();
        let output = self.output(&command);
        assert!(output.status.success(), "podman {command:?}: {}{}", text(&output.stdout), text(&output.stderr));
        text(&output.stdout)
    }

    /// Builds the agents' image with one more file in it, a copy of one of this machine's.
    pub fn image_with(&self, name: &str, source: &str, path: &str, mode: u32) {
        let context = self.directory.path().join("context");
        let file = context.join("file");
        fs::create_dir_all(&context).expect("a directory");
        fs::copy(source, &file).expect("copy");
        // Copied by its own mode, a file loses its setuid bit.
        let lines = format!("FROM localhost/openshell-sandbox\nCOPY --chmod={mode:o} file {path}\n");
        self.write("context/Containerfile", &lines);
        self.expect(["build", "--quiet", "--network", "none", "--tag", name, &context.display().to_string()]);
    }

    /// Plays a manifest whatever comes of it: the pod, and how the playing ended.
    pub fn play(&self, manifest: &Manifest) -> (Pod<'_>, Output) {
        self.play_in(NETWORK, manifest, true)
    }

    /// Makes a pod in a network of its own without starting it: see [`Pod::begin`].
    #[track_caller]
    pub fn make(&self, network: Alone, manifest: &Manifest) -> Pod<'_> {
        let (pod, output) = self.play_in(network.name, manifest, false);
        assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
        pod
    }

    fn play_in(&self, network: &str, manifest: &Manifest, start: bool) -> (Pod<'_>, Output) {
        let file = format!("{}.yaml", manifest.name());
        self.write(&file, &manifest.text());
        let file = self.directory.path().join(file).display().to_string();
        let start = format!("--start={start}");
        let output = self.output(["kube", "play", "--network", network, &start, &file]);
        (Pod { podman: self, name: manifest.name().to_owned() }, output)
    }

    /// Plays a manifest whose pod must start.
    #[track_caller]
    pub fn start(&self, manifest: &Manifest) -> Pod<'_> {
        let (pod, output) = self.play(manifest);
        assert!(output.status.success(), "{}{}\n{}", text(&output.stdout), text(&output.stderr), pod.everything());
        pod
    }
}

impl Drop for Podman<'_> {
    fn drop(&mut self) {
        let _ = self.output(["pod", "rm", "--all", "--force", "--time", "0"]);
        // Unmounts what overlay left mounted; the directory goes with the value.
        let _ = self.output(["unshare", "true"]);
        let storage = self.directory.path().join("storage/overlay");
        let _ = nix::mount::umount2(&storage, nix::mount::MntFlags::MNT_DETACH);
    }
}

/// A pod that was played.
pub struct Pod<'p> {
    podman: &'p Podman<'p>,
    name: String,
}

impl Pod<'_> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What Podman calls one of its containers.
    fn container(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// What a container has written, to both outputs.
    pub fn logs(&self, container: &str) -> String {
        let output = self.podman.output(["logs", &self.container(container)]);
        text(&output.stdout) + &text(&output.stderr)
    }

    /// The logs of every container, for tests that fail.
    pub fn everything(&self) -> String {
        let names =
            self.podman.output(["ps", "--all", "--filter", &format!("pod={}", self.name), "--format", "{{.Names}}"]);
        let mut all = String::new();
        for name in text(&names.stdout).lines().filter(|name| !name.ends_with("-infra")) {
            let output = self.podman.output(["logs", name]);
            all += &format!("--- {name}\n{}{}", text(&output.stdout), text(&output.stderr));
        }
        all
    }

    /// Runs a program in a container beside what it runs already, as `uid:gid` where that is given.
    pub fn exec(&self, container: &str, user: Option<&str>, program: &[&str]) -> Output {
        let container = self.container(container);
        let mut arguments = vec!["exec"];
        arguments.extend(user.iter().flat_map(|user| ["--user", user]));
        arguments.push(&container);
        arguments.extend(program);
        self.podman.output(arguments)
    }

    /// The same for a program that goes on: how its start ended.
    pub fn exec_in_background(&self, container: &str, program: &[&str]) -> Output {
        let container = self.container(container);
        let mut arguments = vec!["exec", "--detach", &container];
        arguments.extend(program);
        self.podman.output(arguments)
    }

    /// A field of `podman inspect`, as Go's template names it.
    pub fn inspect(&self, container: &str, field: &str) -> String {
        self.podman
            .expect(["inspect", "--format", &format!("{{{{{field}}}}}"), &self.container(container)])
            .trim()
            .to_owned()
    }

    /// Whether a container still runs.
    pub fn runs(&self, container: &str) -> bool {
        self.inspect(container, ".State.Running") == "true"
    }

    /// Waits for the end of a container, and returns its exit code and how long that took.
    #[track_caller]
    pub fn end_of(&self, container: &str, limit: Duration) -> (i32, Duration) {
        let started = Instant::now();
        while self.runs(container) {
            assert!(started.elapsed() < limit, "{container} still runs after {limit:?}\n{}", self.everything());
            std::thread::sleep(Duration::from_millis(20));
        }
        (self.inspect(container, ".State.ExitCode").parse().expect("a number"), started.elapsed())
    }

    /// Kills a container, as its node might for want of memory.
    pub fn kill(&self, container: &str) {
        self.podman.expect(["kill", "--signal", "KILL", &self.container(container)]);
    }

    /// Starts a container that has ended, and waits for its end where it is an init container.
    pub fn start_again(&self, container: &str) -> Output {
        self.podman.output(["start", "--attach", &self.container(container)])
    }

    /// Starts a pod that was only made, init containers first.
    pub fn begin(&self) -> Output {
        self.podman.output(["pod", "start", &self.name])
    }

    /// The directory behind a volume of the pod.
    pub fn volume(&self, name: &str) -> PathBuf {
        self.podman.expect(["volume", "inspect", "--format", "{{.Mountpoint}}", name]).trim().into()
    }

    /// A command that runs a program in a container with the caller's standard input and output, as `kubectl exec -i` does.
    pub fn exec_interactively(&self, container: &str, program: &[&str]) -> Command {
        let container = self.container(container);
        let mut arguments = vec!["exec", "--interactive", &container];
        arguments.extend(program);
        self.podman.command(arguments)
    }

    /// Ends the whole pod.
    #[track_caller]
    pub fn stop(&self) {
        self.podman.expect(["pod", "stop", "--time", "1", &self.name]);
    }

    /// Ends and starts the whole pod, init containers first. Not `pod restart`, which leaves them out.
    #[track_caller]
    pub fn stop_and_start(&self) {
        self.stop();
        self.podman.expect(["pod", "start", &self.name]);
    }

    /// A program of this machine in the pod's network namespace, as root.
    pub fn in_its_network(&self, container: &str, program: &str, arguments: &[&str]) -> Output {
        let pid = self.inspect(container, ".State.Pid");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{pid}/ns/net")).arg("--").arg(program).args(arguments);
        command.output().expect("nsenter (package util-linux)")
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        let _ = self.podman.output(["pod", "rm", "--force", "--time", "0", &self.name]);
        // Named after the manifest's ConfigMaps and emptyDirs.
        let _ = self.podman.output(["volume", "rm", "--all", "--force"]);
    }
}

/// The objects of a YAML file, to be changed before they are played.
#[derive(Clone)]
pub struct Manifest {
    documents: Vec<Value>,
}

impl Manifest {
    /// Reads a file of `images/pods`, and gives the origin its names.
    pub fn of(file: &str) -> Self {
        let path = repository().join("images/pods").join(file);
        let yaml = fs::read_to_string(&path).expect("a manifest");
        Self::parse(&yaml)
    }

    /// Reads YAML, and gives the origin its names.
    pub fn parse(yaml: &str) -> Self {
        Self::from(serde_saphyr::from_multiple::<Value>(yaml).expect("YAML"))
    }

    fn name(&self) -> &str {
        let pod = self.documents.iter().find(|object| object["kind"] == "Pod").expect("a pod");
        pod["metadata"]["name"].as_str().expect("a name")
    }

    /// The pod.
    pub fn pod(&self) -> Value {
        self.documents.iter().find(|object| object["kind"] == "Pod").expect("a pod").clone()
    }

    /// The pod's metadata.
    pub fn metadata(&mut self) -> &mut Value {
        let pod = self.documents.iter_mut().find(|object| object["kind"] == "Pod");
        &mut pod.expect("a pod")["metadata"]
    }

    /// The pod's specification.
    pub fn spec(&mut self) -> &mut Value {
        let pod = self.documents.iter_mut().find(|object| object["kind"] == "Pod");
        &mut pod.expect("a pod")["spec"]
    }

    /// One container of it, an init container or another.
    pub fn container(&mut self, name: &str) -> &mut Value {
        let spec = self.spec().as_object_mut().expect("a map");
        spec.iter_mut()
            .filter(|(key, _)| matches!(key.as_str(), "containers" | "initContainers"))
            .flat_map(|(_, list)| list.as_array_mut().expect("a list"))
            .find(|container| container["name"] == name)
            .expect("a container of that name")
    }

    /// Replaces the workload, which the agent's container is told by a variable.
    pub fn workload(&mut self, command: &[&str]) -> &mut Self {
        // As it is rendered: Podman expands `$(NAME)` in values, as the kubelet does.
        let spec = json!({"version": 1, "command": command}).to_string().replace('$', "\\u0024");
        let variables = self.container("agent")["env"].as_array_mut().expect("a list");
        let variable = variables.iter_mut().find(|variable| variable["name"] == "OPENSHELL_MAIN_PROCESS_SPEC");
        variable.expect("the workload")["value"] = spec.into();
        self
    }

    /// Replaces the policy.
    pub fn policy(&mut self, policy: &str) -> &mut Self {
        let policies = self.documents.iter_mut().find(|object| object["data"]["policy.yaml"].is_string());
        policies.expect("the policy's ConfigMap")["data"]["policy.yaml"] = policy.into();
        self
    }

    /// Gives network-init the client's TLS files: a Secret in clusters, which this Podman cannot mount.
    pub fn client_tls(&mut self, files: &Value) -> &mut Self {
        self.documents.insert(
            0,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "client-tls"}, "data": files}),
        );
        let volume = json!({"name": "client-tls", "configMap": {"name": "client-tls"}});
        self.spec()["volumes"].as_array_mut().expect("a list").push(volume);
        let mount = json!({"name": "client-tls", "mountPath": "/etc/openshell-tls/client", "readOnly": true});
        self.container("openshell-network-init")["volumeMounts"].as_array_mut().expect("a list").push(mount);
        self
    }

    /// One more container, with this machine's programs below /usr.
    pub fn intruder(&mut self, name: &str, security: &Value) -> &mut Self {
        let container = json!({
            "name": name, "image": "localhost/openshell-sandbox", "command": ["sleep", "1000"],
            "securityContext": security, "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": true}],
        });
        self.spec()["containers"].as_array_mut().expect("a list").push(container);
        self.programs_of_this_machine(None)
    }

    /// Gives a container this machine's programs below /usr, or only makes the volume.
    pub fn programs_of_this_machine(&mut self, container: Option<&str>) -> &mut Self {
        let volume = json!({"name": "usr", "hostPath": {"path": "/usr"}});
        let volumes = self.spec()["volumes"].as_array_mut().expect("a list");
        if !volumes.contains(&volume) {
            volumes.push(volume);
        }
        if let Some(name) = container {
            let mount = json!({"name": "usr", "mountPath": "/usr", "readOnly": true});
            self.container(name)["volumeMounts"].as_array_mut().expect("a list").push(mount);
        }
        self
    }

    /// JSON, which is YAML.
    fn text(&self) -> String {
        self.documents.iter().map(Value::to_string).collect::<Vec<_>>().join("\n---\n")
    }
}

/// Gives the origin its names.
impl From<Vec<Value>> for Manifest {
    fn from(documents: Vec<Value>) -> Self {
        let mut manifest = Self { documents };
        manifest.spec()["hostAliases"] = json!([{"ip": ORIGIN_V4, "hostnames": ORIGIN_NAMES}]);
        manifest
    }
}

/// Where this project's files are.
pub fn repository() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

/// What a program has written.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
