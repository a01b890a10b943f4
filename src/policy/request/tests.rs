//! Requests against policies as they are written: loading, heads, bodies and messages.

mod bodies;
mod heads;
mod load;
mod matching;
mod messages;

use crate::policy::Policy;
use crate::policy::decision::{Action, Decision};

use super::{Head, Judgement, Refusal, RefusalKind};

/// The decision for a connection that all of these endpoints allow.
fn decision(endpoints: &str) -> Decision {
    let policy = Policy::parse(&policy(endpoints), "p.yaml").unwrap_or_else(|error| panic!("{endpoints}\n{error}"));
    let entry = &policy.network[0];
    let endpoints = (0..entry.endpoints.len()).map(|index| (entry.clone(), index)).collect();
    Decision {
        action: Action::Allow,
        reason: String::new(),
        policy: Some(entry.key.clone()),
        endpoints,
        next_steps: Vec::new(),
    }
}

/// A policy of one entry; every item of the list lacks host and port.
fn policy(endpoints: &str) -> String {
    let mut text = String::from("version: 1\nnetwork_policies:\n  k:\n    endpoints:\n");
    for fields in endpoints.lines().map(str::trim).filter(|line| !line.is_empty()) {
        text.push_str(&format!("      - {{host: api.example.com, port: 443, {fields}}}\n"));
    }
    text
}

fn judge(decision: &Decision, method: &str, target: &str) -> Judgement {
    decision.judge(&Head { method, target, ..Head::default() })
}

/// What allows it; panics where it is refused.
fn passes(judgement: Judgement) -> String {
    match judgement {
        Judgement::Pass(pass) => {
            assert!(pass.audited.is_none(), "{pass:?}");
            pass.rule.map(|rule| rule.to_string()).unwrap_or_default()
        }
        other => panic!("{other:?}"),
    }
}

fn refused(judgement: Judgement) -> Refusal {
    match judgement {
        Judgement::Refuse(refusal) => refusal,
        other => panic!("{other:?}"),
    }
}

fn denied(judgement: Judgement) -> Refusal {
    let refusal = refused(judgement);
    assert_eq!(refusal.kind, RefusalKind::Denied, "{refusal:?}");
    refusal
}

fn malformed(judgement: Judgement) -> Refusal {
    let refusal = refused(judgement);
    assert_eq!(refusal.kind, RefusalKind::Malformed, "{refusal:?}");
    refusal
}

/// Posts a body of JSON.
fn post(decision: &Decision, target: &str, body: &str) -> Judgement {
    let head =
        Head { method: "POST", target, content_type: Some("application/json"), body_expected: true, ..Head::default() };
    match decision.judge(&head) {
        Judgement::Body { then, .. } => then.judge(body.as_bytes()),
        other => other,
    }
}
