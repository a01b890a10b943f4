//! The driver library: a configuration and the description of a sandbox become the Kubernetes objects that call the roles.
//!
//! No I/O, nothing random and nothing of the proxy's or the policy engine's: the same inputs give the same bytes. Names
//! that a role reads are in [`crate::contract`]; those of objects in [`names`].

mod check;
pub mod cluster;
mod companion;
pub mod comparison;
pub mod config;
mod container;
pub mod names;
pub mod object;
mod openshift;
mod place;
mod plan;
mod pod;
pub mod pod_security;
pub mod privileges;
pub mod problem;
mod read;
mod resources;
mod role;
pub mod sandbox;
pub mod schema;
mod shape;
mod topology;
mod volume;
mod yaml;

#[cfg(test)]
mod tests;

pub use cluster::{AttestationKey, Cluster, ProxyCa, SandboxApi};
pub use comparison::comparison;
pub use config::{DriverConfig, NetworkEnforcement, Topology};
pub use object::{Object, to_json, to_yaml};
pub use place::{Place, Places};
pub use privileges::privileges;
pub use problem::{Document, Errors, Problem};
pub use sandbox::{SandboxSpec, policy_in};

use plan::Plan;
use problem::{Problems, settle};

/// The objects of one sandbox, in the order in which to create them.
///
/// # Errors
/// Everything that is wrong with the inputs, by themselves and together; then nothing is rendered.
pub fn render(config: &DriverConfig, sandbox: &SandboxSpec, cluster: &Cluster) -> Result<Vec<Object>, Errors> {
    let (of_config, of_sandbox) = (Problems::of(Document::Config), Problems::of(Document::Sandbox));
    check::config(config, &of_config);
    check::sandbox(sandbox, &of_sandbox);
    let plan = Plan::new(config, sandbox, cluster);
    let mut found = of_config.into_found();
    found.extend(of_sandbox.into_found());
    found.extend(check::together(&plan));
    settle(found, ())?;
    Ok(topology::objects(&plan))
}
