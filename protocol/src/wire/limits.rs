//! Every maximum of the protocol, in one place.

use std::time::Duration;

use codec::geometry::{BLOCK_BYTES_MAX, PAGE_ROWS};
use codec::manifest::MANIFEST_BYTES_MAX;
use codec::proposal::PROPOSAL_BYTES_MAX;
use codec::shard_file::{ENTRY_BYTES, PAGES_MAX};

use crate::identity::{CARD_BYTES_MAX, NAME_BYTES_MAX};

/// Longest frame. The longest message is a record: a manifest and a few numbers for each shard.
pub const FRAME_BYTES_MAX: usize = MANIFEST_BYTES_MAX + (8 << 10);

const _: () = assert!(PROPOSAL_BYTES_MAX + 16 < FRAME_BYTES_MAX);

/// Longest text in a message (names, details of a refusal).
pub const TEXT_BYTES_MAX: usize = 256;

/// Most [`super::parts::Parts`] of one message.
pub const PARTS_MAX: usize = 16;

/// Most bytes of the [`super::parts::Parts`] of one message, without their numbers and lengths.
pub const PARTS_BYTES_MAX: usize = 2048;

/// Most records in the answer to one `Find`.
pub const RECORDS_MAX: u32 = 1024;

/// Most records in the answer to one `Members`.
pub const MEMBERS_MAX: u32 = 256;

/// Most holders in the answer to one `Holders`.
pub const HOLDERS_MAX: usize = 1024;

/// Most shards in one `Holds`.
pub const HOLDS_MAX: usize = 4096;

/// Most checkpoints in one `PeerHolds`. The request and its answer both fit into a frame.
pub const PEER_HOLDS_ASKED_MAX: usize = 2048;

/// Most jobs in one `Notices`.
pub const NOTICES_ASKED_MAX: usize = 512;

/// Most owners in one `Voids`.
pub const VOIDS_ASKED_MAX: usize = 64;

/// Most owners in one `Census`.
pub const CENSUS_OWNERS_MAX: usize = 256;

/// Most cards in one `PutCards`, and in the answer to one `Cards`. They fit into a frame.
pub const CARDS_MAX: usize = 16;

/// Most donors in the answer to one `CompareCards`.
pub const CARD_DAYS_MAX: usize = 1024;

/// Most members in the answer to one `Joiners`.
pub const JOINERS_MAX: usize = 256;

/// Most notices of one job in the answer to one `Notices`.
pub const NOTICES_PER_JOB_MAX: usize = 4;

/// Most bytes of the signed list of a grid.
pub const LIST_BYTES_MAX: usize = 8 << 20;

/// Most rows in the answer to one `Rows` or `RowRuns`.
pub const ROWS_PER_READ_MAX: u32 = 64;

/// Most bytes in the answer to one `Rows` or `RowRuns`.
pub const READ_BYTES_MAX: u64 = ROWS_PER_READ_MAX as u64 * BLOCK_BYTES_MAX as u64;

/// Most bytes of a probe.
pub const PROBE_BYTES_MAX: u32 = 1 << 20;

/// Bytes of a full page.
pub const PAGE_BYTES_MAX: usize = PAGE_ROWS as usize * ENTRY_BYTES;

/// Bytes of the outline of the largest shard.
pub const OUTLINE_BYTES_MAX: usize = PAGES_MAX as usize * 32;

/// Longest wait for a connection.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest wait for the answer to a request that moves little data.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for a host to sync a shard after its last byte.
pub const SYNC_TIMEOUT: Duration = Duration::from_secs(120);

/// Longest wait for all bytes of a list of a grid.
pub const LIST_TIMEOUT: Duration = Duration::from_secs(60);

/// A transfer in which no byte arrives for this long has stalled.
pub const STALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Most shards in the answer to one `RowsHeld`: as many as a checkpoint can have.
pub const SHARDS_MAX: usize = 64;

/// How long a host keeps a finished shard, the rows of one whose transfer broke off, or a claim, without a manifest.
pub const UNCOMMITTED_LIFETIME: Duration = Duration::from_secs(3600);

const _: () = assert!(FRAME_BYTES_MAX > MANIFEST_BYTES_MAX + 64 * 16 + 1024);
const _: () = assert!(FRAME_BYTES_MAX > PEER_HOLDS_ASKED_MAX * (3 + 9 + 16) + 16);
const _: () = assert!(FRAME_BYTES_MAX > JOINERS_MAX * (32 + 3 + NAME_BYTES_MAX + 1 + 16 + 27) + 16);
const _: () = assert!(FRAME_BYTES_MAX > CARD_DAYS_MAX * (32 + 5) + 16);
const _: () = assert!(FRAME_BYTES_MAX > CARDS_MAX * (CARD_BYTES_MAX + 3 + 24) + 16);
const _: () = assert!(FRAME_BYTES_MAX > codec::proof::PROOF_BYTES_MAX + 16);
