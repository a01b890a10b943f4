//! What roles that run to their end in an init container have in common.

use nix::sys::signal::{SigSet, Signal};

use crate::contract::exit;
use crate::event::say;
use crate::sys::process;

/// Lets TERM and INT end this process, which as the first of a container they do not by themselves (pid_namespaces(7)). To be
/// called before there is another thread, since those take the mask over.
pub fn ends_when_told(role: &'static str) {
    let told: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    // What cannot be had is a quicker end: the runtime kills once its patience is over.
    if told.thread_block().is_err() {
        return;
    }
    std::thread::spawn(move || {
        if let Ok(signal) = told.wait() {
            say!("openshell-supervisor: {role}: ended by signal {}", signal as i32);
            process::exit_now(exit::SIGNAL_BASE + signal as u8);
        }
    });
}
