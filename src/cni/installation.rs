//! All that has to be on a node for its sandboxes to be fenced: the program, the credentials, the chain, and a kernel that
//! can do it.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::time::{ClockId, clock_gettime};

use super::chain::{self, Chain, ChainError, Change, PLUGIN_TYPE, Verdict};
use super::credentials::Credentials;
use super::namespace;
use super::program::{Left, Program};

/// The installation on this node.
#[derive(Debug)]
pub struct Installation {
    /// The configuration that calls the plugin.
    pub chain: Chain,
    /// What it calls.
    pub program: Program,
    /// What that asks the API server with.
    pub credentials: Credentials,
    /// Directories of configurations that runtimes have by default.
    pub usual_directories: Vec<PathBuf>,
    /// What tells that the plugin is called, in ways that do not prove themselves.
    pub called: Option<Called>,
    /// Whether this kernel was seen putting up a fence.
    pub rehearsed: bool,
}

/// Whether the plugin is called: by the time of a file that it touches.
#[derive(Clone, Debug)]
pub struct Called {
    mark: PathBuf,
    /// Calls of before do not count.
    since: SystemTime,
}

impl Called {
    /// By the file at `mark`, written since the node was started: it may lie where it outlives that.
    #[must_use]
    pub fn at(mark: PathBuf) -> Self {
        let running = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default();
        let since = SystemTime::now().checked_sub(running).unwrap_or(SystemTime::UNIX_EPOCH);
        Self { mark, since }
    }

    fn is_seen(&self) -> bool {
        let touched = std::fs::symlink_metadata(&self.mark).and_then(|status| status.modified());
        touched.is_ok_and(|touched| touched >= self.since)
    }
}

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A sandbox that is started now is fenced.
    Verified {
        /// The configuration.
        file: PathBuf,
    },
    /// It would not be.
    Deficient {
        /// Why, in one CamelCase word.
        reason: &'static str,
        /// Why, in a sentence.
        message: String,
        /// Whether a repair may help, or only time.
        repairable: bool,
    },
}

impl Standing {
    /// Whether all is as it should be.
    #[must_use]
    pub fn is_verified(&self) -> bool {
        matches!(self, Self::Verified { .. })
    }

    /// What is wrong.
    pub fn deficient(reason: &'static str, message: impl ToString) -> Self {
        Self::Deficient { reason, message: message.to_string(), repairable: false }
    }

    fn to_be_repaired(reason: &'static str, message: impl ToString) -> Self {
        Self::Deficient { reason, message: message.to_string(), repairable: true }
    }
}

impl Installation {
    /// Looks at all of it. Only the token is written, where the kubelet has renewed it.
    pub fn verify(&mut self) -> Standing {
        if !self.program.is_installed() {
            let path = self.program.path().display();
            return Standing::to_be_repaired("ProgramMissing", format!("{path} is not this executable"));
        }
        if let Err(error) = self.credentials.write() {
            return Standing::deficient("CredentialsMissing", error);
        }
        let standing = match self.chain.verify() {
            Ok(verdict) => self.judge(&verdict),
            Err(error) => return Standing::to_be_repaired("ChainUnreadable", error),
        };
        // Last: a plugin that can raise no fence refuses sandboxes, which is better than none.
        if standing.is_verified() && !self.rehearsed {
            match namespace::rehearse() {
                Ok(()) => self.rehearsed = true,
                Err(error) => return Standing::deficient("FenceImpossible", error.details),
            }
        }
        standing
    }

    /// Puts right what is not, and looks at all of it again.
    pub fn repair(&mut self, report: impl FnMut(Change)) -> Standing {
        if !self.program.is_installed()
            && let Err(error) = self.program.install()
        {
            return Standing::to_be_repaired("ProgramMissing", error);
        }
        if let Some(strange) = self.strange_directory() {
            return strange;
        }
        // Before the chain: from then on sandboxes are looked up, and refused without them.
        if let Err(error) = self.credentials.write() {
            return Standing::deficient("CredentialsMissing", error);
        }
        // What the plugin was called by before says nothing of a chain that is made now.
        if let Some(called) = &mut self.called
            && matches!(self.chain.verify(), Ok(Verdict::Absent { .. } | Verdict::NoPrimary { .. }))
        {
            called.since = called.since.max(SystemTime::now());
        }
        match self.chain.install(report) {
            Ok(_) => self.verify(),
            Err(error) => Standing::to_be_repaired("ChainFailed", error),
        }
    }

    /// Takes all of it away again, and says what is left of the program.
    ///
    /// # Errors
    /// A step failed; the program stays, so that what still names it finds it.
    pub fn remove(&mut self, report: impl FnMut(Change)) -> Result<Left, ChainError> {
        self.chain.remove(report)?;
        self.credentials.remove();
        // An earlier installation may have chained in another way.
        let mut directories = BTreeSet::from([self.chain.directory.clone()]);
        directories.extend(self.usual_directories.iter().cloned());
        self.program.remove(&directories)
    }

    /// Whether the directory of plugins is another one than the runtime's. A chain that names a program which the runtime does not
    /// find ends the network of every pod of the node, so that is asked before there is one.
    fn strange_directory(&self) -> Option<Standing> {
        let directory = self.program.path().parent()?;
        let (Verdict::Chained { file } | Verdict::Absent { file } | Verdict::Altered { file, .. }) =
            self.chain.verify().ok()?
        else {
            return None;
        };
        let others: Vec<String> = chain::types(&file).into_iter().filter(|kind| kind != PLUGIN_TYPE).collect();
        if others.is_empty() || others.iter().any(|kind| directory.join(kind).exists()) {
            return None;
        }
        Some(Standing::deficient(
            "PluginsElsewhere",
            format!(
                "{}: none of the plugins that {} calls is there ({}): name the directory that the container runtime has \
                 them in, by --bin-dir",
                directory.display(),
                file.display(),
                others.join(", ")
            ),
        ))
    }

    fn judge(&self, verdict: &Verdict) -> Standing {
        let reason = match verdict {
            Verdict::Chained { file } => {
                return match &self.called {
                    Some(called) if !called.is_seen() => Standing::deficient(
                        "NotCalledYet",
                        format!(
                            "{} is in place, and no container runtime has called the plugin since the node's start, or since \
                             it was put there: it takes one that knows this way of chaining, and a pod",
                            file.display()
                        ),
                    ),
                    _ => Standing::Verified { file: file.clone() },
                };
            }
            Verdict::Absent { .. } => "NotChained",
            Verdict::Altered { .. } => "ChainAltered",
            Verdict::Shadowed { .. } => "ChainShadowed",
            Verdict::Unchainable { .. } => "Unchainable",
            Verdict::NoPrimary { .. } => "NoNetwork",
        };
        Standing::to_be_repaired(reason, verdict)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_call_of_before_does_not_count() {
        let directory = tempfile::tempdir().unwrap();
        let mark = directory.path().join("called");
        let mut called = Called::at(mark.clone());
        assert!(!called.is_seen());
        let touched = |at: SystemTime| File::create(&mark).unwrap().set_modified(at).unwrap();
        touched(SystemTime::now());
        assert!(called.is_seen());
        // Of before the node was started.
        touched(called.since - Duration::from_secs(1));
        assert!(!called.is_seen());
        // Of before the chain was made.
        touched(SystemTime::now());
        called.since = SystemTime::now() + Duration::from_secs(1);
        assert!(!called.is_seen());
        touched(called.since);
        assert!(called.is_seen());
    }
}
