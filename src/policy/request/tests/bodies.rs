//! Requests that their body decides: GraphQL, JSON-RPC and MCP.

use serde_json::{Value, json};

use crate::policy::decision::Decision;
use crate::policy::request::{Head, Judgement, RefusalKind};

use super::{decision, denied, judge, malformed, passes, post, refused};

/// Wraps a document as a body.
fn document(text: &str) -> String {
    json!({ "query": text }).to_string()
}

#[test]
fn a_denied_parameter_is_found_by_position_and_by_value() {
    let rules = "rules: [{allow: {method: '*'}}], deny_rules: [{method: pay, params: {to: evil}}, {params: {n: '1'}}]";
    let decision = decision(&format!("protocol: json-rpc, {rules}"));
    for params in [json!({"to": "evil"}), json!(["evil"]), json!([["evil"]]), json!(["good", "evil"])] {
        denied(post(&decision, "/", &call("pay", params)));
    }
    for number in ["1", "1.0", "1e0", "10e-1"] {
        let body = format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "x", "params": {{"n": {number}}}}}"#);
        denied(post(&decision, "/", &body));
    }
    let zero = self::decision("protocol: json-rpc, rules: [{allow: {method: '*'}}], deny_rules: [{params: {n: '0'}}]");
    for number in ["0", "0.0", "-0", "-0.0", "-0e5"] {
        let body = format!(r#"{{"jsonrpc": "2.0", "id": 1, "method": "x", "params": {{"n": {number}}}}}"#);
        denied(post(&zero, "/", &body));
        passes(post(&decision, "/", &body));
    }
    for params in [json!({"to": "good"}), json!(["good"]), json!({"n": 1.5}), json!({"n": 11})] {
        passes(post(&decision, "/", &call("pay", params)));
    }
}

fn call(method: &str, params: Value) -> String {
    json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string()
}

fn tool(name: &str, arguments: Value) -> String {
    call("tools/call", json!({ "name": name, "arguments": arguments }))
}

/// Heads that a decision must not wait for the body of, each refused, with a control that is not.
fn head_refusals(decision: &Decision, good: Head<'_>, bad: &[Head<'_>]) {
    assert!(matches!(decision.judge(&good), Judgement::Body { .. }), "{good:?}");
    for head in bad {
        malformed(decision.judge(head));
    }
}

#[test]
fn graphql_presets_allow_by_kind() {
    for (access, kinds) in [("read-only", 1), ("read-write", 2), ("full", 3)] {
        let decision = decision(&format!("protocol: graphql, access: {access}"));
        for (at, text) in ["{ me }", "mutation { set }", "subscription { on }"].iter().enumerate() {
            let judgement = post(&decision, "/graphql", &document(text));
            if at < kinds { drop(passes(judgement)) } else { drop(denied(judgement)) }
        }
    }
}

#[test]
fn graphql_rules_look_at_root_fields_through_fragments() {
    let rules = "rules: [{allow: {operation_type: query, fields: [me, 'list*']}}, \
                 {allow: {operation_type: mutation, operation_name: 'Save*', fields: [save]}}], \
                 deny_rules: [{fields: [listSecrets]}]";
    let decision = decision(&format!("protocol: graphql, {rules}"));
    for text in [
        "{ me }",
        "query { a: me b: listRepos { delete } }",
        "query Q { ...F } fragment F on Query { me ... on Query { listX } ... @include(if: false) { me } }",
        "{ ...A } fragment A on Query { me ...B } fragment B on Query { listX ...A }",
        "mutation SaveIt { save }",
        "query,Q # note\n,{,me,}",
        "{ me(arg: \"# } deleteAll {\") }",
        "{ me(arg: \"\"\" } { deleteAll \"\"\") }",
    ] {
        passes(post(&decision, "/graphql", &document(text)));
    }
    for text in [
        "{ deleteAll }",
        "{ me deleteAll }",
        "{ me: deleteAll }",
        "{ ...F } fragment F on Query { deleteAll }",
        "{ ... { ... { deleteAll } } }",
        "mutation { save }",
        "mutation Other { save }",
        "mutation SaveIt { save me }",
        "subscription { me }",
        "{ me #\r deleteAll }",
        "{ listSecrets }",
    ] {
        denied(post(&decision, "/graphql", &document(text)));
    }
    let refusal = denied(post(&decision, "/graphql", &document("mutation Gone { b a }")));
    assert_eq!(refusal.rule, "mutation Gone {a, b}");
    let missing = json!({"operation_type": "mutation", "fields": ["a", "b"]});
    assert_eq!(refusal.rule_missing.unwrap()["rule"]["allow"], missing);
}

