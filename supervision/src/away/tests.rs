use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::moving::MISSED_REPORTS_MAX;

const SETTINGS: MoveTimes = MoveTimes {
    report_ms: 1_000,
    retry_ms: 100_000,
    moving_ms: 5_000,
};

fn candidates(names: &[&str]) -> Vec<Candidate> {
    let of = |name: &&str| Candidate::new((*name).to_owned(), 1000.0, 1.0, 0.0, 1000.0);
    names.iter().map(of).collect()
}

fn actions(mover: &mut Mover) -> Vec<Action> {
    std::iter::from_fn(|| mover.poll_action()).collect()
}

fn launch(host: &str, number: u32, mode: LaunchMode) -> Action {
    Action::Launch {
        host: host.to_owned(),
        number,
        mode,
    }
}

/// A mover whose job runs on `a` since `now`.
fn on_a(now: Millis) -> Mover {
    let mut mover = Mover::new(SETTINGS);
    mover.handle(now, Event::Ranked(candidates(&["a", "b"])));
    mover.handle(now, Event::Reported(RunState::Runs(None)));
    let done = actions(&mut mover);
    assert!(
        done.contains(&launch("a", 1, LaunchMode::Start)),
        "{done:?}"
    );
    mover
}

#[test]
fn a_job_that_leaves_goes_on_on_the_next_host_and_its_own_status_ends_it() {
    let mut mover = on_a(Millis(0));
    let left = There::Supervisor { status: 75 };
    mover.handle(Millis(500), Event::Ended(left));
    let done = actions(&mut mover);
    assert_eq!(done.first(), Some(&Action::Close));
    assert_eq!(done.last(), Some(&Action::Rank));
    mover.handle(Millis(600), Event::Ranked(candidates(&["a", "b"])));
    assert_eq!(actions(&mut mover), [launch("b", 2, LaunchMode::Start)]);
    mover.handle(Millis(1_500), Event::Reported(RunState::Runs(None)));
    let runs = Report::Runs {
        host: "b".into(),
        after_ms: Some(1_500),
    };
    assert_eq!(actions(&mut mover), [Action::Report(runs)]);
    // 75 as the job's own status ends it: only the supervisor's 75 is a move.
    mover.handle(Millis(1_600), Event::Ended(There::Job { status: 75 }));
    let end = End::Job {
        status: 75,
        host: Some("b".into()),
    };
    assert_eq!(actions(&mut mover), [Action::Close, Action::End(end)]);
}

#[test]
fn a_job_goes_on_on_the_host_that_was_prepared_unless_another_one_is_better_by_more_than_a_move() {
    let ranked = |expected: &[(&str, f64)]| {
        let of = |(name, seconds): &(&str, f64)| {
            Candidate::new((*name).to_owned(), 1000.0, 1.0, 0.0, *seconds)
        };
        Event::Ranked(expected.iter().map(of).collect())
    };
    for (better_by, goes_on) in [(4.0, "b"), (6.0, "c")] {
        let mut mover = on_a(Millis(0));
        assert_eq!(mover.next_host(), Some("b"));
        mover.prepared(Some("b".to_owned()));
        // A move takes 5 s.
        let left = There::Supervisor { status: 75 };
        mover.handle(Millis(500), Event::Ended(left));
        actions(&mut mover);
        let expected = [("c", 100.0), ("b", 100.0 + better_by), ("a", 1000.0)];
        mover.handle(Millis(600), ranked(&expected));
        assert_eq!(actions(&mut mover), [launch(goes_on, 2, LaunchMode::Start)]);
        let other = if goes_on == "b" { "c" } else { "b" };
        assert_eq!(mover.next_host(), Some(other));
    }
    // Where a host is prepared, a job of unknown length is ranked again, too.
    for prepares in [false, true] {
        let mut mover = on_a(Millis(0)).preparing(prepares);
        mover.handle(
            Millis(SETTINGS.retry_ms),
            Event::Reported(RunState::Runs(None)),
        );
        let ranks = actions(&mut mover).contains(&Action::Rank);
        assert_eq!(ranks, prepares);
    }
    // While no host is free it stays the one that was to be next.
    let mut mover = on_a(Millis(0));
    let rest = Rest {
        seconds: 1000.0,
        left_seconds: None,
    };
    let later = Millis(SETTINGS.retry_ms);
    mover.handle(later, Event::Reported(RunState::Runs(Some(rest))));
    assert_eq!(actions(&mut mover), [Action::Rank]);
    mover.handle(later, ranked(&[("a", 1.0)]));
    assert_eq!(mover.next_host(), Some("b"));
    // One that was to be prepared and is not counts as any other; the present host is never the next one, nor is one
    // that is left alone.
    let mut mover = on_a(Millis(0));
    mover.handle(Millis(500), Event::Ended(There::Vanished));
    mover.handle(Millis(600), ranked(&[("c", 1.0), ("b", 2.0)]));
    assert_eq!(mover.host(), Some(("c", 2)));
    let mut mover = on_a(Millis(0));
    mover.handle(Millis(500), Event::Ended(There::Vanished));
    mover.handle(Millis(600), ranked(&[("a", 1.0), ("b", 2.0)]));
    assert_eq!(mover.host(), Some(("b", 2)));
    assert_eq!(mover.next_host(), None);
}

