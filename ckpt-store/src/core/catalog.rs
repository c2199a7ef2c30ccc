//! The books: which shards are held, for whom, how much room there is, who claimed which version.

use std::collections::{BTreeMap, BTreeSet};

use codec::hash::ShardRoot;
use codec::manifest::Manifest;
use codec::{CheckpointId, JobTag, OwnerId, Version};
use protocol::wire::Code;
use protocol::wire::limits::UNCOMMITTED_LIFETIME;
use protocol::wire::message::{Claim, Refusal, ShardName};

/// Seconds since 1970.
pub type UnixSeconds = u64;

/// Claims that one owner may have at once; a save needs one.
const CLAIMS_PER_OWNER_MAX: usize = 1024;

/// A whole shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldShard {
    /// Length of its file.
    pub file_bytes: u64,
    /// Its root.
    pub root: ShardRoot,
}

/// What is held of one checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Whose it is.
    pub owner: OwnerId,
    /// Its job.
    pub job_tag: JobTag,
    /// Its version.
    pub version: Version,
    /// Whole shards by number.
    pub shards: BTreeMap<u8, HeldShard>,
    /// Its manifest, once it is committed.
    pub manifest: Option<Manifest>,
    /// When its newest shard was begun.
    pub since: UnixSeconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ClaimHeld {
    checkpoint: CheckpointId,
    expires: UnixSeconds,
}

/// Answer to a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimAnswer {
    /// The version is reserved.
    Claimed,
    /// Another checkpoint has it.
    Taken {
        /// The lowest version above all that are known of the job.
        next: Version,
    },
}

/// Room for a shard that is being written.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a reservation has to be settled or dropped through the catalog"]
pub struct Reservation {
    shard: ShardName,
    bytes: u64,
}

/// The books of one host.
#[derive(Debug)]
pub struct Catalog {
    capacity_bytes: u64,
    used_bytes: u64,
    reserved_bytes: u64,
    checkpoints: BTreeMap<CheckpointId, Held>,
    claims: BTreeMap<(OwnerId, JobTag, Version), ClaimHeld>,
    writing: BTreeSet<ShardName>,
}

impl Catalog {
    /// Empty books for a host that lends `capacity_bytes`.
    pub const fn new(capacity_bytes: u64) -> Self {
        Self {
            capacity_bytes,
            used_bytes: 0,
            reserved_bytes: 0,
            checkpoints: BTreeMap::new(),
            claims: BTreeMap::new(),
            writing: BTreeSet::new(),
        }
    }

    /// Bytes lent.
    pub const fn capacity_bytes(&self) -> u64 {
        self.capacity_bytes
    }

    /// Bytes taken or promised.
    pub const fn used_bytes(&self) -> u64 {
        self.used_bytes + self.reserved_bytes
    }

    /// Number of whole shards.
    pub fn shard_count(&self) -> u64 {
        self.checkpoints
            .values()
            .map(|held| held.shards.len() as u64)
            .sum()
    }

    /// Number of committed checkpoints.
    pub fn checkpoint_count(&self) -> u64 {
        let committed = |held: &&Held| held.manifest.is_some();
        self.checkpoints.values().filter(committed).count() as u64
    }

    /// All that is held.
    pub fn all(&self) -> impl Iterator<Item = (CheckpointId, &Held)> {
        self.checkpoints.iter().map(|(id, held)| (*id, held))
    }

    /// What is held of a checkpoint, if it is `owner`'s.
    ///
    /// # Errors
    /// The same refusal whether it does not exist or is somebody else's.
    pub fn owned(&self, owner: OwnerId, checkpoint: CheckpointId) -> Result<&Held, Refusal> {
        self.checkpoints
            .get(&checkpoint)
            .filter(|held| held.owner == owner)
            .ok_or_else(|| Refusal::new(Code::NotFound, format!("checkpoint {checkpoint}")))
    }

    /// A whole shard of a checkpoint, if it is `owner`'s.
    ///
    /// # Errors
    /// As [`Self::owned`].
    pub fn owned_shard(&self, owner: OwnerId, name: ShardName) -> Result<HeldShard, Refusal> {
        let held = self.owned(owner, name.checkpoint)?;
        held.shards.get(&name.shard).copied().ok_or_else(|| {
            let ShardName { checkpoint, shard } = name;
            Refusal::new(Code::NotFound, format!("shard {shard} of {checkpoint}"))
        })
    }

