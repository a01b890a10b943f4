//! Sandboxes with a PID namespace of their own.

use super::*;

/// A PID namespace in which bash runs `script`, apart from what other tests run; and its /proc.
pub(super) fn namespace(script: &str) -> (Workload, OwnedFd) {
    let mut inside =
        Workload::start(Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "/bin/bash", "-c", script]));
    assert_eq!(inside.hear(), "namespace");
    let child = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", inside.pid())).unwrap();
    let proc = OwnedFd::from(std::fs::File::open(format!("/proc/{}/root/proc", child.trim())).unwrap());
    (inside, proc)
}

#[test]
fn a_number_that_is_used_again_is_another_process() {
    // A PID namespace of its own, whose next number can be chosen without racing against the rest of the machine.
    let mut inside = Workload::start(Command::new("unshare").args([
        "--pid",
        "--fork",
        "--mount-proc",
        "/bin/bash",
        "-c",
        "/bin/sleep 60 & echo $!; read; kill $!; wait $!; echo $(($! - 1)) > /proc/sys/kernel/ns_last_pid; \
         /bin/cat /dev/zero > /dev/null & echo $!; read",
    ]));
    let old: u32 = inside.hear().parse().unwrap();
    let child = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", inside.pid())).unwrap();
    let proc = OwnedFd::from(std::fs::File::open(format!("/proc/{}/root/proc", child.trim())).unwrap());
    let attributor = attributor(Processes::Dedicated(proc));
    let process = attributor.sandbox.process(old).unwrap().unwrap();
    // The control: what is alive is remembered and read.
    assert!(Arc::ptr_eq(&process, &attributor.sandbox.process(old).unwrap().unwrap()));
    process.image(&mut [0; PATH]).unwrap();
    inside.tell("end it");
    let new: u32 = inside.hear().parse().unwrap();
    assert_eq!(new, old, "the number is used again");
    assert!(!process.is_alive());
    assert!(process.image(&mut [0; PATH]).unwrap_err().is_gone());
    assert!(!Arc::ptr_eq(&process, &attributor.sandbox.process(new).unwrap().unwrap()));
}

#[test]
fn a_pid_namespace_of_its_own_numbers_and_names_its_owners() {
    let proxy = Proxy::new();
    let script = format!("(exec 3<>/dev/tcp/127.0.0.1/{}; read; true); true", proxy.port());
    let inside = Workload::start(
        Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc", "/bin/sh", "-c", "/bin/bash -c \"$0\"; true"])
            .arg(script),
    );
    let (stream, client) = proxy.accept();
    let child = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", inside.pid())).unwrap();
    let proc = || OwnedFd::from(std::fs::File::open(format!("/proc/{}/root/proc", child.trim())).unwrap());
    let paths = |claim: &Claim| claim.program.ancestors.iter().map(|a| a.path.to_string()).collect::<Vec<_>>();
    // The first process is the sandbox's init and no part of it.
    let dedicated = attributor(Processes::Dedicated(proc()));
    let claim = dedicated.first_owner(client, proxy.at).unwrap();
    assert!(claim.pid > 1 && claim.pid < 10, "{}", claim.pid);
    assert_eq!(&*claim.program.executable.path, real("/bin/bash"));
    assert_eq!(paths(&claim), Vec::<String>::new());
    assert!(!dedicated.sandbox.list().unwrap().contains(&1));
    dedicated.confirm(&claim, &stream).unwrap();
    // The control: where nothing says so it counts, unless it runs our own executable.
    let mut all = attributor(Processes::All(proc()));
    let claim = all.first_owner(client, proxy.at).unwrap();
    assert_eq!(paths(&claim), [real("/bin/sh")]);
    all.confirm(&claim, &stream).unwrap();
    all.own = Some(Fingerprint::of(&stat("/bin/sh").unwrap()));
    assert_eq!(paths(&all.first_owner(client, proxy.at).unwrap()), Vec::<String>::new());
}

/// Set for the test that runs itself again as another user.
const AS_NOBODY: &str = "ATTRIBUTION_TEST_AS_NOBODY";

