//! One generation of the policy: the engine that decides by it, and what it has decided.

use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use lru::LruCache;

use super::advice;
use super::decision::{Action, Decision, Question};
use super::engine::{Engine, EngineError};
use super::host::Host;
use super::{NetworkPolicy, Policy};
use crate::attribution::Program;

/// Decisions remembered by one generation. A sandbox talks to some hundreds of destinations from some tens of programs;
/// a workload that invents names to fill this evicts its own entries, at a few hundred bytes each.
const MAX_DECISIONS: NonZeroUsize = match NonZeroUsize::new(4096) {
    Some(n) => n,
    None => NonZeroUsize::MIN,
};

/// One generation. Immutable but for its memory of decisions, and shared by every connection that began under it.
#[derive(Debug)]
pub struct Snapshot {
    /// Counts from 1; a later one replaced this.
    pub generation: u64,
    /// The policy in force. Its static sections are those that the sandbox started with, whatever the file says now.
    pub policy: Policy,
    engine: Engine,
    settings: Settings,
    cache: Cache,
}

/// What decides besides policy and rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    /// Binaries count.
    pub(super) require_identity: bool,
    /// The rules are the shipped ones.
    pub(super) shipped_rules: bool,
    /// Everything is refused, for this reason.
    pub(super) quarantine: Option<String>,
}

impl Snapshot {
    pub(super) fn new(generation: u64, policy: Policy, engine: Engine, settings: Settings) -> Self {
        Self { generation, policy, engine, settings, cache: Cache::new() }
    }

    /// Does now what the first question would otherwise wait for: compiling the shipped rules takes some milliseconds.
    /// Worth calling in the background once the workload runs. A failure shows in every decision, as a refusal.
    pub fn prepare(&self) {
        let _ = self.engine.prepare();
    }

    /// May this program reach this destination? Remembered, so that asking again costs a hash and a lookup.
    #[must_use]
    pub fn decide(&self, question: Question<'_>) -> Arc<Decision> {
        // In relaxed mode who asks does not count, and must not split the memory either.
        let program = question.program.filter(|_| self.settings.require_identity);
        let question = Question { program, ..question };
        let key = self.cache.key(question);
        if let Some(decision) = self.cache.get(key, question) {
            return decision;
        }
        match self.ask(question) {
            Ok(decision) => {
                let decision = Arc::new(decision);
                self.cache.put(key, question, &decision);
                decision
            }
            // A failure may pass, so it refuses this connection and is not remembered.
            Err(error) => Arc::new(failed(&error)),
        }
    }

    /// The same without remembering, for those who ask once.
    #[must_use]
    pub fn evaluate(&self, question: Question<'_>) -> Decision {
        self.ask(question).unwrap_or_else(|error| failed(&error))
    }

    fn ask(&self, question: Question<'_>) -> Result<Decision, EngineError> {
        if let Some(reason) = &self.settings.quarantine {
            return Ok(deny(reason.clone(), vec!["correct the policy file".to_owned()]));
        }
        let mut decision = self.resolve(self.engine.decide(question)?)?;
        if decision.action == Action::Deny {
            let closest = decision.policy.as_deref().and_then(|key| self.entry(key));
            let taken = |key: &str| self.entry(key).is_some();
            decision.next_steps =
                advice::next_steps(question, closest.map(|entry| &**entry), self.settings.shipped_rules, taken);
        }
        Ok(decision)
    }

    fn resolve(&self, verdict: super::engine::Verdict) -> Result<Decision, EngineError> {
        let mut endpoints = Vec::with_capacity(verdict.endpoints.len());
        for endpoint in verdict.endpoints {
            let entry = self.entry(&endpoint.policy).filter(|entry| endpoint.index < entry.endpoints.len());
            let Some(entry) = entry else {
                let name = endpoint.policy;
                return Err(EngineError::Shape(format!("entry {name:?} has no endpoint {}", endpoint.index)));
            };
            endpoints.push((Arc::clone(entry), endpoint.index));
        }
        Ok(Decision {
            action: verdict.action,
            reason: verdict.reason,
            policy: verdict.policy,
            endpoints,
            next_steps: Vec::new(),
        })
    }