#[test]
fn a_host_is_lost_after_six_reports_that_did_not_come_and_asked_first_when_another_has_gone_on() {
    let mut mover = on_a(Millis(0));
    // A report that is looked at much too late, because this machine slept, counts once.
    let mut last = 1_000_000;
    for missed in 1..=MISSED_REPORTS_MAX {
        assert_eq!(actions(&mut mover), [], "{missed}");
        mover.handle(Millis(last), Event::Tick);
        last = mover.next_deadline().map_or(last, |due| due.0);
    }
    let done = actions(&mut mover);
    assert_eq!(done.first(), Some(&Action::Close));
    assert!(matches!(
        done.get(1),
        Some(Action::Report(Report::Lost { .. }))
    ));
    mover.handle(Millis(last), Event::Ranked(candidates(&["a", "b"])));
    assert_eq!(actions(&mut mover), [launch("b", 2, LaunchMode::Start)]);
    mover.handle(Millis(last + 1), Event::Reported(RunState::Runs(None)));
    actions(&mut mover);
    let other = There::Supervisor { status: 77 };
    mover.handle(Millis(last + 2), Event::Ended(other));
    assert_eq!(
        actions(&mut mover),
        [Action::Close, launch("a", 1, LaunchMode::Attach)]
    );
}

#[test]
fn a_launcher_that_breaks_off_is_started_again_for_the_same_incarnation() {
    let mut mover = on_a(Millis(0));
    mover.handle(Millis(100), Event::LinkEnded);
    assert_eq!(actions(&mut mover), []);
    let again = mover.next_deadline().unwrap();
    mover.handle(again, Event::Tick);
    assert_eq!(actions(&mut mover), [launch("a", 1, LaunchMode::Attach)]);
    // The job is not there any more.
    mover.handle(again, Event::Ended(There::Vanished));
    assert_eq!(actions(&mut mover).last(), Some(&Action::Rank));
}

#[test]
fn a_restore_that_the_user_interrupts_is_tried_on_no_other_host() {
    for status in [130, 131] {
        let mut mover = Mover::new(SETTINGS);
        mover.handle(Millis(0), Event::Ranked(candidates(&["a", "b"])));
        mover.handle(Millis(0), Event::Reported(RunState::Starting));
        let interrupted = There::Supervisor { status };
        mover.handle(Millis(100), Event::Ended(interrupted));
        let host = "a".to_owned();
        let end = Action::End(End::GivenUp { status, host });
        assert_eq!(actions(&mut mover).last(), Some(&end));
    }
    // The host's own eviction of a restore is none by the user.
    for status in [75, 129] {
        let mut mover = Mover::new(SETTINGS);
        mover.handle(Millis(0), Event::Ranked(candidates(&["a", "b"])));
        mover.handle(Millis(100), Event::Ended(There::Supervisor { status }));
        assert_eq!(actions(&mut mover).last(), Some(&Action::Rank));
    }
}

