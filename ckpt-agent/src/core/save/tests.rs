use codec::Redundancy;
use protocol::wire::Code;

use super::again::{CROWDED_MS, LOST_RETRIES_MAX, REST_MS, RETRIES_MAX};
use super::*;

const ROW_BYTES: u64 = 10;

/// A session, and what it asked for since the last call of `actions`.
pub(super) struct Rig {
    pub(super) session: SaveSession,
    pub(super) now: Millis,
}

pub(super) fn limits() -> SaveLimits {
    SaveLimits {
        open_ms: 1_000,
        again_ms: 300,
        evidence_ms: 500,
        stall_ms: 2_000,
        sync_ms: 3_000,
        commit_ms: 1_000,
        retain_bytes: 1_000,
    }
}

pub(super) fn plan(data: u8, parity: u8, hosts: usize) -> SavePlan {
    SavePlan {
        redundancy: Redundancy::new(data, parity).unwrap(),
        candidates: (0..hosts).map(HostIndex).collect(),
        silent: Vec::new(),
        draw: 7,
        min_parity: parity,
        deadline: None,
        limits: limits(),
    }
}

fn gone() -> Fault {
    Fault::Gone("reset".into())
}

pub(super) fn refused(code: Code, retry_after_ms: u32) -> Fault {
    Fault::Refused {
        code,
        detail: String::new(),
        retry_after_ms,
    }
}

impl Rig {
    pub(super) fn new(plan: SavePlan) -> Self {
        Self {
            session: SaveSession::new(plan, Millis(0)),
            now: Millis(0),
        }
    }

    pub(super) fn handle(&mut self, event: SaveEvent) -> Vec<SaveAction> {
        self.session.handle(self.now, event);
        self.actions()
    }

    pub(super) fn at(&mut self, now: u64, event: SaveEvent) -> Vec<SaveAction> {
        self.now = Millis(now);
        self.handle(event)
    }

    pub(super) fn actions(&mut self) -> Vec<SaveAction> {
        std::iter::from_fn(|| self.session.poll_action()).collect()
    }

    /// All attempts up to now are accepted, in order.
    pub(super) fn accept(&mut self, attempts: std::ops::Range<u32>) {
        for attempt in attempts {
            self.handle(SaveEvent::Accepted(AttemptId(attempt)));
        }
    }

    pub(super) fn rows(&mut self, rows: std::ops::Range<u64>) -> Vec<SaveAction> {
        rows.flat_map(|row| {
            self.handle(SaveEvent::RowReady {
                row,
                size: RowSize {
                    memory: ROW_BYTES,
                    block: ROW_BYTES / 2,
                },
            })
        })
        .collect()
    }

    pub(super) fn sent(&mut self, attempt: u32, rows: std::ops::Range<u64>) -> Vec<SaveAction> {
        rows.flat_map(|row| self.handle(SaveEvent::Sent(AttemptId(attempt), row)))
            .collect()
    }

    pub(super) fn outcome(&self) -> &SaveOutcome {
        self.session.outcome().expect("the save has not ended")
    }

    /// A save of one row to 1+1 of two hosts that commits only once it is chosen, up to the moment when both
    /// hosts have stored their shards.
    fn choosing() -> (Self, Vec<SaveAction>) {
        let mut rig = Self::new(plan(1, 1, 2));
        rig.session = rig.session.to_be_chosen();
        rig.accept(0..2);
        rig.rows(0..1);
        rig.handle(SaveEvent::InputEnded);
        for attempt in 0..2 {
            rig.sent(attempt, 0..1);
        }
        rig.handle(SaveEvent::Stored(AttemptId(0)));
        let asked = rig.handle(SaveEvent::Stored(AttemptId(1)));
        (rig, asked)
    }

    /// A save of one row to 2+1 of `hosts` hosts, up to the moment when all were sent the manifest.
    pub(super) fn committing(hosts: usize) -> Self {
        let mut rig = Self::new(plan(2, 1, hosts));
        rig.accept(0..3);
        rig.rows(0..1);
        rig.handle(SaveEvent::InputEnded);
        for attempt in 0..3 {
            rig.sent(attempt, 0..1);
            rig.handle(SaveEvent::Stored(AttemptId(attempt)));
        }
        rig
    }
}

