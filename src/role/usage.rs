//! Wrong usage, told in the terms of whoever is told.

use std::ffi::OsString;

use clap::builder::{Resettable, StyledStr};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

/// Flags of `run` that make up a policy, each with where it is in a file.
const QUICK: [(&str, &str); 3] = [
    ("--allow", "network_policies, as `policy explain` words it"),
    ("--read", "filesystem_policy.read_only"),
    ("--write", "filesystem_policy.read_write"),
];

/// Adds to an error what clap cannot know. `given` is what was on the command line of `command`.
pub(super) fn explain(wrong: &mut clap::Error, command: &Command, given: &[OsString]) {
    match wrong.kind() {
        ErrorKind::ArgumentConflict => point_to_the_file(wrong),
        _ => name_the_variable(wrong, command, given),
    }
}

/// Who has a policy file says there what the flags of a quick try say.
fn point_to_the_file(wrong: &mut clap::Error) {
    let text = |value: &ContextValue| match value {
        ContextValue::String(one) => vec![one.clone()],
        ContextValue::Strings(several) => several.clone(),
        _ => Vec::new(),
    };
    let named: Vec<String> = [ContextKind::InvalidArg, ContextKind::PriorArg]
        .iter()
        .filter_map(|kind| wrong.get(*kind))
        .flat_map(text)
        .collect();
    let is_named = |flag: &str| named.iter().any(|argument| argument.split(' ').next() == Some(flag));
    if let Some((flag, section)) = QUICK.iter().find(|(flag, _)| is_named(flag) && is_named("--policy")) {
        let tip = StyledStr::from(format!("a policy file says what {flag} says: add it there, under {section}"));
        wrong.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    }
}

/// A variable that holds nothing is not set: that is how images and manifests take one back.
pub(super) fn unset_where_empty(argument: Arg) -> Arg {
    let empty = argument.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    if empty { argument.env(Resettable::Reset) } else { argument }
}

/// Has an error about a value that came from a variable name the variable: nobody has typed the flag.
fn name_the_variable(wrong: &mut clap::Error, command: &Command, given: &[OsString]) {
    let Some(ContextValue::String(blamed)) = wrong.get(ContextKind::InvalidArg) else { return };
    let blames = |argument: &&Arg| {
        argument.get_long().is_some_and(|long| blamed.split(' ').next() == Some(&format!("--{long}")))
    };
    let Some(argument) = command.get_arguments().find(blames) else { return };
    let (Some(variable), Some(long)) = (argument.get_env(), argument.get_long()) else { return };
    let flag = format!("--{long}");
    let typed = given.iter().take_while(|word| *word != "--").any(|word| {
        word.to_str()
            .is_some_and(|word| word.strip_prefix(&flag).is_some_and(|rest| rest.is_empty() || rest.starts_with('=')))
    });
    if !typed && std::env::var_os(variable).is_some() {
        let named = format!("the variable {}, which stands for {blamed}", variable.to_string_lossy());
        wrong.insert(ContextKind::InvalidArg, ContextValue::String(named));
    }
}