    /// Reserves a version for a checkpoint; saying it again is fine.
    ///
    /// # Errors
    /// When the owner has too many claims.
    pub fn claim(
        &mut self,
        owner: OwnerId,
        claim: Claim,
        now: UnixSeconds,
    ) -> Result<ClaimAnswer, Refusal> {
        if self.holder_of(owner, claim, now).is_some() {
            let next = self.next_version(owner, claim.job_tag);
            return Ok(ClaimAnswer::Taken { next });
        }
        let of_owner = |((of, _, _), _): &(&(OwnerId, _, _), _)| *of == owner;
        if self.claims.iter().filter(of_owner).count() >= CLAIMS_PER_OWNER_MAX {
            return Err(Refusal::new(Code::Busy, "too many saves at once"));
        }
        let held = ClaimHeld {
            checkpoint: claim.checkpoint,
            expires: now.saturating_add(UNCOMMITTED_LIFETIME.as_secs()),
        };
        self.claims
            .insert((owner, claim.job_tag, claim.version), held);
        Ok(ClaimAnswer::Claimed)
    }

    /// Another checkpoint that has the version which is claimed.
    fn holder_of(&self, owner: OwnerId, claim: Claim, now: UnixSeconds) -> Option<CheckpointId> {
        let key = (owner, claim.job_tag, claim.version);
        let claimed = self
            .claims
            .get(&key)
            .filter(|held| held.expires > now)
            .map(|held| held.checkpoint);
        let stored = self.checkpoints.iter().filter_map(|(id, held)| {
            ((held.owner, held.job_tag, held.version) == key).then_some(*id)
        });
        claimed
            .into_iter()
            .chain(stored)
            .find(|id| *id != claim.checkpoint)
    }

    fn next_version(&self, owner: OwnerId, job_tag: JobTag) -> Version {
        let claimed = self
            .claims
            .keys()
            .filter(|(of, job, _)| (*of, *job) == (owner, job_tag))
            .map(|(_, _, version)| *version);
        let stored = self
            .checkpoints
            .values()
            .filter(|held| (held.owner, held.job_tag) == (owner, job_tag))
            .map(|held| held.version);
        claimed
            .chain(stored)
            .max()
            .map_or(Version::FIRST, Version::next)
    }

    /// Makes room for a shard that is about to be written, `expected_bytes` at first.
    ///
    /// # Errors
    /// When it is here already, is being written, has a version that is another checkpoint's, or
    /// does not fit.
    pub fn reserve(
        &mut self,
        owner: OwnerId,
        claim: Claim,
        shard: u8,
        expected_bytes: u64,
        now: UnixSeconds,
    ) -> Result<Reservation, Refusal> {
        if self.holder_of(owner, claim, now).is_some() {
            return Err(Refusal::new(
                Code::VersionTaken,
                format!("version {}", claim.version),
            ));
        }
        if let Some(held) = self.checkpoints.get(&claim.checkpoint) {
            let same =
                (held.owner, held.job_tag, held.version) == (owner, claim.job_tag, claim.version);
            if !same {
                return Err(Refusal::new(Code::Forbidden, "checkpoint id in use"));
            }
            if held.shards.contains_key(&shard) {
                return Err(Refusal::new(Code::Exists, format!("shard {shard}")));
            }
        }
        let name = ShardName {
            checkpoint: claim.checkpoint,
            shard,
        };
        if self.writing.contains(&name) {
            return Err(Refusal::new(
                Code::Exists,
                format!("shard {shard} is being written"),
            ));
        }
        let mut reservation = Reservation {
            shard: name,
            bytes: 0,
        };
        self.extend(&mut reservation, expected_bytes)?;
        self.writing.insert(name);
        Ok(reservation)
    }

    /// Makes the reservation at least `bytes` long.
    ///
    /// # Errors
    /// When there is no room; the reservation stays as it was.
    pub fn extend(&mut self, reservation: &mut Reservation, bytes: u64) -> Result<(), Refusal> {
        let more = bytes.saturating_sub(reservation.bytes);
        let left = self.capacity_bytes.saturating_sub(self.used_bytes());
        if more > left {
            return Err(Refusal::new(
                Code::NoSpace,
                format!(
                    "{more} bytes wanted, {left} left of {}",
                    self.capacity_bytes
                ),
            ));
        }
        reservation.bytes += more;
        self.reserved_bytes += more;
        Ok(())
    }

    /// Gives a reservation back: the shard was not written.
    pub fn release(&mut self, reservation: Reservation) {
        self.reserved_bytes -= reservation.bytes;
        self.writing.remove(&reservation.shard);
    }

    /// Enters a shard that is whole and synced.
    pub fn stored(
        &mut self,
        reservation: Reservation,
        owner: OwnerId,
        claim: Claim,
        shard: HeldShard,
        now: UnixSeconds,
    ) {
        let name = reservation.shard;
        self.release(reservation);
        self.enter(owner, claim, name.shard, shard, now);
    }