pub(super) fn opened(actions: &[SaveAction]) -> Vec<(u8, usize)> {
    let open = |action: &SaveAction| match action {
        SaveAction::Open { shard, host, .. } => Some((shard.number(), host.0)),
        _ => None,
    };
    actions.iter().filter_map(open).collect()
}

fn retracted(actions: &[SaveAction]) -> Vec<usize> {
    let retract = |action: &SaveAction| match action {
        SaveAction::Retract(host) => Some(host.0),
        _ => None,
    };
    actions.iter().filter_map(retract).collect()
}

#[test]
fn the_first_candidates_get_one_shard_each() {
    let mut rig = Rig::new(plan(2, 1, 5));
    assert_eq!(opened(&rig.actions()), [(0, 0), (1, 1), (2, 2)]);
}

#[test]
fn a_host_that_is_named_twice_gets_one_shard() {
    let mut twice = plan(1, 1, 0);
    twice.candidates = vec![HostIndex(4), HostIndex(4), HostIndex(7)];
    let mut rig = Rig::new(twice);
    assert_eq!(opened(&rig.actions()), [(0, 4), (1, 7)]);
}

#[test]
fn without_enough_hosts_nothing_is_asked_to_stay() {
    let mut rig = Rig::new(plan(2, 1, 2));
    assert_eq!(
        *rig.outcome(),
        SaveOutcome::Failed(SaveFailure::NotEnoughHosts {
            placed: 2,
            needed: 3
        })
    );
    assert!(retracted(&rig.actions()).is_empty());
}

#[test]
fn a_host_that_refuses_is_replaced_at_once() {
    let mut rig = Rig::new(plan(2, 1, 4));
    rig.actions();
    let full = SaveEvent::Failed(AttemptId(1), refused(Code::NoSpace, 0));
    assert_eq!(opened(&rig.handle(full)), [(1, 3)]);
    assert_eq!(rig.session.setbacks().len(), 1);
}

#[test]
fn a_host_that_does_not_answer_is_replaced_in_time() {
    let mut rig = Rig::new(plan(2, 1, 4));
    rig.accept(0..2);
    assert_eq!(rig.session.next_deadline(), Some(Millis(1_000)));
    assert_eq!(opened(&rig.at(1_000, SaveEvent::Tick)), [(2, 3)]);
}

#[test]
fn a_spare_is_sent_the_rows_from_the_first_while_they_are_in_memory() {
    let mut rig = Rig::new(plan(2, 1, 4));
    rig.accept(0..3);
    rig.rows(0..3);
    rig.sent(1, 0..2);
    assert_eq!(
        opened(&rig.handle(SaveEvent::Failed(AttemptId(1), gone()))),
        [(1, 3)]
    );
    let sends: Vec<_> = (0..3)
        .map(|row| SaveAction::Send(AttemptId(3), row))
        .collect();
    assert_eq!(rig.handle(SaveEvent::Accepted(AttemptId(3))), sends);
}

#[test]
fn rows_are_released_only_beyond_what_may_be_retained_and_when_all_have_them() {
    let mut small = plan(2, 1, 3);
    small.limits.retain_bytes = 2 * ROW_BYTES;
    let mut rig = Rig::new(small);
    rig.accept(0..3);
    rig.rows(0..4);
    rig.sent(0, 0..4);
    assert!(rig.sent(1, 0..4).is_empty());
    assert_eq!(rig.sent(2, 0..1), [SaveAction::Release(0)]);
    assert_eq!(rig.session.retained_bytes(), 3 * ROW_BYTES);
    assert_eq!(rig.sent(2, 1..4), [SaveAction::Release(1)]);
}

