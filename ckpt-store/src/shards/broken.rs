//! Shards whose transfers broke off: the client is gone, or its connection is. Their rows are kept for as long as a
//! claim, in the share of their owner, because the next save of the job can have them ended as they are
//! ([`Store::end_early`]). They give way when anybody needs the room.

use std::io;
use std::sync::{MutexGuard, PoisonError};

use codec::{OwnerId, ShardIndex, ShardRoot};
use protocol::wire::limits::{SHARDS_MAX, UNCOMMITTED_LIFETIME};
use protocol::wire::message::{Claim, PutShard, ShardRows, StoredShard};

use super::aside::{BrokenPut, BrokenPuts};
use super::error::StoreError;
use super::store::Store;
use super::writer::{ClosedShard, ShardWriter};
use crate::core::ledger::Whole;
use crate::core::places::Who;
use crate::core::{Denied, Key, Millis, PutId};

/// Fewer bytes of blocks are not worth being kept.
const BYTES_MIN: u64 = 1 << 20;

/// Most rows that are kept of a shard: each has a share in the pages whose hashes stay in memory.
const ROWS_MAX: u64 = 1 << 18;

impl Store {
    /// Keeps the rows of a shard whose transfer broke off. Returns false if they are too few or too many; then the
    /// caller ends the put.
    pub(super) fn keep_broken(
        &self,
        now: Millis,
        id: PutId,
        writer: ShardWriter,
    ) -> io::Result<bool> {
        let is_worth_it = writer.block_bytes() >= BYTES_MIN && writer.rows() <= ROWS_MAX;
        let Some((key, who)) = self.catalog().put_of(id).filter(|_| is_worth_it) else {
            return Ok(false);
        };
        let shard = writer.close()?;
        let surplus = self.broken().take_surplus(who);
        if let Some(surplus) = surplus {
            self.drop_broken(surplus);
        }
        let until = now.after(UNCOMMITTED_LIFETIME);
        self.broken().push(BrokenPut {
            id,
            key,
            who,
            until,
            shard,
        });
        // It may have been forgotten just before it was entered.
        if self.catalog().check_put(id).is_err() {
            self.drop_broken_of(key, None);
        }
        Ok(true)
    }

    /// What is here of the shards of a checkpoint that is not committed. They are kept for another while.
    pub fn rows_held(&self, now: Millis, who: Who<OwnerId>, claim: &Claim) -> Vec<ShardRows> {
        let key = Key {
            owner: who.member,
            checkpoint: claim.checkpoint,
        };
        let until = now.after(UNCOMMITTED_LIFETIME);
        let mut shards = Vec::new();
        for one in self.broken().iter_mut() {
            if (one.key, one.who) == (key, who) {
                one.until = until;
                shards.push(ShardRows {
                    shard: one.shard.identity().shard.number(),
                    rows: one.shard.rows(),
                    ended: false,
                });
            }
        }
        let mut catalog = self.catalog();
        if catalog.uncommitted_of(key) == Some(who) {
            catalog.renew(key, until);
            shards.extend(catalog.shards(key).iter().map(|shard| ShardRows {
                shard: shard.identity.shard.number(),
                rows: shard.rows,
                ended: true,
            }));
        }
        shards.truncate(SHARDS_MAX);
        shards
    }

    /// Whether a shard of a checkpoint is being received from `who`.
    pub fn is_receiving(&self, who: Who<OwnerId>, claim: &Claim) -> bool {
        let key = Key {
            owner: who.member,
            checkpoint: claim.checkpoint,
        };
        let is_kept = |one: &&BrokenPut| (one.key, one.who) == (key, who);
        let kept = self.broken().iter().filter(is_kept).count();
        self.catalog().puts_of(key, who) > kept
    }

