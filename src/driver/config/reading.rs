//! Reads the configuration, goes on after a mistake, and tells of all that it finds.

use serde_json::Value;

use super::{
    Affinity, AppArmor, DriverConfig, EgressRange, GREATEST_ID, IpFamily, LEAST_PROXY_ID, LONGEST_START, LandlockNet,
    NetworkEnforcement, OpenShiftConfig, Peer, PlatformNetworkConfig, ProxyPodConfig, SidecarConfig, Sideload,
    TOKEN_TTL, Topology, UpstreamProxyConfig, WorkspaceMode,
};
use crate::driver::place::Place;
use crate::driver::problem::{Document, Errors, Problems};
use crate::driver::read::Table;
use crate::driver::{check, schema};
use crate::spelling::nearest;

/// Who fences a combined sandbox, by name.
const ENFORCEMENTS: [(&str, NetworkEnforcement); 2] =
    [("namespace", NetworkEnforcement::Namespace), ("platform", NetworkEnforcement::Platform)];

/// Whether Landlock keeps the workload's TCP, by name.
const LANDLOCK_NET: [(&str, LandlockNet); 2] = [("off", LandlockNet::Off), ("strict", LandlockNet::Strict)];

/// Where the table is in a gateway's configuration.
pub(in crate::driver) const TABLE: [&str; 3] = ["openshell", "drivers", "kubernetes"];

impl DriverConfig {
    /// Reads a configuration: the table `[openshell.drivers.kubernetes]` of a gateway's file, or a file of that table's
    /// fields alone.
    ///
    /// # Errors
    /// Every problem that can be told without a sandbox.
    pub fn from_toml(text: &str) -> Result<Self, Errors> {
        let problems = Problems::of(Document::Config);
        let mut document = match toml::from_str::<toml::Table>(text).map(|table| serde_json::to_value(&table)) {
            Ok(Ok(document)) => document,
            Ok(Err(error)) => return broken(problems, None, &error.to_string()),
            Err(error) => {
                // The error's own text quotes the line, and that may hold a password.
                let place = error.span().map(|span| Place::at(text, span.start));
                return broken(problems, place, error.message());
            }
        };
        if document.get(TABLE[0]).is_some() {
            document = match of_gateway(&document, &problems) {
                Some(table) => table,
                None => return problems.settle(Self::default()),
            };
        }
        let config = Self::read(Table::root(document, &problems));
        problems.reading_is_done();
        check::config(&config, &problems);
        problems.settle(config)
    }