/// A save to 2+1 of 5 hosts with rows released, of which attempt 1 is lost.
fn with_a_late_shard() -> Rig {
    let mut small = plan(2, 1, 5);
    small.limits.retain_bytes = 0;
    let mut rig = Rig::new(small);
    rig.accept(0..3);
    rig.rows(0..1);
    for attempt in 0..3 {
        rig.sent(attempt, 0..1);
    }
    rig.rows(1..2);
    let lost = rig.handle(SaveEvent::Failed(AttemptId(1), gone()));
    assert!(opened(&lost).is_empty(), "no host waits for a rebuild");
    for attempt in [0, 2] {
        rig.sent(attempt, 1..2);
    }
    rig.handle(SaveEvent::InputEnded);
    rig
}

#[test]
fn a_shard_whose_rows_are_gone_is_rebuilt_from_those_that_are_whole() {
    let mut rig = with_a_late_shard();
    assert!(opened(&rig.handle(SaveEvent::Stored(AttemptId(0)))).is_empty());
    let whole = rig.handle(SaveEvent::Stored(AttemptId(2)));
    assert_eq!(opened(&whole), [(1, 3)]);
    let rebuild = rig.handle(SaveEvent::Accepted(AttemptId(3)));
    let shards: Vec<_> = Redundancy::new(2, 1).unwrap().shards().collect();
    assert_eq!(
        rebuild,
        [SaveAction::Rebuild {
            attempt: AttemptId(3),
            sources: vec![(shards[0], HostIndex(0)), (shards[2], HostIndex(2))],
        }]
    );
    let stored = rig.handle(SaveEvent::Stored(AttemptId(3)));
    let commits = [0, 2, 3].map(|id| SaveAction::Commit(AttemptId(id)));
    for commit in commits {
        assert!(stored.contains(&commit), "{stored:?}");
    }
}

#[test]
fn a_rebuild_that_fails_moves_to_the_next_spare() {
    let mut rig = with_a_late_shard();
    rig.handle(SaveEvent::Stored(AttemptId(0)));
    rig.handle(SaveEvent::Stored(AttemptId(2)));
    rig.handle(SaveEvent::Accepted(AttemptId(3)));
    let failed = rig.handle(SaveEvent::Failed(AttemptId(3), gone()));
    assert_eq!(opened(&failed), [(1, 4)]);
    assert_eq!(
        retracted(&failed),
        [3],
        "it may have stored it after all, and nobody counts on it"
    );
}

#[test]
fn a_starved_rebuild_does_not_use_up_its_host() {
    let mut rig = with_a_late_shard();
    rig.handle(SaveEvent::Stored(AttemptId(0)));
    rig.handle(SaveEvent::Stored(AttemptId(2)));
    let mut hosts = vec![3];
    for _ in 0..40 {
        let attempt = AttemptId(rig.session.attempts.len() as u32 - 1);
        rig.handle(SaveEvent::Accepted(attempt));
        let mut actions = rig.handle(SaveEvent::Failed(attempt, Fault::Starved));
        assert!(actions.contains(&SaveAction::Abort(attempt)));
        if let Some(at) = rig.session.next_deadline()
            && opened(&actions).is_empty()
        {
            actions = rig.at(at.0, SaveEvent::Tick);
        }
        if rig.session.outcome().is_some() {
            break;
        }
        hosts.extend(opened(&actions).iter().map(|(_, host)| *host));
    }
    assert!(hosts.iter().filter(|host| **host == 3).count() > 1);
    assert_eq!(
        *rig.outcome(),
        SaveOutcome::Failed(SaveFailure::NotEnoughHosts {
            placed: 2,
            needed: 3
        })
    );
}

#[test]
fn a_save_that_can_not_become_whole_any_more_ends_before_its_input() {
    let mut small = plan(2, 1, 9);
    small.limits.retain_bytes = 0;
    let mut rig = Rig::new(small);
    rig.accept(0..3);
    rig.rows(0..1);
    for attempt in 0..3 {
        rig.sent(attempt, 0..1);
    }
    rig.rows(1..2);
    rig.handle(SaveEvent::Failed(AttemptId(0), gone()));
    assert!(rig.session.outcome().is_none());
    rig.handle(SaveEvent::Failed(AttemptId(1), gone()));
    assert_eq!(
        *rig.outcome(),
        SaveOutcome::Failed(SaveFailure::NotEnoughHosts {
            placed: 1,
            needed: 2
        })
    );
}

