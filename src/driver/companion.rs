//! What stands beside a sandbox's pod: whose it is, and with whom it goes.

use serde_json::Value;

use super::names::{annotation, companion, label};
use super::object::Fields;
use super::plan::Plan;
use super::pod::{identity_labels, named};

/// Whose end is the companion's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    /// Nobody's: it is deleted by who knows that the workload is gone.
    Nobody,
    /// The Sandbox's.
    Sandbox,
    /// The Sandbox's, as its controller: the gateway follows that chain from the proxy's pod.
    Controller,
}

/// Its metadata. It has an owner once the Sandbox is created, which has no uid before.
pub(super) fn metadata(plan: &Plan<'_>, prefix: &str, role: Option<&str>, owner: Owner) -> Value {
    let labels = identity_labels(plan).maybe(label::ROLE, role.unwrap_or_default());
    let metadata = named(&companion(prefix, &plan.sandbox.id), plan)
        .with("labels", labels)
        .with("annotations", Fields::new().with(annotation::SANDBOX_ID, plan.sandbox.id.as_str()));
    match (&plan.cluster.sandbox_uid, plan.cluster.sandbox_api) {
        (Some(uid), Some(api)) if owner != Owner::Nobody => {
            let mut reference = Fields::new()
                .with("apiVersion", api.api_version())
                .with("kind", "Sandbox")
                .with("name", plan.name.as_str())
                .with("uid", uid.as_str());
            if owner == Owner::Controller {
                reference = reference.with("controller", true);
            }
            let references = vec![reference.with("blockOwnerDeletion", false)];
            metadata.with("ownerReferences", references).build()
        }
        _ => metadata.build(),
    }
}
