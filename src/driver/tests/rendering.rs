//! What must hold of rendered objects, one trap at a time.

use serde_json::{Value, json};

use super::{ID, LOCAL, SANDBOX, agent_spec, cluster, config, container, containers, of, rendered, sandbox};
use crate::contract::annotation;
use crate::driver::names::{self, companion, label, volume_of};
use crate::driver::{Cluster, DriverConfig, Object, SandboxApi, Topology};

const GATEWAY: &str = "grpc_endpoint = \"https://gateway:8080\"\nclient_tls_secret_name = \"client-tls\"\n\
                       proxy_pod.gateway_peers = [{pod_selector = {app = \"gateway\"}, port = 8080}]\n\
                       provider_spiffe_workload_api_socket_path = \"/spiffe-workload-api/agent.sock\"\n";

fn mounts(container: &Value, volume: &str) -> bool {
    super::mounts(container, volume, ID)
}

fn names_of(containers: &Value) -> Vec<&str> {
    containers.as_array().into_iter().flatten().filter_map(|container| container["name"].as_str()).collect()
}

fn variable<'v>(container: &'v Value, name: &str) -> Option<&'v str> {
    let variables = container["env"].as_array()?;
    variables.iter().find(|variable| variable["name"] == name)?["value"].as_str()
}

