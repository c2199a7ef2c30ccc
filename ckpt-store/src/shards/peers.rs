//! What a host does for other donors: it answers which shards it holds, proves them, and takes shards
//! that others rebuilt.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};

use codec::holding::{Asking, ShardSet, Tag};
use codec::manifest::Public;
use codec::proof::{ShardProof, Spot};
use codec::{OwnerId, Redundancy, ShardIndex};
use protocol::wire::message::{HeldTag, PutShard, ShardName};

use super::error::StoreError;
use super::store::Store;
use super::upload::{Bound, Upload};
use crate::core::notices::OwnedJob;
use crate::core::places::Who;
use crate::core::{Denied, Key, Millis, Shard};

/// Most checkpoints that are looked at under one lock of the catalog.
const KEYS_AT_ONCE: usize = 1024;

/// What this host holds of one committed checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The checkpoint, and its owner.
    pub key: Key,
    /// The job of the checkpoint.
    pub job: OwnedJob,
    /// How the checkpoint is coded.
    pub redundancy: Redundancy,
    /// The shards of it that are here.
    pub shards: Vec<ShardIndex>,
}

impl Holding {
    fn of(key: Key, job: OwnedJob, shards: &[Shard]) -> Option<Self> {
        let numbers = shards.iter().map(|shard| shard.identity.shard);
        Some(Self {
            key,
            job,
            redundancy: shards.first()?.identity.redundancy,
            shards: numbers.collect(),
        })
    }
}

impl Store {
    /// What this host holds of up to `most` committed checkpoints after `after`, in ascending order.
    pub fn holdings(&self, after: Option<Key>, most: usize) -> Vec<Holding> {
        let catalog = self.catalog();
        let held = catalog.held_after(after).take(most);
        held.filter_map(|(key, job_tag, shards)| Holding::of(key, (key.owner, job_tag), shards))
            .collect()
    }

    /// What this host holds of these checkpoints. A checkpoint of which it holds nothing is left out.
    pub fn holdings_of(&self, keys: &BTreeSet<Key>) -> Vec<Holding> {
        let catalog = self.catalog();
        let one = |key: &Key| {
            let (job_tag, shards) = catalog.job_and_shards(*key)?;
            Holding::of(*key, (key.owner, job_tag), shards)
        };
        keys.iter().filter_map(one).collect()
    }

    /// How many shards of committed checkpoints are here.
    pub fn held_count(&self) -> usize {
        let catalog = self.catalog();
        let held = catalog.held_after(None);
        held.map(|(_, _, shards)| shards.len()).sum()
    }

    /// Whether a shard of this checkpoint is here, and the checkpoint is committed.
    pub fn is_held(&self, key: Key) -> bool {
        let catalog = self.catalog();
        catalog.is_committed(key) && !catalog.shards(key).is_empty()
    }

    /// The owner of a shard, if the shard is here and committed.
    pub fn owner_of_shard(&self, shard: &ShardName) -> Option<OwnerId> {
        let catalog = self.catalog();
        catalog.owner_of_shard(shard.checkpoint, shard.shard)
    }

    /// Which of the checkpoints that `tags` stand for this host holds.
    pub fn held_tags(&self, asking: &Asking, tags: &[Tag]) -> Vec<HeldTag> {
        let places: BTreeMap<&Tag, u16> = tags.iter().zip(0..).collect();
        let mut held = Vec::new();
        let mut after = None;
        loop {
            let holdings = self.holdings(after, KEYS_AT_ONCE);
            let Some(last) = holdings.last() else {
                return held;
            };
            after = Some(last.key);
            for Holding { key, shards, .. } in &holdings {
                let question = asking.question(key.owner, key.checkpoint);
                let Some(place) = places.get(&question) else {
                    continue;
                };
                let shards = shards.iter();
                let shards = shards.fold(ShardSet::default(), |set, shard| set.with(*shard));
                held.push(HeldTag {
                    place: *place,
                    shards: shards.0,
                    tag: asking.answer(key.owner, key.checkpoint, shards),
                });
            }
        }
    }

    /// A proof that a part of a shard is here. `None` while the shard is being handed over.
    ///
    /// # Errors
    /// When the shard is not here, or is damaged.
    pub fn prove(
        &self,
        owner: OwnerId,
        name: &ShardName,
        spot: Spot,
    ) -> Result<Option<ShardProof>, StoreError> {
        let reader = self.open_shard(owner, name)?;
        let key = Key {
            owner,
            checkpoint: name.checkpoint,
        };
        if self.leaving().contains_key(&(key, reader.identity().shard)) {
            return Ok(None);
        }
        let proof = reader.prove(spot).map_err(StoreError::Damaged)?;
        Ok(Some(proof.ok_or(Denied::NotFound)?))
    }

    /// Notes that a shard is being handed over: it is not proved to other hosts from now on.
    pub fn begin_leaving(&self, key: Key, shard: ShardIndex) {
        *self.leaving().entry((key, shard)).or_default() += 1;
    }

    /// Ends one [`Self::begin_leaving`], whether the shard stays or has been removed.
    pub fn end_leaving(&self, key: Key, shard: ShardIndex) {
        let mut leaving = self.leaving();
        if let Some(tasks) = leaving.get_mut(&(key, shard)) {
            *tasks -= 1;
            if *tasks == 0 {
                leaving.remove(&(key, shard));
            }
        }
    }

    fn leaving(&self) -> MutexGuard<'_, BTreeMap<(Key, ShardIndex), usize>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to write a shard that `donor` has rebuilt. The shard can't become longer than the manifest
    /// states, and it gets its final name only if its root is the one in the manifest.
    ///
    /// # Errors
    /// When the catalog denies it, or its file can't be created.
    pub fn begin_rebuilt(
        self: &Arc<Self>,
        now: Millis,
        unix_seconds: u64,
        (whose, donor): (Who<OwnerId>, OwnerId),
        public: &Public,
        put: &PutShard,
    ) -> Result<Upload, StoreError> {
        self.check_writable()?;
        let shard = put.shard().ok_or(StoreError::BadRequest("shard number"))?;
        let (_, root) = public
            .shard(shard)
            .ok_or(StoreError::BadRequest("shard number"))?;
        let free = self.free_bytes()?;
        let of = (whose, donor);
        let id = self.catalog().begin_rebuilt(now, of, put, shard, free)?;
        let bound = Bound {
            rows: public.rows,
            block_bytes: public.block_bytes,
            root,
        };
        self.begin_upload(unix_seconds, public.owner, put, id, Some(bound))
    }
}
