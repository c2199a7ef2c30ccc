//! The books of space: how many bytes are stored, and how many are promised to shards that are being
//! written. The books are updated with each change, so the disk is never counted while the daemon serves.
//!
//! A shard of 64 MiB that is being written takes part in the books as follows:
//!
//! | event | stored | promised | of these written |
//! | --- | --- | --- | --- |
//! | [`Ledger::promise`] | 0 | 64 MiB | 0 |
//! | [`Ledger::note_written`], half of it | 0 | 64 MiB | 32 MiB |
//! | [`Ledger::release`], then [`Ledger::store`] | 64 MiB | 0 | 0 |
//!
//! The written part is missing in the disk's free space already, so only the other part of the promise is
//! subtracted from the free space.

use codec::OwnerId;

use super::places::{Tally, Who};

/// Size of a block of the file system, bytes. A file takes whole blocks.
const DISK_BLOCK: u64 = 4096;

/// The bytes that a file of `len` bytes takes on the disk.
pub const fn charge(len: u64) -> u64 {
    len.div_ceil(DISK_BLOCK).saturating_mul(DISK_BLOCK)
}

/// What a checkpoint costs its owner beside its shards, however small it is, in bytes. The price stands
/// for its manifest, names on the disk, an entry of the books, and time in each round of checks.
pub const CHECKPOINT_BYTES: u64 = 64 << 10;

/// How much of the space that a host lends one owner may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// This many bytes.
    Bytes(u64),
    /// This part of the lent space, in per cent.
    Percent(u8),
}

impl Default for Quota {
    /// Half, so that a greedy owner leaves as much for the others.
    fn default() -> Self {
        Self::Percent(50)
    }
}

impl Quota {
    /// The quota in bytes, on a host that lends `capacity` bytes.
    pub const fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // The division comes first, because `capacity` may be as large as a number can be.
            Self::Percent(percent) => {
                (capacity / 100).saturating_mul(percent as u64)
                    + capacity % 100 * percent as u64 / 100
            }
        }
    }
}

/// The space of a host, and how much of it each owner uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    capacity: u64,
    /// Most bytes that one owner may use.
    share: u64,
    stored: u64,
    promised: u64,
    /// Bytes of the promised ones that are on the disk already.
    written: u64,
    /// Bytes stored for and promised to each owner and each grant.
    owners: Tally<OwnerId>,
}

/// A promise of space to an owner. The space counts as used until [`Ledger::release`] ends the promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    who: Who<OwnerId>,
    bytes: u64,
    written: u64,
}

/// There is not enough space for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes wanted, {left} left{}", .of.words())]
pub struct NoSpace {
    /// Bytes that were asked for.
    pub wanted: u64,
    /// Bytes that could have been promised.
    pub left: u64,
    /// Which limit was reached.
    pub of: Whole,
}

/// The limit of space that was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// The space of the host.
    Host,
    /// The share of one owner.
    OwnersShare,
    /// The half of its owner's share that one grant may use.
    GrantsHalf,
}

impl Whole {
    const fn words(self) -> &'static str {
        match self {
            Self::Host => "",
            Self::OwnersShare => " of this submitter's share",
            Self::GrantsHalf => " of this job key's half of its owner's share",
        }
    }
}

impl Default for Ledger {
    /// The books of an empty host that lends nothing.
    fn default() -> Self {
        Self::new(0)
    }
}

impl Ledger {
    /// The books of an empty host that lends `capacity` bytes, all of which one owner may use.
    pub fn new(capacity: u64) -> Self {
        Self {
            capacity,
            share: u64::MAX,
            stored: 0,
            promised: 0,
            written: 0,
            owners: Tally::default(),
        }
    }

    /// Changes how many bytes the host lends, and how many of these one owner may use.
    pub const fn lend(&mut self, capacity: u64, share: u64) {
        self.capacity = capacity;
        self.share = share;
    }

    /// Bytes that the host lends.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that are stored or promised.
    pub const fn used(&self) -> u64 {
        self.stored.saturating_add(self.promised)
    }

    /// Bytes that are stored for or promised to `owner`, those of its grants included.
    pub fn used_by(&self, owner: OwnerId) -> u64 {
        self.owners.of_member(Who::itself(owner))
    }

