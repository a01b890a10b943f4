//! Promises 27.x: the installer on a node, and what the cluster is told of it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::installer::{Installer, NODE_PATH, PRIMARY, USER, chained};
use crate::kubernetes::{Mode, objects, rights};
use crate::node::{NAMESPACE, SANDBOX};
use crate::world::{Daemon, World, eventually, supervisor};

/// How long a node may say that it is ready after something was done to its chain: a change is taken for complete at the
/// latest half a second after it began, and then the label goes first.
const NOTICED: Duration = Duration::from_millis(1500);

const TERM: Duration = Duration::from_secs(10);

/// Everything that a daemon wrote to stderr, once it has ended.
fn told(mut daemon: Daemon) -> (Option<i32>, String) {
    let status = daemon.wait_within(TERM).expect("it ends");
    let stderr = daemon.child().stderr.take().expect("stderr");
    let lines: Vec<String> = BufReader::new(stderr).lines().map_while(Result::ok).collect();
    (status.code(), lines.join("\n"))
}

fn ended(daemon: Daemon) -> (Option<i32>, String) {
    daemon.signal(Signal::SIGTERM);
    told(daemon)
}

/// Looks at a file all the time, and notes when the chain was in order in it.
struct Witness {
    seen: std::thread::JoinHandle<Vec<(Instant, bool)>>,
    end: std::sync::Arc<AtomicBool>,
}