#[test]
fn a_host_that_takes_nothing_is_replaced() {
    let mut rig = Rig::new(plan(2, 1, 4));
    rig.accept(0..3);
    rig.rows(0..1);
    rig.sent(0, 0..1);
    rig.sent(1, 0..1);
    assert_eq!(rig.session.next_deadline(), Some(Millis(2_000)));
    let actions = rig.at(2_000, SaveEvent::Tick);
    assert_eq!(actions[0], SaveAction::Abort(AttemptId(2)));
    assert_eq!(opened(&actions), [(2, 3)]);
}

#[test]
fn hosts_do_not_stall_while_there_is_nothing_to_send() {
    let mut rig = Rig::new(plan(2, 1, 4));
    rig.accept(0..3);
    rig.rows(0..1);
    for attempt in 0..3 {
        rig.sent(attempt, 0..1);
    }
    assert_eq!(rig.session.next_deadline(), None);
    assert!(rig.at(1_000_000, SaveEvent::Tick).is_empty());
    rig.rows(1..2);
    assert_eq!(rig.session.next_deadline(), Some(Millis(1_002_000)));
}

/// Rows for 2+1 of `hosts` hosts, of which attempt 2 takes `factor` times as long as the others.
fn with_a_slow_host(hosts: usize, factor: u64) -> (Rig, Vec<SaveAction>) {
    let mut rig = Rig::new(plan(2, 1, hosts));
    rig.accept(0..3);
    rig.actions();
    let mut actions = Vec::new();
    for row in 0..60 {
        actions.extend(rig.rows(row..row + 1));
        rig.now = rig.now.plus(100);
        actions.extend(rig.handle(SaveEvent::Accepted(AttemptId(3))));
        actions.extend(rig.sent(3, 0..row + 1));
        actions.extend(rig.sent(0, row..row + 1));
        actions.extend(rig.sent(1, row..row + 1));
        if (row + 1) % factor == 0 {
            let at = (row + 1) / factor - 1;
            actions.extend(rig.sent(2, at..at + 1));
        }
    }
    (rig, actions)
}

#[test]
fn a_host_at_a_tenth_of_the_others_rate_is_replaced_by_a_spare() {
    let (rig, actions) = with_a_slow_host(4, 10);
    assert_eq!(opened(&actions), [(2, 3)]);
    let (slow, fault) = rig.session.troubles().next().unwrap();
    assert_eq!(slow, HostIndex(2));
    assert!(matches!(fault, Fault::Slow { .. }));
}

/// Host 2 takes one row in the time in which the others take ten, up to `until` rows of theirs.
fn with_a_host_that_seems_slow(hosts: usize, until: u64) -> (Rig, Vec<SaveAction>) {
    let mut small = plan(2, 1, hosts);
    small.limits.retain_bytes = 10 * ROW_BYTES;
    let mut rig = Rig::new(small);
    rig.accept(0..3);
    let mut actions = Vec::new();
    for row in 0..until {
        actions.extend(rig.rows(row..row + 1));
        rig.now = rig.now.plus(10);
        actions.extend(rig.sent(0, row..row + 1));
        actions.extend(rig.sent(1, row..row + 1));
        if row % 10 == 9 {
            actions.extend(rig.sent(2, row / 10..row / 10 + 1));
        }
    }
    (rig, actions)
}

fn is_release(action: &SaveAction) -> bool {
    matches!(action, SaveAction::Release(_))
}

#[test]
fn rows_are_retained_until_it_is_known_whether_their_host_is_slow() {
    let (mut rig, actions) = with_a_host_that_seems_slow(4, 45);
    assert!(!actions.iter().any(is_release), "{actions:?}");
    let known = rig.session.next_deadline().unwrap();
    assert!(known <= rig.now.plus(50), "{known:?} {:?}", rig.now);
    let actions = rig.at(known.0, SaveEvent::Tick);
    assert_eq!(opened(&actions), [(2, 3)]);
    let accepted = rig.handle(SaveEvent::Accepted(AttemptId(3)));
    assert_eq!(accepted[0], SaveAction::Send(AttemptId(3), 0));
}

