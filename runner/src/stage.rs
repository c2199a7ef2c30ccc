//! A job's files, set aside within moments, so that the job goes on while they are saved.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use ckpt_agent::image::Exclude;
use codec::JobId;
use machine::open_files::FileId;

use super::files::{Fingerprint, above, remove};
use super::journal::JournalEvent;
use super::set_aside::{Means, SetAside};

/// Most files that are set aside while the job stands still.
const FILES_MAX: usize = 20_000;

/// Prefix of the directories that this program makes beside a job's files to restore into.
pub(super) const PREFIX: &str = ".ckpt-run-";
/// Prefix of those in which it sets files aside.
const ASIDE: &str = ".ckpt-aside-";

/// The numbers of tmpfs and ramfs (statfs(2)).
const MEMORY_FILE_SYSTEMS: [i64; 2] = [0x0102_1994, 0x8584_58f6];
/// Bytes that are copied in a second before that was measured: an old disk's rate.
const COPIED_BYTES_PER_SECOND: f64 = 100e6;
/// A copy has to save more than this, seconds.
const COPY_GAIN_MIN_S: f64 = 1.0;

/// Which means may set a job's files aside.
#[derive(Clone, Debug, Default)]
pub struct MeansAllowed {
    /// Files that the job replaces by renaming: further names of them keep their content.
    pub replaced: BTreeSet<FileId>,
    /// Whether copies pay that do not share blocks.
    pub copies: bool,
}

/// Whether it pays to copy so many bytes, if reading them while the job stands still takes `reading_s` seconds. Before
/// that is known, it is taken to take longer. `rate` is how many bytes earlier copies made in a second.
pub(super) fn copies_pay(bytes: u64, reading_s: Option<f64>, rate: Option<f64>) -> bool {
    let copying_s = bytes as f64 / rate.unwrap_or(COPIED_BYTES_PER_SECOND);
    reading_s.is_none_or(|reading_s| copying_s + COPY_GAIN_MIN_S < reading_s)
}

/// A job's files, set aside. They are removed when this is dropped.
#[derive(Debug)]
pub(super) struct Stage {
    dirs: Vec<PathBuf>,
    paths: Vec<PathBuf>,
    means: UsedMeans,
}

/// By which means files were set aside.
#[derive(Clone, Copy, Debug)]
pub struct UsedMeans {
    /// The one that costs most.
    most: Means,
    /// Bytes that were copied in a second; `None` if too few were copied to know that.
    pub(super) copied_per_second: Option<f64>,
}

impl Stage {
    /// Sets `paths` aside, each under its own name, without what `exclude` leaves out.
    ///
    /// # Errors
    /// When something can't be set aside by the means that are allowed, or is not wanted any more. The caller then
    /// reads the files themselves.
    pub(super) fn of(
        paths: &[PathBuf],
        job: &JobId,
        allowed: &MeansAllowed,
        exclude: &Exclude,
        goes_on: &dyn Fn() -> bool,
    ) -> io::Result<Self> {
        let mut stage = Self {
            dirs: Vec::new(),
            paths: Vec::new(),
            means: UsedMeans {
                most: Means::Linked,
                copied_per_second: None,
            },
        };
        let before = Fingerprint::of(paths, exclude);
        let is_replaced = |found: &fs::Metadata| allowed.replaced.contains(&FileId::of(found));
        let copies = allowed.copies && !paths.iter().any(|path| is_in_memory(&above(path)));
        let mut set_aside = SetAside::new(FILES_MAX, &is_replaced, goes_on)
            .without(exclude)
            .with_copies(copies);
        for (path, dir) in paths.iter().zip(dirs(paths, job)) {
            let name = path
                .file_name()
                .ok_or_else(|| io::Error::other("a path without a name"))?;
            DirBuilder::new().mode(0o700).create(&dir)?;
            let to = dir.join(name);
            stage.dirs.push(dir);
            // A path that the user names may be a link, as for `ckpt save`.
            set_aside.duplicate(&fs::canonicalize(path)?, &to)?;
            stage.paths.push(to);
        }
        // Copies take time, and others than the job may write to its files.
        stage.means = UsedMeans {
            most: set_aside.used(),
            copied_per_second: set_aside.copied_per_second(),
        };
        if stage.means.most == Means::Copied && !Fingerprint::of(paths, exclude).is_as(&before) {
            return Err(io::Error::other("files changed while they were copied"));
        }
        Ok(stage)
    }

    /// The means that were used.
    pub(super) const fn means(&self) -> UsedMeans {
        self.means
    }

    /// Where the files are that were set aside.
    pub(super) const fn paths(&self) -> &Vec<PathBuf> {
        &self.paths
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        for dir in &self.dirs {
            // If this fails, the next run removes it.
            let _ = remove(dir);
        }
    }
}

/// Whether files there are in the memory, as those of `/dev/shm`: copies would count as memory of the job.
fn is_in_memory(path: &Path) -> bool {
    // What can't be looked at may be there.
    rustix::fs::statfs(path).map_or(true, |found| {
        #[allow(
            clippy::unnecessary_cast,
            reason = "the type of this field differs between processors"
        )]
        MEMORY_FILE_SYSTEMS.contains(&(found.f_type as i64))
    })
}

/// The directories beside these paths in which they are set aside.
fn dirs(paths: &[PathBuf], job: &JobId) -> impl Iterator<Item = PathBuf> {
    let name = job.file_name();
    let paths = paths.iter().enumerate();
    paths.map(move |(number, path)| above(path).join(format!("{ASIDE}{number}-{name}")))
}

/// Removes what a run of the job that was killed had set aside.
///
/// # Errors
/// When something can't be removed.
pub(super) fn clear_stages(paths: &[PathBuf], job: &JobId) -> io::Result<()> {
    dirs(paths, job).try_for_each(|dir| remove(&dir))
}

