//! Finds out when a checkpoint in the job's files is whole.
//!
//! A job that has sent `SAVED=1` once is expected to send it for every checkpoint. The files of any other
//! job are whole when they have changed, no process of the job can write to them, and they have not
//! changed for a while.

use supervision::{Event, FilesAtEnd, JobNews, JobStatus, Millis};

use super::files::Fingerprint;

/// How long files must not change before they count as whole, milliseconds.
const REST_MS: u64 = 1_000;

/// What is known of the files.
#[derive(Debug, Default)]
pub(super) struct FileWatch {
    /// The files when they were whole for the last time: restored, at rest, or reported by the job.
    whole: Fingerprint,
    /// The files at the last look, and since when they are like this.
    last: Option<(Fingerprint, Millis)>,
    /// Whether the job itself reports when they are whole.
    reports_itself: bool,
    /// Whether [`Event::FilesMoving`] was reported since they were whole.
    is_moving: bool,
}

impl FileWatch {
    /// Begins with the files as they are before the job starts.
    pub(super) fn new(restored: Fingerprint) -> Self {
        Self {
            whole: restored,
            ..Self::default()
        }
    }

    /// Looks at the files. `is_open` finds out whether a process of the job can write to one of them. It
    /// reads `/proc`, so it is called only when it matters.
    pub(super) fn look(
        &mut self,
        now: Millis,
        print: Fingerprint,
        is_open: impl FnOnce(&Fingerprint) -> bool,
    ) -> Option<Event> {
        if self.reports_itself {
            // The files are whole again when the job reports it.
            return (!print.is_as(&self.whole))
                .then(|| self.moves(&print))
                .flatten();
        }
        let since = match &self.last {
            Some((last, since)) if print.is_as(last) => *since,
            _ => now,
        };
        let before = self.last.replace((print.clone(), since));
        if print.is_empty() || print.is_as(&self.whole) {
            return None;
        }
        // A single file that took the place of another one by a rename is whole at once.
        let took_the_place_of = |other: &Fingerprint| {
            print.is_one_file() && print.has_names_of(other) && print.was_replaced_since(other)
        };
        let since_last = before.filter(|(last, _)| !print.is_as(last));
        let is_renamed = took_the_place_of(&self.whole)
            || since_last.is_some_and(|(last, _)| took_the_place_of(&last));
        if (now.since(since) < REST_MS && !is_renamed) || is_open(&print) {
            return self.moves(&print);
        }
        self.is_moving = false;
        self.whole = print;
        Some(Event::FilesAtRest)
    }

    /// Reports once that the files move. Files that are replaced as a whole never move.
    fn moves(&mut self, print: &Fingerprint) -> Option<Event> {
        let is_new = !self.is_moving && !print.was_replaced_since(&self.whole);
        self.is_moving |= is_new;
        is_new.then_some(Event::FilesMoving)
    }

    /// The job itself reports a written checkpoint.
    pub(super) fn reported(&mut self, print: Fingerprint) -> Event {
        self.reports_itself = true;
        self.written(print)
    }

    /// A checkpoint is written, because the command that asks the job for it has succeeded.
    pub(super) fn written(&mut self, print: Fingerprint) -> Event {
        self.is_moving = false;
        self.whole = print;
        Event::Job(JobNews::Saved)
    }

    /// Whether the files are whole now that no process runs; `is_open` as in [`Self::look`].
    pub(super) fn is_whole(
        &self,
        print: &Fingerprint,
        is_open: impl FnOnce(&Fingerprint) -> bool,
    ) -> bool {
        if print.is_as(&self.whole) {
            return !print.is_empty();
        }
        !self.reports_itself && !print.is_empty() && !is_open(print)
    }

    /// Accepts files that are whole and at rest. Returns the event for the supervisor, if they are new.
    pub(super) fn accept(&mut self, print: Fingerprint) -> Option<Event> {
        let is_new = !print.is_as(&self.whole);
        self.is_moving = false;
        self.whole = print;
        is_new.then_some(Event::FilesAtRest)
    }

