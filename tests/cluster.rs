//! What a cluster does to rendered objects and Podman does not: NetworkPolicies are evaluated and become rules of nf_tables in
//! the machine, through which whatever leaves a pod is routed; a Deployment's template becomes a pod; a Service's name is an
//! entry of hosts; and Secrets, which Podman 4.3 mounts nowhere, are ConfigMaps whose files get the mode and the group that the
//! kubelet would give them.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Stdio;

use serde_json::{Value, json};

use crate::podman::{Alone, Manifest, Pod, Podman};
use crate::world::World;

/// The rules' table.
const TABLE: &str = "network_policies";

/// The objects that `render` has printed, and where their pods are.
pub struct Cluster<'w> {
    world: &'w World,
    objects: Vec<Value>,
    /// Namespace, labels and addresses of each pod.
    pods: Vec<(String, BTreeMap<String, String>, Vec<IpAddr>)>,
}

impl<'w> Cluster<'w> {
    pub fn new(world: &'w World, yaml: &str) -> Self {
        Self { world, objects: serde_saphyr::from_multiple(yaml).expect("YAML"), pods: Vec::new() }
    }

    /// The first object of a kind whose name begins so.
    pub fn object(&mut self, kind: &str, name: &str) -> &mut Value {
        let is = |object: &&mut Value| {
            object["kind"] == kind && object["metadata"]["name"].as_str().is_some_and(|own| own.starts_with(name))
        };
        self.objects.iter_mut().find(is).unwrap_or_else(|| panic!("no {kind} {name} was rendered"))
    }

    /// The name that the only Service has in the cluster's DNS.
    pub fn service(&mut self) -> String {
        let metadata = &self.object("Service", "")["metadata"];
        let part = |name: &str| metadata[name].as_str().expect("a string").to_owned();
        format!("{}.{}.svc.cluster.local", part("name"), part("namespace"))
    }

