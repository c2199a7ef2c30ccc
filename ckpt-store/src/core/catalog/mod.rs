//! What a host holds and has promised: checkpoints by owner, their shards, claims and expiry.
//!
//! The daemon asks the catalog before it acts, and reports afterwards what it did. In between, a shard
//! that is being written is a *put*, which reserves its version and its space. All of it belongs to one
//! owner and does not exist for other owners.
//!
//! The life of a checkpoint:
//!
//! ```text
//! claim -> put -> shard -> commit -> forget
//! |<----------------->|
//!   expires UNCOMMITTED_LIFETIME after its last step, unless it is committed before
//! ```

mod fences;
pub mod history;
mod job_keys;
mod peers;
mod puts;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use codec::shard_file::ShardIdentity;
use codec::{CheckpointId, JobTag, OwnerId, ShardIndex, ShardRoot, Version};
use protocol::wire::Code;
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use protocol::wire::message::Claim;

use super::Millis;
use super::by_key::ByKey;
use super::fence::Fences;
use super::histories::Histories;
use super::key::Key;
use super::ledger::{CHECKPOINT_BYTES, Ledger, NoSpace};
use super::notices::Notices;
use super::places::{Stock, Tally, Who};
use puts::Put;

pub use job_keys::Moment;
pub use puts::PutId;

/// Most checkpoints that a host knows, claims included. Each takes some 300 bytes of memory. [`Stock`]
/// keeps one owner from taking the room of the others.
pub const CHECKPOINTS_MAX: usize = 1 << 16;

/// Most checkpoints of one owner that are claimed or being written, and not committed. One grant may have
/// half of them.
pub const UNCOMMITTED_MAX: usize = 1024;

/// A shard that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// The checkpoint and the number of the shard.
    pub identity: ShardIdentity,
    /// The hash of the shard's outline.
    pub root: ShardRoot,
    /// The number of rows.
    pub rows: u64,
    /// The sum of the lengths of its blocks.
    pub block_bytes: u64,
    /// The length of its file.
    pub file_bytes: u64,
}

/// Why a request of an owner or of a host is denied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// There is no such checkpoint or shard, or it is not the asker's.
    #[error("no such checkpoint or shard")]
    NotFound,
    /// Its owner has declared the checkpoint gone.
    #[error("the checkpoint was deleted by its owner")]
    Gone,
    /// The owner has its share of the notices, or of the ids in them.
    #[error("this owner has too many notices: no more are accepted")]
    TooManyNotices,
    /// The owner has its share of the checkpoints of which this host is a witness.
    #[error("this host is a witness of too many checkpoints of this owner: no more are accepted")]
    TooManyFences,
    /// The file with the promises about the checkpoint's successors can't be read.
    #[error("the host's promise on the successor can't be read")]
    FenceDamaged,
    /// The number of a notice is a time too far ahead. Such a notice could not be replaced before that
    /// time.
    #[error("the notice is from the future: check the clock of the machine that made it")]
    FromTheFuture,
    /// A job key asks for a version far above all that are here.
    #[error("version {0} is far above those of this job: only the owner's own key may take it")]
    FarAhead(Version),
    /// The shard is here or is being written.
    #[error("shard {0} exists already or is being written")]
    Exists(ShardIndex),
    /// The version belongs to another checkpoint.
    #[error("version {version} belongs to checkpoint {holder}")]
    VersionTaken {
        /// The version that was asked for.
        version: Version,
        /// The checkpoint that has it.
        holder: CheckpointId,
    },
    /// There is not enough space.
    #[error(transparent)]
    NoSpace(#[from] NoSpace),
    /// The owner has its share of the checkpoints.
    #[error("{of_owner} checkpoints of this owner among {all}: no more are accepted")]
    TooMany {
        /// The number of this owner's checkpoints.
        of_owner: u64,
        /// The number of all checkpoints.
        all: u64,
    },
    /// The owner has begun too many checkpoints that are not committed.
    #[error("{0} uncommitted checkpoints of this owner: no more are accepted")]
    TooManyUncommitted(u64),
    /// The request contradicts what is known of the checkpoint.
    #[error("{0} differs from what was announced before")]
    Contradiction(&'static str),
}

impl Checkpoint {
    /// The owner and grant to which the checkpoint belongs.
    fn who(&self, key: Key) -> Who<OwnerId> {
        Who {
            member: key.owner,
            grant: self.grant.as_deref().copied(),
        }
    }

    /// Whether only its version is reserved, and nothing is stored or being written.
    const fn is_only_claimed(&self) -> bool {
        self.shards.is_empty() && self.puts == 0 && !self.is_committed
    }
}

impl Denied {
    /// The code of this answer on the wire.
    pub const fn code(&self) -> Code {
        match self {
            Self::NotFound | Self::Gone => Code::NotFound,
            Self::Exists(_) => Code::Exists,
            Self::VersionTaken { .. } => Code::VersionTaken,
            Self::NoSpace(_)
            | Self::TooMany { .. }
            | Self::TooManyNotices
            | Self::TooManyFences => Code::NoSpace,
            Self::FenceDamaged => Code::DiskFailed,
            Self::TooManyUncommitted(_) => Code::Busy,
            // `BadRequest` would mean that this host does not know notices at all.
            Self::FromTheFuture | Self::Contradiction(_) => Code::Mismatch,
            Self::FarAhead(_) => Code::Forbidden,
        }
    }
}

/// The answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// The version belongs to the asker's checkpoint now.
    Yes,
    /// The version belongs to another checkpoint. The version `next` is free.
    Taken {
        /// The lowest version above all known ones of the job.
        next: Version,
    },
}

