//! What this machine knows of the whole files of a job, for a start after its supervisor was killed.
//!
//! The file `state.json` in the job's directory has the marks of the files as they were when they were last whole,
//! and the version that they follow. After a kill the files may be newer than that version. They are whole if only
//! renames have changed them since, and the job goes on from them if no other machine has saved it meanwhile.

use std::fs;
use std::io;

use serde::{Deserialize, Serialize};

use super::beat::write_json;
use super::files::Fingerprint;
use super::job_dir::JobDir;

/// Name of the file.
const STATE: &str = "state.json";

/// Most files of a state that is noted, and most bytes of a note that is read.
const FILES_MAX: u32 = 10_000;
const BYTES_MAX: u64 = 16 << 20;

/// File of Linux that is different after each start of the machine.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The note.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptState {
    /// The start of the machine: what was not synchronised to the disk is lost with it.
    boot: String,
    /// The version that the files follow.
    version: u64,
    /// Whether that version holds them.
    is_saved: bool,
    files: Fingerprint,
}

impl KeptState {
    /// Notes whole files that follow a version. Does nothing if they are too many.
    ///
    /// # Errors
    /// When the note can't be written. There is then none.
    pub(super) fn write(
        place: &JobDir,
        files: &Fingerprint,
        saved: &Fingerprint,
        version: u64,
    ) -> io::Result<()> {
        if files.count() > FILES_MAX {
            return Self::remove(place);
        }
        let note = Self {
            boot: boot_id()?,
            version,
            is_saved: files.is_as(saved),
            files: files.clone(),
        };
        write_json(&place.path(STATE), &note).or_else(|cause| {
            Self::remove(place)?;
            Err(cause)
        })
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

    /// Whether these files are whole and newer than the version, which is the newest of the job.
    pub(super) fn is_newer_than(&self, version: u64, now: &Fingerprint) -> bool {
        let is_unchanged = self.is_saved && now.is_as(&self.files);
        let is_whole = now.was_replaced_since(&self.files) && self.files.gone(now).next().is_none();
        self.version == version && is_whole && !is_unchanged && !now.is_empty()
    }
}

fn boot_id() -> io::Result<String> {
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
        let put = |text: &str| {
            let next = dir.path().join("next");
            fs::write(&next, text).unwrap();
            fs::rename(&next, &state).unwrap();
        };
        assert_eq!(KeptState::read(&place), None);
        put("one");
        KeptState::write(&place, &print(), &print(), 3).unwrap();
        let note = || KeptState::read(&place).unwrap();
        assert!(!note().is_newer_than(3, &print()), "it is the version");
        put("two");
        assert!(note().is_newer_than(3, &print()));
        // Another machine has saved the job meanwhile.
        assert!(!note().is_newer_than(4, &print()));
        KeptState::write(&place, &print(), &Fingerprint::default(), 3).unwrap();
        assert!(note().is_newer_than(3, &print()));
        // It may be half written.
        fs::write(&state, "half of three").unwrap();
        assert!(!note().is_newer_than(3, &print()));
        fs::remove_file(&state).unwrap();
        assert!(!note().is_newer_than(3, &print()));
        // The machine was started anew, or the note is damaged.
        let path: &Path = &place.path(STATE);
        let text = fs::read_to_string(path).unwrap();
        fs::write(path, text.replace(&boot_id().unwrap(), "another")).unwrap();
        assert_eq!(KeptState::read(&place), None);
        fs::write(path, &text[..text.len() / 2]).unwrap();
        assert_eq!(KeptState::read(&place), None);
    }
}