    /// Ends a shard whose transfer broke off, after its first `rows` rows: writes its table, syncs its file and gives
    /// the file its final name.
    ///
    /// # Errors
    /// When the rows are not here, their root is another one, or the disk fails. The rows are gone then.
    pub fn end_early(
        &self,
        now: Millis,
        who: Who<OwnerId>,
        put: &PutShard,
        rows: u64,
        root: ShardRoot,
    ) -> Result<StoredShard, StoreError> {
        let key = Key {
            owner: who.member,
            checkpoint: put.claim.checkpoint,
        };
        let shard = put.shard().ok_or(StoreError::BadRequest("shard number"))?;
        let is_wanted = |one: &BrokenPut| {
            let identity = one.shard.identity();
            let same = identity.shard == shard && identity.redundancy == put.redundancy;
            same && (one.key, one.who) == (key, who) && one.shard.rows() >= rows
        };
        if rows == 0 {
            return Err(StoreError::BadRequest("no rows"));
        }
        let found = self.broken().take(is_wanted);
        let Some(BrokenPut { id, shard, .. }) = found else {
            return self.ended_already(key, shard, rows, root);
        };
        let ended = self.end_at(now, id, shard, rows, root);
        if ended.is_err() {
            self.catalog().abort_put(id);
        }
        ended
    }

    fn end_at(
        &self,
        now: Millis,
        id: PutId,
        shard: ClosedShard,
        rows: u64,
        root: ShardRoot,
    ) -> Result<StoredShard, StoreError> {
        let failed = StoreError::disk("ending a shard early");
        let written = shard.reopen(rows).and_then(ShardWriter::finish);
        let written = written.map_err(failed)?;
        if written.shard().root != root {
            return Err(StoreError::Mismatch("root"));
        }
        let (shard, temp) = written
            .sync()
            .map_err(StoreError::disk("syncing a shard"))?;
        self.publish_shard(now, id, shard, temp)?;
        Ok(StoredShard {
            rows: shard.rows,
            root: shard.root,
        })
    }

    /// The answer if the shard was ended before, with the same rows.
    fn ended_already(
        &self,
        key: Key,
        shard: ShardIndex,
        rows: u64,
        root: ShardRoot,
    ) -> Result<StoredShard, StoreError> {
        let catalog = self.catalog();
        let shard = catalog.shard(key, shard.number())?;
        if (shard.rows, shard.root) != (rows, root) {
            return Err(StoreError::Mismatch("root"));
        }
        Ok(StoredShard { rows, root })
    }

    /// Calls `reserve` with the free space of the disk, and again while there is no room and a shard whose transfer
    /// broke off can give way. `who` is asked whose room is short.
    pub(super) fn with_room<T>(
        &self,
        who: impl Fn() -> Option<Who<OwnerId>>,
        reserve: impl Fn(u64) -> Result<T, Denied>,
    ) -> Result<T, StoreError> {
        loop {
            let full = match reserve(self.free_bytes()?) {
                Err(Denied::NoSpace(full)) => full,
                done => return Ok(done?),
            };
            let who = who();
            let gave_way = self.drop_oldest_broken(|one| match (full.of, who) {
                (Whole::Host, _) => true,
                (Whole::OwnersShare, Some(who)) => one.who.member == who.member,
                (Whole::GrantsHalf, Some(who)) => one.who == who,
                (_, None) => false,
            });
            if !gave_way {
                return Err(Denied::NoSpace(full).into());
            }
        }
    }

    /// Drops the shard whose transfer broke off first. Returns false if there is none.
    pub(super) fn drop_any_broken(&self) -> bool {
        self.drop_oldest_broken(|_| true)
    }

    fn drop_oldest_broken(&self, wanted: impl Fn(&BrokenPut) -> bool) -> bool {
        let oldest = self.take_broken(wanted);
        oldest.map(|one| self.drop_broken(one)).is_some()
    }

    /// Drops what is kept of a checkpoint, or of one of its shards.
    pub(super) fn drop_broken_of(&self, key: Key, shard: Option<ShardIndex>) {
        let is_of = |one: &BrokenPut| {
            one.key == key && shard.is_none_or(|shard| shard == one.shard.identity().shard)
        };
        while let Some(one) = self.take_broken(is_of) {
            self.drop_broken(one);
        }
    }

    /// Drops what was kept for long enough.
    pub(super) fn drop_old_broken(&self, now: Millis) {
        while let Some(one) = self.take_broken(|one| one.until <= now) {
            self.drop_broken(one);
        }
    }

    fn take_broken(&self, wanted: impl Fn(&BrokenPut) -> bool) -> Option<BrokenPut> {
        self.broken().take(wanted)
    }