/// Whether the manifest of a commit still has to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitStep {
    /// The manifest has to be written.
    Write,
    /// The checkpoint is committed already.
    Done,
}

#[derive(Clone, Debug)]
struct Checkpoint {
    job_tag: JobTag,
    version: Version,
    /// Key of the grant by which the checkpoint was made. Boxed, because few have one and there are many
    /// checkpoints.
    grant: Option<Box<OwnerId>>,
    /// When its save began, in Unix seconds; 0 until the checkpoint is committed.
    created: u64,
    /// Complete shards, by number. There is nearly always one, and a vector is smaller than a map.
    shards: Vec<Shard>,
    /// Whether its manifest is on the disk.
    is_committed: bool,
    /// When the checkpoint expires if it is not committed before.
    expires: Millis,
    /// How many of its shards are being written.
    puts: u32,
    /// Whether its owner is charged its price, [`CHECKPOINT_BYTES`]: true while something of it is on the
    /// disk.
    is_charged: bool,
}

/// Counts for status reports and the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Shards that are complete, of all owners.
    pub shards: u64,
    /// Checkpoints that are committed, of all owners.
    pub committed: u64,
    /// Checkpoints that are claimed or being written, and not committed.
    pub uncommitted: u64,
    /// Shards that are being written.
    pub puts: u64,
}

/// The books of a host. The default is those of an empty host that lends nothing.
#[derive(Debug)]
pub struct Catalog {
    checkpoints: ByKey<Checkpoint>,
    versions: BTreeMap<OwnerId, BTreeSet<(JobTag, Version, CheckpointId)>>,
    deadlines: BTreeSet<(Millis, Key)>,
    uncommitted: Tally<OwnerId>,
    entries: Stock<OwnerId>,
    puts: BTreeMap<PutId, Put>,
    next_put: u64,
    counts: Counts,
    ledger: Ledger,
    notices: Notices,
    histories: Histories,
    /// Since when checkpoints are inside of a stretch that was deleted.
    inside: history::Since,
    fences: Fences,
}

impl Default for Catalog {
    fn default() -> Self {
        Self {
            checkpoints: ByKey::new(),
            versions: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            uncommitted: Tally::default(),
            entries: Stock::new(CHECKPOINTS_MAX as u64),
            puts: BTreeMap::new(),
            next_put: 0,
            counts: Counts::default(),
            ledger: Ledger::default(),
            notices: Notices::default(),
            histories: Histories::default(),
            inside: history::Since::new(),
            fences: Fences::default(),
        }
    }
}

impl Catalog {
    /// Sets how many bytes the host lends, and how many of these one owner may use. What is stored beyond
    /// that stays.
    pub const fn lend(&mut self, capacity: u64, share: u64) {
        self.ledger.lend(capacity, share);
    }

