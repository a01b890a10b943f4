//! Making the node's container runtime call our plugin: finding the network configuration that it uses, adding the
//! plugin to it, telling whether it is still there, putting it back, and taking it out again. All of it survives being
//! killed at any instant, a loss of power, and others who write the same files whenever they like.
//!
//! The specification of CNI leaves to the runtime where configurations lie and which one counts; `survey` has what
//! the runtimes do. Nothing here knows Kubernetes: whether a node may be used is the caller's, who asks for a
//! [`Verdict`] and has every [`Change`] told.

mod decoding;
mod directory;
mod document;
mod edit;
mod error;
mod own_file;
mod replace;
mod survey;
mod watch;

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use directory::{Directory, Found};
pub use error::ChainError;
pub use watch::Watch;

/// What the plugin's program is called in the node's directory of plugins, and `type` in configurations.
pub const PLUGIN_TYPE: &str = "openshell-cni";

/// What is appended to the name of a file to name the backup of what it was before ours came into it.
pub const BACKUP_SUFFIX: &str = ".openshell-backup";

/// How the runtime is made to call the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Ours is the last of the plugins in the configuration that the runtime uses.
    Conflist,
    /// A file in the directory of the auxiliary chain that multus calls for every pod, where its
    /// `auxiliaryCNIChainName` is set, as on OpenShift: `/run/multus/cni/net.d/vendor-cni-chain`.
    MultusChain,
    /// A file in the directory named after the network, from where libcni 1.3 and later append plugins to those of the
    /// configuration.
    DropIn,
}

impl Way {
    /// Whether a chain in order is one that is called. Without its setting multus does not look at the directory, and a
    /// runtime with an older libcni does not look at the other one, both in silence: there a node is ready only once
    /// the plugin has been seen called.
    #[must_use]
    pub fn proves_itself(self) -> bool {
        self == Self::Conflist
    }
}

/// What is to be chained, and where.
#[derive(Clone, Debug)]
pub struct Chain {
    /// How.
    pub way: Way,
    /// The runtime's directory of configurations; that of the auxiliary chain in [`Way::MultusChain`].
    pub directory: PathBuf,
    /// The configuration to chain onto, where it is not to be the one that runtimes take.
    pub file: Option<OsString>,
    /// What the plugin finds under its key `openshell`.
    pub settings: Value,
    /// Versions of the specification that the plugin speaks; it is chained onto no configuration of another one.
    pub versions: &'static [&'static str],
}

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The runtime's configuration calls the plugin as it should. See [`Way::proves_itself`].
    Chained {
        /// The file that has the plugin's entry.
        file: PathBuf,
    },
    /// The plugin is not there.
    Absent {
        /// Where it should be.
        file: PathBuf,
    },
    /// It is there, and not as it should be.
    Altered {
        /// Where.
        file: PathBuf,
        /// What is different.
        what: String,
    },
    /// The runtime takes another file.
    Shadowed {
        /// The file that was chained onto, or is to be.
        file: PathBuf,
        /// The one that comes before it.
        by: PathBuf,
    },
    /// A runtime may use this file, and the plugin cannot be chained onto it, or not yet.
    Unchainable {
        /// Which.
        file: PathBuf,
        /// Why, and what to do about it.
        why: String,
    },
    /// There is no configuration yet, as on a node whose network has not come up.
    NoPrimary {
        /// Where it is awaited.
        directory: PathBuf,
        /// The one that was named, where one was.
        named: Option<OsString>,
        /// Files there that no runtime can load, with what is wrong with them.
        skipped: Vec<(PathBuf, String)>,
    },
}

