//! A container as topologies put it together, and how it is written down.

use serde_json::{Value, json};

use super::config::AppArmor;
use super::object::Fields;
use super::sandbox::UserMount;
use crate::contract::Ids;

/// A container, or an init container.
#[derive(Clone, Debug)]
pub(super) struct Container {
    pub(super) name: &'static str,
    pub(super) image: String,
    pub(super) pull_policy: String,
    pub(super) command: Vec<String>,
    pub(super) environment: Vec<(&'static str, String)>,
    pub(super) ports: Vec<(&'static str, u16)>,
    pub(super) resources: Value,
    pub(super) readiness: Value,
    pub(super) security: Security,
    pub(super) mounts: Vec<Mount>,
}

/// What a container may do.
#[derive(Clone, Debug)]
pub(super) struct Security {
    /// Who it is; `None` leaves it to the namespace.
    pub(super) ids: Option<Ids>,
    /// Capabilities that it keeps; all others are dropped.
    pub(super) capabilities: &'static [&'static str],
    pub(super) read_only_root: bool,
    pub(super) app_armor: Option<AppArmor>,
}

impl Security {
    /// No privilege at all, as this user; `None` leaves it to the namespace.
    pub(super) fn none(ids: impl Into<Option<Ids>>) -> Self {
        Self { ids: ids.into(), capabilities: &[], read_only_root: true, app_armor: None }
    }

    /// Root with these capabilities and no others.
    pub(super) fn root(gid: u32, capabilities: &'static [&'static str]) -> Self {
        Self { ids: Some(Ids { uid: 0, gid }), capabilities, read_only_root: true, app_armor: None }
    }

    fn build(&self) -> Value {
        let mut fields = Fields::new();
        if let Some(Ids { uid, gid }) = self.ids {
            fields = fields.with("runAsUser", uid).with("runAsGroup", gid);
        }
        // Said even where root is meant, so that a pod's own setting cannot be what decides.
        let root = self.ids.is_some_and(|ids| ids.uid == 0);
        fields
            .with("runAsNonRoot", !root)
            .with("allowPrivilegeEscalation", false)
            .with("readOnlyRootFilesystem", self.read_only_root)
            .with("capabilities", Fields::new().with("drop", vec!["ALL"]).maybe("add", self.capabilities.to_vec()))
            .with("seccompProfile", json!({"type": "RuntimeDefault"}))
            .maybe("appArmorProfile", self.app_armor.as_ref().map_or(Value::Null, app_armor))
            .build()
    }
}

fn app_armor(profile: &AppArmor) -> Value {
    match profile {
        AppArmor::RuntimeDefault => json!({"type": "RuntimeDefault"}),
        AppArmor::Unconfined => json!({"type": "Unconfined"}),
        AppArmor::Localhost(name) => json!({"type": "Localhost", "localhostProfile": name}),
    }
}

/// Where a container sees a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) volume: String,
    pub(super) path: String,
    pub(super) sub_path: Option<String>,
    pub(super) read_only: bool,
}

impl Mount {
    pub(super) fn read_write(volume: &str, path: &str) -> Self {
        Self { volume: volume.to_owned(), path: path.to_owned(), sub_path: None, read_only: false }
    }

    pub(super) fn read_only(volume: &str, path: &str) -> Self {
        Self { read_only: true, ..Self::read_write(volume, path) }
    }

    fn build(&self, names: impl Fn(&str) -> String) -> Value {
        let fields = Fields::new().with("name", names(&self.volume)).with("mountPath", self.path.as_str());
        let fields = fields.maybe("subPath", self.sub_path.as_deref().unwrap_or_default());
        if self.read_only { fields.with("readOnly", true).build() } else { fields.build() }
    }
}

impl From<&UserMount> for Mount {
    fn from(mount: &UserMount) -> Self {
        Self {
            volume: mount.name.clone(),
            path: mount.mount_path.clone(),
            sub_path: mount.sub_path.clone(),
            read_only: mount.read_only,
        }
    }
}

impl Container {
    pub(super) fn new(name: &'static str, image: &str, pull_policy: &str, security: Security) -> Self {
        Self {
            name,
            image: image.to_owned(),
            pull_policy: pull_policy.to_owned(),
            command: Vec::new(),
            environment: Vec::new(),
            ports: Vec::new(),
            resources: Value::Null,
            readiness: Value::Null,
            security,
            mounts: Vec::new(),
        }
    }

    /// The program, the role and its flags.
    pub(super) fn command(mut self, program: &str, role: &str, flags: impl IntoIterator<Item = String>) -> Self {
        self.command = vec![program.to_owned(), format!("--mode={role}")];
        self.command.extend(flags);
        self
    }

    pub(super) fn mounts(mut self, mounts: impl IntoIterator<Item = Mount>) -> Self {
        self.mounts.extend(mounts);
        self
    }

    pub(super) fn environment(mut self, variables: impl IntoIterator<Item = (&'static str, String)>) -> Self {
        self.environment.extend(variables);
        self
    }

    /// The container; `names` says what its pod calls a volume.
    pub(super) fn build(&self, names: impl Fn(&str) -> String) -> Value {
        let variable = |(name, value): &(&str, String)| json!({"name": name, "value": value});
        let port = |(name, port): &(&str, u16)| json!({"name": name, "containerPort": port, "protocol": "TCP"});
        Fields::new()
            .with("name", self.name)
            .with("image", self.image.as_str())
            .maybe("imagePullPolicy", self.pull_policy.as_str())
            .with("command", self.command.clone())
            .maybe("env", self.environment.iter().map(variable).collect::<Vec<_>>())
            .maybe("ports", self.ports.iter().map(port).collect::<Vec<_>>())
            .maybe("resources", self.resources.clone())
            .maybe("readinessProbe", self.readiness.clone())
            .with("securityContext", self.security.build())
            .maybe("volumeMounts", self.mounts.iter().map(|mount| mount.build(&names)).collect::<Vec<_>>())
            .build()
    }
}