    fn entry(&self, key: &str) -> Option<&Arc<NetworkPolicy>> {
        let at = self.policy.network.binary_search_by(|entry| entry.key.as_str().cmp(key)).ok()?;
        self.policy.network.get(at)
    }
}

fn deny(reason: String, next_steps: Vec<String>) -> Decision {
    Decision { action: Action::Deny, reason, policy: None, endpoints: Vec::new(), next_steps }
}

fn failed(error: &EngineError) -> Decision {
    deny(error.to_string(), vec!["report this to whoever maintains the policy rules".to_owned()])
}

/// Decisions by question. Looked up by a keyed hash, so that a hit allocates nothing, and compared in full, so that two
/// questions of one hash never share an answer.
#[derive(Debug)]
struct Cache {
    keys: RandomState,
    entries: Mutex<LruCache<u64, Remembered>>,
}

#[derive(Debug)]
struct Remembered {
    host: Host,
    port: u16,
    program: Option<Program>,
    decision: Arc<Decision>,
}

impl Cache {
    fn new() -> Self {
        Self { keys: RandomState::new(), entries: Mutex::new(LruCache::new(MAX_DECISIONS)) }
    }

    fn key(&self, question: Question<'_>) -> u64 {
        let mut hasher = self.keys.build_hasher();
        question.host.hash(&mut hasher);
        question.port.hash(&mut hasher);
        question.program.hash(&mut hasher);
        hasher.finish()
    }

    fn get(&self, key: u64, question: Question<'_>) -> Option<Arc<Decision>> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let found = entries.get(&key)?;
        let same =
            found.host == *question.host && found.port == question.port && found.program.as_ref() == question.program;
        same.then(|| Arc::clone(&found.decision))
    }

    fn put(&self, key: u64, question: Question<'_>, decision: &Arc<Decision>) {
        let remembered = Remembered {
            host: question.host.clone(),
            port: question.port,
            program: question.program.cloned(),
            decision: Arc::clone(decision),
        };
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).put(key, remembered);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::attribution::Executable;
    use crate::policy::document::Document;
    use crate::policy::engine::RegoEngine;
    use crate::policy::{Binary, Endpoint, HostPattern};

    const GITHUB: &str = "
version: 1
network_policies:
  github:
    endpoints:
      - {host: github.com, port: 443}
      - {host: '*.example.com', ports: [443, 8443]}
    binaries: [{path: /usr/bin/git}]
  anyone:
    endpoints: [{host: open.example.com, port: 80}]
    binaries: [{path: '**'}]
";

    fn with_rules(policy: Policy, rules: Option<&str>, require_identity: bool) -> Snapshot {
        let document = Document::of(&policy, require_identity, "/".as_ref());
        let engine = match rules {
            Some(rules) => RegoEngine::with_rules(rules, "r.rego", &document),
            None => RegoEngine::shipped(&document),
        };
        let engine = Engine::Rego(Box::new(engine.unwrap()));
        let settings = Settings { require_identity, shipped_rules: rules.is_none(), quarantine: None };
        Snapshot::new(1, policy, engine, settings)
    }

    fn snapshot(text: &str, require_identity: bool) -> Snapshot {
        with_rules(Policy::parse(text, "p.yaml").unwrap(), None, require_identity)
    }

    fn program(path: &str, ancestors: &[&str]) -> Program {
        let executable = |path: &str| Executable { path: path.into(), sha256: [7; 32] };
        Program { executable: executable(path), ancestors: ancestors.iter().map(|path| executable(path)).collect() }
    }

    fn ask(snapshot: &Snapshot, host: &str, port: u16, program: Option<&Program>) -> Arc<Decision> {
        snapshot.decide(Question { host: &Host::parse(host).unwrap(), port, program })
    }

