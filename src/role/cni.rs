//! `cni`: the plugin that the node's container runtime calls. Root of the node, for a few milliseconds.

use std::io::{Read, Write};

use crate::cli;
use crate::cni::config::CONFIG_BYTES;
use crate::cni::plugin::{self, Reply};

/// Exit code 0 with a result, or 1 with an error, both as JSON on standard output.
pub fn run(_: cli::Cni) -> u8 {
    let mut input = Vec::new();
    // What cannot be read is as good as empty, and answered as that.
    let _ = std::io::stdin().lock().take(CONFIG_BYTES + 1).read_to_end(&mut input);
    let reply = if input.len() as u64 > CONFIG_BYTES {
        plugin::too_long(CONFIG_BYTES)
    } else {
        plugin::serve(&input, |name| std::env::var_os(name))
    };
    answer(&reply)
}

/// An answer that nobody takes is a failure: the runtime must not think that it was served.
fn answer(reply: &Reply) -> u8 {
    let Some(output) = &reply.output else { return reply.exit_code };
    match writeln!(std::io::stdout().lock(), "{output}") {
        Ok(()) => reply.exit_code,
        Err(_) => 1,
    }
}
