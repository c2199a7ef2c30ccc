//! What a shell does with the files of its job's state.

use std::time::Duration;

use machine::open_files::Writing;
use supervision::{Activity, Event, SaveAhead};
use tokio::time::Instant;

use super::{RunShell, SAMPLE_PERIOD};
use crate::files::{Fingerprint, written_by};
use crate::journal::JournalEvent;
use crate::kept_state::KeptState;
use crate::run_log::{needed, reason};
use crate::standing::{JobStanding, JobState};
use ckpt_agent::unix_time::unix_millis;

/// Time from one look at the files to the next, per file. A look takes some 10 us per file.
const LOOK_PERIOD_OF_FILE: Duration = Duration::from_millis(4);

/// Longest time from one look at the files to the next, for any number of files.
const LOOK_PERIOD_MAX: Duration = Duration::from_secs(60);

impl RunShell<'_> {
    /// Notes how the job stands.
    pub(super) fn note_standing(&mut self) {
        let now = self.supervisor.standing();
        let (state, why) = match now.activity {
            Activity::Runs => (JobState::Running, None),
            Activity::Saves => (JobState::Saving, None),
            Activity::Stopped(need) => (JobState::StoppedForOwner, Some(needed(need).to_owned())),
            Activity::Leaves(why) => (JobState::Leaving, Some(reason(why))),
            Activity::Ends => (JobState::Ending, None),
        };
        let clock = self.clock.now();
        let seconds = |ms: u64| ms as f64 / 1000.0;
        let mut standing = JobStanding {
            job: self.orders.job.to_string(),
            state,
            since_ms: now
                .since
                .map(|at| unix_millis().saturating_sub(clock.since(at))),
            why,
            host: None,
            standby: None,
            works: now.works && !self.job.is_stopped(),
            work_s: seconds(now.work_ms),
            unsaved_s: now.unsaved_seconds,
            next_save_s: None,
            version: self.saves.version,
            saved_at_ms: self.shown.saved_at_ms,
            not_saved: self.shown.not_saved.clone(),
            promised_s: self.supervisor.promise().map(|(loss, _)| loss),
        };
        if let Some(note) = self
            .shown
            .note
            .as_mut()
            .filter(|note| note.is_due(&standing))
        {
            standing.next_save_s = self.supervisor.next_save_ms().map(seconds);
            note.show(standing);
        }
    }

    pub(super) fn print(&self) -> Fingerprint {
        Fingerprint::of(&self.paths, &self.orders.save.options.exclude)
    }

    /// Which of these files processes of the job can write to.
    fn writing(&self, print: &Fingerprint) -> Writing {
        let exclude = &self.orders.save.options.exclude;
        written_by(&self.job.processes(), &self.roots, exclude, print)
    }

    pub(super) fn look_at_files(&mut self) {
        if self.orders.is_image() {
            return;
        }
        let print = self.print();
        self.foresee(SaveAhead {
            image_bytes: print.bytes(),
            ..self.ahead
        });
        let period = LOOK_PERIOD_OF_FILE.saturating_mul(print.count());
        self.due.look = Instant::now() + period.clamp(SAMPLE_PERIOD, LOOK_PERIOD_MAX);
        let now = self.clock.now();
        let mut watch = std::mem::take(&mut self.watch);
        let seen = watch.look(now, print, |print| self.seen_writing(print));
        self.watch = watch;
        if let Some(event) = seen {
            if event == Event::FilesAtRest {
                self.is_asked = false;
                self.note_state();
            }
            self.event(event);
        }
    }

    /// Notes the files that the job begins with: its first save may be committed before the next note.
    pub(super) fn note_beginning(&self, is_newer_here: bool) {
        if !self.watch.whole().is_empty() {
            self.note_state();
        } else if is_newer_here
            && let Err(cause) = KeptState::adopt(self.place, &self.orders.save.incarnation)
        {
            tracing::debug!(%cause, "the state of the job is not noted");
        }
    }

    /// Notes the whole files for a start after this process is killed.
    pub(super) fn note_state(&self) {
        let orders = self.orders;
        let Some(version) = self
            .saves
            .version
            .filter(|_| !orders.staged && !orders.is_image())
        else {
            return;
        };
        let incarnation = &orders.save.incarnation;
        let saved = &self.saves.saved;
        let noted = KeptState::write(self.place, &self.watch, saved, version, incarnation);
        if let Err(cause) = noted {
            tracing::debug!(%cause, "the state of the job is not noted");
        }
    }

    fn seen_writing(&mut self, print: &Fingerprint) -> Writing {
        let writing = self.writing(print);
        self.log.warn_of(&writing);
        writing
    }

    pub(super) fn stands_still(&mut self) {
        let print = self.print();
        let mut watch = std::mem::take(&mut self.watch);
        let (files_at_rest, event) = watch.at_standstill(print, |print| self.seen_writing(print));
        self.watch = watch;
        if let Some(event) = event {
            self.event(event);
        }
        self.event(Event::Still { files_at_rest });
    }

    /// Why the files are not whole, in words, with what helps.
    pub(super) fn obstacle(&self) -> Option<String> {
        let obstacle = self.watch.obstacle().filter(|_| !self.orders.is_image());
        obstacle.map(ToString::to_string)
    }

    /// A checkpoint has been due for a whole interval, and could not be taken.
    pub(super) fn lacks_state(&mut self) {
        let why = self.obstacle();
        let why = why.unwrap_or_else(|| "the job has written nothing new".to_owned());
        self.shown.not_saved = Some(why.clone());
        let unsaved_s = self.supervisor.unsaved_seconds();
        self.log
            .enter(JournalEvent::NoCheckpoint { why, unsaved_s });
    }
}