    #[test]
    fn an_allowed_connection_carries_its_endpoint() {
        let snapshot = snapshot(GITHUB, true);
        let git = program("/usr/bin/git", &[]);
        let decision = ask(&snapshot, "github.com", 443, Some(&git));
        assert!(decision.allows(), "{decision:?}");
        assert_eq!(decision.policy.as_deref(), Some("github"));
        assert_eq!(decision.endpoints.len(), 1);
        assert!(decision.endpoints[0].0.endpoints[decision.endpoints[0].1].names(&Host::parse("GitHub.com.").unwrap()));
        assert!(decision.next_steps.is_empty());
        let helper = program("/usr/lib/git-core/git-remote-https", &["/usr/bin/git", "/usr/bin/bash"]);
        assert!(ask(&snapshot, "x.example.com", 8443, Some(&helper)).allows());
    }

    #[test]
    fn a_denial_says_what_is_missing_and_its_steps_allow_it() {
        let curl = program("/usr/bin/curl", &["/usr/bin/bash"]);
        let snapshot = snapshot(GITHUB, true);
        for (host, port, reason, step) in [
            (
                "api.example.org",
                443,
                "no policy entry allows api.example.org:443",
                "add under network_policies: api_example_org: {endpoints: [{host: api.example.org, port: 443}], \
                 binaries: [{path: /usr/bin/curl}]}",
            ),
            (
                "github.com",
                22,
                "port 22 of github.com is not allowed: entry github lists 443",
                "in network_policies.github.endpoints[0], write ports: [443, 22] in place of its port or ports",
            ),
            (
                "github.com",
                443,
                "/usr/bin/curl (started by /usr/bin/bash) may not reach github.com:443: entry github allows /usr/bin/git",
                "add under network_policies.github.binaries: - path: /usr/bin/curl",
            ),
        ] {
            let decision = ask(&snapshot, host, port, Some(&curl));
            assert!(!decision.allows());
            assert_eq!(decision.reason, reason);
            assert_eq!(decision.next_steps[0], step);
        }
        // A program's name is no pattern, and an entry's is no other's.
        let star = program("/tmp/**", &["/usr/bin/bash"]);
        for (host, port) in [("api.example.org", 443), ("github.com", 443)] {
            let steps = &ask(&snapshot, host, port, Some(&star)).next_steps;
            assert!(steps[0].starts_with("rename \"/tmp/**\"") && !steps[0].contains("binaries"), "{steps:?}");
        }
        let taken = "{version: 1, network_policies: {a_example: {endpoints: [{host: '*.a.example', port: 1}], binaries: [{path: '**'}]}}}";
        let steps = &ask(&super::tests::snapshot(taken, true), "a.example", 1, Some(&curl)).next_steps;
        assert!(steps[0].starts_with("add under network_policies: a_example_2: "), "{steps:?}");
        let added = "
version: 1
network_policies:
  api_example_org: {endpoints: [{host: api.example.org, port: 443}], binaries: [{path: /usr/bin/curl}]}
  github:
    endpoints:
      - {host: github.com, ports: [443, 22]}
    binaries:
      - path: /usr/bin/curl
";
        let snapshot = super::tests::snapshot(added, true);
        for (host, port) in [("api.example.org", 443), ("github.com", 22), ("github.com", 443)] {
            assert!(ask(&snapshot, host, port, Some(&curl)).allows(), "{host}:{port}");
        }
    }

    #[test]
    fn what_lends_nothing_is_asked_of_the_connecting_program_alone() {
        for (pattern, path) in
            [("/usr/bin/git", "/usr/bin/git"), ("/opt/**", "/opt/a"), ("/usr/bin/py*", "/usr/bin/py3"), ("**", "/x")]
        {
            for (children, below) in [(false, pattern == "**"), (true, true)] {
                let text = format!(
                    "{{version: 1, network_policies: {{k: {{endpoints: [{{host: github.com, port: 443}}], binaries: \
                     [{{path: '{pattern}', children: {children}}}]}}}}}}"
                );
                let snapshot = snapshot(&text, true);
                let allows = |program: &Program| ask(&snapshot, "github.com", 443, Some(program)).allows();
                assert!(allows(&program(path, &["/usr/bin/bash"])), "{text}");
                assert_eq!(allows(&program("/usr/bin/bash", &[path])), below, "{text}");
                assert!(!ask(&snapshot, "github.com", 443, None).allows(), "{text}");
            }
        }
    }

