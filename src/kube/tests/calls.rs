//! What calls come to.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::kubernetes::{Mode, objects, rights};
use super::{Cluster, USER};
use crate::kube::{Client, Failure, NameError, Patch, Resource, within};

fn pod() -> Resource {
    Resource::pod("agents", "a-0").unwrap()
}

fn node() -> Resource {
    Resource::node("n1").unwrap()
}

#[tokio::test]
async fn objects_are_read() {
    let cluster = Cluster::start();
    let client = cluster.client();
    let found = client.metadata(&pod()).await.unwrap().metadata;
    assert_eq!((found.name.as_str(), found.uid.as_str()), ("a-0", "uid-1"));
    assert_eq!(found.annotations["openshell.ai/cni"], "enabled");
    let found = client.node(&node()).await.unwrap();
    assert_eq!(found.metadata.labels["kubernetes.io/hostname"], "n1");
    assert_eq!(found.status.conditions[0].kind, "Ready");
    // Whole, where that is asked for.
    let whole: Value = client.get(&pod()).await.unwrap();
    assert_eq!(whole["status"]["phase"], "Pending");

    cluster.api.put(&objects::daemon_set("openshell", "cni", None));
    cluster.api.put(&objects::daemon_set("openshell", "going", Some("2026-11-30T10:00:00Z")));
    cluster.api.grant(USER, &[rights::daemon_sets("openshell")]);
    let when = async |name| {
        let set = client.metadata(&Resource::daemon_set("openshell", name).unwrap()).await?;
        Ok::<_, crate::kube::ApiError>(set.metadata.deletion_timestamp)
    };
    assert_eq!(when("cni").await.unwrap(), None);
    assert_eq!(when("going").await.unwrap().unwrap(), "2026-11-30T10:00:00Z");
    let error = when("gone").await.unwrap_err();
    assert!(error.is_not_found() && !error.is_transient());
    assert!(error.to_string().ends_with(": not found (404): daemonsets.apps \"gone\" not found"), "{error}");
}

#[tokio::test]
async fn what_is_not_granted_is_forbidden_in_the_servers_words() {
    let cluster = Cluster::start();
    let client = cluster.client();
    client.metadata(&pod()).await.unwrap();
    cluster.api.put(&objects::pod("other", "b-0", "uid-2", &[]));
    let error = client.metadata(&Resource::pod("other", "b-0").unwrap()).await.unwrap_err();
    assert!(matches!(error.failure, Failure::Forbidden(_)) && !error.is_transient());
    let url = format!("GET {}/api/v1/namespaces/other/pods/b-0: ", cluster.api.url());
    let said = format!(
        "{url}forbidden (403): pods \"b-0\" is forbidden: User \"{USER}\" cannot get resource \"pods\" in API group \"\" \
         in the namespace \"other\"; grant it by a Role or ClusterRole"
    );
    assert_eq!(error.to_string(), said);
    let patch = json!({"status": {"phase": "x"}});
    let status = Resource::node_status("n1").unwrap();
    let error = client.patch(&status, Patch::Strategic, &patch).await.unwrap_err().to_string();
    assert!(error.contains("cannot patch resource \"nodes/status\" in API group \"\" at the cluster scope"), "{error}");
}

