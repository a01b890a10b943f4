//! Against the stand-in for the API server.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::contract::node::CONDITION;
use crate::kube::tests::kubernetes::{Mode, Record, objects, rights};
use crate::kube::tests::{Cluster, USER};

const PATH: &str = "/api/v1/nodes/n1";

fn node(cluster: &Cluster) -> Node {
    Node::new(cluster.client(), "n1").unwrap().with_patience(Duration::from_secs(5))
}

fn label(cluster: &Cluster) -> Value {
    cluster.api.object(PATH).unwrap()["metadata"]["labels"][READY_LABEL].clone()
}

fn taints(cluster: &Cluster) -> Vec<String> {
    let node = cluster.api.object(PATH).unwrap();
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints
        .iter()
        .map(|taint| format!("{}:{}", taint["key"].as_str().unwrap(), taint["effect"].as_str().unwrap()))
        .collect()
}

fn writes(cluster: &Cluster) -> Vec<Record> {
    cluster.api.calls().into_iter().filter(|call| call.method == "PATCH").collect()
}

#[tokio::test]
async fn a_node_becomes_ready_by_its_label_then_its_taint_and_only_by_what_is_missing() {
    let cluster = Cluster::start();
    let others = [objects::taint("node.kubernetes.io/not-ready", "NoExecute"), objects::taint("team", "NoSchedule")];
    let [first, last] = others.clone();
    let startup = |effect| objects::taint(STARTUP_TAINT, effect);
    let mut before = objects::node("n1", &[first, startup("NoSchedule"), last, startup("NoExecute")]);
    before["spec"]["taints"][3]["timeAdded"] = "2026-11-30T10:00:00Z".into();
    cluster.api.put(&before);
    cluster.api.forget();

    let node = node(&cluster);
    assert_eq!(node.mark_ready().await.unwrap(), Written { label: true, taints: 2 });
    assert_eq!(label(&cluster), READY);
    assert_eq!(taints(&cluster), ["node.kubernetes.io/not-ready:NoExecute", "team:NoSchedule"]);
    let after = cluster.api.object(PATH).unwrap();
    assert_eq!(after["metadata"]["labels"]["kubernetes.io/hostname"], "n1");
    assert_eq!(after["status"], before["status"]);
    let order: Vec<_> = writes(&cluster).iter().map(|write| write.body.contains("taints")).collect();
    assert_eq!(order, [false, true]);

    // What is right is not written again.
    cluster.api.forget();
    assert_eq!(node.mark_ready().await.unwrap(), Written::default());
    assert!(writes(&cluster).is_empty());

    // Another value is a no; the taint alone is taken off alone.
    cluster.api.change(PATH, |node| node["metadata"]["labels"][READY_LABEL] = "True".into());
    assert_eq!(node.mark_ready().await.unwrap(), Written { label: true, taints: 0 });
    cluster.api.change(PATH, |node| node["spec"]["taints"] = json!([startup("NoSchedule")]));
    assert_eq!(node.mark_ready().await.unwrap(), Written { label: false, taints: 1 });

    assert_eq!(node.mark_not_ready().await.unwrap(), Written { label: true, taints: 0 });
    assert_eq!((label(&cluster), taints(&cluster).len()), (Value::Null, 0));
    cluster.api.forget();
    assert_eq!(node.mark_not_ready().await.unwrap(), Written::default());
    assert!(writes(&cluster).is_empty());
}

