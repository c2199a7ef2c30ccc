//! What a supervisor does, event by event.

mod ahead;
mod as_they_are;
mod standing;

use std::num::NonZeroU32;

use placement::SurvivalCurve;

use super::*;
use crate::action::{SaveKind, SaveOrder};
use crate::event::{FilesAtEnd, OwnerSample, SaveAhead, SaveNumber, SaveOutcome};
use crate::patience::{Needs, Past};
use crate::settings::{Asking, Costs, OwnerRule, Parity, WhileRead};
use crate::signals::TAKEN;
use crate::status::{EndedBy, Ending, JobStatus};

/// A supervisor with a clock.
struct Desk {
    supervisor: Supervisor,
    now: u64,
}

impl Desk {
    fn new(settings: Settings) -> Self {
        Self {
            supervisor: Supervisor::new(settings, Millis(0)),
            now: 0,
        }
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        self.supervisor.handle(Millis(self.now), event);
        let next = std::iter::from_fn(|| self.supervisor.poll_action());
        next.filter(|action| !matches!(action, Action::Report(_)))
            .collect()
    }

    /// Sends one sample a second for `seconds`, of a job that works. Returns all actions.
    fn samples(&mut self, seconds: u64, load: f64) -> Vec<Action> {
        let mut actions = Vec::new();
        for _ in 0..seconds {
            self.now += 1000;
            let owner = OwnerSample {
                load,
                ..OwnerSample::default()
            };
            let job = JobUse {
                cpu_ms: self.now,
                io_bytes: 0,
            };
            actions.extend(self.handle(Event::Sample(Sample { owner, job })));
        }
        actions
    }

    fn after(&mut self, ms: u64, event: Event) -> Vec<Action> {
        self.now += ms;
        self.handle(event)
    }

    /// An outlook by which the machine goes without warning every `every_seconds` on average.
    fn threaten(&mut self, every_seconds: f64) {
        let step = NonZeroU32::new(60).unwrap();
        let curve = SurvivalCurve::exponential(step, 600, 1.0 / every_seconds);
        let outlook = Outlook {
            presence: curve.clone(),
            guest: curve,
            taken_at: None,
        };
        self.handle(Event::Outlook(outlook));
    }
}

fn asked() -> Settings {
    Settings {
        asking: Asking::Possible,
        ..Settings::default()
    }
}

/// Costs of an image that is stored in less than half a second.
fn small() -> Costs {
    Costs {
        image_bytes: 1e7,
        ..Costs::default()
    }
}

fn committed(version: u64) -> SaveOutcome {
    SaveOutcome::Committed {
        version,
        stored_bytes: 1000,
        new_bytes: Some(1000),
        image_bytes: 10_000,
    }
}

fn ended(number: u32, outcome: SaveOutcome) -> Event {
    Event::SaveEnded {
        number: SaveNumber(number),
        outcome,
    }
}

const GONE: Event = Event::JobEnded {
    status: JobStatus::Signalled(9),
    files: FilesAtEnd::Unchanged,
};

fn regular(number: u32) -> Action {
    Action::StartSave(SaveOrder {
        number: SaveNumber(number),
        kind: SaveKind::Regular,
        is_torn: false,
    })
}

fn last(number: u32, deadline: u64) -> Action {
    Action::StartSave(SaveOrder {
        number: SaveNumber(number),
        kind: SaveKind::Final {
            deadline: Millis(deadline),
            parity: Parity::Full,
        },
        is_torn: false,
    })
}

fn end(ended_by: EndedBy) -> Action {
    Action::End(Ending {
        ended_by,
        job_gone: true,
    })
}

