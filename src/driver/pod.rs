//! A pod as topologies put it together, and what wraps it: a Pod of its own, a Sandbox resource, a Deployment.

use serde_json::{Value, json};

use super::cluster::SandboxApi;
use super::container::Container;
use super::names::{DOCKER_HOST, annotation, label, mesh, volume as names, volume_of};
use super::object::{Fields, Object, strings};
use super::plan::Plan;
use super::sandbox::Toleration;
use super::{openshift, volume};
use crate::contract::HOST_ALIAS;

/// A pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Pod {
    /// Labels of the topology's, besides those of every pod.
    pub(super) labels: Vec<(&'static str, String)>,
    /// Annotations of the topology's.
    pub(super) annotations: Vec<(&'static str, String)>,
    pub(super) share_process_namespace: bool,
    pub(super) affinity: Value,
    /// The group that volumes belong to.
    pub(super) fs_group: Option<u32>,
    pub(super) supplemental_groups: Vec<u32>,
    pub(super) volumes: Vec<Value>,
    pub(super) init: Vec<Container>,
    pub(super) containers: Vec<Container>,
    /// Whether it is the workload's: the user's labels and annotations are for that one alone.
    pub(super) is_agent: bool,
    /// `Never` unless a controller wants it otherwise.
    pub(super) restart_policy: &'static str,
}

impl Pod {
    /// The workload's pod, with the volumes that it has in every topology.
    pub(super) fn agent(plan: &Plan<'_>) -> Self {
        let user = plan.sandbox.driver_config.volumes.iter().map(volume::user);
        let mut volumes = vec![volume::supervisor(plan)];
        volumes.extend(volume::workspace(plan));
        volumes.extend(user);
        Self { is_agent: true, volumes, restart_policy: "Never", ..Self::default() }
    }

    fn metadata(&self, plan: &Plan<'_>) -> Fields {
        let mut labels = Fields::new();
        let mut annotations = Fields::new();
        if self.is_agent {
            for (key, value) in &plan.sandbox.labels {
                labels = labels.with(key, value.as_str());
            }
            for (key, value) in &plan.sandbox.platform_config.annotations {
                annotations = annotations.with(key, value.as_str());
            }
        }
        // Behind the user's, so that these are what counts.
        for (key, value) in mesh::LABELS {
            labels = labels.with(key, value);
        }
        for (key, value) in mesh::ANNOTATIONS {
            annotations = annotations.with(key, value);
        }
        labels = labels.and(identity_labels(plan));
        annotations = annotations.with(annotation::SANDBOX_ID, plan.sandbox.id.as_str());
        if openshift::is_openshift(plan) {
            annotations = annotations.with(annotation::REQUIRED_SCC, openshift::scc(plan.config));
        }
        for (key, value) in &self.labels {
            labels = labels.with(*key, value.as_str());
        }
        for (key, value) in &self.annotations {
            annotations = annotations.with(*key, value.as_str());
        }
        Fields::new().with("labels", labels).with("annotations", annotations)
    }

    fn spec(&self, plan: &Plan<'_>) -> Value {
        let config = plan.config;
        let security = Fields::new()
            .maybe("fsGroup", self.fs_group.map_or(Value::Null, Value::from))
            .maybe("supplementalGroups", self.supplemental_groups.clone())
            .with("seccompProfile", json!({"type": "RuntimeDefault"}));
        let secrets: Vec<Value> = config.image_pull_secrets.iter().map(|name| json!({"name": name})).collect();
        let mut spec = Fields::new()
            .with("restartPolicy", self.restart_policy)
            .with("serviceAccountName", config.service_account_name.as_str())
            .with("automountServiceAccountToken", false)
            .with("enableServiceLinks", false)
            .maybe("runtimeClassName", plan.runtime_class.unwrap_or_default());
        if let Some(own) = plan.has_user_namespace() {
            spec = spec.with("hostUsers", !own);
        }
        if self.share_process_namespace {
            spec = spec.with("shareProcessNamespace", true);
        }
        spec.and(scheduling(plan))
            .maybe("affinity", self.affinity.clone())
            .maybe("imagePullSecrets", secrets)
            .maybe("hostAliases", host_aliases(plan))
            .with("securityContext", security)
            .with("volumes", self.volumes.iter().map(|volume| called(plan, volume)).collect::<Vec<_>>())
            .maybe("initContainers", built(plan, &self.init))
            .with("containers", built(plan, &self.containers))
            .build()
    }

    /// As a template of a controller's.
    pub(super) fn template(&self, plan: &Plan<'_>) -> Value {
        Fields::new().with("metadata", self.metadata(plan)).with("spec", self.spec(plan)).build()
    }

    /// As a Sandbox resource, or as a Pod where there is none.
    pub(super) fn object(&self, plan: &Plan<'_>) -> Object {
        match plan.cluster.sandbox_api {
            Some(api) => self.sandbox(plan, api),
            None => {
                let pod = Self {
                    annotations: [self.annotations.clone(), vec![(annotation::PODMAN_INIT, "always".into())]].concat(),
                    ..self.clone()
                };
                let metadata = named(&plan.name, plan).and(pod.metadata(plan)).build();
                Object::new("v1", "Pod", metadata, Fields::new().with("spec", self.spec(plan)))
            }
        }
    }

    fn sandbox(&self, plan: &Plan<'_>, api: SandboxApi) -> Object {
        let sandbox = plan.sandbox;
        let labels = identity_labels(plan)
            .with(label::SANDBOX_NAME, sandbox.name.as_str())
            .with(label::WORKSPACE, sandbox.workspace.as_str())
            .maybe(label::GATEWAY, plan.config.gateway_id.as_str());
        let mut annotations = Fields::new()
            .with(annotation::SANDBOX_ID, sandbox.id.as_str())
            .with(annotation::SANDBOX_NAME, sandbox.name.as_str())
            .with(annotation::WORKSPACE, sandbox.workspace.as_str());
        // With them, who the workload is can be told from the object alone.
        for key in [annotation::UID_RANGE, annotation::SUPPLEMENTAL_GROUPS] {
            if let Some(value) = plan.cluster.namespace_annotations.get(key) {
                annotations = annotations.with(key, value.as_str());
            }
        }
        let metadata = named(&plan.name, plan).with("labels", labels).with("annotations", annotations).build();
        let mut spec = Fields::new();
        if plan.cluster.stopped {
            spec = match api {
                SandboxApi::V1Beta1 => spec.with("operatingMode", "Suspended"),
                SandboxApi::V1Alpha1 => spec.with("replicas", 0),
            };
        }
        spec = spec.with("podTemplate", self.template(plan));
        if plan.claims_workspace() {
            spec = spec.with("volumeClaimTemplates", vec![claim(plan)]);
        }
        Object::new(api.api_version(), "Sandbox", metadata, Fields::new().with("spec", spec))
    }
}

/// Labels of everything that is a sandbox's.
pub(super) fn identity_labels(plan: &Plan<'_>) -> Fields {
    Fields::new().with(label::MANAGED_BY, label::OPENSHELL).with(label::SANDBOX_ID, plan.sandbox.id.as_str())
}

/// Name and namespace.
pub(super) fn named(name: &str, plan: &Plan<'_>) -> Fields {
    Fields::new().with("name", name).with("namespace", plan.namespace.as_str())
}

/// Where the pods may run: the platform's word before the user's. The proxy's as well as the workload's, which could not be
/// on one node else, as `proxy_pod.affinity` may require.
fn scheduling(plan: &Plan<'_>) -> Fields {
    let (user, platform) = (&plan.sandbox.driver_config, &plan.sandbox.platform_config);
    let mut selector = user.node_selector.clone();
    selector.extend(platform.node_selector.clone());
    let tolerations: Vec<Value> = platform.tolerations.iter().chain(&user.tolerations).map(toleration).collect();
    Fields::new()
        .maybe("priorityClassName", user.priority_class_name.as_deref().unwrap_or_default())
        .maybe("nodeSelector", strings(&selector))
        .maybe("tolerations", tolerations)
}

fn toleration(toleration: &Toleration) -> Value {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Fields::new()
        .maybe("key", text(&toleration.key))
        .maybe("operator", text(&toleration.operator))
        .maybe("value", text(&toleration.value))
        .maybe("effect", text(&toleration.effect))
        .maybe("tolerationSeconds", toleration.seconds.map_or(Value::Null, Value::from))
        .build()
}

fn host_aliases(plan: &Plan<'_>) -> Vec<Value> {
    let address = plan.config.host_gateway_ip.as_str();
    let alias = json!({"ip": address, "hostnames": [DOCKER_HOST, HOST_ALIAS]});
    if address.is_empty() { Vec::new() } else { vec![alias] }
}

fn built(plan: &Plan<'_>, containers: &[Container]) -> Vec<Value> {
    containers.iter().map(|container| container.build(|name| volume_name(plan, name))).collect()
}

/// A volume by the name that it has in this sandbox's pods.
fn called(plan: &Plan<'_>, volume: &Value) -> Value {
    let mut volume = volume.clone();
    let name = volume["name"].as_str().map(|name| volume_name(plan, name));
    volume["name"] = name.into();
    volume
}

/// The user's are called as they said. So is a claimed workspace: the controller makes the claim's name of it and of the
/// Sandbox's, which is unique already, and under another name what is in it would be lost.
fn volume_name(plan: &Plan<'_>, name: &str) -> String {
    let is_claim = name == names::WORKSPACE && plan.claims_workspace();
    match names::ALL.contains(&name) && !is_claim {
        true => volume_of(name, &plan.sandbox.id),
        false => name.to_owned(),
    }
}

fn claim(plan: &Plan<'_>) -> Value {
    let config = plan.config;
    let storage = json!({"requests": {"storage": config.workspace_default_storage_size}});
    let spec = Fields::new()
        .with("accessModes", vec!["ReadWriteOnce"])
        .maybe("storageClassName", config.workspace_storage_class.as_str())
        .with("resources", storage);
    Fields::new().with("metadata", json!({"name": names::WORKSPACE})).with("spec", spec).build()
}
