//! Learning: everything is allowed and written down, and at the end becomes the narrowest policy that would have allowed
//! the same. Only what was seen is in it; whether it should be is for its reader to say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use super::authorize::Owner;
use super::intent::Intent;
use crate::policy::{Policy, request};

/// Rules of one endpoint. A client that makes up paths (package files, object stores) soon has more, and a list that
/// nobody reads is no policy: its methods are then allowed on every path, and a comment says so.
const MAX_RULES: usize = 64;

/// Endpoints in all: beyond them nothing more is learned, which is said.
const MAX_ENDPOINTS: usize = 2048;

/// Whose connections are where programs do not count.
const EVERY_PROGRAM: &str = "**";

/// How a request was made, as far as the policy tells such apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Manner {
    /// Answered once.
    Plain,
    /// It became a WebSocket.
    WebSocket,
}

/// What was seen of one destination.
#[derive(Debug, Default)]
struct Seen {
    /// Bytes that are no HTTP went through.
    opaque: bool,
    requests: BTreeSet<(Manner, String, String)>,
    /// Methods whose paths were too many.
    crowded: BTreeSet<(Manner, String)>,
    /// What no rule can allow: asked for, passed, and not in the policy.
    unwritable: BTreeSet<(String, String)>,
    /// Some path has an escaped slash.
    encoded_slash: bool,
}

#[derive(Debug, Default)]
struct Notes {
    /// By program, then destination.
    programs: BTreeMap<String, BTreeMap<(String, u16), Seen>>,
    endpoints: usize,
    overflowed: bool,
    /// Destinations that a connection was made to: the others may be misspelt, or nowhere.
    reached: BTreeSet<(String, u16)>,
}

/// Writes down what passes.
#[derive(Debug, Default)]
pub struct Learner(Mutex<Notes>);

impl Learner {
    /// A connection to this destination was made.
    pub(super) fn reached(&self, intent: &Intent) {
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.reached.len() < MAX_ENDPOINTS {
            notes.reached.insert((intent.host.to_string(), intent.port));
        }
    }

    /// Something that no rule could judge went to this destination.
    pub(super) fn opaque(&self, owner: &Owner, intent: &Intent) {
        self.with(owner, intent, |seen| seen.opaque = true);
    }

    /// A request was made.
    pub(super) fn request(&self, owner: &Owner, intent: &Intent, manner: Manner, method: &str, target: &str) {
        let path = target.split('?').next().unwrap_or_default();
        self.with(owner, intent, |seen| {
            let kind = (manner, method.to_owned());
            if seen.crowded.contains(&kind) {
                return;
            }
            let named = method.bytes().all(|byte| byte.is_ascii_alphabetic() || byte == b'-');
            let Some((path, encoded_slash)) = request::literal(path).filter(|_| named) else {
                if seen.unwritable.len() < MAX_RULES {
                    seen.unwritable.insert((method.to_owned(), path.to_owned()));
                }
                return;
            };
            seen.encoded_slash |= encoded_slash;
            seen.requests.insert((manner, method.to_owned(), path));
            if seen.requests.len() > MAX_RULES {
                seen.requests.retain(|(manner, method, _)| (*manner, method.as_str()) != (kind.0, kind.1.as_str()));
                seen.crowded.insert(kind);
            }
        });
    }

    fn with(&self, owner: &Owner, intent: &Intent, note: impl FnOnce(&mut Seen)) {
        let program = owner.binary().unwrap_or_else(|| EVERY_PROGRAM.to_owned());
        let destination = (intent.host.to_string(), intent.port);
        let mut notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = notes.programs.get(&program).is_some_and(|seen| seen.contains_key(&destination));
        if !known {
            if notes.endpoints == MAX_ENDPOINTS {
                notes.overflowed = true;
                return;
            }
            notes.endpoints += 1;
        }
        note(notes.programs.entry(program).or_default().entry(destination).or_default());
    }