#[test]
fn a_job_steps_back_as_the_owner_comes_and_goes() {
    let mut desk = Desk::new(asked());
    assert_eq!(desk.samples(3, 0.1), []);
    assert_eq!(desk.samples(2, 0.3), [Action::Lower]);
    assert_eq!(desk.samples(1, 0.9), [Action::Stop]);
    assert_eq!(desk.samples(20, 0.9), []);
    // The load has to stay below the threshold for five seconds before the job goes on.
    assert_eq!(desk.samples(3, 0.5), []);
    assert_eq!(desk.samples(1, 0.9), []);
    assert_eq!(desk.samples(5, 0.1), []);
    assert_eq!(desk.samples(1, 0.1), [Action::GoOn]);
    assert_eq!(desk.supervisor.doing(), Doing::Lowest);
    assert_eq!(desk.samples(4, 0.1), []);
    assert_eq!(desk.samples(1, 0.1), [Action::Normal]);
    assert_eq!(desk.supervisor.accounts().suspensions, 1);
    assert_eq!(desk.supervisor.accounts().suspended_ms, 30_000);
    assert_eq!(desk.supervisor.accounts().work_ms, 11_000);
}

#[test]
fn a_job_stopped_for_longer_than_patience_leaves_with_its_state() {
    // The first sample stops the job. The one a minute later lets it write its last checkpoint.
    let mut desk = Desk::new(asked());
    assert_eq!(desk.samples(60, 0.9), [Action::Lower, Action::Stop]);
    let asks = Action::AskForCheckpoint {
        last: Some(Millis(121_000)),
    };
    assert_eq!(desk.samples(1, 0.9), [Action::GoOn, asks]);
    let saves = [Action::Stop, last(1, 121_000)];
    assert_eq!(desk.after(3000, Event::Job(JobNews::Saved)), saves);
    assert_eq!(desk.samples(5, 0.0), []);
    assert_eq!(desk.handle(ended(1, committed(7))), [Action::Kill]);
    let why = Why::Load;
    assert_eq!(
        desk.after(100, GONE),
        [end(EndedBy::LeftSaved { why, version: 7 })]
    );
    let accounts = desk.supervisor.accounts();
    assert_eq!((accounts.lost_ms, accounts.work_ms), (0, 4000));
    assert_eq!(accounts.last.unwrap().took_ms, Some(8000));
}

fn past_of(lengths: &[f64]) -> Past {
    let own = Needs {
        lengths: lengths.to_vec(),
        ..Needs::default()
    };
    Past::new(&own, &Needs::default())
}

#[test]
fn a_past_that_is_heard_later_counts_from_then_on() {
    let mut desk = Desk::new(Settings {
        leave_after: LeaveAfter::Auto(Past::default()),
        moving_ms: 60_000,
        ..asked()
    });
    desk.handle(Event::OwnersPast(past_of(&[1200.0; 9])));
    desk.samples(70, 0.9);
    assert_eq!(desk.supervisor.doing(), Doing::Leaving);
}

#[test]
fn a_first_checkpoint_of_all_that_is_on_disk_is_foreseen() {
    let mut desk = Desk::new(asked());
    desk.handle(Event::SaveAhead(SaveAhead {
        image_bytes: 218_000_000,
        bytes_per_second: Some(20e6),
    }));
    desk.samples(5, 0.0);
    let unsaved = desk.supervisor.unsaved_seconds();
    let expected = desk.supervisor.final_save().seconds(unsaved);
    assert!(expected > 10.0, "{expected}");
}

#[test]
fn patience_can_be_endless_and_can_be_learnt() {
    let mut desk = Desk::new(Settings {
        leave_after: LeaveAfter::Never,
        ..asked()
    });
    desk.samples(5000, 0.9);
    assert_eq!(desk.supervisor.doing(), Doing::Suspended);
    // Owners always needed at most 20 minutes, and a move takes half an hour.
    let past = past_of(&[300.0, 600.0, 1200.0]);
    let mut desk = Desk::new(Settings {
        leave_after: LeaveAfter::Auto(past),
        moving_ms: 1_800_000,
        ..asked()
    });
    desk.samples(1200, 0.9);
    assert_eq!(desk.supervisor.doing(), Doing::Suspended);
    // No longer need is known: the patience is the longest one plus a move, after the first minute.
    desk.samples(1850, 0.9);
    assert_eq!(desk.supervisor.doing(), Doing::Suspended);
    desk.samples(30, 0.9);
    assert_eq!(desk.supervisor.doing(), Doing::Leaving);
}

