//! A job under the supervisor of `ckpt run`: this is the shell that sends the supervisor events and carries
//! out its actions, in simulated time.

use placement::state::AvailabilityState;
use supervision::{
    Action, Asking, Costs, EndedBy, Event, FilesAtEnd, JobStatus, JobUse, LeaveAfter, Millis,
    Outlook, OwnerSample, Sample, SaveKind, SaveNumber, SaveOrder, SaveOutcome, Settings,
    Supervisor,
};

use super::{Ground, GuardedJobs, Left, Stand, Waiting};
use crate::knowledge::Knowledge;
use crate::outcome::JobOutcome;

/// Time between samples while the state does not change, seconds. In `ckpt run` there is a sample each
/// second, but a sample in which only the time is new affects only the moment at which a checkpoint is due.
const SAMPLE_SECONDS: f64 = 30.0;
/// Time between forecasts, seconds.
const OUTLOOK_SECONDS: f64 = 600.0;
/// Time from a change of the state to the sample that shows it, seconds.
const SEEN_SECONDS: f64 = 1.0;

/// A save in progress.
#[derive(Clone, Copy, Debug)]
struct Saving {
    order: SaveOrder,
    /// Work that it holds, seconds.
    content: f64,
    /// Work since the save before, seconds.
    work: f64,
    /// When the image is complete, so that the job can go on; `None` after that.
    read_at: Option<f64>,
    /// When it is stored.
    ends_at: f64,
}

/// A stay of a job on a host. Times are seconds since the start of the grid.
struct Stay<'a, 'k> {
    ground: &'a Ground<'k>,
    stand: Stand,
    supervisor: Supervisor,
    /// When the stay began, which is time 0 of the supervisor.
    from: f64,
    now: f64,
    /// Work done, seconds.
    worked: f64,
    /// Work in the newest committed checkpoint, seconds.
    saved: f64,
    /// Whether the supervisor has stopped the job.
    stopped: bool,
    saving: Option<Saving>,
    /// Whether the job's process lives.
    alive: bool,
    /// Why the supervisor has ended the stay.
    ended_by: Option<EndedBy>,
}

impl Ground<'_> {
    /// Runs a job's stay on a host from `from` on.
    pub(super) fn supervised(
        &self,
        knowledge: &mut Knowledge<'_>,
        stand: &Stand,
        from: f64,
        waiting: Waiting,
        outcome: &mut JobOutcome,
    ) -> Left {
        let leave_after = match waiting {
            Waiting::Auto => LeaveAfter::Auto(knowledge.owner_needs(stand.host, self.unix(from))),
            Waiting::Minute => LeaveAfter::MINUTE,
            Waiting::Never => LeaveAfter::Never,
        };
        let settings = settings(&self.jobs, leave_after);
        let mut stay = Stay {
            ground: self,
            stand: *stand,
            supervisor: Supervisor::new(settings, Millis(0)),
            from,
            now: from,
            worked: stand.saved,
            saved: stand.saved,
            stopped: false,
            saving: None,
            alive: true,
            ended_by: None,
        };
        let left = stay.live(knowledge);
        let accounts = stay.supervisor.accounts();
        let seconds = |ms: u64| ms as f64 / 1000.0;
        outcome.computing_seconds += stay.worked - stand.saved;
        outcome.waiting_seconds += seconds(accounts.suspended_ms);
        outcome.storing_seconds += seconds(accounts.checkpoint_ms);
        outcome.stored += accounts.committed;
        outcome.lost_seconds += if left.done {
            0.0
        } else {
            stay.worked - left.saved
        };
        left
    }
}

/// The supervisor's settings for these jobs.
fn settings(jobs: &GuardedJobs, leave_after: LeaveAfter) -> Settings {
    let ms = |seconds: f64| (seconds * 1000.0).round() as u64;
    Settings {
        leave_after,
        grace_ms: ms(jobs.save.grace_seconds),
        asking: Asking::Dump,
        costs: Costs {
            standstill_seconds: jobs.checkpoint_seconds,
            ask_seconds: jobs.save.ask_seconds,
            fixed_seconds: jobs.save.fixed_seconds,
            image_bytes: jobs.save.image_bytes,
            change_seconds: jobs.save.change_seconds,
            bytes_per_second: jobs.save.bytes_per_second,
            spread: jobs.save.spread,
        },
        // Every checkpoint stores only what has changed, the first one of a job included.
        restored: Some(0),
        moving_ms: ms(jobs.restart_seconds + jobs.restore_seconds()),
        ..Settings::default()
    }
}

impl Stay<'_, '_> {
    /// Runs the stay to its end.
    fn live(&mut self, knowledge: &mut Knowledge<'_>) -> Left {
        let mut outlook_at = self.now;
        let mut sample_at = self.now;
        loop {
            if self.now >= outlook_at {
                let curves = knowledge.outlook(self.stand.host, self.ground.unix(self.now));
                self.send(Event::Outlook(Outlook {
                    presence: curves.0,
                    guest: curves.1,
                    taken_at: None,
                }));
                outlook_at = self.now + OUTLOOK_SECONDS;
            }
            let (state, until) = self.ground.state(self.stand.host, self.now);
            if state == AvailabilityState::Gone || self.now >= self.ground.end {
                return self.left(false);
            }
            if self.now >= sample_at {
                self.sample(state);
                sample_at = self.now + SAMPLE_SECONDS;
            }
            if self.ended_by.is_some() {
                return self.left(false);
            }
            // A new state is sampled a moment after it began.
            let changes = until + SEEN_SECONDS;
            let next = sample_at.min(outlook_at).min(until).min(self.ground.end);
            self.pass_until(next);
            if self.ended_by.is_some() {
                return self.left(self.worked >= self.ground.jobs.work_seconds - 1e-6);
            }
            if self.now >= until {
                sample_at = sample_at.min(changes);
            }
        }
    }