impl Verdict {
    /// Whether the plugin is chained.
    #[must_use]
    pub fn is_chained(&self) -> bool {
        matches!(self, Self::Chained { .. })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chained { file } => write!(formatter, "chained in {}", file.display()),
            Self::Absent { file } => write!(formatter, "not in {}", file.display()),
            Self::Altered { file, what } => write!(formatter, "altered in {}: {what}", file.display()),
            Self::Shadowed { file, by } => {
                write!(formatter, "{} comes before {}, and is what the runtime uses", by.display(), file.display())
            }
            Self::Unchainable { file, why } => {
                write!(formatter, "nothing can be chained onto {}: {why}", file.display())
            }
            Self::NoPrimary { directory, named, skipped } => {
                match named {
                    Some(named) if !survey::is_configuration(named) => write!(
                        formatter,
                        "{}, the configuration that was named, is none that runtimes load: expected a name that ends in \
                         .conflist, .conf or .json",
                        directory.join(named).display()
                    )?,
                    Some(named) => write!(
                        formatter,
                        "waiting for {}, the configuration that was named: there is none that runtimes load",
                        directory.join(named).display()
                    )?,
                    None => write!(formatter, "waiting for a network configuration in {}", directory.display())?,
                }
                skipped.iter().try_for_each(|(file, why)| write!(formatter, "; {}: {why}", file.display()))
            }
        }
    }
}

/// Something that was changed on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The file or directory.
    pub file: PathBuf,
    /// What was done to it.
    pub action: Action,
    /// Why.
    pub why: String,
}

/// What was done to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The plugin's entry was put into it.
    Chained,
    /// The plugin's entry was taken out of it.
    Unchained,
    /// It was made.
    Created,
    /// It was removed.
    Removed,
}

impl Action {
    /// One word for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Chained => "chained",
            Self::Unchained => "unchained",
            Self::Created => "created",
            Self::Removed => "removed",
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let action = match self.action {
            Action::Chained => "chained the plugin in",
            Action::Unchained => "took the plugin out of",
            Action::Created => "made",
            Action::Removed => "removed",
        };
        write!(formatter, "{action} {}: {}", self.file.display(), self.why)
    }
}

/// Whom changes are told as they are made, so that they are told even where a later step fails.
type Report<'r> = dyn FnMut(Change) + 'r;

impl Chain {
    /// How it stands. Reads a few small files and changes nothing.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn verify(&self) -> Result<Verdict, ChainError> {
        let Some(directory) = Directory::open(&self.directory)? else { return Ok(self.awaited()) };
        match self.way {
            Way::Conflist => self.verify_edited(&directory),
            Way::MultusChain => self.verify_own(&directory),
            Way::DropIn => self.verify_dropped_in(&directory),
        }
    }

    /// Puts the plugin where it belongs, unless it is there, and says how it stands then. What stands in the way, or is
    /// not there yet, is a verdict like any other: ask again when something has changed.
    ///
    /// # Errors
    /// A step failed. What the runtime uses is then whole, with the plugin or without it.
    pub fn install(&self, mut report: impl FnMut(Change)) -> Result<Verdict, ChainError> {
        let report: &mut Report<'_> = &mut report;
        if self.way == Way::MultusChain {
            self.make_chain_directory(report)?;
        }
        let Some(directory) = Directory::open(&self.directory)? else { return Ok(self.awaited()) };
        let lock = directory.lock()?;
        sweep(&directory, &lock, report)?;
        match self.way {
            Way::Conflist => self.install_edited(&directory, report)?,
            Way::MultusChain => self.install_own(&directory, report)?,
            Way::DropIn => self.install_dropped_in(&directory, report)?,
        }
        self.verify()
    }

    /// Takes the plugin out, whichever file of the directory it is in, and leaves everything else as others have it by
    /// now. [`names_plugin`] then says whether the program may go.
    ///
    /// # Errors
    /// A step failed; so does what is left to do.
    pub fn remove(&self, mut report: impl FnMut(Change)) -> Result<(), ChainError> {
        let report: &mut Report<'_> = &mut report;
        let Some(directory) = Directory::open(&self.directory)? else { return Ok(()) };
        let lock = directory.lock()?;
        sweep(&directory, &lock, report)?;
        match self.way {
            Way::Conflist | Way::DropIn => {
                self.remove_edited(&directory, report)?;
                self.remove_dropped_in(&directory, None, report)?;
            }
            Way::MultusChain => {
                own_file::remove(&directory, report)?;
            }
        }
        drop((lock, directory));
        if self.way == Way::MultusChain {
            self.remove_chain_directory(report)?;
        }
        Ok(())
    }

    /// The plugin's entry in a list of plugins.
    fn entry(&self) -> Value {
        json!({ "type": PLUGIN_TYPE, "openshell": self.settings })
    }

    fn awaited(&self) -> Verdict {
        Verdict::NoPrimary { directory: self.directory.clone(), named: self.file.clone(), skipped: Vec::new() }
    }
}

