//! Finds out when a checkpoint in the job's files is whole.
//!
//! A job that has sent `SAVED=1` once is expected to send it for every checkpoint. The files of any other job
//! are whole when each file that has changed is whole:
//!
//! - another file took its place, by a rename;
//! - it has not changed for a while, or no process runs, and no process of the job can write to it;
//! - it is a file to which the job only appends. The user names these; also, beside files that are renamed into
//!   place, those that the job has opened for appending.
//!
//! A job that renames its state into place writes it under another name first. So where files are replaced, a new
//! name belongs to no state yet.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use supervision::{Event, FilesAtEnd, JobNews, JobStatus, Millis};

use super::files::{Change, Fingerprint};
use ckpt_agent::image::Exclude;
use machine::open_files::{FileId, OpenFile, Writing};

/// How long files must not change before they count as whole, milliseconds.
const REST_MS: u64 = 1_000;

/// Most names of files that come and go that are remembered.
const PASSING_NAMES_MAX: usize = 10_000;

/// Looks at which a temporary name was gone, at least.
const GONE_LOOKS_MIN: u32 = 2;

/// At how many looks a name was there, and gone, since it was gone for the first time.
#[derive(Clone, Copy, Debug, Default)]
struct Presence {
    there: u32,
    gone: u32,
}

impl Presence {
    const fn count(&mut self, is_there: bool) {
        let counted = if is_there {
            &mut self.there
        } else {
            &mut self.gone
        };
        *counted = counted.saturating_add(1);
    }

    /// Whether the name is gone most of the time.
    const fn is_temporary(&self) -> bool {
        self.gone >= GONE_LOOKS_MIN && self.gone > self.there
    }
}

/// Why the files are not whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// There is no file.
    Missing,
    /// A process has this file open for writing.
    Open {
        /// The file.
        path: PathBuf,
        /// Whether the process can only append to it.
        appends: bool,
    },
    /// This file was written to a moment ago.
    Moving(PathBuf),
    /// This file was removed a moment ago.
    Gone(PathBuf),
    /// The job may have been writing this file when it ended.
    Torn(PathBuf),
    /// The job reports when its files are whole, and has not done so since it changed this file.
    Unreported(PathBuf),
    /// A process can't be looked at, or there are too many files.
    Hidden,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => out.write_str(
                "there is no file at the paths of --files (try: --files with the path that the job writes)",
            ),
            Self::Open {
                path,
                appends: true,
            } => write!(
                out,
                "{} is open for appending (try: --append or --exclude with its name)",
                path.display()
            ),
            Self::Open { path, .. } => write!(
                out,
                "{} is open for writing (try: --ask, ckpt notify SAVED=1 from the job, or --append or --exclude with \
                 its name)",
                path.display()
            ),
            Self::Moving(path) => write!(
                out,
                "{} is written to all the time (try: --ask, ckpt notify SAVED=1 from the job, or --exclude with its \
                 name)",
                path.display()
            ),
            Self::Gone(path) => write!(out, "{} was removed a moment ago", path.display()),
            Self::Torn(path) => write!(
                out,
                "{} was perhaps half written when the job ended (try: rename it into place, --ask, ckpt notify SAVED=1 \
                 from the job, or --append or --exclude with its name)",
                path.display()
            ),
            Self::Unreported(path) => write!(
                out,
                "{} has changed, and the job has not reported SAVED=1 since (try: --append or --exclude with its name)",
                path.display()
            ),
            Self::Hidden => out.write_str(
                "processes of the job can't be looked at, or there are too many files (try: ckpt notify SAVED=1 from \
                 the job)",
            ),
        }
    }
}

/// What is known of the files.
#[derive(Debug, Default)]
pub(super) struct FileWatch {
    /// The paths that the user has named.
    roots: Vec<PathBuf>,
    /// Files to which the job only appends, by the user's word.
    append: Exclude,
    /// Files that were seen open for appending beside files that are renamed into place.
    appended: BTreeSet<FileId>,
    /// The files when they were whole for the last time: restored, at rest, or reported by the job.
    whole: Fingerprint,
    /// The files at the last look.
    last: Option<Fingerprint>,
    /// Since when files that differ from `whole` are as they were at the last look.
    since: BTreeMap<PathBuf, Millis>,
    /// Files that were open at the last look.
    open: BTreeSet<FileId>,
    /// Names that were there at one look and gone at the next one.
    passing: BTreeMap<PathBuf, Presence>,
    /// Whether the job was seen to rename files into place.
    replaces: bool,
    /// The files that it was seen to replace in this way, and never to write to.
    replaced: BTreeSet<PathBuf>,
    /// The files that it was seen to write to.
    written: BTreeSet<PathBuf>,
    /// Whether the job itself reports when they are whole.
    reports_itself: bool,
    /// Whether [`Event::FilesMoving`] was reported since they were whole.
    is_moving: bool,
    /// Why they were not whole at the last look.
    obstacle: Option<Obstacle>,
}

