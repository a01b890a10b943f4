//! Flags and environment of each role, in clap's terms. Parsing, help, completions and man pages all come from here.
//!
//! What draws a boundary (policy, identity mode, bind addresses, profiles) has no environment variable: an image can
//! bake environment, it cannot change the argv that a driver sets (design §1). Identity and labels have one.

mod access;
mod node;
mod pod;
mod render;
mod sandbox;
mod tools;

pub use access::{AccessDoor, Attach, Connect, Download, Exec, Forward, Logs, Upload};
pub use node::{ChainWay, Cni, CniInstall, MarkNodeReady};
pub use pod::{NetworkInit, ProxyIds, Sideload, Trust, VerifyFence, WaitForTcp, Workspace};
pub use render::{InputSchema, ObjectFormat, Render, SandboxApiVersion};
pub use sandbox::{
    BinaryIdentity, Combined, CombinedFence, Fence, LandlockNet, Network, OnInvalidPolicy, Platform, PolicyOptions,
    Process, Records, RemoteProxy, Run, Sandbox, SeccompProfile, TlsOptions, UpstreamProxy, WorkloadOptions,
};
pub use tools::{Completions, Doctor, Health, Man, Policy, PolicyAction, Request};

use std::net::SocketAddr;
use std::time::Duration;

use crate::policy::host::Host;

/// An address and a port, numbers both.
fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "expected an address and a port, in numbers, such as 127.0.0.1:9090 or [::1]:9090".into())
}

/// A host, in any spelling, and a port.
///
/// # Errors
/// What was expected.
pub fn destination(text: &str) -> Result<(Host, u16), String> {
    let expected = "expected HOST:PORT, such as proxy.example.com:3128 or [::1]:3128";
    let (host, port) = text.rsplit_once(':').ok_or_else(|| format!("there is no port; {expected}"))?;
    let port = port.parse().ok().filter(|&port| port != 0).ok_or_else(|| format!("{port:?} is no port; {expected}"))?;
    let host = Host::parse(host).map_err(|error| format!("{error}; {expected}"))?;
    Ok((host, port))
}

/// A number of seconds, fractions allowed.
fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if Duration::try_from_secs_f64(value).is_ok() => Ok(value),
        _ => Err("expected a number of seconds, such as 30 or 0.5".into()),
    }
}