    /// The books of space.
    pub const fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Counts of what this host holds.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// Enters a complete shard that was found on the disk and whose file is `age` old.
    pub fn load_shard(
        &mut self,
        now: Millis,
        age: Duration,
        claim: &Claim,
        owner: OwnerId,
        shard: Shard,
    ) {
        let key = Key {
            owner,
            checkpoint: claim.checkpoint,
        };
        let left = UNCOMMITTED_LIFETIME.saturating_sub(age);
        // The grant becomes known when the manifest is loaded. Without a manifest the shard is not kept
        // for long.
        self.enter(Who::itself(owner), claim, now.after(left));
        self.add_shard(key, shard);
    }

    /// Enters a manifest that was found on the disk; `who` signed it.
    pub fn load_manifest(&mut self, claim: &Claim, who: impl Into<Who<OwnerId>>) {
        let who = who.into();
        let key = Key {
            owner: who.member,
            checkpoint: claim.checkpoint,
        };
        self.enter(who, claim, Millis::default());
        self.committed(key);
    }

    /// The checkpoints whose manifest is here and committed.
    fn all_committed(&self) -> impl Iterator<Item = (Key, &Checkpoint)> {
        let all = self.checkpoints.iter();
        all.filter(|(_, one)| one.is_committed)
    }

    /// All known versions of a job, ascending.
    fn versions_of(&self, owner: OwnerId, tag: JobTag) -> impl DoubleEndedIterator<Item = Version> {
        self.entries_of(owner, tag).map(|(version, _)| version)
    }

    /// All known versions of a job, ascending, each with its checkpoint.
    fn entries_of(
        &self,
        owner: OwnerId,
        tag: JobTag,
    ) -> impl DoubleEndedIterator<Item = (Version, CheckpointId)> {
        self.entries_from(owner, (tag, Version::FIRST, CheckpointId([0; 16])))
    }

    /// The versions of a job from an entry on, ascending, each with its checkpoint.
    fn entries_from(
        &self,
        owner: OwnerId,
        from: (JobTag, Version, CheckpointId),
    ) -> impl DoubleEndedIterator<Item = (Version, CheckpointId)> {
        let last = (from.0, Version::LAST, CheckpointId([u8::MAX; 16]));
        let of_owner = self.versions.get(&owner).into_iter();
        of_owner
            .flat_map(move |all| all.range(from..=last))
            .map(|&(_, version, checkpoint)| (version, checkpoint))
    }

    /// Reserves a version for a checkpoint. The same claim again renews the reservation.
    ///
    /// # Errors
    /// When the checkpoint is known with another version, or there are too many checkpoints.
    pub fn claim(
        &mut self,
        now: Millis,
        who: impl Into<Who<OwnerId>>,
        claim: &Claim,
    ) -> Result<Claimed, Denied> {
        let who = who.into();
        match self.hold_version(now, who, claim) {
            Ok(_) => Ok(Claimed::Yes),
            Err(Denied::VersionTaken { .. }) => Ok(Claimed::Taken {
                next: self.next_version(who.member, claim.job_tag),
            }),
            Err(denied) => Err(denied),
        }
    }

    /// Whether the manifest of a checkpoint is to be written of which no shard need be here. Reserves its
    /// version. `free` is what the disk has left, in bytes.
    ///
    /// # Errors
    /// As [`Self::claim`] and [`Self::check_commit`], and when there is no space.
    pub fn check_kept(
        &mut self,
        now: Millis,
        who: Who<OwnerId>,
        claim: &Claim,
        roots: &[ShardRoot],
        free: u64,
    ) -> Result<CommitStep, Denied> {
        let key = Key {
            owner: who.member,
            checkpoint: claim.checkpoint,
        };
        let is_charged = |one: &Checkpoint| one.is_charged;
        if !self.checkpoints.get(&key).is_some_and(is_charged) {
            self.ledger.check(who, CHECKPOINT_BYTES, free)?;
        }
        self.hold_version(now, who, claim)?;
        self.check_manifest(key, claim, roots)
    }

