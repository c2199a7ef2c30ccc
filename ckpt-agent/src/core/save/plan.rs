//! What a save session is given, is told, asks for, and ends with.

use codec::{Redundancy, ShardIndex};

use crate::core::{Fault, HostIndex, Millis};

/// Names one try to put one shard on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId(pub u32);

/// Times and sizes that bound a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaveLimits {
    /// For a host to accept a shard, connecting included.
    pub open_ms: u64,
    /// The same for a host that did not answer when it was asked last. Where there is a deadline it is
    /// given twice as long each time, up to `open_ms`.
    pub again_ms: u64,
    /// For which rows have to wait for a host before it may be called slow.
    pub evidence_ms: u64,
    /// Without one more row taken by a host that has rows waiting.
    pub stall_ms: u64,
    /// For a host to sync a whole shard.
    pub sync_ms: u64,
    /// For a host to sync a manifest.
    pub commit_ms: u64,
    /// Rows that everybody has are kept for a possible successor up to this many bytes. The shell
    /// needs memory for more than this, or no new row fits while old ones are retained.
    pub retain_bytes: u64,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavePlan {
    /// How many shards.
    pub redundancy: Redundancy,
    /// Different hosts in order of preference; the first `data + parity` are tried first, the
    /// others are spares. No host gets two shards.
    pub candidates: Vec<HostIndex>,
    /// Of these, the ones that did not answer when they were asked before the save.
    pub silent: Vec<HostIndex>,
    /// A number that other clients don't have: who waits for the same host waits for another time.
    pub draw: u64,
    /// Fewest parity shards with which to commit when there are no more candidates. The default
    /// promise is the redundancy's own parity.
    pub min_parity: u8,
    /// When it has to be done. A save that is not committing shortly before is given up then, so
    /// that there is time to remove what was stored.
    pub deadline: Option<Millis>,
    /// Bounds.
    pub limits: SaveLimits,
}

/// What a row takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowSize {
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of one block: what is sent to one host.
    pub block: u64,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveEvent {
    /// There is a connection to the host of an attempt.
    Reached(AttemptId),
    /// The host of an attempt takes blocks. Answers [`SaveAction::Open`].
    Accepted(AttemptId),
    /// An attempt failed, at any time: refused, lost, wrong root, refused to commit, not rebuilt.
    /// [`Fault::Starved`] says that a rebuild found too few readable sources, which is not the
    /// fault of the attempt's host. What comes of an attempt after this is ignored.
    Failed(AttemptId, Fault),
    /// The next row is in memory.
    RowReady {
        /// The row; rows come in order.
        row: u64,
        /// What it takes.
        size: RowSize,
    },
    /// The transport took a row's block for an attempt; rows go in order.
    Sent(AttemptId, u64),
    /// There are no more rows; all were told by `RowReady`, and the manifest is known.
    InputEnded,
    /// The image can't be read to its end.
    InputFailed,
    /// The host of an attempt has synced the whole shard and its root is right. Answers
    /// [`SaveAction::Finish`] and [`SaveAction::Rebuild`].
    Stored(AttemptId),
    /// The host of an attempt has synced the manifest. Answers [`SaveAction::Commit`].
    Committed(AttemptId),
    /// The witnesses of the checkpoint that it follows have chosen it. Answers [`SaveAction::Decide`].
    Decided,
    /// They have not, or not before it was stored.
    Undecided(SaveFailure),
    /// The user wants it to end.
    Cancel,
    /// Time has passed.
    Tick,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveAction {
    /// Connect and offer the shard; then tell `Accepted` or `Failed`.
    Open {
        /// The attempt.
        attempt: AttemptId,
        /// Its shard.
        shard: ShardIndex,
        /// Its host.
        host: HostIndex,
    },
    /// Send an attempt its block of a row, after those that it was sent before; then tell `Sent`.
    Send(AttemptId, u64),
    /// Tell the host that all rows were sent, and wait for its root.
    Finish(AttemptId),
    /// Read all rows from `sources` (any `data` of them do), compute this attempt's shard, send
    /// and finish it.
    Rebuild {
        /// The attempt; its host has accepted.
        attempt: AttemptId,
        /// Shards that are whole, and who has them.
        sources: Vec<(ShardIndex, HostIndex)>,
    },
    /// Sign the manifest and have it chosen as what follows another checkpoint; then tell `Decided` or
    /// `Undecided`. Comes once, and only of a save that is to follow one.
    Decide,
    /// Send the manifest. May come again for the same attempt when the connection was lost: to
    /// commit twice is the same as once.
    Commit(AttemptId),
    /// End whatever still runs for an attempt. A host drops a shard that was not finished.
    Abort(AttemptId),
    /// Have the host remove what it has of the checkpoint.
    Retract(HostIndex),
    /// Nobody needs this row any more; its memory is free.
    Release(u64),
}

/// A host that did not do its part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setback {
    /// Which.
    pub host: HostIndex,
    /// How.
    pub fault: Fault,
    /// When it may be asked again; `None` when it is given up.
    pub again: Option<Millis>,
}

/// How a save ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// The checkpoint is on stable storage and visible.
    Committed {
        /// Who holds which shard; fewer than all only when the plan allows it.
        holders: Vec<(ShardIndex, HostIndex)>,
    },
    /// It is not, and what was stored is being removed.
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
    /// The user ended it.
    Cancelled,
    /// The time was over.
    Deadline,
    /// Another checkpoint follows the one that it was to follow, or may.
    AnotherSuccessor,
    /// Too few witnesses of the one that it was to follow answer.
    TooFewWitnesses,
    /// Other saves that want to follow it bid more each time.
    Outbid,
}