#[test]
fn a_job_is_not_driven_away_by_a_peak_however_little_patience_pays() {
    // Owners always needed hours, so that waiting never pays.
    let past = past_of(&[9000.0; 9]);
    let mut desk = Desk::new(Settings {
        leave_after: LeaveAfter::Auto(past),
        ..asked()
    });
    desk.samples(59, 0.9);
    assert_eq!(desk.supervisor.doing(), Doing::Suspended);
    desk.samples(6, 0.1);
    assert_eq!(desk.supervisor.doing(), Doing::Lowest);
    desk.samples(62, 0.9);
    assert_eq!(desk.supervisor.doing(), Doing::Leaving);
}

#[test]
fn a_checkpoint_is_asked_for_when_it_pays_and_not_while_the_job_is_busy() {
    let mut desk = Desk::new(Settings {
        costs: Costs {
            standstill_seconds: 2.0,
            ..Costs::default()
        },
        ..asked()
    });
    desk.threaten(40_000.0);
    // Young's interval is 400 s.
    assert_eq!(desk.samples(390, 0.1), []);
    desk.handle(Event::Job(JobNews::Busy));
    assert_eq!(desk.samples(50, 0.1), []);
    let asks = Action::AskForCheckpoint { last: None };
    assert_eq!(desk.handle(Event::Job(JobNews::Ready)), [asks]);
    assert_eq!(desk.samples(100, 0.1), []);
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(1)]);
    assert_eq!(desk.samples(10, 0.1), []);
    assert_eq!(desk.handle(ended(1, committed(1))), []);
    // Work since the image was written counts towards the next checkpoint.
    assert_eq!(desk.supervisor.unsaved_seconds(), 10.0);
    assert_eq!(desk.samples(385, 0.1), []);
    assert!(desk.samples(30, 0.1).contains(&asks));
}

#[test]
fn a_save_that_fails_is_tried_again_later_and_the_job_runs_on() {
    let mut desk = Desk::new(Settings::default());
    desk.threaten(1000.0);
    assert_eq!(desk.samples(100, 0.1), []);
    // The job writes a checkpoint by itself.
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(1)]);
    assert_eq!(desk.handle(ended(1, SaveOutcome::Failed)), []);
    assert_eq!(desk.samples(29, 0.1), []);
    assert_eq!(desk.samples(1, 0.1), [regular(2)]);
    assert_eq!(desk.handle(ended(2, SaveOutcome::Failed)), []);
    // Files that are being changed are not saved.
    desk.handle(Event::FilesMoving);
    assert_eq!(desk.samples(200, 0.1), []);
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(3)]);
    assert_eq!(desk.supervisor.accounts().failed, 2);
}

#[test]
fn a_job_that_leaves_does_not_wait_because_a_save_has_failed_before() {
    let mut desk = Desk::new(asked());
    desk.threaten(1000.0);
    let asks = desk.samples(100, 0.1);
    assert_eq!(asks.len(), 1, "{asks:?}");
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(1)]);
    assert_eq!(desk.handle(ended(1, SaveOutcome::Failed)), []);
    desk.samples(1, 0.1);
    // The failed save would be tried again in 29 s, which is all that `SIGTERM` leaves.
    let leaves = desk.handle(Event::Signal(15));
    assert_ne!(leaves, [], "the last checkpoint is begun at once");
}

#[test]
fn files_that_moved_during_a_save_that_failed_are_not_saved_again() {
    let mut desk = Desk::new(Settings::default());
    desk.threaten(1000.0);
    desk.samples(100, 0.1);
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(1)]);
    desk.handle(Event::FilesMoving);
    assert_eq!(desk.handle(ended(1, SaveOutcome::Failed)), []);
    assert_eq!(desk.samples(200, 0.1), []);
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(2)]);
}

