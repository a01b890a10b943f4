//! Section `network_policies`: entries, their endpoints and their programs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::advice;
use super::overlap::{self, Located};
use super::pattern;
use super::reader::{Fields, Reader, join, shown};
use super::request::{self, Owner};
use super::yaml::{Node, Place, Value};
use super::{Binary, Endpoint, HostPattern, NetworkPolicy};

/// Longest name of an entry: it is quoted in headers, events and denials.
const MAX_KEY: usize = 128;

/// Most ports of one endpoint: more is a range that should be thought about.
const MAX_PORTS: usize = 256;

/// Most ranges of one endpoint, each compared with every address that the host resolves to.
const MAX_RANGES: usize = 256;

const ENDPOINT: &[&str] = &["host", "port", "ports", "tls", "allowed_ips"];

/// Fields of the schema that this build does not enforce. Silently accepted, each would let through more than its
/// author meant.
const NOT_ENFORCED: &[&str] = &[
    "allow_uninspected_credentials",
    "credential_binding",
    "credential_signing",
    "request_body_credential_rewrite",
    "signing_region",
    "signing_service",
    "websocket_credential_rewrite",
];

/// Addresses that are never dialled (design §4), so that a range which promises them is a mistake.
const NEVER_V4: &[(Ipv4Addr, u8, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "unspecified"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local and metadata"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// See [`NEVER_V4`].
const NEVER_V6: &[(Ipv6Addr, u8, &str)] = &[
    (Ipv6Addr::UNSPECIFIED, 128, "unspecified"),
    (Ipv6Addr::LOCALHOST, 128, "loopback"),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, "link-local"),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, "multicast"),
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96, "IPv4-mapped"),
];

/// Cloud metadata services outside those ranges: refused where an entry names little else.
const METADATA: &[IpAddr] =
    &[IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)), IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254))];

/// Reads the section, in the order of its keys.
pub(super) fn read(reader: &mut Reader, node: &Node) -> Vec<Arc<NetworkPolicy>> {
    let at = "network_policies";
    // All entries commented out leave a key with nothing under it, which means what {} does: no network.
    if node.value.is_null() {
        return Vec::new();
    }
    let mut located = Vec::new();
    let mut policies = Vec::new();
    for (key, node) in reader.entries(node, at).unwrap_or_default() {
        let at = join(at, &key.text);
        if key.text.is_empty() || key.text.len() > MAX_KEY || !key.text.bytes().all(|b| matches!(b, b' '..=b'~')) {
            let message = format!("expected 1 to {MAX_KEY} printable ASCII characters as the name of an entry");
            reader.note(key.place, &at, message, "rename it");
        }
        let Some(entry) = reader.fields(node, &at, &["name", "endpoints", "binaries"]) else { continue };
        if let Some(node) = entry.get("name") {
            reader.text(node, &join(&at, "name"));
        }
        let mut endpoints = Vec::new();
        let field = join(&at, "endpoints");
        for (index, node) in
            entry.get("endpoints").map(|n| reader.list(n, &field)).unwrap_or_default().iter().enumerate()
        {
            let at = format!("{field}[{index}]");
            let owner = Owner { policy: &key.text, endpoint: index };
            if let Some(endpoint) = endpoint(reader, node, &at, owner) {
                located.push(Located { place: node.place, field: at, endpoint: endpoint.clone() });
                endpoints.push(endpoint);
            }
        }
        let binaries = binaries(reader, entry, &at);
        policies.push(Arc::new(NetworkPolicy { key: key.text.clone(), endpoints, binaries }));
    }
    overlap::refuse_ambiguous(reader, &located);
    policies.sort_by(|a, b| a.key.cmp(&b.key));
    policies
}

