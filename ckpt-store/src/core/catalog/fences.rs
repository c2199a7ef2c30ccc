//! About which checkpoints' successors this host may be asked, and what a fence costs the owner.

use codec::JobTag;
use codec::notice::Words;

use super::{Catalog, Denied, Key};
use crate::core::fence::{Acceptor, Fence, Fences};
use crate::core::ledger::CHECKPOINT_BYTES;
use crate::core::places::Who;
use codec::OwnerId;

impl Catalog {
    /// All fences of this host.
    pub const fn fences(&self) -> &Fences {
        &self.fences
    }

    /// The fence of a checkpoint for a request of `who`. A host that holds nothing of the checkpoint and
    /// never promised anything about it is no witness, because it may have forgotten its promises.
    ///
    /// # Errors
    /// When this host is no witness of the checkpoint and can't become one, or its file of promises is
    /// damaged.
    pub fn fence(&self, who: Who<OwnerId>, key: Key, job_tag: JobTag) -> Result<Fence, Denied> {
        if self.fences.is_damaged(key) {
            return Err(Denied::FenceDamaged);
        }
        let fence = match self.fences.get(key) {
            Some(fence) => fence.clone(),
            None => self.new_fence(key, who.grant).ok_or(Denied::NotFound)?,
        };
        if fence.job_tag != job_tag {
            return Err(Denied::NotFound);
        }
        if self.fences.get(key).is_none() && !self.fences.has_room(who) {
            return Err(Denied::TooManyFences);
        }
        Ok(fence)
    }

    /// A new fence of a checkpoint that is committed here.
    pub fn new_fence(&self, key: Key, grant: Option<OwnerId>) -> Option<Fence> {
        let known = self.checkpoints.get(&key)?;
        known.is_committed.then(|| Fence {
            job_tag: known.job_tag,
            created: known.created,
            grant,
            acceptor: Acceptor::new(),
        })
    }

    /// Whether a checkpoint is the newest of its job that is committed here.
    pub fn is_newest(&self, key: Key) -> bool {
        let Some(known) = self.checkpoints.get(&key) else {
            return false;
        };
        let above = (known.job_tag, known.version, key.checkpoint);
        let mut newer = self.entries_from(key.owner, above).skip(1);
        let owner = key.owner;
        known.is_committed
            && !newer.any(|(_, checkpoint)| self.is_committed(Key { owner, checkpoint }))
    }

    /// Whether there is space for the first promise about a checkpoint. `free` is the free space of the
    /// disk.
    ///
    /// # Errors
    /// When there is too little space, or too little for this owner.
    pub fn check_fence_space(&self, who: Who<OwnerId>, key: Key, free: u64) -> Result<(), Denied> {
        if self.fences.get(key).is_none() {
            self.ledger.check(who, CHECKPOINT_BYTES, free)?;
        }
        Ok(())
    }

    /// Enters a fence that is on the disk.
    pub fn fenced(&mut self, key: Key, fence: Fence) {
        if self.fences.enter(key, fence) {
            self.ledger.store(key.owner, CHECKPOINT_BYTES);
        }
    }

    /// Notes that the file with the promises about a checkpoint can't be read.
    pub fn fence_damaged(&mut self, key: Key) {
        self.fences.damaged(key);
    }

    /// Removes a fence whose file is gone from the disk.
    pub fn fence_removed(&mut self, key: Key) {
        if self.fences.remove(key).is_some() {
            self.ledger.remove(key.owner, CHECKPOINT_BYTES);
        }
    }

    /// Drops what job keys of an owner asked for about successors, and which are void now. What is on the
    /// disk of that is replaced with the next promise.
    pub fn drop_void_bids(&mut self, owner: OwnerId, serials_below: u64) {
        self.fences.drop_void(owner, serials_below);
    }

    /// The fences whose checkpoints this notice declares gone.
    pub fn fences_gone(&self, words: &Words) -> Vec<Key> {
        self.fences.gone(words)
    }

    /// The fences whose checkpoints the last notice of their job declares gone.
    pub fn all_fences_gone(&self) -> Vec<Key> {
        let all = self.notices.iter();
        all.flat_map(|(_, words)| self.fences.gone(words)).collect()
    }

    /// The fences of jobs whose lease has ended at `clock`, in Unix seconds.
    pub fn fences_outlived(&self, clock: u64) -> Vec<Key> {
        let is_over = |key: &Key, fence: &Fence| {
            let lease = self.notices.lease((key.owner, fence.job_tag));
            lease.is_some_and(|lease| lease.until <= clock)
        };
        let all = self.fences.iter();
        let over = all.filter(|(key, fence)| is_over(key, fence));
        over.map(|(key, _)| *key).collect()
    }
}
