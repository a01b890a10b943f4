//! How much may be done before a caller has its answer: the thread that carries everybody's data must not wait for what
//! a workload can make arbitrarily long, such as a process with all its descriptors in use.

/// Looks allowed on a thread that must not block. A look is a system call on procfs that takes about a microsecond.
const INLINE: u32 = 200;

/// Looks allowed to name the sender of something that was refused already: a few milliseconds.
const NAMING: u32 = 2000;

/// What is left to spend.
#[derive(Debug)]
pub(super) struct Effort {
    /// Whether executables that were never seen may be hashed, which takes milliseconds a megabyte.
    pub hashes: bool,
    /// Looks left; `None` for as many as it takes.
    looks: Option<u32>,
    exhausted: bool,
}

impl Effort {
    /// As much as it takes.
    pub(super) fn full() -> Self {
        Self { hashes: true, looks: None, exhausted: false }
    }

    /// As much as it takes without hashing anything: what was never seen is not what is looked for.
    pub(super) fn full_without_hashing() -> Self {
        Self { hashes: false, looks: None, exhausted: false }
    }

    /// A fraction of a millisecond.
    pub(super) fn inline() -> Self {
        Self { hashes: false, looks: Some(INLINE), exhausted: false }
    }

    /// Enough for most sandboxes, where nothing depends on the answer.
    pub(super) fn naming() -> Self {
        Self { hashes: false, looks: Some(NAMING), exhausted: false }
    }

    /// Whether there is any bound.
    pub(super) fn is_limited(&self) -> bool {
        self.looks.is_some()
    }

    /// Whether something was left undone.
    pub(super) fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Takes `looks` and says whether they were there. Nothing fits any more after the first that did not.
    pub(super) fn spend(&mut self, looks: u32) -> bool {
        self.exhausted |= !self.spend_if_left(Some(looks));
        !self.exhausted
    }

    /// As [`spend`](Self::spend), for one of several ways of which another may be cheap enough; `None` is not known to
    /// be.
    pub(super) fn spend_if_left(&mut self, looks: Option<u32>) -> bool {
        let Some(left) = &mut self.looks else { return true };
        match looks.and_then(|looks| left.checked_sub(looks)) {
            Some(rest) => *left = rest,
            None => return false,
        }
        true
    }
}
