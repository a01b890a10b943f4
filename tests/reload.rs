//! Promises 11.x: a new policy is taken whole or not at all, and open tunnels are judged by it one by one.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::origins::{self, Origin};
use crate::world::{Daemon, World, eventually, policy_text};

/// Asks the `network` role on the machine for a tunnel.
fn tunnel(world: &World, target: &str) -> (u16, TcpStream) {
    let mut stream = world.in_machine(|| TcpStream::connect("127.0.0.1:3128").expect("connect"));
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("timeout");
    write!(stream, "CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n").expect("ask");
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).expect("answer") == 0 {
            break;
        }
        head.push(byte[0]);
    }
    let status = String::from_utf8_lossy(&head).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    (status, stream)
}

fn status(world: &World, target: &str) -> u16 {
    tunnel(world, target).0
}

/// A `network` role on the machine, with its origin.
fn stage(policy: impl FnOnce(&World) -> std::path::PathBuf, arguments: &[&str]) -> (World, Daemon, Origin) {
    let world = World::new();
    let origin = Origin::start(&world, 7, origins::echo);
    let policy = policy(&world);
    let proxy =
        world.role("network").args(["--binary-identity", "relaxed"]).policy(policy).args(arguments.to_vec()).spawn();
    eventually("the proxy listens", || world.in_machine(|| TcpStream::connect("127.0.0.1:3128").is_ok()));
    (world, proxy, origin)
}

/// Replaces a file the careful way.
fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("new");
    fs::write(&beside, text).expect("write");
    fs::rename(&beside, path).expect("rename");
}

fn still_echoes(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4];
    stream.write_all(b"ping").is_ok() && stream.read_exact(&mut buffer).is_ok() && &buffer == b"ping"
}

#[test]
fn a_changed_file_is_taken_and_only_tunnels_it_no_longer_allows_are_closed() {
    let (world, _proxy, _origin) =
        stage(|world| world.policy("policy.yaml", "**", &["api.example.com:7", "other.example.com:7"]), &[]);
    let path = world.directory().join("policy.yaml");
    let (_, mut kept) = tunnel(&world, "api.example.com:7");
    let (_, mut closed) = tunnel(&world, "other.example.com:7");
    assert!(still_echoes(&mut kept) && still_echoes(&mut closed));
    replace(&path, &policy_text("**", &["api.example.com:7", "mail.example.com:7"]));
    eventually("the new entry holds", || status(&world, "mail.example.com:7") == 200);
    assert_eq!(status(&world, "other.example.com:7"), 403);
    eventually("the tunnel is closed", || !still_echoes(&mut closed));
    assert!(still_echoes(&mut kept), "a tunnel that is still allowed was closed");
}

/// `hi` as a WebSocket's text, under a mask of zeros (RFC 6455 §5.2), and whether it comes back.
fn still_speaks(stream: &mut TcpStream) -> bool {
    let message = [0x81, 0x82, 0, 0, 0, 0, b'h', b'i'];
    let mut back = [0; 8];
    stream.write_all(&message).is_ok() && stream.read_exact(&mut back).is_ok() && back == message
}

#[test]
fn an_open_websocket_is_held_to_the_rules_of_the_new_policy() {
    let world = World::new();
    // It agrees to speak, and says what it hears.
    let _origin = Origin::start(&world, 7, |mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            match stream.read(&mut byte) {
                Ok(1) => head.push(byte[0]),
                _ => return,
            }
        }
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        let _ = stream.write_all(answer.as_bytes());
        origins::echo(stream);
    });
    let policy = |paths: &[&str]| {
        let rules = paths.iter().flat_map(|path| {
            ["GET", "WEBSOCKET_TEXT"].map(|method| format!("{{allow: {{method: {method}, path: {path}}}}}"))
        });
        let rules = rules.collect::<Vec<_>>().join(", ");
        let endpoint = format!("{{host: api.example.com, port: 7, protocol: websocket, rules: [{rules}]}}");
        format!("version: 1\nnetwork_policies:\n  ws:\n    endpoints: [{endpoint}]\n    binaries: [{{path: \"**\"}}]\n")
    };
    let path = world.file("policy.yaml", policy(&["/kept", "/closed"]));
    let _proxy = world.role("network").args(["--binary-identity", "relaxed"]).policy(&path).spawn();
    eventually("the proxy listens", || world.in_machine(|| TcpStream::connect("127.0.0.1:3128").is_ok()));
    let open = |path: &str| {
        let (_, mut stream) = tunnel(&world, "api.example.com:7");
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: api.example.com:7\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
        )
        .expect("ask");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("an answer");
            head.push(byte[0]);
        }
        assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
        stream
    };
    let (mut kept, mut closed) = (open("/kept"), open("/closed"));
    assert!(still_speaks(&mut kept) && still_speaks(&mut closed));
    replace(&path, &policy(&["/kept"]));
    eventually("what is no longer allowed is closed", || !still_speaks(&mut closed));
    assert!(still_speaks(&mut kept), "one that is still allowed was closed");
}

