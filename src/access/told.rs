//! What is told again and again is counted instead: whoever can make the supervisor say something must not fill its log.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// So often a kind is told by itself, and then once in this time, with how often it came.
const EVERY: Duration = Duration::from_secs(10);

/// What has been told of late, by kind.
#[derive(Debug)]
pub(super) struct Told {
    /// How often in [`EVERY`] a kind is told by itself.
    singly: u32,
    kinds: HashMap<&'static str, Kind>,
}

#[derive(Debug)]
struct Kind {
    /// When the present span began, and how often it was told in it.
    since: Instant,
    told: u32,
    untold: u64,
}

impl Told {
    pub(super) fn singly(times: u32) -> Self {
        Self { singly: times, kinds: HashMap::new() }
    }

    /// Something of that kind has happened: for how many it is to be told now, or `None` where it waits for a later one.
    pub(super) fn count(&mut self, kind: &'static str) -> Option<u64> {
        self.count_at(kind, Instant::now())
    }

    fn count_at(&mut self, kind: &'static str, now: Instant) -> Option<u64> {
        let kind = self.kinds.entry(kind).or_insert(Kind { since: now, told: 0, untold: 0 });
        if now.duration_since(kind.since) >= EVERY {
            (kind.since, kind.told) = (now, 0);
        }
        kind.untold += 1;
        if kind.told >= self.singly {
            return None;
        }
        kind.told += 1;
        Some(std::mem::take(&mut kind.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_a_rate_each_kind_is_counted_and_told_later_with_how_often_it_came() {
        let mut told = Told::singly(3);
        let begun = Instant::now();
        for _ in 0..3 {
            assert_eq!(told.count_at("one", begun), Some(1));
        }
        for _ in 0..100 {
            assert_eq!(told.count_at("one", begun + EVERY / 2), None);
        }
        assert_eq!(told.count_at("other", begun + EVERY / 2), Some(1), "by kind");
        assert_eq!(told.count_at("one", begun + EVERY), Some(101));
        assert_eq!(told.count_at("one", begun + EVERY), Some(1));
    }
}
