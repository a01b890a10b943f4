//! The description of one sandbox: what its user, and the gateway for them, asks for.

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use serde_saphyr::Error;

use super::place::Place;
use super::problem::{Document, Errors, Problems};
use super::read::Table;
use super::{check, yaml};

/// CPU and memory of the agent's container, as quantities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CPU that is reserved; where there is only a limit, that is.
    pub cpu_request: Option<String>,
    /// CPU at the most.
    pub cpu_limit: Option<String>,
    /// Memory that is reserved.
    pub memory_request: Option<String>,
    /// Memory at the most.
    pub memory_limit: Option<String>,
}

/// A volume of the user's: a claim that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserVolume {
    /// What mounts call it.
    pub name: String,
    /// The PersistentVolumeClaim.
    pub claim_name: String,
    /// Whether nobody may write to it; so unless said otherwise.
    pub read_only: bool,
}

/// Where the agent sees a volume of the user's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserMount {
    /// The volume.
    pub name: String,
    /// The path in the agent's container.
    pub mount_path: String,
    /// A directory of the volume instead of the whole.
    pub sub_path: Option<String>,
    /// Whether the agent may only read; so unless said otherwise.
    pub read_only: bool,
}

/// A toleration of a node's taint, as in a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toleration {
    /// The taint; none: all.
    pub key: Option<String>,
    /// `Equal` or `Exists`.
    pub operator: Option<String>,
    /// The taint's value.
    pub value: Option<String>,
    /// The taint's effect.
    pub effect: Option<String>,
    /// For how long; none: for ever.
    pub seconds: Option<i64>,
}

/// What a user may say of Kubernetes: nothing of it is beyond the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SandboxDriverConfig {
    /// Labels of the node.
    pub node_selector: BTreeMap<String, String>,
    /// The runtime class.
    pub runtime_class_name: Option<String>,
    /// Taints of nodes that do not matter.
    pub tolerations: Vec<Toleration>,
    /// The priority class.
    pub priority_class_name: Option<String>,
    /// What the agent's container reserves.
    pub requests: BTreeMap<String, String>,
    /// What it gets at the most.
    pub limits: BTreeMap<String, String>,
    /// Where it sees volumes.
    pub volume_mounts: Vec<UserMount>,
    /// The volumes.
    pub volumes: Vec<UserVolume>,
}

/// What the gateway says of Kubernetes; users have no say in it. Unknown fields are someone else's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlatformConfig {
    /// Annotations of the pod.
    pub annotations: BTreeMap<String, String>,
    /// The runtime class, before anybody else's.
    pub runtime_class_name: Option<String>,
    /// Labels of the node, before the user's.
    pub node_selector: BTreeMap<String, String>,
    /// Taints that do not matter, besides the user's.
    pub tolerations: Vec<Toleration>,
    /// What the agent's container reserves, to begin with.
    pub requests: BTreeMap<String, String>,
    /// What it gets at the most, to begin with.
    pub limits: BTreeMap<String, String>,
    /// Whether the pod is in the host's user namespace, whatever the configuration says.
    pub host_users: Option<bool>,
}

/// One sandbox. [`from_yaml`](Self::from_yaml) reads one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxSpec {
    /// What never changes and nobody else has: a UUID. Names of companions are made of it.
    pub id: String,
    /// What people call it: a DNS label.
    pub name: String,
    /// The workspace that it belongs to.
    pub workspace: String,
    /// The agent's image; empty: the configuration's.
    pub image: String,
    /// The workload: program and arguments.
    pub command: Vec<String>,
    /// Whether the workload has a terminal.
    pub tty: bool,
    /// Variables of the workload; they reach nobody else.
    pub environment: BTreeMap<String, String>,
    /// What is told on stderr: off, error, warn, info or debug; empty: warn.
    pub log_level: String,
    /// CPU and memory.
    pub resources: Resources,
    /// How many GPUs.
    pub gpu: Option<u32>,
    /// Labels of the pod.
    pub labels: BTreeMap<String, String>,
    /// The policy, in the schema that `--policy` reads; none: nothing leaves, unless a gateway says otherwise.
    pub policy: Option<Map<String, Value>>,
    /// Whether what is written to /sandbox outlives the pod, where a Sandbox resource makes volumes.
    pub persistent_workspace: bool,
    /// What the user says of Kubernetes.
    pub driver_config: SandboxDriverConfig,
    /// What the gateway says of it.
    pub platform_config: PlatformConfig,
}

impl SandboxSpec {
    /// Reads a description.
    ///
    /// # Errors
    /// Every problem that can be told without a configuration.
    pub fn from_yaml(text: &str) -> Result<Self, Errors> {
        let problems = Problems::of(Document::Sandbox);
        let document = match serde_saphyr::from_str::<Value>(text) {
            Ok(document) => document,
            Err(error) => {
                // The parser's own words may quote the file, and that may hold secrets.
                let place = error.location().map(|at| Place { line: at.line() as usize, column: at.column() as usize });
                let (expected, remedy) = match error.without_snippet() {
                    Error::DuplicateMappingKey { .. } => ("every field once", "keep one of the two"),
                    Error::MultipleDocuments { .. } => {
                        ("one sandbox", "put each into a file of its own: a call renders one")
                    }
                    _ => ("YAML", "correct what is there, or just before it"),
                };
                problems.broken(place, expected, remedy);
                return problems.settle(Self::default());
            }
        };
        let sandbox = Self::read(Table::root(document, &problems));
        problems.reading_is_done();
        check::sandbox(&sandbox, &problems);
        problems.settle(sandbox)
    }

