//! What OpenShift wants to know: which security context constraints (SCC) a pod goes by, and who may use them.

use serde_json::{Value, json};

use super::config::{DriverConfig, NetworkEnforcement, Topology};
use super::names::{annotation, companion, label, scc};
use super::object::{Fields, Object};
use super::plan::Plan;
use super::pod::named;

/// The group of the SCC's API.
const SECURITY_GROUP: &str = "security.openshift.io";
/// The group of roles.
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The narrowest SCC that admits the pods of this configuration. Named in the pod, because OpenShift otherwise chooses
/// among all that its author may use, and a wider one changes the pod.
pub(super) fn scc(config: &DriverConfig) -> &'static str {
    match config.topology {
        Topology::Combined if config.network_enforcement == NetworkEnforcement::Platform => scc::RESTRICTED,
        Topology::Combined => scc::PRIVILEGED,
        Topology::Sidecar => scc::SIDECAR,
        Topology::CniSidecar if config.sidecar.binary_aware => scc::CNI_SIDECAR,
        Topology::CniSidecar | Topology::ProxyPod => scc::NONROOT,
    }
}

/// OpenShift writes its ranges of ids on every namespace, and nobody else does.
pub(super) fn is_openshift(plan: &Plan<'_>) -> bool {
    plan.cluster.namespace_annotations.contains_key(annotation::UID_RANGE)
}

/// The objects with the grant among them, if it is asked for: behind the fence, before the first pod.
pub(super) fn with_grant(plan: &Plan<'_>, mut objects: Vec<Object>) -> Vec<Object> {
    if plan.config.openshift.nonroot_scc {
        let at = objects.iter().position(|object| object.pod_spec().is_some()).unwrap_or_default();
        objects.splice(at..at, grant(plan));
    }
    objects
}

/// `use` of the stock SCC, for the pods' service account in their namespace and nowhere else.
fn grant(plan: &Plan<'_>) -> [Object; 2] {
    let name = companion::NONROOT_GRANT;
    let metadata = || -> Value {
        named(name, plan).with("labels", Fields::new().with(label::MANAGED_BY, label::OPENSHELL)).build()
    };
    let rule = json!({
        "apiGroups": [SECURITY_GROUP], "resources": ["securitycontextconstraints"],
        "resourceNames": [scc::NONROOT], "verbs": ["use"],
    });
    let role = json!({"apiGroup": RBAC_GROUP, "kind": "Role", "name": name});
    let account = json!({
        "kind": "ServiceAccount", "name": plan.config.service_account_name, "namespace": plan.namespace,
    });
    let api = format!("{RBAC_GROUP}/v1");
    [
        Object::new(&api, "Role", metadata(), Fields::new().with("rules", vec![rule])),
        Object::new(
            &api,
            "RoleBinding",
            metadata(),
            Fields::new().with("roleRef", role).with("subjects", vec![account]),
        ),
    ]
}