impl FileWatch {
    /// Begins with the files below `roots` as they are before the job starts. To those that match `append` the job
    /// only appends.
    pub(super) fn new(roots: Vec<PathBuf>, append: Exclude, restored: Fingerprint) -> Self {
        Self {
            roots,
            append,
            whole: restored,
            ..Self::default()
        }
    }

    /// Why the files were not whole at the last look; `None` if they were.
    pub(super) const fn obstacle(&self) -> Option<&Obstacle> {
        self.obstacle.as_ref()
    }

    /// The files when they were whole for the last time.
    pub(super) const fn whole(&self) -> &Fingerprint {
        &self.whole
    }

    /// The files that the job was seen to replace by renaming, and never to write to.
    pub(super) const fn replaced(&self) -> &BTreeSet<PathBuf> {
        &self.replaced
    }

    /// Looks at the files. `writing` finds out which of them processes of the job can write to. It
    /// reads `/proc`, so it is called only when it matters.
    pub(super) fn look(
        &mut self,
        now: Millis,
        print: Fingerprint,
        writing: impl FnOnce(&Fingerprint) -> Writing,
    ) -> Option<Event> {
        let before = self.last.replace(print.clone());
        if let Some(before) = &before {
            self.note_replaced(&print, before);
        }
        if self.reports_itself {
            // The files are whole again when the job reports it.
            self.obstacle = self.unreported(&print);
            return self
                .obstacle
                .is_some()
                .then(|| self.moves(&print))
                .flatten();
        }
        let is_same = print.is_as(&self.whole);
        if print.is_empty() || is_same {
            self.obstacle = (!is_same).then_some(Obstacle::Missing);
            return None;
        }
        self.note_changes(now, &print, before.as_ref());
        let writing = writing(&print);
        let judged = self.judge(&print, &writing, before.as_ref(), Some(now));
        self.note_open(&writing);
        match judged {
            Ok(whole) => self.accept(whole),
            Err(obstacle) => {
                self.obstacle = Some(obstacle);
                self.moves(&print)
            }
        }
    }

    /// Notes since when files are as they are, and whether files are replaced.
    fn note_changes(&mut self, now: Millis, print: &Fingerprint, before: Option<&Fingerprint>) {
        let mut since = BTreeMap::new();
        for (path, change) in print.changes(&self.whole) {
            let last = before.and_then(|last| print.change_of(path, last));
            self.replaces |= change == Change::Replaced || last == Some(Change::Replaced);
            let as_before = before.is_some() && last.is_none();
            let kept = self.since.get(path).filter(|_| as_before);
            since.insert(path.to_owned(), kept.copied().unwrap_or(now));
        }
        for path in self.whole.gone(print) {
            let as_before = before.is_some_and(|last| last.id_of(path).is_none());
            let kept = self.since.get(path).filter(|_| as_before);
            since.insert(path.to_owned(), kept.copied().unwrap_or(now));
        }
        self.since = since;
        if let Some(before) = before {
            self.note_presence(print, before);
        }
    }

    fn note_replaced(&mut self, print: &Fingerprint, before: &Fingerprint) {
        for (path, change) in print.changes(before) {
            match change {
                Change::Replaced => _ = self.replaced.insert(path.to_owned()),
                Change::Written => _ = self.written.insert(path.to_owned()),
                Change::New => {}
            }
        }
        let is_there = |path: &PathBuf| print.id_of(path).is_some();
        self.written.retain(is_there);
        let written = &self.written;
        self.replaced
            .retain(|path| is_there(path) && !written.contains(path));
    }

    fn note_presence(&mut self, print: &Fingerprint, before: &Fingerprint) {
        for path in before.gone(print) {
            if self.passing.len() >= PASSING_NAMES_MAX {
                self.passing.clear();
            }
            self.passing.entry(path.to_owned()).or_default();
        }
        for (path, presence) in &mut self.passing {
            presence.count(print.id_of(path).is_some());
        }
    }

