//! Others write the primary while it is edited, and read it all the time.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::*;

/// How often the other one writes.
const REWRITES: u32 = 1000;

/// Edits that the other one writes into.
const INSTANTS: u32 = 120;

fn theirs(generation: u32) -> String {
    // Long enough that a reader can meet half of it.
    let padding = "x".repeat(6000);
    format!(
        r#"{{"cniVersion":"1.0.0","name":"net","pad":"{padding}","plugins":[{{"type":"bridge","generation":{generation}}}]}}"#
    )
}

/// Runs `write` a thousand times beside an installer and readers, and says how often the installer had to repair.
fn beside(name: &str, copy: Option<&str>, write: impl Fn(&Node, u32) + Sync) -> u32 {
    let node = Node::with(name, &theirs(0));
    let shown = copy.unwrap_or(name);
    let (done, repairs) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for generation in 1..=REWRITES {
                write(&node, generation);
                // Gives the installer time to be in every state, without giving it always the time to finish.
                let pause = Duration::from_micros(u64::from(generation.wrapping_mul(7919) % 3000));
                std::thread::sleep(pause);
            }
            done.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let installed = node.chain(Way::Conflist).install(|change| {
                    repairs.fetch_add(u32::from(change.action != Action::Removed), Ordering::Relaxed);
                });
                match installed {
                    Ok(_) | Err(ChainError::Contended { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                let Ok(text) = std::fs::read_to_string(node.at(shown)) else { continue };
                if serde_json::from_str::<Value>(&text).is_err() {
                    // Theirs, half-written, and nothing of ours.
                    assert!(!text.contains("openshell"), "half of ours was seen: {text}");
                }
            }
        });
    });
    // At rest: ours is in, and what they wrote last is there.
    assert!(node.install().0.is_chained());
    assert_eq!(node.verify(), node.chained(shown));
    let list: Value = serde_json::from_str(&node.read(shown)).unwrap();
    assert_eq!(list["plugins"][0]["generation"], REWRITES);
    node.remove();
    assert_eq!(node.read(name), theirs(REWRITES));
    assert_eq!(node.names(), [name]);
    repairs.into_inner()
}

#[test]
fn beside_one_who_renames_nothing_is_lost() {
    let repairs = beside("10-net.conflist", None, |node, generation| {
        std::fs::write(node.at("theirs.new"), theirs(generation)).unwrap();
        std::fs::rename(node.at("theirs.new"), node.at("10-net.conflist")).unwrap();
    });
    println!("{repairs} changes beside {REWRITES} renames");
    assert!(repairs > 0);
}

#[test]
fn beside_one_who_writes_in_place_nothing_is_lost() {
    let repairs = beside("10-net.conflist", None, |node, generation| {
        let text = theirs(generation);
        let (head, tail) = text.split_at(text.len() / 2);
        let mut file = std::fs::File::create(node.at("10-net.conflist")).unwrap();
        std::io::Write::write_all(&mut file, head.as_bytes()).unwrap();
        if generation % 4 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
        std::io::Write::write_all(&mut file, tail.as_bytes()).unwrap();
    });
    println!("{repairs} changes beside {REWRITES} writes in place");
    assert!(repairs > 0);
}

#[test]
fn what_is_written_under_the_edit_is_edited_in_its_turn() {
    for rename in [true, false] {
        let node = Node::with("file", "theirs 0");
        let directory = Directory::open(node.path()).unwrap().unwrap();
        let mut calls = 0;
        let edited = replace::edit(&directory, std::ffi::OsStr::new("file"), |content| {
            calls += 1;
            let text = String::from_utf8(content.bytes.clone()).unwrap();
            if calls < 4 {
                let next = format!("theirs {calls}");
                if rename {
                    node.write_now("new", next);
                    std::fs::rename(node.at("new"), node.at("file")).unwrap();
                } else {
                    node.write_now("file", next);
                }
            }
            Ok(Some(format!("{text} and ours").into_bytes()))
        });
        assert_eq!(edited.unwrap(), replace::Edited::Written);
        assert_eq!(node.read("file"), "theirs 3 and ours");
    }
}

