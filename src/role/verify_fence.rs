//! `verify-fence`: proves that the fence holds, or lets the pod go no further than Init. Runs as the workload will, with no privilege.

use std::fmt::Display;
use std::time::Duration;

use nix::unistd::{getegid, geteuid};

use super::init_container;
use super::proxy;
use super::sandbox::{self, Failure};
use super::workload::variable;
use crate::cli;
use crate::contract::env;
use crate::egress::Resolver;
use crate::event::say;
use crate::fence::proof::{self, policy};
use crate::policy::host::Host;

/// Exit code 0 on proof; 1 without one, with the reason in one line on stderr.
pub fn run(arguments: cli::VerifyFence) -> u8 {
    sandbox::report(start(&arguments).map_err(|failure| failure.of("verify-fence")))
}

fn start(arguments: &cli::VerifyFence) -> Result<u8, Failure> {
    init_container::ends_when_told("verify-fence");
    if arguments.network_policy {
        return network_policy(arguments);
    }
    refuse_the_proxys_ids(&arguments.proxy)?;
    let proof = proof::within(Duration::from_secs_f64(arguments.timeout));
    Ok(tell(arguments, proof, "; is network-init or the CNI plugin in this pod's chain?"))
}

fn tell(arguments: &cli::VerifyFence, proof: Result<impl Display, impl Display>, remedy: &str) -> u8 {
    match proof {
        Ok(proof) => {
            say!("openshell-supervisor: verify-fence: proven: {proof}");
            0
        }
        Err(doubt) => {
            say!("openshell-supervisor: verify-fence: not proven within {} s: {doubt}{remedy}", arguments.timeout);
            1
        }
    }
}

/// What the proxy cannot do proves nothing.
fn refuse_the_proxys_ids(proxy: &cli::ProxyIds) -> Result<(), Failure> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    if uid == proxy.proxy_uid || gid == proxy.proxy_gid {
        return Err(Failure::usage(format!(
            "this runs as {uid}:{gid}, and {}:{} is the proxy, whom the fence lets out: run it as the workload's uid and gid",
            proxy.proxy_uid, proxy.proxy_gid
        )));
    }
    Ok(())
}

/// The cluster's fence goes by pods and not by users, so that anybody's attempt counts.
fn network_policy(arguments: &cli::VerifyFence) -> Result<u8, Failure> {
    let place = |(host, port): &(Host, u16)| policy::Place { host: host.clone(), port: *port };
    let mut canaries: Vec<policy::Place> = arguments.canary.iter().map(place).collect();
    if !arguments.api_server_allowed {
        canaries.extend(api_server()?);
    }
    let controls: Vec<policy::Place> = arguments.control.iter().map(place).collect();
    let runtime = proxy::runtime().map_err(Failure::setup)?;
    // Anew for each try: an earlier answer, or an earlier absence, may be what the wait is about.
    let resolve = |name: &str| runtime.block_on(Resolver::default().resolve(name)).map_err(|error| error.to_string());
    let plan = policy::Plan { canaries: &canaries, controls: &controls, resolve: &resolve };
    Ok(tell(arguments, policy::within(Duration::from_secs_f64(arguments.timeout), &plan), ""))
}

/// The API server, where the kubelet says where it is: in every cluster, always there, and nothing that a workload needs.
fn api_server() -> Result<Option<policy::Place>, Failure> {
    let (Some(host), Some(port)) = (variable(env::API_SERVER_HOST), variable(env::API_SERVER_PORT)) else {
        return Ok(None);
    };
    let place = Host::parse(&host).ok().zip(port.parse().ok());
    place.map(|(host, port)| Some(policy::Place { host, port })).ok_or_else(|| {
        Failure::setup(format!(
            "{}={host:?} and {}={port:?}: expected an address and a port; the kubelet sets both",
            env::API_SERVER_HOST,
            env::API_SERVER_PORT
        ))
    })
}
