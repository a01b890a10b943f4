//! `wait-for-tcp`: keeps an init container until HOST:PORT accepts connections.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout_at};

use super::proxy;
use super::sandbox::{self, Failure};
use crate::cli;
use crate::contract::exit;
use crate::egress::reach::reach;
use crate::event::say;
use crate::policy::host::Host;

/// Between two tries. A service that comes up is found soon enough, and name servers are not flooded.
const PAUSE: Duration = Duration::from_millis(500);

/// Exit code 0 once the destination accepts, 1 when time is up, 128+n when signal n ended the wait.
pub fn run(arguments: cli::WaitForTcp) -> u8 {
    let runtime = match proxy::runtime() {
        Ok(runtime) => runtime,
        Err(error) => return sandbox::report(Err(Failure::setup(format!("wait-for-tcp: {error}")))),
    };
    sandbox::report(runtime.block_on(wait_or_be_told_to_end(&arguments)))
}

/// The first process of a container has no signal that ends it by itself (pid_namespaces(7)).
async fn wait_or_be_told_to_end(arguments: &cli::WaitForTcp) -> Result<u8, Failure> {
    let handler = |kind| signal(kind).map_err(|error| Failure::setup(format!("signal handlers: {error}")));
    let mut terminate = handler(SignalKind::terminate())?;
    let mut interrupt = handler(SignalKind::interrupt())?;
    let told = tokio::select! {
        code = wait(arguments) => return Ok(code),
        _ = terminate.recv() => SignalKind::terminate(),
        _ = interrupt.recv() => SignalKind::interrupt(),
    };
    say!("openshell-supervisor: wait-for-tcp: ended by signal {}", told.as_raw_value());
    Ok(exit::SIGNAL_BASE + u8::try_from(told.as_raw_value()).unwrap_or_default())
}

async fn wait(arguments: &cli::WaitForTcp) -> u8 {
    let (host, port) = &arguments.destination;
    let destination = match host {
        Host::Name(name) => format!("{name}:{port}"),
        Host::Address(address) => SocketAddr::new(*address, *port).to_string(),
    };
    let started = Instant::now();
    let deadline = started + Duration::from_secs_f64(arguments.timeout);
    let mut last = None;
    let mut tries = 0_u32;
    loop {
        tries += 1;
        // However short the wait: one try is one.
        let until = if tries == 1 { deadline.max(started + PAUSE) } else { deadline };
        match timeout_at(until, reach(host, *port)).await {
            Ok(Ok(address)) => {
                let took = started.elapsed().as_secs_f64();
                say!(
                    "openshell-supervisor: wait-for-tcp: {destination} accepts at {address}, after {took:.1} s (try {tries})"
                );
                return 0;
            }
            Ok(Err(error)) => last = Some(error.to_string()),
            Err(_) => {}
        }
        if timeout_at(deadline, sleep(PAUSE)).await.is_err() {
            let last = last.unwrap_or_else(|| "no answer, neither from a name server nor from an address".into());
            say!(
                "openshell-supervisor: wait-for-tcp: {destination} accepted nothing within {} s (try {tries}); last: {last}",
                arguments.timeout
            );
            return 1;
        }
    }
}
