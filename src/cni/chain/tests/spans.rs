//! What is cut and inserted in texts that people and programs write.

use proptest::prelude::*;
use serde_json::json;

use super::super::document::{Difference, List, Unfit};
use super::{BRIDGE, VERSIONS};

const ENTRY: &str = r#"{"type":"openshell-cni","openshell":{"kubeconfig":"/k"}}"#;

fn read(text: &str) -> Result<List<'_>, Unfit> {
    List::read(text.as_bytes(), VERSIONS)
}

fn with(text: &str) -> String {
    read(text).unwrap().with(ENTRY)
}

/// Puts ours in and takes it out again.
fn round(text: &str) -> String {
    let there = with(text);
    let list = read(&there).unwrap();
    assert_eq!(list.difference(&serde_json::from_str(ENTRY).unwrap()), Ok(()));
    list.without()
}

#[test]
fn ours_comes_last_in_the_style_of_the_file() {
    assert_eq!(with(BRIDGE), BRIDGE.replace("}]}", &format!("}},{ENTRY}]}}")));
    let pretty = "{\r\n  \"name\": \"n\",\r\n  \"cniVersion\": \"0.3.1\",\r\n  \"plugins\": [\r\n    {\"type\": \"a\"}\r\n  ]\r\n}\r\n\r\n";
    let expected = pretty.replace("\"a\"}\r\n", &format!("\"a\"}},\r\n    {ENTRY}\r\n"));
    assert_eq!(with(pretty), expected);
    assert_eq!(round(pretty), pretty);
}

#[test]
fn bytes_that_are_not_ours_are_kept() {
    for text in [
        // Escapes in keys and values, which mean what they stand for.
        r#"{"cniVersion":"1.0.0","name":"n","plu\u0067ins":[{"ty\u0070e":"brid\u0067e","x":"\u00e9\ud83d\ude00\/"}]}"#,
        // Keys of the same name further in, and texts that look like the thing.
        r#"{"plugins":[{"type":"a","plugins":[{"type":"openshell-cni"}],"s":"],\"plugins\":["}],"name":"n","cniVersion":"1.0.0","z":{"plugins":[1]}}"#,
        // Spellings of numbers, repeated foreign keys, white space in every place.
        " \t{ \"name\" : \"n\" , \"cniVersion\" : \"1.1.0\",\"a\":1.50E+01,\"a\":-0.0, \"plugins\" : [ { \"type\" : \"a\", \"mtu\":1e3 } , {\"type\":\"b\"} \n ] , \"b\":12345678901234567890123 } \n\t",
    ] {
        let there = with(text);
        assert!(there.contains(ENTRY), "{there}");
        assert_eq!(round(text), text);
    }
}

#[test]
fn older_entries_go_wherever_they_are() {
    let list = |plugins: &[&str]| format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{}]}}"#, plugins.join(" , "));
    let (a, b, old) = (r#"{"type":"a"}"#, r#"{"type":"b"}"#, r#"{"type":"openshell-cni","x":1}"#);
    for plugins in [
        vec![old, a, b],
        vec![a, old, b],
        vec![a, b, old],
        vec![old, old, a, old, old, b, old],
        vec![old, a, old, b],
        vec![a, old, old, b],
    ] {
        let text = list(&plugins);
        let parsed = read(&text).unwrap();
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&parsed.without()).unwrap()["plugins"],
            json!([{"type":"a"},{"type":"b"}]),
            "{text}"
        );
        let there = parsed.with(ENTRY);
        let plugins = serde_json::from_str::<serde_json::Value>(&there).unwrap()["plugins"].clone();
        let entry: serde_json::Value = serde_json::from_str(ENTRY).unwrap();
        assert_eq!(plugins, json!([{"type":"a"},{"type":"b"}, entry]), "{there}");
    }
    assert!(matches!(read(&list(&[old])), Err(Unfit::Unchainable(_))));
    // Control: with a plugin of somebody's it can be chained onto.
    assert!(read(&list(&[a, old])).is_ok());
}

