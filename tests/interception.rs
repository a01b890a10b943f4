//! Promises 15.x: requests under policy. Real clients speak to real origins through interception, nothing that they say
//! is lost on the way, and what the rules do not allow is refused so that they can tell why.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::clients::{CURL, PATIENCE, PYTHON, Policy, Site, cargo, git, node};
use crate::world::{Outcome, World};

const HOST: &str = "api.example.com";

/// How long an event stream says nothing. Nothing in the product knows this number: where silence ended a stream, it
/// would be a timer, and `limits.rs` has none for open responses.
const SILENCE: f64 = 4.0;

/// What a supervisor may hold at most while it relays bodies of any size: some twenty megabytes are its own, the rest is
/// room for buffers and roots.
const MEMORY_LIMIT_KIB: u64 = 96 * 1024;

/// Both versions of HTTP, as curl asks for them and as origins name them.
const VERSIONS: [(&str, &str); 2] = [("--http1.1", "HTTP/1.1"), ("--http2", "HTTP/2")];

/// Fails unless the script got through, which it says by `reached`.
#[track_caller]
fn reached(outcome: Outcome) -> Outcome {
    assert!(outcome.stdout.contains("reached"), "{outcome:?}");
    outcome
}

/// Fails unless the script did not get through, and its program printed each of `words`.
#[track_caller]
fn refused(outcome: Outcome, words: &[&str]) -> Outcome {
    assert!(!outcome.stdout.contains("reached"), "{outcome:?}");
    for word in words {
        assert!(outcome.stdout.contains(word) || outcome.stderr.contains(word), "{word} is not said: {outcome:?}");
    }
    outcome
}

/// The JSON that a script printed last.
#[track_caller]
fn json(outcome: &Outcome) -> serde_json::Value {
    let line = outcome.stdout.lines().rev().find(|line| line.starts_with('{'));
    let line = line.unwrap_or_else(|| panic!("no JSON: {outcome:?}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {outcome:?}"))
}

fn full(program: &str) -> Policy {
    Policy::full(&[program], HOST, 443, "rest")
}

#[test]
fn a_client_gets_the_version_of_http_that_it_and_the_origin_share() {
    let world = World::new();
    let site = Site::new(&world);
    let _both = site.origin("web.py", 443, &[]);
    let _old = site.origin("web.py", 8443, &["--alpn", "http/1.1"]);
    for (flag, version) in VERSIONS {
        let outcome = site.run(&full(CURL), &format!("curl -sS {flag} -d hello 'https://{HOST}/a/b?c=d'")).expect(0);
        let seen = json(&outcome);
        assert_eq!(
            (&seen["method"], &seen["path"], &seen["body"], &seen["protocol"], &seen["authority"]),
            (&"POST".into(), &"/a/b?c=d".into(), &"hello".into(), &version.into(), &HOST.into()),
        );
    }
    // A client that would rather speak HTTP/2 is told that this origin does not.
    let policy = Policy::full(&[CURL], HOST, 8443, "rest");
    let outcome = site.run(&policy, &format!("curl -sS --http2 -w '%{{http_version}}' https://{HOST}:8443/")).expect(0);
    assert!(outcome.stdout.ends_with("1.1"), "{outcome:?}");
    // HTTP/1.0 has no keep-alive and need not say Host; the origin's answer is still the origin's.
    let outcome = site.run(&full(CURL), &format!("curl -sS -0 https://{HOST}/old")).expect(0);
    assert_eq!(json(&outcome)["path"], "/old");
}

