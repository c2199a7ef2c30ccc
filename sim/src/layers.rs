//! What a later version stores, and which rows of older checkpoints, its origins, it uses: by the rules of the program,
//! but without the limit of layers of a segment, saves with a deadline, and what interrupted saves left.
//!
//! Each version changes the same share of the image, and no place more than others, so that of each origin the same
//! share is used no more.

use codec::chain::{Hurry, OriginState, plan};
use codec::segment::Again;
use placement::objective::Width;

use crate::keeper::Keeper;

/// Bytes of an image for the rules of the program, which count bytes.
const IMAGE: f64 = (1_u64 << 40) as f64;

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
    /// Until when missing shards of them were rebuilt, seconds since the start.
    pub(crate) repaired_until: f64,
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
    /// How many more will probably come back with hosts that are away.
    pub(crate) away: usize,
    /// How many a restore needs.
    pub(crate) needed: usize,
    /// See [`OriginState::is_at_risk`].
    pub(crate) is_at_risk: bool,
}

/// What a version stores.
#[derive(Clone, Debug)]
pub(crate) struct NewVersion {
    /// The share of the image that it stores.
    pub(crate) stores: f64,
    /// What it uses of each part of the version before, as a share of the image.
    pub(crate) uses: Vec<f64>,
}

impl PartState {
    fn as_origin(&self) -> OriginState {
        OriginState {
            held_bytes: bytes(self.held),
            used_bytes: bytes(self.used),
            image_bytes: bytes(self.used),
            found: self.found,
            away: self.away,
            data: self.needed,
            is_at_risk: self.is_at_risk,
        }
    }
}

/// A share of the image in bytes.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are positive and small"
)]
fn bytes(share: f64) -> u64 {
    (share * IMAGE).round() as u64
}

/// The version after one with these `parts`, of which the first are its own rows. A share `changed` of the image is
/// new in it, and `changed_before` was in the version before.
pub(crate) fn next_version(parts: &[PartState], changed_before: f64, changed: f64) -> NewVersion {
    let origins: Vec<OriginState> = parts.iter().map(PartState::as_origin).collect();
    let cleaning = plan(&origins, bytes(changed_before), Hurry::None);
    let mut stores = changed;
    let mut uses = Vec::with_capacity(parts.len());
    for (part, again) in parts.iter().zip(&cleaning.origins) {
        let unchanged = part.used * (1.0 - changed);
        let again = match again {
            Again::No => 0.0,
            Again::ByBudget => unchanged.min(cleaning.budget as f64 / IMAGE),
            Again::All => unchanged,
        };
        stores += again;
        uses.push(unchanged - again);
    }
    NewVersion { stores, uses }
}

#[cfg(test)]
mod tests {
    use codec::chain::ORIGINS_USUAL;

    use super::*;

    /// A part of which five shards are there and a restore needs three.
    const fn whole(held: f64, used: f64) -> PartState {
        PartState {
            held,
            used,
            found: 5,
            away: 0,
            needed: 3,
            is_at_risk: false,
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
            assert!(parts.len() <= ORIGINS_USUAL + 1);
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
                repaired_until: 0.0,
                held,
            },
            used,
        };
        assert_eq!(part(1.0, 1.0).read(), 1.0);
        assert_eq!(part(1.0, 0.4).read(), 0.5);
        assert_eq!(part(0.1, 0.09).read(), 0.1);
    }
}
