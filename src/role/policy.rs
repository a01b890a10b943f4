//! `policy check` and `policy explain`: a policy seen by the person who writes it.

mod request;

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::attribution::{Executable, Program};
use crate::cli::{self, Request};
use crate::contract::exit;
use crate::egress::admit_untold;
use crate::policy::decision::{Action, Decision, Question};
use crate::policy::host::Host;
use crate::policy::{LoadError, Policy, PolicySource, Sources, Store};

use request::Answer;

/// Everything is as it should be.
const SUCCESS: u8 = 0;

/// The policy is invalid, or refuses what was asked.
const FAILURE: u8 = 1;

/// What was asked takes a body to answer.
const UNDECIDED: u8 = 3;

/// How a policy's `binaries` say that all are meant.
const EVERY_PROGRAM: &str = "**";

/// Largest program whose digest is taken: larger ones are not read for an explanation that they cannot change.
const MAX_DIGESTED: u64 = 512 * 1024 * 1024;

/// The name of standard input on a command line.
const STANDARD_INPUT: &str = "-";

/// Does what the command line asks, on the standard streams.
pub fn run(arguments: cli::Policy) -> u8 {
    let (mut out, mut err) = (io::stdout().lock(), io::stderr().lock());
    match arguments.action {
        cli::PolicyAction::Check { files } => {
            files.iter().map(|file| check(file, &mut out, &mut err)).max().unwrap_or(SUCCESS)
        }
        cli::PolicyAction::Explain { file, host, port, binary, ancestors, policy_rules, request, json } => explain(
            &Explain { file, rules: policy_rules, wasm: None, host, port, binary, ancestors, request, json },
            &mut out,
            &mut err,
        ),
    }
}

/// What `policy explain` is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explain {
    /// The policy file.
    pub file: PathBuf,
    /// Rego in place of the shipped rules.
    pub rules: Option<PathBuf>,
    /// A compiled module in place of Rego.
    pub wasm: Option<PathBuf>,
    /// Destination, in any spelling.
    pub host: String,
    /// Destination port.
    pub port: u16,
    /// Path of the program that asks; `None` asks as relaxed mode does.
    pub binary: Option<String>,
    /// What started it, nearest first.
    pub ancestors: Vec<String>,
    /// A request on the connection, if one is asked about.
    pub request: Request,
    /// Answer in JSON.
    pub json: bool,
}

/// Validates a policy file, or standard input: 0 and a summary with what may not be meant, or 1 and everything that is wrong
/// with it.
pub fn check(file: &Path, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let (name, policy) = load(file);
    match policy {
        Ok(policy) => {
            let endpoints: usize = policy.network.iter().map(|entry| entry.endpoints.len()).sum();
            let summary = match policy.network.len() {
                0 => "no network at all".to_owned(),
                1 => format!("1 entry, {endpoints} endpoint(s)"),
                entries => format!("{entries} entries, {endpoints} endpoint(s)"),
            };
            let doubts = policy.doubts().into_iter().map(|doubt| format!("warning: {doubt}"));
            let absent = policy.absent_paths().map(|path| {
                format!(
                    "note: filesystem_policy: {} is not on this machine; what is not there when the workload starts is not \
                     granted",
                    path.display()
                )
            });
            let told = doubts.chain(absent).try_for_each(|line| writeln!(err, "{name}: {line}"));
            finish(told.and_then(|()| writeln!(out, "{name}: valid: {summary}")), SUCCESS)
        }
        Err(error) => finish(writeln!(err, "{error}"), FAILURE),
    }
}

/// The policy, and what its file is called.
fn load(file: &Path) -> (String, Result<Policy, LoadError>) {
    if file == Path::new(STANDARD_INPUT) {
        let name = "standard input";
        return (name.to_owned(), Policy::read(io::stdin().lock(), name));
    }
    (file.display().to_string(), Policy::load(file))
}