    /// Names under which the job writes its next files, before it renames them: they are gone most of the time. That
    /// such a file is gone is no change of the state, unlike a file that is gone until another takes its place.
    pub(super) fn temporary(&self) -> impl Iterator<Item = &Path> {
        let passing = self.passing.iter();
        let temporary = passing.filter(|(_, presence)| presence.is_temporary());
        temporary.map(|(path, _)| path.as_path())
    }

    fn is_temporary(&self, path: &Path) -> bool {
        self.passing.get(path).is_some_and(Presence::is_temporary)
    }

    /// Files that belong to the state and are gone.
    fn gone<'a>(&'a self, print: &'a Fingerprint) -> impl Iterator<Item = &'a Path> {
        let gone = self.whole.gone(print);
        gone.filter(|path| !self.is_temporary(path))
    }

    fn note_open(&mut self, writing: &Writing) {
        self.open = writing.files.iter().filter_map(|open| open.id).collect();
        if self.replaces {
            let appended = writing.files.iter().filter(|open| open.appends);
            self.appended.extend(appended.filter_map(|open| open.id));
        }
    }

    /// Whether the job only appends to this file.
    fn is_append_only(&self, path: &Path) -> bool {
        self.roots.iter().any(|root| {
            let name = root.file_name().unwrap_or_default();
            path.starts_with(root)
                && if path == root {
                    self.append.leaves_out(name.as_bytes())
                } else {
                    self.append.leaves_out_path(root, path)
                }
        })
    }

    /// The whole files: all of them, but for those that belong to no state yet. `before` are the files at the last
    /// look. Without `now` no process runs, and all files are at rest.
    fn judge(
        &self,
        print: &Fingerprint,
        writing: &Writing,
        before: Option<&Fingerprint>,
        now: Option<Millis>,
    ) -> Result<Fingerprint, Obstacle> {
        let rests = |path: &Path| {
            let rested = |now: Millis| {
                let since = self.since.get(path);
                since.is_some_and(|since| now.since(*since) >= REST_MS)
            };
            now.is_none_or(rested)
        };
        let change_since_before = |path: &Path| before.map(|before| print.change_of(path, before));
        let is_replaced = |path: &Path| {
            now.is_some() && change_since_before(path) == Some(Some(Change::Replaced))
        };
        if writing.hidden.is_some() || writing.is_cut || print.is_cut() {
            return Err(Obstacle::Hidden);
        }
        let open = writing.files.iter();
        let mut open = open.filter(|open| self.keeps_from_being_whole(print, open));
        if let Some(OpenFile { path, appends, .. }) = open.next() {
            return Err(Obstacle::Open {
                path: path.clone(),
                appends: *appends,
            });
        }
        if let Some(path) = self.gone(print).find(|path| !rests(path)) {
            return Err(Obstacle::Gone(path.to_owned()));
        }
        let ids: BTreeSet<FileId> = writing.files.iter().filter_map(|open| open.id).collect();
        let mut whole = print.clone();
        for (path, change) in print.changes(&self.whole) {
            let is_open = print.id_of(path).is_some_and(|id| ids.contains(&id));
            if self.is_append_only(path) || self.was_appended(print, path) {
                continue;
            }
            match change {
                Change::Replaced => {}
                Change::New
                    if self.may_be_temporary(path)
                        && (is_open || change_since_before(path) != Some(None)) =>
                {
                    whole.forget(path);
                }
                _ if is_replaced(path) || (!is_open && rests(path)) => {}
                Change::New if self.replaces => whole.forget(path),
                // A log beside files that are renamed into place.
                Change::Written if is_open => {}
                _ => return Err(Obstacle::Moving(path.to_owned())),
            }
        }
        Ok(whole)
    }

    /// Whether a new file may be the next state under its temporary name. In the first state all files are new.
    fn may_be_temporary(&self, path: &Path) -> bool {
        self.is_temporary(path) || (self.replaces && !self.whole.is_empty())
    }

    fn was_appended(&self, print: &Fingerprint, path: &Path) -> bool {
        let id = print.id_of(path);
        id.is_some_and(|id| self.appended.contains(&id))
    }

    /// Whether a file that a process has open keeps the state from being whole.
    fn keeps_from_being_whole(&self, print: &Fingerprint, open: &OpenFile) -> bool {
        let path = open.id.and_then(|id| print.path_of(id));
        if self.is_append_only(path.unwrap_or(&open.path)) {
            return false;
        }
        let is_new =
            path.is_none_or(|path| print.change_of(path, &self.whole) == Some(Change::New));
        // The next state, under another name, or a log.
        !(self.replaces && (is_new || open.appends))
    }

