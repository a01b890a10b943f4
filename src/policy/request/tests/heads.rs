//! Requests that their head decides: REST, gRPC, and what opens a WebSocket.

use std::time::Instant;

use serde_json::json;

use crate::policy::request::{Head, Judgement, RefusalKind};

use super::{decision, denied, judge, malformed, passes, refused};

#[test]
fn a_connection_without_protocol_is_not_read() {
    let open = decision("tls: auto");
    assert!(!open.is_inspected());
    assert_eq!(passes(judge(&open, "DELETE", "/a//../b")), "");
    let read = decision("protocol: rest, access: full");
    assert!(read.is_inspected());
    malformed(judge(&read, "DELETE", "/a//../b"));
    assert!(!decision("protocol: tcp").is_inspected());
}

#[test]
fn presets_allow_by_method() {
    for (access, yes, no) in [
        ("read-only", &["GET", "HEAD", "OPTIONS", "get"][..], &["POST", "PUT", "PATCH", "DELETE", "PROPFIND", ""][..]),
        ("read-write", &["GET", "POST", "PUT", "PATCH", "OPTIONS"], &["DELETE", "TRACE", "WEBSOCKET_TEXT"]),
        ("full", &["GET", "DELETE", "PURGE"], &[]),
    ] {
        let decision = decision(&format!("protocol: rest, access: {access}"));
        for method in yes {
            assert_eq!(passes(judge(&decision, method, "/x")), "endpoints[0].access", "{access} {method}");
        }
        for method in no {
            denied(judge(&decision, method, "/x"));
        }
    }
}

#[test]
fn rules_allow_by_method_path_and_query() {
    for (rule, yes, no) in [
        (
            "method: GET, path: /a",
            &["GET /a", "HEAD /a", "get /a", "GET /%61", "GET /a?x"][..],
            &["POST /a", "GET /b"][..],
        ),
        ("method: get, path: '/a/*'", &["GET /a/b"], &["GET /a/b/c", "GET /a/"]),
        ("method: POST, path: '/a/**'", &["POST /a/b/c", "post /a/"], &["GET /a/b", "HEAD /a/b", "POST /a"]),
        ("method: '*', path: '**'", &["GET /", "DELETE /a/b"], &[]),
        ("method: HEAD, path: /a", &["HEAD /a"], &["GET /a"]),
        (
            "method: GET, path: /a, query: {s: 'v*'}",
            &["GET /a?s=v1.2/3", "GET /a?t=x&s=v", "GET /a?s=v1&s=v2", "GET /a?%73=%761"],
            &["GET /a", "GET /a?s=w", "GET /a?s=v&s=w", "GET /a?S=v", "GET /a?t=v", "GET /a?x=1;s=v"],
        ),
        (
            "method: GET, path: /a, query: {s: {any: [b, c]}, t: '*'}",
            &["GET /a?s=b&t", "GET /a?t=x&s=c"],
            &["GET /a?s=b", "GET /a?s=d&t=x", "GET /a?t=x"],
        ),
    ] {
        let decision = decision(&format!("protocol: rest, rules: [{{allow: {{{rule}}}}}]"));
        for (asked, allowed) in yes.iter().map(|asked| (asked, true)).chain(no.iter().map(|asked| (asked, false))) {
            let (method, target) = asked.split_once(' ').unwrap();
            match judge(&decision, method, target) {
                Judgement::Pass(pass) => {
                    assert!(allowed, "{rule}: {asked}");
                    assert_eq!(pass.rule.unwrap().to_string(), "endpoints[0].rules[0]");
                }
                judgement => {
                    denied(judgement);
                    assert!(!allowed, "{rule}: {asked}");
                }
            }
        }
    }
}

