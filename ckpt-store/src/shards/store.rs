//! What a host does for an owner, as blocking calls.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use codec::manifest::{MANIFEST_BYTES_MAX, Manifest, Public};
use codec::notice::{Notice, Stamp, Words};
use codec::shard_file::{Header, ShardIdentity};
use codec::{CheckpointId, JobTag, OwnerId, ShardIndex};
use protocol::wire::Code;
use protocol::wire::limits::RECORDS_MAX;
use protocol::wire::message::{Claim, PutShard, Record, ShardName};

use super::fences;
use super::layout::{
    self, FENCES, MANIFESTS, NOTICES, SHARDS, manifest_path, notice_path, older_notice_path,
    shard_path,
};
use super::load::{self, Loaded};
use super::reader::ReadError;
use super::upload::{Bound, Upload};
use super::voids::{self, VOIDS, Voids};
use super::writer::{ShardWriter, TempFile};
use crate::core::catalog::{Claimed, CommitStep, Counts};
use crate::core::ledger::Quota;
use crate::core::notices::Job;
use crate::core::places::Who;
use crate::core::{Catalog, Denied, Key, Millis, PutId, Shard};
use crate::disk::{ChangeError, Disk};

/// Most bytes of records in one answer; the asker gets the rest with its next question.
const FOUND_BYTES_MAX: usize = 256 << 10;

