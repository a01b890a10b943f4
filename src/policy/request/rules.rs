//! What an endpoint says of requests, compiled.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::glob::Glob;
use super::index::PathIndex;
use super::target::Target;

/// Body read where an endpoint does not say: JSON-RPC calls and GraphQL documents are a few kilobytes.
pub(super) const DEFAULT_BODY_BYTES: usize = 64 * 1024;

/// Most that an endpoint may ask to have read. The body waits in memory, once for each request under way.
pub(super) const MAX_BODY_BYTES: usize = 4 * 1024 * 1024;

/// What an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP by method, path and query.
    Rest,
    /// The same, and WebSockets.
    Websocket,
    /// GraphQL over HTTP.
    Graphql,
    /// JSON-RPC 2.0 over HTTP.
    JsonRpc,
    /// The Model Context Protocol's Streamable HTTP.
    Mcp,
    /// gRPC over HTTP/2.
    Grpc,
}

impl Protocol {
    /// As a policy spells it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rest => "rest",
            Self::Websocket => "websocket",
            Self::Graphql => "graphql",
            Self::JsonRpc => "json-rpc",
            Self::Mcp => "mcp",
            Self::Grpc => "grpc",
        }
    }

    /// Whether its paths are more than names, so that servers have a use for empty segments and parameters.
    pub(super) fn has_ambiguous_paths(self) -> bool {
        matches!(self, Self::Rest | Self::Websocket)
    }
}

/// A preset of what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Access {
    ReadOnly,
    ReadWrite,
    Full,
}

impl Access {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read-only",
            Self::ReadWrite => "read-write",
            Self::Full => "full",
        }
    }

    /// Whether the preset lets a method pass over `protocol`, REST or WebSocket. Deletion is no part of read-write.
    pub(super) fn allows_method(self, protocol: Protocol, method: &str) -> bool {
        let is = |known: &[&str]| known.iter().any(|known| known.eq_ignore_ascii_case(method));
        match (self, protocol) {
            (Self::Full, _) => true,
            (Self::ReadOnly, Protocol::Rest) => is(&["GET", "HEAD", "OPTIONS"]),
            (Self::ReadWrite, Protocol::Rest) => is(&["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH"]),
            (Self::ReadOnly, Protocol::Websocket) => is(&["GET", "HEAD"]),
            (Self::ReadWrite, Protocol::Websocket) => is(&["GET", "HEAD", TEXT]),
            _ => false,
        }
    }

    /// Whether the preset lets an operation pass.
    pub(super) fn allows_operation(self, operation: Operation) -> bool {
        match self {
            Self::Full => true,
            Self::ReadWrite => operation != Operation::Subscription,
            Self::ReadOnly => operation == Operation::Query,
        }
    }
}

/// Method by which rules name a WebSocket's text messages.
pub const TEXT: &str = "WEBSOCKET_TEXT";

/// Method by which rules name a WebSocket's binary messages.
pub const BINARY: &str = "WEBSOCKET_BINARY";

/// Kind of a GraphQL operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Query,
    Mutation,
    Subscription,
}

impl Operation {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Mutation => "mutation",
            Self::Subscription => "subscription",
        }
    }
}

/// How an endpoint's requests are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Entry, and index of the endpoint in it.
    pub(super) policy: Arc<str>,
    pub(super) endpoint: usize,
    pub(super) protocol: Protocol,
    /// Which paths the endpoint answers for.
    pub(super) path: Glob,
    /// What breaks a rule passes all the same, and is told.
    pub(super) audit: bool,
    pub(super) allow_encoded_slash: bool,
    /// Paths that can be read in more than one way are judged in each, rather than refused.
    pub(super) allow_ambiguous_paths: bool,
    pub(super) max_body_bytes: usize,
    pub(super) access: Option<Access>,
    pub(super) allow: RuleSet,
    pub(super) deny: RuleSet,
    pub(super) mcp: Mcp,
    /// Documents that may be asked for by name; `None` where none may.
    pub(super) persisted: Option<BTreeMap<String, PersistedOperation>>,
}

/// Options of `mcp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mcp {
    pub(super) strict_tool_names: bool,
    pub(super) allow_all_known_methods: bool,
}

impl Default for Mcp {
    fn default() -> Self {
        Self { strict_tool_names: true, allow_all_known_methods: false }
    }
}

/// What a registered document does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PersistedOperation {
    pub(super) operation: Operation,
    pub(super) name: Option<String>,
    /// Root fields; empty where the registry does not say.
    pub(super) fields: Vec<String>,
}

