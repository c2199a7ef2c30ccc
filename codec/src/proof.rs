//! Proofs that a host holds a shard: one chunk of one block, which the asker chooses, and the hashes that
//! lead from it to the root that the owner signed.
//!
//! A proof has three slices ([`crate::slice`]), each of which is checked against a hash from the one
//! before:
//!
//! ```text
//! root (signed) -> slice of the outline, with the hash of the row's page
//!               -> slice of that page, with length and hash of the row's block
//!               -> slice of that block, with the chunk
//! ```
//!
//! A proof has a few kilobytes, whatever the size of the shard.

#![cfg_attr(
    not(test),
    deny(clippy::cast_possible_truncation, clippy::indexing_slicing)
)]

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::geometry::{BLOCK_BYTES_MAX, page_count, page_of, page_rows};
use crate::hash::ShardRoot;
use crate::shard_file::{
    BlockEntry, ENTRY_BYTES, OUTLINE_CONTEXT, OUTLINE_HEAD_BYTES, Outline, ShardIdentity,
};
use crate::slice::{self, CHUNK_BYTES, Hashing, SliceError};

/// Most bytes of an encoded proof. The slices of outline and page have at most two chunks and nine hashes
/// each, the slice of the block one chunk and ten hashes.
pub const PROOF_BYTES_MAX: usize = 5 * CHUNK_BYTES + 28 * 32 + 16;

/// The chunk of a shard that is to be proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spot {
    /// Number of the row in whose block the chunk is.
    pub row: u64,
    /// Any number. The chunk's number in the row's block is the remainder of its division by the number of
    /// chunks of the block, since the asker may not know the block's length.
    pub draw: u32,
}

/// The proof that a host has a chunk of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardProof {
    /// Slice of the outline with the hash of the row's page.
    #[serde(with = "serde_bytes")]
    pub outline: Vec<u8>,
    /// Slice of the page with the row's entry.
    #[serde(with = "serde_bytes")]
    pub page: Vec<u8>,
    /// Slice of the row's block with the chunk.
    #[serde(with = "serde_bytes")]
    pub block: Vec<u8>,
}

/// Why a proof is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// The shard has no such row.
    #[error("row {0} is not one of the shard's")]
    Row(u64),
    /// A slice does not belong to its hash.
    #[error("{part}: {cause}")]
    Slice {
        /// Name of the slice.
        part: &'static str,
        /// What is wrong with the slice.
        cause: SliceError,
    },
    /// The page has an entry with a length that no block can have.
    #[error("impossible block length {0}")]
    BlockLength(u32),
}

/// Where the hash of a page is in the bytes of which the root is the hash.
const fn place_of_page(page: usize) -> Range<usize> {
    let start = OUTLINE_HEAD_BYTES + page * 32;
    start..start + 32
}

/// Where the entry of a row is in its page.
const fn place_of_entry(place: usize) -> Range<usize> {
    place * ENTRY_BYTES..(place + 1) * ENTRY_BYTES
}

/// The chunk of a block of `len` bytes that `draw` stands for.
fn place_of_chunk(len: usize, draw: u32) -> Range<usize> {
    let chunks = len.div_ceil(CHUNK_BYTES).max(1);
    let start = draw as usize % chunks * CHUNK_BYTES;
    start..(start + CHUNK_BYTES).min(len)
}

impl ShardProof {
    /// Makes the proof for a spot out of the outline, the encoded page and the block of its row; `None` if
    /// they do not belong together.
    pub fn of(
        identity: &ShardIdentity,
        outline: &Outline,
        page: &[u8],
        block: &[u8],
        spot: Spot,
    ) -> Option<Self> {
        let (number, place) = page_of(spot.row);
        let hashed = outline.hashed(identity);
        let derived = Hashing::derived(OUTLINE_CONTEXT);
        Some(Self {
            outline: slice::cut(
                &derived,
                &hashed,
                place_of_page(usize::try_from(number).ok()?),
            )?,
            page: slice::cut(&Hashing::plain(), page, place_of_entry(place))?,
            block: slice::cut(
                &Hashing::plain(),
                block,
                place_of_chunk(block.len(), spot.draw),
            )?,
        })
    }

