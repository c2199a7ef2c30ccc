//! Settings of a daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use protocol::grid::Grid;
use protocol::identity::Identity;

use crate::core::ledger::Quota;
use crate::monitor::outlook::Predictor;
use crate::repair::RepairSettings;
use crate::scrub::ScrubSettings;
use crate::serve::frames::PLACE_BYTES;

/// The own copy of a daemon, or a registry, of the signed list of the grid, in the data directory. It is needed where the
/// copy that the grid file names can't be written.
pub const LIST_FILE: &str = "grid.members";

/// Everything that a daemon needs to run.
#[derive(Clone, Debug)]
pub struct DaemonConfig {
    /// The grid that it serves.
    pub grid: Grid,
    /// The key and certificate of the host.
    pub identity: Identity,
    /// The name of the host in logs and answers.
    pub name: String,
    /// The grid file, which the daemon follows for newer lists and revoked members. Without it `grid`
    /// stays as it is.
    pub grid_file: Option<PathBuf>,
    /// The data directory with the shards.
    pub data_dir: PathBuf,
    /// The address on which the daemon listens.
    pub listen: SocketAddr,
    /// The sockets on which guests of this machine can register; empty if none should. If the first one
    /// could be opened, a failure of the others is not an error: another daemon may listen there.
    pub guest_sockets: Vec<PathBuf>,
    /// The address that is announced to registries. By default `listen`.
    pub announce: Option<SocketAddr>,
    /// The site of the host, such as a building, campus or cloud zone. Hosts of one site are likely to
    /// fail together.
    pub site: Option<String>,
    /// The owner of the machine.
    pub owner: Option<String>,
    /// Bytes that the host lends. By default what it holds, and nine tenths of the free space.
    pub capacity_bytes: Option<u64>,
    /// How much of that one submitter may use.
    pub quota: Quota,
    /// Free space of the disk that is never used. By default a twentieth of the disk, and at most
    /// [`RESERVE_BYTES_MAX`].
    pub reserve_bytes: Option<u64>,
    /// Memory that the daemon may use, bytes.
    pub memory_bytes: u64,
    /// Time in which a transfer has to move 64 KiB. A slower one gives way to a transfer that waits for
    /// its place or its space.
    pub gives_way_after: Duration,
    /// Whether and how the host rebuilds shards that other hosts lost.
    pub repair: RepairSettings,
    /// Settings of reading all shards to find damage. `None` switches it off.
    pub scrub: Option<ScrubSettings>,
    /// Time after which another host, or a registry, is asked for a newer list of the grid.
    pub list_period: Duration,
    /// Whether the host refuses new shards and slows reads down while the machine's owner needs the
    /// machine.
    pub stand_back: bool,
    /// Which model makes the forecasts that the host announces.
    pub predictor: Predictor,
    /// Where metrics are served, and to whom. `None` serves none.
    pub metrics: Option<web::Settings>,
}

/// Default time in which a transfer has to move 64 KiB.
pub const GIVES_WAY_AFTER: Duration = Duration::from_secs(10);

/// Largest default reserve of a disk, bytes.
pub const RESERVE_BYTES_MAX: u64 = 10 << 30;

/// How the memory of the daemon is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Most shards that are written at the same time.
    pub writers: usize,
    /// Most reads of blocks at the same time.
    pub readers: usize,
    /// Most small answers at the same time: records, parts of tables, notices.
    pub questions: usize,
    /// Most small changes at the same time, which wait for the disk.
    pub changes: usize,
    /// Most long requests that are being received at the same time.
    pub frames: usize,
    /// Most connections at the same time.
    pub connections: usize,
}

/// Memory of the program itself: code, runtime, and the books of some ten thousand shards.
const BASE_BYTES: u64 = 16 << 20;

/// Receive window of a connection that sends no shard: a little more than one frame.
pub const CONNECTION_WINDOW: u32 = 96 << 10;

/// What each shard that is being received adds to the window: enough for 400 Mbit/s at 40 ms.
pub const WRITER_WINDOW: u32 = 2 << 20;

/// Send window of a connection.
pub const SEND_WINDOW: u64 = 1 << 20;

/// What a shard takes while it is written: its window, a batch that is being received, a batch that is
/// being written, and the buffer of its file.
const WRITER_BYTES: u64 = WRITER_WINDOW as u64 + (2 << 20);

/// What a read takes: its window, a piece that waits for the window, and a piece that is being read.
const READER_BYTES: u64 = SEND_WINDOW + (1 << 20);

/// What a small answer takes: its bytes, and those that are in flight.
const QUESTION_BYTES: u64 = 384 << 10;

/// Most small changes at the same time. They mostly wait for each other, so more would gain nothing.
const CHANGES_MAX: usize = 16;

impl MemoryPlan {
    /// Divides this many bytes of memory among transfers and answers.
    pub fn new(memory_bytes: u64) -> Self {
        let whole = memory_bytes.saturating_sub(BASE_BYTES);
        let share = |parts: u64, each: u64, least: u64, most: u64| {
            (whole / 128 * parts / each).clamp(least, most) as usize
        };
        Self {
            // There are at least two places of each kind: one member may have one, and the other is for
            // the other members.
            writers: share(75, WRITER_BYTES, 2, 256),
            readers: share(32, READER_BYTES, 2, 256),
            questions: share(4, QUESTION_BYTES, 4, 256),
            changes: CHANGES_MAX,
            frames: share(1, PLACE_BYTES, 2, 64),
            connections: share(16, u64::from(CONNECTION_WINDOW), 16, 4096),
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
            + plan.frames as u64 * PLACE_BYTES
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
