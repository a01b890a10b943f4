//! Every refusal with its control: the same call, in a child without the filter, answers something else.

use nix::errno::Errno;
use nix::libc::{self, c_long};

use super::rules::{GROUPS, Test};
use super::*;
use crate::sys::child;
use crate::sys::in_tests::call;

const NONE: [usize; 6] = [0; 6];

/// Of a refusal that asks for no argument.
const NOTHING_ELSE: &[Test] = &[];

/// The way to packet sockets before AF_PACKET; the kernel still takes it.
const SOCK_PACKET: i32 = 10;

/// What `number` answers in a child: 0, or the error.
fn answer(profile: Option<Profile>, number: c_long, arguments: [usize; 6]) -> Option<i32> {
    let act = || {
        if let Some(profile) = profile {
            Filter::compile(profile, Sockets::All).unwrap().install().unwrap();
        }
        let code = call(number, arguments).map_or_else(|error| error as i32, |_| 0);
        code.to_ne_bytes().to_vec()
    };
    // A child that the call ended or replaced gives no answer.
    child::run(act).ok().map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap()))
}

fn refused(profile: Profile, name: &str, number: c_long, arguments: [usize; 6], with: Errno) {
    assert_eq!(answer(Some(profile), number, arguments), Some(with as i32), "{name} under {profile:?}");
    assert_ne!(answer(None, number, arguments), Some(with as i32), "control: {name} without the filter");
}

fn passes(profile: Profile, name: &str, number: c_long, arguments: [usize; 6]) {
    let (with, without) = (answer(Some(profile), number, arguments), answer(None, number, arguments));
    assert_eq!(with, without, "{name} under {profile:?} answers as without a filter");
    assert!(with != Some(libc::EPERM) && with != Some(libc::ENOSYS), "{name} under {profile:?}");
}

/// Arguments with which a call is harmless to a root that has no filter: bad pointers, descriptors and numbers.
fn harmless(number: c_long) -> [usize; 6] {
    const BAD: usize = usize::MAX;
    match number {
        // A reboot wants magic numbers, a fork needs a stack to go wrong with.
        libc::SYS_reboot => [1, 2, 3, 0, 0, 0],
        libc::SYS_setns | libc::SYS_syslog | libc::SYS_pidfd_getfd | libc::SYS_pidfd_send_signal => [BAD; 6],
        libc::SYS_ptrace => [BAD, 0, 0, 0, 0, 0],
        libc::SYS_personality => [0xffff_ffff, 0, 0, 0, 0, 0],
        libc::SYS_acct => [1, 0, 0, 0, 0, 0],
        libc::SYS_memfd_create | libc::SYS_chroot | libc::SYS_swapon | libc::SYS_swapoff => [1, BAD, 0, 0, 0, 0],
        libc::SYS_sethostname | libc::SYS_setdomainname => [1, 1, 0, 0, 0, 0],
        // A length of more than a host name may have.
        _ => [1, BAD, BAD, BAD, BAD, BAD],
    }
}

#[test]
fn limits_are_each_process_s_own() {
    let profile = Profile::Baseline;
    let asked = |pid: usize| [pid, libc::RLIMIT_NOFILE as usize, 0, 0, 0, 0];
    refused(profile, "limits of process 1", libc::SYS_prlimit64, asked(1), Errno::EPERM);
    passes(profile, "one's own limits", libc::SYS_prlimit64, asked(0));
}