fn endpoint(reader: &mut Reader, node: &Node, at: &str, owner: Owner<'_>) -> Option<Endpoint> {
    let known: Vec<&str> = ENDPOINT.iter().chain(request::FIELDS).chain(NOT_ENFORCED).copied().collect();
    let fields = reader.fields(node, at, &known)?;
    for key in NOT_ENFORCED {
        if let Some((key, _)) = fields.entry(key) {
            let remedy = "remove the field if every request to the host may pass, else remove the endpoint";
            reader.note(key.place, &join(at, &key.text), "not enforced by this build yet", remedy);
        }
    }
    let allowed_ips = ranges(reader, fields, at);
    let host = host(reader, fields, at);
    let ports = ports(reader, fields, at);
    let tls_skip = fields.get("tls").and_then(|node| tls(reader, node, &join(at, "tls"))).unwrap_or(false);
    if fields.get("host").is_none() && allowed_ips.is_empty() && fields.get("allowed_ips").is_none() {
        let remedy = "write 'host: api.example.com', or list allowed_ips";
        reader.note(fields.place, &join(at, "host"), "missing; an endpoint names a host or lists allowed_ips", remedy);
    }
    let inspection = request::inspection(reader, fields, at, owner, host.as_ref()).map(Arc::new);
    Some(Endpoint { host, ports, allowed_ips, tls_skip, inspection })
}

fn host(reader: &mut Reader, fields: Fields<'_>, at: &str) -> Option<HostPattern> {
    let node = fields.get("host")?;
    let at = join(at, "host");
    let text = reader.text(node, &at)?;
    match HostPattern::parse(text) {
        Ok(pattern) => Some(pattern),
        Err(error) => {
            let remedy =
                match text.split_once("://").map(|(_, rest)| rest).or_else(|| text.rsplit_once(':').map(|p| p.0)) {
                    _ if text.parse::<IpNet>().is_ok() => {
                        "a range of addresses stands in a list under 'allowed_ips', with a host beside it or alone"
                    }
                    Some(host) if !host.contains(':') => "write the host alone, and the port under 'port'",
                    _ => "write a DNS name, an IP address, or a pattern such as *.example.com",
                };
            reader.note(node.place, &at, format!("{error} (found {})", shown(node)), remedy);
            None
        }
    }
}

fn ports(reader: &mut Reader, fields: Fields<'_>, at: &str) -> Vec<u16> {
    let mut ports = Vec::new();
    let mut read = |reader: &mut Reader, node: &Node, at: &str| {
        if let Some(port) = reader.integer(node, at, 1..=u32::from(u16::MAX)) {
            ports.extend(u16::try_from(port));
        }
    };
    match (fields.get("port"), fields.entry("ports")) {
        (Some(_), Some((key, _))) => {
            reader.note(key.place, &join(at, "ports"), "both 'port' and 'ports' are given", "keep one of them");
        }
        (Some(node), None) => read(reader, node, &join(at, "port")),
        (None, Some((key, node))) => {
            let at = join(at, "ports");
            let items = reader.list(node, &at);
            if items.is_empty() || items.len() > MAX_PORTS {
                let message = format!("{} ports; expected 1 to {MAX_PORTS}", items.len());
                reader.note(key.place, &at, message, "list the ports, as in [443, 8443]");
            }
            for (index, node) in items.iter().take(MAX_PORTS).enumerate() {
                read(reader, node, &format!("{at}[{index}]"));
            }
        }
        (None, None) => reader.note(fields.place, &join(at, "port"), "missing", "write 'port: 443'"),
    }
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn tls(reader: &mut Reader, node: &Node, at: &str) -> Option<bool> {
    #[derive(Clone, Copy)]
    enum Tls {
        Auto,
        Skip,
        Deprecated,
    }
    let words =
        [("auto", Tls::Auto), ("skip", Tls::Skip), ("terminate", Tls::Deprecated), ("passthrough", Tls::Deprecated)];
    match reader.word(node, at, &words)? {
        Tls::Auto => Some(false),
        Tls::Skip => Some(true),
        Tls::Deprecated => {
            let message = format!("{} is deprecated and means auto", shown(node));
            reader.note(node.place, at, message, "remove the field, or write 'skip' to never intercept");
            None
        }
    }
}

fn ranges(reader: &mut Reader, fields: Fields<'_>, at: &str) -> Vec<IpNet> {
    let Some(node) = fields.get("allowed_ips") else { return Vec::new() };
    let at = join(at, "allowed_ips");
    let items = reader.list(node, &at);
    if items.is_empty() || items.len() > MAX_RANGES {
        let message = format!("{} ranges; expected 1 to {MAX_RANGES}", items.len());
        reader.note(node.place, &at, message, "list addresses or ranges, as in [10.20.0.0/16]");
    }
    let mut ranges = Vec::new();
    for (index, item) in items.iter().take(MAX_RANGES).enumerate() {
        let at = format!("{at}[{index}]");
        let Some(text) = reader.text(item, &at) else { continue };
        match range(text) {
            Ok(range) => ranges.push(range),
            Err((message, remedy)) => reader.note(item.place, &at, message, remedy),
        }
    }
    ranges.sort_unstable();
    ranges.dedup();
    ranges
}

fn range(text: &str) -> Result<IpNet, (String, String)> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => match text.parse::<IpAddr>() {
            Ok(address) => address.into(),
            Err(_) => {
                let message = format!("expected an address or a range such as 10.20.0.0/16, found {text:?}");
                return Err((message, "write it in CIDR notation".to_owned()));
            }
        },
    };
    if net.trunc() != net {
        return Err((format!("{net} has bits set after its prefix"), format!("write {}", net.trunc())));
    }
    let never = match net {
        IpNet::V4(net) => NEVER_V4
            .iter()
            .find(|(address, prefix, _)| Ipv4Net::new(*address, *prefix).is_ok_and(|never| overlap_v4(never, net)))
            .map(|(_, _, what)| *what),
        IpNet::V6(net) => NEVER_V6
            .iter()
            .find(|(address, prefix, _)| Ipv6Net::new(*address, *prefix).is_ok_and(|never| overlap_v6(never, net)))
            .map(|(_, _, what)| *what),
    };
    if let Some(what) = never {
        let message = format!("{net} holds {what} addresses, which are never dialled");
        return Err((message, "list the private ranges that are meant".to_owned()));
    }
    if METADATA.iter().any(|address| IpNet::from(*address) == net) {
        let message = format!("{net} is a cloud's metadata service, which is never dialled");
        return Err((message, "remove it".to_owned()));
    }
    Ok(net)
}

