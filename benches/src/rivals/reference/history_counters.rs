//! History-k of Mickens and Noble: a counter for each pattern of the latest k observations.

use placement::probability::Probability;

/// Longest pattern; 2^16 counters.
const PATTERN_BITS_MAX: u32 = 16;

/// For each pattern of the latest `k` availability bits, how often the host survived a window that began
/// after this pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryCounters {
    /// Bits of a pattern, `k`.
    length: u32,
    /// The latest bits; the newest is the lowest.
    pattern: usize,
    /// (survived, seen) by pattern.
    counts: Vec<(u32, u32)>,
}

/// The pattern before a window; the caller keeps it and passes it to [`HistoryCounters::learn`] with the
/// outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern(usize);

impl HistoryCounters {
    /// Counters for patterns of `length` bits (at most 16).
    #[must_use]
    pub fn new(length: u32) -> Self {
        let length = length.min(PATTERN_BITS_MAX);
        Self {
            length,
            pattern: 0,
            counts: vec![(0, 0); 1 << length],
        }
    }

    /// Shifts in whether the host was usable in the latest period.
    pub fn observe(&mut self, usable: bool) {
        let mask = (1 << self.length) - 1;
        self.pattern = (self.pattern << 1 | usize::from(usable)) & mask;
    }

    /// The pattern now.
    #[must_use]
    pub const fn pattern(&self) -> Pattern {
        Pattern(self.pattern)
    }

    /// Counts a window that began after `pattern`, once its outcome is known.
    pub fn learn(&mut self, pattern: Pattern, survived: bool) {
        if let Some((survivals, seen)) = self.counts.get_mut(pattern.0) {
            *survivals += u32::from(survived);
            *seen += 1;
        }
    }

    /// Probability of surviving a window that begins now, with Jeffreys prior.
    #[must_use]
    pub fn predict(&self) -> Probability {
        let (survived, seen) = self.counts.get(self.pattern).copied().unwrap_or_default();
        Probability::jeffreys(u64::from(survived), u64::from(seen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pattern_has_its_own_counter() {
        let mut counters = HistoryCounters::new(2);
        assert_eq!(counters.predict(), Probability::jeffreys(0, 0));
        counters.observe(true);
        let after_one = counters.pattern();
        counters.observe(true);
        counters.learn(counters.pattern(), true);
        counters.learn(after_one, false);
        assert_eq!(counters.predict(), Probability::jeffreys(1, 1));
        counters.observe(false);
        counters.observe(true);
        assert_eq!(counters.pattern(), after_one);
        assert_eq!(counters.predict(), Probability::jeffreys(0, 1));
    }
}