    #[test]
    fn without_identity_nothing_is_allowed_unless_relaxed() {
        assert!(!ask(&snapshot(GITHUB, true), "open.example.com", 80, None).allows());
        assert!(!ask(&snapshot(GITHUB, true), "github.com", 443, None).allows());
        let relaxed = snapshot(GITHUB, false);
        assert!(ask(&relaxed, "github.com", 443, None).allows());
        assert!(ask(&relaxed, "github.com", 443, Some(&program("/usr/bin/curl", &[]))).allows());
        assert!(!ask(&relaxed, "github.com", 22, None).allows());
    }

    #[test]
    fn no_policy_allows_nothing() {
        let snapshot = with_rules(Policy::restrictive_default(), None, false);
        for host in ["github.com", "127.0.0.1", "::1", "localhost"] {
            assert!(!ask(&snapshot, host, 443, None).allows());
        }
    }

    #[test]
    fn a_quick_try_is_open_to_every_program() {
        let policy = Policy::allowing(&[(Host::parse("api.example.com").unwrap(), 443)]);
        let snapshot = with_rules(policy, None, true);
        assert!(ask(&snapshot, "api.example.com", 443, Some(&program("/anything", &[]))).allows());
        assert!(!ask(&snapshot, "api.example.com", 80, Some(&program("/anything", &[]))).allows());
    }

    #[test]
    fn answers_are_remembered_by_everything_that_was_asked() {
        let snapshot = snapshot(GITHUB, true);
        let (git, curl) = (program("/usr/bin/git", &[]), program("/usr/bin/curl", &[]));
        let first = ask(&snapshot, "github.com", 443, Some(&git));
        assert!(Arc::ptr_eq(&first, &ask(&snapshot, "GITHUB.com", 443, Some(&git))));
        for (host, port, program) in [("github.com", 443, &curl), ("github.com", 80, &git), ("github.org", 443, &git)] {
            assert!(!ask(&snapshot, host, port, Some(program)).allows(), "{host}:{port}");
        }
        let mut other = git.clone();
        other.executable.sha256 = [8; 32];
        assert!(!Arc::ptr_eq(&first, &ask(&snapshot, "github.com", 443, Some(&other))));
    }

    #[test]
    fn what_an_engine_answers_wrongly_is_denied() {
        for (rules, expected) in [
            ("decision := {\"action\": \"maybe\", \"reason\": \"x\"}", "action is neither"),
            ("decision := {\"action\": \"allow\"}", "reason is no text"),
            ("decision := 7", "no object"),
            ("decision := {\"action\": \"allow\", \"reason\": \"x\"} if input.nothing", "no rule applied"),
            (
                "decision := {\"action\": \"allow\", \"reason\": \"x\", \"endpoints\": [{\"policy\": \"gone\", \"index\": 0}]}",
                "has no endpoint",
            ),
            (
                "decision := {\"action\": \"allow\", \"reason\": \"x\", \"endpoints\": [{\"policy\": \"github\", \"index\": 9}]}",
                "has no endpoint",
            ),
            ("decision := {\"action\": \"allow\", \"reason\": \"x\", \"endpoints\": 7}", "no list"),
            (
                "decision := {\"action\": \"allow\", \"reason\": \"x\"} if count([1 | some i in numbers.range(1, 4000); some j in numbers.range(1, 4000); i == j]) > 0",
                "failed",
            ),
            (
                "decision := {\"action\": \"allow\", \"reason\": \"x\"}\ndecision := {\"action\": \"deny\", \"reason\": \"y\"}",
                "no rule applied",
            ),
        ] {
            let policy = Policy::parse(GITHUB, "p").unwrap();
            let snapshot =
                with_rules(policy, Some(&format!("package openshell.egress\nimport rego.v1\n{rules}")), true);
            let decision = ask(&snapshot, "github.com", 443, Some(&program("/usr/bin/git", &[])));
            assert!(!decision.allows(), "{rules}");
            assert!(decision.reason.contains(expected), "{rules}: {}", decision.reason);
        }
        let allowed =
            "package openshell.egress\nimport rego.v1\ndecision := {\"action\": \"allow\", \"reason\": \"x\"}";
        let control = with_rules(Policy::restrictive_default(), Some(allowed), true);
        assert!(ask(&control, "github.com", 443, None).allows());
    }

