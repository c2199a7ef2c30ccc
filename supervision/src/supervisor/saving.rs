//! Checkpoints while the job runs, and what is common to all saves.

use super::costs::MeasuredSave;
use super::{Due, Machine, Supervisor};
use crate::action::{Action, Report, SaveKind, SaveOrder};
use crate::clock::{Millis, millis, seconds};
use crate::event::{SaveNumber, SaveOutcome};
use crate::settings::{Asking, WhileRead};
use crate::supervisor::job::{Committed, HoldFor, ImageOnDisk};

/// Time until a failed save is tried again, milliseconds: after the first failure, and at most.
const RETRY_MS: (u64, u64) = (30_000, 600_000);
/// Time until a failed save is tried again while the job leaves, milliseconds.
const LAST_RETRY_MS: u64 = 1000;
/// Time for the processes of the job to stand still after they were stopped, milliseconds.
const STILL_MS: u64 = 10_000;
/// Time for the job to answer when it is asked for a checkpoint: milliseconds of work, or a multiple of
/// the time that it took before, whichever is longer.
const ANSWER_MS: u64 = 600_000;
const ANSWER_TIMES: f64 = 10.0;
/// Time for a save: milliseconds, or a multiple of its expected time, whichever is longer.
const SAVE_MS: u64 = 1_800_000;
const SAVE_TIMES: f64 = 20.0;
/// A checkpoint on disk is saved, instead of asking for a new one, if it lacks at most this many seconds
/// of work.
const FRESH_SECONDS: f64 = 10.0;
/// A checkpoint before a foreseen end begins this many times its expected time before that end, plus
/// these seconds.
const FORESEEN_LEAD: (f64, f64) = (2.0, 30.0);

/// A job that has no whole state on disk when a checkpoint is due gets at most this much time until it is
/// reported, milliseconds of work.
const DROUGHT_MS: u64 = 60_000;

/// Why a checkpoint is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The job goes on here afterwards.
    Regular,
    /// It is the last checkpoint on this machine.
    Last,
}

impl Purpose {
    pub(super) fn is_last(self) -> bool {
        self == Self::Last
    }
}

/// The state of the one checkpoint that is being taken.
#[derive(Clone, Copy, Debug)]
pub(super) enum Checkpoints {
    Idle,
    /// The job was asked to write one.
    Asked(Asked),
    /// A checkpoint is on disk, and the job is being stopped so that it can be read.
    Halting {
        since: Millis,
        purpose: Purpose,
    },
    Saving(Saving),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) since: Millis,
    pub(super) worked_ms: u64,
    pub(super) purpose: Purpose,
    /// The job was asked by `SIGTERM`, after which it is expected to end.
    pub(super) by_term: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Saving {
    pub(super) number: SaveNumber,
    pub(super) since: Millis,
    pub(super) purpose: Purpose,
    /// When the job was stopped for this save.
    held_since: Millis,
    /// The checkpoint that is being saved.
    image: ImageOnDisk,
    /// Work since the save before, seconds.
    work: f64,
    /// When the image had been read.
    image_taken: Option<Millis>,
    /// Whether the job has changed the files since the save began.
    stale: bool,
    pub(super) cancelled: bool,
}

impl Saving {
    /// For how long the job was stopped until its image was read, milliseconds; `None` if it was not read.
    pub(super) fn held_ms(&self) -> Option<u64> {
        Some(self.image_taken?.since(self.held_since))
    }
}

/// When a save may be tried again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Retry {
    pub(super) not_before: Millis,
    failures: u32,
}

impl Supervisor {
    /// Takes a checkpoint if it pays, and ends a step that takes too long.
    pub(super) fn checkpoint_step(&mut self, now: Millis) {
        match self.checkpoints {
            Checkpoints::Idle => self.begin_if_it_pays(now),
            Checkpoints::Asked(asked) => {
                let took = self.accounts.work_ms.saturating_sub(asked.worked_ms);
                if took > self.answer_limit() {
                    self.checkpoints = Checkpoints::Idle;
                    let retry_at = self.back_off(now);
                    self.act(Action::Report(Report::NoAnswer { retry_at }));
                }
            }
            Checkpoints::Halting { since, .. } => {
                if now.since(since) > STILL_MS {
                    self.checkpoints = Checkpoints::Idle;
                    self.release(HoldFor::Reading);
                    let retry_at = self.back_off(now);
                    self.act(Action::Report(Report::SaveFailed { retry_at }));
                }
            }
            Checkpoints::Saving(saving) => {
                if now >= self.save_limit(&saving) {
                    self.cancel_save();
                }
            }
        }
    }

