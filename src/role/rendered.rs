//! The driver and the roles held to each other: every command that is rendered is one that its role takes, every variable
//! one that it reads, every path one that its container has, every port one that somebody serves.

use std::collections::BTreeSet;
use std::ffi::OsString;

use serde_json::Value;

use super::{Choice, Role, choose};
use crate::contract::{PROXY_PORT, env};
use crate::driver::names::{self, companion};
use crate::driver::{
    AttestationKey, Cluster, DriverConfig, Object, ProxyCa, SandboxApi, SandboxSpec, Topology, render,
};
use crate::workload::{command, environment};

const SANDBOX: &str = "id: 6f1c2a34\nname: demo\nworkspace: default\ncommand: [sh, -c, 'echo $HOME $(A)']\ntty: true\n\
                       environment: {A: \"$(B) $$\"}\nlog_level: info\ngpu: {}\npolicy: {version: 1}\n";

const GATEWAY: &str = "grpc_endpoint = \"https://gateway:8080\"\nclient_tls_secret_name = \"client-tls\"\n\
                       proxy_pod.gateway_peers = [{cidr = \"203.0.113.7/32\", port = 8080}]\n\
                       provider_spiffe_workload_api_socket_path = \"/spiffe-workload-api/agent.sock\"\n";

const PARENT: &str = "https_proxy = \"http://proxy.example:8080\"\nno_proxy = \"internal.example,10.0.0.0/8\"\n\
                      proxy_connect_by_hostname = true\n";

const SECRET: &str =
    "proxy_auth_secret_name = \"s\"\nproxy_auth_secret_key = \"k\"\nproxy_auth_allow_insecure = true\n";

const PLATFORM: &str = "network_enforcement = \"platform\"\n\
                        platform_network.egress = [{cidr = \"203.0.113.0/24\", ports = [443]}]\n\
                        platform_network.canaries = [\"db.example:5432\"]\n";

/// The objects of every topology, with as much as each can have.
fn everything() -> Vec<(String, Vec<Object>)> {
    let ca = ProxyCa { certificate: "certificate".into(), key: "key".into() };
    let keys = [None, Some(AttestationKey("k".repeat(AttestationKey::LEAST)))];
    let spec = SandboxSpec::from_yaml(SANDBOX).expect("a sandbox");
    let relaxed = "[sidecar]\nprocess_binary_aware_network_policy = false\n";
    let install = "supervisor_sideload_method = \"init-container\"\n";
    let mut all = Vec::new();
    for (name, topology) in Topology::ALL {
        let mut settings = vec![format!("{GATEWAY}{PARENT}"), format!("{install}{PARENT}")];
        match topology {
            Topology::Combined => settings.push(format!("{PLATFORM}{PARENT}")),
            Topology::Sidecar | Topology::CniSidecar => settings.push(format!("{install}{PARENT}{SECRET}{relaxed}")),
            Topology::ProxyPod => {}
        }
        for settings in settings {
            let config = DriverConfig { topology, ..DriverConfig::from_toml(&settings).expect("a configuration") };
            for (sandbox_api, attestation_key) in [None, Some(SandboxApi::V1Beta1)].into_iter().zip(keys.clone()) {
                let proxy_ca = Some(ca.clone());
                let cluster = Cluster { sandbox_api, proxy_ca, attestation_key, ..Cluster::default() };
                let objects = render(&config, &spec, &cluster).unwrap_or_else(|errors| panic!("{errors}"));
                all.push((format!("{name} {sandbox_api:?} {settings}"), objects));
            }
        }
    }
    all
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn words(value: &Value) -> Vec<String> {
    list(value).map(|word| word.as_str().expect("a word").to_owned()).collect()
}

fn containers(objects: &[Object]) -> impl Iterator<Item = (&Value, &Value)> {
    objects.iter().filter_map(Object::pod_spec).flat_map(|spec| {
        ["initContainers", "containers"]
            .into_iter()
            .flat_map(move |name| list(&spec[name]).map(move |found| (spec, found)))
    })
}

/// The role that a command line chooses, if it takes all of it.
fn taken(words: &[String]) -> Result<&'static Role, String> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    let Choice::Role(role, rest) = choose(&words).map_err(|error| error.to_string())? else {
        return Err("no role".into());
    };
    let parsed = (role.command)().no_binary_name(true).try_get_matches_from(rest);
    parsed.map(|_| role).map_err(|error| error.to_string())
}

#[test]
fn every_rendered_command_and_probe_is_one_that_a_role_takes() {
    let mut seen = BTreeSet::new();
    for (name, objects) in everything() {
        for (_, container) in containers(&objects) {
            for command in [&container["command"], &container["readinessProbe"]["exec"]["command"]] {
                let command = words(command);
                if command.is_empty() {
                    continue;
                }
                let role = taken(&command).unwrap_or_else(|error| panic!("{name}: {command:?}: {error}"));
                seen.insert(role.name);
            }
        }
    }
    for role in [
        "network",
        "network,process",
        "process",
        "network-init",
        "verify-fence",
        "sideload",
        "wait-for-tcp",
        "health",
        "trust",
        "workspace",
    ] {
        assert!(seen.contains(role), "{role} is not rendered: {seen:?}");
    }
    // Control.
    assert!(taken(&["x", "--mode=process", "--no-such-flag"].map(String::from)).is_err());
    assert!(taken(&["x", "--mode=no-such-role"].map(String::from)).is_err());
}