#[test]
fn a_host_that_stops_is_replaced_soon_though_no_row_waits_for_the_others() {
    let mut patient = plan(2, 1, 4);
    patient.limits.stall_ms = 60_000;
    patient.limits.retain_bytes = u64::MAX;
    let mut rig = Rig::new(patient);
    rig.accept(0..3);
    for row in 0..130 {
        rig.rows(row..row + 1);
        rig.sent(0, row..row + 1);
        rig.sent(1, row..row + 1);
        rig.now = rig.now.plus(5);
        if row < 100 {
            rig.sent(2, row..row + 1);
        }
        rig.now = rig.now.plus(5);
    }
    // Memory is full; host 2 has stopped.
    let replaced = (0..20).find(|_| {
        let at = rig.now.0 + 200;
        !opened(&rig.at(at, SaveEvent::Tick)).is_empty()
    });
    assert!(replaced.is_some_and(|ticks| ticks < 10), "{replaced:?}");
}

#[test]
fn a_host_that_has_caught_up_holds_no_memory() {
    let (mut rig, _) = with_a_host_that_seems_slow(4, 30);
    let actions = rig.sent(2, 3..30);
    assert_eq!(actions.into_iter().filter(is_release).count(), 20);
    // Without a spare, the host can't be replaced.
    let (_, actions) = with_a_host_that_seems_slow(3, 30);
    assert_eq!(actions.into_iter().filter(is_release).count(), 3);
}

#[test]
fn a_slow_host_is_kept_when_there_is_no_spare() {
    let (rig, actions) = with_a_slow_host(3, 10);
    assert!(opened(&actions).is_empty());
    assert!(rig.session.outcome().is_none() && rig.session.setbacks().is_empty());
}

#[test]
fn a_host_at_half_the_others_rate_is_kept() {
    let (rig, actions) = with_a_slow_host(4, 2);
    assert_eq!(rig.session.setbacks(), []);
    assert!(opened(&actions).is_empty());
}

#[test]
fn a_slow_host_is_better_than_none() {
    let (mut rig, _) = with_a_slow_host(4, 10);
    let full = SaveEvent::Failed(AttemptId(3), refused(Code::NoSpace, 0));
    assert_eq!(opened(&rig.handle(full)), [(2, 2)]);
}

#[test]
fn a_lost_host_is_tried_again_when_no_other_is_left() {
    let mut rig = Rig::new(plan(2, 1, 3));
    rig.accept(0..3);
    rig.rows(0..1);
    for tries in 0..LOST_RETRIES_MAX {
        let attempt = AttemptId(rig.session.attempts.len() as u32 - 1);
        let now = rig.handle(SaveEvent::Failed(attempt, gone()));
        assert!(opened(&now).is_empty(), "not at once");
        for other in 0..2 {
            rig.sent(other, 0..1);
        }
        let at = rig.session.next_deadline().unwrap();
        assert_eq!(at, rig.now.plus(REST_MS << tries));
        assert_eq!(opened(&rig.at(at.0, SaveEvent::Tick)), [(2, 2)]);
    }
    let attempt = AttemptId(rig.session.attempts.len() as u32 - 1);
    rig.handle(SaveEvent::Failed(attempt, gone()));
    assert!(matches!(rig.outcome(), SaveOutcome::Failed(_)));
}

#[test]
fn a_host_that_names_a_time_is_asked_again_a_bounded_number_of_times() {
    let mut rig = Rig::new(plan(1, 0, 1));
    for tries in 0..RETRIES_MAX {
        let busy = SaveEvent::Failed(AttemptId(tries), refused(Code::Busy, 10_000));
        rig.handle(busy);
        let at = rig.session.next_deadline().unwrap();
        assert_eq!(at, rig.now.plus(10_000));
        assert_eq!(opened(&rig.at(at.0, SaveEvent::Tick)), [(0, 0)]);
    }
    let last = refused(Code::Busy, 10_000);
    rig.handle(SaveEvent::Failed(AttemptId(RETRIES_MAX), last));
    assert!(matches!(rig.outcome(), SaveOutcome::Failed(_)));
}

