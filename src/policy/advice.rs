//! What the reader of a denial can do: the lines of policy that would allow what was refused.

use std::borrow::Cow;

use super::address;
use super::decision::Question;
use super::{Endpoint, NetworkPolicy};

/// Names tried for a new entry: hosts that differ in marks alone are few.
const MAX_NAMES: usize = 100;

/// The closest that a policy comes to allowing a question.
enum Missing<'p> {
    /// No entry names the host.
    Destination,
    /// The endpoint of this index names the host, with other ports.
    Port(&'p NetworkPolicy, usize, &'p Endpoint),
    /// This entry covers host and port, for other programs.
    Program(&'p NetworkPolicy),
}

/// What the entry that came closest lacks. The whole policy is not searched: a workload can ask for refusals at will.
fn missing<'p>(question: Question<'_>, closest: Option<&'p NetworkPolicy>) -> Missing<'p> {
    let Some(entry) = closest else { return Missing::Destination };
    let names = |endpoint: &Endpoint| endpoint.host.as_ref().is_none_or(|host| host.matches(question.host));
    let mut endpoints = entry.endpoints.iter().enumerate().filter(|(_, endpoint)| names(endpoint));
    let Some((at, first)) = endpoints.next() else { return Missing::Destination };
    if first.ports.contains(&question.port) || endpoints.any(|(_, endpoint)| endpoint.ports.contains(&question.port)) {
        return Missing::Program(entry);
    }
    Missing::Port(entry, at, first)
}

/// Steps towards allowing `question`, most useful first. `closest` is the entry that the engine named; `shipped` says
/// that the rules are ours, so that adding the lines is known to suffice; `taken`, which keys the policy has.
pub(super) fn next_steps(
    question: Question<'_>,
    closest: Option<&NetworkPolicy>,
    shipped: bool,
    taken: impl Fn(&str) -> bool,
) -> Vec<String> {
    let Question { host, port, program } = question;
    // Lines that would be added in vain are no advice.
    if let Some(kind) = address::never_dialled(host) {
        return vec![format!("{host} is never dialled ({kind}): {}", address::instead(kind))];
    }
    let host_text = scalar(&host.to_string()).into_owned();
    let mut steps = Vec::new();
    // A workload chooses how its programs are called, and would be given more than itself.
    let pattern = program.filter(|program| program.executable.path.contains('*'));
    if let Some(program) = pattern {
        let path = scalar(&program.executable.path);
        steps.push(format!("rename {path}: a policy would read the * in it as a pattern for other programs too"));
        return steps;
    }
    let binary = program.map(|program| scalar(&program.executable.path));
    match missing(question, closest) {
        Missing::Destination => {
            let name = entry_name(&host.to_string(), taken);
            let binaries = binary.map(|path| format!(", binaries: [{{path: {path}}}]")).unwrap_or_default();
            steps.push(format!(
                "add under network_policies: {name}: {{endpoints: [{{host: {host_text}, port: {port}}}]{binaries}}}"
            ));
        }
        Missing::Port(entry, at, endpoint) => {
            let key = scalar(&entry.key);
            let mut ports: Vec<String> = endpoint.ports.iter().map(u16::to_string).collect();
            ports.push(port.to_string());
            let ports = ports.join(", ");
            // Whatever else it says holds for the new one too.
            steps.push(format!(
                "in network_policies.{key}.endpoints[{at}], write ports: [{ports}] in place of its port or ports"
            ));
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
                && !first.path.contains('*')
            {
                let first = &first.path;
                steps.push(format!("or let {first} make the connection instead of {}", program.executable.path));
            }
        }
    }
    if !shipped {
        steps.push("the operator's own rules decide here and may ask for more than the policy's entries".to_owned());
    }
    steps
}

/// A name for a new entry, which no other has.
fn entry_name(host: &str, taken: impl Fn(&str) -> bool) -> String {
    let base: String = host.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let numbered = (2..MAX_NAMES).map(|number| format!("{base}_{number}"));
    let name = std::iter::once(base.clone()).chain(numbered).find(|name| !taken(name)).unwrap_or(base);
    scalar(&name).into_owned()
}

/// A YAML flow scalar: plain where that is safe, else quoted the JSON way, which YAML shares.
pub(super) fn scalar(text: &str) -> Cow<'_, str> {
    // What some version of YAML reads as something else than text (1.1's types `bool` and `null`).
    const WORDS: [&str; 9] = ["true", "false", "yes", "no", "on", "off", "y", "n", "null"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && !WORDS.iter().any(|word| text.eq_ignore_ascii_case(word))
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'_' | b'-' | b'+'));
    if plain { text.into() } else { serde_json::Value::from(text).to_string().into() }
}
