//! Finds the directories that a program has put in place below a directory.
//!
//! A program that writes checkpoints as directories writes each under another name first, and renames it when
//! it is whole. The rename changes the directory's inode, but no entry of it: its time of change is then
//! later than its time of modification. A directory whose inode had another name at the look before was
//! renamed, too.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use supervision::Millis;

use super::completeness::{Completeness, Sign, latest};
use super::files::Fingerprint;
use super::watch::FileWatch;
use ckpt_agent::image::Exclude;
use machine::open_files::Writing;

/// A time of a file: seconds and nanoseconds.
type Time = (i64, i64);

/// A directory that was found.
#[derive(Clone, Debug)]
pub(super) struct FoundDir {
    name: OsString,
    inode: u64,
    /// When its inode changed.
    changed: Time,
    /// When an entry was added or removed.
    modified: Time,
    print: Fingerprint,
    sign: Sign,
    /// The hash of its files by which a saved one is known again.
    digest: String,
}

/// A directory that is whole and not saved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Whole {
    /// Path of the directory, below the one that is watched.
    pub(super) path: PathBuf,
    /// The hash of its files.
    pub(super) digest: String,
    changed: Time,
}

/// What is known of one directory.
#[derive(Debug, Default)]
struct Known {
    watch: FileWatch,
    inode: u64,
    /// When its inode changed.
    changed: Time,
    was_renamed: bool,
    /// Whether it counts as a checkpoint: by what it shows of itself, or because it was renamed into place.
    counts: bool,
    whole: Option<Whole>,
    /// The files when they were saved, or skipped.
    saved: Option<String>,
    /// The files of one that does not count, and since when they are as they are.
    left_out: Option<(String, Millis)>,
    /// Whether it was reported that it does not count.
    is_reported: bool,
}

impl Known {
    /// Whether it does not count as a checkpoint, and was never saved.
    const fn is_passed_over(&self) -> bool {
        !self.counts && self.saved.is_none()
    }
}

/// For how long a directory that does not count is as it is before that is reported, milliseconds. A program may pause
/// while it writes one.
const LEFT_OUT_MS: u64 = 10_000;

/// What is known of all directories below one.
#[derive(Debug)]
pub(super) struct Arrivals {
    dir: PathBuf,
    /// Digests of what hosts have already.
    saved: BTreeSet<String>,
    known: BTreeMap<OsString, Known>,
}

/// Looks at the directories below `dir`, and for the signs that they are whole. Hidden ones and symbolic links are
/// left out.
///
/// # Errors
/// When `dir` can't be read.
pub(super) fn find_directories(
    dir: &Path,
    exclude: &Exclude,
    completeness: &Completeness,
) -> io::Result<Vec<FoundDir>> {
    let mut found = Vec::new();
    let latest = latest(dir);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        // One that was renamed or removed a moment ago is seen at the next look.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        if !metadata.is_dir() || name.as_bytes().starts_with(b".") {
            continue;
        }
        // A sign is looked for before the files: what comes after it is not saved, but seen as a change.
        let sign = completeness.sign(dir, &name, latest.as_deref());
        let print = Fingerprint::of(&[entry.path()], exclude);
        found.push(FoundDir {
            name,
            sign,
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            digest: print.digest(dir),
            print,
        });
    }
    Ok(found)
}

impl Arrivals {
    /// Begins to watch a directory; `saved` are the digests of what hosts have already.
    pub(super) fn new(dir: PathBuf, saved: BTreeSet<String>) -> Self {
        Self {
            dir,
            saved,
            known: BTreeMap::new(),
        }
    }

