//! `policy check` and `policy explain`: a policy seen by the person who writes it.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use sha2::{Digest, Sha256};

use crate::attribution::{Executable, Program};
use crate::contract::exit;
use crate::policy::decision::{Decision, Question};
use crate::policy::host::Host;
use crate::policy::{Policy, PolicySource, Sources, Store};

/// Everything is as it should be.
const SUCCESS: u8 = 0;

/// The policy is invalid, or refuses what was asked.
const FAILURE: u8 = 1;

/// Largest program whose digest is taken: larger ones are not read for an explanation that they cannot change.
const MAX_DIGESTED: u64 = 512 * 1024 * 1024;

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
    /// Answer in JSON.
    pub json: bool,
}

/// Validates a policy file: 0 and a summary, or 1 and everything that is wrong with it.
pub fn check(file: &Path, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    match Policy::load(file) {
        Ok(policy) => {
            let endpoints: usize = policy.network.iter().map(|entry| entry.endpoints.len()).sum();
            let summary = match policy.network.len() {
                0 => "no network at all".to_owned(),
                1 => format!("1 entry, {endpoints} endpoint(s)"),
                entries => format!("{entries} entries, {endpoints} endpoint(s)"),
            };
            finish(writeln!(out, "{}: valid: {summary}", file.display()), SUCCESS)
        }
        Err(error) => finish(writeln!(err, "{error}"), FAILURE),
    }
}

/// Says what the policy decides and why, or what it lacks: 0 allowed, 1 refused or invalid, 2 a question that is none.
pub fn explain(args: &Explain, out: &mut dyn Write, err: &mut dyn Write) -> u8 {
    let host = match Host::parse(&args.host) {
        Ok(host) => host,
        Err(error) => return finish(writeln!(err, "--host {:?}: {error}", args.host), exit::USAGE),
    };
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
    let decision = store.current().evaluate(question);
    let written = if args.json { in_json(question, &decision, out) } else { in_words(question, &decision, out) };
    finish(written, if decision.allows() { SUCCESS } else { FAILURE })
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

fn in_words(question: Question<'_>, decision: &Decision, out: &mut dyn Write) -> io::Result<()> {
    let verdict = if decision.allows() { "allowed" } else { "denied" };
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
    for step in &decision.next_steps {
        writeln!(out, "next step: {step}")?;
    }
    Ok(())
}

fn in_json(question: Question<'_>, decision: &Decision, out: &mut dyn Write) -> io::Result<()> {
    let endpoints: Vec<_> = decision
        .endpoints
        .iter()
        .map(|(entry, index)| json!({"policy": entry.key, "index": index, "endpoint": entry.endpoints[*index].to_string()}))
        .collect();
    let answer = json!({
        "action": if decision.allows() { "allow" } else { "deny" },
        "reason": decision.reason,
        "host": question.host.to_string(),
        "port": question.port,
        "binary": question.program.map(|program| &*program.executable.path),
        "ancestors": question.program.map(|program| program.ancestors.iter().map(|a| &*a.path).collect::<Vec<_>>()),
        "policy": decision.policy,
        "endpoints": endpoints,
        "next_steps": decision.next_steps,
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
        let file = file(text);
        let args = Explain {
            file: file.path().to_owned(),
            rules: None,
            wasm: None,
            host: host.to_owned(),
            port,
            binary: binary.map(str::to_owned),
            ancestors: vec!["/nonexistent/bash".to_owned()],
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
    fn bad_questions_and_policies_are_told_apart() {
        let (code, out, err) = asked(POLICY, "a b", 443, None, false);
        assert_eq!((code, out.as_str()), (exit::USAGE, ""));
        assert!(err.contains("contains ' '"), "{err}");
        let (code, _, err) = asked("version: 3", "a", 443, None, false);
        assert_eq!(code, FAILURE);
        assert!(err.contains(":1:10: version: "), "{err}");
    }
}