/// `rules` or `deny_rules`: of the kinds below only those that the protocol has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RuleSet {
    pub(super) requests: RequestRules,
    pub(super) grpc: Vec<GrpcRule>,
    pub(super) rpc: RpcRules,
    pub(super) graphql: Vec<GraphqlRule>,
}

impl Inspection {
    /// The one path that the endpoint answers for, where it is one.
    #[must_use]
    pub fn only_path(&self) -> Option<&str> {
        self.path.is_literal().then(|| self.path.as_str())
    }

    /// Whether the WebSocket's text messages are GraphQL, and judged as such.
    pub(super) fn speaks_graphql_messages(&self) -> bool {
        self.protocol == Protocol::Websocket && !(self.allow.graphql.is_empty() && self.deny.graphql.is_empty())
    }

    /// What endpoints that answer for the same requests must agree on, each with the name of its field. Which of them
    /// applied would otherwise depend on the order of a file.
    pub(in crate::policy) fn class(&self) -> [(&'static str, usize); 8] {
        [
            ("protocol", self.protocol as usize),
            ("enforcement", usize::from(self.audit)),
            ("allow_encoded_slash", usize::from(self.allow_encoded_slash)),
            ("allow_ambiguous_paths", usize::from(self.allow_ambiguous_paths)),
            ("max_body_bytes", self.max_body_bytes),
            ("mcp.strict_tool_names", usize::from(self.mcp.strict_tool_names)),
            ("mcp.allow_all_known_mcp_methods", usize::from(self.mcp.allow_all_known_methods)),
            ("persisted_queries", usize::from(self.persisted.is_some())),
        ]
    }

    /// Whether a request could be answered for by both: their paths overlap, and neither is more specific.
    pub(in crate::policy) fn contends(&self, other: &Self) -> bool {
        self.path.specificity() == other.path.specificity() && self.path.may_overlap(&other.path)
    }

    /// What it speaks.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Where it stands in the file.
    pub(super) fn place(&self) -> String {
        format!("network_policies.{}.endpoints[{}]", self.policy, self.endpoint)
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.protocol.as_str())?;
        if !self.path.is_everything() {
            write!(f, " on {}", self.path)?;
        }
        if self.audit { f.write_str(", audit") } else { Ok(()) }
    }
}

/// What a value is compared with: one pattern, or any of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matcher(pub(super) Vec<Glob>);

impl Matcher {
    pub(super) fn matches(&self, value: &str) -> bool {
        self.0.iter().any(|glob| glob.matches(value))
    }

    pub(super) fn has_wildcard(&self) -> bool {
        self.0.iter().any(|glob| !glob.is_literal())
    }
}

/// The method of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Any,
    /// In upper case.
    Named(String),
}

impl Method {
    /// Whether a rule can name a method: of a token's characters (RFC 9110 §5.6.2) methods use letters, `-` and `_`.
    pub(super) fn is_writable(text: &str) -> bool {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphabetic() || matches!(b, b'-' | b'_'))
    }

    /// Whether a request's method is meant. HEAD is GET without the content (RFC 9110 §9.3.2), so who may read one may
    /// ask for the other.
    fn matches(&self, method: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Named(named) => {
                named.eq_ignore_ascii_case(method) || named == "GET" && method.eq_ignore_ascii_case("HEAD")
            }
        }
    }
}

/// Which sense a rule's conditions are read in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sense {
    /// Every value must match.
    Allow,
    /// One value that matches is enough.
    Deny,
}

/// Rules by method, path and query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RequestRules {
    rules: Vec<RequestRule>,
    index: PathIndex,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RequestRule {
    /// Its index in the file's list.
    pub(super) written: usize,
    pub(super) method: Method,
    pub(super) path: Glob,
    pub(super) query: Vec<(String, Matcher)>,
}

impl RequestRules {
    pub(super) fn add(&mut self, rule: RequestRule) {
        self.index.add(&rule.path, self.rules.len());
        self.rules.push(rule);
    }

    /// Adds those that could be read.
    pub(super) fn extend(&mut self, rules: impl IntoIterator<Item = RequestRule>) {
        rules.into_iter().for_each(|rule| self.add(rule));
    }

    /// A rule that speaks of the method and path, and asks for something of the query.
    pub(super) fn near(&self, method: &str, target: &Target<'_>) -> Option<&RequestRule> {
        let asks = |rule: &RequestRule| rule.method.matches(method) && !rule.query.is_empty();
        let found = self.index.find(&target.path, &mut |at| self.rules.get(at).is_some_and(asks))?;
        self.rules.get(found)
    }