    /// The policy that was learned, as YAML. Of `granted`, under which the program ran, the paths are taken over: what it did
    /// it did with them.
    #[must_use]
    pub fn policy(&self, program: &str, granted: Option<&Policy>) -> String {
        let notes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut yaml = String::new();
        // The program alone: arguments may hold secrets.
        let program: String = program.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let _ = writeln!(
            yaml,
            "# What `{program}` did under `run --learn`. Read it before you use it: what was seen once is allowed for good."
        );
        yaml.push_str("# Queries and bodies are not looked at: a POST to an MCP, JSON-RPC or GraphQL path allows all that can be\n");
        yaml.push_str("# said there, and a path with query all of its queries. Add `query` matchers, or a protocol that reads bodies,\n");
        yaml.push_str("# where that matters. Paths are literal; shorten them with * (within a segment) and ** (across) where names\n");
        yaml.push_str("# in them change.\n");
        if notes.overflowed {
            let _ = writeln!(yaml, "# More than {MAX_ENDPOINTS} destinations were seen: the later ones are missing.");
        }
        let is_reached = |destination: &(String, u16)| notes.reached.contains(destination);
        for (program, destinations) in &notes.programs {
            for (host, port) in destinations.keys().filter(|destination| !is_reached(destination)) {
                let (program, host) = (quoted(program), quoted(host));
                let _ = writeln!(
                    yaml,
                    "# Left out, since no connection to it could be made: {program} to {host}, port {port}"
                );
            }
        }
        yaml.push_str("version: 1\n");
        let paths: Vec<(&str, Vec<String>)> = granted.map(Policy::named_paths).into_iter().flatten().collect();
        if !paths.is_empty() {
            yaml.push_str("filesystem_policy:\n  include_workdir: true\n");
        }
        for (key, paths) in paths {
            let _ =
                writeln!(yaml, "  {key}: [{}]", paths.iter().map(|path| quoted(path)).collect::<Vec<_>>().join(", "));
        }
        if !notes.programs.values().flat_map(BTreeMap::keys).any(is_reached) {
            yaml.push_str("# Nothing went out.\nnetwork_policies: {}\n");
            return yaml;
        }
        yaml.push_str("network_policies:\n");
        let mut names = BTreeSet::new();
        for (program, destinations) in &notes.programs {
            if !destinations.keys().any(is_reached) {
                continue;
            }
            let _ = writeln!(yaml, "  {}:\n    binaries:", name(program, &mut names));
            let _ = writeln!(yaml, "      - path: {}", quoted(program));
            // It made the connection itself, so that nothing needs its right besides.
            if program != EVERY_PROGRAM {
                yaml.push_str("        children: false\n");
            }
            yaml.push_str("    endpoints:\n");
            for ((host, port), seen) in destinations.iter().filter(|(destination, _)| is_reached(destination)) {
                endpoints(&mut yaml, host, *port, seen);
            }
        }
        yaml
    }
}

fn endpoints(yaml: &mut String, host: &str, port: u16, seen: &Seen) {
    for (method, path) in &seen.unwritable {
        let _ = writeln!(yaml, "      # Left out, since no rule can allow it: {} {}", quoted(method), quoted(path));
    }
    let head = format!("      - host: {}\n        port: {port}\n", quoted(host));
    let slashes = if seen.encoded_slash { "        allow_encoded_slash: true\n" } else { "" };
    if seen.opaque || seen.requests.is_empty() && seen.crowded.is_empty() {
        yaml.push_str(&head);
        if seen.opaque {
            yaml.push_str("        # Not HTTP, at least in part: nothing in it can be judged.\n        tls: skip\n");
        } else {
            yaml.push_str("        # Connected to, and nothing asked: no request is allowed.\n");
            yaml.push_str("        protocol: rest\n        rules: [{allow: {method: OPTIONS, path: /}}]\n");
        }
        return;
    }
    let of = |wanted: Manner| {
        let paths = seen.requests.iter().filter(move |(manner, ..)| *manner == wanted);
        let rules: Vec<(&str, &str)> = paths.map(|(_, method, path)| (method.as_str(), path.as_str())).collect();
        let crowded: Vec<&str> =
            seen.crowded.iter().filter(|(manner, _)| *manner == wanted).map(|(_, method)| method.as_str()).collect();
        (rules, crowded)
    };
    let (rules, crowded) = of(Manner::Plain);
    if !rules.is_empty() || !crowded.is_empty() {
        yaml.push_str(&head);
        let _ = write!(yaml, "        protocol: rest\n{slashes}        rules:\n");
        for method in crowded {
            let _ = writeln!(yaml, "          # More than {MAX_RULES} paths were seen.");
            let _ = writeln!(yaml, "          - allow: {{method: {}, path: \"**\"}}", quoted(method));
        }
        for (method, path) in rules {
            let _ = writeln!(yaml, "          - allow: {{method: {}, path: {}}}", quoted(method), quoted(path));
        }
    }
    let (rules, crowded) = of(Manner::WebSocket);
    let anywhere = (!crowded.is_empty()).then_some("/**");
    for path in rules.iter().map(|(_, path)| *path).chain(anywhere) {
        yaml.push_str(&head);
        let _ = write!(
            yaml,
            "        path: {}\n        protocol: websocket\n{slashes}        access: full\n",
            quoted(path)
        );
    }
}

/// A name for a program's entry.
fn name(program: &str, taken: &mut BTreeSet<String>) -> String {
    let base: String = program
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .take(64)
        .collect();
    let base = if base.chars().all(|c| c == '_' || c.is_ascii_digit()) { format!("program{base}") } else { base };
    let mut name = base.clone();
    let mut count = 1;
    while !taken.insert(name.clone()) {
        count += 1;
        name = format!("{base}_{count}");
    }
    name
}

