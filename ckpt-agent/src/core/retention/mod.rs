//! What of a job may be deleted: the one rule behind `--keep`, `forget`, `--keep-within`, `gc`, leases and job
//! keys.
//!
//! - **Kept is kept with all its needs.** Some versions are kept by a policy; what these build on is kept with
//!   them. Both follow from references, never from what happens to be visible: a base whose hosts are away has
//!   a place in the history, too.
//! - **What can't be opened stops deletion.** Nobody here knows what such a checkpoint needs: perhaps a newer
//!   program wrote it. [`plan`] then deletes nothing of its job.
//! - **A notice covers nothing that is kept.** Its stretches end before what is kept, and are joined wherever
//!   nothing kept lies between them: [`plan`] makes at most one more than there are kept checkpoints and lines.
//! - **What a version builds on was signed by the owner or by the version's own signer**, so that a job key
//!   that becomes void takes no version of another key with it: [`admits`].
//! - **Who saves commits, and then reads the notices. Who deletes announces that, and then lists.** At a host
//!   that both ask, one of them sees the other. What announces a deletion is a version that was saved (of
//!   `--keep`), or a notice with new names in it. A save that sees either may be about to lose what it builds
//!   on: [`after_commit`].
//!
//! A version names all that a restore of it reads, not only what it directly builds on. So who keeps a version
//! keeps all that a save that builds on it can need.

mod after;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::notice::{Interval, Intervals, Stamp, Words};
use codec::pieces::BaseRef;
use codec::{CheckpointId, OwnerId, PublicKey, Version};

use crate::core::gather::silence::Silence;

pub use after::{AfterCommit, View, after_commit};

/// What the rule has to know of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its place in the history of its job.
    pub stamp: Stamp,
    /// What only its owner can read of it; `None` if it can't be opened.
    pub contents: Option<Contents>,
}

/// What the rule has to know of the sealed part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// All checkpoints of which a restore reads rows. Very many checkpoints may share them.
    pub needs: Arc<[Arc<BaseRef>]>,
    /// The first version of its line; `None` in the first line of a job.
    pub line: Option<Version>,
}

/// How far a deletion reaches beyond the checkpoints that it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Not at all: what turns up later need not meet the conditions of the deletion.
    Named,
    /// To what turns up later and was created between two deleted ones, also of earlier deletions.
    Between,
    /// To all that turns up later and was created before the last of them, if nothing is kept.
    FromFirst,
}

impl Reach {
    /// How far a deletion reaches in a grid with this silence. Silent members may hold versions of another line,
    /// whose places in the history nobody knows: a stretch could cover them. The stretches are joined when the
    /// members are back.
    #[must_use]
    pub fn in_silence(self, silence: Silence) -> Self {
        match self {
            Self::Between if silence.may_hide_versions(None) => Self::Named,
            reach => reach,
        }
    }
}

/// What may be deleted of a job, and how a notice states it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The checkpoints that are deleted, by their ids.
    pub gone: Vec<Stamp>,
    /// For each unwanted checkpoint that stays, because a kept one needs it, one that does.
    pub needed: BTreeMap<CheckpointId, Stamp>,
    /// The stretches of the history that are deleted, also by earlier notices.
    pub intervals: Intervals,
    /// A checkpoint that can't be opened. While there is one, nothing is deleted.
    pub stopped_by: Option<Stamp>,
    /// Those of the deleted ones on which a save that begins now may build.
    pub bases: Vec<Stamp>,
}

/// How many of the newest deleted checkpoints count as such on which a save may build, besides those on which
/// something builds already. A save looks at as many of the newest versions for what it builds on.
const NEWEST: usize = 8;

/// Most checkpoints on which a save may build: so many intervals an announcement has.
const BASES_MAX: usize = 64;

impl Plan {
    /// What announces that this plan is about to be carried out: the deletion of what lies just before each one
    /// that is deleted and on which a save may build. Nobody has that. So a save that begins now builds on nothing
    /// ([`is_announced`]), and one that is under way knows ([`after_commit`]). As intervals, no later notice makes
    /// hosts lose them. `None` if nothing is deleted.
    pub fn announcing(&self) -> Option<Self> {
        let gone: Vec<Stamp> = self
            .bases
            .iter()
            .filter_map(|one| just_before(*one))
            .collect();
        (!gone.is_empty()).then(|| Self {
            intervals: Intervals::default().with(&gone),
            gone,
            ..Self::default()
        })
    }
}

/// The last place in the history before a checkpoint. Ids are random, so no checkpoint has it.
fn just_before(one: Stamp) -> Option<Stamp> {
    let mut before = one.checkpoint.0;
    for byte in before.iter_mut().rev() {
        match byte.checked_sub(1) {
            Some(less) => {
                *byte = less;
                let checkpoint = CheckpointId(before);
                return Some(Stamp { checkpoint, ..one });
            }
            None => *byte = u8::MAX,
        }
    }
    None
}

