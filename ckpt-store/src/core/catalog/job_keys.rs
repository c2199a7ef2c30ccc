//! What job keys may ask for and remove.
//!
//! A thief of a job key can do what the job can. So hosts keep some versions of a job from all of its keys,
//! the guards, from which the job can go on once the key is revoked: the newest two; of what arrived in the
//! last six hours the oldest, on which later ones may build, and the newest of each hour; and the newest two of
//! what is older. The job itself must not feel them: all guards but
//! the newest two take at most a third of the space that one key may have. Where they would take more, those
//! of earlier hours come first, because a thief adds later ones.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::{CheckpointId, JobTag, OwnerId};
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use protocol::wire::message::Claim;

use super::{Catalog, Checkpoint, Key};
use crate::core::Millis;
use crate::core::ledger::CHECKPOINT_BYTES;

/// This many of the newest committed versions are guards, of all and of those that are older than six hours.
const NEWEST_KEPT: usize = 2;

/// What arrived less than this long ago has a guard for each hour.
const RECENT: Duration = Duration::from_secs(6 * 3600);

const HOUR_S: u64 = 3600;

/// A checkpoint counts to the hour in which its save began if that was so shortly before it arrived, so that
/// all hosts have the same guards. Otherwise to the hour in which it arrived.
const SAVED_WITHIN_S: u64 = 120;

/// The guards but the newest two take at most the space of one key divided by this.
const PART_FOR_GUARDS: u64 = 3;

/// A job key may take any version up to this one, and from there on those that are not far above the job's.
const VERSION_FREE_MAX: u64 = 1 << 48;

/// Far above the versions of a job: by more than this.
const VERSIONS_AHEAD_MAX: u64 = 10_000;

/// The time by both clocks of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// The clock that only goes forward.
    pub now: Millis,
    /// Unix seconds.
    pub unix: u64,
}

impl Moment {
    /// How long ago `past` was, seconds.
    const fn since(self, past: Millis) -> u64 {
        self.now.0.saturating_sub(past.0) / 1000
    }
}

impl Checkpoint {
    /// When the checkpoint was renewed last before its commit: mostly when its last shard became complete.
    /// When this program was started, if that was later.
    const fn arrived(&self) -> Millis {
        let lifetime = UNCOMMITTED_LIFETIME.as_secs() * 1000;
        Millis(self.expires.0.saturating_sub(lifetime))
    }

    /// The hour to which it counts, since 1970.
    const fn hour(&self, at: Moment) -> u64 {
        let arrived = at.unix.saturating_sub(at.since(self.arrived()));
        let is_close = self.created.abs_diff(arrived) <= SAVED_WITHIN_S;
        let time = if is_close { self.created } else { arrived };
        time / HOUR_S
    }

    /// What it takes of its owner's space here.
    fn space(&self) -> u64 {
        let files = self.shards.iter().map(|shard| shard.file_bytes);
        files.fold(CHECKPOINT_BYTES, u64::saturating_add)
    }
}

impl Catalog {
    /// The job of a checkpoint that is known here, committed or not.
    pub fn job_of(&self, key: Key) -> Option<JobTag> {
        self.checkpoints.get(&key).map(|known| known.job_tag)
    }

    /// Whether a job key asks for a version far above those of its job. Nobody could save above the last
    /// version there is.
    pub(super) fn is_far_ahead(&self, owner: OwnerId, claim: &Claim) -> bool {
        let next = self.next_version(owner, claim.job_tag).number();
        let most = next.saturating_add(VERSIONS_AHEAD_MAX);
        claim.version.number() > most.max(VERSION_FREE_MAX)
    }

    /// Whether no job key may remove this checkpoint: it is a guard of its job.
    pub fn is_kept_from_job_keys(&self, at: Moment, key: Key) -> bool {
        let job = self.job_of(key);
        job.is_some_and(|job| self.guards(at, key.owner, job).contains(&key.checkpoint))
    }

    fn guards(&self, at: Moment, owner: OwnerId, job: JobTag) -> BTreeSet<CheckpointId> {
        let newest_first = self.entries_of(owner, job).rev();
        let committed = newest_first.filter_map(|(_, checkpoint)| {
            let known = self.checkpoints.get(&Key { owner, checkpoint })?;
            known.is_committed.then_some((checkpoint, known))
        });
        let mut guards = BTreeSet::new();
        let mut hours = BTreeMap::new();
        let mut older = Vec::new();
        let mut oldest: Option<(CheckpointId, &Checkpoint)> = None;
        for (id, known) in committed {
            if guards.len() < NEWEST_KEPT {
                guards.insert(id);
            }
            if at.since(known.arrived()) < RECENT.as_secs() {
                hours.entry(known.hour(at)).or_insert((id, known));
                if oldest.is_none_or(|(_, oldest)| known.arrived() <= oldest.arrived()) {
                    oldest = Some((id, known));
                }
            } else if older.len() < NEWEST_KEPT {
                older.push((id, known));
            }
        }
        let mut left = self.ledger.half() / PART_FOR_GUARDS;
        for (id, known) in oldest.into_iter().chain(hours.into_values()).chain(older) {
            if guards.contains(&id) {
                continue;
            }
            if known.space() <= left {
                left -= known.space();
                guards.insert(id);
            }
        }
        guards
    }
}

