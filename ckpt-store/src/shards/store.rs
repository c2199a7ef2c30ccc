//! The operations of a host on its shards, as blocking calls.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codec::grant::VoidList;
use codec::manifest::{MANIFEST_BYTES_MAX, Manifest, Public};
use codec::notice::{Notice, Stamp, Words};
use codec::{CheckpointId, JobTag, OwnerId, ShardIndex};
use protocol::wire::limits::RECORDS_MAX;
use protocol::wire::message::{Claim, Record, ShardName};

use super::aside::BrokenPuts;
use super::error::StoreError;
use super::layout::{
    self, MANIFESTS, NOTICES, SHARDS, manifest_path, notice_path, older_notice_path, shard_path,
};
use super::load::{self, of_manifest};
use super::writer::TempFile;
use crate::core::catalog::{Claimed, CommitStep, Counts};
use crate::core::ledger::Quota;
use crate::core::notices::OwnedJob;
use crate::core::places::Who;
use crate::core::release::Use;
use crate::core::{Catalog, Denied, Key, Millis, PutId, Shard};
use crate::disk::{ChangeError, Disk};

/// Most bytes of records in one answer. The client gets the rest with its next request.
pub(crate) const FOUND_BYTES_MAX: usize = 256 << 10;

/// Pause before the removal of an expired checkpoint is tried again after a failure.
const SWEEP_RETRY: Duration = Duration::from_secs(60);

/// The last list of void job keys of each owner.
pub(super) type Voids = BTreeMap<OwnerId, VoidList>;

/// The shards, manifests, notices and promises of a host: the files and the books of them.
#[derive(Debug)]
pub struct Store {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) catalog: Mutex<Catalog>,
    /// Held while names of files change, so that the catalog and the disk change in the same order.
    pub(super) changes: Mutex<()>,
    pub(super) voids: Mutex<Voids>,
    pub(super) next_incoming: AtomicU64,
    pub(super) is_poisoned: AtomicBool,
    /// The wall clock on which most hosts agreed last, in Unix seconds.
    pub(super) agreed_clock: AtomicU64,
    /// Shards whose transfers broke off.
    pub(super) broken: Mutex<BrokenPuts>,
    /// Shards that are being handed over, and by how many tasks. They are not proved to other hosts, so that none
    /// relies on them.
    pub(super) leaving: Mutex<BTreeMap<(Key, ShardIndex), usize>>,
}

/// What the owner of the machine lends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// Bytes in all. By default what the host holds already, and nine tenths of the free space.
    pub capacity: Option<u64>,
    /// How much of that one submitter may use.
    pub quota: Quota,
}

/// The use of space, for status answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that the host lends.
    pub capacity_bytes: u64,
    /// Bytes that are stored or promised.
    pub used_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// Counts of shards and checkpoints.
    pub counts: Counts,
}

impl Store {
    /// The use of space. With `who`, the free bytes are those that `who` may use.
    pub fn usage(&self, who: Option<Who<OwnerId>>) -> Usage {
        // If the disk does not answer, there is no room.
        let free = self.disk.free_bytes().unwrap_or(0);
        let catalog = self.catalog();
        Usage {
            capacity_bytes: catalog.ledger().capacity(),
            used_bytes: catalog.ledger().used(),
            free_bytes: catalog.left(who, free),
            counts: catalog.counts(),
        }
    }

    /// All owners, with the bytes that are stored for and promised to each.
    pub fn owners(&self) -> Vec<(OwnerId, u64)> {
        self.catalog().ledger().owners().collect()
    }

    /// The shards of committed checkpoints for which `wanted` is true.
    pub fn held_keys(&self, wanted: impl Fn(Key, ShardIndex) -> bool) -> Vec<(Key, ShardIndex)> {
        let catalog = self.catalog();
        let held = catalog.held_after(None);
        let held = held.flat_map(|(key, _, shards)| {
            let shards = shards.iter();
            shards.map(move |shard| (key, shard.identity.shard))
        });
        held.filter(|(key, shard)| wanted(*key, *shard)).collect()
    }

    /// Changes what the host lends. Without a capacity, the capacity stays.
    pub fn lend(&self, lent: Lent) {
        let mut catalog = self.catalog();
        let capacity = lent.capacity.unwrap_or(catalog.ledger().capacity());
        catalog.lend(capacity, lent.quota.of(capacity));
    }

