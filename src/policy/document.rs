//! The policy as Rego sees it: `data`, whose shape `policies/README.md` documents.
//!
//! `data.network_policies` is the policy as people know it, for rules that an operator writes. `data.index` is the same
//! arranged for lookup, so that the shipped rules never search: hosts by name, patterns by their literal suffix,
//! programs by path.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::pattern::{HostGlob, ProgramTest};
use super::{Binary, Endpoint, HostPattern, Policy, resolve};

/// The root of `data`.
#[derive(Debug, Serialize)]
pub(super) struct Document<'p> {
    runtime: Runtime,
    network_policies: BTreeMap<&'p str, Entry<'p>>,
    index: Index<'p>,
}

#[derive(Debug, Serialize)]
struct Runtime {
    require_binary_identity: bool,
}

#[derive(Debug, Serialize)]
struct Entry<'p> {
    endpoints: Vec<WrittenEndpoint<'p>>,
    binaries: &'p [Binary],
}

#[derive(Debug, Serialize)]
struct WrittenEndpoint<'p> {
    host: Option<String>,
    ports: &'p [u16],
    tls: &'static str,
    allowed_ips: Vec<String>,
}

#[derive(Debug, Default, Serialize)]
struct Index<'p> {
    hosts: BTreeMap<String, Vec<Found<'p>>>,
    suffixes: BTreeMap<&'p str, Vec<FoundByPattern<'p>>>,
    hostless: Vec<Found<'p>>,
    programs: BTreeMap<&'p str, Programs>,
}

#[derive(Debug, Serialize)]
struct Found<'p> {
    policy: &'p str,
    index: usize,
    ports: &'p [u16],
}

#[derive(Debug, Serialize)]
struct FoundByPattern<'p> {
    #[serde(flatten)]
    found: Found<'p>,
    deep: bool,
    labels: Vec<&'p str>,
    size: usize,
}

/// What an entry's programs are held against.
#[derive(Debug, Default, Serialize)]
struct Programs {
    /// The connecting program and what started it. Rules that know of nothing else allow too little, not too much.
    #[serde(flatten)]
    lending: Tests,
    /// The connecting program.
    alone: Tests,
}

#[derive(Debug, Default, Serialize)]
struct Tests {
    any: bool,
    exact: BTreeMap<String, bool>,
    below: Vec<String>,
    regex: Vec<String>,
}

impl<'p> Document<'p> {
    /// Arranges a policy. `root` is where the workload's file system is seen: an entry that names a link grants what
    /// the link leads to there, since the kernel reports executables by their real path.
    pub(super) fn of(policy: &'p Policy, require_binary_identity: bool, root: &Path) -> Self {
        let mut index = Index::default();
        let mut network_policies = BTreeMap::new();
        for entry in &policy.network {
            for (at, endpoint) in entry.endpoints.iter().enumerate() {
                index.add(&entry.key, at, endpoint);
            }
            index.programs.insert(&entry.key, Programs::of(&entry.binaries, root));
            let endpoints = entry.endpoints.iter().map(WrittenEndpoint::of).collect();
            network_policies.insert(entry.key.as_str(), Entry { endpoints, binaries: &entry.binaries });
        }
        Self { runtime: Runtime { require_binary_identity }, network_policies, index }
    }
}

impl<'p> Index<'p> {
    fn add(&mut self, policy: &'p str, index: usize, endpoint: &'p Endpoint) {
        let found = Found { policy, index, ports: &endpoint.ports };
        match &endpoint.host {
            None => self.hostless.push(found),
            Some(HostPattern::Exact(host)) => self.hosts.entry(host.to_string()).or_default().push(found),
            Some(HostPattern::Glob(pattern)) => {
                let HostGlob { deep, labels, suffix } = HostGlob::of(pattern);
                let size = labels.len() + suffix.split('.').count();
                self.suffixes.entry(suffix).or_default().push(FoundByPattern { found, deep, labels, size });
            }
        }
    }
}

impl<'p> WrittenEndpoint<'p> {
    fn of(endpoint: &'p Endpoint) -> Self {
        Self {
            host: endpoint.host.as_ref().map(ToString::to_string),
            ports: &endpoint.ports,
            tls: if endpoint.tls_skip { "skip" } else { "auto" },
            allowed_ips: endpoint.allowed_ips.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Programs {
    fn of(binaries: &[Binary], root: &Path) -> Self {
        let mut programs = Self::default();
        for Binary { path, children } in binaries {
            if *children { &mut programs.lending } else { &mut programs.alone }.add(path, root);
        }
        programs
    }
}

impl Tests {
    fn add(&mut self, pattern: &str, root: &Path) {
        match ProgramTest::of(pattern) {
            ProgramTest::Any => self.any = true,
            ProgramTest::Below(directory) => self.below.push(directory),
            ProgramTest::Regex(regex) => self.regex.push(regex),
            ProgramTest::Exact => {
                if let Some(real) = resolve::within(root, Path::new(pattern)) {
                    self.exact.insert(real, true);
                }
                self.exact.insert(pattern.to_owned(), true);
            }
        }
    }
}
