//! By what a directory that a program writes is known to be whole.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Files that trainers write last into a directory: the Trainer of Transformers, and PyTorch's distributed checkpoints.
const KNOWN_MARKERS: [&str; 2] = ["trainer_state.json", ".metadata"];

/// Files that trainers keep in a directory until it is whole: the Trainer of Transformers.
const KNOWN_SENTINELS: [&str; 1] = ["checkpoint-is-incomplete.txt"];

/// File beside the directories with the name of the last one that is whole: DeepSpeed.
const LATEST: &str = "latest";

/// Longest name in that file, bytes.
const LATEST_BYTES_MAX: u64 = 4096;

/// Which directories count as checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Completeness {
    /// A directory counts if it has one of these files. Without any, trainers' own files count, and a renaming.
    pub markers: Vec<PathBuf>,
    /// A directory does not count while it has one of these files.
    pub unless: Vec<PathBuf>,
    /// Whether a directory counts that has no sign, once it is at rest.
    pub in_place: bool,
}

/// What a directory shows of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It is whole, when it is at rest.
    Whole,
    /// It is not whole.
    Unfinished,
    /// Nothing: it counts if it was renamed into place.
    None,
}

impl Completeness {
    /// What the directory `name` in `dir` shows. `latest` is the one that [`latest`] names.
    pub(super) fn sign(&self, dir: &Path, name: &OsStr, latest: Option<&OsStr>) -> Sign {
        let path = dir.join(name);
        let has = |file: &Path| path.join(file).symlink_metadata().is_ok();
        let is_unfinished = self.unless.iter().any(|file| has(file))
            || KNOWN_SENTINELS.iter().any(|file| has(Path::new(file)));
        if is_unfinished {
            return Sign::Unfinished;
        }
        if !self.markers.is_empty() {
            return match self.markers.iter().any(|file| has(file)) {
                true => Sign::Whole,
                false => Sign::Unfinished,
            };
        }
        let is_known =
            latest == Some(name) || KNOWN_MARKERS.iter().any(|file| has(Path::new(file)));
        match is_known || self.in_place {
            true => Sign::Whole,
            false => Sign::None,
        }
    }
}

/// The directory that a file in `dir` names as the last one that is whole.
pub(super) fn latest(dir: &Path) -> Option<OsString> {
    let path = dir.join(LATEST);
    // A fifo would be waited for.
    let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
    let mut text = Vec::new();
    let opened = is_file.then(|| File::open(&path).ok()).flatten()?;
    opened.take(LATEST_BYTES_MAX).read_to_end(&mut text).ok()?;
    Some(OsString::from_vec(text.trim_ascii().to_vec()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn sign(completeness: &Completeness, files: &[&str]) -> Sign {
        let dir = tempfile::tempdir().unwrap();
        let step = dir.path().join("step");
        fs::create_dir(&step).unwrap();
        for file in files {
            fs::write(dir.path().join(file), "step\n").unwrap();
        }
        let latest = latest(dir.path());
        completeness.sign(dir.path(), OsStr::new("step"), latest.as_deref())
    }

    #[test]
    fn trainers_own_files_say_what_is_whole() {
        let own = Completeness::default();
        assert_eq!(sign(&own, &["step/model"]), Sign::None);
        assert_eq!(sign(&own, &["step/trainer_state.json"]), Sign::Whole);
        assert_eq!(sign(&own, &["step/.metadata"]), Sign::Whole);
        assert_eq!(sign(&own, &["step/model", "latest"]), Sign::Whole);
        let half = [
            "step/trainer_state.json",
            "step/checkpoint-is-incomplete.txt",
        ];
        assert_eq!(sign(&own, &half), Sign::Unfinished);
    }

    #[test]
    fn what_the_user_names_comes_before_what_is_known() {
        let marked = Completeness {
            markers: vec!["DONE".into(), "parts/DONE".into()],
            ..Completeness::default()
        };
        assert_eq!(
            sign(&marked, &["step/trainer_state.json"]),
            Sign::Unfinished
        );
        assert_eq!(sign(&marked, &["step/DONE"]), Sign::Whole);
        let unless = Completeness {
            unless: vec!["writing".into()],
            in_place: true,
            ..Completeness::default()
        };
        assert_eq!(sign(&unless, &["step/model"]), Sign::Whole);
        assert_eq!(sign(&unless, &["step/writing"]), Sign::Unfinished);
    }
}