    /// Checks the proof for a spot of the shard with this root and number of rows, and returns the chunk.
    ///
    /// # Errors
    /// When the proof does not show that the host has the chunk.
    pub fn check(&self, root: ShardRoot, rows: u64, spot: Spot) -> Result<Vec<u8>, ProofError> {
        if spot.row >= rows {
            return Err(ProofError::Row(spot.row));
        }
        let part = |part| move |cause| ProofError::Slice { part, cause };
        let (number, place) = page_of(spot.row);
        let as_usize = |count| usize::try_from(count).map_err(|_| ProofError::Row(spot.row));
        let pages = as_usize(page_count(rows))?;
        let page_hash = slice::read(
            &Hashing::derived(OUTLINE_CONTEXT),
            &root.0,
            OUTLINE_HEAD_BYTES + pages * 32,
            place_of_page(as_usize(number)?),
            &self.outline,
        )
        .map_err(part("outline"))?;
        let page_hash = page_hash
            .first_chunk()
            .ok_or(part("outline")(SliceError::Length))?;
        let entry = slice::read(
            &Hashing::plain(),
            page_hash,
            as_usize(page_rows(rows, number))? * ENTRY_BYTES,
            place_of_entry(place),
            &self.page,
        )
        .map_err(part("page"))?;
        let entry = entry
            .first_chunk()
            .ok_or(part("page")(SliceError::Length))?;
        let entry = BlockEntry::decode(entry);
        let len = entry.len as usize;
        if len == 0 || len > BLOCK_BYTES_MAX {
            return Err(ProofError::BlockLength(entry.len));
        }
        slice::read(
            &Hashing::plain(),
            &entry.hash.0,
            len,
            place_of_chunk(len, spot.draw),
            &self.block,
        )
        .map_err(part("block"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::geometry::Redundancy;
    use crate::id::CheckpointId;
    use crate::serial;
    use crate::shard_file::TableBuilder;

    fn identity() -> ShardIdentity {
        ShardIdentity {
            checkpoint: CheckpointId([1; 16]),
            redundancy: Redundancy::DEFAULT,
            shard: Redundancy::DEFAULT.shard(4).unwrap(),
        }
    }

    struct Held {
        blocks: Vec<Vec<u8>>,
        pages: Vec<Vec<u8>>,
        outline: Outline,
    }

    fn held(lengths: &[usize]) -> Held {
        let block = |row: usize, len: usize| (0..len).map(|at| (at * row + at) as u8).collect();
        let blocks: Vec<Vec<u8>> = (1..)
            .zip(lengths)
            .map(|(row, len)| block(row, *len))
            .collect();
        let mut table = TableBuilder::default();
        let mut pages: Vec<_> = blocks
            .iter()
            .filter_map(|block| table.push(BlockEntry::of(block)))
            .collect();
        let (last, outline) = table.finish();
        pages.extend(last);
        Held {
            blocks,
            pages,
            outline,
        }
    }

    impl Held {
        fn root(&self) -> ShardRoot {
            self.outline.root(&identity())
        }

        fn prove(&self, spot: Spot) -> ShardProof {
            let page = &self.pages[page_of(spot.row).0 as usize];
            let block = &self.blocks[spot.row as usize];
            ShardProof::of(&identity(), &self.outline, page, block, spot).unwrap()
        }

        fn check(&self, proof: &ShardProof, spot: Spot) -> Result<Vec<u8>, ProofError> {
            proof.check(self.root(), self.outline.rows, spot)
        }
    }

    #[test]
    fn every_row_can_be_proved_and_no_proof_is_long() {
        let mut lengths = vec![5; 2100];
        lengths[1023] = BLOCK_BYTES_MAX;
        lengths[2048] = 3000;
        let held = held(&lengths);
        for row in (0..2100).step_by(100).chain([1023, 1024, 2047, 2048, 2099]) {
            for draw in [0, 1, 2, 77, u32::MAX] {
                let spot = Spot { row, draw };
                let proof = held.prove(spot);
                let encoded = serial::encode(&proof, PROOF_BYTES_MAX).unwrap();
                assert!(encoded.len() <= PROOF_BYTES_MAX);
                let block = &held.blocks[row as usize];
                let chunk = place_of_chunk(block.len(), draw);
                assert_eq!(held.check(&proof, spot).as_deref(), Ok(&block[chunk]));
            }
        }
    }

    #[test]
    fn a_proof_is_of_one_row_one_chunk_and_one_shard() {
        let held = held(&[5000, 5000, 4000]);
        let spot = Spot { row: 1, draw: 2 };
        let proof = held.prove(spot);
        assert!(held.check(&proof, spot).is_ok());
        for other in [Spot { row: 0, ..spot }, Spot { row: 2, ..spot }] {
            assert!(held.check(&proof, other).is_err());
        }
        assert!(held.check(&proof, Spot { draw: 1, ..spot }).is_err());
        let beyond = Spot { row: 3, ..spot };
        assert_eq!(held.check(&proof, beyond), Err(ProofError::Row(3)));
        let other = ShardIdentity {
            shard: Redundancy::DEFAULT.shard(0).unwrap(),
            ..identity()
        };
        let of_other = proof.check(held.outline.root(&other), 3, spot);
        assert!(of_other.is_err());
    }

    #[test]
    fn a_host_with_another_block_proves_nothing() {
        let right = held(&[5000, 5000]);
        let mut wrong = held(&[5000, 5000]);
        wrong.blocks[1][2500] ^= 1;
        let spot = Spot { row: 1, draw: 2 };
        let refused = right.check(&wrong.prove(spot), spot);
        assert!(
            matches!(refused, Err(ProofError::Slice { part: "block", .. })),
            "{refused:?}"
        );
    }

    proptest! {
        #[test]
        fn no_changed_proof_is_accepted(
            lengths in prop::collection::vec(1_usize..6000, 1..40),
            row in any::<prop::sample::Index>(),
            draw in any::<u32>(),
            at in any::<prop::sample::Index>(),
            change in 1_u8..,
        ) {
            let held = held(&lengths);
            let spot = Spot { row: row.index(lengths.len()) as u64, draw };
            let proof = held.prove(spot);
            prop_assert!(held.check(&proof, spot).is_ok());
            for part in 0..3 {
                let mut changed = proof.clone();
                let bytes = match part {
                    0 => &mut changed.outline,
                    1 => &mut changed.page,
                    _ => &mut changed.block,
                };
                let at = at.index(bytes.len());
                bytes[at] ^= change;
                prop_assert!(held.check(&changed, spot).is_err());
            }
        }
    }
}
