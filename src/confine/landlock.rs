//! Landlock: the workload sees the paths that its policy grants and no others
//! (<https://docs.kernel.org/userspace-api/landlock.html>).
//!
//! [`prepare`] opens every granted path and builds the ruleset; it runs in the child *before* the identity drop, so
//! that a grant below a directory which only root can search still works, as the driver's volumes need. What is
//! opened are `O_PATH` descriptors: they name a place and give no access. [`Ruleset::restrict`] runs after the drop.

mod place;

use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, NetPort, PathBeneath, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetStatus, Scope,
};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::policy::{Compatibility, Filesystem};
use crate::sys::process::landlock_abi;
use crate::sys::tty;

/// From this ABI on everything that the policy says can be enforced: truncation (3), device ioctls (5), abstract
/// sockets and signals (6). Later ones add rights that are used where they exist.
const COMPLETE_ABI: u32 = 6;

/// From this ABI on TCP ports can be restricted.
const NETWORK_ABI: u32 = 4;

/// Paths granted to the workload.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grants {
    /// To read and execute.
    pub read_only: Vec<PathBuf>,
    /// To write as well, device ioctls included.
    pub read_write: Vec<PathBuf>,
    /// Refuse to start where not everything can be enforced.
    pub hard: bool,
    /// Refuse to start where nothing can be: the supervisor keeps a secret from its own user.
    pub needed: bool,
    /// The one port that TCP may connect to; any where it is `None`.
    pub connect: Option<u16>,
    /// Whether signals may go as far as a domain around this one lets them ([`enclose_signals`]), rather than nowhere.
    #[serde(default)]
    pub signals_enclosed: bool,
}

impl Grants {
    /// The grants of a policy that has its baseline and its working directory already.
    #[must_use]
    pub fn of(filesystem: &Filesystem, compatibility: Compatibility) -> Self {
        Self {
            read_only: filesystem.read_only.clone(),
            read_write: filesystem.read_write.clone(),
            hard: compatibility == Compatibility::HardRequirement,
            needed: false,
            connect: None,
            signals_enclosed: false,
        }
    }
}

/// How much of the grants the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// All of it.
    Fully,
    /// Not what came with later ABIs.
    Partially,
    /// Nothing.
    Not,
}

/// What is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// ABI of the kernel; 0 without Landlock.
    pub abi: u32,
    /// How much.
    pub status: Status,
    /// Why not all, with the remedy.
    pub reason: Option<String>,
    /// Granted paths that were left out, each with the reason: less is allowed than the policy says.
    pub skipped: Vec<String>,
}

/// What this kernel offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// ABI; 0 without Landlock.
    pub abi: u32,
    /// How much of a policy could be enforced.
    pub status: Status,
    /// Cause and remedy where that is not all.
    pub reason: Option<String>,
}

/// Why the workload must not start.
#[derive(Debug, thiserror::Error)]
pub enum LandlockError {
    /// `hard_requirement` cannot be met.
    #[error(
        "the policy says `landlock: hard_requirement` and {reason}; or set `best_effort` to run with less protection"
    )]
    Required {
        /// Cause and remedy.
        reason: String,
    },
    /// A secret depends on it.
    #[error(
        "the workload has the supervisor's own user, and Landlock alone keeps it from the supervisor's secrets: {reason}; \
         start it where Landlock is enabled, or in a topology with a proxy of another user"
    )]
    Needed {
        /// Cause and remedy.
        reason: String,
    },
    /// TCP is to be restricted and cannot be.
    #[error(
        "--landlock-net strict needs Landlock of ABI {NETWORK_ABI}, and this kernel has {abi}: Linux 6.7 has it; or leave the \
         flag out"
    )]
    NoNetwork {
        /// ABI of the kernel; 0 without Landlock.
        abi: u32,
    },
    /// A granted path cannot be opened, under `hard_requirement`.
    #[error("filesystem_policy grants {path} and it cannot be opened: {source}")]
    Path {
        /// The path.
        path: PathBuf,
        /// What open(2) answered.
        source: std::io::Error,
    },
    /// The kernel has Landlock and a call failed nevertheless.
    #[error("Landlock: {0}; the workload was not started")]
    Ruleset(#[from] landlock::RulesetError),
    /// The kernel says that it did not do what was asked.
    #[error("Landlock did not take effect although the kernel offers ABI {abi}; the workload was not started")]
    NoEffect {
        /// ABI offered.
        abi: u32,
    },
}