#[test]
fn the_client_trusts_the_sandbox_and_the_sandbox_the_origin() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let script = format!("curl -sSv https://{HOST}/ 2>&1 | grep -E 'issuer:|\"method\"'");
    let outcome = site.run(&full(CURL), &script).expect(0);
    assert!(outcome.stdout.contains("OpenShell Sandbox CA") && outcome.stdout.contains("GET"), "{outcome:?}");
    // An endpoint without request rules is a tunnel: the client meets the origin's own certificate, and does not know
    // its authority.
    let tunnelled = Policy::new(&[CURL], &[&format!("{{host: {HOST}, port: 443}}")]);
    let outcome = site.run(&tunnelled, &format!("curl -sSk -v https://{HOST}/ 2>&1 | grep -E 'issuer:|\"method\"'"));
    assert!(outcome.stdout.contains("Authority of the tests") && outcome.stdout.contains("GET"), "{outcome:?}");
    let skipped = Policy::new(&[CURL], &[&format!("{{host: {HOST}, port: 443, tls: skip}}")]);
    let outcome = site.run(&skipped, &format!("curl -sSk -v https://{HOST}/ 2>&1 | grep -E 'issuer:|\"method\"'"));
    assert!(outcome.stdout.contains("Authority of the tests") && outcome.stdout.contains("GET"), "{outcome:?}");
}

#[test]
fn an_origin_that_cannot_prove_its_name_is_502_with_the_reason() {
    let world = World::new();
    let site = Site::new(&world);
    let expired = site.identity("expired", &[HOST], |params| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    });
    let other = site.identity("other", &["other.example.com"], |_| {});
    let alone = site.self_signed("alone", &[HOST]);
    let _origins = [
        site.origin_as(&expired, "web.py", 8441, &[]),
        site.origin_as(&other, "web.py", 8442, &[]),
        site.origin_as(&alone, "web.py", 8443, &[]),
        site.origin("web.py", 8444, &[]),
    ];
    let run = |port: u16| {
        let policy = Policy::full(&[CURL], HOST, port, "rest");
        site.run(&policy, &format!("curl -sS -w '%{{http_code}}' https://{HOST}:{port}/")).stdout
    };
    for (port, words) in
        [(8441, ["502", "expired"]), (8442, ["502", "other.example.com"]), (8443, ["502", "self-signed"])]
    {
        let answer = run(port);
        assert!(words.iter().all(|word| answer.contains(word)), "{port}: {answer}");
    }
    // Control: the same with the right name, the right dates and the right issuer.
    assert!(run(8444).ends_with("200"));
}

#[test]
fn what_the_rules_do_not_allow_is_403_and_names_the_rule() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let rules = "rules: [{allow: {method: GET, path: /read/**}}]";
    let policy = Policy::new(&[CURL], &[&format!("{{host: {HOST}, port: 443, protocol: rest, {rules}}}")]);
    for (flag, _) in VERSIONS {
        let ask = |policy: &Policy, what: &str| {
            site.run(policy, &format!("curl -sS {flag} -o - -w '\\n%{{http_code}}' {what}")).expect(0)
        };
        let allowed = ask(&policy, &format!("https://{HOST}/read/a"));
        assert!(allowed.stdout.ends_with("200"), "{allowed:?}");
        for (what, method, path) in [
            (format!("-d x https://{HOST}/read/a"), "POST", "/read/a"),
            (format!("https://{HOST}/other"), "GET", "/other"),
        ] {
            let denied = ask(&policy, &what);
            assert!(denied.stdout.ends_with("403"), "{denied:?}");
            let body = json(&denied);
            assert_eq!(
                (&body["error"], &body["layer"], &body["protocol"], &body["method"], &body["path"], &body["host"]),
                (&"policy_denied".into(), &"l7".into(), &"rest".into(), &method.into(), &path.into(), &HOST.into()),
            );
            assert!(!body["rule_missing"].is_null() && !body["next_steps"].as_array().is_none_or(Vec::is_empty));
            // Control: it is the rules that refuse it.
            assert!(ask(&full(CURL), &what).stdout.ends_with("200"));
        }
        // A refusal can be read although the client would have sent more.
        let upload = format!("--data-binary @/bin/bash https://{HOST}/read/a");
        for more in ["", "-H Expect:", "-H 'Expect: 100-continue'"] {
            let denied = ask(&policy, &format!("{more} {upload}"));
            assert!(denied.stdout.ends_with("403"), "{more}: {denied:?}");
            assert_eq!(json(&denied)["method"], "POST");
        }
        assert!(ask(&full(CURL), &upload).stdout.ends_with("200"));
        // A refusal costs the connection of HTTP/2 nothing: the next request on it passes.
        let pair = ask(&policy, &format!("https://{HOST}/other -o - https://{HOST}/read/b"));
        assert!(pair.stdout.contains("403") && pair.stdout.ends_with("200"), "{pair:?}");
    }
}

