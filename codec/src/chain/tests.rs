use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::SmallRng;
use rand::seq::index::sample;
use rand::{Rng, SeedableRng};

use super::*;

/// Blocks of 64 KiB of a simulated image, 16 of them in a segment. All bytes are stored as they are.
const BLOCKS: usize = 2048;
const BLOCK: u64 = 64 << 10;
const SEGMENT_BLOCKS: usize = 16;

/// A version has hashes of all pieces, one byte for so many of the image.
const HASHED: u64 = 1000;

/// What holds a block that is appended, until it is stored.
const APPENDED: usize = usize::MAX;

/// A chain of versions of an image, block by block.
struct SimulatedChain {
    /// The version that holds each block.
    holder: Vec<usize>,
    /// How many blocks each version stored.
    stored: BTreeMap<usize, usize>,
    /// How many of them are in the row of a segment, by version and segment.
    rows: BTreeMap<(usize, usize), usize>,
    version: usize,
    changed: usize,
}

/// What one save did, in blocks.
struct SimulatedSave {
    stored: usize,
    held: usize,
    /// Blocks of the rows that a restore reads, each row as a whole.
    read: usize,
    origins: usize,
}

impl SimulatedChain {
    fn new() -> Self {
        Self {
            holder: vec![0; BLOCKS],
            stored: BTreeMap::from([(0, BLOCKS)]),
            rows: (0..BLOCKS / SEGMENT_BLOCKS)
                .map(|segment| ((0, segment), SEGMENT_BLOCKS))
                .collect(),
            version: 0,
            changed: BLOCKS,
        }
    }

    /// The origins of the next version, the newest first.
    fn origins(&self) -> Vec<(usize, OriginState)> {
        let hashes = self.holder.len() as u64 * BLOCK / HASHED;
        let origins = self.stored.iter().rev().map(|(version, stored)| {
            let used = self.holder.iter().filter(|one| *one == version).count() as u64;
            let state = OriginState {
                held_bytes: *stored as u64 * BLOCK + hashes,
                used_bytes: used * BLOCK,
                image_bytes: used * BLOCK,
                found: 5,
                away: 0,
                data: 3,
                is_at_risk: false,
            };
            (*version, state)
        });
        origins.collect()
    }

    /// The next version, in which these blocks are new. Blocks beyond the end are appended.
    fn save(&mut self, changed: &BTreeSet<usize>, hurry: Hurry) -> SimulatedSave {
        let origins = self.origins();
        let end = changed.last().map_or(0, |last| last + 1);
        let blocks = self.holder.len().max(end);
        self.holder.resize(blocks, APPENDED);
        let states: Vec<OriginState> = origins.iter().map(|one| one.1).collect();
        let mut cleaning = plan(&states, self.changed as u64 * BLOCK, hurry);
        self.version += 1;
        let mut new = changed.clone();
        for ((version, _), again) in origins.iter().zip(&cleaning.origins) {
            for at in (0..blocks).filter(|at| self.holder[*at] == *version) {
                let cleans = match again {
                    Again::No => false,
                    Again::All => true,
                    Again::ByBudget => cleaning.budget >= BLOCK && !new.contains(&at),
                };
                if cleans && new.insert(at) && *again == Again::ByBudget {
                    cleaning.budget -= BLOCK;
                }
            }
        }
        for segment in 0..blocks / SEGMENT_BLOCKS {
            self.merge(segment, &mut new, cleaning.layers_max);
        }
        for at in &new {
            self.holder[*at] = self.version;
            let row = (self.version, at / SEGMENT_BLOCKS);
            *self.rows.entry(row).or_default() += 1;
        }
        let used: BTreeSet<usize> = self.holder.iter().copied().collect();
        self.stored.insert(self.version, new.len());
        self.stored.retain(|version, _| used.contains(version));
        self.changed = changed.len();
        SimulatedSave {
            stored: new.len(),
            held: self.stored.values().sum(),
            read: self.read(),
            origins: used.len() - 1,
        }
    }

    /// Stores the smallest layers of a segment again, if there are too many.
    fn merge(&self, segment: usize, new: &mut BTreeSet<usize>, layers_max: usize) {
        let blocks = segment * SEGMENT_BLOCKS..(segment + 1) * SEGMENT_BLOCKS;
        loop {
            let mut layers: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
            for at in blocks.clone().filter(|at| !new.contains(at)) {
                layers.entry(self.holder[at]).or_default().push(at);
            }
            let has_row = blocks.clone().any(|at| new.contains(&at));
            if layers.len() + usize::from(has_row) <= layers_max {
                return;
            }
            let smallest = layers.into_values().min_by_key(Vec::len).unwrap();
            new.extend(smallest);
        }
    }

