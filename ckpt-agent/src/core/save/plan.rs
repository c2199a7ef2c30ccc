//! The interface of a save session: its plan, events, actions and outcome.

use codec::{Redundancy, ShardIndex};

use crate::core::{Fault, HostIndex, Millis};

/// Identifies one try to put one shard on one host, within one save.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u32);

/// Time limits in milliseconds and a size limit in bytes of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveLimits {
    /// Longest time for a host to accept a shard, connecting included.
    pub open_ms: u64,
    /// The same for a host that did not answer when it was asked last. With a deadline, the time doubles with
    /// each try, up to `open_ms`.
    pub again_ms: u64,
    /// How long rows have to wait for a host before it may be judged slow.
    pub evidence_ms: u64,
    /// Longest time in which a host takes no row although rows wait for it.
    pub stall_ms: u64,
    /// Longest time for a host to sync a whole shard.
    pub sync_ms: u64,
    /// Longest time for a host to sync a manifest.
    pub commit_ms: u64,
    /// Rows that every attempt has are kept for a possible new attempt, up to this many bytes. The shell
    /// needs more memory for rows than this, or else no new row fits while old ones are retained.
    pub retain_bytes: u64,
}

/// What is to be saved where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavePlan {
    /// How many data and parity shards.
    pub redundancy: Redundancy,
    /// Different hosts in order of preference: the first `data + parity` are tried first, the others are
    /// spares. No host gets two shards.
    pub candidates: Vec<HostIndex>,
    /// Those of the candidates that did not answer when they were asked before the save.
    pub silent: Vec<HostIndex>,
    /// A number that differs between clients, so that clients that wait for the same host do not all come
    /// back at once.
    pub draw: u64,
    /// Fewest parity shards with which to commit when there are no more candidates. By default it is the
    /// redundancy's own parity.
    pub min_parity: u8,
    /// When the save has to be done. A save that is not committing shortly before is given up, so that there
    /// is time to remove what was stored.
    pub deadline: Option<Millis>,
    /// Time and size limits.
    pub limits: SaveLimits,
}

/// Sizes of one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSize {
    /// Bytes of memory that the row takes.
    pub memory: u64,
    /// Bytes of one of its blocks, which is what one host is sent.
    pub block: u64,
}

/// What happened, as the shell reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveEvent {
    /// The host of an attempt is connected.
    Reached(AttemptId),
    /// The host of an attempt takes blocks. Answers [`SaveAction::Open`].
    Accepted(AttemptId),
    /// An attempt failed at any step: refused, lost, wrong root, refused to commit, not rebuilt.
    /// [`Fault::Starved`] says that a rebuild found too few readable sources, which is no fault of the
    /// attempt's host. Later events of a failed attempt are ignored.
    Failed(AttemptId, Fault),
    /// The next row is in memory.
    RowReady {
        /// Number of the row; rows come in order.
        row: u64,
        /// The bytes that the row takes.
        size: RowSize,
    },
    /// The transport took the row's block for an attempt; rows go in order.
    Sent(AttemptId, u64),
    /// There are no more rows: each had its `RowReady`. The manifest is known.
    InputEnded,
    /// The image can't be read to its end.
    InputFailed,
    /// The host of an attempt has synced the whole shard, and its root is right. Answers
    /// [`SaveAction::Finish`] and [`SaveAction::Rebuild`].
    Stored(AttemptId),
    /// The host of an attempt has synced the manifest. Answers [`SaveAction::Commit`].
    Committed(AttemptId),
    /// The witnesses of the checkpoint that this save follows have chosen it. Answers [`SaveAction::Decide`].
    Decided,
    /// The witnesses have not chosen this save, for this reason.
    Undecided(SaveFailure),
    /// A host that is to be asked later ended its connection: it does not accept this client any more.
    ShutOut(HostIndex),
    /// The user ends the save.
    Cancel,
    /// Nothing happened but that time passed.
    Tick,
}

/// What the shell has to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveAction {
    /// Connect and offer the shard; then report `Accepted` or `Failed`.
    Open {
        /// Number by which the shell reports about this attempt.
        attempt: AttemptId,
        /// The shard that is offered.
        shard: ShardIndex,
        /// The host to which the shard is offered.
        host: HostIndex,
    },
    /// Send an attempt its block of a row, after the rows before it; then report `Sent`.
    Send(AttemptId, u64),
    /// Send the host the end of its shard, and wait for its root.
    Finish(AttemptId),
    /// Read all rows from `sources` (any `data` of them suffice), compute this attempt's shard, send it and
    /// finish it.
    Rebuild {
        /// The attempt, whose host has accepted.
        attempt: AttemptId,
        /// Shards that are whole, and their hosts.
        sources: Vec<(ShardIndex, HostIndex)>,
    },
    /// Sign the manifest and have the witnesses choose this save as the successor of a checkpoint; then
    /// report `Decided` or `Undecided`. Comes at most once, and only in a save that follows a checkpoint.
    Decide,
    /// Send the manifest. May come again for the same attempt when the connection was lost: committing twice
    /// has the same effect as committing once.
    Commit(AttemptId),
    /// End whatever still runs for an attempt. A host drops a shard that was not finished.
    Abort(AttemptId),
    /// Have the host remove what it has of this checkpoint.
    Retract(HostIndex),
    /// No attempt needs this row any more; its memory is free.
    Release(u64),
}

/// A host that did not do its part, for the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setback {
    /// The host that did not do its part.
    pub host: HostIndex,
    /// What the host did, or what kept it from answering.
    pub fault: Fault,
    /// When the host may be asked again; `None` when it is given up.
    pub again: Option<Millis>,
}

/// How a save ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// The checkpoint is on stable storage and visible.
    Committed {
        /// Which host holds which shard; fewer than all shards only if the plan allows it.
        holders: Vec<(ShardIndex, HostIndex)>,
    },
    /// There is no checkpoint. What was stored is being removed, unless the save may have been chosen.
    Failed(SaveFailure),
}

/// Why a save failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveFailure {
    /// Too few hosts do their part.
    NotEnoughHosts {
        /// Hosts that had accepted a shard at the end.
        placed: usize,
        /// Shards that are needed.
        needed: usize,
    },
    /// Another checkpoint took the version.
    VersionTaken,
    /// The image could not be read.
    InputFailed,
    /// The user ended the save.
    Cancelled,
    /// The deadline came first.
    Deadline,
    /// Another checkpoint follows, or may follow, the checkpoint that this save was to follow.
    AnotherSuccessor,
    /// Too few witnesses of the checkpoint that this save was to follow answer.
    TooFewWitnesses,
    /// Other saves that want to follow the same checkpoint bid more each time.
    Outbid,
}
