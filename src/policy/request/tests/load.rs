//! Every rule that a policy must keep where it speaks of requests.

use crate::policy::Policy;

use super::policy;

fn refuses(endpoints: &str, expected: &str) {
    let error = Policy::parse(&policy(endpoints), "p.yaml").expect_err(endpoints);
    assert_eq!(error.problems.len(), 1, "one mistake, one error: {endpoints}\n{error}");
    let told = &error.problems[0];
    assert!(told.line >= 5 && told.column >= 9, "{error}");
    assert!(told.field.starts_with("network_policies.k.endpoints["), "{error}");
    assert!(!told.remedy.is_empty());
    assert!(error.to_string().contains(expected), "{endpoints}\n gave {error}\n expected {expected}");
}

fn takes(endpoints: &str) {
    if let Err(error) = Policy::parse(&policy(endpoints), "p.yaml") {
        panic!("{endpoints}\n{error}");
    }
}

#[test]
fn errors_stand_at_their_line_and_column() {
    let text = policy("protocol: rest, rules: [{allow: {method: GET, path: '/v[12]'}}]");
    let error = Policy::parse(&text, "p.yaml").unwrap_err().to_string();
    let column = text.lines().nth(4).unwrap().find("'/v[12]'").unwrap() + 1;
    let place = format!("p.yaml:5:{column}: network_policies.k.endpoints[0].rules[0].allow.path: ");
    assert!(error.starts_with(&place), "{error}");
}

#[test]
fn fields_about_requests_need_a_protocol() {
    for field in [
        "path: /v1/**",
        "access: read-only",
        "rules: [{allow: {method: GET, path: /x}}]",
        "deny_rules: [{method: GET}]",
        "allow_ambiguous_paths: true",
        "allow_encoded_slash: true",
        "enforcement: audit",
    ] {
        refuses(field, "needs 'protocol'");
        let base = if field.starts_with("access") || field.starts_with("rules") { "" } else { ", access: full" };
        takes(&format!("protocol: rest, {field}{base}"));
    }
    for field in ["mcp: {}", "json_rpc: {}", "graphql_max_body_bytes: 1", "persisted_queries: deny"] {
        refuses(field, "needs 'protocol'");
    }
    takes("enforcement: enforce");
    takes("protocol: tcp");
    refuses("protocol: tcp, access: full", "means nothing with 'protocol: tcp'");
    refuses("protocol: sql, access: full", "'sql' is not enforced by this build yet");
    refuses("protocol: http, access: full", "expected rest or websocket or graphql or json-rpc or mcp or grpc or tcp");
}

