//! The driver's configuration.

use std::net::IpAddr;

use super::mounts::{self, is_at_or_above};
use crate::contract::SANDBOX_HOME;
use crate::driver::config::{
    DriverConfig, GREATEST_ID, LEAST_PROXY_ID, LONGEST_START, UpstreamProxyConfig, WorkspaceMode,
};
use crate::driver::names::path::TMP;
use crate::driver::problem::Problems;
use crate::driver::resources;
use crate::driver::shape::{self, LABEL_LENGTH, Quantity};

/// Letters that every managed namespace leaves for the workspace's name.
const WORKSPACE_ROOM: usize = 19;

/// Longest address of a Unix socket (`sun_path`, unix(7)), with the byte that ends it.
const SOCKET_ADDRESS: usize = 107;

/// Checks all that needs no sandbox.
pub(in crate::driver) fn config(config: &DriverConfig, problems: &Problems) {
    let named = |path: &str, name: &str| {
        if !name.is_empty() {
            shape::subdomain(problems, path, name);
        }
    };
    shape::dns_label(problems, "namespace", &config.namespace);
    shape::subdomain(problems, "service_account_name", &config.service_account_name);
    named("client_tls_secret_name", &config.client_tls_secret_name);
    named("workspace_storage_class", &config.workspace_storage_class);
    named("default_runtime_class_name", &config.default_runtime_class_name);
    for (index, name) in config.runtime_classes.iter().enumerate() {
        shape::subdomain(problems, &format!("runtime_classes[{index}]"), name);
    }
    for (index, name) in config.image_pull_secrets.iter().enumerate() {
        shape::subdomain(problems, &format!("image_pull_secrets[{index}]"), name);
    }
    shape::quantity(problems, "workspace_default_storage_size", &config.workspace_default_storage_size);
    if Quantity::parse(&config.workspace_default_storage_size).is_some_and(|size| !size.is_positive()) {
        let (size, expected) = (&config.workspace_default_storage_size, "more than nothing: no claim is of nothing");
        problems.with("workspace_default_storage_size", size, expected, "write a size, such as 2Gi");
    }
    images(config, problems);
    resources::check_supervisor(config, problems);
    ids(config, problems);
    if !config.host_gateway_ip.is_empty() && config.host_gateway_ip.parse::<IpAddr>().is_err() {
        problems.with(
            "host_gateway_ip",
            &config.host_gateway_ip,
            "an IP address",
            "give the host's address in numbers",
        );
    }
    spiffe(&config.provider_spiffe_workload_api_socket_path, problems);
    door(&config.ssh_socket_path, problems);
    if let Some(url) = &config.grpc_endpoint {
        endpoint(url, problems);
    }
    workspaces(config, problems);
    upstream(&config.upstream_proxy, problems);
    shape::subdomain(problems, "proxy_pod.cluster_domain", &config.proxy_pod.cluster_domain);
    for (path, seconds) in [
        ("proxy_pod.start_timeout_secs", config.proxy_pod.start_timeout_secs),
        ("platform_network.start_timeout_secs", config.platform_network.start_timeout_secs),
    ] {
        if !(1..=LONGEST_START).contains(&seconds) {
            let expected = format!("a number from 1 to {LONGEST_START}");
            problems.with(path, seconds, expected, "choose one in that range");
        }
    }
    peers(config, problems);
    ranges(config, problems);
    canaries(config, problems);
}

fn images(config: &DriverConfig, problems: &Problems) {
    for (path, image) in [("default_image", &config.default_image), ("supervisor_image", &config.supervisor_image)] {
        if !shape::is_image(image) {
            problems.with(path, image, "an image", "give its reference, such as registry.example.com/name:tag");
        }
    }
    for (path, policy) in [
        ("image_pull_policy", &config.image_pull_policy),
        ("supervisor_image_pull_policy", &config.supervisor_image_pull_policy),
    ] {
        if !["", "Always", "IfNotPresent", "Never"].contains(&policy.as_str()) {
            problems.with(path, policy, "Always, IfNotPresent or Never", "choose one, or leave it empty");
        }
    }
}