#[test]
fn the_processor_s_share_is_set_of_threads_and_not_of_process_1() {
    const BAD: usize = usize::MAX;
    const IDLE: usize = libc::SCHED_IDLE as usize;
    let profile = Profile::Baseline;
    // Neither with the filter nor without does any of these change something: pointers and classes are no good.
    let of = |who: usize| {
        [
            ("affinity", libc::SYS_sched_setaffinity, [who, 8, BAD, 0, 0, 0]),
            ("class", libc::SYS_sched_setscheduler, [who, IDLE, BAD, 0, 0, 0]),
            ("parameters", libc::SYS_sched_setparam, [who, BAD, 0, 0, 0, 0]),
            ("attributes", libc::SYS_sched_setattr, [who, BAD, 0, 0, 0, 0]),
            ("place before the disk", libc::SYS_ioprio_set, [1, who, BAD, 0, 0, 0]),
        ]
    };
    for (name, number, arguments) in of(1) {
        refused(profile, name, number, arguments, Errno::EPERM);
    }
    let some_thread = usize::try_from(std::process::id()).unwrap();
    for (name, number, arguments) in of(0).into_iter().chain(of(some_thread)) {
        passes(profile, name, number, arguments);
    }
    // A user without processes, and a process that cannot be: numbers end below that.
    let (nobody, none) = (4_000_000_000, 0x7fff_ffff);
    refused(profile, "priority of process 1", libc::SYS_setpriority, [0, 1, 0, 0, 0, 0], Errno::EPERM);
    refused(profile, "priority of a user", libc::SYS_setpriority, [2, nobody, 0, 0, 0, 0], Errno::EPERM);
    refused(profile, "a user before the disk", libc::SYS_ioprio_set, [3, nobody, 0x4000, 0, 0, 0], Errno::EPERM);
    for arguments in [[0, 0, 0, 0, 0, 0], [0, none, 0, 0, 0, 0], [1, none, 0, 0, 0, 0]] {
        passes(profile, "priority of one's own", libc::SYS_setpriority, arguments);
    }
}

#[test]
fn every_call_that_a_profile_refuses_whatever_its_arguments_is_refused() {
    for profile in [Profile::Baseline, Profile::Strict, Profile::Gpu] {
        for group in
            GROUPS.iter().filter(|group| group.profiles.contains(&profile) && group.when.contains(&NOTHING_ELSE))
        {
            let errno = match group.answer {
                Answer::NotPermitted => Errno::EPERM,
                Answer::NotImplemented => Errno::ENOSYS,
            };
            for &number in group.calls {
                let arguments = harmless(number);
                assert_eq!(
                    answer(Some(profile), number, arguments),
                    Some(errno as i32),
                    "call {number}: {}",
                    group.reason
                );
                // vhangup takes no arguments and would work; the kernel may be without the others.
                let control = [libc::SYS_vhangup, libc::SYS_kexec_file_load, libc::SYS_kexec_load, libc::SYS_syslog];
                if !control.contains(&number) {
                    let without = answer(None, number, arguments);
                    let absent = without == Some(libc::ENOSYS) || without == Some(libc::EPERM);
                    assert!(!absent || KERNEL_MAY_LACK.contains(&number), "control: call {number} answers {without:?}");
                }
            }
        }
    }
}

/// Calls that a kernel may have been built without, or has gained lately.
const KERNEL_MAY_LACK: &[c_long] = &[
    467,
    470,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_memfd_secret,
    libc::SYS_fanotify_init,
    libc::SYS_perf_event_open,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_request_key,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_userfaultfd,
];

#[test]
fn namespaces_are_refused_and_threads_and_processes_are_not() {
    let flags = [
        libc::CLONE_NEWNS,
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWUTS,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWNET,
        0x80,
    ];
    for flag in flags {
        let arguments = [flag as usize, 0, 0, 0, 0, 0];
        refused(Profile::Baseline, "unshare", libc::SYS_unshare, arguments, Errno::EPERM);
        if flag != 0x80 {
            let with_signal = [flag as usize | libc::SIGCHLD as usize, 0, 0, 0, 0, 0];
            assert_eq!(answer(Some(Profile::Baseline), libc::SYS_clone, with_signal), Some(libc::EPERM), "{flag:#x}");
        }
    }
    passes(Profile::Baseline, "unshare of files", libc::SYS_unshare, [libc::CLONE_FILES as usize, 0, 0, 0, 0, 0]);
    let works = || {
        Filter::compile(Profile::Strict, Sockets::All).unwrap().install().unwrap();
        let thread = std::thread::spawn(|| 7_u8).join().unwrap();
        let process = child::run(|| vec![8]).unwrap();
        [vec![thread], process].concat()
    };
    assert_eq!(child::run(works).unwrap(), [7, 8]);
}

