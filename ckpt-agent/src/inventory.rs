//! Puts the answers of all hosts together: which checkpoints there are, and which hosts hold their
//! shards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use codec::grant::VoidList;
use codec::keys::Keys;
use codec::manifest::{Manifest, ManifestError, Summary};
use codec::notice::{Stamp, Words};
use codec::pieces::BaseRef;
use codec::{CheckpointId, JobTag, ShardIndex, Version};
use transfer::find::Shown;

use crate::core::HostIndex;

/// A checkpoint of which at least one host has the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCheckpoint {
    /// Its manifest, with a checked signature.
    pub manifest: Manifest,
    /// The shards that hosts hold, in the order of shards.
    pub holders: Vec<(ShardIndex, HostIndex)>,
    /// The hosts that have its manifest.
    pub knowers: Vec<HostIndex>,
}

impl KnownCheckpoint {
    /// The version that its manifest states.
    pub const fn version(&self) -> Version {
        self.manifest.public().version
    }

    /// By version, then time, then id.
    const fn age(&self) -> (Version, u64, CheckpointId) {
        let public = self.manifest.public();
        (public.version, public.created, public.checkpoint)
    }

    /// Its place in the history of its job.
    pub const fn stamp(&self) -> Stamp {
        let public = self.manifest.public();
        Stamp {
            created: public.created,
            checkpoint: public.checkpoint,
        }
    }

    /// How many different shards hosts hold.
    pub fn shards_found(&self) -> usize {
        let mut shards: Vec<ShardIndex> = self.holders.iter().map(|(shard, _)| *shard).collect();
        shards.dedup();
        shards.len()
    }

    /// How many shards can be lost before it can't be restored; `None` if too many are lost already.
    pub fn can_lose(&self) -> Option<usize> {
        self.shards_found()
            .checked_sub(self.manifest.public().redundancy.data())
    }
}

/// All checkpoints of one owner that hosts hold.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    checkpoints: BTreeMap<CheckpointId, Arc<KnownCheckpoint>>,
    /// Checkpoints that were saved in an interval whose checkpoints were all deleted. See
    /// [`Self::pass_over`].
    passed: BTreeMap<CheckpointId, Arc<KnownCheckpoint>>,
    /// Checkpoints that were signed with a job key that is void now.
    void: BTreeMap<CheckpointId, Arc<KnownCheckpoint>>,
    /// Upper bound of the memory that the checkpoints take, bytes.
    memory: u64,
    /// How many checkpoints were left out for want of memory.
    left_out: u64,
    /// Those of them that hosts have shown with shards.
    dropped: BTreeSet<CheckpointId>,
}

/// A version that was just saved.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    /// Sum of its file sizes.
    pub image_bytes: u64,
    /// Whether it is marked.
    pub is_marked: bool,
}

/// A version of fewer bytes may shrink to any size.
const SHRINKS_FROM: u64 = 4096;

/// Whether a version has so few bytes that something may be missing: less than a tenth of the one `before`.
pub const fn is_much_smaller(bytes: u64, before: u64) -> bool {
    before >= SHRINKS_FROM && bytes < before / 10
}

/// How many times the bytes of a manifest are in memory, at most: as signed, as read, and twice as
/// opened summary, whose entries take more than their encoding.
const MANIFEST_COPIES: u64 = 4;

/// Most checkpoints with shards that are left out. Each costs its key 64 KiB of space, on each honest host.
const DROPPED_MAX: usize = 100_000;

/// Bytes of memory for a checkpoint apart from its manifest: lists of holders, entries of maps.
const CHECKPOINT_MEMORY: u64 = 2 << 10;

/// Upper bound of the memory that a checkpoint takes, bytes.
fn memory_of(manifest: &Manifest) -> u64 {
    CHECKPOINT_MEMORY + MANIFEST_COPIES * manifest.bytes().len() as u64
}

/// What became of a checkpoint that a host reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// It is in the inventory now.
    Yes,
    /// It was left out. Another known checkpoint has the same id, and the owner signed both.
    Contradiction,
    /// It was left out. There is no memory for it.
    NoRoom,
}

