//! Which network configuration of a directory a runtime uses. containerd (go-cni), CRI-O (ocicni) and the kubelets of
//! old sort the files that end in `.conf`, `.conflist` or `.json`, hidden ones included, and take the first that they
//! can load. They differ about the rest: containerd gives up at the first that it cannot load, CRI-O goes on to the
//! next. So a file that surely none of them loads is passed over, and one that some may load ends the search.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use super::Chain;
use super::directory::{Content, Directory, Found};
use super::document::{List, Single, Unfit};
use super::error::ChainError;

/// What runtimes load.
const LIST: &str = "conflist";
const SINGLE: [&str; 2] = ["conf", "json"];

/// What is appended to a file's stem to name the copy that comes before it: the hyphen sorts before the full stop.
const COPY: &str = "-openshell.conflist";

/// A file that cannot be loaded and is younger than this is taken to be half-written: what comes after it in the order
/// is not touched for a file that will be whole in an instant.
const HALF_WRITTEN: Duration = Duration::from_secs(2);

/// A directory, looked at once.
pub(super) struct Survey {
    /// Files that a runtime may load, in their order.
    pub files: Vec<(OsString, Form)>,
    /// Files that none loads, and why.
    pub skipped: Vec<(OsString, String)>,
}

/// What a file is.
pub(super) enum Form {
    /// A configuration list.
    List(Content),
    /// A single plugin.
    Single(Content),
    /// A list made here from a single plugin.
    Copy(Content),
    /// Something that a runtime may load and that cannot be chained onto, and why.
    Unchainable(String),
}

impl Survey {
    pub fn take(directory: &Directory, versions: &[&str]) -> Result<Self, ChainError> {
        let mut survey = Self { files: Vec::new(), skipped: Vec::new() };
        for name in directory.names()? {
            if !is_configuration(&name) {
                continue;
            }
            let content = match directory.read(&name) {
                Ok(Found::File(content)) => content,
                Ok(Found::Absent | Found::Directory) => continue,
                Ok(Found::Odd(why)) => {
                    survey.files.push((name, Form::Unchainable(format!("it is {why}"))));
                    continue;
                }
                Err(error) => {
                    survey.files.push((name, Form::Unchainable(format!("it cannot be read: {error}"))));
                    continue;
                }
            };
            let age = content.age;
            match form(directory, &name, content, versions) {
                Ok(form) => survey.files.push((name, form)),
                Err(Unfit::Unchainable(why)) => survey.files.push((name, Form::Unchainable(why))),
                Err(Unfit::Unloadable(why)) if age < HALF_WRITTEN => {
                    let why = format!("{why}; it was written just now, so the rest of it is waited for");
                    survey.files.push((name, Form::Unchainable(why)));
                }
                Err(Unfit::Unloadable(why)) => survey.skipped.push((name, why)),
            }
        }
        Ok(survey)
    }

    /// The file to chain onto: the first that counts, or the one that was named. Copies made here count for nothing by
    /// themselves, since they only stand for another file.
    pub fn primary(&self, named: Option<&OsStr>) -> Option<&(OsString, Form)> {
        self.files
            .iter()
            .filter(|(_, form)| !matches!(form, Form::Copy(_)))
            .find(|(name, _)| named.is_none_or(|named| named == name))
    }

    /// The file that a runtime takes.
    pub fn first(&self) -> Option<&OsStr> {
        self.files.first().map(|(name, _)| name.as_os_str())
    }

    /// Copies made here, with what they are copies of.
    pub fn copies(&self) -> impl Iterator<Item = (&OsStr, &Content)> {
        self.files.iter().filter_map(|(name, form)| match form {
            Form::Copy(content) => Some((name.as_os_str(), content)),
            _ => None,
        })
    }
}

/// Whether a runtime would look into a file of this name.
pub(super) fn is_configuration(name: &OsStr) -> bool {
    let bytes = name.as_encoded_bytes();
    [LIST].iter().chain(&SINGLE).any(|end| bytes.strip_suffix(end.as_bytes()).is_some_and(|stem| stem.ends_with(b".")))
}

/// Whether it would take it for a list.
pub(super) fn is_list(name: &OsStr) -> bool {
    name.as_encoded_bytes().ends_with(b".conflist")
}

/// The name of the copy of a single plugin, which sorts before its original and so takes its place.
pub(super) fn copy_name(original: &OsStr) -> OsString {
    with_suffix(Path::new(original).file_stem().unwrap_or(original), COPY)
}

/// A name that another one is made of, with as much of that as there is room for: a name that is cut sorts before what it
/// was cut from, unless that has something before the hyphen there, and who looks for what comes first sees that.
pub(super) fn with_suffix(name: &OsStr, suffix: &str) -> OsString {
    let room = nix::libc::NAME_MAX as usize - suffix.len();
    let bytes = name.as_bytes();
    let mut made = OsStr::from_bytes(&bytes[..bytes.len().min(room)]).to_owned();
    made.push(suffix);
    made
}

fn form(directory: &Directory, name: &OsStr, content: Content, versions: &[&str]) -> Result<Form, Unfit> {
    if !is_list(name) {
        Single::read(&content.bytes, versions)?;
        return Ok(Form::Single(content));
    }
    let found = List::find(&content.bytes)?;
    if found.is_copy_named(name) {
        return Ok(Form::Copy(content));
    }
    if found.plugins.is_empty() && matches!(directory.below(OsStr::new(&found.name)), Ok(None)) {
        return Err(Unfit::Unloadable("it has no plugins".into()));
    }
    List::read(&content.bytes, versions)?;
    Ok(Form::List(content))
}

impl List<'_> {
    /// Whether it was made here from a single plugin and lies under the name that such a list gets.
    pub fn is_copy_named(&self, name: &OsStr) -> bool {
        self.copy_of.as_deref().is_some_and(|original| copy_name(OsStr::new(original)) == name)
    }
}

impl Chain {
    pub(super) fn survey(&self, directory: &Directory) -> Result<Survey, ChainError> {
        Survey::take(directory, self.versions)
    }
}