/// How long to wait before what could not be removed is tried again.
const SWEEP_RETRY: Duration = Duration::from_secs(60);

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The books say no.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The request makes no sense.
    #[error("impossible {0}")]
    BadRequest(&'static str),
    /// What came is not what was promised.
    #[error("{0} differs from what was promised")]
    Mismatch(&'static str),
    /// What came is no manifest to be believed.
    #[error(transparent)]
    Manifest(#[from] codec::manifest::ManifestError),
    /// What came is no proposal to be believed.
    #[error(transparent)]
    Proposal(#[from] codec::proposal::ProposalError),
    /// What came is no notice to be believed.
    #[error(transparent)]
    Notice(#[from] codec::notice::NoticeError),
    /// The disk failed.
    #[error("{what}: {cause}")]
    Disk {
        /// What was being done.
        what: &'static str,
        /// Why it failed.
        cause: io::Error,
    },
    /// A file is damaged.
    #[error("shard file: {0}")]
    Damaged(ReadError),
    /// A directory could not be synced: nothing is known of what is durable until a restart.
    #[error("an earlier sync failed; nothing is changed until the daemon is restarted")]
    Poisoned,
    /// The upload ended already.
    #[error("upload is closed")]
    Closed,
}

impl StoreError {
    /// The number that goes over the wire.
    pub fn code(&self) -> Code {
        match self {
            Self::Denied(denied) => denied.code(),
            Self::BadRequest(_) | Self::Closed => Code::BadRequest,
            Self::Mismatch(_) | Self::Manifest(_) | Self::Proposal(_) | Self::Notice(_) => {
                Code::Mismatch
            }
            Self::Disk { cause, .. } if is_full(cause) => Code::NoSpace,
            Self::Disk { .. } | Self::Damaged(_) | Self::Poisoned => Code::DiskFailed,
        }
    }

    /// Whether this machine is at fault, not the asker.
    pub fn is_ours(&self) -> bool {
        matches!(self.code(), Code::DiskFailed | Code::Internal)
    }

    pub(super) fn disk(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::Disk { what, cause }
    }
}

fn is_full(cause: &io::Error) -> bool {
    matches!(
        cause.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

/// A host's shards and manifests.
#[derive(Debug)]
pub struct Store {
    pub(super) disk: Arc<dyn Disk>,
    catalog: Mutex<Catalog>,
    /// Held while names change on the disk, so that books and disk change in the same order.
    pub(super) changes: Mutex<()>,
    pub(super) voids: Mutex<Voids>,
    next_incoming: AtomicU64,
    is_poisoned: AtomicBool,
    /// Time of day on which hosts agreed last, Unix seconds.
    agreed_clock: AtomicU64,
    /// Shards that are being handed over: nobody may rely on them.
    pub(super) leaving: Mutex<BTreeSet<(Key, ShardIndex)>>,
}

/// What a host lends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lent {
    /// Bytes in all; what it holds and nine tenths of what is free when not given.
    pub capacity: Option<u64>,
    /// How much of this one submitter may have.
    pub quota: Quota,
}

/// What a host has, for status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Bytes that are taken or promised.
    pub used_bytes: u64,
    /// Bytes that can still be stored.
    pub free_bytes: u64,
    /// Counts of what is there.
    pub counts: Counts,
}

impl Store {
    /// Reads what is on the disk: removes what is unfinished, enters what is whole. `unix_seconds`
    /// is the time of day.
    ///
    /// # Errors
    /// When the data directory can't be read or its directories can't be made.
    pub fn open(
        disk: Arc<dyn Disk>,
        lent: Lent,
        now: Millis,
        unix_seconds: u64,
    ) -> Result<(Self, Loaded), StoreError> {
        for dir in [layout::INCOMING, SHARDS, MANIFESTS, NOTICES, FENCES, VOIDS] {
            disk.create_dir(Path::new(dir))
                .map_err(|failed| StoreError::Disk {
                    what: "making a directory",
                    cause: io::Error::other(failed.to_string()),
                })?;
        }
        let failed = || StoreError::disk("reading the data directory");
        load::remove_incoming(&*disk).map_err(failed())?;
        let (mut catalog, mut loaded) = (Catalog::default(), Loaded::default());
        let mut enter = |found| loaded.enter(&*disk, &mut catalog, found, now, unix_seconds);
        load::scan(&*disk, &mut enter).map_err(failed())?;
        fences::load(&*disk, &mut catalog).map_err(failed())?;
        let capacity = match lent.capacity {
            Some(capacity) => capacity,
            None => {
                let free = disk.free_bytes().map_err(StoreError::disk("free space"))?;
                catalog.ledger().used().saturating_add(free / 10 * 9)
            }
        };
        catalog.lend(capacity, lent.quota.of(capacity));
        let voids = voids::load(&*disk).map_err(failed())?;
        let store = Self {
            disk,
            catalog: Mutex::new(catalog),
            changes: Mutex::new(()),
            voids: Mutex::new(voids),
            next_incoming: AtomicU64::new(0),
            is_poisoned: AtomicBool::new(false),
            agreed_clock: AtomicU64::new(0),
            leaving: Mutex::default(),
        };
        // The daemon may have ended between hearing that they are gone and removing them.
        let gone = store.catalog().gone_keys();
        store.remove_gone(now, &gone)?;
        let fences = store.catalog().all_fences_gone();
        store.remove_fences(&fences)?;
        Ok((store, loaded))
    }

    /// What the host has; with `who`, what is free is free for that one.
    pub fn usage(&self, who: Option<Who<OwnerId>>) -> Usage {
        // A disk that does not answer has no room.
        let free = self.disk.free_bytes().unwrap_or(0);
        let catalog = self.catalog();
        Usage {
            capacity_bytes: catalog.ledger().capacity(),
            used_bytes: catalog.ledger().used(),
            free_bytes: catalog.left(who, free),
            counts: catalog.counts(),
        }
    }

    /// Who has how many bytes here, stored and promised.
    pub fn owners(&self) -> Vec<(OwnerId, u64)> {
        self.catalog().ledger().owners().collect()
    }

    /// The shards of committed checkpoints that are `wanted`, with their owners.
    pub fn held_keys(&self, wanted: impl Fn(Key, ShardIndex) -> bool) -> Vec<(Key, ShardIndex)> {
        let catalog = self.catalog();
        let held = catalog.held_after(None);
        let held = held.flat_map(|(key, _, shards)| {
            let shards = shards.iter();
            shards.map(move |shard| (key, shard.identity.shard))
        });
        held.filter(|(key, shard)| wanted(*key, *shard)).collect()
    }

    /// Changes what the host lends; a capacity that is not given stays.
    pub fn lend(&self, lent: Lent) {
        let mut catalog = self.catalog();
        let capacity = lent.capacity.unwrap_or(catalog.ledger().capacity());
        catalog.lend(capacity, lent.quota.of(capacity));
    }

    /// Bytes that the host holds and should not: beyond what it lends, or of the owner's reserve.
    pub fn excess_bytes(&self) -> u64 {
        let short = self.disk.short_bytes().unwrap_or(0);
        let catalog = self.catalog();
        let ledger = catalog.ledger();
        ledger.used().saturating_sub(ledger.capacity()).max(short)
    }

    /// Committed checkpoints of whose jobs later ones are here.
    pub fn superseded(&self) -> BTreeSet<Key> {
        self.catalog().superseded_keys()
    }

    /// Removes a shard that other hosts have, and its checkpoint when it was the last here.
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

    /// Bytes of a shard's file; 0 when it is not here.
    pub fn shard_bytes(&self, key: Key, shard: ShardIndex) -> u64 {
        let catalog = self.catalog();
        let shard = catalog.shard(key, shard.number());
        shard.map_or(0, |shard| shard.file_bytes)
    }

    /// Shards of these checkpoints that are here and committed.
    pub fn held_of(&self, checkpoints: &[CheckpointId]) -> Vec<ShardName> {
        let wanted: BTreeSet<&CheckpointId> = checkpoints.iter().collect();
        let mut held = self.held();
        held.retain(|shard| wanted.contains(&shard.checkpoint));
        held
    }

    /// All shards of committed checkpoints.
    pub fn held(&self) -> Vec<ShardName> {
        let catalog = self.catalog();
        // All at once: a list that grows takes twice its memory.
        let mut held = Vec::with_capacity(catalog.counts().shards as usize);
        held.extend(catalog.held().map(|(checkpoint, shard)| ShardName {
            checkpoint,
            shard: shard.number(),
        }));
        held
    }

    /// Reserves a version of a job.
    ///
    /// # Errors
    /// When the checkpoint is known by another version, or there are too many.
    pub fn claim(
        &self,
        now: Millis,
        who: impl Into<Who<OwnerId>>,
        claim: &Claim,
    ) -> Result<Claimed, StoreError> {
        Ok(self.catalog().claim(now, who, claim)?)
    }

    /// Begins a shard.
    ///
    /// # Errors
    /// When it may not be written, or its file can't be made.
    pub fn begin_put(
        self: &Arc<Self>,
        now: Millis,
        unix_seconds: u64,
        who: impl Into<Who<OwnerId>>,
        put: &PutShard,
    ) -> Result<Upload, StoreError> {
        let who = who.into();
        self.check_writable()?;
        let shard = put.shard().ok_or(StoreError::BadRequest("shard number"))?;
        let free = self.free_bytes()?;
        let id = self.catalog().begin_put(now, who, put, shard, free)?;
        self.begin_upload(unix_seconds, who.member, put, id, None)
    }

    /// Makes the file of a shard that is begun in the books.
    pub(super) fn begin_upload(
        self: &Arc<Self>,
        unix_seconds: u64,
        owner: OwnerId,
        put: &PutShard,
        id: PutId,
        bound: Option<Bound>,
    ) -> Result<Upload, StoreError> {
        let shard = put.shard().ok_or(StoreError::BadRequest("shard number"))?;
        let header = Header {
            identity: ShardIdentity {
                checkpoint: put.claim.checkpoint,
                redundancy: put.redundancy,
                shard,
            },
            owner,
            job_tag: put.claim.job_tag,
            version: put.claim.version,
            created: unix_seconds,
        };
        match ShardWriter::create(Arc::clone(&self.disk), self.incoming(), header) {
            Ok(writer) => Ok(Upload::new(Arc::clone(self), id, writer, bound)),
            Err(cause) => {
                self.catalog().abort_put(id);
                Err(StoreError::disk("making a shard file")(cause))
            }
        }
    }

    /// Gives a synced shard its name and enters it.
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
            // Another donor, or the owner, was faster.
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
            // Forgotten while it was named: forgetting waits for `changes`, so this is a guard.
            self.remove(&path)?;
            return Err(denied.into());
        }
        Ok(())
    }

    /// Commits a checkpoint: from now on it is found.
    ///
    /// # Errors
    /// When the manifest is not the owner's, there is no whole shard of its, or the disk fails.
    pub fn commit(&self, owner: OwnerId, manifest: Vec<u8>) -> Result<CheckpointId, StoreError> {
        let manifest = Manifest::parse(manifest)?;
        let public = manifest.public();
        if public.owner != owner {
            return Err(StoreError::Mismatch("owner"));
        }
        let (key, claim) = of_manifest(public);
        let _changes = self.change()?;
        let step = self.catalog().check_commit(owner, &claim, &public.roots)?;
        match step {
            CommitStep::Done if self.manifest(key)?.bytes() == manifest.bytes() => {}
            CommitStep::Done => return Err(StoreError::Mismatch("manifest")),
            CommitStep::Write => {
                self.write_manifest(key, manifest.bytes())?;
                self.catalog().committed(key);
                self.catalog().dated(key, public.created);
            }
        }
        Ok(key.checkpoint)
    }

    /// The owner's committed checkpoints after `after`, in ascending order, and whether there are
    /// more of them.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn find(
        &self,
        owner: OwnerId,
        job_tag: Option<JobTag>,
        after: Option<CheckpointId>,
    ) -> Result<(Vec<Record>, bool), StoreError> {
        // One more than are told, to know whether there are more.
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
            // It may have been forgotten since; then it is not missed.
            let manifest = match self.manifest(key) {
                Ok(manifest) => manifest,
                Err(_) if !self.catalog().is_committed(key) => continue,
                Err(failed) => {
                    tracing::error!(checkpoint = %key.checkpoint, cause = %failed, "manifest not shown");
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

    /// Removes all that there is of a checkpoint; says whether there was something.
    ///
    /// # Errors
    /// When the disk fails; then some of it may be left, and asking again goes on.
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

    /// Removes what was claimed or written and never committed; returns how many there were.
    pub fn sweep(&self, now: Millis) -> usize {
        let mut removed = 0;
        loop {
            let next = self.catalog().next_expired(now);
            let Some(key) = next else {
                return removed;
            };
            match self.expire(now, key) {
                Ok(()) => removed += 1,
                Err(failed) => {
                    tracing::error!(checkpoint = %key.checkpoint, cause = %failed, "expired, not removed");
                    self.catalog().renew(key, now.after(SWEEP_RETRY));
                }
            }
        }
    }

    fn expire(&self, now: Millis, key: Key) -> Result<(), StoreError> {
        let _changes = self.change()?;
        // It may have been renewed while this waited.
        if self.catalog().is_expired(now, key) {
            self.remove_all(now, key)?;
            tracing::info!(checkpoint = %key.checkpoint, owner = %key.owner, "expired uncommitted");
        }
        Ok(())
    }

    /// Removes all that there is of a checkpoint; says whether there was something. The manifest goes
    /// first: what is left then is uncommitted and expires even after a crash.
    fn remove_all(&self, now: Millis, key: Key) -> Result<bool, StoreError> {
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

    /// Hears on which time of day the hosts agree, Unix seconds.
    pub fn hear_clock(&self, agreed: u64) {
        self.agreed_clock.store(agreed, Ordering::Relaxed);
    }

    /// Hears what an owner says of a job: what is gone is removed. Returns how many checkpoints that
    /// were. `clock` is the time of day here, Unix seconds.
    ///
    /// # Errors
    /// When the owner has not signed it, there are too many, or the disk fails; asking again goes on.
    pub fn notice(&self, now: Millis, clock: u64, notice: &Notice) -> Result<usize, StoreError> {
        // Hosts pass notices on, and nothing of one ends with the key that signed it: a job key asks
        // each host, for each checkpoint.
        if notice.grant().is_some() {
            return Err(StoreError::Mismatch("signer of the notice"));
        }
        let words = notice.words();
        let _changes = self.change()?;
        // The later of both: a machine whose clock stands at 1970 still hears of deletions.
        let clock = clock.max(self.agreed_clock.load(Ordering::Relaxed));
        let (job, owner) = ((words.owner, words.job_tag), words.owner);
        let says_more = self.catalog().check_history(words)?;
        let is_last = self.catalog().check_notice(words, clock)?;
        if is_last {
            self.keep_older(job, words)?;
        }
        let path = match (is_last, says_more) {
            (true, _) => Some(notice_path(owner, words.job_tag)),
            (false, true) => Some(older_notice_path(owner, words.job_tag, words.number)),
            (false, false) => None,
        };
        let mut unneeded = Vec::new();
        if let Some(path) = path {
            self.write(NOTICES, owner, &path, notice.bytes())?;
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
        Ok(gone.len())
    }

    /// Keeps the last notice of a job beside the one that follows it, if that says less is gone.
    fn keep_older(&self, (owner, job_tag): Job, next: &Words) -> Result<(), StoreError> {
        let last = self.catalog().notices().get((owner, job_tag)).cloned();
        let Some(last) = last.filter(|last| !next.intervals.cover(&last.intervals)) else {
            return Ok(());
        };
        let old = load::read_notice(&*self.disk, &notice_path(owner, job_tag))?;
        let path = older_notice_path(owner, job_tag, last.number);
        self.write(NOTICES, owner, &path, old.bytes())
    }

    fn remove_gone(&self, now: Millis, gone: &[Key]) -> Result<(), StoreError> {
        for key in gone {
            self.remove_all(now, *key)?;
            self.remove_fence(*key)?;
            tracing::info!(checkpoint = %key.checkpoint, owner = %key.owner, "deleted by its owner");
        }
        Ok(())
    }

    /// Whether the owner deleted this, or all that lies where it does: then nobody else brings it back.
    pub fn is_deleted(&self, public: &Public) -> bool {
        let stamp = Stamp {
            created: public.created,
            checkpoint: public.checkpoint,
        };
        let job = (public.owner, public.job_tag);
        let catalog = self.catalog();
        catalog.is_inside(job, stamp) || catalog.notices().is_gone(job, public.checkpoint)
    }

    /// Jobs of which a committed checkpoint is here.
    pub fn jobs(&self) -> Vec<Job> {
        self.catalog().committed_jobs().into_iter().collect()
    }

    /// Removes checkpoints whose lease is over when it is `clock`, Unix seconds, or that have lain where
    /// all was deleted for a week, and notices that nobody needs any more. Returns how many checkpoints.
    ///
    /// # Errors
    /// When the disk fails; asking again goes on.
    pub fn end_leases(&self, now: Millis, clock: u64) -> Result<usize, StoreError> {
        let _changes = self.change()?;
        let outlived = self.catalog().outlived_keys(clock);
        for key in &outlived {
            self.remove_all(now, *key)?;
            tracing::info!(checkpoint = %key.checkpoint, owner = %key.owner, "its lease is over");
        }
        let inside = self.catalog().inside_keys(clock);
        for key in &inside {
            self.remove_all(now, *key)?;
            tracing::info!(checkpoint = %key.checkpoint, owner = %key.owner, "lay where all was deleted");
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

    /// Writes a small file of an owner, in the place of one with this name if there is one.
    pub(super) fn write(
        &self,
        kind: &'static str,
        owner: OwnerId,
        to: &Path,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let temp = self.write_unnamed(bytes)?;
        self.make_owner_dir(kind, owner)?;
        // A manifest makes a checkpoint visible: one that is not synced must not be.
        let named = match kind {
            MANIFESTS => temp.publish(to),
            _ => temp.replace(to),
        };
        named.map_err(|failed| self.changed("naming a small file", failed))
    }

    /// The manifest of a checkpoint. Reads the disk.
    ///
    /// # Errors
    /// When it can't be read, or is not to be believed any more.
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

    /// A directory whose sync failed once may sync "well" the next time without what was lost: so
    /// nothing is changed any more.
    pub(super) fn changed(&self, what: &'static str, failed: ChangeError) -> StoreError {
        match failed {
            ChangeError::NotDone(cause) => StoreError::Disk { what, cause },
            ChangeError::NotSynced(cause) => {
                self.is_poisoned.store(true, Ordering::SeqCst);
                tracing::error!(what, %cause, "directory not synced: nothing is changed until a restart");
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

/// Who made a checkpoint: its owner, or who acts for it by a grant.
pub fn signed_by(manifest: &Manifest) -> Who<OwnerId> {
    Who {
        member: manifest.public().owner,
        grant: manifest.grant().map(|_| OwnerId(manifest.signer().0)),
    }
}

/// Which checkpoint a manifest is of.
pub(super) fn of_manifest(public: &Public) -> (Key, Claim) {
    let key = Key {
        owner: public.owner,
        checkpoint: public.checkpoint,
    };
    let claim = Claim {
        job_tag: public.job_tag,
        version: public.version,
        checkpoint: public.checkpoint,
    };
    (key, claim)
}

const _: () = assert!(FOUND_BYTES_MAX > MANIFEST_BYTES_MAX);