/// A double-quoted scalar (YAML 1.2.2 §7.3.1); JSON's strings are such.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Rego that allows everything, by the one endpoint of [`everything`].
pub const RULES: &str = r#"package openshell.egress

import rego.v1

decision := {
	"action": "allow",
	"reason": "everything is allowed while a policy is learned",
	"policy": "learn",
	"endpoints": [{"policy": "learn", "index": 0}],
}
"#;

/// The policy behind [`RULES`], with all but the network of another: every address that is dialled at all, private ones too,
/// since a learned endpoint names its host exactly.
#[must_use]
pub fn everything(given: Policy) -> Policy {
    let everywhere = [ipnet::IpNet::V4(ipnet::Ipv4Net::default()), ipnet::IpNet::V6(ipnet::Ipv6Net::default())];
    let endpoint = crate::policy::Endpoint {
        host: None,
        ports: vec![443],
        allowed_ips: everywhere.to_vec(),
        tls_skip: false,
        inspection: None,
    };
    let entry = crate::policy::NetworkPolicy {
        key: "learn".to_owned(),
        endpoints: vec![endpoint],
        binaries: vec![crate::policy::Binary::any()],
    };
    Policy { network: vec![std::sync::Arc::new(entry)], ..given }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::host::Host;

    fn intent(host: &str, port: u16) -> Intent {
        Intent { host: Host::parse(host).unwrap(), port }
    }

    #[test]
    fn what_is_learned_is_a_policy_and_says_what_was_seen() {
        let learner = Learner::default();
        let api = intent("api.example.com", 443);
        for (manner, method, target) in [
            (Manner::Plain, "GET", "/repos/a?token=x"),
            (Manner::Plain, "GET", "/repos/a"),
            (Manner::Plain, "POST", "/weird/[x]*{y}/z"),
            (Manner::Plain, "GET", "/v1/../x"),
            (Manner::Plain, "GET", "/v1//x"),
            (Manner::Plain, "GET", "/v1/*"),
            (Manner::Plain, "GET", "/v1/a%2Fb"),
            (Manner::Plain, "GET", "/v1/%61%20b"),
            (Manner::WebSocket, "GET", "/socket"),
        ] {
            learner.request(&Owner::Anyone, &api, manner, method, target);
        }
        learner.opaque(&Owner::Anyone, &intent("2001:db8::1", 22));
        for number in 0..=MAX_RULES {
            learner.request(
                &Owner::Anyone,
                &intent("files.example.com", 443),
                Manner::Plain,
                "GET",
                &format!("/{number}"),
            );
        }
        for reached in ["api.example.com", "files.example.com"] {
            learner.reached(&intent(reached, 443));
        }
        learner.reached(&intent("2001:db8::1", 22));
        learner.request(&Owner::Anyone, &intent("api.exmaple.com", 80), Manner::Plain, "GET", "/");
        let mut granted = Policy::allowing(&[]);
        granted.filesystem.grant(std::path::Path::new("/opt/agent"), false).unwrap();
        let yaml = learner.policy("a", Some(&granted));
        let policy = Policy::parse(&yaml, "learned.yaml").unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        assert_eq!(policy.network.len(), 1);
        assert_eq!((policy.filesystem.read_only, policy.filesystem.include_workdir), (vec!["/opt/agent".into()], true));
        assert_eq!(policy.network[0].endpoints.len(), 4, "{yaml}");
        for expected in [
            "- allow: {method: \"GET\", path: \"/repos/a\"}",
            // What has a meaning in patterns is learned by its escape: no wildcard comes of it.
            "- allow: {method: \"POST\", path: \"/weird/%5Bx%5D%2A%7By%7D/z\"}",
            "- allow: {method: \"GET\", path: \"/v1/%2A\"}",
            "# Left out, since no rule can allow it: \"GET\" \"/v1/../x\"",
            "# Left out, since no rule can allow it: \"GET\" \"/v1//x\"",
            "allow_encoded_slash: true",
            "path: \"/socket\"\n        protocol: websocket",
            "- allow: {method: \"GET\", path: \"**\"}",
            "tls: skip",
            "# Left out, since no connection to it could be made: \"**\" to \"api.exmaple.com\", port 80\n",
        ] {
            assert!(yaml.contains(expected), "{expected}\n{yaml}");
        }
        assert!(!yaml.contains("token"), "{yaml}");
    }

    #[test]
    fn nothing_seen_is_no_network() {
        let policy = Policy::parse(&Learner::default().policy("true", None), "learned.yaml").unwrap();
        assert!(policy.network.is_empty());
    }
}
