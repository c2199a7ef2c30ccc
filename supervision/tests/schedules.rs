//! Random schedules: a simulated machine with its owner, a job and storage hosts, with faults at any
//! moment. The model checks the promises of the supervisor from outside.

mod model;

use model::{Fate, play};

/// Schedules of a normal test run.
const SCHEDULES: u64 = 6000;
/// Schedules of the test that is ignored by default: two minutes.
const MANY_SCHEDULES: u64 = 100_000;

fn play_all(seeds: std::ops::Range<u64>) -> Vec<Fate> {
    seeds.map(play).collect()
}

/// Checks that the generator gets jobs into all kinds of trouble: otherwise any supervisor would pass.
fn judge(fates: &[Fate]) {
    let share = |of: fn(&Fate) -> bool| {
        let count = fates.iter().filter(|fate| of(fate)).count();
        count as f64 / fates.len() as f64
    };
    let shares = [
        ("left with its state", share(|fate| fate.status == 75), 0.15),
        ("left without", share(|fate| fate.status == 76), 0.03),
        ("another went on", share(|fate| fate.status == 77), 0.01),
        ("hung", share(|fate| fate.status == 78), 0.002),
        ("ended by itself", share(|fate| fate.by_itself), 0.1),
        ("outlived its end", share(|fate| !fate.job_gone), 0.001),
        ("was suspended", share(|fate| fate.suspensions > 0), 0.2),
        ("had a save fail", share(|fate| fate.failed > 0), 0.1),
        (
            "had saves committed",
            share(|fate| fate.committed > 1),
            0.15,
        ),
        ("had a deadline cut short", share(|fate| fate.hurried), 0.01),
    ];
    for (what, share, least) in shares {
        println!("{what}: {:.2}% of the schedules", 100.0 * share);
        assert!(share > least, "{what}: too few, {share}");
    }
}

#[test]
fn no_schedule_breaks_a_promise() {
    judge(&play_all(0..SCHEDULES));
}

#[test]
#[ignore = "two minutes of work"]
fn no_schedule_of_very_many_breaks_a_promise() {
    judge(&play_all(0..MANY_SCHEDULES));
}
