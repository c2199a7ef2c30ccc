//! Rebuilds one shard from others, row by row.

use std::collections::BTreeMap;
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
    /// Sources that sent wrong bytes; none at first.
    pub damaged: Vec<(ShardIndex, HostIndex)>,
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
            match read.await {
                Ok(()) => {
                    self.pace(blocks.iter().map(Bytes::len).sum()).await;
                    return Some(blocks);
                }
                Err(fault) => self.give_up(at, &fault),
            }
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

    /// Reads `data` blocks of each row. A source that fails is not used again; one that sent wrong bytes is, for single
    /// rows that can't be had without it.
    async fn read(
        &mut self,
        reader: &BlockReader,
        rows: Range<u64>,
    ) -> Result<Vec<Vec<(ShardIndex, Bytes)>>, Fault> {
        let data = self.public.redundancy.data();
        let mut table: Table = rows.map(|row| (row, Vec::new())).collect();
        let mut next = 0;
        while let Some((shard, host)) = self.sources.get(next).copied() {
            let wanted = lacking(&table, shard, data);
            let read = reader.blocks(shard, host, wanted, |row, block| {
                table.entry(row).or_default().push((shard, block));
            });
            match read.await {
                Ok(()) => next += 1,
                Err(fault) => self.give_up(next, &fault),
            }
        }
        for (shard, host) in self.damaged.clone() {
            for row in lacking(&table, shard, data) {
                let read = reader.blocks(shard, host, [row], |row, block| {
                    table.entry(row).or_default().push((shard, block));
                });
                if let Err(cause) = read.await {
                    tracing::debug!(%cause, row, "a damaged source lacks this row, too");
                }
            }
        }
        let rows = table.into_values();
        let rows: Vec<Vec<(ShardIndex, Bytes)>> = rows.collect();
        if rows.iter().any(|blocks| blocks.len() < data) {
            return Err(Fault::Starved);
        }
        Ok(rows)
    }

    fn give_up(&mut self, at: usize, fault: &Fault) {
        let source = self.sources.remove(at);
        if matches!(fault, Fault::Lied(_)) {
            self.damaged.push(source);
        }
    }
}

/// Blocks of rows.
type Table = BTreeMap<u64, Vec<(ShardIndex, Bytes)>>;

/// The rows that have fewer than `data` blocks, and not that of `shard`.
fn lacking(table: &Table, shard: ShardIndex, data: usize) -> Vec<u64> {
    let lacks = |blocks: &[(ShardIndex, Bytes)]| {
        blocks.len() < data && blocks.iter().all(|(have, _)| *have != shard)
    };
    let rows = table.iter().filter(|(_, blocks)| lacks(blocks));
    rows.map(|(row, _)| *row).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
