//! One try to put one shard on one host.

use codec::ShardIndex;

use super::SaveLimits;
use crate::core::{Fault, HostIndex, Millis};

/// Steps of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The host was asked to take the shard.
    Opening,
    /// The host is being sent rows.
    Sending,
    /// The host accepted, but some rows are released already: the shard is to be rebuilt from others.
    Late,
    /// The shard is being rebuilt from others.
    Rebuilding,
    /// All rows were sent; the host syncs them.
    Finishing,
    /// The host has synced the whole shard.
    Stored,
    /// The host was sent the manifest.
    Committing,
    /// The host has synced the manifest.
    Committed,
    /// The attempt has failed; another host may take the shard.
    Failed,
}

impl Phase {
    /// Whether the shard is known to be whole.
    pub(super) const fn is_whole(self) -> bool {
        matches!(self, Self::Stored | Self::Committing | Self::Committed)
    }

    /// Whether the host may hold the whole shard, even if it has not confirmed that yet.
    pub(super) const fn may_hold_shard(self) -> bool {
        self.is_whole() || matches!(self, Self::Finishing | Self::Rebuilding)
    }
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) shard: ShardIndex,
    pub(super) host: HostIndex,
    pub(super) phase: Phase,
    /// When the phase began, or the last progress in it, or the moment from which rows waited for the host.
    pub(super) since: Millis,
    /// Rows that the shell was given to send.
    pub(super) given: u64,
    /// Rows that the transport took.
    pub(super) sent: u64,
    /// Milliseconds in which rows waited for the host, up to `since`.
    pub(super) busy_ms: u64,
    /// Bytes of the blocks that had to wait.
    pub(super) busy_bytes: u64,
    /// Whether more rows were waiting when the host took the last one.
    behind: bool,
    /// Whether rows had been released when the attempt was opened, so that it can't be sent all of them.
    pub(super) late: bool,
    /// How many times its host was tried before and then left alone for a while.
    pub(super) retries: u32,
    /// Whether its host did not answer when it was asked last, nor has answered now: it gets less time to
    /// accept.
    pub(super) was_silent: bool,
    /// How many times the host was sent the manifest.
    pub(super) commits: u32,
    /// When the host may be sent the manifest again.
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

    /// Whether the attempt can become whole from the rows in memory, or is whole already.
    pub(super) const fn needs_no_others(&self) -> bool {
        match self.phase {
            Phase::Opening => !self.late,
            Phase::Late | Phase::Failed => false,
            // A running rebuild may have read all that it needs.
            _ => true,
        }
    }

    /// Notes that the transport took rows up to `end`; their blocks have `bytes` bytes in all.
    pub(super) fn taken(&mut self, end: u64, bytes: u64, now: Millis) {
        let waited = now.since(self.since) > 0;
        self.sent = end;
        if waited || self.behind {
            self.busy_bytes += bytes;
        }
        self.behind = self.sent < self.given;
        self.busy_ms += now.since(self.since);
        self.since = now;
    }

    /// Milliseconds in which rows waited for the host, up to `now`.
    pub(super) fn busy_until(&self, now: Millis) -> u64 {
        let waits = self.phase == Phase::Sending && self.sent < self.given;
        self.busy_ms + if waits { now.since(self.since) } else { 0 }
    }

    /// The fault of an attempt that took too long.
    pub(super) fn overdue(&self, now: Millis) -> Fault {
        let waited = now.since(self.since);
        if self.was_silent && self.phase == Phase::Opening {
            Fault::no_answer(waited)
        } else {
            Fault::Stalled(waited)
        }
    }

    /// When the attempt counts as stalled without further progress, or when it is to commit again. Its host
    /// gets `open_ms` to accept.
    pub(super) fn deadline(&self, limits: &SaveLimits, open_ms: u64) -> Option<Millis> {
        match self.phase {
            Phase::Opening => Some(self.since.plus(open_ms)),
            Phase::Sending if self.sent < self.given => Some(self.since.plus(limits.stall_ms)),
            Phase::Stored if self.commits > 0 => Some(self.commit_at),
            Phase::Finishing => Some(self.since.plus(limits.sync_ms)),
            Phase::Committing => Some(self.since.plus(limits.commit_ms)),
            // A rebuild is bounded by the time limits of its transfers.
            _ => None,
        }
    }
}
