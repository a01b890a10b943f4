//! How a sandbox is divided: one file a topology, each a list of containers and volumes in the order of the pod.

mod cni_sidecar;
mod combined;
mod platform;
mod proxy_pod;
mod sidecar;

use super::companion::{self, Owner};
use super::config::{Sideload, Topology};
use super::container::{Container, Mount};
use super::names::{self, path, volume};
use super::object::{Fields, Object};
use super::plan::Plan;
use super::sandbox::policy_text;
use super::{openshift, role};
use crate::contract::{CLIENT_TLS_FILES, IMAGE_POLICY_PATH};

/// The objects of one sandbox, in the order in which to create them.
pub(super) fn objects(plan: &Plan<'_>) -> Vec<Object> {
    let objects = match plan.config.topology {
        Topology::Combined if plan.is_fenced_by_platform() => platform::objects(plan),
        Topology::Combined => with_policy(plan, combined::pod(plan).object(plan)),
        Topology::Sidecar => with_policy(plan, sidecar::pod(plan).object(plan)),
        Topology::CniSidecar => with_policy(plan, cni_sidecar::pod(plan).object(plan)),
        Topology::ProxyPod => proxy_pod::objects(plan),
    };
    openshift::with_grant(plan, objects)
}

fn with_policy(plan: &Plan<'_>, pod: Object) -> Vec<Object> {
    policy(plan).into_iter().chain([pod]).collect()
}

/// The policy, for the roles that read it.
fn policy(plan: &Plan<'_>) -> Option<Object> {
    let policy = plan.sandbox.policy.as_ref()?;
    let file = IMAGE_POLICY_PATH.rsplit_once('/').map_or(IMAGE_POLICY_PATH, |(_, file)| file);
    let text = policy_text(policy);
    let metadata = companion::metadata(plan, names::companion::POLICY, None, Owner::Sandbox);
    Some(Object::new("v1", "ConfigMap", metadata, Fields::new().with("data", Fields::new().with(file, text))))
}

/// What comes before the workload whatever the topology: the executable, and the workspace's first content, since whatever
/// volume that is covers what the image has there.
fn agent_init(plan: &Plan<'_>) -> Vec<Container> {
    let install = (plan.sideload() == Sideload::InitContainer).then(|| role::install(plan));
    install.into_iter().chain([role::workspace_init(plan)]).collect()
}

/// What a container needs that speaks to the gateway: where it is, the token, and the client's TLS material in `tls`, which
/// is mounted there unless somebody copies it.
fn gateway(plan: &Plan<'_>, container: Container, tls: &str, mounted: bool) -> Container {
    let Some(endpoint) = plan.gateway() else { return container };
    let mut variables = vec![(names::env::ENDPOINT, endpoint.to_owned())];
    let mut mounts = Vec::new();
    if plan.client_tls().is_some() {
        variables.extend(names::env::TLS.into_iter().zip(CLIENT_TLS_FILES.map(|file| format!("{tls}/{file}"))));
        if mounted {
            mounts.push(Mount::read_only(volume::CLIENT_TLS, tls));
        }
    }
    variables.push((names::env::TOKEN_FILE, format!("{}/token", path::TOKEN_DIRECTORY)));
    mounts.push(Mount::read_only(volume::TOKEN, path::TOKEN_DIRECTORY));
    container.environment(variables).mounts(mounts)
}

/// What a container needs that asks SPIFFE for credentials.
fn spiffe(plan: &Plan<'_>, container: Container) -> Container {
    let Some((socket, directory)) = plan.spiffe() else { return container };
    container
        .environment([(names::env::SPIFFE_SOCKET, socket.to_owned())])
        .mounts([Mount::read_only(volume::SPIFFE, directory)])
}
