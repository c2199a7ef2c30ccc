//! What a version stores again although older checkpoints, its origins, have it.
//!
//! A version that stored only what changed, for ever, would need ever more origins, and these would hold ever more that
//! no version needs. A checkpoint goes only as a whole, when no version uses a row of it. So a save stores some pieces
//! again, as few as it can: a budget bounds them, and a save that has to be in time stores none of them again.

#[cfg(test)]
mod tests;

use crate::layers::{LAYERS_MAX, ORIGINS_MAX};
use crate::segment::{Again, Cleaning, LAYERS_USUAL};

/// Most origins of a version whose save has time.
pub const ORIGINS_USUAL: usize = 24;

/// From this many bytes on, for 1,000 of the image, origins are stored again by the budget.
const HELD_USUAL: u64 = 1500;

/// The budget grows to [`BUDGET_GROWTH`] times itself when they hold this many bytes for 1,000 of the image.
const HELD_MUCH: u64 = 1900;

/// Beyond this many bytes for 1,000, the budget does not count.
const HELD_MAX: u64 = 2200;

/// From this many bytes for 1,000 on, a save with a deadline stores something again, too.
const HELD_WITH_DEADLINE: u64 = 2500;

/// A save stores at least one in this many bytes of the image again, if something is to be stored again.
const BUDGET_SHARE: u64 = 32;

/// How many times its usual size the budget has at the most. Without growth, the largest save is larger: the checkpoint
/// with the whole image is then stored again at once, when the budget does not count any more.
const BUDGET_GROWTH: u64 = 3;

/// The budget grows to one in this many bytes of the image at the most.
const GROWN_BUDGET_SHARE: u64 = 10;

/// A save that stores again the smallest of too many origins stores as many as take this many times its bytes.
const MERGED_AT_ONCE: u64 = 4;

/// It stores no more of them than it must where less than this share of an origin is used: such an origin becomes small by
/// itself, as the image changes. Of what a small origin holds, a tenth may be hashes and the index, which count as unused.
const LASTING: f64 = 0.8;

/// A checkpoint of which a new version may use rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OriginState {
    /// Bytes of all its rows, as they are stored.
    pub held_bytes: u64,
    /// Bytes of its rows that the version before uses, as they are stored.
    pub used_bytes: u64,
    /// The same, as bytes of the image.
    pub image_bytes: u64,
    /// How many of its shards hosts hold that answer.
    pub found: usize,
    /// How many more are expected back with hosts that are silent.
    pub away: usize,
    /// How many of its shards a restore needs.
    pub data: usize,
    /// Its hosts may not be there when a restore needs them, and that would cost more than to store it again.
    pub is_at_risk: bool,
}

/// How much time a save has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hurry {
    /// As much as it needs.
    None,
    /// It has to end by some time.
    Deadline,
    /// The state of the job is lost if it is late.
    Last,
}

/// How urgent it is to store an origin again; the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// It will survive the loss of no host more, when all have come back that are expected.
    Short,
    /// It survives the loss of no host more now, but hosts are expected back. It is stored again only if all of it is
    /// within the budget: so hosts that are out for a night do not make a large part short.
    Bare,
    /// It is not.
    None,
}

impl OriginState {
    /// A restore can't read it now.
    const fn is_lost(&self) -> bool {
        self.found < self.data
    }

    /// It does not survive the loss of one host more, even when all come back that are expected.
    const fn is_short(&self) -> bool {
        self.found + self.away <= self.data
    }

    /// How urgent it is to store it again, of a save with this much time.
    const fn urgency(&self, hurry: Hurry) -> Urgency {
        match hurry {
            Hurry::None if self.is_short() => Urgency::Short,
            Hurry::None if self.found <= self.data => Urgency::Bare,
            _ => Urgency::None,
        }
    }

    /// How much of it is used.
    fn share(&self) -> f64 {
        self.used_bytes as f64 / self.held_bytes.max(1) as f64
    }
}

