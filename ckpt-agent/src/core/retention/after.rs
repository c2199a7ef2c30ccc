//! What a save finds after its commit: whether it and what it builds on are still to be kept.

use std::collections::BTreeSet;

use codec::CheckpointId;
use codec::notice::{Stamp, Words};
use codec::pieces::BaseRef;

/// What hosts showed of a job at one time.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Its committed checkpoints.
    pub shown: &'a BTreeSet<CheckpointId>,
    /// The owner's words on it.
    pub said: Option<&'a Words>,
}

/// What became of a save while it was under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterCommit {
    /// It is kept, and so is what it builds on.
    Kept,
    /// The save itself belongs to a deleted part of the history.
    Deleted,
    /// Something on which it builds was deleted.
    NeedDeleted(CheckpointId),
    /// Somebody else is deleting, and may not have seen this save.
    InDoubt,
}

/// Judges a save by what hosts showed `before` it chose what it builds on, and `now`, after its commit.
pub fn after_commit(new: Stamp, needs: &[BaseRef], before: View<'_>, now: View<'_>) -> AfterCommit {
    let is_gone = |stamp| now.said.is_some_and(|said| said.is_gone(stamp));
    if is_gone(new) {
        return AfterCommit::Deleted;
    }
    let deleted = needs.iter().find(|need| {
        let is_named = |said: &Words| said.gone.contains(&need.checkpoint);
        now.said.is_some_and(is_named) || need.stamp().is_some_and(is_gone)
    });
    if let Some(need) = deleted {
        return AfterCommit::NeedDeleted(need.checkpoint);
    }
    let is_other = |one: &&CheckpointId| **one != new.checkpoint;
    let mut others = now.shown.difference(before.shown).filter(is_other);
    let deletes = now.said.is_some_and(|now| is_more(now, before.said));
    if !needs.is_empty() && (deletes || others.next().is_some()) {
        return AfterCommit::InDoubt;
    }
    // A stretch that ends later may come to cover the save itself.
    let end = now.said.and_then(|said| said.intervals.end());
    if deletes && end > Some(new) {
        return AfterCommit::InDoubt;
    }
    AfterCommit::Kept
}

/// Whether `now` deletes more than `before`, or announces that.
fn is_more(now: &Words, before: Option<&Words>) -> bool {
    let Some(before) = before else {
        return !now.gone.is_empty() || !now.intervals.is_empty();
    };
    let is_new = |id| !before.gone.contains(id);
    now.gone.iter().any(is_new) || !before.intervals.cover(&now.intervals)
}
