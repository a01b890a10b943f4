//! The description of a sandbox.

use std::collections::{BTreeMap, BTreeSet};

use super::{annotations, mounts};
use crate::contract::env;
use crate::driver::names;
use crate::driver::problem::Problems;
use crate::driver::resources;
use crate::driver::sandbox::{GPUS, SandboxSpec, Toleration};
use crate::driver::shape;

/// Bytes of command and of environment: each becomes one variable, and a longer one stops the program from being started
/// (`MAX_ARG_STRLEN`, execve(2)). The rest of it is for what stands around them.
const VARIABLE_LIMIT: usize = (128 << 10) - 256;

/// Checks all that needs no configuration.
pub(in crate::driver) fn sandbox(sandbox: &SandboxSpec, problems: &Problems) {
    identity(sandbox, problems);
    workload(sandbox, problems);
    labels(sandbox, problems);
    annotations::annotations(sandbox, problems);
    resources(sandbox, problems);
    scheduling(sandbox, problems);
    volumes(sandbox, problems);
    mounts::mounts(sandbox, problems);
}

fn identity(sandbox: &SandboxSpec, problems: &Problems) {
    if sandbox.id.is_empty() || !shape::is_label_value(&sandbox.id) {
        let remedy = "give the sandbox's UUID, which is never used again";
        problems.with("id", &sandbox.id, "at most 63 letters, digits, dashes, underscores and dots", remedy);
    }
    shape::dns_label(problems, "name", &sandbox.name);
    shape::dns_label(problems, "workspace", &sandbox.workspace);
    if !sandbox.image.is_empty() && !shape::is_image(&sandbox.image) {
        problems.with("image", &sandbox.image, "an image", "give its reference, such as registry.example.com/name:tag");
    }
}

fn workload(sandbox: &SandboxSpec, problems: &Problems) {
    if sandbox.command.first().is_none_or(String::is_empty) {
        let remedy = "name the program and its arguments: an image need not hold a shell, so none is supposed";
        problems.without("command", "a program", remedy);
    }
    for (index, word) in sandbox.command.iter().enumerate() {
        if word.contains('\0') {
            problems.without(format!("command[{index}]"), "a word without NUL bytes", "remove them");
        }
    }
    // Six bytes for a control character, and as many for a dollar: what JSON can make of one.
    let written =
        |text: &String| text.len() + "\",\"".len() + text.bytes().filter(|byte| is_escaped(*byte)).count() * 5;
    let words: usize = sandbox.command.iter().map(written).sum();
    let variables: usize = sandbox.environment.iter().map(|(name, value)| written(name) + written(value)).sum();
    for (path, length) in [("command", words), ("environment", variables)] {
        if length > VARIABLE_LIMIT {
            let expected = format!("at most {VARIABLE_LIMIT} bytes in all");
            problems.without(path, expected, "put what is long into a file of the image or a volume");
        }
    }
    if !["", "off", "error", "warn", "info", "debug"].contains(&sandbox.log_level.as_str()) {
        problems.with("log_level", &sandbox.log_level, "off, error, warn, info or debug", "choose one");
    }
    for (name, value) in &sandbox.environment {
        let path = format!("environment.{name}");
        if !shape::is_variable(name) {
            problems.without(&path, "a name of letters, digits and underscores, no digit first", "choose another name");
        }
        if name.starts_with(env::PREFIX) {
            let expected = format!("a name that does not start with {}", env::PREFIX);
            problems.without(&path, expected, "choose another name: those are the supervisor's");
        }
        if value.contains(|letter: char| letter.is_control() && !matches!(letter, '\n' | '\t')) {
            problems.without(&path, "a value without control characters", "remove them");
        }
    }
}

fn is_escaped(byte: u8) -> bool {
    byte.is_ascii_control() || matches!(byte, b'$' | b'"' | b'\\')
}

fn labels(sandbox: &SandboxSpec, problems: &Problems) {
    for (key, value) in &sandbox.labels {
        let path = format!("labels.{key}");
        if !shape::is_label_value(value) {
            problems.with(&path, value, "a label's value", "at most 63 letters, digits, dashes, underscores and dots");
        }
        key_of_user(&path, key, problems);
    }
    for key in sandbox.platform_config.annotations.keys() {
        key_of_user(&format!("platform_config.annotations.{key}"), key, problems);
    }
}

/// By those keys the gateway knows whose pod it is, and policies whom they select.
fn key_of_user(path: &str, key: &str, problems: &Problems) {
    if !shape::is_label_key(key) {
        problems.without(path, "NAME or DOMAIN/NAME", "choose such a key");
    }
    if shape::is_ours(key) {
        problems.without(path, "a key outside openshell.ai and openshell.io", "remove it: those are the driver's own");
    }
}

