//! Promises 9.x: what a confined program can do to files, to the kernel and to its keeper. The attacks are those of
//! public reports on sandboxes of this kind; each is named for what it forbids.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::world::{Outcome, World};

/// Runs Python inside, as root started it and as an ordinary user did.
fn inside(world: &World, policy: Option<&std::path::Path>, script: &str) -> Vec<Outcome> {
    [world.run(), world.run().by_user()]
        .into_iter()
        .map(|run| {
            let run = match policy {
                Some(policy) => run.policy(policy),
                None => run,
            };
            run.command(["/usr/bin/python3", "-c", script]).output().expect(0)
        })
        .collect()
}

/// The same outside: the control.
fn outside(world: &World, script: &str) -> String {
    let output = world.machine_program("/usr/bin/python3").args(["-c", script]).output().expect("python3");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Prints the errno name of a raw system call, or `OK`.
const SYSCALL: &str = r#"
import ctypes, errno, os, platform
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return "OK" if result >= 0 else errno.errorcode[ctypes.get_errno()]
"#;

#[test]
fn files_that_the_policy_does_not_grant_are_closed_whatever_their_mode() {
    let world = World::new();
    let open = world.file("open", "secret");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).expect("chmod");
    let script = format!(
        "import os\np = {:?}\ndef t(name, act):\n  try: act(); print(name, 'OK')\n  except OSError as e: print(name, \
         e.strerror)\nt('read', lambda: open(p).read())\nt('write', lambda: open(p, 'w'))\nt('truncate', lambda: os.truncate(p, 0))\nt('list', \
         lambda: os.listdir(os.path.dirname(p)))\nt('link', lambda: os.link(p, '/tmp/linked'))\nt('root', lambda: open('/proc/self/root' + \
         p).read())\nt('make', lambda: open('/etc/made', 'w'))",
        open.display().to_string()
    );
    for outcome in inside(&world, None, &script) {
        assert_eq!(outcome.stdout.lines().count(), 7, "{outcome:?}");
        for line in outcome.stdout.lines() {
            assert!(!line.ends_with("OK"), "{line}");
        }
    }
    assert_eq!(fs::read_to_string(&open).expect("the file"), "secret");
    // Control: outside, and inside with the grant, the same acts succeed.
    assert!(outside(&world, &script).starts_with("read OK\nwrite OK\n"));
    let grant =
        world.file("grant.yaml", format!("version: 1\nfilesystem_policy: {{read_write: [{}]}}\n", open.display()));
    for outcome in inside(&world, Some(&grant), &script) {
        assert!(outcome.stdout.starts_with("read OK\nwrite OK\ntruncate OK\n"), "{outcome:?}");
    }
}

