//! What the reader of a denial can do: the lines of policy that would allow what was refused.

use super::decision::Question;
use super::{Endpoint, NetworkPolicy, Policy};

/// The closest that a policy comes to allowing a question.
enum Missing<'p> {
    /// No entry names the host.
    Destination,
    /// This endpoint names the host, with other ports.
    Port(&'p NetworkPolicy, &'p Endpoint),
    /// This entry covers host and port, for other programs.
    Program(&'p NetworkPolicy),
}

fn missing<'p>(policy: &'p Policy, question: Question<'_>) -> Missing<'p> {
    let mut closest = Missing::Destination;
    for entry in &policy.network {
        for endpoint in &entry.endpoints {
            if !endpoint.host.as_ref().is_some_and(|host| host.matches(question.host)) {
                continue;
            }
            if endpoint.ports.contains(&question.port) {
                return Missing::Program(entry);
            }
            if matches!(closest, Missing::Destination) {
                closest = Missing::Port(entry, endpoint);
            }
        }
    }
    closest
}

/// Steps towards allowing `question`, most useful first. `shipped` says that the rules are ours, so that adding the
/// lines is known to suffice.
pub(super) fn next_steps(policy: &Policy, question: Question<'_>, shipped: bool) -> Vec<String> {
    let Question { host, port, program } = question;
    let host_text = scalar(&host.to_string());
    let binary = program.map(|program| scalar(&program.executable.path));
    let mut steps = Vec::new();
    match missing(policy, question) {
        Missing::Destination => {
            let name = entry_name(&host.to_string());
            let binaries = binary.map(|path| format!(", binaries: [{{path: {path}}}]")).unwrap_or_default();
            steps.push(format!(
                "add under network_policies: {name}: {{endpoints: [{{host: {host_text}, port: {port}}}]{binaries}}}"
            ));
        }
        Missing::Port(entry, endpoint) => {
            let key = scalar(&entry.key);
            let mut ports: Vec<String> = endpoint.ports.iter().map(u16::to_string).collect();
            ports.push(port.to_string());
            let host = endpoint.host.as_ref().map(|host| scalar(&host.to_string())).unwrap_or(host_text);
            let ports = ports.join(", ");
            steps.push(format!("in network_policies.{key}.endpoints, write: {{host: {host}, ports: [{ports}]}}"));
        }
        Missing::Program(entry) => {
            let key = scalar(&entry.key);
            match binary {
                Some(path) => steps.push(format!("add under network_policies.{key}.binaries: - path: {path}")),
                None => steps.push(
                    "the connection's program could not be identified: connect from a process inside the sandbox"
                        .to_owned(),
                ),
            }
            if let Some(program) = program
                && let Some(first) = entry.binaries.first()
                && !first.contains('*')
            {
                steps.push(format!("or let {first} make the connection instead of {}", program.executable.path));
            }
        }
    }
    if !shipped {
        steps.push("the operator's own rules decide here and may ask for more than the policy's entries".to_owned());
    }
    steps
}

/// A name for a new entry.
fn entry_name(host: &str) -> String {
    let name: String = host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    scalar(&name)
}

/// A YAML flow scalar: plain where that is safe, else quoted the JSON way, which YAML shares.
fn scalar(text: &str) -> String {
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-' | b'+'));
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