#[test]
fn an_entry_is_compared_by_what_it_says() {
    let expected = json!({"type": "openshell-cni", "openshell": {"kubeconfig": "/k", "sandboxNamespaces": ["a"]}});
    let differs = |ours: &str| {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{{"type":"a"}},{ours}]}}"#);
        read(&text).unwrap().difference(&expected)
    };
    assert_eq!(
        differs(r#"{ "openshell": {"sandboxNamespaces" : ["\u0061"], "kubeconfig":"/k"}, "type":"openshell-cni" }"#),
        Ok(())
    );
    for ours in [
        r#"{"type":"openshell-cni","openshell":{"kubeconfig":"/k"}}"#,
        r#"{"type":"openshell-cni"}"#,
        r#"{"type":"openshell-cni","openshell":{"kubeconfig":"/k","sandboxNamespaces":["a"]},"more":1}"#,
        r#"{"type":"openshell-cni","openshell":{"kubeconfig":"/k","sandboxNamespaces":["a"]}},{"type":"openshell-cni","openshell":{"kubeconfig":"/k","sandboxNamespaces":["a"]}}"#,
    ] {
        assert!(matches!(differs(ours), Err(Difference::Altered(_))), "{ours}");
    }
    assert_eq!(differs(r#"{"type":"b"}"#), Err(Difference::Absent));
    // Others may come after it, and nothing may come before there is a network.
    let ours = expected.to_string();
    let order = |plugins: &str| {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{plugins}]}}"#);
        read(&text).unwrap().difference(&expected)
    };
    assert_eq!(order(&format!(r#"{{"type":"a"}},{ours},{{"type":"b"}}"#)), Ok(()));
    assert!(matches!(order(&format!(r#"{ours},{{"type":"a"}}"#)), Err(Difference::Altered(_))));
}

#[test]
fn what_no_runtime_loads_is_told_from_what_some_may() {
    // One of the levels is the object around it.
    let nested = |levels: usize| {
        let (open, close) = ("[".repeat(levels), "]".repeat(levels));
        format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{{"type":"a"}}],"x":{open}{close}}}"#)
    };
    let unloadable = [
        "",
        "{",
        "null",
        "[]",
        "apiVersion: v1\nkind: Config\n",
        "\u{feff}{}",
        "{} {}",
        "// comment\n{}",
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"},]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[/* */{"type":"a"}]}"#,
        r#"{"cniVersion":"1.0.0","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"1.0.0","name":7,"plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":{"type":"a"}}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"},{}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"},{"type":""}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":["a"]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[null]}"#,
        r#"{"cniVersion":7,"name":"n","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}],"disableCheck":1}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","ipam":7}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","IPAM":{"type":7}}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","capabilities":{"x":"true"}}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","other":[1e999]}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}],"x":-1e309}"#,
        &nested(10_000),
    ];
    for text in unloadable {
        assert!(matches!(read(text), Err(Unfit::Unloadable(_))), "{text:?}: {:?}", read(text));
    }
    let unchainable = [
        r#"{"name":"n","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"","name":"n","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"0.2.0","name":"n","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"9.0.0","name":"n","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersions":["1.0.0","9.0.0"],"name":"n","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}],"plugins":[{"type":"b"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"Type":"a"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","TYPE":"b"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a","type":"b"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"\ud800"}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"a"}],"disableCheck":"true"}"#,
        r#"{"cniVersion":"1.0.0","name":"\ud800","plugins":[{"type":"a"}]}"#,
        r#"{"cniVersion":"\ud800","name":"n","plugins":[{"type":"a"}]}"#,
    ];
    for text in unchainable {
        assert!(matches!(read(text), Err(Unfit::Unchainable(_))), "{text:?}: {:?}", read(text));
    }
    let invalid_utf8 =
        [br#"{"cniVersion":"1.0.0","name":"n","x":""#.as_slice(), b"\xff", br#"","plugins":[{"type":"a"}]}"#].concat();
    assert!(matches!(List::read(&invalid_utf8, VERSIONS), Err(Unfit::Unchainable(_))));
    // Control: the same without what is wrong with it.
    for text in [
        BRIDGE,
        r#"{"cniVersions":["1.0.0","1.1.0"],"name":"n","plugins":[{"type":"a","ipam":{}}]}"#,
        r#"{"cniVersion":"1.0.0","name":"n","disableCheck":true,"plugins":[{"type":"a","other":[1e308],"dns":null}]}"#,
        &nested(9_999),
    ] {
        assert!(read(text).is_ok(), "{text}");
    }
}

#[test]
fn deep_and_long_texts_are_read_as_runtimes_read_them() {
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let long: String = (0..20_000).map(|n| format!(r#",{{"type":"p{n}"}}"#)).collect();
    let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","plugins":[{{"type":"a","x":{deep}}}{long}]}}"#);
    assert_eq!(round(&text), text);
}

/// White space as JSON has it.
fn space() -> impl Strategy<Value = String> {
    proptest::collection::vec(proptest::sample::select(vec![" ", "\n", "\t", "\r"]), 0..4)
        .prop_map(|parts| parts.concat())
}

fn value() -> impl Strategy<Value = String> {
    let leaf = proptest::sample::select(vec![
        "1",
        "1.0e5",
        "null",
        "true",
        r#""\u0041""#,
        r#""]},{""#,
        r#"{"plugins":[{"type":"openshell-cni"}]}"#,
        "[]",
        "{}",
    ])
    .prop_map(str::to_owned);
    leaf.prop_recursive(3, 12, 3, |inner| {
        (proptest::collection::vec(inner, 0..3), space())
            .prop_map(|(values, space)| format!("[{space}{}]", values.join(&format!("{space},"))))
    })
}

proptest! {
    #[test]
    fn installing_and_removing_gives_the_same_bytes(
        plugins in proptest::collection::vec((value(), space(), space(), 0usize..5), 1..6),
        more in proptest::collection::vec((value(), space()), 0..4),
        (s1, s2, s3) in (space(), space(), space()),
        first in any::<bool>(),
    ) {
        let plugins: Vec<String> = plugins
            .into_iter()
            .map(|(value, a, b, n)| format!("{a}{{{b}\"type\"{a}:\"p{n}\",\"x\":{value}}}{b}"))
            .collect();
        let plugins = format!("\"plugins\"{s1}:{s2}[{}]", plugins.join(","));
        let more: String = more.iter().enumerate().map(|(n, (value, s))| format!(",{s}\"k{n}\":{value}{s}")).collect();
        let head = "\"cniVersion\":\"1.0.0\",\"name\":\"n\"";
        let text = if first {
            format!("{s1}{{{plugins},{head}{more}}}{s3}")
        } else {
            format!("{s1}{{{head}{more},{plugins}{s2}}}{s3}")
        };
        prop_assert_eq!(round(&text), text.clone());
        // And once more over what is there already, which changes nothing.
        let there = with(&text);
        prop_assert_eq!(with(&there), there);
    }
}
