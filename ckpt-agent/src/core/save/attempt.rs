//! One try to put one shard on one host.

use codec::ShardIndex;

use super::SaveLimits;
use crate::core::{Fault, HostIndex, Millis};

/// How far an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The host was asked to take the shard.
    Opening,
    /// It is being sent rows.
    Sending,
    /// It accepted; its shard is to be rebuilt from others, since rows that it needs are gone.
    Late,
    /// The shard is being rebuilt from others.
    Rebuilding,
    /// All rows were sent; the host syncs them.
    Finishing,
    /// The shard is whole.
    Stored,
    /// The host was sent the manifest.
    Committing,
    /// It has synced the manifest.
    Committed,
    /// It failed.
    Failed,
}

impl Phase {
    /// Whether the shard is known to be whole.
    pub(super) const fn is_whole(self) -> bool {
        matches!(self, Self::Stored | Self::Committing | Self::Committed)
    }

    /// Whether the host may hold a whole shard, known to us or not.
    pub(super) const fn may_hold_shard(self) -> bool {
        self.is_whole() || matches!(self, Self::Finishing | Self::Rebuilding)
    }
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) shard: ShardIndex,
    pub(super) host: HostIndex,
    pub(super) phase: Phase,
    /// When the phase began, the last progress in it, or the moment from which rows waited for it.
    pub(super) since: Millis,
    /// Rows that the shell was told to send.
    pub(super) given: u64,
    /// Rows that the transport took.
    pub(super) sent: u64,
    /// Time in which rows waited for it, up to `since`.
    pub(super) busy_ms: u64,
    /// Bytes of blocks that had waited.
    pub(super) busy_bytes: u64,
    /// Whether the row before left others waiting.
    behind: bool,
    /// Rows that it would need were released before it was opened.
    pub(super) late: bool,
    /// How often its host was tried before and given some time.
    pub(super) retries: u32,
    /// It did not answer when it was asked last, nor up to now: it is given less time to accept.
    pub(super) was_silent: bool,
    /// How often it was told to commit.
    pub(super) commits: u32,
    /// When it may be told again.
    pub(super) commit_at: Millis,
}

impl Attempt {
    pub(super) const fn new(shard: ShardIndex, host: HostIndex, now: Millis) -> Self {
        Self {
            shard,
            host,
            phase: Phase::Opening,
            since: now,
            given: 0,
            sent: 0,
            busy_ms: 0,
            busy_bytes: 0,
            behind: false,
            late: false,
            retries: 0,
            was_silent: false,
            commits: 0,
            commit_at: now,
        }
    }

    /// Whether it can become whole from the rows that are in memory, or is whole already.
    pub(super) const fn needs_no_others(&self) -> bool {
        match self.phase {
            Phase::Opening => !self.late,
            Phase::Late | Phase::Failed => false,
            // A rebuild that runs may have read all that it needs.
            _ => true,
        }
    }

    /// Notes that the transport took rows up to `end`, whose blocks have so many bytes.
    pub(super) fn took(&mut self, end: u64, bytes: u64, now: Millis) {
        let waited = now.since(self.since) > 0;
        self.sent = end;
        if waited || self.behind {
            self.busy_bytes += bytes;
        }
        self.behind = self.sent < self.given;
        self.busy_ms += now.since(self.since);
        self.since = now;
    }

    /// Time in which rows waited for it, up to now.
    pub(super) fn busy_until(&self, now: Millis) -> u64 {
        let waits = self.phase == Phase::Sending && self.sent < self.given;
        self.busy_ms + if waits { now.since(self.since) } else { 0 }
    }

    /// What it is when it took too long.
    pub(super) fn overdue(&self, now: Millis) -> Fault {
        let waited = now.since(self.since);
        if self.was_silent && self.phase == Phase::Opening {
            Fault::no_answer(waited)
        } else {
            Fault::Stalled(waited)
        }
    }

    /// When it counts as stalled, unless there is progress, or when it is to commit again. To accept,
    /// its host is given `open_ms`.
    pub(super) fn deadline(&self, limits: &SaveLimits, open_ms: u64) -> Option<Millis> {
        match self.phase {
            Phase::Opening => Some(self.since.plus(open_ms)),
            Phase::Sending if self.sent < self.given => Some(self.since.plus(limits.stall_ms)),
            Phase::Stored if self.commits > 0 => Some(self.commit_at),
            Phase::Finishing => Some(self.since.plus(limits.sync_ms)),
            Phase::Committing => Some(self.since.plus(limits.commit_ms)),
            // Rebuilding is bounded by the waits of the transfers that it is made of.
            _ => None,
        }
    }
}
