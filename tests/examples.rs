//! The example policies do what they say, with the clients that they are for.

use std::fs;

use crate::clients::{PATIENCE, Site, git, toolbox};
use crate::interception::bare_repository;
use crate::world::World;

/// Addresses of the origin besides its first, for servers that all want port 443.
const SERVERS: [(&str, &str); 3] =
    [("github.com", "10.99.0.2"), ("grpc.example.com", "10.99.0.3"), ("mcp.example.com", "10.99.0.4")];
const API: (&str, &str) = ("api.example.com", "10.99.0.5");

#[test]
fn agent_api_lets_clone_read_call_one_method_and_use_one_tool() {
    let world = World::new();
    let site = Site::new(&world);
    let mut hosts = "127.0.0.1 localhost\n".to_owned();
    let mut names = Vec::new();
    for (name, address) in SERVERS.into_iter().chain([API]) {
        hosts += &format!("{address} {name}\n");
        names.push(name);
        if address != "10.99.0.2" {
            let mut ip = world.origin_command("ip");
            ip.args(["address", "add", &format!("{address}/24"), "dev", "eth0"]);
            assert!(ip.status().expect("ip").success());
        }
    }
    world.hosts(&hosts);
    let identity = site.identity("servers", &names, |_| {});
    let repositories = bare_repository(&world).display().to_string();
    let serve = |program: &str, address: &str, more: &[&str]| {
        site.origin_at(&format!("{address}:443"), Some(&identity), program, more)
    };
    let _origins = [
        serve("git_http.py", SERVERS[0].1, &["--root", &repositories]),
        serve("rpc.py", SERVERS[1].1, &[]),
        serve("mcp_tools.py", SERVERS[2].1, &[]),
        serve("web.py", API.1, &[]),
    ];
    // The example, but for the names of what these servers serve, where this machine has its git, and the tools.
    let mut example = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/policies/examples/agent-api.yaml"))
        .expect("the example");
    for (theirs, ours) in [
        ("inventory.v1.Inventory", "openshell.test.Echo".to_owned()),
        ("method: GetItem", "method: Unary".to_owned()),
        ("tool: search", "tool: read_note".to_owned()),
        ("- path: /usr/bin/git\n", format!("- path: \"{}\"\n", git())),
        ("/bin, /etc]", format!("/bin, /etc, {}]", toolbox().display())),
    ] {
        assert!(example.contains(theirs), "the example says nothing of {theirs:?}");
        example = example.replace(theirs, &ours);
    }
    let allowing = |text: &str| world.file("policy.yaml", text);
    let run = |text: &str, script: &str| {
        let outcome = site.equipped().policy(allowing(text)).shell(&format!("{script} 2>&1")).output_within(PATIENCE);
        outcome.stdout
    };
    // The control: the same entries without their rules, every request allowed.
    let rules = example.find("network_policies:").expect("entries");
    let hosts: String = names.iter().map(|name| format!("      - {{host: {name}, port: 443}}\n")).collect();
    let open = format!(
        "{}network_policies:\n  all:\n    endpoints:\n{hosts}    binaries: [{{path: \"**\"}}]\n",
        &example[..rules]
    );
    let git = "sh $CLIENTS/git.sh";
    let read = "$PYTHON $CLIENTS/http_python.py requests";
    let rpc = "$PYTHON $CLIENTS/grpc_calls.py grpc.example.com:443";
    let mcp = "$PYTHON $CLIENTS/mcp_calls.py https://mcp.example.com/mcp legacy";
    for (script, done) in [
        (format!("{git} clone https://github.com/project.git"), "reached clone"),
        (format!("{read} GET https://api.example.com/v1/things"), " 200 "),
        (format!("{rpc} unary"), "reached unary"),
        (format!("{mcp} read_note '{{\"name\":\"a\"}}'"), "answer note a: reached"),
    ] {
        let said = run(&example, &script);
        assert!(said.contains(done), "{script}: {said}");
    }
    // Tunnelled, the origins are trusted by the workload itself: `--upstream-ca` is in its bundle too.
    for (script, done) in [
        (format!("{git} push https://github.com/project.git 10"), "reached push"),
        (format!("{read} POST https://api.example.com/v1/things"), " 200 "),
        (format!("{read} GET https://api.example.com/v1/secrets/a"), " 200 "),
        (format!("{read} GET https://api.example.com/v2/things"), " 200 "),
        (format!("{rpc} download"), "reached download"),
        (format!("{mcp} delete_note '{{\"name\":\"a\"}}'"), "note a: deleted"),
    ] {
        let said = run(&example, &script);
        assert!(!said.contains(done), "{script}: {said}");
        let said = run(&open, &script);
        assert!(said.contains(done), "control: {script}: {said}");
    }
}