/// Asks the kernel, and explains the answer.
#[must_use]
pub fn probe() -> Probe {
    explain(landlock_abi())
}

fn explain(answer: Result<u32, Errno>) -> Probe {
    let not = |reason: &str| Probe { abi: 0, status: Status::Not, reason: Some(reason.to_owned()) };
    match answer {
        Ok(abi) if abi >= COMPLETE_ABI => Probe { abi, status: Status::Fully, reason: None },
        Ok(abi) => {
            let lacks = match abi {
                0..=1 => "moving files between directories, truncation, device ioctls, abstract sockets and signals",
                2 => "truncation, device ioctls, abstract sockets and signals",
                3..=4 => "device ioctls, abstract sockets and signals",
                _ => "abstract sockets and signals",
            };
            Probe {
                abi,
                status: Status::Partially,
                reason: Some(format!(
                    "this kernel's Landlock is of ABI {abi} and does not confine {lacks}; Linux 6.12 does"
                )),
            }
        }
        Err(Errno::ENOSYS) => {
            not("this kernel was built without Landlock; use one of 5.13 or later with CONFIG_SECURITY_LANDLOCK=y")
        }
        Err(Errno::EOPNOTSUPP) => {
            not("Landlock is built in and not enabled; add `landlock` to the kernel parameter `lsm=`")
        }
        Err(Errno::EPERM) => {
            not("an outer seccomp filter refuses Landlock; allow landlock_create_ruleset, landlock_add_rule and \
                 landlock_restrict_self in the container runtime's profile")
        }
        Err(other) => not(&format!("landlock_create_ruleset answered {other}")),
    }
}

/// A ruleset ready to be enforced.
#[derive(Debug)]
pub struct Ruleset {
    created: Option<RulesetCreated>,
    outcome: Enforced,
}

/// Opens the granted paths and builds the ruleset. No paths at all is a ruleset that grants nothing.
///
/// # Errors
/// [`LandlockError`]; with `best_effort` only where the kernel has Landlock and misbehaves.
pub fn prepare(grants: &Grants) -> Result<Ruleset, LandlockError> {
    let probe = probe();
    if grants.connect.is_some() && probe.abi < NETWORK_ABI {
        return Err(LandlockError::NoNetwork { abi: probe.abi });
    }
    if grants.needed && probe.status == Status::Not {
        return Err(LandlockError::Needed { reason: probe.reason.unwrap_or_default() });
    }
    if grants.hard && probe.status != Status::Fully {
        return Err(LandlockError::Required { reason: probe.reason.unwrap_or_default() });
    }
    build(grants, probe)
}

