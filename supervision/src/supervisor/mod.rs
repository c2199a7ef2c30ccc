//! The state machines: `machine` follows the owner, `saving` takes checkpoints while the job runs,
//! `leave` takes the job off the machine. `job` is what all three know of the job, `costs` what
//! checkpoints cost.

mod costs;
mod job;
mod leave;
mod machine;
mod save_ahead;
mod saving;
mod standing;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use self::costs::Learned;
use self::job::{Committed, HoldFor, ImageOnDisk, JobState};
use self::leave::{Leaving, Stopping};
use self::machine::Suspended;
use self::saving::{Checkpoints, Retry};
pub use self::standing::{Activity, Standing};
use crate::accounts::Accounts;
use crate::action::{Action, Report};
use crate::ahead::Limit;
use crate::clock::{Millis, seconds};
use crate::due::Due;
use crate::event::{Event, JobNews, JobUse, Outlook, Sample};
use crate::hang::{Progress, QuietWatch, is_overdue};
use crate::leaving::{FinalSave, Hazards};
use crate::settings::{LeaveAfter, OnHang, Settings};
use crate::signals::{Meaning, Phase, meaning};
use crate::status::Why;

/// Watches over one job on one machine; the crate's page explains how it is driven.
#[derive(Clone, Debug)]
pub struct Supervisor {
    settings: Settings,
    now: Millis,
    /// How much of the time since the last event the machine has slept, milliseconds.
    slept_ms: u64,
    machine: Machine,
    checkpoints: Checkpoints,
    job: JobState,
    dues: Dues,
    accounts: Accounts,
    costs: Learned,
    outlook: Option<(Millis, Outlook)>,
    /// Whether the owner needs the machine, by the last sample.
    owner_needs: bool,
    retry: Retry,
    /// Until when the line is left to others, because of the share that saves may take of it.
    line_free_at: Millis,
    /// Whether the next save stores what has changed while something was stored once and for all.
    catches_up: bool,
    /// The loss that was last promised, seconds, and what limited it.
    promised: Option<(f64, Limit)>,
    /// The foreseen end of the machine for which a checkpoint was begun already.
    prepared_for: Option<Millis>,
    quiet: QuietWatch,
    progress: Progress,
    step: u64,
    overdue: bool,
    saves: u32,
    /// Work at the moment when a checkpoint became due that could not be taken, milliseconds; `None` when none
    /// is due.
    due_since: Option<u64>,
    /// Whether it was reported since the newest checkpoint that none can be taken.
    drought_is_reported: bool,
    /// How many interrupts have come since the job began to leave.
    interrupts: u8,
    actions: VecDeque<Action>,
}

/// How much of the machine the job may use, and whether it leaves.
#[derive(Clone, Debug)]
enum Machine {
    Normal,
    /// The job has the lowest priority. Since when the load is low enough for the normal one, if it is.
    Lowest(Option<Millis>),
    Suspended(Suspended),
    Leaving(Leaving),
    Stopping(Stopping),
    Ended,
}

/// What the supervisor does with the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// The job runs with the priority that it was started with.
    Normal,
    /// It runs at the lowest priority.
    Lowest,
    /// It is stopped because the owner needs the machine.
    Suspended,
    /// It is leaving the machine, with a final checkpoint.
    Leaving,
    /// It is being ended.
    Stopping,
    /// The supervisor has ended.
    Ended,
}

/// Work that is in no checkpoint, for each kind of checkpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Dues {
    /// Since the newest committed checkpoint.
    unsaved: Due,
    /// Since the checkpoint on disk, if there is one that is not being saved.
    since_image: Option<Due>,
    /// Since the checkpoint that is being saved, if there is one.
    since_saving: Option<Due>,
}

impl Supervisor {
    /// A supervisor for a job that starts to run now.
    #[must_use]
    pub fn new(settings: Settings, now: Millis) -> Self {
        let committed = settings.restored.map(|version| Committed {
            version,
            work_ms: 0,
            answers_last: false,
        });
        Self {
            costs: Learned::new(settings.costs, settings.restored.is_some())
                .of_bytes(settings.restored_bytes),
            quiet: QuietWatch::new(settings.longest_quiet_ms),
            settings,
            now,
            slept_ms: 0,
            machine: Machine::Normal,
            checkpoints: Checkpoints::Idle,
            job: JobState::new(committed),
            dues: Dues::default(),
            accounts: Accounts::default(),
            outlook: None,
            owner_needs: false,
            retry: Retry::default(),
            line_free_at: Millis(0),
            catches_up: false,
            promised: None,
            prepared_for: None,
            progress: Progress::default(),
            step: 0,
            overdue: false,
            saves: 0,
            due_since: None,
            drought_is_reported: false,
            interrupts: 0,
            actions: VecDeque::new(),
        }
    }

