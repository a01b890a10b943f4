//! Cost of one decision, from 10 to 10,000 endpoints, and of one request's, from 10 to 1,000 rules on one endpoint:
//! `cargo bench --bench decision`.
//!
//! The policy mixes what real ones hold: most endpoints by name, every tenth by a pattern, ten to an entry, each entry
//! with two programs. Half of the questions are allowed, by name or by pattern, and half refused.

use std::fmt::Write;
use std::sync::Arc;

use divan::{Bencher, black_box};
use openshell_supervisor::attribution::{Executable, Program};
use openshell_supervisor::policy::decision::{Decision, Question};
use openshell_supervisor::policy::host::Host;
use openshell_supervisor::policy::request::{Head, Judgement};
use openshell_supervisor::policy::{Policy, PolicySource, Snapshot, Sources, Store};

const SIZES: &[usize] = &[10, 100, 1_000, 10_000];

fn main() {
    divan::main();
}

fn policy(endpoints: usize) -> Policy {
    let mut text = String::from("version: 1\nnetwork_policies:\n");
    for entry in 0..endpoints / 10 {
        let _ = write!(text, " e{entry}:\n  binaries: [{{path: /usr/bin/git}}, {{path: /opt/**}}]\n  endpoints:\n");
        for host in 0..9 {
            let _ = writeln!(text, "  - {{host: h{host}.e{entry}.example.com, port: 443}}");
        }
        let _ = writeln!(text, "  - {{host: '*.g{entry}.example.com', port: 443}}");
    }
    match Policy::parse(&text, "bench.yaml") {
        Ok(policy) => policy,
        Err(error) => panic!("{error}"),
    }
}

fn snapshot(endpoints: usize) -> Arc<Snapshot> {
    match Store::open(Sources::new(PolicySource::BuiltIn(Box::new(policy(endpoints))))) {
        Ok(store) => store.current(),
        Err(error) => panic!("{error}"),
    }
}

fn program() -> Program {
    let executable = |path: &str| Executable { path: path.into(), sha256: [7; 32] };
    Program {
        executable: executable("/usr/lib/git-core/git-remote-https"),
        ancestors: ["/usr/bin/git", "/usr/bin/bash", "/usr/bin/node"].map(executable).into(),
    }
}

/// Allowed by name, allowed by pattern, refused by name, refused by port.
fn questions(endpoints: usize) -> Vec<(Host, u16)> {
    let last = endpoints / 10 - 1;
    let questions = [
        (format!("h5.e{last}.example.com"), 443),
        (format!("any.g{last}.example.com"), 443),
        ("unknown.example.org".to_owned(), 443),
        (format!("h5.e{last}.example.com"), 80),
    ];
    questions
        .into_iter()
        .map(|(host, port)| match Host::parse(&host) {
            Ok(host) => (host, port),
            Err(error) => panic!("{host}: {error}"),
        })
        .collect()
}

#[divan::bench(args = SIZES)]
fn uncached(bencher: Bencher, endpoints: usize) {
    let (snapshot, program, questions) = (snapshot(endpoints), program(), questions(endpoints));
    let mut next = questions.iter().cycle();
    bencher.with_inputs(|| next.next()).bench_local_values(|question| {
        let (host, port) = question.unwrap_or(&questions[0]);
        snapshot.evaluate(Question { host: black_box(host), port: *port, program: Some(&program) })
    });
}

#[divan::bench(args = SIZES)]
fn uncached_allowed_by_name(bencher: Bencher, endpoints: usize) {
    one_of(bencher, endpoints, 0);
}

#[divan::bench(args = SIZES)]
fn uncached_allowed_by_pattern(bencher: Bencher, endpoints: usize) {
    one_of(bencher, endpoints, 1);
}

#[divan::bench(args = SIZES)]
fn uncached_refused(bencher: Bencher, endpoints: usize) {
    one_of(bencher, endpoints, 2);
}