    /// Bytes that the host has to give back: those beyond what it lends, or those that its disk lacks for
    /// the reserve of the machine's owner, whichever are more.
    pub fn excess_bytes(&self) -> u64 {
        loop {
            let short = self.disk.short_bytes().unwrap_or(0);
            let catalog = self.catalog();
            let ledger = catalog.ledger();
            let excess = ledger.used().saturating_sub(ledger.capacity()).max(short);
            drop(catalog);
            if excess == 0 || !self.drop_any_broken() {
                return excess;
            }
        }
    }

    /// What is known here of the use of each committed checkpoint.
    pub fn uses(&self) -> BTreeMap<Key, Use> {
        self.catalog().uses()
    }

    /// Removes a shard that another host holds. If it is the last shard of its checkpoint here, the
    /// checkpoint is removed, too.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn release(&self, now: Millis, key: Key, shard: ShardIndex) -> Result<(), StoreError> {
        let _changes = self.change()?;
        let is_last = {
            let catalog = self.catalog();
            let shards = catalog.shards(key);
            shards.iter().all(|one| one.identity.shard == shard)
        };
        if is_last {
            self.keep_fence(key)?;
            return self.remove_all(now, key).map(|_| ());
        }
        self.remove(&shard_path(key, shard))?;
        self.catalog().shard_removed(key, shard);
        Ok(())
    }

    /// Bytes of a shard's file; 0 if the shard is not here.
    pub fn shard_bytes(&self, key: Key, shard: ShardIndex) -> u64 {
        let catalog = self.catalog();
        let shard = catalog.shard(key, shard.number());
        shard.map_or(0, |shard| shard.file_bytes)
    }

    /// All shards of committed checkpoints.
    pub fn held(&self) -> Vec<ShardName> {
        let catalog = self.catalog();
        // Allocated at once, because a vector that grows takes twice its memory for a moment.
        let mut held = Vec::with_capacity(catalog.counts().shards as usize);
        held.extend(catalog.held().map(|(checkpoint, shard)| ShardName {
            checkpoint,
            shard: shard.number(),
        }));
        held
    }

    /// Reserves a version of a job for a checkpoint.
    ///
    /// # Errors
    /// When the checkpoint is known with another version, or there are too many checkpoints.
    pub fn claim(
        &self,
        now: Millis,
        who: impl Into<Who<OwnerId>>,
        claim: &Claim,
    ) -> Result<Claimed, StoreError> {
        Ok(self.catalog().claim(now, who, claim)?)
    }

    /// Gives a synced shard its final name and enters it in the catalog.
    pub(super) fn publish_shard(
        &self,
        now: Millis,
        id: PutId,
        shard: Shard,
        temp: TempFile,
    ) -> Result<(), StoreError> {
        let _changes = self.change()?;
        let key = self.catalog().check_put(id)?;
        let index = shard.identity.shard;
        if self.catalog().shard(key, index.number()).is_ok() {
            // Another donor or the owner has sent the same shard meanwhile.
            return Err(Denied::Exists(index).into());
        }
        if self.catalog().is_committed(key) {
            let manifest = self.manifest(key)?;
            let promised = manifest.public().shard(shard.identity.shard);
            if promised != Some((shard.identity, shard.root)) {
                return Err(StoreError::Mismatch("root in the manifest"));
            }
        }
        let path = shard_path(key, shard.identity.shard);
        self.make_owner_dir(SHARDS, key.owner)?;
        temp.publish(&path)
            .map_err(|failed| self.changed("naming a shard", failed))?;
        let entered = self.catalog().finish_put(now, id, shard);
        if let Err(denied) = entered {
            // `forget` waits for `changes`, so this does not happen; it is a safeguard.
            self.remove(&path)?;
            return Err(denied.into());
        }
        Ok(())
    }

    /// Commits a checkpoint: clients can find it from now on.
    ///
    /// # Errors
    /// When the manifest is not the owner's, no shard of the checkpoint is complete, or the disk fails.
    pub fn commit(&self, owner: OwnerId, manifest: Vec<u8>) -> Result<CheckpointId, StoreError> {
        let manifest = Manifest::parse(manifest)?;
        let public = manifest.public();
        if public.owner != owner {
            return Err(StoreError::Mismatch("owner"));
        }
        let (key, claim) = of_manifest(public);
        let _changes = self.change()?;
        let step = self.catalog().check_commit(owner, &claim, &public.roots)?;
        self.enter_manifest(key, step, &manifest)
    }

    /// Keeps a manifest whose shards may all be elsewhere, so that a client that asks for its job learns that
    /// the checkpoint exists. It is kept until its owner removes the checkpoint, or the lease of its job ends.
    ///
    /// # Errors
    /// When the manifest is not the owner's, there is no room for it, its version belongs to another
    /// checkpoint here, or the disk fails.
    pub fn keep_manifest(
        &self,
        now: Millis,
        who: Who<OwnerId>,
        manifest: Vec<u8>,
    ) -> Result<CheckpointId, StoreError> {
        let manifest = Manifest::parse(manifest)?;
        let public = manifest.public();
        if public.owner != who.member {
            return Err(StoreError::Mismatch("owner"));
        }
        let (key, claim) = of_manifest(public);
        let free = self.free_bytes()?;
        let _changes = self.change()?;
        let mut catalog = self.catalog();
        let step = catalog.check_kept(now, who, &claim, &public.roots, free)?;
        drop(catalog);
        self.enter_manifest(key, step, &manifest)
    }

    /// Writes the manifest of a checkpoint that is being committed, or compares it with the one that is here.
    fn enter_manifest(
        &self,
        key: Key,
        step: CommitStep,
        manifest: &Manifest,
    ) -> Result<CheckpointId, StoreError> {
        match step {
            CommitStep::Done if self.manifest(key)?.bytes() == manifest.bytes() => {}
            CommitStep::Done => return Err(StoreError::Mismatch("manifest")),
            CommitStep::Write => {
                self.write_manifest(key, manifest.bytes())?;
                self.catalog().committed(key);
                self.catalog().dated(key, manifest.public().created);
            }
        }
        Ok(key.checkpoint)
    }

    /// The owner's committed checkpoints after `after`, in ascending order, and whether there are more.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn find(
        &self,
        owner: OwnerId,
        job_tag: Option<JobTag>,
        after: Option<CheckpointId>,
    ) -> Result<(Vec<Record>, bool), StoreError> {
        // One key more than may be returned shows whether there are more.
        let most = RECORDS_MAX as usize + 1;
        let keys: Vec<Key> = self
            .catalog()
            .find(owner, job_tag, after)
            .take(most)
            .collect();
        let mut records: Vec<Record> = Vec::new();
        let mut bytes = 0;
        for key in keys {
            if records.len() == RECORDS_MAX as usize || bytes > FOUND_BYTES_MAX {
                return Ok((records, true));
            }
            // A checkpoint that was forgotten meanwhile is left out.
            let manifest = match self.manifest(key) {
                Ok(manifest) => manifest,
                Err(_) if !self.catalog().is_committed(key) => continue,
                Err(failed) => {
                    tracing::error!(checkpoint = %key.checkpoint, cause = %failed, "can't show a manifest");
                    continue;
                }
            };
            let number = |shard: &Shard| shard.identity.shard.number();
            let shards = self.catalog().shards(key).iter().map(number).collect();
            bytes += manifest.bytes().len();
            records.push(Record {
                manifest: manifest.bytes().to_vec(),
                shards,
            });
        }
        Ok((records, false))
    }

    /// Removes everything of a checkpoint. Returns whether there was something.
    ///
    /// # Errors
    /// When the disk fails. Some of the checkpoint may be left then; the call can be repeated.
    pub fn forget(
        &self,
        now: Millis,
        owner: OwnerId,
        checkpoint: CheckpointId,
    ) -> Result<bool, StoreError> {
        let key = Key { owner, checkpoint };
        let _changes = self.change()?;
        let existed = self.remove_all(now, key)?;
        self.remove_fence(key)?;
        Ok(existed)
    }

    /// Removes expired checkpoints, which were claimed or written and never committed. Returns their
    /// number.
    pub fn sweep(&self, now: Millis) -> usize {
        self.drop_old_broken(now);
        let mut removed = 0;
        loop {
            let next = self.catalog().next_expired(now);
            let Some(key) = next else {
                return removed;
            };
            match self.expire(now, key) {
                Ok(()) => removed += 1,
                Err(failed) => {
                    tracing::error!(checkpoint = %key.checkpoint, cause = %failed, "can't remove an expired checkpoint");
                    self.catalog().renew(key, now.after(SWEEP_RETRY));
                }
            }
        }
    }

    fn expire(&self, now: Millis, key: Key) -> Result<(), StoreError> {
        let _changes = self.change()?;
        // The checkpoint may have been renewed while this call waited for `change`.
        if self.catalog().is_expired(now, key) {
            self.remove_all(now, key)?;
            tracing::info!(checkpoint = %key.checkpoint, owner = %key.owner, "removed: it was not committed in time");
        }
        Ok(())
    }

    /// Removes everything of a checkpoint. Returns whether there was something. The manifest goes first:
    /// what is left after a crash is then uncommitted, and expires.
    fn remove_all(&self, now: Millis, key: Key) -> Result<bool, StoreError> {
        self.drop_broken_of(key, None);
        if !self.catalog().begin_forget(key) {
            return Ok(false);
        }
        if self.catalog().is_committed(key) {
            self.remove(&manifest_path(key))?;
            self.catalog().manifest_removed(now, key);
        }
        let shards = self.catalog().shards(key).to_vec();
        for shard in shards {
            let index = shard.identity.shard;
            self.remove(&shard_path(key, index))?;
            self.catalog().shard_removed(key, index);
        }
        self.catalog().forgotten(now, key);
        Ok(true)
    }

    /// Sets the wall clock on which most hosts agree, in Unix seconds.
    pub fn set_agreed_clock(&self, agreed: u64) {
        self.agreed_clock.store(agreed, Ordering::Relaxed);
    }

    /// Enters a notice, and removes the checkpoints that it declares gone. Returns their number. `clock`
    /// is the wall clock of this host, in Unix seconds.
    ///
    /// # Errors
    /// When the notice is not signed by its owner, there are too many notices, or the disk fails. The
    /// call can be repeated.
    pub fn notice(&self, now: Millis, clock: u64, notice: &Notice) -> Result<usize, StoreError> {
        // Hosts pass notices on, and no notice becomes invalid with the job key that signed it. So a job
        // key may not sign one: it has to ask each host to remove each checkpoint.
        if notice.grant().is_some() {
            return Err(StoreError::Mismatch("signer of the notice"));
        }
        let words = notice.words();
        let _changes = self.change()?;
        // The later one of both clocks, so that a machine whose clock stands at 1970 still accepts
        // notices.
        let clock = clock.max(self.agreed_clock.load(Ordering::Relaxed));
        let job = (words.owner, words.job_tag);
        let owner = words.owner;
        let says_more = self.catalog().check_history(words)?;
        let is_last = self.catalog().check_notice(words, clock)?;
        let path = match (is_last, says_more) {
            (true, _) => Some(notice_path(owner, words.job_tag)),
            (false, true) => Some(older_notice_path(owner, words.job_tag, words.number)),
            (false, false) => None,
        };
        let mut unneeded = Vec::new();
        let mut removed = 0;
        if let Some(path) = path {
            match self.keep(job, notice, is_last, &path) {
                // Its owner filled the disk. What is deleted makes room for the notice that deletes it.
                Err(full) if full.is_full() => {
                    let gone = self.catalog().gone_keys_of(words);
                    self.remove_gone(now, &gone)?;
                    removed += gone.len();
                    self.keep(job, notice, is_last, &path)?;
                }
                kept => kept?,
            }
            unneeded = self.catalog().noted(words.clone());
        }
        for number in unneeded {
            let path = older_notice_path(owner, words.job_tag, number);
            if self.disk.open(&path).is_ok() {
                self.remove(&path)?;
            }
        }
        let gone = self.catalog().gone_keys_of(words);
        self.remove_gone(now, &gone)?;
        let fences = self.catalog().fences_gone(words);
        self.remove_fences(&fences)?;
        Ok(removed + gone.len())
    }

    /// Writes a notice. If it is the last one of its job, the one before is kept as far as it is needed.
    fn keep(
        &self,
        job: OwnedJob,
        notice: &Notice,
        is_last: bool,
        path: &Path,
    ) -> Result<(), StoreError> {
        if is_last {
            self.keep_older(job, notice.words())?;
        }
        self.write(NOTICES, job.0, path, notice.bytes())
    }

    /// Keeps the last notice of a job as an older one, if the next notice does not cover its intervals.
    fn keep_older(&self, (owner, job_tag): OwnedJob, next: &Words) -> Result<(), StoreError> {
        let last = self.catalog().notices().get((owner, job_tag)).cloned();
        let Some(last) = last.filter(|last| !next.intervals.cover(&last.intervals)) else {
            return Ok(());
        };
        let old = load::read_notice(&*self.disk, &notice_path(owner, job_tag))?;
        let path = older_notice_path(owner, job_tag, last.number);
        self.write(NOTICES, owner, &path, old.bytes())
    }

    pub(super) fn remove_gone(&self, now: Millis, gone: &[Key]) -> Result<(), StoreError> {
        for key in gone {
            self.remove_all(now, *key)?;
            self.remove_fence(*key)?;
            tracing::info!(checkpoint = %key.checkpoint, owner = %key.owner, "removed: deleted by its owner");
        }
        Ok(())
    }

    /// Whether the owner declared this checkpoint or its stretch of the history gone. Other hosts may not
    /// bring it then.
    pub fn is_deleted(&self, public: &Public) -> bool {
        let stamp = Stamp {
            created: public.created,
            checkpoint: public.checkpoint,
        };
        let job = (public.owner, public.job_tag);
        let catalog = self.catalog();
        catalog.is_inside(job, stamp) || catalog.notices().is_gone(job, public.checkpoint)
    }

    /// The jobs of which a committed checkpoint is here.
    pub fn jobs(&self) -> Vec<OwnedJob> {
        self.catalog().committed_jobs().into_iter().collect()
    }

    /// Removes checkpoints whose lease has ended at `clock`, in Unix seconds, checkpoints that have been
    /// inside of a deleted stretch for a week, and notices that are no longer needed. Returns the number
    /// of checkpoints.
    ///
    /// # Errors
    /// When the disk fails. The call can be repeated.
    pub fn end_leases(&self, now: Millis, clock: u64) -> Result<usize, StoreError> {
        let _changes = self.change()?;
        let outlived = self.catalog().outlived_keys(clock);
        for key in &outlived {
            self.remove_all(now, *key)?;
            tracing::info!(checkpoint = %key.checkpoint, owner = %key.owner, "removed: its lease has expired");
        }
        let inside = self.catalog().inside_keys(clock);
        for key in &inside {
            self.remove_all(now, *key)?;
            tracing::info!(checkpoint = %key.checkpoint, owner = %key.owner, "removed: it belongs to deleted versions");
        }
        let fences = self.catalog().fences_outlived(clock);
        self.remove_fences(&fences)?;
        self.remove_fences(&inside)?;
        let old = self.catalog().old_notices(clock);
        for (owner, job_tag) in old {
            self.remove(&notice_path(owner, job_tag))?;
            self.catalog().notice_removed((owner, job_tag));
        }
        Ok(outlived.len() + inside.len())
    }

    fn write_manifest(&self, key: Key, bytes: &[u8]) -> Result<(), StoreError> {
        self.write(MANIFESTS, key.owner, &manifest_path(key), bytes)
    }

    /// Writes a small file of an owner. It replaces the file that has its name.
    pub(super) fn write(
        &self,
        kind: &'static str,
        owner: OwnerId,
        to: &Path,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let temp = self.write_unnamed(bytes)?;
        self.make_owner_dir(kind, owner)?;
        // A manifest makes a checkpoint visible, so a manifest whose name is not synced must not stay.
        let named = match kind {
            MANIFESTS => temp.publish(to),
            _ => temp.replace(to),
        };
        named.map_err(|failed| self.changed("naming a small file", failed))
    }

    /// Reads the manifest of a checkpoint from the disk.
    ///
    /// # Errors
    /// When the file can't be read or is not a valid manifest any more.
    pub fn manifest(&self, key: Key) -> Result<Manifest, StoreError> {
        load::read_manifest(&*self.disk, &manifest_path(key))
    }

    fn make_owner_dir(&self, kind: &str, owner: OwnerId) -> Result<(), StoreError> {
        self.disk
            .create_dir(&layout::owner_dir(kind, owner))
            .map_err(|failed| self.changed("making a directory", failed))
    }

    pub(super) fn remove(&self, path: &Path) -> Result<(), StoreError> {
        self.disk
            .remove(path)
            .map_err(|failed| self.changed("removing a file", failed))
    }

    /// If a directory could not be synced, its next sync may succeed without the lost change. So nothing
    /// is changed after such a failure.
    pub(super) fn changed(&self, what: &'static str, failed: ChangeError) -> StoreError {
        match failed {
            ChangeError::NotDone(cause) => StoreError::Disk { what, cause },
            ChangeError::NotSynced(cause) => {
                self.is_poisoned.store(true, Ordering::SeqCst);
                tracing::error!(what, %cause, "can't sync a directory: nothing is changed until a restart");
                StoreError::Disk { what, cause }
            }
        }
    }

    pub(super) fn check_writable(&self) -> Result<(), StoreError> {
        if self.is_poisoned.load(Ordering::SeqCst) {
            return Err(StoreError::Poisoned);
        }
        Ok(())
    }

    pub(super) fn change(&self) -> Result<MutexGuard<'_, ()>, StoreError> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        self.check_writable()?;
        Ok(changes)
    }

    pub(super) fn incoming(&self) -> std::path::PathBuf {
        layout::incoming_path(self.next_incoming.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn free_bytes(&self) -> Result<u64, StoreError> {
        self.disk
            .free_bytes()
            .map_err(StoreError::disk("free space"))
    }

    pub(super) fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const _: () = assert!(FOUND_BYTES_MAX > MANIFEST_BYTES_MAX);
