//! Learning: everything is allowed and written down, and at the end becomes the narrowest policy that would have allowed
//! the same. Only what was seen is in it; whether it should be is for its reader to say.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};

use super::authorize::Owner;
use super::intent::Intent;
use crate::event::redact::{holds_credential, redacted};
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

/// Why nothing of a connection could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It spoke something that is neither TLS nor HTTP.
    Foreign,
    /// It said nothing, or began TLS in a way that cannot be served: connections that browsers open ahead and versions that
    /// are tried out do so where all the others speak HTTP.
    Unclear,
}

/// Method that opens a WebSocket, by Upgrade or, where CONNECT stands for it, by HTTP/2 (RFC 8441 §5).
const OPENS_WEBSOCKET: &str = "GET";

/// What was seen of one destination.
#[derive(Debug, Default)]
struct Seen {
    /// Bytes that are no HTTP went through.
    foreign: bool,
    /// Connections went through of which nobody can tell.
    unclear: bool,
    /// The program did not accept the sandbox's certificate.
    distrusted: bool,
    /// Where a segment looks like a credential, the path has a `*` for it; what was sent holds none in canonical form.
    requests: BTreeSet<(Manner, String, String)>,
    /// Methods whose paths were too many.
    crowded: BTreeSet<(Manner, String)>,
    /// What no rule can allow: asked for, passed, and not in the policy.
    unwritable: BTreeSet<(String, String)>,
    /// Some path has an escaped slash.
    encoded_slash: bool,
    /// Some path can be read in more than one way.
    ambiguous: bool,
}

impl Seen {
    fn asked(&self) -> bool {
        !(self.requests.is_empty() && self.crowded.is_empty() && self.unwritable.is_empty())
    }

    /// The method and path of each request that was made so, and the methods whose paths were too many.
    fn of(&self, wanted: Manner) -> (Vec<(&str, &str)>, Vec<&str>) {
        let requests = self.requests.iter().filter(|(manner, ..)| *manner == wanted);
        let crowded = self.crowded.iter().filter(|(manner, _)| *manner == wanted);
        (
            requests.map(|(_, method, path)| (method.as_str(), path.as_str())).collect(),
            crowded.map(|(_, method)| method.as_str()).collect(),
        )
    }
}

/// What the programs did together at one destination: their endpoints answer for the same host and port, and a policy in
/// which such endpoints differ in these is refused.
#[derive(Clone, Copy, Debug, Default)]
struct Together {
    foreign: bool,
    unclear: bool,
    asked: bool,
    encoded_slash: bool,
    ambiguous: bool,
    /// WebSockets opened on more paths than are listed, so that no path tells them from requests.
    crowded_sockets: bool,
}

impl Together {
    fn add(&mut self, seen: &Seen) {
        self.foreign |= seen.foreign;
        self.unclear |= seen.unclear;
        self.asked |= seen.asked();
        self.encoded_slash |= seen.encoded_slash;
        self.ambiguous |= seen.ambiguous;
        self.crowded_sockets |= seen.crowded.iter().any(|(manner, _)| *manner == Manner::WebSocket);
    }

    /// Whether nothing at the destination is to be read.
    fn is_skipped(self) -> bool {
        self.foreign || self.unclear && !self.asked
    }

    /// What every endpoint says besides its protocol.
    fn leave(self) -> String {
        let mut leave = String::new();
        for (given, key) in [(self.encoded_slash, "allow_encoded_slash"), (self.ambiguous, "allow_ambiguous_paths")] {
            if given {
                let _ = writeln!(leave, "        {key}: true");
            }
        }
        leave
    }
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
    pub(super) fn unread(&self, owner: &Owner, intent: &Intent, why: Unread) {
        self.with(owner, intent, |seen| match why {
            Unread::Foreign => seen.foreign = true,
            Unread::Unclear => seen.unclear = true,
        });
    }

    /// A client ended its handshake when it saw the sandbox's certificate.
    pub(super) fn distrusted(&self, owner: &Owner, intent: &Intent) {
        self.with(owner, intent, |seen| seen.distrusted = true);
    }

