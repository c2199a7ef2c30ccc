//! Puts the answers of all hosts together: which checkpoints there are, and which hosts hold their
//! shards.

mod aside;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use codec::grant::{Grant, VoidList};
use codec::keys::Keys;
use codec::manifest::{Manifest, ManifestError};
use codec::notice::{Stamp, Words};
use codec::pieces::BaseRef;
use codec::{CheckpointId, JobTag, ShardIndex, Version};
use transfer::find::{AlreadyShown, Shown, ShownManifest};

use crate::core::HostIndex;
use crate::core::map::weakest;
use aside::Aside;
use record::Body;

pub use record::{Brief, KnownManifest, OpenFailed};

/// A checkpoint of which at least one host has the manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownCheckpoint {
    /// Its manifest, with a checked signature.
    pub manifest: Arc<KnownManifest>,
    /// The shards that hosts hold, in the order of shards.
    pub holders: Vec<(ShardIndex, HostIndex)>,
    /// The hosts that have its manifest.
    pub knowers: Vec<HostIndex>,
}

impl KnownCheckpoint {
    /// The version that its manifest states.
    pub fn version(&self) -> Version {
        self.manifest.public().version
    }

    /// By version, then time, then id.
    fn age(&self) -> (Version, u64, CheckpointId) {
        let public = self.manifest.public();
        (public.version, public.created, public.checkpoint)
    }

    /// Its place in the history of its job.
    pub fn stamp(&self) -> Stamp {
        let public = self.manifest.public();
        Stamp {
            created: public.created,
            checkpoint: public.checkpoint,
        }
    }

    /// As another checkpoint refers to it.
    pub fn reference(&self) -> BaseRef {
        let Stamp {
            created,
            checkpoint,
        } = self.stamp();
        BaseRef {
            checkpoint,
            manifest: self.manifest.hash(),
            created: Some(created),
        }
    }

    /// Whether it is a remnant of an interrupted save, and no version.
    pub fn is_remnant(&self) -> bool {
        self.manifest.brief().is_ok_and(|brief| brief.is_remnant)
    }

    /// How many different shards hosts hold.
    pub fn shards_found(&self) -> usize {
        self.one_holder_of_each().len()
    }

    /// A host for each of the different shards that hosts hold.
    pub fn one_holder_of_each(&self) -> Vec<HostIndex> {
        let mut holders = self.holders.clone();
        holders.dedup_by_key(|(shard, _)| *shard);
        holders.into_iter().map(|(_, host)| host).collect()
    }

    /// How many shards can be lost before it can't be restored; `None` if too many are lost already.
    pub fn can_lose(&self) -> Option<usize> {
        self.shards_found()
            .checked_sub(self.manifest.public().redundancy.data())
    }
}

