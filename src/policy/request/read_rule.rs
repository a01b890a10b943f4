//! Reading single rules, of `rules` and of `deny_rules`.

use crate::policy::reader::{Fields, Reader, join, shown};
use crate::policy::yaml::{Node, Place, Value};

use super::glob::Glob;
use super::persisted::OPERATIONS;
use super::read::pattern;
use super::rules::{
    BINARY, GraphqlRule, GrpcRule, Matcher, Mcp, Method, Operation, Protocol, RequestRule, RpcRule, RuleSet, TEXT,
};

/// Most rules of one list. Each is small, but an endpoint with more is generated, and should be two endpoints.
const MAX_RULES: usize = 10_000;

/// Most patterns of one condition, each compared with every value.
const MAX_PATTERNS: usize = 256;

/// Longest name of a query key, or of a path into parameters.
const MAX_NAME: usize = 256;

/// Everything that a rule of some protocol may say.
const FIELDS: &[&str] =
    &["method", "path", "query", "operation_type", "operation_name", "fields", "tool", "params", "service", "command"];

/// The fields that name HTTP requests, and those that name GraphQL operations.
const REQUEST: &[&str] = &["method", "path", "query"];
const OPERATION: &[&str] = &["operation_type", "operation_name", "fields"];

/// What the rules of a list have in common.
#[derive(Clone, Copy)]
pub(super) struct List {
    pub(super) protocol: Protocol,
    pub(super) mcp: Mcp,
    pub(super) allow_encoded_slash: bool,
    pub(super) allow_ambiguous_paths: bool,
}

/// One rule, while it is read.
struct Written<'r, 'n> {
    reader: &'r mut Reader,
    fields: Fields<'n>,
    at: String,
    index: usize,
    list: List,
    denies: bool,
}

/// Reads `rules`.
pub(super) fn rules(reader: &mut Reader, node: &Node, at: &str, list: List) -> RuleSet {
    let mut set = RuleSet::default();
    for (index, node) in items(reader, node, at, "[{allow: {method: GET, path: /v1/**}}]") {
        let at = format!("{at}[{index}]");
        let Some(fields) = reader.fields(node, &at, &["allow"]) else { continue };
        let field = join(&at, "allow");
        let Some(node) = fields.get("allow") else {
            reader.note(fields.place, &field, "missing; a rule says what it allows", "write '- allow: {…}'");
            continue;
        };
        rule(reader, node, field, index, list, false, &mut set);
    }
    refuse_broad_beside_narrow(reader, node, at, &set);
    set
}

/// Reads `deny_rules`.
pub(super) fn deny_rules(reader: &mut Reader, node: &Node, at: &str, list: List) -> RuleSet {
    let mut set = RuleSet::default();
    for (index, node) in items(reader, node, at, "[{method: DELETE}]") {
        rule(reader, node, format!("{at}[{index}]"), index, list, true, &mut set);
    }
    set
}

