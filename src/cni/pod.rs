//! What a pod asks of the plugin, by its annotations, and whether what it asks for could hold.

use serde::Deserialize;

use super::error::{CniError, UNFIT_POD};
use crate::contract::{Ids, annotation};
use crate::fence::exempt::Exempt;
use crate::kube::object::Metadata;

/// The newest contract between driver and plugin that is understood here. A pod that says nothing means the first.
const CONTRACT: u32 = 1;

/// Capabilities that open no way around a fence. With those that are missing here a container would take it down or leave its
/// namespace (NET_ADMIN, SYS_ADMIN), write frames that no hook of the output sees (NET_RAW: packet(7)), take the proxy's ids
/// (SETUID, SETGID), or act within the proxy's process (SYS_PTRACE). A runtime's defaults have several of them, so that a
/// container must drop ALL before it adds any.
const HARMLESS: [&str; 8] =
    ["AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SYS_NICE"];

/// What the proxy itself needs besides, to tell which program asks.
const PROXYS: [&str; 2] = ["DAC_READ_SEARCH", "SYS_PTRACE"];

/// A pod, as far as it matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// `Pod`, if it is one.
    pub kind: String,
    /// Its name, uid and annotations.
    pub metadata: Metadata,
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    host_network: bool,
    #[serde(rename = "hostPID")]
    host_pid: bool,
    #[serde(rename = "hostIPC")]
    host_ipc: bool,
    runtime_class_name: Option<String>,
    security_context: PodSecurity,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
    ephemeral_containers: Vec<Container>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSecurity {
    run_as_user: Option<i64>,
    run_as_group: Option<i64>,
    fs_group: Option<i64>,
    supplemental_groups: Vec<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Container {
    name: String,
    security_context: Security,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Security {
    privileged: bool,
    allow_privilege_escalation: Option<bool>,
    run_as_user: Option<i64>,
    run_as_group: Option<i64>,
    capabilities: Capabilities,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Capabilities {
    add: Vec<String>,
    drop: Vec<String>,
}

impl Pod {
    /// Whom the fence of this pod lets out; `None` for one that wants no fence of ours. `runtimes` are classes whose containers
    /// the node's kernel runs.
    ///
    /// A word that is none of those that are known is refused rather than passed over: whoever wrote it wanted something.
    ///
    /// # Errors
    /// The pod asks for a fence and does not say for whom, or could undo it.
    pub fn exempt(&self, runtimes: &[String]) -> Result<Option<Exempt>, CniError> {
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
        self.refuse_ways_around(proxy, runtimes)?;
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

    /// A fence is worth nothing where a container can take it down, or pass for the proxy.
    fn refuse_ways_around(&self, proxy: Ids, runtimes: &[String]) -> Result<(), CniError> {
        let spec = &self.spec;
        if spec.host_network {
            return Err(refused("hostNetwork is true: the node's network is not fenced for a pod"));
        }
        // Among the node's processes are some in its network, and the proxy may look into all of them.
        if spec.host_pid || spec.host_ipc {
            return Err(refused(
                "hostPID or hostIPC is true: what is shared with the node's processes is a way to its network",
            ));
        }
        // A virtual machine or a user-space kernel hands its frames to the device, past the hooks that the fence stands at.
        if let Some(class) = spec.runtime_class_name.as_ref().filter(|class| !runtimes.contains(class)) {
            return Err(refused(format!(
                "runtimeClassName is {class:?}: with a runtime that has a kernel of its own (Kata, gVisor) the node's fence holds \
                 nothing; use proxy-pod there, or tell cni-install by --runtime-class that this one has none"
            )));
        }
        let pod = &spec.security_context;
        // Who is in a group can make a program that runs as the group (chmod(2), S_ISGID).
        if pod.fs_group.iter().chain(&pod.supplemental_groups).any(|group| *group == i64::from(proxy.gid)) {
            return Err(refused(format!(
                "fsGroup and supplementalGroups: {} is the proxy's group, and no one else's",
                proxy.gid
            )));
        }
        let containers = || spec.init_containers.iter().chain(&spec.containers).chain(&spec.ephemeral_containers);
        let ids = |container: &Container| {
            let security = &container.security_context;
            (security.run_as_user.or(pod.run_as_user), security.run_as_group.or(pod.run_as_group))
        };
        let (uid, gid) = (i64::from(proxy.uid), i64::from(proxy.gid));
        let is_proxy = |container: &Container| ids(container) == (Some(uid), Some(gid));
        let proxies = containers().filter(|container| is_proxy(container)).count();
        if proxies != 1 {
            return Err(refused(format!(
                "{proxies} containers run as {uid}:{gid}, whom the fence lets out by the annotations: expected one, the proxy"
            )));
        }
        for container in containers() {
            let (name, security) = (&container.name, &container.security_context);
            if security.privileged {
                return Err(refused(format!("container {name:?} is privileged and could take the fence down")));
            }
            // A file of the image may be anybody's, with the bits that make who runs it that (S_ISUID, S_ISGID).
            if security.allow_privilege_escalation != Some(false) {
                return Err(refused(format!(
                    "container {name:?} does not say allowPrivilegeEscalation: false, and a setuid program could take the \
                     proxy's ids"
                )));
            }
            let (Some(own_uid), Some(own_gid)) = ids(container) else {
                return Err(refused(format!(
                    "container {name:?} does not say runAsUser and runAsGroup, and its image might name the proxy's"
                )));
            };
            let possible = 0..i64::from(u32::MAX);
            if !possible.contains(&own_uid) || !possible.contains(&own_gid) {
                return Err(refused(format!("container {name:?} runs as {own_uid}:{own_gid}, which are no ids")));
            }
            let is_proxy = is_proxy(container);
            if !is_proxy && (own_gid == gid || own_uid == uid && uid != 0) {
                return Err(refused(format!(
                    "container {name:?} runs as {own_uid}:{own_gid}: uid and gid of {uid}:{gid} are the proxy's alone"
                )));
            }
            security.capabilities.refuse_dangerous(name, is_proxy)?;
        }
        Ok(())
    }
}

impl Capabilities {
    fn refuse_dangerous(&self, container: &str, is_proxy: bool) -> Result<(), CniError> {
        let plain = |name: &str| {
            let name = name.to_ascii_uppercase();
            name.strip_prefix("CAP_").map(str::to_owned).unwrap_or(name)
        };
        if !self.drop.iter().any(|name| plain(name) == "ALL") {
            return Err(refused(format!(
                "container {container:?} does not drop ALL capabilities: among a runtime's defaults are NET_RAW, SETUID and \
                 SETGID, each of which is a way around the fence"
            )));
        }
        let allowed = |name: &str| HARMLESS.contains(&name) || is_proxy && PROXYS.contains(&name);
        match self.add.iter().map(|name| plain(name)).find(|name| !allowed(name)) {
            None => Ok(()),
            Some(name) => Err(refused(format!(
                "container {container:?} is given {name}, which may be a way around the fence; expected none but {}",
                if is_proxy { [HARMLESS.as_slice(), &PROXYS].concat() } else { HARMLESS.to_vec() }.join(", ")
            ))),
        }
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
            "spec": {"securityContext": {"runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}, "containers": [
                {"name": "agent", "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "privileged": false}},
                {"name": "network", "securityContext": {
                    "allowPrivilegeEscalation": false, "runAsUser": 0, "runAsGroup": 1337, "capabilities": {
                    "drop": ["all"], "add": ["SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CHOWN"]}}},
            ]},
        })
    }

    fn exempt(pod: Value) -> Result<Option<Ids>, CniError> {
        let pod: Pod = serde_json::from_value(pod).unwrap();
        Ok(pod.exempt(&["nvidia".to_owned()])?.map(Exempt::ids))
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
        let mut relaxed = annotated(annotation::PROXY_UID, Some("1337"));
        relaxed["spec"]["containers"][1]["securityContext"] = json!({"allowPrivilegeEscalation": false, "runAsUser": 1337, "runAsGroup": 1337, "capabilities": {"drop": ["ALL"]}});
        assert_eq!(exempt(relaxed.clone()), Ok(Some(Ids { uid: 1337, gid: 1337 })));
        // Annotations that speak of nobody would let nobody out, and say nothing.
        assert!(exempt(annotated(annotation::PROXY_UID, Some("1337"))).unwrap_err().details.contains("0 containers"));
        // What only the proxy may have does not go to who is not.
        relaxed["spec"]["containers"][0]["securityContext"]["capabilities"]["add"] = json!(["SYS_PTRACE"]);
        assert!(exempt(relaxed).unwrap_err().details.contains("SYS_PTRACE"));
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
    fn who_could_get_around_the_fence_gets_none() {
        let mut pod = sandbox();
        pod["spec"]["hostNetwork"] = true.into();
        assert!(exempt(pod).unwrap_err().details.contains("hostNetwork"));
        for (field, value) in [("hostPID", json!(true)), ("hostIPC", json!(true)), ("runtimeClassName", json!("kata"))]
        {
            let mut pod = sandbox();
            pod["spec"][field] = value;
            assert!(exempt(pod).unwrap_err().details.contains(field), "{field}");
        }
        let mut pod = sandbox();
        pod["spec"]["runtimeClassName"] = "nvidia".into();
        assert!(exempt(pod).is_ok());
        for (field, value) in [("fsGroup", json!(1337)), ("supplementalGroups", json!([5, 1337]))] {
            let mut pod = sandbox();
            pod["spec"]["securityContext"][field] = value;
            assert!(exempt(pod).unwrap_err().details.contains("1337"), "{field}");
        }
        let dropping =
            |add: &str| json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": [add]}});
        for list in ["initContainers", "ephemeralContainers"] {
            for context in [
                json!({"allowPrivilegeEscalation": false, "privileged": true}),
                json!({"allowPrivilegeEscalation": false}),
                json!({"capabilities": {"drop": ["ALL"]}}),
                json!({"allowPrivilegeEscalation": true, "capabilities": {"drop": ["ALL"]}}),
                json!({"allowPrivilegeEscalation": false, "capabilities": {"add": ["CHOWN"]}}),
                json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["NET_RAW"]}}),
                dropping("NET_ADMIN"),
                dropping("CAP_SYS_ADMIN"),
                dropping("net_raw"),
                dropping("SETUID"),
                dropping("SYS_PTRACE"),
                dropping("ALL"),
            ] {
                let mut pod = sandbox();
                pod["spec"][list] = json!([{"name": "strong", "securityContext": context}]);
                let error = exempt(pod).unwrap_err();
                assert!(error.code == UNFIT_POD && error.details.contains("strong"), "{list} {context}: {error}");
            }
            let mut pod = sandbox();
            pod["spec"][list] = json!([{"name": "weak", "securityContext": dropping("CHOWN")}]);
            assert!(exempt(pod).is_ok());
        }
    }

    #[test]
    fn nobody_but_the_proxy_has_its_ids() {
        let with = |uid: u32, gid: u32| {
            let mut pod = sandbox();
            pod["spec"]["initContainers"] = json!([{"name": "other", "securityContext": {
                "allowPrivilegeEscalation": false, "runAsUser": uid, "runAsGroup": gid, "capabilities": {"drop": ["ALL"]},
            }}]);
            exempt(pod)
        };
        assert!(with(0, 0).is_ok());
        assert!(with(0, 1337).unwrap_err().details.contains("2 containers run as 0:1337"));
        assert!(with(u32::MAX, 0).unwrap_err().details.contains("no ids"));
        assert!(with(1000, 1337).unwrap_err().details.contains("\"other\" runs as 1000:1337"));
        // An image's own user is not known here.
        let mut pod = sandbox();
        pod["spec"]["securityContext"].as_object_mut().unwrap().shift_remove("runAsGroup");
        assert!(exempt(pod).unwrap_err().details.contains("agent"));
    }
}
