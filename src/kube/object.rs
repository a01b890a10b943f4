//! What answers: of each object only what a role reads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What every object says of itself (`meta/v1` ObjectMeta).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Metadata {
    /// Its name.
    pub name: String,
    /// The namespace that it is in, if it is in one.
    pub namespace: String,
    /// Which of all objects that ever had the name it is.
    pub uid: String,
    /// Which of its states this is. Opaque.
    pub resource_version: String,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// When it was told to go, in RFC 3339: it is still there, on its way out.
    pub deletion_timestamp: Option<String>,
}

/// An object of which the metadata alone is wanted: pods and DaemonSets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Partial {
    /// Its metadata.
    pub metadata: Metadata,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Node {
    /// Its metadata.
    pub metadata: Metadata,
    /// What is asked of it.
    #[serde(default)]
    pub spec: NodeSpec,
    /// What it is.
    #[serde(default)]
    pub status: NodeStatus,
}

/// A node's spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Its taints, whole: a patch that removes one names all of it.
    pub taints: Vec<Value>,
}

/// A node's status.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its conditions.
    pub conditions: Vec<Condition>,
}

/// A condition of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one CamelCase word for programs.
    pub reason: String,
    /// Why, for people.
    pub message: String,
    /// When it was last confirmed, in RFC 3339.
    pub last_heartbeat_time: Option<String>,
    /// When its status last changed, in RFC 3339.
    pub last_transition_time: Option<String>,
}