    /// Enters a whole shard, found at start or just written.
    pub fn enter(
        &mut self,
        owner: OwnerId,
        claim: Claim,
        number: u8,
        shard: HeldShard,
        since: UnixSeconds,
    ) {
        let held = self
            .checkpoints
            .entry(claim.checkpoint)
            .or_insert_with(|| Held {
                owner,
                job_tag: claim.job_tag,
                version: claim.version,
                shards: BTreeMap::new(),
                manifest: None,
                since,
            });
        held.since = held.since.max(since);
        self.used_bytes += shard.file_bytes;
        if let Some(replaced) = held.shards.insert(number, shard) {
            self.used_bytes -= replaced.file_bytes;
        }
    }

    /// Whether `manifest` may be committed here: `Ok(true)` when it already is.
    ///
    /// # Errors
    /// When it is not the asker's, no shard of it is here, a shard here is not the one that it
    /// names, or another checkpoint has its version.
    pub fn check_commit(&self, owner: OwnerId, manifest: &Manifest) -> Result<bool, Refusal> {
        let public = manifest.public();
        if public.owner != owner {
            return Err(Refusal::new(Code::Forbidden, "signed by somebody else"));
        }
        let held = self.owned(owner, public.checkpoint)?;
        if (held.job_tag, held.version) != (public.job_tag, public.version) {
            return Err(Refusal::new(Code::Mismatch, "job or version of the shard"));
        }
        if let Some(committed) = &held.manifest {
            if committed == manifest {
                return Ok(true);
            }
            return Err(Refusal::new(
                Code::Mismatch,
                "committed with another manifest",
            ));
        }
        for (number, shard) in &held.shards {
            if public.roots.get(usize::from(*number)) != Some(&shard.root) {
                return Err(Refusal::new(
                    Code::Mismatch,
                    format!("root of shard {number}"),
                ));
            }
        }
        let key = (owner, public.job_tag, public.version);
        let taken = self.checkpoints.iter().any(|(id, other)| {
            let other_key = (other.owner, other.job_tag, other.version);
            *id != public.checkpoint && other.manifest.is_some() && other_key == key
        });
        if taken {
            return Err(Refusal::new(
                Code::VersionTaken,
                format!("version {}", public.version),
            ));
        }
        Ok(false)
    }

    /// Enters a manifest that is synced.
    pub fn committed(&mut self, manifest: Manifest) {
        let public = manifest.public();
        let key = (public.owner, public.job_tag, public.version);
        self.claims.remove(&key);
        if let Some(held) = self.checkpoints.get_mut(&public.checkpoint) {
            held.manifest = Some(manifest);
        }
    }

    /// Committed checkpoints of `owner`, of one job or all, with ids above `after`, by id.
    pub fn find(
        &self,
        owner: OwnerId,
        job_tag: Option<JobTag>,
        after: Option<CheckpointId>,
    ) -> impl Iterator<Item = &Held> {
        use std::ops::Bound::{Excluded, Unbounded};
        let from = after.map_or(Unbounded, Excluded);
        self.checkpoints
            .range((from, Unbounded))
            .map(|(_, held)| held)
            .filter(move |held| held.owner == owner && held.manifest.is_some())
            .filter(move |held| job_tag.is_none_or(|job| job == held.job_tag))
    }

    /// Takes a checkpoint out of the books; its files are removed by the caller.
    pub fn remove(&mut self, checkpoint: CheckpointId) -> Option<Held> {
        let held = self.checkpoints.remove(&checkpoint)?;
        let bytes: u64 = held.shards.values().map(|shard| shard.file_bytes).sum();
        self.used_bytes -= bytes;
        Some(held)
    }

    /// Drops all claims for a checkpoint.
    pub fn unclaim(&mut self, owner: OwnerId, checkpoint: CheckpointId) {
        self.claims
            .retain(|(of, _, _), held| *of != owner || held.checkpoint != checkpoint);
    }

    /// Drops claims that are over, and tells which checkpoints were never committed and have been
    /// waiting for too long.
    pub fn expire(&mut self, now: UnixSeconds) -> Vec<CheckpointId> {
        self.claims.retain(|_, held| held.expires > now);
        let lifetime = UNCOMMITTED_LIFETIME.as_secs();
        self.checkpoints
            .iter()
            .filter(|(id, held)| {
                let written = self.writing.iter().any(|name| name.checkpoint == **id);
                held.manifest.is_none() && !written && held.since.saturating_add(lifetime) <= now
            })
            .map(|(id, _)| *id)
            .collect()
    }
}