fn ids(config: &DriverConfig, problems: &Problems) {
    for (path, id, least) in [
        ("sidecar.proxy_uid", Some(config.sidecar.proxy_uid), LEAST_PROXY_ID),
        ("sidecar.proxy_gid", Some(config.sidecar.proxy_gid), LEAST_PROXY_ID),
        ("proxy_pod.proxy_uid", Some(config.proxy_pod.proxy_uid), LEAST_PROXY_ID),
        ("sandbox_uid", config.sandbox_uid, 1),
        ("sandbox_gid", config.sandbox_gid, 1),
    ] {
        if let Some(id) = id.filter(|id| !(least..=GREATEST_ID).contains(id)) {
            let expected = format!("a number from {least} to {GREATEST_ID}");
            problems.with(path, id, expected, "choose one in that range");
        }
    }
}

/// The socket's directory is mounted whole, so it must be one of its own: two mounts of one place are none, and one above
/// another hides it.
fn spiffe(path: &str, problems: &Problems) {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let sound = shape::is_plain_path(path) && !path.contains(char::is_whitespace) && !directory.is_empty();
    if !path.is_empty() && !sound {
        problems.with(
            "provider_spiffe_workload_api_socket_path",
            path,
            "an absolute path without spaces, in a directory of its own",
            "give it as /spiffe-workload-api/spire-agent.sock",
        );
    }
    let workloads = [SANDBOX_HOME, TMP].into_iter().find(|taken| is_at_or_above(directory, taken));
    let workloads = workloads.or(is_at_or_above(SANDBOX_HOME, directory).then_some(SANDBOX_HOME));
    if let Some(taken) = mounts::reserved(directory).or(workloads).filter(|_| sound && !path.is_empty()) {
        problems.with(
            "provider_spiffe_workload_api_socket_path",
            path,
            format!("a directory that keeps clear of {taken}, where these pods have something else"),
            "give it as /spiffe-workload-api/spire-agent.sock, in a directory of its own",
        );
    }
}

/// As the role takes it: a path, or a name in the abstract space.
fn door(place: &str, problems: &Problems) {
    let named = place.strip_prefix('@').is_some_and(|name| !name.is_empty());
    // The kubelet would expand what begins with a dollar.
    let plain = place.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'$');
    let sound = (named || shape::is_plain_path(place)) && plain && place.len() <= SOCKET_ADDRESS;
    if !(sound || place.is_empty()) {
        let expected = format!("an absolute path or @NAME, of at most {SOCKET_ADDRESS} letters without spaces and $");
        problems.with("ssh_socket_path", place, expected, "give one, or an empty string to let nobody in");
    }
}

fn endpoint(url: &str, problems: &Problems) {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let authority = rest.map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    if authority.and_then(host_and_port).is_none() {
        problems.without(
            "grpc_endpoint",
            "https://HOST:PORT or http://HOST:PORT",
            "give the gateway's address so, without user, path and query",
        );
    }
}

fn workspaces(config: &DriverConfig, problems: &Problems) {
    match &config.workspace_mode {
        WorkspaceMode::Shared => {}
        WorkspaceMode::Managed => {
            let length = "openshell--".len() + config.gateway_id.len() + WORKSPACE_ROOM;
            if !shape::is_dns_label(&config.gateway_id) || length > LABEL_LENGTH {
                let most = LABEL_LENGTH - WORKSPACE_ROOM - "openshell--".len();
                let expected = format!("a DNS label of at most {most} letters: a-z, 0-9 and -, not at its ends");
                problems.with("gateway_id", &config.gateway_id, expected, "choose a shorter one");
            }
        }
        WorkspaceMode::Operator { label, file } => {
            let given = [label, file].into_iter().filter(|given| given.as_ref().is_some_and(|text| !text.is_empty()));
            if given.count() != 1 {
                problems.without(
                    "operator_namespace_label",
                    "operator_namespace_label or operator_namespace_file, one of the two",
                    "give exactly one",
                );
            }
        }
    }
    if !shape::is_label_value(&config.gateway_id) {
        problems.with("gateway_id", &config.gateway_id, "a label's value", "choose at most 63 letters and digits");
    }
}