    /// Whether a checkpoint may be committed with a manifest that has these roots, by shard number.
    ///
    /// # Errors
    /// When none of its shards is complete, one of them has another root, or its version belongs to
    /// another committed checkpoint.
    pub fn check_commit(
        &self,
        owner: OwnerId,
        claim: &Claim,
        roots: &[ShardRoot],
    ) -> Result<CommitStep, Denied> {
        let key = Key {
            owner,
            checkpoint: claim.checkpoint,
        };
        self.check_not_gone(owner, claim)?;
        if self.shards(key).is_empty() {
            return Err(Denied::NotFound);
        }
        self.check_manifest(key, claim, roots)
    }

    /// Whether a manifest with these roots, by shard number, fits what is known of its checkpoint.
    fn check_manifest(
        &self,
        key: Key,
        claim: &Claim,
        roots: &[ShardRoot],
    ) -> Result<CommitStep, Denied> {
        let checkpoint = self.checkpoints.get(&key).ok_or(Denied::NotFound)?;
        if (checkpoint.job_tag, checkpoint.version) != (claim.job_tag, claim.version) {
            return Err(Denied::Contradiction("job or version"));
        }
        for shard in &checkpoint.shards {
            if roots.get(shard.identity.shard.at()) != Some(&shard.root) {
                return Err(Denied::Contradiction("root of a shard"));
            }
        }
        if checkpoint.is_committed {
            return Ok(CommitStep::Done);
        }
        let owner = key.owner;
        let other = self
            .holders(owner, claim.job_tag, claim.version)
            .find(|&holder| {
                let key = Key {
                    owner,
                    checkpoint: holder,
                };
                holder != claim.checkpoint && self.is_committed(key)
            });
        match other {
            Some(holder) => Err(Denied::VersionTaken {
                version: claim.version,
                holder,
            }),
            None => Ok(CommitStep::Write),
        }
    }

    /// Notes that the manifest of a checkpoint is durable.
    pub fn committed(&mut self, key: Key) {
        let Some(checkpoint) = self.checkpoints.get_mut(&key) else {
            return;
        };
        if !checkpoint.is_committed {
            checkpoint.is_committed = true;
            let who = checkpoint.who(key);
            self.deadlines.remove(&(checkpoint.expires, key));
            self.counts.committed += 1;
            self.drop_uncommitted(who);
        }
        self.settle(key);
    }

    /// Charges the owner the price of a checkpoint if something of it is on the disk, and ends the charge
    /// if nothing is. The price includes the manifest.
    fn settle(&mut self, key: Key) {
        let Some(checkpoint) = self.checkpoints.get_mut(&key) else {
            return;
        };
        let is_due = !checkpoint.shards.is_empty() || checkpoint.is_committed;
        let was_due = std::mem::replace(&mut checkpoint.is_charged, is_due);
        let who = checkpoint.who(key);
        match (was_due, is_due) {
            (false, true) => self.ledger.store(who, CHECKPOINT_BYTES),
            (true, false) => self.ledger.remove(who, CHECKPOINT_BYTES),
            _ => {}
        }
    }

    /// Whether the manifest of a checkpoint is here.
    pub fn is_committed(&self, key: Key) -> bool {
        self.checkpoints
            .get(&key)
            .is_some_and(|checkpoint| checkpoint.is_committed)
    }

    /// One complete shard of a checkpoint.
    ///
    /// # Errors
    /// When the shard is not here.
    pub fn shard(&self, key: Key, number: u8) -> Result<&Shard, Denied> {
        self.shards(key)
            .iter()
            .find(|shard| shard.identity.shard.number() == number)
            .ok_or(Denied::NotFound)
    }

    /// All shards of committed checkpoints.
    pub fn held(&self) -> impl Iterator<Item = (CheckpointId, ShardIndex)> {
        self.all_committed().flat_map(|(key, one)| {
            let shards = one.shards.iter();
            shards.map(move |shard| (key.checkpoint, shard.identity.shard))
        })
    }

    /// All complete shards of a checkpoint.
    pub fn shards(&self, key: Key) -> &[Shard] {
        self.checkpoints
            .get(&key)
            .map_or(&[], |checkpoint| &checkpoint.shards)
    }

    /// The owner's committed checkpoints with an id above `after`, in ascending order.
    pub fn find(
        &self,
        owner: OwnerId,
        job_tag: Option<JobTag>,
        after: Option<CheckpointId>,
    ) -> impl Iterator<Item = Key> {
        self.checkpoints
            .of_owner(owner, after)
            .filter(move |(_, checkpoint)| checkpoint.is_committed)
            .filter(move |(_, checkpoint)| job_tag.is_none_or(|tag| tag == checkpoint.job_tag))
            .map(|(key, _)| key)
    }

