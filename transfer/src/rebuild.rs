//! Rebuilds one shard from others, row by row.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use codec::ShardIndex;
use codec::manifest::Public;
use codec::rs::Coder;
use protocol::wire::limits::STALL_TIMEOUT;
use protocol::wire::message::PutEnd;
use tokio::sync::{mpsc, watch};

use crate::get::BlockReader;
use crate::put::PutCommand;
use crate::{Fault, HostIndex, Hosts};

/// Rows that are read in one step.
const BATCH_ROWS: u64 = 8;

/// Most rows that may wait to be sent.
const WAITING_ROWS: u64 = 16;

/// The shard to rebuild, and its sources.
#[derive(Debug)]
pub struct Rebuild {
    /// The connections to the sources.
    pub hosts: Hosts,
    /// The public part of the checkpoint's manifest.
    pub public: Public,
    /// The shard that is missing.
    pub shard: ShardIndex,
    /// Which hosts hold which shards. Sources of the missing shard itself are copied.
    pub sources: Vec<(ShardIndex, HostIndex)>,
    /// Commands to the sender of the shard.
    pub commands: mpsc::UnboundedSender<PutCommand>,
    /// How many rows the sender has sent.
    pub sent: watch::Receiver<u64>,
    /// Most bytes per second that are read; `None` is no limit.
    pub bytes_per_second: Option<u64>,
}

impl Rebuild {
    /// Reads or computes all rows, and passes them and the end to the sender.
    ///
    /// # Errors
    /// When too few sources can be read, or the sender takes no more.
    pub async fn run(mut self) -> Result<(), Fault> {
        let reader = BlockReader::new(self.hosts.clone(), self.public.clone());
        let mut coder = Coder::new(self.public.redundancy);
        let mut first = 0;
        while first < self.public.rows {
            let rows = first..self.public.rows.min(first + BATCH_ROWS);
            self.wait_for_room(rows.start).await?;
            let table = match self.copies(&reader, rows.clone()).await {
                Some(blocks) => blocks,
                None => self.compute(&reader, &mut coder, rows.clone()).await?,
            };
            for (row, block) in rows.clone().zip(table) {
                self.pass(PutCommand::Block(row, block))?;
            }
            first = rows.end;
        }
        let root = self.public.shard(self.shard).map(|(_, root)| root);
        self.pass(PutCommand::Finish(PutEnd {
            rows: self.public.rows,
            root: root.ok_or(Fault::Starved)?,
        }))
    }

    /// The blocks of these rows from a host that holds the shard itself. `None` if there is no such host.
    async fn copies(&mut self, reader: &BlockReader, rows: Range<u64>) -> Option<Vec<Bytes>> {
        while let Some(at) = self.sources.iter().position(|(of, _)| *of == self.shard) {
            let (shard, host) = self.sources.get(at).copied()?;
            let mut blocks = Vec::new();
            let read = reader.blocks(shard, host, rows.clone(), |_, block| blocks.push(block));
            if read.await.is_ok() {
                self.pace(blocks.iter().map(Bytes::len).sum()).await;
                return Some(blocks);
            }
            self.sources.remove(at);
        }
        None
    }

    /// The blocks of these rows, computed from the blocks of other shards.
    async fn compute(
        &mut self,
        reader: &BlockReader,
        coder: &mut Coder,
        rows: Range<u64>,
    ) -> Result<Vec<Bytes>, Fault> {
        let table = self.read(reader, rows).await?;
        let read = table.iter().flatten().map(|(_, block)| block.len());
        self.pace(read.sum()).await;
        let rebuilt = table.into_iter().map(|blocks| {
            let blocks: Vec<_> = blocks.iter().map(|(s, b)| (*s, &**b)).collect();
            let mut block = Vec::new();
            coder
                .rebuild(&blocks, self.shard, &mut block)
                .map_err(|cause| Fault::Lied(cause.to_string()))?;
            Ok(block.into())
        });
        rebuilt.collect()
    }

    /// Waits for the time that `bytes` take at the limit.
    async fn pace(&self, bytes: usize) {
        if let Some(rate) = self.bytes_per_second {
            let seconds = bytes as f64 / rate.max(1) as f64;
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        }
    }

    fn pass(&self, command: PutCommand) -> Result<(), Fault> {
        let passed = self.commands.send(command);
        passed.map_err(|_| Fault::Gone("it accepts no more data".into()))
    }

    async fn wait_for_room(&mut self, row: u64) -> Result<(), Fault> {
        let room = self.sent.wait_for(|sent| row < sent + WAITING_ROWS);
        match tokio::time::timeout(STALL_TIMEOUT, room).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Fault::Gone("it accepts no more data".into())),
            Err(_) => Err(Fault::Stalled(millis(STALL_TIMEOUT))),
        }
    }

    /// Reads `data` blocks of each row. A source that fails is not used again.
    async fn read(
        &mut self,
        reader: &BlockReader,
        rows: Range<u64>,
    ) -> Result<Vec<Vec<(ShardIndex, Bytes)>>, Fault> {
        let data = self.public.redundancy.data();
        let mut table = vec![Vec::new(); (rows.end - rows.start) as usize];
        let mut got = 0;
        let mut next = 0;
        while got < data {
            let Some((shard, host)) = self.sources.get(next).copied() else {
                return Err(Fault::Starved);
            };
            // A shard that two hosts hold counts once.
            let mut known = table.iter().take(1).flatten();
            if known.any(|(have, _): &(ShardIndex, Bytes)| *have == shard) {
                next += 1;
                continue;
            }
            let mut blocks = Vec::new();
            let read = reader.blocks(shard, host, rows.clone(), |_, block| blocks.push(block));
            if read.await.is_err() {
                self.sources.remove(next);
                continue;
            }
            for (row, block) in table.iter_mut().zip(blocks) {
                row.push((shard, block));
            }
            next += 1;
            got += 1;
        }
        Ok(table)
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
