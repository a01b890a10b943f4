//! What is wrong with an input: every problem at once, each with its place, the value, what was expected and the remedy.

use std::cell::{Cell, RefCell};
use std::fmt;

use super::config::TABLE;
use super::place::{Place, Places};

/// Which input a problem is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Document {
    /// The driver's configuration.
    Config,
    /// The description of the sandbox.
    Sandbox,
    /// What the caller looked up.
    Cluster,
}

impl fmt::Display for Document {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Config => "config",
            Self::Sandbox => "sandbox",
            Self::Cluster => "cluster",
        })
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where: which input.
    pub document: Document,
    /// The file of that input, where it is one.
    pub file: Option<String>,
    /// Line and column in it.
    pub place: Option<Place>,
    /// Where in it: `driver_config.volumes[0].name`.
    pub path: String,
    /// What is there; `None` where nothing is, or where it may be a secret.
    pub value: Option<String>,
    /// What was expected.
    pub expected: String,
    /// What to do.
    pub remedy: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { document, file, place, path, value, expected, remedy } = self;
        match file {
            Some(file) => write!(out, "{file}:")?,
            None => write!(out, "{document}:")?,
        }
        if let Some(place) = place {
            write!(out, "{place}:")?;
        }
        write!(out, " {path}")?;
        if let Some(value) = value {
            write!(out, " is {value}")?;
        }
        write!(out, ": expected {expected}; {remedy}")
    }
}

/// Everything that is wrong, in the order in which the inputs are read. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors(Vec<Problem>);

impl Errors {
    /// The problems, one by one.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }

    /// The same, with file, line and column of what is in `document`, which was read from `text` of the file `name`.
    #[must_use]
    pub fn in_file(mut self, document: Document, name: &str, text: &str) -> Self {
        let places = match document {
            Document::Config => Places::of_toml(text, &TABLE),
            Document::Sandbox => Places::of_yaml(text),
            Document::Cluster => Places::default(),
        };
        for problem in self.0.iter_mut().filter(|problem| problem.document == document) {
            problem.file = Some(name.to_owned());
            problem.place = problem.place.or_else(|| places.find(&problem.path));
        }
        self
    }

    /// Both, for who read two inputs and tells of both at once.
    #[must_use]
    pub fn and(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(out, "{}{problem}", if index == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

impl std::error::Error for Errors {}

/// Where checks of one input put what they find; shared, so that a check goes on after the first problem.
#[derive(Debug)]
pub(super) struct Problems {
    document: Document,
    found: RefCell<Vec<Problem>>,
    /// How many of them the reading found: see [`reading_is_done`](Self::reading_is_done).
    read: Cell<usize>,
}

impl Problems {
    pub(super) fn of(document: Document) -> Self {
        Self { document, found: RefCell::default(), read: Cell::default() }
    }

    /// What could not be read is empty now: of such a field nothing more is noted, since it would be false.
    pub(super) fn reading_is_done(&self) {
        self.read.set(self.found.borrow().len());
    }

    /// Notes that the text is no document at all, from `place` on.
    pub(super) fn broken(&self, place: Option<Place>, expected: impl Into<String>, remedy: impl Into<String>) {
        self.without("the document", expected, remedy);
        if let Some(problem) = self.found.borrow_mut().last_mut() {
            problem.place = place;
        }
    }

    /// Notes a problem with a value that may be told.
    pub(super) fn with(
        &self,
        path: impl Into<String>,
        value: impl fmt::Debug,
        expected: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.note(path.into(), Some(shortened(format!("{value:?}"))), expected.into(), remedy.into());
    }

    /// Notes a problem whose value is missing, or may not be told.
    pub(super) fn without(&self, path: impl Into<String>, expected: impl Into<String>, remedy: impl Into<String>) {
        self.note(path.into(), None, expected.into(), remedy.into());
    }

    fn note(&self, path: String, value: Option<String>, expected: String, remedy: String) {
        let mut found = self.found.borrow_mut();
        if found.iter().take(self.read.get()).any(|read| is_in(&read.path, &path)) {
            return;
        }
        let (file, place) = (None, None);
        found.push(Problem { document: self.document, file, place, path, value, expected, remedy });
    }

    pub(super) fn into_found(self) -> Vec<Problem> {
        self.found.into_inner()
    }

    /// The value, if nothing was found wrong.
    pub(super) fn settle<T>(self, value: T) -> Result<T, Errors> {
        settle(self.into_found(), value)
    }
}

/// The value, if nothing was found wrong.
pub(super) fn settle<T>(mut found: Vec<Problem>, value: T) -> Result<T, Errors> {
    // One mistake can fail two checks of the same field in the same words.
    let mut told: Vec<Problem> = Vec::with_capacity(found.len());
    for problem in found.drain(..) {
        if !told.contains(&problem) {
            told.push(problem);
        }
    }
    if told.is_empty() { Ok(value) } else { Err(Errors(told)) }
}

/// Whether a path is another one, or of something in it.
fn is_in(path: &str, whole: &str) -> bool {
    path.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Characters of a value that a message repeats; more would hide the message.
const TOLD: usize = 120;

fn shortened(text: String) -> String {
    match text.char_indices().nth(TOLD) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
