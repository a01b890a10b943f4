//! Reading what an endpoint says of requests, with everything that is wrong told at its place.

use crate::policy::HostPattern;
use crate::policy::host::Host;
use crate::policy::reader::{Fields, Reader, join, shown};
use crate::policy::yaml::{Key, Node, Value};

use super::glob::{Glob, GlobError};
use super::read_rule::{self, List};
use super::rules::{Access, DEFAULT_BODY_BYTES, Inspection, MAX_BODY_BYTES, Mcp, Protocol};

/// Fields of an endpoint that are read here.
pub(in crate::policy) const FIELDS: &[&str] = &[
    "access",
    "allow_ambiguous_paths",
    "allow_encoded_slash",
    "deny_rules",
    "enforcement",
    "graphql_max_body_bytes",
    "graphql_persisted_queries",
    "json_rpc",
    "mcp",
    "path",
    "persisted_queries",
    "protocol",
    "rules",
];

/// Those that one protocol alone knows.
const OF_ONE_PROTOCOL: &[(&str, Protocol)] = &[
    ("graphql_max_body_bytes", Protocol::Graphql),
    ("graphql_persisted_queries", Protocol::Graphql),
    ("persisted_queries", Protocol::Graphql),
    ("json_rpc", Protocol::JsonRpc),
    ("mcp", Protocol::Mcp),
];

/// What `protocol` may say.
#[derive(Clone, Copy)]
enum Stated {
    Tcp,
    Sql,
    Inspected(Protocol),
}

const PROTOCOLS: &[(&str, Stated)] = &[
    ("rest", Stated::Inspected(Protocol::Rest)),
    ("websocket", Stated::Inspected(Protocol::Websocket)),
    ("graphql", Stated::Inspected(Protocol::Graphql)),
    ("json-rpc", Stated::Inspected(Protocol::JsonRpc)),
    ("mcp", Stated::Inspected(Protocol::Mcp)),
    ("grpc", Stated::Inspected(Protocol::Grpc)),
    ("tcp", Stated::Tcp),
    ("sql", Stated::Sql),
];

/// Where an endpoint stands: its entry, and its index there.
#[derive(Clone, Copy)]
pub(in crate::policy) struct Owner<'a> {
    pub(in crate::policy) policy: &'a str,
    pub(in crate::policy) endpoint: usize,
}

/// Reads how an endpoint's requests are judged; `None` where they are not, or where that cannot be read.
pub(in crate::policy) fn inspection(
    reader: &mut Reader,
    fields: Fields<'_>,
    at: &str,
    owner: Owner<'_>,
    host: Option<&HostPattern>,
) -> Option<Inspection> {
    let audit = fields.get("enforcement").and_then(|node| {
        reader.word(node, &join(at, "enforcement"), &[("enforce", false), ("audit", true)]).map(|audit| (node, audit))
    });
    let Some(node) = fields.get("protocol") else {
        let remedy = "write 'protocol: rest' beside it, or remove the field";
        refuse_without_protocol(reader, fields, at, "needs 'protocol': without one no request is read", remedy);
        if let Some((node, true)) = audit {
            let message = "'audit' needs 'protocol': without one there is no rule that could be broken";
            reader.note(node.place, &join(at, "enforcement"), message, remedy);
        }
        return None;
    };
    let field = join(at, "protocol");
    match reader.word(node, &field, PROTOCOLS)? {
        Stated::Sql => {
            let remedy = "write 'tcp' if every statement may pass, else remove the endpoint";
            reader.note(node.place, &field, "'sql' is not enforced by this build yet", remedy);
            None
        }
        Stated::Tcp => {
            let remedy = "remove the field, or name the protocol that is to be read, such as rest";
            refuse_without_protocol(
                reader,
                fields,
                at,
                "means nothing with 'protocol: tcp', which is not read",
                remedy,
            );
            let text = fields.get("host").and_then(|node| match &node.value {
                Value::Scalar { text, .. } => Some(text.as_str()),
                _ => None,
            });
            let address = matches!(host, Some(HostPattern::Exact(Host::Address(_))));
            if address || host.is_none() && fields.get("host").is_none() || text.is_some_and(|t| t.ends_with('.')) {
                let message = "'tcp' needs a DNS name in 'host', without a dot at its end";
                reader.note(node.place, &field, message, "name the host, or leave 'protocol' out");
            }
            None
        }
        Stated::Inspected(protocol) => {
            inspected(reader, fields, at, owner, (node, protocol), audit.is_some_and(|(_, audit)| audit))
        }
    }
}

