//! The condition `OpenShellCNIReady`: the label's why, for people and for what watches nodes. It does not gate
//! anything: schedulers do not read conditions of others' making.

use std::time::{Duration, Instant, SystemTime};

use serde_json::json;

use super::Node;
use crate::contract::node::CONDITION;
use crate::event::time::rfc3339;
use crate::kube::object::Condition;
use crate::kube::{ApiError, Patch, within};

/// How often one that has not changed is confirmed: as often as the kubelet confirms its own
/// (`nodeStatusReportFrequency`). Every write goes to all who watch nodes.
pub const HEARTBEAT: Duration = Duration::from_secs(300);

/// Characters of a message that are published.
const MESSAGE_CHARACTERS: usize = 1024;

/// What there is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the chain is verified.
    pub ready: bool,
    /// Why, in one CamelCase word.
    pub reason: &'static str,
    /// Why, in a sentence.
    pub message: String,
}

impl Node {
    /// Publishes the condition, where that was asked for: when it says something new, and every [`HEARTBEAT`]. Whether
    /// anything was written.
    ///
    /// # Errors
    /// The last call's.
    pub async fn publish(&mut self, verdict: &Verdict) -> Result<bool, ApiError> {
        let Some(published) = self.condition else { return Ok(false) };
        let fresh = published.is_some_and(|at| at.elapsed() < HEARTBEAT);
        let wanted = Condition {
            kind: CONDITION.to_owned(),
            status: if verdict.ready { "True" } else { "False" }.to_owned(),
            reason: verdict.reason.to_owned(),
            message: verdict.message.chars().take(MESSAGE_CHARACTERS).collect(),
            ..Condition::default()
        };
        let written = within(self.patience, async || {
            let node = self.client.node(&self.node).await?;
            let now = rfc3339(SystemTime::now());
            let before = node.status.conditions.into_iter().find(|condition| condition.kind == CONDITION);
            let mut condition = wanted.clone();
            if let Some(before) = before {
                let said = (&before.status, &before.reason, &before.message);
                if fresh && said == (&condition.status, &condition.reason, &condition.message) {
                    return Ok(false);
                }
                if before.status == condition.status {
                    condition.last_transition_time = before.last_transition_time;
                }
            }
            condition.last_transition_time.get_or_insert_with(|| now.clone());
            condition.last_heartbeat_time = Some(now);
            let patch = json!({"status": {"conditions": [condition]}});
            self.client.patch(&self.status, Patch::Strategic, &patch).await.map(|_| true)
        })
        .await?;
        if written {
            self.condition = Some(Some(Instant::now()));
        }
        Ok(written)
    }
}