#[tokio::test]
async fn a_taint_that_others_put_in_its_place_is_not_taken_off() {
    let cluster = Cluster::start();
    cluster.api.put(&objects::node("n1", &[objects::taint(STARTUP_TAINT, "NoSchedule")]));
    let seen = cluster.client().node(&Resource::node("n1").unwrap()).await.unwrap();
    let (patch, count) = untaint(&seen.spec.taints);
    assert_eq!(count, 1);
    // Somebody is quicker: what stood at the place is now one behind.
    cluster.api.change(PATH, |node| {
        node["spec"]["taints"] =
            json!([objects::taint("other", "NoSchedule"), objects::taint(STARTUP_TAINT, "NoSchedule")]);
    });
    let stale = cluster.client().patch(&Resource::node("n1").unwrap(), Patch::Json, &patch).await.unwrap_err();
    assert!(matches!(stale.failure, Failure::Invalid(_)), "{stale}");
    // The control: without the tests the same operations take off the wrong one.
    let untested: Vec<&Value> =
        patch.as_array().unwrap().iter().filter(|operation| operation["op"] != "test").collect();
    cluster.client().patch(&Resource::node("n1").unwrap(), Patch::Json, &json!(untested)).await.unwrap();
    assert_eq!(taints(&cluster), [format!("{STARTUP_TAINT}:NoSchedule")]);
    // From the beginning, it finds its own.
    node(&cluster).mark_ready().await.unwrap();
    assert!(taints(&cluster).is_empty());
}

#[tokio::test]
async fn writers_that_are_quicker_are_met_again_a_few_times() {
    let cluster = Cluster::start();
    let node = node(&cluster);
    for (quicker, expected) in [(TRIES - 1, true), (TRIES, false)] {
        cluster.api.put(&objects::node("n1", &[]));
        cluster.api.set_script(&[Mode::Healthy, Mode::Conflict].repeat(quicker as usize));
        let outcome = node.mark_ready().await;
        assert_eq!(outcome.is_ok(), expected, "{outcome:?}");
        assert_eq!(label(&cluster) == READY, expected);
    }
}

#[tokio::test]
async fn an_outage_is_waited_out_and_a_refusal_is_not() {
    let cluster = Cluster::start();
    let node = node(&cluster);
    for mode in [Mode::Failing(500), Mode::TooMany(None), Mode::Half, Mode::Closing] {
        cluster.api.set_mode_for(mode, 2);
        assert!(node.mark_ready().await.unwrap().label, "{mode:?}");
        cluster.api.set_mode_for(mode, 2);
        assert!(node.mark_not_ready().await.unwrap().label, "{mode:?}");
    }
    cluster.api.set_mode(Mode::Down);
    let impatient = Node::new(cluster.client(), "n1").unwrap().with_patience(Duration::from_millis(300));
    let error = impatient.mark_ready().await.unwrap_err();
    assert!(matches!(error.failure, Failure::Unreachable(_)), "{error}");
    cluster.api.set_mode(Mode::Healthy);

    cluster.api.forget();
    cluster.api.grant(USER, &[rights::nodes(&["get"])]);
    let error = node.mark_ready().await.unwrap_err();
    assert!(matches!(error.failure, Failure::Forbidden(_)), "{error}");
    assert_eq!(cluster.api.calls().len(), 2);
    assert_eq!(label(&cluster), Value::Null);
    let other = Node::new(cluster.client(), "n2").unwrap();
    assert!(other.mark_ready().await.unwrap_err().is_not_found());
    assert!(Node::new(cluster.client(), "../pods").is_err());
    // The control: with the right, it is done.
    cluster.api.grant(USER, &[rights::nodes(&["get", "patch"])]);
    assert!(node.mark_ready().await.unwrap().label);
}

#[tokio::test]
async fn a_half_answer_does_not_lose_what_was_done() {
    let cluster = Cluster::start();
    cluster.api.put(&objects::node("n1", &[objects::taint(STARTUP_TAINT, "NoSchedule")]));
    let node = node(&cluster);
    // The label is written, and its answer is lost.
    cluster.api.set_script(&[Mode::Healthy, Mode::Half]);
    assert_eq!(node.mark_ready().await.unwrap(), Written { label: false, taints: 1 });
    assert_eq!(label(&cluster), READY);
    assert!(taints(&cluster).is_empty());
    let labels = writes(&cluster).iter().filter(|write| write.body.contains(READY_LABEL)).count();
    assert_eq!(labels, 1);
}

