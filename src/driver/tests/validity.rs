//! Every object against the types of the Kubernetes API and the rules of its lists, for random valid inputs.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::{apps, core, networking, rbac};
use proptest::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{cluster, containers};
use crate::driver::cluster::SandboxApi;
use crate::driver::config::{
    Affinity, AppArmor, EgressRange, IpFamily, NetworkEnforcement, Peer, SidecarConfig, Sideload, Topology,
    UpstreamProxyConfig,
};
use crate::driver::names::volume::ALL as VOLUMES;
use crate::driver::names::{self, annotation, label};
use crate::driver::sandbox::{Toleration, UserMount, UserVolume};
use crate::driver::{DriverConfig, Object, SandboxSpec, render, shape, to_json, to_yaml};

/// Whether the value is one of that type and nothing more: what the type does not know is lost on the way back.
fn is_whole<T: DeserializeOwned + Serialize>(value: &Value) -> Result<(), String> {
    let typed: T = serde_json::from_value(value.clone()).map_err(|error| error.to_string())?;
    let back = serde_json::to_value(&typed).map_err(|error| error.to_string())?;
    lost(value, &back, String::new()).map_or(Ok(()), |path| Err(format!("{path} is unknown to the API")))
}

fn lost(given: &Value, back: &Value, path: String) -> Option<String> {
    match (given, back) {
        (Value::Object(given), Value::Object(back)) => given.iter().find_map(|(name, value)| match back.get(name) {
            Some(other) => lost(value, other, format!("{path}.{name}")),
            // An empty list or map is as good as none to the API's types.
            None if matches!(value, Value::Array(items) if items.is_empty()) => None,
            None => Some(format!("{path}.{name}")),
        }),
        (Value::Array(given), Value::Array(back)) if given.len() == back.len() => {
            given.iter().zip(back).enumerate().find_map(|(at, (one, other))| lost(one, other, format!("{path}[{at}]")))
        }
        _ if given == back => None,
        _ => Some(path),
    }
}

fn object_is_valid(object: &Object) -> Result<(), String> {
    let value = object.value();
    match object.kind() {
        "Pod" => is_whole::<core::v1::Pod>(value),
        "ConfigMap" => is_whole::<core::v1::ConfigMap>(value),
        "Secret" => is_whole::<core::v1::Secret>(value),
        "Service" => is_whole::<core::v1::Service>(value),
        "Deployment" => is_whole::<apps::v1::Deployment>(value),
        "NetworkPolicy" => is_whole::<networking::v1::NetworkPolicy>(value),
        "Role" => is_whole::<rbac::v1::Role>(value),
        "RoleBinding" => is_whole::<rbac::v1::RoleBinding>(value),
        "Sandbox" => sandbox_is_valid(value),
        other => Err(format!("{other}: no such kind is rendered")),
    }
}

/// The Sandbox resource by its schema: what it has of its own, and the types that it has of others.
fn sandbox_is_valid(value: &Value) -> Result<(), String> {
    let known = |value: &Value, fields: &[&str]| {
        let unknown = value.as_object().and_then(|found| found.keys().find(|key| !fields.contains(&key.as_str())));
        unknown.map_or(Ok(()), |field| Err(format!("{field} is unknown to the resource")))
    };
    let mode = if value["apiVersion"] == "agents.x-k8s.io/v1beta1" { "operatingMode" } else { "replicas" };
    known(value, &["apiVersion", "kind", "metadata", "spec"])?;
    known(&value["spec"], &["podTemplate", "volumeClaimTemplates", mode])?;
    let template = &value["spec"]["podTemplate"];
    known(template, &["metadata", "spec"])?;
    known(&template["metadata"], &["labels", "annotations"])?;
    is_whole::<core::v1::PodSpec>(&template["spec"])?;
    for claim in value["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
        known(claim, &["metadata", "spec"])?;
        is_whole::<core::v1::PersistentVolumeClaimSpec>(&claim["spec"])?;
    }
    Ok(())
}

