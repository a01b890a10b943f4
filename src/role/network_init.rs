//! `network-init`: what a sidecar pod needs before anything runs in it. Root with NET_ADMIN and CHOWN.

use super::sandbox::{self, Failure};
use crate::cli;
use crate::contract::Ids;
use crate::event::say;
use crate::fence::exempt::Exempt;
use crate::fence::pod;
use crate::volume::directory::Held;
use crate::volume::tls;

/// The shared directory: the proxy makes its control socket there, which gets the sandbox's group by the setgid bit; the
/// workload's side may pass through and read, and not put anything in the socket's place.
const SHARED_MODE: u32 = 0o2750;

/// The proxy's own directory.
const PRIVATE_MODE: u32 = 0o700;

/// Exit code 0 when all of it stands, and the pod may go on.
pub fn run(arguments: cli::NetworkInit) -> u8 {
    sandbox::report(start(&arguments).map_err(|failure| failure.of("network-init")))
}

fn start(arguments: &cli::NetworkInit) -> Result<u8, Failure> {
    let proxy = exempt(arguments)?;
    let owner = proxy.ids();
    refuse_nested(arguments)?;
    let client_tls = tls::read(&arguments.client_tls_dir).map_err(Failure::setup)?;

    let shared = Held::take(&arguments.sidecar_state_dir, owner.uid).map_err(Failure::setup)?;
    let private = Held::take(&arguments.sidecar_tls_dir, owner.uid).map_err(Failure::setup)?;
    tls::lay_out(&private, client_tls.as_ref(), owner).map_err(Failure::setup)?;
    private.give(owner, PRIVATE_MODE).map_err(Failure::setup)?;
    shared.give(Ids { gid: arguments.sandbox_gid, ..owner }, SHARED_MODE).map_err(Failure::setup)?;

    let family = pod::raise(proxy).map_err(Failure::setup)?;
    say!(
        "openshell-supervisor: network-init: the {} fence stands, and lets out {}:{}",
        family.name(),
        owner.uid,
        owner.gid
    );
    Ok(0)
}

fn exempt(arguments: &cli::NetworkInit) -> Result<Exempt, Failure> {
    let proxy = Ids { uid: arguments.proxy.proxy_uid, gid: arguments.proxy.proxy_gid };
    let workload = Ids { uid: arguments.sandbox_uid, gid: arguments.sandbox_gid };
    Exempt::new(proxy, workload)
        .map_err(|unfit| Failure::usage(format!("{unfit} (--proxy-uid, --proxy-gid, --sandbox-uid, --sandbox-gid)")))
}

/// One within the other would have to be open and closed at once.
fn refuse_nested(arguments: &cli::NetworkInit) -> Result<(), Failure> {
    let (shared, private) = (&arguments.sidecar_state_dir, &arguments.sidecar_tls_dir);
    if shared.starts_with(private) || private.starts_with(shared) {
        return Err(Failure::usage(format!(
            "--sidecar-state-dir {} and --sidecar-tls-dir {}: expected two directories of which neither holds the other",
            shared.display(),
            private.display()
        )));
    }
    Ok(())
}