#[test]
fn a_denial_beats_what_allows_and_cannot_be_spelt_around() {
    let rules =
        "deny_rules: [{method: GET, path: '/v1/keys:export'}, {path: '/admin/**'}, {query: {mode: raw, x: '*'}}]";
    let with = decision(&format!("protocol: rest, access: full, {rules}"));
    let without = decision("protocol: rest, access: full");
    for (asked, rule) in [
        ("GET /v1/keys:export", 0),
        ("GET /v1/keys%3Aexport", 0),
        ("HEAD /v1/%6beys:export", 0),
        ("POST /admin/x", 1),
        ("POST /%61dmin/x", 1),
        ("GET /a?mode=raw&x", 2),
        ("GET /a?mode=safe&mode=r%61w&x=1", 2),
    ] {
        let (method, target) = asked.split_once(' ').unwrap();
        let refusal = denied(judge(&with, method, target));
        let place = format!("network_policies.k.endpoints[0].deny_rules[{rule}]");
        assert!(refusal.reason.starts_with(&place), "{asked}: {}", refusal.reason);
        assert_eq!(refusal.rule_missing, None);
        passes(judge(&without, method, target));
    }
    for asked in ["POST /v1/keys:export", "GET /admin", "GET /a?mode=raw", "GET /a?x=1", "GET /a?mode=safe&x"] {
        let (method, target) = asked.split_once(' ').unwrap();
        passes(judge(&with, method, target));
    }
}

#[test]
fn a_refusal_says_which_rule_is_missing_and_the_rule_suffices() {
    let refusal =
        denied(judge(&decision("protocol: rest, rules: [{allow: {method: GET, path: /a}}]"), "post", "/b/c?s=1"));
    assert_eq!(&*refusal.policy, "k");
    assert_eq!((refusal.rule.as_str(), refusal.protocol), ("post /b/c", "rest"));
    assert_eq!(refusal.detail, "post /b/c is not permitted by policy k");
    assert_eq!(refusal.reason, "no rule of network_policies.k.endpoints[0] allows post /b/c");
    assert_eq!(
        refusal.rule_missing.unwrap(),
        json!({"place": "network_policies.k.endpoints[0].rules", "rule": {"allow": {"method": "POST", "path": "/b/c"}}})
    );
    let step = "add under network_policies.k.endpoints[0].rules: - {allow: {method: POST, path: /b/c}}";
    assert_eq!(refusal.next_steps, [step]);
    let mended =
        decision("protocol: rest, rules: [{allow: {method: GET, path: /a}}, {allow: {method: POST, path: /b/c}}]");
    assert_eq!(passes(judge(&mended, "post", "/b/c?s=1")), "endpoints[0].rules[1]");
    let refusal = denied(judge(&decision("protocol: rest, access: read-only"), "POST", "/b/*?token=x"));
    assert_eq!(refusal.reason, "access: read-only of network_policies.k.endpoints[0] does not allow POST /b/%2A");
    assert!(refusal.next_steps[0].contains("replace access by rules"), "{refusal:?}");
    assert!(!format!("{refusal:?}").contains("token"));
    assert_eq!(denied(judge(&decision("protocol: rest, access: read-only"), "M1", "/")).rule_missing, None);
}

#[test]
fn what_could_be_read_differently_is_refused_even_in_audit() {
    for enforcement in ["enforce", "audit"] {
        let decision = decision(&format!("protocol: rest, access: full, enforcement: {enforcement}"));
        for target in ["/a/../b", "/a//b", "/a\\b", "/a%00", "/a%2fb", "*", "/a;b", "/%zz", "/a%252e"] {
            let refusal = malformed(judge(&decision, "GET", target));
            assert_eq!(refusal.kind.status(), 400);
            assert!(!refusal.next_steps[0].is_empty(), "{target}");
        }
        passes(judge(&decision, "GET", "/a/b"));
    }
}

#[test]
fn an_escaped_slash_passes_where_every_endpoint_says_so() {
    let with = decision("protocol: rest, allow_encoded_slash: true, rules: [{allow: {method: GET, path: '/p/*/raw'}}]");
    passes(judge(&with, "GET", "/p/group%2fproject/raw"));
    denied(judge(&with, "GET", "/p/group/project/raw"));
    malformed(judge(&with, "GET", "/p/..%2fraw/raw"));
    let without = decision("protocol: rest, rules: [{allow: {method: GET, path: '/p/*/raw'}}]");
    let refusal = malformed(judge(&without, "GET", "/p/group%2fproject/raw"));
    assert!(refusal.next_steps[0].contains("allow_encoded_slash: true"), "{refusal:?}");
}

