//! The namespaces for real: every test isolates a child process of its own.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, SockaddrStorage, sendto, socket};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::*;
use crate::sys::child;

mod hiding;
mod view;

const PORT: u16 = 3128;

/// A refusal that takes longer waits for something.
const AT_ONCE: Duration = Duration::from_millis(100);

fn isolation() -> Isolation {
    Isolation {
        namespaces: Namespaces { user: false, pid: false, proxy_port: PORT },
        private_tmp: false,
        hide: vec![],
        provided: None,
        keep: keep(&[]),
    }
}

/// What a policy usually grants, and `more`.
fn keep(more: &[&Path]) -> Vec<PathBuf> {
    const USUAL: [&str; 18] = [
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/etc",
        "/app",
        "/var/log",
        "/proc",
        "/tmp",
        "/dev/urandom",
        "/dev/null",
        "/dev/zero",
        "/dev/tty",
        "/dev/ptmx",
        "/dev/pts",
    ];
    USUAL.iter().map(Path::new).chain(more.iter().copied()).map(Path::to_path_buf).collect()
}

/// Both halves at once.
fn isolate(isolation: &Isolation) -> Result<Handover, Error> {
    separate(isolation.namespaces)?.isolate(isolation)
}

/// The same through a user namespace.
fn as_user(isolation: Isolation) -> Isolation {
    Isolation { namespaces: Namespaces { user: true, ..isolation.namespaces }, ..isolation }
}

/// Runs `act` in a child that was isolated as `isolation` says.
fn inside(isolation: &Isolation, act: impl FnOnce(Handover)) {
    let answer = child::run(|| {
        act(isolate(isolation).unwrap_or_else(|error| panic!("{error}")));
        Vec::new()
    });
    answer.unwrap_or_else(|error| panic!("{error}"));
}

/// The same as an ordinary user with a user namespace.
fn inside_as_user(isolation: &Isolation, act: impl FnOnce(Handover)) {
    let isolation = as_user(isolation.clone());
    let answer = child::run(|| {
        become_user();
        act(isolate(&isolation).unwrap_or_else(|error| panic!("{error}")));
        Vec::new()
    });
    answer.unwrap_or_else(|error| panic!("{error}"));
}

fn become_user() {
    let (uid, gid) = (Uid::from_raw(4321), Gid::from_raw(4322));
    setgroups(&[]).unwrap();
    setresgid(gid, gid, gid).unwrap();
    setresuid(uid, uid, uid).unwrap();
}

fn tcp(address: &str) -> io::Result<TcpStream> {
    TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(3))
}

fn udp(address: &str) -> io::Result<usize> {
    let address: SocketAddr = address.parse().unwrap();
    let local: IpAddr = if address.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    UdpSocket::bind((local, 0)).unwrap().send_to(b"x", address)
}

fn raw(protocol: SockProtocol, address: &str, kind: SockType) -> io::Result<usize> {
    let address: SocketAddr = address.parse().unwrap();
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd = socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol)?;
    let echo = [8, 0, 0xf7, 0xff, 0, 0, 0, 0];
    Ok(sendto(fd.as_raw_fd(), &echo, &SockaddrStorage::from(address), nix::sys::socket::MsgFlags::empty())?)
}

fn at_once<T>(what: &str, act: impl FnOnce() -> io::Result<T>) -> io::Error {
    let start = Instant::now();
    let Err(error) = act() else { panic!("{what} succeeded") };
    let took = start.elapsed();
    assert!(took < AT_ONCE, "{what} took {took:?}: {error}");
    error
}

fn outside_is_refused_at_once() {
    for address in ["203.0.113.7:443", "169.254.169.254:80", "10.0.0.1:22", "[2001:db8::7]:443", "[fd00:ec2::254]:80"] {
        let error = at_once(address, || tcp(address));
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "tcp {address}: {error}");
        let error = at_once(address, || udp(address));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "udp {address}: {error}");
    }
}

#[test]
fn every_way_out_is_refused_at_once_and_loopback_works() {
    inside(&isolation(), |handover| {
        assert_eq!(handover.listeners.len(), 2, "{:?}", handover.notes);
        assert!(handover.packets.is_some(), "{:?}", handover.notes);
        outside_is_refused_at_once();
        for address in ["203.0.113.7:0", "169.254.169.254:0"] {
            let error = at_once(address, || raw(SockProtocol::Icmp, address, SockType::Raw));
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "raw {address}: {error}");
            let error = at_once(address, || raw(SockProtocol::Icmp, address, SockType::Datagram));
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "ping {address}: {error}");
        }
        let error = at_once("icmpv6", || raw(SockProtocol::IcmpV6, "[2001:db8::7]:0", SockType::Raw));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");

        // Control: the proxy's listeners, a server of the workload's own, and raw packets to loopback.
        tcp("127.0.0.1:3128").unwrap();
        tcp("[::1]:3128").unwrap();
        let own = TcpListener::bind("127.0.0.1:0").unwrap();
        tcp(&own.local_addr().unwrap().to_string()).unwrap();
        raw(SockProtocol::Icmp, "127.0.0.1:0", SockType::Raw).unwrap();
        udp("127.0.0.1:9").unwrap();
        udp("[::1]:9").unwrap();
    });
}