#[test]
fn a_host_that_names_a_shorter_time_has_a_rest_nevertheless() {
    let mut rig = Rig::new(plan(1, 1, 2));
    rig.accept(0..1);
    rig.handle(SaveEvent::Failed(AttemptId(1), refused(Code::Busy, 1)));
    assert_eq!(opened(&rig.at(REST_MS - 1, SaveEvent::Tick)), []);
    assert_eq!(opened(&rig.at(REST_MS, SaveEvent::Tick)), [(1, 1)]);
}

#[test]
fn a_host_with_too_many_transfers_is_asked_until_it_has_a_place() {
    let crowded = || refused(Code::Busy, 1_000);
    let mut rig = Rig::new(plan(1, 1, 2));
    rig.accept(0..1);
    let mut tries = 1;
    while rig.now.0 < CROWDED_MS {
        rig.handle(SaveEvent::Failed(AttemptId(tries), crowded()));
        let at = rig.now.0 + 1_000;
        assert_eq!(opened(&rig.at(at, SaveEvent::Tick)), [(1, 1)]);
        tries += 1;
    }
    assert_eq!(rig.session.setbacks().len(), 1, "reported once");
    rig.handle(SaveEvent::Failed(AttemptId(tries), crowded()));
    assert!(matches!(rig.outcome(), SaveOutcome::Failed(_)));

    let mut hurried = plan(1, 1, 2);
    hurried.min_parity = 0;
    let mut rig = Rig::new(hurried);
    rig.accept(0..1);
    rig.rows(0..1);
    rig.handle(SaveEvent::InputEnded);
    rig.sent(0, 0..1);
    rig.handle(SaveEvent::Stored(AttemptId(0)));
    for tries in 0..RETRIES_MAX {
        rig.handle(SaveEvent::Failed(AttemptId(1 + tries), crowded()));
        let at = rig.now.0 + 1_000;
        rig.at(at, SaveEvent::Tick);
    }
    let last = rig.handle(SaveEvent::Failed(AttemptId(1 + RETRIES_MAX), crowded()));
    assert!(last.contains(&SaveAction::Commit(AttemptId(0))), "{last:?}");
}

#[test]
fn no_host_commits_before_all_have_stored() {
    let mut rig = Rig::new(plan(1, 1, 2));
    rig.accept(0..2);
    rig.rows(0..1);
    rig.handle(SaveEvent::InputEnded);
    assert_eq!(rig.sent(0, 0..1), [SaveAction::Finish(AttemptId(0))]);
    assert!(rig.handle(SaveEvent::Stored(AttemptId(0))).is_empty());
    rig.sent(1, 0..1);
    let commits = [0, 1].map(|id| SaveAction::Commit(AttemptId(id)));
    assert_eq!(rig.handle(SaveEvent::Stored(AttemptId(1))), commits);
    rig.handle(SaveEvent::Committed(AttemptId(0)));
    assert!(rig.session.outcome().is_none());
    let end = rig.handle(SaveEvent::Committed(AttemptId(1)));
    assert_eq!(end, [SaveAction::Release(0)]);
    let shards: Vec<_> = Redundancy::new(1, 1).unwrap().shards().collect();
    let holders = vec![(shards[0], HostIndex(0)), (shards[1], HostIndex(1))];
    assert_eq!(*rig.outcome(), SaveOutcome::Committed { holders });
}

#[test]
fn a_save_that_is_to_follow_another_commits_once_it_is_chosen() {
    let (mut rig, asked) = Rig::choosing();
    assert_eq!(asked, [SaveAction::Decide]);
    assert!(rig.handle(SaveEvent::Tick).is_empty(), "it is asked once");
    let commits = [0, 1].map(|id| SaveAction::Commit(AttemptId(id)));
    assert_eq!(rig.handle(SaveEvent::Decided), commits);
    rig.handle(SaveEvent::Committed(AttemptId(0)));
    rig.handle(SaveEvent::Committed(AttemptId(1)));
    assert!(matches!(rig.outcome(), SaveOutcome::Committed { .. }));
    assert!(!rig.session.is_half_done());
}

