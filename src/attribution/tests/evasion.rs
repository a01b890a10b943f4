//! What a workload may try so that not all owners of its connection are seen, or so that looking takes forever.

use std::os::fd::AsRawFd as _;

use super::namespace::namespace;
use super::*;

#[test]
fn a_chain_of_forks_never_outruns_the_look_at_all_owners() {
    // Perl is started with the socket of bash, forks a successor and ends, and so on; the control has closed it.
    for (inherited, close) in [(true, ""), (false, "3<&-")] {
        let proxy = Proxy::new();
        let script = format!(
            "echo namespace; read line; (exec 3<>/dev/tcp/127.0.0.1/{}; \
             /usr/bin/perl -e '$| = 1; print \"started\\n\"; for (1..100000) {{ exit if fork() }}' {close} & read line); true",
            proxy.port()
        );
        let (mut inside, proc) = namespace(&script);
        let attributor = attributor(Processes::Dedicated(proc));
        inside.tell("go on");
        let (stream, client) = proxy.accept();
        assert_eq!(inside.hear(), "started");
        let mut claim = attributor.first_owner(client, proxy.at);
        let deadline = Instant::now() + Duration::from_secs(5);
        while claim.as_ref().map_or(true, |claim| *claim.program.executable.path != *real("/bin/bash")) {
            assert!(Instant::now() < deadline, "{claim:?}");
            claim = attributor.first_owner(client, proxy.at);
        }
        let claim = claim.unwrap();
        let outcomes: Vec<_> = (0..100).map(|_| attributor.confirm(&claim, &stream)).collect();
        let passed = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        let seen = outcomes.iter().filter(|o| matches!(o, Err(AttributionError::Ambiguous { .. }))).count();
        println!("chain, inherited {inherited}: {passed} of 100 passed, {seen} saw the other program");
        assert!(!inherited || passed == 0, "{passed}");
    }
}

#[test]
fn honest_churn_is_no_chain() {
    let proxy = Proxy::new();
    let script = format!(
        "echo namespace; read line; (while true; do /bin/true; done) & \
         (exec 3<>/dev/tcp/127.0.0.1/{}; read line); true",
        proxy.port()
    );
    let (mut inside, proc) = namespace(&script);
    let attributor = attributor(Processes::Dedicated(proc));
    inside.tell("go on");
    let (stream, client) = proxy.accept();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    let begin = Instant::now();
    let passed = (0..200).filter(|_| attributor.confirm(&claim, &stream).is_ok()).count();
    println!("a loop of short programs: {passed} of 200 passed, {:?} each", begin.elapsed() / 200);
    assert!(passed >= 190, "{passed}");
}

#[test]
fn what_a_workload_opens_does_not_hold_up_the_thread_that_must_not_wait() {
    let proxy = Proxy::new();
    let attributor = below();
    let mut workload = Workload::python(&format!(
        "import os, resource, socket\n\
         _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n\
         resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))\n\
         many = min(hard, 20000) - 100\n\
         s = socket.create_connection(('127.0.0.1', {0}))\n\
         print('one', flush=True)\ninput()\n\
         null = os.open('/dev/null', os.O_RDONLY)\n\
         held = [os.dup(null) for _ in range(many // 2)]\n\
         middle = socket.create_connection(('127.0.0.1', {0}))\n\
         held += [os.dup(null) for _ in range(many // 2)]\n\
         print('many', flush=True)\ninput()",
        proxy.port()
    ));
    // The control: what is easily found is found at once.
    let (stream, client) = proxy.accept();
    workload.hear();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    assert!(attributor.try_first_owner(client, proxy.at).unwrap().is_ok());
    assert!(attributor.confirm(&claim, &stream).is_ok());
    workload.tell("go on");
    let (_second, client) = proxy.accept();
    assert_eq!(workload.hear(), "many");
    let begin = Instant::now();
    assert!(attributor.try_first_owner(client, proxy.at).is_none());
    let tried = begin.elapsed();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    let all = begin.elapsed() - tried;
    assert_eq!(claim.pid, workload.pid());
    println!("one of 20000 descriptors: given up after {tried:?}, found after {all:?}");
    assert!(tried * 3 < all, "{tried:?} {all:?}");
}

