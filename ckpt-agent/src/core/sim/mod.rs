//! Both sessions against simulated hosts: thousands of random schedules of faults in a second.
//!
//! A schedule follows from its seed alone. `CKPT_SEED=n cargo test -p ckpt-agent sim` runs one and prints
//! its events; `CKPT_SCHEDULES=n` sets how many are run.

mod restore;
mod save;

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Millis;

/// Events by time; events at the same time come in the order in which they were planned.
#[derive(Debug)]
struct Agenda<E> {
    events: BTreeMap<(Millis, u64), E>,
    count: u64,
}

impl<E> Agenda<E> {
    const fn new() -> Self {
        Self {
            events: BTreeMap::new(),
            count: 0,
        }
    }

    fn plan(&mut self, at: Millis, event: E) {
        self.count += 1;
        self.events.insert((at, self.count), event);
    }

    fn next_time(&self) -> Option<Millis> {
        self.events.keys().next().map(|(at, _)| *at)
    }

    fn next(&mut self) -> Option<(Millis, E)> {
        let ((at, _), event) = self.events.pop_first()?;
        Some((at, event))
    }
}

/// Whether this run prints its events.
fn is_traced() -> bool {
    std::env::var_os("CKPT_SEED").is_some()
}

macro_rules! trace {
    ($($arg:tt)*) => { if super::is_traced() { eprintln!($($arg)*); } };
}
use trace;

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn an_acknowledged_checkpoint_is_restored_after_any_faults() {
    let schedules = env_number("CKPT_SCHEDULES").unwrap_or(10_000);
    let (first, count) = match env_number("CKPT_SEED") {
        Some(seed) => (seed, 1),
        None => (rand::rng().random_range(0..u64::MAX - schedules), schedules),
    };
    eprintln!("{count} schedules from seed {first}");
    let mut tally = BTreeMap::<String, u64>::new();
    for seed in first..first + count {
        let ran = std::panic::catch_unwind(|| run(seed));
        match ran {
            Ok(ends) => {
                for end in ends {
                    *tally.entry(end).or_default() += 1;
                }
            }
            Err(_) => panic!("repeat with: CKPT_SEED={seed} cargo test -p ckpt-agent sim"),
        }
    }
    eprintln!("{tally:?}");
    if count >= 1000 {
        for end in [
            "committed",
            "restored",
            "NotEnoughHosts",
            "Deadline",
            "Cancelled",
        ] {
            assert!(
                tally.contains_key(end),
                "no schedule ended with {end}: {tally:?}"
            );
        }
    }
}

/// Runs one schedule: a save, and restores of what it left.
fn run(seed: u64) -> Vec<String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut grid = save::Grid::random(&mut rng);
    let mut ends = vec![grid.save(&mut rng)];
    if let Some(saved) = grid.acknowledged() {
        ends.push(restore::restore_after_losses(&saved, &mut rng));
    }
    ends
}
