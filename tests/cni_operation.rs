//! Promises 27.40 and on: what operators see of a node's installation, and what they are told when something is not as they
//! meant it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::mount::MsFlags;
use nix::sys::signal::Signal;

use crate::installer::{Installer, NODE_PATH, PRIMARY, chained};
use crate::sideload::Mounted;
use crate::world::{Daemon, World, eventually};

/// What it wrote to stderr until it ended.
fn ended(mut daemon: Daemon) -> String {
    daemon.signal(Signal::SIGTERM);
    daemon.wait_within(Duration::from_secs(10)).expect("it ends");
    let mut lines = String::new();
    daemon.child().stderr.take().expect("stderr").read_to_string(&mut lines).expect("read");
    lines
}

/// What it says of a node that is not ready, for this reason of its condition.
fn complaint(node: &Installer, reason: &str, flags: &[&str]) -> String {
    // Of an installer before this one.
    node.api.change(NODE_PATH, |object| {
        let conditions = object["status"]["conditions"].as_array_mut().expect("conditions");
        conditions.retain(|condition| condition["type"] != "OpenShellCNIReady");
    });
    let daemon = node.start(&[&["--node-condition"], flags].concat());
    eventually(reason, || node.condition().is_some_and(|condition| condition["reason"] == reason));
    let message = node.condition().expect("a condition")["message"].as_str().expect("a message").to_owned();
    assert_eq!(node.label(), None, "{message}");
    let lines = ended(daemon);
    assert!(lines.contains(&message), "{lines}");
    println!("{message}");
    message
}

/// The value of a series that an admin listener shows.
fn series(address: &str, name: &str) -> Option<f64> {
    let mut stream = TcpStream::connect(address).expect("the admin listener");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("ask");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map(|value| value.trim().parse().expect("a number"))
}

#[test]
fn metrics_tell_whether_the_chain_is_verified_since_when_and_how_often_it_was_repaired() {
    const ADMIN: &str = "127.0.0.1:19240";
    let node = Installer::new();
    fs::remove_file(node.primary()).expect("remove");
    let daemon = node.start(&["--admin-bind", ADMIN]);
    eventually("it listens", || TcpStream::connect(ADMIN).is_ok());
    let shown = |name: &str| series(ADMIN, &format!("openshell_cni_{name}"));
    eventually("it has looked", || shown("chain_verified") == Some(0.0));
    assert_eq!((shown("chain_last_verified_timestamp_seconds"), shown("node_ready")), (Some(0.0), Some(0.0)));
    fs::write(node.primary(), PRIMARY).expect("write");
    node.await_label(true);
    eventually("it says so", || shown("node_ready") == Some(1.0));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("now").as_secs_f64();
    let last = shown("chain_last_verified_timestamp_seconds").expect("a time");
    assert!(shown("chain_verified") == Some(1.0) && (now - 30.0..=now).contains(&last), "{last} {now}");
    // That it was not there yet is no repair; that somebody takes it away is one.
    assert_eq!(shown("repairs_total"), Some(0.0));
    assert_eq!(shown("chain_changes_total{action=\"chained\"}"), Some(1.0));
    fs::write(node.primary(), PRIMARY).expect("write");
    eventually("it is repaired", || {
        shown("chain_changes_total{action=\"chained\"}") == Some(2.0) && shown("node_ready") == Some(1.0)
    });
    assert_eq!((shown("repairs_total"), shown("chain_verified")), (Some(1.0), Some(1.0)));
    drop(daemon);
}

