//! The two pods of a proxy-pod sandbox without a container runtime. The machine is the proxy's pod here, the origin is what lies
//! beyond, and the agent's pod is a namespace that reaches the machine and nothing else.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, Ipv6Addr, TcpStream};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::world::{Daemon, ORIGIN_V4, ORIGIN_V6, Outcome, PATIENCE, World, eventually, supervisor};

/// User and group of the workload and its supervisor.
pub const SANDBOX: u32 = 4242;
/// User and group of the proxy.
pub const PROXY: u32 = 1337;

/// The proxy's pod as the agent's sees it, and the agent's own address.
pub const PROXY_V4: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 1);
pub const AGENT_V4: Ipv4Addr = Ipv4Addr::new(10, 98, 0, 2);
/// The same in IPv6.
pub const PROXY_V6: Ipv6Addr = Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 1);
pub const AGENT_V6: Ipv6Addr = Ipv6Addr::new(0xfd98, 0, 0, 0, 0, 0, 0, 2);

/// The name of the proxy's Service.
pub const SERVICE: &str = "proxy.sandbox.svc";

fn ip(arguments: &[&str]) {
    let output = Command::new("ip").args(arguments).output().expect("ip (package iproute2)");
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A program of a container in a pod, as its first process, without any privilege, as a runtime starts it.
pub fn container(namespace: &str, program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, "unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(["setpriv", "--reuid", &SANDBOX.to_string(), "--regid", &SANDBOX.to_string(), "--clear-groups"]);
    command.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]).arg(program);
    command.current_dir("/").stdin(Stdio::null()).env_remove("OPENSHELL_LOG_LEVEL").env_remove("SSL_CERT_FILE");
    command
}

/// The two pods of a sandbox.
pub struct Pods<'w> {
    world: &'w World,
    agent: String,
    /// The CA: certificate and key.
    pub ca: [PathBuf; 2],
    /// What the two pods know each other by.
    pub key: PathBuf,
    /// Where the proxy listens.
    pub bind: &'static str,
}