impl Inventory {
    /// Enters what `host` has of one checkpoint, unless all checkpoints together would then take more
    /// than `memory_max` bytes of memory.
    pub fn add(&mut self, host: HostIndex, shown: Shown, memory_max: u64) -> Entered {
        let Shown { manifest, shards } = shown;
        let id = manifest.public().checkpoint;
        if self.dropped.contains(&id) {
            // Its holders would not be complete.
            return Entered::Yes;
        }
        if !self.checkpoints.contains_key(&id) {
            let needed = memory_of(&manifest);
            if self.memory + needed > memory_max {
                self.make_room(memory_max);
            }
            if self.memory + needed > memory_max || self.dropped.len() > DROPPED_MAX {
                return Entered::NoRoom;
            }
            self.memory += needed;
        }
        let known = self.checkpoints.entry(id).or_insert_with(|| {
            Arc::new(KnownCheckpoint {
                manifest: manifest.clone(),
                holders: Vec::new(),
                knowers: Vec::new(),
            })
        });
        if known.manifest != manifest {
            return Entered::Contradiction;
        }
        let known = Arc::make_mut(known);
        known.knowers.push(host);
        let shards = shards.into_iter().map(|shard| (shard, host));
        known.holders.extend(shards);
        known.holders.sort_unstable();
        known.holders.dedup();
        Entered::Yes
    }

    /// Leaves out some of what job keys signed, until what is left takes at most three quarters of
    /// `memory_max`: first that of which no host has shown a shard, and of the rest the oldest versions of the
    /// job that takes the most. So a thief of a job key hides no other job, and nothing that the owner signed.
    fn make_room(&mut self, memory_max: u64) {
        let wanted = memory_max / 4 * 3;
        let mut of_job: BTreeMap<JobTag, u64> = BTreeMap::new();
        let mut by_keys = Vec::new();
        for (id, known) in &self.checkpoints {
            let memory = memory_of(&known.manifest);
            let tag = known.manifest.public().job_tag;
            *of_job.entry(tag).or_default() += memory;
            if known.manifest.grant().is_some() {
                by_keys.push((known.holders.is_empty(), tag, known.age(), *id, memory));
            }
        }
        // The last ones go first.
        by_keys.sort_by_key(|&(has_none, tag, age, _, _)| {
            let of_job = of_job.get(&tag).copied();
            (has_none, of_job, tag, std::cmp::Reverse(age))
        });
        while self.memory > wanted
            && let Some((has_none, _, _, id, memory)) = by_keys.pop()
        {
            self.checkpoints.remove(&id);
            if !has_none {
                self.dropped.insert(id);
            }
            self.memory = self.memory.saturating_sub(memory);
            self.left_out += 1;
        }
    }

    /// How many checkpoints were left out for want of memory. All were signed with job keys.
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Forgets everything that `host` reported.
    pub fn drop_host(&mut self, host: HostIndex) {
        self.checkpoints.retain(|_, known| {
            if known.knowers.contains(&host) {
                let known = Arc::make_mut(known);
                known.knowers.retain(|knower| *knower != host);
                known.holders.retain(|(_, holder)| *holder != host);
            }
            !known.knowers.is_empty()
        });
    }

    /// Whether enough shards of a checkpoint are on hosts to restore it, and enough of the checkpoint
    /// that is its base, if it has one.
    pub fn is_restorable(&self, keys: &Keys, known: &KnownCheckpoint) -> bool {
        let Ok(summary) = known.manifest.open(keys) else {
            return false;
        };
        let are_there = summary.needs().all(|need| {
            let needed = self.needed(need);
            needed.is_some_and(|known| known.can_lose().is_some())
        });
        known.can_lose().is_some() && are_there
    }