/// Says what the policy decides and why, or what it lacks: 0 allowed, 1 refused or invalid, 2 a question that is none,
/// 3 one that takes a body to answer.
pub fn explain(args: &Explain, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let host = match Host::parse(&args.host) {
        Ok(host) => host,
        Err(error) => return finish(writeln!(err, "--host {:?}: {error}", args.host), exit::USAGE),
    };
    let named = args.binary.iter().map(|path| ("--binary", path));
    for (flag, path) in named.chain(args.ancestors.iter().map(|path| ("--ancestor", path))) {
        if !path.starts_with('/') {
            let here =
                found_in_path(path).map(|here| format!("; did you mean {}?", here.display())).unwrap_or_default();
            let told = writeln!(err, "{flag} {path:?}: expected a program's absolute path, such as /usr/bin/git{here}");
            return finish(told, exit::USAGE);
        }
    }
    let mut sources = Sources::new(PolicySource::File(args.file.clone()));
    sources.rules.clone_from(&args.rules);
    sources.wasm.clone_from(&args.wasm);
    sources.require_identity = args.binary.is_some();
    let store = match Store::open(sources) {
        Ok(store) => store,
        Err(error) => return finish(writeln!(err, "{error}"), FAILURE),
    };
    let program = args.binary.as_deref().map(|binary| Program {
        executable: executable(binary),
        ancestors: args.ancestors.iter().map(|path| executable(path)).collect::<Arc<[_]>>(),
    });
    let question = Question { host: &host, port: args.port, program: program.as_ref() };
    let mut decision = store.current().evaluate(question);
    // What the destination guard refuses whatever the policy says, as far as that shows without resolving a name.
    if decision.allows()
        && let Err(error) = admit_untold(&host, args.port, &decision)
    {
        decision.action = Action::Deny;
        decision.reason = error.to_string();
        decision.next_steps = vec![error.next_step()];
    }
    let answer = (decision.allows() && args.request.is_given()).then(|| args.request.ask(&decision));
    let answer = answer.as_ref();
    let written = match args.json {
        true => in_json(question, &decision, answer, out),
        false => in_words(question, &decision, answer, out),
    };
    let code = match answer {
        _ if !decision.allows() => FAILURE,
        Some(answer) if answer.is_open() => UNDECIDED,
        Some(answer) if !answer.passes() => FAILURE,
        _ => SUCCESS,
    };
    finish(written, code)
}

/// The program that a shell would find by this name.
fn found_in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|candidate| candidate.is_file())
}

/// The programs that an answer without a program holds for; `None` where it holds for all.
fn only_for<'d>(question: Question<'_>, decision: &'d Decision) -> Option<Vec<&'d str>> {
    if question.program.is_some() || !decision.allows() {
        return None;
    }
    let mut programs: Vec<&str> =
        decision.endpoints.iter().flat_map(|(entry, _)| &entry.binaries).map(|binary| binary.path.as_str()).collect();
    programs.sort_unstable();
    programs.dedup();
    (!programs.contains(&EVERY_PROGRAM)).then_some(programs)
}

/// An exit code that admits when nobody could be told.
fn finish(written: io::Result<()>, code: u8) -> u8 {
    if written.is_ok() { code } else { FAILURE }
}

/// The program at `path`, by its real path as the kernel would report it, with the digest of the file that is there.
fn executable(path: &str) -> Executable {
    let real = std::fs::canonicalize(path).ok().and_then(|real| real.into_os_string().into_string().ok());
    let path = real.unwrap_or_else(|| path.to_owned());
    let sha256 = digest(Path::new(&path)).unwrap_or_default();
    Executable { path: path.into(), sha256 }
}

fn digest(path: &Path) -> io::Result<[u8; 32]> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() || metadata.len() > MAX_DIGESTED {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hash.finalize().into()),
            read => hash.update(&buffer[..read]),
        }
    }
}

fn in_words(
    question: Question<'_>,
    decision: &Decision,
    answer: Option<&Answer>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let verdict = match (decision.allows(), only_for(question, decision)) {
        (false, _) => "denied".to_owned(),
        (true, None) => "allowed".to_owned(),
        (true, Some(programs)) if programs.is_empty() => "allowed in relaxed mode only".to_owned(),
        (true, Some(programs)) => format!("allowed for {} only", programs.join(", ")),
    };
    writeln!(out, "{verdict}: {}", decision.reason)?;
    if let Some(program) = question.program {
        writeln!(out, "program: {}", program.executable.path)?;
        for ancestor in program.ancestors.iter() {
            writeln!(out, "started by: {}", ancestor.path)?;
        }
    }
    for (entry, index) in &decision.endpoints {
        writeln!(out, "endpoint: network_policies.{}.endpoints[{index}]: {}", entry.key, entry.endpoints[*index])?;
    }
    for (at, (entry, _)) in decision.endpoints.iter().enumerate() {
        let told = decision.endpoints[..at].iter().any(|(before, _)| before.key == entry.key);
        for binary in entry.binaries.iter().filter(|binary| !told && !binary.children) {
            writeln!(out, "lends nothing to what it starts: network_policies.{}.binaries: {}", entry.key, binary.path)?;
        }
    }
    for step in &decision.next_steps {
        writeln!(out, "next step: {step}")?;
    }
    match answer {
        Some(answer) => answer.in_words().iter().try_for_each(|line| writeln!(out, "{line}")),
        None if decision.allows() && decision.is_inspected() => {
            writeln!(
                out,
                "requests are judged one by one: ask with --method and --path, --rpc, --tool, --graphql or --service"
            )
        }
        None => Ok(()),
    }
}