    /// Takes what a look found. `is_open` finds out whether any process can write to
    /// the files below a path.
    pub(super) fn take(
        &mut self,
        now: Millis,
        found: Vec<FoundDir>,
        is_open: impl Fn(&Path, &Fingerprint) -> bool,
    ) {
        let names: BTreeMap<u64, OsString> = self
            .known
            .iter()
            .map(|(name, known)| (known.inode, name.clone()))
            .collect();
        let there: BTreeSet<OsString> = found.iter().map(|found| found.name.clone()).collect();
        self.known.retain(|name, _| there.contains(name));
        for found in found {
            let known = self.known.entry(found.name.clone()).or_default();
            if known.inode != found.inode {
                *known = Known {
                    inode: found.inode,
                    ..Known::default()
                };
                let before = names.get(&found.inode);
                known.was_renamed = before.is_some_and(|before| *before != found.name);
            }
            known.was_renamed |= found.changed > found.modified;
            known.changed = found.changed;
            known.counts = match found.sign {
                Sign::Whole => true,
                Sign::Unfinished => false,
                Sign::None => known.was_renamed,
            };
            let path = self.dir.join(&found.name);
            if self.saved.contains(&found.digest) {
                known.saved = Some(found.digest.clone());
            }
            let is_new = known.saved.as_ref() != Some(&found.digest);
            let is_counting = known.counts;
            known
                .whole
                .take_if(|whole| !is_counting || whole.digest != found.digest);
            if !is_counting {
                let since = known
                    .left_out
                    .take()
                    .filter(|(left, _)| *left == found.digest);
                known.left_out = since.or(Some((found.digest, now)));
                continue;
            }
            if found.print.is_empty() || !is_new {
                continue;
            }
            let came_to_rest = known.watch.look(now, found.print, |print| {
                Writing::of_unknown(is_open(&path, print))
            });
            if came_to_rest == Some(supervision::Event::FilesAtRest) {
                known.whole = Some(Whole {
                    path,
                    digest: found.digest,
                    changed: found.changed,
                });
            }
        }
    }

    /// The next directory to save. Of those that wait, only the `keep` newest are saved, the oldest of them
    /// first. One that is older than a saved one is skipped: it would become the newest version.
    pub(super) fn next(&mut self, keep: u32) -> Option<Whole> {
        let saved = self.known.values().filter(|known| known.saved.is_some());
        let newest_saved = saved.map(|known| known.changed).max();
        let mut waiting: Vec<Whole> = self
            .known
            .values()
            .filter_map(|known| known.whole.clone())
            .collect();
        waiting.sort_by(|one, other| (one.changed, &one.path).cmp(&(other.changed, &other.path)));
        let older = waiting.partition_point(|whole| Some(whole.changed) < newest_saved);
        let surplus = older.max(waiting.len().saturating_sub(keep as usize));
        for whole in waiting.drain(..surplus) {
            self.is_done(&whole);
        }
        waiting.into_iter().next()
    }

    /// Does not offer a directory again unless its files change.
    pub(super) fn is_done(&mut self, whole: &Whole) {
        let name = whole.path.file_name().unwrap_or_default();
        if let Some(known) = self.known.get_mut(name) {
            known.saved = Some(whole.digest.clone());
            known.whole = None;
        }
    }

    /// Whether no directory that counts is still changing or waiting.
    pub(super) fn is_quiet(&self) -> bool {
        let mut counting = self.known.values();
        counting.all(|known| !known.counts || (known.whole.is_none() && known.saved.is_some()))
    }

    /// Names of directories that do not count.
    pub(super) fn passed_over(&self) -> Vec<OsString> {
        let known = self.known.iter();
        let left_out = known.filter(|(_, known)| known.is_passed_over());
        left_out.map(|(name, _)| name.clone()).collect()
    }