#[test]
fn a_checkpoint_that_may_have_been_chosen_stays_and_one_that_lost_goes() {
    for (why, stays) in [
        (SaveFailure::TooFewWitnesses, true),
        (SaveFailure::AnotherSuccessor, false),
    ] {
        let (mut rig, _) = Rig::choosing();
        let end = rig.handle(SaveEvent::Undecided(why));
        assert_eq!(*rig.outcome(), SaveOutcome::Failed(why));
        assert_eq!(rig.session.is_half_done(), stays);
        assert_eq!(retracted(&end).is_empty(), stays, "{end:?}");
    }
    let (mut rig, _) = Rig::choosing();
    let end = rig.handle(SaveEvent::Cancel);
    assert!(rig.session.is_half_done() && retracted(&end).is_empty());
    // Before a save is proposed it can't have been chosen.
    let mut rig = Rig::new(plan(1, 1, 2));
    rig.session = rig.session.to_be_chosen();
    rig.accept(0..2);
    rig.handle(SaveEvent::Undecided(SaveFailure::TooFewWitnesses));
    assert!(!rig.session.is_half_done());
}

#[test]
fn a_commit_whose_answer_was_lost_is_sent_again() {
    let mut rig = Rig::committing(3);
    assert!(
        rig.handle(SaveEvent::Failed(AttemptId(1), gone()))
            .is_empty()
    );
    let at = rig.session.next_deadline().unwrap();
    assert_eq!(
        rig.at(at.0, SaveEvent::Tick),
        [SaveAction::Commit(AttemptId(1))]
    );
    for attempt in 0..3 {
        rig.handle(SaveEvent::Committed(AttemptId(attempt)));
    }
    assert!(matches!(rig.outcome(), SaveOutcome::Committed { .. }));
    assert!(rig.session.setbacks().is_empty(), "nobody was replaced");
}

#[test]
fn a_holder_that_is_lost_while_committing_is_replaced() {
    let mut rig = Rig::committing(4);
    rig.handle(SaveEvent::Committed(AttemptId(0)));
    let full = SaveEvent::Failed(AttemptId(1), refused(Code::DiskFailed, 0));
    let actions = rig.handle(full);
    assert_eq!(
        (opened(&actions), retracted(&actions)),
        (vec![(1, 3)], vec![1])
    );
    rig.handle(SaveEvent::Committed(AttemptId(2)));
    assert!(rig.session.outcome().is_none());
    rig.handle(SaveEvent::Accepted(AttemptId(3)));
    rig.sent(3, 0..1);
    let commit = rig.handle(SaveEvent::Stored(AttemptId(3)));
    assert_eq!(commit, [SaveAction::Commit(AttemptId(3))]);
    rig.handle(SaveEvent::Committed(AttemptId(3)));
    assert!(matches!(rig.outcome(), SaveOutcome::Committed { holders } if holders.len() == 3));
}

#[test]
fn a_save_that_fails_while_committing_is_removed_everywhere() {
    let mut rig = Rig::committing(3);
    rig.handle(SaveEvent::Committed(AttemptId(0)));
    let actions = rig.handle(SaveEvent::Failed(AttemptId(2), refused(Code::NoSpace, 0)));
    assert_eq!(retracted(&actions), [2, 0, 1]);
    assert!(matches!(
        rig.outcome(),
        SaveOutcome::Failed(SaveFailure::NotEnoughHosts { .. })
    ));
}

#[test]
fn a_host_that_may_still_hold_a_shard_gets_no_other() {
    let mut rig = Rig::committing(4);
    for _ in 0..COMMITS_MAX {
        rig.handle(SaveEvent::Failed(AttemptId(1), refused(Code::Busy, 5)));
        let at = rig.now.0 + 5;
        rig.at(at, SaveEvent::Tick);
    }
    assert!(rig.session.candidates.iter().all(|c| c.host.0 != 1));
    assert_eq!(rig.session.attempts.last().unwrap().host, HostIndex(3));
}