/// The rules of lists that are maps to the API server, and references that must resolve.
fn pod_is_sound(object: &Object) -> Result<(), String> {
    let Some(spec) = object.pod_spec() else { return Ok(()) };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let once = |what: &str, names: Vec<String>| {
        let distinct: BTreeSet<&String> = names.iter().collect();
        if distinct.len() == names.len() { Ok(()) } else { Err(format!("{what} twice in {names:?}")) }
    };
    let field = |items: &[Value], name: &str| -> Vec<String> {
        items.iter().map(|item| item[name].as_str().unwrap_or_default().to_owned()).collect()
    };
    let mut volumes = field(&list(&spec["volumes"]), "name");
    volumes.extend(
        list(&object.value()["spec"]["volumeClaimTemplates"])
            .iter()
            .map(|claim| claim["metadata"]["name"].as_str().unwrap_or_default().to_owned()),
    );
    once("a volume", volumes.clone())?;
    once("a container", containers(spec).map(|container| container["name"].to_string()).collect())?;
    let mut used = BTreeSet::new();
    for container in containers(spec) {
        let mounts = list(&container["volumeMounts"]);
        once("a mount", field(&mounts, "mountPath"))?;
        once("a variable", field(&list(&container["env"]), "name"))?;
        for volume in field(&mounts, "name") {
            if !volumes.contains(&volume) {
                return Err(format!("no volume {volume} for {}", container["name"]));
            }
            used.insert(volume);
        }
        let name = container["name"].as_str().unwrap_or_default();
        if !shape::is_dns_label(name) {
            return Err(format!("{name} is no DNS label"));
        }
    }
    let unused =
        volumes.iter().find(|volume| !used.contains(*volume) && VOLUMES.iter().any(|own| volume.starts_with(own)));
    unused.map_or(Ok(()), |volume| Err(format!("nobody mounts {volume}")))
}

/// What no user may decide: whose a pod is, and what keeps others out of it.
fn pod_is_whose_it_is(object: &Object, sandbox: &SandboxSpec) -> Result<(), String> {
    let Some(metadata) = object.pod_metadata() else { return Ok(()) };
    for (key, value) in [
        (label::MANAGED_BY, label::OPENSHELL),
        (label::SANDBOX_ID, sandbox.id.as_str()),
        ("sidecar.istio.io/inject", "false"),
    ] {
        if metadata["labels"][key] != value {
            return Err(format!("{key} is {}", metadata["labels"][key]));
        }
    }
    let known = metadata["annotations"][annotation::SANDBOX_ID] == sandbox.id.as_str();
    if known { Ok(()) } else { Err("whose pod it is can be said by its user".into()) }
}

/// The policy is mounted where it is read, and the volume is there for nobody else.
fn policy_is_where_it_is_read(object: &Object, sandbox: &SandboxSpec) -> Result<(), String> {
    let Some(spec) = object.pod_spec() else { return Ok(()) };
    for container in containers(spec) {
        let reads = container["command"].as_array().is_some_and(|words| {
            words.iter().any(|word| word.as_str().is_some_and(|word| word.starts_with("--policy=")))
        });
        let sees = super::mounts(container, names::volume::POLICY, &sandbox.id);
        if sees != reads || (reads && sandbox.policy.is_none()) {
            return Err(format!("{} reads a policy: {reads}, sees it: {sees}", container["name"]));
        }
    }
    Ok(())
}

fn all_is_well(objects: &[Object], sandbox: &SandboxSpec) -> Result<(), String> {
    for object in objects {
        let told = |error: String| format!("{} {}: {error}\n{}", object.kind(), object.name(), object.to_yaml());
        object_is_valid(object).map_err(told)?;
        pod_is_sound(object).map_err(told)?;
        pod_is_whose_it_is(object, sandbox).map_err(told)?;
        policy_is_where_it_is_read(object, sandbox).map_err(told)?;
        if !shape::is_dns_label(object.name()) {
            return Err(told("no DNS label".into()));
        }
        let read: Value = serde_saphyr::from_str(&object.to_yaml()).map_err(|error| told(error.to_string()))?;
        if read != *object.value() {
            return Err(told("its YAML says something else".into()));
        }
    }
    Ok(())
}

fn word() -> impl Strategy<Value = String> {
    "[a-z]([a-z0-9-]{0,8}[a-z0-9])?"
}

