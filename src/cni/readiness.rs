//! What the cluster is told of a node: the label that sandboxes are scheduled by, the startup taint, and where it is asked for
//! a condition that says why.

use std::time::{Duration, Instant};

use super::installation::Standing;
use crate::kube::node::{HEARTBEAT, Node, Verdict};
use crate::kube::{ApiError, Client, Failure, Resource};

/// How long one attempt may take to tell the cluster. A repair waits for it, so it is short; what failed is tried again.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// A pod that is not there: that the API server says so proves that the plugin may look for others.
pub(super) const NOBODY: &str = "openshell-cni-lookup";

/// The node as the cluster is to see it.
#[derive(Debug)]
pub struct Readiness {
    client: Client,
    node: Node,
    namespaces: Vec<String>,
    /// What the label was last known to be, and when.
    label: Option<(bool, Instant)>,
}

impl Readiness {
    /// Nothing is known of the label yet.
    #[must_use]
    pub fn of(client: Client, node: Node, namespaces: Vec<String>) -> Self {
        Self { client, node: node.with_patience(PATIENCE), namespaces, label: None }
    }

    /// Whether the label is known to say `ready`.
    #[must_use]
    pub fn says(&self, ready: bool) -> bool {
        self.label.is_some_and(|(label, _)| label == ready)
    }

    /// Takes the label away, if it is not known to be gone. Whether it was there.
    ///
    /// # Errors
    /// It may still be there.
    pub async fn withdraw(&mut self) -> Result<bool, ApiError> {
        if self.says(false) {
            return Ok(false);
        }
        self.label = None;
        let written = self.node.mark_not_ready().await?;
        self.label = Some((false, Instant::now()));
        Ok(written.label)
    }

    /// Sets the label and takes the startup taint off, unless that was done a short while ago. Whether anything was written.
    ///
    /// # Errors
    /// The label may be missing.
    pub async fn grant(&mut self) -> Result<bool, ApiError> {
        if self.label.is_some_and(|(label, at)| label && at.elapsed() < HEARTBEAT) {
            return Ok(false);
        }
        self.label = None;
        let written = self.node.mark_ready().await?;
        self.label = Some((true, Instant::now()));
        Ok(written.label || written.taints > 0)
    }

    /// Whether pods can be looked up in the sandboxes' namespaces, as the plugin does with the same service account.
    ///
    /// # Errors
    /// What it would come to.
    pub async fn look_up(&self) -> Result<(), Standing> {
        for namespace in &self.namespaces {
            let pod = Resource::pod(namespace, NOBODY).map_err(|error| Standing::deficient("NamespaceUnfit", error))?;
            match self.client.metadata(&pod).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    let refused = matches!(error.failure, Failure::Forbidden(_) | Failure::Unauthorized(_));
                    let reason = if refused { "LookupRefused" } else { "LookupFailed" };
                    return Err(Standing::deficient(reason, error));
                }
            }
        }
        Ok(())
    }

    /// Publishes the condition, where it is asked for.
    ///
    /// # Errors
    /// The last call's.
    pub async fn publish(&mut self, standing: &Standing) -> Result<bool, ApiError> {
        let verdict = match standing {
            Standing::Verified { file } => {
                let message = format!("the plugin is called by {}", file.display());
                Verdict { ready: true, reason: "ChainVerified", message }
            }
            Standing::Deficient { reason, message, .. } => Verdict { ready: false, reason, message: message.clone() },
        };
        self.node.publish(&verdict).await
    }
}
