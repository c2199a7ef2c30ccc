//! A simulated world around a supervisor, which checks that the supervisor keeps its promises.

mod job;
mod settings;

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use placement::SurvivalCurve;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use supervision::{
    Action, Asking, Doing, EndedBy, Ending, Event, FilesAtEnd, JobNews, JobStatus, JobUse, Millis,
    Outlook, OwnerRule, OwnerSample, Report, Sample, SaveKind, SaveNumber, SaveOrder, SaveOutcome,
    Settings, Supervisor, WhileRead, Why,
};

use job::Job;

/// Longest time between a finished checkpoint on disk and the event for it, milliseconds.
const SEEN_MS: u64 = 2000;
/// Length of one step of the simulation, milliseconds.
const STEP_MS: u64 = 100;
/// A schedule that has not ended by this time is stuck, milliseconds.
const LONGEST_MS: u64 = 4 * 3600 * 1000;

/// Step of the forecasts, seconds.
const CURVE_STEP: NonZeroU32 = NonZeroU32::new(60).unwrap();

/// How a schedule ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fate {
    pub(crate) status: u8,
    pub(crate) by_itself: bool,
    pub(crate) job_gone: bool,
    pub(crate) suspensions: u64,
    pub(crate) committed: u64,
    pub(crate) failed: u64,
    pub(crate) hurried: bool,
}

/// A save under way.
struct Save {
    order: SaveOrder,
    /// Work that the image holds; `None` for a dump until its image is taken.
    content: Option<u64>,
    read_at: u64,
    ends_at: u64,
    outcome: SaveOutcome,
    read: bool,
}

struct World {
    seed: u64,
    rng: SmallRng,
    settings: Settings,
    supervisor: Supervisor,
    now: u64,
    job: Job,
    save: Option<Save>,
    /// Work in each committed version.
    store: BTreeMap<u64, u64>,
    version: u64,
    owner: OwnerSample,
    owner_changes_at: u64,
    next_sample: u64,
    /// The owner needed the machine at the last sample.
    owner_needs: bool,
    /// The job was asked for its last checkpoint and has not written it.
    request_open: bool,
    asked: bool,
    /// The job was stopped in the middle of a checkpoint, and has to finish it.
    finishes: bool,
    busy: bool,
    /// Versions that were saved although their files were torn.
    torn: BTreeSet<u64>,
    /// How much time the job had when it began to leave, if no save was under way then, milliseconds.
    left_with_ms: Option<u64>,
    /// A last save was begun.
    tried_last: bool,
    interrupts: u32,
    /// When everything has to be over, without the time to kill.
    gone_by: Option<u64>,
    hurried: bool,
    killed: bool,
    other_went_on: bool,
    still_at: Option<u64>,
    seen_at: Option<u64>,
    ended: Option<Ending>,
    job_status: Option<JobStatus>,
    /// What befalls the job or the machine, and when.
    plan: Vec<(u64, Blow)>,
}

#[derive(Clone, Copy, Debug)]
enum Blow {
    Signal(u8),
    Notice(Why, u64),
    Crash(JobStatus),
    Hang,
    Busy(u64),
    Unbusy,
}

