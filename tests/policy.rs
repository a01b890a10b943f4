//! Promises 2.x: a policy file is judged whole, and a decision can be explained before it is made.

use serde_json::Value;

use crate::world::{World, policy_text};

#[test]
fn check_tells_every_problem_at_once_with_line_and_column() {
    let world = World::new();
    let text = "version: 1
filesystem_policy:
  read_only: [relative/path]
  read_write: [/]
process:
  run_as_user: root
network_policies:
  first:
    endpoints:
      - {host: \"*\", port: 443}
      - {host: api.example.com, port: 70000}
      - {host: api.example.com, port: 443, protocol: sql, access: full}
    binaries: []
unknown_section: true
";
    let file = world.file("bad.yaml", text);
    let outcome = world.role("policy").arg("check").arg(&file).output().expect(1);
    for (line, word) in [
        (3, "read_only"),
        (4, "read_write"),
        (6, "root"),
        (10, "host"),
        (11, "port"),
        (12, "protocol"),
        (14, "unknown_section"),
    ] {
        let place = format!("bad.yaml:{line}:");
        assert!(
            outcome
                .stderr
                .lines()
                .chain(outcome.stdout.lines())
                .any(|told| told.contains(&place) && told.contains(word)),
            "line {line} ({word}) is not told:\n{}{}",
            outcome.stdout,
            outcome.stderr
        );
    }
    let good = world.file("good.yaml", policy_text("/usr/bin/curl", &["api.example.com:443"]));
    world.role("policy").arg("check").arg(good).output().expect(0);
    world.role("policy").args(["check", "/nonexistent.yaml"]).output().expect(1);
}

#[test]
fn what_is_not_enforced_yet_is_refused_at_load() {
    let world = World::new();
    for field in [
        "protocol: sql",
        "credential_signing: sigv4",
        "signing_service: s3",
        "credential_binding: {provider: x}",
        "request_body_credential_rewrite: true",
        "websocket_credential_rewrite: true",
    ] {
        let text = format!(
            "version: 1\nnetwork_policies: {{a: {{endpoints: [{{host: api.example.com, port: 443, {field}}}], binaries: [{{path: \
             /usr/bin/curl}}]}}}}\n"
        );
        let file = world.file("early.yaml", text);
        let outcome = world.role("policy").arg("check").arg(&file).output().expect(1);
        let name = field.split(':').next().expect("a name");
        assert!(outcome.stderr.contains(name) || outcome.stdout.contains(name), "{field}: {outcome:?}");
        world.run().policy(&file).command(["/bin/true"]).output().expect(125);
    }
    // Control: what is enforced is taken.
    let file = world.file(
        "now.yaml",
        "version: 1\nnetwork_policies: {a: {endpoints: [{host: api.example.com, port: 443, protocol: rest, access: read-only, enforcement: audit}], binaries: [{path: \
         /usr/bin/curl}]}}\n",
    );
    world.role("policy").arg("check").arg(&file).output().expect(0);
}

#[test]
fn explain_tells_the_entry_or_what_is_missing() {
    let world = World::new();
    let file = world.file("policy.yaml", policy_text("/usr/bin/curl", &["api.example.com:443", "*.example.org:8443"]));
    let explain = |host: &str, port: &str, binary: &str, code: i32| -> Value {
        let outcome = world
            .role("policy")
            .arg("explain")
            .arg(&file)
            .args(["--host", host, "--port", port, "--binary", binary, "--json"])
            .output()
            .expect(code);
        serde_json::from_str(&outcome.stdout).expect("JSON")
    };
    let allowed = explain("API.example.com.", "443", "/usr/bin/curl", 0);
    assert_eq!((&allowed["action"], &allowed["policy"]), (&"allow".into(), &"test".into()), "{allowed}");
    assert_eq!(explain("a.example.org", "8443", "/usr/bin/curl", 0)["action"], "allow");
    for (host, port, binary, word) in [
        ("other.example.com", "443", "/usr/bin/curl", "other.example.com"),
        ("api.example.com", "80", "/usr/bin/curl", "443"),
        ("api.example.com", "443", "/usr/bin/wget", "/usr/bin/curl"),
        ("a.b.example.org", "8443", "/usr/bin/curl", "a.b.example.org"),
    ] {
        let denied = explain(host, port, binary, 1);
        assert_eq!(denied["action"], "deny", "{denied}");
        assert!(denied["reason"].as_str().is_some_and(|reason| reason.contains(word)), "{word}: {denied}");
    }
}

#[test]
fn explain_tells_what_becomes_of_a_request() {
    let world = World::new();
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/policies/examples/agent-api.yaml");
    let explain = |host: &str, binary: &str, request: &[&str], code: i32| -> Value {
        let outcome = world
            .role("policy")
            .args(["explain", file, "--host", host, "--port", "443", "--binary", binary, "--json"])
            .args(request)
            .output()
            .expect(code);
        serde_json::from_str(&outcome.stdout).expect("JSON")
    };
    let (git, agent) = ("/usr/bin/git", "/usr/bin/python3.11");
    let refs = ["--path", "/octo/cat.git/info/refs", "--query"];
    for (host, binary, request, code) in [
        ("github.com", git, &[&refs[..], &["service=git-upload-pack"]].concat()[..], 0),
        ("github.com", git, &[&refs[..], &["service=git-receive-pack"]].concat(), 1),
        ("github.com", git, &["--method", "POST", "--path", "/octo/cat.git/git-upload-pack"], 0),
        ("github.com", git, &["--method", "POST", "--path", "/octo/cat.git/git-receive-pack"], 1),
        ("api.example.com", agent, &["--path", "/v1/items"], 0),
        ("api.example.com", agent, &["--method", "POST", "--path", "/v1/items"], 1),
        ("grpc.example.com", agent, &["--service", "inventory.v1.Inventory", "--method", "GetItem"], 0),
        ("grpc.example.com", agent, &["--service", "inventory.v1.Inventory", "--method", "DeleteItem"], 1),
        ("mcp.example.com", agent, &["--path", "/mcp", "--tool", "search"], 0),
        ("mcp.example.com", agent, &["--path", "/mcp", "--tool", "delete"], 1),
        ("mcp.example.com", agent, &["--path", "/mcp", "--rpc", "initialize"], 0),
        ("mcp.example.com", agent, &["--path", "/mcp", "--method", "POST"], 3),
    ] {
        let answer = explain(host, binary, request, code);
        assert_eq!(answer["action"], "allow", "{answer}");
        let action = ["allow", "deny", "", "undecided"][usize::try_from(code).expect("a code")];
        assert_eq!(answer["request"]["action"], action, "{request:?}: {answer}");
    }
    let denied = explain("api.example.com", agent, &["--method", "POST", "--path", "/v1/items"], 1);
    let rule = &denied["request"]["rule_missing"]["rule"]["allow"];
    assert_eq!((&rule["method"], &rule["path"]), (&"POST".into(), &"/v1/items".into()), "{denied}");
}

#[test]
fn without_a_policy_there_is_no_network_and_the_usual_paths() {
    let world = World::new();
    let _origin = crate::origins::Origin::start(&world, 80, crate::origins::hello());
    let outcome = world.run().shell("curl -sS -o /dev/null -w '%{http_code}' http://api.example.com/; touch /tmp/openshell-writes && rm \
                                     /tmp/openshell-writes && cat /etc/hostname >/dev/null && echo fine; ls / >/dev/null").output();
    assert!(outcome.stdout.starts_with("403fine"), "{outcome:?}");
    // Control: a quick try.
    let outcome = world
        .run()
        .args(["--allow", "api.example.com:80"])
        .shell("curl -sS http://api.example.com/")
        .output()
        .expect(0);
    assert_eq!(outcome.stdout, "hello from GET /\n");
    world.run().args(["--allow", "api.example.com"]).command(["/bin/true"]).output().expect(2);
}

#[test]
fn rules_of_the_operators_replace_the_shipped_ones() {
    let world = World::new();
    let _origin = crate::origins::Origin::start(&world, 80, crate::origins::hello());
    let rules = world.file(
        "rules.rego",
        "package openshell.egress\nimport rego.v1\ndecision := {\"action\": \"allow\", \"reason\": \"house rule\", \"policy\": \"house\", \
         \"endpoints\": [{\"policy\": \"test\", \"index\": 0}]} if { input.network.host == \"api.example.com\" }\nelse := {\"action\": \"deny\", \
         \"reason\": \"not in the house\", \"policy\": null, \"endpoints\": []}\n",
    );
    let policy = world.policy("policy.yaml", "/usr/bin/no-such-program", &["api.example.com:80"]);
    let script = "curl -sS http://api.example.com/; curl -sS http://other.example.com/";
    let outcome = world.run().policy(&policy).arg("--policy-rules").arg(&rules).shell(script).output().expect(0);
    assert!(outcome.stdout.contains("hello") && outcome.stdout.contains("not in the house"), "{outcome:?}");
    // Control: by the shipped rules the program is not allowed.
    assert!(!world.run().policy(&policy).shell(script).output().stdout.contains("hello"));
    let broken = world.file("broken.rego", "package openshell.egress\nno rego");
    let outcome =
        world.run().policy(&policy).arg("--policy-rules").arg(&broken).command(["/bin/true"]).output().expect(125);
    assert!(outcome.stderr.contains("broken.rego"), "{}", outcome.stderr);
}
