//! `combined`: everything in one container, which takes the workload's namespaces apart from its own and needs the
//! privileges for that. Pod Security admits it nowhere but as `privileged`.

use super::{agent_init, gateway, spiffe};
use crate::contract::CLIENT_TLS_DIRECTORY;
use crate::driver::container::Security;
use crate::driver::names::ADMIN;
use crate::driver::plan::Plan;
use crate::driver::pod::Pod;
use crate::driver::{role, volume};

/// Namespaces and their network, attribution, and giving all of it up for the workload.
const CAPABILITIES: &[&str] =
    &["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "DAC_READ_SEARCH", "KILL", "SETUID", "SETGID", "SETPCAP"];

pub(super) fn pod(plan: &Plan<'_>) -> Pod {
    let reader = volume::Reader::Owner;
    let mut pod = Pod::agent(plan);
    for optional in
        [volume::policy(plan), volume::token(plan, reader), volume::client_tls(plan, reader), volume::spiffe(plan)]
    {
        pod.volumes.extend(optional);
    }
    pod.init = agent_init(plan);
    let mut flags = role::policy_flag(plan);
    flags.extend(role::upstream_flags(plan));
    // The launcher makes mount points of its own, and the image's programs are root's as ever.
    let security = Security { read_only_root: false, ..Security::root(0, CAPABILITIES) };
    // On the pod's loopback: the workload has another one.
    let agent = role::agent(plan, security, ADMIN, "network,process", flags).mounts(role::policy_mount(plan));
    pod.containers = vec![spiffe(plan, gateway(plan, agent, CLIENT_TLS_DIRECTORY, true))];
    // Only for a claim, which would be root's: with it the kubelet lets that group read mounted credentials as well.
    pod.fs_group = plan.claims_workspace().then_some(plan.workload.gid);
    pod
}