#[test]
fn only_unix_internet_and_route_sockets_can_be_made() {
    let socket = |domain: i32, kind: i32, protocol: i32| [domain as usize, kind as usize, protocol as usize, 0, 0, 0];
    let (stream, datagram, raw) = (libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW);
    for (domain, kind, protocol) in [
        (libc::AF_UNIX, stream, 0),
        (libc::AF_UNIX, libc::SOCK_SEQPACKET, 0),
        (libc::AF_INET, stream | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0),
        (libc::AF_INET, stream, libc::IPPROTO_TCP),
        (libc::AF_INET, datagram, libc::IPPROTO_UDP),
        (libc::AF_INET6, datagram, 0),
        (libc::AF_NETLINK, raw, libc::NETLINK_ROUTE),
    ] {
        passes(Profile::Strict, "socket", libc::SYS_socket, socket(domain, kind, protocol));
    }
    for (domain, kind, protocol) in [
        (libc::AF_INET, raw, libc::IPPROTO_ICMP),
        (libc::AF_INET, raw | libc::SOCK_CLOEXEC, libc::IPPROTO_TCP),
        (libc::AF_INET6, raw, libc::IPPROTO_ICMPV6),
        (libc::AF_INET, SOCK_PACKET, 0x0003),
        (libc::AF_PACKET, raw, 0),
        (libc::AF_PACKET, datagram, 0),
        (libc::AF_NETLINK, raw, libc::NETLINK_SOCK_DIAG),
        (libc::AF_NETLINK, raw, libc::NETLINK_NETFILTER),
        (libc::AF_NETLINK, raw, libc::NETLINK_AUDIT),
        (libc::AF_UNSPEC, stream, 0),
    ] {
        refused(Profile::Baseline, "socket", libc::SYS_socket, socket(domain, kind, protocol), Errno::EPERM);
    }
    // Families that this kernel may lack: refused before it can say so.
    for domain in (3..=9).chain(11..=15).chain(17..=50).chain([-1, i32::MAX]) {
        let arguments = socket(domain, datagram, 0);
        assert_eq!(answer(Some(Profile::Baseline), libc::SYS_socket, arguments), Some(libc::EPERM), "family {domain}");
    }
    for (domain, kind, protocol) in [
        (libc::AF_INET, datagram, libc::IPPROTO_ICMP),
        (libc::AF_INET6, datagram, libc::IPPROTO_ICMPV6),
        (libc::AF_INET, stream, libc::IPPROTO_SCTP),
        (libc::AF_INET, stream, libc::IPPROTO_MPTCP),
        (libc::AF_INET, datagram, libc::IPPROTO_UDPLITE),
        (libc::AF_INET, libc::SOCK_SEQPACKET, libc::IPPROTO_SCTP),
        (libc::AF_INET, libc::SOCK_DCCP, 0),
    ] {
        let arguments = socket(domain, kind, protocol);
        assert_eq!(answer(Some(Profile::Baseline), libc::SYS_socket, arguments), Some(libc::EPERM), "{protocol}");
    }
}

#[test]
fn bits_above_an_int_do_not_dodge_a_comparison() {
    let high = 1_usize << 32;
    let packet = [high | libc::AF_PACKET as usize, libc::SOCK_RAW as usize, 0, 0, 0, 0];
    refused(Profile::Baseline, "socket", libc::SYS_socket, packet, Errno::EPERM);
    for request in [0x5412, 0x541C] {
        refused(Profile::Baseline, "ioctl", libc::SYS_ioctl, [0, high | request, 0, 0, 0, 0], Errno::EPERM);
        refused(Profile::Baseline, "ioctl", libc::SYS_ioctl, [0, request, 0, 0, 0, 0], Errno::EPERM);
    }
}

#[test]
fn memory_files_are_made_but_not_executed_in_place() {
    let empty_path = [usize::MAX, c"".as_ptr() as usize, 0, 0, libc::AT_EMPTY_PATH as usize, 0];
    refused(Profile::Baseline, "execveat", libc::SYS_execveat, empty_path, Errno::EPERM);
    passes(
        Profile::Baseline,
        "execveat of a path",
        libc::SYS_execveat,
        [usize::MAX, c"x".as_ptr() as usize, 0, 0, 0, 0],
    );
    let memfd = [c"x".as_ptr() as usize, 0, 0, 0, 0, 0];
    passes(Profile::Baseline, "memfd_create", libc::SYS_memfd_create, memfd);
    passes(Profile::Gpu, "memfd_create", libc::SYS_memfd_create, memfd);
    refused(Profile::Strict, "memfd_create", libc::SYS_memfd_create, memfd, Errno::EPERM);
}

