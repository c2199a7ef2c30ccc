//! How a job leaves its machine: with a final checkpoint by a deadline, and then ended.

use super::saving::{Asked, Checkpoints, Purpose, Retry};
use super::{Machine, Supervisor};
use crate::accounts::FinalCheckpoint;
use crate::action::{Action, Report};
use crate::clock::{Millis, millis, seconds};
use crate::event::FilesAtEnd;
use crate::settings::{Asking, WhileRead};
use crate::signals::TERM;
use crate::status::{EndedBy, Ending, JobStatus, Why};
use crate::supervisor::job::{HoldFor, ImageOnDisk};

/// How many interrupts end a job that leaves at once.
const INTERRUPTS_TO_END: u8 = 3;
/// Time that is kept for stopping the job, or for ending it, before its last checkpoint is saved, milliseconds.
const STOP_MS: u64 = 2000;
/// The job gets at least this part of the grace to write its last checkpoint, however long saving it takes.
const WRITING_PART: u64 = 4;
/// Files that are not known to be whole are saved if this much work would be lost otherwise, seconds.
const TORN_WORTH_SECONDS: f64 = 60.0;
/// Least time for a save under way to finish when the job has ended by itself, milliseconds.
const LAST_SAVE_MS: u64 = 60_000;

/// The job has to be gone by the deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    why: Why,
    since: Millis,
    deadline: Millis,
    /// The job is not waited for any longer: what it has on disk is saved.
    is_cut_short: bool,
}

/// The job is being ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopping {
    outcome: Outcome,
    /// When the job is killed if it has not ended.
    kill_at: Millis,
    killed: bool,
    /// When the supervisor stops waiting for the job and the save.
    gone_by: Millis,
}

/// What is decided about the end. [`Supervisor::finish`] adds what is committed by then.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Left(Why),
    Job(JobStatus),
    OtherIncarnation,
    Hung,
}

impl Leaving {
    pub(super) const fn deadline(&self) -> Millis {
        self.deadline
    }

    pub(super) const fn since(&self) -> Millis {
        self.since
    }

    pub(super) const fn why(&self) -> Why {
        self.why
    }
}

impl Stopping {
    pub(super) fn next_deadline(&self, alive: bool) -> Millis {
        if self.killed || !alive {
            self.gone_by
        } else {
            self.kill_at.min(self.gone_by)
        }
    }
}

impl Supervisor {
    /// Begins to leave: the job has to be gone in `grace_ms`. A job that leaves already can only get less
    /// time.
    pub(super) fn leave(&mut self, now: Millis, why: Why, grace_ms: u64) {
        let deadline = self.within_limit(now.plus(grace_ms));
        match &mut self.machine {
            Machine::Leaving(leaving) => {
                if deadline < leaving.deadline {
                    leaving.deadline = deadline;
                    self.act(Action::Report(Report::Hurry { deadline }));
                }
            }
            Machine::Stopping(stopping) => {
                let kill = self.settings.kill_ms;
                stopping.kill_at = stopping.kill_at.min(deadline);
                stopping.gone_by = stopping.gone_by.min(deadline.plus(kill));
            }
            Machine::Ended => {}
            Machine::Normal | Machine::Lowest(_) | Machine::Suspended(_) => {
                self.begin_to_leave(now, why, deadline);
            }
        }
    }

    /// The user interrupts a job that leaves. The last of [`INTERRUPTS_TO_END`] interrupts ends the job as if
    /// its grace were over.
    pub(super) fn interrupted(&mut self, now: Millis, why: Why) {
        if matches!(self.machine, Machine::Ended) {
            return;
        }
        self.interrupts = self.interrupts.saturating_add(1);
        let left = INTERRUPTS_TO_END.saturating_sub(self.interrupts);
        if left > 0 {
            self.act(Action::Report(Report::Interrupted { left }));
        } else {
            self.leave(now, why, 0);
        }
    }

    fn begin_to_leave(&mut self, now: Millis, why: Why, deadline: Millis) {
        let grace_ms = deadline.since(now);
        let last = self.costs.announced_save(grace_ms);
        let unsaved = self.unsaved_seconds();
        let expected_ms = millis(self.last_save_seconds());
        let chance = last.chance(unsaved);
        self.accounts.last = Some(FinalCheckpoint {
            since: now,
            why,
            grace_ms,
            expected_ms,
            chance,
            took_ms: None,
        });
        self.act(Action::Report(Report::Leaving {
            why,
            deadline,
            expected_ms,
            chance,
        }));
        if self.owner_needs {
            self.hold(HoldFor::Owner);
        }
        self.machine = Machine::Leaving(Leaving {
            why,
            since: now,
            deadline,
            is_cut_short: false,
        });
        // Final saves don't wait for the back-off of an earlier failure.
        self.retry = Retry::default();
    }

