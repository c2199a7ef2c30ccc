//! What this machine knows of the whole files of a job, for a start after its supervisor was killed.
//!
//! The file `state.json` in the job's directory has the marks of the files as they were when they were last whole,
//! and the version that they follow. After a kill the files may be newer than that version. They are whole if only
//! renames have changed them since, and the job goes on from them if no other machine has saved it meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::Fingerprint;
use super::job_dir::JobDir;
use super::json_file::write_json;
use super::watch::FileWatch;

/// Name of the file.
const STATE: &str = "state.json";

/// Most files of a state that is noted, and most bytes of a note that is read.
const FILES_MAX: u32 = 10_000;
const BYTES_MAX: u64 = 16 << 20;

/// File of Linux that is different after each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why a job does not go on from the files here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotTaken {
    /// There are none, or the version holds them.
    #[error("nothing here is newer")]
    NothingNew,
    /// The newest version was not saved here.
    #[error("version {version} was saved elsewhere meanwhile")]
    Another { version: u64 },
    #[error("{} was written in place and may be torn", .0.display())]
    Torn(PathBuf),
    #[error("{} is gone", .0.display())]
    Gone(PathBuf),
}

/// The note.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptState {
    /// The start of the machine: what was not synchronised to the disk is lost with it.
    boot: String,
    /// The version that the files follow.
    version: u64,
    /// The mark of the incarnation that wrote the files. Notes of older programs have none.
    #[serde(default)]
    incarnation: Option<String>,
    /// Whether that version holds them.
    is_saved: bool,
    files: Fingerprint,
    /// Names of files that may be gone, because the job renames such files to other names.
    #[serde(default)]
    temporary: BTreeSet<PathBuf>,
}

impl KeptState {
    /// Notes whole files that follow a version. Does nothing if they are too many.
    ///
    /// # Errors
    /// When the note can't be written. There is then none.
    pub(super) fn write(
        place: &JobDir,
        watch: &FileWatch,
        saved: &Fingerprint,
        version: u64,
        incarnation: &str,
    ) -> io::Result<()> {
        let files = watch.whole();
        if files.count() > FILES_MAX {
            return Self::remove(place);
        }
        let note = Self {
            boot: boot_id()?,
            version,
            incarnation: Some(incarnation.to_owned()),
            is_saved: files.is_as(saved),
            files: files.clone(),
            temporary: watch.temporary().map(Path::to_owned).collect(),
        };
        write_json(&place.path(STATE), &note).or_else(|cause| {
            Self::remove(place)?;
            Err(cause)
        })
    }

    /// Makes the note of an earlier incarnation one of this, which goes on from the same files.
    ///
    /// # Errors
    /// When the note can't be written. It is then as it was.
    pub(super) fn adopt(place: &JobDir, incarnation: &str) -> io::Result<()> {
        let Some(note) = Self::read(place) else {
            return Ok(());
        };
        let note = Self {
            incarnation: Some(incarnation.to_owned()),
            ..note
        };
        write_json(&place.path(STATE), &note)
    }

    /// Removes the note: no later start goes on from these files.
    ///
    /// # Errors
    /// When it can't be removed.
    pub(super) fn remove(place: &JobDir) -> io::Result<()> {
        super::files::remove(&place.path(STATE))
    }

    /// The note of an earlier run since this machine was started.
    pub(super) fn read(place: &JobDir) -> Option<Self> {
        let path = place.path(STATE);
        let is_short = fs::metadata(&path).is_ok_and(|found| found.len() <= BYTES_MAX);
        let bytes = is_short.then(|| fs::read(&path).ok()).flatten()?;
        let note: Self = serde_json::from_slice(&bytes).ok()?;
        (boot_id().ok()? == note.boot).then_some(note)
    }

    /// Whether these files are whole and newer than the version, which is the newest of the job, and was saved by the
    /// incarnation with this mark.
    ///
    /// # Errors
    /// Why they are not taken.
    pub(super) fn is_newer_than(
        &self,
        version: u64,
        saved_by: Option<&str>,
        now: &Fingerprint,
    ) -> Result<(), NotTaken> {
        let is_unchanged = self.is_saved && now.is_as(&self.files);
        let is_noted = self.version == version;
        // The kill came after the commit and before the note. What is saved comes from these files.
        let is_own = version > self.version
            && self.incarnation.is_some()
            && self.incarnation.as_deref() == saved_by;
        if now.is_empty() || now.is_cut() || (is_noted && is_unchanged) {
            return Err(NotTaken::NothingNew);
        }
        if !(is_noted || is_own) {
            return Err(NotTaken::Another { version });
        }
        let mut gone = self.files.gone(now);
        if let Some(path) = gone.find(|path| !self.temporary.contains(*path)) {
            return Err(NotTaken::Gone(path.to_owned()));
        }
        match now.changed_in_place(&self.files) {
            Some(path) => Err(NotTaken::Torn(path.to_owned())),
            None => Ok(()),
        }
    }
}

/// The start of this machine.
///
/// # Errors
/// When the system does not name it.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ckpt_agent::image::Exclude;

    use super::*;

    #[test]
    fn files_that_were_renamed_into_place_since_are_newer_and_others_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let place = JobDir::take(Some(dir.path().into()), &"j".parse().unwrap()).unwrap();
        let state = dir.path().join("state");
        let print = || Fingerprint::of(std::slice::from_ref(&state), &Exclude::default());
        let watch = || FileWatch::new(Vec::new(), Exclude::default(), print());
        let put = |text: &str| {
            let next = dir.path().join("next");
            fs::write(&next, text).unwrap();
            fs::rename(&next, &state).unwrap();
        };
        assert_eq!(KeptState::read(&place), None);
        put("one");
        KeptState::write(&place, &watch(), &print(), 3, "me").unwrap();
        let is_newer = |version, saved_by| {
            let note = KeptState::read(&place).unwrap();
            note.is_newer_than(version, saved_by, &print()).is_ok()
        };
        assert!(!is_newer(3, Some("me")), "it is the version");
        put("two");
        assert!(is_newer(3, Some("me")));
        assert!(is_newer(3, None));
        // Another machine has saved the job meanwhile.
        assert!(!is_newer(4, Some("another")));
        assert!(!is_newer(4, None));
        // This one has, and was killed before it had noted that.
        assert!(is_newer(4, Some("me")));
        assert!(!is_newer(2, Some("me")), "the noted version is gone");
        KeptState::write(&place, &watch(), &Fingerprint::default(), 3, "me").unwrap();
        assert!(is_newer(3, Some("me")));
        KeptState::adopt(&place, "the next").unwrap();
        assert!(is_newer(3, Some("the next")));
        assert!(is_newer(4, Some("the next")));
        assert!(!is_newer(4, Some("me")));
        KeptState::write(&place, &watch(), &Fingerprint::default(), 3, "me").unwrap();
        // It may be half written.
        fs::write(&state, "half of three").unwrap();
        assert!(!is_newer(3, Some("me")));
        assert!(!is_newer(4, Some("me")));
        fs::remove_file(&state).unwrap();
        assert!(!is_newer(3, Some("me")));
        // The machine was started anew, or the note is damaged.
        let path: &Path = &place.path(STATE);
        let text = fs::read_to_string(path).unwrap();
        fs::write(path, text.replace(&boot_id().unwrap(), "another")).unwrap();
        assert_eq!(KeptState::read(&place), None);
        fs::write(path, &text[..text.len() / 2]).unwrap();
        assert_eq!(KeptState::read(&place), None);
    }
}
