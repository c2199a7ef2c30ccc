//! One try to put one shard on one host.

use codec::ShardIndex;

use super::SaveLimits;
use crate::core::{HostIndex, Millis};

/// How far an attempt is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The host was asked to take the shard.
    Opening,
    /// It is being sent rows.
    Sending,
    /// It accepted, but rows that it would need are gone; it waits to be rebuilt.
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
    /// When the phase began, or the last progress in it.
    pub(super) since: Millis,
    /// Rows that the shell was told to send.
    pub(super) given: u64,
    /// Rows that the transport took.
    pub(super) sent: u64,
    /// Rows that it would need were released before it was accepted.
    pub(super) late: bool,
    /// How often its host asked for some time.
    pub(super) retries: u32,
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
            late: false,
            retries: 0,
        }
    }

    /// When it counts as stalled, unless there is progress.
    pub(super) fn deadline(&self, limits: &SaveLimits) -> Option<Millis> {
        match self.phase {
            Phase::Opening => Some(self.since.plus(limits.open_ms)),
            Phase::Sending if self.sent < self.given => Some(self.since.plus(limits.stall_ms)),
            Phase::Finishing => Some(self.since.plus(limits.sync_ms)),
            Phase::Committing => Some(self.since.plus(limits.commit_ms)),
            // Rebuilding is bounded by the waits of the transfers that it is made of.
            _ => None,
        }
    }
}
