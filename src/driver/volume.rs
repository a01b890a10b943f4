//! The volumes of sandbox pods.

use serde_json::{Value, json};

use super::config::Sideload;
use super::names::{AUDIENCE, SPIFFE_CSI, companion, path, volume};
use super::object::Fields;
use super::plan::Plan;
use super::sandbox::UserVolume;

/// Mode of a credential where it is root that reads it.
const OWNER_READS: u32 = 0o400;
/// Mode of a credential where the pod's group reads it (fsGroup).
const GROUP_READS: u32 = 0o440;

/// Who reads credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// Root.
    Owner,
    /// A process of the pod's group.
    Group,
}

impl Reader {
    fn mode(self) -> u32 {
        match self {
            Self::Owner => OWNER_READS,
            Self::Group => GROUP_READS,
        }
    }
}

/// What is empty when the pod starts and gone when it ends.
pub(super) fn empty(name: &str) -> Value {
    json!({"name": name, "emptyDir": {}})
}

/// The executable: the supervisor's image, or room for a copy.
pub(super) fn supervisor(plan: &Plan<'_>) -> Value {
    match plan.sideload() {
        Sideload::InitContainer => empty(volume::SUPERVISOR),
        Sideload::ImageVolume => {
            let image = Fields::new()
                .with("reference", plan.config.supervisor_image.as_str())
                .maybe("pullPolicy", plan.config.supervisor_image_pull_policy.as_str());
            Fields::new().with("name", volume::SUPERVISOR).with("image", image).build()
        }
    }
}

/// The workspace, unless the Sandbox's controller adds a claim of that name.
pub(super) fn workspace(plan: &Plan<'_>) -> Option<Value> {
    (!plan.claims_workspace()).then(|| empty(volume::WORKSPACE))
}

/// The policy.
pub(super) fn policy(plan: &Plan<'_>) -> Option<Value> {
    let name = companion(companion::POLICY, &plan.sandbox.id);
    plan.sandbox.policy.as_ref().map(|_| json!({"name": volume::POLICY, "configMap": {"name": name}}))
}

/// The token that says to the gateway which pod this is.
pub(super) fn token(plan: &Plan<'_>, reader: Reader) -> Option<Value> {
    let token = json!({
        "audience": AUDIENCE, "expirationSeconds": plan.config.token_ttl(), "path": "token",
    });
    plan.gateway().map(|_| {
        json!({
            "name": volume::TOKEN,
            "projected": {"defaultMode": reader.mode(), "sources": [{"serviceAccountToken": token}]},
        })
    })
}

/// The client's TLS material for the gateway.
pub(super) fn client_tls(plan: &Plan<'_>, reader: Reader) -> Option<Value> {
    let secret = |name| json!({"secretName": name, "defaultMode": reader.mode()});
    plan.client_tls().map(|name| json!({"name": volume::CLIENT_TLS, "secret": secret(name)}))
}

/// The corporate proxy's credential.
pub(super) fn upstream_auth(plan: &Plan<'_>, reader: Reader) -> Option<Value> {
    let (name, key) = plan.config.upstream_proxy.secret.as_ref()?;
    let item = json!({"key": key, "path": path::UPSTREAM_AUTH_FILE});
    Some(json!({
        "name": volume::UPSTREAM_AUTH,
        "secret": {"secretName": name, "defaultMode": reader.mode(), "items": [item]},
    }))
}

/// The SPIFFE workload API.
pub(super) fn spiffe(plan: &Plan<'_>) -> Option<Value> {
    plan.spiffe().map(|_| json!({"name": volume::SPIFFE, "csi": {"driver": SPIFFE_CSI, "readOnly": true}}))
}

/// A volume of the user's.
pub(super) fn user(volume: &UserVolume) -> Value {
    let claim = Fields::new().with("claimName", volume.claim_name.as_str());
    let claim = if volume.read_only { claim.with("readOnly", true) } else { claim };
    Fields::new().with("name", volume.name.as_str()).with("persistentVolumeClaim", claim).build()
}
