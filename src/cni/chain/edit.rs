//! [`Way::Conflist`](super::Way::Conflist): the entry in the configuration that the runtime uses.
//!
//! A list is edited where it lies. A single plugin cannot be chained onto, and is not touched: a list made from it is
//! put beside it under a name that sorts before it, and so takes its place. That is one step there and one step back,
//! its owner may rewrite the original whenever they like without undoing the chain, and whatever waits for the
//! original's name still finds it. (A runtime told to attach pods to every configuration there is, which containerd is
//! not unless its `max_conf_num` says so, would attach them to both.)

use std::ffi::{OsStr, OsString};

use super::directory::{Attributes, Content, Directory, Found};
use super::document::{Difference, List, Single};
use super::error::ChainError;
use super::replace::{self, Edited, Stop};
use super::survey::{self, Form, Survey, copy_name, with_suffix};
use super::{Action, BACKUP_SUFFIX, Chain, Change, Report, Verdict};

/// Why a list in which everything lies in the drop-in directory is not edited.
const NO_INLINE_PLUGINS: &str =
    "its plugins lie in the directory of the network's name: chain by the drop-in directory";

impl Chain {
    pub(super) fn verify_edited(&self, directory: &Directory) -> Result<Verdict, ChainError> {
        let survey = self.survey(directory)?;
        let Some((name, form)) = survey.primary(self.file.as_deref()) else {
            return Ok(self.nothing_to_chain_onto(directory, &survey));
        };
        let file = directory.at(name);
        let (target, verdict) = match form {
            Form::Unchainable(why) => return Ok(Verdict::Unchainable { file, why: why.clone() }),
            Form::List(content) => (name.clone(), self.list_verdict(directory, name, content)),
            Form::Single(content) => {
                let copy = copy_name(name);
                let expected = self.copy_of(name, content);
                let present = survey.copies().find(|(name, _)| *name == copy).map(|(_, content)| content);
                let file = directory.at(&copy);
                let verdict = match (present, expected) {
                    (_, None) => Verdict::Unchainable { file, why: "its plugin cannot be copied".into() },
                    (None, _) => Verdict::Absent { file },
                    (Some(present), Some(expected)) if present.bytes == expected.as_bytes() => {
                        Verdict::Chained { file }
                    }
                    (Some(_), _) => {
                        let what = format!("not what follows from {}", directory.at(name).display());
                        Verdict::Altered { file, what }
                    }
                };
                (copy, verdict)
            }
            // The primary is never a copy.
            Form::Copy(_) => return Ok(self.nothing_to_chain_onto(directory, &survey)),
        };
        match survey.first() {
            Some(first) if verdict.is_chained() && first != target => {
                Ok(Verdict::Shadowed { file: directory.at(&target), by: directory.at(first) })
            }
            _ => Ok(verdict),
        }
    }

    fn list_verdict(&self, directory: &Directory, name: &OsStr, content: &Content) -> Verdict {
        let file = directory.at(name);
        let list = match List::find(&content.bytes) {
            Ok(list) if list.plugins.is_empty() => {
                return Verdict::Unchainable { file, why: NO_INLINE_PLUGINS.into() };
            }
            Ok(list) => list,
            Err(unfit) => return Verdict::Unchainable { file, why: unfit.why().into() },
        };
        match list.difference(&self.entry()) {
            Ok(()) => Verdict::Chained { file },
            Err(Difference::Absent) => Verdict::Absent { file },
            Err(Difference::Altered(what)) => Verdict::Altered { file, what },
        }
    }

    /// The list that takes the place of a single plugin.
    fn copy_of(&self, name: &OsStr, content: &Content) -> Option<String> {
        let single = Single::read(&content.bytes, self.versions).ok()?;
        Some(single.copy(name.to_str()?, &self.entry().to_string()))
    }

    pub(super) fn install_edited(&self, directory: &Directory, report: &mut Report<'_>) -> Result<(), ChainError> {
        let survey = self.survey(directory)?;
        let mut copy = None;
        match survey.primary(self.file.as_deref()) {
            // What it is going to be is not known yet.
            Some((_, Form::Unchainable(_))) => return Ok(()),
            Some((name, Form::List(_))) => self.edit_list(directory, name, report)?,
            Some((name, Form::Single(content))) => {
                copy = Some(copy_name(name));
                self.put_copy(directory, name, content, report)?;
            }
            Some((_, Form::Copy(_))) | None => {}
        }
        // A copy of what is gone, or no longer comes first, would keep alive a network that its owner has ended.
        for (name, _) in survey.copies().filter(|(name, _)| copy.as_deref() != Some(*name)) {
            if directory.unlink(name)? {
                let why = "the configuration that it stood for is not the one in use".into();
                report(Change { file: directory.at(name), action: Action::Removed, why });
            }
        }
        Ok(())
    }