    pub(in crate::driver) fn read(mut table: Table<'_>) -> Self {
        let defaults = Self::default();
        let text = |table: &mut Table<'_>, key, default: &str| table.string(key).unwrap_or_else(|| default.to_owned());
        let mut resources = table.table("supervisor_resources");
        let [supervisor_requests, supervisor_limits] = ["requests", "limits"].map(|list| resources.string_map(list));
        resources.finish();
        let sideload = [("image-volume", Sideload::ImageVolume), ("init-container", Sideload::InitContainer)];
        let config = Self {
            workspace_mode: workspace_mode(&mut table),
            gateway_id: text(&mut table, "gateway_id", &defaults.gateway_id),
            namespace: text(&mut table, "namespace", &defaults.namespace),
            service_account_name: text(&mut table, "service_account_name", &defaults.service_account_name),
            default_image: text(&mut table, "default_image", &defaults.default_image),
            image_pull_policy: table.text("image_pull_policy"),
            supervisor_image_pull_policy: table.text("supervisor_image_pull_policy"),
            image_pull_secrets: trimmed(table.strings("image_pull_secrets").unwrap_or_default()),
            supervisor_image: text(&mut table, "supervisor_image", &defaults.supervisor_image),
            supervisor_requests,
            supervisor_limits,
            supervisor_sideload_method: table
                .choice("supervisor_sideload_method", &sideload)
                .unwrap_or(defaults.supervisor_sideload_method),
            topology: table.choice("topology", &Topology::ALL).unwrap_or(defaults.topology),
            network_enforcement: table
                .choice("network_enforcement", &ENFORCEMENTS)
                .unwrap_or(defaults.network_enforcement),
            sidecar: sidecar(table.table("sidecar"), &defaults.sidecar),
            proxy_pod: proxy_pod(table.table("proxy_pod"), defaults.proxy_pod),
            platform_network: platform_network(table.table("platform_network"), defaults.platform_network),
            openshift: openshift(table.table("openshift")),
            upstream_proxy: upstream_proxy(&mut table),
            grpc_endpoint: table.string("grpc_endpoint").filter(|url| !url.is_empty()),
            ssh_socket_path: text(&mut table, "ssh_socket_path", &defaults.ssh_socket_path),
            client_tls_secret_name: table.text("client_tls_secret_name"),
            host_gateway_ip: table.text("host_gateway_ip"),
            enable_user_namespaces: table.boolean("enable_user_namespaces").unwrap_or(false),
            app_armor_profile: app_armor(&mut table),
            workspace_default_storage_size: table
                .string("workspace_default_storage_size")
                .filter(|size| !size.is_empty())
                .unwrap_or(defaults.workspace_default_storage_size),
            workspace_storage_class: table.text("workspace_storage_class"),
            default_runtime_class_name: table.text("default_runtime_class_name"),
            runtime_classes: trimmed(table.strings("runtime_classes").unwrap_or_default()),
            sa_token_ttl_secs: table.number("sa_token_ttl_secs").unwrap_or(TOKEN_TTL),
            provider_spiffe_workload_api_socket_path: table.text("provider_spiffe_workload_api_socket_path"),
            sandbox_uid: table.bounded("sandbox_uid", 1, GREATEST_ID),
            sandbox_gid: table.bounded("sandbox_gid", 1, GREATEST_ID),
        };
        ssh_ingress(table.table("managed_ssh_ingress"));
        warm_pooling(table.optional_table("warm_pooling"));
        table.elsewhere("proxy_uid", "sidecar.proxy_uid or proxy_pod.proxy_uid");
        table.elsewhere("proxy_gid", "sidecar.proxy_gid");
        for list in ["dns_peers", "gateway_peers", "canaries"] {
            table.elsewhere(list, &format!("proxy_pod.{list} or platform_network.{list}"));
        }
        table.finish();
        config
    }
}

/// The driver's table in a gateway's file. Its absence is told, and so is a field of its beside it: without them the defaults
/// would be rendered, which is the topology that takes most.
fn of_gateway(document: &Value, problems: &Problems) -> Option<Value> {
    let whole = format!("[{}]", TABLE.join("."));
    let mut here = document;
    for (depth, key) in TABLE.iter().enumerate() {
        let Some(found) = here.get(key) else {
            let mut path = TABLE[..depth].join(".");
            let keys: Vec<&str> = here.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
            let mut remedy = String::from("add it: an empty one stands for the defaults");
            if let Some(near) = nearest(key, &keys) {
                path = format!("{path}.{near}");
                remedy = format!("did you mean {key:?}?");
            }
            problems.without(path, format!("the table {whole} in a gateway's file"), remedy);
            return None;
        };
        here = found;
    }
    let fields = schema::of_config();
    for key in document.as_object().into_iter().flatten().map(|(key, _)| key).filter(|key| *key != TABLE[0]) {
        if fields["properties"].get(key).is_some() {
            problems.without(key, format!("it within {whole}"), "move it there, or remove it");
        }
    }
    Some(here.clone())
}

fn broken<T>(problems: Problems, place: Option<Place>, what: &str) -> Result<T, Errors> {
    problems.broken(place, "TOML", format!("correct it: {what}"));
    Err(match problems.settle(()) {
        Err(errors) => errors,
        Ok(()) => unreachable!("a problem was noted above"),
    })
}