#[test]
fn system_calls_that_lead_out_are_refused() {
    let world = World::new();
    // name, number on x86-64, arguments, expected errno, and whether root outside can do it with those arguments.
    let script = format!(
        r#"{SYSCALL}
buffer = ctypes.create_string_buffer(256)
def fork_with(flags):
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(56), ctypes.c_long(flags | 17), 0, 0, 0, 0)
    if result == 0: os._exit(0)
    if result > 0: os.waitpid(result, 0)
    return "OK" if result > 0 else errno.errorcode[ctypes.get_errno()]
assert platform.machine() == "x86_64"
for name, act in {{
    "io_uring_setup": lambda: call(425, 1, buffer),
    "unshare_user": lambda: call(272, 0x10000000),
    "unshare_net": lambda: call(272, 0x40000000),
    "mount": lambda: call(165, b"none", b"/tmp", b"tmpfs", 0, 0),
    "open_tree": lambda: call(428, -100, b"/tmp", 1),
    "fsopen": lambda: call(430, b"tmpfs", 0),
    "keyctl": lambda: call(250, 0, -3, 0),
    "add_key": lambda: call(248, b"user", b"name", b"value", 5, -2),
    "bpf": lambda: call(321, 0, buffer, 120),
    "perf_event_open": lambda: call(298, buffer, 0, -1, -1, 0),
    "userfaultfd": lambda: call(323, 1),
    "clone_files": lambda: fork_with(0x400),
    "ptrace_traceme": lambda: call(101, 0, 0, 0, 0),
    "process_vm_readv": lambda: call(310, os.getpid(), buffer, 0, buffer, 0, 0),
    "pidfd_getfd": lambda: call(438, 0, 0, 0),
    "kcmp": lambda: call(312, os.getpid(), os.getpid(), 0, 0, 0),
    "name_to_handle_at": lambda: call(303, -100, b"/tmp", buffer, buffer, 0),
    "open_by_handle_at": lambda: call(304, 3, buffer, 0),
    "kexec_load": lambda: call(246, 0, 0, 0, 0),
    "init_module": lambda: call(175, buffer, 0, b""),
    "setns": lambda: call(308, 0, 0),
    "chroot": lambda: call(161, b"/tmp"),
    "socketpair_vsock": lambda: call(53, 40, 1, 0, buffer),
    "x32_getpid": lambda: call(0x40000000 + 39),
    "personality_32": lambda: call(135, 0x0008),
}}.items(): print(name, act())
"#
    );
    for outcome in inside(&world, None, &script) {
        for line in outcome.stdout.lines() {
            let (name, answer) = line.split_once(' ').expect("name answer");
            let expected: &[&str] = match name {
                "io_uring_setup" => &["ENOSYS"],
                "x32_getpid" => &["ENOSYS", "EPERM"],
                // The new mount calls may say either: a caller falls back or fails.
                "open_tree" | "fsopen" => &["EPERM", "ENOSYS"],
                // Harmless in the baseline profile; the strict one takes it away.
                "personality_32" => &["OK", "EPERM"],
                _ => &["EPERM"],
            };
            assert!(expected.contains(&answer), "{line}");
        }
        assert_eq!(outcome.stdout.lines().count(), 25, "{outcome:?}");
    }
    // Control: unconfined, some of the same succeed.
    let free = outside(&world, &script);
    for name in ["unshare_net", "keyctl", "kcmp", "ptrace_traceme", "clone_files"] {
        assert!(free.contains(&format!("{name} OK")), "{name}: {free}");
    }
}

#[test]
fn the_strict_profile_takes_more_away_and_the_baseline_leaves_what_runtimes_need() {
    let world = World::new();
    let script = format!("{SYSCALL}\nprint(call(319, b'm', 0), call(434, os.getpid(), 0), call(135, 0xffffffff))");
    let run = |profile: &str| {
        world.run().args(["--seccomp", profile]).command(["/usr/bin/python3", "-c", &script]).output().expect(0)
    };
    assert_eq!(run("baseline").stdout, "OK OK OK\n");
    assert_eq!(run("strict").stdout, "EPERM EPERM EPERM\n");
}

#[test]
fn only_families_that_agents_need_can_be_opened() {
    let world = World::new();
    let script = "
import socket, errno
for family in (1, 2, 10): socket.socket(family, socket.SOCK_STREAM).close()
socket.socket(16, socket.SOCK_RAW, 0).close()  # NETLINK_ROUTE: os.networkInterfaces() of Node
for family, kind, protocol in [(17, 3, 0), (16, 3, 12), (16, 3, 4), (38, 5, 0), (40, 1, 0), (31, 3, 0), (44, 3, 0), (41, 5, 0), (30, 1, 0), (2, 3, 255), (2, 3, 1), (2, 2, 1)]:
    try: socket.socket(family, kind, protocol); print(family, kind, protocol, 'OPENED')
    except OSError as e: print(family, kind, protocol, errno.errorcode[e.errno])
";
    for outcome in inside(&world, None, script) {
        assert!(!outcome.stdout.contains("OPENED"), "{}", outcome.stdout);
        assert_eq!(outcome.stdout.lines().count(), 12, "{outcome:?}");
    }
    assert!(outside(&world, script).contains("16 3 12 OPENED"), "the control opens nothing either");
}

