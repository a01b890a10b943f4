//! What the workload may not ask of the kernel, as data, each group with its reason. Everything else is allowed.
//!
//! The list is for what a *confined, unprivileged* process could still use to get out, to act as another program, or
//! to reach kernel code that has no business in a sandbox. Calls that need a capability are listed where a user
//! namespace or an old kernel bug would otherwise turn them into a way out.

use nix::libc::{self, c_long};

use super::{Answer, Profile};

/// A condition on one argument of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Low 32 bits equal: what the kernel reads of an `int`, so that bits above cannot dodge the comparison.
    Is(u8, u32),
    /// Low 32 bits differ.
    Not(u8, u32),
    /// Low 32 bits above.
    Above(u8, u32),
    /// Low 32 bits below.
    Below(u8, u32),
    /// At least one of these bits of the low 32 is set.
    Any(u8, u32),
    /// All these bits of the low 32 are set.
    Has(u8, u32),
    /// The bits of the low 32 that are under a mask have this value.
    Under(u8, u32, u32),
}

/// Calls refused for one reason.
#[derive(Debug)]
pub(super) struct Group {
    /// Why; shown by `doctor`.
    pub reason: &'static str,
    /// What the caller is told.
    pub answer: Answer,
    /// Profiles that refuse it.
    pub profiles: &'static [Profile],
    /// Calls.
    pub calls: &'static [c_long],
    /// Alternatives, each a conjunction; an empty one refuses the call whatever its arguments.
    pub when: &'static [&'static [Test]],
}

const ALL: &[Profile] = &[Profile::Baseline, Profile::Strict, Profile::Gpu];
const STRICT: &[Profile] = &[Profile::Strict];
const ALWAYS: &[&[Test]] = &[&[]];

// Flags of clone(2) and unshare(2) that make a namespace. CLONE_NEWTIME shares its bit with clone's exit signal, so it
// exists for unshare alone.
const NEW_NAMESPACE: &[&[Test]] = &[&[Test::Any(
    0,
    (libc::CLONE_NEWNS
        | libc::CLONE_NEWCGROUP
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUSER
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET) as u32,
)]];
const CLONE_NEWTIME: u32 = 0x80;

const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;

const UNIX: u32 = libc::AF_UNIX as u32;
const INET: u32 = libc::AF_INET as u32;
const INET6: u32 = libc::AF_INET6 as u32;
const NETLINK: u32 = libc::AF_NETLINK as u32;
const TCP: u32 = libc::IPPROTO_TCP as u32;
const UDP: u32 = libc::IPPROTO_UDP as u32;

/// `SOCK_TYPE_MASK` in the kernel: the type proper, below SOCK_NONBLOCK and SOCK_CLOEXEC.
const TYPE: u32 = 0xf;
const RAW: u32 = libc::SOCK_RAW as u32;
const DATAGRAM: u32 = libc::SOCK_DGRAM as u32;

/// Of setpriority(2), whose type C libraries disagree on.
const PRIO_USER: u32 = 2;

/// Of ioprio_set(2).
const IOPRIO_WHO_USER: u32 = 3;

/// `KCMP_FILE` of kcmp(2).
const KCMP_FILE: u32 = 0;

// Numbers that libc does not name for every architecture; the tables are the same from 403 on.
const SYS_OPEN_TREE_ATTR: c_long = 467;
const SYS_LISTNS: c_long = 470;