fn overlap_v4(one: Ipv4Net, two: Ipv4Net) -> bool {
    one.contains(&two) || two.contains(&one)
}

fn overlap_v6(one: Ipv6Net, two: Ipv6Net) -> bool {
    one.contains(&two) || two.contains(&one)
}

fn binaries(reader: &mut Reader, entry: Fields<'_>, at: &str) -> Vec<Binary> {
    let Some(node) = entry.get("binaries") else { return Vec::new() };
    let field = join(at, "binaries");
    let mut binaries: Vec<Binary> = Vec::new();
    for (index, item) in reader.list(node, &field).iter().enumerate() {
        let at = format!("{field}[{index}]");
        if let Value::Scalar { text, .. } = &item.value
            && !item.value.is_null()
        {
            let message = format!("expected a mapping, found {}", shown(item));
            reader.note(item.place, &at, message, format!("write {{path: {}}}", advice::scalar(text)));
            continue;
        }
        let Some(fields) = reader.fields(item, &at, &["path", "children", "harness"]) else { continue };
        if let Some((key, _)) = fields.entry("harness") {
            reader.note(key.place, &join(&at, "harness"), "deprecated, and grants nothing", "remove the field");
        }
        let field = join(&at, "children");
        // What cannot be read lends nothing; the policy is refused for it in any case.
        let children = fields.get("children").is_none_or(|node| reader.boolean(node, &field).unwrap_or(false));
        let at = join(&at, "path");
        let Some(node) = fields.get("path") else {
            reader.note(fields.place, &at, "missing", "write '- path: /usr/bin/curl'");
            continue;
        };
        let Some(text) = reader.text(node, &at) else { continue };
        match pattern::binary(text) {
            Ok(path) => match binaries.iter().find(|known| known.path == path) {
                None => binaries.push(Binary { path, children }),
                Some(known) if known.children == children => {}
                Some(known) => {
                    let message = format!("listed before with 'children: {}'", known.children);
                    reader.note(node.place, &at, message, "keep the one that is meant");
                }
            },
            Err(error) => {
                let message = format!("{error} (found {})", shown(node));
                reader.note(node.place, &at, message, "write the program's absolute path");
            }
        }
    }
    binaries
}

/// Where an error points when an endpoint is at odds with another.
pub(super) fn describe(place: Place, field: &str) -> String {
    format!("{field} on line {}", place.line)
}
