//! How far hosts are ahead of the slowest one.

use super::tests::{Rig, plan};
use super::*;

const MIB: u64 = 1 << 20;

/// Has rows of one MiB of each shard come, and returns who was sent which rows.
fn rows(rig: &mut Rig, rows: std::ops::Range<u64>) -> Vec<(u32, u64)> {
    let ready = rows.flat_map(|row| {
        let size = RowSize {
            memory: 3,
            block: MIB,
        };
        rig.handle(SaveEvent::RowReady { row, size })
    });
    given(ready)
}

fn given(actions: impl IntoIterator<Item = SaveAction>) -> Vec<(u32, u64)> {
    let row = |action| match action {
        SaveAction::Send(attempt, row) => Some((attempt.0, row)),
        _ => None,
    };
    actions.into_iter().filter_map(row).collect()
}

#[test]
fn no_host_is_given_rows_far_ahead_of_the_slowest() {
    let mut rig = Rig::new(plan(2, 1, 3));
    rig.accept(0..3);
    let first = rows(&mut rig, 0..20);
    assert_eq!(first.len(), 3 * 4, "four MiB for each of three: {first:?}");
    for fast in 0..2 {
        assert_eq!(given(rig.sent(fast, 0..4)), [], "the third has none");
    }
    // What all have moves by one row.
    assert_eq!(given(rig.sent(2, 0..1)), [(0, 4), (1, 4), (2, 4)]);
    assert!(rig.session.outcome().is_none());
}

#[test]
fn hosts_go_on_when_the_slowest_is_lost() {
    let mut rig = Rig::new(plan(1, 1, 2));
    rig.session.plan.min_parity = 0;
    rig.accept(0..2);
    rows(&mut rig, 0..20);
    assert_eq!(given(rig.sent(0, 0..4)), []);
    let lost = SaveEvent::Failed(AttemptId(1), Fault::Gone("reset".into()));
    assert_eq!(given(rig.handle(lost)), [(0, 4), (0, 5), (0, 6), (0, 7)]);
}

#[test]
fn fast_hosts_may_be_further_ahead_than_slow_ones() {
    let mut rig = Rig::new(plan(1, 1, 2));
    rig.accept(0..2);
    rows(&mut rig, 0..200);
    rig.now = Millis(1_000);
    for row in 0..100 {
        for host in 0..2 {
            rig.sent(host, row..row + 1);
        }
    }
    // 100 MiB in one second: a host may be as many ahead of the slowest.
    let attempts = rig.session.attempts.iter();
    let given: Vec<u64> = attempts.map(|one| one.given).collect();
    assert_eq!(given, [200, 200]);
}

#[test]
fn a_row_that_is_larger_than_the_lead_is_sent() {
    let mut rig = Rig::new(plan(1, 1, 2));
    rig.accept(0..2);
    let size = RowSize {
        memory: 3,
        block: 64 * MIB,
    };
    let sent = rig.handle(SaveEvent::RowReady { row: 0, size });
    assert_eq!(given(sent), [(0, 0), (1, 0)]);
    rig.sent(0, 0..1);
    rig.sent(1, 0..1);
    rig.handle(SaveEvent::InputEnded);
    assert!(rig.session.in_phase(Phase::Finishing).len() == 2);
}
