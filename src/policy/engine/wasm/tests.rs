//! A module written by hand that speaks OPA's ABI (1.2), as small as it can be: its values are addresses of JSON texts,
//! and it allows one host by comparing the start of the input.

use super::*;
use crate::policy::Policy as Rules;
use crate::policy::decision::Action;
use crate::policy::host::Host;

const ENTRIES: &str = r#"{"openshell/egress/decision":0}"#;
const ALLOW: &str = r#"[{"result":{"action":"allow","reason":"the module says so","policy":"k","endpoints":[{"policy":"k","index":0}]}}]"#;
const DENY: &str = r#"[{"result":{"action":"deny","reason":"not this one"}}]"#;

/// What `opa_eval` does: compares, and answers with the text at 1024 or at 2048.
const COMPARE: &str = "
    (local $i i32)
    (loop $next
      (if (i32.ge_u (local.get $i) (i32.const 38)) (then (return (i32.const 1024))))
      (if (i32.ne
            (i32.load8_u (i32.add (local.get $input) (local.get $i)))
            (i32.load8_u (i32.add (i32.const 512) (local.get $i))))
        (then (return (i32.const 2048))))
      (local.set $i (i32.add (local.get $i) (i32.const 1)))
      (br $next))
    (unreachable)";

fn quoted(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn module(entries: &str, allow: &str, eval: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
  (import "env" "memory" (memory 2))
  (global (export "opa_wasm_abi_version") i32 (i32.const 1))
  (global (export "opa_wasm_abi_minor_version") i32 (i32.const 2))
  (global $top (mut i32) (i32.const 16384))
  (data (i32.const 16) "{{}}\00")
  (data (i32.const 128) "{entries}\00")
  (data (i32.const 512) "{prefix}")
  (data (i32.const 1024) "{allow}\00")
  (data (i32.const 2048) "{deny}\00")
  (func (export "builtins") (result i32) (i32.const 16))
  (func (export "entrypoints") (result i32) (i32.const 128))
  (func (export "opa_malloc") (param $size i32) (result i32)
    (global.get $top)
    (global.set $top (i32.add (global.get $top) (local.get $size))))
  (func (export "opa_free") (param i32))
  (func (export "opa_json_parse") (param i32 i32) (result i32) (local.get 0))
  (func (export "opa_json_dump") (param i32) (result i32) (local.get 0))
  (func (export "opa_heap_ptr_get") (result i32) (global.get $top))
  (func (export "opa_heap_ptr_set") (param i32) (global.set $top (local.get 0)))
  (func (export "eval") (param i32) (result i32) (i32.const 0))
  (func (export "opa_eval_ctx_new") (result i32) (i32.const 0))
  (func (export "opa_eval_ctx_set_input") (param i32 i32))
  (func (export "opa_eval_ctx_set_data") (param i32 i32))
  (func (export "opa_eval_ctx_set_entrypoint") (param i32 i32))
  (func (export "opa_eval_ctx_get_result") (param i32) (result i32) (i32.const 1024))
  (func (export "opa_eval") (param i32 i32 i32) (param $input i32) (param i32 i32 i32) (result i32) {eval})
)"#,
        entries = quoted(entries),
        prefix = quoted(r#"{"network":{"host":"a.example.com","port"#),
        allow = quoted(allow),
        deny = quoted(DENY),
    );
    wat::parse_str(text).unwrap()
}

fn load(bytes: &[u8]) -> Result<WasmEngine, String> {
    let policy = "{version: 1, network_policies: {k: {endpoints: [{host: a.example.com, port: 443}]}}}";
    let policy = Rules::parse(policy, "p.yaml").unwrap();
    WasmEngine::new(bytes, "m.wasm", &Document::of(&policy, false, "/".as_ref())).map_err(|error| error.to_string())
}

fn ask(engine: &WasmEngine, host: &str) -> Result<Verdict, String> {
    let host = Host::parse(host).unwrap();
    engine.decide(Question { host: &host, port: 443, program: None }).map_err(|error| error.to_string())
}

