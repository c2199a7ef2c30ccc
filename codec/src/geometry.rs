//! Counts and sizes of segments, blocks, shards and pages, and the arithmetic between them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest encoded index, bytes.
pub const INDEX_BYTES_MAX: usize = 1 << 30;

/// Image bytes of a full segment. The measured cost per byte is the same from 192 KiB to 3 MiB; beyond
/// that, a segment does not fit into the cache of one core, and the cost rises.
pub const SEGMENT_BYTES: usize = 1 << 20;

/// Rows that share one page of a shard's table.
pub const PAGE_ROWS: u64 = 1024;

/// Data shards of a checkpoint by default. Two of the five hosts of the default code can be lost.
pub const DATA_USUAL: u8 = 3;

/// Parity shards of a checkpoint by default.
pub const PARITY_USUAL: u8 = 2;

/// Most data shards of a checkpoint.
pub const DATA_MAX: u8 = 32;

/// Most parity shards of a checkpoint.
pub const PARITY_MAX: u8 = 32;

/// Bytes that sealing adds to a segment (the AES-GCM tag).
pub const SEAL_OVERHEAD: usize = 16;

/// Longest possible block: a whole sealed segment, with one data shard.
pub const BLOCK_BYTES_MAX: usize = SEGMENT_BYTES + SEAL_OVERHEAD;

const _: () = assert!(SEGMENT_BYTES.is_multiple_of(64));

/// How many shards of a checkpoint carry data and how many carry parity.
///
/// Any `data` of them are enough to rebuild the image; `1 <= data <= 32`, `0 <= parity <= 32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "(u8, u8)", into = "(u8, u8)")]
pub struct Redundancy {
    data: u8,
    parity: u8,
}

/// Why a pair of counts is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedundancyError {
    /// `data` is zero or too large.
    #[error("data shards: {0} is not in 1..={DATA_MAX}")]
    Data(u8),
    /// `parity` is too large.
    #[error("parity shards: {0} is not in 0..={PARITY_MAX}")]
    Parity(u8),
}

impl Redundancy {
    /// Three data and two parity shards: FALCON's choice, and the default of a save. `placement`, which does not
    /// know this crate, has the same code as `Width::FALCON`; `ckpt-agent`, which knows both, does not compile
    /// if they differ.
    pub const DEFAULT: Self = Self {
        data: DATA_USUAL,
        parity: PARITY_USUAL,
    };

    /// One data and two parity shards: what is left of [`Self::DEFAULT`] where only three hosts take a shard.
    pub const NARROWEST: Self = Self {
        data: 1,
        parity: PARITY_USUAL,
    };

    /// Checks the counts.
    ///
    /// # Errors
    /// When one of the counts is out of range.
    pub const fn new(data: u8, parity: u8) -> Result<Self, RedundancyError> {
        if data == 0 || data > DATA_MAX {
            return Err(RedundancyError::Data(data));
        }
        if parity > PARITY_MAX {
            return Err(RedundancyError::Parity(parity));
        }
        Ok(Self { data, parity })
    }

    /// Number of data shards: as many shards as are needed to rebuild an image.
    pub const fn data(self) -> usize {
        self.data as usize
    }

    /// Number of parity shards: as many shards as can be lost.
    pub const fn parity(self) -> usize {
        self.parity as usize
    }

    /// Number of all shards.
    pub const fn total(self) -> usize {
        self.data() + self.parity()
    }

    /// All shard indices, data first.
    pub fn shards(self) -> impl DoubleEndedIterator<Item = ShardIndex> + ExactSizeIterator {
        (0..self.data + self.parity).map(ShardIndex)
    }

    /// The shard with this number, when there is one.
    pub const fn shard(self, number: u8) -> Option<ShardIndex> {
        if (number as usize) < self.total() {
            Some(ShardIndex(number))
        } else {
            None
        }
    }

    /// Length of each block of a segment of `sealed_len` bytes.
    pub const fn block_len(self, sealed_len: usize) -> usize {
        sealed_len.div_ceil(self.data())
    }
}

impl Default for Redundancy {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl TryFrom<(u8, u8)> for Redundancy {
    type Error = RedundancyError;

    fn try_from((data, parity): (u8, u8)) -> Result<Self, RedundancyError> {
        Self::new(data, parity)
    }
}

impl From<Redundancy> for (u8, u8) {
    fn from(redundancy: Redundancy) -> Self {
        (redundancy.data, redundancy.parity)
    }
}

/// Which shard of a checkpoint: `0..data` carry data, the others parity.
///
/// Made by [`Redundancy::shards`] and [`Redundancy::shard`] only, so it is in range for that redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardIndex(u8);

impl ShardIndex {
    /// The number as stored in formats.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The number as an index into per-shard sequences.
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ShardIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a row's entry is in the table: its page, and its number within that page.
pub const fn page_of(row: u64) -> (u64, usize) {
    (row / PAGE_ROWS, (row % PAGE_ROWS) as usize)
}

/// Pages of a shard of `rows` rows.
pub const fn page_count(rows: u64) -> u64 {
    rows.div_ceil(PAGE_ROWS)
}

/// Rows in page `page` of a shard of `rows` rows; zero when there is no such page.
pub const fn page_rows(rows: u64, page: u64) -> u64 {
    let left = rows.saturating_sub(page.saturating_mul(PAGE_ROWS));
    if left < PAGE_ROWS { left } else { PAGE_ROWS }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_out_of_range_are_refused() {
        assert_eq!(Redundancy::new(0, 2), Err(RedundancyError::Data(0)));
        assert_eq!(Redundancy::new(33, 2), Err(RedundancyError::Data(33)));
        assert_eq!(Redundancy::new(3, 33), Err(RedundancyError::Parity(33)));
        assert_eq!(Redundancy::new(32, 32).map(Redundancy::total), Ok(64));
        assert_eq!(Redundancy::new(1, 0).map(Redundancy::total), Ok(1));
    }

    #[test]
    fn rows_fall_into_pages() {
        assert_eq!(page_of(0), (0, 0));
        assert_eq!(page_of(1024), (1, 0));
        assert_eq!(page_count(0), 0);
        assert_eq!(page_count(1024), 1);
        assert_eq!(page_count(1025), 2);
        assert_eq!(page_rows(1025, 0), 1024);
        assert_eq!(page_rows(1025, 1), 1);
        assert_eq!(page_rows(1025, 2), 0);
        assert_eq!(page_rows(u64::MAX, u64::MAX), 0);
    }

    #[test]
    fn blocks_cover_the_sealed_segment() {
        let redundancy = Redundancy::DEFAULT;
        assert_eq!(redundancy.block_len(17), 6);
        assert_eq!(redundancy.block_len(18), 6);
        assert_eq!(redundancy.block_len(19), 7);
    }
}