#[test]
fn files_that_are_not_replaced_are_read_while_the_job_stands_still() {
    let mut desk = Desk::new(Settings {
        while_read: WhileRead::Stopped,
        ..Settings::default()
    });
    desk.threaten(1000.0);
    desk.samples(100, 0.1);
    assert_eq!(desk.handle(Event::FilesAtRest), [Action::Stop]);
    let torn = Event::Still {
        files_at_rest: false,
    };
    assert_eq!(desk.after(10, torn), [Action::GoOn]);
    assert_eq!(desk.after(10, Event::FilesAtRest), [Action::Stop]);
    let whole = Event::Still {
        files_at_rest: true,
    };
    assert_eq!(desk.after(10, whole), [regular(1)]);
    // The owner needs the machine meanwhile, so the job stays stopped when the image was read.
    assert_eq!(desk.samples(2, 0.9), [Action::Lower]);
    assert_eq!(desk.handle(Event::ImageTaken(SaveNumber(1))), []);
    assert_eq!(desk.supervisor.accounts().checkpoint_ms, 1020);
    assert_eq!(desk.samples(6, 0.1), [Action::GoOn]);
    assert_eq!(desk.handle(ended(1, committed(3))), []);
}

#[test]
fn a_job_that_cannot_be_asked_gets_sigterm_and_is_saved_when_it_has_ended() {
    let mut desk = Desk::new(Settings {
        restored: Some(4),
        ..Settings::default()
    });
    desk.samples(50, 0.1);
    let why = Why::Signal(15);
    assert_eq!(desk.handle(Event::Signal(15)), [Action::SignalJob(15)]);
    let ended_whole = Event::JobEnded {
        status: JobStatus::Exited(0),
        files: FilesAtEnd::Whole,
    };
    assert_eq!(desk.after(2000, ended_whole), [last(1, 110_000)]);
    assert_eq!(
        desk.after(2000, ended(1, committed(5))),
        [end(EndedBy::LeftSaved { why, version: 5 })]
    );
    // A job that writes no checkpoint leaves the version that it was restored from.
    let mut desk = Desk::new(Settings {
        restored: Some(4),
        ..Settings::default()
    });
    desk.samples(50, 0.1);
    desk.handle(Event::Signal(15));
    let older = EndedBy::LeftOlder {
        why,
        version: Some(4),
    };
    assert_eq!(desk.after(2000, GONE), [end(older)]);
    assert_eq!(desk.supervisor.accounts().lost_ms, 52_000);
}

#[test]
fn a_job_that_does_not_answer_and_has_no_state_is_ended_while_a_save_would_still_be_in_time() {
    let mut desk = Desk::new(asked());
    desk.samples(10, 0.1);
    let why = Why::Spot;
    let notice = Event::Notice {
        why,
        grace_ms: 30_000,
    };
    let asks = Action::AskForCheckpoint {
        last: Some(Millis(40_000)),
    };
    assert_eq!(desk.handle(notice), [asks]);
    // What the save needs is kept back: 256 MiB at 25 MB/s, twice that with its error, and 2 s to stop the job, but
    // three quarters of the grace at most.
    let last_call = Millis(17_500);
    assert_eq!(desk.supervisor.next_deadline(), Some(last_call));
    assert_eq!(desk.samples(7, 0.1), []);
    assert_eq!(desk.after(500, Event::Tick), [Action::Stop]);
    // There is nothing that could be saved.
    let still = Event::Still {
        files_at_rest: true,
    };
    assert_eq!(desk.after(100, still), [Action::Kill]);
    // After the time to kill the supervisor waits for nothing more.
    assert_eq!(desk.after(4999, Event::Tick), []);
    let ending = Ending {
        ended_by: EndedBy::LeftOlder { why, version: None },
        job_gone: false,
    };
    assert_eq!(desk.after(1, Event::Tick), [Action::End(ending)]);
    assert_eq!(desk.after(1, GONE), []);
}

#[test]
fn memory_that_runs_short_drives_the_job_away() {
    let mut desk = Desk::new(asked());
    let owner = OwnerSample {
        memory_short: true,
        ..OwnerSample::default()
    };
    let job = JobUse::default();
    let actions = desk.after(1000, Event::Sample(Sample { owner, job }));
    let asks = Action::AskForCheckpoint {
        last: Some(Millis(61_000)),
    };
    assert_eq!(actions, [Action::Stop, Action::GoOn, asks]);
}

