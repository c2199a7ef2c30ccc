//! Checkpoints ahead of an end that nobody has announced.

use super::*;
use crate::event::JobNews;

fn ahead(asking: Asking) -> Settings {
    Settings {
        asking,
        spend: 0.4,
        restored: Some(1),
        costs: small(),
        ..Settings::default()
    }
}

#[test]
fn a_safe_machine_s_job_is_saved_ahead_and_the_line_is_left_to_others_for_a_while() {
    let mut desk = Desk::new(ahead(Asking::Never));
    desk.handle(Event::Job(JobNews::Saved));
    assert_eq!(desk.samples(19, 0.1), []);
    assert_eq!(desk.samples(2, 0.1), [regular(1)]);
    // 20 s of a line of which 40% may be spent.
    desk.after(20_000, ended(1, committed(2)));
    desk.handle(Event::Job(JobNews::Saved));
    assert_eq!(desk.samples(28, 0.1), []);
    assert_eq!(desk.samples(4, 0.1), [regular(2)]);
}

#[test]
fn what_a_job_that_began_with_little_stores_first_does_not_count_against_its_share_of_the_line() {
    let grown_to = |image_bytes| SaveOutcome::Committed {
        version: 2,
        stored_bytes: image_bytes,
        new_bytes: Some(image_bytes),
        image_bytes,
    };
    for begins_with in [0, 50 << 20, 51 << 20] {
        let mut desk = Desk::new(Settings {
            restored_bytes: Some(begins_with),
            ..ahead(Asking::Never)
        });
        desk.handle(Event::SaveAhead(SaveAhead {
            image_bytes: 100 << 20,
            ..SaveAhead::default()
        }));
        desk.handle(Event::Job(JobNews::Saved));
        assert_eq!(desk.samples(21, 0.1), [regular(1)]);
        desk.after(20_000, ended(1, grown_to(100 << 20)));
        // The job has worked for 20 s meanwhile.
        let mut next = desk.handle(Event::Job(JobNews::Saved));
        let mut number = 2;
        if begins_with <= 50 << 20 {
            // Nor does what has changed meanwhile.
            assert_eq!(next, [regular(2)]);
            desk.after(20_000, ended(2, grown_to(100 << 20)));
            assert_eq!(desk.handle(Event::Job(JobNews::Saved)), [regular(3)]);
            desk.after(20_000, ended(3, grown_to(100 << 20)));
            next = desk.handle(Event::Job(JobNews::Saved));
            number = 4;
        }
        assert_eq!(next, []);
        assert_eq!(desk.samples(28, 0.1), []);
        assert_eq!(desk.samples(4, 0.1), [regular(number)]);
    }
}

#[test]
fn a_job_that_is_held_until_its_first_version_is_stored_is_saved_again_to_see_what_later_ones_take()
{
    let mut desk = Desk::new(Settings {
        restored: None,
        while_read: WhileRead::Stopped,
        ..ahead(Asking::Never)
    });
    for (number, held_ms, counted) in [(1, 70_000, 0.0), (2, 1_000, 1.0)] {
        // Had the 70 s counted, it would not be saved ahead for an hour.
        assert_eq!(desk.samples(21, 0.1), []);
        assert_eq!(desk.handle(Event::Job(JobNews::Saved)), [Action::Stop]);
        let whole = Event::Still {
            files_at_rest: true,
        };
        assert_eq!(desk.handle(whole), [regular(number)]);
        let read = desk.after(held_ms, Event::ImageTaken(SaveNumber(number)));
        assert_eq!(read, [Action::GoOn]);
        desk.handle(ended(number, committed(number.into())));
        assert_eq!(desk.supervisor.costs.held(), counted);
    }
}

#[test]
fn a_first_save_that_held_the_job_and_failed_is_not_tried_as_if_it_cost_nothing() {
    let mut desk = Desk::new(Settings {
        restored: None,
        while_read: WhileRead::Stopped,
        ..ahead(Asking::Never)
    });
    assert_eq!(desk.samples(21, 0.1), []);
    assert_eq!(desk.handle(Event::Job(JobNews::Saved)), [Action::Stop]);
    let whole = Event::Still {
        files_at_rest: true,
    };
    assert_eq!(desk.handle(whole), [regular(1)]);
    desk.after(600_000, Event::ImageTaken(SaveNumber(1)));
    desk.handle(ended(1, SaveOutcome::Failed));
    assert_eq!(desk.supervisor.costs.held(), 600.0);
}

#[test]
fn without_a_share_of_the_line_a_safe_machine_s_job_is_not_saved() {
    let mut desk = Desk::new(Settings {
        spend: 0.0,
        ..ahead(Asking::Never)
    });
    desk.handle(Event::Job(JobNews::Saved));
    assert_eq!(desk.samples(600, 0.1), []);
    assert_eq!(desk.supervisor.next_save_ms(), None);
}

#[test]
fn a_job_that_has_to_be_asked_is_disturbed_for_a_fiftieth_of_its_time_at_most() {
    let mut desk = Desk::new(ahead(Asking::Possible));
    // It is assumed to need 2 s to write its state.
    assert_eq!(desk.samples(99, 0.1), []);
    assert_eq!(
        desk.samples(2, 0.1),
        [Action::AskForCheckpoint { last: None }]
    );
}

#[test]
fn a_job_that_writes_its_state_rarely_lacks_nothing() {
    let mut desk = Desk::new(ahead(Asking::Never));
    for _ in 0..600 {
        desk.now += 1000;
        desk.supervisor.handle(Millis(desk.now), Event::Tick);
        assert_eq!(desk.supervisor.poll_action(), None);
    }
}