/// Plays the schedule of this seed. Panics if the supervisor breaks a promise.
pub(crate) fn play(seed: u64) -> Fate {
    let mut world = World::new(seed);
    loop {
        if let Some(ending) = world.ended {
            return world.fate(ending);
        }
        world.step();
        world.check(world.now < LONGEST_MS, "it never ends");
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let settings = settings::draw(&mut rng);
        let job = Job::draw(&mut rng, &settings);
        let supervisor = Supervisor::new(settings.clone(), Millis(0));
        let mut curve = |longest: f64| {
            let mean = rng.random_range(100.0..longest);
            SurvivalCurve::exponential(CURVE_STEP, 100, 1.0 / mean)
        };
        let outlook = Outlook {
            presence: curve(20_000.0),
            guest: curve(5000.0),
            taken_at: rng
                .random_bool(0.2)
                .then(|| Millis(rng.random_range(0..600_000))),
        };
        let plan = Self::draw_plan(&mut rng);
        let version = settings.restored.unwrap_or(0);
        let store = settings.restored.map(|version| (version, 0));
        let mut world = Self {
            seed,
            rng,
            settings,
            supervisor,
            now: 0,
            job,
            save: None,
            store: store.into_iter().collect(),
            version,
            owner: OwnerSample::default(),
            owner_changes_at: 0,
            next_sample: 1000,
            owner_needs: false,
            request_open: false,
            asked: false,
            finishes: false,
            busy: false,
            torn: BTreeSet::new(),
            left_with_ms: None,
            tried_last: false,
            interrupts: 0,
            gone_by: None,
            hurried: false,
            killed: false,
            other_went_on: false,
            still_at: None,
            seen_at: None,
            ended: None,
            job_status: None,
            plan,
        };
        world.handle(Event::Outlook(outlook));
        world
    }

    fn draw_plan(rng: &mut SmallRng) -> Vec<(u64, Blow)> {
        // Ends a job that hangs and is never given up.
        let mut plan = vec![(rng.random_range(1_500_000..3_000_000), Blow::Signal(15))];
        for _ in 0..rng.random_range(0..4) {
            let at = rng.random_range(0..900_000);
            let grace = rng.random_range(0..120_000);
            if rng.random_bool(0.2) {
                // A second notice, with another deadline, often follows the first.
                plan.push((at, Blow::Notice(Why::Spot, 120_000)));
                let soon = rng.random_range(0..60_000);
                plan.push((
                    at + rng.random_range(0..20_000),
                    Blow::Notice(Why::Shutdown, soon),
                ));
            }
            plan.push((
                at,
                match rng.random_range(0..12) {
                    0..3 => Blow::Signal([10, 15][rng.random_range(0..2)]),
                    3 => Blow::Signal([1, 2, 2, 3, 12, 20, 28][rng.random_range(0..7)]),
                    4 => Blow::Notice(Why::Spot, grace),
                    5 => Blow::Notice(Why::Shutdown, grace),
                    6 => Blow::Crash(JobStatus::Signalled(11)),
                    7 => Blow::Crash(JobStatus::Exited(75)),
                    8 => Blow::Hang,
                    _ => Blow::Busy(rng.random_range(0..120_000)),
                },
            ));
        }
        plan.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        plan
    }

    #[track_caller]
    fn check(&self, holds: bool, what: &str) {
        let seed = self.seed;
        let now = self.now;
        let doing = self.supervisor.doing();
        assert!(
            holds,
            "schedule {seed} at {now} ms, {doing:?}: {what}; {:?}",
            self.settings
        );
    }

    /// Lets [`STEP_MS`] pass.
    fn step(&mut self) {
        self.now += STEP_MS;
        let dumped = self.is_dumped();
        if let Some(wrote) = self.job.run(STEP_MS, self.now, dumped) {
            let delay = if self.job.says { 0 } else { SEEN_MS };
            let delay = self.rng.random_range(0..=delay);
            self.seen_at = Some(self.now + delay);
            self.check(wrote <= self.job.work, "a checkpoint of the future");
        }
        self.befall();
        self.job_events();
        self.save_events();
        let deadline = self.supervisor.next_deadline();
        if deadline.is_some_and(|at| at.0 <= self.now) {
            self.handle(Event::Tick);
            let later = self.supervisor.next_deadline();
            let is_later = later.is_none_or(|at| at.0 > self.now);
            self.check(is_later, "a deadline that stays in the past");
        }
        if self.now >= self.next_sample {
            self.sample();
        }
        self.watch();
    }

    fn befall(&mut self) {
        while let Some((_, blow)) = self.plan.pop_if(|(at, _)| *at <= self.now) {
            match blow {
                Blow::Signal(signal) => {
                    self.interrupts += u32::from(signal == 2);
                    if [10, 15].contains(&signal) {
                        self.must_go(self.settings.grace_ms);
                    }
                    self.handle(Event::Signal(signal));
                }
                Blow::Notice(why, grace_ms) => {
                    self.must_go(grace_ms);
                    self.handle(Event::Notice { why, grace_ms });
                }
                Blow::Crash(status) => self.job.crash(status),
                Blow::Hang => self.job.hung = true,
                Blow::Busy(ms) => {
                    self.busy = true;
                    self.handle(Event::Job(JobNews::Busy));
                    self.plan.push((self.now + ms, Blow::Unbusy));
                    self.plan.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
                }
                Blow::Unbusy => {
                    self.busy = false;
                    self.handle(Event::Job(JobNews::Ready));
                }
            }
        }
    }

    /// The machine will be taken in `grace_ms`.
    fn must_go(&mut self, grace_ms: u64) {
        let at = self.now + grace_ms;
        self.hurried |= self.gone_by.is_some_and(|before| at < before);
        self.gone_by = Some(self.gone_by.map_or(at, |before| before.min(at)));
    }

    fn job_events(&mut self) {
        if self.job.begins_to_move() {
            self.handle(Event::FilesMoving);
        }
        if self.seen_at.is_some_and(|at| at <= self.now) && self.job.alive {
            self.seen_at = None;
            let said = if self.job.says {
                Event::Job(JobNews::Saved)
            } else {
                Event::FilesAtRest
            };
            if !self.job.is_writing() {
                self.asked = false;
                self.finishes = false;
                self.request_open = false;
                self.handle(said);
            }
        }
        if self.still_at.is_some_and(|at| at <= self.now) && self.job.alive {
            self.still_at = None;
            let files_at_rest = !self.job.is_writing();
            if files_at_rest && self.seen_at.take().is_some() {
                // The shell looks at the files once more. What it finds counts as the answer.
                self.asked = false;
                self.handle(Event::FilesAtRest);
            }
            if !files_at_rest {
                // The job may have to finish what it writes. If it was stopped for the owner it was not
                // asked.
                self.finishes = true;
                self.request_open |= self.supervisor.doing() == Doing::Leaving;
            }
            self.handle(Event::Still { files_at_rest });
        }
        if self.job.alive && self.job.ends_at.is_some_and(|at| at <= self.now) {
            self.job_ends();
        }
    }

    fn job_ends(&mut self) {
        let status = self.job.status;
        self.job.alive = false;
        self.job_status = Some(status);
        let whole = self.seen_at.take().is_some();
        let torn = self.job.is_writing() && self.settings.while_read == WhileRead::Stopped;
        let files = if torn {
            FilesAtEnd::Torn
        } else if self.job.on_disk.is_none() && self.settings.restored.is_none() {
            FilesAtEnd::Missing
        } else if whole {
            FilesAtEnd::Whole
        } else {
            FilesAtEnd::Unchanged
        };
        self.request_open = false;
        self.asked = false;
        self.finishes = false;
        self.handle(Event::JobEnded { status, files });
    }

    fn is_dumped(&self) -> bool {
        let dumps = self.settings.asking == Asking::Dump;
        dumps && self.save.as_ref().is_some_and(|save| !save.read)
    }

    fn save_events(&mut self) {
        let Some(save) = &mut self.save else {
            return;
        };
        let number = save.order.number;
        if !save.read && save.read_at <= self.now {
            save.read = true;
            save.content = save.content.or(Some(self.job.work));
            self.handle(Event::ImageTaken(number));
        }
        let is_over = |save: &Save| save.ends_at <= self.now;
        if let Some(save) = self.save.take_if(|save| is_over(save)) {
            if let SaveOutcome::Committed { version, .. } = save.outcome {
                self.store.insert(version, save.content.unwrap_or(0));
                if save.order.is_torn {
                    self.torn.insert(version);
                }
                self.version = version;
            }
            self.other_went_on |= save.outcome == SaveOutcome::OtherSuccessor;
            let outcome = save.outcome;
            self.handle(Event::SaveEnded { number, outcome });
        }
    }

    fn sample(&mut self) {
        self.next_sample = self.now + 1000;
        if self.now >= self.owner_changes_at {
            let quiet = self.rng.random_bool(0.7);
            let longest = if quiet { 300_000 } else { 90_000 };
            self.owner_changes_at = self.now + self.rng.random_range(1000..longest);
            self.owner = OwnerSample {
                load: if quiet {
                    self.rng.random_range(0.0..0.5)
                } else {
                    self.rng.random_range(0.0..1.0)
                },
                user_active: self.rng.random_bool(0.1),
                withheld: self.rng.random_bool(0.03),
                memory_short: self.rng.random_bool(0.02),
                leaving: self.rng.random_bool(0.02).then_some(20_000),
            };
        }
        if let OwnerRule::Watched {
            thresholds,
            run_if_user_active,
        } = self.settings.owner
        {
            let owner = self.owner;
            let user = owner.user_active && !run_if_user_active;
            let stops = owner.load > thresholds.second() || user || owner.withheld;
            self.owner_needs = stops || owner.memory_short;
            if owner.memory_short {
                self.must_go(self.settings.grace_ms);
            }
            if let Some(ms) = owner.leaving {
                self.must_go(ms);
            }
        }
        let job = JobUse {
            cpu_ms: self.job.cpu_ms,
            io_bytes: 0,
        };
        let owner = self.owner;
        self.handle(Event::Sample(Sample { owner, job }));
    }

    /// Gives the event to the supervisor and does all its actions.
    fn handle(&mut self, event: Event) {
        if self.ended.is_some() {
            return;
        }
        self.supervisor.handle(Millis(self.now), event);
        while let Some(action) = self.supervisor.poll_action() {
            self.check(self.ended.is_none(), "an action after the end");
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::AskForCheckpoint { last } => {
                self.check(!self.busy, "a busy job is asked");
                self.check(!self.asked || last.is_some(), "it is asked twice");
                self.asked = true;
                self.request_open |= last.is_some();
                self.job.asked();
            }
            Action::StartSave(order) => self.start_save(order),
            Action::CancelSave(number) => self.cancel_save(number),
            Action::Stop => {
                self.job.stopped = true;
                self.still_at = Some(self.now + self.rng.random_range(0..200));
            }
            Action::GoOn => {
                let reading = self.save.as_ref().is_some_and(|save| !save.read);
                let moves = reading && self.settings.while_read == WhileRead::Stopped;
                self.check(!moves, "it goes on while its files are read");
                self.job.stopped = false;
                self.still_at = None;
            }
            Action::Report(Report::NoAnswer { .. }) => self.asked = false,
            Action::Report(Report::Leaving { deadline, .. }) => {
                let ms = deadline.0.saturating_sub(self.now);
                self.left_with_ms = Some(ms).filter(|_| self.save.is_none());
            }
            Action::SignalJob(15) => {
                self.check(!self.job.stopped, "a job that is stopped is asked to end");
                self.request_open = true;
                self.job.terminated(self.now);
            }
            Action::Kill => {
                self.killed = true;
                self.job.killed(self.now);
            }
            Action::Report(Report::NotGone) => {
                self.check(self.killed, "it is said to outlive a kill that never came");
            }
            Action::SignalJob(_) => {
                let doing = self.supervisor.doing();
                let leaves = matches!(doing, Doing::Leaving | Doing::Stopping);
                self.check(!leaves, "a job that leaves gets a signal that is not ours");
            }
            Action::Lower | Action::Normal | Action::Report(_) => {}
            Action::End(ending) => self.end(ending),
        }
    }

    fn start_save(&mut self, order: SaveOrder) {
        self.check(self.save.is_none(), "two saves at a time");
        let dumps = self.settings.asking == Asking::Dump;
        if dumps {
            self.check(self.job.alive, "a job that is gone is dumped");
            self.check(!self.busy, "a busy job is dumped");
        } else if self.job.alive && self.settings.while_read == WhileRead::Stopped {
            self.check(self.job.stopped, "a job that runs is read");
            self.check(!self.job.is_writing(), "files that move are saved");
        }
        let content = match (dumps, order.is_torn) {
            (true, _) => None,
            (false, true) => Some(0),
            (false, false) => self.job.on_disk,
        };
        self.check(dumps || content.is_some(), "nothing on disk is saved");
        let is_last = matches!(order.kind, SaveKind::Final { .. });
        self.check(
            !order.is_torn || (is_last && !self.job.alive),
            "files of a job that is there are called torn",
        );
        self.tried_last |= is_last;
        let leaves = self.supervisor.doing() == Doing::Leaving;
        self.check(!is_last || leaves, "a final save of a job that stays");
        let takes = if self.rng.random_bool(0.1) {
            self.rng.random_range(0..400_000)
        } else {
            self.rng.random_range(0..30_000)
        };
        let read_at = self.now + self.rng.random_range(0..=takes.min(5000));
        let outcome = match self.rng.random_range(0..20) {
            0..3 => SaveOutcome::Failed,
            3 if self.rng.random_bool(0.3) => SaveOutcome::OtherSuccessor,
            _ => {
                let stored_bytes = self.rng.random_range(0..1 << 28);
                let is_patch = self.rng.random_bool(0.7);
                SaveOutcome::Committed {
                    version: self.version + 1,
                    stored_bytes,
                    new_bytes: is_patch.then(|| self.rng.random_range(0..=stored_bytes)),
                    image_bytes: 1 << 28,
                }
            }
        };
        let mut ends_at = self.now + takes;
        let mut outcome = outcome;
        if let SaveKind::Final { deadline, .. } = order.kind
            && deadline.0 < ends_at
            && self.rng.random_bool(0.7)
        {
            (ends_at, outcome) = (deadline.0, SaveOutcome::Failed);
        }
        self.save = Some(Save {
            order,
            content,
            read_at,
            ends_at: ends_at.max(self.now + 1),
            outcome,
            read: false,
        });
    }

    fn cancel_save(&mut self, number: SaveNumber) {
        let found = self.save.as_ref().map(|save| save.order.number);
        if self.ended.is_none() && found.is_some() {
            self.check(
                found == Some(number),
                "a save that is not there is cancelled",
            );
        }
        let soon = self.now + self.rng.random_range(0..3000);
        // A save that is cancelled may be committed all the same.
        let fails = self.rng.random_bool(0.8);
        if let Some(save) = &mut self.save {
            save.ends_at = save.ends_at.min(soon);
            if fails {
                save.outcome = SaveOutcome::Failed;
            }
        }
    }

    /// Checks what has to hold at all times.
    fn watch(&mut self) {
        if self.ended.is_some() {
            return;
        }
        let doing = self.supervisor.doing();
        let runs = self.job.alive && !self.job.stopped && !self.is_dumped();
        if runs && self.owner_needs {
            let last = self.request_open || self.busy || self.asked || self.finishes;
            let leaves = doing == Doing::Leaving && last;
            let ends = doing == Doing::Stopping;
            self.check(
                leaves || ends,
                "it runs although the owner needs the machine",
            );
        }
        if let Some(save) = &self.save
            && !save.read
            && self.settings.while_read == WhileRead::Stopped
            && self.settings.asking != Asking::Dump
        {
            let still = !self.job.alive || self.job.stopped;
            self.check(still, "it runs while its files are read");
        }
        if let Some(at) = self.gone_by {
            let late = self.now > at + self.settings.kill_ms + STEP_MS;
            self.check(!late, "it is there after the deadline and the time to kill");
        }
        if let Some(limit) = self.settings.time_limit {
            self.check(
                self.now <= limit.0 + STEP_MS,
                "it is there after the time limit",
            );
        }
        let accounts = self.supervisor.accounts();
        let stopped = accounts.suspended_ms + accounts.checkpoint_ms;
        if self.job.alive {
            // Within what may happen between two samples.
            let within = 1000 + STEP_MS;
            let all = accounts.work_ms + stopped;
            self.check(all + within >= self.now, "time that is not accounted for");
            let differs = accounts.work_ms.abs_diff(self.job.work);
            self.check(differs <= within, "work that was not done");
        }
    }

    fn end(&mut self, ending: Ending) {
        self.ended = Some(ending);
        let held = self.job.alive && self.job.stopped;
        self.check(!held || self.killed, "a job stays stopped for ever");
        self.check(!self.job.alive || self.killed, "a job stays behind");
        self.check(ending.job_gone != self.job.alive, "it lies about the job");
        match ending.ended_by {
            EndedBy::LeftSaved { version, .. } => {
                let content = self.store.get(&version).copied();
                self.check(content.is_some(), "75 without a committed version");
                let newest = self.store.keys().next_back() == Some(&version);
                self.check(newest, "75 with a version that is not the newest");
                self.check(!self.torn.contains(&version), "75 with a torn version");
                let lacks = self.job.work.saturating_sub(content.unwrap_or(0));
                let seen = if self.job.says || self.settings.asking == Asking::Dump {
                    0
                } else {
                    SEEN_MS
                };
                self.check(
                    lacks <= seen + STEP_MS,
                    "75 without the state that the job had",
                );
            }
            EndedBy::LeftOlder { version, .. } => {
                let newest = self.store.keys().next_back().copied();
                self.check(version == newest, "76 names another version");
                self.check_that_it_was_tried_to_save();
            }
            EndedBy::Job(status) => {
                self.check(
                    self.job_status == Some(status),
                    "a status that is not the job's",
                );
                self.check(!self.killed, "a job that was killed ended by itself");
            }
            EndedBy::OtherIncarnation => {
                self.check(self.other_went_on, "77 without another incarnation");
            }
            EndedBy::Hung => {
                let overdue = self.settings.predicted_ms;
                let overdue = overdue.is_some_and(|predicted| self.job.work > 3 * predicted);
                self.check(self.job.hung || overdue, "a job that lives was given up");
            }
            EndedBy::LeftStateless { .. } => {
                self.check(self.store.is_empty(), "a version is called no state");
                self.check(self.job.on_disk.is_none(), "files are called no state");
            }
        }
        let hides = self.other_went_on && matches!(ending.ended_by, EndedBy::LeftSaved { .. });
        self.check(!hides, "75 although another incarnation has gone on");
    }

    /// A job that had time to leave, and has a state on disk that no version holds.
    fn check_that_it_was_tried_to_save(&self) {
        let newest = self.store.values().next_back().copied().unwrap_or(0);
        let is_newer = self.job.on_disk.is_some_and(|on_disk| on_disk > newest);
        let had_time = self.left_with_ms.is_some_and(|ms| ms >= 20_000);
        let was_in_peace = !self.hurried && self.interrupts < 3 && !self.busy;
        let is_seen = self.seen_at.is_none();
        if is_newer && had_time && was_in_peace && is_seen && self.settings.asking != Asking::Dump {
            self.check(
                self.tried_last,
                "its state on disk was not even tried to be saved",
            );
        }
    }

    fn fate(&self, ending: Ending) -> Fate {
        let accounts = self.supervisor.accounts();
        Fate {
            status: ending.status(None),
            by_itself: matches!(ending.ended_by, EndedBy::Job(_)),
            job_gone: ending.job_gone,
            suspensions: accounts.suspensions,
            committed: accounts.committed,
            failed: accounts.failed,
            hurried: self.hurried,
        }
    }
}