fn workspace_mode(table: &mut Table<'_>) -> WorkspaceMode {
    let label = table.string("operator_namespace_label");
    let file = table.string("operator_namespace_file");
    let modes = [("shared", 0), ("managed", 1), ("operator", 2)];
    match table.choice("workspace_mode", &modes).unwrap_or(0) {
        1 => WorkspaceMode::Managed,
        2 => WorkspaceMode::Operator { label, file },
        _ => WorkspaceMode::Shared,
    }
}

fn trimmed(names: Vec<String>) -> Vec<String> {
    names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Read so that a gateway's file passes: who makes the namespace lets people into it, and nothing here would.
fn ssh_ingress(mut table: Table<'_>) {
    if table.boolean("enabled") == Some(true) {
        let remedy =
            "set it to false: the NetworkPolicy that lets the gateway in belongs to who makes the managed namespaces";
        table.problems().with(table.path("enabled"), true, "no ingress by SSH", remedy);
    }
    table.text("gateway_namespace");
    table.string_map("gateway_pod_selector");
    table.finish();
}

fn sidecar(mut table: Table<'_>, defaults: &SidecarConfig) -> SidecarConfig {
    let sidecar = SidecarConfig {
        proxy_uid: table.bounded("proxy_uid", LEAST_PROXY_ID, GREATEST_ID).unwrap_or(defaults.proxy_uid),
        proxy_gid: table.bounded("proxy_gid", LEAST_PROXY_ID, GREATEST_ID).unwrap_or(defaults.proxy_gid),
        binary_aware: table.boolean("process_binary_aware_network_policy").unwrap_or(defaults.binary_aware),
    };
    table.finish();
    sidecar
}

fn proxy_pod(mut table: Table<'_>, defaults: ProxyPodConfig) -> ProxyPodConfig {
    let choices =
        [("disabled", Affinity::Disabled), ("preferred", Affinity::Preferred), ("required", Affinity::Required)];
    let proxy_pod = ProxyPodConfig {
        proxy_uid: table.bounded("proxy_uid", LEAST_PROXY_ID, GREATEST_ID).unwrap_or(defaults.proxy_uid),
        affinity: table.choice("affinity", &choices).unwrap_or(defaults.affinity),
        dns_peers: peers(&mut table, "dns_peers").unwrap_or(defaults.dns_peers),
        gateway_peers: peers(&mut table, "gateway_peers").unwrap_or(defaults.gateway_peers),
        cluster_domain: table.string("cluster_domain").unwrap_or(defaults.cluster_domain),
        ip_family: table
            .choice("ip_family", &[("ipv4", IpFamily::Ipv4), ("any", IpFamily::Any)])
            .unwrap_or(defaults.ip_family),
        start_timeout_secs: start_timeout(&mut table).unwrap_or(defaults.start_timeout_secs),
        canaries: table.strings("canaries").unwrap_or(defaults.canaries),
        landlock_net: table.choice("landlock_net", &LANDLOCK_NET).unwrap_or_default(),
    };
    table.finish();
    proxy_pod
}

fn platform_network(mut table: Table<'_>, defaults: PlatformNetworkConfig) -> PlatformNetworkConfig {
    let platform = PlatformNetworkConfig {
        dns_peers: peers(&mut table, "dns_peers").unwrap_or(defaults.dns_peers),
        gateway_peers: peers(&mut table, "gateway_peers").unwrap_or(defaults.gateway_peers),
        egress: table.tables("egress").unwrap_or_default().into_iter().map(egress_range).collect(),
        canaries: table.strings("canaries").unwrap_or_default(),
        controls: table.strings("controls").unwrap_or_default(),
        start_timeout_secs: start_timeout(&mut table).unwrap_or(defaults.start_timeout_secs),
        landlock_net: table.choice("landlock_net", &LANDLOCK_NET).unwrap_or_default(),
    };
    table.finish();
    platform
}

fn start_timeout(table: &mut Table<'_>) -> Option<u32> {
    table.bounded("start_timeout_secs", 1, LONGEST_START)
}

fn egress_range(mut table: Table<'_>) -> EgressRange {
    let range = EgressRange {
        cidr: table.required("cidr").text("cidr"),
        except: table.strings("except").unwrap_or_default(),
        ports: ports(&mut table),
    };
    table.finish();
    range
}

fn ports(table: &mut Table<'_>) -> Vec<u16> {
    let numbers = table.required("ports").numbers("ports", 1, u32::from(u16::MAX)).unwrap_or_default();
    numbers.into_iter().filter_map(|port| u16::try_from(port).ok()).collect()
}

fn openshift(mut table: Table<'_>) -> OpenShiftConfig {
    let openshift = OpenShiftConfig { nonroot_scc: table.boolean("nonroot_scc").unwrap_or(false) };
    table.finish();
    openshift
}

/// An empty list reads as "nobody" and would, as an empty rule, mean "everybody": it is refused.
fn peers(table: &mut Table<'_>, key: &'static str) -> Option<Vec<Peer>> {
    let listed = table.tables(key)?;
    if listed.is_empty() {
        let remedy = "name the peers, or leave the field out for its default";
        table.problems().with(table.path(key), Vec::<u8>::new(), "at least one peer", remedy);
    }
    let read = |mut peer: Table<'_>| {
        let namespace_selector = peer.string_map("namespace_selector");
        let pod_selector = peer.string_map("pod_selector");
        let port_is_said = peer.has("port");
        let port = peer.bounded("port", 1, u32::from(u16::MAX)).and_then(|port| u16::try_from(port).ok());
        let cidr = peer.string("cidr");
        let read = Peer { namespace_selector, pod_selector, cidr, port: port.unwrap_or(0) };
        if port.is_none() && !port_is_said && !read.is_empty() {
            let remedy = "give the pods' own port: policies are judged behind the Service";
            peer.problems().without(peer.path("port"), "a port from 1 to 65535", remedy);
        }
        peer.finish();
        read
    };
    Some(listed.into_iter().map(read).collect())
}

