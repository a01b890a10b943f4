//! What topologies cost side by side, computed from rendered objects and from nothing else.

use std::fmt;

use super::names::{annotation, companion, container};
use super::object::Object;
use super::pod_security::{self, Level};
use super::privileges::{Row, privileges};
use crate::contract;

/// Columns of topologies, rows of what they take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    heads: Vec<String>,
    rows: Vec<(&'static str, Vec<String>)>,
}

/// Compares sets of objects, each with its name.
#[must_use]
pub fn comparison(sets: &[(String, Vec<Object>)]) -> Comparison {
    let costs: Vec<Cost> = sets.iter().map(|(_, objects)| Cost::of(objects)).collect();
    let row = |name, cell: fn(&Cost) -> String| (name, costs.iter().map(cell).collect::<Vec<_>>());
    let mut rows = vec![
        row("pods per sandbox", |cost| cost.pods.to_string()),
        row("agent runs as", |cost| cost.agent.as_ref().map(runs_as).unwrap_or_default()),
        row("agent's capabilities", |cost| list(cost.agent.iter().flat_map(|row| row.capabilities.iter()))),
        row("others' capabilities", |cost| list(others(cost).flat_map(|row| row.capabilities.iter()))),
        row("containers as root", |cost| list(cost.all.iter().filter(|row| !row.non_root).map(|row| &row.container))),
        row("may gain privileges", |cost| {
            list(cost.all.iter().filter(|row| row.escalation || row.privileged).map(|row| &row.container))
        }),
        row("agent's root", |cost| {
            let read_only = cost.agent.as_ref().is_some_and(|row| row.read_only_root);
            (if read_only { "read-only" } else { "writable" }).to_owned()
        }),
        row("agent shares", |cost| list(cost.agent.iter().flat_map(|row| row.namespaces.iter()))),
        row("agent reads secrets", |cost| {
            let secrets: Vec<String> =
                cost.agent.iter().flat_map(|row| &row.secrets).map(|secret| short(secret)).collect();
            list(secrets.iter())
        }),
        row("needs of the cluster", |cost| list(cost.needs.iter())),
        row("Pod Security", |cost| cost.level.to_string()),
    ];
    if costs.iter().any(|cost| cost.scc.is_some()) {
        rows.push(row("OpenShift's SCC", |cost| cost.scc.clone().unwrap_or_default()));
    }
    Comparison { heads: sets.iter().map(|(name, _)| name.clone()).collect(), rows }
}

/// What one set of objects takes.
struct Cost {
    pods: usize,
    all: Vec<Row>,
    agent: Option<Row>,
    needs: Vec<String>,
    level: Level,
    scc: Option<String>,
}

impl Cost {
    fn of(objects: &[Object]) -> Self {
        let all = privileges(objects).rows;
        let specs = objects.iter().filter_map(Object::pod_spec);
        let annotated = |key: &str| {
            objects.iter().filter_map(Object::pod_metadata).find_map(|metadata| metadata["annotations"][key].as_str())
        };
        let mut needs = Vec::new();
        if annotated(contract::annotation::CNI).is_some() {
            needs.push("the node's plugin".to_owned());
        }
        if objects.iter().any(|object| object.kind() == "NetworkPolicy") {
            needs.push("NetworkPolicy".to_owned());
        }
        Self {
            pods: specs.clone().count(),
            agent: all.iter().find(|row| row.container == container::AGENT).cloned(),
            all,
            needs,
            level: specs.map(pod_security::level).min().unwrap_or(Level::Restricted),
            scc: annotated(annotation::REQUIRED_SCC).map(str::to_owned),
        }
    }
}

fn others(cost: &Cost) -> impl Iterator<Item = &Row> {
    cost.all.iter().filter(|row| row.container != container::AGENT)
}

fn runs_as(row: &Row) -> String {
    match (row.user, row.group) {
        (Some(user), Some(group)) => format!("{user}:{group}"),
        (Some(user), None) => user.to_string(),
        (None, _) if row.non_root => "the namespace's, not root".to_owned(),
        (None, _) => "whoever the image says".to_owned(),
    }
}

fn list<'a>(items: impl Iterator<Item = &'a String>) -> String {
    let items: Vec<&str> = items.map(String::as_str).collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}

/// A Secret of the sandbox's own without the sandbox's id.
fn short(secret: &str) -> String {
    let of = |prefix: &&&str| secret.strip_prefix(**prefix).is_some_and(|rest| rest.starts_with('-'));
    [companion::ATTESTATION, companion::CA]
        .iter()
        .find(of)
        .map_or_else(|| secret.to_owned(), |prefix| (*prefix).to_owned())
}

/// Columns of a cell, so that four topologies fit a screen; a word that is longer stands alone.
const CELL: usize = 30;

/// Lines of a cell, broken behind commas.
fn wrapped(cell: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in cell.split_inclusive(", ") {
        let line = lines.last_mut().map_or(0, |line| line.chars().count());
        if line > 0 && line + word.trim_end().chars().count() > CELL {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            line.push_str(word);
        }
    }
    lines.iter().map(|line| line.trim_end().to_owned()).collect()
}

impl fmt::Display for Comparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ("", self.heads.clone());
        let lines: Vec<Vec<Vec<String>>> = std::iter::once(&head)
            .chain(&self.rows)
            .map(|(name, cells)| std::iter::once(*name).chain(cells.iter().map(String::as_str)).map(wrapped).collect())
            .collect();
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|row| row.get(column)).flatten();
            cells.map(|line| line.chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..=self.heads.len()).map(width).collect();
        for row in &lines {
            let height = row.iter().map(Vec::len).max().unwrap_or_default();
            for at in 0..height {
                let cells = row.iter().zip(&widths).map(|(cell, width)| {
                    let text = cell.get(at).map_or("", String::as_str);
                    format!("{text:<width$}")
                });
                writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
            }
        }
        Ok(())
    }
}
