//! The interface of a restore session: its plan, events, actions and outcome.

use std::collections::BTreeSet;

use codec::ShardIndex;

use crate::core::{Fault, HostIndex};

/// Identifies one request for blocks, within one restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub u64);

/// A row to get, and what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedRow {
    /// Its number.
    pub row: u64,
    /// Bytes of one of its blocks.
    pub block_bytes: u64,
    /// Bytes of memory that it takes from the request until it is written.
    pub memory_bytes: u64,
}

/// Divides `memory` bytes among reads of these rows that run at the same time: each gets what its largest row takes, and
/// its part of the rest by what all its rows take.
pub fn windows(memory: u64, reads: &[Vec<PlannedRow>]) -> Vec<u64> {
    let takes = |rows: &[PlannedRow]| rows.iter().map(|row| row.memory_bytes).sum::<u64>();
    let largest = reads.iter().map(|rows| {
        let takes = rows.iter().map(|row| row.memory_bytes);
        takes.max().unwrap_or_default()
    });
    let all: u64 = reads.iter().map(|rows| takes(rows)).sum();
    let rest = memory.saturating_sub(largest.clone().sum());
    let more = |rows: &[PlannedRow]| {
        let more = u128::from(rest) * u128::from(takes(rows)) / u128::from(all.max(1));
        u64::try_from(more).unwrap_or(u64::MAX)
    };
    let all = reads.iter().zip(largest);
    all.map(|(rows, largest)| largest + more(rows)).collect()
}

/// Time limits in milliseconds and size limits in bytes of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreLimits {
    /// Most memory of rows that are requested or wait to be written. A row that takes more is read alone.
    pub window_bytes: u64,
    /// Most bytes of one request, unless it is for one row.
    pub batch_bytes: u64,
    /// Most rows of one request.
    pub batch_rows: usize,
    /// A request is hedged (sent to another source as well) when its host was silent for this long, or when
    /// it takes longer than this and much longer than others did.
    pub hedge_ms: u64,
    /// Longest time without another block of a request. While the host answers other requests, it counts
    /// from the host's last block, but for at most three times as long.
    pub stall_ms: u64,
    /// Failures after which a source is given up, even if it could come back.
    pub strikes_max: u32,
    /// How often the shell is asked to find the holders anew, because too few are left and one of them may
    /// have handed its shard over.
    pub searches_max: u32,
    /// Longest wait for the result of such a search.
    pub search_ms: u64,
}

/// What is to be read from where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePlan {
    /// How many different shards each row needs.
    pub data: usize,
    /// Rows to get, ascending.
    pub rows: Vec<PlannedRow>,
    /// Which host has which shard. A shard can be at several hosts, and a host can have several. Of sources
    /// of like speed, data shards are preferred, then the first in this list.
    pub sources: Vec<(ShardIndex, HostIndex)>,
    /// Shards whose blocks were fetched ahead: they are asked for before others.
    pub at_hand: BTreeSet<ShardIndex>,
    /// Time and size limits.
    pub limits: RestoreLimits,
}

/// What happened, as the shell reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreEvent {
    /// A block of a row came and agrees with the signed table. Blocks of a request may come in any order;
    /// blocks of a cancelled request are ignored.
    Block(FetchId, u64),
    /// A request is answered, and every good block of it was reported.
    Done(FetchId),
    /// A request failed, or brought a wrong byte. After the latter, [`Fault::Lied`], this host is asked for this shard
    /// again only for single rows that can't be had without it. Blocks that were reported before still count.
    Failed(FetchId, Fault),
    /// A decoded row is written; its memory is free.
    Consumed(u64),
    /// Which hosts hold the shards now; the answer to [`RestoreAction::FindHolders`].
    Holders(Vec<(ShardIndex, HostIndex)>),
    /// Nothing happened but that time passed.
    Tick,
}

/// What the shell has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreAction {
    /// Request blocks; report `Block` for each, then `Done` or `Failed`.
    Fetch {
        /// Number by which the shell reports about this request.
        fetch: FetchId,
        /// The shard whose blocks are requested.
        shard: ShardIndex,
        /// The host to ask.
        host: HostIndex,
        /// The rows whose blocks are requested, ascending.
        rows: Vec<u64>,
    },
    /// Find out which hosts hold the shards now, and report `Holders`: hosts may have handed their shards
    /// over to others.
    FindHolders,
    /// Cancel a request; no more reports of it are needed.
    Cancel(FetchId),
    /// Decode a row from the blocks of these shards, and drop its other blocks, also those that may still
    /// come; then report `Consumed`. Comes once for each row, in any order.
    Decode(u64, Vec<ShardIndex>),
}

/// How a restore ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// Every row was written.
    Done,
    /// A row has too few good blocks, and no other source can be asked.
    Lost {
        /// The first such row.
        row: u64,
        /// Different shards of the row that came.
        good: usize,
        /// Different shards that the row needs.
        needed: usize,
    },
}
