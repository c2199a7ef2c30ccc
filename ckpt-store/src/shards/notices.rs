//! Reads notices in order to pass them on. Only a few are in memory at the same time, however many there
//! are.

use std::path::PathBuf;

use super::error::StoreError;
use super::layout::{notice_path, older_notice_path};
use super::load;
use super::store::Store;
use crate::core::notices::OwnedJob;

/// Most bytes of notices that stay in memory between counting and sending. The others are read a second
/// time.
const KEPT_BYTES_MAX: usize = 128 << 10;

/// A notice that is to be passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoticeSource {
    /// The bytes of the notice.
    Read(Vec<u8>),
    /// The path of its file.
    OnDisk(PathBuf),
}

impl Store {
    /// For each of these jobs, its last notice and the older ones that are still needed.
    pub fn notices(&self, jobs: &[OwnedJob]) -> Vec<NoticeSource> {
        let mut all = Vec::new();
        let mut kept = 0;
        for path in self.notice_paths(jobs) {
            // A damaged notice is not passed on.
            let Ok(notice) = load::read_notice(&*self.disk, &path) else {
                continue;
            };
            kept += notice.bytes().len();
            all.push(if kept <= KEPT_BYTES_MAX {
                NoticeSource::Read(notice.bytes().to_vec())
            } else {
                NoticeSource::OnDisk(path)
            });
        }
        all
    }

    fn notice_paths(&self, jobs: &[OwnedJob]) -> Vec<PathBuf> {
        let mut paths = Vec::new();
        for &(owner, job_tag) in jobs {
            let catalog = self.catalog();
            if catalog.notices().get((owner, job_tag)).is_none() {
                continue;
            }
            paths.push(notice_path(owner, job_tag));
            let older = catalog.older_notices((owner, job_tag)).into_iter();
            paths.extend(older.map(|number| older_notice_path(owner, job_tag, number)));
        }
        paths
    }

    /// The bytes of a notice. If the notice was replaced meanwhile, these are the bytes of the newer one.
    ///
    /// # Errors
    /// When the file can't be read any more.
    pub fn notice_bytes(&self, source: NoticeSource) -> Result<Vec<u8>, StoreError> {
        match source {
            NoticeSource::Read(bytes) => Ok(bytes),
            NoticeSource::OnDisk(path) => {
                let notice = load::read_notice(&*self.disk, &path)?;
                Ok(notice.bytes().to_vec())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use codec::CheckpointId;
    use codec::keys::Keys;
    use codec::notice::{INTERVALS_MAX, Intervals, Notice, Stamp, Words};

    use super::*;
    use crate::disk::crash::{CrashDisk, Fault};
    use crate::shards::sample::Sample;
    use crate::shards::tests::{NOW, NOW_UNIX, commit, found, open, owner, put};

    /// A notice with as many intervals as are allowed.
    fn longest(keys: &Keys, job: &str) -> Notice {
        let (tag, path) = keys.tag_and_path(&job.parse().unwrap()).unwrap();
        let stamps = (0..INTERVALS_MAX as u64).map(|number| Stamp {
            created: 10 * number,
            checkpoint: CheckpointId([7; 16]),
        });
        let one_by_one = Intervals::default().with(&stamps.collect::<Vec<_>>());
        let of = (keys.owner(), tag);
        let gone = [CheckpointId([8; 16])];
        let words = Words::following(None, of, 5, None, &gone, &one_by_one);
        Notice::sign(keys, &path.blinded(), &words).unwrap()
    }

    #[test]
    fn a_full_disk_can_be_emptied() {
        let disk = CrashDisk::new(Fault::None, 0);
        let store = open(&disk);
        let keys = Keys::from(owner(1));
        let samples = [1, 2].map(|version| Sample::new(&owner(1), "42", version, version));
        for sample in &samples {
            put(&store, sample, 0).unwrap();
            commit(&store, sample).unwrap();
        }
        let (tag, path) = keys.tag_and_path(&"42".parse().unwrap()).unwrap();
        let of = (keys.owner(), tag);
        let deletes = |last: Option<&Words>, sample: &Sample| {
            let nothing = Intervals::default();
            let words = Words::following(last, of, 5, None, &[sample.id()], &nothing);
            Notice::sign(&keys, &path.blinded(), &words).unwrap()
        };
        // The owner of the machine fills the disk: there is room for no further file.
        disk.set_files_max(disk.files().len());
        let first = deletes(None, &samples[0]);
        assert_eq!(store.notice(NOW, NOW_UNIX, &first).unwrap(), 1);
        assert_eq!(found(&store, keys.owner()).len(), 1);
        // Even less: what was deleted is deleted, although nothing can be remembered of it.
        disk.set_files_max(0);
        let second = deletes(Some(first.words()), &samples[1]);
        assert!(store.notice(NOW, NOW_UNIX, &second).is_err());
        assert!(found(&store, keys.owner()).is_empty());
        let left = disk.files();
        assert!(
            left.iter().all(|path| path.starts_with("notices")),
            "{left:?}"
        );
        // Room comes back, and the owner repeats the deletion.
        disk.set_files_max(usize::MAX);
        store.notice(NOW, NOW_UNIX, &second).unwrap();
    }

    #[test]
    fn few_notices_are_in_memory_at_once_and_all_are_passed_on() {
        let store = open(&CrashDisk::new(Fault::None, 0));
        let keys = Keys::from(owner(1));
        let mut jobs = Vec::new();
        let mut sent = Vec::new();
        for number in 0..40_u64 {
            let job = format!("job-{number}");
            let sample = Sample::with_rows(&owner(1), &job, 1, number, &[1]);
            put(&store, &sample, 0).unwrap();
            commit(&store, &sample).unwrap();
            let notice = longest(&keys, &job);
            store.notice(NOW, NOW_UNIX, &notice).unwrap();
            jobs.push((keys.owner(), notice.words().job_tag));
            sent.push(notice.bytes().to_vec());
        }
        assert!(sent.concat().len() > 2 * KEPT_BYTES_MAX);
        let all = store.notices(&jobs);
        let kept = all.iter().map(|source| match source {
            NoticeSource::Read(bytes) => bytes.len(),
            NoticeSource::OnDisk(_) => 0,
        });
        assert!(kept.sum::<usize>() <= KEPT_BYTES_MAX);
        let passed_on = all
            .into_iter()
            .map(|source| store.notice_bytes(source).unwrap());
        assert_eq!(passed_on.collect::<Vec<_>>(), sent);
    }
}
