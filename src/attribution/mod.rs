//! Which program owns a connection (design §5): peer tuple → socket inode → owners among the sandbox's processes →
//! executable, its digest and its ancestors. Command lines never count.

use std::sync::Arc;

/// An executable as identity sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Executable {
    /// Path in the workload's view of the file system.
    pub path: Arc<str>,
    /// SHA-256 of its bytes.
    pub sha256: [u8; 32],
}

/// The identity of a connection's owner; two that are equal are the same to policy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Program {
    /// What the process runs.
    pub executable: Executable,
    /// What its parents run, nearest first, up to the sandbox's first process.
    pub ancestors: Arc<[Executable]>,
}