#[test]
fn another_incarnation_ends_the_job_with_77() {
    let mut desk = Desk::new(Settings::default());
    desk.threaten(1000.0);
    desk.samples(100, 0.1);
    desk.handle(Event::FilesAtRest);
    let other = ended(1, SaveOutcome::OtherSuccessor);
    assert_eq!(desk.handle(other), [Action::SignalJob(15)]);
    assert_eq!(desk.after(5000, Event::Tick), [Action::Kill]);
    assert_eq!(desk.after(10, GONE), [end(EndedBy::OtherIncarnation)]);
}

#[test]
fn a_job_without_a_sign_of_life_is_reported_or_given_up() {
    for (on_hang, doing) in [
        (OnHang::Report, Doing::Normal),
        (OnHang::Leave, Doing::Stopping),
    ] {
        let mut desk = Desk::new(Settings {
            on_hang,
            ..Settings::default()
        });
        let job = JobUse::default();
        let owner = OwnerSample::default();
        let mut reports = 0;
        for _ in 0..610 {
            desk.now += 1000;
            let sample = Event::Sample(Sample { owner, job });
            desk.supervisor.handle(Millis(desk.now), sample);
            while let Some(action) = desk.supervisor.poll_action() {
                let quiet_ms = 601_000;
                reports += u32::from(action == Action::Report(Report::Quiet { quiet_ms }));
            }
        }
        assert_eq!((reports, desk.supervisor.doing()), (1, doing));
    }
}

#[test]
fn under_a_batch_system_only_signals_and_the_limit_count() {
    let mut desk = Desk::new(Settings {
        owner: OwnerRule::BatchSystem,
        time_limit: Some(Millis(1_000_000)),
        ..asked()
    });
    assert_eq!(desk.samples(900, 0.99), []);
    // The grace period, the time to kill and a reserve come before the limit.
    assert_eq!(desk.supervisor.next_deadline(), Some(Millis(930_000)));
    let asks = Action::AskForCheckpoint {
        last: Some(Millis(995_000)),
    };
    assert_eq!(desk.samples(30, 0.99), [asks]);
}

#[test]
fn a_notice_that_gives_longer_than_the_time_limit_does_not_outlast_it() {
    // Found by schedule 2310: the job was there after the limit.
    let settings = || Settings {
        time_limit: Some(Millis(100_000)),
        grace_ms: 1000,
        costs: small(),
        ..asked()
    };
    let notice = Event::Notice {
        why: Why::MachineLeaves,
        grace_ms: 40_000,
    };
    let asks = |deadline| Action::AskForCheckpoint {
        last: Some(Millis(deadline)),
    };
    let mut desk = Desk::new(settings());
    desk.samples(80, 0.1);
    // The time to kill comes before the limit.
    assert_eq!(desk.handle(notice.clone()), [asks(95_000)]);
    // Until then it is waited for. The rest is for saving.
    assert_eq!(desk.supervisor.next_deadline(), Some(Millis(92_155)));
    assert_eq!(desk.after(15_000, Event::Tick), [Action::Kill]);
    let ended = desk.after(5000, Event::Tick);
    assert!(matches!(ended[..], [Action::End(_)]), "{ended:?}");
    // A notice that ends before the limit keeps its deadline.
    let mut desk = Desk::new(settings());
    desk.samples(40, 0.1);
    assert_eq!(desk.handle(notice), [asks(80_000)]);
}

#[test]
fn a_job_that_is_ended_for_another_reason_is_gone_by_the_time_limit() {
    let mut desk = Desk::new(Settings {
        time_limit: Some(Millis(100_000)),
        grace_ms: 1000,
        kill_ms: 20_000,
        costs: small(),
        ..Settings::default()
    });
    desk.threaten(100.0);
    desk.samples(60, 0.1);
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(1)]);
    let other = ended(1, SaveOutcome::OtherSuccessor);
    assert_eq!(desk.after(5000, other), [Action::SignalJob(15)]);
    // Without the limit the job would have twenty seconds.
    assert_eq!(desk.after(15_000, Event::Tick), [Action::Kill]);
    let ending = Ending {
        ended_by: EndedBy::OtherIncarnation,
        job_gone: false,
    };
    assert_eq!(desk.after(20_000, Event::Tick), [Action::End(ending)]);
}

