//! The system-call filter (seccomp(2)): [`rules`] compiled to a [`program`] and installed for good.
//!
//! Compiled at every start of a sandbox rather than kept in a file: it costs a fraction of a millisecond, and the table stays the
//! only description.

mod program;
mod rules;

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::BpfProgram;
use serde::{Deserialize, Serialize};

use program::Refusal;
use rules::{GROUPS, STREAMS_ALONE};

/// Which list applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// What every workload loses.
    #[default]
    Baseline,
    /// Also what only some programs need: memfd, pidfds, filters of their own.
    Strict,
    /// Baseline with what graphics and CUDA user space needs.
    Gpu,
}

impl std::str::FromStr for Profile {
    type Err = SeccompError;

    fn from_str(text: &str) -> Result<Self, SeccompError> {
        match text {
            "baseline" => Ok(Self::Baseline),
            "strict" => Ok(Self::Strict),
            "gpu" => Ok(Self::Gpu),
            other => Err(SeccompError::UnknownProfile(other.to_owned())),
        }
    }
}

/// Which sockets of the network a workload may have, besides what its profile says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sockets {
    /// Streams and datagrams.
    #[default]
    All,
    /// Streams alone: where nothing in the pod's own kernel keeps datagrams in.
    Streams,
}

/// What a refused call returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// EPERM.
    NotPermitted,
    /// ENOSYS, for calls whose callers then fall back to an older one.
    NotImplemented,
}

/// Why there is no filter.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// A profile that is none.
    #[error("seccomp profile {0:?}: expected baseline, strict or gpu")]
    UnknownProfile(String),
    /// This machine's architecture.
    #[error("no seccomp filter for the architecture {}; x86_64 and aarch64 have one", std::env::consts::ARCH)]
    Architecture,
    /// The table does not compile.
    #[error("the seccomp filter has a refusal with more conditions than a jump reaches over")]
    Long,
    /// The kernel refuses it.
    #[error("cannot install the seccomp filter: {0}; the kernel needs CONFIG_SECCOMP_FILTER")]
    Install(seccompiler::Error),
}

/// A compiled filter.
#[derive(Debug)]
pub struct Filter {
    program: BpfProgram,
}

impl Filter {
    /// Compiles the table for `profile` and `sockets`.
    ///
    /// # Errors
    /// [`SeccompError::Architecture`], [`SeccompError::Long`].
    pub fn compile(profile: Profile, sockets: Sockets) -> Result<Self, SeccompError> {
        Ok(Self { program: program::compile(&refusals_of(profile, sockets))? })
    }

    /// Installs the filter on the calling thread and all its children to be. Sets `no_new_privs`, without which an
    /// unprivileged process may not.
    ///
    /// # Errors
    /// [`SeccompError::Install`].
    pub fn install(&self) -> Result<(), SeccompError> {
        seccompiler::apply_filter(&self.program).map_err(SeccompError::Install)
    }
}

/// Reasons and numbers of what `profile` refuses, for people.
pub fn refusals(profile: Profile) -> impl Iterator<Item = (&'static str, &'static [libc::c_long])> {
    GROUPS.iter().filter(move |group| group.profiles.contains(&profile)).map(|group| (group.reason, group.calls))
}

/// The table of `profile` and `sockets`, by call.
fn refusals_of(profile: Profile, sockets: Sockets) -> BTreeMap<u32, Vec<Refusal>> {
    let more = if sockets == Sockets::Streams { STREAMS_ALONE } else { &[] };
    let mut refusals: BTreeMap<u32, Vec<Refusal>> = BTreeMap::new();
    for group in GROUPS.iter().chain(more).filter(|group| group.profiles.contains(&profile)) {
        let errno = match group.answer {
            Answer::NotPermitted => libc::EPERM,
            Answer::NotImplemented => libc::ENOSYS,
        };
        for &call in group.calls {
            refusals.entry(call as u32).or_default().extend(group.when.iter().map(|&when| Refusal { errno, when }));
        }
    }
    refusals
}

#[cfg(test)]
mod tests;