    /// The deadline, but not later than the batch system's limit allows, whatever drives the job away.
    fn within_limit(&self, deadline: Millis) -> Millis {
        self.limit_deadline()
            .map_or(deadline, |limit| limit.min(deadline))
    }

    /// The deadline, if the job is leaving.
    pub(super) const fn leaving_deadline(&self) -> Option<Millis> {
        match &self.machine {
            Machine::Leaving(leaving) => Some(leaving.deadline),
            _ => None,
        }
    }

    /// Until when a job that leaves is waited for: then the rest of the grace is needed to save what it has.
    pub(super) fn last_call(&self) -> Option<Millis> {
        let Machine::Leaving(leaving) = &self.machine else {
            return None;
        };
        let is_waited_for = match self.checkpoints {
            Checkpoints::Asked(_) => true,
            Checkpoints::Idle => self.job.busy,
            _ => false,
        };
        if leaving.is_cut_short || !is_waited_for || self.settings.asking == Asking::Dump {
            return None;
        }
        let grace = leaving.deadline.since(leaving.since);
        let saving = self
            .final_save()
            .saving_seconds_at_most(self.unsaved_seconds());
        let kept = millis(saving).saturating_add(STOP_MS.min(grace / WRITING_PART));
        Some(
            leaving
                .deadline
                .minus(kept.min(grace - grace / WRITING_PART)),
        )
    }

    /// Stops waiting for a job that has not written its last checkpoint. It is stopped, and what it has on disk
    /// is saved.
    fn cut_short(&mut self, now: Millis) {
        if let Machine::Leaving(leaving) = &mut self.machine {
            leaving.is_cut_short = true;
            let deadline = leaving.deadline;
            self.act(Action::Report(Report::CutShort { deadline }));
        }
        if !self.job.is_held() {
            self.hold(HoldFor::Reading);
        } else {
            self.act(Action::Stop);
        }
        self.checkpoints = Checkpoints::Halting {
            since: now,
            purpose: Purpose::Last,
        };
    }

    /// The job that was cut short stands still. Returns whether it was cut short.
    pub(super) fn cut_short_stands_still(&mut self, now: Millis, files_at_rest: bool) -> bool {
        let Machine::Leaving(Leaving {
            why,
            is_cut_short: true,
            ..
        }) = self.machine
        else {
            return false;
        };
        if !files_at_rest {
            // What it left can be judged, and saved, once no process is there to change it.
            if self.settings.while_read == WhileRead::Stopped {
                self.files_move();
            }
            self.checkpoints = Checkpoints::Idle;
            self.act(Action::Kill);
        } else if self.image().is_some() {
            self.start_save(now, Purpose::Last);
        } else {
            self.checkpoints = Checkpoints::Idle;
            self.stop(now, Outcome::Left(why));
        }
        true
    }

    /// Takes the next step towards the final checkpoint, or ends the job.
    pub(super) fn leaving_step(&mut self, now: Millis) {
        self.towards_the_last(now);
        if self.job.alive && self.last_call().is_some_and(|last| last <= now) {
            self.cut_short(now);
        }
    }

    fn towards_the_last(&mut self, now: Millis) {
        let Machine::Leaving(leaving) = self.machine else {
            return;
        };
        let worked = self.accounts.work_ms;
        if now >= leaving.deadline {
            self.stop(now, Outcome::Left(leaving.why));
            return;
        }
        match self.checkpoints {
            Checkpoints::Saving(saving) if !saving.purpose.is_last() => {
                let left = seconds(leaving.deadline.since(now));
                let last = self.final_save();
                let needs = last.seconds(self.unsaved_seconds());
                let first = self.save_left_seconds(&saving, now);
                let since = self.dues.since_saving.map_or(0.0, |since| since.work());
                // The save under way and the final one, which then stores only what changed since, don't both
                // fit; without the first the final one does.
                if first + last.seconds(since) > left && needs < left {
                    self.cancel_save();
                }
            }
            Checkpoints::Saving(_) => {}
            Checkpoints::Halting { since, .. } => {
                self.checkpoints = Checkpoints::Halting {
                    since,
                    purpose: Purpose::Last,
                };
            }
            Checkpoints::Asked(asked) => {
                if !asked.purpose.is_last() {
                    self.checkpoints = Checkpoints::Asked(Asked {
                        purpose: Purpose::Last,
                        ..asked
                    });
                    self.release_all();
                }
            }
            Checkpoints::Idle => {
                if self.job.version_with_its_state(worked).is_some() {
                    // What it did from now on would be lost.
                    self.hold(HoldFor::Reading);
                    self.stop(now, Outcome::Left(leaving.why));
                } else if self.retry_after(now).is_none() {
                    self.request_last(now, &leaving);
                }
            }
        }
    }

