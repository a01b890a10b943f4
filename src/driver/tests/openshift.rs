//! Security context constraints of OpenShift, as its documentation has them ("Managing security context constraints"):
//! what admission fills in and what it refuses, proven on fixtures of our own, then applied to rendered pods.

use serde_json::{Value, json};

use super::{LOCAL, PLATFORM, SANDBOX, agent_spec, cluster, config, containers, of, rendered, sandbox};
use crate::driver::names::annotation;
use crate::driver::{Cluster, DriverConfig, Object, SandboxApi, Topology};

/// The stock SCC of whoever is not root, as clusters ship it.
const NONROOT_V2: &str = "
allowHostDirVolumePlugin: false
allowHostIPC: false
allowHostNetwork: false
allowHostPID: false
allowHostPorts: false
allowPrivilegeEscalation: false
allowPrivilegedContainer: false
allowedCapabilities: [NET_BIND_SERVICE]
requiredDropCapabilities: [ALL]
fsGroup: {type: RunAsAny}
readOnlyRootFilesystem: false
runAsUser: {type: MustRunAsNonRoot}
seLinuxContext: {type: MustRunAs}
seccompProfiles: [runtime/default]
supplementalGroups: {type: RunAsAny}
volumes: [configMap, csi, downwardAPI, emptyDir, ephemeral, image, persistentVolumeClaim, projected, secret]
";

/// The stock SCC that everybody may use.
fn restricted_v2() -> Value {
    let mut scc = scc(NONROOT_V2);
    scc["fsGroup"] = json!({"type": "MustRunAs"});
    scc["runAsUser"] = json!({"type": "MustRunAsRange"});
    scc
}

/// Ours, from the files that are applied.
const SIDECAR: &str = include_str!("../../../images/manifests/openshift/sidecar.yaml");
const CNI_SIDECAR: &str = include_str!("../../../images/manifests/openshift/cni-sidecar.yaml");

fn scc(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("YAML")
}

/// Ids of the namespace, by its annotations.
const RANGE: std::ops::Range<u64> = 1_000_790_000..1_000_800_000;

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn lists(value: &Value, word: &str) -> bool {
    list(value).any(|found| found == word || found == "*")
}

/// What the SCC holds against a pod, once admission has filled in what is not said.
fn against(scc: &Value, spec: &Value) -> Vec<&'static str> {
    let mut found = Vec::new();
    for (field, allowed) in
        [("hostNetwork", "allowHostNetwork"), ("hostPID", "allowHostPID"), ("hostIPC", "allowHostIPC")]
    {
        if spec[field] == true && scc[allowed] != true {
            found.push(field);
        }
    }
    for volume in list(&spec["volumes"]) {
        let kind = volume.as_object().and_then(|fields| fields.keys().find(|key| *key != "name"));
        let kind = kind.map_or("", String::as_str);
        if !lists(&scc["volumes"], kind) || (kind == "hostPath" && scc["allowHostDirVolumePlugin"] != true) {
            found.push("volumes");
        }
    }
    let pods = &spec["securityContext"];
    let outside = |value: &Value| value.as_u64().is_some_and(|id| !RANGE.contains(&id));
    if scc["fsGroup"]["type"] == "MustRunAs" && outside(&pods["fsGroup"]) {
        found.push("fsGroup");
    }
    if scc["supplementalGroups"]["type"] == "MustRunAs" && list(&pods["supplementalGroups"]).any(outside) {
        found.push("supplementalGroups");
    }
    if !list(&pods["sysctls"]).collect::<Vec<_>>().is_empty() {
        found.push("sysctls");
    }
    found.extend(against_context(scc, pods));
    for container in containers(spec) {
        found.extend(against_container(scc, pods, container));
    }
    found
}

/// What a pod and a container can both say.
fn against_context(scc: &Value, context: &Value) -> Vec<&'static str> {
    let mut found = Vec::new();
    let profile = match context["seccompProfile"]["type"].as_str() {
        // Filled in.
        None => None,
        Some("RuntimeDefault") => Some("runtime/default"),
        Some("Localhost") => Some("localhost/*"),
        Some(_) => Some("unconfined"),
    };
    if profile.is_some_and(|profile| !lists(&scc["seccompProfiles"], profile)) {
        found.push("seccompProfile");
    }
    if scc["seLinuxContext"]["type"] == "MustRunAs" && !context["seLinuxOptions"].is_null() {
        found.push("seLinuxOptions");
    }
    found
}