fn configs() -> impl Strategy<Value = DriverConfig> {
    let topologies = prop::sample::select(Topology::ALL.map(|(_, topology)| topology).to_vec());
    let affinities = prop::sample::select(vec![Affinity::Disabled, Affinity::Preferred, Affinity::Required]);
    (
        topologies,
        any::<[bool; 10]>(),
        (word(), 1000..u32::MAX - 1, 1000..u32::MAX - 1),
        affinities,
        prop::option::of(1..999_u32),
        any::<i64>(),
    )
        .prop_map(|(topology, flags, (name, uid, gid), affinity, sandbox_uid, ttl)| {
            let mut config = DriverConfig { topology, sandbox_uid, sa_token_ttl_secs: ttl, ..DriverConfig::default() };
            let sideload = if flags[0] { Sideload::ImageVolume } else { Sideload::InitContainer };
            config.sidecar = SidecarConfig { proxy_uid: uid, proxy_gid: gid, binary_aware: flags[1] };
            config.supervisor_sideload_method = sideload;
            config.enable_user_namespaces = flags[2];
            config.proxy_pod.affinity = affinity;
            if flags[3] {
                config.grpc_endpoint = Some("https://gateway:1".into());
                let gateway = Peer { cidr: Some("192.0.2.0/24".into()), port: 1, ..Peer::default() };
                config.proxy_pod.gateway_peers = vec![gateway];
            }
            if flags[4] {
                config.client_tls_secret_name.clone_from(&name);
            }
            if flags[5] {
                config.provider_spiffe_workload_api_socket_path =
                    format!("{}/{name}-api/s", if flags[0] { "" } else { "/var/run" });
            }
            if flags[6] {
                let secret = matches!(topology, Topology::Sidecar | Topology::CniSidecar);
                config.upstream_proxy = UpstreamProxyConfig {
                    url: Some("http://p:1".into()),
                    no_proxy: Some("*".into()),
                    secret: secret.then(|| (name.clone(), "k".into())),
                    allow_insecure: secret,
                    by_hostname: true,
                };
            }
            if flags[7] {
                config.image_pull_secrets = vec![name.clone()];
                config.host_gateway_ip = "10.0.0.1".into();
            }
            config.app_armor_profile = match flags {
                [true, true, ..] => Some(AppArmor::RuntimeDefault),
                [true, false, true, ..] => Some(AppArmor::Localhost(name.clone())),
                _ => None,
            };
            if flags[8] {
                config.default_runtime_class_name = "runc".into();
                config.proxy_pod.ip_family = IpFamily::Any;
                config.workspace_storage_class = name;
            }
            if flags[9] {
                config.openshift.nonroot_scc = topology == Topology::ProxyPod;
                if topology == Topology::Combined {
                    config.provider_spiffe_workload_api_socket_path = String::new();
                    config.network_enforcement = NetworkEnforcement::Platform;
                    let range = EgressRange { cidr: "::/0".into(), except: vec!["fd00::/8".into()], ports: vec![443] };
                    config.platform_network.egress = vec![range];
                    config.platform_network.controls = vec!["example.com:443".into()];
                }
            }
            config
        })
}

fn sandboxes() -> impl Strategy<Value = SandboxSpec> {
    (
        ("[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", word(), word()),
        prop::collection::vec(".{1,20}", 1..4),
        prop::collection::btree_map("[A-NP-Z_]{1,6}", "[ -~äß\n\u{2028}]{0,20}", 0..4),
        prop::collection::btree_map(prop_oneof![word(), Just("sidecar.istio.io/inject".to_owned())], word(), 0..4),
        prop::collection::btree_set(word(), 0..4),
        any::<[bool; 6]>(),
        prop::option::of(1..9_u32),
        scheduling(),
        quantities(),
    )
        .prop_map(
            |((id, name, workspace), command, environment, labels, volumes, flags, gpu, scheduling, quantities)| {
                let command: Vec<String> = command.into_iter().map(|word| word.replace('\0', "0")).collect();
                let mut sandbox = SandboxSpec {
                    id,
                    name,
                    workspace,
                    command,
                    environment,
                    labels,
                    gpu,
                    tty: flags[0],
                    ..SandboxSpec::default()
                };
                sandbox.persistent_workspace = flags[1];
                if flags[2] {
                    let policy =
                        serde_json::json!({"version": 1, "a": [[], {}, [1, "x\n y\n"], {"b": null}], "$": "no"});
                    sandbox.policy = policy.as_object().cloned();
                }
                if flags[3] {
                    sandbox.log_level = "debug".into();
                }
                sandbox.resources.cpu_limit = flags[4].then(|| "2".into());
                let (user, platform) = (&mut sandbox.driver_config, &mut sandbox.platform_config);
                (user.node_selector, user.tolerations, user.priority_class_name) = scheduling;
                platform.node_selector = user.node_selector.clone();
                platform.tolerations = user.tolerations.iter().take(1).cloned().collect();
                platform.host_users = gpu.map(|count| count > 4);
                platform.annotations = user.node_selector.clone();
                // Whatever is asked for by whom, a limit that is no less comes with it, and a GPU is counted once.
                (platform.requests, user.limits) = quantities;
                let volumes: Vec<String> =
                    volumes.into_iter().filter(|name| !VOLUMES.iter().any(|own| name.starts_with(own))).collect();
                for volume in &volumes {
                    let below = if flags[5] { "/sandbox" } else { "/mnt" };
                    sandbox.driver_config.volumes.push(UserVolume {
                        name: volume.clone(),
                        claim_name: volume.clone(),
                        read_only: flags[0],
                    });
                    sandbox.driver_config.volume_mounts.push(UserMount {
                        name: volume.clone(),
                        mount_path: format!("{below}/{volume}"),
                        sub_path: flags[1].then(|| "a/b".into()),
                        read_only: true,
                    });
                }
                sandbox
            },
        )
}

type Scheduling = (BTreeMap<String, String>, Vec<Toleration>, Option<String>);

