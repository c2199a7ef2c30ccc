//! How a job stands, moment by moment.

use super::*;
use crate::action::Need;
use crate::status::Why;
use crate::supervisor::standing::Activity;

#[test]
fn a_job_stands_as_the_supervisor_treats_it() {
    let mut desk = Desk::new(asked());
    desk.threaten(3600.0);
    desk.samples(10, 0.1);
    let runs = desk.supervisor.standing();
    assert_eq!((runs.activity, runs.works), (Activity::Runs, true));
    assert!((runs.unsaved_seconds - 10.0).abs() < 1e-9, "{runs:?}");
    let next = desk.supervisor.next_save_ms().unwrap();
    // Halfway there, half of the time is left.
    desk.samples(next / 2000, 0.1);
    let later = desk.supervisor.next_save_ms().unwrap();
    assert!(later.abs_diff(next / 2) < 2000, "{next} {later}");
    let saves = desk.samples(later / 1000 + 2, 0.1);
    assert!(
        saves.contains(&Action::AskForCheckpoint { last: None }),
        "{saves:?}"
    );
    let asked = desk.supervisor.standing();
    assert_eq!(asked.activity, Activity::Saves);
    assert_eq!(desk.supervisor.next_save_ms(), None);
    desk.samples(1, 0.9);
    let stopped_at = Millis(desk.now);
    desk.samples(5, 0.9);
    let stopped = desk.supervisor.standing();
    assert_eq!(stopped.activity, Activity::Stopped(Need::Processors));
    assert_eq!((stopped.since, stopped.works), (Some(stopped_at), false));
    desk.after(500, Event::Signal(15));
    let leaves = desk.supervisor.standing();
    assert_eq!(leaves.activity, Activity::Leaves(Why::Signal(15)));
    assert_eq!(leaves.since, Some(Millis(desk.now)));
}

#[test]
fn time_that_the_machine_slept_is_no_work_and_puts_none_at_risk() {
    let mut desk = Desk::new(asked());
    desk.samples(20, 0.1);
    desk.now += 8 * 3_600_000;
    desk.handle(Event::Slept { ms: 8 * 3_600_000 });
    desk.samples(5, 0.1);
    let standing = desk.supervisor.standing();
    assert!(
        (standing.unsaved_seconds - 25.0).abs() < 1e-9,
        "{standing:?}"
    );
    let accounts = desk.supervisor.accounts();
    assert_eq!(
        (accounts.work_ms, accounts.suspended_ms),
        (25_000, 28_800_000)
    );
}