#[test]
fn a_module_decides() {
    let engine = load(&module(ENTRIES, ALLOW, COMPARE)).unwrap();
    for _ in 0..100 {
        let allowed = ask(&engine, "a.example.com").unwrap();
        assert_eq!(allowed.action, Action::Allow);
        assert_eq!(allowed.reason, "the module says so");
        assert_eq!((allowed.endpoints[0].policy.as_str(), allowed.endpoints[0].index), ("k", 0));
        assert_eq!(ask(&engine, "b.example.com").unwrap().action, Action::Deny);
    }
}

#[test]
fn what_is_no_policy_module_is_refused_when_loaded() {
    for (bytes, expected) in [
        (b"\0asm".to_vec(), "not a WebAssembly module"),
        (b"package openshell.egress".to_vec(), "not a WebAssembly module"),
        (Vec::new(), "not a WebAssembly module"),
        (wat::parse_str("(module)").unwrap(), "not a policy module of OPA's ABI"),
        (wat::parse_str(r#"(module (import "env" "memory" (memory 2)))"#).unwrap(), "opa_wasm_abi_version"),
        (wat::parse_str(r#"(module (import "env" "memory" (memory 65536)))"#).unwrap(), "not a policy module"),
        (
            wat::parse_str(r#"(module (import "host" "call" (func)) (import "env" "memory" (memory 2)))"#).unwrap(),
            "host",
        ),
        (
            module(r#"{"other/rule":0,"a":1}"#, ALLOW, COMPARE),
            "no entry point openshell/egress/decision; the module has: a, other/rule",
        ),
        (module("{", ALLOW, COMPARE), "not a policy module of OPA's ABI"),
    ] {
        let error = load(&bytes).unwrap_err();
        assert!(error.starts_with("m.wasm: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn what_a_module_answers_wrongly_is_an_error_and_the_next_question_is_answered() {
    for (answer, expected) in [
        ("[]", "no rule applied"),
        ("{}", "answered with something else"),
        ("7", "answered with something else"),
        ("[{\"result\":7}]", "answered with something else"),
        ("[{\"result\":{\"action\":\"maybe\",\"reason\":\"x\"}}]", "unknown variant"),
        ("[{\"result\":{\"action\":\"allow\"}}]", "missing field `reason`"),
        ("not json", "the policy engine failed"),
    ] {
        let engine = load(&module(ENTRIES, answer, COMPARE)).unwrap();
        let error = ask(&engine, "a.example.com").unwrap_err();
        assert!(error.contains(expected), "{answer}: {error}");
        assert_eq!(ask(&engine, "b.example.com").unwrap().action, Action::Deny);
    }
}

#[test]
fn a_module_that_traps_or_never_ends_is_an_error_and_a_fresh_one_answers_next() {
    for (eval, expected) in [
        ("(unreachable)", "unreachable"),
        ("(loop $l (br $l)) (unreachable)", "fuel"),
        ("(i32.const -1)", "the policy engine failed"),
        ("(drop (memory.grow (i32.const 60000))) (i32.const 2048)", ""),
    ] {
        // Traps for every host but the second, so that recovery shows.
        let eval = format!(
            "(if (i32.eq (i32.load8_u (i32.add (local.get $input) (i32.const 20))) (i32.const 98)) (then (return (i32.const 2048)))) {eval}"
        );
        let engine = load(&module(ENTRIES, ALLOW, &eval)).unwrap();
        match ask(&engine, "a.example.com") {
            Err(error) => assert!(error.contains(expected), "{eval}: {error}"),
            // A grow beyond the limit fails inside the module, which may go on.
            Ok(verdict) => assert_eq!((verdict.action, expected), (Action::Deny, "")),
        }
        assert_eq!(ask(&engine, "b.example.com").unwrap().action, Action::Deny);
    }
}