#[test]
fn a_job_that_hangs_goes_on_on_the_next_host_and_is_given_up_after_the_third_time() {
    let hung = There::Supervisor { status: 78 };
    let mut mover = on_a(Millis(0));
    mover.handle(Millis(100), Event::Ended(hung));
    assert_eq!(actions(&mut mover).last(), Some(&Action::Rank));
    mover.handle(Millis(200), Event::Ranked(candidates(&["a", "b"])));
    assert_eq!(actions(&mut mover), [launch("b", 2, LaunchMode::Start)]);
    // A stay that ends otherwise shows that the job does not always hang.
    mover.handle(Millis(300), Event::Ended(There::Supervisor { status: 75 }));
    let mut last = Vec::new();
    for at in [1_000_000, 2_000_000, 3_000_000] {
        assert_eq!(actions(&mut mover).last(), Some(&Action::Rank), "{at}");
        mover.handle(Millis(at), Event::Ranked(candidates(&["a", "b"])));
        mover.handle(Millis(at), Event::Ended(hung));
        last = mover.actions.iter().cloned().collect();
    }
    let host = "a".to_owned();
    let end = Action::End(End::GivenUp { status: 78, host });
    assert_eq!(last.last(), Some(&end));
    // A user who wants to leave gets what is known of the state.
    let mut mover = on_a(Millis(0));
    mover.handle(Millis(100), Event::Leave);
    mover.handle(Millis(200), Event::Ended(hung));
    let end = Action::End(End::Left { status: 76 });
    assert_eq!(actions(&mut mover).last(), Some(&end));
}

#[test]
fn a_job_that_every_host_refuses_is_not_tried_for_ever() {
    let mut mover = Mover::new(SETTINGS);
    for status in [127, 126] {
        mover.handle(Millis(0), Event::Ranked(candidates(&["a", "b"])));
        let refused = There::Supervisor { status };
        mover.handle(Millis(0), Event::Ended(refused));
    }
    actions(&mut mover);
    mover.handle(Millis(0), Event::Ranked(candidates(&["a", "b"])));
    let end = End::NotStarted { status: 126 };
    assert_eq!(actions(&mut mover), [Action::End(end)]);
}

#[test]
fn back_off_doubles_up_to_the_time_that_is_waited_when_no_host_is_free() {
    let mut mover = Mover::new(SETTINGS);
    let mut now = Millis(0);
    let mut waits = Vec::new();
    for _ in 0..6 {
        mover.handle(now, Event::Ranked(candidates(&["a"])));
        mover.handle(now, Event::Reported(RunState::Runs(None)));
        mover.handle(now, Event::Ended(There::Supervisor { status: 75 }));
        mover.handle(now, Event::Ranked(candidates(&["a"])));
        for action in actions(&mut mover) {
            if let Action::Report(Report::Waits { ms }) = action {
                waits.push(ms);
            }
        }
        now = mover.next_deadline().unwrap();
        mover.handle(now, Event::Tick);
    }
    assert_eq!(waits, [10_000, 20_000, 40_000, 80_000, 100_000, 100_000]);
    mover.handle(now, Event::Ranked(Vec::new()));
    let waits = Action::Report(Report::Waits { ms: 100_000 });
    assert_eq!(actions(&mut mover).last(), Some(&waits));
}

#[test]
fn a_job_goes_where_it_ends_much_earlier_once_it_has_settled() {
    let rest = |seconds, left_seconds| {
        Event::Reported(RunState::Runs(Some(Rest {
            seconds,
            left_seconds,
        })))
    };
    // Elsewhere it takes 1000 s, and the cost of the move.
    for (seconds, left, goes) in [
        (1400.0, None, false),
        (1500.0, None, true),
        (1100.0, Some(1050.0), true),
        (1100.0, Some(1001.0), false),
        (1100.0, Some(1200.0), false),
    ] {
        let mut mover = on_a(Millis(0));
        let mut now = Millis(0);
        let mut asked = None;
        while now < Millis(900_000) {
            now = now.plus(SETTINGS.report_ms / 2);
            mover.handle(now, rest(seconds, left));
            for action in actions(&mut mover) {
                match action {
                    Action::Rank => mover.handle(now, Event::Ranked(candidates(&["a", "b"]))),
                    Action::AskToLeave => asked = asked.or(Some(now)),
                    _ => {}
                }
            }
        }
        assert_eq!(asked.is_some(), goes, "{seconds} {left:?}");
        // A tenth of what is left of it.
        let settled = Millis((seconds * 100.0) as u64);
        assert!(asked.is_none_or(|at| at >= settled), "{asked:?}");
        assert!(asked.is_none_or(|at| at < Millis(600_000)), "{asked:?}");
    }
}

