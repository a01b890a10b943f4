//! The policy file, version 1: what it may hold, and every rule it must keep.

use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::baseline;
use super::host::Host;
use super::network;
use super::pattern::MAX_PATH;
use super::problem::{LoadError, Problem};
use super::reader::{Fields, Reader, join, shown};
use super::yaml::{self, Node};
use super::{Binary, Compatibility, Endpoint, Filesystem, HostPattern, NetworkPolicy, Policy, ProcessIdentity};

/// Largest policy read. Ten thousand endpoints fit; what is larger is no policy that someone reviewed, and a reader
/// without a bound is a way to exhaust the supervisor.
pub const MAX_POLICY_BYTES: u64 = 1024 * 1024;

/// Most paths in `filesystem_policy`, both lists together: each costs an open descriptor and a Landlock rule at launch.
const MAX_PATHS: usize = 256;

/// Longest user or group name: useradd(8) allows 32.
const MAX_NAME: usize = 32;

const SECTIONS: &[&str] =
    &["version", "filesystem_policy", "landlock", "process", "network_policies", "network_middlewares"];

impl Policy {
    /// Reads and validates a policy file.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, at once.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        Self::parse(&read_bounded(path)?, &path.display().to_string())
    }

    /// Reads and validates a policy that comes as a stream; `name` is what errors call it.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, at once.
    pub fn read(stream: impl Read, name: &str) -> Result<Self, LoadError> {
        let mut bytes = Vec::new();
        stream.take(MAX_POLICY_BYTES + 1).read_to_end(&mut bytes).map_err(|error| {
            LoadError::of_file(name, format!("cannot be read: {error}"), "check what is piped into it")
        })?;
        Self::parse(&utf8(bytes, name)?, name)
    }

    /// Validates the text of a policy; `name` is what errors call the file.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it, at once.
    pub fn parse(text: &str, name: &str) -> Result<Self, LoadError> {
        let failed = |problems: Vec<Problem>| LoadError { file: name.to_owned(), problems };
        if text.len() as u64 > MAX_POLICY_BYTES {
            return Err(too_large(name));
        }
        let Some(root) = yaml::parse(text).map_err(failed)? else {
            let message = "the file is empty; expected at least 'version: 1'";
            return Err(LoadError::of_file(name, message, "write a policy, or give none for no network at all"));
        };
        let mut reader = Reader::default();
        let policy = read(&mut reader, &root);
        match (reader.finish(), policy) {
            (problems, Some(policy)) if problems.is_empty() => Ok(policy),
            (problems, _) => Err(failed(problems)),
        }
    }
}

/// Reads a file that the loader's bound allows, as text.
///
/// # Errors
///
/// It cannot be opened or read, is no regular file, is larger than [`MAX_POLICY_BYTES`], or is not UTF-8.
pub(super) fn read_bounded(path: &Path) -> Result<String, LoadError> {
    utf8(read_bytes(path, MAX_POLICY_BYTES)?, &path.display().to_string())
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String, LoadError> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line_start = valid.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let at = |n: usize| u32::try_from(n + 1).unwrap_or(u32::MAX);
        let problem = Problem {
            line: at(valid.iter().filter(|b| **b == b'\n').count()),
            column: at(String::from_utf8_lossy(&valid[line_start..]).chars().count()),
            field: String::new(),
            message: "not UTF-8".to_owned(),
            remedy: "save the file as UTF-8".to_owned(),
        };
        LoadError { file: name.to_owned(), problems: vec![problem] }
    })
}

/// Reads a regular file of at most `limit` bytes.
pub(super) fn read_bytes(path: &Path, limit: u64) -> Result<Vec<u8>, LoadError> {
    let name = &path.display();
    let unreadable = |error: std::io::Error| {
        LoadError::of_file(name, format!("cannot be read: {error}"), "check the path, and that this user may read it")
    };
    // Asked before it is opened: opening a FIFO would wait for a writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(LoadError::of_file(name, "not a regular file", "name the file itself"));
    }
    let mut bytes = Vec::new();
    File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes)).map_err(unreadable)?;
    if bytes.len() as u64 > limit {
        return Err(LoadError::of_file(name, format!("larger than {limit} bytes"), "split or shorten it"));
    }
    Ok(bytes)
}

fn too_large(name: &str) -> LoadError {
    LoadError::of_file(name, format!("larger than {MAX_POLICY_BYTES} bytes"), "split or shorten it")
}

fn read(reader: &mut Reader, root: &Node) -> Option<Policy> {
    let top = reader.fields(root, "", SECTIONS)?;
    match top.get("version") {
        None => reader.note(top.place, "version", "missing", "write 'version: 1' at the top"),
        Some(node) => {
            reader.integer(node, "version", 1..=1);
        }
    }
    if let Some((key, _)) = top.entry("network_middlewares") {
        let message = "not enforced by this build yet";
        reader.note(key.place, "network_middlewares", message, "remove the section; nothing would run it");
    }
    Some(Policy {
        filesystem: match top.get("filesystem_policy") {
            Some(node) => filesystem(reader, node),
            // Absent altogether, the working directory is still the workload's (facts of the schema).
            None => Filesystem { include_workdir: true, ..Filesystem::default() },
        },
        landlock: top.get("landlock").map_or(Compatibility::BestEffort, |node| landlock(reader, node)),
        process: top.get("process").map(|node| process(reader, node)).unwrap_or_default(),
        network: top.get("network_policies").map(|node| network::read(reader, node)).unwrap_or_default(),
    })
}

