//! Rows on their way from hosts to decoding threads: those of an image, and those of its origins.

use std::future::poll_fn;
use std::mem::discriminant;
use std::pin::Pin;
use std::task::Poll;

use crate::agent::read::fetch::{Driver, Step, Unreadable};
use crate::core::read::RowPlace;
use crate::core::restore::{RestoreEvent, RestoreOutcome};
use crate::core::{Fault, HostIndex};
use crate::pipeline::decode::DecodePool;
use crate::report::SourceBytes;

/// The rows of one checkpoint, on their way from hosts to decoding threads.
struct Lane<'a> {
    driver: Driver<'a>,
    /// No more rows are fetched.
    is_done: bool,
}

impl Lane<'_> {
    /// Fetches rows for as long as it is polled, also when it is cancelled and called again. Returns only if
    /// rows can't be had.
    async fn pump(&mut self, number: usize, pool: Option<&DecodePool>) -> Unreadable {
        if self.is_done {
            return std::future::pending().await;
        }
        loop {
            match self.driver.next().await {
                Step::Decode(blocks) => {
                    if let Some(pool) = pool {
                        pool.push(number, blocks);
                    }
                }
                Step::Wait => {}
                Step::Ended(RestoreOutcome::Lost { row, good, needed }) => {
                    return self.driver.lost(row, good, needed);
                }
                // The last rows are still being decoded.
                Step::Ended(RestoreOutcome::Done) => {
                    self.is_done = true;
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// The lanes of a restore: that of the image's own rows, then those of its origins.
pub(crate) struct Lanes<'a> {
    lanes: Vec<Lane<'a>>,
    /// The decoding threads; `None` once no more rows are fetched.
    pool: Option<DecodePool>,
}

impl<'a> Lanes<'a> {
    pub(crate) fn new(pool: DecodePool, drivers: impl Iterator<Item = Driver<'a>>) -> Self {
        let lane = |driver| Lane {
            driver,
            is_done: false,
        };
        Self {
            lanes: drivers.map(lane).collect(),
            pool: Some(pool),
        }
    }

    /// Fetches rows for as long as it is polled. Returns only if rows can't be had.
    pub(crate) async fn pump(&mut self) -> Unreadable {
        let pool = self.pool.as_ref();
        let lanes = self.lanes.iter_mut().enumerate();
        let mut pumps: Vec<Pin<Box<_>>> = lanes
            .map(|(number, lane)| Box::pin(lane.pump(number, pool)))
            .collect();
        poll_fn(|context| {
            let mut polled = pumps.iter_mut().map(|pump| pump.as_mut().poll(context));
            polled.find(Poll::is_ready).unwrap_or(Poll::Pending)
        })
        .await
    }

    /// This row was used; its memory is free.
    pub(crate) fn used(&mut self, (lane, row): RowPlace) {
        if let Some(lane) = self.lanes.get_mut(lane) {
            lane.driver.handle(RestoreEvent::Consumed(row));
        }
    }

    /// Lets the decoding threads end when they have decoded what they have.
    pub(crate) fn close(&mut self) {
        self.pool = None;
    }

    /// The drivers of all lanes.
    pub(crate) fn drivers(&self) -> impl Iterator<Item = &Driver<'a>> {
        self.lanes.iter().map(|lane| &lane.driver)
    }

    /// Of each host the first fault of each kind.
    pub(crate) fn faults(&self) -> Vec<(HostIndex, Fault)> {
        let mut first: Vec<(HostIndex, Fault)> = Vec::new();
        for (host, fault) in self.drivers().flat_map(|driver| driver.session.faults()) {
            let kind = (*host, discriminant(fault));
            if first
                .iter()
                .all(|(host, fault)| (*host, discriminant(fault)) != kind)
            {
                first.push((*host, fault.clone()));
            }
        }
        first
    }

    /// Bytes that hosts sent.
    pub(crate) fn fetched_bytes(&self) -> u64 {
        self.drivers().map(Driver::fetched_bytes).sum()
    }

    /// Bytes from each host, for all checkpoints together.
    pub(crate) fn sources(&self) -> Vec<SourceBytes> {
        let mut all: Vec<SourceBytes> = Vec::new();
        for more in self.drivers().flat_map(Driver::sources) {
            match all.iter_mut().find(|one| one.host == more.host) {
                Some(one) => one.bytes += more.bytes,
                None => all.push(more),
            }
        }
        all
    }
}