    /// Blocks that a restore reads: of each segment, the row of each version that holds some of it.
    fn read(&self) -> usize {
        let places = self.holder.iter().enumerate();
        let rows: BTreeSet<(usize, usize)> = places
            .map(|(at, version)| (*version, at / SEGMENT_BLOCKS))
            .collect();
        rows.iter().map(|row| self.rows[row]).sum()
    }
}

/// Means and extremes over 400 versions, as shares of the image.
struct Figures {
    mean: f64,
    largest: f64,
    held: f64,
    read: f64,
    origins: usize,
}

fn simulate(changed: impl Fn(usize, &mut SmallRng) -> BTreeSet<usize>, hurry: Hurry) -> Figures {
    let mut rng = SmallRng::seed_from_u64(1);
    let mut chain = SimulatedChain::new();
    let saves: Vec<SimulatedSave> = (1..400)
        .map(|version| chain.save(&changed(version, &mut rng), hurry))
        .collect();
    let share = |blocks: usize| blocks as f64 / BLOCKS as f64;
    Figures {
        mean: saves.iter().map(|save| share(save.stored)).sum::<f64>() / saves.len() as f64,
        largest: saves
            .iter()
            .map(|save| share(save.stored))
            .fold(0.0, f64::max),
        held: saves
            .iter()
            .map(|save| share(save.held))
            .fold(0.0, f64::max),
        read: saves.iter().map(|save| share(save.read)).sum::<f64>() / saves.len() as f64,
        origins: saves.iter().map(|save| save.origins).max().unwrap(),
    }
}

fn anywhere(share: f64) -> impl Fn(usize, &mut SmallRng) -> BTreeSet<usize> {
    move |_, rng| {
        let blocks = (BLOCKS as f64 * share) as usize;
        sample(rng, BLOCKS, blocks).into_iter().collect()
    }
}

#[test]
fn versions_store_little_more_than_what_changed() {
    for (share, mean, largest, read) in [
        (0.02, 0.055, 0.13, 1.2),
        (0.05, 0.09, 0.155, 1.3),
        (0.1, 0.17, 0.215, 1.4),
    ] {
        let figures = simulate(anywhere(share), Hurry::None);
        let Figures { held, origins, .. } = figures;
        println!(
            "{share}: stores {:.3}, at most {:.3}; holds at most {held:.2}; reads {:.2}",
            figures.mean, figures.largest, figures.read
        );
        assert!(figures.mean <= mean, "{share}: {}", figures.mean);
        assert!(figures.largest <= largest, "{share}: {}", figures.largest);
        assert!(figures.read <= read, "{share}: {}", figures.read);
        assert!(held <= 2.3, "{share}: {held}");
        assert!(origins <= ORIGINS_USUAL, "{share}: {origins}");
    }
}

#[test]
fn a_file_that_grows_stores_little_more_than_what_is_appended() {
    const APPENDED_BLOCKS: usize = BLOCKS / 50;
    let mut chain = SimulatedChain::new();
    let mut stored = Vec::new();
    for version in 0..200 {
        let begin = BLOCKS + version * APPENDED_BLOCKS;
        let save = chain.save(&(begin..begin + APPENDED_BLOCKS).collect(), Hurry::None);
        assert!(save.origins <= ORIGINS_USUAL, "{version}: {}", save.origins);
        stored.push(save.stored as f64 / APPENDED_BLOCKS as f64);
    }
    let mean = |saves: &[f64]| saves.iter().sum::<f64>() / saves.len() as f64;
    assert!(mean(&stored[..20]) <= 1.2, "{}", mean(&stored[..20]));
    assert!(mean(&stored[..100]) <= 2.0, "{}", mean(&stored[..100]));
    assert!(mean(&stored) <= 3.0, "{}", mean(&stored));
}

#[test]
fn the_same_part_that_changes_each_time_is_all_that_is_stored() {
    let figures = simulate(|_, _| (0..BLOCKS / 50).collect(), Hurry::None);
    assert!(figures.largest <= 0.02, "{}", figures.largest);
    assert!(figures.origins <= 2, "{}", figures.origins);
}