    /// Abandons all puts of a checkpoint. Returns whether the checkpoint is known.
    pub fn begin_forget(&mut self, key: Key) -> bool {
        for put in self.puts.values_mut().filter(|put| put.key == key) {
            put.forgotten = true;
        }
        match self.checkpoints.get_mut(&key) {
            Some(checkpoint) => {
                checkpoint.puts = 0;
                true
            }
            None => false,
        }
    }

    /// Notes that the manifest of a checkpoint is gone from the disk. The rest of the checkpoint expires
    /// now.
    pub fn manifest_removed(&mut self, now: Millis, key: Key) {
        let Some(checkpoint) = self.checkpoints.get_mut(&key) else {
            return;
        };
        if std::mem::take(&mut checkpoint.is_committed) {
            checkpoint.expires = now;
            self.deadlines.insert((now, key));
            self.counts.committed -= 1;
            self.counts.uncommitted += 1;
            self.uncommitted.add(checkpoint.who(key), 1);
        }
        self.settle(key);
    }

    /// Notes that a shard is gone from the disk.
    pub fn shard_removed(&mut self, key: Key, shard: ShardIndex) {
        let Some(checkpoint) = self.checkpoints.get_mut(&key) else {
            return;
        };
        let place = |held: &Shard| held.identity.shard == shard;
        if let Some(at) = checkpoint.shards.iter().position(place) {
            let removed = checkpoint.shards.remove(at);
            self.counts.shards -= 1;
            self.ledger.remove(checkpoint.who(key), removed.file_bytes);
        }
        self.settle(key);
    }

    /// Removes a checkpoint of which nothing is on the disk any more.
    pub fn forgotten(&mut self, now: Millis, key: Key) {
        // Puts may have begun since `begin_forget` was called.
        self.begin_forget(key);
        self.manifest_removed(now, key);
        for shard in self.shards(key).to_vec() {
            self.shard_removed(key, shard.identity.shard);
        }
        if let Some(checkpoint) = self.checkpoints.remove(&key) {
            self.drop_version(key, &checkpoint);
            self.deadlines.remove(&(checkpoint.expires, key));
            self.drop_uncommitted(checkpoint.who(key));
            self.entries.take(checkpoint.who(key), 1);
        }
    }

    /// An expired checkpoint, if there is one.
    pub fn next_expired(&self, now: Millis) -> Option<Key> {
        self.deadlines
            .iter()
            .take_while(|(expires, _)| *expires <= now)
            .map(|(_, key)| *key)
            .find(|key| self.is_expired(now, *key))
    }

    /// Whether a checkpoint is uncommitted, its time is over, and nothing still needs it.
    pub fn is_expired(&self, now: Millis, key: Key) -> bool {
        self.checkpoints.get(&key).is_some_and(|checkpoint| {
            !checkpoint.is_committed && checkpoint.puts == 0 && checkpoint.expires <= now
        }) && !self.fences.wants(key)
    }

    /// Puts off the expiry of an uncommitted checkpoint.
    pub fn renew(&mut self, key: Key, expires: Millis) {
        let Some(checkpoint) = self.checkpoints.get_mut(&key) else {
            return;
        };
        if !checkpoint.is_committed {
            self.deadlines.remove(&(checkpoint.expires, key));
            checkpoint.expires = expires;
            self.deadlines.insert((expires, key));
        }
    }

    /// Bytes that can be stored if the disk has `free` bytes: by `who`, or by anybody if `who` is `None`.
    pub fn left(&self, who: Option<Who<OwnerId>>, free: u64) -> u64 {
        who.map_or_else(
            || self.ledger.left(free),
            |who| self.ledger.left_for(who, free),
        )
    }

    fn holders(
        &self,
        owner: OwnerId,
        tag: JobTag,
        version: Version,
    ) -> impl Iterator<Item = CheckpointId> {
        let all = self.entries_from(owner, (tag, version, CheckpointId([0; 16])));
        all.take_while(move |(known, _)| *known == version)
            .map(|(_, holder)| holder)
    }