#[test]
fn a_user_who_wants_to_leave_leaves_wherever_the_job_is() {
    let left = |status| Action::End(End::Left { status });
    let mut waiting = Mover::new(SETTINGS);
    waiting.handle(Millis(0), Event::Leave);
    assert_eq!(actions(&mut waiting).last(), Some(&left(75)));
    let mut running = on_a(Millis(0));
    running.handle(Millis(1), Event::Leave);
    running.handle(Millis(2), Event::Leave);
    assert_eq!(actions(&mut running), [Action::AskToLeave]);
    running.handle(Millis(3), Event::Ended(There::Supervisor { status: 76 }));
    assert_eq!(actions(&mut running).last(), Some(&left(76)));
    let mut lost = on_a(Millis(0));
    lost.handle(Millis(1), Event::Leave);
    while let Some(due) = lost.next_deadline() {
        lost.handle(due, Event::Tick);
    }
    assert_eq!(actions(&mut lost).last(), Some(&left(76)));
}

#[test]
fn a_load_of_a_half_is_one_process_beside_the_job() {
    let one = Candidate::new("a".into(), 100.0, 2.0, 0.5, 1.0);
    assert_eq!((one.cpu_seconds, one.load), (50.0, 1.0));
    let none = Candidate::new("a".into(), 100.0, 0.0, 1.0, 1.0);
    assert!(none.load.is_finite() && none.cpu_seconds > 0.0);
}

/// What may happen to a mover apart from the answers to its actions.
#[derive(Clone, Debug)]
enum Chance {
    Passes(u64),
    Runs(Option<Rest>),
    Starts,
    Ends(There),
    Breaks,
    Leaves,
}

fn chance() -> impl Strategy<Value = Chance> {
    let there = prop_oneof![
        any::<u8>().prop_map(|status| There::Job { status }),
        prop::sample::select(vec![5, 75, 75, 75, 76, 77, 77, 78, 125, 127])
            .prop_map(|status| There::Supervisor { status }),
        Just(There::Vanished),
    ];
    let rest =
        (1.0..1e5f64, prop::option::of(-1e3..1e5f64)).prop_map(|(seconds, left_seconds)| Rest {
            seconds,
            left_seconds,
        });
    prop_oneof![
        6 => (0..1_500_u64).prop_map(Chance::Passes),
        1 => (0..400_000_u64).prop_map(Chance::Passes),
        6 => prop::option::of(rest).prop_map(Chance::Runs),
        2 => Just(Chance::Starts),
        3 => there.prop_map(Chance::Ends),
        3 => Just(Chance::Breaks),
        1 => Just(Chance::Leaves),
    ]
}

/// A world that does what a mover wants, and checks that the mover keeps its promises.
struct World {
    mover: Mover,
    now: Millis,
    /// The launcher that runs: host and incarnation.
    link: Option<(String, u32)>,
    ended: bool,
    ranking: bool,
    heard_at: Millis,
    failed: BTreeMap<String, Millis>,
    newest: u32,
    running_since: Option<Millis>,
    /// A tenth of what was last reported to be left of the job, milliseconds.
    settles_ms: Option<u64>,
}

