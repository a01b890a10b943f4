//! What a pod asks of the plugin, by its annotations, and whether what it asks for could hold.

use serde::Deserialize;

use super::error::{CniError, UNFIT_POD};
use crate::contract::{Ids, annotation};
use crate::fence::exempt::Exempt;
use crate::kube::object::Metadata;

/// The newest contract between driver and plugin that is understood here. A pod that says nothing means the first.
const CONTRACT: u32 = 1;

/// Capabilities with which a container would take its own fence down, or put itself in another network namespace.
const UNDOING: [&str; 3] = ["NET_ADMIN", "SYS_ADMIN", "ALL"];

/// A pod, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Its name, uid and annotations.
    pub metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    host_network: bool,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    ephemeral_containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    security_context: Option<SecurityContext>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct SecurityContext {
    privileged: Option<bool>,
    capabilities: Option<Capabilities>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Capabilities {
    add: Vec<String>,
}

impl Pod {
    /// Whom the fence of this pod lets out; `None` for one that wants no fence of ours.
    ///
    /// A word that is none of those that are known is refused rather than passed over: whoever wrote it wanted something.
    ///
    /// # Errors
    /// The pod asks for a fence and does not say for whom, or could undo it.
    pub fn exempt(&self) -> Result<Option<Exempt>, CniError> {
        match self.annotation(annotation::CNI) {
            None | Some("disabled") => return Ok(None),
            Some("enabled") => {}
            Some(other) => return Err(unfit(annotation::CNI, other, "`enabled` or `disabled`")),
        }
        match self.annotation(annotation::ENFORCEMENT_MODE) {
            Some("cni-sidecar") => {}
            // Their fences are not the node's.
            Some("combined" | "sidecar" | "proxy-pod") => return Ok(None),
            other => return Err(unfit(annotation::ENFORCEMENT_MODE, other.unwrap_or_default(), "`cni-sidecar`")),
        }
        if let Some(version) = self.annotation(annotation::CNI_CONTRACT) {
            let known = version.parse().is_ok_and(|version: u32| (1..=CONTRACT).contains(&version));
            if !known {
                return Err(unfit(annotation::CNI_CONTRACT, version, "1, or a newer plugin on this node"));
            }
        }
        let proxy = Ids { uid: self.id(annotation::PROXY_UID)?, gid: self.id(annotation::PROXY_GID)? };
        let exempt = Exempt::of_proxy(proxy).map_err(|unfit| {
            refused(format!("{unfit} (annotations {} and {})", annotation::PROXY_UID, annotation::PROXY_GID))
        })?;
        self.refuse_undoing()?;
        Ok(Some(exempt))
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.metadata.annotations.get(name).map(String::as_str)
    }

    fn id(&self, name: &'static str) -> Result<u32, CniError> {
        let text = self.annotation(name).unwrap_or_default();
        // What parse() takes beyond digits, a sign, no driver writes.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| digits).ok_or_else(|| unfit(name, text, "a user or group id in decimal"))
    }

    /// A fence is worth nothing where a container can take it down.
    fn refuse_undoing(&self) -> Result<(), CniError> {
        if self.spec.host_network {
            return Err(refused("hostNetwork is true: the node's network is not fenced for a pod"));
        }
        let spec = &self.spec;
        for container in spec.init_containers.iter().chain(&spec.containers).chain(&spec.ephemeral_containers) {
            let Some(context) = &container.security_context else { continue };
            if context.privileged == Some(true) {
                return Err(refused(format!(
                    "container {:?} is privileged and could take the fence down",
                    container.name
                )));
            }
            let added = context.capabilities.iter().flat_map(|capabilities| &capabilities.add);
            let undoing = added
                .map(|name| name.to_ascii_uppercase())
                .find(|name| UNDOING.contains(&name.strip_prefix("CAP_").unwrap_or(name)));
            if let Some(capability) = undoing {
                return Err(refused(format!(
                    "container {:?} is given {capability} and could take the fence down; in cni-sidecar no container needs it",
                    container.name
                )));
            }
        }
        Ok(())
    }
}

fn refused(details: impl std::fmt::Display) -> CniError {
    CniError::new(UNFIT_POD, "unfit pod", details)
}

fn unfit(annotation: &str, found: &str, expected: &str) -> CniError {
    refused(format!("annotation {annotation} is {found:?}: expected {expected}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sandbox() -> Value {
        json!({
            "kind": "Pod",
            "metadata": {"name": "a-0", "uid": "u-1", "annotations": {
                "openshell.ai/cni": "enabled",
                "openshell.ai/network-enforcement-mode": "cni-sidecar",
                "openshell.ai/proxy-uid": "0",
                "openshell.ai/proxy-gid": "1337",
                "example.com/other": "x",
            }},
            "spec": {"containers": [
                {"name": "agent", "securityContext": {"capabilities": {"drop": ["ALL"]}, "privileged": false}},
                {"name": "network", "securityContext": {"capabilities": {"add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}}},
                {"name": "plain"},
            ]},
        })
    }

    fn exempt(pod: Value) -> Result<Option<Ids>, CniError> {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        Ok(pod.exempt()?.map(Exempt::ids))
    }

    fn annotated(name: &str, value: Option<&str>) -> Value {
        let mut pod = sandbox();
        let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
        match value {
            Some(value) => drop(annotations.insert(name.to_owned(), value.into())),
            None => drop(annotations.shift_remove(name)),
        }
        pod
    }

    #[test]
    fn a_sandbox_says_whom_its_fence_lets_out() {
        assert_eq!(exempt(sandbox()), Ok(Some(Ids { uid: 0, gid: 1337 })));
        assert_eq!(exempt(annotated(annotation::CNI_CONTRACT, Some("1"))), Ok(Some(Ids { uid: 0, gid: 1337 })));
        assert_eq!(exempt(annotated(annotation::PROXY_UID, Some("1337"))), Ok(Some(Ids { uid: 1337, gid: 1337 })));
    }

    #[test]
    fn pods_that_ask_for_nothing_are_let_be() {
        assert_eq!(exempt(json!({"metadata": {"uid": "u"}, "spec": {"hostNetwork": true}})), Ok(None));
        assert_eq!(exempt(annotated(annotation::CNI, None)), Ok(None));
        assert_eq!(exempt(annotated(annotation::CNI, Some("disabled"))), Ok(None));
        for other in ["combined", "sidecar", "proxy-pod"] {
            assert_eq!(exempt(annotated(annotation::ENFORCEMENT_MODE, Some(other))), Ok(None));
        }
    }

    #[test]
    fn words_that_mean_nothing_are_refused() {
        for (name, value) in [
            (annotation::CNI, Some("Enabled")),
            (annotation::CNI, Some("")),
            (annotation::ENFORCEMENT_MODE, None),
            (annotation::ENFORCEMENT_MODE, Some("cni")),
            (annotation::CNI_CONTRACT, Some("2")),
            (annotation::CNI_CONTRACT, Some("0")),
            (annotation::CNI_CONTRACT, Some("x")),
            (annotation::PROXY_UID, None),
            (annotation::PROXY_UID, Some("-1")),
            (annotation::PROXY_UID, Some("+0")),
            (annotation::PROXY_UID, Some("4294967296")),
            (annotation::PROXY_UID, Some("33")),
            (annotation::PROXY_GID, None),
            (annotation::PROXY_GID, Some("")),
            (annotation::PROXY_GID, Some("0")),
        ] {
            let error = exempt(annotated(name, value)).unwrap_err();
            assert!(error.code == UNFIT_POD && error.details.contains(name), "{name}={value:?}: {error}");
        }
    }

    #[test]
    fn who_could_undo_the_fence_gets_none() {
        let mut pod = sandbox();
        pod["spec"]["hostNetwork"] = true.into();
        assert!(exempt(pod).unwrap_err().details.contains("hostNetwork"));
        for list in ["containers", "initContainers", "ephemeralContainers"] {
            for context in [
                json!({"privileged": true}),
                json!({"capabilities": {"add": ["NET_ADMIN"]}}),
                json!({"capabilities": {"add": ["CHOWN", "CAP_SYS_ADMIN"]}}),
                json!({"capabilities": {"add": ["all"]}}),
            ] {
                let mut pod = sandbox();
                pod["spec"][list] = json!([{"name": "strong", "securityContext": context}]);
                let error = exempt(pod).unwrap_err();
                assert!(error.code == UNFIT_POD && error.details.contains("strong"), "{list}: {error}");
            }
        }
    }
}