fn one_of(bencher: Bencher, endpoints: usize, index: usize) {
    let (snapshot, program, questions) = (snapshot(endpoints), program(), questions(endpoints));
    let (host, port) = &questions[index];
    bencher.bench_local(|| snapshot.evaluate(Question { host: black_box(host), port: *port, program: Some(&program) }));
}

#[divan::bench(args = SIZES)]
fn cached(bencher: Bencher, endpoints: usize) {
    let (snapshot, program, questions) = (snapshot(endpoints), program(), questions(endpoints));
    let (host, port) = &questions[0];
    bencher.bench_local(|| snapshot.decide(Question { host: black_box(host), port: *port, program: Some(&program) }));
}

#[divan::bench(args = SIZES, sample_count = 3, sample_size = 1)]
fn load(bencher: Bencher, endpoints: usize) {
    let policy = policy(endpoints);
    bencher.bench_local(|| Store::open(Sources::new(PolicySource::BuiltIn(Box::new(policy.clone())))));
}

#[divan::bench]
fn canonical_host() -> Result<Host, openshell_supervisor::policy::host::HostError> {
    Host::parse(black_box("api.example.com"))
}

const RULES: &[usize] = &[10, 100, 1_000];

/// An endpoint with so many rules, of the forms that real ones have: paths by name, below a name, and with a segment
/// open, one of them by its query.
fn inspected(rules: usize) -> Decision {
    let mut text = String::from(
        "version: 1\nnetwork_policies:\n e:\n  binaries: [{path: '**'}]\n  endpoints:\n  - host: api.example.com\n    port: \
         443\n    protocol: rest\n    deny_rules: [{path: '/admin/**'}]\n    rules:\n",
    );
    for rule in 0..rules {
        let allow = match rule % 4 {
            0 => format!("{{method: GET, path: /items/i{rule}}}"),
            1 => format!("{{method: GET, path: '/area{rule}/**'}}"),
            2 => format!("{{method: POST, path: '/repos/*/r{rule}/issues'}}"),
            _ => format!("{{method: GET, path: /search/s{rule}, query: {{kind: 'k*'}}}}"),
        };
        let _ = writeln!(text, "    - allow: {allow}");
    }
    let policy = Policy::parse(&text, "bench.yaml").unwrap_or_else(|error| panic!("{error}"));
    let store = Store::open(Sources::new(PolicySource::BuiltIn(Box::new(policy)))).unwrap_or_else(|e| panic!("{e}"));
    let host = Host::parse("api.example.com").unwrap_or_else(|error| panic!("{error}"));
    store.current().evaluate(Question { host: &host, port: 443, program: Some(&program()) })
}

fn request(bencher: Bencher, rules: usize, method: &str, target: &str) {
    let decision = inspected(rules);
    bencher.bench_local(|| match decision.judge(black_box(&Head { method, target, ..Head::default() })) {
        Judgement::Pass(pass) => pass,
        other => panic!("{other:?}"),
    });
}

/// By name, the last one.
#[divan::bench(args = RULES)]
fn request_allowed_by_path(bencher: Bencher, rules: usize) {
    request(bencher, rules, "GET", &format!("/items/i{}", (rules - 1) / 4 * 4));
}

/// With a segment open.
#[divan::bench(args = RULES)]
fn request_allowed_by_pattern(bencher: Bencher, rules: usize) {
    request(bencher, rules, "POST", &format!("/repos/octo/r{}/issues", (rules - 3) / 4 * 4 + 2));
}

/// By query.
#[divan::bench(args = RULES)]
fn request_allowed_by_query(bencher: Bencher, rules: usize) {
    request(bencher, rules, "GET", &format!("/search/s{}?page=2&kind=k1", (rules - 4) / 4 * 4 + 3));
}

/// Refused, with the whole explanation.
#[divan::bench(args = RULES)]
fn request_refused(bencher: Bencher, rules: usize) {
    let decision = inspected(rules);
    let head = Head { method: "DELETE", target: "/items/i0", ..Head::default() };
    bencher.bench_local(|| decision.judge(black_box(&head)));
}