#[test]
fn a_path_that_reads_two_ways_passes_where_its_endpoint_says_so_and_every_reading_may() {
    let leave = "allow_ambiguous_paths: true";
    let full = decision(&format!("protocol: rest, access: full, {leave}"));
    let strict = decision("protocol: rest, access: full");
    for target in ["/a//b", "/a;v=1/b", "/a%3bv=1/b", "/a/;x", "/a//", "/web/2020/http://x/"] {
        passes(judge(&full, "GET", target));
        let refusal = malformed(judge(&strict, "GET", target));
        assert!(
            refusal.next_steps[0].ends_with("or set allow_ambiguous_paths: true on network_policies.k.endpoints[0]")
        );
    }
    for target in ["//a", "/;x/a", "/a/..;x/b", "/a/..%3Bx/b", "/a//../b", "/a/;/../b", "/a\\//b", "/a//%2e%2e/b"] {
        malformed(judge(&full, "GET", target));
    }
    malformed(judge(&full, "GET", "/a//b%2fc"));
    malformed(full.judge(&Head { method: "GET", target: "/a//b", websocket: true, ..Head::default() }));
    let ruled = decision(&format!(
        "protocol: rest, {leave}, rules: [{{allow: {{method: GET, path: /a/**}}}}, {{allow: {{method: GET, path: /v//x}}}}, \
         {{allow: {{method: GET, path: '/w/*'}}}}], deny_rules: [{{path: /a/b/secret}}]"
    ));
    for target in ["/a//b", "/a/b;x", "/a//b//c", "/w/x;y"] {
        passes(judge(&ruled, "GET", target));
    }
    for target in [
        "/a//b/secret",
        "/a/b/;x/secret",
        "/a/b;x/secret",
        "/a/b;/secret;",
        // Some look for parameters after decoding.
        "/a/b/secret%3Bx",
        "/a;x/b",
        // As it stands it is allowed, and with its slashes merged it is not.
        "/v//x",
        // The other way round.
        "/w//x",
    ] {
        denied(judge(&ruled, "GET", target));
    }
    let both = "{allow: {method: GET, path: /v//x}}, {allow: {method: GET, path: /v/x}}";
    passes(judge(&decision(&format!("protocol: rest, {leave}, rules: [{both}]")), "GET", "/v//x"));
    // Every reading finds its own endpoint, and each of them has to give leave.
    let two = |more: &str| {
        decision(&format!(
            "protocol: rest, access: full, {leave}\npath: /a/**, protocol: rest, access: read-only{more}"
        ))
    };
    malformed(judge(&two(""), "GET", "/a//b"));
    passes(judge(&two(", allow_ambiguous_paths: true"), "GET", "/a//b"));
    denied(judge(&two(", allow_ambiguous_paths: true"), "POST", "/a;x//b"));
    let audit =
        decision(&format!("protocol: rest, enforcement: audit, access: full, {leave}, deny_rules: [{{path: /a/b}}]"));
    let Judgement::Pass(pass) = judge(&audit, "GET", "/a//b") else { panic!("refused") };
    assert!(pass.audited.is_some());
}

#[test]
fn a_query_that_reads_two_ways_is_judged_in_both() {
    let deny = decision("protocol: rest, access: full, deny_rules: [{query: {admin: '*'}}]");
    for query in ["admin=1", "%61dmin=1", "a=1;admin=1", "a=1;admin", "a;admin=1&b"] {
        denied(judge(&deny, "GET", &format!("/?{query}")));
    }
    // An escaped one separates nothing.
    for query in ["a=1%3Badmin=1", "a=1;b=2", "b=admin"] {
        passes(judge(&deny, "GET", &format!("/?{query}")));
    }
    let allow = decision("protocol: rest, rules: [{allow: {method: GET, path: /, query: {s: 'v*'}}}]");
    for (query, may) in [("s=v1", true), ("s=v;t=x", true), ("t;s=v", false), ("s=v;s=w", false), ("s=v%3Bs=w", true)] {
        let judgement = judge(&allow, "GET", &format!("/?{query}"));
        if may { drop(passes(judgement)) } else { drop(denied(judgement)) }
    }
    let graphql = decision("protocol: graphql, access: full");
    passes(judge(&graphql, "GET", "/?query=%7Bme%7D&a=1"));
    malformed(judge(&graphql, "GET", "/?query=%7Bme%7D&a=1;query=%7Byou%7D"));
}

