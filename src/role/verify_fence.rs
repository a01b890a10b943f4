//! `verify-fence`: proves that the fence holds, or keeps the pod in Init. Runs as the workload will, with no privilege.

use std::time::Duration;

use nix::unistd::{getegid, geteuid};

use super::sandbox::{self, Failure};
use crate::cli;
use crate::fence::proof;

/// Exit code 0 on proof; 1 without one, with the reason in one line on stderr.
pub fn run(arguments: cli::VerifyFence) -> u8 {
    sandbox::report(start(&arguments))
}

fn start(arguments: &cli::VerifyFence) -> Result<u8, Failure> {
    refuse_the_proxys_ids(&arguments.proxy)?;
    match proof::within(Duration::from_secs_f64(arguments.timeout)) {
        Ok(proof) => {
            eprintln!("openshell-supervisor: verify-fence: proven: {proof}");
            Ok(0)
        }
        Err(doubt) => {
            eprintln!(
                "openshell-supervisor: verify-fence: not proven within {} s: {doubt}; is network-init or the CNI plugin in \
                 this pod's chain?",
                arguments.timeout
            );
            Ok(1)
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