    /// What a job that ended with this status has left on disk.
    pub(super) fn at_end(&mut self, print: Fingerprint, status: JobStatus) -> FilesAtEnd {
        if print.is_as(&self.whole) || print.is_empty() {
            return FilesAtEnd::Unchanged;
        }
        let ended_itself = matches!(status, JobStatus::Exited(_));
        let was_replaced = print.was_replaced_since(&self.whole) && print.has_names_of(&self.whole);
        if self.reports_itself || !(ended_itself || was_replaced) {
            return FilesAtEnd::Torn;
        }
        self.accept(print);
        FilesAtEnd::Whole
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;
    use ckpt_agent::image::Exclude;

    struct State {
        dir: tempfile::TempDir,
        watch: FileWatch,
        now: Millis,
    }

    impl State {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self {
                dir,
                watch: FileWatch::default(),
                now: Millis(0),
            }
        }

        fn path(&self) -> PathBuf {
            self.dir.path().join("state")
        }

        fn print(&self) -> Fingerprint {
            Fingerprint::of(&[self.path()], &Exclude::default())
        }

        fn replace(&self, text: &str) {
            let next = self.dir.path().join("next");
            fs::write(&next, text).unwrap();
            fs::rename(&next, self.path()).unwrap();
        }

        fn append(&self, text: &str) {
            let mut all = fs::read(self.path()).unwrap_or_default();
            all.extend(text.as_bytes());
            fs::write(Path::new(&self.path()), all).unwrap();
        }

        fn look_after(&mut self, ms: u64, is_open: bool) -> Option<Event> {
            self.now = self.now.plus(ms);
            let print = self.print();
            self.watch.look(self.now, print, |_| is_open)
        }
    }

    #[test]
    fn files_are_at_rest_when_no_process_writes_and_they_stay_as_they_are() {
        let mut state = State::new();
        assert_eq!(state.look_after(5000, false), None);
        state.append("some");
        // At the first look any file may be half written.
        assert_eq!(state.look_after(1000, false), None);
        assert_eq!(state.look_after(500, false), None);
        assert_eq!(state.look_after(500, false), Some(Event::FilesAtRest));
        assert_eq!(state.look_after(5000, false), None);
        state.append("more");
        assert_eq!(state.look_after(1000, true), Some(Event::FilesMoving));
        assert_eq!(state.look_after(5000, true), None);
        assert_eq!(state.look_after(1, false), Some(Event::FilesAtRest));
        state.replace("another file");
        assert_eq!(state.look_after(1, false), Some(Event::FilesAtRest));
    }

    #[test]
    fn a_first_file_that_is_replaced_all_the_time_is_whole_at_the_second_look() {
        let mut state = State::new();
        state.replace("one");
        assert_eq!(state.look_after(100, false), None);
        state.replace("two");
        assert_eq!(state.look_after(100, false), Some(Event::FilesAtRest));
        state.append("half of three");
        let print = state.print();
        assert_eq!(state.watch.accept(print.clone()), Some(Event::FilesAtRest));
        assert_eq!(state.watch.accept(print), None);
    }

    #[test]
    fn a_job_that_says_when_it_has_saved_is_believed_alone() {
        let mut state = State::new();
        state.append("one");
        let print = state.print();
        assert_eq!(
            state.watch.reported(print.clone()),
            Event::Job(JobNews::Saved)
        );
        assert!(state.watch.is_whole(&print, |_| true));
        state.append("half of two");
        assert_eq!(state.look_after(1000, false), Some(Event::FilesMoving));
        assert_eq!(state.look_after(9000, false), None);
        let print = state.print();
        assert!(!state.watch.is_whole(&print, |_| false));
        let ended = state.watch.at_end(print.clone(), JobStatus::Exited(0));
        assert_eq!(ended, FilesAtEnd::Torn);
        state.watch.reported(print.clone());
        let ended = state.watch.at_end(print, JobStatus::Signalled(9));
        assert_eq!(ended, FilesAtEnd::Unchanged);
    }

    #[test]
    fn files_that_a_killed_job_wrote_in_place_are_torn_and_replaced_ones_are_whole() {
        let mut state = State::new();
        state.append("one");
        state.watch.accept(state.print());
        state.append("two");
        let print = state.print();
        let ended = state.watch.at_end(print.clone(), JobStatus::Signalled(15));
        assert_eq!(ended, FilesAtEnd::Torn);
        assert_eq!(
            state.watch.at_end(print, JobStatus::Exited(1)),
            FilesAtEnd::Whole
        );
        state.replace("three");
        let print = state.print();
        let ended = state.watch.at_end(print, JobStatus::Signalled(15));
        assert_eq!(ended, FilesAtEnd::Whole);
    }
}