    /// Bytes that can still be promised if the disk has `free` bytes that may be used.
    pub fn left(&self, free: u64) -> u64 {
        let on_disk = free.saturating_sub(self.promised.saturating_sub(self.written));
        self.capacity.saturating_sub(self.used()).min(on_disk)
    }

    /// All owners that have something here, with their bytes.
    pub fn owners(&self) -> impl Iterator<Item = (OwnerId, u64)> {
        self.owners.members()
    }

    /// Bytes that can still be promised to `who`: an owner, which has a share, or a grant, which has half
    /// of its owner's share.
    pub fn left_for(&self, who: impl Into<Who<OwnerId>>, free: u64) -> u64 {
        let who = who.into();
        self.left(free)
            .min(self.left_of_share(who))
            .min(self.left_of_half(who))
    }

    fn left_of_share(&self, who: Who<OwnerId>) -> u64 {
        self.share.saturating_sub(self.owners.of_member(who))
    }

    /// The half of its owner's share that one grant may use.
    pub fn half(&self) -> u64 {
        self.share.min(self.capacity) / 2
    }

    /// What a grant may still use. There is no such limit for an owner that acts for itself.
    fn left_of_half(&self, who: Who<OwnerId>) -> u64 {
        if who.grant.is_none() {
            return u64::MAX;
        }
        self.half().saturating_sub(self.owners.of_grant(who))
    }

    /// Promises `bytes` to `who`.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub fn promise(
        &mut self,
        who: impl Into<Who<OwnerId>>,
        bytes: u64,
        free: u64,
    ) -> Result<Promise, NoSpace> {
        let mut promise = Promise {
            who: who.into(),
            bytes: 0,
            written: 0,
        };
        self.extend(&mut promise, bytes, free)?;
        Ok(promise)
    }

    /// Adds `bytes` to a promise.
    ///
    /// # Errors
    /// When fewer bytes are left. The promise then stays as it was.
    pub fn extend(&mut self, promise: &mut Promise, bytes: u64, free: u64) -> Result<(), NoSpace> {
        self.check(promise.who, bytes, free)?;
        promise.bytes += bytes;
        self.promised += bytes;
        self.owners.add(promise.who, bytes);
        Ok(())
    }

    /// Whether `bytes` could be promised to `who`.
    ///
    /// # Errors
    /// When fewer bytes are left.
    pub fn check(
        &self,
        who: impl Into<Who<OwnerId>>,
        bytes: u64,
        free: u64,
    ) -> Result<(), NoSpace> {
        let who = who.into();
        let left = self.left_for(who, free);
        if bytes <= left {
            return Ok(());
        }
        let of = if bytes > self.left(free) {
            Whole::Host
        } else if bytes > self.left_of_share(who) {
            Whole::OwnersShare
        } else {
            Whole::GrantsHalf
        };
        Err(NoSpace {
            wanted: bytes,
            left,
            of,
        })
    }

    /// Notes that `written` bytes of the promise are on the disk now. They are missing in the disk's free
    /// space from now on, so the promise must not count them a second time.
    pub fn note_written(&mut self, promise: &mut Promise, written: u64) {
        let written = written.min(promise.bytes);
        self.written = self.written - promise.written + written;
        promise.written = written;
    }

    /// Ends a promise and frees its bytes.
    pub fn release(&mut self, promise: Promise) {
        self.promised -= promise.bytes;
        self.written -= promise.written;
        self.owners.take(promise.who, promise.bytes);
    }

    /// Adds a file of `len` bytes that belongs to `who`.
    pub fn store(&mut self, who: impl Into<Who<OwnerId>>, len: u64) {
        self.stored = self.stored.saturating_add(charge(len));
        self.owners.add(who.into(), charge(len));
    }

    /// Removes a file of `len` bytes that belongs to `who`.
    pub fn remove(&mut self, who: impl Into<Who<OwnerId>>, len: u64) {
        self.stored = self.stored.saturating_sub(charge(len));
        self.owners.take(who.into(), charge(len));
    }
}

impl Promise {
    /// Bytes that are promised.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANN: OwnerId = OwnerId([1; 32]);
    const BOB: OwnerId = OwnerId([2; 32]);

