//! What is noticed, and what is not.

use std::time::Instant;

use super::*;

/// Longer than any settling, shorter than a tick: what arrives in time came by inotify.
const SOON: Duration = Duration::from_secs(10);

/// A tick that no test waits for.
const NEVER: Duration = Duration::from_secs(1000);

/// Whether `change` is noticed at once by a watch over `chain`.
fn notices(chain: &Chain, within: Duration, change: impl FnOnce()) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut watch = Watch::new(chain).unwrap();
        change();
        tokio::time::timeout(within, watch.changed(NEVER)).await.is_ok()
    })
}

#[test]
fn every_way_of_writing_is_noticed() {
    let node = Node::with("10-net.conflist", BRIDGE);
    let chain = node.chain(Way::Conflist);
    assert!(notices(&chain, SOON, || node.write_now("10-net.conflist", BRIDGE)));
    assert!(notices(&chain, SOON, || {
        node.write_now("new", BRIDGE);
        std::fs::rename(node.at("new"), node.at("10-net.conflist")).unwrap();
    }));
    assert!(notices(&chain, SOON, || std::fs::remove_file(node.at("10-net.conflist")).unwrap()));
    assert!(notices(&chain, SOON, || node.write_now("00-first.conf", "")));
    // Control: what no runtime loads is nobody's concern.
    assert!(!notices(&chain, Duration::from_millis(300), || node.write_now("kubeconfig", "")));
    assert!(!notices(&chain, Duration::from_millis(300), || ()));
}

#[test]
fn a_directory_that_goes_and_comes_back_is_noticed() {
    let node = Node::new();
    let chain = chain(&node.at("net.d"), Way::Conflist);
    assert!(notices(&chain, SOON, || std::fs::create_dir(node.at("net.d")).unwrap()));
    assert!(notices(&chain, SOON, || std::fs::remove_dir(node.at("net.d")).unwrap()));
    assert!(!notices(&chain, Duration::from_millis(300), || node.write_now("beside", "")));
    // And what is written into the new one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut watch = Watch::new(&chain).unwrap();
        for _ in 0..3 {
            std::fs::create_dir(node.at("net.d")).unwrap();
            tokio::time::timeout(SOON, watch.changed(NEVER)).await.unwrap();
            node.write_now("net.d/10-net.conflist", BRIDGE);
            tokio::time::timeout(SOON, watch.changed(NEVER)).await.unwrap();
            std::fs::remove_dir_all(node.at("net.d")).unwrap();
            tokio::time::timeout(SOON, watch.changed(NEVER)).await.unwrap();
        }
    });
}

#[test]
fn drop_in_directories_are_watched() {
    let node = Node::with("10-net.conflist", BRIDGE);
    let chain = node.chain(Way::DropIn);
    node.install_by(&chain);
    assert!(notices(&chain, SOON, || std::fs::remove_file(node.at("net/openshell-cni.conf")).unwrap()));
    // Control: that they are is what makes the difference.
    node.install_by(&chain);
    assert!(!notices(&node.chain(Way::Conflist), Duration::from_millis(300), || {
        std::fs::remove_file(node.at("net/openshell-cni.conf")).unwrap();
    }));
}

#[test]
fn one_who_never_rests_is_waited_for_only_so_long() {
    let node = Node::with("10-net.conflist", BRIDGE);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                node.write_now("10-net.conflist", BRIDGE);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let began = Instant::now();
        runtime.block_on(async {
            let mut watch = Watch::new(&node.chain(Way::Conflist)).unwrap();
            watch.changed(NEVER).await;
        });
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    });
}

#[test]
fn where_nothing_happens_the_tick_comes() {
    let node = Node::new();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let began = Instant::now();
    runtime.block_on(async {
        let mut watch = Watch::new(&node.chain(Way::Conflist)).unwrap();
        watch.changed(Duration::from_millis(200)).await;
    });
    assert!((Duration::from_millis(150)..SOON).contains(&began.elapsed()), "{:?}", began.elapsed());
}