    /// Of these checkpoints, those that are no versions any more: the newest one that uses rows of them states so.
    pub fn for_rows_only(
        &self,
        keys: &Keys,
        newest_first: &[&KnownCheckpoint],
    ) -> BTreeSet<CheckpointId> {
        let opened = newest_first.iter().rev();
        let opened =
            opened.filter_map(|known| Some((known.version(), known.manifest.open(keys).ok()?)));
        let opened: Vec<(Version, Summary)> = opened.collect();
        let all = opened.iter().map(|(version, summary)| (*version, summary));
        kept_for(all).into_keys().collect()
    }

    /// Splits into the checkpoints that stay when the newest `keep` are kept, and the others; both newest
    /// first. A checkpoint that can't be restored now is not counted: a version that only one host has,
    /// or that was lost, must not displace the last good one. It stays itself if it is newer than those
    /// that are kept. A marked one is not counted either; as many stay as are kept, if no whole one is newer.
    /// `saved` is a version that is kept besides, and newer than all.
    ///
    /// If a version that stays has much fewer bytes than the one before it, that one stays once more. What is no
    /// version any more does not stay.
    pub fn split_kept<'a>(
        &self,
        keys: &Keys,
        newest_first: Vec<&'a KnownCheckpoint>,
        keep: usize,
        saved: Option<Saved>,
    ) -> (Vec<&'a KnownCheckpoint>, Vec<&'a KnownCheckpoint>) {
        let is_whole = saved.is_none_or(|saved| !saved.is_marked);
        let mut counted = usize::from(saved.is_some() && is_whole);
        let mut marked = usize::from(saved.is_some() && !is_whole);
        let mut later = saved.map(|saved| saved.image_bytes).filter(|_| is_whole);
        let for_rows_only = self.for_rows_only(keys, &newest_first);
        newest_first.into_iter().partition(|known| {
            if for_rows_only.contains(&known.manifest.public().checkpoint) {
                return false;
            }
            let opened = known.manifest.open(keys).ok();
            let bytes = opened.as_ref().map_or(0, |summary| summary.image_bytes);
            if opened.is_some_and(|summary| summary.tail.mark.is_some()) {
                marked += 1;
                return counted == 0 && marked <= keep;
            }
            let is_restorable = self.is_restorable(keys, known);
            let is_once_more = counted == keep
                && is_restorable
                && later.is_some_and(|later| is_much_smaller(later, bytes));
            let stays = counted < keep || is_once_more;
            counted += usize::from(stays && is_restorable) + usize::from(is_once_more);
            later = Some(bytes).filter(|_| stays && is_restorable);
            stays
        })
    }

    /// Splits into the checkpoints that stay, which are the newest restorable one and all that were saved
    /// within `seconds` before it, and the others; both newest first. If it has a time from the future, what was saved
    /// within `seconds` before `now` stays.
    pub fn split_within<'a>(
        &self,
        keys: &Keys,
        newest_first: Vec<&'a KnownCheckpoint>,
        seconds: u64,
        now: u64,
    ) -> (Vec<&'a KnownCheckpoint>, Vec<&'a KnownCheckpoint>) {
        let created = |known: &KnownCheckpoint| known.manifest.public().created;
        let is_marked = |known: &KnownCheckpoint| {
            let opened = known.manifest.open(keys);
            opened.is_ok_and(|summary| summary.tail.mark.is_some())
        };
        let mut all = newest_first.iter();
        let newest = all.find(|known| self.is_restorable(keys, known) && !is_marked(known));
        // If nothing can be restored now, nothing is removed.
        let newest = newest.map_or(0, |newest| created(newest).min(now));
        let for_rows_only = self.for_rows_only(keys, &newest_first);
        let (stay, others): (Vec<_>, Vec<_>) = newest_first.into_iter().partition(|known| {
            let is_version = !for_rows_only.contains(&known.manifest.public().checkpoint);
            is_version && created(known).saturating_add(seconds) >= newest
        });
        (stay, others)
    }

    /// Leaves out the checkpoints that the owner of a job deleted by id. Passes over those in an interval
    /// of which all were deleted: a host kept them or brought them back, or they were saved while no host
    /// here knew of the deletion.
    pub fn pass_over(&mut self, said: &Words) {
        let job = (said.owner, said.job_tag);
        let is_named = |known: &KnownCheckpoint| {
            let public = known.manifest.public();
            let is_gone = said.gone.contains(&public.checkpoint);
            is_gone && (public.owner, public.job_tag) == job
        };
        self.checkpoints.retain(|_, known| !is_named(known));
        let Self {
            checkpoints,
            passed,
            ..
        } = self;
        checkpoints.retain(|id, known| {
            let public = known.manifest.public();
            let is_of_job = (public.owner, public.job_tag) == job;
            let is_inside = is_of_job && said.intervals.has(known.stamp());
            if is_inside {
                passed.insert(*id, Arc::clone(known));
            }
            !is_inside
        });
    }

    /// Sets aside the checkpoints that were signed with a job key which its owner has made void.
    pub fn set_void_aside(&mut self, list: &VoidList) {
        let is_void = |known: &Arc<KnownCheckpoint>| {
            let grant = known.manifest.grant();
            grant.is_some_and(|grant| list.voids(grant.terms()))
        };
        let all = std::mem::take(&mut self.checkpoints).into_iter();
        let (void, good): (BTreeMap<_, _>, _) = all.partition(|(_, known)| is_void(known));
        self.checkpoints = good;
        self.void.extend(void);
    }

    /// The checkpoints that were signed with a job key that is void now. A thief of the key may have
    /// forged them.
    pub fn void(&self) -> impl Iterator<Item = &KnownCheckpoint> {
        self.void.values().map(|known| &**known)
    }

    /// A checkpoint by its id, passed over or not.
    pub fn get(&self, checkpoint: CheckpointId) -> Option<&KnownCheckpoint> {
        let known = self.checkpoints.get(&checkpoint);
        let known = known.or_else(|| self.passed.get(&checkpoint));
        known.map(|known| &**known)
    }

    /// The checkpoint that another one builds on, wherever it stands. Also one that was signed with a key that
    /// is void now: the hash of its manifest is as the other one's signer stated it, so a thief of the void key
    /// has not put it in the place of another.
    pub fn needed(&self, reference: BaseRef) -> Option<&KnownCheckpoint> {
        let void = self.void.get(&reference.checkpoint).map(|known| &**known);
        let all = self.get(reference.checkpoint).into_iter().chain(void);
        let mut same = all.filter(|known| known.manifest.hash() == reference.manifest);
        same.next()
    }

    /// Whether it was signed with a key that is void now.
    pub fn is_void(&self, checkpoint: CheckpointId) -> bool {
        self.void.contains_key(&checkpoint)
    }

    /// The ids of all checkpoints that hosts show, passed over or void ones, too.
    pub fn all_ids(&self) -> BTreeSet<CheckpointId> {
        let all = self.checkpoints.keys().chain(self.passed.keys());
        all.chain(self.void.keys()).copied().collect()
    }

    /// The checkpoints that are passed over, newest first.
    pub fn passed_over(&self) -> Vec<&KnownCheckpoint> {
        sorted(&self.passed)
    }

    /// The latest time of a save among all checkpoints, Unix seconds.
    pub fn latest(&self) -> Option<u64> {
        let all = self.checkpoints.values().chain(self.passed.values());
        all.map(|known| known.manifest.public().created).max()
    }

    /// All checkpoints, newest first: by version, then time, then id. With this order all clients agree
    /// on the newest one even if two have the same version.
    pub fn newest_first(&self) -> Vec<&KnownCheckpoint> {
        sorted(&self.checkpoints)
    }

    /// All checkpoints with their opened summaries, by job and version, and the errors of those that do
    /// not open.
    pub fn opened(&self, keys: &Keys) -> (Vec<OpenedCheckpoint>, Vec<ManifestError>) {
        let mut opened = Vec::new();
        let mut failed = Vec::new();
        let mut all: Vec<&Arc<KnownCheckpoint>> = self.checkpoints.values().collect();
        all.extend(self.void.values());
        all.sort_by_key(|known| known.age());
        for known in all {
            match known.manifest.open(keys) {
                Ok(summary) => opened.push(OpenedCheckpoint {
                    is_void: self.void.contains_key(&known.manifest.public().checkpoint),
                    known: Arc::clone(known),
                    summary,
                }),
                Err(cause) => failed.push(cause),
            }
        }
        // The sort is stable: within a job the order of versions stays.
        opened.sort_by(|a, b| a.summary.job.cmp(&b.summary.job));
        (opened, failed)
    }
}