impl Witness {
    fn of(path: &Path) -> Self {
        let end = std::sync::Arc::new(AtomicBool::new(false));
        let (path, ended) = (path.to_owned(), end.clone());
        let seen = std::thread::spawn(move || {
            let mut seen: Vec<(Instant, bool)> = Vec::new();
            while !ended.load(Ordering::Relaxed) {
                let now = chained(&path);
                if seen.last().is_none_or(|(_, before)| *before != now) {
                    seen.push((Instant::now(), now));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            seen.push((Instant::now(), seen.last().is_some_and(|(_, last)| *last)));
            seen
        });
        Self { seen, end }
    }

    /// The times in which the chain was not in order.
    fn gaps(self) -> Vec<(Instant, Instant)> {
        self.end.store(true, Ordering::Relaxed);
        let seen = self.seen.join().expect("the witness");
        seen.windows(2).filter(|pair| !pair[0].1).map(|pair| (pair[0].0, pair[1].0)).collect()
    }
}

/// Prints what happened, and checks it: the label was never set while the chain was not in order, and did not stay for long
/// after it had ceased to be.
fn check_story(node: &Installer, gaps: &[(Instant, Instant)]) {
    let story = node.story();
    let begin = story.first().map_or_else(Instant::now, |(record, _)| record.at);
    let at = |instant: Instant| instant.saturating_duration_since(begin).as_millis();
    for (record, label) in &story {
        println!("{:>6} ms  {:<6} label {label:<5} {} {}", at(record.at), record.method, record.status, record.body);
    }
    for (from, to) in gaps {
        println!("{:>6} to {} ms  the chain is not in order", at(*from), at(*to));
    }
    for (index, (record, label)) in story.iter().enumerate() {
        if !label {
            continue;
        }
        let until = story.get(index + 1).map(|(next, _)| next.at);
        for (from, to) in gaps {
            // A witness looks a moment before or after.
            let set_within = record.at > *from + Duration::from_millis(5) && record.at + Duration::from_millis(5) < *to;
            assert!(!set_within || record.method == "SET", "the label was set while the chain was not in order");
            let stayed = until.unwrap_or(*to).min(*to).saturating_duration_since(record.at.max(*from));
            assert!(stayed < NOTICED, "the label stayed for {stayed:?} after the chain had ceased to be in order");
        }
    }
}

fn is_ready(admin: &str) -> bool {
    std::process::Command::new(supervisor()).args(["health", admin]).output().expect("start").status.success()
}

#[test]
fn a_node_becomes_ready_once_the_plugin_is_chained_and_works() {
    let (world, node) = (World::new(), Installer::new());
    let witness = Witness::of(&node.primary());
    let daemon = node.started(&["--admin-bind", "127.0.0.1:19190", "--node-condition"]);
    assert!(is_ready("127.0.0.1:19190"));
    assert!(node.is_chained());
    eventually("the startup taint alone goes", || {
        let object = node.api.object(NODE_PATH).expect("the node");
        object["spec"]["taints"] == json!([objects::taint("team", "NoExecute")])
    });
    eventually("the condition says why", || {
        node.condition()
            .is_some_and(|condition| condition["status"] == "True" && condition["reason"] == "ChainVerified")
    });
    // What is installed is this executable, and what it is told by the chain lets it look up and fence a sandbox.
    let installed = fs::metadata(node.path("bin/openshell-cni")).expect("the program");
    assert_eq!((installed.mode() & 0o7777, installed.len()), (0o555, fs::metadata(supervisor()).expect("it").len()));
    for name in ["openshell-cni-kubeconfig", "openshell-cni-kubeconfig.token", "openshell-cni-kubeconfig.ca.crt"] {
        let status = fs::metadata(node.path("net.d").join(name)).expect("credentials");
        assert_eq!(status.mode() & 0o7777, 0o600, "{name}");
    }
    node.api.put(&objects::pod(NAMESPACE, "a-0", "u-1", &SANDBOX));
    let (code, output) = node.call("ADD", &world.machine_namespace(), "agents/a-0", &node.entry()["openshell"]);
    assert_eq!(code, Some(0), "{output}");
    assert!(crate::fence::nft(&world, &["list", "tables"]).contains("openshell_fence"));
    // Everything else is as its owner wrote it, and the original is kept beside it.
    let ours = serde_json::to_string(&node.entry()).expect("JSON");
    let text = fs::read_to_string(node.primary()).expect("read");
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    assert_eq!(squeezed(&text).replacen(&format!(",{}", squeezed(&ours)), "", 1), squeezed(PRIMARY), "{text}");
    assert_eq!(fs::read_to_string(node.path("net.d/10-net.conflist.openshell-backup")).expect("a backup"), PRIMARY);
    check_story(&node, &witness.gaps());
    let (code, lines) = ended(daemon);
    assert_eq!(code, Some(0));
    assert!(lines.contains("the node is ready: the plugin is called by"), "{lines}");
    assert!(lines.contains("chained the plugin in"), "{lines}");
}

#[test]
fn what_is_damaged_is_repaired_with_the_label_gone_before() {
    let node = Installer::new();
    let daemon = node.started(&[]);
    let owner_rewrites = |text: &str| {
        let new = node.path("net.d/10-net.new");
        fs::write(&new, text).expect("write");
        fs::rename(new, node.primary()).expect("rename");
    };
    let rewritten = PRIMARY.replace("\"z\": 1", "\"z\": 2");
    let damages: [(&str, &dyn Fn()); 6] = [
        ("its owner starts again", &|| owner_rewrites(&rewritten)),
        ("its owner writes it in place", &|| fs::write(node.primary(), &rewritten).expect("write")),
        ("our entry is changed", &|| {
            let text = fs::read_to_string(node.primary()).expect("read");
            owner_rewrites(&text.replace("\"agents\"", "\"others\""));
        }),
        ("another configuration comes before", &|| {
            fs::write(node.path("net.d/05-new.conflist"), PRIMARY).expect("write")
        }),
        ("that one goes again", &|| fs::remove_file(node.path("net.d/05-new.conflist")).expect("remove")),
        ("the program is replaced", &|| {
            fs::remove_file(node.path("bin/openshell-cni")).expect("remove");
            fs::write(node.path("bin/openshell-cni"), "#!/bin/true").expect("write");
            // Seen at the next look, which anything brings about.
            fs::write(node.path("net.d/90-other.conf"), "").expect("write");
        }),
    ];
    for (name, damage) in damages {
        node.api.forget();
        let primary = if name.contains("before") { node.path("net.d/05-new.conflist") } else { node.primary() };
        let witness = Witness::of(&primary);
        damage();
        let whole = || {
            let program = fs::metadata(node.path("bin/openshell-cni")).is_ok_and(|status| status.len() > 1000);
            chained(&primary) && program && node.label().as_deref() == Some("true")
        };
        let deadline = Instant::now() + Duration::from_secs(15);
        // The label goes, and comes back.
        while !(whole() && (node.story().len() >= 2 || name.contains("goes again"))) {
            assert!(Instant::now() < deadline, "{name}: {:?}", node.story());
            std::thread::sleep(Duration::from_millis(5));
        }
        println!("--- {name}");
        let gaps = witness.gaps();
        if name.contains("program") {
            assert!(node.story().iter().any(|(_, label)| !label), "{name}");
        } else if !name.contains("goes again") {
            assert!(!gaps.is_empty(), "{name}: there was no damage");
        }
        check_story(&node, &gaps);
        if name.starts_with("its owner") {
            assert!(
                fs::read_to_string(node.primary()).expect("read").contains("\"z\": 2"),
                "{name}: their change is lost"
            );
        }
    }
    drop(daemon);
}

#[test]
fn a_label_of_an_earlier_life_is_taken_away_first() {
    let node = Installer::new();
    node.api.change(NODE_PATH, |object| object["metadata"]["labels"]["openshell.ai/cni-ready"] = "true".into());
    // The node has started anew, and its network has not come up yet.
    fs::remove_file(node.primary()).expect("remove");
    fs::write(node.path("net.d/00-half.conflist"), "{\"name\":").expect("write");
    let daemon = node.start(&["--node-condition"]);
    node.await_label(false);
    eventually("the condition says what is awaited", || {
        node.condition()
            .is_some_and(|condition| condition["status"] == "False" && condition["reason"] != "ChainVerified")
    });
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(node.label(), None);
    assert!(!node.is_chained());
    // Control: once there is a network, the node becomes ready by itself.
    fs::remove_file(node.path("net.d/00-half.conflist")).expect("remove");
    fs::write(node.primary(), PRIMARY).expect("write");
    node.await_label(true);
    assert!(node.is_chained());
    let (_, lines) = ended(daemon);
    assert!(lines.contains("00-half.conflist") || lines.contains("waiting for a network"), "{lines}");
}

#[test]
fn a_crash_and_an_upgrade_leave_enforcement_in_place() {
    let node = Installer::new();
    let witness = Witness::of(&node.primary());
    let mut daemon = node.started(&["--node-condition"]);
    // A crash: nobody can take the label away, and the chain it speaks of stands.
    daemon.signal(Signal::SIGKILL);
    daemon.wait_within(TERM).expect("it ends");
    assert!(node.is_chained() && node.label().is_some());
    let daemon = node.start(&["--node-condition"]);
    eventually("the successor begins by taking the label away", || {
        node.story().iter().filter(|(record, _)| record.body.contains("cni-ready\":null")).count() == 1
    });
    node.await_label(true);
    // An upgrade: the DaemonSet is there to stay.
    let (code, lines) = ended(daemon);
    assert_eq!(code, Some(0), "{lines}");
    assert!(node.is_chained() && node.label().is_none(), "{lines}");
    assert!(node.path("bin/openshell-cni").exists() && node.path("net.d/openshell-cni-kubeconfig").exists());
    // The next version's program takes the place of the last one's.
    let program = node.path("bin/openshell-cni");
    fs::remove_file(&program).expect("remove");
    fs::write(&program, "an earlier version").expect("write");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o555)).expect("chmod");
    let daemon = node.started(&["--node-condition"]);
    assert!(fs::metadata(&program).expect("the program").len() > 1000);
    ended(daemon);
    let gaps = witness.gaps();
    // From the first start on the chain was never broken.
    assert_eq!(gaps.len(), 1, "{gaps:?}");
    check_story(&node, &gaps);
}

