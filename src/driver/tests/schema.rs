//! The schemas and the readers, fed the same.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::driver::problem::{Document, Problems};
use crate::driver::read::Table;
use crate::driver::{DriverConfig, SandboxSpec, schema};

/// Whether a document keeps to a schema, by what of JSON Schema is used here.
fn keeps_to(schema: &Value, value: &Value) -> bool {
    for key in schema.as_object().expect("a schema").keys() {
        let known = ["type", "properties", "required", "additionalProperties", "items", "enum", "minimum", "maximum"];
        assert!(
            known.contains(&key.as_str()) || ["$schema", "title", "description"].contains(&key.as_str()),
            "{key} is not checked here"
        );
    }
    let kind = match schema["type"].as_str() {
        None => true,
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_i64() || value.is_u64(),
        Some(other) => panic!("no type {other}"),
    };
    let within = |number: i64| {
        schema["minimum"].as_i64().is_none_or(|least| number >= least)
            && schema["maximum"].as_i64().is_none_or(|most| number <= most)
    };
    kind && schema["enum"].as_array().is_none_or(|words| words.contains(value))
        && value.as_i64().is_none_or(within)
        && value
            .as_array()
            .is_none_or(|items| schema["items"].is_null() || items.iter().all(|item| keeps_to(&schema["items"], item)))
        && value.as_object().is_none_or(|fields| fields_keep_to(schema, fields))
}

fn fields_keep_to(schema: &Value, fields: &Map<String, Value>) -> bool {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let others = &schema["additionalProperties"];
    required.into_iter().all(|name| fields.contains_key(name))
        && fields.iter().all(|(name, value)| match (&schema["properties"][name], others) {
            (Value::Null, Value::Bool(false)) => false,
            (Value::Null, Value::Null) => true,
            (Value::Null, others) => keeps_to(others, value),
            (property, _) => keeps_to(property, value),
        })
}

/// Something that is not null, which stands for a field that is not there.
fn anything() -> impl Strategy<Value = Value> {
    let words = prop::sample::select(vec!["", "shared", "combined", "platform", "NoExecute", "Exists", "a"]);
    let leaf = prop_oneof![
        words.prop_map(Value::from),
        prop::sample::select(vec![-1_i64, 0, 1, 53, 1000, 70_000, 4_294_967_294, 4_294_967_295]).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(json!(1.5)),
    ];
    leaf.prop_recursive(2, 6, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-c]", inner, 0..3).prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

/// A document that mostly keeps to a schema: each field is there or not, and now and then is something else.
fn nearly(schema: &Value) -> BoxedStrategy<Value> {
    let sound: BoxedStrategy<Value> = match (schema["enum"].as_array(), schema["type"].as_str()) {
        (Some(words), _) => prop::sample::select(words.clone()).boxed(),
        (None, Some("object")) => object(schema),
        (None, Some("array")) => prop::collection::vec(nearly(&schema["items"]), 0..3).prop_map(Value::from).boxed(),
        (None, Some("string")) => "[a-z/=]{0,4}".prop_map(Value::from).boxed(),
        (None, Some("boolean")) => any::<bool>().prop_map(Value::from).boxed(),
        (None, Some("integer")) => {
            let (least, most) = (schema["minimum"].as_i64().unwrap_or(-9), schema["maximum"].as_i64().unwrap_or(9));
            (least..=most).prop_map(Value::from).boxed()
        }
        _ => anything().boxed(),
    };
    prop_oneof![60 => sound, 1 => anything()].boxed()
}

fn object(schema: &Value) -> BoxedStrategy<Value> {
    let fields: Vec<BoxedStrategy<Option<(String, Value)>>> = schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, property)| {
            let name = name.clone();
            let required =
                schema["required"].as_array().is_some_and(|names| names.contains(&Value::from(name.as_str())));
            let present = if required { 0.98 } else { 0.3 };
            let field = nearly(property).prop_map(move |value| (name.clone(), value));
            prop::option::weighted(present, field).boxed()
        })
        .collect();
    let other = prop::option::weighted(0.03, ("[a-c]", anything()));
    (fields, other)
        .prop_map(|(fields, other)| fields.into_iter().flatten().chain(other).collect::<Map<_, _>>().into())
        .boxed()
}

