//! Limits how many lines of the log each peer may cause, so that no peer fills the disk with them or
//! hides what others did.

use std::collections::BTreeMap;

use super::Millis;

/// Most lines that a peer may cause at once.
const LINES_AT_ONCE: u64 = 50;

/// A peer may cause one more line after each period of this length, milliseconds.
const LINE_MS: u64 = 2_000;

/// Most peers that are remembered. When there are more, the one with the smallest key is forgotten.
const PEERS_MAX: usize = 4096;

/// The lines that each peer caused recently. `K` names a peer.
#[derive(Debug)]
pub struct Quiet<K: Ord>(BTreeMap<K, Bucket>);

#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: u64,
    filled: Millis,
    held_back: u64,
}

impl<K: Ord> Default for Quiet<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Quiet<K> {
    /// Whether `who` may cause a line now. If so, the number of lines that were held back since its last
    /// one.
    pub fn line(&mut self, now: Millis, who: K) -> Option<u64> {
        if !self.0.contains_key(&who) && self.0.len() >= PEERS_MAX {
            self.0.pop_first();
        }
        let bucket = self.0.entry(who).or_insert(Bucket {
            left: LINES_AT_ONCE,
            filled: now,
            held_back: 0,
        });
        let more = now.0.saturating_sub(bucket.filled.0) / LINE_MS;
        if more > 0 {
            bucket.left = bucket.left.saturating_add(more).min(LINES_AT_ONCE);
            bucket.filled = Millis(bucket.filled.0.saturating_add(more * LINE_MS));
        }
        if bucket.left == 0 {
            bucket.held_back = bucket.held_back.saturating_add(1);
            return None;
        }
        bucket.left -= 1;
        Some(std::mem::take(&mut bucket.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flooding_member_is_held_back_and_others_are_not() {
        let mut quiet = Quiet::default();
        let lines = (0..1000).filter(|_| quiet.line(Millis(0), "ann").is_some());
        assert_eq!(lines.count() as u64, LINES_AT_ONCE);
        assert_eq!(quiet.line(Millis(0), "bob"), Some(0));
        assert_eq!(quiet.line(Millis(LINE_MS - 1), "ann"), None);
        assert_eq!(
            quiet.line(Millis(LINE_MS), "ann"),
            Some(1000 - LINES_AT_ONCE + 1)
        );
        assert_eq!(quiet.line(Millis(LINE_MS), "ann"), None);
    }

    #[test]
    fn not_more_are_remembered_than_fit() {
        let mut quiet = Quiet::default();
        for who in 0..2 * PEERS_MAX {
            assert_eq!(quiet.line(Millis(0), who), Some(0));
        }
        assert_eq!(quiet.0.len(), PEERS_MAX);
    }
}