fn sorted(checkpoints: &BTreeMap<CheckpointId, Arc<KnownCheckpoint>>) -> Vec<&KnownCheckpoint> {
    let mut all: Vec<&KnownCheckpoint> = checkpoints.values().map(|known| &**known).collect();
    all.sort_by_key(|known| std::cmp::Reverse(known.age()));
    all
}

/// The checkpoints that are no versions any more, each with the newest version that uses rows of it and states so.
/// The versions of a job come oldest first.
pub fn kept_for<'a>(
    oldest_first: impl Iterator<Item = (Version, &'a Summary)>,
) -> BTreeMap<CheckpointId, Version> {
    let mut used_by = BTreeMap::new();
    for (version, summary) in oldest_first {
        let chain = summary.tail.chain.iter();
        for origin in chain.flat_map(|chain| &chain.origins) {
            // What a newer one states takes the place of this.
            let by = (!origin.is_version).then_some(version);
            used_by.insert(origin.reference.checkpoint, by);
        }
    }
    let used_by = used_by.into_iter();
    used_by.filter_map(|(id, by)| Some((id, by?))).collect()
}

/// A checkpoint whose summary could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenedCheckpoint {
    /// What hosts hold of it.
    pub known: Arc<KnownCheckpoint>,
    /// What only its owner can read.
    pub summary: Summary,
    /// Whether it was signed with a job key that is void now.
    pub is_void: bool,
}