    pub(super) fn checkpoint_deadline(&self) -> Option<Millis> {
        match self.checkpoints {
            Checkpoints::Halting { since, .. } => Some(since.plus(STILL_MS + 1)),
            Checkpoints::Saving(saving) if !saving.cancelled => Some(self.save_limit(&saving)),
            _ => None,
        }
    }

    /// Cancels the save under way, unless it is cancelled already.
    pub(super) fn cancel_save(&mut self) {
        if let Checkpoints::Saving(saving) = &mut self.checkpoints
            && !saving.cancelled
        {
            saving.cancelled = true;
            let number = saving.number;
            self.act(Action::CancelSave(number));
        }
    }

    fn answer_limit(&self) -> u64 {
        let asking = self.final_save().ask_seconds;
        ANSWER_MS.max(millis(ANSWER_TIMES * asking))
    }

    fn save_limit(&self, saving: &Saving) -> Millis {
        let expected = self.final_save().seconds(saving.work);
        saving
            .since
            .plus(SAVE_MS.max(millis(SAVE_TIMES * expected)))
    }

    fn begin_if_it_pays(&mut self, now: Millis) {
        let runs = matches!(self.machine, Machine::Normal | Machine::Lowest(_));
        if !runs || !self.job.alive || self.job.busy || now < self.retry.not_before {
            return;
        }
        let standstill = self.costs.standstill();
        let foreseen = self.foreseen_end(now);
        let is_ahead = self.ahead_in(now).is_some_and(|left| left <= 0.0);
        let is_needed = self.dues.unsaved.pays(standstill) || foreseen.is_some();
        if !is_needed && !is_ahead {
            return;
        }
        let is_fresh = self
            .dues
            .since_image
            .is_some_and(|due| due.work() <= FRESH_SECONDS);
        let begun = match self.settings.asking {
            Asking::Dump => {
                self.start_save(now, Purpose::Regular);
                true
            }
            Asking::Possible if self.image().is_some() && is_fresh => {
                self.read_image(now, Purpose::Regular);
                true
            }
            Asking::Possible => {
                self.ask(now, Purpose::Regular);
                true
            }
            Asking::Never if self.image().is_some() => {
                self.read_image(now, Purpose::Regular);
                true
            }
            Asking::Never => false,
        };
        if begun && foreseen.is_some() {
            self.prepared_for = foreseen;
        }
        // A job that writes its state rarely is not saved ahead, and nothing is wrong with that.
        if !begun && is_needed {
            self.lacks_state();
        }
    }

    /// A checkpoint is due, and the job has no whole state on disk. Reports it when the time since then is as long
    /// as the interval, or [`DROUGHT_MS`].
    fn lacks_state(&mut self) {
        let worked = self.accounts.work_ms;
        let since = *self.due_since.get_or_insert(worked);
        let unsaved_ms = millis(self.unsaved_seconds());
        let waited = worked.saturating_sub(since);
        let interval = unsaved_ms.saturating_sub(waited);
        if !self.drought_is_reported && waited >= interval.min(DROUGHT_MS) {
            self.drought_is_reported = true;
            self.act(Action::Report(Report::NothingToSave { unsaved_ms }));
        }
    }

    /// The foreseen end of the machine, if it is time to save before it and no checkpoint was begun for
    /// it yet.
    fn foreseen_end(&self, now: Millis) -> Option<Millis> {
        let end = self.outlook.as_ref()?.1.taken_at?;
        let unsaved = self.unsaved_seconds();
        let lead = FORESEEN_LEAD.0 * self.final_save().seconds(unsaved) + FORESEEN_LEAD.1;
        let is_time = end.minus(millis(lead)) <= now && now < end;
        let pays = unsaved > self.costs.standstill();
        (is_time && pays && self.prepared_for != Some(end)).then_some(end)
    }

    pub(super) fn ask(&mut self, now: Millis, purpose: Purpose) {
        let deadline = self.leaving_deadline().filter(|_| purpose.is_last());
        let by_term = purpose.is_last() && self.settings.asking == Asking::Never;
        let action = if by_term {
            Action::SignalJob(crate::signals::TERM)
        } else {
            Action::AskForCheckpoint { last: deadline }
        };
        self.act(action);
        self.checkpoints = Checkpoints::Asked(Asked {
            since: now,
            worked_ms: self.accounts.work_ms,
            purpose,
            by_term,
        });
    }

    /// The job begins to change the files of its checkpoint, so they can't be saved.
    pub(super) fn files_move(&mut self) {
        self.job.image = None;
        self.dues.since_image = None;
        if let Checkpoints::Saving(saving) = &mut self.checkpoints {
            saving.stale = true;
        }
    }