#[tokio::test]
async fn patches_change_what_they_name_or_nothing() {
    let cluster = Cluster::start();
    let client = cluster.client();
    let version = client.node(&node()).await.unwrap().metadata.resource_version;
    let label = json!({"metadata": {"labels": {"a/b": "true"}}});
    let after = client.patch(&node(), Patch::Merge, &label).await.unwrap().metadata;
    assert_eq!(after.labels["a/b"], "true");
    assert_ne!(after.resource_version, version);
    let again = client.patch(&node(), Patch::Merge, &label).await.unwrap().metadata;
    assert_eq!(again.resource_version, after.resource_version, "nothing has changed");

    let stale = json!({"metadata": {"resourceVersion": version, "labels": {"a/b": null}}});
    let error = client.patch(&node(), Patch::Merge, &stale).await.unwrap_err();
    assert!(matches!(error.failure, Failure::Conflict(_)) && !error.is_transient(), "{error}");
    let test = |value: &str| {
        json!([
            {"op": "test", "path": "/metadata/labels/a~1b", "value": value},
            {"op": "remove", "path": "/metadata/labels/a~1b"},
        ])
    };
    let error = client.patch(&node(), Patch::Json, &test("false")).await.unwrap_err();
    assert!(matches!(error.failure, Failure::Invalid(_)) && !error.is_transient(), "{error}");
    let after = client.patch(&node(), Patch::Json, &test("true")).await.unwrap().metadata;
    assert!(!after.labels.contains_key("a/b"));

    // A status is changed by its own name alone.
    cluster.api.grant(USER, &[rights::nodes(&["get", "patch"]), rights::node_status()]);
    let condition = json!({"status": {"conditions": [{"type": "X", "status": "True"}]}});
    client.patch(&node(), Patch::Strategic, &condition).await.unwrap();
    assert_eq!(client.node(&node()).await.unwrap().status.conditions.len(), 1);
    client.patch(&Resource::node_status("n1").unwrap(), Patch::Strategic, &condition).await.unwrap();
    let kinds: Vec<_> =
        client.node(&node()).await.unwrap().status.conditions.into_iter().map(|condition| condition.kind).collect();
    assert_eq!(kinds, ["Ready", "X"]);
}

#[test]
fn names_lead_nowhere_else() {
    assert_eq!(Resource::pod("ns", "a.b-c").unwrap().to_string(), "/api/v1/namespaces/ns/pods/a.b-c");
    assert_eq!(Resource::node_status("n1").unwrap().to_string(), "/api/v1/nodes/n1/status");
    let long = "x".repeat(254);
    for name in ["", ".", "..", "a..b", "-a", "a-", "A", "a/b", "a?b", "a%2fb", "a\nb", "ä", "../secrets/x", &long] {
        let error: NameError = Resource::pod("ns", name).unwrap_err();
        assert_eq!(error.what, "pod");
        assert!(Resource::node(name).is_err() && Resource::daemon_set("ns", name).is_err(), "{name}");
    }
    assert_eq!(Resource::pod("a.b", "p").unwrap_err().what, "namespace");
    assert!(Resource::pod(&"x".repeat(64), "p").is_err());
    assert!(Resource::pod(&"x".repeat(63), "p").is_ok());
}

#[tokio::test]
async fn every_failure_is_told_apart() {
    type Is = fn(&Failure) -> bool;
    let cluster = Cluster::start();
    let client = cluster.client().with_call_time(Duration::from_millis(300));
    let cases: [(Mode, bool, Is); 12] = [
        (Mode::Down, true, |failure| matches!(failure, Failure::Unreachable(_))),
        (Mode::Silent, true, |failure| matches!(failure, Failure::TimedOut(_))),
        (Mode::Stalled, true, |failure| matches!(failure, Failure::TimedOut(_))),
        (Mode::Slow(Duration::from_secs(1)), true, |failure| matches!(failure, Failure::TimedOut(_))),
        (
            Mode::TooMany(Some(7)),
            true,
            |failure| matches!(failure, Failure::TooMany { retry_after: Some(after), .. } if after.as_secs() == 7),
        ),
        (Mode::TooMany(None), true, |failure| matches!(failure, Failure::TooMany { retry_after: None, .. })),
        (Mode::Failing(500), true, |failure| matches!(failure, Failure::Server { status: 500, .. })),
        (Mode::Failing(503), true, |failure| matches!(failure, Failure::Server { status: 503, .. })),
        (Mode::Half, true, |failure| matches!(failure, Failure::Broken(_))),
        (Mode::Closing, true, |failure| matches!(failure, Failure::Broken(_))),
        (Mode::Garbage, false, |failure| matches!(failure, Failure::Malformed(_))),
        (Mode::Page, false, |failure| matches!(failure, Failure::Malformed(_))),
    ];
    for (mode, transient, expected) in cases {
        cluster.api.set_mode(mode);
        let begun = Instant::now();
        let error = client.metadata(&pod()).await.unwrap_err();
        assert!(expected(&error.failure) && error.is_transient() == transient, "{mode:?}: {error:?}");
        assert!(begun.elapsed() < Duration::from_millis(900), "{mode:?}");
        assert!(!error.to_string().contains(&cluster.token), "{error}");
        cluster.api.set_mode(Mode::Healthy);
        client.metadata(&pod()).await.unwrap();
    }
    cluster.api.set_mode(Mode::Endless);
    let error = cluster.client().metadata(&pod()).await.unwrap_err();
    assert!(matches!(error.failure, Failure::TooLarge(_)), "{error:?}");
}

