//! What is valid in a policy, and hardly what was meant: told to whoever writes it, and refused to nobody.

use std::path::Path;

use super::address;
use super::{Endpoint, HostPattern, NetworkPolicy, Policy};

impl Policy {
    /// Sentences about parts of the policy that can have no effect, each with its field and what to do.
    #[must_use]
    pub fn doubts(&self) -> Vec<String> {
        let of_entry = |entry: &NetworkPolicy| {
            let never = entry.endpoints.iter().enumerate().filter_map(|(index, endpoint)| {
                never(endpoint).map(|why| format!("network_policies.{}.endpoints[{index}] {why}", entry.key))
            });
            idle(entry).into_iter().chain(never).collect::<Vec<_>>()
        };
        self.network.iter().flat_map(|entry| of_entry(entry)).collect()
    }

    /// The paths of `filesystem_policy` beyond the baseline, by the key that lists them; no key without any.
    pub fn named_paths(&self) -> Vec<(&'static str, Vec<String>)> {
        let named = |paths: &[std::path::PathBuf]| {
            let named = paths.iter().filter(|path| !super::baseline::grants(path));
            named.map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        let lists =
            [("read_only", named(&self.filesystem.read_only)), ("read_write", named(&self.filesystem.read_write))];
        lists.into_iter().filter(|(_, paths)| !paths.is_empty()).collect()
    }

    /// Paths of `filesystem_policy` that are not there, in its order. What the baseline grants anyway is not in every image,
    /// and nobody who lists it as well is mistaken.
    pub fn absent_paths(&self) -> impl Iterator<Item = &Path> {
        let listed = self.filesystem.read_only.iter().chain(&self.filesystem.read_write);
        listed.map(AsRef::as_ref).filter(|path| !super::baseline::grants(path) && !path.exists())
    }
}

/// Why an entry allows nothing, if it does not.
fn idle(entry: &NetworkPolicy) -> Option<String> {
    let (lacks, remedy) = match (entry.endpoints.is_empty(), entry.binaries.is_empty()) {
        (true, _) => ("lists no endpoints", "list the hosts that are meant, or remove the entry"),
        (_, true) => ("lists no binaries", "list the programs that are meant; it holds in relaxed mode alone"),
        _ => return None,
    };
    Some(format!("network_policies.{} allows nothing: it {lacks}; {remedy}", entry.key))
}

/// Why an endpoint is never reached, if it is not.
fn never(endpoint: &Endpoint) -> Option<String> {
    let Some(HostPattern::Exact(host)) = &endpoint.host else { return None };
    let kind = address::never_dialled(host)?;
    Some(format!("allows nothing: {host} is never dialled ({kind}); {}", address::instead(kind)))
}
