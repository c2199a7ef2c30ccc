//! The list of shards whose transfers broke off, and whose rows are put aside.

use std::collections::VecDeque;

use codec::OwnerId;

use super::writer::ClosedShard;
use crate::core::places::Who;
use crate::core::{Key, Millis, PutId};

/// Most shards whose rows are kept.
pub(crate) const BROKEN_MAX: usize = 32;

/// Memory for one of them: entries of a page, hashes and places of all pages.
pub(crate) const BROKEN_BYTES: u64 = 48 << 10;

/// Most of them of one member, job keys included.
pub(super) const OF_MEMBER_MAX: usize = BROKEN_MAX / 4;

/// Shards whose transfers broke off, in the order in which they did.
#[derive(Debug, Default)]
pub(super) struct BrokenPuts(VecDeque<BrokenPut>);

#[derive(Debug)]
pub(super) struct BrokenPut {
    /// Its put in the catalog, which goes on.
    pub(super) id: PutId,
    /// Its checkpoint.
    pub(super) key: Key,
    /// Who sent it.
    pub(super) who: Who<OwnerId>,
    /// Until when it is kept.
    pub(super) until: Millis,
    /// Its file.
    pub(super) shard: ClosedShard,
}

impl BrokenPuts {
    /// Adds one.
    pub(super) fn push(&mut self, one: BrokenPut) {
        self.0.push_back(one);
    }

    /// All of them, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &BrokenPut> {
        self.0.iter()
    }

    /// All of them, to put off their end.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut BrokenPut> {
        self.0.iter_mut()
    }

    /// Takes out the oldest one that is wanted.
    pub(super) fn take(&mut self, wanted: impl Fn(&BrokenPut) -> bool) -> Option<BrokenPut> {
        let at = self.0.iter().position(wanted)?;
        self.0.remove(at)
    }

    /// One that gives way to a new one of `who`: the oldest of a member that has its part of the places, or the
    /// oldest of all if there are no more places.
    pub(super) fn take_surplus(&mut self, who: Who<OwnerId>) -> Option<BrokenPut> {
        let is_own = |one: &BrokenPut| one.who.member == who.member;
        let own = self.0.iter().filter(|one| is_own(one)).count();
        if own >= OF_MEMBER_MAX {
            return self.take(is_own);
        }
        (self.0.len() >= BROKEN_MAX).then(|| self.0.pop_front())?
    }
}
