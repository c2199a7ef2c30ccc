//! Places that are given out so that nobody gets all of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts what each has; none may have more than `most`. `K` names who.
#[derive(Debug)]
pub struct Shares<K: Ord> {
    most: usize,
    taken: Mutex<BTreeMap<K, usize>>,
}

/// One that was taken; given back when dropped.
#[derive(Debug)]
pub struct Share<K: Ord + Clone> {
    of: Arc<Shares<K>>,
    who: K,
}

impl<K: Ord + Clone> Shares<K> {
    /// Shares of which each may have `most`, at least one.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            taken: Mutex::default(),
        })
    }

    /// Takes one more for `who`; `None` when it has as many as it may.
    pub fn take(self: &Arc<Self>, who: K) -> Option<Share<K>> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let count = taken.entry(who.clone()).or_default();
        if *count >= self.most {
            return None;
        }
        *count += 1;
        Some(Share {
            of: Arc::clone(self),
            who,
        })
    }

    /// How many each may have.
    pub fn most(&self) -> usize {
        self.most
    }
}

impl<K: Ord + Clone> Drop for Share<K> {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = taken.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_gets_more_than_a_share_and_nothing_is_remembered() {
        let shares = Shares::new(2);
        let first = shares.take("ada");
        let second = shares.take("ada");
        assert!(first.is_some() && second.is_some());
        assert!(shares.take("ada").is_none());
        assert!(shares.take("bob").is_some());
        drop(first);
        let third = shares.take("ada");
        assert!(third.is_some());
        drop((second, third));
        assert!(shares.taken.lock().unwrap().is_empty());
    }

    #[test]
    fn everybody_gets_one() {
        assert!(Shares::new(0).take(1).is_some());
    }
}
