//! `mark-node-ready`: the node's label, set or taken away once. For preStop hooks and installers of other making.

use std::time::Duration;

use super::sandbox::{self, Failure};
use crate::cli;
use crate::contract::node::READY_LABEL;
use crate::event::say;
use crate::kube::node::Node;
use crate::kube::{Access, Client};

/// Exit code 0 once the label is as it should be, 125 with the reason otherwise.
pub fn run(arguments: cli::MarkNodeReady) -> u8 {
    sandbox::report(mark(&arguments))
}

fn mark(arguments: &cli::MarkNodeReady) -> Result<u8, Failure> {
    let access = match &arguments.kubeconfig {
        Some(path) => Access::from_kubeconfig(path),
        None => Access::in_cluster(&arguments.service_account),
    };
    let name = &arguments.node_name;
    let node = Node::new(Client::new(access.map_err(Failure::setup)?), name)
        .map_err(Failure::usage)?
        .with_patience(Duration::from_secs_f64(arguments.timeout));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup(format!("runtime: {error}")))?;
    let written = runtime
        .block_on(async { if arguments.remove { node.mark_not_ready().await } else { node.mark_ready().await } })
        .map_err(|error| {
            let advice = "; --node-name (NODE_NAME) takes the name that `kubectl get nodes` shows, from spec.nodeName";
            Failure::setup(format!("{error}{}", if error.is_not_found() { advice } else { "" }))
        })?;
    let (verb, state) = if arguments.remove { ("taken away from", "has not") } else { ("set on", "has") };
    let outcome = if written.label { format!("is {verb} node {name}") } else { format!("node {name} {state} already") };
    let taints = if written.taints > 0 { ", the startup taint is taken off" } else { "" };
    say!("openshell-supervisor: mark-node-ready: label {READY_LABEL}: {outcome}{taints}");
    Ok(0)
}