    /// Takes an event that happened at `now`. A time before that of the last event counts as the time of
    /// the last event.
    pub fn handle(&mut self, now: Millis, event: Event) {
        let now = now.max(self.now);
        if let Event::Slept { ms } = event {
            self.slept_ms = ms;
        }
        self.pass_time(now);
        match event {
            Event::Sample(sample) => self.sample(now, sample),
            Event::Outlook(outlook) => self.outlook = Some((now, outlook)),
            Event::OwnersPast(past) => {
                if let LeaveAfter::Auto(known) = &mut self.settings.leave_after {
                    *known = past;
                }
            }
            Event::SaveAhead(ahead) => self.costs.foresee(ahead),
            Event::Notice { why, grace_ms } => self.leave(now, why, grace_ms),
            Event::Signal(signal) => self.signal(now, signal),
            Event::JobEnded { status, files } => self.job_ended(now, status, files),
            Event::Job(said) => self.job_reports(now, said),
            Event::FilesMoving => self.files_move(),
            Event::FilesAtRest => self.image_written(now),
            Event::Still { files_at_rest } => self.stands_still(now, files_at_rest),
            Event::ImageTaken(number) => self.image_taken(now, number),
            Event::SaveEnded { number, outcome } => self.save_ended(now, number, outcome),
            Event::Slept { .. } | Event::Tick => {}
        }
        self.go_on(now);
    }