fn sweep(directory: &Directory, lock: &directory::Lock, report: &mut Report<'_>) -> Result<(), ChainError> {
    for name in directory.sweep(lock)? {
        let why = "an installer was killed before it had finished it".into();
        report(Change { file: directory.at(&name), action: Action::Removed, why });
    }
    Ok(())
}

/// Files of `directory`, and of the directories in it, that runtimes load and that name a plugin of this `kind`. While
/// there are any, its program must stay: a runtime that cannot find it starts no pod at all. When in doubt, a file
/// names it.
///
/// # Errors
/// The directory cannot be read.
pub fn names_plugin(directory: &Path, kind: &str) -> Result<Vec<PathBuf>, ChainError> {
    let Some(top) = Directory::open(directory)? else { return Ok(Vec::new()) };
    let mut naming = Vec::new();
    for name in top.names()? {
        match top.read(&name)? {
            // What is in a directory of another's making and cannot be opened was not put there by us.
            Found::Directory => {
                if let Ok(Some(below)) = top.below(&name) {
                    naming_files(&below, kind, &mut naming)?;
                }
            }
            found => naming.extend(naming_file(&top, &name, &found, kind)),
        }
    }
    Ok(naming)
}

fn naming_files(directory: &Directory, kind: &str, naming: &mut Vec<PathBuf>) -> Result<(), ChainError> {
    for name in directory.names()? {
        let found = directory.read(&name)?;
        naming.extend(naming_file(directory, &name, &found, kind));
    }
    Ok(())
}

fn naming_file(directory: &Directory, name: &std::ffi::OsStr, found: &Found, kind: &str) -> Option<PathBuf> {
    let names = survey::is_configuration(name)
        && match found {
            Found::File(content) => match serde_json::from_slice(&content.bytes) {
                Ok(value) => has_type(&value, kind),
                // Half of it may be there.
                Err(_) => {
                    let quoted = format!("\"{kind}\"");
                    content.bytes.windows(quoted.len()).any(|window| window == quoted.as_bytes())
                }
            },
            Found::Odd(_) => true,
            Found::Absent | Found::Directory => false,
        };
    names.then(|| directory.at(name))
}

/// The plugins that a configuration calls, in their order; none where it is none.
#[must_use]
pub fn types(file: &Path) -> Vec<String> {
    let value: Value = match std::fs::read(file).map(|bytes| serde_json::from_slice(&bytes)) {
        Ok(Ok(value)) => value,
        _ => return Vec::new(),
    };
    let plugins = value["plugins"].as_array().cloned().unwrap_or_else(|| vec![value]);
    plugins.iter().filter_map(|plugin| plugin["type"].as_str().map(str::to_owned)).collect()
}

fn has_type(value: &Value, kind: &str) -> bool {
    match value {
        Value::Object(members) => members
            .iter()
            .any(|(key, value)| decoding::is_key(key, "type") && value.as_str() == Some(kind) || has_type(value, kind)),
        Value::Array(elements) => elements.iter().any(|element| has_type(element, kind)),
        _ => false,
    }
}