#[test]
fn strict_takes_more_and_gpu_less() {
    let pid = std::process::id() as usize;
    passes(Profile::Baseline, "pidfd_open", libc::SYS_pidfd_open, [pid, 0, 0, 0, 0, 0]);
    refused(Profile::Strict, "pidfd_open", libc::SYS_pidfd_open, [pid, 0, 0, 0, 0, 0], Errno::EPERM);
    let filter = [libc::PR_SET_SECCOMP as usize, 99, 0, 0, 0, 0];
    passes(Profile::Baseline, "prctl(PR_SET_SECCOMP)", libc::SYS_prctl, filter);
    refused(Profile::Strict, "prctl(PR_SET_SECCOMP)", libc::SYS_prctl, filter, Errno::EPERM);
    passes(Profile::Strict, "prctl", libc::SYS_prctl, [libc::PR_GET_DUMPABLE as usize, 0, 0, 0, 0, 0]);
    let compare = |kind| [pid, pid, kind, 0, 1, 0];
    let with = |profile, kind| answer(Some(profile), libc::SYS_kcmp, compare(kind));
    assert_eq!(with(Profile::Baseline, 0), Some(libc::EPERM));
    assert_ne!(with(Profile::Gpu, 0), Some(libc::EPERM));
    assert_eq!(with(Profile::Gpu, 1), Some(libc::EPERM));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn x32_numbers_do_not_exist() {
    const X32: c_long = 1 << 30;
    // Without a filter a kernel without x32 answers the same, so the control is a call that the filter lets through.
    assert_eq!(answer(Some(Profile::Baseline), X32 | libc::SYS_ptrace, NONE), Some(libc::ENOSYS));
    assert_eq!(answer(Some(Profile::Baseline), X32 | libc::SYS_getpid, NONE), Some(libc::ENOSYS));
    assert_eq!(answer(Some(Profile::Baseline), libc::SYS_getpid, NONE), Some(0), "control");
}

#[test]
fn compiling_takes_well_below_a_millisecond() {
    let started = std::time::Instant::now();
    const ROUNDS: u32 = 50;
    for _ in 0..ROUNDS {
        Filter::compile(Profile::Strict, Sockets::All).unwrap();
    }
    let each = started.elapsed() / ROUNDS;
    eprintln!("compile: {each:?}, {} instructions", {
        let filter = Filter::compile(Profile::Strict, Sockets::All).unwrap();
        filter.program.len()
    });
    assert!(each < std::time::Duration::from_millis(2), "{each:?}");
}

#[test]
fn profiles_are_named() {
    assert_eq!("gpu".parse::<Profile>().unwrap(), Profile::Gpu);
    let message = "Gpu".parse::<Profile>().unwrap_err().to_string();
    assert!(message.contains("baseline, strict or gpu"), "{message}");
}

#[test]
fn where_streams_alone_are_meant_there_are_no_datagrams() {
    let answer = |sockets: Sockets, domain: i32, kind: i32| {
        let act = move || {
            Filter::compile(Profile::Baseline, sockets).unwrap().install().unwrap();
            let arguments = [domain as usize, kind as usize, 0, 0, 0, 0];
            call(libc::SYS_socket, arguments).map_or_else(|error| error as i32, |_| 0).to_ne_bytes().to_vec()
        };
        i32::from_ne_bytes(child::run(act).unwrap().try_into().unwrap())
    };
    for domain in [libc::AF_INET, libc::AF_INET6] {
        for kind in [libc::SOCK_DGRAM, libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC] {
            assert_eq!(answer(Sockets::Streams, domain, kind), libc::EPERM);
            assert_eq!(answer(Sockets::All, domain, kind), 0, "control");
        }
        assert_eq!(answer(Sockets::Streams, domain, libc::SOCK_STREAM | libc::SOCK_CLOEXEC), 0);
        assert_eq!(answer(Sockets::Streams, domain, libc::SOCK_RAW), libc::EPERM);
    }
    assert_eq!(answer(Sockets::Streams, libc::AF_UNIX, libc::SOCK_DGRAM), 0);
    assert_eq!(answer(Sockets::Streams, libc::AF_NETLINK, libc::SOCK_RAW), 0);
}