#[test]
fn a_refusal_for_the_query_names_the_matcher_and_suggests_no_less() {
    let refs = "method: GET, path: '/**/info/refs', query: {service: git-upload-pack}";
    let rules = format!("protocol: rest, rules: [{{allow: {{method: PUT, path: /x}}}}, {{allow: {{{refs}}}}}]");
    let asked = |query: &str| denied(judge(&decision(&rules), "GET", &format!("/a/b/info/refs{query}")));
    let refusal = asked("?service=git-receive-pack&x=1");
    let reason = "network_policies.k.endpoints[0].rules[1] allows GET /a/b/info/refs only with query: {service: git-upload-pack}";
    assert_eq!(refusal.reason, reason);
    let rule = "{method: GET, path: /a/b/info/refs, query: {service: git-receive-pack}}";
    assert_eq!(refusal.next_steps, [format!("add under network_policies.k.endpoints[0].rules: - {{allow: {rule}}}")]);
    let missing = json!({"method": "GET", "path": "/a/b/info/refs", "query": {"service": "git-receive-pack"}});
    assert_eq!(refusal.rule_missing.unwrap()["rule"]["allow"], missing);
    // It suffices, and goes no further.
    let mended = decision(&format!("protocol: rest, rules: [{{allow: {{{refs}}}}}, {{allow: {rule}}}]"));
    assert_eq!(passes(judge(&mended, "GET", "/a/b/info/refs?service=git-receive-pack")), "endpoints[0].rules[1]");
    denied(judge(&mended, "GET", "/a/b/info/refs?service=other"));
    // A word that YAML knows otherwise stays text.
    assert!(asked("?service=null").next_steps[0].ends_with("query: {service: \"null\"}}}"));
    let several = asked("?service=one&service=two").rule_missing.unwrap();
    assert_eq!(several["rule"]["allow"]["query"], json!({"service": {"any": ["one", "two"]}}));
    // Nothing to write down, or nothing that should be.
    for query in ["", "?service", "?service=a*", "?other=1", "?service=ghp_0123456789abcdefghij", "?a;service=x"] {
        let refusal = asked(query);
        assert_eq!(refusal.rule_missing, None, "{query}");
        assert!(refusal.reason.ends_with("only with query: {service: git-upload-pack}"), "{refusal:?}");
        assert!(!format!("{refusal:?}").contains("ghp_"), "{refusal:?}");
    }
    // Control: where method or path differ too, the query is beside the point.
    let refusal = denied(judge(&decision(&rules), "POST", "/a/b/info/refs"));
    assert!(refusal.reason.starts_with("no rule of"), "{refusal:?}");
}

#[test]
fn audit_lets_through_what_breaks_a_rule_and_tells_it() {
    let audit = decision("protocol: rest, enforcement: audit, access: read-only, deny_rules: [{path: /x}]");
    let enforce = decision("protocol: rest, access: read-only, deny_rules: [{path: /x}]");
    for (method, path) in [("POST", "/a"), ("GET", "/x")] {
        let Judgement::Pass(pass) = judge(&audit, method, path) else { panic!("refused") };
        assert_eq!(*pass.audited.unwrap(), denied(judge(&enforce, method, path)));
        assert_eq!((pass.rule, &*pass.policy), (None, "k"));
    }
    passes(judge(&audit, "GET", "/a"));
}