fn refuse_without_protocol(reader: &mut Reader, fields: Fields<'_>, at: &str, message: &str, remedy: &str) {
    for name in FIELDS.iter().filter(|name| !matches!(**name, "protocol" | "enforcement")) {
        if let Some((key, _)) = fields.entry(name) {
            reader.note(key.place, &join(at, name), message, remedy);
        }
    }
}

fn inspected(
    reader: &mut Reader,
    fields: Fields<'_>,
    at: &str,
    owner: Owner<'_>,
    (node, protocol): (&Node, Protocol),
    audit: bool,
) -> Option<Inspection> {
    let spelled = protocol.as_str();
    if fields.get("host").is_none() {
        // It would answer for every name on its ports, those of other entries included.
        let message = format!("'{spelled}' needs 'host': an endpoint without one answers for every name");
        reader.note(node.place, &join(at, "protocol"), message, "name the host beside allowed_ips");
    }
    if let Some((key, tls)) = fields.entry("tls")
        && matches!(&tls.value, Value::Scalar { text, .. } if text == "skip")
    {
        let message = format!("'skip' leaves nothing to read, and 'protocol: {spelled}' is there to be read");
        reader.note(key.place, &join(at, "tls"), message, "remove one of the two");
    }
    for (name, only) in OF_ONE_PROTOCOL {
        if let Some((key, _)) = fields.entry(name)
            && *only != protocol
        {
            let message = format!("belongs to 'protocol: {}', found beside '{spelled}'", only.as_str());
            reader.note(key.place, &join(at, name), message, "remove the field, or correct the protocol");
        }
    }
    let path = fields.get("path").and_then(|node| pattern(reader, node, &join(at, "path"), Glob::path));
    let mut leave =
        |name: &str| fields.get(name).is_some_and(|node| reader.boolean(node, &join(at, name)).unwrap_or(false));
    let allow_encoded_slash = leave("allow_encoded_slash");
    let allow_ambiguous_paths = leave("allow_ambiguous_paths");
    if let (Some((key, _)), false) = (fields.entry("allow_ambiguous_paths"), protocol.has_ambiguous_paths()) {
        let message = format!("means nothing in '{spelled}', whose paths are names");
        reader.note(key.place, &join(at, "allow_ambiguous_paths"), message, "remove the field");
    }
    let mcp_known = ["max_body_bytes", "strict_tool_names", "allow_all_known_mcp_methods"];
    let mcp_options = options(reader, fields, at, "mcp", &mcp_known);
    let json_rpc_options = options(reader, fields, at, "json_rpc", &["max_body_bytes"]);
    let max_body_bytes = match protocol {
        Protocol::Mcp => max_body_bytes(reader, mcp_options, &join(at, "mcp"), "max_body_bytes"),
        Protocol::JsonRpc => max_body_bytes(reader, json_rpc_options, &join(at, "json_rpc"), "max_body_bytes"),
        _ => max_body_bytes(reader, Some(fields), at, "graphql_max_body_bytes"),
    };
    let mcp = mcp(reader, mcp_options, &join(at, "mcp"));
    let access = fields.entry("access").and_then(|entry| access(reader, entry, at, protocol));
    let list = List { protocol, mcp, allow_encoded_slash, allow_ambiguous_paths };
    let allow = fields.get("rules").map(|node| read_rule::rules(reader, node, &join(at, "rules"), list));
    let deny = fields.get("deny_rules").map(|node| read_rule::deny_rules(reader, node, &join(at, "deny_rules"), list));
    refuse_wrong_base(reader, fields, at, protocol, mcp);
    Some(Inspection {
        policy: owner.policy.into(),
        endpoint: owner.endpoint,
        protocol,
        path: path.unwrap_or_else(Glob::every_path),
        audit,
        allow_encoded_slash,
        allow_ambiguous_paths,
        max_body_bytes,
        access,
        allow: allow.unwrap_or_default(),
        deny: deny.unwrap_or_default(),
        mcp,
        persisted: super::persisted::read(reader, fields, at),
    })
}