#[test]
fn every_rendered_variable_is_read_by_the_role_that_gets_it_and_reads_as_it_was_meant() {
    // Nobody serves a gateway's client yet.
    let later = [names::env::ENDPOINT, names::env::TOKEN_FILE, names::env::SPIFFE_SOCKET];
    let launches = [env::SANDBOX_UID, env::SANDBOX_GID, env::USER_ENVIRONMENT, env::MAIN_PROCESS_SPEC, env::PROXY_URL];
    for (name, objects) in everything() {
        for (_, container) in containers(&objects) {
            let command = words(&container["command"]);
            let role = taken(&command).unwrap_or_else(|error| panic!("{name}: {command:?}: {error}"));
            let flags: Vec<String> = (role.command)()
                .get_arguments()
                .filter_map(|flag| flag.get_env()?.to_str().map(str::to_owned))
                .collect();
            let is_launcher = ["process", "network,process"].contains(&role.name);
            for variable in list(&container["env"]) {
                let variable_name = variable["name"].as_str().expect("a name");
                let value = variable["value"].as_str().expect("a value");
                let read = flags.iter().any(|flag| flag == variable_name)
                    || (is_launcher && launches.contains(&variable_name))
                    || later.contains(&variable_name)
                    || names::env::TLS.contains(&variable_name);
                assert!(read, "{name}: {} gets {variable_name}", container["name"]);
                if variable_name == env::MAIN_PROCESS_SPEC {
                    let command = command::resolve(&[], Some(value)).expect("a command");
                    assert_eq!(command.argv.last().map(|word| word.to_bytes()), Some(&b"echo $HOME $(A)"[..]));
                    assert!(command.tty);
                }
                if variable_name == env::USER_ENVIRONMENT {
                    let variables = environment::parse_json(value).expect("variables");
                    assert_eq!(variables.len(), 1, "{value}");
                }
            }
        }
    }
}

/// The path in a word of a command line: a whole one, or a flag's.
fn path(word: &str) -> Option<&str> {
    let value = word.split_once('=').map_or(word, |(_, value)| value);
    value.starts_with('/').then_some(value)
}

#[test]
fn every_rendered_path_is_in_a_volume_of_its_container_that_holds_it() {
    for (name, objects) in everything() {
        for (spec, container) in containers(&objects) {
            let mounts: Vec<&Value> = list(&container["volumeMounts"]).collect();
            let own = names::path::SUPERVISOR;
            for word in words(&container["command"]) {
                let Some(path) = path(&word).filter(|path| *path != own) else { continue };
                let mount = mounts.iter().find(|mount| {
                    let at = mount["mountPath"].as_str().expect("a path");
                    path == at || path.strip_prefix(at).is_some_and(|rest| rest.starts_with('/'))
                });
                // What is seeded is the image's.
                let seeds = container["name"] == names::container::WORKSPACE;
                let Some(mount) = mount else {
                    assert!(seeds, "{name}: {}: {path} is in no volume", container["name"]);
                    continue;
                };
                let volume = list(&spec["volumes"]).find(|volume| volume["name"] == mount["name"]);
                let Some(volume) = volume else { continue };
                let file = path.rsplit('/').next().unwrap_or_default();
                let items = &volume["secret"]["items"];
                assert!(
                    items.is_null() || list(items).any(|item| item["path"] == file) || path == mount["mountPath"],
                    "{name}: {path} is not among {items}"
                );
                if let Some(map) = volume["configMap"]["name"].as_str() {
                    let found = objects.iter().find(|object| object.name() == map).expect("the ConfigMap");
                    assert!(found.value()["data"][file].is_string(), "{name}: {path}");
                }
            }
        }
    }
}

#[test]
fn every_rendered_address_is_one_that_somebody_serves() {
    for (name, objects) in everything() {
        for (_, container) in containers(&objects) {
            let command = words(&container["command"]);
            let probe = words(&container["readinessProbe"]["exec"]["command"]);
            let flag = |flag: &str| command.iter().find_map(|word| word.strip_prefix(flag));
            assert_eq!(flag("--admin-bind="), probe.last().map(String::as_str), "{name}");
            for port in list(&container["ports"]) {
                let bound = flag("--bind=").and_then(|address| address.rsplit(':').next());
                assert_eq!(bound, Some(port["containerPort"].to_string().as_str()), "{name}");
            }
            if container["name"] == names::container::WAIT {
                let (host, port) = command.last().and_then(|word| word.rsplit_once(':')).expect("HOST:PORT");
                let service = objects.iter().find(|object| object.kind() == "Service").expect("a Service");
                let spec = &service.value()["spec"]["ports"][0];
                assert_eq!((port, &spec["port"]), (PROXY_PORT.to_string().as_str(), &Value::from(PROXY_PORT)));
                assert_eq!(host.split('.').next(), Some(companion(companion::SERVICE, "6f1c2a34").as_str()), "{name}");
                assert_eq!(host.split('.').nth(1), service.value()["metadata"]["namespace"].as_str());
            }
        }
        let sockets: BTreeSet<String> = containers(&objects)
            .flat_map(|(_, container)| words(&container["command"]))
            .filter(|word| word.starts_with("--control-socket="))
            .collect();
        assert!(sockets.len() <= 1, "{name}: {sockets:?}");
    }
}
