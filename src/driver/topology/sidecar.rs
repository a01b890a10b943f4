//! `sidecar`: an agent without any privilege, a proxy beside it, and an init container that raises the fence.
//!
//! The proxy is known to the fence by uid and gid together. It is root where it identifies programs, since Kubernetes gives
//! added capabilities to root alone.

use super::{agent_init, gateway, spiffe};
use crate::contract::{CONTROL_SOCKET, Ids, PROXY_CLIENT_TLS, PROXY_TLS_DIRECTORY, SIDECAR_DIRECTORY};
use crate::driver::container::{Container, Mount, Security};
use crate::driver::names::{self, AGENT_ADMIN};
use crate::driver::plan::Plan;
use crate::driver::pod::Pod;
use crate::driver::{role, volume};

/// What it takes to tell which program asks: to look into other users' processes, and to read what they run.
const IDENTIFIES_PROGRAMS: &[&str] = &["SYS_PTRACE", "DAC_READ_SEARCH"];

pub(super) fn pod(plan: &Plan<'_>) -> Pod {
    let tls = format!("{PROXY_TLS_DIRECTORY}/{PROXY_CLIENT_TLS}");
    let network =
        network(plan, CONTROL_SOCKET).mounts([Mount::read_write(names::volume::SUPERVISOR_TLS, PROXY_TLS_DIRECTORY)]);
    let mut pod = pair(plan, agent(plan, CONTROL_SOCKET), gateway(plan, network, &tls, false));
    pod.volumes.push(volume::empty(names::volume::SUPERVISOR_TLS));
    // The fence and the shared directories, before anything of the image's runs.
    pod.init = vec![role::network_init(plan), role::verify_fence(plan)];
    pod.init.extend(agent_init(plan));
    pod
}

/// Agent and proxy, without what raises the fence.
pub(super) fn pair(plan: &Plan<'_>, agent: Container, network: Container) -> Pod {
    let reader = volume::Reader::Group;
    let mut pod = Pod::agent(plan);
    pod.volumes.extend([volume::empty(names::volume::SIDECAR_STATE), volume::empty(names::volume::TMP)]);
    for optional in [
        volume::policy(plan),
        volume::token(plan, reader),
        volume::client_tls(plan, reader),
        volume::upstream_auth(plan, reader),
        volume::spiffe(plan),
    ] {
        pod.volumes.extend(optional);
    }
    pod.containers = vec![agent, spiffe(plan, network)];
    // The proxy finds the program behind a connection in /proc, and knows the agent's supervisor by having no parent there.
    pod.share_process_namespace = true;
    pod.fs_group = Some(plan.workload.gid);
    pod
}

pub(super) fn agent(plan: &Plan<'_>, socket: &str) -> Container {
    role::agent(plan, Security::none(plan.workload), AGENT_ADMIN, "process", [format!("--control-socket={socket}")])
        .mounts([Mount::read_only(names::volume::SIDECAR_STATE, SIDECAR_DIRECTORY)])
}

pub(super) fn network(plan: &Plan<'_>, socket: &str) -> Container {
    let Ids { uid, gid } = plan.workload;
    let mut flags =
        vec![format!("--control-socket={socket}"), format!("--sandbox-uid={uid}"), format!("--sandbox-gid={gid}")];
    let security = if plan.config.sidecar.binary_aware {
        Security::root(plan.proxy.gid, IDENTIFIES_PROGRAMS)
    } else {
        flags.push("--binary-identity=relaxed".into());
        Security::none(plan.proxy)
    };
    role::network(plan, security, flags).mounts([Mount::read_write(names::volume::SIDECAR_STATE, SIDECAR_DIRECTORY)])
}