fn against_container(scc: &Value, pods: &Value, container: &Value) -> Vec<&'static str> {
    let own = &container["securityContext"];
    let mut found = against_context(scc, own);
    let inherited = |field: &str| if own[field].is_null() { &pods[field] } else { &own[field] };
    let (user, non_root) = (inherited("runAsUser"), inherited("runAsNonRoot"));
    let refused = match scc["runAsUser"]["type"].as_str() {
        Some("MustRunAsNonRoot") => user == 0 || *non_root == false || (user.is_null() && non_root.is_null()),
        // What is not said becomes the range's first.
        Some("MustRunAsRange") => user.as_u64().is_some_and(|id| !RANGE.contains(&id)),
        Some("RunAsAny") => false,
        other => panic!("no strategy {other:?}"),
    };
    let added: Vec<&Value> = list(&own["capabilities"]["add"]).collect();
    let allowed = |name: &&Value| name.as_str().is_some_and(|name| lists(&scc["allowedCapabilities"], name));
    for (name, held) in [
        ("runAsUser", refused),
        ("privileged", own["privileged"] == true && scc["allowPrivilegedContainer"] != true),
        // What is not said is the API's yes.
        (
            "allowPrivilegeEscalation",
            scc["allowPrivilegeEscalation"] == false && own["allowPrivilegeEscalation"] != false,
        ),
        ("capabilities.add", !added.iter().all(allowed)),
        ("readOnlyRootFilesystem", scc["readOnlyRootFilesystem"] == true && own["readOnlyRootFilesystem"] == false),
        ("procMount", own["procMount"].as_str().is_some_and(|kind| kind != "Default")),
        (
            "hostPort",
            scc["allowHostPorts"] != true && list(&container["ports"]).any(|port| !port["hostPort"].is_null()),
        ),
    ] {
        if held {
            found.push(name);
        }
    }
    found
}

fn passing() -> Value {
    json!({
        "volumes": [{"name": "a", "emptyDir": {}}],
        "securityContext": {"runAsNonRoot": true},
        "containers": [{"name": "c", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        }}],
    })
}

#[test]
fn the_evaluator_admits_what_the_stock_constraints_admit_and_finds_each_violation() {
    let (nonroot, restricted) = (scc(NONROOT_V2), restricted_v2());
    assert_eq!(against(&nonroot, &passing()), [""; 0]);
    assert_eq!(against(&restricted, &passing()), [""; 0]);
    let (pod, context) = ("/securityContext", "/containers/0/securityContext");
    for (at, field, value, expected) in [
        ("", "hostNetwork", json!(true), "hostNetwork"),
        ("", "hostPID", json!(true), "hostPID"),
        ("", "hostIPC", json!(true), "hostIPC"),
        ("", "volumes", json!([{"name": "a", "hostPath": {"path": "/"}}]), "volumes"),
        ("", "volumes", json!([{"name": "a", "nfs": {}}]), "volumes"),
        (pod, "sysctls", json!([{"name": "kernel.msgmax", "value": "1"}]), "sysctls"),
        (pod, "seccompProfile", json!({"type": "Unconfined"}), "seccompProfile"),
        (pod, "seLinuxOptions", json!({"level": "s0"}), "seLinuxOptions"),
        (context, "seccompProfile", json!({"type": "Localhost", "localhostProfile": "p"}), "seccompProfile"),
        (context, "runAsUser", json!(0), "runAsUser"),
        (context, "privileged", json!(true), "privileged"),
        (context, "allowPrivilegeEscalation", json!(true), "allowPrivilegeEscalation"),
        (context, "allowPrivilegeEscalation", Value::Null, "allowPrivilegeEscalation"),
        (context, "capabilities", json!({"add": ["NET_ADMIN"]}), "capabilities.add"),
        (context, "procMount", json!("Unmasked"), "procMount"),
        ("/containers/0", "ports", json!([{"hostPort": 80}]), "hostPort"),
    ] {
        let mut spec = passing();
        spec.pointer_mut(at).expect("a place")[field] = value;
        for scc in [&nonroot, &restricted] {
            assert_eq!(against(scc, &spec), [expected], "{at}/{field}");
        }
    }
    // Where the two differ.
    for (at, field, value, by_nonroot, by_restricted) in [
        (context, "runAsUser", json!(1000), None, Some("runAsUser")),
        (context, "runAsUser", json!(1_000_790_000), None, None),
        (pod, "fsGroup", json!(1000), None, Some("fsGroup")),
        (pod, "fsGroup", json!(1_000_790_000), None, None),
        (pod, "runAsNonRoot", Value::Null, Some("runAsUser"), None),
        (context, "runAsNonRoot", json!(false), Some("runAsUser"), None),
        (context, "capabilities", json!({"add": ["NET_BIND_SERVICE"]}), None, None),
    ] {
        let mut spec = passing();
        spec.pointer_mut(at).expect("a place")[field] = value;
        assert_eq!(against(&nonroot, &spec).first().copied(), by_nonroot, "{at}/{field}");
        assert_eq!(against(&restricted, &spec).first().copied(), by_restricted, "{at}/{field}");
    }
}

/// A namespace as OpenShift annotates it.
fn on_openshift(api: Option<SandboxApi>) -> Cluster {
    let annotations = [
        (annotation::UID_RANGE.to_owned(), "1000790000/10000".to_owned()),
        (annotation::SUPPLEMENTAL_GROUPS.to_owned(), "1000790000/10000".to_owned()),
    ];
    Cluster { namespace_annotations: annotations.into(), ..cluster(api) }
}

const RELAXED: &str = "[sidecar]\nprocess_binary_aware_network_policy = false\n";