#[test]
fn an_uninstallation_takes_only_a_program_of_ours_away() {
    let node = Installer::new();
    ended(node.started(&[]));
    let program = node.path("bin/openshell-cni");
    // What somebody else calls so, once the chain is theirs to end.
    fs::remove_file(&program).expect("remove");
    fs::write(&program, "#!/bin/sh\nexit 0\n").expect("write");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("chmod");
    let uninstall = || {
        let output = node.command(&["--uninstall"]).output().expect("start");
        let lines = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{lines}");
        lines
    };
    let lines = uninstall();
    assert!(lines.contains("openshell-cni is not ours, and stays"), "{lines}");
    assert_eq!(fs::read_to_string(&program).expect("it"), "#!/bin/sh\nexit 0\n");
    assert_eq!(fs::read_to_string(node.primary()).expect("read"), PRIMARY);
    // Control: ours goes.
    fs::remove_file(&program).expect("remove");
    ended(node.started(&[]));
    let lines = uninstall();
    assert!(lines.contains("the plugin is removed") && !program.exists(), "{lines}");
}

#[test]
fn a_configuration_that_was_named_and_is_not_there_is_named() {
    let node = Installer::new();
    let told = complaint(&node, "NoNetwork", &["--conf-file", "30-other.conflist"]);
    assert!(told.contains("net.d/30-other.conflist") && told.contains("waiting for"), "{told}");
    let told = complaint(&node, "NoNetwork", &["--conf-file", "30-other.yaml"]);
    assert!(told.contains("net.d/30-other.yaml") && told.contains(".conflist, .conf or .json"), "{told}");
    assert_eq!(fs::read_to_string(node.primary()).expect("read"), PRIMARY);
    // Control: one that is there.
    drop(node.started(&["--conf-file", "10-net.conflist"]));
    assert!(node.is_chained());
}

#[test]
fn a_directory_of_plugins_that_nothing_can_be_executed_in_is_told() {
    let node = Installer::new();
    let bin = Mounted::tmpfs(node.path("plugins"), MsFlags::MS_NOEXEC, "size=512m");
    for plugin in ["bridge", "portmap"] {
        fs::write(node.path("plugins").join(plugin), "").expect("write");
    }
    let directory = node.path("plugins").display().to_string();
    let told = complaint(&node, "ProgramMissing", &["--bin-dir", &directory]);
    assert!(told.contains("plugins is mounted noexec") && told.contains("--bin-dir"), "{told}");
    assert!(!node.is_chained(), "a plugin that cannot be run would end the network of every pod");
    // Control, and what becomes so later is seen at the next look.
    bin.again(MsFlags::empty());
    let daemon = node.started(&["--bin-dir", &directory, "--node-condition"]);
    assert!(node.is_chained());
    bin.again(MsFlags::MS_NOEXEC);
    fs::write(node.path("net.d/90-other.conf"), "").expect("write");
    node.await_label(false);
    ended(daemon);
}

#[test]
fn a_call_of_before_the_chain_was_made_makes_no_node_ready() {
    let world = World::new();
    let node = Installer::new();
    let directory = node.path("chain.d").display().to_string();
    let flags = ["--way", "multus-chain", "--conf-dir", &directory];
    let mark = node.path("run/called");
    fs::create_dir_all(mark.parent().expect("a directory")).expect("a directory");
    let of = |time: SystemTime| fs::File::create(&mark).expect("the mark").set_modified(time).expect("its time");
    // Of an hour ago: the chain that it was made by is gone, and this one nobody has called.
    of(SystemTime::now() - Duration::from_secs(3600));
    complaint(&node, "NotCalledYet", &flags);
    // The next installer finds the chain in place, and a mark of the years before the node's last start.
    of(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000));
    complaint(&node, "NotCalledYet", &flags);
    // Control: a pod is started, and the mark is there already.
    let daemon = node.start(&flags);
    let file = Path::new(&directory).join("openshell-cni.conf");
    eventually("the chain is made", || file.exists());
    let entry: serde_json::Value = serde_json::from_str(&fs::read_to_string(file).expect("read")).expect("JSON");
    let (code, output) = node.call("ADD", &world.machine_namespace(), "web/w-0", &entry["openshell"]);
    assert_eq!(code, Some(0), "{output}");
    node.await_label(true);
    assert!(!chained(&node.primary()));
    drop(daemon);
}
