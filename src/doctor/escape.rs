//! The ways out that `doctor` tries from inside a sandbox of its own making. Each is an ordinary system call that
//! succeeds outside, or would with the mechanism removed; inside it must be refused.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};
use serde::{Deserialize, Serialize};

use crate::contract::{HOST_ALIAS, PROXY_PORT};
use crate::sys::attempt;

/// Longer than any refusal takes, and shorter than patience: what has not been refused by then went nowhere, which is
/// not a refusal.
const WAIT: Duration = Duration::from_secs(2);

/// Addresses that no policy names (RFC 5737, RFC 3849), and the one where clouds keep their credentials.
const OUTSIDE_V4: &str = "203.0.113.1:443";
const METADATA: &str = "169.254.169.254:80";

/// Sockets of container runtimes and session services, wherever they are usually found.
const CONTROL_SOCKETS: [&str; 9] = [
    "/run/docker.sock",
    "/var/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/podman/podman.sock",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/systemd/notify",
    "/tmp/.X11-unix/X0",
];

/// Things that `doctor` puts outside for the inside to try.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Bait {
    /// A file that every user may read and write, under no path that the policy grants.
    pub file: PathBuf,
    /// The policy in force.
    pub policy: PathBuf,
    /// A listening unix socket that every user may connect to.
    pub socket: PathBuf,
    /// Name of a listening abstract socket.
    pub abstract_socket: String,
    /// Port of a listener on the machine's loopback, which the policy lets this program reach.
    pub open_port: u16,
}

/// What became of one attempt.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Attempt {
    /// What should happen, in a few words.
    pub promise: String,
    /// Whether it did.
    pub held: bool,
    /// What the kernel or the proxy answered.
    pub answer: String,
}

/// Tries every way out; runs as the workload.
#[must_use]
pub fn attempt_all(bait: &Bait) -> Vec<Attempt> {
    vec![
        refused("read a file that the policy does not grant", fs::read(&bait.file)),
        refused("write a file that the policy does not grant", OpenOptions::new().write(true).open(&bait.file)),
        refused("truncate it", nix::unistd::truncate(&bait.file, 0)),
        refused("rewrite its own policy", OpenOptions::new().append(true).open(&bait.policy)),
        refused("replace its own policy", replace(&bait.policy)),
        refused("TCP to the outside, not through the proxy", connect(OUTSIDE_V4)),
        refused("TCP to the outside over IPv6", connect_v6()),
        refused("TCP to the cloud's metadata address", connect(METADATA)),
        refused("UDP to the outside", send_udp("203.0.113.1:53")),
        refused("UDP over IPv6", send_udp("[2001:db8::1]:53")),
        refused("the proxy, to the cloud's metadata address", through_proxy(METADATA)),
        refused("the proxy, to a host that no policy names", through_proxy("api.example.com:443")),
        refused("a ping socket", open(AddressFamily::Inet, SockType::Datagram, Some(SockProtocol::Icmp))),
        refused("a raw socket", open(AddressFamily::Inet, SockType::Raw, Some(SockProtocol::Raw))),
        refused("a packet socket", open(AddressFamily::Packet, SockType::Datagram, None)),
        refused("a unix socket outside", UnixStream::connect(&bait.socket)),
        refused("an abstract unix socket outside", connect_abstract(&bait.abstract_socket)),
        refused("sockets of container runtimes and session buses", control_sockets()),
        refused(
            "ptrace of the sandbox's init",
            nix::sys::ptrace::seize(nix::unistd::Pid::from_raw(1), nix::sys::ptrace::Options::empty()),
        ),
        refused("memory of the sandbox's init", fs::File::open("/proc/1/mem")),
        refused("environment of the sandbox's init", fs::read("/proc/1/environ").and_then(nothing_is_refusal)),
        refused("io_uring", attempt::io_uring_setup()),
        refused("a user namespace of its own", unshare(CloneFlags::CLONE_NEWUSER)),
        refused("another network namespace", unshare(CloneFlags::CLONE_NEWNET)),
        refused(
            "a mount",
            nix::mount::mount(None::<&str>, "/tmp", Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>),
        ),
        refused("typing into its terminal (TIOCSTI)", attempt::push_terminal_input()),
        refused("becoming root", nix::unistd::setuid(nix::unistd::Uid::from_raw(0))),
        refused("a capability", capability()),
        // A sandbox that lets nothing out refuses everything else as well, and proves nothing by it.
        allowed(
            "the proxy, to the destination that the policy names",
            through_proxy(&format!("{HOST_ALIAS}:{}", bait.open_port)),
        ),
    ]
}