#[test]
fn what_reads_two_ways_takes_leave_and_is_judged_in_both() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let policy = |more: &str| {
        Policy::new(&[CURL], &[&format!("{{host: {HOST}, port: 443, protocol: rest, access: full{more}}}")])
    };
    let leave = policy(", allow_ambiguous_paths: true");
    let narrowed = policy(", allow_ambiguous_paths: true, deny_rules: [{path: /a/b}, {query: {admin: \"*\"}}]");
    for (flag, _) in VERSIONS {
        let ask = |policy: &Policy, target: &str| {
            let outcome = site.run(policy, &format!("curl -sS {flag} -w '\n%{{http_code}}' 'https://{HOST}{target}'"));
            let (body, status) = outcome
                .expect(0)
                .stdout
                .trim_end()
                .rsplit_once('\n')
                .map(|(b, s)| (b.to_owned(), s.to_owned()))
                .expect("a status");
            (serde_json::from_str::<serde_json::Value>(&body).expect("JSON"), status)
        };
        for (target, ambiguous) in [("/a//b", true), ("/a;x/b", true), ("/a%3Bx/b", true), ("/c?a=1;admin=1", false)] {
            let (refusal, status) = ask(&full(CURL), target);
            assert_eq!(status, if ambiguous { "400" } else { "200" }, "{target}");
            if ambiguous {
                let step = refusal["next_steps"][0].as_str().unwrap_or_default();
                assert!(step.contains("allow_ambiguous_paths: true"), "{refusal}");
            }
            // Control: with leave it passes, as it was sent; and what one of its readings is denied does not.
            let (seen, status) = ask(&leave, target);
            assert_eq!((&seen["path"], status.as_str()), (&target.into(), "200"), "{seen}");
            assert_eq!(ask(&narrowed, target).1, "403", "{target}");
        }
        assert_eq!(ask(&narrowed, "/c//d?a=1;b=1").1, "200");
    }
}

#[test]
fn audit_lets_through_and_reports() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let policy = |enforcement: &str| {
        let endpoint = format!("host: {HOST}, port: 443, protocol: rest, access: read-only");
        Policy::new(&[CURL], &[&format!("{{{endpoint}, enforcement: {enforcement}}}")])
    };
    let script = format!("curl -sS -d x -w '%{{http_code}}' https://{HOST}/write");
    let audited = site.run(&policy("audit"), &script);
    assert!(audited.stdout.ends_with("200") && audited.stderr.contains("/write"), "{audited:?}");
    assert!(site.run(&policy("enforce"), &script).stdout.ends_with("403"));
}

#[test]
fn another_host_in_the_request_is_refused() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    for (flag, _) in VERSIONS {
        let ask = |more: &str| {
            site.run(&full(CURL), &format!("curl -sS {flag} -w '%{{http_code}}' {more} https://{HOST}/")).stdout
        };
        let answer = ask("-H 'Host: other.example.com'");
        assert!(answer.contains("request_authority_mismatch") && answer.ends_with("403"), "{flag}: {answer}");
        // Control.
        assert!(ask(&format!("-H 'Host: {HOST}'")).ends_with("200"));
    }
    // The name in the ClientHello, too: the tunnel was asked for HOST, the handshake is for another.
    let ask = |name: &str| {
        let connect = format!("--connect-to {name}:443:{HOST}:443");
        site.run(&full(CURL), &format!("curl -sSk -w '%{{http_code}}' {connect} https://{name}/")).stdout
    };
    let answer = ask("other.example.com");
    assert!(!answer.ends_with("200"), "{answer}");
    // Control.
    assert!(ask(HOST).ends_with("200"));
}