/// What passes at all must be said, and said once: by `access` or by `rules`.
fn refuse_wrong_base(reader: &mut Reader, fields: Fields<'_>, at: &str, protocol: Protocol, mcp: Mcp) {
    let remedy = match protocol {
        Protocol::Rest | Protocol::Websocket | Protocol::Graphql => {
            "write 'access: read-only', or list rules; 'access: full' lets everything pass"
        }
        Protocol::JsonRpc => "list rules, as in [{allow: {method: eth_call}}]",
        Protocol::Mcp => {
            "list rules, as in [{allow: {tool: search}}], or write mcp: {allow_all_known_mcp_methods: true}"
        }
        Protocol::Grpc => "list rules, as in [{allow: {service: pkg.Service, method: \"Get*\"}}]",
    };
    match (fields.entry("access"), fields.entry("rules")) {
        (Some(_), Some((key, _))) => {
            let message = "both 'access' and 'rules' say what passes";
            reader.note(key.place, &join(at, "rules"), message, "keep one of them; deny_rules may narrow either");
        }
        (None, None) if !mcp.allow_all_known_methods => {
            let message = match fields.entry("deny_rules") {
                Some(_) => "deny_rules narrow what 'access' or 'rules' let pass, and there is neither",
                None => "nothing says what may pass; expected 'access' or 'rules'",
            };
            reader.note(fields.place, at, message, remedy);
        }
        _ => {}
    }
}

fn access(reader: &mut Reader, (key, node): &(Key, Node), at: &str, protocol: Protocol) -> Option<Access> {
    let field = join(at, "access");
    let words = [
        (Access::ReadOnly.as_str(), Access::ReadOnly),
        (Access::ReadWrite.as_str(), Access::ReadWrite),
        (Access::Full.as_str(), Access::Full),
    ];
    let access = reader.word(node, &field, &words)?;
    let known = match protocol {
        Protocol::Rest | Protocol::Websocket | Protocol::Graphql => true,
        // What reads and what writes is told apart by nothing but names.
        Protocol::Grpc | Protocol::Mcp => access == Access::Full,
        Protocol::JsonRpc => false,
    };
    if !known {
        let message = format!("'{}' means nothing in '{}'", access.as_str(), protocol.as_str());
        let remedy = match protocol {
            Protocol::JsonRpc => "list rules; [{allow: {method: \"*\"}}] lets every call pass",
            _ => "list rules, or write 'full'",
        };
        reader.note(key.place, &field, message, remedy);
        return None;
    }
    Some(access)
}

/// The section of options that a protocol has, its keys checked.
fn options<'n>(reader: &mut Reader, fields: Fields<'n>, at: &str, section: &str, known: &[&str]) -> Option<Fields<'n>> {
    fields.get(section).and_then(|node| reader.fields(node, &join(at, section), known))
}

fn mcp(reader: &mut Reader, options: Option<Fields<'_>>, at: &str) -> Mcp {
    let mut mcp = Mcp::default();
    let Some(options) = options else { return mcp };
    let mut flag = |name: &str, default: bool| {
        options.get(name).and_then(|node| reader.boolean(node, &join(at, name))).unwrap_or(default)
    };
    mcp.strict_tool_names = flag("strict_tool_names", mcp.strict_tool_names);
    mcp.allow_all_known_methods = flag("allow_all_known_mcp_methods", mcp.allow_all_known_methods);
    mcp
}

/// The limit of the one field that a protocol keeps it in.
fn max_body_bytes(reader: &mut Reader, options: Option<Fields<'_>>, at: &str, name: &str) -> usize {
    let ceiling = u32::try_from(MAX_BODY_BYTES).unwrap_or(u32::MAX);
    options
        .and_then(|options| options.get(name))
        .and_then(|node| reader.integer(node, &join(at, name), 1..=ceiling))
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(DEFAULT_BODY_BYTES)
}

/// A pattern, read by `parse`.
pub(super) fn pattern(
    reader: &mut Reader,
    node: &Node,
    field: &str,
    parse: impl FnOnce(&str) -> Result<Glob, GlobError>,
) -> Option<Glob> {
    let text = reader.text(node, field)?;
    match parse(text) {
        Ok(glob) => Some(glob),
        Err(error) => {
            reader.note(node.place, field, format!("{error} (found {})", shown(node)), error.remedy());
            None
        }
    }
}