#[tokio::test]
async fn what_passes_is_tried_again_and_what_does_not_is_not() {
    let cluster = Cluster::start();
    let client = cluster.client();
    let get = |limit: u64| within(Duration::from_millis(limit), async || client.metadata(&pod()).await);
    for mode in [Mode::Failing(500), Mode::TooMany(None), Mode::Half, Mode::Closing] {
        cluster.api.set_mode_for(mode, 3);
        assert_eq!(get(5000).await.unwrap().metadata.uid, "uid-1", "{mode:?}");
    }
    // The server's own pause is kept to, or not waited for at all.
    cluster.api.set_mode_for(Mode::TooMany(Some(1)), 1);
    let begun = Instant::now();
    get(5000).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(1));
    cluster.api.set_mode_for(Mode::TooMany(Some(u64::MAX)), 1);
    let begun = Instant::now();
    assert!(matches!(get(5000).await.unwrap_err().failure, Failure::TooMany { .. }));
    assert!(begun.elapsed() < Duration::from_millis(500));

    // It ends with the limit, in time and with the reason.
    cluster.api.set_mode(Mode::Down);
    let begun = Instant::now();
    assert!(matches!(get(800).await.unwrap_err().failure, Failure::Unreachable(_)));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    cluster.api.set_mode(Mode::Silent);
    let begun = Instant::now();
    assert!(matches!(get(300).await.unwrap_err().failure, Failure::TimedOut(_)));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());

    cluster.api.set_mode(Mode::Healthy);
    cluster.api.forget();
    let gone = Resource::pod("agents", "gone").unwrap();
    let other = Resource::pod("other", "b-0").unwrap();
    for resource in [gone, other] {
        within(Duration::from_secs(5), async || client.metadata(&resource).await).await.unwrap_err();
    }
    assert_eq!(cluster.api.calls().len(), 2, "neither 404 nor 403 is tried again");
}

#[tokio::test]
async fn a_token_that_was_just_replaced_is_found_and_a_dead_one_is_shown_twice() {
    let cluster = Cluster::start();
    cluster.file("token", &cluster.token);
    let config = cluster.file("config", cluster.api.kubeconfig_for("tokenFile: token"));
    let client = Client::new(crate::kube::Access::from_kubeconfig(&config).unwrap());
    cluster.api.expire(&cluster.token);
    let error = within(Duration::from_secs(5), async || client.metadata(&pod()).await).await.unwrap_err();
    assert!(matches!(error.failure, Failure::Unauthorized(_)), "{error}");
    assert_eq!(cluster.api.calls().len(), 2);

    let fresh = cluster.api.token(USER, &[rights::pods("agents")]);
    let mut tries = 0;
    let found = within(Duration::from_secs(5), async || {
        tries += 1;
        if tries == 2 {
            cluster.file("token", &fresh);
        }
        client.metadata(&pod()).await
    });
    found.await.unwrap();
    assert_eq!(tries, 2);
}
