//! What job keys may ask for and remove.

use std::time::Duration;

use codec::JobTag;
use protocol::wire::limits::UNCOMMITTED_LIFETIME;

use super::{Catalog, Checkpoint, Key};
use crate::core::Millis;

/// No job key can remove the newest committed versions of a job: this many of them.
const NEWEST_KEPT: usize = 2;

/// No job key can remove a checkpoint that arrived less than this long ago.
const RECENT_KEPT_FOR: Duration = Duration::from_secs(6 * 3600);

impl Checkpoint {
    /// When the checkpoint was renewed last before its commit: mostly when its last shard became complete.
    /// When this program was started, if that was later.
    const fn arrived(&self) -> Millis {
        let lifetime = UNCOMMITTED_LIFETIME.as_secs() * 1000;
        Millis(self.expires.0.saturating_sub(lifetime))
    }
}

impl Catalog {
    /// The job of a checkpoint that is known here, committed or not.
    pub fn job_of(&self, key: Key) -> Option<JobTag> {
        self.checkpoints.get(&key).map(|known| known.job_tag)
    }

    /// Whether no job key may remove this checkpoint: it is one of the newest of its job, or arrived
    /// recently. So a thief of a job key can't remove everything.
    pub fn is_kept_from_job_keys(&self, now: Millis, key: Key) -> bool {
        let Some(checkpoint) = self.checkpoints.get(&key) else {
            return false;
        };
        if !self.is_committed(key) {
            return false;
        }
        if now < checkpoint.arrived().after(RECENT_KEPT_FOR) {
            return true;
        }
        let owner = key.owner;
        let job = checkpoint.job_tag;
        let above = (job, checkpoint.version, key.checkpoint);
        let newer = self
            .entries_from(owner, above)
            .map(|(_, checkpoint)| Key { owner, checkpoint })
            .filter(|newer| *newer != key && self.is_committed(*newer));
        newer.take(NEWEST_KEPT).count() < NEWEST_KEPT
    }
}

#[cfg(test)]
mod tests {
    use codec::{CheckpointId, OwnerId, Version};
    use protocol::wire::message::Claim;

    use super::*;

    const OWNER: OwnerId = OwnerId([1; 32]);

    fn key(version: u8) -> Key {
        Key {
            owner: OWNER,
            checkpoint: CheckpointId([version; 16]),
        }
    }

    fn with_versions(count: u8) -> Catalog {
        let mut catalog = Catalog::default();
        for version in 1..=count {
            let claim = Claim {
                job_tag: JobTag([5; 32]),
                version: Version::new(version.into()).unwrap(),
                checkpoint: key(version).checkpoint,
            };
            catalog.load_manifest(&claim, OWNER);
        }
        catalog
    }

    #[test]
    fn the_newest_two_and_what_came_lately_stay() {
        let catalog = with_versions(4);
        let hours = |hours: u64| Millis(hours * 3_600_000);
        let kept = |now| -> Vec<u8> {
            let all = 1..=5;
            all.filter(|version| catalog.is_kept_from_job_keys(now, key(*version)))
                .collect()
        };
        // Just after its start the program does not know how long it has had them, so all are kept.
        assert_eq!(kept(hours(5)), [1, 2, 3, 4]);
        assert_eq!(kept(hours(6)), [3, 4]);
        assert_eq!(catalog.job_of(key(4)), Some(JobTag([5; 32])));
        assert_eq!(catalog.job_of(key(5)), None);
    }
}
