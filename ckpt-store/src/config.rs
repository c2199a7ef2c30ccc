//! Settings of a daemon.

use std::net::SocketAddr;
use std::path::PathBuf;

use protocol::grid::Grid;
use protocol::identity::Identity;

/// All that a daemon needs to run.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// The grid that it serves.
    pub grid: Grid,
    /// Who it is.
    pub identity: Identity,
    /// Its name in logs and answers.
    pub name: String,
    /// Where it keeps shards.
    pub data_dir: PathBuf,
    /// Where it listens.
    pub listen: SocketAddr,
    /// Bytes that it lends.
    pub capacity_bytes: u64,
    /// Free space of the disk that it never uses.
    pub reserve_bytes: u64,
    /// Memory that it may use.
    pub memory_bytes: u64,
}

/// How the memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Bytes that one peer may have in flight to here.
    pub receive_window: u32,
    /// Bytes in flight to one peer.
    pub send_window: u64,
    /// Shards that may be written at once.
    pub writers: usize,
    /// Reads that may run at once.
    pub readers: usize,
    /// Connections at once.
    pub connections: usize,
}

/// Memory of the program itself: code, runtime, books of some ten thousand shards.
const BASE_BYTES: u64 = 16 << 20;

/// What one shard takes while it is written: a batch being received, one queued, one written.
const WRITER_BYTES: u64 = 3 << 20;

/// What one read takes: a piece of a shard on its way into the send window.
const READER_BYTES: u64 = 2 << 20;

impl MemoryPlan {
    /// Divides `memory_bytes`: a third for writers, a third for readers, a third for windows.
    pub fn new(memory_bytes: u64) -> Self {
        let share = memory_bytes.saturating_sub(BASE_BYTES) / 3;
        let at_least = |bytes: u64, each: u64, least: u64| (bytes / each).max(least) as usize;
        Self {
            receive_window: (share / 8).clamp(256 << 10, 8 << 20) as u32,
            send_window: (share / 8).clamp(256 << 10, 8 << 20),
            writers: at_least(share, WRITER_BYTES, 2),
            readers: at_least(share, READER_BYTES, 2),
            connections: 64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_plan_stays_within_its_memory() {
        let memory = 64 << 20;
        let plan = MemoryPlan::new(memory);
        let used = plan.writers as u64 * WRITER_BYTES + plan.readers as u64 * READER_BYTES;
        assert!(
            BASE_BYTES + used + 8 * u64::from(plan.receive_window) <= memory,
            "{plan:?}"
        );
        assert!(plan.writers >= 5 && plan.readers >= 5, "{plan:?}");
    }

    #[test]
    fn little_memory_still_serves() {
        let plan = MemoryPlan::new(0);
        assert!(plan.writers >= 2 && plan.receive_window >= 256 << 10);
    }
}
