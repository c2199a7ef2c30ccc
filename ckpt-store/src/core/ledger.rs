//! The books of space: what is stored, what is promised to shards that are being written.
//!
//! Kept, never counted on the disk while serving.

/// Files take whole blocks of the file system.
const DISK_BLOCK: u64 = 4096;

/// What a file of `len` bytes costs on the disk.
pub const fn charge(len: u64) -> u64 {
    len.div_ceil(DISK_BLOCK).saturating_mul(DISK_BLOCK)
}

/// Space of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    capacity: u64,
    stored: u64,
    promised: u64,
    /// Bytes of the promised ones that are on the disk already.
    written: u64,
}

/// A promise of space; the ledger owes it until it is [`Ledger::release`]d.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promise {
    bytes: u64,
    written: u64,
}

/// There is not enough space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} bytes wanted, {left} left")]
pub struct NoSpace {
    /// Bytes that were asked for.
    pub wanted: u64,
    /// Bytes that could have been had.
    pub left: u64,
}

impl Ledger {
    /// An empty host that lends `capacity` bytes.
    pub const fn new(capacity: u64) -> Self {
        Self {
            capacity,
            stored: 0,
            promised: 0,
            written: 0,
        }
    }

    /// Changes how many bytes the host lends.
    pub const fn lend(&mut self, capacity: u64) {
        self.capacity = capacity;
    }

    /// Bytes that the host lends.
    pub const fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes that are stored or promised.
    pub const fn used(&self) -> u64 {
        self.stored.saturating_add(self.promised)
    }

    /// Bytes that can still be had when the disk has `free` bytes that may be used.
    pub fn left(&self, free: u64) -> u64 {
        let on_disk = free.saturating_sub(self.promised.saturating_sub(self.written));
        self.capacity.saturating_sub(self.used()).min(on_disk)
    }

    /// Promises `bytes`.
    ///
    /// # Errors
    /// When there are not as many left.
    pub fn promise(&mut self, bytes: u64, free: u64) -> Result<Promise, NoSpace> {
        let mut promise = Promise::default();
        self.extend(&mut promise, bytes, free)?;
        Ok(promise)
    }

    /// Promises `bytes` more.
    ///
    /// # Errors
    /// When there are not as many left; the promise then stays as it was.
    pub fn extend(&mut self, promise: &mut Promise, bytes: u64, free: u64) -> Result<(), NoSpace> {
        let left = self.left(free);
        if bytes > left {
            let wanted = bytes;
            return Err(NoSpace { wanted, left });
        }
        promise.bytes += bytes;
        self.promised += bytes;
        Ok(())
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
    }

    /// Adds a file of `len` bytes.
    pub fn store(&mut self, len: u64) {
        self.stored = self.stored.saturating_add(charge(len));
    }

    /// Takes a file of `len` bytes out again.
    pub fn remove(&mut self, len: u64) {
        self.stored = self.stored.saturating_sub(charge(len));
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

    #[test]
    fn a_promise_counts_until_it_is_released() {
        let mut ledger = Ledger::new(10_000);
        let promise = ledger.promise(6_000, 1 << 40).unwrap();
        assert_eq!(ledger.left(1 << 40), 4_000);
        let refused = NoSpace {
            wanted: 4_001,
            left: 4_000,
        };
        assert_eq!(ledger.promise(4_001, 1 << 40), Err(refused));
        ledger.release(promise);
        assert_eq!(ledger.left(1 << 40), 10_000);
    }

    #[test]
    fn written_bytes_are_not_counted_twice() {
        let mut ledger = Ledger::new(u64::MAX);
        let mut promise = ledger.promise(6_000, 10_000).unwrap();
        assert_eq!(ledger.left(10_000), 4_000);
        ledger.note_written(&mut promise, 5_000);
        assert_eq!(ledger.left(5_000), 4_000, "the disk is 5,000 fuller");
        ledger.release(promise);
        assert_eq!(ledger.left(5_000), 5_000);
    }

    #[test]
    fn files_take_whole_blocks() {
        let mut ledger = Ledger::new(10_000);
        ledger.store(1);
        ledger.store(4096);
        assert_eq!(ledger.used(), 8192);
        ledger.remove(1);
        assert_eq!(ledger.used(), 4096);
    }
}