#[cfg(test)]
mod tests {
    use codec::{ShardRoot, Version};

    use super::*;

    const OWNER: OwnerId = OwnerId([1; 32]);
    const JOB: JobTag = JobTag([5; 32]);
    const START: u64 = 1_800_000_000 / HOUR_S * HOUR_S;

    fn key(version: u64) -> Key {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&version.to_le_bytes());
        Key {
            owner: OWNER,
            checkpoint: CheckpointId(id),
        }
    }

    fn claim(version: u64) -> Claim {
        Claim {
            job_tag: JOB,
            version: Version::new(version).unwrap(),
            checkpoint: key(version).checkpoint,
        }
    }

    /// A host on which one key may have `half` bytes.
    fn host(half: u64) -> Catalog {
        let mut catalog = Catalog::default();
        catalog.ledger.lend(2 * half, u64::MAX);
        catalog
    }

    /// Commits a version in this minute after the start.
    fn commit(catalog: &mut Catalog, version: u64, minute: u64) {
        let now = Millis(minute * 60_000);
        let roots: [ShardRoot; 1] = [ShardRoot([0; 32])];
        let kept = catalog.check_kept(now, OWNER.into(), &claim(version), &roots, u64::MAX);
        kept.unwrap();
        catalog.committed(key(version));
        catalog.dated(key(version), START + minute * 60);
    }

    fn moment(minute: u64) -> Moment {
        Moment {
            now: Millis(minute * 60_000),
            unix: START + minute * 60,
        }
    }

    fn kept(catalog: &Catalog, minute: u64, versions: u64) -> Vec<u64> {
        let all = 1..=versions;
        all.filter(|version| catalog.is_kept_from_job_keys(moment(minute), key(*version)))
            .collect()
    }

    #[test]
    fn the_newest_two_and_the_newest_of_each_hour_and_two_of_what_is_older_stay() {
        let mut catalog = host(1 << 30);
        // One version each 20 minutes, from the tenth on: three in each hour, for eight hours.
        for version in 1..=24 {
            commit(&mut catalog, version, version * 20 - 10);
        }
        assert_eq!(
            kept(&catalog, 479, 24),
            [5, 6, 7, 9, 12, 15, 18, 21, 23, 24]
        );
        assert_eq!(catalog.job_of(key(4)), Some(JOB));
        assert_eq!(catalog.job_of(key(25)), None);
        // Much later everything is old.
        assert_eq!(kept(&catalog, 10_000, 24), [23, 24]);
    }

    #[test]
    fn a_thief_does_not_remove_what_was_saved_in_an_earlier_hour() {
        let mut catalog = host(400 * CHECKPOINT_BYTES);
        commit(&mut catalog, 1, 30);
        commit(&mut catalog, 2, 59);
        for junk in 3..=300 {
            commit(&mut catalog, junk, 61 + junk / 6);
        }
        assert_eq!(kept(&catalog, 200, 300), [1, 2, 299, 300]);
    }

    /// A key that may have as much as five images saves one each five minutes with `--keep 2`.
    #[test]
    fn a_job_whose_images_take_a_fifth_of_its_share_always_has_room() {
        let image = CHECKPOINT_BYTES;
        let mut catalog = host(5 * image);
        let mut held = BTreeSet::new();
        for version in 1..=12 * 24 {
            let minute = version * 5;
            assert!(held.len() < 5, "no room for version {version}: {held:?}");
            commit(&mut catalog, version, minute);
            held.insert(version);
            for old in held.clone() {
                let is_wanted = old + 2 > version;
                if !is_wanted && !catalog.is_kept_from_job_keys(moment(minute), key(old)) {
                    catalog.forgotten(moment(minute).now, key(old));
                    held.remove(&old);
                }
            }
        }
        assert!(held.len() >= 3, "a guard is left: {held:?}");
    }

    #[test]
    fn no_job_key_takes_the_last_versions() {
        let mut catalog = host(1 << 30);
        commit(&mut catalog, 5, 0);
        let far = |catalog: &Catalog, version| catalog.is_far_ahead(OWNER, &claim(version));
        assert!(!far(&catalog, 6) && !far(&catalog, VERSION_FREE_MAX));
        assert!(far(&catalog, VERSION_FREE_MAX + 1) && far(&catalog, u64::MAX));
        commit(&mut catalog, VERSION_FREE_MAX, 1);
        assert!(!far(&catalog, VERSION_FREE_MAX + 1));
        assert!(far(&catalog, VERSION_FREE_MAX + VERSIONS_AHEAD_MAX + 2));
    }
}
