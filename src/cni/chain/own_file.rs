//! The ways with a file of our own: [`Way::MultusChain`] and [`Way::DropIn`]. Nothing of anybody else's is touched.

use std::ffi::OsStr;

use serde_json::{Value, json};

use super::directory::{Attributes, Directory, Found};
use super::document::{List, differs};
use super::error::ChainError;
use super::survey::Form;
use super::{Action, Chain, Change, PLUGIN_TYPE, Report, Verdict, Way};

/// The name of our file. Both readers load what ends in `.conf` (libcni, NetworkPluginConfsFromFiles).
const FILE: &str = "openshell-cni.conf";

/// Says in a directory that it was made here, and may go when nothing else is in it.
const MARKER: &str = ".openshell-directory";

/// What a file that stands alone says; multus and libcni put the version of the whole chain in its place.
const VERSION: &str = "0.3.1";

impl Chain {
    /// What our file says.
    fn own_text(&self) -> Value {
        let mut text = self.entry();
        if self.way == Way::MultusChain {
            text["name"] = json!(PLUGIN_TYPE);
            text["cniVersion"] = json!(VERSION);
        }
        text
    }

    pub(super) fn verify_own(&self, directory: &Directory) -> Result<Verdict, ChainError> {
        let file = directory.at(OsStr::new(FILE));
        Ok(match directory.read(OsStr::new(FILE))? {
            Found::Absent => Verdict::Absent { file },
            Found::Directory => Verdict::Unchainable { file, why: "it is a directory; remove it".into() },
            Found::Odd(what) => Verdict::Altered { file, what },
            Found::File(content) => match std::str::from_utf8(&content.bytes).map(|raw| differs(raw, &self.own_text()))
            {
                Ok(None) => Verdict::Chained { file },
                Ok(Some(what)) => Verdict::Altered { file, what },
                Err(_) => Verdict::Altered { file, what: "it is not UTF-8".into() },
            },
        })
    }

    pub(super) fn install_own(&self, directory: &Directory, report: &mut Report<'_>) -> Result<(), ChainError> {
        let why = match self.verify_own(directory)? {
            Verdict::Absent { .. } => "it was not there".to_owned(),
            Verdict::Altered { what, .. } => what,
            _ => return Ok(()),
        };
        let text = format!("{:#}\n", self.own_text());
        directory.publish(OsStr::new(FILE), text.as_bytes(), Attributes::own())?;
        report(Change { file: directory.at(OsStr::new(FILE)), action: Action::Created, why });
        Ok(())
    }

    /// Multus looks into the directory and does not make it, and after a boot it is gone. Above it is multus' own
    /// directory, which is waited for.
    pub(super) fn make_chain_directory(&self, report: &mut Report<'_>) -> Result<(), ChainError> {
        match self.parent()? {
            Some((parent, name)) => make(&parent, name, report),
            None => Ok(()),
        }
    }

    pub(super) fn remove_chain_directory(&self, report: &mut Report<'_>) -> Result<(), ChainError> {
        match self.parent()? {
            Some((parent, name)) => remove_made(&parent, name, report),
            None => Ok(()),
        }
    }

    fn parent(&self) -> Result<Option<(Directory, &OsStr)>, ChainError> {
        let (Some(parent), Some(name)) = (self.directory.parent(), self.directory.file_name()) else { return Ok(None) };
        let parent = if parent.as_os_str().is_empty() { ".".as_ref() } else { parent };
        Ok(Directory::open(parent)?.map(|parent| (parent, name)))
    }

    pub(super) fn verify_dropped_in(&self, directory: &Directory) -> Result<Verdict, ChainError> {
        match self.network(directory)? {
            Err(verdict) => Ok(verdict),
            Ok(network) => match directory.below(OsStr::new(&network))? {
                Some(below) => self.verify_own(&below),
                None => Ok(Verdict::Absent { file: directory.at(OsStr::new(&network)).join(FILE) }),
            },
        }
    }