fn resources(sandbox: &SandboxSpec, problems: &Problems) {
    let typed = &sandbox.resources;
    for (name, quantity) in [
        ("cpu_request", &typed.cpu_request),
        ("cpu_limit", &typed.cpu_limit),
        ("memory_request", &typed.memory_request),
        ("memory_limit", &typed.memory_limit),
    ] {
        if let Some(quantity) = quantity {
            shape::quantity(problems, &format!("resources.{name}"), quantity);
        }
    }
    let (user, platform) = (&sandbox.driver_config, &sandbox.platform_config);
    for (path, quantities) in [
        ("driver_config.containers.agent.resources.requests", &user.requests),
        ("driver_config.containers.agent.resources.limits", &user.limits),
        ("platform_config.resources_raw.requests", &platform.requests),
        ("platform_config.resources_raw.limits", &platform.limits),
    ] {
        resources::check_names(quantities, path, problems);
    }
    if let Some(count) = sandbox.gpu.filter(|count| !(1..=GPUS).contains(count)) {
        let remedy = "ask for one at least, or remove the field";
        problems.with("gpu.count", count, format!("a number from 1 to {GPUS}"), remedy);
    }
}

fn scheduling(sandbox: &SandboxSpec, problems: &Problems) {
    let (user, platform) = (&sandbox.driver_config, &sandbox.platform_config);
    for (path, name) in [
        ("driver_config.pod.runtime_class_name", &user.runtime_class_name),
        ("driver_config.pod.priority_class_name", &user.priority_class_name),
        ("platform_config.runtime_class_name", &platform.runtime_class_name),
    ] {
        if let Some(name) = name.as_ref().filter(|name| !name.is_empty()) {
            shape::subdomain(problems, path, name);
        }
    }
    selector("driver_config.pod.node_selector", &user.node_selector, problems);
    selector("platform_config.node_selector", &platform.node_selector, problems);
    tolerations("driver_config.pod.tolerations", &user.tolerations, problems);
    tolerations("platform_config.tolerations", &platform.tolerations, problems);
}

fn selector(path: &str, labels: &BTreeMap<String, String>, problems: &Problems) {
    for (key, value) in labels {
        if !shape::is_label_key(key) || !shape::is_label_value(value) {
            problems.with(format!("{path}.{key}"), value, "a label", "give a label as the nodes have it");
        }
    }
}

fn tolerations(path: &str, tolerations: &[Toleration], problems: &Problems) {
    for (index, toleration) in tolerations.iter().enumerate() {
        let exists = toleration.operator.as_deref() == Some("Exists");
        let path = format!("{path}[{index}]");
        if toleration.key.as_ref().is_some_and(|key| !shape::is_label_key(key)) {
            problems.without(format!("{path}.key"), "a taint's key", "give it as `kubectl describe node` does");
        }
        if toleration.key.is_none() && !exists {
            problems.without(format!("{path}.operator"), "Exists where there is no key", "add a key, or the operator");
        }
        if exists && toleration.value.as_ref().is_some_and(|value| !value.is_empty()) {
            problems.without(format!("{path}.value"), "no value with Exists", "remove the value");
        }
        if toleration.seconds.is_some() && toleration.effect.as_deref() != Some("NoExecute") {
            let remedy = "add it, or remove tolerationSeconds";
            problems.without(format!("{path}.effect"), "NoExecute with tolerationSeconds", remedy);
        }
    }
}

fn volumes(sandbox: &SandboxSpec, problems: &Problems) {
    let mut seen = BTreeSet::new();
    for (index, volume) in sandbox.driver_config.volumes.iter().enumerate() {
        let path = format!("driver_config.volumes[{index}]");
        shape::dns_label(problems, &format!("{path}.name"), &volume.name);
        let is_ours = |own: &str| volume.name == own || volume.name == names::volume_of(own, &sandbox.id);
        if names::volume::ALL.into_iter().any(is_ours) {
            let remedy = "choose another name: that volume is the driver's own";
            problems.with(format!("{path}.name"), &volume.name, "a name that is not reserved", remedy);
        }
        if !seen.insert(&volume.name) {
            problems.with(format!("{path}.name"), &volume.name, "a name used once", "rename one of the two");
        }
        shape::subdomain(problems, &format!("{path}.persistent_volume_claim.claim_name"), &volume.claim_name);
    }
}