/// The table.
pub(super) const GROUPS: &[Group] = &[
    Group {
        reason: "clone3 passes its flags through memory, where no filter sees them; C libraries fall back to clone",
        answer: Answer::NotImplemented,
        profiles: ALL,
        calls: &[libc::SYS_clone3],
        when: ALWAYS,
    },
    Group {
        reason: "io_uring opens sockets and files without the system calls that this filter sees",
        answer: Answer::NotImplemented,
        profiles: ALL,
        calls: &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register],
        when: ALWAYS,
    },
    Group {
        reason: "a new user namespace grants every capability inside, and with it the kernel code behind them",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_clone, libc::SYS_unshare],
        when: NEW_NAMESPACE,
    },
    Group {
        reason: "two processes of one descriptor table: a socket could be opened by one program in the other's place. \
                 Threads share theirs as ever, and vfork and posix_spawn do not share",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_clone],
        when: &[&[Test::Under(0, (libc::CLONE_FILES | libc::CLONE_THREAD) as u32, libc::CLONE_FILES as u32)]],
    },
    Group {
        reason: "a new time namespace, for the same reason",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_unshare],
        when: &[&[Test::Has(0, CLONE_NEWTIME)]],
    },
    Group {
        reason: "entering or listing other namespaces, and changing what the root directory is",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_setns, libc::SYS_chroot, libc::SYS_pivot_root, SYS_LISTNS],
        when: ALWAYS,
    },
    Group {
        reason: "mounting would uncover what the private mount namespace hides",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_fsopen,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fspick,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            SYS_OPEN_TREE_ATTR,
            libc::SYS_mount_setattr,
        ],
        when: ALWAYS,
    },
    Group {
        reason: "one program would act as another: egress is granted by program",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev,
            libc::SYS_process_madvise,
            libc::SYS_pidfd_getfd,
        ],
        when: ALWAYS,
    },
    Group {
        reason: "tells kernel addresses apart, which helps exploits",
        answer: Answer::NotPermitted,
        profiles: &[Profile::Baseline, Profile::Strict],
        calls: &[libc::SYS_kcmp],
        when: ALWAYS,
    },
    Group {
        reason: "the same; graphics and CUDA user space compares files with KCMP_FILE",
        answer: Answer::NotPermitted,
        profiles: &[Profile::Gpu],
        calls: &[libc::SYS_kcmp],
        when: &[&[Test::Not(2, KCMP_FILE)]],
    },
    Group {
        reason: "a file that is in no directory would be executed past the file system's rules",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_execveat],
        when: &[&[Test::Has(4, libc::AT_EMPTY_PATH as u32)]],
    },
    Group {
        reason: "a handle opens a file past every directory on its path",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_name_to_handle_at, libc::SYS_open_by_handle_at],
        when: ALWAYS,
    },
    Group {
        reason: "kernel keyrings are shared between containers of one user",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_keyctl, libc::SYS_add_key, libc::SYS_request_key],
        when: ALWAYS,
    },
    Group {
        reason: "kernel code with a long record of exploits and no use in a sandbox",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_bpf, libc::SYS_perf_event_open, libc::SYS_userfaultfd],
        when: ALWAYS,
    },
    Group {
        reason: "administration of the machine",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[
            libc::SYS_init_module,
            libc::SYS_finit_module,
            libc::SYS_delete_module,
            libc::SYS_kexec_load,
            libc::SYS_kexec_file_load,
            libc::SYS_reboot,
            libc::SYS_swapon,
            libc::SYS_swapoff,
            libc::SYS_acct,
            libc::SYS_quotactl,
            libc::SYS_quotactl_fd,
            libc::SYS_settimeofday,
            libc::SYS_clock_settime,
            libc::SYS_sethostname,
            libc::SYS_setdomainname,
            libc::SYS_vhangup,
            libc::SYS_syslog,
        ],
        when: ALWAYS,
    },
    #[cfg(target_arch = "x86_64")]
    Group {
        reason: "direct access to ports",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_iopl, libc::SYS_ioperm],
        when: ALWAYS,
    },
    Group {
        reason: "socket families other than UNIX, IPv4, IPv6 and netlink: AF_PACKET, AF_VSOCK, AF_ALG, AF_XDP and some \
                 forty more reach past the network namespace or into rarely used kernel code",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_socket],
        when: &[
            &[Test::Below(0, UNIX)],
            &[Test::Above(0, INET), Test::Below(0, INET6)],
            &[Test::Above(0, INET6), Test::Below(0, NETLINK)],
            &[Test::Above(0, NETLINK)],
        ],
    },
    Group {
        reason: "pairs of sockets other than UNIX ones, which load protocols that nobody needs",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_socketpair],
        when: &[&[Test::Not(0, UNIX)]],
    },
    Group {
        reason: "of netlink only NETLINK_ROUTE, which tools ask for interfaces and addresses",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_socket],
        when: &[&[Test::Is(0, NETLINK), Test::Not(2, libc::NETLINK_ROUTE as u32)]],
    },
    Group {
        reason: "of IPv4 and IPv6 only stream and datagram: no raw and packet sockets",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_socket],
        when: &[
            // Types 0, 3 and 4 to 15.
            &[Test::Is(0, INET), Test::Under(1, TYPE, 0)],
            &[Test::Is(0, INET), Test::Under(1, TYPE, RAW)],
            &[Test::Is(0, INET), Test::Under(1, 0b1100, 0b0100)],
            &[Test::Is(0, INET), Test::Has(1, 0b1000)],
            &[Test::Is(0, INET6), Test::Under(1, TYPE, 0)],
            &[Test::Is(0, INET6), Test::Under(1, TYPE, RAW)],
            &[Test::Is(0, INET6), Test::Under(1, 0b1100, 0b0100)],
            &[Test::Is(0, INET6), Test::Has(1, 0b1000)],
        ],
    },
    Group {
        reason: "of stream and datagram only TCP and UDP: no ping sockets, SCTP, UDP-Lite, nor MPTCP, whose owner socket \
                 diagnosis does not name",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_socket],
        when: &[
            &[Test::Is(0, INET), Test::Not(2, 0), Test::Not(2, TCP), Test::Not(2, UDP)],
            &[Test::Is(0, INET6), Test::Not(2, 0), Test::Not(2, TCP), Test::Not(2, UDP)],
        ],
    },
    Group {
        reason: "limits of other processes: those of the sandbox's init and supervisor, which may have the same user, would keep \
                 them from ending it",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_prlimit64],
        when: &[&[Test::Not(0, 0)]],
    },
    Group {
        reason: "how the processor is shared, of process 1, which is the sandbox's init or supervisor and may have the same user: \
                 what runs last, or on one busy processor, neither forwards nor ends anything. All other numbers pass, since \
                 programs name their own threads by them",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[
            libc::SYS_sched_setaffinity,
            libc::SYS_sched_setscheduler,
            libc::SYS_sched_setparam,
            libc::SYS_sched_setattr,
        ],
        when: &[&[Test::Is(0, 1)]],
    },
    Group {
        reason: "the same, and of all processes of a user at once",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_setpriority],
        when: &[&[Test::Is(1, 1)], &[Test::Is(0, PRIO_USER)]],
    },
    Group {
        reason: "the same of their place before the disk",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_ioprio_set],
        when: &[&[Test::Is(1, 1)], &[Test::Is(0, IOPRIO_WHO_USER)]],
    },
    Group {
        reason: "typing into the terminal that the workload was given, for the shell outside to run",
        answer: Answer::NotPermitted,
        profiles: ALL,
        calls: &[libc::SYS_ioctl],
        when: &[&[Test::Is(1, TIOCSTI)], &[Test::Is(1, TIOCLINUX)]],
    },
    // seccomp(2) itself stays allowed but in `strict`: a further filter can only take more away, and browsers and
    // language runtimes bring their own.
    Group {
        reason: "strict: files in memory, filters of its own, pidfds and execution domains are for programs that ask",
        answer: Answer::NotPermitted,
        profiles: STRICT,
        calls: &[
            libc::SYS_memfd_create,
            libc::SYS_memfd_secret,
            libc::SYS_personality,
            libc::SYS_seccomp,
            libc::SYS_pidfd_open,
            libc::SYS_pidfd_send_signal,
            libc::SYS_process_mrelease,
            libc::SYS_fanotify_init,
        ],
        when: ALWAYS,
    },
    Group {
        reason: "strict: the older call for a filter of its own",
        answer: Answer::NotPermitted,
        profiles: STRICT,
        calls: &[libc::SYS_prctl],
        when: &[&[Test::Is(0, libc::PR_SET_SECCOMP as u32)]],
    },
    #[cfg(target_arch = "x86_64")]
    Group {
        reason: "strict: 16-bit segments, for emulators of the eighties",
        answer: Answer::NotPermitted,
        profiles: STRICT,
        calls: &[libc::SYS_modify_ldt],
        when: ALWAYS,
    },
];

/// What [`Sockets::Streams`](super::Sockets::Streams) adds.
pub(super) const STREAMS_ALONE: &[Group] = &[Group {
    reason: "of IPv4 and IPv6 only streams: the workload's one way out is the proxy, which takes connections, and datagrams \
             would leave by whatever the cluster's NetworkPolicy forgot",
    answer: Answer::NotPermitted,
    profiles: ALL,
    calls: &[libc::SYS_socket],
    when: &[
        &[Test::Is(0, INET), Test::Under(1, TYPE, DATAGRAM)],
        &[Test::Is(0, INET6), Test::Under(1, TYPE, DATAGRAM)],
    ],
}];