fn filesystem(reader: &mut Reader, node: &Node) -> Filesystem {
    let at = "filesystem_policy";
    let Some(section) = reader.fields(node, at, &["include_workdir", "read_only", "read_write"]) else {
        return Filesystem::default();
    };
    let include_workdir = section
        .get("include_workdir")
        .and_then(|node| reader.boolean(node, "filesystem_policy.include_workdir"))
        .unwrap_or(false);
    let read_only = paths(reader, section, "read_only");
    let read_write = paths(reader, section, "read_write");
    if read_only.len() + read_write.len() > MAX_PATHS {
        let message = format!("{} paths; expected at most {MAX_PATHS}", read_only.len() + read_write.len());
        reader.note(section.place, at, message, "grant directories instead of what is in them");
    }
    Filesystem { include_workdir, read_only, read_write }
}

fn paths(reader: &mut Reader, section: Fields<'_>, key: &str) -> Vec<PathBuf> {
    let Some(node) = section.get(key) else { return Vec::new() };
    let at = join("filesystem_policy", key);
    let mut paths = Vec::new();
    for (index, item) in reader.list(node, &at).iter().enumerate() {
        let at = format!("{at}[{index}]");
        let Some(text) = reader.text(item, &at) else { continue };
        match path(text) {
            Ok(path) if paths.contains(&path) => {}
            Ok(path) => match baseline::refusal(&path).filter(|_| key == "read_write") {
                Some((message, remedy)) => reader.note(item.place, &at, message, remedy),
                None => paths.push(path),
            },
            Err(expected) => reader.note(item.place, &at, expected, "write an absolute path such as /srv/data"),
        }
    }
    paths
}

/// An absolute path without `.`, `..` and double slashes.
fn path(text: &str) -> Result<PathBuf, &'static str> {
    if text.len() >= MAX_PATH {
        return Err("longer than the 4095 bytes that the kernel allows");
    }
    if text.chars().any(char::is_control) {
        return Err("holds a control character");
    }
    if !text.starts_with('/') {
        return Err("expected an absolute path");
    }
    let path = Path::new(text);
    if path.components().any(|c| c == Component::ParentDir) {
        return Err("holds '..'; expected the path written out");
    }
    Ok(path.components().collect())
}

fn landlock(reader: &mut Reader, node: &Node) -> Compatibility {
    let words = [("best_effort", Compatibility::BestEffort), ("hard_requirement", Compatibility::HardRequirement)];
    reader
        .fields(node, "landlock", &["compatibility"])
        .and_then(|section| section.get("compatibility"))
        .and_then(|node| reader.word(node, "landlock.compatibility", &words))
        .unwrap_or(Compatibility::BestEffort)
}

fn process(reader: &mut Reader, node: &Node) -> ProcessIdentity {
    let Some(section) = reader.fields(node, "process", &["run_as_user", "run_as_group"]) else {
        return ProcessIdentity::default();
    };
    ProcessIdentity { user: identity(reader, section, "run_as_user"), group: identity(reader, section, "run_as_group") }
}

fn identity(reader: &mut Reader, section: Fields<'_>, key: &str) -> Option<String> {
    let node = section.get(key)?;
    let at = join("process", key);
    let text = reader.text(node, &at)?;
    let numeric = text.bytes().all(|b| b.is_ascii_digit());
    let valid = if numeric {
        // u32::MAX is "leave it as it is" to setresuid(2).
        text.parse::<u32>().is_ok_and(|id| id != 0 && id != u32::MAX)
    } else {
        text != "root" && is_name(text)
    };
    if !valid {
        let message =
            format!("expected a name, or a number from 1 to 4294967294, that is not root; found {}", shown(node));
        reader.note(node.place, &at, message, "name an unprivileged identity such as sandbox or 1000");
        return None;
    }
    Some(text.to_owned())
}

/// A name by useradd(8)'s rule.
fn is_name(text: &str) -> bool {
    text.len() <= MAX_NAME
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
}

impl Filesystem {
    /// Adds a path that a command line grants, by the rules that hold for one in a file.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn grant(&mut self, granted: &Path, write: bool) -> Result<(), String> {
        let text = granted.to_str().ok_or("its name is not UTF-8; rename it")?;
        let granted = path(text).map_err(str::to_owned)?;
        match baseline::refusal(&granted).filter(|_| write) {
            Some((message, remedy)) => return Err(format!("{message}; {remedy}")),
            None if write => self.read_write.push(granted),
            None => self.read_only.push(granted),
        }
        Ok(())
    }
}

impl Policy {
    /// What holds where no policy is given: the baseline's paths, and no network at all.
    #[must_use]
    pub fn restrictive_default() -> Self {
        Self {
            filesystem: baseline::default_filesystem(),
            landlock: Compatibility::BestEffort,
            process: ProcessIdentity::default(),
            network: Vec::new(),
        }
    }

    /// The restrictive default with a few destinations open to every program, for a quick try.
    #[must_use]
    pub fn allowing(destinations: &[(Host, u16)]) -> Self {
        let endpoints = destinations.iter().map(|(host, port)| Endpoint {
            host: Some(HostPattern::Exact(host.clone())),
            ports: vec![*port],
            allowed_ips: Vec::new(),
            tls_skip: false,
            inspection: None,
        });
        let entry =
            NetworkPolicy { key: "allow".to_owned(), endpoints: endpoints.collect(), binaries: vec![Binary::any()] };
        let network = if destinations.is_empty() { Vec::new() } else { vec![Arc::new(entry)] };
        Self { network, ..Self::restrictive_default() }
    }
}

#[cfg(test)]
mod tests;
