//! What a later version stores, and which rows of older checkpoints, its origins, it uses: without the limit of
//! layers of a segment, saves with a deadline, what interrupted saves left, deletions and repair.
//!
//! The rules are those of `ckpt-agent/src/core/chain`, in shares of the image. Each version changes the same share of
//! it, and no place more than others, so that of each origin the same share is used no more.

use placement::objective::Width;

use crate::keeper::Keeper;

/// Most origins of a version.
const ORIGINS_MAX: usize = 24;
/// From so many images in all its origins on, a version stores origins again by its budget.
const HELD_USUAL: f64 = 1.5;
/// The budget grows to [`BUDGET_GROWTH`] times itself when origins hold so many images.
const HELD_MUCH: f64 = 1.9;
/// Beyond so many images the budget does not count.
const HELD_MAX: f64 = 2.2;
/// Least budget for what is stored again, as a share of the image.
const BUDGET_MIN: f64 = 1.0 / 32.0;
/// How many times its usual size the budget has at the most.
const BUDGET_GROWTH: f64 = 3.0;
/// The budget grows to this share of the image at the most, unless more had changed.
const GROWN_BUDGET: f64 = 0.1;
/// Bytes of an origin that a restore reads for one that it uses: rows are read whole. With it a restore reads 1.2 times
/// the image; the program reads 1.1 to 1.3 times as much with 2 to 10% changed.
const READ_FOR_USED: f64 = 1.25;

/// Rows that one save stored.
#[derive(Clone, Debug)]
pub(crate) struct Rows {
    /// What keeps a shard of them.
    pub(crate) keepers: Vec<Keeper>,
    /// Their code.
    pub(crate) width: Width,
    /// When they were stored, seconds since the start.
    pub(crate) stored_at: f64,
    /// How much they hold, as a share of the image.
    pub(crate) held: f64,
}

/// Rows of a checkpoint, and how much of them a version uses.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) rows: Rows,
    /// A share of the image, at most what the rows hold.
    pub(crate) used: f64,
}

impl Part {
    /// What a restore reads of it, as a share of the image.
    pub(crate) fn read(&self) -> f64 {
        (READ_FOR_USED * self.used).min(self.rows.held)
    }
}

/// What is known of a part of a version when the next version is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartState {
    /// See [`Rows::held`].
    pub(crate) held: f64,
    /// See [`Part::used`].
    pub(crate) used: f64,
    /// How many of its shards are there.
    pub(crate) found: usize,
    /// How many more may come back with hosts that are away.
    pub(crate) away: usize,
    /// How many a restore needs.
    pub(crate) needed: usize,
}

/// What a version stores.
#[derive(Clone, Debug)]
pub(crate) struct NewVersion {
    /// The share of the image that it stores.
    pub(crate) stores: f64,
    /// What it uses of each part of the version before, as a share of the image.
    pub(crate) uses: Vec<f64>,
}

/// How urgent it is to store a part again; the most urgent first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Urgency {
    /// It will survive the loss of no host more, whoever comes back.
    Short,
    /// It survives the loss of no host more now, but hosts may come back.
    Bare,
    None,
}

/// How much of a part is stored again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Again {
    Nothing,
    /// At most this share of the image.
    AtMost(f64),
    All,
}

impl PartState {
    const fn urgency(&self) -> Urgency {
        if self.found + self.away <= self.needed {
            Urgency::Short
        } else if self.found <= self.needed {
            Urgency::Bare
        } else {
            Urgency::None
        }
    }

    fn share_used(&self) -> f64 {
        self.used / self.held
    }
}

/// The version after one with these `parts`, of which the first are its own rows. A share `changed` of the image is
/// new in it, and `changed_before` was in the version before.
pub(crate) fn next_version(parts: &[PartState], changed_before: f64, changed: f64) -> NewVersion {
    let mut stores = changed;
    let mut uses = Vec::with_capacity(parts.len());
    for (part, again) in parts.iter().zip(stored_again(parts, changed_before)) {
        let unchanged = part.used * (1.0 - changed);
        let again = match again {
            Again::Nothing => 0.0,
            Again::AtMost(most) => unchanged.min(most),
            Again::All => unchanged,
        };
        stores += again;
        uses.push(unchanged - again);
    }
    NewVersion { stores, uses }
}

/// What is stored again of each part.
fn stored_again(parts: &[PartState], changed_before: f64) -> Vec<Again> {
    let is_lost = |part: &PartState| part.found < part.needed;
    let lost = parts.iter().map(|part| match is_lost(part) {
        true => Again::All,
        false => Again::Nothing,
    });
    let mut again: Vec<Again> = lost.collect();
    store_surplus(parts, &mut again);
    // What is held after the save.
    let held = |again: &[Again]| {
        let all = parts.iter().zip(again);
        let kept = all.filter(|(_, again)| **again != Again::All);
        kept.map(|(part, _)| part.held).sum::<f64>() + changed_before
    };
    let budget = changed_before.max(BUDGET_MIN);
    let range = HELD_MUCH - HELD_USUAL;
    let pressure = (held(&again) - HELD_USUAL).clamp(0.0, range);
    let grown = budget * (1.0 + pressure * (BUDGET_GROWTH - 1.0) / range);
    let mut left = grown.min(budget.max(GROWN_BUDGET));
    for at in by_urgency(parts) {
        let part = &parts[at];
        if again[at] == Again::All {
            continue;
        }
        let held = held(&again);
        let fits = part.used <= left;
        let is_urgent = match part.urgency() {
            Urgency::Short => true,
            Urgency::Bare => fits,
            Urgency::None => false,
        };
        if !is_urgent && held <= HELD_USUAL {
            continue;
        }
        if !fits && held <= HELD_MAX {
            again[at] = Again::AtMost(left);
            break;
        }
        again[at] = Again::All;
        left = (left - part.used).max(0.0);
    }
    again
}