#[test]
fn a_refusal_for_a_name_or_a_parameter_names_the_matcher_and_suggests_no_less() {
    let rules = "rules: [{allow: {operation_type: mutation, operation_name: 'Save*', fields: [save]}}]";
    let decision = decision(&format!("protocol: graphql, {rules}"));
    let refusal = denied(post(&decision, "/", &document("mutation Other { save }")));
    let expected = "rules[0] allows mutation Other {save} only with operation_name: \"Save*\"";
    assert!(refusal.reason.ends_with(expected), "{refusal:?}");
    let missing = json!({"operation_type": "mutation", "operation_name": "Other", "fields": ["save"]});
    assert_eq!(refusal.rule_missing.unwrap()["rule"]["allow"], missing);
    assert_eq!(denied(post(&decision, "/", &document("mutation { save }"))).rule_missing, None);

    let rule = "{allow: {tool: read_note, params: {arguments.name: 'public-*'}}}";
    let decision = super::decision(&format!("protocol: mcp, rules: [{rule}]"));
    passes(post(&decision, "/", &tool("read_note", json!({"name": "public-a"}))));
    let refusal = denied(post(&decision, "/", &tool("read_note", json!({"name": "mine"}))));
    let expected = "rules[0] allows tools/call read_note only with params: {arguments.name: \"public-*\"}";
    assert!(refusal.reason.ends_with(expected), "{refusal:?}");
    let missing = json!({"tool": "read_note", "params": {"arguments.name": "mine"}});
    assert_eq!(refusal.rule_missing.unwrap()["rule"]["allow"], missing);
    let mended = "{allow: {tool: read_note, params: {arguments.name: mine}}}";
    let mended = super::decision(&format!("protocol: mcp, rules: [{rule}, {mended}]"));
    passes(post(&mended, "/", &tool("read_note", json!({"name": "mine"}))));
    denied(post(&mended, "/", &tool("read_note", json!({"name": "yours"}))));
    for arguments in [json!({}), json!({"name": {}}), json!({"name": "a*"}), json!({"name": "npm_0123456789abcdef"})] {
        assert_eq!(denied(post(&decision, "/", &tool("read_note", arguments))).rule_missing, None);
    }
    // Control: another tool is missing as a whole.
    let missing = denied(post(&decision, "/", &tool("delete", json!({"name": "mine"})))).rule_missing.unwrap();
    assert_eq!(missing["rule"]["allow"], json!({"tool": "delete"}));
}