fn scheduling() -> impl Strategy<Value = Scheduling> {
    let toleration =
        (word(), any::<[bool; 3]>(), prop::option::of(any::<i64>())).prop_map(|(key, flags, seconds)| Toleration {
            key: (flags[0] || !flags[1]).then_some(key),
            operator: Some(if flags[1] { "Exists" } else { "Equal" }.into()),
            value: (!flags[1]).then(|| "v".into()),
            effect: if seconds.is_some() { Some("NoExecute".into()) } else { flags[2].then(|| "NoSchedule".into()) },
            seconds,
        });
    let labels = prop::collection::btree_map(word().prop_map(|word| format!("example.com/{word}")), word(), 0..3);
    (labels, prop::collection::vec(toleration, 0..3), prop::option::of(word()))
}

/// What is asked for, and what there is at the most.
fn quantities() -> impl Strategy<Value = (BTreeMap<String, String>, BTreeMap<String, String>)> {
    let names = ["memory", "ephemeral-storage", "example.com/device", "example.com/other"];
    prop::collection::vec((prop::sample::select(names.to_vec()), 1..9_u32, any::<bool>()), 0..4).prop_map(|all| {
        let (mut requests, mut limits) = (BTreeMap::new(), BTreeMap::new());
        for (name, count, asked) in all {
            let devices = name.contains('/');
            if asked {
                requests.insert(name.to_owned(), format!("{count}"));
            } else {
                requests.remove(name);
            }
            let limit = if devices { format!("{count}.0") } else { format!("{}", count + 1) };
            limits.insert(name.to_owned(), limit);
        }
        (requests, limits)
    })
}

fn apis() -> impl Strategy<Value = Option<SandboxApi>> {
    prop::sample::select(vec![None, Some(SandboxApi::V1Beta1), Some(SandboxApi::V1Alpha1)])
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn what_is_rendered_from_any_valid_input_is_what_the_api_takes(
        config in configs(), sandbox in sandboxes(), api in apis(), stopped: bool, openshift: bool,
    ) {
        let mut config = config;
        if openshift && config.network_enforcement == NetworkEnforcement::Platform {
            config.sandbox_uid = None;
        }
        let mut cluster = crate::driver::Cluster { stopped: stopped && api.is_some(), ..cluster(api) };
        if openshift {
            cluster.namespace_annotations.insert(annotation::UID_RANGE.into(), "2000/10".into());
        }
        let objects = render(&config, &sandbox, &cluster).map_err(|errors| TestCaseError::fail(errors.to_string()))?;
        all_is_well(&objects, &sandbox).map_err(TestCaseError::fail)?;
        let again = render(&config, &sandbox, &cluster).map_err(|errors| TestCaseError::fail(errors.to_string()))?;
        prop_assert_eq!(to_yaml(&objects), to_yaml(&again));
        prop_assert!(serde_json::from_str::<Value>(&to_json(&objects)).is_ok());
        // The API refuses another claim for a Sandbox that is there, so whatever else changes, that does not.
        let claims = |objects: &[Object]| -> Vec<Value> {
            objects.iter().map(|object| object.value()["spec"]["volumeClaimTemplates"].clone()).filter(|claims| !claims.is_null()).collect()
        };
        prop_assert_eq!(claims(&objects).len(), usize::from(api.is_some() && sandbox.persistent_workspace && !sandbox.driver_config.volume_mounts.iter().any(|mount| mount.mount_path.starts_with("/sandbox/"))));
        let mut edited = sandbox.clone();
        edited.image = "another.example.com/image:2".into();
        edited.command.push("more".into());
        edited.labels.insert("more".into(), "x".into());
        edited.log_level = "info".into();
        let mut later = config.clone();
        later.supervisor_image = "another.example.com/supervisor:2".into();
        let owned = crate::driver::Cluster { stopped: !stopped && api.is_some(), sandbox_uid: api.map(|_| "u".into()), ..cluster };
        let after = render(&later, &edited, &owned).map_err(|errors| TestCaseError::fail(errors.to_string()))?;
        prop_assert_eq!(claims(&objects), claims(&after));
    }
}

#[test]
fn what_the_api_does_not_know_is_found() {
    let objects = super::of(Topology::Sidecar, super::LOCAL, super::SANDBOX, None);
    let pod = objects.last().expect("a pod").value().clone();
    assert_eq!(is_whole::<core::v1::Pod>(&pod), Ok(()));
    for at in ["/spec", "/spec/containers/0", "/spec/containers/0/securityContext", "/spec/volumes/0"] {
        let mut wrong = pod.clone();
        wrong.pointer_mut(at).expect("a place")["surplus"] = Value::Bool(true);
        assert!(is_whole::<core::v1::Pod>(&wrong).is_err(), "{at}");
    }
    let mut wrong = pod;
    wrong["spec"]["containers"][0]["securityContext"]["runAsUser"] = Value::from("1000");
    assert!(is_whole::<core::v1::Pod>(&wrong).is_err());
}
