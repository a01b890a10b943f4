//! The system-call filter (seccomp(2)): [`rules`] compiled to two programs, one per answer, and installed for good.
//!
//! Compiled in the child at every start rather than kept: it costs a fraction of a millisecond, and the table stays
//! the only description. Another architecture's calls (`int 0x80`) kill the process; numbers of the x32 ABI, which
//! the architecture check cannot tell apart, do not exist.

mod rules;

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    sock_filter,
};
use serde::{Deserialize, Serialize};

use rules::{GROUPS, STREAMS_ALONE, Test};

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
    #[error("cannot compile the seccomp filter: {0}")]
    Compile(#[from] seccompiler::BackendError),
    /// The kernel refuses it.
    #[error("cannot install the seccomp filter: {0}; the kernel needs CONFIG_SECCOMP_FILTER")]
    Install(seccompiler::Error),
}

/// A compiled filter.
#[derive(Debug)]
pub struct Filter {
    programs: [BpfProgram; 2],
}

impl Filter {
    /// Compiles the table for `profile` and `sockets`.
    ///
    /// # Errors
    /// [`SeccompError::Architecture`], [`SeccompError::Compile`].
    pub fn compile(profile: Profile, sockets: Sockets) -> Result<Self, SeccompError> {
        let compile = |answer| compile(profile, sockets, answer);
        let mut programs = [compile(Answer::NotImplemented)?, compile(Answer::NotPermitted)?];
        prepend_x32_refusal(&mut programs[0]);
        Ok(Self { programs })
    }

    /// Installs the filter on the calling thread and all its children to be. Sets `no_new_privs`, without which an
    /// unprivileged process may not.
    ///
    /// # Errors
    /// [`SeccompError::Install`].
    pub fn install(&self) -> Result<(), SeccompError> {
        self.programs.iter().try_for_each(|program| seccompiler::apply_filter(program).map_err(SeccompError::Install))
    }
}

/// Reasons and numbers of what `profile` refuses, for people.
pub fn refusals(profile: Profile) -> impl Iterator<Item = (&'static str, &'static [libc::c_long])> {
    GROUPS.iter().filter(move |group| group.profiles.contains(&profile)).map(|group| (group.reason, group.calls))
}

fn compile(profile: Profile, sockets: Sockets, answer: Answer) -> Result<BpfProgram, SeccompError> {
    let architecture = std::env::consts::ARCH.try_into().map_err(|_| SeccompError::Architecture)?;
    let errno = match answer {
        Answer::NotPermitted => libc::EPERM,
        Answer::NotImplemented => libc::ENOSYS,
    };
    let mut table: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let more = if sockets == Sockets::Streams { STREAMS_ALONE } else { &[] };
    let groups = GROUPS.iter().chain(more);
    for group in groups.filter(|group| group.answer == answer && group.profiles.contains(&profile)) {
        for &call in group.calls {
            let alternatives = table.entry(call).or_default();
            for conjunction in group.when {
                let conditions = conjunction.iter().map(condition).collect::<Result<_, _>>()?;
                alternatives.push(SeccompRule::new(conditions)?);
            }
        }
    }
    let action = SeccompAction::Errno(errno as u32);
    Ok(SeccompFilter::new(table, SeccompAction::Allow, action, architecture)?.try_into()?)
}

fn condition(test: &Test) -> Result<SeccompCondition, seccompiler::BackendError> {
    use SeccompCmpArgLen::{Dword, Qword};
    use SeccompCmpOp::{Eq, Gt, Lt, MaskedEq, Ne};
    match *test {
        Test::Is(argument, value) => SeccompCondition::new(argument, Dword, Eq, value.into()),
        Test::Not(argument, value) => SeccompCondition::new(argument, Dword, Ne, value.into()),
        Test::Above(argument, value) => SeccompCondition::new(argument, Dword, Gt, value.into()),
        Test::Below(argument, value) => SeccompCondition::new(argument, Dword, Lt, value.into()),
        Test::Has(argument, mask) => SeccompCondition::new(argument, Qword, MaskedEq(mask), mask),
        Test::Under(argument, mask, value) => SeccompCondition::new(argument, Dword, MaskedEq(mask), value),
    }
}

/// x32 calls carry `AUDIT_ARCH_X86_64` and bit 30 (`__X32_SYSCALL_BIT`), so a comparison with 64-bit numbers misses
/// them, and a kernel built with CONFIG_X86_X32_ABI would run them. On other architectures no number is that large.
fn prepend_x32_refusal(program: &mut BpfProgram) {
    const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const NUMBER_OFFSET: u32 = std::mem::offset_of!(libc::seccomp_data, nr) as u32;
    const X32_BIT: u32 = 1 << 30;
    let refusal = [
        sock_filter { code: LOAD_WORD, jt: 0, jf: 0, k: NUMBER_OFFSET },
        sock_filter { code: JUMP_IF_AT_LEAST, jt: 0, jf: 1, k: X32_BIT },
        sock_filter { code: RETURN, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32 },
    ];
    program.splice(0..0, refusal);
}

#[cfg(test)]
mod tests;