    /// The job has finished a checkpoint on disk.
    pub(super) fn image_written(&mut self, now: Millis) {
        if !self.job.alive {
            return;
        }
        let worked = self.accounts.work_ms;
        self.quiet.alive(worked);
        let asked = match self.checkpoints {
            Checkpoints::Asked(asked) => Some(asked),
            _ => None,
        };
        self.job.image = Some(ImageOnDisk {
            work_ms: worked,
            answers_last: asked.is_some_and(|asked| asked.purpose.is_last()),
            is_torn: false,
        });
        self.dues.since_image = Some(Due::default());
        if let Some(asked) = asked {
            self.costs.answered(now.since(asked.since));
            self.read_image(now, asked.purpose);
        }
    }

    /// Saves the checkpoint on disk. Stops the job first if its files must not change meanwhile, or if
    /// this is the last checkpoint, after which no work would be saved.
    pub(super) fn read_image(&mut self, now: Millis, purpose: Purpose) {
        let stops = self.settings.while_read == WhileRead::Stopped && self.job.alive;
        if stops && self.job.is_held() {
            // The job is stopped already; the shell checks once more whether all processes stand still.
            self.act(Action::Stop);
        }
        if stops || purpose.is_last() {
            self.hold(HoldFor::Reading);
        }
        if stops {
            self.checkpoints = Checkpoints::Halting {
                since: now,
                purpose,
            };
        } else {
            self.start_save(now, purpose);
        }
    }

    pub(super) fn stands_still(&mut self, now: Millis, files_at_rest: bool) {
        let Checkpoints::Halting { purpose, .. } = self.checkpoints else {
            return;
        };
        if self.cut_short_stands_still(now, files_at_rest) {
            return;
        }
        if files_at_rest {
            self.start_save(now, purpose);
            return;
        }
        // The job was stopped while it was writing its next checkpoint.
        self.files_move();
        self.checkpoints = Checkpoints::Idle;
        let last = purpose.is_last();
        let again = last || self.settings.asking == Asking::Possible;
        if last {
            self.release_all();
        } else {
            self.release(HoldFor::Reading);
        }
        if again {
            self.checkpoints = Checkpoints::Asked(Asked {
                since: now,
                worked_ms: self.accounts.work_ms,
                purpose,
                by_term: last && self.settings.asking == Asking::Never,
            });
        }
    }

    pub(super) fn start_save(&mut self, now: Millis, purpose: Purpose) {
        if self.leaving_deadline().is_some_and(|end| end <= now) {
            // A save that begins at the deadline would only be cancelled.
            self.checkpoints = Checkpoints::Idle;
            return;
        }
        let worked = self.accounts.work_ms;
        let image = match self.settings.asking {
            Asking::Dump => None,
            _ => self.job.image.take(),
        };
        let image = image.unwrap_or(ImageOnDisk {
            work_ms: worked,
            answers_last: purpose.is_last(),
            is_torn: false,
        });
        self.saves += 1;
        let number = SaveNumber(self.saves);
        let since_image = self.dues.since_image.take().unwrap_or_default();
        let work = self.dues.unsaved.work() - since_image.work();
        self.dues.since_saving = Some(since_image);
        self.checkpoints = Checkpoints::Saving(Saving {
            number,
            since: now,
            purpose,
            held_since: now,
            image,
            work,
            image_taken: None,
            stale: false,
            cancelled: false,
        });
        let kind = match self.leaving_deadline().filter(|_| purpose.is_last()) {
            Some(deadline) => SaveKind::Final {
                deadline,
                parity: self.settings.final_parity,
            },
            None => SaveKind::Regular,
        };
        let is_torn = image.is_torn;
        self.act(Action::StartSave(SaveOrder {
            number,
            kind,
            is_torn,
        }));
    }

    /// Whether the job is being dumped. The dump holds its processes itself.
    pub(super) fn is_dumping(&self) -> bool {
        let Checkpoints::Saving(saving) = self.checkpoints else {
            return false;
        };
        self.settings.asking == Asking::Dump && saving.image_taken.is_none()
    }

    pub(super) fn image_taken(&mut self, now: Millis, number: SaveNumber) {
        let Checkpoints::Saving(saving) = &mut self.checkpoints else {
            return;
        };
        if saving.number != number || saving.image_taken.is_some() {
            return;
        }
        saving.image_taken = Some(now);
        let saving = *saving;
        let dumped = self.settings.asking == Asking::Dump;
        if saving.purpose.is_last() && dumped {
            self.hold(HoldFor::Reading);
        } else if !saving.purpose.is_last() {
            self.release_after_reading();
        }
    }