    /// The manifest of a pod for Podman, with what its volumes name; the pod is at these addresses.
    pub fn pod(&mut self, kind: &str, network: Alone) -> Manifest {
        let object = self.object(kind, "").clone();
        let mut pod = match kind {
            "Pod" => object.clone(),
            _ => {
                let mut template = object["spec"]["template"].clone();
                template["metadata"]["name"] = object["metadata"]["name"].clone();
                template["metadata"]["namespace"] = object["metadata"]["namespace"].clone();
                // Started again by the test, as a Deployment would.
                template["spec"]["restartPolicy"] = "Never".into();
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]})
            }
        };
        let namespace = pod["metadata"]["namespace"].as_str().expect("a namespace").to_owned();
        self.pods.push((namespace, labels(&pod["metadata"]["labels"]), network.addresses().to_vec()));
        // Podman 4.3 takes annotations for labels, whose values are short; Kubernetes' may have any length.
        let annotations = pod["metadata"]["annotations"].as_object_mut().expect("annotations");
        annotations.retain(|_, value| value.as_str().is_some_and(|value| value.len() <= 63));
        let mut documents = Vec::new();
        for volume in pod["spec"]["volumes"].as_array_mut().expect("volumes") {
            let map = match (volume["secret"]["secretName"].as_str(), volume["configMap"]["name"].as_str()) {
                (Some(secret), None) => self.object("Secret", secret)["stringData"].clone(),
                (None, Some(map)) => self.object("ConfigMap", map)["data"].clone(),
                _ => continue,
            };
            // Podman names the volume after the ConfigMap, and it must be this pod's alone: the pods have other groups.
            let name = format!("{kind}-{}", volume["name"].as_str().expect("a name")).to_ascii_lowercase();
            let mut source = json!({"name": name});
            if let Some(items) = volume["secret"].get("items") {
                source["items"] = items.clone();
            }
            documents.push(json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": map}));
            *volume = json!({"name": volume["name"], "configMap": source});
        }
        documents.push(pod);
        let mut manifest = Manifest::from(documents);
        let lists = ["initContainers", "containers"];
        for list in lists {
            for container in manifest.spec()[list].as_array_mut().into_iter().flatten() {
                let variables = container.as_object_mut().expect("a map").entry("env").or_insert(json!([]));
                variables.as_array_mut().expect("a list").extend(kubelets());
            }
        }
        manifest
    }

    /// Makes a pod, and gives its Secrets' files the mode that the volume says and the pod's group, which Podman gives to
    /// nobody. The kubelet's own way: the directory and its files belong to the group.
    pub fn make<'p>(&mut self, podman: &'p Podman<'_>, kind: &str, network: Alone, manifest: &Manifest) -> Pod<'p> {
        let object = self.object(kind, "").clone();
        let spec = if kind == "Pod" { &object["spec"] } else { &object["spec"]["template"]["spec"] };
        let pod = podman.make(network, manifest);
        for volume in spec["volumes"].as_array().expect("volumes") {
            let Some(mode) = volume["secret"]["defaultMode"].as_u64() else { continue };
            let group = spec["securityContext"]["fsGroup"].as_u64().and_then(|group| u32::try_from(group).ok());
            let name = format!("{kind}-{}", volume["name"].as_str().expect("a name")).to_ascii_lowercase();
            for file in fs::read_dir(pod.volume(&name)).expect("the volume").flatten() {
                chown(file.path(), Some(0), group).expect("chown");
                let mode = u32::try_from(mode).expect("a mode");
                fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).expect("chmod");
            }
        }
        pod
    }

    /// Enforces the policies whose names begin so, instead of those that were enforced.
    pub fn enforce(&self, names: &[&str]) {
        let named = |object: &&Value| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            object["kind"] == "NetworkPolicy" && names.iter().any(|begin| name.starts_with(begin))
        };
        let policies: Vec<&Value> = self.objects.iter().filter(named).collect();
        assert_eq!(policies.len(), names.len(), "{names:?} are not what was rendered");
        let rules = self.rules(&policies);
        println!("{rules}");
        let mut command = self.world.machine_program("nft");
        let mut nft = command.args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft, which .ci/run installs");
        std::io::Write::write_all(&mut nft.stdin.take().expect("a pipe"), rules.as_bytes()).expect("write");
        assert!(nft.wait().expect("nft").success(), "{rules}");
    }

    /// What NetworkPolicies say (networking.k8s.io/v1): a pod that one selects is closed but for what one of those that
    /// select it allows; connections that were let through are answered. Of pods only the first side is asked for egress,
    /// and the other for ingress, so a packet passes both chains.
    fn rules(&self, policies: &[&Value]) -> String {
        let mut chains = String::new();
        for (kind, field, peers, own, other) in
            [("Egress", "egress", "to", "saddr", "daddr"), ("Ingress", "ingress", "from", "daddr", "saddr")]
        {
            let _ = writeln!(chains, "chain {field} {{");
            // Neighbours find each other whatever the policies say (RFC 4861).
            let _ = writeln!(chains, "ct state established,related accept");
            let _ = writeln!(chains, "icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept");
            for (namespace, labels, addresses) in &self.pods {
                let selects = |policy: &&&Value| {
                    let types = policy["spec"]["policyTypes"].as_array().expect("policyTypes");
                    let spec = &policy["spec"];
                    policy["metadata"]["namespace"] == namespace.as_str()
                        && types.contains(&kind.into())
                        && selected(&spec["podSelector"], labels)
                };
                let chosen: Vec<&&Value> = policies.iter().filter(selects).collect();
                for address in addresses {
                    for policy in &chosen {
                        for rule in policy["spec"][field].as_array().into_iter().flatten() {
                            known(rule, &[peers, "ports"]);
                            let ends = self.ends(&rule[peers], namespace, *address, other);
                            for (end, port) in ends
                                .iter()
                                .flat_map(|end| ports(&rule["ports"]).into_iter().map(move |port| (end, port)))
                            {
                                let _ = writeln!(chains, "{} {own} {address} {end} {port} accept", family(*address));
                            }
                        }
                    }
                    if !chosen.is_empty() {
                        let _ =
                            writeln!(chains, "{} {own} {address} reject with icmpx admin-prohibited", family(*address));
                    }
                }
            }
            chains += "}\n";
        }
        format!(
            "table inet {TABLE} {{}}\ndelete table inet {TABLE}\ntable inet {TABLE} {{\n{chains}\
             chain from_pods {{ type filter hook forward priority 0; jump egress; }}\n\
             chain to_pods {{ type filter hook forward priority 1; jump ingress; }}\n\
             chain to_the_node {{ type filter hook input priority 0; jump egress; }}\n}}\n"
        )
    }

    /// Whom a rule lets in or out, as matches of the other side's address.
    fn ends(&self, peers: &Value, namespace: &str, of: IpAddr, side: &str) -> Vec<String> {
        let mut ends = Vec::new();
        for peer in peers.as_array().expect("a rule without peers is none that is rendered") {
            known(peer, &["podSelector", "namespaceSelector", "ipBlock"]);
            if let Some(block) = peer.get("ipBlock") {
                let cidr = block["cidr"].as_str().expect("a range");
                if cidr.contains(':') == of.is_ipv6() {
                    let except = block["except"].as_array().into_iter().flatten().filter_map(Value::as_str);
                    let except: String = except.map(|range| format!(" {} {side} != {range}", family(of))).collect();
                    ends.push(format!("{} {side} {cidr}{except}", family(of)));
                }
                continue;
            }
            for (theirs, labels, addresses) in &self.pods {
                let names = BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), theirs.clone())]);
                let there = match peer.get("namespaceSelector") {
                    Some(selector) => selected(selector, &names),
                    None => theirs == namespace,
                };
                let it = peer.get("podSelector").is_none_or(|selector| selected(selector, labels));
                let same = addresses.iter().filter(|address| address.is_ipv6() == of.is_ipv6());
                let matches = same.map(|address| format!("{} {side} {address}", family(of)));
                ends.extend(matches.filter(|_| there && it));
            }
        }
        ends
    }
}