    pub(super) fn install_dropped_in(&self, directory: &Directory, report: &mut Report<'_>) -> Result<(), ChainError> {
        let Ok(network) = self.network(directory)? else { return Ok(()) };
        let name = OsStr::new(&network);
        make(directory, name, report)?;
        if let Some(below) = directory.below(name)? {
            let lock = below.lock()?;
            super::sweep(&below, &lock, report)?;
            self.install_own(&below, report)?;
        }
        self.remove_dropped_in(directory, Some(name), report)
    }

    /// Takes our file out of the directories of all networks but one, and removes the directories made for it.
    pub(super) fn remove_dropped_in(
        &self,
        directory: &Directory,
        but: Option<&OsStr>,
        report: &mut Report<'_>,
    ) -> Result<(), ChainError> {
        for name in directory.names()? {
            if but == Some(&name) || !matches!(directory.read(&name)?, Found::Directory) {
                continue;
            }
            let Some(below) = directory.below(&name)? else { continue };
            if remove(&below, report)? {
                remove_made(directory, &name, report)?;
            }
        }
        Ok(())
    }

    /// The name of the network that the runtime uses, if plugins in a directory of that name are appended to it.
    fn network(&self, directory: &Directory) -> Result<Result<String, Verdict>, ChainError> {
        let survey = self.survey(directory)?;
        let Some((name, form)) = survey.primary(self.file.as_deref()) else {
            return Ok(Err(self.nothing_to_chain_onto(directory, &survey)));
        };
        let file = directory.at(name);
        let unchainable = |why: &str| Ok(Err(Verdict::Unchainable { file: file.clone(), why: why.into() }));
        let content = match form {
            Form::List(content) => content,
            Form::Single(_) => return unchainable("it is a single plugin, and only lists have a drop-in directory"),
            Form::Unchainable(why) => return unchainable(why),
            Form::Copy(_) => return Ok(Err(self.nothing_to_chain_onto(directory, &survey))),
        };
        if let Some(first) = survey.first().filter(|first| first != name) {
            return Ok(Err(Verdict::Shadowed { file, by: directory.at(first) }));
        }
        match List::find(&content.bytes) {
            Ok(list) if list.inlined_only => {
                unchainable("its loadOnlyInlinedPlugins is true: chain by editing it, or ask its owner for false")
            }
            Ok(list) if !is_file_name(&list.name) => {
                unchainable("the network's name is none that the specification allows, and none for a directory")
            }
            Ok(list) => Ok(Ok(list.name)),
            Err(unfit) => unchainable(unfit.why()),
        }
    }
}

/// Takes our file out of a directory; whether it was there.
pub(super) fn remove(directory: &Directory, report: &mut Report<'_>) -> Result<bool, ChainError> {
    let removed = directory.unlink(OsStr::new(FILE))?;
    if removed {
        let why = "the plugin is not chained by it any longer".into();
        report(Change { file: directory.at(OsStr::new(FILE)), action: Action::Removed, why });
    }
    Ok(removed)
}

fn make(parent: &Directory, name: &OsStr, report: &mut Report<'_>) -> Result<(), ChainError> {
    if !parent.make(name)? {
        return Ok(());
    }
    report(Change { file: parent.at(name), action: Action::Created, why: "for the plugin's file".into() });
    match parent.below(name)? {
        Some(made) => made.publish(OsStr::new(MARKER), b"", Attributes::own()),
        None => Ok(()),
    }
}

fn remove_made(parent: &Directory, name: &OsStr, report: &mut Report<'_>) -> Result<(), ChainError> {
    let Some(directory) = parent.below(name)? else { return Ok(()) };
    if directory.names()? != [MARKER] || !directory.unlink(OsStr::new(MARKER))? {
        return Ok(());
    }
    drop(directory);
    if parent.remove_empty(name)? {
        let why = "it was made for the plugin's file, and is empty".into();
        report(Change { file: parent.at(name), action: Action::Removed, why });
    }
    Ok(())
}

/// A network's name by the specification: letters, digits and `_.-`, a letter or digit first. So it names no other
/// directory than one in the runtime's.
fn is_file_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name.chars().all(|character| character.is_ascii_alphanumeric() || matches!(character, '_' | '.' | '-'))
        && name.len() <= nix::libc::NAME_MAX as usize
}