#[test]
fn confirming_gives_up_where_it_would_hold_everyone_up() {
    let proxy = Proxy::new();
    let script = format!(
        "echo namespace; read line; \
         (exec -a other /usr/bin/perl -e 'my @held; for (1..900) {{ open($held[$_], \"<\", \"/dev/null\") }} \
         $| = 1; print \"ready\\n\"; while (1) {{ select(undef, undef, undef, 0.001) }}' < /dev/null) & \
         (exec 3<>/dev/tcp/127.0.0.1/{}; read line; read line); true",
        proxy.port()
    );
    let (mut inside, proc) = namespace(&script);
    let attributor = attributor(Processes::Dedicated(proc));
    inside.tell("go on");
    let (stream, client) = proxy.accept();
    assert_eq!(inside.hear(), "ready");
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    attributor.confirm(&claim, &stream).unwrap();
    // It runs between any two looks, and has to be read in full each time.
    std::thread::sleep(Duration::from_millis(20));
    assert!(attributor.try_confirm(&claim, &stream).is_none());
    attributor.confirm(&claim, &stream).unwrap();

    // The control: alone, the owner is confirmed at once.
    let proxy = Proxy::new();
    let script =
        format!("echo namespace; read line; (exec 3<>/dev/tcp/127.0.0.1/{}; read line; read line); true", proxy.port());
    let (mut inside, proc) = namespace(&script);
    let attributor = super::attributor(Processes::Dedicated(proc));
    inside.tell("go on");
    let (stream, client) = proxy.accept();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    attributor.try_confirm(&claim, &stream).unwrap().unwrap();
}

#[test]
fn a_claim_does_not_outlive_our_end_of_its_connection() {
    let proxy = Proxy::new();
    let attributor = below();
    // The socket stays, its connection does not: connect(2) to AF_UNSPEC.
    let mut workload = Workload::python(&format!(
        "import ctypes, socket\n\
         s = socket.create_connection(('127.0.0.1', {}))\n\
         input()\n\
         assert ctypes.CDLL(None).connect(s.fileno(), bytes(16), 16) == 0\n\
         print('left', flush=True)\ninput()",
        proxy.port()
    ));
    let (stream, client) = proxy.accept();
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    attributor.confirm(&claim, &stream).unwrap();
    workload.tell("leave");
    assert_eq!(workload.hear(), "left");
    assert!(claim.owner.process.find(claim.socket.inode).unwrap().is_some());
    let error = attributor.confirm(&claim, &stream).unwrap_err();
    assert!(matches!(error, AttributionError::ChangedHands { .. }), "{error}");
    // Nor does another connection pass for it.
    let (_other_workload, other, _) = connects(Path::new("/bin/bash"), &proxy);
    let error = attributor.confirm(&claim, &other).unwrap_err();
    assert!(matches!(error, AttributionError::ChangedHands { .. }), "{error}");
}

#[test]
fn what_still_connects_owns_nothing() {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, connect, listen, socket};
    let proxy = Proxy::new();
    let proc = OwnedFd::from(std::fs::File::open("/proc").unwrap());
    let root_pid = std::os::unix::process::parent_id();
    let attributor = super::attributor(Processes::Below { proc, root_pid });
    // A queue for one connection: the next has to wait until that is accepted.
    listen(&proxy.listener, Backlog::new(0).unwrap()).unwrap();
    let _first = TcpStream::connect(proxy.at).unwrap();
    let kind = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let second = socket(AddressFamily::Inet, SockType::Stream, kind, None).unwrap();
    let at = SockaddrIn::new(127, 0, 0, 1, proxy.port());
    assert_eq!(connect(second.as_raw_fd(), &at), Err(nix::errno::Errno::EINPROGRESS));
    let second = TcpStream::from(second);
    let client = second.local_addr().unwrap();
    let error = attributor.first_owner(client, proxy.at).unwrap_err();
    assert!(matches!(error, AttributionError::NoSocket { .. }), "{error}");
    // The control: once it has been accepted, it has its owner.
    proxy.accept();
    let (stream, accepted) = proxy.accept();
    assert_eq!(accepted, client);
    // (Another test's child may hold a copy for an instant.)
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    let here = std::env::current_exe().unwrap();
    assert_eq!(Path::new(&*claim.program.executable.path), here);
    attributor.confirm(&claim, &stream).unwrap();
}