fn build(grants: &Grants, probe: Probe) -> Result<Ruleset, LandlockError> {
    let mut outcome = Enforced { abi: probe.abi, status: probe.status, reason: probe.reason, skipped: Vec::new() };
    if outcome.status == Status::Not {
        return Ok(Ruleset { created: None, outcome });
    }
    let abi = ABI::from(i32::try_from(probe.abi).unwrap_or(i32::MAX));
    // Exactly what the kernel has is asked for, so nothing may be left out in silence.
    let mut ruleset = landlock::Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .handle_access(AccessFs::from_all(abi))?;
    let mut scopes = Scope::from_all(abi);
    if grants.signals_enclosed {
        scopes.remove(Scope::Signal);
    }
    if !scopes.is_empty() {
        ruleset = ruleset.scope(scopes)?;
    }
    if grants.connect.is_some() {
        ruleset = ruleset.handle_access(AccessNet::ConnectTcp)?;
    }
    let mut created = ruleset.create()?;
    if let Some(port) = grants.connect {
        created = created.add_rule(NetPort::new(port, AccessNet::ConnectTcp))?;
    }
    // As written and as they are: a link on the way to one must not hide that something lies below it.
    let real = grants.read_write.iter().filter_map(|path| path.canonicalize().ok());
    let writable: Vec<PathBuf> = grants.read_write.iter().cloned().chain(real).collect();
    let sets = [(&grants.read_only, AccessFs::from_read(abi)), (&grants.read_write, AccessFs::from_all(abi))];
    for (paths, rights) in sets {
        for path in paths {
            let (place, directory) = match open(path, &writable) {
                Ok(opened) => opened,
                Err(source) if grants.hard && source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(LandlockError::Path { path: path.clone(), source });
                }
                Err(source) => {
                    outcome.skipped.push(format!("{}: {source}", path.display()));
                    continue;
                }
            };
            created = created.add_rule(PathBeneath::new(place, rights_for(rights, directory, abi)))?;
        }
    }
    // A terminal that is handed over lies on the machine's devpts, which the workload does not see. Programs open it
    // again all the same, as /dev/stdout or /proc/self/fd/1, and the descriptor itself is what can be granted.
    for terminal in terminals() {
        created = created.add_rule(PathBeneath::new(terminal, rights_for(AccessFs::from_all(abi), false, abi)))?;
    }
    Ok(Ruleset { created: Some(created), outcome })
}

/// Puts the calling process, and all its children to be, into a domain that no signal of theirs leaves, and that restricts
/// nothing else; whether this kernel can. Within it a child that makes a domain of its own with the signal scope is on its own
/// as before, and one that makes it without may signal everybody within this one (landlock(7), "Scope").
///
/// # Errors
/// [`LandlockError`] where the kernel has Landlock and misbehaves.
pub fn enclose_signals() -> Result<bool, LandlockError> {
    let probe = probe();
    if probe.abi < COMPLETE_ABI {
        return Ok(false);
    }
    let ruleset = landlock::Ruleset::default().set_compatibility(CompatLevel::HardRequirement).scope(Scope::Signal)?;
    let created = ruleset.handle_access(AccessFs::Refer)?.create()?;
    // Renames from one directory to another are denied by every domain that does not grant them (landlock(7),
    // LANDLOCK_ACCESS_FS_REFER), and this one is to be about signals alone. Where the root cannot be opened they stay so.
    let created = match File::open("/") {
        Ok(root) => created.add_rule(PathBeneath::new(root, AccessFs::Refer))?,
        Err(_) => created,
    };
    let status = created.restrict_self()?;
    match status.ruleset {
        RulesetStatus::FullyEnforced => Ok(true),
        _ => Err(LandlockError::NoEffect { abi: probe.abi }),
    }
}

/// Descriptors of the standard streams that are terminals.
fn terminals() -> impl Iterator<Item = OwnedFd> {
    tty::standard_streams().into_iter().filter(IsTerminal::is_terminal).filter_map(|fd| fd.try_clone_to_owned().ok())
}

/// The kernel refuses rights that only make sense for directories on anything else.
fn rights_for(rights: BitFlags<AccessFs>, directory: bool, abi: ABI) -> BitFlags<AccessFs> {
    if directory { rights } else { rights & AccessFs::from_file(abi) }
}

fn open(path: &Path, writable: &[PathBuf]) -> std::io::Result<(OwnedFd, bool)> {
    let place = File::from(place::open(path, writable)?);
    // Asked of the descriptor, not of the path: they could differ.
    let directory = place.metadata()?.is_dir();
    Ok((place.into(), directory))
}

impl Ruleset {
    /// Enforces the ruleset on the calling thread and all its children to be, for good.
    ///
    /// # Errors
    /// [`LandlockError::Ruleset`], [`LandlockError::NoEffect`].
    pub fn restrict(self) -> Result<Enforced, LandlockError> {
        if let Some(created) = self.created {
            let status = created.restrict_self()?;
            if status.ruleset != RulesetStatus::FullyEnforced {
                return Err(LandlockError::NoEffect { abi: self.outcome.abi });
            }
        }
        Ok(self.outcome)
    }
}

#[cfg(test)]
mod tests;