/// All checkpoints of one owner that hosts hold.
#[derive(Debug, Default)]
pub struct Inventory {
    checkpoints: BTreeMap<CheckpointId, Arc<KnownCheckpoint>>,
    /// Checkpoints that were saved in an interval whose checkpoints were all deleted. See
    /// [`Self::pass_over`].
    passed: BTreeMap<CheckpointId, Arc<KnownCheckpoint>>,
    /// Checkpoints that were signed with a job key that is void now.
    void: BTreeMap<CheckpointId, Arc<KnownCheckpoint>>,
    /// The newest list of void job keys that was heard of.
    void_list: Option<VoidList>,
    /// Manifests for which there is no room in memory.
    aside: Aside,
    /// Bytes of manifests in memory.
    in_memory: usize,
    /// What checkpoints build on: many build on the same.
    references: BTreeSet<Arc<BaseRef>>,
    grants: BTreeMap<Vec<u8>, Arc<Grant>>,
    /// About the memory that all of this takes, bytes.
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

/// Bytes of manifests that stay in memory. Further ones are put into a file, if there is a directory for it.
const IN_MEMORY_MAX: usize = 8 << 20;

/// Most checkpoints with shards that are left out. Each costs its key 64 KiB of space, on each honest host. When
/// there are more, nothing more that a job key signed is taken.
const DROPPED_MAX: usize = 100_000;

/// Bytes of memory for a checkpoint apart from its manifest and lists: entries of maps, counts of owners, and its
/// row in a report.
const CHECKPOINT_MEMORY: usize = 384;

/// Bytes of memory for a holder, and for a knower: a list may have twice the room that it needs.
const HOLDER_MEMORY: usize = 2 * size_of::<(ShardIndex, HostIndex)>();
const KNOWER_MEMORY: usize = 2 * size_of::<HostIndex>();

/// Bytes of memory for what several checkpoints share, apart from its own bytes: entries of maps.
const SHARED_MEMORY: usize = 64;

/// About the memory that a checkpoint takes, bytes.
fn memory_of(known: &KnownCheckpoint) -> u64 {
    let lists = HOLDER_MEMORY * known.holders.len() + KNOWER_MEMORY * known.knowers.len();
    (CHECKPOINT_MEMORY + lists + known.manifest.memory()) as u64
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
    /// An inventory that puts the manifests of long lists into a file in `dir`.
    pub fn in_dir(dir: Option<PathBuf>) -> Self {
        Self {
            aside: Aside::in_dir(dir),
            ..Self::default()
        }
    }

    /// What another host has shown of a checkpoint already.
    pub fn already(&self, checkpoint: CheckpointId) -> Option<AlreadyShown> {
        let known = self.checkpoints.get(&checkpoint);
        let manifest = &known.or_else(|| self.void.get(&checkpoint))?.manifest;
        Some(AlreadyShown {
            hash: manifest.hash(),
            job_tag: manifest.public().job_tag,
            redundancy: manifest.public().redundancy,
        })
    }

    /// Enters what `host` has of one checkpoint, unless all checkpoints together would then take more
    /// than `memory_max` bytes of memory.
    pub fn add(&mut self, keys: &Keys, host: HostIndex, shown: Shown, memory_max: u64) -> Entered {
        let Shown {
            checkpoint: id,
            manifest,
            shards,
        } = shown;
        if self.dropped.contains(&id) {
            // Its holders would not be complete.
            return Entered::Yes;
        }
        if let ShownManifest::New(manifest) = manifest {
            match self.already(id) {
                Some(already) if already.hash != manifest.hash() => return Entered::Contradiction,
                Some(_) => {}
                None => match self.add_new(keys, &manifest, memory_max) {
                    Some(known) => self.insert(id, known),
                    // What a job key signed makes room for others, and does not make a command fail.
                    None if manifest.grant().is_some() => {
                        self.leave_out(id, shards.is_empty());
                        return Entered::Yes;
                    }
                    None => return Entered::NoRoom,
                },
            }
        }
        let void = self.void.get_mut(&id);
        // It is missing if it was left out since.
        if let Some(known) = void.or_else(|| self.checkpoints.get_mut(&id)) {
            self.memory -= memory_of(known);
            let known = Arc::make_mut(known);
            known.knowers.push(host);
            let shards = shards.into_iter().map(|shard| (shard, host));
            known.holders.extend(shards);
            known.holders.sort_unstable();
            known.holders.dedup();
            self.memory += memory_of(known);
        }
        Entered::Yes
    }

    fn insert(&mut self, id: CheckpointId, known: KnownCheckpoint) {
        self.memory += memory_of(&known);
        let void = self.void_list.as_ref();
        let is_void = void.is_some_and(|list| is_void(list, &known));
        let map = if is_void {
            &mut self.void
        } else {
            &mut self.checkpoints
        };
        map.insert(id, Arc::new(known));
    }

    /// A checkpoint of which nothing was known. `None` if there is no room for it.
    fn add_new(
        &mut self,
        keys: &Keys,
        manifest: &Manifest,
        memory_max: u64,
    ) -> Option<KnownCheckpoint> {
        let is_of_key = manifest.grant().is_some();
        if is_of_key && self.dropped.len() >= DROPPED_MAX {
            return None;
        }
        let bytes = manifest.bytes();
        let is_long = self.in_memory + bytes.len() > IN_MEMORY_MAX;
        let part = match is_long && self.aside.has_room(bytes.len(), is_of_key) {
            true => self.aside.put(bytes),
            false => None,
        };
        if part.is_none() {
            self.in_memory += bytes.len();
        }
        let body = part.map_or_else(|| Body::Here(bytes.into()), Body::Aside);
        let grant = manifest.grant().map(|grant| self.shared_grant(grant));
        let summary = manifest.open(keys);
        let brief = summary.map(|summary| {
            let share = |reference| self.shared_reference(reference);
            Arc::new(Brief::of(&summary, share))
        });
        let known = KnownCheckpoint {
            manifest: Arc::new(KnownManifest::new(manifest, grant, brief, body)),
            holders: Vec::new(),
            knowers: Vec::new(),
        };
        let needed = memory_of(&known);
        if self.memory + needed > memory_max {
            self.make_room(memory_max);
        }
        (self.memory + needed <= memory_max).then_some(known)
    }

    fn shared_reference(&mut self, reference: BaseRef) -> Arc<BaseRef> {
        if let Some(shared) = self.references.get(&reference) {
            return Arc::clone(shared);
        }
        let shared = Arc::new(reference);
        self.references.insert(Arc::clone(&shared));
        self.memory += (size_of::<BaseRef>() + SHARED_MEMORY) as u64;
        shared
    }

    fn shared_grant(&mut self, grant: &Grant) -> Arc<Grant> {
        if let Some(shared) = self.grants.get(grant.bytes()) {
            return Arc::clone(shared);
        }
        let shared = Arc::new(grant.clone());
        let bytes = grant.bytes().to_vec();
        self.memory += (size_of::<Grant>() + 2 * bytes.len() + SHARED_MEMORY) as u64;
        self.grants.insert(bytes, Arc::clone(&shared));
        shared
    }

    /// Leaves out some of what job keys signed, until what is left takes at most three quarters of
    /// `memory_max`: first what void keys signed, then that of which no host has shown a shard, and of the rest the
    /// oldest versions of the job that takes the most. So a thief of a job key hides no other job, and nothing that
    /// the owner signed.
    fn make_room(&mut self, memory_max: u64) {
        let wanted = memory_max / 4 * 3;
        let mut of_job: BTreeMap<JobTag, u64> = BTreeMap::new();
        let mut by_keys = Vec::new();
        let good = self.checkpoints.iter().map(|one| (false, one));
        let void = self.void.iter().map(|one| (true, one));
        for (is_void, (id, known)) in good.chain(void) {
            let tag = known.manifest.public().job_tag;
            *of_job.entry(tag).or_default() += memory_of(known);
            if known.manifest.grant().is_some() {
                let has_none = known.holders.is_empty();
                by_keys.push((is_void, has_none, tag, known.age(), *id));
            }
        }
        // The last ones go first.
        by_keys.sort_by_key(|&(is_void, has_none, tag, age, _)| {
            let of_job = of_job.get(&tag).copied();
            (is_void, has_none, of_job, tag, std::cmp::Reverse(age))
        });
        while self.memory > wanted
            && let Some((_, has_none, _, _, id)) = by_keys.pop()
        {
            let known = self.checkpoints.remove(&id);
            if let Some(known) = known.or_else(|| self.void.remove(&id)) {
                self.memory = self.memory.saturating_sub(memory_of(&known));
            }
            self.leave_out(id, has_none);
        }
        self.forget_unshared();
    }

    fn leave_out(&mut self, id: CheckpointId, has_no_shard: bool) {
        if !has_no_shard && self.dropped.len() < DROPPED_MAX {
            self.dropped.insert(id);
        }
        self.left_out += 1;
    }

    /// Forgets references and grants that only checkpoints had that are gone.
    fn forget_unshared(&mut self) {
        let before = self.references.len();
        self.references.retain(|one| Arc::strong_count(one) > 1);
        let gone = before - self.references.len();
        let mut bytes = gone * (size_of::<BaseRef>() + SHARED_MEMORY);
        self.grants.retain(|signed, grant| {
            let stays = Arc::strong_count(grant) > 1;
            if !stays {
                bytes += size_of::<Grant>() + 2 * signed.len() + SHARED_MEMORY;
            }
            stays
        });
        self.memory = self.memory.saturating_sub(bytes as u64);
    }

    /// How many checkpoints were left out for want of memory. All were signed with job keys.
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Forgets everything that `host` reported.
    pub fn drop_host(&mut self, host: HostIndex) {
        let mut memory = 0;
        for map in [&mut self.checkpoints, &mut self.void] {
            map.retain(|_, known| {
                if known.knowers.contains(&host) {
                    memory += memory_of(known);
                    let known = Arc::make_mut(known);
                    known.knowers.retain(|knower| *knower != host);
                    known.holders.retain(|(_, holder)| *holder != host);
                    if !known.knowers.is_empty() {
                        memory -= memory_of(known);
                    }
                }
                !known.knowers.is_empty()
            });
        }
        self.memory = self.memory.saturating_sub(memory);
        self.forget_unshared();
    }

    /// Whether enough shards of a checkpoint are on hosts to restore it, and enough of the checkpoint
    /// that is its base, if it has one.
    pub fn is_restorable(&self, known: &KnownCheckpoint) -> bool {
        let Ok(brief) = known.manifest.brief() else {
            return false;
        };
        let are_there = brief.needs().all(|need| {
            let needed = self.needed(need);
            needed.is_some_and(|known| known.can_lose().is_some())
        });
        known.can_lose().is_some() && are_there
    }

    /// Of these checkpoints, those that are no versions, or not any more: the newest one that uses rows of them states
    /// so.
    pub fn for_rows_only(&self, newest_first: &[&KnownCheckpoint]) -> BTreeSet<CheckpointId> {
        let opened = newest_first.iter().rev();
        let opened =
            opened.filter_map(|known| Some((known.version(), &**known.manifest.brief().ok()?)));
        let remnants = newest_first.iter().filter(|known| known.is_remnant());
        let remnants = remnants.map(|known| known.manifest.public().checkpoint);
        kept_for(opened).into_keys().chain(remnants).collect()
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
        newest_first: Vec<&'a KnownCheckpoint>,
        keep: usize,
        saved: Option<Saved>,
    ) -> (Vec<&'a KnownCheckpoint>, Vec<&'a KnownCheckpoint>) {
        let is_whole = saved.is_none_or(|saved| !saved.is_marked);
        let mut counted = usize::from(saved.is_some() && is_whole);
        let mut marked = usize::from(saved.is_some() && !is_whole);
        let mut later = saved.map(|saved| saved.image_bytes).filter(|_| is_whole);
        let for_rows_only = self.for_rows_only(&newest_first);
        newest_first.into_iter().partition(|known| {
            if for_rows_only.contains(&known.manifest.public().checkpoint) {
                return false;
            }
            let opened = known.manifest.brief().ok();
            let bytes = opened.map_or(0, |brief| brief.image_bytes);
            if opened.is_some_and(|brief| brief.mark.is_some()) {
                marked += 1;
                return counted == 0 && marked <= keep;
            }
            let is_restorable = self.is_restorable(known);
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
        newest_first: Vec<&'a KnownCheckpoint>,
        seconds: u64,
        now: u64,
    ) -> (Vec<&'a KnownCheckpoint>, Vec<&'a KnownCheckpoint>) {
        let created = |known: &KnownCheckpoint| known.manifest.public().created;
        let is_marked = |known: &KnownCheckpoint| {
            let opened = known.manifest.brief();
            opened.is_ok_and(|brief| brief.mark.is_some())
        };
        let mut all = newest_first.iter();
        let newest = all.find(|known| self.is_restorable(known) && !is_marked(known));
        // If nothing can be restored now, nothing is removed.
        let newest = newest.map_or(0, |newest| created(newest).min(now));
        let for_rows_only = self.for_rows_only(&newest_first);
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

    /// Sets aside the checkpoints that were signed with a job key which its owner has made void, and those that
    /// will be added.
    pub fn set_void_aside(&mut self, list: &VoidList) {
        let below = self.void_list.as_ref().map(VoidList::serials_below);
        if below >= Some(list.serials_below()) {
            return;
        }
        self.void_list = Some(list.clone());
        let all = std::mem::take(&mut self.checkpoints).into_iter();
        let (void, good): (BTreeMap<_, _>, _) = all.partition(|(_, known)| is_void(list, known));
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

    /// All checkpoints but remnants, newest first: by version, then time, then id. With this order all clients agree
    /// on the newest one even if two have the same version.
    pub fn newest_first(&self) -> Vec<&KnownCheckpoint> {
        let mut all = self.newest_and_remnants();
        all.retain(|known| !known.is_remnant());
        all
    }

    /// All checkpoints in the same order, remnants of interrupted saves among them.
    pub fn newest_and_remnants(&self) -> Vec<&KnownCheckpoint> {
        sorted(&self.checkpoints)
    }

    /// All checkpoints with their opened summaries, by job and version, and the errors of those that do
    /// not open.
    pub fn opened(&self) -> (Vec<OpenedCheckpoint>, Vec<ManifestError>) {
        let mut opened = Vec::new();
        let mut failed = Vec::new();
        let mut all: Vec<&Arc<KnownCheckpoint>> = self.checkpoints.values().collect();
        all.extend(self.void.values());
        all.sort_by_key(|known| known.age());
        for known in all {
            match known.manifest.brief() {
                Ok(brief) => opened.push(OpenedCheckpoint {
                    is_void: self.void.contains_key(&known.manifest.public().checkpoint),
                    known: Arc::clone(known),
                    brief: Arc::clone(brief),
                }),
                Err(cause) => failed.push(cause.clone()),
            }
        }
        // The sort is stable: within a job the order of versions stays.
        opened.sort_by(|a, b| a.brief.job.cmp(&b.brief.job));
        (opened, failed)
    }
}

fn is_void(list: &VoidList, known: &KnownCheckpoint) -> bool {
    let grant = known.manifest.grant();
    grant.is_some_and(|grant| list.voids(grant.terms()))
}

fn sorted(checkpoints: &BTreeMap<CheckpointId, Arc<KnownCheckpoint>>) -> Vec<&KnownCheckpoint> {
    let mut all: Vec<&KnownCheckpoint> = checkpoints.values().map(|known| &**known).collect();
    all.sort_by_key(|known| std::cmp::Reverse(known.age()));
    all
}

/// The checkpoints that are no versions any more, each with the newest version that uses rows of it and states so.
/// The versions of a job come oldest first.
pub fn kept_for<'a>(
    oldest_first: impl Iterator<Item = (Version, &'a Brief)>,
) -> BTreeMap<CheckpointId, Version> {
    let mut used_by = BTreeMap::new();
    for (version, brief) in oldest_first {
        for (origin, is_for_rows) in brief.origins() {
            // What a newer one states takes the place of this.
            used_by.insert(origin, is_for_rows.then_some(version));
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
    /// What lists need of what only its owner can read.
    pub brief: Arc<Brief>,
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
        let needs = self.brief.needs().map(|need| need.checkpoint);
        weakest(own, needs, of_need)
    }
}

#[cfg(test)]
mod tests {
    use codec::grant::Rights;
    use codec::hash::ShardRoot;
    use codec::index::StoredSegment;
    use codec::keys::{JobKeys, NewJobKeys};
    use codec::manifest::{ImageKind, Mark, NewManifest, Summary, Tail};
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
        let manifest = Manifest::sign(keys, new, &summary).unwrap();
        Shown {
            checkpoint: manifest.public().checkpoint,
            manifest: ShownManifest::New(Box::new(manifest)),
            shards: Vec::new(),
        }
    }

    /// Enters version `version`, held by `hosts` hosts with one shard each.
    fn enter(inventory: &mut Inventory, version: u8, hosts: usize) {
        enter_shown(inventory, &shown(version), hosts);
    }

    fn enter_shown(inventory: &mut Inventory, one: &Shown, hosts: usize) {
        let redundancy = Redundancy::new(3, 2).unwrap();
        for host in 0..hosts {
            let shards = redundancy.shard(host as u8).into_iter().collect();
            let shown = Shown {
                shards,
                ..one.clone()
            };
            let entered = inventory.add(&owner(), HostIndex(host), shown, MEMORY);
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
            let (kept, others) = inventory.split_kept(all, keep, None);
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
        let (kept, others) = inventory.split_kept(all, keep, saved);
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
        while inventory.add(&owner(), HostIndex(0), shown(entered + 1), 20 << 10) == Entered::Yes {
            entered += 1;
        }
        assert!((10..20).contains(&entered), "{entered}");
        // Another host of a known checkpoint takes no more memory.
        assert_eq!(
            inventory.add(&owner(), HostIndex(1), shown(1), 20 << 10),
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
        let memory = 60 << 10;
        let enter = |inventory: &mut Inventory, shown: Shown| {
            inventory.add(&owner(), HostIndex(0), shown, memory)
        };
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
