//! The books of space: what is stored, what is promised to shards that are being written.
//!
//! Kept, never counted on the disk while serving.

use codec::OwnerId;

use super::places::{Tally, Who};

/// Files take whole blocks of the file system.
const DISK_BLOCK: u64 = 4096;

/// What a file of `len` bytes costs on the disk.
pub const fn charge(len: u64) -> u64 {
    len.div_ceil(DISK_BLOCK).saturating_mul(DISK_BLOCK)
}

/// What a checkpoint costs beside its shards, however small it is: its manifest, names on the disk,
/// an entry of the books, and time in each round of checks.
pub const CHECKPOINT_BYTES: u64 = 64 << 10;

/// How much of what a host lends one owner may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// So many bytes.
    Bytes(u64),
    /// A part of all, in per cent.
    Percent(u8),
}

impl Default for Quota {
    /// Half: whoever is greedy leaves as much for others.
    fn default() -> Self {
        Self::Percent(50)
    }
}

impl Quota {
    /// Bytes, of a host that lends `capacity`.
    pub const fn of(self, capacity: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            // First divided: the capacity may be as large as a number can be.
            Self::Percent(percent) => {
                (capacity / 100).saturating_mul(percent as u64)
                    + capacity % 100 * percent as u64 / 100
            }
        }
    }
}

/// Space of a host, and how much of it each owner has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    capacity: u64,
    /// Most bytes that one owner may have.
    share: u64,
    stored: u64,
    promised: u64,
    /// Bytes of the promised ones that are on the disk already.
    written: u64,
    /// Bytes stored for and promised to each owner, and each grant.
    owners: Tally<OwnerId>,
}

/// A promise of space to an owner; the ledger owes it until it is [`Ledger::release`]d.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    who: Who<OwnerId>,
    bytes: u64,
    written: u64,
}

/// There is not enough space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes wanted, {left} left{}", .of.words())]
pub struct NoSpace {
    /// Bytes that were asked for.
    pub wanted: u64,
    /// Bytes that could have been had.
    pub left: u64,
    /// What is used up.
    pub of: Whole,
}

/// That of which there is not enough left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whole {
    /// The host's space.
    Host,
    /// What one owner may have of it.
    OwnersShare,
    /// What one grant may have of its owner's share.
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
    /// An empty host that lends nothing.
    fn default() -> Self {
        Self::new(0)
    }
}

impl Ledger {
    /// An empty host that lends `capacity` bytes, all of them to anybody.
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

    /// Changes how many bytes the host lends, and how many of these one owner may have.
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

    /// Bytes that are stored for or promised to `owner`, for itself and for whom it lets act.
    pub fn used_by(&self, owner: OwnerId) -> u64 {
        self.owners.of_member(Who::itself(owner))
    }

    /// Bytes that can still be had when the disk has `free` bytes that may be used.
    pub fn left(&self, free: u64) -> u64 {
        let on_disk = free.saturating_sub(self.promised.saturating_sub(self.written));
        self.capacity.saturating_sub(self.used()).min(on_disk)
    }

    /// All who have something here, and how many bytes.
    pub fn owners(&self) -> impl Iterator<Item = (OwnerId, u64)> {
        self.owners.members()
    }

    /// The same for an owner, who has a share only, or for one that acts by its grant, which has half of
    /// that share.
    pub fn left_for(&self, who: impl Into<Who<OwnerId>>, free: u64) -> u64 {
        let who = who.into();
        self.left(free)
            .min(self.left_of_share(who))
            .min(self.left_of_half(who))
    }

    fn left_of_share(&self, who: Who<OwnerId>) -> u64 {
        self.share.saturating_sub(self.owners.of_member(who))
    }

    /// No limit for who acts for itself.
    fn left_of_half(&self, who: Who<OwnerId>) -> u64 {
        if who.grant.is_none() {
            return u64::MAX;
        }
        let half = self.share.min(self.capacity) / 2;
        half.saturating_sub(self.owners.of_grant(who))
    }

    /// Promises `bytes` to `who`.
    ///
    /// # Errors
    /// When there are not as many left.
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

    /// Promises `bytes` more.
    ///
    /// # Errors
    /// When there are not as many left; the promise then stays as it was.
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
    /// When there are not as many left.
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

    /// Notes that `written` bytes of the promise are on the disk, so that they are missing in the
    /// free space from now on and not counted twice.
    pub fn note_written(&mut self, promise: &mut Promise, written: u64) {
        let written = written.min(promise.bytes);
        self.written = self.written - promise.written + written;
        promise.written = written;
    }

    /// Ends a promise.
    pub fn release(&mut self, promise: Promise) {
        self.promised -= promise.bytes;
        self.written -= promise.written;
        self.owners.take(promise.who, promise.bytes);
    }

    /// Adds a file of `len` bytes of `who`.
    pub fn store(&mut self, who: impl Into<Who<OwnerId>>, len: u64) {
        self.stored = self.stored.saturating_add(charge(len));
        self.owners.add(who.into(), charge(len));
    }

    /// Takes a file of `len` bytes of `who` out again.
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
    fn nobody_gets_more_than_a_share() {
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
        // The owner and its other grants have the other half.
        assert_eq!(ledger.left_for(granted(8), u64::MAX), 20 << 20);
        assert_eq!(ledger.left_for(ANN, u64::MAX), 20 << 20);
        ledger.store(ANN, 15 << 20);
        assert_eq!(ledger.left_for(granted(8), u64::MAX), 5 << 20);
        assert_eq!(ledger.left_for(BOB, u64::MAX), 40 << 20);
        ledger.release(promise);
        assert_eq!(ledger.left_for(granted(7), u64::MAX), 12 << 20);
        ledger.remove(granted(7), 8 << 20);
        assert_eq!(ledger.used_by(ANN), 15 << 20);
        // Without a quota it is half of what the host lends.
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