#[test]
fn the_save_under_way_when_a_job_ends_by_itself_is_not_waited_for_beyond_the_time_limit() {
    let mut desk = Desk::new(Settings {
        time_limit: Some(Millis(100_000)),
        grace_ms: 1000,
        costs: small(),
        ..Settings::default()
    });
    desk.threaten(100.0);
    desk.samples(80, 0.1);
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(1)]);
    let status = JobStatus::Exited(0);
    let files = FilesAtEnd::Unchanged;
    assert_eq!(desk.after(1000, Event::JobEnded { status, files }), []);
    assert_eq!(desk.supervisor.next_deadline(), Some(Millis(100_000)));
    assert_eq!(
        desk.after(19_000, Event::Tick),
        [Action::CancelSave(SaveNumber(1)), end(EndedBy::Job(status))]
    );
}

#[test]
fn no_save_begins_when_the_time_to_leave_is_over() {
    let mut desk = Desk::new(asked());
    desk.samples(10, 0.1);
    desk.handle(Event::Signal(15));
    // The answer comes together with the deadline.
    let actions = desk.after(60_000, Event::FilesAtRest);
    assert_eq!(actions, [Action::Stop, Action::Kill]);
}

/// Its forecast is that of a patch, and it stores the image whole.
#[test]
fn a_save_that_is_late_makes_room_for_the_final_one() {
    let mut desk = Desk::new(Settings {
        restored: Some(4),
        ..Settings::default()
    });
    desk.threaten(1000.0);
    desk.samples(100, 0.1);
    assert_eq!(desk.handle(Event::FilesAtRest), [regular(1)]);
    desk.samples(20, 0.1);
    let why = Why::Spot;
    let grace_ms = 30_000;
    assert_eq!(desk.handle(Event::Notice { why, grace_ms }), []);
    // It may end within the next seconds, and the final save would still fit behind it.
    assert_eq!(desk.samples(2, 0.1), []);
    assert_eq!(desk.samples(4, 0.1), [Action::CancelSave(SaveNumber(1))]);
    let cancelled = ended(1, SaveOutcome::Failed);
    assert_eq!(desk.after(100, cancelled), [Action::SignalJob(15)]);
    let whole = Event::JobEnded {
        status: JobStatus::Exited(0),
        files: FilesAtEnd::Whole,
    };
    assert_eq!(desk.after(1000, whole), [last(2, 150_000)]);
}

#[test]
fn a_signal_that_is_not_ours_is_passed_on() {
    for signal in [1, 2, 3, 12, 28] {
        let mut desk = Desk::new(asked());
        let passed_on = [Action::SignalJob(signal)];
        assert_eq!(desk.handle(Event::Signal(signal)), passed_on);
    }
}

/// A job that leaves in each of the ways, and has got a SIGTERM, an order to write or nothing so far.
fn leaving_desks() -> Vec<Desk> {
    let leave = |settings: Settings| {
        let mut desk = Desk::new(settings);
        desk.samples(10, 0.1);
        desk.handle(Event::Signal(15));
        desk
    };
    let writes_at_term = leave(Settings::default());
    let writes_when_asked = leave(asked());
    let mut is_saved = leave(asked());
    is_saved.after(100, Event::Job(JobNews::Saved));
    let mut is_ended = leave(asked());
    is_ended.after(100, Event::Job(JobNews::Saved));
    assert_eq!(
        is_ended.after(100, ended(1, committed(1))),
        [Action::Kill],
        "it stops"
    );
    vec![writes_at_term, writes_when_asked, is_saved, is_ended]
}

#[test]
fn no_signal_reaches_a_job_that_leaves() {
    for mut desk in leaving_desks() {
        assert_eq!(desk.supervisor.phase(), Phase::Leave);
        for signal in TAKEN {
            let actions = desk.after(50, Event::Signal(signal));
            assert_eq!(actions, [], "signal {signal}, {:?}", desk.supervisor);
        }
    }
}

