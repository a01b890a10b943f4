//! Promises 32.x: a program's right is its own, its children's where the policy says so, and nobody else's.

use crate::origins::{self, Origin};
use crate::world::{Outcome, World};

const CURL: &str = "curl -sS http://api.example.com/";

/// Becomes git once it has left something behind that asks half a second later. Git waits for the end of its input.
fn leaving_behind(what: &str) -> String {
    format!("sleep 4 | sh -c '({what}) >&3 & exec /usr/bin/git hash-object --stdin >/dev/null' 3>&1")
}

struct Stage {
    world: World,
    _origin: Origin,
}

impl Stage {
    fn new() -> Self {
        let world = World::new();
        let origin = Origin::start(&world, 80, origins::http(|_| "reached\n".to_owned()));
        Self { world, _origin: origin }
    }

    /// A policy whose one entry has these programs, in YAML.
    fn policy(&self, binaries: &str) -> std::path::PathBuf {
        self.world.file(
            "policy.yaml",
            format!(
                "version: 1\nfilesystem_policy: {{include_workdir: false, read_write: [/tmp]}}\nnetwork_policies: {{t: {{endpoints: \
                 [{{host: api.example.com, port: 80}}], binaries: [{binaries}]}}}}\n"
            ),
        )
    }

    fn run(&self, binaries: &str, script: &str) -> Outcome {
        self.world.run().policy(self.policy(binaries)).shell(script).output()
    }

    fn reaches(&self, binaries: &str, script: &str) -> bool {
        let outcome = self.run(binaries, script);
        let (reached, denied) = (outcome.stdout.contains("reached"), outcome.stdout.contains("policy_denied"));
        assert_ne!(reached, denied, "{script}: {outcome:?}");
        reached
    }
}

#[test]
fn what_was_left_behind_by_what_became_an_allowed_program_is_not_its_child() {
    let stage = Stage::new();
    let git = "{path: /usr/bin/git}";
    // The subshell waits for curl: it is still the shell when it is asked who started that.
    let left = leaving_behind(&format!("sleep 0.5; {CURL}; true"));
    assert!(!stage.reaches(git, &left));
    // Control: what git really starts has its right, and so would the shell's children, were the shell allowed.
    assert!(stage.reaches(git, &format!("/usr/bin/git -c alias.ask='!{CURL}' ask")));
    assert!(stage.reaches("{path: /usr/bin/dash}", &left));
}

#[test]
fn a_program_that_lends_nothing_is_allowed_alone() {
    let stage = Stage::new();
    let alone = "{path: /usr/bin/git, children: false}";
    let lending = "{path: /usr/bin/git, children: true}";
    let child = format!("/usr/bin/git -c alias.ask='!{CURL}' ask");
    // Executed in the place of what was forked off: nothing that the kernel tells sets these apart from children of git's.
    let executed = leaving_behind(&format!("exec sh -c \"sleep 0.5; {CURL}; true\""));
    let replaced = leaving_behind(&format!("sleep 0.5; exec {CURL}"));
    for script in [&child, &executed, &replaced] {
        assert!(!stage.reaches(alone, script), "{script}");
        // Control.
        assert!(stage.reaches(lending, script), "{script}");
    }
    let outcome = stage.run(alone, &child);
    assert!(outcome.stdout.contains("entry t allows /usr/bin/git alone"), "{outcome:?}");
    // It is allowed itself, whatever started it, and by a pattern too.
    for binaries in ["{path: /usr/bin/curl, children: false}", "{path: '/usr/bin/cur*', children: false}"] {
        assert!(stage.reaches(binaries, &format!("sh -c '{CURL}; true'")), "{binaries}");
    }
    // Another program of the same entry lends as ever.
    assert!(stage.reaches(&format!("{alone}, {{path: /usr/bin/dash}}"), &child));
}

#[test]
fn a_policy_that_lends_nothing_is_checked_and_explained() {
    let stage = Stage::new();
    let ask = |binaries: &str, more: &[&str]| {
        let policy = stage.policy(binaries);
        let file = policy.to_str().expect("a path").to_owned();
        let arguments = ["explain", &file, "--host", "api.example.com", "--port", "80", "--binary", "/usr/bin/curl"];
        stage.world.role("policy").args(arguments).args(more).output()
    };
    let git = "{path: /usr/bin/git, children: false}";
    let denied = ask(git, &["--ancestor", "/usr/bin/git"]).expect(1);
    assert!(denied.stdout.contains("entry t allows /usr/bin/git alone"), "{denied:?}");
    // Control.
    let allowed = ask("{path: /usr/bin/git}", &["--ancestor", "/usr/bin/git"]).expect(0);
    assert!(!allowed.stdout.contains("lends nothing"), "{allowed:?}");
    let curl = "{path: /usr/bin/curl, children: false}";
    let said = "lends nothing to what it starts: network_policies.t.binaries: /usr/bin/curl";
    assert!(ask(curl, &[]).expect(0).stdout.contains(said));
    let json = ask(curl, &["--json"]).expect(0).stdout;
    let answer: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let expected = serde_json::json!([{"path": "/usr/bin/curl", "children": false}]);
    assert_eq!(answer["endpoints"][0]["binaries"], expected);
    for (binaries, says) in [
        ("{path: /usr/bin/curl, children: 0}", "network_policies.t.binaries[0].children: expected true or false"),
        (&*format!("{curl}, {{path: /usr/bin/curl}}"), "listed before with 'children: false'"),
    ] {
        let policy = stage.policy(binaries);
        let refused = stage.world.role("policy").args(["check", policy.to_str().expect("a path")]).output().expect(1);
        assert!(refused.stderr.contains(says), "{refused:?}");
    }
}

#[test]
fn what_is_learned_lends_nothing() {
    let stage = Stage::new();
    let learned = stage.world.directory().join("learned.yaml");
    let own = "/usr/bin/python3 -c 'import urllib.request as r; print(r.urlopen(\"http://api.example.com/\").read())'";
    let curl = format!("/usr/bin/python3 -c 'import os; os.system(\"{CURL}\")'");
    let outcome = stage.world.run().arg("--learn").arg(&learned).shell(own).output().expect(0);
    assert!(outcome.stdout.contains("reached"), "{outcome:?}");
    let text = std::fs::read_to_string(&learned).expect("a policy");
    assert!(text.contains("python3") && text.contains("children: false"), "{text}");
    let replay = |text: &str, script: &str| {
        let policy = stage.world.file("replayed.yaml", text);
        stage.world.run().policy(policy).shell(script).output().stdout.contains("reached")
    };
    assert!(replay(&text, own));
    assert!(!replay(&text, &curl));
    // Control.
    assert!(replay(&text.replace("children: false", "children: true"), &curl));
}
