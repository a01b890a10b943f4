//! Messages on WebSockets.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::policy::request::{Head, Judgement, MessageRules, RefusalKind};

use super::decision;

/// The rules of a socket that opens.
fn opened(endpoints: &str) -> Arc<MessageRules> {
    let head = Head { method: "GET", target: "/ws?token=1", websocket: true, ..Head::default() };
    match decision(endpoints).judge(&head) {
        Judgement::Pass(pass) => pass.messages.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn messages_pass_by_preset_or_rule() {
    let open = "{allow: {method: GET, path: /ws}}";
    for (fields, text, binary) in [
        ("access: read-only", false, false),
        ("access: read-write", true, false),
        ("access: full", true, true),
        (&format!("rules: [{open}]"), false, false),
        (&format!("rules: [{open}, {{allow: {{method: WEBSOCKET_TEXT, path: /ws}}}}]"), true, false),
        (&format!("rules: [{open}, {{allow: {{method: websocket_binary, path: '**'}}}}]"), false, true),
        (&format!("rules: [{open}, {{allow: {{method: WEBSOCKET_TEXT, path: /other}}}}]"), false, false),
        ("rules: [{allow: {method: '*', path: /ws}}]", true, true),
        ("access: full, deny_rules: [{method: WEBSOCKET_TEXT}]", false, true),
    ] {
        let rules = opened(&format!("protocol: websocket, {fields}"));
        assert_eq!(rules.judge_text("x").is_ok(), text, "{fields}");
        assert_eq!(rules.judge_binary().is_ok(), binary, "{fields}");
        assert_eq!(rules.pass_everything(), text && binary, "{fields}");
    }
    let refusal = opened(&format!("protocol: websocket, rules: [{open}]")).judge_text("x").unwrap_err();
    assert_eq!(refusal.rule_missing.unwrap()["rule"]["allow"], json!({"method": "WEBSOCKET_TEXT", "path": "/ws"}));
    let audited = opened("protocol: websocket, enforcement: audit, access: read-only");
    assert!(audited.judge_text("x").unwrap().is_some() && !audited.pass_everything());
}

#[test]
fn graphql_messages_are_judged_one_by_one() {
    let rules = opened(
        "protocol: websocket, rules: [{allow: {method: GET, path: /ws}}, {allow: {operation_type: subscription, fields: [news]}}]",
    );
    assert!(!rules.pass_everything());
    let message = |kind: &str, text: &str| json!({"type": kind, "id": "1", "payload": {"query": text}}).to_string();
    for kind in ["connection_init", "connection_terminate", "ping", "pong", "complete", "stop"] {
        rules.judge_text(&json!({"type": kind}).to_string()).unwrap();
    }
    for kind in ["subscribe", "start"] {
        rules.judge_text(&message(kind, "subscription { news }")).unwrap();
        let refusal = rules.judge_text(&message(kind, "mutation { news }")).unwrap_err();
        assert_eq!((refusal.kind, refusal.rule.as_str()), (RefusalKind::Denied, "mutation {news}"));
    }
    let broken: Vec<Value> = vec![
        json!(7),
        json!({}),
        json!({"type": "next", "id": "1", "payload": {}}),
        json!({"type": "subscribe", "payload": {"query": "subscription { news }"}}),
        json!({"type": "subscribe", "id": "", "payload": {"query": "subscription { news }"}}),
        json!({"type": "subscribe", "id": "1", "payload": "subscription { news }"}),
        json!({"type": "subscribe", "id": "1", "payload": {"query": "subscription {"}}),
        json!({"type": "subscribe", "Type": "ping", "id": "1"}),
    ];
    for message in broken.iter().map(Value::to_string).chain(["{".to_owned()]) {
        assert_eq!(rules.judge_text(&message).unwrap_err().kind, RefusalKind::Malformed, "{message}");
    }
    assert!(rules.judge_binary().is_err());
}

#[test]
fn a_deny_rule_alone_makes_messages_graphql() {
    let deny = opened("protocol: websocket, access: full, deny_rules: [{operation_type: mutation}]");
    let message = |text: &str| json!({"type": "subscribe", "id": "1", "payload": {"query": text}}).to_string();
    deny.judge_text(&message("{ me }")).unwrap();
    assert!(deny.judge_text(&message("mutation { set }")).unwrap_err().reason.contains("deny_rules[0]"));
    assert!(deny.judge_text("hello").is_err());
    // Nor does reading them undo a rule that denies all of them.
    let denied = "{method: WEBSOCKET_TEXT, path: /ws}, {operation_type: mutation}";
    let denied = opened(&format!("protocol: websocket, access: full, deny_rules: [{denied}]"));
    assert!(denied.judge_text(&message("{ me }")).unwrap_err().reason.contains("deny_rules[0]"));
    // Control: without it nothing is read.
    assert!(opened("protocol: websocket, access: full").pass_everything());
}