#[test]
fn saves_that_have_to_be_in_time_store_nothing_again_until_far_too_much_is_held() {
    let figures = simulate(anywhere(0.05), Hurry::Deadline);
    assert!(figures.origins <= ORIGINS_MAX, "{}", figures.origins);
    assert!(figures.held <= 2.7, "{}", figures.held);
    let mut rng = SmallRng::seed_from_u64(2);
    let mut chain = SimulatedChain::new();
    let mut most = 0;
    for _ in 0..12 {
        let changed = anywhere(0.05)(0, &mut rng);
        let save = chain.save(&changed, Hurry::Last);
        most = most.max(save.stored - changed.len());
    }
    assert_eq!(most, 0);
}

/// An origin of which `found` shards are there and `away` may come back.
fn with_shards(found: usize, away: usize) -> OriginState {
    OriginState {
        held_bytes: 50,
        used_bytes: 40,
        image_bytes: 40,
        found,
        away,
        data: 3,
        is_at_risk: false,
    }
}

#[test]
fn origins_that_lack_shards_are_stored_again() {
    let rest = OriginState {
        held_bytes: 1000,
        used_bytes: 1000,
        image_bytes: 1000,
        ..with_shards(5, 0)
    };
    let of = |found, away, hurry| {
        let states = [rest, with_shards(found, away)];
        plan(&states, 100, hurry).origins[1]
    };
    for hurry in [Hurry::None, Hurry::Deadline, Hurry::Last] {
        assert_eq!(of(2, 3, hurry), Again::All, "it can't be read now");
        assert_eq!(of(5, 0, hurry), Again::No);
        assert_eq!(of(4, 1, hurry), Again::No);
    }
    assert_eq!(of(3, 2, Hurry::None), Again::All, "it is small");
    assert_eq!(of(3, 2, Hurry::Deadline), Again::No);
    let large = OriginState {
        image_bytes: 400,
        used_bytes: 400,
        held_bytes: 400,
        ..with_shards(3, 2)
    };
    let cleaning = plan(&[rest, large], 100, Hurry::None);
    assert_eq!(cleaning.origins[1], Again::No, "hosts may come back");
    assert_eq!(of(3, 0, Hurry::None), Again::All, "within the budget");
    assert_eq!(of(3, 0, Hurry::Deadline), Again::No);
    assert_eq!(of(3, 0, Hurry::Last), Again::No);
}

#[test]
fn what_does_not_fit_the_budget_is_stored_again_in_parts() {
    let short = with_shards(3, 0);
    let large = OriginState {
        used_bytes: 4000,
        held_bytes: 4000,
        image_bytes: 4000,
        ..short
    };
    let cleaning = plan(&[large, short], 100, Hurry::None);
    assert_eq!(cleaning.origins, [Again::ByBudget, Again::All]);
    assert!((60..=300).contains(&cleaning.budget), "{}", cleaning.budget);
}

#[test]
fn an_origin_at_risk_is_stored_again_whatever_its_size_if_there_is_time() {
    let large = OriginState {
        used_bytes: 4000,
        held_bytes: 4000,
        image_bytes: 4000,
        is_at_risk: true,
        ..with_shards(3, 2)
    };
    let of = |hurry| plan(&[with_shards(5, 0), large], 100, hurry).origins;
    assert_eq!(of(Hurry::None), [Again::No, Again::All]);
    assert_eq!(of(Hurry::Deadline), [Again::No, Again::No]);
    assert_eq!(of(Hurry::Last), [Again::No, Again::No]);
}

#[test]
fn no_more_origins_are_named_than_fit() {
    let mut rng = SmallRng::seed_from_u64(3);
    for count in 0..=ORIGINS_MAX + 1 {
        let states: Vec<OriginState> = (0..count)
            .map(|_| {
                let used = rng.random_range(1..1000);
                OriginState {
                    held_bytes: used,
                    used_bytes: used,
                    image_bytes: used,
                    ..with_shards(5, 0)
                }
            })
            .collect();
        for (hurry, most) in [
            (Hurry::None, ORIGINS_USUAL),
            (Hurry::Deadline, ORIGINS_MAX),
            (Hurry::Last, ORIGINS_MAX),
        ] {
            let cleaning = plan(&states, 10, hurry);
            let kept = cleaning.origins.iter().filter(|one| **one != Again::All);
            assert!(kept.count() <= most);
        }
    }
}
