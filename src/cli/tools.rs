//! Tools for people: `policy`, `doctor`, `health`, `completions`, `man`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, ValueHint};

use super::{address, seconds};

/// Check a policy file, or explain what it decides.
#[derive(Debug, Parser)]
#[command(name = "policy", arg_required_else_help = true)]
pub struct Policy {
    /// What to do
    #[command(subcommand)]
    pub action: PolicyAction,
}

/// What `policy` does.
#[derive(Debug, clap::Subcommand)]
pub enum PolicyAction {
    /// Validate policy files; every problem is told at once, with line and column
    Check {
        /// The policy files; `-` is standard input
        #[arg(value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
        files: Vec<PathBuf>,
    },
    /// Tell what a policy decides for one connection, by which entry, or what is missing
    ///
    /// Exit code 0 where it is allowed, 1 where it is denied, 3 where the body would decide that was not given.
    Explain {
        /// The policy file
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
        /// Destination host
        #[arg(long)]
        host: String,
        /// Destination port
        #[arg(long)]
        port: u16,
        /// Absolute path of the program that connects; without one the question is whether any may
        #[arg(long, value_name = "PATH")]
        binary: Option<String>,
        /// Path of a parent of that program, nearest first; may be repeated
        #[arg(long = "ancestor", value_name = "PATH")]
        ancestors: Vec<String>,
        /// Rego that replaces the built-in decision
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        policy_rules: Option<PathBuf>,
        /// A request on that connection
        #[command(flatten)]
        request: Request,
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
}

/// A request that `policy explain` is asked about.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "A request on that connection")]
pub struct Request {
    /// Method of an HTTP request, or of the gRPC service given by --service; WEBSOCKET_TEXT and WEBSOCKET_BINARY ask about
    /// messages on a WebSocket at --path
    #[arg(long, value_name = "METHOD")]
    pub method: Option<String>,
    /// Path of the request, as it is sent; with --rpc or --tool the endpoint's own, where it has only one
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// A part of its query; may be repeated
    #[arg(long = "query", value_name = "KEY=VALUE")]
    pub query: Vec<String>,
    /// Method of a JSON-RPC or MCP call
    #[arg(long, value_name = "METHOD", conflicts_with_all = ["method", "service"])]
    pub rpc: Option<String>,
    /// Tool of an MCP call
    #[arg(long, value_name = "NAME", conflicts_with_all = ["method", "service"])]
    pub tool: Option<String>,
    /// Document of a GraphQL operation, sent by POST or in a message on a WebSocket
    #[arg(long, value_name = "DOCUMENT", conflicts_with_all = ["rpc", "tool", "service"])]
    pub graphql: Option<String>,
    /// Service of a gRPC call, package first
    #[arg(long, value_name = "NAME", requires = "method", conflicts_with = "path")]
    pub service: Option<String>,
}

/// Tell what this kernel and user can do, then prove the confinement by trying to get out of it.
///
/// Exit code 1 when anything that should hold does not.
#[derive(Debug, Parser)]
#[command(name = "doctor")]
pub struct Doctor {
    /// Answer in JSON
    #[arg(long)]
    pub json: bool,
    /// How `doctor` calls itself as the workload
    #[arg(long, value_name = "BAIT", hide = true)]
    pub from_inside: Option<String>,
}

/// Ask a role's admin listener whether it is ready, for probes: exit 0 or 1.
#[derive(Debug, Parser)]
#[command(name = "health")]
pub struct Health {
    /// Where the role serves: its --admin-bind
    #[arg(value_name = "ADDRESS:PORT", value_parser = address)]
    pub address: SocketAddr,
    /// Ask for life instead of readiness
    #[arg(long)]
    pub live: bool,
    /// How long to wait for the answer
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub timeout: f64,
}

/// Print a shell's completion script.
#[derive(Debug, Parser)]
#[command(name = "completions")]
pub struct Completions {
    /// Which shell
    pub shell: clap_complete::Shell,
}

/// Print the manual page of the program, or of one role.
#[derive(Debug, Parser)]
#[command(name = "man")]
pub struct Man {
    /// A role's name, or a page that another one names, such as policy-check; without one, the program's own page
    pub role: Option<String>,
}
