//! The containers that call the roles: each role's image, command, identity, environment and mounts, in one place for all
//! topologies.

use serde_json::{Value, json};

use super::config::LandlockNet;
use super::container::{Container, Mount, Security};
use super::names::{ADMIN, container, path, volume};
use super::object::strings;
use super::plan::Plan;
use super::resources::{self, Resources};
use crate::contract::{
    CLIENT_TLS_DIRECTORY, IMAGE_POLICY_PATH, Ids, PROXY_TLS_DIRECTORY, SANDBOX_HOME, SIDECAR_DIRECTORY,
    SSH_SOCKET_NAME, env,
};

/// A container of the supervisor's image.
pub(super) fn supervisor(plan: &Plan<'_>, name: &'static str, security: Security) -> Container {
    let config = plan.config;
    let mut container =
        Container::new(name, &config.supervisor_image, &config.supervisor_image_pull_policy, confined(plan, security));
    container.resources = resources::of_supervisor(config);
    container
}

/// With the configured AppArmor profile.
fn confined(plan: &Plan<'_>, security: Security) -> Security {
    Security { app_armor: plan.config.app_armor_profile.clone(), ..security }
}

/// Raises the fence and lays out the shared directories: the one privileged container of a sidecar pod.
pub(super) fn network_init(plan: &Plan<'_>) -> Container {
    let (proxy, workload) = (plan.proxy, plan.workload);
    let flags = [
        format!("--proxy-uid={}", proxy.uid),
        format!("--proxy-gid={}", proxy.gid),
        format!("--sandbox-uid={}", workload.uid),
        format!("--sandbox-gid={}", workload.gid),
        format!("--sidecar-state-dir={SIDECAR_DIRECTORY}"),
        format!("--sidecar-tls-dir={PROXY_TLS_DIRECTORY}"),
    ];
    let mounts = [
        Mount::read_write(volume::SIDECAR_STATE, SIDECAR_DIRECTORY),
        Mount::read_write(volume::SUPERVISOR_TLS, PROXY_TLS_DIRECTORY),
    ];
    let tls = plan.client_tls().map(|_| Mount::read_only(volume::CLIENT_TLS, CLIENT_TLS_DIRECTORY));
    supervisor(plan, container::NETWORK_INIT, Security::root(0, &["NET_ADMIN", "CHOWN"]))
        .command(path::SUPERVISOR, "network-init", flags)
        .mounts(mounts)
        .mounts(tls)
}

/// Proves the fence from where the workload will be.
pub(super) fn verify_fence(plan: &Plan<'_>) -> Container {
    let flags = [format!("--proxy-uid={}", plan.proxy.uid), format!("--proxy-gid={}", plan.proxy.gid)];
    supervisor(plan, container::VERIFY_FENCE, Security::none(plan.workload)).command(
        path::SUPERVISOR,
        "verify-fence",
        flags,
    )
}

/// Copies the executable into the agent's volume, where an image cannot be mounted.
pub(super) fn install(plan: &Plan<'_>) -> Container {
    supervisor(plan, container::INSTALL, Security::none(plan.runs_as()))
        .command(path::SUPERVISOR, "sideload", [path::SIDELOADED.to_owned()])
        .mounts([Mount::read_write(volume::SUPERVISOR, path::SIDELOAD_DIRECTORY)])
}

/// A container of the agent's image that calls a role once: for what is in that image.
pub(super) fn of_agent_image(
    plan: &Plan<'_>,
    name: &'static str,
    role: &str,
    flags: impl IntoIterator<Item = String>,
) -> Container {
    let security = confined(plan, Security::none(plan.runs_as()));
    let mut container = Container::new(name, plan.agent_image(), &plan.config.image_pull_policy, security);
    container.resources = resources::of_supervisor(plan.config);
    container
        .command(path::SIDELOADED, role, flags)
        .mounts([Mount::read_only(volume::SUPERVISOR, path::SIDELOAD_DIRECTORY)])
}

/// Seeds the workspace from the image's, once. Of the agent's image, since what it copies is in there.
pub(super) fn workspace_init(plan: &Plan<'_>) -> Container {
    let flags = [SANDBOX_HOME.to_owned(), path::WORKSPACE_SEED.to_owned()];
    of_agent_image(plan, container::WORKSPACE, "workspace", flags)
        .mounts([Mount::read_write(volume::WORKSPACE, path::WORKSPACE_SEED)])
}

/// The agent's container, with what every topology has in it; `role` and `flags` are what it calls, `admin` is where that
/// answers probes.
pub(super) fn agent(
    plan: &Plan<'_>,
    security: Security,
    admin: &str,
    role: &str,
    flags: impl IntoIterator<Item = String>,
) -> Container {
    let (config, sandbox) = (plan.config, plan.sandbox);
    let security = confined(plan, security);
    let writable_root = !security.read_only_root;
    let mut flags: Vec<String> = flags.into_iter().collect();
    flags.push(format!("--admin-bind={admin}"));
    flags.push(format!("--workdir={SANDBOX_HOME}"));
    if sandbox.gpu.is_some() {
        flags.push("--seccomp=gpu".into());
    }
    let user = &sandbox.driver_config.volume_mounts;
    let tmp = !writable_root && !user.iter().any(|mount| mount.mount_path == path::TMP);
    let mut agent = Container::new(container::AGENT, plan.agent_image(), &config.image_pull_policy, security)
        .command(path::SIDELOADED, role, flags)
        .environment(identity(plan))
        .environment(user_environment(plan))
        .environment([(env::MAIN_PROCESS_SPEC, main_process(plan))])
        .environment(door(plan, writable_root))
        .mounts([
            Mount::read_only(volume::SUPERVISOR, path::SIDELOAD_DIRECTORY),
            Mount::read_write(volume::WORKSPACE, SANDBOX_HOME),
        ])
        .mounts(tmp.then(|| Mount::read_write(volume::TMP, path::TMP)))
        .mounts(user.iter().map(Mount::from));
    agent.resources = Resources::of(sandbox).build();
    agent.readiness = readiness(path::SIDELOADED, admin);
    agent
}