    /// The rule, by its index in the file, that speaks of the request.
    pub(super) fn find(&self, sense: Sense, method: &str, target: &Target<'_>) -> Option<usize> {
        let found = self.index.find(&target.path, &mut |at| {
            self.rules.get(at).is_some_and(|rule| {
                rule.method.matches(method) && (rule.query.is_empty() || query_matches(&rule.query, sense, target))
            })
        })?;
        self.rules.get(found).map(|rule| rule.written)
    }
}

/// Whether the query meets all conditions. A key that is not there meets none. Where servers could differ in what the
/// query's pairs are, an allow rule must hold for either reading, and a deny rule for one.
fn query_matches(conditions: &[(String, Matcher)], sense: Sense, target: &Target<'_>) -> bool {
    let found = pairs_match(conditions, sense, || target.pairs());
    if !target.has_semicolons() || found == (sense == Sense::Deny) {
        return found;
    }
    pairs_match(conditions, sense, || target.pairs_by_semicolons())
}

fn pairs_match<'t, P>(conditions: &[(String, Matcher)], sense: Sense, pairs: impl Fn() -> P) -> bool
where
    P: Iterator<Item = (Cow<'t, str>, Cow<'t, str>)>,
{
    conditions.iter().all(|(key, matcher)| {
        let mut values = pairs().filter(|(found, _)| found == key).map(|(_, value)| value).peekable();
        values.peek().is_some()
            && match sense {
                Sense::Allow => values.all(|value| matcher.matches(&value)),
                Sense::Deny => values.any(|value| matcher.matches(&value)),
            }
    })
}

/// A rule about `/SERVICE/METHOD` whose service is a pattern; others are rules about paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GrpcRule {
    pub(super) written: usize,
    pub(super) service: Glob,
    pub(super) method: Glob,
}

impl RuleSet {
    /// The rule that speaks of a gRPC call.
    pub(super) fn find_call(&self, sense: Sense, target: &Target<'_>) -> Option<usize> {
        if let Some(found) = self.requests.find(sense, "POST", target) {
            return Some(found);
        }
        let (service, method) = target.path.strip_prefix('/')?.split_once('/')?;
        let fits =
            |rule: &&GrpcRule| !method.contains('/') && rule.service.matches(service) && rule.method.matches(method);
        self.grpc.iter().find(fits).map(|rule| rule.written)
    }
}

/// Rules about JSON-RPC calls, by method.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RpcRules {
    rules: Vec<RpcRule>,
    by_method: HashMap<String, Vec<usize>>,
    by_pattern: Vec<usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RpcRule {
    pub(super) written: usize,
    pub(super) method: Glob,
    /// Of `tools/call`: the tool.
    pub(super) tool: Option<Matcher>,
    /// Paths into `params`, and what is expected there.
    pub(super) params: Vec<(Vec<String>, Matcher)>,
}

impl RpcRules {
    pub(super) fn add(&mut self, rule: RpcRule) {
        let at = self.rules.len();
        match rule.method.is_literal() {
            true => self.by_method.entry(rule.method.as_str().to_owned()).or_default().push(at),
            false => self.by_pattern.push(at),
        }
        self.rules.push(rule);
    }

    /// All rules, in the order of the file.
    pub(super) fn iter(&self) -> impl Iterator<Item = &RpcRule> {
        self.rules.iter()
    }

    /// Those about a method.
    pub(super) fn about<'r>(&'r self, method: &'r str) -> impl Iterator<Item = &'r RpcRule> {
        let named = self.by_method.get(method).into_iter().flatten().filter_map(|at| self.rules.get(*at));
        let patterns = self.by_pattern.iter().filter_map(|at| self.rules.get(*at));
        named.chain(patterns.filter(move |rule| rule.method.matches(method)))
    }
}

/// A rule about GraphQL operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GraphqlRule {
    pub(super) written: usize,
    /// `None` for every kind.
    pub(super) operation: Option<Operation>,
    pub(super) name: Option<Glob>,
    /// Root fields; empty for every field.
    pub(super) fields: Vec<Glob>,
}

impl GraphqlRule {
    /// Whether it speaks of an operation's root field; `None` is a field that is not known.
    pub(super) fn covers(&self, operation: Operation, name: Option<&str>, field: Option<&str>, sense: Sense) -> bool {
        let kind = self.operation.is_none_or(|expected| expected == operation);
        let named = self.name.as_ref().is_none_or(|glob| name.is_some_and(|name| glob.matches(name)));
        let fields = self.fields.is_empty()
            || match field {
                Some(field) => self.fields.iter().any(|glob| glob.matches(field)),
                None => sense == Sense::Deny,
            };
        kind && named && fields
    }
}
