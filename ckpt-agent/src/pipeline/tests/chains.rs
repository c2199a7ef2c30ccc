//! Chains of versions, each of which builds on the ones before.

use super::*;

/// Edits an image as programs do: bytes change in place, are inserted, removed, moved and copied, become zeros, and the
/// image grows and shrinks.
fn live_on(image: &mut Vec<u8>, rng: &mut SmallRng) {
    let len = image.len();
    let part = |rng: &mut SmallRng| {
        let from = rng.random_range(0..len);
        let bytes = 1 << rng.random_range(0..20);
        from..len.min(from + bytes)
    };
    let taken = part(rng);
    match rng.random_range(0..8) {
        0 | 1 => _ = edit(image, rng),
        2 => rng.fill(&mut image[taken]),
        3 => image[taken].fill(0),
        4 => {
            let moved: Vec<u8> = image.drain(taken).collect();
            let to = rng.random_range(0..=image.len());
            drop(image.splice(to..to, moved));
        }
        5 => {
            let copied = image[taken].to_vec();
            image.extend(copied);
        }
        6 => image.truncate((len - taken.len() / 2).max(5 << 20)),
        _ => {
            for _ in 0..9 {
                let at = rng.random_range(0..len);
                image[at] ^= 1;
            }
        }
    }
    image.truncate(9 << 20);
}

/// Saves a chain of versions of an image that is edited, with what is stored again and how many layers there may be
/// drawn at random, and restores each.
fn chain_of(versions: usize, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut now = image(6 * SEGMENT_BYTES + 99, &mut rng);
    let mut all = vec![StoredVersion::of(&now)];
    for version in 1..versions {
        let before = now.clone();
        for _ in 0..rng.random_range(0..4) {
            live_on(&mut now, &mut rng);
        }
        let mut settings = all.last().unwrap().next();
        settings.plan.checkpoint = CheckpointId((version as u128 + 900).to_le_bytes());
        settings.remembered = if rng.random_range(0..3) == 0 { 100 } else { 0 };
        settings.hashes_dir = rng.random_bool(0.5).then(std::env::temp_dir);
        let origins = settings.plan.link.as_ref().unwrap().origins.len();
        let mut again = vec![Again::No; origins];
        for one in &mut again {
            *one = match rng.random_range(0..12) {
                0 => Again::All,
                1 => Again::ByBudget,
                _ => Again::No,
            };
        }
        while again.iter().filter(|one| **one != Again::All).count() > 24 {
            again[rng.random_range(0..origins)] = Again::All;
        }
        settings.cleaning = Cleaning {
            origins: again,
            budget: rng.random_range(0..1 << 20),
            layers_max: rng.random_range(2..16),
        };
        let layers_max = settings.cleaning.layers_max;
        let saved = StoredVersion::with(&now, settings);
        let rows = |segment: &SegmentEntry| {
            let own = usize::from(segment.row().is_some());
            segment.layers().len() + own
        };
        assert!(saved.index.segments.iter().map(rows).max() <= Some(layers_max));
        let others: Vec<&StoredVersion> = all.iter().collect();
        assert!(
            saved.restored(&others) == now,
            "version {version} of seed {seed}"
        );
        if version % 10 == 0 {
            at_hand::compare(&saved, &others, &before, &now, &mut rng);
            Parts::of(&saved, &others).compare(&now, &mut rng);
        }
        all.push(saved);
        // Nothing needs what is no origin of the last version.
        let kept: Vec<_> = all.last().unwrap().summary.needs().collect();
        let last = all.last().unwrap().id();
        all.retain(|one| one.id() == last || kept.iter().any(|need| need.checkpoint == one.id()));
    }
}

#[test]
fn two_hundred_versions_that_build_on_each_other_come_back() {
    chain_of(200, 41);
}

#[test]
fn chains_of_every_kind_come_back() {
    for seed in 0..6 {
        chain_of(30, seed);
    }
}