    #[test]
    fn a_promise_counts_until_it_is_released() {
        let mut ledger = Ledger::new(10_000);
        let promise = ledger.promise(ANN, 6_000, 1 << 40).unwrap();
        assert_eq!(ledger.left(1 << 40), 4_000);
        let refused = NoSpace {
            wanted: 4_001,
            left: 4_000,
            of: Whole::Host,
        };
        assert_eq!(ledger.promise(BOB, 4_001, 1 << 40), Err(refused));
        ledger.release(promise);
        assert_eq!(ledger.left(1 << 40), 10_000);
    }

    #[test]
    fn no_member_gets_more_than_a_share() {
        let mut ledger = Ledger::new(100 << 20);
        ledger.lend(100 << 20, 10 << 20);
        ledger.store(ANN, 6 << 20);
        assert_eq!(ledger.left_for(ANN, u64::MAX), 4 << 20);
        assert_eq!(ledger.left_for(BOB, u64::MAX), 10 << 20);
        let refused = ledger.promise(ANN, 5 << 20, u64::MAX).unwrap_err();
        assert_eq!(refused.of, Whole::OwnersShare);
        assert!(refused.to_string().contains("share"), "{refused}");
        let promise = ledger.promise(ANN, 4 << 20, u64::MAX).unwrap();
        assert_eq!(ledger.left_for(ANN, u64::MAX), 0);
        assert!(ledger.promise(BOB, 10 << 20, u64::MAX).is_ok());
        ledger.release(promise);
        ledger.remove(ANN, 6 << 20);
        assert_eq!(ledger.used_by(ANN), 0);
        assert_eq!(ledger.left_for(ANN, u64::MAX), 10 << 20);
    }

    #[test]
    fn one_grant_gets_half_of_its_owners_share() {
        let granted = |grant| Who {
            member: ANN,
            grant: Some(OwnerId([grant; 32])),
        };
        let mut ledger = Ledger::new(100 << 20);
        ledger.lend(100 << 20, 40 << 20);
        let promise = ledger.promise(granted(7), 12 << 20, u64::MAX).unwrap();
        ledger.store(granted(7), 8 << 20);
        let refused = ledger.promise(granted(7), 1, u64::MAX).unwrap_err();
        assert_eq!((refused.of, refused.left), (Whole::GrantsHalf, 0));
        assert!(refused.to_string().contains("job key"), "{refused}");
        // The other half is for the owner and its other grants.
        assert_eq!(ledger.left_for(granted(8), u64::MAX), 20 << 20);
        assert_eq!(ledger.left_for(ANN, u64::MAX), 20 << 20);
        ledger.store(ANN, 15 << 20);
        assert_eq!(ledger.left_for(granted(8), u64::MAX), 5 << 20);
        assert_eq!(ledger.left_for(BOB, u64::MAX), 40 << 20);
        ledger.release(promise);
        assert_eq!(ledger.left_for(granted(7), u64::MAX), 12 << 20);
        ledger.remove(granted(7), 8 << 20);
        assert_eq!(ledger.used_by(ANN), 15 << 20);
        // If no quota is set, a grant gets half of what the host lends.
        ledger.lend(100 << 20, u64::MAX);
        assert_eq!(ledger.left_for(granted(7), u64::MAX), 50 << 20);
    }

    #[test]
    fn written_bytes_are_not_counted_twice() {
        let mut ledger = Ledger::new(u64::MAX);
        let mut promise = ledger.promise(ANN, 6_000, 10_000).unwrap();
        assert_eq!(ledger.left(10_000), 4_000);
        ledger.note_written(&mut promise, 5_000);
        assert_eq!(ledger.left(5_000), 4_000, "the disk is 5,000 fuller");
        ledger.release(promise);
        assert_eq!(ledger.left(5_000), 5_000);
    }

    #[test]
    fn a_quota_is_a_size_or_a_part() {
        assert_eq!(Quota::default().of(1001), 500);
        assert_eq!(Quota::Percent(100).of(u64::MAX), u64::MAX);
        assert_eq!(Quota::Bytes(7).of(1001), 7);
    }

    #[test]
    fn files_take_whole_blocks() {
        let mut ledger = Ledger::new(10_000);
        ledger.store(ANN, 1);
        ledger.store(BOB, 4096);
        assert_eq!(ledger.used(), 8192);
        ledger.remove(ANN, 1);
        assert_eq!(ledger.used(), 4096);
    }
}