    /// A request was made.
    pub(super) fn request(&self, owner: &Owner, intent: &Intent, manner: Manner, method: &str, target: &str) {
        let path = target.split('?').next().unwrap_or_default();
        let method = if manner == Manner::WebSocket { OPENS_WEBSOCKET } else { method };
        self.with(owner, intent, |seen| {
            let kind = (manner, method.to_owned());
            if seen.crowded.contains(&kind) {
                return;
            }
            let named = request::is_writable_method(method);
            // No rule opens a WebSocket where a path can be read in two ways.
            let writable = |literal: &request::Literal| named && !(literal.ambiguous && manner == Manner::WebSocket);
            let Some(literal) = request::literal(path).filter(writable) else {
                if seen.unwritable.len() < MAX_RULES {
                    seen.unwritable.insert((method.to_owned(), redacted(path)));
                }
                return;
            };
            seen.encoded_slash |= literal.encoded_slash;
            seen.ambiguous |= literal.ambiguous;
            seen.requests
                .extend(literal.paths.iter().map(|path| (manner, method.to_owned(), without_credentials(path))));
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
        let mut together: BTreeMap<&(String, u16), Together> = BTreeMap::new();
        for (destination, seen) in notes.programs.values().flatten() {
            together.entry(destination).or_default().add(seen);
        }
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
        // A workload chooses how its programs are called, and would be given more than itself.
        let (programs, patterns): (Vec<_>, Vec<_>) =
            notes.programs.iter().partition(|(program, _)| program.as_str() == EVERY_PROGRAM || !program.contains('*'));
        for (program, _) in patterns {
            let program = quoted(program);
            let _ = writeln!(yaml, "# Left out, since a policy would read the * in its name as a pattern: {program}");
        }
        if !programs.iter().flat_map(|(_, destinations)| destinations.keys()).any(is_reached) {
            yaml.push_str("# Nothing went out.\nnetwork_policies: {}\n");
            return yaml;
        }
        yaml.push_str("network_policies:\n");
        let mut names = BTreeSet::new();
        for (program, destinations) in programs {
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
            for (destination, seen) in destinations.iter().filter(|(destination, _)| is_reached(destination)) {
                let together = together.get(destination).copied().unwrap_or_default();
                endpoints(&mut yaml, destination, seen, together);
            }
        }
        yaml
    }
}

/// Writes what one program did at one destination, in what the programs there have in common.
fn endpoints(yaml: &mut String, (host, port): &(String, u16), seen: &Seen, together: Together) {
    for (method, path) in &seen.unwritable {
        let _ = writeln!(yaml, "      # Left out, since no rule can allow it: {} {}", quoted(method), quoted(path));
    }
    if seen.distrusted {
        yaml.push_str(
            "      # The program did not accept the sandbox's certificate: have it use the bundle that SSL_CERT_FILE\n",
        );
        yaml.push_str(
            "      # names, or write `tls: skip` for the host in every entry, which forgoes rules about requests.\n",
        );
    }
    let head = format!("      - host: {}\n        port: {port}\n", quoted(host));
    let (mut rules, mut crowded) = seen.of(Manner::Plain);
    let (sockets, crowded_sockets) = seen.of(Manner::WebSocket);
    if together.is_skipped() {
        yaml.push_str(&head);
        let whose = if seen.foreign || seen.unclear { "" } else { ", as another program uses it" };
        let _ = writeln!(yaml, "        # Not HTTP, at least in part{whose}: nothing in it can be judged.");
        yaml.push_str("        tls: skip\n");
        if seen.asked() {
            yaml.push_str("        # These rules would do for what was HTTP:\n");
        }
        rules.extend(sockets);
        crowded.extend(crowded_sockets);
        write_rules(yaml, "        # ", &rules, &crowded);
        return;
    }
    if seen.unclear {
        yaml.push_str("      # Connections that said nothing at first, or began a TLS that cannot be served, passed unread. With\n");
        yaml.push_str("      # these rules they do not; `tls: skip` instead of them would let everything pass.\n");
    }
    let leave = together.leave();
    // Where sockets open on any path, so that theirs cannot be told apart, all is judged as what has both.
    let protocol = if together.crowded_sockets { "websocket" } else { "rest" };
    let anywhere = !crowded_sockets.is_empty();
    if anywhere {
        crowded.extend([OPENS_WEBSOCKET, "WEBSOCKET_TEXT", "WEBSOCKET_BINARY"]);
    }
    if !rules.is_empty() || !crowded.is_empty() {
        let _ = write!(yaml, "{head}        protocol: {protocol}\n{leave}        rules:\n");
        write_rules(yaml, "          ", &rules, &crowded);
    } else if sockets.is_empty() {
        let _ =
            writeln!(yaml, "{head}        # Connected to, and nothing asked that a rule can allow: no request passes.");
        let _ = write!(yaml, "        protocol: {protocol}\n{leave}");
        yaml.push_str("        rules: [{allow: {method: OPTIONS, path: /}}]\n");
    }
    for (_, path) in sockets {
        yaml.push_str(&head);
        note_credential(yaml, "        ", path);
        let _ =
            write!(yaml, "        path: {}\n        protocol: websocket\n{leave}        access: full\n", quoted(path));
    }
}

fn write_rules(yaml: &mut String, indent: &str, rules: &[(&str, &str)], crowded: &[&str]) {
    for method in crowded {
        let _ = writeln!(yaml, "{indent}# More than {MAX_RULES} paths were seen.");
        let _ = writeln!(yaml, "{indent}- allow: {{method: {}, path: \"**\"}}", quoted(method));
    }
    for (method, path) in rules {
        note_credential(yaml, indent, path);
        let _ = writeln!(yaml, "{indent}- allow: {{method: {}, path: {}}}", quoted(method), quoted(path));
    }
}

/// Says why a learned path has a wildcard.
fn note_credential(yaml: &mut String, indent: &str, path: &str) {
    if path.contains('*') {
        let _ =
            writeln!(yaml, "{indent}# What looked like a credential is not written down: * lets any text stand there.");
    }
}

/// A path with a wildcard for each segment that looks like a credential: a policy is read by more people than requests are.
fn without_credentials(path: &str) -> String {
    path.split('/').map(|segment| if holds_credential(segment) { "*" } else { segment }).collect::<Vec<_>>().join("/")
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
    use crate::attest::Attested;
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
        learner.unread(&Owner::Anyone, &intent("2001:db8::1", 22), Unread::Foreign);
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
            // One rule for each way in which it can be read.
            "- allow: {method: \"GET\", path: \"/v1//x\"}",
            "- allow: {method: \"GET\", path: \"/v1/x\"}",
            "allow_ambiguous_paths: true",
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

    fn owner(path: &str) -> Owner {
        let executable = crate::attribution::Executable { path: path.into(), sha256: [0; 32] };
        let program = crate::attribution::Program { executable, ancestors: [].into() };
        Owner::Attested(std::sync::Arc::new(Attested { program, pid: 7, uid: 1000 }))
    }

    #[test]
    fn a_program_s_name_is_no_pattern() {
        for (path, learned) in [("/tmp/**", 0), ("/tmp/curl", 1)] {
            let (learner, api) = (Learner::default(), intent("api.example.com", 443));
            learner.request(&owner(path), &api, Manner::Plain, "GET", "/a");
            learner.reached(&api);
            let yaml = learner.policy("a", None);
            let policy = Policy::parse(&yaml, "learned.yaml").unwrap_or_else(|error| panic!("{error}\n{yaml}"));
            assert_eq!(policy.network.len(), learned, "{yaml}");
            assert_eq!(yaml.contains("would read the * in its name"), learned == 0, "{yaml}");
        }
    }

    /// What is learned of two programs at one destination, and the policy that it is.
    fn of_two(note: impl FnOnce(&Learner, &Intent, [&Owner; 2])) -> (String, Policy) {
        let learner = Learner::default();
        let api = intent("api.example.com", 443);
        learner.reached(&api);
        note(&learner, &api, [&owner("/usr/bin/curl"), &owner("/usr/bin/python3")]);
        let yaml = learner.policy("a", None);
        let policy = Policy::parse(&yaml, "learned.yaml").unwrap_or_else(|error| panic!("{error}\n{yaml}"));
        (yaml, policy)
    }

    #[test]
    fn programs_that_use_one_host_differently_make_one_valid_policy() {
        let (yaml, policy) = of_two(|learner, api, [curl, python]| {
            learner.request(curl, api, Manner::Plain, "GET", "/@scope%2fpkg");
            learner.request(python, api, Manner::WebSocket, "CONNECT", "/ws");
            learner.request(python, api, Manner::Plain, "GET", "/a;b");
        });
        assert_eq!(policy.network.len(), 2);
        assert_eq!(yaml.matches("allow_encoded_slash: true").count(), 3, "{yaml}");
        assert_eq!(yaml.matches("allow_ambiguous_paths: true").count(), 3, "{yaml}");
        // What began a TLS that cannot be served, or said nothing, tells nothing of a host that speaks HTTP…
        let (yaml, _) = of_two(|learner, api, [curl, python]| {
            learner.request(curl, api, Manner::Plain, "GET", "/kept");
            learner.unread(curl, api, Unread::Unclear);
            learner.request(python, api, Manner::Plain, "GET", "/other");
        });
        assert!(yaml.contains("path: \"/kept\"") && yaml.contains("passed unread"), "{yaml}");
        assert!(!yaml.contains("        tls: skip"), "{yaml}");
        // …and where nobody speaks it, there is nothing to be read; nor where something else was heard.
        for (why, asks) in [(Unread::Unclear, false), (Unread::Foreign, false), (Unread::Foreign, true)] {
            let (yaml, policy) = of_two(|learner, api, [curl, python]| {
                learner.unread(curl, api, why);
                match asks {
                    true => learner.request(python, api, Manner::Plain, "GET", "/x"),
                    false => learner.distrusted(python, api),
                }
            });
            assert!(policy.network.iter().all(|entry| entry.endpoints[0].tls_skip), "{yaml}");
            assert_eq!(yaml.contains("        # - allow: {method: \"GET\", path: \"/x\"}\n"), asks, "{yaml}");
        }
        // Sockets on more paths than are listed, beside requests.
        let (yaml, _) = of_two(|learner, api, [curl, python]| {
            learner.request(curl, api, Manner::Plain, "POST", "/x");
            for number in 0..=MAX_RULES {
                learner.request(python, api, Manner::WebSocket, "GET", &format!("/{number}"));
            }
        });
        assert_eq!(yaml.matches("protocol: websocket").count(), 2, "{yaml}");
        assert!(yaml.contains("- allow: {method: \"WEBSOCKET_TEXT\", path: \"**\"}"), "{yaml}");
    }

    #[test]
    fn a_socket_is_learned_once_a_distrust_is_told_and_a_credential_is_not() {
        let (yaml, policy) = of_two(|learner, api, [curl, python]| {
            learner.request(curl, api, Manner::WebSocket, "GET", "/ws");
            learner.request(curl, api, Manner::WebSocket, "CONNECT", "/ws");
            learner.request(curl, api, Manner::Plain, "GET", "/bot123456789:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw/send");
            learner.distrusted(python, api);
        });
        assert_eq!(policy.network[0].endpoints.len(), 2, "{yaml}");
        assert!(yaml.contains("did not accept the sandbox's certificate"), "{yaml}");
        assert!(yaml.contains("path: \"/*/send\"") && !yaml.contains("AAHdqTcv"), "{yaml}");
        assert!(yaml.contains("# What looked like a credential is not written down"), "{yaml}");
    }

    #[test]
    fn nothing_seen_is_no_network() {
        let policy = Policy::parse(&Learner::default().policy("true", None), "learned.yaml").unwrap();
        assert!(policy.network.is_empty());
    }
}