fn items<'n>(
    reader: &mut Reader,
    node: &'n Node,
    at: &str,
    example: &str,
) -> impl Iterator<Item = (usize, &'n Node)> + use<'n> {
    let items = reader.list(node, at);
    if items.is_empty() || items.len() > MAX_RULES {
        let message = format!("{} rules; expected 1 to {MAX_RULES}", items.len());
        reader.note(node.place, at, message, format!("list rules, as in {example}, or remove the field"));
    }
    items.iter().take(MAX_RULES).enumerate()
}

/// A rule for all of `tools/call` would make those for single tools mean nothing.
fn refuse_broad_beside_narrow(reader: &mut Reader, node: &Node, at: &str, set: &RuleSet) {
    let narrow = set.rpc.iter().find(|rule| rule.tool.is_some());
    let broad = set.rpc.about("tools/call").find(|rule| rule.tool.is_none() && rule.params.is_empty());
    if let (Some(narrow), Some(broad)) = (narrow, broad) {
        let message = format!(
            "rules[{}] allows every tool, so that rules[{}], which allows some, means nothing",
            broad.written, narrow.written
        );
        reader.note(node.place, at, message, "remove one of the two");
    }
}

fn rule(reader: &mut Reader, node: &Node, at: String, index: usize, list: List, denies: bool, set: &mut RuleSet) {
    let Some(fields) = reader.fields(node, &at, FIELDS) else { return };
    if has_unknown(node, FIELDS) {
        return;
    }
    let known: &[&str] = match list.protocol {
        Protocol::Rest => REQUEST,
        Protocol::Websocket => &["method", "path", "query", "operation_type", "operation_name", "fields"],
        Protocol::Graphql => OPERATION,
        Protocol::JsonRpc => &["method", "params"],
        Protocol::Mcp => &["method", "tool", "params"],
        Protocol::Grpc => &["service", "method"],
    };
    let mut foreign = false;
    for name in FIELDS.iter().filter(|name| !known.contains(*name)) {
        if let Some((key, _)) = fields.entry(name) {
            let message = format!("means nothing in 'protocol: {}'", list.protocol.as_str());
            let remedy = match *name {
                "command" => "remove it; SQL is not enforced by this build yet".to_owned(),
                _ => format!("remove it; known here: {}", known.join(", ")),
            };
            reader.note(key.place, &join(&at, name), message, remedy);
            foreign = true;
        }
    }
    if foreign {
        return;
    }
    if !known.iter().any(|name| fields.get(name).is_some()) {
        let remedy = format!("give at least one of {}", known.join(", "));
        reader.note(node.place, &at, "says nothing, and would mean every request", remedy);
        return;
    }
    let mut written = Written { reader, fields, at, index, list, denies };
    // A rule that could not be read is left out: its problem is noted, and the policy refused as a whole.
    match list.protocol {
        Protocol::Rest => set.requests.extend(written.request()),
        Protocol::Websocket => {
            let asks = |names: &[&str]| names.iter().any(|name| written.fields.get(name).is_some());
            match (asks(REQUEST), asks(OPERATION)) {
                (true, true) => written.note_mixed(node.place),
                (_, true) => set.graphql.extend(written.operation()),
                _ => set.requests.extend(written.request()),
            }
        }
        Protocol::Graphql => set.graphql.extend(written.operation()),
        Protocol::JsonRpc | Protocol::Mcp => {
            if let Some(rule) = written.call() {
                set.rpc.add(rule);
            }
        }
        Protocol::Grpc => written.grpc(set),
    }
}

/// Whether a mapping has keys that nobody knows: they have been told, and what is amiss besides follows from them.
fn has_unknown(node: &Node, known: &[&str]) -> bool {
    match &node.value {
        Value::Mapping(entries) => entries.iter().any(|(key, _)| !known.contains(&key.text.as_str())),
        _ => false,
    }
}

impl Written<'_, '_> {
    fn field(&self, name: &str) -> String {
        join(&self.at, name)
    }

    fn note(&mut self, place: Place, name: &str, message: impl Into<String>, remedy: impl Into<String>) {
        let field = self.field(name);
        self.reader.note(place, &field, message, remedy);
    }

    fn note_mixed(&mut self, place: Place) {
        let message = "names both HTTP requests and GraphQL operations";
        self.reader.note(place, &self.at, message, "write two rules");
    }

    /// A pattern under `name`, if the field is there.
    fn pattern(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<Glob, super::glob::GlobError>,
    ) -> Option<Option<Glob>> {
        let field = self.field(name);
        match self.fields.get(name) {
            None => Some(None),
            Some(node) => pattern(self.reader, node, &field, parse).map(Some),
        }
    }

    /// What an allow rule must say, so that it never allows more than it spells out.
    fn required<T>(&mut self, name: &str, value: Option<T>, everything: T, example: &str) -> Option<T> {
        if value.is_none() && !self.denies {
            let remedy = format!("write '{name}: {example}', or '{name}: \"**\"' for every one");
            let remedy = if name == "path" { remedy } else { remedy.replace("**", "*") };
            self.note(self.fields.place, name, "missing", remedy);
            return None;
        }
        Some(value.unwrap_or(everything))
    }

    fn request(&mut self) -> Option<RequestRule> {
        let method = self.method();
        let parse = if self.list.allow_ambiguous_paths { Glob::ambiguous_path } else { Glob::path };
        let path = self.pattern("path", parse);
        let query = self.query();
        let path = self.required("path", path?, Glob::every_path(), "/v1/**")?;
        if path.as_str().contains("%2F") && !self.list.allow_encoded_slash {
            let place = self.fields.get("path").map_or(self.fields.place, |node| node.place);
            let message = "holds an escaped slash, and requests with one are refused";
            self.note(place, "path", message, "write 'allow_encoded_slash: true' on the endpoint");
        }
        Some(RequestRule { written: self.index, method: method?, path, query: query? })
    }

    fn method(&mut self) -> Option<Method> {
        let Some(node) = self.fields.get("method") else {
            return self.required("method", None, Method::Any, "GET");
        };
        let field = self.field("method");
        let text = self.reader.text(node, &field)?;
        if text == "*" {
            return Some(Method::Any);
        }
        let upper = text.to_ascii_uppercase();
        let message = matches!(upper.as_str(), TEXT | BINARY) && self.list.protocol != Protocol::Websocket;
        if !Method::is_writable(text) {
            let found = format!("expected a method such as GET, or '*' for every one; found {}", shown(node));
            self.note(node.place, "method", found, "write one method, and a rule for each further one");
            return None;
        }
        if message {
            self.note(node.place, "method", "names messages of a WebSocket", "write 'protocol: websocket'");
            return None;
        }
        Some(Method::Named(upper))
    }

    fn query(&mut self) -> Option<Vec<(String, Matcher)>> {
        let Some(node) = self.fields.get("query") else { return Some(Vec::new()) };
        let field = self.field("query");
        self.conditions(node, &field).map(|conditions| conditions.into_iter().collect())
    }

    /// A mapping of names to matchers.
    fn conditions(&mut self, node: &Node, field: &str) -> Option<Vec<(String, Matcher)>> {
        let entries = self.reader.entries(node, field)?;
        if entries.is_empty() {
            self.reader.note(node.place, field, "holds no condition", "write 'key: value', or remove the field");
            return None;
        }
        let mut conditions = Vec::new();
        let mut whole = true;
        for (key, node) in entries {
            let at = join(field, &key.text);
            if key.text.is_empty() || key.text.len() > MAX_NAME {
                let message = format!("expected a name of 1 to {MAX_NAME} bytes");
                self.reader.note(key.place, field, message, "correct the name");
                whole = false;
            }
            match self.matcher(node, &at) {
                Some(matcher) => conditions.push((key.text.clone(), matcher)),
                None => whole = false,
            }
        }
        whole.then_some(conditions)
    }

    /// A pattern, or `{any: [patterns]}`.
    fn matcher(&mut self, node: &Node, at: &str) -> Option<Matcher> {
        let Value::Mapping(_) = node.value else {
            return pattern(self.reader, node, at, Glob::free).map(|glob| Matcher(vec![glob]));
        };
        let fields = self.reader.fields(node, at, &["any"])?;
        if has_unknown(node, &["any"]) {
            return None;
        }
        let at = join(at, "any");
        let Some(node) = fields.get("any") else {
            self.reader.note(fields.place, &at, "missing", "write {any: [one, another]}, or one pattern");
            return None;
        };
        self.globs(node, &at).map(Matcher)
    }

    /// A list of patterns, not empty.
    fn globs(&mut self, node: &Node, at: &str) -> Option<Vec<Glob>> {
        let items = self.reader.list(node, at);
        if items.is_empty() || items.len() > MAX_PATTERNS {
            let message = format!("{} patterns; expected 1 to {MAX_PATTERNS}", items.len());
            self.reader.note(node.place, at, message, "list what may stand there");
            return None;
        }
        let read: Vec<Glob> = items
            .iter()
            .enumerate()
            .filter_map(|(index, node)| pattern(self.reader, node, &format!("{at}[{index}]"), Glob::free))
            .collect();
        (read.len() == items.len()).then_some(read)
    }

    fn operation(&mut self) -> Option<GraphqlRule> {
        let kinds: Vec<(&str, Option<Operation>)> =
            OPERATIONS.iter().map(|(word, operation)| (*word, Some(*operation))).chain([("*", None)]).collect();
        let field = self.field("operation_type");
        let operation = match self.fields.get("operation_type") {
            Some(node) => self.reader.word(node, &field, &kinds),
            None => self.required("operation_type", None, None, "query"),
        };
        let name = self.pattern("operation_name", Glob::free);
        let field = self.field("fields");
        let fields = match self.fields.get("fields") {
            Some(node) => self.globs(node, &field),
            None => Some(Vec::new()),
        };
        Some(GraphqlRule { written: self.index, operation: operation?, name: name?, fields: fields? })
    }

    fn grpc(&mut self, set: &mut RuleSet) {
        let service = self.pattern("service", Glob::dotted);
        let method = self.pattern("method", Glob::free);
        let every = (Glob::dotted("**"), Glob::free("*"));
        let (Some(service), Some(method), (Ok(every_service), Ok(every_method))) = (service, method, every) else {
            return;
        };
        let service = self.required("service", service, every_service, "pkg.Service");
        let method = self.required("method", method, every_method, "Get");
        let (Some(service), Some(method)) = (service, method) else { return };
        for (name, glob) in [("service", &service), ("method", &method)] {
            if let Some(c) = glob.as_str().chars().find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '_' | '.' | '*'))
            {
                let place = self.fields.get(name).map_or(self.fields.place, |node| node.place);
                let message = format!("no name of Protocol Buffers holds {c:?}");
                self.note(place, name, message, "write it as the .proto file does, package first");
                return;
            }
        }
        // A service by name is a path like another, and found as fast.
        if service.is_literal()
            && let Ok(path) = Glob::path(&format!("/{service}/{}", method.as_str().replace("**", "*")))
        {
            set.requests.add(RequestRule { written: self.index, method: Method::Any, path, query: Vec::new() });
        } else {
            set.grpc.push(GrpcRule { written: self.index, service, method });
        }
    }

    fn call(&mut self) -> Option<RpcRule> {
        let mcp = self.list.protocol == Protocol::Mcp;
        let params = self.params();
        let field = self.field("tool");
        let tool = match self.fields.get("tool") {
            Some(node) => Some(self.matcher(node, &field)?),
            None => None,
        };
        let mut params = params?;
        // `tool` is the short form of `params.name`.
        let named = params.iter().position(|(path, _)| mcp && path.len() == 1 && path[0] == "name");
        let named = named.map(|at| params.remove(at).1);
        if tool.is_some() && named.is_some() {
            self.note(self.fields.place, "tool", "'tool' and 'params.name' are the same", "keep one of them");
            return None;
        }
        let tool = tool.or(named);
        if tool.as_ref().is_some_and(Matcher::has_wildcard) && !self.list.mcp.strict_tool_names {
            let message = "a pattern of tool names needs mcp.strict_tool_names, or names could hide what they are";
            self.note(self.fields.place, "tool", message, "write the names out, or leave strict_tool_names true");
        }
        let method = self.pattern("method", Glob::free)?;
        let place = self.fields.get("method").map_or(self.fields.place, |node| node.place);
        if tool.is_some() && method.as_ref().is_some_and(|method| method.as_str() != "tools/call") {
            let message = "a rule about a tool is about 'tools/call'";
            self.note(place, "method", message, "remove 'method', or write tools/call");
            return None;
        }
        let tool_call = if tool.is_some() { Glob::free("tools/call").ok() } else { None };
        let method = self.required("method", method.or(tool_call), Glob::free("*").ok()?, "tools/list")?;
        let text = method.as_str();
        let expected = match (mcp, self.denies) {
            _ if method.is_literal() => None,
            (true, _) if text.starts_with("tools/") => None,
            (_, true) if text == "*" => None,
            (false, _) if text == "*" => None,
            (true, _) => Some("expected a method, or a pattern under tools/"),
            (false, _) => Some("expected a method, or '*' for every one"),
        };
        if let Some(expected) = expected {
            let remedy = match mcp {
                true => "write the methods out, or 'access: full', or mcp: {allow_all_known_mcp_methods: true}",
                false => "write a rule for each method",
            };
            self.note(place, "method", format!("{expected}; found {text:?}"), remedy);
            return None;
        }
        Some(RpcRule { written: self.index, method, tool, params })
    }

    fn params(&mut self) -> Option<Vec<(Vec<String>, Matcher)>> {
        let Some(node) = self.fields.get("params") else { return Some(Vec::new()) };
        let field = self.field("params");
        let conditions = self.conditions(node, &field)?;
        let mut params = Vec::new();
        for (name, matcher) in conditions {
            let path: Vec<String> = name.split('.').map(str::to_owned).collect();
            if path.iter().any(String::is_empty) {
                let message = format!("{name:?} is no path into the parameters");
                self.reader.note(node.place, &field, message, "write names joined by dots, as in arguments.repo");
                return None;
            }
            params.push((path, matcher));
        }
        Some(params)
    }
}