    const fn left(&self, done: bool) -> Left {
        Left {
            at: self.now,
            saved: self.saved,
            done,
        }
    }

    /// Advances to `until`: the job works, saves progress and end, the supervisor's timers fire.
    fn pass_until(&mut self, until: f64) {
        while self.now < until && self.ended_by.is_none() {
            let left = self.ground.jobs.work_seconds - self.worked;
            let done = if self.runs() {
                self.now + left
            } else {
                f64::INFINITY
            };
            let reads = self.saving.and_then(|saving| saving.read_at);
            let saves = self.saving.map(|saving| saving.ends_at);
            let tick = self.supervisor.next_deadline();
            let tick = tick.map(|at| self.from + at.0 as f64 / 1000.0);
            let times = [Some(done), reads, saves, tick];
            let next = times.into_iter().flatten().fold(until, f64::min);
            let passed = (next - self.now).max(0.0);
            if self.runs() {
                self.worked += passed;
            }
            self.now = self.now.max(next);
            self.handle_due(tick);
        }
    }

    /// Whether the job computes: it is neither stopped nor being dumped.
    const fn runs(&self) -> bool {
        let dumped = match self.saving {
            Some(saving) => saving.read_at.is_some(),
            None => false,
        };
        self.alive && !self.stopped && !dumped
    }

    /// Handles what is due at `now`: the end of the job, of a dump, of a save, or a timer of the supervisor.
    fn handle_due(&mut self, tick: Option<f64>) {
        let now = self.now;
        if self.alive && self.worked >= self.ground.jobs.work_seconds - 1e-6 {
            // A save in progress makes no difference to a job that is done.
            self.alive = false;
            self.ended_by = Some(EndedBy::Job(JobStatus::Exited(0)));
            return;
        }
        if let Some(saving) = &mut self.saving
            && saving.read_at.take_if(|at| *at <= now).is_some()
        {
            let number = saving.order.number;
            self.send(Event::ImageTaken(number));
        }
        if let Some(saving) = self.saving.take_if(|saving| saving.ends_at <= now) {
            self.saved = saving.content;
            let image = self.ground.jobs.save.image_bytes;
            let stored = self.ground.jobs.save.stored_bytes(saving.work) as u64;
            let outcome = SaveOutcome::Committed {
                version: u64::from(saving.order.number.0),
                stored_bytes: stored,
                new_bytes: Some(stored),
                image_bytes: image as u64,
            };
            self.save_ended(saving.order.number, outcome);
        }
        if tick.is_some_and(|at| at <= now) {
            self.send(Event::Tick);
        }
    }

    fn save_ended(&mut self, number: SaveNumber, outcome: SaveOutcome) {
        self.send(Event::SaveEnded { number, outcome });
    }

    /// Sends the supervisor a sample of the owner's load in this state.
    fn sample(&mut self, state: AvailabilityState) {
        let load = match state {
            AvailabilityState::Idle => 0.0,
            AvailabilityState::Busy | AvailabilityState::Thrashing => 0.4,
            AvailabilityState::CpuTaken | AvailabilityState::Gone => 1.0,
        };
        let owner = OwnerSample {
            load,
            memory_short: state == AvailabilityState::Thrashing,
            ..OwnerSample::default()
        };
        let job = JobUse {
            cpu_ms: (self.worked * 1000.0) as u64,
            io_bytes: 0,
        };
        self.send(Event::Sample(Sample { owner, job }));
    }

    /// Sends the supervisor an event and carries out its actions.
    fn send(&mut self, event: Event) {
        let ms = ((self.now - self.from) * 1000.0).ceil() as u64;
        self.supervisor.handle(Millis(ms), event);
        while let Some(action) = self.supervisor.poll_action() {
            match action {
                Action::Stop => self.stopped = true,
                Action::GoOn => self.stopped = false,
                Action::StartSave(order) => self.start_save(order),
                Action::CancelSave(number) => {
                    let is_saving = self.saving.take().is_some();
                    if is_saving {
                        self.save_ended(number, SaveOutcome::Failed);
                    }
                }
                Action::Kill => {
                    self.alive = false;
                    let status = JobStatus::Signalled(9);
                    let files = FilesAtEnd::Unchanged;
                    self.send(Event::JobEnded { status, files });
                }
                Action::End(ending) => self.ended_by = Some(ending.ended_by),
                _ => {}
            }
        }
    }

    fn start_save(&mut self, order: SaveOrder) {
        let work = self.worked - self.saved;
        let number = u64::from(order.number.0);
        let takes = self.ground.save_seconds(&self.stand, number, work);
        let (read, takes) = match order.kind {
            SaveKind::Regular => {
                let stands = self.ground.jobs.checkpoint_seconds;
                (stands, takes.max(stands))
            }
            // The job stays stopped until the final checkpoint is stored.
            SaveKind::Final { .. } => (takes, takes),
        };
        self.saving = Some(Saving {
            order,
            content: self.worked,
            work,
            read_at: Some(self.now + read),
            ends_at: self.now + takes,
        });
    }
}
