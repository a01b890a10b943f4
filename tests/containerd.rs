//! A node for real: Debian's containerd with its part that serves the kubelet, its own files and network, in the machine
//! of a [`World`], and our plugin chained by our installer.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::json;

use crate::cri::{PodSandbox, Runtime};
use crate::installer::Installer;
use crate::world::{Daemon, MACHINE_V4, World, eventually};

/// The pods' network behind the machine; the origin has a route back, so nothing is translated.
const NETWORK: &str = "10.88.79.0/24";

/// What every pod's sandbox is held by.
const PAUSE: &str = "localhost/pause:1";

/// containerd, started.
pub struct Containerd<'w> {
    world: &'w World,
    /// The node that it is the runtime of.
    pub node: Installer,
    /// Of its own, short: the path of a socket has at most 107 bytes.
    directory: tempfile::TempDir,
    socket: PathBuf,
    daemon: Option<Daemon>,
}

impl<'w> Containerd<'w> {
    /// A runtime with a network, and no plugin of ours yet.
    pub fn new(world: &'w World) -> Self {
        let node = Installer::in_machine(world);
        let directory = tempfile::Builder::new().prefix("openshell-cri-").tempdir_in("/var/tmp").expect("a directory");
        let socket = directory.path().join("containerd.sock");
        let mut containerd = Self { world, node, directory, socket, daemon: None };
        for plugin in ["bridge", "host-local", "portmap", "loopback"] {
            let _ = fs::remove_file(containerd.node.path("bin").join(plugin));
            symlink(Path::new("/usr/lib/cni").join(plugin), containerd.node.path("bin").join(plugin)).expect("a link");
        }
        fs::write(containerd.node.primary(), containerd.primary()).expect("write");
        world.route_from_origin(NETWORK, MACHINE_V4.into());
        let settings = containerd.settings();
        fs::write(containerd.directory.path().join("config.toml"), settings).expect("write");
        containerd.start();
        let image = containerd.image();
        let mut import = Command::new("ctr");
        import.arg("--address").arg(&containerd.socket).args(["--namespace", "k8s.io", "images", "import"]).arg(image);
        succeed(import);
        containerd
    }

    /// The same with the plugin chained by the installer, which is then gone: a node goes on without it.
    pub fn with_plugin(world: &'w World) -> Self {
        let containerd = Self::new(world);
        drop(containerd.node.started(&[]));
        containerd
    }

