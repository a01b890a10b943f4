//! Whether sandboxes may be scheduled on a node: its label says so, its startup taint has been taken off, and, where an
//! operator asks for it, a condition says why (design §9).
//!
//! The label is what schedulers go by: a driver's sandboxes require it. Both of these are therefore idempotent and
//! write only what is not as it should be, so that they can be called as often as anything is in doubt.

mod condition;

#[cfg(test)]
mod tests;

pub use condition::{HEARTBEAT, Verdict};

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::contract::node::{READY, READY_LABEL, STARTUP_TAINT};
use crate::kube::{ApiError, Client, Failure, NameError, Patch, Resource, object, within};

/// How long an API server that does not answer is asked again.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Tries of a patch that meets other writers.
const TRIES: u32 = 5;

/// A node, by name.
#[derive(Debug)]
pub struct Node {
    client: Client,
    node: Resource,
    status: Resource,
    patience: Duration,
    /// Whether the condition is published, and when that was last done.
    condition: Option<Option<Instant>>,
}

/// What was written, as far as answers have told: one that was lost may have been written all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The label was set or removed.
    pub label: bool,
    /// Startup taints that were taken off.
    pub taints: usize,
}

impl Node {
    /// The node `name`, without a condition.
    ///
    /// # Errors
    /// A name that no node has.
    pub fn new(client: Client, name: &str) -> Result<Self, NameError> {
        let (node, status) = (Resource::node(name)?, Resource::node_status(name)?);
        Ok(Self { client, node, status, patience: PATIENCE, condition: None })
    }

    /// The same, asking an API server that does not answer for that long.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The same, with the condition: it takes `patch` on `nodes/status`, which nothing else here does.
    #[must_use]
    pub fn with_condition(self) -> Self {
        Self { condition: Some(None), ..self }
    }

    /// Sets the label, then takes off the startup taint, whichever its effect.
    ///
    /// # Errors
    /// The last call's. The label may be set and the taint still on then; calling again does the rest.
    pub async fn mark_ready(&self) -> Result<Written, ApiError> {
        let mut written = Written::default();
        within(self.patience, async || {
            self.settle(async |node| {
                if node.metadata.labels.get(READY_LABEL).map(String::as_str) != Some(READY) {
                    self.label(&json!(READY)).await?;
                    written.label = true;
                }
                let (patch, count) = untaint(&node.spec.taints);
                if count > 0 {
                    self.client.patch(&self.node, Patch::Json, &patch).await?;
                    written.taints = count;
                }
                Ok(())
            })
            .await
        })
        .await?;
        Ok(written)
    }

    /// Removes the label.
    ///
    /// # Errors
    /// The last call's. The label may still be set then.
    pub async fn mark_not_ready(&self) -> Result<Written, ApiError> {
        let mut written = Written::default();
        within(self.patience, async || {
            self.settle(async |node| {
                if node.metadata.labels.contains_key(READY_LABEL) {
                    self.label(&Value::Null).await?;
                    written.label = true;
                }
                Ok(())
            })
            .await
        })
        .await?;
        Ok(written)
    }

    async fn label(&self, value: &Value) -> Result<(), ApiError> {
        let patch = json!({"metadata": {"labels": {READY_LABEL: value}}});
        self.client.patch(&self.node, Patch::Merge, &patch).await.map(drop)
    }

    /// Does something with the node as it is, and again while others are quicker: 409 is the server's own word for that,
    /// 422 what a patch's `test` comes to that no longer holds.
    async fn settle(&self, mut change: impl AsyncFnMut(object::Node) -> Result<(), ApiError>) -> Result<(), ApiError> {
        let mut tries = 1;
        loop {
            match change(self.client.node(&self.node).await?).await {
                Err(ApiError { failure: Failure::Conflict(_) | Failure::Invalid(_), .. }) if tries < TRIES => {
                    tries += 1
                }
                outcome => return outcome,
            }
        }
    }
}

/// A patch without the startup taints, and how many there are. Each is tested for, whole and at its place: what others
/// have put there since is not to be taken off in its stead. The last comes first, so that the places stay what they are.
fn untaint(taints: &[Value]) -> (Value, usize) {
    let startup = taints.iter().enumerate().rev().filter(|(_, taint)| taint["key"] == STARTUP_TAINT);
    let operations: Vec<Value> = startup
        .flat_map(|(index, taint)| {
            let path = format!("/spec/taints/{index}");
            [json!({"op": "test", "path": path, "value": taint}), json!({"op": "remove", "path": path})]
        })
        .collect();
    let count = operations.len() / 2;
    (Value::Array(operations), count)
}