#[test]
fn interim_responses_trailers_and_refusals_before_the_body_pass() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    for (flag, _) in VERSIONS {
        let curl = |what: &str| {
            let outcome = site.run(&full(CURL), &format!("curl -sS {flag} {what}"));
            assert_eq!(outcome.code, Some(0), "{what}: {outcome:?}");
            outcome.stdout
        };
        let hints = curl(&format!("-D - https://{HOST}/hints"));
        // In HTTP/2 they stay here: see README.
        let expected = if flag.contains("1.1") { 2 } else { 0 };
        assert_eq!(hints.matches(" 103").count(), expected, "{hints}");
        assert!(hints.contains("</style2.css>; rel=preload") == (expected == 2), "{hints}");
        // HTTP/2 knows no Connection field (RFC 9113 §8.2.2).
        let hop = if flag.contains("1.1") { "-H 'Connection: TE'" } else { "" };
        let trailers = curl(&format!("-i -H 'TE: trailers' {hop} -d hello https://{HOST}/trailers"));
        assert!(trailers.contains("x-length: 5"), "{trailers}");
        // The origin's refusal arrives although the client never sent the body that it announced.
        let begun = Instant::now();
        let early = curl(&format!(
            "-H 'Expect: 100-continue' --expect100-timeout 60 --data-binary @/bin/bash https://{HOST}/refuse"
        ));
        assert!(early.contains(r#""refused": "POST""#), "{early}");
        assert!(begun.elapsed() < Duration::from_secs(20), "the refusal waited for the body");
        // In HTTP/1.1 the origin's 100 reaches whoever waits for it; in HTTP/2 nothing does, and it goes on by itself.
        let patience = if flag.contains("1.1") { 60 } else { 2 };
        let begun = Instant::now();
        let asked =
            curl(&format!("-H 'Expect: 100-continue' --expect100-timeout {patience} -d hello https://{HOST}/x"));
        assert!(asked.contains(r#""body": "hello""#), "{asked}");
        assert!(begun.elapsed() < Duration::from_secs(20), "the 100 did not come");
        let head = curl(&format!("-I https://{HOST}/bytes/1234"));
        assert!(head.to_ascii_lowercase().contains("content-length: 1234"), "{head}");
        let empty = curl(&format!("-i https://{HOST}/status/204"));
        assert!(empty.contains(" 204"), "{empty}");
        let chunked = curl(&format!("-X POST -T - https://{HOST}/sink </bin/bash"));
        let length = fs::metadata("/bin/bash").expect("bash").len();
        assert!(chunked.contains(&format!(r#""length": {length}"#)), "{chunked}");
    }
    let node = node();
    for version in ["h1", "h2"] {
        let script = format!("$NODE $CLIENTS/trailers.mjs {version} https://{HOST}/trailers");
        let outcome = site.run(&full(&node), &script).expect(0);
        assert_eq!(outcome.stdout.trim(), format!("hello 5 x-sent={version}"), "{outcome:?}");
    }
}

#[test]
fn bodies_of_any_size_stream_both_ways_in_flat_memory() {
    const SIZE: u64 = 256 * 1024 * 1024;
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    for (flag, _) in VERSIONS {
        let script = format!(
            "set -e; curl -sS {flag} https://{HOST}/bytes/{SIZE}?chunked | wc -c; \
             head -c {SIZE} /dev/zero | curl -sS {flag} -X POST -T - https://{HOST}/sink"
        );
        let mut command = site.sandbox(&full(CURL)).shell(&script).build();
        let output = world.file("output", "");
        command.stdout(fs::File::create(&output).expect("a file"));
        let mut daemon = crate::world::Daemon::spawn(command);
        let mut most = 0;
        let deadline = std::time::Instant::now() + PATIENCE;
        while daemon.wait_within(Duration::from_millis(50)).is_none() {
            assert!(std::time::Instant::now() < deadline, "never done");
            most = most.max(resident(daemon.pid()));
        }
        let said = fs::read_to_string(&output).expect("output");
        assert!(said.starts_with(&SIZE.to_string()) && said.contains(&format!(r#""length": {SIZE}"#)), "{said}");
        assert!(most > 0 && most < MEMORY_LIMIT_KIB, "{flag}: {most} KiB");
    }
}

/// What a process has held at most, in KiB.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

#[test]
fn python_by_urllib_requests_and_httpx() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let read_only =
        Policy::new(&[PYTHON], &[&format!("{{host: {HOST}, port: 443, protocol: rest, access: read-only}}")]);
    let versions = [("urllib", "HTTP/1.1"), ("requests", "HTTP/1.1"), ("httpx", "HTTP/1.1"), ("httpx-h2", "HTTP/2")];
    for (library, version) in versions {
        let ask = |policy: &Policy, method: &str, path: &str| {
            let script = format!("$PYTHON $CLIENTS/http_python.py {library} {method} https://{HOST}{path}");
            site.run(policy, &script).expect(0).stdout
        };
        let read = ask(&read_only, "GET", "/reached");
        assert!(read.starts_with(&format!("{version} 200")) && read.contains("/reached"), "{library}: {read}");
        let denied = ask(&read_only, "DELETE", "/x");
        assert!(denied.contains(" 403 ") && denied.contains("policy_denied"), "{library}: {denied}");
        assert!(ask(&full(PYTHON), "DELETE", "/x").contains(" 200 "));
    }
}

#[test]
fn node_by_fetch_https_and_undici() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let node = node();
    let read_only =
        Policy::new(&[&node], &[&format!("{{host: {HOST}, port: 443, protocol: rest, access: read-only}}")]);
    for library in ["fetch", "https", "undici", "undici-h2"] {
        let ask = |policy: &Policy, method: &str| {
            site.run(policy, &format!("$NODE $CLIENTS/fetch.mjs {library} {method} https://{HOST}/x")).stdout
        };
        let read = ask(&read_only, "GET");
        assert!(read.starts_with("200 ") && read.contains("HTTP/2") == library.ends_with("h2"), "{library}: {read}");
        let denied = ask(&read_only, "DELETE");
        assert!(denied.starts_with("403 ") && denied.contains("policy_denied"), "{library}: {denied}");
        assert!(ask(&full(&node), "DELETE").starts_with("200 "));
    }
}

/// A directory with `project.git`, empty, that can be pushed to.
pub fn bare_repository(world: &World) -> std::path::PathBuf {
    let repositories = world.directory().join("repositories");
    fs::create_dir(&repositories).expect("mkdir");
    let repository = repositories.join("project.git");
    fs::create_dir(&repository).expect("mkdir");
    for arguments in [
        &["init", "-q", "--bare", "-b", "main"][..],
        &["config", "http.receivepack", "true"],
        // The pack is kept as it comes: to press its objects anew would be most of the test.
        &["config", "receive.unpackLimit", "1"],
    ] {
        let output = Command::new("git").args(arguments).current_dir(&repository).output().expect("git");
        assert!(output.status.success(), "{output:?}");
    }
    repositories
}

#[test]
fn git_clones_and_pushes_and_may_be_kept_from_pushing() {
    let world = World::new();
    let site = Site::new(&world);
    let repositories = bare_repository(&world);
    let _origin = site.origin("git_http.py", 443, &["--root", &repositories.display().to_string()]);
    let git = git();
    let everything = Policy::full(&[&git], "github.com", 443, "rest");
    let push = |size: u32| format!("sh $CLIENTS/git.sh push https://github.com/project.git {size} 2>&1");
    // 200 MB in one pack, incompressible, as the request's body.
    reached(site.run(&everything, &push(200_000_000)));
    let fetch = "rules: [{allow: {method: GET, path: /**/info/refs, query: {service: git-upload-pack}}}, \
                 {allow: {method: POST, path: /**/git-upload-pack}}]";
    let clone_only = Policy::new(&[&git], &[&format!("{{host: github.com, port: 443, protocol: rest, {fetch}}}")]);
    reached(site.run(&clone_only, "sh $CLIENTS/git.sh clone https://github.com/project.git 2>&1"));
    refused(site.run(&clone_only, &push(10)), &["403"]);
    // Control: it is the rules that refuse it.
    reached(site.run(&everything, &push(10)));
}

#[test]
fn pip_npm_and_cargo_install_and_may_be_kept_from_publishing() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("packages.py", 443, &[]);
    let (node, cargo) = (node(), cargo());
    let read_only = |program: &str| {
        Policy::new(&[program], &[&format!("{{host: {HOST}, port: 443, protocol: rest, access: read-only}}")])
    };
    reached(site.run(&read_only(PYTHON), &format!("sh $CLIENTS/pip.sh https://{HOST}/pypi/simple/ 2>&1")));
    // Debian's own pip as well, which knows no truststore.
    let debian = format!("unset PYTHONPATH; sh $CLIENTS/pip.sh https://{HOST}/pypi/simple/ 2>&1");
    reached(site.run(&read_only(PYTHON), &debian));
    reached(site.run(&read_only(&node), &format!("sh $CLIENTS/npm.sh install https://{HOST}/npm/ 2>&1")));
    reached(site.run(&read_only(&cargo), &format!("sh $CLIENTS/cargo.sh https://{HOST}/cargo/index/ 2>&1")));
    let publish = format!("sh $CLIENTS/npm.sh publish https://{HOST}/npm/ 2>&1");
    refused(site.run(&read_only(&node), &publish), &["403"]);
    reached(site.run(&full(&node), &publish));
}

#[test]
fn grpc_calls_of_every_kind_with_status_deadline_and_cancellation() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("rpc.py", 443, &[]);
    let echo = "rules: [{allow: {service: openshell.test.Echo, method: \"*\"}}]";
    let policy = Policy::new(&[PYTHON], &[&format!("{{host: {HOST}, port: 443, protocol: grpc, {echo}}}")]);
    let call = |act: &str| format!("$PYTHON $CLIENTS/grpc_calls.py {HOST}:443 {act} 2>&1");
    for act in ["unary", "download", "upload", "chat", "fail", "deadline", "cancel"] {
        reached(site.run(&policy, &call(act)));
    }
    // Messages beyond every window of flow control on the way.
    reached(site.run(&policy, &call("download 20 4000000")));
    let denied = site.run(&policy, &call("drop"));
    refused(denied, &["status PERMISSION_DENIED", "openshell.test.Admin"]);
    reached(site.run(&Policy::full(&[PYTHON], HOST, 443, "grpc"), &call("drop")));
}

#[test]
fn websockets_by_upgrade_and_by_extended_connect() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let node = node();
    let clients = [
        (PYTHON, "$PYTHON $CLIENTS/websocket_python.py"),
        (PYTHON, "$PYTHON $CLIENTS/websocket_h2.py"),
        (node.as_str(), "$NODE $CLIENTS/websocket.mjs node"),
        (node.as_str(), "$NODE $CLIENTS/websocket.mjs undici"),
        (node.as_str(), "$NODE $CLIENTS/websocket.mjs undici-h2"),
    ];
    for (program, client) in clients {
        let script = format!("{client} wss://{HOST}/ws 2>&1");
        for protocol in ["websocket", "rest"] {
            reached(site.run(&Policy::full(&[program], HOST, 443, protocol), &script));
        }
        let elsewhere = "rules: [{allow: {method: GET, path: /other}}]";
        let policy =
            Policy::new(&[program], &[&format!("{{host: {HOST}, port: 443, protocol: websocket, {elsewhere}}}")]);
        refused(site.run(&policy, &script), &[]);
    }
}

#[test]
fn a_websocket_that_may_only_listen_is_closed_with_1008_when_it_speaks() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let listen =
        Policy::new(&[PYTHON], &[&format!("{{host: {HOST}, port: 443, protocol: websocket, access: read-only}}")]);
    let script = format!("$PYTHON $CLIENTS/websocket_python.py wss://{HOST}/ws 2>&1");
    let outcome = refused(site.run(&listen, &script), &["closed 1008"]);
    assert!(outcome.stderr.contains(&format!("denied GET {HOST}:443/ws by policy test")), "{outcome:?}");
    // Control: what may speak is echoed.
    reached(site.run(&Policy::full(&[PYTHON], HOST, 443, "websocket"), &script));
}

#[test]
fn events_arrive_as_they_come_and_silence_is_no_end() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    for library in ["requests", "httpx", "httpx-h2"] {
        let url = format!("https://{HOST}/events?count=3&silence={SILENCE}");
        let outcome = reached(site.run(&full(PYTHON), &format!("$PYTHON $CLIENTS/events.py {library} '{url}'")));
        let times: Vec<f64> = outcome.stdout.lines().filter_map(|line| line.split_once(' ')?.0.parse().ok()).collect();
        assert_eq!(times.len(), 3, "{outcome:?}");
        // The first two were not held back until the last, or until the end.
        assert!(times[2] - times[1] > SILENCE * 0.75, "{library}: {times:?}");
    }
}

#[test]
fn an_mcp_session_lists_and_calls_what_it_may() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("mcp_tools.py", 443, &[]);
    let methods = ["initialize", "notifications/initialized", "server/discover", "tools/list"];
    let mut rules: Vec<String> = methods.iter().map(|method| format!("{{allow: {{method: {method}}}}}")).collect();
    rules.extend(["read_note", "count"].map(|tool| format!("{{allow: {{method: tools/call, tool: {tool}}}}}")));
    let rules = format!("path: /mcp, protocol: mcp, rules: [{}]", rules.join(", "));
    let policy = Policy::new(&[PYTHON], &[&format!("{{host: {HOST}, port: 443, {rules}}}")]);
    let everything = "path: /mcp, protocol: mcp, mcp: {allow_all_known_mcp_methods: true}";
    let everything = Policy::new(&[PYTHON], &[&format!("{{host: {HOST}, port: 443, {everything}}}")]);
    for mode in ["legacy", "auto"] {
        let call = |policy: &Policy, tool: &str, given: &str| {
            let script = format!("$PYTHON $CLIENTS/mcp_calls.py https://{HOST}/mcp {mode} {tool} '{given}' 2>&1");
            site.run(policy, &script).stdout
        };
        let read = call(&policy, "read_note", r#"{"name":"a"}"#);
        assert!(read.contains("answer note a: reached"), "{mode}: {read}");
        // Progress comes on the stream of the answer, while the call is under way.
        let counted = call(&policy, "count", r#"{"steps":5}"#);
        assert!(counted.contains("answer counted to 5 progress 5"), "{mode}: {counted}");
        let denied = call(&policy, "delete_note", r#"{"name":"a"}"#);
        // What the client itself makes of the refusal tells what to do about it.
        let failed = denied.lines().find(|line| line.starts_with("failed")).unwrap_or_default();
        for told in ["tools/call delete_note", "add under", "{allow: {tool: delete_note}}"] {
            assert!(failed.contains(told), "{mode}: {told}: {denied}");
        }
        assert!(!denied.contains("deleted"), "{mode}: {denied}");
        let deleted = call(&everything, "delete_note", r#"{"name":"a"}"#);
        assert!(deleted.contains("note a: deleted"), "{mode}: {deleted}");
    }
}

#[test]
fn graphql_queries_pass_where_mutations_do_not() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("graphql.py", 443, &[]);
    let policy = |access: &str| {
        Policy::new(
            &[CURL],
            &[&format!("{{host: {HOST}, port: 443, path: /graphql, protocol: graphql, access: {access}}}")],
        )
    };
    for (flag, _) in VERSIONS {
        let ask = |access: &str, query: &str| {
            let body = serde_json::json!({ "query": query }).to_string();
            let json = "-H 'Content-Type: application/json'";
            site.run(&policy(access), &format!("curl -sS {flag} {json} -d '{body}' https://{HOST}/graphql"))
                .expect(0)
                .stdout
        };
        assert!(ask("read-only", "query { notes { id } }").contains(r#""data""#));
        let denied = ask("read-only", "mutation { drop { id } }");
        assert!(denied.contains("policy_denied") && !denied.contains(r#""data""#), "{denied}");
        assert!(ask("full", "mutation { drop { id } }").contains(r#""data""#));
    }
}
