//! Which hosts are asked again, and when.

use protocol::wire::Code;

use super::again::{CROWDED_MS, HEARING_MS};
use super::tests::{Rig, limits, opened, plan, refused};
use super::*;

fn too_few_hosts(placed: usize, needed: usize) -> SaveOutcome {
    SaveOutcome::Failed(SaveFailure::NotEnoughHosts { placed, needed })
}

#[test]
fn a_time_that_lies_beyond_a_minute_is_not_waited_for_but_known() {
    let mut rig = Rig::new(plan(2, 1, 3));
    for (attempt, hours) in [(0, 3), (1, 2), (2, 4)] {
        let busy = refused(Code::Busy, hours * 3_600_000);
        rig.at(5, SaveEvent::Failed(AttemptId(attempt), busy));
    }
    assert_eq!(*rig.outcome(), too_few_hosts(0, 3));
    assert_eq!(rig.session.soonest(), Some(Millis(5 + 2 * 3_600_000)));
    let hosts: Vec<usize> = rig.session.troubles().map(|(host, _)| host.0).collect();
    assert_eq!(hosts, [0, 1, 2], "each once, in the order of the grid");
}

/// A save of 3+2 to five hosts, of which the last `silent` did not answer before the save.
fn with_silent_hosts(silent: usize, min_parity: u8, deadline: Option<Millis>) -> Rig {
    let mut plan = plan(3, 2, 5);
    plan.silent = (5 - silent..5).map(HostIndex).collect();
    plan.min_parity = min_parity;
    plan.deadline = deadline;
    let mut rig = Rig::new(plan);
    rig.accept(0..5 - silent as u32);
    rig.actions();
    rig
}

#[test]
fn silence_is_asked_once_more() {
    for silent in [1, 3] {
        let mut rig = with_silent_hosts(silent, 2, None);
        let again = limits().again_ms;
        assert_eq!(rig.session.next_deadline(), Some(Millis(again)));
        rig.at(again, SaveEvent::Tick);
        assert_eq!(*rig.outcome(), too_few_hosts(5 - silent, 5));
        assert_eq!(rig.session.troubles().count(), silent);
    }
    let mut lenient = with_silent_hosts(1, 1, None);
    lenient.rows(0..1);
    lenient.handle(SaveEvent::InputEnded);
    for attempt in 0..4 {
        lenient.sent(attempt, 0..1);
        lenient.handle(SaveEvent::Stored(AttemptId(attempt)));
    }
    let end = lenient.at(limits().again_ms, SaveEvent::Tick);
    assert!(end.contains(&SaveAction::Commit(AttemptId(0))), "{end:?}");
}

#[test]
fn a_host_that_falls_silent_is_asked_once_more_and_at_once() {
    let mut rig = with_silent_hosts(0, 2, None);
    let silent = Fault::Silent(3_000);
    let asked = rig.at(3_000, SaveEvent::Failed(AttemptId(2), silent.clone()));
    assert_eq!(opened(&asked), [(2, 2)], "{asked:?}");
    rig.at(4_200, SaveEvent::Failed(AttemptId(5), silent));
    assert_eq!(*rig.outcome(), too_few_hosts(4, 5));
}

#[test]
fn a_silent_host_to_which_there_is_a_connection_may_take_its_time() {
    let mut rig = with_silent_hosts(1, 2, None);
    rig.at(250, SaveEvent::Reached(AttemptId(4)));
    rig.at(1_200, SaveEvent::Tick);
    assert!(rig.session.outcome().is_none());
    rig.handle(SaveEvent::Accepted(AttemptId(4)));
    assert_eq!(rig.session.troubles().count(), 0);
}

/// Runs a save whose last host never answers, or refuses with `busy`, up to its end. Returns when
/// that host was asked.
fn asked_until_the_end(rig: &mut Rig, busy: Option<u32>) -> Vec<u64> {
    let mut asked = Vec::new();
    let mut attempt = 4;
    while rig.session.outcome().is_none() {
        assert!(asked.len() < 1_000);
        if let Some(ms) = busy {
            rig.handle(SaveEvent::Failed(
                AttemptId(attempt),
                refused(Code::Busy, ms),
            ));
        }
        let Some(at) = rig.session.next_deadline() else {
            break;
        };
        if !opened(&rig.at(at.0, SaveEvent::Tick)).is_empty() {
            asked.push(rig.now.0);
            attempt += 1;
        }
    }
    asked
}