#[test]
fn writing_in_place_and_configmap_swaps_are_seen_too() {
    let (world, _proxy, _origin) = stage(
        |world| {
            // The layout of a ConfigMap volume: file → ..data/file, ..data → a dated directory.
            let volume = world.directory().join("volume");
            for (version, host) in [("..1", "api.example.com:7"), ("..2", "other.example.com:7")] {
                fs::create_dir_all(volume.join(version)).expect("mkdir");
                fs::write(volume.join(version).join("policy.yaml"), policy_text("**", &[host])).expect("write");
            }
            std::os::unix::fs::symlink("..1", volume.join("..data")).expect("link");
            std::os::unix::fs::symlink("..data/policy.yaml", volume.join("policy.yaml")).expect("link");
            volume.join("policy.yaml")
        },
        &[],
    );
    assert_eq!((status(&world, "api.example.com:7"), status(&world, "other.example.com:7")), (200, 403));
    let volume = world.directory().join("volume");
    std::os::unix::fs::symlink("..2", volume.join("..data_tmp")).expect("link");
    fs::rename(volume.join("..data_tmp"), volume.join("..data")).expect("swap");
    eventually("the swap is seen", || status(&world, "other.example.com:7") == 200);
    assert_eq!(status(&world, "api.example.com:7"), 403);
    fs::write(volume.join("..2/policy.yaml"), policy_text("**", &["mail.example.com:7"])).expect("in place");
    eventually("the write is seen", || status(&world, "mail.example.com:7") == 200);
}

#[test]
fn a_bad_file_is_refused_and_the_last_good_one_stays() {
    let (world, mut proxy, _origin) = stage(|world| world.policy("policy.yaml", "**", &["api.example.com:7"]), &[]);
    let path = world.directory().join("policy.yaml");
    let (_, mut open) = tunnel(&world, "api.example.com:7");
    for bad in ["version: 1\nnetwork_policies: {a: {endpoints: [{host: \"*\", port: 1}]}}\n", "", "{{{", "version: 9\n"]
    {
        replace(&path, bad);
        std::thread::sleep(Duration::from_millis(600));
        assert_eq!(status(&world, "api.example.com:7"), 200, "{bad:?}");
        assert!(still_echoes(&mut open));
    }
    fs::remove_file(&path).expect("remove");
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(status(&world, "api.example.com:7"), 200);
    // Control: a good one after all of those is taken.
    replace(&path, &policy_text("**", &["other.example.com:7"]));
    eventually("it recovers", || status(&world, "other.example.com:7") == 200);
    assert!(proxy.wait_within(Duration::ZERO).is_none(), "the proxy ended");
}

#[test]
fn deny_all_on_an_invalid_policy_denies_all() {
    let (world, _proxy, _origin) =
        stage(|world| world.policy("policy.yaml", "**", &["api.example.com:7"]), &["--on-invalid-policy", "deny-all"]);
    let path = world.directory().join("policy.yaml");
    let (_, mut open) = tunnel(&world, "api.example.com:7");
    replace(&path, "version: 9\n");
    eventually("all is denied", || status(&world, "api.example.com:7") == 403);
    eventually("open tunnels too", || !still_echoes(&mut open));
    replace(&path, &policy_text("**", &["api.example.com:7"]));
    eventually("it recovers", || status(&world, "api.example.com:7") == 200);
}

#[test]
fn hup_reloads_the_network_role_and_reaches_the_workload_in_combined() {
    let (world, mut proxy, _origin) = stage(|world| world.policy("policy.yaml", "**", &["api.example.com:7"]), &[]);
    replace(&world.directory().join("policy.yaml"), &policy_text("**", &["other.example.com:7"]));
    proxy.signal(nix::sys::signal::Signal::SIGHUP);
    eventually("the new entry holds", || status(&world, "other.example.com:7") == 200);
    assert!(proxy.wait_within(Duration::ZERO).is_none(), "HUP ended it");
    // The other half is in lifecycle: HUP is among the signals that reach the command.
}

#[test]
fn reloads_under_load_lose_no_request_that_both_policies_allow() {
    let (world, _proxy, _origin) = stage(|world| world.policy("policy.yaml", "**", &["api.example.com:7"]), &[]);
    let path = world.directory().join("policy.yaml");
    let (done, served) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    assert_eq!(status(&world, "api.example.com:7"), 200);
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for index in 0..20 {
            let more = format!("h{index}.example.com:7");
            replace(&path, &policy_text("**", &["api.example.com:7", &more]));
            std::thread::sleep(Duration::from_millis(50));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(served.load(Ordering::Relaxed) > 100, "too little load: {}", served.load(Ordering::Relaxed));
}