impl OpenedCheckpoint {
    /// Its id.
    pub fn id(&self) -> CheckpointId {
        self.known.manifest.public().checkpoint
    }

    /// How many shards this checkpoint can lose, if it can itself lose `own`: no more than any of those can that it
    /// builds on.
    pub fn weakest(
        &self,
        own: Option<usize>,
        of_need: impl Fn(CheckpointId) -> Option<usize>,
    ) -> Option<usize> {
        let mut needs = self.summary.needs();
        needs.try_fold(own?, |least, need| {
            Some(least.min(of_need(need.checkpoint)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use codec::grant::Rights;
    use codec::hash::ShardRoot;
    use codec::index::StoredSegment;
    use codec::keys::{JobKeys, NewJobKeys};
    use codec::manifest::{ImageKind, Mark, NewManifest, Tail};
    use codec::seal::{Cipher, DataKey, OwnerSecret};
    use codec::{JobId, Redundancy};

    use super::*;

    const MEMORY: u64 = 1 << 20;

    fn owner() -> Keys {
        Keys::from(OwnerSecret::new([9; 32]))
    }

    /// The manifest of version `version`, from a host without shards.
    fn shown(version: u8) -> Shown {
        shown_of(version, 0, None)
    }

    fn shown_of(version: u8, image_bytes: u64, mark: Option<Mark>) -> Shown {
        sign(&owner(), version, image_bytes, mark)
    }

    fn sign(keys: &Keys, version: u8, image_bytes: u64, mark: Option<Mark>) -> Shown {
        let redundancy = Redundancy::new(3, 2).unwrap();
        let new = NewManifest {
            checkpoint: CheckpointId([version; 16]),
            version: Version::new(version.into()).unwrap(),
            created: 1,
            previous: None,
            redundancy,
            cipher: Cipher::Aes256Gcm,
            rows: 1,
            block_bytes: 1,
            roots: vec![ShardRoot([0; 32]); redundancy.total()],
        };
        let summary = Summary {
            job: "42".parse::<JobId>().unwrap(),
            data_key: DataKey::new([1; 32]),
            kind: ImageKind::File,
            image_bytes,
            stream_bytes: 0,
            stored_bytes: 0,
            files: 1,
            index: vec![StoredSegment {
                stored_len: 1,
                raw_len: 1,
                method: codec::compress::Method::Raw,
            }],
            tail: Tail {
                mark,
                ..Tail::default()
            },
        };
        Shown {
            manifest: Manifest::sign(keys, new, &summary).unwrap(),
            shards: Vec::new(),
        }
    }

    /// Enters version `version`, held by `hosts` hosts with one shard each.
    fn enter(inventory: &mut Inventory, version: u8, hosts: usize) {
        enter_shown(inventory, &shown(version), hosts);
    }

    fn enter_shown(inventory: &mut Inventory, one: &Shown, hosts: usize) {
        let redundancy = one.manifest.public().redundancy;
        for host in 0..hosts {
            let shards = redundancy.shard(host as u8).into_iter().collect();
            let manifest = one.manifest.clone();
            let shown = Shown { manifest, shards };
            let entered = inventory.add(HostIndex(host), shown, MEMORY);
            assert_eq!(entered, Entered::Yes);
        }
    }

    #[test]
    fn versions_that_can_not_be_restored_do_not_push_good_ones_out() {
        let mut inventory = Inventory::default();
        // One host has a shard of version 5, which is too little to restore it.
        for (version, hosts) in [(1, 5), (2, 5), (3, 2), (4, 5), (5, 1)] {
            enter(&mut inventory, version, hosts);
        }
        let split = |keep| {
            let all = inventory.newest_first();
            let (kept, others) = inventory.split_kept(&owner(), all, keep, None);
            let numbers = |some: Vec<&KnownCheckpoint>| -> Vec<u64> {
                some.iter().map(|known| known.version().number()).collect()
            };
            (numbers(kept), numbers(others))
        };
        assert_eq!(split(0), (vec![], vec![5, 4, 3, 2, 1]));
        assert_eq!(split(1), (vec![5, 4], vec![3, 2, 1]));
        assert_eq!(split(2), (vec![5, 4, 3, 2], vec![1]));
        assert_eq!(split(9), (vec![5, 4, 3, 2, 1], vec![]));
    }

    /// The versions that stay and those that do not, of versions with these bytes; negative ones are marked.
    fn split(sizes: &[i64], keep: usize, saved: Option<Saved>) -> (Vec<u64>, Vec<u64>) {
        let mut inventory = Inventory::default();
        for (version, size) in (1..).zip(sizes) {
            let mark = (*size < 0).then_some(Mark::Changed);
            let one = shown_of(version, size.unsigned_abs(), mark);
            enter_shown(&mut inventory, &one, 5);
        }
        let all = inventory.newest_first();
        let (kept, others) = inventory.split_kept(&owner(), all, keep, saved);
        let numbers = |some: Vec<&KnownCheckpoint>| -> Vec<u64> {
            some.iter().map(|known| known.version().number()).collect()
        };
        (numbers(kept), numbers(others))
    }

    #[test]
    fn marked_versions_are_not_counted_and_do_not_pile_up() {
        // Newer than all whole ones: as many as are kept.
        assert_eq!(split(&[9, 9, -9], 1, None), (vec![3, 2], vec![1]));
        assert_eq!(split(&[9, -9, -9, -9], 2, None), (vec![4, 3, 1], vec![2]));
        // A restore never takes one that is older than a whole one.
        assert_eq!(split(&[9, -9, 9], 2, None), (vec![3, 1], vec![2]));
        // Where nothing is whole.
        assert_eq!(split(&[-9, -9, -9], 2, None), (vec![3, 2], vec![1]));
        let whole = Saved {
            image_bytes: 9,
            is_marked: false,
        };
        assert_eq!(split(&[9, 9, -9], 2, Some(whole)), (vec![2], vec![3, 1]));
        let marked = Saved {
            is_marked: true,
            ..whole
        };
        assert_eq!(split(&[9, 9, -9], 2, Some(marked)), (vec![3, 2, 1], vec![]));
        assert_eq!(split(&[9, 9, -9], 1, Some(marked)), (vec![2], vec![3, 1]));
    }

    #[test]
    fn a_version_that_a_much_smaller_one_follows_stays_once_more() {
        let saved = |image_bytes| {
            let is_marked = false;
            Some(Saved {
                image_bytes,
                is_marked,
            })
        };
        assert_eq!(split(&[100_000], 1, saved(9_999)), (vec![1], vec![]));
        assert_eq!(split(&[100_000], 1, saved(10_000)), (vec![], vec![1]));
        assert_eq!(
            split(&[100_000, 9_999], 1, saved(9_999)),
            (vec![], vec![2, 1])
        );
        assert_eq!(
            split(&[100_000, 9_999], 2, saved(9_999)),
            (vec![2, 1], vec![])
        );
        assert_eq!(
            split(&[50_000, 100_000, 9_999], 2, saved(9_999)),
            (vec![3, 2], vec![1])
        );
        assert_eq!(
            split(&[50_000, 100_000, 9_999, 9_999], 2, saved(9_999)),
            (vec![4], vec![3, 2, 1])
        );
        assert_eq!(split(&[100_000, 9_999], 1, None), (vec![2, 1], vec![]));
    }

    #[test]
    fn checkpoints_that_only_a_liar_showed_are_dropped_with_it() {
        let mut inventory = Inventory::default();
        enter(&mut inventory, 1, 5);
        enter(&mut inventory, 2, 1);
        inventory.drop_host(HostIndex(0));
        let left = inventory.newest_first();
        assert_eq!(left.len(), 1);
        assert_eq!(
            (left[0].version(), left[0].shards_found()),
            (Version::FIRST, 4)
        );
    }

    #[test]
    fn the_memory_for_all_of_them_is_bounded() {
        let mut inventory = Inventory::default();
        let mut entered = 0;
        while inventory.add(HostIndex(0), shown(entered + 1), 20 << 10) == Entered::Yes {
            entered += 1;
        }
        assert!((3..10).contains(&entered), "{entered}");
        // Another host of a known checkpoint takes no more memory.
        assert_eq!(
            inventory.add(HostIndex(1), shown(1), 20 << 10),
            Entered::Yes
        );
    }

    /// A version of job 42 that a job key signed, from a host without shards.
    fn shown_by_key(version: u8) -> Shown {
        let Keys::Owner(secret) = owner() else {
            unreachable!("made so above");
        };
        let new = NewJobKeys {
            grid: [0; 32],
            scope: "42".parse().unwrap(),
            rights: Rights::SAVE,
            serial: 1,
            not_before: 0,
            not_after: 10,
        };
        let keys = JobKeys::issue(&secret, [8; 32], new).unwrap();
        sign(&Keys::Job(Box::new(keys)), version, 0, None)
    }

    #[test]
    fn what_job_keys_signed_makes_room_and_what_the_owner_signed_stays() {
        let mut inventory = Inventory::default();
        let memory = 20 * (CHECKPOINT_MEMORY + MANIFEST_COPIES * 1000);
        let enter =
            |inventory: &mut Inventory, shown: Shown| inventory.add(HostIndex(0), shown, memory);
        for version in 1..=5 {
            assert_eq!(enter(&mut inventory, shown(version)), Entered::Yes);
        }
        for version in 6..=200 {
            assert_eq!(enter(&mut inventory, shown_by_key(version)), Entered::Yes);
        }
        for version in 201..=205 {
            assert_eq!(enter(&mut inventory, shown(version)), Entered::Yes);
        }
        let left = inventory.newest_first();
        let of_owner = left.iter().filter(|one| one.manifest.grant().is_none());
        assert_eq!(of_owner.count(), 10);
        assert!(inventory.left_out() > 150 && inventory.memory <= memory);
        // Of what the owner signed, nothing makes room.
        let entered = (206..=250).map(|version| enter(&mut inventory, shown(version)));
        assert!(entered.collect::<Vec<_>>().contains(&Entered::NoRoom));
    }
}