/// What a version after one that uses these `origins` stores again. The first of them is that version itself.
/// `changed_bytes` of the image will probably be new.
pub fn plan(origins: &[OriginState], changed_bytes: u64, hurry: Hurry) -> Cleaning {
    let mut cleaning = Cleaning {
        origins: vec![Again::No; origins.len()],
        budget: 0,
        layers_max: match hurry {
            Hurry::None => LAYERS_USUAL,
            Hurry::Deadline | Hurry::Last => LAYERS_MAX,
        },
    };
    for (again, origin) in cleaning.origins.iter_mut().zip(origins) {
        if origin.is_lost() || hurry == Hurry::None && origin.is_at_risk {
            *again = Again::All;
        }
    }
    let stored: u64 = origins.iter().map(|one| one.used_bytes).sum();
    let image: u64 = origins.iter().map(|one| one.image_bytes).sum();
    let changed = scaled(changed_bytes, stored, image);
    let budget = changed_bytes.max(image / BUDGET_SHARE);
    let merged = too_many(origins, budget, hurry, &mut cleaning);
    // What is held after the save, for 1,000 bytes of the image.
    let held = |cleaning: &Cleaning| {
        let all = origins.iter().zip(&cleaning.origins);
        let kept = all.filter(|(one, again)| **again != Again::All && one.used_bytes > 0);
        let kept: u64 = kept.map(|(one, _)| one.held_bytes).sum();
        scaled(kept.saturating_add(changed), 1000, stored)
    };
    let from = match hurry {
        Hurry::None => HELD_USUAL,
        Hurry::Deadline => HELD_WITH_DEADLINE,
        Hurry::Last => return cleaning,
    };
    let range = HELD_MUCH - HELD_USUAL;
    let pressure = held(&cleaning).saturating_sub(HELD_USUAL).min(range);
    let grown = budget.saturating_add(scaled(budget, pressure * (BUDGET_GROWTH - 1), range));
    let grown = grown.min(budget.max(image / GROWN_BUDGET_SHARE));
    let mut left = grown.saturating_sub(merged);
    for at in victims(origins, hurry) {
        let (Some(one), Some(again)) = (origins.get(at), cleaning.origins.get(at)) else {
            continue;
        };
        if *again == Again::All {
            continue;
        }
        let held = held(&cleaning);
        let is_urgent = match one.urgency(hurry) {
            Urgency::Short => true,
            Urgency::Bare => one.image_bytes <= left,
            Urgency::None => false,
        };
        if !is_urgent && held <= from {
            continue;
        }
        let is_too_much = hurry == Hurry::None && held > HELD_MAX;
        let again = match is_too_much || one.image_bytes <= left {
            true => Again::All,
            false => Again::ByBudget,
        };
        if let Some(place) = cleaning.origins.get_mut(at) {
            *place = again;
        }
        if again == Again::ByBudget {
            cleaning.budget = left;
            break;
        }
        left = left.saturating_sub(one.image_bytes);
    }
    cleaning
}

/// `bytes * times / of`, or as much as fits.
fn scaled(bytes: u64, times: u64, of: u64) -> u64 {
    let scaled = u128::from(bytes) * u128::from(times) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Stores again the smallest of so many origins that a version can't name them all. Where there is time, it stores more of
/// the smallest again than it must, so that the next saves need not: one by one, each of them would be stored again as
/// often as there are saves, for ever larger. Returns the bytes of the image that are stored again.
fn too_many(origins: &[OriginState], budget: u64, hurry: Hurry, cleaning: &mut Cleaning) -> u64 {
    let most = match hurry {
        Hurry::None => ORIGINS_USUAL,
        Hurry::Deadline | Hurry::Last => ORIGINS_MAX,
    };
    let used = origins.iter().zip(&cleaning.origins).enumerate();
    let used = used.filter(|(_, (one, again))| one.used_bytes > 0 && **again != Again::All);
    let mut by_size: Vec<(u64, usize)> = used.map(|(at, (one, _))| (one.image_bytes, at)).collect();
    by_size.sort_unstable();
    let surplus = by_size.len().saturating_sub(most);
    let smallest = by_size.first().map_or(0, |(bytes, _)| *bytes);
    let mut left = match hurry {
        Hurry::None if surplus > 0 => budget.max(MERGED_AT_ONCE.saturating_mul(smallest)),
        _ => 0,
    };
    let mut merged = 0;
    for (number, (bytes, at)) in by_size.into_iter().enumerate() {
        let lasts = origins.get(at).is_some_and(|one| one.share() > LASTING);
        if number >= surplus && (bytes > left || !lasts) {
            break;
        }
        left = left.saturating_sub(bytes);
        merged += bytes;
        if let Some(again) = cleaning.origins.get_mut(at) {
            *again = Again::All;
        }
    }
    merged
}

/// Origins in the order in which they are stored again: those that lack shards, then those of which the least is used.
/// The version before is not among these, unless it lacks shards.
fn victims(origins: &[OriginState], hurry: Hurry) -> Vec<usize> {
    let all = origins.iter().enumerate();
    let used = all
        .filter(|(at, one)| one.used_bytes > 0 && (*at > 0 || one.urgency(hurry) != Urgency::None));
    let mut victims: Vec<(usize, &OriginState)> = used.collect();
    victims.sort_by(|(_, a), (_, b)| {
        let order = a.urgency(hurry).cmp(&b.urgency(hurry));
        order.then(a.share().total_cmp(&b.share()))
    });
    victims.into_iter().map(|(at, _)| at).collect()
}