#[test]
fn with_a_deadline_silence_and_refusals_are_asked_again_until_it_ends() {
    for busy in [None, Some(1_000), Some(40_000)] {
        let mut rig = with_silent_hosts(1, 2, Some(Millis(300_000)));
        let asked = asked_until_the_end(&mut rig, busy);
        assert!(asked.last().unwrap() > &230_000, "{busy:?}: {asked:?}");
        assert_eq!(*rig.outcome(), too_few_hosts(4, 5));
        let unused = 299_000 - rig.now.0;
        assert!(unused <= u64::from(busy.unwrap_or(0)), "{busy:?}: {unused}");
        // Another client asks at other times.
        let mut other = with_silent_hosts(1, 2, Some(Millis(300_000)));
        other.session.plan.draw = 8;
        assert_ne!(asked_until_the_end(&mut other, busy), asked);
    }
    // The time that the host names lies beyond the deadline.
    let mut rig = with_silent_hosts(1, 2, Some(Millis(300_000)));
    rig.handle(SaveEvent::Failed(
        AttemptId(4),
        refused(Code::Busy, 400_000),
    ));
    assert!(matches!(rig.outcome(), SaveOutcome::Failed(_)));
    assert_eq!(rig.session.soonest(), Some(Millis(400_000)));
}

#[test]
fn hosts_that_are_missing_at_the_end_of_a_deadline_are_too_few_hosts_and_slow_ones_are_not() {
    // The silent host was asked again and may still answer when the time is over.
    let short = Millis(limits().again_ms / 2);
    let mut rig = with_silent_hosts(1, 2, Some(short));
    rig.at(short.0, SaveEvent::Tick);
    let missing = SaveFailure::NotEnoughHosts {
        placed: 4,
        needed: 5,
    };
    assert_eq!(*rig.outcome(), SaveOutcome::Failed(missing));
    // All hosts answered a moment ago, and one takes long to open its shard.
    let mut plan = plan(3, 2, 5);
    plan.deadline = Some(short);
    let mut rig = Rig::new(plan);
    rig.accept(0..4);
    rig.at(short.0, SaveEvent::Tick);
    let slow = SaveFailure::Deadline;
    assert_eq!(*rig.outcome(), SaveOutcome::Failed(slow));
}

#[test]
fn a_save_that_accepts_fewer_shards_does_not_wait_for_the_deadline() {
    let mut rig = with_silent_hosts(1, 1, Some(Millis(300_000)));
    rig.rows(0..1);
    rig.handle(SaveEvent::InputEnded);
    for attempt in 0..4 {
        rig.sent(attempt, 0..1);
        rig.handle(SaveEvent::Stored(AttemptId(attempt)));
    }
    let end = rig.at(limits().again_ms, SaveEvent::Tick);
    assert!(end.contains(&SaveAction::Commit(AttemptId(3))), "{end:?}");
    // With one host less there are too few: then it does.
    let mut rig = with_silent_hosts(2, 1, Some(Millis(300_000)));
    while rig.now.0 < 299_000 {
        assert!(rig.session.outcome().is_none(), "{:?}", rig.now);
        let at = rig.session.next_deadline().unwrap();
        rig.at(at.0, SaveEvent::Tick);
    }
    assert!(matches!(rig.outcome(), SaveOutcome::Failed(_)));
}

#[test]
fn the_others_are_heard_before_a_save_fails_for_want_of_hosts() {
    let mut rig = Rig::new(plan(2, 1, 3));
    rig.handle(SaveEvent::Failed(AttemptId(0), refused(Code::NoSpace, 0)));
    assert!(rig.session.outcome().is_none(), "two have not answered yet");
    rig.handle(SaveEvent::Failed(AttemptId(1), refused(Code::Forbidden, 0)));
    rig.accept(2..3);
    assert_eq!(*rig.outcome(), too_few_hosts(1, 3));
    // The wait ends soon if one of these hosts answers nothing.
    let mut patient = plan(2, 1, 3);
    patient.limits.open_ms = 15_000;
    let mut rig = Rig::new(patient);
    rig.handle(SaveEvent::Failed(AttemptId(0), refused(Code::NoSpace, 0)));
    assert_eq!(rig.session.next_deadline(), Some(Millis(HEARING_MS)));
    rig.at(HEARING_MS, SaveEvent::Tick);
    assert!(matches!(rig.outcome(), SaveOutcome::Failed(_)));
}

