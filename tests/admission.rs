//! Promises 27.45 and on: what the admission policy of `images/manifests` leaves of the right to patch nodes, its
//! expressions evaluated by another implementation of CEL.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::installer::{NODE, USER};
use crate::kubernetes::objects;
use crate::podman::repository;

const LABEL: &str = "/metadata/labels/openshell.ai~1cni-ready";

/// The policy, as the API server gets it.
fn policy() -> Value {
    let text = fs::read_to_string(repository().join("images/manifests/base/admission.yaml")).expect("a manifest");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    documents.into_iter().find(|object| object["kind"] == "ValidatingAdmissionPolicy").expect("a policy")
}

/// What becomes of each request.
fn judged(policy: &Value, requests: &[Value]) -> Vec<String> {
    let mut python = Command::new("/usr/bin/python3");
    python.arg(repository().join("tests/clients/admission.py"));
    python.env("PYTHONPATH", repository().join("target/tools/python"));
    let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3");
    let given = json!({"policy": policy["spec"], "requests": requests});
    crate::world::say(child.stdin.take().expect("stdin"), given.to_string());
    let output = child.wait_with_output().expect("wait");
    assert!(output.status.success(), "cel-python, which .ci/run installs");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A node on its way up.
fn node() -> Value {
    let taints = [objects::taint("openshell.ai/cni-not-ready", "NoSchedule"), objects::taint("team", "NoExecute")];
    let mut node = objects::node(NODE, &taints);
    node["metadata"]["annotations"] = json!({"team": "a"});
    node["status"]["capacity"] = json!({"cpu": "2"});
    node
}

/// An update by this user, whose token was made for this node.
fn update(user: &str, token_node: Option<&str>, old: &Value, new: &Value) -> Value {
    let mut info = json!({"username": user});
    if let Some(node) = token_node {
        info["extra"] = json!({"authentication.kubernetes.io/node-name": [node]});
    }
    json!({"object": new, "oldObject": old, "request": {"userInfo": info}})
}

/// The node with one value put in, or taken out where there is none; places that are not there yet are made.
fn with(mut node: Value, pointer: &str, value: Option<Value>) -> Value {
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    let key = key.replace("~1", "/");
    if node.pointer(parent).is_none() {
        node = with(node, parent, Some(json!({})));
    }
    let parent = node.pointer_mut(parent).expect("made");
    match (parent, value) {
        (Value::Array(list), Some(value)) if key == "-" => list.push(value),
        (Value::Array(list), Some(value)) => list[key.parse::<usize>().expect("an index")] = value,
        (Value::Array(list), None) => drop(list.remove(key.parse().expect("an index"))),
        (parent, Some(value)) => parent[key] = value,
        (parent, None) => drop(parent.as_object_mut().expect("a map").shift_remove(&key)),
    }
    node
}

#[test]
fn an_account_that_may_patch_nodes_may_do_no_more_than_its_work_with_it() {
    let old = node();
    let labelled = with(old.clone(), LABEL, Some("true".into()));
    let condition = json!({"type": "OpenShellCNIReady", "status": "True", "reason": "ChainVerified"});
    let work = [
        ("the label is set", old.clone(), labelled.clone()),
        ("the label is taken away", labelled.clone(), old.clone()),
        ("a label that says something else is taken away", with(old.clone(), LABEL, Some("x".into())), old.clone()),
        ("the startup taint is taken off", old.clone(), with(labelled.clone(), "/spec/taints/0", None)),
        (
            "it was the only one",
            with(old.clone(), "/spec/taints/1", None),
            with(labelled.clone(), "/spec/taints", None),
        ),
        ("the condition is published", old.clone(), with(old.clone(), "/status/conditions/-", Some(condition.clone()))),
        (
            "the condition changes",
            with(old.clone(), "/status/conditions/-", Some(condition.clone())),
            with(old.clone(), "/status/conditions/-", Some(with(condition, "/status", Some("False".into())))),
        ),
        ("bookkeeping", old.clone(), with(labelled, "/metadata/resourceVersion", Some("2".into()))),
    ];
    let theft: [(&str, &str, Option<Value>, &str); 19] = [
        ("another value of the label", LABEL, Some("false".into()), "to \"true\" or take it away"),
        ("another label", "/metadata/labels/zone", Some("a".into()), "no label"),
        ("a label is changed", "/metadata/labels/kubernetes.io~1hostname", Some("n2".into()), "no label"),
        ("a label is taken away", "/metadata/labels/kubernetes.io~1hostname", None, "no label"),
        ("all labels are", "/metadata/labels", None, "no label"),
        ("a taint is added", "/spec/taints/-", Some(objects::taint("x", "NoExecute")), "add or change no taint"),
        ("the startup taint is changed", "/spec/taints/0/effect", Some("NoExecute".into()), "add or change no taint"),
        ("another taint is changed", "/spec/taints/1/effect", Some("NoSchedule".into()), "add or change no taint"),
        ("another taint is taken off", "/spec/taints/1", None, "take no taint off"),
        ("all taints are", "/spec/taints", None, "take no taint off"),
        ("an annotation", "/metadata/annotations/x", Some("y".into()), "no annotation"),
        ("annotations are taken away", "/metadata/annotations", None, "no annotation"),
        ("a finalizer", "/metadata/finalizers", Some(json!(["x"])), "metadata"),
        ("the node is cordoned", "/spec/unschedulable", Some(true.into()), "spec"),
        ("its network", "/spec/podCIDR", Some("10.0.0.0/8".into()), "spec"),
        ("whether it is ready", "/status/conditions/0/status", Some("False".into()), "no condition"),
        ("that it is not said", "/status/conditions/0", None, "no condition"),
        ("what it has", "/status/capacity/cpu", Some("64".into()), "status"),
        ("what it has not", "/status/images", Some(json!([{"names": ["x"]}])), "status"),
    ];
    let policy = policy();
    let requests: Vec<Value> = work.iter().map(|(_, old, new)| update(USER, Some(NODE), old, new)).collect();
    for ((name, ..), outcome) in work.iter().zip(judged(&policy, &requests)) {
        assert_eq!(outcome, "allowed", "{name}");
    }
    // The same by the account of another node, or by a token that says of no node that it was made for it.
    for token_node in [Some("n2"), None] {
        let requests: Vec<Value> = work.iter().map(|(_, old, new)| update(USER, token_node, old, new)).collect();
        for ((name, ..), outcome) in work.iter().zip(judged(&policy, &requests)) {
            let named = token_node.unwrap_or("this token names none");
            assert!(
                outcome.contains("only the node that its token was made for") && outcome.ends_with(named),
                "{name}: {outcome}"
            );
        }
    }
    let stolen = |user| {
        let requests =
            theft.iter().map(|(_, at, value, _)| update(user, Some(NODE), &old, &with(old.clone(), at, value.clone())));
        judged(&policy, &requests.collect::<Vec<_>>())
    };
    for ((name, .., told), outcome) in theft.iter().zip(stolen(USER)) {
        assert!(outcome.starts_with("openshell-cni may ") && outcome.contains(told), "{name}: {outcome}");
    }
    // Control: others are none of its business, and each rule is what refuses.
    assert!(stolen("system:node:n1").iter().all(|outcome| outcome == "passed over"));
    let mut without = policy.clone();
    without["spec"]["validations"] = json!([]);
    let requests: Vec<Value> = theft
        .iter()
        .map(|(_, at, value, _)| update(USER, Some(NODE), &old, &with(old.clone(), at, value.clone())))
        .collect();
    assert!(judged(&without, &requests).iter().all(|outcome| outcome == "allowed"));
}