/// The proxy's container; topologies add where it listens and whom it serves.
pub(super) fn network(plan: &Plan<'_>, security: Security, flags: impl IntoIterator<Item = String>) -> Container {
    let mut all = policy_flag(plan);
    all.extend(flags);
    all.extend(upstream_flags(plan));
    all.push(format!("--admin-bind={ADMIN}"));
    let auth = plan.config.upstream_proxy.secret.as_ref();
    let auth = auth.map(|_| Mount::read_only(volume::UPSTREAM_AUTH, path::UPSTREAM_AUTH_DIRECTORY));
    let mut network = supervisor(plan, container::NETWORK, security)
        .command(path::SUPERVISOR, "network", all)
        .environment(identity(plan))
        .mounts(policy_mount(plan))
        .mounts(auth);
    network.readiness = readiness(path::SUPERVISOR, ADMIN);
    network
}

/// Asks the role's admin listener: with nothing but the executable itself.
pub(super) fn readiness(program: &str, admin: &str) -> Value {
    json!({"exec": {"command": [program, "health", admin]}})
}

/// The flag by which Landlock keeps the workload's TCP, where it is to.
pub(super) fn landlock_net_flag(asked: LandlockNet) -> Option<String> {
    (asked == LandlockNet::Strict).then(|| "--landlock-net=strict".to_owned())
}

/// The policy's flag, for who reads one.
pub(super) fn policy_flag(plan: &Plan<'_>) -> Vec<String> {
    plan.sandbox.policy.iter().map(|_| format!("--policy={IMAGE_POLICY_PATH}")).collect()
}

/// The policy's volume, for who reads it.
pub(super) fn policy_mount(plan: &Plan<'_>) -> Option<Mount> {
    plan.sandbox.policy.as_ref().map(|_| Mount::read_only(volume::POLICY, path::POLICY_DIRECTORY))
}

/// How everything leaves through the corporate proxy.
pub(super) fn upstream_flags(plan: &Plan<'_>) -> Vec<String> {
    let proxy = &plan.config.upstream_proxy;
    let Some(url) = &proxy.url else { return Vec::new() };
    let mut flags = vec![format!("--upstream-proxy={url}")];
    flags.extend(proxy.no_proxy.iter().map(|list| format!("--upstream-no-proxy={list}")));
    if proxy.secret.is_some() {
        let (directory, file) = (path::UPSTREAM_AUTH_DIRECTORY, path::UPSTREAM_AUTH_FILE);
        flags.push(format!("--upstream-proxy-auth-file={directory}/{file}"));
        flags.push("--upstream-proxy-allow-insecure-auth".into());
    }
    if proxy.by_hostname {
        flags.push("--upstream-proxy-resolve-remotely".into());
    }
    flags
}

/// Which sandbox it is, and who its workload.
pub(super) fn identity(plan: &Plan<'_>) -> Vec<(&'static str, String)> {
    let mut variables = vec![(env::SANDBOX, plan.sandbox.name.clone()), (env::SANDBOX_ID, plan.sandbox.id.clone())];
    if let Some(Ids { uid, gid }) = plan.runs_as() {
        variables.extend([(env::SANDBOX_UID, uid.to_string()), (env::SANDBOX_GID, gid.to_string())]);
    }
    if !plan.sandbox.log_level.is_empty() {
        variables.push((env::LOG_LEVEL, plan.sandbox.log_level.clone()));
    }
    variables
}

/// Where people are let in by SSH. A variable, not a flag, so that what `exec` starts in the container finds the door too.
fn door(plan: &Plan<'_>, writable_root: bool) -> Option<(&'static str, String)> {
    let place = match plan.config.ssh_socket_path.as_str() {
        "" => return None,
        path if path.starts_with('/') && !writable_root => SSH_SOCKET_NAME,
        place => place,
    };
    Some((env::SSH_SOCKET_PATH, place.to_owned()))
}

fn user_environment(plan: &Plan<'_>) -> Option<(&'static str, String)> {
    let variables = &plan.sandbox.environment;
    (!variables.is_empty()).then(|| (env::USER_ENVIRONMENT, literal(&strings(variables))))
}

/// What the workload is, as the roles read it.
pub(super) fn main_process(plan: &Plan<'_>) -> String {
    let sandbox = plan.sandbox;
    literal(&json!({"version": 1, "command": sandbox.command, "tty": sandbox.tty}))
}

/// JSON that reaches the role as it is: the kubelet replaces `$(NAME)` and takes `$$` for `$` in every value, quotes or
/// not, and in JSON a dollar can be written without one.
fn literal(value: &Value) -> String {
    value.to_string().replace('$', "\\u0024")
}