/// The instant between an edit's last look and its exchange, which a long file stretches: looking ends with a close,
/// which inotify tells, and then the edit has some megabytes to compare. (With a rename in place of the exchange, or
/// what was displaced not looked at or not waited for, this fails.)
#[test]
fn what_is_written_between_the_last_look_and_the_exchange_is_not_lost() {
    let node = Node { directory: tempfile::tempdir_in("/dev/shm").unwrap() };
    let text = |generation: u32| format!("{generation:09}{}", "x".repeat(1_900_000));
    let directory = Directory::open(node.path()).unwrap().unwrap();
    let name = std::ffi::OsStr::new("file");
    let (mut lost, mut turns) = (Vec::new(), 0);
    for generation in 1..=INSTANTS {
        node.write_now("file", text(0));
        node.write_now("new", text(generation));
        let looks = Inotify::init(InitFlags::IN_NONBLOCK).unwrap();
        looks.add_watch(&node.at("file"), AddWatchFlags::IN_CLOSE_NOWRITE).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut closed = 0;
                while closed < 2 {
                    closed += looks.read_events().map_or(0, |events| events.len());
                }
                if generation % 2 == 0 {
                    std::fs::rename(node.at("new"), node.at("file")).unwrap();
                } else {
                    let text = text(generation);
                    let (head, tail) = text.split_at(text.len() / 2);
                    let mut file = std::fs::File::create(node.at("file")).unwrap();
                    std::io::Write::write_all(&mut file, head.as_bytes()).unwrap();
                    std::thread::sleep(Duration::from_micros(500));
                    std::io::Write::write_all(&mut file, tail.as_bytes()).unwrap();
                }
            });
            let edited = replace::edit(&directory, name, |content| {
                if content.bytes.len() < text(0).len() {
                    return Err(replace::Stop::Refused("half-written".into()));
                }
                if content.bytes.ends_with(b"ours") {
                    return Ok(None);
                }
                turns += 1;
                Ok(Some([&content.bytes, b"ours".as_slice()].concat()))
            });
            edited.unwrap();
            writer.join().unwrap();
        });
        if !node.read("file").starts_with(&format!("{generation:09}")) {
            lost.push(generation);
        }
    }
    println!("{turns} edits beside {INSTANTS} writes");
    assert!(lost.is_empty(), "{} of {INSTANTS} were lost: {lost:?}", lost.len());
}

#[test]
fn one_who_never_rests_is_not_fought_for_ever() {
    let node = Node::with("file", "0");
    let directory = Directory::open(node.path()).unwrap().unwrap();
    let mut calls = 0;
    let edited = replace::edit(&directory, std::ffi::OsStr::new("file"), |_| {
        calls += 1;
        node.write_now("file", calls.to_string());
        Ok(Some(b"ours".to_vec()))
    });
    assert!(matches!(edited, Err(ChainError::Contended { .. })));
    assert_eq!(node.read("file"), calls.to_string());
}

#[test]
fn beside_one_who_rewrites_a_single_plugin_the_copy_follows() {
    let single =
        |generation: u32| format!(r#"{{"cniVersion":"1.0.0","name":"net","type":"bridge","generation":{generation}}}"#);
    let node = Node::with("10-net.conf", &single(0));
    assert!(node.install().0.is_chained());
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for generation in 1..=REWRITES {
                node.write_now("new", single(generation));
                std::fs::rename(node.at("new"), node.at("10-net.conf")).unwrap();
                std::thread::sleep(Duration::from_micros(200));
            }
            done.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                node.install();
            }
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                // There is no instant at which it is not chained.
                let list: Value = serde_json::from_str(&node.read("10-net-openshell.conflist")).unwrap();
                assert_eq!(list["plugins"][1]["type"], PLUGIN_TYPE);
            }
        });
    });
    assert!(node.install().0.is_chained());
    let list: Value = serde_json::from_str(&node.read("10-net-openshell.conflist")).unwrap();
    assert_eq!(list["plugins"][0]["generation"], REWRITES);
}