    fn edit_list(&self, directory: &Directory, name: &OsStr, report: &mut Report<'_>) -> Result<(), ChainError> {
        let (expected, mut why) = (self.entry(), String::new());
        let mut reports = Vec::new();
        let edited = replace::edit(directory, name, |content| {
            let list = List::read(&content.bytes, self.versions).map_err(|unfit| Stop::Refused(unfit.why().into()))?;
            why = match list.difference(&expected) {
                Ok(()) => return Ok(None),
                Err(_) if list.plugins.is_empty() => return Err(Stop::Refused(NO_INLINE_PLUGINS.into())),
                Err(Difference::Absent) => "it was not there".into(),
                Err(Difference::Altered(what)) => what,
            };
            let text = list.with(&expected.to_string());
            let sound = List::read(text.as_bytes(), self.versions)
                .is_ok_and(|new| new.difference(&expected).is_ok() && foreign(&new).eq(foreign(&list)));
            if !sound {
                return Err(Stop::Refused("the edited text would not be what it should".into()));
            }
            back_up(directory, name, &list, content, &mut reports).map_err(Stop::Failed)?;
            Ok(Some(text.into_bytes()))
        });
        reports.drain(..).for_each(&mut *report);
        if edited? == Edited::Written {
            report(Change { file: directory.at(name), action: Action::Chained, why });
        }
        Ok(())
    }

    fn put_copy(
        &self,
        directory: &Directory,
        name: &OsStr,
        content: &Content,
        report: &mut Report<'_>,
    ) -> Result<(), ChainError> {
        let Some(text) = self.copy_of(name, content) else { return Ok(()) };
        if !List::read(text.as_bytes(), self.versions).is_ok_and(|list| list.difference(&self.entry()).is_ok()) {
            return Ok(());
        }
        let copy = copy_name(name);
        let why = match directory.read(&copy)? {
            Found::File(present) if present.bytes == text.as_bytes() => return Ok(()),
            Found::File(present) if !is_replaceable(&present.bytes) => return Ok(()),
            Found::File(_) => "its original was rewritten, or the plugin's settings changed",
            Found::Absent => "a list with the plugin of the original, which sorts before it and takes its place",
            Found::Directory | Found::Odd(_) => return Ok(()),
        };
        directory.publish(&copy, text.as_bytes(), content.attributes)?;
        report(Change {
            file: directory.at(&copy),
            action: Action::Created,
            why: format!("{why} ({})", name.display()),
        });
        Ok(())
    }

    pub(super) fn remove_edited(&self, directory: &Directory, report: &mut Report<'_>) -> Result<(), ChainError> {
        for name in directory.names()? {
            if !survey::is_list(&name) {
                continue;
            }
            let Found::File(content) = directory.read(&name)? else { continue };
            let Ok(list) = List::find(&content.bytes) else { continue };
            if list.is_copy_named(&name) {
                directory.unlink(&name)?;
                let why = "the original is used again".into();
                report(Change { file: directory.at(&name), action: Action::Removed, why });
                continue;
            }
            let edited = replace::edit(directory, &name, |content| {
                let list = List::find(&content.bytes).map_err(|unfit| Stop::Refused(unfit.why().into()))?;
                if !list.names_us() {
                    return Ok(None);
                }
                let text = list.without();
                // A list of nothing but our plugin is no network, and one without any plugin cannot even be loaded.
                match List::find(text.as_bytes()) {
                    Ok(new) if !new.names_us() && foreign(&new).eq(foreign(&list)) => Ok(Some(text.into_bytes())),
                    _ => Err(Stop::Refused("nothing would be left of it".into())),
                }
            })?;
            if edited == Edited::Written {
                let why = "the plugin is being uninstalled".into();
                report(Change { file: directory.at(&name), action: Action::Unchained, why });
            }
            if matches!(edited, Edited::Written | Edited::Unchanged) && directory.unlink(&backup_name(&name))? {
                let why = "the file is its owner's again".into();
                report(Change { file: directory.at(&backup_name(&name)), action: Action::Removed, why });
            }
        }
        Ok(())
    }
}

impl Chain {
    pub(super) fn nothing_to_chain_onto(&self, directory: &Directory, survey: &Survey) -> Verdict {
        let skipped = survey.skipped.iter().map(|(name, why)| (directory.at(name), why.clone())).collect();
        Verdict::NoPrimary { directory: directory.path().into(), named: self.file.clone(), skipped }
    }
}

/// The text of every plugin that is not ours.
fn foreign<'l>(list: &'l List<'_>) -> impl Iterator<Item = &'l str> {
    list.plugins.iter().filter(|plugin| !plugin.is_ours()).map(|plugin| plugin.raw)
}

/// Whether the file under a copy's name may be replaced: a copy, or what a loss of power left of one.
fn is_replaceable(bytes: &[u8]) -> bool {
    bytes.is_empty() || List::find(bytes).is_ok_and(|list| list.copy_of.is_some())
}

fn backup_name(name: &OsStr) -> OsString {
    with_suffix(name, BACKUP_SUFFIX)
}

/// Keeps a text that has nothing of ours, once, before ours comes into it.
fn back_up(
    directory: &Directory,
    name: &OsStr,
    list: &List<'_>,
    content: &Content,
    reports: &mut Vec<Change>,
) -> Result<(), ChainError> {
    if list.names_us() {
        return Ok(());
    }
    let backup = backup_name(name);
    match directory.read(&backup)? {
        Found::File(kept) if kept.bytes == content.bytes => return Ok(()),
        Found::File(_) | Found::Absent => {}
        Found::Directory | Found::Odd(_) => return Err(directory.failed("write", &backup, nix::errno::Errno::EEXIST)),
    }
    // Nobody but root has to read it.
    let attributes = Attributes { mode: content.attributes.mode & 0o600, ..content.attributes };
    directory.publish(&backup, &content.bytes, attributes)?;
    let why = format!("{} as it was without the plugin", name.display());
    reports.push(Change { file: directory.at(&backup), action: Action::Created, why });
    Ok(())
}
