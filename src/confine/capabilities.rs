//! Giving capabilities up (capabilities(7)), and reading back that they are gone.

use std::io;

use crate::sys::capability::{
    CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_KILL, CAP_SETGID, CAP_SETPCAP, CAP_SETUID, CAP_SYS_RESOURCE,
    SECBIT_KEEP_CAPS_LOCKED, SECBIT_NO_AMBIENT, SECBIT_NOROOT, Sets, bounded, clear_ambient, get, is_ambient, set,
    set_securebits, unbound,
};

/// Capability sets are 64 bits wide; the kernel answers EINVAL for numbers that it does not know.
const CAPABILITIES: u8 = 64;

/// A capability that could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum CapabilityError {
    /// A call failed.
    #[error("{call}: {source}")]
    Call {
        /// The call.
        call: &'static str,
        /// What it answered.
        source: io::Error,
    },
    /// The bounding set stays full.
    #[error(
        "the capability bounding set cannot be emptied without CAP_SETPCAP; add SETPCAP to the supervisor's \
         capabilities"
    )]
    Bounding,
    /// A set is not empty after all.
    #[error("after dropping all capabilities the {set} set still holds {bits:#x}; the workload was not started")]
    Left {
        /// The set.
        set: &'static str,
        /// What it holds.
        bits: u64,
    },
}

/// What was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// Whether the bounding set is empty. `false` only for a supervisor that started without privilege: its workload
    /// has none either, and `no_new_privs` keeps execve from granting what the set would allow.
    pub bounding: bool,
    /// Whether securebits are locked.
    pub securebits: bool,
}

/// What needs `CAP_SETPCAP`, and so comes before the change of uid that takes it: bounding set and securebits.
///
/// # Errors
/// [`CapabilityError::Bounding`] for a privileged process that lacks `CAP_SETPCAP`.
pub(super) fn prepare_drop() -> Result<Dropped, CapabilityError> {
    let call = |call| move |source| CapabilityError::Call { call, source };
    let held = get().map_err(call("capget"))?;
    clear_ambient().or_else(unsupported).map_err(call("prctl(PR_CAP_AMBIENT_CLEAR_ALL)"))?;
    let can = held.effective & (1 << CAP_SETPCAP) != 0;
    if can {
        for capability in 0..CAPABILITIES {
            match unbound(capability) {
                // The first number that the kernel does not know.
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => break,
                dropped => dropped.map_err(call("prctl(PR_CAPBSET_DROP)"))?,
            }
        }
        // Not NO_SETUID_FIXUP: the change of uid that follows is to clear the sets.
        set_securebits(SECBIT_NOROOT | SECBIT_KEEP_CAPS_LOCKED | SECBIT_NO_AMBIENT)
            .map_err(call("prctl(PR_SET_SECUREBITS)"))?;
    }
    let bounding = bounding_set() == 0;
    if !bounding && held.permitted != 0 {
        return Err(CapabilityError::Bounding);
    }
    Ok(Dropped { bounding, securebits: can })
}

/// Empties effective, permitted and inheritable, and verifies every set.
pub(super) fn finish_drop(dropped: &Dropped) -> Result<(), CapabilityError> {
    let call = |call| move |source| CapabilityError::Call { call, source };
    set(Sets::default()).map_err(call("capset"))?;
    let sets = get().map_err(call("capget"))?;
    let ambient =
        known().filter(|&capability| is_ambient(capability).unwrap_or(false)).fold(0, |bits, c| bits | 1 << c);
    let bounding = if dropped.bounding { bounding_set() } else { 0 };
    for (set, bits) in [
        ("effective", sets.effective),
        ("permitted", sets.permitted),
        ("inheritable", sets.inheritable),
        ("ambient", ambient),
        ("bounding", bounding),
    ] {
        if bits != 0 {
            return Err(CapabilityError::Left { set, bits });
        }
    }
    Ok(())
}

/// What an init's remaining duties need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duties {
    /// Signalling a workload of another uid.
    Signal,
    /// That, and confining further programs as the workload was: opening what is granted, becoming its user, emptying the
    /// bounding set, raising its limits.
    Launch,
}

/// Leaves an init with the capabilities that its remaining duties need, of those that it has.
///
/// # Errors
/// [`CapabilityError::Call`].
pub fn keep_only_for(duties: Duties) -> Result<(), CapabilityError> {
    let call = |call| move |source| CapabilityError::Call { call, source };
    let needed: &[u8] = match duties {
        Duties::Signal => &[CAP_KILL],
        Duties::Launch => {
            &[CAP_KILL, CAP_SETUID, CAP_SETGID, CAP_SETPCAP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_SYS_RESOURCE]
        }
    };
    let held = get().map_err(call("capget"))?;
    clear_ambient().or_else(unsupported).map_err(call("prctl(PR_CAP_AMBIENT_CLEAR_ALL)"))?;
    let kept = needed.iter().fold(0, |bits, capability| bits | 1 << capability) & held.permitted;
    set(Sets { effective: kept, permitted: kept, inheritable: 0 }).map_err(call("capset"))
}

fn known() -> impl Iterator<Item = u8> {
    (0..CAPABILITIES).take_while(|&capability| bounded(capability).is_ok())
}

fn bounding_set() -> u64 {
    let each = (0..CAPABILITIES).map_while(|capability| Some((capability, bounded(capability).ok()?)));
    each.fold(0, |bits, (capability, is_bounded)| bits | u64::from(is_bounded) << capability)
}

/// Kernels before 4.3 have no ambient set, so nothing in it.
fn unsupported(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::InvalidInput { Ok(()) } else { Err(error) }
}