#[test]
fn fewer_shards_are_committed_only_when_that_was_allowed() {
    let mut lenient = plan(2, 2, 4);
    lenient.min_parity = 1;
    let mut rig = Rig::new(lenient);
    rig.accept(0..4);
    rig.rows(0..1);
    rig.handle(SaveEvent::InputEnded);
    rig.handle(SaveEvent::Failed(AttemptId(3), refused(Code::NoSpace, 0)));
    for attempt in 0..3 {
        rig.sent(attempt, 0..1);
        rig.handle(SaveEvent::Stored(AttemptId(attempt)));
    }
    for attempt in 0..3 {
        rig.handle(SaveEvent::Committed(AttemptId(attempt)));
    }
    assert!(matches!(rig.outcome(), SaveOutcome::Committed { holders } if holders.len() == 3));

    let mut rig = Rig::committing(3);
    rig.handle(SaveEvent::Failed(AttemptId(0), refused(Code::NoSpace, 0)));
    assert!(matches!(rig.outcome(), SaveOutcome::Failed(_)));
}

#[test]
fn the_deadline_leaves_time_to_remove_what_was_stored() {
    let mut hurried = plan(1, 1, 2);
    hurried.deadline = Some(Millis(60_000));
    let mut rig = Rig::new(hurried);
    rig.accept(0..2);
    assert_eq!(rig.session.next_deadline(), Some(Millis(59_000)));
    rig.at(58_999, SaveEvent::Tick);
    assert!(rig.session.outcome().is_none());
    rig.at(59_000, SaveEvent::Tick);
    assert_eq!(*rig.outcome(), SaveOutcome::Failed(SaveFailure::Deadline));
}

#[test]
fn a_commit_that_is_under_way_may_use_all_of_the_deadline() {
    let mut hurried = plan(1, 0, 1);
    hurried.deadline = Some(Millis(60_000));
    let mut rig = Rig::new(hurried);
    rig.accept(0..1);
    rig.rows(0..1);
    rig.handle(SaveEvent::InputEnded);
    rig.sent(0, 0..1);
    rig.at(58_990, SaveEvent::Stored(AttemptId(0)));
    rig.at(59_500, SaveEvent::Tick);
    assert!(rig.session.outcome().is_none());
    rig.at(59_900, SaveEvent::Committed(AttemptId(0)));
    assert!(matches!(rig.outcome(), SaveOutcome::Committed { .. }));
}

#[test]
fn a_version_that_another_save_took_ends_the_save() {
    let mut rig = Rig::new(plan(1, 1, 3));
    let taken = SaveEvent::Failed(AttemptId(0), refused(Code::VersionTaken, 0));
    rig.handle(taken);
    assert_eq!(
        *rig.outcome(),
        SaveOutcome::Failed(SaveFailure::VersionTaken)
    );
}

#[test]
fn a_user_can_end_it_and_all_memory_is_released() {
    for (event, failure) in [
        (SaveEvent::Cancel, SaveFailure::Cancelled),
        (SaveEvent::InputFailed, SaveFailure::InputFailed),
    ] {
        let mut rig = Rig::new(plan(1, 1, 2));
        rig.accept(0..2);
        rig.rows(0..2);
        let actions = rig.handle(event);
        for row in 0..2 {
            assert!(actions.contains(&SaveAction::Release(row)));
            assert!(actions.contains(&SaveAction::Abort(AttemptId(row as u32))));
        }
        assert_eq!(*rig.outcome(), SaveOutcome::Failed(failure));
        assert_eq!(rig.session.next_deadline(), None);
    }
}

#[test]
fn events_of_an_abandoned_attempt_are_ignored() {
    let mut rig = Rig::new(plan(1, 1, 3));
    rig.accept(0..2);
    rig.rows(0..1);
    rig.handle(SaveEvent::Failed(AttemptId(0), gone()));
    for stale in [
        SaveEvent::Accepted(AttemptId(0)),
        SaveEvent::Sent(AttemptId(0), 0),
        SaveEvent::Stored(AttemptId(0)),
        SaveEvent::Committed(AttemptId(0)),
        SaveEvent::Failed(AttemptId(0), gone()),
        SaveEvent::Stored(AttemptId(99)),
    ] {
        assert!(rig.handle(stale).is_empty());
    }
    assert_eq!(rig.session.setbacks().len(), 1);
}