    /// Lets the job run and write again, unless it leaves.
    fn release_after_reading(&mut self) {
        if !matches!(self.machine, Machine::Leaving(_) | Machine::Stopping(_)) {
            self.release(HoldFor::Reading);
        }
    }

    pub(super) fn save_ended(&mut self, now: Millis, number: SaveNumber, outcome: SaveOutcome) {
        let Checkpoints::Saving(saving) = self.checkpoints else {
            return;
        };
        if saving.number != number {
            return;
        }
        self.checkpoints = Checkpoints::Idle;
        self.note_use(now, &saving, &outcome);
        let since_saving = self.dues.since_saving.take();
        if saving.purpose.is_last() {
            // Work after the final checkpoint would be lost.
            self.hold(HoldFor::Reading);
        } else {
            self.release_after_reading();
        }
        match outcome {
            SaveOutcome::Committed {
                version,
                stored_bytes,
                new_bytes,
                image_bytes,
            } => {
                let took_ms = now.since(saving.since);
                let read_ms = saving.image_taken.map_or(0, |at| at.since(saving.since));
                self.costs.saved(&MeasuredSave {
                    took_ms,
                    stored_bytes,
                    new_bytes,
                    image_bytes,
                    work_seconds: saving.work,
                    ended_with_reading: took_ms <= read_ms,
                });
                // A dump that was not reported as taken holds an unknown state.
                let dumps = self.settings.asking == Asking::Dump;
                let is_known = !dumps || saving.image_taken.is_some();
                self.commit(version, saving.image, is_known, since_saving);
                self.accounts.committed += 1;
                self.retry = Retry::default();
                self.act(Action::Report(Report::Committed { version, took_ms }));
                self.report_promise();
            }
            SaveOutcome::Failed => self.save_failed(now, &saving, since_saving),
            SaveOutcome::OtherSuccessor => self.yield_to_the_other(now),
        }
    }

    /// Takes a version that was committed. Work that only a torn version holds counts as lost.
    fn commit(
        &mut self,
        version: u64,
        image: ImageOnDisk,
        is_known: bool,
        since_saving: Option<Due>,
    ) {
        let before = self.job.committed.map_or(0, |committed| committed.work_ms);
        let work_ms = match (is_known, image.is_torn) {
            (false, _) => 0,
            (true, true) => before,
            (true, false) => image.work_ms,
        };
        self.job.committed = Some(Committed {
            version,
            work_ms,
            answers_last: is_known && image.answers_last,
        });
        self.due_since = None;
        self.drought_is_reported = false;
        if !image.is_torn {
            self.dues.unsaved = since_saving.unwrap_or_default();
        }
    }

    fn save_failed(&mut self, now: Millis, saving: &Saving, since_saving: Option<Due>) {
        self.accounts.failed += 1;
        let is_there = !saving.stale && self.settings.asking != Asking::Dump;
        if is_there && self.job.image.is_none() {
            self.job.image = Some(saving.image);
            self.dues.since_image = since_saving;
        }
        let retry_at = if saving.cancelled && self.leaving_deadline().is_some() {
            now
        } else {
            self.back_off(now)
        };
        self.retry.not_before = retry_at;
        self.act(Action::Report(Report::SaveFailed { retry_at }));
    }

    fn back_off(&mut self, now: Millis) -> Millis {
        let (first, longest) = RETRY_MS;
        let doubled = first.saturating_mul(1 << self.retry.failures.min(16));
        let wait = match self.machine {
            Machine::Leaving(_) | Machine::Stopping(_) => LAST_RETRY_MS,
            _ => doubled.min(longest),
        };
        self.retry.failures = self.retry.failures.saturating_add(1);
        self.retry.not_before = now.plus(wait);
        self.retry.not_before
    }

    /// Seconds that the save under way still needs, by its forecast. A save that takes longer, such as that
    /// of a whole version, is expected to go on for as long as it is late.
    pub(super) fn save_left_seconds(&self, saving: &Saving, now: Millis) -> f64 {
        let last = self.final_save();
        let expected = last.saving_seconds(saving.work);
        (expected - seconds(now.since(saving.since))).abs()
    }

    /// The save under way, if there is one.
    pub(super) const fn save_under_way(&self) -> Option<Saving> {
        match self.checkpoints {
            Checkpoints::Saving(saving) => Some(saving),
            _ => None,
        }
    }

    /// When the next save may begin, if not yet.
    pub(super) fn retry_after(&self, now: Millis) -> Option<Millis> {
        Some(self.retry.not_before).filter(|at| *at > now)
    }
}