pub(super) fn command(container: &Value) -> Vec<&str> {
    container["command"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Metadata of the workload's pod.
fn metadata(objects: &[Object]) -> &Value {
    let of = |object: &&Object| matches!(object.kind(), "Pod" | "Sandbox");
    let object = objects.iter().find(of).expect("a pod");
    match object.kind() {
        "Pod" => &object.value()["metadata"],
        _ => &object.value()["spec"]["podTemplate"]["metadata"],
    }
}

#[test]
fn the_fence_is_proven_before_anything_of_the_agents_runs() {
    let sidecar = of(Topology::Sidecar, LOCAL, SANDBOX, Some(SandboxApi::V1Beta1));
    assert_eq!(
        names_of(&agent_spec(&sidecar)["initContainers"]),
        ["openshell-network-init", "openshell-verify-fence", "openshell-supervisor-install", "workspace-init"]
    );
    let cni = of(Topology::CniSidecar, LOCAL, SANDBOX, Some(SandboxApi::V1Beta1));
    assert_eq!(
        names_of(&agent_spec(&cni)["initContainers"]),
        ["openshell-verify-fence", "openshell-supervisor-install", "workspace-init"]
    );
    let network = "openshell-supervisor-network";
    for objects in [&sidecar, &cni] {
        assert_eq!(names_of(&agent_spec(objects)["containers"]), ["agent", network]);
        assert_eq!(agent_spec(objects)["shareProcessNamespace"], true);
    }
}

#[test]
fn every_pod_says_whose_it_is_whatever_the_users_labels_say_and_keeps_meshes_and_tokens_out() {
    let labelled = format!(
        "{SANDBOX}labels: {{team: a, sidecar.istio.io/inject: \"true\"}}\n\
         platform_config: {{annotations: {{example.com/a: b}}}}\n"
    );
    for (_, topology) in Topology::ALL {
        for api in [None, Some(SandboxApi::V1Beta1), Some(SandboxApi::V1Alpha1)] {
            let objects = of(topology, LOCAL, &labelled, api);
            let metadata = metadata(&objects);
            for (key, value) in [
                ("team", "a"),
                (label::MANAGED_BY, label::OPENSHELL),
                (label::SANDBOX_ID, ID),
                ("sidecar.istio.io/inject", "false"),
            ] {
                assert_eq!(metadata["labels"][key], value, "{key}");
            }
            assert_eq!(metadata["annotations"][names::annotation::SANDBOX_ID], ID);
            assert_eq!(metadata["annotations"]["linkerd.io/inject"], "disabled");
            assert_eq!(metadata["annotations"]["example.com/a"], "b");
            for spec in objects.iter().filter_map(Object::pod_spec) {
                assert_eq!(spec["automountServiceAccountToken"], false);
                assert_eq!(spec["enableServiceLinks"], false);
                assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
            }
        }
    }
}

#[test]
fn nothing_of_a_gateways_is_rendered_without_one_and_none_of_it_where_it_is_not_needed() {
    let settings = &GATEWAY[GATEWAY.find('\n').expect("a line") + 1..];
    for (_, topology) in Topology::ALL {
        let without = of(topology, &format!("{LOCAL}{settings}"), SANDBOX, None);
        let text = crate::driver::to_yaml(&without);
        for word in ["client-tls", names::env::ENDPOINT, names::env::TOKEN_FILE, names::volume::TOKEN] {
            assert!(!text.contains(word), "{word}");
        }
    }
    let settings = format!("{LOCAL}{GATEWAY}");
    let credentials = [names::volume::TOKEN, names::volume::CLIENT_TLS, names::volume::SPIFFE];
    for topology in [Topology::Sidecar, Topology::CniSidecar] {
        let objects = of(topology, &settings, SANDBOX, None);
        let spec = agent_spec(&objects);
        let (agent, network) = (container(spec, "agent"), container(spec, "openshell-supervisor-network"));
        for credential in credentials {
            assert!(!mounts(agent, credential), "{credential} in the agent's container");
        }
        assert!(mounts(network, names::volume::TOKEN) && mounts(network, names::volume::SPIFFE));
        assert_eq!(variable(agent, names::env::ENDPOINT), None);
        assert_eq!(variable(network, names::env::ENDPOINT), Some("https://gateway:8080"));
        assert_eq!(variable(network, names::env::TLS[2]), Some("/etc/openshell-tls/proxy/client/tls.key"));
        // Whoever copies the Secret has it; where nobody does, the proxy.
        assert_eq!(mounts(network, names::volume::CLIENT_TLS), topology == Topology::CniSidecar);
        let token = spec["volumes"]
            .as_array()
            .expect("volumes")
            .iter()
            .find(|volume| volume["name"] == volume_of(names::volume::TOKEN, ID).as_str());
        assert_eq!(token.expect("the token")["projected"]["defaultMode"], 0o440);
    }
    let proxy_pod = of(Topology::ProxyPod, &settings, SANDBOX, None);
    let text = agent_spec(&proxy_pod).to_string();
    assert!(!text.contains("spiffe") && !text.contains(names::ca::KEY), "{text}");
    let deployment = proxy_pod.iter().find(|object| object.kind() == "Deployment").expect("the proxy");
    assert!(deployment.to_yaml().contains("csi.spiffe.io") && deployment.to_yaml().contains(names::ca::KEY));
}

#[test]
fn no_group_of_the_workloads_reads_credentials_in_its_own_container_unless_a_claim_needs_one() {
    for (more, expected) in [("persistent_workspace: false\n", Value::Null), ("", Value::from(1000))] {
        let settings = format!("{LOCAL}{GATEWAY}");
        let objects = of(Topology::Combined, &settings, &format!("{SANDBOX}{more}"), Some(SandboxApi::V1Beta1));
        assert_eq!(agent_spec(&objects)["securityContext"]["fsGroup"], expected);
    }
}

#[test]
fn the_policy_is_where_it_is_read_and_nowhere_else() {
    for (name, topology) in Topology::ALL {
        let objects = of(topology, LOCAL, SANDBOX, None);
        let specs: Vec<&Value> = objects.iter().filter_map(Object::pod_spec).collect();
        for container in specs.iter().flat_map(|spec| containers(spec)) {
            let reads = command(container).contains(&"--policy=/etc/openshell/policy.yaml");
            assert_eq!(mounts(container, names::volume::POLICY), reads, "{name}: {}", container["name"]);
        }
        let without = SANDBOX.split("policy:").next().expect("a sandbox");
        let text = crate::driver::to_yaml(&of(topology, LOCAL, without, None));
        assert!(!text.contains("ConfigMap") && !text.contains("--policy"), "{name}: {text}");
    }
}

#[test]
fn the_fence_lets_out_whom_the_proxy_runs_as() {
    for (settings, uid) in
        [("", "0"), ("[sidecar]\nproxy_uid = 2200\nprocess_binary_aware_network_policy = false\n", "2200")]
    {
        for topology in [Topology::Sidecar, Topology::CniSidecar] {
            let objects = of(topology, &format!("{LOCAL}{settings}"), SANDBOX, None);
            let spec = agent_spec(&objects);
            let network = container(spec, "openshell-supervisor-network");
            assert_eq!(network["securityContext"]["runAsUser"].to_string(), uid);
            let relaxed = command(network).contains(&"--binary-identity=relaxed");
            assert_eq!(relaxed, uid != "0");
            assert_eq!(network["securityContext"]["capabilities"]["add"].is_null(), relaxed);
            assert!(
                command(container(spec, "openshell-verify-fence")).contains(&format!("--proxy-uid={uid}").as_str())
            );
            if topology == Topology::CniSidecar {
                let annotations = &metadata(&objects)["annotations"];
                assert_eq!(annotations[annotation::CNI], "enabled");
                assert_eq!(annotations[annotation::PROXY_UID], uid);
                assert_eq!(annotations[annotation::PROXY_GID], "1337");
                let text = spec["affinity"].to_string();
                assert!(text.contains("openshell.ai/cni-ready"), "{text}");
            } else {
                assert!(spec["affinity"].is_null() && metadata(&objects)["annotations"][annotation::CNI].is_null());
            }
        }
    }
}

#[test]
fn what_the_user_says_reaches_the_workload_unchanged_whatever_the_kubelet_expands() {
    let text = format!("{SANDBOX}environment: {{A: \"$(B) $$ $C\", B: b}}\ntty: true\n")
        .replace("- sh\n", "- \"echo $(OPENSHELL_SANDBOX) $$\"\n");
    let spec_of = |objects: &[Object]| agent_spec(objects).clone();
    let spec = spec_of(&of(Topology::Sidecar, LOCAL, &text, None));
    let agent = container(&spec, "agent");
    for name in ["OPENSHELL_USER_ENVIRONMENT", "OPENSHELL_MAIN_PROCESS_SPEC"] {
        assert!(!variable(agent, name).expect(name).contains('$'), "{name}");
    }
    let read = |name: &str| -> Value { serde_json::from_str(variable(agent, name).expect(name)).expect("JSON") };
    assert_eq!(read("OPENSHELL_USER_ENVIRONMENT"), json!({"A": "$(B) $$ $C", "B": "b"}));
    assert_eq!(read("OPENSHELL_MAIN_PROCESS_SPEC")["command"][0], "echo $(OPENSHELL_SANDBOX) $$");
    assert_eq!(read("OPENSHELL_MAIN_PROCESS_SPEC")["tty"], true);
}

#[test]
fn runtime_class_sideload_and_resources_go_by_their_precedence() {
    let spec = |settings: &str, more: &str| {
        let objects = of(Topology::ProxyPod, settings, &format!("{SANDBOX}{more}"), None);
        let classes: Vec<Value> =
            objects.iter().filter_map(Object::pod_spec).map(|spec| spec["runtimeClassName"].clone()).collect();
        assert_eq!(classes[0], classes[1], "both pods have the same");
        agent_spec(&objects).clone()
    };
    let user = "driver_config: {pod: {runtime_class_name: user}}\n";
    let both = format!("{user}platform_config: {{runtime_class_name: platform}}\n");
    let default = "default_runtime_class_name = \"default\"\n";
    assert!(spec("", "")["runtimeClassName"].is_null());
    assert_eq!(spec(default, "")["runtimeClassName"], "default");
    assert_eq!(spec(default, user)["runtimeClassName"], "user");
    assert_eq!(spec(default, &both)["runtimeClassName"], "platform");
    let sideload = |class: &str| {
        let spec = spec(&format!("default_runtime_class_name = \"{class}\"\n"), "");
        names_of(&spec["initContainers"]).contains(&"openshell-supervisor-install")
    };
    assert!(sideload("kata-qemu") && sideload("gvisor") && sideload("runsc-hostnet") && !sideload("runc"));
    let resources = |more: &str| container(&spec("", more), "agent")["resources"].clone();
    assert_eq!(
        resources(
            "resources: {cpu_limit: \"2\", memory_request: 1Gi, memory_limit: 2Gi}\ngpu: {count: 3}\n\
             driver_config: {containers: {agent: {resources: {requests: {cpu: \"9\"}, limits: {a.b/c: \"1\"}}}}}\n\
             platform_config: {resources_raw: {limits: {cpu: \"8\", ephemeral-storage: 1Gi}}}\n"
        ),
        json!({
            "limits": {"a.b/c": "1", "cpu": "2", "ephemeral-storage": "1Gi", "memory": "2Gi", "nvidia.com/gpu": "3"},
            "requests": {"cpu": "2", "memory": "1Gi"},
        })
    );
    let gpu = spec("", "gpu: {}\n");
    assert!(command(container(&gpu, "agent")).contains(&"--seccomp=gpu"));
}

#[test]
fn a_user_who_mounts_below_the_workspace_has_no_claim_and_still_a_workspace() {
    let mounted = "driver_config:\n  volumes: [{name: d, persistent_volume_claim: {claim_name: c}}]\n  \
                   containers: {agent: {volume_mounts: [{name: d, mount_path: /sandbox/d}, {name: d, mount_path: /tmp}]}}\n";
    let api = Some(SandboxApi::V1Beta1);
    let objects = of(Topology::Sidecar, LOCAL, &format!("{SANDBOX}{mounted}"), api);
    let sandbox = objects.last().expect("a Sandbox").value();
    assert!(sandbox["spec"]["volumeClaimTemplates"].is_null());
    let spec = agent_spec(&objects);
    assert!(mounts(container(spec, "agent"), "workspace") && !mounts(container(spec, "agent"), "tmp"));
    let objects = of(Topology::Sidecar, LOCAL, SANDBOX, api);
    assert_eq!(
        objects.last().expect("a Sandbox").value()["spec"]["volumeClaimTemplates"][0]["metadata"]["name"],
        "workspace"
    );
}

#[test]
fn whatever_volume_covers_the_images_workspace_is_seeded_from_it_first() {
    let mounted = "driver_config:\n  volumes: [{name: d, persistent_volume_claim: {claim_name: c}}]\n  \
                   containers: {agent: {volume_mounts: [{name: d, mount_path: /sandbox/d}]}}\n";
    let api = Some(SandboxApi::V1Beta1);
    for (name, topology) in Topology::ALL {
        for (more, api) in [("", None), ("", api), ("persistent_workspace: false\n", api), (mounted, api)] {
            let objects = of(topology, LOCAL, &format!("{SANDBOX}{more}"), api);
            let spec = agent_spec(&objects);
            let (init, agent) = (container(spec, "workspace-init"), container(spec, "agent"));
            let place = |container: &Value, path: &str| {
                let found = container["volumeMounts"]
                    .as_array()
                    .expect("mounts")
                    .iter()
                    .find(|mount| mount["mountPath"] == path);
                found.unwrap_or_else(|| panic!("{name}: nothing at {path} of {container:#}"))["name"].clone()
            };
            assert_eq!(place(init, "/workspace-pvc"), place(agent, "/sandbox"), "{name}");
            assert_eq!(init["image"], agent["image"], "{name}: what is copied is in that image");
            assert_eq!(init["securityContext"]["runAsUser"], 1000, "{name}");
        }
    }
}

#[test]
fn the_agents_fence_is_created_first_belongs_to_nobody_and_has_no_rule_for_an_empty_peer() {
    let settings = format!(
        "{LOCAL}[proxy_pod]\ndns_peers = [{{}}, {{namespace_selector = {{a = \"b\"}}, port = 5353}}]\n\
         gateway_peers = [{{pod_selector = {{c = \"d\"}}, port = 8080}}]\n"
    );
    let config = DriverConfig { topology: Topology::ProxyPod, ..config(&settings) };
    let owned = Cluster { sandbox_uid: Some("uid".into()), ..cluster(Some(SandboxApi::V1Beta1)) };
    let objects = rendered(&config, &sandbox(SANDBOX), &owned);
    let kinds: Vec<&str> = objects.iter().map(Object::kind).collect();
    assert_eq!(
        kinds,
        ["NetworkPolicy", "ConfigMap", "Sandbox", "Secret", "Secret", "Service", "NetworkPolicy", "Deployment"]
    );
    let rules = objects[0].value()["spec"]["egress"].as_array().expect("rules");
    assert_eq!(rules.len(), 3, "{rules:?}");
    for peer in rules.iter().flat_map(|rule| rule["to"].as_array().expect("peers")) {
        assert!(peer.as_object().is_some_and(|fields| !fields.is_empty()), "an empty peer is everything");
    }
    let owners = |object: &Object| object.value()["metadata"]["ownerReferences"].clone();
    assert!(owners(&objects[0]).is_null());
    assert_eq!(owners(&objects[1])[0]["uid"], "uid", "the policy goes with the Sandbox");
    for companion in &objects[3..] {
        assert_eq!(owners(companion)[0]["uid"], "uid", "{}", companion.kind());
        assert_eq!(owners(companion)[0]["controller"] == true, companion.kind() == "Deployment");
    }
    assert_eq!(objects[7].value()["spec"]["strategy"]["type"], "Recreate");
    let stopped = rendered(&config, &sandbox(SANDBOX), &Cluster { stopped: true, ..owned.clone() });
    assert_eq!(stopped[7].value()["spec"]["replicas"], 0);
    assert_eq!(stopped[2].value()["spec"]["operatingMode"], "Suspended");
    let older = Cluster { stopped: true, sandbox_api: Some(SandboxApi::V1Alpha1), ..owned };
    let older = rendered(&config, &sandbox(SANDBOX), &older);
    assert_eq!(older[2].value()["spec"]["replicas"], 0);
    assert!(older[2].value()["spec"]["operatingMode"].is_null());
}

#[test]
fn the_attestation_key_is_where_it_is_used_and_where_no_policy_leads_and_without_one_programs_do_not_count() {
    let objects = of(Topology::ProxyPod, &format!("{LOCAL}{GATEWAY}"), SANDBOX, None);
    let deployment = objects.iter().find(|object| object.kind() == "Deployment").expect("the proxy");
    let proxy = deployment.pod_spec().expect("a specification");
    let agent = agent_spec(&objects);
    let flag = "--attestation-key=/var/run/openshell-attestation/key";
    for (spec, user) in [(agent, "agent"), (proxy, "openshell-supervisor-network")] {
        for each in super::containers(spec) {
            assert_eq!(mounts(each, names::volume::ATTESTATION), each["name"] == user, "{each}");
        }
        assert!(command(container(spec, user)).contains(&flag));
        let volumes = spec["volumes"].as_array().expect("volumes");
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == volume_of(names::volume::ATTESTATION, ID).as_str())
            .expect("the key");
        assert_eq!(volume["secret"]["defaultMode"], 0o440);
    }
    // The workload has the supervisor's user: credentials are in no directory that policies grant by default.
    let places = container(agent, "agent")["volumeMounts"].as_array().expect("mounts").iter();
    for mount in places.filter(|mount| mount["name"] == volume_of(names::volume::CLIENT_TLS, ID).as_str()) {
        assert!(!mount["mountPath"].as_str().expect("a path").starts_with("/etc"), "{mount}");
    }
    assert!(!format!("{:?}", cluster(None)).contains("the attestation key"));
    let config = DriverConfig { topology: Topology::ProxyPod, ..config(LOCAL) };
    let without = rendered(&config, &sandbox(SANDBOX), &Cluster { attestation_key: None, ..cluster(None) });
    let text = crate::driver::to_yaml(&without);
    assert!(!text.contains("attestation") && text.contains("--binary-identity=relaxed"), "{text}");
}

#[test]
fn the_policy_is_seen_to_hold_once_the_proxy_is_there() {
    let settings = format!("{LOCAL}[proxy_pod]\ncanaries = [\"db.example:5432\"]\n");
    let objects = of(Topology::ProxyPod, &settings, SANDBOX, None);
    let spec = agent_spec(&objects);
    let init = names_of(&spec["initContainers"]);
    assert_eq!(&init[init.len() - 3..], ["openshell-proxy-ca-install", "wait-for-proxy", "openshell-verify-fence"]);
    let proxy = command(container(spec, "wait-for-proxy")).pop().expect("a destination").to_owned();
    let verify = command(container(spec, "openshell-verify-fence"));
    assert!(verify.contains(&format!("--control={proxy}").as_str()), "{verify:?}");
    assert!(verify.contains(&"--network-policy") && verify.contains(&"--canary=db.example:5432"), "{verify:?}");
    // Whom the image trusts is in the image.
    assert_eq!(container(spec, "openshell-proxy-ca-install")["image"], container(spec, "agent")["image"]);
}

#[test]
fn the_door_is_a_file_where_one_can_be_written_and_a_name_elsewhere_and_none_where_none_is_wanted() {
    let door = |topology, settings: &str| {
        let objects = of(topology, &format!("{settings}{LOCAL}"), SANDBOX, None);
        variable(container(agent_spec(&objects), "agent"), "OPENSHELL_SSH_SOCKET_PATH").map(str::to_owned)
    };
    for (name, topology) in Topology::ALL {
        let own = if topology == Topology::Combined { "/run/openshell/ssh.sock" } else { "@openshell-sidecar-ssh" };
        assert_eq!(door(topology, "").as_deref(), Some(own), "{name}");
        assert_eq!(door(topology, "ssh_socket_path = \"@door\"\n").as_deref(), Some("@door"), "{name}");
        assert_eq!(door(topology, "ssh_socket_path = \"\"\n"), None, "{name}");
    }
    assert_eq!(door(Topology::Combined, super::PLATFORM).as_deref(), Some("@openshell-sidecar-ssh"));
    // Nobody else opens one.
    let objects = of(Topology::Sidecar, LOCAL, SANDBOX, None);
    assert_eq!(crate::driver::to_yaml(&objects).matches("OPENSHELL_SSH_SOCKET_PATH").count(), 1);
}

#[test]
fn landlock_keeps_the_workloads_tcp_where_it_is_asked_to() {
    let flag = "--landlock-net=strict";
    let agent = |topology, settings: &str| {
        let objects = of(topology, &format!("{LOCAL}{settings}"), SANDBOX, None);
        command(container(agent_spec(&objects), "agent")).contains(&flag)
    };
    let (pod, platform) = ("proxy_pod.landlock_net = \"strict\"\n", "platform_network.landlock_net = \"strict\"\n");
    assert!(agent(Topology::ProxyPod, pod) && !agent(Topology::ProxyPod, ""));
    assert!(agent(Topology::Combined, &format!("{}{platform}", super::PLATFORM)));
    assert!(!agent(Topology::Combined, super::PLATFORM));
}

#[test]
fn names_of_companions_are_labels_and_differ_where_ids_do() {
    let name = |id: &str| companion(names::companion::SUPERVISOR, id);
    assert_eq!(name(ID), "os-sup-6f1c2a34-9b7e-4d0a-8c55-0e6f7a8b9c0d-cc13ddc1");
    let odd = ["A", "a", "a.", "_a_", "..", &"x".repeat(63), &"x".repeat(62), &"-".repeat(63)];
    let names: std::collections::BTreeSet<String> = odd.iter().map(|id| name(id)).collect();
    assert_eq!(names.len(), odd.len());
    assert!(names.iter().all(|name| crate::driver::shape::is_dns_label(name)), "{names:?}");
}

#[test]
fn every_volume_of_the_drivers_has_a_name_that_users_cannot_take() {
    let mut seen = std::collections::BTreeSet::new();
    for (_, topology) in Topology::ALL {
        let secret = "https_proxy = \"http://p:1\"\nproxy_auth_secret_name = \"s\"\nproxy_auth_secret_key = \"k\"\n\
                      proxy_auth_allow_insecure = true\n";
        let secret = if matches!(topology, Topology::Sidecar | Topology::CniSidecar) { secret } else { "" };
        for api in [None, Some(SandboxApi::V1Beta1)] {
            let objects = of(topology, &format!("{LOCAL}{GATEWAY}{secret}"), SANDBOX, api);
            for spec in objects.iter().filter_map(Object::pod_spec) {
                seen.extend(names_of(&spec["volumes"]).into_iter().map(str::to_owned));
            }
        }
    }
    let reserved: std::collections::BTreeSet<String> =
        names::volume::ALL.iter().map(|name| volume_of(name, ID)).collect();
    assert_eq!(seen, reserved);
}

#[test]
fn no_two_sandboxes_have_a_volume_in_common_and_what_is_called_so_is_a_label() {
    let other = "6f1c2a34-9b7e-4d0a-8c55-0e6f7a8b9c0e";
    let long = "X".repeat(63);
    for (_, topology) in Topology::ALL {
        let volumes = |id: &str| -> std::collections::BTreeSet<String> {
            let objects = of(topology, &format!("{LOCAL}{GATEWAY}"), &SANDBOX.replace(ID, id), None);
            let specs = objects.iter().filter_map(Object::pod_spec);
            specs.flat_map(|spec| names_of(&spec["volumes"])).map(str::to_owned).collect()
        };
        let mine = volumes(ID);
        assert!(mine.len() > 4, "{mine:?}");
        for name in [other, &long] {
            let theirs = volumes(name);
            assert!(mine.is_disjoint(&theirs), "{mine:?} {theirs:?}");
            assert!(theirs.iter().all(|name| crate::driver::shape::is_dns_label(name)), "{theirs:?}");
        }
        // Control: what makes them different is the id alone.
        assert_eq!(mine, volumes(ID));
    }
    // A claim is called by its Sandbox, and what is in it stays.
    let claimed = of(Topology::Sidecar, LOCAL, SANDBOX, Some(SandboxApi::V1Beta1));
    let agent = container(agent_spec(&claimed), "agent");
    let mounted = agent["volumeMounts"].as_array().expect("mounts");
    assert!(mounted.iter().any(|mount| mount["name"] == names::volume::WORKSPACE), "{mounted:?}");
}