    /// Whether the job may run now only because it has to write its last checkpoint.
    pub(super) fn awaits_last(&self) -> bool {
        match self.checkpoints {
            Checkpoints::Asked(asked) => asked.purpose.is_last(),
            Checkpoints::Saving(saving) => saving.purpose.is_last(),
            Checkpoints::Idle => self.job.busy,
            Checkpoints::Halting { .. } => false,
        }
    }

    /// Begins a final checkpoint of the state that the job has now.
    fn request_last(&mut self, now: Millis, leaving: &Leaving) {
        if self.image().is_some_and(|image| image.is_torn) && !self.is_torn_worth_saving() {
            self.job.image = None;
        }
        let has_state = self.job.image_has_its_state(self.accounts.work_ms);
        let is_final = leaving.is_cut_short || !self.job.alive;
        if has_state || (is_final && self.image().is_some()) {
            self.read_image(now, Purpose::Last);
        } else if !self.job.alive {
            self.stop(now, Outcome::Left(leaving.why));
        } else if leaving.is_cut_short {
            // It was killed, and its end is awaited.
        } else {
            // A job that can't be asked now has to run until it can be asked.
            self.release_all();
            if self.job.busy {
                return;
            }
            if self.settings.asking == Asking::Dump {
                self.start_save(now, Purpose::Last);
            } else {
                self.ask(now, Purpose::Last);
            }
        }
    }

    /// Whether files that are not known to be whole are better than what is committed.
    fn is_torn_worth_saving(&self) -> bool {
        self.unsaved_seconds() > TORN_WORTH_SECONDS
    }

    /// Ends the job: at once if it is stopped or late, otherwise with time to tidy up.
    fn stop(&mut self, now: Millis, outcome: Outcome) {
        let deadline = self.leaving_deadline().or(self.limit_deadline());
        self.finish_accounts_of_last(now);
        if !matches!(self.checkpoints, Checkpoints::Saving(_)) {
            self.checkpoints = Checkpoints::Idle;
        }
        self.cancel_save();
        let kill_ms = self.settings.kill_ms;
        let at_once = self.job.is_held() || deadline.is_some_and(|deadline| deadline <= now);
        let kill_at = if at_once {
            now
        } else {
            let patient = now.plus(kill_ms);
            deadline.map_or(patient, |deadline| deadline.min(patient))
        };
        let gone_by = kill_at.plus(kill_ms);
        if !at_once && self.job.alive {
            self.act(Action::SignalJob(TERM));
        }
        self.machine = Machine::Stopping(Stopping {
            outcome,
            kill_at,
            killed: false,
            gone_by,
        });
        self.stopping_step(now);
    }

    pub(super) fn stopping_step(&mut self, now: Millis) {
        let Machine::Stopping(stopping) = &mut self.machine else {
            return;
        };
        let saves = matches!(self.checkpoints, Checkpoints::Saving(_));
        let outcome = stopping.outcome;
        let alive = self.job.alive;
        let is_over = now >= stopping.gone_by;
        let kills = alive && !stopping.killed && now >= stopping.kill_at;
        stopping.killed |= kills;
        if kills {
            self.act(Action::Kill);
        }
        if (!alive && !saves) || is_over {
            if alive {
                self.act(Action::Report(Report::NotGone));
            }
            self.cancel_save();
            self.finish(now, outcome);
        }
    }

    fn finish(&mut self, now: Millis, outcome: Outcome) {
        let worked = self.accounts.work_ms;
        let saved = self.job.version_with_its_state(worked);
        let version = self.job.committed.map(|committed| committed.version);
        let ended_by = match outcome {
            Outcome::Job(status) => EndedBy::Job(status),
            Outcome::OtherIncarnation => EndedBy::OtherIncarnation,
            Outcome::Hung => EndedBy::Hung,
            Outcome::Left(why) => match saved {
                Some(version) => EndedBy::LeftSaved { why, version },
                None if self.left_stateless() => EndedBy::LeftStateless { why },
                None => EndedBy::LeftOlder { why, version },
            },
        };
        let kept = self.job.committed.map_or(0, |committed| committed.work_ms);
        self.accounts.lost_ms = match ended_by {
            EndedBy::Job(JobStatus::Exited(0)) | EndedBy::LeftSaved { .. } => 0,
            EndedBy::OtherIncarnation => worked,
            _ => worked.saturating_sub(kept),
        };
        self.finish_accounts_of_last(now);
        self.machine = Machine::Ended;
        self.act(Action::End(Ending {
            ended_by,
            job_gone: !self.job.alive,
        }));
    }