fn upstream_proxy(table: &mut Table<'_>) -> UpstreamProxyConfig {
    let name = table.string("proxy_auth_secret_name");
    let key = table.string("proxy_auth_secret_key");
    if name.is_some() != key.is_some() {
        let missing = if name.is_some() { "proxy_auth_secret_key" } else { "proxy_auth_secret_name" };
        table.problems().without(missing, "the Secret's name and its key, both", "add it, or remove the other");
    }
    UpstreamProxyConfig {
        url: table.string("https_proxy"),
        no_proxy: table.string("no_proxy"),
        secret: name.zip(key),
        allow_insecure: table.boolean("proxy_auth_allow_insecure").unwrap_or(false),
        by_hostname: table.boolean("proxy_connect_by_hostname").unwrap_or(false),
    }
}

fn app_armor(table: &mut Table<'_>) -> Option<AppArmor> {
    let text = table.string("app_armor_profile").filter(|text| !text.is_empty())?;
    match text.as_str() {
        "RuntimeDefault" => return Some(AppArmor::RuntimeDefault),
        "Unconfined" => return Some(AppArmor::Unconfined),
        _ => {}
    }
    match text.strip_prefix("Localhost/") {
        Some(name) if !name.trim().is_empty() => Some(AppArmor::Localhost(name.to_owned())),
        _ => {
            let expected = "RuntimeDefault, Unconfined or Localhost/PROFILE";
            table.problems().with(table.path("app_armor_profile"), text, expected, "choose one, or remove the field");
            None
        }
    }
}

/// Read so that a gateway's file passes; what this driver does not render may not be switched on.
fn warm_pooling(table: Option<Table<'_>>) {
    let Some(mut table) = table else { return };
    let mut templates = table.table("templates");
    let enabled = [table.boolean("enabled"), templates.boolean("enabled")];
    if enabled.contains(&Some(true)) {
        let remedy = "set it to false: sandboxes are rendered one by one here";
        table.problems().with(table.path("enabled"), true, "no warm pools", remedy);
    }
    templates.number("ready_within_threshold_secs");
    templates.number("max_replicas");
    templates.finish();
    table.finish();
}