#[test]
fn the_most_specific_path_decides() {
    let decision = decision(
        "path: /v1/**, protocol: rest, access: read-only
         path: /v1/write/**, protocol: rest, access: full
         path: /v1/write/audit, protocol: rest, enforcement: audit, access: read-only
         path: /v1/a/*, protocol: rest, rules: [{allow: {method: PUT, path: /v1/a/x}}]
         path: /v1/a/*, protocol: rest, rules: [{allow: {method: POST, path: /v1/a/x}}], deny_rules: [{method: PATCH}]",
    );
    assert_eq!(passes(judge(&decision, "GET", "/v1/x")), "endpoints[0].access");
    denied(judge(&decision, "POST", "/v1/x"));
    assert_eq!(passes(judge(&decision, "POST", "/v1/write/x")), "endpoints[1].access");
    let Judgement::Pass(pass) = judge(&decision, "POST", "/v1/write/audit") else { panic!("refused") };
    assert!(pass.audited.is_some());
    assert_eq!(passes(judge(&decision, "PUT", "/v1/a/x")), "endpoints[3].rules[0]");
    assert_eq!(passes(judge(&decision, "POST", "/v1/a/x")), "endpoints[4].rules[0]");
    denied(judge(&decision, "GET", "/v1/a/x"));
    assert!(denied(judge(&decision, "PATCH", "/v1/a/x")).reason.contains("endpoints[4].deny_rules[0]"));
    let refusal = denied(judge(&decision, "GET", "/v2"));
    assert!(refusal.reason.contains("no endpoint of the destination covers the path"), "{refusal:?}");
}

#[test]
fn a_path_that_no_endpoint_covers_is_audited_by_all_or_none() {
    let (audit, enforce) = ("protocol: rest, enforcement: audit, access: full", "protocol: rest, access: full");
    let mixed = decision(&format!("path: /a/**, {audit}\npath: /b/**, {enforce}"));
    denied(judge(&mixed, "GET", "/c"));
    let Judgement::Pass(pass) = judge(&decision(&format!("path: /a/**, {audit}")), "GET", "/c") else { panic!() };
    assert!(pass.audited.is_some());
}

#[test]
fn endpoints_that_disagree_are_refused() {
    // No policy loads with such a pair, but rules of an operator's own may bring one together.
    let mut one = decision("protocol: rest, access: full");
    passes(judge(&one, "GET", "/"));
    one.endpoints.extend(decision("protocol: websocket, access: full").endpoints);
    assert!(refused(judge(&one, "GET", "/")).reason.contains("disagree"));
}

#[test]
fn grpc_calls_are_judged_by_service_and_method() {
    let rules = "rules: [{allow: {service: pkg.Reader, method: 'Get*'}}, {allow: {service: 'pkg.v1.*', method: '*'}}], \
                 deny_rules: [{method: GetSecret}, {service: '**.Hidden'}]";
    let decision = decision(&format!("protocol: grpc, {rules}"));
    let call = |target: &str| {
        decision.judge(&Head {
            method: "POST",
            target,
            content_type: Some("application/grpc+proto"),
            ..Head::default()
        })
    };
    assert_eq!(passes(call("/pkg.Reader/GetItem")), "endpoints[0].rules[0]");
    assert_eq!(passes(call("/pkg.v1.Any/Set")), "endpoints[0].rules[1]");
    for target in
        ["/pkg.Reader/Set", "/pkg.Other/GetItem", "/pkg.v1.a.B/Get", "/pkg.Reader/GetItem/x", "/pkg.Reader", "/"]
    {
        denied(call(target));
    }
    assert!(denied(call("/pkg.Reader/GetSecret")).reason.contains("deny_rules[0]"));
    assert!(denied(call("/pkg.v1.Hidden/Get")).reason.contains("deny_rules[1]"));
    let missing = denied(call("/a.B/C")).rule_missing.unwrap();
    assert_eq!(missing["rule"]["allow"], json!({"service": "a.B", "method": "C"}));
    let target = "/pkg.Reader/GetItem";
    for head in [
        Head { method: "GET", target, content_type: Some("application/grpc"), ..Head::default() },
        Head { method: "POST", target, content_type: Some("application/json"), ..Head::default() },
        Head { method: "POST", target, content_type: None, ..Head::default() },
    ] {
        denied(decision.judge(&head));
    }
    let full = super::decision("protocol: grpc, access: full");
    let head = Head { method: "POST", target, content_type: Some("Application/gRPC"), ..Head::default() };
    assert_eq!(passes(full.judge(&head)), "endpoints[0].access");
}

#[test]
fn a_websocket_opens_only_where_the_protocol_has_them() {
    let head = |method| Head { method, target: "/ws", websocket: true, ..Head::default() };
    for rules in ["rest, access: read-write", "graphql, access: full", "mcp, access: full", "grpc, access: full"] {
        let refusal = denied(decision(&format!("protocol: {rules}")).judge(&head("GET")));
        assert!(refusal.next_steps[0].contains("protocol: websocket"), "{refusal:?}");
    }
    // Where everything is allowed, so is this.
    passes(decision("protocol: rest, access: full").judge(&head("GET")));
    let sockets = decision("protocol: websocket, rules: [{allow: {method: GET, path: /ws}}]");
    for method in ["GET", "CONNECT"] {
        let Judgement::Pass(pass) = sockets.judge(&head(method)) else { panic!("refused") };
        assert!(pass.messages.is_some());
    }
    let Judgement::Pass(pass) = judge(&sockets, "GET", "/ws") else { panic!("refused") };
    assert!(pass.messages.is_none());
    denied(judge(&sockets, "POST", "/ws"));
    let full = decision("protocol: websocket, access: full");
    denied(judge(&full, "websocket_text", "/ws"));
    passes(judge(&full, "POST", "/ws"));
    denied(sockets.judge(&Head { target: "/other", ..head("GET") }));
}

#[test]
fn a_thousand_rules_cost_what_one_does() {
    let shapes: [fn(usize) -> (String, String); 3] = [
        |at| (format!("/items/{at}"), format!("/items/{at}")),
        |at| (format!("/repos/*/area{at}/**"), format!("/repos/x/area{at}/y/z")),
        |at| (format!("/a{at}/b*"), format!("/a{at}/bc")),
    ];
    for shape in shapes {
        let rules: Vec<String> =
            (0..1000).map(|at| format!("{{allow: {{method: GET, path: '{}'}}}}", shape(at).0)).collect();
        let decision = decision(&format!("protocol: rest, rules: [{}]", rules.join(", ")));
        let path = shape(999).1;
        assert_eq!(passes(judge(&decision, "GET", &path)), "endpoints[0].rules[999]");
        let started = Instant::now();
        for _ in 0..1000 {
            assert!(matches!(judge(&decision, "GET", &path), Judgement::Pass(_)));
        }
        // About a microsecond each where nobody else is busy; a walk over all the rules would take a hundred.
        assert!(started.elapsed().as_millis() < 50, "{:?}", started.elapsed());
    }
}

#[test]
fn kinds_have_their_status() {
    assert_eq!((RefusalKind::Denied.status(), RefusalKind::TooLarge.status()), (403, 413));
}

#[test]
fn a_suggestion_opens_no_more_than_was_asked_and_a_reason_keeps_what_the_policy_keeps() {
    let denied = |rule: &str, target: &str| {
        denied(judge(&decision(&format!("protocol: rest, rules: [{{allow: {{{rule}}}}}]")), "GET", target))
    };
    let both = "method: GET, path: /q, query: {mode: {any: [ro, rx]}, dry: '1'}";
    // With a condition for what was sent alone, whoever follows it would allow the rest with anything.
    for target in ["/q?mode=ro", "/q?dry=1", "/q"] {
        assert_eq!(denied(both, target).rule_missing, None, "{target}");
    }
    // Control: where all was sent, all is asked for.
    let missing = denied(both, "/q?mode=ro&dry=0").rule_missing.unwrap();
    assert_eq!(missing["rule"]["allow"]["query"], json!({"mode": "ro", "dry": "0"}));
    let token = "ghp_0123456789abcdefghijABCDEFGHIJ012345";
    for (query, hidden) in [("access_token: s3cretvalue".to_owned(), "s3cretvalue"), (format!("t: {token}"), token)] {
        let reason = denied(&format!("method: GET, path: /q, query: {{{query}}}"), "/q").reason;
        assert!(reason.contains("[CREDENTIAL]") && !reason.contains(hidden), "{reason}");
    }
}