    /// Names of directories that do not count, and have been as they are for a while. Each is named once.
    pub(super) fn newly_passed_over(&mut self, now: Millis) -> Vec<OsString> {
        let mut names = Vec::new();
        for (name, known) in &mut self.known {
            let since = known.left_out.as_ref().map(|(_, since)| *since);
            let is_due = known.is_passed_over()
                && since.is_some_and(|since| now.since(since) >= LEFT_OUT_MS);
            if is_due && !std::mem::replace(&mut known.is_reported, true) {
                names.push(name.clone());
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    struct Trainer {
        dir: tempfile::TempDir,
        arrivals: Arrivals,
        completeness: Completeness,
        now: u64,
    }

    impl Trainer {
        fn new(in_place: bool, saved: &[String]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let saved = saved.iter().cloned().collect();
            Self {
                arrivals: Arrivals::new(dir.path().to_owned(), saved),
                completeness: Completeness {
                    in_place,
                    ..Completeness::default()
                },
                dir,
                now: 0,
            }
        }

        fn write(&self, name: &str, text: &str) {
            let dir = self.dir.path().join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("model"), text).unwrap();
        }

        fn rename(&self, from: &str, to: &str) {
            // Longer than the clock of the file system needs for a tick.
            std::thread::sleep(Duration::from_millis(20));
            fs::rename(self.dir.path().join(from), self.dir.path().join(to)).unwrap();
        }

        fn look_after(&mut self, ms: u64, is_open: bool) -> Option<String> {
            self.now += ms;
            let exclude = Exclude::default();
            let found = find_directories(self.dir.path(), &exclude, &self.completeness).unwrap();
            self.arrivals.take(Millis(self.now), found, |_, _| is_open);
            let next = self.arrivals.next(2)?;
            Some(next.path.file_name()?.to_string_lossy().into_owned())
        }

        fn done(&mut self) -> String {
            let next = self.arrivals.next(2).unwrap();
            self.arrivals.is_done(&next);
            next.digest
        }
    }

    #[test]
    fn a_renamed_directory_is_whole_once_no_process_writes_to_it() {
        let mut trainer = Trainer::new(false, &[]);
        trainer.write("tmp-step-1", "one");
        assert_eq!(trainer.look_after(5000, false), None);
        assert_eq!(trainer.look_after(5000, false), None);
        assert!(trainer.arrivals.is_quiet());
        assert_eq!(trainer.arrivals.passed_over(), ["tmp-step-1"]);
        trainer.rename("tmp-step-1", "step-1");
        assert_eq!(trainer.look_after(500, false), None);
        assert!(!trainer.arrivals.is_quiet());
        assert_eq!(trainer.look_after(1000, true), None);
        assert_eq!(trainer.look_after(100, false).unwrap(), "step-1");
        trainer.done();
        assert_eq!(trainer.look_after(5000, false), None);
        assert!(trainer.arrivals.is_quiet());
        assert!(trainer.arrivals.passed_over().is_empty());
    }

    #[test]
    fn a_first_look_knows_what_was_renamed_before() {
        let mut trainer = Trainer::new(false, &[]);
        trainer.write("tmp", "one");
        trainer.rename("tmp", "step-1");
        trainer.write("tmp", "half of two");
        trainer.look_after(0, false);
        assert_eq!(trainer.look_after(1000, false).unwrap(), "step-1");
        assert_eq!(trainer.arrivals.passed_over(), ["tmp"]);
    }

    #[test]
    fn a_saved_directory_is_saved_again_only_after_a_change() {
        let mut first = Trainer::new(false, &[]);
        first.write("tmp", "one");
        first.rename("tmp", "step-1");
        first.look_after(0, false);
        first.look_after(1000, false).unwrap();
        let digest = first.done();
        first.arrivals = Arrivals::new(first.dir.path().to_owned(), [digest].into());
        assert_eq!(first.look_after(1000, false), None);
        assert_eq!(first.look_after(1000, false), None);
        assert!(first.arrivals.is_quiet());
        first.write("step-1", "one and more");
        first.look_after(1000, false);
        assert_eq!(first.look_after(1000, false).unwrap(), "step-1");
    }

    #[test]
    fn directories_older_than_a_saved_one_are_not_saved_after_a_new_start() {
        let mut trainer = Trainer::new(false, &[]);
        for name in ["step-1", "step-2", "step-3"] {
            trainer.write("tmp", name);
            trainer.rename("tmp", name);
        }
        trainer.look_after(0, false);
        let mut digests = Vec::new();
        while trainer.look_after(1000, false).is_some() {
            digests.push(trainer.done());
        }
        assert_eq!(digests.len(), 2);
        // Hosts still have the newest.
        let newest = digests.pop().unwrap();
        trainer.arrivals = Arrivals::new(trainer.dir.path().to_owned(), [newest].into());
        assert_eq!(trainer.look_after(1000, false), None);
        assert_eq!(trainer.look_after(1000, false), None);
        assert!(trainer.arrivals.is_quiet());
        trainer.write("tmp", "step-4");
        trainer.rename("tmp", "step-4");
        trainer.look_after(1000, false);
        assert_eq!(trainer.look_after(1000, false).unwrap(), "step-4");
    }

    #[test]
    fn only_the_newest_of_many_are_saved_the_oldest_of_them_first() {
        let mut trainer = Trainer::new(false, &[]);
        for name in ["c", "a", "b"] {
            trainer.write("tmp", name);
            trainer.rename("tmp", name);
        }
        trainer.look_after(0, false);
        assert_eq!(trainer.look_after(1000, false).unwrap(), "a");
        trainer.done();
        assert_eq!(trainer.look_after(100, false).unwrap(), "b");
        trainer.done();
        assert_eq!(trainer.look_after(5000, false), None);
    }

    #[test]
    fn in_place_everything_counts_that_is_at_rest() {
        let mut trainer = Trainer::new(true, &[]);
        trainer.write("step-1", "one");
        trainer.write(".hidden", "no");
        assert_eq!(trainer.look_after(0, false), None);
        assert_eq!(trainer.look_after(1000, true), None);
        assert_eq!(trainer.look_after(1000, false).unwrap(), "step-1");
        // What changes while it waits comes to rest first.
        trainer.write("step-1", "one, longer");
        assert_eq!(trainer.look_after(100, false), None);
        assert_eq!(trainer.look_after(1000, false).unwrap(), "step-1");
    }

    #[test]
    fn a_trainer_that_pauses_in_a_directory_has_it_saved_when_its_last_file_is_there() {
        let mut trainer = Trainer::new(false, &[]);
        trainer.write("checkpoint-500", "weights");
        assert_eq!(trainer.look_after(0, false), None);
        assert_eq!(trainer.look_after(9_000, false), None);
        assert!(
            trainer
                .arrivals
                .newly_passed_over(Millis(trainer.now))
                .is_empty()
        );
        assert_eq!(trainer.look_after(1_000, false), None);
        let reported = trainer.arrivals.newly_passed_over(Millis(trainer.now));
        assert_eq!(reported, ["checkpoint-500"]);
        assert!(
            trainer
                .arrivals
                .newly_passed_over(Millis(trainer.now))
                .is_empty()
        );
        let last = trainer.dir.path().join("checkpoint-500/trainer_state.json");
        fs::write(&last, "{}").unwrap();
        assert_eq!(trainer.look_after(100, false), None);
        assert_eq!(trainer.look_after(1_000, false).unwrap(), "checkpoint-500");
        // What waits and is written anew does not count any more.
        fs::remove_file(last).unwrap();
        assert_eq!(trainer.look_after(100, false), None);
        assert_eq!(trainer.look_after(5_000, false), None);
        assert_eq!(trainer.arrivals.passed_over(), ["checkpoint-500"]);
    }

    #[test]
    fn a_name_that_is_used_again_is_another_directory() {
        let mut trainer = Trainer::new(false, &[]);
        trainer.write("tmp", "one");
        trainer.rename("tmp", "last");
        trainer.look_after(0, false);
        trainer.look_after(1000, false).unwrap();
        trainer.done();
        fs::remove_dir_all(trainer.dir.path().join("last")).unwrap();
        trainer.write("tmp", "two");
        trainer.rename("tmp", "last");
        trainer.look_after(0, false);
        assert_eq!(trainer.look_after(1000, false).unwrap(), "last");
    }
}