/// What a reader finds wrong with the shape of a document.
fn found(document: Document, read: impl FnOnce(Table<'_>), value: Value) -> Vec<String> {
    let problems = Problems::of(document);
    read(Table::root(value, &problems));
    problems.into_found().into_iter().map(|problem| format!("{}: {}", problem.path, problem.expected)).collect()
}

/// Fields of which the reader knows more than a schema says: what goes together, and what an empty list would mean.
const BEYOND: [&str; 8] = [
    "dns_peers",
    "gateway_peers",
    "proxy_auth_secret_name",
    "proxy_auth_secret_key",
    "app_armor_profile",
    "warm_pooling.enabled",
    "managed_ssh_ingress.enabled",
    "policy.version",
];

fn check(schema: &Value, value: &Value, found: &[String]) -> Result<(), TestCaseError> {
    if keeps_to(schema, value) {
        let more = found.iter().find(|problem| !BEYOND.iter().any(|field| problem.contains(field)));
        prop_assert!(more.is_none(), "the schema lets pass what the reader does not: {more:?} in {value:#}");
    } else if found.is_empty() {
        // The one thing that the reader leaves to the checks behind it: that something is there.
        let mut relaxed = schema.clone();
        without_required(&mut relaxed);
        prop_assert!(keeps_to(&relaxed, value), "the reader lets pass what the schema does not: {value:#}");
    }
    Ok(())
}

fn without_required(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.remove("required");
            fields.values_mut().for_each(without_required);
        }
        Value::Array(items) => items.iter_mut().for_each(without_required),
        _ => {}
    }
}

fn read_config(table: Table<'_>) {
    DriverConfig::read(table);
}

fn read_sandbox(table: Table<'_>) {
    SandboxSpec::read(table);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn schema_and_reader_of_configurations_let_the_same_pass(value in nearly(&schema::of_config())) {
        check(&schema::of_config(), &value, &found(Document::Config, read_config, value.clone()))?;
    }

    #[test]
    fn schema_and_reader_of_sandboxes_let_the_same_pass(value in nearly(&schema::of_sandbox())) {
        check(&schema::of_sandbox(), &value, &found(Document::Sandbox, read_sandbox, value.clone()))?;
    }
}

#[test]
fn what_is_required_is_refused_by_the_reader_too_and_the_examples_keep_to_the_schemas() {
    let schema = schema::of_sandbox();
    let whole: Value = serde_saphyr::from_str(super::SANDBOX).expect("YAML");
    assert!(keeps_to(&schema, &whole));
    for name in schema["required"].as_array().expect("names") {
        let mut partial = whole.clone();
        partial.as_object_mut().expect("a map").shift_remove(name.as_str().expect("a name"));
        assert!(!keeps_to(&schema, &partial));
        let refused = SandboxSpec::from_yaml(&partial.to_string());
        assert!(refused.is_err(), "{name}");
    }
    let config: toml::Table = toml::from_str(&format!("{}{}", super::LOCAL, super::PLATFORM)).expect("TOML");
    assert!(keeps_to(&schema::of_config(), &serde_json::to_value(config).expect("JSON")));
    // Controls.
    assert!(!keeps_to(&schema, &json!({"id": 1})) && !keeps_to(&schema, &json!([])));
    assert!(!keeps_to(&schema::of_config(), &json!({"topology": "side-car"})));
    assert!(!keeps_to(&schema::of_config(), &json!({"sandbox_uid": 0})));
    assert!(!keeps_to(&schema::of_config(), &json!({"supervisor_topology": "sidecar"})));
}