    /// Why the files of a job that reports when they are whole are not; `None` if they are.
    fn unreported(&self, print: &Fingerprint) -> Option<Obstacle> {
        if print.is_empty() {
            return Some(Obstacle::Missing);
        }
        if print.is_cut() {
            return Some(Obstacle::Hidden);
        }
        let mut changes = print.changes(&self.whole);
        let changed = changes.find(|(path, _)| !self.is_append_only(path));
        let changed = changed.map(|(path, _)| path);
        let path = changed.or_else(|| self.whole.gone(print).next());
        path.map(|path| Obstacle::Unreported(path.to_owned()))
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
        self.accept(print);
        Event::Job(JobNews::Saved)
    }

    /// Looks at the files while no process runs; `writing` as in [`Self::look`]. Returns whether they are whole, and
    /// the event for the supervisor, if they are new.
    pub(super) fn at_standstill(
        &mut self,
        print: Fingerprint,
        writing: impl FnOnce(&Fingerprint) -> Writing,
    ) -> (bool, Option<Event>) {
        let is_same = print.is_as(&self.whole);
        let judged = if print.is_empty() {
            Err(Obstacle::Missing)
        } else if is_same {
            return (true, None);
        } else if self.reports_itself {
            self.unreported(&print).map_or(Ok(print), Err)
        } else {
            let writing = writing(&print);
            self.note_open(&writing);
            self.judge(&print, &writing, self.last.as_ref(), None)
        };
        match judged {
            // A report of the job stands for the files as they were at its time.
            Ok(_) if self.reports_itself => (true, None),
            Ok(whole) => (true, self.accept(whole)),
            Err(obstacle) => {
                self.obstacle = Some(obstacle);
                (false, None)
            }
        }
    }

    /// Accepts files that are whole and at rest. Returns the event for the supervisor, if they are new.
    fn accept(&mut self, print: Fingerprint) -> Option<Event> {
        let is_new = !print.is_as(&self.whole);
        self.is_moving = false;
        self.obstacle = None;
        self.whole = print;
        is_new.then_some(Event::FilesAtRest)
    }

    /// What a job that ended with this status has left on disk.
    pub(super) fn at_end(&mut self, print: Fingerprint, status: JobStatus) -> FilesAtEnd {
        if print.is_empty() {
            self.obstacle = Some(Obstacle::Missing);
            return FilesAtEnd::Missing;
        }
        if print.is_as(&self.whole) {
            return FilesAtEnd::Unchanged;
        }
        let ended_itself = matches!(status, JobStatus::Exited(_));
        self.obstacle = if self.reports_itself {
            self.unreported(&print)
        } else if ended_itself {
            None
        } else {
            self.torn_by_the_end(&print)
        };
        if self.obstacle.is_some() {
            return FilesAtEnd::Torn;
        }
        self.accept(print);
        FilesAtEnd::Whole
    }

