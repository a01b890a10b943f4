//! What is wrong with a policy, its rules or its module: every finding at once, each with its place and its remedy.

use std::fmt;

/// Findings reported for one file. A file with more is not what it was meant to be, and its reader is served by the
/// first ones.
pub const MAX_PROBLEMS: usize = 100;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line, from 1; 0 where the file as a whole is meant.
    pub line: u32,
    /// Column in characters, from 1; 0 where the file as a whole is meant.
    pub column: u32,
    /// The field, as a path from the top: `network_policies.github.endpoints[0].host`. Empty for the whole file.
    pub field: String,
    /// What is wrong, and what was expected.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl Problem {
    /// A problem of the file as a whole.
    pub(super) fn of_file(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { line: 0, column: 0, field: String::new(), message: message.into(), remedy: remedy.into() }
    }
}

/// Why a policy, or what decides by it, cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// The file, as it was named.
    pub file: String,
    /// Everything that was found, in the order of the file; never empty.
    pub problems: Vec<Problem>,
}

impl LoadError {
    /// The one thing that keeps `file` from being read at all.
    pub(super) fn of_file(file: impl fmt::Display, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { file: file.to_string(), problems: vec![Problem::of_file(message, remedy)] }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{}:", self.file)?;
            if problem.line > 0 {
                write!(f, "{}:{}:", problem.line, problem.column)?;
            }
            if !problem.field.is_empty() {
                write!(f, " {}:", problem.field)?;
            }
            write!(f, " {}; {}", problem.message, problem.remedy)?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadError {}