#[test]
fn a_host_that_is_used_in_the_end_has_no_trouble() {
    let mut rig = Rig::new(plan(1, 1, 2));
    rig.accept(0..1);
    rig.handle(SaveEvent::Failed(AttemptId(1), refused(Code::Busy, 1_000)));
    assert_eq!(rig.session.setbacks()[0].again, Some(Millis(1_000)));
    assert_eq!(rig.session.troubles().count(), 1);
    rig.at(1_000, SaveEvent::Tick);
    rig.accept(2..3);
    assert_eq!(rig.session.troubles().count(), 0);
}

#[test]
fn a_save_that_accepts_fewer_shards_waits_for_crowded_hosts_while_it_has_too_few() {
    let mut plan = plan(2, 1, 3);
    plan.min_parity = 0;
    let mut rig = Rig::new(plan);
    rig.accept(0..1);
    rig.handle(SaveEvent::Failed(AttemptId(1), refused(Code::NoSpace, 0)));
    let mut asked = AttemptId(2);
    for _ in 0..10 {
        rig.handle(SaveEvent::Failed(asked, refused(Code::Busy, 1_000)));
        assert!(
            rig.session.outcome().is_none(),
            "{:?}",
            rig.session.outcome()
        );
        let at = rig.session.next_deadline().unwrap();
        rig.at(at.0, SaveEvent::Tick);
        asked = AttemptId(asked.0 + 1);
    }
}

#[test]
fn a_host_that_still_has_an_earlier_transfer_is_asked_again_for_a_bounded_time() {
    let mut rig = Rig::new(plan(1, 0, 1));
    let mut asked = AttemptId(0);
    while rig.now.0 < CROWDED_MS {
        rig.handle(SaveEvent::Failed(asked, refused(Code::Exists, 0)));
        assert!(rig.session.outcome().is_none());
        let at = rig.session.next_deadline().unwrap();
        assert_eq!(opened(&rig.at(at.0, SaveEvent::Tick)), [(0, 0)]);
        asked = AttemptId(asked.0 + 1);
    }
    rig.handle(SaveEvent::Failed(asked, refused(Code::Exists, 0)));
    assert!(rig.session.outcome().is_some());
}

#[test]
fn a_save_whose_user_was_revoked_does_not_wait_for_busy_hosts() {
    let mut plan = plan(2, 1, 3);
    plan.deadline = Some(Millis(60_000));
    let mut rig = Rig::new(plan);
    for (attempt, wait_ms) in [(0, 1_000), (1, 30_000), (2, 30_000)] {
        let busy = refused(Code::Busy, wait_ms);
        rig.handle(SaveEvent::Failed(AttemptId(attempt), busy));
    }
    rig.actions();
    let at = rig.session.next_deadline().unwrap();
    rig.at(at.0, SaveEvent::Tick);
    assert!(at.0 < 2_000 && rig.session.outcome().is_none());
    // The first host has heard that the user was revoked: the others are asked at once.
    rig.handle(SaveEvent::Failed(AttemptId(3), refused(Code::Forbidden, 0)));
    for attempt in [4, 5] {
        let forbidden = refused(Code::Forbidden, 0);
        rig.handle(SaveEvent::Failed(AttemptId(attempt), forbidden));
    }
    assert_eq!(*rig.outcome(), too_few_hosts(0, 3));
}

#[test]
fn a_host_that_shuts_its_client_out_while_it_is_waited_for_is_asked_at_once() {
    let mut rig = Rig::new(plan(2, 1, 3));
    for attempt in 0..3 {
        let busy = refused(Code::Busy, 50_000);
        rig.handle(SaveEvent::Failed(AttemptId(attempt), busy));
    }
    rig.actions();
    assert!(rig.session.waits_for(HostIndex(1)));
    assert_eq!(rig.session.next_deadline(), Some(Millis(50_000)));
    rig.at(3_000, SaveEvent::ShutOut(HostIndex(1)));
    assert!(!rig.session.waits_for(HostIndex(1)) && rig.session.waits_for(HostIndex(2)));
    for attempt in 3..6 {
        let forbidden = refused(Code::Forbidden, 0);
        rig.handle(SaveEvent::Failed(AttemptId(attempt), forbidden));
    }
    assert_eq!(*rig.outcome(), too_few_hosts(0, 3));
}