    fn label() -> impl Strategy<Value = String> {
        prop_oneof!["[ab]{1,2}", Just("*".to_owned()), Just("a*".to_owned()), Just("**".to_owned())]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn rego_and_the_native_matcher_agree(
            patterns in prop::collection::vec(prop::collection::vec(label(), 1..4), 1..12),
            hosts in prop::collection::vec("[ab]{1,2}(\\.[ab]{1,2}){0,3}(\\.example\\.com)?", 24),
        ) {
            let patterns: Vec<HostPattern> = patterns
                .iter()
                .filter_map(|labels| HostPattern::parse(&format!("{}.example.com", labels.join("."))).ok())
                .collect();
            let endpoints = patterns
                .iter()
                .map(|pattern| Endpoint {
                    host: Some(pattern.clone()),
                    ports: vec![443],
                    allowed_ips: Vec::new(),
                    tls_skip: false,
            inspection: None,
                })
                .collect();
            let entry = NetworkPolicy { key: "k".into(), endpoints, binaries: vec![Binary::any()] };
            let mut policy = Policy::restrictive_default();
            policy.network.push(Arc::new(entry));
            let snapshot = with_rules(policy, None, false);
            for host in hosts {
                let host = Host::parse(&host).unwrap();
                let decision = snapshot.decide(Question { host: &host, port: 443, program: None });
                let native: Vec<usize> =
                    patterns.iter().enumerate().filter(|(_, p)| p.matches(&host)).map(|(i, _)| i).collect();
                let mut rego: Vec<usize> = decision.endpoints.iter().map(|(_, index)| *index).collect();
                rego.sort_unstable();
                prop_assert_eq!(rego, native, "{} {:?}", host, patterns);
            }
        }
    }

    #[test]
    fn program_patterns_match_as_documented() {
        for (pattern, yes, no) in [
            ("/usr/bin/git", &["/usr/bin/git"][..], &["/usr/bin/gi", "/usr/bin/git/x"][..]),
            ("/opt/**", &["/opt/a", "/opt/a/b"], &["/opt", "/optional/a"]),
            (
                "/usr/bin/python3*",
                &["/usr/bin/python3", "/usr/bin/python3.11"],
                &["/usr/bin/python3/x", "/usr/bin/python"],
            ),
            (
                "/usr/**/node",
                &["/usr/node", "/usr/a/node", "/usr/a/b/node"],
                &["/usr/a/nodex", "/opt/node", "/usr/xnode"],
            ),
            ("/home/*/bin/*", &["/home/a/bin/x"], &["/home/a/b/bin/x", "/home/a/bin/", "/home//bin/x"]),
            ("/a.b/*+c", &["/a.b/x+c"], &["/aXb/x+c", "/a.b/xc"]),
            ("**", &["/anything"], &[]),
        ] {
            let text = format!(
                "{{version: 1, network_policies: {{k: {{endpoints: [{{host: github.com, port: 443}}], binaries: [{{path: '{pattern}'}}]}}}}}}"
            );
            let snapshot = snapshot(&text, true);
            for (paths, expected) in [(yes, true), (no, false)] {
                for path in paths {
                    let decision = ask(&snapshot, "github.com", 443, Some(&program(path, &[])));
                    assert_eq!(decision.allows(), expected, "{pattern} {path}");
                    let decision = ask(&snapshot, "github.com", 443, Some(&program("/other", &["/another", path])));
                    assert_eq!(decision.allows(), expected, "{pattern} ancestor {path}");
                }
            }
        }
    }
}