#[test]
fn every_pod_names_the_constraints_that_admit_it_and_on_openshift_alone() {
    let gateway = "grpc_endpoint = \"https://gateway:8080\"\nclient_tls_secret_name = \"tls\"\n\
                   proxy_pod.gateway_peers = [{pod_selector = {app = \"gateway\"}, port = 8080}]\n";
    let spiffe = "provider_spiffe_workload_api_socket_path = \"/spiffe/agent.sock\"\n";
    for (topology, settings, name, scc) in [
        (Topology::ProxyPod, "", "nonroot-v2", scc(NONROOT_V2)),
        (Topology::CniSidecar, RELAXED, "nonroot-v2", scc(NONROOT_V2)),
        (Topology::CniSidecar, "", "openshell-cni-sidecar", self::scc(CNI_SIDECAR)),
        (Topology::Sidecar, "", "openshell-sidecar", self::scc(SIDECAR)),
        (Topology::Sidecar, RELAXED, "openshell-sidecar", self::scc(SIDECAR)),
        (Topology::Combined, PLATFORM, "restricted-v2", restricted_v2()),
    ] {
        if !scc["metadata"].is_null() {
            assert_eq!(scc["metadata"]["name"], name);
        }
        let socket = if settings == PLATFORM { "" } else { spiffe };
        for images in ["", LOCAL] {
            for api in [None, Some(SandboxApi::V1Beta1)] {
                let config = DriverConfig { topology, ..config(&format!("{images}{gateway}{socket}{settings}")) };
                let objects = rendered(&config, &sandbox(SANDBOX), &on_openshift(api));
                for spec in objects.iter().filter_map(Object::pod_spec) {
                    assert_eq!(against(&scc, spec), [""; 0], "{name}: {spec:#}");
                }
                for metadata in objects.iter().filter_map(Object::pod_metadata) {
                    assert_eq!(metadata["annotations"][annotation::REQUIRED_SCC], name);
                }
            }
        }
        let elsewhere = of(topology, &format!("{LOCAL}{settings}"), SANDBOX, None);
        assert!(!crate::driver::to_yaml(&elsewhere).contains("openshift.io"), "{name}");
    }
    // Controls: the stock ones do not admit what has ones of our own.
    for (topology, refused) in [(Topology::Combined, "runAsUser"), (Topology::Sidecar, "capabilities.add")] {
        let objects = rendered(&DriverConfig { topology, ..config(LOCAL) }, &sandbox(SANDBOX), &on_openshift(None));
        assert!(against(&scc(NONROOT_V2), agent_spec(&objects)).contains(&refused), "{topology:?}");
    }
    let sidecar = of(Topology::Sidecar, LOCAL, SANDBOX, None);
    assert_eq!(against(&scc(CNI_SIDECAR), agent_spec(&sidecar)), ["capabilities.add"], "no NET_ADMIN in that one");
}

#[test]
fn what_the_platform_fences_has_no_id_of_its_own_unless_it_is_told_one() {
    for (settings, expected) in [("", false), ("sandbox_uid = 1000790005\n", true)] {
        let objects =
            of(Topology::Combined, &format!("{LOCAL}{settings}{PLATFORM}"), SANDBOX, Some(SandboxApi::V1Beta1));
        let text = agent_spec(&objects).to_string();
        for word in ["runAsUser", "runAsGroup", "fsGroup", "OPENSHELL_SANDBOX_UID", "OPENSHELL_SANDBOX_GID"] {
            assert_eq!(text.contains(word), expected, "{word}");
        }
        assert_eq!(against(&restricted_v2(), agent_spec(&objects)), [""; 0]);
    }
    let outside = of(Topology::Combined, &format!("{LOCAL}sandbox_uid = 1000\n{PLATFORM}"), SANDBOX, None);
    assert!(against(&restricted_v2(), agent_spec(&outside)).contains(&"runAsUser"));
}

#[test]
fn the_grant_is_roles_alone_for_one_account_in_one_namespace_and_comes_before_the_pods() {
    let granted = format!("{LOCAL}service_account_name = \"agents\"\nopenshift.nonroot_scc = true\n");
    let objects = of(Topology::ProxyPod, &granted, SANDBOX, None);
    let kinds: Vec<&str> = objects.iter().map(Object::kind).collect();
    assert_eq!(kinds[..5], ["NetworkPolicy", "ConfigMap", "Role", "RoleBinding", "Pod"]);
    let (role, binding) = (objects[2].value(), objects[3].value());
    assert_eq!(role["rules"].as_array().map(Vec::len), Some(1));
    assert_eq!(role["rules"][0]["resourceNames"], json!(["nonroot-v2"]));
    assert_eq!(role["rules"][0]["verbs"], json!(["use"]));
    assert_eq!(binding["roleRef"]["name"], role["metadata"]["name"]);
    assert_eq!(binding["subjects"], json!([{"kind": "ServiceAccount", "name": "agents", "namespace": "openshell"}]));
    let text = crate::driver::to_yaml(&objects);
    assert!(!text.contains("kind: SecurityContextConstraints") && !text.contains("kind: Cluster"));
    // Control.
    assert!(!crate::driver::to_yaml(&of(Topology::ProxyPod, LOCAL, SANDBOX, None)).contains("kind: Role"));
}
