//! Rows on their way from hosts to decoding threads: those of an image, and those of its base.

use std::collections::BTreeSet;

use crate::agent::read::fetch::{Driver, Step, Unreadable};
use crate::core::restore::{RestoreEvent, RestoreOutcome};
use crate::pipeline::decode::DecodePool;
use crate::report::SourceBytes;

/// The way of rows from hosts to decoding threads.
pub(crate) struct Lane<'a> {
    pub(crate) driver: Driver<'a>,
    /// The decoding threads; `None` once no more rows are fetched.
    pool: Option<DecodePool>,
    /// Rows that are being decoded or wait to be used.
    pending: BTreeSet<u64>,
}

impl<'a> Lane<'a> {
    pub(crate) const fn new(pool: DecodePool, driver: Driver<'a>) -> Self {
        Self {
            driver,
            pool: Some(pool),
            pending: BTreeSet::new(),
        }
    }

    /// This row was used; its memory is free.
    fn used(&mut self, row: u64) {
        self.pending.remove(&row);
        self.driver.handle(RestoreEvent::Consumed(row));
    }

    /// All rows up to this one were used; their memory is free.
    fn used_up_to(&mut self, row: u64) {
        let left = self.pending.split_off(&(row + 1));
        for row in std::mem::replace(&mut self.pending, left) {
            self.driver.handle(RestoreEvent::Consumed(row));
        }
    }

    /// Fetches rows for as long as it is polled, also when it is cancelled and called again. Returns only if
    /// rows can't be had.
    async fn pump(&mut self) -> Unreadable {
        loop {
            match self.driver.next().await {
                Step::Decode(blocks) => {
                    self.pending.insert(blocks.row);
                    if let Some(pool) = &self.pool {
                        pool.push(blocks);
                    }
                }
                Step::Wait => {}
                Step::Ended(RestoreOutcome::Lost { row, good, needed }) => {
                    return self.driver.lost(row, good, needed);
                }
                // The last rows are still being decoded.
                Step::Ended(RestoreOutcome::Done) => {
                    self.pool = None;
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// The lanes of a restore.
pub(crate) struct Lanes<'a> {
    pub(crate) image: Lane<'a>,
    /// The lane of the base, if rows of it are needed.
    pub(crate) base: Option<Lane<'a>>,
}

impl Lanes<'_> {
    /// Fetches rows of image and base for as long as it is polled. Returns only if rows can't be had.
    pub(crate) async fn pump(&mut self) -> Unreadable {
        match &mut self.base {
            None => self.image.pump().await,
            Some(base) => tokio::select! {
                biased;
                stop = base.pump() => stop,
                stop = self.image.pump() => stop,
            },
        }
    }

    /// This row of the image was written.
    pub(crate) fn written(&mut self, row: u64) {
        self.image.used(row);
    }

    /// All rows of the base up to this one were used.
    pub(crate) fn base_used(&mut self, row: u64) {
        if let Some(base) = &mut self.base {
            base.used_up_to(row);
        }
    }

    /// Lets the decoding threads end when they have decoded what they have.
    pub(crate) fn close(&mut self) {
        self.image.pool = None;
        if let Some(base) = &mut self.base {
            base.pool = None;
        }
    }

    /// Bytes that hosts sent.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        let base = self.base.as_ref();
        let of_base = base.map_or(0, |base| base.driver.fetched_bytes());
        self.image.driver.fetched_bytes() + of_base
    }

    /// Bytes from each host, for image and base together.
    pub(crate) fn sources(&self) -> Vec<SourceBytes> {
        let mut all = self.image.driver.sources();
        let base = self.base.as_ref();
        for more in base.map(|base| base.driver.sources()).unwrap_or_default() {
            match all.iter_mut().find(|one| one.host == more.host) {
                Some(one) => one.bytes += more.bytes,
                None => all.push(more),
            }
        }
        all
    }
}
