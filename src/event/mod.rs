//! Security events, their OCSF and one-line forms, metrics, and the admin listener that shows both.
//!
//! A mechanism that allows, refuses or notices something says so by [`Events::emit`]; what becomes of it (a JSON line,
//! a line on stderr, a counter) is decided here and nowhere else.

/// A line for people on standard error. Whoever read it may have gone, which `eprintln!` takes for a reason to panic; nothing
/// that goes on depends on being read.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// The same on standard output.
macro_rules! show {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

pub(crate) use {say, show};

mod line;
mod ocsf;
mod sink;
mod writer;

pub mod admin;
pub mod metrics;
pub mod redact;
pub mod time;

pub use line::misleads;
pub use sink::{Destination, Events, EventsConfig, LogLevel, SandboxIdentity, UnknownLevel};

use std::net::IpAddr;
use std::sync::Arc;

/// How bad it is; the numbers are OCSF's `severity_id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Things going as they should.
    Informational = 1,
    /// A refusal that policy asked for.
    Low = 2,
    /// Something that an operator should look at.
    Medium = 3,
    /// A protection that is not in force, or an attempt to get around one.
    High = 4,
    /// The sandbox cannot do its job.
    Critical = 5,
}

/// Whether what was asked for happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// It was let through.
    Allowed,
    /// It was refused.
    Denied,
    /// A rule refuses it, and its endpoint says to let it through and tell.
    Audited,
}

/// Where on its way a connection was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// A CONNECT request.
    Connect,
    /// An absolute-form HTTP request.
    Forward,
    /// A request inside a connection that was allowed.
    Request,
    /// TLS with the client or the origin of an inspected connection.
    Tls,
    /// Reading the request, before there was anything to decide.
    Parse,
    /// Who owns the connection.
    Attribution,
    /// The destination guard, after resolving.
    Destination,
    /// Resolving or dialling what was allowed.
    Dial,
    /// A packet that tried to go around the proxy.
    Bypass,
    /// An open tunnel that a new policy generation no longer allows.
    Reload,
}

/// A program as events name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Actor {
    /// Path of its executable.
    pub binary: Option<String>,
    /// Process id, in the workload's PID namespace where it has one.
    pub pid: Option<u32>,
    /// User id that owns the socket.
    pub uid: Option<u32>,
}

/// An upstream proxy as events name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Via {
    /// Its name, or its address where that is all it was given.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl std::fmt::Display for Via {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&line::destination(&self.host, self.port))
    }
}

/// OCSF Network Activity (4001), and HTTP Activity (4002) when `http` is set.
#[derive(Clone, Debug)]
pub struct NetworkActivity {
    /// Allowed or denied.
    pub disposition: Disposition,
    /// Where it was judged.
    pub stage: Stage,
    /// Destination as the client named it, canonical where it could be read.
    pub host: String,
    /// Destination port; 0 where the protocol has none.
    pub port: u16,
    /// Address dialled, or tried.
    pub address: Option<IpAddr>,
    /// The upstream proxy that it went through, or was to.
    pub via: Option<Arc<Via>>,
    /// `tcp`, `udp`, `icmp`, `icmpv6`, or the number.
    pub protocol: String,
    /// Who asked.
    pub actor: Actor,
    /// Entry of `network_policies` that decided.
    pub policy: Option<String>,
    /// Why it was refused, or what is remarkable.
    pub reason: Option<String>,
    /// How often this happened since it was last reported; 1 for a single happening.
    pub count: u64,
    /// The request, where the stage reads one.
    pub http: Option<HttpRequestFacts>,
}

/// What an HTTP event adds.
#[derive(Clone, Debug)]
pub struct HttpRequestFacts {
    /// Request method.
    pub method: String,
    /// Path and query, with placeholders for what looks like a credential ([`redact`]).
    pub path: String,
    /// It came in TLS.
    pub secure: bool,
    /// Status answered, where one was.
    pub status: Option<u16>,
}

/// OCSF Process Activity (1007): the workload's start and end.
#[derive(Clone, Debug)]
pub struct ProcessActivity {
    /// What happened.
    pub activity: ProcessStep,
    /// Command line of the workload: its first word only, since arguments may hold secrets.
    pub command: String,
    /// Process id, in the workload's PID namespace where it has one.
    pub pid: Option<u32>,
}

/// A step of the workload's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessStep {
    /// It runs.
    Launched,
    /// It ended, with this exit code as the supervisor will report it.
    Exited(u8),
}

/// OCSF SSH Activity (4007): who came in by the access server, and for what.
#[derive(Clone, Debug)]
pub struct SshActivity {
    /// What was asked for.
    pub step: SshStep,
    /// Whether it happened.
    pub outcome: SshOutcome,
    /// Who asked: a process beside the sandbox.
    pub actor: Actor,
    /// How often since it was last reported; 1 for a single happening.
    pub count: u64,
}

/// What became of what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SshOutcome {
    /// It happened, or has begun.
    Done,
    /// It was not let happen, for this reason.
    Refused(String),
    /// It was let happen, and came to nothing, or not to all that it should have.
    Failed(String),
}

/// What people do with the access server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SshStep {
    /// Came in.
    Opened,
    /// Left.
    Closed,
    /// Ran a program.
    Ran {
        /// Its first word only, since arguments may hold secrets; `None` for a shell.
        command: Option<String>,
        /// Whether it has a terminal.
        terminal: bool,
        /// Process id, as the sandbox sees it; `None` where it was not started.
        pid: Option<u32>,
        /// How it ended, as an exit code; `None` at its start.
        ended: Option<u8>,
    },
    /// Carried files: by what protocol, and the path where the client has named it at the start.
    Carried {
        /// That.
        what: String,
        /// Whether this is the end of it.
        over: bool,
    },
    /// Read or wrote one file, in the course of carrying.
    Passed {
        /// Its path in the sandbox, as the client named it.
        path: String,
        /// Bytes that came out of it.
        read: u64,
        /// Bytes that went into it.
        written: u64,
    },
    /// Connected to something that listens inside.
    Forwarded {
        /// Where.
        host: String,
        /// The port.
        port: u32,
    },
    /// Asked for something else, by this name.
    Asked(String),
}

/// OCSF Detection Finding (2004): a state of the sandbox that someone should know about.
#[derive(Clone, Debug)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// Stable kebab-case name, for filters and metrics: `landlock-not-enforced`.
    pub kind: &'static str,
    /// The sentence for people, with cause and remedy.
    pub message: String,
}

/// Something worth recording.
#[derive(Clone, Debug)]
pub enum Event {
    /// Traffic let through or refused.
    Network(NetworkActivity),
    /// The workload started or ended.
    Process(ProcessActivity),
    /// Somebody came in, or did something there.
    Ssh(SshActivity),
    /// A state of the sandbox.
    Finding(Finding),
}
