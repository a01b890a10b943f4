//! The hidden role: what the supervisor runs of itself to start the workload. No one else starts it.

use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::files;
use crate::contract::exit;
use crate::event::say;
use crate::netns;
use crate::sys::memory;
use crate::sys::process::{self, Side};
use crate::workload::control::{CONTROL_FD, Control, Failure, Report, Request};
use crate::workload::init;
use crate::workload::launch::ORDERS_FD;
use crate::workload::sealed::Sealed;

/// Whether this process was started by [`crate::workload::launch`]: by its only argument, and by descriptor 3, which
/// is the control socket.
#[must_use]
pub fn was_spawned() -> bool {
    use nix::sys::socket::{SockType, getsockopt, sockopt};
    process::adopt(CONTROL_FD).is_ok_and(|socket| {
        let kind = getsockopt(&socket, sockopt::SockType);
        // Asked only: it is still to be adopted.
        let _ = std::os::fd::IntoRawFd::into_raw_fd(socket);
        kind == Ok(SockType::SeqPacket)
    })
}

/// Makes the namespaces, becomes or leaves behind the sandbox's init. The exit code means something only to those who
/// start this by hand: the supervisor is told over the socket.
#[must_use]
pub fn main() -> u8 {
    let control = match Control::inherited() {
        Ok(control) => control,
        Err(error) => {
            say!("openshell-supervisor launch: descriptor {CONTROL_FD}: {error}; this role starts no other way");
            return exit::USAGE;
        }
    };
    match recipe(&control) {
        Ok(()) => 0,
        Err(failure) => {
            let code = failure.code;
            let _ = control.send(&Report::Failed(failure), &[]);
            code
        }
    }
}

fn recipe(control: &Control) -> Result<(), Failure> {
    // What `ps` shows would else be the `exe` of /proc/self/exe.
    prctl::set_name(c"openshell-init").map_err(Failure::setup)?;
    die_with_the_supervisor(control)?;
    process::close_from(ORDERS_FD + 1).map_err(|error| Failure::setup(format!("close_range: {error}")))?;
    let mut separated = None;
    loop {
        match control.receive::<Request>() {
            Ok(Some((Request::Separate(namespaces), _))) if separated.is_none() => {
                separated = Some(netns::separate(namespaces).map_err(Failure::setup)?);
            }
            Ok(Some((Request::SetUp, _))) => break,
            // The supervisor gave up or is gone, and waits for no report.
            Ok(_) | Err(_) => return Ok(()),
        }
    }
    let Sealed { orders, plan } = read_orders()?;
    let handover = match (separated, &orders.isolation) {
        (Some(separated), Some(isolation)) => Some(separated.isolate(isolation).map_err(Failure::setup)?),
        (None, None) => None,
        _ => return Err(Failure::setup(netns::Error::OtherNamespaces)),
    };
    let own_processes = orders.isolation.as_ref().is_some_and(|isolation| isolation.namespaces.pid);
    if own_processes {
        if let (Side::Parent(init), pidfd) =
            process::fork_sibling().map_err(|error| Failure::setup(format!("clone of the init: {error}")))?
        {
            let pidfd = pidfd.as_ref().map(std::os::fd::AsFd::as_fd);
            return control
                .send(&Report::Forked { pid: init.as_raw() }, pidfd.as_slice())
                .map_err(|error| Failure::setup(format!("control socket: {error}")));
        }
        die_with_the_supervisor(control)?;
    } else {
        // If the init died with the supervisor's thread, nobody would be left to end the workload's orphans; it
        // notices the closed socket instead.
        prctl::set_pdeathsig(None).map_err(Failure::setup)?;
        prctl::set_child_subreaper(true).map_err(Failure::setup)?;
    }
    // Not earlier: the kernel gives the map files of a non-dumpable process to root (proc(5)).
    prctl::set_dumpable(false).map_err(Failure::setup)?;
    init::run(control, orders, plan, handover, files::run)
}

fn die_with_the_supervisor(control: &Control) -> Result<(), Failure> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(Failure::setup)?;
    if control.is_abandoned() { Err(Failure::setup("the supervisor is gone")) } else { Ok(()) }
}

fn read_orders() -> Result<Sealed, Failure> {
    let failed = |error: std::io::Error| Failure::setup(format!("orders in descriptor {ORDERS_FD}: {error}"));
    let file = std::fs::File::from(process::adopt(ORDERS_FD).map_err(failed)?);
    memory::map_sealed(&file).and_then(Sealed::read).map_err(failed)
}
