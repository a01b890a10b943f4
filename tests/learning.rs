//! Learning: what a command did becomes a policy that lets it do so again, and nothing else.

use std::fs;

use crate::clients::{CURL, Site, toolbox};
use crate::world::World;

/// Two requests over TLS, one in the clear.
const SCRIPT: &str = "curl -sS -o /dev/null -w '%{http_code} ' https://api.example.com/read/%5Ba%5D; \
                      curl -sS -o /dev/null -w '%{http_code} ' -d x https://api.example.com/write?token=hidden; \
                      curl -sS -o /dev/null -w '%{http_code} ' http://other.example.com:8080/plain";

/// Whatever else the same program may ask of the same host.
const ELSE: &str = "curl -sS -o /dev/null -w '%{http_code} ' https://api.example.com/other; \
                    curl -sS -o /dev/null -w '%{http_code} ' -X DELETE https://api.example.com/write; \
                    curl -sS -o /dev/null -w '%{http_code} ' http://other.example.com:8080/write";

#[test]
fn two_programs_that_use_one_host_differently_are_learned_together() {
    let world = World::new();
    let site = Site::new(&world);
    let _origin = site.origin("web.py", 443, &[]);
    let learned = world.directory().join("learned.yaml");
    // An escaped slash, a path that reads two ways, and a TLS that cannot be served; beside a WebSocket.
    let script = "c() { curl -sS -o /dev/null -w '%{http_code} ' \"$@\"; }; \
                  c https://api.example.com/@scope%2fpkg; c https://api.example.com/v1//x; \
                  curl -s --tls-max 1.1 --ciphers DEFAULT@SECLEVEL=0 -o /dev/null https://api.example.com/old; \
                  $PYTHON $CLIENTS/websocket_python.py wss://api.example.com/ws";
    let elsewhere = "curl -sS -o /dev/null -w '%{http_code} ' https://api.example.com/other; \
                     $PYTHON $CLIENTS/websocket_python.py wss://api.example.com/other 2>&1";
    let learn =
        |script: &str| site.equipped().arg("--read").arg(toolbox()).arg("--learn").arg(&learned).shell(script).output();
    let outcome = learn(script).expect(0);
    assert!(outcome.stdout.starts_with("200 200 reached"), "{outcome:?}");
    let text = fs::read_to_string(&learned).expect("a policy");
    assert!(text.contains("passed unread") && !text.contains("        tls: skip"), "{text}");
    world.role("policy").args(["check", learned.to_str().expect("a path")]).output().expect(0);
    let replay = |script: &str| site.equipped().policy(&learned).shell(script).output();
    assert!(replay(script).expect(0).stdout.starts_with("200 200 reached"));
    let refused = replay(elsewhere).stdout;
    assert!(refused.starts_with("403 refused 403"), "{refused}");
    // Control: where everything is allowed, curl is not refused.
    fs::remove_file(&learned).expect("remove");
    let outcome = learn(elsewhere);
    assert!(outcome.stdout.starts_with("200 "), "{outcome:?}");
}

#[test]
fn what_was_learned_is_valid_replays_and_allows_nothing_else() {
    let world = World::new();
    let site = Site::new(&world);
    let _origins = [site.origin("web.py", 443, &[]), site.origin_at("[::]:8080", None, "web.py", &[])];
    let learned = world.directory().join("learned.yaml");
    let learn = |script: &str| site.equipped().arg("--learn").arg(&learned).shell(script).output();
    assert_eq!(learn(SCRIPT).expect(0).stdout, "200 200 200 ");
    let text = fs::read_to_string(&learned).expect("a policy");
    assert!(text.contains(CURL) && !text.contains("hidden"), "{text}");
    // Nothing is overwritten.
    assert!(learn("true").expect(2).stderr.contains("there already"));
    assert_eq!(fs::read_to_string(&learned).expect("a policy"), text);
    world.role("policy").args(["check", learned.to_str().expect("a path")]).output().expect(0);
    let replay = |script: &str| site.equipped().policy(&learned).shell(script).output().expect(0).stdout;
    assert_eq!(replay(SCRIPT), "200 200 200 ");
    assert_eq!(replay(ELSE), "403 403 403 ");
    // Control: where everything is allowed, so is that.
    fs::remove_file(&learned).expect("remove");
    assert_eq!(learn(ELSE).expect(0).stdout, "200 200 200 ");
}