fn condition(cluster: &Cluster) -> Option<Value> {
    let node = cluster.api.object(PATH).unwrap();
    node["status"]["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == CONDITION).cloned()
}

#[tokio::test]
async fn a_condition_is_published_where_it_is_asked_for_and_keeps_its_transition() {
    let cluster = Cluster::start();
    let verdict = |ready, reason| Verdict { ready, reason, message: format!("because of {reason}") };
    let mut silent = node(&cluster);
    assert!(!silent.publish(&verdict(true, "ChainVerified")).await.unwrap());
    silent.mark_ready().await.unwrap();
    assert!(condition(&cluster).is_none() && cluster.api.calls().iter().all(|call| !call.path.ends_with("/status")));

    let mut node = node(&cluster).with_condition();
    let error = node.publish(&verdict(true, "ChainVerified")).await.unwrap_err().to_string();
    assert!(error.contains("cannot patch resource \"nodes/status\""), "{error}");
    cluster.api.grant(USER, &[rights::nodes(&["get", "patch"]), rights::node_status()]);
    assert!(node.publish(&verdict(true, "ChainVerified")).await.unwrap());
    let first = condition(&cluster).unwrap();
    assert_eq!((&first["status"], &first["reason"]), (&json!("True"), &json!("ChainVerified")));
    assert_eq!(first["message"], "because of ChainVerified");
    let time = first["lastTransitionTime"].as_str().unwrap();
    assert!(time.len() == 20 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    // What the kubelet says stays.
    assert_eq!(cluster.api.object(PATH).unwrap()["status"]["conditions"][0]["reason"], "KubeletReady");

    // Nothing new: no write, until a heartbeat is due.
    assert!(!node.publish(&verdict(true, "ChainVerified")).await.unwrap());
    let long_ago = "2026-01-01T00:00:00Z";
    let age = |which: &'static str| {
        cluster.api.change(PATH, |node| {
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.iter_mut().find(|condition| condition["type"] == CONDITION).unwrap()[which] = long_ago.into();
        });
    };
    age("lastHeartbeatTime");
    age("lastTransitionTime");
    node.condition = Some(None);
    assert!(node.publish(&verdict(true, "ChainVerified")).await.unwrap());
    let beat = condition(&cluster).unwrap();
    assert_ne!(beat["lastHeartbeatTime"], long_ago);
    assert_eq!(beat["lastTransitionTime"], long_ago);

    // Another reason is news and no transition; another status is both.
    assert!(node.publish(&verdict(true, "ChainRepaired")).await.unwrap());
    assert_eq!(condition(&cluster).unwrap()["lastTransitionTime"], long_ago);
    assert!(node.publish(&verdict(false, "ChainMissing")).await.unwrap());
    let last = condition(&cluster).unwrap();
    assert_eq!(last["status"], "False");
    assert_ne!(last["lastTransitionTime"], long_ago);

    // Who takes it away gets it back.
    cluster.api.change(PATH, |node| drop(node["status"]["conditions"].as_array_mut().unwrap().pop()));
    assert!(node.publish(&verdict(false, "ChainMissing")).await.unwrap());
}

#[tokio::test]
async fn the_history_shows_the_label_at_every_instant() {
    let cluster = Cluster::start();
    let node = node(&cluster);
    // What a chain that comes and goes asks for, through all kinds of weather; and whether it is verified meanwhile.
    let mut spans = Vec::new();
    for (round, mode) in [Mode::Failing(503), Mode::Half, Mode::TooMany(None), Mode::Healthy].into_iter().enumerate() {
        cluster.api.set_mode_for(mode, 1 + round % 2);
        node.mark_not_ready().await.unwrap();
        let cleared = std::time::Instant::now();
        cluster.api.set_mode_for(mode, 1);
        spans.push((cleared, std::time::Instant::now()));
        node.mark_ready().await.unwrap();
    }
    let mut states = Vec::new();
    for record in cluster.api.history() {
        let ready = record.after.as_ref().is_some_and(|node| node["metadata"]["labels"][READY_LABEL] == READY);
        assert!(!spans.iter().any(|(from, to)| record.at > *from && record.at < *to) || !ready);
        states.push(ready);
    }
    states.dedup();
    assert_eq!(states, [false, true, false, true, false, true, false, true]);
}