/// An attempt that failed was refused; one that succeeded got out.
fn refused<T, E: std::fmt::Display>(way: &str, outcome: Result<T, E>) -> Attempt {
    let (held, answer) = told(outcome);
    Attempt { promise: format!("refused: {way}"), held: !held, answer }
}

/// An attempt that must succeed.
fn allowed<T, E: std::fmt::Display>(way: &str, outcome: Result<T, E>) -> Attempt {
    let (held, answer) = told(outcome);
    Attempt { promise: format!("allowed: {way}"), held, answer }
}

fn told<T, E: std::fmt::Display>(outcome: Result<T, E>) -> (bool, String) {
    match outcome {
        Ok(_) => (true, "it succeeded".to_owned()),
        Err(error) => (false, error.to_string()),
    }
}

fn connect(address: &str) -> io::Result<()> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    match TcpStream::connect_timeout(&address, WAIT) {
        // Silence is no refusal: the packet may be out.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(()),
        other => other.map(drop),
    }
}

fn connect_v6() -> io::Result<()> {
    connect(&SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 443)).to_string())
}

fn send_udp(address: &str) -> io::Result<()> {
    let address: SocketAddr = address.parse().map_err(io::Error::other)?;
    let local = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(local)?;
    socket.send_to(b"out", address).map(drop)
}

fn through_proxy(target: &str) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], PROXY_PORT)), WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")?;
    let mut answer = [0; 64];
    let length = stream.read(&mut answer)?;
    let line = String::from_utf8_lossy(&answer[..length]).lines().next().unwrap_or_default().to_owned();
    if line.starts_with("HTTP/1.1 200") { Ok(()) } else { Err(io::Error::other(line)) }
}

fn open(family: AddressFamily, kind: SockType, protocol: Option<SockProtocol>) -> nix::Result<()> {
    socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol).map(drop)
}

fn connect_abstract(name: &str) -> io::Result<()> {
    UnixStream::connect_addr(&UnixAddress::from_abstract_name(name)?).map(drop)
}

/// A new file in the policy's place.
fn replace(policy: &Path) -> io::Result<()> {
    let beside = policy.with_extension("replaced");
    fs::write(&beside, "version: 1\n")?;
    fs::rename(&beside, policy)
}

fn control_sockets() -> Result<(), String> {
    match CONTROL_SOCKETS.iter().find(|path| UnixStream::connect(path).is_ok()) {
        Some(_) => Ok(()),
        None => Err("none can be connected to".to_owned()),
    }
}

/// An empty environment tells nothing.
fn nothing_is_refusal(bytes: Vec<u8>) -> io::Result<()> {
    if bytes.is_empty() { Err(io::Error::other("it is empty")) } else { Ok(()) }
}

/// Whether any capability set holds anything, or a set-user-id program could gain one.
fn capability() -> Result<(), String> {
    let status = fs::read_to_string("/proc/self/status").map_err(|error| format!("/proc/self/status: {error}"))?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("").trim().to_owned();
    let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"].map(field);
    if sets.iter().any(|set| u64::from_str_radix(set, 16) != Ok(0)) || field("NoNewPrivs:") != "1" {
        return Ok(());
    }
    Err("all sets are empty, and no_new_privs is set".to_owned())
}