impl World {
    fn act(&mut self, names: &[&str]) {
        while let Some(action) = self.mover.poll_action() {
            assert!(!self.ended, "{action:?} after the end");
            match action {
                Action::Rank => {
                    assert!(!self.ranking, "two rankings at a time");
                    self.ranking = true;
                }
                Action::Launch { host, number, mode } => {
                    assert_eq!(self.link, None, "two launchers at a time");
                    if mode == LaunchMode::Attach {
                        assert!(number <= self.newest);
                    } else {
                        assert_eq!(number, self.newest + 1);
                        self.newest = number;
                        self.heard_at = self.now;
                        let free = self.failed.get(&host).copied().unwrap_or_default();
                        assert!(free <= self.now, "{host} is left alone until {free:?}");
                    }
                    self.link = Some((host, number));
                }
                Action::Close => assert!(self.link.take().is_some(), "nothing to close"),
                Action::AskToLeave => assert!(self.link.is_some(), "nobody to ask"),
                Action::Report(Report::Lost { host, back_off_ms }) => {
                    let silent = self.now.since(self.heard_at);
                    assert!(silent >= 6 * SETTINGS.report_ms, "lost after {silent} ms");
                    self.failed.insert(host, self.now.plus(back_off_ms));
                }
                Action::Report(Report::Failed { host, back_off_ms }) => {
                    assert!((1..=SETTINGS.retry_ms).contains(&back_off_ms));
                    self.failed.insert(host, self.now.plus(back_off_ms));
                }
                Action::Report(Report::Better { there, .. }) => {
                    let since = self.now.since(self.running_since.unwrap());
                    let least = self.settles_ms.unwrap_or_default();
                    assert!(since >= least.min(600_000), "moved after {since} ms");
                    assert!(names.contains(&there.as_str()));
                }
                Action::Report(Report::Runs { .. }) => self.running_since = Some(self.now),
                Action::Report(Report::Waits { ms }) => {
                    assert!((1..=SETTINGS.retry_ms).contains(&ms));
                }
                Action::End(_) => self.ended = true,
            }
        }
        if !self.ended && !self.ranking {
            assert!(self.mover.next_deadline().is_some(), "it sleeps for ever");
        }
    }

    fn happens(&mut self, chance: &Chance, names: &[&str]) {
        let event = match chance {
            Chance::Passes(ms) => {
                // Stops at each deadline, as a real shell does.
                let end = self.now.plus(*ms);
                while let Some(at) = self.mover.next_deadline().filter(|at| *at <= end) {
                    assert!(at > self.now || self.ranking, "no time passes");
                    self.now = self.now.max(at);
                    self.mover.handle(self.now, Event::Tick);
                    self.act(names);
                    if self.ranking {
                        self.rank(names);
                    }
                }
                self.now = end;
                Event::Tick
            }
            Chance::Leaves => Event::Leave,
            _ if self.link.is_none() => return,
            Chance::Runs(rest) => {
                self.heard_at = self.now;
                self.settles_ms = rest.map(|rest| (rest.seconds * 100.0) as u64);
                Event::Reported(RunState::Runs(*rest))
            }
            Chance::Starts => {
                self.heard_at = self.now;
                Event::Reported(RunState::Starting)
            }
            Chance::Ends(there) => Event::Ended(*there),
            Chance::Breaks => {
                self.link = None;
                Event::LinkEnded
            }
        };
        self.mover.handle(self.now, event);
        self.act(names);
    }

    fn rank(&mut self, names: &[&str]) {
        self.ranking = false;
        self.mover
            .handle(self.now, Event::Ranked(candidates(names)));
        self.act(names);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn whatever_happens_there_is_one_launcher_and_an_end(
        chances in prop::collection::vec(chance(), 1..120),
        hosts in 0..4_usize,
    ) {
        let names = &["a", "b", "c", "d"][..hosts];
        let mut world = World {
            mover: Mover::new(SETTINGS),
            now: Millis(0),
            link: None,
            ended: false,
            ranking: false,
            heard_at: Millis(0),
            failed: BTreeMap::new(),
            newest: 0,
            running_since: None,
            settles_ms: None,
        };
        world.act(names);
        for chance in &chances {
            if world.ranking {
                world.rank(names);
            }
            world.happens(chance, names);
            if world.ended {
                return Ok(());
            }
        }
        // A user who wants to leave gets an end, at the latest when the host has been silent for too
        // long.
        if world.ranking {
            world.rank(names);
        }
        world.happens(&Chance::Leaves, names);
        if !world.ended {
            world.happens(&Chance::Passes(7 * SETTINGS.report_ms), names);
        }
        prop_assert!(world.ended, "{:?}", world.mover);
    }
}
