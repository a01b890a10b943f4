//! Capability sets and securebits (capabilities(7)) of the calling thread.

use std::io;

use nix::libc;

/// `_LINUX_CAPABILITY_VERSION_3`: 64-bit sets.
const VERSION_3: u32 = 0x2008_0522;

/// `CAP_DAC_OVERRIDE`: open what belongs to others.
pub const CAP_DAC_OVERRIDE: u8 = 1;
/// `CAP_DAC_READ_SEARCH`: look into directories of others.
pub const CAP_DAC_READ_SEARCH: u8 = 2;
/// `CAP_KILL`: signal processes of other users.
pub const CAP_KILL: u8 = 5;
/// `CAP_SETGID`: become any group.
pub const CAP_SETGID: u8 = 6;
/// `CAP_SETUID`: become any user.
pub const CAP_SETUID: u8 = 7;
/// `CAP_SETPCAP`: shrink the bounding set, change securebits.
pub const CAP_SETPCAP: u8 = 8;
/// `CAP_SYS_RESOURCE`: raise limits beyond the hard ones.
pub const CAP_SYS_RESOURCE: u8 = 24;

/// `CAP_SYS_ADMIN`: namespaces without a user namespace, mounts.
const CAP_SYS_ADMIN: u8 = 21;

/// `SECBIT_NOROOT` and its lock: uid 0 means nothing at execve.
pub const SECBIT_NOROOT: u64 = 0b11;
/// `SECBIT_KEEP_CAPS_LOCKED`: nobody keeps capabilities over a change of uid.
pub const SECBIT_KEEP_CAPS_LOCKED: u64 = 1 << 5;
/// `SECBIT_NO_CAP_AMBIENT_RAISE` and its lock.
pub const SECBIT_NO_AMBIENT: u64 = 0b11 << 6;

/// Capability sets of a thread, one bit per capability.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sets {
    /// What it may use now.
    pub effective: u64,
    /// What it may make effective.
    pub permitted: u64,
    /// What passes an execve to files that inherit it.
    pub inheritable: u64,
}

#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Half {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// capget(2) of the calling thread.
///
/// # Errors
/// What the call answered.
pub fn get() -> io::Result<Sets> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let mut halves = [Half::default(); 2];
    // SAFETY: header and data have the layout of version 3, two halves, and outlive the call.
    if unsafe { libc::syscall(libc::SYS_capget, &raw mut header, halves.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let whole = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    Ok(Sets {
        effective: whole(halves[0].effective, halves[1].effective),
        permitted: whole(halves[0].permitted, halves[1].permitted),
        inheritable: whole(halves[0].inheritable, halves[1].inheritable),
    })
}

/// capset(2) of the calling thread.
///
/// # Errors
/// `EPERM` when a set would grow beyond what is permitted.
pub fn set(sets: Sets) -> io::Result<()> {
    let mut header = Header { version: VERSION_3, pid: 0 };
    let half = |shift: u32| Half {
        effective: (sets.effective >> shift) as u32,
        permitted: (sets.permitted >> shift) as u32,
        inheritable: (sets.inheritable >> shift) as u32,
    };
    let halves = [half(0), half(32)];
    // SAFETY: as in `get`; the kernel only reads.
    if unsafe { libc::syscall(libc::SYS_capset, &raw mut header, halves.as_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn prctl(option: libc::c_int, argument: libc::c_ulong, second: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: the options passed by this file take numbers, never pointers; unused arguments are zero.
    let answer = unsafe { libc::prctl(option, argument, second, 0 as libc::c_ulong, 0 as libc::c_ulong) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(answer) }
}

/// Whether the bounding set holds `capability`.
///
/// # Errors
/// `EINVAL` when the kernel knows no such capability, which is how callers find the last one.
pub fn bounded(capability: u8) -> io::Result<bool> {
    Ok(prctl(libc::PR_CAPBSET_READ, capability.into(), 0)? == 1)
}

/// Removes `capability` from the bounding set.
///
/// # Errors
/// `EPERM` without `CAP_SETPCAP`.
pub fn unbound(capability: u8) -> io::Result<()> {
    prctl(libc::PR_CAPBSET_DROP, capability.into(), 0).map(drop)
}

/// Whether the ambient set holds `capability`.
///
/// # Errors
/// `EINVAL` when the kernel knows no such capability.
pub fn is_ambient(capability: u8) -> io::Result<bool> {
    Ok(prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET as libc::c_ulong, capability.into())? == 1)
}

/// Empties the ambient set.
///
/// # Errors
/// What prctl(2) answered.
pub fn clear_ambient() -> io::Result<()> {
    prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0).map(drop)
}

/// Sets securebits.
///
/// # Errors
/// `EPERM` without `CAP_SETPCAP`, or when a lock forbids the change.
pub fn set_securebits(bits: u64) -> io::Result<()> {
    prctl(libc::PR_SET_SECUREBITS, bits as libc::c_ulong, 0).map(drop)
}

/// What the supervisor of a combined sandbox uses as root (design §1), each with its number (capabilities(7)).
const AS_ROOT: [(u8, &str); 8] = [
    (CAP_SYS_ADMIN, "SYS_ADMIN"),
    (12, "NET_ADMIN"),
    (19, "SYS_PTRACE"),
    (2, "DAC_READ_SEARCH"),
    (CAP_KILL, "KILL"),
    (7, "SETUID"),
    (6, "SETGID"),
    (CAP_SETPCAP, "SETPCAP"),
];

/// What it takes to look at the processes of other users (ptrace(2), "Ptrace access mode checking").
const FOR_IDENTITY: &[(u8, &str)] = &[(19, "SYS_PTRACE"), (2, "DAC_READ_SEARCH")];

/// Names of those that a combined supervisor needs as root and the caller lacks.
///
/// # Errors
/// What capget(2) answered.
pub fn missing_as_root() -> io::Result<Vec<&'static str>> {
    missing(&AS_ROOT)
}

/// Names of those that telling which program asks takes, and the caller lacks.
///
/// # Errors
/// What capget(2) answered.
pub fn missing_for_identity() -> io::Result<Vec<&'static str>> {
    missing(FOR_IDENTITY)
}

fn missing(needed: &[(u8, &'static str)]) -> io::Result<Vec<&'static str>> {
    let effective = get()?.effective;
    Ok(needed.iter().filter(|(number, _)| effective & (1 << number) == 0).map(|(_, name)| *name).collect())
}

/// Whether the caller may make namespaces without a user namespace first.
#[must_use]
pub fn has_sys_admin() -> bool {
    get().is_ok_and(|sets| sets.effective & (1 << CAP_SYS_ADMIN) != 0)
}
