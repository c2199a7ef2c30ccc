//! What a supervisor does with jobs as they are: they ignore signals, have no state, or tear it.

use super::*;

/// A job of a small state that ignores SIGTERM, with 30 s of grace: it stands still at the last call.
fn cut_short() -> Desk {
    let mut desk = Desk::new(Settings {
        grace_ms: 30_000,
        costs: small(),
        ..Settings::default()
    });
    desk.samples(100, 0.1);
    assert_eq!(desk.handle(Event::Signal(15)), [Action::SignalJob(15)]);
    // 10 MB at 25 MB/s, twice that with its error, and 2 s to stop the job.
    let last_call = desk.supervisor.next_deadline();
    assert_eq!(last_call, Some(Millis(127_155)));
    assert_eq!(desk.samples(27, 0.1), []);
    assert_eq!(desk.after(155, Event::Tick), [Action::Stop]);
    desk
}

#[test]
fn a_job_that_ignores_sigterm_is_stopped_in_time_and_what_it_has_on_disk_is_saved() {
    let mut desk = cut_short();
    assert_eq!(desk.after(100, Event::FilesAtRest), []);
    let still = Event::Still {
        files_at_rest: true,
    };
    assert_eq!(desk.handle(still), [last(1, 130_000)]);
    assert_eq!(desk.after(1000, ended(1, committed(1))), [Action::Kill]);
    let why = Why::Signal(15);
    let saved = EndedBy::LeftSaved { why, version: 1 };
    assert_eq!(desk.after(100, GONE), [end(saved)]);
}

#[test]
fn a_job_that_is_cut_short_while_it_writes_is_killed_and_its_files_are_judged_then() {
    let still = Event::Still {
        files_at_rest: false,
    };
    let gone = |files| Event::JobEnded {
        status: JobStatus::Signalled(9),
        files,
    };
    let why = Why::Signal(15);
    // Its files were renamed into place meanwhile.
    let mut desk = cut_short();
    assert_eq!(desk.after(100, still.clone()), [Action::Kill]);
    assert_eq!(desk.after(100, gone(FilesAtEnd::Whole)), [last(1, 130_000)]);
    let saved = EndedBy::LeftSaved { why, version: 1 };
    assert_eq!(desk.after(1000, ended(1, committed(1))), [end(saved)]);
    // They may be half written: they are saved, and marked, and the work counts as lost.
    let mut desk = cut_short();
    assert_eq!(desk.after(100, still), [Action::Kill]);
    let torn = Action::StartSave(SaveOrder {
        number: SaveNumber(1),
        kind: SaveKind::Final {
            deadline: Millis(130_000),
            parity: Parity::Full,
        },
        is_torn: true,
    });
    assert_eq!(desk.after(100, gone(FilesAtEnd::Torn)), [torn]);
    let older = EndedBy::LeftOlder {
        why,
        version: Some(1),
    };
    assert_eq!(desk.after(1000, ended(1, committed(1))), [end(older)]);
    assert!(desk.supervisor.accounts().lost_ms > 100_000);
}

#[test]
fn torn_files_of_little_work_are_not_saved() {
    let mut desk = Desk::new(Settings::default());
    desk.samples(50, 0.1);
    desk.handle(Event::Signal(15));
    let status = JobStatus::Signalled(15);
    let files = FilesAtEnd::Torn;
    let why = Why::Signal(15);
    let older = EndedBy::LeftOlder { why, version: None };
    assert_eq!(
        desk.after(100, Event::JobEnded { status, files }),
        [end(older)]
    );
}

#[test]
fn a_job_that_leaves_before_it_has_any_state_is_to_be_started_again() {
    let mut desk = Desk::new(Settings::default());
    desk.samples(5, 0.1);
    desk.handle(Event::Signal(15));
    let status = JobStatus::Signalled(15);
    let files = FilesAtEnd::Missing;
    let why = Why::Signal(15);
    let stateless = EndedBy::LeftStateless { why };
    assert_eq!(
        desk.after(100, Event::JobEnded { status, files }),
        [end(stateless)]
    );
}

#[test]
fn the_owner_s_word_stops_a_job_whatever_its_options() {
    let mut desk = Desk::new(Settings {
        owner: OwnerRule::Watched {
            thresholds: placement::state::Thresholds::new(0.2, 1.0).unwrap(),
            run_if_user_active: true,
        },
        leave_after: LeaveAfter::Never,
        ..Settings::default()
    });
    // With these options no load stops it.
    assert!(!desk.samples(5, 1.0).contains(&Action::Stop));
    let owner = OwnerSample {
        withheld: true,
        ..OwnerSample::default()
    };
    let job = JobUse::default();
    let said = Event::Sample(Sample { owner, job });
    assert_eq!(desk.after(1000, said), [Action::Stop]);
    assert_eq!(desk.samples(6, 0.0), [Action::GoOn]);
}

#[test]
fn a_checkpoint_that_can_t_be_taken_for_a_whole_interval_is_reported_once() {
    let mut desk = Desk::new(Settings::default());
    desk.threaten(300.0);
    let mut reports = Vec::new();
    for _ in 0..600 {
        desk.now += 1000;
        let owner = OwnerSample::default();
        let job = JobUse {
            cpu_ms: desk.now,
            io_bytes: 0,
        };
        let sample = Event::Sample(Sample { owner, job });
        desk.supervisor.handle(Millis(desk.now), sample);
        while let Some(action) = desk.supervisor.poll_action() {
            if let Action::Report(Report::NothingToSave { unsaved_ms }) = action {
                reports.push(unsaved_ms);
            }
        }
    }
    // The interval is some 24 s.
    assert!(
        matches!(reports.as_slice(), [30_000..70_000]),
        "{reports:?}"
    );
}

#[test]
fn while_the_daemon_says_that_no_guest_stays_checkpoints_keep_a_distance() {
    // Too short a grace for a last checkpoint.
    let mut desk = Desk::new(Settings {
        grace_ms: 1000,
        ..asked()
    });
    let step = NonZeroU32::new(60).unwrap();
    let outlook = Outlook {
        presence: SurvivalCurve::exponential(step, 600, 1e-6),
        guest: SurvivalCurve::exponential(step, 600, 10.0),
        taken_at: None,
    };
    desk.handle(Event::Outlook(outlook));
    let asks = Action::AskForCheckpoint { last: None };
    let mut asked = 0;
    for number in 0..600_u64 {
        if desk.samples(1, 0.1).contains(&asks) {
            asked += 1;
            desk.after(100, Event::Job(JobNews::Saved));
            desk.after(200, ended(asked, committed(number + 1)));
        }
    }
    assert!((1..=30).contains(&asked), "{asked} in ten minutes");
}