#[test]
fn an_inspected_endpoint_names_its_host_and_is_intercepted() {
    for (host, rest, expected) in [
        ("allowed_ips: [10.0.0.0/8]", "protocol: rest, access: full", Some("'rest' needs 'host'")),
        ("allowed_ips: [10.0.0.0/8]", "protocol: tcp", Some("'tcp' needs a DNS name")),
        ("host: 10.1.2.3", "protocol: tcp", Some("'tcp' needs a DNS name")),
        ("host: api.example.com.", "protocol: tcp", Some("without a dot at its end")),
        ("host: api.example.com", "protocol: rest, access: full, tls: skip", Some("'skip' leaves nothing to read")),
        ("host: api.example.com, allowed_ips: [10.0.0.0/8]", "protocol: rest, access: full, tls: auto", None),
        ("host: 10.1.2.3", "protocol: rest, access: full", None),
        ("host: api.example.com", "protocol: tcp, tls: skip", None),
    ] {
        let text =
            format!("version: 1\nnetwork_policies:\n  k:\n    endpoints:\n      - {{{host}, port: 443, {rest}}}\n");
        match (Policy::parse(&text, "p.yaml"), expected) {
            (Ok(_), None) => {}
            (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{error}"),
            (read, _) => panic!("{text}: {read:?}"),
        }
    }
}

#[test]
fn what_passes_is_said_once() {
    let rule = "rules: [{allow: {method: GET, path: /x}}]";
    refuses("protocol: rest", "nothing says what may pass");
    refuses("protocol: rest, deny_rules: [{method: GET}]", "and there is neither");
    refuses(&format!("protocol: rest, access: full, {rule}"), "both 'access' and 'rules'");
    refuses("protocol: rest, rules: []", "0 rules; expected 1 to");
    refuses("protocol: rest, rules: ~", "0 rules; expected 1 to");
    refuses("protocol: rest, access: full, deny_rules: []", "0 rules; expected 1 to");
    refuses("protocol: rest, access: none", "expected read-only or read-write or full");
    refuses("protocol: rest, rules: [{}]", "a rule says what it allows");
    refuses("protocol: rest, rules: [{allow: {}}]", "says nothing");
    refuses("protocol: rest, access: full, deny_rules: [{}]", "says nothing");
    refuses("protocol: rest, rules: [{allow: {method: GET, path: /x}, deny: {}}]", "unknown key");
    takes(&format!("protocol: rest, {rule}, deny_rules: [{{path: /y}}]"));
    takes("protocol: rest, access: read-write, deny_rules: [{query: {a: b}}]");
    takes("protocol: mcp, mcp: {allow_all_known_mcp_methods: true}");
    refuses("protocol: mcp, mcp: {allow_all_known_mcp_methods: false}", "nothing says what may pass");
    for (protocol, fails, takes_it) in [
        ("grpc", &["read-only", "read-write"][..], &["full"][..]),
        ("mcp", &["read-only", "read-write"], &["full"]),
        ("json-rpc", &["read-only", "read-write", "full"], &[]),
        ("graphql", &[], &["read-only", "read-write", "full"]),
        ("websocket", &[], &["read-only", "read-write", "full"]),
        ("rest", &[], &["read-only", "read-write", "full"]),
    ] {
        for access in fails {
            refuses(&format!("protocol: {protocol}, access: {access}"), &format!("means nothing in '{protocol}'"));
        }
        for access in takes_it {
            takes(&format!("protocol: {protocol}, access: {access}"));
        }
    }
}

#[test]
fn rules_say_what_their_protocol_has() {
    for (protocol, allow, expected) in [
        ("rest", "operation_type: query", "means nothing in 'protocol: rest'"),
        ("rest", "tool: x", "means nothing in 'protocol: rest'"),
        ("rest", "command: SELECT", "SQL is not enforced"),
        ("graphql", "method: GET", "means nothing in 'protocol: graphql'"),
        ("json-rpc", "tool: x", "means nothing"),
        ("grpc", "path: /x", "means nothing"),
        ("rest", "methd: GET", "did you mean \"method\"?"),
        ("rest", "path: /x", "method: missing"),
        ("rest", "method: GET", "path: missing"),
        ("rest", "method: 'GET POST', path: /x", "expected a method such as GET"),
        ("rest", "method: 'G*', path: /x", "expected a method such as GET"),
        ("rest", "method: WEBSOCKET_TEXT, path: /x", "names messages of a WebSocket"),
        ("rest", "method: GET, path: x", "starts with '/', or '**'"),
        ("rest", "method: GET, path: '*'", "starts with '/', or '**'"),
        ("rest", "method: GET, path: ''", "the pattern is empty"),
        ("rest", "method: GET, path: '/a**'", "'**' must be a whole segment"),
        ("rest", "method: GET, path: '/a?b=c'", "match the query under 'query:'"),
        ("rest", "method: GET, path: '/{a,b}'", "list alternatives"),
        ("rest", "method: GET, path: /a/../b", "no request can have this path"),
        ("rest", "method: GET, path: /a//b", "no request can have this path"),
        ("rest", "method: GET, path: '/a;b'", "no request can have this path"),
        ("rest", "method: GET, path: /a%2Fb", "allow_encoded_slash: true"),
        ("rest", "method: GET, path: /x, query: {}", "holds no condition"),
        ("rest", "method: GET, path: /x, query: {a: [b]}", "expected text, found a list"),
        ("rest", "method: GET, path: /x, query: {a: {any: []}}", "0 patterns; expected 1 to"),
        ("rest", "method: GET, path: /x, query: {a: {all: [b]}}", "unknown key"),
        ("rest", "method: GET, path: /x, query: {a: {}}", "write {any: [one, another]}"),
        ("rest", "method: GET, path: /x, query: {a: '{b,c}'}", "only '*' and '**' are wildcards"),
        ("websocket", "method: GET, path: /x, operation_type: query", "write two rules"),
        ("graphql", "fields: [me]", "operation_type: missing"),
        ("graphql", "operation_type: read", "expected query or mutation or subscription or *"),
        ("graphql", "operation_type: query, fields: []", "0 patterns"),
        ("json-rpc", "params: {a: b}", "method: missing"),
        ("json-rpc", "method: 'eth_*'", "expected a method, or '*' for every one"),
        ("json-rpc", "method: x, params: {a..b: c}", "no path into the parameters"),
        ("mcp", "method: '*'", "or a pattern under tools/"),
        ("mcp", "method: 'resources/*'", "or a pattern under tools/"),
        ("mcp", "method: tools/list, tool: x", "a rule about a tool is about 'tools/call'"),
        ("mcp", "tool: x, params: {name: y}", "are the same"),
        ("mcp", "params: {arguments.a: y}", "method: missing"),
        ("grpc", "service: pkg.Service", "method: missing"),
        ("grpc", "method: Get", "service: missing"),
        ("grpc", "service: pkg/Service, method: Get", "no name of Protocol Buffers holds '/'"),
        ("grpc", "service: 'pkg.S**', method: Get", "'**' must be a whole segment"),
    ] {
        refuses(&format!("protocol: {protocol}, rules: [{{allow: {{{allow}}}}}]"), expected);
    }
    for (protocol, allow) in [
        ("rest", "method: get, path: '/a/*/b/**'"),
        ("rest", "method: '*', path: '**', query: {a: 'v*', b: {any: [c, d]}}"),
        ("websocket", "method: WEBSOCKET_TEXT, path: /x"),
        ("websocket", "operation_type: subscription"),
        ("graphql", "operation_type: '*', operation_name: 'Get*', fields: [me, 'list*']"),
        ("json-rpc", "method: '*'"),
        ("json-rpc", "method: eth_call, params: {'0.to': '0x*'}"),
        ("mcp", "method: 'tools/*'"),
        ("mcp", "method: DELETE"),
        ("mcp", "tool: 'read_*', params: {arguments.repo: 'octo/*'}"),
        ("mcp", "method: tools/call, params: {name: search}"),
        ("grpc", "service: '**', method: '*'"),
        ("grpc", "service: 'pkg.*', method: 'Get*'"),
    ] {
        takes(&format!("protocol: {protocol}, rules: [{{allow: {{{allow}}}}}]"));
    }
    takes("protocol: rest, allow_encoded_slash: true, rules: [{allow: {method: GET, path: /a%2fb}}]");
    takes("protocol: rest, allow_ambiguous_paths: true, rules: [{allow: {method: GET, path: /a//b}}]");
    refuses("protocol: rest, rules: [{allow: {method: GET, path: /a//b}}]", "empty segment");
    takes("protocol: websocket, allow_ambiguous_paths: true, access: full");
    refuses("protocol: mcp, allow_ambiguous_paths: true, access: full", "means nothing in 'mcp'");
}

#[test]
fn options_belong_to_their_protocol() {
    for (option, own) in [
        ("graphql_max_body_bytes: 1", "graphql"),
        ("persisted_queries: deny", "graphql"),
        ("json_rpc: {max_body_bytes: 1}", "json-rpc"),
        ("mcp: {max_body_bytes: 1}", "mcp"),
    ] {
        let rules = |protocol: &str| match protocol {
            "json-rpc" => "rules: [{allow: {method: x}}]",
            _ => "access: full",
        };
        refuses(&format!("protocol: rest, access: full, {option}"), &format!("belongs to 'protocol: {own}'"));
        takes(&format!("protocol: {own}, {}, {option}", rules(own)));
    }
    refuses("protocol: graphql, access: full, graphql_max_body_bytes: 0", "expected a number from 1 to 4194304");
    refuses("protocol: mcp, access: full, mcp: {max_body_bytes: 4194305}", "expected a number from 1 to 4194304");
    refuses("protocol: mcp, access: full, mcp: {strict: true}", "unknown key");
    refuses("protocol: json-rpc, rules: [{allow: {method: x}}], json_rpc: {max: 1}", "unknown key");
    let registry = "graphql_persisted_queries: {abc: {operation_type: query}}";
    refuses(&format!("protocol: graphql, access: full, {registry}"), "'persisted_queries' does not allow");
    refuses("protocol: graphql, access: full, persisted_queries: allow_registered", "missing; 'allow_registered'");
    refuses(
        "protocol: graphql, access: full, persisted_queries: allow_registered, graphql_persisted_queries: {abc: {}}",
        "operation_type: missing",
    );
    takes(&format!("protocol: graphql, access: full, persisted_queries: allow_registered, {registry}"));
}

#[test]
fn mcp_rules_do_not_undo_each_other() {
    let broad = "{allow: {method: tools/call}}, {allow: {tool: x}}";
    refuses(&format!("protocol: mcp, rules: [{broad}]"), "rules[0] allows every tool");
    refuses("protocol: mcp, rules: [{allow: {method: 'tools/*'}}, {allow: {tool: x}}]", "rules[0] allows every tool");
    takes("protocol: mcp, rules: [{allow: {method: tools/list}}, {allow: {tool: x}}]");
    let lax = "mcp: {strict_tool_names: false}";
    refuses(&format!("protocol: mcp, {lax}, rules: [{{allow: {{tool: 'x*'}}}}]"), "needs mcp.strict_tool_names");
    takes(&format!("protocol: mcp, {lax}, rules: [{{allow: {{tool: 'x y'}}}}]"));
    takes("protocol: mcp, rules: [{allow: {tool: 'x*'}}]");
}

#[test]
fn endpoints_for_the_same_requests_must_agree() {
    let rest = "protocol: rest, access: full";
    for (one, two, field) in [
        (rest, "protocol: websocket, access: full", "protocol"),
        (rest, "protocol: rest, access: full, enforcement: audit", "enforcement"),
        (rest, "protocol: rest, access: full, allow_encoded_slash: true", "allow_encoded_slash"),
        (rest, "protocol: rest, access: full, allow_ambiguous_paths: true", "allow_ambiguous_paths"),
        (rest, "tls: auto", "protocol"),
        (rest, "tls: skip", "tls"),
        (
            "protocol: mcp, access: full",
            "protocol: mcp, access: full, mcp: {strict_tool_names: false}",
            "mcp.strict_tool_names",
        ),
        ("protocol: mcp, access: full", "protocol: mcp, access: full, mcp: {max_body_bytes: 1}", "max_body_bytes"),
        ("path: /a/*, protocol: rest, access: full", "path: '/*/a', protocol: graphql, access: full", "protocol"),
        ("path: /a, protocol: rest, access: full", "tls: auto", "protocol"),
    ] {
        refuses(&format!("{one}\n{two}"), &format!("but differs in {field}"));
        takes(&format!("{one}\n{one}"));
    }
    // The more specific path decides, so that these may differ.
    takes("protocol: rest, access: full\npath: /graphql, protocol: graphql, access: read-only");
    takes("path: /a/**, protocol: rest, access: full\npath: /b/**, protocol: graphql, access: full");
    takes("protocol: rest, access: read-only\nprotocol: rest, rules: [{allow: {method: POST, path: /x}}]");
}
