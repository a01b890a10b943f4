//! A directory as on a node, and what is done to it.

mod choice;
mod concurrent;
mod edit;
mod killed;
mod node;
mod own_file;
mod shapes;
mod spans;
mod watch;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::json;

use super::*;

/// What our plugin speaks.
const VERSIONS: &[&str] = &["0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// A primary configuration as small as they come.
const BRIDGE: &str = r#"{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge"}]}"#;

/// A directory of configurations.
struct Node {
    directory: tempfile::TempDir,
}

impl Node {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn with(name: &str, text: &str) -> Self {
        let node = Self::new();
        node.write(name, text);
        node
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn at(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a file as if long ago.
    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        self.write_now(name, text);
        let file = std::fs::File::options().write(true).open(self.at(name)).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }

    fn write_now(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::write(self.at(name), text).unwrap();
    }

    fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.at(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(self.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    fn chain(&self, way: Way) -> Chain {
        chain(self.path(), way)
    }

    /// Installs by editing and says how it stands and what was done.
    fn install(&self) -> (Verdict, Vec<(String, Action)>) {
        self.install_by(&self.chain(Way::Conflist))
    }

    fn install_by(&self, chain: &Chain) -> (Verdict, Vec<(String, Action)>) {
        let mut changes = Vec::new();
        let verdict = chain.install(|change| changes.push(self.short(&change))).unwrap();
        (verdict, changes)
    }

    fn remove(&self) -> Vec<(String, Action)> {
        self.remove_by(&self.chain(Way::Conflist))
    }

    fn remove_by(&self, chain: &Chain) -> Vec<(String, Action)> {
        let mut changes = Vec::new();
        chain.remove(|change| changes.push(self.short(&change))).unwrap();
        changes
    }

    fn short(&self, change: &Change) -> (String, Action) {
        (change.file.strip_prefix(self.path()).unwrap().to_str().unwrap().to_owned(), change.action)
    }

    fn verify(&self) -> Verdict {
        self.chain(Way::Conflist).verify().unwrap()
    }

    fn chained(&self, name: &str) -> Verdict {
        Verdict::Chained { file: self.at(name) }
    }
}

fn chain(directory: &Path, way: Way) -> Chain {
    let settings = json!({
        "kubeconfig": "/etc/cni/net.d/openshell-cni-kubeconfig",
        "sandboxNamespaces": ["sandboxes"],
        "logFile": "/var/log/openshell-cni.log",
    });
    Chain { way, directory: directory.into(), file: None, settings, versions: VERSIONS }
}

fn named(node: &Node, name: &str) -> Chain {
    Chain { file: Some(OsString::from(name)), ..node.chain(Way::Conflist) }
}

/// Why nothing is chained.
fn why(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Unchainable { why, .. } => why.clone(),
        Verdict::NoPrimary { skipped, .. } => {
            skipped.iter().map(|(_, why)| why.as_str()).collect::<Vec<_>>().join("; ")
        }
        other => panic!("something is chained, or could be: {other}"),
    }
}