/// What the kubelet tells every container, with or without service links: where the API server is. Here the origin is.
fn kubelets() -> [Value; 2] {
    [
        json!({"name": "KUBERNETES_SERVICE_HOST", "value": crate::world::ORIGIN_V4}),
        json!({"name": "KUBERNETES_SERVICE_PORT", "value": API_SERVER.to_string()}),
    ]
}

/// The API server's port.
pub const API_SERVER: u16 = 6443;

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv6() { "ip6" } else { "ip" }
}

fn labels(map: &Value) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flatten();
    entries.map(|(key, value)| (key.clone(), value.as_str().expect("a string").to_owned())).collect()
}

/// An empty selector is everything.
fn selected(selector: &Value, of: &BTreeMap<String, String>) -> bool {
    known(selector, &["matchLabels"]);
    labels(&selector["matchLabels"]).iter().all(|(key, value)| of.get(key) == Some(value))
}

/// Matches of the ports; none is all.
fn ports(ports: &Value) -> Vec<String> {
    let one = |port: &Value| {
        known(port, &["protocol", "port"]);
        format!("{} dport {}", port["protocol"].as_str().expect("a protocol").to_ascii_lowercase(), port["port"])
    };
    ports.as_array().expect("a rule without ports is none that is rendered").iter().map(one).collect()
}

/// What this evaluator does not know must not be passed over.
fn known(value: &Value, fields: &[&str]) {
    for field in value.as_object().into_iter().flatten().map(|(field, _)| field) {
        assert!(fields.contains(&field.as_str()), "{field} in {value}");
    }
}