fn upstream(proxy: &UpstreamProxyConfig, problems: &Problems) {
    if let Some(url) = &proxy.url {
        // Never told: it may hold a password.
        let sound = url.strip_prefix("http://").and_then(host_and_port).is_some();
        if !sound {
            let remedy = "give scheme, host and port alone; a password goes into proxy_auth_secret_name";
            problems.without("https_proxy", "http://HOST:PORT", remedy);
        }
    }
    let absent = proxy.url.is_none();
    if let Some(list) = &proxy.no_proxy {
        let sound = |byte: u8| byte.is_ascii_alphanumeric() || b".:/*,-_[] ".contains(&byte);
        if list.trim().is_empty() || !list.bytes().all(sound) {
            let expected = "names, addresses and ranges, separated by commas";
            problems.with("no_proxy", list, expected, "list some, or remove the field");
        }
        if absent {
            problems.with("no_proxy", list, "it to come with https_proxy", "add https_proxy, or remove the field");
        }
    }
    if proxy.by_hostname && absent {
        let remedy = "add https_proxy, or remove the field";
        problems.with("proxy_connect_by_hostname", true, "it to come with https_proxy", remedy);
    }
    let Some((name, key)) = &proxy.secret else {
        if proxy.allow_insecure {
            let remedy = "add proxy_auth_secret_name and proxy_auth_secret_key, or remove the field";
            problems.with("proxy_auth_allow_insecure", true, "a credential that it concerns", remedy);
        }
        return;
    };
    shape::subdomain(problems, "proxy_auth_secret_name", name);
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if key.is_empty() || key.len() > 253 || [".", ".."].contains(&key.as_str()) || !key.bytes().all(inner) {
        let expected = "a key of a Secret: at most 253 letters, digits, dots, dashes and underscores";
        problems.with("proxy_auth_secret_key", key, expected, "give the key as the Secret has it");
    }
    if absent {
        let remedy = "add https_proxy, or remove the Secret";
        problems.with("proxy_auth_secret_name", name, "it to come with https_proxy", remedy);
    }
    if !proxy.allow_insecure {
        let remedy =
            "set it to true if the network to the proxy may be trusted with the password, or remove the Secret";
        problems.with("proxy_auth_allow_insecure", false, "true: the proxy is reached in clear", remedy);
    }
}

