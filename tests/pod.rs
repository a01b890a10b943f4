//! A sidecar pod without a container runtime: one network and one process namespace, and what runs in them started as a
//! runtime does it, from outside, so that it has no parent in there.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::world::{Daemon, World, eventually, supervisor};

/// The sandbox's user and group.
pub const SANDBOX: u32 = 4242;

/// The proxy's group, as contract and driver have it.
pub const PROXY_GROUP: u32 = 1337;

/// A pod: namespaces, directories, and no container yet.
pub struct Pod<'w> {
    world: &'w World,
    /// The namespaces' first process, as a pod's pause container.
    _pause: Daemon,
    /// It again, as the machine sees it.
    first: i32,
    state: PathBuf,
}

impl<'w> Pod<'w> {
    /// Makes them on the world's machine.
    pub fn new(world: &'w World) -> Self {
        let state = world.directory().join("state");
        let mut command = world.machine_program("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command.args(["sh", "-c", "echo ready; exec sleep infinity"]).stdout(Stdio::piped());
        let mut pause = Daemon::spawn(command);
        let mut line = String::new();
        BufReader::new(pause.child().stdout.take().expect("piped")).read_line(&mut line).expect("read");
        let children = format!("/proc/{0}/task/{0}/children", pause.pid());
        let first = fs::read_to_string(children).expect("children").trim().parse().expect("one child");
        let pod = Self { world, _pause: pause, first, state };
        let fenced = pod.init().status().expect("network-init");
        assert!(fenced.success(), "network-init: {fenced}");
        pod
    }

    /// The init container that raises the fence.
    pub fn init(&self) -> Command {
        let mut command = self.container(0, 0, "-all,+net_admin,+chown", supervisor().to_str().expect("UTF-8"));
        command.args(["network-init", "--proxy-uid=0", &format!("--proxy-gid={PROXY_GROUP}")]);
        command.args([format!("--sandbox-uid={SANDBOX}"), format!("--sandbox-gid={SANDBOX}")]);
        command.arg("--sidecar-state-dir").arg(&self.state).arg("--sidecar-tls-dir");
        command.arg(self.world.directory().join("private")).stderr(Stdio::null());
        command
    }

    /// Takes the fence down, as nobody in a pod can.
    pub fn unfence(&self) {
        let mut command = self.world.machine_program("nft");
        let _ = command.args(["delete", "table", "inet", "openshell_fence"]).stderr(Stdio::null()).status();
    }

    /// Where the two meet.
    pub fn socket(&self) -> PathBuf {
        self.state.join("control.sock")
    }

    /// A program of one of its containers, as a runtime starts it.
    pub fn container(&self, user: u32, group: u32, capabilities: &str, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.first.to_string(), "--pid", "--mount", "--net", "--"]);
        command.args(["setpriv", "--reuid", &user.to_string(), "--regid", &group.to_string(), "--clear-groups"]);
        command.args(["--inh-caps=-all", "--bounding-set", capabilities, "--no-new-privs", program]);
        command.current_dir("/").stdin(Stdio::null()).env_remove("OPENSHELL_LOG_LEVEL");
        command
    }

    /// The proxy, with the privileges that it has in a pod.
    pub fn network_command(&self, policy: &str) -> Command {
        let capabilities = "-all,+sys_ptrace,+dac_read_search";
        let mut command = self.container(0, PROXY_GROUP, capabilities, supervisor().to_str().expect("UTF-8"));
        command.arg("network").arg("--policy").arg(self.world.file("policy.yaml", policy));
        command.arg("--control-socket").arg(self.socket());
        command.args(["--sandbox-uid", &SANDBOX.to_string(), "--sandbox-gid", &SANDBOX.to_string()]);
        command.args(["--admin-bind", "127.0.0.1:9100"]);
        command
    }

    /// The same, started, and waiting for the other.
    pub fn network(&self, policy: &str) -> Daemon {
        let daemon = Daemon::spawn(self.network_command(policy));
        eventually("network waits for the workload's supervisor", || self.socket().exists());
        daemon
    }

    /// The workload's supervisor, without its workload.
    pub fn process_command(&self) -> Command {
        let mut command = self.container(SANDBOX, SANDBOX, "-all", supervisor().to_str().expect("UTF-8"));
        command.arg("--mode=process").arg("--control-socket").arg(self.socket());
        command.args(["--workdir", "/tmp", "--"]).stdout(Stdio::piped());
        command
    }

    /// Processes of the pod that have this in their command line.
    pub fn running(&self, words: &str) -> usize {
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.first.to_string(),
            "--pid",
            "--mount",
            "--",
            "pgrep",
            "--full",
            "--count",
            words,
        ]);
        let output = command.output().expect("pgrep (package procps)");
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number")
    }
}

impl Drop for Pod<'_> {
    fn drop(&mut self) {
        // The namespace is the machine's, and others run there.
        self.unfence();
    }
}

/// The process that nsenter(1) has started: it stays in between.
pub fn child_of(daemon: &Daemon) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", daemon.pid());
    fs::read_to_string(children).expect("children").trim().parse().expect("one child")
}
