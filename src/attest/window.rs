//! Each counter once. Connections overtake each other, so the highest alone does not tell; a bitmap of those below it does
//! (as RFC 4303 §3.4.3 has it for packets). One that is too far behind could be one that came already, and is refused.

/// Counters remembered: as many as there can be connections on their way at once.
const WIDTH: u64 = 4096;

/// Bits of a word.
const WORD: u64 = u64::BITS as u64;

/// What has come.
#[derive(Debug)]
pub(super) struct Window {
    highest: u64,
    seen: [u64; (WIDTH / WORD) as usize],
}

impl Window {
    pub(super) fn new() -> Self {
        Self { highest: 0, seen: [0; (WIDTH / WORD) as usize] }
    }

    /// Takes a counter, and says whether it came for the first time. 0 is none.
    pub(super) fn take(&mut self, counter: u64) -> bool {
        if counter == 0 || self.highest.saturating_sub(counter) >= WIDTH {
            return false;
        }
        if counter > self.highest {
            // What the counters in between share with older ones is theirs now.
            let from = self.highest.max(counter.saturating_sub(WIDTH));
            (from + 1..=counter).for_each(|skipped| self.word(skipped, |word, bit| *word &= !bit));
            self.highest = counter;
        }
        let mut first = false;
        self.word(counter, |word, bit| {
            first = *word & bit == 0;
            *word |= bit;
        });
        first
    }

    fn word(&mut self, counter: u64, act: impl FnOnce(&mut u64, u64)) {
        let at = counter % WIDTH;
        if let Some(word) = usize::try_from(at / WORD).ok().and_then(|at| self.seen.get_mut(at)) {
            act(word, 1 << (at % WORD));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_counter_is_taken_once_in_whatever_order() {
        let mut window = Window::new();
        assert!(!window.take(0));
        for counter in [1, 3, 2, 10, 4, 9] {
            assert!(window.take(counter) && !window.take(counter), "{counter}");
        }
        assert!(window.take(10 + WIDTH));
        // Too far behind to be told from one that came.
        assert!(!window.take(10) && !window.take(5));
        assert!(window.take(11) && window.take(9 + WIDTH));
        assert!(window.take(u64::MAX) && !window.take(u64::MAX));
        assert!(window.take(u64::MAX - WIDTH + 1) && !window.take(u64::MAX - WIDTH));
    }

    proptest! {
        #[test]
        fn nothing_is_ever_taken_twice(counters in proptest::collection::vec(0_u64..20_000, 0..2000)) {
            let mut window = Window::new();
            let mut taken = std::collections::HashSet::new();
            let mut highest = 0;
            for counter in counters {
                highest = highest.max(counter);
                let expected = counter != 0 && highest - counter < WIDTH && taken.insert(counter);
                prop_assert_eq!(window.take(counter), expected, "{}", counter);
            }
        }
    }
}