fn ranges(config: &DriverConfig, problems: &Problems) {
    for (index, range) in config.platform_network.egress.iter().enumerate() {
        let path = |field: &str| format!("platform_network.egress[{index}].{field}");
        let whole = Range::parse(&range.cidr);
        if whole.is_none() {
            let expected = "a range of addresses: ADDRESS/BITS";
            problems.with(path("cidr"), &range.cidr, expected, "give one, such as 203.0.113.0/24 or 2001:db8::/32");
        }
        for (at, inner) in range.except.iter().enumerate() {
            let within = match (whole, Range::parse(inner)) {
                (Some(whole), Some(part)) => whole.holds(part),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if !within {
                let expected = format!("a range within {}, and smaller", range.cidr);
                problems.with(path(&format!("except[{at}]")), inner, expected, "correct it, or leave it out");
            }
        }
        if range.ports.is_empty() || range.ports.contains(&0) {
            let remedy = "name them: a range without ports would be open on all";
            problems.without(path("ports"), "at least one port, each from 1 to 65535", remedy);
        }
    }
}

/// A range of addresses.
#[derive(Clone, Copy)]
struct Range {
    address: IpAddr,
    bits: u32,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let digits = !bits.is_empty() && bits.bytes().all(|byte| byte.is_ascii_digit());
        let most = if address.is_ipv4() { u32::BITS } else { u128::BITS };
        let bits = bits.parse().ok().filter(|bits| digits && *bits <= most)?;
        Some(Self { address, bits })
    }

    /// Whether another one is a part of it, and not the whole (the API's rule for `except`).
    fn holds(self, part: Self) -> bool {
        let same = match (self.address, part.address) {
            (IpAddr::V4(whole), IpAddr::V4(part)) => {
                let mask = u32::MAX.checked_shl(u32::BITS - self.bits).unwrap_or(0);
                whole.to_bits() & mask == part.to_bits() & mask
            }
            (IpAddr::V6(whole), IpAddr::V6(part)) => {
                let mask = u128::MAX.checked_shl(u128::BITS - self.bits).unwrap_or(0);
                whole.to_bits() & mask == part.to_bits() & mask
            }
            _ => false,
        };
        same && part.bits > self.bits
    }
}

fn peers(config: &DriverConfig, problems: &Problems) {
    let (proxy_pod, platform) = (&config.proxy_pod, &config.platform_network);
    let lists = [
        ("proxy_pod.dns_peers", &proxy_pod.dns_peers),
        ("proxy_pod.gateway_peers", &proxy_pod.gateway_peers),
        ("platform_network.dns_peers", &platform.dns_peers),
        ("platform_network.gateway_peers", &platform.gateway_peers),
    ];
    for (list, peers) in lists {
        for (index, peer) in peers.iter().enumerate() {
            if let Some(cidr) = &peer.cidr {
                let path = format!("{list}[{index}].cidr");
                if Range::parse(cidr).is_none() {
                    problems.with(
                        &path,
                        cidr,
                        "a range of addresses: ADDRESS/BITS",
                        "give one, such as 169.254.20.10/32",
                    );
                }
                if !peer.namespace_selector.is_empty() || !peer.pod_selector.is_empty() {
                    let expected = "a range or selectors, not both: NetworkPolicy has them apart";
                    problems.with(path, cidr, expected, "make two peers of it");
                }
            }
            let selectors = [("namespace_selector", &peer.namespace_selector), ("pod_selector", &peer.pod_selector)];
            for (selector, labels) in selectors {
                for (key, value) in labels {
                    if !shape::is_label_key(key) || !shape::is_label_value(value) {
                        let path = format!("{list}[{index}].{selector}.{key}");
                        problems.with(path, value, "a label", "give a label as the pods have it");
                    }
                }
            }
        }
    }
}

fn canaries(config: &DriverConfig, problems: &Problems) {
    let platform = &config.platform_network;
    let cut_off = "name something that serves and that the policy must cut off";
    let allowed = "name something that serves and that the policy allows";
    for (list, places, remedy) in [
        ("proxy_pod.canaries", &config.proxy_pod.canaries, cut_off),
        ("platform_network.canaries", &platform.canaries, cut_off),
        ("platform_network.controls", &platform.controls, allowed),
    ] {
        for (index, place) in places.iter().enumerate().filter(|(_, place)| host_and_port(place).is_none()) {
            problems.with(format!("{list}[{index}]"), place, "HOST:PORT", remedy);
        }
    }
}

/// Whether it is HOST:PORT and no more: no user, path, query or fragment, a port above 0.
fn host_and_port(authority: &str) -> Option<(&str, u16)> {
    let (host, port) = authority.rsplit_once(':')?;
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let port: u16 = port.parse().ok().filter(|port| digits && *port != 0)?;
    let name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    let literal = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let sound = match literal {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !host.is_empty() && host.bytes().all(name),
    };
    sound.then_some((host, port))
}