/// Stores again the smallest of so many parts that a version can't name them all.
fn store_surplus(parts: &[PartState], again: &mut [Again]) {
    let named = (0..parts.len()).filter(|at| again[*at] != Again::All);
    let mut by_size: Vec<usize> = named.collect();
    by_size.sort_by(|a, b| parts[*a].used.total_cmp(&parts[*b].used));
    let surplus = by_size.len().saturating_sub(ORIGINS_MAX);
    for at in by_size.into_iter().take(surplus) {
        again[at] = Again::All;
    }
}

/// The parts in the order in which they are stored again: those that lack shards, then those of which the least is
/// used. The rows of the version before are not among these, unless they lack shards.
fn by_urgency(parts: &[PartState]) -> Vec<usize> {
    let all = 0..parts.len();
    let may_be = all.filter(|at| *at > 0 || parts[*at].urgency() != Urgency::None);
    let mut order: Vec<usize> = may_be.collect();
    order.sort_by(|a, b| {
        let a = &parts[*a];
        let b = &parts[*b];
        let by_use = a.share_used().total_cmp(&b.share_used());
        a.urgency().cmp(&b.urgency()).then(by_use)
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A part of which five shards are there and a restore needs three.
    const fn whole(held: f64, used: f64) -> PartState {
        PartState {
            held,
            used,
            found: 5,
            away: 0,
            needed: 3,
        }
    }

    /// The mean of what versions after the first store and of what a restore of them reads, as shares of the image, and
    /// the most that all origins hold.
    fn steady(changed: f64, versions: u32) -> (f64, f64, f64) {
        let mut parts = vec![whole(1.0, 1.0)];
        let mut changed_before = 1.0;
        let mut stored = 0.0;
        let mut read = 0.0;
        let mut held: f64 = 0.0;
        for _ in 0..versions {
            let next = next_version(&parts, changed_before, changed);
            for (part, uses) in parts.iter_mut().zip(&next.uses) {
                part.used = *uses;
            }
            parts.retain(|part| part.used > 0.0);
            stored += next.stores;
            read += next.stores;
            for part in &parts {
                read += (READ_FOR_USED * part.used).min(part.held);
            }
            parts.insert(0, whole(next.stores, next.stores));
            changed_before = changed;
            let used: f64 = parts.iter().map(|part| part.used).sum();
            assert!((used - 1.0).abs() < 1e-9, "all of the image is somewhere");
            assert!(parts.len() <= ORIGINS_MAX + 1);
            held = held.max(parts.iter().map(|part| part.held).sum());
        }
        let count = f64::from(versions);
        (stored / count, read / count, held)
    }

    #[test]
    fn as_much_is_stored_as_was_measured() {
        // Sixty versions: what the program stored on average is in `docs/inside/decisions.md`.
        for (changed, measured) in [(0.02, 0.037), (0.05, 0.082), (0.1, 0.160)] {
            let (stored, read, held) = steady(changed, 60);
            assert!(
                (stored / measured - 1.0).abs() < 0.05,
                "{changed}: {stored}"
            );
            assert!((1.1..=1.3).contains(&read), "{changed}: {read}");
            assert!(held <= 2.31, "{changed}: {held}");
        }
    }

    #[test]
    fn parts_that_lack_shards_are_stored_again() {
        let parts = |found, away| {
            let short = PartState {
                found,
                away,
                ..whole(0.5, 0.4)
            };
            [whole(0.05, 0.05), whole(0.6, 0.55), short]
        };
        let used = |found, away| next_version(&parts(found, away), 0.05, 0.0).uses[2];
        let is = |share: f64, expected: f64| assert!((share - expected).abs() < 1e-9, "{share}");
        is(used(4, 0), 0.4);
        // Hosts may come back, and it is more than the budget.
        is(used(3, 2), 0.4);
        // No more come back: as much as the budget allows, which is what had changed.
        is(used(3, 0), 0.35);
        // It can't be read: all of it, whatever it costs.
        is(used(2, 3), 0.0);
    }

    #[test]
    fn what_survives_no_loss_for_now_is_stored_again_if_the_budget_is_enough_for_all_of_it() {
        let bare = PartState {
            found: 3,
            away: 2,
            ..whole(0.05, 0.03)
        };
        let next = next_version(&[whole(0.05, 0.05), whole(1.0, 0.92), bare], 0.02, 0.0);
        assert_eq!(next.uses, [0.05, 0.92, 0.0]);
        assert!((next.stores - 0.03).abs() < 1e-9);
    }

    #[test]
    fn a_version_of_which_all_changed_uses_nothing_older() {
        let next = next_version(&[whole(1.0, 1.0)], 1.0, 1.0);
        assert_eq!((next.stores, next.uses), (1.0, vec![0.0]));
    }

    #[test]
    fn no_more_is_read_of_rows_than_they_hold() {
        let part = |held, used| Part {
            rows: Rows {
                keepers: Vec::new(),
                width: Width::FALCON,
                stored_at: 0.0,
                held,
            },
            used,
        };
        assert_eq!(part(1.0, 1.0).read(), 1.0);
        assert_eq!(part(1.0, 0.4).read(), 0.5);
        assert_eq!(part(0.1, 0.09).read(), 0.1);
    }
}