/// The entry of the journal for files that were set aside for a save, or why they could not be.
pub(super) fn set_aside_entry(done: Result<UsedMeans, String>) -> JournalEvent {
    match done.map(|means| means.most) {
        Ok(Means::Linked) => JournalEvent::SetAside { by: "names" },
        Ok(Means::Shared) => JournalEvent::SetAside { by: "reflinks" },
        Ok(Means::Copied) => JournalEvent::SetAside { by: "copies" },
        Err(why) => JournalEvent::NotSetAside { why },
    }
}

#[cfg(test)]
mod tests {
    use ckpt_agent::image::exclude_pattern;

    use super::*;

    #[test]
    fn what_a_killed_run_had_set_aside_is_removed_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        if is_in_memory(dir.path()) {
            eprintln!("not checked: copies, because the temporary files are in the memory");
            return;
        }
        let root = dir.path().join("state");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("a"), b"some").unwrap();
        let job: JobId = "42/7".parse().unwrap();
        let paths = [root.clone()];
        let left = || fs::read_dir(dir.path()).unwrap().count();
        let allowed = MeansAllowed {
            copies: true,
            ..MeansAllowed::default()
        };
        let stage = Stage::of(&paths, &job, &allowed, &Exclude::default(), &|| true).unwrap();
        let copy = stage.paths().first().unwrap().clone();
        fs::write(root.join("a"), b"more").unwrap();
        assert_eq!(fs::read(copy.join("a")).unwrap(), b"some");
        // As after a kill.
        std::mem::forget(stage);
        Stage::of(&paths, &job, &allowed, &Exclude::default(), &|| true).unwrap_err();
        assert_eq!(left(), 2);
        clear_stages(&paths, &job).unwrap();
        assert_eq!(left(), 1);
        drop(Stage::of(&paths, &job, &allowed, &Exclude::default(), &|| true).unwrap());
        // Asked during a copy only. Where copies share blocks, there is none.
        let written = std::cell::Cell::new(false);
        let writes = || {
            fs::write(root.join("b"), b"by another program").unwrap();
            written.replace(true);
            true
        };
        let changed = Stage::of(&paths, &job, &allowed, &Exclude::default(), &writes);
        assert_eq!(changed.is_err(), written.get());
        drop(changed);
        Stage::of(
            &[root.join("none")],
            &job,
            &allowed,
            &Exclude::default(),
            &|| true,
        )
        .unwrap_err();
        assert_eq!(left(), 1);
    }

    #[test]
    fn files_in_memory_are_not_copied_and_a_further_name_of_them_is_made() {
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            eprintln!("not checked: files in memory, because there is no /dev/shm");
            return;
        };
        assert!(is_in_memory(dir.path()));
        let path = dir.path().join("state");
        fs::write(&path, b"some").unwrap();
        let job: JobId = "42".parse().unwrap();
        let id = FileId::of(&fs::metadata(&path).unwrap());
        let mut allowed = MeansAllowed {
            copies: true,
            ..MeansAllowed::default()
        };
        let paths = [path];
        Stage::of(&paths, &job, &allowed, &Exclude::default(), &|| true).unwrap_err();
        allowed.replaced.insert(id);
        Stage::of(&paths, &job, &allowed, &Exclude::default(), &|| true).unwrap();
    }

    #[test]
    fn what_a_save_leaves_out_is_not_set_aside_and_may_change() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("state");
        let cache = root.join("cache");
        fs::create_dir_all(&cache).unwrap();
        fs::write(root.join("a"), b"some").unwrap();
        fs::write(root.join("job.log"), b"line").unwrap();
        // Neither can be set aside.
        let socket = std::os::unix::net::UnixListener::bind(cache.join("socket")).unwrap();
        fs::hard_link(root.join("job.log"), dir.path().join("log")).unwrap();
        let id = FileId::of(&fs::metadata(root.join("a")).unwrap());
        let allowed = MeansAllowed {
            replaced: BTreeSet::from([id]),
            copies: false,
        };
        let job: JobId = "42".parse().unwrap();
        let paths = [root];
        Stage::of(&paths, &job, &allowed, &Exclude::default(), &|| true).unwrap_err();
        clear_stages(&paths, &job).unwrap();
        let patterns = ["/cache", "*.log"].map(|one| exclude_pattern(one).unwrap());
        let exclude = Exclude::new(patterns.into()).unwrap();
        let stage = Stage::of(&paths, &job, &allowed, &exclude, &|| true).unwrap();
        let names = fs::read_dir(stage.paths().first().unwrap()).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["a"]);
        assert_eq!(stage.means().most, Means::Linked);
        drop(stage);
        drop(socket);
        if is_in_memory(dir.path()) {
            eprintln!("not checked: copies, because the temporary files are in the memory");
            return;
        }
        let writes = || fs::write(dir.path().join("log"), b"line\nline").is_ok();
        let allowed = MeansAllowed {
            copies: true,
            ..MeansAllowed::default()
        };
        Stage::of(&paths, &job, &allowed, &exclude, &writes).unwrap();
    }

    #[test]
    fn a_copy_pays_if_the_line_is_slower_than_a_disk() {
        let pays = |bytes, reading_s| copies_pay(bytes, reading_s, None);
        assert!(pays(1 << 30, Some(80.0)));
        assert!(!pays(1 << 30, Some(10.0)));
        assert!(!pays(1 << 20, Some(0.5)));
        assert!(pays(1 << 40, None));
        assert!(copies_pay(1 << 30, Some(10.0), Some(500e6)));
        assert!(!copies_pay(1 << 30, Some(80.0), Some(10e6)));
    }
}
