//! What this kernel gives this user, and which topologies that is enough for.

use std::fs;

use super::{Check, Status};
use crate::confine::{landlock, seccomp};
use crate::netns::probe::{Capabilities, Outcome};

/// Asks for everything that a sandbox is made of. Forks; the caller must have one thread.
#[must_use]
pub fn kernel(privileged: bool) -> Vec<Check> {
    let found = crate::netns::probe::probe(!privileged);
    let mut checks = vec![landlock_check(), seccomp_check()];
    checks.push(if privileged {
        optional("user namespaces", "for `run` as an ordinary user", &found.user_namespace)
    } else {
        needed("user namespaces", "with this user's ids mapped", &found.user_namespace)
    });
    checks.push(needed("network namespaces", "of loopback alone", &found.network_namespace));
    checks.push(needed("mount namespaces", "in which sockets and secrets can be covered", &found.mount_namespace));
    checks.push(optional("PID namespaces", "with a /proc of their own", &found.pid_namespace));
    checks.push(needed("nf_tables", "raised by netlink and read back", &found.fence));
    checks.push(optional("NFLOG", "reports attempts to go around the proxy", &found.reports));
    checks.push(needed("sock_diag", "tells whose connection it is", &found.socket_diagnosis));
    checks.push(cgroup_check());
    checks.extend(topologies(privileged, &found));
    checks
}

/// Which topologies can run on this machine, by what each one needs of the kernel (design §1).
fn topologies(privileged: bool, found: &Capabilities) -> [Check; 4] {
    let combined = [&found.network_namespace, &found.mount_namespace, &found.fence, &found.socket_diagnosis];
    let fenced = |name: &str| match (&found.fence, privileged) {
        (Ok(()), true) => Check::ok(name, "the kernel can hold the pod fence"),
        (Ok(()), false) => Check::failed(
            name,
            Status::Missing,
            "the fence is put up by root with NET_ADMIN, which this user is not",
            Some("run doctor where the pod's init container or the CNI plugin would run".to_owned()),
        ),
        (Err(obstacle), _) => Check::failed(
            name,
            Status::Missing,
            obstacle.cause.clone(),
            Some(format!("{}, or use proxy-pod, which needs nothing of the kernel", obstacle.remedy)),
        ),
    };
    [
        match combined.iter().find_map(|outcome| outcome.as_ref().err()) {
            None => Check::ok("topology combined", "everything it needs is here"),
            Some(obstacle) => Check::failed(
                "topology combined",
                Status::Broken,
                obstacle.cause.clone(),
                Some(obstacle.remedy.clone()),
            ),
        },
        fenced("topology sidecar"),
        fenced("topology cni-sidecar"),
        Check::ok(
            "topology proxy-pod",
            "needs nothing of this kernel but Landlock and seccomp in the agent's container",
        ),
    ]
}

/// Something that a sandbox cannot be made without.
fn needed(name: &str, what_for: &str, outcome: &Outcome) -> Check {
    by(name, what_for, outcome, Status::Broken)
}

/// Something that a sandbox is weaker or blinder without.
fn optional(name: &str, what_for: &str, outcome: &Outcome) -> Check {
    by(name, what_for, outcome, Status::Missing)
}

fn by(name: &str, what_for: &str, outcome: &Outcome, otherwise: Status) -> Check {
    match outcome {
        Ok(()) => Check::ok(name, what_for),
        Err(obstacle) => Check::failed(name, otherwise, obstacle.cause.clone(), Some(obstacle.remedy.clone())),
    }
}

fn landlock_check() -> Check {
    let probe = landlock::probe();
    let status = match probe.status {
        landlock::Status::Fully => {
            return Check::ok("Landlock", format!("ABI {}, all of a policy is enforced", probe.abi));
        }
        landlock::Status::Partially => Status::Missing,
        landlock::Status::Not => Status::Broken,
    };
    Check::failed(
        "Landlock",
        status,
        format!("ABI {}: {}", probe.abi, probe.reason.unwrap_or_default()),
        Some(
            "a kernel from 6.12 on with `landlock` among its LSMs (lsm= on its command line) enforces everything"
                .to_owned(),
        ),
    )
}

fn seccomp_check() -> Check {
    match seccomp::Filter::compile(seccomp::Profile::Baseline, seccomp::Sockets::All) {
        // Whether it can be installed is seen in the sandbox, which does not start without.
        Ok(_) => match fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail") {
            Ok(actions) if actions.contains("errno") => Check::ok("seccomp", "filters can be installed"),
            _ => Check::failed(
                "seccomp",
                Status::Broken,
                "the kernel lists no filter actions",
                Some("CONFIG_SECCOMP_FILTER is needed".to_owned()),
            ),
        },
        Err(error) => Check::failed("seccomp", Status::Broken, error.to_string(), None),
    }
}

/// Without a limit of processes, a workload can take the machine's (facts §4.2 step 7).
fn cgroup_check() -> Check {
    let line = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = line.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/").to_owned();
    let at = |name: &str| fs::read_to_string(format!("/sys/fs/cgroup{}/{name}", path.trim_end_matches('/'))).ok();
    match at("pids.max").as_deref().map(str::trim) {
        Some("max") => Check::ok("cgroup", "version 2, and no limit of processes: set one, or use --limit nproc="),
        Some(limit) => Check::ok("cgroup", format!("version 2, at most {limit} processes")),
        None => Check::ok("cgroup", "no limit of processes can be seen here: set one outside, or use --limit nproc="),
    }
}