#[test]
fn a_refused_call_is_known_by_its_id() {
    let decision = decision("protocol: json-rpc, rules: [{allow: {method: ok}}]");
    let refused = |body: &str| refused(post(&decision, "/", body)).id;
    assert_eq!(refused(r#"{"jsonrpc": "2.0", "id": 7, "method": "no"}"#), 7);
    assert_eq!(refused(r#"{"jsonrpc": "2.0", "id": "a", "method": "no"}"#), "a");
    // Malformed, and known all the same.
    assert_eq!(refused(r#"{"jsonrpc": "1.0", "id": 7, "method": "ok"}"#), 7);
    for nobody in
        [r#"{"jsonrpc": "2.0", "method": "no"}"#, r#"{"jsonrpc": "2.0", "id": [1], "method": "ok"}"#, "no", "[]"]
    {
        assert_eq!(refused(nobody), Value::Null, "{nobody}");
    }
    let batch = r#"[{"jsonrpc": "2.0", "id": 1, "method": "no"}, {"jsonrpc": "2.0", "id": 2, "method": "ok"}]"#;
    assert_eq!(refused(batch), Value::Null);
}

#[test]
fn graphql_that_cannot_be_judged_is_refused() {
    let decision = decision("protocol: graphql, access: full, enforcement: audit");
    for body in [
        "",
        "7",
        "[]",
        "[7]",
        "{}",
        r#"{"query": 7}"#,
        r#"{"query": ""}"#,
        r#"{"query": "{"}"#,
        r#"{"query": "{ me } { you }"}"#,
        r#"{"query": "query A { me } query A { me }"}"#,
        r#"{"query": "query A { me } query B { you }"}"#,
        r#"{"query": "query A { me }", "operationName": "B"}"#,
        r#"{"query": "{ me }", "operationName": 7}"#,
        r#"{"query": "{ ...F }"}"#,
        r#"{"query": "{ ...F } fragment F on Q { me } fragment F on Q { you }"}"#,
        r#"{"query": "type T { a: Int }"}"#,
        r#"{"query": "{ me } type T { a: Int }"}"#,
        r#"{"query": "{ me }", "query": "{ you }"}"#,
        r#"{"query": "{ me }", "Query": "{ you }"}"#,
        r#"{"query": "query A { me } query B { you }", "operationname": "A"}"#,
        r#"{"query": "{ me }", "id": "abc"}"#,
        r#"{"query": "{ me }", "documentId": "abc"}"#,
        r#"{"query": "{ me }", "extensions": {"persistedQuery": {"sha256Hash": "00"}}}"#,
        r#"{"query": "{ me }", "extensions": 7}"#,
        r#"{"id": "a", "queryId": "b"}"#,
    ] {
        malformed(post(&decision, "/graphql", body));
    }
    let deep = format!("{}me{}", "{ a ".repeat(200), "}".repeat(200));
    let wide = format!("{{ {} }}", "a ".repeat(20_001));
    for text in [deep, wide] {
        malformed(post(&decision, "/graphql", &document(&text)));
    }
    for body in [
        document("{ me }"),
        json!({"query": "query A { me } query B { you }", "operationName": "A"}).to_string(),
        json!([{"query": "{ me }"}, {"query": "{ you }", "operationName": null, "variables": {"a": 1, "A": 2}}])
            .to_string(),
        json!({"query": "{ me }", "extensions": {"persistedQuery": {"version": 1, "sha256Hash":
            "AAA60B9B3CBAAA5E8DDB5D25D4D9CC9E8C9EFB47D0FE95D6FE4F87DAB2E4C3B2"}}})
        .to_string(),
    ] {
        let judgement = post(&decision, "/graphql", &body);
        if body.contains("sha256Hash") { drop(malformed(judgement)) } else { drop(passes(judgement)) }
    }
}

#[test]
fn a_batch_passes_whole_or_not_at_all() {
    let graphql = decision("protocol: graphql, access: read-only");
    let (read, write) = (json!({"query": "{ me }"}), json!({"query": "mutation { set }"}));
    passes(post(&graphql, "/", &json!([read, read]).to_string()));
    denied(post(&graphql, "/", &json!([read, write]).to_string()));
    passes(post(&graphql, "/", &Value::from(vec![read.clone(); 100]).to_string()));
    malformed(post(&graphql, "/", &Value::from(vec![read; 101]).to_string()));
    let rpc = decision("protocol: json-rpc, rules: [{allow: {method: read}}]");
    passes(post(&rpc, "/", &format!("[{0}, {0}]", call("read", json!([])))));
    let refusal = denied(post(&rpc, "/", &format!("[{}, {}]", call("read", json!([])), call("write", json!([])))));
    assert_eq!(refusal.rule, "write");
    malformed(post(&rpc, "/", "[]"));
}

#[test]
fn graphql_comes_by_get_too() {
    let decision = decision("protocol: graphql, access: read-only");
    passes(judge(&decision, "GET", "/graphql?query=%7B+me+%7D"));
    passes(judge(&decision, "GET", "/graphql?query=query+A%7Bme%7Dquery+B%7Bx%7D&operationName=A&variables=%7B%7D"));
    denied(judge(&decision, "GET", "/graphql?query=mutation%7Bset%7D"));
    for target in [
        "/graphql",
        "/graphql?query=%7B+me+%7D&query=mutation%7Bset%7D",
        "/graphql?query=%7B+me+%7D&Query=mutation%7Bset%7D",
        "/graphql?query=%7B+me+%7D&id=x",
        "/graphql?query=%7B+me+%7D&extensions=%7B",
    ] {
        malformed(judge(&decision, "GET", target));
    }
    let target = "/graphql?query=%7B+me+%7D";
    malformed(decision.judge(&Head { method: "GET", target, body_expected: true, ..Head::default() }));
    denied(judge(&decision, "PUT", "/graphql"));
}

#[test]
fn bodies_in_forms_that_are_not_read_are_refused_by_the_head() {
    let json = Head { method: "POST", target: "/g", content_type: Some("application/json"), ..Head::default() };
    let graphql = decision("protocol: graphql, access: full");
    head_refusals(
        &graphql,
        Head { content_type: Some("Application/JSON; charset=UTF-8"), content_encoding: Some("identity"), ..json },
        &[
            Head { content_type: None, ..json },
            Head { content_type: Some("multipart/form-data; boundary=x"), ..json },
            Head { content_type: Some("application/x-www-form-urlencoded"), ..json },
            Head { content_type: Some("application/json; charset=utf-16"), ..json },
            Head { content_type: Some("application/json; charset=utf-8; charset=utf-7"), ..json },
            Head { content_type: Some("application/json; x=\"; charset=utf-8\"; charset=utf-7"), ..json },
            Head { content_encoding: Some("gzip"), ..json },
            Head { target: "/g?query=%7Bme%7D", ..json },
            Head { target: "/g?OperationName=x", ..json },
        ],
    );
    let bare = Head { content_type: Some("application/graphql"), ..json };
    let Judgement::Body { then, .. } = graphql.judge(&bare) else { panic!("decided by the head") };
    passes(then.clone().judge(b"{ me }"));
    malformed(then.judge(b"\xff"));
    let rpc = decision("protocol: json-rpc, rules: [{allow: {method: '*'}}]");
    head_refusals(
        &rpc,
        Head { content_type: None, ..json },
        &[
            Head { content_type: Some("text/plain"), ..json },
            Head { content_encoding: Some("br"), ..json },
            Head { content_type: Some("application/json; charset=\"utf-16\""), ..json },
        ],
    );
    denied(judge(&rpc, "GET", "/g"));
}

#[test]
fn bodies_are_bounded() {
    for (fields, limit) in [
        ("protocol: graphql, access: full", 65_536),
        ("protocol: graphql, access: full, graphql_max_body_bytes: 100", 100),
        ("protocol: mcp, access: full, mcp: {max_body_bytes: 200}", 200),
        ("protocol: json-rpc, rules: [{allow: {method: '*'}}], json_rpc: {max_body_bytes: 4194304}", 4_194_304),
    ] {
        let decision = decision(fields);
        let head = Head { method: "POST", target: "/", content_type: Some("application/json"), ..Head::default() };
        let Judgement::Body { limit: told, then } = decision.judge(&head) else { panic!("decided by the head") };
        assert_eq!((told, then.limit()), (limit, limit));
        let refusal = refused(then.clone().judge(&vec![b' '; limit + 1]));
        assert_eq!(refusal, then.too_large());
        assert_eq!(refusal.kind, RefusalKind::TooLarge);
        assert!(refusal.next_steps[0].contains("max_body_bytes"), "{refusal:?}");
        let mut body = if fields.contains("graphql") { document("{ me }") } else { call("ping", json!({})) };
        body.push_str(&" ".repeat(limit - body.len()));
        passes(then.judge(body.as_bytes()));
    }
}

#[test]
fn registered_documents_pass_by_name() {
    let registry = "persisted_queries: allow_registered, graphql_persisted_queries: {abc: {operation_type: query, \
                    operation_name: Me, fields: [me]}, def: {operation_type: mutation}, fff: {operation_type: query}}";
    let with = decision(&format!(
        "protocol: graphql, rules: [{{allow: {{operation_type: query, fields: [me]}}}}], {registry}"
    ));
    let without = decision("protocol: graphql, rules: [{allow: {operation_type: query, fields: [me]}}]");
    for body in [
        r#"{"extensions": {"persistedQuery": {"version": 1, "sha256Hash": "abc"}}}"#,
        r#"{"id": "abc", "operationName": "Me"}"#,
        r#"{"documentId": "abc", "variables": {}}"#,
    ] {
        passes(post(&with, "/", body));
        assert!(denied(post(&without, "/", body)).reason.contains("registers no document"));
    }
    passes(judge(&with, "GET", "/?extensions=%7B%22persistedQuery%22:%7B%22sha256Hash%22:%22abc%22%7D%7D"));
    // A mutation, fields that nobody knows, a name that is not registered.
    for body in [r#"{"id": "def"}"#, r#"{"id": "fff"}"#, r#"{"id": "xyz"}"#] {
        denied(post(&with, "/", body));
    }
    malformed(post(&with, "/", r#"{"id": "abc", "operationName": "Other"}"#));
    malformed(post(&with, "/", r#"{"id": "abc", "extensions": {"persistedQuery": {"sha256Hash": "abc"}}}"#));
    let deny = decision(&format!("protocol: graphql, access: full, deny_rules: [{{fields: [secret]}}], {registry}"));
    denied(post(&deny, "/", r#"{"id": "fff"}"#));
    passes(post(&deny, "/", r#"{"id": "abc"}"#));
}

#[test]
fn json_rpc_calls_are_judged_by_method_and_parameters() {
    let rules = "rules: [{allow: {method: get}}, {allow: {method: put, params: {repo: 'octo/*', 'tags': {any: [a, b]}}}}, \
                 {allow: {method: list, params: {'0': x}}}], deny_rules: [{params: {secret.key: '*'}}]";
    let decision = decision(&format!("protocol: json-rpc, {rules}"));
    for (method, params) in [
        ("get", json!({})),
        ("get", json!({"secret": "x"})),
        ("put", json!({"repo": "octo/a.b/c", "tags": ["a", "b"]})),
        ("put", json!({"repo": "octo/", "tags": "a", "more": 1})),
        ("list", json!(["x", "y"])),
    ] {
        passes(post(&decision, "/", &call(method, params)));
    }
    for (method, params) in [
        ("Get", json!({})),
        ("put", json!({"repo": "octo/a"})),
        ("put", json!({"repo": "other/a", "tags": "a"})),
        ("put", json!({"repo": "octo/a", "tags": ["a", "c"]})),
        ("put", json!({"repo": "octo/a", "tags": []})),
        ("put", json!({"repo": {"x": "octo/a"}, "tags": "a"})),
        ("put", json!({"repo": ["octo/a", {"x": 1}], "tags": "a"})),
        ("put", json!({"Repo": "octo/a", "tags": "a"})),
        ("list", json!(["y", "x"])),
        ("get", json!({"secret": {"key": 1}})),
        ("get", json!({"Secret": {"KEY": null}})),
        ("get", json!({"secret": [{"a": 1}, {"key": {"deep": ["x"]}}]})),
    ] {
        denied(post(&decision, "/", &call(method, params)));
    }
    let refusal = denied(post(&decision, "/", &call("set", json!({}))));
    assert_eq!(refusal.next_steps, ["add under network_policies.k.endpoints[0].rules: - {allow: {method: set}}"]);
    let any = super::decision("protocol: json-rpc, rules: [{allow: {method: '*'}}]");
    passes(post(&any, "/", &call("set", json!({}))));
    passes(post(&any, "/", r#"{"jsonrpc": "2.0", "method": "note", "params": null}"#));
}

#[test]
fn json_rpc_that_could_be_read_differently_is_refused() {
    for fields in
        ["protocol: json-rpc, rules: [{allow: {method: '*'}}]", "protocol: mcp, access: full, enforcement: audit"]
    {
        let decision = decision(fields);
        for body in [
            "",
            "7",
            "{}",
            r#"{"jsonrpc": "2.0", "id": 1}"#,
            r#"{"id": 1, "method": "a"}"#,
            r#"{"jsonrpc": "1.0", "id": 1, "method": "a"}"#,
            r#"{"jsonrpc": "2.0", "id": {}, "method": "a"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": 7}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a", "params": 7}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a", "result": 7}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a", "method": "b"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a", "Method": "b"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "Method": "b"}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a", "Params": {}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a", "params": {"x": {"y": 1, "y": 2}}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a", "params": {"x": {"y": 1, "Y": 2}}}"#,
            r#"{"jsonrpc": "2.0", "id": 1, "method": "a"} {}"#,
        ] {
            malformed(post(&decision, "/", body));
        }
        passes(post(&decision, "/", r#"{"jsonrpc": "2.0", "id": "1", "method": "a", "params": {"x": {"y": 1}}}"#));
    }
}

#[test]
fn responses_are_for_servers_that_call_back() {
    for body in [
        r#"{"jsonrpc": "2.0", "id": 1, "result": {"x": 1}}"#,
        r#"{"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "x"}}"#,
    ] {
        denied(post(&decision("protocol: json-rpc, rules: [{allow: {method: '*'}}]"), "/", body));
        let mcp = decision("protocol: mcp, rules: [{allow: {tool: x}}]");
        assert_eq!(passes(post(&mcp, "/", body)), "endpoints[0].protocol");
    }
}

#[test]
fn mcp_tools_are_judged_by_name_and_arguments() {
    let rules = "rules: [{allow: {method: tools/list}}, {allow: {tool: 'read_*'}}, \
                 {allow: {tool: {any: [put, post]}, params: {arguments.repo: 'octo/*'}}}], deny_rules: [{tool: read_secret}]";
    let decision = decision(&format!("protocol: mcp, {rules}"));
    passes(post(&decision, "/", &call("tools/list", json!({}))));
    passes(post(&decision, "/", &tool("read_file", json!({}))));
    passes(post(&decision, "/", &tool("put", json!({"repo": "octo/a"}))));
    for body in [
        tool("put", json!({"repo": "other/a"})),
        tool("put", json!({})),
        tool("write", json!({})),
        tool("read_secret", json!({})),
        call("initialize", json!({})),
        call("TOOLS/CALL", json!({"name": "read_file"})),
    ] {
        denied(post(&decision, "/", &body));
    }
    let missing = denied(post(&decision, "/", &tool("write", json!({})))).rule_missing.unwrap();
    assert_eq!(missing["rule"]["allow"], json!({"tool": "write"}));
    for name in ["", "a b", "read_/../x", "read_\u{430}", &"a".repeat(129)] {
        malformed(post(&decision, "/", &tool(name, json!({}))));
    }
    malformed(post(&decision, "/", &call("tools/call", json!({}))));
    malformed(post(&decision, "/", &call("tools/call", json!({"name": 7}))));
    malformed(post(&decision, "/", &call("tools/call", json!(["read_file"]))));
    let lax = super::decision("protocol: mcp, mcp: {strict_tool_names: false}, rules: [{allow: {tool: 'a b'}}]");
    passes(post(&lax, "/", &tool("a b", json!({}))));
    denied(post(&lax, "/", &tool("a c", json!({}))));
}

#[test]
fn the_known_methods_pass_together_and_rules_pick_the_tools() {
    let known = "mcp: {allow_all_known_mcp_methods: true}";
    let all = decision(&format!("protocol: mcp, {known}"));
    let some = decision(&format!("protocol: mcp, {known}, rules: [{{allow: {{tool: search}}}}]"));
    for method in ["initialize", "notifications/initialized", "tools/list", "resources/read", "ping"] {
        for decision in [&all, &some] {
            let by = passes(post(decision, "/", &call(method, json!({}))));
            assert_eq!(by, "endpoints[0].mcp.allow_all_known_mcp_methods");
        }
    }
    passes(post(&all, "/", &tool("delete", json!({}))));
    denied(post(&some, "/", &tool("delete", json!({}))));
    passes(post(&some, "/", &tool("search", json!({}))));
    denied(post(&all, "/", &call("admin/reset", json!({}))));
    let narrowed =
        decision(&format!("protocol: mcp, {known}, deny_rules: [{{tool: delete}}, {{method: resources/read}}]"));
    denied(post(&narrowed, "/", &tool("delete", json!({}))));
    denied(post(&narrowed, "/", &call("resources/read", json!({}))));
    passes(post(&narrowed, "/", &tool("search", json!({}))));
}

#[test]
fn mcp_streams_open_and_sessions_end_as_told() {
    let rules = decision("protocol: mcp, rules: [{allow: {tool: x}}]");
    let stream =
        Head { method: "GET", target: "/", accept: Some("application/json, Text/Event-Stream;q=1"), ..Head::default() };
    assert_eq!(passes(rules.judge(&stream)), "endpoints[0].protocol");
    denied(rules.judge(&Head { accept: Some("*/*"), ..stream }));
    denied(rules.judge(&Head { accept: None, ..stream }));
    malformed(rules.judge(&Head { body_expected: true, ..stream }));
    denied(judge(&rules, "PUT", "/"));
    let refusal = denied(judge(&rules, "DELETE", "/"));
    assert_eq!(refusal.rule_missing.unwrap()["rule"]["allow"], json!({"method": "DELETE"}));
    passes(judge(&decision("protocol: mcp, rules: [{allow: {tool: x}}, {allow: {method: DELETE}}]"), "DELETE", "/"));
    passes(judge(&decision("protocol: mcp, access: full"), "DELETE", "/"));
    denied(judge(&decision("protocol: mcp, access: full, deny_rules: [{method: DELETE}]"), "DELETE", "/"));
}
