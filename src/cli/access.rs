//! What speaks to a running sandbox: `connect`, `exec`, `attach`, `logs`, `upload`, `download`, `forward`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, ValueHint};

use crate::access::Place;
use crate::contract::{SSH_SOCKET, env};

/// The door of a running sandbox.
#[derive(Args, Debug)]
pub struct AccessDoor {
    /// The sandbox's --ssh-socket-path: a path, or `@NAME` for an abstract socket
    #[arg(long, value_name = "PATH|@NAME", env = env::SSH_SOCKET_PATH, default_value = SSH_SOCKET)]
    pub ssh_socket_path: Place,
}

/// Join standard input and output to a sandbox's access server, for an SSH client's ProxyCommand.
///
/// Nothing is asked and nothing printed: what comes out is SSH. Whoever runs inside the sandbox is not let in.
#[derive(Debug, Parser)]
#[command(name = "connect", after_help = CONNECT_EXAMPLES)]
pub struct Connect {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
}

const CONNECT_EXAMPLES: &str = "\
Examples:
  ssh -o ProxyCommand='openshell-supervisor connect --ssh-socket-path /run/user/1000/box.sock' \\
      -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null sandbox@box
  ssh -o ProxyCommand='kubectl exec -i POD -- openshell-supervisor connect' \\
      -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null sandbox@POD
The sandbox has a new host key with every start, so there is none to remember. Who is at the other end is told by the way there:
only the socket's owner can listen on its path, and only the API server's answer comes back from kubectl.";

/// Run a command in a running sandbox, confined as its workload is.
///
/// Words stay as they are given, whatever the sandbox's shell. Without a command it is a login shell. Ends with the
/// command's exit code, or 128 and the number of the signal that ended it.
#[derive(Debug, Parser)]
#[command(name = "exec")]
pub struct Exec {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// Give the command a terminal
    #[arg(short, long)]
    pub tty: bool,
    /// The command and its arguments
    #[arg(value_name = "CMD", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub command: Vec<OsString>,
}

/// Attach to a running sandbox's main process: what it has said of late, then all that it says, and what is typed is its input.
///
/// Where the main process has a terminal, every key is its own, but for Ctrl-P Ctrl-Q, which detaches; otherwise Ctrl-C does.
/// The main process runs on then. One may type at a time, whoever comes later watches. Ends with the main process's exit code,
/// or 128 and the number of the signal that ended it; with 0 once detached.
#[derive(Debug, Parser)]
#[command(name = "attach")]
pub struct Attach {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
}

/// Print what a running sandbox's main process has said of late, errors to standard error.
///
/// The newest mebibyte is kept. Exit code 1 if something was missed while it was followed, which is told.
#[derive(Debug, Parser)]
#[command(name = "logs")]
pub struct Logs {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// Go on with what it says, until it ends
    #[arg(short, long)]
    pub follow: bool,
}

/// Copy files and directories into a running sandbox, with the rights of its workload.
///
/// Each arrives under its own name; a file takes its place when it is whole. Links are copied as links; what is no file,
/// directory or link is left out and told. Exit code 1 if anything was left out.
#[derive(Debug, Parser)]
#[command(name = "upload")]
pub struct Upload {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// The sandbox's directory to put them in, made if it is not there; the workload's own unless named
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub into: PathBuf,
    /// What to copy
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
}

/// Copy files and directories out of a running sandbox, with the rights of its workload.
///
/// Each arrives under its own name; a file takes its place when it is whole, and nothing of an archive leads out of the
/// directory. Exit code 1 if anything was left out.
#[derive(Debug, Parser)]
#[command(name = "download")]
pub struct Download {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// The directory to put them in, made if it is not there; the current one unless named
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    pub into: PathBuf,
    /// What to copy, as the sandbox names it
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
}

/// Make a port of a running sandbox reachable on this side's loopback.
///
/// Only what listens on the sandbox's own loopback can be reached, and on this side only loopback listens: 127.0.0.1, and ::1
/// where there is one. Ends when the sandbox ends, with exit code 125.
#[derive(Debug, Parser)]
#[command(name = "forward")]
pub struct Forward {
    /// Where the sandbox listens
    #[command(flatten)]
    pub door: AccessDoor,
    /// The port here, and the one in the sandbox; 0 here is any that is free, and PORT alone is the same on both sides
    #[arg(value_name = "[LOCAL:]PORT", value_parser = two_ports)]
    pub ports: (u16, u16),
}

/// The port on this side, and the one inside.
fn two_ports(text: &str) -> Result<(u16, u16), String> {
    let (local, port) = text.split_once(':').unwrap_or((text, text));
    match (local.parse(), port.parse()) {
        (Ok(local), Ok(port)) if port != 0 => Ok((local, port)),
        _ => Err("expected PORT or LOCAL:PORT, such as 8080 or 18080:8080".into()),
    }
}