#[test]
fn an_init_that_cannot_be_read_stops_nobody() {
    if std::env::var_os(AS_NOBODY).is_none() {
        // The first process stays root's, so that the one below may not read it.
        let status = Command::new("unshare")
            .args([
                "--pid",
                "--fork",
                "--mount-proc",
                "/bin/sh",
                "-c",
                "setpriv --reuid 65534 --regid 65534 \\
                    --clear-groups -- \"$0\" --exact attribution::tests::namespace::an_init_that_cannot_be_read_stops_nobody; \\
                    exit $?",
            ])
            .arg(std::env::current_exe().unwrap())
            .env(AS_NOBODY, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let proc = || OwnedFd::from(std::fs::File::open("/proc").unwrap());
    let error = std::fs::read_link("/proc/1/exe").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    let proxy = Proxy::new();
    let (_workload, stream, client) = connects(Path::new("/bin/bash"), &proxy);
    let ours = std::env::current_exe().unwrap();
    let dedicated = attributor(Processes::Dedicated(proc()));
    let claim = dedicated.first_owner(client, proxy.at).unwrap();
    assert_eq!(claim.program.ancestors.len(), 1);
    assert_eq!(Path::new(&*claim.program.ancestors[0].path), ours);
    dedicated.confirm(&claim, &stream).unwrap();
    // The control: where it may belong to the sandbox it grants nothing as an ancestor, and may be another owner.
    let all = attributor(Processes::All(proc()));
    let claim = all.first_owner(client, proxy.at).unwrap();
    assert_eq!(Path::new(&*claim.program.ancestors.last().unwrap().path), ours);
    let error = all.confirm(&claim, &stream).unwrap_err();
    assert!(matches!(error, AttributionError::Unreadable { pid: 1, .. }), "{error}");
}

#[test]
fn one_process_may_hold_many_connections() {
    let proxy = Proxy::new();
    let script = format!(
        "echo namespace; {1} -c 'import socket\n\
         input()\n\
         pool = [socket.create_connection((\"127.0.0.1\", {0})) for _ in range(20)]\n\
         while True:\n    \
             turn = int(input())\n    \
             pool[turn].close()\n    \
             pool[turn] = socket.create_connection((\"127.0.0.1\", {0}))'; true",
        proxy.port(),
        python().display()
    );
    let (mut workload, proc) = namespace(&script);
    let attributor = attributor(Processes::Dedicated(proc));
    workload.tell("go on");
    let mut streams: Vec<_> = (0..20).map(|_| proxy.accept()).collect();
    for (_, client) in &streams {
        assert_eq!(
            &*attributor.first_owner(*client, proxy.at).unwrap().program.executable.path,
            python().to_str().unwrap()
        );
    }
    let mut times = Vec::new();
    for turn in 0..200 {
        let turn = (turn * 7) % 8 + 12;
        workload.tell(&turn.to_string());
        streams[turn] = proxy.accept();
        let begin = Instant::now();
        let claim = attributor.try_first_owner(streams[turn].1, proxy.at).unwrap().unwrap();
        times.push(begin.elapsed());
        assert_eq!(&*claim.program.executable.path, python().to_str().unwrap());
        attributor.confirm(&claim, &streams[turn].0).unwrap();
    }
    times.sort_unstable();
    println!("owner of one of 20 connections of one process: {:?}", times[100]);
}

/// Prints what the two steps cost among 1, 10 and 100 other processes of 100 descriptors, and holds them to the promise
/// that processes which sleep cost next to nothing.
#[test]
fn sleeping_processes_cost_next_to_nothing() {
    let open = "for i in {10..109}; do eval \"exec $i</dev/null\"; done; echo ready;";
    let median = |mut act: Box<dyn FnMut() + '_>| {
        let mut times: Vec<_> = (0..200)
            .map(|_| {
                let begin = Instant::now();
                act();
                begin.elapsed()
            })
            .collect();
        times.sort_unstable();
        times[times.len() / 2]
    };
    // A PID namespace of their own, apart from what other tests run.
    for (label, then) in [("other program", "exec /bin/sleep 600"), ("same program", "read")] {
        for count in [1, 10, 100] {
            let proxy = Proxy::new();
            let script = format!(
                "exec 4< <(/bin/sleep 600); for n in $(seq {count}); do /bin/bash -c '{open} {then}' <&4 & done; \
                 owner() {{ exec 3<>/dev/tcp/127.0.0.1/{}; read line; }}; (owner); true",
                proxy.port()
            );
            let mut inside = Workload::start(Command::new("unshare").args([
                "--pid",
                "--fork",
                "--mount-proc",
                "/bin/bash",
                "-c",
                &script,
            ]));
            for _ in 0..count {
                assert_eq!(inside.hear(), "ready");
            }
            let (stream, client) = proxy.accept();
            let child = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", inside.pid())).unwrap();
            let inner = OwnedFd::from(std::fs::File::open(format!("/proc/{}/root/proc", child.trim())).unwrap());
            let outer = OwnedFd::from(std::fs::File::open("/proc").unwrap());
            for processes in [Processes::Dedicated(inner), Processes::Below { proc: outer, root_pid: inside.pid() }] {
                let place = if matches!(processes, Processes::Dedicated(_)) { "own namespace" } else { "below init" };
                let attributor = attributor(processes);
                let claim = attributor.first_owner(client, proxy.at).unwrap();
                let begin = Instant::now();
                attributor.confirm(&claim, &stream).unwrap();
                let cold = begin.elapsed();
                for _ in 0..5 {
                    attributor.confirm(&claim, &stream).unwrap();
                }
                let owner = median(Box::new(|| drop(attributor.try_first_owner(client, proxy.at).unwrap().unwrap())));
                let confirm = median(Box::new(|| attributor.confirm(&claim, &stream).unwrap()));
                println!(
                    "{count:>3} × 100 descriptors, {label}, {place}: owner {owner:?}, confirm {confirm:?}, the first \
                     time {cold:?}"
                );
                if count == 100 && label == "other program" {
                    assert!(confirm * 4 < cold, "asleep {confirm:?}, read in full {cold:?}");
                }
            }
        }
    }
}
