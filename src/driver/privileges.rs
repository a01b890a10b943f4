//! What each container may do, computed from rendered objects and from nothing else.

use std::fmt;

use serde_json::Value;

use super::object::Object;

/// A row a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// The rows, in the order in which the containers start.
    pub rows: Vec<Row>,
}

/// One container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Kind and name of the object that it is in.
    pub object: String,
    /// Its name.
    pub container: String,
    /// Whether it ends before the pod's others start.
    pub init: bool,
    /// Who it runs as; `None`: whoever its image or the namespace says.
    pub user: Option<u64>,
    /// Its group.
    pub group: Option<u64>,
    /// Whether the kubelet refuses to start it as root.
    pub non_root: bool,
    /// Capabilities that it has for certain: what is added to what is dropped.
    pub capabilities: Vec<String>,
    /// Whether all others are dropped.
    pub drops_all: bool,
    /// Whether it is `privileged`.
    pub privileged: bool,
    /// Whether it may gain privileges.
    pub escalation: bool,
    /// Whether its root is read-only.
    pub read_only_root: bool,
    /// Namespaces of the node that it is in, and the pod's processes where they are shared.
    pub namespaces: Vec<String>,
    /// Secrets and tokens that it can read: names of Secrets, `token`, `SPIFFE`.
    pub secrets: Vec<String>,
}

/// The table of all containers of these objects.
#[must_use]
pub fn privileges(objects: &[Object]) -> Table {
    let rows = objects.iter().filter_map(|object| object.pod_spec().map(|spec| rows_of(object, spec)));
    Table { rows: rows.flatten().collect() }
}

fn rows_of(object: &Object, spec: &Value) -> Vec<Row> {
    let lists = [("initContainers", true), ("containers", false)];
    let containers = lists
        .into_iter()
        .flat_map(|(list, init)| spec[list].as_array().into_iter().flatten().map(move |container| (container, init)));
    containers
        .map(|(container, init)| Row {
            object: format!("{} {}", object.kind(), object.name()),
            init,
            ..row_of(spec, container)
        })
        .collect()
}

/// A container's own setting, or its pod's.
fn effective<'v>(spec: &'v Value, container: &'v Value, field: &str) -> &'v Value {
    let own = &container["securityContext"][field];
    if own.is_null() { &spec["securityContext"][field] } else { own }
}

fn row_of(spec: &Value, container: &Value) -> Row {
    let security = &container["securityContext"];
    let words = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let shared = [
        ("hostNetwork", "host network"),
        ("hostPID", "host processes"),
        ("hostIPC", "host IPC"),
        ("shareProcessNamespace", "pod's processes"),
    ];
    let namespaces = shared.into_iter().filter(|(field, _)| spec[*field].as_bool() == Some(true));
    Row {
        object: String::new(),
        container: container["name"].as_str().unwrap_or_default().to_owned(),
        init: false,
        user: effective(spec, container, "runAsUser").as_u64(),
        group: effective(spec, container, "runAsGroup").as_u64(),
        non_root: effective(spec, container, "runAsNonRoot").as_bool() == Some(true),
        capabilities: words(&security["capabilities"]["add"]),
        drops_all: words(&security["capabilities"]["drop"]).iter().any(|name| name == "ALL"),
        privileged: security["privileged"].as_bool() == Some(true),
        // What is not said is yes: that is the API's default.
        escalation: security["allowPrivilegeEscalation"].as_bool() != Some(false),
        read_only_root: security["readOnlyRootFilesystem"].as_bool() == Some(true),
        namespaces: namespaces.map(|(_, name)| name.to_owned()).collect(),
        secrets: secrets(spec, container),
    }
}

fn secrets(spec: &Value, container: &Value) -> Vec<String> {
    let volumes = || spec["volumes"].as_array().into_iter().flatten();
    let mounts = container["volumeMounts"].as_array().into_iter().flatten();
    let mut found = Vec::new();
    for mount in mounts {
        let Some(volume) = volumes().find(|volume| volume["name"] == mount["name"]) else { continue };
        if let Some(name) = volume["secret"]["secretName"].as_str() {
            let keys: Vec<&str> = volume["secret"]["items"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|item| item["key"].as_str())
                .collect();
            found.push(if keys.is_empty() { name.to_owned() } else { format!("{name} ({})", keys.join(", ")) });
        }
        if volume["csi"]["driver"].as_str() == Some(super::names::SPIFFE_CSI) {
            found.push("SPIFFE".to_owned());
        }
        for source in volume["projected"]["sources"].as_array().into_iter().flatten() {
            if !source["serviceAccountToken"].is_null() {
                found.push("token".to_owned());
            }
            if let Some(name) = source["secret"]["name"].as_str() {
                found.push(name.to_owned());
            }
        }
    }
    found
}

impl Row {
    fn cells(&self) -> [String; 9] {
        let id = |id: Option<u64>| id.map_or_else(|| "unset".to_owned(), |id| id.to_string());
        let list = |items: &[String]| if items.is_empty() { "none".to_owned() } else { items.join(", ") };
        let yes = |flag: bool| if flag { "yes" } else { "no" }.to_owned();
        let capabilities = match (self.drops_all, self.capabilities.is_empty()) {
            (true, _) => list(&self.capabilities),
            (false, true) => "the runtime's".to_owned(),
            (false, false) => format!("the runtime's, {}", self.capabilities.join(", ")),
        };
        [
            format!("{}{}", self.container, if self.init { " (init)" } else { "" }),
            format!("{}:{}", id(self.user), id(self.group)),
            capabilities,
            yes(self.privileged),
            yes(self.escalation),
            (if self.read_only_root { "read-only" } else { "writable" }).to_owned(),
            list(&self.namespaces),
            list(&self.secrets),
            self.object.clone(),
        ]
    }
}

impl fmt::Display for Table {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heads =
            ["container", "uid:gid", "capabilities", "privileged", "may gain", "root", "shares", "secrets", "in"];
        let mut lines = vec![heads.map(str::to_owned)];
        lines.extend(self.rows.iter().map(Row::cells));
        let mut widths = [0; 9];
        for line in &lines {
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = cell.chars().count().max(*width);
            }
        }
        for line in &lines {
            let cells: Vec<String> = widths.iter().zip(line).map(|(width, cell)| format!("{cell:<width$}")).collect();
            writeln!(out, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}
