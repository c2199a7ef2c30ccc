//! Settings of a daemon.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use protocol::grid::Grid;
use protocol::identity::Identity;
use protocol::wire::limits::{FRAME_BYTES_MAX, LIST_BYTES_MAX};

use crate::core::ledger::Quota;
use crate::monitor::outlook::Predictor;
use crate::repair::RepairSettings;
use crate::scrub::ScrubSettings;
use crate::serve::frames::{PLACE_BYTES, SHORT_BYTES_MAX};
use crate::serve::lists::LISTS_AT_ONCE;
use crate::serve::reception::{CLIENTS_WITHOUT_PLACE, Connections};
use crate::shards::{BROKEN_BYTES, BROKEN_MAX, FOUND_BYTES_MAX};

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

/// How the memory of the daemon is divided. What members can make it keep in memory is counted here, and
/// the sum stays within `--memory`.
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
    /// Most long requests at the same time: those that are being received, and those that wait for a
    /// place or for the disk.
    pub frames: usize,
    /// Most connections at the same time.
    pub connections: usize,
}

/// Default of `--memory`, bytes.
pub const MEMORY_USUAL: &str = "128MiB";

/// Memory of the program itself: code, runtime, the buffers of its sockets, and the books of some ten
/// thousand shards.
const PROGRAM_BYTES: u64 = 20 << 20;

/// What a client takes that has not shown its certificate yet, and a connection by itself: the state of
/// QUIC and TLS.
const STATE_BYTES: u64 = 32 << 10;

/// What repair takes: a window to each host of a checkpoint, and the rows that it rebuilds.
const REPAIR_BYTES: u64 = 6 << 20;

/// A list of the grid takes its bytes, and about as much again once it is read.
const LISTS_BYTES: u64 = LISTS_AT_ONCE as u64 * 2 * LIST_BYTES_MAX as u64;

/// The tables of shards whose transfers broke off.
const BROKEN_TABLES_BYTES: u64 = BROKEN_MAX as u64 * BROKEN_BYTES;

/// What does not follow from `--memory`.
const BASE_BYTES: u64 = PROGRAM_BYTES
    + REPAIR_BYTES
    + LISTS_BYTES
    + BROKEN_TABLES_BYTES
    + CLIENTS_WITHOUT_PLACE as u64 * STATE_BYTES;

/// Most requests that one connection may have open at the same time.
pub const STREAMS_MAX: u32 = 32;

/// Receive window of a connection that sends no shard: a little more than one frame.
pub const CONNECTION_WINDOW: u32 = 96 << 10;

/// What each shard that is being received adds to the window: enough for 400 Mbit/s at 40 ms.
pub const WRITER_WINDOW: u32 = 2 << 20;

/// Send window of a connection to which no blocks or records are sent.
pub const SEND_WINDOW: u64 = 64 << 10;

/// What each read of blocks adds to the send window.
pub const READER_WINDOW: u64 = 1 << 20;

/// What each answer of records adds to the send window.
pub const QUESTION_WINDOW: u64 = 128 << 10;

/// What a connection takes at most: its state, both windows, and a short request on each stream.
const CONNECTION_BYTES: u64 = STATE_BYTES
    + CONNECTION_WINDOW as u64
    + SEND_WINDOW
    + STREAMS_MAX as u64 * SHORT_BYTES_MAX as u64;

/// What a shard takes while it is written: its window, a batch that is being received, a batch that is
/// being written, and the buffer of its file.
const WRITER_BYTES: u64 = WRITER_WINDOW as u64 + (2 << 20);

/// What a read takes: its window, a piece that waits for the window, and a piece that is being read.
const READER_BYTES: u64 = READER_WINDOW + (1 << 20);

/// What a small answer takes: records, one of them as a frame, and those that are in flight.
const QUESTION_BYTES: u64 = FOUND_BYTES_MAX as u64 + 2 * FRAME_BYTES_MAX as u64 + QUESTION_WINDOW;

/// Most small changes at the same time. They mostly wait for each other, so more would gain nothing. What
/// they bring is counted among the long requests.
const CHANGES_MAX: usize = 16;

impl MemoryPlan {
    /// Divides this many bytes of memory among transfers and answers.
    pub fn new(memory_bytes: u64) -> Self {
        let whole = memory_bytes.saturating_sub(BASE_BYTES);
        let share = |parts: u64, each: u64, least: u64, most: u64| {
            (whole / 64 * parts / each).clamp(least, most) as usize
        };
        Self {
            // There are at least two places of each kind: one member may have one, and the other is for
            // the other members.
            writers: share(28, WRITER_BYTES, 2, 256),
            readers: share(14, READER_BYTES, 2, 256),
            questions: share(3, QUESTION_BYTES, 4, 256),
            changes: CHANGES_MAX,
            frames: share(2, PLACE_BYTES, 4, 128),
            connections: share(17, CONNECTION_BYTES, 16, 4096),
        }
    }

    /// How many connections members may have.
    pub(crate) const fn connections(&self) -> Connections {
        Connections {
            all: self.connections,
            of_a_member: self.connections,
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
            + plan.connections as u64 * CONNECTION_BYTES
    }

    #[test]
    fn the_plan_stays_within_its_memory() {
        for mib in [96, 128, 256, 1024, 4096] {
            let plan = MemoryPlan::new(mib << 20);
            assert!(used(&plan) <= mib << 20, "{mib}: {plan:?}");
        }
        let plan = MemoryPlan::new(128 << 20);
        assert!(
            plan.writers >= 7 && plan.readers >= 7 && plan.connections >= 54,
            "{plan:?}"
        );
    }

    #[test]
    fn little_memory_still_serves() {
        let plan = MemoryPlan::new(0);
        assert!(plan.writers >= 2 && plan.readers >= 2 && plan.connections >= 16);
        assert!(used(&plan) < 96 << 20);
    }
}
