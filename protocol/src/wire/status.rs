//! The parts of a host's status.

use super::message::HostStatus;

/// Number of the part of a [`HostStatus`] that is the number of the host's list of the grid (u64).
pub const PART_LIST_NUMBER: u16 = 1;

impl HostStatus {
    /// Number of the host's list of the grid, 0 for none; `None` if the host's program is too old for lists.
    pub fn list_number(&self) -> Option<u64> {
        let part = self.parts.get(PART_LIST_NUMBER)?;
        Some(u64::from_le_bytes(part.try_into().ok()?))
    }
}