/// Decides what may be deleted of one job. A policy `keeps` some checkpoints and has some `unwanted`; both may
/// come from more than one look at the hosts. `last` are the owner's words so far.
pub fn plan(
    keeps: &[Checkpoint],
    unwanted: &[Checkpoint],
    last: Option<&Words>,
    reach: Reach,
) -> Plan {
    let before = last.map_or_else(Intervals::default, |last| last.intervals.clone());
    let mut all = keeps.iter().chain(unwanted);
    let unopened = all.find(|one| one.contents.is_none());
    if let Some(unopened) = unopened {
        return Plan {
            intervals: before,
            stopped_by: Some(unopened.stamp),
            ..Plan::default()
        };
    }
    let needs = closure(keeps, unwanted);
    let kept: BTreeSet<CheckpointId> = keeps.iter().map(|one| one.stamp.checkpoint).collect();
    let mut gone = Vec::new();
    let mut seen = BTreeSet::new();
    let mut needed = BTreeMap::new();
    for one in unwanted.iter().map(|one| one.stamp) {
        match needs.get(&one.checkpoint) {
            Some(need) => _ = needed.insert(one.checkpoint, need.by),
            None if kept.contains(&one.checkpoint) => {}
            None if !seen.insert(one) => {}
            None => gone.push(one),
        }
    }
    let barriers = barriers(keeps, unwanted, &needs);
    let intervals = match reach {
        _ if gone.is_empty() => before,
        Reach::Named => before.with(&gone),
        Reach::FromFirst if keeps.is_empty() => {
            let from_first: Vec<Stamp> = [Stamp::FIRST].into_iter().chain(gone.clone()).collect();
            before.with_stretches(&from_first, &[])
        }
        Reach::Between | Reach::FromFirst => before.with_stretches(&gone, &barriers),
    };
    Plan {
        bases: bases(&gone, keeps, unwanted),
        gone,
        needed,
        intervals,
        stopped_by: None,
    }
}

/// Those of the deleted ones on which a save that begins now may build, the newest first.
fn bases(gone: &[Stamp], keeps: &[Checkpoint], unwanted: &[Checkpoint]) -> Vec<Stamp> {
    let contents = keeps.iter().chain(unwanted).flat_map(|one| &one.contents);
    let built_on = contents.flat_map(|contents| &*contents.needs);
    let built_on: BTreeSet<CheckpointId> = built_on.map(|need| need.checkpoint).collect();
    let mut newest = gone.to_vec();
    newest.sort_unstable_by_key(|stamp| std::cmp::Reverse(*stamp));
    let all = newest.into_iter().enumerate();
    let bases = all.filter(|(age, one)| *age < NEWEST || built_on.contains(&one.checkpoint));
    bases.map(|(_, one)| one).take(BASES_MAX).collect()
}

/// Something that a kept checkpoint needs.
struct Need {
    /// The kept checkpoint.
    by: Stamp,
    /// Where it is in the history: at one place, or anywhere before the one that needs it.
    place: Interval,
}

/// All that kept checkpoints need. What that needs in turn is not needed, unless they name it, too: they name each
/// checkpoint of which a restore reads rows.
fn closure(keeps: &[Checkpoint], others: &[Checkpoint]) -> BTreeMap<CheckpointId, Need> {
    let known: BTreeMap<CheckpointId, &Checkpoint> = keeps
        .iter()
        .chain(others)
        .map(|one| (one.stamp.checkpoint, one))
        .collect();
    let mut needs = BTreeMap::new();
    for one in keeps {
        let by = one.stamp;
        for reference in one.contents.iter().flat_map(|contents| &*contents.needs) {
            let there = known.get(&reference.checkpoint).copied();
            let stamp = reference.stamp().or(there.map(|there| there.stamp));
            let anywhere_before = Interval {
                from: Stamp::FIRST,
                to: by,
            };
            let place = stamp.map_or(anywhere_before, Interval::from);
            needs.insert(reference.checkpoint, Need { by, place });
        }
    }
    needs
}

/// What no stretch may pass: what is kept, what that needs, and the beginnings of lines. What a line was begun
/// without may come back, and is not older than what the line deletes.
fn barriers(
    keeps: &[Checkpoint],
    unwanted: &[Checkpoint],
    needs: &BTreeMap<CheckpointId, Need>,
) -> Vec<Interval> {
    let lines = keeps.iter().chain(unwanted);
    let lines = lines.filter_map(|one| one.contents.as_ref()?.line);
    // The number of a line's first version is the time of its save.
    let begins = lines.map(|first| Stamp {
        created: first.number(),
        ..Stamp::FIRST
    });
    let begins: BTreeSet<Stamp> = begins.collect();
    let points = keeps.iter().map(|one| one.stamp).chain(begins);
    let points = points.map(Interval::from);
    points
        .chain(needs.values().map(|need| need.place))
        .collect()
}

/// Whether a new version that `signer` signs may build on a checkpoint of `owner`: only if the owner or the same
/// key signed it, and the owner has not deleted it.
pub fn admits(
    base: Stamp,
    base_signer: PublicKey,
    owner: OwnerId,
    signer: PublicKey,
    said: Option<&Words>,
) -> bool {
    let is_trusted = base_signer == signer || base_signer == PublicKey::from(owner);
    is_trusted && !said.is_some_and(|said| said.is_gone(base))
}

/// Whether a deletion is announced and not carried out: a stretch ends just before a checkpoint that is shown. A
/// save that begins then builds on nothing.
pub fn is_announced(shown: impl IntoIterator<Item = Stamp>, said: Option<&Words>) -> bool {
    let Some(said) = said else {
        return false;
    };
    let mut places = shown.into_iter().filter(|one| !said.is_gone(*one));
    places.any(|one| just_before(one).is_some_and(|before| said.intervals.has(before)))
}