    /// Which file a job that was killed may have been writing.
    fn torn_by_the_end(&self, print: &Fingerprint) -> Option<Obstacle> {
        let last = self.last.as_ref();
        let rests = |path: &Path, id: Option<FileId>| {
            let is_as_before = last.is_some_and(|last| print.change_of(path, last).is_none());
            is_as_before && id.is_some_and(|id| !self.open.contains(&id))
        };
        let is_replaced = |path: &Path| {
            last.is_some_and(|last| print.change_of(path, last) == Some(Change::Replaced))
        };
        let mut changes = print.changes(&self.whole);
        let torn = changes.find(|(path, change)| {
            let is_whole = match change {
                Change::Replaced => true,
                Change::New if self.replaces => true,
                _ => is_replaced(path) || rests(path, print.id_of(path)),
            };
            !is_whole && !self.is_append_only(path) && !self.was_appended(print, path)
        });
        let torn = torn.map(|(path, _)| path);
        let torn = torn.or_else(|| self.gone(print).next());
        torn.map(|path| Obstacle::Torn(path.to_owned()))
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
            self.watch
                .look(self.now, print, |_| Writing::of_unknown(is_open))
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
    fn files_that_are_replaced_and_never_written_to_are_known_whoever_reports_that_they_are_whole()
    {
        for reports in [false, true] {
            let mut state = State::new();
            let knows = |state: &State| state.watch.replaced().contains(&state.path());
            state.replace("one");
            if reports {
                state.watch.reported(state.print());
            }
            state.look_after(100, false);
            assert!(!knows(&state));
            state.replace("two");
            state.look_after(100, false);
            assert!(knows(&state));
            state.append("and more");
            state.look_after(100, false);
            assert!(!knows(&state));
            state.replace("three");
            state.look_after(100, false);
            assert!(!knows(&state));
        }
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
        let stands =
            |watch: &mut FileWatch| watch.at_standstill(print.clone(), |_| Writing::default());
        assert_eq!(stands(&mut state.watch), (true, Some(Event::FilesAtRest)));
        assert_eq!(stands(&mut state.watch), (true, None));
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
        let unknown = |_: &Fingerprint| Writing::of_unknown(true);
        assert!(state.watch.at_standstill(print, unknown).0);
        state.append("half of two");
        assert_eq!(state.look_after(1000, false), Some(Event::FilesMoving));
        assert_eq!(state.look_after(9000, false), None);
        let print = state.print();
        let nobody = |_: &Fingerprint| Writing::default();
        assert!(!state.watch.at_standstill(print.clone(), nobody).0);
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

    /// A directory of a state that is renamed into place, with a log beside it.
    struct Tree {
        dir: tempfile::TempDir,
        watch: FileWatch,
        now: Millis,
    }

    impl Tree {
        fn new(append: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let patterns = append.iter();
            let patterns = patterns.map(|one| ckpt_agent::image::exclude_pattern(one).unwrap());
            let append = Exclude::new(patterns.collect()).unwrap();
            let root = dir.path().to_owned();
            Self {
                watch: FileWatch::new(vec![root], append, Fingerprint::default()),
                dir,
                now: Millis(0),
            }
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.dir.path().join(name), text).unwrap();
        }

        fn replace(&self, text: &str) {
            self.write("n.new", text);
            let path = |name| self.dir.path().join(name);
            fs::rename(path("n.new"), path("n")).unwrap();
        }

        fn print(&self) -> Fingerprint {
            Fingerprint::of(&[self.dir.path().to_owned()], &Exclude::default())
        }

        /// What a look finds while these files are open, each for appending or not.
        fn open(&self, names: &[(&str, bool)]) -> Writing {
            let print = self.print();
            let open = names.iter().map(|(name, appends)| {
                let path = self.dir.path().join(name);
                OpenFile {
                    id: print.id_of(&path),
                    path,
                    appends: *appends,
                }
            });
            Writing {
                files: open.collect(),
                ..Writing::default()
            }
        }

        fn look(&mut self, open: &[(&str, bool)]) -> Option<Event> {
            self.now = self.now.plus(1000);
            let writing = self.open(open);
            let print = self.print();
            self.watch.look(self.now, print, |_| writing)
        }

        fn obstacle(&self) -> String {
            let obstacle = self.watch.obstacle();
            obstacle.map(ToString::to_string).unwrap_or_default()
        }
    }

    #[test]
    fn a_next_file_that_is_seen_under_its_temporary_name_belongs_to_no_state() {
        let mut tree = Tree::new(&[]);
        let next = tree.dir.path().join("n.new");
        let seen = |tree: &mut Tree, text: &str| {
            tree.replace(text);
            tree.write("n.new", "the next one");
            tree.look(&[])
        };
        // In the first state nothing distinguishes it from other files.
        seen(&mut tree, "one");
        assert_eq!(seen(&mut tree, "two"), Some(Event::FilesAtRest));
        assert!(tree.watch.whole().id_of(&next).is_some());
        // It is gone at the next looks, which is no change then.
        for text in ["three", "four"] {
            tree.replace(text);
            tree.look(&[]);
        }
        assert!(tree.watch.whole().id_of(&next).is_none());
        assert_eq!(tree.watch.temporary().collect::<Vec<_>>(), [&next]);
        // Twice in a row a look falls between the writing and the renaming.
        for text in ["five", "six"] {
            assert_eq!(seen(&mut tree, text), Some(Event::FilesAtRest));
        }
        assert!(tree.watch.whole().id_of(&next).is_none());
    }

    #[test]
    fn a_state_that_is_gone_until_the_next_takes_its_place_is_missed() {
        let mut tree = Tree::new(&[]);
        let state = tree.dir.path().join("n");
        for _ in 0..3 {
            tree.replace("one");
            tree.write("other", "of the state");
            for _ in 0..3 {
                tree.look(&[]);
            }
            fs::remove_file(&state).unwrap();
            tree.now = tree.now.plus(1);
            let print = tree.print();
            tree.watch.look(tree.now, print, |_| Writing::default());
            assert_eq!(tree.watch.obstacle(), Some(&Obstacle::Gone(state.clone())));
        }
    }

    #[test]
    fn a_file_that_is_kept_under_another_name_before_a_new_one_takes_its_place_is_state() {
        let mut tree = Tree::new(&[]);
        let path = |name: &str| tree.dir.path().join(name);
        let (state, before) = (path("n"), path("n.before"));
        for round in ["one", "two", "three"] {
            if round != "one" {
                fs::rename(&state, &before).unwrap();
            }
            tree.replace(round);
            for _ in 0..3 {
                tree.look(&[]);
            }
        }
        assert!(tree.watch.whole().is_as(&tree.print()));
    }

    #[test]
    fn files_that_are_renamed_into_place_are_whole_beside_a_log_and_a_next_one() {
        let mut tree = Tree::new(&[]);
        tree.replace("one");
        tree.write("log", "a");
        assert_eq!(tree.look(&[("log", true)]), None);
        tree.replace("two");
        tree.write("n.new", "half of thr");
        let open = [("log", true), ("n.new", false)];
        assert_eq!(tree.look(&open), Some(Event::FilesAtRest));
        // The half file belongs to no state.
        assert!(
            tree.watch
                .whole()
                .id_of(&tree.dir.path().join("n.new"))
                .is_none()
        );
        // It is killed while it writes the next one.
        tree.write("log", "ab");
        let ended = tree.watch.at_end(tree.print(), JobStatus::Signalled(15));
        assert_eq!(ended, FilesAtEnd::Whole);
    }

    #[test]
    fn a_file_that_is_open_keeps_a_state_from_being_whole_and_is_named_with_what_helps() {
        let mut tree = Tree::new(&[]);
        tree.write("image", "a");
        tree.look(&[("image", true)]);
        assert_eq!(tree.look(&[("image", true)]), None);
        let said = tree.obstacle();
        assert!(
            said.contains("image") && said.contains("--append"),
            "{said}"
        );
        // A file that is written in place beside one that is renamed.
        tree.replace("one");
        tree.look(&[]);
        assert_eq!(tree.look(&[]), Some(Event::FilesAtRest));
        tree.replace("two");
        tree.write("image", "ab");
        tree.look(&[("image", false)]);
        assert!(tree.obstacle().contains("image"), "{}", tree.obstacle());
        let ended = tree.watch.at_end(tree.print(), JobStatus::Signalled(9));
        assert_eq!(ended, FilesAtEnd::Torn);
        assert!(
            tree.obstacle().contains("half written"),
            "{}",
            tree.obstacle()
        );
    }

    #[test]
    fn files_to_which_the_job_only_appends_need_no_rest() {
        let mut tree = Tree::new(&["*.log"]);
        tree.write("image", "a");
        tree.write("a.log", "a");
        let open = [("a.log", false)];
        tree.look(&open);
        assert_eq!(tree.look(&open), Some(Event::FilesAtRest));
        // Nor do they make a reported state another one.
        tree.watch.reported(tree.print());
        tree.write("a.log", "ab");
        assert_eq!(tree.look(&open), None);
        assert_eq!(tree.watch.obstacle(), None);
        let ended = tree.watch.at_end(tree.print(), JobStatus::Signalled(9));
        assert_eq!(ended, FilesAtEnd::Whole);
    }

    #[test]
    fn a_job_without_any_file_has_no_state() {
        let mut tree = Tree::new(&[]);
        assert_eq!(tree.look(&[]), None);
        assert!(tree.obstacle().contains("--files"), "{}", tree.obstacle());
        let ended = tree.watch.at_end(tree.print(), JobStatus::Signalled(15));
        assert_eq!(ended, FilesAtEnd::Missing);
    }

    #[test]
    fn a_file_that_is_gone_for_a_moment_makes_no_whole_state() {
        let mut tree = Tree::new(&[]);
        tree.write("one", "a");
        tree.write("two", "a");
        tree.look(&[]);
        assert_eq!(tree.look(&[]), Some(Event::FilesAtRest));
        fs::remove_file(tree.dir.path().join("two")).unwrap();
        assert_eq!(tree.look(&[]), None);
        let ended = tree.watch.at_end(tree.print(), JobStatus::Signalled(15));
        assert_eq!(ended, FilesAtEnd::Torn);
        assert_eq!(tree.look(&[]), Some(Event::FilesAtRest));
    }
}
