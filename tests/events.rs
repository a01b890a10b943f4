//! Promises 12.x: what happened is recorded, for machines and for people, and asked for over HTTP.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::clients::{CURL, PYTHON, Policy, Site};
use crate::origins::{self, Origin};
use crate::world::{World, eventually};

#[test]
fn events_are_ocsf_one_object_a_line() {
    let world = World::new();
    let _origin = Origin::start(&world, 80, origins::hello());
    let policy = world.policy("policy.yaml", "/usr/bin/curl", &["api.example.com:80"]);
    let file = world.directory().join("events.jsonl");
    world
        .run()
        .policy(policy)
        .arg("--events")
        .arg(&file)
        .args(["--sandbox", "test-sandbox"])
        .shell("curl -sS http://api.example.com/secret?token=hidden; curl -sS --proxytunnel http://api.example.com/; curl -sS http://other.example.com/")
        .output()
        .expect(0);
    let text = std::fs::read_to_string(&file).expect("events");
    assert!(!text.contains("hidden"), "a query was recorded:\n{text}");
    let events: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for event in &events {
        let (class, activity) =
            (event["class_uid"].as_u64().expect("class"), event["activity_id"].as_u64().expect("activity"));
        assert_eq!(event["type_uid"], class * 100 + activity, "{event}");
        assert_eq!(event["category_uid"], class / 1000, "{event}");
        assert!(event["time"].as_u64().is_some_and(|time| time > 1_700_000_000_000), "{event}");
        assert!(event["severity_id"].as_u64().is_some_and(|severity| (1..=6).contains(&severity)), "{event}");
        assert_eq!(event["metadata"]["product"]["name"], "openshell-supervisor", "{event}");
        assert!(event["metadata"]["version"].is_string(), "{event}");
    }
    let of = |class: u64| events.iter().filter(move |event| event["class_uid"] == class);
    assert_eq!(of(1007).count(), 2, "the workload's start and end:\n{text}");
    assert!(
        of(4001).any(|event| event["dst_endpoint"]["hostname"] == "api.example.com" && event["disposition_id"] == 1),
        "{text}"
    );
    assert!(
        of(4001)
            .chain(of(4002))
            .any(|event| event["dst_endpoint"]["hostname"] == "other.example.com" && event["disposition_id"] == 2),
        "{text}"
    );
    assert!(of(4002).any(|event| event.to_string().contains("/secret")), "{text}");
    assert!(text.contains("/usr/bin/curl") && text.contains("test-sandbox"), "{text}");
}

#[test]
fn what_was_asked_inside_tls_is_recorded_as_https() {
    let world = World::new();
    let site = Site::new(&world);
    let _origins = [site.origin("web.py", 443, &[]), site.origin_at("[::]:80", None, "web.py", &[])];
    let endpoint = |port: u16| format!("{{host: api.example.com, port: {port}, protocol: rest, access: read-only}}");
    let policy = Policy::new(&[CURL], &[&endpoint(443), &endpoint(80)]);
    let file = world.directory().join("events.jsonl");
    let ask = |flag: &str, url: &str| format!("curl -sS {flag} -o /dev/null -X DELETE {url}; curl -sS {flag} {url};");
    let script =
        ask("--http1.1", "'https://api.example.com/a?b=1'") + &ask("--http2", "'https://api.example.com/c?d=2'");
    let script = script + &ask("", "http://api.example.com/e");
    site.sandbox(&policy).arg("--events").arg(&file).shell(&script).output().expect(0);
    let text = std::fs::read_to_string(&file).expect("events");
    let events = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("JSON"));
    let mut urls: Vec<String> = events
        .filter(|event| event["class_uid"] == 4002)
        .map(|event| {
            let url = &event["http_request"]["url"];
            let part = |key: &str| url[key].as_str().unwrap_or("none").to_owned();
            let disposition = &event["disposition"];
            format!("{disposition} {} {} {} {}", part("scheme"), url["port"], part("path"), part("query_string"))
        })
        .collect();
    urls.sort();
    let expected = ["443 /a b=1", "443 /c d=2", "80 /e none"].map(|rest| {
        let scheme = if rest.starts_with("443") { "https" } else { "http" };
        ["Allowed", "Blocked"].map(|disposition| format!("\"{disposition}\" {scheme} {rest}"))
    });
    let mut expected = expected.concat();
    expected.sort();
    assert_eq!(urls, expected, "{text}");
}