#[test]
fn without_the_fence_the_same_acts_are_not_refused_like_that() {
    inside(&isolation(), |_handover| {
        let socket = Socket::open(Protocol::Netfilter).unwrap();
        crate::fence::tests::remove(&socket);
        udp("203.0.113.7:443").unwrap();
        udp("[2001:db8::7]:443").unwrap();
        raw(SockProtocol::Icmp, "203.0.113.7:0", SockType::Raw).unwrap();
        let start = Instant::now();
        let error = TcpStream::connect_timeout(&"203.0.113.7:443".parse().unwrap(), AT_ONCE).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error} after {:?}", start.elapsed());
    });
}

#[test]
fn an_ordinary_user_gets_the_same_through_a_user_namespace() {
    inside_as_user(&isolation(), |handover| {
        assert_eq!(handover.listeners.len(), 2, "{:?}", handover.notes);
        assert!(handover.packets.is_some(), "{:?}", handover.notes);
        assert_eq!((Uid::current().as_raw(), Gid::current().as_raw()), (4321, 4322));
        outside_is_refused_at_once();
        tcp("127.0.0.1:3128").unwrap();
        assert!(fs::read_dir("/run").unwrap().next().is_none());
    });
}

#[test]
fn listeners_work_from_outside() {
    inside(&isolation(), |handover| {
        let mut client = tcp("127.0.0.1:3128").unwrap();
        let listener = TcpListener::from(handover.listeners.into_iter().next().unwrap());
        let (mut server, _) = listener.accept().unwrap();
        server.write_all(b"hello").unwrap();
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}

/// A run takes some 12 ms in all, of which isolating may take a part. The bound is wide, since tests run side by side.
const QUICK: Duration = Duration::from_millis(30);

#[test]
fn isolating_is_quick() {
    let once = |user_namespace: bool| {
        let answer = child::run(|| {
            if user_namespace {
                become_user();
            }
            let start = Instant::now();
            let namespaces = Namespaces { user: user_namespace, ..isolation().namespaces };
            let outcome = isolate(&Isolation { namespaces, private_tmp: user_namespace, ..isolation() });
            let took = start.elapsed();
            outcome.unwrap_or_else(|error| panic!("{error}"));
            took.as_nanos().to_ne_bytes().to_vec()
        });
        Duration::from_nanos(u128::from_ne_bytes(answer.unwrap().try_into().unwrap()).try_into().unwrap())
    };
    for user_namespace in [false, true] {
        let mut times: Vec<Duration> = (0..20).map(|_| once(user_namespace)).collect();
        times.sort();
        eprintln!("isolate: best {:?}, median {:?} (user namespace: {user_namespace})", times[0], times[10]);
        assert!(times[0] < QUICK, "{times:?}");
    }
}

#[test]
fn a_private_proc_shows_the_new_processes_alone() {
    for user in [false, true] {
        let act = || {
            let directory = child::run(|| {
                let fd = mounts::private_proc().unwrap_or_else(|error| panic!("{error}"));
                assert_eq!(std::process::id(), 1);
                let seen = fs::read_dir(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
                let pids: Vec<String> = seen
                    .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
                    .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
                    .collect();
                pids.join(" ").into_bytes()
            });
            assert_eq!(directory.unwrap(), b"1");
        };
        let namespaces = Namespaces { pid: true, ..isolation().namespaces };
        let isolation = Isolation { namespaces, ..isolation() };
        if user { inside_as_user(&isolation, |_| act()) } else { inside(&isolation, |_| act()) }
    }
}

#[test]
fn a_user_without_rights_is_told_what_helps() {
    let answer = child::run(|| {
        become_user();
        isolate(&isolation()).unwrap_err().to_string().into_bytes()
    });
    let error = String::from_utf8(answer.unwrap()).unwrap();
    assert!(error.contains("CAP_SYS_ADMIN") && error.contains("user namespaces"), "{error}");
}

#[test]
fn other_namespaces_than_were_made_are_no_isolation() {
    let answer = child::run(|| {
        let separated = separate(isolation().namespaces).unwrap();
        let namespaces = Namespaces { pid: true, ..isolation().namespaces };
        let refused = separated.isolate(&Isolation { namespaces, ..isolation() });
        assert!(matches!(refused, Err(Error::OtherNamespaces)), "{refused:?}");
        Vec::new()
    });
    answer.unwrap();
    // Control: the same that was made.
    inside(&isolation(), |_| {});
}

#[test]
fn a_limit_of_user_namespaces_is_named() {
    let answer = child::run(|| {
        // The limit of a nested namespace is its own, so the machine's stays as it is.
        user::enter().unwrap();
        fs::write("/proc/sys/user/max_user_namespaces", "0").unwrap();
        probe::probe(true).user_namespace.unwrap_err().to_string().into_bytes()
    });
    let text = String::from_utf8(answer.unwrap()).unwrap();
    assert!(text.contains("user.max_user_namespaces"), "{text}");
}

#[test]
fn probes_agree_with_what_works_here() {
    for user in [false, true] {
        let answer = child::run(|| {
            if user {
                become_user();
            }
            format!("{:?}", probe::probe(user)).into_bytes()
        });
        let text = String::from_utf8(answer.unwrap()).unwrap();
        assert!(!text.contains("Err("), "user={user}: {text}");
    }
}

#[test]
fn bypass_attempts_are_reported_from_outside() {
    use crate::event::{Event, Stage};

    let (left, right) = UnixStream::pair().unwrap();
    // The descriptor crosses to this process as it would to the supervisor.
    let child = std::thread::spawn(move || {
        inside(&isolation(), |handover| {
            let packets = handover.packets.unwrap();
            send_descriptor(&left, &packets);
            for _ in 0..3 {
                let _ = tcp("203.0.113.7:443");
            }
            let _ = udp("[2001:db8::7]:53");
            let _ = raw(SockProtocol::Icmp, "203.0.113.8:0", SockType::Raw);
        });
    });
    let packets = receive_descriptor(&right);
    child.join().unwrap();
    let events = bypass::tests::collect(packets, Duration::from_millis(200));
    let seen: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::Network(network) => {
                assert_eq!(network.stage, Stage::Bypass);
                Some((network.host.clone(), network.port, network.protocol.clone(), network.actor.uid, network.count))
            }
            _ => None,
        })
        .collect();
    let tcp = |count| ("203.0.113.7".to_string(), 443, "tcp".to_string(), Some(0), count);
    let once = |host: &str, port, protocol: &str| (host.to_string(), port, protocol.to_string(), Some(0), 1);
    assert_eq!(seen, [tcp(1), once("2001:db8::7", 53, "udp"), once("203.0.113.8", 0, "icmp"), tcp(2)]);
}

fn send_descriptor(over: &UnixStream, fd: &OwnedFd) {
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    let fds = [fd.as_raw_fd()];
    let bytes = [io::IoSlice::new(b"x")];
    sendmsg::<()>(over.as_raw_fd(), &bytes, &[ControlMessage::ScmRights(&fds)], MsgFlags::empty(), None).unwrap();
}

fn receive_descriptor(over: &UnixStream) -> OwnedFd {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    let mut byte = [0];
    let mut bytes = [io::IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([i32; 1]);
    let message = recvmsg::<()>(over.as_raw_fd(), &mut bytes, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC).unwrap();
    for part in message.cmsgs().unwrap() {
        if let ControlMessageOwned::ScmRights(fds) = part {
            return crate::sys::child::tests::adopt(fds[0]);
        }
    }
    panic!("no descriptor came")
}

#[test]
fn without_ipv6_the_sandbox_is_ipv4_alone() {
    let answer = child::run(|| {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        // What `ipv6.disable_ipv6=1` on the kernel's command line makes of every new namespace.
        for device in ["all", "default", "lo"] {
            fs::write(format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6"), "1").unwrap();
        }
        let handover = furnish(PORT).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(handover.listeners.len(), 1);
        assert!(handover.notes.iter().any(|note| note.contains("no IPv6")), "{:?}", handover.notes);
        tcp("127.0.0.1:3128").unwrap();
        assert_eq!(at_once("tcp", || tcp("203.0.113.7:443")).kind(), ErrorKind::ConnectionRefused);
        at_once("tcp over IPv6", || tcp("[2001:db8::7]:443"));
        Vec::new()
    });
    answer.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn broadcast_and_multicast_are_refused() {
    inside(&isolation(), |_handover| {
        for address in ["224.0.0.251:5353", "255.255.255.255:67", "[ff02::fb]:5353", "[ff01::1]:1"] {
            let socket = UdpSocket::bind((if address.starts_with('[') { "::" } else { "0.0.0.0" }, 0)).unwrap();
            socket.set_broadcast(true).unwrap();
            at_once(address, || socket.send_to(b"x", address));
        }
    });
}

#[test]
fn without_log_expressions_the_fence_stands_unreported() {
    let packets = || OwnedFd::from(fs::File::open("/dev/null").unwrap());
    let refused = |code: Errno| fence::Error::Refused { family: "inet", source: code.into(), remedy: "" };
    let mut notes = Vec::new();
    let kept =
        fence_with(Some(packets()), &mut notes, |reports| if reports { Err(refused(Errno::ENOENT)) } else { Ok(()) });
    assert!(kept.unwrap().is_none());
    assert!(notes[0].contains("CONFIG_NFT_LOG"), "{notes:?}");
    let without = fence_with(Some(packets()), &mut notes, |_| Err::<(), _>(refused(Errno::ENOENT)));
    assert!(without.is_err());
    let denied =
        fence_with(Some(packets()), &mut notes, |reports| if reports { Err(refused(Errno::EPERM)) } else { Ok(()) });
    assert!(denied.is_err());
    assert!(fence_with(Some(packets()), &mut notes, |_| Ok(())).unwrap().is_some());
}