    fn broken(&self) -> MutexGuard<'_, BrokenPuts> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the file, then gives its space to others.
    fn drop_broken(&self, one: BrokenPut) {
        let BrokenPut { id, shard, .. } = one;
        drop(shard);
        self.catalog().abort_put(id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::aside::OF_MEMBER_MAX;
    use super::super::sample::Sample;
    use super::super::tests::{NOW, NOW_UNIX, commit, open, owner};
    use super::*;
    use crate::core::ledger::Quota;
    use crate::disk::crash::{CrashDisk, Fault};
    use crate::shards::{Batch, Lent, Upload};

    /// Shards of 2,100 rows: two pages and a part of a third one.
    static LENGTHS: [usize; 2100] = [1000; 2100];

    const BYTES: u64 = 2_100_000;

    fn who(number: u8) -> Who<OwnerId> {
        Who::itself(codec::keys::Keys::from(owner(number)).owner())
    }

    fn sample(number: u8, rows: usize) -> Sample {
        Sample::with_rows(&owner(number), "1.0", 1, number.into(), &LENGTHS[..rows])
    }

    fn disk() -> CrashDisk {
        CrashDisk::new(Fault::None, 1)
    }

    /// Shard 0 of `sample`, of which all rows but no end have come.
    fn begun(store: &Arc<Store>, sample: &Sample) -> Upload {
        let owner = sample.manifest.public().owner;
        let mut upload = store
            .begin_put(NOW, NOW_UNIX, owner, &sample.put(0))
            .unwrap();
        for blocks in sample.blocks[0].chunks(100) {
            let mut batch = Batch::default();
            for block in blocks {
                batch.begin_block(block.len()).unwrap();
                batch.extend(block);
            }
            upload.write(&batch).unwrap();
        }
        upload
    }

    fn held(store: &Store, number: u8, of: &Sample) -> Vec<(u64, bool)> {
        let shards = store.rows_held(NOW, who(number), &of.claim());
        shards.iter().map(|one| (one.rows, one.ended)).collect()
    }

    fn end(store: &Store, number: u8, short: &Sample) -> Result<StoredShard, StoreError> {
        let end = short.end(0);
        store.end_early(NOW, who(number), &short.put(0), end.rows, end.root)
    }

    /// Whether shard 0 can be read, each block of it, and is the one of the manifest.
    fn is_whole(store: &Store, sample: &Sample) -> bool {
        let name = sample.name(0);
        let reader = store.open_shard(sample.manifest.public().owner, &name);
        reader.is_ok_and(|reader| reader.check().is_ok())
    }

    #[test]
    fn a_broken_transfer_is_ended_after_any_of_its_rows() {
        for rows in [1, 1000, 1023, 1024, 1025, 2048, 2049, 2100] {
            let disk = disk();
            let store = open(&disk);
            let whole = sample(1, 2100);
            begun(&store, &whole).break_off(NOW);
            assert_eq!(held(&store, 1, &whole), [(2100, false)]);
            let short = sample(1, rows);
            end(&store, 1, &short).unwrap();
            assert_eq!(held(&store, 1, &whole), [(rows as u64, true)]);
            // Who did not hear the answer asks again.
            end(&store, 1, &short).unwrap();
            commit(&store, &short).unwrap();
            assert!(is_whole(&store, &short), "{rows}");
            let store = open(&disk.restart());
            assert!(is_whole(&store, &short), "{rows}, after a restart");
        }
    }

    #[test]
    fn a_broken_transfer_that_is_not_what_is_asked_for_is_gone() {
        let store = open(&disk());
        let whole = sample(1, 2100);
        begun(&store, &whole).break_off(NOW);
        // More rows than are here, and those of other blocks.
        let more = store.end_early(NOW, who(1), &whole.put(0), 2101, whole.end(0).root);
        assert!(more.is_err());
        assert_eq!(held(&store, 1, &whole), [(2100, false)]);
        let wrong = store.end_early(NOW, who(1), &whole.put(0), 2000, whole.end(0).root);
        assert!(
            matches!(wrong, Err(StoreError::Mismatch("root"))),
            "{wrong:?}"
        );
        assert_eq!(held(&store, 1, &whole), []);
        assert_eq!(store.owners(), []);
    }

    #[test]
    fn nobody_else_sees_or_ends_a_broken_transfer() {
        let store = open(&disk());
        let whole = sample(1, 2100);
        begun(&store, &whole).break_off(NOW);
        assert_eq!(held(&store, 2, &whole), []);
        assert!(end(&store, 2, &whole).is_err());
        let thief = Who {
            grant: Some(OwnerId([9; 32])),
            ..who(1)
        };
        assert!(store.rows_held(NOW, thief, &whole.claim()).is_empty());
        let stolen = store.end_early(NOW, thief, &whole.put(0), 2100, whole.end(0).root);
        assert!(stolen.is_err());
        assert!(!store.is_receiving(thief, &whole.claim()));
        assert_eq!(held(&store, 1, &whole), [(2100, false)]);
    }

    #[test]
    fn broken_transfers_count_in_the_share_of_their_owner_for_an_hour() {
        let store = open(&disk());
        let whole = sample(1, 2100);
        let upload = begun(&store, &whole);
        assert!(store.is_receiving(who(1), &whole.claim()));
        upload.break_off(NOW);
        assert!(!store.is_receiving(who(1), &whole.claim()));
        let used: u64 = store.owners().iter().map(|(_, bytes)| bytes).sum();
        assert!(used > BYTES, "{used}");
        let end = NOW.after(UNCOMMITTED_LIFETIME);
        assert_eq!(store.sweep(Millis(end.0 - 1)), 0);
        assert_eq!(held(&store, 1, &whole), [(2100, false)]);
        assert_eq!(store.sweep(end), 1);
        assert_eq!(held(&store, 1, &whole), []);
        assert_eq!(store.owners(), []);
    }

    #[test]
    fn broken_transfers_are_gone_when_their_checkpoint_is_forgotten_or_begins_again() {
        let disk = disk();
        let store = open(&disk);
        let whole = sample(1, 2100);
        begun(&store, &whole).break_off(NOW);
        begun(&store, &whole).break_off(NOW);
        assert_eq!(held(&store, 1, &whole), [(2100, false)]);
        store.forget(NOW, who(1).member, whole.id()).unwrap();
        assert_eq!(held(&store, 1, &whole), []);
        assert_eq!(disk.files(), Vec::<std::path::PathBuf>::new());
        // Little is not kept.
        begun(&store, &sample(1, 100)).break_off(NOW);
        assert_eq!(held(&store, 1, &whole), []);
    }

    #[test]
    fn broken_transfers_give_way_when_room_is_needed() {
        let store = open(&disk());
        let lend = |capacity, share| {
            store.lend(Lent {
                capacity: Some(capacity),
                quota: Quota::Bytes(share),
            });
        };
        lend(30 << 20, 20 << 20);
        let [first, second] = [sample(1, 2100), sample(2, 2100)];
        begun(&store, &first).break_off(NOW);
        begun(&store, &second).break_off(NOW);
        // The owner's share: only its own gives way.
        let large = Sample::new(&owner(1), "2.0", 1, 77);
        let put = large.put_of(19 << 20);
        let large = store.begin_put(NOW, NOW_UNIX, who(1), &put).unwrap();
        assert_eq!(held(&store, 1, &first), []);
        assert_eq!(held(&store, 2, &second), [(2100, false)]);
        // The host's space.
        let other = Sample::new(&owner(3), "2.0", 1, 78);
        let put = other.put_of(10 << 20);
        let other = store.begin_put(NOW, NOW_UNIX, who(3), &put).unwrap();
        assert_eq!(held(&store, 2, &second), []);
        drop((large, other));
        // Space that the machine's owner takes back.
        begun(&store, &second).break_off(NOW);
        lend(1 << 20, 1 << 20);
        assert_eq!(store.excess_bytes(), 0);
        assert_eq!(held(&store, 2, &second), []);
    }

    #[test]
    fn one_member_keeps_no_more_broken_transfers_than_its_part() {
        let store = open(&disk());
        let of = |seed: usize| {
            let lengths = &LENGTHS[..1100];
            Sample::with_rows(&owner(1), "1.0", seed as u64 + 1, seed as u64, lengths)
        };
        let all: Vec<Sample> = (0..OF_MEMBER_MAX + 2).map(of).collect();
        let other = sample(2, 2100);
        begun(&store, &other).break_off(NOW);
        for one in &all {
            begun(&store, one).break_off(NOW);
        }
        let kept = all.iter().filter(|one| !held(&store, 1, one).is_empty());
        assert_eq!(kept.count(), OF_MEMBER_MAX);
        assert_eq!(held(&store, 1, &all[1]), [], "the oldest are gone");
        assert_eq!(held(&store, 2, &other), [(2100, false)]);
    }
}