#[test]
fn only_when_its_daemon_set_goes_the_plugin_goes() {
    let node = Installer::new();
    let daemon_set = "/apis/apps/v1/namespaces/openshell/daemonsets/openshell-cni";
    let left = || {
        let names = fs::read_dir(node.path("net.d")).expect("list").flatten();
        let mut names: Vec<String> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.extend(node.path("bin/openshell-cni").exists().then(|| "program".to_owned()));
        names.sort();
        names
    };
    // In doubt it stays: the API server is away, or refuses to tell.
    let daemon = node.started(&[]);
    node.api.set_mode(Mode::Down);
    let (code, lines) = ended(daemon);
    assert_eq!(code, Some(0), "{lines}");
    node.api.set_mode(Mode::Healthy);
    assert!(node.is_chained());
    let daemon = node.started(&[]);
    node.api.grant(USER, &[rights::nodes(&["get", "patch"]), rights::pods(NAMESPACE)]);
    ended(daemon);
    assert!(node.is_chained());
    node.renew();
    // It is going, and the label cannot be taken away: sandboxes go on coming, and go on being fenced.
    let daemon = node.started(&[]);
    node.api.put(&objects::daemon_set("openshell", "openshell-cni", Some("2026-01-01T00:00:00Z")));
    node.api.grant(USER, &[rights::daemon_sets("openshell"), rights::nodes(&["get"])]);
    let (code, lines) = ended(daemon);
    assert!(code == Some(125) && lines.contains("could not be taken away"), "{code:?} {lines}");
    assert!(node.is_chained() && node.label().is_some());
    node.renew();
    // Gone, or on its way: all of it goes, the label first, and the configuration is what it was.
    for gone in [false, true] {
        fs::write(node.primary(), PRIMARY).expect("write");
        node.api.put(&objects::daemon_set("openshell", "openshell-cni", None));
        let daemon = node.started(&[]);
        if gone {
            node.api.delete(daemon_set);
        } else {
            node.api.put(&objects::daemon_set("openshell", "openshell-cni", Some("2026-01-01T00:00:00Z")));
        }
        let witness = Witness::of(&node.primary());
        let (code, lines) = ended(daemon);
        assert_eq!(code, Some(0), "{lines}");
        let gaps = witness.gaps();
        check_story(&node, &gaps);
        assert_eq!(node.label(), None);
        assert_eq!(left(), ["10-net.conflist"], "{lines}");
        assert_eq!(fs::read_to_string(node.primary()).expect("read"), PRIMARY);
    }
    // The same by its own word, and not while something names the program.
    node.api.put(&objects::daemon_set("openshell", "openshell-cni", None));
    ended(node.started(&[]));
    fs::write(node.path("net.d/99-odd.conf"), r#"{"name":"x","type":"openshell-cni"}"#).expect("write");
    let (code, lines) = told(node.start(&["--uninstall"]));
    assert!(code == Some(0) && lines.contains("99-odd.conf"), "{code:?} {lines}");
    assert_eq!(left(), ["10-net.conflist", "99-odd.conf", "program"]);
    fs::remove_file(node.path("net.d/99-odd.conf")).expect("remove");
    let (code, _) = told(node.start(&["--uninstall"]));
    assert_eq!((code, left()), (Some(0), vec!["10-net.conflist".to_owned()]));
}

#[test]
fn an_api_server_that_is_away_keeps_no_fence_from_being_put_up() {
    let node = Installer::new();
    node.api.set_mode(Mode::Down);
    let daemon = node.start(&[]);
    eventually("the plugin is chained all the same", || node.is_chained());
    assert_eq!(node.label(), None);
    node.api.set_mode(Mode::Healthy);
    node.await_label(true);
    // What is damaged meanwhile is repaired; that it was, the cluster cannot be told.
    node.api.set_mode(Mode::Failing(503));
    fs::write(node.primary(), PRIMARY).expect("write");
    let deadline = Instant::now() + Duration::from_secs(20);
    while !node.is_chained() {
        assert!(Instant::now() < deadline, "never repaired");
        std::thread::sleep(Duration::from_millis(20));
    }
    node.api.set_mode(Mode::Healthy);
    let (code, lines) = ended(daemon);
    assert_eq!(code, Some(0));
    assert!(lines.contains("may say what is not so"), "{lines}");
}

#[test]
fn a_token_that_the_kubelet_renews_reaches_the_plugin() {
    let node = Installer::new();
    let daemon = node.started(&[]);
    let copy = node.path("net.d/openshell-cni-kubeconfig.token");
    let old = fs::read_to_string(&copy).expect("the token");
    let token = node.renew();
    node.api.expire(&old);
    eventually("the cluster has been told everything", || {
        node.api.object(NODE_PATH).expect("the node")["spec"]["taints"]
            .as_array()
            .is_some_and(|taints| taints.len() == 1)
    });
    let stories = node.story().len();
    // At the next look; half a minute at most, or when anything happens.
    fs::write(node.path("net.d/90-other.conf"), "").expect("write");
    eventually("the copy is the new one", || fs::read_to_string(&copy).is_ok_and(|copy| copy == token));
    assert_eq!(fs::metadata(&copy).expect("the token").mode() & 0o7777, 0o600);
    // A renewal is no damage.
    assert_eq!((node.story().len(), node.label().as_deref()), (stories, Some("true")));
    drop(daemon);
}

#[test]
fn in_ways_that_runtimes_may_pass_over_the_node_is_ready_once_the_plugin_was_called() {
    let world = World::new();
    for (way, directory, file) in
        [("multus-chain", "chain.d", "chain.d"), ("drop-in", "net.d", "net.d/k8s-pod-network")]
    {
        let node = Installer::new();
        let conf_dir = node.path(directory).display().to_string();
        let daemon = node.start(&["--way", way, "--conf-dir", &conf_dir, "--node-condition"]);
        let deadline = Instant::now() + TERM;
        while node.condition().is_none_or(|condition| condition["reason"] != "NotCalledYet") {
            if Instant::now() > deadline {
                panic!("{way}: {:?}\n{}", node.condition(), ended(daemon).1);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(node.label(), None, "{way}");
        // The primary itself is left alone.
        assert_eq!(fs::read_to_string(node.primary()).expect("read"), PRIMARY);
        let own = fs::read_dir(node.path(file))
            .expect("list")
            .flatten()
            .find(|entry| entry.path().extension().is_some_and(|extension| extension == "conf"));
        let own = own.unwrap_or_else(|| panic!("{way}: no file of ours in {file}"));
        let text = fs::read_to_string(own.path()).expect("read");
        let entry: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(entry["type"], "openshell-cni");
        // Any pod will do.
        let (code, output) = node.call("ADD", &world.machine_namespace(), "web/w-0", &entry["openshell"]);
        assert_eq!(code, Some(0), "{output}");
        node.await_label(true);
        drop(daemon);
    }
}

#[test]
fn a_node_that_cannot_fence_or_look_up_never_becomes_ready() {
    let node = Installer::new();
    // Without the privilege that it takes to make a namespace, and so to prove that this kernel can fence one.
    let mut command = node.command(&["--node-condition"]);
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    command = std::process::Command::new("setpriv");
    command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-all"]).arg(program).args(arguments);
    node.as_pod(&mut command);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let daemon = Daemon::spawn(command);
    eventually("it says why", || node.condition().is_some_and(|condition| condition["reason"] == "FenceImpossible"));
    assert_eq!(node.label(), None);
    ended(daemon);
    // A plugin whose service account may not look at pods would refuse every sandbox.
    node.api.grant(USER, &[rights::nodes(&["get", "patch"]), rights::node_status()]);
    let daemon = node.start(&["--node-condition"]);
    eventually("it says why", || node.condition().is_some_and(|condition| condition["reason"] == "LookupRefused"));
    assert!(node.label().is_none() && node.is_chained());
    // Control.
    node.renew();
    node.await_label(true);
    drop(daemon);
    // Another directory than the runtime's: the chain would name a program that is not found, and end every pod's network.
    node.api.forget();
    fs::write(node.primary(), PRIMARY).expect("write");
    let elsewhere = node.path("elsewhere").display().to_string();
    let daemon = node.start(&["--node-condition", "--bin-dir", &elsewhere]);
    eventually("it says why", || node.condition().is_some_and(|condition| condition["reason"] == "PluginsElsewhere"));
    assert!(node.label().is_none() && !node.is_chained());
    fs::write(node.path("elsewhere/portmap"), "").expect("write");
    node.await_label(true);
    drop(daemon);
    // What could never work ends at once.
    let begin = |change: &dyn Fn(&mut std::process::Command)| {
        let mut command = node.command(&[]);
        change(&mut command);
        let output = command.output().expect("start");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, lines) = begin(&|command| {
        command.env_remove("KUBERNETES_SERVICE_HOST");
    });
    assert!(code == Some(125) && lines.contains("KUBERNETES_SERVICE_HOST"), "{code:?} {lines}");
    let (code, lines) = begin(&|command| {
        command.env("NODE_NAME", "N 1");
    });
    assert!(code == Some(2) && lines.contains("N 1"), "{code:?} {lines}");
    let begun = |flags: &[&str]| {
        let output = node.command(flags).output().expect("start");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (flags, named) in [
        (&["--daemonset", "openshell/absent"][..], "openshell/absent"),
        (&["--sandbox-namespace", "My_NS"], "My_NS"),
        (&["--conf-dir", "net.d"], "absolute"),
        (&["--conf-file", "net.d/x"], "without a path"),
    ] {
        let (code, lines) = begun(flags);
        assert!(code == Some(2) && lines.contains(named), "{flags:?}: {code:?} {lines}");
    }
    fs::remove_file(node.path("account/token")).expect("remove");
    let (code, lines) = begin(&|_| ());
    assert!(code == Some(125) && lines.contains("account/token"), "{code:?} {lines}");
}

#[test]
fn an_installer_that_is_killed_at_any_moment_leaves_a_whole_configuration() {
    const ROUNDS: u32 = 1000;
    let node = Installer::new();
    // The program is in place: copying it takes longest, and is another test's.
    ended(node.started(&[]));
    let (end, broken) = (AtomicBool::new(false), AtomicBool::new(false));
    let texts: Vec<String> = (0..7).map(|number| PRIMARY.replace("\"z\": 1", &format!("\"z\": {number}"))).collect();
    let (mut outcomes, mut killed_over_it) = ([0, 0], 0);
    let chained_text = AtomicBool::new(false);
    let unfinished = || {
        let entries = fs::read_dir(node.path("net.d")).expect("list").flatten();
        entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(".tmp")).count()
    };
    std::thread::scope(|scope| {
        // The owner, as a network's daemon that starts over and over.
        scope.spawn(|| {
            for text in texts.iter().cycle() {
                if end.load(Ordering::Relaxed) {
                    return;
                }
                let new = node.path("net.d/10-net.new");
                fs::write(&new, text).expect("write");
                fs::rename(new, node.primary()).expect("rename");
                std::thread::sleep(Duration::from_millis(15));
            }
        });
        // The runtime, which reads whenever it likes.
        scope.spawn(|| {
            while !end.load(Ordering::Relaxed) {
                let text = fs::read_to_string(node.primary()).expect("it is always there");
                match serde_json::from_str::<Value>(&text) {
                    Ok(list) if list["plugins"].as_array().is_some_and(|plugins| plugins.len() == 3) => {
                        chained_text.store(true, Ordering::Relaxed);
                    }
                    Ok(_) => {}
                    Err(error) => {
                        println!("{error}: {text}");
                        broken.store(true, Ordering::Relaxed);
                    }
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let mut noise = 12345_u32;
        for _ in 0..ROUNDS {
            let mut daemon = node.start(&[]);
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            std::thread::sleep(Duration::from_micros(u64::from(noise >> 16) % 60_000));
            daemon.signal(Signal::SIGKILL);
            daemon.wait_within(TERM).expect("it ends");
            outcomes[usize::from(node.is_chained())] += 1;
            killed_over_it += u32::from(unfinished() > 0);
        }
        end.store(true, Ordering::Relaxed);
    });
    println!(
        "killed {ROUNDS} times, {killed_over_it} over a file that was not finished: {} unchained, {} chained",
        outcomes[0], outcomes[1]
    );
    assert!(!broken.load(Ordering::Relaxed), "a reader saw half a configuration");
    assert!(killed_over_it > 0 && chained_text.load(Ordering::Relaxed), "it was never killed half-way");
    // At rest: chained, their last text kept, nothing left lying about.
    let daemon = node.started(&[]);
    let list: Value = serde_json::from_str(&fs::read_to_string(node.primary()).expect("read")).expect("JSON");
    assert!(list["z"].as_u64().is_some_and(|number| number < 7) && node.is_chained());
    assert_eq!(unfinished(), 0);
    drop(daemon);
}

#[test]
fn an_idle_installer_is_small_and_does_nothing() {
    let node = Installer::new();
    let daemon = node.started(&[]);
    let pid = daemon.pid();
    let resident = || -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("status");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    };
    let ticks = || -> u64 {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("stat");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
    };
    eventually("it is small", || {
        println!("idle: {} KiB", resident());
        resident() <= 8 * 1024
    });
    let before = ticks();
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(ticks(), before, "it takes time of the processor");
}

#[test]
fn a_node_is_marked_and_unmarked_by_hand() {
    let node = Installer::new();
    let mark = |arguments: &[&str]| {
        let mut command = std::process::Command::new(supervisor());
        command.arg("mark-node-ready").arg("--service-account").arg(node.path("account")).args(arguments);
        node.as_pod(&mut command);
        let output = command.output().expect("start");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (arguments, set, writes) in
        [(&[][..], true, 2), (&[], true, 0), (&["--remove"], false, 1), (&["--remove"], false, 0)]
    {
        node.api.forget();
        let (code, lines) = mark(arguments);
        assert_eq!((code, node.label().is_some(), node.story().len()), (Some(0), set, writes), "{arguments:?} {lines}");
    }
    let object = node.api.object(NODE_PATH).expect("the node");
    assert_eq!(object["spec"]["taints"], json!([objects::taint("team", "NoExecute")]), "and never comes back");
    // Somebody else is quicker, and the server is away for a moment.
    for mode in [Mode::Conflict, Mode::Failing(503), Mode::Closing] {
        node.api.set_mode_for(mode, 2);
        let (code, lines) = mark(if node.label().is_some() { &["--remove"] } else { &[] });
        assert_eq!(code, Some(0), "{mode:?}: {lines}");
    }
    for (damage, remedy) in [
        (&(|| node.api.grant(USER, &[])) as &dyn Fn(), "forbidden"),
        (&|| drop(fs::write(node.path("account/token"), "old")), "401"),
        (&|| node.api.set_mode(Mode::Down), "cannot be reached"),
    ] {
        damage();
        let begun = Instant::now();
        let (code, lines) = mark(&["--timeout", "1"]);
        assert!(code == Some(125) && lines.contains(remedy) && lines.contains("/nodes/n1"), "{code:?} {lines}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
    node.api.set_mode(Mode::Healthy);
    node.renew();
    let (code, lines) = mark(&["--node-name", "absent"]);
    assert!(code == Some(125) && lines.contains("absent"), "{code:?} {lines}");
    // Who may ask about every node learns that there is none of that name, and where names come from.
    node.api.grant(USER, &[rights::nodes(&["get", "patch"])]);
    let (code, lines) = mark(&["--node-name", "absent"]);
    assert!(code == Some(125) && lines.contains("kubectl get nodes"), "{code:?} {lines}");
}