    /// The next thing for the shell to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due if nothing else comes before; `None` if no state waits for a time.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Millis> {
        match &self.machine {
            Machine::Normal | Machine::Lowest(_) => {
                earliest(self.checkpoint_deadline(), self.time_limit_lead())
            }
            Machine::Suspended(suspended) => {
                let machine = earliest(self.patience_end(suspended), self.time_limit_lead());
                earliest(self.checkpoint_deadline(), machine)
            }
            Machine::Leaving(leaving) => {
                let end = earliest(Some(leaving.deadline()), self.retry_after(self.now));
                earliest(end, self.last_call().filter(|_| self.job.alive))
            }
            Machine::Stopping(stopping) => Some(stopping.next_deadline(self.job.alive)),
            Machine::Ended => None,
        }
    }

    /// What the supervisor does with the job now.
    #[must_use]
    pub const fn doing(&self) -> Doing {
        match self.machine {
            Machine::Normal => Doing::Normal,
            Machine::Lowest(_) => Doing::Lowest,
            Machine::Suspended(_) => Doing::Suspended,
            Machine::Leaving(_) => Doing::Leaving,
            Machine::Stopping(_) => Doing::Stopping,
            Machine::Ended => Doing::Ended,
        }
    }

    /// The phase of the run, which decides what a signal means.
    #[must_use]
    pub const fn phase(&self) -> Phase {
        match self.machine {
            Machine::Normal | Machine::Lowest(_) | Machine::Suspended(_) => Phase::Run,
            Machine::Leaving(_) | Machine::Stopping(_) | Machine::Ended => Phase::Leave,
        }
    }

    /// How the time was used, up to the last event.
    #[must_use]
    pub const fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Work that is in no committed checkpoint, seconds.
    #[must_use]
    pub const fn unsaved_seconds(&self) -> f64 {
        self.dues.unsaved.work()
    }

    /// The final checkpoint that an eviction with the usual grace period would allow now.
    #[must_use]
    pub fn final_save(&self) -> FinalSave {
        self.costs.final_save(self.settings.grace_ms)
    }

    /// Time for which the job stands still for one checkpoint, seconds: as measured, or as assumed before
    /// the first.
    #[must_use]
    pub fn standstill_seconds(&self) -> f64 {
        self.costs.standstill()
    }

    /// The hazards at the time of the last event; zero before the first [`Event::Outlook`].
    #[must_use]
    pub fn hazards(&self) -> Hazards {
        self.outlook
            .as_ref()
            .map_or(Hazards::new(0.0, 0.0), |(at, outlook)| {
                let age = seconds(self.now.since(*at));
                let of = |curve: &placement::SurvivalCurve| curve.hazard_per_second(age);
                Hazards::new(of(&outlook.presence), of(&outlook.guest))
            })
    }

    /// Seconds of work left, estimated from the progress that the job reports.
    #[must_use]
    pub fn remaining_seconds(&self) -> Option<f64> {
        self.progress.remaining_seconds()
    }

    /// The longest quiet time after which the job showed a sign of life, milliseconds. It belongs into
    /// the settings of the job's next run.
    #[must_use]
    pub const fn longest_quiet_ms(&self) -> u64 {
        self.quiet.longest_quiet_ms()
    }

    /// Accounts for the time since the last event.
    fn pass_time(&mut self, now: Millis) {
        let passed_ms = now.since(self.now);
        self.now = now;
        let slept_ms = std::mem::take(&mut self.slept_ms).min(passed_ms);
        if passed_ms == 0 || !self.job.alive || matches!(self.machine, Machine::Ended) {
            return;
        }
        // The job did not run while the machine slept.
        self.accounts.suspended_ms += slept_ms;
        let ms = passed_ms - slept_ms;
        if self.job.is_held_for(HoldFor::Owner) {
            self.accounts.suspended_ms += ms;
        } else if self.job.is_held_for(HoldFor::Reading) || self.is_dumping() {
            self.accounts.checkpoint_ms += ms;
        } else {
            self.accounts.work_ms += ms;
            let last = self.final_save();
            let hazards = self.hazards();
            let dues = [
                Some(&mut self.dues.unsaved),
                self.dues.since_image.as_mut(),
                self.dues.since_saving.as_mut(),
            ];
            for due in dues.into_iter().flatten() {
                due.add(seconds(ms), hazards, Some(&last));
            }
        }
    }

    /// Does what follows from the states and the time.
    fn go_on(&mut self, now: Millis) {
        self.leave_before_the_limit(now);
        self.end_of_patience(now);
        match &self.machine {
            Machine::Normal | Machine::Lowest(_) | Machine::Suspended(_) => {
                self.checkpoint_step(now);
            }
            Machine::Leaving(_) => self.leaving_step(now),
            Machine::Stopping(_) => self.stopping_step(now),
            Machine::Ended => {}
        }
    }

    fn sample(&mut self, now: Millis, sample: Sample) {
        self.look_for_life(now, sample.job);
        self.owner(now, &sample.owner);
    }

    fn signal(&mut self, now: Millis, signal: u8) {
        match meaning(self.phase(), signal) {
            Meaning::Leave => self.leave(now, Why::Signal(signal), self.settings.grace_ms),
            Meaning::PassOn if self.job.alive => self.act(Action::SignalJob(signal)),
            Meaning::Insist => self.interrupted(now, Why::Signal(signal)),
            // The shell stops this process itself.
            Meaning::PassOn | Meaning::Pause | Meaning::End | Meaning::Nothing => {}
        }
    }

    fn job_reports(&mut self, now: Millis, said: JobNews) {
        let worked = self.accounts.work_ms;
        match said {
            JobNews::Saved => self.image_written(now),
            JobNews::Busy => self.job.busy = true,
            JobNews::Ready => self.job.busy = false,
            JobNews::Progress(share) => {
                if self.progress.report(share, worked) {
                    self.quiet.alive(worked);
                }
            }
            JobNews::Step(step) => {
                if step > self.step {
                    self.quiet.alive(worked);
                }
                self.step = step;
            }
        }
    }

    fn look_for_life(&mut self, now: Millis, used: JobUse) {
        let is_there = matches!(
            self.machine,
            Machine::Normal | Machine::Lowest(_) | Machine::Suspended(_)
        );
        if !is_there || !self.job.alive {
            return;
        }
        let worked = self.accounts.work_ms;
        let predicted = self.settings.predicted_ms;
        if !self.overdue && predicted.is_some_and(|predicted| is_overdue(worked, predicted)) {
            self.overdue = true;
            self.act(Action::Report(Report::Overdue { elapsed_ms: worked }));
            // The rule of the paper on AVAM. A job that reports its progress shows that it gets on.
            let gets_on = self.progress.remaining_seconds().is_some();
            if self.settings.on_hang == OnHang::Leave && !gets_on {
                self.give_up(now);
                return;
            }
        }
        if let Some(quiet_ms) = self.quiet.update(worked, used) {
            self.act(Action::Report(Report::Quiet { quiet_ms }));
            if self.settings.on_hang == OnHang::Leave {
                self.give_up(now);
            }
        }
    }

    fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// Stops the job for this reason, unless it is stopped already.
    fn hold(&mut self, reason: HoldFor) {
        self.change_holds(|job| job.hold(reason));
    }

    /// Ends this reason to hold the job; the job goes on if there is no other.
    fn release(&mut self, reason: HoldFor) {
        self.change_holds(|job| job.release(reason));
    }

    /// Ends every reason to hold the job.
    fn release_all(&mut self) {
        self.change_holds(JobState::release_all);
    }

    /// Changes the reasons to hold the job, and stops it or lets it go on if that is the effect.
    fn change_holds(&mut self, change: impl FnOnce(&mut JobState)) {
        if !self.job.alive {
            return;
        }
        let before = self.job.is_held();
        change(&mut self.job);
        match (before, self.job.is_held()) {
            (false, true) => self.act(Action::Stop),
            (true, false) => self.act(Action::GoOn),
            _ => {}
        }
    }

    /// The checkpoint on disk that can be saved.
    const fn image(&self) -> Option<ImageOnDisk> {
        self.job.image
    }
}

/// The earlier of two times, either of which may be `None`.
fn earliest(a: Option<Millis>, b: Option<Millis>) -> Option<Millis> {
    a.into_iter().chain(b).min()
}