    /// The network's configuration as its owner writes it.
    pub fn primary(&self) -> String {
        let addresses = self.node.path("addresses");
        format!(
            "{:#}\n",
            json!({"cniVersion": "0.4.0", "name": "pods", "plugins": [
                {"type": "bridge", "bridge": "pods1", "isGateway": true, "hairpinMode": true, "ipam": {
                    "type": "host-local", "dataDir": addresses, "ranges": [[{"subnet": NETWORK}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                }},
                {"type": "portmap", "capabilities": {"portMappings": true}},
            ]})
        )
    }

    fn settings(&self) -> String {
        let directory = self.directory.path().display();
        let (bin, configurations) = (self.node.path("bin"), self.node.path("net.d"));
        // Raising a process above others when memory runs out needs SYS_RESOURCE, which machines of tests may lack.
        format!(
            "version = 2\nroot = \"{directory}/root\"\nstate = \"{directory}/state\"\n\
             disabled_plugins = [\"io.containerd.internal.v1.opt\"]\n\
             [grpc]\naddress = {:?}\n\
             [plugins.\"io.containerd.grpc.v1.cri\"]\n\
             sandbox_image = {PAUSE:?}\nrestrict_oom_score_adj = true\nnetns_mounts_under_state_dir = true\n\
             [plugins.\"io.containerd.grpc.v1.cri\".cni]\nbin_dir = {bin:?}\nconf_dir = {configurations:?}\n",
            self.socket,
        )
    }

    /// An image of one static program, as `docker save` writes it.
    fn image(&self) -> PathBuf {
        let directory = self.directory.path().join("image");
        fs::create_dir(&directory).expect("a directory");
        fs::copy("/usr/bin/catatonit", directory.join("pause")).expect("catatonit, which .ci/run installs");
        let tar = |archive: &str, names: &[&str]| {
            let mut tar = Command::new("tar");
            tar.current_dir(&directory).args(["--create", "--format=ustar", "--file", archive]).args(names);
            succeed(tar);
        };
        tar("layer.tar", &["pause"]);
        let mut sum = Command::new("sha256sum");
        sum.arg(directory.join("layer.tar"));
        let layer = String::from_utf8(succeed(sum).stdout).expect("a sum");
        let layer = layer.split_whitespace().next().expect("a sum");
        let machine = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let image = json!({
            "architecture": machine, "os": "linux", "config": {"Entrypoint": ["/pause", "-P"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        });
        let manifest = json!([{"Config": "config.json", "RepoTags": [PAUSE], "Layers": ["layer.tar"]}]);
        fs::write(directory.join("config.json"), image.to_string()).expect("write");
        fs::write(directory.join("manifest.json"), manifest.to_string()).expect("write");
        tar("image.tar", &["config.json", "layer.tar", "manifest.json"]);
        directory.join("image.tar")
    }

    /// Starts it, anew where it was ended or killed.
    pub fn start(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.log_file()).expect("a log");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net={}", self.world.machine_namespace().display())).args([
            "--",
            "containerd",
            "--config",
        ]);
        command.arg(self.directory.path().join("config.toml"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.daemon = Some(Daemon::spawn(command));
        eventually("containerd (which .ci/run installs) answers", || self.cri().list().is_ok());
    }

    /// Kills it; what it has started goes on.
    pub fn kill(&mut self) {
        drop(self.daemon.take());
    }

    /// Its process.
    pub fn pid(&self) -> i32 {
        self.daemon.as_ref().expect("it runs").pid()
    }

    /// What it is asked by.
    pub fn cri(&self) -> Runtime<'_> {
        Runtime { socket: &self.socket }
    }

    /// Starts a pod, which must start.
    #[track_caller]
    pub fn run(&self, pod: PodSandbox<'_>) -> String {
        self.cri().run(pod).unwrap_or_else(|refusal| panic!("{pod:?}: {refusal}\n{}", self.log()))
    }

    /// Ends a pod wholly.
    #[track_caller]
    pub fn end(&self, sandbox: &str) {
        self.cri()
            .stop(sandbox)
            .and_then(|()| self.cri().remove(sandbox))
            .unwrap_or_else(|refusal| panic!("{refusal}"));
    }

    /// A program of this machine in a pod's network, as this user and group.
    pub fn in_network(&self, sandbox: &str, ids: (u32, u32), program: &[&str]) -> Output {
        let pid = self.cri().pid(sandbox).unwrap_or_else(|refusal| panic!("{refusal}"));
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{pid}/ns/net")).args(["--", "setpriv", "--clear-groups"]);
        command.args(["--reuid", &ids.0.to_string(), "--regid", &ids.1.to_string()]).args(program);
        command.output().expect("nsenter and setpriv (package util-linux)")
    }

    /// What the kernel holds in a pod's network.
    pub fn ruleset(&self, sandbox: &str) -> String {
        let output = self.in_network(sandbox, (0, 0), &["nft", "-s", "list", "ruleset"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// The addresses that are given out.
    pub fn addresses(&self) -> usize {
        let entries = fs::read_dir(self.node.path("addresses/pods")).into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("10.")).count()
    }

    /// The end of its log.
    pub fn log(&self) -> String {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("log")
    }
}

impl Drop for Containerd<'_> {
    fn drop(&mut self) {
        if self.daemon.is_some() {
            for (sandbox, _) in self.cri().list().unwrap_or_default() {
                let _ = self.cri().stop(&sandbox).and_then(|()| self.cri().remove(&sandbox));
            }
        }
        // What is left is what a failed test left.
        let tasks = self.directory.path().join("state/io.containerd.runtime.v2.task/k8s.io");
        for entry in fs::read_dir(tasks).into_iter().flatten().flatten() {
            if let Ok(pid) = fs::read_to_string(entry.path().join("init.pid")).unwrap_or_default().trim().parse() {
                let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL);
            }
        }
        if let Some(mut daemon) = self.daemon.take() {
            daemon.signal(Signal::SIGTERM);
            daemon.wait_within(std::time::Duration::from_secs(5));
        }
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let below = self.directory.path().to_string_lossy();
        for mount in mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|path| path.starts_with(&*below)) {
            let _ = nix::mount::umount2(mount, nix::mount::MntFlags::MNT_DETACH);
        }
    }
}

fn succeed(mut command: Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}, which .ci/run installs: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}