    /// Whether the job has left before it had written anything that could be saved. A user who ends a job by
    /// interrupts does not wait for what it writes.
    const fn left_stateless(&self) -> bool {
        self.job.is_stateless && self.job.committed.is_none() && self.interrupts < INTERRUPTS_TO_END
    }

    /// Records how long the final checkpoint took, once it is committed.
    fn finish_accounts_of_last(&mut self, now: Millis) {
        let is_saved = self
            .job
            .version_with_its_state(self.accounts.work_ms)
            .is_some();
        if let Some(last) = &mut self.accounts.last
            && is_saved
            && last.took_ms.is_none()
        {
            last.took_ms = Some(now.since(last.since));
        }
    }

    /// Another incarnation of the job has gone on: this one ends.
    pub(super) fn yield_to_the_other(&mut self, now: Millis) {
        if !matches!(self.machine, Machine::Stopping(_) | Machine::Ended) {
            self.stop(now, Outcome::OtherIncarnation);
        } else if let Machine::Stopping(stopping) = &mut self.machine {
            stopping.outcome = Outcome::OtherIncarnation;
        }
    }

    /// The job hangs. Its files are not trusted, so nothing is saved.
    pub(super) fn give_up(&mut self, now: Millis) {
        let runs = matches!(self.machine, Machine::Normal | Machine::Lowest(_));
        if runs {
            self.stop(now, Outcome::Hung);
        }
    }

    /// Takes the event that no process of the job is left.
    pub(super) fn job_ended(&mut self, now: Millis, status: JobStatus, files: FilesAtEnd) {
        if !self.job.alive {
            return;
        }
        let asked = match self.checkpoints {
            Checkpoints::Asked(asked) => Some(asked),
            _ => None,
        };
        match files {
            FilesAtEnd::Unchanged => {}
            FilesAtEnd::Missing => self.job.is_stateless = true,
            FilesAtEnd::Torn => {
                self.files_move();
                self.job.image = Some(ImageOnDisk {
                    work_ms: self.accounts.work_ms,
                    answers_last: false,
                    is_torn: true,
                });
            }
            FilesAtEnd::Whole => {
                self.job.image = Some(ImageOnDisk {
                    work_ms: self.accounts.work_ms,
                    answers_last: asked.is_some_and(|asked| asked.purpose.is_last()),
                    is_torn: false,
                });
                self.dues.since_image = Some(super::Due::default());
            }
        }
        self.job.alive = false;
        self.job.release_all();
        let saving = match self.checkpoints {
            Checkpoints::Saving(saving) => Some(saving),
            _ => {
                self.checkpoints = Checkpoints::Idle;
                None
            }
        };
        match self.machine {
            Machine::Normal | Machine::Lowest(_) | Machine::Suspended(_) => {
                self.ended_by_itself(now, status);
            }
            Machine::Leaving(leaving) => {
                let is_ours = leaving.is_cut_short
                    || asked.is_some_and(|asked| asked.by_term)
                    || saving.is_some_and(|saving| saving.purpose.is_last())
                    || status.is_as_if_terminated();
                if !is_ours {
                    self.ended_by_itself(now, status);
                }
            }
            Machine::Stopping(_) | Machine::Ended => {}
        }
    }

    /// The job has ended by itself. A save under way may go on for a while, because the next start of the
    /// job can use it.
    fn ended_by_itself(&mut self, now: Millis, status: JobStatus) {
        let limit = match self.checkpoints {
            Checkpoints::Saving(saving) => {
                millis(3.0 * self.save_left_seconds(&saving, now)).max(LAST_SAVE_MS)
            }
            _ => 0,
        };
        let until = now.plus(limit);
        let until = self.leaving_deadline().map_or(until, |end| end.min(until));
        // No process is left that needs time to be killed, so the save may go on up to the limit itself.
        let limit = self.settings.time_limit;
        let until = limit.map_or(until, |limit| limit.min(until));
        self.machine = Machine::Stopping(Stopping {
            outcome: Outcome::Job(status),
            kill_at: until,
            killed: false,
            gone_by: until,
        });
    }
}
