//! Why a kernel refuses a namespace, found out from what it says about itself, and what helps.

use std::fmt;
use std::fs;
use std::io;

use nix::errno::Errno;

/// Why something cannot be had, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// The cause, with what the kernel answered.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.cause, self.remedy)
    }
}

impl Obstacle {
    /// An obstacle from its two sentences.
    pub(super) fn new(cause: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { cause: cause.into(), remedy: remedy.into() }
    }
}

const RUN_AS_ROOT: &str = "or run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN";

/// Of creating a user namespace.
pub fn of_user_namespace(errno: Errno) -> Obstacle {
    match errno {
        // clone(2): ENOSPC since Linux 4.9, EUSERS before.
        Errno::ENOSPC | Errno::EUSERS => {
            let limit = setting("user/max_user_namespaces").unwrap_or_else(|| "reached".to_string());
            Obstacle::new(
                format!("the limit of user namespaces is {limit} (user.max_user_namespaces): {errno}"),
                format!("raise it with sysctl, {RUN_AS_ROOT}"),
            )
        }
        Errno::EINVAL => Obstacle::new(
            format!("the kernel has no user namespaces (CONFIG_USER_NS), or this process has several threads: {errno}"),
            "run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN",
        ),
        _ => refused(errno, "user namespaces"),
    }
}

/// Of writing an id map. With Ubuntu's AppArmor restriction the namespace itself can be made, but is worth nothing.
pub fn of_id_map(error: &io::Error) -> Obstacle {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno @ (Errno::EPERM | Errno::EACCES)) => refused(errno, "user namespaces"),
        _ => Obstacle::new(error.to_string(), "/proc must be mounted and writable"),
    }
}

/// Of creating any other namespace, inside a new user namespace or not.
pub fn of_namespace(errno: Errno, user_namespace: bool) -> Obstacle {
    match errno {
        Errno::ENOSPC | Errno::EUSERS => {
            let limits: Vec<String> = ["net", "mnt", "ipc", "pid"]
                .into_iter()
                .filter_map(|kind| {
                    setting(&format!("user/max_{kind}_namespaces"))
                        .map(|limit| format!("user.max_{kind}_namespaces={limit}"))
                })
                .collect();
            Obstacle::new(format!("a limit of namespaces is reached ({}): {errno}", limits.join(", ")), "raise it with sysctl")
        }
        Errno::EINVAL => Obstacle::new(
            format!("the kernel lacks a kind of namespace (CONFIG_NET_NS, CONFIG_IPC_NS, CONFIG_PID_NS): {errno}"),
            "use a kernel that has them, or the proxy-pod topology, which needs none",
        ),
        Errno::EPERM if !user_namespace => Obstacle::new(
            format!("this process lacks CAP_SYS_ADMIN, or its seccomp filter forbids it: {errno}"),
            "grant the capability (and seccomp permission), run as an ordinary user with user namespaces, or use the \
             proxy-pod topology, which needs neither",
        ),
        _ => refused(errno, "capabilities inside user namespaces"),
    }
}

/// What forbids user namespaces to this process.
fn refused(errno: Errno, what: &str) -> Obstacle {
    if setting("kernel/unprivileged_userns_clone").as_deref() == Some("0") {
        return Obstacle::new(
            format!("kernel.unprivileged_userns_clone is 0: {errno}"),
            format!("sysctl -w kernel.unprivileged_userns_clone=1, {RUN_AS_ROOT}"),
        );
    }
    if setting("kernel/apparmor_restrict_unprivileged_userns").as_deref() == Some("1") {
        return Obstacle::new(
            format!("AppArmor restricts {what} (kernel.apparmor_restrict_unprivileged_userns is 1): {errno}"),
            format!(
                "install an AppArmor profile for this program that says `userns,`, \
                 sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, {RUN_AS_ROOT}"
            ),
        );
    }
    if filtered() {
        return Obstacle::new(
            format!("the seccomp filter of this process, usually a container runtime's default, forbids {what}: {errno}"),
            "run the container with a profile that allows unshare and mount, or use the proxy-pod topology",
        );
    }
    Obstacle::new(
        format!("the kernel or a security module refuses {what}, or this process is in a chroot: {errno}"),
        "see the kernel log (SELinux, a hardened kernel), or run as root with CAP_SYS_ADMIN and CAP_NET_ADMIN",
    )
}

fn setting(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/{name}")).ok().map(|value| value.trim().to_string())
}

/// Whether a seccomp filter is in force here (proc(5), `Seccomp:` of `/proc/PID/status`).
fn filtered() -> bool {
    const FILTER: &str = "2";
    fs::read_to_string("/proc/self/status")
        .is_ok_and(|status| status.lines().any(|line| line.strip_prefix("Seccomp:").is_some_and(|v| v.trim() == FILTER)))
}