#[test]
fn a_connection_that_floods_is_ended_and_told() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let policy = Policy::full(&[PYTHON], "api.example.com", 443, "rest");
    // What is sent, what it is answered, and what people are told.
    for (kind, answer, told) in [
        ("reset", "goaway 11", "ENHANCE_YOUR_CALM"),
        ("continuation", "goaway 11", "ENHANCE_YOUR_CALM"),
        ("window", "goaway 3", "FLOW_CONTROL_ERROR"),
        ("table", "goaway 1", "PROTOCOL_ERROR"),
        // Control.
        ("nothing", "status 200", ""),
    ] {
        let file = world.directory().join(format!("{kind}.jsonl"));
        let script = format!("$PYTHON $CLIENTS/http2_flood.py https://api.example.com/ {kind}");
        let outcome = site.sandbox(&policy).arg("--events").arg(&file).shell(&script).output().expect(0);
        assert_eq!(outcome.stdout.trim(), answer, "{kind}: {outcome:?}");
        let events = std::fs::read_to_string(&file).expect("events");
        let refused: Vec<&str> = events.lines().filter(|line| line.contains("HTTP/2 connection was ended")).collect();
        let lines: Vec<&str> =
            outcome.stderr.lines().filter(|line| line.contains("HTTP/2 connection was ended")).collect();
        let expected = usize::from(!told.is_empty());
        assert_eq!((refused.len(), lines.len()), (expected, expected), "{kind}: {outcome:?} {events}");
        for said in refused.into_iter().chain(lines) {
            assert!(said.contains(told) && said.contains("api.example.com") && said.contains("python3"), "{said}");
        }
    }
}

#[test]
fn one_line_on_stderr_at_each_level_and_no_terminal_is_fooled() {
    let world = World::new();
    let _origin = Origin::start(&world, 80, origins::hello());
    let policy = world.policy("policy.yaml", "/usr/bin/curl", &["api.example.com:80"]);
    let run = |level: &str| {
        let script = "curl -sS -o /dev/null http://api.example.com/; curl -sS -o /dev/null http://other.example.com/%1b%5b2J; \
                      curl -sS -o /dev/null -X $(printf 'A\\033[2J') http://other.example.com/ || true";
        world.run().policy(&policy).args(["--log-level", level]).shell(script).output().expect(0).stderr
    };
    let (off, warn, info) = (run("off"), run("warn"), run("info"));
    assert_eq!(off, "");
    assert!(warn.contains("other.example.com") && !warn.contains("api.example.com"), "{warn}");
    assert!(info.contains("other.example.com") && info.contains("api.example.com"), "{info}");
    assert!(!info.contains('\u{1b}'), "an escape character reached the terminal: {info:?}");
}

#[test]
fn events_on_standard_output_and_a_file_that_cannot_be_written() {
    let world = World::new();
    let outcome = world.run().args(["--events", "-"]).command(["/bin/true"]).output().expect(0);
    assert!(
        outcome.stdout.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()),
        "{}",
        outcome.stdout
    );
    assert!(outcome.stdout.contains("\"class_uid\":1007"), "{}", outcome.stdout);
    let outcome = world.run().args(["--events", "/nonexistent/events"]).command(["/bin/true"]).output().expect(125);
    assert!(outcome.stderr.contains("/nonexistent/events"), "{}", outcome.stderr);
}

/// Asks the admin listener on the machine.
fn ask(world: &World, path: &str) -> String {
    world.in_machine({
        let path = path.to_owned();
        move || {
            let Ok(mut stream) = TcpStream::connect("127.0.0.1:9190") else { return String::new() };
            let _ = write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
            text
        }
    })
}

#[test]
fn the_admin_listener_tells_life_readiness_and_metrics() {
    let world = World::new();
    let _origin = Origin::start(&world, 80, origins::hello());
    let policy = world.policy("policy.yaml", "/usr/bin/curl", &["api.example.com:80"]);
    let script =
        "curl -sS -o /dev/null http://api.example.com/; curl -sS -o /dev/null http://other.example.com/; sleep 60";
    let running = world.run().policy(policy).args(["--admin-bind", "127.0.0.1:9190"]).shell(script).spawn();
    eventually("it is ready", || ask(&world, "/readyz").starts_with("HTTP/1.1 200"));
    assert!(ask(&world, "/livez").starts_with("HTTP/1.1 200"));
    assert!(ask(&world, "/nothing").starts_with("HTTP/1.1 404"));
    let count = |disposition: &str| {
        ask(&world, "/metrics")
            .lines()
            .filter(|line| {
                line.starts_with("openshell_egress_connections_total")
                    && line.contains(&format!("disposition=\"{disposition}\""))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
            .sum::<f64>()
    };
    eventually("both are counted", || count("allowed") >= 1.0 && count("denied") >= 1.0);
    world.role("health").arg("127.0.0.1:9190").output().expect(0);
    drop(running);
    // Control: with the role gone, the probe fails and says why.
    let outcome = world.role("health").arg("127.0.0.1:9190").output().expect(1);
    assert!(outcome.stderr.contains("127.0.0.1:9190"), "{}", outcome.stderr);
    // And nothing listens unless asked to.
    let _quiet = world.run().shell("sleep 60").spawn();
    assert_eq!(ask(&world, "/livez"), "");
}