#[test]
fn its_keeper_cannot_be_read_traced_or_killed() {
    let world = World::new();
    let script = "
import os, signal
for path in ('/proc/1/mem', '/proc/1/environ', '/proc/1/maps', '/proc/1/root', '/proc/1/cwd', '/proc/1/exe'):
    try:
        if os.path.islink(path): data = os.readlink(path)
        else: data = open(path, 'rb').read(100) if not path.endswith('mem') else open(path, 'r+b')
        print(path, 'READ' if data else 'empty')
    except OSError as e: print(path, e.strerror)
try: print('fds', os.listdir('/proc/1/fd'))
except OSError as e: print('fds', e.strerror)
for s in (signal.SIGKILL, signal.SIGSTOP):
    try: os.kill(1, s)
    except OSError: pass
print('pids', sorted(int(p) for p in os.listdir('/proc') if p.isdigit())[:2] == [1, os.getpid()] or os.listdir('/proc'))
import time; time.sleep(0.3); print('alive')
";
    for outcome in inside(&world, None, script) {
        assert!(!outcome.stdout.contains("READ"), "{}", outcome.stdout);
        assert!(!outcome.stdout.contains("fds ["), "{}", outcome.stdout);
        assert!(outcome.stdout.contains("pids True"), "{}", outcome.stdout);
        assert!(outcome.stdout.ends_with("alive\n"), "{}", outcome.stdout);
    }
}

#[test]
fn no_descriptor_of_the_supervisors_leaks() {
    let world = World::new();
    let script = "import os\nfor fd in sorted(int(f) for f in os.listdir('/proc/self/fd')):\n  try: print(fd, os.readlink(f'/proc/self/fd/{fd}'))\n  \
                  except OSError: pass";
    for outcome in inside(&world, None, script) {
        let open: Vec<&str> = outcome.stdout.lines().map(|line| line.split(' ').next().unwrap_or("")).collect();
        assert_eq!(open, ["0", "1", "2"], "{}", outcome.stdout);
    }
}

#[test]
fn a_core_is_never_written_and_signals_stay_inside() {
    let world = World::new();
    let script = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))";
    for outcome in inside(&world, None, script) {
        assert_eq!(outcome.stdout, "(0, 0)\n");
    }
}

#[test]
fn hard_requirement_starts_where_landlock_is_whole_and_what_is_enforced_is_said() {
    let world = World::new();
    let policy = world.file("hard.yaml", "version: 1\nlandlock: {compatibility: hard_requirement}\n");
    world.run().policy(policy).command(["/bin/true"]).output().expect(0);
}

#[test]
fn a_policy_that_the_workload_could_rewrite_is_refused() {
    let world = World::new();
    let directory = world.directory().join("writable");
    fs::create_dir(&directory).expect("mkdir");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).expect("chmod");
    let file = directory.join("policy.yaml");
    let text = format!("version: 1\nfilesystem_policy: {{read_write: [{}]}}\n", directory.display());
    fs::write(&file, &text).expect("write");
    for run in [world.run(), world.run().by_user()] {
        let outcome = run.policy(&file).command(["/bin/true"]).output().expect(125);
        assert!(
            outcome.stderr.contains("policy.yaml") && outcome.stderr.contains("--allow-writable-policy"),
            "{}",
            outcome.stderr
        );
    }
    // Control: overridden, or out of the workload's reach, it starts.
    world.run().policy(&file).arg("--allow-writable-policy").command(["/bin/true"]).output().expect(0);
    let safe = world.file("safe.yaml", text);
    world.run().policy(&safe).command(["/bin/true"]).output().expect(0);
}

#[test]
fn limits_are_the_workloads() {
    let world = World::new();
    let outcome =
        world.run().args(["--limit", "nofile=77", "--limit", "as=4G"]).shell("ulimit -n; ulimit -v").output().expect(0);
    assert_eq!(outcome.stdout, "77\n4194304\n");
    let wrong = world.run().args(["--limit", "nofiles=1"]).command(["/bin/true"]).output().expect(2);
    assert!(wrong.stderr.contains("nofile"), "{}", wrong.stderr);
}

#[test]
fn a_network_socket_as_a_standard_stream_is_refused() {
    let world = World::new();
    let listener = world.listen(crate::world::ORIGIN_V4, 80);
    let socket = world.in_machine(|| std::net::TcpStream::connect((crate::world::ORIGIN_V4, 80)).expect("connect"));
    let mut command = world.run().command(["/bin/true"]).build();
    let output = command.stdin(std::os::fd::OwnedFd::from(socket)).output().expect("run");
    assert_eq!(output.status.code(), Some(125));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard input"), "{output:?}");
    // Control: a connected unix stream is somebody's chosen peer.
    let (ours, _theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
    let status =
        world.run().command(["/bin/true"]).build().stdin(std::os::fd::OwnedFd::from(ours)).status().expect("run");
    assert_eq!(status.code(), Some(0));
    drop(listener);
}
