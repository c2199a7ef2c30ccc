//! Settings of a daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use protocol::grid::Grid;
use protocol::identity::Identity;

use crate::core::ledger::Quota;
use crate::repair::RepairSettings;
use crate::scrub::ScrubSettings;

/// All that a daemon needs to run.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// The grid that it serves.
    pub grid: Grid,
    /// Who it is.
    pub identity: Identity,
    /// Its name in logs and answers.
    pub name: String,
    /// The grid file, to follow what it says of revoked members; what `grid` says holds for good
    /// when not given.
    pub grid_file: Option<PathBuf>,
    /// Where it keeps shards.
    pub data_dir: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where guests of this machine make themselves known; nowhere when there are none. Those after the
    /// first are not missed where another daemon listens.
    pub guest_sockets: Vec<PathBuf>,
    /// Where registries say that it listens; `listen` when not given.
    pub announce: Option<SocketAddr>,
    /// What fails together with it: building, campus, cloud zone.
    pub site: Option<String>,
    /// Whose machine it is.
    pub owner: Option<String>,
    /// Bytes that it lends; what it holds and nine tenths of what is free when not given.
    pub capacity_bytes: Option<u64>,
    /// How much of this one submitter may have.
    pub quota: Quota,
    /// Free space of the disk that it never uses; a twentieth of the disk, at most
    /// [`RESERVE_BYTES_MAX`], when not given.
    pub reserve_bytes: Option<u64>,
    /// Memory that it may use.
    pub memory_bytes: u64,
    /// Time in which a transfer has to move 64 KiB, or it gives way to one that waits for its place or
    /// its space.
    pub gives_way_after: Duration,
    /// How it looks after what it holds, and rebuilds what others lost.
    pub repair: RepairSettings,
    /// How it reads its shards to find what has rotted; not at all when not given.
    pub scrub: Option<ScrubSettings>,
    /// Time after which it asks another host, or a registry, for a newer list of the grid.
    pub list_period: Duration,
    /// Whether it refuses new shards and slows reads while the machine's owner needs the machine.
    pub stand_back: bool,
}

/// Time in which a transfer has to move 64 KiB unless another is given.
pub const GIVES_WAY_AFTER: Duration = Duration::from_secs(10);

/// Most of a disk that stays free unless another number is given.
pub const RESERVE_BYTES_MAX: u64 = 10 << 30;

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Shards that may be written at once.
    pub writers: usize,
    /// Reads of blocks that may run at once.
    pub readers: usize,
    /// Small answers at once: records, parts of tables, notices.
    pub questions: usize,
    /// Small changes at once that wait for the disk.
    pub changes: usize,
    /// Connections at once.
    pub connections: usize,
}

/// Memory of the program itself: code, runtime, books of some ten thousand shards.
const BASE_BYTES: u64 = 16 << 20;

/// What a connection may have in flight to here while it sends no shard: a frame and a bit.
pub const CONNECTION_WINDOW: u32 = 96 << 10;

/// What a connection that sends a shard may have in flight in addition: 400 Mbit/s at 40 ms.
pub const WRITER_WINDOW: u32 = 2 << 20;

/// What may be in flight from here on one connection.
pub const SEND_WINDOW: u64 = 1 << 20;

/// What one shard takes while it is written: its window, a batch that is received, one that is
/// written, the buffer of its file.
const WRITER_BYTES: u64 = WRITER_WINDOW as u64 + (2 << 20);

/// What one read takes: its window, a piece that waits for it, one that is read.
const READER_BYTES: u64 = SEND_WINDOW + (1 << 20);

/// What one small answer takes: its bytes, and those that are on their way.
const QUESTION_BYTES: u64 = 384 << 10;

/// Small changes at once. Most of the time they wait for each other, so more would gain nothing.
const CHANGES_MAX: usize = 16;

impl MemoryPlan {
    /// Divides `memory_bytes`.
    pub fn new(memory_bytes: u64) -> Self {
        let whole = memory_bytes.saturating_sub(BASE_BYTES);
        let share = |parts: u64, each: u64, least: u64, most: u64| {
            (whole / 32 * parts / each).clamp(least, most) as usize
        };
        Self {
            // At least two each: one is a member's share, and the other is for others.
            writers: share(19, WRITER_BYTES, 2, 256),
            readers: share(8, READER_BYTES, 2, 256),
            questions: share(1, QUESTION_BYTES, 4, 256),
            changes: CHANGES_MAX,
            connections: share(4, u64::from(CONNECTION_WINDOW), 16, 4096),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(plan: &MemoryPlan) -> u64 {
        BASE_BYTES
            + plan.writers as u64 * WRITER_BYTES
            + plan.readers as u64 * READER_BYTES
            + plan.questions as u64 * QUESTION_BYTES
            + plan.connections as u64 * u64::from(CONNECTION_WINDOW)
    }

    #[test]
    fn the_plan_stays_within_its_memory() {
        for mib in [36, 64, 100, 256, 1024] {
            let plan = MemoryPlan::new(mib << 20);
            assert!(used(&plan) <= mib << 20, "{plan:?}");
        }
        let plan = MemoryPlan::new(64 << 20);
        assert!(
            plan.writers >= 7 && plan.readers >= 6 && plan.connections >= 64,
            "{plan:?}"
        );
    }

    #[test]
    fn little_memory_still_serves() {
        let plan = MemoryPlan::new(0);
        assert!(plan.writers >= 2 && plan.readers >= 2 && plan.connections >= 16);
    }
}