impl<'w> Pods<'w> {
    /// Makes them, for this CA (certificate and key).
    pub fn new(world: &'w World, ca: [PathBuf; 2]) -> Self {
        let agent = format!("{}a", world.machine());
        ip(&["netns", "add", &agent]);
        ip(&["-n", &agent, "link", "set", "lo", "up"]);
        ip(&[
            "link",
            "add",
            "eth0",
            "netns",
            &agent,
            "type",
            "veth",
            "peer",
            "name",
            "agent0",
            "netns",
            world.machine(),
        ]);
        for (namespace, device, v4, v6) in
            [(agent.as_str(), "eth0", AGENT_V4, AGENT_V6), (world.machine(), "agent0", PROXY_V4, PROXY_V6)]
        {
            ip(&["-n", namespace, "address", "add", &format!("{v4}/24"), "dev", device]);
            ip(&["-n", namespace, "-6", "address", "add", &format!("{v6}/64"), "dev", device, "nodad"]);
            ip(&["-n", namespace, "link", "set", device, "up"]);
        }
        ip(&["-n", &agent, "route", "add", "default", "via", &PROXY_V4.to_string()]);
        ip(&["-n", &agent, "-6", "route", "add", "default", "via", &PROXY_V6.to_string()]);
        let etc = PathBuf::from("/etc/netns").join(&agent);
        fs::create_dir_all(&etc).expect("netns etc");
        fs::write(
            etc.join("hosts"),
            format!(
                "127.0.0.1 localhost\n{PROXY_V4} {SERVICE}\n{ORIGIN_V4} canary.example\n{ORIGIN_V4} both.example\n\
                 {ORIGIN_V6} both.example\n"
            ),
        )
        .expect("hosts");
        fs::write(etc.join("resolv.conf"), "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
            .expect("resolv.conf");
        chown(&ca[1], Some(PROXY), Some(PROXY)).expect("chown");
        // As a Secret is mounted for the group of each pod.
        let secret = world.directory().join("secret");
        fs::create_dir(&secret).expect("mkdir");
        let key = secret.join("key");
        fs::write(&key, [0x5a; 32]).expect("write");
        Self { world, agent, ca, key, bind: "0.0.0.0:3128" }
    }

    /// Takes IPv6 beyond the pod's own network away from the agent's pod.
    pub fn without_ipv6(&self) {
        ip(&["-n", &self.agent, "-6", "route", "delete", "default"]);
    }

    /// A program of a container of the agent's pod.
    pub fn container(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = container(&self.agent, program);
        command.env("OPENSHELL_PROXY_URL", format!("http://{SERVICE}:3128"));
        command
    }

    /// `process`, with a key or without, up to its workload.
    pub fn process(&self, policy: &str, keyed: bool, flags: &[&str]) -> Command {
        let mut command = self.container(supervisor());
        command.args(["--mode=process", "--remote-proxy", "--fence=elsewhere", "--workdir=/tmp", "--policy"]);
        command.arg(self.world.file("policy.yaml", policy));
        if keyed {
            chown(&self.key, Some(0), Some(SANDBOX)).expect("chown");
            fs::set_permissions(&self.key, fs::Permissions::from_mode(0o440)).expect("chmod");
            command.arg("--attestation-key").arg(&self.key);
        }
        command.args(flags).arg("--").stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// `network` in its pod, up to more flags.
    pub fn network_command(&self, flags: &[&str]) -> Command {
        let mut command = self.world.machine_program("setpriv");
        command.args(["--reuid", &PROXY.to_string(), "--regid", &PROXY.to_string(), "--clear-groups"]);
        command.args(["--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]).arg(supervisor());
        command.args(["network", "--bind", self.bind, "--ca-cert"]).arg(&self.ca[0]);
        command.arg("--ca-key").arg(&self.ca[1]).args(flags);
        command.current_dir("/").stdin(Stdio::null()).env_remove("OPENSHELL_LOG_LEVEL");
        command
    }

    /// The same, serving under a policy.
    pub fn network(&self, policy: &str, keyed: bool) -> Daemon {
        let policy = self.world.file("network.yaml", policy);
        // The same Secret, as the proxy's pod has it.
        let key = self.world.directory().join("proxy-key");
        fs::copy(&self.key, &key).expect("copy");
        chown(&key, Some(0), Some(PROXY)).expect("chown");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o440)).expect("chmod");
        let identity = if keyed {
            vec!["--attestation-key", key.to_str().expect("UTF-8")]
        } else {
            vec!["--binary-identity=relaxed"]
        };
        let mut flags = vec!["--admin-bind", "127.0.0.1:9090", "--policy", policy.to_str().expect("UTF-8")];
        flags.extend(identity);
        let mut command = self.network_command(&flags);
        command.stderr(Stdio::piped());
        let daemon = Daemon::spawn(command);
        self.reachable();
        daemon
    }

    /// Ends the agent's container as a runtime does: all that is in it. `unshare --kill-child` is not heard of any more by
    /// what has changed its user (prctl(2), PR_SET_PDEATHSIG).
    pub fn kill(&self, process: Daemon) {
        eventually("the agent's pod is empty", || {
            let pids = Command::new("ip").args(["netns", "pids", &self.agent]).output().expect("ip (package iproute2)");
            for pid in String::from_utf8_lossy(&pids.stdout).split_whitespace() {
                // One that is gone already is as good.
                let _ = Command::new("kill").args(["-KILL", pid]).stderr(Stdio::null()).status();
            }
            pids.stdout.is_empty()
        });
        drop(process);
    }

    fn reachable(&self) {
        eventually("the proxy listens", || self.world.in_machine(|| TcpStream::connect((PROXY_V4, 3128)).is_ok()));
    }
}

impl Drop for Pods<'_> {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "delete", &self.agent]).status();
        let _ = fs::remove_dir_all(PathBuf::from("/etc/netns").join(&self.agent));
    }
}

/// The end of a program whose outputs are pipes, and what it wrote.
pub fn finished(mut daemon: Daemon) -> Outcome {
    let started = std::time::Instant::now();
    let status = daemon.wait_within(PATIENCE).expect("its end");
    let mut outcome =
        Outcome { code: status.code(), stdout: String::new(), stderr: String::new(), took: started.elapsed() };
    daemon.child().stdout.take().expect("piped").read_to_string(&mut outcome.stdout).expect("stdout");
    daemon.child().stderr.take().expect("piped").read_to_string(&mut outcome.stderr).expect("stderr");
    outcome
}
