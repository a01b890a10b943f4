//! What the caller looked up in the cluster, and who the workload is by it.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::config::{DriverConfig, GREATEST_ID};
use super::names::annotation;
use crate::contract::Ids;

/// Versions of the Sandbox resource (agents.x-k8s.io), newest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxApi {
    /// Current.
    V1Beta1,
    /// Deprecated.
    V1Alpha1,
}

impl SandboxApi {
    /// As `apiVersion` has it.
    #[must_use]
    pub fn api_version(self) -> &'static str {
        match self {
            Self::V1Beta1 => "agents.x-k8s.io/v1beta1",
            Self::V1Alpha1 => "agents.x-k8s.io/v1alpha1",
        }
    }
}

/// The CA of a proxy-pod sandbox, in PEM. Made by the caller, because nothing random is rendered.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyCa {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

impl std::fmt::Debug for ProxyCa {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ProxyCa")
    }
}

/// The key by which a proxy-pod sandbox's two pods know each other: what the agent's attests of connections the proxy's
/// believes. Made by the caller, for this sandbox alone: random, and text, such as 32 bytes in hexadecimal.
#[derive(Clone, PartialEq, Eq)]
pub struct AttestationKey(pub String);

impl AttestationKey {
    /// Least bytes, which both roles hold it to.
    pub const LEAST: usize = 32;
}

impl std::fmt::Debug for AttestationKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("AttestationKey")
    }
}

/// What the caller looked up. [`Default`] is a machine with Podman: a Pod instead of a Sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// Annotations of the sandbox's namespace.
    pub namespace_annotations: BTreeMap<String, String>,
    /// The version of the Sandbox resource; `None`: there is none, and a Pod is rendered.
    pub sandbox_api: Option<SandboxApi>,
    /// The uid of the Sandbox, once it is created: companions are then owned by it.
    pub sandbox_uid: Option<String>,
    /// The CA, for proxy-pod.
    pub proxy_ca: Option<ProxyCa>,
    /// The key, for proxy-pod; `None`: no program is told there, and the proxy judges by destination alone.
    pub attestation_key: Option<AttestationKey>,
    /// Namespaces that the operator allows, for `workspace_mode = "operator"`.
    pub operator_namespaces: Vec<String>,
    /// Whether any node has a GPU to allocate; `None`: nobody looked.
    pub has_gpu: Option<bool>,
    /// Whether the Sandbox is to be stopped: rendered with no pod running. A Pod without a Sandbox cannot be.
    pub stopped: bool,
}

/// Who the workload is where neither configuration nor namespace say.
const DEFAULT_ID: u32 = 1000;

/// The workload's uid and gid: the configuration's, the namespace's on OpenShift, or 1000.
pub(super) fn workload(config: &DriverConfig, cluster: &Cluster) -> Ids {
    let first = |name: &str| cluster.namespace_annotations.get(name).and_then(|blocks| start(blocks));
    let uid = config.sandbox_uid.or_else(|| first(annotation::UID_RANGE)).unwrap_or(DEFAULT_ID);
    let gid = config.sandbox_gid.or(config.sandbox_uid).or_else(|| first(annotation::SUPPLEMENTAL_GROUPS));
    Ids { uid, gid: gid.unwrap_or(uid) }
}

/// The uids and the one group of volumes that OpenShift's `restricted-v2` admits in the namespace: a uid of the first block, and
/// that block's first group (fsGroup is held to the one, whatever the block's size). `None` where the namespace does not say.
pub(super) fn admitted(cluster: &Cluster) -> Option<(RangeInclusive<u32>, u32)> {
    let blocks = |name: &str| cluster.namespace_annotations.get(name).and_then(|blocks| block(blocks));
    let uids = blocks(annotation::UID_RANGE)?;
    let group = blocks(annotation::SUPPLEMENTAL_GROUPS).as_ref().map_or(*uids.start(), |groups| *groups.start());
    Some((uids, group))
}

/// The first id of the first block.
fn start(blocks: &str) -> Option<u32> {
    block(blocks).map(|block| *block.start())
}

/// The first block: `start/size` or `start-end`, separated by commas. `None` if it begins with root or is no block.
fn block(blocks: &str) -> Option<RangeInclusive<u32>> {
    let block = blocks.split(',').next()?.trim();
    let (first, rest) = block.split_once(['/', '-'])?;
    let number = |text: &str| -> Option<u32> {
        let text = text.trim();
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    };
    let (first, rest) = (number(first)?, number(rest)?);
    let last = if block.contains('/') { first.saturating_add(rest.checked_sub(1)?) } else { rest };
    (last >= first && (1..=GREATEST_ID).contains(&first)).then_some(first..=last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_says_who_the_workload_is_in_every_grammar_of_openshift() {
        assert_eq!(start("1000790000/10000"), Some(1_000_790_000));
        assert_eq!(start("1000790000-1000799999"), Some(1_000_790_000));
        assert_eq!(start("5/10,1000/10"), Some(5));
        assert_eq!(start(" 1000/10 , 2000-2009"), Some(1000));
        assert_eq!(start("4294967294/1"), Some(4_294_967_294));
        for wrong in ["", "0/10", "4294967295/1", "9-8", "7/0", "7", "x/1", "+5/1", "-5/1"] {
            assert_eq!(start(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn what_a_namespace_admits_is_its_first_block_and_one_group() {
        let mut cluster = Cluster::default();
        assert_eq!(admitted(&cluster), None);
        cluster.namespace_annotations.insert(annotation::UID_RANGE.into(), "2000/10,5000/10".into());
        assert_eq!(admitted(&cluster), Some((2000..=2009, 2000)));
        cluster.namespace_annotations.insert(annotation::SUPPLEMENTAL_GROUPS.into(), "3000-3009".into());
        assert_eq!(admitted(&cluster), Some((2000..=2009, 3000)));
    }

    #[test]
    fn the_configuration_comes_before_the_namespace_and_its_uid_before_the_namespaces_groups() {
        let mut config = DriverConfig::default();
        let mut cluster = Cluster::default();
        assert_eq!(workload(&config, &cluster), Ids { uid: 1000, gid: 1000 });
        cluster.namespace_annotations.insert(annotation::UID_RANGE.into(), "2000/10".into());
        assert_eq!(workload(&config, &cluster), Ids { uid: 2000, gid: 2000 });
        cluster.namespace_annotations.insert(annotation::SUPPLEMENTAL_GROUPS.into(), "3000/10,4000/10".into());
        assert_eq!(workload(&config, &cluster), Ids { uid: 2000, gid: 3000 });
        config.sandbox_uid = Some(5000);
        assert_eq!(workload(&config, &cluster), Ids { uid: 5000, gid: 5000 });
        config.sandbox_gid = Some(6000);
        assert_eq!(workload(&config, &cluster), Ids { uid: 5000, gid: 6000 });
    }
}
