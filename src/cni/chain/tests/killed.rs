//! The installer is killed at any instant: a child process that installs and removes without pause, and SIGKILL.

use std::io::Read;
use std::process::{Command, Stdio};

use super::*;

/// The child's directory, for the test that is the child.
const DIRECTORY: &str = "OPENSHELL_TEST_CHAIN_DIRECTORY";

/// Children that are killed, in each way.
const KILLS: u32 = 150;

/// No test of its own: what the others run as a process that they kill.
#[test]
fn child() {
    let Some(directory) = std::env::var_os(DIRECTORY) else { return };
    let directory = Path::new(&directory);
    let way = if directory.join("multus").exists() { Way::MultusChain } else { Way::Conflist };
    let chain = match way {
        Way::MultusChain => super::chain(&directory.join("multus/chain"), way),
        _ => super::chain(directory, way),
    };
    println!("ready");
    loop {
        chain.install(|_| ()).unwrap();
        chain.remove(|_| ()).unwrap();
    }
}

/// Kills a child after `pause` of work.
fn kill_after(directory: &Path, pause: Duration) {
    let name = format!("{}::child", module_path!().split_once("::").unwrap().1);
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--nocapture"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut heard = Vec::new();
    let mut byte = [0];
    while !heard.ends_with(b"ready\n") {
        assert_eq!(stdout.read(&mut byte).unwrap(), 1, "the child ended by itself");
        heard.push(byte[0]);
    }
    std::thread::sleep(pause);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
}

/// A pause that differs every time: a round of the child takes tens of milliseconds on a disk, and one or two in
/// memory.
fn pause(kill: u32) -> Duration {
    Duration::from_micros(u64::from(kill.wrapping_mul(2_654_435_761) >> 15) % 40_000)
}

/// A directory on the disk or in memory, where different steps take the time that a kill falls into.
fn node(kill: u32) -> Node {
    if kill.is_multiple_of(2) { Node::new() } else { Node { directory: tempfile::tempdir_in("/dev/shm").unwrap() } }
}

#[test]
fn a_list_is_whole_after_every_kill() {
    let original = BRIDGE.replace("bridge", "ptp");
    let (mut leftovers, mut chained) = (0, 0);
    for kill in 0..KILLS {
        let node = node(kill);
        node.write("10-net.conflist", &original);
        node.write("00-empty.conflist", "");
        kill_after(node.path(), pause(kill));
        // What a runtime meets now: their text, or theirs with ours, and nothing in between.
        let list = node.read("10-net.conflist");
        let theirs = document::List::read(list.as_bytes(), VERSIONS).unwrap();
        assert_eq!(theirs.without(), original);
        chained += u32::from(theirs.names_us());
        leftovers += u32::from(node.names().iter().any(|name| name.ends_with(".tmp")));
        // The next installer begins with that.
        assert!(node.install().0.is_chained());
        assert_eq!(node.read("10-net.conflist.openshell-backup"), original);
        assert!(node.names().iter().all(|name| !name.ends_with(".tmp")));
        node.remove();
        assert_eq!(node.read("10-net.conflist"), original);
        assert_eq!(node.names(), ["00-empty.conflist", "10-net.conflist"]);
    }
    println!("{KILLS} kills: {chained} left it chained, {leftovers} left a file");
    assert!(leftovers > 0 && chained > 0 && chained < KILLS, "the kills met too few states");
}

#[test]
fn a_single_plugin_is_whole_after_every_kill() {
    let original = r#"{"cniVersion":"1.0.0","name":"net","type":"bridge"}"#;
    for kill in 0..KILLS {
        let node = node(kill);
        node.write("10-net.conf", original);
        kill_after(node.path(), pause(kill));
        assert_eq!(node.read("10-net.conf"), original);
        // The first that a runtime loads is one of the two, and whole.
        for name in node.names().iter().filter(|name| name.ends_with(".conflist")) {
            document::List::read(node.read(name).as_bytes(), VERSIONS).unwrap();
        }
        assert!(node.install().0.is_chained());
        node.remove();
        assert_eq!(node.names(), ["10-net.conf"]);
    }
}

#[test]
fn multus_directory_is_whole_after_every_kill() {
    for kill in 0..KILLS / 3 {
        let node = node(kill);
        std::fs::create_dir(node.at("multus")).unwrap();
        kill_after(node.path(), pause(kill));
        let chain = super::chain(&node.at("multus/chain"), Way::MultusChain);
        if let Ok(text) = std::fs::read_to_string(node.at("multus/chain/openshell-cni.conf")) {
            serde_json::from_str::<Value>(&text).unwrap();
        }
        assert!(node.install_by(&chain).0.is_chained());
        node.remove_by(&chain);
        // A directory that was made in the instant before the kill may stay, empty.
        assert!(!node.at("multus/chain/openshell-cni.conf").exists());
    }
}