    pub(super) fn read(mut table: Table<'_>) -> Self {
        let sandbox = Self {
            id: table.required("id").text("id"),
            name: table.required("name").text("name"),
            workspace: table.required("workspace").text("workspace"),
            image: table.text("image"),
            command: table.required("command").strings("command").unwrap_or_default(),
            tty: table.boolean("tty").unwrap_or(false),
            environment: table.string_map("environment"),
            log_level: table.text("log_level"),
            resources: resources(table.table("resources")),
            gpu: gpu(&mut table),
            labels: table.string_map("labels"),
            policy: table.optional_table("policy").map(policy),
            persistent_workspace: table.boolean("persistent_workspace").unwrap_or(true),
            driver_config: driver_config(table.table("driver_config")),
            platform_config: platform_config(table.table("platform_config")),
        };
        table.finish();
        sandbox
    }
}

/// The policy in the text of a description, as its pods will have it, for who checks it; whatever else is wrong with the
/// description. `None` where there is none, or nothing like one.
#[must_use]
pub fn policy_in(text: &str) -> Option<String> {
    let document = serde_saphyr::from_str::<Value>(text).ok()?;
    let found = document.get("policy").filter(|policy| policy.is_object())?.clone();
    Some(policy_text(&policy(Table::root(found, &Problems::of(Document::Sandbox)))))
}

/// A policy as its pods have it.
pub(super) fn policy_text(policy: &Map<String, Value>) -> String {
    yaml::write(&Value::Object(policy.clone()))
}

/// The roles check the whole of it; here is only what tells a policy from something else.
fn policy(mut table: Table<'_>) -> Map<String, Value> {
    let version = table.required("version").number("version");
    if version != Some(1) {
        let remedy = "begin the policy with `version: 1`";
        table.problems().without(table.path("version"), "1", remedy);
    }
    let mut policy = Map::new();
    policy.insert("version".into(), version.into());
    policy.extend(table.rest());
    policy
}

fn resources(mut table: Table<'_>) -> Resources {
    let resources = Resources {
        cpu_request: table.string("cpu_request"),
        cpu_limit: table.string("cpu_limit"),
        memory_request: table.string("memory_request"),
        memory_limit: table.string("memory_limit"),
    };
    table.finish();
    resources
}

/// `gpu: {}` is one.
fn gpu(table: &mut Table<'_>) -> Option<u32> {
    let mut gpu = table.optional_table("gpu")?;
    let count = gpu.bounded("count", 1, GPUS).unwrap_or(1);
    gpu.finish();
    Some(count)
}

/// GPUs of one sandbox: more than any node has, so that a slip of the pen is told.
pub(super) const GPUS: u32 = 1024;

fn driver_config(mut table: Table<'_>) -> SandboxDriverConfig {
    let mut pod = table.table("pod");
    let mut containers = table.table("containers");
    let mut agent = containers.table("agent");
    let mut resources = agent.table("resources");
    let read = SandboxDriverConfig {
        node_selector: pod.string_map("node_selector"),
        runtime_class_name: pod.string("runtime_class_name"),
        tolerations: tolerations(&mut pod),
        priority_class_name: pod.string("priority_class_name"),
        requests: resources.string_map("requests"),
        limits: resources.string_map("limits"),
        volume_mounts: agent.tables("volume_mounts").unwrap_or_default().into_iter().map(mount).collect(),
        volumes: table.tables("volumes").unwrap_or_default().into_iter().map(volume).collect(),
    };
    for section in [resources, agent, containers, pod, table] {
        section.finish();
    }
    read
}

fn tolerations(table: &mut Table<'_>) -> Vec<Toleration> {
    let operators = [("Equal", "Equal"), ("Exists", "Exists")];
    let effects = [("NoSchedule", "NoSchedule"), ("PreferNoSchedule", "PreferNoSchedule"), ("NoExecute", "NoExecute")];
    let read = |mut table: Table<'_>| {
        let toleration = Toleration {
            key: table.string("key"),
            operator: table.choice("operator", &operators).map(str::to_owned),
            value: table.string("value"),
            effect: table.choice("effect", &effects).map(str::to_owned),
            seconds: table.number("tolerationSeconds"),
        };
        table.finish();
        toleration
    };
    table.tables("tolerations").unwrap_or_default().into_iter().map(read).collect()
}

fn mount(mut table: Table<'_>) -> UserMount {
    let mount = UserMount {
        name: table.required("name").text("name"),
        mount_path: table.required("mount_path").text("mount_path"),
        sub_path: table.string("sub_path").filter(|path| !path.is_empty()),
        read_only: table.boolean("read_only").unwrap_or(true),
    };
    table.finish();
    mount
}

fn volume(mut table: Table<'_>) -> UserVolume {
    let name = table.required("name").text("name");
    let mut claim = table.required("persistent_volume_claim").table("persistent_volume_claim");
    let volume = UserVolume {
        name,
        claim_name: claim.required("claim_name").text("claim_name"),
        read_only: claim.boolean("read_only").unwrap_or(true),
    };
    claim.finish();
    table.finish();
    volume
}

/// Its unknown fields are tolerated: other drivers read the same.
fn platform_config(mut table: Table<'_>) -> PlatformConfig {
    let mut resources = table.table("resources_raw");
    PlatformConfig {
        annotations: table.string_map("annotations"),
        runtime_class_name: table.string("runtime_class_name"),
        node_selector: table.string_map("node_selector"),
        tolerations: tolerations(&mut table),
        requests: resources.string_map("requests"),
        limits: resources.string_map("limits"),
        host_users: table.raw("host_users").and_then(|flag| flag.as_bool()),
    }
}