    fn next_version(&self, owner: OwnerId, tag: JobTag) -> Version {
        let newest = self.versions_of(owner, tag).next_back();
        newest.map_or(Version::FIRST, Version::next)
    }

    /// Reserves the version for the checkpoint, or renews the reservation.
    fn hold_version(
        &mut self,
        now: Millis,
        who: Who<OwnerId>,
        claim: &Claim,
    ) -> Result<(), Denied> {
        let owner = who.member;
        let key = Key {
            owner,
            checkpoint: claim.checkpoint,
        };
        let expires = now.after(UNCOMMITTED_LIFETIME);
        self.check_not_gone(owner, claim)?;
        if let Some(known) = self.checkpoints.get(&key) {
            if (known.job_tag, known.version) == (claim.job_tag, claim.version) {
                self.renew(key, expires);
                return Ok(());
            }
            if !known.is_only_claimed() {
                return Err(Denied::Contradiction("job or version"));
            }
            // The save found that its version belongs to another checkpoint on another host, and moves on
            // to a new version.
            self.forgotten(now, key);
        }
        let version = claim.version;
        if who.grant.is_some() && self.is_far_ahead(owner, claim) {
            return Err(Denied::FarAhead(version));
        }
        if let Some(holder) = self.holders(owner, claim.job_tag, version).next() {
            return Err(Denied::VersionTaken { version, holder });
        }
        if !self.entries.has_room(who, 1) {
            let of_owner = self.entries.of(owner);
            let all = self.entries.all();
            return Err(Denied::TooMany { of_owner, all });
        }
        let most = UNCOMMITTED_MAX as u64;
        let uncommitted = self.uncommitted.of_member(who);
        let of_grant = self.uncommitted.of_grant(who);
        if uncommitted >= most || of_grant >= most / 2 {
            return Err(Denied::TooManyUncommitted(uncommitted.max(of_grant)));
        }
        self.enter(who, claim, expires);
        Ok(())
    }

    /// Adds an uncommitted checkpoint, unless the checkpoint is known.
    fn enter(&mut self, who: Who<OwnerId>, claim: &Claim, expires: Millis) {
        let key = Key {
            owner: who.member,
            checkpoint: claim.checkpoint,
        };
        if self.checkpoints.contains_key(&key) {
            return;
        }
        let checkpoint = Checkpoint {
            job_tag: claim.job_tag,
            version: claim.version,
            grant: who.grant.map(Box::new),
            created: 0,
            shards: Vec::new(),
            is_committed: false,
            expires,
            puts: 0,
            is_charged: false,
        };
        let of_owner = self.versions.entry(key.owner).or_default();
        of_owner.insert(version_entry(key, &checkpoint));
        self.deadlines.insert((expires, key));
        self.checkpoints.insert(key, checkpoint);
        self.entries.add(who, 1);
        self.counts.uncommitted += 1;
        self.uncommitted.add(who, 1);
    }

    fn drop_version(&mut self, key: Key, checkpoint: &Checkpoint) {
        if let Some(of_owner) = self.versions.get_mut(&key.owner) {
            of_owner.remove(&version_entry(key, checkpoint));
            if of_owner.is_empty() {
                self.versions.remove(&key.owner);
            }
        }
    }

    fn drop_uncommitted(&mut self, who: Who<OwnerId>) {
        self.counts.uncommitted -= 1;
        self.uncommitted.take(who, 1);
    }

    fn add_shard(&mut self, key: Key, shard: Shard) {
        if let Some(checkpoint) = self.checkpoints.get_mut(&key) {
            // Allocated exactly: there are many checkpoints, and nearly all have one shard here.
            checkpoint.shards.reserve_exact(1);
            checkpoint.shards.push(shard);
            checkpoint.shards.sort_by_key(|shard| shard.identity.shard);
            self.counts.shards += 1;
            self.ledger.store(checkpoint.who(key), shard.file_bytes);
        }
        self.settle(key);
    }
}

const fn version_entry(key: Key, checkpoint: &Checkpoint) -> (JobTag, Version, CheckpointId) {
    (checkpoint.job_tag, checkpoint.version, key.checkpoint)
}

mod outdated;
#[cfg(test)]
mod tests;