#[test]
fn a_job_that_got_hangups_and_interrupts_while_it_left_is_saved() {
    let mut desk = Desk::new(Settings::default());
    desk.samples(50, 0.1);
    assert_eq!(desk.handle(Event::Signal(15)), [Action::SignalJob(15)]);
    for signal in [1, 15, 3, 2, 1, 2] {
        assert_eq!(desk.after(100, Event::Signal(signal)), []);
    }
    let ended_whole = Event::JobEnded {
        status: JobStatus::Exited(0),
        files: FilesAtEnd::Whole,
    };
    assert_eq!(desk.after(400, ended_whole), [last(1, 110_000)]);
    let why = Why::Signal(15);
    assert_eq!(
        desk.after(2000, ended(1, committed(5))),
        [end(EndedBy::LeftSaved { why, version: 5 })]
    );
}

#[test]
fn the_third_interrupt_after_two_warnings_ends_a_job_that_leaves() {
    let mut desk = Desk::new(Settings::default());
    desk.samples(50, 0.1);
    // An interrupt of a job that runs is the job's, and does not count.
    assert_eq!(desk.handle(Event::Signal(2)), [Action::SignalJob(2)]);
    assert_eq!(desk.handle(Event::Signal(15)), [Action::SignalJob(15)]);
    for left in [2, 1] {
        desk.supervisor.handle(Millis(desk.now), Event::Signal(2));
        let warns = Action::Report(Report::Interrupted { left });
        assert_eq!(desk.supervisor.poll_action(), Some(warns));
        assert_eq!(desk.supervisor.poll_action(), None);
    }
    assert_eq!(desk.after(100, Event::Signal(2)), [Action::Kill]);
    let why = Why::Signal(15);
    let older = EndedBy::LeftOlder { why, version: None };
    assert_eq!(desk.after(100, GONE), [end(older)]);
    // There is no action after the end.
    desk.supervisor.handle(Millis(desk.now), Event::Signal(2));
    assert_eq!(desk.supervisor.poll_action(), None);
}

#[test]
fn the_third_interrupt_also_ends_the_save_of_a_job_that_has_ended() {
    let mut desk = Desk::new(Settings::default());
    desk.threaten(1000.0);
    desk.samples(100, 0.1);
    desk.handle(Event::FilesAtRest);
    let status = JobStatus::Exited(3);
    let files = FilesAtEnd::Unchanged;
    assert_eq!(desk.after(10, Event::JobEnded { status, files }), []);
    for _ in 0..3 {
        assert_eq!(desk.after(10, Event::Signal(2)), []);
    }
    let kill_ms = Settings::default().kill_ms;
    assert_eq!(
        desk.after(kill_ms, Event::Tick),
        [Action::CancelSave(SaveNumber(1)), end(EndedBy::Job(status))]
    );
}

#[test]
fn a_foreseen_end_is_prepared_for() {
    let mut desk = Desk::new(asked());
    let none = SurvivalCurve::exponential(NonZeroU32::new(60).unwrap(), 60, 0.0);
    let outlook = Outlook {
        presence: none.clone(),
        guest: none,
        taken_at: Some(Millis(600_000)),
    };
    desk.handle(Event::Outlook(outlook));
    let asks = Action::AskForCheckpoint { last: None };
    assert_eq!(desk.samples(500, 0.1), []);
    assert_eq!(desk.samples(99, 0.1), [asks]);
}

#[test]
fn a_job_that_ended_by_itself_passes_its_status_on_after_the_save_under_way() {
    let mut desk = Desk::new(Settings::default());
    desk.threaten(1000.0);
    desk.samples(100, 0.1);
    desk.handle(Event::FilesAtRest);
    let status = JobStatus::Exited(75);
    let files = FilesAtEnd::Unchanged;
    assert_eq!(desk.after(10, Event::JobEnded { status, files }), []);
    let actions = desk.after(10, ended(1, committed(1)));
    assert_eq!(actions, [end(EndedBy::Job(status))]);
}
