//! Learning: what a command did becomes a policy that lets it do so again, and nothing else.

use std::fs;

use crate::clients::{CURL, Site};
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