/// Set for the test that runs itself again as another user.
const AS_NOBODY: &str = "ATTRIBUTION_TEST_HIDING_AS_NOBODY";

#[test]
fn what_hides_in_the_sandbox_is_read_and_what_cannot_be_read_is_named() {
    if std::env::var_os(AS_NOBODY).is_none() {
        let status = Command::new("setpriv")
            .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("attribution::tests::evasion::what_hides_in_the_sandbox_is_read_and_what_cannot_be_read_is_named")
            .env(AS_NOBODY, "1")
            .status()
            .unwrap();
        assert!(status.success(), "{status}");
        return;
    }
    let proxy = Proxy::new();
    // prctl(PR_SET_DUMPABLE, 0), then a connection of its own.
    let hide = "syscall(157, 4, 0, 0, 0, 0) == 0 or die;";
    let hidden = format!(
        "use Socket; {hide} socket(my $s, PF_INET, SOCK_STREAM, 0); \
         connect($s, sockaddr_in({}, inet_aton('127.0.0.1'))) or die; $| = 1; print \"hidden\\n\"; <STDIN>",
        proxy.port()
    );
    // In a user namespace of ours, with and without a user 0, it can be read.
    for map in ["--map-root-user", "--map-current-user"] {
        let attributor = below();
        let mut workload =
            Workload::start(Command::new("unshare").args(["--user", map, "/usr/bin/perl", "-e", &hidden]));
        let (stream, client) = proxy.accept();
        assert_eq!(workload.hear(), "hidden");
        let claim = attributor.first_owner(client, proxy.at).unwrap();
        assert_eq!(claim.pid, workload.pid());
        assert_eq!(&*claim.program.executable.path, real("/usr/bin/perl"));
        attributor.confirm(&claim, &stream).unwrap();
        // And it is no way to hold another's connection unseen.
        let inherited = format!(
            "exec 3<>/dev/tcp/127.0.0.1/{}; unshare --user {map} /usr/bin/perl -e '{hide} $| = 1; print \"hidden\\n\"; \
             sleep 60' & echo; read; read",
            proxy.port()
        );
        drop(workload);
        let mut workload = Workload::bash(&inherited);
        let (stream, client) = proxy.accept();
        while workload.hear() != "hidden" {}
        let claim = attributor.first_owner(client, proxy.at).unwrap();
        let error = attributor.confirm(&claim, &stream).unwrap_err();
        assert!(matches!(error, AttributionError::Ambiguous { .. }), "{error}");
    }
    // In our own it cannot, and is named.
    let attributor = below();
    let mut hides = Workload::start(
        Command::new("/usr/bin/perl")
            .args(["-e", &format!("{hide} $0 = \"it's me\"; $| = 1; print \"hidden\\n\"; <STDIN>")]),
    );
    assert_eq!(hides.hear(), "hidden");
    let (_workload, stream, client) = connects(Path::new("/bin/bash"), &proxy);
    let claim = attributor.first_owner(client, proxy.at).unwrap();
    let error = attributor.confirm(&claim, &stream).unwrap_err();
    assert!(matches!(error, AttributionError::Unreadable { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&hides.pid().to_string()) && text.contains("(\"it's me\")"), "{text}");
    // The control: without it, the rest is read.
    drop(hides);
    attributor.confirm(&claim, &stream).unwrap();
}
