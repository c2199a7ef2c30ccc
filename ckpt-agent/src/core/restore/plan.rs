//! What a restore session is given, is told, asks for, and ends with.

use std::ops::Range;

use codec::ShardIndex;

use crate::core::{Fault, HostIndex};

/// Names one request for blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub u64);

/// Times and sizes that bound a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreLimits {
    /// Rows that may be under way or waiting to be written.
    pub window_rows: u64,
    /// Rows that are asked for at once.
    pub batch_rows: u64,
    /// A request is hedged when its host is silent for so long, or when it takes longer than this
    /// and much longer than others do.
    pub hedge_ms: u64,
    /// Without one more block from a request. Counts from the last block of its host while the
    /// host answers others, but not for more than three times as long.
    pub stall_ms: u64,
    /// Failures after which a source that could come back is given up.
    pub strikes_max: u32,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestorePlan {
    /// Different shards that are needed for each row.
    pub data: usize,
    /// Rows to get, ascending.
    pub rows: Vec<Range<u64>>,
    /// Who has which shard. A shard can be at several hosts, and a host can have several. Among
    /// those that are as fast as each other, data shards are preferred, then the first in this
    /// list.
    pub sources: Vec<(ShardIndex, HostIndex)>,
    /// Bounds.
    pub limits: RestoreLimits,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreEvent {
    /// A block of a row came and is as the signed table says. Blocks of a request may come in any
    /// order; what comes from a cancelled request is ignored.
    Block(FetchId, u64),
    /// A request is answered; every block of it that was good has been told.
    Done(FetchId),
    /// A request failed, or brought a wrong byte: that is [`Fault::Lied`], after which this shard
    /// is never asked of this host again. Blocks that were told before still count.
    Failed(FetchId, Fault),
    /// A row that was decoded is written; its memory is free.
    Consumed(u64),
    /// Time has passed.
    Tick,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreAction {
    /// Ask for blocks; tell `Block` for each, then `Done` or `Failed`.
    Fetch {
        /// The request.
        fetch: FetchId,
        /// Whose blocks.
        shard: ShardIndex,
        /// Whom to ask.
        host: HostIndex,
        /// Which rows.
        rows: Range<u64>,
    },
    /// Give a request up; nothing more has to be told of it.
    Cancel(FetchId),
    /// Decode a row from the blocks of these shards, and forget its other blocks, also those that
    /// may still come; then tell `Consumed`. Comes once for each row, in no particular order.
    Decode(u64, Vec<ShardIndex>),
}

/// How a restore ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestoreOutcome {
    /// Every row was written.
    Done,
    /// A row has too few good blocks, and nobody else can be asked.
    Lost {
        /// The row.
        row: u64,
        /// Different shards of it that came.
        good: usize,
        /// Shards needed.
        needed: usize,
    },
}
