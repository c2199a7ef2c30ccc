//! How the memory of a registry is divided. What members can make a registry keep in memory is counted
//! here, and the sum stays within `--memory`.

use protocol::wire::limits::{FRAME_BYTES_MAX, LIST_BYTES_MAX};

use crate::core::joiners;
use crate::core::registry::{DONOR_BYTES, DONORS_MAX, PAGE_BYTES_MAX, RegistryLimits, SHARD_BYTES};
use crate::serve::frames::{PLACE_BYTES, SHORT_BYTES_MAX};
use crate::serve::lists::LISTS_AT_ONCE;
use crate::serve::reception::Connections;

/// Default memory of a registry.
pub const MEMORY_USUAL: u64 = 2 << 30;

/// Most requests that one member may have open on a connection.
pub(super) const STREAMS_MAX: u32 = 8;

/// Most bytes that one member may have in flight to the registry on a connection.
pub(super) const WINDOW: u32 = 32 << 10;

/// Most bytes that the registry may have in flight to one member on a connection.
pub(super) const SEND_WINDOW: u64 = 64 << 10;

/// Most connections of one member. A donor has one, and each command of a submitter has one.
const CONNECTIONS_OF_A_MEMBER_MAX: usize = 64;

/// Code, runtime, and what else does not grow with members.
const PROGRAM_BYTES: u64 = 24 << 20;

/// What a connection takes by itself: the state of QUIC and TLS.
const STATE_BYTES: u64 = 32 << 10;

/// What a connection takes at most: its state, both windows, and a short request on each stream.
const CONNECTION_BYTES: u64 =
    STATE_BYTES + WINDOW as u64 + SEND_WINDOW + STREAMS_MAX as u64 * SHORT_BYTES_MAX as u64;

/// What an answer takes while it is sent.
const ANSWER_BYTES: u64 = PAGE_BYTES_MAX as u64 + DONOR_BYTES as u64 + FRAME_BYTES_MAX as u64;

/// A list takes its bytes, and about as much again once it is read.
const LISTS_BYTES: u64 = LISTS_AT_ONCE as u64 * 2 * LIST_BYTES_MAX as u64;

/// What is there whatever the size of the grid.
const BASE_BYTES: u64 =
    PROGRAM_BYTES + LISTS_BYTES + joiners::JOINERS_MAX as u64 * joiners::JOINER_BYTES as u64;

/// How the memory of a registry is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegistryPlan {
    /// Most connections of members at the same time.
    pub connections: usize,
    /// Most long requests that are being received at the same time.
    pub frames: usize,
    /// Most answers that are being sent at the same time.
    pub answers: usize,
    /// What the registry keeps of donors.
    pub limits: RegistryLimits,
}

impl RegistryPlan {
    /// Divides this many bytes of memory.
    pub fn new(memory_bytes: u64) -> Self {
        let whole = memory_bytes.saturating_sub(BASE_BYTES);
        let share = |parts: u64, each: u64, least: u64, most: u64| {
            (whole / 16 * parts / each).clamp(least, most) as usize
        };
        Self {
            connections: share(8, CONNECTION_BYTES, 16, 20_000),
            // There are at least two places of each kind: one member may have one, and the other is for
            // the other members.
            frames: share(1, PLACE_BYTES, 2, 512),
            answers: share(1, ANSWER_BYTES, 2, 256),
            limits: RegistryLimits {
                donors: share(4, DONOR_BYTES as u64, 16, DONORS_MAX as u64),
                shards: share(2, SHARD_BYTES as u64, 4096, 1 << 23),
            },
        }
    }

    /// How many connections members may have.
    pub(super) const fn connections(&self) -> Connections {
        Connections {
            all: self.connections,
            of_a_member: CONNECTIONS_OF_A_MEMBER_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(plan: &RegistryPlan) -> u64 {
        BASE_BYTES
            + plan.connections as u64 * CONNECTION_BYTES
            + plan.frames as u64 * PLACE_BYTES
            + plan.answers as u64 * ANSWER_BYTES
            + plan.limits.donors as u64 * DONOR_BYTES as u64
            + plan.limits.shards as u64 * SHARD_BYTES as u64
    }

    #[test]
    fn the_plan_of_a_registry_stays_within_its_memory() {
        for mib in [128, 256, 1024, 2048, 8192] {
            let plan = RegistryPlan::new(mib << 20);
            assert!(used(&plan) <= mib << 20, "{mib}: {plan:?}");
        }
        let usual = RegistryPlan::new(MEMORY_USUAL);
        assert!(
            usual.connections >= 6000 && usual.limits.donors >= 10_000,
            "{usual:?}"
        );
        assert!(usual.connections > 4 * CONNECTIONS_OF_A_MEMBER_MAX);
    }

    #[test]
    fn one_member_gets_a_small_part() {
        let one = CONNECTIONS_OF_A_MEMBER_MAX as u64 * CONNECTION_BYTES;
        assert!(one <= 16 << 20, "{one}");
    }
}