fn in_json(
    question: Question<'_>,
    decision: &Decision,
    answer: Option<&Answer>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let endpoints: Vec<_> = decision
        .endpoints
        .iter()
        .map(|(entry, index)| {
            let endpoint = entry.endpoints[*index].to_string();
            json!({"policy": entry.key, "index": index, "endpoint": endpoint, "binaries": entry.binaries})
        })
        .collect();
    let answer = json!({
        "action": if decision.allows() { "allow" } else { "deny" },
        "reason": decision.reason,
        "host": question.host.to_string(),
        "port": question.port,
        "binary": question.program.map(|program| &*program.executable.path),
        "ancestors": question.program.map(|program| program.ancestors.iter().map(|a| &*a.path).collect::<Vec<_>>()),
        "only_for": only_for(question, decision),
        "policy": decision.policy,
        "endpoints": endpoints,
        "next_steps": decision.next_steps,
        "inspected": decision.is_inspected(),
        "request": answer.map(Answer::in_json),
    });
    writeln!(out, "{answer:#}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "
version: 1
network_policies:
  api:
    endpoints: [{host: '*.example.com', ports: [443, 8443]}]
    binaries: [{path: /nonexistent/curl}]
";

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        file
    }

    fn asked(text: &str, host: &str, port: u16, binary: Option<&str>, json: bool) -> (u8, String, String) {
        asked_about(text, host, port, binary, Request::default(), json)
    }

    fn asked_about(
        text: &str,
        host: &str,
        port: u16,
        binary: Option<&str>,
        request: Request,
        json: bool,
    ) -> (u8, String, String) {
        let file = file(text);
        let args = Explain {
            file: file.path().to_owned(),
            rules: None,
            wasm: None,
            host: host.to_owned(),
            port,
            binary: binary.map(str::to_owned),
            ancestors: vec!["/nonexistent/bash".to_owned()],
            request,
            json,
        };
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = explain(&args, &mut out, &mut err);
        (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
    }

    #[test]
    fn check_reports_every_error_at_once_with_its_place() {
        let bad =
            file("version: 2\nnetwork_policies:\n  a:\n    endpoint: []\n    endpoints: [{host: '*', port: 0}]\n");
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(check(bad.path(), &mut out, &mut err), FAILURE);
        let err = String::from_utf8(err).unwrap();
        let name = bad.path().display().to_string();
        let places: Vec<&str> = err.lines().map(|line| line.strip_prefix(&name).unwrap()).collect();
        assert_eq!(places.len(), 4, "{err}");
        assert!(places[0].starts_with(":1:10: version: "), "{err}");
        assert!(places[1].starts_with(":4:5: network_policies.a.endpoint: unknown key; did you mean \"endpoints\"?"));
        assert!(places[2].starts_with(":5:24: network_policies.a.endpoints[0].host: "), "{err}");
        assert!(places[3].starts_with(":5:35: network_policies.a.endpoints[0].port: "), "{err}");
        assert!(out.is_empty());
        let good = file(POLICY);
        assert_eq!(check(good.path(), &mut out, &mut Vec::new()), SUCCESS);
        assert!(String::from_utf8(out).unwrap().ends_with(": valid: 1 entry, 1 endpoint(s)\n"));
    }

    #[test]
    fn explain_shows_the_entry_or_what_is_missing() {
        let (code, out, _) = asked(POLICY, "A.example.com", 443, Some("/nonexistent/curl"), false);
        assert_eq!(code, SUCCESS, "{out}");
        assert!(out.contains("endpoint: network_policies.api.endpoints[0]: *.example.com:443,8443"), "{out}");
        let (code, out, _) = asked(POLICY, "a.example.com", 443, Some("/nonexistent/wget"), false);
        assert_eq!(code, FAILURE);
        assert!(out.starts_with("denied: /nonexistent/wget (started by /nonexistent/bash) may not reach"), "{out}");
        assert!(out.contains("next step: add under network_policies.api.binaries: - path: /nonexistent/wget"), "{out}");
        let (code, out, _) = asked(POLICY, "a.example.com", 443, None, false);
        assert_eq!(code, SUCCESS, "{out}");
    }

    #[test]
    fn explain_tells_who_lends_nothing() {
        let alone = POLICY.replace("nonexistent/curl", "nonexistent/bash, children: false");
        let (code, out, _) = asked(&alone, "a.example.com", 443, Some("/nonexistent/bash"), false);
        assert_eq!(code, SUCCESS, "{out}");
        let said = "lends nothing to what it starts: network_policies.api.binaries: /nonexistent/bash\n";
        assert!(out.contains(said), "{out}");
        let (_, out, _) = asked(&alone, "a.example.com", 443, Some("/nonexistent/bash"), true);
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(answer["endpoints"][0]["binaries"], json!([{"path": "/nonexistent/bash", "children": false}]));
        // Everything that is asked about was started by bash.
        let (code, out, _) = asked(&alone, "a.example.com", 443, Some("/nonexistent/wget"), false);
        assert_eq!(code, FAILURE, "{out}");
        assert!(out.contains("entry api allows /nonexistent/bash alone\n"), "{out}");
        // Control: what lends is enough, and nothing is said.
        let lending = POLICY.replace("nonexistent/curl", "nonexistent/bash");
        let (code, out, _) = asked(&lending, "a.example.com", 443, Some("/nonexistent/wget"), false);
        assert_eq!(code, SUCCESS, "{out}");
        assert!(!out.contains("lends"), "{out}");
    }

    #[test]
    fn explain_answers_in_json() {
        let (code, out, _) = asked(POLICY, "example.org", 443, Some("/nonexistent/curl"), true);
        assert_eq!(code, FAILURE);
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(answer["action"], "deny");
        assert_eq!(answer["host"], "example.org");
        assert_eq!(answer["binary"], "/nonexistent/curl");
        assert_eq!(answer["policy"], serde_json::Value::Null);
        assert!(answer["next_steps"][0].as_str().unwrap().contains("host: example.org, port: 443"));
    }

    #[test]
    fn check_warns_about_entries_that_allow_nothing() {
        let idle = file(
            "version: 1\nnetwork_policies:\n  a: {endpoints: [{host: api.example.com, port: 443}]}\n  b: {binaries: [{path: /x}]}\n",
        );
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(check(idle.path(), &mut out, &mut err), SUCCESS);
        let err = String::from_utf8(err).unwrap();
        assert!(err.contains("warning: network_policies.a allows nothing: it lists no binaries"), "{err}");
        assert!(err.contains("warning: network_policies.b allows nothing: it lists no endpoints"), "{err}");
        let (good, mut err) = (file(POLICY), Vec::new());
        assert_eq!(check(good.path(), &mut out, &mut err), SUCCESS);
        assert!(err.is_empty());
    }

    const REQUESTS: &str = "
version: 1
network_policies:
  api:
    endpoints:
      - {host: api.example.com, port: 443, path: /v1/**, protocol: rest, access: read-only}
      - {host: api.example.com, port: 443, path: /mcp, protocol: mcp, rules: [{allow: {tool: search}}]}
      - host: rpc.example.com
        port: 443
        protocol: grpc
        rules: [{allow: {service: pkg.Reader, method: 'Get*'}}]
      - {host: try.example.com, port: 443, protocol: rest, enforcement: audit, access: read-only}
      - {host: tunnel.example.com, port: 443}
      - {host: ws.example.com, port: 443, protocol: websocket, path: /listen, access: read-only}
      - {host: ws.example.com, port: 443, protocol: websocket, path: /speak, access: full}
      - host: ws.example.com
        port: 443
        path: /graphql
        protocol: websocket
        rules: [{allow: {method: GET, path: /graphql}}, {allow: {operation_type: query}}]
      - {host: graphql.example.com, port: 443, path: /graphql, protocol: graphql, access: read-only}
";

    #[test]
    fn explain_judges_a_request() {
        let text = |text: &str| Some(text.to_owned());
        let message = |path: &str, word: &str, graphql: Option<&str>| Request {
            method: text(word),
            path: text(path),
            graphql: graphql.map(str::to_owned),
            ..Request::default()
        };
        for (host, request, code, expected) in [
            ("api", Request { path: text("/v1/x"), ..Request::default() }, SUCCESS, "api.endpoints[0].access"),
            (
                "api",
                Request { method: text("POST"), path: text("/v1/x"), ..Request::default() },
                FAILURE,
                "request denied (403): access: read-only of network_policies.api.endpoints[0] does not allow POST /v1/x",
            ),
            (
                "api",
                Request { path: text("/v1//x"), ..Request::default() },
                FAILURE,
                "request denied (400): it holds an empty segment",
            ),
            (
                "api",
                Request { path: text("/mcp"), tool: text("search"), ..Request::default() },
                SUCCESS,
                "api.endpoints[1].rules[0]",
            ),
            (
                "api",
                Request { path: text("/mcp"), tool: text("delete"), ..Request::default() },
                FAILURE,
                "next step: add under network_policies.api.endpoints[1].rules: - {allow: {tool: delete}}",
            ),
            (
                "api",
                Request { path: text("/mcp"), method: text("POST"), ..Request::default() },
                UNDECIDED,
                "request undecided: its body decides",
            ),
            (
                "rpc",
                Request { service: text("pkg.Reader"), method: text("GetIt"), ..Request::default() },
                SUCCESS,
                "api.endpoints[2].rules[0]",
            ),
            (
                "rpc",
                Request { service: text("pkg.Reader"), method: text("SetIt"), ..Request::default() },
                FAILURE,
                "- {allow: {service: pkg.Reader, method: SetIt}}",
            ),
            (
                "try",
                Request { method: text("DELETE"), query: vec!["a=b c".into()], ..Request::default() },
                SUCCESS,
                "request: DELETE /?a=b%20c\nrequest allowed by enforcement: audit, else denied: ",
            ),
            (
                "tunnel",
                Request { method: text("DELETE"), ..Request::default() },
                SUCCESS,
                "request allowed: no endpoint reads requests",
            ),
            ("api", Request::default(), SUCCESS, "requests are judged one by one"),
            ("ws", message("/listen", "WEBSOCKET_TEXT", None), FAILURE, "does not allow WEBSOCKET_TEXT on /listen"),
            ("ws", message("/speak", "websocket_binary", None), SUCCESS, "opens, and WEBSOCKET_BINARY passes"),
            ("ws", message("/graphql", "WEBSOCKET_TEXT", None), UNDECIDED, "give --rpc, --tool or --graphql"),
            ("ws", message("/graphql", "WEBSOCKET_TEXT", Some("{ me }")), SUCCESS, "WEBSOCKET_TEXT passes"),
            ("ws", message("/graphql", "WEBSOCKET_TEXT", Some("mutation { set }")), FAILURE, "mutation {set}"),
            ("graphql", Request { graphql: text("{ me }"), ..Request::default() }, SUCCESS, "POST /graphql {\"query\""),
            ("graphql", Request { graphql: text("mutation { set }"), ..Request::default() }, FAILURE, "mutation {set}"),
            (
                "graphql",
                Request { method: text("POST"), path: text("/graphql"), ..Request::default() },
                UNDECIDED,
                "--graphql",
            ),
        ] {
            let host = format!("{host}.example.com");
            let (was, out, err) = asked_about(REQUESTS, &host, 443, None, request.clone(), false);
            assert_eq!(was, code, "{request:?} {out} {err}");
            assert!(out.contains(expected), "{request:?} {out}");
        }
        let request = Request { method: text("PUT"), path: text("/v1/x"), ..Request::default() };
        let (_, out, _) = asked_about(REQUESTS, "api.example.com", 443, None, request, true);
        let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((&answer["action"], &answer["inspected"]), (&"allow".into(), &true.into()));
        assert_eq!(answer["request"]["action"], "deny");
        assert_eq!(answer["request"]["rule_missing"]["rule"]["allow"], json!({"method": "PUT", "path": "/v1/x"}));
    }

    #[test]
    fn bad_questions_and_policies_are_told_apart() {
        let (code, out, err) = asked(POLICY, "a b", 443, None, false);
        assert_eq!((code, out.as_str()), (exit::USAGE, ""));
        assert!(err.contains("contains ' '"), "{err}");
        let (code, _, err) = asked("version: 3", "a", 443, None, false);
        assert_eq!(code, FAILURE);
        assert!(err.contains(":1:10: version: "), "{err}");
    }
}
